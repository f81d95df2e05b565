//! Migrations that this service has ordered, and hosts that are to be emptied. The source's agent performs a migration,
//! and the service orders the target's agent to prepare its host. State that must survive a restart is in the store,
//! where an agent finds an interrupted migration.

use super::ServiceState;
use super::hosts::HostState;
use crate::problem::HttpProblem;
use crate::wire::{OrderDone, OrderKind, Preparation, ProblemKind};
use longma_locks::IgnorePoison;
use longma_placement::allocator::AllocateError;
use longma_placement::inventory::HostStatus;
use longma_placement::scheduler::{HostVerdict, NoPlacement};
use longma_placement::store::{Intent, StoreError, Vm, VmId, VmState};
use longma_placement::{Placement, Store};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// If the source's agent does not answer for this time, the service forgets the migration; the agent ends it.
const FORGET_AFTER: Duration = Duration::from_secs(900);
/// The interval before another attempt to migrate a virtual machine that could not leave a host.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// First protocol version whose agents migrate.
const MIGRATING_PROTOCOL: u32 = 2;

/// A migration that this service has ordered.
pub(super) struct OrderedMigration {
    /// Number of the source's order.
    number: u64,
    source: String,
    target: Placement,
    /// Name of the token on whose behalf the migration is made.
    actor: String,
    /// The answer of the target's agent; `None` before it is asked.
    prepared: Option<watch::Sender<Preparation>>,
}

/// Why a virtual machine could not leave its host, and the time of the attempt.
pub(crate) type Stuck = (Instant, String);

impl ServiceState {
    /// Orders a migration to `to`, or to the best host, on behalf of `actor`. Returns a receiver for the result, which may
    /// take minutes.
    pub async fn migrate(
        self: &Arc<Self>,
        vm: &Vm,
        to: Option<String>,
        actor: &str,
    ) -> Result<oneshot::Receiver<OrderDone>, HttpProblem> {
        let id = vm.id;
        let Some(own) = vm.placement.as_ref().filter(|_| vm.state == VmState::Running) else {
            let detail = format!("virtual machine {id} is {}; only a running one can migrate", vm.state);
            return Err(HttpProblem::new(ProblemKind::WrongState, detail));
        };
        if !own.devices.is_empty() {
            let devices = own.devices.join(", ");
            let detail =
                format!("virtual machine {id} has devices of {}, which cannot move: {devices}", own.host);
            return Err(HttpProblem::new(ProblemKind::WrongState, detail));
        }
        if to.as_deref() == Some(own.host.as_str()) {
            let detail =
                format!("virtual machine {id} is on {} already; rebind moves it to other nodes", own.host);
            return Err(HttpProblem::new(ProblemKind::WrongState, detail));
        }
        if let Some(host) = to.clone() {
            self.with(move |state| state.store.host(&host).map(drop)).await?;
        }
        let only = to.clone();
        let decided = self.worker.query(move |allocator| allocator.migration_target(id, only.as_deref()));
        let target = match decided.await? {
            Ok(target) => target,
            Err(error) => return Err(self.no_target(vm, to, error).await?),
        };
        for host in [&own.host, &target.host] {
            self.must_migrate(host)?;
        }
        let (source, destination) = (own.host.clone(), target.host.clone());
        let number = self.next_order.fetch_add(1, Ordering::Relaxed);
        self.register(id, number, &source, &target, actor)?;
        let ordered = self.order_numbered(number, &source, id, target, OrderKind::Migrate);
        let (send, receive) = oneshot::channel();
        let state = self.clone();
        tokio::spawn(async move {
            let done = tokio::time::timeout(FORGET_AFTER, ordered).await;
            state.unregister(id, Some(number));
            state.notify(&destination);
            match done {
                // Fails if the caller no longer waits.
                Ok(Ok(done)) => drop(send.send(done)),
                _ => drop(state.cancel(&source, number)),
            }
        });
        Ok(receive)
    }

    /// Error for a virtual machine that has no place on another host.
    fn cannot_leave(&self, error: AllocateError) -> HttpProblem {
        match error {
            AllocateError::NoPlacement(NoPlacement::NoFit { hosts: 0 }) => {
                HttpProblem::new(ProblemKind::NoRoom, "there is no other host: start an agent on one".into())
            }
            error => HttpProblem::of_allocation(error, &self.log),
        }
    }

    /// Error for a virtual machine that fits on no other host. If the request named the host, or there is only one other,
    /// explains which resources it lacks.
    async fn no_target(
        &self,
        vm: &Vm,
        to: Option<String>,
        error: AllocateError,
    ) -> Result<HttpProblem, HttpProblem> {
        let hosts = match &error {
            AllocateError::NoPlacement(NoPlacement::NoFit { hosts }) => *hosts,
            _ => 0,
        };
        if hosts != 1 {
            return Ok(self.cannot_leave(error));
        }
        let (request, only) = (vm.request.clone(), to.clone());
        let explained =
            self.worker.query(move |allocator| allocator.scheduler().explain(&request, only.as_deref(), 2));
        let own = vm.placement.as_ref().map(|place| &*place.host);
        let other = explained.await?.ok().and_then(|explanation| {
            explanation.hosts.into_iter().find(|verdict| Some(&*verdict.host) != own)
        });
        let reason = other.as_ref().and_then(HostVerdict::reason);
        let name = to.or(other.map(|verdict| verdict.host)).unwrap_or_else(|| "the other host".into());
        let detail = reason
            .unwrap_or_else(|| format!("it does not fit on {name} at present, or its groups forbid it"));
        Ok(HttpProblem::new(ProblemKind::NoRoom, detail))
    }

    /// Rejects a migration if the agent of `host` cannot take part.
    fn must_migrate(&self, host: &str) -> Result<(), HttpProblem> {
        if !self.is_connected(host) {
            let detail = format!(
                "the agent of {host} is silent or reports to another service; both hosts of a migration must report to \
                 the same service"
            );
            return Err(HttpProblem::new(ProblemKind::AgentNotHere, detail));
        }
        let Some(protocol) = self.host(host, |h| h.protocol) else {
            // The agent was at work when this service started, and has reported nothing else since.
            let detail = format!("the agent of {host} has not sent a full report since the service started");
            return Err(HttpProblem::new(ProblemKind::AgentNotHere, detail));
        };
        if protocol < MIGRATING_PROTOCOL {
            let detail =
                format!("the agent of {host} is of an older version, which cannot migrate: update it");
            return Err(HttpProblem::new(ProblemKind::WrongState, detail));
        }
        Ok(())
    }

    /// Notes a migration. An agent performs one order at a time, so each host takes part in one migration.
    fn register(
        &self,
        id: VmId,
        number: u64,
        source: &str,
        target: &Placement,
        actor: &str,
    ) -> Result<(), HttpProblem> {
        let mut migrations = self.migrations.lock().ignore_poison();
        for host in [source, target.host.as_str()] {
            let takes_part = |other: &OrderedMigration| other.source == host || other.target.host == host;
            if let Some((other, _)) = migrations.iter().find(|(_, other)| takes_part(other)) {
                let detail =
                    format!("{host} takes part in the migration of virtual machine {other}: try again later");
                return Err(HttpProblem::new(ProblemKind::Busy, detail));
            }
        }
        let (source, target, actor) = (source.to_string(), target.clone(), actor.to_string());
        migrations.insert(id, OrderedMigration { number, source, target, actor, prepared: None });
        Ok(())
    }

    /// Forgets a migration if it has the order number `number`.
    fn unregister(&self, id: VmId, number: Option<u64>) {
        let mut migrations = self.migrations.lock().ignore_poison();
        if migrations.get(&id).is_some_and(|ordered| number.is_none_or(|number| number == ordered.number)) {
            migrations.remove(&id);
        }
    }

    /// The store that acts on behalf of the user who ordered the migration.
    fn store_of_migration(&self, id: VmId) -> Arc<dyn Store> {
        let migrations = self.migrations.lock().ignore_poison();
        match migrations.get(&id) {
            Some(ordered) => self.store.on_behalf_of(&ordered.actor),
            None => self.store.clone(),
        }
    }

    /// Begins a migration that was ordered. The agent repeats the target, which must be the ordered one.
    pub fn begin_migration(&self, id: VmId, target: &Placement) -> Result<Vm, StoreError> {
        let is_ordered = self.migrations.lock().ignore_poison().get(&id).is_some_and(|o| o.target == *target);
        if !is_ordered {
            let what = format!("this migration of virtual machine {id} was not ordered");
            return Err(StoreError::Conflict { host: target.host.clone(), what });
        }
        self.store_of_migration(id).begin_migration(id, target)
    }

    /// Ends a migration, and notifies the agents of both hosts.
    pub fn end_migration(&self, id: VmId, problem: Option<&str>) -> Result<Vm, StoreError> {
        let hosts = self.store.vm(id)?;
        let ended = self.store_of_migration(id).end_migration(id, problem)?;
        self.unregister(id, None);
        for place in hosts.placement.iter().chain(&hosts.target) {
            self.notify(&place.host);
        }
        Ok(ended)
    }

    /// Orders the target's agent to prepare its host, and waits at most `wait` for the answer.
    pub async fn prepare_migration(self: &Arc<Self>, id: VmId, wait: Duration) -> Preparation {
        let gone = || Preparation::Refused("the service has not ordered this migration".into());
        let (mut answer, is_new) = {
            let mut migrations = self.migrations.lock().ignore_poison();
            let Some(ordered) = migrations.get_mut(&id) else { return gone() };
            let is_new = ordered.prepared.is_none();
            let sender = ordered.prepared.get_or_insert_with(|| watch::Sender::new(Preparation::Pending));
            (sender.subscribe(), is_new.then(|| (sender.clone(), ordered.target.clone())))
        };
        if let Some((sender, target)) = is_new {
            let host = target.host.clone();
            let (number, received) = self.order_kind(&host, id, target, OrderKind::Receive);
            let state = self.clone();
            tokio::spawn(async move {
                let done = tokio::time::timeout(FORGET_AFTER, received).await;
                if !matches!(done, Ok(Ok(_))) {
                    state.cancel(&host, number);
                }
                let why = |text: Option<String>| {
                    text.unwrap_or_else(|| format!("the agent of {host} gave no answer"))
                };
                sender.send_replace(match done {
                    Ok(Ok(OrderDone { ready: Some(ready), problem: None, .. })) => Preparation::Ready(ready),
                    Ok(Ok(done)) => Preparation::Refused(why(done.problem)),
                    _ => Preparation::Refused(why(None)),
                });
            });
        }
        let answered = answer.wait_for(|answer| *answer != Preparation::Pending);
        match tokio::time::timeout(wait, answered).await {
            Ok(Ok(answer)) => answer.clone(),
            Ok(Err(_)) => gone(),
            Err(_) => Preparation::Pending,
        }
    }

    /// Migrates virtual machines off the hosts that must be emptied and whose agents report here.
    pub async fn empty_hosts(self: &Arc<Self>) -> Result<(), HttpProblem> {
        let emptying = |allocator: &mut longma_placement::Allocator| {
            allocator.scheduler().inventory().hosts_with_status(HostStatus::Emptying)
        };
        for host in self.worker.query(emptying).await? {
            let is_new = self.is_connected(&host)
                && self.host(&host, |h| !std::mem::replace(&mut h.is_emptying, true));
            if is_new {
                let state = self.clone();
                tokio::spawn(async move {
                    // A failure of the store is already logged, and the next round may succeed.
                    let _ = state.empty_host(&host).await;
                    state.host(&host, |h| h.is_emptying = false);
                });
            }
        }
        Ok(())
    }

    async fn empty_host(self: &Arc<Self>, host: &str) -> Result<(), HttpProblem> {
        let name = host.to_string();
        let vms = self.with(move |state| state.store.host_vms(&name)).await?;
        let vms: Vec<Vm> = vms.into_iter().filter(|vm| vm.is_on(host)).collect();
        self.host(host, |h| h.stuck.retain(|id, _| vms.iter().any(|vm| vm.id == *id)));
        for vm in vms {
            let is_resting =
                |h: &mut HostState| h.stuck.get(&vm.id).is_some_and(|s| s.0.elapsed() < RETRY_INTERVAL);
            let is_movable = match vm.state {
                VmState::Running => vm.intent == Intent::Run,
                state => state == VmState::Stopped,
            };
            if !is_movable || self.host(host, is_resting) {
                continue;
            }
            let name = host.to_string();
            let (status, actor) = self
                .with(move |state| {
                    Ok((state.store.host(&name)?.status, state.host(&name, |h| h.emptied_by.clone())))
                })
                .await?;
            if status != HostStatus::Emptying {
                return Ok(());
            }
            let problem = self.leave(&vm, actor.as_deref().unwrap_or("service")).await;
            self.host(host, |h| match problem {
                None => drop(h.stuck.remove(&vm.id)),
                Some(why) => drop(h.stuck.insert(vm.id, (Instant::now(), why))),
            });
        }
        Ok(())
    }

    /// Moves a virtual machine to another host. Returns why it could not.
    async fn leave(self: &Arc<Self>, vm: &Vm, actor: &str) -> Option<String> {
        let (id, name) = (vm.id, &vm.request.name);
        let problem = if vm.state == VmState::Stopped {
            let actor = actor.to_string();
            let relocated = self.worker.query(move |allocator| {
                allocator.on_behalf_of(&actor, |allocator| allocator.relocate_stopped(id))
            });
            match relocated.await {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(self.cannot_leave(error).0.summary()),
                Err(error) => Some(HttpProblem::from(error).0.summary()),
            }
        } else {
            match self.migrate(vm, None, actor).await {
                Ok(done) => done.await.map_or(Some("its agent gave no answer".into()), |done| done.problem),
                Err(problem) => Some(problem.0.summary()),
            }
        };
        let problem = problem.map(|why| format!("virtual machine {id} ({name}) cannot leave: {why}"));
        if let Some(problem) = &problem {
            (self.log)(problem);
        }
        problem
    }
}
