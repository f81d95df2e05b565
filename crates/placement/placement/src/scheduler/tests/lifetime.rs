//! Stated lifetimes, if they are weighed.

use super::*;

const HOUR_S: u64 = 3600;

fn lasting(name: &str, hours: u64) -> Request {
    Request { lifetime_s: Some(hours * HOUR_S), ..Request::new(name, 2, 1024) }
}

/// A scheduler with virtual machines of these lifetimes in hours, each on its own node. The clock is at 0.
fn with_residents(hours: [u64; 2], weights: Weights) -> Scheduler {
    let mut scheduler = Scheduler::new(Policy { weights, ..Policy::default() }, 1);
    scheduler.put_host(&small("h", 2, 8)).unwrap();
    scheduler.set_time(0);
    for (node, hours) in (0..).zip(hours) {
        let placement = scheduler.decide_on(&lasting("resident", hours), "h", &[node], None).unwrap();
        scheduler.reserve(&placement).unwrap();
    }
    scheduler
}

fn node_for(scheduler: &mut Scheduler, hours: u64) -> u32 {
    scheduler.decide(&lasting("new", hours)).unwrap().cells[0].node
}

#[test]
fn a_long_lived_virtual_machine_joins_one_that_lives_as_long() {
    for (hours, node) in [([1, 1000], 1), ([1000, 1], 0)] {
        let mut scheduler = with_residents(hours, Weights::with_lifetimes());
        assert_eq!(node_for(&mut scheduler, 1000), node);
    }
}

#[test]
fn lifetimes_are_not_weighed_by_default() {
    let nodes =
        [[1, 1000], [1000, 1]].map(|hours| node_for(&mut with_residents(hours, Weights::default()), 1000));
    assert_eq!(nodes[0], nodes[1]);
}

#[test]
fn a_virtual_machine_that_outlives_its_lifetime_is_expected_to_stay() {
    // On node 0 the virtual machine was expected to live for one hour and has lived for 900.
    let mut scheduler = with_residents([1, 901], Weights::with_lifetimes());
    assert_eq!(node_for(&mut scheduler, 100), 1);
    scheduler.set_time(900 * HOUR_S as i64);
    assert_eq!(node_for(&mut scheduler, 100), 0);
}

#[test]
fn a_moved_virtual_machine_keeps_the_begin_of_its_lifetime() {
    let mut scheduler = with_residents([1, 1], Weights::with_lifetimes());
    let placement = scheduler.place(&lasting("vm", 10)).unwrap();
    scheduler.set_time(5 * HOUR_S as i64);
    let moved = scheduler.decide_on(&lasting("vm", 10), "h", &[0, 1], [&placement]).unwrap();
    assert_eq!(moved.lifetime, placement.lifetime);
    assert!(placement.lifetime.is_some());
}

#[test]
fn departures_are_forgotten() {
    let mut scheduler = with_residents([1, 1], Weights::with_lifetimes());
    let placement = scheduler.decide_on(&lasting("old", 1000), "h", &[0], None).unwrap();
    scheduler.reserve(&placement).unwrap();
    assert_eq!(node_for(&mut scheduler, 1000), 0);
    scheduler.release(&placement).unwrap();
    let state = &scheduler.inventory.hosts[0];
    assert_eq!(state.nodes.iter().map(|node| node.lifetime_class).collect::<Vec<_>>(), [0, 0]);
}
