//! Handles hosts that have lost reserved resources, and arbitrates between two agents that claim the same host.
//! `longma_placement::lost_resources` computes the description that retains the lost resources.

use super::ServiceState;
use super::hosts::{CONTACT_INTERVAL, HostState, LostResources, ManagingAgent, SILENCE_TIMEOUT};
use longma_placement::Host;
use longma_placement::Placement;
use longma_placement::lost_resources::{RetainedHost, renumbered, retain_reserved};
use longma_placement::store::{Event, StoreError, Vm, VmState};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of attempts to store a description while concurrent reservations interfere.
const MAX_ATTEMPTS: u32 = 8;
/// Minimum interval between attempts to move a virtual machine off a lost CPU.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Alarm for a host with lost resources.
const LOST_ALARM: &str = "host-lost";
/// Alarm for a host that does not match its description.
const UNDESCRIBED_ALARM: &str = "host-undescribed";
/// Alarm for two machines whose agents claim the same host.
const SECOND_AGENT_ALARM: &str = "second-agent";
/// Error message for the second agent.
pub(crate) const SECOND_AGENT: &str = "the agent of another machine already reports for this host: give \
    each host its own name and token; if that machine is gone, this agent is accepted 30 s after its last \
    report";

impl ServiceState {
    /// Records a host as its agent found it. Lost resources that are reserved stay in the description until they are
    /// released; an alarm is raised, and virtual machines with dedicated lost CPUs are moved. If no description fits
    /// the reservations, the host accepts no more virtual machines, and another alarm is raised.
    pub fn describe(&self, found: &Host) -> Result<(), StoreError> {
        let described = self.describe_retaining(found);
        match &described {
            Err(StoreError::Conflict { what, .. }) if self.store.host(&found.name).is_ok() => {
                self.note_rejected_description(found, what)?;
            }
            Ok(()) if self.host(&found.name, |h| h.rejected_description.take().is_some()) => {
                // The next report lets the host accept virtual machines again.
                self.host(&found.name, HostState::expire_contact);
                self.store.clear_alarm(&found.name, None, UNDESCRIBED_ALARM)?;
            }
            _ => {}
        }
        described
    }

    fn note_rejected_description(&self, found: &Host, what: &str) -> Result<(), StoreError> {
        let name = &found.name;
        let why = format!(
            "its new description contradicts its reservations, so it accepts no virtual machines: {what}"
        );
        let rejected_description = Some((Arc::new(found.clone()), why.clone(), Instant::now()));
        let before =
            self.host(name, |h| std::mem::replace(&mut h.rejected_description, rejected_description));
        self.set_down(name)?;
        self.store.raise_alarm(name, None, UNDESCRIBED_ALARM, 1.0)?;
        if before.is_none_or(|(_, reason, _)| reason != why) {
            (self.log)(&format!("{name}: {why}"));
            let (host, kind) = (Some(name.clone()), "undescribed".to_string());
            self.store.record_event(&Event { host, kind, text: why, ..Event::default() })?;
        }
        Ok(())
    }

    fn describe_retaining(&self, found: &Host) -> Result<(), StoreError> {
        if self.store.host(&found.name).is_ok()
            && let Some(what) = renumbered(found, &self.placements(found)?)
        {
            return Err(StoreError::Conflict { host: found.name.clone(), what });
        }
        let mut last = Ok(());
        for _ in 0..MAX_ATTEMPTS {
            last = self.store.put_host(found, self.overcommit_percent);
            match &last {
                Err(StoreError::Conflict { .. }) => {}
                Err(_) => return last,
                Ok(()) => return self.note_lost(found, None),
            }
            // The host is new, or the description itself is invalid.
            let Ok(stored) = self.store.host(&found.name) else { return last };
            let kept = self.retain(found, &stored.host)?;
            if kept.lost.is_empty() {
                return last;
            }
            let same = kept.host == stored.host;
            let put = if same { Ok(()) } else { self.store.put_host(&kept.host, self.overcommit_percent) };
            match put {
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error),
                Ok(()) => return self.note_lost(found, Some(kept)),
            }
        }
        last
    }

    /// All placements reserved on a host.
    fn placements(&self, host: &Host) -> Result<Vec<Placement>, StoreError> {
        let vms = self.store.host_vms(&host.name)?;
        Ok(vms.into_iter().flat_map(|vm| vm.placement.into_iter().chain(vm.target)).collect())
    }

    fn retain(&self, found: &Host, known: &Host) -> Result<RetainedHost, StoreError> {
        Ok(retain_reserved(found, known, &self.placements(found)?, self.overcommit_percent))
    }

    fn note_lost(&self, found: &Host, kept: Option<RetainedHost>) -> Result<(), StoreError> {
        let problems: Vec<String> = kept.as_ref().map(|k| k.lost.clone()).unwrap_or_default();
        let name = &found.name;
        let before = self.host(name, |h| {
            let before = h.lost.take();
            h.lost = kept.map(|kept| LostResources {
                found: Arc::new(found.clone()),
                dedicated_cpus: kept.dedicated_cpus,
                problems: kept.lost,
                moved: before.as_ref().and_then(|b| b.moved),
            });
            before.map(|b| b.problems).unwrap_or_default()
        });
        if problems.is_empty() {
            // An earlier process may have raised the alarm.
            return self.store.clear_alarm(name, None, LOST_ALARM).map(drop);
        }
        self.store.raise_alarm(name, None, LOST_ALARM, problems.len() as f64)?;
        if problems != before {
            let text = problems.join("; ");
            (self.log)(&format!("{name}: {text}"));
            let (host, kind) = (Some(name.clone()), "lost".to_string());
            self.store.record_event(&Event { host, kind, text, ..Event::default() })?;
        }
        Ok(())
    }

    /// Decides whether a machine's agent may manage a host. It may if it already does, or if no other agent has
    /// reported for a while. Services that share a database agree, because each one rechecks the store after a few
    /// seconds.
    pub fn claim(&self, host: &str, machine: &str) -> Result<bool, StoreError> {
        let now = Instant::now();
        let is_holder = self.host(host, |h| match &mut h.manager {
            Some(manager) if manager.machine == machine && manager.confirmed.elapsed() < CONTACT_INTERVAL => {
                manager.last_report = now;
                Some(true)
            }
            Some(manager)
                if manager.machine != machine && manager.last_report.elapsed() < SILENCE_TIMEOUT =>
            {
                Some(false)
            }
            _ => None,
        });
        if let Some(is_holder) = is_holder {
            return Ok(is_holder);
        }
        let stored = match self.store.host(host) {
            // The agent is about to register the host; the check is repeated then.
            Err(StoreError::Unknown { .. }) => return Ok(true),
            stored => stored?,
        };
        let since = self.host(host, |h| h.seen(stored.seen_at));
        // If no other service uses the database, all reports arrive here, so silence is conclusive.
        let silent = stored.agent.as_deref().filter(|_| !self.shared || since.elapsed() > SILENCE_TIMEOUT);
        let holder = self.store.claim_host(host, machine, silent)?;
        let is_this = holder == machine;
        if is_this {
            let manager = Some(ManagingAgent { machine: holder, last_report: now, confirmed: now });
            self.host(host, |h| h.manager = manager);
        }
        Ok(is_this)
    }

    /// Records that an agent of another machine was rejected.
    pub fn note_second_agent(&self, host: &str) -> Result<(), StoreError> {
        let first = self.host(host, |h| h.refused.replace(Instant::now()).is_none());
        if first {
            (self.log)(&format!("{host}: {SECOND_AGENT}"));
            self.store.raise_alarm(host, None, SECOND_AGENT_ALARM, 1.0)?;
        }
        Ok(())
    }

    /// Clears the alarm when the other agent has not tried again for a while.
    pub fn clear_second_agent(&self, host: &str) -> Result<(), StoreError> {
        let over = self.host(host, |h| h.refused.take_if(|at| at.elapsed() > SILENCE_TIMEOUT).is_some());
        if over { self.store.clear_alarm(host, None, SECOND_AGENT_ALARM).map(drop) } else { Ok(()) }
    }

    /// Checks whether lost resources are still reserved, and orders a move off a lost dedicated CPU.
    pub(crate) fn recheck_lost(&self, name: &str) -> Result<(), StoreError> {
        let rejected_description = self.host(name, |h| h.rejected_description.clone());
        if let Some((found, _, tried)) = rejected_description
            && tried.elapsed() > RETRY_INTERVAL
        {
            // The conflicting reservation may have been released.
            return match self.describe(&found) {
                Err(StoreError::Conflict { .. }) => Ok(()),
                described => described,
            };
        }
        let Some(lost) = self.host(name, |h| h.lost.clone()) else { return Ok(()) };
        let stored = self.store.host(name)?.host;
        let kept = self.retain(&lost.found, &stored)?;
        if kept.host != stored || kept.lost != lost.problems {
            return self.describe(&lost.found);
        }
        if lost.dedicated_cpus.is_empty() || lost.moved.is_some_and(|at| at.elapsed() < RETRY_INTERVAL) {
            return Ok(());
        }
        self.host(name, |h| {
            if let Some(lost) = &mut h.lost {
                lost.moved = Some(Instant::now());
            }
        });
        let vms = self.store.host_vms(name)?;
        let is_affected = |vm: &Vm| {
            let own = vm.placement.as_ref().map(|p| p.tally().exclusive).unwrap_or_default();
            vm.state == VmState::Running && own.iter().any(|(_, cpu)| lost.dedicated_cpus.contains(*cpu))
        };
        for vm in vms.into_iter().filter(is_affected) {
            let own: Vec<u32> = vm.placement.iter().flat_map(|p| &p.cells).map(|c| c.node).collect();
            let all: Vec<u32> = lost.found.nodes.iter().map(|n| n.id).collect();
            let (host, request, place, id) = (name.to_string(), vm.request, vm.placement, vm.id);
            let (send, decided) = std::sync::mpsc::channel();
            self.worker.submit(move |allocator| {
                let scheduler = allocator.scheduler();
                // Close to its memory if possible.
                let near = scheduler.decide_on(&request, &host, &own, &place);
                let _ = send.send(near.or_else(|| scheduler.decide_on(&request, &host, &all, &place)));
            });
            // If the scheduler is busy, or there are no free resources yet, a later report tries again.
            if let Ok(Some(target)) = decided.recv_timeout(Duration::from_secs(1)) {
                (self.log)(&format!("{name}: virtual machine {id} is to move off a missing CPU"));
                drop(self.order(name, id, target));
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_placement::inventory::HostStatus;
    use longma_placement::{SqlStore, Store};
    use longma_topology::Machine;

    fn state(store: &Arc<dyn Store>, shared: bool) -> ServiceState {
        ServiceState::of_store(store, shared)
    }

    fn store(folder: &std::path::Path) -> Arc<dyn Store> {
        let store = SqlStore::open_file(&folder.join("placement.db")).unwrap();
        let host = Host::of_machine(&Machine::open("hygon-8node").unwrap(), "h").unwrap();
        store.put_host(&host, 200).unwrap();
        Arc::new(store)
    }

    fn long_ago() -> Instant {
        Instant::now().checked_sub(SILENCE_TIMEOUT + Duration::from_secs(1)).unwrap()
    }

    #[test]
    fn services_of_one_database_accept_one_machine_for_a_host() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let (one, two) = (state(&store, true), state(&store, true));
        assert!(one.claim("h", "a").unwrap());
        assert!(!two.claim("h", "b").unwrap(), "the other service hears a");
        assert!(one.claim("h", "a").unwrap() && two.claim("h", "a").unwrap(), "it may report to either");
        // The other service has received no report for longer than the timeout.
        let seen = store.host("h").unwrap().seen_at;
        two.host("h", |h| (h.manager, h.store_contact) = (None, Some((seen, long_ago()))));
        assert!(two.claim("h", "b").unwrap());
        // The first service's knowledge is outdated.
        one.host("h", |h| h.manager.as_mut().unwrap().confirmed = long_ago());
        assert!(!one.claim("h", "a").unwrap(), "b manages the host now");
    }

    #[test]
    fn a_silent_or_undescribed_host_stays_down_when_undrained() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let state = state(&store, false);
        let undrained = |looks: &dyn Fn(&mut HostState)| {
            state.set_status(&*state.store, "h", HostStatus::Draining).unwrap();
            state.host("h", |h| looks(h));
            state.set_status(&*state.store, "h", HostStatus::Up).unwrap();
            store.host("h").unwrap().status
        };
        assert_eq!(undrained(&|h| h.last_report = Some(Instant::now())), HostStatus::Up);
        assert_eq!(state.host("h", |h| h.all_problems()), Vec::<String>::new());
        let found = Arc::new(store.host("h").unwrap().host);
        let rejected_description =
            |h: &mut HostState| h.rejected_description = Some((found.clone(), "why".into(), Instant::now()));
        assert_eq!(undrained(&rejected_description), HostStatus::Down);
        let seen = store.host("h").unwrap().seen_at;
        let silent = |h: &mut HostState| {
            (h.rejected_description, h.last_report, h.store_contact) =
                (None, Some(long_ago()), Some((seen, long_ago())));
        };
        assert_eq!(undrained(&silent), HostStatus::Down);
        let problems = state.host("h", |h| h.all_problems());
        assert!(
            problems.len() == 1 && problems[0].contains("has not reported here for 31 s"),
            "{problems:?}"
        );
    }

    #[test]
    fn a_service_with_its_own_database_accepts_a_restarted_machine_immediately() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        assert!(state(&store, false).claim("h", "before").unwrap());
        let after = state(&store, false);
        assert!(after.claim("h", "after").unwrap());
        assert!(!after.claim("h", "other").unwrap());
    }
}
