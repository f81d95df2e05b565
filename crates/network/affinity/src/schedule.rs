//! How a thread is scheduled.

use serde::{Deserialize, Serialize};

/// Scheduling policy of a thread with its priorities, as in sched(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Schedule {
    /// Number of the policy: 0 is the default one.
    pub policy: u32,
    /// Priority of a real-time policy.
    pub priority: u32,
    /// Nice value of other policies.
    pub nice: i32,
}
