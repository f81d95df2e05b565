//! What the memory of a host counted, by name.
//! Not printed here.

use super::{MemorySystem, path::Detail};
use crate::cache::Line;
use longma_sim::{Duration, Resource, Statistics, StatisticsError, Time};

/// Messages between caches, directories and memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Messages {
    /// Looks into a core's caches for another's sake.
    pub probes: u64,
    /// Of these, because somebody writes the line.
    pub invalidations: u64,
    /// Looks because an inclusive cache gave a line up.
    pub back_invalidations: u64,
    /// Looks that a bus shows to every core.
    pub snoops: u64,
    /// Lines supplied by another cache because it had them newer.
    pub transfers: u64,
    /// Questions to a home node's directory.
    pub home_lookups: u64,
    /// Lines read from memory.
    pub memory_reads: u64,
    /// Lines written to memory.
    pub memory_writes: u64,
    /// Which lines those were, and whether a device wrote them: a test compares them with what should be in memory.
    #[cfg(test)]
    pub written: Vec<(crate::cache::Line, bool)>,
}

/// What went over one part of the memory system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// The part's name in statistics.
    pub name: String,
    /// Bytes since counting began.
    pub bytes: u64,
    /// What it can carry at most.
    pub peak_bytes_per_second: u64,
}

impl MemorySystem {
    /// What went over every memory controller, then over every crossbar port and link that carried something.
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

    /// Notes from now on what moves over the parts that [`traffic`](Self::traffic) names in each window of `length` from `origin` on, and
    /// forgets what was noted before.
    pub fn watch_traffic(&mut self, origin: Time, length: Duration) {
        let origin = Time::from_ps(self.by_cores(origin));
        self.watched().flat_map(|part| part.1).for_each(|part| part.watch(origin, length));
    }

    /// What moved over each watched part in the windows that are over at `now` and were not taken before, of the parts that ever moved
    /// anything: when each window began and its bytes. Whoever comes with an access of an earlier time is too late for it.
    pub fn take_windows(&mut self, now: Time) -> Vec<(String, Vec<(Time, f64)>)> {
        let (now, lead_ps) = (Time::from_ps(self.by_cores(now)), self.lead_ps);
        let windows = self.watched().map(|(name, parts)| {
            let mut sums: Vec<(Time, f64)> = Vec::new();
            for (nth, part) in parts.into_iter().enumerate() {
                for number in 0.. {
                    let Some((begin, bytes)) = part.take_window(now) else { break };
                    match sums.get_mut(number) {
                        Some(sum) if nth > 0 => sum.1 += bytes,
                        _ => sums.push((Time::from_ps(begin.ps().saturating_sub(lead_ps)), bytes)),
                    }
                }
            }
            (name, sums)
        });
        windows.collect()
    }

    /// The parts of [`traffic`](Self::traffic) that move bytes, whether they did or not.
    fn watched(&mut self) -> impl Iterator<Item = (String, Vec<&mut Resource>)> {
        let buses = self.path.controllers.buses().enumerate();
        let memory = buses.map(|(number, buses)| (format!("memory.controller{number}"), buses));
        let links = self.path.interconnect.channels_mut().iter_mut();
        memory.chain(links.map(|it| (it.name().to_owned(), it.lanes().iter_mut().collect())))
    }

    /// Adds everything that was counted: `core0.l1d...`, `l3...`, `coherence...`, and the parts of interconnect and memory below
    /// `interconnect` and `memory`. `elapsed` is the simulated time that utilisation is a part of.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn report(&self, statistics: &mut Statistics, elapsed: Duration) -> Result<(), StatisticsError> {
        for (number, core) in self.cores.iter().enumerate() {
            let unit = if core.fetch.is_some() { "l1d" } else { "l1" };
            core.data.counters.report(&format!("core{number}.{unit}"), "cycles", statistics)?;
            if let Some(fetch) = &core.fetch {
                fetch.counters.report(&format!("core{number}.l1i"), "cycles", statistics)?;
            }
            if let Some(second) = &core.second {
                second.counters.report(&format!("core{number}.l2"), "cycles", statistics)?;
            }
            core.tlbs.report(statistics, &format!("core{number}"))?;
        }
        for (number, domain) in self.domains.iter().enumerate() {
            let Some(shared) = &domain.shared else { continue };
            let name = match self.domains.len() {
                1 => format!("l{}", shared.level),
                _ => format!("l{}-{number}", shared.level),
            };
            shared.counters.report(&name, "ps", statistics)?;
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

    /// How much is modelled from now on, no more than at first: what only warms the caches needs no times.
    pub fn set_detail(&mut self, detail: Detail) {
        self.path.timing = detail == Detail::Timing;
    }

    /// Forgets what was counted, not what is cached: for the start of a region of interest.
    pub fn clear_statistics(&mut self) {
        for core in &mut self.cores {
            core.data.counters = Default::default();
            core.fetch.iter_mut().for_each(|l1| l1.counters = Default::default());
            core.second.iter_mut().for_each(|l2| l2.counters = Default::default());
            core.tlbs.clear_statistics();
        }
        for shared in self.domains.iter_mut().filter_map(|d| d.shared.as_mut()) {
            shared.counters = Default::default();
            shared.banks.iter_mut().for_each(|bank| bank.port.clear_statistics());
        }
        self.messages = Messages::default();
        self.path.interconnect.clear_statistics();
        self.path.controllers.clear_statistics();
    }
}

impl Messages {
    /// Counts a line written to memory, by a device or from a cache.
    pub fn write(&mut self, _line: Line, _by_device: bool) {
        self.memory_writes += 1;
        #[cfg(test)]
        self.written.push((_line, _by_device));
    }

    fn report(&self, to: &mut Statistics) -> Result<(), StatisticsError> {
        let counts = [
            ("coherence.probes", self.probes, "messages", "looks into a core's caches for another's sake"),
            ("coherence.invalidations", self.invalidations, "messages", "of these, because somebody writes"),
            (
                "coherence.back_invalidations",
                self.back_invalidations,
                "messages",
                "for an inclusive cache's eviction",
            ),
            ("coherence.snoops", self.snoops, "messages", "looks that a bus shows to every core"),
            ("coherence.transfers", self.transfers, "lines", "supplied by another cache that had them newer"),
            ("coherence.home_lookups", self.home_lookups, "messages", "questions to a home node's directory"),
            ("memory.line_reads", self.memory_reads, "lines", "read from memory"),
            ("memory.line_writes", self.memory_writes, "lines", "written to memory"),
        ];
        counts.iter().try_for_each(|(name, n, unit, what)| to.count(name, *n, unit, what))
    }
}
