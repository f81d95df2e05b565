//! The cost of contended cache lines, measured by the guest `contention` on the model of the 3A5000 and compared with
//! the memory model alone.

mod simulator;

use std::collections::BTreeMap;
use std::process::Command;

use longma_memory::{Detail, MemoryPort, MemorySystem, placement::SpaceId};
use longma_sim::Cycle;
use longma_topology::Machine;

use simulator::{expected, guest, simulator};

const MACHINE: &str = "loongson-3a5000";
/// From the machine file.
const STORE_QUEUE_ENTRIES: f64 = 48.0;

/// The guest's output, and its figures in nanoseconds by name.
fn run(threads: u32, operations: u32) -> (String, BTreeMap<String, f64>) {
    let output = Command::new("timeout")
        .arg("120")
        .arg(simulator())
        .args(["--machine", MACHINE])
        .arg(guest("contention"))
        .args([threads.to_string(), operations.to_string()])
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    let figure = |line: &str| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_owned(), value.strip_suffix(" ns")?.parse().ok()?))
    };
    let figures = stderr.lines().map(|line| figure(line).unwrap_or_else(|| panic!("{line}"))).collect();
    (String::from_utf8(output.stdout).unwrap(), figures)
}

/// The cost of transferring a line, in nanoseconds.
struct HandOvers {
    /// To a writer without contention.
    alone: f64,
    /// An upgrade of a shared copy to exclusive.
    upgrade: f64,
    /// Between two cores that already wait for the line: for a writer and for a reader.
    in_turn: [f64; 2],
}

/// Measures the costs in the memory model alone.
fn hand_overs() -> HandOvers {
    let machine = Machine::open(MACHINE).unwrap();
    let hz = machine.parts().cores.values().next().unwrap().clock.hz();
    let mut system = MemorySystem::new(&machine, 0, Detail::Timing, 1).unwrap();
    let mut ready = |core: usize, writes: bool, now: u64| {
        let mut port = system.port(core);
        port.set_space(SpaceId(0));
        let answer = match writes {
            true => port.store(0x10_0000, 8, 0x1000, Cycle(now)),
            false => port.load(0x10_0000, 8, 0x1000, Cycle(now)),
        };
        answer.ready.0
    };
    let ns = |cycles: u64| cycles as f64 * 1e9 / hz as f64;
    // The first accesses warm the TLBs.
    ready(0, true, 0);
    ready(1, true, 10_000);
    let unloaded = ns(ready(0, true, 20_000) - 20_000);
    ready(1, false, 30_000);
    let upgrade = ns(ready(0, true, 40_000) - 40_000);
    ready(0, true, 50_000);
    let in_turn = [true, false].map(|writes| {
        let at = if writes { 60_000 } else { 70_000 };
        let first = ready(1, true, at);
        ns(ready(0, writes, at + 1) - first)
    });
    HandOvers { alone: unloaded, upgrade, in_turn }
}

/// Whether `actual` is within 10 % of `expected`.
fn near(actual: f64, expected: f64) -> bool {
    (actual / expected - 1.0).abs() < 0.1
}

#[test]
fn only_contended_lines_cost_transfers() {
    let (_, figures) = run(4, 2000);
    let HandOvers { alone, upgrade, in_turn: [to_write, to_read] } = hand_overs();
    assert!(
        to_write < alone && to_write > alone / 2.0,
        "{to_write} of {alone} ns: without the latency of the request"
    );
    assert!(figures["add alone"] < 3.0, "{figures:?}");
    assert!(near(figures["add together"], 4.0 * to_write), "{figures:?}: four transfers of {to_write} ns");
    // An upgrade for the writer and a transfer to the reader, in both directions.
    let there_and_back = 2.0 * (upgrade + to_read);
    assert!(near(figures["there and back"], there_and_back), "{figures:?}: by its links {there_and_back} ns");
    assert!(figures["store apart"] < 1.0, "{figures:?}");
}

#[test]
fn the_cost_of_a_store_to_a_shared_line_is_independent_of_the_number_of_sharers() {
    // All stores that wait in the store queue complete when the line arrives.
    let by_hand_overs = |threads: f64| threads * hand_overs().in_turn[0] / STORE_QUEUE_ENTRIES;
    for (threads, operations) in [(2, 8000), (3, 8000), (4, 8000), (4, 8001), (4, 8030)] {
        let cost = run(threads, operations).1["store together"];
        let expected = by_hand_overs(f64::from(threads));
        assert!(near(cost, expected), "{threads} threads: {cost} ns, by transfers {expected}");
    }
    let costs = [950, 990, 999, 1000, 1001].map(|operations| run(4, operations).1["store together"]);
    let (min, max) =
        (costs.iter().copied().fold(f64::MAX, f64::min), costs.iter().copied().fold(0.0, f64::max));
    assert!(max < 1.15 * min, "{costs:?} ns");
}

#[test]
fn a_run_with_contention_repeats_and_loses_nothing() {
    let first = run(4, 300);
    assert_eq!(first.0, expected("contention"));
    assert_eq!(run(4, 300), first);
}
