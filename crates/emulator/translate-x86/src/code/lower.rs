//! From a block of x86-64 instructions to LoongArch code: order, jumps, calls.
//! Not the plain instructions: those are in `integer`, `bits`, `atomic`, `strings` and `vector`.
//! Source: Intel SDM, volume 2; LoongArch Reference Manual, volume 1.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};
use longma_loongarch::{Instruction as Code, Op as La};

use super::known::{Facts, Known, RSP};
use super::unit::{ARITHMETIC, Around, Reach};
use super::upper::Clearing;
use super::uses::{Live, Uses, is_scalar};
use super::vex::{is_newer, is_vex};
use crate::registers::*;
use crate::{Position, Unit};
use longma_translate::assembler::{Assembler, Goal, Label};
use longma_translate::front_end::Exit;
use longma_translate::parts::Part;

mod blocks;

/// The sum of a base and a scaled index, by their numbers, and where it is.
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
    pub reach: &'a Reach,
    /// What holds at leaders where jumps of the unit come from.
    plan: &'a [Option<Known>],
    /// The plan is still to be made.
    is_first: bool,
    /// What is known of registers here.
    pub known: Known,
    /// What was known where jumps lead to a leader, and whether they lead back. Only while the plan is made.
    pub outs: Vec<Vec<(bool, Known)>>,
    /// The same of the block that is being translated, by the leader's number, and of those that were.
    block_outs: Vec<(usize, bool, Known)>,
    pub remembered: Remembered,
    /// The instruction being translated, those of its block, and what is known at each.
    pub instruction: Instruction,
    pub block: &'a [Instruction],
    pub around: &'a [Around],
    pub index: usize,
    /// The source address that positions in its code tell.
    pub place_of_code: u64,
    /// The flags that the instruction's code must write.
    pub live: u32,
    /// Instructions that the engine executes out of the straight path: where, which, and where it goes on.
    stubs: Vec<(Label, Instruction, Label)>,
    /// Look-ups in the hash table that miss: where, the register that is to get the code's address, whose, and where it goes on.
    pub misses: Vec<(Label, u8, u64, Label)>,
    /// Branches that are taken where not all is as it has to be at the target.
    pub ways: Vec<(Label, Known, u64)>,
    /// Temporary registers given away for this instruction, as a set.
    taken: u8,
    /// The first instruction that has found too few of them: its code is wrong.
    pub short_at: Option<u64>,
    vectors_taken: usize,
    /// Clearings of upper halves out of the straight path.
    pub clearings: Vec<Clearing>,
    /// The instruction works on 256 bits.
    pub is_wide: bool,
    /// The flags that the instruction has put into the flag register.
    pub extended: u32,
    /// A temporary register that holds the sum of a base and a scaled index.
    pub scaled: Option<Scaled>,
    /// Registers whose form this instruction's code relies on where they are.
    pub pinned: u16,
}

/// What came of blocks while the plan is made, by leader, for everybody and for jumps of the unit: nothing else comes of them as long as
/// the same holds where they begin and where they lead back to.
pub(super) type Remembered = Vec<[Option<Outcome>; 2]>;

/// What came of a block.
pub(super) struct Outcome {
    known: Known,
    next: Option<u64>,
    /// What was to hold where its branches back lead to.
    wanted: Vec<Known>,
    outs: Vec<(usize, bool, Known)>,
}

/// A condition: the branch to be taken if it holds, without its offset, and its opposite.
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

/// An instruction becomes fewer words than this, mostly.
const WORDS_OF_ONE: usize = 4;

impl<'a> Lowering<'a> {
    /// Without `writes`, no words are made: only what holds where is found.
    pub fn new(reach: &'a Reach, plan: &'a [Option<Known>], writes: bool) -> Self {
        let is_first = !writes && plan.iter().all(Option::is_none);
        let mut assembler = Assembler::default();
        assembler.is_blank = !writes;
        let leaders = reach.leaders.len();
        // A block for the first few times has no jumps of its own.
        let labels = if reach.options.is_cold { leaders } else { 2 * leaders };
        for _ in 0..labels {
            assembler.label();
        }
        let instructions = reach.instructions().len();
        assembler.words.reserve(WORDS_OF_ONE * instructions + WORDS_OF_ONE);
        let mut unit = Unit::default();
        if writes {
            // One, and one more for every few.
            unit.positions.reserve(instructions + instructions / 2 + WORDS_OF_ONE);
        }
        Self {
            assembler,
            unit,
            reach,
            plan,
            is_first,
            known: Known::default(),
            outs: if writes { Vec::new() } else { vec![Vec::new(); leaders] },
            block_outs: Vec::new(),
            remembered: Remembered::new(),
            instruction: Instruction::default(),
            block: &[],
            around: &[],
            index: 0,
            place_of_code: 0,
            live: 0,
            stubs: Vec::new(),
            misses: Vec::new(),
            ways: Vec::new(),
            taken: 0,
            short_at: None,
            vectors_taken: 0,
            clearings: Vec::new(),
            is_wide: false,
            extended: 0,
            scaled: None,
            pinned: 0,
        }
    }

    /// Where the code of a leader is that everybody may come to.
    fn outer(&self, number: usize) -> Label {
        number
    }

    /// Where the code of a leader is that jumps of the unit lead to.
    fn inner(&self, number: usize) -> Label {
        self.reach.leaders.len() + number
    }

    /// The number of the leader at an address, if jumps of the unit can lead there.
    pub fn target_of_jumps(&self, pc: u64) -> Option<usize> {
        if self.reach.options.is_cold { None } else { self.reach.number(pc) }
    }

    /// What is to hold where jumps of the unit lead to a leader.
    fn wanted(&self, number: usize) -> Known {
        self.planned_for(number).unwrap_or_default()
    }

    fn planned_for(&self, number: usize) -> Option<Known> {
        self.plan.get(number).copied().flatten()
    }

    /// A general register for this instruction. If none is left, what is being made must not be executed.
    pub fn temporary(&mut self) -> u8 {
        let kept = self.scaled.map(|scaled| scaled.at);
        let is_free = |lowering: &Self, n: usize| lowering.taken >> n & 1 == 0;
        let free = (0..TEMPORARIES.len()).filter(|n| is_free(self, *n));
        let found = free.clone().find(|n| Some(TEMPORARIES[*n]) != kept).or_else(|| free.clone().next());
        let Some(n) = found else {
            self.short_at.get_or_insert(self.instruction.ip());
            return SCRATCH;
        };
        self.taken |= 1 << n;
        if Some(TEMPORARIES[n]) == kept {
            self.scaled = None;
        }
        TEMPORARIES[n]
    }

    /// The register with the sum of a base and a scaled index, if there is one: this instruction needs it.
    pub fn scaled(&mut self, base: Option<usize>, index: usize, shift: u32) -> Option<u8> {
        let found =
            self.scaled.filter(|scaled| (scaled.base, scaled.index, scaled.shift) == (base, index, shift))?;
        let n = TEMPORARIES.iter().position(|temporary| *temporary == found.at)?;
        self.taken |= 1 << n;
        Some(found.at)
    }

    /// A vector register for this instruction. If none is left, what is being made must not be executed.
    pub fn vector_temporary(&mut self) -> u8 {
        let Some(found) = VECTOR_TEMPORARIES.get(self.vectors_taken) else {
            self.short_at.get_or_insert(self.instruction.ip());
            return VECTOR_TEMPORARIES[0];
        };
        self.vectors_taken += 1;
        *found
    }

    /// What registers are yet to be.
    pub fn pending(&self) -> Option<Known> {
        (!self.known.is_settled()).then_some(self.known)
    }

    /// Translates the block of a leader; the block at `next` comes behind it.
    fn block(&mut self, number: usize, next: Option<u64>) {
        let falls = self.reach.behind(number);
        (self.block, self.around) = (self.reach.block(number), self.reach.around(number));
        self.index = 0;
        while self.index < self.block.len() {
            self.instruction = self.block[self.index];
            self.live = self.around[self.index].flags;
            (self.taken, self.vectors_taken, self.pinned, self.is_wide) = (0, 0, 0, false);
            self.place_of_code = self.instruction.ip();
            self.position(true);
            if !self.reach.options.has(Part::Forms) {
                self.fit(&Known::default(), Live::ALL, true);
                (self.known, self.scaled) = (Known { flagged: self.known.flagged, ..Known::default() }, None);
            }
            self.prepare_flags();
            if self.instruction.is_invalid() || self.reach.refused.contains(&self.instruction.ip()) {
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
            self.flags_home(self.around.last().map_or(ARITHMETIC, |last| last.flags));
            self.known.flagged = 0;
            self.leave(pc, next);
        }
    }

    /// Notes that the code of the instruction begins here.
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

    /// The instruction behind this one in the block, if it is the only one that reads the flags written here: `flags` of them.
    pub fn sole_reader(&self) -> Option<Instruction> {
        let reader = *self.block.get(self.index + 1)?;
        let written = self.instruction.rflags_modified();
        let left = self.around[self.index + 1].flags & written & !reader.rflags_modified();
        let is_refused = self.reach.refused.contains(&reader.ip());
        (left == 0 && reader.rflags_read() & written != 0 && !is_refused).then_some(reader)
    }

    /// The reader has been translated together with this instruction.
    pub fn skip_reader(&mut self) {
        self.index += 1;
        self.instruction = self.block[self.index];
        self.place_of_code = self.instruction.ip();
    }

    fn one(&mut self, next: Option<u64>) {
        let i = self.instruction;
        match i.flow_control() {
            FlowControl::Next => self.plain(),
            FlowControl::UnconditionalBranch => self.leave(i.near_branch_target(), next),
            FlowControl::ConditionalBranch => self.conditional(),
            FlowControl::Call if i.mnemonic() == Mnemonic::Syscall => {
                self.settle(true);
                self.assembler.push(Code::new(La::Syscall));
                self.returned(next);
            }
            FlowControl::Call if i.is_call_near() => {
                self.push_return();
                let target = i.near_branch_target();
                if let Some(number) = self.target_of_jumps(target) {
                    let wanted = self.wanted(number);
                    if self.assembler.is_blank {
                        self.block_outs.push((number, false, Known { stack: -8, ..Known::default() }));
                    }
                    self.fit(&wanted, self.reach.registers_of(number), false);
                    self.assembler.jump(Code::new(La::Bl), Goal::Label(self.inner(number)));
                } else {
                    self.settle(false);
                    self.assembler.jump(Code::new(La::Bl), Goal::Source(target));
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
                // Not through r1, so that nobody takes it for a return.
                self.assembler.immediate(La::Jirl, 0, JUMP, 0);
            }
            FlowControl::Return if matches!(i.mnemonic(), Mnemonic::Ret) => {
                let beside = if i.op_count() == 1 { i32::from(i.immediate16()) } else { 0 };
                if self.known.stack + beside > FARTHEST {
                    self.step_stack(0, true);
                }
                self.assembler.immediate(La::LdD, TARGET, STACK_POINTER, self.known.stack);
                self.known.stack += 8;
                if beside > FARTHEST {
                    self.settle(false);
                    self.add_constant(STACK_POINTER, STACK_POINTER, beside.into());
                } else {
                    self.known.stack += beside;
                    self.settle(false);
                }
                let through = if self.reach.options.has(Part::Returns) { SCRATCH } else { JUMP };
                self.look_up(through);
                self.assembler.immediate(La::Jirl, 0, through, 0);
            }
            _ => self.serve(),
        }
    }

    /// An instruction behind which the next one follows.
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
        let used = self.around[self.index].uses;
        let narrow = i.is_string_instruction() || self.is_atomic();
        if narrow {
            // They may come out to the engine, or begin again in their middle.
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
        let kept = if is_scalar(&i) { used.vectors_written } else { 0 };
        for v in (0..16).filter(|v| (used.reads.vectors | kept) >> v & 1 != 0) {
            self.complete(v);
        }
        let done = self.vector() || self.scalar();
        for v in (0..16).filter(|v| used.vectors_written >> v & 1 != 0) {
            (self.known.valid[v], self.known.used[v]) = (16, 16);
        }
        if !done {
            self.serve();
        }
    }

    /// Nothing is known any more of registers that the instruction writes.
    pub fn forget(&mut self, used: &Uses) {
        for n in (0..16).filter(|n| used.written >> n & 1 != 0 && *n != RSP) {
            self.known.facts[n] = Facts::NONE;
            self.known.narrow &= !(1 << n);
        }
    }

    /// The registers that are read behind the instruction.
    pub fn read_behind(&self) -> Live {
        self.around[self.index].registers
    }

    fn is_atomic(&self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        let exchanges =
            i.mnemonic() == Xchg && (i.op0_kind() == OpKind::Memory || i.op1_kind() == OpKind::Memory);
        i.has_lock_prefix() || exchanges || matches!(i.mnemonic(), Xadd | Cmpxchg | Cmpxchg16b)
    }

    /// Has the engine execute the instruction.
    pub fn serve(&mut self) {
        let i = self.instruction;
        self.settle(true);
        self.unit.exit(&mut self.assembler, i.ip(), Exit::Service(i));
        self.known = Known::default();
        self.scaled = None;
    }

    /// A place out of the straight path where the engine executes the instruction and comes back to `back`.
    pub fn rare(&mut self, back: Label) -> Label {
        let label = self.assembler.label();
        self.stubs.push((label, self.instruction, back));
        label
    }

    /// Writes what is out of the straight path.
    fn out_of_line(&mut self) {
        for (label, instruction, back) in std::mem::take(&mut self.stubs) {
            self.assembler.place(label);
            self.unit.exit(&mut self.assembler, instruction.ip(), Exit::Service(instruction));
            self.assembler.go(Goal::Label(back));
        }
        for (label, d, pc, back) in std::mem::take(&mut self.misses) {
            self.assembler.place(label);
            self.place_of_code = pc;
            self.aside();
            self.look_up_in_table(d);
            self.assembler.go(Goal::Label(back));
        }
        for (label, known, target) in std::mem::take(&mut self.ways) {
            self.assembler.place(label);
            self.known = known;
            self.place_of_code = target;
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
            let (goal, wanted, live) = self.way_to(target);
            self.fit(&wanted, live, true);
            self.assembler.go(goal);
        }
        self.clear_out_of_line();
    }

    /// How a jump gets to an address: where, what must hold there, and what is read there.
    pub fn way_to(&self, target: u64) -> (Goal, Known, Live) {
        match self.target_of_jumps(target) {
            Some(number) => {
                (Goal::Label(self.inner(number)), self.wanted(number), self.reach.registers_of(number))
            }
            None => (Goal::Source(target), Known::default(), Live::ALL),
        }
    }

    /// Notes what holds where a jump leads to.
    pub fn note_out(&mut self, target: u64) {
        self.note_out_of(target, target <= self.instruction.ip());
    }

    fn note_out_of(&mut self, target: u64, is_back: bool) {
        if self.assembler.is_blank
            && let Some(number) = self.target_of_jumps(target)
        {
            let known = Known { flagged: 0, ..self.known };
            self.block_outs.push((number, is_back, known));
        }
    }

    /// `d` becomes `j` and a constant.
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

    /// Goes on at an address; the block at `next` comes behind this one.
    fn leave(&mut self, to: u64, next: Option<u64>) {
        self.note_out(to);
        let (goal, wanted, live) = self.way_to(to);
        // Where it goes on is where it is.
        let unfit = !self.fits(&wanted, live);
        if unfit {
            self.place_of_code = to;
            self.between(to);
            self.fit(&wanted, live, true);
        }
        if next != Some(to) || !matches!(goal, Goal::Label(_)) {
            self.assembler.go(goal);
        }
    }

    /// The code from here on belongs to nobody: the program is at `pc`.
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

    /// What stands behind a call, where everybody comes back to.
    fn returned(&mut self, next: Option<u64>) {
        let behind = self.instruction.next_ip();
        if next == Some(behind) {
            return;
        }
        match self.reach.number(behind) {
            Some(number) => self.assembler.go(Goal::Label(self.outer(number))),
            None => self.assembler.go(Goal::Source(behind)),
        }
    }

    fn push_return(&mut self) {
        let behind = self.instruction.next_ip();
        self.reserve_stack(8);
        self.assembler.constant(SCRATCH, behind as i64);
        self.assembler.immediate(La::StD, SCRATCH, STACK_POINTER, self.known.stack - 8);
        self.known.stack -= 8;
    }

    /// Makes sure that RSP can move by so many bytes without a step of the LoongArch register.
    pub fn reserve_stack(&mut self, bytes: i32) {
        if (self.known.stack - bytes).abs() > FARTHEST || (self.known.stack + bytes).abs() > FARTHEST {
            self.step_stack(0, true);
        }
    }
}

/// RSP is not more than this away from its LoongArch register.
pub(super) const FARTHEST: i32 = 1024;

/// Whether an operand is a register of that many bytes.
pub(super) fn is_register(i: &Instruction, operand: u32) -> Option<Register> {
    (i.op_kind(operand) == OpKind::Register).then(|| i.op_register(operand))
}
