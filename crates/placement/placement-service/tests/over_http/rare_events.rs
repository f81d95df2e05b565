//! Rare events: CPUs go offline and return, and two machines claim to be the same host. `tests/placement_odd.py` covers
//! clock jumps and full disks.

use crate::service::*;
use longma_placement::fake::FakeHypervisor;
use longma_placement::hypervisor::{Domain, DomainEntry, DomainState, HypervisorError, Pins};
use longma_placement::placement::Share;
use longma_placement::store::{Alarm, Vm, VmState};
use longma_placement::{CpuSet, Hypervisor};
use longma_placement_service::agent::{Agent, Description};
use longma_placement_service::wire::{Alarms, HostView, Hosts};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn write_atomically(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    // Replace the file atomically, so that concurrent readers see either version.
    let temporary = path.with_extension("new");
    std::fs::write(&temporary, text).unwrap();
    std::fs::rename(temporary, path).unwrap();
}

fn set_online(root: &Path, cpus: &CpuSet) {
    write_atomically(root, "sys/devices/system/cpu/online", &cpus.to_string());
}

/// The files of a Linux machine with two nodes of four CPUs each.
fn write_sysfs(root: &Path) {
    for (node, cpus) in [(0, "0-3"), (1, "4-7")] {
        let folder = format!("sys/devices/system/node/node{node}");
        write_atomically(root, &format!("{folder}/cpulist"), cpus);
        write_atomically(root, &format!("{folder}/distance"), if node == 0 { "10 20" } else { "20 10" });
        let memory = format!("Node {node} MemTotal: 16777216 kB\nNode {node} MemFree: 16777216 kB\n");
        write_atomically(root, &format!("{folder}/meminfo"), &memory);
    }
    write_atomically(root, "proc/stat", "cpu 1 2 3 4\n");
    set_online(root, &(0..8).collect());
}

fn active_alarm(service: &Service, kind: &str) -> Option<Alarm> {
    service.admin.get::<Alarms>("/v1/alarms").unwrap().items.into_iter().find(|alarm| alarm.kind == kind)
}

fn dedicated_cpus(service: &Service, name: &str) -> Vec<u32> {
    let vm: Vm = service.admin.get(&format!("/v1/vms/{name}")).unwrap();
    vm.placement.unwrap().cells.iter().flat_map(|c| c.cpus.clone()).collect()
}

fn service_on_simulated_sysfs() -> (tempfile::TempDir, Service) {
    let folder = tempfile::tempdir().unwrap();
    write_sysfs(folder.path());
    let root = folder.path().to_path_buf();
    let (reserved, reserved_memory) = Default::default();
    let description = Some(Description::Read { root, name: "h1".into(), reserved, reserved_memory });
    (folder, service_with(TestOptions { description, ..TestOptions::default() }))
}

#[test]
fn a_host_with_renumbered_cpus_accepts_nothing_until_reservations_end() {
    let (folder, service) = service_on_simulated_sysfs();
    let body = |name: &str| json!({ "name": name, "vcpus": 2, "memory_mib": 1024, "cpu": "exclusive" });
    service.admin.post::<Vm>("/v1/vms", None, &body("db")).unwrap();
    until("it runs", || service.admin.get::<Vm>("/v1/vms/db").unwrap().state == VmState::Running);
    // The CPUs have moved to the other node.
    for (node, cpus) in [(0, "4-7"), (1, "0-3")] {
        write_atomically(folder.path(), &format!("sys/devices/system/node/node{node}/cpulist"), cpus);
    }
    until("an alarm is raised", || active_alarm(&service, "host-undescribed").is_some());
    let view: HostView = service.admin.get("/v1/hosts/h1").unwrap();
    assert!(view.problems[0].contains("is dedicated to a virtual machine on node"), "{:?}", view.problems);
    let refused = service.admin.post::<Vm>("/v1/vms", None, &body("other")).unwrap_err();
    assert!(refused.to_string().contains("no room") || refused.to_string().contains("409"), "{refused}");
    service.admin.delete::<Value>("/v1/vms/db").unwrap();
    until("it is described anew", || active_alarm(&service, "host-undescribed").is_none());
    until("it takes virtual machines", || service.admin.post::<Vm>("/v1/vms", None, &body("other")).is_ok());
    let cpus = dedicated_cpus(&service, "other");
    let view: HostView = service.admin.get("/v1/hosts/h1").unwrap();
    assert_eq!(view.nodes.iter().map(|n| n.cpus).sum::<u32>(), 8);
    assert_eq!(cpus.len(), 2);
}

#[test]
fn a_virtual_machine_moves_off_an_offline_cpu_which_stays_reserved() {
    let (folder, service) = service_on_simulated_sysfs();
    let body =
        json!({ "name": "db", "vcpus": 2, "memory_mib": 1024, "cpu": "exclusive", "memory": "strict" });
    service.admin.post::<Vm>("/v1/vms", None, &body).unwrap();
    until("it runs", || service.admin.get::<Vm>("/v1/vms/db").unwrap().state == VmState::Running);
    let before = dedicated_cpus(&service, "db");
    let node = service.admin.get::<Vm>("/v1/vms/db").unwrap().placement.unwrap().cells[0].node;
    let offline = before[0];
    set_online(folder.path(), &(0..8).filter(|cpu| *cpu != offline).collect());
    until("it left the CPU", || !dedicated_cpus(&service, "db").contains(&offline));
    let now: Vm = service.admin.get("/v1/vms/db").unwrap();
    assert_eq!(now.placement.unwrap().cells[0].node, node, "near its memory, where CPUs were free");
    let pins = service.hypervisor.domains()["longma-1"].pins.clone();
    let pinned: Vec<u32> = pins.vcpus.iter().flat_map(|p| p.iter().collect::<Vec<_>>()).collect();
    assert_eq!(pinned, dedicated_cpus(&service, "db"));
    until("the alarm is cleared", || active_alarm(&service, "host-lost").is_none());
    let events: Value = service.admin.get("/v1/alarms?all=true").unwrap();
    assert!(events.to_string().contains("host-lost"), "it was raised: {events}");
    let view: HostView = service.admin.get("/v1/hosts/h1").unwrap();
    assert_eq!(view.nodes.iter().map(|n| n.cpus).sum::<u32>(), 7);
    // All remaining CPUs can be dedicated except the last one, which is left for the host and emulators.
    let large =
        |vcpus| json!({ "name": format!("n{vcpus}"), "vcpus": vcpus, "memory_mib": 64, "cpu": "exclusive" });
    assert!(service.admin.post::<Vm>("/v1/vms", None, &large(3)).is_ok());
    assert!(service.admin.post::<Vm>("/v1/vms", None, &large(2)).is_err());
    let audit: Value = service.admin.get("/v1/audit").unwrap();
    assert_eq!(audit["database"], json!([]));
}

#[test]
fn without_free_cpus_the_alarm_lasts_until_the_cpu_returns() {
    let (folder, service) = service_on_simulated_sysfs();
    let body = |name, vcpus| json!({ "name": name, "vcpus": vcpus, "memory_mib": 64, "cpu": "exclusive", "virtual_nodes": 1 });
    for (name, vcpus) in [("a", 4), ("b", 3)] {
        service.admin.post::<Vm>("/v1/vms", None, &body(name, vcpus)).unwrap();
    }
    until("they run", || {
        ["a", "b"]
            .iter()
            .all(|n| service.admin.get::<Vm>(&format!("/v1/vms/{n}")).unwrap().state == VmState::Running)
    });
    let before = dedicated_cpus(&service, "a");
    set_online(folder.path(), &(0..8).filter(|cpu| *cpu != before[1]).collect());
    until("an alarm is raised", || active_alarm(&service, "host-lost").is_some());
    let view: HostView = service.admin.get("/v1/hosts/h1").unwrap();
    let problem = format!("CPU {} of node", before[1]);
    assert!(view.problems.iter().any(|p| p.starts_with(&problem)), "{:?}", view.problems);
    assert!(
        service.admin.post::<Vm>("/v1/vms", None, &body("c", 1)).is_err(),
        "the last CPU is not given away"
    );
    assert_eq!(dedicated_cpus(&service, "a"), before, "it stays: there is nowhere else");
    set_online(folder.path(), &(0..8).collect());
    until("it is cleared", || active_alarm(&service, "host-lost").is_none());
    let view: HostView = service.admin.get("/v1/hosts/h1").unwrap();
    assert!(view.problems.is_empty(), "{:?}", view.problems);
}

/// A hypervisor that takes long to start a domain, like one that allocates all memory first.
struct Slow(FakeHypervisor);

impl Hypervisor for Slow {
    fn start(&mut self, name: &str) -> Result<(), HypervisorError> {
        std::thread::sleep(Duration::from_secs(12));
        self.0.start(name)
    }
    fn list(&mut self) -> Result<Vec<DomainEntry>, HypervisorError> {
        self.0.list()
    }
    fn inspect(&mut self, name: &str) -> Result<Option<DomainState>, HypervisorError> {
        self.0.inspect(name)
    }
    fn define(&mut self, domain: &Domain) -> Result<(), HypervisorError> {
        self.0.define(domain)
    }
    fn stop(&mut self, name: &str) -> Result<(), HypervisorError> {
        self.0.stop(name)
    }
    fn undefine(&mut self, name: &str) -> Result<(), HypervisorError> {
        self.0.undefine(name)
    }
    fn pin_vcpu(&mut self, name: &str, vcpu: u32, cpus: &CpuSet) -> Result<(), HypervisorError> {
        self.0.pin_vcpu(name, vcpu, cpus)
    }
    fn pin_emulator(&mut self, name: &str, cpus: &CpuSet) -> Result<(), HypervisorError> {
        self.0.pin_emulator(name, cpus)
    }
    fn bind_memory(&mut self, name: &str, nodes: &[u32]) -> Result<(), HypervisorError> {
        self.0.bind_memory(name, nodes)
    }
    fn move_memory(&mut self, name: &str, cell: usize, shares: &[Share]) -> Result<(), HypervisorError> {
        self.0.move_memory(name, cell, shares)
    }
}

#[test]
fn an_agent_sends_heartbeats_during_long_operations() {
    let service = service_with(TestOptions { without_agent: true, ..TestOptions::default() });
    let client = service.client_of(&service.token("g", "agent", Some("far")));
    let description = Description::Fixed(Box::new(host("far")));
    let slow = Box::new(Slow(FakeHypervisor::new()));
    let agent = Agent::remote(client, "far", description, slow, Arc::new(|_: &str| {}));
    std::thread::spawn(move || agent.run());
    until("its host is registered", || service.admin.get::<HostView>("/v1/hosts/far").is_ok());
    let state = |name: &str| service.admin.get::<Vm>(&format!("/v1/vms/{name}")).unwrap().state;
    service.admin.post::<Vm>("/v1/vms", None, &json!({ "name": "a", "vcpus": 2, "memory_mib": 64 })).unwrap();
    until("it is begun", || state("a") == VmState::Creating);
    std::thread::sleep(Duration::from_secs(9));
    let heard = service.admin.get::<HostView>("/v1/hosts/far").unwrap().heard_s;
    assert_eq!(state("a"), VmState::Creating);
    assert!(heard.is_some_and(|seconds| seconds < 8), "heard of {heard:?} s ago");
    until("it runs", || state("a") == VmState::Running);
}

#[test]
fn an_agent_on_a_copied_machine_is_refused_while_the_first_runs() {
    let service = service_with(TestOptions { without_agent: true, ..TestOptions::default() });
    let token = service.token("g", "agent", Some("far"));
    let (first, second) = (FakeHypervisor::new(), FakeHypervisor::new());
    let start = |hypervisor: &FakeHypervisor, machine: &str| {
        let client = service.client_of(&token).for_machine(machine);
        let description = Description::Fixed(Box::new(host("far")));
        let agent =
            Agent::remote(client, "far", description, Box::new(hypervisor.clone()), Arc::new(|_: &str| {}));
        std::thread::spawn(move || agent.run());
    };
    start(&first, "one");
    until("its host is registered", || service.admin.get::<HostView>("/v1/hosts/far").is_ok());
    let body = json!({ "name": "a", "vcpus": 2, "memory_mib": 1024 });
    service.admin.post::<Vm>("/v1/vms", None, &body).unwrap();
    until("it runs", || service.admin.get::<Vm>("/v1/vms/a").unwrap().state == VmState::Running);
    start(&second, "two");
    until("an alarm is raised", || active_alarm(&service, "second-agent").is_some());
    // The second agent keeps trying, but starts none of the first one's virtual machines.
    std::thread::sleep(Duration::from_secs(4));
    assert!(second.domains().is_empty(), "the same disk twice");
    assert!(first.domains()["longma-1"].running);
    service.admin.delete::<Vm>("/v1/vms/a").unwrap();
    until("the first agent continues", || first.domains().is_empty());
}

#[test]
fn a_moved_database_raises_an_alarm_and_rejects_changes() {
    let service = service();
    let ask = |name: &str| {
        let body = json!({ "name": name, "vcpus": 1, "memory_mib": 64 }).to_string();
        service.admin_status("POST", "/v1/vms", &body)
    };
    assert_eq!(ask("before"), 201);
    let (file, away) = (service.folder.path().join("home/placement.db"), service.folder.path().join("away"));
    std::fs::rename(&file, &away).unwrap();
    assert_eq!(ask("lost"), 503);
    until("the alarm is raised", || active_alarm(&service, "database-moved").is_some());
    assert_eq!(service.admin_status("GET", "/healthz", ""), 503);
    assert_eq!(service.admin_status("GET", "/v1/vms/before", ""), 200, "reads still work");
    let logged = service.logged.lock().unwrap().join("\n");
    assert!(logged.contains("placement.db was moved, deleted or replaced"), "{logged}");
    std::fs::rename(&away, &file).unwrap();
    until("writing resumes", || active_alarm(&service, "database-moved").is_none());
    assert_eq!((ask("after"), service.admin_status("GET", "/healthz", "")), (201, 200));
    assert_eq!(service.admin_status("GET", "/v1/vms/lost", ""), 404);
}

#[test]
fn hosts_are_listed_page_by_page_and_counted_all() {
    let service = service();
    let client = service.client_of(&service.token("g", "agent", Some("far")));
    let description = Description::Fixed(Box::new(host("far")));
    let agent =
        Agent::remote(client, "far", description, Box::new(FakeHypervisor::new()), Arc::new(|_: &str| {}));
    std::thread::spawn(move || agent.run());
    until("its host is registered", || service.admin.get::<HostView>("/v1/hosts/far").is_ok());
    let page = |query: &str| service.admin.get::<Hosts>(&format!("/v1/hosts{query}")).unwrap();
    let names = |page: &Hosts| page.items.iter().map(|host| host.name.clone()).collect::<Vec<_>>();
    let first = page("?limit=1");
    assert_eq!((names(&first), first.next.as_deref()), (vec!["far".to_string()], Some("far")));
    let second = page("?limit=1&after=far");
    assert_eq!((names(&second), second.next), (vec!["h1".to_string()], None));
    assert_eq!(names(&page("")), ["far", "h1"]);
    for wrong in ["limit=0", "limit=1001", "after=%00"] {
        assert_eq!(service.admin_status("GET", &format!("/v1/hosts?{wrong}"), ""), 400, "{wrong}");
    }
    let audit: Value = service.admin.get("/v1/audit").unwrap();
    assert_eq!(audit["hosts"].as_array().unwrap().len(), 2);
    let metrics = service.admin.get_text("/metrics").unwrap();
    assert!(metrics.contains(r#"longma_placement_hosts{what="up"} 2"#), "{metrics}");
}

#[test]
fn foreign_domains_are_shown_and_virtual_machines_do_not_get_their_cpus() {
    let service = service();
    let pins = Pins { vcpus: vec!["0-7,64-70".parse().unwrap(); 4], emulator: CpuSet::new() };
    let theirs =
        DomainState { running: true, pins, size_mib: Some(1000), bound: vec![0], ..DomainState::default() };
    service.hypervisor.put_foreign("theirs", theirs);
    let host = || service.admin.get::<HostView>("/v1/hosts/h1").unwrap();
    until("the service sees it", || {
        host().foreign_domains.len() == 1 && host().nodes[0].memory[0].1 == 32768 - 1024
    });
    let shown = serde_json::to_value(host()).unwrap();
    assert_eq!(shown["foreign_domains"][0]["cpus"], "0-7,64-70");
    assert_eq!(shown["foreign_domains"][0]["memory_mib"], json!({ "0": 1024 }));
    let request = json!({ "name": "a", "vcpus": 2, "memory_mib": 512, "cpu": "exclusive" });
    let vm: Vm = service.admin.post("/v1/vms", None, &request).unwrap();
    assert_ne!(vm.placement.unwrap().cells[0].node, 0, "only CPU 71 of node 0 is not pinned");
}
