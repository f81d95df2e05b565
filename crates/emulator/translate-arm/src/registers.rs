//! Where the registers of AArch64 are while a program runs as LoongArch code.
//! Not the code.
//! Source: Procedure Call Standard for the Arm 64-bit Architecture, section 6.1 (what compilers use least); Arm Architecture Reference
//! Manual (Arm DDI 0487), section C5.2 (system registers of EL0).

use longma_loongarch::State;
use serde::{Deserialize, Serialize};

use longma_translate::front_end::Structures;
pub use longma_translate::front_end::{SCRATCH, STACK_POINTER};

/// Added to a source address, it gives the address of its entry in the table of targets.
pub const TABLE: u8 = 31;
/// The thread's slots: memory for registers that have none of LoongArch's.
pub const SLOTS: u8 = 21;
/// Registers that hold nothing between two source instructions.
pub const TEMPORARIES: [u8; 4] = [2, 28, 29, SCRATCH];
/// What a jump through a register without one of LoongArch's goes to.
pub const TARGET: u8 = TEMPORARIES[0];
/// Whether the condition that is read next holds, as 0 or 1, where flags have not been written.
pub const TRUTH: u8 = 30;

/// N, Z, C and V are the condition flags of LoongArch from here on.
pub const NEGATIVE: u8 = 0;
/// See [`NEGATIVE`].
pub const ZERO: u8 = 1;
/// See [`NEGATIVE`].
pub const CARRY: u8 = 2;
/// See [`NEGATIVE`].
pub const OVERFLOW: u8 = 3;
/// The same of a floating-point comparison: whether the condition that is read next holds.
pub const FLOAT_TRUTH: u8 = 4;
/// A condition flag that holds nothing between two source instructions.
pub const FLAG_TEMPORARY: u8 = 5;

/// The scratch registers of the binary-translation extension: the thread pointer, then x25, x27 and x28.
pub const THREAD_POINTER: u8 = 0;

/// Where in the slots the word is that the last exclusive load of a byte or a half has read.
pub const SLOT_OF_EXCLUSIVE: i32 = 248;
/// Where vectors are while their registers hold something else.
pub const SLOT_OF_VECTORS: i32 = 256;
/// Where a vector is while a loop needs its register.
pub const SLOT_OF_LENT: i32 = 320;
/// What is to be had of the slots.
pub const SLOT_BYTES: u64 = 336;

/// Where a general register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// In one of LoongArch's.
    Register(u8),
    /// In a scratch register of the binary-translation extension.
    Scratch(u8),
    /// In memory, so far behind the start of the slots.
    Slot(i16),
}

/// Where x`number` is, 0 to 30, but in loops that have it elsewhere (`code/loops.rs`).
pub const fn place(number: u8) -> Place {
    match number {
        0..=6 | 8..=14 => Place::Register(4 + number),
        7 | 15..=18 => slot(number),
        19 => Place::Register(11),
        20..=24 => Place::Register(number + 3),
        25 => Place::Scratch(1),
        26 => Place::Register(19),
        27 | 28 => Place::Scratch(number - 25),
        29 => Place::Register(22),
        _ => Place::Register(20),
    }
}

/// The slot that x`number` has, be it elsewhere or not.
pub const fn slot(number: u8) -> Place {
    Place::Slot(8 * number as i16)
}

/// The LoongArch register with the address that a function returns to.
pub const LINK: u8 = 20;

/// x`number` of a thread.
pub fn read(state: &State, number: u8, memory: &dyn Structures) -> u64 {
    read_at(state, place(number), memory)
}

/// What is at a place.
pub(crate) fn read_at(state: &State, place: Place, memory: &dyn Structures) -> u64 {
    match place {
        Place::Register(register) => state.r(register),
        Place::Scratch(scratch) => state.lbt.scratch[usize::from(scratch)],
        Place::Slot(offset) => {
            let mut bytes = [0; 8];
            memory.read(state.r(SLOTS).wrapping_add_signed(offset.into()), &mut bytes);
            u64::from_le_bytes(bytes)
        }
    }
}

/// Sets x`number` of a thread.
pub fn write(state: &mut State, number: u8, value: u64, memory: &dyn Structures) {
    match place(number) {
        Place::Register(register) => state.set_r(register, value),
        Place::Scratch(scratch) => state.lbt.scratch[usize::from(scratch)] = value,
        Place::Slot(offset) => {
            memory.write(state.r(SLOTS).wrapping_add_signed(offset.into()), &value.to_le_bytes());
        }
    }
}

/// NZCV as the program status register has it, in bits 31 to 28.
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

// Numbers of system registers: op0, op1, CRn, CRm, op2.
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
/// CTR_EL0: sizes of lines of the caches.
pub const CTR_EL0: u16 = number(3, 0, 0, 1);
/// DCZID_EL0: the size of what DC ZVA clears.
pub const DCZID_EL0: u16 = number(3, 0, 0, 7);
/// CNTFRQ_EL0.
pub const CNTFRQ_EL0: u16 = number(3, 14, 0, 0);
/// CNTVCT_EL0.
pub const CNTVCT_EL0: u16 = number(3, 14, 0, 2);

/// Whether a program may read a system register.
pub fn is_readable(register: u16) -> bool {
    is_writable(register) || matches!(register, TPIDRRO_EL0 | CTR_EL0 | DCZID_EL0 | CNTFRQ_EL0 | CNTVCT_EL0)
}

/// Whether a program may write a system register.
pub fn is_writable(register: u16) -> bool {
    matches!(register, NZCV | FPCR | FPSR | TPIDR_EL0)
}
