//! The life cycle of a virtual machine: its states and the transitions between them.

use serde::{Deserialize, Serialize};
use std::fmt;

/// State of a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum VmState {
    /// Requested, but not placed.
    Requested,
    /// Placed, but its domain is not created yet.
    Reserved,
    /// Its domain is being defined or started.
    Creating,
    /// Running.
    Running,
    /// Running and being moved to other nodes.
    Moving,
    /// Running and being migrated to another host.
    Migrating,
    /// Being stopped.
    Stopping,
    /// Stopped. It keeps its placement.
    Stopped,
    /// Deleted. Its resources are released.
    Deleted,
    /// Could not be created. It keeps its placement until it is deleted or retried.
    Failed,
}

/// The state requested by the owner of a virtual machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Intent {
    /// Keep it running.
    #[default]
    Run,
    /// Keep it stopped, with its placement reserved.
    Stop,
    /// Delete it.
    Delete,
}

const ALL: [(VmState, &str, &[VmState]); 10] = {
    use VmState::*;
    [
        (Requested, "requested", &[Reserved, Failed, Deleted]),
        (Reserved, "reserved", &[Creating, Stopping, Failed]),
        (Creating, "creating", &[Running, Stopping, Failed]),
        // Returns to `Creating` if its domain has died.
        (Running, "running", &[Moving, Migrating, Stopping, Creating, Failed]),
        (Moving, "moving", &[Running]),
        (Migrating, "migrating", &[Running]),
        (Stopping, "stopping", &[Stopped, Deleted]),
        (Stopped, "stopped", &[Creating, Stopping]),
        (Deleted, "deleted", &[]),
        (Failed, "failed", &[Creating, Stopping]),
    ]
};

impl VmState {
    fn row(self) -> &'static (VmState, &'static str, &'static [VmState]) {
        // The table is in the order of the enum.
        &ALL[self as usize]
    }

    /// Returns whether the transition from this state to `next` is allowed.
    pub fn may_become(self, next: VmState) -> bool {
        self.row().2.contains(&next)
    }

    /// Name of the state.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Looks up a state by its name.
    pub fn named(name: &str) -> Option<Self> {
        ALL.iter().find(|r| r.1 == name).map(|r| r.0)
    }
}

impl fmt::Display for VmState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Intent {
    /// Name of the intent.
    pub fn name(self) -> &'static str {
        match self {
            Intent::Run => "run",
            Intent::Stop => "stop",
            Intent::Delete => "delete",
        }
    }

    /// Looks up an intent by its name.
    pub fn named(name: &str) -> Option<Self> {
        [Intent::Run, Intent::Stop, Intent::Delete].into_iter().find(|i| i.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_in_its_row_and_every_way_ends() {
        for (at, (state, name, next)) in ALL.iter().enumerate() {
            assert_eq!(*state as usize, at);
            assert_eq!(VmState::named(name), Some(*state));
            assert!(!next.contains(state));
        }
        assert!(!VmState::Deleted.may_become(VmState::Running));
        assert!(VmState::Moving.may_become(VmState::Running));
    }
}
