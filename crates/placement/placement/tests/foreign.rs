//! Domains that the service does not manage: virtual machines do not get their CPUs and memory.

use longma_placement::audit::audit;
use longma_placement::cpus::CpuSet;
use longma_placement::fake::FakeHypervisor;
use longma_placement::fleet::Rng;
use longma_placement::foreign::{ForeignDomain, find, intrusions, withhold};
use longma_placement::host::{Host, Pool};
use longma_placement::hypervisor::{DomainState, Pins};
use longma_placement::lost_resources::retain_reserved;
use longma_placement::reconcile::reconcile;
use longma_placement::request::{CpuPolicy, SmtPolicy};
use longma_placement::store::VmState;
use longma_placement::{AgentStore, Allocator, Placement, Policy, Request, Scheduler, SqlStore, Store};
use longma_topology::Machine;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// Eight nodes of 16 CPUs; node 0 has CPUs 0-7 and 64-71.
fn hygon() -> Host {
    Host::of_machine(&Machine::open("hygon-8node").unwrap(), "h").unwrap()
}

fn running(pins: &[&str], size_mib: u64, memory: &[(u32, u64)]) -> DomainState {
    let vcpus = pins.iter().map(|list| set(list)).collect();
    DomainState {
        running: true,
        pins: Pins { vcpus, emulator: CpuSet::new() },
        size_mib: Some(size_mib),
        memory_mib: memory.iter().copied().collect(),
        ..DomainState::default()
    }
}

fn exclusive(name: &str, vcpus: u32) -> Request {
    Request { cpu: CpuPolicy::Exclusive, ..Request::new(name, vcpus, 64) }
}

fn with_foreign_domains(host: &Host, domains: &[(&str, DomainState)]) -> Host {
    let domains: Vec<_> =
        domains.iter().map(|(name, actual)| ForeignDomain::of(name, actual, host)).collect();
    let mut host_left = host.clone();
    withhold(&mut host_left, &domains);
    host_left.check().unwrap();
    host_left
}

fn dedicated(placements: &[Placement]) -> BTreeSet<u32> {
    placements.iter().flat_map(|p| p.tally().exclusive).map(|(_, cpu)| cpu).collect()
}

/// Places virtual machines with exclusive CPUs until nothing more fits.
fn fill(scheduler: &mut Scheduler) -> Vec<Placement> {
    let mut placed = Vec::new();
    for (vcpus, smt) in
        [(4, SmtPolicy::Require), (2, SmtPolicy::Avoid), (3, SmtPolicy::Prefer), (1, SmtPolicy::Prefer)]
    {
        let request = Request { smt, ..exclusive("vm", vcpus) };
        placed.extend(std::iter::from_fn(|| scheduler.place(&request).ok()));
    }
    placed
}

#[test]
fn exclusive_cpus_are_never_those_that_a_foreign_domain_is_pinned_to() {
    let mut random = Rng::new(42);
    for _ in 0..40 {
        let mut random_cpus = || {
            let first = random.index(120) as u32;
            format!("{first}-{}", first + random.index(8) as u32)
        };
        let (vcpu, io, emulator, moved) = (random_cpus(), random_cpus(), random_cpus(), random_cpus());
        let mut actual = running(&[&vcpu, ""], 64, &[]);
        actual.io_threads = BTreeMap::from([(1, set(&io))]);
        actual.pins.emulator = set(&emulator);
        actual.misplaced_vcpus = BTreeMap::from([(1, set(&moved))]);
        let host = with_foreign_domains(&hygon(), &[("theirs", actual)]);
        let mut scheduler = Scheduler::new(Policy::default(), 1);
        scheduler.put_host(&host).unwrap();
        let placed = fill(&mut scheduler);
        let foreign_cpus: CpuSet =
            [&vcpu, &io, &emulator, &moved].iter().flat_map(|l| set(l).iter().collect::<Vec<_>>()).collect();
        let own = dedicated(&placed);
        assert!(own.iter().all(|cpu| !foreign_cpus.contains(*cpu)), "{foreign_cpus}: {own:?}");
        assert!(own.len() > 60, "the other CPUs are dedicated: {own:?}");
        // The accounts agree after everything is released.
        placed.iter().for_each(|placement| scheduler.release(placement).unwrap());
        assert_eq!(fill(&mut scheduler).len(), placed.len());
    }
}

#[test]
fn foreign_virtual_cpus_count_against_the_overcommit_ratio() {
    let vms = |host: &Host| {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(SqlStore::open_file(&folder.path().join("placement.db")).unwrap());
        store.put_host(host, 200).unwrap();
        let mut allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
        let placed = (0..)
            .take_while(|n| allocator.place(&Request::new(&format!("v{n}"), 1, 1), None).is_ok())
            .count();
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
        placed
    };
    let mut host = hygon();
    host.nodes.truncate(1);
    host.distances = vec![vec![10]];
    assert_eq!(vms(&host), 32);
    // Sixteen CPUs carry 32 virtual CPUs, of which four are foreign.
    let busy = with_foreign_domains(&host, &[("theirs", running(&["0-3"; 4], 64, &[]))]);
    assert_eq!(vms(&busy), 28);
    // A domain that is not pinned counts on all nodes in proportion to their CPUs.
    let floating = ForeignDomain::of("theirs", &running(&[""; 8], 64, &[]), &hygon());
    assert_eq!(floating.node_vcpus, (0..8).map(|node| (node, 1)).collect());
    assert!(floating.cpus.is_empty());
    let off = DomainState { running: false, ..running(&["0-3"; 4], 4096, &[]) };
    assert_eq!(with_foreign_domains(&host, &[("off", off)]), host);
}

#[test]
fn foreign_memory_and_huge_pages_are_not_promised() {
    let mut host = hygon();
    for node in &mut host.nodes {
        node.memory.push(Pool { page_kib: 2048, mib: 4096 });
    }
    let pinned = DomainState { bound: vec![1], ..running(&["8"], 10_000, &[(1, 2000)]) };
    let huge = DomainState { huge_page_kib: Some(2048), ..running(&["16"], 1024, &[(2, 1024)]) };
    let spread = running(&[""], 8 * 1024, &[]);
    let host_left = with_foreign_domains(&host, &[("pinned", pinned), ("huge", huge), ("spread", spread)]);
    let mib =
        |node: usize, pool: usize| host.nodes[node].memory[pool].mib - host_left.nodes[node].memory[pool].mib;
    // Node 1 has the 10,000 MiB of `pinned`, rounded up. Each node has its share of `spread`.
    assert_eq!([mib(0, 0), mib(1, 0), mib(2, 0)], [1024, 10_112 + 1024, 1024]);
    assert_eq!([mib(0, 1), mib(1, 1), mib(2, 1)], [0, 0, 1024]);
    // A domain larger than the memory leaves 0 free, without underflow.
    let vast = with_foreign_domains(&host, &[("vast", running(&[""], u64::MAX / 4, &[]))]);
    assert!(vast.nodes.iter().all(|node| node.memory[0].mib == 0));
}

struct Site {
    store: Arc<SqlStore>,
    hypervisor: FakeHypervisor,
    host: Host,
    _folder: tempfile::TempDir,
}

fn site() -> Site {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(SqlStore::open_file(&folder.path().join("placement.db")).unwrap());
    store.put_host(&hygon(), 200).unwrap();
    Site { store, hypervisor: FakeHypervisor::new(), host: hygon(), _folder: folder }
}

impl Site {
    fn place(&self, request: &Request) -> Placement {
        let mut allocator = Allocator::open(self.store.clone(), Policy::default(), 1).unwrap();
        allocator.place(request, None).unwrap().vm.placement.unwrap()
    }

    fn found(&mut self) -> Vec<ForeignDomain> {
        find(&*self.store, &mut self.hypervisor, &self.host).unwrap()
    }
}

#[test]
fn own_domains_are_not_foreign_and_those_of_other_databases_are() {
    let mut site = site();
    site.place(&exclusive("a", 2));
    site.hypervisor.put_foreign("theirs", running(&["5"], 64, &[]));
    reconcile(&*site.store, &mut site.hypervisor, &site.host).unwrap();
    let names = |found: Vec<ForeignDomain>| found.into_iter().map(|domain| domain.name).collect::<Vec<_>>();
    assert_eq!(names(site.found()), ["theirs"]);
    site.hypervisor.tamper("longma-1", |domain| domain.database.replace("other".into()).is_some());
    assert_eq!(names(site.found()), ["longma-1", "theirs"]);
}

#[test]
fn a_machine_does_not_start_where_a_foreign_domain_was_pinned_meanwhile() {
    let mut site = site();
    let cpu = *dedicated(&[site.place(&exclusive("a", 2))]).first().unwrap();
    site.hypervisor.put_foreign("theirs", running(&[&cpu.to_string()], 64, &[]));
    let report = reconcile(&*site.store, &mut site.hypervisor, &site.host).unwrap();
    assert!(report.problems[0].contains("theirs, which the service does not manage"), "{report:?}");
    assert_eq!(site.store.vm(1).unwrap().state, VmState::Reserved);
    let found = site.found();
    let sentences = intrusions(&found, &site.store.host_vms("h").unwrap(), "h");
    assert!(sentences[0].contains(&format!("pinned to CPUs {cpu}")), "{sentences:?}");
    site.hypervisor.tamper("theirs", |domain| {
        domain.pins.vcpus[0] = set("127");
        true
    });
    reconcile(&*site.store, &mut site.hypervisor, &site.host).unwrap();
    assert_eq!(site.store.vm(1).unwrap().state, VmState::Running);
    assert_eq!(audit(&*site.store, &mut site.hypervisor, &site.host).unwrap(), []);
}

#[test]
fn a_full_host_keeps_its_reservations_when_a_foreign_domain_starts() {
    let site = site();
    let request = Request { virtual_nodes: Some(1), ..Request::new("a", 16, 30_000) };
    let places: Vec<Placement> =
        (0..8).map(|n| site.place(&Request { name: format!("a{n}"), ..request.clone() })).collect();
    let theirs = running(&["0-7"; 20], 8000, &[(0, 8000)]);
    let busy = with_foreign_domains(&site.host, &[("theirs", theirs)]);
    site.store.put_host(&busy, 200).unwrap_err();
    let kept = retain_reserved(&busy, &site.host, &places, 200);
    assert_eq!(kept.lost.len(), 2, "{:?}", kept.lost);
    assert_eq!(kept.host.foreign.vcpus, BTreeMap::from([(0, 16)]));
    site.store.put_host(&kept.host, 200).unwrap();
    assert_eq!(site.store.check().unwrap(), Vec::<String>::new());
}
