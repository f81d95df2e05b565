//! The in-order model with the units and widths of the LA464.

use longma_loongarch::{Instruction, Op};
use longma_timing::{
    Cause,
    ModelKind::{InOrder, OutOfOrder},
};

use crate::program::*;

const FILL: u64 = 16;

fn cycles_of(instructions: &[Instruction], latency: u64) -> u64 {
    Program::straight(instructions, apart).cycles(&mut model(InOrder, &[]), &mut FixedData::new(latency))
}

#[test]
fn a_dependent_chain_takes_one_latency_per_instruction() {
    assert_about(cycles_of(&repeat(&[op(Op::AddiD, 4, 4, 0)], 1000), 4), 1000, FILL);
    assert_about(cycles_of(&repeat(&[op(Op::MulD, 4, 4, 5)], 1000), 4), 4000 - 4, FILL);
    assert_about(cycles_of(&repeat(&[op(Op::LdD, 4, 4, 0)], 100), 40), 99 * 40, FILL);
}

#[test]
fn independent_instructions_are_limited_by_width_and_units() {
    assert_about(cycles_of(&repeat(&[op(Op::AddiD, 4, 0, 0)], 1000), 4), 250, FILL);
    assert_about(cycles_of(&repeat(&[op(Op::VaddD, 4, 5, 6)], 1000), 4), 500, FILL);
    assert_about(cycles_of(&repeat(&[op(Op::DivW, 4, 5, 6)], 400), 4), 1600 - 4, FILL);
}

#[test]
fn a_load_stalls_its_first_use_and_nothing_before() {
    let work = vec![op(Op::AddiD, 6, 6, 0); 40];
    let early = [vec![op(Op::LdD, 4, 5, 0), op(Op::AddiD, 7, 4, 0)], work.clone()].concat();
    let late_use = [vec![op(Op::LdD, 4, 5, 0)], work, vec![op(Op::AddiD, 7, 4, 0)]].concat();
    // A round takes 39.5 cycles, so two rounds take 79: the load issues in the same cycle as the last addition, and its
    // use in the same cycle as the first.
    assert_about(cycles_of(&repeat(&early, 20), 40), 20 * 79, 20 + FILL);
    assert_about(cycles_of(&repeat(&late_use, 20), 40), 20 * 40, 40 + FILL);
}

#[test]
fn a_waiting_operation_delays_all_younger_ones() {
    let mix: Vec<_> =
        [vec![op(Op::DivW, 4, 4, 5)], vec![op(Op::AddD, 6, 4, 0)], vec![op(Op::AddiD, 6, 0, 0); 38]].concat();
    assert_about(cycles_of(&repeat(&mix, 50), 4), 50 * (12 + 9), 50 + FILL);
}

#[test]
fn a_misprediction_has_the_cost_stated_in_the_machine_file() {
    let mut program = Program::default();
    for index in 0..100u64 {
        let branch = Instruction { imm: 8, ..op(Op::Beq, 4, 5, 0) };
        let block = program.block_at(0x1_0000 + 8 * index, &[branch]);
        program.run(block, &[]);
    }
    let mut model = model(InOrder, &[("predictor = \"tage\"", "predictor = \"static\"")]);
    assert_about(program.cycles(&mut model, &mut FixedData::new(4)), 99 * 12, FILL);
    assert!(model.stack().unwrap().cycles(Cause::Mispredict) > 99.0 * 10.0);
}

#[test]
fn stores_do_not_stall_until_the_buffer_is_full() {
    let few = Program::straight(&repeat(&[op(Op::StD, 4, 5, 0)], 40), apart);
    assert_about(few.cycles(&mut model(InOrder, &[]), &mut FixedData::new(400)), 20, FILL);
    let many = Program::straight(&repeat(&[op(Op::StD, 4, 5, 0)], 480), apart);
    let mut model = model(InOrder, &[]);
    assert_about(many.cycles(&mut model, &mut FixedData::new(400)), 9 * 400, 10 * 50);
    assert!(model.stack().unwrap().cycles(Cause::Structural) > 3000.0);
}

#[test]
fn a_barrier_waits_for_stores() {
    let body = [op(Op::StD, 4, 5, 0), op(Op::Dbar, 0, 0, 0)];
    // A store's cycle, its write to the cache, and the barrier's own cycle, which the next store waits for.
    assert_about(cycles_of(&repeat(&body, 50), 100), 50 * 102, FILL);
}

#[test]
fn an_unused_load_occupies_the_window_until_it_is_complete() {
    let mut program = Program::default();
    let load = program.block(&[op(Op::LdD, 12, 5, 0), op(Op::AddiD, 4, 0, 0)]);
    let work: Vec<_> = (0..5).map(|_| program.block(&[op(Op::AddiD, 4, 0, 0); 32])).collect();
    let loop_branch = program.block(&[Instruction { imm: -4 * (2 + 5 * 32), ..op(Op::Beq, 0, 0, 0) }]);
    for round in 0..100 {
        program.run(load, &[apart(round)]);
        work.iter().for_each(|block| program.run(*block, &[]));
        program.run(loop_branch, &[]);
    }
    let cycles = |kind, repeats| {
        // Enough rename registers for the window: of those in the machine file, 96 are free.
        let mut model = model(kind, &[("int_registers = 128", "int_registers = 256")]);
        model.set_memoization(repeats);
        program.cycles(&mut model, &mut FixedData::new(200))
    };
    // When the load completes, the last 35 of 163 instructions issue, and then the next load.
    assert_about(cycles(InOrder, true), 100 * 209, 200 + FILL);
    assert_eq!(cycles(InOrder, false), cycles(InOrder, true));
    assert_about(cycles(OutOfOrder, true), 100 * 209, 200 + FILL);
}

#[test]
fn a_conditional_branch_before_a_trap_or_a_signal_is_counted() {
    for kind in [InOrder, OutOfOrder] {
        let mut program = Program::default();
        // The next block is neither the branch's target nor the fall-through block.
        let branch = program.block_at(0x1_0000, &[Instruction { imm: 8, ..op(Op::Beq, 4, 5, 0) }]);
        let handler = program.block_at(0x2_0000, &[op(Op::AddiD, 4, 4, 0)]);
        for _ in 0..10 {
            program.run(branch, &[]);
            program.run(handler, &[]);
        }
        let mut model = model(kind, &[]);
        program.cycles(&mut model, &mut FixedData::new(4));
        let branches = model.branches().unwrap();
        assert_eq!((branches.conditional, branches.conditional_mispredicted), (10, 0), "{kind:?}");
    }
}
