//! Lowers blocks of x86-64 instructions to LoongArch code: order, jumps, calls, and dispatch to the modules for each
//! kind of instruction. Source: Intel SDM, volume 2; LoongArch Reference Manual, volume 1.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};
use longma_loongarch::{Instruction as Code, Op as La};

use super::known::{Facts, RSP, RegisterStates};
use super::unit::{ARITHMETIC, InstructionContext, ReachableCode, is_call, is_system_call};
use super::upper::UpperClearing;
use super::uses::{Live, Uses, is_scalar};
use super::vex::{is_newer, is_vex};
use crate::registers::*;
use crate::{Position, Unit};
use longma_translate::assembler::{Assembler, JumpTarget, Label};
use longma_translate::front_end::Exit;
use longma_translate::optimizations::Optimization;

mod blocks;

/// A cached sum of a base and a scaled index, and the temporary register that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scaled {
    pub base: Option<usize>,
    pub index: usize,
    pub shift: u32,
    pub at: u8,
}

pub(super) struct Lowering<'a> {
    pub assembler: Assembler,
    pub unit: Unit,
    pub reachable: &'a ReachableCode,
    /// The planned state at each leader for jumps within the unit.
    plan: &'a [Option<RegisterStates>],
    /// The plan has not been computed yet.
    is_first: bool,
    /// The current register state.
    pub known: RegisterStates,
    /// States at the sources of jumps to each leader, and whether the jump is a back edge. Only used while planning.
    pub outs: Vec<Vec<(bool, RegisterStates)>>,
    /// The outgoing states of the current block by leader number, and the results of previous blocks.
    block_outs: Vec<(usize, bool, RegisterStates)>,
    pub remembered: PlanCache,
    /// The current instruction, its block, and the analysis results of the block.
    pub instruction: Instruction,
    pub block: &'a [Instruction],
    pub contexts: &'a [InstructionContext],
    pub index: usize,
    /// The source address recorded in positions.
    pub source_pc: u64,
    /// The flags that the current instruction must write.
    pub live: u32,
    /// Out-of-line services: label, instruction, and the label to return to.
    stubs: Vec<(Label, Instruction, Label)>,
    /// Out-of-line hash-table misses: label, register for the host address, source address, and the label to return to.
    pub misses: Vec<(Label, u8, u64, Label)>,
    /// Out-of-line transitions of taken branches whose target needs another state.
    pub transitions: Vec<(Label, RegisterStates, u64)>,
    /// A mask of temporaries used by the current instruction.
    taken: u8,
    /// The first instruction that ran out of temporaries. Its code is invalid.
    pub out_of_temporaries_at: Option<u64>,
    vectors_taken: usize,
    /// Out-of-line clearings of upper halves.
    pub clearings: Vec<UpperClearing>,
    /// The current instruction works on 256 bits.
    pub is_wide: bool,
    /// The flags that the current instruction has put into LBT's EFLAGS.
    pub extended: u32,
    /// The cached sum of a base and a scaled index.
    pub scaled: Option<Scaled>,
    /// Registers that must not be converted in place by the current instruction.
    pub pinned: u16,
}

/// Cached planning results by leader, for entry points and for jumps within the unit. A result is valid while the
/// incoming states and the planned states of back edges are the same.
pub(super) type PlanCache = Vec<[Option<BlockResult>; 2]>;

/// The planning result of a block.
pub(super) struct BlockResult {
    known: RegisterStates,
    next: Option<u64>,
    /// The planned states at the targets of its back edges.
    wanted: Vec<RegisterStates>,
    outs: Vec<(usize, bool, RegisterStates)>,
}

/// A branch on a condition without its offset, and the branch on the opposite condition.
#[derive(Clone, Copy)]
pub(super) struct Branch {
    pub holds: Code,
    pub fails: Code,
}

impl Branch {
    pub fn of(holds: La, fails: La, j: u8, d: u8) -> Self {
        let make = |op| Code { j, d, ..Code::new(op) };
        Self { holds: make(holds), fails: make(fails) }
    }

    pub fn opposite(self) -> Self {
        Self { holds: self.fails, fails: self.holds }
    }
}

/// A rough upper bound of the words for an instruction.
const WORDS_OF_ONE: usize = 4;

impl<'a> Lowering<'a> {
    /// Creates a lowering. Without `writes`, only states are computed and no code is emitted.
    pub fn new(reachable: &'a ReachableCode, plan: &'a [Option<RegisterStates>], writes: bool) -> Self {
        let is_first = !writes && plan.iter().all(Option::is_none);
        let mut assembler = Assembler::default();
        assembler.is_blank = !writes;
        let leaders = reachable.leaders.len();
        // Cold blocks have no jumps within the unit.
        let labels = if reachable.options.is_cold { leaders } else { 2 * leaders };
        for _ in 0..labels {
            assembler.label();
        }
        let instructions = reachable.instructions().len();
        assembler.words.reserve(WORDS_OF_ONE * instructions + WORDS_OF_ONE);
        let mut unit = Unit::default();
        if writes {
            // One for each instruction, plus some extra.
            unit.positions.reserve(instructions + instructions / 2 + WORDS_OF_ONE);
        }
        Self {
            assembler,
            unit,
            reachable,
            plan,
            is_first,
            known: RegisterStates::default(),
            outs: if writes { Vec::new() } else { vec![Vec::new(); leaders] },
            block_outs: Vec::new(),
            remembered: PlanCache::new(),
            instruction: Instruction::default(),
            block: &[],
            contexts: &[],
            index: 0,
            source_pc: 0,
            live: 0,
            stubs: Vec::new(),
            misses: Vec::new(),
            transitions: Vec::new(),
            taken: 0,
            out_of_temporaries_at: None,
            vectors_taken: 0,
            clearings: Vec::new(),
            is_wide: false,
            extended: 0,
            scaled: None,
            pinned: 0,
        }
    }

    /// The label of a leader's entry point.
    fn outer(&self, number: usize) -> Label {
        number
    }

    /// The label of a leader for jumps within the unit.
    fn inner(&self, number: usize) -> Label {
        self.reachable.leaders.len() + number
    }

    /// The number of the leader at `pc`, if jumps within the unit can target it.
    pub fn target_of_jumps(&self, pc: u64) -> Option<usize> {
        if self.reachable.options.is_cold { None } else { self.reachable.number(pc) }
    }

    /// The planned state of a leader for jumps within the unit.
    fn wanted(&self, number: usize) -> RegisterStates {
        self.planned_for(number).unwrap_or_default()
    }

    fn planned_for(&self, number: usize) -> Option<RegisterStates> {
        self.plan.get(number).copied().flatten()
    }

    /// Allocates a general register for the current instruction. If none is free, the unit must be discarded.
    pub fn temporary(&mut self) -> u8 {
        let cached_register = self.scaled.map(|scaled| scaled.at);
        let is_free = |lowering: &Self, n: usize| lowering.taken >> n & 1 == 0;
        let free = (0..TEMPORARIES.len()).filter(|n| is_free(self, *n));
        let chosen =
            free.clone().find(|n| Some(TEMPORARIES[*n]) != cached_register).or_else(|| free.clone().next());
        let Some(n) = chosen else {
            self.out_of_temporaries_at.get_or_insert(self.instruction.ip());
            return SCRATCH;
        };
        self.taken |= 1 << n;
        if Some(TEMPORARIES[n]) == cached_register {
            self.scaled = None;
        }
        TEMPORARIES[n]
    }

    /// The register with a cached sum of base and scaled index, reserved for the current instruction.
    pub fn scaled(&mut self, base: Option<usize>, index: usize, shift: u32) -> Option<u8> {
        let cached =
            self.scaled.filter(|scaled| (scaled.base, scaled.index, scaled.shift) == (base, index, shift))?;
        let n = TEMPORARIES.iter().position(|temporary| *temporary == cached.at)?;
        self.taken |= 1 << n;
        Some(cached.at)
    }

    /// Allocates a vector register for the current instruction. If none is free, the unit must be discarded.
    pub fn vector_temporary(&mut self) -> u8 {
        let Some(register) = VECTOR_TEMPORARIES.get(self.vectors_taken) else {
            self.out_of_temporaries_at.get_or_insert(self.instruction.ip());
            return VECTOR_TEMPORARIES[0];
        };
        self.vectors_taken += 1;
        *register
    }

    /// The register state that is not architectural.
    pub fn pending(&self) -> Option<RegisterStates> {
        (!self.known.is_settled()).then(|| self.known.without_facts())
    }

    /// Lowers the block of a leader. The block at `next` is laid out after it.
    fn block(&mut self, number: usize, next: Option<u64>) {
        let falls = self.reachable.fall_through(number);
        (self.block, self.contexts) = (self.reachable.block(number), self.reachable.contexts(number));
        self.index = 0;
        while self.index < self.block.len() {
            self.instruction = self.block[self.index];
            self.live = self.contexts[self.index].flags;
            (self.taken, self.vectors_taken, self.pinned, self.is_wide) = (0, 0, 0, false);
            self.source_pc = self.instruction.ip();
            self.position(true);
            if !self.reachable.options.has(Optimization::Forms) {
                self.fit(&RegisterStates::default(), Live::ALL, true);
                (self.known, self.scaled) =
                    (RegisterStates { flagged: self.known.flagged, ..RegisterStates::default() }, None);
            }
            self.prepare_flags();
            if self.instruction.is_invalid() || self.reachable.refused.contains(&self.instruction.ip()) {
                let pc = self.instruction.ip();
                self.settle(true);
                self.unit.exit(&mut self.assembler, pc, Exit::Illegal);
                return;
            }
            let first = self.index;
            self.one(next);
            self.note_flags(first);
            self.index += 1;
        }
        if let Some(pc) = falls {
            self.flags_to_registers(self.contexts.last().map_or(ARITHMETIC, |last| last.flags));
            self.known.flagged = 0;
            self.leave(pc, next);
        }
    }

    /// Records the start of the instruction's code.
    pub fn position(&mut self, is_boundary: bool) {
        if self.assembler.is_blank {
            return;
        }
        let offset = self.assembler.words.len() as u32;
        let pc = self.instruction.ip();
        let pending = self.pending();
        self.unit.positions.push(Position {
            offset,
            pc,
            is_boundary,
            counted: Some(offset),
            begins: false,
            pending,
        });
    }

    /// The next instruction in the block, if it is the only user of the flags that this one writes.
    pub fn sole_reader(&self) -> Option<Instruction> {
        let reader = *self.block.get(self.index + 1)?;
        let written = self.instruction.rflags_modified();
        let left = self.contexts[self.index + 1].flags & written & !reader.rflags_modified();
        let is_refused = self.reachable.refused.contains(&reader.ip());
        (left == 0 && reader.rflags_read() & written != 0 && !is_refused).then_some(reader)
    }

    /// Advances to the next instruction, which is translated together with this one.
    pub fn skip_reader(&mut self) {
        self.index += 1;
        self.instruction = self.block[self.index];
        self.source_pc = self.instruction.ip();
    }

    fn one(&mut self, next: Option<u64>) {
        let i = self.instruction;
        match i.flow_control() {
            FlowControl::Next => self.plain(),
            FlowControl::UnconditionalBranch => self.leave(i.near_branch_target(), next),
            FlowControl::ConditionalBranch => self.conditional(),
            FlowControl::Call | FlowControl::Interrupt if is_system_call(&i) => {
                self.settle(true);
                self.assembler.push(Code::new(La::Syscall));
                self.returned(next);
            }
            FlowControl::Call if i.is_call_near() => {
                self.push_return();
                let target = i.near_branch_target();
                if let Some(number) = self.target_of_jumps(target) {
                    let required = self.wanted(number);
                    if self.assembler.is_blank {
                        self.block_outs.push((
                            number,
                            false,
                            RegisterStates { stack: -8, ..RegisterStates::default() },
                        ));
                    }
                    self.fit(&required, self.reachable.registers_of(number), false);
                    self.assembler.jump(Code::new(La::Bl), JumpTarget::Label(self.inner(number)));
                } else {
                    self.settle(false);
                    self.assembler.jump(Code::new(La::Bl), JumpTarget::Source(target));
                }
                self.returned(next);
            }
            FlowControl::IndirectCall if i.is_call_near_indirect() => {
                self.target();
                self.push_return();
                self.settle(false);
                self.look_up(SCRATCH);
                self.assembler.immediate(La::Jirl, 1, SCRATCH, 0);
                self.returned(next);
            }
            FlowControl::IndirectBranch if i.is_jmp_near_indirect() => {
                self.target();
                self.settle(false);
                self.look_up(JUMP);
                // r1 is reserved for returns, so that the processor predicts them.
                self.assembler.immediate(La::Jirl, 0, JUMP, 0);
            }
            FlowControl::Return if matches!(i.mnemonic(), Mnemonic::Ret) => {
                let popped = if i.op_count() == 1 { i32::from(i.immediate16()) } else { 0 };
                if self.known.stack + popped > MAX_STACK_OFFSET {
                    self.step_stack(0, true);
                }
                self.assembler.immediate(La::LdD, TARGET, STACK_POINTER, self.known.stack);
                self.known.stack += 8;
                if popped > MAX_STACK_OFFSET {
                    self.settle(false);
                    self.add_constant(STACK_POINTER, STACK_POINTER, popped.into());
                } else {
                    self.known.stack += popped;
                    self.settle(false);
                }
                let through = if self.reachable.options.has(Optimization::Returns) { SCRATCH } else { JUMP };
                self.look_up(through);
                self.assembler.immediate(La::Jirl, 0, through, 0);
            }
            _ => self.serve(),
        }
    }

    /// Lowers an instruction without control flow.
    fn plain(&mut self) {
        let i = self.instruction;
        if is_newer(&i) {
            return self.serve();
        }
        if self.fused() || self.integer() {
            return;
        }
        if self.bits() {
            return;
        }
        let used = self.contexts[self.index].uses;
        let narrow = i.is_string_instruction() || self.is_atomic();
        if narrow {
            // These may exit to the engine or be restarted in their middle.
            self.settle(true);
            self.forget(&used);
            self.scaled = None;
            self.pinned = !0;
            if self.atomic() || self.strings() {
                return;
            }
        }
        if is_vex(&i) {
            return self.extended(&used);
        }
        for v in (0..16).filter(|v| used.vectors_written >> v & 1 != 0) {
            self.keep_upper(v);
        }
        if self.scalar_in_place() {
            return;
        }
        let partially_written = if is_scalar(&i) { used.vectors_written } else { 0 };
        for v in (0..16).filter(|v| (used.reads.vectors | partially_written) >> v & 1 != 0) {
            self.complete(v);
        }
        let is_translated = self.vector() || self.scalar() || self.compare_texts();
        for v in (0..16).filter(|v| used.vectors_written >> v & 1 != 0) {
            (self.known.valid[v], self.known.used[v]) = (16, 16);
        }
        if !is_translated {
            self.serve();
        }
    }

    /// Discards facts about registers that the instruction writes.
    pub fn forget(&mut self, used: &Uses) {
        for n in (0..16).filter(|n| used.written >> n & 1 != 0 && *n != RSP) {
            self.known.facts[n] = Facts::NONE;
            self.known.narrow &= !(1 << n);
        }
    }

    /// The registers that are live after the instruction.
    pub fn live_after(&self) -> Live {
        self.contexts[self.index].registers
    }

    fn is_atomic(&self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        let exchanges =
            i.mnemonic() == Xchg && (i.op0_kind() == OpKind::Memory || i.op1_kind() == OpKind::Memory);
        i.has_lock_prefix() || exchanges || matches!(i.mnemonic(), Xadd | Cmpxchg | Cmpxchg16b)
    }

    /// Lets the engine execute the instruction.
    pub fn serve(&mut self) {
        let i = self.instruction;
        self.settle(true);
        self.unit.exit(&mut self.assembler, i.ip(), Exit::Service(i));
        self.known = RegisterStates::default();
        self.scaled = None;
    }

    /// Creates an out-of-line exit at which the engine executes the instruction, then continues at `resume`.
    pub fn rare(&mut self, resume: Label) -> Label {
        let label = self.assembler.label();
        self.stubs.push((label, self.instruction, resume));
        label
    }

    /// Emits all out-of-line code.
    fn out_of_line(&mut self) {
        for (label, instruction, resume) in std::mem::take(&mut self.stubs) {
            self.assembler.place(label);
            self.unit.exit(&mut self.assembler, instruction.ip(), Exit::Service(instruction));
            self.assembler.go(JumpTarget::Label(resume));
        }
        for (label, d, pc, resume) in std::mem::take(&mut self.misses) {
            self.assembler.place(label);
            self.source_pc = pc;
            self.aside();
            self.look_up_in_table(d);
            self.assembler.go(JumpTarget::Label(resume));
        }
        for (label, known, target) in std::mem::take(&mut self.transitions) {
            self.assembler.place(label);
            self.known = known;
            self.source_pc = target;
            let offset = self.assembler.words.len() as u32;
            let pending = self.pending();
            self.unit.positions.push(Position {
                offset,
                pc: target,
                is_boundary: true,
                counted: None,
                begins: true,
                pending,
            });
            let (jump_target, wanted, live) = self.jump_to(target);
            self.fit(&wanted, live, true);
            self.assembler.go(jump_target);
        }
        self.clear_out_of_line();
    }

    /// How to jump to an address: the target, the state required there, and the registers live there.
    pub fn jump_to(&self, target: u64) -> (JumpTarget, RegisterStates, Live) {
        match self.target_of_jumps(target) {
            Some(number) => (
                JumpTarget::Label(self.inner(number)),
                self.wanted(number),
                self.reachable.registers_of(number),
            ),
            None => (JumpTarget::Source(target), RegisterStates::default(), Live::ALL),
        }
    }

    /// Records the current state as an incoming state of a jump's target.
    pub fn record_out_state(&mut self, target: u64) {
        self.record_out_state_of(target, target <= self.instruction.ip());
    }

    fn record_out_state_of(&mut self, target: u64, is_back: bool) {
        if self.assembler.is_blank
            && let Some(number) = self.target_of_jumps(target)
        {
            let known = RegisterStates { flagged: 0, ..self.known };
            self.block_outs.push((number, is_back, known));
        }
    }

    /// Computes `d` as `j` plus a constant.
    pub fn add_constant(&mut self, d: u8, j: u8, value: i64) {
        if (-2048..2048).contains(&value) {
            if value != 0 || d != j {
                self.assembler.immediate(La::AddiD, d, j, value as i32);
            }
        } else {
            self.assembler.constant(SCRATCH, value);
            self.assembler.three(La::AddD, d, j, SCRATCH);
        }
    }

    /// Continues at an address. The block at `next` is laid out after this one.
    fn leave(&mut self, to: u64, next: Option<u64>) {
        self.record_out_state(to);
        let (jump_target, required, live) = self.jump_to(to);
        // The transition is attributed to the target.
        let unfit = !self.fits(&required, live);
        if unfit {
            self.source_pc = to;
            self.between(to);
            self.fit(&required, live, true);
        }
        if next != Some(to) || !matches!(jump_target, JumpTarget::Label(_)) {
            self.assembler.go(jump_target);
        }
    }

    /// Records that the following code implements no instruction; an interruption in it resumes at `pc`.
    fn between(&mut self, pc: u64) {
        if self.assembler.is_blank {
            return;
        }
        let offset = self.assembler.words.len() as u32;
        let pending = self.pending();
        self.unit.positions.push(Position {
            offset,
            pc,
            is_boundary: true,
            counted: None,
            begins: false,
            pending,
        });
    }

    /// Continues at the return address of a call, unless it is laid out next.
    fn returned(&mut self, next: Option<u64>) {
        let return_address = self.instruction.next_ip();
        if next == Some(return_address) {
            return;
        }
        match self.reachable.number(return_address) {
            Some(number) => self.assembler.go(JumpTarget::Label(self.outer(number))),
            None if is_call(&self.instruction) && !is_system_call(&self.instruction) => {
                self.unit.exit_after_call(&mut self.assembler, return_address);
            }
            None => self.assembler.go(JumpTarget::Source(return_address)),
        }
    }

    fn push_return(&mut self) {
        let return_address = self.instruction.next_ip();
        self.reserve_stack(8);
        self.assembler.constant(SCRATCH, return_address as i64);
        self.assembler.immediate(La::StD, SCRATCH, STACK_POINTER, self.known.stack - 8);
        self.known.stack -= 8;
    }

    /// Ensures that RSP can change by `bytes` without adjusting the LoongArch stack pointer.
    pub fn reserve_stack(&mut self, bytes: i32) {
        if (self.known.stack - bytes).abs() > MAX_STACK_OFFSET
            || (self.known.stack + bytes).abs() > MAX_STACK_OFFSET
        {
            self.step_stack(0, true);
        }
    }
}

/// The maximum difference of RSP and the LoongArch stack pointer, in bytes.
pub(super) const MAX_STACK_OFFSET: i32 = 1024;

/// The register that is operand `operand`, if it is one.
pub(super) fn is_register(i: &Instruction, operand: u32) -> Option<Register> {
    (i.op_kind(operand) == OpKind::Register).then(|| i.op_register(operand))
}
