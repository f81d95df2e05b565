//! The NIC: the processor, which loses memory cycles to the DMA engines; the three engines; and the interrupt line.
//!
//! Source: Myricom, "LANai 4.X", 0.3 and 1 to 3; Dubnicki et al. (IPPS 1997): the memory runs at twice the processor's
//! clock.

use super::{Bus, Direction, Parameters};
use longma_sim::{Duration, Time};

/// Memory accesses per processor cycle. The SRAM runs at twice the clock.
const ACCESSES_PER_CYCLE: f64 = 2.0;

/// Accesses that the processor needs per cycle: one for the instruction, and one for each fourth instruction, which is
/// a load or store.
const WANTED_PER_CYCLE: f64 = 1.25;

/// The processor's minimum share when engines of both types run. Estimate (0.1 to 0.5): the engines have FIFOs and
/// leave gaps.
const MIN_SHARE: f64 = 0.25;

/// The DMA engines of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Between host memory and SRAM; one transfer in one direction at a time.
    Host,
    /// From SRAM to the wire.
    Send,
    /// From the wire to SRAM.
    Receive,
}

/// A NIC.
#[derive(Clone, Debug)]
pub struct Card {
    clock_hz: u64,
    word_bytes: u64,
    dma_start: Duration,
    interrupt_interval: Duration,
    link_rate: u64,
    host_rate: [u64; 2],
    host: Option<Direction>,
    sending: bool,
    receiving: bool,
    last_interrupt: Option<Time>,
    busy_cycles: u64,
    interrupts: u64,
}

impl Card {
    /// Creates the NIC described by the machine file.
    pub fn new(parameters: &Parameters) -> Self {
        Self {
            clock_hz: parameters.clock_hz,
            word_bytes: u64::from(parameters.word_bytes),
            dma_start: parameters.dma_start,
            interrupt_interval: parameters.interrupt_interval,
            link_rate: parameters.link_rate,
            host_rate: [parameters.bus_write, parameters.bus_read],
            host: None,
            sending: false,
            receiving: false,
            last_interrupt: None,
            busy_cycles: 0,
            interrupts: 0,
        }
    }

    /// The time that the processor takes for `cycles` while the current engines run. The cycles are counted as work.
    pub fn compute(&mut self, cycles: u32) -> Duration {
        self.busy_cycles += u64::from(cycles);
        self.cycles(cycles)
    }

    /// Like [`Card::compute`], for cycles that are not counted as work.
    pub fn cycles(&self, cycles: u32) -> Duration {
        let exact = f64::from(cycles) * 1e12 / self.clock_hz as f64;
        Duration::from_ps((exact / self.processor_share()).round() as u64)
    }

    /// The fraction of the processor's speed that remains while the engines run.
    pub fn processor_share(&self) -> f64 {
        let link = self.link_rate * (u64::from(self.sending) + u64::from(self.receiving));
        let host = match self.host {
            Some(Direction::ToHost) => self.host_rate[0],
            Some(Direction::FromHost) => self.host_rate[1],
            None => 0,
        };
        let taken = (link + host) as f64 / (self.word_bytes * self.clock_hz) as f64;
        ((ACCESSES_PER_CYCLE - taken) / WANTED_PER_CYCLE).clamp(MIN_SHARE, 1.0)
    }

    /// Whether an engine is busy.
    pub fn is_busy(&self, engine: Engine) -> bool {
        match engine {
            Engine::Host => self.host.is_some(),
            Engine::Send => self.sending,
            Engine::Receive => self.receiving,
        }
    }

    /// Starts the host engine, which must be idle. The bus determines when it ends.
    pub fn begin_host(&mut self, now: Time, bytes: u32, direction: Direction, bus: &mut Bus) {
        debug_assert!(self.host.is_none(), "one transfer at a time");
        self.host = Some(direction);
        let at = Time::from_ps(now.ps() + self.dma_start.ps());
        bus.begin_dma(at, bytes, direction);
    }

    /// Marks the host engine as idle.
    pub fn end_host(&mut self) {
        self.host = None;
    }

    /// Marks the send or receive engine as busy or idle.
    pub fn set_link(&mut self, engine: Engine, busy: bool) {
        match engine {
            Engine::Send => self.sending = busy,
            Engine::Receive => self.receiving = busy,
            Engine::Host => {}
        }
    }

    /// Interrupts the host, if the minimum interval has passed.
    pub fn interrupt(&mut self, now: Time) -> bool {
        let allowed = self.interrupt_allowed_at().is_none_or(|at| at <= now);
        if allowed {
            self.last_interrupt = Some(now);
            self.interrupts += 1;
        }
        allowed
    }

    /// When the next interrupt is permitted; `None` means at any time.
    pub fn interrupt_allowed_at(&self) -> Option<Time> {
        self.last_interrupt.map(|at| Time::from_ps(at.ps() + self.interrupt_interval.ps()))
    }

    /// The cycles of work so far.
    pub fn busy_cycles(&self) -> u64 {
        self.busy_cycles
    }

    /// The number of interrupts so far.
    pub fn interrupts(&self) -> u64 {
        self.interrupts
    }
}

#[cfg(test)]
mod tests {
    use super::super::parameters::tests::piii;
    use super::*;

    #[test]
    fn the_processor_is_slower_while_engines_take_memory_cycles() {
        let mut card = Card::new(&piii());
        assert_eq!(card.cycles(33).ps(), 1_000_000);
        card.set_link(Engine::Send, true);
        let with_link = card.processor_share();
        assert!(with_link < 1.0 && with_link > 0.5, "{with_link}");
        let mut bus = Bus::new(&piii());
        card.begin_host(Time::ZERO, 4096, Direction::FromHost, &mut bus);
        assert_eq!(card.processor_share(), MIN_SHARE);
        card.set_link(Engine::Send, false);
        card.end_host();
        assert_eq!(card.compute(33).ps(), 1_000_000);
        assert_eq!(card.busy_cycles(), 33);
    }

    #[test]
    fn a_host_dma_begins_after_its_start_up() {
        let (mut card, mut bus) = (Card::new(&piii()), Bus::new(&piii()));
        card.begin_host(Time::ZERO, 126, Direction::ToHost, &mut bus);
        assert!(card.is_busy(Engine::Host));
        let bytes = 128 * 1_000_000 / 126;
        assert_eq!(bus.dma_end().ps(), 750_000 + 200_000 + bytes);
    }

    #[test]
    fn interrupts_keep_the_minimum_interval() {
        let mut card = Card::new(&piii());
        assert!(card.interrupt(Time::from_ps(1)));
        assert!(!card.interrupt(Time::from_ps(14_000_000)));
        assert!(card.interrupt(Time::from_ps(15_000_001)));
        assert_eq!(card.interrupts(), 2);
    }
}
