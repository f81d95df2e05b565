//! What part of a memory's stated latency is none of the models': the one place where that is worked out.
//! Not a latency of its own: a remainder.
//! Source: `Memory::latency` of machine files is load to use on an idle machine, as a random pointer chase measures it.

use super::timing::Timing;

/// The fixed time, in picoseconds, that a miss spends beside what is modelled, so that a random pointer chase on an idle machine
/// takes `load_to_use_ps` on average: the stated latency, less `path_ps` (look-ups in all caches and the way there and back:
/// what `MemorySystem` and `Interconnect::idle_ps` charge), less `mean_random_ps` of the controller. It stands for what no
/// machine file has: queues' pipelines, clock crossings, error correction, the controller's scheduler.
///
/// 0 if the parts are already longer than the whole; then the modelled latency exceeds the stated one.
pub const fn fixed_ps(load_to_use_ps: u64, path_ps: u64, mean_random_ps: u64) -> u64 {
    load_to_use_ps.saturating_sub(path_ps).saturating_sub(mean_random_ps)
}

/// Load to use where a machine file states none, picoseconds: 100 ns. An estimate: between the 75 ns of a server of 2012
/// and the 140 ns of a 3A5000, and what most of today's servers show.
pub const DEFAULT_LOAD_TO_USE_PS: u64 = 100_000;

/// The mean time, in picoseconds, of a read of `bytes` at a random place of `controllers` idle controllers that share the
/// reads of one pointer chase.
///
/// The row is as good as never open. It is closed if no read came to its bank since the last refresh, else another row must be
/// closed first (tRP more). A chase reads once in its load-to-use time, so between two refreshes a bank sees a number of reads
/// that is Poisson-distributed with mean n = tREFI / load-to-use / banks, and of those (1 - exp(-n)) / n are the first. A read
/// that meets a refresh waits for the rest of it. A chase has one read under way: while refreshes are longer than its load-to-use
/// time, just one read of each interval meets one, half a load-to-use time after its start on average; otherwise a read meets
/// one with probability tRFC / tREFI and waits half of it.
pub(super) fn mean_random_ps(timing: &Timing, controllers: usize, bytes: u32) -> u64 {
    let burst = f64::from(bytes) * 1e12 / timing.channel_bytes_per_second as f64;
    let (trefi, trfc) = (timing.trefi_ps as f64, timing.trfc_ps as f64);
    let banks = f64::from(timing.channels) * f64::from(timing.ranks) * f64::from(timing.banks);
    let period = timing.load_to_use_ps.unwrap_or(DEFAULT_LOAD_TO_USE_PS).max(1) as f64;
    let reads = trefi / period / (banks * controllers.max(1) as f64);
    let first = (1.0 - (-reads).exp()) / reads;
    let close = if timing.open_rows { timing.trp_ps as f64 * (1.0 - first) } else { 0.0 };
    let within = period.min(trfc);
    let refresh = within * (trfc - within / 2.0) / trefi;
    (close + (timing.trcd_ps + timing.cl_ps) as f64 + burst + refresh).round() as u64
}
