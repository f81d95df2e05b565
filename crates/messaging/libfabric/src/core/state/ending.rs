//! The end of a connection: all its unfinished operations are reported as failed.

use super::{Notice, Received, State, Unexpected};
use crate::abi::constants::ADDR_NOTAVAIL;
use crate::core::connection::{Posted, Purpose, Request};
use crate::core::error::Failure;
use crate::core::log::info;
use crate::core::wire::Frame;

impl State {
    /// Ends a connection for the reason that its VI has. Messages that have arrived are received first.
    pub(super) fn end_of(&mut self, key: usize) {
        match self.connections.get_mut(key) {
            Some(connection) if !connection.is_ending => connection.is_ending = true,
            _ => return,
        }
        while self.receive_frame(key) {}
        let reason = self
            .connections
            .get(key)
            .and_then(|connection| connection.link.as_ref())
            .and_then(|link| link.vi.end_reason());
        self.end(key, Failure::of_end(reason));
    }

    /// Ends a connection.
    pub(crate) fn end(&mut self, key: usize, failure: Failure) {
        // Held messages have already arrived, so they are stored even beyond the limit.
        let limit = std::mem::replace(&mut self.setup.max_unexpected, usize::MAX);
        while let Some((slot, length)) =
            self.connections.get_mut(key).and_then(|connection| connection.held.pop_front())
        {
            let decoded = self.connections[key]
                .link
                .as_ref()
                .and_then(|link| Frame::decode(link.slots.bytes(slot, length)).ok());
            if let Some((frame @ Frame::Message { .. }, _, payload)) = decoded {
                self.deliver(key, slot, length, &frame, payload);
            }
        }
        self.setup.max_unexpected = limit;
        let Some(mut connection) = self.connections.try_remove(key) else { return };
        info!("the connection to {:?} has ended: {failure:?}", connection.peer);
        if let Some(link) = &connection.link {
            self.by_vi.remove(&link.vi.number());
        }
        self.busy.retain(|&other| other != key);
        let is_only = self.only == Some(key);
        if is_only {
            self.only = None;
            self.only_ended = Some(failure);
            let is_established = connection.link.is_some();
            self.notify(if is_established { Notice::Ended } else { Notice::Failed(failure) });
        }
        self.by_number.iter_mut().filter(|entry| **entry == Some(key)).for_each(|entry| *entry = None);
        if let Some(peer) = connection.peer {
            if self.by_name.get(&peer) == Some(&key) {
                self.by_name.remove(&peer);
            }
            self.ended.insert(peer, failure);
        }
        self.forget_messages_of(key);
        for posted in connection.posted.drain(..) {
            if let Posted::Frame { intent: Some(intent), .. } = posted {
                self.setup.report_sent(&intent, 0, Some(failure));
            }
        }
        for request in connection.requests.drain() {
            match request {
                Request::Offer { intent, _registered: registered, .. }
                | Request::Write { intent, _registered: registered, .. } => {
                    drop(registered);
                    self.setup.report_sent(&intent, 0, Some(failure));
                }
                Request::Fetch { intent, .. } => self.setup.report_sent(&intent, 0, Some(failure)),
                Request::Pulling => {}
            }
        }
        for pull in connection.pulls.drain() {
            drop(pull.registered);
            match pull.purpose {
                Purpose::Receive { receive, tag, data, .. } => {
                    let received = Received { length: 0, tag, data, source: connection.source };
                    self.setup.report_received(&receive, received, Some(failure));
                }
                Purpose::Fetch { intent, .. } => self.setup.report_sent(&intent, 0, Some(failure)),
                Purpose::Write { .. } => {}
            }
        }
        for operation in connection.waiting.drain(..) {
            self.setup.report_sent(&operation.intent, 0, Some(failure));
        }
        let is_connected =
            self.connections.iter().any(|(_, other)| other.peer.is_some() && other.peer == connection.peer);
        if is_only {
            // Only this peer could have sent to the endpoint.
            self.fail_receives(connection.source, failure, |_| true);
        } else if !is_connected && connection.source != ADDR_NOTAVAIL {
            self.fail_receives(connection.source, failure, |pattern| pattern.source == connection.source);
        }
    }

    /// Removes messages whose bytes are in the memory of a peer that is gone, and unlinks its other messages from the
    /// connection.
    fn forget_messages_of(&mut self, key: usize) {
        let mut freed = 0;
        let mut stays = |arrived: &mut super::Arrived| {
            if arrived.connection != Some(key) {
                return true;
            }
            arrived.connection = None;
            let is_lost = matches!(arrived.message, Unexpected::Offer { .. });
            if is_lost {
                freed += arrived.message.memory();
            }
            !is_lost
        };
        self.tagged.unexpected().retain_mut(&mut stays);
        self.messages.unexpected().retain_mut(&mut stays);
        for (_, arrived) in &mut self.claimed {
            // A claim is answered with an error.
            if arrived.connection == Some(key) {
                arrived.connection = None;
            }
        }
        self.unexpected_bytes -= freed;
    }
}
