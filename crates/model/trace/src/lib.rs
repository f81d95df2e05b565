//! What a core did, as timing models read it: which blocks ran, where they accessed memory.
//! Not how long it took.
//! Source: one record a basic block, as ZSim instruments (Sanchez and Kozyrakis, ISCA 2013, section 3.1).

mod addresses;

use std::sync::Arc;

use longma_loongarch::Instruction;

pub use addresses::{AddressForm, address_of, count_addresses, has_address};

/// A traced block, as its number in a [`Trace`] means it. The number is dense, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockNumber(pub u32);

/// The code of a traced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedBlock {
    /// The guest address of its first instruction.
    pub start: u64,
    /// Its instructions, the one that ends it included.
    pub instructions: Arc<[Instruction]>,
}

/// Where a model finds the code of a block that it meets for the first time.
pub trait Blocks {
    /// The block called `number`; it never changes.
    fn block(&self, number: BlockNumber) -> TracedBlock;
}

impl Blocks for Vec<TracedBlock> {
    fn block(&self, number: BlockNumber) -> TracedBlock {
        self[number.0 as usize].clone()
    }
}

/// One run of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Which block.
    pub block: BlockNumber,
    /// How many of its instructions were executed, from the first: fewer than all if a trap or the interpreter came between.
    pub executed: u16,
    /// The guest-virtual address of each executed instruction that accesses memory, in program order. Whether a conditional store
    /// stored is not said.
    pub addresses: &'a [u64],
}

/// What one core did since the trace was last cleared, in program order. Where a block's branch went is the start of the next
/// record's block.
///
/// A record is one word, `block | executed << 32 | addresses << 48`, and that many addresses behind it; translated code writes
/// them.
#[derive(Debug, Default)]
pub struct Trace {
    /// Every word is a number, those behind `used` too: translated code writes ahead of `used`, which the run loop moves.
    words: Vec<u64>,
    used: usize,
}

impl Trace {
    /// An empty trace.
    #[inline]
    pub const fn new() -> Self {
        Self { words: Vec::new(), used: 0 }
    }

    /// An empty trace with room for `words` words.
    pub fn with_room(words: usize) -> Self {
        Self { words: vec![0; words], used: 0 }
    }

    /// The host address of word 0.
    #[inline]
    pub fn address(&mut self) -> u64 {
        self.words.as_mut_ptr() as u64
    }

    /// The word at `index`, whether it is part of a record yet or not.
    ///
    /// # Panics
    /// Beyond the trace's room.
    #[inline]
    pub fn word(&mut self, index: usize) -> &mut u64 {
        &mut self.words[index]
    }

    /// Makes the first `used` words those of the trace.
    ///
    /// # Panics
    /// With more words than the trace has room for.
    #[inline]
    pub fn set_used(&mut self, used: usize) {
        assert!(used <= self.words.len(), "a record was written beyond the trace's room");
        self.used = used;
    }

    /// True if there is no record.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Words of all records: one each, and one an access.
    #[inline]
    pub fn words(&self) -> usize {
        self.used
    }

    /// Makes this trace a copy of `other` that takes no more room than its records.
    pub fn copy_from(&mut self, other: &Self) {
        self.words.clear();
        self.words.extend_from_slice(&other.words[..other.used]);
        self.used = other.used;
    }

    /// Instructions executed in all records.
    pub fn instructions(&self) -> u64 {
        self.records().map(|record| u64::from(record.executed)).sum()
    }

    /// Every record, oldest first.
    #[inline]
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let mut rest = &self.words[..self.used];
        std::iter::from_fn(move || {
            let (&head, behind) = rest.split_first()?;
            let (addresses, next) = behind.split_at((head >> 48) as usize);
            rest = next;
            Some(Record { block: BlockNumber(head as u32), executed: (head >> 32) as u16, addresses })
        })
    }

    /// Adds a record at the end.
    ///
    /// # Panics
    /// With more than 65,535 addresses: a block has at most 64 instructions.
    pub fn push(&mut self, record: &Record<'_>) {
        let addresses = u16::try_from(record.addresses.len()).expect("one address an instruction at most");
        self.words.truncate(self.used);
        self.words.push(head(record.block, record.executed, addresses));
        self.words.extend_from_slice(record.addresses);
        self.used = self.words.len();
    }
}

/// The first word of a record.
#[inline]
pub fn head(block: BlockNumber, executed: u16, addresses: u16) -> u64 {
    u64::from(block.0) | u64::from(executed) << 32 | u64::from(addresses) << 48
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were_pushed() {
        let records = [
            Record { block: BlockNumber(7), executed: 3, addresses: &[0x10, u64::MAX] },
            Record { block: BlockNumber(u32::MAX), executed: u16::MAX, addresses: &[] },
        ];
        let mut trace = Trace::default();
        records.iter().for_each(|record| trace.push(record));
        assert!(trace.records().eq(records));
    }
}
