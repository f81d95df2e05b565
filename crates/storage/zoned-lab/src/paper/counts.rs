//! Statistics of the published trees: nodes read and written by kind, and the number of each kind of operation.
//!
//! Source: the quantities of the paper's evaluation.

use serde::Serialize;

/// The type of a node that is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeKind {
    /// Keys and values.
    Leaf,
    /// Changes to a leaf.
    LeafLog,
    /// Pointers to leaves, with their states.
    LeafHead,
    /// Keys and the addresses of heads (in the copy-on-write tree: of nodes one level below).
    Interior,
    /// Changes to an interior node.
    InteriorLog,
    /// Pointers to interior nodes, with their states; the root is such a node.
    InteriorHead,
    /// Any node moved by garbage collection.
    Collected,
}

impl NodeKind {
    /// All kinds, in order.
    pub const ALL: [NodeKind; 7] = [
        Self::Leaf,
        Self::LeafLog,
        Self::LeafHead,
        Self::Interior,
        Self::InteriorLog,
        Self::InteriorHead,
        Self::Collected,
    ];

    /// The name of the kind in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leaf => "leaf",
            Self::LeafLog => "leaf-log",
            Self::LeafHead => "leaf-head",
            Self::Interior => "interior",
            Self::InteriorLog => "interior-log",
            Self::InteriorHead => "interior-head",
            Self::Collected => "collected",
        }
    }
}

/// A count for each kind of node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    by_kind: [u64; NodeKind::ALL.len()],
}

impl Counts {
    pub(super) fn add(&mut self, kind: NodeKind) {
        self.by_kind[kind as usize] += 1;
    }

    /// The count of one kind.
    pub const fn of(&self, kind: NodeKind) -> u64 {
        self.by_kind[kind as usize]
    }

    /// The sum over all kinds.
    pub fn total(&self) -> u64 {
        self.by_kind.iter().sum()
    }
}

/// The statistics of a tree since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PaperCounts {
    /// Nodes read.
    pub reads: Counts,
    /// Nodes written in place, in conventional zones.
    pub conventional_writes: Counts,
    /// Nodes appended to sequential zones.
    pub sequential_writes: Counts,
    /// Sequential zones reset.
    pub resets: u64,
    /// Inserts into a node in state `change`.
    pub changed_in_place: u64,
    /// Nodes that moved to a sequential zone because they were full.
    pub moved_when_full: u64,
    /// Updates and deletions that went to a log.
    pub logged: u64,
    /// Steady nodes split.
    pub split: u64,
    /// Syncs of a steady node whose log was not full.
    pub normal_apply_steady: u64,
    /// Syncs of a node with deletions whose log was not full.
    pub normal_apply_after: u64,
    /// Syncs of a steady node whose log was full.
    pub switch_apply_steady: u64,
    /// Syncs of a node with deletions whose log was full.
    pub switch_apply_after: u64,
    /// Neighbours merged because both fitted into one node.
    pub merged: u64,
    /// Heads split.
    pub heads_split: u64,
    /// Heads merged with a neighbour.
    pub heads_merged: u64,
    /// Heads that took entries from a neighbour.
    pub heads_evened: u64,
    /// Nodes that became empty and were removed from their head.
    pub emptied: u64,
}

impl PaperCounts {
    /// All nodes written.
    pub fn writes(&self) -> u64 {
        self.conventional_writes.total() + self.sequential_writes.total()
    }
}
