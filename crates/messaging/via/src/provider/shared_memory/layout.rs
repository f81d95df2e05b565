//! What two connected VIs share: a half each, with a ring of slots and an arena, that its side writes and the peer can only read.
//! Not trusted: every word of the peer's half may change at any moment, so all are atomics, read once, and checked after the copy.
//! Source: single-producer single-consumer ring after Lamport, "Proving the correctness of multiprocess programs" (1977),
//! with the full mark inside the slot, so that a small message and its mark travel in one cache line.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Slots of a ring; a power of two. Both rings of a connection together are a third of a 48 KiB first-level cache.
pub(super) const SLOTS: u32 = 128;

/// 8-byte words of a slot's payload.
pub(super) const WORDS: usize = 6;
/// Largest message in its slot, bytes.
pub(super) const INLINE_BYTES: u32 = WORDS as u32 * 8;
/// Bytes of an arena; a power of two.
pub(super) const ARENA_BYTES: u32 = 256 * 1024;
/// The largest piece of an arena that one slot names, bytes.
pub(super) const CHUNK_BYTES: u32 = 16 * 1024;
/// Regions that a side can show to its peer at a time.
pub(super) const EXPORTS: usize = 256;

/// What a slot's `head` says in its lowest byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A message for the receive queue.
    Send = 1,
    /// An RDMA write that the target is to place.
    Write = 2,
    /// An RDMA write that is placed already; its immediate data.
    WriteDone = 3,
    /// More of a message that came in parts.
    Part = 4,
    /// Please send what lies at this address.
    ReadRequest = 5,
    /// A piece of what was asked for.
    ReadData = 6,
    /// The peer disconnects.
    Bye = 7,
}

/// Where the bytes of a message are: `head`'s second byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Place {
    /// In the slot.
    Slot = 1,
    /// In the arena; the offset is in the last payload word.
    Arena = 2,
    /// In the sender's memory: a list of `Source`s in the slot.
    Memory = 3,
    /// In the arena, and more in the slots that follow.
    Parts = 4,
}

/// The message carries immediate data: a bit of `head`'s third byte.
pub(super) const HAS_IMMEDIATE: u8 = 1;

/// One message: one cache line.
#[repr(C, align(64))]
pub(super) struct Slot {
    /// Full when it is the lap of the position that the consumer expects; see `ring.rs`.
    pub(super) stamp: AtomicU32,
    pub(super) head: AtomicU32,
    pub(super) length: AtomicU32,
    pub(super) immediate: AtomicU32,
    pub(super) words: [AtomicU64; WORDS],
}

/// Written by a side for its peer when a message was consumed.
#[repr(C, align(64))]
pub(super) struct Progress {
    /// How many messages of the peer this side has consumed; what was before them is free.
    pub(super) consumed: AtomicU32,
    /// 1 when this side has disconnected.
    pub(super) closed: AtomicU32,
    /// 0, or a status in the low half, and in the high half the position of the message that it is about.
    pub(super) fault: AtomicU64,
}

/// Written by a side about itself, seldom.
#[repr(C, align(64))]
pub(super) struct Presence {
    /// Of `SLEEPS` and `PARKED`, what holds or is about to. 0: it polls.
    pub(super) asleep: AtomicU32,
}

/// A side sleeps on its bell.
pub(super) const SLEEPS: u32 = 1;
/// A side does not look at the ring until it gets a letter.
pub(super) const PARKED: u32 = 2;

/// Written by a side to wake its peer, which sleeps on it: a futex word. Waiting needs no right to write.
#[repr(C, align(64))]
pub(super) struct BellWord {
    pub(super) rung: AtomicU32,
}

/// A half: what one side writes, and nobody else.
#[repr(C, align(4096))]
pub(super) struct Side {
    pub(super) progress: Progress,
    pub(super) presence: Presence,
    pub(super) bell: BellWord,
    /// The handles of the regions that the peer has mapped and may use; 0 where there is none.
    pub(super) exports: [AtomicU32; EXPORTS],
    pub(super) slots: [Slot; SLOTS as usize],
    pub(super) arena: [u8; ARENA_BYTES as usize],
}

/// A half is a memory file of its own.
pub(super) const HALF_BYTES: usize = size_of::<Side>();

impl Kind {
    /// The kind of that number.
    #[inline]
    pub(super) fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Send,
            2 => Kind::Write,
            3 => Kind::WriteDone,
            4 => Kind::Part,
            5 => Kind::ReadRequest,
            6 => Kind::ReadData,
            7 => Kind::Bye,
            _ => return None,
        })
    }
}

impl Place {
    /// The place of that number.
    #[inline]
    pub(super) fn from_byte(byte: u8) -> Option<Place> {
        Some(match byte {
            1 => Place::Slot,
            2 => Place::Arena,
            3 => Place::Memory,
            4 => Place::Parts,
            _ => return None,
        })
    }
}
