//! Counters.

use super::completion_queue::time_limit;
use super::domain::{Domain, DomainObject};
use super::object::{Object, fid, fid_operations, give, object, read, status, take};
use crate::abi::constants::{CLASS_CNTR, WAIT_NONE, WAIT_UNSPEC, WAIT_YIELD};
use crate::abi::{CntrAttr, Fid, FidCntr, FidDomain, OpsCntr, OpsFid};
use crate::core::counter::Counter;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[repr(C)]
pub(super) struct CounterObject {
    fid: FidCntr,
    pub(super) counter: Arc<Counter>,
    _domain: Arc<Domain>,
}

// SAFETY: the object begins with a `FidCntr`, and only counters have this class.
unsafe impl Object for CounterObject {
    const CLASS: usize = CLASS_CNTR;
}

static FID: OpsFid = fid_operations(close);
static OPERATIONS: OpsCntr =
    OpsCntr { size: size_of::<OpsCntr>(), read: read_value, readerr, add, set, wait, adderr, seterr };

/// `fi_cntr_open`.
pub(super) unsafe extern "C" fn open(
    domain: *mut FidDomain,
    attributes: *mut CntrAttr,
    result: *mut *mut FidCntr,
    context: *mut c_void,
) -> i32 {
    status(|| {
        // SAFETY: fi_cntr_open requires valid arguments, here and in the blocks below.
        let (domain, attributes) = unsafe { (object::<DomainObject>(domain)?, read(attributes)?) };
        if !matches!(attributes.wait_obj, WAIT_NONE | WAIT_UNSPEC | WAIT_YIELD) {
            return Err(libc::ENOSYS);
        }
        let object = CounterObject {
            fid: FidCntr { fid: fid(CLASS_CNTR, context, &FID), ops: &raw const OPERATIONS },
            counter: Arc::new(Counter::default()),
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
            if object::<CounterObject>(fid)?.counter.watched.is_used() {
                return Err(libc::EBUSY);
            }
            take::<CounterObject>(fid).map(|_| 0)
        }
    })
}

/// The counter that the program's pointer refers to.
unsafe fn counter<'a>(pointer: *mut FidCntr) -> Result<&'a Counter, i32> {
    // SAFETY: an argument of a function of counters.
    unsafe { object::<CounterObject>(pointer) }.map(|object| &*object.counter)
}

/// A value after progress; 0 for an invalid pointer.
unsafe fn value(pointer: *mut FidCntr, of: fn(&Counter) -> &AtomicU64) -> u64 {
    let mut value = 0;
    status(|| {
        // SAFETY: as above.
        let counter = unsafe { counter(pointer)? };
        counter.watched.progress();
        value = of(counter).load(Ordering::Acquire);
        Ok(0)
    });
    value
}

unsafe fn change(pointer: *mut FidCntr, act: impl FnOnce(&Counter) -> u64) -> i32 {
    // SAFETY: as above.
    status(|| unsafe { counter(pointer) }.map(act).map(|_| 0))
}

unsafe extern "C" fn read_value(pointer: *mut FidCntr) -> u64 {
    // SAFETY: the argument of fi_cntr_read.
    unsafe { value(pointer, |counter| &counter.completed) }
}

unsafe extern "C" fn readerr(pointer: *mut FidCntr) -> u64 {
    // SAFETY: the argument of fi_cntr_readerr.
    unsafe { value(pointer, |counter| &counter.failed) }
}

unsafe extern "C" fn add(pointer: *mut FidCntr, value: u64) -> i32 {
    // SAFETY: the argument of fi_cntr_add.
    unsafe { change(pointer, |counter| counter.completed.fetch_add(value, Ordering::AcqRel)) }
}

unsafe extern "C" fn set(pointer: *mut FidCntr, value: u64) -> i32 {
    // SAFETY: the argument of fi_cntr_set.
    unsafe { change(pointer, |counter| counter.completed.swap(value, Ordering::AcqRel)) }
}

unsafe extern "C" fn adderr(pointer: *mut FidCntr, value: u64) -> i32 {
    // SAFETY: the argument of fi_cntr_adderr.
    unsafe { change(pointer, |counter| counter.failed.fetch_add(value, Ordering::AcqRel)) }
}

unsafe extern "C" fn seterr(pointer: *mut FidCntr, value: u64) -> i32 {
    // SAFETY: the argument of fi_cntr_seterr.
    unsafe { change(pointer, |counter| counter.failed.swap(value, Ordering::AcqRel)) }
}

unsafe extern "C" fn wait(pointer: *mut FidCntr, threshold: u64, timeout: i32) -> i32 {
    status(|| {
        // SAFETY: the argument of fi_cntr_wait.
        unsafe { counter(pointer)? }.wait(threshold, time_limit(timeout)).map(|()| 0)
    })
}
