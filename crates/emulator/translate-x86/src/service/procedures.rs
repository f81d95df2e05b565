//! ENTER and LEAVE. Source: Intel SDM, volume 2; volume 1, section 6.6 (procedures of block-structured languages).

use iced_x86::{Code, Register};

use super::{Done, Machine};
use crate::registers::*;

impl Machine<'_> {
    /// ENTER. It changes no register if it faults.
    pub(super) fn enter(&mut self) -> Done {
        let (bytes, frame_register) = self.frame_size();
        let (old_frame, old_stack) = (self.state.r(RBP), self.state.r(STACK_POINTER));
        let frame = old_stack.wrapping_sub(bytes as u64);
        let pushed = self.push_frames(bytes, old_frame, frame);
        if pushed.is_err() {
            self.state.set_r(STACK_POINTER, old_stack);
            return pushed;
        }
        self.set_register(frame_register, frame);
        self.add(STACK_POINTER, -i64::from(self.instruction.immediate16()));
        Ok(())
    }

    /// Pushes the frame pointer, the frame pointers of the enclosing procedures, which it copies from the caller's
    /// frame, and the new frame pointer.
    fn push_frames(&mut self, bytes: usize, old_frame: u64, frame: u64) -> Done {
        self.push(old_frame, bytes)?;
        let level = self.instruction.immediate8_2nd() & 31;
        for outer in 1..level {
            let address = old_frame.wrapping_sub(u64::from(outer) * bytes as u64);
            let outer_frame = self.load(address, bytes)?;
            self.push(outer_frame, bytes)?;
        }
        if level > 0 { self.push(frame, bytes) } else { Ok(()) }
    }

    /// LEAVE.
    pub(super) fn leave(&mut self) -> Done {
        let (bytes, frame_register) = self.frame_size();
        let frame = self.state.r(RBP);
        let value = self.load(frame, bytes)?;
        self.state.set_r(STACK_POINTER, frame.wrapping_add(bytes as u64));
        self.set_register(frame_register, value);
        Ok(())
    }

    /// The operand size in bytes, and the frame pointer of that size.
    fn frame_size(&self) -> (usize, Register) {
        let is_short = matches!(self.instruction.code(), Code::Enterw_imm16_imm8 | Code::Leavew);
        if is_short { (2, Register::BP) } else { (8, Register::RBP) }
    }
}
