//! A reference core, written to be read: cycle by cycle, in lists that keep everything and forget nothing. What the timing models say of
//! an instruction, stage by stage, is compared with what it says (`comparison.rs`).
//! Not fast, and no calls, returns or indirect jumps; conditional branches are predicted as going back or not.
//! Source: the stages of Hennessy and Patterson, chapters 3 and appendix C, as `docs/src/design/timing.md` names them.

mod bounds;
mod comparison;
mod front_end;
mod in_order;
pub mod memory;
mod out_of_order;
mod random;

use longma_loongarch::Op;

use Access::*;
use File::*;

/// Bytes of a line of the caches.
const LINE_BYTES: u64 = 64;

/// A register file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    Integer,
    Float,
}

/// What an operation does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Nothing,
    Load,
    Store,
    /// Reads and writes at once, when everything older has retired.
    Atomic,
    /// The same, and a barrier too.
    AtomicBarrier,
    /// Nothing, but accesses do not pass it.
    Barrier,
}

/// A kind of instruction, and what a core does with it.
#[derive(Debug)]
pub struct Operation {
    pub op: Op,
    /// From issue to a dependent operation's issue; not of a load (see [`Sizes::load_latency`]).
    pub latency: u64,
    /// Cycles that it keeps its unit.
    pub interval: u64,
    /// The file of its registers.
    pub file: File,
    /// The units that execute it, by their number in [`MACHINE_UNITS`].
    pub units: &'static [usize],
    pub access: Access,
    pub bytes: u64,
}

/// The units of every machine here, as a machine file names them: which are whose tells [`Operation::units`].
pub const MACHINE_UNITS: &str = r#"
[[cores.la464.units]]
name = "integer"
count = 2
operations = ["integer", "branch"]
[[cores.la464.units]]
name = "multiplier"
count = 1
operations = ["integer", "integer-multiply", "integer-divide"]
[[cores.la464.units]]
name = "vector"
count = 2
width = "256 bit"
operations = ["float-add", "float-multiply", "float-fma", "float-divide", "float-convert", "vector-integer", "vector-float"]
[[cores.la464.units]]
name = "memory"
count = 2
width = "256 bit"
operations = ["load", "store"]
"#;

const fn of(op: Op, file: File, units: &'static [usize], latency: u64, interval: u64) -> Operation {
    Operation { op, latency, interval, file, units, access: Nothing, bytes: 0 }
}

const fn access(op: Op, file: File, access: Access, bytes: u64, latency: u64) -> Operation {
    Operation { op, latency, interval: 1, file, units: &[5, 6], access, bytes }
}

/// What programs are made of. Latencies are those of the 3A5000's machine file.
pub static OPERATIONS: [Operation; 17] = [
    of(Op::AddD, Integer, &[0, 1, 2], 1, 1),
    of(Op::MulD, Integer, &[2], 4, 1),
    of(Op::FaddD, Float, &[3, 4], 5, 1),
    of(Op::VaddD, Float, &[3, 4], 1, 1),
    access(Op::LdD, Integer, Load, 8, 4),
    access(Op::LdW, Integer, Load, 4, 4),
    access(Op::FldD, Float, Load, 8, 4),
    access(Op::Vld, Float, Load, 16, 4),
    access(Op::StD, Integer, Store, 8, 1),
    access(Op::StW, Integer, Store, 4, 1),
    access(Op::StB, Integer, Store, 1, 1),
    access(Op::Vst, Float, Store, 16, 1),
    access(Op::AmaddD, Integer, Atomic, 8, 1),
    access(Op::AmaddDbD, Integer, AtomicBarrier, 8, 1),
    Operation { access: Barrier, ..of(Op::Dbar, Integer, &[0, 1, 2], 1, 1) },
    of(Op::DivD, Integer, &[2], 12, 8),
    of(Op::FdivD, Float, &[3, 4], 20, 16),
];

/// So many of them are pipelined: their units take another one in the next cycle.
pub const PIPELINED: usize = 15;

/// The conditional branch at the end of some blocks.
pub static BRANCH: Operation = of(Op::Beq, Integer, &[0, 1], 1, 1);

/// When a load may pass older stores whose addresses are not known. Predictors have tests of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loads {
    Ideal,
    Conservative,
    Blind,
}

/// A core's sizes. The names are those of machine files.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub fetch_width: u64,
    pub decode_width: u64,
    pub issue_width: u64,
    pub retire_width: u64,
    pub rob_entries: u64,
    pub load_queue_entries: u64,
    pub store_queue_entries: u64,
    pub int_registers: u64,
    pub fp_registers: u64,
    /// Of the integer, floating-point and memory queues.
    pub issue_queue_entries: [u64; 3],
    pub mispredict: u64,
    /// What a load takes from a store, and at least from memory.
    pub load_latency: u64,
    pub loads: Loads,
}

/// An instruction that a program executed.
#[derive(Clone, Copy, Debug)]
pub struct Executed {
    pub operation: &'static Operation,
    pub pc: u64,
    /// The registers that it reads and writes.
    pub reads: [Option<(File, u8)>; 2],
    pub writes: Option<(File, u8)>,
    /// What it accesses, if anything.
    pub address: u64,
    /// It is the first one of a block.
    pub begins_block: bool,
    /// Of a branch: where it goes if it is taken, and whether it was.
    pub branch: Option<(u64, bool)>,
    /// What an exception adds that has to bring the translation of the page that it lies in, and of the one that it accesses, cycles; 0
    /// without an exception.
    pub refill_fetch: u64,
    pub refill_access: u64,
}

impl Executed {
    /// The issue queue that it waits in.
    fn queue(&self) -> usize {
        match (self.operation.access, self.operation.file) {
            (Nothing | Barrier, Integer) => 0,
            (Nothing | Barrier, Float) => 1,
            _ => 2,
        }
    }

    /// True if it must not issue before older barriers are complete.
    fn is_ordered(&self) -> bool {
        self.operation.access != Nothing
    }

    fn is_load(&self) -> bool {
        self.operation.access == Load
    }

    /// True if it writes memory.
    fn is_store(&self) -> bool {
        matches!(self.operation.access, Store | Atomic | AtomicBarrier)
    }

    /// True if both access some byte.
    fn overlaps(&self, other: &Self) -> bool {
        self.address < other.address + other.operation.bytes
            && other.address < self.address + self.operation.bytes
    }

    /// How often it looks into the first-level cache: once for each line.
    fn looks(&self) -> u64 {
        let bytes = self.operation.bytes.max(1);
        (self.address + bytes - 1) / LINE_BYTES - self.address / LINE_BYTES + 1
    }

    fn is_atomic(&self) -> bool {
        matches!(self.operation.access, Atomic | AtomicBarrier)
    }

    /// True if nothing younger may access memory before it is complete.
    fn is_barrier(&self) -> bool {
        matches!(self.operation.access, AtomicBarrier | Barrier)
    }
}

/// When an instruction went through a core; a field is not known before it is decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    pub dispatched: Option<u64>,
    pub issued: Option<u64>,
    /// Its value is there.
    pub done: Option<u64>,
    pub retired: Option<u64>,
    /// What it stored is on its way to the cache.
    pub left: Option<u64>,
    /// What it stored is in the cache.
    pub drained: Option<u64>,
}

/// True if `what` has happened in `cycle` at the latest.
fn happened(what: Option<u64>, cycle: u64) -> bool {
    what.is_some_and(|when| when <= cycle)
}

/// When the handler of an exception is over that was taken in cycle `taken`, if it adds `cycles` to what a lone instruction takes, `again` of
/// which are the way to where it was.
fn trap_ends(taken: u64, again: u64, cycles: u64) -> u64 {
    taken + cycles.saturating_sub(again)
}

/// Everything that a core keeps of a program.
struct Window<'a> {
    sizes: Sizes,
    program: &'a [Executed],
    stages: Vec<Stages>,
    /// When each unit takes the next operation.
    unit_free: [u64; 7],
    /// Accesses whose page has a translation, by an exception or without.
    translated: Vec<bool>,
}

impl<'a> Window<'a> {
    fn new(sizes: Sizes, program: &'a [Executed]) -> Self {
        Self {
            sizes,
            program,
            stages: vec![Stages::default(); program.len()],
            unit_free: [0; 7],
            translated: program.iter().map(|it| it.refill_access == 0).collect(),
        }
    }

    /// The operation that writes what instruction `reader` reads in `register`, if the program does.
    fn writer(&self, reader: usize, register: (File, u8)) -> Option<usize> {
        self.program[..reader].iter().rposition(|it| it.writes == Some(register))
    }

    /// The first cycle in which loads see where the store `index` stores to: its address is there, and it was dispatched in an earlier one.
    fn known(&self, index: usize) -> Option<u64> {
        let it = &self.program[index];
        let base = if it.is_atomic() { it.reads[0] } else { it.reads[1] };
        let base = base.and_then(|register| self.writer(index, register));
        let ready = base.map_or(Some(0), |writer| self.stages[writer].done)?;
        Some(ready.max(self.stages[index].dispatched? + 1))
    }

    /// True if everything that the instruction reads is there.
    fn has_operands(&self, index: usize, cycle: u64) -> bool {
        let writers = self.program[index].reads.iter().flatten().filter_map(|read| self.writer(index, *read));
        writers.into_iter().all(|writer| happened(self.stages[writer].done, cycle))
    }

    /// True if no barrier that is older keeps the instruction from memory.
    fn passes_barriers(&self, index: usize, cycle: u64) -> bool {
        let mut older = self.program[..index].iter().zip(&self.stages);
        !self.program[index].is_ordered()
            || older.all(|(it, stages)| !it.is_barrier() || happened(stages.done, cycle))
    }

    /// Takes a free unit for the instruction, if there is one: that with the highest number.
    fn take_unit(&mut self, index: usize, cycle: u64) -> bool {
        let it = &self.program[index];
        let free = it.operation.units.iter().rev().find(|unit| self.unit_free[**unit] <= cycle);
        let takes = it.operation.interval + it.looks() - 1;
        free.inspect(|unit| self.unit_free[**unit] = cycle + takes).is_some()
    }

    /// Entries of a queue that are taken at `cycle`: they are given back in program order.
    fn queued(
        &self,
        cycle: u64,
        takes: impl Fn(&Executed) -> bool,
        release: impl Fn(&Executed, &Stages) -> Option<u64>,
    ) -> u64 {
        let all = self.program.iter().zip(&self.stages);
        let entries = all.filter(|(it, stages)| takes(it) && stages.dispatched.is_some());
        entries.skip_while(|(it, stages)| happened(release(it, stages), cycle)).count() as u64
    }
}
