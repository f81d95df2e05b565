//! A corpus of recorded hosts: 1 to 8 sockets, 1 to 128 queues, bonds, VLANs, containers, sub-NUMA clustering, many
//! last-level caches, offline and isolated CPUs. Each is generated, recorded to a file and read back. The same
//! properties of the output of `check`, `advise` and a dry run of `tune` are tested for every host.

#[path = "corpus/hosts.rs"]
mod hosts;

use hosts::{Shape, recorded, shapes};
use longma_affinity::advice::{DriverCapabilities, QueuePlacement, candidates};
use longma_affinity::host::Host;
use longma_affinity::interface::{self, Nic};
use longma_affinity::pairs::pairs_of;
use longma_affinity::preflight::{Severity, allowed, isolated};
use longma_affinity::recording::{Recording, dry_run};
use longma_affinity::tune::Exclusions;
use longma_affinity::tune::log::DecisionKind;
use longma_cpu_set::CpuSet;
use longma_topology::CpuLocation;
use std::collections::BTreeMap;

/// The CPUs that advice may use, as the command chooses them.
fn usable(host: &Recording) -> Vec<CpuLocation> {
    let isolated = isolated(host);
    host.places().into_iter().filter(|place| !isolated.contains(place.cpu)).collect()
}

fn advised(host: &Recording, nic: &Nic) -> QueuePlacement {
    let (places, allowed) = (usable(host), allowed(host));
    let flows: Vec<u32> = places.iter().map(|place| place.cpu).collect();
    let is_allowed = |cpu: &u32| allowed.as_ref().is_none_or(|set| set.contains(*cpu));
    let applications: Vec<u32> = flows.iter().copied().filter(is_allowed).collect();
    let ranking = candidates(&places, nic, &pairs_of(&flows, &applications));
    let nics: Vec<_> =
        nic.physical().into_iter().map(|nic| (nic, DriverCapabilities::of(host, nic))).collect();
    QueuePlacement::of(&places, &nics, ranking[0].pair, allowed.as_ref(), false)
}

/// Runs a check on the advice for each host.
fn for_each(check: impl Fn(&Shape, &Recording, &Nic, &QueuePlacement)) {
    for shape in shapes() {
        let host = recorded(&shape);
        let nic = interface::read(&host, &shape.interface.parse().unwrap()).unwrap();
        let placement = advised(&host, &nic);
        check(&shape, &host, &nic, &placement);
    }
}

fn place(places: &[CpuLocation], cpu: u32) -> &CpuLocation {
    places.iter().find(|place| place.cpu == cpu).unwrap()
}

#[test]
fn advice_uses_only_cpus_that_are_there_and_allowed() {
    for_each(|shape, host, _, placement| {
        let existing: CpuSet = usable(host).iter().map(|place| place.cpu).collect();
        assert!(placement.flows().iter().all(|cpu| existing.contains(cpu)), "{}: {placement:?}", shape.name);
        let allowed = allowed(host);
        let may = |cpu: u32| existing.contains(cpu) && allowed.as_ref().is_none_or(|set| set.contains(cpu));
        assert!(placement.applications.iter().all(may), "{}: {placement:?}", shape.name);
        assert!(!placement.applications.is_empty(), "{}", shape.name);
    });
}

#[test]
fn queues_are_on_their_nics_node_one_a_core_and_siblings_last() {
    for_each(|shape, host, nic, placement| {
        let places = usable(host);
        for (nic, queues) in nic.physical().iter().zip(&placement.nics) {
            let of_node: Vec<&CpuLocation> =
                places.iter().filter(|place| nic.node.is_none_or(|node| place.node == node)).collect();
            let is_far = |(_, cpu): &&(_, u32)| of_node.iter().all(|place| place.cpu != *cpu);
            assert!(
                of_node.is_empty() || !queues.used.iter().any(|used| is_far(&used)),
                "{}: {queues:?}",
                shape.name
            );
        }
        // The number of queues of all NICs on each core and on each CPU.
        let (mut of_core, mut of_cpu) = (BTreeMap::<u32, usize>::new(), BTreeMap::<u32, usize>::new());
        for (_, cpu) in placement.nics.iter().flat_map(|nic| &nic.used) {
            *of_core.entry(place(&places, *cpu).core[0]).or_default() += 1;
            *of_cpu.entry(*cpu).or_default() += 1;
        }
        for node in placement.groups.iter().map(|group| group.node) {
            let cpus: Vec<&CpuLocation> = places.iter().filter(|place| place.node == node).collect();
            let count = |place: &&CpuLocation| of_cpu.get(&place.cpu).copied().unwrap_or(0);
            let counts = cpus.iter().map(count);
            let of_first = cpus.iter().map(|place| of_core.get(&place.core[0]).copied().unwrap_or(0));
            // No core has two queues while another core of the node has none. The same holds for CPUs.
            let (least, most) = (of_first.clone().min().unwrap_or(0), of_first.max().unwrap_or(0));
            assert!(most <= 1 || least >= 1, "{}: {placement:?}", shape.name);
            let (least, most) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
            assert!(most <= 1 || least >= 1, "{}: {placement:?}", shape.name);
        }
    });
}

#[test]
fn applications_share_a_cache_or_at_least_the_node_with_their_queues() {
    for_each(|shape, host, _, placement| {
        let places = usable(host);
        let allowed = allowed(host);
        for group in &placement.groups {
            let flow = place(&places, group.flows.iter().next().unwrap());
            for cpu in group.applications.iter() {
                let application = place(&places, cpu);
                let can_be_near = places.iter().any(|place| {
                    place.node == flow.node && allowed.as_ref().is_none_or(|set| set.contains(place.cpu))
                });
                assert!(!can_be_near || application.node == flow.node, "{}: {group:?}", shape.name);
                let is_shared = application.last_cache.as_ref().is_none_or(|of| of.contains(&flow.cpu));
                // A cache of a single core has no core for the application beside the queue's.
                let has_room = flow.last_cache.as_ref().is_none_or(|of| of.len() > flow.core.len());
                let is_allowed_there = places.iter().any(|place| {
                    flow.last_cache.as_ref().is_none_or(|of| of.contains(&place.cpu))
                        && place.node == flow.node
                        && allowed.as_ref().is_none_or(|set| set.contains(place.cpu))
                });
                assert!(is_shared || !has_room || !is_allowed_there, "{}: {group:?}", shape.name);
            }
        }
        // A CPU is either for queues or for applications, if the node has room for both.
        let room = places.len() > 2 * placement.counts().0;
        let both = placement.flows().iter().any(|cpu| placement.applications.contains(cpu));
        assert!(!room || !both || allowed.is_some(), "{}: {placement:?}", shape.name);
    });
}

/// The decisions of `tune` agree with the advice: queues and threads move to the NIC's node, and only to CPUs that the
/// advice may use.
#[test]
fn tune_and_advice_agree_about_nodes_and_usable_cpus() {
    for_each(|shape, host, nic, placement| {
        let places = usable(host);
        let decisions = dry_run(host, &[], Exclusions::default()).unwrap();
        let moved: Vec<_> =
            decisions.iter().filter(|decision| decision.act == DecisionKind::WouldMove).collect();
        // For a virtual interface without queues, only applications can be moved, and the recording has none.
        let has_queues = decisions.iter().all(|decision| decision.act != DecisionKind::Missing);
        assert!(!moved.is_empty() || places.len() < 3 || !has_queues, "{}: {decisions:?}", shape.name);
        let advised: Vec<u32> = placement.groups.iter().map(|group| group.node).collect();
        for decision in moved {
            let cpus: CpuSet = decision.to.as_ref().unwrap().parse().unwrap();
            for cpu in cpus.iter() {
                let is_near = |place: &CpuLocation| advised.contains(&place.node);
                let found = places.iter().find(|place| place.cpu == cpu);
                let found = found.unwrap_or_else(|| panic!("{}: CPU {cpu}: {decision:?}", shape.name));
                // A container's threads may not leave their cpuset.
                assert!(is_near(found) || allowed(host).is_some(), "{}: {decision:?}", shape.name);
            }
        }
        assert!(nic.physical().iter().all(|nic| nic.irqs.len() == shape.queues as usize), "{}", shape.name);
    });
}

#[test]
fn check_finds_nothing_that_prevents_a_sweep_and_names_what_advice_leaves_out() {
    for_each(|shape, host, nic, _| {
        let findings = host.check(Some(&nic.name));
        let of = |subject: &str| findings.iter().find(|finding| finding.subject == subject);
        // The settings of a recorded host cannot be written, which the check reports under `rights`.
        let prevents = findings.iter().filter(|finding| finding.weight == Severity::Prevents);
        let others: Vec<_> = prevents.filter(|finding| finding.subject != "rights").collect();
        assert!(
            others
                .iter()
                .all(|finding| finding.subject.contains("steering") || finding.found.contains("read")),
            "{}: {others:?}",
            shape.name
        );
        assert_eq!(of("isolated CPUs").is_some(), shape.isolated.is_some(), "{}", shape.name);
        assert_eq!(of("offline CPUs").is_some(), shape.offline.is_some(), "{}", shape.name);
        assert!(of("NUMA node").is_some(), "{}: {findings:?}", shape.name);
    });
}
