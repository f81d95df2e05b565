//! Emits load-linked, store-conditional and common atomic memory operations. The interpreter executes the rarer ones
//! (minimum, maximum, compare-and-swap, bytes and halfwords). Source: LoongArch Reference Manual, volume 1, section
//! 2.2.7. As in QEMU, a store-conditional succeeds if memory still holds the value that the load-linked read. x86-64
//! orders these operations as strongly as the `_db` forms require.

use std::mem::offset_of;

use iced_x86::{Code, Register};
use longma_loongarch::{Instruction, Op, Reservation, State};

use super::{Condition, Emitter};
use crate::{
    cpu::Cpu,
    jit::{registers::low32, trampolines::field},
};

impl Emitter<'_> {
    /// Emits an atomic operation. Returns false for other instructions.
    pub(super) fn atomic(&mut self, i: &Instruction) -> bool {
        if i.d == i.j
            && !matches!(
                i.op,
                Op::LlW | Op::LlD | Op::ScW | Op::ScD | Op::LlacqW | Op::LlacqD | Op::ScrelW | Op::ScrelD
            )
        {
            return false; // illegal: the interpreter raises the trap
        }
        match i.op {
            Op::LlW | Op::LlacqW => self.load_linked(i, false),
            Op::LlD | Op::LlacqD => self.load_linked(i, true),
            Op::ScW | Op::ScrelW => self.store_conditional(i, false),
            Op::ScD | Op::ScrelD => self.store_conditional(i, true),
            Op::AmswapW | Op::AmswapDbW => self.exchange(i, false, Code::Xchg_rm32_r32),
            Op::AmswapD | Op::AmswapDbD => self.exchange(i, true, Code::Xchg_rm64_r64),
            Op::AmaddW | Op::AmaddDbW => self.exchange(i, false, Code::Xadd_rm32_r32),
            Op::AmaddD | Op::AmaddDbD => self.exchange(i, true, Code::Xadd_rm64_r64),
            Op::AmandW | Op::AmandDbW => self.combine(i, false, Code::And_r32_rm32),
            Op::AmandD | Op::AmandDbD => self.combine(i, true, Code::And_r64_rm64),
            Op::AmorW | Op::AmorDbW => self.combine(i, false, Code::Or_r32_rm32),
            Op::AmorD | Op::AmorDbD => self.combine(i, true, Code::Or_r64_rm64),
            Op::AmxorW | Op::AmxorDbW => self.combine(i, false, Code::Xor_r32_rm32),
            Op::AmxorD | Op::AmxorDbD => self.combine(i, true, Code::Xor_r64_rm64),
            _ => return false,
        }
        true
    }

    /// Computes an address in RCX. If it is out of range or misaligned, the interpreter executes the instruction.
    fn atomic_address(&mut self, base: u8, displacement: i32, wide: bool) {
        let from = self.read(base, Register::RCX);
        if displacement != 0 {
            let sum = iced_x86::MemoryOperand::with_base_displ_size(from, i64::from(displacement), 1);
            self.a.op2(Code::Lea_r64_m, Register::RCX, sum);
        } else if from != Register::RCX {
            self.a.op2(Code::Mov_r64_rm64, Register::RCX, from);
        }
        self.check_range(Register::RCX);
        let misaligned = self.interpret_label();
        self.a.op2(Code::Test_rm32_imm32, Register::ECX, if wide { 7 } else { 3 });
        self.a.jump_if(Condition::NotEqual, misaligned);
    }

    pub(super) fn reservation(offset: usize) -> iced_x86::MemoryOperand {
        field(offset_of!(Cpu, state) + offset_of!(State, reservation) + offset)
    }

    fn load_linked(&mut self, i: &Instruction, wide: bool) {
        self.atomic_address(i.j, i.imm, wide);
        let memory = self.guest_memory(Register::RCX, 0);
        if wide {
            // Read the other half of the 16 bytes for a 16-byte store-conditional. It must not be read after this half.
            self.a.op2(Code::Mov_r64_rm64, Register::RDX, Register::RCX);
            self.a.op2(Code::Xor_rm64_imm8, Register::RDX, 8);
            let neighbour = self.guest_memory(Register::RDX, 0);
            self.a.op2(Code::Mov_r64_rm64, Register::RDX, neighbour);
            self.a.op2(
                Code::Mov_rm64_r64,
                Self::reservation(offset_of!(Reservation, neighbour)),
                Register::RDX,
            );
            self.a.op2(Code::Mov_r64_rm64, Register::RAX, memory);
        } else {
            self.a.op2(Code::Mov_r32_rm32, Register::EAX, memory);
        }
        self.a.op2(Code::Mov_rm64_r64, Self::reservation(offset_of!(Reservation, address)), Register::RCX);
        self.a.op2(Code::Mov_rm64_r64, Self::reservation(offset_of!(Reservation, value)), Register::RAX);
        if wide {
            self.write(i.d, Register::RAX);
        } else if i.d != 0 {
            self.write_sign_extended(i.d, Register::RAX);
        }
    }

    fn store_conditional(&mut self, i: &Instruction, wide: bool) {
        self.atomic_address(i.j, i.imm, wide);
        let failed = self.a.label();
        self.copy(Register::RDX, i.d);
        self.a.op2(Code::Cmp_r64_rm64, Register::RCX, Self::reservation(offset_of!(Reservation, address)));
        self.a.jump_if(Condition::NotEqual, failed);
        self.a.op2(Code::Mov_r64_rm64, Register::RAX, Self::reservation(offset_of!(Reservation, value)));
        let memory = self.guest_memory(Register::RCX, 0);
        if wide {
            self.a.locked(Code::Cmpxchg_rm64_r64, memory, Register::RDX);
        } else {
            self.a.locked(Code::Cmpxchg_rm32_r32, memory, Register::EDX);
        }
        self.a.place(failed);
        // If the exchange was skipped, "not equal" also means failure.
        self.a.set_if(Condition::Equal, Register::AL);
        self.a.op2(Code::Movzx_r32_rm8, Register::EAX, Register::AL);
        self.a.op2(Code::Mov_rm64_imm32, Self::reservation(offset_of!(Reservation, address)), -1);
        self.write(i.d, Register::RAX);
    }

    /// `d = memory[j]; memory[j] = k` or `memory[j] += k`.
    fn exchange(&mut self, i: &Instruction, wide: bool, code: Code) {
        self.atomic_address(i.j, 0, wide);
        self.copy(Register::RAX, i.k);
        let memory = self.guest_memory(Register::RCX, 0);
        self.a.locked(code, memory, if wide { Register::RAX } else { Register::EAX });
        self.write_atomic_result(i.d, wide);
    }

    /// `d = memory[j]; memory[j] = d op k`.
    fn combine(&mut self, i: &Instruction, wide: bool, code: Code) {
        self.atomic_address(i.j, 0, wide);
        let memory = self.guest_memory(Register::RCX, 0);
        let retry = self.a.label();
        let (load, exchange) = if wide {
            (Code::Mov_r64_rm64, Code::Cmpxchg_rm64_r64)
        } else {
            (Code::Mov_r32_rm32, Code::Cmpxchg_rm32_r32)
        };
        let sized = |r: Register| if wide { r } else { low32(r) };
        self.a.op2(load, sized(Register::RAX), memory);
        self.a.place(retry);
        self.copy(Register::RDX, i.k);
        self.a.op2(code, sized(Register::RDX), sized(Register::RAX));
        self.a.locked(exchange, memory, sized(Register::RDX));
        self.a.jump_if(Condition::NotEqual, retry);
        self.write_atomic_result(i.d, wide);
    }

    pub(super) fn write_atomic_result(&mut self, d: u8, wide: bool) {
        if wide {
            self.write(d, Register::RAX);
        } else if d != 0 {
            self.write_sign_extended(d, Register::RAX);
        }
    }
}
