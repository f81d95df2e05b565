//! Why a point gave no metrics, and whose fault that is.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Why a point gave no metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Which kind.
    pub kind: FailureKind,
    /// What happened, where, and what to do.
    pub message: String,
}

/// The kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureKind {
    /// The point cannot be run as it is given.
    Refused,
    /// It ran and failed.
    Failed,
    /// The host let it down: no memory, no room, a limit, a signal from outside, no time. It says nothing of the point, which counts as not
    /// run.
    #[serde(alias = "late")]
    Host,
    /// Somebody stopped the campaign; the point counts as not run.
    Stopped,
}

impl FailureKind {
    /// Whether the point itself decides the failure, so that another run would fail too. Only such failures are kept.
    pub fn is_of_point(self) -> bool {
        matches!(self, Self::Refused | Self::Failed)
    }
}

impl Failure {
    /// The point cannot be run as it is given.
    pub fn refused(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Refused, message: message.into() }
    }

    /// It ran and failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Failed, message: message.into() }
    }

    /// The host let it down.
    pub fn host(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Host, message: message.into() }
    }

    /// It took longer than `limit`: a quicker host, or one with less to do, may need less.
    pub fn late(limit: Duration) -> Self {
        Self::host(format!("took longer than the experiment's time_limit of {} s", limit.as_secs_f64()))
    }

    /// The campaign was stopped.
    pub fn stopped() -> Self {
        Self { kind: FailureKind::Stopped, message: "stopped before it was done".into() }
    }
}
