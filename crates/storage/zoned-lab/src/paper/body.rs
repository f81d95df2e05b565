//! A leaf or an interior node (their layouts are the same: n keys, n values or addresses) and its log.
//! Not heads: see `head`.
//! Source: the paper's layouts; entry i of a log belongs to entry i of its node, so that a full log can become the node.

/// A leaf's keys and values, or an interior node's keys and addresses, in ascending order. The first key of an interior node is
/// less than every key, whatever it says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Body {
    pub entries: Vec<(u64, u64)>,
}

/// What a log says of one entry of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The entry is now this one.
    To(u64, u64),
    /// The entry with this key is deleted.
    Deleted(u64),
}

/// The changes to a node that cannot be written in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Log {
    /// One place for each entry of the node.
    pub changes: Vec<Option<Change>>,
}

/// A copy with room for one more entry: who copies a node is about to change it.
impl Clone for Body {
    fn clone(&self) -> Self {
        let mut entries = Vec::with_capacity(self.entries.len() + 1);
        entries.extend_from_slice(&self.entries);
        Self { entries }
    }
}

impl Body {
    /// Where `key` is, or where it would be put.
    pub fn find(&self, key: u64) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&key, |entry| entry.0)
    }

    /// Which entry leads to `key`, the entries being separators.
    pub fn child(&self, key: u64) -> usize {
        self.entries[1..].partition_point(|entry| entry.0 <= key)
    }

    /// Takes the upper half away.
    pub fn split_off(&mut self) -> Body {
        Body { entries: self.entries.split_off(self.entries.len() / 2) }
    }
}

impl Log {
    /// An empty log for a node of `entries` entries.
    pub fn new(entries: usize) -> Self {
        Self { changes: vec![None; entries] }
    }

    /// Whether every entry of the node is overwritten, so that the node need not be read.
    pub fn is_full(&self) -> bool {
        self.changes.iter().all(Option::is_some)
    }
}

/// The entries that are left when the deleted ones are gone.
pub(super) fn alive(changes: impl Iterator<Item = Change>) -> Body {
    let entries = changes.filter_map(|change| match change {
        Change::To(key, payload) => Some((key, payload)),
        Change::Deleted(_) => None,
    });
    Body { entries: entries.collect() }
}
