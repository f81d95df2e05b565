//! Computes the part of a memory's stated latency that the model does not simulate.
//!
//! Source: `Memory::latency` of machine files is the load-to-use latency on an idle machine, as a random pointer chase
//! measures it.

use super::Controller;
use super::timing::Timing;
use longma_random::SplitMix64;
use longma_sim::Time;

/// Fixed time in picoseconds to add to every miss, so that a random pointer chase on an idle machine takes
/// `load_to_use_ps` on average. It is the stated latency minus `path_ps` (lookups in all caches and both ways through
/// the interconnect, as charged by `MemorySystem` and `Interconnect::idle_ps`) and minus `mean_random_ps` of the
/// controller. It accounts for parts that machine files do not describe: queue pipelines, clock crossings, error
/// correction, the controller's scheduler.
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

/// Number of reads in the chase of [`measure`]: 140 refresh intervals at 140 ns a read.
const READS: u32 = 8_000;
/// Addresses of the chase: 4 GiB, far more than the open rows.
const RANGE_BYTES: u64 = 1 << 32;

/// Sets the mean time of a read of `line` bytes from a random address of each controller: that of a pointer chase over
/// the controllers of its node, with the stated load-to-use latency from one read to the next. The requested row is
/// practically never open; whether its bank is precharged, and how often a read meets a refresh, depends on all
/// parameters, so the mean is measured on a copy.
pub(super) fn measure(controllers: &mut [Controller], line: u32) {
    let mut from = 0;
    while from < controllers.len() {
        let node = controllers[from].node;
        let to = from + controllers[from..].iter().take_while(|c| c.node == node).count();
        let group = &controllers[from..to];
        let computed = same_group(&controllers[..from], group).map(|at| controllers[at].mean_random_ps);
        let mean_ps = computed.unwrap_or_else(|| mean_random_ps(group, line));
        controllers[from..to].iter_mut().for_each(|c| c.mean_random_ps = mean_ps);
        from = to;
    }
}

/// The start of an earlier node with the same controllers as `group`.
fn same_group(earlier: &[Controller], group: &[Controller]) -> Option<usize> {
    let starts = (0..earlier.len()).filter(|at| *at == 0 || earlier[at - 1].node != earlier[*at].node);
    let same = |at: &usize| {
        let other = earlier[*at..].iter().take_while(|c| c.node == earlier[*at].node);
        other.map(|c| &c.timing).eq(group.iter().map(|c| &c.timing))
    };
    starts.into_iter().find(same)
}

fn mean_random_ps(group: &[Controller], line: u32) -> u64 {
    let timing = &group[0].timing;
    let period = timing.load_to_use_ps.unwrap_or(DEFAULT_LOAD_TO_USE_PS);
    let mut mean = (timing.trcd_ps + timing.cl_ps) + burst_ps(timing, line).round() as u64;
    // The first chase determines the pause between two reads, and the second is measured.
    for _ in 0..2 {
        let mut copies = group.to_vec();
        let (mut random, mut at, mut sum) = (SplitMix64::new(1), 0, 0);
        for _ in 0..READS {
            let controller = random.below(copies.len() as u64) as usize;
            let address = random.below(RANGE_BYTES / u64::from(line.max(1))) * u64::from(line.max(1));
            let end = copies[controller].access(address, line, false, Time::from_ps(at)).ps();
            sum += end - at;
            at = end + period.saturating_sub(mean);
        }
        mean = sum / u64::from(READS);
    }
    mean
}

/// Time that `bytes` occupy a channel's bus, picoseconds.
pub(super) fn burst_ps(timing: &Timing, bytes: u32) -> f64 {
    f64::from(bytes) * 1e12 / timing.channel_bytes_per_second as f64
}
