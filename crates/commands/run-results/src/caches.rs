//! Accesses and misses of the caches of a run, summed by kind of cache.

use std::collections::BTreeMap;

use longma_sim::{Statistics, Value};

/// Accesses to one kind of cache, summed over all cores, and their misses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheAccesses {
    /// All accesses.
    pub all: u64,
    /// Accesses that missed.
    pub missed: u64,
    /// Accesses that missed: loads, stores, fetches.
    pub missed_by_kind: [u64; 3],
}

/// The access types that have separate columns, as named in the statistics.
const KINDS: [&str; 3] = ["load", "store", "fetch"];

impl CacheAccesses {
    /// Adds the statistic called `name` if it counts accesses or misses.
    fn add(&mut self, figure: &str, count: u64) {
        for (index, kind) in KINDS.iter().enumerate() {
            match figure.strip_prefix(kind) {
                Some("s" | "es") => self.all += count,
                Some("_misses") => {
                    self.missed += count;
                    self.missed_by_kind[index] += count;
                }
                _ => {}
            }
        }
    }
}

fn counts(statistics: &Statistics) -> impl Iterator<Item = (&str, &str, u64)> {
    statistics.iter().filter_map(|(name, statistic)| {
        let Value::Counter(count) = &statistic.value else { return None };
        let (part, figure) = name.rsplit_once('.')?;
        Some((part, figure, count.value()))
    })
}

/// Accesses by cache name, such as `l2`; the caches of all cores, clusters and nodes are summed.
pub fn caches(statistics: &Statistics) -> BTreeMap<&str, CacheAccesses> {
    let mut caches: BTreeMap<&str, CacheAccesses> = BTreeMap::new();
    for (part, figure, count) in counts(statistics) {
        // The shared caches of nodes or clusters are named `l3-0`, `l3-1`, ...
        let cache = part.rsplit('.').next().unwrap_or(part).split('-').next().unwrap_or(part);
        let is_cache = cache.starts_with('l') && cache[1..].starts_with(|c: char| c.is_ascii_digit());
        if is_cache {
            caches.entry(cache).or_default().add(figure, count);
        }
    }
    caches.retain(|_, accesses| accesses.all > 0);
    caches
}

/// Accesses to the single cache whose statistics are named `part`, such as `core0.l1d` or `l3-1`; `None` if there were
/// none.
pub fn cache(statistics: &Statistics, part: &str) -> Option<CacheAccesses> {
    let mut accesses = CacheAccesses::default();
    for figure in ["loads", "stores", "fetches", "load_misses", "store_misses", "fetch_misses"] {
        if let Some(Value::Counter(count)) =
            statistics.get(&format!("{part}.{figure}")).map(|found| &found.value)
        {
            accesses.add(figure, count.value());
        }
    }
    (accesses.all > 0).then_some(accesses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_of_all_cores_are_summed_and_those_of_one_cache_are_found() {
        let mut statistics = Statistics::default();
        let counts = [
            ("core0.l2.loads", 10),
            ("core0.l2.load_misses", 4),
            ("core1.l2.fetches", 6),
            ("core1.l2.fetch_misses", 1),
            ("l3-0.loads", 3),
            ("l3-1.stores", 2),
            ("l3-1.store_misses", 2),
            ("l3-1.bank0.loads", 100),
            ("lookups.loads", 100),
        ];
        for (name, count) in counts {
            statistics.count(name, count, "accesses", "").unwrap();
        }
        let sums = caches(&statistics);
        assert_eq!(sums.keys().copied().collect::<Vec<_>>(), ["l2", "l3"]);
        assert_eq!(sums["l2"], CacheAccesses { all: 16, missed: 5, missed_by_kind: [4, 0, 1] });
        let last = cache(&statistics, "l3-1").unwrap();
        assert_eq!(last, CacheAccesses { all: 2, missed: 2, missed_by_kind: [0, 2, 0] });
        assert_eq!(cache(&statistics, "l3"), None);
    }
}
