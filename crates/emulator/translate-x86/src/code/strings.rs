//! Forward MOVS and STOS, with or without REP. The engine executes other string instructions and the backward
//! direction. Source: Intel SDM, volume 2 (REP, MOVS, STOS).

use iced_x86::{Mnemonic, Register};
use longma_loongarch::{Instruction as Code, Op as La};

use super::lower::Lowering;
use super::operands::{Extension, OperandLocation};
use crate::registers::*;
use longma_translate::assembler::JumpTarget;

impl Lowering<'_> {
    /// Translates a string instruction. Returns false for others.
    pub fn strings(&mut self) -> bool {
        use Mnemonic::*;
        let i = self.instruction;
        let bytes: usize = match i.mnemonic() {
            Movsb | Stosb => 1,
            Movsw | Stosw => 2,
            Movsd | Stosd if i.is_string_instruction() => 4,
            Movsq | Stosq => 8,
            _ => return false,
        };
        let narrow = i.op0_kind() != iced_x86::OpKind::MemoryESRDI;
        if narrow || matches!(i.memory_segment(), Register::FS | Register::GS) {
            return false;
        }
        let copies = matches!(i.mnemonic(), Movsb | Movsw | Movsd | Movsq);
        let repeats = i.has_rep_prefix() || i.has_repne_prefix();
        let end = self.assembler.label();
        let rare = self.rare(end);
        let t = self.temporary();
        self.assembler.two(La::Movscr2gr, SCRATCH, DIRECTION);
        self.assembler.jump(Code { j: SCRATCH, ..Code::new(La::Bnez) }, JumpTarget::Label(rare));
        let repeat = self.assembler.label();
        if repeats {
            // Each iteration counts as an instruction.
            if let Some(position) = self.unit.positions.last_mut() {
                position.counted = None;
            }
            self.assembler.jump(Code { j: RCX, ..Code::new(La::Beqz) }, JumpTarget::Label(end));
            self.assembler.place(repeat);
            self.position(true);
        }
        let value = if copies {
            self.load_to(t, OperandLocation::Near(RSI, 0), bytes, Extension::Zero);
            t
        } else {
            RAX
        };
        self.store_from(value, OperandLocation::Near(RDI, 0), bytes);
        let step = bytes as i32;
        if copies {
            self.assembler.immediate(La::AddiD, RSI, RSI, step);
        }
        self.assembler.immediate(La::AddiD, RDI, RDI, step);
        if repeats {
            self.assembler.immediate(La::AddiD, RCX, RCX, -1);
            self.assembler.jump(Code { j: RCX, ..Code::new(La::Bnez) }, JumpTarget::Label(repeat));
        }
        self.assembler.place(end);
        true
    }
}
