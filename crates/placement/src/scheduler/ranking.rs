//! Hosts ranked for one demand, kept up to date by what changed: a decision looks at the hosts that changed since the last one like it.
//! Not the score itself (`fit`).
//! Source: Hadary et al., "Protean: VM Allocation Service at Scale" (OSDI 2020), on rules evaluated once per kind of request and machine,
//! renewed only where the inventory changed, and on picking at random among the best so that several agents seldom meet.

use super::demand::Demand;
use super::fit::MAX_SCORE;
use rustc_hash::FxHashMap;

const NOT_IN: u16 = u16::MAX;
const BUCKETS: usize = MAX_SCORE as usize + 1;

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
    /// Changes that it has seen.
    seen: u64,
    last_use: u64,
}

impl Ranking {
    fn new(hosts: usize, seen: u64) -> Self {
        Self {
            bucket: vec![NOT_IN; hosts],
            place: vec![0; hosts],
            buckets: vec![Vec::new(); BUCKETS],
            occupied: [0; BUCKETS / 64],
            seen,
            last_use: 0,
        }
    }

    /// Puts `host` into the bucket of `score`, or takes it out.
    fn put(&mut self, host: u32, score: Option<u16>) {
        let at = host as usize;
        if at >= self.bucket.len() {
            self.bucket.resize(at + 1, NOT_IN);
            self.place.resize(at + 1, 0);
        }
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

    /// What `accept` makes of the first host that it takes: best bucket first, in each from a place that `random` says.
    pub fn pick<T>(&self, random: u64, mut accept: impl FnMut(u32) -> Option<T>) -> Option<T> {
        for (word, bits) in self.occupied.iter().enumerate().rev() {
            let mut bits = *bits;
            while bits != 0 {
                let bit = 63 - bits.leading_zeros() as usize;
                bits &= !(1 << bit);
                let bucket = &self.buckets[word * 64 + bit];
                let start = (random % bucket.len() as u64) as usize;
                let found = bucket[start..].iter().chain(&bucket[..start]).find_map(|host| accept(*host));
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }

    /// The score of each host.
    #[cfg(test)]
    pub fn scores(&self) -> impl Iterator<Item = Option<u16>> + '_ {
        self.bucket.iter().map(|b| (*b != NOT_IN).then_some(*b))
    }
}

/// The rankings of the demands that were asked for last, and what changed since each was.
#[derive(Clone, Debug)]
pub(crate) struct Rankings {
    rankings: FxHashMap<Demand, Ranking>,
    /// Hosts that changed, in order; the first has the number `start`.
    log: Vec<u32>,
    start: u64,
    /// Number of the last change of each host.
    last_change: Vec<u64>,
    uses: u64,
    limit: usize,
}

impl Rankings {
    /// Keeps up to `limit` rankings.
    pub fn new(limit: usize) -> Self {
        Self {
            rankings: FxHashMap::default(),
            log: Vec::new(),
            start: 0,
            last_change: Vec::new(),
            uses: 0,
            limit: limit.max(1),
        }
    }

    /// Notes that `host` changed.
    pub fn changed(&mut self, host: usize) {
        if host >= self.last_change.len() {
            self.last_change.resize(host + 1, 0);
        }
        // A ranking that is so far behind is as well made anew.
        if self.log.len() > 2 * self.last_change.len() + 4096 {
            let half = self.log.len() / 2;
            self.log.drain(..half);
            self.start += half as u64;
        }
        self.last_change[host] = self.start + self.log.len() as u64;
        self.log.push(host as u32);
    }

    /// The ranking for `demand`, up to date. `score` is asked for hosts that changed.
    pub fn current(
        &mut self,
        demand: &Demand,
        hosts: usize,
        score: impl Fn(usize) -> Option<u16>,
    ) -> &Ranking {
        self.uses += 1;
        let end = self.start + self.log.len() as u64;
        if !self.rankings.contains_key(demand) && self.rankings.len() >= self.limit {
            let oldest = self.rankings.iter().min_by_key(|(_, r)| r.last_use).map(|(d, _)| d.clone());
            if let Some(oldest) = oldest {
                self.rankings.remove(&oldest);
            }
        }
        let fresh = |seen: u64| {
            let mut ranking = Ranking::new(hosts, seen);
            (0..hosts).for_each(|host| ranking.put(host as u32, score(host)));
            ranking
        };
        let ranking = self.rankings.entry(demand.clone()).or_insert_with(|| fresh(end));
        if ranking.seen < self.start {
            *ranking = fresh(end);
        }
        for (number, host) in (ranking.seen..end).zip(&self.log[(ranking.seen - self.start) as usize..]) {
            // Only at its last change is a host looked at.
            if self.last_change[*host as usize] == number {
                ranking.put(*host, score(*host as usize));
            }
        }
        ranking.seen = end;
        ranking.last_use = self.uses;
        ranking
    }
}
