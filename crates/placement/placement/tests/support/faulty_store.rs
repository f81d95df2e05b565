//! A store wrapper that simulates a crash of the caller before or after a chosen change.

use longma_placement::inventory::HostStatus;
use longma_placement::store::*;
use longma_placement::{Host, Placement, Request, SqlStore};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub struct FaultyStore {
    pub inner: Arc<SqlStore>,
    changes: AtomicU64,
    fault_at: AtomicU64,
    after: AtomicBool,
    dead: AtomicBool,
    /// Number of times that the virtual machines of a host were read.
    pub host_reads: AtomicU64,
}

impl FaultyStore {
    pub fn new(inner: Arc<SqlStore>) -> Self {
        let fault_at = AtomicU64::new(u64::MAX);
        let (after, dead, host_reads) = Default::default();
        Self { inner, changes: 0.into(), fault_at, after, dead, host_reads }
    }

    /// Crashes the caller at a future change, after `changes` other changes.
    pub fn die_after(&self, changes: u64, after: bool) {
        self.fault_at.store(self.changes.load(Ordering::SeqCst) + changes, Ordering::SeqCst);
        self.after.store(after, Ordering::SeqCst);
    }

    pub fn recover(&self) {
        self.dead.store(false, Ordering::SeqCst);
        self.fault_at.store(u64::MAX, Ordering::SeqCst);
    }

    fn read<T>(&self, read: impl FnOnce(&SqlStore) -> Result<T, StoreError>) -> Result<T, StoreError> {
        if self.dead.load(Ordering::SeqCst) { Err(StoreError::Closed) } else { read(&self.inner) }
    }

    fn change<T>(&self, change: impl FnOnce(&SqlStore) -> Result<T, StoreError>) -> Result<T, StoreError> {
        if self.dead.load(Ordering::SeqCst) {
            return Err(StoreError::Closed);
        }
        if self.changes.fetch_add(1, Ordering::SeqCst) != self.fault_at.load(Ordering::SeqCst) {
            return change(&self.inner);
        }
        self.dead.store(true, Ordering::SeqCst);
        if self.after.load(Ordering::SeqCst) {
            change(&self.inner)?;
        }
        Err(StoreError::Closed)
    }
}

impl AgentStore for FaultyStore {
    fn identity(&self) -> Result<String, StoreError> {
        self.read(|s| s.identity())
    }
    fn host_vms(&self, host: &str) -> Result<Vec<Vm>, StoreError> {
        self.host_reads.fetch_add(1, Ordering::SeqCst);
        self.read(|s| s.host_vms(host))
    }
    fn vm(&self, id: VmId) -> Result<Vm, StoreError> {
        self.read(|s| s.vm(id))
    }
    fn transition(
        &self,
        id: VmId,
        from: VmState,
        to: VmState,
        problem: Option<&str>,
    ) -> Result<Vm, StoreError> {
        self.change(|s| s.transition(id, from, to, problem))
    }
    fn begin_move(&self, id: VmId, target: &Placement) -> Result<Vm, StoreError> {
        self.change(|s| s.begin_move(id, target))
    }
    fn end_move(&self, id: VmId, arrived: bool) -> Result<Vm, StoreError> {
        self.change(|s| s.end_move(id, arrived))
    }
    fn begin_migration(&self, id: VmId, target: &Placement) -> Result<Vm, StoreError> {
        self.change(|s| s.begin_migration(id, target))
    }
    fn end_migration(&self, id: VmId, problem: Option<&str>) -> Result<Vm, StoreError> {
        self.change(|s| s.end_migration(id, problem))
    }
}

impl Store for FaultyStore {
    fn on_behalf_of(&self, actor: &str) -> Arc<dyn Store> {
        // No test with faults makes changes on behalf of others.
        self.inner.on_behalf_of(actor)
    }
    fn record_token_uses(&self, uses: &[(String, i64)]) -> Result<(), StoreError> {
        self.change(|s| s.record_token_uses(uses))
    }
    fn append_audit(&self, records: &[AuditRecord]) -> Result<(), StoreError> {
        self.change(|s| s.append_audit(records))
    }
    fn audit_log(&self, query: &AuditQuery) -> Result<Vec<AuditRecord>, StoreError> {
        self.read(|s| s.audit_log(query))
    }
    fn default_quota(&self) -> Result<Quota, StoreError> {
        self.read(|s| s.default_quota())
    }
    fn set_default_quota(&self, quota: &Quota) -> Result<(), StoreError> {
        self.change(|s| s.set_default_quota(quota))
    }
    fn put_host(&self, host: &Host, percent: u32) -> Result<(), StoreError> {
        self.change(|s| s.put_host(host, percent))
    }
    fn counts(&self) -> Result<Counts, StoreError> {
        self.read(|s| s.counts())
    }
    fn overcommit_ratios(&self) -> Result<Vec<u32>, StoreError> {
        self.read(|s| s.overcommit_ratios())
    }
    fn hosts_after(&self, name: &str, limit: usize) -> Result<Vec<StoredHost>, StoreError> {
        self.read(|s| s.hosts_after(name, limit))
    }
    fn last_reports(&self) -> Result<Vec<(String, i64)>, StoreError> {
        self.read(|s| s.last_reports())
    }
    fn claim_host(&self, host: &str, machine: &str, other: Option<&str>) -> Result<String, StoreError> {
        self.change(|s| s.claim_host(host, machine, other))
    }
    fn host(&self, name: &str) -> Result<StoredHost, StoreError> {
        self.read(|s| s.host(name))
    }
    fn set_host_status(&self, host: &str, status: HostStatus, seen: bool) -> Result<(), StoreError> {
        self.change(|s| s.set_host_status(host, status, seen))
    }
    fn reserve(&self, reservation: Reservation) -> Pending<Reserved> {
        Pending::ready(self.change(|s| s.reserve(reservation).wait()))
    }
    fn earlier_answer(&self, request: &Request, key: &str) -> Result<Option<Reserved>, StoreError> {
        self.read(|s| s.earlier_answer(request, key))
    }
    fn find_vm(&self, tenant: &str, name: &str) -> Result<Option<Vm>, StoreError> {
        self.read(|s| s.find_vm(tenant, name))
    }
    fn vms(&self, query: &VmQuery) -> Result<Vec<Vm>, StoreError> {
        self.read(|s| s.vms(query))
    }
    fn set_intent(&self, id: VmId, intent: Intent) -> Result<Vm, StoreError> {
        self.change(|s| s.set_intent(id, intent))
    }
    fn resize(&self, id: VmId, request: &Request, placement: &Placement) -> Result<Vm, StoreError> {
        self.change(|s| s.resize(id, request, placement))
    }
    fn prune(&self, before: i64) -> Result<usize, StoreError> {
        self.change(|s| s.prune(before))
    }
    fn evacuate(&self, id: VmId, placement: &Placement) -> Result<Vm, StoreError> {
        self.change(|s| s.evacuate(id, placement))
    }
    fn relocate_stopped(&self, id: VmId, placement: &Placement) -> Result<Vm, StoreError> {
        self.change(|s| s.relocate_stopped(id, placement))
    }
    fn force_delete(&self, id: VmId) -> Result<Vm, StoreError> {
        self.change(|s| s.force_delete(id))
    }
    fn remove_host(&self, host: &str) -> Result<(), StoreError> {
        self.change(|s| s.remove_host(host))
    }
    fn events(&self, after: i64, limit: usize) -> Result<Vec<Event>, StoreError> {
        self.read(|s| s.events(after, limit))
    }
    fn record_event(&self, event: &Event) -> Result<(), StoreError> {
        self.change(|s| s.record_event(event))
    }
    fn changes_since(&self, after: i64, origin: i64) -> Result<(Vec<String>, i64), StoreError> {
        self.read(|s| s.changes_since(after, origin))
    }
    fn raise_alarm(&self, host: &str, node: Option<u32>, kind: &str, value: f64) -> Result<bool, StoreError> {
        self.change(|s| s.raise_alarm(host, node, kind, value))
    }
    fn clear_alarm(&self, host: &str, node: Option<u32>, kind: &str) -> Result<bool, StoreError> {
        self.change(|s| s.clear_alarm(host, node, kind))
    }
    fn alarms(&self, active_only: bool, limit: usize) -> Result<Vec<Alarm>, StoreError> {
        self.read(|s| s.alarms(active_only, limit))
    }
    fn put_token(&self, token: &Token) -> Result<(), StoreError> {
        self.change(|s| s.put_token(token))
    }
    fn tokens(&self) -> Result<Vec<Token>, StoreError> {
        self.read(|s| s.tokens())
    }
    fn remove_token(&self, name: &str) -> Result<bool, StoreError> {
        self.change(|s| s.remove_token(name))
    }
    fn set_quota(&self, tenant: &str, quota: &Quota) -> Result<(), StoreError> {
        self.change(|s| s.set_quota(tenant, quota))
    }
    fn tenants(&self) -> Result<Vec<TenantUse>, StoreError> {
        self.read(|s| s.tenants())
    }
    fn check(&self) -> Result<Vec<String>, StoreError> {
        self.read(|s| s.check())
    }
}
