//! A completion stored into the descriptor in the C program's memory.
//! Source: VIA, descriptor format: the status comes last.

use crate::layout::*;
use longma_via::Completion;
use std::sync::atomic::{AtomicU32, Ordering};

/// The status of a descriptor.
///
/// # Safety
/// The descriptor must be mapped, and not be moved or freed while the reference is used.
pub(crate) unsafe fn status_of<'a>(descriptor: *mut CDescriptor) -> &'a AtomicU32 {
    // SAFETY: as the caller says; descriptors are aligned.
    unsafe { AtomicU32::from_ptr(&raw mut (*descriptor).control.status) }
}

/// Writes a completion into its descriptor. The engine calls this as soon as there is one, and only while the descriptor lies in
/// registered memory.
pub(crate) fn store_completion(completion: &Completion) {
    let descriptor = completion.context as *mut CDescriptor;
    // SAFETY: `post` gave this address, of a descriptor in memory that is registered still and so mapped; until the status is stored
    // it is the library's.
    unsafe {
        let control = &raw mut (*descriptor).control;
        (&raw mut (*control).length).write_volatile(completion.length);
        if let Some(immediate) = completion.immediate {
            (&raw mut (*control).immediate).write_volatile(immediate);
        }
        // Last: a program may look at the status alone.
        status_of(descriptor).store(status_word(completion.operation, completion.status), Ordering::Release);
    }
}
