//! Fabrics: the start of all objects.

use super::object::{Object, fid, fid_operations, give, status, take};
use super::{domain, event_queue};
use crate::abi::constants::{CLASS_FABRIC, INTERFACE_VERSION};
use crate::abi::{FabricAttr, Fid, FidFabric, FidPep, Info, OpsFabric, OpsFid};
use std::ffi::c_void;

#[repr(C)]
struct FabricObject {
    fid: FidFabric,
}

// SAFETY: it begins with a `FidFabric`, and only fabrics have this class.
unsafe impl Object for FabricObject {
    const CLASS: usize = CLASS_FABRIC;
}

static FID: OpsFid = fid_operations(close);
static OPERATIONS: OpsFabric = OpsFabric {
    size: size_of::<OpsFabric>(),
    domain: domain::open,
    passive_ep: no_passive_ep,
    eq_open: event_queue::open,
    wait_open: no_wait_open,
    trywait,
    domain2: domain::open_with_flags,
};

unsupported! {
    no_wait_open(*mut FidFabric, *mut c_void, *mut *mut c_void) -> i32;
    no_passive_ep(*mut FidFabric, *mut Info, *mut *mut FidPep, *mut c_void) -> i32;
}

/// There are no wait objects, so a program may always sleep in the calls that wait.
unsafe extern "C" fn trywait(_: *mut FidFabric, _: *mut *mut Fid, _: i32) -> i32 {
    0
}

/// `fabric` of the provider.
pub(super) unsafe extern "C" fn open(
    _attributes: *mut FabricAttr,
    result: *mut *mut FidFabric,
    context: *mut c_void,
) -> i32 {
    status(|| {
        let fid = FidFabric {
            fid: fid(CLASS_FABRIC, context, &FID),
            ops: &raw const OPERATIONS,
            api_version: INTERFACE_VERSION,
        };
        // SAFETY: the argument of fi_fabric.
        unsafe { give(FabricObject { fid }, result) }
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> i32 {
    // SAFETY: the argument of fi_close.
    status(|| unsafe { take::<FabricObject>(fid).map(|_| 0) })
}

/// Whether the pointer is a fabric.
///
/// # Errors
/// `EINVAL`.
pub(super) unsafe fn check(fabric: *mut FidFabric) -> Result<(), i32> {
    // SAFETY: guaranteed by the caller.
    unsafe { super::object::object::<FabricObject>(fabric) }.map(|object| {
        let _: &FidFabric = &object.fid;
    })
}
