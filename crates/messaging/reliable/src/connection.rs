//! A reliable connection: opening, ordered messages in both directions, detection of a dead peer, and closing. It is a
//! state machine that does no I/O: the caller passes it packets and the time, and takes datagrams and events from it.
//!
//! Source: delayed acknowledgements and probing of a closed window after RFC 1122 (4.2.3.2, 4.2.2.17).

use crate::packet::{HEADER_BYTES, Kind, MAX_HEADER_BYTES, MAX_SACK_WORDS, Packet};
use crate::receiver::{Arrival, Receiver, Violation};
use crate::round_trip::RoundTrip;
use crate::sender::{Acknowledgement, Sender};
use std::collections::VecDeque;
use std::time::Duration;

/// The size of the parameters in front of a request or an answer, bytes.
const PARAMETER_BYTES: usize = 8;

/// The maximum size of the request or answer in the packets that open a connection, bytes.
pub const MAX_OPENING_BYTES: usize = 512;

/// If the peer answers, the path is considered broken only after this number of transmissions of one packet.
const MIN_TRANSMISSIONS: u32 = 8;

/// The number of `Close` packets sent before the peer is considered gone.
const MAX_CLOSES: u32 = 5;

/// The assumed maximum packet size of a route if it is unknown: Ethernet without jumbo frames (IEEE 802.3-2018, 3.2.7).
pub const USUAL_PACKET_BYTES: u32 = 1500;

/// The size of the headers (RFC 791, RFC 768).
const IPV4_AND_UDP_BYTES: u32 = 20 + 8;

/// The configuration of a connection. Each end has its own; the smaller datagram and message sizes apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The maximum datagram size, 600 to 65,507 bytes.
    pub max_datagram: u16,
    /// The number of packets that the receiver buffers, 1 to 256.
    pub window: u16,
    /// The maximum message size, bytes.
    pub max_message: u32,
    /// The maximum number of packets waiting to be sent or acknowledged. [`Connection::send`] rejects messages while
    /// the queue is at this limit.
    pub queue: usize,
    /// The retransmission time-out before there is a round-trip sample.
    pub initial_time_out: Duration,
    /// The minimum retransmission time-out.
    pub min_time_out: Duration,
    /// The maximum retransmission time-out.
    pub max_time_out: Duration,
    /// How long an acknowledgement may be delayed to be sent with a data packet.
    pub acknowledgement_delay: Duration,
    /// The time without packets from the peer after which it is probed.
    pub probe_after: Duration,
    /// The time without packets from the peer after which it is considered gone. It also limits connection setup.
    pub give_up_after: Duration,
    /// The time since the first transmission of a packet after which the path is considered broken, if the peer answers
    /// but the packet still has not arrived.
    pub blocked_after: Duration,
}

impl Default for Config {
    /// For local networks: Ethernet without jumbo frames, round trips below a millisecond.
    fn default() -> Self {
        Self {
            max_datagram: (USUAL_PACKET_BYTES - IPV4_AND_UDP_BYTES) as u16,
            window: 256,
            max_message: 64 << 20,
            queue: 1024,
            initial_time_out: Duration::from_millis(100),
            min_time_out: Duration::from_millis(4),
            max_time_out: Duration::from_secs(1),
            acknowledgement_delay: Duration::from_micros(100),
            probe_after: Duration::from_millis(500),
            give_up_after: Duration::from_secs(3),
            blocked_after: Duration::from_secs(5),
        }
    }
}

/// An event of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer accepted the connection, with this answer.
    Opened(Vec<u8>),
    /// The peer rejected the connection, with this answer.
    Rejected(Vec<u8>),
    /// A message arrived.
    Message(Vec<u8>),
    /// All messages up to this number have been received by the peer.
    Delivered(u64),
    /// The peer closed the connection.
    Closed,
    /// The connection broke.
    Lost(Loss),
}

/// The reason why a connection broke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    /// No valid packet arrived from the peer for the configured time.
    #[error("the peer has not answered for {0:?}")]
    Silent(Duration),
    /// The peer answers, but a packet does not get through.
    #[error(
        "a packet was sent {0} times and did not arrive, though the peer answers; is the MTU of the path smaller than that of its ends?"
    )]
    Blocked(u32),
    /// The peer does not know the connection, because it was restarted or has given up the connection.
    #[error("the peer no longer knows the connection")]
    Reset,
    /// The peer violated the protocol.
    #[error("the peer violated the protocol: {0}")]
    Violation(Violation),
    /// The peer's answer is malformed.
    #[error("the peer's answer is malformed")]
    MalformedAnswer,
}

/// The reason why a message was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Too many packets are queued; retry after [`Event::Delivered`].
    #[error("too many packets are queued")]
    Full,
    /// The message exceeds the agreed maximum.
    #[error("the message is longer than the agreed maximum of {0} bytes")]
    TooLong(usize),
    /// The connection is not open.
    #[error("the connection is not open")]
    NotOpen,
}

/// A connection request, decoded from an `Open` packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The peer's tag.
    pub from: u64,
    /// The data of the request.
    pub request: Vec<u8>,
    parameters: Parameters,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parameters {
    max_datagram: u16,
    window: u16,
    max_message: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// `Open` has been sent and is repeated until it is answered.
    Opening,
    Open,
    /// The number of `Close` packets sent.
    Closing(u32),
    Over,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct Connection {
    config: Config,
    phase: Phase,
    tag: u64,
    peer: u64,
    /// The cookie to return in `Open`; 0 until the peer asks for one.
    cookie: u64,
    /// The contents of `Open` or `Accept`.
    opening: Vec<u8>,
    /// When `Accept` must be sent (again).
    accept_due: Option<Duration>,
    /// The payload size of a packet.
    fragment: usize,
    max_message: usize,
    sender: Sender,
    receiver: Receiver,
    events: VecDeque<Event>,
    delivered: u64,
    /// When an acknowledgement must be sent, and the number of packets it covers.
    ack_due: Option<Duration>,
    unacknowledged: u32,
    last_heard: Duration,
    /// When this end was last serviced.
    last_serviced: Duration,
    /// When the next `Open`, `Close` or probe is sent.
    again: Duration,
    attempts: u32,
    /// Whether the peer's `Close` still needs an answer.
    answer_close: bool,
    statistics: Statistics,
}

/// Statistics of one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Datagrams sent.
    pub sent: u64,
    /// Data packets retransmitted.
    pub sent_again: u64,
    /// Packets received that belong to the connection.
    pub received: u64,
    /// Duplicate data packets.
    pub duplicates: u64,
    /// Data packets received out of order.
    pub early: u64,
    /// Invalid packets: stale tags, or acknowledgements of packets never sent.
    pub refused: u64,
}

impl Parameters {
    fn of(config: &Config) -> Self {
        Self { max_datagram: config.max_datagram, window: config.window, max_message: config.max_message }
    }

    fn write(self, words: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PARAMETER_BYTES + words.len());
        bytes.extend(self.max_datagram.to_be_bytes());
        bytes.extend(self.window.to_be_bytes());
        bytes.extend(self.max_message.to_be_bytes());
        bytes.extend(words);
        bytes
    }

    fn read(opening: &[u8]) -> Option<(Self, &[u8])> {
        let (bytes, rest) = opening.split_first_chunk::<PARAMETER_BYTES>()?;
        let [d0, d1, w0, w1, m0, m1, m2, m3] = *bytes;
        let max_datagram = u16::from_be_bytes([d0, d1]);
        let window = u16::from_be_bytes([w0, w1]);
        let fits = usize::from(max_datagram) >= MIN_DATAGRAM && window > 0 && rest.len() <= MAX_OPENING_BYTES;
        let max_message = u32::from_be_bytes([m0, m1, m2, m3]);
        fits.then_some((Self { max_datagram, window, max_message }, rest))
    }
}

/// The minimum datagram size, into which the packets that open a connection fit.
pub const MIN_DATAGRAM: usize = HEADER_BYTES + PARAMETER_BYTES + MAX_OPENING_BYTES;

impl Opening {
    /// Decodes an `Open` packet. `None` if it is another packet or malformed.
    pub fn read(packet: &Packet) -> Option<Self> {
        let (parameters, request) = Parameters::read(packet.payload)?;
        let fits = packet.kind == Kind::Open;
        fits.then(|| Self { from: packet.from, request: request.to_vec(), parameters })
    }

    /// Encodes the rejection, with `tag` as the sender's tag. It may be sent again whenever the `Open` is repeated.
    ///
    /// # Panics
    /// If `answer` is longer than [`MAX_OPENING_BYTES`] bytes.
    pub fn reject(&self, tag: u64, answer: &[u8], out: &mut Vec<u8>) {
        assert!(answer.len() <= MAX_OPENING_BYTES, "an answer of at most {MAX_OPENING_BYTES} bytes");
        let payload = self.parameters.write(answer);
        Packet { payload: &payload, ..Packet::new(Kind::Reject, self.from, tag) }.write(out);
    }
}

/// Answers an `Open` packet whose source address is not verified: the peer must repeat it with the cookie `cookie` (not
/// 0). The caller keeps no state, and the answer is shorter than the request.
pub fn request_cookie(packet: &Packet, cookie: u64, out: &mut Vec<u8>) {
    Packet::new(Kind::Again, packet.from, cookie).write(out);
}

/// Answers a packet for an unknown connection. Returns `false` if there is nothing to answer.
pub fn answer_stray(packet: &Packet, out: &mut Vec<u8>) -> bool {
    let kind = match packet.kind {
        Kind::Data | Kind::Ack | Kind::Probe | Kind::Accept => Kind::Reset,
        Kind::Close => Kind::Closed,
        Kind::Open | Kind::Reject | Kind::Closed | Kind::Reset | Kind::Again => return false,
    };
    if packet.to == 0 {
        return false;
    }
    Packet::new(kind, packet.from, packet.to).write(out);
    true
}

impl Connection {
    /// Opens a connection. `tag` identifies this end of it. The tag must be nonzero and unpredictable: it distinguishes
    /// the packets of this connection from those of earlier ones, and from those forged by attackers off the path.
    ///
    /// # Panics
    /// If the tag is 0, the configuration is outside its ranges, or the request is longer than [`MAX_OPENING_BYTES`] bytes.
    pub fn open(config: Config, tag: u64, request: &[u8], now: Duration) -> Self {
        Self::new(config, Phase::Opening, tag, request, now)
    }

    /// Accepts a connection request. `tag` identifies this end of the connection, as in [`Connection::open`].
    ///
    /// # Panics
    /// As [`Connection::open`].
    pub fn accept(config: Config, tag: u64, opening: &Opening, answer: &[u8], now: Duration) -> Self {
        let mut connection = Self::new(config, Phase::Open, tag, answer, now);
        connection.agree(opening.from, opening.parameters);
        connection.accept_due = Some(now);
        connection
    }

    fn new(config: Config, phase: Phase, tag: u64, opening: &[u8], now: Duration) -> Self {
        assert!(
            tag != 0 && opening.len() <= MAX_OPENING_BYTES,
            "the tag must not be 0, and the opening data must fit"
        );
        assert!(
            usize::from(config.max_datagram) >= MIN_DATAGRAM,
            "datagrams of {MIN_DATAGRAM} bytes or more"
        );
        assert!((1..=256).contains(&config.window), "a window of 1 to 256 packets");
        let trip = RoundTrip::new(config.initial_time_out, config.min_time_out, config.max_time_out);
        Self {
            phase,
            tag,
            peer: 0,
            cookie: 0,
            opening: Parameters::of(&config).write(opening),
            accept_due: None,
            fragment: 0,
            max_message: 0,
            sender: Sender::new(0, trip),
            receiver: Receiver::new(config.window, config.max_message as usize),
            events: VecDeque::new(),
            delivered: 0,
            ack_due: None,
            unacknowledged: 0,
            last_heard: now,
            last_serviced: now,
            again: now,
            attempts: 0,
            answer_close: false,
            statistics: Statistics::default(),
            config,
        }
    }

    fn agree(&mut self, peer: u64, parameters: Parameters) {
        self.peer = peer;
        self.fragment = usize::from(parameters.max_datagram.min(self.config.max_datagram)) - MAX_HEADER_BYTES;
        self.max_message = parameters.max_message.min(self.config.max_message) as usize;
        self.sender = Sender::new(parameters.window, self.sender.trip().clone());
    }

    /// The tag of this end.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// The peer's tag; 0 until it is known.
    pub fn peer(&self) -> u64 {
        self.peer
    }

    /// Whether messages may be sent.
    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether everything sent has been acknowledged.
    pub fn is_drained(&self) -> bool {
        self.sender.packets() == 0
    }

    /// Whether a message would be rejected because the queue is full.
    pub fn is_full(&self) -> bool {
        self.phase == Phase::Open && self.sender.packets() >= self.config.queue
    }

    /// Whether the connection has ended. It can be dropped once its events have been taken.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over && !self.answer_close
    }

    /// Queues a message, given in parts. Returns its number; messages are numbered from 1.
    ///
    /// # Errors
    /// If the connection is not open, the message is too long, or the queue is full.
    pub fn send(&mut self, parts: &[&[u8]]) -> Result<u64, SendError> {
        if self.phase != Phase::Open {
            return Err(SendError::NotOpen);
        }
        if parts.iter().map(|p| p.len()).sum::<usize>() > self.max_message {
            return Err(SendError::TooLong(self.max_message));
        }
        if self.is_full() {
            return Err(SendError::Full);
        }
        Ok(self.sender.queue(parts, self.fragment))
    }

    /// Takes the oldest event.
    pub fn take_event(&mut self) -> Option<Event> {
        // Return the end of the connection after all messages that the peer considers delivered, even if this end was
        // not polled in between.
        let is_the_end = matches!(self.events.front(), Some(Event::Closed | Event::Lost(_)));
        if !is_the_end && let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        self.take_message().or_else(|| self.events.pop_front())
    }

    fn take_message(&mut self) -> Option<Event> {
        let was_shut = self.receiver.credits() == 0;
        let message = self.receiver.take()?;
        if was_shut && self.receiver.credits() > 0 && self.phase == Phase::Open {
            // The peer waits for this acknowledgement.
            self.ack_due = Some(Duration::ZERO);
        }
        Some(Event::Message(message))
    }

    /// Processes a packet whose `to` is the tag of this end.
    pub fn receive(&mut self, now: Duration, packet: &Packet) {
        if packet.kind == Kind::Open {
            if packet.from == self.peer && self.phase == Phase::Open {
                // The `Accept` was lost.
                self.accept_due = Some(now);
            }
            return;
        }
        let known = packet.to == self.tag && (packet.from == self.peer || self.phase == Phase::Opening);
        if !known || self.phase == Phase::Over {
            self.statistics.refused += 1;
            return;
        }
        self.statistics.received += 1;
        match (packet.kind, self.phase) {
            (Kind::Accept | Kind::Reject, Phase::Opening) => self.answered(now, packet),
            (Kind::Again, Phase::Opening) => return self.request_cookie(now, packet.from),
            (_, Phase::Opening) => {}
            (Kind::Accept, Phase::Open) => self.ack_due = Some(now),
            (Kind::Accept | Kind::Reject | Kind::Open | Kind::Again, _) => {}
            (Kind::Reset, _) => self.lose(Loss::Reset),
            (Kind::Close, phase) => {
                if phase == Phase::Open {
                    self.events.push_back(Event::Closed);
                }
                self.answer_close = true;
                self.phase = Phase::Over;
            }
            (Kind::Closed, _) => self.lose(Loss::Reset),
            (Kind::Data | Kind::Ack | Kind::Probe, Phase::Open) => self.traffic(now, packet),
            (Kind::Data | Kind::Ack | Kind::Probe, _) => {}
        }
        self.last_heard = self.last_heard.max(now);
    }

    /// Repeats `Open` with the cookie, immediately if the cookie is new. The same cookie again only answers an `Open`
    /// that was already in flight. The time limit of the opening is not extended.
    fn request_cookie(&mut self, now: Duration, cookie: u64) {
        if self.cookie != cookie {
            (self.cookie, self.again) = (cookie, now);
        }
    }

    fn answered(&mut self, now: Duration, packet: &Packet) {
        let Some((parameters, answer)) = Parameters::read(packet.payload) else {
            return self.lose(Loss::MalformedAnswer);
        };
        if packet.kind == Kind::Reject {
            self.events.push_back(Event::Rejected(answer.to_vec()));
            self.phase = Phase::Over;
            return;
        }
        self.agree(packet.from, parameters);
        self.phase = Phase::Open;
        self.attempts = 0;
        self.again = now + self.config.probe_after;
        self.ack_due = Some(now);
        self.events.push_back(Event::Opened(answer.to_vec()));
    }

    fn traffic(&mut self, now: Duration, packet: &Packet) {
        self.accept_due = None;
        self.attempts = 0;
        self.again = now + self.config.probe_after;
        let ack = Acknowledgement { below: packet.acknowledged, sack: packet.sack, window: packet.window };
        if !self.sender.acknowledge(ack, now) {
            self.statistics.refused += 1;
            return;
        }
        let delivered = self.sender.messages_delivered();
        if delivered > self.delivered {
            self.delivered = delivered;
            self.events.push_back(Event::Delivered(delivered));
        }
        match packet.kind {
            Kind::Probe => self.ack_due = Some(now),
            Kind::Data => self.data(now, packet),
            _ => {}
        }
    }

    fn data(&mut self, now: Duration, packet: &Packet) {
        if packet.payload.len() > self.fragment {
            return self.lose(Loss::Violation(Violation::Datagram(self.fragment)));
        }
        let had_gap = self.receiver.has_gap();
        let arrival = match self.receiver.receive(packet) {
            Ok(arrival) => arrival,
            Err(violation) => return self.lose(Loss::Violation(violation)),
        };
        self.unacknowledged += 1;
        self.statistics.duplicates += u64::from(arrival == Arrival::Duplicate);
        self.statistics.early += u64::from(arrival == Arrival::Early);
        // Acknowledge immediately if the sender needs the information to repair a loss. Otherwise every second packet
        // is acknowledged.
        let at_once = arrival != Arrival::InOrder || had_gap || self.unacknowledged >= 2;
        let due = if at_once { now } else { now + self.config.acknowledgement_delay };
        self.ack_due = Some(self.ack_due.map_or(due, |at| at.min(due)));
    }

    /// Closes the connection. Undelivered messages are dropped.
    pub fn close(&mut self, now: Duration) {
        match self.phase {
            Phase::Open => {
                self.phase = Phase::Closing(0);
                self.again = now;
            }
            Phase::Opening => self.phase = Phase::Over,
            Phase::Closing(_) | Phase::Over => {}
        }
    }

    fn lose(&mut self, loss: Loss) {
        if self.phase != Phase::Over {
            if !matches!(self.phase, Phase::Closing(_)) {
                self.events.push_back(Event::Lost(loss));
            }
            self.phase = Phase::Over;
        }
    }

    /// Appends the next datagram to `out`. Returns `false` if there is none to send at `now`.
    pub fn transmit(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        self.detect_pause(now);
        let sent = match self.phase {
            Phase::Opening => self.transmit_open(now, out),
            Phase::Open => self.transmit_traffic(now, out),
            Phase::Closing(times) => self.transmit_close(now, times, out),
            Phase::Over => self.transmit_closed(out),
        };
        self.statistics.sent += u64::from(sent);
        sent
    }

    /// Detects that this end was not running (its process, or the machine with both ends, was stopped). That time is
    /// not counted as silence of the peer: the peer may have been stopped too, or its packets may be queued here. The
    /// peer is probed and given time to answer.
    fn detect_pause(&mut self, now: Duration) {
        // The longest interval between two calls if the caller observes the deadlines.
        let rest = self.config.probe_after.max(self.config.give_up_after / 4);
        let pause = now.saturating_sub(self.last_serviced);
        if pause > 2 * rest {
            self.sender.excuse(pause);
            self.last_heard = self.last_heard.max(now.saturating_sub(rest));
            (self.again, self.attempts) = (now, 0);
        }
        self.last_serviced = self.last_serviced.max(now);
    }

    fn transmit_open(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        if now.saturating_sub(self.last_heard) >= self.config.give_up_after {
            self.lose(Loss::Silent(self.config.give_up_after));
        } else if now >= self.again {
            self.again = now + self.backed_off();
            Packet { payload: &self.opening, ..Packet::new(Kind::Open, self.cookie, self.tag) }.write(out);
            return true;
        }
        false
    }

    fn transmit_closed(&mut self, out: &mut Vec<u8>) -> bool {
        let due = std::mem::take(&mut self.answer_close);
        if due {
            Packet::new(Kind::Closed, self.peer, self.tag).write(out);
        }
        due
    }

    fn transmit_close(&mut self, now: Duration, times: u32, out: &mut Vec<u8>) -> bool {
        if now < self.again {
            return false;
        }
        if times == MAX_CLOSES {
            self.phase = Phase::Over;
            return false;
        }
        self.phase = Phase::Closing(times + 1);
        self.again = now + self.sender.trip().time_out();
        self.header(Kind::Close).write(out);
        true
    }

    fn transmit_traffic(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        self.sender.check_timer(now);
        if now.saturating_sub(self.last_heard) >= self.config.give_up_after {
            self.lose(Loss::Silent(self.config.give_up_after));
            return false;
        }
        let stuck = self.sender.oldest().filter(|(times, since)| {
            *times >= MIN_TRANSMISSIONS && now.saturating_sub(*since) >= self.config.blocked_after
        });
        if let Some((times, _)) = stuck {
            self.lose(Loss::Blocked(times));
            return false;
        }
        if self.accept_due.is_some_and(|at| at <= now) {
            self.accept_due = Some(now + self.backed_off());
            Packet { payload: &self.opening, ..Packet::new(Kind::Accept, self.peer, self.tag) }.write(out);
            return true;
        }
        if self.transmit_data(now, out) {
            return true;
        }
        if self.ack_due.is_some_and(|at| at <= now) {
            self.acknowledged();
            self.header(Kind::Ack).write(out);
            return true;
        }
        if now >= self.probe_at() {
            self.again = now + self.backed_off();
            self.acknowledged();
            self.header(Kind::Probe).write(out);
            return true;
        }
        false
    }

    fn transmit_data(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        let header = self.header(Kind::Data);
        let Some((sequence, packet)) = self.sender.next(now) else { return false };
        let (first, last, payload) = (packet.first, packet.last, &packet.payload);
        Packet { sequence, first, last, payload, ..header }.write(out);
        self.acknowledged();
        true
    }

    fn header(&self, kind: Kind) -> Packet<'static> {
        Packet {
            sequence: self.sender.next_sequence(),
            acknowledged: self.receiver.next(),
            window: self.receiver.credits(),
            sack: if self.receiver.has_gap() { self.receiver.sack() } else { [0; MAX_SACK_WORDS] },
            ..Packet::new(kind, self.peer, self.tag)
        }
    }

    fn acknowledged(&mut self) {
        self.ack_due = None;
        self.unacknowledged = 0;
    }

    /// Counts an attempt and returns the time until the next one, which doubles with every attempt up to a maximum.
    fn backed_off(&mut self) -> Duration {
        let wait = self.sender.trip().time_out() * (1 << self.attempts.min(10));
        self.attempts += 1;
        wait.min(self.config.max_time_out).min(self.config.give_up_after / 4)
    }

    /// When the next probe is sent. A closed window is probed like a silent peer, but sooner.
    fn probe_at(&self) -> Duration {
        if self.sender.is_window_closed() {
            self.again.min(self.last_heard + self.sender.trip().time_out() * (1 << self.attempts.min(10)))
        } else {
            self.again
        }
    }

    /// When [`Connection::transmit`] must be called if no packet arrives before; `None` if never. A time in the past
    /// means now.
    pub fn deadline(&self) -> Option<Duration> {
        match self.phase {
            Phase::Over => self.answer_close.then_some(Duration::ZERO),
            Phase::Opening => Some(self.again.min(self.last_heard + self.config.give_up_after)),
            Phase::Closing(_) => Some(self.again),
            Phase::Open => {
                if self.sender.is_ready() {
                    return Some(Duration::ZERO);
                }
                let give_up = self.last_heard + self.config.give_up_after;
                let times = [
                    self.accept_due,
                    self.ack_due,
                    self.sender.deadline(),
                    Some(self.probe_at()),
                    Some(give_up),
                ];
                times.into_iter().flatten().min()
            }
        }
    }

    /// The statistics of this end.
    pub fn statistics(&self) -> Statistics {
        Statistics { sent_again: self.sender.retransmissions(), ..self.statistics }
    }

    /// The smoothed round-trip time; `None` before the first acknowledgement.
    pub fn round_trip(&self) -> Option<Duration> {
        self.sender.trip().smoothed()
    }
}
