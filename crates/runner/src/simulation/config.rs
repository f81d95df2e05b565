//! What is simulated, how closely, and why it may not be possible.
//! Not the machine, which is a machine file's; nor which of them cannot be simulated at all (see `check.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;

use longma_memory::placement::{Policy, PolicyError};
use longma_memory::{BuildError, Detail};
use longma_sim::{ClockError, Region, Time};
use longma_timing::{ModelError, ModelKind};
use longma_topology::Machine;

use super::timeline::Timeline;
use crate::devices::{DevicesError, WireEnd};

/// Instructions before a region of interest that warm the models, if nobody says otherwise: some seven bytes of each are kept, and
/// they fill the largest shared cache of the machines that come along (16 MiB) if one in eighty touches a new line.
pub const WARMED_INSTRUCTIONS: u64 = 20_000_000;

/// What of the run before its region of interest warms the models, which count nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warm {
    /// The last so many instructions: kept, and run through the models when the region begins; see [`WARMED_INSTRUCTIONS`]. That takes no
    /// time of the program's or of devices', whose own accesses have all been before.
    Last(u64),
    /// All, while it runs: through caches, TLBs and memory as at level `cache`. Predictors and pipelines begin cold.
    /// Source: functional warming in SMARTS (Wunderlich et al., ISCA 2003).
    All,
}

/// How closely time is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// No time but that an instruction takes a cycle, and nothing is counted: for programs that use devices, which act in time.
    Functional,
    /// Caches, TLBs and coherence are counted; an instruction takes a cycle.
    Cache,
    /// Cycles, by the core's model or the one given.
    Timing(Option<ModelKind>),
}

impl Level {
    /// How much of memory is modelled.
    pub(super) fn detail(self) -> Detail {
        match self {
            Self::Functional | Self::Cache => Detail::Counts,
            Self::Timing(_) => Detail::Timing,
        }
    }
}

/// Asks for the process to be saved.
pub type Save = Box<dyn Fn() + Send>;

/// What to simulate, and how.
pub struct SimulationConfig {
    /// The machine.
    pub machine: Arc<Machine>,
    /// Which of its hosts.
    pub host: usize,
    /// How closely.
    pub level: Level,
    /// Which part of the run counts.
    pub region: Region,
    /// What of the run before the region of interest goes through the models uncounted, so that it does not begin with cold caches.
    pub warm: Warm,
    /// Where pages are put.
    pub placement: Policy,
    /// The seed of all that is random.
    pub seed: u64,
    /// When the process was saved, if it was brought back from a checkpoint: counting begins there at once.
    pub restored_at: Option<Time>,
    /// Asks for a checkpoint, once, where the region of interest begins or the program says so.
    pub save: Option<Save>,
    /// Where a trace is written.
    pub timeline: Option<Timeline>,
    /// What is at the other ends of the wires of Ethernet devices, by their names.
    pub wires: BTreeMap<String, WireEnd>,
}

/// A machine that cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// Its memory cannot be modelled.
    #[error("the machine's memory cannot be modelled: {0}")]
    Memory(#[from] BuildError),
    /// A core cannot be modelled.
    #[error("core type `{core}` cannot be modelled: {error}")]
    Core {
        /// The core's name in the machine file.
        core: String,
        /// Why.
        error: ModelError,
    },
    /// A core's clock is no clock.
    #[error("core type `{core}` cannot be modelled: {error}")]
    Clock {
        /// The core's name in the machine file.
        core: String,
        /// Why.
        error: ClockError,
    },
    /// The machine has no such host.
    #[error("the machine {machine} has no host number {host}: it has {hosts}")]
    NoHost {
        /// The machine.
        machine: String,
        /// The host asked for, from 0.
        host: usize,
        /// Hosts there are.
        hosts: usize,
    },
    /// Its devices cannot be modelled.
    #[error("the machine's devices cannot be modelled: {0}")]
    Devices(#[from] DevicesError),
    /// The host has no core.
    #[error("the machine {0} has no core on its first host: programs need one")]
    NoCore(String),
    /// Pages cannot be placed so.
    #[error("memory cannot be placed as asked: {0}")]
    Placement(#[from] PolicyError),
}
