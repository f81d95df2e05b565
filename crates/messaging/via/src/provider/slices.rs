//! Copies between buffers and the validated memory of descriptors.

use super::Slice;
use crate::shared_bytes::{copy, copy_from_own};

/// Appends the bytes of the slices to `into`.
pub(crate) fn gather(slices: &[Slice], into: &mut Vec<u8>) {
    for slice in slices {
        let length = slice.length as usize;
        into.reserve(length);
        // SAFETY: the slice is in registered memory, which is mapped and readable as long as it is registered. The
        // vector has the capacity and does not overlap registered memory.
        unsafe {
            let end = into.as_mut_ptr().add(into.len());
            copy(slice.address.cast_const(), end, length);
            into.set_len(into.len() + length);
        }
    }
}

/// Copies `bytes` to the slices from their beginning. Bytes that do not fit are dropped.
pub(crate) fn scatter(slices: &[Slice], bytes: &[u8]) {
    let mut rest = bytes;
    for slice in slices {
        let (now, later) = rest.split_at(rest.len().min(slice.length as usize));
        // SAFETY: the slice is in registered memory, which is mapped and writable as long as it is registered; at most
        // its length is stored, and `bytes` is not registered memory.
        unsafe { copy_from_own(now, slice.address) };
        rest = later;
    }
}
