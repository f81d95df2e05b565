//! LSX and LASX instructions that need several host instructions: the sequences as data, and their emission. Source:
//! the manual's LSX and LASX volumes; Intel SDM, volume 2. The halves of a 256-bit register are independent in both, so
//! one sequence serves both widths.

mod arithmetic;
mod compare;
mod float;
mod shift;
mod shuffle;
mod steps;
#[cfg(test)]
mod tests;
mod widening;

use iced_x86::{Code, Register};
use longma_loongarch::Instruction;

use self::steps::{HostStep, Location, scratch_for_left};
use super::{
    Arg, Emitter,
    host_vectors::{MOVDQU, PBLENDVB, PBROADCASTQ, PCMPEQD, PXOR},
    vector::sized,
};
use crate::jit::registers::wide;

/// The host sequence for an instruction.
type Steps = Vec<HostStep>;

/// The element type that an instruction works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Element {
    bits: u32,
    is_unsigned: bool,
}

impl Element {
    /// Parses `b`, `hu` and similar suffixes.
    fn mnemonic(name: &str) -> Option<Self> {
        let (letter, is_unsigned) = name.strip_suffix('u').map_or((name, false), |letter| (letter, true));
        let bits = match letter {
            "b" => 8,
            "h" => 16,
            "w" => 32,
            "d" => 64,
            _ => return None,
        };
        Some(Self { bits, is_unsigned })
    }

    /// The index in tables of host instructions: 0 for bytes to 3 for doublewords.
    fn index(self) -> usize {
        self.bits.trailing_zeros() as usize - 3
    }

    /// Repeats `value` in all elements of 64 bits.
    fn splat(self, value: u64) -> u64 {
        let value = value & (u64::MAX >> (64 - self.bits));
        (0..64 / self.bits).fold(0, |all, n| all | value << (n * self.bits))
    }

    fn sign(self) -> u64 {
        self.splat(1 << (self.bits - 1))
    }
}

/// An instruction mnemonic split into its parts.
#[derive(Clone, Copy)]
struct Mnemonic<'a> {
    stem: &'a str,
    /// The element types after the stem; `None` for other suffixes.
    elements: [Option<Element>; 3],
    /// The complete suffix after the stem.
    formats: &'a str,
    imm: i32,
    is_wide: bool,
    /// Both sources are the same register.
    is_same: bool,
}

impl Mnemonic<'_> {
    /// The element type of an instruction that names exactly one.
    fn only(&self) -> Option<Element> {
        self.elements[0].filter(|_| self.elements[1].is_none())
    }
}

/// The sequence for an instruction, if it has one, and whether it is 256 bits wide.
fn sequence(i: &Instruction) -> Option<(Steps, bool)> {
    let name = i.op.mnemonic();
    let (name, is_wide) = name.strip_prefix('x').map_or((name, false), |name| (name, true));
    let (stem, formats) = name.strip_prefix('v')?.split_once('.')?;
    let mut parts = formats.split('.');
    let elements = [parts.next(), parts.next(), parts.next()].map(|part| part.and_then(Element::mnemonic));
    let mnemonic = Mnemonic { stem, elements, formats, imm: i.imm, is_wide, is_same: i.j == i.k };
    let steps = compare::steps(&mnemonic)
        .or_else(|| arithmetic::steps(&mnemonic))
        .or_else(|| shift::steps(&mnemonic))
        .or_else(|| shuffle::steps(&mnemonic))
        .or_else(|| widening::steps(&mnemonic))
        .or_else(|| float::steps(&mnemonic))?;
    Some((steps, is_wide))
}

impl Emitter<'_> {
    /// Emits the sequence of an instruction. Returns false if it has none.
    pub(super) fn vector_sequence(&mut self, i: &Instruction) -> bool {
        let Some((steps, is_wide)) = sequence(i) else { return false };
        for (index, step) in steps.iter().enumerate() {
            self.step(i, step, &steps[index + 1..], is_wide);
        }
        true
    }

    fn step(&mut self, i: &Instruction, step: &HostStep, after: &[HostStep], is_wide: bool) {
        let target = match step.to() {
            Location::D => self.vector_target(i.d, Register::XMM0),
            scratch => scratch_register(scratch),
        };
        let to = sized(target, is_wide);
        match *step {
            HostStep::Splat(_, value) => self.splat(target, value, is_wide),
            HostStep::Pattern(_, value) => self.pattern(target, value, is_wide),
            HostStep::Move(_, from) => {
                let from = self.operand(i, from, is_wide);
                self.a.op2(MOVDQU.of(is_wide), to, from);
            }
            HostStep::Two(code, _, _, right) => {
                let (left, right) = (self.left(i, step, after, is_wide), self.operand(i, right, is_wide));
                self.a.op3(code.of(is_wide), to, left, right);
            }
            HostStep::Choose(code, _, _, right, choice) => {
                let (left, right) = (self.left(i, step, after, is_wide), self.operand(i, right, is_wide));
                self.a.op4(code.of(is_wide), to, left, right, choice);
            }
            HostStep::Blend(_, _, right, mask) => {
                let (left, right) = (self.left(i, step, after, is_wide), self.operand(i, right, is_wide));
                let mask = sized(scratch_register(mask), is_wide);
                self.a.op4(PBLENDVB.of(is_wide), to, left, right, mask);
            }
            HostStep::Shift(code, _, _, count) => {
                let left = self.left(i, step, after, is_wide);
                self.a.op3(code.of(is_wide), to, left, count);
            }
            HostStep::One(code, _, from, choice) => {
                let from = self.operand(i, from, is_wide);
                self.a.op3(code.of(is_wide), to, from, choice);
            }
            HostStep::Narrow(code, _, from) => {
                let from = self.operand(i, from, false);
                self.a.op2(code, target, from);
            }
        }
        if step.to() == Location::D {
            self.write_vector(i.d, to, is_wide);
        }
    }

    fn register_number(i: &Instruction, location: Location) -> u8 {
        match location {
            Location::J => i.j,
            Location::K => i.k,
            Location::Third => i.a,
            Location::Old => i.d,
            Location::A | Location::B | Location::C | Location::D => {
                unreachable!("{location:?} is not a source")
            }
        }
    }

    /// An operand that may be in memory.
    fn operand(&self, i: &Instruction, location: Location, is_wide: bool) -> Arg {
        if location.is_scratch() {
            return sized(scratch_register(location), is_wide).into();
        }
        self.vector_source(Self::register_number(i, location), is_wide)
    }

    /// The left operand of a step, loaded into a register if necessary.
    fn left(&mut self, i: &Instruction, step: &HostStep, after: &[HostStep], is_wide: bool) -> Register {
        let location = step.left().expect("a step with a left operand");
        if location.is_scratch() {
            return sized(scratch_register(location), is_wide);
        }
        let scratch = scratch_for_left(step, after)
            .expect("every sequence has a free scratch register: a test checks it");
        self.read_vector(Self::register_number(i, location), scratch_register(scratch), is_wide)
    }

    /// Loads the same 64 bits into all doublewords.
    fn splat(&mut self, to: Register, value: u64, is_wide: bool) {
        let sized = sized(to, is_wide);
        match value {
            0 => self.a.op3(PXOR.of(is_wide), sized, sized, sized),
            u64::MAX => self.a.op3(PCMPEQD.of(is_wide), sized, sized, sized),
            _ => {
                self.load_constant(Register::RAX, value);
                self.a.op2(Code::VEX_Vmovq_xmm_rm64, to, Register::RAX);
                self.a.op2(PBROADCASTQ.of(is_wide), sized, to);
            }
        }
    }

    /// Loads the same 128 bits into each half.
    fn pattern(&mut self, to: Register, value: u128, is_wide: bool) {
        self.load_constant(Register::RAX, value as u64);
        self.a.op2(Code::VEX_Vmovq_xmm_rm64, to, Register::RAX);
        self.load_constant(Register::RAX, (value >> 64) as u64);
        self.a.op4(Code::VEX_Vpinsrq_xmm_xmm_rm64_imm8, to, to, Register::RAX, 1);
        if is_wide {
            self.a.op4(Code::VEX_Vinserti128_ymm_ymm_xmmm128_imm8, wide(to), wide(to), to, 1);
        }
    }
}

fn scratch_register(location: Location) -> Register {
    match location {
        Location::A => Register::XMM0,
        Location::B => Register::XMM1,
        Location::C => Register::XMM2,
        _ => unreachable!("{location:?} is not a scratch register"),
    }
}
