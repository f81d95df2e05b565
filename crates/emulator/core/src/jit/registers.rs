//! The allocatable host registers, the canonical mapping of guest registers at region entries and exits, and the
//! sub-registers of host registers. Source: System V psABI for the host, LoongArch psABI for the registers that programs
//! use most.

use iced_x86::Register;

/// Host registers that hold guest general registers. RAX, RCX and RDX are scratch, RBP points to the
/// [`Cpu`](crate::cpu::Cpu), and RSP to the return stack.
pub(crate) const GENERAL_HOSTS: [Register; 11] = [
    Register::RBX,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

/// The canonical mapping: the guest register in each of [`GENERAL_HOSTS`] when one region jumps to another. It holds
/// the stack pointer, the first arguments, temporaries and saved registers.
pub(crate) const CANONICAL: [u8; 11] = [3, 4, 5, 6, 7, 8, 9, 12, 13, 23, 24];

/// Host vector registers that hold guest floating-point and vector registers. XMM0 to XMM2 are scratch.
pub(crate) const VECTOR_HOSTS: [Register; 13] = [
    Register::XMM3,
    Register::XMM4,
    Register::XMM5,
    Register::XMM6,
    Register::XMM7,
    Register::XMM8,
    Register::XMM9,
    Register::XMM10,
    Register::XMM11,
    Register::XMM12,
    Register::XMM13,
    Register::XMM14,
    Register::XMM15,
];

/// The hardware number of a 64-bit general register.
fn number(register: Register) -> u32 {
    register as u32 - Register::RAX as u32
}

/// The low 32 bits of a 64-bit register.
pub(crate) fn low32(register: Register) -> Register {
    Register::EAX + number(register)
}

/// The low 16 bits of a 64-bit register.
pub(crate) fn low16(register: Register) -> Register {
    Register::AX + number(register)
}

/// The low 8 bits of a 64-bit register.
pub(crate) fn low8(register: Register) -> Register {
    // In the enumeration, AH to BH are between BL and SPL.
    match number(register) {
        low @ 0..4 => Register::AL + low,
        high => Register::SPL + (high - 4),
    }
}

/// The 256-bit YMM register of a vector register.
pub(crate) fn wide(register: Register) -> Register {
    Register::YMM0 + (register as u32 - Register::XMM0 as u32)
}
