//! When the MAC interrupts: at once, after some frames, after a while, and never more often than software wants.
//! Not what software does then.
//! Source: the receive watchdog of Synopsys DesignWare MACs and the interrupt interval (EITR) of Intel's 82599 data sheet, 7.3.2.1.

use super::registers as r;
use super::state::{MacSpec, MacState};
use crate::Bus;
use longma_sim::{Duration, Time};

impl MacState {
    /// When the line changes by itself.
    pub(super) fn interrupt_time(&self) -> Option<Time> {
        let told = self.moderation.tell_at;
        let wanted = self.moderation.causes & self.settings.enable != 0 && !self.moderation.asserted;
        let line = wanted.then_some(self.moderation.allowed_at);
        [told, line].into_iter().flatten().min().map(|at| at.max(self.now))
    }

    /// What is due of interrupts.
    pub(super) fn moderate(&mut self, bus: &mut dyn Bus) {
        if self.moderation.tell_at.is_some_and(|at| at <= self.now) {
            self.tell(bus);
        }
        self.set_line(bus);
    }

    /// A frame was handed over.
    pub(super) fn received(&mut self, spec: &MacSpec, bus: &mut dyn Bus) {
        let moderation = &mut self.moderation;
        moderation.frames += 1;
        let enough = self.settings.rx_frames;
        let wait = match enough > 0 && moderation.frames >= enough {
            true => Duration::ZERO,
            false => Duration::from_ns(self.settings.rx_delay_ns).unwrap_or(Duration::from_ps(u64::MAX)),
        };
        let at = later(later(self.now, wait), spec.interrupt_delay);
        moderation.tell_at = Some(moderation.tell_at.map_or(at, |before| before.min(at)));
        self.moderate(bus);
    }

    fn tell(&mut self, bus: &mut dyn Bus) {
        (self.moderation.frames, self.moderation.tell_at) = (0, None);
        self.cause(r::INT_RX.mask(), bus);
    }

    /// Notes causes of an interrupt.
    pub(super) fn cause(&mut self, causes: u64, bus: &mut dyn Bus) {
        self.moderation.causes |= causes;
        self.set_line(bus);
    }

    /// Brings the line to where it belongs now.
    pub(super) fn set_line(&mut self, bus: &mut dyn Bus) {
        let moderation = &mut self.moderation;
        let wanted = moderation.causes & self.settings.enable != 0;
        let may = !wanted || moderation.allowed_at <= self.now;
        if wanted == moderation.asserted || !may {
            return;
        }
        moderation.asserted = wanted;
        if wanted {
            self.counters.interrupts += 1;
            let interval =
                Duration::from_ns(self.settings.interval_ns).unwrap_or(Duration::from_ps(u64::MAX));
            moderation.allowed_at = later(self.now, interval);
        }
        bus.interrupt(0, wanted, self.now);
    }
}

fn later(at: Time, by: Duration) -> Time {
    Time::from_ps(at.ps().saturating_add(by.ps()))
}
