//! The configuration of a simulation, and the errors of building it.

use std::collections::BTreeMap;
use std::sync::Arc;

use longma_memory::placement::{Policy, PolicyError};
use longma_memory::{BuildError, Detail};
use longma_sim::{ClockError, Region, Time};
use longma_timing::{ModelError, ModelKind};
use longma_topology::Machine;

use super::{
    limits::{Limits, Snapshots},
    sampling::SamplingPlan,
    timeline::Timeline,
};
use crate::devices::{DevicesError, WireEnd};

/// The default number of instructions that warm the models before a region of interest. Each occupies about seven bytes
/// while it is stored. They fill the largest shared cache of the shipped machines (16 MiB) if one in eighty
/// instructions touches a new line.
pub const WARMED_INSTRUCTIONS: u64 = 20_000_000;

/// How instructions before the region of interest warm the models. They are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warm {
    /// The last instructions are stored and replayed through the models when the region begins; see
    /// [`WARMED_INSTRUCTIONS`]. No simulated time passes for the program and the devices during the replay. Device
    /// accesses are not replayed.
    Last(u64),
    /// All instructions warm caches, TLBs and memory while they execute, as at level `cache`. Branch predictors and
    /// pipelines start cold. Source: functional warming in SMARTS (Wunderlich et al., ISCA 2003).
    All,
}

/// The level of detail of the timing model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Each instruction takes one cycle, and statistics are not counted. For programs that use devices, which need
    /// simulated time.
    Functional,
    /// Caches, TLBs and coherence are modelled and counted; each instruction takes one cycle.
    Cache,
    /// Cycle-level timing, with the core model of the machine file or the given one.
    Timing(Option<ModelKind>),
}

impl Level {
    /// The level of detail of the memory model.
    pub(super) fn detail(self) -> Detail {
        match self {
            Self::Functional | Self::Cache => Detail::Counts,
            Self::Timing(_) => Detail::Timing,
        }
    }
}

/// Requests a checkpoint.
pub type Save = Box<dyn Fn() + Send>;

/// The configuration of a simulation.
pub struct TimingSimulationConfig {
    /// The machine.
    pub machine: Arc<Machine>,
    /// The index of the host to simulate.
    pub host: usize,
    /// The level of detail.
    pub level: Level,
    /// The part of the run to count.
    pub region: Region,
    /// How to warm the models before the region of interest.
    pub warm: Warm,
    /// Which instructions are timed; `None` for all. Sampling requires level `timing`, a region that is the whole run,
    /// and a program with one thread.
    pub sampling: Option<SamplingPlan>,
    /// The page placement policy.
    pub placement: Policy,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The time of the checkpoint from which the process was restored, if it was. Counting then starts immediately.
    pub restored_at: Option<Time>,
    /// Requests a checkpoint, once, when the region of interest begins or the program asks for one.
    pub save: Option<Save>,
    /// The trace to write, if any.
    pub timeline: Option<Timeline>,
    /// The conditions under which the run ends before its program does.
    pub limits: Limits,
    /// Statistics to write while the program runs, if any.
    pub snapshots: Option<Snapshots>,
    /// The remote ends of the wires of Ethernet devices, by device name.
    pub wires: BTreeMap<String, WireEnd>,
}

/// Why a machine cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The memory cannot be modelled.
    #[error("the machine's memory cannot be modelled: {0}")]
    Memory(#[from] BuildError),
    /// A core cannot be modelled.
    #[error("core type `{core}` cannot be modelled: {error}")]
    Core {
        /// The core type's name in the machine file.
        core: String,
        /// The cause.
        error: ModelError,
    },
    /// A core has an invalid clock.
    #[error("core type `{core}` cannot be modelled: {error}")]
    Clock {
        /// The core type's name in the machine file.
        core: String,
        /// The cause.
        error: ClockError,
    },
    /// The machine does not have this host.
    #[error("machine {machine} has no host {host}: it has {hosts}, counted from 0")]
    NoHost {
        /// The machine's name.
        machine: String,
        /// The requested host, counted from 0.
        host: usize,
        /// The number of hosts.
        hosts: usize,
    },
    /// The devices cannot be modelled.
    #[error("the machine's devices cannot be modelled: {0}")]
    Devices(#[from] DevicesError),
    /// The host has no core.
    #[error("machine {0} has no core on its first host; programs need at least one")]
    NoCore(String),
    /// The placement policy is not possible on this machine.
    #[error("the memory placement policy cannot be applied: {0}")]
    Placement(#[from] PolicyError),
}
