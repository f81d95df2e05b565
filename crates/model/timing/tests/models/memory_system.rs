//! Cores together with the memory system of the 3A5000.

use longma_loongarch::{Instruction, Op};
use longma_memory::{Detail, MemorySystem, placement::SpaceId};
use longma_timing::{
    FetchOptions,
    ModelKind::{self, InOrder, OutOfOrder},
    TimingModel,
};
use longma_topology::Machine;
use proptest::prelude::*;

use crate::program::*;

const PREFETCHER: (&str, &str) =
    ("[caches.l1i.prefetcher]\nkind = \"next-line\"\nsource = \"instruction-prefetch\"\n", "");
const WALKER: (&str, &str) = ("tlb_refill = \"exception\"", "tlb_refill = \"walker\"");
const PAGE: u64 = 16 << 10;

fn system(changes: &[(&str, &str)]) -> MemorySystem {
    let (_, mut text) = Machine::text("loongson-3a5000").unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "the machine file has no `{from}`");
        text = text.replacen(from, to, 1);
    }
    let machine = Machine::parse("test.toml", &text).unwrap_or_else(|report| panic!("{report}"));
    MemorySystem::new(&machine, 0, Detail::Timing, 1).unwrap()
}

#[test]
fn next_line_prefetching_speeds_up_straight_line_code_in_the_second_level() {
    // 96 KiB, more than the first level of 64 KiB and less than the second level of 256 KiB.
    let code = Program::straight(&vec![op(Op::Andi, 0, 0, 0); 24_576], apart);
    for kind in [OutOfOrder, InOrder] {
        let takes = |changes: &[(&str, &str)]| {
            let (mut system, mut model) = (system(changes), model(kind, &[]));
            let mut port = system.port(0);
            port.set_space(SpaceId(0));
            code.cycles(&mut model, &mut port);
            code.cycles(&mut model, &mut port)
        };
        let (without, with) = (takes(&[PREFETCHER]), takes(&[]));
        println!(
            "{kind:?}: {without} cycles for 24576 instructions without the next-line prefetcher, {with} with it"
        );
        assert!(
            with * 10 < without * 8,
            "{kind:?}: {without} cycles without the next-line prefetcher, {with} with it"
        );
        assert!(with >= 24_576 / 4, "{kind:?}: {with} cycles");
    }
}

/// Cycles of straight-line code in the second level, with an instruction cache of `latency` cycles.
fn straight_code_takes(kind: ModelKind, latency: u64, changes: &[(&str, &str)]) -> u64 {
    let text = |latency| {
        format!(
            "kind = \"instruction\"\nsize = \"64 KiB\"\nways = 4\nline = \"64 B\"\nlatency = \"{latency} cycles\""
        )
    };
    let (from, to) = (text(4), text(latency));
    let changes = [changes, &[(from.as_str(), to.as_str())]].concat();
    let (mut system, code) =
        (system(&changes), Program::straight(&vec![op(Op::Andi, 0, 0, 0); 24_576], apart));
    let fetch = FetchOptions { hit_cycles: latency, line_bytes: 64 };
    let mut model = TimingModel::new(&core(&[]), Some(kind), fetch).unwrap();
    let mut port = system.port(0);
    port.set_space(SpaceId(0));
    code.cycles(&mut model, &mut port);
    code.cycles(&mut model, &mut port)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn a_slower_instruction_cache_never_makes_code_quicker(
        out_of_order in any::<bool>(), prefetches in any::<bool>(), (quick, slow) in (1u64..14, 1u64..14),
    ) {
        let kind = if out_of_order { OutOfOrder } else { InOrder };
        let changes = if prefetches { &[][..] } else { &[PREFETCHER] };
        let (min, max) = (quick.min(slow), quick.max(slow));
        let (quicker, slower) = (straight_code_takes(kind, min, changes), straight_code_takes(kind, max, changes));
        prop_assert!(slower >= quicker, "{quicker} cycles with {min}, {slower} with {max}");
    }
}

#[test]
fn loads_that_miss_in_the_tlb_are_at_least_an_exception_apart() {
    // An entry covers two pages.
    let loads =
        Program::straight(&repeat(&[op(Op::LdD, 4, 0, 0)], 200), |nth| 0x100_0000 + 2 * PAGE * nth as u64);
    for kind in [OutOfOrder, InOrder] {
        let takes = |changes: &[(&str, &str)]| {
            let (mut system, mut model) = (system(changes), model(kind, &[]));
            let mut port = system.port(0);
            port.set_space(SpaceId(0));
            loads.cycles(&mut model, &mut port)
        };
        let (walks, exceptions) = (takes(&[WALKER]), takes(&[]));
        println!(
            "{kind:?}: 200 loads of new pages take {walks} cycles with a walker, {exceptions} with exceptions"
        );
        // The in-order core does not wait for unused loads, so some are still in flight at the end.
        assert!(kind == InOrder || walks >= 200 * 60, "page walks are serialized: {walks}");
        // Each exception waits for the previous load, which comes from memory.
        assert!(
            exceptions >= 200 * (60 + 100),
            "{kind:?}: {exceptions} with exceptions, {walks} with a walker"
        );
    }
}

#[test]
fn lines_fetched_on_the_wrong_path_are_cached_for_later_execution() {
    const LINES: i64 = 8;
    // The predictor assumes that backward branches are taken, but none of these is. Their targets are executed at the
    // end.
    let mut program = Program::default();
    let code = program.block_at(0x1_0000, &vec![op(Op::AddiD, 4, 0, 0); 16 * LINES as usize]);
    let branches: Vec<_> = (0..LINES)
        .map(|line| {
            let pc = 0x1_1000 + 8 * line;
            let imm = (0x1_0000 + 64 * line - (pc + 4)) as i32;
            program
                .block_at(pc as u64, &[op(Op::AddiD, 4, 0, 0), Instruction { imm, ..op(Op::Bne, 0, 4, 0) }])
        })
        .collect();
    let jump = Instruction { imm: -(0x1000 + 8 * LINES as i32), ..Instruction::new(Op::B) };
    let last = program.block(&[jump]);
    branches.iter().chain([&last, &code]).for_each(|block| program.run(*block, &[]));

    for kind in [OutOfOrder, InOrder] {
        let takes = |wrong_path: &str| {
            let predictor = format!("predictor = \"static\"\n{wrong_path}");
            let (mut system, mut model) =
                (system(&[PREFETCHER]), model(kind, &[("predictor = \"tage\"", &predictor)]));
            let mut port = system.port(0);
            port.set_space(SpaceId(0));
            (program.cycles(&mut model, &mut port), model.branches().unwrap().conditional_mispredicted)
        };
        let (without, with) = (takes(""), takes("wrong_path = \"fetched\""));
        println!("{kind:?}: {} cycles without the wrong path's lines, {} with them", without.0, with.0);
        assert_eq!((without.1, with.1), (LINES as u64, LINES as u64));
        // Each line comes from memory, some of them from an open row.
        assert!(with.0 + (LINES as u64 - 1) * 100 < without.0, "{kind:?}: {with:?}, {without:?} without");
    }
}
