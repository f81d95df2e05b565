//! A channel: its registers as software wrote them, the transfer that they describe, its tags and its progress.
//! Not the moving of bytes: see `engine`.
//! Source: Su et al., 2012, for tags as bits that core and engine share; the rest is ours.

use super::IdmaSpec;
use super::pattern::Pattern;
use super::registers as r;
use crate::Placement;
use longma_sim::Time;
use serde::{Deserialize, Serialize};

/// Which way a channel moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Direction {
    /// Memory, or any in-core store, to an in-core store.
    Read,
    /// An in-core store to memory, or to any in-core store.
    Write,
}

/// Why a channel stopped. The numbers are those of `STATUS.ERROR`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub(super) enum ChannelError {
    /// No error.
    #[default]
    None = 0,
    /// The registers make no sense together.
    Setup = 1,
    /// Nothing answers at the source.
    Source = 2,
    /// Nothing answers at the destination.
    Destination = 3,
    /// The destination may not be written.
    Denied = 4,
    /// There is no in-core store where one must be.
    NoStore = 5,
    /// The feeding channel does not fit.
    Feed = 6,
}

/// Where a channel stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Phase {
    /// Never started.
    #[default]
    Idle,
    /// Moving, or waiting for a tag.
    Running,
    /// Told to stop, finishing the piece it has begun.
    Stopping,
    /// Stopped on request.
    Stopped,
    /// All is moved.
    Done,
    /// Stopped by an error.
    Faulted,
}

/// Tags 0 to 127.
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

/// The registers that describe a transfer, as written.
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

/// A transfer that makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Transfer {
    pub source: Pattern,
    pub destination: Pattern,
    /// Bytes in all.
    pub length: u64,
    /// Bytes of a piece, at least 1.
    pub piece: u32,
    /// Tag of piece 0.
    pub first: u32,
    /// Tags in the ring, at least 1.
    pub ring: u32,
    /// The read channel that feeds a write channel.
    pub feed: Option<u32>,
    pub recycle: bool,
    pub tag_interrupt: bool,
    pub done_interrupt: bool,
    pub placement: Placement,
}

impl Transfer {
    /// What `setup` describes, for a channel of an engine of `spec`; `None` if it makes no sense.
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

    /// How many pieces there are.
    pub fn pieces(&self) -> u64 {
        self.length.div_ceil(u64::from(self.piece))
    }

    /// The tag of piece `number`.
    pub fn tag_of(&self, number: u64) -> u32 {
        self.first + (number % u64::from(self.ring)) as u32
    }

    /// Where byte `offset` of the stream stands in the in-core store: the store's end of a transfer goes round in the ring.
    pub fn in_store(&self, offset: u64) -> u64 {
        offset % (u64::from(self.ring) * u64::from(self.piece))
    }

    /// Bytes of piece `number`: the last may be short.
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
    /// What it does, or did last.
    pub transfer: Option<Transfer>,
    pub phase: Phase,
    pub error: ChannelError,
    /// The address the error is about.
    pub fault: u64,
    pub refused: bool,
    /// Ready tags.
    pub ready: Tags,
    /// Tags the core took while their piece was in flight.
    pub wanted: Tags,
    /// Tags that interrupt.
    pub mask: Tags,
    /// Pieces moved, in order.
    pub moved: u64,
    /// The piece that is being begun.
    pub piece: u64,
    /// Bytes of it already begun.
    pub inside: u64,
    /// Requests in flight.
    pub flights: u32,
    /// No request before this time.
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

    /// Whether it is to go on by itself.
    pub fn running(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Stopping)
    }

    /// Begins what the registers describe at piece `from`, or faults.
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

    /// Stops with an error: nothing more is begun.
    pub fn stop_with(&mut self, error: ChannelError, address: u64) {
        (self.phase, self.error, self.fault) = (Phase::Faulted, error, address);
    }

    /// Whether a piece with `tag` is begun and not yet moved.
    pub fn in_flight(&self, tag: u32) -> bool {
        let Some(transfer) = &self.transfer else { return false };
        if self.flights == 0 && !(self.running() && self.inside > 0) {
            return false;
        }
        let begun = self.piece + u64::from(self.inside > 0);
        (self.moved..begun).any(|piece| transfer.tag_of(piece) == tag)
    }

    /// Whether its transfer and progress are possible in an engine of `spec`.
    pub fn fits(&self, spec: &IdmaSpec) -> bool {
        let Some(transfer) = &self.transfer else { return !self.running() && self.flights == 0 };
        let tags = transfer.ring > 0 && transfer.first.saturating_add(transfer.ring) <= spec.tags;
        let piece = transfer.piece > 0 && transfer.piece <= spec.granule_bytes;
        let feed = transfer.feed.is_none_or(|feed| feed < spec.read_channels);
        let begun = self.piece.saturating_add(u64::from(self.inside > 0));
        let progress = self.moved <= self.piece && begun <= transfer.pieces() && begun - self.moved <= 65;
        tags && piece && feed && (progress || !self.running()) && self.inside < u64::from(transfer.piece)
    }

    /// Replaces word `word` of the tags: ones are taken, zeros given.
    pub fn replace_tags(&mut self, word: usize, bits: u64) {
        self.give(word, !bits);
        self.take(word, bits);
    }

    /// Gives the tags in `bits` of word `word` to the engine.
    pub fn give(&mut self, word: usize, bits: u64) {
        self.ready.0[word] &= !bits;
        self.wanted.0[word] &= !bits;
    }

    /// Takes the tags in `bits` of word `word` for the core, those in flight when they have been moved.
    pub fn take(&mut self, word: usize, bits: u64) {
        for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
            let tag = word as u32 * 64 + bit;
            let tags = if self.in_flight(tag) { &mut self.wanted } else { &mut self.ready };
            tags.set(tag, true);
        }
    }
}
