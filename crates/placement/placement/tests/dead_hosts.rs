//! Hosts that an operator has declared dead: their virtual machines start elsewhere or are deleted, and the host is
//! removed.

#[path = "support/databases.rs"]
mod databases;

use databases::on_each;
use longma_placement::allocator::AllocateError;
use longma_placement::inventory::HostStatus;
use longma_placement::request::{CpuPolicy, Level, Membership, Relation};
use longma_placement::scheduler::NoPlacement;
use longma_placement::store::{AgentStore as _, Intent, StoreError, Token, VmQuery, VmState};
use longma_placement::{Allocator, Host, Policy, Request, SqlStore, Store as _};
use longma_topology::Machine;
use std::sync::Arc;

fn host(name: &str) -> Host {
    Host::of_machine(&Machine::open("hygon-8node").unwrap(), name).unwrap()
}

fn allocator(store: &Arc<SqlStore>) -> Allocator {
    Allocator::open(store.clone(), Policy::default(), 1).unwrap()
}

fn exclusive(name: &str, mib: u64) -> Request {
    let apart = Membership { group: "g".into(), relation: Relation::AntiAffinity, level: Level::Host };
    Request { cpu: CpuPolicy::Exclusive, groups: vec![apart], ..Request::new(name, 4, mib) }
}

fn run(store: &SqlStore, id: i64) {
    store.transition(id, VmState::Reserved, VmState::Creating, None).unwrap();
    store.transition(id, VmState::Creating, VmState::Running, None).unwrap();
}

#[test]
fn virtual_machines_leave_only_a_host_that_was_declared_dead() {
    on_each(|database| {
        let store = database.open();
        store.put_host(&host("h1"), 200).unwrap();
        let mut allocator = allocator(&store);
        let id = allocator.place(&exclusive("a", 512), None).unwrap().vm.id;
        run(&store, id);
        store.put_host(&host("h2"), 200).unwrap();
        allocator.apply_changes().unwrap();
        for status in [HostStatus::Up, HostStatus::Draining, HostStatus::Down] {
            store.set_host_status("h1", status, false).unwrap();
            allocator.apply_changes().unwrap();
            let refused = |error: &StoreError| matches!(error, StoreError::Conflict { what, .. } if what.contains("force-down"));
            assert!(refused(&store.force_delete(id).unwrap_err()), "{status:?}");
            assert!(allocator.evacuate(id).is_err(), "{status:?}");
        }
        assert!(store.remove_host("h1").is_err(), "a virtual machine is on it");
        assert_eq!(store.vm(id).unwrap().state, VmState::Running);
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
    });
}

#[test]
fn evacuated_virtual_machines_start_elsewhere_and_the_host_can_be_removed() {
    on_each(|database| {
        let store = database.open();
        store.put_host(&host("h1"), 200).unwrap();
        let mut one = allocator(&store);
        let place = |one: &mut Allocator, name: &str| {
            let request = Request { groups: Vec::new(), ..exclusive(name, 512) };
            one.place(&request, None).unwrap().vm.id
        };
        let (runs, stops, ends) =
            (place(&mut one, "runs"), place(&mut one, "stops"), place(&mut one, "ends"));
        let grouped = one.place(&exclusive("grouped", 512), None).unwrap().vm.id;
        // The virtual machine is being moved between nodes when its host dies: both placements are released.
        run(&store, runs);
        let nodes: Vec<u32> = (0..8).collect();
        let vm = store.vm(runs).unwrap();
        let target = one.scheduler().decide_on(&vm.request, "h1", &nodes, None).unwrap();
        store.begin_move(runs, &target).unwrap();
        store.set_intent(stops, Intent::Stop).unwrap();
        store.set_intent(ends, Intent::Delete).unwrap();
        store.put_host(&host("h2"), 200).unwrap();
        store.set_host_status("h1", HostStatus::ForcedDown, false).unwrap();
        one.apply_changes().unwrap();
        let mut other = allocator(&store);
        let state = |id| {
            let vm = store.vm(id).unwrap();
            (vm.state, vm.placement.map(|placement| placement.host))
        };
        for id in [runs, stops, ends, grouped] {
            one.evacuate(id).unwrap();
        }
        assert_eq!(state(runs), (VmState::Reserved, Some("h2".into())));
        assert_eq!(state(stops), (VmState::Stopped, Some("h2".into())));
        assert_eq!(state(ends), (VmState::Deleted, None));
        assert_eq!(state(grouped), (VmState::Reserved, Some("h2".into())));
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
        let refused = one.place(&exclusive("second", 64), None).unwrap_err();
        assert!(
            matches!(refused, AllocateError::NoPlacement(NoPlacement::NoFit { .. })),
            "its group moved too"
        );

        let agent = Token {
            name: "agent".into(),
            digest: "d".into(),
            role: "agent".into(),
            scope: Some("h1".into()),
            ..Token::default()
        };
        store.put_token(&agent).unwrap();
        store.raise_alarm("h1", None, "agent-silent", 1.0).unwrap();
        store.remove_host("h1").unwrap();
        assert!(store.tokens().unwrap().is_empty() && store.alarms(true, 0).unwrap().is_empty());
        for allocator in [&mut one, &mut other] {
            allocator.apply_changes().unwrap();
            assert_eq!(allocator.scheduler().inventory().names().collect::<Vec<_>>(), ["h2"]);
            let usage = allocator.scheduler().inventory().usage("h2").unwrap();
            assert_eq!((usage.vms, usage.nodes.iter().map(|node| node.exclusive).sum::<u32>()), (3, 12));
        }
        // A new host does not inherit the events of the removed one.
        store.put_host(&host("h3"), 200).unwrap();
        let named = |name: &str| {
            let events = store.events(0, 0).unwrap();
            events.iter().filter(|event| event.host.as_deref() == Some(name)).count()
        };
        assert_eq!((named("h1"), named("h3")), (0, 1));
    });
}

#[test]
fn a_virtual_machine_that_fits_nowhere_stays_and_can_be_deleted_by_force() {
    on_each(|database| {
        let store = database.open();
        store.put_host(&host("h1"), 200).unwrap();
        let mut one = allocator(&store);
        let id = one.place(&exclusive("a", 512), None).unwrap().vm.id;
        run(&store, id);
        store.set_host_status("h1", HostStatus::ForcedDown, false).unwrap();
        one.apply_changes().unwrap();
        let before = one.scheduler().inventory().usage("h1");
        assert!(matches!(one.evacuate(id), Err(AllocateError::NoPlacement(NoPlacement::NoFit { .. }))));
        assert_eq!(store.vm(id).unwrap().state, VmState::Running);
        assert_eq!(one.scheduler().inventory().usage("h1"), before);
        assert_eq!(store.force_delete(id).unwrap().state, VmState::Deleted);
        assert!(store.vms(&VmQuery::default()).unwrap().is_empty());
        assert_eq!(store.tenants().unwrap()[0].vms, 0, "its quota is free");
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
    });
}

#[test]
fn a_host_that_another_process_removed_is_not_chosen() {
    on_each(|database| {
        let store = database.open();
        store.put_host(&host("h1"), 200).unwrap();
        let mut one = allocator(&store);
        store.remove_host("h1").unwrap();
        // The allocator has not seen the removal, and chooses the host.
        let refused = one.place(&Request::new("a", 1, 64), None).unwrap_err();
        assert!(matches!(refused, AllocateError::NoPlacement(NoPlacement::NoFit { hosts: 0 })), "{refused}");
    });
}
