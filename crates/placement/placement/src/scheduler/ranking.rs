//! Cached rankings of hosts by their score for a demand. They are updated lazily: a decision reevaluates the most
//! recently changed hosts and outdated hosts that it encounters.
//!
//! Source: Hadary et al., "Protean: VM Allocation Service at Scale" (OSDI 2020): rules are evaluated once per kind of
//! request and machine and reevaluated only where the inventory changed; a random choice among the best hosts keeps
//! concurrent agents from colliding.

use super::demand::Demand;
use super::fit::MAX_SCORE;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

const UNRANKED: u16 = u16::MAX;
const BUCKETS: usize = MAX_SCORE as usize + 1;
/// Number of most recently changed hosts that every decision reevaluates.
const MAX_RECENT: usize = 32;
/// The largest fleet, in hosts, for which every decision reevaluates all changed hosts.
const SMALL_FLEET: usize = 256;
/// Maximum number of outdated hosts that one decision reevaluates.
const MAX_STALE: u32 = 64;
/// Number of fitting hosts to find before choosing the best of them, if none of the known ones fits any more.
const ENOUGH_FITTING: usize = 16;

/// Hosts in buckets by score.
#[derive(Clone, Debug)]
pub(crate) struct Ranking {
    /// Bucket of each host.
    bucket: Vec<u16>,
    /// Index of each host within its bucket.
    place: Vec<u32>,
    buckets: Vec<Vec<u32>>,
    /// Bit set of the nonempty buckets.
    occupied: [u64; BUCKETS / 64],
    /// For each host, the number of the last change that is reflected here.
    seen: Vec<u64>,
    last_use: u64,
    is_new: bool,
}

impl Ranking {
    fn new() -> Self {
        Self {
            bucket: Vec::new(),
            place: Vec::new(),
            seen: Vec::new(),
            buckets: vec![Vec::new(); BUCKETS],
            occupied: [0; BUCKETS / 64],
            last_use: 0,
            is_new: true,
        }
    }

    fn resize(&mut self, hosts: usize) {
        self.bucket.resize(hosts, UNRANKED);
        self.place.resize(hosts, 0);
        self.seen.resize(hosts, 0);
    }

    /// Moves `host` to the bucket of `score`, or removes it.
    fn put(&mut self, host: u32, score: Option<u16>) {
        let at = host as usize;
        let (old, new) = (self.bucket[at], score.unwrap_or(UNRANKED));
        if old == new {
            return;
        }
        if old != UNRANKED {
            let bucket = &mut self.buckets[usize::from(old)];
            let place = self.place[at] as usize;
            bucket.swap_remove(place);
            if let Some(moved) = bucket.get(place) {
                self.place[*moved as usize] = place as u32;
            }
            if bucket.is_empty() {
                self.occupied[usize::from(old) / 64] &= !(1 << (old % 64));
            }
        }
        self.bucket[at] = new;
        if new != UNRANKED {
            let bucket = &mut self.buckets[usize::from(new)];
            self.place[at] = bucket.len() as u32;
            bucket.push(host);
            self.occupied[usize::from(new) / 64] |= 1 << (new % 64);
        }
    }

    /// Returns the first result of `accept`. Visits the best bucket first and starts in each bucket at a random
    /// position. Reevaluates up to `MAX_STALE` outdated hosts on the way; after that, takes the first host that still
    /// fits.
    fn pick<T>(
        &mut self,
        random: u64,
        changes: &[u64],
        score: &impl Fn(usize) -> Option<u16>,
        accept: &mut impl FnMut(u32) -> Option<T>,
    ) -> Option<T> {
        let mut stale = 0;
        for word in (0..self.occupied.len()).rev() {
            let mut below = u64::MAX;
            while self.occupied[word] & below != 0 {
                let bit = 63 - (self.occupied[word] & below).leading_zeros() as usize;
                below = (1 << bit) - 1;
                let bucket = word * 64 + bit;
                let mut turn = 0;
                while turn < self.buckets[bucket].len() {
                    let hosts = &self.buckets[bucket];
                    let host = hosts[((random % hosts.len() as u64) as usize + turn) % hosts.len()];
                    let at = host as usize;
                    if self.seen[at] < changes[at] {
                        stale += 1;
                        let new = score(at);
                        self.put(host, new);
                        self.seen[at] = changes[at];
                        let better = new.is_some_and(|n| usize::from(n) > bucket || stale > MAX_STALE);
                        if better && let Some(found) = accept(host) {
                            return Some(found);
                        }
                        if self.bucket[at] != bucket as u16 {
                            // The host has moved to another bucket, and another host took its position.
                            continue;
                        }
                    }
                    if let Some(found) = accept(host) {
                        return Some(found);
                    }
                    turn += 1;
                }
            }
        }
        None
    }

    /// Reevaluates changed hosts, from a random one on, until `enough` of them fit.
    fn reevaluate(
        &mut self,
        random: u64,
        enough: usize,
        changes: &[u64],
        score: &impl Fn(usize) -> Option<u16>,
    ) {
        let start = random as usize % changes.len().max(1);
        let mut found = 0;
        for at in (start..changes.len()).chain(0..start) {
            if self.seen[at] < changes[at] {
                let new = score(at);
                self.put(at as u32, new);
                self.seen[at] = changes[at];
                found += usize::from(new.is_some());
                if found == enough {
                    return;
                }
            }
        }
    }
}

/// The rankings of the most recently used demands, and the changes to apply.
#[derive(Clone, Debug)]
pub(crate) struct Rankings {
    rankings: FxHashMap<Demand, Ranking>,
    /// Most recently changed hosts, oldest first.
    log: VecDeque<u32>,
    /// Number of each host's last change. The first change has number 1.
    changes: Vec<u64>,
    /// Number of changes so far.
    count: u64,
    uses: u64,
    limit: usize,
}

impl Rankings {
    /// Creates a cache of up to `limit` rankings.
    pub fn new(limit: usize) -> Self {
        Self {
            rankings: FxHashMap::default(),
            log: VecDeque::new(),
            changes: Vec::new(),
            count: 0,
            uses: 0,
            limit: limit.max(1),
        }
    }

    /// Records that `host` changed.
    pub fn changed(&mut self, host: usize) {
        if host >= self.changes.len() {
            self.changes.resize(host + 1, 0);
        }
        self.count += 1;
        self.changes[host] = self.count;
        if self.log.len() == MAX_RECENT {
            self.log.pop_front();
        }
        self.log.push_back(host as u32);
    }

    fn ranking(&mut self, demand: &Demand, score: &impl Fn(usize) -> Option<u16>) -> (&mut Ranking, &[u64]) {
        self.uses += 1;
        if !self.rankings.contains_key(demand) && self.rankings.len() >= self.limit {
            let oldest = self.rankings.iter().min_by_key(|(_, r)| r.last_use).map(|(d, _)| d.clone());
            if let Some(oldest) = oldest {
                self.rankings.remove(&oldest);
            }
        }
        let ranking = self.rankings.entry(demand.clone()).or_insert_with(Ranking::new);
        ranking.last_use = self.uses;
        ranking.resize(self.changes.len());
        if ranking.is_new {
            ranking.is_new = false;
            ranking.reevaluate(0, usize::MAX, &self.changes, score);
        }
        (ranking, &self.changes)
    }

    /// Returns the result of `accept` for a good host. Returns `None` only if it accepts no host that fits.
    pub fn pick<T>(
        &mut self,
        demand: &Demand,
        random: u64,
        score: impl Fn(usize) -> Option<u16>,
        mut accept: impl FnMut(u32) -> Option<T>,
    ) -> Option<T> {
        let recent = std::mem::take(&mut self.log);
        let (ranking, changes) = self.ranking(demand, &score);
        let mut update = |host: u32| {
            let at = host as usize;
            if ranking.seen[at] < changes[at] {
                ranking.put(host, score(at));
                ranking.seen[at] = changes[at];
            }
        };
        // A recently changed host often has just gained free resources and may be the best.
        match changes.len() {
            ..=SMALL_FLEET => (0..changes.len() as u32).for_each(&mut update),
            _ => recent.iter().copied().for_each(&mut update),
        }
        let mut found = ranking.pick(random, changes, &score, &mut accept);
        // If none of the known hosts fits any more, find a few that do and take the best. Search all hosts as a last
        // resort.
        for enough in [ENOUGH_FITTING, usize::MAX] {
            if found.is_none() {
                ranking.reevaluate(random, enough, changes, &score);
                found = ranking.pick(random, changes, &score, &mut accept);
            }
        }
        self.log = recent;
        found
    }

    /// Like [`Rankings::pick`], but considers only hosts already known to fit.
    pub fn pick_known<T>(
        &mut self,
        demand: &Demand,
        random: u64,
        score: impl Fn(usize) -> Option<u16>,
        mut accept: impl FnMut(u32) -> Option<T>,
    ) -> Option<T> {
        let (ranking, changes) = self.ranking(demand, &score);
        ranking.pick(random, changes, &score, &mut accept)
    }

    /// Up-to-date scores of all hosts for `demand`.
    #[cfg(test)]
    pub fn scores(&mut self, demand: &Demand, score: impl Fn(usize) -> Option<u16>) -> Vec<Option<u16>> {
        let (ranking, changes) = self.ranking(demand, &score);
        ranking.reevaluate(0, usize::MAX, changes, &score);
        ranking.bucket.iter().map(|b| (*b != UNRANKED).then_some(*b)).collect()
    }
}
