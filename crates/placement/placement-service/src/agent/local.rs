//! Control plane of an agent that runs in the service's process: uses the store and the shared state directly.

use super::ControlPlane;
use crate::state::SECOND_AGENT;
use crate::state::ServiceState;
use crate::wire::{AgentOrders, AgentReport};
use longma_placement::hypervisor::ShutdownDeadline;
use longma_placement::store::StoreError;
use longma_placement::{AgentStore, Host};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

pub(super) struct Local {
    state: Arc<ServiceState>,
    runtime: Handle,
    machine: String,
}

impl Local {
    pub fn new(state: Arc<ServiceState>, runtime: Handle, machine: String) -> Self {
        Self { state, runtime, machine }
    }

    fn claim(&self, host: &str) -> Result<(), StoreError> {
        if self.state.claim(host, &self.machine)? {
            return Ok(());
        }
        self.state.note_second_agent(host)?;
        Err(StoreError::Taken { what: format!("agent of {host}: {SECOND_AGENT}") })
    }
}

impl ControlPlane for Local {
    fn store(&self) -> &dyn AgentStore {
        &*self.state.store
    }

    fn describe(&self, host: &Host) -> Result<(), StoreError> {
        self.claim(&host.name)?;
        self.state.describe(host)
    }

    fn report(&self, host: &str, report: AgentReport) -> Result<AgentOrders, StoreError> {
        let (generation, wait) = (report.generation, Duration::from_millis(report.wait_ms));
        self.claim(host)?;
        if report.at_work {
            return self.state.record_contact(host).map(|()| AgentOrders::default());
        }
        self.state.report(host, report)?;
        Ok(self.runtime.block_on(self.state.work(host, generation, wait)))
    }

    fn shutdown_deadline(&self) -> &ShutdownDeadline {
        &self.state.shutdown_deadline
    }
}
