//! Properties of every program.

use longma_core::timing::{Cause, ModelKind, TimingModel};
use longma_loongarch::{Instruction, Op};
use longma_memory::{Answer, MemoryPort, Source};
use longma_sim::{Cycle, Statistics};
use proptest::prelude::*;

use crate::program::*;

/// Every kind of work.
const OPS: [Op; 22] = [
    Op::AddD,
    Op::AddiD,
    Op::SllD,
    Op::MulD,
    Op::DivD,
    Op::LdD,
    Op::LdW,
    Op::StD,
    Op::StB,
    Op::Vld,
    Op::Xvst,
    Op::FaddD,
    Op::FmaddD,
    Op::FdivD,
    Op::VaddD,
    Op::VmaddW,
    Op::VdivB,
    Op::AmaddD,
    Op::AmaddDbW,
    Op::Dbar,
    Op::CrcWDW,
    Op::FldD,
];

/// Blocks, and the order they run in: each ends with a branch to any block.
#[derive(Clone, Debug)]
struct Shape {
    blocks: Vec<Vec<(usize, u8, u8, u8)>>,
    order: Vec<(usize, u64)>,
}

fn shape() -> impl Strategy<Value = Shape> {
    let instruction = (0..OPS.len(), 0u8..8, 0u8..8, 0u8..8);
    let blocks = proptest::collection::vec(proptest::collection::vec(instruction, 1..40), 1..8);
    (blocks, proptest::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 1..120)).prop_map(
        |(blocks, order)| {
            let order = order.iter().map(|(block, seed)| (block.index(blocks.len()), *seed)).collect();
            Shape { blocks, order }
        },
    )
}

fn program_of(shape: &Shape) -> Program {
    program_with(shape, 0)
}

/// Where stores go that far beyond the loads.
fn program_with(shape: &Shape, stores_apart: u64) -> Program {
    let mut program = Program::default();
    for block in &shape.blocks {
        let mut instructions: Vec<Instruction> =
            block.iter().map(|&(index, d, j, k)| op(OPS[index], d, j, k)).collect();
        instructions.push(op(Op::Jirl, 0, 4, 0));
        program.block(&instructions);
    }
    for &(block, seed) in &shape.order {
        let number = longma_core::BlockNumber(block as u32);
        let accesses = program.blocks[block].instructions.iter().filter(|i| longma_core::has_address(i.op));
        let addresses: Vec<u64> = (1..)
            .zip(accesses)
            .map(|(nth, access)| {
                let apart = if matches!(access.op, Op::StD | Op::StB | Op::Xvst) { stores_apart } else { 0 };
                0x10_0000 + (seed.wrapping_mul(nth) >> 52) * 4 + apart
            })
            .collect();
        program.run(number, &addresses);
    }
    program
}

/// Latencies from 4 to some hundred cycles, by address alone.
#[derive(Clone)]
struct Scattered;

impl MemoryPort for Scattered {
    fn fetch(&mut self, address: u64, at: Cycle) -> Answer {
        self.load(address, 4, 0, at)
    }

    fn load(&mut self, address: u64, _: u32, _: u64, at: Cycle) -> Answer {
        let hash = (address / 64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        let source = Source::ALL[hash as usize % 6];
        let translation_cycles = if hash == 15 { 30 } else { 0 };
        Answer { ready: at + 4 + 20 * (hash % 6) + u64::from(translation_cycles), source, translation_cycles }
    }

    fn store(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer {
        self.load(address, bytes, instruction, at)
    }

    fn prefetch(&mut self, _: u64, _: u64, _: Cycle) {}
}

const KINDS: [ModelKind; 2] = [ModelKind::InOrder, ModelKind::OutOfOrder];

fn text_of(model: &TimingModel) -> String {
    let mut statistics = Statistics::default();
    model.statistics(&mut statistics, "core0").unwrap();
    statistics.to_text()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_stack_sums_to_the_cycles_and_no_core_is_faster_than_its_width(shape in shape()) {
        let program = program_of(&shape);
        for kind in KINDS {
            let mut model = model(kind, &[]);
            let cycles = program.cycles(&mut model, &mut Scattered);
            let stack = model.stack().unwrap();
            prop_assert_eq!(stack.total_slots(), cycles * stack.width());
            let by_cause: u64 = Cause::ALL.iter().map(|cause| stack.slots(*cause)).sum();
            prop_assert_eq!(by_cause, stack.total_slots());
            prop_assert!(cycles * stack.width() >= model.instructions());
            let slots: u64 = model.blocks().map(|(_, counts)| counts.slots).sum();
            prop_assert_eq!(slots.div_ceil(stack.width()), cycles);
            let instructions: u64 = model.blocks().map(|(_, counts)| counts.instructions).sum();
            prop_assert_eq!(instructions, model.instructions());
        }
    }

    #[test]
    fn the_same_run_takes_the_same_time_however_it_is_cut(shape in shape()) {
        let program = program_of(&shape);
        for kind in [ModelKind::Counting, ModelKind::InOrder, ModelKind::OutOfOrder] {
            let (mut whole, mut cut) = (model(kind, &[]), model(kind, &[]));
            whole.drain(&program.trace, &program.blocks, &mut Scattered);
            for record in program.trace.records() {
                let mut trace = longma_core::Trace::default();
                trace.push(&record);
                cut.drain(&trace, &program.blocks, &mut Scattered);
            }
            prop_assert_eq!(text_of(&whole), text_of(&cut));
        }
    }

    #[test]
    fn slower_memory_is_never_faster(shape in shape(), fast in 4u64..100, more in 1u64..200) {
        let program = program_of(&shape);
        for kind in KINDS {
            let quick = program.cycles(&mut model(kind, &[]), &mut FixedData::new(fast));
            let slow = program.cycles(&mut model(kind, &[]), &mut FixedData::new(fast + more));
            // Older operations are not preferred by more than their order: a unit may go to another one.
            prop_assert!(slow + 8 + quick / 50 >= quick, "{kind:?}: {quick} with {fast}, {slow} with {}", fast + more);
        }
    }

    #[test]
    fn a_wider_core_is_never_slower(shape in shape()) {
        let program = program_of(&shape);
        let narrow = [("decode_width = 4", "decode_width = 2"), ("retire_width = 4", "retire_width = 2")];
        let small = [("rob_entries = 128", "rob_entries = 32"), ("load_queue_entries = 64", "load_queue_entries = 8")];
        let wide = program.cycles(&mut model(ModelKind::OutOfOrder, &[]), &mut Scattered);
        for changes in [narrow, small] {
            let less = program.cycles(&mut model(ModelKind::OutOfOrder, &changes), &mut Scattered);
            prop_assert!(wide <= less + 8 + less / 50, "{wide} against {less}");
        }
    }

    #[test]
    fn reordering_is_never_slower(shape in shape()) {
        // An in-order core may send a store to the cache before an older load is complete, the other one sends it when it retires.
        // So nothing here waits for a store: no barriers, and no loads of what was just stored in part.
        let mut shape = shape;
        let ordered = |op: usize| matches!(OPS[op], Op::AmaddD | Op::AmaddDbW | Op::Dbar);
        shape.blocks.iter_mut().flatten().filter(|i| ordered(i.0)).for_each(|i| i.0 = 0);
        let mut program = program_with(&shape, 0x10_0000);
        // Both empty their pipelines at the end.
        let call = program.block(&[Instruction::new(Op::Syscall)]);
        program.run(call, &[]);
        let in_order = program.cycles(&mut model(ModelKind::InOrder, &[]), &mut FixedData::new(30));
        let out_of_order = program.cycles(&mut model(ModelKind::OutOfOrder, &[]), &mut FixedData::new(30));
        // Each mispredicted branch may cost the cycle between dispatch and issue.
        let branches = shape.order.len() as u64;
        prop_assert!(out_of_order <= in_order + 16 + branches + in_order / 20, "{out_of_order} against {in_order}");
    }
}
