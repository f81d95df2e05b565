//! The registers of an IDMA engine.
//!
//! Source: the parameters of a channel are those of Su et al., 2012, section on IDMA. Offsets and bits are chosen here,
//! because the paper does not state them.

use crate::registers::{Block, Field, RegisterMap, registers};

/// Maximum number of channels in the register map.
pub(crate) const MAX_CHANNELS: u32 = 8;
/// Maximum number of tags in the register map.
pub(crate) const MAX_TAGS: u32 = 128;
const CHANNEL_BYTES: u32 = 0x100;
const ENGINE_BASE: u32 = 0x800;

pub(crate) const BLOCK_BYTES: Field = Field::new("BYTES", 0, 32, "bytes per block; 0: a single block");
pub(crate) const BLOCK_COUNT: Field = Field::new("COUNT", 32, 32, "blocks per row; 0: a single row");
pub(crate) const STRIDE_SOURCE: Field =
    Field::new("SOURCE", 0, 32, "distance between two starts at the source, bytes, signed");
pub(crate) const STRIDE_DESTINATION: Field =
    Field::new("DESTINATION", 32, 32, "distance at the destination, bytes, signed");
pub(crate) const TAG_FIRST: Field = Field::new("FIRST", 0, 8, "tag of the first piece");
pub(crate) const TAG_COUNT: Field =
    Field::new("COUNT", 8, 8, "number of tags in the ring; 0: all from the first one on");
pub(crate) const TAG_PIECE: Field =
    Field::new("PIECE", 16, 16, "bytes per piece, at most the granule; 0: the granule");
pub(crate) const START: Field =
    Field::bit("START", 0, "starts the transfer described by the registers; reads as 0");
pub(crate) const RESUME: Field = Field::bit("RESUME", 1, "starts it at piece `POSITION`; reads as 0");
pub(crate) const STOP: Field =
    Field::bit("STOP", 2, "stops before the next piece; requests in flight complete; reads as 0");
pub(crate) const GIVE: Field =
    Field::bit("GIVE", 3, "with `START`: first gives all tags of the transfer to the engine; reads as 0");
pub(crate) const RECYCLE: Field =
    Field::bit("RECYCLE", 4, "the engine keeps the tag of a completed piece for the next piece in the ring");
pub(crate) const TAG_INTERRUPT: Field =
    Field::bit("TAG_INTERRUPT", 5, "interrupts when a tag in `MASK` becomes ready");
pub(crate) const DONE_INTERRUPT: Field =
    Field::bit("DONE_INTERRUPT", 6, "interrupts when the transfer is done");
pub(crate) const FEED: Field = Field::new(
    "FEED",
    8,
    4,
    "for a write channel: 1 + the number of the read channel whose pieces it writes as they become ready, returning their tags; 0: none",
);
pub(crate) const PLACEMENT: Field = Field::new(
    "PLACEMENT",
    12,
    2,
    "for a write channel: 0 the shared cache, 1 memory, 2 the shared cache if the line is locked there, otherwise memory",
);
pub(crate) const BUSY: Field = Field::bit("BUSY", 0, "requests are in flight");
pub(crate) const RUNNING: Field = Field::bit("RUNNING", 1, "started and not done, stopped or faulted");
pub(crate) const WAITING: Field =
    Field::bit("WAITING", 2, "running, but the engine does not own the next piece's tag");
pub(crate) const DONE: Field = Field::bit("DONE", 3, "all pieces are completed");
pub(crate) const STOPPED: Field = Field::bit("STOPPED", 4, "stopped on request, with nothing in flight");
pub(crate) const FAULTED: Field = Field::bit("FAULTED", 5, "stopped by an error; nothing beyond it is moved");
pub(crate) const REFUSED: Field =
    Field::bit("REFUSED", 6, "a `START` or `RESUME` was ignored because the channel was running or busy");
pub(crate) const ERROR: Field = Field::new(
    "ERROR",
    8,
    4,
    "1 inconsistent registers, 2 source not mapped, 3 destination not mapped, 4 destination not writable, 5 an address that must be \
     in an in-core store is not, 6 the feeding channel has another piece size or faulted",
);
pub(crate) const READ_CHANNELS: Field =
    Field::new("READ_CHANNELS", 0, 8, "number of read channels, which come first");
pub(crate) const WRITE_CHANNELS: Field =
    Field::new("WRITE_CHANNELS", 8, 8, "number of write channels, which follow");
pub(crate) const TAGS: Field = Field::new("TAGS", 16, 8, "tags per channel");
pub(crate) const BEAT: Field = Field::new("BEAT", 24, 8, "bytes per beat");
pub(crate) const GRANULE: Field = Field::new("GRANULE", 32, 16, "maximum length of a piece, bytes");
pub(crate) const OUTSTANDING: Field =
    Field::new("OUTSTANDING", 48, 8, "maximum number of requests in flight per direction");
pub(crate) const TAG_PENDING: Field = Field::new("TAG", 0, 8, "one bit per channel: a tag became ready");
pub(crate) const DONE_PENDING: Field = Field::new("DONE", 8, 8, "one bit per channel: the transfer is done");
pub(crate) const FAULT_PENDING: Field =
    Field::new("FAULT", 16, 8, "one bit per channel: the transfer faulted");

registers! {
    /// Registers of a channel.
    pub(crate) enum ChannelRegister, CHANNEL {
        /// Address of the first byte read.
        Source = "SOURCE" @ 0x00, 8 bytes, ReadWrite, 0, [];
        /// Address of the first byte written.
        Destination = "DESTINATION" @ 0x08, 8 bytes, ReadWrite, 0, [];
        /// Total bytes to move.
        Length = "LENGTH" @ 0x10, 8 bytes, ReadWrite, 0, [];
        /// Contiguous bytes at both ends.
        Block = "BLOCK" @ 0x18, 8 bytes, ReadWrite, 0, [BLOCK_BYTES, BLOCK_COUNT];
        /// Distance between the starts of two blocks of a row.
        Stride = "STRIDE" @ 0x20, 8 bytes, ReadWrite, 0, [STRIDE_SOURCE, STRIDE_DESTINATION];
        /// Distance between the starts of two rows.
        RowStride = "ROW_STRIDE" @ 0x28, 8 bytes, ReadWrite, 0, [STRIDE_SOURCE, STRIDE_DESTINATION];
        /// Assignment of tags to pieces.
        Tag = "TAG" @ 0x30, 8 bytes, ReadWrite, 0, [TAG_FIRST, TAG_COUNT, TAG_PIECE];
        /// Mode of the transfer, and commands.
        Control = "CONTROL" @ 0x38, 8 bytes, ReadWrite, 0,
            [START, RESUME, STOP, GIVE, RECYCLE, TAG_INTERRUPT, DONE_INTERRUPT, FEED, PLACEMENT];
        /// State of the channel.
        Status = "STATUS" @ 0x40, 8 bytes, ReadOnly, 0,
            [BUSY, RUNNING, WAITING, DONE, STOPPED, FAULTED, REFUSED, ERROR];
        /// Number of pieces completed, in order. If written while the channel is not running, the piece at which
        /// `RESUME` continues.
        Position = "POSITION" @ 0x48, 8 bytes, ReadWrite, 0, [];
        /// Address of an error.
        Fault = "FAULT" @ 0x50, 8 bytes, ReadOnly, 0, [];
        /// Tags 0 to 63 that raise an interrupt.
        Mask0 = "MASK0" @ 0x58, 8 bytes, ReadWrite, 0, [];
        /// Tags 64 to 127 that raise an interrupt.
        Mask1 = "MASK1" @ 0x60, 8 bytes, ReadWrite, 0, [];
        /// Tags 0 to 63, one bit each: 1 the core may use the piece, 0 the engine owns it. A write gives or takes all
        /// of them.
        Tags0 = "TAGS0" @ 0x80, 8 bytes, ReadWrite, 0, [];
        /// Tags 64 to 127.
        Tags1 = "TAGS1" @ 0x88, 8 bytes, ReadWrite, 0, [];
        /// Ones give tags 0 to 63 to the engine.
        Give0 = "GIVE0" @ 0x90, 8 bytes, WriteOnly, 0, [];
        /// Ones give tags 64 to 127 to the engine.
        Give1 = "GIVE1" @ 0x98, 8 bytes, WriteOnly, 0, [];
        /// Ones take tags 0 to 63 for the core, so that the engine pauses there. The tag of a piece in flight is taken
        /// when the piece is completed.
        Take0 = "TAKE0" @ 0xa0, 8 bytes, WriteOnly, 0, [];
        /// Ones take tags 64 to 127 for the core.
        Take1 = "TAKE1" @ 0xa8, 8 bytes, WriteOnly, 0, [];
    }
}

registers! {
    /// Registers of the engine.
    pub(crate) enum EngineRegister, ENGINE {
        /// Capabilities of the engine.
        Identity = "IDENTITY" @ 0x00, 8 bytes, ReadOnly, 0,
            [READ_CHANNELS, WRITE_CHANNELS, TAGS, BEAT, GRANULE, OUTSTANDING];
        /// Causes of the interrupt. The line is asserted while any bit is set.
        Interrupt = "INTERRUPT" @ 0x08, 8 bytes, WriteOneToClear, 0, [TAG_PENDING, DONE_PENDING, FAULT_PENDING];
        /// Number of accesses to offsets without a register.
        BadAccesses = "BAD_ACCESSES" @ 0x10, 8 bytes, ReadToClear, 0, [];
        /// Bytes read by read channels.
        BytesRead = "BYTES_READ" @ 0x18, 8 bytes, ReadOnly, 0, [];
        /// Bytes written by write channels.
        BytesWritten = "BYTES_WRITTEN" @ 0x20, 8 bytes, ReadOnly, 0, [];
    }
}

/// Index of the channels' block in [`MAP`].
pub(crate) const CHANNEL_BLOCK: usize = 0;

/// The register map of an IDMA engine.
pub static MAP: RegisterMap = RegisterMap {
    name: "IDMA",
    title: "IDMA engine",
    bytes: 0x1000,
    blocks: &[
        Block {
            prefix: "CHANNEL",
            title: "A channel: read channels first, then write channels",
            base: 0,
            stride: CHANNEL_BYTES,
            count: MAX_CHANNELS,
            registers: CHANNEL,
        },
        Block {
            prefix: "",
            title: "The engine",
            base: ENGINE_BASE,
            stride: 0x800,
            count: 1,
            registers: ENGINE,
        },
    ],
};
