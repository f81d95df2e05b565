//! Counts of single instructions, for annotated assembly. They take time and memory, so a model keeps them on request
//! only.

use longma_memory::Source;
use longma_trace::BlockNumber;

use crate::{
    program::BlockCounts,
    stack::{Cause, CpiStack},
};

/// Why retirement waited before an instruction: the causes of the CPI stack in groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stall {
    /// The front end delivered too little, or an instruction line was not in the first-level cache.
    FrontEnd,
    /// The pipeline was refilled after a mispredicted branch, or after a load that had passed a store.
    Mispredict,
    /// A unit or a result that does not come from memory.
    Execution,
    /// A load that hit the first-level cache.
    Level1,
    /// A load from beyond the first-level cache, or an address translation.
    Memory,
    /// Barriers, atomic operations, emptied pipelines.
    Synchronization,
    /// Full queues, device registers, the kernel, idle time.
    Other,
}

impl Stall {
    /// All groups, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::FrontEnd,
        Self::Mispredict,
        Self::Execution,
        Self::Level1,
        Self::Memory,
        Self::Synchronization,
        Self::Other,
    ];

    /// The group's name, such as `front-end`.
    pub fn name(self) -> &'static str {
        ["front-end", "mispredict", "execution", "l1", "memory", "synchronization", "other"][self as usize]
    }

    /// The group of a cause; `None` for retired instructions.
    pub fn of(cause: Cause) -> Option<Self> {
        match cause {
            Cause::Base => None,
            Cause::FrontEnd | Cause::Fetch => Some(Self::FrontEnd),
            Cause::Mispredict | Cause::MemoryOrder => Some(Self::Mispredict),
            Cause::Execution => Some(Self::Execution),
            Cause::Level1 => Some(Self::Level1),
            Cause::Level2
            | Cause::Level3
            | Cause::Peer
            | Cause::LocalMemory
            | Cause::Remote
            | Cause::Translation => Some(Self::Memory),
            Cause::Synchronization => Some(Self::Synchronization),
            Cause::Structural | Cause::Device | Cause::System | Cause::Idle => Some(Self::Other),
        }
    }
}

/// Counts of one instruction of a block since counting began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstructionCounts {
    /// Number of executions.
    pub runs: u64,
    /// Retirement slots from the previous instruction to this one; divide by the core's width for cycles. 0 in the
    /// counting model. The slots of a block's instructions add up to those of the block.
    pub slots: u64,
    /// The slots of these that were lost, by [`Stall`].
    pub stalls: [u64; Stall::ALL.len()],
    /// Data accesses that missed in the first-level cache, by [`Source`].
    pub misses: [u32; Source::ALL.len()],
    /// Instruction lines that were fetched for this instruction and missed in the first-level cache.
    pub fetch_misses: u32,
}

/// The counts of all instructions, by block and number in the block.
#[derive(Debug, Default)]
pub(crate) struct InstructionLog {
    blocks: Vec<Vec<InstructionCounts>>,
}

impl InstructionLog {
    /// The counts of the first `instructions` instructions of `block`.
    pub fn block(&mut self, block: BlockNumber, instructions: usize) -> &mut [InstructionCounts] {
        let number = block.0 as usize;
        if self.blocks.len() <= number {
            self.blocks.resize_with(number + 1, Vec::new);
        }
        let counts = &mut self.blocks[number];
        if counts.len() < instructions {
            counts.resize(instructions, InstructionCounts::default());
        }
        &mut counts[..instructions]
    }

    /// The counts of each block that ran.
    pub fn counts(&self) -> impl Iterator<Item = (BlockNumber, &[InstructionCounts])> {
        let all = self.blocks.iter().enumerate().filter(|(_, counts)| !counts.is_empty());
        all.map(|(number, counts)| (BlockNumber(number as u32), counts.as_slice()))
    }

    /// Forgets all counts.
    pub fn clear(&mut self) {
        self.blocks.clear();
    }
}

/// The counts of a core at the end of an instruction, to which those of the next one are relative.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reached {
    position: u64,
    stalls: [u64; Stall::ALL.len()],
    misses: [u32; Source::ALL.len()],
    fetch_misses: u32,
}

impl Reached {
    /// The counts now: `position` in slots, `lost` slots of all instructions, and the counts of the current block.
    pub fn now(position: u64, lost: &CpiStack, block: &BlockCounts) -> Self {
        let mut stalls = [0; _];
        for cause in Cause::ALL {
            if let Some(stall) = Stall::of(cause) {
                stalls[stall as usize] += lost.slots(cause);
            }
        }
        Self { position, stalls, misses: block.misses, fetch_misses: block.fetch_misses }
    }

    /// Adds the difference from `before` to the counts of an instruction.
    pub fn add_since(&self, before: &Self, to: &mut InstructionCounts) {
        to.runs += 1;
        to.slots += self.position - before.position;
        for (sum, (now, then)) in to.stalls.iter_mut().zip(self.stalls.iter().zip(before.stalls)) {
            *sum += now - then;
        }
        for (sum, (now, then)) in to.misses.iter_mut().zip(self.misses.iter().zip(before.misses)) {
            *sum = sum.saturating_add(now - then);
        }
        to.fetch_misses = to.fetch_misses.saturating_add(self.fetch_misses - before.fetch_misses);
    }
}
