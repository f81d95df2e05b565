//! Micro-benchmarks of the host that this program runs on. Other load on the host affects the results.
//!
//! Source: pointer chase after lmbench's lat_mem_rd; bandwidths count bytes as STREAM does (J. McCalpin).

pub mod bandwidth;
pub mod branches;
pub mod chase;
pub mod clock;
pub mod memory;
pub mod pin;
pub mod pingpong;

use serde::Serialize;
use std::time::Duration;

/// The effort of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thoroughness {
    /// About 20 seconds.
    Quick,
    /// A few minutes: larger areas, more repetitions, and pairs of up to 64 CPUs instead of 8.
    Thorough,
}

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The memory to be measured could not be allocated.
    #[error("cannot allocate {bytes} bytes of memory for the measurement: {error}")]
    Memory {
        /// The size requested.
        bytes: usize,
        /// The system's error.
        error: std::io::Error,
    },
}

/// The bandwidths that a number of threads reach together, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bandwidths {
    /// Number of threads.
    pub threads: u32,
    /// Bandwidth of reading.
    pub read: u64,
    /// Bandwidth of copying: bytes read and bytes written.
    pub copy: u64,
    /// Bandwidth of STREAM's triad.
    pub triad: u64,
}

/// Sizes and repetitions.
#[derive(Clone, Debug)]
pub struct Effort {
    /// Repetitions of a measurement. The best one is used.
    pub repeats: u32,
    /// Duration of one repetition.
    pub run: Duration,
    /// The largest area of a pointer chase, bytes.
    pub largest_chase: usize,
    /// The largest array of a bandwidth measurement, bytes.
    pub largest_array: usize,
    /// Maximum number of CPUs among which the transfer of a line is measured.
    pub max_cpus: usize,
    /// Rounds for each pair of CPUs.
    pub rounds: u32,
    /// Total time for all pairs of CPUs.
    pub core_to_core: Duration,
}

impl Effort {
    /// The sizes and repetitions for a level of thoroughness.
    pub fn of(thoroughness: Thoroughness) -> Self {
        match thoroughness {
            Thoroughness::Quick => Self {
                repeats: 3,
                run: Duration::from_millis(60),
                largest_chase: 768 << 20,
                largest_array: 256 << 20,
                max_cpus: 8,
                rounds: 24,
                core_to_core: Duration::from_secs(2),
            },
            Thoroughness::Thorough => Self {
                repeats: 9,
                run: Duration::from_millis(250),
                largest_chase: 4 << 30,
                largest_array: 1 << 30,
                max_cpus: 64,
                rounds: 48,
                core_to_core: Duration::from_secs(60),
            },
        }
    }
}
