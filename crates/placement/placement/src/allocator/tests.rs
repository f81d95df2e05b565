//! Tests of `allocator` that look into its inventory.

use super::*;
use crate::{Host, SqlStore};
use longma_topology::Machine;

/// Lifetimes of the virtual machines on each host.
fn lifetimes(allocator: &Allocator) -> Vec<usize> {
    allocator.scheduler.inventory().hosts.iter().map(|host| host.lifetimes.len()).collect()
}

#[test]
fn an_evacuated_virtual_machine_leaves_no_lifetime_behind_when_it_is_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(SqlStore::open_file(&folder.path().join("db")).unwrap());
    let host = |name: &str| Host::of_machine(&Machine::open("hygon-8node").unwrap(), name).unwrap();
    store.put_host(&host("h1"), 200).unwrap();
    let mut allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
    let request = Request { lifetime_s: Some(3600), ..Request::new("a", 2, 512) };
    let placed = allocator.place(&request, None).unwrap().vm;
    let (id, begun) = (placed.id, placed.placement.unwrap().lifetime.unwrap());
    store.put_host(&host("h2"), 200).unwrap();
    store.set_host_status("h1", HostStatus::ForcedDown, false).unwrap();
    allocator.apply_changes().unwrap();
    allocator.scheduler.set_time(begun.since_s + 1000);
    let evacuated = allocator.evacuate(id).unwrap().placement.unwrap();
    assert_eq!((&*evacuated.host, evacuated.lifetime), ("h2", Some(begun)));
    assert_eq!(lifetimes(&allocator), [0, 1]);
    allocator.scheduler.release(&evacuated).unwrap();
    assert_eq!(lifetimes(&allocator), [0, 0]);
}
