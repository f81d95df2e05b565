//! The execution trace of a core, the input of timing models: which blocks ran and which addresses they accessed.
//!
//! Source: one record per basic block, as instrumented by ZSim (Sanchez and Kozyrakis, ISCA 2013, section 3.1).

mod addresses;

use std::{ops::Range, sync::Arc};

use longma_loongarch::Instruction;

pub use addresses::{AddressForm, address_of, count_addresses, has_address};

/// The number of a block in a [`Trace`]. Numbers are dense, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockNumber(pub u32);

/// The code of a traced block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedBlock {
    /// Guest address of the first instruction.
    pub start: u64,
    /// The instructions, including the one that ends the block.
    pub instructions: Arc<[Instruction]>,
}

/// Provides the code of a block when a model first encounters it.
pub trait Blocks {
    /// The block `number`. A block never changes.
    fn block(&self, number: BlockNumber) -> TracedBlock;
}

impl Blocks for Vec<TracedBlock> {
    fn block(&self, number: BlockNumber) -> TracedBlock {
        self[number.0 as usize].clone()
    }
}

/// An execution of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The block.
    pub block: BlockNumber,
    /// Number of instructions executed, from the first one; less than all after a trap or if the interpreter took over.
    pub executed: u16,
    /// The guest virtual address of each executed instruction that accesses memory, in program order. A conditional
    /// store has an address whether it succeeded or not.
    pub addresses: &'a [u64],
}

/// The records of one core since the trace was last cleared, in program order. The target of a block's branch is the
/// start of the next record's block.
///
/// A record is one word, `block | executed << 32 | addresses << 48`, followed by its addresses, one word each.
/// Translated code writes the records.
#[derive(Debug, Default)]
pub struct Trace {
    /// All words are initialized, including those after `used`: translated code writes beyond `used`, and the run loop
    /// then advances it.
    words: Vec<u64>,
    used: usize,
}

impl Trace {
    /// An empty trace.
    #[inline]
    pub const fn new() -> Self {
        Self { words: Vec::new(), used: 0 }
    }

    /// An empty trace with capacity for `words` words.
    pub fn with_capacity(words: usize) -> Self {
        Self { words: vec![0; words], used: 0 }
    }

    /// The host address of the first word.
    #[inline]
    pub fn address(&mut self) -> u64 {
        self.words.as_mut_ptr() as u64
    }

    /// The word at `index`, which may not be part of a record yet.
    ///
    /// # Panics
    /// If the index is beyond the capacity.
    #[inline]
    pub fn word(&mut self, index: usize) -> &mut u64 {
        &mut self.words[index]
    }

    /// Sets the number of words in use.
    ///
    /// # Panics
    /// If it exceeds the capacity.
    #[inline]
    pub fn set_used(&mut self, used: usize) {
        assert!(used <= self.words.len(), "a record exceeds the capacity of the trace");
        self.used = used;
    }

    /// Returns whether there are no records.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Number of words in use: one per record and one per access.
    #[inline]
    pub fn words(&self) -> usize {
        self.used
    }

    /// Copies the records of `other` without its unused capacity.
    pub fn copy_from(&mut self, other: &Self) {
        self.copy_part(other, 0..other.used);
    }

    /// Copies the records in these words of `other`. The range consists of whole records.
    ///
    /// # Panics
    /// If the range exceeds the words in use.
    pub fn copy_part(&mut self, other: &Self, words: Range<usize>) {
        self.words.clear();
        self.words.extend_from_slice(&other.words[..other.used][words]);
        self.used = self.words.len();
    }

    /// The shortest sequence of records from word `start` on with at least `instructions` executed instructions, or all
    /// remaining records. Returns the index of the word after the sequence, and its number of instructions.
    pub fn first_instructions(&self, start: usize, instructions: u64) -> (usize, u64) {
        let (mut end, mut executed) = (start, 0);
        while end < self.used && executed < instructions {
            let head = self.words[end];
            executed += (head >> 32) & 0xffff;
            end += 1 + (head >> 48) as usize;
        }
        (end, executed)
    }

    /// Number of instructions executed in all records.
    pub fn instructions(&self) -> u64 {
        self.records().map(|record| u64::from(record.executed)).sum()
    }

    /// Iterates over the records, oldest first.
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

    /// Appends a record.
    ///
    /// # Panics
    /// If it has more than 65,535 addresses; a block has at most 64 instructions.
    pub fn push(&mut self, record: &Record<'_>) {
        let addresses = u16::try_from(record.addresses.len()).expect("at most one address per instruction");
        self.words.truncate(self.used);
        self.words.push(encode_head(record.block, record.executed, addresses));
        self.words.extend_from_slice(record.addresses);
        self.used = self.words.len();
    }
}

/// Encodes the first word of a record.
#[inline]
pub fn encode_head(block: BlockNumber, executed: u16, addresses: u16) -> u64 {
    u64::from(block.0) | u64::from(executed) << 32 | u64::from(addresses) << 48
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushed_records_are_read_back() {
        let records = [
            Record { block: BlockNumber(7), executed: 3, addresses: &[0x10, u64::MAX] },
            Record { block: BlockNumber(u32::MAX), executed: u16::MAX, addresses: &[] },
        ];
        let mut trace = Trace::default();
        records.iter().for_each(|record| trace.push(record));
        assert!(trace.records().eq(records));
    }

    #[test]
    fn a_trace_is_split_into_parts_between_records() {
        let record = |block, addresses| Record { block: BlockNumber(block), executed: 10, addresses };
        let records = [record(0, &[1, 2, 3]), record(1, &[]), record(2, &[4]), record(3, &[5, 6])];
        let mut trace = Trace::default();
        records.iter().for_each(|record| trace.push(record));
        let (middle, executed) = trace.first_instructions(0, 11);
        assert_eq!(
            (middle, executed),
            (5, 20),
            "a part ends after the record that contains its last instruction"
        );
        let (end, executed) = trace.first_instructions(middle, 1000);
        assert_eq!((end, executed), (trace.words(), 20));
        let mut part = Trace::default();
        part.copy_part(&trace, middle..end);
        assert!(part.records().eq(records[2..].iter().copied()));
    }
}
