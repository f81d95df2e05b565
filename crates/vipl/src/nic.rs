//! NICs, protection tags, memory and the error callback.
//! Not VIs.
//! Source: VIPL, hardware connection; memory management; error handling.

use crate::layout::*;
use longma_via::{MemoryAttributes, MemoryRegion, Nic, Reliability};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a `VIP_NIC_HANDLE` points to.
pub(crate) struct NicObject {
    pub(crate) nic: Nic,
    regions: Mutex<BTreeMap<u32, MemoryRegion>>,
    /// VI handles by VI number, for completion queues and errors.
    pub(crate) vis: Mutex<BTreeMap<u32, usize>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NicObject {
    /// # Safety
    /// `handle` must be null or an open NIC.
    pub(crate) unsafe fn of(handle: Handle) -> Option<Arc<NicObject>> {
        if handle.is_null() {
            return None;
        }
        let object = handle.cast_const().cast::<NicObject>();
        // SAFETY: the handle is an `Arc` that was turned into a pointer and is still owned by the program.
        unsafe {
            Arc::increment_strong_count(object);
            Some(Arc::from_raw(object))
        }
    }

    pub(crate) fn handle_of_vi(&self, number: u32) -> Handle {
        lock(&self.vis).get(&number).map_or(std::ptr::null_mut(), |address| *address as Handle)
    }

    /// Whether `bytes` at `address` lie in the region of that handle.
    pub(crate) fn covers(&self, handle: u32, address: u64, bytes: u64) -> bool {
        let regions = lock(&self.regions);
        let Some(region) = regions.get(&handle) else { return false };
        let Some(offset) = address.checked_sub(region.address()) else { return false };
        offset.checked_add(bytes).is_some_and(|end| end <= region.len() as u64)
    }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipOpenNic(name: *const c_char, handle: *mut Handle) -> Return {
    if handle.is_null() {
        return Return::InvalidParameter;
    }
    // SAFETY: a name is a C string, as the header says.
    let name = if name.is_null() { c"" } else { unsafe { CStr::from_ptr(name) } };
    if !matches!(name.to_bytes(), b"" | b"shm") {
        return Return::InvalidParameter;
    }
    match Nic::open() {
        Ok(nic) => {
            let object = Arc::new(NicObject { nic, regions: Mutex::default(), vis: Mutex::default() });
            // SAFETY: not null, and the caller's to fill.
            unsafe { handle.write(Arc::into_raw(object).cast_mut().cast()) };
            Return::Success
        }
        Err(error) => Return::from(&error),
    }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipCloseNic(handle: Handle) -> Return {
    if handle.is_null() {
        return Return::InvalidParameter;
    }
    // SAFETY: the program's own reference, which it gives back.
    let object = unsafe { Arc::from_raw(handle.cast_const().cast::<NicObject>()) };
    lock(&object.regions).clear();
    Return::Success
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipQueryNic(handle: Handle, to: *mut NicAttributes) -> Return {
    // SAFETY: as the crate's head says.
    let Some(object) = (unsafe { NicObject::of(handle) }) else { return Return::InvalidParameter };
    if to.is_null() {
        return Return::InvalidParameter;
    }
    let facts = object.nic.attributes();
    let mut name = [0; 64];
    for (place, byte) in name[..63].iter_mut().zip(facts.name.bytes()) {
        *place = byte as c_char;
    }
    let bits = |levels: &[Reliability]| levels.iter().fold(0, |bits, level| bits | *level as u16);
    let value = NicAttributes {
        name,
        hardware_version: 1,
        provider_version: 1,
        nic_address_length: facts.local_address.len() as u16,
        local_nic_address: facts.local_address.as_ptr(),
        thread_safe: 1,
        max_discriminator_length: facts.max_discriminator_bytes as u16,
        max_register_bytes: facts.max_register_bytes,
        max_register_regions: c_ulong::from(facts.max_register_regions),
        max_register_block_bytes: facts.max_register_block_bytes,
        max_vi: c_ulong::from(facts.max_vis),
        max_descriptors_per_queue: c_ulong::from(facts.max_descriptors_per_queue),
        max_segments_per_descriptor: c_ulong::from(facts.max_segments_per_descriptor),
        max_cq: c_ulong::from(facts.max_completion_queues),
        max_cq_entries: c_ulong::from(facts.max_completion_queue_entries),
        max_transfer_size: c_ulong::from(facts.max_transfer_bytes),
        native_mtu: c_ulong::from(facts.native_mtu_bytes),
        max_ptags: c_ulong::from(facts.max_protection_tags),
        reliability_level_support: bits(&facts.reliability),
        rdma_read_support: bits(&facts.rdma_read),
    };
    // SAFETY: not null, and the caller's to fill.
    unsafe { to.write(value) };
    Return::Success
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipQuerySystemManagementInfo(_nic: Handle, _kind: c_ulong, _to: *mut c_void) -> Return {
    Return::NotSupported
}

type ErrorHandler = unsafe extern "C" fn(*mut c_void, *mut ErrorDescriptor);

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipErrorCallback(
    handle: Handle,
    context: *mut c_void,
    handler: Option<ErrorHandler>,
) -> Return {
    // SAFETY: as the crate's head says.
    let Some(object) = (unsafe { NicObject::of(handle) }) else { return Return::InvalidParameter };
    let (nic, context, weak) = (handle.addr(), context.addr(), Arc::downgrade(&object));
    outcome(object.nic.on_error(move |error| {
        let Some(handler) = handler else { return };
        let vi =
            error.vi.zip(weak.upgrade()).map_or(std::ptr::null_mut(), |(vi, object)| object.handle_of_vi(vi));
        let mut descriptor = ErrorDescriptor {
            nic: nic as Handle,
            vi,
            cq: std::ptr::null_mut(),
            descriptor: error.context.map_or(std::ptr::null_mut(), |context| context as *mut CDescriptor),
            operation: 0,
            resource: error.resource as c_int,
            code: error.code as c_int,
        };
        // SAFETY: the program gave the handler and its context for this.
        unsafe { handler(context as *mut c_void, &raw mut descriptor) };
    }))
}

// ---- memory -----------------------------------------------------------------------------------------------------------

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipCreatePtag(handle: Handle, tag: *mut Handle) -> Return {
    // SAFETY: as the crate's head says.
    let Some(object) = (unsafe { NicObject::of(handle) }) else { return Return::InvalidParameter };
    if tag.is_null() {
        return Return::InvalidParameter;
    }
    match object.nic.create_protection_tag() {
        Ok(created) => {
            // SAFETY: not null, and the caller's to fill.
            unsafe { tag.write(handle_of(created)) };
            Return::Success
        }
        Err(error) => Return::from(&error),
    }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipDestroyPtag(handle: Handle, tag: Handle) -> Return {
    // SAFETY: as the crate's head says.
    let Some(object) = (unsafe { NicObject::of(handle) }) else { return Return::InvalidParameter };
    outcome(object.nic.destroy_protection_tag(tag_of(tag)))
}

/// # Safety
/// `attributes` must be null or valid.
unsafe fn memory_attributes(attributes: *const CMemoryAttributes) -> Option<MemoryAttributes> {
    // SAFETY: as the caller says.
    let from = unsafe { attributes.as_ref() }?;
    Some(MemoryAttributes {
        tag: tag_of(from.ptag),
        rdma_write: from.rdma_write != 0,
        rdma_read: from.rdma_read != 0,
    })
}

fn keep(object: &NicObject, region: Result<MemoryRegion, longma_via::Error>, memory: *mut u32) -> Return {
    match region {
        Ok(region) => {
            let handle = region.handle().0;
            lock(&object.regions).insert(handle, region);
            // SAFETY: the callers have seen that it is not null.
            unsafe { memory.write(handle) };
            Return::Success
        }
        Err(error) => Return::from(&error),
    }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipRegisterMem(
    handle: Handle,
    address: *mut c_void,
    length: c_ulong,
    attributes: *const CMemoryAttributes,
    memory: *mut u32,
) -> Return {
    // SAFETY: as the crate's head says.
    let (object, attributes) = unsafe { (NicObject::of(handle), memory_attributes(attributes)) };
    let (Some(object), Some(attributes)) = (object, attributes) else { return Return::InvalidParameter };
    if memory.is_null() {
        return Return::InvalidParameter;
    }
    // SAFETY: the program registers memory of its own and leaves it mapped until it deregisters it, as VIPL asks.
    let region = unsafe { object.nic.register(address.cast(), length as usize, attributes) };
    keep(&object, region, memory)
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn LongmaVipAllocateMem(
    handle: Handle,
    length: c_ulong,
    attributes: *const CMemoryAttributes,
    address: *mut *mut c_void,
    memory: *mut u32,
) -> Return {
    // SAFETY: as the crate's head says.
    let (object, attributes) = unsafe { (NicObject::of(handle), memory_attributes(attributes)) };
    let (Some(object), Some(attributes)) = (object, attributes) else { return Return::InvalidParameter };
    if memory.is_null() || address.is_null() {
        return Return::InvalidParameter;
    }
    let region = object.nic.allocate(length as usize, attributes);
    if let Ok(region) = &region {
        // SAFETY: not null, and the caller's to fill.
        unsafe { address.write(region.as_ptr().cast()) };
    }
    keep(&object, region, memory)
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipDeregisterMem(handle: Handle, address: *mut c_void, memory: u32) -> Return {
    // SAFETY: as the crate's head says.
    let Some(object) = (unsafe { NicObject::of(handle) }) else { return Return::InvalidParameter };
    let mut regions = lock(&object.regions);
    if regions.get(&memory).is_none_or(|region| region.as_ptr() != address.cast()) {
        return Return::InvalidParameter;
    }
    let region = regions.remove(&memory);
    drop(regions);
    drop(region);
    Return::Success
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipSetMemAttributes(
    handle: Handle,
    _address: *mut c_void,
    memory: u32,
    attributes: *const CMemoryAttributes,
) -> Return {
    // SAFETY: as the crate's head says.
    let (object, attributes) = unsafe { (NicObject::of(handle), memory_attributes(attributes)) };
    let (Some(object), Some(attributes)) = (object, attributes) else { return Return::InvalidParameter };
    match lock(&object.regions).get_mut(&memory) {
        Some(region) => outcome(region.set_attributes(attributes)),
        None => Return::InvalidParameter,
    }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipQueryMem(
    handle: Handle,
    _address: *mut c_void,
    memory: u32,
    to: *mut CMemoryAttributes,
) -> Return {
    // SAFETY: as the crate's head says.
    let Some(object) = (unsafe { NicObject::of(handle) }) else { return Return::InvalidParameter };
    let Some(attributes) = lock(&object.regions).get(&memory).map(MemoryRegion::attributes) else {
        return Return::InvalidParameter;
    };
    if to.is_null() {
        return Return::InvalidParameter;
    }
    let value = CMemoryAttributes {
        ptag: handle_of(attributes.tag),
        rdma_write: c_int::from(attributes.rdma_write),
        rdma_read: c_int::from(attributes.rdma_read),
    };
    // SAFETY: not null, and the caller's to fill.
    unsafe { to.write(value) };
    Return::Success
}
