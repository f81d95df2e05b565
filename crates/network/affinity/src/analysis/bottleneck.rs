//! Identifies the bottleneck of a class of pairs from the counters, with the figures as evidence. If no resource is
//! saturated, the result says so.

use crate::counters::CpuShares;
use crate::sweep::{Header, Sample};
use serde::Serialize;

/// Utilization above which a CPU counts as saturated. Below 1, because tick-based accounting misses some time.
const FULL: f64 = 0.9;
/// Fraction of the link rate above which the link counts as saturated. Below 1, because headers and gaps carry no
/// payload.
const LINK_FULL: f64 = 0.9;
/// Steal time above which the hypervisor is the bottleneck, as a fraction.
const STOLEN: f64 = 0.1;

/// Number of runnable programs that belong to the measurement: this program, both ends of the load, and kernel threads.
pub(super) const OWN_LOAD: u64 = 5;

/// The saturated resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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
    /// The link.
    Link,
    /// No counted resource is saturated.
    #[default]
    Unknown,
}

/// The bottleneck of some runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
            Self::Link => "the link",
            Self::Unknown => "not found",
        }
    }
}

impl Bottleneck {
    /// Determines the bottleneck of these runs.
    pub fn of(samples: &[&Sample], header: &Header) -> Self {
        let flow = mean_shares(samples, |sample| Some(sample.pair.flow));
        let application = mean_shares(samples, |sample| Some(sample.pair.application));
        let sender = mean_shares(samples, |_| header.sender.as_ref()?.iter().next());
        let (Some(flow), Some(application)) = (flow, application) else {
            return Self {
                limit: Limit::Unknown,
                evidence: "the kernel does not report how CPUs spend their time".into(),
            };
        };
        let one_cpu = samples.iter().all(|sample| sample.pair.flow == sample.pair.application);
        let rates: Vec<f64> = samples.iter().filter_map(|sample| sample.rate).map(|rate| rate.gbps).collect();
        let gbps = rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        let link = header.nic.speed_mbps.map(|mbps| gbps * 1e3 / mbps as f64);
        let steal = flow.steal.max(application.steal);
        let sender_busy = sender.map_or(0.0, |shares| shares.busy());
        // If the sender shares a CPU of the pair, its time is included in that CPU's, so mention both.
        let sender_there = samples.iter().filter(|sample| {
            let cpus = header.sender.as_ref();
            cpus.is_some_and(|cpus| cpus.contains(sample.pair.flow) || cpus.contains(sample.pair.application))
        });
        let also = match sender_there.count() {
            0 => String::new(),
            some => format!("; the sender shares a CPU of the pair in {some} of {} runs", samples.len()),
        };
        let limited_by =
            |limit: Limit, evidence: String| Self { limit, evidence: format!("{evidence}{also}") };
        if steal > STOLEN {
            return limited_by(Limit::Hypervisor, format!("{} of a CPU's time was stolen", percent(steal)));
        }
        let crowded = samples.iter().filter(|sample| sample.kernel.running_before > OWN_LOAD);
        let crowd: Vec<u64> = crowded.map(|sample| sample.kernel.running_before).collect();
        if crowd.len() * 2 > samples.len() && flow.busy().max(application.busy()) > FULL {
            let mean = crowd.iter().sum::<u64>() / crowd.len() as u64;
            let words = format!(
                "{mean} programs were runnable, including the load; the flow's CPU: {}",
                kinds(&flow)
            );
            return limited_by(Limit::OtherLoad, words);
        }
        if let Some(link) = link.filter(|link| *link > LINK_FULL) {
            return limited_by(Limit::Link, format!("{} of its rate is received", percent(link)));
        }
        if one_cpu && flow.busy() > FULL {
            return limited_by(
                Limit::SharedCpu,
                format!("it is {} busy: {}", percent(flow.busy()), kinds(&flow)),
            );
        }
        let rivals = [
            (Limit::ApplicationCpu, application.busy(), kinds(&application)),
            (Limit::FlowCpu, flow.busy(), kinds(&flow)),
            (Limit::SenderCpu, sender_busy, sender.map(|shares| kinds(&shares)).unwrap_or_default()),
        ];
        let (limit, busy, words) =
            rivals.into_iter().rev().max_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or_default();
        if busy > FULL {
            return limited_by(limit, format!("it is {} busy: {words}", percent(busy)));
        }
        limited_by(
            Limit::Unknown,
            format!(
                "no CPU is fully busy: flow {}, application {}",
                percent(flow.busy()),
                percent(application.busy())
            ),
        )
    }
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
