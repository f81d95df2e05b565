//! Reconstructs the tuner's changes from its decision log: for each setting its changes in order, and whether they were
//! undone.

use super::log::{Decision, DecisionKind};
use serde::Serialize;

/// A change of a setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Time in seconds since 1970.
    pub at: f64,
    /// CPU list before.
    pub from: String,
    /// CPU list after.
    pub to: String,
    /// The reason.
    pub why: String,
}

/// The changes of a setting during one run of the tuner.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Changed {
    /// An interrupt, a queue or a thread.
    pub subject: String,
    /// Its changes, oldest first; at least one.
    pub changes: Vec<Change>,
}

/// A run of the tuner.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Run {
    /// When it began, in seconds since 1970; `None` if the log no longer has its beginning.
    pub begun: Option<f64>,
    /// When it ended and restored all settings; `None` if it still runs or was killed.
    pub ended: Option<f64>,
    /// How it ended, and the restored settings.
    pub end: Option<String>,
    /// The changed settings, in the order of their first changes.
    pub changed: Vec<Changed>,
}

/// The runs in a log, oldest first. Runs without a change are included, dry runs are not.
pub fn runs(decisions: &[Decision]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut is_open = false;
    for decision in decisions {
        match decision.act {
            DecisionKind::Begun => {
                is_open = !decision.why.contains(", dry run");
                if is_open {
                    runs.push(Run { begun: Some(decision.at), ..Run::default() });
                }
            }
            DecisionKind::Moved => {
                // The log is rotated, so a run's beginning may be gone.
                if !is_open {
                    runs.push(Run::default());
                    is_open = true;
                }
                if let Some(run) = runs.last_mut() {
                    run.add(decision);
                }
            }
            DecisionKind::Ended if is_open => {
                if let Some(run) = runs.last_mut() {
                    (run.ended, run.end) = (Some(decision.at), Some(decision.why.clone()));
                }
                is_open = false;
            }
            DecisionKind::Ended
            | DecisionKind::WouldMove
            | DecisionKind::LeftAlone
            | DecisionKind::Missing => {}
        }
    }
    runs
}

impl Run {
    fn add(&mut self, decision: &Decision) {
        let words = |text: &Option<String>| text.clone().unwrap_or_else(|| "?".into());
        let change = Change {
            at: decision.at,
            from: words(&decision.from),
            to: words(&decision.to),
            why: decision.why.clone(),
        };
        match self.changed.iter_mut().find(|of| of.subject == decision.subject) {
            Some(of) => of.changes.push(change),
            None => self.changed.push(Changed { subject: decision.subject.clone(), changes: vec![change] }),
        }
    }
}

#[cfg(test)]
mod tests;
