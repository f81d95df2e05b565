//! The common part of all transfers: converts the arguments of a call to an operation.

use super::endpoint::EndpointObject;
use super::info::{INJECT_BYTES, MAX_MESSAGE_BYTES, RECEIVE_FLAGS, SEND_FLAGS};
use super::object::{object, result, vector};
use crate::abi::FidEp;
use crate::abi::constants::*;
use crate::core::buffer::{Buffer, MAX_SEGMENTS};
use crate::core::matching::Pattern;
use crate::core::operation::{Action, Intent, Operation, Receive, Source};
use libc::iovec;
use std::ffi::c_void;
use std::sync::atomic::Ordering;

/// The memory that the program passes to a call.
#[derive(Clone, Copy)]
pub(super) enum Memory {
    One(*mut c_void, usize),
    Vector(*const iovec, usize),
}

impl Memory {
    /// # Errors
    /// `EINVAL` for a null pointer to some bytes, or too many segments; `EMSGSIZE`.
    ///
    /// # Safety
    /// The memory is valid as [`Buffer::push`] requires.
    #[inline]
    pub(super) unsafe fn buffer(self) -> Result<Buffer, i32> {
        let one;
        let segments = match self {
            Self::One(start, length) => {
                one = [iovec { iov_base: start, iov_len: length }];
                &one[..]
            }
            // SAFETY: guaranteed by the caller.
            Self::Vector(segments, count) => unsafe { vector(segments, count)? },
        };
        if segments.len() > MAX_SEGMENTS {
            return Err(libc::EINVAL);
        }
        let mut buffer = Buffer::EMPTY;
        for segment in segments {
            if segment.iov_base.is_null() && segment.iov_len > 0 {
                return Err(libc::EINVAL);
            }
            if segment.iov_len > isize::MAX as usize {
                return Err(libc::EMSGSIZE);
            }
            // SAFETY: guaranteed by the caller.
            unsafe { buffer.push(segment.iov_base.cast(), segment.iov_len) };
        }
        Ok(buffer)
    }
}

/// A transfer that this side starts.
pub(super) struct Transfer {
    pub(super) peer: u64,
    pub(super) context: *mut c_void,
    /// The flags of the call; `None` selects those of the endpoint.
    pub(super) flags: Option<u64>,
    /// Whether the program may change the source at once and receives no completion.
    pub(super) is_injected: bool,
    /// The flags of the completion.
    pub(super) kind: u64,
}

impl Transfer {
    /// Starts the transfer on an endpoint.
    ///
    /// # Safety
    /// The memory is valid until the transfer is complete, or for the call if it is injected.
    #[inline]
    pub(super) unsafe fn start(self, endpoint: *mut FidEp, memory: Memory, action: Action) -> isize {
        result(|| {
            // SAFETY: guaranteed by the caller.
            let buffer = unsafe { memory.buffer()? };
            // SAFETY: functions of endpoints require a valid endpoint.
            unsafe { self.start_from(endpoint, Source::Buffer(buffer), action) }
        })
    }

    /// Like [`Transfer::start`], with the source as a [`Source`].
    ///
    /// # Safety
    /// As for [`Transfer::start`].
    #[inline]
    pub(super) unsafe fn start_from(
        self,
        endpoint: *mut FidEp,
        source: Source,
        action: Action,
    ) -> Result<usize, i32> {
        // SAFETY: guaranteed by the caller.
        let endpoint = unsafe { object::<EndpointObject>(endpoint)? };
        let allowed = SEND_FLAGS | REMOTE_CQ_DATA;
        let flags = match self.flags {
            Some(flags) if flags & !allowed != 0 => return Err(EBADFLAGS),
            Some(flags) => flags,
            None => endpoint.send_flags.load(Ordering::Relaxed),
        };
        let is_injected = self.is_injected || flags & INJECT != 0;
        let is_acknowledged = flags & (DELIVERY_COMPLETE | MATCH_COMPLETE) != 0;
        let length = source.len();
        if length > if is_injected { INJECT_BYTES } else { MAX_MESSAGE_BYTES } {
            return Err(libc::EMSGSIZE);
        }
        let action = match action {
            Action::Message { tag, data, .. } => {
                if is_acknowledged && is_injected && !self.is_injected {
                    return Err(libc::EOPNOTSUPP);
                }
                Action::Message { tag, data, acknowledged: is_acknowledged && !is_injected }
            }
            other => other,
        };
        let selects = endpoint.selects_sends.load(Ordering::Relaxed);
        let reports = !self.is_injected && (!selects || flags & COMPLETION != 0);
        let intent = Intent { context: self.context.expose_provenance(), flags: self.kind, reports };
        let operation =
            Operation { action, source, intent, is_transient: is_injected, fenced: flags & FENCE != 0 };
        endpoint.enabled()?.submit(self.peer, operation).map(|()| 0)
    }
}

/// A receive that the program posts.
pub(super) struct Post {
    pub(super) source: u64,
    pub(super) tag: u64,
    pub(super) ignore: u64,
    pub(super) is_tagged: bool,
    pub(super) context: *mut c_void,
    /// The flags of the call; `None` selects those of the endpoint.
    pub(super) flags: Option<u64>,
}

impl Post {
    /// Posts the receive on an endpoint.
    ///
    /// # Safety
    /// The memory is valid and writable until the receive is complete.
    #[inline]
    pub(super) unsafe fn post(self, endpoint: *mut FidEp, memory: Memory) -> isize {
        result(|| {
            // SAFETY: guaranteed by the caller.
            let (endpoint, buffer) = unsafe { (object::<EndpointObject>(endpoint)?, memory.buffer()?) };
            self.post_to(endpoint, buffer)
        })
    }

    fn post_to(self, endpoint: &EndpointObject, buffer: Buffer) -> Result<usize, i32> {
        let (probing, multiple) = match self.is_tagged {
            true => (PEEK | CLAIM | DISCARD, 0),
            false => (0, MULTI_RECV),
        };
        let flags = match self.flags {
            Some(flags) if flags & !(RECEIVE_FLAGS & !MULTI_RECV | probing | multiple) != 0 => {
                return Err(EBADFLAGS);
            }
            Some(flags) => flags,
            None => {
                endpoint.receive_flags.load(Ordering::Relaxed) & !if self.is_tagged { MULTI_RECV } else { 0 }
            }
        };
        let selects = endpoint.selects_receives.load(Ordering::Relaxed);
        let kind = RECV | if self.is_tagged { TAGGED } else { MSG };
        let intent = Intent {
            context: self.context.expose_provenance(),
            flags: kind,
            reports: !selects || flags & COMPLETION != 0,
        };
        let minimum = endpoint.min_multi_recv.load(Ordering::Relaxed);
        let receive =
            Receive { buffer, intent, releases_below: (flags & MULTI_RECV != 0).then_some(minimum) };
        let source = if endpoint.is_directed() { self.source } else { ADDR_UNSPEC };
        let pattern = Pattern { source, tag: self.tag, ignore: self.ignore };
        let endpoint = endpoint.enabled()?;
        if flags & probing != 0 {
            return probe(endpoint, flags, &pattern, receive);
        }
        endpoint.state().post_receive(self.is_tagged, pattern, receive);
        Ok(0)
    }
}

/// A receive with `PEEK`, `CLAIM` or `DISCARD`. Source: fi_tagged(3).
fn probe(
    endpoint: &crate::core::endpoint::Endpoint,
    flags: u64,
    pattern: &Pattern,
    receive: Receive,
) -> Result<usize, i32> {
    if flags & PEEK != 0 {
        endpoint.progress();
    }
    let mut state = endpoint.state();
    let found = match (flags & PEEK != 0, flags & CLAIM != 0, flags & DISCARD != 0) {
        (true, false, true) => state.discard(Some(pattern), receive),
        (true, claims, false) => state.peek(pattern, &receive, claims),
        (false, true, true) => state.discard(None, receive),
        (false, true, false) => state.receive_claimed(receive),
        _ => return Err(libc::EINVAL),
    };
    if !found && flags & PEEK == 0 {
        return Err(libc::EINVAL);
    }
    if !found {
        state.report_no_message(&receive, pattern.tag);
    }
    Ok(0)
}
