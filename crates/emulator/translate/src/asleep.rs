//! What is known of units that are kept for another process, and of those that have been taken up from one.
//! Not how they are written down, taken up and woken (`kept`).

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::front_end::Exit;
use crate::heat::Heat;
use crate::positions::Written;
use crate::reading::Sources;

/// What the code of a source address was when it was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Standing {
    /// Whoever comes to the address goes there.
    Hot,
    /// Whom the engine sends goes there.
    Cold,
    /// It leads on to newer code, or nowhere.
    Past,
}

/// What is known of a unit. Its words are apart.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeptUnit<S> {
    /// What it has been made of; `None` if it was of no use any more: only its entries are there, and come out to the engine.
    pub sources: Option<Sources>,
    /// Its own instructions: first address and bytes.
    pub code: Vec<(u64, u64)>,
    /// Source address, word, and what it was.
    pub entries: Vec<(u64, u32, Standing)>,
    pub heads: Vec<(u64, u32)>,
    pub exits: Vec<(u32, Exit<S>)>,
    pub calls: Vec<(u32, u8)>,
    /// The units that it jumps to.
    pub links: Vec<u32>,
    /// Where its positions are.
    pub positions: Range<usize>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Index {
    /// Where the first unit lies; each follows the one before.
    pub start: u64,
    /// The words of each, and the bytes of what is known of it.
    pub units: Vec<(u32, u32)>,
    /// Source addresses that have code, in order, the unit, and whether that is as good as it gets.
    pub entries: Vec<(u64, u32, bool)>,
    pub heat: Heat,
}

/// A unit that has been taken up.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    pub start: u64,
    pub words: u32,
    /// Where what is known of it begins and ends.
    pub known: (u32, u32),
    /// Nobody has come to it.
    pub is_asleep: bool,
}

/// What has been taken up from another process.
pub(crate) struct Asleep {
    /// By where they lie.
    pub units: Vec<Taken>,
    pub known: Bytes,
    pub words: Bytes,
    pub positions: Arc<Written>,
    pub entries: Vec<(u64, u32, bool)>,
    /// The words of units whose source has changed.
    pub useless: u64,
}

impl Asleep {
    /// The units that have code of addresses in a range, if nobody has come to them.
    pub fn at(&self, range: Range<u64>) -> impl Iterator<Item = &(u64, u32, bool)> {
        let first = self.entries.partition_point(|(pc, ..)| *pc < range.start);
        let behind = self.entries[first..].iter().take_while(move |(pc, ..)| *pc < range.end);
        behind.filter(|(_, number, _)| self.units[*number as usize].is_asleep)
    }

    /// Whether there may be code of a source address that is as good as it gets, and nobody has come to it.
    pub fn has_hot(&self, pc: u64) -> bool {
        self.at(pc..pc + 1).any(|(.., is_hot)| *is_hot)
    }

    /// The words of a unit.
    pub fn words_of(&self, unit: &Taken) -> Vec<u32> {
        let from = (unit.start - self.units[0].start) as usize;
        let bytes = self.words[from..from + 4 * unit.words as usize].as_chunks::<4>().0;
        bytes.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    /// What is known of a unit.
    pub fn known<S: DeserializeOwned>(&self, unit: &Taken) -> Option<KeptUnit<S>> {
        postcard::from_bytes(self.known.get(unit.known.0 as usize..unit.known.1 as usize)?).ok()
    }
}
