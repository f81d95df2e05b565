//! Memoization of block timing: if a block starts in a recorded pipeline state and memory answers as it did then, the
//! recorded schedule is replayed.
//!
//! The result is exact. Memory, branch predictor and queues get the same requests in the same order and with the same
//! cycles as without memoization. At the first answer that differs, the block is timed again instruction by instruction
//! from its start.
//!
//! Source: Schnarr and Larus, Fast Out-of-Order Processor Simulation Using Memoization (ASPLOS 1998).

use longma_memory::{Answer, MemoryPort, Source, translation::Side};
use longma_sim::Cycle;
use longma_trace::Record;

use super::{
    InOrder, Value,
    schedules::{Access, Data, End, Event, Key, Schedule, ScheduleNumber, ScheduleSlot},
    shapes::ShapeNumber,
};
use crate::{
    accesses::DataAccess,
    front_end::{self, AccessSite},
    operations::{DecodedBlock, Kind},
    program::Entry,
    stack::{Cause, CpiStack},
};

/// The representation of the current pipeline state.
#[derive(Clone, Copy, Debug)]
pub(super) struct PipelineState {
    /// Its shape, if known, and the schedule that led to it.
    pub shape: Option<(ShapeNumber, Option<ScheduleNumber>)>,
    /// Whether registers and units hold the state. Otherwise only the shape does.
    pub is_materialized: bool,
}

/// Data recorded while a block is timed, to build its schedule.
#[derive(Debug, Default)]
pub(super) struct Recording {
    /// Whether recording is on.
    pub is_open: bool,
    /// Whether an event occurred that is not part of a schedule, such as a wait for a queue or an access across two
    /// lines. The schedule is then discarded.
    pub is_special: bool,
    /// Completion slot of the block's last instruction, as if the block had started with an empty window.
    pub completed: u64,
    /// Loads and stores in program order.
    accesses: Vec<RecordedAccess>,
}

/// A recorded load or store: the cycles in which it needed its queue entry and issued, and its result.
#[derive(Clone, Copy, Debug)]
struct RecordedAccess {
    queues: u64,
    at: u64,
    value: Value,
    /// Completion slot of the preceding instruction of the block.
    completed: u64,
}

impl Recording {
    fn begin(&mut self) {
        self.accesses.clear();
        self.completed = 0;
        (self.is_open, self.is_special) = (true, false);
    }

    /// Records an access that needed its queue entry in cycle `queues`, issued at `at` and had the result `value`.
    #[cold]
    pub fn note(&mut self, queues: u64, at: u64, value: Value) {
        self.accesses.push(RecordedAccess { queues, at, value, completed: self.completed });
    }
}

/// Results of the accesses already performed in a replay, kept in case the block must be timed again.
#[derive(Debug, Default)]
pub(super) struct PerformedAccesses {
    values: Vec<Value>,
    next: usize,
}

impl PerformedAccesses {
    /// Returns whether the next access has already been performed.
    #[inline]
    pub fn knows_next(&self) -> bool {
        self.next < self.values.len()
    }

    /// Returns the result of the next access if it has already been performed.
    #[inline]
    pub fn take(&mut self) -> Option<Value> {
        let value = self.values.get(self.next).copied();
        self.next += usize::from(value.is_some());
        value
    }

    #[inline]
    fn push(&mut self, value: Value) {
        self.values.push(value);
    }

    #[inline]
    fn clear(&mut self) {
        self.values.clear();
        self.next = 0;
    }
}

/// The position and cause of a failed replay.
#[derive(Clone, Copy, Debug)]
struct Deviation {
    schedule: ScheduleNumber,
    event: usize,
    reason: Reason,
    /// Number of lines that were fetched in time before the deviation.
    fetched: usize,
    /// State of the window before the block.
    mark: usize,
}

#[derive(Clone, Copy, Debug)]
enum Reason {
    /// A line arrived late.
    Late(Answer),
    /// An access must wait for a queue entry.
    Queue,
    /// An access spans two lines.
    Crossing,
    /// A line or an access needs a TLB refill exception that takes this many cycles.
    Refill(u32),
    /// A load has this result; `None` if it does not fit the representation.
    Load(Option<Data>),
}

/// The starting point of a run that records a schedule.
#[derive(Clone, Copy, Debug)]
struct RecordingRun {
    /// The deviation that ended the replay, if there was one.
    deviation: Option<Deviation>,
    /// Where to store the schedule; `None` to discard it.
    store_as: Option<ScheduleSlot>,
    /// Whether the block begins in a line that is already fetched.
    in_line: bool,
}

/// A memory port that returns the answers of instruction lines already fetched, and records when lines are requested.
struct ReplayPort<'a, P> {
    port: &'a mut P,
    /// The cycle of each line's request.
    asked: Vec<u64>,
    /// Whether a line arrived late or an exception refilled the TLB.
    is_special: bool,
    /// Cost of the exception that ended the replay. It has already occurred and is not requested again.
    refill: Option<u32>,
    /// Number of lines that were fetched in time, and the answer for the next one if it was late.
    fetched: usize,
    late: Option<Answer>,
    hit_cycles: u64,
}

impl<P: MemoryPort> MemoryPort for ReplayPort<'_, P> {
    fn fetch(&mut self, address: u64, at: Cycle) -> Answer {
        let index = self.asked.len();
        self.asked.push(at.0);
        let answer = match self.late {
            _ if index < self.fetched => Answer { ready: at, source: Source::Level1, translation_cycles: 0 },
            Some(answer) if index == self.fetched => answer,
            _ => self.port.fetch(address, at),
        };
        self.is_special |= !is_in_time(&answer, at.0, self.hit_cycles);
        answer
    }

    fn load(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer {
        self.port.load(address, bytes, instruction, at)
    }

    fn store(&mut self, address: u64, bytes: u32, instruction: u64, at: Cycle) -> Answer {
        self.port.store(address, bytes, instruction, at)
    }

    fn is_in_core(&self, address: u64) -> bool {
        self.port.is_in_core(address)
    }

    fn refill(&mut self, side: Side, address: u64, bytes: u32) -> u32 {
        let answered = self.fetched + usize::from(self.late.is_some());
        if side == Side::Instruction && self.asked.len() < answered {
            return 0;
        }
        let cycles = self.refill.take().unwrap_or_else(|| self.port.refill(side, address, bytes));
        self.is_special |= cycles > 0;
        cycles
    }

    fn prefetch(&mut self, address: u64, instruction: u64, at: Cycle) {
        self.port.prefetch(address, instruction, at);
    }
}

/// Returns whether a line requested at `at` arrives without delay.
#[inline]
fn is_in_time(answer: &Answer, at: u64, hit_cycles: u64) -> bool {
    answer.source == Source::Level1 && answer.ready.0 <= at + hit_cycles
}

impl InOrder {
    /// Runs a record whose block has begun and only performs loads and stores: replays it if possible.
    #[inline]
    pub(super) fn run_memoized(
        &mut self,
        entry: &mut Entry,
        record: &Record<'_>,
        port: &mut impl MemoryPort,
    ) {
        let cycle = self.issued.cycle();
        let fetching = self.front.fetching(entry.block.start, cycle);
        let (Some(fetching), Some((shape, before))) = (fetching, self.shape()) else {
            entry.lookup_credit.failed();
            return self.run_stepwise(entry, record, port);
        };
        let key = Key { shape, block: record.block, fetching };
        let Some(first) = self.schedules.find(before, key) else {
            entry.lookup_credit.failed();
            let recorded = RecordingRun {
                deviation: None,
                store_as: Some(ScheduleSlot::Entry(key)),
                in_line: fetching.is_in_line(),
            };
            return self.run_recording(entry, record, port, &recorded);
        };
        match self.repeat(first, entry, record, port) {
            Ok(()) => entry.lookup_credit.succeeded(),
            Err(deviation) => {
                entry.lookup_credit.failed();
                let store_as = match deviation.reason {
                    Reason::Load(Some(data)) => {
                        Some(ScheduleSlot::Alternative(deviation.schedule, deviation.event, data))
                    }
                    _ => None,
                };
                let deviation = Some(deviation);
                let recorded = RecordingRun { deviation, store_as, in_line: fetching.is_in_line() };
                self.run_recording(entry, record, port, &recorded);
            }
        }
    }

    /// Runs a record whose block has begun, instruction by instruction.
    pub(super) fn run_stepwise(
        &mut self,
        entry: &mut Entry,
        record: &Record<'_>,
        port: &mut impl MemoryPort,
    ) {
        self.materialize();
        front_end::execute(self, entry, record, port);
    }

    /// Restores registers and units from the current shape, which is then no longer known.
    pub(super) fn materialize(&mut self) {
        if let Some((shape, _)) = self.state.shape.take()
            && !self.state.is_materialized
        {
            let cycle = self.issued.cycle();
            self.schedules.shapes.restore(shape, cycle, &mut self.values, &mut self.units);
        }
        self.state.is_materialized = true;
    }

    /// The current shape, and the schedule that led to it.
    #[inline]
    fn shape(&mut self) -> Option<(ShapeNumber, Option<ScheduleNumber>)> {
        if self.state.shape.is_none() {
            self.schedules.make_room();
            self.state.shape = self.number_shape().map(|shape| (shape, None));
        }
        self.state.shape
    }

    fn number_shape(&mut self) -> Option<ShapeNumber> {
        let now = (self.issued.cycle(), self.issued.used());
        self.schedules.shapes.number(now, self.last_result, &self.values, &mut self.units)
    }

    /// Replays a record with the schedule `first` or one of its alternatives. Fails if memory or a queue behaves
    /// differently.
    #[inline]
    fn repeat(
        &mut self,
        first: ScheduleNumber,
        entry: &mut Entry,
        record: &Record<'_>,
        port: &mut impl MemoryPort,
    ) -> Result<(), Deviation> {
        let (base, start) = (self.issued.cycle(), entry.block.start);
        let mark = self.window.mark();
        let (completed, width) = (self.completed, self.width);
        let older = |access: &Access| {
            let in_block = base * width + u64::from(access.completed);
            in_block.max(completed + u64::from(access.offset / 4)) / width
        };
        let hit_cycles = self.front.hit_cycles();
        let (mut number, mut schedule) = (first, self.schedules.get(first));
        let mut addresses = record.addresses.iter();
        let mut next_access = |access: &Access| DataAccess {
            site: AccessSite {
                pc: start.wrapping_add(access.offset.into()),
                address: access.unit.begin(addresses.next().copied().unwrap_or(0)),
            },
            bytes: access.bytes.into(),
            at: base + u64::from(access.at),
        };
        let (mut event, mut fetched) = (0, 0);
        while let Some(next) = schedule.events.get(event) {
            let deviation = |reason| Err(Deviation { schedule: number, event, reason, fetched, mark });
            match next {
                Event::Fetch { offset, at } => {
                    let at = base.wrapping_add_signed((*at).into());
                    let cycles = port.refill(Side::Instruction, start.wrapping_add((*offset).into()), 4);
                    if cycles > 0 {
                        return deviation(Reason::Refill(cycles));
                    }
                    let answer = port.fetch(start.wrapping_add((*offset).into()), Cycle(at));
                    if !is_in_time(&answer, at, hit_cycles) {
                        return deviation(Reason::Late(answer));
                    }
                    fetched += 1;
                }
                Event::Load { access, data } => {
                    if self.accesses.loads.free_at() > base + u64::from(access.queues) {
                        return deviation(Reason::Queue);
                    }
                    let load = next_access(access);
                    if self.accesses.in_flight.crosses(load.site.address, access.bytes) {
                        return deviation(Reason::Crossing);
                    }
                    let cycles = port.refill(Side::Data, load.site.address, load.bytes);
                    if cycles > 0 {
                        return deviation(Reason::Refill(cycles));
                    }
                    let value = self.accesses.load(load, older(access), &mut entry.counts, port);
                    self.window.note(u64::from(access.offset / 4), load.at, value.ready);
                    self.performed.push(value);
                    let actual = Data::of(&value, base);
                    if actual != Some(*data) {
                        let other = actual.and_then(|actual| schedule.alternative(event, actual));
                        let Some(other) = other else { return deviation(Reason::Load(actual)) };
                        (number, schedule) = (other, self.schedules.get(other));
                    }
                }
                Event::Store { access } => {
                    if self.accesses.stores().free_at() > base + u64::from(access.queues) {
                        return deviation(Reason::Queue);
                    }
                    let store = next_access(access);
                    if self.accesses.in_flight.crosses(store.site.address, access.bytes) {
                        return deviation(Reason::Crossing);
                    }
                    let cycles = port.refill(Side::Data, store.site.address, store.bytes);
                    if cycles > 0 {
                        return deviation(Reason::Refill(cycles));
                    }
                    self.accesses.store(store, older(access), &mut entry.counts, port);
                    self.performed.push(Value::computed(store.at));
                }
            }
            event += 1;
        }
        self.performed.clear();
        self.arrive(number, base, entry, record);
        Ok(())
    }

    /// Applies the end state of schedule `number` to a block that began at cycle `base`.
    #[inline]
    fn arrive(&mut self, number: ScheduleNumber, base: u64, entry: &mut Entry, record: &Record<'_>) {
        let (block, executed) = (&entry.block, record.executed);
        let End {
            shape,
            cycle,
            used,
            slots,
            fetch_cycle,
            fetched,
            resolved,
            last_result,
            completed,
            ref lost,
        } = self.schedules.get(number).end;
        self.issued.repeat(cycle, used, executed.into(), lost);
        self.front.arrive(base.wrapping_add_signed(fetch_cycle), fetched, block.last_address());
        self.front.end(record.block, block, executed.into(), base + resolved);
        self.last_result = self.last_result.max(base + last_result);
        self.window.pass(executed.into());
        self.completed = (self.completed + u64::from(executed)).max(base * self.width + completed);
        entry.counts.slots += slots;
        self.state = PipelineState { shape: Some((shape, Some(number))), is_materialized: false };
    }

    /// Runs a record instruction by instruction and stores its schedule. Does not repeat the accesses that a failed
    /// replay has already performed.
    #[cold]
    fn run_recording(
        &mut self,
        entry: &mut Entry,
        record: &Record<'_>,
        port: &mut impl MemoryPort,
        recorded: &RecordingRun,
    ) {
        let &RecordingRun { ref deviation, store_as, in_line } = recorded;
        let deviation = deviation.as_ref();
        self.materialize();
        deviation.iter().for_each(|deviation| self.window.forget(deviation.mark));
        let (base, position) = (self.issued.cycle(), self.issued.position());
        let lost_before = self.issued.lost().clone();
        let last_result = std::mem::take(&mut self.last_result);
        self.recording.begin();
        let mut replay_port = ReplayPort {
            port,
            asked: Vec::new(),
            is_special: false,
            refill: deviation.and_then(|deviation| match deviation.reason {
                Reason::Refill(cycles) => Some(cycles),
                _ => None,
            }),
            fetched: deviation.map_or(0, |deviation| deviation.fetched),
            late: deviation.and_then(|deviation| match deviation.reason {
                Reason::Late(answer) => Some(answer),
                _ => None,
            }),
            hit_cycles: self.front.hit_cycles(),
        };
        front_end::execute(self, entry, record, &mut replay_port);
        let (asked, is_special) = (replay_port.asked, replay_port.is_special | self.recording.is_special);
        self.recording.is_open = false;
        self.performed.clear();
        let latest = self.last_result;
        self.last_result = latest.max(last_result);
        let (Some(store_as), false) = (store_as, is_special) else { return };
        let Some(shape) = self.number_shape() else { return };
        let slots = self.issued.position() - position;
        let end = self.end(shape, (base, slots, latest), &lost_before);
        let Some(events) = self.events(&entry.block, base, &asked, in_line) else { return };
        let kept = self.schedules.insert(Schedule::new(events, end), store_as);
        self.state.shape = kept.map(|number| (shape, Some(number)));
    }

    /// The end state of a block that began at cycle `base` and took `slots` slots. `latest` is when its latest result
    /// is available, and `lost` the slots lost before the block.
    fn end(&self, shape: ShapeNumber, (base, slots, latest): (u64, u64, u64), lost: &CpiStack) -> End {
        let lost = Cause::ALL.map(|cause| (cause, self.issued.lost().slots(cause) - lost.slots(cause)));
        End {
            shape,
            cycle: self.issued.cycle() - base,
            used: self.issued.used(),
            slots,
            fetch_cycle: self.front.cycle().wrapping_sub(base) as i64,
            fetched: self.front.fetched(),
            resolved: self.front.resolved().saturating_sub(base),
            last_result: latest.saturating_sub(base),
            completed: self.recording.completed.saturating_sub(base * self.width),
            lost: lost.into_iter().filter(|(_, slots)| *slots > 0).collect(),
        }
    }

    /// Converts the recording of `block` to events, in the order of the memory requests. `None` if a time does not fit
    /// the representation.
    fn events(&self, block: &DecodedBlock, base: u64, asked: &[u64], in_line: bool) -> Option<Box<[Event]>> {
        let mut asked = asked.iter();
        let mut accesses = block.accesses.iter().zip(&self.recording.accesses).peekable();
        let mut events = Vec::with_capacity(asked.len() + accesses.len());
        let instructions = block.operations.len() as u64;
        let in_first = (self.front.line_bytes() - (block.start - self.front.line_of(block.start))) / 4;
        let mut begin = 0;
        while begin < instructions {
            let end = if begin == 0 { in_first.max(1) } else { begin + self.front.line_bytes() / 4 };
            if begin > 0 || !in_line {
                let at = i32::try_from(asked.next()?.wrapping_sub(base) as i64).ok()?;
                events.push(Event::Fetch { offset: 4 * begin as u16, at });
            }
            while let Some((access, noted)) =
                accesses.next_if(|(access, _)| u64::from(access.instruction) < end)
            {
                let since = |cycle: u64| u32::try_from(cycle.checked_sub(base)?).ok();
                let at = if access.kind == Kind::Load { noted.at } else { noted.value.ready };
                let (queues, at) = (since(noted.queues)?, since(at)?);
                let (bytes, unit) = (access.bytes, access.unit);
                let completed = noted.completed.saturating_sub(base * self.width);
                let completed = u32::try_from(completed).ok()?;
                let asked = Access { offset: 4 * access.instruction, bytes, unit, queues, at, completed };
                events.push(match access.kind {
                    Kind::Load => Event::Load { access: asked, data: Data::of(&noted.value, base)? },
                    _ => Event::Store { access: asked },
                });
            }
            begin = end;
        }
        Some(events.into())
    }
}
