//! Monotonicity of the models, independent of the reference: fewer resources are never better.
//!
//! A scheduler that prefers the oldest ready operation may still gain slightly from a delay, because the delayed
//! operation no longer blocks others (Graham, Bounds on multiprocessing timing anomalies, SIAM Journal on Applied
//! Mathematics 17(2), 1969). [`NOISE`] is the tolerance; the book's chapter on simulated time states the observed
//! values.

use std::{collections::BTreeMap, sync::Mutex};

use longma_memory::{Answer, MemoryPort, Source};
use longma_sim::Cycle;
use longma_timing::{FetchOptions, ModelKind, TimingModel};
use proptest::prelude::*;

use super::{
    Access, Loads, OPERATIONS, PIPELINED, Sizes,
    comparison::{cases, stages_of},
    memory::Cached,
    random::{Shape, shapes, sizes},
};

/// Tolerance: cycles, and the divisor for a share of all cycles.
const NOISE: (u64, u64) = (8, 20);

/// A memory with one slow line; all others have the latency of the first-level cache.
struct OneSlowLine {
    line: u64,
    cycles: u64,
}

impl MemoryPort for OneSlowLine {
    fn fetch(&mut self, address: u64, at: Cycle) -> Answer {
        self.load(address, 4, 0, at)
    }

    fn load(&mut self, address: u64, _: u32, _: u64, at: Cycle) -> Answer {
        let cycles = if address / 64 == self.line { self.cycles } else { 4 };
        Answer { ready: at + cycles, source: Source::Level1, translation_cycles: 0 }
    }

    fn store(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer {
        self.load(address, bytes, instruction, at)
    }

    fn prefetch(&mut self, _: u64, _: u64, _: Cycle) {}
}

/// Address of the slow line; no other access of a random program is near it.
const SLOW: u64 = 0x20_0000;

fn model(kind: ModelKind, sizes: Sizes) -> TimingModel {
    let fetch = FetchOptions { hit_cycles: 4, line_bytes: 64 };
    TimingModel::new(&sizes.core(), Some(kind), fetch).unwrap()
}

fn cycles(kind: ModelKind, sizes: Sizes, shape: &Shape, slow: u64) -> u64 {
    let mut port = OneSlowLine { line: SLOW / 64, cycles: slow };
    shape.run().1.cycles(&mut model(kind, sizes), &mut port)
}

/// When each instruction's value is available.
fn done(kind: ModelKind, sizes: Sizes, shape: &Shape, slow: u64) -> Vec<u64> {
    let (executed, program) = shape.run();
    let mut model = model(kind, sizes);
    model.log_pipeline(executed.len());
    program.cycles(&mut model, &mut OneSlowLine { line: SLOW / 64, cycles: slow });
    let stages = stages_of(&model.pipeline_log().unwrap(), executed.len());
    stages.iter().map(|cycles| cycles[2]).collect()
}

/// Returns whether `less` is no better than `more` within the tolerance. Prints the largest gain of each `property`.
fn no_better(property: &'static str, less: u64, more: u64) -> bool {
    static LARGEST_GAINS: Mutex<BTreeMap<&str, (u64, f64)>> = Mutex::new(BTreeMap::new());
    if more > less {
        let gain = (more - less, (more - less) as f64 / less as f64);
        let mut largest = LARGEST_GAINS.lock().unwrap();
        let largest = largest.entry(property).or_default();
        if gain.0 > largest.0 || gain.0 > NOISE.0 && gain.1 > largest.1 {
            println!("{property}: {} cycles better, of {less}", gain.0);
            *largest = (gain.0.max(largest.0), gain.1.max(largest.1));
        }
    }
    less + NOISE.0 + less / NOISE.1 >= more
}

/// Sizes of cores without speculative loads: with them, a slow core may happen to avoid a squash.
fn sure_sizes() -> impl Strategy<Value = Sizes> {
    let sure = |loads| if loads == Loads::Blind { Loads::Ideal } else { loads };
    sizes().prop_map(move |sizes| Sizes { loads: sure(sizes.loads), ..sizes })
}

/// `sizes` with one resource reduced, selected by `index`.
fn smaller(sizes: Sizes, index: usize) -> Sizes {
    let mut less = sizes;
    let part = [
        &mut less.fetch_width,
        &mut less.decode_width,
        &mut less.issue_width,
        &mut less.retire_width,
        &mut less.rob_entries,
        &mut less.load_queue_entries,
        &mut less.store_queue_entries,
    ];
    let part = part.into_iter().nth(index).unwrap();
    *part = (*part / 2).max(1);
    less
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn a_core_with_fewer_resources_is_never_faster(
        shape in shapes(PIPELINED),
        sizes in sure_sizes(),
        which in 0usize..7,
        slow in 4u64..200,
    ) {
        for kind in [ModelKind::InOrder, ModelKind::OutOfOrder] {
            let (less, more) = (cycles(kind, smaller(sizes, which), &shape, slow), cycles(kind, sizes, &shape, slow));
            prop_assert!(no_better("less of something", less, more), "{kind:?}: {less} with less, {more} with more");
        }
    }

    #[test]
    fn a_slower_load_never_makes_its_consumer_earlier(
        shape in shapes(PIPELINED),
        sizes in sure_sizes(),
        at in any::<prop::sample::Index>(),
        quick in 4u64..60,
        later in 1u64..200,
    ) {
        let mut shape = shape;
        let loads = |step: &&mut (usize, u8, u8, u8, u64)| OPERATIONS[step.0].access == Access::Load;
        let mut loads_found: Vec<_> = shape.blocks.iter_mut().flat_map(|block| &mut block.0).filter(loads).collect();
        prop_assume!(!loads_found.is_empty());
        let load = at.index(loads_found.len());
        loads_found[load].4 = SLOW;
        let executed = shape.run().0;
        let load = executed.iter().position(|instruction| instruction.address == SLOW);
        prop_assume!(load.is_some());
        let load = load.unwrap();
        let uses = executed[load + 1..].iter().position(|instruction| instruction.reads.contains(&executed[load].writes));
        prop_assume!(uses.is_some());
        let uses = load + 1 + uses.unwrap();
        for kind in [ModelKind::InOrder, ModelKind::OutOfOrder] {
            let used = [quick, quick + later].map(|cycles| done(kind, sizes, &shape, cycles)[uses]);
            prop_assert!(no_better("a slower load", used[1], used[0]), "{kind:?}: done at {used:?}");
        }
    }

    #[test]
    fn in_order_issue_is_never_faster(shape in shapes(OPERATIONS.len()), sizes in sizes()) {
        // Disable the features that an in-order core lacks: renaming, schedulers, and speculative loads.
        let sizes = Sizes {
            int_registers: 4096,
            fp_registers: 4096,
            issue_queue_entries: [u64::MAX; 3],
            retire_width: sizes.decode_width,
            loads: Loads::Ideal,
            ..sizes
        };
        let complete = |kind| {
            let mut model = model(kind, sizes);
            let mut port = Cached::new(shape.refill_cycles);
            model.drain(&shape.run().1.trace, &shape.run().1.blocks, &mut port);
            model.complete();
            model.now().0
        };
        let [in_order, out_of_order] = [ModelKind::InOrder, ModelKind::OutOfOrder].map(complete);
        let branches = shape.ways.len() as u64;
        prop_assert!(no_better("in order", in_order + branches, out_of_order), "{in_order} in order, {out_of_order} out of order");
    }
}
