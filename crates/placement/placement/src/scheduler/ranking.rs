//! Hosts ranked for one demand, kept up to date by what changed: a decision looks at the hosts that changed last and at those it comes upon.
//! Not the score itself (`fit`).
//! Source: Hadary et al., "Protean: VM Allocation Service at Scale" (OSDI 2020), on rules evaluated once per kind of request and machine,
//! renewed only where the inventory changed, and on picking at random among the best so that several agents seldom meet.

use super::demand::Demand;
use super::fit::MAX_SCORE;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

const NOT_IN: u16 = u16::MAX;
const BUCKETS: usize = MAX_SCORE as usize + 1;
/// Hosts that changed last and are ranked again at every decision.
const MOST_RECENT: usize = 32;
/// Hosts whose rank is found to be old at one decision.
const MOST_STALE: u32 = 64;
/// Hosts that must fit before the best of them is taken, where all that were known to fit no longer do.
const SOME: usize = 16;

/// Hosts in buckets by score.
#[derive(Clone, Debug)]
pub(crate) struct Ranking {
    /// Bucket of each host.
    bucket: Vec<u16>,
    /// Its place there.
    place: Vec<u32>,
    buckets: Vec<Vec<u32>>,
    /// One bit for each bucket that is not empty.
    occupied: [u64; BUCKETS / 64],
    /// Number of the last change of each host that it has seen.
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
        self.bucket.resize(hosts, NOT_IN);
        self.place.resize(hosts, 0);
        self.seen.resize(hosts, 0);
    }

    /// Puts `host` into the bucket of `score`, or takes it out.
    fn put(&mut self, host: u32, score: Option<u16>) {
        let at = host as usize;
        let (old, new) = (self.bucket[at], score.unwrap_or(NOT_IN));
        if old == new {
            return;
        }
        if old != NOT_IN {
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
        if new != NOT_IN {
            let bucket = &mut self.buckets[usize::from(new)];
            self.place[at] = bucket.len() as u32;
            bucket.push(host);
            self.occupied[usize::from(new) / 64] |= 1 << (new % 64);
        }
    }

    /// What `accept` makes of a host that it takes: best bucket first, in each from a place that `random` says. A host that changed since it
    /// was ranked is ranked again when its turn comes, up to `MOST_STALE` of them; after so many the first that still fits will do.
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
                        let better = new.is_some_and(|n| usize::from(n) > bucket || stale > MOST_STALE);
                        if better && let Some(found) = accept(host) {
                            return Some(found);
                        }
                        if self.bucket[at] != bucket as u16 {
                            // Another host has its place now.
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

    /// Ranks again the hosts that changed, from the one that `random` says, until `enough` of them fit.
    fn settle(&mut self, random: u64, enough: usize, changes: &[u64], score: &impl Fn(usize) -> Option<u16>) {
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

/// The rankings of the demands that were asked for last, and what changed.
#[derive(Clone, Debug)]
pub(crate) struct Rankings {
    rankings: FxHashMap<Demand, Ranking>,
    /// Hosts in the order in which they changed last.
    log: VecDeque<u32>,
    /// Number of the last change of each host; the first change of all is 1.
    changes: Vec<u64>,
    /// Changes so far.
    count: u64,
    uses: u64,
    limit: usize,
}

impl Rankings {
    /// Keeps up to `limit` rankings.
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

    /// Notes that `host` changed.
    pub fn changed(&mut self, host: usize) {
        if host >= self.changes.len() {
            self.changes.resize(host + 1, 0);
        }
        self.count += 1;
        self.changes[host] = self.count;
        if self.log.len() == MOST_RECENT {
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
            ranking.settle(0, usize::MAX, &self.changes, score);
        }
        (ranking, &self.changes)
    }

    /// What `accept` makes of a good host for `demand`; none only if it takes no host that has a score now.
    pub fn pick<T>(
        &mut self,
        demand: &Demand,
        random: u64,
        score: impl Fn(usize) -> Option<u16>,
        mut accept: impl FnMut(u32) -> Option<T>,
    ) -> Option<T> {
        let recent = std::mem::take(&mut self.log);
        let (ranking, changes) = self.ranking(demand, &score);
        // What changed last was probably freed last: it may be the best now.
        for host in &recent {
            let at = *host as usize;
            if ranking.seen[at] < changes[at] {
                ranking.put(*host, score(at));
                ranking.seen[at] = changes[at];
            }
        }
        let mut found = ranking.pick(random, changes, &score, &mut accept);
        // Where nobody fits any more of those that once did, the best of a few that now do is good enough; all are looked at if need be.
        for enough in [SOME, usize::MAX] {
            if found.is_none() {
                ranking.settle(random, enough, changes, &score);
                found = ranking.pick(random, changes, &score, &mut accept);
            }
        }
        self.log = recent;
        found
    }

    /// As [`Rankings::pick`], but among the hosts that are known to fit only.
    pub fn glance<T>(
        &mut self,
        demand: &Demand,
        random: u64,
        score: impl Fn(usize) -> Option<u16>,
        mut accept: impl FnMut(u32) -> Option<T>,
    ) -> Option<T> {
        let (ranking, changes) = self.ranking(demand, &score);
        ranking.pick(random, changes, &score, &mut accept)
    }

    /// The scores for `demand`, all up to date.
    #[cfg(test)]
    pub fn scores(&mut self, demand: &Demand, score: impl Fn(usize) -> Option<u16>) -> Vec<Option<u16>> {
        let (ranking, changes) = self.ranking(demand, &score);
        ranking.settle(0, usize::MAX, changes, &score);
        ranking.bucket.iter().map(|b| (*b != NOT_IN).then_some(*b)).collect()
    }
}
