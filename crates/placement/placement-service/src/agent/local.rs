//! Control plane of an agent that runs in the service's process: uses the store and the shared state directly.

use super::ControlPlane;
use crate::state::MAX_WAIT;
use crate::state::SECOND_AGENT;
use crate::state::ServiceState;
use crate::wire::{AgentOrders, AgentReport, Preparation};
use longma_placement::hypervisor::ShutdownDeadline;
use longma_placement::store::{StoreError, Vm, VmId, VmState};
use longma_placement::{AgentStore, Host, Placement};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

pub(super) struct Local {
    store: LocalStore,
    state: Arc<ServiceState>,
    runtime: Handle,
    machine: String,
}

impl Local {
    pub fn new(state: Arc<ServiceState>, runtime: Handle, machine: String) -> Self {
        Self { store: LocalStore(state.clone()), state, runtime, machine }
    }

    fn claim(&self, host: &str) -> Result<()> {
        if self.state.claim(host, &self.machine)? {
            return Ok(());
        }
        self.state.note_second_agent(host)?;
        Err(StoreError::Taken { what: format!("agent of {host}: {SECOND_AGENT}") })
    }
}

impl ControlPlane for Local {
    fn store(&self) -> &dyn AgentStore {
        &self.store
    }

    fn prepare(&self, vm: VmId) -> Result<Preparation> {
        Ok(self.runtime.block_on(self.state.prepare_migration(vm, MAX_WAIT)))
    }

    fn describe(&self, host: &Host) -> Result<()> {
        self.claim(&host.name)?;
        self.state.describe(host)
    }

    fn report(&self, host: &str, report: AgentReport) -> Result<AgentOrders> {
        let (generation, wait) = (report.generation, Duration::from_millis(report.wait_ms));
        self.claim(host)?;
        if report.at_work {
            return self.state.record_contact(host).map(|()| AgentOrders::default());
        }
        self.state.report(host, report)?;
        Ok(self.runtime.block_on(self.state.wait_for_orders(host, generation, wait)))
    }

    fn shutdown_deadline(&self) -> &ShutdownDeadline {
        &self.state.shutdown_deadline
    }
}

/// The service's store. Migrations concern another host, so the service checks that it has ordered them.
struct LocalStore(Arc<ServiceState>);

type Result<T> = std::result::Result<T, StoreError>;

impl AgentStore for LocalStore {
    fn identity(&self) -> Result<String> {
        self.0.store.identity()
    }

    fn host_vms(&self, host: &str) -> Result<Vec<Vm>> {
        self.0.store.host_vms(host)
    }

    fn vm(&self, id: VmId) -> Result<Vm> {
        self.0.store.vm(id)
    }

    fn has_created(&self, id: VmId, created_at: Option<i64>) -> Result<bool> {
        self.0.store.has_created(id, created_at)
    }

    fn transition(&self, id: VmId, from: VmState, to: VmState, problem: Option<&str>) -> Result<Vm> {
        self.0.store.transition(id, from, to, problem)
    }

    fn begin_move(&self, id: VmId, target: &Placement) -> Result<Vm> {
        self.0.store.begin_move(id, target)
    }

    fn end_move(&self, id: VmId, arrived: bool) -> Result<Vm> {
        self.0.store.end_move(id, arrived)
    }

    fn begin_migration(&self, id: VmId, target: &Placement) -> Result<Vm> {
        self.0.begin_migration(id, target)
    }

    fn end_migration(&self, id: VmId, problem: Option<&str>) -> Result<Vm> {
        self.0.end_migration(id, problem)
    }
}
