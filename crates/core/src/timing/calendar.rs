//! Which execution unit is taken in which of the next cycles, and how full the issue queues are.
//! Not a scheduler: an operation takes the first free place at or after the cycle it asks for.
//! Source: our own; the window of cycles is ZSim's idea (Sanchez and Kozyrakis, ISCA 2013, section 3.1).

/// Cycles ahead in which units are tracked. What issues later, behind a chain of misses, finds every unit free.
const WINDOW: usize = 2048;

/// Issue queues told apart: integer, floating point, memory.
pub(super) const QUEUES: usize = 3;

/// One cycle.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Units taken, a bit each.
    busy: u32,
    /// Operations issued, by queue.
    issued: [u8; QUEUES],
    /// Operations issued.
    total: u8,
}

/// The next cycles, and the operations that wait in the issue queues.
#[derive(Debug)]
pub(super) struct Calendar {
    slots: Box<[Slot; WINDOW]>,
    /// The first cycle of the window: everything before it is past.
    now: u64,
    issue_width: u8,
    waiting: [u32; QUEUES],
    limits: [u32; QUEUES],
}

impl Calendar {
    /// Free units, empty queues of `limits` entries, and at most `issue_width` operations a cycle.
    pub(super) fn new(issue_width: u8, limits: [u32; QUEUES]) -> Self {
        Self { slots: Box::new([Slot::default(); WINDOW]), now: 0, issue_width, waiting: [0; QUEUES], limits }
    }

    /// Lets time pass to `cycle`: what issued before it leaves the queues.
    #[inline]
    pub(super) fn pass_to(&mut self, cycle: u64) {
        if cycle >= self.now + WINDOW as u64 {
            self.slots.fill(Slot::default());
            self.waiting = [0; QUEUES];
            self.now = cycle;
        }
        while self.now < cycle {
            let slot = &mut self.slots[self.now as usize % WINDOW];
            for (waiting, issued) in self.waiting.iter_mut().zip(slot.issued) {
                *waiting -= u32::from(issued);
            }
            *slot = Slot::default();
            self.now += 1;
        }
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
        let end = self.now + WINDOW as u64;
        if interval != 1 {
            return self.issue_unpipelined(cycle, units, u64::from(interval), queue);
        }
        while cycle < end {
            let slot = &mut self.slots[cycle as usize % WINDOW];
            let free = units & !slot.busy;
            if free != 0 && slot.total < self.issue_width {
                // The highest, because operations that only some units execute take the lowest.
                slot.busy |= 1 << (31 - free.leading_zeros());
                slot.total += 1;
                slot.issued[queue] += 1;
                self.waiting[queue] += 1;
                return cycle;
            }
            cycle += 1;
        }
        cycle.max(ready)
    }

    /// As [`issue`](Self::issue), on a unit that takes nothing else for `interval` cycles.
    #[cold]
    fn issue_unpipelined(&mut self, from: u64, units: u32, interval: u64, queue: usize) -> u64 {
        let end = self.now + WINDOW as u64;
        let mut cycle = from;
        while cycle + interval <= end {
            let taken =
                (cycle..cycle + interval).fold(0, |taken, c| taken | self.slots[c as usize % WINDOW].busy);
            let free = units & !taken;
            if free != 0 && self.slots[cycle as usize % WINDOW].total < self.issue_width {
                let unit = 1 << (31 - free.leading_zeros());
                (cycle..cycle + interval).for_each(|c| self.slots[c as usize % WINDOW].busy |= unit);
                let slot = &mut self.slots[cycle as usize % WINDOW];
                slot.total += 1;
                slot.issued[queue] += 1;
                self.waiting[queue] += 1;
                return cycle;
            }
            cycle += 1;
        }
        cycle.max(from)
    }
}
