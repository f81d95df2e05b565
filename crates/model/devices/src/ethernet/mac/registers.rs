//! The registers and descriptors of the MAC.
//! Not what they do: see `receive`, `transmit` and `moderation`.
//! Source: in the manner of the Loongson 3A5000 manual's GMAC (Synopsys DesignWare: rings with an owner bit, poll demands, receive
//! watchdog, management counters) and Intel's 82599 data sheet (interrupt interval, DCA by kind of data). One 64-bit register each and 64-bit
//! buffer addresses are ours.

use super::steering::{KEY_WORDS, TABLE_WORDS};
use crate::registers::{Access, Block, Field, Register, RegisterMap, registers};

/// Bytes of a descriptor: buffer address (8), control (4), status (4), little-endian.
pub(super) const DESCRIPTOR_BYTES: u64 = 16;
/// Where a descriptor's status is.
pub(super) const STATUS_OFFSET: u64 = 12;

// A descriptor's control word, written by software.
pub(super) const SIZE: Field = Field::new("SIZE", 0, 16, "bytes of the buffer, or of the data to send");
pub(super) const COMPLETE: Field = Field::bit("COMPLETE", 29, "sending: interrupt when it is done");
pub(super) const SEND_FIRST: Field = Field::bit("FIRST", 30, "sending: the frame begins here");
pub(super) const SEND_LAST: Field = Field::bit("LAST", 31, "sending: the frame ends here");

// A descriptor's status word, written by software to give it and by the MAC to give it back.
pub(super) const LENGTH: Field = Field::new(
    "LENGTH",
    0,
    16,
    "received: bytes in this buffer, or with `LAST` of the whole frame without check sequence",
);
pub(super) const CRC: Field = Field::bit("CRC", 16, "received: the check sequence is wrong");
pub(super) const TOO_LONG: Field = Field::bit("TOO_LONG", 17, "longer than `MAX_FRAME`");
pub(super) const MALFORMED: Field = Field::bit(
    "MALFORMED",
    18,
    "the descriptor makes no sense: no bytes, or a frame without first or last part",
);
pub(super) const BUS: Field = Field::bit("BUS", 19, "the buffer's address could not be accessed");
pub(super) const IP_SUMMED: Field =
    Field::bit("IP_SUMMED", 20, "received, with `RX_SUMS`: the sum of IPv4's header was looked at");
pub(super) const TCP_SUMMED: Field =
    Field::bit("TCP_SUMMED", 21, "received, with `RX_SUMS`: the sum of TCP was looked at, too");
pub(super) const SUM_WRONG: Field =
    Field::bit("SUM_WRONG", 22, "received: one of those is wrong; no `ERROR`, software decides");
pub(super) const ERROR: Field = Field::bit("ERROR", 28, "any of the errors");
pub(super) const LAST: Field = Field::bit("LAST", 29, "received: the frame ends in this buffer");
pub(super) const FIRST: Field = Field::bit("FIRST", 30, "received: the frame begins in this buffer");
pub(super) const OWN: Field = Field::bit("OWN", 31, "1: the MAC's; 0: software's");

pub(super) const RX_ENABLE: Field = Field::bit("RX_ENABLE", 0, "receive");
pub(super) const TX_ENABLE: Field = Field::bit("TX_ENABLE", 1, "send");
pub(super) const PROMISCUOUS: Field = Field::bit("PROMISCUOUS", 2, "take frames to any address");
pub(super) const ALL_MULTICAST: Field = Field::bit("ALL_MULTICAST", 3, "take frames to any group");
pub(super) const PASS_BAD: Field = Field::bit(
    "PASS_BAD",
    4,
    "hand over frames with a wrong check sequence, marked, instead of dropping them",
);
pub(super) const SPREAD: Field = Field::bit(
    "SPREAD",
    5,
    "choose a frame's receive queue by the hash of its addresses and ports; a frame whose queue has no descriptor is dropped then, lest it \
     hold up the others",
);
pub(super) const RX_SUMS: Field =
    Field::bit("RX_SUMS", 6, "look at the sums of IPv4 and TCP of what is received");
pub(super) const LRO: Field = Field::bit(
    "LRO",
    7,
    "hand over segments that follow one another as one large frame, of one buffer a segment, where `RX_SUMS` has found them sound",
);
pub(super) const DCA_DATA: Field = Field::new(
    "DATA",
    0,
    2,
    "where frames are written: 0 memory, 1 the shared cache, 2 the shared cache where the line is locked, else memory",
);
pub(super) const DCA_HEADER: Field =
    Field::new("HEADER", 2, 2, "the same for a frame's first `HEADER_BYTES`");
pub(super) const DCA_DESCRIPTOR: Field = Field::new("DESCRIPTOR", 4, 2, "the same for descriptors");
pub(super) const DCA_WAYS: Field = Field::new(
    "WAYS",
    8,
    8,
    "ways of the shared cache that new lines may take; 0: as many as the machine allows",
);
pub(super) const DCA_HEADER_BYTES: Field = Field::new("HEADER_BYTES", 16, 16, "what counts as header");

pub(super) const INT_RX: Field = Field::bit("RX", 0, "frames were received");
pub(super) const INT_TX: Field = Field::bit("TX", 1, "a frame that asked for it was sent");
pub(super) const INT_RX_STARVED: Field =
    Field::bit("RX_STARVED", 2, "the receive ring had no descriptor for a frame");
pub(super) const INT_TX_IDLE: Field = Field::bit("TX_IDLE", 3, "the send ring has nothing more to send");
pub(super) const INT_RX_MISSED: Field =
    Field::bit("RX_MISSED", 4, "a frame found no room in the receive FIFO");
pub(super) const INT_BUS: Field =
    Field::bit("BUS", 5, "a ring's address could not be accessed; that direction is switched off");

pub(super) const RX_SUSPENDED: Field =
    Field::bit("RX_SUSPENDED", 0, "no receive descriptor; waits for `RX_POLL` or a frame");
pub(super) const TX_SUSPENDED: Field = Field::bit("TX_SUSPENDED", 1, "nothing to send; waits for `TX_POLL`");
pub(super) const FIFO: Field = Field::new("FIFO", 32, 32, "bytes in the receive FIFO");

registers! {
    /// The MAC's registers.
    pub(crate) enum MacRegister, MAC {
        /// What is switched on.
        Control = "CONTROL" @ 0x00, 8 bytes, ReadWrite, 0,
            [RX_ENABLE, TX_ENABLE, PROMISCUOUS, ALL_MULTICAST, PASS_BAD, SPREAD, RX_SUMS, LRO];
        /// The station's address; the byte that comes first on the wire is the lowest.
        Address = "ADDRESS" @ 0x08, 8 bytes, ReadWrite, 0, [];
        /// Longest frame, check sequence included; at most 16383. After reset 18 bytes more than the machine file's `mtu`, 1518 if it has none.
        MaxFrame = "MAX_FRAME" @ 0x10, 8 bytes, ReadWrite, 1518, [];
        /// Where writes to memory should go.
        Dca = "DCA" @ 0x18, 8 bytes, ReadWrite, 0, [DCA_DATA, DCA_HEADER, DCA_DESCRIPTOR, DCA_WAYS, DCA_HEADER_BYTES];
        /// Address of the receive ring. A write goes back to its first descriptor.
        RxBase = "RX_BASE" @ 0x20, 8 bytes, ReadWrite, 0, [];
        /// Descriptors of the receive ring, at most 65536. A write goes back to the first.
        RxCount = "RX_COUNT" @ 0x28, 8 bytes, ReadWrite, 0, [];
        /// The receive descriptor that the MAC uses next.
        RxHead = "RX_HEAD" @ 0x30, 8 bytes, ReadOnly, 0, [];
        /// Any write: look at the receive ring again.
        RxPoll = "RX_POLL" @ 0x38, 8 bytes, WriteOnly, 0, [];
        /// Address of the send ring. A write goes back to its first descriptor.
        TxBase = "TX_BASE" @ 0x40, 8 bytes, ReadWrite, 0, [];
        /// Descriptors of the send ring, at most 65536. A write goes back to the first.
        TxCount = "TX_COUNT" @ 0x48, 8 bytes, ReadWrite, 0, [];
        /// The send descriptor that the MAC uses next.
        TxHead = "TX_HEAD" @ 0x50, 8 bytes, ReadOnly, 0, [];
        /// Any write: look at the send ring again.
        TxPoll = "TX_POLL" @ 0x58, 8 bytes, WriteOnly, 0, [];
        /// Why it interrupts.
        Interrupt = "INTERRUPT" @ 0x60, 8 bytes, WriteOneToClear, 0,
            [INT_RX, INT_TX, INT_RX_STARVED, INT_TX_IDLE, INT_RX_MISSED, INT_BUS];
        /// Which of these assert the line.
        Enable = "ENABLE" @ 0x68, 8 bytes, ReadWrite, 0, [];
        /// Nanoseconds that the first received frame's interrupt waits for more frames.
        RxDelay = "RX_DELAY" @ 0x70, 8 bytes, ReadWrite, 0, [];
        /// Received frames that end the wait early; 0: none.
        RxFrames = "RX_FRAMES" @ 0x78, 8 bytes, ReadWrite, 0, [];
        /// Least nanoseconds from one assertion of the line to the next.
        Interval = "INTERVAL" @ 0x80, 8 bytes, ReadWrite, 0, [];
        /// How it stands.
        Status = "STATUS" @ 0x88, 8 bytes, ReadOnly, 0, [RX_SUSPENDED, TX_SUSPENDED, FIFO];
        /// Queues that it has, each with a receive ring, a send ring and an interrupt line. Queue 0's registers are these here.
        Queues = "QUEUES" @ 0x90, 8 bytes, ReadOnly, 1, [];
    }
}

registers! {
    /// The registers of one queue beside the first.
    pub(crate) enum QueueRegister, QUEUE {
        /// As `RX_BASE`, of this queue.
        RxBase = "RX_BASE" @ 0x00, 8 bytes, ReadWrite, 0, [];
        /// As `RX_COUNT`.
        RxCount = "RX_COUNT" @ 0x08, 8 bytes, ReadWrite, 0, [];
        /// As `RX_HEAD`.
        RxHead = "RX_HEAD" @ 0x10, 8 bytes, ReadOnly, 0, [];
        /// As `RX_POLL`.
        RxPoll = "RX_POLL" @ 0x18, 8 bytes, WriteOnly, 0, [];
        /// As `TX_BASE`.
        TxBase = "TX_BASE" @ 0x20, 8 bytes, ReadWrite, 0, [];
        /// As `TX_COUNT`.
        TxCount = "TX_COUNT" @ 0x28, 8 bytes, ReadWrite, 0, [];
        /// As `TX_HEAD`.
        TxHead = "TX_HEAD" @ 0x30, 8 bytes, ReadOnly, 0, [];
        /// As `TX_POLL`.
        TxPoll = "TX_POLL" @ 0x38, 8 bytes, WriteOnly, 0, [];
        /// As `INTERRUPT`, of this queue's line.
        Interrupt = "INTERRUPT" @ 0x40, 8 bytes, WriteOneToClear, 0, [];
        /// As `ENABLE`.
        Enable = "ENABLE" @ 0x48, 8 bytes, ReadWrite, 0, [];
        /// As `RX_DELAY`.
        RxDelay = "RX_DELAY" @ 0x50, 8 bytes, ReadWrite, 0, [];
        /// As `RX_FRAMES`.
        RxFrames = "RX_FRAMES" @ 0x58, 8 bytes, ReadWrite, 0, [];
        /// As `INTERVAL`.
        Interval = "INTERVAL" @ 0x60, 8 bytes, ReadWrite, 0, [];
    }
}

/// A word of the hash's key: eight bytes, the first the lowest.
static KEY: &[Register] = &[word("Eight bytes of the key, the first the lowest.")];

/// A word of the table.
static TABLE: &[Register] =
    &[word("The queues of eight hashes (their lowest 7 bits), the first the lowest byte.")];

/// The only register of a block.
const fn word(about: &'static str) -> Register {
    Register { name: "WORD", offset: 0, width: 8, access: Access::ReadWrite, reset: 0, fields: &[], about }
}

registers! {
    /// Counters, in the order of `Counters`.
    pub(crate) enum CounterRegister, COUNTERS {
        /// Frames handed over whole and good.
        RxGood = "RX_GOOD" @ 0x00, 8 bytes, ReadOnly, 0, [];
        /// Their bytes, check sequences included.
        RxBytes = "RX_BYTES" @ 0x08, 8 bytes, ReadOnly, 0, [];
        /// Frames with a wrong check sequence.
        RxCrc = "RX_CRC" @ 0x10, 8 bytes, ReadOnly, 0, [];
        /// Frames below 64 bytes.
        RxShort = "RX_SHORT" @ 0x18, 8 bytes, ReadOnly, 0, [];
        /// Frames longer than `MAX_FRAME`; dropped.
        RxLong = "RX_LONG" @ 0x20, 8 bytes, ReadOnly, 0, [];
        /// Frames to others.
        RxFiltered = "RX_FILTERED" @ 0x28, 8 bytes, ReadOnly, 0, [];
        /// Frames dropped because the receive FIFO was full.
        RxMissed = "RX_MISSED" @ 0x30, 8 bytes, ReadOnly, 0, [];
        /// How often the receive ring had no descriptor for a frame.
        RxStarved = "RX_STARVED" @ 0x38, 8 bytes, ReadOnly, 0, [];
        /// Frames dropped because of a malformed descriptor or a buffer that could not be written.
        RxBadDescriptor = "RX_BAD_DESCRIPTOR" @ 0x40, 8 bytes, ReadOnly, 0, [];
        /// Frames sent.
        TxGood = "TX_GOOD" @ 0x48, 8 bytes, ReadOnly, 0, [];
        /// Their bytes, check sequences included.
        TxBytes = "TX_BYTES" @ 0x50, 8 bytes, ReadOnly, 0, [];
        /// Frames not sent because of a malformed descriptor, their length, or a buffer that could not be read.
        TxBad = "TX_BAD" @ 0x58, 8 bytes, ReadOnly, 0, [];
        /// Assertions of the interrupt line.
        Interrupts = "INTERRUPTS" @ 0x60, 8 bytes, ReadOnly, 0, [];
        /// PAUSE frames received.
        RxPause = "RX_PAUSE" @ 0x68, 8 bytes, ReadOnly, 0, [];
        /// PAUSE frames sent.
        TxPause = "TX_PAUSE" @ 0x70, 8 bytes, ReadOnly, 0, [];
        /// Frames received that went behind another one into a large frame.
        RxMerged = "RX_MERGED" @ 0x78, 8 bytes, ReadOnly, 0, [];
    }
}

// Numbers of the blocks in [`MAP`].
pub(super) const MAC_BLOCK: usize = 0;
pub(super) const COUNTER_BLOCK: usize = 1;
pub(super) const KEY_BLOCK: usize = 2;
pub(super) const TABLE_BLOCK: usize = 3;
pub(super) const QUEUE_BLOCK: usize = 4;

/// Queues that a MAC can have.
pub(super) const MOST_QUEUES: u32 = 16;

/// All registers of a MAC.
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
            title: "Key of the hash that spreads frames over queues",
            base: 0xc00,
            stride: 8,
            count: KEY_WORDS as u32,
            registers: KEY,
        },
        Block {
            prefix: "TABLE",
            title: "Table of queues by hash",
            base: 0xd00,
            stride: 8,
            count: TABLE_WORDS as u32,
            registers: TABLE,
        },
        Block {
            prefix: "QUEUE",
            title: "Queues beside the first: block n is of queue n + 1",
            base: 0x1000,
            stride: 0x80,
            count: MOST_QUEUES - 1,
            registers: QUEUE,
        },
    ],
};

/// Fields of a descriptor's two words, for the book and for C: control, status.
pub const DESCRIPTOR_FIELDS: [&[Field]; 2] = [
    &[SIZE, COMPLETE, SEND_FIRST, SEND_LAST],
    &[LENGTH, CRC, TOO_LONG, MALFORMED, BUS, IP_SUMMED, TCP_SUMMED, SUM_WRONG, ERROR, LAST, FIRST, OWN],
];
