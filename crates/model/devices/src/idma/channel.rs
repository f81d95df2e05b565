//! An IDMA channel: its registers, the transfer that they describe, its tags and its progress.
//!
//! Source: Su et al., 2012, for tags as bits shared by core and engine; it does not specify other details.

use super::IdmaSpec;
use super::pattern::Pattern;
use super::registers as r;
use crate::Placement;
use longma_sim::Time;
use serde::{Deserialize, Serialize};

/// Direction of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Direction {
    /// From memory or any in-core store to an in-core store.
    Read,
    /// From an in-core store to memory or any in-core store.
    Write,
}

/// The error that stopped a channel. The values are those of `STATUS.ERROR`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub(super) enum ChannelError {
    /// No error.
    #[default]
    None = 0,
    /// The registers are inconsistent.
    Setup = 1,
    /// The source address is not mapped.
    Source = 2,
    /// The destination address is not mapped.
    Destination = 3,
    /// The destination is not writable.
    Denied = 4,
    /// An address that must be in an in-core store is not.
    NoStore = 5,
    /// The feeding channel has a different piece size, or it faulted.
    Feed = 6,
}

/// State of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Phase {
    /// Never started.
    #[default]
    Idle,
    /// Transferring, or waiting for a tag.
    Running,
    /// Stop requested; finishing the current piece.
    Stopping,
    /// Stopped on request.
    Stopped,
    /// All pieces are transferred.
    Done,
    /// Stopped by an error.
    Faulted,
}

/// Tags 0 to 127, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tags(pub [u64; 2]);

impl Tags {
    pub fn has(&self, tag: u32) -> bool {
        self.0[tag as usize / 64] >> (tag % 64) & 1 != 0
    }

    pub fn set(&mut self, tag: u32, to: bool) {
        let word = &mut self.0[tag as usize / 64];
        *word = *word & !(1 << (tag % 64)) | u64::from(to) << (tag % 64);
    }
}

/// The setup registers as written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Setup {
    pub source: u64,
    pub destination: u64,
    pub length: u64,
    pub block: u64,
    pub stride: u64,
    pub row_stride: u64,
    pub tag: u64,
    pub control: u64,
}

/// A validated transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Transfer {
    pub source: Pattern,
    pub destination: Pattern,
    /// Total bytes.
    pub length: u64,
    /// Bytes per piece, at least 1.
    pub piece: u32,
    /// Tag of piece 0.
    pub first: u32,
    /// Number of tags in the ring, at least 1.
    pub ring: u32,
    /// For a write channel, the read channel that feeds it.
    pub feed: Option<u32>,
    pub recycle: bool,
    pub tag_interrupt: bool,
    pub done_interrupt: bool,
    pub placement: Placement,
}

impl Transfer {
    /// Validates `setup` for a channel of an engine with `spec`; `None` if it is inconsistent.
    fn parse(setup: &Setup, direction: Direction, spec: &IdmaSpec) -> Option<Self> {
        let pattern = |base, stride: crate::registers::Field| Pattern {
            base,
            block: r::BLOCK_BYTES.of(setup.block) as u32,
            count: r::BLOCK_COUNT.of(setup.block) as u32,
            stride: stride.signed_of(setup.stride),
            row_stride: stride.signed_of(setup.row_stride),
        };
        let or = |value: u64, absent: u32| if value == 0 { absent } else { value as u32 };
        let first = r::TAG_FIRST.of(setup.tag) as u32;
        let ring = or(r::TAG_COUNT.of(setup.tag), spec.tags.saturating_sub(first));
        let piece = or(r::TAG_PIECE.of(setup.tag), spec.granule_bytes);
        let feed = r::FEED.of(setup.control) as u32;
        let sensible = ring > 0
            && first + ring <= spec.tags
            && piece <= spec.granule_bytes
            && feed <= spec.read_channels
            && (feed == 0 || direction == Direction::Write);
        let placement = match r::PLACEMENT.of(setup.control) {
            0 => Placement::SharedCache { ways: None },
            1 => Placement::Memory,
            2 => Placement::LockedLines,
            _ => return None,
        };
        sensible.then_some(Self {
            source: pattern(setup.source, r::STRIDE_SOURCE),
            destination: pattern(setup.destination, r::STRIDE_DESTINATION),
            length: setup.length,
            piece,
            first,
            ring,
            feed: feed.checked_sub(1),
            recycle: r::RECYCLE.is_set(setup.control),
            tag_interrupt: r::TAG_INTERRUPT.is_set(setup.control),
            done_interrupt: r::DONE_INTERRUPT.is_set(setup.control),
            placement,
        })
    }

    /// Number of pieces.
    pub fn pieces(&self) -> u64 {
        self.length.div_ceil(u64::from(self.piece))
    }

    /// The tag of piece `number`.
    pub fn tag_of(&self, number: u64) -> u32 {
        self.first + (number % u64::from(self.ring)) as u32
    }

    /// Offset in the in-core store of byte `offset` of the stream. The in-core end of a transfer is a ring of pieces.
    pub fn in_store(&self, offset: u64) -> u64 {
        offset % (u64::from(self.ring) * u64::from(self.piece))
    }

    /// Length of piece `number`; the last one may be shorter.
    pub fn bytes_of(&self, number: u64) -> u64 {
        let begin = number.saturating_mul(self.piece.into());
        self.length.saturating_sub(begin).min(self.piece.into())
    }
}

/// A channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Channel {
    pub direction: Direction,
    pub setup: Setup,
    /// The current or last transfer.
    pub transfer: Option<Transfer>,
    pub phase: Phase,
    pub error: ChannelError,
    /// Address of the error.
    pub fault: u64,
    pub refused: bool,
    /// Tags that are ready.
    pub ready: Tags,
    /// Tags that the core took while their piece was in flight.
    pub wanted: Tags,
    /// Tags that raise an interrupt.
    pub mask: Tags,
    /// Pieces completed, in order.
    pub moved: u64,
    /// The piece being requested.
    pub piece: u64,
    /// Bytes of that piece already requested.
    pub inside: u64,
    /// Requests in flight.
    pub flights: u32,
    /// Earliest time of the next request.
    pub not_before: Time,
}

impl Channel {
    pub fn new(direction: Direction) -> Self {
        Self {
            direction,
            setup: Setup::default(),
            transfer: None,
            phase: Phase::Idle,
            error: ChannelError::None,
            fault: 0,
            refused: false,
            ready: Tags::default(),
            wanted: Tags::default(),
            mask: Tags::default(),
            moved: 0,
            piece: 0,
            inside: 0,
            flights: 0,
            not_before: Time::ZERO,
        }
    }

    /// Returns whether the channel is active.
    pub fn running(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Stopping)
    }

    /// Starts the transfer in the registers at piece `from`, or faults.
    pub fn begin(&mut self, from: u64, give: bool, spec: &IdmaSpec, at: Time) {
        (self.refused, self.error, self.fault) = (false, ChannelError::None, 0);
        let Some(transfer) = Transfer::parse(&self.setup, self.direction, spec) else {
            self.stop_with(ChannelError::Setup, 0);
            return;
        };
        if give {
            (transfer.first..transfer.first + transfer.ring).for_each(|tag| self.ready.set(tag, false));
        }
        let from = from.min(transfer.pieces());
        (self.moved, self.piece, self.inside) = (from, from, 0);
        self.wanted = Tags::default();
        self.transfer = Some(transfer);
        self.phase = Phase::Running;
        self.not_before = at.checked_add(spec.start).unwrap_or(at);
    }

    /// Stops with an error; no more requests are issued.
    pub fn stop_with(&mut self, error: ChannelError, address: u64) {
        (self.phase, self.error, self.fault) = (Phase::Faulted, error, address);
    }

    /// Returns whether a piece with `tag` has been requested and is not completed.
    pub fn in_flight(&self, tag: u32) -> bool {
        let Some(transfer) = &self.transfer else { return false };
        if self.flights == 0 && !(self.running() && self.inside > 0) {
            return false;
        }
        let begun = self.piece + u64::from(self.inside > 0);
        (self.moved..begun).any(|piece| transfer.tag_of(piece) == tag)
    }

    /// Returns whether transfer and progress are valid in an engine with `spec`.
    pub fn fits(&self, spec: &IdmaSpec) -> bool {
        let Some(transfer) = &self.transfer else { return !self.running() && self.flights == 0 };
        let tags = transfer.ring > 0 && transfer.first.saturating_add(transfer.ring) <= spec.tags;
        let piece = transfer.piece > 0 && transfer.piece <= spec.granule_bytes;
        let feed = transfer.feed.is_none_or(|feed| feed < spec.read_channels);
        let begun = self.piece.saturating_add(u64::from(self.inside > 0));
        let progress = self.moved <= self.piece && begun <= transfer.pieces() && begun - self.moved <= 65;
        tags && piece && feed && (progress || !self.running()) && self.inside < u64::from(transfer.piece)
    }

    /// Replaces word `word` of the tags: bits that are 1 are taken, bits that are 0 are given.
    pub fn replace_tags(&mut self, word: usize, bits: u64) {
        self.give(word, !bits);
        self.take(word, bits);
    }

    /// Gives the tags in `bits` of word `word` to the engine.
    pub fn give(&mut self, word: usize, bits: u64) {
        self.ready.0[word] &= !bits;
        self.wanted.0[word] &= !bits;
    }

    /// Takes the tags in `bits` of word `word` for the core. Tags in flight are taken when their piece is completed.
    pub fn take(&mut self, word: usize, bits: u64) {
        for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
            let tag = word as u32 * 64 + bit;
            let tags = if self.in_flight(tag) { &mut self.wanted } else { &mut self.ready };
            tags.set(tag, true);
        }
    }
}
