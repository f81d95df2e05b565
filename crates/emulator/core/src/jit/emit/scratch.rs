//! Emits moves to and from the scratch registers of the binary-translation extension (LBT), which translated programs
//! use often. The interpreter executes the rest of the extension. Source: LoongArch Reference Manual, volume 1 (LBT:
//! movgr2scr, movscr2gr).

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};
use longma_loongarch::{ExtendedFlags, Instruction, Op, State};

use super::Emitter;
use crate::{cpu::Cpu, jit::trampolines::field};

impl Emitter<'_> {
    /// Emits a move to or from a scratch register. Returns false for other instructions.
    pub(super) fn scratch(&mut self, i: &Instruction) -> bool {
        match i.op {
            Op::Movgr2scr => {
                let from = self.read(i.j, Register::RAX);
                self.a.op2(Code::Mov_rm64_r64, slot(i.d), from);
            }
            Op::Movscr2gr if i.d == 0 => {}
            Op::Movscr2gr => {
                let to = self.target(i.d, Register::RAX);
                self.a.op2(Code::Mov_r64_rm64, to, slot(i.j));
                self.write(i.d, to);
            }
            _ => return false,
        }
        true
    }
}

fn slot(number: u8) -> MemoryOperand {
    let scratch = offset_of!(State, lbt) + offset_of!(ExtendedFlags, scratch);
    field(offset_of!(Cpu, state) + scratch + 8 * usize::from(number & 3))
}
