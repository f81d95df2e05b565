//! Completion queues.

use super::domain::{Domain, DomainObject};
use super::object::{Object, copy_text, fid, fid_operations, give, object, read, result, status, take};
use crate::abi::constants::*;
use crate::abi::{CqAttr, CqErrEntry, CqTaggedEntry, Fid, FidCq, FidDomain, OpsCq, OpsFid};
use crate::core::completion::{Completed, CompletionQueue};
use crate::core::error::reason_text;
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

#[repr(C)]
pub(super) struct CompletionQueueObject {
    fid: FidCq,
    pub(super) queue: Arc<CompletionQueue>,
    /// The size of an entry, bytes.
    entry_bytes: usize,
    may_wait: bool,
    _domain: Arc<Domain>,
}

// SAFETY: the object begins with a `FidCq`, and only completion queues have this class.
unsafe impl Object for CompletionQueueObject {
    const CLASS: usize = CLASS_CQ;
}

static FID: OpsFid = fid_operations(close);
static OPERATIONS: OpsCq = OpsCq {
    size: size_of::<OpsCq>(),
    read: read_entries,
    readfrom,
    readerr,
    sread,
    sreadfrom,
    signal,
    strerror,
};

/// `fi_cq_open`.
pub(super) unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attributes: *mut CqAttr,
    result: *mut *mut FidCq,
    context: *mut c_void,
) -> i32 {
    status(|| {
        // SAFETY: fi_cq_open requires valid arguments, here and in the blocks below.
        let (domain, attributes) = unsafe { (object::<DomainObject>(domain)?, read(attributes)?) };
        let may_wait = match attributes.wait_obj {
            WAIT_NONE => false,
            WAIT_UNSPEC | WAIT_YIELD => true,
            _ => return Err(libc::ENOSYS),
        };
        // Each format is a prefix of the longest one.
        let entry_bytes = match attributes.format {
            CQ_FORMAT_UNSPEC | CQ_FORMAT_CONTEXT => 8,
            CQ_FORMAT_MSG => 24,
            CQ_FORMAT_DATA => 40,
            CQ_FORMAT_TAGGED => 48,
            _ => return Err(libc::ENOSYS),
        };
        let object = CompletionQueueObject {
            fid: FidCq { fid: fid(CLASS_CQ, context, &FID), ops: &raw const OPERATIONS },
            queue: Arc::new(CompletionQueue::default()),
            entry_bytes,
            may_wait,
            _domain: domain.domain.clone(),
        };
        // SAFETY: as above.
        unsafe { give(object, result) }
    })
}

unsafe extern "C" fn close(fid: *mut Fid) -> i32 {
    status(|| {
        // SAFETY: fi_close requires a valid argument.
        unsafe {
            if object::<CompletionQueueObject>(fid)?.queue.watched.is_used() {
                return Err(libc::EBUSY);
            }
            take::<CompletionQueueObject>(fid).map(|_| 0)
        }
    })
}

impl CompletionQueueObject {
    /// Writes element `index` of the program's array of completions and of its array of sources.
    // SAFETY: both arrays must have an element `index`, `entries` in the queue's format. `sources` may be null.
    unsafe fn write(&self, entries: *mut c_void, sources: *mut u64, place: usize, completed: &Completed) {
        let entry = CqTaggedEntry {
            op_context: std::ptr::with_exposed_provenance_mut(completed.context),
            flags: completed.flags,
            len: completed.length,
            buf: std::ptr::with_exposed_provenance_mut(completed.buffer),
            data: completed.data,
            tag: completed.tag,
        };
        // SAFETY: the array has room for the requested number of entries.
        unsafe {
            let to = entries.cast::<u8>().add(place * self.entry_bytes);
            std::ptr::copy_nonoverlapping((&raw const entry).cast(), to, self.entry_bytes);
            if !sources.is_null() {
                *sources.add(place) = completed.source;
            }
        }
    }
}

unsafe extern "C" fn read_entries(queue: *mut FidCq, entries: *mut c_void, count: usize) -> isize {
    // SAFETY: fi_cq_read requires valid arguments.
    unsafe { readfrom(queue, entries, count, std::ptr::null_mut()) }
}

unsafe extern "C" fn readfrom(
    queue: *mut FidCq,
    entries: *mut c_void,
    count: usize,
    sources: *mut u64,
) -> isize {
    result(|| {
        // SAFETY: fi_cq_readfrom requires valid arguments, here and in the blocks below.
        let queue = unsafe { object::<CompletionQueueObject>(queue)? };
        if entries.is_null() && count > 0 {
            return Err(libc::EINVAL);
        }
        if count == 0 {
            queue.queue.watched.progress();
            return Err(libc::EAGAIN);
        }
        // SAFETY: as above.
        queue.queue.read(count, |place, completed| unsafe { queue.write(entries, sources, place, completed) })
    })
}

unsafe extern "C" fn sread(
    queue: *mut FidCq,
    entries: *mut c_void,
    count: usize,
    condition: *const c_void,
    timeout: i32,
) -> isize {
    // SAFETY: fi_cq_sread requires valid arguments.
    unsafe { sreadfrom(queue, entries, count, std::ptr::null_mut(), condition, timeout) }
}

unsafe extern "C" fn sreadfrom(
    queue: *mut FidCq,
    entries: *mut c_void,
    count: usize,
    sources: *mut u64,
    _condition: *const c_void,
    timeout: i32,
) -> isize {
    result(|| {
        // SAFETY: fi_cq_sreadfrom requires valid arguments, here and in the blocks below.
        let queue = unsafe { object::<CompletionQueueObject>(queue)? };
        if !queue.may_wait {
            return Err(libc::ENOSYS);
        }
        if entries.is_null() || count == 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: as above.
        let write = |place: usize, completed: &Completed| unsafe {
            queue.write(entries, sources, place, completed);
        };
        queue.queue.wait(count, time_limit(timeout), write)
    })
}

/// A timeout in milliseconds; negative for none.
pub(super) fn time_limit(timeout: i32) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

unsafe extern "C" fn readerr(queue: *mut FidCq, entry: *mut CqErrEntry, _flags: u64) -> isize {
    result(|| {
        // SAFETY: fi_cq_readerr requires valid arguments, here and in the blocks below.
        let (queue, entry) =
            unsafe { (object::<CompletionQueueObject>(queue)?, entry.as_mut().ok_or(libc::EINVAL)?) };
        let completed = queue.queue.take_failure().ok_or(libc::EAGAIN)?;
        let (failure, excess) = completed.failure.ok_or(libc::EAGAIN)?;
        entry.op_context = std::ptr::with_exposed_provenance_mut(completed.context);
        entry.flags = completed.flags;
        entry.len = completed.length;
        entry.buf = std::ptr::with_exposed_provenance_mut(completed.buffer);
        entry.data = completed.data;
        entry.tag = completed.tag;
        entry.olen = excess;
        entry.err = failure.code;
        entry.prov_errno = failure.reason;
        // The program may offer a buffer for further data, but the provider has none.
        entry.err_data_size = 0;
        Ok(1)
    })
}

unsafe extern "C" fn signal(queue: *mut FidCq) -> i32 {
    status(|| {
        // SAFETY: the argument of fi_cq_signal.
        unsafe { object::<CompletionQueueObject>(queue)? }.queue.signal();
        Ok(0)
    })
}

unsafe extern "C" fn strerror(
    _queue: *mut FidCq,
    reason: i32,
    _data: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    // The program's buffer is optional; without a buffer the text must be static.
    static TEXTS: std::sync::Mutex<Vec<&'static std::ffi::CStr>> = std::sync::Mutex::new(Vec::new());
    let text = reason_text(reason);
    // SAFETY: fi_cq_strerror requires valid arguments.
    let copied = unsafe { copy_text(text, buffer, length) };
    if !copied.is_null() {
        return copied;
    }
    let mut texts = longma_locks::IgnorePoison::ignore_poison(TEXTS.lock());
    if let Some(known) = texts.iter().find(|known| known.to_bytes() == text.as_bytes()) {
        return known.as_ptr();
    }
    let made = std::ffi::CString::new(text).unwrap_or_default();
    // Leaks each of the few texts at most once.
    let made: &'static std::ffi::CStr = Box::leak(made.into_boxed_c_str());
    texts.push(made);
    made.as_ptr()
}
