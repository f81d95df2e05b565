//! Control plane of an agent on another machine: implements the store operations that an agent needs through the API,
//! and rejects all others.

use super::ControlPlane;
use crate::client::{Client, ClientError, part};
use crate::wire::{AgentChange, AgentOrders, AgentReport};
use longma_placement::hypervisor::ShutdownDeadline;
use longma_placement::inventory::HostStatus;
use longma_placement::store::{
    Alarm, Counts, Event, Intent, Pending, Quota, Reservation, Reserved, StoreError, StoredHost, TenantUse,
    Token, Vm, VmId, VmQuery, VmState,
};
use longma_placement::{Host, Placement, Request, Store};

pub(super) struct Remote {
    store: RemoteStore,
    ending: ShutdownDeadline,
}

struct RemoteStore {
    client: Client,
    path: String,
}

type Result<T> = std::result::Result<T, StoreError>;

fn not_mine<T>() -> Result<T> {
    Err(StoreError::Database("an agent does not support this".into()))
}

impl RemoteStore {
    fn change(&self, change: &AgentChange) -> Result<Option<Vm>> {
        let path = format!("{}/changes", self.path);
        self.client.post(&path, None, change).map_err(|error| match &error {
            ClientError::Refused(problem) if problem.title == "conflict" => {
                StoreError::Conflict { host: "of this agent".into(), what: problem.detail.clone() }
            }
            _ => StoreError::Service(error.to_string()),
        })
    }

    fn vm_after(&self, change: &AgentChange) -> Result<Vm> {
        self.change(change)?
            .ok_or_else(|| StoreError::Service("the service did not answer with the virtual machine".into()))
    }
}

impl Remote {
    pub fn new(client: Client, host: &str, ending: ShutdownDeadline) -> Self {
        Self { store: RemoteStore { client, path: format!("/v1/agents/{}", part(host)) }, ending }
    }
}

impl ControlPlane for Remote {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn describe(&self, host: &Host) -> Result<()> {
        self.store.change(&AgentChange::Describe(host.clone())).map(drop)
    }

    fn report(&self, _host: &str, report: AgentReport) -> Result<AgentOrders> {
        let path = format!("{}/report", self.store.path);
        self.store.client.post(&path, None, &report).map_err(|e| StoreError::Service(e.to_string()))
    }

    fn ending(&self) -> &ShutdownDeadline {
        &self.ending
    }
}

impl Store for RemoteStore {
    fn identity(&self) -> Result<String> {
        let path = format!("{}/database", self.path);
        self.client.get(&path).map_err(|e| StoreError::Service(e.to_string()))
    }

    fn vms(&self, _query: &VmQuery) -> Result<Vec<Vm>> {
        let path = format!("{}/vms", self.path);
        self.client.get(&path).map_err(|e| StoreError::Service(e.to_string()))
    }

    fn vm(&self, id: VmId) -> Result<Vm> {
        let unknown = || StoreError::Unknown { what: format!("virtual machine {id}") };
        self.vms(&VmQuery::default())?.into_iter().find(|vm| vm.id == id).ok_or_else(unknown)
    }

    fn has_created(&self, id: VmId, created_at: Option<i64>) -> Result<bool> {
        let at = created_at.map(|at| format!("?created_at={at}")).unwrap_or_default();
        let path = format!("{}/made/{id}{at}", self.path);
        self.client.get(&path).map_err(|e| StoreError::Service(e.to_string()))
    }

    fn transition(&self, vm: VmId, from: VmState, to: VmState, problem: Option<&str>) -> Result<Vm> {
        self.vm_after(&AgentChange::Transition { vm, from, to, problem: problem.map(str::to_string) })
    }

    fn begin_move(&self, vm: VmId, target: &Placement) -> Result<Vm> {
        self.vm_after(&AgentChange::BeginMove { vm, target: target.clone() })
    }

    fn end_move(&self, vm: VmId, arrived: bool) -> Result<Vm> {
        self.vm_after(&AgentChange::EndMove { vm, arrived })
    }

    fn put_host(&self, _: &Host, _: u32) -> Result<()> {
        not_mine()
    }
    fn counts(&self) -> Result<Counts> {
        not_mine()
    }
    fn ratios(&self) -> Result<Vec<u32>> {
        not_mine()
    }
    fn hosts_after(&self, _: &str, _: usize) -> Result<Vec<StoredHost>> {
        not_mine()
    }
    fn seen(&self) -> Result<Vec<(String, i64)>> {
        not_mine()
    }
    fn claim_host(&self, _: &str, _: &str, _: Option<&str>) -> Result<String> {
        not_mine()
    }
    fn host(&self, _: &str) -> Result<StoredHost> {
        not_mine()
    }
    fn set_host_status(&self, _: &str, _: HostStatus, _: bool) -> Result<()> {
        not_mine()
    }
    fn reserve(&self, _: Reservation) -> Pending<Reserved> {
        Pending::ready(not_mine())
    }
    fn answered(&self, _: &Request, _: &str) -> Result<Option<Reserved>> {
        not_mine()
    }
    fn find_vm(&self, _: &str, _: &str) -> Result<Option<Vm>> {
        not_mine()
    }
    fn set_intent(&self, _: VmId, _: Intent) -> Result<Vm> {
        not_mine()
    }
    fn resize(&self, _: VmId, _: &Request, _: &Placement) -> Result<Vm> {
        not_mine()
    }
    fn events(&self, _: i64, _: usize) -> Result<Vec<Event>> {
        not_mine()
    }
    fn record(&self, _: &Event) -> Result<()> {
        not_mine()
    }
    fn changes_since(&self, _: i64, _: i64) -> Result<(Vec<String>, i64)> {
        not_mine()
    }
    fn raise_alarm(&self, _: &str, _: Option<u32>, _: &str, _: f64) -> Result<bool> {
        not_mine()
    }
    fn clear_alarm(&self, _: &str, _: Option<u32>, _: &str) -> Result<bool> {
        not_mine()
    }
    fn alarms(&self, _: bool, _: usize) -> Result<Vec<Alarm>> {
        not_mine()
    }
    fn put_token(&self, _: &Token) -> Result<()> {
        not_mine()
    }
    fn tokens(&self) -> Result<Vec<Token>> {
        not_mine()
    }
    fn remove_token(&self, _: &str) -> Result<bool> {
        not_mine()
    }
    fn set_quota(&self, _: &str, _: &Quota) -> Result<()> {
        not_mine()
    }
    fn tenants(&self) -> Result<Vec<TenantUse>> {
        not_mine()
    }
    fn check(&self) -> Result<Vec<String>> {
        not_mine()
    }
}
