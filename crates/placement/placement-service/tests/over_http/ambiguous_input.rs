//! Ambiguous input: a retry and a new request, a name and an ID, another tenant's object and one's own, text with
//! terminal control sequences.

use crate::service::*;
use longma_placement::audit::{Finding, What};
use longma_placement::fake::FakeHypervisor;
use longma_placement::request::CpuPolicy;
use longma_placement::store::{Vm, VmState};
use longma_placement::{Placement, Request};
use longma_placement_service::Client;
use longma_placement_service::agent::{Agent, Description};
use longma_placement_service::client::ClientError;
use longma_placement_service::wire::{AgentChange, AgentOrders, AgentReport, Audit};
use serde_json::{Value, json};
use std::io::Read;
use std::sync::{Arc, Mutex};

fn status<T>(answer: &Result<T, ClientError>) -> u16 {
    match answer {
        Err(ClientError::Refused(problem)) => problem.status,
        Err(error) => panic!("{error}"),
        Ok(_) => 200,
    }
}

/// A service without an agent, and a client with the token of host h1's agent.
fn service_without_agent() -> (Service, Client) {
    let service = service_with(TestOptions { without_agent: true, ..TestOptions::default() });
    let agent = service.client("agent", "agent", Some("h1"));
    agent.post::<Option<Vm>>("/v1/agents/h1/changes", None, &AgentChange::Describe(host("h1"))).unwrap();
    agent.post::<AgentOrders>("/v1/agents/h1/report", None, &AgentReport::default()).unwrap();
    (service, agent)
}

#[test]
fn a_repeated_request_is_recognized_by_its_key_even_if_it_took_the_last_resources() {
    let service = service();
    let ask = |name: &str, key: &str, memory: u64| {
        let body = json!({ "name": name, "vcpus": 1, "memory_mib": memory });
        service.admin.post::<Vm>("/v1/vms", Some(key), &body)
    };
    let mut made = Vec::new();
    while let Ok(vm) = ask(&format!("f{}", made.len()), &format!("k{}", made.len()), 20_000) {
        made.push(vm.id);
        assert!(made.len() < 100);
    }
    assert!(!made.is_empty());
    for (number, id) in made.iter().enumerate() {
        assert_eq!(ask(&format!("f{number}"), &format!("k{number}"), 20_000).unwrap().id, *id);
    }
    assert_eq!(status(&ask("f0", "k0", 30_000)), 422, "the key is another request's");
    assert_eq!(status(&ask("new", "new", 20_000)), 409);
    // Concurrent requests with the same key all return the same virtual machine.
    service.admin.delete::<Vm>("/v1/vms/f0").unwrap();
    until("its room is free", || ask("last", "probe-is-no-key-of-it", 20_000).is_ok() || made.is_empty());
    service.admin.delete::<Vm>("/v1/vms/last").unwrap();
    until("it is gone", || service.admin.get::<Vm>("/v1/vms/last").is_err());
    let ids: Vec<_> = std::thread::scope(|scope| {
        let askers: Vec<_> = (0..8).map(|_| scope.spawn(|| ask("one", "one", 20_000).unwrap().id)).collect();
        askers.into_iter().map(|asker| asker.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

#[test]
fn a_number_is_not_a_name_and_a_named_tenant_must_own_the_virtual_machine() {
    let service = service();
    let ask = |name: &str, tenant: &str| {
        let body = json!({ "name": name, "tenant": tenant, "vcpus": 1, "memory_mib": 16 });
        service.admin.post::<Vm>("/v1/vms", None, &body)
    };
    let id = ask("web", "a").unwrap().id;
    assert_eq!(status(&ask(&id.to_string(), "b")), 422);
    assert_eq!(status(&service.admin.delete::<Vm>(&format!("/v1/vms/{id}?tenant=b"))), 404);
    assert_eq!(status(&service.admin.get::<Vm>(&format!("/v1/vms/{id}?tenant=a"))), 200);
}

#[test]
fn one_tenants_watchers_do_not_exclude_other_tenants() {
    let service = service();
    let token = service.token("t", "tenant", Some("t"));
    let watch = |token: &str| {
        let mut stream = service.connect();
        let request = format!("GET /v1/watch HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n");
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        (stream, String::from_utf8_lossy(&answer[9..]).into_owned())
    };
    let held: Vec<_> = (0..24).map(|_| watch(&token)).collect();
    assert!(held.iter().filter(|(_, status)| status == "200").count() >= 8);
    assert!(held.iter().any(|(_, status)| status == "503"), "it has as many as it likes");
    assert_eq!(watch(&service.access.token).1, "200");
    drop(held);
    until("its places are free again", || watch(&token).1 == "200");
}

#[test]
fn an_agents_texts_cannot_control_an_operators_terminal() {
    let (service, agent) = service_without_agent();
    let text = format!("\x1b[2J{}\n", "x".repeat(100_000));
    let finding = Finding {
        vm: None,
        domain: text.clone(),
        what: What::Orphan,
        intended: text.clone(),
        actual: text.clone(),
    };
    let report = AgentReport {
        findings: Some(vec![finding; 20]),
        problems: vec![text.clone(); 20],
        ..AgentReport::default()
    };
    agent.post::<AgentOrders>("/v1/agents/h1/report", None, &report).ok();
    let small = AgentReport {
        findings: report.findings.map(|all| all[..2].to_vec()),
        problems: vec![text],
        ..AgentReport::default()
    };
    agent.post::<AgentOrders>("/v1/agents/h1/report", None, &small).unwrap();
    let audit: Audit = service.admin.get("/v1/audit").unwrap();
    let host = &audit.hosts[0];
    assert_eq!((host.findings.len(), host.problems.len()), (2, 1));
    for text in [&host.findings[0].domain, &host.findings[0].actual, &host.problems[0]] {
        assert!(text.chars().count() <= 2000 && !text.chars().any(char::is_control), "{text:?}");
    }
}

/// An agent may move a virtual machine only to a placement with the same amounts of existing resources.
#[test]
fn an_agent_cannot_shrink_a_virtual_machine_by_moving_it() {
    let (service, agent) = service_without_agent();
    let mut request = Request::new("own", 2, 64);
    request.cpu = CpuPolicy::Exclusive;
    let vm: Vm = service.admin.post("/v1/vms", None, &request).unwrap();
    let change = |change: AgentChange| agent.post::<Option<Vm>>("/v1/agents/h1/changes", None, &change);
    for (from, to) in [(VmState::Reserved, VmState::Creating), (VmState::Creating, VmState::Running)] {
        change(AgentChange::Transition { vm: vm.id, from, to, problem: None }).unwrap();
    }
    let here = vm.placement.unwrap();
    let odd: [fn(&mut Placement); 8] = [
        |p| p.cells.clear(),
        |p| p.cells[0].cpus = vec![9998, 9999],
        |p| p.cells[0].cpus.truncate(1),
        |p| p.cells[0].memory.clear(),
        |p| p.cells[0].vcpus = 4_000_000_000,
        |p| p.bound = vec![77],
        |p| p.groups.push("other/group".into()),
        |p| p.cpu = CpuPolicy::None,
    ];
    for (number, corrupt) in odd.iter().enumerate() {
        let mut target = here.clone();
        corrupt(&mut target);
        let answer = change(AgentChange::BeginMove { vm: vm.id, target });
        assert_eq!(status(&answer), 409, "number {number}");
    }
    let shown: Vm = service.admin.get(&format!("/v1/vms/{}", vm.id)).unwrap();
    assert_eq!((shown.state, shown.placement), (VmState::Running, Some(here)));
}

#[test]
fn an_invalid_template_is_refused_before_resources_are_reserved() {
    let service = service();
    for xml in
        ["<domain>", "<network/>", "<!DOCTYPE d [<!ENTITY e SYSTEM '/etc/passwd'>]><domain>&e;</domain>", ""]
    {
        let body =
            json!({ "name": "t", "vcpus": 1, "memory_mib": 16, "boot": { "template": { "xml": xml } } });
        assert_eq!(status(&service.admin.post::<Vm>("/v1/vms", None, &body)), 422, "{xml}");
    }
    let none: Value = service.admin.get("/v1/vms").unwrap();
    assert_eq!(none["items"].as_array().map(Vec::len), Some(0));
}

/// Group rules by node also apply after the first placement. The error names the group and the conflicting member.
#[test]
fn a_rebind_forbidden_by_a_group_names_the_group_and_the_member() {
    let service = service();
    let groups = json!([{ "group": "apart", "relation": "anti-affinity", "level": "node" },
        { "group": "near", "relation": "affinity", "level": "host" }]);
    let made: Vec<Vm> = (0..8)
        .map(|v| {
            let body = json!({ "name": format!("m{v}"), "vcpus": 1, "memory_mib": 64, "groups": groups });
            service.admin.post("/v1/vms", None, &body).unwrap()
        })
        .collect();
    let runs = |vm: &Vm| service.admin.get::<Vm>(&format!("/v1/vms/{}", vm.id)).unwrap().state;
    until("they run", || made.iter().all(|vm| runs(vm) == VmState::Running));
    let rebind = |body: Value| service.admin.post::<Vm>("/v1/vms/m0/rebind", None, &body);
    let node = |vm: &Vm| vm.placement.as_ref().unwrap().cells[0].node;
    for body in [json!({}), json!({ "nodes": [node(&made[3])] })] {
        let Err(ClientError::Refused(problem)) = rebind(body.clone()) else { panic!("{body}") };
        assert_eq!(problem.status, 409);
        assert!(problem.detail.contains("group apart forbids node"), "{problem:?}");
        let named = if body["nodes"].is_array() {
            format!("m3 (virtual machine {})", made[3].id)
        } else {
            "m".into()
        };
        assert!(problem.detail.contains(&format!("its member {named}")), "{problem:?}");
    }
    service.admin.delete::<Vm>("/v1/vms/m3").unwrap();
    until("its node is free", || rebind(json!({ "nodes": [node(&made[3])] })).is_ok());
    // Groups do not forbid the move, but the host is draining.
    service.admin.post::<Value>("/v1/hosts/h1/drain", None, &json!({})).unwrap();
    let Err(ClientError::Refused(problem)) = rebind(json!({})) else { panic!("it is draining") };
    assert!(problem.detail.contains("draining"), "{problem:?}");
}

#[test]
fn an_agent_with_another_hosts_token_gets_a_clear_error() {
    let service = service_with(TestOptions { without_agent: true, ..TestOptions::default() });
    let client = service.client("agent", "agent", Some("h1"));
    let logged = Arc::new(Mutex::new(Vec::new()));
    let log = logged.clone();
    let agent = Agent::remote(
        client,
        "h2",
        Description::Fixed(Box::new(host("h2"))),
        Box::new(FakeHypervisor::new()),
        Arc::new(move |line: &str| log.lock().unwrap().push(line.to_string())),
    );
    // The agent retries until the test process ends.
    std::thread::spawn(|| agent.run());
    let messages = || logged.lock().unwrap().join("; ");
    until("it says why", || messages().contains("this token is for another host's agent"));
    assert!(!messages().contains("database"), "{}", messages());
}

#[test]
fn the_authorization_scheme_is_case_insensitive() {
    let service = service();
    let status = |scheme: &str| {
        let headers = format!("authorization: {scheme} {}\r\n", service.access.token);
        service.status("GET", "/v1/hosts", &headers, "")
    };
    assert_eq!(["Bearer", "bearer", "BEARER"].map(status), [200; 3]);
    assert_eq!(["Basic", "Bearer:", ""].map(status), [401; 3]);
}

#[test]
fn errors_quote_no_control_characters() {
    let service = service();
    let path = format!("/v1/vms/{}", longma_placement_service::client::part("\x1b[31mX"));
    let refused = service.admin.get::<Vm>(&path).unwrap_err().to_string();
    assert!(refused.contains("[31mX (404") && !refused.chars().any(char::is_control), "{refused:?}");
}

#[test]
fn impossible_values_are_reported_with_their_names() {
    let service = service();
    let body = json!({ "name": "web", "vcpus": 1, "memory_mib": 16 });
    service.admin.post::<Vm>("/v1/vms", None, &body).unwrap();
    until("it runs", || service.admin.get::<Vm>("/v1/vms/web").unwrap().state == VmState::Running);
    let resized = service.admin.post::<Vm>("/v1/vms/web/resize", None, &json!({ "vcpus": 2 }));
    let message = resized.unwrap_err().to_string();
    assert!(message.contains("is running; this needs one that is stopped"), "{message}");
    service.admin.post::<Vm>("/v1/vms/web/stop", None, &json!({})).unwrap();
    until("it is stopped", || service.admin.get::<Vm>("/v1/vms/web").unwrap().state == VmState::Stopped);
    service.admin.post::<Value>("/v1/hosts/h1/drain", None, &json!({})).unwrap();
    let resized = service.admin.post::<Vm>("/v1/vms/web/resize", None, &json!({ "vcpus": 2 }));
    let message = resized.unwrap_err().to_string();
    assert!(message.contains("it is draining"), "{message}");
    assert_eq!(status(&service.admin.get::<Value>("/v1/vms?host=h9")), 404);
    let tenant = service.client("a", "tenant", Some("a"));
    assert_eq!(status(&tenant.get::<Value>("/v1/vms?host=h9")), 200, "it learns of no host");
    let token = &service.access.token;
    for path in ["/v1/vms/%ff", "/v1/hosts/%ff", "/v1/tokens/%ff", "/v1/agents/h1/vms/x/y"] {
        let answer = service.raw(
            format!(
                "GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
            )
            .as_bytes(),
        );
        assert!(answer.contains("application/problem+json"), "{path}: {answer}");
    }
}
