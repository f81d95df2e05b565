//! Host time of each timing model on a trace similar to that of 8-queens, with a memory model without cost. Excludes
//! the time for writing the trace and for a memory model.
//!
//! Source: the mix is that of the inner loop of guests/8-queens: a third loads and stores, a branch in every five
//! instructions.

use std::{hint::black_box, time::Instant};

use longma_loongarch::{Instruction, Op};
use longma_memory::FixedLatency;
use longma_timing::{FetchOptions, ModelKind, TimingModel};
use longma_topology::Machine;
use longma_trace::{BlockNumber, Record, Trace, TracedBlock};

/// Instructions of a trace: about a millisecond, so that some rounds are not interrupted on a busy host.
const INSTRUCTIONS: usize = 30_000;
/// Number of runs of each trace; the fastest counts.
const ROUNDS: usize = 500;

fn op(op: Op, d: u8, j: u8, k: u8, imm: i32) -> Instruction {
    Instruction { d, j, k, imm, ..Instruction::new(op) }
}

/// The blocks of a recursive search: test columns in a loop, place a queen and call, return and undo; a leaf returns at
/// once.
fn blocks() -> Vec<TracedBlock> {
    let test = vec![
        op(Op::LdW, 12, 4, 0, 16),
        op(Op::AddW, 13, 5, 6, 0),
        op(Op::LdW, 14, 4, 0, 20),
        op(Op::Or, 12, 12, 14, 0),
        op(Op::And, 12, 12, 13, 0),
        op(Op::Bnez, 0, 12, 0, -20),
    ];
    let deep = vec![op(Op::AddiD, 5, 5, 0, 1), op(Op::Beqz, 0, 5, 0, 44)];
    let stages = vec![
        op(Op::StW, 13, 4, 0, 16),
        op(Op::StD, 1, 3, 0, 8),
        op(Op::AddiD, 3, 3, 0, -64),
        op(Op::SlliD, 6, 6, 0, 1),
        op(Op::Bl, 0, 0, 0, -48),
    ];
    let undo = vec![
        op(Op::AddiD, 3, 3, 0, 64),
        op(Op::LdD, 1, 3, 0, 8),
        op(Op::StW, 0, 4, 0, 16),
        op(Op::SrliD, 6, 6, 0, 1),
        op(Op::Jirl, 0, 1, 0, 0),
    ];
    let leaf = vec![op(Op::AddiD, 7, 7, 0, 1), op(Op::Jirl, 0, 1, 0, 0)];
    let mut start = 0x1_0000;
    let numbered = [test, deep, stages, undo, leaf].into_iter().map(|instructions| {
        let block = TracedBlock { start, instructions: instructions.into() };
        start += 4 * block.instructions.len() as u64;
        block
    });
    numbered.collect()
}

/// State of the generated search.
struct Search {
    blocks: Vec<TracedBlock>,
    trace: Trace,
    state: u64,
    instructions: usize,
}

impl Search {
    fn run(&mut self, block: u32, addresses: &[u64]) {
        let executed = self.blocks[block as usize].instructions.len() as u16;
        self.trace.push(&Record { block: BlockNumber(block), executed, addresses });
        self.instructions += usize::from(executed);
    }

    /// Visits one position. The number of tested columns and the depth are as irregular as in a real search.
    fn visit(&mut self, depth: u64) {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (columns, is_leaf) = (1 + (self.state >> 61) / 3, depth == 8 || self.state >> 40 & 3 == 0);
        let (stack, row) = (0x7fff_0000 - 64 * depth, 0x2_0000 + 64 * depth);
        for column in 0..columns {
            self.run(0, &[row + 8 * column, 0x2_1000 + 8 * column]);
        }
        self.run(1, &[]);
        if is_leaf {
            return self.run(4, &[]);
        }
        self.run(2, &[row, stack]);
        self.visit(depth + 1);
        self.run(3, &[stack, row]);
    }
}

fn queens() -> (Vec<TracedBlock>, Trace) {
    let (blocks, trace) = (blocks(), Trace::default());
    let mut search = Search { blocks, trace, state: 0x9e37_79b9_7f4a_7c15, instructions: 0 };
    while search.instructions < INSTRUCTIONS {
        search.visit(0);
    }
    (search.blocks, search.trace)
}

fn main() {
    let machine = Machine::open("loongson-3a5000").expect("a machine file of the project");
    let core = machine.parts().cores.values().next().expect("a machine has a core");
    let (blocks, trace) = queens();
    let instructions: usize = trace.records().map(|record| usize::from(record.executed)).sum();
    for kind in [ModelKind::Counting, ModelKind::InOrder, ModelKind::OutOfOrder] {
        let mut model =
            TimingModel::new(core, Some(kind), FetchOptions::default()).expect("a core that can be modelled");
        let mut best = f64::INFINITY;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            model.drain(black_box(&trace), &blocks, &mut FixedLatency { latency_cycles: 4 });
            best = best.min(start.elapsed().as_secs_f64());
        }
        let ns = best * 1e9 / instructions as f64;
        let cpi = model.now().0 as f64 / model.instructions() as f64;
        println!("{kind:?}: {ns:.2} ns per instruction, CPI {cpi:.2}");
    }
}
