//! When a load may pass older stores whose addresses are not known yet, and what it learns from having been wrong.
//! Not the search for a store that it should have waited for (see `stores.rs`), nor fetching it again (see `out_of_order.rs`).
//! Source: named in each file.

mod counters;
mod store_sets;

use longma_topology::parts::{self, LoadOrder};

use crate::model_error::ModelError;

/// Entries of a table whose machine file does not say: as many as gem5's store sets have (BaseO3CPU.py, SSITSize).
const DEFAULT_ENTRIES: u32 = 1024;
/// The largest table a machine file may ask for.
const MOST_ENTRIES: u32 = 1 << 20;

/// A predictor of loads that must wait for older stores. It learns at once: the delay between prediction and update is not modelled.
trait Order {
    /// A store at `pc`, younger than all before, whose address is known in cycle `known`.
    fn store(&mut self, pc: u64, known: u64);

    /// The cycle before which the load at `pc` does not issue.
    fn wait(&mut self, pc: u64) -> u64;

    /// The load at `pc` passed the store at `store` and should not have.
    fn collided(&mut self, pc: u64, store: u64);

    /// The load at `pc` is done. `passes`: no older store to its address was unknown when all else that it needs was there.
    fn done(&mut self, pc: u64, passes: bool);
}

/// How loads pass stores.
#[derive(Debug)]
pub(crate) enum MemoryOrder {
    /// They wait for just those that they depend on.
    Ideal,
    /// They wait until the addresses of all older ones are known, in the cycle that this is.
    Conservative(u64),
    /// They wait for none.
    Blind,
    /// They wait for all, unless their counter is saturated.
    Counters(counters::Counters),
    /// They wait for the stores of their set.
    StoreSets(store_sets::StoreSets),
}

impl MemoryOrder {
    /// What `core` has; ideal where the machine file does not say.
    ///
    /// # Errors
    /// The table is empty or too large.
    pub fn new(core: &parts::Core) -> Result<Self, ModelError> {
        let Some(order) = &core.memory_order else { return Ok(Self::Ideal) };
        let entries = order.table_entries.unwrap_or(DEFAULT_ENTRIES);
        if entries == 0 || entries > MOST_ENTRIES {
            let (value, most) = (entries.into(), MOST_ENTRIES.into());
            return Err(ModelError::OutOfRange { key: "table_entries", value, most });
        }
        Ok(match order.loads {
            LoadOrder::Ideal => Self::Ideal,
            LoadOrder::Conservative => Self::Conservative(0),
            LoadOrder::Blind => Self::Blind,
            LoadOrder::Counters => Self::Counters(counters::Counters::new(entries)),
            LoadOrder::StoreSets => Self::StoreSets(store_sets::StoreSets::new(entries)),
        })
    }

    /// True if loads are never wrong.
    #[inline]
    pub fn is_ideal(&self) -> bool {
        matches!(self, Self::Ideal)
    }

    /// As [`Order::store`].
    pub fn store(&mut self, pc: u64, known: u64) {
        match self {
            Self::Ideal | Self::Blind => {}
            Self::Conservative(all_known) => *all_known = known.max(*all_known),
            Self::Counters(order) => order.store(pc, known),
            Self::StoreSets(order) => order.store(pc, known),
        }
    }

    /// As [`Order::wait`].
    pub fn wait(&mut self, pc: u64) -> u64 {
        match self {
            Self::Ideal | Self::Blind => 0,
            Self::Conservative(all_known) => *all_known,
            Self::Counters(order) => order.wait(pc),
            Self::StoreSets(order) => order.wait(pc),
        }
    }

    /// As [`Order::collided`].
    pub fn collided(&mut self, pc: u64, store: u64) {
        match self {
            Self::Ideal | Self::Blind | Self::Conservative(_) => {}
            Self::Counters(order) => order.collided(pc, store),
            Self::StoreSets(order) => order.collided(pc, store),
        }
    }

    /// As [`Order::done`].
    pub fn done(&mut self, pc: u64, passes: bool) {
        match self {
            Self::Ideal | Self::Blind | Self::Conservative(_) => {}
            Self::Counters(order) => order.done(pc, passes),
            Self::StoreSets(order) => order.done(pc, passes),
        }
    }
}

/// The entry of an instruction in a table of so many.
fn index(pc: u64, entries: usize) -> usize {
    ((pc >> 2) % entries as u64) as usize
}
