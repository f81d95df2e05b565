//! The blocks that a model has executed, each decoded on its first execution, and their counts.

use std::{collections::BTreeMap, ops::AddAssign};

use longma_loongarch::Class;
use longma_memory::Source;
use longma_trace::{BlockNumber, Blocks, Record};

use crate::{
    operations::{DecodedBlock, decode_block},
    parameters::Parameters,
};

/// Counts of a block since counting began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounts {
    /// Number of runs, including partial ones.
    pub runs: u64,
    /// Instructions executed.
    pub instructions: u64,
    /// Retirement slots between the last instruction before the block and the block's last one; divide by the core's
    /// width for cycles. 0 in the counting model.
    pub slots: u64,
    /// Data accesses that missed in the first-level cache, by [`Source`].
    pub misses: [u32; Source::ALL.len()],
    /// Instruction lines that missed in the first-level cache.
    pub fetch_misses: u32,
    /// Mispredictions of the block's branch.
    pub mispredicts: u32,
}

/// Decides whether a memoization lookup of a block is worth its cost, from the success of earlier lookups. Affects only
/// host time, not results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookupCredit {
    credit: i32,
}

/// Maximum and initial credit. A success adds one.
const MAX_CREDIT: i32 = 256;
/// Credit that a failure costs: an estimate of the number of successes that save as much time as it wastes.
const FAILURE_COST: i32 = 8;
/// Runs without a lookup after the credit is used up.
const PAUSE_RUNS: i32 = 2048;
/// Credit after that pause.
const NEW_CREDIT: i32 = 64;

impl Default for LookupCredit {
    fn default() -> Self {
        Self { credit: MAX_CREDIT }
    }
}

impl LookupCredit {
    /// Returns whether to look up now.
    #[inline]
    pub fn pays(&mut self) -> bool {
        if self.credit >= 0 {
            return true;
        }
        self.credit += 1;
        if self.credit == 0 {
            self.credit = NEW_CREDIT;
        }
        self.credit > 0
    }

    /// Records a successful lookup.
    #[inline]
    pub fn succeeded(&mut self) {
        self.credit = (self.credit + 1).min(MAX_CREDIT);
    }

    /// Records a failed lookup.
    pub fn failed(&mut self) {
        self.credit -= FAILURE_COST;
        if self.credit < 0 {
            self.credit = -PAUSE_RUNS;
        }
    }
}

/// A block and its counts.
#[derive(Debug)]
pub(crate) struct Entry {
    pub block: DecodedBlock,
    pub counts: BlockCounts,
    /// Whether memoization lookups of the block are worth their cost.
    pub lookup_credit: LookupCredit,
}

impl AddAssign for BlockCounts {
    fn add_assign(&mut self, other: Self) {
        self.runs += other.runs;
        self.instructions += other.instructions;
        self.slots += other.slots;
        self.misses.iter_mut().zip(other.misses).for_each(|(sum, more)| *sum = sum.saturating_add(more));
        self.fetch_misses = self.fetch_misses.saturating_add(other.fetch_misses);
        self.mispredicts = self.mispredicts.saturating_add(other.mispredicts);
    }
}

impl BlockCounts {
    /// Records the source of an access.
    #[inline]
    pub(crate) fn note(&mut self, source: Source) {
        if source != Source::Level1 {
            self.misses[source as usize] += 1;
        }
    }
}

/// Blocks by number.
#[derive(Debug, Default)]
pub(crate) struct Program {
    entries: Vec<Option<Box<Entry>>>,
    /// Number of partial runs, by block and number of executed instructions.
    parts: BTreeMap<(BlockNumber, u16), u64>,
    /// Instructions outside of blocks: accesses to device registers.
    pub outside_blocks: u64,
}

impl Program {
    /// Returns the block of `record` and counts the run. Decodes the block if it is new.
    #[inline]
    pub fn enter(
        &mut self,
        record: &Record<'_>,
        blocks: &impl Blocks,
        parameters: &Parameters,
    ) -> &mut Entry {
        let number = record.block.0 as usize;
        if self.entries.get(number).is_none_or(Option::is_none) {
            self.decode(record.block, blocks, parameters);
        }
        let Some(entry) = &mut self.entries[number] else { unreachable!("decoded above") };
        entry.counts.runs += 1;
        entry.counts.instructions += u64::from(record.executed);
        if usize::from(record.executed) < entry.block.operations.len() {
            *self.parts.entry((record.block, record.executed)).or_default() += 1;
        }
        entry
    }

    #[cold]
    fn decode(&mut self, block: BlockNumber, blocks: &impl Blocks, parameters: &Parameters) {
        let number = block.0 as usize;
        if self.entries.len() <= number {
            self.entries.resize_with(number + 1, || None);
        }
        let block = decode_block(&blocks.block(block), parameters);
        self.entries[number] = Some(Box::new(Entry {
            block,
            counts: BlockCounts::default(),
            lookup_credit: LookupCredit::default(),
        }));
    }

    /// Counts a misprediction of the branch at the end of block `number`.
    #[cold]
    pub fn note_mispredict(&mut self, number: BlockNumber) {
        if let Some(Some(entry)) = self.entries.get_mut(number.0 as usize) {
            entry.counts.mispredicts += 1;
        }
    }

    /// Iterates over the blocks that ran since counting began.
    pub fn counts(&self) -> impl Iterator<Item = (BlockNumber, &BlockCounts)> {
        let entries = self.entries.iter().enumerate();
        let blocks_seen =
            entries.filter_map(|(number, entry)| Some((BlockNumber(number as u32), &entry.as_ref()?.counts)));
        blocks_seen.filter(|(_, counts)| counts.runs > 0)
    }

    /// Resets the counts but keeps the decoded blocks.
    pub fn clear_counts(&mut self) {
        self.entries.iter_mut().flatten().for_each(|entry| entry.counts = BlockCounts::default());
        self.parts.clear();
        self.outside_blocks = 0;
    }

    /// Number of instructions executed by class, ordered by class.
    pub fn instructions_by_class(&self) -> Vec<(Class, u64)> {
        let mut sums = BTreeMap::<Class, u64>::new();
        for entry in self.entries.iter().flatten() {
            for instruction in &*entry.block.instructions {
                *sums.entry(instruction.op.row().class).or_default() += entry.counts.runs;
            }
        }
        // Every run was counted as complete: subtract the instructions that partial runs did not execute.
        for (&(block, executed), runs) in &self.parts {
            let Some(entry) = &self.entries[block.0 as usize] else { continue };
            for instruction in &entry.block.instructions[usize::from(executed)..] {
                *sums.entry(instruction.op.row().class).or_default() -= runs;
            }
        }
        sums.retain(|_, count| *count > 0);
        sums.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_requests_are_retried_after_a_pause() {
        let mut lookup_credit = LookupCredit::default();
        let tries =
            (0..100_000).filter(|_| lookup_credit.pays().then(|| lookup_credit.failed()).is_some()).count();
        assert!((100..500).contains(&tries), "{tries} tries of 100,000");
        for _ in 0..3_000 {
            if lookup_credit.pays() {
                lookup_credit.succeeded();
            }
        }
        assert!((0..20).all(|_| lookup_credit.pays()), "lookups continue while they succeed");
    }
}
