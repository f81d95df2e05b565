//! Combines a scheduler with a store: decides in memory, reserves durably, and retries if another allocator took the
//! resources first. Several processes may each run an allocator on one store.
//!
//! Source: Hadary et al., "Protean" (OSDI 2020): several agents on one inventory, with conflicts detected at commit and
//! retried.

use crate::inventory::{HostStatus, ReserveError};
use crate::placement::Placement;
use crate::request::Request;
use crate::scheduler::{NoPlacement, Policy, Scheduler};
use crate::store::{
    Intent, Pending, Reservation, Reserved, Store, StoreError, StoredHost, Vm, VmId, VmQuery, VmState,
    forbidding_group,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Maximum number of decisions for one request. All but the last failed because another allocator had taken the
/// resources.
const MAX_ATTEMPTS: u32 = 16;

/// How long an allocator restricts itself to a subset of the hosts after a conflict.
const PARTITION_PERIOD: Duration = Duration::from_secs(600);

/// Number of hosts or virtual machines read per query.
const PAGE_SIZE: usize = 1000;

/// Why a request was not placed.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// The request is invalid or fits on no host.
    #[error(transparent)]
    NoPlacement(#[from] NoPlacement),
    /// The store failed or rejected the reservation.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The contents of the store are inconsistent.
    #[error(transparent)]
    Inventory(#[from] ReserveError),
}

/// A reservation in progress. Pass it to [`Allocator::finish`]: if it is dropped, the resources stay reserved in
/// memory.
#[derive(Debug)]
#[must_use]
pub struct PendingReservation {
    token: u64,
    request: Request,
    key: Option<String>,
    placement: Placement,
    pending: Pending<Reserved>,
}

impl PendingReservation {
    /// The placement, if no other allocator takes the resources first.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Returns whether the store has answered. If so, [`Allocator::finish`] does not block on this reservation.
    pub fn is_answered(&self) -> bool {
        self.pending.is_answered()
    }
}

/// A reservation whose answer from the store has not arrived or has not been read.
struct InFlight {
    tenant: String,
    name: String,
    placement: Placement,
    in_memory: InMemory,
}

/// Where the resources of a reservation in progress are counted in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InMemory {
    /// Separate from all virtual machines in the store. `is_certain` is false if the host was reloaded in the meantime:
    /// the store may have contained the reservation already.
    Separate { is_certain: bool },
    /// As part of this virtual machine, which a reload found in the store.
    PartOf(VmId),
    /// Not in memory: a reload found the resources taken by other virtual machines.
    Nowhere,
}

/// Seconds since 1970; 0 if the clock is earlier.
fn now_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// Places requests and reserves their resources.
pub struct Allocator {
    scheduler: Scheduler,
    store: Arc<dyn Store>,
    origin: i64,
    /// ID of the last store event that was applied.
    last_event: i64,
    in_flight: BTreeMap<u64, InFlight>,
    /// Virtual machines that were reserved while other reservations are still in progress.
    confirmed: BTreeSet<VmId>,
    tokens: u64,
    conflicts: u64,
    /// When the last conflict happened, while the allocator is restricted to a subset of the hosts.
    partitioned_since: Option<Instant>,
}

impl Allocator {
    /// Creates an allocator with the current contents of `store`. `seed` should differ between the allocators of one
    /// store.
    ///
    /// # Errors
    /// If the store fails, or has reserved a resource twice.
    pub fn open(store: Arc<dyn Store>, policy: Policy, seed: u64) -> Result<Self, AllocateError> {
        let mut scheduler = Scheduler::new(policy, seed);
        let (_, last_event) = store.changes_since(i64::MAX, 0)?;
        let mut name = String::new();
        loop {
            let page = store.hosts_after(&name, PAGE_SIZE)?;
            for stored in &page {
                let put = scheduler.put_host(&stored.host);
                put.map_err(|e| ReserveError { host: e.host, problem: e.problem })?;
                scheduler.set_status(&stored.host.name, stored.status);
            }
            let Some(last) = page.last() else { break };
            name.clone_from(&last.host.name);
        }
        let mut query = VmQuery { limit: PAGE_SIZE, ..VmQuery::default() };
        loop {
            let page = store.vms(&query)?;
            for placement in page.iter().flat_map(|vm| vm.placement.iter().chain(&vm.target)) {
                scheduler.reserve(placement)?;
            }
            let Some(last) = page.last() else { break };
            query.after = last.id;
        }
        // 0 means "no origin".
        let origin = (seed as i64) | 1;
        Ok(Self {
            scheduler,
            store,
            origin,
            last_event,
            in_flight: BTreeMap::new(),
            confirmed: BTreeSet::new(),
            tokens: 0,
            conflicts: 0,
            partitioned_since: None,
        })
    }

    /// The scheduler, to report loads and to explain decisions.
    pub fn scheduler(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }

    /// Runs `work` with a store that records `actor` in the events of its changes.
    pub fn on_behalf_of<T>(&mut self, actor: &str, work: impl FnOnce(&mut Self) -> T) -> T {
        let acting = self.store.on_behalf_of(actor);
        let own = std::mem::replace(&mut self.store, acting);
        let result = work(self);
        self.store = own;
        result
    }

    /// Number of decisions that had to be repeated because another allocator took the resources.
    pub fn conflicts(&self) -> u64 {
        self.conflicts
    }

    /// Decides on a placement and starts to reserve it. The caller may begin more reservations before it finishes this
    /// one; the store commits them together.
    ///
    /// # Errors
    /// If the request is invalid, or fits on no host even after the store's latest changes.
    pub fn begin(
        &mut self,
        request: &Request,
        key: Option<&str>,
    ) -> Result<PendingReservation, AllocateError> {
        if self.partitioned_since.is_some_and(|at| at.elapsed() > PARTITION_PERIOD) {
            self.partitioned_since = None;
            self.scheduler.use_all_hosts();
        }
        self.scheduler.set_time(now_s());
        let placement = match self.scheduler.place(request) {
            // Another allocator may have deleted a virtual machine.
            Err(NoPlacement::NoFit { .. }) if self.apply_changes()? > 0 => self.scheduler.place(request)?,
            decided => decided?,
        };
        let reservation = Reservation {
            request: request.clone(),
            placement: placement.clone(),
            key: key.map(str::to_string),
            origin: self.origin,
        };
        let pending = self.store.reserve(reservation);
        self.tokens += 1;
        let (tenant, name) = (request.tenant.clone(), request.name.clone());
        let in_memory = InMemory::Separate { is_certain: true };
        let in_flight = InFlight { tenant, name, placement: placement.clone(), in_memory };
        self.in_flight.insert(self.tokens, in_flight);
        let key = key.map(str::to_string);
        Ok(PendingReservation { token: self.tokens, request: request.clone(), key, placement, pending })
    }

    /// Waits until a reservation is durable. If another allocator was faster, decides again.
    ///
    /// # Errors
    /// If the request no longer fits on any host, or the store fails for another reason than a conflict.
    pub fn finish(&mut self, begun: PendingReservation) -> Result<Reserved, AllocateError> {
        let mut begun = begun;
        for attempt in 1.. {
            let PendingReservation { token, request, key, placement, pending } = begun;
            let answer = pending.wait();
            let in_memory =
                self.in_flight.remove(&token).map_or(InMemory::Nowhere, |flight| flight.in_memory);
            if let Ok(reserved) = &answer
                && !reserved.replayed
            {
                self.confirm(reserved.vm.id, in_memory, &placement.host)?;
                return Ok(answer?);
            }
            if matches!(in_memory, InMemory::Separate { .. }) {
                self.scheduler.release(&placement)?;
            }
            match answer {
                Err(StoreError::Conflict { host, .. }) if attempt < MAX_ATTEMPTS => {
                    self.conflicts += 1;
                    self.partitioned_since = Some(Instant::now());
                    self.scheduler.use_one_partition();
                    self.reload(&host)?;
                    // Members of its groups may be on hosts that this decision did not consider.
                    self.apply_changes()?;
                }
                answer => return Ok(answer?),
            }
            begun = match self.begin(&request, key.as_deref()) {
                Ok(begun) => begun,
                Err(refused) => return self.earlier_answer(&request, key.as_deref(), refused),
            };
        }
        unreachable!("the last attempt returns")
    }

    /// Makes sure that a durable reservation is counted once in memory.
    fn confirm(&mut self, id: VmId, in_memory: InMemory, host: &str) -> Result<(), AllocateError> {
        match self.in_flight.is_empty() {
            true => self.confirmed.clear(),
            false => drop(self.confirmed.insert(id)),
        }
        match in_memory {
            InMemory::Separate { is_certain: true } => Ok(()),
            InMemory::PartOf(found) if found == id => Ok(()),
            _ => self.reload(host),
        }
    }

    /// Decides, reserves and waits.
    ///
    /// # Errors
    /// As for [`Allocator::begin`] and [`Allocator::finish`].
    pub fn place(&mut self, request: &Request, key: Option<&str>) -> Result<Reserved, AllocateError> {
        match self.begin(request, key) {
            Ok(begun) => self.finish(begun),
            Err(refused) => self.earlier_answer(request, key, refused),
        }
    }

    /// Looks up an earlier answer to a request that cannot be begun: an earlier attempt with the same key may have been
    /// placed and have taken the last free resources. Call it after all earlier reservations are finished.
    ///
    /// # Errors
    /// `error` if the key is new; a store error if the key belongs to another request.
    pub fn earlier_answer(
        &self,
        request: &Request,
        key: Option<&str>,
        error: AllocateError,
    ) -> Result<Reserved, AllocateError> {
        let Some(key) = key else { return Err(error) };
        self.store.earlier_answer(request, key)?.ok_or(error)
    }

    /// Resizes a stopped virtual machine. It stays on its host, on the nodes that are best for the new size.
    ///
    /// # Errors
    /// If the request is invalid, the host has too few free resources, or the store fails.
    pub fn resize(&mut self, id: VmId, request: &Request) -> Result<Vm, AllocateError> {
        request.check().map_err(NoPlacement::Invalid)?;
        for attempt in 1.. {
            let vm = self.store.vm(id)?;
            let Some(old) = vm.placement.clone().filter(|_| vm.state == VmState::Stopped) else {
                let (expected, found) = (VmState::Stopped, vm.state);
                return Err(StoreError::Stale { id, expected, found }.into());
            };
            let host = old.host.clone();
            let status = self.store.host(&host)?.status;
            if status != HostStatus::Up {
                let what = match status {
                    HostStatus::Down => {
                        "its agent is silent, or the host does not match its description: it accepts no virtual machines"
                    }
                    HostStatus::ForcedDown => "it was declared dead: it accepts no virtual machines",
                    _ => "it is draining: it accepts no virtual machines",
                };
                let what = what.into();
                return Err(StoreError::Conflict { host, what }.into());
            }
            self.reload(&host)?;
            // The old resources are treated as free during the decision.
            self.scheduler.release(&old)?;
            let nodes = self.nodes_of(&host);
            let decided = self.scheduler.decide_on(request, &host, &nodes, None);
            let forbidden = self.scheduler.decide_on_without_groups(request, &host, &nodes);
            self.scheduler.reserve(&old)?;
            let Some(placement) = decided else {
                let vm = Vm { placement: Some(old), ..vm };
                let why = forbidden.map(|place| forbidding_group(&*self.store, &vm, &place)).transpose()?;
                let what =
                    why.flatten().unwrap_or_else(|| "it has too few free resources for the new size".into());
                return Err(StoreError::Conflict { host, what }.into());
            };
            match self.store.resize(id, request, &placement) {
                Err(StoreError::Conflict { .. }) if attempt < MAX_ATTEMPTS => {}
                answer => {
                    self.reload(&host)?;
                    return Ok(answer?);
                }
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Moves a virtual machine from a host that was forced down to another host, or deletes it if that is its owner's
    /// intent. The caller asserts that its old domain no longer runs.
    ///
    /// # Errors
    /// If its host was not forced down, the request fits on no other host, or the store fails.
    pub fn evacuate(&mut self, id: VmId) -> Result<Vm, AllocateError> {
        for attempt in 1.. {
            let vm = self.store.vm(id)?;
            let Some(old) = &vm.placement else {
                let what = format!("virtual machine {id} that is not deleted");
                return Err(StoreError::Unknown { what }.into());
            };
            if vm.intent == Intent::Delete {
                let deleted = self.store.force_delete(id)?;
                self.reload(&old.host)?;
                return Ok(deleted);
            }
            self.reload(&old.host)?;
            if self.store.vm(id)?.placement != vm.placement {
                // Another request has moved or deleted the virtual machine in between.
                continue;
            }
            // The virtual machine's current placements are ignored for its groups. The host is down, so no decision
            // uses them.
            for place in vm.placement.iter().chain(&vm.target) {
                self.scheduler.release(place)?;
            }
            let moved = match self.scheduler.place(&vm.request) {
                Ok(target) => {
                    // The virtual machine began before now. Its reservation in memory must equal the stored one:
                    // otherwise, releasing the stored one would leave the lifetime in memory.
                    let since_start = Placement { lifetime: old.lifetime, ..target.clone() };
                    self.scheduler.release(&target)?;
                    self.scheduler.reserve(&since_start)?;
                    let moved = self.store.evacuate(id, &since_start);
                    if moved.is_err() {
                        self.scheduler.release(&since_start)?;
                    }
                    moved.map_err(AllocateError::from)
                }
                Err(refused) => Err(refused.into()),
            };
            self.reload(&old.host)?;
            if let Some(target) = vm.target.as_ref().filter(|target| target.host != old.host) {
                self.reload(&target.host)?;
            }
            match moved {
                Err(AllocateError::Store(StoreError::Conflict { host, .. }))
                    if attempt < MAX_ATTEMPTS && host != old.host =>
                {
                    self.reload(&host)?;
                    self.apply_changes()?;
                }
                moved => return moved,
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Chooses a placement on another host for a running virtual machine: on the host `to`, or on the best one. Reserves
    /// nothing.
    ///
    /// # Errors
    /// If it is not running or does not fit, or the store fails.
    pub fn migration_target(&mut self, id: VmId, to: Option<&str>) -> Result<Placement, AllocateError> {
        let vm = self.store.vm(id)?;
        let Some(own) = vm.placement.as_ref().filter(|_| vm.state == VmState::Running) else {
            return Err(StoreError::Stale { id, expected: VmState::Running, found: vm.state }.into());
        };
        self.reload(&own.host)?;
        Ok(self.scheduler.decide_elsewhere(&vm.request, own, to)?)
    }

    /// Moves a stopped virtual machine to another host, where it will start.
    ///
    /// # Errors
    /// If it is not stopped or fits on no other host, or the store fails.
    pub fn relocate_stopped(&mut self, id: VmId) -> Result<Vm, AllocateError> {
        for attempt in 1.. {
            let vm = self.store.vm(id)?;
            let Some(own) = vm.placement.as_ref().filter(|_| vm.state == VmState::Stopped) else {
                return Err(StoreError::Stale { id, expected: VmState::Stopped, found: vm.state }.into());
            };
            self.reload(&own.host)?;
            let target = self.scheduler.decide_elsewhere(&vm.request, own, None)?;
            let relocated = self.store.relocate_stopped(id, &target);
            self.reload(&own.host)?;
            self.reload(&target.host)?;
            match relocated {
                Err(StoreError::Conflict { .. }) if attempt < MAX_ATTEMPTS => {}
                relocated => return Ok(relocated?),
            }
        }
        unreachable!("the last attempt returns")
    }

    fn nodes_of(&self, host: &str) -> Vec<u32> {
        let usage = self.scheduler.inventory().usage(host);
        usage.map_or(Vec::new(), |usage| usage.nodes.iter().map(|node| node.node).collect())
    }

    /// Applies changes made to the store by other processes. Returns the number of hosts that changed.
    ///
    /// # Errors
    /// If the store fails.
    pub fn apply_changes(&mut self) -> Result<usize, AllocateError> {
        let (hosts, last) = self.store.changes_since(self.last_event, self.origin)?;
        self.last_event = last;
        self.reload_all(&hosts)?;
        Ok(hosts.len())
    }

    /// Rebuilds the reservations of one host from the store and from the reservations in progress.
    fn reload(&mut self, host: &str) -> Result<(), AllocateError> {
        self.reload_all(&[host.to_string()])
    }

    fn reload_all(&mut self, hosts: &[String]) -> Result<(), AllocateError> {
        let stored = self.store.reservations_on(hosts)?;
        for removed in hosts.iter().filter(|name| stored.iter().all(|(host, _)| host.host.name != **name)) {
            self.scheduler.remove_host(removed);
            for flight in self.in_flight.values_mut().filter(|f| f.placement.host == *removed) {
                flight.in_memory = InMemory::Nowhere;
            }
        }
        for (host, vms) in stored {
            self.apply_host(&host, &vms)?;
        }
        Ok(())
    }

    fn apply_host(&mut self, stored: &StoredHost, vms: &[Vm]) -> Result<(), AllocateError> {
        let host = stored.host.name.as_str();
        self.scheduler
            .put_host(&stored.host)
            .map_err(|e| ReserveError { host: e.host, problem: e.problem })?;
        self.scheduler.set_status(host, stored.status);
        let placements = vms.iter().flat_map(|vm| vm.placement.iter().chain(&vm.target));
        // A migrating virtual machine has a second placement on another host.
        self.scheduler.reload_host(host, placements.filter(|place| place.host == host))?;
        // A reservation that is already durable is part of `vms`. If several have the same name and placement, at most
        // one is the lost reservation, and none whose virtual machine was confirmed before.
        let mut unmatched: Vec<&Vm> = vms.iter().filter(|vm| !self.confirmed.contains(&vm.id)).collect();
        for flight in self.in_flight.values_mut().filter(|f| f.placement.host == host) {
            let is_same = |vm: &&Vm| {
                vm.request.tenant == flight.tenant
                    && vm.request.name == flight.name
                    && vm.placement.as_ref() == Some(&flight.placement)
            };
            flight.in_memory = match unmatched.iter().position(is_same) {
                Some(at) => InMemory::PartOf(unmatched.swap_remove(at).id),
                None if self.scheduler.reserve(&flight.placement).is_ok() => {
                    InMemory::Separate { is_certain: false }
                }
                None => InMemory::Nowhere,
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
