//! Successful use of the API: create to delete, idempotency, paging, watching, explanations, TLS.

use crate::service::*;
use longma_placement::fake::FakeHypervisor;
use longma_placement::scheduler::Explanation;
use longma_placement::store::{Intent, Vm, VmState};
use longma_placement_service::agent::{Agent, Description};
use longma_placement_service::client::ClientError;
use longma_placement_service::wire::{
    Audit, Defragmentation, Drained, HostView, Hosts, Rebind, Resize, VmPage,
};
use longma_placement_service::{Access, Client};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

fn running(client: &Client, name: &str) -> bool {
    client.get::<Vm>(&format!("/v1/vms/{name}")).is_ok_and(|vm| vm.state == VmState::Running)
}

fn title<T>(answer: Result<T, ClientError>) -> (u16, String) {
    match answer {
        Err(ClientError::Refused(problem)) => (problem.status, problem.title),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was not refused"),
    }
}

#[test]
fn a_virtual_machine_from_its_request_to_its_end() {
    let service = service();
    let admin = &service.admin;
    let body = json!({ "name": "db", "vcpus": 4, "memory_mib": 8192, "cpu": "exclusive" });
    let vm: Vm = admin.post("/v1/vms", None, &body).unwrap();
    until("it runs", || running(admin, "db"));
    let domains = service.hypervisor.domains();
    let domain = &domains["longma-1"];
    let placement = vm.placement.unwrap();
    assert_eq!(domain.pins.vcpus.len(), 4);
    let cpus: Vec<u32> = domain.pins.vcpus.iter().flat_map(|p| p.iter().collect::<Vec<_>>()).collect();
    assert_eq!(cpus, placement.cells[0].cpus, "each virtual CPU on its own");
    assert_eq!(domain.bound, placement.bound);

    let other = (placement.cells[0].node + 1) % 8;
    let moved: Vm = admin.post("/v1/vms/db/rebind", None, &Rebind { nodes: vec![other] }).unwrap();
    assert_eq!(moved.placement.unwrap().cells[0].node, other);
    assert_eq!(service.hypervisor.domains()["longma-1"].bound, [other]);
    let (status, _) = title(admin.post::<Vm>("/v1/vms/db/rebind", None, &Rebind { nodes: vec![77] }));
    assert_eq!(status, 422, "there is no such node");

    admin.post::<Vm>("/v1/vms/db/stop", None, &()).unwrap();
    until("it is stopped", || !service.hypervisor.domains()["longma-1"].running);
    until("it is reported as stopped", || admin.get::<Vm>("/v1/vms/db").unwrap().state == VmState::Stopped);
    assert_eq!(title(admin.post::<Vm>("/v1/vms/db/rebind", None, &Rebind::default())).0, 409);
    let size = |vcpus| Resize { vcpus: Some(vcpus), memory_mib: None };
    let resized: Vm = admin.post("/v1/vms/db/resize", None, &size(6)).unwrap();
    assert_eq!((resized.request.vcpus, resized.request.memory_mib), (6, 8192));
    assert_eq!(title(admin.post::<Vm>("/v1/vms/db/resize", None, &size(0))).0, 422);
    assert_eq!(title(admin.post::<Vm>("/v1/vms/db/resize", None, &size(1000))).0, 409, "no room");
    admin.post::<Vm>("/v1/vms/db/start", None, &()).unwrap();
    until("it runs again", || running(admin, "db"));
    assert_eq!(service.hypervisor.domains()["longma-1"].pins.vcpus.len(), 6, "with its new size");
    assert_eq!(title(admin.post::<Vm>("/v1/vms/db/resize", None, &size(2))).0, 409, "it runs");

    let deleted: Vm = admin.delete("/v1/vms/db").unwrap();
    assert_eq!(deleted.intent, Intent::Delete);
    until("nothing is left", || service.hypervisor.domains().is_empty());
    until("its name is free", || admin.get::<Vm>("/v1/vms/db").is_err());
    assert_eq!(
        title(admin.post::<Vm>("/v1/vms/1/start", None, &())).0,
        404,
        "what is deleted does not come back"
    );
    let host: HostView = admin.get("/v1/hosts/h1").unwrap();
    assert!(host.vms == 0 && host.nodes.iter().all(|n| n.exclusive == 0 && n.memory[0].2 == 0));
    let audit: Audit = admin.get("/v1/audit").unwrap();
    assert!(audit.database.is_empty() && audit.hosts[0].findings.is_empty());
}

#[test]
fn requests_with_one_key_create_one_virtual_machine() {
    let service = service();
    let body = json!({ "name": "a", "vcpus": 1, "memory_mib": 64 });
    let key = "0b2d";
    let ask = |client: Client, body: Value| {
        std::thread::spawn(move || client.post::<Vm>("/v1/vms", Some(key), &body))
    };
    let asked: Vec<_> = (0..8).map(|_| ask(service.admin.clone(), body.clone())).collect();
    let ids: Vec<i64> = asked.into_iter().map(|a| a.join().unwrap().unwrap().id).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let other = json!({ "name": "a", "vcpus": 2, "memory_mib": 64 });
    assert_eq!(title(service.admin.post::<Vm>("/v1/vms", Some(key), &other)).1, "key used already");
    assert_eq!(title(service.admin.post::<Vm>("/v1/vms", None, &body)).1, "exists already");
}

#[test]
fn an_integer_is_accepted_in_any_notation() {
    let service = service();
    let body = |vcpus: &str| format!(r#"{{"name":"a","vcpus":{vcpus},"memory_mib":64.0}}"#);
    assert_eq!(service.admin_status("POST", "/v1/vms", &body("2.5")), 422);
    assert_eq!(service.admin_status("POST", "/v1/vms", &body("1e300")), 422);
    assert_eq!(service.admin_status("POST", "/v1/vms", &body("2.0")), 201);
    assert_eq!(service.admin.get::<Vm>("/v1/vms/a").unwrap().request.vcpus, 2);
}

#[test]
fn lists_are_paged_and_events_are_streamed() {
    let service = service();
    let (seen, was_seen) = channel();
    let watcher = service.admin.clone();
    std::thread::spawn(move || watcher.watch(Some(0), |event| seen.send(event).is_ok()));
    for n in 0..7 {
        let body = json!({ "name": format!("v{n}"), "vcpus": 1, "memory_mib": 64 });
        service.admin.post::<Vm>("/v1/vms", None, &body).unwrap();
    }
    let (mut names, mut after) = (Vec::new(), 0);
    loop {
        let page: VmPage = service.admin.get(&format!("/v1/vms?limit=3&after={after}")).unwrap();
        assert!(page.items.len() <= 3);
        names.extend(page.items.into_iter().map(|vm| vm.request.name));
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!(names, ["v0", "v1", "v2", "v3", "v4", "v5", "v6"]);
    let mut last = 0;
    let mut reserved = 0;
    while reserved < 7 {
        let event = was_seen.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(event.number > last, "in their order, each once");
        last = event.number;
        reserved += usize::from(event.kind == "reserved");
    }
    let tenant = service.client("t", "tenant", Some("acme"));
    let own = json!({ "name": "own", "vcpus": 1, "memory_mib": 64 });
    let vm: Vm = tenant.post("/v1/vms", None, &own).unwrap();
    tenant
        .watch(Some(0), |event| {
            assert_eq!(event.vm, Some(vm.id), "a tenant's own only");
            false
        })
        .unwrap();
}

#[test]
fn a_drained_host_accepts_nothing_and_the_explanation_states_it() {
    let service = service();
    let admin = &service.admin;
    let body = json!({ "name": "a", "vcpus": 4, "memory_mib": 1024, "cpu": "exclusive" });
    let fits: Explanation = admin.post("/v1/explain", None, &body).unwrap();
    assert_eq!((fits.fitting, fits.hosts[0].nodes.len()), (1, 8));
    assert!(!fits.hosts[0].nodes_chosen.is_empty());
    let drained: Drained = admin.post("/v1/hosts/h1/drain", None, &()).unwrap();
    assert!(drained.left.is_empty());
    assert_eq!(title(admin.post::<Vm>("/v1/vms", None, &body)), (409, "no room".into()));
    let not: Explanation = admin.post("/v1/explain", None, &body).unwrap();
    assert_eq!((not.fitting, &*not.hosts[0].refused[0].filter), (0, "status"));
    admin.post::<Drained>("/v1/hosts/h1/undrain", None, &()).unwrap();
    assert!(admin.post::<Vm>("/v1/vms", None, &body).is_ok());
    let large =
        json!({ "name": "b", "vcpus": 1000, "memory_mib": 1024, "cpu": "exclusive", "virtual_nodes": 1 });
    let no: Explanation = admin.post("/v1/explain?host=h1", None, &large).unwrap();
    let refusals = &no.hosts[0].nodes[3].refused;
    assert!(refusals.iter().any(|r| r.needed == 1000 && r.available <= 16), "{refusals:?}");
    assert_eq!(title(admin.post::<Value>("/v1/explain?host=h9", None, &body)).0, 404);
    let plan: Defragmentation = admin.get("/v1/hosts/h1/defragmentation").unwrap();
    assert!(plan.score_after <= plan.score_before);
}

#[test]
fn a_virtual_machine_that_cannot_start_is_failed_until_it_is_started_again() {
    let service = service();
    service.hypervisor.fail_after(service.hypervisor.calls() + 1, longma_placement::fake::Fault::Refuse);
    let body = json!({ "name": "a", "vcpus": 1, "memory_mib": 64 });
    service.admin.post::<Vm>("/v1/vms", None, &body).unwrap();
    until("it failed", || service.admin.get::<Vm>("/v1/vms/a").unwrap().state == VmState::Failed);
    let vm: Vm = service.admin.get("/v1/vms/a").unwrap();
    assert!(vm.problem.unwrap().contains("refused to start"));
    service.admin.post::<Vm>("/v1/vms/a/start", None, &()).unwrap();
    until("it runs", || running(&service.admin, "a"));
}

#[test]
fn a_remote_agent_creates_and_repairs_domains() {
    let service = service_with(TestOptions { without_agent: true, ..TestOptions::default() });
    let body = json!({ "name": "a", "vcpus": 2, "memory_mib": 1024 });
    assert_eq!(title(service.admin.post::<Vm>("/v1/vms", None, &body)), (409, "no room".into()));
    let hypervisor = FakeHypervisor::new();
    let agent = service.client("g", "agent", Some("far"));
    let description = Description::Fixed(Box::new(host("far")));
    let agent =
        Agent::remote(agent, "far", description, Box::new(hypervisor.clone()), Arc::new(|_: &str| {}));
    std::thread::spawn(move || agent.run());
    until("its host is registered", || !service.admin.get::<Hosts>("/v1/hosts").unwrap().items.is_empty());
    service.admin.post::<Vm>("/v1/vms", None, &body).unwrap();
    until("it runs", || running(&service.admin, "a"));
    let before = hypervisor.domains()["longma-1"].bound.clone();
    let mut moved = None;
    // The agent's first report comes after its first work.
    until("its agent reports and moves it", || {
        moved = service.admin.post::<Vm>("/v1/vms/a/rebind", None, &Rebind::default()).ok();
        moved.is_some()
    });
    let moved = moved.unwrap();
    assert_ne!(hypervisor.domains()["longma-1"].bound, before);
    assert_eq!(hypervisor.domains()["longma-1"].bound, moved.placement.unwrap().bound);
    // A domain is changed from outside: the next check finds and corrects it.
    hypervisor.tamper("longma-1", |domain| {
        domain.running = false;
        true
    });
    until("it runs again", || hypervisor.domains()["longma-1"].running);
    service.admin.delete::<Vm>("/v1/vms/a").unwrap();
    until("it is gone", || hypervisor.domains().is_empty());
}

#[test]
fn only_clients_that_trust_the_certificate_connect() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_string()]).unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let service = service_with(TestOptions { tls: Some((certificate, key)), ..TestOptions::default() });
    assert!(service.access.url.starts_with("https://"));
    assert!(service.admin.get::<VmPage>("/v1/vms").is_ok());
    let trusting_others = Access { certificate: None, ..service.access.clone() };
    let answer = Client::new(&trusting_others).unwrap().get::<VmPage>("/v1/vms");
    assert!(
        matches!(&answer, Err(ClientError::Untrusted { why, .. }) if why.contains("--certificate")),
        "{answer:?}"
    );
    let plain = service.raw(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(!plain.contains("200"), "{plain:?}");
}

#[test]
fn the_document_describes_every_answer() {
    let service = service();
    let document: Value = service.admin.get("/openapi.json").unwrap();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            assert!(operation["summary"].is_string(), "{method} {path} says what it does");
            assert!(operation["responses"].as_object().is_some_and(|r| !r.is_empty()), "{method} {path}");
        }
    }
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let text = document.to_string();
    for name in text.split("#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(schemas.contains_key(name), "{name} is described");
    }
}
