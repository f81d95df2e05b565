//! Lowers blocks of A64 instructions to LoongArch code: block order, and the register state at the start and end of
//! each block. Source: Arm Architecture Reference Manual (Arm DDI 0487), chapter C6; LoongArch Reference Manual, volume
//! 1.

use std::rc::Rc;

use longma_loongarch::{Instruction as Code, Op as La};
use rustc_hash::FxHashMap;

use super::copies::source;
use super::exact::depends_on_modes;
use super::flags::Flags;
use super::known::{Facts, KnownState};
use super::reachable::{Block, ReachableCode};
use super::unit::Plan;
use crate::instruction::{Instruction, Op};
use crate::registers::{Location, SLOT_OF_VECTORS, SLOTS};
use crate::{Position, Unit};
use longma_translate::assembler::{Assembler, JumpTarget, Label};
use longma_translate::front_end::Exit;
use longma_translate::optimizations::Optimization;

pub(super) struct Lowering<'a> {
    pub assembler: Assembler,
    pub unit: Unit,
    pub reachable: &'a ReachableCode,
    /// The states expected at leaders that are not entry points.
    plan: &'a Plan,
    /// The first planning pass: no plan exists yet.
    is_first: bool,
    /// The labels of leaders that are not entry points.
    inner: FxHashMap<u64, Label>,
    /// Code offsets of the entry points.
    pub entry_points: FxHashMap<u64, usize>,
    /// The current state.
    pub known: KnownState,
    /// Registers with known constant values.
    pub constants: [Option<i64>; 31],
    /// The states on the edges to each leader, and whether the edge is a back edge.
    pub outs: Edges,
    /// The edges of the current block (planning passes only).
    block_outs: Vec<(u64, bool, Rc<KnownState>)>,
    pub remembered: PlanCache,
    /// The state before the registers were converted for the likely target of the current branch.
    before_conversion: Option<KnownState>,
    /// Branches that need a conversion on the edge, which is emitted out of line.
    conversions: Vec<(Label, KnownState, u64)>,
    /// The current block.
    pub block: Rc<Block>,
    pub index: usize,
    /// The address of the current instruction.
    pub pc: u64,
    /// The address of the current block.
    pub leader: u64,
    /// The block that follows in the code.
    pub next: Option<u64>,
    /// Temporary registers in use by the current instruction, as a bit set.
    pub taken: u8,
    /// For each cached value, the index of the instruction after its last use.
    pub ages: [usize; 3],
    /// Vectors whose registers are borrowed by the current instruction.
    borrowed: Vec<u8>,
    /// The current instruction uses the register of the vector that the loop has spilled.
    uses_lent: bool,
    /// A vector register that is borrowed, and the temporary register that holds its low half. The upper half is not
    /// needed.
    lent: Option<(u8, u8)>,
    /// The first instruction that ran out of temporary registers. Its code is invalid.
    pub out_of_temporaries_at: Option<u64>,
    /// A condition to evaluate before the instruction at this index of the block.
    pub then_truth: Option<(usize, u8)>,
    /// The current instruction has been deferred to the next one, which completes it.
    pub skip: bool,
}

/// The states on the edges to each leader, and whether the edge is a back edge.
pub(super) type Edges = FxHashMap<u64, Vec<(bool, Rc<KnownState>)>>;

/// Results of blocks from earlier planning passes, by leader. A result is reused if the state at the block's start and
/// the states expected at its back edges are the same.
pub(super) type PlanCache = FxHashMap<u64, BlockResult>;

/// The result of planning a block.
pub(super) struct BlockResult {
    known: KnownState,
    /// The plan that `known` comes from, once there is a plan.
    planned: Option<Option<Rc<KnownState>>>,
    /// The plans of the targets of the back edges, once there is a plan.
    expected: Vec<Option<Option<Rc<KnownState>>>>,
    outs: Vec<(u64, bool, Rc<KnownState>)>,
}

impl BlockResult {
    /// Whether the block was planned with `planned` as the state at its start. May return false for an equal state,
    /// because it compares pointers.
    fn is_planned_by(&self, planned: Option<&Rc<KnownState>>) -> bool {
        match (&self.planned, planned) {
            (Some(Some(own)), Some(planned)) => Rc::ptr_eq(own, planned),
            (Some(None), None) => true,
            _ => false,
        }
    }
}

impl<'a> Lowering<'a> {
    /// Without `writes`, only determines states and emits no code.
    pub fn new(reachable: &'a ReachableCode, plan: &'a Plan, writes: bool) -> Self {
        let mut assembler = Assembler::default();
        assembler.is_blank = !writes;
        let inside = reachable.leaders.iter().filter(|leader| !reachable.entry_points.contains(leader));
        let inner = inside.map(|leader| (*leader, assembler.label())).collect();
        Self {
            assembler,
            unit: Unit::default(),
            reachable,
            plan,
            is_first: plan.is_empty() && !writes,
            inner,
            entry_points: FxHashMap::default(),
            known: KnownState::default(),
            constants: [None; 31],
            outs: Edges::default(),
            block_outs: Vec::new(),
            remembered: PlanCache::default(),
            before_conversion: None,
            conversions: Vec::new(),
            block: Rc::default(),
            index: 0,
            pc: 0,
            leader: 0,
            next: None,
            taken: 0,
            ages: [0; 3],
            borrowed: Vec::new(),
            uses_lent: false,
            lent: None,
            out_of_temporaries_at: None,
            then_truth: None,
            skip: false,
        }
    }

    /// Lowers all blocks in address order.
    pub fn all(&mut self) {
        let leaders: Vec<u64> = self.reachable.leaders.iter().copied().collect();
        // During planning, the engine's entries come last, so that the unit's own edges have priority in merges.
        let engine_entries = &self.reachable.engine_entries;
        if let Some((&last, others)) = engine_entries.split_last().filter(|_| !self.assembler.is_blank) {
            self.next = None;
            others.iter().for_each(|entry| self.enter(*entry));
            self.next = leaders.first().copied();
            self.enter(last);
        }
        for (index, &leader) in leaders.iter().enumerate() {
            self.next = leaders.get(index + 1).copied();
            let begin = self.assembler.words.len();
            if self.assembler.is_blank {
                self.record_out_states(leader);
            } else {
                self.open(leader);
                self.translate_block(leader);
                self.assembler.pad_empty_block(begin);
                self.unit.end_block(begin, self.assembler.words.len());
            }
        }
        if !self.assembler.is_blank {
            self.out_of_line();
        } else {
            engine_entries.iter().for_each(|entry| self.enter(*entry));
        }
    }

    /// Opens the block at `leader`, and records its outgoing edges.
    fn record_out_states(&mut self, leader: u64) {
        let block = self.reachable.cached_block(leader);
        // The states that the targets of back edges expect affect later code of the block (`prepare_branch`); those of
        // other targets do not.
        let branches = block.0.iter().filter_map(|(pc, i)| {
            let target = i.filter(|i| i.is_conditional_branch())?.target(source(*pc))?;
            Some(self.reachable.lead(leader, target)).filter(|to| source(*to) <= source(*pc))
        });
        let expected: Vec<_> =
            branches.map(|to| (!self.is_first).then(|| self.plan.get(&to).cloned())).collect();
        let planned = (!self.is_first).then(|| self.plan.get(&leader).cloned());
        let before = self.remembered.remove(&leader).filter(|result| result.expected == expected);
        let result = match before {
            Some(result) if result.is_planned_by(self.plan.get(&leader)) => result,
            before => {
                self.open(leader);
                let known = self.known;
                match before {
                    Some(result) if result.known == known => BlockResult { planned, ..result },
                    _ => {
                        self.translate_block(leader);
                        BlockResult { known, planned, expected, outs: std::mem::take(&mut self.block_outs) }
                    }
                }
            }
        };
        for (to, is_back, known) in &result.outs {
            self.outs.entry(*to).or_default().push((*is_back, known.clone()));
        }
        self.remembered.insert(leader, result);
    }

    /// Emits an entry for the engine at a leader that is otherwise reached only by the unit's own jumps.
    fn enter(&mut self, engine_entry: u64) {
        if self.assembler.is_blank {
            self.outs.entry(engine_entry).or_default().push((false, Rc::default()));
            return;
        }
        let offset = self.assembler.words.len();
        self.entry_points.insert(engine_entry, offset);
        self.unit.entries.push((engine_entry, offset as u32));
        self.unit.positions.push(Position {
            offset: offset as u32,
            pc: engine_entry,
            is_boundary: true,
            counted: None,
            begins: true,
            pending: None,
        });
        self.known = KnownState::default();
        self.leave(engine_entry);
        self.assembler.pad_empty_block(offset);
    }

    /// Starts the code of a leader.
    fn open(&mut self, leader: u64) {
        let offset = self.assembler.words.len();
        self.constants = [None; 31];
        self.ages = [0; 3];
        match self.inner.get(&leader) {
            Some(&label) => {
                self.assembler.place(label);
                self.unit.heads.push((source(leader), offset as u32));
                self.known = self.planned(leader);
            }
            None => {
                if !self.reachable.options.is_cold {
                    self.entry_points.insert(leader, offset);
                }
                self.unit.entries.push((leader, offset as u32));
                self.known = KnownState::default();
            }
        }
    }

    /// The expected state at a leader that is not an entry point. In the first pass, it is merged from the edges
    /// recorded so far.
    fn planned(&self, leader: u64) -> KnownState {
        let assignment = self.reachable.loops.assignment(leader);
        if let Some(known) = self.plan.get(&leader) {
            return known.at(assignment);
        }
        if !self.is_first {
            return KnownState::default().at(assignment);
        }
        let outs = self.outs.get(&leader).map_or(&[][..], Vec::as_slice);
        let live = self.reachable.live_at(leader);
        KnownState::join(outs, live.wide, live.upper).at(assignment)
    }

    fn translate_block(&mut self, leader: u64) {
        self.leader = leader;
        self.then_truth = None;
        self.block = self.reachable.cached_block(leader);
        for index in 0..self.block.0.len() {
            self.index = index;
            let (pc, i) = self.block.0[index];
            self.pc = source(pc);
            let is_unfinished = std::mem::take(&mut self.skip);
            self.begin_instruction(is_unfinished, Some(self.assembler.words.len() as u32));
            if !is_unfinished && !self.reachable.options.has(Optimization::Forms) {
                self.settle_registers();
            }
            match i.filter(|_| !self.reachable.refused.contains(&self.pc)) {
                Some(i) => {
                    let flags = self.truth_before();
                    self.instruction(i);
                    self.known.flags = flags.unwrap_or(self.known.flags);
                }
                None => {
                    self.settle();
                    self.unit.exit(&mut self.assembler, self.pc, Exit::Illegal);
                    return;
                }
            }
            self.give_back_vectors();
        }
        if let Some(next) = self.block.1 {
            self.leave(next);
        }
    }

    /// Records the start of an instruction's code. `counted` is the offset of the word whose executions are counted as
    /// executions of the instruction. `is_unfinished` means that the previous instruction is not complete yet.
    fn begin_instruction(&mut self, is_unfinished: bool, counted: Option<u32>) {
        self.taken = 0;
        if self.assembler.is_blank {
            return;
        }
        let offset = self.assembler.words.len() as u32;
        self.unit.positions.push(Position {
            offset,
            pc: self.pc,
            is_boundary: !is_unfinished,
            counted,
            begins: self.index == 0 && counted.is_some(),
            pending: self.known.pending(),
        });
    }

    /// Brings all registers into their architectural state before an instruction, without changing the assignment.
    fn settle_registers(&mut self) {
        let words_before = self.assembler.words.len();
        for number in 0..31 {
            self.clear_upper(number);
            self.apply_increment(number);
        }
        (0..32).for_each(|number| self.widen(number, 16));
        self.known.cached = [None; 3];
        if self.assembler.words.len() != words_before {
            self.begin_instruction(false, None);
        }
    }

    /// Records the current state within an instruction, so that a pointer increment that has been added is not added
    /// again if the instruction faults.
    pub fn record_position(&mut self) {
        if self.assembler.is_blank {
            return;
        }
        self.unit.positions.push(Position {
            offset: self.assembler.words.len() as u32,
            pc: self.pc,
            is_boundary: false,
            counted: None,
            begins: false,
            pending: self.known.pending(),
        });
    }

    fn instruction(&mut self, i: Instruction) {
        match i.op {
            Op::B
            | Op::Bl
            | Op::BCond
            | Op::Cbz
            | Op::Cbnz
            | Op::Tbz
            | Op::Tbnz
            | Op::Br
            | Op::Blr
            | Op::Ret => {
                self.jump(i);
            }
            Op::Svc => {
                self.settle();
                self.assembler.push(Code::new(La::Syscall));
                self.leave(self.pc.wrapping_add(4));
            }
            Op::Brk => {
                self.settle();
                // Linux delivers SIGTRAP for this.
                self.assembler.push(Code::new(La::Break));
            }
            _ if self.reachable.options.exact_floats && depends_on_modes(i) => self.exact(i),
            _ => {
                let is_lowered = self.compare(i)
                    || self.integer(i)
                    || self.bit_field(i)
                    || self.memory(i)
                    || self.atomic(i)
                    || self.system(i)
                    || self.float(i)
                    || self.conversion(i)
                    || self.vector(i);
                if !is_lowered {
                    self.serve(i);
                }
            }
        }
    }

    /// Exits to the engine to execute an instruction.
    pub fn serve(&mut self, i: Instruction) {
        self.settle();
        self.unit.exit(&mut self.assembler, self.pc, Exit::Service(i));
        let uses = self.reachable.used_by(self.pc);
        for number in (0..31usize).filter(|number| uses.written >> number & 1 != 0) {
            self.known.facts[number] = Facts::NONE;
            self.constants[number] = None;
            self.forget(number as u8);
        }
        for number in (0..32u8).filter(|number| uses.vectors_written >> number & 1 != 0) {
            self.put_vector(number, 16);
        }
    }

    /// Brings all registers into their architectural state, except the flags.
    pub fn settle(&mut self) {
        for number in 0..31 {
            self.clear_upper(number);
            self.apply_increment(number);
        }
        self.restore_outer_assignment();
        for number in 0..32 {
            self.widen(number, 16);
        }
    }

    /// Clears the bytes of a vector that are architecturally zero, up to `bytes`.
    pub fn widen(&mut self, number: u8, bytes: u8) {
        let valid = self.known.valid[usize::from(number)];
        if valid < 8 && bytes > 4 {
            self.assembler.immediate(La::Vinsgr2vrW, number, 0, 1);
            self.known.valid[usize::from(number)] = 8;
        }
        if valid < 16 && bytes > 8 {
            self.assembler.immediate(La::Vinsgr2vrD, number, 0, 1);
            self.known.valid[usize::from(number)] = 16;
        }
    }

    /// Records that the low `bytes` of a vector have been written; the rest is architecturally zero.
    pub fn put_vector(&mut self, number: u8, bytes: u8) {
        self.known.valid[usize::from(number)] = bytes;
        self.known.used[usize::from(number)] = bytes;
    }

    /// The state that code at `to` expects.
    fn expected_at(&self, to: u64) -> KnownState {
        if self.inner.contains_key(&to) {
            self.plan
                .get(&to)
                .map_or_else(KnownState::default, |known| **known)
                .at(self.reachable.loops.assignment(to))
        } else {
            KnownState::default()
        }
    }

    /// Converts registers to the state that code at `to` expects, and records the edge.
    pub fn go_to(&mut self, to: u64) {
        self.record_edge(to);
        if !self.is_first {
            self.convert_to_expected(to);
        }
    }

    /// Records the edge to `to`.
    fn record_edge(&mut self, to: u64) {
        if self.assembler.is_blank {
            let known = Rc::new(KnownState { flags: Flags::Stored, ..self.known });
            self.block_outs.push((to, to <= self.leader, known));
        }
    }

    /// Whether the current state is acceptable for code at `to`.
    fn matches_expected(&self, to: u64) -> bool {
        let required = self.expected_at(to);
        if self.known.assignment != required.assignment || self.known.steps != required.steps {
            return false;
        }
        let loose = (0..31u8).all(|number| {
            let is_settled = !self.known.is_loose(number) || required.is_loose(number);
            let facts = required.facts[usize::from(number)];
            is_settled && !(required.is_loose(number) && facts.sign && !self.facts(number).sign)
        });
        loose && self.known.valid.iter().zip(required.valid).all(|(own, required)| *own >= required)
    }

    /// Converts registers to the state that code at `to` expects.
    fn convert_to_expected(&mut self, to: u64) {
        let required = self.expected_at(to);
        self.restore_assignment(&required.assignment);
        for number in 0..31u8 {
            self.apply_increment_except(number, required.steps[usize::from(number)]);
        }
        for number in 0..31u8 {
            let (actual, expected) = (self.facts(number), required.facts[usize::from(number)]);
            if self.known.is_loose(number) && !required.is_loose(number) {
                self.clear_upper(number);
            } else if required.is_loose(number)
                && expected.sign
                && !actual.sign
                && let Location::Register(register) = self.location_of(number)
            {
                self.assembler.immediate(La::SlliW, register, register, 0);
                self.known.loose |= 1 << number;
                self.known.facts[usize::from(number)] = Facts::WORD;
            }
        }
        for number in 0..32 {
            self.widen(number, required.valid[usize::from(number)]);
        }
    }

    /// Called before the test of a conditional branch to `to`. If the branch is likely to be taken, converts the
    /// registers in advance.
    pub fn prepare_branch(&mut self, to: u64) {
        // Branches that leave the innermost loop are unlikely.
        let is_likely = source(to) <= self.pc && self.reachable.loops.stays(self.leader, to);
        if !self.is_first && is_likely {
            self.before_conversion = Some(self.known);
            self.convert_to_expected(to);
        }
    }

    /// The jump target of a conditional branch to `to`: `to` itself if the registers are already as expected, otherwise
    /// an out-of-line conversion.
    pub fn branch_goal(&mut self, to: u64) -> JumpTarget {
        match self.before_conversion.take() {
            // Record the state before the conversion: the converted state only reflects what the target expected.
            Some(before) => {
                let now = self.known;
                self.known = KnownState { cached: now.cached, ..before };
                self.record_edge(to);
                self.known = now;
            }
            None => self.record_edge(to),
        }
        if self.is_first || self.matches_expected(to) {
            return self.jump_target(to);
        }
        let label = self.assembler.label();
        self.conversions.push((label, KnownState { flags: Flags::Stored, ..self.known }, to));
        JumpTarget::Label(label)
    }

    /// Emits the out-of-line conversions.
    fn out_of_line(&mut self) {
        for (label, known, to) in std::mem::take(&mut self.conversions) {
            self.assembler.place(label);
            let offset = self.assembler.words.len() as u32;
            let pending = Some(known.unsettled());
            let (is_boundary, begins) = (true, true);
            self.unit.positions.push(Position {
                offset,
                pc: source(to),
                is_boundary,
                counted: None,
                begins,
                pending,
            });
            (self.known, self.pc) = (known, source(to));
            self.convert_to_expected(to);
            self.assembler.go(self.jump_target(to));
        }
    }

    /// The jump target for a source address.
    pub fn jump_target(&self, to: u64) -> JumpTarget {
        self.inner.get(&to).map_or(JumpTarget::Source(to), |label| JumpTarget::Label(*label))
    }

    /// Continues at `to`.
    pub fn leave(&mut self, to: u64) {
        self.known.flags = Flags::Stored;
        self.go_to(to);
        if self.next != Some(to) {
            self.assembler.go(self.jump_target(to));
        }
    }

    /// The next instruction of the block.
    pub fn following(&self) -> Option<Instruction> {
        self.block.0.get(self.index + 1).and_then(|(_, i)| *i)
    }

    /// Borrows a vector register that is not in `used` for the current instruction. Its value is restored afterwards.
    pub fn borrow_vector(&mut self, used: &[u8]) -> u8 {
        if let Some(number) = self.known.assignment.spilled_vector.filter(|_| !self.uses_lent) {
            self.uses_lent = true;
            return number;
        }
        let is_free = |number: &u8| {
            !used.contains(number)
                && !self.borrowed.contains(number)
                && self.known.assignment.spilled_vector != Some(*number)
        };
        let number = (0..32).rev().find(is_free).unwrap_or_default();
        let at = SLOT_OF_VECTORS + 16 * self.borrowed.len() as i32;
        self.assembler.immediate(La::Vst, number, SLOTS, at);
        self.borrowed.push(number);
        number
    }

    /// Borrows a vector register for a scalar. Cheaper if there is a vector whose upper half is unused.
    pub fn borrow_scalar(&mut self, used: &[u8]) -> u8 {
        if self.known.assignment.spilled_vector.is_some() && !self.uses_lent {
            return self.borrow_vector(used);
        }
        let is_short = |number: &u8| !used.contains(number) && self.known.valid[usize::from(*number)] <= 8;
        let Some(number) = (0..32).rev().find(is_short) else { return self.borrow_vector(used) };
        let keeper = self.temporary();
        self.assembler.two(La::Movfr2grD, keeper, number);
        self.lent = Some((number, keeper));
        number
    }

    /// Emits code that restores the borrowed vectors on one of several paths, and keeps them borrowed.
    pub(super) fn restore_vectors(&mut self) {
        for (index, number) in self.borrowed.iter().enumerate() {
            self.assembler.immediate(La::Vld, *number, SLOTS, SLOT_OF_VECTORS + 16 * index as i32);
        }
    }

    pub(super) fn give_back_vectors(&mut self) {
        self.uses_lent = false;
        if let Some((number, keeper)) = self.lent.take() {
            self.assembler.two(La::Movgr2frD, number, keeper);
        }
        for (index, number) in std::mem::take(&mut self.borrowed).into_iter().enumerate() {
            self.assembler.immediate(La::Vld, number, SLOTS, SLOT_OF_VECTORS + 16 * index as i32);
        }
    }
}
