//! Address vectors.

use super::domain::{Domain, DomainObject};
use super::event_queue::{Event, EventQueue, EventQueueObject};
use super::object::{Object, copy_text, fid, fid_operations, give, object, read, status, take};
use crate::abi::constants::*;
use crate::abi::{AvAttr, Fid, FidAv, FidDomain, OpsAv, OpsFid};
use crate::core::address::{AddressFormat, BINARY_BYTES, MAX_STRING_BYTES, Name, PREFIX};
use crate::core::address_vector::AddressVector;
use longma_locks::IgnorePoison;
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, Mutex};

#[repr(C)]
pub(super) struct AddressVectorObject {
    fid: FidAv,
    pub(super) vector: Arc<AddressVector>,
    /// The domain of the address vector.
    domain: Arc<Domain>,
    /// Gets an event for each insertion, if the address vector was opened with `FI_EVENT`.
    events: Mutex<Option<Arc<EventQueue>>>,
    is_asynchronous: bool,
}

// SAFETY: the object begins with a `FidAv`, and only address vectors have this class.
unsafe impl Object for AddressVectorObject {
    const CLASS: usize = CLASS_AV;
}

static FID: OpsFid = OpsFid { bind, ..fid_operations(close) };
static OPERATIONS: OpsAv = OpsAv {
    size: size_of::<OpsAv>(),
    insert,
    insertsvc,
    insertsym: no_insertsym,
    remove,
    lookup,
    straddr,
    av_set: no_av_set,
};

unsupported! {
    no_insertsym(*mut FidAv, *const c_char, usize, *const c_char, usize, *mut u64, u64, *mut c_void) -> i32;
    no_av_set(*mut FidAv, *mut c_void, *mut *mut c_void, *mut c_void) -> i32;
}

/// `fi_av_open`.
pub(super) unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attributes: *mut AvAttr,
    result: *mut *mut FidAv,
    context: *mut c_void,
) -> i32 {
    status(|| {
        // SAFETY: fi_av_open requires valid arguments, here and in the blocks below.
        let (domain, attributes) = unsafe { (object::<DomainObject>(domain)?, read(attributes)?) };
        if !matches!(attributes.r#type, AV_UNSPEC | AV_MAP | AV_TABLE) {
            return Err(libc::EINVAL);
        }
        if attributes.rx_ctx_bits > 0 || !attributes.name.is_null() {
            return Err(libc::ENOSYS);
        }
        if attributes.flags & !COMPLETION != 0 {
            return Err(EBADFLAGS);
        }
        let object = AddressVectorObject {
            fid: FidAv { fid: fid(CLASS_AV, context, &FID), ops: &raw const OPERATIONS },
            vector: Arc::new(AddressVector::default()),
            domain: domain.domain.clone(),
            events: Mutex::new(None),
            is_asynchronous: attributes.flags & COMPLETION != 0,
        };
        // SAFETY: as above.
        unsafe { give(object, result) }
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> i32 {
    status(|| {
        // SAFETY: fi_close requires a valid argument.
        unsafe {
            // An endpoint uses the address vector.
            if Arc::strong_count(&object::<AddressVectorObject>(fid)?.vector) > 1 {
                return Err(libc::EBUSY);
            }
            take::<AddressVectorObject>(fid).map(|_| 0)
        }
    })
}

unsafe extern "C" fn bind(fid: *mut Fid, queue: *mut Fid, _flags: u64) -> i32 {
    status(|| {
        // SAFETY: fi_av_bind requires valid arguments.
        let (vector, queue) =
            unsafe { (object::<AddressVectorObject>(fid)?, object::<EventQueueObject>(queue)?) };
        *vector.events.lock().ignore_poison() = Some(queue.queue.clone());
        Ok(0)
    })
}

/// The distance from this address to the next one in the program's array. `None` if the string has no end.
fn stride(format: AddressFormat, address: &[u8]) -> Option<usize> {
    match format {
        AddressFormat::Binary => Some(BINARY_BYTES),
        AddressFormat::String => address.iter().position(|&byte| byte == 0).map(|end| end + 1),
    }
}

/// The bytes of an address of unknown length: a string up to its end.
pub(super) unsafe fn address_bytes<'a>(format: AddressFormat, address: *const u8) -> Result<&'a [u8], i32> {
    if address.is_null() {
        return Err(libc::EINVAL);
    }
    let length = match format {
        AddressFormat::Binary => BINARY_BYTES,
        // SAFETY: a string of the program, of which no more than the longest address is read.
        AddressFormat::String => unsafe { libc::strnlen(address.cast(), MAX_STRING_BYTES - 1) + 1 },
    };
    // SAFETY: as above; a binary address has a fixed length.
    Ok(unsafe { std::slice::from_raw_parts(address, length) })
}

unsafe extern "C" fn insert(
    vector: *mut FidAv,
    addresses: *const c_void,
    count: usize,
    numbers: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> i32 {
    status(|| {
        // SAFETY: fi_av_insert requires valid arguments, here and in the blocks below.
        let vector = unsafe { object::<AddressVectorObject>(vector)? };
        if flags & !MORE != 0 {
            return Err(EBADFLAGS);
        }
        let format = vector.domain.format;
        let mut next = addresses.cast::<u8>();
        let mut inserted = 0;
        for place in 0..count {
            // SAFETY: the array has `count` consecutive addresses.
            let bytes = unsafe { address_bytes(format, next)? };
            let name = Name::from_address(format, bytes);
            let number = name.map_or(ADDR_NOTAVAIL, |name| vector.vector.insert(name));
            if !numbers.is_null() {
                // SAFETY: the array has `count` numbers.
                unsafe { *numbers.add(place) = number };
            }
            inserted += usize::from(name.is_some());
            let Some(length) = stride(format, bytes) else { break };
            next = next.wrapping_add(length);
        }
        if !vector.is_asynchronous {
            return Ok(inserted);
        }
        let events = vector.events.lock().ignore_poison().clone().ok_or(ENOEQ)?;
        events.push(Event::entry(
            EVENT_AV_COMPLETE,
            (&raw const *vector).cast_mut().cast(),
            context,
            inserted as u64,
        ));
        Ok(0)
    })
}

// SAFETY: libfabric calls it with the arguments of fi_av_insertsvc.
unsafe extern "C" fn insertsvc(
    vector: *mut FidAv,
    node: *const c_char,
    service: *const c_char,
    number: *mut u64,
    _flags: u64,
    _context: *mut c_void,
) -> i32 {
    status(|| {
        // SAFETY: fi_av_insertsvc requires valid arguments, here and in the blocks below.
        let vector = unsafe { object::<AddressVectorObject>(vector)? };
        let text = |pointer: *const c_char| {
            // SAFETY: the strings end with a zero byte.
            (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_bytes())
        };
        let name = match text(node).and_then(|node| node.strip_prefix(PREFIX.as_bytes())) {
            Some(name) => Some(name),
            None => text(service),
        };
        let name = name.and_then(Name::new).ok_or(libc::EINVAL)?;
        if !number.is_null() {
            // SAFETY: as above.
            unsafe { *number = vector.vector.insert(name) };
        }
        Ok(1)
    })
}

unsafe extern "C" fn remove(vector: *mut FidAv, numbers: *mut u64, count: usize, _flags: u64) -> i32 {
    status(|| {
        // SAFETY: fi_av_remove requires valid arguments, here and in the blocks below.
        let vector = unsafe { object::<AddressVectorObject>(vector)? };
        if numbers.is_null() && count > 0 {
            return Err(libc::EINVAL);
        }
        let mut outcome = Ok(0);
        for place in 0..count {
            // SAFETY: the array has `count` numbers.
            if !vector.vector.remove(unsafe { *numbers.add(place) }) {
                outcome = Err(libc::EINVAL);
            }
        }
        outcome
    })
}

// SAFETY: libfabric calls it with the arguments of fi_av_lookup.
unsafe extern "C" fn lookup(
    vector: *mut FidAv,
    number: u64,
    address: *mut c_void,
    length: *mut usize,
) -> i32 {
    status(|| {
        // SAFETY: fi_av_lookup requires valid arguments, here and in the blocks below.
        let vector = unsafe { object::<AddressVectorObject>(vector)? };
        let name = vector.vector.name(number).ok_or(libc::EINVAL)?;
        // SAFETY: as above.
        unsafe { copy_address(name, vector.domain.format, address, length, true) }
    })
}

/// Copies as much of an address as fits to the program, and returns its whole length.
///
/// # Errors
/// `ETOOSMALL` if the buffer is too short, unless the address `may_be_cut`.
///
/// # Safety
/// `length` is null or valid; `address` is null or has this length.
pub(super) unsafe fn copy_address(
    name: Name,
    format: AddressFormat,
    address: *mut c_void,
    length: *mut usize,
    may_be_cut: bool,
) -> Result<usize, i32> {
    // SAFETY: guaranteed by the caller, here and in the blocks below.
    let length = unsafe { length.as_mut() }.ok_or(libc::EINVAL)?;
    let bytes = name.to_address(format);
    let available = std::mem::replace(length, bytes.len());
    let copied = available.min(bytes.len());
    if !address.is_null() {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address.cast(), copied) };
    }
    if copied < bytes.len() && !may_be_cut { Err(ETOOSMALL) } else { Ok(0) }
}

// SAFETY: libfabric calls it with the arguments of fi_av_straddr.
unsafe extern "C" fn straddr(
    vector: *mut FidAv,
    address: *const c_void,
    buffer: *mut c_char,
    length: *mut usize,
) -> *const c_char {
    // SAFETY: fi_av_straddr requires valid arguments.
    let text = unsafe {
        object::<AddressVectorObject>(vector).ok().and_then(|vector| {
            let format = vector.domain.format;
            Name::from_address(format, address_bytes(format, address.cast()).ok()?)
        })
    };
    let text = text.map_or_else(|| "invalid address".to_string(), |name| name.to_string());
    // SAFETY: as above.
    let available = unsafe { length.as_mut() }.map_or(0, |length| std::mem::replace(length, text.len() + 1));
    // SAFETY: as above.
    unsafe { copy_text(&text, buffer, available) }
}
