//! The remote end of a MAC's wire, and the frames in transit. The MAC model limits its own line rate.

use std::collections::{BTreeMap, VecDeque};

use longma_devices::ethernet::{
    FaultInjector, FaultRates, Frame, PauseState, Wire as Link,
    mac::{Mac, MacSpec},
    pause_quanta,
    tcp::{Endpoint, SenderSpec, TcpSender},
};
use longma_sim::{Duration, Time};
use longma_topology::parts::ETHERNET_MTU_BYTES;

use super::activity::{ActivityRecorder, DeviceTrack};

/// The default one-way latency of a cable: 10 m at 5 ns a metre. An estimate.
pub(super) const PROPAGATION: Duration = Duration::from_ps(50_000);

/// The remote end of a MAC's wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireEnd {
    /// A loopback: frames return to the MAC.
    Loop,
    /// A TCP sender.
    Tcp(TcpOptions),
}

/// The configuration of a TCP sender and of the wire's faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// The size of a message in bytes, at least 1.
    pub message_bytes: u64,
    /// The total number of bytes of each connection.
    pub total_bytes: u64,
    /// The maximum segment size in bytes.
    pub mss: u16,
    /// The time at which the connection is opened.
    pub begin: Time,
    /// The interval between messages.
    pub message_interval: Duration,
    /// Send small segments immediately (no Nagle algorithm).
    pub no_delay: bool,
    /// Faults of the wire in both directions.
    pub faults: FaultRates,
    /// The seed that selects the affected frames.
    pub seed: u64,
    /// The number of connections, at least 1, from consecutive ports. Several connections share a store-and-forward
    /// switch, which forwards frames in order of arrival and has an unlimited buffer.
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

/// The sender's endpoint.
const SENDER: Endpoint = Endpoint { station: [2, 0, 0, 0, 0, 1], address: [10, 0, 0, 1], port: 40000 };
/// The program's endpoint.
const RECEIVER: Endpoint = Endpoint { station: [2, 0, 0, 0, 0, 2], address: [10, 0, 0, 2], port: 5001 };
/// The initial window in segments, as in Linux (RFC 6928).
const INITIAL_SEGMENTS: u64 = 10;
/// Linux's TCP_RTO_MIN.
const MIN_TIMEOUT: Duration = Duration::from_ps(200_000_000_000);

/// The size of IPv4 and TCP headers without options, in bytes.
const HEADERS: u64 = 40;

/// The destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Destination {
    Mac,
    RemoteEnd,
    /// The port at the other end of the MAC's link, of the sender or a switch.
    Port,
}

/// The remote end of a wire.
enum RemoteEnd {
    /// Returns each frame to the MAC.
    Loop,
    /// TCP senders that share the wire.
    Tcp(Vec<TcpSender>),
}

/// A wire and its remote end.
pub(super) struct Wire {
    part: usize,
    /// Bits per second.
    rate: u64,
    end: RemoteEnd,
    /// The link from the port to the MAC.
    link: Link,
    /// With flow control, the frames that wait in the port and the time from which each may be sent.
    waiting: VecDeque<(Time, Frame)>,
    /// The pause requested by the MAC; `None` without flow control.
    paused: Option<PauseState>,
    /// The current time of the wire.
    now: Time,
    /// Faults towards the MAC and from it.
    faults: [Option<FaultInjector>; 2],
    /// Frames in transit by arrival time, then in the order in which they were sent.
    frames: BTreeMap<(Time, u64), (Destination, Frame)>,
    sent: u64,
}

impl Wire {
    /// Creates a wire at part `part`, a MAC with `spec` and an MTU of `mtu` bytes, which limits the senders' segments.
    pub fn new(part: usize, end: &WireEnd, spec: &MacSpec, mtu: u64, propagation: Duration) -> Self {
        let rate = spec.rate;
        let (end, faults) = match end {
            WireEnd::Loop => (RemoteEnd::Loop, [None, None]),
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
                    min_timeout: MIN_TIMEOUT,
                    begin: options.begin,
                };
                let faulty = options.faults != FaultRates::default();
                let fault_injector = |salt: u64| {
                    faulty.then(|| FaultInjector::new(options.faults, options.seed.wrapping_add(salt << 32)))
                };
                let flows = 0..options.flows.max(1);
                let senders = flows.map(|flow| TcpSender::new(spec(flow), rate, propagation)).collect();
                (RemoteEnd::Tcp(senders), [fault_injector(0), fault_injector(1)])
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

    /// The number of the MAC's part.
    pub fn part(&self) -> usize {
        self.part
    }

    /// The TCP senders; none for a loopback.
    pub fn senders(&self) -> &[TcpSender] {
        match &self.end {
            RemoteEnd::Loop => &[],
            RemoteEnd::Tcp(senders) => senders,
        }
    }

    /// The time of the next event.
    pub fn next_event(&self) -> Option<Time> {
        let frame = self.frames.first_key_value().map(|((at, _), _)| *at);
        let end = match &self.end {
            RemoteEnd::Loop => None,
            RemoteEnd::Tcp(senders) => senders.iter().filter_map(TcpSender::next_event).min(),
        };
        [frame, end, self.next_begin()].into_iter().flatten().min()
    }

    /// How long the MAC has paused the remote end so far; `None` without flow control.
    pub fn paused(&self) -> Option<Duration> {
        self.paused.map(|paused| paused.total(self.now))
    }

    /// The earliest time to send the first frame that waits in the port.
    fn next_begin(&self) -> Option<Time> {
        let until = self.paused.map_or(Time::ZERO, |paused| paused.until());
        self.waiting.front().map(|(ready, _)| (*ready).max(self.link.free()).max(until))
    }

    /// Sends the waiting frames that may start by `at`.
    fn forward(&mut self, at: Time) {
        while let Some(begin) = self.next_begin().filter(|begin| *begin <= at)
            && let Some((_, frame)) = self.waiting.pop_front()
        {
            let transmission = self.link.send(&frame, begin);
            self.put(Destination::Mac, frame, transmission.arrival);
        }
    }

    fn put(&mut self, destination: Destination, frame: Frame, arrival: Time) {
        let frames = match self.faults.get_mut(destination as usize).and_then(Option::as_mut) {
            None => vec![(arrival, frame)],
            Some(faults) => faults.pass(frame, arrival),
        };
        for (at, frame) in frames {
            self.sent += 1;
            self.frames.insert((at, self.sent), (destination, frame));
        }
    }

    /// Takes the frames that the MAC has sent.
    pub fn collect(&mut self, mac: &mut Mac, mut activity: Option<&mut ActivityRecorder>) {
        while let Some((arrival, frame)) = mac.take_sent() {
            if let Some(activity) = &mut activity {
                activity.frame(self.part, DeviceTrack::WireOut, frame.len(), arrival, self.rate);
            }
            let destination =
                if matches!(self.end, RemoteEnd::Loop) { Destination::Mac } else { Destination::RemoteEnd };
            self.put(destination, frame, arrival);
        }
    }

    /// Processes all events up to `at`.
    pub fn act(&mut self, at: Time, mac: &mut Mac, mut activity: Option<&mut ActivityRecorder>) {
        while let Some(first) = self.frames.first_entry().filter(|first| first.key().0 <= at) {
            let ((arrival, _), (destination, frame)) = first.remove_entry();
            if let Some(activity) = &mut activity
                && destination == Destination::Mac
            {
                activity.frame(self.part, DeviceTrack::WireIn, frame.len(), arrival, self.rate);
            }
            match (destination, &mut self.end) {
                (Destination::Mac, _) => mac.deliver(frame, arrival),
                (Destination::RemoteEnd, RemoteEnd::Tcp(senders)) => {
                    if let Some(paused) = &mut self.paused
                        && let Some(quanta) = pause_quanta(&frame)
                    {
                        paused.apply(quanta, self.rate, arrival);
                        continue;
                    }
                    let flow = flow_of(&frame).min(senders.len() - 1);
                    senders[flow].deliver(frame, arrival);
                }
                (Destination::RemoteEnd, RemoteEnd::Loop) => {}
                (Destination::Port, _) if self.paused.is_some() => self.waiting.push_back((arrival, frame)),
                (Destination::Port, _) => {
                    let transmission = self.link.send(&frame, arrival);
                    self.put(Destination::Mac, frame, transmission.arrival);
                }
            }
        }
        self.now = self.now.max(at);
        let mut sent = Vec::new();
        if let RemoteEnd::Tcp(senders) = &mut self.end {
            let several = senders.len() > 1;
            for sender in senders {
                sender.advance(at);
                sent.extend(std::iter::from_fn(|| sender.take_sent()));
            }
            for (arrival, frame) in sent {
                match self.paused {
                    // Transmission starts when the port permits it, instead of when the sender was ready.
                    Some(_) if !several => {
                        let begin = Time::from_ps(arrival.ps().saturating_sub(self.link.takes(&frame).ps()));
                        self.put(Destination::Port, frame, begin);
                    }
                    _ => self.put(if several { Destination::Port } else { Destination::Mac }, frame, arrival),
                }
            }
        }
        self.forward(at);
    }
}

/// The connection that a frame from the program belongs to, by its destination port. The first sender rejects frames of
/// no connection.
fn flow_of(frame: &Frame) -> usize {
    // The destination port is 2 bytes after the Ethernet header of 14 bytes and the IPv4 header of 20 bytes.
    let port = frame.bytes().get(36..38).map_or(0, |port| u16::from_be_bytes([port[0], port[1]]));
    port.checked_sub(SENDER.port).map_or(0, usize::from)
}
