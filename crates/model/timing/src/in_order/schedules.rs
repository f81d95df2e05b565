//! The schedules of blocks in an in-order pipeline, indexed by the pipeline's shape at the start of the block.
//! `replay.rs` replays them.
//!
//! Source: action chains of Schnarr and Larus, Fast Out-of-Order Processor Simulation Using Memoization (ASPLOS 1998).

use rustc_hash::FxHashMap;

use super::{
    Value,
    shapes::{ShapeNumber, Shapes},
};
use crate::{front_end::FetchState, operations::AccessedUnit, stack::Cause};
use longma_trace::BlockNumber;

/// Maximum number of schedules: some ten megabytes.
const MAX_SCHEDULES: usize = 1 << 15;
/// Maximum number of alternative continuations of a schedule, for loads with other latencies.
const MAX_ALTERNATIVES: usize = 8;

/// All inputs that determine the timing of a block, except the results of its accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub shape: ShapeNumber,
    pub block: BlockNumber,
    pub fetching: FetchState,
}

/// A schedule's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ScheduleNumber(u32);

/// A memory request of a block, in order. Cycles are relative to the start of the block.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A fetch of the instruction line at byte `offset` of the block. The line arrives in time.
    Fetch { offset: u16, at: i32 },
    /// A load.
    Load { access: Access, data: Data },
    /// A store.
    Store { access: Access },
}

/// A load or a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    /// Byte offset of the instruction in the block.
    pub offset: u16,
    pub bytes: u8,
    pub unit: AccessedUnit,
    /// When it needs its queue entry.
    pub queues: u32,
    /// When it issues; for a store, when its data is available.
    pub at: u32,
    /// Completion slot of the preceding instruction of the block.
    pub completed: u32,
}

/// The result of a load: a [`Value`] with cycles relative to the start of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Data {
    pub ready: u32,
    pub translation_cycles: u32,
    pub cause: Cause,
}

impl Data {
    /// Converts `value` for a block that begins at cycle `base`; `None` if the cycles do not fit.
    #[inline]
    pub fn of(value: &Value, base: u64) -> Option<Self> {
        let &Value { ready, cause, translation_cycles } = value;
        let ready = u32::try_from(ready.checked_sub(base)?).ok()?;
        Some(Self { ready, translation_cycles, cause })
    }
}

/// The end state of a block. Cycles are relative to its start.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub shape: ShapeNumber,
    /// Cycle of the last issue, and the slots used in it.
    pub cycle: u64,
    pub used: u64,
    /// Slots between the start and the end of the block.
    pub slots: u64,
    /// Current fetch cycle, and the number of instructions fetched in it.
    pub fetch_cycle: i64,
    pub fetched: u64,
    /// When the results of the last instruction and of the latest one are available.
    pub resolved: u64,
    pub last_result: u64,
    /// Completion slot of the last instruction, if nothing before the block completes later.
    pub completed: u64,
    /// Lost slots by cause.
    pub lost: Box<[(Cause, u64)]>,
}

/// A recorded execution of a block.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    pub events: Box<[Event]>,
    pub end: End,
    /// Schedules that followed this one, most recent first: a cache in front of the table.
    followers: [Option<(BlockNumber, FetchState, ScheduleNumber)>; 2],
    /// For an event that is a load, another result and the schedule that continues with it.
    alternatives: Vec<(u16, Data, ScheduleNumber)>,
}

impl Schedule {
    /// Creates a schedule without known successors.
    pub fn new(events: Box<[Event]>, end: End) -> Self {
        Self { events, end, followers: [None; 2], alternatives: Vec::new() }
    }

    /// The schedule that continues if event `event`, a load, has the result `data`.
    pub fn alternative(&self, event: usize, data: Data) -> Option<ScheduleNumber> {
        let alternative = self
            .alternatives
            .iter()
            .find(|alternative| usize::from(alternative.0) == event && alternative.1 == data);
        alternative.map(|alternative| alternative.2)
    }
}

/// Where a new schedule is stored.
#[derive(Clone, Copy, Debug)]
pub(super) enum ScheduleSlot {
    /// In the table.
    Entry(Key),
    /// As an alternative of a schedule: identical up to this event, a load that has this result.
    Alternative(ScheduleNumber, usize, Data),
}

/// All known schedules.
#[derive(Debug, Default)]
pub(super) struct Schedules {
    pub shapes: Shapes,
    by_key: FxHashMap<Key, ScheduleNumber>,
    schedules: Vec<Schedule>,
}

impl Schedules {
    /// The schedule `number`.
    #[inline]
    pub fn get(&self, number: ScheduleNumber) -> &Schedule {
        &self.schedules[number.0 as usize]
    }

    /// Finds the schedule for `key`, which follows schedule `before` if there is one.
    #[inline]
    pub fn find(&mut self, before: Option<ScheduleNumber>, key: Key) -> Option<ScheduleNumber> {
        let Some(before) = before else { return self.by_key.get(&key).copied() };
        let schedule = &mut self.schedules[before.0 as usize];
        for followers in schedule.followers.iter().flatten() {
            if (followers.0, followers.1) == (key.block, key.fetching) {
                return Some(followers.2);
            }
        }
        let number = *self.by_key.get(&key)?;
        schedule.followers = [Some((key.block, key.fetching, number)), schedule.followers[0]];
        Some(number)
    }

    /// Stores a schedule and returns its number. `None` if the schedule already has too many alternatives. If the table
    /// is full, all schedules and shapes are discarded.
    pub fn insert(&mut self, schedule: Schedule, store_as: ScheduleSlot) -> Option<ScheduleNumber> {
        if self.schedules.len() == MAX_SCHEDULES {
            self.clear();
            return None;
        }
        let number = ScheduleNumber(self.schedules.len() as u32);
        match store_as {
            ScheduleSlot::Entry(key) => {
                self.by_key.insert(key, number);
            }
            ScheduleSlot::Alternative(first, event, data) => {
                let alternatives = &mut self.schedules[first.0 as usize].alternatives;
                if alternatives.len() == MAX_ALTERNATIVES {
                    return None;
                }
                alternatives.push((event as u16, data, number));
            }
        }
        self.schedules.push(schedule);
        Some(number)
    }

    /// Discards all schedules if no number is left for a new shape. Numbers of shapes and schedules obtained before
    /// become invalid.
    #[cold]
    pub fn make_room(&mut self) {
        if self.shapes.is_full() {
            self.clear();
        }
    }

    /// Number of schedules.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.schedules.len()
    }

    fn clear(&mut self) {
        self.shapes.clear();
        self.by_key.clear();
        self.schedules.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Units;

    fn fixture() -> (Schedules, Key, Schedule) {
        let mut schedules = Schedules::default();
        let values = [Value::EARLY; _];
        let shape = schedules.shapes.number((0, 0), 0, &values, &mut Units::new()).unwrap();
        let (cycle, used, slots, fetch_cycle, fetched, resolved, last_result, completed) =
            (1, 1, 1, 0, 1, 1, 1, 1);
        let lost = Box::default();
        let end =
            End { shape, cycle, used, slots, fetch_cycle, fetched, resolved, last_result, completed, lost };
        let key = Key { shape, block: BlockNumber(0), fetching: FetchState::default() };
        (schedules, key, Schedule::new(Box::default(), end))
    }

    #[test]
    fn a_schedule_is_found_by_key_and_by_predecessor() {
        let (mut schedules, key, schedule) = fixture();
        let first = schedules.insert(schedule.clone(), ScheduleSlot::Entry(key));
        let next = Key { block: BlockNumber(1), ..key };
        assert_eq!(schedules.find(first, next), None);
        let second = schedules.insert(schedule, ScheduleSlot::Entry(next));
        for _ in 0..2 {
            assert_eq!(schedules.find(first, next), second);
            assert_eq!(schedules.find(None, next), second);
            assert_eq!(schedules.find(second, key), first);
        }
    }

    #[test]
    fn the_alternatives_of_a_load_are_limited() {
        let (mut schedules, key, schedule) = fixture();
        let first = schedules.insert(schedule.clone(), ScheduleSlot::Entry(key)).unwrap();
        for ready in 0..2 * MAX_ALTERNATIVES as u32 {
            let data = Data { ready, translation_cycles: 0, cause: Cause::Level2 };
            let inserted = schedules.insert(schedule.clone(), ScheduleSlot::Alternative(first, 3, data));
            assert_eq!(inserted.is_some(), (ready as usize) < MAX_ALTERNATIVES);
            assert_eq!(schedules.get(first).alternative(3, data), inserted);
            assert_eq!(schedules.get(first).alternative(2, data), None);
        }
    }

    #[test]
    fn a_full_table_of_shapes_is_cleared() {
        let (mut schedules, key, schedule) = fixture();
        schedules.insert(schedule, ScheduleSlot::Entry(key));
        let (mut values, mut units) = ([Value::EARLY; _], Units::new());
        let mut number = |schedules: &mut Schedules, nth: u64| {
            let late = |ready| Value { ready, ..Value::EARLY };
            (values[1], values[2]) = (late(1 + nth % 4000), late(1 + nth / 4000));
            schedules.shapes.number((0, 0), 4000, &values, &mut units)
        };
        let rejected = (0..).find(|&nth| number(&mut schedules, nth).is_none()).unwrap();
        assert_eq!(schedules.find(None, key).map(|_| ()), Some(()), "nothing is lost yet");
        schedules.make_room();
        assert!(number(&mut schedules, rejected).is_some());
        assert_eq!(schedules.find(None, key), None);
    }

    #[test]
    fn full_tables_are_cleared_and_filled_again() {
        let (mut schedules, key, schedule) = fixture();
        for block in 0..MAX_SCHEDULES as u32 {
            let key = Key { block: BlockNumber(block), ..key };
            assert!(schedules.insert(schedule.clone(), ScheduleSlot::Entry(key)).is_some());
        }
        assert_eq!(schedules.insert(schedule.clone(), ScheduleSlot::Entry(key)), None);
        assert_eq!(schedules.find(None, key), None);
        assert!(schedules.insert(schedule, ScheduleSlot::Entry(key)).is_some());
    }
}
