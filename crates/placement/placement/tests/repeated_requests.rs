//! Requests that are repeated while the first is still in progress, and changes by others in between.

#[path = "support/databases.rs"]
mod databases;

use databases::on_each;
use longma_placement::allocator::AllocateError;
use longma_placement::request::CpuPolicy;
use longma_placement::store::StoreError;
use longma_placement::{Allocator, Host, Policy, Request, Scheduler, SqlStore, Store};
use longma_topology::Machine;
use std::sync::Arc;

fn host() -> Host {
    Host::of_machine(&Machine::open("hygon-8node").unwrap(), "h").unwrap()
}

/// The reservations in the store must equal those of the allocator in memory.
fn check(allocator: &mut Allocator, store: &Arc<SqlStore>) {
    let mut expected = Scheduler::new(Policy::default(), 1);
    expected.put_host(&host()).unwrap();
    for vm in store.vms(&Default::default()).unwrap() {
        expected.reserve(&vm.placement.unwrap()).unwrap();
    }
    assert_eq!(allocator.scheduler().inventory().usage("h"), expected.inventory().usage("h"));
    assert_eq!(store.check().unwrap(), Vec::<String>::new());
}

fn requests() -> [Request; 2] {
    let shared = Request::new("a", 2, 512);
    [Request { cpu: CpuPolicy::Exclusive, ..shared.clone() }, shared]
}

/// Begins `request` three times, applies a change of another process at each possible point between, and finishes.
fn race(key: Option<&str>, request: &Request, expect: impl Fn(usize, Result<bool, AllocateError>)) {
    on_each(|database| {
        for changed_before in 0..4 {
            let store = database.open();
            store.put_host(&host(), 200).unwrap();
            let mut allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
            let name = format!("{}{changed_before}", request.name);
            let key = key.map(|key| format!("{key}{changed_before}"));
            let request = Request { name, ..request.clone() };
            let begun: Vec<_> = (0..3).map(|_| allocator.begin(&request, key.as_deref()).unwrap()).collect();
            while !begun.iter().all(|one| one.is_answered()) {
                std::thread::yield_now();
            }
            for (at, begun) in begun.into_iter().enumerate() {
                if at == changed_before {
                    // Describing a host again changes it for every allocator.
                    store.put_host(&host(), 200).unwrap();
                    allocator.apply_changes().unwrap();
                }
                expect(at, allocator.finish(begun).map(|reserved| reserved.replayed));
            }
            check(&mut allocator, &store);
        }
    });
}

#[test]
fn a_repeated_key_gets_the_first_answer_while_the_first_is_in_progress() {
    for request in requests() {
        race(Some("key"), &request, |at, answer| assert_eq!(answer.unwrap(), at > 0));
    }
}

#[test]
fn concurrent_requests_for_one_name_place_it_once() {
    for request in requests() {
        race(None, &request, |at, answer| match answer {
            Ok(_) => assert_eq!(at, 0),
            Err(AllocateError::Store(StoreError::Exists { .. })) => assert!(at > 0),
            Err(other) => panic!("{other}"),
        });
    }
}
