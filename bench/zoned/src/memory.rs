//! The memory limit of the engines' processes, including the page cache: a control group for each piece.

use crate::Outcome;
use control_group::ControlGroup;
use std::process::Command;

#[path = "../../../crates/storage/zoned/tests/support/control_group.rs"]
mod control_group;

/// A control group; removed when dropped.
#[derive(Debug)]
pub struct Limit(ControlGroup);

impl Limit {
    /// Creates a group with this memory limit in bytes.
    pub fn new(bytes: u64) -> Outcome<Self> {
        ControlGroup::new("longma-bench", bytes).map(Self).map_err(|why| without(&why))
    }

    /// Makes a command run in the group from its first instruction on.
    pub fn hold(&self, command: &mut Command) {
        self.0.hold(command);
    }
}

/// The error if there can be no limit.
fn without(why: &str) -> String {
    format!(
        "cannot limit the engines' memory by a control group ({why}): run this as root or under `systemd-run --user --scope -p Delegate=yes`, or \
         say --no-memory-limit, and LMDB may use all of the page cache"
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_unavailable_counter_is_reported_with_a_remedy() {
        let error = super::without("no group");
        assert!(error.contains("--no-memory-limit") && error.contains("systemd-run"), "{error}");
    }
}
