//! Compares each instruction of the binary-translation extension with an independently written reference, one
//! instruction on one state at a time. Each module names its source.

mod arm;
#[path = "../checked/mod.rs"]
mod checked;
#[cfg(target_arch = "x86_64")]
mod host;
mod integer;
mod memory;
mod state;
mod x86;
mod x87;

use longma_random::SplitMix64;
use std::{cell::RefCell, collections::BTreeSet};

use longma_loongarch::{
    Access, Environment, Extension, Fault, FaultCause, Instruction, Op, Scalar, State, Trap,
};

/// The start of the test memory.
const BASE: u64 = 0x1000;

/// A few bytes of memory. All other addresses are unmapped.
struct Memory(RefCell<Vec<u8>>);

impl Memory {
    fn new(bytes: &[u8]) -> Self {
        Self(RefCell::new(bytes.to_vec()))
    }

    fn fault(address: u64, access: Access) -> Fault {
        Fault { address, access, cause: FaultCause::Unmapped }
    }
}

impl Environment for Memory {
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        assert_eq!(T::BYTES, 1, "unaligned instructions access single bytes");
        let bytes = self.0.borrow();
        let offset = address.wrapping_sub(BASE) as usize;
        let byte = *bytes.get(offset).ok_or(Self::fault(address, Access::Read))?;
        let boxed: Box<dyn std::any::Any> = Box::new(byte);
        Ok(*boxed.downcast::<T>().expect("one byte"))
    }

    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        let boxed: Box<dyn std::any::Any> = Box::new(value);
        let offset = address.wrapping_sub(BASE) as usize;
        let mut bytes = self.0.borrow_mut();
        let byte = bytes.get_mut(offset).ok_or(Self::fault(address, Access::Write))?;
        *byte = *boxed.downcast::<u8>().expect("one byte");
        Ok(())
    }

    fn compare_exchange<T: Scalar>(&self, address: u64, _: T, _: T) -> Result<T, Fault> {
        Err(Self::fault(address, Access::Write))
    }

    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        Err(Self::fault(address, Access::Execute))
    }

    fn stable_counter(&self) -> u64 {
        0
    }

    fn cpucfg(&self, _: u32) -> u32 {
        0
    }
}

/// The instruction with this mnemonic.
fn op(mnemonic: &str) -> Op {
    Op::all().find(|op| op.mnemonic() == mnemonic).unwrap_or_else(|| panic!("no instruction {mnemonic}"))
}

/// `state` after `instruction`, without memory.
fn after(state: &State, instruction: &Instruction) -> Result<State, Trap> {
    let mut state = state.clone();
    longma_loongarch::semantics::execute(&mut state, instruction, &Memory::new(&[]))?;
    Ok(state)
}

/// The flags after `instruction` with r4 = a and r5 = b. Panics if anything other than the flags and the program
/// counter has changed.
fn flags_after(instruction: &Instruction, flags: u32, a: u64, b: u64) -> u32 {
    let mut before = State::default();
    (before.x[4], before.x[5], before.lbt.eflags, before.pc) = (a, b, flags, 0x100);
    let after = after(&before, instruction).expect("flag instructions do not trap");
    (before.lbt.eflags, before.pc) = (after.lbt.eflags, 0x104);
    assert_eq!(before, after, "{instruction} writes flags only");
    after.lbt.eflags
}

/// Values at which carries, signs, widths and counts change.
const EDGES: [u64; 34] = [
    0,
    1,
    2,
    3,
    7,
    8,
    9,
    15,
    16,
    17,
    18,
    31,
    32,
    33,
    34,
    63,
    64,
    65,
    0x7f,
    0x80,
    0x81,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// All pairs of edge values and `count` random pairs, half of them with a small second number (a likely count).
fn operands(random: &mut SplitMix64, count: usize) -> Vec<(u64, u64)> {
    let mut pairs: Vec<_> = EDGES.iter().flat_map(|&a| EDGES.iter().map(move |&b| (a, b))).collect();
    for i in 0..count {
        let b = random.next_u64();
        pairs.push((random.next_u64(), if i % 2 == 0 { b } else { b & 0x7f }));
    }
    pairs
}

/// All flags clear, all set, or random.
fn any_flags(random: &mut SplitMix64) -> u32 {
    match random.next_u64() % 4 {
        0 => 0,
        1 => 0x8d5,
        _ => random.next_u64() as u32 & 0x8d5,
    }
}

#[test]
fn every_lbt_instruction_is_compared_with_a_reference() {
    let modules =
        [x86::tested(), arm::tested(), integer::tested(), memory::tested(), state::tested(), x87::tested()];
    let tested: BTreeSet<Op> = modules.concat().into_iter().collect();
    let all = Op::all().filter(|op| op.row().extension == Extension::Lbt);
    assert_eq!(tested, all.collect());
    checked::assert_listed("formula-lbt", tested);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn flags_and_80_bit_conversions_are_compared_with_the_host() {
    checked::assert_listed("host-lbt", x86::tested().into_iter().chain(x87::tested()));
}
