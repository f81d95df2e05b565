//! Event queues: connections, and asynchronous insertions into address vectors.

use super::completion_queue::time_limit;
use super::object::{Object, copy_text, fid, fid_operations, give, object, read, result, status, take};
use crate::abi::constants::*;
use crate::abi::{EqAttr, EqCmEntry, EqEntry, EqErrEntry, Fid, FidEq, FidFabric, Info, OpsEq, OpsFid};
use crate::core::completion::Watched;
use crate::core::error::{Failure, reason_text};
use longma_locks::IgnorePoison;
use std::collections::VecDeque;
use std::ffi::{c_char, c_void};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// An event: the bytes that the program reads, or a failure.
pub(super) struct Event {
    number: u32,
    bytes: Vec<u8>,
    failure: Option<(usize, usize, Failure)>,
}

impl Event {
    /// An event with a `fi_eq_entry`.
    pub(super) fn entry(number: u32, object: *mut Fid, context: *mut c_void, data: u64) -> Self {
        let entry = EqEntry { fid: object, context, data };
        // SAFETY: the structure has no padding.
        let bytes =
            unsafe { std::slice::from_raw_parts((&raw const entry).cast::<u8>(), size_of::<EqEntry>()) };
        Self { number, bytes: bytes.to_vec(), failure: None }
    }

    /// An event with a `fi_eq_cm_entry`. The program frees the information.
    pub(super) fn connection(number: u32, object: *mut Fid, info: *mut Info) -> Self {
        let entry = EqCmEntry { fid: object, info };
        // SAFETY: the structure has no padding.
        let bytes =
            unsafe { std::slice::from_raw_parts((&raw const entry).cast::<u8>(), size_of::<EqCmEntry>()) };
        Self { number, bytes: bytes.to_vec(), failure: None }
    }

    /// The failure of an object with this context.
    pub(super) fn failed(object: *mut Fid, context: *mut c_void, failure: Failure) -> Self {
        let failure = Some((object.expose_provenance(), context.expose_provenance(), failure));
        Self { number: 0, bytes: Vec::new(), failure }
    }
}

/// The events that the program has not read.
#[derive(Default)]
pub(super) struct EventQueue {
    events: Mutex<VecDeque<Event>>,
    arrived: Condvar,
    /// The connected endpoints on which a read of the queue makes progress.
    pub(super) watched: Watched,
}

impl EventQueue {
    pub(super) fn push(&self, event: Event) {
        self.events.lock().ignore_poison().push_back(event);
        self.arrived.notify_all();
    }
}

#[repr(C)]
pub(super) struct EventQueueObject {
    fid: FidEq,
    pub(super) queue: Arc<EventQueue>,
    may_wait: bool,
}

// SAFETY: the object begins with a `FidEq`, and only event queues have this class.
unsafe impl Object for EventQueueObject {
    const CLASS: usize = CLASS_EQ;
}

static FID: OpsFid = fid_operations(close);
static OPERATIONS: OpsEq =
    OpsEq { size: size_of::<OpsEq>(), read: read_event, readerr, write, sread, strerror };

/// `fi_eq_open`.
pub(super) unsafe extern "C" fn open(
    fabric: *mut FidFabric,
    attributes: *mut EqAttr,
    result: *mut *mut FidEq,
    context: *mut c_void,
) -> i32 {
    status(|| {
        // SAFETY: fi_eq_open requires valid arguments, here and in the blocks below.
        let attributes = unsafe {
            super::fabric::check(fabric)?;
            read(attributes)?
        };
        if !matches!(attributes.wait_obj, WAIT_NONE | WAIT_UNSPEC | WAIT_YIELD) {
            return Err(libc::ENOSYS);
        }
        let object = EventQueueObject {
            fid: FidEq { fid: fid(CLASS_EQ, context, &FID), ops: &raw const OPERATIONS },
            queue: Arc::new(EventQueue::default()),
            may_wait: attributes.wait_obj != WAIT_NONE,
        };
        // SAFETY: as above.
        unsafe { give(object, result) }
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> i32 {
    status(|| {
        // SAFETY: fi_close requires a valid argument.
        unsafe {
            if Arc::strong_count(&object::<EventQueueObject>(fid)?.queue) > 1 {
                return Err(libc::EBUSY);
            }
            take::<EventQueueObject>(fid).map(|_| 0)
        }
    })
}

/// Passes the next event to the program.
///
/// # Safety
/// `number` is null or can be written, and `buffer` is null or has `length` bytes that can be written.
unsafe fn deliver(
    events: &mut VecDeque<Event>,
    number: *mut u32,
    buffer: *mut c_void,
    length: usize,
    flags: u64,
) -> Result<usize, i32> {
    let Some(event) = events.front() else { return Err(libc::EAGAIN) };
    if event.failure.is_some() {
        return Err(EAVAIL);
    }
    if length < event.bytes.len() || buffer.is_null() || number.is_null() {
        return Err(ETOOSMALL);
    }
    // SAFETY: the arguments of fi_eq_read are valid and were checked above.
    unsafe {
        *number = event.number;
        std::ptr::copy_nonoverlapping(event.bytes.as_ptr(), buffer.cast(), event.bytes.len());
    }
    let taken = event.bytes.len();
    if flags & PEEK == 0 {
        events.pop_front();
    }
    Ok(taken)
}

unsafe extern "C" fn read_event(
    queue: *mut FidEq,
    number: *mut u32,
    buffer: *mut c_void,
    length: usize,
    flags: u64,
) -> isize {
    result(|| {
        // SAFETY: fi_eq_read requires valid arguments, here and in the blocks below.
        let queue = unsafe { object::<EventQueueObject>(queue)? };
        queue.queue.watched.progress();
        let mut events = queue.queue.events.lock().ignore_poison();
        // SAFETY: as above.
        unsafe { deliver(&mut events, number, buffer, length, flags) }
    })
}

unsafe extern "C" fn sread(
    queue: *mut FidEq,
    number: *mut u32,
    buffer: *mut c_void,
    length: usize,
    timeout: i32,
    flags: u64,
) -> isize {
    result(|| {
        // SAFETY: fi_eq_sread requires valid arguments, here and in the blocks below.
        let queue = unsafe { object::<EventQueueObject>(queue)? };
        if !queue.may_wait {
            return Err(libc::ENOSYS);
        }
        let deadline = time_limit(timeout).map(|limit| Instant::now() + limit);
        loop {
            queue.queue.watched.progress();
            let mut events = queue.queue.events.lock().ignore_poison();
            // SAFETY: as above.
            match unsafe { deliver(&mut events, number, buffer, length, flags) } {
                Err(libc::EAGAIN) => {}
                outcome => return outcome,
            }
            let remaining = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => Duration::MAX,
            };
            if remaining.is_zero() {
                return Err(libc::EAGAIN);
            }
            // Only progress detects the end of a connection.
            let pause = remaining.min(Duration::from_millis(1));
            drop(queue.queue.arrived.wait_timeout(events, pause));
        }
    })
}

unsafe extern "C" fn readerr(queue: *mut FidEq, entry: *mut EqErrEntry, _flags: u64) -> isize {
    result(|| {
        // SAFETY: fi_eq_readerr requires valid arguments, here and in the blocks below.
        let (queue, entry) =
            unsafe { (object::<EventQueueObject>(queue)?, entry.as_mut().ok_or(libc::EINVAL)?) };
        let mut events = queue.queue.events.lock().ignore_poison();
        let Some((object, context, failure)) = events.front().and_then(|event| event.failure) else {
            return Err(libc::EAGAIN);
        };
        events.pop_front();
        entry.fid = std::ptr::with_exposed_provenance_mut(object);
        entry.context = std::ptr::with_exposed_provenance_mut(context);
        entry.data = 0;
        entry.err = failure.code;
        entry.prov_errno = failure.reason;
        entry.err_data_size = 0;
        Ok(size_of::<EqErrEntry>())
    })
}

unsafe extern "C" fn write(
    queue: *mut FidEq,
    number: u32,
    buffer: *const c_void,
    length: usize,
    _flags: u64,
) -> isize {
    result(|| {
        // SAFETY: fi_eq_write requires valid arguments, here and in the blocks below.
        let (queue, bytes) = unsafe {
            (object::<EventQueueObject>(queue)?, super::object::vector(buffer.cast::<u8>(), length)?)
        };
        queue.queue.push(Event { number, bytes: bytes.to_vec(), failure: None });
        Ok(length)
    })
}

unsafe extern "C" fn strerror(
    _queue: *mut FidEq,
    reason: i32,
    _data: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    // SAFETY: fi_eq_strerror requires valid arguments.
    unsafe { copy_text(reason_text(reason), buffer, length) }
}
