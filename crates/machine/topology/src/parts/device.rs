//! Types of devices: Ethernet, Myrinet, zoned and plain flash, DMA engines.
//! Not their registers: those belong to the device models.
//! Source: Myricom's LANai 4 documents; NVMe Zoned Namespace Command Set; the makers' data sheets cited in `machines/`.

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
        /// Where single keys come from, if elsewhere.
        source_of: Map<Cited>,
    }
}

impl Device {
    /// The name of the table that says what it is; empty if there is none.
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
        /// Line rate; left out if the link is down or virtual.
        rate: Option<BitRate>,
        /// Ports.
        ports: u32 = 1,
        /// Largest IP packet.
        mtu: Option<Size>,
        /// Queue pairs; the modelled MAC has 16 at most.
        queues: u32 = 1,
        /// Receive FIFO.
        rx_fifo: Option<Size>,
        /// Largest DMA burst.
        dma_burst: Option<Size>,
        /// From a frame's end to the interrupt, by default.
        interrupt_delay: Option<Time>,
        /// Whether DMA writes go into the last-level cache when it allows it.
        dca: bool = false,
        /// Whether its link has flow control (IEEE 802.3, annex 31B): the end whose receive FIFO is nearly full has the other pause.
        pause: bool = false,
    }
}

/// Largest packet of an Ethernet without jumbo frames, bytes (IEEE 802.3-2018, 3.2.7).
pub const ETHERNET_MTU_BYTES: u64 = 1500;

impl Ethernet {
    /// Largest IP packet, bytes; where the file does not say it, [`ETHERNET_MTU_BYTES`].
    pub fn mtu_bytes(&self) -> u64 {
        self.mtu.map_or(ETHERNET_MTU_BYTES, |mtu| mtu.bytes())
    }
}

part! {
    /// A Myrinet NIC (LANai).
    pub struct Myrinet = "myrinet" {
        /// The NIC processor's clock.
        clock: Frequency,
        /// Memory on the NIC.
        sram: Size,
        /// Link rate, each way.
        rate: BitRate,
        /// Largest message the firmware sends as one packet.
        mtu: Size,
        /// Send buffers in SRAM.
        send_buffers: u32,
        /// Receive buffers in SRAM.
        receive_buffers: u32,
        /// From the firmware's start of a DMA to its first byte.
        dma_start: Time,
        /// One uncached word written to SRAM by the host.
        pio_write: Time,
        /// One uncached word read from SRAM by the host.
        pio_read: Time,
        /// Shortest time between two interrupts.
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
        /// Logical block.
        block: Size,
        /// Address range of a zone.
        zone_size: Size,
        /// Writable part of a zone.
        zone_capacity: Size,
        /// Sequential zones.
        zones: u32,
        /// Conventional zones, before the sequential ones.
        conventional_zones: u32 = 0,
        /// Zones open at a time.
        max_open: Option<u32>,
        /// Zones active (open or closed) at a time.
        max_active: Option<u32>,
        /// Flash channels.
        channels: Option<u32>,
        /// Logical units (dies) a channel.
        luns_per_channel: Option<u32>,
        /// A flash page.
        page: Option<Size>,
        /// Reading a flash page.
        read: Option<Time>,
        /// Programming a flash page.
        program: Option<Time>,
        /// Erasing a flash block.
        erase: Option<Time>,
        /// Rate of a flash channel.
        channel_rate: Option<TransferRate>,
        /// A read, of a device whose flash is not modelled: it answers in this time whatever it holds.
        read_latency: Option<Time>,
        /// A write or append, of such a device.
        write_latency: Option<Time>,
        /// A zone's reset, of such a device.
        reset_latency: Option<Time>,
    }
}

part! {
    /// Any other block device.
    pub struct Block = "block" {
        /// Capacity.
        capacity: Option<Size>,
        /// Logical block.
        block: Size,
        /// Whether it is a turning disk.
        rotational: bool = false,
        /// A random read by one client.
        read_latency: Option<Time>,
        /// A write by one client.
        write_latency: Option<Time>,
    }
}

part! {
    /// A DMA engine outside the cores.
    pub struct DmaEngine = "dma" {
        /// Channels.
        channels: u32,
        /// Width of a beat.
        beat: Width,
        /// From the doorbell to the first beat.
        start: Latency,
    }
}
