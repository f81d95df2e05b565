//! Compares the plans of `tune` with the choices of the real irqbalance on random hosts, by the cost model.
//!
//! irqbalance runs in its own mount namespace, with simulated files bound over everything it reads and writes, so it
//! never changes this host. `LONGMA_IRQBALANCE` names the program (default `irqbalance` in PATH), and
//! `LONGMA_IRQBALANCE_HOSTS` the number of hosts (default 12).
//!
//! Source: irqbalance 1.9, cputree.c, classify.c and procinterrupts.c (the files that it reads).

#[path = "irqbalance/tree.rs"]
mod tree;

use longma_affinity::fake::topology;
use longma_affinity::tune::model::{Assignment, Link, Model, Queue, Thread};
use longma_affinity::tune::plan::{after, plan};
use longma_cpu_set::CpuSet;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::process::Command;
use tree::Recorded;

/// Number of hosts evaluated in parallel. irqbalance sleeps most of the time.
const AT_ONCE: usize = 8;

/// The program, if it can be run here. Otherwise prints the missing prerequisite.
fn irqbalance() -> Option<String> {
    let program = std::env::var("LONGMA_IRQBALANCE").unwrap_or("irqbalance".into());
    let works = |name: &str, words: &[&str]| Command::new(name).args(words).output().is_ok();
    let root = rustix::process::geteuid().is_root();
    let can = root
        && works(&program, &["--version"])
        && Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success());
    if !can {
        eprintln!("skipped: it needs root, unshare and irqbalance (LONGMA_IRQBALANCE)");
    }
    can.then_some(program)
}

/// A NIC with several queues, each with an interrupt and the flows of one or two threads, placed at random.
fn drawn() -> impl Strategy<Value = (Model, Assignment, u32)> {
    let shape = (2u32..=8, 1u32..=2, 1u32..=6, 1u32..=2);
    let flows = proptest::collection::vec((any::<u32>(), any::<u32>(), 0.1..0.7f64, 0.1..0.8f64), 1..=6);
    (shape, flows, any::<u32>()).prop_map(|(shape, flows, nic)| {
        let places = topology(shape.0, shape.1, shape.2, shape.3);
        let count = places.len() as u32;
        let (all, node) = ((0..count).collect::<CpuSet>(), nic % shape.0);
        let assignment = Assignment {
            queues: flows.iter().map(|(queue, ..)| Some(queue % count)).collect(),
            threads: flows.iter().map(|(_, thread, ..)| CpuSet::one(thread % count)).collect(),
        };
        let total: f64 = flows.iter().map(|(_, _, load, _)| load).sum();
        let open = Some(all);
        let model = Model {
            queues: flows
                .iter()
                .map(|(_, _, load, _)| Queue { node: Some(node), load: *load, open: open.clone() })
                .collect(),
            threads: flows.iter().map(|(_, _, _, load)| Thread { load: *load, open: open.clone() }).collect(),
            links: flows
                .iter()
                .enumerate()
                .map(|(index, (_, _, load, _))| Link { queue: index, thread: index, weight: load / total })
                .collect(),
            distances: Default::default(),
            other: Default::default(),
            places,
        };
        (model, assignment, node)
    })
}

/// Costs of the original placement, of the planned one, and of the one with irqbalance's choice for the queues.
fn compared(program: &str, (model, from, node): &(Model, Assignment, u32)) -> [f64; 3] {
    let tree = Recorded::new(model, from, *node);
    let chosen = tree.balanced(program);
    let balanced = Assignment {
        queues: chosen.iter().zip(&from.queues).map(|(cpu, before)| cpu.or(*before)).collect(),
        threads: from.threads.clone(),
    };
    let planned = after(from, &plan(model, from));
    [model.measure(from), model.measure(&planned), model.measure(&balanced)]
}

#[test]
fn plans_never_worsen_and_mostly_beat_irqbalance() {
    let Some(program) = irqbalance() else { return };
    let hosts = std::env::var("LONGMA_IRQBALANCE_HOSTS").map_or(12, |count| count.parse().unwrap());
    let mut runner = TestRunner::deterministic();
    let all: Vec<_> = (0..hosts).map(|_| drawn().new_tree(&mut runner).unwrap().current()).collect();
    let mut costs: Vec<[f64; 3]> = Vec::new();
    for some in all.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let running: Vec<_> = some.iter().map(|host| scope.spawn(|| compared(&program, host))).collect();
            costs.extend(running.into_iter().map(|one| one.join().unwrap()));
        });
    }
    let quantiles = |which: usize| {
        let mut values: Vec<f64> = costs.iter().map(|costs| costs[which]).collect();
        values.sort_by(f64::total_cmp);
        [25, 50, 75, 90, 100]
            .map(|percent| format!("{percent} %: {:.2}", values[(percent * values.len() / 100).max(1) - 1]))
            .join("  ")
    };
    for (which, name) in ["at the start", "as planned", "by irqbalance"].iter().enumerate() {
        println!("cost in classes, {name:13} {}", quantiles(which));
    }
    let worse = |than: usize| costs.iter().filter(|costs| costs[1] > costs[than] + 1e-9).count();
    let changed = costs.iter().filter(|costs| (costs[0] - costs[2]).abs() > 1e-9).count();
    println!(
        "of {hosts} hosts: planned worse than the start on {}, worse than irqbalance on {}; irqbalance changed the cost on {changed}",
        worse(0),
        worse(2)
    );
    assert_eq!(worse(0), 0);
    assert!(changed > 0, "irqbalance did nothing: the tree is not what it reads");
    assert!(worse(2) * 10 <= hosts, "{costs:?}");
}
