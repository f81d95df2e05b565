//! Statistics and traffic measurement of a memory system.

use super::MemorySystem;
use super::domain::Domain;
use super::path::Detail;
use super::private::{Level1, Level2, Private};
use crate::cache::{Counters, Flags, Line, Tags};
use crate::prefetch::Prefetcher;
use longma_plugin::PluginError;
use longma_sim::{Duration, Resource, Statistics, StatisticsError, Time};

/// Counts of messages between caches, directories and memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Messages {
    /// Probes of a core's caches for another core or a device.
    pub probes: u64,
    /// Probes that invalidate because of a write.
    pub invalidations: u64,
    /// Probes because an inclusive cache evicted the line.
    pub back_invalidations: u64,
    /// Probes broadcast to every core on a bus.
    pub snoops: u64,
    /// Lines supplied by another cache that held them modified.
    pub transfers: u64,
    /// Lookups in a home node's directory.
    pub home_lookups: u64,
    /// Lines read from memory.
    pub memory_reads: u64,
    /// Lines written to memory.
    pub memory_writes: u64,
    /// The lines written, and whether a device or a store wrote each of them directly, for comparison with a reference
    /// in tests.
    #[cfg(test)]
    pub written: Vec<(crate::cache::Line, bool)>,
}

/// Traffic through one component of the memory system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// The component's name in statistics.
    pub name: String,
    /// Bytes since the statistics were reset.
    pub bytes: u64,
    /// Maximum bandwidth.
    pub peak_bytes_per_second: u64,
}

impl MemorySystem {
    /// The traffic through every memory controller, then through every crossbar port and link that carried any.
    pub fn traffic(&self) -> Vec<Traffic> {
        let controllers = &self.path.controllers;
        let memory = (0..controllers.len()).map(|number| Traffic {
            name: format!("memory.controller{number}"),
            bytes: controllers.bytes(number),
            peak_bytes_per_second: {
                let timing = controllers.timing(number);
                timing.channel_bytes_per_second.saturating_mul(timing.channels.into())
            },
        });
        let channels = self.path.interconnect.channels().iter().filter(|channel| channel.bytes() > 0);
        let links = channels.map(|channel| Traffic {
            name: channel.name().into(),
            bytes: channel.bytes(),
            peak_bytes_per_second: channel.bytes_per_second(),
        });
        memory.chain(links).collect()
    }

    /// Starts to record the traffic through the components of [`traffic`](Self::traffic) in windows of `length` from
    /// `origin` on. Discards earlier records.
    pub fn watch_traffic(&mut self, origin: Time, length: Duration) {
        let origin = Time::from_ps(self.to_core_time(origin));
        self.watched().flat_map(|part| part.1).for_each(|part| part.record_windows(origin, length));
    }

    /// Returns the recorded windows that are complete at `now` and were not returned before, for all components with
    /// any traffic: the start of each window and its bytes. Later accesses with times in these windows are no longer
    /// counted.
    pub fn take_windows(&mut self, now: Time) -> Vec<(String, Vec<(Time, f64)>)> {
        let (now, lead_ps) = (Time::from_ps(self.to_core_time(now)), self.lead_ps);
        let windows = self.watched().map(|(name, parts)| {
            let mut sums: Vec<(Time, f64)> = Vec::new();
            for (index, part) in parts.into_iter().enumerate() {
                for number in 0.. {
                    let Some((begin, bytes)) = part.take_window(now) else { break };
                    match sums.get_mut(number) {
                        Some(sum) if index > 0 => sum.1 += bytes,
                        _ => sums.push((Time::from_ps(begin.ps().saturating_sub(lead_ps)), bytes)),
                    }
                }
            }
            (name, sums)
        });
        windows.collect()
    }

    /// The components of [`traffic`](Self::traffic) and their resources, with or without traffic.
    fn watched(&mut self) -> impl Iterator<Item = (String, Vec<&mut Resource>)> {
        let buses = self.path.controllers.buses().enumerate();
        let memory = buses.map(|(number, buses)| (format!("memory.controller{number}"), buses));
        let links = self.path.interconnect.channels_mut().iter_mut();
        memory.chain(links.map(|link| (link.name().to_owned(), link.lanes().iter_mut().collect())))
    }

    /// Adds all statistics: `core0.l1d...`, `l3...`, `coherence...`, and those of interconnect and memory under
    /// `interconnect` and `memory`. `elapsed` is the simulated time to which utilization refers.
    ///
    /// # Errors
    /// If a plug-in has failed, or a name is already in use.
    pub fn report(&self, statistics: &mut Statistics, elapsed: Duration) -> Result<(), StatisticsError> {
        for (number, core) in self.cores.iter().enumerate() {
            let unit = if core.fetch.is_some() { "l1d" } else { "l1" };
            for (name, level1) in [(unit, Some(&core.data)), ("l1i", core.fetch.as_ref())] {
                let Some(Level1 { counters, prefetcher, tags, .. }) = level1 else { continue };
                let name = format!("core{number}.{name}");
                report_cache(&name, "cycles", (counters, prefetcher, tags), statistics)?;
            }
            if let Some(Level2 { counters, prefetcher, tags, .. }) = &core.second {
                let name = format!("core{number}.l2");
                report_cache(&name, "cycles", (counters, prefetcher, tags), statistics)?;
            }
            core.tlbs.report(statistics, &format!("core{number}"))?;
        }
        for (number, domain) in self.domains.iter().enumerate() {
            let Some(shared) = &domain.shared else { continue };
            let name = match self.domains.len() {
                1 => format!("l{}", shared.level),
                _ => format!("l{}-{number}", shared.level),
            };
            let cache = (&shared.counters, &shared.prefetcher, &shared.tags);
            report_cache(&name, "ps", cache, statistics)?;
            if self.path.timing {
                for (bank, part) in shared.banks.iter().enumerate() {
                    part.port.report(statistics, &format!("{name}.bank{bank}"), elapsed)?;
                }
            }
        }
        self.messages.report(statistics)?;
        self.path.spaces.report(statistics, "placement")?;
        if self.path.timing {
            self.path.interconnect.report(statistics, "interconnect", elapsed)?;
            self.path.controllers.report(statistics, "memory", elapsed)?;
        }
        Ok(())
    }

    /// Whether a plug-in has failed, so that [`report`](Self::report) will fail.
    pub fn plugin_failed(&self) -> bool {
        if !self.has_plugins {
            return false;
        }
        let of = |prefetcher: &Option<Prefetcher>, tags: &Tags| failure(prefetcher, tags).is_some();
        let of_core = |core: &Private| {
            let level1 = |level1: &Level1| of(&level1.prefetcher, &level1.tags);
            level1(&core.data)
                || core.fetch.as_ref().is_some_and(level1)
                || core.second.as_ref().is_some_and(|second| of(&second.prefetcher, &second.tags))
        };
        let of_shared = |domain: &Domain| {
            domain.shared.as_ref().is_some_and(|shared| of(&shared.prefetcher, &shared.tags))
        };
        self.cores.iter().any(of_core) || self.domains.iter().any(of_shared)
    }

    /// Changes the level of detail, up to the one the system was built with. Cache warm-up needs no times.
    pub fn set_detail(&mut self, detail: Detail) {
        self.path.timing = detail == Detail::Timing;
    }

    /// Resets the statistics but not the cache contents, for the start of a region of interest.
    pub fn clear_statistics(&mut self) {
        for core in &mut self.cores {
            for l1 in core.fetch.iter_mut().chain([&mut core.data]) {
                l1.counters = cleared(&l1.prefetcher, &l1.tags);
            }
            core.second.iter_mut().for_each(|l2| l2.counters = cleared(&l2.prefetcher, &l2.tags));
            core.tlbs.clear_statistics();
        }
        for shared in self.domains.iter_mut().filter_map(|d| d.shared.as_mut()) {
            shared.counters = cleared(&shared.prefetcher, &shared.tags);
            shared.banks.iter_mut().for_each(|bank| bank.port.clear_statistics());
        }
        self.messages = Messages::default();
        self.path.interconnect.clear_statistics();
        self.path.controllers.clear_statistics();
    }
}

/// The number of prefetched lines in a cache that were not used yet.
pub(super) fn unused_prefetches(prefetcher: &Option<Prefetcher>, tags: &Tags) -> u64 {
    if prefetcher.is_none() {
        return 0;
    }
    tags.lines().filter(|(_, slot)| tags.flags(*slot).has(Flags::PREFETCHED)).count() as u64
}

/// The plug-in of a cache that has failed and why, if one has.
fn failure<'a>(
    prefetcher: &'a Option<Prefetcher>,
    tags: &'a Tags,
) -> Option<(&'static str, &'a PluginError)> {
    let failed = prefetcher.as_ref().and_then(Prefetcher::failure).map(|error| ("prefetcher", error));
    failed.or_else(|| Some(("replacement policy", tags.failure()?)))
}

/// Adds the statistics of the cache `name`.
///
/// # Errors
/// If a plug-in of the cache has failed, or a name is already in use.
fn report_cache(
    name: &str,
    time_unit: &str,
    (counters, prefetcher, tags): (&Counters, &Option<Prefetcher>, &Tags),
    to: &mut Statistics,
) -> Result<(), StatisticsError> {
    if let Some((part, error)) = failure(prefetcher, tags) {
        return Err(StatisticsError::Failed(format!("the {part} of {name} has failed: {error}")));
    }
    counters.report(name, time_unit, unused_prefetches(prefetcher, tags), to)
}

/// The counters of a cache at the start of a region of interest.
fn cleared(prefetcher: &Option<Prefetcher>, tags: &Tags) -> Counters {
    Counters { earlier_prefetches: unused_prefetches(prefetcher, tags), ..Counters::default() }
}

impl Messages {
    /// Counts a line written to memory. With `_is_new`, a device or a store that is being performed writes the line;
    /// otherwise a cache writes it back.
    pub fn write(&mut self, _line: Line, _is_new: bool) {
        self.memory_writes += 1;
        #[cfg(test)]
        self.written.push((_line, _is_new));
    }

    fn report(&self, to: &mut Statistics) -> Result<(), StatisticsError> {
        let counts = [
            (
                "coherence.probes",
                self.probes,
                "messages",
                "probes of a core's caches for another core or a device",
            ),
            (
                "coherence.invalidations",
                self.invalidations,
                "messages",
                "probes that invalidate because of a write",
            ),
            (
                "coherence.back_invalidations",
                self.back_invalidations,
                "messages",
                "probes because an inclusive cache evicted the line",
            ),
            ("coherence.snoops", self.snoops, "messages", "probes broadcast to every core on a bus"),
            (
                "coherence.transfers",
                self.transfers,
                "lines",
                "lines supplied by another cache that held them modified",
            ),
            ("coherence.home_lookups", self.home_lookups, "messages", "lookups in a home node's directory"),
            ("memory.line_reads", self.memory_reads, "lines", "lines read from memory"),
            ("memory.line_writes", self.memory_writes, "lines", "lines written to memory"),
        ];
        counts.iter().try_for_each(|(name, n, unit, what)| to.count(name, *n, unit, what))
    }
}
