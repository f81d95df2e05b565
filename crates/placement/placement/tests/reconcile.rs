//! Simulated crashes between any two steps: after another run, the database and the fake hypervisor agree, and nothing
//! is reserved twice.

#[path = "support/faulty_store.rs"]
mod faulty_store;

use faulty_store::FaultyStore;
use longma_placement::audit::{What, audit};
use longma_placement::fake::{FakeHypervisor, Fault};
use longma_placement::hypervisor::domain_name;
use longma_placement::reconcile::{is_converged, move_vm, reconcile};
use longma_placement::request::{CpuPolicy, MemoryPolicy};
use longma_placement::store::{Intent, VmQuery, VmState};
use longma_placement::{Allocator, Host, Placement, Policy, Request, SqlStore, Store};
use longma_topology::Machine;
use std::sync::Arc;
use std::sync::atomic::Ordering;

struct Fixture {
    store: Arc<FaultyStore>,
    hypervisor: FakeHypervisor,
    host: Host,
    _folder: tempfile::TempDir,
}

fn fixture() -> Fixture {
    // The tests kill processes and not the machine, so a fast in-memory file system suffices.
    let memory = std::path::Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let inner = Arc::new(SqlStore::open_file(&folder.path().join("placement.db")).unwrap());
    let machine = Machine::open("hygon-8node").unwrap();
    let host = Host::of_machine(&machine, "h").unwrap().with_first_core_reserved();
    inner.put_host(&host, 200).unwrap();
    Fixture {
        store: Arc::new(FaultyStore::new(inner)),
        hypervisor: FakeHypervisor::new(),
        host,
        _folder: folder,
    }
}

impl Fixture {
    fn place(&self, request: &Request) -> Option<Placement> {
        // Each step simulates a new process that knows only the store. The key makes a step safe to repeat.
        let mut allocator = Allocator::open(self.store.clone(), Policy::default(), 1).ok()?;
        allocator.place(request, Some(&request.name)).ok()?.vm.placement
    }

    fn reconcile(&mut self) -> bool {
        reconcile(&*self.store, &mut self.hypervisor, &self.host).is_ok()
    }

    fn find(&self, name: &str) -> Option<longma_placement::store::Vm> {
        self.store.inner.find_vm("default", name).unwrap()
    }

    /// Another placement of a virtual machine, on nodes that it is not on.
    fn elsewhere(&self, name: &str) -> Option<Placement> {
        let vm = self.find(name)?;
        let mut allocator = Allocator::open(self.store.inner.clone(), Policy::default(), 1).unwrap();
        let taken: Vec<u32> = vm.placement.as_ref()?.cells.iter().map(|c| c.node).collect();
        let nodes: Vec<u32> = (0..8).filter(|n| !taken.contains(n)).collect();
        allocator.scheduler().decide_on(&vm.request, "h", &nodes, &vm.placement)
    }

    /// The steps of the scenario. Each may be repeated.
    fn step(&mut self, step: usize) {
        let exclusive = |name: &str| Request { cpu: CpuPolicy::Exclusive, ..Request::new(name, 4, 6000) };
        let preferred = MemoryPolicy::Preferred { within_distance: 255 };
        match step {
            0 => drop(self.place(&exclusive("a"))),
            1 => drop(self.place(&Request { memory: preferred, ..Request::new("b", 6, 40_000) })),
            2 => drop(self.place(&Request { cpu: CpuPolicy::None, ..Request::new("c", 2, 512) })),
            // The new virtual machine is on the nodes of the others. Those that share CPUs must be repinned.
            4 => drop(self.place(&exclusive("d"))),
            6 | 8 => {
                let name = if step == 6 { "a" } else { "b" };
                let running = self.find(name).is_some_and(|vm| vm.state == VmState::Running);
                if running && let Some(target) = self.elsewhere(name) {
                    let id = self.find(name).unwrap().id;
                    _ = move_vm(&*self.store, &mut self.hypervisor, &self.host, id, &target);
                }
            }
            10 => drop(self.find("a").map(|vm| self.store.set_intent(vm.id, Intent::Delete))),
            11 => drop(self.find("c").map(|vm| self.store.set_intent(vm.id, Intent::Stop))),
            13 => drop(self.find("c").map(|vm| self.store.set_intent(vm.id, Intent::Run))),
            _ => drop(self.reconcile()),
        }
    }

    fn has_converged(&mut self) -> bool {
        is_converged(&*self.store.inner, &mut self.hypervisor, &self.host).unwrap()
    }

    fn recover(&mut self) {
        self.store.recover();
        self.hypervisor.recover();
        assert!(self.reconcile());
        let findings = audit(&*self.store, &mut self.hypervisor, &self.host).unwrap();
        assert!(self.has_converged(), "{findings:?} {:?}", self.store.vms(&VmQuery::default()));
        assert_eq!(self.store.check().unwrap(), Vec::<String>::new());
        self.check_cpus();
    }

    /// No thread runs on a CPU dedicated to another virtual machine.
    fn check_cpus(&self) {
        let vms = self.store.inner.vms(&VmQuery::default()).unwrap();
        let domains = self.hypervisor.domains();
        for vm in &vms {
            for (_, cpu) in vm.placement.as_ref().unwrap().tally().exclusive {
                for other in vms.iter().filter(|o| o.id != vm.id) {
                    let Some(actual) = domains.get(&domain_name(other.id)).filter(|a| a.running) else {
                        continue;
                    };
                    let pins = actual.pins.vcpus.iter().chain([&actual.pins.emulator]);
                    assert!(
                        pins.into_iter().all(|p| !p.contains(cpu)),
                        "{} runs on CPU {cpu}",
                        other.request.name
                    );
                }
            }
        }
        let existing: Vec<String> = vms.iter().map(|vm| domain_name(vm.id)).collect();
        assert!(domains.keys().all(|d| existing.contains(d)), "no domain is left without a virtual machine");
    }
}

#[test]
fn the_number_of_reads_in_a_run_is_independent_of_the_number_of_virtual_machines() {
    let reads = |vms: u32| {
        let mut fixture = fixture();
        for vm in 0..vms {
            fixture.place(&Request::new(&format!("v{vm}"), 2, 512)).unwrap();
        }
        let before = fixture.store.host_reads.load(Ordering::SeqCst);
        assert!(fixture.reconcile() && fixture.has_converged());
        fixture.store.host_reads.load(Ordering::SeqCst) - before
    };
    assert_eq!(reads(1), reads(12));
}

const STEPS: usize = 16;

#[test]
fn the_scenario_without_faults_reaches_its_final_state() {
    let mut fixture = fixture();
    let moved_from = |h: &Fixture, name: &str| h.find(name).unwrap().placement;
    (0..6).for_each(|s| fixture.step(s));
    let (a, b) = (moved_from(&fixture, "a"), moved_from(&fixture, "b"));
    (6..10).for_each(|s| fixture.step(s));
    assert_ne!(moved_from(&fixture, "a"), a);
    assert_ne!(moved_from(&fixture, "b"), b);
    (10..STEPS).for_each(|s| fixture.step(s));
    assert!(fixture.has_converged());
    fixture.check_cpus();
    assert!(fixture.find("a").is_none());
    for name in ["b", "c", "d"] {
        assert_eq!(fixture.find(name).unwrap().state, VmState::Running, "{name}");
    }
    assert_eq!(fixture.store.check().unwrap(), Vec::<String>::new());
}

/// Runs the scenario once for every point at which the fault can occur. After the fault, the next process continues
/// from the state left behind.
fn with_each_fault(arm: impl Fn(&Fixture, u64), came: impl Fn(&Fixture) -> bool, at_least: u64) {
    for at in 0.. {
        let mut fixture = fixture();
        arm(&fixture, at);
        let mut recovered = false;
        for step in 0..STEPS {
            fixture.step(step);
            if !recovered && came(&fixture) {
                fixture.recover();
                recovered = true;
                // Repeat the interrupted step.
                fixture.step(step);
            }
        }
        fixture.recover();
        assert!(fixture.find("a").is_none());
        assert_eq!(fixture.find("d").unwrap().state, VmState::Running, "fault {at}");
        if !recovered {
            assert!(at >= at_least, "the scenario has {at} points for a fault");
            return;
        }
    }
}

#[test]
fn a_crash_before_or_after_any_call_of_the_hypervisor_is_repaired() {
    for fault in [Fault::CrashBefore, Fault::CrashAfter] {
        let came = |h: &Fixture| h.hypervisor.clone().list_is_refused();
        with_each_fault(|h, at| h.hypervisor.fail_after(at, fault), came, 30);
    }
}

#[test]
fn a_crash_before_or_after_any_change_of_the_store_is_repaired() {
    for after in [false, true] {
        let came = |h: &Fixture| h.store.vms(&VmQuery::default()).is_err();
        with_each_fault(|h, at| h.store.die_after(at, after), came, 15);
    }
}

trait Refused {
    fn list_is_refused(self) -> bool;
}

impl Refused for FakeHypervisor {
    fn list_is_refused(mut self) -> bool {
        use longma_placement::hypervisor::Hypervisor;
        self.list().is_err()
    }
}

#[test]
fn a_refused_move_is_undone_and_a_refused_start_fails_with_its_reason() {
    let mut fixture = fixture();
    (0..4).for_each(|s| fixture.step(s));
    let before = fixture.find("a").unwrap();
    let target = fixture.elsewhere("a").unwrap();
    for at in 0..4 {
        fixture.hypervisor.fail_after(at, Fault::Refuse);
        let report =
            move_vm(&*fixture.store, &mut fixture.hypervisor, &fixture.host, before.id, &target).unwrap();
        assert!(report.problems.iter().any(|p| p.contains("undone")), "{report:?}");
        assert_eq!(fixture.find("a").unwrap().placement, before.placement);
        let findings = audit(&*fixture.store, &mut fixture.hypervisor, &fixture.host).unwrap();
        assert!(fixture.has_converged(), "{at}: {findings:?} {report:?}");
    }
    fixture.place(&Request::new("e", 1, 64)).unwrap();
    fixture.hypervisor.fail_after(1, Fault::Refuse);
    assert!(fixture.reconcile());
    let failed = fixture.find("e").unwrap();
    assert_eq!(failed.state, VmState::Failed);
    assert!(failed.problem.unwrap().contains("refused to start"));
    fixture.store.set_intent(failed.id, Intent::Delete).unwrap();
    fixture.recover();
    assert!(fixture.find("e").is_none());
}

#[test]
fn dead_and_manually_changed_domains_are_repaired_and_foreign_ones_are_unchanged() {
    let mut fixture = fixture();
    (0..4).for_each(|s| fixture.step(s));
    let name = |n: &str, h: &Fixture| domain_name(h.find(n).unwrap().id);
    fixture.hypervisor.add_foreign("my-own");
    let (a, b, c) = (name("a", &fixture), name("b", &fixture), name("c", &fixture));
    fixture.hypervisor.tamper(&a, |d| {
        d.pins.vcpus[0] = "0-127".parse().unwrap();
        d.bound = vec![7];
        true
    });
    // The thread was moved without the hypervisor.
    fixture.hypervisor.tamper(&a, |d| d.misplaced_vcpus.insert(2, "5".parse().unwrap()).is_none());
    fixture.hypervisor.tamper(&b, |d| {
        d.running = false;
        true
    });
    fixture.hypervisor.tamper(&c, |_| false);
    let kinds: Vec<What> = audit(&*fixture.store, &mut fixture.hypervisor, &fixture.host)
        .unwrap()
        .into_iter()
        .map(|f| f.what)
        .collect();
    assert_eq!(kinds, [What::VcpuPin(0), What::VcpuPin(2), What::Bound, What::NotRunning, What::NotRunning]);
    let report = reconcile(&*fixture.store, &mut fixture.hypervisor, &fixture.host).unwrap();
    assert_eq!(report.foreign, ["my-own"]);
    assert!(fixture.has_converged());
    assert!(fixture.hypervisor.domains()["my-own"].running);
    assert_eq!(fixture.store.find_vm("default", "b").unwrap().unwrap().state, VmState::Running);
}

#[test]
fn a_manually_paused_undefined_or_throttled_domain_is_found_and_repaired() {
    let mut fixture = fixture();
    (0..4).for_each(|s| fixture.step(s));
    let [a, b] = ["a", "b"].map(|name| domain_name(fixture.find(name).unwrap().id));
    fixture.hypervisor.tamper(&a, |d| {
        (d.paused, d.transient) = (Some("user".into()), true);
        d.cpu_limits.insert("quota".into(), 1000).is_none()
    });
    // The hypervisor has paused the domain, not a user. After a resume, the domain would only pause again or lose its
    // writes.
    fixture.hypervisor.tamper(&b, |d| d.paused.replace("I/O error".into()).is_none());
    let found = audit(&*fixture.store, &mut fixture.hypervisor, &fixture.host).unwrap();
    let kinds: Vec<What> = found.iter().map(|f| f.what).collect();
    assert_eq!(kinds, [What::Paused, What::Transient, What::Slowed, What::Paused]);
    assert_eq!(found[2].actual, "quota 1000");
    assert!(found[3].intended.contains(&format!("virsh resume {b}")), "{found:?}");
    let report = reconcile(&*fixture.store, &mut fixture.hypervisor, &fixture.host).unwrap();
    let domains = fixture.hypervisor.domains();
    assert!(domains[&a].paused.is_none() && !domains[&a].transient && domains[&a].cpu_limits.is_empty());
    assert!(
        report.done.iter().any(|line| line.contains("was paused (user) and is running again")),
        "{report:?}"
    );
    assert_eq!(domains[&b].paused.as_deref(), Some("I/O error"));
    assert!(report.problems.iter().any(|line| line.contains("paused (I/O error)")), "{report:?}");
    // It can still be moved, and the move completes.
    let target = fixture.elsewhere("b").unwrap();
    let id = fixture.find("b").unwrap().id;
    move_vm(&*fixture.store, &mut fixture.hypervisor, &fixture.host, id, &target).unwrap();
    assert_eq!(fixture.find("b").unwrap().state, VmState::Running);
    fixture.hypervisor.tamper(&b, |d| d.paused.take().is_some());
    assert!(fixture.has_converged());
}

/// A service started with an empty database by mistake must not delete running domains.
#[test]
fn a_domain_never_created_here_is_reported_and_unchanged() {
    let mut first = fixture();
    first.place(&Request::new("a", 1, 64)).unwrap();
    assert!(first.reconcile());
    let (mut other, domain) = (fixture(), domain_name(first.find("a").unwrap().id));
    let report = reconcile(&*other.store, &mut first.hypervisor, &other.host).unwrap();
    assert!(report.done.is_empty() && report.foreign == [domain.clone()], "{report:?}");
    assert!(report.problems[0].contains("leaves it alone"), "{report:?}");
    // Domains created from this database are deleted as usual.
    other.place(&Request::new("b", 1, 64)).unwrap();
    assert!(other.reconcile());
    let vm = other.find("b").unwrap();
    other.store.inner.set_intent(vm.id, Intent::Delete).unwrap();
    assert!(other.reconcile() && is_converged(&*other.store, &mut other.hypervisor, &other.host).is_ok());
}

/// Two databases both begin with ID 1.
#[test]
fn a_domain_of_another_database_with_the_same_id_is_reported_and_unchanged() {
    let (mut first, mut second) = (fixture(), fixture());
    second.hypervisor = first.hypervisor.clone();
    first.place(&Request::new("theirs", 2, 64)).unwrap();
    assert!(first.reconcile());
    let domain = domain_name(first.find("theirs").unwrap().id);
    let before = first.hypervisor.domains();
    second.place(&Request { cpu: CpuPolicy::None, ..Request::new("mine", 1, 128) }).unwrap();
    assert_eq!(domain_name(second.find("mine").unwrap().id), domain);
    let report = reconcile(&*second.store, &mut second.hypervisor, &second.host).unwrap();
    assert_eq!(report.foreign, std::slice::from_ref(&domain));
    assert!(report.problems[0].contains("another database"), "{report:?}");
    let vm = second.find("mine").unwrap();
    assert!(vm.state == VmState::Failed && vm.problem.unwrap().contains("another database"));
    // Auditing, stopping and deleting here does not affect it. The audit reports only that the local virtual machine
    // with this ID is not running.
    let found = audit(&*second.store, &mut second.hypervisor, &second.host).unwrap();
    assert!(found.len() == 1 && found[0].what == What::NotRunning, "{found:?}");
    for intent in [Intent::Stop, Intent::Delete] {
        second.store.inner.set_intent(vm.id, intent).unwrap();
        assert!(second.reconcile());
    }
    assert!(second.find("mine").is_none());
    assert_eq!(first.hypervisor.domains(), before);
    assert!(first.has_converged());
}

/// A database restored from a backup assigns an ID again. The domain that runs under this ID belongs to a virtual
/// machine that the database has lost.
#[test]
fn a_domain_that_the_database_has_lost_is_kept() {
    let mut fixture = fixture();
    fixture.place(&Request::new("a", 1, 64)).unwrap();
    assert!(fixture.reconcile());
    let id = fixture.find("a").unwrap().id;
    let domain = domain_name(id);
    fixture.hypervisor.tamper(&domain, |d| {
        d.created_at = d.created_at.map(|at| at - 100);
        true
    });
    let before = fixture.hypervisor.domains();
    let report = reconcile(&*fixture.store, &mut fixture.hypervisor, &fixture.host).unwrap();
    assert!(report.problems.iter().any(|problem| problem.contains("has lost")), "{report:?}");
    assert_eq!(fixture.find("a").unwrap().state, VmState::Failed);
    let found = audit(&*fixture.store, &mut fixture.hypervisor, &fixture.host).unwrap();
    let kinds: Vec<What> = found.iter().map(|finding| finding.what).collect();
    assert_eq!(kinds, [What::NotRunning, What::Orphan], "{found:?}");
    fixture.store.inner.set_intent(id, Intent::Delete).unwrap();
    fixture.reconcile();
    assert_eq!(fixture.hypervisor.domains(), before);
}

#[test]
fn a_domain_under_another_name_is_found_and_keeps_others_off_its_cpus() {
    let mut fixture = fixture();
    let own = Request { cpu: CpuPolicy::Exclusive, ..Request::new("a", 1, 64) };
    fixture.place(&own).unwrap();
    assert!(fixture.reconcile());
    let id = fixture.find("a").unwrap().id;
    let renamed = fixture.hypervisor.domains()[&domain_name(id)].clone();
    fixture.hypervisor.add_foreign("renamed");
    fixture.hypervisor.tamper("renamed", |d| {
        *d = renamed;
        true
    });
    fixture.hypervisor.tamper(&domain_name(id), |_| false);
    let report = reconcile(&*fixture.store, &mut fixture.hypervisor, &fixture.host).unwrap();
    let problems = format!("{:?}", report.problems);
    assert!(
        problems.contains("has another name") && problems.contains("renamed still runs on them"),
        "{problems}"
    );
    let found = audit(&*fixture.store, &mut fixture.hypervisor, &fixture.host).unwrap();
    assert!(found.iter().any(|f| f.what == What::Orphan && f.domain == "renamed"), "{found:?}");
    assert!(fixture.hypervisor.domains()["renamed"].running);
}

/// The domain was running before its database got an identity.
#[test]
fn a_domain_that_names_no_database_is_kept() {
    let mut fixture = fixture();
    fixture.place(&Request::new("a", 1, 64)).unwrap();
    assert!(fixture.reconcile());
    let domain = domain_name(fixture.find("a").unwrap().id);
    fixture.hypervisor.tamper(&domain, |d| {
        d.database = None;
        d.bound = vec![7];
        true
    });
    assert!(fixture.reconcile() && fixture.has_converged());
    fixture.store.inner.set_intent(fixture.find("a").unwrap().id, Intent::Delete).unwrap();
    assert!(fixture.reconcile());
    assert!(fixture.hypervisor.domains().is_empty());
}

#[test]
fn a_start_waits_until_its_node_has_shared_cpus() {
    let mut fixture = fixture();
    let placement = fixture.place(&Request::new("a", 2, 64)).unwrap();
    let whole = fixture.host.clone();
    let node = whole.nodes.iter().find(|n| n.id == placement.cells[0].node).unwrap();
    fixture.host.reserved = whole.reserved.iter().chain(node.cpus().iter()).collect();
    let report = reconcile(&*fixture.store, &mut fixture.hypervisor, &fixture.host).unwrap();
    assert!(report.problems[0].contains("was not started"), "{report:?}");
    assert_eq!(fixture.find("a").unwrap().state, VmState::Reserved);
    fixture.host = whole;
    assert!(fixture.reconcile());
    assert_eq!(fixture.find("a").unwrap().state, VmState::Running);
}

/// Two virtual machines on one node: one with a dedicated CPU, and one on shared CPUs.
fn neighbours(shared: u32) -> (Fixture, String, String) {
    let mut fixture = fixture();
    fixture.place(&Request { cpu: CpuPolicy::Exclusive, ..Request::new("own", 1, 64) }).unwrap();
    fixture.place(&Request::new("shared", shared, 64)).unwrap();
    assert!(fixture.reconcile() && fixture.has_converged());
    let [own, shared] = ["own", "shared"].map(|name| domain_name(fixture.find(name).unwrap().id));
    (fixture, own, shared)
}

fn found(fixture: &mut Fixture) -> Vec<longma_placement::audit::Finding> {
    audit(&*fixture.store, &mut fixture.hypervisor, &fixture.host).unwrap()
}

#[test]
fn unrequested_virtual_cpus_are_found_confined_and_removed() {
    let (mut fixture, own, shared) = neighbours(1);
    // One more without a pin, one on a CPU dedicated to another virtual machine, and one that is not plugged in and has
    // no thread.
    let others = fixture.hypervisor.domains()[&own].pins.vcpus[0].clone();
    fixture.hypervisor.tamper(&shared, |d| {
        d.pins.vcpus.extend([Default::default(), others.clone(), others.clone()]);
        d.offline.insert(3)
    });
    let all = found(&mut fixture);
    let kinds: Vec<What> = all.iter().map(|f| f.what).collect();
    assert_eq!(kinds, [What::VcpuPin(1), What::VcpuPin(2), What::Vcpus], "{all:?}");
    assert!(all[2].intended.contains("longma placement stop"), "{all:?}");
    assert_eq!(all[2].actual, "with virtual CPUs 0-2");
    // The guest does not release them: they are pinned to allowed CPUs anyway, and the problem is reported.
    fixture.hypervisor.fail_after(2, Fault::Refuse);
    let report = reconcile(&*fixture.store, &mut fixture.hypervisor, &fixture.host).unwrap();
    assert!(report.problems.iter().any(|p| p.contains("with virtual CPUs 0-2, expected")), "{report:?}");
    let actual = &fixture.hypervisor.domains()[&shared];
    assert!(!actual.may_run_on(&others) && actual.vcpus().len() == 3, "{actual:?} and {others}");
    assert!(fixture.reconcile() && fixture.has_converged(), "{:?}", found(&mut fixture));
    assert_eq!(fixture.hypervisor.domains()[&shared].vcpus().to_string(), "0");
}

#[test]
fn virtual_cpus_that_are_missing_are_found_and_given_back_where_they_can_be() {
    let (mut fixture, _, shared) = neighbours(3);
    fixture.hypervisor.tamper(&shared, |d| d.offline.insert(1) && d.offline.insert(2));
    let all = found(&mut fixture);
    assert!(
        all.len() == 1 && all[0].what == What::Vcpus && all[0].actual == "with virtual CPUs 0",
        "{all:?}"
    );
    assert!(fixture.reconcile() && fixture.has_converged());
    // A domain defined with fewer virtual CPUs cannot get more while it runs.
    fixture.hypervisor.tamper(&shared, |d| d.pins.vcpus.pop().is_some());
    let report = reconcile(&*fixture.store, &mut fixture.hypervisor, &fixture.host).unwrap();
    assert!(
        report.problems[0].contains("with virtual CPUs 0-1, expected with virtual CPUs 0-2"),
        "{report:?}"
    );
    assert_eq!(found(&mut fixture)[0].what, What::Vcpus);
    restart(&mut fixture, "shared");
    assert!(fixture.has_converged(), "{:?}", found(&mut fixture));
}

/// The owner stops and starts it.
fn restart(fixture: &mut Fixture, name: &str) {
    let id = fixture.find(name).unwrap().id;
    for intent in [Intent::Stop, Intent::Run] {
        fixture.store.inner.set_intent(id, intent).unwrap();
        assert!(fixture.reconcile());
    }
}

#[test]
fn an_io_thread_on_an_exclusive_cpu_is_found_and_pinned_back() {
    let (mut fixture, own, shared) = neighbours(1);
    let domains = fixture.hypervisor.domains();
    let (others, emulator) = (&domains[&own].pins.vcpus[0], &domains[&shared].pins.emulator);
    fixture.hypervisor.tamper(&shared, |d| {
        // One thread was moved, one is correct, and one was added and may run anywhere.
        let pins = [others.clone(), emulator.clone(), Default::default()];
        d.io_threads = (1..).zip(pins).collect();
        true
    });
    let kinds: Vec<What> = found(&mut fixture).iter().map(|f| f.what).collect();
    assert_eq!(kinds, [What::IoThreadPin(1), What::IoThreadPin(3)]);
    assert!(fixture.reconcile() && fixture.has_converged());
    assert!(fixture.hypervisor.domains()[&shared].io_threads.values().all(|cpus| cpus == emulator));
}

#[test]
fn changed_memory_is_found_with_a_remedy_and_is_right_after_a_restart() {
    let (mut fixture, _, shared) = neighbours(1);
    fixture.hypervisor.tamper(&shared, |d| {
        d.memory_mib.values_mut().for_each(|mib| *mib = 300);
        d.size_mib.replace(300).is_some()
    });
    let all = found(&mut fixture);
    assert!(all.len() == 1 && all[0].what == What::Size && all[0].actual == "of 300 MiB", "{all:?}");
    assert!(all[0].intended.contains("longma placement stop"), "{all:?}");
    let (calls, started) = (fixture.hypervisor.calls(), fixture.hypervisor.domains()[&shared].running);
    let report = reconcile(&*fixture.store, &mut fixture.hypervisor, &fixture.host).unwrap();
    assert!(report.problems[0].contains("of 300 MiB, expected of 64 MiB"), "{report:?}");
    // The difference is reported, and the hypervisor is not called.
    assert!(started && fixture.hypervisor.calls() == calls);
    restart(&mut fixture, "shared");
    assert!(fixture.has_converged(), "{:?}", found(&mut fixture));
}

#[test]
fn a_start_whose_domain_was_removed_is_repeated() {
    // The domain disappears during the start, and right after it.
    for at in 1..3 {
        let mut fixture = fixture();
        fixture.place(&Request::new("a", 2, 64)).unwrap();
        fixture.hypervisor.fail_after(at, Fault::TakeAway);
        let report = reconcile(&*fixture.store, &mut fixture.hypervisor, &fixture.host).unwrap();
        assert!(report.problems[0].contains("starts it again"), "{report:?}");
        assert_eq!(fixture.find("a").unwrap().state, VmState::Creating);
        assert!(fixture.reconcile());
        assert_eq!(fixture.find("a").unwrap().state, VmState::Running);
        assert!(fixture.has_converged());
    }
}
