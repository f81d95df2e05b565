//! An interrupt line, from the device to the file on which a program waits. The core's work to handle the interrupt is
//! accounted for separately. Source: level-triggered, like PCI and the 3A5000's interrupt controller.

use longma_linux::DeviceFile;
use longma_sim::{Duration, Time};

/// An interrupt line.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// The time from assertion until the file is ready.
    latency: Duration,
    asserted: bool,
    /// The time at which the file becomes ready.
    due: Option<Time>,
    /// Assertions that are not visible in the file yet.
    unreported: u64,
    /// Whether the line was released since the last call of [`Self::clear_if_released`].
    released: bool,
    /// The number of assertions.
    pub assertions: u64,
    /// How often the file became ready.
    pub deliveries: u64,
}

impl Line {
    /// Creates a deasserted line.
    pub fn new(latency: Duration) -> Self {
        Self { latency, ..Self::default() }
    }

    /// The time from assertion until the file is ready.
    pub fn latency(&self) -> Duration {
        self.latency
    }

    /// Sets the level of the line.
    pub fn set(&mut self, asserted: bool, at: Time) {
        if asserted && !self.asserted {
            self.assertions += 1;
            self.unreported += 1;
            self.due = at.checked_add(self.latency);
        } else if !asserted && self.asserted {
            (self.due, self.unreported, self.released) = (None, 0, true);
        }
        self.asserted = asserted;
    }

    /// The time at which the file becomes ready.
    pub fn due(&self) -> Option<Time> {
        self.due
    }

    /// A lower bound of the time at which events of the device from `at` on can make the file ready.
    pub fn earliest(&self, at: Time) -> Time {
        let soonest = at.checked_add(self.latency).unwrap_or(at);
        self.due.map_or(soonest, |due| due.min(soonest))
    }

    /// Makes the file ready if that is due. Returns true if it did.
    pub fn deliver(&mut self, at: Time, file: &DeviceFile) -> bool {
        if self.due.is_none_or(|due| due > at) {
            return false;
        }
        self.due = None;
        self.deliveries += 1;
        file.add_events(self.unreported.max(1));
        self.unreported = 0;
        true
    }

    /// Makes the file not ready if the line was released.
    pub fn clear_if_released(&mut self, file: &DeviceFile) {
        if std::mem::take(&mut self.released) {
            file.clear_events();
        }
    }

    /// Handles a register write at `at`: a line that is still asserted interrupts again.
    pub fn reassert(&mut self, at: Time, file: &DeviceFile) {
        if self.asserted && self.due.is_none() && !file.is_ready() {
            self.due = at.checked_add(self.latency);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ps: u64) -> Time {
        Time::from_ps(ps)
    }

    fn line() -> (Line, DeviceFile) {
        (Line::new(Duration::from_ps(100)), DeviceFile::registers("test", 0, 4096).unwrap())
    }

    #[test]
    fn an_interrupt_makes_the_file_readable_once_after_its_latency() {
        let (mut line, file) = line();
        line.set(true, at(10));
        assert!(!line.deliver(at(109), &file) && !file.is_ready());
        assert!(line.deliver(at(110), &file) && file.is_ready());
        assert!(!line.deliver(at(111), &file), "it was delivered");
        assert_eq!((line.assertions, line.deliveries), (1, 1));
    }

    #[test]
    fn releasing_a_line_withdraws_an_unread_interrupt() {
        let (mut line, file) = line();
        line.set(true, at(0));
        line.deliver(at(100), &file);
        line.set(false, at(150));
        line.clear_if_released(&file);
        assert!(!file.is_ready());
        line.set(true, at(200));
        line.set(false, at(250));
        assert_eq!(line.due(), None, "it was released before it was reported");
    }

    #[test]
    fn a_cause_between_reading_and_clearing_is_delivered_again() {
        let (mut line, file) = line();
        line.set(true, at(0));
        line.deliver(at(100), &file);
        file.clear_events();
        line.reassert(at(300), &file);
        assert_eq!(line.due(), Some(at(400)), "the line is still asserted");
        line.deliver(at(400), &file);
        line.reassert(at(500), &file);
        assert_eq!(line.due(), None, "the file is readable already");
    }
}
