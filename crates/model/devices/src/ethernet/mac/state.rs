//! Configuration and state of a MAC.

use super::super::{Frame, Wire};
use super::flow_control::FlowControl;
use super::merge::{Merge, MergeableSegment};
use super::registers::{DESCRIPTOR_BYTES, LENGTH, MAX_QUEUES, SIZE};
use super::steering::RssTable;
use crate::Placement;
use crate::bus::Attachment;
use crate::device::Count;
use longma_sim::{Duration, Time};
use longma_topology::parts::Ethernet;
use longma_topology::units::Frequency;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Ethernet header and check sequence of a packet, bytes.
const PACKET_OVERHEAD_BYTES: u64 = 18;
/// Maximum frame length, bytes: LENGTH has 14 bits.
pub(super) const MAX_FRAME: u64 = 16383;

/// Static configuration and timing of a MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacSpec {
    /// Line rate, bits per second: 10^9 for Gigabit Ethernet, 10, 40 or 100 times as much for its successors.
    pub rate: u64,
    /// Maximum frame length after reset, including the check sequence, bytes.
    pub max_frame: u32,
    /// Size of the receive FIFO, bytes.
    pub rx_fifo_bytes: u32,
    /// Maximum length of a DMA burst, bytes; at least 16.
    pub burst_bytes: u32,
    /// Time from the start of one burst to the next at the MAC's port.
    pub burst_interval: Duration,
    /// Descriptors per fetch, at least 1: one for a Gigabit MAC, more for faster NICs.
    pub descriptor_batch: u32,
    /// Duration of a register read, excluding the path to the MAC.
    pub register_read: Duration,
    /// Duration of a register write, excluding the path to the MAC.
    pub register_write: Duration,
    /// Time from the end of a frame's reception, or of the delay set by software, to the interrupt.
    pub interrupt_delay: Duration,
    /// Number of queues, each with a receive ring, a send ring and an interrupt line: 1 to 16.
    pub queues: u32,
    /// Whether flow control is supported: PAUSE frames in both directions.
    pub pause: bool,
}

impl MacSpec {
    /// The configuration of `part` at a port of `port_bytes` per cycle of `clock`, with an attachment. Defaults are
    /// those of a Gigabit MAC: packets of [`Ethernet::mtu_bytes`], 10^9 bits per second, a FIFO of 16 KiB, bursts of 128
    /// bytes, no delay.
    pub fn from_part(part: &Ethernet, port_bytes: u32, clock: Frequency, attachment: &Attachment) -> Self {
        let packet = part.mtu_bytes();
        let rate = part.rate.map_or(1_000_000_000, |rate| rate.bits_per_second());
        let burst = part.dma_burst.map_or(128, |burst| burst.bytes()).clamp(16, 4096);
        let cycles = burst.div_ceil(port_bytes.max(1).into());
        Self {
            rate,
            max_frame: packet.saturating_add(PACKET_OVERHEAD_BYTES).clamp(64, MAX_FRAME) as u32,
            rx_fifo_bytes: part.rx_fifo.map_or(16384, |fifo| fifo.bytes()).min(u32::MAX.into()) as u32,
            burst_bytes: burst as u32,
            burst_interval: Duration::from_ps(clock.ps_of_cycles(cycles)),
            // A Gigabit MAC fetches one descriptor at a time. A faster MAC could not sustain the line rate of 84-byte
            // frames in this way; 8 is an estimate.
            descriptor_batch: if rate > 1_000_000_000 { 8 } else { 1 },
            register_read: attachment.register_read,
            register_write: attachment.register_write,
            interrupt_delay: Duration::from_ps(part.interrupt_delay.map_or(0, |delay| delay.ps())),
            queues: part.queues.clamp(1, MAX_QUEUES),
            pause: part.pause,
        }
    }
}

/// A fetched descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Descriptor {
    /// Address of the descriptor.
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

/// A descriptor ring in memory, and its prefetched descriptors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ring {
    pub base: u64,
    /// Number of descriptors, at most 65536.
    pub count: u32,
    /// Index of the next descriptor.
    pub head: u32,
    /// Prefetched descriptors owned by the MAC, from `head` on.
    pub fetched: VecDeque<Descriptor>,
}

impl Ring {
    /// Sets address and length. Prefetched descriptors are discarded.
    pub fn set_location(&mut self, base: u64, count: u64) {
        *self = Self { base, count: count.min(1 << 16) as u32, head: 0, fetched: VecDeque::new() };
    }

    /// The address of the next descriptor to fetch, and how many to fetch: at most `batch`, up to the end of the ring.
    pub fn to_fetch(&self, batch: u32) -> (u64, u32) {
        let address = self.base.wrapping_add(u64::from(self.head) * DESCRIPTOR_BYTES);
        (address, batch.clamp(1, 64).min(self.count - self.head.min(self.count)))
    }

    /// Takes the next prefetched descriptor.
    pub fn take(&mut self) -> Option<Descriptor> {
        let next = self.fetched.pop_front()?;
        self.head = if self.head + 1 >= self.count { 0 } else { self.head + 1 };
        Some(next)
    }
}

/// Progress of writing a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// Bytes of the frame to write to the buffer.
    pub count: u64,
    /// Bytes already written.
    pub done: u64,
    /// When the last of these are visible.
    pub visible: Time,
}

/// State of one direction's DMA.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum DmaState {
    /// Ready for the next step.
    #[default]
    Ready,
    /// Waiting for software or, when receiving, for a frame.
    Suspended,
    /// Descriptors are being fetched.
    Fetching { at: Time, found: Vec<Descriptor> },
    /// A received frame waits for the bus; then more of it is written to the descriptor's buffer.
    Storing { at: Time, descriptor: Descriptor, progress: Progress },
    /// A buffer is being written or read; the descriptor's status follows.
    Moving { at: Time, descriptor: Descriptor, status: u64 },
    /// The status is being written to memory; interrupt causes follow.
    Reporting { at: Time, causes: u64 },
}

impl DmaState {
    /// End of the step; `None` if no operation is in progress.
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

/// Counters, in the order of the registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Frames received completely and without error.
    pub rx_good: u64,
    /// Bytes of these frames.
    pub rx_bytes: u64,
    /// Frames with a wrong check sequence.
    pub rx_crc: u64,
    /// Frames shorter than 64 bytes.
    pub rx_short: u64,
    /// Frames longer than the maximum.
    pub rx_long: u64,
    /// Frames with the address of another station.
    pub rx_filtered: u64,
    /// Frames dropped because the FIFO was full.
    pub rx_missed: u64,
    /// Times that the receive ring had no descriptor for a frame.
    pub rx_starved: u64,
    /// Frames dropped because of invalid descriptors or buffers.
    pub rx_bad_descriptor: u64,
    /// Frames sent.
    pub tx_good: u64,
    /// Bytes of these frames.
    pub tx_bytes: u64,
    /// Frames that could not be sent.
    pub tx_bad: u64,
    /// Received frames merged into a large frame that was already open.
    pub rx_merged: u64,
    /// PAUSE frames received.
    pub rx_pause: u64,
    /// PAUSE frames sent, including those that end a pause.
    pub tx_pause: u64,
    /// Assertions of the interrupt line.
    pub interrupts: u64,
}

impl Counters {
    /// The counters of frames, with descriptions.
    pub(super) fn of_frames(&self) -> Vec<Count> {
        vec![
            Count::new("rx_good", self.rx_good, "frames", "frames received without error"),
            Count::new("rx_bytes", self.rx_bytes, "bytes", "bytes of these frames"),
            Count::new("rx_crc", self.rx_crc, "frames", "frames with a wrong check sequence"),
            Count::new("rx_short", self.rx_short, "frames", "frames shorter than 64 bytes"),
            Count::new("rx_long", self.rx_long, "frames", "frames longer than the maximum"),
            Count::new(
                "rx_filtered",
                self.rx_filtered,
                "frames",
                "frames with the address of another station",
            ),
            Count::new(
                "rx_missed",
                self.rx_missed,
                "frames",
                "frames dropped because the receive FIFO was full",
            ),
            Count::new(
                "rx_starved",
                self.rx_starved,
                "times",
                "times that the receive ring had no descriptor",
            ),
            Count::new(
                "rx_bad_descriptor",
                self.rx_bad_descriptor,
                "frames",
                "frames dropped because of a descriptor or buffer",
            ),
            Count::new("tx_good", self.tx_good, "frames", "frames sent"),
            Count::new("tx_bytes", self.tx_bytes, "bytes", "bytes of frames sent"),
            Count::new(
                "tx_bad",
                self.tx_bad,
                "frames",
                "frames not sent because of a descriptor, length or buffer",
            ),
            Count::new("rx_merged", self.rx_merged, "frames", "frames merged into an open large frame"),
            Count::new("rx_pause", self.rx_pause, "frames", "PAUSE frames received"),
            Count::new("tx_pause", self.tx_pause, "frames", "PAUSE frames sent"),
        ]
    }
}

/// Registers without side effects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Settings {
    pub control: u64,
    pub address: u64,
    pub max_frame: u64,
    pub dca: u64,
    pub spread: RssTable,
}

/// A queue: its rings and interrupt state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Queue {
    pub rx: Ring,
    /// Received segments being merged into a large frame.
    pub merge: Option<Merge>,
    pub tx: Ring,
    /// Whether its send ring has nothing to send until software polls it.
    pub tx_idle: bool,
    /// The frame being assembled; `None` between frames.
    pub tx_frame: Option<Vec<u8>>,
    /// Whether the remaining parts of an invalid frame are skipped.
    pub tx_dropping: bool,
    pub moderation: Moderation,
}

/// Interrupt settings and pending interrupts of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Moderation {
    pub enable: u64,
    pub rx_delay_ns: u64,
    pub rx_frames: u64,
    pub interval_ns: u64,
    /// Causes visible to software.
    pub causes: u64,
    /// Received frames that have not been reported.
    pub frames: u64,
    /// When they are reported at the latest.
    #[serde(rename = "tell_at")]
    pub interrupt_at: Option<Time>,
    pub asserted: bool,
    /// Earliest time of the next assertion.
    pub allowed_at: Time,
}

/// A frame in the receive FIFO.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Received {
    pub frame: Frame,
    pub queue: usize,
    /// Status bits for its checksums.
    pub sums: u64,
}

/// The mutable state of a MAC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MacState {
    pub(super) settings: Settings,
    pub(super) now: Time,
    /// Frames on the wire to the MAC, ordered by arrival.
    pub(super) inbox: VecDeque<(Time, Frame)>,
    /// Received frames that are not stored completely.
    pub(super) fifo: VecDeque<Received>,
    pub(super) fifo_bytes: u64,
    /// The queues, at least one.
    pub(super) queues: Vec<Queue>,
    /// The queue of the frame being stored.
    pub(super) rx_queue: usize,
    pub(super) rx_step: DmaState,
    /// Bytes of the FIFO's first frame that are stored.
    pub(super) rx_offset: u64,
    /// That frame as a segment, if it is part of a large frame.
    pub(super) rx_merging: Option<MergeableSegment>,
    /// The queue whose descriptor is being sent.
    pub(super) tx_queue: usize,
    pub(super) tx_step: DmaState,
    pub(super) wire: Wire,
    /// When the last frame starts on the wire.
    pub(super) last_begin: Time,
    /// Sent frames, ordered by arrival at the other end, for the caller to collect.
    pub(super) outbox: VecDeque<(Time, Frame)>,
    pub(super) flow: FlowControl,
    pub(super) counters: Counters,
}

impl Settings {
    /// The placement selected by two bits of the DCA register.
    pub fn placement(&self, mode: u64, ways: u64) -> Placement {
        match mode {
            0 => Placement::Memory,
            2 => Placement::LockedLines,
            _ => Placement::SharedCache { ways: (ways > 0).then_some(ways as u32) },
        }
    }
}

/// The length field of a receive descriptor for `bytes`.
pub(super) fn length(bytes: u64) -> u64 {
    LENGTH.with(bytes.min(0xffff))
}
