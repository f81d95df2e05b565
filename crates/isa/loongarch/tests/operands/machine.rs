//! Runs one instruction on states that differ in one place (a register, a flag or the reservation) and compares the
//! results.

use std::{cell::RefCell, fmt};

use longma_loongarch::{
    Access, Class, Environment, Extension, Fault, FaultCause, Fcsr, Instruction, Op, Operand, RegisterKind,
    Reservation, Scalar, State, Trap, Vector, decode, semantics::execute,
};

use crate::cases::Random;

/// The size of the memory: enough for all displacements, and for base plus index.
const MEMORY_BYTES: usize = 1 << 18;
const BASE: u64 = 0x10_0000;
const MIDDLE: u64 = BASE + MEMORY_BYTES as u64 / 2;

/// A register or flag that an instruction may read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StateElement {
    General(u8),
    Vector(u8),
    Condition(u8),
    Scratch(u8),
    FloatControl,
    Flags,
    Top,
    StackMode,
    Reservation,
}

impl StateElement {
    pub fn all() -> impl Iterator<Item = Self> {
        let registers = (1..32).map(Self::General).chain((0..32).map(Self::Vector));
        let small = (0..8).map(Self::Condition).chain((0..4).map(Self::Scratch));
        let special = [Self::FloatControl, Self::Flags, Self::Top, Self::StackMode, Self::Reservation];
        registers.chain(small).chain(special)
    }
}

impl fmt::Display for StateElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::General(1) => f.write_str("ra"),
            Self::General(n) => write!(f, "general {n}"),
            Self::Vector(n) => write!(f, "vector {n}"),
            Self::Condition(n) => write!(f, "condition {n}"),
            Self::Scratch(n) => write!(f, "scr{n}"),
            Self::FloatControl => f.write_str("fcsr"),
            Self::Flags => f.write_str("flags"),
            Self::Top => f.write_str("top"),
            Self::StackMode => f.write_str("mode"),
            Self::Reservation => f.write_str("reservation"),
        }
    }
}

/// Memory whose initial bytes depend only on the seed, and which records loads and stores.
pub struct Memory {
    seed: u64,
    loaded: RefCell<Vec<(u64, usize)>>,
    stored: RefCell<Vec<(u64, usize, Vec<u8>)>>,
}

impl Memory {
    fn check(address: u64, bytes: usize, access: Access) -> Result<(), Fault> {
        let start = address.wrapping_sub(BASE);
        if start > (MEMORY_BYTES - bytes) as u64 {
            return Err(Fault { address, access, cause: FaultCause::Unmapped });
        }
        Ok(())
    }

    /// The initial value of a byte, a hash of the seed and the address.
    fn byte(&self, address: u64) -> u8 {
        let mut random = Random(self.seed ^ (address / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let _ = random.next();
        (random.next() >> (8 * (address % 8))) as u8
    }

    fn value<T: Scalar>(&self, address: u64) -> T {
        let bytes: Vec<u8> = (0..T::BYTES as u64).map(|n| self.byte(address.wrapping_add(n))).collect();
        let mut value = T::default();
        // SAFETY: `T` is a plain integer of `BYTES` bytes, and as many bytes were collected.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut value).cast(), T::BYTES) };
        value
    }

    fn note<T: Scalar>(&self, address: u64, value: T) {
        let mut bytes = vec![0; T::BYTES];
        // SAFETY: as in `value`.
        unsafe { std::ptr::copy_nonoverlapping((&raw const value).cast(), bytes.as_mut_ptr(), T::BYTES) };
        self.stored.borrow_mut().push((address, T::BYTES, bytes));
    }
}

impl Environment for Memory {
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        Self::check(address, T::BYTES, Access::Read)?;
        self.loaded.borrow_mut().push((address, T::BYTES));
        Ok(self.value(address))
    }

    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        Self::check(address, T::BYTES, Access::Write)?;
        self.note(address, value);
        Ok(())
    }

    fn compare_exchange<T: Scalar>(&self, address: u64, expected: T, new: T) -> Result<T, Fault> {
        if !address.is_multiple_of(T::BYTES as u64) {
            return Err(Fault { address, access: Access::Write, cause: FaultCause::Misaligned });
        }
        Self::check(address, T::BYTES, Access::Write)?;
        self.loaded.borrow_mut().push((address, T::BYTES));
        let current = self.value(address);
        if current == expected {
            self.note(address, new);
        }
        Ok(current)
    }

    fn fetch(&self, _: u64) -> Result<u32, Fault> {
        unreachable!("the test executes decoded instructions")
    }

    fn stable_counter(&self) -> u64 {
        self.seed
    }

    fn counter_id(&self) -> u64 {
        self.seed % 7 + 1
    }

    fn cpucfg(&self, index: u32) -> u32 {
        index.wrapping_mul(0x9e37_79b9)
    }

    fn permits_private(&self) -> bool {
        true
    }
}

/// The state before an instruction.
pub struct Before {
    pub instruction: Instruction,
    pub state: State,
    random: Random,
    seed: u64,
}

impl Before {
    /// Random operands in which no register occurs twice, and a random state in which the instruction's accesses are
    /// inside the memory.
    pub fn any(op: Op, seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ (op as u64) << 40 | 1);
        let word = op.row().matched | random.next() as u32 & !op.row().mask;
        let mut instruction = decode(word).expect("a row with any operands decodes");
        // Avoid r1, which calls write, and f0 to f7, which stack mode renames. Registers of the same file differ.
        let first = random.below(6) as u8;
        let apart = |index: u8| 8 + first + 6 * index;
        for operand in op.row().operands {
            let Operand::Register(kind, position) = *operand else { continue };
            let index = position / 5;
            let number = match kind {
                RegisterKind::Condition => (first + 2 * index) % 8,
                RegisterKind::Scratch => first % 4,
                RegisterKind::FloatControl => first % 4,
                _ => apart(index),
            };
            match position {
                0 => instruction.d = number,
                5 => instruction.j = number,
                10 => instruction.k = number,
                _ => instruction.a = number,
            }
        }
        let mut before = Self { instruction, state: State::default(), random, seed };
        before.state.pc = 0x4000;
        StateElement::all().for_each(|place| before.change(place));
        // Choose rd again: it may be the value in memory, which depends on the address in the other registers.
        before.change(StateElement::General(instruction.d));
        before
    }

    fn accesses_memory(&self) -> bool {
        matches!(self.instruction.op.row().class, Class::Load | Class::Store | Class::Atomic)
    }

    fn general(&mut self, number: u8) -> u64 {
        let Instruction { j, k, .. } = self.instruction;
        let row = self.instruction.op.row();
        let accesses_memory = self.accesses_memory();
        let random = &mut self.random;
        if accesses_memory {
            let is_aligned = row.class == Class::Atomic;
            let step = if is_aligned { 16 } else { 1 };
            let is_index = row.operands.last() == Some(&Operand::Register(RegisterKind::General, 10));
            match number {
                _ if number == j => return MIDDLE + random.below(64) * step,
                _ if number == k && row.extension == Extension::Bound => return MIDDLE + random.below(64),
                _ if number == k && is_index => return random.below(64),
                _ => {}
            }
        }
        match random.below(4) {
            0 => random.below(4),
            // The value in memory, so that compare-and-swap succeeds.
            1 => {
                let memory =
                    Memory { seed: self.seed, loaded: RefCell::default(), stored: RefCell::default() };
                memory.value(self.state.x[usize::from(j)])
            }
            _ => random.integer(),
        }
    }

    /// Gives `place` a new random value, which may equal the old one.
    pub fn change(&mut self, place: StateElement) {
        match place {
            StateElement::General(n) => self.state.x[usize::from(n)] = self.general(n),
            StateElement::Vector(n) => {
                let random = &mut self.random;
                let kind = random.below(7);
                self.state.v[usize::from(n)] = Vector([(); 4].map(|()| match kind {
                    0 => random.double(),
                    1 => random.single() << 32 | random.single() & 0xffff_ffff,
                    2 => random.below(64) * 0x0101_0101_0101_0101,
                    // Small numbers of either sign, which an immediate can equal.
                    3 => random.below(32).wrapping_sub(16),
                    4 => 0,
                    // A signaling NaN among numbers.
                    5 => random.pick(&[
                        0x7ff0_0000_0000_0001,
                        0x3ff0_0000_0000_0000,
                        0x7f80_0001_3f80_0000,
                        0x3f80_0000_7f80_0001,
                    ]),
                    _ => random.integer(),
                }));
            }
            StateElement::Condition(n) => self.state.fcc[usize::from(n)] = self.random.below(2) as u8,
            StateElement::Scratch(n) => self.state.lbt.scratch[usize::from(n)] = self.random.next(),
            StateElement::FloatControl => {
                let enables = if self.random.below(2) == 0 { 0 } else { self.random.next() as u32 & 0x1f };
                self.state.fcsr = Fcsr(self.random.next() as u32 & 0x1f1f_0300 | enables);
            }
            StateElement::Flags => self.state.lbt.eflags = self.random.next() as u32 & 0x8d5,
            StateElement::Top => self.state.lbt.top = self.random.below(8) as u8,
            StateElement::StackMode => self.state.lbt.stack_mode = self.random.below(2) == 0,
            StateElement::Reservation => self.change_reservation(),
        }
    }

    /// Often sets the address of the store-conditional and the value in memory.
    fn change_reservation(&mut self) {
        let Instruction { j, imm, op, .. } = self.instruction;
        let offset = if matches!(op, Op::ScW | Op::ScD | Op::LlW | Op::LlD) { imm } else { 0 };
        let address = self.state.x[usize::from(j)].wrapping_add_signed(i64::from(offset));
        let memory = Memory { seed: self.seed, loaded: RefCell::default(), stored: RefCell::default() };
        let (low, high): (u64, u64) = (memory.value(address), memory.value(address.wrapping_add(8)));
        let value = if op.mnemonic().ends_with(".w") { low & 0xffff_ffff } else { low };
        self.state.reservation = match self.random.below(4) {
            0 => Reservation::default(),
            1 => Reservation { address, value: self.random.next(), neighbour: high },
            _ => Reservation { address, value, neighbour: high },
        };
    }
}

/// The result of an instruction.
pub struct After {
    result: Result<(), Trap>,
    state: State,
    memory: Memory,
}

/// Executes the instruction.
pub fn run(before: &Before) -> After {
    let memory = Memory { seed: before.seed, loaded: RefCell::default(), stored: RefCell::default() };
    let mut state = before.state.clone();
    let result = execute(&mut state, &before.instruction, &memory);
    After { result, state, memory }
}

/// The number of lanes, and the bits of the lowest lane, that a vector register result of `op` defines. Bits above are
/// undefined after scalar floating-point and 128-bit instructions (volume 1, section 3.1.2; LSX).
fn width_of_result(op: Op) -> (usize, u64) {
    let row = op.row();
    match row.operands.first() {
        Some(Operand::Register(RegisterKind::Vector256, _)) => (4, u64::MAX),
        Some(Operand::Register(RegisterKind::Vector128, _)) => (2, u64::MAX),
        // The result is the upper word, and the manual preserves the lower one.
        _ if op == Op::Movgr2frhW => (1, u64::MAX),
        _ => {
            let mut parts = row.mnemonic.split('.').skip(1);
            match parts.next() {
                Some("s" | "w") => (1, 0xffff_ffff),
                _ => (1, u64::MAX),
            }
        }
    }
}

impl After {
    /// The places that changed.
    pub fn changed_since(&self, before: &Before) -> impl Iterator<Item = StateElement> {
        let op = before.instruction.op;
        StateElement::all()
            .filter(move |place| value(&self.state, op, *place) != value(&before.state, op, *place))
    }

    /// The number of bytes from the first to the last one loaded.
    pub fn loaded(&self) -> u64 {
        extent(self.memory.loaded.borrow().iter().copied())
    }

    /// The number of bytes from the first to the last one stored.
    pub fn stored(&self) -> u64 {
        extent(self.memory.stored.borrow().iter().map(|(address, bytes, _)| (*address, *bytes)))
    }

    /// Whether this run of `op` and `other` differ in anything other than `places`.
    pub fn differs_outside(&self, other: &Self, op: Op, places: &[StateElement]) -> bool {
        self.result != other.result
            || self.state.pc != other.state.pc
            || *self.memory.stored.borrow() != *other.memory.stored.borrow()
            || StateElement::all().any(|place| !places.contains(&place) && self.differs_at(other, op, place))
    }

    /// Whether this run of `op` and `other` both completed and differ in one of `places`.
    pub fn differs_in(&self, other: &Self, op: Op, places: &[StateElement]) -> bool {
        self.result.is_ok()
            && other.result.is_ok()
            && places.iter().any(|place| self.differs_at(other, op, *place))
    }

    fn differs_at(&self, other: &Self, op: Op, place: StateElement) -> bool {
        value(&self.state, op, place) != value(&other.state, op, place)
    }
}

fn value(state: &State, op: Op, place: StateElement) -> [u64; 4] {
    let scalar = |value: u64| [value, 0, 0, 0];
    match place {
        StateElement::General(n) => scalar(state.x[usize::from(n)]),
        StateElement::Vector(n) => {
            let (count, lowest) = width_of_result(op);
            let mut lanes = state.v[usize::from(n)].0;
            lanes[count..].fill(0);
            lanes[0] &= lowest;
            lanes
        }
        StateElement::Condition(n) => scalar(state.fcc[usize::from(n)].into()),
        StateElement::Scratch(n) => scalar(state.lbt.scratch[usize::from(n)]),
        StateElement::FloatControl => scalar(state.fcsr.0.into()),
        StateElement::Flags => scalar(state.lbt.eflags.into()),
        StateElement::Top => scalar(state.lbt.top.into()),
        StateElement::StackMode => scalar(state.lbt.stack_mode.into()),
        StateElement::Reservation => {
            [state.reservation.address, state.reservation.value, state.reservation.neighbour, 0]
        }
    }
}

fn extent(accesses: impl Iterator<Item = (u64, usize)>) -> u64 {
    let (first, end) = accesses.fold((u64::MAX, 0), |(first, end), (address, bytes)| {
        (first.min(address), end.max(address + bytes as u64))
    });
    end.saturating_sub(first)
}
