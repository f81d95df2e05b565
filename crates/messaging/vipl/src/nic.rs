//! NICs, protection tags, memory and the error callback.
//!
//! Source: VIPL, hardware connection; memory management; error handling.

use crate::device;
use crate::handles::Table;
use crate::layout::*;
use longma_locks::IgnorePoison;
use longma_via::{MemoryAttributes, MemoryRegion, Nic, Reliability};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::sync::{Arc, Mutex};

/// The object behind a `VIP_NIC_HANDLE`.
pub(crate) struct NicObject {
    pub(crate) nic: Nic,
    regions: Mutex<BTreeMap<u32, MemoryRegion>>,
    /// VI handles by VI number, for completion queues and errors.
    pub(crate) vis: Mutex<BTreeMap<u32, usize>>,
    /// The local address, padded to the common length of this NIC's addresses.
    local: Vec<u8>,
}

pub(crate) static NICS: Table<NicObject> = Table::new(1);

/// The minimum length of hosts where their lengths vary, bytes. Hosts are padded with zeros, so that a buffer for one
/// host fits all.
const HOST_BYTES: usize = 64;

impl NicObject {
    fn new(nic: Nic) -> NicObject {
        let facts = nic.attributes();
        let mut local = facts.local_address.clone();
        if facts.name != "shm" {
            local.resize(local.len().max(HOST_BYTES), 0);
        }
        NicObject { nic, regions: Mutex::default(), vis: Mutex::default(), local }
    }

    /// Pads `host` to the common length. `None` if it is too long.
    pub(crate) fn host_bytes(&self, host: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = host.to_vec();
        bytes.resize(self.local.len().max(host.len()), 0);
        (bytes.len() == self.local.len()).then_some(bytes)
    }

    pub(crate) fn handle_of_vi(&self, number: u32) -> Handle {
        self.vis
            .lock()
            .ignore_poison()
            .get(&number)
            .map_or(std::ptr::null_mut(), |handle| std::ptr::without_provenance_mut(*handle))
    }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipOpenNic(name: *const c_char, handle: *mut Handle) -> Return {
    if handle.is_null() {
        return Return::InvalidParameter;
    }
    // SAFETY: the name is a C string, as the header requires.
    let name = if name.is_null() { c"" } else { unsafe { CStr::from_ptr(name) } };
    let Ok(name) = name.to_str() else { return Return::InvalidParameter };
    match device::open(name) {
        Ok(nic) => return_handle(&NICS, Arc::new(NicObject::new(nic)), handle),
        Err(error) => Return::from(&error),
    }
}

/// Inserts an object into `table` and passes its handle to the program.
pub(crate) fn return_handle<T: Send + Sync + 'static>(
    table: &Table<T>,
    object: Arc<T>,
    to: *mut Handle,
) -> Return {
    match table.insert(object) {
        Some(handle) => {
            // SAFETY: the callers have checked that it is not null; it points to the program's variable for the handle.
            unsafe { to.write(handle) };
            Return::Success
        }
        None => Return::ErrorResource,
    }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipCloseNic(handle: Handle) -> Return {
    match NICS.remove(handle, |_| Ok(())) {
        Ok(object) => {
            // Take the regions out of the mutex first: dropping a region waits for the locks of VIs, and an error
            // callback that runs during the wait may need the mutex.
            let regions = std::mem::take(&mut *object.regions.lock().ignore_poison());
            drop(regions);
            Return::Success
        }
        Err(refusal) => refusal,
    }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipQueryNic(handle: Handle, to: *mut NicAttributes) -> Return {
    let Some(object) = NICS.shared(handle) else { return Return::InvalidParameter };
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
        nic_address_length: object.local.len() as u16,
        local_nic_address: object.local.as_ptr(),
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
    // SAFETY: not null, and points to writable memory of the caller.
    unsafe { to.write(value) };
    Return::Success
}

type ErrorHandler = unsafe extern "C" fn(*mut c_void, *mut ErrorDescriptor);

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipErrorCallback(
    handle: Handle,
    context: *mut c_void,
    handler: Option<ErrorHandler>,
) -> Return {
    let Some(object) = NICS.shared(handle) else { return Return::InvalidParameter };
    let (nic, context, weak) = (handle.addr(), context.addr(), Arc::downgrade(&object));
    outcome(object.nic.on_error(move |error| {
        let Some(handler) = handler else { return };
        let vi =
            error.vi.zip(weak.upgrade()).map_or(std::ptr::null_mut(), |(vi, object)| object.handle_of_vi(vi));
        let mut descriptor = ErrorDescriptor {
            nic: std::ptr::without_provenance_mut(nic),
            vi,
            cq: std::ptr::null_mut(),
            descriptor: error.context.map_or(std::ptr::null_mut(), |context| context as *mut CDescriptor),
            operation: 0,
            resource: error.resource as c_int,
            code: error.code as c_int,
        };
        // SAFETY: the program supplied the handler and its context for this purpose.
        unsafe { handler(context as *mut c_void, &raw mut descriptor) };
    }))
}

// ---- memory -----------------------------------------------------------------------------------------------------------

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipCreatePtag(handle: Handle, tag: *mut Handle) -> Return {
    let Some(object) = NICS.shared(handle) else { return Return::InvalidParameter };
    if tag.is_null() {
        return Return::InvalidParameter;
    }
    match object.nic.create_protection_tag() {
        Ok(created) => {
            // SAFETY: not null, and points to writable memory of the caller.
            unsafe { tag.write(handle_of(created)) };
            Return::Success
        }
        Err(error) => Return::from(&error),
    }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipDestroyPtag(handle: Handle, tag: Handle) -> Return {
    let Some(object) = NICS.shared(handle) else { return Return::InvalidParameter };
    outcome(object.nic.destroy_protection_tag(tag_of(tag)))
}

/// # Safety
/// `attributes` must be null or valid.
unsafe fn memory_attributes(attributes: *const CMemoryAttributes) -> Option<MemoryAttributes> {
    // SAFETY: guaranteed by the caller.
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
            object.regions.lock().ignore_poison().insert(handle, region);
            // SAFETY: the callers have checked that it is not null.
            unsafe { memory.write(handle) };
            Return::Success
        }
        Err(error) => Return::from(&error),
    }
}

/// Whether messages can be stored to the whole range. As `ibv_reg_mr` does, this faults in its pages: a range that is
/// unmapped, read-only or beyond the end of its file is detected here instead of by a signal when a message arrives.
/// Linux before 5.14 cannot check a range; every range then passes.
///
/// Source: madvise(2), MADV_POPULATE_WRITE.
fn is_writable(address: usize, length: usize) -> bool {
    // SAFETY: the call takes only integers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let Some(end) = address.checked_add(length) else { return false };
    let begin = address / page * page;
    let can_populate = |length: usize| {
        // SAFETY: populating pages does not change their contents. The kernel validates the range.
        unsafe { libc::madvise(begin as *mut c_void, length, libc::MADV_POPULATE_WRITE) == 0 }
    };
    // For an empty range, the call succeeds if and only if the kernel supports the request.
    can_populate(end - begin) || !can_populate(0)
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipRegisterMem(
    handle: Handle,
    address: *mut c_void,
    length: c_ulong,
    attributes: *const CMemoryAttributes,
    memory: *mut u32,
) -> Return {
    // SAFETY: see the crate documentation.
    let (object, attributes) = unsafe { (NICS.shared(handle), memory_attributes(attributes)) };
    let (Some(object), Some(attributes)) = (object, attributes) else { return Return::InvalidParameter };
    if memory.is_null() || !is_writable(address.addr(), length as usize) {
        return Return::InvalidParameter;
    }
    // SAFETY: VIPL requires the program to keep registered memory mapped until it deregisters it.
    let region = unsafe { object.nic.register(address.cast(), length as usize, attributes) };
    keep(&object, region, memory)
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn LongmaVipAllocateMem(
    handle: Handle,
    length: c_ulong,
    attributes: *const CMemoryAttributes,
    address: *mut *mut c_void,
    memory: *mut u32,
) -> Return {
    // SAFETY: see the crate documentation.
    let (object, attributes) = unsafe { (NICS.shared(handle), memory_attributes(attributes)) };
    let (Some(object), Some(attributes)) = (object, attributes) else { return Return::InvalidParameter };
    if memory.is_null() || address.is_null() {
        return Return::InvalidParameter;
    }
    let region = object.nic.allocate(length as usize, attributes);
    if let Ok(region) = &region {
        // SAFETY: not null, and points to writable memory of the caller.
        unsafe { address.write(region.as_ptr().cast()) };
    }
    keep(&object, region, memory)
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipDeregisterMem(handle: Handle, address: *mut c_void, memory: u32) -> Return {
    let Some(object) = NICS.shared(handle) else { return Return::InvalidParameter };
    let mut regions = object.regions.lock().ignore_poison();
    if regions.get(&memory).is_none_or(|region| region.as_ptr() != address.cast()) {
        return Return::InvalidParameter;
    }
    let region = regions.remove(&memory);
    drop(regions);
    drop(region);
    Return::Success
}

/// Whether the address is inside the region.
fn is_inside(address: *mut c_void, region: &MemoryRegion) -> bool {
    (address.addr() as u64).checked_sub(region.address()).is_some_and(|offset| offset < region.len() as u64)
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipSetMemAttributes(
    handle: Handle,
    address: *mut c_void,
    memory: u32,
    attributes: *const CMemoryAttributes,
) -> Return {
    // SAFETY: see the crate documentation.
    let (object, attributes) = unsafe { (NICS.shared(handle), memory_attributes(attributes)) };
    let (Some(object), Some(attributes)) = (object, attributes) else { return Return::InvalidParameter };
    match object.regions.lock().ignore_poison().get_mut(&memory).filter(|region| is_inside(address, region)) {
        Some(region) => outcome(region.set_attributes(attributes)),
        None => Return::InvalidParameter,
    }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipQueryMem(
    handle: Handle,
    address: *mut c_void,
    memory: u32,
    to: *mut CMemoryAttributes,
) -> Return {
    let Some(object) = NICS.shared(handle) else { return Return::InvalidParameter };
    let regions = object.regions.lock().ignore_poison();
    let region = regions.get(&memory).filter(|region| is_inside(address, region));
    let Some(attributes) = region.map(MemoryRegion::attributes) else { return Return::InvalidParameter };
    drop(regions);
    if to.is_null() {
        return Return::InvalidParameter;
    }
    let value = CMemoryAttributes {
        ptag: handle_of(attributes.tag),
        rdma_write: c_int::from(attributes.rdma_write),
        rdma_read: c_int::from(attributes.rdma_read),
    };
    // SAFETY: not null, and points to writable memory of the caller.
    unsafe { to.write(value) };
    Return::Success
}
