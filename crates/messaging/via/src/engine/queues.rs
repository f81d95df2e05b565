//! Both work queues of a VI and the state needed to validate descriptors: everything under the VI's lock except the
//! link.
//!
//! Source: VIA, descriptor processing model; memory protection.

use super::completion_ring::{CompletionRing, Queue};
use super::memory_table::{Region, RegionCache};
use super::nic::NicShared;
use super::work_queue::{Stage, WorkQueue};
use crate::attributes::{Reliability, ViAttributes, ViState};
use crate::descriptor::{Completion, Descriptor, Operation, Segment, Status};
use crate::error::ErrorCode;
use crate::protection::ProtectionTag;
use crate::provider::{Header, Request, Slice};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

/// A work queue of a VI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Send,
    Receive,
}

/// A message whose header has been validated and whose end has not arrived.
pub(super) struct Arrival {
    pub(super) header: Header,
    /// Whether the message consumes the oldest receive descriptor.
    pub(super) uses_receive: bool,
}

/// Notifications to be delivered after the lock is released.
#[derive(Default)]
pub(super) struct Notifications {
    pub(super) any: bool,
    pub(super) wakers: [Option<Waker>; 4],
    pub(super) error: Option<(ErrorCode, Option<u64>)>,
    /// Whether threads that sleep on this VI must be woken.
    pub(super) ring: bool,
    /// The payload of a panic in a callback of the program.
    pub(super) panic: Option<Box<dyn Any + Send>>,
}

/// The completion callback, called under the VI's lock.
pub(crate) type CompletionCallback = Box<dyn Fn(&Completion) + Send>;

/// The part of a descriptor's context memory that must be registered for the completion callback, bytes: the control segment.
const CONTROL_SEGMENT_BYTES: u32 = 32;

pub(super) struct Queues {
    pub(super) number: u32,
    pub(super) nic: Arc<NicShared>,
    pub(super) attributes: ViAttributes,
    pub(super) state: ViState,
    /// The smaller of the two ends' maximum transfer sizes, bytes.
    pub(super) max_transfer_bytes: u32,
    pub(super) max_segments: usize,
    pub(super) send: WorkQueue,
    pub(super) receive: WorkQueue,
    pub(super) send_ring: Option<Arc<CompletionRing>>,
    pub(super) receive_ring: Option<Arc<CompletionRing>>,
    pub(super) send_waker: Option<Waker>,
    pub(super) receive_waker: Option<Waker>,
    pub(super) callback: Option<CompletionCallback>,
    /// The number of queued receives with an invalid format.
    pub(super) malformed: u32,
    /// Whether the link is parked: it is not polled, and the provider reports arrivals.
    pub(super) parked: bool,
    /// Whether there is a completion callback or a malformed receive, or the VI is parked. The fast path checks only
    /// this flag.
    pub(super) is_special: bool,
    /// The number of threads that sleep on this VI.
    pub(super) sleepers: u32,
    pub(super) cache: RegionCache,
    /// Deregistered regions that descriptors held by the provider may still name. They are kept until the provider has
    /// no descriptor of this VI.
    pub(super) held: Vec<Arc<Region>>,
    /// The slices of the descriptor being posted.
    pub(super) outgoing: Vec<Slice>,
    /// The slices of the message being received.
    pub(super) incoming: Vec<Slice>,
    pub(super) arrival: Option<Arrival>,
    pub(super) next_token: u32,
    pub(super) notifications: Notifications,
    /// Set by an arrival that breaks the connection: the error to report.
    pub(super) fault: Option<ErrorCode>,
}

impl Queues {
    /// Creates the empty queues of an idle VI, attached to the given rings.
    pub(super) fn new(
        number: u32,
        nic: &Arc<NicShared>,
        attributes: ViAttributes,
        [send_ring, receive_ring]: [Option<Arc<CompletionRing>>; 2],
    ) -> Queues {
        let facts = nic.provider.attributes();
        let (depth, segments) = (facts.max_descriptors_per_queue, facts.max_segments_per_descriptor);
        Queues {
            number,
            nic: nic.clone(),
            attributes,
            state: ViState::Idle,
            max_transfer_bytes: attributes.max_transfer_bytes,
            max_segments: segments as usize,
            send: WorkQueue::new(depth, segments),
            receive: WorkQueue::new(depth, segments),
            send_ring,
            receive_ring,
            send_waker: None,
            receive_waker: None,
            callback: None,
            malformed: 0,
            parked: false,
            is_special: false,
            sleepers: 0,
            cache: RegionCache::new(),
            held: Vec::new(),
            outgoing: Vec::with_capacity(segments as usize),
            incoming: Vec::with_capacity(segments as usize),
            arrival: None,
            next_token: 0,
            notifications: Notifications::default(),
            fault: None,
        }
    }

    /// The completion queues attached to this VI.
    pub(super) fn rings(&self) -> impl Iterator<Item = &Arc<CompletionRing>> {
        self.send_ring.iter().chain(&self.receive_ring)
    }

    pub(super) fn tag(&self) -> ProtectionTag {
        self.attributes.tag
    }

    /// Validates a descriptor and fills `outgoing` with its slices. Returns their total length.
    ///
    /// # Errors
    /// The status with which the descriptor fails.
    #[inline]
    pub(super) fn check(&mut self, descriptor: &Descriptor<'_>) -> Result<u32, Status> {
        let tag = self.tag();
        self.outgoing.clear();
        if descriptor.segments.len() > self.max_segments {
            return Err(Status::FORMAT_ERROR);
        }
        match descriptor.operation {
            Operation::RemoteRdmaWrite => return Err(Status::FORMAT_ERROR),
            Operation::RdmaRead => {
                let levels = &self.nic.provider.attributes().rdma_read;
                if descriptor.immediate.is_some() || !levels.contains(&self.attributes.reliability) {
                    return Err(Status::FORMAT_ERROR);
                }
            }
            _ => {}
        }
        let mut length = 0u64;
        if let [segment] = descriptor.segments {
            self.outgoing.push(self.cache.local(&self.nic.memory, tag, segment)?);
            length = u64::from(segment.length);
        } else {
            for segment in descriptor.segments {
                self.outgoing.push(self.cache.local(&self.nic.memory, tag, segment)?);
                length += u64::from(segment.length);
            }
        }
        if length > u64::from(self.max_transfer_bytes) && descriptor.operation != Operation::Receive {
            return Err(Status::LENGTH_ERROR);
        }
        // A receive may offer more space than the largest message needs.
        Ok(u32::try_from(length).unwrap_or(u32::MAX))
    }

    /// Fills `slices` from segments that were validated when they were posted; they may have become invalid since.
    pub(super) fn slices_again(
        cache: &mut RegionCache,
        nic: &NicShared,
        tag: ProtectionTag,
        segments: &[Segment],
        slices: &mut Vec<Slice>,
    ) -> Result<(), Status> {
        slices.clear();
        for segment in segments {
            slices.push(cache.local(&nic.memory, tag, segment)?);
        }
        Ok(())
    }

    pub(super) fn request_of(operation: Operation, remote: crate::descriptor::RemoteSegment) -> Request {
        match operation {
            Operation::RdmaWrite => Request::RdmaWrite(remote),
            Operation::RdmaRead => Request::RdmaRead(remote),
            _ => Request::Send,
        }
    }

    /// Notifies all observers that `count` descriptors of `side` completed. Every message passes here twice, mostly
    /// without any observer, so the check is inlined: a call would cost as much as copying a small message.
    #[inline(always)]
    pub(super) fn completed(&mut self, side: Side, count: u32) {
        let watched = match side {
            Side::Send => self.send_ring.is_some() || self.send_waker.is_some(),
            Side::Receive => self.receive_ring.is_some() || self.receive_waker.is_some(),
        };
        if watched || self.is_special || self.sleepers > 0 {
            self.notify_observers(side, count);
        }
    }

    #[inline(never)]
    fn notify_observers(&mut self, side: Side, count: u32) {
        if self.is_special {
            self.call_callback(side);
        }
        let (ring, waker) = match side {
            Side::Send => (&self.send_ring, &mut self.send_waker),
            Side::Receive => (&self.receive_ring, &mut self.receive_waker),
        };
        if ring.is_none() && waker.is_none() && self.sleepers == 0 || count == 0 {
            return;
        }
        self.notifications.any = true;
        self.notifications.ring |= self.sleepers > 0;
        let place = side as usize;
        if let Some(waker) = waker.take() {
            self.notifications.wakers[place] = Some(waker);
        }
        if let Some(ring) = ring {
            let queue = if side == Side::Send { Queue::Send } else { Queue::Receive };
            let (held, waker) = ring.push(self.number, queue, count);
            if let Some(waker) = waker {
                self.notifications.wakers[place + 2] = Some(waker);
            }
            if !held {
                self.fault = Some(ErrorCode::ViOverrun);
            }
        }
    }

    /// Calls the completion callback for newly completed descriptors of `side`, before they can be collected.
    #[inline(never)]
    fn call_callback(&mut self, side: Side) {
        let Queues { callback: Some(callback), send, receive, cache, nic, notifications, .. } = self else {
            return;
        };
        let queue = if side == Side::Send { send } else { receive };
        while let Some((completion, handle)) = queue.take_unreported() {
            let control_segment =
                Segment { address: completion.context, handle, length: CONTROL_SEGMENT_BYTES };
            if cache.is_registered(&nic.memory, &control_segment) {
                // The message is received completely before the panic of the callback propagates.
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| callback(&completion))) {
                    notifications.any = true;
                    notifications.panic.get_or_insert(panic);
                }
            } else {
                notifications.any = true;
                notifications
                    .error
                    .get_or_insert((ErrorCode::CompletionProtection, Some(completion.context)));
            }
        }
    }

    /// Completes malformed receives once no message can use an earlier one (VIA, format error).
    #[cold]
    pub(super) fn fail_malformed(&mut self) {
        while let Some(entry) = self.receive.queued()
            && entry.status.is_error()
        {
            self.malformed -= 1;
            self.receive.advance(Stage::Done, |entry| entry.status = entry.status.with(Status::DONE));
            self.completed(Side::Receive, 1);
            if self.is_reliable() {
                self.fault.get_or_insert(ErrorCode::PostDescriptor);
            }
        }
    }

    #[inline]
    pub(super) fn collect(&mut self, side: Side) -> Option<Completion> {
        match side {
            Side::Send => self.send.collect(),
            Side::Receive => self.receive.collect(),
        }
    }

    /// Whether an error in one message breaks the connection (VIA, reliability levels).
    pub(super) fn is_reliable(&self) -> bool {
        self.attributes.reliability != Reliability::Unreliable
    }
}
