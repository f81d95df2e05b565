//! Connections: client/server and peer-to-peer.
//!
//! Source: VIPL, connection management.

use crate::handles::Table;
use crate::layout::*;
use crate::nic::{NICS, return_handle};
use crate::vi::VIS;
use longma_locks::IgnorePoison;
use longma_via::ConnectionRequest;
use std::ffi::c_ulong;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

/// The object behind a `VIP_CONN_HANDLE`: an unanswered request. The handle is valid until the request is accepted or
/// rejected.
struct Waiting {
    request: Mutex<Option<ConnectionRequest>>,
}

static REQUESTS: Table<Waiting> = Table::new(4);

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipConnectWait(
    nic: Handle,
    local: *const NetAddress,
    milliseconds: c_ulong,
    remote: *mut NetAddress,
    attributes: *mut CViAttributes,
    connection: *mut Handle,
) -> Return {
    // SAFETY: see the crate documentation.
    let (nic, local) = unsafe { (NICS.shared(nic), NetAddress::read(local)) };
    let (Some(nic), Some(local)) = (nic, local) else { return Return::InvalidParameter };
    if connection.is_null() {
        return Return::InvalidParameter;
    }
    let (deadline, longest) = (deadline(milliseconds), nic.nic.attributes().max_discriminator_bytes);
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let request = match nic.nic.connect_wait(&local, left) {
            Ok(request) => request,
            Err(error) => return Return::from(&error),
        };
        let from = request.remote();
        let host = nic.host_bytes(&from.host).filter(|_| from.discriminator.len() <= longest);
        let Some(host) = host else {
            // No peer that this NIC could answer has an address as long as this one, which does not fit into the
            // program's buffer.
            request.reject();
            continue;
        };
        // SAFETY: null, or writable memory of the caller; the address is not longer than the NIC's maximum.
        unsafe {
            NetAddress::write(remote, &host, &from.discriminator);
            CViAttributes::write(attributes, request.remote_attributes());
        }
        return return_handle(
            &REQUESTS,
            Arc::new(Waiting { request: Mutex::new(Some(request)) }),
            connection,
        );
    }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipConnectAccept(connection: Handle, vi: Handle) -> Return {
    let (Some(waiting), Some(vi)) = (REQUESTS.shared(connection), VIS.shared(vi)) else {
        return Return::InvalidParameter;
    };
    let mut held = waiting.request.lock().ignore_poison();
    // The peer was lost during an earlier accept, so there is no request left to answer.
    let Some(request) = held.take() else { return Return::Timeout };
    match vi.vi.accept(request) {
        Ok(()) => {
            // Another thread may have rejected the request during the accept; that rejection has no effect.
            let _ = REQUESTS.remove(connection, |_| Ok(()));
            Return::Success
        }
        Err((error, unanswered)) => {
            *held = unanswered;
            Return::from(&error)
        }
    }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipConnectReject(connection: Handle) -> Return {
    match REQUESTS.remove(connection, |_| Ok(())) {
        Ok(waiting) => {
            let request = waiting.request.lock().ignore_poison().take();
            request.into_iter().for_each(ConnectionRequest::reject);
            Return::Success
        }
        Err(refusal) => refusal,
    }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipConnectRequest(
    vi: Handle,
    local: *const NetAddress,
    remote: *const NetAddress,
    milliseconds: c_ulong,
    attributes: *mut CViAttributes,
) -> Return {
    // SAFETY: see the crate documentation.
    let (vi, local, remote) = unsafe { (VIS.shared(vi), NetAddress::read(local), NetAddress::read(remote)) };
    let (Some(vi), Some(local), Some(remote)) = (vi, local, remote) else { return Return::InvalidParameter };
    match vi.vi.connect(&local, &remote, timeout(milliseconds)) {
        Ok(theirs) => {
            // SAFETY: null, or points to writable memory of the caller.
            unsafe { CViAttributes::write(attributes, &theirs) };
            Return::Success
        }
        Err(error) => Return::from(&error),
    }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipDisconnect(vi: Handle) -> Return {
    VIS.shared(vi).map_or(Return::InvalidParameter, |vi| outcome(vi.vi.disconnect()))
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipConnectPeerRequest(
    vi: Handle,
    local: *const NetAddress,
    remote: *const NetAddress,
    milliseconds: c_ulong,
) -> Return {
    // SAFETY: see the crate documentation.
    let (vi, local, remote) = unsafe { (VIS.shared(vi), NetAddress::read(local), NetAddress::read(remote)) };
    let (Some(vi), Some(local), Some(remote)) = (vi, local, remote) else { return Return::InvalidParameter };
    let mut connecting = vi.connecting.lock().ignore_poison();
    if connecting.is_some() {
        return Return::InvalidState;
    }
    // The VI is connect pending when this call returns; a thread waits for the peer.
    let request = match vi.vi.request_peer(&local, &remote) {
        Ok(request) => request,
        Err(error) => return Return::from(&error),
    };
    let (other, limit) = (vi.clone(), timeout(milliseconds));
    let work = move || {
        let outcome = request.finish(limit);
        drop(other);
        outcome
    };
    match std::thread::Builder::new().name("vipl-peer".into()).spawn(work) {
        Ok(thread) => {
            *connecting = Some(thread);
            Return::Success
        }
        Err(_) => Return::ErrorResource,
    }
}

/// Returns the result of the VI's peer request, and writes the peer's attributes. With `wait`, waits for the result.
///
/// # Safety
/// As stated in the crate documentation.
unsafe fn peer_outcome(vi: Handle, attributes: *mut CViAttributes, wait: bool) -> Return {
    let Some(vi) = VIS.shared(vi) else { return Return::InvalidParameter };
    let thread = {
        let mut connecting = vi.connecting.lock().ignore_poison();
        if !wait && connecting.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Return::NotDone;
        }
        connecting.take()
    };
    match thread.map(JoinHandle::join) {
        None => Return::InvalidState,
        Some(Ok(Ok(theirs))) => {
            // SAFETY: null, or points to writable memory of the caller.
            unsafe { CViAttributes::write(attributes, &theirs) };
            Return::Success
        }
        Some(Ok(Err(error))) => Return::from(&error),
        Some(Err(_)) => Return::ErrorResource,
    }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipConnectPeerDone(vi: Handle, attributes: *mut CViAttributes) -> Return {
    // SAFETY: see the crate documentation.
    unsafe { peer_outcome(vi, attributes, false) }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipConnectPeerWait(vi: Handle, attributes: *mut CViAttributes) -> Return {
    // SAFETY: see the crate documentation.
    unsafe { peer_outcome(vi, attributes, true) }
}
