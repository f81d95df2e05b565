//! Access to a VI under its lock. Dropping it releases the lock and then delivers the notifications collected under it,
//! so that wakers and bells never run under the lock.

use super::endpoint::{Endpoint, Inner};
use super::lock::Guard;
use super::queues::Notifications;
use crate::descriptor::Status;
use crate::error::{AsynchronousError, Resource};
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A locked VI. The fields are dropped in their order: first the lock is released, then the news is delivered.
pub(super) struct Locked<'a> {
    guard: Guard<'a, Inner>,
    delivery: Delivery<'a>,
}

struct Delivery<'a> {
    endpoint: &'a Endpoint,
    news: Option<Notifications>,
}

impl Endpoint {
    /// Locks the VI.
    #[inline]
    pub(super) fn lock(&self) -> Locked<'_> {
        Locked { guard: self.inner.lock(), delivery: Delivery { endpoint: self, news: None } }
    }

    #[cold]
    fn deliver(&self, news: Notifications) {
        if news.ring {
            self.bell.ring();
        }
        if let Some((code, context)) = news.error {
            let resource = if context.is_some() { Resource::Descriptor } else { Resource::Vi };
            self.nic.errors.report(AsynchronousError { resource, code, vi: Some(self.number), context });
        }
        let mut panic = news.panic;
        for waker in news.wakers.into_iter().flatten() {
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
    #[inline]
    fn drop(&mut self) {
        if let Some(code) = self.guard.queues.fault {
            self.delivery.endpoint.break_connection(&mut self.guard, code, Status::TRANSPORT_ERROR);
        }
        if self.guard.queues.news.any {
            self.delivery.news = Some(std::mem::take(&mut self.guard.queues.news));
        }
    }
}

impl Drop for Delivery<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(news) = self.news.take() {
            self.endpoint.deliver(news);
        }
    }
}
