//! The buses between a device and its port at the chip, and the time that they add to DMA and to register accesses.
//!
//! Source: the keys of a machine file's `[[hosts.buses]]`. A bus carries one transfer at a time, as PCI does.

use super::{Bus, BusFault, Placement, Region};
use longma_sim::{Duration, Time};
use longma_topology::parts::Bus as BusPart;
use longma_topology::units::{Frequency, Latency};
use serde::{Deserialize, Serialize};

/// How a device is attached to the chip. Static configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attachment {
    /// One-way latency of all buses.
    pub latency: Duration,
    /// Sustained rate of the device's writes, bytes per second; `None` for no limit.
    pub write_rate: Option<u64>,
    /// Sustained rate of the device's reads, bytes per second; `None` for no limit.
    pub read_rate: Option<u64>,
    /// Duration of a core's register read, including all buses.
    pub register_read: Duration,
    /// Duration of a core's posted register write, until the core can continue.
    pub register_write: Duration,
}

impl Attachment {
    /// Attached directly to a port of the chip, without a bus.
    pub fn direct() -> Self {
        Self::default()
    }

    /// The attachment of a device behind `buses`, the device's own bus first. `clock` converts latencies stated in
    /// cycles. The slowest bus limits the rate. If a bus states the time of a register access, that time covers the
    /// entire path; otherwise it is the round trip.
    pub fn behind(buses: &[&BusPart], clock: Frequency) -> Self {
        let ps = |latency: Option<Latency>| latency.map(|l| l.ps(clock));
        let latency: u64 = buses.iter().filter_map(|bus| ps(bus.latency)).sum();
        let stated = |of: fn(&BusPart) -> Option<Latency>| buses.iter().find_map(|bus| ps(of(bus)));
        let peak = |bus: &BusPart| match (bus.bandwidth, bus.width, bus.rate) {
            (Some(bandwidth), ..) => Some(bandwidth.bytes_per_second(clock)),
            (None, Some(width), Some(rate)) => Some(width.bits().saturating_mul(rate.per_second()) / 8),
            _ => None,
        };
        let slowest = |sustained: fn(&BusPart) -> Option<longma_topology::units::Bandwidth>| {
            let rate =
                |bus: &&BusPart| sustained(bus).map(|b| b.bytes_per_second(clock)).or_else(|| peak(bus));
            buses.iter().filter_map(rate).min()
        };
        Self {
            latency: Duration::from_ps(latency),
            write_rate: slowest(|bus| bus.sustained_write),
            read_rate: slowest(|bus| bus.sustained_read),
            register_read: Duration::from_ps(stated(|bus| bus.register_read).unwrap_or(2 * latency)),
            register_write: Duration::from_ps(stated(|bus| bus.register_write).unwrap_or(latency)),
        }
    }
}

/// The mutable state of an attachment: when the buses are free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentState {
    free: Time,
}

/// The bus as seen by a device behind an attachment.
pub struct AttachedBus<'a> {
    /// How the device is attached.
    pub attachment: &'a Attachment,
    /// When its buses are free.
    pub state: &'a mut AttachmentState,
    /// The machine's bus at the port.
    pub port: &'a mut dyn Bus,
}

impl AttachedBus<'_> {
    /// Transfers `bytes` over the buses as soon as they are free, at `at` or later. Returns the time at which the last
    /// byte has left them.
    fn transfer(&mut self, bytes: usize, rate: Option<u64>, at: Time) -> Time {
        let Some(rate) = rate else { return at };
        let ps = (bytes as u128 * 1_000_000_000_000).div_ceil(rate.max(1).into());
        let end = at.max(self.state.free).ps().saturating_add(u64::try_from(ps).unwrap_or(u64::MAX));
        self.state.free = Time::from_ps(end);
        self.state.free
    }

    fn cross(&self, at: Time) -> Time {
        Time::from_ps(at.ps().saturating_add(self.attachment.latency.ps()))
    }
}

impl Bus for AttachedBus<'_> {
    fn region(&self, address: u64) -> Option<Region> {
        self.port.region(address)
    }

    fn read(&mut self, address: u64, into: &mut [u8], at: Time) -> Result<Time, BusFault> {
        // Reserve the bus for the data at the time of the request. A reservation until the data returns would leave the
        // bus idle for the latency of the read.
        let sent = self.transfer(into.len(), self.attachment.read_rate, at);
        let read_at = self.port.read(address, into, self.cross(sent))?;
        Ok(self.cross(read_at))
    }

    fn write(
        &mut self,
        address: u64,
        bytes: &[u8],
        placement: Placement,
        at: Time,
    ) -> Result<Time, BusFault> {
        let sent = self.transfer(bytes.len(), self.attachment.write_rate, at);
        self.port.write(address, bytes, placement, self.cross(sent))
    }

    fn free(&self, at: Time) -> Time {
        if self.attachment.write_rate.is_some() { at.max(self.state.free) } else { at }
    }

    fn interrupt(&mut self, line: u32, asserted: bool, at: Time) {
        self.port.interrupt(line, asserted, self.cross(at));
    }

    fn lock_window(&mut self, window: u32, to: Option<(u64, u64)>) {
        self.port.lock_window(window, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlainBus;

    fn conventional() -> Attachment {
        let text = include_str!("../../../../machine/topology/machines/godson3-conventional.toml");
        let machine = longma_topology::check("godson3-conventional", text).machine.unwrap();
        let buses = &machine.hosts[0].buses;
        let named = |name: &str| buses.iter().find(|bus| bus.name == name).unwrap();
        let clock = machine.chips["godson3"].uncore_clock.unwrap();
        Attachment::behind(&[named("pci0"), named("bridge")], clock)
    }

    #[test]
    fn the_conventional_machines_nic_is_behind_pci_bridge_and_hypertransport() {
        let pci = conventional();
        assert_eq!(pci.latency, Duration::from_ps(500_000));
        assert_eq!((pci.write_rate, pci.read_rate), (Some(112_000_000), Some(92_000_000)));
        assert_eq!((pci.register_read.ps(), pci.register_write.ps()), (2_500_000, 250_000));
    }

    #[test]
    fn a_bus_carries_one_transfer_after_another() {
        let attachment = conventional();
        let mut state = AttachmentState::default();
        let mut port = PlainBus::new().with(Region::Memory, 0, 4096, Duration::ZERO);
        let mut attached = AttachedBus { attachment: &attachment, state: &mut state, port: &mut port };
        let ends: Vec<_> = (0..3)
            .map(|_| attached.write(0, &[1; 112], Placement::Memory, Time::ZERO).unwrap().ps())
            .collect();
        assert_eq!(ends, [1_500_000, 2_500_000, 3_500_000]);
    }
}
