//! Which nodes the host keeps in memory, so that reading them is no read of the device.
//! Not a cache that fills and empties: the choice is made once, by kind.
//! Source: the paper does not say what its counts of reads leave out.

use super::counts::NodeKind;
use serde::Serialize;

/// Which nodes the host keeps in memory. They are written to the device like all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kept {
    /// None: every look at a node is a read.
    #[default]
    Nothing,
    /// The root.
    Root,
    /// All but leaves and their logs.
    Inner,
}

impl Kept {
    /// Whether a node is in memory.
    pub(super) const fn has(self, kind: NodeKind, is_root: bool) -> bool {
        match self {
            Self::Nothing => false,
            Self::Root => is_root,
            Self::Inner => is_root || !matches!(kind, NodeKind::Leaf | NodeKind::LeafLog),
        }
    }
}
