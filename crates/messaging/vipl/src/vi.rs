//! Virtual interfaces.
//!
//! Source: VIPL, endpoint creation and destruction; querying information.

use crate::completion::store_completion;
use crate::completion_queue::CqObject;
use crate::handles::Table;
use crate::layout::*;
use crate::nic::{NICS, NicObject};
use longma_locks::IgnorePoison;
use longma_via::{Error, Vi, ViAttributes, ViState};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// The object behind a `VIP_VI_HANDLE`.
pub(crate) struct ViObject {
    pub(crate) vi: Vi,
    pub(crate) nic: Arc<NicObject>,
    pub(crate) nic_handle: usize,
    pub(crate) destroyed: AtomicBool,
    /// The number of the program's threads waiting for a completion.
    pub(crate) waiting: AtomicU32,
    /// The thread of a peer-to-peer connection attempt.
    pub(crate) connecting: Mutex<Option<JoinHandle<Result<ViAttributes, Error>>>>,
}

pub(crate) static VIS: Table<ViObject> = Table::new(2);

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipCreateVi(
    nic_handle: Handle,
    attributes: *const CViAttributes,
    send: Handle,
    receive: Handle,
    handle: *mut Handle,
) -> Return {
    // SAFETY: see the crate documentation.
    let (nic, attributes) = unsafe { (NICS.shared(nic_handle), CViAttributes::read(attributes)) };
    let Some(nic) = nic else { return Return::InvalidParameter };
    let attributes = match attributes {
        Ok(attributes) if !handle.is_null() => attributes,
        Ok(_) => return Return::InvalidParameter,
        Err(error) => return error,
    };
    let (Ok(send), Ok(receive)) = (CqObject::for_vi(send, &nic), CqObject::for_vi(receive, &nic)) else {
        return Return::InvalidParameter;
    };
    let (send, receive) = (send.as_ref().map(|object| &object.cq), receive.as_ref().map(|object| &object.cq));
    let created = nic.nic.create_vi(attributes, send, receive);
    let vi = match created {
        Ok(vi) => vi,
        Err(error) => return Return::from(&error),
    };
    vi.on_completion(store_completion);
    let number = vi.number();
    let object = Arc::new(ViObject {
        vi,
        nic: nic.clone(),
        nic_handle: nic_handle.addr(),
        destroyed: AtomicBool::new(false),
        waiting: AtomicU32::new(0),
        connecting: Mutex::default(),
    });
    let Some(new_handle) = VIS.insert(object) else { return Return::ErrorResource };
    nic.vis.lock().ignore_poison().insert(number, new_handle.addr());
    // SAFETY: not null, and points to writable memory of the caller.
    unsafe { handle.write(new_handle) };
    Return::Success
}

/// Checks that a VI may be destroyed: it is idle, no thread waits for it, and its queues are empty.
fn may_destroy(object: &ViObject) -> Result<(), Return> {
    if object.vi.state() != ViState::Idle {
        return Err(Return::InvalidState);
    }
    if object.vi.queues_empty() != (true, true) || object.waiting.load(Ordering::Acquire) > 0 {
        return Err(Return::ErrorResource);
    }
    Ok(())
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipDestroyVi(handle: Handle) -> Return {
    match VIS.remove(handle, may_destroy) {
        Ok(object) => {
            object.destroyed.store(true, Ordering::Release);
            object.nic.vis.lock().ignore_poison().remove(&object.vi.number());
            Return::Success
        }
        Err(refusal) => refusal,
    }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipSetViAttributes(handle: Handle, attributes: *const CViAttributes) -> Return {
    // SAFETY: see the crate documentation.
    let (object, attributes) = unsafe { (VIS.shared(handle), CViAttributes::read(attributes)) };
    match (object, attributes) {
        (Some(object), Ok(attributes)) => outcome(object.vi.set_attributes(attributes)),
        (None, _) => Return::InvalidParameter,
        (_, Err(error)) => error,
    }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipQueryVi(
    handle: Handle,
    state: *mut c_int,
    attributes: *mut CViAttributes,
    send_empty: *mut c_int,
    receive_empty: *mut c_int,
) -> Return {
    let Some(object) = VIS.shared(handle) else { return Return::InvalidParameter };
    let (send, receive) = object.vi.queues_empty();
    let put = |place: *mut c_int, value: c_int| {
        if !place.is_null() {
            // SAFETY: not null, and points to writable memory of the caller.
            unsafe { place.write(value) };
        }
    };
    put(state, object.vi.state() as c_int);
    put(send_empty, c_int::from(send));
    put(receive_empty, c_int::from(receive));
    // SAFETY: null, or points to writable memory of the caller.
    unsafe { CViAttributes::write(attributes, &object.vi.attributes()) };
    Return::Success
}
