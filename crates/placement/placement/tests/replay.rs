//! Replays of arrivals and departures under several policies.

use longma_placement::host::{Host, Node, Pool, uniform_distances};
use longma_placement::replay::{Arrival, Candidate, Interval, Outcome, Sums, compare, replay, replay_all};
use longma_placement::request::MemoryPolicy;
use longma_placement::{Policy, Request};
use std::time::{Duration, Instant};

/// Hosts of `nodes` nodes with eight CPUs and 1024 MiB each.
fn hosts(count: u32, nodes: u32) -> Vec<Host> {
    let node = |id: u32| Node {
        id,
        cores: (id * 8..(id + 1) * 8).map(|cpu| [cpu].into_iter().collect()).collect(),
        memory: vec![Pool { page_kib: 4, mib: 1024 }],
    };
    let host = |at: u32| Host {
        name: format!("h{at}"),
        nodes: (0..nodes).map(node).collect(),
        distances: uniform_distances(nodes as usize),
        devices: Vec::new(),
        reserved: Default::default(),
        gone: Default::default(),
        foreign: Default::default(),
    };
    (0..count).map(host).collect()
}

fn arrival(at: f64, leaves: f64, mib: u64) -> Arrival {
    Arrival { at, leaves, request: Request { virtual_nodes: Some(1), ..Request::new("v", 1, mib) } }
}

fn candidate(name: &str) -> Candidate {
    Candidate::all(&Policy::default()).into_iter().find(|candidate| candidate.name == name).unwrap()
}

fn outcome(hosts: &[Host], arrivals: &[Arrival], name: &str) -> Outcome {
    replay(hosts, arrivals, &candidate(name), 1).unwrap()
}

#[test]
fn departures_free_memory_and_requests_that_fit_nowhere_are_refused() {
    let arrivals = [
        arrival(-5.0, 2.0, 1024),
        arrival(0.0, 9.0, 1024),
        arrival(1.0, 3.0, 512),
        arrival(2.0, f64::INFINITY, 1024),
        arrival(4.0, 4.0, 1),
    ];
    for candidate in Candidate::all(&Policy::default()) {
        let total = replay(&hosts(1, 2), &arrivals, &candidate, 1).unwrap().total();
        // The first arrival fills the host and does not count; the last one finds no memory.
        assert_eq!((total.requests, total.refused), (4, 2), "{}", candidate.name);
        assert_eq!(
            (total.requested_mib, total.refused_mib),
            (1024 + 512 + 1024 + 1, 513),
            "{}",
            candidate.name
        );
    }
    let wrong = [arrival(1.0, 2.0, 1), arrival(0.0, 2.0, 1)];
    assert!(replay(&hosts(1, 1), &wrong, &candidate("longma"), 1).is_err());
    assert_eq!(outcome(&hosts(1, 1), &[], "longma").total(), Sums::default());
}

#[test]
fn one_move_frees_a_node_for_a_request_that_fits_none() {
    // 640 and 384 MiB stay on separate nodes once the others have left; the request needs a whole node.
    let arrivals = [
        arrival(0.0, 50.0, 600),
        arrival(1.0, 10.0, 424),
        arrival(2.0, 50.0, 400),
        arrival(3.0, 10.0, 624),
        arrival(20.0, 50.0, 1024),
        arrival(30.0, 50.0, 100),
    ];
    let still = outcome(&hosts(1, 2), &arrivals, "longma");
    assert_eq!((still.total().refused, still.moves), (1, 0));
    let moving = outcome(&hosts(1, 2), &arrivals, "longma with moves");
    assert_eq!((moving.total().refused, moving.moves), (1, 1), "only the last request finds no memory");
    assert_eq!(moving.total().refused_mib, 100);
}

#[test]
fn an_overloaded_fleet_is_replayed_quickly() {
    // Memory is left on a host whose CPUs are full, so that all moves there are examined.
    let named = |at: u32| {
        let arrival = arrival(0.0, 9.0, 1);
        Arrival { request: Request { name: format!("v{at}"), ..arrival.request }, ..arrival }
    };
    let arrivals: Vec<Arrival> = (0..20_000).map(named).collect();
    let began = Instant::now();
    let total = outcome(&hosts(1, 4), &arrivals, "longma with moves").total();
    assert_eq!(total.requests - total.refused, 64);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn remote_memory_counts_by_the_time_it_is_held() {
    let may_borrow = |mut one: Arrival| {
        one.request.memory = MemoryPolicy::Preferred { within_distance: 255 };
        one
    };
    let arrivals = [
        arrival(0.0, 100.0, 768),
        arrival(0.0, 100.0, 768),
        may_borrow(arrival(0.0, 5.0, 512)),
        arrival(10.0, 10.0, 1024),
    ];
    let total = outcome(&hosts(1, 2), &arrivals, "longma").total();
    assert_eq!(total.held, 2.0 * 768.0 * 10.0 + 512.0 * 5.0);
    assert_eq!(total.remote, 256.0 * 5.0);
}

#[test]
fn an_administrator_fills_the_fullest_node_that_still_holds_a_machine() {
    // Two nodes have 424 and 524 MiB left. 400 MiB go to the first one, so that all the others fit.
    let arrivals = [600, 500, 400, 520, 1000, 1000].map(|mib| arrival(0.0, 9.0, mib));
    let total = outcome(&hosts(2, 2), &arrivals, "best fit by node").total();
    assert_eq!(total.refused, 0);
}

#[test]
fn all_policies_are_replayed_in_order_and_repeatably() {
    let arrivals: Vec<Arrival> = (0..400u32)
        .map(|at| arrival(f64::from(at), f64::from(at + at * 7 % 90), 64 + u64::from(at * 37 % 700)))
        .collect();
    let all = Candidate::all(&Policy::default());
    let one = replay_all(&hosts(3, 4), &arrivals, &all, 5).unwrap();
    assert_eq!(one.iter().map(|o| &o.0).collect::<Vec<_>>(), all.iter().map(|c| &c.name).collect::<Vec<_>>());
    assert_eq!(one, replay_all(&hosts(3, 4), &arrivals, &all, 5).unwrap());
    assert!(one.iter().all(|(_, outcome)| outcome.batches.len() == 10));
    assert!(one.iter().all(|(_, outcome)| outcome.total().requests == 400));
}

/// An outcome that refuses these percentages in its parts.
fn refusing(percents: [u64; 4], remote: f64) -> Outcome {
    let batch = |percent: u64| Sums {
        requests: 10,
        refused: 1,
        requested_mib: 10_000,
        refused_mib: percent * 100,
        held: 100.0,
        remote,
    };
    Outcome { batches: percents.map(batch).to_vec(), ..Outcome::default() }
}

#[test]
fn the_recommended_policy_is_the_most_local_of_those_that_refuse_the_least() {
    let named =
        |all: Vec<(&str, Outcome)>| all.into_iter().map(|(n, o)| (n.to_string(), o)).collect::<Vec<_>>();
    let outcomes = named(vec![
        ("far", refusing([1, 9, 1, 9], 30.0)),
        ("near", refusing([2, 9, 1, 9], 2.0)),
        ("bad", refusing([5, 13, 5, 14], 0.0)),
    ]);
    let (rows, chosen) = compare(&outcomes).unwrap();
    assert_eq!(rows[0].refused.mean, 5.0);
    assert_eq!(rows[1].remote, Interval { mean: 2.0, half: 0.0 });
    assert_eq!((&*chosen.policy, &chosen.next), ("near", &Some("bad".to_string())));
    assert_eq!(chosen.alike, ["far"]);
    let margin = chosen.margin.unwrap();
    assert!((margin.mean - 4.0).abs() < 1e-9 && margin.half > 0.0 && margin.excludes_zero(), "{margin:?}");
    assert_eq!(compare(&[]), None);
}
