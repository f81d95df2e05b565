//! Memory controllers with the memory behind them.
//! Not a DRAM timing model: the parameters such a model needs.
//! Source: parameter names after the JEDEC DDR standards.

use crate::read::{Cited, Map, choice, part};
use crate::units::{Bandwidth, Cycles, Latency, Size, Time, TransferRate, Width};

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
    /// What a controller does with a row after an access.
    pub enum PagePolicy = "a page policy" {
        /// Leaves it open.
        Open = "open",
        /// Closes it.
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
        /// Transfers a second on one data pin.
        rate: Option<TransferRate>,
        /// Data width of a channel, without check bits.
        width: Option<Width>,
        /// Channels of one controller.
        channels: u32 = 1,
        /// Ranks of a channel.
        ranks: u32 = 1,
        /// Banks of a rank.
        banks: Option<u32>,
        /// Groups that the banks of a rank are in, where a stream of neighbouring lines stays in one group: commands to one group keep
        /// a distance (tCCD_L). 1 also where the controller spreads neighbouring lines over the groups.
        bank_groups: u32 = 1,
        /// Row buffer of a rank.
        row_buffer: Option<Size>,
        /// What happens to a row after an access.
        page_policy: PagePolicy = PagePolicy::Open,
        /// Column access (CL), memory clock cycles (half the transfer rate).
        cl: Option<Cycles>,
        /// Row to column (tRCD), memory clock cycles.
        trcd: Option<Cycles>,
        /// Precharge (tRP), memory clock cycles.
        trp: Option<Cycles>,
        /// Row active (tRAS), memory clock cycles.
        tras: Option<Cycles>,
        /// Average time between refreshes (tREFI).
        trefi: Option<Time>,
        /// Time of a refresh (tRFC).
        trfc: Option<Time>,
        /// Requests waiting at a controller.
        queue_entries: Option<u32>,
        /// Load to use on an idle machine, all levels included.
        latency: Option<Latency>,
        /// Of all channels of one controller, as measured or stated; the peak if left out.
        bandwidth: Option<Bandwidth>,
        /// Where the numbers come from.
        source: Cited,
        /// Where single keys come from, if elsewhere.
        source_of: Map<Cited>,
    }
}

impl Memory {
    /// Peak of one controller in bytes a second, if rate and width are known.
    pub fn peak_bytes_per_second(&self) -> Option<u64> {
        let one_channel = self.rate?.per_second().checked_mul(self.width?.bits())? / 8;
        one_channel.checked_mul(u64::from(self.channels))
    }
}
