//! Which execution unit is taken in which of the next cycles, and how full the issue queues are.
//! Not a scheduler: an operation takes the first free place at or after the cycle it asks for.
//! Source: our own; the window of cycles is ZSim's idea (Sanchez and Kozyrakis, ISCA 2013, section 3.1).

/// Cycles ahead in which units are tracked. What issues later, behind a chain of misses, finds every unit free.
const WINDOW: usize = 2048;

/// Issue queues told apart: integer, floating point, memory.
pub(super) const QUEUES: usize = 3;

/// One cycle, in a word because it is read and written for every operation: units taken, a bit each, in the low half; then a byte
/// for the operations issued, and a byte for those of each queue.
type Slot = u64;
const ISSUED: u32 = 32;
const ISSUED_OF_QUEUE: u32 = 40;

/// The next cycles, and the operations that wait in the issue queues.
#[derive(Debug)]
pub(super) struct Calendar {
    slots: Box<[Slot; WINDOW]>,
    /// Slots that are not empty, a bit each: long waits pass over the others without a look.
    filled: [u64; WINDOW / 64],
    /// The first cycle of the window: everything before it is past.
    now: u64,
    issue_width: u8,
    waiting: [u32; QUEUES],
    limits: [u32; QUEUES],
    /// Some queue has a limit.
    limited: bool,
}

impl Calendar {
    /// Free units, empty queues of `limits` entries (`u32::MAX` for any number), and at most `issue_width` operations a cycle.
    pub(super) fn new(issue_width: u8, limits: [u32; QUEUES]) -> Self {
        let limited = limits.iter().any(|limit| *limit != u32::MAX);
        Self {
            slots: Box::new([0; WINDOW]),
            filled: [0; _],
            now: 0,
            issue_width,
            waiting: [0; QUEUES],
            limits,
            limited,
        }
    }

    /// Lets time pass to `cycle`: what issued before it leaves the queues.
    #[inline]
    pub(super) fn pass_to(&mut self, cycle: u64) {
        if cycle <= self.now {
            return;
        }
        if cycle >= self.now + WINDOW as u64 {
            self.slots.fill(0);
            self.filled.fill(0);
            self.waiting = [0; QUEUES];
            self.now = cycle;
        }
        while self.now < cycle {
            let (word, bit) = (self.now as usize % WINDOW / 64, self.now % 64);
            let cycles = (cycle - self.now).min(64 - bit);
            let passed = (u64::MAX >> (64 - cycles)) << bit;
            let mut slots = self.filled[word] & passed;
            self.filled[word] &= !passed;
            while slots != 0 {
                self.empty(word * 64 + slots.trailing_zeros() as usize);
                slots &= slots - 1;
            }
            self.now += cycles;
        }
    }

    /// What issued in a slot leaves the queues.
    #[inline]
    fn empty(&mut self, slot: usize) {
        let slot = std::mem::take(&mut self.slots[slot % WINDOW]);
        if self.limited {
            for (queue, waiting) in self.waiting.iter_mut().enumerate() {
                *waiting -= (slot >> (ISSUED_OF_QUEUE + 8 * queue as u32)) as u32 & 0xff;
            }
        }
    }

    #[inline]
    fn slot_mut(&mut self, cycle: u64) -> &mut Slot {
        let slot = cycle as usize % WINDOW;
        self.filled[slot / 64] |= 1 << (slot % 64);
        &mut self.slots[slot]
    }

    /// The first cycle, at or after the last passed one, in which `queue` has a free entry. Time passes to it.
    #[inline]
    pub(super) fn wait_for_entry(&mut self, queue: usize) -> u64 {
        while self.waiting[queue] >= self.limits[queue] {
            self.pass_to(self.now + 1);
        }
        self.now
    }

    /// Issues an operation of `queue` on one of `units` for `interval` cycles, at the first cycle that is possible at or after
    /// `ready`, and returns that cycle.
    #[inline]
    pub(super) fn issue(&mut self, ready: u64, units: u32, interval: u32, queue: usize) -> u64 {
        let mut cycle = ready.max(self.now);
        if interval != 1 {
            return self.issue_unpipelined(cycle, units, u64::from(interval), queue);
        }
        let end = self.now + WINDOW as u64;
        while cycle < end {
            let slot = self.slots[cycle as usize % WINDOW];
            if let Some(unit) = self.free_unit(slot, units & !(slot as u32)) {
                self.take(cycle, unit, queue);
                return cycle;
            }
            cycle += 1;
        }
        cycle
    }

    /// A unit of `free` if the cycle may issue another operation.
    #[inline]
    fn free_unit(&self, slot: Slot, free: u32) -> Option<u32> {
        // The highest, because operations that only some units execute take the lowest.
        (free != 0 && (slot >> ISSUED) as u8 != self.issue_width).then(|| 31 - free.leading_zeros())
    }

    #[inline]
    fn take(&mut self, cycle: u64, unit: u32, queue: usize) {
        let slot = self.slot_mut(cycle);
        *slot |= 1 << unit;
        *slot += 1 << ISSUED | 1 << (ISSUED_OF_QUEUE + 8 * queue as u32);
        self.waiting[queue] += u32::from(self.limited);
    }

    /// As [`issue`](Self::issue), on a unit that takes nothing else for `interval` cycles.
    #[cold]
    fn issue_unpipelined(&mut self, from: u64, units: u32, interval: u64, queue: usize) -> u64 {
        let end = self.now + WINDOW as u64;
        let mut cycle = from;
        while cycle + interval <= end {
            let busy =
                (cycle..cycle + interval).fold(0, |busy, c| busy | self.slots[c as usize % WINDOW] as u32);
            if let Some(unit) = self.free_unit(self.slots[cycle as usize % WINDOW], units & !busy) {
                self.take(cycle, unit, queue);
                for later in cycle + 1..cycle + interval {
                    *self.slot_mut(later) |= 1 << unit;
                }
                return cycle;
            }
            cycle += 1;
        }
        cycle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_free_cycle_is_taken_by_whoever_asks_first() {
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
