//! Completion queues.
//!
//! Source: VIPL, completion queue management.

use crate::handles::Table;
use crate::layout::*;
use crate::nic::{NICS, NicObject, return_handle};
use longma_locks::IgnorePoison;
use longma_via::{CompletionQueue, Error, Queue};
use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The interval at which a notification thread checks whether its object has been destroyed.
pub(crate) const NOTIFY_SLICE: Duration = Duration::from_millis(100);

/// The object behind a `VIP_CQ_HANDLE`.
pub(crate) struct CqObject {
    pub(crate) cq: CompletionQueue,
    nic: Arc<NicObject>,
    nic_handle: usize,
    destroyed: AtomicBool,
    /// The number of the program's threads waiting for a notification.
    waiting: AtomicU32,
    /// Held by the notification thread that waits for a completion. The other waiters wait for the lock.
    turn: Mutex<()>,
}

static QUEUES: Table<CqObject> = Table::new(3);

impl CqObject {
    /// The completion queue that a program passes for a VI of `nic`. A null handle means none.
    ///
    /// # Errors
    /// If the handle is not a completion queue of that NIC.
    pub(crate) fn for_vi(handle: Handle, nic: &Arc<NicObject>) -> Result<Option<Arc<CqObject>>, Return> {
        if handle.is_null() {
            return Ok(None);
        }
        let object = QUEUES.shared(handle).filter(|object| Arc::ptr_eq(&object.nic, nic));
        object.map(Some).ok_or(Return::InvalidParameter)
    }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipCreateCQ(nic_handle: Handle, entries: c_ulong, handle: *mut Handle) -> Return {
    let Some(nic) = NICS.shared(nic_handle) else { return Return::InvalidParameter };
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
                waiting: AtomicU32::new(0),
                turn: Mutex::default(),
            });
            return_handle(&QUEUES, object, handle)
        }
        Err(error) => Return::from(&error),
    }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipDestroyCQ(handle: Handle) -> Return {
    let may_destroy = |object: &CqObject| {
        let used = object.cq.has_vis() || object.waiting.load(Ordering::Acquire) > 0;
        if used { Err(Return::ErrorResource) } else { Ok(()) }
    };
    match QUEUES.remove(handle, may_destroy) {
        Ok(object) => {
            object.destroyed.store(true, Ordering::Release);
            Return::Success
        }
        Err(refusal) => refusal,
    }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipResizeCQ(handle: Handle, entries: c_ulong) -> Return {
    let Some(object) = QUEUES.shared(handle) else { return Return::InvalidParameter };
    outcome(object.cq.resize(entries as usize))
}

/// # Safety
/// Each pointer must be null or point to writable memory.
unsafe fn write_completion(
    object: &CqObject,
    (vi, queue): (u32, Queue),
    to: *mut Handle,
    receive: *mut c_int,
) -> Return {
    // SAFETY: guaranteed by the caller.
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

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipCQDone(handle: Handle, vi: *mut Handle, receive: *mut c_int) -> Return {
    let result = QUEUES.with(handle, |object| match object.cq.done() {
        // SAFETY: see the crate documentation.
        Some(notification) => unsafe { write_completion(object, notification, vi, receive) },
        None => Return::NotDone,
    });
    result.unwrap_or(Return::InvalidParameter)
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipCQWait(
    handle: Handle,
    milliseconds: c_ulong,
    vi: *mut Handle,
    receive: *mut c_int,
) -> Return {
    let enter = |queue: &CqObject| _ = queue.waiting.fetch_add(1, Ordering::AcqRel);
    let Some(object) = QUEUES.shared_after(handle, enter) else { return Return::InvalidParameter };
    let notification = object.cq.wait(timeout(milliseconds));
    object.waiting.fetch_sub(1, Ordering::AcqRel);
    match notification {
        // SAFETY: see the crate documentation.
        Ok(notification) => unsafe { write_completion(&object, notification, vi, receive) },
        Err(error) => Return::from(&error),
    }
}

type Notified = unsafe extern "C" fn(*mut c_void, Handle, Handle, c_int);

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipCQNotify(handle: Handle, context: *mut c_void, handler: Option<Notified>) -> Return {
    let (Some(object), Some(handler)) = (QUEUES.shared(handle), handler) else {
        return Return::InvalidParameter;
    };
    let context = context.addr();
    let work = move || {
        let turn = object.turn.lock().ignore_poison();
        while !object.destroyed.load(Ordering::Acquire) {
            match object.cq.wait(Some(NOTIFY_SLICE)) {
                Ok((vi, queue)) => {
                    drop(turn);
                    let nic: Handle = std::ptr::without_provenance_mut(object.nic_handle);
                    let vi = object.nic.handle_of_vi(vi);
                    // SAFETY: the program supplied the handler and its context for this purpose.
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
