//! Objects that the program holds by pointers, and the results of calls.

use crate::abi::constants::EOTHER;
use crate::abi::{Fid, OpsFid};
use longma_via::Error;
use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The longest vector of buffers that any call accepts; the call itself has a lower limit.
const MAX_VECTOR: usize = 256;

/// An object of libfabric: `#[repr(C)]`, with a structure that begins with a [`Fid`] as its first field.
///
/// # Safety
/// The type must have this layout, and `CLASS` must be the class of no other type.
pub(super) unsafe trait Object {
    const CLASS: usize;
}

/// The object behind a pointer of the program.
///
/// # Errors
/// `EINVAL` if the pointer is null or misaligned, or the object is of another class.
///
/// # Safety
/// The pointer is null, or points to an object of this provider that has not been closed.
pub(super) unsafe fn object<'a, T: Object>(pointer: *const impl Sized) -> Result<&'a T, i32> {
    let fid = pointer.cast::<Fid>();
    if fid.is_null() || !fid.is_aligned() {
        return Err(libc::EINVAL);
    }
    // SAFETY: every object begins with a `Fid`; guaranteed by the caller.
    if unsafe { (*fid).fclass } != T::CLASS {
        return Err(libc::EINVAL);
    }
    // SAFETY: objects of this class have the type, and are freed only when they are closed.
    Ok(unsafe { &*pointer.cast::<T>() })
}

/// Gives an object to the program.
///
/// # Safety
/// `place` is null or writable.
pub(super) unsafe fn give<T: Object, P>(object: T, place: *mut *mut P) -> Result<usize, i32> {
    if place.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { *place = Box::into_raw(Box::new(object)).cast() };
    Ok(0)
}

/// Takes an object back from the program, to close it.
///
/// # Safety
/// As for [`object`]; nothing else uses the object.
pub(super) unsafe fn take<T: Object>(pointer: *mut Fid) -> Result<Box<T>, i32> {
    // SAFETY: guaranteed by the caller.
    unsafe { object::<T>(pointer)? };
    // SAFETY: objects are created by `give`. The class is cleared, so that a second close is likely to be detected.
    unsafe {
        (*pointer).fclass = 0;
        Ok(Box::from_raw(pointer.cast()))
    }
}

/// The structure behind a pointer of the program.
///
/// # Safety
/// The pointer is null, or valid for reads.
pub(super) unsafe fn read<'a, T>(pointer: *const T) -> Result<&'a T, i32> {
    // SAFETY: guaranteed by the caller.
    if pointer.is_aligned() { unsafe { pointer.as_ref() }.ok_or(libc::EINVAL) } else { Err(libc::EINVAL) }
}

/// A vector of the program; a null pointer is permitted if it has no elements.
///
/// # Safety
/// The pointer is null, or valid for `count` elements.
pub(super) unsafe fn vector<'a, T>(pointer: *const T, count: usize) -> Result<&'a [T], i32> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() || !pointer.is_aligned() || count > MAX_VECTOR {
        return Err(libc::EINVAL);
    }
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// The result of a call for the program.
#[inline]
pub(super) fn result(act: impl FnOnce() -> Result<usize, i32>) -> isize {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(count)) => count as isize,
        Ok(Err(code)) => -(code as isize),
        Err(_) => -(EOTHER as isize),
    }
}

/// Like [`result`], for calls that return `int`.
pub(super) fn status(act: impl FnOnce() -> Result<usize, i32>) -> i32 {
    result(act) as i32
}

/// libfabric's error number for an error of `longma-via`.
pub(super) fn error_number(error: &Error) -> i32 {
    match error {
        Error::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        Error::Resource(_) => libc::ENOMEM,
        Error::InvalidParameter(_) | Error::InvalidState(_) => libc::EINVAL,
        Error::AddressInUse(_) => libc::EADDRINUSE,
        _ => libc::EIO,
    }
}

/// Copies a text with a final zero byte into the program's buffer, cut if it is too long. Returns the buffer.
///
/// # Safety
/// `buffer` is null, or writable for `length` bytes.
pub(super) unsafe fn copy_text(text: &str, buffer: *mut c_char, length: usize) -> *const c_char {
    if !buffer.is_null() && length > 0 {
        let taken = text.len().min(length - 1);
        // SAFETY: guaranteed by the caller.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), taken);
            *buffer.add(taken) = 0;
        }
    }
    buffer
}

unsupported! {
    no_bind(*mut Fid, *mut Fid, u64) -> i32;
    no_control(*mut Fid, i32, *mut c_void) -> i32;
    no_ops_open(*mut Fid, *const c_char, u64, *mut *mut c_void, *mut c_void) -> i32;
    no_tostr(*const Fid, *mut c_char, usize) -> i32;
    no_ops_set(*mut Fid, *const c_char, u64, *mut c_void, *mut c_void) -> i32;
}

/// The table of an object that can only be closed.
pub(super) const fn fid_operations(close: unsafe extern "C" fn(*mut Fid) -> i32) -> OpsFid {
    OpsFid {
        size: size_of::<OpsFid>(),
        close,
        bind: no_bind,
        control: no_control,
        ops_open: no_ops_open,
        tostr: no_tostr,
        ops_set: no_ops_set,
    }
}

/// The start of an object.
pub(super) fn fid(class: usize, context: *mut c_void, operations: &'static OpsFid) -> Fid {
    Fid { fclass: class, context, ops: operations }
}
