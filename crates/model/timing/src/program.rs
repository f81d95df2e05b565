//! The blocks a model has seen: decoded once, and what each cost.
//! Not the whole program's code: blocks come as they are first executed.

use std::collections::BTreeMap;

use longma_loongarch::Class;
use longma_memory::Source;
use longma_trace::{BlockNumber, Blocks, Record};

use crate::{
    operations::{DecodedBlock, decode_block},
    parameters::Parameters,
};

/// What a block cost since counting began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounts {
    /// Times it ran, parts included.
    pub runs: u64,
    /// Instructions executed in it.
    pub instructions: u64,
    /// Slots between the retirement of the instruction before it and of its last one; divide by the core's width for cycles. Of the
    /// counting model, none.
    pub slots: u64,
    /// Its data accesses that were served beyond the first-level cache, by [`Source`].
    pub misses: [u32; Source::ALL.len()],
    /// Its instruction lines that came from beyond the first-level cache.
    pub fetch_misses: u32,
    /// Mispredicted runs of its branch.
    pub mispredicts: u32,
}

/// How well it paid to look for what a block did before. It decides how a model spends the host's time, not what it finds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Repetition {
    credit: i32,
}

/// The most credit there is, and what a block begins with: a success adds one.
const MOST_CREDIT: i32 = 256;
/// What a failure costs: an estimate of how many successes spare the time that it takes.
const FAILURE_COST: i32 = 8;
/// Runs without looking, once there is no credit.
const PAUSE_RUNS: i32 = 2048;
/// The credit behind them.
const NEW_CREDIT: i32 = 64;

impl Default for Repetition {
    fn default() -> Self {
        Self { credit: MOST_CREDIT }
    }
}

impl Repetition {
    /// True if it is worth looking now.
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

    /// What the block did was known.
    #[inline]
    pub fn succeeded(&mut self) {
        self.credit = (self.credit + 1).min(MOST_CREDIT);
    }

    /// It was not.
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
    /// Whether it is worth looking for what the block did before.
    pub repetition: Repetition,
}

impl BlockCounts {
    /// Notes where the data of an access came from.
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
    /// Runs that ended in the middle of their block, by block and number of executed instructions.
    parts: BTreeMap<(BlockNumber, u16), u64>,
    /// Instructions that are in no block: accesses to devices' registers.
    pub apart: u64,
}

impl Program {
    /// The block of `record`, decoded now if it is new, with the run counted.
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
            repetition: Repetition::default(),
        }));
    }

    /// Counts a misprediction of the branch at the end of the block called `number`.
    #[cold]
    pub fn note_mispredict(&mut self, number: BlockNumber) {
        if let Some(Some(entry)) = self.entries.get_mut(number.0 as usize) {
            entry.counts.mispredicts += 1;
        }
    }

    /// Every block that ran since counting began.
    pub fn counts(&self) -> impl Iterator<Item = (BlockNumber, &BlockCounts)> {
        let entries = self.entries.iter().enumerate();
        let seen =
            entries.filter_map(|(number, entry)| Some((BlockNumber(number as u32), &entry.as_ref()?.counts)));
        seen.filter(|(_, counts)| counts.runs > 0)
    }

    /// Forgets the counts and keeps the code.
    pub fn clear_counts(&mut self) {
        self.entries.iter_mut().flatten().for_each(|entry| entry.counts = BlockCounts::default());
        self.parts.clear();
        self.apart = 0;
    }

    /// Instructions executed, by class, in the order of the classes.
    pub fn instructions_by_class(&self) -> Vec<(Class, u64)> {
        let mut sums = BTreeMap::<Class, u64>::new();
        for entry in self.entries.iter().flatten() {
            for instruction in &*entry.block.instructions {
                *sums.entry(instruction.op.row().class).or_default() += entry.counts.runs;
            }
        }
        // Every run was counted whole: take back what the parts did not execute.
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
    fn what_fails_is_tried_again_after_a_pause() {
        let mut repetition = Repetition::default();
        let tries = (0..100_000).filter(|_| repetition.pays().then(|| repetition.failed()).is_some()).count();
        assert!((100..500).contains(&tries), "{tries} tries of 100,000");
        for _ in 0..3_000 {
            if repetition.pays() {
                repetition.succeeded();
            }
        }
        assert!((0..20).all(|_| repetition.pays()), "what succeeds goes on");
    }
}
