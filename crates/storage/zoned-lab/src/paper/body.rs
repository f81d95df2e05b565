//! Leaves and interior nodes, and their logs. Both types of node have the same layout: n keys, and n values or
//! addresses.
//!
//! Source: the layouts of the ZB+-tree paper. Entry i of a log belongs to entry i of its node, so that a full log can
//! replace the node.

/// The keys and values of a leaf, or the keys and addresses of an interior node, in ascending order. The first key of
/// an interior node acts as minus infinity, regardless of its value.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Body {
    pub entries: Vec<(u64, u64)>,
}

/// A logged change of one entry of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The entry has this key and value now.
    Set(u64, u64),
    /// The entry with this key is deleted.
    Deleted(u64),
}

/// The log of a node that cannot be written in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Log {
    /// One element for each entry of the node.
    pub changes: Vec<Option<Change>>,
}

/// Clones with capacity for one more entry, because a node is usually cloned to be changed.
impl Clone for Body {
    fn clone(&self) -> Self {
        let mut entries = Vec::with_capacity(self.entries.len() + 1);
        entries.extend_from_slice(&self.entries);
        Self { entries }
    }
}

impl Body {
    /// The index of the entry with `key`, or as the error the index at which it would be inserted.
    pub fn find(&self, key: u64) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&key, |entry| entry.0)
    }

    /// The index of the child whose range of keys contains `key`. The range of a child extends from its key to the next.
    pub fn child(&self, key: u64) -> usize {
        self.entries[1..].partition_point(|entry| entry.0 <= key)
    }

    /// Removes the upper half and returns it.
    pub fn split_off(&mut self) -> Body {
        Body { entries: self.entries.split_off(self.entries.len() / 2) }
    }
}

impl Log {
    /// Creates an empty log for a node of `entries` entries.
    pub fn new(entries: usize) -> Self {
        Self { changes: vec![None; entries] }
    }

    /// Whether every entry of the node is overwritten, so that the node need not be read.
    pub fn is_full(&self) -> bool {
        self.changes.iter().all(Option::is_some)
    }
}

/// A node with the entries that are not deleted.
pub(super) fn live_entries(changes: impl Iterator<Item = Change>) -> Body {
    let entries = changes.filter_map(|change| match change {
        Change::Set(key, payload) => Some((key, payload)),
        Change::Deleted(_) => None,
    });
    Body { entries: entries.collect() }
}
