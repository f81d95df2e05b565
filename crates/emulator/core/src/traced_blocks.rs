//! The table of blocks that traces refer to by number.

use longma_guest::host::locks::RwLock;
use longma_locks::IgnorePoison;
use longma_loongarch::Instruction;
use longma_trace::{BlockNumber, TracedBlock};
use rustc_hash::FxHashMap;

/// All traced blocks of a process by number. A block keeps its number. Changed code becomes a new block, even if it
/// changes back.
#[derive(Default)]
pub(crate) struct TracedBlocks {
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    /// The number of the first block.
    first: u32,
    blocks: Vec<TracedBlock>,
    /// The newest block for an address and a length.
    newest: FxHashMap<(u64, usize), u32>,
}

impl TracedBlocks {
    /// Interns the block of `instructions` at `start` and returns its number. Unchanged code at the same address keeps
    /// its number.
    ///
    /// # Panics
    /// With 2^32 or more blocks.
    pub fn intern(&self, start: u64, instructions: &[Instruction]) -> BlockNumber {
        let mut table = self.table.write().ignore_poison();
        let key = (start, instructions.len());
        if let Some(&number) = table.newest.get(&key)
            && *table.blocks[(number - table.first) as usize].instructions == *instructions
        {
            return BlockNumber(number);
        }
        let number = table.end();
        table.blocks.push(TracedBlock { start, instructions: instructions.into() });
        table.newest.insert(key, number);
        BlockNumber(number)
    }

    /// The block with a number that [`TracedBlocks::intern`] returned.
    pub fn get(&self, number: BlockNumber) -> Option<TracedBlock> {
        let table = self.table.read().ignore_poison();
        let index = number.0.checked_sub(table.first)?;
        table.blocks.get(index as usize).cloned()
    }

    /// Gives blocks the numbers from `first` on. Call it before the first block is interned.
    pub fn begin_at(&self, first: BlockNumber) {
        self.table.write().ignore_poison().first = first.0;
    }

    /// The number of the next new block.
    pub fn end(&self) -> BlockNumber {
        BlockNumber(self.table.read().ignore_poison().end())
    }
}

impl Table {
    fn end(&self) -> u32 {
        let count = u32::try_from(self.blocks.len()).ok();
        count
            .and_then(|count| self.first.checked_add(count))
            .expect("memory runs out before block numbers do")
    }
}

#[cfg(test)]
mod tests {
    use longma_loongarch::Op;

    use super::*;

    #[test]
    fn changed_code_is_a_new_block_and_the_old_block_keeps_its_number() {
        let blocks = TracedBlocks::default();
        let (add, sub) = ([Instruction::new(Op::AddD)], [Instruction::new(Op::SubD)]);
        let first = blocks.intern(0x40, &add);
        assert_eq!(blocks.intern(0x40, &add), first);
        let second = blocks.intern(0x40, &sub);
        assert_ne!(second, first);
        assert_eq!(*blocks.get(first).expect("an interned block").instructions, add);
        assert_eq!(*blocks.get(second).expect("an interned block").instructions, sub);
        assert_eq!(blocks.get(BlockNumber(2)), None);
    }

    #[test]
    fn blocks_of_a_later_program_have_later_numbers() {
        let blocks = TracedBlocks::default();
        blocks.begin_at(BlockNumber(7));
        let add = [Instruction::new(Op::AddD)];
        assert_eq!(blocks.intern(0x40, &add), BlockNumber(7));
        assert_eq!(blocks.intern(0x40, &add), BlockNumber(7));
        assert_eq!((blocks.get(BlockNumber(6)), blocks.end()), (None, BlockNumber(8)));
        assert!(blocks.get(BlockNumber(7)).is_some());
    }
}
