//! Reservations of execution units in upcoming cycles, and the occupancy of the issue queues. An operation gets the
//! first free slot at or after the cycle in which it is ready.
//!
//! Source: the window of cycles is from ZSim (Sanchez and Kozyrakis, ISCA 2013, section 3.1).

use std::collections::VecDeque;

/// Cycles covered by the array. Reservations beyond, such as those after a chain of misses or slow operations, are kept
/// in a list.
const WINDOW: usize = 2048;

/// Number of remembered searches for unpipelined units.
const SEARCHES: usize = 4;

/// Issue queues: integer, floating point, memory.
pub(crate) const QUEUES: usize = 3;

/// The reservations of one cycle, packed into a word because every operation reads and writes it: a bit for each
/// reserved unit in the low half, then a byte with the number of operations issued, then a byte for each queue.
type Slot = u64;
const ISSUED: u32 = 32;
const ISSUED_OF_QUEUE: u32 = 40;

/// The result of a search: no period of `interval` cycles in which a unit of `units` is free begins between `from` and
/// `until`. It stays valid, because reservations are never cancelled.
#[derive(Clone, Copy, Debug, Default)]
struct Search {
    units: u32,
    interval: u64,
    from: u64,
    until: u64,
}

/// Reservations, and the operations waiting in the issue queues.
#[derive(Debug)]
pub(crate) struct Calendar {
    slots: Box<[Slot; WINDOW]>,
    /// A bit for each slot that is not empty, so that advancing time skips empty ones.
    filled: [u64; WINDOW / 64],
    /// Non-empty slots beyond the window with their cycles, in order. Most are appended at the end.
    far: VecDeque<(u64, Slot)>,
    /// First cycle of the window; earlier cycles are past.
    now: u64,
    /// The last searches for unpipelined units, and the index of the one to replace next.
    searches: [Search; SEARCHES],
    oldest_search: usize,
    issue_width: u8,
    waiting: [u32; QUEUES],
    limits: [u32; QUEUES],
    /// Whether any queue has a limit.
    limited: bool,
}

impl Calendar {
    /// Creates a calendar without reservations, with empty queues of `limits` entries (`u32::MAX` for unlimited) and at
    /// most `issue_width` operations per cycle.
    pub(crate) fn new(issue_width: u8, limits: [u32; QUEUES]) -> Self {
        let limited = limits.iter().any(|limit| *limit != u32::MAX);
        Self {
            slots: Box::new([0; WINDOW]),
            filled: [0; _],
            far: VecDeque::new(),
            now: 0,
            searches: [Search::default(); _],
            oldest_search: 0,
            issue_width,
            waiting: [0; QUEUES],
            limits,
            limited,
        }
    }

    /// Advances time to `cycle`. Operations issued before it leave the queues.
    #[inline]
    pub(crate) fn pass_to(&mut self, cycle: u64) {
        if cycle <= self.now {
            return;
        }
        let window_end = cycle.min(self.now + WINDOW as u64);
        while self.now < window_end {
            let (word, bit) = (self.now as usize % WINDOW / 64, self.now % 64);
            let cycles = (window_end - self.now).min(64 - bit);
            let passed = (u64::MAX >> (64 - cycles)) << bit;
            let mut slots = self.filled[word] & passed;
            self.filled[word] &= !passed;
            while slots != 0 {
                let slot =
                    std::mem::take(&mut self.slots[(word * 64 + slots.trailing_zeros() as usize) % WINDOW]);
                self.leave_queues(slot);
                slots &= slots - 1;
            }
            self.now += cycles;
        }
        self.now = cycle;
        if !self.far.is_empty() {
            self.pass_far();
        }
    }

    /// Discards slots of the list that are past and moves those that the window has reached into the array.
    #[cold]
    fn pass_far(&mut self) {
        let end = self.now + WINDOW as u64;
        while let Some(&(cycle, slot)) = self.far.front().filter(|(cycle, _)| *cycle < end) {
            self.far.pop_front();
            if cycle < self.now {
                self.leave_queues(slot);
            } else {
                *self.slot_mut(cycle) = slot;
            }
        }
    }

    /// Removes the operations issued in a slot from the queues.
    #[inline]
    fn leave_queues(&mut self, slot: Slot) {
        if self.limited {
            for (queue, waiting) in self.waiting.iter_mut().enumerate() {
                *waiting -= (slot >> (ISSUED_OF_QUEUE + 8 * queue as u32)) as u32 & 0xff;
            }
        }
    }

    #[inline]
    fn slot(&self, cycle: u64) -> Slot {
        match cycle < self.now + WINDOW as u64 {
            true => self.slots[cycle as usize % WINDOW],
            false => self.far_slot(cycle),
        }
    }

    fn far_slot(&self, cycle: u64) -> Slot {
        let position = self.far.binary_search_by_key(&cycle, |(cycle, _)| *cycle);
        position.map_or(0, |place| self.far[place].1)
    }

    #[cold]
    fn far_slot_mut(&mut self, cycle: u64) -> &mut Slot {
        let index = match self.far.back() {
            Some((last, _)) if *last >= cycle => self.far.partition_point(|(before, _)| *before < cycle),
            _ => self.far.len(),
        };
        if self.far.get(index).is_none_or(|(found, _)| *found != cycle) {
            self.far.insert(index, (cycle, 0));
        }
        &mut self.far[index].1
    }

    #[inline]
    fn slot_mut(&mut self, cycle: u64) -> &mut Slot {
        if cycle >= self.now + WINDOW as u64 {
            return self.far_slot_mut(cycle);
        }
        let slot = cycle as usize % WINDOW;
        self.filled[slot / 64] |= 1 << (slot % 64);
        &mut self.slots[slot]
    }

    /// Returns the first cycle, no earlier than the current time, in which `queue` has a free entry, and advances time
    /// to it.
    #[inline]
    pub(crate) fn wait_for_entry(&mut self, queue: usize) -> u64 {
        while self.waiting[queue] >= self.limits[queue] {
            self.pass_to(self.now + 1);
        }
        self.now
    }

    /// Issues an operation of `queue` on one of `units` for `interval` cycles, in the first possible cycle at or after
    /// `ready`. Returns that cycle.
    #[inline]
    pub(crate) fn issue(&mut self, ready: u64, units: u32, interval: u32, queue: usize) -> u64 {
        let mut cycle = ready.max(self.now);
        if interval != 1 {
            return self.issue_unpipelined(cycle, units, u64::from(interval), queue);
        }
        loop {
            let slot = self.slot(cycle);
            if let Some(unit) = self.free_unit(slot, units & !(slot as u32)) {
                self.take(cycle, unit, queue);
                return cycle;
            }
            cycle += 1;
        }
    }

    /// Returns a unit of `free` if the cycle can issue another operation.
    #[inline]
    fn free_unit(&self, slot: Slot, free: u32) -> Option<u32> {
        // Choose the highest-numbered unit, because operations that only some units execute use the lowest.
        (free != 0 && (slot >> ISSUED) as u8 != self.issue_width).then(|| 31 - free.leading_zeros())
    }

    #[inline]
    fn take(&mut self, cycle: u64, unit: u32, queue: usize) {
        let slot = self.slot_mut(cycle);
        *slot |= 1 << unit;
        *slot += 1 << ISSUED | 1 << (ISSUED_OF_QUEUE + 8 * queue as u32);
        self.waiting[queue] += u32::from(self.limited);
    }

    /// Like [`issue`](Self::issue), for an operation that occupies its unit for `interval` cycles.
    #[cold]
    fn issue_unpipelined(&mut self, from: u64, units: u32, interval: u64, queue: usize) -> u64 {
        let same =
            |cached_search: &&Search| cached_search.units == units && cached_search.interval == interval;
        let cached = self
            .searches
            .iter()
            .filter(same)
            .filter(|cached_search| cached_search.from <= from && from < cached_search.until);
        let begin = cached.map(|cached_search| cached_search.until).max().unwrap_or(from);
        // For each unit, since when it has been free.
        let mut free_since = [begin; u32::BITS as usize];
        for end in begin + 1.. {
            let mut busy = self.slot(end - 1) as u32 & units;
            while busy != 0 {
                free_since[busy.trailing_zeros() as usize] = end;
                busy &= busy - 1;
            }
            if end - begin < interval {
                continue;
            }
            let cycle = end - interval;
            let free =
                (0..u32::BITS).filter(|unit| units & 1 << unit != 0 && free_since[*unit as usize] <= cycle);
            let free = free.fold(0, |free, unit| free | 1 << unit);
            if let Some(unit) = self.free_unit(self.slot(cycle), free) {
                self.take(cycle, unit, queue);
                for later in cycle + 1..cycle + interval {
                    *self.slot_mut(later) |= 1 << unit;
                }
                self.remember(Search { units, interval, from, until: cycle });
                return cycle;
            }
        }
        unreachable!("the cycles behind every operation are free")
    }

    fn remember(&mut self, search: Search) {
        let same = |cached_search: &Search| {
            cached_search.units == search.units && cached_search.interval == search.interval
        };
        let index = self.searches.iter().position(same).unwrap_or_else(|| {
            self.oldest_search = (self.oldest_search + 1) % SEARCHES;
            self.oldest_search
        });
        // Merge with the previous search if their ranges overlap or touch.
        let before = self.searches[index];
        let joins = same(&before) && before.from <= search.from && search.from <= before.until;
        let from = if joins { before.from } else { search.from };
        let until = if joins { before.until.max(search.until) } else { search.until };
        self.searches[index] = Search { from, until, ..search };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_request_takes_the_oldest_free_cycle() {
        let mut calendar = Calendar::new(2, [u32::MAX; QUEUES]);
        assert_eq!(calendar.issue(10, 0b11, 1, 0), 10);
        assert_eq!(calendar.issue(5, 0b11, 1, 0), 5);
        assert_eq!(calendar.issue(10, 0b11, 1, 0), 10);
        assert_eq!(calendar.issue(10, 0b11, 1, 0), 11, "both units are taken");
        assert_eq!(calendar.issue(10, 0b100, 1, 0), 11, "and two operations are the width");
    }

    #[test]
    fn an_unpipelined_unit_is_passed_around() {
        let mut calendar = Calendar::new(8, [u32::MAX; QUEUES]);
        assert_eq!(calendar.issue(0, 0b1, 5, 0), 0);
        assert_eq!(calendar.issue(0, 0b1, 1, 0), 5);
        assert_eq!(calendar.issue(0, 0b1, 5, 0), 6);
        assert_eq!(calendar.issue(0, 0b11, 1, 0), 0);
    }

    #[test]
    fn units_are_tracked_at_any_distance_in_the_future() {
        let mut calendar = Calendar::new(8, [u32::MAX; QUEUES]);
        for index in 0..200 {
            assert_eq!(calendar.issue(3, 0b1, 32, 1), 3 + 32 * index);
        }
        assert_eq!(calendar.issue(5_000, 0b1, 1, 1), 3 + 32 * 200);
        assert_eq!(calendar.issue(5_000, 0b11, 1, 1), 5_000);
        calendar.pass_to(6_000);
        assert_eq!(calendar.issue(0, 0b1, 1, 1), 3 + 32 * 200 + 1);
        calendar.pass_to(1_000_000);
        assert_eq!(calendar.issue(0, 0b1, 32, 1), 1_000_000);
    }

    proptest! {
        #[test]
        fn it_matches_a_list_of_all_issued_operations(
            asked in prop::collection::vec(
                (0u64..3000, 1u32..16, prop_oneof![3 => Just(1u32), 2 => 2u32..200], 0u64..3), 1..250),
            width in 1u8..4,
        ) {
            let (mut calendar, mut all) = (Calendar::new(width, [u32::MAX; QUEUES]), Vec::<(u64, u64, u32)>::new());
            let mut now = 0;
            for (later, units, interval, passes) in asked {
                now += passes * 40;
                calendar.pass_to(now);
                let issued = |cycle| all.iter().filter(|reservation| reservation.0 == cycle).count() < width.into();
                let free = |unit: &u32, cycle| {
                    let end = cycle + u64::from(interval);
                    units & 1 << unit != 0 && !all.iter().any(|reservation| reservation.2 == *unit && reservation.0 < end && cycle < reservation.1)
                };
                let possible = |cycle: &u64| issued(*cycle) && (0..32).any(|unit| free(&unit, *cycle));
                let expected = (now + later..).find(possible).unwrap();
                let unit = (0..32).rev().find(|unit| free(unit, expected)).unwrap();
                prop_assert_eq!(calendar.issue(now + later, units, interval, 0), expected);
                all.push((expected, expected + u64::from(interval), unit));
            }
        }
    }

    #[test]
    fn a_queue_is_full_until_something_issues() {
        let mut calendar = Calendar::new(8, [2, u32::MAX, u32::MAX]);
        calendar.issue(30, 0b1, 1, 0);
        calendar.issue(20, 0b1, 1, 0);
        assert_eq!(calendar.wait_for_entry(1), 0);
        assert_eq!(calendar.wait_for_entry(0), 21, "the younger one issued first");
        calendar.issue(10_000, 0b1, 1, 0);
        calendar.pass_to(1_000_000);
        assert_eq!(calendar.wait_for_entry(0), 1_000_000);
    }
}
