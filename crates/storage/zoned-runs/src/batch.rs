//! Changes that are applied together, in the encoding of the log.

use crate::codec::{Input, put_bytes, put_varint};

/// A list of puts and deletions that is applied atomically. A later change of a key replaces an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    bytes: Vec<u8>,
    changes: usize,
    has_puts: bool,
}

/// A change: a key, and its value, or `None` for a deletion.
pub(crate) type Change<'a> = (&'a [u8], Option<&'a [u8]>);

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the insertion of `key`, or the replacement of its value.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        put_bytes(&mut self.bytes, key);
        put_varint(&mut self.bytes, value.len() as u64 + 1);
        self.bytes.extend_from_slice(value);
        self.changes += 1;
        self.has_puts = true;
    }

    /// Adds the deletion of `key`. A missing key is not an error.
    pub fn delete(&mut self, key: &[u8]) {
        put_bytes(&mut self.bytes, key);
        put_varint(&mut self.bytes, 0);
        self.changes += 1;
    }

    /// The number of changes.
    pub const fn len(&self) -> usize {
        self.changes
    }

    /// Whether there are no changes.
    pub const fn is_empty(&self) -> bool {
        self.changes == 0
    }

    /// Removes all changes, but keeps the allocated memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        (self.changes, self.has_puts) = (0, false);
    }

    pub(crate) const fn has_puts(&self) -> bool {
        self.has_puts
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The changes, in order.
    pub(crate) fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        let mut input = Input(&self.bytes);
        std::iter::from_fn(move || next_change(&mut input))
    }

    /// Decodes a batch from the log. `None` if the encoding is invalid.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (mut input, mut changes, mut has_puts) = (Input(bytes), 0, false);
        while !input.0.is_empty() {
            has_puts |= next_change(&mut input)?.1.is_some();
            changes += 1;
        }
        Some(Self { bytes: bytes.to_vec(), changes, has_puts })
    }
}

fn next_change<'a>(input: &mut Input<'a>) -> Option<Change<'a>> {
    let key = input.bytes()?;
    let value = match input.length()? {
        0 => None,
        length => Some(input.take(length - 1)?),
    };
    Some((key, value))
}
