//! Analyzes the results of a sweep: medians of pairs, means of classes with confidence intervals, costs and losses per
//! Gbit, and bottlenecks.
//!
//! Source: Hanford et al. 2014 for the classes and the cost relative to throughput.

mod bottleneck;
mod interval;
mod losses;

pub use bottleneck::{Bottleneck, Limit};
pub use interval::{Interval, differ, median};

use crate::pairs::{Class, Pair};
use crate::sweep::{Header, Results, Sample};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Costs per Gbit, on the CPUs of a pair unless stated otherwise. `None` if not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Costs {
    /// Core-milliseconds per Gbit: in programs, in the kernel and in interrupts.
    pub core_ms: Option<f64>,
    /// Core-milliseconds per Gbit in softirqs.
    pub softirq_ms: Option<f64>,
    /// Context switches of the whole host per Gbit.
    pub switches: Option<f64>,
    /// Interrupts per Gbit.
    pub interrupts: Option<f64>,
    /// 10^6 instructions per Gbit.
    pub instructions_m: Option<f64>,
    /// 10^6 instructions per Gbit executed in user mode.
    pub user_instructions_m: Option<f64>,
    /// 10^6 cycles per Gbit.
    pub cycles_m: Option<f64>,
    /// 10^3 loads per Gbit that missed the L1 data cache.
    pub first_misses_k: Option<f64>,
    /// 10^3 loads per Gbit that missed the L2 cache.
    pub second_misses_k: Option<f64>,
    /// 10^3 references to the last-level cache per Gbit.
    pub cache_references_k: Option<f64>,
    /// 10^3 misses of the last-level cache per Gbit.
    pub cache_misses_k: Option<f64>,
    /// Lost datagrams in percent.
    pub lost_percent: Option<f64>,
    /// Retransmitted TCP segments per Gbit.
    pub retransmits: Option<f64>,
    /// Received packets per Gbit that the interfaces, their drivers, or a full backlog behind them dropped.
    pub nic_drops: Option<f64>,
    /// Packets per Gbit dropped at full backlogs of the host's CPUs.
    pub backlog_drops: Option<f64>,
    /// Number of softirqs per Gbit that ended while packets were still queued, on all CPUs of the host.
    pub squeezes: Option<f64>,
}

/// A cost: display name, unit, and accessor.
pub type Cost = (&'static str, &'static str, fn(&Costs) -> Option<f64>);

/// All costs.
pub const COSTS: [Cost; 16] = [
    ("core time", "ms/Gbit", |costs| costs.core_ms),
    ("softirq time", "ms/Gbit", |costs| costs.softirq_ms),
    ("context switches", "/Gbit", |costs| costs.switches),
    ("interrupts", "/Gbit", |costs| costs.interrupts),
    ("instructions", "M/Gbit", |costs| costs.instructions_m),
    ("user instructions", "M/Gbit", |costs| costs.user_instructions_m),
    ("cycles", "M/Gbit", |costs| costs.cycles_m),
    ("L1D load misses", "k/Gbit", |costs| costs.first_misses_k),
    ("L2 load misses", "k/Gbit", |costs| costs.second_misses_k),
    ("last-cache references", "k/Gbit", |costs| costs.cache_references_k),
    ("last-cache misses", "k/Gbit", |costs| costs.cache_misses_k),
    ("datagrams lost", "%", |costs| costs.lost_percent),
    ("retransmits", "/Gbit", |costs| costs.retransmits),
    ("interface drops", "/Gbit", |costs| costs.nic_drops),
    ("backlog drops", "/Gbit", |costs| costs.backlog_drops),
    ("time squeezes", "/Gbit", |costs| costs.squeezes),
];

/// Results of a pair.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairResult {
    /// The pair.
    pub pair: Pair,
    /// Topological relation of its CPUs.
    pub class: Class,
    /// Throughput of each run in Gb/s, in the order of the runs.
    pub gbps: Vec<f64>,
    /// Median of the throughput.
    pub median_gbps: f64,
    /// Median of the lost fraction of the data: lost datagrams, retransmitted segments or dropped packets, whichever is
    /// the largest.
    pub loss: f64,
    /// `gbps` of each run times the fraction that was not lost. Advice compares these values, so between two pairs with
    /// equal throughput, it prefers the one with the smaller losses.
    pub weighed_gbps: Vec<f64>,
    /// Costs, as medians over the runs.
    pub costs: Costs,
    /// Core-milliseconds per Gbit of each run in which they were counted.
    #[serde(skip)]
    pub core_ms: Vec<f64>,
    /// The limiting resource.
    pub bottleneck: Bottleneck,
}

impl PairResult {
    /// The loss-weighted median of the throughput.
    pub fn median_weighed_gbps(&self) -> f64 {
        median(&self.weighed_gbps).unwrap_or(0.0)
    }
}

/// Results of a class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassResult {
    /// The class.
    pub class: Class,
    /// Number of its pairs with results.
    pub pairs: usize,
    /// Number of its runs.
    pub runs: usize,
    /// Throughput in Gb/s.
    pub gbps: Interval,
    /// Median of the lost fractions of its pairs.
    pub loss: f64,
    /// Whether the interval is over pairs. Otherwise it is over the runs of the only pair.
    pub over_pairs: bool,
    /// Costs, as medians over its pairs.
    pub costs: Costs,
    /// Its bottleneck.
    pub bottleneck: Bottleneck,
}

/// Analysis of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    /// Pairs with results, sorted by flow and then by application.
    pub pairs: Vec<PairResult>,
    /// Classes with results, in the order of expected performance.
    pub classes: Vec<ClassResult>,
    /// Number of failed runs.
    pub failed: usize,
    /// Remarks on the runs, such as disturbances and missing counters.
    pub remarks: Vec<String>,
}

/// Steal time above which a run counts as disturbed, as a fraction.
const DISTURBING_STEAL: f64 = 0.02;

impl Analysis {
    /// Analyzes `results`.
    pub fn of(results: &Results) -> Self {
        let is_software = results.header.steering.is_software();
        let rated = results.samples.iter().filter(|sample| sample.rate.is_some());
        // A run whose flow was processed on another CPU does not measure its pair.
        let (misrouted, good): (Vec<&Sample>, Vec<&Sample>) =
            rated.partition(|sample| sample.misrouted(is_software).is_some());
        let mut by_pair: BTreeMap<Pair, Vec<&Sample>> = BTreeMap::new();
        good.iter().for_each(|sample| by_pair.entry(sample.pair).or_default().push(sample));
        let pairs: Vec<PairResult> =
            by_pair.values().map(|samples| pair_result(samples, &results.header)).collect();
        let class_result = |class: Class| {
            let of_class: Vec<&PairResult> = pairs.iter().filter(|pair| pair.class == class).collect();
            let samples: Vec<&Sample> = good.iter().copied().filter(|sample| sample.class == class).collect();
            let over_pairs = of_class.len() > 1;
            let throughputs: Vec<f64> = match &of_class[..] {
                [only] => only.gbps.clone(),
                several => several.iter().map(|pair| pair.median_gbps).collect(),
            };
            Some(ClassResult {
                class,
                pairs: of_class.len(),
                runs: samples.len(),
                gbps: Interval::of(&throughputs)?,
                loss: median(&of_class.iter().map(|pair| pair.loss).collect::<Vec<_>>())?,
                over_pairs,
                costs: medians(&of_class.iter().map(|pair| pair.costs).collect::<Vec<_>>()),
                bottleneck: Bottleneck::of(&samples, &results.header),
            })
        };
        let classes = Class::ALL.into_iter().filter_map(class_result).collect();
        let failed = results.samples.len() - good.len() - misrouted.len();
        let mut remarks = remarks(&good, failed);
        remarks.extend(misrouted_remark(&misrouted, is_software));
        Self { remarks, pairs, classes, failed }
    }

    /// The pair with the highest loss-weighted median.
    pub fn best(&self) -> Option<&PairResult> {
        self.pairs
            .iter()
            .max_by(|one, other| one.median_weighed_gbps().total_cmp(&other.median_weighed_gbps()))
    }

    /// Costs that were counted for at least one pair.
    pub fn counted_costs(&self) -> Vec<Cost> {
        let is_counted = |cost: &Cost| self.pairs.iter().any(|pair| (cost.2)(&pair.costs).is_some());
        COSTS.into_iter().filter(is_counted).collect()
    }
}

/// Returns the runs of the variant whose best pair has the highest throughput, or all runs if there are no variants.
pub fn fastest(results: &Results) -> Results {
    let best = |of: &Results| Analysis::of(of).best().map_or(0.0, PairResult::median_weighed_gbps);
    let all = results.variants().into_iter().map(|variant| results.of(&variant));
    all.max_by(|one, other| best(one).total_cmp(&best(other))).unwrap_or_else(|| results.clone())
}

fn pair_result(samples: &[&Sample], header: &Header) -> PairResult {
    let gbps: Vec<f64> = samples.iter().filter_map(|sample| sample.rate).map(|rate| rate.gbps).collect();
    let losses: Vec<f64> = samples.iter().map(|sample| losses::fraction(sample, header)).collect();
    let costs: Vec<Costs> = samples.iter().map(|sample| costs(sample, header)).collect();
    PairResult {
        pair: samples[0].pair,
        class: samples[0].class,
        median_gbps: median(&gbps).unwrap_or(0.0),
        loss: median(&losses).unwrap_or(0.0),
        weighed_gbps: gbps.iter().zip(&losses).map(|(gbps, loss)| gbps * (1.0 - loss)).collect(),
        gbps,
        core_ms: costs.iter().filter_map(|costs| costs.core_ms).collect(),
        costs: medians(&costs),
        bottleneck: Bottleneck::of(samples, header),
    }
}

fn costs(sample: &Sample, header: &Header) -> Costs {
    let (kernel, hardware) = (&sample.kernel, &sample.hardware);
    let gbit = sample.rate.map_or(0.0, |rate| rate.gbps) * kernel.seconds;
    if gbit <= 0.0 {
        return Costs::default();
    }
    let mut cpus = vec![sample.pair.flow, sample.pair.application];
    cpus.dedup();
    let time = |share: fn(&crate::counters::CpuShares) -> f64| {
        let shares: Option<f64> = cpus.iter().map(|cpu| kernel.cpus.get(cpu).map(share)).sum();
        shares.map(|shares| shares * kernel.seconds * 1e3 / gbit)
    };
    // The sum over both CPUs, or `None` if one value is missing, because a partial sum would look like a low cost.
    let counted = |count: fn(&crate::counters::HardwareCounts) -> Option<f64>, scale: f64| {
        let sum: Option<f64> = cpus.iter().map(|cpu| hardware.get(cpu).and_then(count)).sum();
        sum.map(|sum| sum / scale / gbit)
    };
    let interrupts: Option<u64> = cpus.iter().map(|cpu| kernel.interrupts.get(cpu).copied()).sum();
    let all = |counts: &BTreeMap<u32, u64>| {
        (!counts.is_empty()).then(|| counts.values().map(|count| *count as f64).sum::<f64>() / gbit)
    };
    Costs {
        core_ms: time(|shares| shares.busy()),
        softirq_ms: time(|shares| shares.softirq),
        switches: Some(kernel.context_switches as f64 / gbit),
        interrupts: interrupts.map(|interrupts| interrupts as f64 / gbit),
        instructions_m: counted(|counts| counts.instructions, 1e6),
        user_instructions_m: counted(|counts| counts.user_instructions, 1e6),
        cycles_m: counted(|counts| counts.cycles, 1e6),
        first_misses_k: counted(|counts| counts.first_misses, 1e3),
        second_misses_k: counted(|counts| counts.second_misses, 1e3),
        cache_references_k: counted(|counts| counts.cache_references, 1e3),
        cache_misses_k: counted(|counts| counts.cache_misses, 1e3),
        lost_percent: sample.rate.and_then(|rate| rate.lost).map(|lost| lost * 100.0),
        retransmits: losses::retransmits(sample, header),
        nic_drops: kernel.nic_drops.map(|drops| drops as f64 / gbit),
        backlog_drops: all(&kernel.backlog_drops),
        squeezes: all(&kernel.squeezes),
    }
}

fn medians(all: &[Costs]) -> Costs {
    let of = |cost: fn(&Costs) -> Option<f64>| median(&all.iter().filter_map(cost).collect::<Vec<_>>());
    Costs {
        core_ms: of(|costs| costs.core_ms),
        softirq_ms: of(|costs| costs.softirq_ms),
        switches: of(|costs| costs.switches),
        interrupts: of(|costs| costs.interrupts),
        instructions_m: of(|costs| costs.instructions_m),
        user_instructions_m: of(|costs| costs.user_instructions_m),
        cycles_m: of(|costs| costs.cycles_m),
        first_misses_k: of(|costs| costs.first_misses_k),
        second_misses_k: of(|costs| costs.second_misses_k),
        cache_references_k: of(|costs| costs.cache_references_k),
        cache_misses_k: of(|costs| costs.cache_misses_k),
        lost_percent: of(|costs| costs.lost_percent),
        retransmits: of(|costs| costs.retransmits),
        nic_drops: of(|costs| costs.nic_drops),
        backlog_drops: of(|costs| costs.backlog_drops),
        squeezes: of(|costs| costs.squeezes),
    }
}

/// The remark on the runs whose flows were not processed on the CPU of their pair, with the evidence of the first run.
fn misrouted_remark(misrouted: &[&Sample], is_software: bool) -> Option<String> {
    let first = misrouted.first()?;
    let words = first.misrouted(is_software)?;
    let pairs: BTreeSet<String> = misrouted.iter().map(|sample| format!("({})", sample.pair)).collect();
    let what = match misrouted.len() {
        1 => "1 run is excluded because its flow was processed on the wrong CPU".into(),
        count => format!("{count} runs are excluded because their flows were processed on the wrong CPUs"),
    };
    Some(format!("{what}: {}; of ({}): {words}", pairs.into_iter().collect::<Vec<_>>().join(" "), first.pair))
}

fn remarks(good: &[&Sample], failed: usize) -> Vec<String> {
    let mut remarks = Vec::new();
    let mut note = |count: usize, words: &str| {
        if count > 0 {
            remarks.push(format!("{count} of {} runs {words}", good.len()));
        }
    };
    let has_steal_time = |sample: &&&Sample| {
        let of = |cpu| sample.kernel.cpus.get(&cpu).is_some_and(|shares| shares.steal > DISTURBING_STEAL);
        of(sample.pair.flow) || of(sample.pair.application)
    };
    note(good.iter().filter(has_steal_time).count(), "had more than 2 % steal time on a CPU");
    let loaded = good.iter().filter(|sample| sample.kernel.running_before > bottleneck::OWN_LOAD).count();
    note(loaded, "started while other programs were running (other load)");
    if !good.is_empty() && good.iter().all(|sample| sample.hardware.is_empty()) {
        remarks.push("no hardware counters: instructions, cycles and cache misses are missing".into());
    }
    let unverified = good.iter().filter(|sample| !sample.shows_arrival()).count();
    if unverified > 0 {
        remarks.push(format!(
            "{unverified} of {} runs do not show which CPU processed the flow: the kernel's counters of packets are not readable, \
             or too few packets were counted",
            good.len()
        ));
    }
    if failed > 0 {
        remarks.push(match failed {
            1 => "1 run failed and is excluded".into(),
            _ => format!("{failed} runs failed and are excluded"),
        });
    }
    remarks
}

#[cfg(test)]
mod tests;
