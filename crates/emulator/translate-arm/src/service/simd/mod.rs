//! Executes floating-point and Advanced SIMD instructions element by element, exactly as FPCR specifies. Source: Arm
//! Architecture Reference Manual (Arm DDI 0487), section C7.2.

mod estimate;
mod float;
mod integer;
mod scalar;
mod shape;

use std::sync::LazyLock;

use longma_loongarch::State;

use super::environment::Environment;
use super::vector::{bytes, lane, put, put_lane};
use crate::instruction::{Instruction, Op, mnemonics};
use longma_translate::front_end::UserMemory;
use shape::{Last, Shape};

/// The operands of one element.
#[derive(Clone, Copy, Debug)]
struct Lane {
    n: u64,
    m: u64,
    /// The destination's old element, or the addend.
    d: u64,
    /// The element width in bits, as the instruction encodes it.
    bits: u32,
    /// immh:immb of shifts and fixed-point conversions.
    immediate: Option<u32>,
}

impl Lane {
    /// The amount of a left shift. A negative amount shifts right.
    fn by(self) -> i32 {
        self.immediate.map_or(i32::from(self.m as i8), |immediate| immediate as i32 - self.bits as i32)
    }

    /// The amount of a right shift by an immediate.
    fn right(self) -> u32 {
        2 * self.bits - self.immediate.unwrap_or_default()
    }

    /// The number of bits after the point of a fixed-point number.
    fn fraction_bits(self) -> i64 {
        self.immediate.map_or(0, |_| self.right().into())
    }
}

/// Computes an element of the result.
type Kernel = fn(&mut Environment, Lane) -> u64;

/// Which elements a kernel combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Elements of the same number and width.
    Same,
    /// The result has twice the width. The second form (bit 30) reads the upper halves.
    Long,
    /// The operands have twice the width of the result. The second form writes the upper half.
    Narrow,
    /// Neighbours of the concatenated operands.
    Pairs,
    /// All elements of one vector.
    Across,
}

/// The form and the kernel of each row of the instruction table.
static KERNELS: LazyLock<Vec<Option<(Form, Kernel)>>> = LazyLock::new(|| {
    let find = |name: &str| integer::find(name).or_else(|| float::find(name));
    let find = |name: &'static str| find(name).or_else(|| find(name.strip_suffix('2')?));
    mnemonics().map(find).collect()
});

/// Executes an instruction. Returns false for instructions not handled here.
pub(super) fn serve(i: Instruction, state: &mut State, memory: &dyn UserMemory) -> bool {
    let mut environment = Environment::of(state, memory);
    let is_done = scalar::serve(i, state, &mut environment, memory)
        || special(i, state)
        || by_elements(i, state, &mut environment);
    environment.record(state, memory);
    is_done
}

/// Products of bytes added to words.
fn special(i: Instruction, state: &mut State) -> bool {
    match i.op {
        Op::SdotV | Op::SdotE | Op::UdotV | Op::UdotE => {
            let (n, mut d) = (bytes(state, i.rn()), bytes(state, i.rd()));
            let is_signed = matches!(i.op, Op::SdotV | Op::SdotE);
            let (m, fixed) = match Shape::of(i).last {
                Last::Lane(register, lane) => (bytes(state, register), Some(lane)),
                _ => (bytes(state, i.rm()), None),
            };
            for index in 0..if i.is_whole() { 4 } else { 2 } {
                let word = |from: &[u8; 16], index| lane(from, 2, index) as u32;
                let factor = word(&m, fixed.unwrap_or(index));
                let sum = integer::dot(word(&d, index), word(&n, index), factor, is_signed);
                put_lane(&mut d, 2, index, sum.into());
            }
            put(state, i.rd(), d, i.is_whole());
        }
        _ => return false,
    }
    true
}

fn by_elements(i: Instruction, state: &mut State, environment: &mut Environment) -> bool {
    let Some((form, kernel)) = KERNELS.get(i.op as usize).copied().flatten() else { return false };
    let mut shape = Shape::of(i);
    // FCVTL and FCVTN encode half the size of FCVT's other operand.
    if matches!(i.mnemonic(), "fcvtl" | "fcvtl2" | "fcvtn" | "fcvtn2" | "fcvtxn" | "fcvtxn2") {
        shape.size -= 1;
    }
    let vectors = Vectors::of(i, state, &shape);
    let is_whole = i.is_whole() && !shape.is_scalar;
    let result = match form {
        Form::Same => vectors.same(is_whole, kernel, environment),
        Form::Long => vectors.long(is_whole, kernel, environment),
        Form::Narrow => vectors.narrow(is_whole, kernel, environment),
        Form::Pairs => vectors.pairs(is_whole, kernel, environment),
        Form::Across => vectors.across(is_whole, kernel, environment),
    };
    let is_full = !shape.is_scalar && form != Form::Across && (is_whole || form == Form::Long);
    put(state, i.rd(), result, is_full);
    true
}

/// The operands of an instruction.
struct Vectors {
    n: [u8; 16],
    m: [u8; 16],
    d: [u8; 16],
    shape: Shape,
}

impl Vectors {
    fn of(i: Instruction, state: &State, shape: &Shape) -> Self {
        let m = match shape.last {
            Last::Vector(register) | Last::Lane(register, _) => bytes(state, register),
            Last::None | Last::Immediate(_) => [0; 16],
        };
        // FMADD and its relatives add a fourth register.
        let is_fused = i.bits(24, 8) == 0x1f;
        let d = bytes(state, if is_fused { i.ra() } else { i.rd() });
        Self { n: bytes(state, i.rn()), m, d, shape: *shape }
    }

    fn lane(&self, n: u64, m: u64, d: u64) -> Lane {
        let immediate = match self.shape.last {
            Last::Immediate(immediate) => Some(immediate),
            _ => None,
        };
        Lane { n, m, d, bits: 8 << self.shape.size, immediate }
    }

    /// An element of the last operand, `size` wide.
    fn m(&self, size: usize, index: usize) -> u64 {
        match self.shape.last {
            Last::Lane(_, fixed) => lane(&self.m, size, fixed),
            _ => lane(&self.m, size, index),
        }
    }

    /// The number of elements with the encoded size.
    fn count(&self, is_whole: bool) -> usize {
        match (self.shape.is_scalar, is_whole) {
            (true, _) => 1,
            (_, true) => 16 >> self.shape.size,
            _ => 8 >> self.shape.size,
        }
    }

    fn same(&self, is_whole: bool, kernel: Kernel, environment: &mut Environment) -> [u8; 16] {
        let (mut result, size) = ([0; 16], self.shape.size);
        for index in 0..self.count(is_whole) {
            let l = self.lane(lane(&self.n, size, index), self.m(size, index), lane(&self.d, size, index));
            put_lane(&mut result, size, index, kernel(environment, l));
        }
        result
    }

    fn long(&self, is_whole: bool, kernel: Kernel, environment: &mut Environment) -> [u8; 16] {
        let (mut result, size) = ([0; 16], self.shape.size);
        let first = if is_whole { 8 >> size } else { 0 };
        for index in 0..self.count(false) {
            let (n, d) = (lane(&self.n, size, first + index), lane(&self.d, size + 1, index));
            let l = self.lane(n, self.m(size, first + index), d);
            put_lane(&mut result, size + 1, index, kernel(environment, l));
        }
        result
    }

    fn narrow(&self, is_whole: bool, kernel: Kernel, environment: &mut Environment) -> [u8; 16] {
        let size = self.shape.size;
        let (mut result, first) = if is_whole { (self.d, 8 >> size) } else { ([0; 16], 0) };
        for index in 0..self.count(false) {
            let l = self.lane(lane(&self.n, size + 1, index), self.m(size + 1, index), 0);
            put_lane(&mut result, size, first + index, kernel(environment, l));
        }
        result
    }

    fn pairs(&self, is_whole: bool, kernel: Kernel, environment: &mut Environment) -> [u8; 16] {
        let (mut result, size, count) = ([0; 16], self.shape.size, self.count(is_whole));
        for index in 0..count {
            let (from, at) =
                if 2 * index < count.max(2) { (&self.n, 2 * index) } else { (&self.m, 2 * index - count) };
            let l = self.lane(lane(from, size, at), lane(from, size, at + 1), 0);
            put_lane(&mut result, size, index, kernel(environment, l));
        }
        result
    }

    fn across(&self, is_whole: bool, kernel: Kernel, environment: &mut Environment) -> [u8; 16] {
        let size = self.shape.size;
        let mut values: Vec<u64> =
            (0..self.count(is_whole)).map(|index| lane(&self.n, size, index)).collect();
        // The halves of the vector are reduced first.
        while values.len() > 1 {
            let pairs = values.chunks(2);
            values = pairs.map(|pair| kernel(environment, self.lane(pair[0], pair[1], 0))).collect();
        }
        let mut result = [0; 16];
        put_lane(&mut result, size, 0, values[0]);
        result
    }
}
