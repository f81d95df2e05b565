//! The assignment of x86-64 registers and flags to LoongArch registers. Source: LATX's mapping (lat-opensource/lat,
//! target/i386/latx), except for RSP, which is LoongArch's stack pointer.

use iced_x86::Register;
use longma_loongarch::State;

/// A register that is free between two source instructions. Return instructions jump through it.
pub const SCRATCH: u8 = 1;
/// RSP. It is LoongArch's stack pointer.
pub const STACK_POINTER: u8 = 3;

/// The FS base, which is the thread pointer.
pub const THREAD_POINTER: u8 = 2;
/// The start of the lookup table.
pub const TABLE: u8 = 31;
/// The source address of an indirect jump.
pub const TARGET: u8 = 27;
/// Registers that are free between two source instructions.
pub const TEMPORARIES: [u8; 6] = [4, 5, 16, 21, 22, TARGET];

/// The register that indirect jumps other than returns use for the host address; one of the temporaries.
pub const JUMP: u8 = 21;

/// CF, as 0 or 1.
pub const CARRY: u8 = 10;
/// ZF is set if this register is zero.
pub const NOT_ZERO: u8 = 11;
/// SF is the sign of this register.
pub const SIGN: u8 = 12;
/// OF is the sign of this register.
pub const OVERFLOW: u8 = 13;
/// PF is set if the lowest byte of this register has even parity.
pub const PARITY: u8 = 14;
/// AF is bit 4 of this register.
pub const ADJUST: u8 = 15;

/// LBT scratch register: the GS base.
pub const GS_BASE: u8 = 0;
/// LBT scratch register: DF, as 0 or 1.
pub const DIRECTION: u8 = 1;
/// LBT scratch register: x87's control word, status word (without the top of the stack) and a mask of empty registers,
/// 16 bits each.
pub const X87_WORDS: u8 = 2;
/// LBT scratch register: MXCSR, except for rounding and exceptions, which are in FCSR.
pub const SSE_CONTROL: u8 = 3;
/// The bit of [`SSE_CONTROL`] that makes subnormal operands count as zeros (DAZ).
pub const ZERO_SUBNORMALS: i32 = 6;

/// Vector registers that are free between two source instructions.
pub const VECTOR_TEMPORARIES: [u8; 4] = [8, 9, 10, 11];
/// The first of three vector registers with x87's register stack: signs and exponents, 16 bits each, then mantissas.
pub const X87_EXPONENTS: u8 = 12;
/// The first mantissa register; see [`X87_EXPONENTS`].
pub const X87_MANTISSAS: u8 = 13;
/// The condition flag that is set if the default location of the upper half of any YMM register may be nonzero; see
/// [`upper_place`].
pub const UPPERS: u8 = 7;
/// A vector register that is always zero.
pub const ZERO_VECTOR: u8 = 15;

/// The LoongArch registers of the general registers, by encoding number.
pub const GENERAL: [u8; 16] = [23, 24, 25, 26, STACK_POINTER, 28, 29, 30, 6, 7, 8, 9, 17, 18, 19, 20];
/// RAX.
pub const RAX: u8 = GENERAL[0];
/// RCX.
pub const RCX: u8 = GENERAL[1];
/// RDX.
pub const RDX: u8 = GENERAL[2];
/// RBX.
pub const RBX: u8 = GENERAL[3];
/// RBP.
pub const RBP: u8 = GENERAL[5];
/// RSI.
pub const RSI: u8 = GENERAL[6];
/// RDI.
pub const RDI: u8 = GENERAL[7];
/// R11.
pub const R11: u8 = GENERAL[11];

/// The LoongArch register of a general register of any size. AH to DH are in those of AX to DX.
pub fn general(register: Register) -> u8 {
    GENERAL[register.full_register().number() & 15]
}

/// Whether the register is AH, CH, DH or BH.
pub fn is_high(register: Register) -> bool {
    matches!(register, Register::AH | Register::CH | Register::DH | Register::BH)
}

/// The LoongArch register of an XMM or YMM register.
pub fn vector(register: Register) -> u8 {
    16 + (register.number() & 15) as u8
}

/// The default location of the upper half of YMM register `n`: a vector register, and its half (0 is the lower one). It
/// is not the register of XMM `n`, because LSX instructions leave the upper half undefined, whereas SSE preserves it.
pub const fn upper_place(n: usize) -> (u8, u8) {
    ((n >> 1) as u8, (n & 1) as u8)
}

/// The upper half of YMM register `n`.
pub fn upper(state: &State, n: usize) -> [u64; 2] {
    let (register, half) = upper_place(n);
    let lanes = state.v[usize::from(register)].0;
    if half == 0 { [lanes[0], lanes[1]] } else { [lanes[2], lanes[3]] }
}

/// Sets the upper half of YMM register `n`.
pub fn set_upper(state: &mut State, n: usize, value: [u64; 2]) {
    let (register, half) = upper_place(n);
    let at = 2 * usize::from(half);
    state.v[usize::from(register)].0[at..at + 2].copy_from_slice(&value);
    if value != [0; 2] {
        state.fcc[usize::from(UPPERS)] = 1;
    }
}

const CF: u64 = 1;
const PF: u64 = 1 << 2;
const AF: u64 = 1 << 4;
const ZF: u64 = 1 << 6;
const SF: u64 = 1 << 7;
const DF: u64 = 1 << 10;
const OF: u64 = 1 << 11;
/// Bit 1 and IF, which are always set.
const ALWAYS: u64 = 0x202;

/// Computes RFLAGS from the general registers and DF.
pub fn flags(x: &[u64; 32], direction: u64) -> u64 {
    let register = |number: u8| x[usize::from(number)];
    let bit = |set: bool, bit: u64| if set { bit } else { 0 };
    ALWAYS
        | bit(register(CARRY) & 1 != 0, CF)
        | bit((register(PARITY) as u8).count_ones().is_multiple_of(2), PF)
        | bit(register(ADJUST) >> 4 & 1 != 0, AF)
        | bit(register(NOT_ZERO) == 0, ZF)
        | bit((register(SIGN) as i64) < 0, SF)
        | bit(direction & 1 != 0, DF)
        | bit((register(OVERFLOW) as i64) < 0, OF)
}

/// Sets the flags in the general registers from RFLAGS. Returns DF.
pub fn set_flags(x: &mut [u64; 32], flags: u64) -> u64 {
    let sign = |set: bool| if set { 1 << 63 } else { 0 };
    let mut put = |number: u8, value: u64| x[usize::from(number)] = value;
    put(CARRY, flags & CF);
    put(PARITY, u64::from(flags & PF == 0));
    put(ADJUST, flags & AF);
    put(NOT_ZERO, u64::from(flags & ZF == 0));
    put(SIGN, sign(flags & SF != 0));
    put(OVERFLOW, sign(flags & OF != 0));
    u64::from(flags & DF != 0)
}

/// A thread's RFLAGS.
pub fn flags_of(state: &State) -> u64 {
    flags(&state.x, state.lbt.scratch[usize::from(DIRECTION)])
}

/// Sets a thread's RFLAGS.
pub fn set_flags_of(state: &mut State, flags: u64) {
    state.lbt.scratch[usize::from(DIRECTION)] = set_flags(&mut state.x, flags);
}
