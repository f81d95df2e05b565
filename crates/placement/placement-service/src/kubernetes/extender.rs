//! Decides for kube-scheduler on which nodes a pod fits on one NUMA node, and scores these nodes.

use super::api::{ExtenderArgs, ExtenderFilterResult, HostPriority, KeptNodes, Node};
use super::labels::free_host;
use super::pod::{PodNeed, need};
use longma_placement::request::CpuPolicy;
use longma_placement::scheduler::{HostVerdict, Overhead};
use longma_placement::{Policy, Request, Scheduler};
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;

/// Maximum number of nodes in a request; Kubernetes supports clusters of 5000.
const MAX_NODES: usize = 10_000;
/// Highest score that kube-scheduler expects of an extender (`MaxExtenderPriority`).
const MAX_SCORE: f32 = 10.0;
/// Maximum number of characters of a reason.
const MAX_REASON_CHARS: usize = 300;

/// The result of evaluating a node for a pod.
enum Verdict {
    /// The pod is not aligned, or the node has no labels: the extender has no opinion.
    NoOpinion,
    /// It fits, with a score from 0 to 1.
    Fits(f32),
    /// It does not fit, for this reason.
    Refused(String),
}

/// A candidate node with its verdict.
struct Candidate {
    name: String,
    sent: Value,
    verdict: Verdict,
}

/// Answers a filter request with the nodes on which the pod fits, as they were sent, and the reason for each of the
/// others.
///
/// # Errors
/// Why the request is malformed.
pub(crate) fn filter(body: &[u8]) -> Result<String, String> {
    let mut result = ExtenderFilterResult::default();
    let mut kept = KeptNodes::default();
    for candidate in candidates(body)? {
        match candidate.verdict {
            Verdict::Refused(why) => drop(result.failed_nodes.insert(candidate.name, why)),
            _ => kept.items.push(candidate.sent),
        }
    }
    result.nodes = kept;
    serde_json::to_string(&result).map_err(|error| error.to_string())
}

/// Answers a prioritize request: a score from 0 to 10 for each node. A node without a score gets 0.
///
/// # Errors
/// Why the request is malformed.
pub(crate) fn prioritize(body: &[u8]) -> Result<String, String> {
    let score = |verdict: &Verdict| match verdict {
        Verdict::Fits(score) => (score * MAX_SCORE).round() as i64,
        Verdict::NoOpinion | Verdict::Refused(_) => 0,
    };
    let scores = candidates(body)?.into_iter();
    let scores: Vec<_> = scores.map(|c| HostPriority { score: score(&c.verdict), host: c.name }).collect();
    serde_json::to_string(&scores).map_err(|error| error.to_string())
}

fn candidates(body: &[u8]) -> Result<Vec<Candidate>, String> {
    let args: ExtenderArgs = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let nodes = args.nodes.ok_or(
        "Nodes is missing: set nodeCacheCapable to false in the scheduler's configuration, since the room of a node is \
         in its labels",
    )?;
    if nodes.items.len() > MAX_NODES {
        return Err(format!("Nodes.items: {} nodes; at most {MAX_NODES}", nodes.items.len()));
    }
    let need = need(&args.pod)?;
    let mut scheduler = Scheduler::new(policy(need.as_ref()), 0);
    let mut candidates = Vec::with_capacity(nodes.items.len());
    for (at, sent) in nodes.items.into_iter().enumerate() {
        let node = Node::deserialize(&sent).map_err(|error| format!("Nodes.items[{at}]: {error}"))?;
        let name = node.metadata.name;
        // Names of nodes may be longer than those of hosts.
        let verdict = match (&need, free_host(&format!("n{at}"), &node.metadata.labels)) {
            (None, _) | (_, Ok(None)) => Verdict::NoOpinion,
            (_, Err(why)) => Verdict::Refused(format!("its labels are wrong: {why}")),
            (Some(_), Ok(Some(host))) => {
                scheduler.put_host(&host).map_err(|error| format!("Nodes.items[{at}]: {error}"))?;
                // This verdict is replaced below.
                Verdict::Refused(String::new())
            }
        };
        candidates.push(Candidate { name, sent, verdict });
    }
    let Some(need) = need else { return Ok(candidates) };
    let explained = scheduler.explain(&request(&need), None, MAX_NODES);
    let explained = explained.map_err(|fields| {
        let fields: Vec<String> = fields.iter().map(ToString::to_string).collect();
        format!("the pod cannot be placed anywhere: {}", fields.join("; "))
    })?;
    let by_name: HashMap<_, _> = explained.hosts.iter().map(|host| (&*host.host, host)).collect();
    for (at, candidate) in candidates.iter_mut().enumerate() {
        if let Some(host) = by_name.get(&*format!("n{at}")) {
            candidate.verdict = match host.score {
                Some(score) => Verdict::Fits(score.clamp(0.0, 1.0)),
                None => Verdict::Refused(reason(host)),
            };
        }
    }
    for candidate in &mut candidates {
        if let Verdict::Refused(why) = &mut candidate.verdict {
            *why = longma_text::sanitize(&why.chars().take(MAX_REASON_CHARS).collect::<String>());
        }
    }
    Ok(candidates)
}

/// Why a pod fits on no NUMA node of a host: the resources that the closest node lacks.
fn reason(host: &HostVerdict) -> String {
    match (host.closest_node(), host.refused.first()) {
        (Some((node, refusal)), _) => format!(
            "no NUMA node has {} {}: NUMA node {node} has {}",
            refusal.needed, refusal.what, refusal.available
        ),
        (None, Some(refusal)) => {
            format!("it has {} {}; {} are needed", refusal.available, refusal.what, refusal.needed)
        }
        (None, None) => "no NUMA node has room for the pod".into(),
    }
}

/// A pod with huge pages also needs memory in ordinary pages of the same NUMA node. The scheduler treats this memory as
/// the overhead of a virtual machine.
fn policy(need: Option<&PodNeed>) -> Policy {
    let ordinary = need.filter(|need| need.huge_pages.is_some()).map_or(0, |need| need.memory_mib);
    let fixed_mib = u32::try_from(ordinary).unwrap_or(u32::MAX);
    Policy { overhead: Overhead { fixed_mib, ..Overhead::default() }, ..Policy::default() }
}

fn request(need: &PodNeed) -> Request {
    let memory_mib = need.huge_pages.map_or(need.memory_mib, |(_, mib)| mib);
    Request {
        cpu: CpuPolicy::Exclusive,
        huge_page_kib: need.huge_pages.map(|(page_kib, _)| page_kib),
        virtual_nodes: Some(1),
        ..Request::new("pod", need.cpus, memory_mib)
    }
}
