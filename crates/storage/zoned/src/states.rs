//! How many leaves and interior nodes a checker found in which of the paper's states.
//! Not the states themselves: `State` of `longma-zoned-lab`'s trees, and where a node of the durable map lies.
//! Source: the ZB+-tree paper's states `change`, `steady-hot`, `steady-cold` and `after`.

use serde::Serialize;

/// Leaves and interior nodes by state. The durable map has no interior nodes in `after`, as they have no logs there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeStates {
    /// Leaves that are changed in place.
    pub change_leaves: u64,
    /// Interior nodes that are changed in place.
    pub change_interiors: u64,
    /// Leaves in sequential zones, without deletions in their logs.
    pub steady_hot: u64,
    /// Interior nodes in sequential zones, without deletions in their logs.
    pub steady_cold: u64,
    /// Leaves in sequential zones with deletions in their logs.
    pub after_leaves: u64,
    /// Interior nodes in sequential zones with deletions in their logs.
    pub after_interiors: u64,
    /// Heads.
    pub heads: u64,
    /// Of these, heads with neighbours that are less than half full: they got so while they were alone under their interior node, which has
    /// merged with another since. In the paper's tree only.
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
