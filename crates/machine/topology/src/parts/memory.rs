//! Memory controllers and their DRAM. `longma-memory` implements the DRAM timing.
//!
//! Source: parameter names after the JEDEC DDR standards.

use crate::read::{Cited, Map, choice, part};
use crate::units::{Bandwidth, Latency, Size, Time, TransferRate, Width};

choice! {
    /// The memory's technology.
    pub enum Technology = "a memory technology" {
        /// Single data rate.
        Sdram = "sdram",
        /// DDR.
        Ddr = "ddr",
        /// DDR2.
        Ddr2 = "ddr2",
        /// DDR3.
        Ddr3 = "ddr3",
        /// DDR4.
        Ddr4 = "ddr4",
        /// DDR5.
        Ddr5 = "ddr5",
        /// High-bandwidth memory.
        Hbm = "hbm",
        /// Not known.
        Unknown = "unknown",
    }
}

choice! {
    /// Which banks of a rank a refresh occupies.
    pub enum Refresh = "a kind of refresh" {
        /// All of them.
        AllBank = "all-bank",
        /// One of each bank group; the others remain usable.
        SameBank = "same-bank",
    }
}

choice! {
    /// A controller's row policy after an access.
    pub enum PagePolicy = "a page policy" {
        /// It leaves the row open.
        Open = "open",
        /// It closes the row.
        Closed = "closed",
    }
}

part! {
    /// A type of memory controller, with its memory.
    pub struct Memory = "memory" {
        /// Its full name.
        title: Option<String>,
        /// The memory's technology.
        technology: Technology,
        /// Transfers per second on a data pin.
        rate: Option<TransferRate>,
        /// Data width of a channel, without check bits; DDR5's 64 bits are two sub-channels.
        width: Option<Width>,
        /// Channels per controller.
        channels: u32 = 1,
        /// Consecutive bytes in one channel, a power of two; by default 256 bytes.
        interleave: Option<Size>,
        /// Ranks per channel.
        ranks: u32 = 1,
        /// Banks per rank.
        banks: Option<u32>,
        /// Bank groups of a rank; commands to one group are tCCD_L apart. 1 if the controller interleaves consecutive
        /// lines over the groups.
        bank_groups: u32 = 1,
        /// Row buffer size of a rank.
        row_buffer: Option<Size>,
        /// Row policy after an access.
        page_policy: PagePolicy = PagePolicy::Open,
        /// Column access latency (CL); memory-clock cycles scale with `rate`.
        cl: Option<Latency>,
        /// Row to column delay (tRCD), likewise.
        trcd: Option<Latency>,
        /// Row precharge time (tRP), likewise.
        trp: Option<Latency>,
        /// Row active time (tRAS), likewise.
        tras: Option<Latency>,
        /// Banks that a refresh occupies; by default `same-bank` for DDR5, else `all-bank`.
        refresh: Option<Refresh>,
        /// Average refresh interval (tREFI).
        trefi: Option<Time>,
        /// Refresh cycle time (tRFC, or tRFCsb of `same-bank`).
        trfc: Option<Time>,
        /// Entries of the controller's request queue.
        queue_entries: Option<u32>,
        /// Load-to-use latency on an idle machine, all cache levels included.
        latency: Option<Latency>,
        /// Measured or stated bandwidth of a controller; by default the peak.
        bandwidth: Option<Bandwidth>,
        /// Where the numbers come from.
        source: Cited,
        /// Sources of single keys, if they differ.
        source_of: Map<Cited>,
    }
}

impl Memory {
    /// Peak bandwidth of a controller in bytes per second, if rate and width are known.
    pub fn peak_bytes_per_second(&self) -> Option<u64> {
        let one_channel = self.rate?.per_second().checked_mul(self.width?.bits())? / 8;
        one_channel.checked_mul(u64::from(self.channels))
    }
}
