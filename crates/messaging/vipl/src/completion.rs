//! Stores completions into descriptors in the C program's memory.
//!
//! Source: VIA, descriptor format: the status is written last.

use crate::layout::*;
use longma_via::Completion;
use std::sync::atomic::{AtomicU32, Ordering};

/// The status word of a descriptor.
///
/// # Safety
/// The descriptor must be mapped, and must not be moved or freed while the reference is in use.
pub(crate) unsafe fn status_of<'a>(descriptor: *mut CDescriptor) -> &'a AtomicU32 {
    // SAFETY: guaranteed by the caller; descriptors are aligned.
    unsafe { AtomicU32::from_ptr(&raw mut (*descriptor).control.status) }
}

/// Stores a completion into its descriptor. The engine calls this for every completion whose descriptor is in
/// registered memory.
pub(crate) fn store_completion(completion: &Completion) {
    let descriptor = completion.context as *mut CDescriptor;
    // SAFETY: the address is from `post`, and the descriptor is in memory that is still registered and so mapped. Until
    // the status is stored, only the library may access the descriptor.
    unsafe {
        let control = &raw mut (*descriptor).control;
        (&raw mut (*control).length).write_volatile(completion.length);
        if let Some(immediate) = completion.immediate {
            (&raw mut (*control).immediate).write_volatile(immediate);
        }
        // The status is stored last, because a program may poll it alone.
        status_of(descriptor).store(status_word(completion.operation, completion.status), Ordering::Release);
    }
}
