//! The states of a virtual machine and the ways between them.
//! Not what is done on the way (`reconcile`).

use serde::{Deserialize, Serialize};
use std::fmt;

/// How far a virtual machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum VmState {
    /// Asked for, without a place.
    Requested,
    /// It has a place; nothing is made there yet.
    Reserved,
    /// Its domain is being made or started.
    Creating,
    /// It runs where it should.
    Running,
    /// It runs and is on its way to other nodes.
    Moving,
    /// It is being stopped.
    Stopping,
    /// It does not run and keeps its place.
    Stopped,
    /// It is gone and its place is free.
    Deleted,
    /// It could not be made; it keeps its place until it is deleted or tried again.
    Failed,
}

/// What the owner of a virtual machine wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Intent {
    /// It runs.
    #[default]
    Run,
    /// It keeps its place and does not run.
    Stop,
    /// It is gone.
    Delete,
}

const ALL: [(VmState, &str, &[VmState]); 9] = {
    use VmState::*;
    [
        (Requested, "requested", &[Reserved, Failed, Deleted]),
        (Reserved, "reserved", &[Creating, Stopping, Failed]),
        (Creating, "creating", &[Running, Stopping, Failed]),
        // Back to creating when its domain has died.
        (Running, "running", &[Moving, Stopping, Creating, Failed]),
        (Moving, "moving", &[Running]),
        (Stopping, "stopping", &[Stopped, Deleted]),
        (Stopped, "stopped", &[Creating, Stopping]),
        (Deleted, "deleted", &[]),
        (Failed, "failed", &[Creating, Stopping]),
    ]
};

impl VmState {
    fn row(self) -> &'static (VmState, &'static str, &'static [VmState]) {
        // The table is in the order of the states.
        &ALL[self as usize]
    }

    /// Whether there is a way from this state to `next`.
    pub fn may_become(self, next: VmState) -> bool {
        self.row().2.contains(&next)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The state of this name.
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
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Intent::Run => "run",
            Intent::Stop => "stop",
            Intent::Delete => "delete",
        }
    }

    /// The intent of this name.
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
