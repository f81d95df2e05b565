//! The parts of Kubernetes' objects that the extender reads. Unknown fields are ignored, as Kubernetes adds fields within
//! a version.
//!
//! Source: Kubernetes 1.32, k8s.io/kube-scheduler/extender/v1 (`ExtenderArgs`, `ExtenderFilterResult`, `HostPriority`)
//! and k8s.io/api/core/v1 (`Pod`, `Node`). The extender's types have no JSON tags, so their keys are the Go names. The crate
//! k8s-openapi does not contain them, and of the core types only these few fields are needed.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// A request to filter or prioritize.
#[derive(Debug, Deserialize)]
pub(super) struct ExtenderArgs {
    #[serde(rename = "Pod", alias = "pod")]
    pub pod: Pod,
    /// The candidates, if `nodeCacheCapable` is false.
    #[serde(rename = "Nodes", alias = "nodes", default)]
    pub nodes: Option<NodeList>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Pod {
    #[serde(default)]
    pub spec: PodSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodSpec {
    #[serde(deserialize_with = "or_default")]
    pub init_containers: Vec<Container>,
    #[serde(deserialize_with = "or_default")]
    pub containers: Vec<Container>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Container {
    pub resources: ResourceRequirements,
    pub restart_policy: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ResourceRequirements {
    #[serde(deserialize_with = "or_default")]
    pub limits: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub requests: BTreeMap<String, String>,
}

/// Nodes as the scheduler sent them, because the answer repeats them.
#[derive(Debug, Deserialize)]
pub(super) struct NodeList {
    #[serde(deserialize_with = "or_default", default)]
    pub items: Vec<Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Node {
    pub metadata: NodeMetadata,
}

#[derive(Debug, Deserialize)]
pub(super) struct NodeMetadata {
    pub name: String,
    #[serde(deserialize_with = "or_default", default)]
    pub labels: BTreeMap<String, String>,
}

/// Answer to a filter request.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ExtenderFilterResult {
    pub nodes: KeptNodes,
    pub failed_nodes: BTreeMap<String, String>,
    pub error: String,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct KeptNodes {
    pub metadata: BTreeMap<String, String>,
    pub items: Vec<Value>,
}

/// Score of a node, 0 to 10.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct HostPriority {
    pub host: String,
    pub score: i64,
}

/// Go writes an empty list or map as `null`.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}
