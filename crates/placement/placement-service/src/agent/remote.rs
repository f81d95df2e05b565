//! Control plane of an agent on another machine: implements the store operations that an agent needs
//! through the API.

use super::ControlPlane;
use crate::client::{Client, ClientError, part};
use crate::wire::{AgentChange, AgentOrders, AgentReport, Preparation, ProblemKind};
use longma_placement::hypervisor::ShutdownDeadline;
use longma_placement::store::{AgentStore, StoreError, Vm, VmId, VmState};
use longma_placement::{Host, Placement};

pub(super) struct Remote {
    store: RemoteStore,
    shutdown_deadline: ShutdownDeadline,
}

struct RemoteStore {
    client: Client,
    path: String,
}

type Result<T> = std::result::Result<T, StoreError>;

/// The error of a service, in one line for the log.
fn service(error: &ClientError) -> StoreError {
    StoreError::Service(error.to_string().replace("\n  ", "; "))
}

impl RemoteStore {
    fn change(&self, change: &AgentChange) -> Result<Option<Vm>> {
        let path = format!("{}/changes", self.path);
        self.client.post(&path, None, change).map_err(|error| match &error {
            ClientError::Refused(problem) if problem.kind == ProblemKind::Conflict => {
                StoreError::Conflict { host: "of this agent".into(), what: problem.detail.clone() }
            }
            _ => service(&error),
        })
    }

    fn own_vms(&self) -> Result<Vec<Vm>> {
        let path = format!("{}/vms", self.path);
        self.client.get(&path).map_err(|error| service(&error))
    }

    fn vm_after(&self, change: &AgentChange) -> Result<Vm> {
        self.change(change)?
            .ok_or_else(|| StoreError::Service("the service did not answer with the virtual machine".into()))
    }
}

impl Remote {
    pub fn new(client: Client, host: &str, shutdown_deadline: ShutdownDeadline) -> Self {
        Self { store: RemoteStore { client, path: format!("/v1/agents/{}", part(host)) }, shutdown_deadline }
    }
}

impl ControlPlane for Remote {
    fn store(&self) -> &dyn AgentStore {
        &self.store
    }

    fn describe(&self, host: &Host) -> Result<()> {
        self.store.change(&AgentChange::Describe(host.clone())).map(drop)
    }

    fn report(&self, _host: &str, report: AgentReport) -> Result<AgentOrders> {
        let path = format!("{}/report", self.store.path);
        self.store.client.post(&path, None, &report).map_err(|error| service(&error))
    }

    fn prepare(&self, vm: VmId) -> Result<Preparation> {
        let path = format!("{}/migrations/{vm}/prepare", self.store.path);
        self.store.client.post(&path, None, &()).map_err(|error| service(&error))
    }

    fn shutdown_deadline(&self) -> &ShutdownDeadline {
        &self.shutdown_deadline
    }
}

impl AgentStore for RemoteStore {
    fn identity(&self) -> Result<String> {
        let path = format!("{}/database", self.path);
        self.client.get(&path).map_err(|error| service(&error))
    }

    /// The path of the request names the host.
    fn host_vms(&self, _host: &str) -> Result<Vec<Vm>> {
        self.own_vms()
    }

    fn vm(&self, id: VmId) -> Result<Vm> {
        let unknown = || StoreError::Unknown { what: format!("virtual machine {id}") };
        self.own_vms()?.into_iter().find(|vm| vm.id == id).ok_or_else(unknown)
    }

    fn has_created(&self, id: VmId, created_at: Option<i64>) -> Result<bool> {
        let at = created_at.map(|at| format!("?created_at={at}")).unwrap_or_default();
        let path = format!("{}/made/{id}{at}", self.path);
        self.client.get(&path).map_err(|error| service(&error))
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

    fn begin_migration(&self, vm: VmId, target: &Placement) -> Result<Vm> {
        self.vm_after(&AgentChange::BeginMigration { vm, target: target.clone() })
    }

    fn end_migration(&self, vm: VmId, problem: Option<&str>) -> Result<Vm> {
        self.vm_after(&AgentChange::EndMigration { vm, problem: problem.map(str::to_string) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Problem;

    #[test]
    fn an_invalid_field_is_in_the_same_line_as_the_error() {
        let problem: Problem = serde_json::from_str(
            r#"{"status":422,"title":"wrong fields","detail":"a field is invalid","fields":[{"field":"a","problem":"is b"}]}"#,
        )
        .unwrap();
        let text = service(&ClientError::Refused(problem)).to_string();
        assert!(text.contains("a field is invalid (422 wrong fields); a: is b"), "{text}");
    }
}
