//! The blocks of a unit in their order: who comes to each, and what holds there.
//! Not what is in them.

use iced_x86::FlowControl;

use super::super::forms::join;
use super::super::known::Known;
use super::super::unit::is_call;
use super::{Lowering, Outcome};
use crate::Position;

impl Lowering<'_> {
    /// Translates all blocks, in the order of their addresses.
    pub fn all(&mut self) {
        let reach = self.reach;
        let leaders = &reach.leaders;
        // For the plan it comes last: where states meet, those of the unit's own jumps weigh more.
        let entrance = reach.entrance;
        if let Some(entrance) = entrance.filter(|_| !self.assembler.is_blank) {
            self.enter(entrance, leaders.first().copied());
        }
        if self.is_first {
            self.expect_calls();
        }
        let mut later = Vec::new();
        // How the block before ends: behind a call, or where it goes on.
        let (mut after_call, mut goes_on) = (false, false);
        for (number, &leader) in leaders.iter().enumerate() {
            let next = leaders.get(number + 1).copied();
            match (reach.is_door(leader), self.planned(number)) {
                (true, None) => self.begin(number, Known::default(), next, [true, false]),
                (true, Some(known)) if known == Known::default() => {
                    self.begin(number, known, next, [true, true]);
                }
                (true, Some(known)) if after_call => {
                    self.begin(number, Known::default(), next, [true, false]);
                    later.push((number, known, [false, true]));
                }
                (true, Some(known)) => {
                    let only_stack = Known { stack: 0, ..known } == Known::default();
                    if only_stack && !goes_on {
                        self.open(leader, Known::default(), true);
                        self.assembler.place(self.outer(number));
                        self.place_of_code = leader;
                        self.step_stack(known.stack, true);
                    } else {
                        later.push((number, Known::default(), [true, false]));
                    }
                    self.begin(number, known, next, [false, true]);
                }
                // A loop entered in its middle: what holds at its top is what its end will say.
                (false, None) if self.assembler.is_blank => {
                    (after_call, goes_on) = (false, false);
                    continue;
                }
                (false, known) => self.begin(number, known.unwrap_or_default(), next, [false, true]),
            }
            let last = reach.block(number).last();
            after_call = last.is_some_and(|last| is_call(last) && Some(last.next_ip()) == next);
            goes_on = last.is_some_and(|last| match last.flow_control() {
                FlowControl::Next | FlowControl::ConditionalBranch => true,
                FlowControl::UnconditionalBranch => Some(last.near_branch_target()) == next,
                _ => false,
            });
        }
        for (number, known, which) in later {
            self.begin(number, known, None, which);
        }
        if !self.assembler.is_blank {
            self.out_of_line();
        } else if let Some(entrance) = entrance {
            self.enter(entrance, None);
        }
    }

    /// Has the plan begin with what calls of the unit leave, wherever they stand: a loop keeps what it has been planned with.
    fn expect_calls(&mut self) {
        let reach = self.reach;
        let calls = reach.instructions().filter(|i| i.is_call_near());
        for target in calls.filter_map(|call| reach.number(call.near_branch_target())) {
            if self.outs[target].is_empty() {
                self.outs[target].push((false, Known { stack: -8, ..Known::default() }));
            }
        }
    }

    /// What holds at a leader where jumps of the unit come from, if any do. The first time, what those before it say.
    fn planned(&self, number: usize) -> Option<Known> {
        if self.is_first {
            let outs = Some(&self.outs[number]).filter(|outs| !outs.is_empty())?;
            return Some(join(outs, self.reach.registers_of(number)));
        }
        self.planned_for(number)
    }

    /// The engine's way to a leader that otherwise only the unit's own jumps lead to. The block at `next` comes behind it.
    fn enter(&mut self, entrance: u64, next: Option<u64>) {
        if !self.assembler.is_blank {
            self.open(entrance, Known::default(), true);
        }
        self.known = Known::default();
        self.note_out_of(entrance, false);
        for (target, is_back, known) in std::mem::take(&mut self.block_outs) {
            self.outs[target].push((is_back, known));
        }
        let (goal, wanted, live) = self.way_to(entrance);
        self.place_of_code = entrance;
        let begin = self.assembler.words.len();
        self.fit(&wanted, live, true);
        if next != Some(entrance) {
            self.assembler.go(goal);
        }
        self.assembler.fill_from(begin);
    }

    /// Notes that code of `leader` begins here, where `known` holds.
    fn open(&mut self, leader: u64, known: Known, is_outer: bool) {
        let offset = self.assembler.words.len() as u32;
        self.known = known;
        self.scaled = None;
        if is_outer {
            self.unit.entries.push((leader, offset));
        } else {
            self.unit.heads.push((leader, offset));
        }
        let pending = self.pending();
        self.unit.positions.push(Position {
            offset,
            pc: leader,
            is_boundary: true,
            counted: None,
            begins: true,
            pending,
        });
    }

    /// Translates the block of a leader, for everybody, for jumps of the unit, or for both. The block at `next` comes behind it.
    fn begin(&mut self, number: usize, known: Known, next: Option<u64>, [is_outer, is_inner]: [bool; 2]) {
        if self.assembler.is_blank {
            return self.find_outs(number, known, next, is_inner);
        }
        let begin = self.assembler.words.len();
        self.open(self.reach.leaders[number], known, is_outer);
        if is_outer {
            self.assembler.place(self.outer(number));
        }
        if is_inner && !self.reach.options.is_cold {
            self.assembler.place(self.inner(number));
        }
        self.block(number, next);
        self.assembler.fill_from(begin);
        self.unit.end_block(begin, self.assembler.words.len());
    }

    /// Notes what holds where the block of a leader leads to, if this holds at its beginning.
    fn find_outs(&mut self, number: usize, known: Known, next: Option<u64>, is_inner: bool) {
        // Only before a branch back is anything done for what it leads to (`ready`) that those behind it see.
        let backwards = self.reach.block(number).iter().filter(|i| {
            i.flow_control() == FlowControl::ConditionalBranch && i.near_branch_target() <= i.ip()
        });
        let wanted = backwards.map(|i| {
            self.reach.number(i.near_branch_target()).map(|number| self.wanted(number)).unwrap_or_default()
        });
        let wanted: Vec<Known> = wanted.collect();
        self.remembered.resize_with(self.reach.leaders.len(), Default::default);
        let mut outcome = self.remembered[number][usize::from(is_inner)]
            .take()
            .filter(|outcome| (outcome.known, outcome.next) == (known, next) && outcome.wanted == wanted);
        if outcome.is_none() {
            (self.known, self.scaled) = (known, None);
            self.block(number, next);
            let outs = std::mem::take(&mut self.block_outs);
            outcome = Some(Outcome { known, next, wanted, outs });
        }
        for (target, is_back, known) in outcome.iter().flat_map(|outcome| &outcome.outs) {
            self.outs[*target].push((*is_back, *known));
        }
        self.remembered[number][usize::from(is_inner)] = outcome;
    }
}
