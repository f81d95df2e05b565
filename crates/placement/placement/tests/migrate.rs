//! Migrations between two modelled hosts: after a failure at any step, and a restart of the failed part, the virtual
//! machine runs on one host, its resources are reserved only there, and it has never run on both.

#[path = "support/faulty_store.rs"]
mod faulty_store;

use faulty_store::FaultyStore;
use longma_placement::fake::{FakeHypervisor, FakeNetwork, Fault};
use longma_placement::hypervisor::{Hypervisor as _, Outgoing, domain_name};
use longma_placement::reconcile::{is_converged, migrate_vm, receive, reconcile};
use longma_placement::request::CpuPolicy;
use longma_placement::store::{AgentStore as _, Intent, Vm, VmState};
use longma_placement::{Allocator, Host, Policy, Request, SqlStore, Store};
use longma_topology::Machine;
use std::sync::Arc;

struct Site {
    store: Arc<FaultyStore>,
    network: FakeNetwork,
    /// The hypervisors of the source and of the target.
    hypervisors: [FakeHypervisor; 2],
    hosts: [Host; 2],
    id: i64,
    _folder: tempfile::TempDir,
}

fn site() -> Site {
    let memory = std::path::Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let inner = Arc::new(SqlStore::open_file(&folder.path().join("placement.db")).unwrap());
    let machine = Machine::open("hygon-8node").unwrap();
    let mut hosts =
        ["h1", "h2"].map(|name| Host::of_machine(&machine, name).unwrap().with_first_core_reserved());
    // The target reserves a second core for itself, which on the source is dedicated to the virtual machine.
    hosts[1].reserved = "0,1,64,65".parse().unwrap();
    let network = FakeNetwork::watched();
    let hypervisors = ["one", "two"].map(|address| network.connect(address, FakeHypervisor::new()));
    let mut site = Site {
        store: Arc::new(FaultyStore::new(inner.clone())),
        network,
        hypervisors,
        hosts,
        id: 0,
        _folder: folder,
    };
    // Shared virtual CPUs on the target's first nodes, which must leave the CPUs that the migration dedicates.
    inner.put_host(&site.hosts[1], 200).unwrap();
    for name in ["b", "c"] {
        site.place(&Request::new(name, 2, 30_000));
    }
    inner.put_host(&site.hosts[0], 200).unwrap();
    inner.set_host_status("h2", longma_placement::inventory::HostStatus::Draining, false).unwrap();
    site.id = site.place(&Request { cpu: CpuPolicy::Exclusive, ..Request::new("a", 4, 1024) }).id;
    inner.set_host_status("h2", longma_placement::inventory::HostStatus::Up, false).unwrap();
    site.reconcile();
    assert_eq!((site.vm().state, site.host()), (VmState::Running, "h1".to_string()));
    site
}

impl Site {
    fn place(&self, request: &Request) -> Vm {
        let mut allocator = Allocator::open(self.store.inner.clone(), Policy::default(), 1).unwrap();
        allocator.place(request, None).unwrap().vm
    }

    fn vm(&self) -> Vm {
        self.store.inner.vm(self.id).unwrap()
    }

    fn host(&self) -> String {
        self.vm().placement.unwrap().host
    }

    fn reconcile(&mut self) {
        for (hypervisor, host) in self.hypervisors.iter_mut().zip(&self.hosts) {
            // Fails while something is down.
            let _ = reconcile(&*self.store, hypervisor, host);
        }
    }

    /// The migration as the source's agent makes it. Returns its problems.
    fn migrate(&mut self) -> Vec<String> {
        let mut allocator = Allocator::open(self.store.inner.clone(), Policy::default(), 1).unwrap();
        let Ok(target) = allocator.migration_target(self.id, Some("h2")) else { return Vec::new() };
        let [source, destination] = &mut self.hypervisors;
        let (store, hosts, id) = (&*self.store, &self.hosts, self.id);
        let mut prepare = || receive(store, destination, &hosts[1], id).map_err(|error| error.to_string());
        let done = migrate_vm(store, source, &hosts[0], id, &target, &mut prepare);
        done.map_or_else(|error| vec![error.to_string()], |report| report.problems)
    }

    /// All failed parts work again, and the agents find the remaining state.
    fn recover(&mut self) {
        self.store.recover();
        self.hypervisors.iter().for_each(FakeHypervisor::recover);
        (0..3).for_each(|_| self.reconcile());
    }

    fn check(&mut self, when: &str) {
        let name = domain_name(self.id);
        assert_eq!(self.network.doubles(), Vec::<String>::new(), "{when}: it ran twice");
        assert_eq!(self.store.check().unwrap(), Vec::<String>::new(), "{when}");
        let (vm, on) = (self.vm(), usize::from(self.host() == "h2"));
        assert_eq!((vm.state, vm.target), (VmState::Running, None), "{when}");
        let here = self.hypervisors[on].domains()[&name].clone();
        assert!(here.running && here.paused.is_none(), "{when}: {here:?}");
        assert!(!self.hypervisors[1 - on].domains().contains_key(&name), "{when}: something was left");
        for (hypervisor, host) in self.hypervisors.iter_mut().zip(&self.hosts) {
            assert!(is_converged(&*self.store, hypervisor, host).unwrap(), "{when}");
        }
        let used = self.store.tenants().unwrap();
        assert_eq!((used[0].vms, used[0].vcpus), (3, 8), "{when}: its quota is counted once");
    }
}

#[test]
fn a_migrated_virtual_machine_runs_on_the_target_with_new_pins() {
    let mut site = site();
    let before = site.vm().placement.unwrap();
    assert_eq!(site.migrate(), Vec::<String>::new());
    // The source's agent has resumed the virtual machine on the target, without waiting for the target's agent.
    let name = domain_name(site.id);
    let there = site.hypervisors[1].domains()[&name].clone();
    assert!(there.running && there.paused.is_none(), "{there:?}");
    let placement = site.vm().placement.unwrap();
    assert_eq!((placement.host.as_str(), site.vm().problem), ("h2", None));
    assert_ne!(
        placement.cells[0].cpus, before.cells[0].cpus,
        "the target's first core is reserved for its own"
    );
    for (pin, cpu) in there.pins.vcpus.iter().zip(&placement.cells[0].cpus) {
        assert_eq!(pin.to_string(), cpu.to_string());
    }
    // Before the virtual machine arrived, the others had left its CPUs.
    for (other, actual) in site.hypervisors[1].domains() {
        assert!(other == name || !actual.may_run_on(&there.pins.vcpus[0]), "{other} may run on its CPU");
    }
    site.recover();
    site.check("after it");
    let events = site.store.events(0, 0).unwrap();
    let kinds: Vec<_> =
        events.iter().filter(|e| e.vm == Some(site.id)).map(|e| (&*e.kind, e.host.as_deref())).collect();
    let expected = ["migrating", "migrating", "migrated", "migrated"].into_iter().zip([
        Some("h1"),
        Some("h2"),
        Some("h2"),
        Some("h1"),
    ]);
    assert_eq!(kinds[kinds.len() - 4..], expected.collect::<Vec<_>>());
}

/// Runs the migration with a fault at each of its steps, and once without. Returns the number of steps, and how many of
/// the runs ended with the virtual machine on the target.
fn at_each_step(
    what: &str,
    arm: impl Fn(&Site, u64),
    came: impl Fn(&Site, u64) -> bool,
    repair: impl Fn(&Site),
) -> (u64, u64) {
    let mut arrived = 0;
    for at in 0.. {
        let mut site = site();
        arm(&site, at);
        site.migrate();
        assert!(site.network.doubles().is_empty(), "{what} {at}: it runs twice");
        let came = came(&site, at);
        repair(&site);
        site.recover();
        site.check(&format!("{what} {at}"));
        arrived += u64::from(site.host() == "h2");
        if !came {
            return (at, arrived);
        }
        // The virtual machine can be migrated afterwards.
        if site.host() == "h1" {
            assert_eq!(site.migrate(), Vec::<String>::new(), "{what} {at}");
            site.recover();
            site.check(&format!("{what} {at}, again"));
            assert_eq!(site.host(), "h2");
        }
    }
    unreachable!()
}

#[test]
fn a_failure_of_either_hypervisor_at_any_step_leaves_one_running_copy() {
    for (side, name) in ["source", "target"].into_iter().enumerate() {
        for fault in [Fault::Refuse, Fault::CrashBefore, Fault::CrashAfter] {
            // After a crash, the daemon may be restarted, too.
            for restarts in [false, true].into_iter().take(if fault == Fault::Refuse { 1 } else { 2 }) {
                let calls = std::cell::Cell::new(0);
                let arm = |site: &Site, at: u64| {
                    calls.set(site.hypervisors[side].calls());
                    site.hypervisors[side].fail_after(at, fault);
                };
                let came = |site: &Site, at: u64| site.hypervisors[side].calls() - calls.get() > at;
                let repair = |site: &Site| {
                    if restarts {
                        site.hypervisors.iter().for_each(FakeHypervisor::restart);
                    }
                };
                let (steps, _) = at_each_step(&format!("{name} {fault:?} {restarts}"), arm, came, repair);
                assert!(steps >= 3, "{name}: {steps} steps");
            }
        }
    }
}

#[test]
fn a_crash_before_or_after_any_change_of_the_store_leaves_one_running_copy() {
    for after in [false, true] {
        let arm = |site: &Site, at: u64| site.store.die_after(at, after);
        let came = |site: &Site, _| site.store.tenants().is_err();
        let (steps, arrived) = at_each_step(&format!("store, after {after}"), arm, came, |_| {});
        assert_eq!(steps, 2, "the reservation and the end");
        // One is the run without a fault, the other the crash at the end: the source's agent then knows that the
        // virtual machine has left.
        assert_eq!(arrived, 2);
    }
}

#[test]
fn a_lost_answer_of_the_target_resumes_the_source_and_its_copy_is_removed() {
    let mut site = site();
    // The third call on the target after the migration has begun: prepare, allocate, finish.
    let mut at = 0;
    loop {
        site.hypervisors[1].fail_after(at, Fault::CrashAfter);
        let problems = site.migrate();
        let copy = site.hypervisors[1].domains().get(&domain_name(site.id)).cloned();
        if copy.as_ref().is_some_and(|copy| copy.paused.as_deref() == Some("user")) {
            assert!(problems[0].contains("was not migrated"), "{problems:?}");
            break;
        }
        site.recover();
        assert_eq!(site.host(), "h1", "the fault at {at} came too late");
        at += 1;
    }
    assert_eq!(site.host(), "h1");
    assert!(site.vm().problem.unwrap().contains("migrate longma-3"));
    let source = site.hypervisors[0].domains()[&domain_name(site.id)].clone();
    assert!(source.running && source.paused.is_none(), "{source:?}");
    site.recover();
    site.check("after a lost answer");
    assert_eq!(site.host(), "h1");
}

#[test]
fn the_target_refuses_if_it_is_occupied_or_on_no_network() {
    let mut site = site();
    site.hypervisors[1].add_foreign(&domain_name(site.id));
    let problems = site.migrate();
    assert!(
        problems[0].contains("h2 is not ready") && problems[0].contains("does not belong to it"),
        "{problems:?}"
    );
    site.hypervisors[1].tamper(&domain_name(site.id), |_| false);
    site.network.set_cut(true);
    let problems = site.migrate();
    assert!(problems[0].contains("no connection"), "{problems:?}");
    site.network.set_cut(false);
    site.recover();
    site.check("after refusals");
    assert_eq!(site.host(), "h1");
    // The owner sees the problem. The next successful migration clears it.
    assert!(site.vm().problem.unwrap().contains("no connection"));
    site.migrate();
    assert_eq!(site.vm().problem, None);
}

#[test]
fn an_interrupted_migration_is_left_alone_while_it_is_in_progress_and_aborted_after_its_time() {
    let mut site = site();
    let mut allocator = Allocator::open(site.store.inner.clone(), Policy::default(), 1).unwrap();
    let target = allocator.migration_target(site.id, Some("h2")).unwrap();
    site.store.begin_migration(site.id, &target).unwrap();
    let name = domain_name(site.id);
    for for_s in [10, 601] {
        site.hypervisors[0].set_outgoing(&name, Outgoing::InProgress { for_s });
        let report = reconcile(&*site.store, &mut site.hypervisors[0], &site.hosts[0]).unwrap();
        assert!(report.problems[0].contains("is still being migrated"), "{report:?}");
        assert_eq!(site.vm().state, VmState::Migrating);
        let is_aborted = site.hypervisors[0].outgoing(&name).unwrap() == Outgoing::Stays;
        assert_eq!(is_aborted, for_s > 600);
    }
    // The owner's requests during the migration take effect afterwards.
    site.store.set_intent(site.id, Intent::Delete).unwrap();
    site.recover();
    assert_eq!(site.vm().state, VmState::Deleted);
    assert_eq!(site.store.check().unwrap(), Vec::<String>::new());
}
