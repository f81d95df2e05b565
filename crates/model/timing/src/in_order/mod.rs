//! The in-order core: instructions issue in program order, up to the core's width per cycle, wait at issue for operands
//! and resources, and complete in program order. A load that misses stalls only the first instruction that uses its
//! data.
//!
//! Source: a scoreboard as in Hennessy and Patterson, appendix C; completion as in `window.rs`.

mod accesses;
mod replay;
mod schedules;
mod shapes;
mod window;

use longma_memory::{MemoryPort, Source, translation::Side};
use longma_sim::Cycle;
use longma_topology::parts;
use longma_trace::Record;

use crate::{
    accesses::DataAccess,
    front_end::{self, AccessSite, BackEnd, BlockEntry, FetchOptions, FrontEnd, TRAP_CYCLES},
    instruction_counts::InstructionLog,
    model_error::ModelError,
    operations::{Kind, MicroOperation},
    parameters::Parameters,
    pipeline::PipelineLog,
    program::{BlockCounts, Entry, Program},
    registers,
    stack::{Cause, CpiStack},
    timeline::Timeline,
    units::Units,
    value::Value,
};
use accesses::QueuedAccesses;
use replay::{PerformedAccesses, PipelineState, Recording};
use schedules::Schedules;
use window::Window;

/// Cycles from dispatch, at which an instruction allocates its window and queue entries, to issue.
const DISPATCH_CYCLES: u64 = 1;

/// An in-order core.
#[derive(Debug)]
pub(crate) struct InOrder {
    parameters: Parameters,
    pub front: FrontEnd,
    pub program: Program,
    /// The issue slots.
    pub issued: Timeline,
    values: [Value; registers::SLOTS],
    units: Units,
    accesses: QueuedAccesses,
    window: Window,
    /// Completion slot of the last instruction, counted from time zero. As many instructions complete per cycle as
    /// issue.
    completed: u64,
    width: u64,
    /// Completion of the last barrier: no later access issues before it.
    memory_floor: u64,
    /// Result of the last atomic operation: no later instruction issues before it.
    atomic_result: Value,
    last_result: u64,
    /// The cycle from which the last access occupied its queue entry.
    queues: u64,
    /// Whether the timing of repeated blocks is memoized.
    pub repeats: bool,
    schedules: Schedules,
    state: PipelineState,
    recording: Recording,
    performed: PerformedAccesses,
    /// Log of the first instructions' stages.
    pub log: PipelineLog,
}

impl InOrder {
    /// Creates a core with an empty pipeline and untrained predictors.
    ///
    /// # Errors
    /// If the machine file's parameters are invalid.
    pub fn new(core: &parts::Core, options: FetchOptions) -> Result<Self, ModelError> {
        let parameters = Parameters::resolve(core)?;
        let width = parameters.dispatch_width.min(u64::from(parameters.issue_width));
        let load_cycles = parameters.class(parts::Operation::Load).latency_cycles.into();
        Ok(Self {
            front: FrontEnd::new(core, &parameters, options, 0)?,
            program: Program::default(),
            issued: Timeline::new(width),
            values: [Value::EARLY; _],
            units: Units::new(),
            accesses: QueuedAccesses::new(&parameters, load_cycles, options.line_bytes),
            window: Window::new(parameters.completion_entries, width),
            completed: 0,
            width,
            memory_floor: 0,
            atomic_result: Value::computed(0),
            last_result: 0,
            queues: 0,
            repeats: true,
            schedules: Schedules::default(),
            state: PipelineState { shape: None, is_materialized: true },
            recording: Recording::default(),
            performed: PerformedAccesses::default(),
            log: PipelineLog::default(),
            parameters,
        })
    }

    /// Waits for the operands of an operation, one after another, so that each lost cycle is charged to its cause.
    #[inline]
    fn wait_for_values(&mut self, operation: &MicroOperation) {
        let ready_of = |source: usize| self.values[registers::slot(operation.sources[source])].ready;
        let [a, b, c] = [ready_of(0), ready_of(1), ready_of(2)];
        if a.max(b).max(c) <= self.issued.cycle() {
            return;
        }
        for register in operation.sources {
            let value = self.values[registers::slot(register)];
            if value.ready > self.issued.cycle() {
                self.issued.wait_for_memory(value.ready, value.cause, value.translation_cycles);
            }
        }
    }

    /// Waits for a free entry of the queue that an operation needs, and, if it orders accesses, for memory.
    #[inline]
    fn wait_for_queues(&mut self, kind: Kind) {
        self.issued.wait(self.memory_floor, Cause::Synchronization);
        self.queues = self.issued.cycle();
        match kind {
            Kind::Plain => {}
            Kind::Load | Kind::Prefetch => self.wait_for_entry(self.accesses.loads.free_at()),
            Kind::Store => {
                let free = self.accesses.stores().free_at();
                self.wait_for_entry(free);
            }
            Kind::Atomic | Kind::AtomicBarrier | Kind::Barrier => {
                let complete = self.accesses.in_flight.complete_at().max(self.emptied());
                self.issued.wait(complete, Cause::Synchronization);
                if kind != Kind::Barrier {
                    let free = self.accesses.stores().free_at();
                    self.wait_for_entry(free);
                }
            }
            Kind::Serialize => self.issued.wait(self.emptied(), Cause::Synchronization),
        }
    }

    /// Waits for a free window entry.
    #[inline]
    fn wait_for_window(&mut self) {
        let free = self.window.free_at();
        if free > self.issued.cycle() {
            self.recording.is_special = true;
            self.issued.wait(free, Cause::Structural);
        }
    }

    /// Waits for a queue entry that is free at `cycle`, unless the access already has one.
    #[inline]
    fn wait_for_entry(&mut self, cycle: u64) {
        if cycle > self.issued.cycle() && !self.performed.knows_next() {
            self.recording.is_special = true;
            self.issued.wait(cycle, Cause::Structural);
        }
    }

    /// Executes an operation of any kind. `access` contains its memory access, if it has one, and the cycle in which it
    /// issues.
    #[inline]
    fn execute(
        &mut self,
        operation: &MicroOperation,
        access: DataAccess,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) -> Value {
        let DataAccess { site, at, .. } = access;
        let completed = at + u64::from(operation.latency_cycles);
        match operation.kind {
            Kind::Plain => Value::computed(completed),
            Kind::Barrier => {
                self.memory_floor = self.memory_floor.max(completed);
                Value::computed(completed)
            }
            Kind::Load => match self.performed.take() {
                Some(value) => value,
                None => self.accesses.load(access, self.completed / self.width, counts, port),
            },
            Kind::Store => {
                if self.performed.take().is_none() {
                    let store = DataAccess { at: completed, ..access };
                    self.accesses.store(store, self.completed / self.width, counts, port);
                }
                Value::computed(completed)
            }
            Kind::Atomic | Kind::AtomicBarrier => self.access_atomically(access, counts, port),
            Kind::Prefetch => {
                port.prefetch(site.address, site.pc, Cycle(at));
                Value::computed(completed)
            }
            Kind::Serialize => {
                self.front.redirect(completed, Cause::Synchronization);
                Value::computed(completed)
            }
        }
    }

    /// Handles an access that issued at `at` and missed in the TLB. When all older instructions are complete, an
    /// exception refills the TLB and the access is fetched again. Returns the cycle of its second issue.
    #[cold]
    fn reissue(&mut self, at: u64, (units, interval): (u32, u16), pc: u64, cycles: u32) -> u64 {
        let trapped_at = (at + TRAP_CYCLES).max(self.emptied());
        self.front.trap(pc, trapped_at, 0, cycles);
        self.wait_for_fetch();
        self.units.issue(self.issued.next(), units, interval)
    }

    fn access_atomically(
        &mut self,
        access: DataAccess,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) -> Value {
        let DataAccess { site: AccessSite { pc, address }, bytes, at } = access;
        let answer = port.store(address, bytes, pc, Cycle(at));
        counts.note(answer.source);
        let ready = answer.ready.0.max(at) + 1;
        self.accesses.atomic(access, ready);
        let hit = answer.source == Source::Level1;
        let cause = if hit { Cause::Synchronization } else { Cause::of(answer.source) };
        let value = Value { ready, cause, translation_cycles: answer.translation_cycles };
        self.atomic_result = value;
        value
    }

    /// The earliest cycle in which the next instruction can issue. While the core waits for the line of an atomic
    /// operation, this is the end of the wait, so that other cores that request the line in the meantime are simulated
    /// first.
    pub fn now(&self) -> u64 {
        self.issued.now().max(self.atomic_result.ready)
    }

    /// Loads that got their data from a store in flight.
    pub fn forwarded(&self) -> u64 {
        self.accesses.in_flight.forwarded
    }

    /// Resets the counts. Predictors stay trained, and time continues.
    pub fn clear_counts(&mut self) {
        self.program.clear_counts();
        self.log.counts.iter_mut().for_each(InstructionLog::clear);
        self.issued.clear_counts();
        self.front.clear_counts();
        self.accesses.in_flight.forwarded = 0;
    }

    /// Waits until all issued instructions are complete and every store is in the cache.
    pub fn complete(&mut self) {
        self.materialize();
        for value in &self.values {
            self.issued.wait_for_memory(value.ready, value.cause, value.translation_cycles);
        }
        let complete = self.emptied().max(self.accesses.in_flight.complete_at());
        self.front.advance_to(&mut self.issued, complete, Cause::Structural);
    }

    /// Delays the program until `cycle`, for `cause`.
    pub fn advance_to(&mut self, cycle: u64, cause: Cause) {
        self.materialize();
        self.front.advance_to(&mut self.issued, cycle, cause);
    }

    /// Delays the core until `cycle` without counting the time in between.
    pub fn pass_to(&mut self, cycle: u64) {
        self.materialize();
        self.front.pass_to(&mut self.issued, cycle);
    }
}

impl BackEnd for InOrder {
    fn front(&mut self) -> &mut FrontEnd {
        &mut self.front
    }

    fn program(&mut self) -> &mut Program {
        &mut self.program
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn progress(&self) -> [u64; 2] {
        [self.issued.cycle(), self.emptied()]
    }

    fn emptied(&self) -> u64 {
        self.completed.saturating_sub(1) / self.width
    }

    fn position(&self) -> u64 {
        self.issued.position()
    }

    fn lost(&self) -> &CpiStack {
        self.issued.lost()
    }

    #[inline]
    fn run(&mut self, entry: &mut Entry, record: &Record<'_>, port: &mut impl MemoryPort) -> BlockEntry {
        let entered = front_end::begin(self, &entry.block, port);
        let block = &entry.block;
        let is_whole = usize::from(record.executed) == block.operations.len()
            && record.addresses.len() == block.accesses.len();
        let may_repeat = self.repeats & is_whole & block.is_simple & !self.log.observes();
        let cycle = self.issued.cycle();
        if may_repeat
            && self.memory_floor.max(self.atomic_result.ready) <= cycle
            && entry.lookup_credit.pays()
            && self.window.has_room(record.executed.into(), block.longest_cycles, cycle)
        {
            self.run_memoized(entry, record, port);
        } else {
            self.run_stepwise(entry, record, port);
        }
        entered
    }

    #[inline]
    fn wait_for_fetch(&mut self) {
        self.issued.wait(self.front.dispatchable(), self.front.cause);
    }

    #[inline]
    fn step(
        &mut self,
        operation: &MicroOperation,
        site: AccessSite,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) -> u64 {
        if self.atomic_result.ready > self.issued.cycle() {
            let Value { ready, cause, translation_cycles } = self.atomic_result;
            self.issued.wait_for_memory(ready, cause, translation_cycles);
        }
        self.wait_for_window();
        self.wait_for_values(operation);
        if operation.kind != Kind::Plain {
            self.wait_for_queues(operation.kind);
        }
        // The issue width needs no check here: it is no larger than the number of units.
        let mut interval = operation.interval_cycles;
        if operation.bytes > 0
            && operation.is_access()
            && self.accesses.in_flight.crosses(site.address, operation.bytes)
        {
            interval = interval.saturating_add(1);
            self.recording.is_special = true;
        }
        let mut at = self.units.issue(self.issued.next(), operation.units, interval);
        self.issued.wait(at, Cause::Execution);
        if operation.is_access() && !self.performed.knows_next() {
            let cycles = port.refill(Side::Data, site.address, operation.bytes.into());
            if cycles > 0 {
                at = self.reissue(at, (operation.units, interval), site.pc, cycles);
                self.issued.wait(at, Cause::Execution);
            }
        }
        self.issued.take();
        let value = if operation.kind == Kind::Plain {
            Value::computed(at + u64::from(operation.latency_cycles))
        } else {
            let access = DataAccess { site, bytes: operation.bytes.into(), at };
            let value = self.execute(operation, access, counts, port);
            if self.recording.is_open {
                self.recording.note(self.queues, at, value);
            }
            value
        };
        self.values[registers::slot(operation.destination)] = value;
        self.last_result = self.last_result.max(value.ready);
        self.window.take(at, value.ready);
        let slot = value.ready * self.width;
        self.completed = self.completed.max(slot) + 1;
        self.recording.completed = self.recording.completed.max(slot) + 1;
        value.ready
    }

    fn stages(&self, _resolved: u64) -> [u64; 3] {
        let issue = self.issued.cycle();
        [issue, issue, self.emptied()]
    }

    fn log(&mut self) -> &mut PipelineLog {
        &mut self.log
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use longma_loongarch::{Instruction, Op};
    use longma_memory::FixedLatency;
    use longma_topology::Machine;

    use super::*;
    use longma_trace::{BlockNumber, Trace, TracedBlock};

    #[test]
    fn a_loop_is_simulated_once_per_shape_and_then_replayed() {
        let machine = Machine::open("loongson-3a5000").unwrap();
        let core = machine.parts().cores.values().next().unwrap();
        let mut model = InOrder::new(core, FetchOptions::default()).unwrap();
        let load = Instruction { d: 12, j: 4, imm: 8, ..Instruction::new(Op::LdD) };
        let add = Instruction { d: 13, j: 12, k: 13, ..Instruction::new(Op::AddD) };
        let branch = Instruction { j: 13, imm: -8, ..Instruction::new(Op::Bnez) };
        let instructions: Arc<[_]> = [load, add, branch].into();
        let blocks = vec![TracedBlock { start: 0x1_0000, instructions }];
        let mut trace = Trace::default();
        for _ in 0..1000 {
            trace.push(&Record { block: BlockNumber(0), executed: 3, addresses: &[0x2_0008] });
        }
        front_end::drain(&mut model, &trace, &blocks, &mut FixedLatency { latency_cycles: 4 });
        assert!(!model.state.is_materialized, "the last run must be replayed");
        assert!(model.schedules.len() < 20, "{} schedules for a loop of one block", model.schedules.len());
    }
}
