//! Node counts by state, as reported by a checker.
//!
//! Source: the ZB+-tree paper's states `change`, `steady-hot`, `steady-cold` and `after`.

use serde::Serialize;

/// The number of leaves and interior nodes in each state. Interior nodes of the durable map have no logs, so its
/// `after_interiors` is always 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeStates {
    /// Leaves that are updated in place.
    pub change_leaves: u64,
    /// Interior nodes that are updated in place.
    pub change_interiors: u64,
    /// Leaves in sequential zones that have no deletions in their logs.
    pub steady_hot: u64,
    /// Interior nodes in sequential zones that have no deletions in their logs.
    pub steady_cold: u64,
    /// Leaves in sequential zones that have deletions in their logs.
    pub after_leaves: u64,
    /// Interior nodes in sequential zones that have deletions in their logs.
    pub after_interiors: u64,
    /// Head nodes.
    pub heads: u64,
    /// Heads that are less than half full although they have neighbours. A head can shrink below half while it is the
    /// only child of its interior node; when that node later merges with another one, the head gets neighbours. Only
    /// the paper's tree has such heads.
    pub small_heads: u64,
}

impl std::ops::AddAssign for NodeStates {
    fn add_assign(&mut self, other: Self) {
        self.change_leaves += other.change_leaves;
        self.change_interiors += other.change_interiors;
        self.steady_hot += other.steady_hot;
        self.steady_cold += other.steady_cold;
        self.after_leaves += other.after_leaves;
        self.after_interiors += other.after_interiors;
        self.heads += other.heads;
        self.small_heads += other.small_heads;
    }
}
