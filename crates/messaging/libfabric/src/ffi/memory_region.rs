//! Memory regions that peers may access.

use super::domain::{Domain, DomainObject};
use super::object::{Object, fid, fid_operations, give, object, read, status, take, vector};
use crate::abi::constants::*;
use crate::abi::{Fid, FidMr, MrAttr, OpsFid, OpsMr};
use crate::core::buffer::Buffer;
use crate::core::memory_keys::Region;
use libc::iovec;
use std::ffi::c_void;
use std::sync::Arc;

#[repr(C)]
struct MemoryRegionObject {
    fid: FidMr,
    domain: Arc<Domain>,
}

// SAFETY: the object begins with a `FidMr`, and only memory regions have this class.
unsafe impl Object for MemoryRegionObject {
    const CLASS: usize = CLASS_MR;
}

static FID: OpsFid = OpsFid { bind, control, ..fid_operations(close) };
pub(super) static OPERATIONS: OpsMr = OpsMr { size: size_of::<OpsMr>(), reg, regv, regattr };

/// Peers reach the memory through every endpoint, so a region is bound to none.
unsafe extern "C" fn bind(_: *mut Fid, _: *mut Fid, _: u64) -> i32 {
    0
}

/// A region is usable at once (`FI_ENABLE`).
unsafe extern "C" fn control(_: *mut Fid, command: i32, _: *mut c_void) -> i32 {
    if command == ENABLE { 0 } else { -libc::ENOSYS }
}

unsafe fn register(
    domain: *mut Fid,
    segments: &[iovec],
    access: u64,
    requested_key: u64,
    result: *mut *mut FidMr,
    context: *mut c_void,
) -> Result<usize, i32> {
    // SAFETY: fi_mr_reg requires valid arguments, here and in the blocks below.
    let domain = unsafe { object::<DomainObject>(domain)? }.domain.clone();
    if result.is_null() || access & !(SEND | RECV | READ | WRITE | REMOTE_READ | REMOTE_WRITE) != 0 {
        return Err(libc::EINVAL);
    }
    let mut buffer = Buffer::EMPTY;
    for segment in segments {
        let end = segment.iov_base.addr().checked_add(segment.iov_len);
        if end.is_none() || (segment.iov_base.is_null() && segment.iov_len > 0) {
            return Err(libc::EINVAL);
        }
        // SAFETY: the program keeps the memory mapped until it closes the region.
        if !unsafe { buffer.push(segment.iov_base.cast(), segment.iov_len) } {
            return Err(libc::EINVAL);
        }
    }
    let (key, base) = match domain.is_basic {
        true => (None, buffer.address() as u64),
        false => (Some(requested_key), 0),
    };
    let access = access & (REMOTE_READ | REMOTE_WRITE);
    let key = domain.shared.keys.insert(key, Region { buffer, base, access })?;
    let fid = FidMr { fid: fid(CLASS_MR, context, &FID), mem_desc: std::ptr::null_mut(), key };
    // SAFETY: as above.
    unsafe { give(MemoryRegionObject { fid, domain }, result) }
}

unsafe extern "C" fn reg(
    domain: *mut Fid,
    buffer: *const c_void,
    length: usize,
    access: u64,
    _offset: u64,
    key: u64,
    flags: u64,
    result: *mut *mut FidMr,
    context: *mut c_void,
) -> i32 {
    let segment = iovec { iov_base: buffer.cast_mut(), iov_len: length };
    status(|| {
        if flags & !RMA_EVENT != 0 {
            return Err(EBADFLAGS);
        }
        // SAFETY: fi_mr_reg requires valid arguments.
        unsafe { register(domain, &[segment], access, key, result, context) }
    })
}

unsafe extern "C" fn regv(
    domain: *mut Fid,
    segments: *const iovec,
    count: usize,
    access: u64,
    _offset: u64,
    key: u64,
    flags: u64,
    result: *mut *mut FidMr,
    context: *mut c_void,
) -> i32 {
    status(|| {
        if flags & !RMA_EVENT != 0 {
            return Err(EBADFLAGS);
        }
        // SAFETY: fi_mr_regv requires valid arguments.
        unsafe { register(domain, vector(segments, count)?, access, key, result, context) }
    })
}

unsafe extern "C" fn regattr(
    domain: *mut Fid,
    attributes: *const MrAttr,
    flags: u64,
    result: *mut *mut FidMr,
) -> i32 {
    status(|| {
        // SAFETY: fi_mr_regattr requires valid arguments, here and in the blocks below.
        let attributes = unsafe { read(attributes)? };
        if flags & !RMA_EVENT != 0 {
            return Err(EBADFLAGS);
        }
        // SAFETY: as above.
        unsafe {
            let segments = vector(attributes.mr_iov, attributes.iov_count)?;
            register(
                domain,
                segments,
                attributes.access,
                attributes.requested_key,
                result,
                attributes.context,
            )
        }
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> i32 {
    status(|| {
        // SAFETY: fi_close requires a valid argument.
        let region = unsafe { take::<MemoryRegionObject>(fid)? };
        region.domain.shared.keys.remove(region.fid.key);
        // Peers may be accessing the memory, which may be unmapped when this call returns.
        for endpoint in region.domain.endpoints() {
            endpoint.state().forget_region(region.fid.key);
        }
        Ok(0)
    })
}
