//! Failures of points, classified by cause.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Why a point has no metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The cause.
    pub kind: FailureKind,
    /// The error, its location, and the remedy.
    pub message: String,
}

/// Causes of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureKind {
    /// The point's parameters are invalid.
    Refused,
    /// The run failed.
    Failed,
    /// The host caused the failure: out of memory, disk full, a limit, a signal, a timeout. The point counts as not
    /// run.
    #[serde(alias = "late")]
    Host,
    /// The campaign was stopped. The point counts as not run.
    Stopped,
}

impl FailureKind {
    /// Returns whether the point itself causes the failure, so that another run would fail too. Only such failures are
    /// stored.
    pub fn is_of_point(self) -> bool {
        matches!(self, Self::Refused | Self::Failed)
    }
}

impl Failure {
    /// The point's parameters are invalid.
    pub fn refused(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Refused, message: message.into() }
    }

    /// The run failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Failed, message: message.into() }
    }

    /// The host caused the failure.
    pub fn host(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Host, message: message.into() }
    }

    /// The run exceeded `limit`. A faster or less loaded host may need less time.
    pub fn late(limit: Duration) -> Self {
        Self::host(format!("took longer than the experiment's time_limit of {} s", limit.as_secs_f64()))
    }

    /// The campaign was stopped.
    pub fn stopped() -> Self {
        Self { kind: FailureKind::Stopped, message: "stopped before it finished".into() }
    }
}
