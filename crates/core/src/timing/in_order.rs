//! The in-order core: instructions issue in program order, as many a cycle as the core is wide, and wait at issue for what they use.
//! Not blocking: a load that misses stalls the first instruction that uses its data. No wrong path.
//! Source: a scoreboard as in Hennessy and Patterson, appendix C.

use longma_memory::{MemoryPort, Source};
use longma_sim::Cycle;
use longma_topology::parts;

use super::{
    Blocks, ModelError,
    front_end::{self, BackEnd, FetchOptions, FrontEnd, Place},
    operations::{Kind, MicroOperation},
    parameters::Parameters,
    pipeline::PipelineLog,
    program::{BlockCounts, Program},
    queues::Entries,
    registers,
    stack::Cause,
    stores::{Found, Stores},
    timeline::Timeline,
    units::Units,
};
use crate::trace::Trace;

/// A register's value: when it can be used, and what makes it late.
#[derive(Clone, Copy, Debug)]
struct Value {
    ready: u64,
    cause: Cause,
    translation_cycles: u32,
}

/// An in-order core.
#[derive(Debug)]
pub(super) struct InOrder {
    parameters: Parameters,
    pub front: FrontEnd,
    pub program: Program,
    /// Issue.
    pub issued: Timeline,
    values: [Value; registers::PLACES],
    loads: Entries,
    store_buffer: Entries,
    stores: Stores,
    units: Units,
    last_access: u64,
    /// No access issues before it: the last atomic barrier's completion.
    memory_floor: u64,
    last_result: u64,
    last_drain: u64,
    load_cycles: u64,
    /// Loads that took their data from a store under way.
    pub forwarded: u64,
    /// The first instructions' stages, if asked for.
    pub log: PipelineLog,
}

impl InOrder {
    /// A core with nothing in flight and nothing learnt.
    ///
    /// # Errors
    /// The machine file's parameters are no core's.
    pub fn new(core: &parts::Core, options: FetchOptions) -> Result<Self, ModelError> {
        let parameters = Parameters::resolve(core)?;
        let width = parameters.dispatch_width.min(u64::from(parameters.issue_width));
        let value = Value { ready: 0, cause: Cause::Execution, translation_cycles: 0 };
        Ok(Self {
            front: FrontEnd::new(core, &parameters, options, 0)?,
            program: Program::default(),
            issued: Timeline::new(width),
            values: [value; _],
            loads: Entries::new(parameters.load_entries),
            store_buffer: Entries::new(parameters.store_entries),
            stores: Stores::new(),
            units: Units::new(),
            last_access: 0,
            memory_floor: 0,
            last_result: 0,
            last_drain: 0,
            load_cycles: parameters.class(parts::Operation::Load).latency_cycles.into(),
            forwarded: 0,
            log: PipelineLog::default(),
            parameters,
        })
    }

    /// Runs what the trace holds.
    pub fn drain(&mut self, trace: &Trace, blocks: &impl Blocks, port: &mut impl MemoryPort) {
        // The program is taken out so that a block and the pipeline can be borrowed side by side.
        let mut program = std::mem::take(&mut self.program);
        front_end::drain(self, &mut program, trace, blocks, port);
        self.program = program;
    }

    /// Waits for the values an operation uses, one after another, so that each cycle has its cause.
    #[inline]
    fn wait_for_values(&mut self, operation: &MicroOperation) {
        let [a, b, c] = operation.sources.map(|register| self.values[registers::place(register)].ready);
        if a.max(b).max(c) <= self.issued.cycle() {
            return;
        }
        for register in operation.sources {
            let value = self.values[registers::place(register)];
            if value.ready > self.issued.cycle() {
                self.issued.wait_for_memory(value.ready, value.cause, value.translation_cycles);
            }
        }
    }

    /// Waits for a free entry of the queue an operation needs, and for memory if it orders accesses.
    #[inline]
    fn wait_for_queues(&mut self, kind: Kind) {
        self.issued.wait(self.memory_floor, Cause::Synchronization);
        match kind {
            Kind::Plain => {}
            Kind::Load | Kind::Prefetch => self.issued.wait(self.loads.free_at(), Cause::Structural),
            Kind::Store => self.issued.wait(self.store_buffer.free_at(), Cause::Structural),
            Kind::Atomic | Kind::AtomicBarrier | Kind::Barrier => {
                let cycle = self.last_access.max(self.stores.last_drained());
                self.issued.wait(cycle, Cause::Synchronization);
            }
            Kind::Serialize => self.issued.wait(self.last_result, Cause::Synchronization),
        }
    }

    #[inline]
    fn execute(
        &mut self,
        operation: &MicroOperation,
        at: u64,
        Place { pc, address }: Place,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) -> Value {
        let done = at + u64::from(operation.latency_cycles);
        let plain = Value { ready: done, cause: Cause::Execution, translation_cycles: 0 };
        let bytes = operation.bytes.into();
        match operation.kind {
            Kind::Plain => plain,
            Kind::Load => {
                let value = self.load(at, operation, Place { pc, address }, counts, port);
                self.loads.take_until(value.ready);
                self.last_access = self.last_access.max(value.ready);
                value
            }
            Kind::Store => {
                // One store a cycle goes from the buffer to the cache, in program order.
                let drain = (self.last_drain + 1).max(done);
                let answer = port.store(address, bytes, pc, Cycle(drain));
                counts.note(answer.source);
                self.last_drain = drain;
                let drained = answer.ready.0.max(self.stores.last_drained());
                self.stores.push(address, bytes, done, drained);
                self.store_buffer.take_until(drained);
                plain
            }
            Kind::Atomic | Kind::AtomicBarrier => {
                let answer = port.store(address, bytes, pc, Cycle(at));
                counts.note(answer.source);
                let ready = answer.ready.0.max(at) + 1;
                self.last_access = self.last_access.max(ready);
                if operation.kind == Kind::AtomicBarrier {
                    self.memory_floor = ready;
                }
                let hit = answer.source == Source::Level1;
                let cause = if hit { Cause::Synchronization } else { Cause::of(answer.source) };
                Value { ready, cause, translation_cycles: answer.translation_cycles }
            }
            Kind::Prefetch => {
                port.prefetch(address, pc, Cycle(at));
                plain
            }
            Kind::Barrier => plain,
            Kind::Serialize => {
                self.front.redirect(done, Cause::Synchronization);
                plain
            }
        }
    }

    #[inline]
    fn load(
        &mut self,
        at: u64,
        operation: &MicroOperation,
        Place { pc, address }: Place,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) -> Value {
        let bytes = operation.bytes.into();
        let from = match self.stores.find(address, bytes, at) {
            Found::Data(data) => {
                self.forwarded += 1;
                let ready = at.max(data) + self.load_cycles;
                return Value { ready, cause: Cause::Level1, translation_cycles: 0 };
            }
            Found::Part(drained) => at.max(drained),
            Found::Nothing => at,
        };
        let answer = port.load(address, bytes, pc, Cycle(from));
        counts.note(answer.source);
        let translation_cycles = answer.translation_cycles;
        Value { ready: answer.ready.0, cause: Cause::of(answer.source), translation_cycles }
    }

    /// Nothing of the program's runs before `cycle`, for `cause`.
    pub fn advance_to(&mut self, cycle: u64, cause: Cause) {
        self.front.advance_to(&mut self.issued, cycle, cause);
    }

    /// Nothing runs before `cycle`, and the time in between is not counted.
    pub fn pass_to(&mut self, cycle: u64) {
        self.front.pass_to(&mut self.issued, cycle);
    }
}

impl BackEnd for InOrder {
    fn front(&mut self) -> &mut FrontEnd {
        &mut self.front
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn progress(&self) -> [u64; 2] {
        [self.issued.cycle(); 2]
    }

    fn position(&self) -> u64 {
        self.issued.position()
    }

    #[inline]
    fn wait_for_fetch(&mut self) {
        self.issued.wait(self.front.dispatchable(), self.front.cause);
    }

    #[inline]
    fn step(
        &mut self,
        operation: &MicroOperation,
        place: Place,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) -> u64 {
        self.wait_for_values(operation);
        if operation.kind != Kind::Plain {
            self.wait_for_queues(operation.kind);
        }
        // The width bounds what a cycle issues already: it is never more than the units' together.
        let at = self.units.issue(self.issued.next(), operation.units, operation.interval_cycles);
        self.issued.wait(at, Cause::Execution);
        self.issued.take();
        let value = if operation.kind == Kind::Plain {
            let ready = at + u64::from(operation.latency_cycles);
            Value { ready, cause: Cause::Execution, translation_cycles: 0 }
        } else {
            self.execute(operation, at, place, counts, port)
        };
        self.values[registers::place(operation.destination)] = value;
        self.last_result = self.last_result.max(value.ready);
        value.ready
    }

    fn stages(&self, resolved: u64) -> [u64; 3] {
        let issue = self.issued.cycle();
        [issue, issue, resolved]
    }

    fn log(&mut self) -> &mut PipelineLog {
        &mut self.log
    }
}
