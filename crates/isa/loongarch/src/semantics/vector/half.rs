//! 128 bits of a vector register as lanes of one integer type, and the operands of an instruction. Source: the register
//! layout of the LSX and LASX extensions, in which lane 0 is the lowest.

use std::ops::{BitAnd, BitOr, BitXor, Not, Shl, Shr};

/// The operands for 128 bits of a result.
pub(super) struct Half {
    /// The old value of the register at bit 0.
    pub d: u128,
    /// The register at bit 5. A general register is zero-extended.
    pub j: u128,
    /// The register at bit 10 (a general register is zero-extended), or the immediate repeated in each lane.
    pub k: u128,
    /// The register at bit 15.
    pub a: u128,
    /// The first immediate.
    pub imm: i32,
}

/// Computes 128 bits of a result.
pub(super) type HalfFunction = fn(&Half) -> u128;

/// An integer type for lanes.
pub(super) trait Element:
    Copy
    + Ord
    + Default
    + Not<Output = Self>
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + BitXor<Output = Self>
    + Shl<u32, Output = Self>
    + Shr<u32, Output = Self>
{
    const BITS: u32;
    const LANES: usize = (128 / Self::BITS) as usize;
    const ONE: Self;
    const MIN: Self;
    const MAX: Self;
    /// An array of all lanes in 128 bits.
    type Lanes: AsRef<[Self]> + AsMut<[Self]>;
    /// Splits `half` into an array of lanes, which lets the compiler see that they are independent.
    fn split(half: u128) -> Self::Lanes;
    /// Joins lanes into 128 bits.
    fn join(lanes: Self::Lanes) -> u128;
    /// The integer with the low bits of `bits`.
    fn truncate(bits: u128) -> Self;
    /// The bits, zero-extended.
    fn bits(self) -> u128;
    fn wrapping_add(self, other: Self) -> Self;
    fn wrapping_sub(self, other: Self) -> Self;
    fn wrapping_mul(self, other: Self) -> Self;
    fn wrapping_div(self, other: Self) -> Self;
    fn wrapping_rem(self, other: Self) -> Self;
    fn saturating_add(self, other: Self) -> Self;
    fn saturating_sub(self, other: Self) -> Self;
    fn leading_zeros(self) -> u32;
    fn count_ones(self) -> u32;
    fn rotate_right(self, amount: u32) -> Self;

    /// Lane `index` of `half`.
    fn lane(half: u128, index: usize) -> Self {
        Self::split(half).as_ref()[index]
    }

    /// The low bits as a shift count below the width.
    fn as_amount(self) -> u32 {
        (self.bits() as u32) & (Self::BITS - 1)
    }

    /// All bits set if `condition`, else none.
    fn mask(condition: bool) -> Self {
        if condition { !Self::default() } else { Self::default() }
    }

    /// Shifts right and rounds half up. The shift is arithmetic if the type is signed.
    fn shift_right_rounded(self, amount: u32) -> Self {
        match amount {
            0 => self,
            _ => (self >> amount).wrapping_add(self >> (amount - 1) & Self::ONE),
        }
    }
}

/// An integer type that has a type of twice the width.
pub(super) trait Narrow: Element {
    type Wide: Element;
    /// The unsigned integer of the same width.
    type Unsigned: Narrow;
    /// Extends according to the signedness of the type.
    fn widen(self) -> Self::Wide;
    /// Zero-extends.
    fn widen_unsigned(self) -> Self::Wide;
}

macro_rules! element {
    ($($type:ident $unsigned:ident),*) => {$(
        impl Element for $type {
            const BITS: u32 = $type::BITS;
            const ONE: Self = 1;
            const MIN: Self = $type::MIN;
            const MAX: Self = $type::MAX;
            type Lanes = [$type; 128 / $type::BITS as usize];
            fn split(half: u128) -> Self::Lanes {
                let bytes = half.to_le_bytes();
                let (chunks, _) = bytes.as_chunks();
                std::array::from_fn(|i| $type::from_le_bytes(chunks[i]))
            }
            fn join(lanes: Self::Lanes) -> u128 {
                let mut bytes = [0; 16];
                let (chunks, _) = bytes.as_chunks_mut();
                chunks.iter_mut().zip(lanes).for_each(|(chunk, lane)| *chunk = lane.to_le_bytes());
                u128::from_le_bytes(bytes)
            }
            fn truncate(bits: u128) -> Self { bits as Self }
            fn bits(self) -> u128 { self as $unsigned as u128 }
            fn wrapping_add(self, other: Self) -> Self { $type::wrapping_add(self, other) }
            fn wrapping_sub(self, other: Self) -> Self { $type::wrapping_sub(self, other) }
            fn wrapping_mul(self, other: Self) -> Self { $type::wrapping_mul(self, other) }
            fn wrapping_div(self, other: Self) -> Self { $type::wrapping_div(self, other) }
            fn wrapping_rem(self, other: Self) -> Self { $type::wrapping_rem(self, other) }
            fn saturating_add(self, other: Self) -> Self { $type::saturating_add(self, other) }
            fn saturating_sub(self, other: Self) -> Self { $type::saturating_sub(self, other) }
            fn leading_zeros(self) -> u32 { $type::leading_zeros(self) }
            fn count_ones(self) -> u32 { $type::count_ones(self) }
            fn rotate_right(self, amount: u32) -> Self { $type::rotate_right(self, amount) }
        }
    )*};
}
element!(i8 u8, u8 u8, i16 u16, u16 u16, i32 u32, u32 u32, i64 u64, u64 u64, i128 u128, u128 u128);

macro_rules! narrow {
    ($($type:ident $unsigned:ident $wide:ident),*) => {$(
        impl Narrow for $type {
            type Wide = $wide;
            type Unsigned = $unsigned;
            fn widen(self) -> $wide { self as $wide }
            fn widen_unsigned(self) -> $wide { self as $unsigned as $wide }
        }
    )*};
}
narrow!(i8 u8 i16, u8 u8 u16, i16 u16 i32, u16 u16 u32, i32 u32 i64, u32 u32 u64, i64 u64 i128, u64 u64 u128);

/// The half whose lane `i` is `f(i)`.
pub(super) fn lanes<T: Element>(f: impl Fn(usize) -> T) -> u128 {
    let mut result = T::split(0);
    result.as_mut().iter_mut().enumerate().for_each(|(i, lane)| *lane = f(i));
    T::join(result)
}

/// Applies `f` to each lane of `x`.
pub(super) fn unary<T: Element>(x: u128, f: impl Fn(T) -> T) -> u128 {
    let mut result = T::split(x);
    result.as_mut().iter_mut().for_each(|lane| *lane = f(*lane));
    T::join(result)
}

/// Applies `f` to corresponding lanes of registers j and k.
pub(super) fn binary<T: Element>(half: &Half, f: impl Fn(T, T) -> T) -> u128 {
    let (mut result, k) = (T::split(half.j), T::split(half.k));
    result.as_mut().iter_mut().zip(k.as_ref()).for_each(|(lane, k)| *lane = f(*lane, *k));
    T::join(result)
}

/// Repeats `value` in each lane.
pub(super) fn splat<T: Element>(value: T) -> u128 {
    lanes(|_| value)
}

/// Defines the instructions of a family: names and functions.
///
/// The first word selects the suffixes: `plain` is `.b .h .w .d` (the sign does not matter), `signed` the same,
/// `unsigned` is `.bu .hu .wu .du`; `widen` and its variants name the wide result first, `narrow` and its variants the
/// narrow one. The first type parameters of the function are the narrow type (`widen`), or the wide type followed by
/// the narrow one (`narrow`).
macro_rules! family {
    (@one $stem:literal $suffix:literal $function:ident [$($type:ty),*] [$($more:expr),*]) => {
        (concat!($stem, $suffix), $function::<$($type,)* $({ $more }),*>)
    };
    (@ $stem:literal $function:ident [$($suffix:literal $types:tt)*] $more:tt) => {
        &[$(family!(@one $stem $suffix $function $types $more)),*]
    };
    (plain $stem:literal $function:ident $(, $more:expr)*) => {
        family!(@ $stem $function [".b" [u8] ".h" [u16] ".w" [u32] ".d" [u64]] [$($more),*])
    };
    (signed $stem:literal $function:ident $(, $more:expr)*) => {
        family!(@ $stem $function [".b" [i8] ".h" [i16] ".w" [i32] ".d" [i64]] [$($more),*])
    };
    (unsigned $stem:literal $function:ident $(, $more:expr)*) => {
        family!(@ $stem $function [".bu" [u8] ".hu" [u16] ".wu" [u32] ".du" [u64]] [$($more),*])
    };
    (widen $stem:literal $function:ident $(, $more:expr)*) => {
        family!(@ $stem $function [".h.b" [i8] ".w.h" [i16] ".d.w" [i32] ".q.d" [i64]] [$($more),*])
    };
    (widen_unsigned $stem:literal $function:ident $(, $more:expr)*) => {
        family!(@ $stem $function [".h.bu" [u8] ".w.hu" [u16] ".d.wu" [u32] ".q.du" [u64]] [$($more),*])
    };
    (widen_to_unsigned $stem:literal $function:ident $(, $more:expr)*) => {
        family!(@ $stem $function [".hu.bu" [u8] ".wu.hu" [u16] ".du.wu" [u32] ".qu.du" [u64]] [$($more),*])
    };
    (widen_mixed $stem:literal $function:ident $(, $more:expr)*) => {
        family!(@ $stem $function [".h.bu.b" [i8] ".w.hu.h" [i16] ".d.wu.w" [i32] ".q.du.d" [i64]] [$($more),*])
    };
    // Narrowing shifts: the signedness of the wide type selects the shift, that of the narrow type the saturation.
    (narrow_logical $stem:literal $function:ident $(, $more:expr)*) => {
        family!(@ $stem $function [".b.h" [u16, i8] ".h.w" [u32, i16] ".w.d" [u64, i32]] [$($more),*])
    };
    (narrow_arithmetic $stem:literal $function:ident $(, $more:expr)*) => {
        family!(@ $stem $function [".b.h" [i16, i8] ".h.w" [i32, i16] ".w.d" [i64, i32]] [$($more),*])
    };
    (narrow_logical_unsigned $stem:literal $function:ident $(, $more:expr)*) => {
        family!(@ $stem $function [".bu.h" [u16, u8] ".hu.w" [u32, u16] ".wu.d" [u64, u32]] [$($more),*])
    };
    (narrow_arithmetic_unsigned $stem:literal $function:ident $(, $more:expr)*) => {
        family!(@ $stem $function [".bu.h" [i16, u8] ".hu.w" [i32, u16] ".wu.d" [i64, u32]] [$($more),*])
    };
    ($stem:literal $function:ident $(::<$($more:ty),*>)?) => {
        &[($stem, $function $(::<$($more),*>)?)]
    };
}
pub(super) use family;

/// The families of a file as `(name without the x of LASX, function)`.
pub(super) type Families = &'static [&'static [(&'static str, HalfFunction)]];
