//! 128-bit and 256-bit vectors (LSX and LASX): one function for each family, instantiated by element type and register
//! width. Most functions compute 128 bits at a time, and a LASX instruction applies the LSX instruction of the same
//! name to both halves; `cross.rs` contains the others. The manual leaves the upper 128 bits undefined after an LSX
//! instruction. QEMU clears them in some instructions and preserves them in others; here they are always preserved,
//! like the bits above a scalar floating-point result. Source: the LSX and LASX definitions of the unofficial LoongArch
//! intrinsics guide, tested there on hardware.

mod arithmetic;
mod constant;
mod cross;
mod float;
mod half;
mod memory;
mod shift;
mod shuffle;

use std::{collections::HashMap, sync::LazyLock};

use self::{
    cross::WholeFunction,
    float::{FloatFunction, Rounding},
    half::{Half, HalfFunction},
};
use super::Semantics;
use crate::{
    Environment, Extension, Instruction, Op, Operand, RegisterKind, State, Trap, float::ExceptionFlags,
};

/// The semantics of `op`; `None` if another module defines it.
pub(super) fn lookup<E: Environment>(op: Op) -> Option<Semantics<E>> {
    memory::lookup(op).or_else(|| constant::lookup(op)).or_else(|| {
        TABLE[op as usize]
            .as_ref()
            .map(|_| -> Semantics<E> { |state, instruction, _| run(state, instruction) })
    })
}

/// The implementation of an instruction that accesses only registers.
enum Action {
    /// Computes each of the first `halves` halves separately.
    Halves { function: HalfFunction, halves: usize, sources: Sources },
    /// Like `Halves`, for floating-point functions.
    Float { function: FloatFunction, halves: usize, sources: Sources },
    /// Accesses the complete state.
    Whole(WholeFunction),
}

/// The sources of the operands of a [`Half`].
struct Sources {
    j: Source,
    k: Source,
}

/// The source of an operand.
enum Source {
    /// A vector register.
    Vector,
    /// A general register, the same for both halves.
    General,
    /// The first immediate, repeated in each lane.
    Immediate(Repeat),
}

/// Repeats an integer in all lanes of 128 bits.
#[derive(Clone, Copy)]
struct Repeat {
    /// The bits of one lane.
    mask: u128,
    /// A one in each lane; 0 if there are no lanes.
    ones: u128,
}

impl Repeat {
    fn in_lanes_of(bits: u32) -> Self {
        let (mask, lanes) =
            (u128::MAX.checked_shr(128 - bits).unwrap_or(0), 128u32.checked_div(bits).unwrap_or(0));
        Self { mask, ones: (0..lanes).fold(0, |ones, i| ones | 1 << (i * bits)) }
    }

    fn of(self, value: i32) -> u128 {
        (value as u128 & self.mask).wrapping_mul(self.ones)
    }
}

/// The implementation of each instruction, by index in the instruction table.
static TABLE: LazyLock<Vec<Option<Action>>> = LazyLock::new(|| {
    let halves: HashMap<_, _> =
        [arithmetic::FAMILIES, shift::FAMILIES, shuffle::FAMILIES, float::QUIET_FAMILIES]
            .concat()
            .concat()
            .into_iter()
            .collect();
    let float: HashMap<_, _> = float::FAMILIES.concat().into_iter().collect();
    let whole: HashMap<_, _> = cross::FAMILIES.concat().into_iter().collect();
    Op::all()
        .map(|op| {
            let mnemonic = op.mnemonic();
            if let Some(&function) = whole.get(mnemonic) {
                return Some(Action::Whole(function));
            }
            let (name, number) = match op.row().extension {
                Extension::Lsx => (mnemonic, 1),
                Extension::Lasx => (mnemonic.strip_prefix('x')?, 2),
                _ => return None,
            };
            let sources = Sources { j: source(op, 5), k: source(op, 10) };
            match (halves.get(name), float.get(name)) {
                (Some(&function), _) => Some(Action::Halves { function, halves: number, sources }),
                (None, Some(&function)) => Some(Action::Float { function, halves: number, sources }),
                (None, None) => None,
            }
        })
        .collect()
});

/// The source of the operand of `op` at bit `position`.
fn source(op: Op, position: u8) -> Source {
    let register = op.row().operands.iter().find_map(|operand| match operand {
        Operand::Register(kind, at) if *at == position => Some(*kind),
        _ => None,
    });
    match register {
        Some(RegisterKind::General) => Source::General,
        Some(_) => Source::Vector,
        None => Source::Immediate(Repeat::in_lanes_of(element_bits(op.mnemonic()))),
    }
}

/// The lane width in bits that the last suffix of a mnemonic specifies: 8 for `b`, 16 for `hu`; 0 if it is not an
/// element type.
fn element_bits(mnemonic: &str) -> u32 {
    let (_, suffix) = mnemonic.rsplit_once('.').unwrap_or_default();
    match suffix.trim_end_matches('u') {
        "b" => 8,
        "h" => 16,
        "w" | "s" => 32,
        "d" | "l" => 64,
        "q" => 128,
        _ => 0,
    }
}

/// Executes an instruction that accesses only registers.
fn run(state: &mut State, instruction: &Instruction) -> Result<(), Trap> {
    match &TABLE[instruction.op as usize] {
        Some(Action::Whole(function)) => function(state, instruction),
        Some(Action::Halves { function, halves, sources }) => {
            let result = [0, 1]
                .map(|i| if i < *halves { function(&operands(state, instruction, sources, i)) } else { 0 });
            write_first(state, instruction.d, result, *halves);
        }
        Some(Action::Float { function, halves, sources }) => {
            let mut rounding = Rounding {
                mode: state.fcsr.rounding_mode(),
                rules: state.fcsr.rules(),
                raised: ExceptionFlags::NONE,
            };
            let result = [0, 1].map(|i| {
                if i < *halves {
                    function(&operands(state, instruction, sources, i), &mut rounding)
                } else {
                    0
                }
            });
            state.fcsr.record(rounding.raised)?;
            write_first(state, instruction.d, result, *halves);
        }
        None => return Err(Trap::IllegalInstruction),
    }
    Ok(())
}

/// The operands of `instruction` for half `index` of its result.
fn operands(state: &State, instruction: &Instruction, sources: &Sources, index: usize) -> Half {
    let vector = |number: u8| {
        let lanes = &state.v[usize::from(number)].0[2 * index..];
        u128::from(lanes[0]) | u128::from(lanes[1]) << 64
    };
    let operand = |source: &Source, number| match source {
        Source::Vector => vector(number),
        Source::General => state.r(number).into(),
        Source::Immediate(repeat) => repeat.of(instruction.imm),
    };
    Half {
        d: vector(instruction.d),
        j: operand(&sources.j, instruction.j),
        k: operand(&sources.k, instruction.k),
        a: vector(instruction.a),
        imm: instruction.imm,
    }
}

/// Both halves of vector register `number`, the low one first.
fn read_halves(state: &State, number: u8) -> [u128; 2] {
    let [a, b, c, d] = state.v[usize::from(number)].0.map(u128::from);
    [a | b << 64, c | d << 64]
}

/// Writes the first `HALVES` halves of vector register `number`.
fn write_halves<const HALVES: usize>(state: &mut State, number: u8, halves: [u128; 2]) {
    write_first(state, number, halves, HALVES);
}

/// Writes the first `count` halves of vector register `number`.
fn write_first(state: &mut State, number: u8, halves: [u128; 2], count: usize) {
    let lanes = &mut state.v[usize::from(number)].0;
    for (lane, half) in lanes.chunks_exact_mut(2).zip(halves).take(count) {
        lane[0] = half as u64;
        lane[1] = (half >> 64) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_in_a_family_is_an_instruction_and_in_no_other_family() {
        let instructions: Vec<_> = Op::all().map(Op::mnemonic).collect();
        let halves =
            [arithmetic::FAMILIES, shift::FAMILIES, shuffle::FAMILIES, float::QUIET_FAMILIES].concat();
        let mut names: Vec<_> = halves.concat().into_iter().map(|(name, _)| name).collect();
        names.extend(float::FAMILIES.concat().into_iter().map(|(name, _)| name));
        for name in &names {
            let wide = format!("x{name}");
            assert!(
                instructions.iter().any(|instruction| instruction == name || *instruction == wide),
                "{name}"
            );
        }
        for (name, _) in cross::FAMILIES.concat() {
            assert!(instructions.contains(&name), "{name}");
            names.push(name);
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "a name occurs twice");
    }

    #[test]
    fn an_immediate_is_repeated_in_lanes_of_the_width_in_the_name() {
        assert_eq!(element_bits("vslti.hu"), 16);
        assert_eq!(element_bits("vssrlni.du.q"), 128);
        assert_eq!(Repeat::in_lanes_of(32).of(-1), u128::MAX);
        assert_eq!(Repeat::in_lanes_of(64).of(5), 5 | 5 << 64);
        assert_eq!(Repeat::in_lanes_of(0).of(-1), 0);
    }
}
