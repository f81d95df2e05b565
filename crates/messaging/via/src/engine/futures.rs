//! Futures for completions, for any executor. A thread of the NIC wakes them.

use super::completion_ring::{CompletionRing, Queue};
use super::endpoint::{Endpoint, Side};
use crate::descriptor::Completion;
use crate::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The next completion of a work queue, or [`Error::ConnectionEnded`] if there will be none. If several futures wait on
/// one queue, only the one polled last is woken.
pub struct CompletionFuture<'a> {
    endpoint: &'a Arc<Endpoint>,
    side: Side,
}

impl<'a> CompletionFuture<'a> {
    pub(crate) fn new(endpoint: &'a Arc<Endpoint>, side: Side) -> CompletionFuture<'a> {
        CompletionFuture { endpoint, side }
    }
}

impl Future for CompletionFuture<'_> {
    type Output = Result<Completion, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(outcome) = self.endpoint.poll_done(self.side, context.waker()) {
            return Poll::Ready(outcome);
        }
        self.endpoint.nic().vi_registry.watch(self.endpoint);
        Poll::Pending
    }
}

/// The next notification of a completion queue.
pub struct NotificationFuture<'a> {
    ring: &'a CompletionRing,
}

impl<'a> NotificationFuture<'a> {
    pub(crate) fn new(ring: &'a CompletionRing) -> NotificationFuture<'a> {
        NotificationFuture { ring }
    }
}

impl Future for NotificationFuture<'_> {
    type Output = (u32, Queue);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<(u32, Queue)> {
        if let Some(notification) = self.ring.poll_done(context.waker()) {
            return Poll::Ready(notification);
        }
        for endpoint in self.ring.unparked() {
            endpoint.nic().vi_registry.watch(&endpoint);
        }
        Poll::Pending
    }
}
