//! Emits load-linked, store-conditional and common atomic operations for a core of a system. The cores take turns on
//! one host thread, so that these need no locks. Source: LoongArch Reference Manual, volume 1, section 2.2.7.

use std::mem::offset_of;

use iced_x86::{Code, MemoryOperand, Register};
use longma_loongarch::{Instruction, Op, Reservation};

use super::{Condition, Emitter};
use crate::frame::Frame;
use crate::jit::registers::low32;

/// Holds the host address of an access.
const HOST: Register = Register::RDX;

/// The host instructions of an operation: 64 and 32 bits.
type Operation = (Code, Code);

impl Emitter<'_> {
    /// Emits an atomic operation. Returns false if the owner must execute it.
    pub(super) fn system_atomic(&mut self, i: &Instruction) -> bool {
        const ADD: Operation = (Code::Add_r64_rm64, Code::Add_r32_rm32);
        const AND: Operation = (Code::And_r64_rm64, Code::And_r32_rm32);
        const OR: Operation = (Code::Or_r64_rm64, Code::Or_r32_rm32);
        const XOR: Operation = (Code::Xor_r64_rm64, Code::Xor_r32_rm32);
        match i.op {
            Op::LlW | Op::LlacqW => self.system_load_linked(i, false),
            Op::LlD | Op::LlacqD => self.system_load_linked(i, true),
            Op::ScW | Op::ScrelW => self.system_store_conditional(i, false),
            Op::ScD | Op::ScrelD => self.system_store_conditional(i, true),
            // These are illegal.
            _ if i.d == i.j => return false,
            Op::AmswapW | Op::AmswapDbW => self.system_modify(i, false, None),
            Op::AmswapD | Op::AmswapDbD => self.system_modify(i, true, None),
            Op::AmaddW | Op::AmaddDbW => self.system_modify(i, false, Some(ADD)),
            Op::AmaddD | Op::AmaddDbD => self.system_modify(i, true, Some(ADD)),
            Op::AmandW | Op::AmandDbW => self.system_modify(i, false, Some(AND)),
            Op::AmandD | Op::AmandDbD => self.system_modify(i, true, Some(AND)),
            Op::AmorW | Op::AmorDbW => self.system_modify(i, false, Some(OR)),
            Op::AmorD | Op::AmorDbD => self.system_modify(i, true, Some(OR)),
            Op::AmxorW | Op::AmxorDbW => self.system_modify(i, false, Some(XOR)),
            Op::AmxorD | Op::AmxorDbD => self.system_modify(i, true, Some(XOR)),
            _ => return false,
        }
        true
    }

    /// `d = memory[j]; memory[j] = k` or `d operation k`.
    fn system_modify(&mut self, i: &Instruction, wide: bool, operation: Option<Operation>) {
        let (slow, resume) = self.slow_path(i);
        self.check_page(i, wide, offset_of!(Frame, readable), slow);
        self.check_page(i, wide, offset_of!(Frame, writable), slow);
        self.check_alignment(wide, slow);
        self.add_addend();
        self.load_host(wide);
        self.copy(Register::RCX, i.k);
        match operation {
            Some((code, _)) if wide => self.a.op2(code, Register::RCX, Register::RAX),
            Some((_, code)) => self.a.op2(code, Register::ECX, Register::EAX),
            None => {}
        }
        self.store_host(wide, Register::RCX);
        self.write_atomic_result(i.d, wide);
        self.a.place(resume);
    }

    fn system_load_linked(&mut self, i: &Instruction, wide: bool) {
        let (slow, resume) = self.slow_path(i);
        self.check_page(i, wide, offset_of!(Frame, readable), slow);
        self.check_alignment(wide, slow);
        self.a.op2(Code::Mov_rm64_r64, Self::reservation(offset_of!(Reservation, address)), HOST);
        self.add_addend();
        let neighbour = Self::reservation(offset_of!(Reservation, neighbour));
        if wide {
            // The other half of the 16 bytes is on the same page.
            self.a.op2(Code::Mov_r64_rm64, Register::RCX, HOST);
            self.a.op2(Code::Xor_rm64_imm8, Register::RCX, 8);
            self.a.op2(Code::Mov_r64_rm64, Register::RCX, MemoryOperand::with_base(Register::RCX));
            self.a.op2(Code::Mov_rm64_r64, neighbour, Register::RCX);
        } else {
            self.a.op2(Code::Mov_rm64_imm32, neighbour, 0);
        }
        self.load_host(wide);
        self.a.op2(Code::Mov_rm64_r64, Self::reservation(offset_of!(Reservation, value)), Register::RAX);
        self.write_atomic_result(i.d, wide);
        self.a.place(resume);
    }

    fn system_store_conditional(&mut self, i: &Instruction, wide: bool) {
        let (slow, resume) = self.slow_path(i);
        let (failed, end) = (self.a.label(), self.a.label());
        self.guest_address(i);
        self.check_alignment(wide, slow);
        // Without a reservation, memory is not accessed.
        self.a.op2(Code::Cmp_r64_rm64, HOST, Self::reservation(offset_of!(Reservation, address)));
        self.a.jump_if(Condition::NotEqual, failed);
        self.check_page(i, wide, offset_of!(Frame, readable), slow);
        self.check_page(i, wide, offset_of!(Frame, writable), slow);
        self.add_addend();
        self.load_host(wide);
        let (compare, register) =
            if wide { (Code::Cmp_r64_rm64, Register::RAX) } else { (Code::Cmp_r32_rm32, Register::EAX) };
        self.a.op2(compare, register, Self::reservation(offset_of!(Reservation, value)));
        self.a.jump_if(Condition::NotEqual, failed);
        let value = self.read(i.d, Register::RAX);
        self.store_host(wide, value);
        self.a.op2(Code::Mov_r32_imm32, Register::EAX, 1);
        self.a.jump(end);
        self.a.place(failed);
        self.a.op2(Code::Xor_r32_rm32, Register::EAX, Register::EAX);
        self.a.place(end);
        let Reservation { address, value, neighbour } = Reservation::default();
        for (offset, content) in [
            (offset_of!(Reservation, address), address),
            (offset_of!(Reservation, value), value),
            (offset_of!(Reservation, neighbour), neighbour),
        ] {
            self.a.op2(Code::Mov_rm64_imm32, Self::reservation(offset), content as i64);
        }
        self.write(i.d, Register::RAX);
        self.a.place(resume);
    }

    fn check_page(&mut self, i: &Instruction, wide: bool, table: usize, slow: super::Label) {
        self.system_address(i, if wide { 8 } else { 4 }, table);
        self.a.jump_if(Condition::NotEqual, slow);
    }

    fn check_alignment(&mut self, wide: bool, slow: super::Label) {
        self.a.op2(Code::Test_rm32_imm32, low32(HOST), if wide { 7 } else { 3 });
        self.a.jump_if(Condition::NotEqual, slow);
    }

    /// Loads RAX from the host address.
    fn load_host(&mut self, wide: bool) {
        let (code, to) =
            if wide { (Code::Mov_r64_rm64, Register::RAX) } else { (Code::Mov_r32_rm32, Register::EAX) };
        self.a.op2(code, to, MemoryOperand::with_base(HOST));
    }

    fn store_host(&mut self, wide: bool, value: Register) {
        let (code, from) =
            if wide { (Code::Mov_rm64_r64, value) } else { (Code::Mov_rm32_r32, low32(value)) };
        self.a.op2(code, MemoryOperand::with_base(HOST), from);
    }
}
