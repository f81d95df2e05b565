//! Whether programs can be run on a machine in simulated time: everything that a run builds is built, and thrown away.
//! Not what is wrong with a machine file: `longma_topology` checks that first.

use std::collections::BTreeMap;
use std::sync::Arc;

use longma_sim::Region;
use longma_topology::Machine;

use super::{Level, Policy, Simulation, SimulationConfig, SimulationError, Warm};

/// Why a run on the first host of `machine` would be refused, at whatever level; each reason once.
pub fn refusals(machine: &Arc<Machine>) -> Vec<SimulationError> {
    let mut refusals: Vec<SimulationError> = Vec::new();
    for level in [Level::Cache, Level::Timing(None)] {
        let Err(refusal) = Simulation::new(SimulationConfig {
            machine: machine.clone(),
            host: 0,
            level,
            region: Region::Whole,
            warm: Warm::Last(0),
            placement: Policy::default(),
            seed: 0,
            restored_at: None,
            save: None,
            timeline: None,
            wires: BTreeMap::new(),
        }) else {
            continue;
        };
        if refusals.iter().all(|known| known.to_string() != refusal.to_string()) {
            refusals.push(refusal);
        }
    }
    refusals
}

impl SimulationError {
    /// The table of the machine file that it is about.
    pub fn table(&self) -> String {
        match self {
            Self::Core { core, .. } | Self::Clock { core, .. } => format!("[cores.{core}]"),
            _ => "[[hosts]]".into(),
        }
    }
}
