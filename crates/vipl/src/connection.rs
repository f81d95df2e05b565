//! Connections: client and server, and peer to peer.
//! Not the letters that the processes exchange.
//! Source: VIPL, connection management.

use crate::layout::*;
use crate::nic::{NicObject, lock};
use crate::vi::ViObject;
use longma_via::ConnectionRequest;
use std::ffi::c_ulong;

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipConnectWait(
    nic: Handle,
    local: *const NetAddress,
    milliseconds: c_ulong,
    remote: *mut NetAddress,
    attributes: *mut CViAttributes,
    connection: *mut Handle,
) -> Return {
    // SAFETY: as the crate's head says.
    let (nic, local) = unsafe { (NicObject::of(nic), NetAddress::read(local)) };
    let (Some(nic), Some(local)) = (nic, local) else { return Return::InvalidParameter };
    if connection.is_null() {
        return Return::InvalidParameter;
    }
    match nic.nic.connect_wait(&local, timeout(milliseconds)) {
        Ok(request) => {
            // SAFETY: null, or the caller's to fill.
            unsafe {
                NetAddress::write(remote, request.remote());
                CViAttributes::write(attributes, request.remote_attributes());
                connection.write(Box::into_raw(Box::new(request)).cast());
            }
            Return::Success
        }
        Err(error) => Return::from(&error),
    }
}

/// # Safety
/// `connection` must be null or a request that was not answered.
unsafe fn request_of(connection: Handle) -> Option<Box<ConnectionRequest>> {
    // SAFETY: as the caller says.
    (!connection.is_null()).then(|| unsafe { Box::from_raw(connection.cast::<ConnectionRequest>()) })
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipConnectAccept(connection: Handle, vi: Handle) -> Return {
    // SAFETY: as the crate's head says.
    let (vi, request) = unsafe { (ViObject::of(vi), request_of(connection)) };
    match (vi, request) {
        (Some(vi), Some(request)) => outcome(request.accept(&vi.vi)),
        _ => Return::InvalidParameter,
    }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipConnectReject(connection: Handle) -> Return {
    // SAFETY: as the crate's head says.
    let Some(request) = (unsafe { request_of(connection) }) else { return Return::InvalidParameter };
    request.reject();
    Return::Success
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipConnectRequest(
    vi: Handle,
    local: *const NetAddress,
    remote: *const NetAddress,
    milliseconds: c_ulong,
    attributes: *mut CViAttributes,
) -> Return {
    // SAFETY: as the crate's head says.
    let (vi, local, remote) =
        unsafe { (ViObject::of(vi), NetAddress::read(local), NetAddress::read(remote)) };
    let (Some(vi), Some(local), Some(remote)) = (vi, local, remote) else { return Return::InvalidParameter };
    match vi.vi.connect(&local, &remote, timeout(milliseconds)) {
        Ok(theirs) => {
            // SAFETY: null, or the caller's to fill.
            unsafe { CViAttributes::write(attributes, &theirs) };
            Return::Success
        }
        Err(error) => Return::from(&error),
    }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipDisconnect(vi: Handle) -> Return {
    // SAFETY: as the crate's head says.
    let Some(vi) = (unsafe { ViObject::of(vi) }) else { return Return::InvalidParameter };
    outcome(vi.vi.disconnect())
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipConnectPeerRequest(
    vi: Handle,
    local: *const NetAddress,
    remote: *const NetAddress,
    milliseconds: c_ulong,
) -> Return {
    // SAFETY: as the crate's head says.
    let (vi, local, remote) =
        unsafe { (ViObject::shared(vi), NetAddress::read(local), NetAddress::read(remote)) };
    let (Some(vi), Some(local), Some(remote)) = (vi, local, remote) else { return Return::InvalidParameter };
    let mut connecting = lock(&vi.connecting);
    if connecting.is_some() {
        return Return::InvalidState;
    }
    let other = vi.clone();
    let work = move || other.vi.connect_peer(&local, &remote, timeout(milliseconds));
    match std::thread::Builder::new().name("vipl-peer".into()).spawn(work) {
        Ok(thread) => {
            *connecting = Some(thread);
            Return::Success
        }
        Err(_) => Return::ErrorResource,
    }
}

/// # Safety
/// As the crate's head says.
unsafe fn peer_outcome(vi: Handle, attributes: *mut CViAttributes, wait: bool) -> Return {
    // SAFETY: as the caller says.
    let Some(vi) = (unsafe { ViObject::of(vi) }) else { return Return::InvalidParameter };
    let mut connecting = lock(&vi.connecting);
    match connecting.take() {
        None => Return::InvalidState,
        Some(thread) if !wait && !thread.is_finished() => {
            *connecting = Some(thread);
            Return::NotDone
        }
        Some(thread) => match thread.join() {
            Ok(Ok(theirs)) => {
                // SAFETY: null, or the caller's to fill.
                unsafe { CViAttributes::write(attributes, &theirs) };
                Return::Success
            }
            Ok(Err(error)) => Return::from(&error),
            Err(_) => Return::ErrorResource,
        },
    }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipConnectPeerDone(vi: Handle, attributes: *mut CViAttributes) -> Return {
    // SAFETY: as the crate's head says.
    unsafe { peer_outcome(vi, attributes, false) }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipConnectPeerWait(vi: Handle, attributes: *mut CViAttributes) -> Return {
    // SAFETY: as the crate's head says.
    unsafe { peer_outcome(vi, attributes, true) }
}
