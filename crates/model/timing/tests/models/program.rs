//! Test programs and the cores they run on. A test states which blocks run and which addresses they access, without
//! executing code.
//!
//! Source: the 3A5000's machine file, in which tests replace lines.

use longma_loongarch::{Instruction, Op, encode};
use longma_memory::{Answer, FixedLatency, MemoryPort, Source};
use longma_sim::Cycle;
use longma_timing::{FetchOptions, ModelKind, TimingModel};
use longma_topology::{Machine, parts::Core};
use longma_trace::{BlockNumber, Record, Trace, TracedBlock, has_address};

/// The LA464 of the 3A5000's machine file with each `(from, to)` replaced once.
pub fn core(changes: &[(&str, &str)]) -> Core {
    let (_, mut text) = Machine::text("loongson-3a5000").unwrap();
    for (from, to) in changes {
        assert!(text.contains(from), "the machine file has no `{from}`");
        text = text.replacen(from, to, 1);
    }
    let machine =
        Machine::parse("test.toml", &text).unwrap_or_else(|report| panic!("{}", report.render(100, false)));
    machine.parts().cores.iter().next().unwrap().1.clone()
}

/// The units in the machine file of [`core`].
pub fn units_of_the_file() -> String {
    let (_, text) = Machine::text("loongson-3a5000").unwrap();
    let (begin, end) = ("[[cores.la464.units]]", "[cores.la464.operations]");
    let units = text.split_once(begin).and_then(|(_, rest)| rest.split_once(end)).unwrap().0;
    format!("{begin}{units}").trim().to_owned()
}

/// An untrained model of [`core`].
pub fn model(kind: ModelKind, changes: &[(&str, &str)]) -> TimingModel {
    let fetch = FetchOptions { hit_cycles: 4, line_bytes: 64 };
    TimingModel::new(&core(changes), Some(kind), fetch).unwrap()
}

/// Data accesses with a fixed latency; instruction fetches always hit in the first-level cache.
#[derive(Clone, Debug)]
pub struct FixedData {
    pub latency_cycles: u64,
    pub source: Source,
    /// Whether all addresses are in a store inside the core.
    pub in_core: bool,
    /// Every load and store: address, bytes, cycle.
    pub accesses: Vec<(u64, u32, u64)>,
}

impl FixedData {
    pub fn new(latency_cycles: u64) -> Self {
        Self { latency_cycles, source: Source::LocalMemory, in_core: false, accesses: Vec::new() }
    }
}

impl MemoryPort for FixedData {
    fn fetch(&mut self, address: u64, at: Cycle) -> Answer {
        FixedLatency { latency_cycles: 4 }.fetch(address, at)
    }

    fn load(&mut self, address: u64, bytes: u32, _: u64, at: Cycle) -> Answer {
        self.accesses.push((address, bytes, at.0));
        Answer { ready: at + self.latency_cycles, source: self.source, translation_cycles: 0 }
    }

    fn store(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer {
        self.load(address, bytes, instruction, at)
    }

    fn is_in_core(&self, _: u64) -> bool {
        self.in_core
    }

    fn prefetch(&mut self, _: u64, _: u64, _: Cycle) {}
}

/// Blocks and the order in which they run.
#[derive(Debug, Default)]
pub struct Program {
    pub blocks: Vec<TracedBlock>,
    pub trace: Trace,
    next: u64,
}

impl Program {
    /// Adds a block after the last one without running it. Its instructions must be encodable.
    pub fn block(&mut self, instructions: &[Instruction]) -> BlockNumber {
        let start = self.next.max(0x1_0000);
        self.block_at(start, instructions)
    }

    /// Adds a block at `start`.
    pub fn block_at(&mut self, start: u64, instructions: &[Instruction]) -> BlockNumber {
        for instruction in instructions {
            encode(instruction).unwrap_or_else(|error| panic!("{instruction}: {error}"));
        }
        self.next = start + 4 * instructions.len() as u64;
        self.blocks.push(TracedBlock { start, instructions: instructions.into() });
        BlockNumber(self.blocks.len() as u32 - 1)
    }

    /// Runs a block completely.
    pub fn run(&mut self, block: BlockNumber, addresses: &[u64]) {
        let executed = self.blocks[block.0 as usize].instructions.len() as u16;
        self.trace.push(&Record { block, executed, addresses });
    }

    /// Straight-line code that runs once, in blocks of at most 64 instructions. `address` gives the address of each
    /// access by the index of its instruction.
    pub fn straight(instructions: &[Instruction], mut address: impl FnMut(usize) -> u64) -> Self {
        let mut program = Self::default();
        for (part, instructions) in instructions.chunks(64).enumerate() {
            let block = program.block(instructions);
            let accesses = instructions.iter().enumerate().filter(|(_, i)| has_address(i.op));
            let addresses: Vec<u64> = accesses.map(|(index, _)| address(64 * part + index)).collect();
            program.run(block, &addresses);
        }
        program
    }

    /// Cycles of the program on `model`.
    pub fn cycles(&self, model: &mut TimingModel, port: &mut impl MemoryPort) -> u64 {
        let before = model.now().0;
        model.drain(&self.trace, &self.blocks, port);
        model.now().0 - before
    }
}

/// A different line for each access.
pub fn apart(index: usize) -> u64 {
    0x10_0000 + 0x1000 * index as u64
}

/// An instruction with registers `d`, `j` and `k`.
pub fn op(op: Op, d: u8, j: u8, k: u8) -> Instruction {
    Instruction { d, j, k, ..Instruction::new(op) }
}

/// `instructions`, repeated `times` times.
pub fn repeat(instructions: &[Instruction], times: usize) -> Vec<Instruction> {
    instructions.iter().copied().cycle().take(instructions.len() * times).collect()
}

/// Asserts that `cycles` is `expected` or at most `slack` more, for filling the pipeline.
#[track_caller]
pub fn assert_about(cycles: u64, expected: u64, slack: u64) {
    assert!(
        (expected..=expected + slack).contains(&cycles),
        "{cycles} cycles, expected {expected} to {}",
        expected + slack
    );
}
