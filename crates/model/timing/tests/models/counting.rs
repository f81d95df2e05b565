//! The counting model: each line fetch and access exactly once, in program order.

use longma_loongarch::{Instruction, Op};
use longma_memory::{Answer, MemoryPort, Source};
use longma_sim::{Cycle, Statistics};
use longma_timing::ModelKind::Counting;
use longma_trace::Record;

use crate::program::*;

/// A log of every call.
#[derive(Default)]
struct Log(Vec<String>);

impl Log {
    fn note(&mut self, text: String, at: Cycle) -> Answer {
        self.0.push(text);
        Answer { ready: at, source: Source::Level2, translation_cycles: 0 }
    }
}

impl MemoryPort for Log {
    fn fetch(&mut self, address: u64, at: Cycle) -> Answer {
        self.note(format!("fetch {address:x} at {}", at.0), at)
    }

    fn load(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer {
        self.note(format!("load {bytes} {address:x} by {instruction:x} at {}", at.0), at)
    }

    fn store(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer {
        self.note(format!("store {bytes} {address:x} by {instruction:x} at {}", at.0), at)
    }

    fn prefetch(&mut self, address: u64, instruction: u64, at: Cycle) {
        self.note(format!("prefetch {address:x} by {instruction:x} at {}", at.0), at);
    }
}

fn sample() -> Program {
    let mut program = Program::default();
    let prefetch = Instruction { j: 5, ..Instruction::new(Op::Preld) };
    let block = program.block_at(
        0x103c,
        &[
            op(Op::LdW, 4, 5, 0),
            op(Op::AddiD, 4, 4, 0),
            op(Op::Xvst, 4, 5, 0),
            prefetch,
            op(Op::AmcasD, 4, 5, 6),
        ],
    );
    program.run(block, &[0x2000, 0x3000, 0x4000, 0x5000]);
    program
}

#[test]
fn every_line_and_access_reaches_memory_in_program_order() {
    let (program, mut log) = (sample(), Log::default());
    let mut model = model(Counting, &[]);
    assert_eq!(program.cycles(&mut model, &mut log), 5);
    let expected = [
        "fetch 103c at 0",
        "fetch 1040 at 0",
        "load 4 2000 by 103c at 0",
        "store 32 3000 by 1044 at 2",
        "prefetch 4000 by 1048 at 3",
        "store 8 5000 by 104c at 4",
    ];
    assert_eq!(log.0, expected);
}

#[test]
fn a_run_stopped_in_the_middle_counts_executed_instructions() {
    let mut program = sample();
    let block = longma_trace::BlockNumber(0);
    program.trace.push(&Record { block, executed: 2, addresses: &[0x2000] });
    let mut model = model(Counting, &[]);
    program.cycles(&mut model, &mut Log::default());
    assert_eq!(model.instructions(), 7);
    let mut statistics = Statistics::default();
    model.statistics(&mut statistics, "core0").unwrap();
    let value = |name: &str| statistics.get(name).map(|s| s.value.clone());
    let count = |n| {
        let mut other = Statistics::default();
        other.count("x", n, "", "").unwrap();
        other.get("x").map(|s| s.value.clone())
    };
    assert_eq!(value("core0.class.load"), count(2));
    assert_eq!(value("core0.class.store"), count(1));
    assert_eq!(value("core0.class.alu"), count(2));
    assert_eq!(value("core0.data.l2"), count(4), "a prefetch does not count as a miss");
}

#[test]
fn time_advances_one_cycle_per_instruction_and_can_be_skipped() {
    let mut model = model(Counting, &[]);
    sample().cycles(&mut model, &mut Log::default());
    model.advance_to(Cycle(100));
    model.advance_to(Cycle(50));
    assert_eq!(model.now(), Cycle(100));
    model.reset();
    assert_eq!((model.now(), model.instructions()), (Cycle(100), 0));
}
