//! The PCI bus between host and NIC, which carries one transfer at a time. A DMA yields to programmed I/O when the
//! latency timer of the DMA expires. The sustained rates are those of the bus and the host memory together.
//!
//! Source: PCI Local Bus Specification 2.2, 3.5 (latency timer).

use super::Parameters;
use longma_sim::{Duration, Time};
use longma_topology::units::Frequency;

/// The latency timer, bus clocks: when it expires, a DMA yields the bus to a waiting access. This is the usual setting.
const LATENCY_TIMER_CLOCKS: u64 = 64;

/// The direction of a DMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The NIC writes to host memory.
    ToHost,
    /// The NIC reads from host memory.
    FromHost,
}

/// The bus of a host.
#[derive(Clone, Debug)]
pub struct Bus {
    write_rate: u64,
    read_rate: u64,
    latency: Duration,
    slice: Duration,
    alignment: u32,
    dma: Option<(Time, Time)>,
    /// When the last programmed access ends.
    accesses_until: Time,
    bytes: u64,
    accesses: u64,
}

impl Bus {
    /// Creates the bus described by the machine file.
    pub fn new(parameters: &Parameters) -> Self {
        let slice = Frequency::new(parameters.bus_hz).ps_of_cycles(LATENCY_TIMER_CLOCKS);
        Self {
            write_rate: parameters.bus_write,
            read_rate: parameters.bus_read,
            latency: parameters.bus_latency,
            slice: Duration::from_ps(slice),
            alignment: parameters.host_alignment,
            dma: None,
            accesses_until: Time::ZERO,
            bytes: 0,
            accesses: 0,
        }
    }

    /// Starts a DMA of `bytes`. [`Bus::dma_end`] returns its end; accesses in the meantime delay it.
    pub fn begin_dma(&mut self, at: Time, bytes: u32, direction: Direction) {
        let start = at.max(self.accesses_until);
        let rate = if direction == Direction::ToHost { self.write_rate } else { self.read_rate };
        // A read waits for the first word to cross the bridge; a write is posted.
        let first = if direction == Direction::FromHost { 2 * self.latency.ps() } else { self.latency.ps() };
        let bus_bytes = u64::from(bytes.next_multiple_of(self.alignment.max(1)));
        let took = bus_bytes * 1_000_000_000_000 / rate.max(1) + first;
        self.dma = Some((start, plus(start, took)));
        self.bytes += bus_bytes;
    }

    /// The end of the last DMA started.
    pub fn dma_end(&self) -> Time {
        self.dma.map_or(Time::ZERO, |dma| dma.1)
    }

    /// An access by the host's processor that holds the bus for `held`. Returns its end.
    pub fn access(&mut self, at: Time, held: Duration) -> Time {
        let mut start = at.max(self.accesses_until);
        if let Some((began, ends)) = &mut self.dma
            && *began <= start
            && start < *ends
        {
            let into = start.ps() - began.ps();
            start = plus(*began, into.next_multiple_of(self.slice.ps().max(1))).min(*ends);
            if start < *ends {
                *ends = plus(*ends, held.ps());
            }
        }
        self.accesses += 1;
        self.accesses_until = plus(start, held.ps());
        self.accesses_until
    }

    /// Bytes moved by DMA.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Programmed accesses.
    pub fn accesses(&self) -> u64 {
        self.accesses
    }
}

fn plus(time: Time, ps: u64) -> Time {
    Time::from_ps(time.ps().saturating_add(ps))
}

#[cfg(test)]
mod tests {
    use super::super::parameters::tests::piii;
    use super::*;

    const fn us(us: u64) -> Time {
        Time::from_ps(us * 1_000_000)
    }

    #[test]
    fn a_dma_takes_its_bytes_at_the_sustained_rate() {
        let mut bus = Bus::new(&piii());
        bus.begin_dma(us(10), 1_260_000, Direction::ToHost);
        assert_eq!(bus.dma_end(), Time::from_ps(us(10).ps() + 10_000_000_000 + 200_000));
        bus.begin_dma(us(20_000), 3, Direction::FromHost);
        let word = 4 * 1_000_000_000_000 / 110_000_000;
        assert_eq!(bus.dma_end(), Time::from_ps(us(20_000).ps() + word + 400_000));
    }

    #[test]
    fn an_access_waits_for_the_latency_timer_and_delays_the_dma() {
        let mut bus = Bus::new(&piii());
        bus.begin_dma(us(0), 126_000, Direction::ToHost);
        let before = bus.dma_end();
        let held = Duration::from_ps(200_000);
        let through = bus.access(us(100), held);
        // 64 clocks at 33 MHz are 1.94 us.
        assert!(through > us(100) && through < us(103), "{through}");
        assert_eq!(bus.dma_end().ps(), before.ps() + held.ps());
        let alone = bus.access(us(5000), held);
        assert_eq!(alone.ps(), us(5000).ps() + held.ps());
        assert_eq!(bus.accesses(), 2);
    }

    #[test]
    fn simultaneous_accesses_are_served_one_after_the_other() {
        let mut bus = Bus::new(&piii());
        let held = Duration::from_ps(200_000);
        bus.access(us(1), held);
        assert_eq!(bus.access(us(1), held).ps(), us(1).ps() + 400_000);
    }
}
