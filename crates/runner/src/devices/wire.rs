//! The other end of a MAC's wire, and the frames on their way.
//! Not the MAC's own line rate, which is in its model.

use std::collections::{BTreeMap, VecDeque};

use longma_devices::ethernet::{
    FaultInjector, FaultRates, Frame, PauseState, Wire as Link,
    mac::{Mac, MacSpec},
    pause_quanta,
    tcp::{Endpoint, SenderSpec, TcpSender},
};
use longma_sim::{Duration, Time};
use longma_topology::parts::ETHERNET_MTU_BYTES;

use super::notes::{Notes, Row};

/// One way along the cable where the machine file has none: 10 m at 5 ns a metre. An estimate.
pub(super) const PROPAGATION: Duration = Duration::from_ps(50_000);

/// What is at the other end of a MAC's wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireEnd {
    /// What the MAC sends comes back.
    Loop,
    /// A TCP sender.
    Tcp(TcpOptions),
}

/// A TCP sender at the other end, and the wire's faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// Bytes of a message, at least 1.
    pub message_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
    /// Largest segment.
    pub mss: u16,
    /// When it opens the connection.
    pub begin: Time,
    /// From one message to the next.
    pub message_interval: Duration,
    /// Sends small segments at once.
    pub no_delay: bool,
    /// The wire's faults, both ways.
    pub faults: FaultRates,
    /// Which frames they meet.
    pub seed: u64,
    /// Connections, at least 1, each of `total_bytes`, from ports that follow one another. Several come by a switch, which sends on what it has
    /// whole, in the order in which it came, and whose buffer is never full.
    pub flows: u16,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            message_bytes: 1024,
            total_bytes: 1 << 20,
            mss: (ETHERNET_MTU_BYTES - HEADERS) as u16,
            begin: Time::from_ps(100_000_000),
            message_interval: Duration::ZERO,
            no_delay: false,
            faults: FaultRates::default(),
            seed: 1,
            flows: 1,
        }
    }
}

/// The sender's end of the connection.
const SENDER: Endpoint = Endpoint { station: [2, 0, 0, 0, 0, 1], address: [10, 0, 0, 1], port: 40000 };
/// The program's end.
const RECEIVER: Endpoint = Endpoint { station: [2, 0, 0, 0, 0, 2], address: [10, 0, 0, 2], port: 5001 };
/// Linux's ten segments (RFC 6928).
const INITIAL_SEGMENTS: u64 = 10;
/// Linux's TCP_RTO_MIN.
const SHORTEST_TIMEOUT: Duration = Duration::from_ps(200_000_000_000);

/// Of IPv4 and TCP without options, bytes.
const HEADERS: u64 = 40;

/// What a frame goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Mac,
    End,
    /// The port at the other end of the MAC's link: the sender's own, or a switch's.
    Port,
}

enum End {
    Loop,
    Tcp(Vec<TcpSender>),
}

/// A wire with its far end.
pub(super) struct Wire {
    part: usize,
    /// Bits a second.
    rate: u64,
    end: End,
    /// The port's link to the MAC.
    link: Link,
    /// Frames that wait in the port, where the link has flow control, and from when on they may go.
    waiting: VecDeque<(Time, Frame)>,
    /// What the MAC has asked for; none if the link has no flow control.
    paused: Option<PauseState>,
    /// As far as it has come.
    now: Time,
    /// Faults towards the MAC and away from it.
    faults: [Option<FaultInjector>; 2],
    /// Frames on their way, by arrival; those of one time in the order in which they were sent.
    frames: BTreeMap<(Time, u64), (Way, Frame)>,
    sent: u64,
}

impl Wire {
    /// A wire at part `part`, a MAC as `spec` says that takes packets of `mtu` bytes: no sender's segments are larger than those hold.
    pub fn new(part: usize, end: &WireEnd, spec: &MacSpec, mtu: u64, propagation: Duration) -> Self {
        let rate = spec.rate;
        let (end, faults) = match end {
            WireEnd::Loop => (End::Loop, [None, None]),
            WireEnd::Tcp(options) => {
                let mss = u64::from(options.mss).min(mtu.saturating_sub(HEADERS).max(1)) as u16;
                let spec = |flow: u16| SenderSpec {
                    own: Endpoint { port: SENDER.port + flow, ..SENDER },
                    peer: RECEIVER,
                    first_sequence: 1,
                    mss,
                    message_bytes: options.message_bytes,
                    message_interval: options.message_interval,
                    total_bytes: Some(options.total_bytes),
                    no_delay: options.no_delay,
                    initial_window: Some(INITIAL_SEGMENTS * u64::from(mss)),
                    shortest_timeout: SHORTEST_TIMEOUT,
                    begin: options.begin,
                };
                let faulty = options.faults != FaultRates::default();
                let disturber = |salt: u64| {
                    faulty.then(|| FaultInjector::new(options.faults, options.seed.wrapping_add(salt << 32)))
                };
                let flows = 0..options.flows.max(1);
                let senders = flows.map(|flow| TcpSender::new(spec(flow), rate, propagation)).collect();
                (End::Tcp(senders), [disturber(0), disturber(1)])
            }
        };
        let link = Link::new(rate, propagation);
        Self {
            part,
            rate,
            end,
            link,
            waiting: VecDeque::new(),
            paused: spec.pause.then(PauseState::default),
            now: Time::ZERO,
            faults,
            frames: BTreeMap::new(),
            sent: 0,
        }
    }

    /// The MAC's number among the parts.
    pub fn part(&self) -> usize {
        self.part
    }

    /// The TCP senders; none where frames come back.
    pub fn senders(&self) -> &[TcpSender] {
        match &self.end {
            End::Loop => &[],
            End::Tcp(senders) => senders,
        }
    }

    /// When something happens on it.
    pub fn next_event(&self) -> Option<Time> {
        let frame = self.frames.first_key_value().map(|((at, _), _)| *at);
        let end = match &self.end {
            End::Loop => None,
            End::Tcp(senders) => senders.iter().filter_map(TcpSender::next_event).min(),
        };
        [frame, end, self.next_begin()].into_iter().flatten().min()
    }

    /// How long the MAC has kept the other end from sending so far; `None` if the link has no flow control.
    pub fn paused(&self) -> Option<Duration> {
        self.paused.map(|paused| paused.total(self.now))
    }

    /// When the first frame that waits in the port can go.
    fn next_begin(&self) -> Option<Time> {
        let until = self.paused.map_or(Time::ZERO, |paused| paused.until());
        self.waiting.front().map(|(ready, _)| (*ready).max(self.link.free()).max(until))
    }

    /// Puts what can go by `at` on the link.
    fn forward(&mut self, at: Time) {
        while let Some(begin) = self.next_begin().filter(|begin| *begin <= at)
            && let Some((_, frame)) = self.waiting.pop_front()
        {
            let passage = self.link.send(&frame, begin);
            self.put(Way::Mac, frame, passage.arrival);
        }
    }

    fn put(&mut self, way: Way, frame: Frame, arrival: Time) {
        let frames = match self.faults.get_mut(way as usize).and_then(Option::as_mut) {
            None => vec![(arrival, frame)],
            Some(faults) => faults.pass(frame, arrival),
        };
        for (at, frame) in frames {
            self.sent += 1;
            self.frames.insert((at, self.sent), (way, frame));
        }
    }

    /// Takes what the MAC has sent.
    pub fn collect(&mut self, mac: &mut Mac, mut notes: Option<&mut Notes>) {
        while let Some((arrival, frame)) = mac.take_sent() {
            if let Some(notes) = &mut notes {
                notes.frame(self.part, Row::WireOut, frame.len(), arrival, self.rate);
            }
            let way = if matches!(self.end, End::Loop) { Way::Mac } else { Way::End };
            self.put(way, frame, arrival);
        }
    }

    /// Everything that happens on it up to `at`.
    pub fn act(&mut self, at: Time, mac: &mut Mac, mut notes: Option<&mut Notes>) {
        while let Some(first) = self.frames.first_entry().filter(|first| first.key().0 <= at) {
            let ((arrival, _), (way, frame)) = first.remove_entry();
            if let Some(notes) = &mut notes
                && way == Way::Mac
            {
                notes.frame(self.part, Row::WireIn, frame.len(), arrival, self.rate);
            }
            match (way, &mut self.end) {
                (Way::Mac, _) => mac.deliver(frame, arrival),
                (Way::End, End::Tcp(senders)) => {
                    if let Some(paused) = &mut self.paused
                        && let Some(quanta) = pause_quanta(&frame)
                    {
                        paused.ask(quanta, self.rate, arrival);
                        continue;
                    }
                    let flow = flow_of(&frame).min(senders.len() - 1);
                    senders[flow].deliver(frame, arrival);
                }
                (Way::End, End::Loop) => {}
                (Way::Port, _) if self.paused.is_some() => self.waiting.push_back((arrival, frame)),
                (Way::Port, _) => {
                    let passage = self.link.send(&frame, arrival);
                    self.put(Way::Mac, frame, passage.arrival);
                }
            }
        }
        self.now = self.now.max(at);
        let mut sent = Vec::new();
        if let End::Tcp(senders) = &mut self.end {
            let several = senders.len() > 1;
            for sender in senders {
                sender.advance(at);
                sent.extend(std::iter::from_fn(|| sender.take_sent()));
            }
            for (arrival, frame) in sent {
                match self.paused {
                    // What the sender has ready begins when it may, no longer when it would.
                    Some(_) if !several => {
                        let begin = Time::from_ps(arrival.ps().saturating_sub(self.link.takes(&frame).ps()));
                        self.put(Way::Port, frame, begin);
                    }
                    _ => self.put(if several { Way::Port } else { Way::Mac }, frame, arrival),
                }
            }
        }
        self.forward(at);
    }
}

/// Which of the connections a frame from the program belongs to, by the port that it goes to; what is none of theirs is the first's to refuse.
fn flow_of(frame: &Frame) -> usize {
    // Behind Ethernet's header of 14 bytes and IPv4's of 20.
    let port = frame.bytes().get(36..38).map_or(0, |port| u16::from_be_bytes([port[0], port[1]]));
    port.checked_sub(SENDER.port).map_or(0, usize::from)
}
