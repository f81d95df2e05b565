//! What the numbers of a run may be: a file of results may have been edited, cut or mixed up.
//! Not which runs belong to a sweep: that is `record`.

use super::record::{Header, Sample};
use crate::counters::{CpuShares, HardwareCounts};
use crate::cpus::MAX_CPU;
use crate::load::{MOST_CPUS, MOST_GBPS};

/// A week: longer than a run may be, s.
const MOST_SECONDS: f64 = 604_800.0;
/// More than all CPUs can count in that time.
const MOST_COUNT: f64 = 1e18;
/// What sums of parts may lie above 1.
const ROUNDING: f64 = 1e-6;
/// The longest run that a sweep makes, s.
const LONGEST_RUN: u32 = 3600;

/// A number, where it stands, and the least and the most that it may be.
type Bound = (String, f64, f64, f64);

/// The first number of a run that cannot be, in words.
pub fn check(sample: &Sample) -> Result<(), String> {
    match (&sample.rate, &sample.failure) {
        (Some(_), Some(_)) => return Err("it has both a `rate` and a `failure`".into()),
        (None, None) => return Err("it has neither a `rate` nor a `failure`".into()),
        (Some(_), None) if sample.refused => return Err("it is `refused` and has a `rate`".into()),
        _ => {}
    }
    numbers(sample).into_iter().try_for_each(within)
}

/// The same of what all runs have in common.
pub fn check_header(header: &Header) -> Result<(), String> {
    let flow = header.places.iter().map(|place| place.cpu).max().unwrap_or(0);
    within(("seconds".into(), header.seconds.into(), 0.0, LONGEST_RUN.into()))?;
    within(("places: the CPU's number".into(), flow.into(), 0.0, f64::from(MAX_CPU - 1)))
}

fn within((field, value, least, most): Bound) -> Result<(), String> {
    // Not a number is in no range either.
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(format!("{field} is {}: it must be from {} to {}", shown(value), shown(least), shown(most)))
}

/// A number without a hundred zeroes.
fn shown(value: f64) -> String {
    if value.abs() < 1e15 { value.to_string() } else { format!("{value:e}") }
}

fn numbers(sample: &Sample) -> Vec<Bound> {
    let count = |field: &str, value: u64| (field.to_string(), value as f64, 0.0, MOST_COUNT);
    let kernel = &sample.kernel;
    let mut all: Vec<Bound> = vec![
        ("kernel.seconds".into(), kernel.seconds, 0.0, MOST_SECONDS),
        count("kernel.context_switches", kernel.context_switches),
        count("kernel.running_before", kernel.running_before),
    ];
    if let Some(rate) = &sample.rate {
        let optional = [("rate.lost", rate.lost, 1.0), ("rate.remote_cpu", rate.remote_cpu, MOST_CPUS)];
        all.push(("rate.gbps".into(), rate.gbps, 0.0, MOST_GBPS));
        all.extend(
            optional.into_iter().filter_map(|(field, value, most)| Some((field.into(), value?, 0.0, most))),
        );
        all.extend(rate.retransmits.map(|value| count("rate.retransmits", value)));
    }
    all.extend(sample.migrations.map(|value| count("migrations", value)));
    for (name, counts) in [("interrupts", &kernel.interrupts), ("receptions", &kernel.receptions)] {
        all.extend(counts.iter().map(|(cpu, value)| count(&format!("kernel.{name}.{cpu}"), *value)));
    }
    kernel.cpus.iter().for_each(|(cpu, shares)| all.extend(of_shares(*cpu, shares)));
    sample.hardware.iter().for_each(|(cpu, counts)| all.extend(of_hardware(*cpu, counts)));
    all
}

fn of_shares(cpu: u32, shares: &CpuShares) -> Vec<Bound> {
    let CpuShares { user, system, irq, softirq, steal, idle } = *shares;
    let parts = [
        ("user", user),
        ("system", system),
        ("irq", irq),
        ("softirq", softirq),
        ("steal", steal),
        ("idle", idle),
    ];
    let sum = parts.iter().map(|(_, part)| part).sum();
    let each = parts.iter().map(|(name, part)| (format!("kernel.cpus.{cpu}.{name}"), *part, 0.0, 1.0));
    each.chain([(format!("the sum of kernel.cpus.{cpu}"), sum, 0.0, 1.0 + ROUNDING)]).collect()
}

fn of_hardware(cpu: u32, counts: &HardwareCounts) -> Vec<Bound> {
    let HardwareCounts {
        instructions,
        user_instructions,
        cycles,
        cache_references,
        cache_misses,
        first_misses,
        second_misses,
    } = *counts;
    let counts = [
        ("instructions", instructions),
        ("user_instructions", user_instructions),
        ("cycles", cycles),
        ("cache_references", cache_references),
        ("cache_misses", cache_misses),
        ("first_misses", first_misses),
        ("second_misses", second_misses),
    ];
    let bound = |(name, count): (&str, Option<f64>)| {
        Some((format!("hardware.{cpu}.{name}"), count?, 0.0, MOST_COUNT))
    };
    counts.into_iter().filter_map(bound).collect()
}
