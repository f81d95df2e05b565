//! Explains a scheduling decision: the result of every filter and weigher for each host and node. It evaluates all
//! hosts, so it is slower than a decision.

use super::Scheduler;
use super::demand::Demand;
use super::filter::{Candidate, HOST_FILTERS, NODE_FILTERS, Shortage};
use super::fit::{JointShortage, fit, joint_shortage};
use super::groups::GroupRules;
use super::weigh::{HOST_WEIGHERS, NODE_WEIGHERS};
use crate::request::{Invalid, Request};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The evaluation of a request on each host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Explanation {
    /// Number of virtual nodes that the request was evaluated with.
    pub virtual_nodes: u32,
    /// Hosts that fit, best first, then the hosts that do not fit.
    pub hosts: Vec<HostVerdict>,
    /// For each filter, the number of hosts it rejected (the host itself or all of its nodes).
    pub refused_by: BTreeMap<String, u32>,
    /// Number of hosts that fit.
    pub fitting: u32,
}

/// The evaluation of one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HostVerdict {
    /// Name of the host.
    pub host: String,
    /// Score from 0 to 1, if the host fits.
    pub score: Option<f32>,
    /// Nodes that would be used, if the host fits.
    pub nodes_chosen: Vec<u32>,
    /// Reasons to reject the whole host.
    pub refused: Vec<Refusal>,
    /// Scores of the host weighers.
    pub weights: Vec<Weighed>,
    /// Evaluation of each node for the first (largest) virtual node.
    pub nodes: Vec<NodeVerdict>,
}

impl HostVerdict {
    /// Why the host does not fit, in one sentence; `None` if it fits. If every node lacks a resource, the sentence
    /// states the free resources of the closest node.
    pub fn reason(&self) -> Option<String> {
        if self.score.is_some() {
            return None;
        }
        if let Some(Refusal { what, needed, available, .. }) = self.refused.first() {
            return Some(format!("host {} has {available} {what}; {needed} are needed", self.host));
        }
        let (node, Refusal { what, needed, available, .. }) = self.closest_node()?;
        Some(format!("no node of host {} has {needed} {what}: node {node} has {available}", self.host))
    }

    /// The closest node and the resources that it lacks; `None` if some node lacks nothing.
    pub fn closest_node(&self) -> Option<(u32, &Refusal)> {
        let refusals = self.nodes.iter().map(|node| Some((node.node, node.refused.first()?)));
        let share = |refusal: &Refusal| refusal.available as f64 / refusal.needed.max(1) as f64;
        refusals.collect::<Option<Vec<_>>>()?.into_iter().max_by(|a, b| share(a.1).total_cmp(&share(b.1)))
    }
}

/// The evaluation of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeVerdict {
    /// The operating system's node number.
    pub node: u32,
    /// Reasons to reject the node.
    pub refused: Vec<Refusal>,
    /// Scores of the node weighers, if the node is not rejected.
    pub weights: Vec<Weighed>,
}

/// A rejection by a filter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Refusal {
    /// Name of the filter.
    pub filter: String,
    /// The resource it counts.
    pub what: String,
    /// Amount needed.
    pub needed: u64,
    /// Amount available.
    pub available: u64,
}

/// The score of a weigher.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Weighed {
    /// Name of the weigher.
    pub weigher: String,
    /// Score from 0 to 1.
    pub value: f32,
    /// Weight of the score.
    pub weight: f32,
}

fn refusal(filter: &str, what: &str, shortage: Shortage) -> Refusal {
    let Shortage { needed, available } = shortage;
    Refusal { filter: filter.into(), what: what.into(), needed, available }
}

impl Scheduler {
    /// Explains which hosts `request` fits on and why. `only` restricts the evaluation to one host. The answer contains
    /// at most `limit` hosts, but the counts cover all.
    ///
    /// # Errors
    /// The invalid fields of the request.
    pub fn explain(
        &self,
        request: &Request,
        only: Option<&str>,
        limit: usize,
    ) -> Result<Explanation, Vec<Invalid>> {
        request.check()?;
        let demands = self.demands(request);
        let explained: Vec<_> = demands.iter().map(|d| self.explain_demand(request, d, only)).collect();
        // If none fits, explain the first one with all the memory that the request may use.
        let first = demands.iter().position(|demand| demand.memory == request.memory).unwrap_or(0);
        let fitting = explained.iter().position(|e| e.fitting > 0).unwrap_or(first);
        let mut chosen = explained.into_iter().nth(fitting).expect("there is always a first demand");
        chosen.hosts.sort_by(|a, b| b.score.unwrap_or(-1.0).total_cmp(&a.score.unwrap_or(-1.0)));
        chosen.hosts.truncate(limit);
        Ok(chosen)
    }

    fn explain_demand(&self, request: &Request, demand: &Demand, only: Option<&str>) -> Explanation {
        let mut hosts = Vec::new();
        let mut refused_by: BTreeMap<String, u32> = BTreeMap::new();
        for at in self.inventory.indices() {
            if only.is_some_and(|name| name != &*self.inventory.hosts[at].name) {
                continue;
            }
            let verdict = self.verdict(request, demand, at);
            if verdict.score.is_none() {
                let nodes = verdict.nodes.iter().flat_map(|n| &n.refused);
                let filters = verdict.refused.iter().chain(nodes).map(|r| r.filter.clone());
                for filter in filters.collect::<std::collections::BTreeSet<_>>() {
                    *refused_by.entry(filter).or_default() += 1;
                }
            }
            hosts.push(verdict);
        }
        let fitting = hosts.iter().filter(|h| h.score.is_some()).count() as u32;
        Explanation { virtual_nodes: demand.cells, hosts, refused_by, fitting }
    }

    fn verdict(&self, request: &Request, demand: &Demand, at: usize) -> HostVerdict {
        let host = &self.inventory.hosts[at];
        let mask = GroupRules::of(&self.inventory, request).nodes(at as u32);
        let mut refused: Vec<_> = HOST_FILTERS
            .iter()
            .filter_map(|f| Some(refusal(f.name(), f.what(), f.shortage(host, demand)?)))
            .collect();
        if mask == 0 {
            refused.push(refusal(
                "groups",
                "nodes that the groups allow",
                Shortage { needed: 1, available: 0 },
            ));
        }
        let cell = demand.cell(0);
        let node = |(n, (shape, state)): (usize, (_, _))| {
            let percent = self.policy.overcommit_percent;
            let c = Candidate { host, at: n, shape, state, demand, cell: &cell, overcommit_percent: percent };
            let shortage =
                |f: &&dyn super::filter::NodeFilter| Some(refusal(f.name(), f.what(&c), f.shortage(&c)?));
            let mut refused: Vec<_> = NODE_FILTERS.iter().filter_map(shortage).collect();
            if mask != 0 && mask >> n & 1 == 0 {
                refused.push(refusal(
                    "groups",
                    "nodes that the groups allow",
                    Shortage { needed: 1, available: 0 },
                ));
            }
            let weighed = |w: &&dyn super::weigh::NodeWeigher| Weighed {
                weigher: w.name().into(),
                value: w.weigh(&c),
                weight: w.weight(&self.policy.weights),
            };
            let weights =
                if refused.is_empty() { NODE_WEIGHERS.iter().map(weighed).collect() } else { Vec::new() };
            NodeVerdict { node: c.shape.id, refused, weights }
        };
        let nodes: Vec<NodeVerdict> =
            host.shape.nodes.iter().zip(&*host.nodes).enumerate().map(node).collect();
        let fit = fit(&self.rules(), host, demand, mask);
        if fit.is_none() && refused.is_empty() {
            refused.extend(joint_shortage(&self.rules(), host, demand, mask).map(|what| match what {
                JointShortage::Nodes(shortage) => {
                    refusal("nodes", "nodes with room for one virtual node each", shortage)
                }
                JointShortage::Memory(shortage) => {
                    refusal("memory", "MiB free for all its virtual nodes together", shortage)
                }
            }));
        }
        let chosen =
            fit.iter().flat_map(|f| f.nodes()).map(|n| host.shape.nodes[usize::from(*n)].id).collect();
        let weights = HOST_WEIGHERS.iter().map(|w| Weighed {
            weigher: w.name().into(),
            value: w.weigh(host, demand),
            weight: w.weight(&self.policy.weights),
        });
        HostVerdict {
            host: host.name.to_string(),
            score: fit.map(|f| f.score),
            nodes_chosen: chosen,
            refused,
            weights: weights.collect(),
            nodes,
        }
    }
}
