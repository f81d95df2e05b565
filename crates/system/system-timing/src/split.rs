//! Splits the counts between user programs and the kernel.

use longma_memory::Source;
use longma_runner::timing::{BranchCounts, Cause};
use longma_timing::{BlockCounts, CpiStack};
use serde::Serialize;

/// The privilege at which instructions execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Privilege {
    /// Programs, at privilege level 3.
    User,
    /// The kernel, including its handlers of TLB refills.
    Kernel,
}

impl Privilege {
    /// Both.
    pub const ALL: [Self; 2] = [Self::User, Self::Kernel];

    pub(crate) fn of(is_user: bool) -> Self {
        if is_user { Self::User } else { Self::Kernel }
    }

    /// The name in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Kernel => "kernel",
        }
    }
}

/// The counts of one privilege on all cores.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Share {
    /// Instructions executed, without accesses to device registers.
    pub instructions: u64,
    /// Cycles by cause, in the order of [`Cause::ALL`]; all 0 at level `cache`.
    pub stack: [f64; Cause::ALL.len()],
    /// Branches; all 0 at level `cache`.
    pub branches: BranchCounts,
    /// Data accesses that missed in the first level, by source.
    pub misses: [u64; Source::ALL.len()],
    /// Instruction lines that missed in the first level.
    pub fetch_misses: u64,
}

impl Share {
    /// Cycles in which the core was not idle.
    pub fn busy_cycles(&self) -> f64 {
        self.stack.iter().sum::<f64>() - self.stack[Cause::Idle as usize]
    }

    /// Mispredicted branches.
    pub fn mispredicted(&self) -> u64 {
        let BranchCounts { conditional_mispredicted, indirect_mispredicted, returns_mispredicted, .. } =
            self.branches;
        conditional_mispredicted + indirect_mispredicted + returns_mispredicted
    }

    pub(crate) fn add_block(&mut self, counts: &BlockCounts) {
        self.instructions += counts.instructions;
        self.fetch_misses += u64::from(counts.fetch_misses);
        self.misses.iter_mut().zip(counts.misses).for_each(|(sum, more)| *sum += u64::from(more));
    }
}

/// Splits a core's cycles and branches by the privilege at which the core executed between two readings of its counts.
#[derive(Debug, Default)]
pub(crate) struct Split {
    slots: [[u64; Cause::ALL.len()]; 2],
    branches: [BranchCounts; 2],
    last_slots: [u64; Cause::ALL.len()],
    last_branches: BranchCounts,
}

impl Split {
    /// Charges the core's counts since the last call.
    pub fn charge(&mut self, to: Privilege, stack: Option<&CpiStack>, branches: Option<BranchCounts>) {
        if let Some(stack) = stack {
            for cause in Cause::ALL {
                let (now, last) = (stack.slots(cause), &mut self.last_slots[cause as usize]);
                self.slots[to as usize][cause as usize] += now.saturating_sub(*last);
                *last = now;
            }
        }
        if let Some(mut now) = branches {
            let sums = self.branches[to as usize].counts_mut().into_iter();
            let counts = now.counts_mut().into_iter().zip(self.last_branches.counts_mut());
            for (sum, (now, last)) in sums.zip(counts) {
                *sum += now.saturating_sub(*last);
                *last = *now;
            }
        }
    }

    /// Adds the counts to a share of all cores. The core has `width` slots a cycle.
    pub fn add_to(&self, share: &mut Share, privilege: Privilege, width: u64) {
        for (sum, slots) in share.stack.iter_mut().zip(self.slots[privilege as usize]) {
            *sum += slots as f64 / width as f64;
        }
        share.branches += self.branches[privilege as usize];
    }
}
