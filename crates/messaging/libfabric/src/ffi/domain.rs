//! Domains: a NIC of `longma-via`, and the memory that peers may access.

use super::object::{Object, fid, fid_operations, give, object, read, status, take};
use super::{address_vector, atomic, completion_queue, counter, endpoint, fabric, info, memory_region};
use crate::abi::constants::{CLASS_DOMAIN, MR_BASIC};
use crate::abi::{Fid, FidDomain, FidEp, FidFabric, Info, OpsDomain, OpsFid, RxAttr, TxAttr};
use crate::core::address::AddressFormat;
use crate::core::endpoint::Endpoint;
use crate::core::memory_keys::MemoryKeys;
use crate::core::state::Shared;
use longma_locks::IgnorePoison;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, Weak};

/// The state that the objects of a domain share.
pub(super) struct Domain {
    pub(super) shared: Arc<Shared>,
    pub(super) format: AddressFormat,
    /// Whether the provider chooses keys and peers use virtual addresses (`FI_MR_BASIC`).
    pub(super) is_basic: bool,
    endpoints: Mutex<Vec<Weak<Endpoint>>>,
}

impl Domain {
    pub(super) fn add_endpoint(&self, endpoint: &Arc<Endpoint>) {
        let mut endpoints = self.endpoints.lock().ignore_poison();
        endpoints.retain(|other| other.strong_count() > 0);
        endpoints.push(Arc::downgrade(endpoint));
    }

    /// All open endpoints.
    pub(super) fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        self.endpoints.lock().ignore_poison().iter().filter_map(Weak::upgrade).collect()
    }
}

#[repr(C)]
pub(super) struct DomainObject {
    fid: FidDomain,
    pub(super) domain: Arc<Domain>,
}

// SAFETY: the object begins with a `FidDomain`, and only domains have this class.
unsafe impl Object for DomainObject {
    const CLASS: usize = CLASS_DOMAIN;
}

static FID: OpsFid = fid_operations(close);
static OPERATIONS: OpsDomain = OpsDomain {
    size: size_of::<OpsDomain>(),
    av_open: address_vector::open,
    cq_open: completion_queue::open,
    endpoint: endpoint::open,
    scalable_ep: no_scalable_ep,
    cntr_open: counter::open,
    poll_open: no_poll_open,
    stx_ctx: no_stx_ctx,
    srx_ctx: no_srx_ctx,
    query_atomic: atomic::query,
    query_collective: no_query_collective,
    endpoint2: endpoint::open_with_flags,
};

unsupported! {
    no_scalable_ep(*mut FidDomain, *mut Info, *mut *mut FidEp, *mut c_void) -> i32;
    no_poll_open(*mut FidDomain, *mut c_void, *mut *mut c_void) -> i32;
    no_stx_ctx(*mut FidDomain, *mut TxAttr, *mut *mut c_void, *mut c_void) -> i32;
    no_srx_ctx(*mut FidDomain, *mut RxAttr, *mut *mut FidEp, *mut c_void) -> i32;
    no_query_collective(*mut FidDomain, u32, *mut c_void, u64) -> i32;
}

/// `fi_domain`.
pub(super) unsafe extern "C" fn open(
    fabric: *mut FidFabric,
    info: *mut Info,
    result: *mut *mut FidDomain,
    context: *mut c_void,
) -> i32 {
    status(|| {
        // SAFETY: fi_domain requires valid arguments, here and in the blocks below.
        let (fabric, info) = unsafe { (fabric::get(fabric)?, read(info)?) };
        let format = info::address_format(info.addr_format).ok_or(libc::EINVAL)?;
        // SAFETY: the attributes are null or those of the information.
        let mr_mode = unsafe { info.domain_attr.as_ref() }.map_or(0, |attributes| attributes.mr_mode);
        let shared = Arc::new(Shared {
            nic: fabric.nic,
            keys: MemoryKeys::default(),
            atomics: Mutex::new(()),
            names: fabric.names,
        });
        let domain = Arc::new(Domain {
            shared,
            format,
            is_basic: mr_mode & MR_BASIC != 0,
            endpoints: Mutex::default(),
        });
        let fid = FidDomain {
            fid: fid(CLASS_DOMAIN, context, &FID),
            ops: &raw const OPERATIONS,
            mr: &raw const memory_region::OPERATIONS,
        };
        // SAFETY: as above.
        unsafe { give(DomainObject { fid, domain }, result) }
    })
}

/// `fi_domain2`, which has no flags here.
pub(super) unsafe extern "C" fn open_with_flags(
    fabric: *mut FidFabric,
    info: *mut Info,
    result: *mut *mut FidDomain,
    flags: u64,
    context: *mut c_void,
) -> i32 {
    if flags != 0 {
        return -crate::abi::constants::EBADFLAGS;
    }
    // SAFETY: fi_domain requires valid arguments.
    unsafe { open(fabric, info, result, context) }
}

unsafe extern "C" fn close(fid: *mut Fid) -> i32 {
    status(|| {
        // SAFETY: fi_close requires a valid argument.
        unsafe {
            if Arc::strong_count(&object::<DomainObject>(fid)?.domain) > 1 {
                return Err(libc::EBUSY);
            }
            take::<DomainObject>(fid).map(|_| 0)
        }
    })
}
