//! The numbers of a modelled zoned SSD, each with where it is from.
//! Not what is made of them: `dies.rs`. None was fitted to a result of this model.
//! Source: NVMeVirt (Kim et al., "NVMeVirt: A Versatile Software-defined Virtual NVMe Device", FAST 2023), its configuration for the Western
//! Digital Ultrastar DC ZN540; Doekemeijer et al., "Exploring I/O Management Performance in ZNS with ConfZNS++", SYSTOR 2024.

use longma_sim::Duration;
use serde::Serialize;

const fn us(us: u64) -> Duration {
    Duration::from_ps(us * 1_000_000)
}

const fn ns(ns: u64) -> Duration {
    Duration::from_ps(ns * 1000)
}

/// What a modelled SSD is made of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Parameters {
    /// Buses between the controller and the flash dies.
    pub channels: u32,
    /// Dies on each channel; a zone lies across all dies of all channels.
    pub dies_per_channel: u32,
    /// What a die reads at once, bytes.
    pub page_bytes: u64,
    /// What a die programs at once, bytes.
    pub program_bytes: u64,
    /// What one channel moves, bytes a second.
    pub channel_bytes_per_second: u64,
    /// What the PCIe link moves, bytes a second.
    pub link_bytes_per_second: u64,
    /// Reading at most 4 KiB of a page.
    pub read_4k: Duration,
    /// Reading more of a page.
    pub read_page: Duration,
    /// Programming [`Parameters::program_bytes`].
    pub program: Duration,
    /// Erasing a die's part of a zone.
    pub erase: Duration,
    /// The firmware's part of a read of at most 4 KiB.
    pub firmware_read_4k: Duration,
    /// The firmware's part of a longer read.
    pub firmware_read: Duration,
    /// The firmware's part of a write into the buffer, whatever its length.
    pub firmware_write: Duration,
    /// The same, for each 4 KiB.
    pub firmware_write_4k: Duration,
    /// A zone's write buffer: a write is complete when it is in there. It outlasts a power cut, so a flush costs a command only.
    pub buffer_bytes: u64,
    /// The host's block layer, driver and interrupt, for each command.
    pub host: Duration,
    /// After this many resets a zone is as slow as [`Parameters::worn_slowdown`] says.
    pub rated_resets: u64,
    /// By how much a read, program or erase is longer then, as a part of what it takes on a new zone.
    pub worn_slowdown: f64,
    /// The reset at which a zone becomes read-only.
    pub last_reset: u64,
}

impl Parameters {
    /// The Western Digital Ultrastar DC ZN540.
    pub const ZN540: Self = Self {
        channels: 8,                           // NVMeVirt, WD_ZN540: NAND_CHANNELS
        dies_per_channel: 4,                   // NVMeVirt: LUNS_PER_NAND_CH
        page_bytes: 32 << 10,                  // NVMeVirt: FLASH_PAGE_SIZE
        program_bytes: 96 << 10,               // NVMeVirt: ONESHOT_PAGE_SIZE, three bits a cell
        channel_bytes_per_second: 450_000_000, // NVMeVirt: NAND_CHANNEL_BANDWIDTH
        link_bytes_per_second: 3_050_000_000,  // NVMeVirt: PCIE_BANDWIDTH
        read_4k: us(50),                       // NVMeVirt: NAND_4KB_READ_LATENCY
        read_page: us(58),                     // NVMeVirt: NAND_READ_LATENCY
        program: us(561),                      // NVMeVirt: NAND_PROG_LATENCY
        erase: us(5000), // an estimate: data sheets of flash with three bits a cell give 3 to 10 ms
        firmware_read_4k: us(20), // NVMeVirt: FW_4KB_READ_LATENCY
        firmware_read: us(13), // NVMeVirt: FW_READ_LATENCY
        firmware_write: ns(5600), // NVMeVirt: FW_WBUF_LATENCY0
        firmware_write_4k: ns(600), // NVMeVirt: FW_WBUF_LATENCY1
        buffer_bytes: 960 << 10, // NVMeVirt: ZONE_WB_SIZE
        host: us(6), // an estimate: 3 us of Linux's block layer and driver, as much again until the thread runs after the interrupt
        rated_resets: 3000, // an estimate: usual for flash with three bits a cell
        worn_slowdown: 1.0, // an estimate: at the end of its life a cell is read about twice on the average
        last_reset: u64::MAX, // not modelled unless it is asked for
    };

    /// A device that answers each command after a constant time, such as the kernel's null_blk: no flash, no buffer, no wear.
    pub const fn answering(read: Duration, write: Duration, reset: Duration) -> Self {
        Self {
            channels: 1,
            dies_per_channel: 64,
            page_bytes: 1 << 20,
            program_bytes: 1 << 20,
            channel_bytes_per_second: u64::MAX,
            link_bytes_per_second: u64::MAX / 8,
            read_4k: read,
            read_page: read,
            program: Duration::ZERO,
            erase: reset,
            firmware_read_4k: Duration::ZERO,
            firmware_read: Duration::ZERO,
            firmware_write: write,
            firmware_write_4k: Duration::ZERO,
            buffer_bytes: u64::MAX,
            host: Duration::ZERO,
            rated_resets: 1,
            worn_slowdown: 0.0,
            last_reset: u64::MAX,
        }
    }
}
