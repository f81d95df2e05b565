//! Encodes a client's replies and holds them until they are sent, within its limits.
//!
//! Source: Redis serialization protocol specification (RESP2 and RESP3).

use crate::limits::{Budget, FREE_BYTES, Share};
use std::io::Write as _;
use std::sync::Arc;

/// Memory that an empty buffer keeps, bytes.
const KEPT_BYTES: usize = 16 << 10;

/// The maximum overhead of a byte string: its length and line ends.
const BULK_BYTES: usize = 26;

/// The encoded replies. A reply that does not fit is incomplete: [`Output::overflow`] gives the reason, and the owner
/// replaces it.
#[derive(Debug)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    /// The number of bytes sent.
    sent: usize,
    /// The start of the current reply.
    reply: usize,
    longest: usize,
    share: Share,
    overflow: Option<String>,
    /// Whether the budget was exhausted when a reply was added, and most replies are still unsent.
    is_over_budget: bool,
    protocol: Protocol,
}

/// The version of the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    #[default]
    Resp2,
    /// It has separate types for null, maps, sets and texts.
    Resp3,
}

impl Output {
    /// An empty buffer for replies of at most `longest` bytes each.
    pub fn new(budget: &Arc<Budget>, longest: usize) -> Self {
        Self {
            bytes: Vec::new(),
            sent: 0,
            reply: 0,
            longest,
            share: Share::new(budget),
            overflow: None,
            is_over_budget: false,
            protocol: Protocol::default(),
        }
    }

    /// The version of the protocol.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Changes the version for the next replies.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// The unsent bytes.
    pub fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Removes the first `count` unsent bytes. Called between two replies.
    pub fn mark_sent(&mut self, count: usize) {
        self.sent += count;
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT_BYTES);
            self.sent = 0;
            self.share.resize(self.bytes.capacity());
        } else if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
            self.shrink();
        }
        self.is_over_budget &= self.unsent().len() > FREE_BYTES / 2;
        self.reply = self.bytes.len();
    }

    /// Begins a reply. Returns its offset, for [`Output::truncate`].
    pub fn begin(&mut self) -> usize {
        self.reply = self.bytes.len();
        self.reply
    }

    /// Removes all bytes from offset `offset` on.
    pub fn truncate(&mut self, offset: usize) {
        self.bytes.truncate(offset);
        self.overflow = None;
        self.reply = offset;
        self.shrink();
    }

    /// Completes the reply that began at offset `offset`. Replaces it with an error if it `failed` or did not fit.
    pub fn complete(&mut self, offset: usize, failed: Option<String>) {
        if let Some(reason) = failed.or_else(|| self.overflow.clone()) {
            self.truncate(offset);
            self.error(&format!("ERR {reason}"));
        }
    }

    /// Whether the client must read before its next request is executed, because the budget is exhausted.
    pub fn is_over_budget(&self) -> bool {
        self.is_over_budget
    }

    /// Releases memory if the remaining replies need much less.
    fn shrink(&mut self) {
        let needed = self.bytes.len().max(KEPT_BYTES);
        if self.bytes.capacity() > 4 * needed {
            self.bytes.shrink_to(needed);
            self.share.resize(self.bytes.capacity());
        }
    }

    /// Why the current reply is incomplete, if it is.
    pub fn overflow(&self) -> Option<&str> {
        self.overflow.as_deref()
    }

    /// Whether `more` bytes fit; makes room for them.
    fn has_room(&mut self, more: usize) -> bool {
        if self.overflow.is_some() {
            return false;
        }
        if (self.bytes.len() - self.reply).saturating_add(more) > self.longest {
            let longest = self.longest;
            self.overflow = Some(format!("the reply is longer than {longest} bytes: request less at a time"));
            return false;
        }
        let needed = self.bytes.len() + more;
        if needed > self.bytes.capacity() && !self.grow(needed) {
            self.overflow = Some("the buffers of all clients together are full: try again later".into());
            self.is_over_budget = true;
            return false;
        }
        true
    }

    /// Grows the buffer to at least `needed` bytes, and to twice its size if the budget permits.
    fn grow(&mut self, needed: usize) -> bool {
        let doubled = needed.max(2 * self.bytes.capacity());
        let Some(capacity) = [doubled, needed].into_iter().find(|capacity| self.share.resize(*capacity))
        else {
            return false;
        };
        self.bytes.reserve_exact(capacity - self.bytes.len());
        true
    }

    fn line(&mut self, kind: char, text: &str) {
        if self.has_room(text.len() + 3) {
            // Writing to a vector does not fail.
            let _ = write!(self.bytes, "{kind}{text}\r\n");
        }
    }

    fn number_line(&mut self, kind: char, number: usize) {
        if self.has_room(24) {
            let _ = write!(self.bytes, "{kind}{number}\r\n");
        }
    }

    /// A short text, without line breaks.
    pub fn simple(&mut self, text: &'static str) {
        self.line('+', text);
    }

    /// An error. `text` begins with the code of the error, such as `ERR`. It is sent even if the limits are reached.
    pub fn error(&mut self, text: &str) {
        let offset = self.begin();
        self.truncate(offset);
        let text = longma_text::sanitize(text);
        let needed = self.bytes.len() + text.len() + 3;
        if needed > self.bytes.capacity() && !self.grow(needed) {
            // Reserve exactly, because a vector that grows by itself doubles its capacity.
            self.is_over_budget = true;
            self.bytes.reserve_exact(text.len() + 3);
        }
        let _ = write!(self.bytes, "-{text}\r\n");
    }

    /// A number.
    pub fn integer(&mut self, number: u64) {
        if self.has_room(24) {
            let _ = write!(self.bytes, ":{number}\r\n");
        }
    }

    /// A number that may be negative.
    pub fn signed(&mut self, number: i32) {
        if self.has_room(24) {
            let _ = write!(self.bytes, ":{number}\r\n");
        }
    }

    /// Whether a byte string of this length fits; makes room for it.
    pub fn has_room_for_bulk(&mut self, bytes: usize) -> bool {
        self.has_room(bytes.saturating_add(BULK_BYTES))
    }

    /// A byte string.
    pub fn bulk(&mut self, bytes: &[u8]) {
        if self.has_room_for_bulk(bytes.len()) {
            self.number_line('$', bytes.len());
            self.bytes.extend_from_slice(bytes);
            self.bytes.extend_from_slice(b"\r\n");
        }
    }

    /// An absent byte string.
    pub fn null(&mut self) {
        match self.protocol {
            Protocol::Resp2 => self.line('$', "-1"),
            Protocol::Resp3 => self.line('_', ""),
        }
    }

    /// An absent array.
    pub fn null_array(&mut self) {
        match self.protocol {
            Protocol::Resp2 => self.line('*', "-1"),
            Protocol::Resp3 => self.line('_', ""),
        }
    }

    /// The beginning of a map of `count` pairs. The keys and values follow alternately.
    pub fn map(&mut self, count: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(2 * count),
            Protocol::Resp3 => self.number_line('%', count),
        }
    }

    /// The beginning of a set of `count` elements, which follow.
    pub fn set(&mut self, count: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(count),
            Protocol::Resp3 => self.number_line('~', count),
        }
    }

    /// A human-readable text.
    pub fn text(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => {
                if self.has_room(text.len() + 32) {
                    let _ = write!(self.bytes, "={}\r\ntxt:{text}\r\n", text.len() + 4);
                }
            }
        }
    }

    /// The beginning of an array of `count` elements, which follow.
    pub fn array(&mut self, count: usize) {
        self.number_line('*', count);
    }

    /// An empty buffer with the same limits, for a part of a reply that is encoded first but sent later than another
    /// part.
    pub fn nested(&self) -> Self {
        Self {
            bytes: Vec::new(),
            sent: 0,
            reply: 0,
            longest: self.longest,
            share: self.share.sibling(),
            overflow: None,
            is_over_budget: false,
            protocol: self.protocol,
        }
    }

    /// Appends a part of the current reply.
    pub fn append(&mut self, part: Self) {
        self.is_over_budget |= part.is_over_budget;
        if let Some(reason) = part.overflow {
            self.overflow.get_or_insert(reason);
        } else if self.has_room(part.bytes.len()) {
            self.bytes.extend_from_slice(&part.bytes);
        }
    }

    /// A byte string, or null.
    pub fn optional(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_encoded_as_the_protocol_says() {
        let mut output = Output::new(&Budget::new(0), 1000);
        output.simple("OK");
        output.integer(7);
        output.array(2);
        output.bulk(b"a\r\n");
        output.optional(None);
        output.null_array();
        output.error("ERR a\r\nb");
        assert_eq!(
            output.unsent(),
            "+OK\r\n:7\r\n*2\r\n$3\r\na\r\n\r\n$-1\r\n*-1\r\n-ERR a\u{fffd}\u{fffd}b\r\n".as_bytes()
        );
        output.mark_sent(5);
        assert!(output.unsent().starts_with(b":7"));
        for (protocol, expected) in [
            (Protocol::Resp2, &b"*2\r\n*1\r\n$1\r\na\r\n$-1\r\n"[..]),
            (Protocol::Resp3, b"%1\r\n~1\r\n=5\r\ntxt:a\r\n_\r\n"),
        ] {
            let mut output = Output::new(&Budget::new(0), 1000);
            output.set_protocol(protocol);
            output.map(1);
            output.set(1);
            output.text("a");
            output.null();
            assert_eq!(output.unsent(), expected);
        }
    }

    #[test]
    fn sent_replies_take_no_memory() {
        let mut output = Output::new(&Budget::new(0), 1000);
        for number in 0..100_000 {
            output.integer(number);
            output.mark_sent(output.unsent().len().min(3));
            assert!(output.bytes.capacity() <= 4000, "{number}");
            if number % 100 == 99 {
                output.mark_sent(output.unsent().len());
            }
        }
    }

    #[test]
    fn errors_that_are_not_read_take_no_memory_beyond_the_account() {
        let mut output = Output::new(&Budget::new(0), 1 << 20);
        let mut errors = 0;
        while !output.is_over_budget() {
            let offset = output.begin();
            output.bulk(&[0; 2 * FREE_BYTES]);
            output.complete(offset, None);
            errors += 1;
            if output.unsent().len() < FREE_BYTES / 2 {
                // A client with few unread replies is served.
                output.mark_sent(0);
            }
        }
        assert!(errors > 100, "{errors}");
        assert!(output.bytes.capacity() <= FREE_BYTES, "{} bytes", output.bytes.capacity());
        output.mark_sent(output.unsent().len());
        assert!(!output.is_over_budget() && output.bytes.capacity() <= KEPT_BYTES);
    }

    #[test]
    fn a_reply_beyond_a_limit_is_replaced() {
        let budget = Budget::new(FREE_BYTES);
        for (longest, reason) in [(1000, "longer than 1000"), (usize::MAX / 2, "buffers of all clients")] {
            let mut output = Output::new(&budget, longest);
            output.simple("OK");
            let offset = output.begin();
            for _ in 0..100 {
                output.bulk(&[1; 4000]);
            }
            assert!(output.overflow().unwrap().contains(reason));
            output.truncate(offset);
            output.error("ERR");
            assert_eq!(output.unsent(), b"+OK\r\n-ERR\r\n");
            output.mark_sent(11);
            assert_eq!(budget.free(), FREE_BYTES);
        }
    }
}
