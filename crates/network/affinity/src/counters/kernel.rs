//! Kernel counters of each CPU (time by kind, interrupts, received packets) and of the host (context switches, runnable
//! programs).
//!
//! Source: Linux Documentation/filesystems/proc.rst (/proc/stat, /proc/interrupts, /proc/softirqs, /proc/loadavg).

use crate::host::Host;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;

/// A reading of the kernel's counters.
#[derive(Clone, Debug)]
pub struct Reading {
    at: Instant,
    /// Columns of /proc/stat by CPU: user, nice, system, idle, iowait, irq, softirq, steal.
    times: BTreeMap<u32, [u64; 8]>,
    interrupts: BTreeMap<u32, u64>,
    received: BTreeMap<u32, u64>,
    switches: u64,
    running: u64,
}

/// How a CPU spent an interval, as fractions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuShares {
    /// In programs.
    pub user: f64,
    /// In the kernel on behalf of programs.
    pub system: f64,
    /// In hard interrupts.
    pub irq: f64,
    /// In softirqs, which include the network receive path.
    pub softirq: f64,
    /// Taken by the hypervisor for other guests.
    pub steal: f64,
    /// Idle.
    pub idle: f64,
}

/// Kernel counts of an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelCounts {
    /// Length of the interval in seconds.
    pub seconds: f64,
    /// How each CPU spent it.
    pub cpus: BTreeMap<u32, CpuShares>,
    /// Interrupts of each CPU, including its timer.
    pub interrupts: BTreeMap<u32, u64>,
    /// NET_RX softirqs of each CPU.
    pub receptions: BTreeMap<u32, u64>,
    /// Context switches of the whole host.
    pub context_switches: u64,
    /// Programs that were runnable at the start of the interval. More than the load's own indicate other load.
    pub running_before: u64,
}

impl CpuShares {
    /// All time except idle and steal.
    pub fn busy(&self) -> f64 {
        self.user + self.system + self.irq + self.softirq
    }
}

impl Reading {
    /// Reads the counters. Counters that the host does not show are zero.
    pub fn now(host: &dyn Host) -> Self {
        let stat = host.read("proc/stat").unwrap_or_default();
        let mut times = BTreeMap::new();
        let (mut switches, mut running) = (0, 0);
        for line in stat.lines() {
            let mut words = line.split_whitespace();
            let key = words.next().unwrap_or_default();
            let mut numbers = words.map(|word| word.parse().unwrap_or(0));
            match key {
                "ctxt" => switches = numbers.next().unwrap_or(0),
                "procs_running" => running = numbers.next().unwrap_or(0),
                _ => {
                    if let Some(cpu) = key.strip_prefix("cpu").and_then(|cpu| cpu.parse().ok()) {
                        times.insert(cpu, std::array::from_fn(|_| numbers.next().unwrap_or(0)));
                    }
                }
            }
        }
        let interrupts = by_cpu(&host.read("proc/interrupts").unwrap_or_default(), |_| true);
        let received = by_cpu(&host.read("proc/softirqs").unwrap_or_default(), |name| name == "NET_RX");
        Self { at: Instant::now(), times, interrupts, received, switches, running }
    }

    /// The counts from this reading to `later`.
    pub fn until(&self, later: &Self) -> KernelCounts {
        let grown = |before: &BTreeMap<u32, u64>, after: &BTreeMap<u32, u64>| {
            let growth = |(cpu, count): (&u32, &u64)| {
                (*cpu, count.saturating_sub(before.get(cpu).copied().unwrap_or(*count)))
            };
            after.iter().map(growth).collect()
        };
        let shares = |(cpu, after): (&u32, &[u64; 8])| {
            let before = self.times.get(cpu)?;
            // idle and iowait may decrease slightly when a CPU comes online again.
            let spent: [f64; 8] =
                std::array::from_fn(|column| after[column].saturating_sub(before[column]) as f64);
            let [user, nice, system, idle, iowait, irq, softirq, steal] = spent;
            let all: f64 = spent.iter().sum();
            let part = |ticks: f64| if all > 0.0 { ticks / all } else { 0.0 };
            let (user, idle) = (part(user + nice), part(idle + iowait));
            let (system, irq, softirq, steal) = (part(system), part(irq), part(softirq), part(steal));
            Some((*cpu, CpuShares { user, system, irq, softirq, steal, idle }))
        };
        KernelCounts {
            seconds: later.at.duration_since(self.at).as_secs_f64(),
            cpus: later.times.iter().filter_map(shares).collect(),
            interrupts: grown(&self.interrupts, &later.interrupts),
            receptions: grown(&self.received, &later.received),
            context_switches: later.switches.saturating_sub(self.switches),
            running_before: self.running,
        }
    }
}

/// Sums, by CPU, of the lines of a table whose header names the CPUs. Lines with fewer columns are counts of the whole
/// host and are skipped.
fn by_cpu(table: &str, wanted: impl Fn(&str) -> bool) -> BTreeMap<u32, u64> {
    let mut lines = table.lines();
    let head = lines.next().unwrap_or_default();
    let cpus: Vec<u32> =
        head.split_whitespace().filter_map(|word| word.strip_prefix("CPU")?.parse().ok()).collect();
    let mut sums: BTreeMap<u32, u64> = cpus.iter().map(|cpu| (*cpu, 0)).collect();
    for line in lines {
        let Some((name, rest)) = line.split_once(':') else { continue };
        let counts: Vec<u64> = rest.split_whitespace().map_while(|word| word.parse().ok()).collect();
        if wanted(name.trim()) && counts.len() >= cpus.len() {
            for (cpu, count) in cpus.iter().zip(counts) {
                *sums.entry(*cpu).or_default() += count;
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeHost;

    fn host() -> FakeHost {
        FakeHost::with(&[
            (
                "proc/stat",
                "cpu 9 9 9 9\ncpu0 100 0 50 850 0 0 0 0 0 0\ncpu2 0 0 0 1000 0 0 0 0 0 0\nctxt 1000\nprocs_running 3",
            ),
            ("proc/interrupts", "           CPU0       CPU2\n 24: 5 6 x\nLOC: 100 200 Local timer\nERR: 7"),
            ("proc/softirqs", "  CPU0 CPU2\nTIMER: 1 1\nNET_RX: 10 20"),
        ])
    }

    #[test]
    fn an_interval_is_the_difference_of_two_readings_also_with_a_cpu_offline() {
        let host = host();
        let before = Reading::now(&host);
        host.put(
            "proc/stat",
            "cpu0 110 0 60 900 0 0 20 10 0 0\ncpu2 0 0 0 1100 0 0 0 0 0 0\nctxt 1500\nprocs_running 1",
        );
        host.put(
            "proc/interrupts",
            "           CPU0       CPU2\n 24: 15 6 x\nLOC: 110 210 Local timer\nERR: 9",
        );
        host.put("proc/softirqs", "  CPU0 CPU2\nTIMER: 1 1\nNET_RX: 60 20");
        let counts = before.until(&Reading::now(&host));
        let zero = counts.cpus[&0];
        assert_eq!((zero.user, zero.system, zero.softirq, zero.steal, zero.idle), (0.1, 0.1, 0.2, 0.1, 0.5));
        assert!((zero.busy() - 0.4).abs() < 1e-9);
        assert_eq!((counts.cpus[&2].idle, counts.cpus.len()), (1.0, 2));
        assert_eq!(counts.interrupts, BTreeMap::from([(0, 20), (2, 10)]));
        assert_eq!(counts.receptions, BTreeMap::from([(0, 50), (2, 0)]));
        assert_eq!((counts.context_switches, counts.running_before), (500, 3));
    }

    #[test]
    fn a_host_without_proc_has_no_counts() {
        let counts = Reading::now(&FakeHost::default()).until(&Reading::now(&FakeHost::default()));
        assert!(counts.cpus.is_empty() && counts.context_switches == 0);
    }
}
