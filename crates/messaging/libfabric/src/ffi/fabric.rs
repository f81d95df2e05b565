//! Fabrics: the start of all objects.

use super::object::{Object, error_number, fid, fid_operations, give, object, status, take};
use super::{domain, event_queue, passive_endpoint};
use crate::abi::constants::{CLASS_FABRIC, INTERFACE_VERSION};
use crate::abi::{FabricAttr, Fid, FidFabric, OpsFabric, OpsFid};
use crate::core::address::Name;
use crate::core::environment;
use crate::core::log::warning;
use longma_via::Nic;
use longma_via::provider::shared_memory::SharedMemory;
use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, OnceLock};

/// The state that the domains and passive endpoints of a fabric share. They have one NIC, so that an endpoint of a
/// domain can accept a connection request that a passive endpoint received.
#[derive(Clone)]
pub(super) struct Fabric {
    pub(super) nic: Nic,
    /// The names of the endpoints that listen.
    pub(super) names: Arc<Mutex<HashSet<Name>>>,
}

#[repr(C)]
struct FabricObject {
    fid: FidFabric,
    fabric: OnceLock<Fabric>,
}

// SAFETY: the object begins with a `FidFabric`, and only fabrics have this class.
unsafe impl Object for FabricObject {
    const CLASS: usize = CLASS_FABRIC;
}

static FID: OpsFid = fid_operations(close);
static OPERATIONS: OpsFabric = OpsFabric {
    size: size_of::<OpsFabric>(),
    domain: domain::open,
    passive_ep: passive_endpoint::open,
    eq_open: event_queue::open,
    wait_open: no_wait_open,
    trywait,
    domain2: domain::open_with_flags,
};

unsupported! {
    no_wait_open(*mut FidFabric, *mut c_void, *mut *mut c_void) -> i32;
}

/// Without wait objects, a program may sleep in a waiting call at any time.
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
        unsafe { give(FabricObject { fid, fabric: OnceLock::new() }, result) }
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> i32 {
    // SAFETY: fi_close requires a valid argument.
    status(|| unsafe { take::<FabricObject>(fid).map(|_| 0) })
}

/// The fabric that the program's pointer refers to. Its NIC is opened at the first use.
///
/// # Errors
/// `EINVAL`; the error of the system that refuses a resource.
pub(super) unsafe fn get(pointer: *mut FidFabric) -> Result<Fabric, i32> {
    // SAFETY: functions of fabrics require a valid fabric.
    let object = unsafe { object::<FabricObject>(pointer)? };
    if let Some(fabric) = object.fabric.get() {
        return Ok(fabric.clone());
    }
    let provider = SharedMemory::open_with(environment::nic_settings()).map_err(|error| {
        warning!("{error}");
        error_number(&error)
    })?;
    let fabric = Fabric { nic: Nic::with_provider(Box::new(provider)), names: Arc::default() };
    Ok(object.fabric.get_or_init(|| fabric).clone())
}

/// Whether the pointer is a fabric.
///
/// # Errors
/// `EINVAL`.
pub(super) unsafe fn check(pointer: *mut FidFabric) -> Result<(), i32> {
    // SAFETY: functions of fabrics require a valid fabric.
    unsafe { object::<FabricObject>(pointer) }.map(|object| {
        let _: &FidFabric = &object.fid;
    })
}
