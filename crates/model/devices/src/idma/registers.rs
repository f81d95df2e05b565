//! The registers of an IDMA engine.
//! Not what they do: see `channel` and `engine`.
//! Source: what a channel is set up with is Su et al., 2012, section on IDMA; offsets and bits are ours, since the paper gives none.

use crate::registers::{Block, Field, RegisterMap, registers};

/// Channels the map has room for.
pub(crate) const MOST_CHANNELS: u32 = 8;
/// Tags the map has room for.
pub(crate) const MOST_TAGS: u32 = 128;
const CHANNEL_BYTES: u32 = 0x100;
const ENGINE_BASE: u32 = 0x800;

pub(crate) const BLOCK_BYTES: Field = Field::new("BYTES", 0, 32, "bytes of a block; 0: all in one block");
pub(crate) const BLOCK_COUNT: Field = Field::new("COUNT", 32, 32, "blocks of a row; 0: all in one row");
pub(crate) const STRIDE_SOURCE: Field =
    Field::new("SOURCE", 0, 32, "bytes from one start to the next at the source, signed");
pub(crate) const STRIDE_DESTINATION: Field =
    Field::new("DESTINATION", 32, 32, "the same at the destination, signed");
pub(crate) const TAG_FIRST: Field = Field::new("FIRST", 0, 8, "tag of the first piece");
pub(crate) const TAG_COUNT: Field =
    Field::new("COUNT", 8, 8, "tags used, in a ring; 0: all from the first on");
pub(crate) const TAG_PIECE: Field =
    Field::new("PIECE", 16, 16, "bytes of a piece, at most the granule; 0: the granule");
pub(crate) const START: Field =
    Field::bit("START", 0, "begins the transfer that the registers describe; reads as 0");
pub(crate) const RESUME: Field = Field::bit("RESUME", 1, "the same from the piece `POSITION` on; reads as 0");
pub(crate) const STOP: Field =
    Field::bit("STOP", 2, "stops before the next piece; what is in flight is finished; reads as 0");
pub(crate) const GIVE: Field =
    Field::bit("GIVE", 3, "with `START`: first gives all of the transfer's tags to the engine; reads as 0");
pub(crate) const RECYCLE: Field =
    Field::bit("RECYCLE", 4, "a moved piece's tag stays with the engine, for the next piece in the ring");
pub(crate) const TAG_INTERRUPT: Field =
    Field::bit("TAG_INTERRUPT", 5, "interrupts when a tag in `MASK` becomes ready");
pub(crate) const DONE_INTERRUPT: Field =
    Field::bit("DONE_INTERRUPT", 6, "interrupts when the transfer is done");
pub(crate) const FEED: Field = Field::new(
    "FEED",
    8,
    4,
    "for a write channel: 1 + the read channel whose pieces it writes as they become ready, giving their tags back; 0: none",
);
pub(crate) const PLACEMENT: Field = Field::new(
    "PLACEMENT",
    12,
    2,
    "for a write channel: 0 the shared cache, 1 memory, 2 the shared cache where the line is locked, else memory",
);
pub(crate) const BUSY: Field = Field::bit("BUSY", 0, "some of it is in flight");
pub(crate) const RUNNING: Field = Field::bit("RUNNING", 1, "started, and neither done, stopped nor faulted");
pub(crate) const WAITING: Field =
    Field::bit("WAITING", 2, "running, and the next piece's tag is not the engine's");
pub(crate) const DONE: Field = Field::bit("DONE", 3, "every piece is moved");
pub(crate) const STOPPED: Field = Field::bit("STOPPED", 4, "stopped on request, with nothing in flight");
pub(crate) const FAULTED: Field =
    Field::bit("FAULTED", 5, "stopped by an error; nothing beyond it was moved");
pub(crate) const REFUSED: Field = Field::bit(
    "REFUSED",
    6,
    "a `START` or `RESUME` came while the channel was running or busy and was ignored",
);
pub(crate) const ERROR: Field = Field::new(
    "ERROR",
    8,
    4,
    "1 registers that make no sense, 2 nothing at the source, 3 nothing at the destination, 4 the destination may not be \
     written, 5 no in-core store where one must be, 6 the feeding channel's pieces have another size or it faulted",
);
pub(crate) const READ_CHANNELS: Field = Field::new("READ_CHANNELS", 0, 8, "read channels, the first ones");
pub(crate) const WRITE_CHANNELS: Field = Field::new("WRITE_CHANNELS", 8, 8, "write channels, after them");
pub(crate) const TAGS: Field = Field::new("TAGS", 16, 8, "tags of a channel");
pub(crate) const BEAT: Field = Field::new("BEAT", 24, 8, "bytes of a beat");
pub(crate) const GRANULE: Field = Field::new("GRANULE", 32, 16, "largest piece of a tag, bytes");
pub(crate) const OUTSTANDING: Field = Field::new("OUTSTANDING", 48, 8, "requests in flight each way");
pub(crate) const TAG_PENDING: Field = Field::new("TAG", 0, 8, "one bit a channel: a tag became ready");
pub(crate) const DONE_PENDING: Field = Field::new("DONE", 8, 8, "one bit a channel: the transfer is done");
pub(crate) const FAULT_PENDING: Field = Field::new("FAULT", 16, 8, "one bit a channel: the transfer faulted");

registers! {
    /// A channel's registers.
    pub(crate) enum ChannelRegister, CHANNEL {
        /// Address of the first byte read.
        Source = "SOURCE" @ 0x00, 8 bytes, ReadWrite, 0, [];
        /// Address of the first byte written.
        Destination = "DESTINATION" @ 0x08, 8 bytes, ReadWrite, 0, [];
        /// Bytes to move in all.
        Length = "LENGTH" @ 0x10, 8 bytes, ReadWrite, 0, [];
        /// What lies together at both ends.
        Block = "BLOCK" @ 0x18, 8 bytes, ReadWrite, 0, [BLOCK_BYTES, BLOCK_COUNT];
        /// From one block of a row to the next.
        Stride = "STRIDE" @ 0x20, 8 bytes, ReadWrite, 0, [STRIDE_SOURCE, STRIDE_DESTINATION];
        /// From one row to the next.
        RowStride = "ROW_STRIDE" @ 0x28, 8 bytes, ReadWrite, 0, [STRIDE_SOURCE, STRIDE_DESTINATION];
        /// Which tags stand for which pieces.
        Tag = "TAG" @ 0x30, 8 bytes, ReadWrite, 0, [TAG_FIRST, TAG_COUNT, TAG_PIECE];
        /// How to move, and commands.
        Control = "CONTROL" @ 0x38, 8 bytes, ReadWrite, 0,
            [START, RESUME, STOP, GIVE, RECYCLE, TAG_INTERRUPT, DONE_INTERRUPT, FEED, PLACEMENT];
        /// How it goes.
        Status = "STATUS" @ 0x40, 8 bytes, ReadOnly, 0,
            [BUSY, RUNNING, WAITING, DONE, STOPPED, FAULTED, REFUSED, ERROR];
        /// Pieces moved, counted in order. Written to while the channel does not run, it says where `RESUME` goes on.
        Position = "POSITION" @ 0x48, 8 bytes, ReadWrite, 0, [];
        /// The address that an error is about.
        Fault = "FAULT" @ 0x50, 8 bytes, ReadOnly, 0, [];
        /// Which of tags 0 to 63 interrupt.
        Mask0 = "MASK0" @ 0x58, 8 bytes, ReadWrite, 0, [];
        /// Which of tags 64 to 127 interrupt.
        Mask1 = "MASK1" @ 0x60, 8 bytes, ReadWrite, 0, [];
        /// Tags 0 to 63, a bit each: 1 the core may use the piece, 0 it is the engine's. A write gives and takes all of them.
        Tags0 = "TAGS0" @ 0x80, 8 bytes, ReadWrite, 0, [];
        /// Tags 64 to 127.
        Tags1 = "TAGS1" @ 0x88, 8 bytes, ReadWrite, 0, [];
        /// Ones give tags 0 to 63 to the engine.
        Give0 = "GIVE0" @ 0x90, 8 bytes, WriteOnly, 0, [];
        /// Ones give tags 64 to 127 to the engine.
        Give1 = "GIVE1" @ 0x98, 8 bytes, WriteOnly, 0, [];
        /// Ones take tags 0 to 63 for the core, so that the engine pauses there; a piece in flight is taken when it has been moved.
        Take0 = "TAKE0" @ 0xa0, 8 bytes, WriteOnly, 0, [];
        /// Ones take tags 64 to 127.
        Take1 = "TAKE1" @ 0xa8, 8 bytes, WriteOnly, 0, [];
    }
}

registers! {
    /// The engine's own registers.
    pub(crate) enum EngineRegister, ENGINE {
        /// What the engine has.
        Identity = "IDENTITY" @ 0x00, 8 bytes, ReadOnly, 0,
            [READ_CHANNELS, WRITE_CHANNELS, TAGS, BEAT, GRANULE, OUTSTANDING];
        /// Why it interrupts. The line is asserted while any bit is set.
        Interrupt = "INTERRUPT" @ 0x08, 8 bytes, WriteOneToClear, 0, [TAG_PENDING, DONE_PENDING, FAULT_PENDING];
        /// Accesses that met no register.
        BadAccesses = "BAD_ACCESSES" @ 0x10, 8 bytes, ReadToClear, 0, [];
        /// Bytes that read channels have read.
        BytesRead = "BYTES_READ" @ 0x18, 8 bytes, ReadOnly, 0, [];
        /// Bytes that write channels have written.
        BytesWritten = "BYTES_WRITTEN" @ 0x20, 8 bytes, ReadOnly, 0, [];
    }
}

/// Number of the channels' block in [`MAP`].
pub(crate) const CHANNEL_BLOCK: usize = 0;

/// All registers of an IDMA engine.
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
            count: MOST_CHANNELS,
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
