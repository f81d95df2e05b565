//! Detects lines that several cores contend for, and limits how long cores may run before others get a turn.
//!
//! Cores are simulated one after another, one turn each. A contended line moves at most once a turn, so turns must be
//! as short as the time between two transfers. In addition, a core sees stores of other cores no earlier than the start
//! of its next turn; turns are therefore limited to a fraction of the time since the core last exchanged a line.

use super::MemorySystem;
use crate::cache::Line;
use longma_sim::{Duration, Time};

/// Size of the table of recent line transfers. After a collision, contention is detected one transfer later.
const LINES: usize = 256;

/// How long a core counts as contending after a transfer, ps: several transfers between sockets, but no longer than a
/// thread spins on a lock before it sleeps. About a microsecond.
const CONTENTION_PS: u64 = 1 << 20;

/// Shortest turn of a core that does not contend, ps: some thousand instructions that hit in the caches.
const SHORT_TURN_PS: u64 = 1 << 19;

/// A turn may last a sixteenth of the time since the core last exchanged a line: the base-2 logarithm of that ratio.
const TURN_SHIFT: u32 = 4;

/// The most recent transfer of a line between cores.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    line: Line,
    to: usize,
    /// The turn in which `to` received the line.
    turn: u64,
}

/// Contention state of a core.
#[derive(Clone, Copy, Debug, Default)]
struct Contender {
    /// Number of turns so far.
    turns: u64,
    /// End of its contention, ps.
    until_ps: u64,
    /// End of its last turn, ps.
    ended_ps: u64,
    /// Start of its current turn, ps.
    began_ps: u64,
    /// Time of its last exchange of a line with another core, ps; `None` if there was none.
    last_exchange_ps: Option<u64>,
    /// Whether the core took a line from another core in this turn.
    took_line: bool,
    /// Whether a line that the core contends for has moved in this turn.
    is_new: bool,
}

/// Contention state of all cores.
#[derive(Debug)]
pub(super) struct Contention {
    last: Box<[Transfer; LINES]>,
    cores: Vec<Contender>,
}

impl Contention {
    pub fn new(cores: usize) -> Self {
        let none = Transfer { line: Line(u64::MAX), to: usize::MAX, turn: 0 };
        Self { last: Box::new([none; LINES]), cores: vec![Contender::default(); cores] }
    }

    /// Records that core `to` takes a line, or its write permission, from core `from` at `at_ps`.
    pub fn record_exchange(&mut self, from: usize, to: usize, at_ps: u64) {
        // `from` may be simulated far ahead. Its next access is no earlier than the end of its last turn.
        let ended_ps = self.cores[from].ended_ps;
        for (core, at_ps) in [(from, at_ps.max(ended_ps)), (to, at_ps)] {
            let last_exchange_ps = &mut self.cores[core].last_exchange_ps;
            *last_exchange_ps = (*last_exchange_ps).max(Some(at_ps));
        }
    }

    /// Records that `line` moves from core `from` to core `to`, which requested it at `at_ps`. Both contend if `from`
    /// got the line in its current or previous turn, or if either core already contends.
    pub fn record(&mut self, line: Line, from: usize, to: usize, at_ps: u64) {
        let last = &mut self.last[(line.hash() >> 32) as usize % LINES];
        let in_last_turn =
            last.line == line && last.to == from && self.cores[from].turns.saturating_sub(last.turn) <= 1;
        *last = Transfer { line, to, turn: self.cores[to].turns };
        if in_last_turn || [from, to].iter().any(|core| at_ps < self.cores[*core].until_ps) {
            // `from` may be simulated far ahead. It can take the line back no earlier than in its next turn.
            let ends_ps = at_ps.max(self.cores[from].ended_ps).saturating_add(CONTENTION_PS);
            for core in [from, to] {
                let contender = &mut self.cores[core];
                contender.until_ps = contender.until_ps.max(ends_ps);
                contender.is_new = true;
            }
        }
        self.cores[to].took_line = true;
    }
}

impl MemorySystem {
    /// Begins a turn of `core` at `at`. Cores are simulated one after another, each until it is ahead of the others by
    /// a quantum. Returns whether the core contends for lines: its turn should then end when it
    /// [takes](Self::took_line) a line, or after very few cycles.
    ///
    /// # Panics
    /// If the host has no such core.
    pub fn begin_turn(&mut self, core: usize, at: Time) -> bool {
        let at_ps = self.to_core_time(at);
        let contender = &mut self.contention.cores[core];
        contender.turns += 1;
        contender.began_ps = at_ps;
        contender.took_line = false;
        // A turn may last longer than the contention, especially on a slow core. The next turn must be short
        // nevertheless.
        if std::mem::take(&mut contender.is_new) {
            contender.until_ps = contender.until_ps.max(at_ps.saturating_add(CONTENTION_PS));
        }
        at_ps < contender.until_ps
    }

    /// Ends the turn of `core` at `at`.
    ///
    /// # Panics
    /// If the host has no such core.
    pub fn end_turn(&mut self, core: usize, at: Time) {
        self.contention.cores[core].ended_ps = self.to_core_time(at);
    }

    /// Maximum duration of the current turn of `core` if it does not contend; `None` if it has never exchanged a line
    /// with another core. The limit may shrink during the turn.
    ///
    /// # Panics
    /// If the host has no such core.
    pub fn max_turn(&self, core: usize) -> Option<Duration> {
        let Contender { began_ps, last_exchange_ps, .. } = self.contention.cores[core];
        let apart_ps = began_ps.saturating_sub(last_exchange_ps?);
        Some(Duration::from_ps(SHORT_TURN_PS.max(apart_ps >> TURN_SHIFT)))
    }

    /// Whether a line that `core` contends for has moved since its turn began.
    ///
    /// # Panics
    /// If the host has no such core.
    pub fn began_to_contend(&self, core: usize) -> bool {
        self.contention.cores[core].is_new
    }

    /// Whether `core` has taken a line from another core since its turn began.
    ///
    /// # Panics
    /// If the host has no such core.
    pub fn took_line(&self, core: usize) -> bool {
        self.contention.cores[core].took_line
    }
}

#[cfg(test)]
mod tests {
    use longma_sim::Cycle;
    use longma_topology::Machine;

    use super::*;
    use crate::placement::SpaceId;
    use crate::port::MemoryPort;
    use crate::system::Detail;

    #[test]
    fn cores_with_long_turns_contend_in_the_next_turn() {
        let machine = Machine::open("godson3").unwrap();
        let mut system = MemorySystem::new(&machine, 0, Detail::Timing, 1).unwrap();
        let clock = system.cores[0].clock;
        let turn = 10_000;
        let mut contends = Vec::new();
        for nth in 0..4 {
            let (core, at) = (nth % 2, (nth as u64 + 1) * turn);
            contends.push(system.begin_turn(core, clock.start_of(at).unwrap()));
            let mut port = system.port(core);
            port.set_space(SpaceId(0));
            // The store is early in the turn, which lasts for microseconds.
            port.store(0x10_0000, 8, 0x1000, Cycle(at));
        }
        assert_eq!(
            contends,
            [false, false, false, true],
            "core 1 took the line from core 0, which took it back"
        );
    }

    #[test]
    fn a_core_that_waits_for_one_far_ahead_contends_until_that_one_continues() {
        let machine = Machine::open("godson3").unwrap();
        let mut system = MemorySystem::new(&machine, 0, Detail::Timing, 1).unwrap();
        let clock = system.cores[0].clock;
        let time = |cycle| clock.start_of(cycle).unwrap();
        let take = |system: &mut MemorySystem, core, at| {
            let contends = system.begin_turn(core, time(at));
            let mut port = system.port(core);
            port.set_space(SpaceId(0));
            port.store(0x10_0000, 8, 0x1000, Cycle(at));
            contends
        };
        for nth in 0..4 {
            take(&mut system, nth % 2, 1000 + 100 * nth as u64);
        }
        // Core 1 has had a long turn. Core 0 takes the line and waits for core 1 to take it back.
        system.end_turn(1, time(10_000));
        take(&mut system, 0, 1500);
        // The turn after a transfer always contends; later turns need not.
        assert!(system.begin_turn(0, time(1600)));
        assert!(
            system.begin_turn(0, time(9_000)),
            "core 1 has not continued yet, although the contention time is over"
        );
        assert!(!system.begin_turn(0, time(12_000)), "core 1 has continued without taking the line");
    }
}
