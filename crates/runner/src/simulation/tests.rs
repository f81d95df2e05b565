//! The end of a region and of the program waits for pending accesses.

mod turns;

use std::{collections::BTreeMap, sync::Arc};

use longma_loongarch::{Instruction, Op};
use longma_trace::{BlockNumber, Record, Trace, TracedBlock};

use super::*;

fn simulation(kind: ModelKind) -> TimingSimulation {
    TimingSimulation::new(TimingSimulationConfig {
        machine: Arc::new(Machine::open("loongson-3a5000").unwrap()),
        host: 0,
        level: Level::Timing(Some(kind)),
        region: Region::Whole,
        warm: Warm::Last(0),
        sampling: None,
        placement: Policy::default(),
        seed: 1,
        restored_at: None,
        save: None,
        timeline: None,
        limits: Limits::default(),
        snapshots: None,
        wires: BTreeMap::new(),
    })
    .unwrap()
}

/// Executes `instruction` 15 times on the first core, missing all caches each time; then a full barrier if `barrier`.
fn run_misses(simulation: &mut TimingSimulation, instruction: Instruction, barrier: bool) {
    let block =
        |start, instructions: &[Instruction]| TracedBlock { start, instructions: instructions.into() };
    let blocks = vec![block(0x1_0000, &[instruction; 15]), block(0x1_003c, &[Instruction::new(Op::Dbar)])];
    let addresses: Vec<u64> = (0..15).map(|index| 0x10_0000 + 0x1_1040 * index).collect();
    let mut trace = Trace::default();
    trace.push(&Record { block: BlockNumber(0), executed: 15, addresses: &addresses });
    if barrier {
        trace.push(&Record { block: BlockNumber(1), executed: 1, addresses: &[] });
    }
    let mut port = simulation.memory.port(0);
    port.set_space(SpaceId(0));
    simulation.cores[0].model.drain(&trace, &blocks, &mut port);
}

#[test]
fn the_region_ends_after_outstanding_loads_and_stores_in_both_models() {
    let load = Instruction { d: 12, j: 4, ..Instruction::new(Op::LdD) };
    let store = Instruction { d: 12, j: 4, ..Instruction::new(Op::StD) };
    for (kind, instruction) in
        [ModelKind::InOrder, ModelKind::OutOfOrder].into_iter().flat_map(|kind| [(kind, load), (kind, store)])
    {
        let mut program = simulation(kind);
        run_misses(&mut program, instruction, false);
        program.finish();
        let all = program.end;
        let mut region = simulation(kind);
        run_misses(&mut region, instruction, false);
        let reached = region.time(0, Time::ZERO);
        let ended = region.end_region(0, reached);
        assert_eq!(ended, all, "{kind:?} {instruction}: the region's end and the program's");
        assert_eq!(region.counted_time(ended), ended.checked_since(Time::ZERO).unwrap());
        let mut barrier = simulation(kind);
        run_misses(&mut barrier, instruction, true);
        let barrier = barrier.time(0, Time::ZERO);
        assert!(
            ended <= barrier && barrier.ps() - ended.ps() < 10_000,
            "{kind:?} {instruction}: {ended:?}, and {barrier:?} with a barrier"
        );
    }
}
