//! Distances between NUMA nodes, from a NIC's node. They determine the next node if the NIC's node has no CPUs, or none
//! that may be used.
//!
//! Source: Linux Documentation/ABI/stable/sysfs-devices-node (distance: one number for each online node, in ascending
//! order); ACPI specification, System Locality Information Table (10 within a node; others are larger).

use crate::host::Host;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Distance within a node.
const LOCAL: u32 = 10;
/// Distance to another node if the system does not report it (LOCAL_DISTANCE and REMOTE_DISTANCE of Linux).
const REMOTE: u32 = 20;
const NODES: &str = "sys/devices/system/node";

/// Distances from one node to others. Empty if the system has one node or does not report them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeDistances(pub BTreeMap<u32, u32>);

impl NodeDistances {
    /// Reads the distances from `node`.
    pub fn from(host: &dyn Host, node: u32) -> Self {
        let number = |name: String| name.strip_prefix("node")?.parse().ok();
        let nodes: BTreeSet<u32> = host.names(NODES).into_iter().filter_map(number).collect();
        let text = host.read(&format!("{NODES}/node{node}/distance")).unwrap_or_default();
        let row: Option<Vec<u32>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
        let Some(row) = row.filter(|row| row.len() == nodes.len()) else { return Self::default() };
        let distances: BTreeMap<u32, u32> = nodes.into_iter().zip(row).collect();
        // A node is closest to itself. Distances that contradict this are ignored.
        let is_closest = |own: &u32| distances.iter().all(|(other, far)| *other == node || far > own);
        let is_plausible = distances.len() > 1 && distances.get(&node).is_some_and(is_closest);
        Self(if is_plausible { distances } else { BTreeMap::new() })
    }

    /// Returns whether no distances are known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Distance from `node`, whose distances these are, to `other`.
    pub fn between(&self, node: u32, other: u32) -> u32 {
        self.0.get(&other).copied().unwrap_or(if node == other { LOCAL } else { REMOTE })
    }

    /// `others` by increasing distance from `node`, whose distances `self` contains; at equal distance by number.
    pub fn sorted(&self, node: u32, others: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let mut others: Vec<u32> = others.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
        others.sort_by_key(|other| self.between(node, *other));
        others
    }
}

#[cfg(test)]
mod tests;
