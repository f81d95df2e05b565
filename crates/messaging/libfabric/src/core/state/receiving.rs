//! Receiving: frames go to posted receives or are stored; long messages are read from the sender's memory.

use super::{Arrived, Received, State, Unexpected};
use crate::abi::constants::{ADDR_NOTAVAIL, MULTI_RECV, REMOTE_CQ_DATA};
use crate::core::buffer::Buffer;
use crate::core::completion::Completed;
use crate::core::connection::{Posted, Pull, Purpose};
use crate::core::error::Failure;
use crate::core::log::info;
use crate::core::matching::Pattern;
use crate::core::operation::Receive;
use crate::core::slots::{CREDITS, MAX_OFFERS};
use crate::core::wire::{Frame, Window};
use longma_via::{Descriptor, MemoryAttributes, MemoryHandle, RemoteSegment, Segment};

/// Splits a receive into the part that a message of this length uses and the rest.
fn split(receive: Receive, length: usize) -> (Receive, Option<Receive>) {
    let Some(minimum) = receive.releases_below else { return (receive, None) };
    let rest = receive.buffer.part(length, usize::MAX);
    let mut part = Receive { buffer: receive.buffer.part(0, length), ..receive };
    if rest.len() < minimum.max(1) {
        part.intent.flags |= MULTI_RECV;
        return (part, None);
    }
    (part, Some(Receive { buffer: rest, ..receive }))
}

/// The part of `segments` from `skip` on, of `length` bytes.
fn cut(segments: &[Segment], mut skip: usize, mut length: usize) -> Vec<Segment> {
    let mut parts = Vec::new();
    for segment in segments {
        let available = segment.length as usize;
        if skip >= available {
            skip -= available;
            continue;
        }
        let taken = length.min(available - skip);
        if taken > 0 {
            parts.push(Segment { address: segment.address + skip as u64, length: taken as u32, ..*segment });
        }
        (skip, length) = (0, length - taken);
    }
    parts
}

impl State {
    /// Processes the next frame of a connection. False if there is none.
    #[inline]
    pub(crate) fn receive_frame(&mut self, key: usize) -> bool {
        let Some(connection) = self.connections.get_mut(key) else { return false };
        let Some(link) = &mut connection.link else { return false };
        let Some(completion) = link.vi.receive_done() else { return false };
        if !completion.is_success() {
            self.end_of(key);
            return false;
        }
        let slot = link.slots.taken(completion.context);
        match self.process(key, slot, completion.length as usize) {
            Ok(true) => self.reuse(key, slot),
            Ok(false) => {}
            Err(violation) => {
                info!("a connection is closed: the peer sent {violation}");
                self.end(key, Failure::PROTOCOL);
            }
        }
        true
    }

    /// Posts the slot of a processed frame again.
    fn reuse(&mut self, key: usize, slot: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(link) = &mut connection.link else { return };
        if link.slots.post(&link.vi, slot).is_err() {
            return self.end_of(key);
        }
        let has_to_send = !connection.waiting.is_empty() || !connection.replies.is_empty();
        if has_to_send || connection.freed >= CREDITS / 2 {
            self.pump(key);
            self.mark_busy(key);
        }
    }

    /// Processes a frame. False if it stays in its slot.
    ///
    /// # Errors
    /// A violation of the protocol.
    fn process(&mut self, key: usize, slot: usize, length: usize) -> Result<bool, &'static str> {
        let Some(connection) = self.connections.get_mut(key) else { return Ok(true) };
        let Some(link) = &connection.link else { return Ok(true) };
        let (frame, credits, payload) = Frame::decode(link.slots.bytes(slot, length))?;
        if credits > CREDITS - connection.credits {
            return Err("credits that were not used");
        }
        connection.credits += credits;
        if frame.needs_credit() {
            connection.granted = connection.granted.checked_sub(1).ok_or("a frame without a credit")?;
        }
        match frame {
            Frame::Credit if credits == 0 => return Err("a frame that returns no credits"),
            Frame::Credit => {}
            Frame::Message { .. } | Frame::Offer { .. } => {
                if matches!(frame, Frame::Offer { .. }) {
                    connection.offered += 1;
                    if connection.offered > MAX_OFFERS {
                        return Err("more offers than it may have unanswered");
                    }
                }
                if !connection.held.is_empty() || !self.deliver(key, slot, length, &frame, payload) {
                    let Some(connection) = self.connections.get_mut(key) else { return Ok(true) };
                    connection.held.push_back((slot, length));
                    self.mark_busy(key);
                    return Ok(false);
                }
            }
            _ => self.process_remote(key, slot, length, &frame, payload)?,
        }
        if let (true, Some(connection)) = (frame.needs_credit(), self.connections.get_mut(key)) {
            connection.freed += 1;
        }
        Ok(true)
    }

    /// Processes held frames in order. Frames for which there is still neither a receive nor memory remain held.
    pub(super) fn process_held(&mut self, key: usize) {
        let mut place = 0;
        while let Some(&(slot, length)) =
            self.connections.get(key).and_then(|connection| connection.held.get(place))
        {
            let Some(link) = self.connections[key].link.as_ref() else { return };
            let Ok((frame, _, payload)) = Frame::decode(link.slots.bytes(slot, length)) else { return };
            if !self.deliver(key, slot, length, &frame, payload) {
                place += 1;
                continue;
            }
            if let Some(connection) = self.connections.get_mut(key) {
                connection.held.remove(place);
                connection.freed += 1;
                self.reuse(key, slot);
            }
        }
    }

    /// Passes a message to a receive or stores it. False if the memory for unexpected messages is used up.
    pub(super) fn deliver(
        &mut self,
        key: usize,
        slot: usize,
        length: usize,
        frame: &Frame,
        payload: usize,
    ) -> bool {
        let source = self.connections[key].source;
        let (tag, data, window) = match *frame {
            Frame::Message { tag, data } => (tag, data, None),
            Frame::Offer { id, tag, data, window } => (tag, data, Some((id, window))),
            _ => return true,
        };
        let is_tagged = tag.is_some();
        let tag = tag.unwrap_or(0);
        let message_bytes = window.map_or(length - payload, |(_, window)| window.len());
        if let Some((pattern, receive)) = self.list(is_tagged).arrive(source, tag) {
            let (part, rest) = split(receive, message_bytes);
            if let Some(rest) = rest {
                self.list(is_tagged).put_back(pattern, rest);
            }
            match window {
                Some((id, window)) => self.pull_message(key, id, window, part, tag, data),
                None => {
                    if let Some(link) = &self.connections[key].link {
                        part.buffer.write(&link.slots.bytes(slot, length)[payload..]);
                    }
                    let received = Received { length: message_bytes, tag, data, source };
                    self.setup.report_received(&part, received, None);
                }
            }
            return true;
        }
        let message = match (window, &self.connections[key].link) {
            (Some((id, window)), _) => Unexpected::Offer { id, data, window },
            (None, Some(link)) => {
                let cost = size_of::<Unexpected>() + message_bytes;
                if self.unexpected_bytes + cost > self.setup.max_unexpected {
                    return false;
                }
                Unexpected::Message { data, bytes: link.slots.bytes(slot, length)[payload..].to_vec() }
            }
            (None, None) => return true,
        };
        self.unexpected_bytes += message.memory();
        self.list(is_tagged).keep(Arrived { connection: Some(key), source, tag, message });
        true
    }

    /// Posts a receive, or completes it with a stored message that matches.
    #[inline]
    pub(crate) fn post_receive(&mut self, is_tagged: bool, pattern: Pattern, receive: Receive) {
        self.refresh();
        let mut receive = receive;
        loop {
            let Some(arrived) = self.list(is_tagged).take(&pattern) else {
                if let Some(failure) = self.why_ended(pattern.source) {
                    let tag = if is_tagged { pattern.tag } else { 0 };
                    let received = Received { length: 0, tag, data: None, source: pattern.source };
                    return self.setup.report_received(&receive, received, Some(failure));
                }
                return self.list(is_tagged).post(pattern, receive);
            };
            let (part, rest) = split(receive, arrived.message.len());
            self.consume(arrived, part);
            match rest {
                Some(rest) => receive = rest,
                None => return,
            }
        }
    }

    /// Passes a stored message to a receive.
    fn consume(&mut self, arrived: Arrived, receive: Receive) {
        self.unexpected_bytes -= arrived.message.memory();
        let Arrived { connection, source, tag, message } = arrived;
        match message {
            Unexpected::Message { data, bytes } => {
                receive.buffer.write(&bytes);
                let received = Received { length: bytes.len(), tag, data, source };
                self.setup.report_received(&receive, received, None);
            }
            Unexpected::Offer { id, data, window } => match connection {
                Some(key) => self.pull_message(key, id, window, receive, tag, data),
                // The end of the connection has discarded the message's bytes.
                None => {
                    let received = Received { length: 0, tag, data, source };
                    self.setup.report_received(&receive, received, Some(Failure::DISCONNECTED));
                }
            },
        }
    }

    /// Reports the message that a pattern matches, without giving it to a receive. If `claims` is set, the message is
    /// reserved for [`State::receive_claimed`] with the same context. False if there is none.
    pub(crate) fn peek(&mut self, pattern: &Pattern, receive: &Receive, claims: bool) -> bool {
        self.refresh();
        let Some(arrived) = self.tagged.peek(pattern) else { return false };
        let (length, data) = (arrived.message.len(), arrived.message.data());
        let received = Received { length, tag: arrived.tag, data, source: arrived.source };
        // The length of the message, not of the buffer, which a peek does not have.
        let completed = Completed {
            context: receive.intent.context,
            flags: receive.intent.flags | if data.is_some() { REMOTE_CQ_DATA } else { 0 },
            length: received.length,
            buffer: 0,
            data: data.unwrap_or(0),
            tag: received.tag,
            source: received.source,
            failure: None,
        };
        if claims && let Some(arrived) = self.tagged.take(pattern) {
            self.claimed.push((receive.intent.context, arrived));
        }
        self.setup.report(completed, true);
        true
    }

    /// Reports that a peek found no message.
    pub(crate) fn report_no_message(&self, receive: &Receive, tag: u64) {
        let received = Received { length: 0, tag, data: None, source: ADDR_NOTAVAIL };
        self.setup.report_received(receive, received, Some(Failure::NO_MESSAGE));
    }

    /// Passes a claimed message to a receive. False if no claim has this context.
    pub(crate) fn receive_claimed(&mut self, receive: Receive) -> bool {
        let Some(place) = self.claimed.iter().position(|(context, _)| *context == receive.intent.context)
        else {
            return false;
        };
        let (_, arrived) = self.claimed.remove(place);
        self.consume(arrived, receive);
        true
    }

    /// Discards the claimed message with this context, or the oldest that the pattern matches. False if there is none.
    pub(crate) fn discard(&mut self, pattern: Option<&Pattern>, receive: Receive) -> bool {
        let empty = Receive { buffer: Buffer::EMPTY, ..receive };
        let arrived = match pattern {
            Some(pattern) => self.tagged.take(pattern),
            None => {
                let is_meant = |(context, _): &(usize, Arrived)| *context == receive.intent.context;
                self.claimed.iter().position(is_meant).map(|place| self.claimed.remove(place).1)
            }
        };
        let Some(arrived) = arrived else { return false };
        self.unexpected_bytes -= arrived.message.memory();
        if let (Unexpected::Offer { id, .. }, Some(key)) = (&arrived.message, arrived.connection) {
            self.reply(key, Frame::Taken { id: *id }, Vec::new());
        }
        let (tag, source) = (arrived.tag, arrived.source);
        let received = Received { length: 0, tag, data: arrived.message.data(), source };
        self.setup.report_received(&empty, received, None);
        true
    }

    fn pull_message(
        &mut self,
        key: usize,
        id: u32,
        window: Window,
        receive: Receive,
        tag: u64,
        data: Option<u64>,
    ) {
        let purpose = Purpose::Receive { id, receive, tag, data, length: window.len() };
        self.pull(key, window, receive.buffer, purpose);
    }

    /// Reads from a window of the peer as many bytes as fit into a buffer.
    pub(super) fn pull(&mut self, key: usize, window: Window, into: Buffer, purpose: Purpose) {
        let length = window.len().min(into.len());
        let Some(connection) = self.connections.get_mut(key) else { return };
        let pull = connection.pulls.insert(Pull { registered: Vec::new(), purpose });
        if length == 0 {
            return self.pulled(key, pull);
        }
        let Some(link) = &connection.link else { return };
        let attributes = MemoryAttributes::local(link.tag.get());
        let Ok(registered) = into.part(0, length).register(&self.shared.nic, attributes) else {
            return self.end_of(key);
        };
        let segments: Vec<_> = registered.iter().map(|region| region.segment(0, region.len())).collect();
        connection.pulls[pull].registered = registered;
        let mut done = 0;
        for part in window.parts() {
            let bytes = (part.length as usize).min(length - done);
            if bytes == 0 {
                continue;
            }
            let remote = RemoteSegment { address: part.address, handle: MemoryHandle(part.handle) };
            let local = cut(&segments, done, bytes);
            if link.vi.post_send(&Descriptor::rdma_read(&local, remote)).is_err() {
                return self.end_of(key);
            }
            done += bytes;
            connection.posted.push_back(Posted::Read { pull, is_last: done == length });
        }
        self.mark_busy(key);
    }

    /// Finishes the operation that a pull serves.
    pub(super) fn pulled(&mut self, key: usize, pull: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(pull) = connection.pulls.try_remove(pull) else { return };
        let source = connection.source;
        drop(pull.registered);
        match pull.purpose {
            Purpose::Receive { id, receive, tag, data, length } => {
                let received = Received { length, tag, data, source };
                self.setup.report_received(&receive, received, None);
                self.reply(key, Frame::Taken { id }, Vec::new());
            }
            Purpose::Write { id, data, length, .. } => {
                self.report_written(length, data, source);
                self.reply(key, Frame::Done { id, status: 0 }, Vec::new());
            }
            Purpose::Fetch { id, grant, intent, length } => {
                connection.requests.try_remove(id as usize);
                connection.asked -= 1;
                self.setup.report_sent(&intent, length, None);
                self.reply(key, Frame::Granted { grant }, Vec::new());
            }
        }
    }

    /// After a peer's last connection has ended, fails the posted receives that only this peer could have matched.
    pub(super) fn fail_receives(
        &mut self,
        source: u64,
        failure: Failure,
        is_meant: impl Fn(&Pattern) -> bool,
    ) {
        for is_tagged in [true, false] {
            while let Some((pattern, receive)) = self.list(is_tagged).withdraw(|pattern, _| is_meant(pattern))
            {
                let tag = if is_tagged { pattern.tag } else { 0 };
                let received = Received { length: 0, tag, data: None, source };
                self.setup.report_received(&receive, received, Some(failure));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_cut_of_segments_has_the_addresses_of_the_range(
            lengths in prop::collection::vec(1u32..9, 0..5), skip in 0usize..30, length in 0usize..30,
        ) {
            let mut next = 0;
            let segments: Vec<_> = lengths.iter().map(|&length| {
                next += 100;
                Segment { address: next, handle: MemoryHandle(1), length }
            }).collect();
            let bytes = |segments: &[Segment]| -> Vec<u64> {
                segments.iter().flat_map(|part| part.address..part.address + u64::from(part.length)).collect()
            };
            let expected: Vec<_> = bytes(&segments).into_iter().skip(skip).take(length).collect();
            prop_assert_eq!(bytes(&cut(&segments, skip, length)), expected);
        }
    }
}
