//! The parameters that the model takes from a machine file: clocks, rates and latencies of NIC, bus, host and switch.
//! The machine file cites their sources.

use longma_sim::Duration;
use longma_topology::parts::{Network, Protocol};
use longma_topology::units::Frequency;
use longma_topology::{Machine, parts};

/// The parameters of a machine. Rates are in bytes per second.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// The number of hosts with such a NIC, each at a port of the switch.
    pub hosts: u32,
    /// The clock of the NIC's processor, Hz.
    pub clock_hz: u64,
    /// The memory of the NIC, bytes.
    pub sram_bytes: u64,
    /// The word size of the NIC's memory and of the bus, bytes.
    pub word_bytes: u32,
    /// The rate of the link in each direction.
    pub link_rate: u64,
    /// The maximum packet size, bytes.
    pub mtu: u32,
    /// Send buffers in SRAM.
    pub send_buffers: u32,
    /// Receive buffers in SRAM.
    pub receive_buffers: u32,
    /// The time from starting a DMA to its first byte.
    pub dma_start: Duration,
    /// The time of a word write to SRAM by the host's processor.
    pub pio_write: Duration,
    /// The time of a word read from SRAM by the host's processor.
    pub pio_read: Duration,
    /// The minimum time between two interrupts.
    pub interrupt_interval: Duration,
    /// The size of a host DMA is rounded up to a multiple of this, bytes.
    pub host_alignment: u32,
    /// The size of a packet is rounded up to a multiple of this, bytes.
    pub send_alignment: u32,
    /// The clock of the bus, Hz.
    pub bus_hz: u64,
    /// The sustained rate of the NIC's writes to host memory.
    pub bus_write: u64,
    /// The sustained rate of the NIC's reads from host memory.
    pub bus_read: u64,
    /// The latency of bus and bridge in one direction.
    pub bus_latency: Duration,
    /// The time from an interrupt to its handler.
    pub interrupt: Duration,
    /// The page size of host memory, bytes.
    pub page_bytes: u32,
    /// The clock of the host's processors, Hz.
    pub host_hz: u64,
    /// The latency of a cache miss on the host, which the first read of a new completion costs.
    pub memory_latency: Duration,
    /// The latency of the switch and both cables.
    pub path_latency: Duration,
    /// The rate of a switch port in each direction.
    pub port_rate: u64,
    /// Whether the switch forwards a packet before it has been received completely.
    pub cut_through: bool,
}

/// The error for a machine without a complete Myrinet description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("machine {machine}: {missing}; `longma machine show piii-myrinet` shows a complete one")]
pub struct ParametersError {
    /// The name of the machine.
    pub machine: String,
    /// The missing part or key.
    pub missing: String,
}

impl Parameters {
    /// Extracts the parameters from a machine.
    ///
    /// # Errors
    /// If the machine lacks a part or a key.
    pub fn of(machine: &Machine) -> Result<Self, ParametersError> {
        let lack = |missing: &str| ParametersError { machine: machine.name.clone(), missing: missing.into() };
        let hosts = machine.hosts.iter().filter_map(|host| Some((host, nic(machine, host)?)));
        let hosts: Vec<_> = hosts.collect();
        let (host, (placed, card)) =
            *hosts.first().ok_or_else(|| lack("it has no host with a Myrinet NIC"))?;
        let count: u32 = hosts.iter().map(|(host, _)| host.count).sum();
        if count < 2 {
            return Err(lack("it needs two hosts with a Myrinet NIC"));
        }
        let bus = host.buses.iter().find(|bus| *bus.name == *placed.on);
        let bus = bus.ok_or_else(|| lack("the NIC must be on one of the host's buses"))?;
        if bus.protocol != Protocol::Pci {
            return Err(lack("the NIC's bus must be PCI"));
        }
        let (width, rate) =
            bus.width.zip(bus.rate).ok_or_else(|| lack("the bus needs `width` and `rate`"))?;
        let peak = width.bits().saturating_mul(rate.per_second()) / 8;
        let none = Frequency::new(1);
        let sustained =
            |rate: Option<longma_topology::units::Bandwidth>| rate.map_or(peak, |r| r.bytes_per_second(none));
        let time = |latency: Option<longma_topology::units::Latency>, what| {
            latency.map(|l| Duration::from_ps(l.ps(none))).ok_or_else(|| lack(what))
        };
        let os =
            host.os.as_ref().ok_or_else(|| lack("the host needs `os`, with `interrupt` and `page_size`"))?;
        let (host_hz, memory_latency) =
            processor(machine, host).ok_or_else(|| lack("the host needs cores and memory"))?;
        let switch = machine.switches.iter().find(|s| s.network == Network::Myrinet);
        let switch = switch.ok_or_else(|| lack("it needs a Myrinet switch"))?;
        let cable = machine.cables.iter().filter_map(|c| c.latency).map(|t| t.ps()).max().unwrap_or(0);
        Ok(Self {
            hosts: count,
            clock_hz: card.clock.hz(),
            sram_bytes: card.sram.bytes(),
            word_bytes: (width.bits() / 8) as u32,
            link_rate: card.rate.bits_per_second() / 8,
            mtu: u32::try_from(card.mtu.bytes()).map_err(|_| lack("an MTU below 4 GiB"))?,
            send_buffers: card.send_buffers,
            receive_buffers: card.receive_buffers,
            dma_start: Duration::from_ps(card.dma_start.ps()),
            pio_write: Duration::from_ps(card.pio_write.ps()),
            pio_read: Duration::from_ps(card.pio_read.ps()),
            interrupt_interval: Duration::from_ps(card.interrupt_interval.ps()),
            host_alignment: card.host_alignment.bytes() as u32,
            send_alignment: card.send_alignment.bytes() as u32,
            bus_hz: rate.per_second(),
            bus_write: sustained(bus.sustained_write),
            bus_read: sustained(bus.sustained_read),
            bus_latency: time(bus.latency, "the bus needs `latency`")?,
            interrupt: time(os.interrupt, "`os` needs `interrupt`")?,
            page_bytes: os.page_size.map_or(4096, |size| size.bytes() as u32),
            host_hz,
            memory_latency,
            path_latency: Duration::from_ps(switch.latency.map_or(0, |t| t.ps()) + 2 * cable),
            port_rate: switch.rate.bits_per_second() / 8,
            cut_through: switch.cut_through,
        })
    }

    /// Checks that the buffers fit into the NIC's memory, next to the firmware and `tables` bytes of tables.
    ///
    /// # Errors
    /// The number of bytes needed.
    pub fn check_memory(&self, tables: u64) -> Result<(), String> {
        let buffers = u64::from(self.send_buffers + self.receive_buffers) * u64::from(self.mtu);
        let firmware = 64 << 10;
        let needed = buffers + tables + firmware;
        if needed <= self.sram_bytes {
            return Ok(());
        }
        let sram = self.sram_bytes;
        Err(format!("buffers, rings and firmware need {needed} bytes of SRAM, but the NIC has {sram}"))
    }
}

fn nic<'a>(machine: &'a Machine, host: &'a parts::Host) -> Option<(&'a parts::Placed, &'a parts::Myrinet)> {
    host.devices.iter().find_map(|placed| {
        let device = machine.devices.get(&*placed.device)?;
        Some((placed, device.myrinet.as_ref()?))
    })
}

/// The clock of the host's cores and the latency of its memory.
fn processor(machine: &Machine, host: &parts::Host) -> Option<(u64, Duration)> {
    let chip = machine.chips.get(&**host.chips.first()?)?;
    let node = chip.nodes.first()?;
    let core = machine.cores.get(&*node.clusters.first()?.core)?;
    let memory = machine.memories.get(&*node.memory.first()?.memory)?;
    let latency = memory.latency.map_or(Duration::ZERO, |l| Duration::from_ps(l.ps(core.clock)));
    Some((core.clock.hz(), latency))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn piii() -> Parameters {
        Parameters::of(&Machine::open("piii-myrinet").unwrap()).unwrap()
    }

    #[test]
    fn the_testbed_of_the_study_is_read_from_its_machine_file() {
        let parameters = piii();
        assert_eq!((parameters.hosts, parameters.clock_hz, parameters.mtu), (2, 33_000_000, 102_400));
        assert_eq!((parameters.link_rate, parameters.bus_write), (160_000_000, 126_000_000));
        assert_eq!(parameters.host_hz, 733_000_000);
        assert!(parameters.check_memory(100_000).is_ok());
        assert!(parameters.check_memory(1 << 20).is_err());
    }

    #[test]
    fn a_machine_without_myrinet_is_refused_and_the_missing_part_named() {
        let error = Parameters::of(&Machine::open("loongson-3a5000").unwrap()).unwrap_err();
        assert!(error.to_string().contains("no host with a Myrinet NIC"), "{error}");
    }
}
