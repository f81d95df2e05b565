//! Posting and collecting descriptors: converts between the C layout and the library's. Invalid descriptors complete
//! with a format error.
//!
//! Source: VIA, descriptor format; VIPL, data transfer and completion operations.

use crate::completion::status_of;
use crate::completion_queue::NOTIFY_SLICE;
use crate::layout::*;
use crate::vi::{VIS, ViObject};
use longma_via::{Completion, Descriptor, Error, MemoryHandle, Operation, RemoteSegment, Segment};
use std::ffi::{c_ulong, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

/// The maximum number of segments, including the address segment.
const MAX_SEGMENTS: usize = 253;

/// A buffer for the segments of a descriptor, of which only the descriptor's segments are initialized.
type SegmentBuffer = [MaybeUninit<Segment>; MAX_SEGMENTS];

/// A copy of a descriptor's control segment, and the address of its first segment.
struct RawDescriptor {
    control: ControlSegment,
    first: *const DataSegment,
}

/// Reads the control segment of a descriptor, which must be aligned and, with all its segments, in registered memory.
/// The program must not modify the descriptor during the call, but may do so by mistake.
fn read_descriptor(vi: &ViObject, descriptor: *const CDescriptor, memory: u32) -> Option<RawDescriptor> {
    let covers = |bytes: usize| {
        let (address, length) = (descriptor.addr() as u64, bytes as u32);
        vi.vi.is_registered(&Segment { address, handle: MemoryHandle(memory), length })
    };
    let head = size_of::<ControlSegment>();
    let usual = size_of::<CDescriptor>();
    if descriptor.is_null() || !descriptor.addr().is_multiple_of(64) {
        return None;
    }
    let has_usual = covers(usual);
    if !has_usual && !covers(head) {
        return None;
    }
    // SAFETY: the memory is registered, and VIPL requires registered memory to be mapped.
    let control = unsafe { descriptor.cast::<ControlSegment>().read_volatile() };
    let all = head + usize::from(control.segment_count) * size_of::<DataSegment>();
    let inside = has_usual && all <= usual || covers(all);
    let first = descriptor.cast::<u8>().wrapping_add(head).cast();
    inside.then_some(RawDescriptor { control, first })
}

fn operation_of(control: &ControlSegment, receive: bool) -> Option<Operation> {
    Some(match control.control & CONTROL_OPERATION {
        0 if receive => Operation::Receive,
        0 => Operation::Send,
        1 if !receive => Operation::RdmaWrite,
        2 if !receive => Operation::RdmaRead,
        _ => return None,
    })
}

impl RawDescriptor {
    /// Converts the descriptor, with its segments in `segment_buffer`. `None` if it is invalid.
    ///
    /// # Safety
    /// All of its segments must be mapped.
    unsafe fn read<'a>(
        &self,
        receive: bool,
        segment_buffer: &'a mut SegmentBuffer,
    ) -> Option<Descriptor<'a>> {
        let control = &self.control;
        let count = usize::from(control.segment_count);
        let operation = operation_of(control, receive)?;
        if control.control & CONTROL_RESERVED != 0 || count > MAX_SEGMENTS {
            return None;
        }
        let mut remote = RemoteSegment::default();
        let skip = usize::from(matches!(operation, Operation::RdmaWrite | Operation::RdmaRead));
        if skip > count {
            return None;
        }
        if skip == 1 {
            // SAFETY: there is at least one segment.
            let address = unsafe { self.first.read_volatile() };
            remote = RemoteSegment { address: address.address, handle: MemoryHandle(address.handle) };
        }
        let mut sum = 0u64;
        for (index, slot) in segment_buffer[..count - skip].iter_mut().enumerate() {
            // SAFETY: the index is less than `count`.
            let from = unsafe { self.first.add(index + skip).read_volatile() };
            let handle = MemoryHandle(from.handle);
            slot.write(Segment { address: from.address, handle, length: from.length });
            sum += u64::from(from.length);
        }
        // The control segment repeats the total length. The segments of a receive may be longer.
        if !receive && sum != u64::from(control.length) {
            return None;
        }
        // SAFETY: these elements were written above.
        let segments =
            unsafe { std::slice::from_raw_parts(segment_buffer.as_ptr().cast::<Segment>(), count - skip) };
        Some(Descriptor {
            remote,
            immediate: (control.control & CONTROL_IMMEDIATE != 0).then_some(control.immediate),
            fence: control.control & CONTROL_FENCE != 0,
            ..plain(operation, segments)
        })
    }
}

fn plain(operation: Operation, segments: &[Segment]) -> Descriptor<'_> {
    Descriptor { operation, ..Descriptor::send(segments) }
}

/// More segments than a descriptor may have. An invalid descriptor is posted with these, so that it completes with a
/// format error in order.
static TOO_MANY: [Segment; MAX_SEGMENTS + 1] =
    [Segment { address: 0, handle: MemoryHandle(0), length: 0 }; MAX_SEGMENTS + 1];

fn post(vi: &ViObject, descriptor: *mut CDescriptor, memory: u32, receive: bool) -> Return {
    let Some(raw) = read_descriptor(vi, descriptor, memory) else { return Return::InvalidParameter };
    let mut segment_buffer: SegmentBuffer = [const { MaybeUninit::uninit() }; MAX_SEGMENTS];
    // SAFETY: the whole descriptor is in registered memory, which VIPL requires to be mapped.
    let read = unsafe { raw.read(receive, &mut segment_buffer) };
    let usual = if receive { Operation::Receive } else { Operation::Send };
    let read = read.unwrap_or_else(|| plain(operation_of(&raw.control, receive).unwrap_or(usual), &TOO_MANY));
    let read = Descriptor { context: descriptor.addr() as u64, context_memory: MemoryHandle(memory), ..read };
    // SAFETY: the descriptor is valid; it belongs to the library from now until it completes.
    unsafe { status_of(descriptor) }.store(0, Ordering::Relaxed);
    outcome(if receive { vi.vi.post_receive(&read) } else { vi.vi.post_send(&read) })
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipPostSend(vi: Handle, descriptor: *mut CDescriptor, memory: u32) -> Return {
    VIS.with(vi, |vi| post(vi, descriptor, memory, false)).unwrap_or(Return::InvalidParameter)
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipPostRecv(vi: Handle, descriptor: *mut CDescriptor, memory: u32) -> Return {
    VIS.with(vi, |vi| post(vi, descriptor, memory, true)).unwrap_or(Return::InvalidParameter)
}

/// Returns the descriptor of a completion to the program. The result has already been stored in the descriptor.
///
/// # Safety
/// `to` must be null or point to writable memory.
unsafe fn return_descriptor(completion: &Completion, to: *mut *mut CDescriptor) -> Return {
    if !to.is_null() {
        // SAFETY: guaranteed by the caller.
        unsafe { to.write(completion.context as *mut CDescriptor) };
    }
    if completion.is_success() { Return::Success } else { Return::DescriptorError }
}

/// # Safety
/// As stated in the crate documentation.
unsafe fn done(vi: Handle, to: *mut *mut CDescriptor, receive: bool) -> Return {
    let result = VIS.with(vi, |vi| {
        let completion = if receive { vi.vi.receive_done() } else { vi.vi.send_done() };
        // SAFETY: guaranteed by the caller.
        completion.map_or(Return::NotDone, |completion| unsafe { return_descriptor(&completion, to) })
    });
    result.unwrap_or(Return::InvalidParameter)
}

/// # Safety
/// As stated in the crate documentation.
unsafe fn wait(vi: Handle, milliseconds: c_ulong, to: *mut *mut CDescriptor, receive: bool) -> Return {
    // SAFETY: guaranteed by the caller.
    let result = unsafe { done(vi, to, receive) };
    if result != Return::NotDone {
        return result;
    }
    let enter = |vi: &ViObject| _ = vi.waiting.fetch_add(1, Ordering::AcqRel);
    let Some(vi) = VIS.shared_after(vi, enter) else { return Return::InvalidParameter };
    let limit = timeout(milliseconds);
    let completion = if receive { vi.vi.receive_wait(limit) } else { vi.vi.send_wait(limit) };
    vi.waiting.fetch_sub(1, Ordering::AcqRel);
    match completion {
        // SAFETY: guaranteed by the caller.
        Ok(completion) => unsafe { return_descriptor(&completion, to) },
        Err(error) => Return::from(&error),
    }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipSendDone(vi: Handle, descriptor: *mut *mut CDescriptor) -> Return {
    // SAFETY: see the crate documentation.
    unsafe { done(vi, descriptor, false) }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipRecvDone(vi: Handle, descriptor: *mut *mut CDescriptor) -> Return {
    // SAFETY: see the crate documentation.
    unsafe { done(vi, descriptor, true) }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipSendWait(
    vi: Handle,
    milliseconds: c_ulong,
    descriptor: *mut *mut CDescriptor,
) -> Return {
    // SAFETY: see the crate documentation.
    unsafe { wait(vi, milliseconds, descriptor, false) }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipRecvWait(
    vi: Handle,
    milliseconds: c_ulong,
    descriptor: *mut *mut CDescriptor,
) -> Return {
    // SAFETY: see the crate documentation.
    unsafe { wait(vi, milliseconds, descriptor, true) }
}

type Notified = unsafe extern "C" fn(*mut c_void, Handle, Handle, *mut CDescriptor);

/// # Safety
/// As stated in the crate documentation.
unsafe fn notify(handle: Handle, context: *mut c_void, handler: Option<Notified>, receive: bool) -> Return {
    let (Some(vi), Some(handler)) = (VIS.shared(handle), handler) else {
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
                    let of: fn(usize) -> Handle = std::ptr::without_provenance_mut;
                    // SAFETY: the pointer is to a local variable; the program supplied the handler and its context for
                    // this purpose.
                    unsafe {
                        return_descriptor(&completion, &raw mut descriptor);
                        handler(context as *mut c_void, of(vi.nic_handle), of(handle), descriptor);
                    }
                    return;
                }
                Err(Error::Timeout) => {}
                // A descriptor may still be posted; it is then flushed.
                Err(Error::ConnectionEnded(_)) => std::thread::sleep(NOTIFY_SLICE),
                Err(_) => return,
            }
        }
    };
    match std::thread::Builder::new().name("vipl-notify".into()).spawn(work) {
        Ok(_) => Return::Success,
        Err(_) => Return::ErrorResource,
    }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipSendNotify(vi: Handle, context: *mut c_void, handler: Option<Notified>) -> Return {
    // SAFETY: see the crate documentation.
    unsafe { notify(vi, context, handler, false) }
}

// SAFETY: the symbol is VIPL's and is defined only here. The crate documentation states the caller's obligations.
#[unsafe(no_mangle)]
unsafe extern "C" fn VipRecvNotify(vi: Handle, context: *mut c_void, handler: Option<Notified>) -> Return {
    // SAFETY: see the crate documentation.
    unsafe { notify(vi, context, handler, true) }
}
