//! Registers and descriptors of the MAC.
//!
//! Source: modelled after the Loongson 3A5000 manual's GMAC (Synopsys DesignWare: rings with an owner bit, poll
//! demands, receive watchdog, management counters) and Intel's 82599 data sheet (interrupt interval, DCA by kind of
//! data). Unlike both, each register has 64 bits, and so do buffer addresses.

use super::steering::{KEY_WORDS, TABLE_WORDS};
use crate::registers::{Access, Block, Field, Register, RegisterMap, registers};

/// Bytes of a descriptor: buffer address (8), control (4), status (4), little-endian.
pub(super) const DESCRIPTOR_BYTES: u64 = 16;
/// Offset of a descriptor's status word.
pub(super) const STATUS_OFFSET: u64 = 12;

// Control word of a descriptor, written by software.
pub(super) const SIZE: Field =
    Field::new("SIZE", 0, 16, "length of the buffer or of the data to send, bytes");
pub(super) const COMPLETE: Field = Field::bit("COMPLETE", 29, "send: interrupt on completion");
pub(super) const SEND_FIRST: Field = Field::bit("FIRST", 30, "send: first part of a frame");
pub(super) const SEND_LAST: Field = Field::bit("LAST", 31, "send: last part of a frame");

// Status word of a descriptor. Software writes it to give the descriptor to the MAC, and the MAC writes it to return
// the descriptor.
pub(super) const LENGTH: Field = Field::new(
    "LENGTH",
    0,
    16,
    "receive: bytes in this buffer or, with `LAST`, of the whole frame without the check sequence",
);
pub(super) const CRC: Field = Field::bit("CRC", 16, "receive: the check sequence does not match");
pub(super) const TOO_LONG: Field = Field::bit("TOO_LONG", 17, "longer than `MAX_FRAME`");
pub(super) const MALFORMED: Field =
    Field::bit("MALFORMED", 18, "the descriptor is invalid: no bytes, or a frame without first or last part");
pub(super) const BUS: Field = Field::bit("BUS", 19, "the buffer is not accessible");
pub(super) const IP_SUMMED: Field =
    Field::bit("IP_SUMMED", 20, "receive, with `RX_SUMS`: the IPv4 header checksum was verified");
pub(super) const TCP_SUMMED: Field =
    Field::bit("TCP_SUMMED", 21, "receive, with `RX_SUMS`: the TCP checksum was verified too");
pub(super) const SUM_WRONG: Field =
    Field::bit("SUM_WRONG", 22, "receive: one of these checksums is wrong; does not set `ERROR`");
pub(super) const ERROR: Field = Field::bit("ERROR", 28, "set together with any error");
pub(super) const LAST: Field = Field::bit("LAST", 29, "receive: the frame ends in this buffer");
pub(super) const FIRST: Field = Field::bit("FIRST", 30, "receive: the frame begins in this buffer");
pub(super) const OWN: Field = Field::bit("OWN", 31, "owner: 1 the MAC, 0 software");

pub(super) const RX_ENABLE: Field = Field::bit("RX_ENABLE", 0, "enables receiving");
pub(super) const TX_ENABLE: Field = Field::bit("TX_ENABLE", 1, "enables sending");
pub(super) const PROMISCUOUS: Field = Field::bit("PROMISCUOUS", 2, "accepts frames to any address");
pub(super) const ALL_MULTICAST: Field =
    Field::bit("ALL_MULTICAST", 3, "accepts frames to any multicast address");
pub(super) const PASS_BAD: Field = Field::bit(
    "PASS_BAD",
    4,
    "accepts frames with a wrong check sequence and marks them, instead of dropping them",
);
pub(super) const SPREAD: Field = Field::bit(
    "SPREAD",
    5,
    "selects a frame's receive queue by the hash of its addresses and ports; a frame whose queue has no descriptor is then dropped, so \
     that it does not block the others",
);
pub(super) const RX_SUMS: Field =
    Field::bit("RX_SUMS", 6, "verifies the IPv4 and TCP checksums of received frames");
pub(super) const LRO: Field = Field::bit(
    "LRO",
    7,
    "merges consecutive segments whose checksums `RX_SUMS` has verified into one large frame, with one buffer per segment",
);
pub(super) const DCA_DATA: Field = Field::new(
    "DATA",
    0,
    2,
    "destination of frames: 0 memory, 1 the shared cache, 2 the shared cache if the line is locked there, otherwise memory",
);
pub(super) const DCA_HEADER: Field =
    Field::new("HEADER", 2, 2, "destination of the first `HEADER_BYTES` of a frame");
pub(super) const DCA_DESCRIPTOR: Field = Field::new("DESCRIPTOR", 4, 2, "destination of descriptors");
pub(super) const DCA_WAYS: Field = Field::new(
    "WAYS",
    8,
    8,
    "ways of the shared cache in which new lines may be allocated; 0: as many as the machine allows",
);
pub(super) const DCA_HEADER_BYTES: Field = Field::new("HEADER_BYTES", 16, 16, "length of the header, bytes");

pub(super) const INT_RX: Field = Field::bit("RX", 0, "frames were received");
pub(super) const INT_TX: Field = Field::bit("TX", 1, "a frame with `COMPLETE` was sent");
pub(super) const INT_RX_STARVED: Field =
    Field::bit("RX_STARVED", 2, "the receive ring had no descriptor for a frame");
pub(super) const INT_TX_IDLE: Field = Field::bit("TX_IDLE", 3, "the send ring is empty");
pub(super) const INT_RX_MISSED: Field =
    Field::bit("RX_MISSED", 4, "a frame was dropped because the receive FIFO was full");
pub(super) const INT_BUS: Field =
    Field::bit("BUS", 5, "a ring is not accessible; its direction has been disabled");

pub(super) const RX_SUSPENDED: Field =
    Field::bit("RX_SUSPENDED", 0, "no receive descriptor; waiting for `RX_POLL` or a frame");
pub(super) const TX_SUSPENDED: Field =
    Field::bit("TX_SUSPENDED", 1, "nothing to send; waiting for `TX_POLL`");
pub(super) const FIFO: Field = Field::new("FIFO", 32, 32, "bytes in the receive FIFO");

registers! {
    /// Registers of the MAC.
    pub(crate) enum MacRegister, MAC {
        /// Enabled functions.
        Control = "CONTROL" @ 0x00, 8 bytes, ReadWrite, 0,
            [RX_ENABLE, TX_ENABLE, PROMISCUOUS, ALL_MULTICAST, PASS_BAD, SPREAD, RX_SUMS, LRO];
        /// The station address. The first byte on the wire is the lowest.
        Address = "ADDRESS" @ 0x08, 8 bytes, ReadWrite, 0, [];
        /// Maximum frame length, including the check sequence; at most 16383. After reset it is 18 bytes more than the
        /// machine file's `mtu`, or 1518 without one.
        MaxFrame = "MAX_FRAME" @ 0x10, 8 bytes, ReadWrite, 1518, [];
        /// Destination of writes to memory.
        Dca = "DCA" @ 0x18, 8 bytes, ReadWrite, 0, [DCA_DATA, DCA_HEADER, DCA_DESCRIPTOR, DCA_WAYS, DCA_HEADER_BYTES];
        /// Address of the receive ring. A write resets the ring to its first descriptor.
        RxBase = "RX_BASE" @ 0x20, 8 bytes, ReadWrite, 0, [];
        /// Number of descriptors of the receive ring, at most 65536. A write resets the ring to the first one.
        RxCount = "RX_COUNT" @ 0x28, 8 bytes, ReadWrite, 0, [];
        /// Index of the next receive descriptor.
        RxHead = "RX_HEAD" @ 0x30, 8 bytes, ReadOnly, 0, [];
        /// Any write resumes a suspended receive ring.
        RxPoll = "RX_POLL" @ 0x38, 8 bytes, WriteOnly, 0, [];
        /// Address of the send ring. A write resets the ring to its first descriptor.
        TxBase = "TX_BASE" @ 0x40, 8 bytes, ReadWrite, 0, [];
        /// Number of descriptors of the send ring, at most 65536. A write resets the ring to the first one.
        TxCount = "TX_COUNT" @ 0x48, 8 bytes, ReadWrite, 0, [];
        /// Index of the next send descriptor.
        TxHead = "TX_HEAD" @ 0x50, 8 bytes, ReadOnly, 0, [];
        /// Any write resumes a suspended send ring.
        TxPoll = "TX_POLL" @ 0x58, 8 bytes, WriteOnly, 0, [];
        /// Causes of the interrupt.
        Interrupt = "INTERRUPT" @ 0x60, 8 bytes, WriteOneToClear, 0,
            [INT_RX, INT_TX, INT_RX_STARVED, INT_TX_IDLE, INT_RX_MISSED, INT_BUS];
        /// Causes that assert the line.
        Enable = "ENABLE" @ 0x68, 8 bytes, ReadWrite, 0, [];
        /// Delay of the interrupt after the first received frame, nanoseconds, to collect more frames.
        RxDelay = "RX_DELAY" @ 0x70, 8 bytes, ReadWrite, 0, [];
        /// Number of received frames that end the delay early; 0 for none.
        RxFrames = "RX_FRAMES" @ 0x78, 8 bytes, ReadWrite, 0, [];
        /// Minimum time between two assertions of the line, nanoseconds.
        Interval = "INTERVAL" @ 0x80, 8 bytes, ReadWrite, 0, [];
        /// State of the MAC.
        Status = "STATUS" @ 0x88, 8 bytes, ReadOnly, 0, [RX_SUSPENDED, TX_SUSPENDED, FIFO];
        /// Number of queues, each with a receive ring, a send ring and an interrupt line. The registers of queue 0 are
        /// in this block.
        Queues = "QUEUES" @ 0x90, 8 bytes, ReadOnly, 1, [];
    }
}

registers! {
    /// Registers of each queue except queue 0.
    pub(crate) enum QueueRegister, QUEUE {
        /// Same as `RX_BASE`, for this queue.
        RxBase = "RX_BASE" @ 0x00, 8 bytes, ReadWrite, 0, [];
        /// Same as `RX_COUNT`.
        RxCount = "RX_COUNT" @ 0x08, 8 bytes, ReadWrite, 0, [];
        /// Same as `RX_HEAD`.
        RxHead = "RX_HEAD" @ 0x10, 8 bytes, ReadOnly, 0, [];
        /// Same as `RX_POLL`.
        RxPoll = "RX_POLL" @ 0x18, 8 bytes, WriteOnly, 0, [];
        /// Same as `TX_BASE`.
        TxBase = "TX_BASE" @ 0x20, 8 bytes, ReadWrite, 0, [];
        /// Same as `TX_COUNT`.
        TxCount = "TX_COUNT" @ 0x28, 8 bytes, ReadWrite, 0, [];
        /// Same as `TX_HEAD`.
        TxHead = "TX_HEAD" @ 0x30, 8 bytes, ReadOnly, 0, [];
        /// Same as `TX_POLL`.
        TxPoll = "TX_POLL" @ 0x38, 8 bytes, WriteOnly, 0, [];
        /// Same as `INTERRUPT`, for this queue's line.
        Interrupt = "INTERRUPT" @ 0x40, 8 bytes, WriteOneToClear, 0, [];
        /// Same as `ENABLE`.
        Enable = "ENABLE" @ 0x48, 8 bytes, ReadWrite, 0, [];
        /// Same as `RX_DELAY`.
        RxDelay = "RX_DELAY" @ 0x50, 8 bytes, ReadWrite, 0, [];
        /// Same as `RX_FRAMES`.
        RxFrames = "RX_FRAMES" @ 0x58, 8 bytes, ReadWrite, 0, [];
        /// Same as `INTERVAL`.
        Interval = "INTERVAL" @ 0x60, 8 bytes, ReadWrite, 0, [];
    }
}

/// A word of the hash key.
static KEY: &[Register] = &[word("Eight bytes of the key; the first one is the lowest byte.")];

/// A word of the indirection table.
static TABLE: &[Register] =
    &[word("The queues for eight values of the hash's lowest 7 bits; the first one is the lowest byte.")];

/// A block's only register.
const fn word(about: &'static str) -> Register {
    Register { name: "WORD", offset: 0, width: 8, access: Access::ReadWrite, reset: 0, fields: &[], about }
}

registers! {
    /// Counters, in the order of `Counters`.
    pub(crate) enum CounterRegister, COUNTERS {
        /// Frames received completely and without error.
        RxGood = "RX_GOOD" @ 0x00, 8 bytes, ReadOnly, 0, [];
        /// Bytes of these frames, including check sequences.
        RxBytes = "RX_BYTES" @ 0x08, 8 bytes, ReadOnly, 0, [];
        /// Frames with a wrong check sequence.
        RxCrc = "RX_CRC" @ 0x10, 8 bytes, ReadOnly, 0, [];
        /// Frames shorter than 64 bytes.
        RxShort = "RX_SHORT" @ 0x18, 8 bytes, ReadOnly, 0, [];
        /// Frames longer than `MAX_FRAME`; dropped.
        RxLong = "RX_LONG" @ 0x20, 8 bytes, ReadOnly, 0, [];
        /// Frames with the address of another station.
        RxFiltered = "RX_FILTERED" @ 0x28, 8 bytes, ReadOnly, 0, [];
        /// Frames dropped because the receive FIFO was full.
        RxMissed = "RX_MISSED" @ 0x30, 8 bytes, ReadOnly, 0, [];
        /// Times that the receive ring had no descriptor for a frame.
        RxStarved = "RX_STARVED" @ 0x38, 8 bytes, ReadOnly, 0, [];
        /// Frames dropped because of an invalid descriptor or a buffer that is not writable.
        RxBadDescriptor = "RX_BAD_DESCRIPTOR" @ 0x40, 8 bytes, ReadOnly, 0, [];
        /// Frames sent.
        TxGood = "TX_GOOD" @ 0x48, 8 bytes, ReadOnly, 0, [];
        /// Bytes of these frames, including check sequences.
        TxBytes = "TX_BYTES" @ 0x50, 8 bytes, ReadOnly, 0, [];
        /// Frames not sent because of an invalid descriptor, their length, or a buffer that is not readable.
        TxBad = "TX_BAD" @ 0x58, 8 bytes, ReadOnly, 0, [];
        /// Assertions of the interrupt line.
        Interrupts = "INTERRUPTS" @ 0x60, 8 bytes, ReadOnly, 0, [];
        /// PAUSE frames received.
        RxPause = "RX_PAUSE" @ 0x68, 8 bytes, ReadOnly, 0, [];
        /// PAUSE frames sent.
        TxPause = "TX_PAUSE" @ 0x70, 8 bytes, ReadOnly, 0, [];
        /// Received frames merged into a large frame that was already open.
        RxMerged = "RX_MERGED" @ 0x78, 8 bytes, ReadOnly, 0, [];
    }
}

// Indices of the blocks in [`MAP`].
pub(super) const MAC_BLOCK: usize = 0;
pub(super) const COUNTER_BLOCK: usize = 1;
pub(super) const KEY_BLOCK: usize = 2;
pub(super) const TABLE_BLOCK: usize = 3;
pub(super) const QUEUE_BLOCK: usize = 4;

/// Maximum number of queues.
pub(super) const MAX_QUEUES: u32 = 16;

/// The register map of a MAC.
pub static MAP: RegisterMap = RegisterMap {
    name: "MAC",
    title: "Ethernet MAC",
    bytes: 0x2000,
    blocks: &[
        Block { prefix: "", title: "The MAC", base: 0, stride: 0x800, count: 1, registers: MAC },
        Block {
            prefix: "COUNT",
            title: "Counters",
            base: 0x800,
            stride: 0x400,
            count: 1,
            registers: COUNTERS,
        },
        Block {
            prefix: "KEY",
            title: "Key of the hash that selects a queue",
            base: 0xc00,
            stride: 8,
            count: KEY_WORDS as u32,
            registers: KEY,
        },
        Block {
            prefix: "TABLE",
            title: "Indirection table from hash to queue",
            base: 0xd00,
            stride: 8,
            count: TABLE_WORDS as u32,
            registers: TABLE,
        },
        Block {
            prefix: "QUEUE",
            title: "Queues except queue 0: block n belongs to queue n + 1",
            base: 0x1000,
            stride: 0x80,
            count: MAX_QUEUES - 1,
            registers: QUEUE,
        },
    ],
};

/// Fields of a descriptor's control and status words, for the book and for C.
pub const DESCRIPTOR_FIELDS: [&[Field]; 2] = [
    &[SIZE, COMPLETE, SEND_FIRST, SEND_LAST],
    &[LENGTH, CRC, TOO_LONG, MALFORMED, BUS, IP_SUMMED, TCP_SUMMED, SUM_WRONG, ERROR, LAST, FIRST, OWN],
];
