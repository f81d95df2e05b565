//! What a cache counts.
//! Not bandwidth: links and controllers count their own bytes.
//! Names as gem5 and Sniper users expect them.

use longma_sim::{Statistics, StatisticsError};

/// Why a cache is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A load.
    Load,
    /// A store or an atomic operation.
    Store,
    /// An instruction fetch.
    Fetch,
    /// A prefetch, by an instruction or by hardware.
    Prefetch,
    /// A device's read or write.
    Device,
}

impl Kind {
    const NAMES: [&str; 5] = ["load", "store", "fetch", "prefetch", "device"];

    /// True if the line must be had alone.
    #[inline]
    pub fn writes(self) -> bool {
        matches!(self, Self::Store)
    }
}

/// Counts of one cache, or of one cache on behalf of one core.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    /// Accesses by kind.
    pub accesses: [u64; 5],
    /// Misses by kind.
    pub misses: [u64; 5],
    /// Loads, stores and fetches of a line that was on its way already.
    pub merged: u64,
    /// Stores to a shared line, which had to be taken from others first.
    pub upgrades: u64,
    /// Lines given up for others.
    pub evictions: u64,
    /// Dirty lines written to the level below.
    pub write_backs: u64,
    /// Stores passed on at once by a write-through cache.
    pub write_throughs: u64,
    /// Lines taken away because another core or a device writes them.
    pub invalidations: u64,
    /// Lines taken away because an inclusive cache below gave them up.
    pub back_invalidations: u64,
    /// Lines that another core's read made shared.
    pub downgrades: u64,
    /// Misses that found no free miss register.
    pub register_waits: u64,
    /// How long they waited; unit as the cache's own clock.
    pub register_wait_time: u64,
    /// Lines the prefetcher brought in.
    pub prefetched: u64,
    /// Of those, lines asked for later.
    pub useful_prefetches: u64,
    /// Of those, lines given up or taken away before.
    pub useless_prefetches: u64,
    /// Lines that device writes put into the cache.
    pub device_fills: u64,
    /// Of those, lines that left before a core asked for them.
    pub device_leaks: u64,
    /// Lines locked.
    pub locked: u64,
    /// Lines inside a lock window for which their set had no room.
    pub lock_refusals: u64,
}

impl Counters {
    /// A miss waited for a register, if `time` is not 0.
    #[inline]
    pub fn waited_for_register(&mut self, time: u64) {
        self.register_waits += u64::from(time > 0);
        self.register_wait_time += time;
    }

    /// Counts an access.
    #[inline]
    pub fn access(&mut self, kind: Kind) {
        self.accesses[kind as usize] += 1;
    }

    /// Counts a miss.
    #[inline]
    pub fn miss(&mut self, kind: Kind) {
        self.misses[kind as usize] += 1;
    }

    /// Adds what happened under the name `of`, such as "core0.l1d". What never happens in this cache is left out.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn report(&self, of: &str, time_unit: &str, to: &mut Statistics) -> Result<(), StatisticsError> {
        for (kind, name) in Kind::NAMES.iter().enumerate() {
            if to.wants(self.accesses[kind]) {
                let (accesses, misses) = (self.accesses[kind], self.misses[kind]);
                let plural = if name.ends_with("ch") { format!("{name}es") } else { format!("{name}s") };
                to.count(&format!("{of}.{plural}"), accesses, "accesses", "accesses of this kind")?;
                let misses_name = format!("{of}.{name}_misses");
                to.count(&misses_name, misses, "accesses", "accesses of this kind that missed")?;
            }
        }
        let (accesses, misses): (u64, u64) = (self.accesses.iter().sum(), self.misses.iter().sum());
        to.count(&format!("{of}.misses"), misses, "accesses", "accesses that missed, whoever made them")?;
        to.rate(
            &format!("{of}.miss_rate"),
            misses as f64,
            accesses as f64,
            "misses/access",
            "of all accesses",
        )?;
        for (name, value, unit, description) in self.rare(time_unit) {
            if to.wants(value) {
                to.count(&format!("{of}.{name}"), value, unit, description)?;
            }
        }
        Ok(())
    }

    fn rare<'a>(&self, time_unit: &'a str) -> [(&'static str, u64, &'a str, &'static str); 17] {
        [
            ("merged", self.merged, "accesses", "accesses to a line already on its way"),
            ("upgrades", self.upgrades, "accesses", "stores to a line that others had too"),
            ("evictions", self.evictions, "lines", "lines given up for others"),
            ("write_backs", self.write_backs, "lines", "dirty lines written to the level below"),
            ("write_throughs", self.write_throughs, "accesses", "stores passed on at once"),
            ("invalidations", self.invalidations, "lines", "lines taken away by a writer"),
            (
                "back_invalidations",
                self.back_invalidations,
                "lines",
                "lines the inclusive level below gave up",
            ),
            ("downgrades", self.downgrades, "lines", "lines that a reader made shared"),
            ("mshr_waits", self.register_waits, "accesses", "misses that found no free miss register"),
            ("mshr_wait_time", self.register_wait_time, time_unit, "how long they waited together"),
            ("prefetched", self.prefetched, "lines", "lines the prefetcher brought"),
            ("useful_prefetches", self.useful_prefetches, "lines", "prefetched lines that were asked for"),
            ("useless_prefetches", self.useless_prefetches, "lines", "prefetched lines that left unused"),
            ("dca_fills", self.device_fills, "lines", "lines that device writes put here"),
            ("dca_leaks", self.device_leaks, "lines", "such lines that left before a core asked"),
            ("locked", self.locked, "lines", "lines locked"),
            ("lock_refusals", self.lock_refusals, "lines", "lines of a lock window whose set had no room"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_misses_of_a_cache_are_those_of_all_who_ask() {
        let mut counters = Counters::default();
        for kind in [Kind::Load, Kind::Device, Kind::Device, Kind::Prefetch] {
            counters.access(kind);
            counters.miss(kind);
        }
        let mut statistics = Statistics::default();
        counters.report("l2", "cycles", &mut statistics).unwrap();
        let text = statistics.to_text();
        let line = text.lines().find(|line| line.starts_with("l2.misses ")).unwrap();
        assert_eq!(line.split_whitespace().nth(1), Some("4"), "{line}");
    }
}
