//! What a core did, as timing models read it: which blocks ran, where they accessed memory.
//! Not how long it took.
//! Source: our own; one record a basic block, as ZSim instruments (Sanchez and Kozyrakis, ISCA 2013, section 3.1).

use std::sync::Arc;

use longma_loongarch::{Class, Instruction, Op};

/// A traced block, as its number in a [`Trace`] means it. The number is dense, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockNumber(pub u32);

/// The code of a traced block.
#[derive(Clone, Debug)]
pub struct TracedBlock {
    /// The guest address of its first instruction.
    pub start: u64,
    /// Its instructions, the one that ends it included.
    pub instructions: Arc<[Instruction]>,
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
    words: Vec<u64>,
}

impl Trace {
    /// Every record, oldest first.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let mut rest = &self.words[..];
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
        self.words
            .push(u64::from(record.block.0) | u64::from(record.executed) << 32 | u64::from(addresses) << 48);
        self.words.extend_from_slice(record.addresses);
    }
}

/// True if an instruction has an address in a [`Record`]: loads, stores, atomic operations and prefetches.
pub fn has_address(op: Op) -> bool {
    matches!(op.row().class, Class::Load | Class::Store | Class::Atomic | Class::Prefetch)
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
