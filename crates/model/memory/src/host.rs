//! SIMD and prefetch helpers for the host that runs the simulation. They fall back to portable code on hosts other than
//! x86-64.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2 (PREFETCHT0, PCMPEQW, PCMPEQB,
//! PMOVMSKB).

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m128i, _MM_HINT_T0, _mm_cmpeq_epi8, _mm_cmpeq_epi16, _mm_loadu_si128, _mm_movemask_epi8,
    _mm_packs_epi16, _mm_prefetch, _mm_set1_epi8, _mm_set1_epi16, _mm_setzero_si128,
};

/// Prefetches the host cache line of `value`. Has no other effect.
#[inline]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch takes any address and cannot fault; this one comes from a reference. SSE is part of x86-64.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Compares every element of `numbers` with `wanted`; bit n of the result is set if element n is equal.
#[inline]
pub(crate) fn equal(numbers: &[u16; 8], wanted: u16) -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the unaligned load reads exactly the 16 bytes of the array. SSE2 is part of x86-64.
    unsafe {
        let numbers = _mm_loadu_si128(std::ptr::from_ref(numbers).cast::<__m128i>());
        let same = _mm_cmpeq_epi16(numbers, _mm_set1_epi16(wanted as i16));
        _mm_movemask_epi8(_mm_packs_epi16(same, _mm_setzero_si128())) as u64
    }
    #[cfg(not(target_arch = "x86_64"))]
    (0..).zip(numbers).fold(0, |mask, (bit, number)| mask | u64::from(*number == wanted) << bit)
}

/// Compares every element of `bytes` with `wanted`; bit n of the result is set if element n is equal.
#[inline]
pub(crate) fn equal_bytes(bytes: &[u8; 16], wanted: u8) -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the unaligned load reads exactly the 16 bytes of the array. SSE2 is part of x86-64.
    unsafe {
        let bytes = _mm_loadu_si128(std::ptr::from_ref(bytes).cast::<__m128i>());
        _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(wanted as i8))) as u64
    }
    #[cfg(not(target_arch = "x86_64"))]
    (0..).zip(bytes).fold(0, |mask, (bit, byte)| mask | u64::from(*byte == wanted) << bit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_elements_have_their_bit_set() {
        assert_eq!(equal(&[7, 0, 7, 0xffff, 8, 7, 0x0700, 7], 7), 0b1010_0101);
        assert_eq!(equal(&[0xffff; 8], 0xffff), 0xff);
        assert_eq!(equal(&[0x8000, 0, 1, 0, 0, 0, 0, 0x8000], 0x8000), 0b1000_0001);
        let bytes = std::array::from_fn(|n| if n % 5 == 0 { 0x80 } else { n as u8 });
        assert_eq!(equal_bytes(&bytes, 0x80), 0b1000_0100_0010_0001);
        assert_eq!(equal_bytes(&bytes, 14), 1 << 14);
    }
}
