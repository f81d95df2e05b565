//! Recommends a pair of CPUs, from the topology and from a measurement if there is one, with the commands that apply
//! it. A sweep of the candidates makes the measurement.
//!
//! Source: Hanford et al. 2014: the best pairs are different cores of the NIC's socket.

mod race;

pub use race::{Race, Round};

use crate::analysis::{Analysis, PairResult, differ};
use crate::interface::Nic;
use crate::pairs::{Class, Pair, classify};
use crate::setting::Setting;
use crate::steering::Steering;
use longma_text::quote_for_shell;
use longma_topology::CpuLocation;
use serde::Serialize;

/// A candidate pair with its topological properties.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// The pair.
    pub pair: Pair,
    /// Topological relation of its CPUs.
    pub class: Class,
    /// Whether the flow's CPU is on the NIC's node; `None` if the node is unknown.
    pub is_near: Option<bool>,
    /// Whether the application's CPU is on the NIC's node; `None` if the node is unknown.
    pub is_application_near: Option<bool>,
}

/// Among pairs whose median reaches this fraction of the highest one, the topology decides.
const CLOSE_FRACTION: f64 = 0.99;

/// Evaluation of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The pair with the highest median.
    pub best: PairResult,
    /// Pairs whose difference from it is not significant at 95 %.
    pub not_told_apart: Vec<Pair>,
    /// The recommended pair: among the best pair and the insignificantly different ones within 1 % of it, the one that
    /// the topology ranks first.
    pub choice: PairResult,
}

/// Commands that apply a recommendation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Commands {
    /// Commands for a root shell that take effect immediately.
    pub now: Vec<String>,
    /// A systemd drop-in for the application's service.
    pub systemd: String,
    /// A udev rule that steers the flows whenever the interface appears.
    pub udev: String,
    /// Instructions that keep services from reverting the settings.
    pub keep: Vec<String>,
}

/// Ranks pairs by topology: close to the NIC first, then by class. CPU 0 comes last, because most other work runs on
/// it.
pub fn candidates(places: &[CpuLocation], nic: &Nic, pairs: &[Pair]) -> Vec<Candidate> {
    let node_of = |cpu: u32| places.iter().find(|place| place.cpu == cpu).map(|place| place.node);
    let candidate = |pair: &Pair| {
        let pair = *pair;
        let near = |cpu: u32| nic.node.map(|node| node_of(cpu) == Some(node));
        let (is_near, is_application_near) = (near(pair.flow), near(pair.application));
        Some(Candidate { pair, class: classify(places, pair)?, is_near, is_application_near })
    };
    let mut all: Vec<Candidate> = pairs.iter().filter_map(candidate).collect();
    let rank = |class: Class| Class::ALL.iter().position(|of| *of == class);
    all.sort_by_key(|candidate| {
        let pair = candidate.pair;
        let uses_first = pair.flow == 0 || pair.application == 0;
        (candidate.is_near == Some(false), rank(candidate.class), uses_first, pair)
    });
    all
}

/// Evaluates a measurement of candidates that are ranked by topology. Ignores pairs with less than half as many runs as
/// others: they were eliminated in a [`Race`].
pub fn measured(analysis: &Analysis, ranking: &[Candidate]) -> Option<Measured> {
    let max_repeats = analysis.pairs.iter().map(|result| result.gbps.len()).max()?;
    let measured: Vec<&PairResult> =
        analysis.pairs.iter().filter(|result| 2 * result.gbps.len() > max_repeats).collect();
    let best = measured.iter().max_by(|one, other| one.median_gbps.total_cmp(&other.median_gbps))?;
    // With a single run per pair the variance is unknown, so the highest median wins.
    let alike =
        |other: &&&PairResult| other.pair != best.pair && differ(&other.gbps, &best.gbps) == Some(false);
    let alike: Vec<&PairResult> = measured.iter().filter(alike).copied().collect();
    let rank =
        |result: &&PairResult| ranking.iter().position(|of| of.pair == result.pair).unwrap_or(usize::MAX);
    let close = alike.iter().copied().filter(|other| other.median_gbps >= CLOSE_FRACTION * best.median_gbps);
    let choice = close.chain([*best]).min_by_key(rank)?.clone();
    Some(Measured {
        not_told_apart: alike.iter().map(|other| other.pair).collect(),
        choice,
        best: (*best).clone(),
    })
}

/// The commands that apply a pair to the flows that `steering` controls.
pub fn commands(steering: &Steering, pair: Pair) -> Commands {
    let write = |(setting, value): (Setting, String)| {
        let path = setting.path()?;
        Some(format!("echo {value} > {}", quote_for_shell(&format!("/{path}"))))
    };
    let settings = steering.towards(pair.flow);
    let writes: Vec<String> = settings.iter().cloned().filter_map(write).collect();
    let cpu = pair.application;
    let mut now = writes.clone();
    now.push(format!("taskset -cp {cpu} PID          # a running application"));
    now.push(format!("taskset -c {cpu} COMMAND       # or a new one"));
    let (Steering::Interrupts { interface, .. } | Steering::Rps { interface, .. }) = steering;
    let keep = match steering {
        Steering::Interrupts { irqs, .. } => {
            let bans: Vec<String> = irqs.iter().map(|irq| format!("--banirq={irq}")).collect();
            vec![format!("exclude them from irqbalance: IRQBALANCE_ARGS=\"{}\"", bans.join(" "))]
        }
        Steering::Rps { .. } => Vec::new(),
    };
    Commands {
        now,
        systemd: format!("[Service]\nCPUAffinity={cpu}\n"),
        udev: udev(interface.name(), &writes),
        keep,
    }
}

/// A udev rule that writes the settings when the interface appears.
fn udev(interface: &str, writes: &[String]) -> String {
    if !interface.chars().all(is_plain) {
        // udev would interpret patterns, substitutions and quotes in the name.
        return format!(
            "# no rule: the name `{interface}` has characters that are special in udev rules; rename the interface\n"
        );
    }
    let joined = writes.join("; ");
    format!("ACTION==\"add\", SUBSYSTEM==\"net\", NAME==\"{interface}\", RUN+=\"/bin/sh -c '{joined}'\"\n")
}

/// Characters without special meaning to shells and udev.
fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-' | '/' | '@' | '+')
}

#[cfg(test)]
mod tests;
