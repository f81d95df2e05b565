//! Miss status holding registers (MSHRs): how many misses may be outstanding, and until when each register is held.
//!
//! Source: Kroft, Lockup-free instruction fetch/prefetch cache organization, ISCA 1981.

/// Maximum number of remembered gaps, intervals in which a register is free between two misses. A forgotten gap is
/// treated as occupied: misses may then wait slightly too long, but never use more than the available registers.
const MAX_GAPS: usize = 64;

/// The registers of a cache or a bank. All times have the same unit, which the caller chooses.
///
/// Misses may arrive out of time order, from an out-of-order core or from cores that are simulated one after another. A
/// miss with an earlier time uses a gap that is long enough; if there is none, it waits behind the misses that were
/// recorded before it.
#[derive(Debug)]
pub(crate) struct MissRegisters {
    /// For each register, the time after which it has no reservations.
    free_at: Vec<u64>,
    /// The latest time in `free_at`.
    all_free_at: u64,
    /// Gaps before those times, as start and end.
    gaps: Vec<(u64, u64)>,
    /// Index of the oldest gap, which is overwritten next.
    oldest_gap: usize,
    /// Upper bound of the ends of all gaps.
    gaps_end: u64,
    /// Duration of the last miss, used as the estimate for the next one, and duration of the shortest miss: a shorter
    /// gap is useless.
    last: u64,
    shortest: u64,
}

impl MissRegisters {
    /// Creates `limit` registers, at least one.
    pub fn new(limit: usize) -> Self {
        Self {
            free_at: vec![0; limit.max(1)],
            all_free_at: 0,
            gaps: Vec::new(),
            oldest_gap: 0,
            gaps_end: 0,
            last: 0,
            shortest: u64::MAX,
        }
    }

    /// Returns the time at which a miss at `at` can occupy a register.
    #[inline]
    pub fn start(&self, at: u64) -> u64 {
        if at >= self.all_free_at {
            return at;
        }
        let free = self.free_at.iter().fold(u64::MAX, |first, &free| first.min(free));
        if free <= at {
            return at;
        }
        self.gap_for(at, self.last).map_or(free, |(_, start)| start.min(free))
    }

    /// Reserves a register for a miss that starts at `from` (as returned by [`start`](Self::start)) and whose line arrives at
    /// `until`. Until `waited_until`, the miss only waits for a resource that it has already reserved. Returns the delay of
    /// the miss, which is not 0 if no register is free for the whole interval.
    #[inline]
    pub fn hold(&mut self, from: u64, waited_until: u64, until: u64) -> u64 {
        let waited_until = waited_until.clamp(from, until.max(from));
        let takes = until.saturating_sub(waited_until);
        (self.last, self.shortest) = (until.saturating_sub(from), self.shortest.min(takes));
        let (register, free) = self.register_for(from);
        // A delayed start overlaps with the wait that ends at `waited_until`; only the remaining work moves.
        let end_of = |start: u64| start.max(waited_until) + takes;
        if free > from
            && let Some((gap, start)) = self.gap_until(from, end_of)
            && end_of(start) <= end_of(free)
        {
            self.fill(gap, start, end_of(start));
            return end_of(start) - until.max(from);
        }
        let start = free.max(from);
        let end = end_of(start);
        self.record_gap(free, start);
        self.free_at[register] = end;
        self.all_free_at = self.all_free_at.max(end);
        end - until.max(from)
    }

    /// Returns the register for a miss at `at` and the time from which it is free. Prefers the free register with the
    /// least idle time before `at`; if none is free, the one that becomes free first.
    #[inline]
    fn register_for(&self, at: u64) -> (usize, u64) {
        // The smallest rank wins. Branchless, because the host could not predict a branch for each register.
        let rank = |free: u64| match at.checked_sub(free) {
            Some(lost) => lost,
            None => 1 << 63 | (free - at),
        };
        let mut best = (u64::MAX, 0);
        for (register, &free) in self.free_at.iter().enumerate() {
            let rank = rank(free);
            best = if rank < best.0 { (rank, register) } else { best };
        }
        (best.1, self.free_at[best.1])
    }

    /// Finds the gap in which a miss at `at` with duration `takes` can start first, and its start.
    fn gap_for(&self, at: u64, takes: u64) -> Option<(usize, u64)> {
        self.gap_until(at, |start| start + takes)
    }

    /// Finds the gap in which a miss at `at` can start first, and its start. `end_of` returns the end of a miss that
    /// starts at a given time.
    fn gap_until(&self, at: u64, end_of: impl Fn(u64) -> u64) -> Option<(usize, u64)> {
        if self.gaps_end <= at {
            return None;
        }
        let starts = self.gaps.iter().enumerate().map(|(gap, &(from, until))| (gap, from.max(at), until));
        let fitting = starts.filter(|&(_, start, until)| start < until && end_of(start) <= until);
        fitting.map(|(gap, start, _)| (gap, start)).min_by_key(|&(_, start)| start)
    }

    /// Reserves a part of a gap.
    fn fill(&mut self, gap: usize, start: u64, end: u64) {
        let (from, until) = self.gaps[gap];
        self.gaps[gap] = (from, start);
        self.record_gap(end, until);
    }

    /// Remembers that a register is free from `from` to `until`.
    fn record_gap(&mut self, from: u64, until: u64) {
        if until.saturating_sub(from) < self.shortest.max(1) {
            return;
        }
        self.gaps_end = self.gaps_end.max(until);
        if self.gaps.len() < MAX_GAPS {
            self.gaps.push((from, until));
            return;
        }
        self.gaps[self.oldest_gap] = (from, until);
        self.oldest_gap = (self.oldest_gap + 1) % MAX_GAPS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Performs a miss at `at` of duration `takes` and returns the time at which it occupies its register.
    fn miss(registers: &mut MissRegisters, at: u64, takes: u64) -> u64 {
        let start = registers.start(at);
        assert!(start >= at);
        start + registers.hold(start, start, start + takes)
    }

    #[test]
    fn a_miss_waits_for_the_first_free_register_only_when_all_are_held() {
        let mut registers = MissRegisters::new(2);
        assert_eq!(miss(&mut registers, 10, 100), 10);
        assert_eq!(miss(&mut registers, 12, 78), 12);
        assert_eq!(registers.start(20), 90);
        assert_eq!(registers.start(100), 100);
    }

    #[test]
    fn an_early_miss_recorded_late_does_not_wait_for_later_misses() {
        let mut registers = MissRegisters::new(1);
        assert_eq!(miss(&mut registers, 1000, 100), 1000);
        assert_eq!(miss(&mut registers, 5, 100), 5);
        assert_eq!(registers.start(1050), 1100);
        assert_eq!(
            miss(&mut registers, 950, 100),
            1100,
            "the miss would not end before the register is needed"
        );
    }

    #[test]
    fn a_wait_for_a_register_overlaps_with_another_wait() {
        let mut registers = MissRegisters::new(1);
        assert_eq!(miss(&mut registers, 1000, 100), 1000);
        let start = registers.start(5);
        assert_eq!(start, 5);
        // The miss waits for a resource until 1050, while the register is held until 1100. Only the remaining 40 cycles
        // follow, so the miss ends at 1140.
        assert_eq!(registers.hold(start, 1050, 1090), 50);
        assert_eq!(registers.start(1139), 1140);
    }

    #[test]
    fn one_register_serializes_simultaneous_misses() {
        let mut registers = MissRegisters::new(1);
        for index in 0..100 {
            assert_eq!(miss(&mut registers, 7, 50), 7 + 50 * index);
        }
    }

    proptest! {
        #[test]
        fn no_more_misses_are_outstanding_than_there_are_registers(
            limit in 1usize..6,
            misses in prop::collection::vec((0u64..60, 0u64..400, 1u64..200), 1..400),
        ) {
            let mut registers = MissRegisters::new(limit);
            let (mut now, mut entries) = (1000, Vec::new());
            for (later, back, takes) in misses {
                now += later;
                let start = miss(&mut registers, now - back, takes);
                entries.push((start, start + takes));
            }
            for &(start, _) in &entries {
                let outstanding = entries.iter().filter(|interval| interval.0 <= start && start < interval.1).count();
                prop_assert!(outstanding <= limit, "{outstanding} at {start}");
            }
        }

        #[test]
        fn misses_in_time_order_start_when_the_first_register_is_free(
            limit in 1usize..6,
            misses in prop::collection::vec((0u64..60, 1u64..200), 1..400),
        ) {
            let mut registers = MissRegisters::new(limit);
            let (mut now, mut free_at) = (0, vec![0; limit]);
            for (later, takes) in misses {
                now += later;
                let first = free_at.iter_mut().min().unwrap();
                let expected = now.max(*first);
                *first = expected + takes;
                prop_assert_eq!(miss(&mut registers, now, takes), expected);
            }
        }
    }
}
