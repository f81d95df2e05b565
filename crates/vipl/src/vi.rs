//! Virtual interfaces.
//! Not their connections and data.
//! Source: VIPL, endpoint creation and destruction; querying information.

use crate::completion_queue::CqObject;
use crate::layout::*;
use crate::nic::{NicObject, lock};
use longma_via::{Error, Vi, ViAttributes, ViState};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What a `VIP_VI_HANDLE` points to.
pub(crate) struct ViObject {
    pub(crate) vi: Vi,
    pub(crate) nic: Arc<NicObject>,
    pub(crate) nic_handle: usize,
    pub(crate) destroyed: AtomicBool,
    /// A peer-to-peer connection being made.
    pub(crate) connecting: Mutex<Option<JoinHandle<Result<ViAttributes, Error>>>>,
}

impl ViObject {
    /// # Safety
    /// `handle` must be null or a live VI.
    pub(crate) unsafe fn of(handle: Handle) -> Option<&'static ViObject> {
        // SAFETY: as the caller says; the reference is used within the call.
        unsafe { handle.cast_const().cast::<ViObject>().as_ref() }
    }

    /// A reference of its own, for a thread.
    ///
    /// # Safety
    /// As `of`.
    pub(crate) unsafe fn shared(handle: Handle) -> Option<Arc<ViObject>> {
        if handle.is_null() {
            return None;
        }
        let object = handle.cast_const().cast::<ViObject>();
        // SAFETY: the handle is an `Arc` that was turned into a pointer and is still owned by the program.
        unsafe {
            Arc::increment_strong_count(object);
            Some(Arc::from_raw(object))
        }
    }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipCreateVi(
    nic_handle: Handle,
    attributes: *const CViAttributes,
    send: Handle,
    receive: Handle,
    handle: *mut Handle,
) -> Return {
    // SAFETY: as the crate's head says.
    let (nic, attributes) = unsafe { (NicObject::of(nic_handle), CViAttributes::read(attributes)) };
    let Some(nic) = nic else { return Return::InvalidParameter };
    let attributes = match attributes {
        Ok(attributes) if !handle.is_null() => attributes,
        Ok(_) => return Return::InvalidParameter,
        Err(error) => return error,
    };
    // SAFETY: as the crate's head says.
    let (send, receive) = unsafe { (CqObject::of(send), CqObject::of(receive)) };
    let created = nic.nic.create_vi(attributes, send.map(|cq| &cq.cq), receive.map(|cq| &cq.cq));
    let vi = match created {
        Ok(vi) => vi,
        Err(error) => return Return::from(&error),
    };
    let number = vi.number();
    let object = Arc::new(ViObject {
        vi,
        nic: nic.clone(),
        nic_handle: nic_handle.addr(),
        destroyed: AtomicBool::new(false),
        connecting: Mutex::default(),
    });
    let pointer = Arc::into_raw(object).cast_mut();
    lock(&nic.vis).insert(number, pointer as usize);
    // SAFETY: not null, and the caller's to fill.
    unsafe { handle.write(pointer.cast()) };
    Return::Success
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipDestroyVi(handle: Handle) -> Return {
    // SAFETY: as the crate's head says.
    let Some(object) = (unsafe { ViObject::of(handle) }) else { return Return::InvalidParameter };
    if object.vi.state() == ViState::Connected {
        return Return::InvalidState;
    }
    object.destroyed.store(true, Ordering::Release);
    lock(&object.nic.vis).remove(&object.vi.number());
    // SAFETY: the program's own reference, which it gives back.
    drop(unsafe { Arc::from_raw(handle.cast_const().cast::<ViObject>()) });
    Return::Success
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipSetViAttributes(handle: Handle, attributes: *const CViAttributes) -> Return {
    // SAFETY: as the crate's head says.
    let (object, attributes) = unsafe { (ViObject::of(handle), CViAttributes::read(attributes)) };
    match (object, attributes) {
        (Some(object), Ok(attributes)) => outcome(object.vi.set_attributes(attributes)),
        (None, _) => Return::InvalidParameter,
        (_, Err(error)) => error,
    }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipQueryVi(
    handle: Handle,
    state: *mut c_int,
    attributes: *mut CViAttributes,
    send_empty: *mut c_int,
    receive_empty: *mut c_int,
) -> Return {
    // SAFETY: as the crate's head says.
    let Some(object) = (unsafe { ViObject::of(handle) }) else { return Return::InvalidParameter };
    let (send, receive) = object.vi.queues_empty();
    let put = |place: *mut c_int, value: c_int| {
        if !place.is_null() {
            // SAFETY: not null, and the caller's to fill.
            unsafe { place.write(value) };
        }
    };
    put(state, object.vi.state() as c_int);
    put(send_empty, c_int::from(send));
    put(receive_empty, c_int::from(receive));
    // SAFETY: null, or the caller's to fill.
    unsafe { CViAttributes::write(attributes, &object.vi.attributes()) };
    Return::Success
}
