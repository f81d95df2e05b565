//! The protocol for clients, agents and log readers: headers, operation IDs, types of problems, streams, orders.

use crate::service::*;
use longma_placement::Request;
use longma_placement::store::{Vm, VmState};
use longma_placement_service::Client;
use longma_placement_service::openapi;
use longma_placement_service::wire::{AgentChange, AgentOrders, AgentReport, HostView, OrderDone, Rebind};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::sync::mpsc::channel;

/// A client with the token of a host's agent, which has described the host.
pub fn agent_of(service: &Service, name: &str) -> Client {
    let agent = service.client(name, "agent", Some(name));
    let path = format!("/v1/agents/{name}/changes");
    agent.post::<Option<Vm>>(&path, None, &AgentChange::Describe(host(name))).unwrap();
    agent.post::<AgentOrders>(&format!("/v1/agents/{name}/report"), None, &AgentReport::default()).unwrap();
    agent
}

/// Reports the states of a virtual machine up to `Running`, as its host's agent does.
pub fn run(agent: &Client, vm: &Vm) {
    let path = format!("/v1/agents/{}/changes", vm.placement.as_ref().unwrap().host);
    for (from, to) in [(VmState::Reserved, VmState::Creating), (VmState::Creating, VmState::Running)] {
        let change = AgentChange::Transition { vm: vm.id, from, to, problem: None };
        agent.post::<Option<Vm>>(&path, None, &change).unwrap();
    }
}

#[test]
fn only_the_hosts_own_agent_answers_its_orders() {
    let service = service_with(TestOptions { without_agent: true, ..TestOptions::default() });
    let agent = agent_of(&service, "h1");
    let vm: Vm = service.admin.post("/v1/vms", None, &Request::new("a", 2, 64)).unwrap();
    run(&agent, &vm);
    let other = agent_of(&service, "h2");
    let (send, moved) = channel();
    let admin = service.admin.clone();
    std::thread::spawn(move || {
        send.send(admin.post::<Vm>("/v1/vms/a/rebind", None, &Rebind::default())).unwrap();
    });
    let mut orders = Vec::new();
    until("the order is handed out", || {
        let report = AgentReport { wait_ms: 100, ..AgentReport::default() };
        let work: AgentOrders = agent.post("/v1/agents/h1/report", None, &report).unwrap();
        orders.extend(work.orders);
        !orders.is_empty()
    });
    let done = |problem: &str| AgentReport {
        done: vec![OrderDone { number: orders[0].number, problem: Some(problem.into()), ready: None }],
        ..AgentReport::default()
    };
    other.post::<AgentOrders>("/v1/agents/h2/report", None, &done("said by the other")).unwrap();
    agent.post::<AgentOrders>("/v1/agents/h1/report", None, &done("said by its own")).unwrap();
    let answer = moved.recv().unwrap().unwrap_err().to_string();
    assert!(answer.contains("said by its own"), "{answer}");
}

#[test]
fn agents_of_other_versions_work_or_say_what_to_update() {
    let service = service_with(TestOptions { without_agent: true, ..TestOptions::default() });
    agent_of(&service, "h1");
    let token = service.token("old", "agent", Some("h1"));
    let send = |headers: &str, body: &str| {
        let request = format!(
            "POST /v1/agents/h1/report HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\
             content-type: application/json\r\nauthorization: Bearer {token}\r\n{headers}\r\n{body}",
            body.len()
        );
        service.raw(request.as_bytes())
    };
    // The first version of the protocol.
    let answer = send("", r#"{"load":[],"problems":[]}"#);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("longma-protocol: 2"), "{answer}");
    let view: HostView = service.admin.get("/v1/hosts/h1").unwrap();
    assert!(view.problems.iter().any(|problem| problem.contains("older version")), "{:?}", view.problems);
    // A later version, whose reports have other fields.
    let answer = send("longma-protocol: 3\r\n", r#"{"protocol":3,"invented":1}"#);
    assert!(answer.starts_with("HTTP/1.1 409 ") && answer.contains("update the service first"), "{answer}");
    let answer = send("longma-protocol: 2\r\n", r#"{"protocol":2}"#);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let view: HostView = service.admin.get("/v1/hosts/h1").unwrap();
    assert_eq!(view.problems, Vec::<String>::new());
}

#[test]
fn http_1_1_requires_exactly_one_host_header() {
    let service = service_with(TestOptions { without_agent: true, ..TestOptions::default() });
    let answer = |version: &str, hosts: &str| {
        let request = format!("GET /healthz HTTP/{version}\r\n{hosts}connection: close\r\n\r\n");
        service.raw(request.as_bytes()).get(9..12).unwrap_or_default().to_string()
    };
    assert_eq!(answer("1.1", "host: x\r\n"), "200");
    assert_eq!(answer("1.0", ""), "200");
    assert_eq!(answer("1.1", ""), "400");
    assert_eq!(answer("1.1", "host: x\r\nhost: y\r\n"), "400");
}

#[test]
fn every_operation_has_its_own_id() {
    let document = serde_json::to_value(openapi()).unwrap();
    let mut ids = BTreeSet::new();
    for operations in document["paths"].as_object().unwrap().values() {
        for operation in operations.as_object().unwrap().values() {
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_string()), "{id} is used twice");
        }
    }
}

#[test]
fn a_silent_stream_ends_when_its_token_is_removed() {
    let service = service_with(TestOptions { without_agent: true, ..TestOptions::default() });
    let token = service.token("watcher", "tenant", Some("a"));
    let mut stream = service.connect();
    write!(stream, "GET /v1/watch HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n").unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    service.admin.delete::<Value>("/v1/tokens/watcher").unwrap();
    let (mut seen, mut read) = (String::new(), [0; 1024]);
    loop {
        match stream.read(&mut read).unwrap() {
            0 => return,
            bytes => seen += &String::from_utf8_lossy(&read[..bytes]),
        }
        // Comments keep an open stream alive.
        assert!(seen.matches("\n:").count() < 2, "it is still open: {seen}");
    }
}

#[test]
fn the_log_names_the_invalid_field() {
    let service = service_with(TestOptions { without_agent: true, ..TestOptions::default() });
    assert_eq!(
        service.admin_status("POST", "/v1/vms", r#"{"name": "a", "vcpus": 0, "memory_mib": 64}"#),
        422
    );
    until("it is logged", || service.logged.lock().unwrap().iter().any(|line| line.contains("vcpus")));
}

#[test]
fn problems_have_a_kind_for_programs() {
    let service = service_with(TestOptions { without_agent: true, ..TestOptions::default() });
    let asked = |vcpus: u32| {
        let answer = service.admin.post::<Vm>("/v1/vms", None, &Request::new("a", vcpus, 64));
        match answer.unwrap_err() {
            longma_placement_service::client::ClientError::Refused(problem) => {
                serde_json::to_value(problem).unwrap()["kind"].clone()
            }
            other => panic!("{other}"),
        }
    };
    assert_eq!(asked(2), json!("no-room"));
    assert_eq!(asked(0), json!("wrong-fields"));
}

#[test]
fn with_one_host_the_answer_names_the_missing_resource() {
    let service = service_with(TestOptions { without_agent: true, ..TestOptions::default() });
    agent_of(&service, "h1");
    let body = json!({ "name": "a", "vcpus": 1, "memory_mib": 9_000_000 });
    let refused = service.admin.post::<Vm>("/v1/vms", None, &body).unwrap_err().to_string();
    assert!(refused.contains("h1") && refused.contains("MiB free"), "{refused}");
    let tenant = service.client("acme", "tenant", Some("acme"));
    let refused = tenant.post::<Vm>("/v1/vms", None, &body).unwrap_err().to_string();
    assert!(!refused.contains("h1"), "tenants learn nothing about hosts: {refused}");
}
