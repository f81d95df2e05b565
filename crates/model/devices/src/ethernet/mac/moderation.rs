//! When a queue interrupts: at once, after some frames, after a while, and never more often than software wants.
//! Not what software does then.
//! Source: the receive watchdog of Synopsys DesignWare MACs and the interrupt interval (EITR) of Intel's 82599 data sheet, 7.3.2.1.

use super::registers as r;
use super::state::{MacSpec, MacState, Moderation};
use crate::Bus;
use longma_sim::{Duration, Time};

impl Moderation {
    /// When the line changes by itself.
    fn next(&self) -> Option<Time> {
        let wanted = self.causes & self.enable != 0 && !self.asserted;
        let line = wanted.then_some(self.allowed_at);
        [self.tell_at, line].into_iter().flatten().min()
    }
}

impl MacState {
    /// When a line changes by itself.
    pub(super) fn interrupt_time(&self) -> Option<Time> {
        let next = self.queues.iter().filter_map(|queue| queue.moderation.next()).min();
        next.map(|at| at.max(self.now))
    }

    /// What is due of interrupts.
    pub(super) fn moderate(&mut self, bus: &mut dyn Bus) {
        for queue in 0..self.queues.len() {
            if self.queues[queue].moderation.tell_at.is_some_and(|at| at <= self.now) {
                self.tell_when_seen(queue, bus);
            }
            self.set_line(queue, bus);
        }
    }

    /// A frame of the queue at work was handed over.
    pub(super) fn received(&mut self, spec: &MacSpec, bus: &mut dyn Bus) {
        let moderation = &mut self.queues[self.rx_queue].moderation;
        moderation.frames += 1;
        let enough = moderation.rx_frames;
        let wait = match enough > 0 && moderation.frames >= enough {
            true => Duration::ZERO,
            false => Duration::from_ns(moderation.rx_delay_ns).unwrap_or(Duration::from_ps(u64::MAX)),
        };
        let at = later(later(self.now, wait), spec.interrupt_delay);
        moderation.tell_at = Some(moderation.tell_at.map_or(at, |before| before.min(at)));
        self.moderate(bus);
    }

    /// Software is told of frames once it sees them: a large frame ends here at latest.
    fn tell_when_seen(&mut self, queue: usize, bus: &mut dyn Bus) {
        let later = match self.busy_merging(queue) {
            Some(at) => Some(at),
            None => self.close(queue, bus),
        };
        match later.filter(|at| *at > self.now) {
            Some(at) => self.queues[queue].moderation.tell_at = Some(at),
            None => self.tell(queue, bus),
        }
    }

    fn tell(&mut self, queue: usize, bus: &mut dyn Bus) {
        let moderation = &mut self.queues[queue].moderation;
        (moderation.frames, moderation.tell_at) = (0, None);
        self.cause(queue, r::INT_RX.mask(), bus);
    }

    /// Notes causes of a queue's interrupt.
    pub(super) fn cause(&mut self, queue: usize, causes: u64, bus: &mut dyn Bus) {
        self.queues[queue].moderation.causes |= causes;
        self.set_line(queue, bus);
    }

    /// Brings a queue's line to where it belongs now.
    pub(super) fn set_line(&mut self, queue: usize, bus: &mut dyn Bus) {
        let moderation = &mut self.queues[queue].moderation;
        let wanted = moderation.causes & moderation.enable != 0;
        let may = !wanted || moderation.allowed_at <= self.now;
        if wanted == moderation.asserted || !may {
            return;
        }
        moderation.asserted = wanted;
        if wanted {
            self.counters.interrupts += 1;
            let interval = Duration::from_ns(moderation.interval_ns).unwrap_or(Duration::from_ps(u64::MAX));
            moderation.allowed_at = later(self.now, interval);
        }
        bus.interrupt(queue as u32, wanted, self.now);
    }
}

fn later(at: Time, by: Duration) -> Time {
    Time::from_ps(at.ps().saturating_add(by.ps()))
}
