//! Hardware counters of a CPU: instructions, cycles, L1 data and L2 cache misses, and references and misses of the
//! last-level cache. `second_level` selects the L2 event. Uncore counters are not used.
//!
//! Source: perf_event_open(2); Hanford et al. 2014 divide these counts by the throughput.

use super::second_level;
use perf_event::events;
use perf_event::{Builder, Counter};
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;

/// Number of events per CPU. The most important ones come first, because the last ones may not be counted: on AMD Zen 4
/// under KVM, the sixth simultaneous event reads 0, although the kernel reports that it ran all the time. If there are
/// fewer counters than events, the kernel multiplexes them.
pub const MAX_EVENTS: usize = 7;

/// Running counters of one CPU.
pub struct Hardware {
    cpu: u32,
    counters: Vec<(Event, Counter)>,
}

/// Counts of one CPU. A count is `None` if the event does not exist or its value is implausible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HardwareCounts {
    /// Instructions retired.
    pub instructions: Option<f64>,
    /// Instructions retired in user mode.
    pub user_instructions: Option<f64>,
    /// Clock cycles.
    pub cycles: Option<f64>,
    /// References to the last-level cache, as the kernel defines them for the processor.
    pub cache_references: Option<f64>,
    /// Misses of the last-level cache.
    pub cache_misses: Option<f64>,
    /// Loads that missed the L1 data cache.
    #[serde(default)]
    pub first_misses: Option<f64>,
    /// Loads that missed the L2 cache.
    #[serde(default)]
    pub second_misses: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Instructions,
    UserInstructions,
    Cycles,
    CacheReferences,
    CacheMisses,
    L1dMisses,
    L2Misses,
}

const EVENTS: [Event; MAX_EVENTS] = [
    Event::Instructions,
    Event::UserInstructions,
    Event::Cycles,
    Event::CacheReferences,
    Event::CacheMisses,
    Event::L1dMisses,
    Event::L2Misses,
];

/// L1 data cache load misses, as the kernel defines them for the processor.
const L1D_MISSES: events::Cache = events::Cache {
    which: events::CacheId::L1D,
    operation: events::CacheOp::READ,
    result: events::CacheResult::MISS,
};

impl Hardware {
    /// Starts counting all available events on a CPU.
    ///
    /// # Errors
    /// If no event can be counted: EACCES without permission, ENOENT if the processor or hypervisor has no counters.
    pub fn begin(cpu: u32) -> io::Result<Self> {
        let mut counters = Vec::new();
        let mut last_error = io::Error::from(io::ErrorKind::Unsupported);
        for event in EVENTS {
            match event.build(cpu).and_then(|mut counter| counter.enable().map(|()| counter)) {
                Ok(counter) => counters.push((event, counter)),
                Err(error) => last_error = error,
            }
        }
        if counters.is_empty() { Err(last_error) } else { Ok(Self { cpu, counters }) }
    }

    /// The counted CPU.
    pub fn cpu(&self) -> u32 {
        self.cpu
    }

    /// Stops counting and returns the counts.
    pub fn end(mut self) -> HardwareCounts {
        let mut counts = HardwareCounts::default();
        for (event, counter) in &mut self.counters {
            let read = counter.disable().and_then(|()| counter.read_full());
            let value =
                read.ok().and_then(|data| scaled(data.count(), data.time_enabled(), data.time_running()));
            *event.count_mut(&mut counts) = value;
        }
        counts
    }
}

impl Event {
    fn build(self, cpu: u32) -> io::Result<Counter> {
        let mut builder = match self {
            Self::Instructions | Self::UserInstructions => Builder::new(events::Hardware::INSTRUCTIONS),
            Self::Cycles => Builder::new(events::Hardware::CPU_CYCLES),
            Self::CacheReferences => Builder::new(events::Hardware::CACHE_REFERENCES),
            Self::CacheMisses => Builder::new(events::Hardware::CACHE_MISSES),
            Self::L1dMisses => Builder::new(L1D_MISSES),
            Self::L2Misses => {
                Builder::new(events::Raw::new(second_level::misses().ok_or(io::ErrorKind::Unsupported)?))
            }
        };
        builder.any_pid().one_cpu(cpu as usize).exclude_kernel(self == Self::UserInstructions);
        builder.build()
    }

    /// The count of this event.
    fn count_mut(self, counts: &mut HardwareCounts) -> &mut Option<f64> {
        match self {
            Self::Instructions => &mut counts.instructions,
            Self::UserInstructions => &mut counts.user_instructions,
            Self::Cycles => &mut counts.cycles,
            Self::CacheReferences => &mut counts.cache_references,
            Self::CacheMisses => &mut counts.cache_misses,
            Self::L1dMisses => &mut counts.first_misses,
            Self::L2Misses => &mut counts.second_misses,
        }
    }
}

/// Scales a count to the time for which its event was enabled, to compensate for multiplexing. `None` if the count is 0,
/// which is impossible for these events under load, or if the event never ran.
fn scaled(count: u64, enabled: Option<Duration>, running: Option<Duration>) -> Option<f64> {
    let (enabled, running) = (enabled?.as_secs_f64(), running?.as_secs_f64());
    (count > 0 && running > 0.0).then(|| count as f64 * (enabled / running).max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_count_is_discarded_and_a_multiplexed_one_is_scaled() {
        let second = Some(Duration::from_secs(1));
        assert_eq!(scaled(0, second, second), None);
        assert_eq!(scaled(10, second, second), Some(10.0));
        assert_eq!(scaled(10, second, Some(Duration::from_millis(500))), Some(20.0));
        assert_eq!(scaled(10, second, Some(Duration::ZERO)), None);
        assert_eq!(scaled(10, None, second), None);
    }

    #[test]
    fn counting_on_a_missing_cpu_is_an_error() {
        assert!(Hardware::begin(8000).is_err());
    }
}
