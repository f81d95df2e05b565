//! Systematic sampling: most of a program runs without timing, and units at equal distances are timed in detail. The
//! cycles of the whole program are estimated from the units, with a confidence interval.
//!
//! Source: Wunderlich, Wenisch, Falsafi and Hoe, "SMARTS: accelerating microarchitecture simulation via rigorous
//! statistical sampling" (ISCA 2003). Warming before each unit is bounded here.

mod estimate;
mod plan;
mod report;
mod run;
mod sampler;

use longma_sim::StatisticsError;

pub(super) use estimate::RatioSums;
pub use estimate::{Estimate, INTERVAL};
pub use plan::{MIN_UNITS, SamplingPlan};
pub use report::SamplingReport;
pub(super) use sampler::{Sampler, Stage};

/// Why a sampled run has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SamplingError {
    /// The program is too short for the plan.
    #[error(
        "the program executed {instructions} instructions, which gave {units} units to measure; an interval needs at least {MIN_UNITS}"
    )]
    TooFewUnits {
        /// The units that were measured.
        units: u64,
        /// The instructions that the program executed.
        instructions: u64,
        /// The distance of units that gives enough of them; `None` if the program is too short for any.
        every: Option<u64>,
    },
    /// The program started a thread.
    #[error("the program started a second thread, and only programs with one thread can be sampled")]
    Threads,
    /// The program used a device of the machine.
    #[error("the program used a device of the machine, which cannot be sampled")]
    Devices,
    /// A plug-in has failed; or two parts of the model use the same statistic name, which is a bug in the models.
    #[error("the statistics cannot be computed: {0}")]
    Statistics(#[from] StatisticsError),
}

impl SamplingError {
    /// Advice for the user.
    pub fn advice(&self) -> String {
        match self {
            Self::TooFewUnits { every: Some(every), .. } => {
                format!("measure more of it: `--sample=every={every}`, or leave --sample out")
            }
            Self::TooFewUnits { every: None, .. } => {
                "leave --sample out: a program this short is timed in full at once".into()
            }
            Self::Threads | Self::Devices => "leave --sample out".into(),
            Self::Statistics(_) => String::new(),
        }
    }
}
