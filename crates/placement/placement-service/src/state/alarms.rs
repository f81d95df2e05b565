//! Alarms: overloaded nodes, silent agents, and a database file that was moved.

use super::ServiceState;
use super::hosts::SILENCE_TIMEOUT;
use longma_locks::IgnorePoison;
use longma_placement::host::NodeLoad;
use longma_placement::monitor::{Change, Threshold};
use longma_placement::store::{Alarm, StoreError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Samples arrive about every two seconds, so an overload raises an alarm after ten seconds.
pub(super) const CPU_THRESHOLD: Threshold = Threshold { raise: 0.95, clear: 0.85, samples: 5 };
pub(super) const MEMORY_THRESHOLD: Threshold = Threshold { raise: 0.95, clear: 0.90, samples: 5 };

impl ServiceState {
    /// Records the load of a host's nodes: raises and clears their alarms, and informs the scheduler.
    pub(super) fn record_load(&self, host: &str, load: Vec<NodeLoad>) -> Result<(), StoreError> {
        let nodes = self.store.host(host)?.host.nodes;
        let mut changes = Vec::new();
        for (kind, monitor) in self.monitors.lock().ignore_poison().iter_mut() {
            for (node, load) in nodes.iter().zip(&load) {
                let value = if *kind == "cpu" { load.cpu } else { load.memory };
                let change = monitor.sample(host, node.id, value.into());
                changes.extend(change.map(|change| (*kind, node.id, change)));
            }
        }
        for (kind, node, change) in changes {
            match change {
                Change::Raised(value) => self.store.raise_alarm(host, Some(node), kind, value)?,
                Change::Cleared => self.store.clear_alarm(host, Some(node), kind)?,
            };
        }
        let host = host.to_string();
        self.worker.submit(move |allocator| {
            allocator.scheduler().set_load(&host, &load);
        });
        Ok(())
    }

    /// Marks hosts with silent agents as down and raises an alarm.
    pub fn detect_silent_agents(&self) -> Result<(), StoreError> {
        for (name, seen_at) in &self.store.last_reports()? {
            self.clear_second_agent(name)?;
            let (last_report, store_contact) = self.host(name, |h| (h.last_report, h.seen(*seen_at)));
            let last_report = last_report.map_or(store_contact, |last_report| last_report.max(store_contact));
            if last_report.elapsed() < SILENCE_TIMEOUT {
                continue;
            }
            self.set_down(name)?;
            self.store.raise_alarm(name, None, "agent-silent", last_report.elapsed().as_secs_f64())?;
            self.host(name, |h| h.contact_stored = None);
        }
        Ok(())
    }

    /// Checks that the database file is in its place, and logs when it was moved or is back.
    pub fn check_database_file(&self) {
        let mut since = self.database_moved_at.lock().ignore_poison();
        match (self.store.check_files_in_place(), *since) {
            (Err(error), None) => {
                (self.log)(&error.to_string());
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                *since = Some(now.map_or(0, |now| now.as_secs() as i64));
            }
            (Ok(()), Some(_)) => {
                (self.log)("the database file is back in its place; the service writes to it again");
                *since = None;
            }
            _ => {}
        }
    }

    /// An alarm if the database file was moved.
    pub fn database_moved_alarm(&self) -> Option<Alarm> {
        let raised_at = (*self.database_moved_at.lock().ignore_poison())?;
        let (host, kind) = ("-".into(), "database-moved".into());
        Some(Alarm { host, node: None, kind, value: 1.0, raised_at, cleared_at: None })
    }
}
