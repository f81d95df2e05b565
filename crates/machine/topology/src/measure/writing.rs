//! Writes the results of a measurement into the description of the measured host.

use super::{Bandwidths, MeasurementResults};
use crate::parts::*;
use crate::read::{Cited, Map, Matrix, SourcePositions};
use crate::units::{Bandwidth, BitRate, Cycles, Frequency, Latency, Time};

impl MeasurementResults {
    /// Writes the results into the description of the measured host.
    pub fn write_into(&self, file: &mut MachineFile) {
        file.sources.insert("measured".into(), self.source());
        self.write_core(file);
        self.write_caches(file);
        self.write_memories(file);
        self.write_host(file);
        let cited = crate::check::cited(file);
        file.sources.retain(|key, _| cited.contains(key));
    }

    fn source(&self) -> Source {
        let pages = if self.huge_pages { "with" } else { "without" };
        let reasoning = format!(
            "Clock: a chain of one-cycle operations. Misprediction: a branch on random bits compared with one on zeros, without the load and \
             the comparison before it. Latencies: a random pointer chase ({pages} huge pages), minimum of many short runs, \
             over {} MiB for memory; latencies of a core's own caches are in cycles of the measured clock. Bandwidths: bytes as \
             STREAM counts them. Core to core: a cache line passed between two pinned threads. {}",
            self.memory_bytes >> 20,
            self.notes.join("; ")
        );
        Source {
            kind: SourceKind::Measurement,
            title: "longma machine measure on this host".into(),
            place: None,
            url: None,
            reasoning: Some(reasoning.trim().into()),
            marks: SourcePositions::default(),
        }
    }

    fn write_core(&self, file: &mut MachineFile) {
        let Some(core) = file.cores.get_mut(&self.core) else { return };
        core.clock = self.written_clock();
        core.source_of.insert("clock".into(), Cited::one("measured"));
        let clock = Frequency::new(self.clock_hz);
        let load = self.caches.first().map_or(0, |c| clock.measured_cycles(c.latency_ps));
        // The penalty excludes the load and the comparison: a branch whose operands are ready when it is fetched
        // does not wait for them.
        let penalty = clock.measured_cycles(self.mispredict_ps).saturating_sub(load + 1);
        if let Some(branch) = core.branch.as_mut().filter(|_| penalty >= MIN_PIPELINE) {
            branch.mispredict = Some(Latency::Cycles(Cycles::new(penalty)));
            cite_measured(&mut branch.source);
        }
        let last = core.tlbs.iter().filter(|t| t.kind != TlbKind::Instruction).map(|t| t.level).max();
        if let Some(walk) = self.walk {
            for tlb in core.tlbs.iter_mut().filter(|t| Some(t.level) == last) {
                tlb.miss = Some(Latency::Time(Time::new(walk.walk_ps)));
                cite_measured(&mut tlb.source);
            }
        }
    }

    fn write_caches(&self, file: &mut MachineFile) {
        let names: Vec<String> =
            file.cores.get(&self.core).into_iter().flat_map(|c| &c.caches).map(|n| n.to_string()).collect();
        let clock = Frequency::new(self.clock_hz);
        // Disturbances only lengthen a measurement, so a latency above that of the next level is reduced to the latter,
        // but not below one cycle.
        let cycle_ps = self.written_clock().ps_of_cycles(1);
        let max_last_level_ps = |ps: u64| ps.saturating_sub(DRAM_PS).max(ps / 4).max(cycle_ps);
        let mut limit_ps = self.local_memory_ps().map_or(u64::MAX, max_last_level_ps);
        for measured in self.caches.iter().rev() {
            let Some(cache) = file.caches.get_mut(&measured.cache) else { continue };
            let ps = measured.latency_ps.min(limit_ps);
            // A core's private caches run at its clock, so their latencies are whole cycles. The latency of a shared
            // cache is a time.
            let latency = match names.contains(&measured.cache) {
                true => {
                    let cycles = clock.measured_cycles(ps);
                    let exceeds = self.written_clock().ps_of_cycles(cycles) > limit_ps;
                    Latency::Cycles(Cycles::new(cycles - u64::from(exceeds && cycles > 1)))
                }
                false => Latency::Time(Time::new(ps)),
            };
            limit_ps = latency.ps(self.written_clock());
            cache.latency = Some(latency);
            cache.source_of.insert("latency".into(), Cited::one("measured"));
            self.limit_instruction_caches(file, &measured.cache, latency);
        }
    }

    /// Limits the latency of the instruction caches whose next level is `cache` to the measured `latency` of `cache`.
    /// The latencies of instruction caches are not measured but come from other sources.
    fn limit_instruction_caches(&self, file: &mut MachineFile, cache: &str, latency: Latency) {
        let clock = self.written_clock();
        let caches =
            file.caches.values_mut().filter(|c| c.kind == CacheKind::Instruction && &*c.next == cache);
        for cache in caches.filter(|c| c.latency.is_some_and(|own| own.ps(clock) > latency.ps(clock))) {
            cache.latency = Some(latency);
            cache.source_of.insert("latency".into(), Cited::one("measured"));
        }
    }

    /// The clock as written into the file: whole MHz, which is finer than the accuracy of the measurement.
    fn written_clock(&self) -> Frequency {
        Frequency::new(self.clock_hz / 1_000_000 * 1_000_000)
    }

    /// The shortest latency from a node to its own memory, picoseconds.
    fn local_memory_ps(&self) -> Option<u64> {
        self.memory_ps.iter().enumerate().filter_map(|(node, row)| row.get(node)).min().copied()
    }

    fn write_memories(&self, file: &mut MachineFile) {
        // The fastest kernel gives a lower bound for the bandwidth of the controllers.
        let fastest = self.bandwidths.iter().map(|b| b.read.max(b.copy).max(b.triad)).max();
        for memory in file.memories.values_mut() {
            memory.latency = self.local_memory_ps().map(|ps| Latency::Time(Time::new(ps)));
            // A rate above the peak is due to a large cache.
            let peak = memory.peak_bytes_per_second().unwrap_or(u64::MAX);
            memory.bandwidth = fastest.map(|b| Bandwidth::Rate(rate(b.min(peak))));
            memory.source_of.insert("latency".into(), Cited::one("measured"));
            memory.source_of.insert("bandwidth".into(), Cited::one("measured"));
        }
    }

    fn write_host(&self, file: &mut MachineFile) {
        let Some(host) = file.hosts.first_mut() else { return };
        let with = |t: &Bandwidths| MeasuredBandwidth {
            threads: t.threads,
            read: rate(t.read),
            copy: rate(t.copy),
            triad: rate(t.triad),
            source: Cited::one("measured"),
            marks: SourcePositions::default(),
        };
        host.bandwidths = self.bandwidths.iter().map(with).collect();
        if self.cpus.len() > 1 {
            let rows =
                self.core_to_core_ps.iter().map(|r| r.iter().map(|ps| Time::new(*ps)).collect()).collect();
            let source = Cited::one("measured");
            host.core_to_core = Some(CoreToCore {
                cpus: self.cpus.clone(),
                latency: Matrix::new(rows),
                source,
                marks: SourcePositions::default(),
            });
        }
        let local_is_nearest =
            self.memory_ps.iter().enumerate().all(|(n, row)| row.iter().all(|ps| *ps >= row[n]));
        let nodes: usize =
            host.chips.iter().filter_map(|c| file.chips.get(&**c)).map(|c| c.nodes.len()).sum();
        // On a busy host, remote memory may seem nearer than local memory. The table would mislead, so it is omitted.
        if nodes > 1 && self.memory_ps.len() == nodes && local_is_nearest {
            let rows = self.memory_ps.iter().map(|r| r.iter().map(|ps| Time::new(*ps)).collect()).collect();
            let slit = host.distances.take();
            let source_of = if slit.is_some() {
                Map::from([("slit".to_string(), Cited::one("sysfs"))])
            } else {
                Map::new()
            };
            host.distances = Some(Distances {
                latency: Some(Matrix::new(rows)),
                slit: slit.and_then(|d| d.slit),
                bandwidth: None,
                symmetric: false,
                source: Cited::one("measured"),
                source_of,
                marks: SourcePositions::default(),
            });
        }
    }
}

/// The time of a read in the DRAM itself, rounded up: CL, tRCD and tRP are 13 to 15 ns each in JEDEC's tables of DDR3
/// to DDR5, and refreshes add to them. The last-level cache is faster than memory by at least this time.
const DRAM_PS: u64 = 60_000;

/// Stages between fetch and branch execution in the shortest pipelines: a smaller result is not a misprediction
/// penalty.
const MIN_PIPELINE: u64 = 3;

fn cite_measured(source: &mut Cited) {
    if !source.0.iter().any(|name| &**name == "measured") {
        source.0.extend(Cited::one("measured").0);
    }
}

/// A rate in whole MB/s, which is finer than the accuracy of the measurement.
fn rate(bytes_per_second: u64) -> BitRate {
    BitRate::new(bytes_per_second / 1_000_000 * 8_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::{Sysfs, discover};
    use crate::measure::{CacheLatency, Walk};
    use proptest::prelude::*;

    /// Plausible results of an idle host at 3 GHz.
    fn measured(file: &MachineFile) -> MeasurementResults {
        let caches = ["l1d", "l2", "l3"].into_iter().zip([1700u64, 5050, 60_000]);
        let caches = caches.filter(|(name, _)| file.caches.contains_key(*name));
        MeasurementResults {
            core: file.cores.keys().next().cloned().unwrap_or_default(),
            clock_hz: 3_000_400_000,
            mispredict_ps: 8_000,
            caches: caches
                .map(|(name, latency_ps)| CacheLatency { cache: name.into(), bytes: 4096, latency_ps })
                .collect(),
            memory_bytes: 1 << 28,
            memory_ps: vec![vec![120_000]],
            walk: Some(Walk { bytes: 1 << 27, small_ps: 150_000, huge_ps: 120_000, walk_ps: 32_000 }),
            bandwidths: vec![Bandwidths {
                threads: 1,
                read: 10_000_000_000,
                copy: 14_000_000_000,
                triad: 12_000_000_000,
            }],
            cpus: Vec::new(),
            core_to_core_ps: Vec::new(),
            huge_pages: true,
            notes: Vec::new(),
        }
    }

    #[test]
    fn measured_results_make_a_machine_without_errors_or_warnings() {
        let mut file = discover(&Sysfs::live()).unwrap();
        measured(&file).write_into(&mut file);
        let checked = crate::machine::check("measured", &file.to_toml());
        assert!(checked.report.problems().is_empty(), "{}", checked.report.render(100, false));
    }

    proptest! {
        // Each case discovers this host first.
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_machine_has_no_errors_even_with_disturbed_measurements(
            // No level answers within a cycle of the slowest clock.
            caches_ps in prop::array::uniform3(1000u64..300_000),
            memory_ps in 1000u64..300_000,
            clock_hz in 1_000_000_000u64..6_000_000_000,
            rates in prop::array::uniform3(1_000_000u64..1_000_000_000_000),
            times_ps in prop::array::uniform2(0u64..1_000_000),
        ) {
            let mut file = discover(&Sysfs::live()).unwrap();
            let mut measured = measured(&file);
            for (cache, ps) in measured.caches.iter_mut().zip(caches_ps) {
                cache.latency_ps = ps;
            }
            measured.memory_ps = vec![vec![memory_ps]];
            measured.clock_hz = clock_hz;
            measured.bandwidths[0] = Bandwidths { threads: 1, read: rates[0], copy: rates[1], triad: rates[2] };
            measured.mispredict_ps = times_ps[0];
            measured.walk = Some(Walk { bytes: 1 << 27, small_ps: 0, huge_ps: 0, walk_ps: times_ps[1] });
            measured.write_into(&mut file);
            let checked = crate::machine::check("measured", &file.to_toml());
            prop_assert_eq!(checked.report.errors(), 0, "{}", checked.report.render(100, false));
            let last = file.caches.get("l3").and_then(|l3| l3.latency).map_or(0, |latency| latency.ps(measured.written_clock()));
            prop_assert!(memory_ps < 2 * DRAM_PS || last + DRAM_PS <= memory_ps, "{last} ps, and memory {memory_ps} ps");
        }
    }

    #[test]
    fn latencies_of_private_caches_become_cycles_of_the_measured_clock() {
        let mut file = discover(&Sysfs::live()).unwrap();
        let measured = measured(&file);
        measured.write_into(&mut file);
        let core = &file.cores[&measured.core];
        assert_eq!(core.clock, Frequency::new(3_000_000_000));
        for (name, expected) in [("l1d", 5), ("l2", 15)] {
            if core.caches.iter().any(|c| &**c == name) {
                assert_eq!(file.caches[name].latency, Some(Latency::Cycles(Cycles::new(expected))), "{name}");
            }
        }
        assert_eq!(core.branch.as_ref().unwrap().mispredict, Some(Latency::Cycles(Cycles::new(24 - 5 - 1))));
        let walks: Vec<_> = core.tlbs.iter().filter_map(|t| t.miss).collect();
        assert!(walks.contains(&Latency::Time(Time::new(32_000))), "{walks:?}");
    }
}
