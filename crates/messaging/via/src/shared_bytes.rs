//! Copies to and from memory that others may change meanwhile: registered memory, and what is shared with a peer.
//! Not an order between threads: whoever wants to see whole what another wrote needs a completion, or an atomic, before.
//! Source: memmove(3); the standard library would have it as the byte-wise atomic copy that Rust RFC 3301 proposes.
//!
//! A program may store into registered memory from two threads, while the NIC's own thread stores there too and a peer by its
//! mapping. Plain Rust accesses that race are undefined, whatever is in the bytes. So a copy is either one atomic word or a call of
//! the C library's `memmove` that the compiler cannot see through: then it is the machine's loads and stores that race, each of a
//! byte at least, and all that can come of it is a mixture of old and new bytes.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

type Move = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

/// Read anew for every call, so that no compiler takes the call for a copy of its own that it may split, merge or invent.
#[cfg(not(miri))]
static MOVE: Move = libc::memmove;

/// Miri calls no `memmove` of the C library; what it looks for is whether the places are what `copy` asks for.
#[cfg(miri)]
static MOVE: Move = {
    unsafe extern "C" fn stand_in(to: *mut c_void, from: *const c_void, length: usize) -> *mut c_void {
        // SAFETY: as `copy`'s caller promises.
        unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), length) };
        to
    }
    stand_in
};

#[inline]
fn is_word(address: *const u8) -> bool {
    address.addr().is_multiple_of(size_of::<u64>())
}

/// Copies `length` bytes. The two places may overlap, and either may change at any moment.
///
/// # Safety
/// Both places must be mapped for `length` bytes, `from` readable and `to` writable, and no reference may promise that the bytes
/// stay as they are; `copy_from_own` is for those of which one does.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    if length == size_of::<u64>() && is_word(from) && is_word(to) {
        // SAFETY: eight aligned bytes each, as the caller promises.
        unsafe { store_word(to, load_word(from)) };
        return;
    }
    // SAFETY: a static of our own, and then what the caller promises, which is all that memmove asks.
    unsafe { (&raw const MOVE).read_volatile()(to.cast(), from.cast(), length) };
}

/// Copies bytes that nobody else changes. The place may change at any moment.
///
/// # Safety
/// `to` must be mapped and writable for as many bytes, and no reference may promise that they stay as they are.
#[inline]
pub(crate) unsafe fn copy_from_own(from: &[u8], to: *mut u8) {
    if let Ok(word) = <[u8; size_of::<u64>()]>::try_from(from) {
        // SAFETY: as the caller promises.
        return unsafe { store_word(to, u64::from_ne_bytes(word)) };
    }
    // SAFETY: a slice's bytes are readable, and not eight, so that they are not looked at as an atomic, which may not be made of what is
    // borrowed for reading; the rest is the caller's promise.
    unsafe { copy(from.as_ptr(), to, from.len()) };
}

/// Eight bytes; at once if they are aligned.
///
/// # Safety
/// As for `copy`.
#[inline]
pub(crate) unsafe fn load_word(from: *const u8) -> u64 {
    if is_word(from) {
        // SAFETY: aligned, and readable as the caller promises; a load alone does not write.
        return unsafe { AtomicU64::from_ptr(from.cast_mut().cast()) }.load(Ordering::Relaxed);
    }
    // SAFETY: as the caller promises.
    unsafe { load_apart(from) }
}

#[cold]
#[inline(never)]
unsafe fn load_apart(from: *const u8) -> u64 {
    let mut bytes = [0; size_of::<u64>()];
    // SAFETY: the caller's eight bytes into our own.
    unsafe { copy(from, bytes.as_mut_ptr(), bytes.len()) };
    u64::from_ne_bytes(bytes)
}

/// Stores eight bytes; at once if their place is aligned.
///
/// # Safety
/// As for `copy`.
#[inline]
pub(crate) unsafe fn store_word(to: *mut u8, word: u64) {
    if is_word(to) {
        // SAFETY: aligned, and writable as the caller promises.
        return unsafe { AtomicU64::from_ptr(to.cast()) }.store(word, Ordering::Relaxed);
    }
    // SAFETY: as the caller promises.
    unsafe { store_apart(to, word) };
}

#[cold]
#[inline(never)]
unsafe fn store_apart(to: *mut u8, word: u64) {
    let bytes = word.to_ne_bytes();
    // SAFETY: our own eight bytes into the caller's.
    unsafe { copy(bytes.as_ptr(), to, bytes.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_arrive_as_they_were_at_any_two_places_even_overlapping(
            first: u8, from in 0usize..100, to in 0usize..100, length in 0usize..100,
        ) {
            // Each byte another one; a random one for each takes Miri forty seconds.
            let bytes: Vec<u8> = (0..200).map(|place: u8| first.wrapping_add(place)).collect();
            let mut expected = bytes.clone();
            expected.copy_within(from..from + length, to);
            let mut copied = bytes;
            let base = copied.as_mut_ptr();
            // SAFETY: both places lie inside the vector, which nobody else uses.
            unsafe { copy(base.add(from), base.add(to), length) };
            prop_assert_eq!(copied, expected);
        }

        #[test]
        fn bytes_that_are_borrowed_arrive_wherever_they_go(
            bytes in proptest::collection::vec(any::<u8>(), 0..40), place in 0usize..24,
        ) {
            let mut room = [0u8; 64];
            // SAFETY: inside the array, which nobody else uses.
            unsafe { copy_from_own(&bytes, room.as_mut_ptr().add(place)) };
            prop_assert_eq!(&room[place..place + bytes.len()], &bytes[..]);
        }

        #[test]
        fn a_word_is_read_back_as_it_was_stored_wherever_it_lies(word: u64, place in 0usize..24) {
            let mut bytes = [0u8; 32];
            let base = bytes.as_mut_ptr();
            // SAFETY: inside the array, which nobody else uses.
            let read = unsafe {
                store_word(base.add(place), word);
                load_word(base.add(place))
            };
            prop_assert_eq!(read, word);
            prop_assert_eq!(&bytes[place..place + 8], &word.to_ne_bytes());
        }
    }
}
