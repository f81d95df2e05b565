//! The sender's connection: opening, sending within the limits of windows and messages, retransmission, closing.
//!
//! Source: RFC 9293 sections 3.5, 3.8 and 3.10; netperf's TCP_STREAM for the behaviour of the application, which writes
//! one message after another.

use super::super::{Frame, Wire};
use super::congestion::{Congestion, Reaction};
use super::segment::{Endpoint, Segment, SegmentError};
use super::timer::Estimator;
use longma_sim::{Duration, Time};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Static configuration of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderSpec {
    /// Address of the sender.
    pub own: Endpoint,
    /// Address of the receiving machine.
    pub peer: Endpoint,
    /// Initial sequence number.
    pub first_sequence: u32,
    /// Maximum segment size, bytes; the peer may request less. 1460 on Ethernet without jumbo frames.
    pub mss: u16,
    /// Bytes per write of the application (netperf's `-m`), at least 1.
    pub message_bytes: u64,
    /// Time between messages: the time that the sending host needs for one write. With zero, the application never
    /// limits the rate.
    pub message_interval: Duration,
    /// Total bytes, after which the sender closes the connection; `None` for an endless stream.
    pub total_bytes: Option<u64>,
    /// Whether small segments are sent immediately (TCP_NODELAY) instead of waiting while data is unacknowledged
    /// (Nagle's algorithm).
    pub no_delay: bool,
    /// Initial congestion window, bytes; `None` for that of RFC 5681. Linux since 2.6.39 uses ten segments (RFC 6928).
    pub initial_window: Option<u64>,
    /// Minimum retransmission timeout: 1 s in RFC 6298, 200 ms in Linux.
    pub min_timeout: Duration,
    /// When to open the connection.
    pub begin: Time,
}

/// State of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Waiting for `begin`.
    Waiting,
    /// SYN sent.
    Opening,
    /// Established.
    Open,
    /// Everything is acknowledged, including the FIN.
    Done,
    /// The peer has reset the connection.
    Reset,
}

/// Counters of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SenderCounters {
    /// Segments sent, of any kind.
    pub sent: u64,
    /// Data segments sent again.
    pub retransmitted: u64,
    /// Retransmissions after three duplicate acknowledgements or a partial one.
    pub fast_retransmits: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Window probes.
    pub probes: u64,
    /// Acknowledgements of new data.
    pub acknowledgements: u64,
    /// Those of `acknowledgements` that confirm more than one full segment: the receiver delayed them, as RFC 9293
    /// 3.8.6.3 recommends.
    pub delayed: u64,
    /// Duplicate acknowledgements.
    pub duplicates: u64,
    /// Frames that were damaged or malformed.
    pub damaged: u64,
    /// Valid frames of other connections.
    pub elsewhere: u64,
    /// Acknowledgements of data that was never sent: an error of the receiver.
    pub impossible: u64,
}

/// The mutable state of a sender. Offsets count the bytes of the stream from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    phase: Phase,
    now: Time,
    /// Oldest unacknowledged byte.
    una: u64,
    /// Next byte to send.
    next: u64,
    /// End of the data sent so far.
    highest: u64,
    peer_window: u64,
    largest_window: u64,
    peer_scale: u8,
    /// Next sequence number expected from the peer.
    peer_next: u32,
    mss: u64,
    congestion: Congestion,
    estimator: Estimator,
    /// The byte whose acknowledgement ends a round-trip measurement, and when it was sent.
    measuring: Option<(u64, Time)>,
    /// When to retransmit or to probe a closed window.
    deadline: Option<Time>,
    opened: Time,
    inbox: VecDeque<(Time, Frame)>,
    outbox: VecDeque<(Time, Frame)>,
    wire: Wire,
    counters: SenderCounters,
}

/// A modelled host that sends a TCP stream.
#[derive(Clone, Debug)]
pub struct TcpSender {
    spec: SenderSpec,
    state: State,
}

/// Byte `offset` of the stream, with which a receiver can verify the data.
pub fn stream_byte(offset: u64) -> u8 {
    // Fibonacci hashing: adjacent bytes differ, so that a shifted stream is detected.
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl TcpSender {
    /// Creates a sender at the end of a wire of `rate` bits per second with a propagation delay.
    pub fn new(spec: SenderSpec, rate: u64, propagation: Duration) -> Self {
        let mss = u64::from(spec.mss.max(1));
        let state = State {
            phase: Phase::Waiting,
            now: Time::ZERO,
            una: 0,
            next: 0,
            highest: 0,
            peer_window: 0,
            largest_window: 0,
            peer_scale: 0,
            peer_next: 0,
            mss,
            congestion: Congestion::new(mss, spec.initial_window),
            estimator: Estimator::new(spec.min_timeout),
            measuring: None,
            deadline: None,
            opened: Time::ZERO,
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            wire: Wire::new(rate, propagation),
            counters: SenderCounters::default(),
        };
        Self { spec, state }
    }

    /// State of the connection.
    pub const fn phase(&self) -> Phase {
        self.state.phase
    }

    /// The counters.
    pub const fn counters(&self) -> &SenderCounters {
        &self.state.counters
    }

    /// Bytes acknowledged by the receiver.
    pub fn acknowledged(&self) -> u64 {
        self.state.una.min(self.end())
    }

    /// Adds a frame on the wire to the sender. Its last bit arrives at `arrival`.
    pub fn deliver(&mut self, frame: Frame, arrival: Time) {
        let later = self.state.inbox.partition_point(|waiting| waiting.0 <= arrival);
        self.state.inbox.insert(later, (arrival, frame));
    }

    /// The next sent frame, and when its last bit arrives at the other end.
    pub fn take_sent(&mut self) -> Option<(Time, Frame)> {
        self.state.outbox.pop_front()
    }

    /// Time of the next event.
    pub fn next_event(&self) -> Option<Time> {
        let state = &self.state;
        let arrival = state.inbox.front().map(|frame| frame.0);
        let own = match state.phase {
            Phase::Waiting => Some(self.spec.begin),
            Phase::Opening => state.deadline,
            Phase::Open => [state.deadline, self.next_message()].into_iter().flatten().min(),
            Phase::Done | Phase::Reset => None,
        };
        [arrival, own].into_iter().flatten().min().map(|at| at.max(state.now))
    }

    /// Processes all events up to `until`.
    pub fn advance(&mut self, until: Time) {
        while let Some(at) = self.next_event().filter(|at| *at <= until) {
            self.state.now = at;
            let arrived = self.state.inbox.front().is_some_and(|frame| frame.0 <= at);
            if arrived && let Some((_, frame)) = self.state.inbox.pop_front() {
                self.receive(&frame);
            } else if self.state.phase == Phase::Waiting {
                self.state.phase = Phase::Opening;
                self.send_syn();
            } else if self.state.deadline.is_some_and(|deadline| deadline <= at) {
                self.timed_out();
            }
            self.send_permitted();
        }
        self.state.now = self.state.now.max(until);
    }

    /// End of the stream.
    fn end(&self) -> u64 {
        self.spec.total_bytes.unwrap_or(u64::MAX / 2)
    }

    /// Bytes written by the application so far.
    fn written(&self) -> u64 {
        let interval = self.spec.message_interval.ps();
        let since = self.state.now.ps().saturating_sub(self.state.opened.ps());
        let messages = since.checked_div(interval).map_or(u64::MAX, |messages| messages.saturating_add(1));
        messages.saturating_mul(self.spec.message_bytes.max(1)).min(self.end())
    }

    /// When the application writes again, if that would allow another segment.
    fn next_message(&self) -> Option<Time> {
        let interval = self.spec.message_interval.ps();
        let waits =
            self.written() < self.end() && self.written().saturating_sub(self.state.next) < self.state.mss;
        let since = self.state.now.ps().saturating_sub(self.state.opened.ps());
        let messages = since.checked_div(interval)?.saturating_add(1);
        let at = self.state.opened.ps().saturating_add(messages.saturating_mul(interval));
        waits.then_some(Time::from_ps(at))
    }

    /// The sequence number of byte `offset`. The SYN precedes byte 0.
    fn sequence(&self, offset: u64) -> u32 {
        self.spec.first_sequence.wrapping_add(1).wrapping_add(offset as u32)
    }

    fn send(&mut self, segment: &Segment) {
        let Some(frame) = segment.frame(&self.spec.own, &self.spec.peer) else { return };
        let transmission = self.state.wire.send(&frame, self.state.now);
        self.state.outbox.push_back((transmission.arrival, frame));
        self.state.counters.sent += 1;
    }

    fn send_syn(&mut self) {
        self.send(&Segment {
            sequence: self.spec.first_sequence,
            syn: true,
            window: u16::MAX,
            mss: Some(self.spec.mss),
            scale: Some(0),
            ..Segment::default()
        });
        self.start_timer();
    }

    fn start_timer(&mut self) {
        self.state.deadline = self.state.now.checked_add(self.state.estimator.timeout());
    }

    fn receive(&mut self, frame: &Frame) {
        let counters = &mut self.state.counters;
        let segment = match Segment::read(frame, &self.spec.peer, &self.spec.own) {
            Ok(segment) => segment,
            Err(SegmentError::Elsewhere) => {
                counters.elsewhere += 1;
                return;
            }
            Err(_) => {
                counters.damaged += 1;
                return;
            }
        };
        match self.state.phase {
            Phase::Opening => self.open(&segment),
            Phase::Open => self.acknowledge(&segment),
            Phase::Waiting | Phase::Done | Phase::Reset => {}
        }
    }

    /// Processes the answer to the SYN.
    fn open(&mut self, segment: &Segment) {
        if segment.acknowledgement != Some(self.sequence(0)) {
            self.state.counters.impossible += u64::from(segment.acknowledgement.is_some());
            return;
        }
        if segment.reset {
            self.state.phase = Phase::Reset;
            return;
        }
        if !segment.syn {
            return;
        }
        let state = &mut self.state;
        state.phase = Phase::Open;
        state.opened = state.now;
        // RFC 9293 3.7.1: the MSS is 536 if the option is absent. RFC 7323 2.3: the scale is at most 14.
        state.mss = state.mss.min(segment.mss.unwrap_or(536).max(1).into());
        state.peer_scale = segment.scale.unwrap_or(0).min(14);
        (state.peer_window, state.largest_window) = (segment.window.into(), segment.window.into());
        state.peer_next = segment.sequence.wrapping_add(1);
        state.congestion = Congestion::new(state.mss, self.spec.initial_window);
        state.deadline = None;
        let acknowledgement = self.acknowledgement();
        self.send(&acknowledgement);
    }

    /// A segment without data.
    fn acknowledgement(&self) -> Segment {
        Segment {
            sequence: self.sequence(self.state.next),
            acknowledgement: Some(self.state.peer_next),
            window: u16::MAX,
            ..Segment::default()
        }
    }

    /// Processes a segment of the established connection.
    fn acknowledge(&mut self, segment: &Segment) {
        if segment.reset {
            // RFC 9293 3.10.7.4: only an RST with the expected sequence number resets the connection.
            if segment.sequence == self.state.peer_next {
                self.state.phase = Phase::Reset;
            }
            return;
        }
        if segment.syn {
            // The acknowledgement of the peer's SYN was lost.
            let acknowledgement = self.acknowledgement();
            self.send(&acknowledgement);
            return;
        }
        let Some(number) = segment.acknowledgement else { return };
        let ahead = i64::from(number.wrapping_sub(self.sequence(self.state.una)) as i32);
        let sent = self.state.highest.saturating_sub(self.state.una) as i64;
        if ahead > sent {
            self.state.counters.impossible += 1;
            return;
        }
        let window = u64::from(segment.window) << self.state.peer_scale;
        let changed = window != self.state.peer_window;
        if ahead >= 0 {
            self.state.peer_window = window;
            self.state.largest_window = self.state.largest_window.max(window);
        }
        let reaction = match ahead {
            1.. => self.advance_to(ahead as u64),
            0 if self.state.highest > self.state.una && segment.data.is_empty() && !changed => {
                self.state.counters.duplicates += 1;
                let flight = self.state.next - self.state.una;
                self.state.congestion.duplicate(flight, self.state.highest)
            }
            _ => Reaction::None,
        };
        if reaction == Reaction::Retransmit {
            self.state.counters.fast_retransmits += 1;
            self.retransmit_oldest();
            self.start_timer();
        }
        if window > 0 && self.state.next == self.state.una {
            self.state.deadline = None;
        }
    }

    /// Processes the acknowledgement of `bytes` more bytes.
    fn advance_to(&mut self, bytes: u64) -> Reaction {
        let state = &mut self.state;
        state.una += bytes;
        // Data rescheduled after a timeout may have arrived nevertheless.
        state.next = state.next.max(state.una);
        state.counters.acknowledgements += 1;
        state.counters.delayed += u64::from(bytes > state.mss);
        if let Some((_, since)) = state.measuring.filter(|(byte, _)| *byte < state.una) {
            state.estimator.measured(state.now.checked_since(since).unwrap_or_default());
            state.measuring = None;
        }
        let reaction = state.congestion.advanced(bytes, state.una, state.next - state.una);
        if state.una > self.spec.total_bytes.unwrap_or(u64::MAX - 1) {
            state.phase = Phase::Done;
            state.deadline = None;
        } else if state.next > state.una {
            self.start_timer();
        } else {
            state.deadline = None;
        }
        reaction
    }

    /// Sends new data as permitted by the windows, the application and Nagle's algorithm.
    fn send_permitted(&mut self) {
        while self.state.phase == Phase::Open {
            let state = &self.state;
            let window = state.congestion.window.min(state.peer_window);
            let flight = state.next - state.una;
            let (written, end) = (self.written(), self.end());
            let left = written.saturating_sub(state.next);
            let window_left = window.saturating_sub(flight);
            let bytes = left.min(window_left).min(state.mss);
            let last = written == end && left == bytes;
            let all = bytes == left && (self.spec.no_delay || flight == 0 || last);
            // RFC 9293 3.8.6.2.1: a segment of half the largest window is sent too.
            let now = bytes == state.mss || all || bytes == window_left && 2 * bytes >= state.largest_window;
            if left == 0 && state.next == end && self.spec.total_bytes.is_some() {
                // The FIN takes the sequence number after the last byte.
                self.send_data(end, 0);
                self.state.next = end + 1;
            } else if bytes > 0 && now {
                let offset = state.next;
                self.send_data(offset, bytes);
                self.state.next = offset + bytes;
            } else {
                // Probe a window that is closed or too small if no other event is pending.
                if left > 0 && flight == 0 && self.state.deadline.is_none() {
                    self.start_timer();
                }
                return;
            }
            self.state.highest = self.state.highest.max(self.state.next);
            if self.state.deadline.is_none() {
                self.start_timer();
            }
        }
    }

    /// Retransmits the oldest unacknowledged segment or the FIN. Returns the offset after it.
    fn retransmit_oldest(&mut self) -> u64 {
        let (offset, end) = (self.state.una, self.end());
        let bytes = self.state.highest.min(end).saturating_sub(offset).min(self.state.mss);
        self.send_data(offset, bytes);
        offset + bytes.max(1)
    }

    /// Sends `bytes` of the stream from `offset` on. Zero bytes at the end of the stream mean the FIN.
    fn send_data(&mut self, offset: u64, bytes: u64) {
        let state = &self.state;
        let is_retransmission = offset < state.highest;
        let message = self.spec.message_bytes.max(1);
        let end = offset + bytes;
        let segment = Segment {
            sequence: self.sequence(offset),
            acknowledgement: Some(state.peer_next),
            fin: bytes == 0 && offset == self.end(),
            push: end.is_multiple_of(message) || end / message > offset / message,
            window: u16::MAX,
            data: (offset..end).map(stream_byte).collect(),
            ..Segment::default()
        };
        if is_retransmission {
            self.state.counters.retransmitted += u64::from(bytes > 0);
            // Karn's algorithm: a round trip with a retransmission is not measured.
            self.state.measuring = None;
        } else if self.state.measuring.is_none() {
            self.state.measuring = Some((offset, self.state.now));
        }
        self.send(&segment);
    }

    /// Processes the timer: an acknowledgement is overdue, or the window is still closed.
    fn timed_out(&mut self) {
        self.state.deadline = None;
        if self.state.phase == Phase::Opening {
            self.state.counters.timeouts += 1;
            self.state.estimator.back_off();
            self.send_syn();
            return;
        }
        self.state.estimator.back_off();
        let flight = self.state.next - self.state.una;
        if flight == 0 || self.state.peer_window == 0 {
            // RFC 9293 3.8.6.1: a probe is one byte, which the peer answers with its window.
            self.state.counters.probes += 1;
            let offset = self.state.una;
            self.send_data(offset, u64::from(offset < self.end()));
            self.state.next = self.state.next.max(offset + 1);
        } else {
            self.state.counters.timeouts += 1;
            self.state.congestion.timed_out(flight);
            // Retransmit everything in flight as the window opens.
            self.state.next = self.retransmit_oldest();
        }
        self.state.highest = self.state.highest.max(self.state.next);
        self.start_timer();
    }
}
