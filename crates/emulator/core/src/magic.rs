//! Magic instructions, with which a guest program sends messages to the model. They are no-ops on real processors. They
//! are the forms `andi $zero, $zero, n` with n from 0x4c1 to 0x4c4, which write to the zero register (LoongArch
//! Reference Manual, volume 1, section 2.2.1.6). The manual defines only n = 0, as `nop`, and compilers have no reason
//! to emit the others. The macros for guests are in `guests/include/longma.h`.

use longma_loongarch::{Instruction, Op, State};

/// The immediate of the first magic instruction. The numbers of the other messages follow it.
const FIRST: i32 = 0x4c1;

/// The register with the event number: r4, the first argument.
const NUMBER: usize = 4;

/// The message of a magic instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Magic {
    /// The region of interest begins: `andi $zero, $zero, 0x4c1`.
    RegionBegin,
    /// The region of interest ends: `andi $zero, $zero, 0x4c2`.
    RegionEnd,
    /// A suitable point for a checkpoint: `andi $zero, $zero, 0x4c3`.
    Checkpoint,
    /// A program-defined event whose number is in `$a0`: `andi $zero, $zero, 0x4c4`.
    Event(u64),
}

impl Magic {
    /// Whether `instruction` is magic.
    pub(crate) fn is(instruction: &Instruction) -> bool {
        let hint = instruction.op == Op::Andi && instruction.d == 0 && instruction.j == 0;
        hint && (FIRST..FIRST + 4).contains(&instruction.imm)
    }

    /// The message of `instruction` with the registers of `state`; `None` if it is not magic.
    pub(crate) fn of(instruction: &Instruction, state: &State) -> Option<Self> {
        if !Self::is(instruction) {
            return None;
        }
        Some(match instruction.imm - FIRST {
            0 => Self::RegionBegin,
            1 => Self::RegionEnd,
            2 => Self::Checkpoint,
            _ => Self::Event(state.x[NUMBER]),
        })
    }
}

#[cfg(test)]
mod tests {
    use longma_loongarch::decode;

    use super::*;

    /// The words of `guests/include/longma.h`, with 7 in `$a0`.
    #[test]
    fn the_words_of_the_header_are_magic_and_a_nop_is_not() {
        let mut state = State::default();
        state.x[4] = 7;
        let magic = |word| Magic::of(&decode(word).expect("andi"), &state);
        let andi = |immediate: u32| 0x0340_0000 | immediate << 10;
        assert_eq!(magic(andi(0x4c1)), Some(Magic::RegionBegin));
        assert_eq!(magic(andi(0x4c2)), Some(Magic::RegionEnd));
        assert_eq!(magic(andi(0x4c3)), Some(Magic::Checkpoint));
        assert_eq!(magic(andi(0x4c4)), Some(Magic::Event(7)));
        for other in [andi(0), andi(0x4c0), andi(0x4c5), andi(0x4c1) | 1, andi(0x4c1) | 1 << 5] {
            assert_eq!(magic(other), None, "{other:#x}");
        }
    }
}
