//! Memory-order prediction: whether a load may issue before older stores whose addresses are not known, and training
//! after a wrong prediction.

mod counters;
mod store_sets;

use longma_topology::parts::{self, LoadOrder};

use crate::model_error::ModelError;

/// Default table size: that of gem5's store sets (BaseO3CPU.py, SSITSize).
const DEFAULT_ENTRIES: u32 = 1024;
/// Maximum table size in a machine file.
const MAX_ENTRIES: u32 = 1 << 20;

/// A predictor of loads that must wait for older stores. It is updated immediately: the delay between prediction and
/// update is not modelled.
trait Order {
    /// Records the store at `pc`, the youngest so far, whose address is known in cycle `known`.
    fn store(&mut self, pc: u64, known: u64);

    /// The cycle before which the load at `pc` must not issue.
    fn wait(&mut self, pc: u64) -> u64;

    /// Trains after the load at `pc` has wrongly passed the store at `store`.
    fn collided(&mut self, pc: u64, store: u64);

    /// Trains after the load at `pc`. `passes` states whether all older stores to its address were known when its
    /// operands were ready.
    fn learn_from_load(&mut self, pc: u64, passes: bool);
}

/// Rules by which loads pass stores.
#[derive(Debug)]
pub(crate) enum MemoryOrder {
    /// Loads wait only for the stores that they depend on.
    Ideal,
    /// Loads wait until this cycle, in which the addresses of all older stores are known.
    Conservative(u64),
    /// Loads never wait.
    Blind,
    /// Loads wait for all older stores unless their counter is saturated.
    Counters(counters::Counters),
    /// Loads wait for the stores of their store set.
    StoreSets(store_sets::StoreSets),
}

impl MemoryOrder {
    /// The policy of `core`; ideal if the machine file states none.
    ///
    /// # Errors
    /// If the table is empty or too large.
    pub fn new(core: &parts::Core) -> Result<Self, ModelError> {
        let Some(order) = &core.memory_order else { return Ok(Self::Ideal) };
        let entries = order.table_entries.unwrap_or(DEFAULT_ENTRIES);
        if entries == 0 || entries > MAX_ENTRIES {
            let (value, max) = (entries.into(), MAX_ENTRIES.into());
            return Err(ModelError::OutOfRange { key: "table_entries", value, max });
        }
        Ok(match order.loads {
            LoadOrder::Ideal => Self::Ideal,
            LoadOrder::Conservative => Self::Conservative(0),
            LoadOrder::Blind => Self::Blind,
            LoadOrder::Counters => Self::Counters(counters::Counters::new(entries)),
            LoadOrder::StoreSets => Self::StoreSets(store_sets::StoreSets::new(entries)),
        })
    }

    /// Returns whether loads are never wrong.
    #[inline]
    pub fn is_ideal(&self) -> bool {
        matches!(self, Self::Ideal)
    }

    /// See [`Order::store`].
    pub fn store(&mut self, pc: u64, known_at: u64) {
        match self {
            Self::Ideal | Self::Blind => {}
            Self::Conservative(all_known) => *all_known = known_at.max(*all_known),
            Self::Counters(order) => order.store(pc, known_at),
            Self::StoreSets(order) => order.store(pc, known_at),
        }
    }

    /// See [`Order::wait`].
    pub fn wait(&mut self, pc: u64) -> u64 {
        match self {
            Self::Ideal | Self::Blind => 0,
            Self::Conservative(all_known) => *all_known,
            Self::Counters(order) => order.wait(pc),
            Self::StoreSets(order) => order.wait(pc),
        }
    }

    /// See [`Order::collided`].
    pub fn collided(&mut self, pc: u64, store: u64) {
        match self {
            Self::Ideal | Self::Blind | Self::Conservative(_) => {}
            Self::Counters(order) => order.collided(pc, store),
            Self::StoreSets(order) => order.collided(pc, store),
        }
    }

    /// See [`Order::learn_from_load`].
    pub fn learn_from_load(&mut self, pc: u64, passes: bool) {
        match self {
            Self::Ideal | Self::Blind | Self::Conservative(_) => {}
            Self::Counters(order) => order.learn_from_load(pc, passes),
            Self::StoreSets(order) => order.learn_from_load(pc, passes),
        }
    }
}

/// The index of an instruction in a table of `entries` entries.
fn index(pc: u64, entries: usize) -> usize {
    ((pc >> 2) % entries as u64) as usize
}
