//! A receiver that verifies every byte. It stores out-of-order data, acknowledges every second segment, and can close
//! its window.
//!
//! Source: RFC 9293 section 3.8.

use longma_devices::ethernet::tcp::{Endpoint, Segment, stream_byte};
use longma_devices::ethernet::tcp::{SenderSpec, TcpSender};
use longma_devices::ethernet::{FaultInjector, FaultRates, Frame, Wire};
use longma_sim::{Duration, Time};
use std::collections::BTreeMap;

pub const SENDER: Endpoint = Endpoint { station: [2; 6], address: [10, 0, 0, 1], port: 40_000 };
pub const RECEIVER: Endpoint = Endpoint { station: [4; 6], address: [10, 0, 0, 2], port: 12_865 };
pub const GIGABIT: u64 = 1_000_000_000;

pub struct Receiver {
    /// Sequence number of the stream's first byte once the connection is open.
    first: Option<u32>,
    pub received: u64,
    early: BTreeMap<u64, Vec<u8>>,
    pub window: u64,
    pub scale: u8,
    unanswered: u32,
    pub delay_acknowledgements: bool,
    pub damaged: u64,
    pub finished: bool,
    pub segments: Vec<(u64, usize, bool)>,
}

impl Receiver {
    pub fn new(window: u64, scale: u8) -> Self {
        Self {
            first: None,
            received: 0,
            early: BTreeMap::new(),
            window,
            scale,
            unanswered: 0,
            delay_acknowledgements: true,
            damaged: 0,
            finished: false,
            segments: Vec::new(),
        }
    }

    /// The next expected sequence number.
    pub fn next(&self) -> Option<u32> {
        let expected = self.received + u64::from(self.finished);
        self.first.map(|first| first.wrapping_add(expected as u32))
    }

    fn answer(&self, syn: bool) -> Option<Segment> {
        let window = if syn { self.window.min(65535) } else { self.window >> self.scale };
        Some(Segment {
            sequence: if syn { 7000 } else { 7001 },
            acknowledgement: self.next(),
            syn,
            window: window.min(65535) as u16,
            mss: syn.then_some(1460),
            scale: syn.then_some(self.scale),
            ..Segment::default()
        })
    }

    /// Processes a frame and returns the answer.
    pub fn take(&mut self, frame: &Frame) -> Option<Segment> {
        let Ok(segment) = Segment::read(frame, &SENDER, &RECEIVER) else {
            self.damaged += 1;
            return None;
        };
        if segment.syn {
            self.first = self.first.or(Some(segment.sequence.wrapping_add(1)));
            return self.answer(self.received == 0 && !self.finished);
        }
        let ahead = segment.sequence.wrapping_sub(self.first?.wrapping_add(self.received as u32)) as i32;
        let at = (self.received as i64 + i64::from(ahead)) as u64;
        self.segments.push((at, segment.data.len(), segment.push));
        for (index, byte) in segment.data.iter().enumerate() {
            assert_eq!(*byte, stream_byte(at + index as u64), "byte {} of the stream", at + index as u64);
        }
        let in_order = ahead == 0 && self.early.is_empty();
        if !segment.data.is_empty() && at + segment.data.len() as u64 <= self.received + self.window {
            self.early.insert(at, segment.data);
        }
        self.take_in_order();
        if segment.fin && at == self.received {
            self.finished = true;
        }
        if self.finished {
            return self.answer(false);
        }
        self.unanswered += 1;
        if in_order && self.delay_acknowledgements && self.unanswered < 2 {
            return None;
        }
        self.unanswered = 0;
        self.answer(false)
    }

    fn take_in_order(&mut self) {
        while let Some(first) = self.early.first_entry().filter(|first| *first.key() <= self.received) {
            let (at, data) = first.remove_entry();
            self.received = self.received.max(at + data.len() as u64);
        }
    }

    /// Sends the delayed acknowledgement, if any, or an update of the window.
    pub fn settle(&mut self) -> Option<Segment> {
        self.first?;
        self.unanswered = 0;
        self.answer(false)
    }
}

/// Both ends and the wires between them.
pub struct Line {
    pub sender: TcpSender,
    pub receiver: Receiver,
    forth: FaultInjector,
    back: FaultInjector,
    answers: Wire,
    arriving: Vec<(Time, u64, Frame)>,
    order: u64,
    pub now: Time,
    /// When the delayed acknowledgement is due.
    settle_at: Option<Time>,
}

pub fn spec() -> SenderSpec {
    SenderSpec {
        own: SENDER,
        peer: RECEIVER,
        first_sequence: u32::MAX - 5000,
        mss: 1460,
        message_bytes: 8192,
        message_interval: Duration::ZERO,
        total_bytes: Some(100_000),
        no_delay: false,
        initial_window: None,
        min_timeout: Duration::from_ps(200_000_000_000),
        begin: Time::from_ps(1000),
    }
}

impl Line {
    pub fn new(spec: SenderSpec, receiver: Receiver, faults: FaultRates, seed: u64) -> Self {
        let propagation = Duration::from_ps(5_000_000);
        Self {
            sender: TcpSender::new(spec, GIGABIT, propagation),
            receiver,
            forth: FaultInjector::new(faults, seed),
            back: FaultInjector::new(faults, seed ^ 0xffff),
            answers: Wire::new(GIGABIT, propagation),
            arriving: Vec::new(),
            order: 0,
            now: Time::ZERO,
            settle_at: None,
        }
    }

    fn reply(&mut self, answer: Option<Segment>) {
        let Some(frame) = answer.and_then(|answer| answer.frame(&RECEIVER, &SENDER)) else { return };
        let arrival = self.answers.send(&frame, self.now).arrival;
        for (at, frame) in self.back.pass(frame, arrival) {
            self.sender.deliver(frame, at);
        }
    }

    /// Advances to the next event; false if there is none.
    pub fn step(&mut self) -> bool {
        let arrival = self.arriving.iter().map(|a| (a.0, a.1)).min();
        let times = [self.sender.next_event(), arrival.map(|a| a.0), self.settle_at];
        let Some(at) = times.into_iter().flatten().min() else { return false };
        self.now = at;
        if self.settle_at == Some(at) {
            self.settle_at = None;
            let answer = self.receiver.settle();
            self.reply(answer);
        }
        if let Some((_, order)) = arrival.filter(|a| a.0 == at) {
            let index = self.arriving.iter().position(|a| a.1 == order).unwrap();
            let (_, _, frame) = self.arriving.remove(index);
            let answer = self.receiver.take(&frame);
            // RFC 9293 3.8.6.3: an acknowledgement is delayed by less than half a second; 40 ms as in Linux.
            self.settle_at = match answer {
                None => self.settle_at.or(at.checked_add(Duration::from_ps(40_000_000_000))),
                Some(_) => None,
            };
            self.reply(answer);
        }
        self.sender.advance(at);
        while let Some((arrival, frame)) = self.sender.take_sent() {
            for (at, frame) in self.forth.pass(frame, arrival) {
                self.order += 1;
                self.arriving.push((at, self.order, frame));
            }
        }
        true
    }
}
