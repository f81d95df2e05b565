//! Combines a scheduler with a store: decides in memory, reserves durably, and retries if another allocator took the
//! resources first. Several processes may each run an allocator on one store.
//!
//! Source: Hadary et al., "Protean" (OSDI 2020): several agents on one inventory, with conflicts detected at commit and
//! retried.

use crate::inventory::{HostStatus, TakeError};
use crate::placement::Placement;
use crate::request::Request;
use crate::scheduler::{NoPlacement, Policy, Scheduler};
use crate::store::{
    Pending, Reservation, Reserved, Store, StoreError, StoredHost, Vm, VmId, VmQuery, VmState,
    forbidding_group,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of decisions for one request. Each but the last failed because another allocator had taken its
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
    Inventory(#[from] TakeError),
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

/// Resources reserved in memory while the store has not answered yet.
struct InFlight {
    tenant: String,
    name: String,
    placement: Placement,
    /// False if a reload showed that another allocator owns the resources.
    held: bool,
}

/// Places requests and reserves their resources.
pub struct Allocator {
    scheduler: Scheduler,
    store: Arc<dyn Store>,
    origin: i64,
    /// ID of the last store event that was applied.
    last_event: i64,
    in_flight: BTreeMap<u64, InFlight>,
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
                put.map_err(|e| TakeError { host: e.host, problem: e.problem })?;
                scheduler.set_status(&stored.host.name, stored.status);
            }
            let Some(last) = page.last() else { break };
            name.clone_from(&last.host.name);
        }
        let mut query = VmQuery { limit: PAGE_SIZE, ..VmQuery::default() };
        loop {
            let page = store.vms(&query)?;
            for placement in page.iter().flat_map(|vm| vm.placement.iter().chain(&vm.target)) {
                scheduler.take(placement)?;
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
            tokens: 0,
            conflicts: 0,
            partitioned_since: None,
        })
    }

    /// The scheduler, to report loads and to explain decisions.
    pub fn scheduler(&mut self) -> &mut Scheduler {
        &mut self.scheduler
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
        let in_flight = InFlight { tenant, name, placement: placement.clone(), held: true };
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
            let held = self.in_flight.remove(&token).is_some_and(|f| f.held);
            if matches!(&answer, Ok(reserved) if !reserved.replayed) {
                if !held {
                    // A reload between the commit and this answer dropped it from memory.
                    self.reload(&placement.host)?;
                }
                return Ok(answer?);
            }
            if held {
                self.scheduler.give(&placement)?;
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

    /// Looks up an earlier answer to a request that cannot be begun: the request may have been placed under the same
    /// key and have taken the last free resources itself. Call it after all earlier reservations are finished.
    ///
    /// # Errors
    /// `refused` if the key is new; a store error if the key belongs to another request.
    pub fn earlier_answer(
        &self,
        request: &Request,
        key: Option<&str>,
        refused: AllocateError,
    ) -> Result<Reserved, AllocateError> {
        let Some(key) = key else { return Err(refused) };
        self.store.answered(request, key)?.ok_or(refused)
    }

    /// Resizes a stopped virtual machine. It stays on its host and moves to the best place there.
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
                    _ => "it is draining: it accepts no virtual machines",
                };
                let what = what.into();
                return Err(StoreError::Conflict { host, what }.into());
            }
            self.reload(&host)?;
            // The old resources count as free during the decision.
            self.scheduler.give(&old)?;
            let nodes = self.nodes_of(&host);
            let decided = self.scheduler.decide_on(request, &host, &nodes, None);
            let forbidden = self.scheduler.decide_on_without_groups(request, &host, &nodes);
            self.scheduler.take(&old)?;
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

    fn nodes_of(&self, host: &str) -> Vec<u32> {
        let usage = self.scheduler.inventory().usage(host);
        usage.map_or(Vec::new(), |usage| usage.nodes.iter().map(|node| node.node).collect())
    }

    /// Applies changes that others made in the store. Returns the number of hosts that changed.
    ///
    /// # Errors
    /// If the store fails.
    pub fn apply_changes(&mut self) -> Result<usize, AllocateError> {
        let (hosts, last) = self.store.changes_since(self.last_event, self.origin)?;
        self.last_event = last;
        for (host, vms) in self.store.reservations_on(&hosts)? {
            self.apply_host(&host, &vms)?;
        }
        Ok(hosts.len())
    }

    /// Rebuilds the reservations of one host from the store and from the reservations in progress.
    fn reload(&mut self, host: &str) -> Result<(), AllocateError> {
        for (host, vms) in self.store.reservations_on(&[host.to_string()])? {
            self.apply_host(&host, &vms)?;
        }
        Ok(())
    }

    fn apply_host(&mut self, stored: &StoredHost, vms: &[Vm]) -> Result<(), AllocateError> {
        let host = stored.host.name.as_str();
        self.scheduler.put_host(&stored.host).map_err(|e| TakeError { host: e.host, problem: e.problem })?;
        self.scheduler.set_status(host, stored.status);
        let places = vms.iter().flat_map(|vm| vm.placement.iter().chain(&vm.target));
        self.scheduler.reload_host(host, places)?;
        for flight in self.in_flight.values_mut().filter(|f| f.placement.host == host) {
            let is = |vm: &Vm| vm.request.tenant == flight.tenant && vm.request.name == flight.name;
            // A reservation that is already durable is part of `vms`.
            flight.held = vms.iter().any(is) || self.scheduler.take(&flight.placement).is_ok();
        }
        Ok(())
    }
}
