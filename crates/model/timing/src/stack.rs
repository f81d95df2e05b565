//! The CPI stack: the use or loss of each issue or retire slot of a core, by cause.
//!
//! Source: CPI stacks after Eyerman et al. (ASPLOS 2006); slots as in Yasin's top-down method (ISPASS 2014).

use longma_memory::Source;

/// The use of a slot, or the cause of its loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Cause {
    /// An instruction.
    Base,
    /// The front end delivered too little: fetch width, taken branches, misses in the branch target buffer.
    FrontEnd,
    /// Instruction fetches that missed in the first-level cache or its TLB.
    Fetch,
    /// Refilling the pipeline after a mispredicted branch.
    Mispredict,
    /// Squashes of loads that had passed an older store to their address, and the refetch.
    MemoryOrder,
    /// Waiting for a unit or for a result that does not come from memory.
    Execution,
    /// A load from the first-level data cache, or from the store queue.
    Level1,
    /// A load from the second-level cache.
    Level2,
    /// A load from the third-level cache.
    Level3,
    /// A load from another core's cache.
    Peer,
    /// A load from the memory of the core's NUMA node.
    LocalMemory,
    /// A load from another NUMA node.
    Remote,
    /// Address translation beyond a first-level TLB hit.
    Translation,
    /// Barriers, atomic operations, and instructions that empty the pipeline.
    Synchronization,
    /// A full queue without another cause of waiting; usually stores that wait for their lines.
    Structural,
    /// Accesses to device registers.
    Device,
    /// The kernel: system calls and other work.
    System,
    /// No thread ran, or it waited for an event outside the core.
    Idle,
}

impl Cause {
    /// All causes, from the bottom of the stack to the top.
    pub const ALL: [Self; 18] = [
        Self::Base,
        Self::FrontEnd,
        Self::Fetch,
        Self::Mispredict,
        Self::MemoryOrder,
        Self::Execution,
        Self::Level1,
        Self::Level2,
        Self::Level3,
        Self::Peer,
        Self::LocalMemory,
        Self::Remote,
        Self::Translation,
        Self::Synchronization,
        Self::Structural,
        Self::Device,
        Self::System,
        Self::Idle,
    ];

    const TEXTS: [(&str, &str); 18] = [
        ("base", "instructions at the core's full width"),
        ("front-end", "fetch width, taken branches, misses in the branch target buffer"),
        ("fetch", "instruction lines that missed in the first-level cache"),
        ("mispredict", "refilling the pipeline after mispredicted branches"),
        ("memory-order", "squashes of loads that had passed a store to their address"),
        ("execution", "waiting for units and for results that do not come from memory"),
        ("l1", "loads from the first-level cache or the store queue"),
        ("l2", "loads from the second-level cache"),
        ("l3", "loads from the third-level cache"),
        ("peer", "loads from another core's cache"),
        ("memory", "loads from the memory of the core's NUMA node"),
        ("remote", "loads from another NUMA node"),
        ("translation", "address translation beyond a first-level TLB hit"),
        ("synchronization", "barriers, atomic operations, and refilling an emptied pipeline"),
        ("structural", "full queues, usually stores that wait for their lines"),
        ("device", "accesses to device registers"),
        ("system", "the kernel: system calls and other work"),
        ("idle", "no thread ran, or it waited for an external event"),
    ];

    /// Name in statistics.
    pub fn name(self) -> &'static str {
        Self::TEXTS[self as usize].0
    }

    /// One-line description.
    pub fn description(self) -> &'static str {
        Self::TEXTS[self as usize].1
    }

    /// The cause for waiting for data from `source`.
    #[inline]
    pub(crate) fn of(source: Source) -> Self {
        match source {
            Source::Level1 => Self::Level1,
            Source::Level2 => Self::Level2,
            Source::Level3 => Self::Level3,
            Source::Peer => Self::Peer,
            Source::LocalMemory => Self::LocalMemory,
            Source::Remote => Self::Remote,
        }
    }
}

/// Slots by cause. A core of width w has w slots a cycle, and each slot has exactly one cause, so the slots add up to
/// the cycles exactly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpiStack {
    slots: [u64; Cause::ALL.len()],
    width: u64,
}

impl CpiStack {
    /// Creates an empty stack of a core with `width` slots a cycle.
    pub(crate) fn new(width: u64) -> Self {
        Self { slots: [0; _], width }
    }

    /// Charges `slots` to `cause`.
    #[inline]
    pub(crate) fn add(&mut self, cause: Cause, slots: u64) {
        self.slots[cause as usize] += slots;
    }

    /// Resets all slots.
    pub(crate) fn clear(&mut self) {
        self.slots = [0; _];
    }

    /// Slots charged to `cause`.
    pub fn slots(&self, cause: Cause) -> u64 {
        self.slots[cause as usize]
    }

    /// Total slots of all causes.
    pub fn total_slots(&self) -> u64 {
        self.slots.iter().sum()
    }

    /// Slots a cycle.
    pub fn width(&self) -> u64 {
        self.width
    }

    /// Cycles charged to `cause`.
    pub fn cycles(&self, cause: Cause) -> f64 {
        self.slots(cause) as f64 / self.width as f64
    }
}
