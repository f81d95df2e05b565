//! Runs the tuner over a recording, as in a dry run.

use super::Recording;
use crate::interface;
use crate::journal::JournalError;
use crate::setting::Interface;
use crate::tune::log::{Decision, DecisionKind};
use crate::tune::{CONFIRM_INTERVAL, Exclusions, Tuner};
use std::collections::BTreeSet;

/// Maximum number of steps until the tuner has nothing to confirm. Each step observes the same recording.
const MAX_STEPS: u32 = 20;

/// The decisions of the tuner on the recorded flows of these interfaces, or of all.
///
/// # Errors
/// None in practice: a dry run has no journal.
pub fn dry_run(
    recording: &Recording,
    interfaces: &[Interface],
    exclusions: Exclusions,
) -> Result<Vec<Decision>, JournalError> {
    let mut observation = recording.observation();
    if !interfaces.is_empty() {
        let nics = interfaces.iter().filter_map(|name| interface::read(recording, name));
        let nics: Vec<interface::Nic> = nics.collect();
        let physical: BTreeSet<&Interface> =
            nics.iter().flat_map(|nic| nic.physical()).map(|nic| &nic.name).collect();
        observation.flows.retain(|flow| interfaces.contains(&flow.interface));
        observation.queues.retain(|queue| physical.contains(&queue.interface));
    }
    let mut tuner = Tuner::new(exclusions);
    let mut decisions = Vec::new();
    for step in 0..MAX_STEPS {
        decisions.extend(tuner.step(&observation, None, CONFIRM_INTERVAL * step)?);
        if !tuner.is_waiting() {
            break;
        }
    }
    decisions.sort_by_key(|decision: &Decision| decision.act == DecisionKind::WouldMove);
    Ok(decisions)
}
