//! From a block of x86-64 instructions to LoongArch code: order, jumps, calls.
//! Not the plain instructions: those are in `integer`, `bits`, `atomic`, `strings` and `vector`.
//! Source: Intel SDM, volume 2; LoongArch Reference Manual, volume 1.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};
use longma_loongarch::{Instruction as Code, Op as La};

use super::operands::Extension;
use super::registers::*;
use super::unit::{Reach, live_before};
use super::{Position, Unit};
use crate::assembler::{Assembler, Goal, Label};
use crate::front_end::Exit;

pub(super) struct Lowering<'a> {
    pub assembler: Assembler,
    pub unit: Unit,
    reach: &'a Reach,
    /// The instruction being translated, those of its block, and the flags that are read behind each.
    pub instruction: Instruction,
    block: Vec<Instruction>,
    live_behind: Vec<u32>,
    index: usize,
    /// The flags that the instruction's code must write.
    pub live: u32,
    /// Instructions that the engine executes out of the straight path: where, which, and where it goes on.
    stubs: Vec<(Label, Instruction, Label)>,
    /// Temporary registers given away for this instruction.
    taken: usize,
    vectors_taken: usize,
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

impl<'a> Lowering<'a> {
    pub fn new(reach: &'a Reach) -> Self {
        Self {
            assembler: Assembler::default(),
            unit: Unit::default(),
            reach,
            instruction: Instruction::default(),
            block: Vec::new(),
            live_behind: Vec::new(),
            index: 0,
            live: 0,
            stubs: Vec::new(),
            taken: 0,
            vectors_taken: 0,
        }
    }

    /// A general register for this instruction.
    pub fn temporary(&mut self) -> u8 {
        self.taken += 1;
        TEMPORARIES.get(self.taken - 1).copied().unwrap_or(SCRATCH)
    }

    /// A vector register for this instruction.
    pub fn vector_temporary(&mut self) -> u8 {
        self.vectors_taken += 1;
        VECTOR_TEMPORARIES[(self.vectors_taken - 1) % VECTOR_TEMPORARIES.len()]
    }

    /// Translates the block at `leader`; the block at `next` comes behind it.
    pub fn block(&mut self, leader: u64, next: Option<u64>) {
        let (block, falls) = self.reach.block(leader);
        let mut live = self.reach.live_behind(&block, falls);
        let mut live_behind = vec![0; block.len()];
        for (index, instruction) in block.iter().enumerate().rev() {
            live_behind[index] = live;
            live = live_before(instruction, live);
        }
        (self.block, self.live_behind) = (block, live_behind);
        self.index = 0;
        while self.index < self.block.len() {
            self.instruction = self.block[self.index];
            self.live = self.live_behind[self.index];
            (self.taken, self.vectors_taken) = (0, 0);
            self.position(true);
            if self.instruction.is_invalid() {
                let pc = self.instruction.ip();
                self.unit.exit(&mut self.assembler, pc, Exit::Illegal);
                return;
            }
            self.one(next);
            self.index += 1;
        }
        if let Some(pc) = falls
            && next != Some(pc)
        {
            self.assembler.go(Goal::Source(pc));
        }
    }

    /// Notes that the code of the instruction begins here.
    pub fn position(&mut self, is_boundary: bool) {
        let offset = self.assembler.words.len() as u32;
        let pc = self.instruction.ip();
        self.unit.positions.push(Position { offset, pc, is_boundary, counts: true, pending: None });
    }

    /// The instruction behind this one in the block, if it is the only one that reads the flags written here: `flags` of them.
    pub fn sole_reader(&self) -> Option<Instruction> {
        let reader = *self.block.get(self.index + 1)?;
        let written = self.instruction.rflags_modified();
        let left = self.live_behind[self.index + 1] & written & !reader.rflags_modified();
        (left == 0 && reader.rflags_read() & written != 0).then_some(reader)
    }

    /// The reader has been translated together with this instruction.
    pub fn skip_reader(&mut self) {
        self.index += 1;
        self.instruction = self.block[self.index];
    }

    fn one(&mut self, next: Option<u64>) {
        let i = self.instruction;
        match i.flow_control() {
            FlowControl::Next => {
                let done = self.fused(next)
                    || self.integer()
                    || self.bits()
                    || self.atomic()
                    || self.strings()
                    || self.vector()
                    || self.scalar();
                if !done {
                    self.serve();
                }
            }
            FlowControl::UnconditionalBranch => self.leave(i.near_branch_target(), next),
            FlowControl::ConditionalBranch => self.conditional(next),
            FlowControl::Call if i.mnemonic() == Mnemonic::Syscall => {
                self.assembler.push(Code::new(La::Syscall));
                self.leave(i.next_ip(), next);
            }
            FlowControl::Call if i.is_call_near() => {
                self.push_return();
                self.assembler.jump(Code::new(La::Bl), Goal::Source(i.near_branch_target()));
                self.leave(i.next_ip(), next);
            }
            FlowControl::IndirectCall if i.is_call_near_indirect() => {
                self.target();
                self.push_return();
                self.look_up();
                self.assembler.immediate(La::Jirl, 1, SCRATCH, 0);
                self.leave(i.next_ip(), next);
            }
            FlowControl::IndirectBranch if i.is_jmp_near_indirect() => {
                self.target();
                self.look_up();
                // With an offset, so that nobody takes it for a return.
                self.assembler.immediate(La::AddiD, SCRATCH, SCRATCH, -4);
                self.assembler.immediate(La::Jirl, 0, SCRATCH, 4);
            }
            FlowControl::Return if matches!(i.mnemonic(), Mnemonic::Ret) => {
                self.assembler.immediate(La::LdD, TARGET, STACK_POINTER, 0);
                let beside = if i.op_count() == 1 { i32::from(i.immediate16()) } else { 0 };
                self.add_constant(STACK_POINTER, STACK_POINTER, 8 + i64::from(beside));
                self.look_up();
                self.assembler.immediate(La::Jirl, 0, SCRATCH, 0);
            }
            _ => self.serve(),
        }
    }

    /// Has the engine execute the instruction.
    pub fn serve(&mut self) {
        let i = self.instruction;
        self.unit.exit(&mut self.assembler, i.ip(), Exit::Service(i));
    }

    /// A place out of the straight path where the engine executes the instruction and comes back to `back`.
    pub fn rare(&mut self, back: Label) -> Label {
        let label = self.assembler.label();
        self.stubs.push((label, self.instruction, back));
        label
    }

    /// Writes what is out of the straight path.
    pub fn out_of_line(&mut self) {
        for (label, instruction, back) in std::mem::take(&mut self.stubs) {
            self.assembler.place(label);
            self.unit.exit(&mut self.assembler, instruction.ip(), Exit::Service(instruction));
            self.assembler.go(Goal::Label(back));
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

    fn leave(&mut self, to: u64, next: Option<u64>) {
        if next != Some(to) {
            self.assembler.go(Goal::Source(to));
        }
    }

    fn push_return(&mut self) {
        let behind = self.instruction.next_ip();
        self.assembler.constant(SCRATCH, behind as i64);
        self.assembler.immediate(La::StD, SCRATCH, STACK_POINTER, -8);
        self.assembler.immediate(La::AddiD, STACK_POINTER, STACK_POINTER, -8);
    }

    /// Puts where an indirect jump or call goes into its register.
    fn target(&mut self) {
        let i = self.instruction;
        if i.op0_kind() == OpKind::Register {
            self.assembler.copy(TARGET, general(i.op0_register()));
        } else {
            // Not r1, through which the address of a table is computed.
            let place = self.place(TARGET);
            self.load_to(TARGET, place, 8, Extension::Zero);
        }
    }

    /// Reads the code address of the target into r1.
    fn look_up(&mut self) {
        self.assembler.push(Code { d: SCRATCH, j: TARGET, k: TABLE, imm: 2, ..Code::new(La::AlslD) });
        self.assembler.immediate(La::LdWu, SCRATCH, SCRATCH, 0);
    }

    fn conditional(&mut self, next: Option<u64>) {
        let i = self.instruction;
        let branch = match i.mnemonic() {
            Mnemonic::Jrcxz => Branch::of(La::Beqz, La::Bnez, RCX, 0),
            Mnemonic::Jecxz => {
                let t = self.temporary();
                self.assembler.field(La::BstrpickD, t, RCX, 31, 0);
                Branch::of(La::Beqz, La::Bnez, t, 0)
            }
            Mnemonic::Loop | Mnemonic::Loope | Mnemonic::Loopne => self.loop_condition(),
            _ => self.condition(i.condition_code()),
        };
        self.branch(branch, i.near_branch_target(), i.next_ip(), next);
    }

    fn loop_condition(&mut self) -> Branch {
        let i = self.instruction;
        let (t, u) = (self.temporary(), self.temporary());
        self.assembler.immediate(La::AddiD, RCX, RCX, -1);
        let is_short = i.op0_kind() == OpKind::NearBranch64 && i.code().is_loop() && is_ecx(&i);
        if is_short {
            self.assembler.field(La::BstrpickD, RCX, RCX, 31, 0);
        }
        match i.mnemonic() {
            Mnemonic::Loop => return Branch::of(La::Bnez, La::Beqz, RCX, 0),
            Mnemonic::Loope => self.assembler.immediate(La::Sltui, t, NOT_ZERO, 1),
            _ => self.assembler.three(La::Sltu, t, 0, NOT_ZERO),
        }
        self.assembler.three(La::Sltu, u, 0, RCX);
        self.assembler.three(La::And, t, t, u);
        Branch::of(La::Bnez, La::Beqz, t, 0)
    }

    /// Ends the block by a branch.
    pub fn branch(&mut self, branch: Branch, target: u64, behind: u64, next: Option<u64>) {
        if next == Some(target) && target != behind {
            self.assembler.jump(branch.fails, Goal::Source(behind));
        } else {
            self.assembler.jump(branch.holds, Goal::Source(target));
            self.leave(behind, next);
        }
    }
}

/// Whether a loop instruction counts in ECX.
fn is_ecx(i: &Instruction) -> bool {
    use iced_x86::Code::*;
    matches!(i.code(), Loop_rel8_64_ECX | Loope_rel8_64_ECX | Loopne_rel8_64_ECX)
}

/// Whether an operand is a register of that many bytes.
pub(super) fn is_register(i: &Instruction, operand: u32) -> Option<Register> {
    (i.op_kind(operand) == OpKind::Register).then(|| i.op_register(operand))
}
