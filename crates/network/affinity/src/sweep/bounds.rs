//! Range checks for the numbers of a result file, which may have been edited, truncated or mixed up.

use super::GRACE;
use super::record::{Header, Sample};
use crate::counters::{CpuShares, HardwareCounts};
use crate::load::{Load, MAX_CPUS, MAX_GBPS, MIN_GBPS};
use crate::steering::Steering;
use crate::vary::MAX_MTU;
use longma_cpu_set::MAX_CPU;

/// Upper bound of any count per second. A fast core executes a twentieth of that in instructions.
const MAX_PER_SECOND: f64 = 1e12;
/// Lower bound of an interval between two readings in seconds.
const MIN_SECONDS: f64 = 1e-6;
/// Maximum number of processes in Linux (PID_MAX_LIMIT).
const MAX_PROGRAMS: f64 = 4_194_304.0;
/// Maximum number of NUMA nodes in Linux (MAX_NUMNODES).
const MAX_NODES: f64 = 1024.0;
/// Maximum number of queues of an interface.
const MAX_QUEUES: f64 = 65_536.0;
/// The last second of the year 9999, in seconds since 1970.
const MAX_TIMESTAMP: f64 = 253_402_300_799.0;
/// Upper bound of the share of a link's rate, if the driver reports a wrong rate.
const MAX_LINK_SHARE: f64 = 1e9;
/// Tolerance for sums of fractions above 1.
const ROUNDING: f64 = 1e-6;
/// Maximum length of a run in seconds.
const MAX_RUN_SECONDS: u32 = 3600;
/// Maximum number of repetitions of a sweep.
const MAX_REPEATS: u32 = 1000;
/// Maximum number of parallel flows.
const MAX_FLOWS: u32 = 128;

/// A field's name, its value, its minimum and its maximum.
type Bound = (String, f64, f64, f64);

/// Checks the numbers of a run in the sweep of `header`. The error describes the first one out of range.
pub fn check(sample: &Sample, header: &Header) -> Result<(), String> {
    match (&sample.rate, &sample.failure) {
        (Some(_), Some(_)) => return Err("it has both a `rate` and a `failure`".into()),
        (None, None) => return Err("it has neither a `rate` nor a `failure`".into()),
        (Some(_), None) if sample.refused => return Err("it is `refused` and has a `rate`".into()),
        _ => {}
    }
    let pair = [sample.pair.flow, sample.pair.application];
    if let Some(cpu) = sample.hardware.keys().find(|cpu| !pair.contains(cpu)) {
        return Err(format!("hardware.{cpu}: it must be a CPU of the pair {}", sample.pair));
    }
    numbers(sample, header).into_iter().try_for_each(within)
}

/// Checks the numbers of a header.
pub fn check_header(header: &Header) -> Result<(), String> {
    let nic = &header.nic;
    let lower = match &header.steering {
        Steering::Stacked { lower, .. } => &lower[..],
        _ => &[],
    };
    let is_below = |steering: &Steering| nic.lower.iter().any(|nic| nic.name == *steering.interface());
    if *header.steering.interface() != nic.name || !lower.iter().all(is_below) {
        return Err(format!("steering: it must name the interface {}", nic.name));
    }
    let mut seen = std::collections::BTreeSet::new();
    if let Some(place) = header.places.iter().find(|place| !seen.insert(place.cpu)) {
        return Err(format!("places: CPU {} is listed twice", place.cpu));
    }
    let mut all: Vec<Bound> = vec![("seconds".into(), header.seconds.into(), 0.0, MAX_RUN_SECONDS.into())];
    for place in &header.places {
        let shared = place.core.iter().chain(place.last_cache.iter().flatten());
        let cpus = std::iter::once(&place.cpu).chain(shared);
        all.extend(cpus.map(|cpu| cpu_number("places: the CPU's number", *cpu)));
        all.push(("places: the CPU's node".into(), place.node.into(), 0.0, MAX_NODES - 1.0));
    }
    for nic in std::iter::once(nic).chain(&nic.lower) {
        all.extend(nic.mtu.map(|mtu| ("nic.mtu".into(), mtu as f64, 1.0, MAX_MTU as f64)));
        all.extend(nic.speed_mbps.map(|speed| ("nic.speed_mbps".into(), speed as f64, 1.0, MAX_GBPS * 1e3)));
        let nodes = nic.node.iter().chain(nic.distances.0.keys());
        all.extend(nodes.map(|node| ("nic.node".into(), (*node).into(), 0.0, MAX_NODES - 1.0)));
        for (field, queues) in [("nic.rx_queues", &nic.rx_queues), ("nic.tx_queues", &nic.tx_queues)] {
            all.extend(queues.iter().map(|queue| (field.into(), (*queue).into(), 0.0, MAX_QUEUES - 1.0)));
        }
    }
    if let Load::Iperf(iperf) = &header.load {
        all.push(("load.iperf.flows".into(), iperf.flows.into(), 1.0, MAX_FLOWS.into()));
    }
    all.into_iter().try_for_each(within)
}

fn cpu_number(field: &str, cpu: u32) -> Bound {
    (field.into(), cpu.into(), 0.0, f64::from(MAX_CPU - 1))
}

fn within((field, value, min, max): Bound) -> Result<(), String> {
    // Also rejects NaN.
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(format!("{field} is {}: it must be from {} to {}", shown(value), shown(min), shown(max)))
}

/// Formats a number without long runs of zeros.
fn shown(value: f64) -> String {
    let is_plain = value == 0.0 || (1e-4..1e15).contains(&value.abs());
    if is_plain { value.to_string() } else { format!("{value:e}") }
}

fn numbers(sample: &Sample, header: &Header) -> Vec<Bound> {
    // A run never exceeds its time limit. A failed run may have no counts.
    let longest = f64::from(header.seconds) + GRACE.as_secs_f64();
    let least = if sample.rate.is_some() && header.seconds > 0 { MIN_SECONDS } else { 0.0 };
    let max = MAX_PER_SECOND * longest;
    let count = |field: &str, value: u64| (field.to_string(), value as f64, 0.0, max);
    let kernel = &sample.kernel;
    let mut all: Vec<Bound> = vec![
        ("repeat".into(), sample.repeat.into(), 0.0, f64::from(MAX_REPEATS - 1)),
        ("at".into(), sample.at as f64, 0.0, MAX_TIMESTAMP),
        ("kernel.seconds".into(), kernel.seconds, least, longest),
        count("kernel.context_switches", kernel.context_switches),
        ("kernel.running_before".into(), kernel.running_before as f64, 0.0, MAX_PROGRAMS),
    ];
    all.extend(sample.variant.iter().map(|(parameter, value)| {
        let range = parameter.range();
        // A mask of more than 64 bits has no numeric value. Only XPS accepts masks.
        let number = value.number().unwrap_or(if parameter.takes(value) { 0 } else { u64::MAX });
        (format!("variant.{parameter}"), number as f64, *range.start() as f64, *range.end() as f64)
    }));
    if let Some(rate) = &sample.rate {
        let optional = [("rate.lost", rate.lost, 1.0), ("rate.remote_cpu", rate.remote_cpu, MAX_CPUS)];
        all.push(("rate.gbps".into(), rate.gbps, MIN_GBPS, MAX_GBPS));
        all.extend(
            optional.into_iter().filter_map(|(field, value, max)| Some((field.into(), value?, 0.0, max))),
        );
        all.extend(rate.retransmits.map(|value| count("rate.retransmits", value)));
    }
    all.extend(sample.migrations.map(|value| count("migrations", value)));
    all.extend(kernel.link_share.map(|share| ("kernel.link_share".into(), share, 0.0, MAX_LINK_SHARE)));
    for (name, value) in [
        ("nic_drops", kernel.nic_drops),
        ("interface_bytes", kernel.interface_bytes),
        ("namespace_bytes", kernel.namespace_bytes),
    ] {
        all.extend(value.map(|value| count(&format!("kernel.{name}"), value)));
    }
    for (name, counts) in [
        ("interrupts", &kernel.interrupts),
        ("receptions", &kernel.receptions),
        ("packets", &kernel.packets),
        ("backlog_drops", &kernel.backlog_drops),
        ("squeezes", &kernel.squeezes),
        ("queue_interrupts", &kernel.queue_interrupts),
    ] {
        all.extend(counts.keys().map(|cpu| cpu_number(&format!("kernel.{name}: the CPU's number"), *cpu)));
        all.extend(counts.iter().map(|(cpu, value)| count(&format!("kernel.{name}.{cpu}"), *value)));
    }
    all.extend(kernel.cpus.keys().map(|cpu| cpu_number("kernel.cpus: the CPU's number", *cpu)));
    kernel.cpus.iter().for_each(|(cpu, shares)| all.extend(of_shares(*cpu, shares)));
    sample.hardware.iter().for_each(|(cpu, counts)| all.extend(of_hardware(*cpu, counts, max)));
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

fn of_hardware(cpu: u32, counts: &HardwareCounts, max: f64) -> Vec<Bound> {
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
    let bound =
        |(name, count): (&str, Option<f64>)| Some((format!("hardware.{cpu}.{name}"), count?, 0.0, max));
    counts.into_iter().filter_map(bound).collect()
}
