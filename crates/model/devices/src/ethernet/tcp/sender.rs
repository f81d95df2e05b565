//! The sender's connection: opening, sending what windows and messages allow, retransmitting, closing.
//! Not the arithmetic of windows and timers: see `congestion` and `timer`.
//! Source: RFC 9293 sections 3.5, 3.8 and 3.10; netperf's TCP_STREAM for what an application does: one message after another.

use super::super::{Frame, Wire};
use super::congestion::{Congestion, Reaction};
use super::segment::{Endpoint, Segment, SegmentError};
use super::timer::Estimator;
use longma_sim::{Duration, Time};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// What a sender is and does. It does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderSpec {
    /// The sender.
    pub own: Endpoint,
    /// The machine it sends to.
    pub peer: Endpoint,
    /// Its first sequence number.
    pub first_sequence: u32,
    /// Largest segment it sends, bytes; the peer may ask for less. 1460 on plain Ethernet.
    pub mss: u16,
    /// Bytes the application writes at once (netperf's `-m`), at least 1.
    pub message_bytes: u64,
    /// From one message to the next: what the sending host needs for a write. Zero: it is never what the connection waits for.
    pub message_interval: Duration,
    /// Bytes in all; then it closes. `None`: no end.
    pub total_bytes: Option<u64>,
    /// Send small segments at once (TCP_NODELAY) instead of waiting while data are unacknowledged (Nagle).
    pub no_delay: bool,
    /// First congestion window, bytes; `None`: RFC 5681's. Linux since 2.6.39 uses ten segments (RFC 6928).
    pub initial_window: Option<u64>,
    /// Shortest retransmission timeout: 1 s in RFC 6298, 200 ms in Linux.
    pub shortest_timeout: Duration,
    /// When it opens the connection.
    pub begin: Time,
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Waits for `begin`.
    Waiting,
    /// Has sent a SYN.
    Opening,
    /// Sends.
    Open,
    /// All is acknowledged, its FIN too.
    Done,
    /// The other end broke it.
    Reset,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SenderCounters {
    /// Segments sent, all of them.
    pub sent: u64,
    /// Those with data that were sent before.
    pub retransmitted: u64,
    /// Retransmissions asked for by three duplicate acknowledgements or a partial one.
    pub fast_retransmits: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Probes of a closed window.
    pub probes: u64,
    /// Acknowledgements of new data.
    pub acknowledgements: u64,
    /// Of these, those of more than one full segment: delayed, as RFC 9293 3.8.6.3 wants.
    pub delayed: u64,
    /// Acknowledgements of nothing new.
    pub duplicates: u64,
    /// Frames that were damaged or malformed.
    pub damaged: u64,
    /// Well-formed frames of others.
    pub elsewhere: u64,
    /// Acknowledgements of data that were never sent: a fault of the receiver.
    pub impossible: u64,
}

/// Everything about a sender that changes. Offsets count the stream's bytes from 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    phase: Phase,
    now: Time,
    /// Oldest unacknowledged byte.
    una: u64,
    /// Next byte to send.
    next: u64,
    /// End of what was ever sent.
    highest: u64,
    peer_window: u64,
    largest_window: u64,
    peer_scale: u8,
    /// What the peer's bytes are acknowledged with.
    peer_next: u32,
    mss: u64,
    congestion: Congestion,
    estimator: Estimator,
    /// A byte whose acknowledgement ends a measurement of the round trip, and when it was sent.
    measuring: Option<(u64, Time)>,
    /// When to retransmit, or to probe a closed window.
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

/// Byte `offset` of the stream, so that a receiver can check what it got.
pub fn stream_byte(offset: u64) -> u8 {
    // Fibonacci hashing: neighbours differ, and a shift of the stream is seen.
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl TcpSender {
    /// A sender at the end of a wire of `rate` bits a second that a bit needs `propagation` to pass.
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
            estimator: Estimator::new(spec.shortest_timeout),
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

    /// Where the connection stands.
    pub const fn phase(&self) -> Phase {
        self.state.phase
    }

    /// What was counted.
    pub const fn counters(&self) -> &SenderCounters {
        &self.state.counters
    }

    /// Bytes that the receiver has acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.state.una.min(self.end())
    }

    /// A frame is on the wire towards it; its last bit arrives at `arrival`.
    pub fn deliver(&mut self, frame: Frame, arrival: Time) {
        let later = self.state.inbox.partition_point(|waiting| waiting.0 <= arrival);
        self.state.inbox.insert(later, (arrival, frame));
    }

    /// The next frame it has sent, and when its last bit arrives at the other end.
    pub fn take_sent(&mut self) -> Option<(Time, Frame)> {
        self.state.outbox.pop_front()
    }

    /// When it next does something by itself.
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

    /// Does everything that happens up to `until`.
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
            self.send_what_may_be();
        }
        self.state.now = self.state.now.max(until);
    }

    /// The stream's end.
    fn end(&self) -> u64 {
        self.spec.total_bytes.unwrap_or(u64::MAX / 2)
    }

    /// Bytes the application has written by now.
    fn written(&self) -> u64 {
        let interval = self.spec.message_interval.ps();
        let since = self.state.now.ps().saturating_sub(self.state.opened.ps());
        let messages = since.checked_div(interval).map_or(u64::MAX, |messages| messages.saturating_add(1));
        messages.saturating_mul(self.spec.message_bytes.max(1)).min(self.end())
    }

    /// When the application writes again, if there is room for what it writes.
    fn next_message(&self) -> Option<Time> {
        let interval = self.spec.message_interval.ps();
        let waits =
            self.written() < self.end() && self.written().saturating_sub(self.state.next) < self.state.mss;
        let since = self.state.now.ps().saturating_sub(self.state.opened.ps());
        let messages = since.checked_div(interval)?.saturating_add(1);
        let at = self.state.opened.ps().saturating_add(messages.saturating_mul(interval));
        waits.then_some(Time::from_ps(at))
    }

    /// The sequence number of byte `offset`; the SYN has the one before byte 0.
    fn sequence(&self, offset: u64) -> u32 {
        self.spec.first_sequence.wrapping_add(1).wrapping_add(offset as u32)
    }

    fn send(&mut self, segment: &Segment) {
        let Some(frame) = segment.frame(&self.spec.own, &self.spec.peer) else { return };
        let passage = self.state.wire.send(&frame, self.state.now);
        self.state.outbox.push_back((passage.arrival, frame));
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

    /// Takes the answer to the SYN.
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
        // RFC 9293 3.7.1: without the option 536; RFC 7323 2.3: a shift is at most 14.
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

    /// Takes a segment of the open connection.
    fn acknowledge(&mut self, segment: &Segment) {
        if segment.reset {
            // RFC 9293 3.10.7.4: only one that is in order breaks the connection.
            if segment.sequence == self.state.peer_next {
                self.state.phase = Phase::Reset;
            }
            return;
        }
        if segment.syn {
            // Our acknowledgement of its SYN was lost.
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
            self.send_again();
            self.start_timer();
        }
        if window > 0 && self.state.next == self.state.una {
            self.state.deadline = None;
        }
    }

    /// `bytes` more are acknowledged.
    fn advance_to(&mut self, bytes: u64) -> Reaction {
        let state = &mut self.state;
        state.una += bytes;
        // What was taken back after a timeout may have arrived all the same.
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

    /// Sends new data as long as windows, the application and Nagle's rule allow.
    fn send_what_may_be(&mut self) {
        while self.state.phase == Phase::Open {
            let state = &self.state;
            let window = state.congestion.window.min(state.peer_window);
            let flight = state.next - state.una;
            let (written, end) = (self.written(), self.end());
            let left = written.saturating_sub(state.next);
            let room = window.saturating_sub(flight);
            let bytes = left.min(room).min(state.mss);
            let last = written == end && left == bytes;
            let all = bytes == left && (self.spec.no_delay || flight == 0 || last);
            // RFC 9293 3.8.6.2.1: half of the largest window is worth a segment too.
            let now = bytes == state.mss || all || bytes == room && 2 * bytes >= state.largest_window;
            if left == 0 && state.next == end && self.spec.total_bytes.is_some() {
                // The FIN takes the number after the last byte.
                self.send_data(end, 0);
                self.state.next = end + 1;
            } else if bytes > 0 && now {
                let offset = state.next;
                self.send_data(offset, bytes);
                self.state.next = offset + bytes;
            } else {
                // A closed window, or one too small for anything, is probed when nothing else would wake us.
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

    /// Sends the oldest unacknowledged segment again, or the FIN; gives the offset behind it.
    fn send_again(&mut self) -> u64 {
        let (offset, end) = (self.state.una, self.end());
        let bytes = self.state.highest.min(end).saturating_sub(offset).min(self.state.mss);
        self.send_data(offset, bytes);
        offset + bytes.max(1)
    }

    /// Sends `bytes` of the stream from `offset` on; none of them at its end is the FIN.
    fn send_data(&mut self, offset: u64, bytes: u64) {
        let state = &self.state;
        let again = offset < state.highest;
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
        if again {
            self.state.counters.retransmitted += u64::from(bytes > 0);
            // Karn's rule: a round trip with a retransmission in it says nothing.
            self.state.measuring = None;
        } else if self.state.measuring.is_none() {
            self.state.measuring = Some((offset, self.state.now));
        }
        self.send(&segment);
    }

    /// The timer went off: nothing came for too long, or the window stayed closed.
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
            // RFC 9293 3.8.6.1: one byte, to be answered with the window.
            self.state.counters.probes += 1;
            let offset = self.state.una;
            self.send_data(offset, u64::from(offset < self.end()));
            self.state.next = self.state.next.max(offset + 1);
        } else {
            self.state.counters.timeouts += 1;
            self.state.congestion.timed_out(flight);
            // All that is out is sent again, as far as the window opens.
            self.state.next = self.send_again();
        }
        self.state.highest = self.state.highest.max(self.state.next);
        self.start_timer();
    }
}
