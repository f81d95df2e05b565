//! The memory shared by two connected VIs: two halves, each with a ring of slots and an arena. Each side writes its own
//! half; the other half is read-only. The peer may change any word of its half at any time, so all words are atomics,
//! read once, and validated after copying.
//!
//! Source: single-producer single-consumer ring after Lamport, "Proving the correctness of multiprocess programs"
//! (1977), with the full mark inside the slot, so that a small message and its mark are in the same cache line.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The number of slots in a ring; a power of two. Both rings of a connection together take a third of a 48 KiB L1
/// cache.
pub(super) const SLOTS: u32 = 128;

/// The number of 8-byte payload words in a slot.
pub(super) const WORDS: usize = 6;
/// The maximum size of a message inside a slot, bytes.
pub(super) const INLINE_BYTES: u32 = WORDS as u32 * 8;
/// The size of an arena, bytes; a power of two.
pub(super) const ARENA_BYTES: u32 = 256 * 1024;
/// The maximum size of a part of the arena that one slot refers to, bytes.
pub(super) const CHUNK_BYTES: u32 = 16 * 1024;
/// The maximum number of regions that a side can export at a time.
pub(super) const EXPORTS: usize = 256;

/// The type of a message, stored in the lowest byte of a slot's `head`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A message for the receive queue.
    Send = 1,
    /// An RDMA write whose data the target must store.
    Write = 2,
    /// The immediate data of an RDMA write that has been stored.
    WriteDone = 3,
    /// A further part of a message.
    Part = 4,
    /// A request for the data at an address.
    ReadRequest = 5,
    /// A part of the requested data.
    ReadData = 6,
    /// The peer disconnects.
    Bye = 7,
}

/// The location of a message's data, stored in the second byte of `head`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum DataLocation {
    /// In the slot.
    Slot = 1,
    /// In the arena, at the offset in the last payload word.
    Arena = 2,
    /// In the sender's memory; the slot contains a list of sources.
    Memory = 3,
    /// The first part is in the arena; the other parts follow in further slots.
    Parts = 4,
}

/// The message has immediate data. A bit of the third byte of `head`.
pub(super) const HAS_IMMEDIATE: u8 = 1;

/// A message slot of one cache line.
#[repr(C, align(64))]
pub(super) struct Slot {
    /// The slot is full if this is the lap number that the consumer expects; see `ring.rs`.
    pub(super) stamp: AtomicU32,
    pub(super) head: AtomicU32,
    pub(super) length: AtomicU32,
    pub(super) immediate: AtomicU32,
    pub(super) words: [AtomicU64; WORDS],
}

/// Written by a side when it has consumed a message.
#[repr(C, align(64))]
pub(super) struct Progress {
    /// The number of the peer's messages that this side has consumed. Their slots are free.
    pub(super) consumed: AtomicU32,
    /// 1 if this side has disconnected.
    pub(super) closed: AtomicU32,
    /// 0, or the status of a failed message in the low half and its position in the high half.
    pub(super) fault: AtomicU64,
}

/// The state of a side; rarely written.
#[repr(C, align(64))]
pub(super) struct SideState {
    /// The current or imminent states, `SLEEPS` and `PARKED`. 0 means that the side polls.
    pub(super) sleep_state: AtomicU32,
}

/// The side sleeps on its wake word.
pub(super) const SLEEPS: u32 = 1;
/// The side does not poll the ring until it receives a control message.
pub(super) const PARKED: u32 = 2;

/// The futex word on which the peer sleeps; written to wake it. Waiting does not require write access.
#[repr(C, align(64))]
pub(super) struct WakeWord {
    pub(super) wakes: AtomicU32,
}

/// A half: the memory that one side writes.
#[repr(C, align(4096))]
pub(super) struct Side {
    pub(super) progress: Progress,
    pub(super) presence: SideState,
    pub(super) wake_word: WakeWord,
    /// The handles of the regions that the peer may use, by slot; 0 marks a free slot.
    pub(super) exports: [AtomicU32; EXPORTS],
    pub(super) slots: [Slot; SLOTS as usize],
    pub(super) arena: [u8; ARENA_BYTES as usize],
}

/// The size of a half, which is a separate memory file.
pub(super) const HALF_BYTES: usize = size_of::<Side>();

impl Kind {
    /// Decodes a message type.
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

impl DataLocation {
    /// Decodes a location.
    #[inline]
    pub(super) fn from_byte(byte: u8) -> Option<DataLocation> {
        Some(match byte {
            1 => DataLocation::Slot,
            2 => DataLocation::Arena,
            3 => DataLocation::Memory,
            4 => DataLocation::Parts,
            _ => return None,
        })
    }
}
