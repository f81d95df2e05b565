//! Migrations and emptied hosts through the API, with agents that the tests implement and with simulated hosts.

use crate::protocol::{agent_of, run};
use crate::service::*;
use longma_placement::Request;
use longma_placement::hypervisor::Pins;
use longma_placement::reconcile::Ready;
use longma_placement::store::{Vm, VmState};
use longma_placement_service::Client;
use longma_placement_service::client::ClientError;
use longma_placement_service::wire::{
    AgentChange, AgentOrders, AgentReport, Drained, HostView, Migrate, Order, OrderDone, OrderKind,
    Preparation, ProblemKind,
};
use serde_json::json;

fn kind<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> ProblemKind {
    match answer {
        Err(ClientError::Refused(problem)) => problem.kind,
        other => panic!("{other:?}"),
    }
}

/// An agent that a test implements.
struct Played<'a> {
    client: Client,
    host: &'a str,
    generation: u64,
}

impl<'a> Played<'a> {
    fn new(service: &Service, host: &'a str) -> Self {
        Self { client: agent_of(service, host), host, generation: 0 }
    }

    fn report(&mut self, done: Vec<OrderDone>) -> Vec<Order> {
        let report = AgentReport { done, generation: self.generation, wait_ms: 50, ..AgentReport::default() };
        let path = format!("/v1/agents/{}/report", self.host);
        let work: AgentOrders = self.client.post(&path, None, &report).unwrap();
        self.generation = work.generation;
        work.orders
    }

    fn order(&mut self) -> Order {
        let mut orders = Vec::new();
        until("an order arrives", || {
            orders.extend(self.report(Vec::new()));
            !orders.is_empty()
        });
        orders.remove(0)
    }

    fn change(&self, change: &AgentChange) -> Result<Option<Vm>, ClientError> {
        self.client.post(&format!("/v1/agents/{}/changes", self.host), None, change)
    }

    fn prepare(&self, vm: i64) -> Result<Preparation, ClientError> {
        self.client.post(&format!("/v1/agents/{}/migrations/{vm}/prepare", self.host), None, &())
    }
}

#[test]
fn both_agents_take_part_and_neither_can_do_the_others_part() {
    let service = service_with(TestOptions { without_agent: true, ..TestOptions::default() });
    let (mut one, admin) = (Played::new(&service, "h1"), service.admin.clone());
    one.report(Vec::new());
    let vm: Vm = admin.post("/v1/vms", None, &Request::new("a", 2, 64)).unwrap();
    run(&one.client, &vm);
    let alone = admin.post::<Vm>("/v1/vms/a/migrate", None, &Migrate::default()).unwrap_err();
    assert!(alone.to_string().contains("there is no other host"), "{alone}");
    let mut two = Played::new(&service, "h2");
    two.report(Vec::new());
    let to = |host: &str| Migrate { to: Some(host.into()) };
    let tenant = service.client("t", "tenant", Some("default"));
    assert_eq!(kind(tenant.post::<Vm>("/v1/vms/a/migrate", None, &to("h2"))), ProblemKind::NotAllowed);
    assert_eq!(kind(admin.post::<Vm>("/v1/vms/a/migrate", None, &to("h1"))), ProblemKind::WrongState);
    assert_eq!(kind(admin.post::<Vm>("/v1/vms/a/migrate", None, &to("h9"))), ProblemKind::NotFound);
    let own = AgentReport { protocol: 1, generation: 1, ..AgentReport::default() };
    two.client.post::<AgentOrders>("/v1/agents/h2/report", None, &own).unwrap();
    assert_eq!(
        kind(admin.post::<Vm>("/v1/vms/a/migrate", None, &to("h2"))),
        ProblemKind::WrongState,
        "an old agent"
    );
    two.report(Vec::new());
    // A migration that was not ordered cannot begin.
    let target = longma_placement::Placement { host: "h2".into(), ..vm.placement.clone().unwrap() };
    let begin = AgentChange::BeginMigration { vm: vm.id, target: target.clone() };
    assert_eq!(kind(one.change(&begin)), ProblemKind::Conflict);
    assert!(matches!(one.prepare(vm.id).unwrap(), Preparation::Refused(_)));
    let ops = service.client("ops", "operator", None);
    let asked = std::thread::spawn(move || ops.post::<Vm>("/v1/vms/a/migrate", None, &Migrate::default()));
    let order = one.order();
    assert_eq!((order.kind, order.vm, &*order.target.host), (OrderKind::Migrate, vm.id, "h2"));
    assert_eq!(kind(admin.post::<Vm>("/v1/vms/a/migrate", None, &to("h2"))), ProblemKind::Busy);
    let elsewhere = longma_placement::Placement { bound: vec![7], ..order.target.clone() };
    assert_eq!(
        kind(one.change(&AgentChange::BeginMigration { vm: vm.id, target: elsewhere })),
        ProblemKind::Conflict
    );
    let begin = AgentChange::BeginMigration { vm: vm.id, target: order.target.clone() };
    assert_eq!(kind(two.change(&begin)), ProblemKind::NotFound, "it is not on that agent's host");
    assert_eq!(one.change(&begin).unwrap().unwrap().state, VmState::Migrating);
    assert_eq!(
        kind(two.change(&AgentChange::EndMigration { vm: vm.id, problem: None })),
        ProblemKind::NotFound
    );
    assert_eq!(kind(two.prepare(vm.id)), ProblemKind::NotFound);
    let source = one.client.clone();
    let preparing = std::thread::spawn(move || {
        let path = format!("/v1/agents/h1/migrations/{}/prepare", order.vm);
        (source.post::<Preparation>(&path, None, &()).unwrap(), order.number)
    });
    let receive = two.order();
    assert_eq!((receive.kind, &receive.target), (OrderKind::Receive, &order_target(&begin)));
    let ready = Ready { address: "x://two".into(), pins: Pins::default() };
    two.report(vec![OrderDone { number: receive.number, problem: None, ready: Some(ready.clone()) }]);
    let (prepared, number) = preparing.join().unwrap();
    assert_eq!(prepared, Preparation::Ready(ready));
    one.change(&AgentChange::EndMigration { vm: vm.id, problem: None }).unwrap();
    one.report(vec![OrderDone { number, problem: None, ready: None }]);
    let moved = asked.join().unwrap().unwrap();
    assert_eq!((moved.state, &*moved.placement.unwrap().host), (VmState::Running, "h2"));
    let events: Vec<_> =
        admin.get::<serde_json::Value>("/v1/audit-log").unwrap()["items"].as_array().unwrap().clone();
    let audited =
        events.iter().find(|record| record["action"] == "POST /v1/vms/a/migrate" && record["status"] == 200);
    assert_eq!(audited.unwrap()["actor"], "ops");
}

#[test]
fn an_agent_at_work_since_before_the_service_started_is_not_called_old() {
    let service = service_with(TestOptions { without_agent: true, ..TestOptions::default() });
    let mut one = Played::new(&service, "h1");
    one.report(Vec::new());
    let vm: Vm = service.admin.post("/v1/vms", None, &Request::new("a", 2, 64)).unwrap();
    run(&one.client, &vm);
    let two = service.client("h2", "agent", Some("h2"));
    let description = AgentChange::Describe(host("h2"));
    two.post::<Option<Vm>>("/v1/agents/h2/changes", None, &description).unwrap();
    let at_work = AgentReport { at_work: true, ..AgentReport::default() };
    two.post::<AgentOrders>("/v1/agents/h2/report", None, &at_work).unwrap();
    let to = Migrate { to: Some("h2".into()) };
    assert_eq!(kind(service.admin.post::<Vm>("/v1/vms/a/migrate", None, &to)), ProblemKind::AgentNotHere);
}

fn order_target(begin: &AgentChange) -> longma_placement::Placement {
    match begin {
        AgentChange::BeginMigration { target, .. } => target.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_reason_of_the_only_other_host_is_stated() {
    let service = service_with(TestOptions { without_agent: true, ..TestOptions::default() });
    let (mut one, admin) = (Played::new(&service, "h1"), service.admin.clone());
    one.report(Vec::new());
    let vm: Vm = admin.post("/v1/vms", None, &Request::new("a", 2, 64)).unwrap();
    run(&one.client, &vm);
    Played::new(&service, "h2").report(Vec::new());
    admin.post::<Drained>("/v1/hosts/h2/drain", None, &()).unwrap();
    for migrate in [Migrate::default(), Migrate { to: Some("h2".into()) }] {
        let refused = admin.post::<Vm>("/v1/vms/a/migrate", None, &migrate).unwrap_err().to_string();
        assert!(refused.contains("host h2 ") && !refused.contains("none of"), "{refused}");
    }
}

#[test]
fn a_restarted_agent_frees_its_hosts_for_another_migration() {
    let service = service_with(TestOptions { without_agent: true, ..TestOptions::default() });
    let (mut one, admin) = (Played::new(&service, "h1"), service.admin.clone());
    one.report(Vec::new());
    let vm: Vm = admin.post("/v1/vms", None, &Request::new("a", 2, 64)).unwrap();
    run(&one.client, &vm);
    Played::new(&service, "h2").report(Vec::new());
    let asking = admin.clone();
    let asked = std::thread::spawn(move || asking.post::<Vm>("/v1/vms/a/migrate", None, &Migrate::default()));
    one.order();
    // A new process knows no generation.
    one.generation = 0;
    one.report(Vec::new());
    assert_eq!(kind(asked.join().unwrap()), ProblemKind::NoAnswer);
    let again = std::thread::spawn(move || admin.post::<Vm>("/v1/vms/a/migrate", None, &Migrate::default()));
    let order = one.order();
    one.report(vec![OrderDone {
        number: order.number,
        problem: Some("said by the agent".into()),
        ready: None,
    }]);
    assert_eq!(kind(again.join().unwrap()), ProblemKind::NotMoved);
}

#[test]
fn an_emptied_host_says_what_cannot_leave() {
    let service = service();
    let admin = &service.admin;
    let vm: Vm = admin.post("/v1/vms", None, &Request::new("a", 2, 64)).unwrap();
    until("it runs", || admin.get::<Vm>(&format!("/v1/vms/{}", vm.id)).unwrap().state == VmState::Running);
    let drained: Drained = admin.post("/v1/hosts/h1/drain?empty=true", None, &()).unwrap();
    assert_eq!((json!(drained.host.status), drained.left.len()), (json!("emptying"), 1));
    let problems = || admin.get::<HostView>("/v1/hosts/h1").unwrap().problems;
    until("the reason is shown", || problems().iter().any(|p| p.contains("(a) cannot leave")));
    // Stopped virtual machines move, too, as soon as there is room.
    admin.post::<Vm>("/v1/vms/a/stop", None, &()).unwrap();
    admin.post::<Drained>("/v1/hosts/h1/undrain", None, &()).unwrap();
    assert!(problems().is_empty());
    until("it is stopped", || admin.get::<Vm>("/v1/vms/a").unwrap().state == VmState::Stopped);
    Played::new(&service, "h2").report(Vec::new());
    admin.post::<Drained>("/v1/hosts/h1/drain?empty=true", None, &()).unwrap();
    until("it is elsewhere", || admin.get::<Vm>("/v1/vms/a").unwrap().placement.unwrap().host == "h2");
}
