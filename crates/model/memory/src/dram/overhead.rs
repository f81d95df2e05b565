//! Computes the part of a memory's stated latency that the model does not simulate.
//!
//! Source: `Memory::latency` of machine files is the load-to-use latency on an idle machine, as a random pointer chase
//! measures it.

use super::timing::Timing;

/// Fixed time in picoseconds to add to every miss, so that a random pointer chase on an idle machine takes
/// `load_to_use_ps` on average. It is the stated latency minus `path_ps` (lookups in all caches and both ways through
/// the interconnect, as charged by `MemorySystem` and `Interconnect::idle_ps`) and minus `mean_random_ps` of the
/// controller. It accounts for what machine files do not describe: queue pipelines, clock crossings, error correction,
/// the controller's scheduler.
///
/// The result is negative if the modelled parts add up to more than the stated latency. The model sends a whole line
/// over one component after another, whereas hardware forwards the critical word first. Only transfer time can overlap
/// in this way: a stated latency below the sum of the other parts is rejected.
pub const fn fixed_ps(load_to_use_ps: u64, path_ps: u64, mean_random_ps: u64) -> i64 {
    load_to_use_ps as i64 - path_ps as i64 - mean_random_ps as i64
}

/// Load-to-use latency, picoseconds, for machine files that state none: 100 ns. An estimate, between the 75 ns of a
/// server of 2012 and the 140 ns of a 3A5000, and typical of current servers.
pub const DEFAULT_LOAD_TO_USE_PS: u64 = 100_000;

/// Mean time in picoseconds of a read of `bytes` from a random address. `controllers` idle controllers share the reads
/// of one pointer chase.
///
/// The requested row is practically never open. The bank is precharged if the read is its first since the last refresh;
/// otherwise another row must be closed first, which takes tRP more. A chase issues one read per load-to-use latency,
/// so the number of reads of a bank between two refreshes is Poisson-distributed with mean n = tREFI / load-to-use /
/// banks, and a share of (1 - exp(-n)) / n of them is first. The mean wait for refreshes is added.
pub(super) fn mean_random_ps(timing: &Timing, controllers: usize, bytes: u32) -> u64 {
    let burst = burst_ps(timing, bytes);
    let ranks = f64::from(timing.channels) * f64::from(timing.ranks) * controllers.max(1) as f64;
    let period = timing.load_to_use_ps.unwrap_or(DEFAULT_LOAD_TO_USE_PS).max(1) as f64;
    let reads = timing.trefi_ps as f64 / period / (ranks * f64::from(timing.banks));
    let first = -(-reads).exp_m1() / reads;
    let close = if timing.open_rows { timing.trp_ps as f64 * (1.0 - first) } else { 0.0 };
    let refresh = mean_refresh_wait_ps(timing, ranks, period);
    (close + (timing.trcd_ps + timing.cl_ps) as f64 + burst + refresh).round() as u64
}

/// Time that `bytes` occupy a channel's bus, picoseconds.
pub(super) fn burst_ps(timing: &Timing, bytes: u32) -> f64 {
    f64::from(bytes) * 1e12 / timing.channel_bytes_per_second as f64
}

/// Mean time that a read of a chase waits for a refresh, picoseconds. Each rank refreshes once every tREFI. During a
/// refresh, the chase issues a read every `period` until one goes to that rank; that read waits for the end of the
/// refresh, so the chase meets each refresh at most once.
fn mean_refresh_wait_ps(timing: &Timing, ranks: f64, period: f64) -> f64 {
    let (trefi, trfc) = (timing.trefi_ps as f64, timing.trfc_ps as f64);
    let (mut wait, mut not_yet, mut left) = (0.0, 1.0, trfc);
    // Below this probability, the remaining terms do not change the mean.
    while left > 0.0 && not_yet > 1e-9 {
        // The first read is uniformly distributed over the first period of the refresh.
        let rest = if left >= period { left - period / 2.0 } else { left * left / (2.0 * period) };
        wait += not_yet / ranks * rest;
        not_yet *= 1.0 - 1.0 / ranks;
        left -= period;
    }
    // With more ranks than fit into tREFI one after another, refreshes overlap.
    let waits = (ranks * wait).min(trefi / 2.0);
    waits * period / (trefi - waits)
}
