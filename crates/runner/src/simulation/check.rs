//! Checks whether a machine can be simulated, by building all models of a run and discarding them. `longma_topology`
//! has already validated the machine file.

use std::collections::BTreeMap;
use std::sync::Arc;

use longma_sim::Region;
use longma_topology::Machine;

use super::{Level, Limits, Policy, SimulationError, TimingSimulation, TimingSimulationConfig, Warm};

/// The errors of simulating the first host of `machine` at any level, without duplicates.
pub fn refusals(machine: &Arc<Machine>) -> Vec<SimulationError> {
    let mut refusals: Vec<SimulationError> = Vec::new();
    for level in [Level::Cache, Level::Timing(None)] {
        let Err(refusal) = TimingSimulation::new(TimingSimulationConfig {
            machine: machine.clone(),
            host: 0,
            level,
            region: Region::Whole,
            warm: Warm::Last(0),
            sampling: None,
            placement: Policy::default(),
            seed: 0,
            restored_at: None,
            save: None,
            timeline: None,
            limits: Limits::default(),
            snapshots: None,
            wires: BTreeMap::new(),
        }) else {
            continue;
        };
        if refusals.iter().all(|earlier| earlier.to_string() != refusal.to_string()) {
            refusals.push(refusal);
        }
    }
    refusals
}

impl SimulationError {
    /// The table of the machine file that the error refers to.
    pub fn table(&self) -> String {
        match self {
            Self::Core { core, .. } | Self::Clock { core, .. } => format!("[cores.{core}]"),
            _ => "[[hosts]]".into(),
        }
    }
}
