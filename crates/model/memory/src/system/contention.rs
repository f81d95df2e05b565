//! Lines that cores take from each other, and how short a core's turns have to be because of it.
//! Not what a hand-over costs: the way of its probe says that.
//! Cores run one after another, each for a turn; a line that several of them want is handed over once a turn and no
//! oftener, so turns must be as short as the time between two hand-overs. And a core sees what others store no earlier than it begins a
//! turn: it may be late by a part of the time since it last had to do with them, and no more.

use super::MemorySystem;
use crate::cache::Line;
use longma_sim::{Duration, Time};

/// Lines whose last hand-over is remembered. One that is forgotten is noticed a hand-over later.
const LINES: usize = 256;

/// How long a core is in contention after a hand-over, ps: several hand-overs between sockets, and no more than what it takes until a
/// thread that waits for a lock would rather sleep. About a microsecond.
const LASTS_PS: u64 = 1 << 20;

/// The shortest turn of a core that does not contend, ps: about what some thousand instructions take whose accesses hit.
const SHORT_TURN_PS: u64 = 1 << 19;

/// A turn lasts this part of the time since the core last had to do with another one, as its base-two logarithm: a sixteenth.
const TURN_SHIFT: u32 = 4;

/// The last time that a line changed hands.
#[derive(Clone, Copy, Debug)]
struct HandOver {
    line: Line,
    to: usize,
    /// The turn in which that core got it.
    turn: u64,
}

/// Where a core stands.
#[derive(Clone, Copy, Debug, Default)]
struct Contender {
    /// Turns that it has had.
    turns: u64,
    /// Until when it is in contention, ps.
    until_ps: u64,
    /// When its last turn was over, ps.
    ended_ps: u64,
    /// When its turn began, ps.
    began_ps: u64,
    /// When it last took a line from another core, or gave one, ps; none if it never has.
    met_ps: Option<u64>,
    /// It took a line from another core since somebody asked.
    took: bool,
    /// A line that it contends for has changed hands since its turn began.
    is_new: bool,
}

/// Who contends for lines.
#[derive(Debug)]
pub(super) struct Contention {
    last: Box<[HandOver; LINES]>,
    cores: Vec<Contender>,
}

impl Contention {
    pub fn new(cores: usize) -> Self {
        let none = HandOver { line: Line(u64::MAX), to: usize::MAX, turn: 0 };
        Self { last: Box::new([none; LINES]), cores: vec![Contender::default(); cores] }
    }

    /// Core `to` takes something from core `from` at `at_ps`, a line or the right to write it.
    pub fn meet(&mut self, from: usize, to: usize, at_ps: u64) {
        // What the giver does next, it does where it is, which may be far ahead.
        let ended_ps = self.cores[from].ended_ps;
        for (core, at_ps) in [(from, at_ps.max(ended_ps)), (to, at_ps)] {
            let met_ps = &mut self.cores[core].met_ps;
            *met_ps = (*met_ps).max(Some(at_ps));
        }
    }

    /// `line` goes from one core to another, which asked for it at `at_ps`. If the one got it in its last turn, or if one of them
    /// contends already, both contend.
    pub fn note(&mut self, line: Line, from: usize, to: usize, at_ps: u64) {
        let last = &mut self.last[(line.hash() >> 32) as usize % LINES];
        let in_last_turn =
            last.line == line && last.to == from && self.cores[from].turns.saturating_sub(last.turn) <= 1;
        *last = HandOver { line, to, turn: self.cores[to].turns };
        if in_last_turn || [from, to].iter().any(|core| at_ps < self.cores[*core].until_ps) {
            // The line comes back no sooner than its giver goes on, who may be far ahead.
            let ends_ps = at_ps.max(self.cores[from].ended_ps).saturating_add(LASTS_PS);
            for core in [from, to] {
                let contender = &mut self.cores[core];
                contender.until_ps = contender.until_ps.max(ends_ps);
                contender.is_new = true;
            }
        }
        self.cores[to].took = true;
    }
}

impl MemorySystem {
    /// A turn of `core` begins, at `at`: cores run one after another, each until it has been ahead for a while. True if it contends with
    /// others for lines: its turn should then be over when it [takes](Self::took_line) one, or after very few cycles.
    ///
    /// # Panics
    /// If the host has no such core.
    pub fn begin_turn(&mut self, core: usize, at: Time) -> bool {
        let at_ps = self.by_cores(at);
        let contender = &mut self.contention.cores[core];
        contender.turns += 1;
        contender.began_ps = at_ps;
        contender.took = false;
        // A turn may last longer than contention does, above all of a slow core: the next one must not be as long.
        if std::mem::take(&mut contender.is_new) {
            contender.until_ps = contender.until_ps.max(at_ps.saturating_add(LASTS_PS));
        }
        at_ps < contender.until_ps
    }

    /// The turn of `core` is over, at `at`.
    ///
    /// # Panics
    /// If the host has no such core.
    pub fn end_turn(&mut self, core: usize, at: Time) {
        self.contention.cores[core].ended_ps = self.by_cores(at);
    }

    /// How long the present turn of `core` may last if it does not contend; `None` if it has never had to do with another core. The end may
    /// come nearer in the turn.
    ///
    /// # Panics
    /// If the host has no such core.
    pub fn turn_lasts(&self, core: usize) -> Option<Duration> {
        let Contender { began_ps, met_ps, .. } = self.contention.cores[core];
        let apart_ps = began_ps.saturating_sub(met_ps?);
        Some(Duration::from_ps(SHORT_TURN_PS.max(apart_ps >> TURN_SHIFT)))
    }

    /// Whether `core` has begun to contend for lines, or goes on to, since its turn began.
    ///
    /// # Panics
    /// If the host has no such core.
    pub fn began_to_contend(&self, core: usize) -> bool {
        self.contention.cores[core].is_new
    }

    /// Whether `core` has taken a line from another one since its turn began.
    ///
    /// # Panics
    /// If the host has no such core.
    pub fn took_line(&self, core: usize) -> bool {
        self.contention.cores[core].took
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
    fn cores_whose_turns_are_long_contend_in_the_next_one() {
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
            // Early in its turn, which goes on for microseconds.
            port.store(0x10_0000, 8, 0x1000, Cycle(at));
        }
        assert_eq!(
            contends,
            [false, false, false, true],
            "core 1 took the line from core 0, which took it back"
        );
    }

    #[test]
    fn who_waits_for_a_core_that_is_far_ahead_contends_until_that_goes_on() {
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
        // Core 1 has had a long turn; core 0 takes the line, and waits for it to come back.
        system.end_turn(1, time(10_000));
        take(&mut system, 0, 1500);
        // The turn behind a hand-over is close whatever came of it; the ones that follow are not.
        assert!(system.begin_turn(0, time(1600)));
        assert!(
            system.begin_turn(0, time(9_000)),
            "longer than a contention lasts, but core 1 has not gone on yet"
        );
        assert!(!system.begin_turn(0, time(12_000)), "core 1 has gone on, and does not want it");
    }
}
