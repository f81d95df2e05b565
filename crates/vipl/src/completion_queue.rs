//! Completion queues.
//! Not the descriptors: a program collects those from the VI that it is told.
//! Source: VIPL, completion queue management.

use crate::data::NOTIFY_SLICE;
use crate::layout::*;
use crate::nic::{NicObject, lock};
use longma_via::{CompletionQueue, Error, Queue};
use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// What a `VIP_CQ_HANDLE` points to.
pub(crate) struct CqObject {
    pub(crate) cq: CompletionQueue,
    nic: Arc<NicObject>,
    nic_handle: usize,
    destroyed: AtomicBool,
    /// One thread at a time may wait for the program.
    turn: Mutex<()>,
}

impl CqObject {
    /// # Safety
    /// `handle` must be null or a live completion queue.
    pub(crate) unsafe fn of(handle: Handle) -> Option<&'static CqObject> {
        // SAFETY: as the caller says; the reference is used within the call.
        unsafe { handle.cast_const().cast::<CqObject>().as_ref() }
    }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipCreateCQ(nic_handle: Handle, entries: c_ulong, handle: *mut Handle) -> Return {
    // SAFETY: as the crate's head says.
    let Some(nic) = (unsafe { NicObject::of(nic_handle) }) else { return Return::InvalidParameter };
    if handle.is_null() {
        return Return::InvalidParameter;
    }
    match nic.nic.create_completion_queue(entries as usize) {
        Ok(cq) => {
            let object = Arc::new(CqObject {
                cq,
                nic,
                nic_handle: nic_handle.addr(),
                destroyed: AtomicBool::new(false),
                turn: Mutex::default(),
            });
            // SAFETY: not null, and the caller's to fill.
            unsafe { handle.write(Arc::into_raw(object).cast_mut().cast()) };
            Return::Success
        }
        Err(error) => Return::from(&error),
    }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipDestroyCQ(handle: Handle) -> Return {
    // SAFETY: as the crate's head says.
    let Some(object) = (unsafe { CqObject::of(handle) }) else { return Return::InvalidParameter };
    object.destroyed.store(true, Ordering::Release);
    // SAFETY: the program's own reference, which it gives back.
    drop(unsafe { Arc::from_raw(handle.cast_const().cast::<CqObject>()) });
    Return::Success
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipResizeCQ(handle: Handle, entries: c_ulong) -> Return {
    // SAFETY: as the crate's head says.
    let Some(object) = (unsafe { CqObject::of(handle) }) else { return Return::InvalidParameter };
    outcome(object.cq.resize(entries as usize))
}

/// # Safety
/// The two places must be null or the caller's to fill.
unsafe fn tell(object: &CqObject, (vi, queue): (u32, Queue), to: *mut Handle, receive: *mut c_int) -> Return {
    // SAFETY: as the caller says.
    unsafe {
        if !to.is_null() {
            to.write(object.nic.handle_of_vi(vi));
        }
        if !receive.is_null() {
            receive.write(c_int::from(queue == Queue::Receive));
        }
    }
    Return::Success
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipCQDone(handle: Handle, vi: *mut Handle, receive: *mut c_int) -> Return {
    // SAFETY: as the crate's head says.
    let Some(object) = (unsafe { CqObject::of(handle) }) else { return Return::InvalidParameter };
    match object.cq.done() {
        // SAFETY: as the crate's head says.
        Some(notification) => unsafe { tell(object, notification, vi, receive) },
        None => Return::NotDone,
    }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipCQWait(
    handle: Handle,
    milliseconds: c_ulong,
    vi: *mut Handle,
    receive: *mut c_int,
) -> Return {
    // SAFETY: as the crate's head says.
    let Some(object) = (unsafe { CqObject::of(handle) }) else { return Return::InvalidParameter };
    match object.cq.wait(timeout(milliseconds)) {
        // SAFETY: as the crate's head says.
        Ok(notification) => unsafe { tell(object, notification, vi, receive) },
        Err(error) => Return::from(&error),
    }
}

type Notified = unsafe extern "C" fn(*mut c_void, Handle, Handle, c_int);

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipCQNotify(handle: Handle, context: *mut c_void, handler: Option<Notified>) -> Return {
    let Some(handler) = handler.filter(|_| !handle.is_null()) else { return Return::InvalidParameter };
    let pointer = handle.cast_const().cast::<CqObject>();
    // SAFETY: the handle is an `Arc` that was turned into a pointer and is still owned by the program.
    let object = unsafe {
        Arc::increment_strong_count(pointer);
        Arc::from_raw(pointer)
    };
    let context = context.addr();
    let work = move || {
        let turn = lock(&object.turn);
        while !object.destroyed.load(Ordering::Acquire) {
            match object.cq.wait(Some(NOTIFY_SLICE)) {
                Ok((vi, queue)) => {
                    drop(turn);
                    let (nic, vi) = (object.nic_handle as Handle, object.nic.handle_of_vi(vi));
                    // SAFETY: the program gave the handler and its context for this.
                    unsafe { handler(context as *mut c_void, nic, vi, c_int::from(queue == Queue::Receive)) };
                    return;
                }
                Err(Error::Timeout) => {}
                Err(_) => return,
            }
        }
    };
    match std::thread::Builder::new().name("vipl-notify".into()).spawn(work) {
        Ok(_) => Return::Success,
        Err(_) => Return::ErrorResource,
    }
}
