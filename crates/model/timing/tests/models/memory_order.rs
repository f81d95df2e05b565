//! Tests speculative loads, which pass older stores with unknown addresses: the conditions, squashes, and costs. The
//! predictors' tables have unit tests.

use longma_loongarch::Op;
use longma_sim::{Statistics, Value};
use longma_timing::{
    Cause,
    ModelKind::{self, Counting, InOrder, OutOfOrder},
    TimingModel,
};

use crate::program::*;

/// Loop iterations.
const ROUNDS: u64 = 400;
const ADDRESS: u64 = 0x10_0000;

/// A store whose address depends on a division, followed by a load `distance` bytes from it whose address is known at
/// once.
fn program(distance: u64) -> Program {
    let mut program = Program::default();
    let block = program.block(&[
        op(Op::DivD, 5, 6, 7),
        op(Op::StD, 4, 5, 0),
        op(Op::LdD, 8, 12, 0),
        op(Op::MulD, 9, 8, 8),
        op(Op::MulD, 9, 9, 8),
        // The next iteration depends on this one, as in a loop-carried dependence through memory.
        op(Op::AddD, 6, 9, 5),
    ]);
    (0..ROUNDS).for_each(|_| program.run(block, &[ADDRESS, ADDRESS + distance]));
    program
}

/// The results of a run.
struct Outcome {
    cycles: u64,
    fetched_again: Option<u64>,
    lost: u64,
}

fn run(loads: &str, distance: u64) -> Outcome {
    let mut model: TimingModel = model(OutOfOrder, &[("loads = \"ideal\"", &format!("loads = \"{loads}\""))]);
    let cycles = program(distance).cycles(&mut model, &mut FixedData::new(4));
    let mut statistics = Statistics::default();
    model.statistics(&mut statistics, "core0").unwrap();
    Outcome {
        cycles,
        fetched_again: statistics.get("core0.loads_fetched_again").map(|statistic| match statistic.value {
            Value::Counter(count) => count.value(),
            _ => panic!("the statistic must be a counter"),
        }),
        lost: model.stack().unwrap().slots(Cause::MemoryOrder),
    }
}

#[test]
fn an_independent_load_waits_for_stores_only_without_speculation() {
    let ideal = run("ideal", 64);
    assert_eq!(ideal.fetched_again, None, "an ideal core never squashes loads");
    let conservative = run("conservative", 64);
    // A load and two multiplications follow the division instead of overlapping with it.
    assert!(
        conservative.cycles >= ideal.cycles + 10 * ROUNDS,
        "{} and {}",
        conservative.cycles,
        ideal.cycles
    );
    for loads in ["blind", "store-sets"] {
        let result = run(loads, 64);
        assert_eq!((result.cycles, result.fetched_again, result.lost), (ideal.cycles, Some(0), 0), "{loads}");
    }
    // Counters need fifteen iterations to saturate.
    let counters = run("counters", 64);
    assert!(counters.cycles < ideal.cycles + 15 * 16, "{} and {}", counters.cycles, ideal.cycles);
    assert_eq!(counters.fetched_again, Some(0));
}

#[test]
fn a_load_that_always_depends_on_a_store_is_squashed_each_time_or_learns_to_wait() {
    let ideal = run("ideal", 0);
    let blind = run("blind", 0);
    assert_eq!(blind.fetched_again, Some(ROUNDS));
    assert!(blind.cycles >= ideal.cycles + 8 * ROUNDS, "{} and {}", blind.cycles, ideal.cycles);
    assert!(blind.lost > 8 * ROUNDS, "{} slots", blind.lost);
    let sets = run("store-sets", 0);
    assert_eq!(sets.fetched_again, Some(1));
    for loads in ["conservative", "counters"] {
        let result = run(loads, 0);
        assert_eq!((result.cycles, result.fetched_again, result.lost), (ideal.cycles, Some(0), 0), "{loads}");
    }
    assert!((ideal.cycles..ideal.cycles + 32).contains(&sets.cycles), "{} and {}", sets.cycles, ideal.cycles);
}

#[test]
fn a_load_waits_without_speculation_for_a_store_with_late_data() {
    let mut program = Program::default();
    let block = program.block(&[op(Op::DivD, 5, 6, 7), op(Op::StD, 5, 12, 0), op(Op::LdD, 6, 12, 0)]);
    (0..ROUNDS).for_each(|_| program.run(block, &[ADDRESS, ADDRESS]));
    let cycles = |loads: &str| {
        let changes = [("loads = \"ideal\"", &*format!("loads = \"{loads}\""))];
        program.cycles(&mut model(OutOfOrder, &changes), &mut FixedData::new(4))
    };
    let ideal = cycles("ideal");
    for loads in ["conservative", "blind", "counters", "store-sets"] {
        assert_eq!(cycles(loads), ideal, "{loads}");
    }
}

/// Cycles of a loop in which a division's result is stored at `at`, and the byte at `from` is loaded and used by the
/// next division.
fn through_memory(store: Op, at: u64, from: u64, kind: ModelKind) -> u64 {
    let mut program = Program::default();
    let block = program.block(&[
        op(Op::DivD, 5, 6, 7),
        op(store, 5, 12, 0),
        op(Op::LdB, 6, 12, 0),
        op(Op::AddD, 6, 6, 6),
    ]);
    (0..ROUNDS).for_each(|_| program.run(block, &[at, from]));
    program.cycles(&mut model(kind, &[]), &mut FixedData::new(4))
}

#[test]
fn a_load_waits_for_overlapping_unaligned_stores_only() {
    for kind in [InOrder, OutOfOrder] {
        let cycles = |store, at, from| through_memory(store, ADDRESS + at, ADDRESS + from, kind);
        let (same, different) = (cycles(Op::StD, 0, 0), cycles(Op::StD, 0, 8));
        // Bytes 0 to 6, and 2 to 7.
        for (store, at) in [(Op::StlD, 6), (Op::StrD, 2)] {
            assert!(cycles(store, at, 3).abs_diff(same) < 32, "{kind:?}, {store:?}");
            assert_eq!(cycles(store, at, 8), different, "{kind:?}, {store:?}");
        }
    }
}

#[test]
fn a_partial_store_of_an_unaligned_value_accesses_one_line() {
    for kind in [Counting, InOrder, OutOfOrder] {
        for (store, at) in [(Op::StlD, 63), (Op::StrD, 57), (Op::StlW, 63), (Op::StrW, 61)] {
            let mut program = Program::default();
            let block = program.block(&[op(store, 5, 12, 0)]);
            // Repeat often enough for the model to replay the block.
            (0..ROUNDS).for_each(|_| program.run(block, &[ADDRESS + at]));
            let mut port = FixedData::new(4);
            program.cycles(&mut model(kind, &[]), &mut port);
            let inside = |&(address, bytes, _): &(u64, u32, u64)| {
                address / 64 == (address + u64::from(bytes) - 1) / 64
            };
            assert_eq!(port.accesses.len() as u64, ROUNDS);
            assert!(port.accesses.iter().all(inside), "{kind:?}, {store:?}");
        }
    }
}
