//! Selects the nodes that the host keeps in memory, so that reading them does not read the device. The selection
//! depends only on the type of node and is fixed. The paper does not state which reads its counts omit.

use super::counts::NodeKind;
use serde::Serialize;

/// The types of node that the host caches. They are still written to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CachedNodes {
    /// None: every access reads the device.
    #[default]
    Nothing,
    /// The root.
    Root,
    /// All but leaves and their logs.
    Inner,
}

impl CachedNodes {
    /// Whether a node is in memory.
    pub(super) const fn has(self, kind: NodeKind, is_root: bool) -> bool {
        match self {
            Self::Nothing => false,
            Self::Root => is_root,
            Self::Inner => is_root || !matches!(kind, NodeKind::Leaf | NodeKind::LeafLog),
        }
    }
}
