//! The buses between a device and the chip's port: what they add to DMA and to register accesses.
//! Not the chip: behind the port the machine's own bus goes on.
//! Source: the quantities of a machine file's `[[hosts.buses]]`; a bus carries one transfer at a time, as PCI does.

use super::{Bus, BusFault, Placement, Region};
use longma_sim::{Duration, Time};
use longma_topology::parts::Bus as BusPart;
use longma_topology::units::{Frequency, Latency};
use serde::{Deserialize, Serialize};

/// How a device is attached. It does not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attachment {
    /// One way through all buses.
    pub latency: Duration,
    /// Bytes a second that the device's writes sustain; `None`: no bus limits them.
    pub write_rate: Option<u64>,
    /// Bytes a second that its reads sustain.
    pub read_rate: Option<u64>,
    /// A core's read of a register, all buses included.
    pub register_read: Duration,
    /// A core's posted write of a register: until the core can go on.
    pub register_write: Duration,
}

impl Attachment {
    /// Directly at a port of the chip: nothing in between.
    pub fn direct() -> Self {
        Self::default()
    }

    /// Behind `buses`, the device's own first, with `clock` for latencies given in cycles. The slowest bus limits the rate. A bus that
    /// states the time of a register access states it for all the way; otherwise it is the way there and back.
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

/// What changes about the buses: when they are free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentState {
    free: Time,
}

/// A bus seen from behind an attachment.
pub struct Behind<'a> {
    /// How the device is attached.
    pub attachment: &'a Attachment,
    /// When its buses are free.
    pub state: &'a mut AttachmentState,
    /// The machine's bus at the port.
    pub port: &'a mut dyn Bus,
}

impl Behind<'_> {
    /// Moves `bytes` over the buses as soon as they are free from `at` on; when the last has left them.
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

impl Bus for Behind<'_> {
    fn region(&self, address: u64) -> Option<Region> {
        self.port.region(address)
    }

    fn read(&mut self, address: u64, into: &mut [u8], at: Time) -> Result<Time, BusFault> {
        // Its time on the bus is taken in the order of asking: kept free until the data are back, the bus would stand idle meanwhile.
        let sent = self.transfer(into.len(), self.attachment.read_rate, at);
        let there = self.port.read(address, into, self.cross(sent))?;
        Ok(self.cross(there))
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
        let mut behind = Behind { attachment: &attachment, state: &mut state, port: &mut port };
        let ends: Vec<_> =
            (0..3).map(|_| behind.write(0, &[1; 112], Placement::Memory, Time::ZERO).unwrap().ps()).collect();
        assert_eq!(ends, [1_500_000, 2_500_000, 3_500_000]);
    }
}
