//! Posting descriptors and collecting them: between the form in a C program's memory and the library's.
//! Not trusting: a descriptor that contradicts itself completes with a format error.
//! Source: VIA, descriptor format; VIPL, data transfer and completion operations.

use crate::layout::*;
use crate::vi::ViObject;
use longma_via::{Completion, Descriptor, Error, MemoryHandle, Operation, RemoteSegment, Segment};
use std::ffi::{c_ulong, c_void};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The most segments, with the address segment.
const MOST_SEGMENTS: usize = 253;

/// A descriptor read out of the program's memory.
struct Parsed {
    operation: Operation,
    segments: [Segment; MOST_SEGMENTS],
    count: usize,
    remote: RemoteSegment,
    immediate: Option<u32>,
    fence: bool,
}

/// Reads a descriptor. `None`: it contradicts itself.
///
/// # Safety
/// `descriptor` must point to a control segment and as many segments as that says.
unsafe fn parse(descriptor: *const CDescriptor, receive: bool) -> Option<Parsed> {
    // SAFETY: as the caller says.
    let control = unsafe { (*descriptor).control };
    let count = control.segment_count as usize;
    if control.control & CONTROL_RESERVED != 0 || count > MOST_SEGMENTS {
        return None;
    }
    let operation = match control.control & CONTROL_OPERATION {
        0 if receive => Operation::Receive,
        0 => Operation::Send,
        1 if !receive => Operation::RdmaWrite,
        2 if !receive => Operation::RdmaRead,
        _ => return None,
    };
    let first = descriptor.cast::<u8>().wrapping_add(size_of::<ControlSegment>()).cast::<DataSegment>();
    let mut remote = RemoteSegment::default();
    let skip = usize::from(matches!(operation, Operation::RdmaWrite | Operation::RdmaRead));
    if skip == 1 {
        if count == 0 {
            return None;
        }
        // SAFETY: the first of at least one segment.
        let address = unsafe { first.read() };
        remote = RemoteSegment { address: address.address, handle: MemoryHandle(address.handle) };
    }
    let mut segments = [Segment { address: 0, handle: MemoryHandle(0), length: 0 }; MOST_SEGMENTS];
    let mut sum = 0u64;
    for (index, place) in segments[..count - skip].iter_mut().enumerate() {
        // SAFETY: one of `count` segments.
        let from = unsafe { first.add(index + skip).read() };
        *place = Segment { address: from.address, handle: MemoryHandle(from.handle), length: from.length };
        sum += u64::from(from.length);
    }
    // The control segment repeats the sum; a receive may offer more room than it says.
    if !receive && sum != u64::from(control.length) {
        return None;
    }
    let immediate = (control.control & CONTROL_IMMEDIATE != 0).then_some(control.immediate);
    let fence = control.control & CONTROL_FENCE != 0;
    Some(Parsed { operation, segments, count: count - skip, remote, immediate, fence })
}

/// Whether a descriptor is where one may be: aligned, and in registered memory.
///
/// # Safety
/// `descriptor` must be null or point to a descriptor.
unsafe fn is_in_place(vi: &ViObject, descriptor: *const CDescriptor, memory: u32) -> bool {
    if descriptor.is_null() || !descriptor.addr().is_multiple_of(64) {
        return false;
    }
    // SAFETY: as the caller says.
    let segments = u64::from(unsafe { (*descriptor).control.segment_count });
    let bytes = size_of::<ControlSegment>() as u64 + segments * size_of::<DataSegment>() as u64;
    vi.nic.covers(memory, descriptor.addr() as u64, bytes)
}

/// # Safety
/// As the crate's head says.
unsafe fn post(vi: Handle, descriptor: *mut CDescriptor, memory: u32, receive: bool) -> Return {
    // SAFETY: as the caller says.
    let Some(vi) = (unsafe { ViObject::of(vi) }) else { return Return::InvalidParameter };
    // SAFETY: as the caller says.
    if !unsafe { is_in_place(vi, descriptor, memory) } {
        return Return::InvalidParameter;
    }
    // SAFETY: in place, so all of it is registered memory; it is the library's from now until it completes.
    let parsed = unsafe {
        (*descriptor).control.status = 0;
        parse(descriptor, receive)
    };
    let context = descriptor.addr() as u64;
    let posted = match (&parsed, receive) {
        (Some(parsed), _) => {
            let value = Descriptor {
                operation: parsed.operation,
                segments: &parsed.segments[..parsed.count],
                remote: parsed.remote,
                immediate: parsed.immediate,
                fence: parsed.fence,
                context,
            };
            if receive { vi.vi.post_receive(&value) } else { vi.vi.post_send(&value) }
        }
        // Nothing can ask for this operation, so that it completes with a format error in its turn.
        (None, false) => vi.vi.post_send(
            &Descriptor { operation: Operation::RemoteRdmaWrite, ..Descriptor::send(&[]) }
                .with_context(context),
        ),
        (None, true) => return Return::InvalidParameter,
    };
    outcome(posted)
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipPostSend(vi: Handle, descriptor: *mut CDescriptor, memory: u32) -> Return {
    // SAFETY: as the crate's head says.
    unsafe { post(vi, descriptor, memory, false) }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipPostRecv(vi: Handle, descriptor: *mut CDescriptor, memory: u32) -> Return {
    // SAFETY: as the crate's head says.
    unsafe { post(vi, descriptor, memory, true) }
}

/// Writes a completion into its descriptor, and gives that back.
///
/// # Safety
/// The completion must be of a descriptor that `post` took, which is still there, as VIPL asks.
unsafe fn give_back(completion: &Completion, to: *mut *mut CDescriptor) -> Return {
    let descriptor = completion.context as *mut CDescriptor;
    // SAFETY: as the caller says.
    unsafe {
        let control = &raw mut (*descriptor).control;
        (*control).length = completion.length;
        if let Some(immediate) = completion.immediate {
            (*control).immediate = immediate;
        }
        // Last: a program may look at the status alone.
        (&raw mut (*control).status).write_volatile(status_word(completion.operation, completion.status));
        if !to.is_null() {
            to.write(descriptor);
        }
    }
    if completion.is_success() { Return::Success } else { Return::DescriptorError }
}

/// # Safety
/// As the crate's head says.
unsafe fn done(vi: Handle, to: *mut *mut CDescriptor, receive: bool) -> Return {
    // SAFETY: as the caller says.
    let Some(vi) = (unsafe { ViObject::of(vi) }) else { return Return::InvalidParameter };
    let completion = if receive { vi.vi.receive_done() } else { vi.vi.send_done() };
    match completion {
        // SAFETY: every descriptor of this VI was posted by `post`.
        Some(completion) => unsafe { give_back(&completion, to) },
        None => Return::NotDone,
    }
}

/// # Safety
/// As the crate's head says.
unsafe fn wait(vi: Handle, milliseconds: c_ulong, to: *mut *mut CDescriptor, receive: bool) -> Return {
    // SAFETY: as the caller says.
    let Some(vi) = (unsafe { ViObject::of(vi) }) else { return Return::InvalidParameter };
    let limit = timeout(milliseconds);
    let completion = if receive { vi.vi.receive_wait(limit) } else { vi.vi.send_wait(limit) };
    match completion {
        // SAFETY: every descriptor of this VI was posted by `post`.
        Ok(completion) => unsafe { give_back(&completion, to) },
        Err(error) => Return::from(&error),
    }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipSendDone(vi: Handle, descriptor: *mut *mut CDescriptor) -> Return {
    // SAFETY: as the crate's head says.
    unsafe { done(vi, descriptor, false) }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipRecvDone(vi: Handle, descriptor: *mut *mut CDescriptor) -> Return {
    // SAFETY: as the crate's head says.
    unsafe { done(vi, descriptor, true) }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipSendWait(
    vi: Handle,
    milliseconds: c_ulong,
    descriptor: *mut *mut CDescriptor,
) -> Return {
    // SAFETY: as the crate's head says.
    unsafe { wait(vi, milliseconds, descriptor, false) }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipRecvWait(
    vi: Handle,
    milliseconds: c_ulong,
    descriptor: *mut *mut CDescriptor,
) -> Return {
    // SAFETY: as the crate's head says.
    unsafe { wait(vi, milliseconds, descriptor, true) }
}

type Notified = unsafe extern "C" fn(*mut c_void, Handle, Handle, *mut CDescriptor);

/// How often a thread that waits for the program looks whether its object is gone.
pub(crate) const NOTIFY_SLICE: Duration = Duration::from_millis(100);

/// # Safety
/// As the crate's head says.
unsafe fn notify(handle: Handle, context: *mut c_void, handler: Option<Notified>, receive: bool) -> Return {
    // SAFETY: as the caller says.
    let (Some(vi), Some(handler)) = (unsafe { ViObject::shared(handle) }, handler) else {
        return Return::InvalidParameter;
    };
    let (context, handle) = (context.addr(), handle.addr());
    let work = move || {
        while !vi.destroyed.load(Ordering::Acquire) {
            let limit = Some(NOTIFY_SLICE);
            let completion = if receive { vi.vi.receive_wait(limit) } else { vi.vi.send_wait(limit) };
            match completion {
                Ok(completion) => {
                    let mut descriptor = std::ptr::null_mut();
                    // SAFETY: every descriptor of this VI was posted by `post`; the program gave the handler for this.
                    unsafe {
                        give_back(&completion, &raw mut descriptor);
                        handler(
                            context as *mut c_void,
                            vi.nic_handle as Handle,
                            handle as Handle,
                            descriptor,
                        );
                    }
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

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipSendNotify(vi: Handle, context: *mut c_void, handler: Option<Notified>) -> Return {
    // SAFETY: as the crate's head says.
    unsafe { notify(vi, context, handler, false) }
}

// SAFETY: the name is VIPL's; nothing else defines it. What callers owe is in the crate's head.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipRecvNotify(vi: Handle, context: *mut c_void, handler: Option<Notified>) -> Return {
    // SAFETY: as the crate's head says.
    unsafe { notify(vi, context, handler, true) }
}
