//! The keys of an inner node in memory. The keys are packed, and the first eight bytes of each are kept separately as
//! an integer, which decides most comparisons.
//!
//! Source: key heads as in Graefe, "Modern B-Tree Techniques", 2011, section 3.

/// Keys in ascending order. The first key acts as minus infinity whatever its bytes are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    heads: Vec<u64>,
    /// The end offset of each key in `bytes`.
    ends: Vec<u32>,
    bytes: Vec<u8>,
}

/// The first eight bytes as a big-endian integer, padded with zeros, so that integers compare like keys.
fn head(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let mut first = [0; 8];
            first[..key.len()].copy_from_slice(key);
            u64::from_be_bytes(first)
        }
    }
}

impl Keys {
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// The address of the key that a search compares first.
    pub fn first_probe(&self) -> *const u8 {
        self.heads.get(self.heads.len() / 2).map_or(std::ptr::null(), |head| std::ptr::from_ref(head).cast())
    }

    /// The total length of all keys, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The memory that the keys take, bytes.
    pub fn memory(&self) -> usize {
        8 * self.heads.capacity() + 4 * self.ends.capacity() + self.bytes.capacity()
    }

    fn start(&self, index: usize) -> usize {
        index.checked_sub(1).map_or(0, |before| self.ends[before] as usize)
    }

    pub fn get(&self, index: usize) -> &[u8] {
        &self.bytes[self.start(index)..self.ends[index] as usize]
    }

    /// The index of the child whose key range contains `key`.
    pub fn child(&self, key: &[u8]) -> usize {
        let wanted = head(key);
        let heads = &self.heads[1..];
        let mut at = heads.partition_point(|&head| head < wanted);
        while at < heads.len() && heads[at] == wanted && self.get(at + 1) <= key {
            at += 1;
        }
        at
    }

    pub fn insert(&mut self, index: usize, key: &[u8]) {
        let at = self.start(index);
        self.heads.insert(index, head(key));
        self.bytes.splice(at..at, key.iter().copied());
        self.ends.insert(index, at as u32);
        for end in &mut self.ends[index..] {
            *end += key.len() as u32;
        }
    }

    pub fn push(&mut self, key: &[u8]) {
        self.insert(self.len(), key);
    }

    pub fn remove(&mut self, index: usize) {
        let range = self.start(index)..self.ends[index] as usize;
        let bytes = range.len() as u32;
        self.bytes.drain(range);
        self.heads.remove(index);
        self.ends.remove(index);
        for end in &mut self.ends[index..] {
            *end -= bytes;
        }
    }

    pub fn replace(&mut self, index: usize, key: &[u8]) {
        self.remove(index);
        self.insert(index, key);
    }

    /// Removes the keys from `index` on and returns them.
    pub fn split_off(&mut self, index: usize) -> Keys {
        let mut right = Keys::default();
        for moved in index..self.len() {
            right.push(self.get(moved));
        }
        self.bytes.truncate(self.start(index));
        self.heads.truncate(index);
        self.ends.truncate(index);
        right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_are_found_as_in_a_sorted_list(
            keys in prop::collection::btree_set(prop::collection::vec(0..2u8, 0..12), 1..40),
            wanted in prop::collection::vec(prop::collection::vec(0..2u8, 0..12), 20),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut list: Vec<_> = keys.into_iter().collect();
            let mut keys = Keys::default();
            // Insert alternately from both ends towards the middle.
            let mut middle = 0;
            for (turn, key) in list.iter().take(list.len() / 2).zip(list.iter().rev()).enumerate() {
                keys.insert(turn, key.0);
                keys.insert(turn + 1, key.1);
                middle = turn + 1;
            }
            if list.len() % 2 == 1 {
                keys.insert(middle, &list[middle]);
            }
            let same = |keys: &Keys, list: &[Vec<u8>]| (0..keys.len()).map(|i| keys.get(i)).eq(list.iter().map(|key| &key[..]));
            prop_assert!(same(&keys, &list));
            for key in &wanted {
                prop_assert_eq!(keys.child(key), list[1..].partition_point(|own| own <= key));
            }
            let at = cut.index(list.len());
            let right = keys.split_off(at);
            prop_assert!(same(&right, &list.split_off(at)) && same(&keys, &list));
            prop_assert_eq!(keys.bytes(), list.iter().map(Vec::len).sum::<usize>());
        }
    }
}
