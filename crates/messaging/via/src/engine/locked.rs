//! Access to a VI under its lock. Dropping a [`Locked`] first releases the lock and then delivers the notifications
//! that were collected, so that no thread is woken under the lock.

use super::endpoint::{Endpoint, Inner};
use super::lock::Guard;
use super::queues::Notifications;
use crate::error::{AsynchronousError, Resource};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A locked VI.
pub(super) struct Locked<'a> {
    /// Taken only in `drop`.
    guard: ManuallyDrop<Guard<'a, Inner>>,
    endpoint: &'a Endpoint,
}

impl Endpoint {
    /// Locks the VI.
    #[inline]
    pub(super) fn lock(&self) -> Locked<'_> {
        Locked { guard: ManuallyDrop::new(self.inner.lock()), endpoint: self }
    }

    /// Breaks the connection after a fault, releases the lock and notifies the program.
    #[cold]
    #[inline(never)]
    fn release_and_notify(&self, mut guard: Guard<'_, Inner>) {
        if let Some(code) = guard.queues.fault {
            self.break_by_fault(&mut guard, code);
        }
        let notifications = std::mem::take(&mut guard.queues.notifications);
        drop(guard);
        self.deliver(notifications);
    }

    fn deliver(&self, notifications: Notifications) {
        if notifications.ring {
            self.wake_event.signal();
        }
        if let Some((code, context)) = notifications.error {
            let resource = if context.is_some() { Resource::Descriptor } else { Resource::Vi };
            self.nic.errors.report(AsynchronousError { resource, code, vi: Some(self.number), context });
        }
        let mut panic = notifications.panic;
        for waker in notifications.wakers.into_iter().flatten() {
            if let Err(another) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
                panic.get_or_insert(another);
            }
        }
        // A second panic while the first one unwinds would abort the process.
        if let Some(panic) = panic
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

impl Deref for Locked<'_> {
    type Target = Inner;
    #[inline]
    fn deref(&self) -> &Inner {
        &self.guard
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.guard
    }
}

impl Drop for Locked<'_> {
    // Every call on a VI ends here. The common case, nothing to report, must not cost a function call.
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: `self.guard` is not used after this.
        let guard = unsafe { ManuallyDrop::take(&mut self.guard) };
        if guard.queues.fault.is_some() || guard.queues.notifications.any {
            self.endpoint.release_and_notify(guard);
        }
    }
}
