//! The out-of-order core: computes dispatch, issue, completion and retirement of each instruction from the resources it
//! waits for. It processes one instruction at a time in program order, not cycle by cycle. Partial registers are not
//! modelled.
//!
//! Source: advancing the window with max() is from ZSim (Sanchez and Kozyrakis, ISCA 2013); the stages are those of
//! Hennessy and Patterson.

use longma_memory::{MemoryPort, Source, translation::Side};
use longma_sim::Cycle;
use longma_topology::parts;

use crate::{
    accesses::{Accesses, DataAccess},
    calendar::Calendar,
    front_end::{AccessSite, BackEnd, FetchOptions, FrontEnd, TRAP_CYCLES},
    instruction_counts::InstructionLog,
    memory_order::MemoryOrder,
    model_error::ModelError,
    operations::{Kind, MicroOperation},
    parameters::Parameters,
    pipeline::PipelineLog,
    program::{BlockCounts, Program},
    queues::Entries,
    registers,
    stack::{Cause, CpiStack},
    stores::Origin,
    timeline::Timeline,
    value::Value,
};

/// Cycles from dispatch to the earliest issue.
const ISSUE_CYCLES: u64 = 1;

/// An out-of-order core.
#[derive(Debug)]
pub(crate) struct OutOfOrder {
    pub parameters: Parameters,
    pub front: FrontEnd,
    pub program: Program,
    /// Slots of retirement.
    pub retired: Timeline,
    /// For each register, when its value is available.
    ready: [u64; registers::SLOTS],
    /// The cycle of the last dispatch, the number of operations dispatched in it, and the last cause of waiting.
    dispatch: u64,
    dispatched: u64,
    dispatch_cause: Cause,
    rob: Entries,
    rename: [Entries; 3],
    loads: Entries,
    store_entries: Entries,
    pub accesses: Accesses,
    order: MemoryOrder,
    /// Loads squashed because they had passed an older store to their address.
    passed_stores: u64,
    calendar: Calendar,
    /// Completion of the last barrier: no later memory access issues before it.
    memory_floor: u64,
    /// Log of the first instructions' stages.
    pub log: PipelineLog,
    /// Issue of the last operation.
    last_issue: u64,
}

impl OutOfOrder {
    /// Creates a core with an empty pipeline and untrained predictors.
    ///
    /// # Errors
    /// If the machine file's parameters are invalid.
    pub fn new(core: &parts::Core, options: FetchOptions) -> Result<Self, ModelError> {
        let parameters = Parameters::resolve(core)?;
        let width = parameters.retire_width.min(parameters.dispatch_width);
        let [integer, float] = parameters.rename_registers;
        let order = MemoryOrder::new(core)?;
        let mut accesses = Accesses::new(
            parameters.class(parts::Operation::Load).latency_cycles.into(),
            if parameters.joint_load_store_queue {
                parameters.load_entries
            } else {
                parameters.store_entries
            },
            options.line_bytes,
        );
        if !order.is_ideal() {
            accesses.stores.keep_origins();
        }
        Ok(Self {
            front: FrontEnd::new(core, &parameters, options, ISSUE_CYCLES)?,
            program: Program::default(),
            retired: Timeline::new(width),
            ready: [0; _],
            dispatch: 0,
            dispatched: 0,
            dispatch_cause: Cause::FrontEnd,
            rob: Entries::new(parameters.rob_entries),
            rename: [Entries::new(integer), Entries::new(float), Entries::new(1)],
            loads: Entries::new(parameters.load_entries),
            store_entries: Entries::new(parameters.store_entries),
            accesses,
            order,
            passed_stores: 0,
            calendar: Calendar::new(parameters.issue_width, parameters.issue_queue_entries),
            memory_floor: 0,
            log: PipelineLog::default(),
            last_issue: 0,
            parameters,
        })
    }

    /// Moves dispatch to the first cycle in which every queue that the operation needs has a free entry.
    #[inline]
    fn dispatch_one(&mut self, operation: &MicroOperation) {
        if self.dispatched == self.parameters.dispatch_width {
            self.dispatch += 1;
            self.dispatched = 0;
        }
        let mut free = self.rob.free_at().max(self.rename[usize::from(operation.file)].free_at());
        match operation.kind {
            Kind::Plain | Kind::Barrier | Kind::Serialize => {}
            Kind::Load | Kind::Prefetch => free = free.max(self.loads.free_at()),
            Kind::Store | Kind::Atomic | Kind::AtomicBarrier => free = free.max(self.store_queue().free_at()),
        }
        self.calendar.pass_to(self.dispatch.max(free));
        let cycle = self.calendar.wait_for_entry(usize::from(operation.queue));
        if cycle > self.dispatch {
            (self.dispatch, self.dispatched) = (cycle, 0);
            self.dispatch_cause = Cause::Structural;
        }
        self.dispatched += 1;
    }

    fn store_queue(&mut self) -> &mut Entries {
        if self.parameters.joint_load_store_queue { &mut self.loads } else { &mut self.store_entries }
    }

    #[inline]
    fn issue(&mut self, ready: u64, operation: &MicroOperation) -> u64 {
        self.issue_for(ready, operation, operation.interval_cycles.into())
    }

    /// Issues an operation that occupies its unit for `interval_cycles`.
    #[inline]
    fn issue_for(&mut self, ready: u64, operation: &MicroOperation, interval_cycles: u32) -> u64 {
        self.last_issue =
            self.calendar.issue(ready, operation.units, interval_cycles, operation.queue.into());
        self.last_issue
    }

    /// Number of cycles for which an access occupies its unit.
    #[inline]
    fn access_interval(&self, operation: &MicroOperation, address: u64) -> u32 {
        u32::from(operation.interval_cycles) + u32::from(self.accesses.crosses(address, operation.bytes))
    }

    /// Issues an access. Returns the cycle of the issue that finds a translation.
    #[inline(always)]
    fn issue_access(
        &mut self,
        ready: u64,
        operation: &MicroOperation,
        site: AccessSite,
        port: &mut impl MemoryPort,
    ) -> u64 {
        let interval = self.access_interval(operation, site.address);
        let issue = self.issue_for(ready, operation, interval);
        match port.refill(Side::Data, site.address, operation.bytes.into()) {
            0 => issue,
            cycles => self.reissue(issue, operation, site.pc, cycles, interval),
        }
    }

    /// Handles an access that issued at `issue` and missed in the TLB. When all older instructions have retired, an
    /// exception refills the TLB and the access is fetched again. Returns the cycle of its second issue. The model
    /// processes younger instructions only after that, as if they had not been in the window before.
    #[cold]
    fn reissue(
        &mut self,
        issue: u64,
        operation: &MicroOperation,
        pc: u64,
        cycles: u32,
        interval: u32,
    ) -> u64 {
        let trapped_at = (issue + TRAP_CYCLES).max(self.retired.cycle());
        self.front.trap(pc, trapped_at, ISSUE_CYCLES, cycles);
        self.issue_refetched(operation, interval)
    }

    /// Issues an access that was squashed and fetched again. Returns the cycle of issue.
    fn issue_refetched(&mut self, operation: &MicroOperation, interval_cycles: u32) -> u64 {
        self.wait_for_fetch();
        self.dispatched = 1;
        self.calendar.pass_to(self.dispatch);
        self.issue_for(self.dispatch + ISSUE_CYCLES, operation, interval_cycles)
    }

    /// Issues a load whose operands are ready at `ready` on a core that speculates on memory order. Returns the cycle
    /// of the issue with the right data. A load that passed a store it depends on is squashed with all younger
    /// instructions when the store's address is known. The effects of younger instructions before the squash, including
    /// their reads, are not modelled.
    #[inline(never)]
    fn issue_speculative(
        &mut self,
        ready: u64,
        operation: &MicroOperation,
        site: AccessSite,
        port: &mut impl MemoryPort,
    ) -> u64 {
        let bytes = operation.bytes.into();
        let passes = self.accesses.stores.passed(site.address, bytes, ready).is_none();
        let waits = ready.max(self.order.wait(site.pc));
        let mut issue = self.issue_access(waits, operation, site, port);
        while let Some(store) = self.accesses.stores.passed(site.address, bytes, issue) {
            self.order.collided(site.pc, store.pc);
            self.passed_stores += 1;
            self.front.fetch_again(site.pc, store.known);
            issue = self.issue_refetched(operation, self.access_interval(operation, site.address));
        }
        self.order.learn_from_load(site.pc, passes);
        issue
    }

    /// Records the origin of a store or atomic operation, the youngest so far: from which cycle on its address is known
    /// to loads.
    #[inline(never)]
    fn note_origin(&mut self, operation: &MicroOperation, pc: u64) {
        let registers = (0..3).filter(|index| operation.address_sources & 1 << index != 0);
        let ready = registers.map(|index| self.ready[registers::slot(operation.sources[index])]);
        let known_at = ready.fold(self.dispatch + ISSUE_CYCLES, u64::max);
        self.order.store(pc, known_at);
        self.accesses.stores.set_origin(Origin { pc, known: known_at });
    }

    /// Executes operations that are neither plain nor loads nor stores. The operands are ready at `access.at`.
    #[cold]
    fn execute_special(
        &mut self,
        operation: &MicroOperation,
        access: DataAccess,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) -> Value {
        let DataAccess { site: AccessSite { pc, address }, bytes, at: ready } = access;
        let latency = u64::from(operation.latency_cycles);
        let memory_done = self.accesses.complete_at();
        // Atomic operations and barriers are not speculative: they wait until all older instructions have retired.
        let oldest = ready.max(self.memory_floor).max(self.retired.cycle());
        match operation.kind {
            Kind::Prefetch => {
                let at = self.issue(ready.max(self.memory_floor), operation);
                port.prefetch(address, pc, Cycle(at));
                Value::computed(at + 1)
            }
            Kind::Atomic | Kind::AtomicBarrier => {
                let barrier = operation.kind == Kind::AtomicBarrier;
                let oldest = self.accesses.stores.in_cache(address, bytes, oldest);
                let oldest = if barrier { oldest.max(memory_done) } else { oldest };
                let at = self.issue_access(oldest, operation, access.site, port);
                if !self.order.is_ideal() {
                    self.note_origin(operation, pc);
                }
                let answer = port.store(address, bytes, pc, Cycle(at));
                counts.note(answer.source);
                let completed = answer.ready.0.max(at) + 1;
                self.accesses.stores.push_atomic(address, bytes, completed);
                self.accesses.last_access = self.accesses.last_access.max(completed);
                if barrier {
                    self.memory_floor = self.memory_floor.max(completed);
                }
                let hit = answer.source == Source::Level1;
                let cause = if hit { Cause::Synchronization } else { Cause::of(answer.source) };
                Value { ready: completed, cause, translation_cycles: answer.translation_cycles }
            }
            Kind::Barrier => {
                let at = self.issue(oldest.max(memory_done), operation) + latency;
                self.memory_floor = self.memory_floor.max(at);
                Value::new(at, Cause::Synchronization)
            }
            Kind::Serialize => {
                let at = self.issue(oldest, operation) + latency;
                self.front.redirect(at, Cause::Synchronization);
                Value::new(at, Cause::Synchronization)
            }
            Kind::Plain | Kind::Load | Kind::Store => unreachable!("not special"),
        }
    }

    /// Retires the operation and sets until when it holds its queue entries.
    #[inline]
    fn retire(&mut self, operation: &MicroOperation, result: &Value) {
        // Until this cycle, nothing could retire because the pipeline was not filled.
        let filled = self.dispatch + ISSUE_CYCLES + 1;
        if result.ready > self.retired.cycle() {
            self.retired.wait(filled.min(result.ready), self.dispatch_cause);
            self.retired.wait_for_memory(result.ready, result.cause, result.translation_cycles);
        }
        let cycle = self.retired.take();
        self.rob.allocate_until(cycle);
        self.rename[usize::from(operation.file)].allocate_until(if operation.file == 2 { 0 } else { cycle });
        match operation.kind {
            Kind::Load | Kind::Prefetch => self.loads.allocate_until(cycle),
            Kind::Atomic | Kind::AtomicBarrier => self.store_queue().allocate_until(cycle),
            Kind::Plain | Kind::Store | Kind::Barrier | Kind::Serialize => {}
        }
    }

    /// Number of squashed loads, as in [`passed_stores`](Self::passed_stores); `None` if loads never pass stores.
    pub fn passed_stores(&self) -> Option<u64> {
        (!self.order.is_ideal()).then_some(self.passed_stores)
    }

    /// Resets the counts. Predictors stay trained, and time continues.
    pub fn clear_counts(&mut self) {
        self.program.clear_counts();
        self.log.counts.iter_mut().for_each(InstructionLog::clear);
        self.retired.clear_counts();
        self.front.clear_counts();
        self.accesses.forwarded = 0;
        self.passed_stores = 0;
    }

    /// Waits until every retired store is in the cache.
    pub fn complete(&mut self) {
        self.front.advance_to(&mut self.retired, self.accesses.complete_at(), Cause::Structural);
    }

    /// Delays the program until `cycle`, for `cause`.
    pub fn advance_to(&mut self, cycle: u64, cause: Cause) {
        self.front.advance_to(&mut self.retired, cycle, cause);
    }

    /// Delays the core until `cycle` without counting the time in between.
    pub fn pass_to(&mut self, cycle: u64) {
        self.front.pass_to(&mut self.retired, cycle);
    }
}

impl BackEnd for OutOfOrder {
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
        [self.dispatch, self.retired.cycle()]
    }

    fn emptied(&self) -> u64 {
        self.retired.cycle()
    }

    fn position(&self) -> u64 {
        self.retired.position()
    }

    fn lost(&self) -> &CpiStack {
        self.retired.lost()
    }

    #[inline]
    fn wait_for_fetch(&mut self) {
        let dispatchable = self.front.dispatchable();
        if dispatchable > self.dispatch {
            (self.dispatch, self.dispatched) = (dispatchable, 0);
            self.dispatch_cause = self.front.cause;
        }
    }

    #[inline]
    fn step(
        &mut self,
        operation: &MicroOperation,
        site: AccessSite,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) -> u64 {
        self.dispatch_one(operation);
        let ready_of = |source: usize| self.ready[registers::slot(operation.sources[source])];
        let [a, b, c] = [ready_of(0), ready_of(1), ready_of(2)];
        let ready = (self.dispatch + ISSUE_CYCLES).max(a).max(b).max(c);
        let access = |at| DataAccess { site, bytes: operation.bytes.into(), at };
        let result = match operation.kind {
            Kind::Plain => {
                let issue = self.issue(ready, operation);
                Value::computed(issue + u64::from(operation.latency_cycles))
            }
            Kind::Load => {
                let ready = ready.max(self.memory_floor);
                let issue = if self.order.is_ideal() {
                    self.issue_access(ready, operation, site, port)
                } else {
                    self.issue_speculative(ready, operation, site, port)
                };
                self.accesses.load(access(issue), counts, port)
            }
            Kind::Store => {
                let issue = self.issue_access(ready.max(self.memory_floor), operation, site, port);
                if !self.order.is_ideal() {
                    self.note_origin(operation, site.pc);
                }
                Value::computed(issue + u64::from(operation.latency_cycles))
            }
            _ => self.execute_special(operation, access(ready), counts, port),
        };
        self.ready[registers::slot(operation.destination)] = result.ready;
        self.retire(operation, &result);
        if operation.kind == Kind::Store {
            // A retired store is written to the cache.
            let drained = self.accesses.store(access(result.ready), self.retired.cycle(), counts, port);
            self.store_queue().allocate_until(drained);
        }
        result.ready
    }

    fn stages(&self, _resolved: u64) -> [u64; 3] {
        [self.dispatch, self.last_issue, self.retired.cycle()]
    }

    fn log(&mut self) -> &mut PipelineLog {
        &mut self.log
    }
}
