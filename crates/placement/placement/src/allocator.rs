//! A scheduler with a store: decides in memory, reserves durably, and decides anew where somebody else was first.
//! Not a service: an API server calls it, several processes may have one each on the same store.
//! Source: Hadary et al., "Protean" (OSDI 2020): several agents on one inventory, conflicts found at commit and tried again.

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

/// Decisions for one request before it is given up: each found its host taken meanwhile.
const ATTEMPTS: u32 = 16;

/// So long it keeps to a part of the hosts after somebody else was first.
const CROWDED: Duration = Duration::from_secs(600);

/// Hosts or virtual machines that are read at once.
const PAGE: usize = 1000;

/// Why a request was not placed.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// It is wrong, or fits nowhere.
    #[error(transparent)]
    NoPlacement(#[from] NoPlacement),
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What the store has contradicts itself.
    #[error(transparent)]
    Inventory(#[from] TakeError),
}

/// A reservation under way. Dropping it leaves what it holds in memory held: finish it.
#[derive(Debug)]
#[must_use]
pub struct Begun {
    token: u64,
    request: Request,
    key: Option<String>,
    placement: Placement,
    pending: Pending<Reserved>,
}

impl Begun {
    /// Where it will lie if nobody was first.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Whether the store has answered: then [`Allocator::finish`] does not wait for the first answer.
    pub fn is_answered(&self) -> bool {
        self.pending.is_answered()
    }
}

/// What is held in memory for a reservation that the store has not answered yet.
struct InFlight {
    tenant: String,
    name: String,
    placement: Placement,
    /// False if a reload showed that somebody else has it.
    held: bool,
}

/// Decides and reserves.
pub struct Allocator {
    scheduler: Scheduler,
    store: Arc<dyn Store>,
    origin: i64,
    /// The last event that was followed.
    followed: i64,
    in_flight: BTreeMap<u64, InFlight>,
    tokens: u64,
    conflicts: u64,
    /// When somebody else was first last, if it keeps to a part of the hosts since.
    crowded: Option<Instant>,
}

impl Allocator {
    /// An allocator that knows all that `store` has. `seed` should differ between allocators of one store.
    ///
    /// # Errors
    /// If the store fails, or promises something twice.
    pub fn open(store: Arc<dyn Store>, policy: Policy, seed: u64) -> Result<Self, AllocateError> {
        let mut scheduler = Scheduler::new(policy, seed);
        let (_, followed) = store.news(i64::MAX, 0)?;
        let mut name = String::new();
        loop {
            let page = store.hosts_after(&name, PAGE)?;
            for stored in &page {
                let put = scheduler.put_host(&stored.host);
                put.map_err(|e| TakeError { host: e.host, problem: e.problem })?;
                scheduler.set_status(&stored.host.name, stored.status);
            }
            let Some(last) = page.last() else { break };
            name.clone_from(&last.host.name);
        }
        let mut query = VmQuery { limit: PAGE, ..VmQuery::default() };
        loop {
            let page = store.vms(&query)?;
            for placement in page.iter().flat_map(|vm| vm.placement.iter().chain(&vm.target)) {
                scheduler.take(placement)?;
            }
            let Some(last) = page.last() else { break };
            query.after = last.id;
        }
        // Never 0, which is nobody's.
        let origin = (seed as i64) | 1;
        Ok(Self {
            scheduler,
            store,
            origin,
            followed,
            in_flight: BTreeMap::new(),
            tokens: 0,
            conflicts: 0,
            crowded: None,
        })
    }

    /// The scheduler: loads are told to it, and it explains.
    pub fn scheduler(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }

    /// Decisions since it was opened that found their place taken by others and were made anew.
    pub fn conflicts(&self) -> u64 {
        self.conflicts
    }

    /// Decides and starts to reserve. Others can be begun before it is finished; they become durable together.
    ///
    /// # Errors
    /// If the request is wrong or fits nowhere, also by the latest word of the store.
    pub fn begin(&mut self, request: &Request, key: Option<&str>) -> Result<Begun, AllocateError> {
        if self.crowded.is_some_and(|at| at.elapsed() > CROWDED) {
            self.crowded = None;
            self.scheduler.keep_to_no_part();
        }
        let placement = match self.scheduler.place(request) {
            // Somebody else may have deleted something.
            Err(NoPlacement::NoFit { .. }) if self.follow()? > 0 => self.scheduler.place(request)?,
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
        Ok(Begun { token: self.tokens, request: request.clone(), key, placement, pending })
    }

    /// Waits until a reservation is durable; decides anew if somebody was first.
    ///
    /// # Errors
    /// If it fits nowhere any more, or the store refuses for another reason than that.
    pub fn finish(&mut self, begun: Begun) -> Result<Reserved, AllocateError> {
        let mut begun = begun;
        for attempt in 1.. {
            let Begun { token, request, key, placement, pending } = begun;
            let answer = pending.wait();
            let held = self.in_flight.remove(&token).is_some_and(|f| f.held);
            if matches!(&answer, Ok(reserved) if !reserved.replayed) {
                if !held {
                    // A reload between the commit and this answer took it from memory.
                    self.reload(&placement.host)?;
                }
                return Ok(answer?);
            }
            if held {
                self.scheduler.give(&placement)?;
            }
            match answer {
                Err(StoreError::Conflict { host, .. }) if attempt < ATTEMPTS => {
                    self.conflicts += 1;
                    self.crowded = Some(Instant::now());
                    self.scheduler.keep_to_a_part();
                    self.reload(&host)?;
                    // Its groups' members may be on hosts that it did not decide on.
                    self.follow()?;
                }
                answer => return Ok(answer?),
            }
            begun = match self.begin(&request, key.as_deref()) {
                Ok(begun) => begun,
                Err(refused) => return self.answered_before(&request, key.as_deref(), refused),
            };
        }
        unreachable!("the last attempt returns")
    }

    /// Decides, reserves and waits.
    ///
    /// # Errors
    /// As [`Allocator::begin`] and [`Allocator::finish`].
    pub fn place(&mut self, request: &Request, key: Option<&str>) -> Result<Reserved, AllocateError> {
        match self.begin(request, key) {
            Ok(begun) => self.finish(begun),
            Err(refused) => self.answered_before(request, key, refused),
        }
    }

    /// A request that cannot be begun may have been placed with its key before, and taken the last room itself. Ask when what was begun before
    /// it is finished.
    ///
    /// # Errors
    /// `refused` if the key is new; or if it was used for another request.
    pub fn answered_before(
        &self,
        request: &Request,
        key: Option<&str>,
        refused: AllocateError,
    ) -> Result<Reserved, AllocateError> {
        let Some(key) = key else { return Err(refused) };
        self.store.answered(request, key)?.ok_or(refused)
    }

    /// Gives a stopped virtual machine another size, at the best place of its host, its own among them.
    ///
    /// # Errors
    /// If the request is wrong, its host has no room for it, or the store refuses.
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
                        "its agent is silent, or it is not as it is described: nothing is placed there anew"
                    }
                    _ => "it is draining: nothing is placed there anew",
                };
                let what = what.into();
                return Err(StoreError::Conflict { host, what }.into());
            }
            self.reload(&host)?;
            // Its own place counts as free while it is decided.
            self.scheduler.give(&old)?;
            let nodes = self.nodes_of(&host);
            let decided = self.scheduler.decide_on(request, &host, &nodes, None);
            let forbidden = self.scheduler.decide_on_without_groups(request, &host, &nodes);
            self.scheduler.take(&old)?;
            let Some(placement) = decided else {
                let vm = Vm { placement: Some(old), ..vm };
                let why = forbidden.map(|place| forbidding_group(&*self.store, &vm, &place)).transpose()?;
                let what = why.flatten().unwrap_or_else(|| "it has no room for the new size".into());
                return Err(StoreError::Conflict { host, what }.into());
            };
            match self.store.resize(id, request, &placement) {
                Err(StoreError::Conflict { .. }) if attempt < ATTEMPTS => {}
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

    /// Takes in what others changed; on how many hosts.
    ///
    /// # Errors
    /// If the store fails.
    pub fn follow(&mut self) -> Result<usize, AllocateError> {
        let (hosts, last) = self.store.news(self.followed, self.origin)?;
        self.followed = last;
        for (host, vms) in self.store.promised_on(&hosts)? {
            self.take_in(&host, &vms)?;
        }
        Ok(hosts.len())
    }

    /// Makes memory say of one host what the store says, and what is under way there.
    fn reload(&mut self, host: &str) -> Result<(), AllocateError> {
        for (host, vms) in self.store.promised_on(&[host.to_string()])? {
            self.take_in(&host, &vms)?;
        }
        Ok(())
    }

    fn take_in(&mut self, stored: &StoredHost, vms: &[Vm]) -> Result<(), AllocateError> {
        let host = stored.host.name.as_str();
        self.scheduler.put_host(&stored.host).map_err(|e| TakeError { host: e.host, problem: e.problem })?;
        self.scheduler.set_status(host, stored.status);
        let places = vms.iter().flat_map(|vm| vm.placement.iter().chain(&vm.target));
        self.scheduler.reload_host(host, places)?;
        for flight in self.in_flight.values_mut().filter(|f| f.placement.host == host) {
            let is = |vm: &Vm| vm.request.tenant == flight.tenant && vm.request.name == flight.name;
            // What is durable already is among the placements.
            flight.held = vms.iter().any(is) || self.scheduler.take(&flight.placement).is_ok();
        }
        Ok(())
    }
}
