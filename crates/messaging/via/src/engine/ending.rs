//! The end of a connection: descriptors are flushed, and waiters learn the reason.
//!
//! Source: VIA, VI states; error handling.

use super::endpoint::{Endpoint, Inner, Side};
use super::queues::Queues;
use crate::attributes::ViState;
use crate::descriptor::Status;
use crate::error::{EndReason, ErrorCode};

impl Inner {
    /// See [`Endpoint::end_of`].
    pub(super) fn end_of(&self, side: Side) -> Option<EndReason> {
        let queue = match side {
            Side::Send => &self.queues.send,
            Side::Receive => &self.queues.receive,
        };
        self.ended.filter(|_| queue.is_empty())
    }
}

impl Endpoint {
    pub(super) fn flush(&self, inner: &mut Inner, posted: Status) {
        inner.queues.held.clear();
        inner.queues.arrival = None;
        inner.queues.malformed = 0;
        self.stop_parking(inner);
        let sent = inner.queues.send.flush(posted);
        let received = inner.queues.receive.flush(Status::FLUSHED);
        inner.queues.completed(Side::Send, sent);
        inner.queues.completed(Side::Receive, received);
    }

    /// Breaks the connection: the VI enters the error state, all posted descriptors are flushed, and the error callback
    /// is called with `code`.
    #[cold]
    pub(super) fn break_connection(
        &self,
        inner: &mut Inner,
        reason: EndReason,
        code: ErrorCode,
        posted: Status,
    ) {
        inner.queues.fault = None;
        if let Some(mut link) = inner.link.take() {
            link.disconnect();
        }
        self.enter(inner, ViState::Error);
        self.end(inner, reason);
        self.flush(inner, posted);
        inner.queues.fault = None;
        inner.queues.notifications.error.get_or_insert((code, None));
    }

    /// Breaks the connection because of an error on this side.
    #[cold]
    pub(super) fn break_by_fault(&self, inner: &mut Inner, code: ErrorCode) {
        self.break_connection(inner, EndReason::Error(code), code, Status::TRANSPORT_ERROR);
    }

    /// Breaks the connection because a descriptor could not be posted.
    #[cold]
    pub(super) fn break_by_post(&self, inner: &mut Inner) {
        let code = ErrorCode::PostDescriptor;
        self.break_connection(inner, EndReason::Error(code), code, Status::FLUSHED);
    }

    /// Keeps the reason for the end of the connection, and wakes all waiters, even those without a descriptor.
    pub(super) fn end(&self, inner: &mut Inner, reason: EndReason) {
        inner.ended.get_or_insert(reason);
        let Queues { notifications, send_waker, receive_waker, .. } = &mut inner.queues;
        (notifications.any, notifications.ring) = (true, true);
        for (place, waker) in notifications.wakers.iter_mut().zip([send_waker, receive_waker]) {
            if let Some(waker) = waker.take() {
                *place = Some(waker);
            }
        }
    }

    /// Why the last connection ended.
    pub(crate) fn end_reason(&self) -> Option<EndReason> {
        self.lock().ended
    }

    /// The reason why no descriptor of `side` will complete: the connection has ended, and the queue is empty.
    #[inline]
    pub(super) fn end_of(&self, side: Side) -> Option<EndReason> {
        if self.state() == ViState::Connected {
            return None;
        }
        let inner = self.lock();
        inner.end_of(side)
    }
}
