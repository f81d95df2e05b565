//! Control plane of an agent that runs in the service's process: uses the store and the shared state directly.

use super::Office;
use crate::desk::Desk;
use crate::lost::SECOND_AGENT;
use crate::wire::{AgentOrders, AgentReport};
use longma_placement::hypervisor::ShutdownDeadline;
use longma_placement::store::StoreError;
use longma_placement::{Host, Store};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

pub(super) struct Local {
    desk: Arc<Desk>,
    runtime: Handle,
    machine: String,
}

impl Local {
    pub fn new(desk: Arc<Desk>, runtime: Handle, machine: String) -> Self {
        Self { desk, runtime, machine }
    }

    fn claim(&self, host: &str) -> Result<(), StoreError> {
        if self.desk.claim(host, &self.machine)? {
            return Ok(());
        }
        self.desk.note_second_agent(host)?;
        Err(StoreError::Taken { what: format!("agent of {host}: {SECOND_AGENT}") })
    }
}

impl Office for Local {
    fn store(&self) -> &dyn Store {
        &*self.desk.store
    }

    fn describe(&self, host: &Host) -> Result<(), StoreError> {
        self.claim(&host.name)?;
        self.desk.describe(host)
    }

    fn report(&self, host: &str, report: AgentReport) -> Result<AgentOrders, StoreError> {
        let (generation, wait) = (report.generation, Duration::from_millis(report.wait_ms));
        self.claim(host)?;
        if report.at_work {
            return self.desk.note_heard(host).map(|()| AgentOrders::default());
        }
        self.desk.report(host, report)?;
        Ok(self.runtime.block_on(self.desk.work(host, generation, wait)))
    }

    fn ending(&self) -> &ShutdownDeadline {
        &self.desk.ending
    }
}
