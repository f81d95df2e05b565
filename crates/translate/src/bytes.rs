//! Parts of bytes that have been read in one piece: they are not copied.

use std::ops::{Deref, Range};
use std::sync::Arc;

/// Bytes that several have.
#[derive(Clone)]
pub struct Bytes {
    all: Arc<Vec<u8>>,
    part: Range<usize>,
}

impl Bytes {
    /// Part of these; `None` if there is no such part.
    pub fn part(&self, part: Range<usize>) -> Option<Self> {
        let part = self.part.start.checked_add(part.start)?..self.part.start.checked_add(part.end)?;
        let is_there = part.start <= part.end && part.end <= self.part.end;
        is_there.then(|| Self { all: self.all.clone(), part })
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self { part: 0..bytes.len(), all: Arc::new(bytes) }
    }
}

impl Default for Bytes {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.all[self.part.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_part_is_where_it_is_in_the_whole_or_nowhere() {
        let all = Bytes::from(vec![0, 1, 2, 3, 4, 5]);
        let part = all.part(1..5).unwrap();
        assert_eq!((&*part, &*part.part(1..3).unwrap()), (&[1, 2, 3, 4][..], &[2, 3][..]));
        assert!(part.part(0..5).is_none() && part.part(usize::MAX..usize::MAX).is_none());
        #[expect(clippy::reversed_empty_ranges, reason = "it comes from a file")]
        let reversed = part.part(3..1);
        assert!(reversed.is_none());
    }
}
