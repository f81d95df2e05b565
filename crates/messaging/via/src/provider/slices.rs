//! Bytes in and out of the checked memory that descriptors name.
//! Not the check: whoever made the slices has done it.

use super::Slice;
use crate::shared_bytes::{copy, copy_from_own};

/// Appends the slices' bytes to `into`.
pub(crate) fn gather(slices: &[Slice], into: &mut Vec<u8>) {
    for slice in slices {
        let length = slice.length as usize;
        into.reserve(length);
        // SAFETY: the slice lies in registered memory, which its registration keeps mapped and readable; the program promised
        // not to move it while it is posted. The vector has room, and does not overlap registered memory.
        unsafe {
            let end = into.as_mut_ptr().add(into.len());
            copy(slice.address.cast_const(), end, length);
            into.set_len(into.len() + length);
        }
    }
}

/// Stores `bytes` into the slices, from their beginning; what does not fit is dropped.
pub(crate) fn scatter(slices: &[Slice], bytes: &[u8]) {
    let mut rest = bytes;
    for slice in slices {
        let (now, later) = rest.split_at(rest.len().min(slice.length as usize));
        // SAFETY: the slice lies in registered memory, which its registration keeps mapped and writable; no more than its
        // length is stored, and `bytes` is not registered memory.
        unsafe { copy_from_own(now, slice.address) };
        rest = later;
    }
}
