//! A reference core, written for clarity: it simulates cycle by cycle and keeps complete lists. `comparison.rs`
//! compares its stages of each instruction with those of the timing models. It supports no calls, returns or indirect
//! jumps, and predicts conditional branches statically.
//!
//! Source: the stages of Hennessy and Patterson, chapter 3 and appendix C, as named in `docs/src/reference/levels.md`.

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

/// Cache line length, bytes.
const LINE_BYTES: u64 = 64;

/// A register file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    Integer,
    Float,
}

/// The memory access of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Nothing,
    Load,
    Store,
    /// Atomic read-modify-write, after all older instructions have retired.
    Atomic,
    /// An atomic read-modify-write that is a full barrier.
    AtomicBarrier,
    /// No access, but other accesses do not pass it.
    Barrier,
}

/// A kind of instruction and its use of the core.
#[derive(Debug)]
pub struct Operation {
    pub op: Op,
    /// Cycles from issue to the issue of a dependent operation; not used for loads (see [`Sizes::load_latency`]).
    pub latency: u64,
    /// Cycles for which the operation occupies its unit.
    pub interval: u64,
    /// The file of its registers.
    pub file: File,
    /// Units that execute it, as indices into [`MACHINE_UNITS`].
    pub units: &'static [usize],
    pub access: Access,
    pub bytes: u64,
}

/// The units of every core in these tests, in the format of a machine file. [`Operation::units`] refers to them.
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

/// The operations of random programs, with latencies of the 3A5000's machine file.
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

/// The first operations, which are pipelined.
pub const PIPELINED: usize = 15;

/// The conditional branch at the end of some blocks.
pub static BRANCH: Operation = of(Op::Beq, Integer, &[0, 1], 1, 1);

/// When a load may pass older stores with unknown addresses. Predictors have their own tests.
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
    /// Sizes of the integer, floating-point and memory queues.
    pub issue_queue_entries: [u64; 3],
    pub mispredict: u64,
    /// Latency of a forwarded load, and the minimum latency of other loads.
    pub load_latency: u64,
    pub loads: Loads,
}

/// An executed instruction.
#[derive(Clone, Copy, Debug)]
pub struct Executed {
    pub operation: &'static Operation,
    pub pc: u64,
    /// The registers that it reads and writes.
    pub reads: [Option<(File, u8)>; 2],
    pub writes: Option<(File, u8)>,
    /// The address it accesses, if any.
    pub address: u64,
    /// Whether it is the first of a block.
    pub begins_block: bool,
    /// For a branch: its target, and whether it was taken.
    pub branch: Option<(u64, bool)>,
    /// Cost of the exceptions that refill the translations of the instruction's page and of the accessed page, cycles;
    /// 0 without an exception.
    pub refill_fetch: u64,
    pub refill_access: u64,
}

impl Executed {
    /// Index of its issue queue.
    fn queue(&self) -> usize {
        match (self.operation.access, self.operation.file) {
            (Nothing | Barrier, Integer) => 0,
            (Nothing | Barrier, Float) => 1,
            _ => 2,
        }
    }

    /// Returns whether it must wait for older barriers.
    fn is_ordered(&self) -> bool {
        self.operation.access != Nothing
    }

    fn is_load(&self) -> bool {
        self.operation.access == Load
    }

    /// Returns whether it writes memory.
    fn is_store(&self) -> bool {
        matches!(self.operation.access, Store | Atomic | AtomicBarrier)
    }

    /// Returns whether both access a common byte.
    fn overlaps(&self, other: &Self) -> bool {
        self.address < other.address + other.operation.bytes
            && other.address < self.address + self.operation.bytes
    }

    /// Number of lookups in the first-level cache, one per line.
    fn looks(&self) -> u64 {
        let bytes = self.operation.bytes.max(1);
        (self.address + bytes - 1) / LINE_BYTES - self.address / LINE_BYTES + 1
    }

    fn is_atomic(&self) -> bool {
        matches!(self.operation.access, Atomic | AtomicBarrier)
    }

    /// Returns whether younger accesses must wait for its completion.
    fn is_barrier(&self) -> bool {
        matches!(self.operation.access, AtomicBarrier | Barrier)
    }
}

/// The stages of an instruction; `None` if not decided yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    pub dispatched: Option<u64>,
    pub issued: Option<u64>,
    /// Its result is available.
    pub done: Option<u64>,
    pub retired: Option<u64>,
    /// Its store leaves for the cache.
    pub left: Option<u64>,
    /// Its store is in the cache.
    pub drained: Option<u64>,
}

/// Returns whether `event_cycle` has happened in `cycle` or earlier.
fn happened(event_cycle: Option<u64>, cycle: u64) -> bool {
    event_cycle.is_some_and(|when| when <= cycle)
}

/// When the handler of an exception taken in cycle `taken` ends. The exception adds `cycles` to the time of a lone
/// instruction, of which `refetch` are spent on reaching the same stage again.
fn trap_ends(taken: u64, refetch: u64, cycles: u64) -> u64 {
    taken + cycles.saturating_sub(refetch)
}

/// The state of a core.
struct Window<'a> {
    sizes: Sizes,
    program: &'a [Executed],
    stages: Vec<Stages>,
    /// For each unit, when it is free.
    unit_free: [u64; 7],
    /// Whether the page of each access has a translation.
    translated: Vec<bool>,
}

impl<'a> Window<'a> {
    fn new(sizes: Sizes, program: &'a [Executed]) -> Self {
        Self {
            sizes,
            program,
            stages: vec![Stages::default(); program.len()],
            unit_free: [0; 7],
            translated: program.iter().map(|executed| executed.refill_access == 0).collect(),
        }
    }

    /// The operation whose result instruction `reader` reads in `register`, if any.
    fn writer(&self, reader: usize, register: (File, u8)) -> Option<usize> {
        self.program[..reader].iter().rposition(|executed| executed.writes == Some(register))
    }

    /// The first cycle in which the address of store `index` is known to loads: its operand is available, and it was
    /// dispatched in an earlier cycle.
    fn known(&self, index: usize) -> Option<u64> {
        let executed = &self.program[index];
        let base = if executed.is_atomic() { executed.reads[0] } else { executed.reads[1] };
        let base = base.and_then(|register| self.writer(index, register));
        let ready = base.map_or(Some(0), |writer| self.stages[writer].done)?;
        Some(ready.max(self.stages[index].dispatched? + 1))
    }

    /// Returns whether all operands of the instruction are available.
    fn has_operands(&self, index: usize, cycle: u64) -> bool {
        let writers = self.program[index].reads.iter().flatten().filter_map(|read| self.writer(index, *read));
        writers.into_iter().all(|writer| happened(self.stages[writer].done, cycle))
    }

    /// Returns whether no older barrier delays the instruction.
    fn passes_barriers(&self, index: usize, cycle: u64) -> bool {
        let mut older = self.program[..index].iter().zip(&self.stages);
        !self.program[index].is_ordered()
            || older.all(|(executed, stages)| !executed.is_barrier() || happened(stages.done, cycle))
    }

    /// Occupies the highest-numbered free unit for the instruction. Returns false if there is none.
    fn take_unit(&mut self, index: usize, cycle: u64) -> bool {
        let executed = &self.program[index];
        let free = executed.operation.units.iter().rev().find(|unit| self.unit_free[**unit] <= cycle);
        let takes = executed.operation.interval + executed.looks() - 1;
        free.inspect(|unit| self.unit_free[**unit] = cycle + takes).is_some()
    }

    /// Number of queue entries in use at `cycle`. Entries are freed in program order.
    fn queued(
        &self,
        cycle: u64,
        takes: impl Fn(&Executed) -> bool,
        release: impl Fn(&Executed, &Stages) -> Option<u64>,
    ) -> u64 {
        let all = self.program.iter().zip(&self.stages);
        let entries = all.filter(|(executed, stages)| takes(executed) && stages.dispatched.is_some());
        entries.skip_while(|(executed, stages)| happened(release(executed, stages), cycle)).count() as u64
    }
}
