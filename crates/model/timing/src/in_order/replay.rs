//! Blocks that do what they did before: the same instructions through a pipeline of the same shape, with the same answers from memory.
//! Not an approximation: memory, the branch predictor and the queues are asked everything that they would be asked, in the same order
//! and for the same cycles; where an answer differs, the block is timed instruction by instruction from its beginning.
//! Source: Schnarr and Larus, Fast Out-of-Order Processor Simulation Using Memoization (ASPLOS 1998).

use longma_memory::{Answer, MemoryPort, Source, translation::Side};
use longma_sim::Cycle;
use longma_trace::Record;

use super::{
    InOrder, Value,
    schedules::{Access, Belongs, Data, End, Event, Key, Schedule, ScheduleNumber},
    shapes::ShapeNumber,
};
use crate::{
    front_end::{self, Place},
    operations::{DecodedBlock, Kind},
    program::Entry,
    stack::{Cause, CpiStack},
};

/// Where the pipeline's present state is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Present {
    /// Its shape, if it is known, and the schedule that led to it.
    pub shape: Option<(ShapeNumber, Option<ScheduleNumber>)>,
    /// Registers and units have it themselves; otherwise only the shape says.
    pub is_own: bool,
}

/// What is noted while a block is timed, so that its schedule can be kept.
#[derive(Debug, Default)]
pub(super) struct Recording {
    /// Off: nothing is noted.
    pub is_open: bool,
    /// An access waited for its queue, or lay in two lines: the schedule is good for this once only.
    pub is_special: bool,
    /// Slots of completion up to the block's last instruction, as if it had been behind none.
    pub completed: u64,
    /// Of each load and store, in program order.
    accesses: Vec<Noted>,
}

/// A load or a store: when it needed its queue, when it issued, its result, and what it completes behind.
#[derive(Clone, Copy, Debug)]
struct Noted {
    queues: u64,
    at: u64,
    value: Value,
    /// Slots of completion up to what is older in the block.
    completed: u64,
}

impl Recording {
    fn begin(&mut self) {
        self.accesses.clear();
        self.completed = 0;
        (self.is_open, self.is_special) = (true, false);
    }

    /// An access that needed its queue in cycle `queues`, issued at `at`, and had this result.
    #[cold]
    pub fn note(&mut self, queues: u64, at: u64, value: Value) {
        self.accesses.push(Noted { queues, at, value, completed: self.completed });
    }
}

/// What a block's accesses were answered before it turned out that it does not do what it did before.
#[derive(Debug, Default)]
pub(super) struct Script {
    values: Vec<Value>,
    next: usize,
}

impl Script {
    /// True if the next access was answered already.
    #[inline]
    pub fn knows_next(&self) -> bool {
        self.next < self.values.len()
    }

    /// The next access's result if it was answered already.
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

/// Where and how a block left its schedule.
#[derive(Clone, Copy, Debug)]
struct Deviation {
    schedule: ScheduleNumber,
    event: usize,
    why: Why,
    /// Lines that were fetched in time before.
    fetched: usize,
    /// What the window knew before the block.
    mark: usize,
}

#[derive(Clone, Copy, Debug)]
enum Why {
    /// A line came late.
    Late(Answer),
    /// An access has to wait for its queue.
    Queue,
    /// An access lies in two lines.
    Crossing,
    /// A line or an access needs an exception that takes so many cycles.
    Refill(u32),
    /// A load has this result, if it can be written down.
    Load(Option<Data>),
}

/// Memory that has answered for some instruction lines already, and notes when it is asked for them.
struct Noting<'a, P> {
    port: &'a mut P,
    /// When each line was asked for.
    asked: Vec<u64>,
    /// A line came late, or an exception refilled the TLBs.
    is_special: bool,
    /// The exception that was found last, which is not asked for again.
    refill: Option<u32>,
    /// Lines that were fetched in time already, and the answer for the one behind them if it was late.
    fetched: usize,
    late: Option<Answer>,
    hit_cycles: u64,
}

impl<P: MemoryPort> MemoryPort for Noting<'_, P> {
    fn fetch(&mut self, address: u64, at: Cycle) -> Answer {
        let nth = self.asked.len();
        self.asked.push(at.0);
        let answer = match self.late {
            _ if nth < self.fetched => Answer { ready: at, source: Source::Level1, translation_cycles: 0 },
            Some(answer) if nth == self.fetched => answer,
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

/// True if a line that was asked for at `at` delays nothing.
#[inline]
fn is_in_time(answer: &Answer, at: u64, hit_cycles: u64) -> bool {
    answer.source == Source::Level1 && answer.ready.0 <= at + hit_cycles
}

impl InOrder {
    /// Runs a record whose block began and accesses memory by loads and stores alone: as it ran before, if it did.
    #[inline]
    pub(super) fn run_known(&mut self, entry: &mut Entry, record: &Record<'_>, port: &mut impl MemoryPort) {
        let cycle = self.issued.cycle();
        let fetching = self.front.fetching(entry.block.start, cycle);
        let (Some(fetching), Some((shape, before))) = (fetching, self.shape()) else {
            entry.repetition.failed();
            return self.run_anew(entry, record, port);
        };
        let key = Key { shape, block: record.block, fetching };
        let Some(first) = self.schedules.find(before, key) else {
            entry.repetition.failed();
            return self.run_noting(
                entry,
                record,
                port,
                None,
                Some(Belongs::Under(key)),
                fetching.is_in_line(),
            );
        };
        match self.repeat(first, entry, record, port) {
            Ok(()) => entry.repetition.succeeded(),
            Err(deviation) => {
                entry.repetition.failed();
                let belongs = match deviation.why {
                    Why::Load(Some(data)) => Some(Belongs::Beside(deviation.schedule, deviation.event, data)),
                    _ => None,
                };
                self.run_noting(entry, record, port, Some(&deviation), belongs, fetching.is_in_line());
            }
        }
    }

    /// Runs a record whose block began, instruction by instruction.
    pub(super) fn run_anew(&mut self, entry: &mut Entry, record: &Record<'_>, port: &mut impl MemoryPort) {
        self.materialize();
        front_end::execute(self, entry, record, port);
    }

    /// Gives registers and units the state that the present shape stands for, which is then no longer known.
    pub(super) fn materialize(&mut self) {
        if let Some((shape, _)) = self.present.shape.take()
            && !self.present.is_own
        {
            let cycle = self.issued.cycle();
            self.schedules.shapes.restore(shape, cycle, &mut self.values, &mut self.units);
        }
        self.present.is_own = true;
    }

    /// The pipeline's shape, and the schedule that led to it.
    #[inline]
    fn shape(&mut self) -> Option<(ShapeNumber, Option<ScheduleNumber>)> {
        if self.present.shape.is_none() {
            self.schedules.make_room();
            self.present.shape = self.number_shape().map(|shape| (shape, None));
        }
        self.present.shape
    }

    fn number_shape(&mut self) -> Option<ShapeNumber> {
        let now = (self.issued.cycle(), self.issued.used());
        self.schedules.shapes.number(now, self.last_result, &self.values, &mut self.units)
    }

    /// Runs a record as the schedule called `first` says, or one of its alternatives, unless its accesses go another way.
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
        let mut place = |access: &Access| Place {
            pc: start.wrapping_add(access.offset.into()),
            address: access.unit.begin(addresses.next().copied().unwrap_or(0)),
        };
        let (mut event, mut fetched) = (0, 0);
        while let Some(next) = schedule.events.get(event) {
            let deviation = |why| Err(Deviation { schedule: number, event, why, fetched, mark });
            match next {
                Event::Fetch { offset, at } => {
                    let at = base.wrapping_add_signed((*at).into());
                    let cycles = port.refill(Side::Instruction, start.wrapping_add((*offset).into()), 4);
                    if cycles > 0 {
                        return deviation(Why::Refill(cycles));
                    }
                    let answer = port.fetch(start.wrapping_add((*offset).into()), Cycle(at));
                    if !is_in_time(&answer, at, hit_cycles) {
                        return deviation(Why::Late(answer));
                    }
                    fetched += 1;
                }
                Event::Load { access, data } => {
                    if self.accesses.loads.free_at() > base + u64::from(access.queues) {
                        return deviation(Why::Queue);
                    }
                    let (at, bytes) = (base + u64::from(access.at), access.bytes.into());
                    let place = place(access);
                    if self.accesses.under_way.crosses(place.address, access.bytes) {
                        return deviation(Why::Crossing);
                    }
                    let cycles = port.refill(Side::Data, place.address, bytes);
                    if cycles > 0 {
                        return deviation(Why::Refill(cycles));
                    }
                    let value =
                        self.accesses.load((at, older(access)), bytes, place, &mut entry.counts, port);
                    self.window.note(u64::from(access.offset / 4), at, value.ready);
                    self.script.push(value);
                    let found = Data::of(&value, base);
                    if found != Some(*data) {
                        let other = found.and_then(|found| schedule.alternative(event, found));
                        let Some(other) = other else { return deviation(Why::Load(found)) };
                        (number, schedule) = (other, self.schedules.get(other));
                    }
                }
                Event::Store { access } => {
                    if self.accesses.stores().free_at() > base + u64::from(access.queues) {
                        return deviation(Why::Queue);
                    }
                    let (done, bytes) = (base + u64::from(access.at), access.bytes.into());
                    let place = place(access);
                    if self.accesses.under_way.crosses(place.address, access.bytes) {
                        return deviation(Why::Crossing);
                    }
                    let cycles = port.refill(Side::Data, place.address, bytes);
                    if cycles > 0 {
                        return deviation(Why::Refill(cycles));
                    }
                    self.accesses.store((done, older(access)), bytes, place, &mut entry.counts, port);
                    self.script.push(Value::computed(done));
                }
            }
            event += 1;
        }
        self.script.clear();
        self.arrive(number, base, entry, record);
        Ok(())
    }

    /// A block that began at cycle `base` and did what the schedule called `number` says has ended.
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
        self.present = Present { shape: Some((shape, Some(number))), is_own: false };
    }

    /// Runs a record instruction by instruction, but for what it did before it deviated, and keeps its schedule where it `belongs`.
    #[cold]
    fn run_noting(
        &mut self,
        entry: &mut Entry,
        record: &Record<'_>,
        port: &mut impl MemoryPort,
        deviation: Option<&Deviation>,
        belongs: Option<Belongs>,
        in_line: bool,
    ) {
        self.materialize();
        deviation.iter().for_each(|deviation| self.window.forget(deviation.mark));
        let (base, position) = (self.issued.cycle(), self.issued.position());
        let lost = self.issued.lost().clone();
        let last_result = std::mem::take(&mut self.last_result);
        self.recording.begin();
        let mut noting = Noting {
            port,
            asked: Vec::new(),
            is_special: false,
            refill: deviation.and_then(|deviation| match deviation.why {
                Why::Refill(cycles) => Some(cycles),
                _ => None,
            }),
            fetched: deviation.map_or(0, |deviation| deviation.fetched),
            late: deviation.and_then(|deviation| match deviation.why {
                Why::Late(answer) => Some(answer),
                _ => None,
            }),
            hit_cycles: self.front.hit_cycles(),
        };
        front_end::execute(self, entry, record, &mut noting);
        let (asked, is_special) = (noting.asked, noting.is_special | self.recording.is_special);
        self.recording.is_open = false;
        self.script.clear();
        let latest = self.last_result;
        self.last_result = latest.max(last_result);
        let (Some(belongs), false) = (belongs, is_special) else { return };
        let Some(shape) = self.number_shape() else { return };
        let slots = self.issued.position() - position;
        let end = self.end(shape, (base, slots, latest), &lost);
        let Some(events) = self.events(&entry.block, base, &asked, in_line) else { return };
        let kept = self.schedules.insert(Schedule::new(events, end), belongs);
        self.present.shape = kept.map(|number| (shape, Some(number)));
    }

    /// What a block that began at cycle `base` and took so many slots leaves behind; `latest` is when its latest result is there, and
    /// `lost` what was lost before it.
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

    /// What was noted of `block`, in the order in which memory was asked; `None` if something took too long to be written down.
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
