//! The out-of-order model with the LA464: four wide, 128 reorder buffer entries, 12 cycles per misprediction, loads of
//! 4 cycles.

use std::collections::HashSet;

use longma_loongarch::{Instruction, Op};
use longma_memory::{Answer, MemoryPort, Source, translation::Side};
use longma_sim::{Cycle, Statistics};
use longma_timing::{
    Cause,
    ModelKind::{InOrder, OutOfOrder},
    TimingModel,
};

use crate::program::*;

/// Fetch to retirement of the first instruction, plus the partial last cycle.
const FILL: u64 = 16;

fn cycles_of(instructions: &[Instruction]) -> u64 {
    Program::straight(instructions, apart).cycles(&mut model(OutOfOrder, &[]), &mut FixedData::new(4))
}

fn nops(count: usize) -> Vec<Instruction> {
    vec![op(Op::Andi, 0, 0, 0); count]
}

#[test]
fn a_dependent_chain_takes_one_latency_per_instruction() {
    assert_about(cycles_of(&repeat(&[op(Op::AddiD, 4, 4, 0)], 1000)), 1000, FILL);
    assert_about(cycles_of(&repeat(&[op(Op::MulD, 4, 4, 5)], 1000)), 4000, FILL);
    assert_about(cycles_of(&repeat(&[op(Op::FaddD, 4, 4, 5)], 1000)), 5000, FILL);
    assert_about(cycles_of(&repeat(&[op(Op::DivW, 4, 4, 5)], 100)), 1200, FILL);
    // 4 to 25 cycles, depending on its operands.
    assert_about(cycles_of(&repeat(&[op(Op::DivD, 4, 4, 5)], 100)), 1500, FILL);
    assert_about(cycles_of(&repeat(&[op(Op::CrcWDW, 4, 4, 5)], 100)), 1900, FILL);
    assert_about(cycles_of(&repeat(&[op(Op::FabsD, 4, 4, 0)], 100)), 200, FILL);
    // Each pair moves a value to the other register file and back.
    assert_about(
        cycles_of(&repeat(&[op(Op::Movgr2frD, 4, 4, 0), op(Op::Movfr2grD, 4, 4, 0)], 50)),
        1600,
        FILL,
    );
    // Multiply-accumulate reads its destination: measured 4 cycles for vmadd.w.
    assert_about(cycles_of(&repeat(&[op(Op::VmaddW, 4, 5, 6)], 100)), 400, FILL);
}

#[test]
fn the_narrowest_stage_limits_independent_instructions() {
    assert_about(cycles_of(&repeat(&[op(Op::AddiD, 4, 0, 0)], 1000)), 250, FILL);
    let narrow = &mut model(OutOfOrder, &[("decode_width = 4", "decode_width = 2")]);
    let adds = Program::straight(&repeat(&[op(Op::AddiD, 4, 0, 0)], 1000), apart);
    assert_about(adds.cycles(narrow, &mut FixedData::new(4)), 500, FILL);
    // Two vector units; two memory units.
    assert_about(cycles_of(&repeat(&[op(Op::VaddD, 4, 5, 6)], 1000)), 500, FILL);
    assert_about(cycles_of(&repeat(&[op(Op::LdD, 4, 5, 0)], 1000)), 500, FILL);
}

#[test]
fn an_unpipelined_unit_starts_one_operation_per_interval() {
    // A 32-bit division every 4 cycles, a 64-bit division every 5, two multiplications per cycle, and two CRC steps
    // every 7 cycles.
    assert_about(cycles_of(&repeat(&[op(Op::DivW, 4, 5, 6)], 400)), 1600, FILL + 12);
    assert_about(cycles_of(&repeat(&[op(Op::DivD, 4, 5, 6)], 400)), 2000, FILL + 15);
    assert_about(cycles_of(&repeat(&[op(Op::CrcWBW, 4, 5, 6)], 400)), 1400, FILL + 5);
    assert_about(cycles_of(&repeat(&[op(Op::MulD, 4, 5, 6)], 1000)), 500, FILL);
    // Measured: one division at a time, of 13 cycles.
    assert_about(cycles_of(&repeat(&[op(Op::FdivD, 4, 5, 6)], 100)), 1300, FILL + 13);
}

/// Intervals of up to 10,000 cycles are valid in machine files.
#[test]
fn a_unit_is_occupied_for_the_interval_in_the_machine_file() {
    for interval in [200, 255, 256, 1000, 10_000] {
        let slow = format!("integer-divide = {{ latency = \"12 cycles\", interval = \"{interval} cycles\"");
        let stated = "integer-divide = { latency = \"12 cycles\", interval = \"8 cycles\"";
        let changes = [("instruction_timing = \"la464\"", ""), (stated, &*slow)];
        for kind in [InOrder, OutOfOrder] {
            let divisions = Program::straight(&repeat(&[op(Op::DivD, 4, 5, 6)], 400), apart);
            let cycles = divisions.cycles(&mut model(kind, &changes), &mut FixedData::new(4));
            // Four units, which the last four operations still occupy at the end.
            assert_about(cycles, 99 * interval, FILL + 20);
        }
    }
}

#[test]
fn a_waiting_instruction_does_not_delay_ready_ones() {
    // A division of 12 cycles and 35 independent additions: the additions fill the cycles.
    let mix = |additions| [vec![op(Op::DivW, 4, 4, 5)], vec![op(Op::AddiD, 6, 0, 0); additions]].concat();
    assert_about(cycles_of(&repeat(&mix(35), 50)), 50 * 12, 12 + FILL);
    // With 47 additions the units are the limit: 47 cycles of additions and 4 of the divider, on four units.
    assert_about(cycles_of(&repeat(&mix(47), 50)), 50 * 51 / 4, 50 + FILL);
}

#[test]
fn a_pointer_chase_takes_one_latency_per_load() {
    let chase = Program::straight(&repeat(&[op(Op::LdD, 4, 4, 0)], 500), apart);
    for latency in [4, 40, 400] {
        let cycles = chase.cycles(&mut model(OutOfOrder, &[]), &mut FixedData::new(latency));
        assert_about(cycles, 500 * latency, FILL);
    }
}

#[test]
fn the_reorder_buffer_bounds_how_many_misses_overlap() {
    // One load in every 32 instructions: 128 entries hold four of them, so four overlap.
    let body = [vec![op(Op::LdD, 4, 5, 0)], nops(31)].concat();
    let program = Program::straight(&repeat(&body, 400), apart);
    let cycles = program.cycles(&mut model(OutOfOrder, &[]), &mut FixedData::new(400));
    // A period is the latency plus dispatch, issue and retirement between a load and the one that takes its entry.
    assert_about(cycles, 100 * 400, 100 * 5 + FILL);
    // With a buffer twice as large, twice as many overlap.
    let large = &mut model(
        OutOfOrder,
        &[("rob_entries = 128", "rob_entries = 256"), ("int_registers = 128", "int_registers = 300")],
    );
    assert_about(program.cycles(large, &mut FixedData::new(400)), 50 * 400, 50 * 20 + FILL);
}

#[test]
fn the_load_queue_bounds_how_many_misses_overlap() {
    let program = Program::straight(&repeat(&[op(Op::LdD, 4, 5, 0)], 1600), apart);
    let queue = [("load_queue_entries = 64", "load_queue_entries = 16")];
    let cycles = program.cycles(&mut model(OutOfOrder, &queue), &mut FixedData::new(400));
    assert_about(cycles, 100 * 400, 100 * 12 + FILL);
}

#[test]
fn an_issue_queue_frees_entries_out_of_order() {
    // One instruction waits 400 cycles for a load while the others do not: eight entries are enough for them.
    let body = [vec![op(Op::LdD, 4, 5, 0), op(Op::AddiD, 6, 4, 0)], nops(98)].concat();
    let program = Program::straight(&body, apart);
    let queue = [("int_registers = 128", "int_queue_entries = 8\nint_registers = 128")];
    let cycles = program.cycles(&mut model(OutOfOrder, &queue), &mut FixedData::new(400));
    assert_about(cycles, 400 + 25, FILL);
    // All instructions wait: eight entries hold eight, and the others follow after the load.
    let body = [vec![op(Op::LdD, 4, 5, 0)], vec![op(Op::AddiD, 6, 4, 0); 99]].concat();
    let program = Program::straight(&body, apart);
    let mut waiting = model(OutOfOrder, &queue);
    assert_about(program.cycles(&mut waiting, &mut FixedData::new(400)), 400 + 25, FILL + 4);
}

/// Branches over one instruction, always taken, one per block.
fn taken_forward_branches(count: u64) -> Program {
    let mut program = Program::default();
    for index in 0..count {
        let branch = Instruction { imm: 8, ..op(Op::Beq, 4, 5, 0) };
        let block = program.block_at(0x1_0000 + 8 * index, &[branch]);
        program.run(block, &[]);
    }
    program
}

#[test]
fn a_misprediction_has_the_cost_stated_in_the_machine_file() {
    let program = taken_forward_branches(100);
    // A static predictor predicts forward branches as not taken. The last one is not resolved.
    let mut wrong = model(OutOfOrder, &[("predictor = \"tage\"", "predictor = \"static\"")]);
    let cycles = program.cycles(&mut wrong, &mut FixedData::new(4));
    assert_about(cycles, 99 * 12, FILL);
    assert_eq!(wrong.branches().unwrap().conditional_mispredicted, 99);
    let stack = wrong.stack().unwrap();
    assert!(stack.cycles(Cause::Mispredict) > 99.0 * 11.0, "{stack:?}");
    let mispredicts: u32 = wrong.blocks().map(|(_, counts)| counts.mispredicts).sum();
    assert_eq!(mispredicts, 99);
}

#[test]
fn a_branch_that_waits_for_a_load_is_resolved_late() {
    let mut program = Program::default();
    for index in 0..50u64 {
        let branch = Instruction { imm: 8, ..op(Op::Beq, 4, 5, 0) };
        let block = program.block_at(0x1_0000 + 12 * index, &[op(Op::LdD, 4, 6, 0), branch]);
        program.run(block, &[apart(index as usize)]);
    }
    let mut wrong = model(OutOfOrder, &[("predictor = \"tage\"", "predictor = \"static\"")]);
    // Fetch to issue takes 11 cycles, the load 100, the branch 1.
    assert_about(program.cycles(&mut wrong, &mut FixedData::new(100)), 49 * 111, 49 + 120);
}

#[test]
fn a_loop_runs_without_mispredictions_after_training() {
    let mut program = Program::default();
    let loop_branch = Instruction { imm: -12, ..op(Op::Bnez, 0, 4, 0) };
    let block =
        program.block(&[op(Op::AddiD, 4, 4, 0), op(Op::AddiD, 5, 5, 0), op(Op::AddiD, 6, 6, 0), loop_branch]);
    (0..2000).for_each(|_| program.run(block, &[]));
    let mut model = model(OutOfOrder, &[]);
    // Four instructions and one taken branch per cycle.
    assert_about(program.cycles(&mut model, &mut FixedData::new(4)), 2000, 60);
}

#[test]
fn a_load_is_forwarded_from_a_store_in_flight() {
    // Load, increment and store at one address: 4 + 1 + 1 cycles per iteration, independent of the cache.
    let body = [op(Op::LdD, 4, 5, 0), op(Op::AddiD, 4, 4, 1), op(Op::StD, 4, 5, 0)];
    let program = Program::straight(&repeat(&body, 300), |_| 0x10_0000);
    let mut forwarding = model(OutOfOrder, &[]);
    let mut port = FixedData::new(4);
    assert_about(program.cycles(&mut forwarding, &mut port), 300 * 6, FILL);
    let mut statistics = Statistics::default();
    forwarding.statistics(&mut statistics, "core0").unwrap();
    assert!(statistics.to_text().contains("core0.loads_forwarded"), "{}", statistics.to_text());
    // A load wider than the store waits for the cache.
    let wider = [op(Op::LdD, 4, 5, 0), op(Op::AddiD, 4, 4, 1), op(Op::StW, 4, 5, 0)];
    let wider = Program::straight(&repeat(&wider, 300), |_| 0x10_0000);
    let waiting = wider.cycles(&mut model(OutOfOrder, &[]), &mut FixedData::new(4));
    assert!(waiting > 300 * 9, "{waiting}");
}

#[test]
fn stores_that_miss_fill_the_store_queue() {
    let program = Program::straight(&repeat(&[op(Op::StD, 4, 5, 0)], 960), apart);
    let mut model = model(OutOfOrder, &[]);
    // 48 stores in flight.
    assert_about(program.cycles(&mut model, &mut FixedData::new(400)), 19 * 400, 20 * 30 + FILL);
    let stack = model.stack().unwrap();
    assert!(stack.cycles(Cause::Structural) > 0.8 * stack.total_slots() as f64 / 4.0, "{stack:?}");
}

#[test]
fn a_barrier_serializes_accesses() {
    let body = [op(Op::LdD, 4, 5, 0), op(Op::Dbar, 0, 0, 0)];
    let program = Program::straight(&repeat(&body, 100), apart);
    let mut model = model(OutOfOrder, &[]);
    let cycles = program.cycles(&mut model, &mut FixedData::new(100));
    assert_about(cycles, 100 * 101, FILL);
    let mut port = FixedData::new(100);
    Program::straight(&[op(Op::StD, 4, 5, 0), op(Op::Dbar, 0, 0, 0), op(Op::LdD, 4, 6, 0)], apart)
        .cycles(&mut self::model(OutOfOrder, &[]), &mut port);
    assert!(
        port.accesses[1].2 > port.accesses[0].2 + 100,
        "the load waits for the store: {:?}",
        port.accesses
    );
}

#[test]
fn a_load_waits_for_the_store_it_depends_on_despite_stores_in_between() {
    // A division whose result is stored and loaded again: 12, 1 and 4 cycles per iteration.
    let body = [op(Op::DivW, 4, 4, 5), op(Op::StD, 4, 6, 0), op(Op::StD, 0, 6, 0), op(Op::LdD, 4, 6, 0)];
    for between in [8, 2040, 2048, 4096, 1 << 20] {
        let program = Program::straight(&repeat(&body, 300), |index| {
            0x10_0000 + if index % 4 == 2 { between } else { 0 }
        });
        for kind in [OutOfOrder, InOrder] {
            let cycles = program.cycles(&mut model(kind, &[]), &mut FixedData::new(4));
            assert_about(cycles, 300 * 17, 2 * FILL);
        }
    }
}

#[test]
fn two_separately_stored_halves_are_forwarded_separately() {
    let body = [op(Op::StW, 4, 5, 0), op(Op::StW, 0, 5, 0), op(Op::LdW, 4, 5, 0)];
    let program =
        Program::straight(&repeat(&body, 300), |index| 0x10_0000 + if index % 3 == 1 { 4 } else { 0 });
    for kind in [OutOfOrder, InOrder] {
        let cycles = program.cycles(&mut model(kind, &[]), &mut FixedData::new(4));
        assert_about(cycles, 300 * 5, 2 * FILL);
    }
}

#[test]
fn atomic_operations_are_neither_early_nor_reordered() {
    let atomics = Program::straight(&repeat(&[op(Op::AmaddD, 4, 5, 6)], 100), |_| 0x10_0000);
    let cycles = atomics.cycles(&mut model(OutOfOrder, &[]), &mut FixedData::new(20));
    assert_about(cycles, 100 * 21, FILL);
    let mut port = FixedData::new(20);
    atomics.cycles(&mut model(OutOfOrder, &[]), &mut port);
    assert_eq!(port.accesses.len(), 100, "a read-modify-write is one access");
}

#[test]
fn an_atomic_operation_waits_for_a_store_to_its_bytes_and_a_load_for_the_atomic_operation() {
    let body = [op(Op::StD, 4, 5, 0), op(Op::AmaddD, 4, 5, 6), op(Op::LdD, 4, 5, 0)];
    let (same, apart) = (Program::straight(&body, |_| 0x10_0000), Program::straight(&body, apart));
    for kind in [OutOfOrder, InOrder] {
        let mut port = FixedData::new(100);
        let cycles = same.cycles(&mut model(kind, &[]), &mut port);
        let [stored, added] = [port.accesses[0].2, port.accesses[1].2];
        assert!(added >= stored + 100, "{kind:?}: {:?}", port.accesses);
        // On the out-of-order core, a load of the sum is forwarded from the atomic operation. On the in-order core, it
        // accesses the cache after the operation has completed.
        let loads = usize::from(kind == InOrder);
        assert_eq!(port.accesses.len(), 2 + loads, "{kind:?}: {:?}", port.accesses);
        assert!(kind == InOrder || cycles >= added + 101 + 4, "{kind:?}: {cycles}, added at {added}");
    }
    let mut port = FixedData::new(100);
    apart.cycles(&mut model(OutOfOrder, &[]), &mut port);
    assert!(port.accesses[1].2 < port.accesses[0].2 + 100, "another address: {:?}", port.accesses);
}

#[test]
fn dispatch_never_exceeds_fetch() {
    let adds = Program::straight(&repeat(&[op(Op::AddiD, 4, 0, 0)], 1000), apart);
    for kind in [OutOfOrder, InOrder] {
        for (width, expected) in [("fetch_width = 1", 1000), ("fetch_width = 3", 334)] {
            let narrow = &mut model(kind, &[("fetch_width = 8", width)]);
            assert_about(adds.cycles(narrow, &mut FixedData::new(4)), expected, FILL);
        }
    }
}

#[test]
fn waiting_for_memory_is_charged_to_where_the_data_came_from() {
    let chase = Program::straight(&repeat(&[op(Op::LdD, 4, 4, 0)], 500), apart);
    for (source, cause) in [
        (Source::Level1, Cause::Level1),
        (Source::Level2, Cause::Level2),
        (Source::Level3, Cause::Level3),
        (Source::Peer, Cause::Peer),
        (Source::LocalMemory, Cause::LocalMemory),
        (Source::Remote, Cause::Remote),
    ] {
        let mut model = model(OutOfOrder, &[]);
        chase.cycles(&mut model, &mut FixedData { source, ..FixedData::new(100) });
        let stack = model.stack().unwrap();
        assert!(stack.cycles(cause) > 0.98 * 50_000.0, "{source:?}: {stack:?}");
        let misses: u64 = model.blocks().map(|(_, counts)| u64::from(counts.misses[source as usize])).sum();
        assert_eq!(misses, if source == Source::Level1 { 0 } else { 500 });
    }
}

#[test]
fn idle_time_is_idle() {
    let adds = Program::straight(&repeat(&[op(Op::AddiD, 4, 0, 0)], 100), apart);
    let mut model = model(OutOfOrder, &[]);
    adds.cycles(&mut model, &mut FixedData::new(4));
    let busy = model.now();
    model.advance_to(Cycle(busy.0 + 1000));
    assert_eq!(model.now(), Cycle(busy.0 + 1000));
    model.advance_to(busy);
    assert_eq!(model.now(), Cycle(busy.0 + 1000), "time never decreases");
    assert_eq!(model.stack().unwrap().cycles(Cause::Idle), 1000.0);
    assert_about(adds.cycles(&mut model, &mut FixedData::new(4)), 25, FILL);
}

#[test]
fn a_region_of_interest_keeps_predictor_state_and_resets_the_counts() {
    let program = taken_forward_branches(200);
    let mut model = model(OutOfOrder, &[]);
    program.cycles(&mut model, &mut FixedData::new(4));
    program.cycles(&mut model, &mut FixedData::new(4));
    let cold = model.branches().unwrap().conditional_mispredicted;
    assert!(cold > 0);
    model.reset();
    assert_eq!((model.instructions(), model.stack().unwrap().total_slots()), (0, 0));
    assert_eq!(model.blocks().count(), 0);
    program.cycles(&mut model, &mut FixedData::new(4));
    assert!(model.branches().unwrap().conditional_mispredicted < cold, "the predictor stays warm");
    assert_eq!(model.instructions(), 200);
}

#[test]
fn machine_files_without_a_core_are_errors_with_a_reason() {
    let error_of = |changes: &[(&str, &str)]| {
        TimingModel::new(&core(changes), Some(OutOfOrder), Default::default()).unwrap_err().to_string()
    };
    let store = "store = { latency = \"1 cycles\", source = \"scalar\" }\n";
    let error = error_of(&[("operations = [\"load\", \"store\"]", "operations = [\"load\"]"), (store, "")]);
    assert!(error.contains("store"), "{error}");
}

#[test]
fn every_builtin_machine_can_be_modelled() {
    for builtin in longma_topology::BUILTIN {
        let machine = longma_topology::Machine::open(builtin.name).unwrap();
        for (name, core) in &machine.parts().cores {
            for kind in [OutOfOrder, longma_timing::ModelKind::InOrder] {
                let mut model = TimingModel::new(core, Some(kind), Default::default())
                    .unwrap_or_else(|error| panic!("{} {name}: {error}", builtin.name));
                let chain = Program::straight(&repeat(&[op(Op::AddiD, 4, 4, 0)], 1000), apart);
                let cycles = chain.cycles(&mut model, &mut FixedData::new(4));
                // A dependent addition takes one cycle, on the GS464 two; the rest fills the pipeline.
                let chained = if name.as_str() == "gs464" { 2000 } else { 1000 };
                assert!((chained..chained + 30).contains(&cycles), "{} {name}: {cycles}", builtin.name);
            }
        }
    }
}

#[test]
fn the_stages_of_the_first_instructions_are_logged() {
    let program =
        Program::straight(&[op(Op::LdD, 4, 5, 0), op(Op::AddiD, 6, 4, 1), op(Op::AddiD, 7, 0, 1)], apart);
    let mut model = model(OutOfOrder, &[]);
    assert_eq!(model.pipeline_log(), None);
    model.log_pipeline(2);
    program.cycles(&mut model, &mut FixedData::new(4));
    // 10 cycles from fetch to dispatch, 1 to issue, 4 for the load, 1 for the addition.
    let expected = "\
        Kanata\t0004|C=\t0|I\t0\t0\t0|L\t0\t0\t10000: ld.d $a0, $a1, 0|S\t0\t0\tF|I\t1\t1\t0|L\t1\t0\t10004: addi.d $a2, $a0, 0|S\t1\t0\tF|\
        C\t10|S\t0\t0\tDs|S\t1\t0\tDs|C\t1|S\t0\t0\tX|C\t4|S\t0\t0\tCm|R\t0\t0\t0|S\t1\t0\tX|C\t1|S\t1\t0\tCm|R\t1\t1\t0|";
    assert_eq!(model.pipeline_log().unwrap().replace('\n', "|"), expected);
}

/// A memory port whose TLB is filled page by page, by exceptions that add 60 cycles each.
struct Paged(FixedData, HashSet<u64>);

impl Paged {
    fn new() -> Self {
        // The page of the code has a translation.
        Self(FixedData::new(4), [0x1_0000 >> 14].into())
    }
}

impl MemoryPort for Paged {
    fn fetch(&mut self, address: u64, at: Cycle) -> Answer {
        self.0.fetch(address, at)
    }

    fn load(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer {
        self.0.load(address, bytes, instruction, at)
    }

    fn store(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer {
        self.0.store(address, bytes, instruction, at)
    }

    fn refill(&mut self, _: Side, address: u64, _: u32) -> u32 {
        if self.1.insert(address >> 14) { 60 } else { 0 }
    }

    fn prefetch(&mut self, _: u64, _: u64, _: Cycle) {}
}

#[test]
fn an_in_core_store_has_its_stated_latency_and_a_cache_at_least_that_of_a_load() {
    let chain = Program::straight(&repeat(&[op(Op::LdD, 4, 4, 0)], 200), apart);
    for kind in [OutOfOrder, InOrder] {
        let in_core =
            chain.cycles(&mut model(kind, &[]), &mut FixedData { in_core: true, ..FixedData::new(2) });
        assert_about(in_core, 200 * 2, FILL);
        let cached = chain.cycles(&mut model(kind, &[]), &mut FixedData::new(2));
        assert!(cached > 200 * 3, "{kind:?}: {cached}");
    }
}

fn page(index: usize) -> u64 {
    0x10_0000 + ((index as u64) << 14)
}

#[test]
fn a_refill_exception_adds_the_stated_cost_to_a_single_access() {
    for kind in [OutOfOrder, InOrder] {
        for (access, latency) in [(op(Op::LdD, 4, 4, 0), 4), (op(Op::AmaddD, 4, 4, 4), 5)] {
            let chain = Program::straight(&repeat(&[access], 50), page);
            assert_about(
                chain.cycles(&mut model(kind, &[]), &mut Paged::new()),
                50 * (60 + latency),
                FILL + 50,
            );
        }
    }
}

#[test]
fn refill_exceptions_empty_the_pipeline_and_do_not_overlap() {
    for kind in [OutOfOrder, InOrder] {
        for access in [op(Op::LdD, 4, 0, 0), op(Op::StD, 4, 0, 0)] {
            let apart = Program::straight(&repeat(&[access], 50), page);
            let mut model = model(kind, &[]);
            let cycles = apart.cycles(&mut model, &mut Paged::new());
            assert!((50 * 59..50 * 66).contains(&cycles), "{kind:?} {access}: {cycles}");
            let translation = model.stack().unwrap().cycles(Cause::Translation);
            assert!(translation > 50.0 * 50.0, "{translation} of {cycles} cycles");
        }
    }
}

#[test]
fn an_exception_waits_for_older_instructions() {
    // A division of 15 cycles and an independent load of a page without a translation.
    let step = [op(Op::DivD, 5, 5, 6), op(Op::LdD, 4, 0, 0)];
    for kind in [OutOfOrder, InOrder] {
        let program = Program::straight(&repeat(&step, 50), page);
        let cycles = program.cycles(&mut model(kind, &[]), &mut Paged::new());
        assert!((50 * 70..50 * 85).contains(&cycles), "{kind:?}: {cycles}");
    }
}

#[test]
fn an_access_across_two_lines_occupies_its_unit_twice() {
    // Two units load; one store a cycle is written to the cache.
    for (access, inside) in [(op(Op::LdD, 4, 0, 0), 200), (op(Op::StD, 4, 0, 0), 400)] {
        for kind in [OutOfOrder, InOrder] {
            let run = |offset: u64, times: usize| {
                let program = Program::straight(&repeat(&[access], times), |_| 0x10_0000 + offset);
                program.cycles(&mut model(kind, &[]), &mut FixedData::new(4))
            };
            // At the end, some stores still wait for the cache.
            let takes = |offset| run(offset, 800) - run(offset, 400);
            assert_about(takes(56), inside, 1);
            assert_about(takes(60), 2 * inside, 1);
        }
    }
}
