//! The stages of a sampled run, and the sums over the measured units.

use std::collections::BTreeMap;

use longma_memory::Traffic;
use longma_random::SplitMix64;
use longma_sim::{Cycle, Histogram, Statistics, StatisticsError, Time, Value};
use longma_timing::{BlockCounts, BranchCounts, Cause};
use longma_trace::{BlockNumber, Trace};

use super::{Estimate, MIN_UNITS, RatioSums, SamplingError, SamplingPlan};

/// The use of the instructions that execute now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulation) enum Stage {
    /// They are only executed.
    Skip,
    /// They update caches, TLBs and predictors.
    Warm,
    /// They run through the timing models, uncounted.
    Detail,
    /// They run through the timing models and are counted.
    Measure,
}

impl Stage {
    /// Whether the core's model keeps the time.
    pub fn is_timed(self) -> bool {
        matches!(self, Self::Detail | Self::Measure)
    }
}

/// The values of a statistic in all units.
#[derive(Clone, Debug)]
enum Values {
    /// A count, over the instructions of the unit.
    Count(RatioSums),
    /// A ratio of two counts.
    Rate(RatioSums),
    /// A distribution.
    Histogram(Histogram),
}

/// A statistic summed over the units.
#[derive(Clone, Debug)]
struct SummedStatistic {
    values: Values,
    unit: String,
    description: String,
}

/// The measurements of a unit.
pub(in crate::simulation) struct Unit {
    pub instructions: u64,
    /// Cycles without idle ones.
    pub cycles: f64,
    pub statistics: Statistics,
    pub stack: [f64; Cause::ALL.len()],
    pub branches: BranchCounts,
    pub traffic: Vec<Traffic>,
}

/// Whether a statistic counts events in a unit. Other statistics describe a state, such as the pages in memory, which
/// does not grow with the number of instructions.
fn counts_events(name: &str) -> bool {
    let of_state = [".unused_prefetches", ".earlier_prefetches"];
    !name.starts_with("placement.") && of_state.iter().all(|end| !name.ends_with(end))
}

/// Sums over the units.
#[derive(Debug, Default)]
pub(in crate::simulation) struct Sums {
    pub units: u64,
    pub cycles: RatioSums,
    pub stack: [f64; Cause::ALL.len()],
    pub branches: BranchCounts,
    pub traffic: Vec<Traffic>,
    pub blocks: BTreeMap<BlockNumber, BlockCounts>,
    statistics: BTreeMap<String, SummedStatistic>,
}

impl Sums {
    /// Adds a unit. `blocks` are the counts of the blocks that ran in it.
    pub fn add<'a>(&mut self, unit: &Unit, blocks: impl Iterator<Item = (BlockNumber, &'a BlockCounts)>) {
        let instructions = unit.instructions as f64;
        self.units += 1;
        self.cycles.add(unit.cycles, instructions);
        self.stack.iter_mut().zip(unit.stack).for_each(|(sum, cycles)| *sum += cycles);
        self.branches += unit.branches;
        for part in &unit.traffic {
            match self.traffic.iter_mut().find(|sum| sum.name == part.name) {
                Some(sum) => sum.bytes += part.bytes,
                None => self.traffic.push(part.clone()),
            }
        }
        blocks.for_each(|(number, counts)| *self.blocks.entry(number).or_default() += *counts);
        for (name, statistic) in unit.statistics.iter().filter(|(name, _)| counts_events(name)) {
            let summed = match self.statistics.get_mut(name) {
                Some(summed) => summed,
                None => self.statistics.entry(name.into()).or_insert_with(|| SummedStatistic {
                    values: Values::none_of(&statistic.value),
                    unit: statistic.unit.clone(),
                    description: statistic.description.clone(),
                }),
            };
            summed.values.add(&statistic.value, instructions);
        }
    }

    /// Adds the statistics to `to`, as estimates for a program of `instructions` instructions. Distributions cover only
    /// the units.
    ///
    /// # Errors
    /// A name is in use.
    pub fn report(&self, instructions: u64, to: &mut Statistics) -> Result<(), StatisticsError> {
        let instructions = instructions as f64;
        for (name, SummedStatistic { values, unit, description }) in &self.statistics {
            let interval = match values {
                Values::Count(sums) => {
                    // Models omit counters whose value is zero, so a missing counter counts as zero.
                    let estimate =
                        sums.over(&self.cycles).estimate(self.units).map(|ratio| ratio.times(instructions));
                    let count = estimate.map_or(0.0, |estimate| estimate.value).round() as u64;
                    to.count(name, count, unit, description)?;
                    estimate.map(|estimate| estimate.around_count(count))
                }
                Values::Rate(sums) => {
                    let factor = instructions / self.cycles.denominator().max(1.0);
                    let (numerator, denominator) = (sums.numerator() * factor, sums.denominator() * factor);
                    to.rate(name, numerator, denominator, unit, description)?;
                    let enough = sums.units() >= MIN_UNITS;
                    sums.estimate(sums.units())
                        .filter(|_| enough)
                        .map(|Estimate { low, high, .. }| [low, high])
                }
                Values::Histogram(histogram) => {
                    to.insert(name, Value::Histogram(histogram.clone()), unit, description)?;
                    None
                }
            };
            if let Some(interval) = interval {
                to.mark_estimate(name, interval);
            }
        }
        Ok(())
    }
}

impl Values {
    fn none_of(value: &Value) -> Self {
        match value {
            Value::Counter(_) => Self::Count(RatioSums::default()),
            Value::Rate { .. } => Self::Rate(RatioSums::default()),
            Value::Histogram(_) => Self::Histogram(Histogram::default()),
        }
    }

    fn add(&mut self, value: &Value, instructions: f64) {
        match (self, value) {
            (Self::Count(sums), Value::Counter(count)) => sums.add(count.value() as f64, instructions),
            (Self::Rate(sums), Value::Rate { numerator, denominator }) => sums.add(*numerator, *denominator),
            (Self::Histogram(sum), Value::Histogram(histogram)) => sum.merge(histogram),
            // A name always has the same type of value.
            _ => {}
        }
    }
}

/// The smallest number of instructions to execute without a trace. Executing fewer instructions is faster with a trace.
const MIN_SKIP: u64 = 4096;

/// Selects the instructions to measure.
#[derive(Debug)]
pub(in crate::simulation) struct Sampler {
    pub plan: SamplingPlan,
    pub stage: Stage,
    /// The instructions executed so far.
    pub executed: u64,
    /// The position at which the current or next unit begins.
    unit_at: u64,
    /// The position at which the current unit ends.
    unit_end: u64,
    /// When the current unit began.
    pub began: Time,
    pub sums: Sums,
    /// Fractions of cycles by which the time of skipped instructions was rounded.
    rest: f64,
    /// The records of the current stage.
    pub part: Trace,
    /// Why the run has no result.
    pub error: Option<SamplingError>,
}

impl Sampler {
    /// The first unit begins at a random position, which `seed` determines.
    pub fn new(plan: SamplingPlan, seed: u64) -> Self {
        let mut sampler = Self {
            plan,
            stage: Stage::Skip,
            executed: 0,
            unit_at: SplitMix64::new(seed).below(plan.every),
            unit_end: 0,
            began: Time::ZERO,
            sums: Sums::default(),
            rest: 0.0,
            part: Trace::default(),
            error: None,
        };
        sampler.stage = sampler.stage_before_unit();
        sampler
    }

    /// The stage of the next instruction, if it is before the next unit.
    fn stage_before_unit(&self) -> Stage {
        let left = self.unit_at.saturating_sub(self.executed);
        if left == 0 {
            Stage::Measure
        } else if left <= self.plan.detail {
            Stage::Detail
        } else if left <= self.plan.before_unit() {
            Stage::Warm
        } else {
            Stage::Skip
        }
    }

    /// The instructions until the next stage, at least one.
    pub fn left(&self) -> u64 {
        let end = match self.stage {
            Stage::Skip => self.unit_at - self.plan.before_unit(),
            Stage::Warm => self.unit_at - self.plan.detail,
            Stage::Detail => self.unit_at,
            Stage::Measure => self.unit_end,
        };
        end.saturating_sub(self.executed).max(1)
    }

    /// The instructions to execute without a trace, if there are enough of them to be worth the change of code.
    pub fn to_skip(&self) -> Option<u64> {
        Some(self.left()).filter(|left| self.stage == Stage::Skip && *left >= MIN_SKIP)
    }

    /// Counts executed instructions. Returns the next stage if the current one ends with them. Units without a gap
    /// between them are separate stages.
    pub fn advance(&mut self, instructions: u64) -> Option<Stage> {
        self.executed += instructions;
        if self.stage == Stage::Measure {
            if self.executed < self.unit_end {
                return None;
            }
            self.unit_at = (self.unit_at + self.plan.every).max(self.executed);
            return Some(self.stage_before_unit());
        }
        Some(self.stage_before_unit()).filter(|stage| *stage != self.stage)
    }

    /// Enters `stage`.
    pub fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        if stage == Stage::Measure {
            self.unit_end = self.executed + self.plan.unit;
        }
    }

    /// The cycle after `instructions` untimed instructions that begin in cycle `from`. Each is assumed to take the mean
    /// time of those in the units so far, or one cycle before the end of the first unit.
    pub fn pass(&mut self, from: Cycle, instructions: u64) -> Cycle {
        let (cycles, measured) = (self.sums.cycles.numerator(), self.sums.cycles.denominator());
        let cpi = if measured > 0.0 { cycles / measured } else { 1.0 };
        let exact = instructions as f64 * cpi + self.rest;
        self.rest = exact.fract();
        from + exact as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stages of a program, in steps of `step` instructions, as (stage, first instruction).
    fn stages(plan: SamplingPlan, seed: u64, step: u64, instructions: u64) -> Vec<(Stage, u64)> {
        let mut sampler = Sampler::new(plan, seed);
        let first = sampler.stage;
        sampler.enter(first);
        let mut stages = vec![(first, 0)];
        while sampler.executed < instructions {
            let executed = sampler.left().div_ceil(step) * step;
            if let Some(stage) = sampler.advance(executed) {
                sampler.enter(stage);
                stages.push((stage, sampler.executed));
            }
        }
        stages
    }

    #[test]
    fn units_are_at_equal_distances_from_a_start_that_the_seed_determines() {
        let plan: SamplingPlan = "every=10000,unit=500,detail=300,warm=2000".parse().unwrap();
        let starts = |seed| -> Vec<u64> {
            let all = stages(plan, seed, 1, 100_000);
            all.iter().filter(|(stage, _)| *stage == Stage::Measure).map(|(_, at)| *at).collect()
        };
        assert_eq!(starts(1), starts(1));
        assert_ne!(starts(1), starts(2));
        assert!(starts(1).windows(2).all(|two| two[1] - two[0] == 10_000), "{:?}", starts(1));
        assert!(starts(1)[0] < 10_000);
    }

    #[test]
    fn each_unit_is_preceded_by_its_warm_up() {
        let plan: SamplingPlan = "every=10000,unit=500,detail=300,warm=2000".parse().unwrap();
        let all = stages(plan, 3, 1, 50_000);
        let unit = all.iter().skip(4).position(|(stage, _)| *stage == Stage::Measure).unwrap() + 4;
        let [skip, warm, detail, unit] = [unit - 3, unit - 2, unit - 1, unit].map(|index| all[index]);
        assert_eq!((skip.0, warm.0, detail.0), (Stage::Skip, Stage::Warm, Stage::Detail));
        assert_eq!((detail.1 - warm.1, unit.1 - detail.1), (2000, 300));
    }

    #[test]
    fn blocks_that_overshoot_do_not_move_later_units() {
        let plan: SamplingPlan = "every=10000,unit=500,detail=300,warm=all".parse().unwrap();
        let exact = stages(plan, 5, 1, 200_000);
        let coarse = stages(plan, 5, 40, 200_000);
        assert_eq!(exact.len(), coarse.len());
        for (one, other) in exact.iter().zip(&coarse) {
            assert!(one.0 == other.0 && other.1 - one.1 < 80, "{one:?} and {other:?}");
        }
        assert!(exact.iter().all(|(stage, _)| *stage != Stage::Skip), "all instructions warm the models");
    }

    #[test]
    fn units_may_follow_each_other_directly() {
        let plan: SamplingPlan = "every=1000,unit=1000,detail=0,warm=0".parse().unwrap();
        let all = stages(plan, 7, 1, 20_000);
        assert!(all[1..].iter().all(|(stage, _)| *stage == Stage::Measure), "{all:?}");
        assert_eq!(all.len(), 22);
    }

    const INSTRUCTIONS: u64 = 10_000;

    fn unit(statistics: Statistics) -> Unit {
        Unit {
            instructions: INSTRUCTIONS,
            cycles: 5000.0,
            statistics,
            stack: [0.0; Cause::ALL.len()],
            branches: BranchCounts::default(),
            traffic: Vec::new(),
        }
    }

    /// The estimated statistics of a program with `scale` times as many instructions as were measured. `measure` adds
    /// the statistics of one unit, given its number.
    fn estimated(units: u64, scale: u64, measure: impl Fn(u64, &mut Statistics)) -> Statistics {
        let mut sums = Sums::default();
        for number in 0..units {
            let mut statistics = Statistics::default();
            measure(number, &mut statistics);
            sums.add(&unit(statistics), std::iter::empty());
        }
        let mut result = Statistics::default();
        sums.report(units * INSTRUCTIONS * scale, &mut result).unwrap();
        result
    }

    fn count_of(statistics: &Statistics, name: &str) -> u64 {
        match &statistics.get(name).unwrap().value {
            Value::Counter(count) => count.value(),
            other => panic!("{name} is {other:?}"),
        }
    }

    #[test]
    fn a_unit_without_a_counter_counts_as_one_with_zero() {
        let rare = estimated(100, 10, |number, to| {
            if number % 50 == 7 {
                to.count("core0.class.load", 30, "instructions", "loads").unwrap();
            }
        });
        assert_eq!(count_of(&rare, "core0.class.load"), 2 * 30 * 10);
        let [low, high] = rare.get("core0.class.load").unwrap().interval.unwrap();
        assert!(low < 300.0 && high > 900.0, "two units of a hundred determine little: {low} to {high}");
        let zeros = estimated(100, 10, |number, to| {
            let count = if number % 50 == 7 { 30 } else { 0 };
            to.count("core0.class.load", count, "instructions", "loads").unwrap();
        });
        assert_eq!(rare, zeros, "a missing counter is a zero");
    }

    #[test]
    fn an_interval_contains_the_rounded_count() {
        let result = estimated(40, 1, |_, to| {
            to.count("core0.class.load", 7, "instructions", "loads").unwrap();
        });
        let odd = estimated(31, 7, |number, to| {
            to.count("core0.class.load", 3 + number % 2, "instructions", "loads").unwrap();
        });
        for statistics in [result, odd] {
            let count = count_of(&statistics, "core0.class.load") as f64;
            let [low, high] = statistics.get("core0.class.load").unwrap().interval.unwrap();
            assert!((low..=high).contains(&count), "{count} is not in {low} to {high}");
        }
        let third = Estimate { value: 109_292.337, low: 109_292.334, high: 109_292.34 };
        assert_eq!(third.around_count(109_292), [109_292.0, 109_292.34]);
    }

    #[test]
    fn a_ratio_that_few_units_have_is_stated_without_an_interval() {
        let ratio = |units_with: u64| {
            estimated(100, 10, |number, to| {
                if number < units_with {
                    to.rate("core0.l1d.miss_ratio", (number % 3) as f64, 10.0, "", "misses").unwrap();
                }
            })
        };
        let interval = |statistics: &Statistics| statistics.get("core0.l1d.miss_ratio").unwrap().interval;
        assert_eq!(interval(&ratio(1)), None);
        assert!(interval(&ratio(60)).is_some());
    }
}
