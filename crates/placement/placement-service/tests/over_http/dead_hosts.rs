//! A host dies: it is declared dead, its virtual machines start elsewhere, and it is removed.

use crate::protocol::{agent_of, run};
use crate::service::*;
use longma_placement::store::{AgentStore as _, Vm, VmState};
use longma_placement::{Allocator, Policy, Request, SqlStore, Store as _};
use longma_placement_service::Client;
use longma_placement_service::client::ClientError;
use longma_placement_service::wire::{
    Drained, Evacuate, Evacuation, HostView, Hosts, ProblemKind, Tenants, Tokens, VmPage,
};
use serde_json::{Value, json};
use std::sync::Arc;

fn kind<T>(answer: Result<T, ClientError>) -> ProblemKind {
    match answer {
        Err(ClientError::Refused(problem)) => problem.kind,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was not refused"),
    }
}

/// A service whose database has a host h1 with the running virtual machines `names`. No agent reports for the host.
fn service_with_silent_host(names: &[&str]) -> Service {
    use std::os::unix::fs::DirBuilderExt;
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    std::fs::DirBuilder::new().mode(0o700).create(&home).unwrap();
    let store = Arc::new(SqlStore::open_file(&home.join("placement.db")).unwrap());
    store.put_host(&host("h1"), 200).unwrap();
    let mut allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
    for name in names {
        let id = allocator.place(&Request::new(name, 2, 512), None).unwrap().vm.id;
        store.transition(id, VmState::Reserved, VmState::Creating, None).unwrap();
        store.transition(id, VmState::Creating, VmState::Running, None).unwrap();
    }
    drop((allocator, store));
    service_in(folder, TestOptions { without_agent: true, ..TestOptions::default() })
}

fn evacuate(client: &Client, fenced: bool) -> Result<Evacuation, ClientError> {
    client.post("/v1/hosts/h1/evacuate", None, &Evacuate { fenced })
}

#[test]
fn a_host_whose_agent_reports_is_not_dead() {
    let service = service();
    let admin = &service.admin;
    admin.post::<Vm>("/v1/vms", None, &Request::new("a", 2, 512)).unwrap();
    assert_eq!(kind(admin.post::<Drained>("/v1/hosts/h1/force-down", None, &())), ProblemKind::HostAlive);
    assert_eq!(kind(evacuate(admin, true)), ProblemKind::HostAlive);
    assert_eq!(kind(admin.delete::<()>("/v1/hosts/h1")), ProblemKind::HostAlive);
    assert_eq!(kind(admin.delete::<Vm>("/v1/vms/a?force=true")), ProblemKind::Conflict);
    assert_eq!(admin.get::<HostView>("/v1/hosts/h1").unwrap().vms, 1);
}

#[test]
fn a_dead_hosts_virtual_machines_start_elsewhere_and_it_is_removed() {
    let service = service_with_silent_host(&["a", "b"]);
    let admin = &service.admin;
    let other = agent_of(&service, "h2");
    service.token("h1", "agent", Some("h1"));
    assert_eq!(kind(evacuate(admin, true)), ProblemKind::WrongState, "it was not declared dead");
    let downed: Drained = admin.post("/v1/hosts/h1/force-down", None, &()).unwrap();
    assert_eq!((downed.left.len(), json!(downed.host.status)), (2, json!("forced-down")));
    assert_eq!(kind(evacuate(admin, false)), ProblemKind::WrongFields, "it may still run");
    let tenant = service.client("t", "tenant", Some("default"));
    assert_eq!(kind(evacuate(&tenant, true)), ProblemKind::NotAllowed);
    let done = evacuate(admin, true).unwrap();
    assert!(done.stayed.is_empty() && done.assumed.contains("h1 is off or fenced"), "{done:?}");
    assert_eq!(done.left.iter().map(|vm| vm.to.as_deref()).collect::<Vec<_>>(), [Some("h2"); 2]);
    for vm in other.get::<Vec<Vm>>("/v1/agents/h2/vms").unwrap() {
        assert_eq!(vm.state, VmState::Reserved);
        run(&other, &vm);
    }
    admin.delete::<()>("/v1/hosts/h1").unwrap();
    let hosts: Hosts = admin.get("/v1/hosts").unwrap();
    assert_eq!(hosts.items.iter().map(|host| (&*host.name, host.vms)).collect::<Vec<_>>(), [("h2", 2)]);
    let tokens: Tokens = admin.get("/v1/tokens").unwrap();
    assert!(tokens.items.iter().all(|token| token.scope.as_deref() != Some("h1")), "{tokens:?}");
    assert_eq!(kind(admin.get::<HostView>("/v1/hosts/h1")), ProblemKind::NotFound);
    let audit: Value = admin.get("/v1/audit").unwrap();
    assert_eq!(audit["database"], json!([]));
}

#[test]
fn a_virtual_machine_that_fits_nowhere_can_be_deleted_by_force() {
    let service = service_with_silent_host(&["a"]);
    let admin = &service.admin;
    assert_eq!(kind(admin.delete::<Vm>("/v1/vms/a?force=true")), ProblemKind::Conflict, "not declared dead");
    admin.post::<Drained>("/v1/hosts/h1/force-down", None, &()).unwrap();
    let done = evacuate(admin, true).unwrap();
    assert_eq!((done.left.len(), done.stayed.len()), (0, 1));
    assert_eq!(kind(admin.delete::<()>("/v1/hosts/h1")), ProblemKind::Conflict, "a virtual machine is on it");
    let tenant = service.client("t", "tenant", Some("default"));
    assert_eq!(kind(tenant.delete::<Vm>("/v1/vms/a?force=true")), ProblemKind::NotAllowed);
    let deleted: Vm = admin.delete("/v1/vms/a?force=true").unwrap();
    assert_eq!(deleted.state, VmState::Deleted);
    assert!(admin.get::<VmPage>("/v1/vms").unwrap().items.is_empty());
    assert_eq!(admin.get::<Tenants>("/v1/tenants").unwrap().items[0].vms, 0, "its quota is free");
    admin.delete::<()>("/v1/hosts/h1").unwrap();
}

#[test]
fn a_host_that_returns_takes_virtual_machines_after_it_is_undrained() {
    let service = service_with_silent_host(&[]);
    let admin = &service.admin;
    admin.post::<Drained>("/v1/hosts/h1/force-down", None, &()).unwrap();
    let request = Request::new("a", 1, 64);
    assert_eq!(kind(admin.post::<Vm>("/v1/vms", None, &request)), ProblemKind::NoRoom);
    agent_of(&service, "h1");
    assert_eq!(json!(admin.get::<HostView>("/v1/hosts/h1").unwrap().status), json!("forced-down"));
    admin.post::<Drained>("/v1/hosts/h1/undrain", None, &()).unwrap();
    admin.post::<Vm>("/v1/vms", None, &request).unwrap();
}
