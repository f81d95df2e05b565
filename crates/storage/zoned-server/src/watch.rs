//! The keys that clients watch. A watched key has a version, which each committed change increases.

use crate::request::Words;
use longma_locks::IgnorePoison;
use std::collections::HashMap;
use std::sync::Mutex;

/// A watched key.
#[derive(Debug, Default)]
struct Watched {
    clients: usize,
    version: u64,
}

/// All watched keys.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<HashMap<Vec<u8>, Watched>>);

/// The keys that one client watches, with their versions when it began to watch them.
#[derive(Debug, Default)]
pub(crate) struct WatchedKeys(HashMap<Vec<u8>, u64>);

impl WatchedKeys {
    /// The number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no key is watched.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `key` is watched.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.0.contains_key(key)
    }

    /// The keys.
    pub fn keys(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.0.keys()
    }

    /// The memory of the keys, bytes.
    pub fn bytes(&self) -> usize {
        self.0.keys().map(|key| key.len() + 2 * crate::request::WORD_BYTES).sum()
    }
}

impl Watches {
    /// Watches keys for a client. A key that the client already watches keeps its version.
    pub fn watch(&self, own: &mut WatchedKeys, keys: Words) {
        let mut all = self.0.lock().ignore_poison();
        for key in keys {
            if !own.contains(&key) {
                let watched = all.entry(key.clone()).or_default();
                watched.clients += 1;
                own.0.insert(key, watched.version);
            }
        }
    }

    /// Stops watching all keys of a client.
    pub fn unwatch(&self, own: WatchedKeys) {
        let mut all = self.0.lock().ignore_poison();
        for key in own.0.into_keys() {
            if let Some(watched) = all.get_mut(&key) {
                watched.clients -= 1;
                if watched.clients == 0 {
                    all.remove(&key);
                }
            }
        }
    }

    /// Whether none of a client's keys has been changed since the client began to watch it.
    pub fn are_unchanged(&self, own: &WatchedKeys) -> bool {
        let all = self.0.lock().ignore_poison();
        own.0.iter().all(|(key, version)| all.get(key).is_some_and(|watched| watched.version == *version))
    }

    /// Records changes of keys. Called once readers see the changes, so that a client that begins to watch a key
    /// afterwards has not read the old value.
    pub fn changed<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        let mut all = self.0.lock().ignore_poison();
        if all.is_empty() {
            return;
        }
        for key in keys {
            if let Some(watched) = all.get_mut(key) {
                watched.version += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_a_watched_key_is_noticed_once_by_each_client() {
        let (watches, mut one, mut other) =
            (Watches::default(), WatchedKeys::default(), WatchedKeys::default());
        watches.watch(&mut one, vec![b"a".to_vec(), b"b".to_vec()]);
        watches.changed([&b"c"[..]].into_iter());
        assert!(watches.are_unchanged(&one));
        watches.changed([&b"a"[..]].into_iter());
        watches.watch(&mut other, vec![b"a".to_vec()]);
        watches.watch(&mut one, vec![b"a".to_vec()]);
        assert!(!watches.are_unchanged(&one) && watches.are_unchanged(&other));
        watches.unwatch(one);
        watches.unwatch(other);
        assert!(watches.0.lock().unwrap().is_empty());
    }
}
