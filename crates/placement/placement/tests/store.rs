//! Tests of the store: no resource is reserved twice by concurrent allocators, answered changes survive a crash, and
//! foreign files are rejected.

#[path = "support/databases.rs"]
mod databases;

use databases::on_each;
use longma_placement::inventory::HostStatus;
use longma_placement::request::{CpuPolicy, Level, Membership, Relation};
use longma_placement::store::AgentStore as _;
use longma_placement::store::{Intent, Reservation, StoreError, VmQuery, VmState};
use longma_placement::{Allocator, Host, Policy, Request, Scheduler, SqlStore, Store};
use longma_topology::Machine;
use std::sync::Arc;

fn hygon(name: &str) -> Host {
    Host::of_machine(&Machine::open("hygon-8node").unwrap(), name).unwrap().with_first_core_reserved()
}

fn exclusive(name: &str, vcpus: u32, mib: u64) -> Request {
    Request { cpu: CpuPolicy::Exclusive, ..Request::new(name, vcpus, mib) }
}

#[test]
fn two_schedulers_on_one_file_reserve_nothing_twice() {
    on_each(|database| {
        let first = database.open();
        for h in 0..3 {
            first.put_host(&hygon(&format!("h{h}")), 200).unwrap();
        }
        let threads: Vec<_> = (0..2u64)
            .map(|t| {
                let store = database.open();
                std::thread::spawn(move || {
                    let mut allocator = Allocator::open(store, Policy::default(), 100 + t).unwrap();
                    let mut placed = 0;
                    for v in 0..150 {
                        // A mix of exclusive and shared requests until nothing more fits.
                        let name = format!("t{t}-v{v}");
                        let request =
                            if v % 3 == 0 { exclusive(&name, 6, 9000) } else { Request::new(&name, 4, 9000) };
                        // On a busy machine the other allocator may win every attempt; the caller then retries.
                        let answer = loop {
                            match allocator.place(&request, None) {
                                Err(error) if error.to_string().contains("no longer free") => {}
                                answer => break answer,
                            }
                        };
                        match answer {
                            Ok(_) => placed += 1,
                            Err(error) => assert!(error.to_string().contains("fits none"), "{error}"),
                        }
                    }
                    placed
                })
            })
            .collect();
        let placed: u32 = threads.into_iter().map(|t| t.join().unwrap()).sum();
        assert_eq!(first.check().unwrap(), Vec::<String>::new());
        let vms = first.vms(&VmQuery::default()).unwrap();
        assert_eq!(vms.len() as u32, placed);
        // Each node holds three virtual machines, and the remainders of two nodes together hold one more. How many of
        // these additional ones fit depends on which virtual machines have exclusive CPUs.
        assert!((72..=84).contains(&placed), "{placed}");
        let mut last = Allocator::open(first.clone(), Policy::default(), 1).unwrap();
        assert!(last.place(&Request::new("more", 4, 9000), None).is_err(), "all that fits was placed");
        let mut owners = std::collections::BTreeSet::new();
        for vm in &vms {
            let place = vm.placement.as_ref().unwrap();
            for (_, cpu) in place.tally().exclusive {
                assert!(owners.insert((place.host.clone(), cpu)), "CPU {cpu} of {} twice", place.host);
            }
        }
    });
}

#[test]
fn conflicting_schedulers_retry_until_they_succeed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("placement.db");
    let first = SqlStore::open_file(&path).unwrap();
    for h in 0..600 {
        first.put_host(&hygon(&format!("h{h}")), 200).unwrap();
    }
    let open = |seed| {
        let store: Arc<dyn Store> = Arc::new(SqlStore::open_file(&path).unwrap());
        Allocator::open(store, Policy::default(), seed).unwrap()
    };
    let mut both = [open(1), open(2)];
    for round in 0..30 {
        // Each allocator decides on all its requests before it sees the other's reservations.
        let begun: Vec<Vec<_>> = both
            .iter_mut()
            .enumerate()
            .map(|(number, allocator)| {
                let request = |n: u32| exclusive(&format!("s{number}r{round}n{n}"), 2, 4096);
                (0..32).map(|n| allocator.begin(&request(n), None).unwrap()).collect()
            })
            .collect();
        for (allocator, begun) in both.iter_mut().zip(begun) {
            begun.into_iter().for_each(|begun| _ = allocator.finish(begun).unwrap());
        }
    }
    let conflicts: u64 = both.iter().map(Allocator::conflicts).sum();
    // Without partitions there are about 90.
    assert!(conflicts < 60, "{conflicts} of 1920 decisions were repeated");
    assert_eq!(first.check().unwrap(), Vec::<String>::new());
}

#[test]
fn database_constraints_reject_double_reservations() {
    on_each(|database| {
        let store = database.open();
        store.put_host(&hygon("h"), 100).unwrap();
        let reserve = |request: &Request, placement: &longma_placement::Placement| {
            let placement = placement.clone();
            store.reserve(Reservation { request: request.clone(), placement, key: None, origin: 1 }).wait()
        };
        let mut scheduler = Scheduler::new(Policy { overcommit_percent: 100, ..Policy::default() }, 1);
        scheduler.put_host(&hygon("h")).unwrap();
        let place = scheduler.decide(&exclusive("a", 2, 20_000)).unwrap();
        reserve(&exclusive("a", 2, 20_000), &place).unwrap();
        let conflict = |answer: Result<_, StoreError>| match answer {
            Err(StoreError::Conflict { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        assert!(conflict(reserve(&exclusive("b", 2, 64), &place)).contains("exclusive_cpus"));
        let mut elsewhere = scheduler.decide(&Request::new("c", 2, 20_000)).unwrap();
        elsewhere.cells[0].node = place.cells[0].node;
        elsewhere.cells[0].memory[0].node = place.cells[0].node;
        assert!(conflict(reserve(&Request::new("c", 2, 20_000), &elsewhere)).contains("memory_of_a_node"));
        elsewhere.cells[0].memory[0].mib = 1;
        elsewhere.cells[0].vcpus = 15;
        assert!(conflict(reserve(&Request::new("c", 15, 1), &elsewhere)).contains("over_commit"));
        assert_eq!(store.check().unwrap(), Vec::<String>::new(), "a rejected transaction leaves nothing");
        assert_eq!(store.vms(&VmQuery::default()).unwrap().len(), 1);
        // A new description must not remove resources that a virtual machine uses.
        let mut less = hygon("h");
        less.nodes[place.cells[0].node as usize].memory[0].mib = 10_000;
        assert!(matches!(store.put_host(&less, 100), Err(StoreError::Conflict { .. })));
        less = hygon("h");
        less.reserved.extend(place.cells[0].cpus.iter().copied());
        assert!(matches!(store.put_host(&less, 100), Err(StoreError::Conflict { .. })));
    });
}

#[test]
fn a_key_is_answered_once_and_a_name_is_taken_once() {
    on_each(|database| {
        let store = database.open();
        store.put_host(&hygon("h"), 200).unwrap();
        let mut allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
        let first = allocator.place(&Request::new("a", 2, 512), Some("k1")).unwrap();
        let again = allocator.place(&Request::new("a", 2, 512), Some("k1")).unwrap();
        assert!(again.replayed && again.vm == first.vm);
        let other = allocator.place(&Request::new("b", 2, 512), Some("k1")).unwrap_err();
        assert!(other.to_string().contains("key"), "{other}");
        let taken = allocator.place(&Request::new("a", 2, 512), None).unwrap_err();
        assert!(taken.to_string().contains("already has a virtual machine called a"), "{taken}");
        let usage = allocator.scheduler().inventory().usage("h").unwrap();
        assert_eq!(
            (usage.vms, usage.nodes.iter().map(|n| n.shared).sum::<u32>()),
            (1, 2),
            "rejected requests reserve nothing"
        );
        let elsewhere = Request { tenant: "t2".into(), ..Request::new("a", 2, 512) };
        assert!(allocator.place(&elsewhere, Some("k1")).is_ok(), "names and keys are a tenant's own");
    });
}

#[test]
fn racing_members_of_an_anti_affinity_group_never_share_a_host() {
    on_each(|database| {
        let store = database.open();
        store.put_host(&hygon("h"), 200).unwrap();
        let open = |seed| Allocator::open(store.clone(), Policy::default(), seed).unwrap();
        let (mut one, mut two) = (open(1), open(2));
        let member = |name: &str| Request {
            groups: vec![Membership {
                group: "g".into(),
                relation: Relation::AntiAffinity,
                level: Level::Host,
            }],
            ..Request::new(name, 1, 64)
        };
        one.place(&member("a"), None).unwrap();
        // The second allocator has not seen the first one's reservation.
        assert!(two.place(&member("b"), None).is_err());
        assert_eq!(store.vms(&VmQuery::default()).unwrap().len(), 1);
    });
}

#[test]
fn only_valid_state_transitions_happen_and_deletion_releases_everything() {
    on_each(|database| {
        let store = database.open();
        store.put_host(&hygon("h"), 200).unwrap();
        let mut allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
        let id = allocator.place(&exclusive("a", 4, 1024), None).unwrap().vm.id;
        use VmState::*;
        assert!(matches!(store.transition(id, Reserved, Running, None), Err(StoreError::NotAllowed { .. })));
        assert!(matches!(
            store.transition(id, Running, Stopping, None),
            Err(StoreError::Stale { found: Reserved, .. })
        ));
        store.transition(id, Reserved, Creating, None).unwrap();
        store.transition(id, Creating, Running, None).unwrap();
        let target = allocator.scheduler().decide(&exclusive("a", 4, 1024)).unwrap();
        let moving = store.begin_move(id, &target).unwrap();
        assert_eq!((moving.state, moving.target.as_ref()), (Moving, Some(&target)));
        assert_eq!(store.check().unwrap(), Vec::<String>::new(), "both placements are reserved");
        let back = store.end_move(id, false).unwrap();
        assert_ne!(back.placement.as_ref(), Some(&target));
        store.begin_move(id, &target).unwrap();
        assert_eq!(store.end_move(id, true).unwrap().placement, Some(target));
        store.set_intent(id, Intent::Delete).unwrap();
        store.transition(id, Running, Stopping, None).unwrap();
        store.transition(id, Stopping, Deleted, None).unwrap();
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
        assert!(store.vms(&VmQuery::default()).unwrap().is_empty());
        allocator.apply_changes().unwrap();
        assert_eq!(allocator.scheduler().inventory().usage("h").unwrap().vms, 0);
        assert!(allocator.place(&exclusive("a", 4, 1024), None).is_ok(), "the name is free again");
    });
}

#[test]
fn a_stopped_virtual_machine_can_be_resized_and_releases_its_old_reservation() {
    on_each(|database| {
        let store = database.open();
        store.put_host(&hygon("h"), 200).unwrap();
        let mut allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
        let id = allocator.place(&exclusive("a", 4, 1024), None).unwrap().vm.id;
        let larger = exclusive("a", 12, 20_000);
        let refused = allocator.resize(id, &larger).unwrap_err().to_string();
        assert!(refused.contains("reserved"), "it is not stopped: {refused}");
        use VmState::*;
        for (from, to) in [(Reserved, Stopping), (Stopping, Stopped)] {
            store.transition(id, from, to, None).unwrap();
        }
        // Meanwhile another allocator, unaware of the resize, takes resources of the same node.
        let mut other = Allocator::open(store.clone(), Policy::default(), 2).unwrap();
        other.place(&exclusive("b", 4, 1024), None).unwrap();
        let vm = allocator.resize(id, &larger).unwrap();
        assert_eq!((vm.request.vcpus, vm.request.memory_mib, vm.state), (12, 20_000, Stopped));
        assert_eq!(vm.placement.as_ref().unwrap().tally().exclusive.len(), 12);
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
        let too_large = exclusive("a", 500, 20_000);
        assert!(allocator.resize(id, &too_large).is_err());
        let quota = longma_placement::store::Quota { vcpus: Some(16), ..Default::default() };
        store.set_quota("default", &quota).unwrap();
        let over = allocator.resize(id, &exclusive("a", 13, 20_000)).unwrap_err().to_string();
        assert!(over.contains("quota"), "{over}");
        assert_eq!(store.vm(id).unwrap(), vm, "a rejected change changes nothing");
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
        // The allocator's view of free resources is correct, and a smaller size releases resources.
        allocator.resize(id, &exclusive("a", 1, 64)).unwrap();
        let shared = allocator.scheduler().inventory().usage("h").unwrap();
        assert_eq!(shared.nodes.iter().map(|n| n.exclusive).sum::<u32>(), 5);
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
    });
}

#[test]
fn acknowledged_changes_are_present_after_reopening_the_store() {
    on_each(|database| {
        let placed = {
            let store = database.open();
            store.put_host(&hygon("h"), 200).unwrap();
            store.set_host_status("h", longma_placement::inventory::HostStatus::Up, true).unwrap();
            let mut allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
            // Begun together, so committed together.
            let begun: Vec<_> = (0..40)
                .map(|v| allocator.begin(&Request::new(&format!("v{v}"), 1, 512), None).unwrap())
                .collect();
            begun.into_iter().map(|b| allocator.finish(b).unwrap()).collect::<Vec<_>>()
        };
        let store = database.open();
        for reserved in placed {
            assert_eq!(store.vm(reserved.vm.id).unwrap(), reserved.vm);
        }
        let mut allocator = Allocator::open(store.clone(), Policy::default(), 2).unwrap();
        assert_eq!(allocator.scheduler().inventory().usage("h").unwrap().vms, 40);
        assert_eq!(store.events(0, 0).unwrap().iter().filter(|e| e.kind == "reserved").count(), 40);
    });
}

#[test]
fn a_database_has_a_permanent_identity() {
    on_each(|database| {
        let identity = database.open().identity().unwrap();
        assert!(identity.len() == 32 && identity.bytes().all(|b| b.is_ascii_hexdigit()), "{identity}");
        assert_eq!(database.open().identity().unwrap(), identity);
        on_each(|other| assert_ne!(other.open().identity().unwrap(), identity));
    });
    // A file from before identities existed gets one.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("placement.db");
    let first = SqlStore::open_file(&path).unwrap().identity().unwrap();
    let file = rusqlite::Connection::open(&path).unwrap();
    let statements = format!("{} DROP TABLE identity; PRAGMA user_version = 3", databases::TO_VERSION_4);
    file.execute_batch(&statements).unwrap();
    drop(file);
    assert_ne!(SqlStore::open_file(&path).unwrap().identity().unwrap(), first);
}

#[test]
fn alarms_are_raised_once_and_cleared_once() {
    on_each(|database| {
        let store = database.open();
        assert!(store.raise_alarm("h", Some(3), "cpu", 0.97).unwrap());
        assert!(!store.raise_alarm("h", Some(3), "cpu", 0.99).unwrap());
        assert!(store.raise_alarm("h", None, "cpu", 0.99).unwrap());
        assert!(store.clear_alarm("h", Some(3), "cpu").unwrap());
        assert!(!store.clear_alarm("h", Some(3), "cpu").unwrap());
        assert_eq!(store.alarms(true, 0).unwrap().len(), 1);
        assert_eq!(store.alarms(false, 0).unwrap().len(), 2);
    });
}

#[test]
fn foreign_files_and_those_of_later_versions_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    rusqlite::Connection::open(path("other.db")).unwrap().execute_batch("CREATE TABLE x (a)").unwrap();
    let refused = |name: &str| SqlStore::open_file(&path(name)).unwrap_err().to_string();
    assert!(refused("other.db").contains("another program"));
    drop(SqlStore::open_file(&path("newer.db")).unwrap());
    rusqlite::Connection::open(path("newer.db")).unwrap().pragma_update(None, "user_version", 99).unwrap();
    assert!(refused("newer.db").contains("version 99"));
    std::fs::write(path("text.db"), "no database, but long enough for a header: ".repeat(100)).unwrap();
    assert!(refused("text.db").contains("not a database"));
}

fn of_group(name: &str, relation: Relation, level: Level) -> Request {
    of_group_called("g", name, relation, level)
}

fn of_group_called(group: &str, name: &str, relation: Relation, level: Level) -> Request {
    let groups = vec![Membership { group: group.into(), relation, level }];
    Request { groups, ..Request::new(name, 1, 64) }
}

fn nodes_of(store: &SqlStore) -> Vec<u32> {
    let vms = store.vms(&VmQuery::default()).unwrap();
    vms.iter().map(|vm| vm.placement.as_ref().unwrap().cells[0].node).collect()
}

#[test]
fn groups_by_node_hold_with_two_schedulers_that_have_not_seen_each_others_changes() {
    on_each(|database| {
        let store = database.open();
        store.put_host(&hygon("h"), 200).unwrap();
        let open = |seed| Allocator::open(database.open(), Policy::default(), seed).unwrap();
        let mut both = [open(1), open(2)];
        for v in 0..8 {
            let member = of_group(&format!("v{v}"), Relation::AntiAffinity, Level::Node);
            both[v % 2].place(&member, None).unwrap();
        }
        let mut nodes = nodes_of(&store);
        nodes.sort_unstable();
        assert_eq!(nodes, (0..8).collect::<Vec<_>>(), "each is on a separate node");
        assert!(both[1].place(&of_group("v8", Relation::AntiAffinity, Level::Node), None).is_err());
    });
}

#[test]
fn affinity_holds_although_a_scheduler_has_not_seen_the_first_member() {
    for level in [Level::Node, Level::Host] {
        on_each(|database| {
            let store = database.open();
            ["h1", "h2"].iter().for_each(|name| store.put_host(&hygon(name), 200).unwrap());
            let open = |seed| Allocator::open(database.open(), Policy::default(), seed).unwrap();
            let (mut one, mut two) = (open(1), open(2));
            let first =
                one.place(&of_group("a", Relation::Affinity, level), None).unwrap().vm.placement.unwrap();
            // Make the second allocator prefer other nodes.
            let busy = |node| longma_placement::host::NodeLoad {
                cpu: if level == Level::Host || node == first.cells[0].node { 1.0 } else { 0.0 },
                memory: 0.0,
            };
            two.scheduler().set_load(&first.host, &(0..8).map(busy).collect::<Vec<_>>());
            let second = two.place(&of_group("b", Relation::Affinity, level), None).unwrap();
            let second = second.vm.placement.unwrap();
            assert_eq!(second.host, first.host);
            assert!(level == Level::Host || second.cells[0].node == first.cells[0].node);
        });
    }
}

/// Eight virtual machines in an anti-affinity group, one on each node. The first is running, the second is stopped.
fn place_eight_on_separate_nodes(allocator: &mut Allocator, store: &SqlStore) -> Vec<i64> {
    use VmState::*;
    let member = |v: u32| of_group(&format!("v{v}"), Relation::AntiAffinity, Level::Node);
    let ids: Vec<i64> = (0..8).map(|v| allocator.place(&member(v), None).unwrap().vm.id).collect();
    for (id, from, to) in [
        (ids[0], Reserved, Creating),
        (ids[0], Creating, Running),
        (ids[1], Reserved, Stopping),
        (ids[1], Stopping, Stopped),
    ] {
        store.transition(id, from, to, None).unwrap();
    }
    ids
}

#[test]
fn neither_a_move_nor_a_resize_violates_a_group_by_node() {
    on_each(|database| {
        let store = database.open();
        store.put_host(&hygon("h"), 200).unwrap();
        let mut allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
        let ids = place_eight_on_separate_nodes(&mut allocator, &store);
        let vm = store.vm(ids[0]).unwrap();
        let own = vm.placement.as_ref().unwrap().cells[0].node;
        let others: Vec<u32> = (0..8).filter(|node| *node != own).collect();
        let scheduler = allocator.scheduler();
        assert_eq!(scheduler.decide_on(&vm.request, "h", &others, &vm.placement), None);
        let near_others = scheduler.decide_on_without_groups(&vm.request, "h", &others).unwrap();
        let refused = store.begin_move(ids[0], &near_others).unwrap_err().to_string();
        assert!(refused.contains("group g") && refused.contains("virtual machine"), "{refused}");
        // The virtual machine's own node is not treated as the node of another member.
        let here = scheduler.decide_on(&vm.request, "h", &[own], &vm.placement).unwrap();
        store.begin_move(ids[0], &here).unwrap();
        store.end_move(ids[0], true).unwrap();

        let small = store.vm(ids[1]).unwrap();
        let grown = Request { vcpus: 2, ..small.request.clone() };
        let target = longma_placement::Placement { cells: here.cells.clone(), ..small.placement.unwrap() };
        let refused = store.resize(ids[1], &grown, &target).unwrap_err().to_string();
        assert!(refused.contains("group g") && refused.contains("v0"), "{refused}");
        let resized = allocator.resize(ids[1], &grown).unwrap().placement.unwrap();
        assert!((2..8).all(|v| nodes_of(&store)[v] != resized.cells[0].node));
        assert_eq!(resized.cells[0].node, nodes_of(&store)[1]);
    });
}

#[test]
fn a_resize_that_only_a_group_forbids_is_rejected_with_the_group_and_the_member() {
    on_each(|database| {
        let store = database.open();
        store.put_host(&hygon("h"), 200).unwrap();
        let mut allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
        let ids = place_eight_on_separate_nodes(&mut allocator, &store);
        let node = nodes_of(&store)[1];
        // Another allocator takes the rest of its node.
        let mib = allocator.scheduler().inventory().usage("h").unwrap().nodes[node as usize].memory[0];
        let full = Request::new("full", 1, mib.1 - mib.2);
        let placement = allocator.scheduler().decide_on(&full, "h", &[node], None).unwrap();
        store.reserve(Reservation { request: full, placement, key: None, origin: 7 }).wait().unwrap();
        let grown = Request { memory_mib: 128, ..store.vm(ids[1]).unwrap().request };
        let refused = allocator.resize(ids[1], &grown).unwrap_err().to_string();
        assert!(refused.contains("group g forbids node") && refused.contains("its member v"), "{refused}");
    });
}

#[test]
fn a_moving_member_counts_on_both_nodes_for_anti_affinity_and_on_neither_for_affinity() {
    on_each(|database| {
        let store = database.open();
        store.put_host(&hygon("h"), 200).unwrap();
        let mut one = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
        let moving = one.place(&of_group("a", Relation::Affinity, Level::Node), None).unwrap().vm.id;
        use VmState::*;
        store.transition(moving, Reserved, Creating, None).unwrap();
        let vm = store.transition(moving, Creating, Running, None).unwrap();
        let from = vm.placement.as_ref().unwrap().cells[0].node;
        let to = (from + 1) % 8;
        let place = |allocator: &mut Allocator, request: &Request, node| {
            let placement = allocator.scheduler().decide_on_without_groups(request, "h", &[node]).unwrap();
            let (request, key) = (request.clone(), None);
            store.reserve(Reservation { request, placement, key, origin: 7 }).wait()
        };
        let target = one.scheduler().decide_on(&vm.request, "h", &[to], &vm.placement).unwrap();
        store.begin_move(moving, &target).unwrap();
        for node in [from, to] {
            for relation in [Relation::Affinity, Relation::AntiAffinity] {
                let refused = place(&mut one, &of_group("b", relation, Level::Node), node).unwrap_err();
                assert!(refused.to_string().contains("group g forbids"), "{refused}");
            }
        }
        store.end_move(moving, true).unwrap();
        place(&mut one, &of_group("b", Relation::AntiAffinity, Level::Node), from).unwrap();
    });
}

#[test]
fn groups_by_node_hold_with_two_concurrent_schedulers() {
    on_each(|database| {
        let store = database.open();
        store.put_host(&hygon("h"), 200).unwrap();
        let open = |seed| Allocator::open(database.open(), Policy::default(), seed).unwrap();
        let mut both = [open(1), open(2)];
        for round in 0..12 {
            let relation = if round % 2 == 0 { Relation::AntiAffinity } else { Relation::Affinity };
            let group = format!("g{round}");
            let member = |at: usize, v: usize| {
                of_group_called(&group, &format!("r{round}-{at}-{v}"), relation, Level::Node)
            };
            std::thread::scope(|scope| {
                for (at, allocator) in both.iter_mut().enumerate() {
                    scope.spawn(move || {
                        let begun: Vec<_> =
                            (0..3).map(|v| allocator.begin(&member(at, v), None).unwrap()).collect();
                        begun.into_iter().for_each(|b| drop(allocator.finish(b).unwrap()));
                    });
                }
            });
            let nodes: std::collections::BTreeSet<u32> =
                nodes_of(&store).into_iter().skip(round * 6).collect();
            let expected = if relation == Relation::Affinity { 1 } else { 6 };
            assert_eq!(nodes.len(), expected, "round {round}: {nodes:?}");
        }
    });
}

#[test]
fn counts_match_the_list() {
    on_each(|database| {
        let store = database.open();
        for name in ["a", "b", "c"] {
            store.put_host(&hygon(name), 200).unwrap();
        }
        store.set_host_status("b", HostStatus::Draining, false).unwrap();
        let mut allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
        let id = allocator.place(&Request::new("x", 1, 64), None).unwrap().vm.id;
        allocator.place(&Request::new("y", 1, 64), None).unwrap();
        store.transition(id, VmState::Reserved, VmState::Creating, None).unwrap();
        store.raise_alarm("a", None, "test", 1.0).unwrap();
        store.raise_alarm("a", Some(1), "test", 1.0).unwrap();
        store.clear_alarm("a", Some(1), "test").unwrap();
        let mut counts = store.counts().unwrap();
        counts.vms.sort_by_key(|(state, _)| state.name());
        counts.hosts.sort_by_key(|(_, count)| *count);
        assert_eq!(counts.vms, [(VmState::Creating, 1), (VmState::Reserved, 1)]);
        assert_eq!(counts.hosts, [(HostStatus::Draining, 1), (HostStatus::Up, 2)]);
        assert_eq!(counts.alarms, [("test".to_string(), 1)]);
        assert_eq!(store.host_names().unwrap(), ["a", "b", "c"]);
    });
}

#[test]
fn history_is_deleted_after_its_retention_time() {
    on_each(|database| {
        let store = database.open();
        store.put_host(&hygon("h"), 200).unwrap();
        let mut allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
        let place = |allocator: &mut Allocator, name: &str| {
            allocator.place(&Request::new(name, 1, 64), Some(name)).unwrap().vm
        };
        let (lives, ended) = (place(&mut allocator, "lives"), place(&mut allocator, "ended"));
        for (from, to) in [(VmState::Reserved, VmState::Stopping), (VmState::Stopping, VmState::Deleted)] {
            store.transition(ended.id, from, to, None).unwrap();
        }
        store.raise_alarm("h", None, "test", 1.0).unwrap();
        store.clear_alarm("h", None, "test").unwrap();
        store.raise_alarm("h", None, "stands", 1.0).unwrap();
        let last = store.events(0, 0).unwrap().last().unwrap().number;
        // The second may have changed since the host was described.
        let earlier = lives.created_at - 1_000_000;
        assert_eq!(store.prune(earlier).unwrap(), 0, "all is too young");
        let later = lives.created_at + 1_000_000;
        assert!(store.prune(later).unwrap() > 3);
        assert_eq!(store.vms(&VmQuery { deleted: true, ..VmQuery::default() }).unwrap(), [lives]);
        assert_eq!(store.events(0, 0).unwrap().iter().map(|e| e.number).collect::<Vec<_>>(), [last]);
        let alarms = store.alarms(false, 0).unwrap();
        assert_eq!(alarms.iter().map(|alarm| &*alarm.kind).collect::<Vec<_>>(), ["stands"]);
        assert_eq!(store.prune(later).unwrap(), 0);
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
        // The key of a living virtual machine stays, that of the deleted one can be used again.
        assert!(allocator.place(&Request::new("lives", 1, 64), Some("lives")).unwrap().replayed);
        let again = place(&mut allocator, "ended");
        assert!(again.id > ended.id, "numbers are not reused");
    });
}

#[test]
fn a_backup_of_a_database_in_use_is_complete() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let store = Arc::new(SqlStore::open_file(&path("placement.db")).unwrap());
    store.put_host(&hygon("h"), 200).unwrap();
    let mut allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
    let vm = allocator.place(&exclusive("a", 4, 512), None).unwrap().vm;
    SqlStore::backup(&path("placement.db"), &path("copy")).unwrap();
    allocator.place(&exclusive("later", 4, 512), None).unwrap();
    let copy = SqlStore::open_file(&path("copy")).unwrap();
    assert_eq!(copy.vms(&VmQuery::default()).unwrap(), [vm]);
    assert_eq!(copy.identity().unwrap(), store.identity().unwrap());
    assert_eq!(copy.check().unwrap(), Vec::<String>::new());
    assert_eq!(std::fs::metadata(path("copy")).unwrap().permissions().mode() & 0o777, 0o600);
    let refused = |from: &str, to: &str| SqlStore::backup(&path(from), &path(to)).unwrap_err().to_string();
    assert!(refused("placement.db", "copy").contains("copy"), "it exists");
    std::fs::write(path("foreign"), "no database, but long enough for a header").unwrap();
    refused("foreign", "new");
    assert!(refused("there-is-none", "new").contains("there-is-none"));
    assert!(!path("new").exists() && !path("there-is-none").exists());
}
