//! Atomic operations that peers request on exported memory.
//!
//! Source: fi_atomic(3), for the operations and the types on which each is defined.

use super::buffer::Buffer;
use super::error::Failure;

/// An atomic operation. The variants have libfabric's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Min,
    Max,
    Sum,
    Product,
    LogicalOr,
    LogicalAnd,
    BitOr,
    BitAnd,
    LogicalXor,
    BitXor,
    Read,
    Write,
    SwapIfEqual,
    SwapIfNotEqual,
    SwapIfLessEqual,
    SwapIfLess,
    SwapIfGreaterEqual,
    SwapIfGreater,
    MaskedSwap,
}

const OPERATIONS: [Operation; 19] = [
    Operation::Min,
    Operation::Max,
    Operation::Sum,
    Operation::Product,
    Operation::LogicalOr,
    Operation::LogicalAnd,
    Operation::BitOr,
    Operation::BitAnd,
    Operation::LogicalXor,
    Operation::BitXor,
    Operation::Read,
    Operation::Write,
    Operation::SwapIfEqual,
    Operation::SwapIfNotEqual,
    Operation::SwapIfLessEqual,
    Operation::SwapIfLess,
    Operation::SwapIfGreaterEqual,
    Operation::SwapIfGreater,
    Operation::MaskedSwap,
];

impl Operation {
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        OPERATIONS.get(number as usize).copied()
    }

    /// Whether the operation has a second operand.
    pub(crate) fn compares(self) -> bool {
        self as usize >= Self::SwapIfEqual as usize
    }

    fn needs_integers(self) -> bool {
        matches!(self, Self::BitOr | Self::BitAnd | Self::BitXor | Self::MaskedSwap)
    }
}

/// The size of a value of one of libfabric's types, bytes. `None` if atomics on it are not supported: complex numbers
/// and types longer than 8 bytes.
pub(crate) fn size_of_type(datatype: u32) -> Option<usize> {
    [1, 1, 2, 2, 4, 4, 8, 8, 4, 8].get(datatype as usize).copied()
}

/// Whether an operation is defined on a type.
pub(crate) fn is_supported(operation: u32, datatype: u32) -> bool {
    let Some(operation) = Operation::from_number(operation) else { return false };
    size_of_type(datatype).is_some() && !(operation.needs_integers() && datatype >= 8)
}

/// A value of a type on which operations are defined.
trait Value: Copy + PartialOrd {
    const BYTES: usize;
    fn load(bytes: &[u8]) -> Self;
    fn store(self, bytes: &mut [u8]);
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn truth(self) -> bool;
    fn from_truth(truth: bool) -> Self;
    /// Applies a bitwise operation. Floating-point values have no bitwise operations and are unchanged.
    fn bits(self, other: Self, act: impl Fn(u64, u64) -> u64) -> Self;
}

macro_rules! integer_values {
    ($($type:ty)*) => { $(
        impl Value for $type {
            const BYTES: usize = size_of::<$type>();
            fn load(bytes: &[u8]) -> Self {
                <$type>::from_ne_bytes(bytes.try_into().expect("the length of a value"))
            }
            fn store(self, bytes: &mut [u8]) { bytes.copy_from_slice(&self.to_ne_bytes()); }
            fn sum(self, other: Self) -> Self { self.wrapping_add(other) }
            fn product(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn truth(self) -> bool { self != 0 }
            fn from_truth(truth: bool) -> Self { truth.into() }
            fn bits(self, other: Self, act: impl Fn(u64, u64) -> u64) -> Self {
                act(self as u64, other as u64) as $type
            }
        }
    )* };
}

macro_rules! float_values {
    ($($type:ty)*) => { $(
        impl Value for $type {
            const BYTES: usize = size_of::<$type>();
            fn load(bytes: &[u8]) -> Self {
                <$type>::from_ne_bytes(bytes.try_into().expect("the length of a value"))
            }
            fn store(self, bytes: &mut [u8]) { bytes.copy_from_slice(&self.to_ne_bytes()); }
            fn sum(self, other: Self) -> Self { self + other }
            fn product(self, other: Self) -> Self { self * other }
            fn truth(self) -> bool { self != 0.0 }
            fn from_truth(truth: bool) -> Self { if truth { 1.0 } else { 0.0 } }
            fn bits(self, _: Self, _: impl Fn(u64, u64) -> u64) -> Self { self }
        }
    )* };
}

integer_values!(i8 u8 i16 u16 i32 u32 i64 u64);
float_values!(f32 f64);

/// The value that the operation stores.
fn combine<T: Value>(operation: Operation, old: T, operand: T, compare: T) -> T {
    let swap_if = |condition: bool| if condition { operand } else { old };
    match operation {
        Operation::Min => swap_if(operand < old),
        Operation::Max => swap_if(operand > old),
        Operation::Sum => old.sum(operand),
        Operation::Product => old.product(operand),
        Operation::LogicalOr => T::from_truth(old.truth() || operand.truth()),
        Operation::LogicalAnd => T::from_truth(old.truth() && operand.truth()),
        Operation::LogicalXor => T::from_truth(old.truth() != operand.truth()),
        Operation::BitOr => old.bits(operand, |a, b| a | b),
        Operation::BitAnd => old.bits(operand, |a, b| a & b),
        Operation::BitXor => old.bits(operand, |a, b| a ^ b),
        Operation::Read => old,
        Operation::Write => operand,
        Operation::SwapIfEqual => swap_if(compare == old),
        Operation::SwapIfNotEqual => swap_if(compare != old),
        Operation::SwapIfLessEqual => swap_if(compare <= old),
        Operation::SwapIfLess => swap_if(compare < old),
        Operation::SwapIfGreaterEqual => swap_if(compare >= old),
        Operation::SwapIfGreater => swap_if(compare > old),
        // Where `compare` has ones, the bits of `operand` replace those of the old value.
        Operation::MaskedSwap => {
            let kept = old.bits(compare, |old, mask| old & !mask);
            kept.bits(operand.bits(compare, |new, mask| new & mask), |a, b| a | b)
        }
    }
}

fn apply_to<T: Value>(operation: Operation, values: &mut [u8], operands: &[u8], compares: &[u8]) {
    for (place, value) in values.chunks_exact_mut(T::BYTES).enumerate() {
        let at = place * T::BYTES..(place + 1) * T::BYTES;
        let old = T::load(value);
        let operand = operands.get(at.clone()).map_or(old, T::load);
        let compare = compares.get(at).map_or(old, T::load);
        combine(operation, old, operand, compare).store(value);
    }
}

/// Applies an operation to all values of `memory`, and returns the previous ones. `operands` has the operands and then
/// the values to compare with. The caller excludes other atomic operations.
///
/// # Errors
/// If the operation is not defined on the type, or the lengths do not agree.
pub(crate) fn apply(
    operation: u32,
    datatype: u32,
    memory: &Buffer,
    operands: &[u8],
) -> Result<Vec<u8>, Failure> {
    let length = memory.len();
    if !is_supported(operation, datatype) {
        return Err(Failure::PROTOCOL);
    }
    let operation = Operation::from_number(operation).ok_or(Failure::PROTOCOL)?;
    // A read has as many operands as values, although it does not use them.
    if operands.len() != if operation.compares() { 2 * length } else { length } {
        return Err(Failure::PROTOCOL);
    }
    let mut old = vec![0; length];
    memory.read(&mut old);
    let mut new = old.clone();
    let (operands, compares) = operands.split_at(operands.len().min(length));
    let act = match datatype {
        0 => apply_to::<i8>,
        1 => apply_to::<u8>,
        2 => apply_to::<i16>,
        3 => apply_to::<u16>,
        4 => apply_to::<i32>,
        5 => apply_to::<u32>,
        6 => apply_to::<i64>,
        7 => apply_to::<u64>,
        8 => apply_to::<f32>,
        _ => apply_to::<f64>,
    };
    act(operation, &mut new, operands, compares);
    if operation != Operation::Read {
        memory.write(&new);
    }
    Ok(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<const N: usize>(operation: Operation, datatype: u32, old: [u8; N], operands: &[u8]) -> [u8; N] {
        let mut memory = old;
        // SAFETY: the memory outlives the call.
        let buffer = unsafe { Buffer::new(memory.as_mut_ptr(), N) };
        let previous = apply(operation as u32, datatype, &buffer, operands).unwrap();
        assert_eq!(previous, old);
        memory
    }

    #[test]
    fn operations_are_those_of_the_manual_page() {
        let i32s = |operation, old: i32, operand: i32| {
            i32::from_ne_bytes(run(operation, 4, old.to_ne_bytes(), &operand.to_ne_bytes()))
        };
        assert_eq!(i32s(Operation::Min, -3, 2), -3);
        assert_eq!(i32s(Operation::Max, -3, 2), 2);
        assert_eq!(i32s(Operation::Sum, i32::MAX, 1), i32::MIN);
        assert_eq!(i32s(Operation::Product, 6, -7), -42);
        assert_eq!(i32s(Operation::LogicalXor, 5, 9), 0);
        assert_eq!(i32s(Operation::BitXor, 5, 9), 12);
        assert_eq!(i32s(Operation::Write, 5, 9), 9);
        let swap = |operation, old: u64, new: u64, compare: u64| {
            let operands = [new.to_ne_bytes(), compare.to_ne_bytes()].concat();
            u64::from_ne_bytes(run(operation, 7, old.to_ne_bytes(), &operands))
        };
        assert_eq!(swap(Operation::SwapIfEqual, 5, 9, 5), 9);
        assert_eq!(swap(Operation::SwapIfEqual, 5, 9, 6), 5);
        assert_eq!(swap(Operation::SwapIfLess, 5, 9, 4), 9);
        assert_eq!(swap(Operation::MaskedSwap, 0xff, 0x1234, 0xf0f0), 0x103f);
        let halves = run(Operation::Sum, 8, 1.5f32.to_ne_bytes(), &2f32.to_ne_bytes());
        assert_eq!(f32::from_ne_bytes(halves), 3.5);
    }

    #[test]
    fn wrong_types_and_lengths_are_refused() {
        let mut memory = [0u8; 8];
        // SAFETY: the memory outlives the calls.
        let buffer = unsafe { Buffer::new(memory.as_mut_ptr(), 8) };
        let operands = [1u8; 64];
        for operation in 0..25 {
            for datatype in 0..20 {
                for length in [0, 1, 7, 8, 15, 16, 17] {
                    let outcome = apply(operation, datatype, &buffer, &operands[..length]);
                    assert!(outcome.is_err() || is_supported(operation, datatype));
                }
            }
        }
    }
}
