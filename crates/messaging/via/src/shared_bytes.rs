//! Copies to and from memory that others may change concurrently: registered memory, and memory shared with a peer. The
//! copies imply no ordering between threads; that requires a completion or an atomic.
//!
//! Source: memmove(3). Rust RFC 3301 proposes such copies as byte-wise atomics.
//!
//! A program may store to registered memory from two threads while the NIC's thread and a peer also store there. Racing
//! plain Rust accesses would be undefined behaviour for any values. So a copy is either a single atomic word or a
//! call to the C library's `memmove` that the compiler cannot see through. Then only machine loads and stores race,
//! each of at least one byte, and the result is a mix of old and new bytes.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

type Move = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

/// Loaded with a volatile read for every call, so that the compiler cannot replace the call by accesses that it may
/// split, merge or invent.
#[cfg(not(miri))]
static MOVE: Move = libc::memmove;

/// Miri cannot call `memmove` of the C library. It still checks the requirements of `copy`.
#[cfg(miri)]
static MOVE: Move = {
    unsafe extern "C" fn stand_in(to: *mut c_void, from: *const c_void, length: usize) -> *mut c_void {
        // SAFETY: guaranteed by the caller of `copy`.
        unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), length) };
        to
    }
    stand_in
};

#[inline]
fn is_word(address: *const u8) -> bool {
    address.addr().is_multiple_of(size_of::<u64>())
}

/// Copies `length` bytes. The ranges may overlap, and either may be changed concurrently.
///
/// # Safety
/// Both ranges must be mapped for `length` bytes, `from` readable and `to` writable, and no reference may require their
/// contents to stay unchanged. For a source behind a reference use `copy_from_own`.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    if length == size_of::<u64>() && is_word(from) && is_word(to) {
        // SAFETY: both are eight aligned bytes, valid as guaranteed by the caller.
        unsafe { store_word(to, load_word(from)) };
        return;
    }
    // SAFETY: `MOVE` is a static of this module, and the caller guarantees the requirements of memmove.
    unsafe { (&raw const MOVE).read_volatile()(to.cast(), from.cast(), length) };
}

/// Copies bytes that do not change to memory that may be changed concurrently.
///
/// # Safety
/// `to` must be mapped and writable for the length of `from`, and no reference may require its contents to stay
/// unchanged.
#[inline]
pub(crate) unsafe fn copy_from_own(from: &[u8], to: *mut u8) {
    if let Ok(word) = <[u8; size_of::<u64>()]>::try_from(from) {
        // SAFETY: guaranteed by the caller.
        return unsafe { store_word(to, u64::from_ne_bytes(word)) };
    }
    // SAFETY: the bytes of a slice are readable. Their length is not eight, so `copy` does not create an atomic from
    // memory behind a shared reference. The caller guarantees the rest.
    unsafe { copy(from.as_ptr(), to, from.len()) };
}

/// Loads eight bytes; atomic if they are aligned.
///
/// # Safety
/// As for `copy`.
#[inline]
pub(crate) unsafe fn load_word(from: *const u8) -> u64 {
    if is_word(from) {
        // SAFETY: aligned, and readable as guaranteed by the caller; a load does not write.
        return unsafe { AtomicU64::from_ptr(from.cast_mut().cast()) }.load(Ordering::Relaxed);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { load_apart(from) }
}

#[cold]
#[inline(never)]
unsafe fn load_apart(from: *const u8) -> u64 {
    let mut bytes = [0; size_of::<u64>()];
    // SAFETY: the caller guarantees eight readable bytes; the destination is local.
    unsafe { copy(from, bytes.as_mut_ptr(), bytes.len()) };
    u64::from_ne_bytes(bytes)
}

/// Stores eight bytes; atomic if their address is aligned.
///
/// # Safety
/// As for `copy`.
#[inline]
pub(crate) unsafe fn store_word(to: *mut u8, word: u64) {
    if is_word(to) {
        // SAFETY: aligned, and writable as guaranteed by the caller.
        return unsafe { AtomicU64::from_ptr(to.cast()) }.store(word, Ordering::Relaxed);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { store_apart(to, word) };
}

#[cold]
#[inline(never)]
unsafe fn store_apart(to: *mut u8, word: u64) {
    let bytes = word.to_ne_bytes();
    // SAFETY: the source is local; the caller guarantees eight writable bytes.
    unsafe { copy(bytes.as_ptr(), to, bytes.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_are_copied_between_any_addresses_even_overlapping(
            first: u8, from in 0usize..100, to in 0usize..100, length in 0usize..100,
        ) {
            // All bytes differ. Generating each of them randomly takes Miri forty seconds.
            let bytes: Vec<u8> = (0..200).map(|place: u8| first.wrapping_add(place)).collect();
            let mut expected = bytes.clone();
            expected.copy_within(from..from + length, to);
            let mut copied = bytes;
            let base = copied.as_mut_ptr();
            // SAFETY: both ranges are inside the vector, which is not used otherwise.
            unsafe { copy(base.add(from), base.add(to), length) };
            prop_assert_eq!(copied, expected);
        }

        #[test]
        fn borrowed_bytes_arrive_at_every_destination(
            bytes in proptest::collection::vec(any::<u8>(), 0..40), place in 0usize..24,
        ) {
            let mut buffer = [0u8; 64];
            // SAFETY: the range is inside the array, which is not used otherwise.
            unsafe { copy_from_own(&bytes, buffer.as_mut_ptr().add(place)) };
            prop_assert_eq!(&buffer[place..place + bytes.len()], &bytes[..]);
        }

        #[test]
        fn a_word_round_trips_at_every_offset(word: u64, place in 0usize..24) {
            let mut bytes = [0u8; 32];
            let base = bytes.as_mut_ptr();
            // SAFETY: the range is inside the array, which is not used otherwise.
            let read = unsafe {
                store_word(base.add(place), word);
                load_word(base.add(place))
            };
            prop_assert_eq!(read, word);
            prop_assert_eq!(&bytes[place..place + 8], &word.to_ne_bytes());
        }
    }
}
