//! Which pair of CPUs to use: from topology, and from a measurement if there is one, with the commands that make it so.
//! Not the measurement: that is a sweep of the candidates.
//! Source: Hanford et al. 2014: the best pairs are different cores of the NIC's socket.

mod race;

pub use race::{Race, Round};

use crate::analysis::{Analysis, PairResult, differ};
use crate::interface::Nic;
use crate::places::{Class, Pair, classify};
use crate::setting::Setting;
use crate::steering::Steering;
use longma_topology::CpuLocation;
use serde::Serialize;

/// A pair that may be the best, and why topology says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// The pair.
    pub pair: Pair,
    /// How its CPUs lie.
    pub class: Class,
    /// Whether the flow's CPU is on the NIC's node; none if the node is unknown.
    pub is_near: Option<bool>,
    /// Whether the application's CPU is.
    pub is_application_near: Option<bool>,
}

/// Topology decides between pairs that have so much of the highest median; more than that is not given away for it.
const CLOSE: f64 = 0.99;

/// What a measurement says of the choice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The pair with the highest median.
    pub best: PairResult,
    /// Pairs that cannot be told from it at 95 %.
    pub not_told_apart: Vec<Pair>,
    /// What is advised: of the best and those of these that are within a hundredth of it, the one that topology ranks first, since the
    /// measurement does not speak against it.
    pub choice: PairResult,
}

/// How a choice is made to last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Commands {
    /// Commands for now, for a root shell.
    pub now: Vec<String>,
    /// A drop-in of the application's systemd service.
    pub systemd: String,
    /// A udev rule that steers the flows whenever the interface appears.
    pub udev: String,
    /// What is to be kept from undoing it.
    pub keep: Vec<String>,
}

/// The pairs in the order in which topology recommends them: near the NIC, by class, and CPU 0 last since most other work lands there.
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

/// What a measurement says of candidates in the order of topology. Pairs with less than half the runs of others are none to choose: they
/// lost a [`Race`].
pub fn measured(analysis: &Analysis, ranking: &[Candidate]) -> Option<Measured> {
    let most = analysis.pairs.iter().map(|result| result.gbps.len()).max()?;
    let measured: Vec<&PairResult> =
        analysis.pairs.iter().filter(|result| 2 * result.gbps.len() > most).collect();
    let best = measured.iter().max_by(|one, other| one.median_gbps.total_cmp(&other.median_gbps))?;
    // With a single run nothing is known of the spread: then the best is the best.
    let alike =
        |other: &&&PairResult| other.pair != best.pair && differ(&other.gbps, &best.gbps) == Some(false);
    let alike: Vec<&PairResult> = measured.iter().filter(alike).copied().collect();
    let rank =
        |result: &&PairResult| ranking.iter().position(|of| of.pair == result.pair).unwrap_or(usize::MAX);
    let close = alike.iter().copied().filter(|other| other.median_gbps >= CLOSE * best.median_gbps);
    let choice = close.chain([*best]).min_by_key(rank)?.clone();
    Some(Measured {
        not_told_apart: alike.iter().map(|other| other.pair).collect(),
        choice,
        best: (*best).clone(),
    })
}

/// The commands that apply a pair to the flows that `steering` steers.
pub fn commands(steering: &Steering, pair: Pair) -> Commands {
    let write = |(setting, value): (Setting, String)| {
        let path = setting.path()?;
        Some(format!("echo {value} > {}", quoted(&format!("/{path}"))))
    };
    let settings = steering.towards(pair.flow);
    let writes: Vec<String> = settings.iter().cloned().filter_map(write).collect();
    let cpu = pair.application;
    let mut now = writes.clone();
    now.push(format!("taskset -cp {cpu} PID          # the application that runs"));
    now.push(format!("taskset -c {cpu} COMMAND       # or one that is to be started"));
    let (Steering::Interrupts { interface, .. } | Steering::Rps { interface, .. }) = steering;
    let keep = match steering {
        Steering::Interrupts { irqs, .. } => {
            let bans: Vec<String> = irqs.iter().map(|irq| format!("--banirq={irq}")).collect();
            vec![format!("irqbalance must leave them alone: IRQBALANCE_ARGS=\"{}\"", bans.join(" "))]
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

/// A rule that makes the writes when the interface appears.
fn udev(interface: &str, writes: &[String]) -> String {
    if !interface.chars().all(is_plain) {
        // Patterns, substitutions and quotes: a rule would match or run something else.
        return format!(
            "# no rule: `{interface}` has letters that mean something to udev; give it another name\n"
        );
    }
    let joined = writes.join("; ");
    format!("ACTION==\"add\", SUBSYSTEM==\"net\", NAME==\"{interface}\", RUN+=\"/bin/sh -c '{joined}'\"\n")
}

/// Letters that mean nothing but themselves to shells and udev.
fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-' | '/' | '@' | '+')
}

/// A word for a shell: the kernel allows names of interfaces with quotes, blanks apart, and all else that shells act on.
fn quoted(word: &str) -> String {
    if word.chars().all(is_plain) { word.into() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests;
