//! Miss status holding registers: how many misses may be outstanding, and until when each is.
//! Not which lines: a line in flight is in the tags already, with the time it becomes ready.
//! Source: Kroft, Lockup-free instruction fetch/prefetch cache organization, ISCA 1981.

/// The registers of a cache or a bank. Times are in any one unit.
///
/// Misses may come out of time order (an out-of-order core, or cores that run one after another), so a register remembers when it
/// was taken and when it is free, and a miss sees only those held at its own time.
#[derive(Debug)]
pub(crate) struct MissRegisters {
    limit: usize,
    from: Vec<u64>,
    until: Vec<u64>,
    next: usize,
    last_until: u64,
}

/// Twice the registers are remembered, so that late misses in the past still see who held them.
const REMEMBERED: usize = 2;

impl MissRegisters {
    /// `limit` registers.
    pub fn new(limit: usize) -> Self {
        let entries = limit * REMEMBERED;
        Self { limit, from: vec![0; entries], until: vec![0; entries], next: 0, last_until: 0 }
    }

    /// When a miss at `at` gets a register.
    pub fn start(&self, at: u64) -> u64 {
        if at >= self.last_until {
            return at;
        }
        let mut start = at;
        loop {
            let (mut held, mut first_free) = (0, u64::MAX);
            for (from, until) in self.from.iter().zip(&self.until) {
                if *from <= start && start < *until {
                    held += 1;
                    first_free = first_free.min(*until);
                }
            }
            if held < self.limit {
                return start;
            }
            start = first_free;
        }
    }

    /// A miss holds a register from `from` until `until`.
    pub fn hold(&mut self, from: u64, until: u64) {
        self.from[self.next] = from;
        self.until[self.next] = until;
        self.next = if self.next + 1 == self.from.len() { 0 } else { self.next + 1 };
        self.last_until = self.last_until.max(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_waits_for_the_first_free_register_only_when_all_are_held() {
        let mut registers = MissRegisters::new(2);
        assert_eq!(registers.start(10), 10);
        registers.hold(10, 110);
        assert_eq!(registers.start(12), 12);
        registers.hold(12, 90);
        assert_eq!(registers.start(20), 90);
        assert_eq!(registers.start(100), 100);
    }

    #[test]
    fn a_late_miss_in_the_past_does_not_wait_for_misses_of_the_future() {
        let mut registers = MissRegisters::new(1);
        registers.hold(1000, 1100);
        assert_eq!(registers.start(5), 5);
        assert_eq!(registers.start(1050), 1100);
    }
}
