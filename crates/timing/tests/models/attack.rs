//! Random programs with every kind of access, on random cores, with every way to order loads behind stores.

use longma_loongarch::{Instruction, Op};
use longma_memory::{Answer, MemoryPort, Source, translation::Side};
use longma_sim::{Cycle, Statistics, Value};
use longma_timing::{
    Cause,
    ModelKind::{InOrder, OutOfOrder},
    TimingModel,
};
use proptest::prelude::*;

use crate::program::*;

const OPS: [Op; 34] = [
    Op::AddD,
    Op::MulD,
    Op::DivD,
    Op::LdD,
    Op::LdW,
    Op::LdB,
    Op::StD,
    Op::StW,
    Op::StB,
    Op::StH,
    Op::Vld,
    Op::Xvld,
    Op::Vst,
    Op::Xvst,
    Op::FaddD,
    Op::FdivD,
    Op::AmaddD,
    Op::AmaddDbW,
    Op::Dbar,
    Op::FldD,
    Op::FstD,
    Op::StxD,
    Op::LdxD,
    Op::LlD,
    Op::ScD,
    Op::Xvstx,
    Op::VstelmB,
    Op::StptrW,
    Op::FstxD,
    Op::SubD,
    Op::Preld,
    Op::AmswapW,
    Op::XvaddD,
    Op::StgtD,
];

#[derive(Clone, Debug)]
struct Shape {
    blocks: Vec<Vec<(usize, u8, u8, u8)>>,
    order: Vec<(usize, u64, u16)>,
}

fn shape() -> impl Strategy<Value = Shape> {
    let instruction = (0..OPS.len(), 4u8..9, 4u8..9, 4u8..9);
    let blocks = prop::collection::vec(prop::collection::vec(instruction, 1..24), 1..5);
    (blocks, prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), any::<u16>()), 1..60))
        .prop_map(|(blocks, order)| {
            let n = blocks.len();
            Shape { order: order.iter().map(|(b, s, c)| (b.index(n), *s, *c)).collect(), blocks }
        })
}

fn program_of(shape: &Shape, few: u64, cut: bool) -> Program {
    let mut program = Program::default();
    for block in &shape.blocks {
        let mut i: Vec<Instruction> = block
            .iter()
            .map(|&(n, d, j, k)| {
                let mut it = op(OPS[n], d, j, k);
                if matches!(OPS[n], Op::Dbar | Op::Ibar) {
                    it = op(OPS[n], 0, 0, 0);
                }
                if matches!(OPS[n], Op::Preld) {
                    it = op(OPS[n], 0, j, 0);
                }
                if matches!(
                    OPS[n],
                    Op::LdD
                        | Op::LdW
                        | Op::LdB
                        | Op::StD
                        | Op::StW
                        | Op::StB
                        | Op::StH
                        | Op::Vld
                        | Op::Xvld
                        | Op::Vst
                        | Op::Xvst
                        | Op::FldD
                        | Op::FstD
                        | Op::LlD
                        | Op::ScD
                        | Op::VstelmB
                        | Op::StptrW
                ) {
                    it = op(OPS[n], d, j, 0);
                }
                it
            })
            .collect();
        i.push(op(Op::Jirl, 0, 4, 0));
        program.block(&i);
    }
    for &(block, seed, c) in &shape.order {
        let all = &program.blocks[block].instructions;
        let executed = if cut && c % 4 == 0 { 1 + (c as usize / 4) % all.len() } else { all.len() };
        let addresses: Vec<u64> = (1..)
            .zip(all.iter().take(executed).filter(|i| longma_trace::has_address(i.op)))
            .map(|(nth, _)| 0x10_0000 - 40 + (seed.wrapping_mul(nth * 0x9e37_79b9_7f4a_7c15 | 1) >> 32) % few)
            .collect();
        program.trace.push(&longma_trace::Record {
            block: longma_trace::BlockNumber(block as u32),
            executed: executed as u16,
            addresses: &addresses,
        });
    }
    program
}

/// Every line its own time; pages of 256 bytes are refilled by an exception of `refill` cycles once each while few are known.
struct Port {
    fixed: u64,
    spread: u64,
    refill: u32,
    known: Vec<(u8, u64)>,
}
impl MemoryPort for Port {
    fn fetch(&mut self, _: u64, at: Cycle) -> Answer {
        Answer { ready: at + 4, source: Source::Level1, translation_cycles: 0 }
    }
    fn load(&mut self, address: u64, _: u32, _: u64, at: Cycle) -> Answer {
        let hash = (address / 64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        let more = if self.spread > 0 { self.spread * (hash % 6) } else { 0 };
        Answer {
            ready: at + self.fixed + more,
            source: Source::ALL[hash as usize % 6],
            translation_cycles: 0,
        }
    }
    fn store(&mut self, a: u64, b: u32, i: u64, at: Cycle) -> Answer {
        self.load(a, b, i, at)
    }
    fn refill(&mut self, side: Side, address: u64, bytes: u32) -> u32 {
        let mut cycles = 0;
        if self.refill == 0 {
            return 0;
        }
        for page in address / 256..=(address + u64::from(bytes.max(1)) - 1) / 256 {
            let key = (side as u8, page);
            if !self.known.contains(&key) {
                self.known.push(key);
                if self.known.len() > 12 {
                    self.known.remove(0);
                }
                cycles += self.refill;
            }
        }
        cycles
    }
    fn prefetch(&mut self, _: u64, _: u64, _: Cycle) {}
}

fn counter(model: &TimingModel, name: &str) -> Option<u64> {
    let mut s = Statistics::default();
    model.statistics(&mut s, "core0").unwrap();
    s.get(name).map(|it| match it.value {
        Value::Counter(c) => c.value(),
        _ => panic!(),
    })
}

#[derive(Clone, Debug)]
struct Core {
    widths: [u32; 4],
    rob: u32,
    lq: u32,
    sq: u32,
    regs: [u32; 2],
    entries: u32,
    mispredict: u32,
}
fn a_core() -> impl Strategy<Value = Core> {
    let n = || prop_oneof![1u32..4, 4u32..40, Just(500)];
    (
        [1u32..9, 1u32..7, 1u32..8, 1u32..7],
        n(),
        n(),
        n(),
        [n(), n()],
        prop_oneof![1u32..4, Just(64), Just(1u32 << 20)],
        prop_oneof![0u32..4, 4u32..20, Just(300)],
    )
        .prop_map(|(widths, rob, lq, sq, regs, entries, mispredict)| Core {
            widths,
            rob,
            lq,
            sq,
            regs,
            entries,
            mispredict,
        })
}
fn make(core: &Core, loads: &str, kind: longma_timing::ModelKind) -> TimingModel {
    let c = [
        ("fetch_width = 8", format!("fetch_width = {}", core.widths[0])),
        ("decode_width = 4", format!("decode_width = {}", core.widths[1])),
        ("issue_width = 8", format!("issue_width = {}", core.widths[2])),
        ("retire_width = 4", format!("retire_width = {}", core.widths[3])),
        ("rob_entries = 128", format!("rob_entries = {}", core.rob)),
        ("load_queue_entries = 64", format!("load_queue_entries = {}", core.lq)),
        ("store_queue_entries = 48", format!("store_queue_entries = {}", core.sq)),
        ("int_registers = 128", format!("int_registers = {}", 32 + core.regs[0])),
        ("fp_registers = 128", format!("fp_registers = {}", 32 + core.regs[1])),
        ("mispredict = \"12 cycles\"", format!("mispredict = \"{} cycles\"", core.mispredict)),
        ("loads = \"ideal\"", format!("loads = \"{loads}\"\ntable_entries = {}", core.entries)),
    ];
    let c: Vec<_> = c.iter().map(|(a, b)| (*a, b.as_str())).collect();
    model(kind, &c)
}

const KINDS: [&str; 5] = ["ideal", "conservative", "blind", "counters", "store-sets"];

fn config() -> ProptestConfig {
    let n = std::env::var("ATTACK_CASES").ok().and_then(|it| it.parse().ok()).unwrap_or(300);
    ProptestConfig { cases: n, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn sums_and_counts_agree(shape in shape(), core in a_core(), few in prop_oneof![Just(8u64), Just(80), Just(2000)], fixed in prop_oneof![Just(4u64), Just(60), Just(3000)], spread in 0u64..60, refill in prop_oneof![Just(0u32), 1u32..300]) {
        let program = program_of(&shape, few, true);
        for loads in KINDS {
            let mut model = make(&core, loads, OutOfOrder);
            let cycles = program.cycles(&mut model, &mut Port { fixed, spread, refill, known: vec![] });
            let stack = model.stack().unwrap();
            prop_assert_eq!(stack.total_slots(), cycles * stack.width());
            let by: u64 = Cause::ALL.iter().map(|c| stack.slots(*c)).sum();
            prop_assert_eq!(by, stack.total_slots());
            let again = counter(&model, "core0.loads_fetched_again");
            let lost = stack.slots(Cause::MemoryOrder);
            match loads {
                "ideal" => prop_assert_eq!((again, lost), (None, 0)),
                "conservative" => prop_assert_eq!((again, lost), (Some(0), 0)),
                _ => prop_assert!(lost == 0 || again.unwrap() > 0, "{loads}: {again:?} {lost}"),
            }
            let slots: u64 = model.blocks().map(|(_, c)| c.slots).sum();
            prop_assert_eq!(slots.div_ceil(stack.width()), cycles);
            // Twice the same, cut differently.
            let mut other = make(&core, loads, OutOfOrder);
            let mut port = Port { fixed, spread, refill, known: vec![] };
            for record in program.trace.records() {
                let mut trace = longma_trace::Trace::default();
                trace.push(&record);
                other.drain(&trace, &program.blocks, &mut port);
            }
            let text = |m: &TimingModel| { let mut s = Statistics::default(); m.statistics(&mut s, "core0").unwrap(); s.to_text() };
            prop_assert_eq!(text(&model), text(&other));
            // An in-order core has no loads fetched again.
            let mut in_order = make(&core, loads, InOrder);
            program.cycles(&mut in_order, &mut Port { fixed, spread, refill, known: vec![] });
            prop_assert_eq!(counter(&in_order, "core0.loads_fetched_again"), None);
            prop_assert_eq!(in_order.stack().unwrap().slots(Cause::MemoryOrder), 0);
        }
    }

    #[test]
    fn ideal_is_never_slower(shape in shape(), core in a_core(), few in prop_oneof![Just(8u64), Just(80), Just(2000)], fixed in prop_oneof![Just(4u64), Just(60)], spread in 0u64..60, refill in prop_oneof![Just(0u32), 1u32..300]) {
        let program = program_of(&shape, few, true);
        let cycles = KINDS.map(|loads| program.cycles(&mut make(&core, loads, OutOfOrder), &mut Port { fixed, spread, refill, known: vec![] }));
        for (kind, it) in KINDS.iter().zip(cycles) {
            prop_assert!(cycles[0] <= it + 8 + it / 20, "{kind}: {cycles:?}");
        }
    }

    #[test]
    fn slower_memory_is_not_quicker(shape in shape(), core in a_core(), few in prop_oneof![Just(8u64), Just(80), Just(2000)], more in 1u64..200, kind in 1usize..5) {
        let program = program_of(&shape, few, true);
        let c = [4, 4 + more].map(|fixed| program.cycles(&mut make(&core, KINDS[kind], OutOfOrder), &mut Port { fixed, spread: 0, refill: 0, known: vec![] }));
        prop_assert!(c[1] + 8 + c[1] / 20 >= c[0], "{} {c:?}", KINDS[kind]);
    }
}

/// `stl.d` writes the bytes of its aligned granule up to its address, `str.d` those from its address to the end of the granule.
#[test]
fn a_load_of_what_one_side_of_a_number_wrote_waits_for_it() {
    let cycles = |store: Op, at: u64, load: Op, from: u64, kind| {
        let mut program = Program::default();
        let block = program.block(&[
            op(Op::DivD, 5, 6, 7),
            op(store, 5, 12, 0),
            op(load, 6, 12, 0),
            op(Op::AddD, 6, 6, 6),
        ]);
        (0..1000).for_each(|_| program.run(block, &[at, from]));
        program.cycles(&mut model(kind, &[]), &mut FixedData::new(4))
    };
    for kind in [InOrder, OutOfOrder] {
        let whole = cycles(Op::StD, 0x10_0000, Op::LdB, 0x10_0000, kind);
        let left = cycles(Op::StlD, 0x10_0006, Op::LdB, 0x10_0000, kind);
        let right = cycles(Op::StrD, 0x10_0002, Op::LdB, 0x10_0007, kind);
        let beyond = cycles(Op::StlD, 0x10_0006, Op::LdB, 0x10_0008, kind);
        let none = cycles(Op::StD, 0x10_0000, Op::LdB, 0x10_0008, kind);
        let beyondr = cycles(Op::StrD, 0x10_0006, Op::LdB, 0x10_0008, kind);
        println!(
            "{kind:?}: st.d {whole}, stl.d {left}, str.d {right}; beside: st.d {none}, stl.d {beyond}, str.d {beyondr}"
        );
    }
    for kind in [InOrder, OutOfOrder] {
        let whole = cycles(Op::StD, 0x10_0000, Op::LdB, 0x10_0000, kind);
        let left = cycles(Op::StlD, 0x10_0006, Op::LdB, 0x10_0000, kind);
        assert!(left + 100 >= whole, "{kind:?}: stl.d {left}, st.d {whole}");
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn less_of_something_is_not_quicker(shape in shape(), core in a_core(), few in prop_oneof![Just(8u64), Just(80), Just(2000)], kind in prop_oneof![Just(0usize), Just(1), Just(3), Just(4)], which in 0usize..8, refill in prop_oneof![Just(0u32), 1u32..300]) {
        let program = program_of(&shape, few, true);
        let mut less = core.clone();
        match which {
            0..4 => less.widths[which] = (less.widths[which] / 2).max(1),
            4 => less.rob = (less.rob / 2).max(1),
            5 => less.lq = (less.lq / 2).max(1),
            6 => less.sq = (less.sq / 2).max(1),
            _ => less.mispredict += 20,
        }
        let c = [&less, &core].map(|core| program.cycles(&mut make(core, KINDS[kind], OutOfOrder), &mut Port { fixed: 4, spread: 20, refill, known: vec![] }));
        prop_assert!(c[0] + 8 + c[0] / 20 >= c[1], "{} {which} less {} more {}", KINDS[kind], c[0], c[1]);
    }
}
