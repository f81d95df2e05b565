//! Refreshes of a rank: each is due once per tREFI, is postponed while the rank has accesses, and closes the rows.
//!
//! Sources: JESD79-4, refresh command (up to eight refreshes may be postponed); JESD79-5, same-bank refresh; Stuecheli,
//! Kaseridis, Hunter and John, Elastic Refresh, MICRO 2010 (when an idle rank makes up for postponed refreshes).

use super::channel::Cell;
use super::timing::Timing;

/// Maximum number of postponed refreshes (JESD79-4).
const MAX_POSTPONED: u64 = 8;

/// The refreshes of banks that are refreshed together.
#[derive(Clone, Debug)]
pub(super) struct Refreshes {
    /// When the next one is due.
    due: u64,
    /// Number of refreshes so far.
    done: u64,
    /// Beginning and end of the last one.
    begin: u64,
    end: u64,
    /// End of the last access.
    busy_until: u64,
}

impl Refreshes {
    /// The refreshes of a channel, rank by rank. The refreshes of its ranks are due at even intervals within tREFI. All
    /// channels begin at the same time, because their counters start together at reset.
    pub fn of_channel(timing: &Timing) -> Vec<Self> {
        let all = u64::from(timing.ranks) * u64::from(timing.refresh_sets);
        let due = |index: u64| timing.trefi_ps - index * timing.trefi_ps / all;
        (0..all).map(|index| Self { due: due(index), done: 0, begin: 0, end: 0, busy_until: 0 }).collect()
    }

    /// The index of a bank's refreshes among those of its channel. Adjacent banks are in different groups, and one bank
    /// of each group is refreshed at a time.
    #[inline]
    pub fn index(timing: &Timing, cell: Cell) -> usize {
        let set = if timing.refresh_sets == 1 { 0 } else { cell.bank * timing.refresh_sets / timing.banks };
        (cell.rank * timing.refresh_sets + set) as usize
    }

    /// Records an access that ends at `end`.
    #[inline]
    pub fn record_access(&mut self, end: u64) {
        self.busy_until = self.busy_until.max(end);
    }

    /// Returns the time at which an access at `at` can begin, and the number of refreshes before it.
    #[inline]
    pub fn before(&mut self, timing: &Timing, at: u64) -> (u64, u64) {
        if at < self.begin {
            return (at, self.done - 1);
        }
        if at >= self.due && at >= self.end {
            self.refresh(timing, at);
        }
        (at.max(self.end), self.done)
    }

    /// Performs the refreshes before an access at `at`, when at least one is due. A rank that has been idle long enough
    /// makes up for postponed refreshes; the more it has postponed, the sooner it begins.
    #[cold]
    fn refresh(&mut self, timing: &Timing, at: u64) {
        let (trefi, trfc) = (timing.trefi_ps, timing.trfc_ps);
        let owed = (at - self.due) / trefi + 1;
        let newest_due = self.due + (owed - 1) * trefi;
        let idle_from = self.busy_until.max(self.end);
        let delay = trfc * (MAX_POSTPONED - owed.min(MAX_POSTPONED)) / MAX_POSTPONED;
        let first = (idle_from + delay).max(self.due);
        let performed = if first < at {
            let performed = (at - first).div_ceil(trfc).min(owed);
            let begin = first + (performed - 1) * trfc;
            self.begin = if performed == owed { begin.max(newest_due) } else { begin };
            self.end = self.begin + trfc;
            performed
        } else if owed > MAX_POSTPONED {
            let performed = owed - MAX_POSTPONED;
            self.begin = newest_due.max(idle_from).min(at);
            self.end = self.begin + performed * trfc;
            performed
        } else {
            return;
        };
        self.done += performed;
        self.due += performed * trefi;
    }
}
