//! A batch of changes that is applied atomically. It has the encoding of the journal, so that a commit needs no copy.

use crate::node::{EXTENT_BYTES, Extent, Value};

/// A sequence of changes to apply together, in order. [`crate::Store::apply`] checks the lengths of keys and values.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    count: u32,
}

const PUT: u8 = 1;
const PUT_EXTENT: u8 = 2;
const DELETE: u8 = 3;

/// The bytes of a change before its key: kind, key length, value length.
const CHANGE_BYTES: usize = 1 + 4 + 4;

/// One change of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change<'a> {
    pub key: &'a [u8],
    /// [`Value::Deleted`] for a deletion.
    pub value: Value<'a>,
}

impl Batch {
    /// Creates an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an insert or update of `key`.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> &mut Self {
        self.push(PUT, key, value);
        self
    }

    /// Adds a deletion of `key`.
    pub fn delete(&mut self, key: &[u8]) -> &mut Self {
        self.push(DELETE, key, &[]);
        self
    }

    /// Appends a change.
    pub(crate) fn change(&mut self, Change { key, value }: Change<'_>) {
        match value {
            Value::Inline(value) => _ = self.put(key, value),
            Value::Extent(extent) => self.put_extent(key, extent),
            Value::Deleted => _ = self.delete(key),
        }
    }

    pub(crate) fn put_extent(&mut self, key: &[u8], extent: Extent) {
        self.push(PUT_EXTENT, key, &extent.to_bytes());
    }

    fn push(&mut self, kind: u8, key: &[u8], value: &[u8]) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.count += 1;
    }

    /// The number of changes.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Removes all changes but keeps the allocated memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }

    /// Reserves memory for exactly one more change, because many such batches exist at a time.
    pub(crate) fn reserve_exact(&mut self, Change { key, value }: Change<'_>) {
        let value = match value {
            Value::Inline(value) => value.len(),
            Value::Extent(_) => EXTENT_BYTES,
            Value::Deleted => 0,
        };
        self.bytes.reserve_exact(CHANGE_BYTES + key.len() + value);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Decodes a batch.
    ///
    /// # Errors
    /// A description of the problem, to be appended to a message.
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Result<Self, String> {
        let (mut count, mut rest) = (0, &bytes[..]);
        while !rest.is_empty() {
            let (_, left) = parse(rest).ok_or("it contains a truncated change or one of an unknown kind")?;
            rest = left;
            count += 1;
        }
        Ok(Self { bytes, count })
    }

    /// Iterates over the changes in order.
    pub(crate) fn changes(&self) -> impl Iterator<Item = Change<'_>> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (change, left) = parse(rest)?;
            rest = left;
            Some(change)
        })
    }
}

/// Decodes the first change in `bytes` and returns it with the remaining bytes.
fn parse(bytes: &[u8]) -> Option<(Change<'_>, &[u8])> {
    let (head, rest) = bytes.split_at_checked(CHANGE_BYTES)?;
    let length = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes")) as usize;
    let (key, rest) = rest.split_at_checked(length(1))?;
    let (value, rest) = rest.split_at_checked(length(5))?;
    let value = match head[0] {
        PUT => Value::Inline(value),
        PUT_EXTENT => Value::Extent(Extent::from_bytes(value.try_into().ok()?)),
        DELETE if value.is_empty() => Value::Deleted,
        _ => return None,
    };
    Some((Change { key, value }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_batch_or_refused(mut bytes in prop::collection::vec(0..4u8, 0..60)) {
            let batch = Batch::from_bytes(bytes.clone());
            if let Ok(batch) = batch {
                prop_assert_eq!(batch.changes().count(), batch.len());
                bytes.push(9);
                prop_assert!(Batch::from_bytes(bytes).is_err());
            }
        }
    }

    #[test]
    fn a_batch_keeps_its_changes_in_order() {
        let mut batch = Batch::new();
        batch.put(b"a", b"1").delete(b"").put(b"", b"");
        batch.put_extent(b"big", Extent { block: 7, bytes: 9, checksum: 5 });
        let again = Batch::from_bytes(batch.bytes().to_vec()).unwrap();
        let values: Vec<_> = again.changes().map(|change| (change.key, change.value)).collect();
        let extent = Value::Extent(Extent { block: 7, bytes: 9, checksum: 5 });
        let (one, none) = (Value::Inline(b"1"), Value::Inline(b""));
        assert_eq!(values, [(&b"a"[..], one), (b"", Value::Deleted), (b"", none), (b"big", extent)]);
    }
}
