//! Timing parameters of a memory controller, from the machine file or else from the JEDEC standard of its technology.
//!
//! Source: JEDEC 21-C (SDRAM), JESD79 (DDR), JESD79-2, -3, -4, -5 (DDR2 to DDR5), JESD235 (HBM).

use longma_topology::parts::{Memory, PagePolicy, Refresh, Technology};
use longma_topology::units::{Frequency, Latency, Time, TransferRate};

/// Parameters of a technology's usual speed grade. Times in picoseconds.
struct Standard {
    transfers_per_second: u64,
    width_bits: u64,
    banks: u32,
    cl_ps: u64,
    trcd_ps: u64,
    trp_ps: u64,
    tras_ps: u64,
    trefi_ps: u64,
    trfc_ps: u64,
}

/// One row per technology: rate, width, banks, CL, tRCD, tRP, tRAS, tREFI, tRFC.
const fn standard(technology: Technology) -> Standard {
    let row: (u64, u64, u32, [u64; 6]) = match technology {
        // PC133, 3-3-3, 256 Mb devices.
        Technology::Sdram => (133_000_000, 64, 4, [22_500, 22_500, 22_500, 45_000, 7_800_000, 75_000]),
        // DDR-400B, 3-3-3, 512 Mb devices.
        Technology::Ddr => (400_000_000, 64, 4, [15_000, 15_000, 15_000, 40_000, 7_800_000, 70_000]),
        // DDR2-800E, 6-6-6, 1 Gb devices.
        Technology::Ddr2 => (800_000_000, 64, 8, [15_000, 15_000, 15_000, 45_000, 7_800_000, 127_500]),
        // DDR3-1600K, 11-11-11, 4 Gb devices.
        Technology::Ddr3 => (1_600_000_000, 64, 8, [13_750, 13_750, 13_750, 35_000, 7_800_000, 260_000]),
        // DDR4-3200AA, 22-22-22, 8 Gb devices. Also the default for an unknown technology, because most current servers
        // use it.
        Technology::Ddr4 | Technology::Unknown => {
            (3_200_000_000, 64, 16, [13_750, 13_750, 13_750, 32_000, 7_800_000, 350_000])
        }
        // DDR5-4800B, 40-39-39, 16 Gb devices.
        Technology::Ddr5 => (4_800_000_000, 64, 32, [16_667, 16_250, 16_250, 32_000, 3_900_000, 295_000]),
        // HBM2 at 2 Gb/s per pin, 8 Gb per channel pair.
        Technology::Hbm => (2_000_000_000, 128, 16, [14_000, 14_000, 14_000, 33_000, 3_900_000, 350_000]),
    };
    let (transfers_per_second, width_bits, banks, [cl_ps, trcd_ps, trp_ps, tras_ps, trefi_ps, trfc_ps]) = row;
    Standard { transfers_per_second, width_bits, banks, cl_ps, trcd_ps, trp_ps, tras_ps, trefi_ps, trfc_ps }
}

/// Row buffer of a rank if the machine file states none: eight devices of 8 bits with a page of 1 KiB each (JESD79-3,
/// -4).
const ROW_BUFFER_BYTES: u64 = 8192;

/// Time from the end of write data to a read command of the same rank (tWTR_L), picoseconds: 7.5 ns in JESD79-3 and -4.
const TWTR_PS: u64 = 7_500;

/// Time from the end of write data to the precharge of the row (tWR), picoseconds: 15 ns in JESD79 to JESD79-4.
const TWR_PS: u64 = 15_000;

/// Minimum distance of two column commands to one bank group (tCCD_L), picoseconds: 5 ns in JESD79-4 from DDR4-1866 on,
/// and in JESD79-5. Older memory has no bank groups.
const TCCD_L_PS: u64 = 5_000;

/// The window in which a rank may activate at most four rows (tFAW), picoseconds, for rows of 1 KiB a device: JESD79-2
/// at DDR2-800, JESD79-3 at DDR3-1600, JESD79-4 from DDR4-2400 on, JESD79-5 at DDR5-4800. 0 for no limit: older devices
/// have only four banks.
const fn four_rows_ps(technology: Technology) -> u64 {
    match technology {
        Technology::Sdram | Technology::Ddr | Technology::Hbm => 0,
        Technology::Ddr2 => 37_500,
        Technology::Ddr3 => 30_000,
        Technology::Ddr4 | Technology::Unknown => 21_000,
        Technology::Ddr5 => 13_333,
    }
}

/// Duration of a same-bank refresh (tRFCsb), picoseconds: 130 ns in JESD79-5 for 16 Gb devices.
const TRFC_SAME_BANK_PS: u64 = 130_000;

/// Banks of a bank group, of which a same-bank refresh occupies one: four in JESD79-5 from 16 Gb devices on.
const BANKS_OF_GROUP: u32 = 4;

/// Minimum width of a DDR5 channel that consists of two sub-channels (JESD79-5: a module has two of 32 bits).
const TWO_SUB_CHANNELS_BITS: u64 = 64;

/// Consecutive bytes in one channel if the machine file states no interleave. An estimate: AMD's and Intel's server
/// processors interleave at 64 bytes (a line) to 4 KiB (a page).
const INTERLEAVE_BYTES: u64 = 256;

/// Queue entries of a controller if the machine file states none. An estimate: 32 is common in published simulators.
const QUEUE_ENTRIES: u32 = 32;

/// Structure and timing of one controller. Times in picoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Channels; in DDR5, sub-channels.
    pub channels: u32,
    /// The number of consecutive bytes in one channel, after which the next channel follows.
    pub interleave_bytes: u64,
    /// Ranks of a channel.
    pub ranks: u32,
    /// Banks of a rank.
    pub banks: u32,
    /// Row buffer of a rank, bytes.
    pub row_bytes: u64,
    /// Whether rows stay open after an access (open-page policy).
    pub open_rows: bool,
    /// Column command to first data (CL).
    pub cl_ps: u64,
    /// Activate to column command (tRCD).
    pub trcd_ps: u64,
    /// Precharge time (tRP).
    pub trp_ps: u64,
    /// Minimum time from activate to precharge (tRAS).
    pub tras_ps: u64,
    /// Parts of a rank that are refreshed one after another: 1 if a refresh occupies all banks.
    pub refresh_sets: u32,
    /// Interval between refreshes of a bank (tREFI).
    pub trefi_ps: u64,
    /// Duration of a refresh (tRFC); always less than tREFI.
    pub trfc_ps: u64,
    /// Bus idle time between writes and the reads that follow: tWTR plus CL.
    pub turnaround_ps: u64,
    /// Bank groups of a rank; 1 if banks are not grouped.
    pub groups: u32,
    /// Minimum distance of two column commands to one bank group (tCCD_L); 0 if banks are not grouped.
    pub tccd_l_ps: u64,
    /// End of write data to precharge (tWR).
    pub twr_ps: u64,
    /// Window in which a rank activates at most four rows (tFAW); 0 for no limit.
    pub tfaw_ps: u64,
    /// Data rate of one channel, bytes per second.
    pub channel_bytes_per_second: u64,
    /// Maximum number of queued requests.
    pub queue_entries: u32,
    /// Load-to-use latency on an idle machine, all cache levels included, if the machine file states it.
    pub load_to_use_ps: Option<u64>,
}

impl Timing {
    /// Derives the timing of a controller of type `memory`. `clock` is the core clock, for latencies stated in core
    /// cycles.
    pub fn of(memory: &Memory, clock: Frequency) -> Self {
        let standard = standard(memory.technology);
        let transfers = memory.rate.map_or(standard.transfers_per_second, TransferRate::per_second).max(1);
        // SDRAM transfers once a clock, all later technologies twice.
        let memory_hz = if memory.technology == Technology::Sdram { transfers } else { transfers / 2 };
        let ps = |latency: Option<Latency>, otherwise: u64| {
            latency.map_or(otherwise, |latency| latency.ps(Frequency::new(memory_hz)).min(MAX_PS))
        };
        let width = memory.width.map_or(standard.width_bits, |w| w.bits());
        let is_split = memory.technology == Technology::Ddr5 && width >= TWO_SUB_CHANNELS_BITS;
        let parts = if is_split { 2 } else { 1 };
        let peak = (transfers.saturating_mul(width / u64::from(parts)) / 8).max(1);
        let channels = memory.channels.max(1).saturating_mul(parts);
        let stated = memory.bandwidth.map(|b| b.bytes_per_second(Frequency::new(memory_hz)));
        // A stated or measured bandwidth below the peak limits the channels. If the transfer rate is unknown, the
        // bandwidth alone determines the rate.
        let stated = stated.map(|b| (b / u64::from(channels)).max(1));
        let rate = match (stated, memory.rate) {
            (Some(stated), Some(_)) => stated.min(peak),
            (Some(stated), None) => stated,
            (None, _) => peak,
        };
        let cl_ps = ps(memory.cl, standard.cl_ps);
        let banks = memory.banks.unwrap_or(standard.banks).max(1);
        let groups = memory.bank_groups.clamp(1, banks);
        let trefi_ps = memory.trefi.map_or(standard.trefi_ps, Time::ps).max(2);
        let usual = if memory.technology == Technology::Ddr5 { Refresh::SameBank } else { Refresh::AllBank };
        let (refresh_sets, trfc_ps) = match memory.refresh.unwrap_or(usual) {
            Refresh::AllBank => (1, standard.trfc_ps),
            Refresh::SameBank => (BANKS_OF_GROUP.min(banks), TRFC_SAME_BANK_PS),
        };
        Self {
            channels,
            ranks: memory.ranks.max(1),
            banks,
            interleave_bytes: memory.interleave.map_or(INTERLEAVE_BYTES, |size| size.bytes()).max(1),
            row_bytes: (memory.row_buffer.map_or(ROW_BUFFER_BYTES, |r| r.bytes()) / u64::from(parts)).max(1),
            open_rows: memory.page_policy == PagePolicy::Open,
            cl_ps,
            trcd_ps: ps(memory.trcd, standard.trcd_ps),
            trp_ps: ps(memory.trp, standard.trp_ps),
            tras_ps: ps(memory.tras, standard.tras_ps),
            refresh_sets,
            trefi_ps,
            trfc_ps: memory.trfc.map_or(trfc_ps, Time::ps).min(trefi_ps / 2).max(1),
            turnaround_ps: TWTR_PS + cl_ps,
            groups,
            tccd_l_ps: if groups > 1 { TCCD_L_PS } else { 0 },
            twr_ps: TWR_PS,
            tfaw_ps: four_rows_ps(memory.technology),
            channel_bytes_per_second: rate,
            queue_entries: memory.queue_entries.unwrap_or(QUEUE_ENTRIES).max(1),
            load_to_use_ps: memory.latency.map(|l| l.ps(clock)),
        }
    }
}

/// Upper bound of a single timing parameter: one microsecond, a hundred times the largest value in any standard.
const MAX_PS: u64 = 1_000_000;
