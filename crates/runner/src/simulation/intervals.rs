//! Summaries of a run at regular numbers of instructions, for pictures of a run over time.

use longma_sim::Time;

use super::{Phase, Summary, TimingSimulation};

/// Instructions between the first summaries. The distance doubles each time the number of summaries would become too
/// large.
const FIRST_DISTANCE: u64 = 50_000;
/// The maximum number of summaries.
const MAX_SUMMARIES: usize = 256;

/// The summaries so far.
pub(super) struct Intervals {
    distance: u64,
    next: u64,
    kept: Vec<Summary>,
}

impl Default for Intervals {
    fn default() -> Self {
        Self { distance: FIRST_DISTANCE, next: FIRST_DISTANCE, kept: Vec::new() }
    }
}

impl Intervals {
    /// Keeps a summary of the run up to here.
    fn keep(&mut self, summary: Summary) {
        let instructions = summary.instructions;
        self.kept.push(summary);
        if self.kept.len() >= MAX_SUMMARIES {
            // Each summary counts from the beginning, so dropping every second one only halves the resolution.
            let mut number = 0;
            self.kept.retain(|_| {
                number += 1;
                number % 2 == 0
            });
            self.distance *= 2;
        }
        self.next = (instructions / self.distance + 1) * self.distance;
    }
}

impl TimingSimulation {
    /// Keeps summaries of the run so far at regular numbers of counted instructions, at most 256, for
    /// [`RunResult::intervals`](super::RunResult::intervals). This changes no result.
    pub fn keep_intervals(&mut self) {
        self.intervals = Some(Intervals::default());
    }

    /// At the end of a turn at `time`: keeps a summary if it is due.
    pub(super) fn keep_interval(&mut self, time: Time) {
        let Some(mut intervals) = self.intervals.take() else { return };
        if self.sampler.is_none()
            && self.phase == Phase::Counted
            && self.counted_instructions() >= intervals.next
        {
            let mut summary = Summary::of(self);
            summary.time = self.counted_time(time);
            intervals.keep(summary);
        }
        self.intervals = Some(intervals);
    }

    /// The summaries, without those of a sampled run.
    pub(super) fn intervals(&self) -> Vec<Summary> {
        self.intervals.as_ref().map_or_else(Vec::new, |intervals| intervals.kept.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_sim::Duration;

    #[test]
    fn a_long_run_has_a_bounded_number_of_summaries_at_equal_distances() {
        let mut intervals = Intervals::default();
        let mut instructions = 0;
        while instructions < 1_000_000_000 {
            instructions += 10_000;
            if instructions >= intervals.next {
                let (busy_cycles, time, cores) = (0.0, Duration::ZERO, 1);
                intervals.keep(Summary {
                    instructions,
                    busy_cycles,
                    time,
                    cores,
                    stack: None,
                    branches: None,
                });
            }
        }
        assert!((MAX_SUMMARIES / 2..MAX_SUMMARIES).contains(&intervals.kept.len()));
        let first = intervals.kept[0].instructions;
        assert!(intervals.kept.windows(2).all(|pair| pair[1].instructions - pair[0].instructions == first));
    }
}
