//! The stored form of translation units, and imported units that are not activated yet.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::front_end::Exit;
use crate::hotness::Hotness;
use crate::positions::EncodedPositions;
use crate::provenance::SourceWords;

/// The state of an entry point at the time of export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EntryState {
    /// Jumps of translated code lead to the entry point.
    Hot,
    /// Only the engine enters the unit here.
    Cold,
    /// The entry is redirected to newer code, or is unlinked.
    Superseded,
}

/// The metadata of a unit. Its words are stored separately.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CachedUnit<S> {
    /// The source words from which the unit was translated. `None` if the unit was stale: its entry points are exits to the
    /// engine.
    pub sources: Option<SourceWords>,
    /// The translated instructions: start address and length in bytes.
    pub code: Vec<(u64, u64)>,
    /// Source address, word index and state.
    pub entries: Vec<(u64, u32, EntryState)>,
    /// Internal block heads: source address and word index.
    pub heads: Vec<(u64, u32)>,
    /// Exits to the engine by word index.
    pub exits: Vec<(u32, Exit<S>)>,
    /// Indirect calls: word index and the source register that holds the target.
    pub calls: Vec<(u32, u8)>,
    /// The indices of the units that it jumps to.
    pub links: Vec<u32>,
    /// The byte range of its positions.
    pub positions: Range<usize>,
}

/// The directory of stored units.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Index {
    /// The address of the first unit. The words of the other units follow without gaps.
    pub start: u64,
    /// For each unit, its length in words and the length of its metadata in bytes.
    pub units: Vec<(u32, u32)>,
    /// Entry points, sorted by source address: the unit's index, and whether the code is hot.
    pub entries: Vec<(u64, u32, bool)>,
    pub hotness: Hotness,
}

/// An imported unit.
#[derive(Clone, Copy)]
pub(crate) struct ImportedUnit {
    pub start: u64,
    pub words: u32,
    /// The byte range of its metadata.
    pub metadata: (u32, u32),
    /// Whether its source words have not been compared with the recorded hash yet.
    pub is_pending: bool,
}

/// All units imported from another process.
pub(crate) struct CachedUnits {
    /// Sorted by address.
    pub units: Vec<ImportedUnit>,
    pub metadata: Bytes,
    pub words: Bytes,
    pub positions: Arc<EncodedPositions>,
    pub entries: Vec<(u64, u32, bool)>,
    /// The number of words in units whose source has changed.
    pub stale: u64,
}

impl CachedUnits {
    /// The entry points in `range` whose units are not validated yet.
    pub fn at(&self, range: Range<u64>) -> impl Iterator<Item = &(u64, u32, bool)> {
        let first = self.entries.partition_point(|(pc, ..)| *pc < range.start);
        let in_range = self.entries[first..].iter().take_while(move |(pc, ..)| *pc < range.end);
        in_range.filter(|(_, number, _)| self.units[*number as usize].is_pending)
    }

    /// Whether the imported units contain hot code for `pc` that is not validated yet.
    pub fn has_hot(&self, pc: u64) -> bool {
        self.at(pc..pc + 1).any(|(.., is_hot)| *is_hot)
    }

    /// The words of a unit.
    pub fn words_of(&self, unit: &ImportedUnit) -> Vec<u32> {
        let from = (unit.start - self.units[0].start) as usize;
        let bytes = self.words[from..from + 4 * unit.words as usize].as_chunks::<4>().0;
        bytes.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    /// The metadata of a unit.
    pub fn metadata<S: DeserializeOwned>(&self, unit: &ImportedUnit) -> Option<CachedUnit<S>> {
        postcard::from_bytes(self.metadata.get(unit.metadata.0 as usize..unit.metadata.1 as usize)?).ok()
    }
}
