//! The record of the source words that a unit was translated from, used to validate imported units.

use std::cell::RefCell;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::front_end::{Memory, Unit};

/// The words that a translation read: runs (start address, number of words) sorted by address, and a hash of all words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourceWords {
    runs: Vec<(u64, u32)>,
    hash: u64,
}

impl SourceWords {
    fn of(mut words: Vec<(u64, u32)>) -> Self {
        words.sort_unstable();
        words.dedup();
        let mut runs: Vec<(u64, u32)> = Vec::new();
        for (address, _) in &words {
            match runs.last_mut() {
                Some((first, count)) if *first + 4 * u64::from(*count) == *address => *count += 1,
                _ => runs.push((*address, 1)),
            }
        }
        let words: Vec<u32> = words.into_iter().map(|(_, word)| word).collect();
        Self { runs, hash: hash(&words) }
    }

    /// Whether memory still holds the same words and they are executable.
    pub fn match_memory(&self, memory: &dyn Memory) -> bool {
        let mut current: Vec<u32> = Vec::new();
        let is_readable = self.runs.iter().all(|(first, count)| {
            let start = current.len();
            current.resize(start + *count as usize, 0);
            memory.fetch_all(*first, &mut current[start..]).is_ok()
        });
        is_readable && hash(&current) == self.hash
    }

    /// The numbers of the pages that contain the words, sorted.
    pub fn pages(&self, page_bytes: u64) -> Vec<u64> {
        let of_run = |(first, count): &(u64, u32)| {
            first / page_bytes..=(first + 4 * u64::from(*count) - 1) / page_bytes
        };
        let mut pages: Vec<u64> = self.runs.iter().flat_map(of_run).collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// Whether all runs are well-formed and below `limit`.
    pub fn is_below(&self, limit: u64) -> bool {
        let is_below = |(first, count): &(u64, u32)| {
            first % 4 == 0
                && *count > 0
                && first.checked_add(4 * u64::from(*count)).is_some_and(|end| end <= limit)
        };
        self.runs.iter().all(is_below)
    }
}

/// The source words of a placed unit, and its entry points.
pub(crate) struct Origin {
    /// `None` if the unit is stale.
    pub sources: Option<SourceWords>,
    /// The translated instructions: start address and length in bytes.
    pub code: Box<[(u64, u64)]>,
    pub entries: Box<[(u64, u32)]>,
    pub heads: Box<[(u64, u32)]>,
}

impl Origin {
    pub fn of<S, P>(unit: &Unit<S, P>, sources: SourceWords) -> Self {
        Self {
            sources: Some(sources),
            code: unit.sources.as_slice().into(),
            entries: unit.entries.as_slice().into(),
            heads: unit.heads.as_slice().into(),
        }
    }
}

fn hash(words: &[u32]) -> u64 {
    let mut bytes = vec![0; 4 * words.len()];
    let (four, _) = bytes.as_chunks_mut::<4>();
    four.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
    XxHash3_64::oneshot(&bytes)
}

/// Fetches source words and optionally records them.
pub(crate) struct SourceReader<'a> {
    memory: &'a dyn Memory,
    /// The words read so far, if recorded.
    read: Option<RefCell<Vec<(u64, u32)>>>,
}

impl<'a> SourceReader<'a> {
    pub fn new(memory: &'a dyn Memory, is_recorded: bool) -> Self {
        Self { memory, read: is_recorded.then(RefCell::default) }
    }

    /// The word at an aligned address, if it is executable.
    pub fn fetch(&self, address: u64) -> Option<u32> {
        let word = self.memory.fetch(address).ok()?;
        if let Some(read) = &self.read {
            read.borrow_mut().push((address, word));
        }
        Some(word)
    }

    /// The recorded words. Failed fetches are not recorded: they can only end a unit earlier than necessary.
    pub fn sources(self) -> Option<SourceWords> {
        Some(SourceWords::of(self.read?.into_inner()))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ops::Range;

    use longma_loongarch::{Access, Fault, FaultCause};

    use super::*;

    /// Memory in which each word contains its own address, except the word at the address in the second field.
    struct Words(Range<u64>, Cell<Option<u64>>);

    impl Memory for Words {
        fn fetch(&self, address: u64) -> Result<u32, Fault> {
            let fault = Fault { address, access: Access::Execute, cause: FaultCause::Unmapped };
            if !self.0.contains(&address) {
                return Err(fault);
            }
            Ok(if self.1.get() == Some(address) { 1 } else { address as u32 })
        }

        fn place(&self, _: u64, _: &[u32]) -> Result<(), Fault> {
            Ok(())
        }

        fn forget(&self, _: Range<u64>) -> Result<(), Fault> {
            Ok(())
        }
    }

    #[test]
    fn source_words_match_until_one_changes() {
        let memory = Words(0..0x3000, Cell::new(None));
        let reader = SourceReader::new(&memory, true);
        for address in [0x1004, 0x1000, 0x1ffc, 0x2000, 0x1004, 0x3000] {
            let _ = reader.fetch(address);
        }
        let sources = reader.sources().unwrap();
        assert_eq!(sources.runs, [(0x1000, 2), (0x1ffc, 2)]);
        assert_eq!(sources.pages(4096), [1, 2]);
        assert!(sources.match_memory(&memory) && sources.is_below(0x2004) && !sources.is_below(0x2000));
        for address in [0x1000, 0x1004, 0x1ffc, 0x2000] {
            memory.1.set(Some(address));
            assert!(!sources.match_memory(&memory), "{address:#x}");
        }
        // Words between the runs do not matter.
        memory.1.set(Some(0x1008));
        assert!(sources.match_memory(&memory));
        assert!(
            !sources.match_memory(&Words(0..0x2000, Cell::new(None))),
            "a word that is not executable does not match"
        );
        assert_eq!(SourceReader::new(&memory, false).sources(), None);
    }
}
