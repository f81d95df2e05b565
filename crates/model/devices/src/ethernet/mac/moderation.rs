//! Interrupt moderation: a queue interrupts immediately, after a number of frames, or after a delay, and no more often
//! than the minimum interval.
//!
//! Source: the receive watchdog of Synopsys DesignWare MACs and the interrupt interval (EITR) of Intel's 82599 data
//! sheet, 7.3.2.1.

use super::registers as r;
use super::state::{MacSpec, MacState, Moderation};
use crate::Bus;
use longma_sim::{Duration, Time};

impl Moderation {
    /// When the queue's interrupt state next changes.
    fn next(&self) -> Option<Time> {
        let needs_interrupt = self.causes & self.enable != 0 && !self.asserted;
        let line = needs_interrupt.then_some(self.allowed_at);
        [self.interrupt_at, line].into_iter().flatten().min()
    }
}

impl MacState {
    /// When any queue's interrupt state next changes.
    pub(super) fn interrupt_time(&self) -> Option<Time> {
        let next = self.queues.iter().filter_map(|queue| queue.moderation.next()).min();
        next.map(|at| at.max(self.now))
    }

    /// Processes pending interrupt events.
    pub(super) fn moderate(&mut self, bus: &mut dyn Bus) {
        for queue in 0..self.queues.len() {
            if self.queues[queue].moderation.interrupt_at.is_some_and(|at| at <= self.now) {
                self.report_when_visible(queue, bus);
            }
            self.set_line(queue, bus);
        }
    }

    /// Records a received frame of the current receive queue.
    pub(super) fn received(&mut self, spec: &MacSpec, bus: &mut dyn Bus) {
        let moderation = &mut self.queues[self.rx_queue].moderation;
        moderation.frames += 1;
        let enough = moderation.rx_frames;
        let wait = match enough > 0 && moderation.frames >= enough {
            true => Duration::ZERO,
            false => Duration::from_ns(moderation.rx_delay_ns).unwrap_or(Duration::from_ps(u64::MAX)),
        };
        let at = later(later(self.now, wait), spec.interrupt_delay);
        moderation.interrupt_at = Some(moderation.interrupt_at.map_or(at, |before| before.min(at)));
        self.moderate(bus);
    }

    /// Reports received frames once software can see them. Closes the queue's large frame.
    fn report_when_visible(&mut self, queue: usize, bus: &mut dyn Bus) {
        let later = match self.busy_merging(queue) {
            Some(at) => Some(at),
            None => self.close(queue, bus),
        };
        match later.filter(|at| *at > self.now) {
            Some(at) => self.queues[queue].moderation.interrupt_at = Some(at),
            None => self.raise_interrupt(queue, bus),
        }
    }

    fn raise_interrupt(&mut self, queue: usize, bus: &mut dyn Bus) {
        let moderation = &mut self.queues[queue].moderation;
        (moderation.frames, moderation.interrupt_at) = (0, None);
        self.cause(queue, r::INT_RX.mask(), bus);
    }

    /// Sets causes of a queue's interrupt.
    pub(super) fn cause(&mut self, queue: usize, causes: u64, bus: &mut dyn Bus) {
        self.queues[queue].moderation.causes |= causes;
        self.set_line(queue, bus);
    }

    /// Updates a queue's interrupt line.
    pub(super) fn set_line(&mut self, queue: usize, bus: &mut dyn Bus) {
        let moderation = &mut self.queues[queue].moderation;
        let is_pending = moderation.causes & moderation.enable != 0;
        let may = !is_pending || moderation.allowed_at <= self.now;
        if is_pending == moderation.asserted || !may {
            return;
        }
        moderation.asserted = is_pending;
        if is_pending {
            self.counters.interrupts += 1;
            let interval = Duration::from_ns(moderation.interval_ns).unwrap_or(Duration::from_ps(u64::MAX));
            moderation.allowed_at = later(self.now, interval);
        }
        bus.interrupt(queue as u32, is_pending, self.now);
    }
}

fn later(at: Time, by: Duration) -> Time {
    Time::from_ps(at.ps().saturating_add(by.ps()))
}
