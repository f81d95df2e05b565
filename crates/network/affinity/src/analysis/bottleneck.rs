//! Identifies the bottleneck of a pair or a class of pairs from the counters of each run, with the figures as evidence.
//! If the counters show no saturated resource, or runs differ, the bottleneck is not known.

use crate::counters::CpuShares;
use crate::pairs::Pair;
use crate::sweep::{Header, Sample};
use crate::vary::{SweepParameter, Value};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Utilization above which a CPU counts as saturated. Below 1, because tick-based accounting misses some time.
const FULL: f64 = 0.9;
/// Fraction of the link rate, with headers and gaps, above which the link counts as saturated. Below 1, because drivers
/// update their counters at intervals.
const LINK_FULL: f64 = 0.97;
/// Steal time above which the hypervisor is the bottleneck, as a fraction.
const STOLEN: f64 = 0.1;

/// If programs use more than this fraction of a CPU's busy time, the CPU is busy with something other than the network.
/// Programs that only receive use less than a tenth.
const COMPUTES: f64 = 0.75;
/// CPU time per packet, in seconds, above which the CPU is busy with something other than the network. Without merging,
/// Linux took 2 us for each of the half million packets a second of a flow at 6.6 Gb/s (commit 323ebb61e32b, "net: use listified RX for handling
/// GRO_NORMAL skbs", 2019). Slow and emulated processors need many times that.
const MAX_PACKET_TIME: f64 = 100e-6;

/// Number of runnable programs that belong to the measurement: this program, both ends of the load, and kernel threads.
pub(super) const OWN_LOAD: u64 = 5;

/// The saturated resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The hypervisor gives CPU time to other guests.
    Hypervisor,
    /// Other programs compete for the CPUs.
    OtherLoad,
    /// Flow and application compete for one CPU.
    SharedCpu,
    /// The flow's CPU, with interrupts and protocol processing.
    FlowCpu,
    /// The application's CPU, with system calls and copies.
    ApplicationCpu,
    /// The sender's CPU, if it is on this host.
    SenderCpu,
    /// The program computes; the network waits for it.
    Program,
    /// The link.
    Link,
    /// The counters show no saturated resource.
    #[default]
    Unknown,
}

/// The bottleneck of some runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Bottleneck {
    /// The saturated resource.
    pub limit: Limit,
    /// The figures.
    pub evidence: String,
}

impl Limit {
    /// Display name.
    pub fn words(self) -> &'static str {
        match self {
            Self::Hypervisor => "the hypervisor",
            Self::OtherLoad => "other load",
            Self::SharedCpu => "the CPU that flow and application share",
            Self::FlowCpu => "the flow's CPU",
            Self::ApplicationCpu => "the application's CPU",
            Self::SenderCpu => "the sender's CPU",
            Self::Program => "the program's own work",
            Self::Link => "the link",
            Self::Unknown => "not known",
        }
    }
}

impl Bottleneck {
    /// Determines the bottleneck that more than half of these runs have.
    pub fn of(samples: &[&Sample], header: &Header) -> Self {
        let mut by_limit: BTreeMap<Limit, Vec<&Sample>> = BTreeMap::new();
        for sample in samples {
            by_limit.entry(limit(sample, header)).or_default().push(sample);
        }
        let Some((limit, runs)) = by_limit.iter().max_by_key(|(_, runs)| runs.len()) else {
            return Self { limit: Limit::Unknown, evidence: "there is no run".into() };
        };
        if runs.len() * 2 <= samples.len() {
            let each = by_limit.iter().map(|(limit, runs)| format!("{} in {}", limit.words(), runs.len()));
            let each: Vec<String> = each.collect();
            let evidence = format!("the {} runs differ: {}", samples.len(), each.join(", "));
            return Self { limit: Limit::Unknown, evidence };
        }
        let mut evidence = evidence(*limit, runs, header);
        if runs.len() < samples.len() {
            evidence.push_str(&format!("; in {} of {} runs", runs.len(), samples.len()));
        }
        Self { limit: *limit, evidence }
    }
}

/// The bottleneck of a run.
fn limit(sample: &Sample, header: &Header) -> Limit {
    let Pair { flow, application } = sample.pair;
    let shares = |cpu: u32| sample.kernel.cpus.get(&cpu);
    let (Some(on_flow), Some(on_application)) = (shares(flow), shares(application)) else {
        return Limit::Unknown;
    };
    if on_flow.steal.max(on_application.steal) > STOLEN {
        return Limit::Hypervisor;
    }
    // A CPU that polls while it waits is always busy.
    let polls = is_busy_polling(sample);
    let of_application = if polls { 0.0 } else { on_application.busy() };
    let of_flow = if polls && flow == application { 0.0 } else { on_flow.busy() };
    if sample.kernel.running_before > OWN_LOAD && of_flow.max(of_application) > FULL {
        return Limit::OtherLoad;
    }
    if sample.kernel.link_share.is_some_and(|share| share > LINK_FULL) {
        return Limit::Link;
    }
    if flow == application {
        let limit = if of_flow > FULL { Limit::SharedCpu } else { Limit::Unknown };
        return explained(limit, on_flow, sample, header);
    }
    let of_sender = header.sender.as_ref().and_then(|cpus| shares(cpus.iter().next()?));
    let rivals = [
        (Limit::SenderCpu, of_sender.map_or(0.0, CpuShares::busy)),
        (Limit::FlowCpu, of_flow),
        (Limit::ApplicationCpu, of_application),
    ];
    let fullest = rivals.into_iter().max_by(|one, other| one.1.total_cmp(&other.1));
    match fullest.filter(|(_, busy)| *busy > FULL) {
        Some((Limit::FlowCpu, _)) => explained(Limit::FlowCpu, on_flow, sample, header),
        Some((Limit::ApplicationCpu, _)) => explained(Limit::ApplicationCpu, on_application, sample, header),
        Some((limit, _)) => limit,
        None => Limit::Unknown,
    }
}

/// The limit `of` a saturated CPU, if it works for the network.
fn explained(of: Limit, shares: &CpuShares, sample: &Sample, header: &Header) -> Limit {
    let computes = shares.user > COMPUTES * shares.busy();
    match of {
        Limit::Unknown => Limit::Unknown,
        // No program of the load runs on the flow's CPU.
        Limit::FlowCpu if computes => Limit::OtherLoad,
        _ if computes => Limit::Program,
        _ if hardly_uses_the_network(shares, sample, header) => Limit::Unknown,
        _ => of,
    }
}

/// Returns whether the packets of a run do not explain the time that a CPU was busy.
fn hardly_uses_the_network(shares: &CpuShares, sample: &Sample, header: &Header) -> bool {
    let packets = packets(sample, header);
    shares.busy() * sample.kernel.seconds > MAX_PACKET_TIME * packets
}

/// Packets of the interval: the count of the pair's CPUs, or the number computed from the rate if that is larger.
fn packets(sample: &Sample, header: &Header) -> f64 {
    let kernel = &sample.kernel;
    let pair = BTreeSet::from([sample.pair.flow, sample.pair.application]);
    let counted: u64 = pair.iter().filter_map(|cpu| kernel.packets.get(cpu)).sum();
    let gbit = sample.rate.map_or(0.0, |rate| rate.gbps) * kernel.seconds;
    (counted as f64).max(gbit * super::losses::packets_per_gbit(header))
}

fn is_busy_polling(sample: &Sample) -> bool {
    sample.kernel.is_busy_polling || sample.variant.get(&SweepParameter::BusyPoll).is_some_and(Value::is_on)
}

/// The figures that show a limit of these runs, as means.
fn evidence(limit: Limit, runs: &[&Sample], header: &Header) -> String {
    let mean = |cpu: fn(&Pair) -> u32| mean_shares(runs, |sample| Some(cpu(&sample.pair)));
    let (flow, application) = (mean(|pair| pair.flow), mean(|pair| pair.application));
    let (Some(flow), Some(application)) = (flow, application) else {
        return "the kernel does not report how CPUs spend their time".into();
    };
    let busy = |shares: &CpuShares| format!("it is {} busy: {}", percent(shares.busy()), kinds(shares));
    let both = || format!("flow {}, application {}", percent(flow.busy()), percent(application.busy()));
    let words = match limit {
        Limit::Hypervisor => {
            format!("{} of a CPU's time was stolen", percent(flow.steal.max(application.steal)))
        }
        Limit::OtherLoad => format!(
            "{:.0} programs were runnable, including the load; the flow's CPU: {}",
            mean_of(runs, |sample| sample.kernel.running_before as f64),
            kinds(&flow)
        ),
        Limit::Link => {
            let share = mean_of(runs, |sample| sample.kernel.link_share.unwrap_or(0.0));
            format!("{} of its rate is used, with headers and gaps", percent(share))
        }
        Limit::SharedCpu | Limit::FlowCpu => busy(&flow),
        Limit::ApplicationCpu => busy(&application),
        Limit::SenderCpu => {
            let sender = mean_shares(runs, |_| header.sender.as_ref()?.iter().next());
            busy(&sender.unwrap_or_default())
        }
        Limit::Unknown if runs.iter().any(|sample| is_busy_polling(sample)) => {
            format!("sockets poll while they wait, so the application's CPU is busy at any rate: {}", both())
        }
        Limit::Program => {
            let cpu = if application.busy() > flow.busy() { application } else { flow };
            format!("its CPU is {} busy: {}", percent(cpu.busy()), kinds(&cpu))
        }
        Limit::Unknown if flow.busy().max(application.busy()) > FULL => {
            let rate = mean_of(runs, |sample| sample.rate.map_or(0.0, |rate| rate.gbps) * 1e3);
            format!(
                "the load hardly uses the network, {rate:.1} Mb/s, so it does not explain the busy CPU: {}",
                both()
            )
        }
        Limit::Unknown => format!("no CPU is fully busy: {}", both()),
    };
    words + &beside_sender(runs, header)
}

/// Mentions a sender that shares a CPU of the pair, since its time is included in that CPU's.
fn beside_sender(runs: &[&Sample], header: &Header) -> String {
    let is_there = |cpu: u32| header.sender.as_ref().is_some_and(|cpus| cpus.contains(cpu));
    let count =
        runs.iter().filter(|sample| is_there(sample.pair.flow) || is_there(sample.pair.application)).count();
    match count {
        0 => String::new(),
        some => format!("; the sender shares a CPU of the pair in {some} of {} runs", runs.len()),
    }
}

fn mean_of(runs: &[&Sample], value: impl Fn(&Sample) -> f64) -> f64 {
    runs.iter().map(|sample| value(sample)).sum::<f64>() / runs.len().max(1) as f64
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn kinds(shares: &CpuShares) -> String {
    let softirq = percent(shares.softirq + shares.irq);
    format!(
        "interrupts and softirq {softirq}, kernel {}, programs {}",
        percent(shares.system),
        percent(shares.user)
    )
}

fn mean_shares(samples: &[&Sample], cpu: impl Fn(&Sample) -> Option<u32>) -> Option<CpuShares> {
    let found: Vec<&CpuShares> =
        samples.iter().filter_map(|sample| sample.kernel.cpus.get(&cpu(sample)?)).collect();
    let mean = |share: fn(&CpuShares) -> f64| {
        found.iter().map(|shares| share(shares)).sum::<f64>() / found.len() as f64
    };
    (!found.is_empty()).then(|| CpuShares {
        user: mean(|shares| shares.user),
        system: mean(|shares| shares.system),
        irq: mean(|shares| shares.irq),
        softirq: mean(|shares| shares.softirq),
        steal: mean(|shares| shares.steal),
        idle: mean(|shares| shares.idle),
    })
}
