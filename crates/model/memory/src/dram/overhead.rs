//! What part of a memory's stated latency is none of the models': the one place where that is worked out.
//! Not a latency of its own: a remainder.
//! Source: `Memory::latency` of machine files is load to use on an idle machine, as a random pointer chase measures it.

use super::timing::Timing;

/// The fixed time, in picoseconds, that a miss spends beside what is modelled, so that a random pointer chase on an idle machine
/// takes `load_to_use_ps` on average: the stated latency, less `path_ps` (look-ups in all caches and the way there and back:
/// what `MemorySystem` and `Interconnect::idle_ps` charge), less `mean_random_ps` of the controller. It stands for what no
/// machine file has: queues' pipelines, clock crossings, error correction, the controller's scheduler.
///
/// Negative if the parts are longer than the whole: they overlap more than they do in the model, which sends a line over one part
/// after the other, where chips pass its critical word on at once. Only what a line takes on wires can do that: a latency below the rest
/// of the parts is refused.
pub const fn fixed_ps(load_to_use_ps: u64, path_ps: u64, mean_random_ps: u64) -> i64 {
    load_to_use_ps as i64 - path_ps as i64 - mean_random_ps as i64
}

/// Load to use where a machine file states none, picoseconds: 100 ns. An estimate: between the 75 ns of a server of 2012
/// and the 140 ns of a 3A5000, and what most of today's servers show.
pub const DEFAULT_LOAD_TO_USE_PS: u64 = 100_000;

/// The mean time, in picoseconds, of a read of `bytes` at a random place of `controllers` idle controllers that share the
/// reads of one pointer chase.
///
/// The row is as good as never open. It is closed if no read came to its bank since the last refresh, else another row must be
/// closed first (tRP more). A chase reads once in its load-to-use time, so between two refreshes a bank sees a number of reads
/// that is Poisson-distributed with mean n = tREFI / load-to-use / banks, and of those (1 - exp(-n)) / n are the first. To that
/// comes what refreshes cost.
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

/// How long `bytes` are on a channel's bus, picoseconds.
pub(super) fn burst_ps(timing: &Timing, bytes: u32) -> f64 {
    f64::from(bytes) * 1e12 / timing.channel_bytes_per_second as f64
}

/// The mean time a read of a chase waits for a refresh, picoseconds. Each rank has one in every tREFI, and during it the chase
/// arrives every `period` until it happens to come to that rank; then it waits for the refresh's end, so it meets each refresh
/// once at most.
fn mean_refresh_wait_ps(timing: &Timing, ranks: f64, period: f64) -> f64 {
    let (trefi, trfc) = (timing.trefi_ps as f64, timing.trfc_ps as f64);
    let (mut wait, mut not_yet, mut left) = (0.0, 1.0, trfc);
    // What has not happened with this probability does not change the mean.
    while left > 0.0 && not_yet > 1e-9 {
        // The first arrival is anywhere in the first period of the refresh.
        let rest = if left >= period { left - period / 2.0 } else { left * left / (2.0 * period) };
        wait += not_yet / ranks * rest;
        not_yet *= 1.0 - 1.0 / ranks;
        left -= period;
    }
    // More ranks than fit side by side into tREFI refresh at the same time.
    let waits = (ranks * wait).min(trefi / 2.0);
    waits * period / (trefi - waits)
}
