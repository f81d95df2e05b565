//! The cursors of SCAN. Clients expect numbers, but a position in the map is a key, so the server remembers the key for
//! each of the newest cursors. Cursors start at a random number, so that cursors of an earlier server process are
//! invalid.

use longma_locks::IgnorePoison;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;

/// The number of positions that are remembered.
const REMEMBERED: usize = 4096;

#[derive(Debug)]
struct Positions {
    last: u64,
    keys: HashMap<u64, Vec<u8>>,
    order: VecDeque<u64>,
}

/// The positions of unfinished scans.
#[derive(Debug)]
pub(crate) struct Cursors(Mutex<Positions>);

impl Default for Cursors {
    fn default() -> Self {
        // The numbers are small enough for clients that store cursors as floating-point numbers.
        let last = RandomState::new().hash_one(std::process::id()) >> 12;
        Self(Mutex::new(Positions { last, keys: HashMap::new(), order: VecDeque::new() }))
    }
}

impl Cursors {
    /// Remembers the last key that was returned, and returns a cursor for it.
    pub fn add(&self, key: Vec<u8>) -> u64 {
        let mut positions = self.0.lock().ignore_poison();
        positions.last += 1;
        let cursor = positions.last;
        positions.keys.insert(cursor, key);
        positions.order.push_back(cursor);
        if positions.order.len() > REMEMBERED
            && let Some(oldest) = positions.order.pop_front()
        {
            positions.keys.remove(&oldest);
        }
        cursor
    }

    /// The key after which a scan continues.
    pub fn get(&self, cursor: u64) -> Option<Vec<u8>> {
        self.0.lock().ignore_poison().keys.get(&cursor).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_of_an_earlier_process_is_unknown() {
        let (earlier, later) = (Cursors::default(), Cursors::default());
        let old: Vec<u64> = (0..1000).map(|_| earlier.add(b"a".to_vec())).collect();
        (0..1000).for_each(|_| assert!(later.add(b"b".to_vec()) < 1 << 53));
        assert!(old.into_iter().all(|cursor| later.get(cursor).is_none()));
    }

    #[test]
    fn the_newest_positions_are_remembered() {
        let cursors = Cursors::default();
        let first = cursors.add(b"a".to_vec());
        assert_eq!(cursors.get(first), Some(b"a".to_vec()));
        assert_eq!(cursors.get(first), Some(b"a".to_vec()), "a client may repeat a request");
        let newer: Vec<u64> = (0..REMEMBERED).map(|number| cursors.add(number.to_string().into())).collect();
        assert_eq!(cursors.get(first), None);
        assert_eq!(cursors.get(newer[0]), Some(b"0".to_vec()));
        assert!(!newer.contains(&0), "0 is the beginning and the end");
    }
}
