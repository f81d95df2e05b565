//! Properties of every program.

use longma_loongarch::{Instruction, Op};
use longma_memory::{Answer, MemoryPort, Source, translation::Side};
use longma_sim::{Cycle, Statistics};
use longma_timing::{Cause, InstructionCounts, ModelKind, Stall, TimingModel};
use proptest::prelude::*;

use crate::{program::*, reference::memory::Cached};

/// Operations of every kind.
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

/// Random blocks and the order in which they run; each ends with a branch to any block.
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
    let mut program = Program::default();
    for block in &shape.blocks {
        let mut instructions: Vec<Instruction> =
            block.iter().map(|&(index, d, j, k)| op(OPS[index], d, j, k)).collect();
        instructions.push(op(Op::Jirl, 0, 4, 0));
        program.block(&instructions);
    }
    for &(block, seed) in &shape.order {
        let number = longma_trace::BlockNumber(block as u32);
        let accesses = program.blocks[block].instructions.iter().filter(|i| longma_trace::has_address(i.op));
        let addresses: Vec<u64> =
            (1..).zip(accesses).map(|(nth, _)| 0x10_0000 + (seed.wrapping_mul(nth) >> 52) * 4).collect();
        program.run(number, &addresses);
    }
    program
}

/// Latencies from 4 to some hundred cycles, determined by the address.
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
    fn counts_of_instructions_add_up_to_those_of_blocks_and_change_no_result(shape in shape()) {
        let program = program_of(&shape);
        for kind in [ModelKind::Counting, ModelKind::InOrder, ModelKind::OutOfOrder] {
            let (mut plain, mut counted) = (model(kind, &[]), model(kind, &[]));
            counted.count_instructions();
            for model in [&mut plain, &mut counted] {
                model.drain(&program.trace, &program.blocks, &mut Scattered);
            }
            prop_assert_eq!(text_of(&plain), text_of(&counted));
            prop_assert_eq!(plain.instructions_of_blocks().count(), 0, "nothing is kept unless it is requested");
            let lost: u64 = counted.stack().map_or(0, |stack| {
                let lost = Cause::ALL.into_iter().filter(|cause| Stall::of(*cause).is_some());
                lost.map(|cause| stack.slots(cause)).sum()
            });
            let mut stalls = 0;
            for ((block, counts), (other, instructions)) in counted.blocks().zip(counted.instructions_of_blocks()) {
                prop_assert_eq!(block, other);
                let sum = |of: fn(&InstructionCounts) -> u64| instructions.iter().map(of).sum::<u64>();
                prop_assert_eq!(sum(|counts| counts.runs), counts.instructions);
                prop_assert_eq!(sum(|counts| counts.slots), counts.slots);
                prop_assert_eq!(sum(|counts| counts.fetch_misses.into()), u64::from(counts.fetch_misses));
                for (source, misses) in counts.misses.iter().enumerate() {
                    let sum: u32 = instructions.iter().map(|counts| counts.misses[source]).sum();
                    prop_assert_eq!(sum, *misses);
                }
                stalls += sum(|counts| counts.stalls.iter().sum());
            }
            prop_assert_eq!(stalls, lost, "{:?}: every lost slot is charged to an instruction", kind);
            counted.reset();
            prop_assert_eq!(counted.instructions_of_blocks().count(), 0);
        }
    }

    #[test]
    fn the_time_of_a_run_does_not_depend_on_how_it_is_split(shape in shape()) {
        let program = program_of(&shape);
        for kind in [ModelKind::Counting, ModelKind::InOrder, ModelKind::OutOfOrder] {
            let (mut unsplit, mut cut) = (model(kind, &[]), model(kind, &[]));
            unsplit.drain(&program.trace, &program.blocks, &mut Scattered);
            for record in program.trace.records() {
                let mut trace = longma_trace::Trace::default();
                trace.push(&record);
                cut.drain(&trace, &program.blocks, &mut Scattered);
            }
            prop_assert_eq!(text_of(&unsplit), text_of(&cut));
        }
    }

    #[test]
    fn slower_memory_is_never_faster(shape in shape(), fast in 4u64..100, more in 1u64..200) {
        let program = program_of(&shape);
        for kind in KINDS {
            let quick = program.cycles(&mut model(kind, &[]), &mut FixedData::new(fast));
            let slow = program.cycles(&mut model(kind, &[]), &mut FixedData::new(fast + more));
            // Among operations that are ready in the same cycle, the oldest gets the unit. With a slower memory,
            // another operation may be ready first, so a small gain is tolerated.
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
        let program = program_of(&shape);
        let [in_order, out_of_order] = KINDS.map(|kind| {
            let mut model = model(kind, &[]);
            program.cycles(&mut model, &mut Cached::new(0));
            model.complete();
            model.now().0
        });
        // Each branch may cost the cycle between dispatch and issue.
        let branches = shape.order.len() as u64;
        prop_assert!(out_of_order <= in_order + 16 + branches + in_order / 20, "{out_of_order} against {in_order}");
    }
}

/// A memory port that records requests and their cycles.
struct Asked<P>(P, Vec<(u8, u64, u64, u64)>);

impl<P: MemoryPort> MemoryPort for Asked<P> {
    fn fetch(&mut self, address: u64, at: Cycle) -> Answer {
        self.1.push((0, address, 0, at.0));
        self.0.fetch(address, at)
    }

    fn load(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer {
        self.1.push((1, address, instruction, at.0));
        self.0.load(address, bytes, instruction, at)
    }

    fn store(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer {
        self.1.push((2, address, instruction, at.0));
        self.0.store(address, bytes, instruction, at)
    }

    fn refill(&mut self, side: Side, address: u64, bytes: u32) -> u32 {
        let cycles = self.0.refill(side, address, bytes);
        self.1.push((4 + side as u8, address, bytes.into(), cycles.into()));
        cycles
    }

    fn prefetch(&mut self, address: u64, instruction: u64, at: Cycle) {
        self.1.push((3, address, instruction, at.0));
        self.0.prefetch(address, instruction, at);
    }
}

/// Mostly hits and some misses, depending on the cycle, as for a program in steady state. The `pages` pages that missed
/// last have translations.
struct MostlyHits {
    translated: [Vec<u64>; 2],
    pages: usize,
}

impl MostlyHits {
    fn new(pages: usize) -> Self {
        Self { translated: [Vec::new(), Vec::new()], pages }
    }
}

impl MemoryPort for MostlyHits {
    fn fetch(&mut self, address: u64, at: Cycle) -> Answer {
        self.load(address, 4, 0, at)
    }

    fn load(&mut self, address: u64, _: u32, _: u64, at: Cycle) -> Answer {
        let hash = ((address / 64) ^ (at.0 << 20)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        let (cycles, source, translation_cycles) = match hash {
            0..8 => (14, Source::Level2, 0),
            8..12 => (40, Source::Level3, 0),
            12 => (6000, Source::LocalMemory, 5000),
            13 => (60, Source::Level3, 30),
            _ => (4, Source::Level1, 0),
        };
        Answer { ready: at + cycles, source, translation_cycles }
    }

    fn store(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer {
        self.load(address, bytes, instruction, at)
    }

    fn refill(&mut self, side: Side, address: u64, _: u32) -> u32 {
        let (translated, page) = (&mut self.translated[side as usize], address / 256);
        if translated.contains(&page) {
            return 0;
        }
        translated.push(page);
        translated.drain(..translated.len().saturating_sub(self.pages));
        20 + (page % 3) as u32 * 40
    }

    fn prefetch(&mut self, _: u64, _: u64, _: Cycle) {}
}

/// A program of few blocks that repeats the same sequence.
fn repeating() -> impl Strategy<Value = Shape> {
    (shape(), 1usize..20).prop_map(|(mut shape, times)| {
        shape.blocks.truncate(4);
        let blocks = shape.blocks.len();
        shape.order.truncate(40);
        shape
            .order
            .iter_mut()
            .for_each(|(block, seed)| (*block, *seed) = (*block % blocks, (*seed % 7) << 52));
        shape.order = shape.order.repeat(times);
        // In typical programs, few blocks contain atomic operations and barriers.
        let atomics = [Op::AmaddD, Op::AmaddDbW, Op::Dbar];
        let calm = shape.blocks.iter_mut().skip(1).flatten();
        calm.filter(|step| atomics.contains(&OPS[step.0])).for_each(|step| step.0 = 0);
        shape
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn replayed_blocks_take_the_same_time_as_simulated_ones(
        shape in repeating(),
        pause in 0u64..400,
        small_queues in any::<bool>(),
        small_window in any::<bool>(),
        strays in any::<bool>(),
        pages in prop_oneof![1usize..12, Just(1000)],
        cut in any::<prop::sample::Index>(),
    ) {
        let program = program_of(&shape);
        let mut halves = [longma_trace::Trace::default(), longma_trace::Trace::default()];
        let cut = cut.index(shape.order.len() + 1);
        for (index, record) in program.trace.records().enumerate() {
            halves[usize::from(index >= cut)].push(&record);
        }
        let small = [("load_queue_entries = 64", "load_queue_entries = 3"), ("store_queue_entries = 48", "store_queue_entries = 2")];
        let window = ("rob_entries = 128", if small_window { "rob_entries = 36" } else { "rob_entries = 128" });
        let mut changes = if small_queues { vec![small[0], small[1], window] } else { vec![window] };
        if strays {
            changes.push(("history_bits = 64", "history_bits = 64\nwrong_path = \"fetched\""));
        }
        let mut loads = Vec::new();
        for repeats in [true, false] {
            let mut model = model(ModelKind::InOrder, &changes);
            model.set_memoization(repeats);
            let mut port = Asked(MostlyHits::new(pages), Vec::new());
            for half in &halves {
                model.drain(half, &program.blocks, &mut port);
                model.advance_to(model.now() + pause);
            }
            model.drain(&program.trace, &program.blocks, &mut port);
            let blocks: Vec<_> = model.blocks().map(|(number, counts)| (number, *counts)).collect();
            loads.push((model.now(), model.stack(), model.branches(), blocks, text_of(&model), port.1));
        }
        let (anew, from_memory) = (loads.pop(), loads.pop());
        prop_assert_eq!(from_memory, anew);
    }
}
