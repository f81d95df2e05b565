//! Event counters of a cache. Statistic names follow gem5 and Sniper.

use super::Flags;
use longma_plugin::AccessKind;
use longma_sim::{Statistics, StatisticsError};

/// The type of an access to a cache.
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

impl From<Kind> for AccessKind {
    #[inline]
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Load => Self::Load,
            Kind::Store => Self::Store,
            Kind::Fetch => Self::Fetch,
            Kind::Prefetch => Self::Prefetch,
            Kind::Device => Self::Device,
        }
    }
}

impl Kind {
    const NAMES: [&str; 5] = ["load", "store", "fetch", "prefetch", "device"];

    /// Returns whether the access needs write permission for the line.
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
    /// Loads, stores and fetches that merged into a fill already in flight.
    pub merged: u64,
    /// Accesses to more than one line. Each is one access, and at most one miss.
    pub line_crossings: u64,
    /// Stores that hit a shared line and had to invalidate the other copies first.
    pub upgrades: u64,
    /// Lines evicted to make space.
    pub evictions: u64,
    /// Dirty lines written back to the level below.
    pub write_backs: u64,
    /// Stores that a write-through cache passed to the level below.
    pub write_throughs: u64,
    /// Lines invalidated by a write of another core or a device.
    pub invalidations: u64,
    /// Lines invalidated because an inclusive cache below evicted them.
    pub back_invalidations: u64,
    /// Lines downgraded to shared by another core's read.
    pub downgrades: u64,
    /// Misses that waited for a free miss register.
    pub register_waits: u64,
    /// Total time of those waits, in the cache's unit of time.
    pub register_wait_time: u64,
    /// Lines fetched by the prefetcher.
    pub prefetched: u64,
    /// Lines that the prefetcher predicted, but that were not fetched: no miss register was free, or they are past the
    /// end of a page.
    pub dropped_prefetches: u64,
    /// Prefetched lines that a demand access used.
    pub useful_prefetches: u64,
    /// Of these, lines that had not arrived when they were used.
    pub late_prefetches: u64,
    /// Prefetched lines evicted or invalidated before any use.
    pub useless_prefetches: u64,
    /// Prefetched lines that were present and not used when counting began.
    pub earlier_prefetches: u64,
    /// Lines allocated by device writes (direct cache access).
    pub device_fills: u64,
    /// Lines allocated by device writes and evicted before a core used them.
    pub device_leaks: u64,
    /// Lines locked.
    pub locked: u64,
    /// Lines in a lock window that could not be locked because their set had too few unlocked ways.
    pub lock_refusals: u64,
}

impl Counters {
    /// Records that a miss waited `time` for a miss register; 0 means that it did not wait.
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

    /// Counts the eviction of a line with `flags`.
    #[inline]
    pub fn evicted(&mut self, flags: Flags) {
        self.evictions += 1;
        self.removed(flags);
    }

    /// Records that a line with `flags` is no longer in the cache.
    #[inline]
    pub fn removed(&mut self, flags: Flags) {
        self.useless_prefetches += u64::from(flags.has(Flags::PREFETCHED));
    }

    /// Counts the first use of a prefetched line.
    #[inline]
    pub fn used_prefetch(&mut self, late: bool) {
        self.useful_prefetches += 1;
        self.late_prefetches += u64::from(late);
    }

    /// Adds the counters to the statistics under the prefix `of`, such as "core0.l1d". Omits access kinds that did not
    /// occur. `unused_prefetches` is the number of prefetched lines that are present and not used.
    ///
    /// # Errors
    /// If a name is already in use.
    pub fn report(
        &self,
        of: &str,
        time_unit: &str,
        unused_prefetches: u64,
        to: &mut Statistics,
    ) -> Result<(), StatisticsError> {
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
        to.count(&format!("{of}.misses"), misses, "accesses", "accesses of any kind that missed")?;
        to.rate(
            &format!("{of}.miss_rate"),
            misses as f64,
            accesses as f64,
            "misses/access",
            "of all accesses",
        )?;
        for (name, value, unit, description) in self.rare(time_unit, unused_prefetches) {
            if to.wants(value) {
                to.count(&format!("{of}.{name}"), value, unit, description)?;
            }
        }
        Ok(())
    }

    fn rare<'a>(
        &self,
        time_unit: &'a str,
        unused_prefetches: u64,
    ) -> [(&'static str, u64, &'a str, &'static str); 22] {
        [
            ("line_crossings", self.line_crossings, "accesses", "accesses to more than one line"),
            ("merged", self.merged, "accesses", "accesses merged into a fill in flight"),
            ("upgrades", self.upgrades, "accesses", "stores that had to invalidate other copies"),
            ("evictions", self.evictions, "lines", "lines evicted to make room"),
            ("write_backs", self.write_backs, "lines", "dirty lines written to the level below"),
            ("write_throughs", self.write_throughs, "accesses", "stores written through to the level below"),
            (
                "invalidations",
                self.invalidations,
                "lines",
                "lines invalidated by a write of another core or a device",
            ),
            (
                "back_invalidations",
                self.back_invalidations,
                "lines",
                "lines invalidated by evictions of the inclusive level below",
            ),
            ("downgrades", self.downgrades, "lines", "lines downgraded to shared by a read"),
            ("mshr_waits", self.register_waits, "accesses", "misses that waited for a miss register"),
            ("mshr_wait_time", self.register_wait_time, time_unit, "total time of these waits"),
            ("prefetched", self.prefetched, "lines", "lines fetched by the prefetcher"),
            (
                "dropped_prefetches",
                self.dropped_prefetches,
                "lines",
                "lines predicted but not fetched: no free miss register, or past the end of a page",
            ),
            (
                "earlier_prefetches",
                self.earlier_prefetches,
                "lines",
                "prefetched lines present and not used when counting began",
            ),
            (
                "useful_prefetches",
                self.useful_prefetches,
                "lines",
                "prefetched lines used by a demand access",
            ),
            ("late_prefetches", self.late_prefetches, "lines", "of these, lines used before they arrived"),
            (
                "useless_prefetches",
                self.useless_prefetches,
                "lines",
                "prefetched lines removed before any use",
            ),
            ("unused_prefetches", unused_prefetches, "lines", "prefetched lines present and not used"),
            ("dca_fills", self.device_fills, "lines", "lines allocated by device writes"),
            ("dca_leaks", self.device_leaks, "lines", "of these, lines removed before a core used them"),
            ("locked", self.locked, "lines", "lines locked"),
            (
                "lock_refusals",
                self.lock_refusals,
                "lines",
                "lines of a lock window not locked because their set was full",
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_misses_of_a_cache_include_every_kind_of_access() {
        let mut counters = Counters::default();
        for kind in [Kind::Load, Kind::Device, Kind::Device, Kind::Prefetch] {
            counters.access(kind);
            counters.miss(kind);
        }
        let mut statistics = Statistics::default();
        counters.report("l2", "cycles", 0, &mut statistics).unwrap();
        let text = statistics.to_text();
        let line = text.lines().find(|line| line.starts_with("l2.misses ")).unwrap();
        assert_eq!(line.split_whitespace().nth(1), Some("4"), "{line}");
    }
}
