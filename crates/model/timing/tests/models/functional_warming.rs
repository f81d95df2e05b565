//! Functional warming leaves predictors and caches in the state in which timing leaves them.

use longma_loongarch::{Instruction, Op};
use longma_memory::{Detail, MemorySystem, Source, placement::SpaceId};
use longma_random::SplitMix64;
use longma_timing::ModelKind::{InOrder, OutOfOrder};
use longma_topology::Machine;

use crate::program::*;

/// A program whose branches and addresses follow patterns with some noise: `runs` blocks.
fn patterned(seed: u64, runs: usize) -> Program {
    let mut random = SplitMix64::new(seed);
    let mut program = Program::default();
    let load = op(Op::LdD, 12, 4, 0);
    let store = op(Op::StD, 12, 5, 0);
    // Each block jumps to the next one of a cycle, or skips one.
    let branch = Instruction { j: 12, imm: 20, ..Instruction::new(Op::Bnez) };
    let blocks: Vec<_> =
        (0..40).map(|_| program.block(&[load, store, op(Op::AddD, 13, 12, 13), branch])).collect();
    let mut at = 0;
    for run in 0..runs {
        let line = |random: &mut SplitMix64| 0x10_0000 + 64 * random.below(6000);
        let addresses = [line(&mut random), line(&mut random)];
        program.run(blocks[at], &addresses);
        let skips = run % 7 == 3 || random.below(16) == 0;
        at = (at + 1 + usize::from(skips)) % blocks.len();
    }
    program
}

#[test]
fn a_program_after_functional_warming_mispredicts_and_misses_as_after_timing() {
    let machine = Machine::open("loongson-3a5000").unwrap();
    let (before, after) = (patterned(1, 20_000), patterned(2, 5000));
    for kind in [InOrder, OutOfOrder] {
        let counts = |warms: bool, cold: bool| {
            let mut system = MemorySystem::new(&machine, 0, Detail::Timing, 1).unwrap();
            let mut model = model(kind, &[]);
            system.set_detail(if warms { Detail::Counts } else { Detail::Timing });
            let mut port = system.port(0);
            port.set_space(SpaceId(0));
            let start = model.now();
            match (cold, warms) {
                (true, _) => {}
                (false, true) => {
                    model.warm(&before.trace, start, &before.blocks, &mut port);
                    assert_eq!(model.now(), start, "{kind:?}: no time passes");
                    let stack = model.stack().unwrap();
                    assert_eq!(
                        (stack.total_slots(), model.instructions()),
                        (0, 0),
                        "{kind:?}: nothing is counted"
                    );
                }
                (false, false) => {
                    before.cycles(&mut model, &mut port);
                }
            }
            system.set_detail(Detail::Timing);
            model.pass_to(start + 1_000_000);
            model.reset();
            system.clear_statistics();
            let mut port = system.port(0);
            port.set_space(SpaceId(0));
            let cycles = after.cycles(&mut model, &mut port) as f64;
            let memory = Source::LocalMemory as usize;
            let misses: u64 = model.blocks().map(|(_, counts)| u64::from(counts.misses[memory])).sum();
            (model.branches().unwrap().conditional_mispredicted, misses, cycles)
        };
        let (timed, warmed, cold) = (counts(false, false), counts(true, false), counts(true, true));
        let case = format!(
            "{kind:?}: (mispredicted, from memory, cycles) {timed:?} timed, {warmed:?} warmed, {cold:?} cold"
        );
        println!("{case}");
        assert_eq!(timed.0, warmed.0, "{case}");
        // Out of order, the caches see accesses in another order.
        assert!(warmed.1.abs_diff(timed.1) < 50 && (warmed.2 / timed.2 - 1.0).abs() < 0.05, "{case}");
        assert!(cold.0 > timed.0 && cold.1 > timed.1 + 1000, "the test distinguishes warm from cold: {case}");
    }
}
