//! Lowers the blocks of a unit in order, and determines the state at the start of each.

use iced_x86::FlowControl;

use super::super::forms::join;
use super::super::known::RegisterStates;
use super::super::unit::is_call;
use super::{BlockResult, Lowering};
use crate::Position;

impl Lowering<'_> {
    /// Lowers all blocks, in address order.
    pub fn all(&mut self) {
        let reachable = self.reachable;
        let leaders = &reachable.leaders;
        // During planning, the engine's entries are last, because the states of jumps within the unit have priority.
        let engine_entries = &reachable.engine_entries;
        if let Some((&last, others)) = engine_entries.split_last().filter(|_| !self.assembler.is_blank) {
            others.iter().for_each(|entry| self.enter(*entry, None));
            self.enter(last, leaders.first().copied());
        }
        if self.is_first {
            self.plan_call_states();
        }
        let mut later = Vec::new();
        // How the previous block ends: in a call, or by falling through.
        let (mut after_call, mut goes_on) = (false, false);
        for (number, &leader) in leaders.iter().enumerate() {
            let next = leaders.get(number + 1).copied();
            match (reachable.is_entry_point(leader), self.planned(number)) {
                (true, None) => self.begin(number, RegisterStates::default(), next, [true, false]),
                (true, Some(known)) if known == RegisterStates::default() => {
                    self.begin(number, known, next, [true, true]);
                }
                (true, Some(known)) if after_call => {
                    self.begin(number, RegisterStates::default(), next, [true, false]);
                    later.push((number, known, [false, true]));
                }
                (true, Some(known)) => {
                    let only_stack = RegisterStates { stack: 0, ..known } == RegisterStates::default();
                    if only_stack && !goes_on {
                        self.open(leader, RegisterStates::default(), true);
                        self.assembler.place(self.outer(number));
                        self.source_pc = leader;
                        self.step_stack(known.stack, true);
                    } else {
                        later.push((number, RegisterStates::default(), [true, false]));
                    }
                    self.begin(number, known, next, [false, true]);
                }
                // The middle of this loop is an entry point, so the end of the loop determines the state at its start.
                (false, None) if self.assembler.is_blank => {
                    (after_call, goes_on) = (false, false);
                    continue;
                }
                (false, known) => self.begin(number, known.unwrap_or_default(), next, [false, true]),
            }
            let last = reachable.block(number).last();
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
        } else {
            engine_entries.iter().for_each(|entry| self.enter(*entry, None));
        }
    }

    /// Records the state that a call within the unit leaves at its target, before the first planning round. A call may
    /// be after its target, and loops keep their first planned state.
    fn plan_call_states(&mut self) {
        let reachable = self.reachable;
        let calls = reachable.instructions().filter(|i| i.is_call_near());
        for target in calls.filter_map(|call| reachable.number(call.near_branch_target())) {
            if self.outs[target].is_empty() {
                self.outs[target].push((false, RegisterStates { stack: -8, ..RegisterStates::default() }));
            }
        }
    }

    /// The state at a leader for jumps within the unit, if any. In the first round, it is derived from the previous
    /// blocks.
    fn planned(&self, number: usize) -> Option<RegisterStates> {
        if self.is_first {
            let outs = Some(&self.outs[number]).filter(|outs| !outs.is_empty())?;
            return Some(join(outs, self.reachable.registers_of(number)));
        }
        self.planned_for(number)
    }

    /// Lowers an entry for the engine at a leader that is otherwise reached only by jumps within the unit. The block at
    /// `next` is laid out after it.
    fn enter(&mut self, engine_entry: u64, next: Option<u64>) {
        if !self.assembler.is_blank {
            self.open(engine_entry, RegisterStates::default(), true);
        }
        self.known = RegisterStates::default();
        self.record_out_state_of(engine_entry, false);
        for (target, is_back, known) in std::mem::take(&mut self.block_outs) {
            self.outs[target].push((is_back, known));
        }
        let (jump_target, required, live) = self.jump_to(engine_entry);
        self.source_pc = engine_entry;
        let begin = self.assembler.words.len();
        self.fit(&required, live, true);
        if next != Some(engine_entry) {
            self.assembler.go(jump_target);
        }
        self.assembler.pad_empty_block(begin);
    }

    /// Records that code of `leader` begins here with state `known`.
    fn open(&mut self, leader: u64, known: RegisterStates, is_outer: bool) {
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

    /// Lowers the block of a leader as an entry point (`is_outer`), for jumps within the unit (`is_inner`), or both.
    /// The block at `next` is laid out after it.
    fn begin(
        &mut self,
        number: usize,
        known: RegisterStates,
        next: Option<u64>,
        [is_outer, is_inner]: [bool; 2],
    ) {
        if self.assembler.is_blank {
            return self.compute_out_states(number, known, next, is_inner);
        }
        let begin = self.assembler.words.len();
        self.open(self.reachable.leaders[number], known, is_outer);
        if is_outer {
            self.assembler.place(self.outer(number));
        }
        if is_inner && !self.reachable.options.is_cold {
            self.assembler.place(self.inner(number));
        }
        self.block(number, next);
        self.assembler.pad_empty_block(begin);
        self.unit.end_block(begin, self.assembler.words.len());
    }

    /// Computes the outgoing states of a leader's block for the incoming state `known`.
    fn compute_out_states(
        &mut self,
        number: usize,
        known: RegisterStates,
        next: Option<u64>,
        is_inner: bool,
    ) {
        // Only back edges affect the code before them (see `ready`).
        let backwards = self.reachable.block(number).iter().filter(|i| {
            i.flow_control() == FlowControl::ConditionalBranch && i.near_branch_target() <= i.ip()
        });
        let planned_states = backwards.map(|i| {
            self.reachable
                .number(i.near_branch_target())
                .map(|number| self.wanted(number))
                .unwrap_or_default()
        });
        let planned_states: Vec<RegisterStates> = planned_states.collect();
        self.remembered.resize_with(self.reachable.leaders.len(), Default::default);
        let mut outcome = self.remembered[number][usize::from(is_inner)].take().filter(|outcome| {
            (outcome.known, outcome.next) == (known, next) && outcome.wanted == planned_states
        });
        if outcome.is_none() {
            (self.known, self.scaled) = (known, None);
            self.block(number, next);
            let outs = std::mem::take(&mut self.block_outs);
            outcome = Some(BlockResult { known, next, wanted: planned_states, outs });
        }
        for (target, is_back, known) in outcome.iter().flat_map(|outcome| &outcome.outs) {
            self.outs[*target].push((*is_back, *known));
        }
        self.remembered[number][usize::from(is_inner)] = outcome;
    }
}
