//! The parameters of the modelled zoned SSD, each with its source. None of them was fitted to results of this model.
//!
//! Source: NVMeVirt (Kim et al., "NVMeVirt: A Versatile Software-defined Virtual NVMe Device", FAST 2023), its
//! configuration for the Western Digital Ultrastar DC ZN540; Doekemeijer et al., "Exploring I/O Management Performance
//! in ZNS with ConfZNS++", SYSTOR 2024.

use longma_sim::Duration;
use serde::Serialize;

const fn us(us: u64) -> Duration {
    Duration::from_ps(us * 1_000_000)
}

const fn ns(ns: u64) -> Duration {
    Duration::from_ps(ns * 1000)
}

/// The parameters of a modelled SSD.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Parameters {
    /// Buses between the controller and the flash dies.
    pub channels: u32,
    /// Dies per channel. A zone is striped over all dies of all channels.
    pub dies_per_channel: u32,
    /// The unit that a die reads, bytes.
    pub page_bytes: u64,
    /// The unit that a die programs, bytes.
    pub program_bytes: u64,
    /// The bandwidth of a channel, bytes per second.
    pub channel_bytes_per_second: u64,
    /// The bandwidth of the PCIe link, bytes per second.
    pub link_bytes_per_second: u64,
    /// The time to read at most 4 KiB of a page.
    pub read_4k: Duration,
    /// The time to read more of a page.
    pub read_page: Duration,
    /// The time to program [`Parameters::program_bytes`].
    pub program: Duration,
    /// The time to erase a die's part of a zone.
    pub erase: Duration,
    /// The firmware latency of a read of at most 4 KiB.
    pub firmware_read_4k: Duration,
    /// The firmware latency of a longer read.
    pub firmware_read: Duration,
    /// The fixed firmware latency of a write to the buffer.
    pub firmware_write: Duration,
    /// The additional firmware latency of a write for each 4 KiB.
    pub firmware_write_4k: Duration,
    /// The size of a zone's write buffer, bytes. A write completes when it is in the buffer. The buffer survives a
    /// power cut, so a flush costs only a command.
    pub buffer_bytes: u64,
    /// The latency of the host's block layer, driver and interrupt, per command.
    pub host: Duration,
    /// The number of resets after which a zone is slowed down by [`Parameters::worn_slowdown`].
    pub rated_resets: u64,
    /// The relative increase of read, program and erase times after [`Parameters::rated_resets`].
    pub worn_slowdown: f64,
    /// The number of resets at which a zone becomes read-only.
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
        erase: us(5000),                       // estimate: data sheets of TLC flash give 3 to 10 ms
        firmware_read_4k: us(20),              // NVMeVirt: FW_4KB_READ_LATENCY
        firmware_read: us(13),                 // NVMeVirt: FW_READ_LATENCY
        firmware_write: ns(5600),              // NVMeVirt: FW_WBUF_LATENCY0
        firmware_write_4k: ns(600),            // NVMeVirt: FW_WBUF_LATENCY1
        buffer_bytes: 960 << 10,               // NVMeVirt: ZONE_WB_SIZE
        host: us(6), // estimate: 3 us for the block layer and driver, 3 us from the interrupt until the thread runs
        rated_resets: 3000, // estimate: typical of TLC flash
        worn_slowdown: 1.0, // estimate: near the end of life, a cell is read about twice on average
        last_reset: u64::MAX, // wear-out is off by default
    };

    /// A device with a constant latency per command, such as the kernel's null_blk: no flash, buffer or wear. The read
    /// latency is that of the firmware, because data in a write buffer is read without a die.
    pub const fn answering(read: Duration, write: Duration, reset: Duration) -> Self {
        Self {
            channels: 1,
            dies_per_channel: 64,
            page_bytes: 1 << 20,
            program_bytes: 1 << 20,
            channel_bytes_per_second: u64::MAX,
            link_bytes_per_second: u64::MAX / 8,
            read_4k: Duration::ZERO,
            read_page: Duration::ZERO,
            program: Duration::ZERO,
            erase: reset,
            firmware_read_4k: read,
            firmware_read: read,
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
