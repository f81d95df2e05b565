//! What a CPU's own counters say of all that ran on it: instructions, cycles, misses of the first data cache and of the second level,
//! references to the last cache and its misses.
//! Not uncore counters, and not which event of which processor is a miss of the second level: that is `second_level`.
//! Source: perf_event_open(2); Hanford et al. 2014 divide these counts by the throughput.

use super::second_level;
use perf_event::events;
use perf_event::{Builder, Counter};
use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;

/// Events on a CPU. The sixth at once was seen to read 0 while it claimed to run all the time (AMD Zen 4 under KVM): the last ones are missed
/// least, and where there are fewer counters than events the kernel has them take turns.
pub const MOST_EVENTS: usize = 7;

/// Counters of one CPU, running.
pub struct Hardware {
    cpu: u32,
    counters: Vec<(Event, Counter)>,
}

/// What one CPU counted. A count is none where it does not exist or cannot be true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HardwareCounts {
    /// Instructions retired.
    pub instructions: Option<f64>,
    /// Those of them that programs executed, not the kernel.
    pub user_instructions: Option<f64>,
    /// Clock cycles.
    pub cycles: Option<f64>,
    /// References to the last cache, as the kernel defines them for the processor.
    pub cache_references: Option<f64>,
    /// Those of them that missed.
    pub cache_misses: Option<f64>,
    /// Loads that missed the first data cache: what is asked of the second level.
    #[serde(default)]
    pub first_misses: Option<f64>,
    /// Loads that missed the second level.
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
    FirstMisses,
    SecondMisses,
}

const EVENTS: [Event; MOST_EVENTS] = [
    Event::Instructions,
    Event::UserInstructions,
    Event::Cycles,
    Event::CacheReferences,
    Event::CacheMisses,
    Event::FirstMisses,
    Event::SecondMisses,
];

/// Loads that missed L1D, as the kernel defines them for the processor.
const FIRST_MISSES: events::Cache = events::Cache {
    which: events::CacheId::L1D,
    operation: events::CacheOp::READ,
    result: events::CacheResult::MISS,
};

impl Hardware {
    /// Begins to count on a CPU all that exists there.
    ///
    /// # Errors
    /// If nothing can be counted: EACCES without the right, ENOENT where the processor or the hypervisor has no counters.
    pub fn begin(cpu: u32) -> io::Result<Self> {
        let mut counters = Vec::new();
        let mut refused = io::Error::from(io::ErrorKind::Unsupported);
        for event in EVENTS {
            match event.build(cpu).and_then(|mut counter| counter.enable().map(|()| counter)) {
                Ok(counter) => counters.push((event, counter)),
                Err(error) => refused = error,
            }
        }
        if counters.is_empty() { Err(refused) } else { Ok(Self { cpu, counters }) }
    }

    /// The CPU.
    pub fn cpu(&self) -> u32 {
        self.cpu
    }

    /// Ends counting.
    pub fn end(mut self) -> HardwareCounts {
        let mut counts = HardwareCounts::default();
        for (event, counter) in &mut self.counters {
            let read = counter.disable().and_then(|()| counter.read_full());
            let value =
                read.ok().and_then(|data| scaled(data.count(), data.time_enabled(), data.time_running()));
            *event.place(&mut counts) = value;
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
            Self::FirstMisses => Builder::new(FIRST_MISSES),
            Self::SecondMisses => {
                Builder::new(events::Raw::new(second_level::misses().ok_or(io::ErrorKind::Unsupported)?))
            }
        };
        builder.any_pid().one_cpu(cpu as usize).exclude_kernel(self == Self::UserInstructions);
        builder.build()
    }

    fn place(self, counts: &mut HardwareCounts) -> &mut Option<f64> {
        match self {
            Self::Instructions => &mut counts.instructions,
            Self::UserInstructions => &mut counts.user_instructions,
            Self::Cycles => &mut counts.cycles,
            Self::CacheReferences => &mut counts.cache_references,
            Self::CacheMisses => &mut counts.cache_misses,
            Self::FirstMisses => &mut counts.first_misses,
            Self::SecondMisses => &mut counts.second_misses,
        }
    }
}

/// A count over the time that its event had a counter of its own; none if it is 0, which no event here can be while a load runs.
fn scaled(count: u64, enabled: Option<Duration>, running: Option<Duration>) -> Option<f64> {
    let (enabled, running) = (enabled?.as_secs_f64(), running?.as_secs_f64());
    (count > 0 && running > 0.0).then(|| count as f64 * (enabled / running).max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impossible_zero_is_no_count_and_a_shared_counter_is_scaled() {
        let second = Some(Duration::from_secs(1));
        assert_eq!(scaled(0, second, second), None);
        assert_eq!(scaled(10, second, second), Some(10.0));
        assert_eq!(scaled(10, second, Some(Duration::from_millis(500))), Some(20.0));
        assert_eq!(scaled(10, second, Some(Duration::ZERO)), None);
        assert_eq!(scaled(10, None, second), None);
    }

    #[test]
    fn a_cpu_that_is_not_there_cannot_be_counted() {
        assert!(Hardware::begin(8000).is_err());
    }
}
