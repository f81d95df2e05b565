//! Kubernetes: a scheduler extender that keeps pods off nodes whose NUMA nodes are too full for them, and the node
//! labels that it reads. Otherwise, the kubelet would reject the pod after it was scheduled (`TopologyAffinityError`).
//!
//! Source: Kubernetes' manual, "Scheduler Configuration" (extenders) and "Control Topology Management Policies on a
//! node".

mod api;
mod extender;
mod labels;
mod pod;
mod quantity;
#[cfg(test)]
mod tests;

pub(crate) use extender::{filter, prioritize};
pub use labels::{KubeletUse, Labels, PREFIX, labels};
