//! Migrations in the store: both placements are reserved until the end, and a target is accepted only if its host and
//! the groups permit it.

#[path = "support/databases.rs"]
mod databases;

use databases::on_each;
use longma_placement::host::{Device, DeviceKind};
use longma_placement::inventory::HostStatus;
use longma_placement::request::{CpuPolicy, DeviceNeed, Level, Membership, Relation};
use longma_placement::store::{AgentStore as _, Intent, StoreError, Vm, VmState};
use longma_placement::{Allocator, Host, Placement, Policy, Request, SqlStore, Store as _};
use longma_topology::Machine;
use std::sync::Arc;

fn host(name: &str) -> Host {
    Host::of_machine(&Machine::open("hygon-8node").unwrap(), name).unwrap()
}

fn allocator(store: &Arc<SqlStore>) -> Allocator {
    Allocator::open(store.clone(), Policy::default(), 1).unwrap()
}

fn exclusive(name: &str) -> Request {
    Request { cpu: CpuPolicy::Exclusive, ..Request::new(name, 4, 1024) }
}

fn in_group(name: &str, relation: Relation, level: Level) -> Request {
    Request { groups: vec![Membership { group: "g".into(), relation, level }], ..exclusive(name) }
}

/// Places a virtual machine and marks it as running.
fn run(store: &Arc<SqlStore>, request: &Request) -> Vm {
    let id = allocator(store).place(request, None).unwrap().vm.id;
    store.transition(id, VmState::Reserved, VmState::Creating, None).unwrap();
    store.transition(id, VmState::Creating, VmState::Running, None).unwrap()
}

fn target(store: &Arc<SqlStore>, vm: &Vm, to: &str) -> Placement {
    allocator(store).migration_target(vm.id, Some(to)).unwrap()
}

/// Exclusive CPUs on each host, as a scheduler that reads the store sees them.
fn exclusive_cpus(one: &mut Allocator) -> Vec<u32> {
    one.apply_changes().unwrap();
    let of = |host| one.scheduler().inventory().usage(host).unwrap().nodes.iter().map(|n| n.exclusive).sum();
    ["h1", "h2"].map(of).to_vec()
}

fn why<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> String {
    answer.unwrap_err().to_string()
}

#[test]
fn both_places_are_reserved_until_the_migration_ends() {
    on_each(|database| {
        let store = database.open();
        store.put_host(&host("h1"), 200).unwrap();
        let vm = run(&store, &exclusive("a"));
        store.put_host(&host("h2"), 200).unwrap();
        // Another scheduler, which learns of everything by events.
        let mut other = allocator(&store);
        for (problem, on, cpus) in [(Some("no"), "h1", [4, 0]), (None, "h2", [0, 4])] {
            let target = target(&store, &vm, "h2");
            let acting = store.on_behalf_of("ops");
            let begun = acting.begin_migration(vm.id, &target).unwrap();
            assert_eq!((begun.state, begun.target.as_ref()), (VmState::Migrating, Some(&target)));
            assert_eq!(exclusive_cpus(&mut other), [4, 4]);
            for host in ["h1", "h2"] {
                assert_eq!(store.host_vms(host).unwrap().len(), 1, "both agents know of it");
                assert_eq!(store.reservations_on(&[host.into()]).unwrap()[0].1.len(), 1);
            }
            assert_eq!(store.check().unwrap(), Vec::<String>::new());
            assert_eq!(store.tenants().unwrap()[0].vms, 1);
            let events = store.events(0, 0).unwrap();
            assert!(events.iter().any(|e| e.kind == "migrating" && e.actor.as_deref() == Some("ops")));
            // Nothing else may change its state in the meantime.
            assert!(why(store.begin_migration(vm.id, &target)).contains("is migrating"));
            assert!(store.transition(vm.id, VmState::Migrating, VmState::Running, None).is_err());
            assert!(store.end_move(vm.id, true).is_err() && store.begin_move(vm.id, &target).is_err());
            assert!(why(store.remove_host("h2")).contains("are on it"));
            let ended = store.end_migration(vm.id, problem).unwrap();
            assert_eq!((ended.state, ended.problem.as_deref()), (VmState::Running, problem));
            assert_eq!(ended.placement.unwrap().host, on);
            assert_eq!(exclusive_cpus(&mut other), cpus);
            assert_eq!(store.check().unwrap(), Vec::<String>::new());
        }
        assert!(store.end_migration(vm.id, None).is_err());
        assert!(store.host_vms("h1").unwrap().is_empty());
    });
}

#[test]
fn a_target_must_be_free_up_and_another_host_and_the_virtual_machine_must_be_movable() {
    on_each(|database| {
        let store = database.open();
        let mut one = host("h1");
        one.devices.push(Device::new("nic0", DeviceKind::Nic, Some(0), 1));
        store.put_host(&one, 200).unwrap();
        let vm = run(&store, &exclusive("a"));
        let device = DeviceNeed::of_kind(DeviceKind::Nic, false);
        let with_device = run(&store, &Request { devices: vec![device], ..exclusive("d") });
        store.put_host(&host("h2"), 200).unwrap();
        let target = target(&store, &vm, "h2");
        for status in [HostStatus::Draining, HostStatus::Down, HostStatus::ForcedDown] {
            store.set_host_status("h2", status, false).unwrap();
            assert!(why(store.begin_migration(vm.id, &target)).contains("it is "), "{status:?}");
            assert!(allocator(&store).migration_target(vm.id, Some("h2")).is_err());
            assert!(allocator(&store).migration_target(vm.id, None).is_err());
        }
        store.set_host_status("h2", HostStatus::Up, false).unwrap();
        assert!(why(store.begin_migration(vm.id, vm.placement.as_ref().unwrap())).contains("on it already"));
        assert!(allocator(&store).migration_target(vm.id, Some("h1")).is_err());
        let host_devices = why(store.begin_migration(
            with_device.id,
            &Placement { host: "h2".into(), ..with_device.placement.clone().unwrap() },
        ));
        assert!(host_devices.contains("has the device nic0"), "{host_devices}");
        // Another virtual machine takes the CPUs first.
        store.set_host_status("h1", HostStatus::Draining, false).unwrap();
        let rival = run(&store, &exclusive("rival"));
        let same = Placement { host: "h2".into(), ..rival.placement.unwrap() };
        assert!(matches!(store.begin_migration(vm.id, &same), Err(StoreError::Conflict { .. })));
        store.set_intent(vm.id, Intent::Stop).unwrap();
        assert!(why(store.begin_migration(vm.id, &target)).contains("is to stop"));
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
    });
}

#[test]
fn groups_hold_during_a_migration() {
    on_each(|database| {
        for (relation, level) in [
            (Relation::AntiAffinity, Level::Host),
            (Relation::AntiAffinity, Level::Node),
            (Relation::Affinity, Level::Host),
        ] {
            let store = database.open();
            let [h1, h2] = [format!("{relation:?}{level:?}1"), format!("{relation:?}{level:?}2")];
            store.put_host(&host(&h1), 200).unwrap();
            let tenant = format!("{relation:?}{level:?}");
            let request = |name: &str| Request { tenant: tenant.clone(), ..in_group(name, relation, level) };
            let a = run(&store, &request("a"));
            store.put_host(&host(&h2), 200).unwrap();
            let target = target(&store, &a, &h2);
            store.begin_migration(a.id, &target).unwrap();
            // A scheduler that has not seen the migration yet chooses the target.
            let mut b = request("b");
            let mut place = target.clone();
            if level == Level::Host {
                // The placement uses other nodes.
                b.groups.iter_mut().for_each(|member| member.level = Level::Host);
                let node = (target.cells[0].node + 1) % 8;
                let cpus = host(&h2).nodes[node as usize].cpus().iter().take(4).collect();
                place.cells[0] = longma_placement::placement::Cell {
                    node,
                    cpus,
                    memory: vec![longma_placement::placement::Share { node, ..target.cells[0].memory[0] }],
                    ..target.cells[0].clone()
                };
                place.bound = vec![node];
            }
            let reservation = longma_placement::store::Reservation {
                request: b.clone(),
                placement: place.clone(),
                key: None,
                origin: 3,
            };
            let refused = why(store.reserve(reservation.clone()).wait());
            assert!(refused.contains("group g"), "{relation:?} {level:?}: {refused}");
            store.end_migration(a.id, None).unwrap();
            let after = store.reserve(reservation).wait();
            assert_eq!(after.is_ok(), relation == Relation::Affinity, "{relation:?} {level:?}: {after:?}");
            for name in [h1, h2] {
                store.set_host_status(&name, HostStatus::Draining, false).unwrap();
            }
        }
    });
}

#[test]
fn either_host_of_a_migration_may_die() {
    on_each(|database| {
        let store = database.open();
        store.put_host(&host("h1"), 200).unwrap();
        let [a, b] = ["a", "b"].map(|name| run(&store, &exclusive(name)));
        store.put_host(&host("h2"), 200).unwrap();
        for vm in [&a, &b] {
            let target = target(&store, vm, "h2");
            store.begin_migration(vm.id, &target).unwrap();
        }
        let mut one = allocator(&store);
        // The target: its reservation can still be released by the source's agent.
        store.set_host_status("h2", HostStatus::ForcedDown, false).unwrap();
        assert!(why(store.force_delete(a.id)).contains("force-down"), "it runs on h1");
        store.end_migration(a.id, Some("its target died")).unwrap();
        store.set_host_status("h2", HostStatus::Up, false).unwrap();
        // The source host dies: both placements are released, and the virtual machine restarts.
        store.set_host_status("h1", HostStatus::ForcedDown, false).unwrap();
        one.apply_changes().unwrap();
        let evacuated = one.evacuate(b.id).unwrap();
        assert_eq!((evacuated.state, evacuated.target), (VmState::Reserved, None));
        assert_eq!(exclusive_cpus(&mut one), [4, 4]);
        store.force_delete(a.id).unwrap();
        assert_eq!(exclusive_cpus(&mut allocator(&store)), [0, 4]);
        assert_eq!(exclusive_cpus(&mut one), [0, 4]);
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
        store.remove_host("h1").unwrap();
    });
}
