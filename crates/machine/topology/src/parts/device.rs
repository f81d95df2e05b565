//! Types of devices: Ethernet, Myrinet, zoned and other block devices, DMA engines. `longma-devices` defines their
//! registers.
//!
//! Source: Myricom's LANai 4 documents; NVMe Zoned Namespace Command Set; the data sheets cited in `machines/`.

use crate::read::{Cited, Map, part};
use crate::units::{BitRate, Frequency, Latency, Size, Time, TransferRate, Width};

part! {
    /// A type of device. It has exactly one of the tables `ethernet`, `myrinet`, `zoned`, `block`, `dma`.
    pub struct Device = "device" {
        /// Its full name.
        title: String,
        /// An Ethernet MAC or NIC.
        ethernet: Option<Ethernet>,
        /// A Myrinet NIC with its own processor.
        myrinet: Option<Myrinet>,
        /// A zoned SSD.
        zoned: Option<Zoned>,
        /// Any other block device.
        block: Option<Block>,
        /// A DMA engine outside the cores.
        dma: Option<DmaEngine>,
        /// Where the numbers come from.
        source: Cited,
        /// Sources of single keys, if they differ.
        source_of: Map<Cited>,
    }
}

impl Device {
    /// The name of the table that describes it; empty if there is none.
    pub fn kind(&self) -> &'static str {
        self.kinds().first().copied().unwrap_or("")
    }

    pub(crate) fn kinds(&self) -> Vec<&'static str> {
        let present = [
            ("ethernet", self.ethernet.is_some()),
            ("myrinet", self.myrinet.is_some()),
            ("zoned", self.zoned.is_some()),
            ("block", self.block.is_some()),
            ("dma", self.dma.is_some()),
        ];
        present.into_iter().filter(|k| k.1).map(|k| k.0).collect()
    }
}

part! {
    /// An Ethernet MAC or NIC.
    pub struct Ethernet = "ethernet" {
        /// Line rate; omit if the link is down or virtual.
        rate: Option<BitRate>,
        /// Number of ports.
        ports: u32 = 1,
        /// Largest IP packet.
        mtu: Option<Size>,
        /// Queue pairs; the modelled MAC has at most 16.
        queues: u32 = 1,
        /// Size of the receive FIFO.
        rx_fifo: Option<Size>,
        /// Largest DMA burst.
        dma_burst: Option<Size>,
        /// Default delay from the end of a frame to the interrupt.
        interrupt_delay: Option<Time>,
        /// Whether DMA writes allocate in a last-level cache with DCA.
        dca: bool = false,
        /// Flow control by pause frames (IEEE 802.3, annex 31B) when a receive FIFO is nearly full.
        pause: bool = false,
    }
}

/// MTU of Ethernet without jumbo frames, bytes (IEEE 802.3-2018, 3.2.7).
pub const ETHERNET_MTU_BYTES: u64 = 1500;

impl Ethernet {
    /// Largest IP packet in bytes; by default [`ETHERNET_MTU_BYTES`].
    pub fn mtu_bytes(&self) -> u64 {
        self.mtu.map_or(ETHERNET_MTU_BYTES, |mtu| mtu.bytes())
    }
}

part! {
    /// A Myrinet NIC (LANai).
    pub struct Myrinet = "myrinet" {
        /// The NIC processor's clock.
        clock: Frequency,
        /// Size of the NIC's SRAM.
        sram: Size,
        /// Link rate in each direction.
        rate: BitRate,
        /// Largest message that the firmware sends as one packet.
        mtu: Size,
        /// Send buffers in SRAM.
        send_buffers: u32,
        /// Receive buffers in SRAM.
        receive_buffers: u32,
        /// Time from the firmware starting a DMA to its first byte.
        dma_start: Time,
        /// Time of an uncached SRAM word write by the host.
        pio_write: Time,
        /// Time of an uncached SRAM word read by the host.
        pio_read: Time,
        /// Minimum time between two interrupts.
        interrupt_interval: Time,
        /// Alignment of host DMA.
        host_alignment: Size,
        /// Alignment of send DMA.
        send_alignment: Size,
    }
}

part! {
    /// A zoned SSD.
    pub struct Zoned = "zoned" {
        /// Logical block size.
        block: Size,
        /// Address range of a zone.
        zone_size: Size,
        /// Writable part of a zone.
        zone_capacity: Size,
        /// Number of sequential zones.
        zones: u32,
        /// Number of conventional zones, before the sequential ones.
        conventional_zones: u32 = 0,
        /// Maximum number of open zones.
        max_open: Option<u32>,
        /// Maximum number of active (open or closed) zones.
        max_active: Option<u32>,
        /// Number of flash channels.
        channels: Option<u32>,
        /// Logical units (dies) per channel.
        luns_per_channel: Option<u32>,
        /// Size of a flash page.
        page: Option<Size>,
        /// Time to read a flash page.
        read: Option<Time>,
        /// Time to program a flash page.
        program: Option<Time>,
        /// Time to erase a flash block.
        erase: Option<Time>,
        /// Transfer rate of a flash channel.
        channel_rate: Option<TransferRate>,
        /// Fixed latency of a read, without modelled flash.
        read_latency: Option<Time>,
        /// Fixed latency of a write or append, likewise.
        write_latency: Option<Time>,
        /// Fixed latency of a zone reset, likewise.
        reset_latency: Option<Time>,
    }
}

part! {
    /// Any other block device.
    pub struct Block = "block" {
        /// Capacity.
        capacity: Option<Size>,
        /// Logical block size.
        block: Size,
        /// Whether it is a rotating disk.
        rotational: bool = false,
        /// Latency of a random read with one client.
        read_latency: Option<Time>,
        /// Latency of a write with one client.
        write_latency: Option<Time>,
    }
}

part! {
    /// A DMA engine outside the cores.
    pub struct DmaEngine = "dma" {
        /// Number of channels.
        channels: u32,
        /// Width of a beat.
        beat: Width,
        /// Time from the doorbell to the first beat.
        start: Latency,
    }
}
