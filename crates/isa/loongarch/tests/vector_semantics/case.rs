//! One execution of a vector instruction: its inputs and outputs, and the generation of random inputs with edge values.

use longma_random::SplitMix64;
use std::cell::Cell;

use longma_loongarch::{
    Class, Environment, Extension, Fault, Immediate, Instruction, Op, Operand, RegisterKind, Scalar, State,
    Trap, Vector, semantics::execute,
};

/// The vector registers for operands d, j, k and a.
pub const VECTOR: [u8; 4] = [0, 1, 2, 3];
/// The general registers for operands d, j and k.
pub const GENERAL: [u8; 3] = [7, 5, 6];
/// The size of the memory that an instruction may access.
pub const MEMORY_BYTES: usize = 96;
/// The offset in that memory to which a base register points.
pub const MEMORY_MIDDLE: u64 = 32;

/// The inputs of an instruction.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Vector registers d, j, k and a.
    pub vectors: [[u64; 4]; 4],
    /// General registers d, j and k.
    pub general: [u64; 3],
    /// Condition flag 0.
    pub flag: u8,
    /// FCSR0.
    pub fcsr: u32,
    /// Memory around the base address.
    pub memory: [u8; MEMORY_BYTES],
}

/// The outputs of an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outputs {
    /// Vector register d.
    pub vector: [u64; 4],
    /// General register d.
    pub general: u64,
    /// Condition flag 0.
    pub flag: u8,
    /// FCSR0.
    pub fcsr: u32,
    /// Memory around the base address.
    pub memory: [u8; MEMORY_BYTES],
}

/// Whether the instruction reads or writes memory.
pub fn is_memory(op: Op) -> bool {
    matches!(op.row().class, Class::Load | Class::Store)
}

/// The vector instructions of the table.
pub fn vector_ops() -> impl Iterator<Item = Op> {
    Op::all().filter(|op| matches!(op.row().extension, Extension::Lsx | Extension::Lasx))
}

/// An address that is mapped only in the test's memory.
const BASE: u64 = 0x1_2000_0000;

/// A memory of a few bytes at [`BASE`].
struct Bytes(Cell<[u8; MEMORY_BYTES]>);

impl Bytes {
    fn at(address: u64) -> usize {
        usize::try_from(address - BASE).expect("the test's addresses stay in its memory")
    }
}

impl Environment for Bytes {
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        let (bytes, at) = (self.0.get(), Self::at(address));
        let mut value = T::default();
        // SAFETY: `T` is a plain integer, `BYTES` is its size, and the slice checks the range.
        unsafe {
            let source = &bytes[at..at + T::BYTES];
            std::ptr::copy_nonoverlapping(source.as_ptr(), (&raw mut value).cast(), T::BYTES);
        }
        Ok(value)
    }

    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        let (mut bytes, at) = (self.0.get(), Self::at(address));
        // SAFETY: as in `load`.
        unsafe {
            let target = &mut bytes[at..at + T::BYTES];
            std::ptr::copy_nonoverlapping((&raw const value).cast(), target.as_mut_ptr(), T::BYTES);
        }
        self.0.set(bytes);
        Ok(())
    }

    fn compare_exchange<T: Scalar>(&self, address: u64, expected: T, new: T) -> Result<T, Fault> {
        let old: T = self.load(address)?;
        if old == expected {
            self.store(address, new)?;
        }
        Ok(old)
    }

    fn fetch(&self, _address: u64) -> Result<u32, Fault> {
        unreachable!("the test executes decoded instructions")
    }

    fn stable_counter(&self) -> u64 {
        0
    }

    fn cpucfg(&self, _index: u32) -> u32 {
        0
    }
}

/// The outputs according to this crate's semantics.
pub fn ours(instruction: &Instruction, inputs: &Inputs) -> Result<Outputs, Trap> {
    let mut state = State::default();
    for (number, lanes) in VECTOR.into_iter().zip(inputs.vectors) {
        state.v[usize::from(number)] = Vector(lanes);
    }
    for (number, value) in GENERAL.into_iter().zip(inputs.general) {
        state.x[usize::from(number)] = value;
    }
    if is_memory(instruction.op) {
        state.x[usize::from(GENERAL[1])] = BASE + MEMORY_MIDDLE;
    }
    state.fcc[0] = inputs.flag;
    state.fcsr.0 = inputs.fcsr;
    let memory = Bytes(Cell::new(inputs.memory));
    execute(&mut state, instruction, &memory)?;
    Ok(Outputs {
        vector: state.v[usize::from(VECTOR[0])].0,
        general: state.x[usize::from(GENERAL[0])],
        flag: state.fcc[0],
        fcsr: state.fcsr.0,
        memory: memory.0.get(),
    })
}

/// Reproducible random numbers.
pub struct Random(SplitMix64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// 256 random bits: arbitrary, without negative bytes, mostly zero, or lanes of one width that are often edge
    /// values.
    fn vector(&mut self) -> [u64; 4] {
        match self.below(10) {
            0 => [0; 4].map(|_: u64| self.next()),
            1 => self.lanes(8, Self::edge),
            2 => self.lanes(16, Self::edge),
            3 => self.lanes(32, Self::edge),
            4 => self.lanes(64, Self::edge),
            5 => self.lanes(16, |random, _| random.half()),
            6 => self.lanes(32, |random, _| random.single().into()),
            7 => [0; 4].map(|_: u64| self.next() & 0x7f7f_7f7f_7f7f_7f7f),
            8 => [0; 4].map(|_: u64| (self.next() & 1) << self.below(64)),
            _ => self.lanes(64, |random, _| random.double()),
        }
    }

    fn lanes(&mut self, bits: u32, mut lane: impl FnMut(&mut Self, u32) -> u64) -> [u64; 4] {
        [0; 4].map(|_: u64| (0..64 / bits).fold(0, |word, i| word | lane(self, bits) << (i * bits)))
    }

    /// An integer of `bits` bits: near 0, near the ends of its range, or random.
    fn edge(&mut self, bits: u32) -> u64 {
        let mask = u64::MAX >> (64 - bits);
        let sign = 1 << (bits - 1);
        let boundary = self.pick(&[0, 1, 2, mask, mask - 1, sign, sign - 1, sign + 1, sign >> 1]);
        let random = self.next() & mask;
        let (small, bit) = (random >> self.below(bits as usize), 1 << self.below(bits as usize));
        self.pick(&[boundary, boundary, random, small, bit])
    }

    /// A half-precision number: a special value or random bits.
    fn half(&mut self) -> u64 {
        let special = self.pick(&[
            0, 0x8000, 1, 0x3ff, 0x400, 0x3c00, 0x7bff, 0x7c00, 0xfc00, 0x7c01, 0x7e01, 0xfdff, 0xffff,
        ]);
        let random = self.next() & 0xffff;
        self.pick(&[special, random])
    }

    /// A single-precision number: a special value, near an integer, near 1, tiny, or random bits.
    fn single(&mut self) -> u32 {
        let special = [
            0,
            1,
            0x7f_ffff,
            0x80_0000,
            0x3f80_0000,
            0x3f80_0001,
            0x3f7f_ffff,
            0x7f7f_ffff,
            0x7f80_0000,
            0x7f80_0001,
            0x7fbf_ffff,
            0x7fc0_0000,
            0x7fc1_2345,
            0x4f00_0000,
            0x4eff_ffff,
            0x4f80_0000,
            0x5f00_0000,
            0x5eff_ffff,
            0x3f00_0000,
            0x3fc0_0000,
            0x4020_0000,
            0x3380_0000,
            0x477f_e000,
            0x477f_f000,
            0x3880_0000,
            0x387f_f000,
            0x3300_0000,
            0x3300_0001,
        ];
        let bits = self.next() as u32;
        let random = match self.below(4) {
            0 => bits,
            1 => self.pick(&special),
            2 => (self.below(1 << 20) as f32 / 8.0).to_bits(),
            _ => bits & 0x7f_ffff | (127 - 20 + self.below(40) as u32) << 23,
        };
        random | bits & 1 << 31
    }

    /// Like [`Self::single`], in double precision.
    fn double(&mut self) -> u64 {
        let special = [
            0,
            1,
            0xf_ffff_ffff_ffff,
            0x10_0000_0000_0000,
            0x3ff0_0000_0000_0000,
            0x3ff0_0000_0000_0001,
            0x3fef_ffff_ffff_ffff,
            0x7fef_ffff_ffff_ffff,
            0x7ff0_0000_0000_0000,
            0x7ff0_0000_0000_0001,
            0x7ff8_0000_0000_0000,
            0x7ff8_1234_5678_9abc,
            0x41df_ffff_ffc0_0000,
            0x41e0_0000_0000_0000,
            0x41e0_0000_0010_0000,
            0x43e0_0000_0000_0000,
            0x43df_ffff_ffff_ffff,
            0x43f0_0000_0000_0000,
            0x3fe0_0000_0000_0000,
            0x3ff8_0000_0000_0000,
            0x4004_0000_0000_0000,
            0x47ef_ffff_e000_0000,
            0x47ef_ffff_f000_0000,
            0x3690_0000_0000_0000,
            0x3690_0000_0000_0001,
            0x3810_0000_0000_0000,
            0x380f_ffff_ffff_ffff,
            0x36a0_0000_0000_0000,
        ];
        let bits = self.next();
        let random = match self.below(4) {
            0 => bits,
            1 => self.pick(&special),
            2 => (self.next() as i64 as f64 / f64::from(1u32 << self.below(32))).to_bits(),
            _ => bits & 0xf_ffff_ffff_ffff | (1023 - 30 + self.below(60) as u64) << 52,
        };
        random & !(1 << 63) | bits & 1 << 63
    }

    /// Random inputs for `op`. FCSR has a rounding mode and possibly old flags and causes; no exception is enabled.
    pub fn given(&mut self, op: Op) -> Inputs {
        let mut memory = [0; MEMORY_BYTES];
        memory.fill_with(|| self.next() as u8);
        let j = self.vector();
        let offset = (self.below(65) as u64).wrapping_sub(MEMORY_MIDDLE);
        let related = self.below(4) == 0;
        Inputs {
            vectors: [self.vector(), j, if related { j } else { self.vector() }, self.vector()],
            general: [self.next(), self.edge(64), if is_memory(op) { offset } else { self.edge(64) }],
            flag: self.below(2) as u8,
            fcsr: (self.below(4) << 8) as u32 | (self.next() & self.next()) as u32 & 0x1f1f_0000,
            memory,
        }
    }
}

/// Instructions of `op` on the test's registers, with all immediates if there are few, otherwise a selection.
pub fn instructions(op: Op, random: &mut Random) -> Vec<Instruction> {
    let mut base = Instruction::new(op);
    let mut immediates = Vec::new();
    for operand in op.row().operands {
        match operand {
            Operand::Register(kind, position) => {
                let field = usize::from(position / 5);
                let number = match kind {
                    RegisterKind::General => GENERAL[field],
                    RegisterKind::Condition => 0,
                    _ => VECTOR[field],
                };
                match position {
                    0 => base.d = number,
                    5 => base.j = number,
                    10 => base.k = number,
                    _ => base.a = number,
                }
            }
            Operand::Immediate(immediate) => immediates.push(*immediate),
        }
    }
    let mut choices = vec![base];
    if let Some(first) = immediates.first() {
        choices = values(op, first, random).into_iter().map(|imm| Instruction { imm, ..base }).collect();
    }
    if let Some(second) = immediates.get(1) {
        let values = values(op, second, random);
        choices = choices
            .iter()
            .flat_map(|first| values.iter().map(|&imm2| Instruction { imm2, ..*first }))
            .collect();
    }
    choices
}

/// Several values for an immediate. Those of memory instructions keep the address in the test's memory.
fn values(op: Op, immediate: &Immediate, random: &mut Random) -> Vec<i32> {
    let width = u32::from(immediate.width());
    let all = 1usize << width;
    let field = |bits: usize| {
        let bits = bits as i32;
        let value = if immediate.signed { bits << (32 - width) >> (32 - width) } else { bits };
        (value << immediate.scale) + i32::from(immediate.plus)
    };
    if is_memory(op) && immediate.signed {
        let step = 1 << immediate.scale;
        return [-32, -step, 0, step, 24, 32].into_iter().filter(|value| value % step == 0).collect();
    }
    match op {
        // All modes, each with a few bytes.
        Op::Vldi | Op::Xvldi => (0..29 << 8).filter(|_| random.below(24) == 0).map(field).collect(),
        _ if all <= 8 => (0..all).map(field).collect(),
        _ => {
            let mut some = vec![0, 1, all / 2 - 1, all / 2, all - 1];
            some.extend((0..7).map(|_| random.below(all)));
            some.into_iter().map(field).collect()
        }
    }
}
