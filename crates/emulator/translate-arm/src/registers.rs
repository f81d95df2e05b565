//! The mapping of AArch64 registers to LoongArch registers and memory slots. Source: Procedure Call Standard for the
//! Arm 64-bit Architecture, section 6.1 (to find the registers that compilers use least); Arm Architecture Reference
//! Manual (Arm DDI 0487), section C5.2 (system registers of EL0).

use longma_loongarch::State;
use serde::{Deserialize, Serialize};

use longma_translate::front_end::UserMemory;
pub use longma_translate::front_end::{SCRATCH, STACK_POINTER};

/// Address bits that loads, stores and jumps ignore. Linux enables top-byte ignore for user space
/// (Documentation/arch/arm64/tagged-pointers.rst).
pub const IGNORED_ADDRESS_BITS: u64 = 0xff << 56;
/// Offset from a source address to its entry in the lookup table.
pub const TABLE: u8 = 31;
/// Base of the thread's slots: memory for registers without a LoongArch register.
pub const SLOTS: u8 = 21;
/// Registers that are dead between source instructions.
pub const TEMPORARIES: [u8; 4] = [2, 28, 29, SCRATCH];
/// The target of an indirect jump through a register that is not mapped to a LoongArch register.
pub const TARGET: u8 = TEMPORARIES[0];
/// The outcome (0 or 1) of the condition that is tested next, when the flags themselves have not been written.
pub const TRUTH: u8 = 30;

/// The first of four LoongArch condition flags that hold N, Z, C and V.
pub const NEGATIVE: u8 = 0;
/// See [`NEGATIVE`].
pub const ZERO: u8 = 1;
/// See [`NEGATIVE`].
pub const CARRY: u8 = 2;
/// See [`NEGATIVE`].
pub const OVERFLOW: u8 = 3;
/// The outcome of the condition that is tested next after a floating-point comparison, when the flags themselves have
/// not been written.
pub const FLOAT_TRUTH: u8 = 4;
/// A condition flag that is dead between source instructions.
pub const FLAG_TEMPORARY: u8 = 5;

/// The first of the binary-translation scratch registers: the thread pointer, then x25, x27 and x28.
pub const THREAD_POINTER: u8 = 0;

/// Slot offset of the value read by the last exclusive load of a byte or halfword.
pub const SLOT_OF_EXCLUSIVE: i32 = 248;
/// Slot offset for saving vectors while their registers are used otherwise.
pub const SLOT_OF_VECTORS: i32 = 256;
/// Slot offset of a vector that a loop has spilled to free its register.
pub const SLOT_OF_SPILLED_VECTOR: i32 = 320;
/// Slot offset of a vector that is not zero if an integer operation of translated code saturated (FPSR.QC).
pub const SLOT_OF_SATURATION: i32 = 336;
/// Slot offset of the bits of FPCR (low word) and FPSR (high word) that FCSR has no counterpart for.
pub const SLOT_OF_FLOAT_CONTROL: i32 = 352;
/// Size of the slots in bytes.
pub const SLOT_BYTES: u64 = 360;

/// The location of a general-purpose register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Location {
    /// A LoongArch register.
    Register(u8),
    /// A scratch register of the binary-translation extension.
    Scratch(u8),
    /// Memory, at this offset from the start of the slots.
    Slot(i16),
}

/// The location of x`number` (0 to 30), except in loops that assign another register (`code/loops.rs`).
pub const fn place(number: u8) -> Location {
    match number {
        0..=6 | 8..=14 => Location::Register(4 + number),
        7 | 15..=18 => slot(number),
        19 => Location::Register(11),
        20..=24 => Location::Register(number + 3),
        25 => Location::Scratch(1),
        26 => Location::Register(19),
        27 | 28 => Location::Scratch(number - 25),
        29 => Location::Register(22),
        _ => Location::Register(20),
    }
}

/// The slot reserved for x`number`, whether it is in use or not.
pub const fn slot(number: u8) -> Location {
    Location::Slot(8 * number as i16)
}

/// The LoongArch register that holds the link register x30.
pub const LINK: u8 = 20;

/// Reads x`number` of a thread.
pub fn read(state: &State, number: u8, memory: &dyn UserMemory) -> u64 {
    read_at(state, place(number), memory)
}

/// Reads a location.
pub(crate) fn read_at(state: &State, location: Location, memory: &dyn UserMemory) -> u64 {
    match location {
        Location::Register(register) => state.r(register),
        Location::Scratch(scratch) => state.lbt.scratch[usize::from(scratch)],
        Location::Slot(offset) => {
            let mut bytes = [0; 8];
            memory.read(state.r(SLOTS).wrapping_add_signed(offset.into()), &mut bytes);
            u64::from_le_bytes(bytes)
        }
    }
}

/// Writes x`number` of a thread.
pub fn write(state: &mut State, number: u8, value: u64, memory: &dyn UserMemory) {
    match place(number) {
        Location::Register(register) => state.set_r(register, value),
        Location::Scratch(scratch) => state.lbt.scratch[usize::from(scratch)] = value,
        Location::Slot(offset) => {
            memory.write(state.r(SLOTS).wrapping_add_signed(offset.into()), &value.to_le_bytes());
        }
    }
}

/// NZCV in bits 31 to 28, as in the program status register.
pub fn flags(state: &State) -> u64 {
    [NEGATIVE, ZERO, CARRY, OVERFLOW]
        .iter()
        .fold(0, |sum, flag| sum << 1 | u64::from(state.fcc[usize::from(*flag)] & 1))
        << 28
}

/// Sets NZCV from bits 31 to 28.
pub fn set_flags(state: &mut State, flags: u64) {
    for (bit, flag) in [NEGATIVE, ZERO, CARRY, OVERFLOW].into_iter().enumerate() {
        state.fcc[usize::from(flag)] = (flags >> (31 - bit) & 1) as u8;
    }
}

// System register encodings: op0, op1, CRn, CRm, op2.
const fn number(op1: u16, crn: u16, crm: u16, op2: u16) -> u16 {
    3 << 14 | op1 << 11 | crn << 7 | crm << 3 | op2
}

/// NZCV.
pub const NZCV: u16 = number(3, 4, 2, 0);
/// FPCR.
pub const FPCR: u16 = number(3, 4, 4, 0);
/// FPSR.
pub const FPSR: u16 = number(3, 4, 4, 1);
/// TPIDR_EL0, the thread pointer.
pub const TPIDR_EL0: u16 = number(3, 13, 0, 2);
/// TPIDRRO_EL0.
pub const TPIDRRO_EL0: u16 = number(3, 13, 0, 3);
/// CTR_EL0: cache line sizes.
pub const CTR_EL0: u16 = number(3, 0, 0, 1);
/// DCZID_EL0: the block size of DC ZVA.
pub const DCZID_EL0: u16 = number(3, 0, 0, 7);
/// CNTFRQ_EL0.
pub const CNTFRQ_EL0: u16 = number(3, 14, 0, 0);
/// CNTVCT_EL0.
pub const CNTVCT_EL0: u16 = number(3, 14, 0, 2);

/// MIDR_EL1: the implementer and the part number.
pub const MIDR_EL1: u16 = identification(0, 0);
/// MPIDR_EL1.
pub const MPIDR_EL1: u16 = identification(0, 5);
/// REVIDR_EL1.
pub const REVIDR_EL1: u16 = identification(0, 6);
/// ID_AA64PFR0_EL1: floating point and Advanced SIMD.
pub const ID_AA64PFR0_EL1: u16 = identification(4, 0);
/// ID_AA64DFR0_EL1: debug features.
pub const ID_AA64DFR0_EL1: u16 = identification(5, 0);
/// ID_AA64ISAR0_EL1: instructions.
pub const ID_AA64ISAR0_EL1: u16 = identification(6, 0);
/// ID_AA64ISAR1_EL1: more instructions.
pub const ID_AA64ISAR1_EL1: u16 = identification(6, 1);
/// ID_AA64MMFR0_EL1: memory model.
pub const ID_AA64MMFR0_EL1: u16 = identification(7, 0);

const fn identification(crm: u16, op2: u16) -> u16 {
    number(0, 0, crm, op2)
}

/// Whether Linux lets programs read a register by emulating it (arch/arm64/kernel/cpufeature.c, `emulate_sys_reg`).
fn is_identification(register: u16) -> bool {
    let crm = register >> 3 & 15;
    let is_known = matches!(register, MIDR_EL1 | MPIDR_EL1 | REVIDR_EL1);
    is_known || register == identification(crm, register & 7) && matches!(crm, 2..=7)
}

/// Whether a program can read a system register.
pub fn is_readable(register: u16) -> bool {
    is_identification(register)
        || is_writable(register)
        || matches!(register, TPIDRRO_EL0 | CTR_EL0 | DCZID_EL0 | CNTFRQ_EL0 | CNTVCT_EL0)
}

/// Whether a program can write a system register.
pub fn is_writable(register: u16) -> bool {
    matches!(register, NZCV | FPCR | FPSR | TPIDR_EL0)
}
