//! The implementation of a VI: its state machine, its queues under one lock, its link to the peer, and its waiters. The
//! rules of the queues are in `queues.rs`, `work_queue.rs` and `arrivals.rs`, and connecting is in `connect.rs`.
//!
//! Source: VIA, VI states; VI connection and disconnection; error handling.

use super::completion_ring::CompletionRing;
use super::lock::Lock;
use super::memory_table::Region;
use super::nic::NicShared;
use super::queues::Queues;
pub(crate) use super::queues::Side;
use super::waiting::{AdaptiveSpin, Sleeper, WakeEvent, deadline_after, wait};
use super::work_queue::{Stage, WorkQueue};
use crate::address::Credentials;
use crate::attributes::{ViAttributes, ViState};
use crate::descriptor::{Completion, Descriptor, Operation, Status};
use crate::error::{EndReason, Error, ErrorCode};
use crate::provider::{Link, Outgoing, Posted, WakeSource};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The maximum number of messages handled by one poll.
const POLL_BUDGET: u32 = 16;
/// The maximum number of messages handled by a poll that the provider requested: all messages that can be pending.
const LONG_POLL_BUDGET: u32 = 1024;

pub(super) struct Inner {
    pub(super) link: Option<Box<dyn Link>>,
    /// Whether the link must be informed of posted receives.
    tells_receives: bool,
    /// The number of connection attempts.
    attempts: u32,
    /// Why the last connection ended, until the next attempt.
    pub(super) ended: Option<EndReason>,
    pub(super) queues: Queues,
}

impl Inner {
    fn is_pending(&self, attempt: &Attempt) -> bool {
        self.queues.state == ViState::ConnectPending && self.attempts == attempt.number
    }
}

/// A connection attempt, during which the VI is connect pending.
pub(crate) struct Attempt {
    number: u32,
    /// The attributes of the VI during the attempt.
    pub(crate) attributes: ViAttributes,
}

pub(crate) struct Endpoint {
    pub(super) itself: Weak<Endpoint>,
    pub(super) number: u32,
    pub(super) nic: Arc<NicShared>,
    pub(super) inner: Lock<Inner>,
    /// A copy of the state that can be read without the lock.
    state: AtomicU8,
    /// Whether the registry's thread polls this VI while the program does not. The thread detects an inactive program
    /// by the number of its calls.
    pub(super) attended: AtomicBool,
    pub(super) calls: AtomicU32,
    /// The number of the program's threads that sleep on this VI.
    pub(super) waiters: AtomicU32,
    /// A copy of `Queues::parked` that can be read without the lock.
    pub(super) is_parked: AtomicBool,
    /// The number of consecutive polls by a completion queue that found nothing.
    pub(super) empty_polls: AtomicU32,
    pub(super) wake_event: WakeEvent,
    spin: AdaptiveSpin,
}

impl Endpoint {
    pub(crate) fn create(
        nic: &Arc<NicShared>,
        attributes: ViAttributes,
        send: Option<&Arc<CompletionRing>>,
        receive: Option<&Arc<CompletionRing>>,
    ) -> Result<Arc<Endpoint>, Error> {
        let attributes = checked(nic, attributes)?;
        nic.memory.take_tag(attributes.tag)?;
        let made = nic.vi_registry.enter(|number| {
            let queues = Queues::new(number, nic, attributes, [send.cloned(), receive.cloned()]);
            Arc::new_cyclic(|itself| Endpoint {
                itself: itself.clone(),
                number,
                nic: nic.clone(),
                inner: Lock::new(Inner {
                    link: None,
                    tells_receives: false,
                    attempts: 0,
                    ended: None,
                    queues,
                }),
                state: AtomicU8::new(ViState::Idle as u8),
                attended: AtomicBool::new(false),
                calls: AtomicU32::new(0),
                waiters: AtomicU32::new(0),
                is_parked: AtomicBool::new(false),
                empty_polls: AtomicU32::new(0),
                wake_event: WakeEvent::new(),
                spin: AdaptiveSpin::new(),
            })
        });
        let endpoint = match made {
            Ok(endpoint) => endpoint,
            Err(error) => {
                nic.memory.release_tag(attributes.tag);
                return Err(error);
            }
        };
        for ring in [send, receive].into_iter().flatten() {
            ring.attach_vi(endpoint.number);
        }
        Ok(endpoint)
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn nic(&self) -> &Arc<NicShared> {
        &self.nic
    }

    pub(crate) fn state(&self) -> ViState {
        match self.state.load(Ordering::Acquire) {
            0 => ViState::Idle,
            1 => ViState::Connected,
            2 => ViState::ConnectPending,
            _ => ViState::Error,
        }
    }

    pub(crate) fn attributes(&self) -> ViAttributes {
        self.lock().queues.attributes
    }

    pub(crate) fn queues_empty(&self) -> (bool, bool) {
        let inner = self.lock();
        (inner.queues.send.is_empty(), inner.queues.receive.is_empty())
    }

    pub(crate) fn set_attributes(&self, attributes: ViAttributes) -> Result<(), Error> {
        let attributes = checked(&self.nic, attributes)?;
        let mut inner = self.lock();
        if inner.queues.state != ViState::Idle {
            return Err(Error::InvalidState(format!(
                "attributes can be changed only while idle, not {:?}",
                inner.queues.state
            )));
        }
        self.nic.memory.take_tag(attributes.tag)?;
        self.nic.memory.release_tag(inner.queues.attributes.tag);
        inner.queues.attributes = attributes;
        inner.queues.max_transfer_bytes = attributes.max_transfer_bytes;
        Ok(())
    }

    // ---- states -----------------------------------------------------------------------------------------------------

    pub(super) fn enter(&self, inner: &mut Inner, state: ViState) {
        inner.queues.state = state;
        self.state.store(state as u8, Ordering::Release);
    }

    /// Enters the connect-pending state, until this attempt succeeds or fails or the VI is disconnected.
    pub(super) fn enter_pending(&self) -> Result<Attempt, Error> {
        let mut inner = self.lock();
        if inner.queues.state != ViState::Idle {
            return Err(Error::InvalidState(format!(
                "a VI connects only from idle, not from {:?}",
                inner.queues.state
            )));
        }
        self.enter(&mut inner, ViState::ConnectPending);
        inner.ended = None;
        inner.attempts = inner.attempts.wrapping_add(1);
        Ok(Attempt { number: inner.attempts, attributes: inner.queues.attributes })
    }

    /// Whether the attempt is still current.
    pub(super) fn is_pending(&self, attempt: &Attempt) -> bool {
        self.lock().is_pending(attempt)
    }

    pub(super) fn enter_connected(&self, attempt: &Attempt, link: Box<dyn Link>, remote: &ViAttributes) {
        let mut inner = self.lock();
        if !inner.is_pending(attempt) {
            // The VI was disconnected during the attempt: drop the link.
            return;
        }
        inner.queues.max_transfer_bytes =
            inner.queues.attributes.max_transfer_bytes.min(remote.max_transfer_bytes);
        inner.queues.next_token = 0;
        inner.tells_receives = link.holds_receives();
        inner.link = Some(link);
        self.enter(&mut inner, ViState::Connected);
        self.poll_by_queues(&inner);
        if inner.tells_receives {
            let Inner { link, queues, .. } = &mut *inner;
            for segments in queues.receive.all_queued_segments() {
                link.iter_mut().for_each(|link| link.receive_posted(segments));
            }
        }
        if inner.queues.malformed > 0 {
            inner.queues.fail_malformed();
        }
        // Process the messages that the peer sent before the link was in place.
        self.progress(&mut inner);
        // Threads that are waiting already must include the link in their wait.
        (inner.queues.notifications.any, inner.queues.notifications.ring) = (true, true);
        let rings: Vec<_> = inner.queues.rings().cloned().collect();
        drop(inner);
        rings.iter().for_each(|ring| ring.rouse());
        self.nic.vi_registry.wake();
    }

    pub(super) fn leave_pending(&self, attempt: &Attempt) {
        let mut inner = self.lock();
        if inner.is_pending(attempt) {
            self.enter(&mut inner, ViState::Idle);
        }
    }

    pub(crate) fn peer_credentials(&self) -> Option<Credentials> {
        self.lock().link.as_ref()?.credentials()
    }

    pub(crate) fn disconnect(&self) -> Result<(), Error> {
        if self.nic.is_forked_child() {
            return Err(Error::InvalidState("the VI belongs to the process that opened its NIC".into()));
        }
        let mut inner = self.lock();
        if let Some(mut link) = inner.link.take() {
            // Completions that have arrived still count.
            let _ = link.poll(&mut inner.queues, POLL_BUDGET);
            link.disconnect();
            self.end(&mut inner, EndReason::DisconnectedHere);
        }
        self.flush(&mut inner, Status::FLUSHED);
        inner.queues.fault = None;
        self.enter(&mut inner, ViState::Idle);
        Ok(())
    }

    pub(crate) fn destroy(&self) {
        // A completion callback may panic while descriptors are flushed. The VI is destroyed nevertheless.
        let _ = catch_unwind(AssertUnwindSafe(|| self.disconnect()));
        self.nic.vi_registry.leave(self.number);
        let mut inner = self.lock();
        let rings = [inner.queues.send_ring.take(), inner.queues.receive_ring.take()];
        let tag = inner.queues.attributes.tag;
        drop(inner);
        for ring in rings.into_iter().flatten() {
            ring.detach_vi(self.number);
        }
        self.nic.memory.release_tag(tag);
    }

    // ---- posting ----------------------------------------------------------------------------------------------------

    #[inline]
    pub(crate) fn post_send(&self, descriptor: &Descriptor<'_>) -> Result<(), Error> {
        if descriptor.operation == Operation::Receive {
            return Err(Error::InvalidParameter(format!(
                "{:?} is not for a send queue",
                descriptor.operation
            )));
        }
        let mut inner = self.lock();
        self.note_call(&mut inner);
        self.post_send_locked(&mut inner, descriptor)
    }

    #[inline]
    fn post_send_locked(&self, inner: &mut Inner, descriptor: &Descriptor<'_>) -> Result<(), Error> {
        let Inner { link, queues, .. } = inner;
        if !queues.send.has_space(descriptor.segments.len()) {
            return Err(full(&queues.send));
        }
        let (stage, status, length) = match link {
            Some(link) => match queues.check(descriptor) {
                Err(status) => (Stage::Done, status, 0),
                Ok(length)
                    if queues.send.has_queued() || descriptor.fence && queues.send.has_posted_read() =>
                {
                    (Stage::Queued, Status(0), length)
                }
                Ok(length) => {
                    let posted = link.post(&Outgoing {
                        request: Queues::request_of(descriptor.operation, descriptor.remote),
                        token: queues.next_token,
                        length,
                        immediate: descriptor.immediate,
                        slices: &queues.outgoing,
                    });
                    let (stage, status) = stage_of(posted, &mut queues.next_token);
                    (stage, status, length)
                }
            },
            // A send on an unconnected VI is flushed (VIA, VI states).
            None => (Stage::Done, Status::FLUSHED, 0),
        };
        let status = if stage == Stage::Done { status.with(Status::DONE) } else { status };
        if !queues.send.push_reserved(descriptor, length, stage, status) {
            return Err(full(&queues.send));
        }
        if stage == Stage::Done {
            queues.completed(Side::Send, 1);
            if status.is_error() && inner.link.is_some() {
                self.break_by_post(inner);
            }
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn post_receive(&self, descriptor: &Descriptor<'_>) -> Result<(), Error> {
        if descriptor.operation != Operation::Receive {
            return Err(Error::InvalidParameter(format!(
                "{:?} is not for a receive queue",
                descriptor.operation
            )));
        }
        let mut inner = self.lock();
        self.note_call(&mut inner);
        let queues = &mut inner.queues;
        // Whether the descriptor is queued, and whether a message can use it.
        let (held, taken) = match queues.check(descriptor) {
            _ if queues.state == ViState::Error => {
                let flushed = Status::FLUSHED.with(Status::DONE);
                let held = queues.receive.push(descriptor, 0, Stage::Done, flushed);
                queues.completed(Side::Receive, u32::from(held));
                (held, false)
            }
            Ok(length) => {
                let held = queues.receive.push(descriptor, length, Stage::Queued, Status(0));
                (held, held)
            }
            // The descriptor is queued behind earlier ones and fails when it is used.
            Err(Status::PROTECTION_ERROR) => {
                let held = queues.receive.push(descriptor, u32::MAX, Stage::Queued, Status(0));
                (held, held)
            }
            Err(status) => {
                let bare = Descriptor { segments: &[], ..*descriptor };
                let held = queues.receive.push(&bare, 0, Stage::Queued, status);
                queues.malformed += u32::from(held);
                queues.is_special = true;
                (held, false)
            }
        };
        let outcome = if held { Ok(()) } else { Err(full(&queues.receive)) };
        if queues.malformed > 0 && queues.state == ViState::Connected {
            queues.fail_malformed();
        }
        if taken
            && inner.tells_receives
            && let Some(link) = &mut inner.link
        {
            link.receive_posted(descriptor.segments);
        }
        outcome
    }

    // ---- progress ---------------------------------------------------------------------------------------------------

    /// Polls the link and posts the descriptors that were waiting for space.
    #[inline]
    pub(super) fn progress(&self, inner: &mut Inner) {
        self.progress_by(inner, POLL_BUDGET);
    }

    #[inline]
    fn progress_by(&self, inner: &mut Inner, budget: u32) {
        let Inner { link: Some(link), queues, .. } = inner else { return };
        let polled = link.poll(queues, budget);
        match (queues.fault, polled) {
            (None, Ok(())) => {}
            // The link or the peer has refused a message.
            (Some(code @ ErrorCode::ConnectionLost), polled) => {
                let reason = polled.err().unwrap_or(EndReason::MessageRefused);
                return self.break_connection(inner, reason, code, Status::TRANSPORT_ERROR);
            }
            (Some(code), _) => return self.break_by_fault(inner, code),
            (None, Err(reason)) => {
                let in_order = reason == EndReason::Disconnected;
                let posted = if in_order { Status::FLUSHED } else { Status::TRANSPORT_ERROR };
                return self.break_connection(inner, reason, ErrorCode::ConnectionLost, posted);
            }
        }
        if !queues.held.is_empty() && !queues.send.has_posted() {
            queues.held.clear();
        }
        if queues.send.has_queued() {
            self.post_queued(inner);
        }
    }

    /// Keeps the memory of a region that is being deregistered as long as the provider may be using it for this VI.
    pub(super) fn hold(&self, region: &Arc<Region>) {
        let mut inner = self.lock();
        if inner.queues.send.has_posted() {
            inner.queues.held.push(region.clone());
        }
    }

    fn post_queued(&self, inner: &mut Inner) {
        let Inner { link: Some(link), queues, .. } = inner else { return };
        while let Some(&entry) = queues.send.queued() {
            if entry.fence && queues.send.has_posted_read() {
                return;
            }
            let tag = queues.attributes.tag;
            let segments = queues.send.queued_segments();
            let again =
                Queues::slices_again(&mut queues.cache, &queues.nic, tag, segments, &mut queues.outgoing);
            let posted = match again {
                Ok(()) => link.post(&Outgoing {
                    request: Queues::request_of(entry.operation, entry.remote),
                    token: queues.next_token,
                    length: entry.length,
                    immediate: entry.immediate,
                    slices: &queues.outgoing,
                }),
                Err(status) => Posted::Failed(status),
            };
            let (stage, status) = stage_of(posted, &mut queues.next_token);
            match stage {
                Stage::Queued => return,
                Stage::Posted(_) => queues.send.advance(stage, |_| {}),
                Stage::Done => {
                    queues.send.advance(stage, |entry| entry.status = status.with(Status::DONE));
                    queues.completed(Side::Send, 1);
                    if status.is_error() {
                        return self.break_by_post(inner);
                    }
                }
            }
        }
    }

    /// Polls once on behalf of the program.
    #[inline]
    pub(crate) fn poll_unlocked(&self) {
        let mut inner = self.lock();
        self.note_call(&mut inner);
        self.progress(&mut inner);
    }

    /// Polls once on behalf of the registry's thread.
    #[inline]
    pub(super) fn poll_for_registry(&self) {
        let mut inner = self.lock();
        self.progress(&mut inner);
    }

    /// Polls on behalf of the provider's thread.
    pub(super) fn poll_for_provider(&self) {
        let mut inner = self.lock();
        self.progress_by(&mut inner, LONG_POLL_BUDGET);
        if inner.queues.parked && inner.queues.notifications.any {
            // More messages are likely to follow, so the completion queues poll this VI for a while.
            self.poll_by_queues(&inner);
        }
    }

    #[inline]
    pub(crate) fn done(&self, side: Side) -> Option<Completion> {
        let mut inner = self.lock();
        self.note_call(&mut inner);
        let mut completion = inner.queues.collect(side);
        if completion.is_none() {
            self.progress(&mut inner);
            completion = inner.queues.collect(side);
        }
        completion
    }

    pub(crate) fn wait(&self, side: Side, timeout: Option<Duration>) -> Result<Completion, Error> {
        if let Some(completion) = self.done(side) {
            return Ok(completion);
        }
        let ready = || match self.done(side) {
            Some(completion) => Some(Ok(completion)),
            None => self.end_of(side).map(|reason| Err(Error::ConnectionEnded(reason))),
        };
        wait(&self.spin, deadline_after(timeout), ready, self).unwrap_or(Err(Error::Timeout))
    }

    /// Registers a future's waker. Returns a completion if there is one already, and an error if there will be none.
    pub(crate) fn poll_done(
        &self,
        side: Side,
        waker: &std::task::Waker,
    ) -> Option<Result<Completion, Error>> {
        let mut inner = self.lock();
        let mut completion = inner.queues.collect(side);
        if completion.is_none() {
            self.progress(&mut inner);
            completion = inner.queues.collect(side);
        }
        let outcome = match completion {
            Some(completion) => Some(Ok(completion)),
            None => inner.end_of(side).map(|reason| Err(Error::ConnectionEnded(reason))),
        };
        // Dropped outside the lock, because dropping a waker runs code of the program, which may call the VI.
        let mut before = None;
        if outcome.is_none() {
            let place = match side {
                Side::Send => &mut inner.queues.send_waker,
                Side::Receive => &mut inner.queues.receive_waker,
            };
            if !place.as_ref().is_some_and(|old| old.will_wake(waker)) {
                before = place.replace(waker.clone());
            }
        }
        drop(inner);
        drop(before);
        outcome
    }

    /// Wakes the futures that wait for this VI.
    pub(crate) fn wake_futures(&self) {
        let mut inner = self.lock();
        let wakers = [inner.queues.send_waker.take(), inner.queues.receive_waker.take()];
        drop(inner);
        wakers.into_iter().flatten().for_each(std::task::Waker::wake);
    }

    /// Whether a future waits for this VI.
    pub(crate) fn has_waker(&self) -> bool {
        let inner = self.lock();
        let queues = &inner.queues;
        queues.send_waker.is_some()
            || queues.receive_waker.is_some()
            || !queues.parked && queues.rings().any(|ring| ring.has_waker())
    }

    /// Announces to the peer that a thread of the program is about to sleep, and adds the sources to sleep on.
    pub(crate) fn arm(&self, wake_sources: &mut Vec<WakeSource>) {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        self.arm_for_others(wake_sources);
    }

    pub(crate) fn disarm(&self) {
        self.waiters.fetch_sub(1, Ordering::Relaxed);
        self.disarm_for_others();
    }

    /// Like `arm`, for the registry's thread.
    pub(super) fn arm_for_others(&self, wake_sources: &mut Vec<WakeSource>) {
        let mut inner = self.lock();
        inner.queues.sleepers += 1;
        if let Some(link) = &mut inner.link {
            wake_sources.push(link.arm());
        }
    }

    pub(super) fn disarm_for_others(&self) {
        let mut inner = self.lock();
        inner.queues.sleepers -= 1;
        if inner.queues.sleepers == 0
            && let Some(link) = &mut inner.link
        {
            link.disarm();
        }
    }
}

impl Sleeper for &Endpoint {
    fn wake_event(&self) -> &WakeEvent {
        &self.wake_event
    }

    fn arm(&mut self, wake_sources: &mut Vec<WakeSource>) {
        Endpoint::arm(self, wake_sources);
    }

    fn disarm(&mut self) {
        Endpoint::disarm(self);
    }
}

#[inline]
fn stage_of(posted: Posted, next_token: &mut u32) -> (Stage, Status) {
    match posted {
        Posted::Full => (Stage::Queued, Status(0)),
        Posted::Failed(status) => (Stage::Done, status),
        Posted::Done => {
            *next_token = next_token.wrapping_add(1);
            (Stage::Done, Status(0))
        }
        Posted::Pending => {
            let token = *next_token;
            *next_token = next_token.wrapping_add(1);
            (Stage::Posted(token), Status(0))
        }
    }
}

fn full(queue: &WorkQueue) -> Error {
    Error::Resource(format!("the work queue holds no more than {} descriptors", queue.capacity()))
}

/// Adjusts the attributes to the NIC.
///
/// # Errors
/// If the NIC does not support them.
fn checked(nic: &NicShared, attributes: ViAttributes) -> Result<ViAttributes, Error> {
    let facts = nic.provider.attributes();
    if !facts.reliability.contains(&attributes.reliability) {
        return Err(Error::InvalidReliability(format!(
            "this NIC does not support {:?}",
            attributes.reliability
        )));
    }
    if attributes.rdma_read && !facts.rdma_read.contains(&attributes.reliability) {
        return Err(Error::InvalidRdmaRead(format!(
            "this NIC does not support it at {:?}",
            attributes.reliability
        )));
    }
    let limit = facts.max_transfer_bytes;
    let max_transfer_bytes =
        if attributes.max_transfer_bytes == u32::MAX { limit } else { attributes.max_transfer_bytes };
    if max_transfer_bytes > limit {
        return Err(Error::InvalidTransferSize(format!(
            "{max_transfer_bytes} bytes, but the maximum of this NIC is {limit}"
        )));
    }
    Ok(ViAttributes { max_transfer_bytes, ..attributes })
}
