//! What a MAC has and where it stands.
//! Not what it does.
//! Source: see `registers`.

use super::super::{Frame, Wire};
use super::flow_control::FlowControl;
use super::merge::{Merge, Plain};
use super::registers::{DESCRIPTOR_BYTES, LENGTH, MOST_QUEUES, SIZE};
use super::steering::Spread;
use crate::Placement;
use crate::bus::Attachment;
use crate::device::Count;
use longma_sim::{Duration, Time};
use longma_topology::parts::Ethernet;
use longma_topology::units::Frequency;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Header and check sequence around a packet, bytes.
const AROUND_PACKET: u64 = 18;
/// No frame is longer, bytes: LENGTH has 14 bits.
pub(super) const MOST_FRAME: u64 = 16383;

/// What a MAC has and how long things take. It does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacSpec {
    /// Line rate, bits a second: 10^9 for Gigabit Ethernet, 10, 40 or 100 times as much for its successors.
    pub rate: u64,
    /// The longest frame it takes until software says otherwise, check sequence included, bytes.
    pub max_frame: u32,
    /// Receive FIFO, bytes.
    pub rx_fifo_bytes: u32,
    /// Largest DMA burst, bytes, at least 16.
    pub burst_bytes: u32,
    /// From one burst's start to the next, at the MAC's own port.
    pub burst_interval: Duration,
    /// Descriptors fetched at once, at least 1: 1 as a Gigabit MAC does; fast NICs take more.
    pub descriptor_batch: u32,
    /// A read of a register, beside the way to the MAC.
    pub register_read: Duration,
    /// A write of a register, beside the way to the MAC.
    pub register_write: Duration,
    /// From a frame's being handed over, or from the wait that software asked for, to the interrupt.
    pub interrupt_delay: Duration,
    /// Queues, each with a receive ring, a send ring and an interrupt line: 1 to 16.
    pub queues: u32,
    /// Flow control: PAUSE frames both ways.
    pub pause: bool,
}

impl MacSpec {
    /// The MAC that `part` describes, at a port of `port_bytes` a cycle of `clock`, attached as `attachment` says. What the part leaves out
    /// is taken as for a Gigabit MAC: packets of [`Ethernet::mtu_bytes`], 10^9 bits a second, a FIFO of 16 KiB, bursts of 128 bytes, no delay.
    pub fn from_part(part: &Ethernet, port_bytes: u32, clock: Frequency, attachment: &Attachment) -> Self {
        let packet = part.mtu_bytes();
        let rate = part.rate.map_or(1_000_000_000, |rate| rate.bits_per_second());
        let burst = part.dma_burst.map_or(128, |burst| burst.bytes()).clamp(16, 4096);
        let cycles = burst.div_ceil(port_bytes.max(1).into());
        Self {
            rate,
            max_frame: packet.saturating_add(AROUND_PACKET).clamp(64, MOST_FRAME) as u32,
            rx_fifo_bytes: part.rx_fifo.map_or(16384, |fifo| fifo.bytes()).min(u32::MAX.into()) as u32,
            burst_bytes: burst as u32,
            burst_interval: Duration::from_ps(clock.ps_of_cycles(cycles)),
            // A Gigabit MAC fetches one at a time; at 84 bytes a frame faster ones could not keep up so (estimate: 8).
            descriptor_batch: if rate > 1_000_000_000 { 8 } else { 1 },
            register_read: attachment.register_read,
            register_write: attachment.register_write,
            interrupt_delay: Duration::from_ps(part.interrupt_delay.map_or(0, |delay| delay.ps())),
            queues: part.queues.clamp(1, MOST_QUEUES),
            pause: part.pause,
        }
    }
}

/// A descriptor as fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Descriptor {
    /// Its own address.
    pub address: u64,
    pub buffer: u64,
    pub control: u64,
    pub status: u64,
}

impl Descriptor {
    pub fn parse(address: u64, bytes: &[u8; DESCRIPTOR_BYTES as usize]) -> Self {
        let word = |at: usize| {
            u64::from(u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]))
        };
        Self { address, buffer: word(0) | word(4) << 32, control: word(8), status: word(12) }
    }

    pub fn size(&self) -> u64 {
        SIZE.of(self.control)
    }
}

/// A ring in memory, and what was fetched of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ring {
    pub base: u64,
    /// Descriptors, at most 65536.
    pub count: u32,
    /// The next one to be used.
    pub head: u32,
    /// Fetched ones, from `head` on, all the MAC's.
    pub fetched: VecDeque<Descriptor>,
}

impl Ring {
    /// Software changed where the ring is: nothing fetched from the old place is used.
    pub fn place(&mut self, base: u64, count: u64) {
        *self = Self { base, count: count.min(1 << 16) as u32, head: 0, fetched: VecDeque::new() };
    }

    /// The address of the next descriptor not fetched yet, and how many of at most `batch` there are before the ring's end.
    pub fn to_fetch(&self, batch: u32) -> (u64, u32) {
        let address = self.base.wrapping_add(u64::from(self.head) * DESCRIPTOR_BYTES);
        (address, batch.clamp(1, 64).min(self.count - self.head.min(self.count)))
    }

    /// Takes the next fetched descriptor.
    pub fn take(&mut self) -> Option<Descriptor> {
        let next = self.fetched.pop_front()?;
        self.head = if self.head + 1 >= self.count { 0 } else { self.head + 1 };
        Some(next)
    }
}

/// How far the writing of a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// Bytes that it takes of the frame.
    pub count: u64,
    /// Those already written.
    pub done: u64,
    /// When the last of these are visible.
    pub visible: Time,
}

/// Where one direction's DMA stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Step {
    /// Looks what to do next.
    #[default]
    Ready,
    /// Waits for software, or when receiving for a frame.
    Suspended,
    /// Descriptors are on the way.
    Fetching { at: Time, found: Vec<Descriptor> },
    /// A received frame waits for the bus; then more of it goes into the descriptor's buffer.
    Storing { at: Time, descriptor: Descriptor, progress: Progress },
    /// A buffer is being written or read; then the descriptor's status is.
    Moving { at: Time, descriptor: Descriptor, status: u64 },
    /// The status is on the way to memory; then causes of interrupts are noted.
    Reporting { at: Time, causes: u64 },
}

impl Step {
    /// When it ends; `None` if nothing is under way.
    pub fn end(&self) -> Option<Time> {
        match self {
            Self::Ready | Self::Suspended => None,
            Self::Fetching { at, .. }
            | Self::Storing { at, .. }
            | Self::Moving { at, .. }
            | Self::Reporting { at, .. } => Some(*at),
        }
    }
}

/// What is counted, in the order of the registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Frames handed over whole and good.
    pub rx_good: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames with a wrong check sequence.
    pub rx_crc: u64,
    /// Frames below 64 bytes.
    pub rx_short: u64,
    /// Frames longer than allowed.
    pub rx_long: u64,
    /// Frames to others.
    pub rx_filtered: u64,
    /// Frames that found the FIFO full.
    pub rx_missed: u64,
    /// How often the receive ring was empty when a frame was there.
    pub rx_starved: u64,
    /// Frames lost to malformed descriptors and bad buffers.
    pub rx_bad_descriptor: u64,
    /// Frames sent.
    pub tx_good: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Frames that could not be sent.
    pub tx_bad: u64,
    /// Frames received that went behind another one into a large frame.
    pub rx_merged: u64,
    /// PAUSE frames received.
    pub rx_pause: u64,
    /// PAUSE frames sent, those that let the other end go on included.
    pub tx_pause: u64,
    /// Assertions of the interrupt line.
    pub interrupts: u64,
}

impl Counters {
    /// Those of frames, with what they say.
    pub(super) fn of_frames(&self) -> Vec<Count> {
        vec![
            Count::new("rx_good", self.rx_good, "frames", "handed over whole and good"),
            Count::new("rx_bytes", self.rx_bytes, "bytes", "of good frames received"),
            Count::new("rx_crc", self.rx_crc, "frames", "with a wrong check sequence"),
            Count::new("rx_short", self.rx_short, "frames", "below 64 bytes"),
            Count::new("rx_long", self.rx_long, "frames", "that were too long"),
            Count::new("rx_filtered", self.rx_filtered, "frames", "to others"),
            Count::new("rx_missed", self.rx_missed, "frames", "that found the receive FIFO full"),
            Count::new("rx_starved", self.rx_starved, "times", "the receive ring had no descriptor"),
            Count::new("rx_bad_descriptor", self.rx_bad_descriptor, "frames", "dropped for a descriptor"),
            Count::new("tx_good", self.tx_good, "frames", "sent"),
            Count::new("tx_bytes", self.tx_bytes, "bytes", "of frames sent"),
            Count::new("tx_bad", self.tx_bad, "frames", "not sent because they made no sense"),
            Count::new(
                "rx_merged",
                self.rx_merged,
                "frames",
                "that went behind another one into a large frame",
            ),
            Count::new("rx_pause", self.rx_pause, "frames", "received that asked for a pause, or ended one"),
            Count::new("tx_pause", self.tx_pause, "frames", "sent that asked for a pause, or ended one"),
        ]
    }
}

/// The registers that only hold what software wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Settings {
    pub control: u64,
    pub address: u64,
    pub max_frame: u64,
    pub dca: u64,
    pub spread: Spread,
}

/// One queue: its rings and its interrupts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Queue {
    pub rx: Ring,
    /// Received segments that become one large frame.
    pub merge: Option<Merge>,
    pub tx: Ring,
    /// Its send ring has nothing to send, until software says otherwise.
    pub tx_idle: bool,
    /// The frame that is being put together; `None` between frames.
    pub tx_frame: Option<Vec<u8>>,
    /// Whether the rest of a frame that could not be sent is to come.
    pub tx_dropping: bool,
    pub moderation: Moderation,
}

/// A queue's interrupts: what software wants, and those that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Moderation {
    pub enable: u64,
    pub rx_delay_ns: u64,
    pub rx_frames: u64,
    pub interval_ns: u64,
    /// Causes that software sees.
    pub causes: u64,
    /// Received frames that it has not been told of.
    pub frames: u64,
    /// When it will be told of them at latest.
    pub tell_at: Option<Time>,
    pub asserted: bool,
    /// The line is not asserted before this time.
    pub allowed_at: Time,
}

/// A frame in the receive FIFO.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Received {
    pub frame: Frame,
    pub queue: usize,
    /// Status bits that tell of its sums.
    pub sums: u64,
}

/// Everything about a MAC that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MacState {
    pub(super) settings: Settings,
    pub(super) now: Time,
    /// Frames on the wire towards it, by arrival.
    pub(super) inbox: VecDeque<(Time, Frame)>,
    /// Frames received and not yet handed over.
    pub(super) fifo: VecDeque<Received>,
    pub(super) fifo_bytes: u64,
    /// At least one.
    pub(super) queues: Vec<Queue>,
    /// The queue of the frame that is being handed over.
    pub(super) rx_queue: usize,
    pub(super) rx_step: Step,
    /// Bytes of the first frame of the FIFO already in buffers.
    pub(super) rx_offset: u64,
    /// What that frame is, if it becomes part of a large one.
    pub(super) rx_merging: Option<Plain>,
    /// The queue whose descriptor is being sent.
    pub(super) tx_queue: usize,
    pub(super) tx_step: Step,
    pub(super) wire: Wire,
    /// When the last frame begins to be sent.
    pub(super) last_begin: Time,
    /// Frames sent, by arrival at the other end, for whoever is there.
    pub(super) outbox: VecDeque<(Time, Frame)>,
    pub(super) flow: FlowControl,
    pub(super) counters: Counters,
}

impl Settings {
    /// The placement that two bits of the DCA register ask for.
    pub fn placement(&self, mode: u64, ways: u64) -> Placement {
        match mode {
            0 => Placement::Memory,
            2 => Placement::LockedLines,
            _ => Placement::SharedCache { ways: (ways > 0).then_some(ways as u32) },
        }
    }
}

/// A receive descriptor's length field for `bytes`.
pub(super) fn length(bytes: u64) -> u64 {
    LENGTH.with(bytes.min(0xffff))
}
