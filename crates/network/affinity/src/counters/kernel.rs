//! Kernel counters of each CPU (time by kind, interrupts, received packets), of the host (context switches, runnable
//! programs) and of an interface (interrupts of its queues, dropped packets).
//!
//! Source: Linux Documentation/filesystems/proc.rst (/proc/stat, /proc/interrupts, /proc/softirqs, /proc/loadavg),
//! net/core/net-procfs.c (softnet_seq_show), Documentation/networking/statistics.rst.

use crate::host::Host;
use crate::interface::Nic;
use crate::setting::Interface;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// A reading of the kernel's counters.
#[derive(Clone, Debug)]
pub struct Reading {
    at: Instant,
    /// Columns of /proc/stat by CPU: user, nice, system, idle, iowait, irq, softirq, steal.
    times: BTreeMap<u32, [u64; 8]>,
    interrupts: BTreeMap<u32, u64>,
    received: BTreeMap<u32, u64>,
    /// Columns of /proc/net/softnet_stat by CPU: processed, dropped, time_squeeze. They wrap at 2^32.
    softnet: BTreeMap<u32, [u32; 3]>,
    /// Interrupts of the interface's queues by CPU.
    of_queues: BTreeMap<u32, u64>,
    /// Packets that the physical interfaces dropped, if they report it.
    dropped: Option<u64>,
    /// Bytes on the wire, received and sent, of each physical interface with a device.
    wire: BTreeMap<Interface, Wire>,
    /// Bytes received and sent by the physical interfaces, if none has a device.
    interface_bytes: Option<[u64; 2]>,
    /// Bytes of IP received and sent in the network namespace.
    namespace_bytes: Option<[u64; 2]>,
    is_busy_polling: bool,
    switches: u64,
    running: u64,
}

/// Traffic on the link of an interface.
#[derive(Clone, Copy, Debug)]
struct Wire {
    /// Nominal rate of the link in bytes per second.
    rate: f64,
    /// Bytes received and sent, with headers, checksums and gaps.
    bytes: [u64; 2],
}

/// Bytes of preamble, checksum and gap of an Ethernet frame (IEEE 802.3), which interfaces do not count.
const FRAME_OVERHEAD: u64 = 24;

/// Counters of received packets that were dropped: after, in, and before the driver. The first includes drops at a full
/// backlog.
const DROPS: [&str; 3] = ["rx_dropped", "rx_missed_errors", "rx_fifo_errors"];

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
    /// Packets that the protocols of each CPU processed. Merged packets count as one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub packets: BTreeMap<u32, u64>,
    /// Packets dropped because the backlog of each CPU was full.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub backlog_drops: BTreeMap<u32, u64>,
    /// Number of softirqs that each CPU ended while packets were still queued, because its time or budget was used up.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub squeezes: BTreeMap<u32, u64>,
    /// Interrupts of the interface's receive queues by CPU.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub queue_interrupts: BTreeMap<u32, u64>,
    /// Received packets that the physical interfaces, their drivers, or a full backlog behind them dropped; `None` if
    /// not reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic_drops: Option<u64>,
    /// Fraction of the link's nominal rate that passed, in the busier direction of the busiest physical interface, with
    /// headers and gaps; `None` if the rate is unknown, or if the interface has no device, so that its nominal rate is
    /// no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_share: Option<f64>,
    /// Bytes that the physical interfaces received or sent, whichever is more. `None` if one has a device, whose driver may
    /// update its counters at long intervals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface_bytes: Option<u64>,
    /// Bytes of IP that the network namespace received or sent by all interfaces, whichever is more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_bytes: Option<u64>,
    /// Whether the host's sockets poll their queues while they wait (`net.core.busy_read`, `net.core.busy_poll`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_busy_polling: bool,
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
    /// Reads the counters of the host. Counters that it does not show are zero.
    pub fn now(host: &dyn Host) -> Self {
        Self::with(host, &[])
    }

    /// Reads the counters of the host and of an interface.
    pub fn of(host: &dyn Host, nic: &Nic) -> Self {
        Self::with(host, &nic.physical())
    }

    fn with(host: &dyn Host, nics: &[&Nic]) -> Self {
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
        let table = host.read("proc/interrupts").unwrap_or_default();
        let interrupts = by_cpu(&table, |_| true);
        let irqs: BTreeSet<u32> = nics.iter().flat_map(|nic| nic.irqs.iter().map(|irq| irq.number)).collect();
        let is_of_queue = |name: &str| name.parse().is_ok_and(|number| irqs.contains(&number));
        let of_queues = if irqs.is_empty() { BTreeMap::new() } else { by_cpu(&table, is_of_queue) };
        let online: Vec<u32> = times.keys().copied().collect();
        let softnet = softnet(&host.read("proc/net/softnet_stat").unwrap_or_default(), &online);
        let counter = |nic: &&Nic, name: &str| {
            host.read(&format!("sys/class/net/{}/statistics/{name}", nic.name)).ok()?.parse::<u64>().ok()
        };
        let wire = |nic: &&Nic| {
            let rate = nic.device.as_ref().and(nic.speed_mbps)? as f64 * 1e6 / 8.0;
            let way = |way: &str| {
                let packets = counter(nic, &format!("{way}_packets"))?;
                Some(
                    counter(nic, &format!("{way}_bytes"))?
                        .saturating_add(packets.saturating_mul(FRAME_OVERHEAD)),
                )
            };
            Some((nic.name.clone(), Wire { rate, bytes: [way("rx")?, way("tx")?] }))
        };
        let wire = nics.iter().filter_map(wire).collect();
        let bytes = |nic: &&Nic| {
            let is_virtual = nic.device.is_none();
            is_virtual.then(|| Some([counter(nic, "rx_bytes")?, counter(nic, "tx_bytes")?])).flatten()
        };
        let sum = |all: [u64; 2], one: [u64; 2]| [0, 1].map(|way| all[way].saturating_add(one[way]));
        let interface_bytes: Option<Vec<[u64; 2]>> = nics.iter().map(bytes).collect();
        let interface_bytes = interface_bytes.and_then(|all| all.into_iter().reduce(sum));
        let polls = |name: &str| {
            let text = host.read(&format!("proc/sys/net/core/{name}")).unwrap_or_default();
            text.parse::<u64>().is_ok_and(|microseconds| microseconds > 0)
        };
        let drops = nics.iter().flat_map(|nic| DROPS.map(|name| counter(nic, name)));
        let dropped = drops.flatten().reduce(|sum, drops| sum.saturating_add(drops));
        let received = by_cpu(&host.read("proc/softirqs").unwrap_or_default(), |name| name == "NET_RX");
        Self {
            at: Instant::now(),
            times,
            interrupts,
            received,
            softnet,
            of_queues,
            dropped,
            wire,
            interface_bytes,
            namespace_bytes: namespace_bytes(host),
            is_busy_polling: polls("busy_read") || polls("busy_poll"),
            switches,
            running,
        }
    }

    /// The counts from this reading to `later`.
    pub fn until(&self, later: &Self) -> KernelCounts {
        let grown = |before: &BTreeMap<u32, u64>, after: &BTreeMap<u32, u64>| {
            let growth = |(cpu, count): (&u32, &u64)| {
                (*cpu, count.saturating_sub(before.get(cpu).copied().unwrap_or(*count)))
            };
            after.iter().map(growth).collect()
        };
        let column = |column: usize| {
            let growth = |(cpu, after): (&u32, &[u32; 3])| {
                let before = self.softnet.get(cpu)?[column];
                Some((*cpu, u64::from(after[column].wrapping_sub(before))))
            };
            later.softnet.iter().filter_map(growth).collect()
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
        let seconds = later.at.duration_since(self.at).as_secs_f64();
        let passed = |(name, after): (&Interface, &Wire)| {
            let before = self.wire.get(name)?;
            let grown = (0..2).map(|way| after.bytes[way].saturating_sub(before.bytes[way]));
            grown.max().map(|bytes| bytes as f64 / seconds / after.rate)
        };
        let busier = |before: Option<[u64; 2]>, after: Option<[u64; 2]>| {
            let (before, after) = before.zip(after)?;
            (0..2).map(|way| after[way].saturating_sub(before[way])).max()
        };
        let shares_of_links = later.wire.iter().filter_map(passed);
        KernelCounts {
            seconds,
            cpus: later.times.iter().filter_map(shares).collect(),
            interrupts: grown(&self.interrupts, &later.interrupts),
            receptions: grown(&self.received, &later.received),
            packets: column(0),
            backlog_drops: column(1),
            squeezes: column(2),
            queue_interrupts: grown(&self.of_queues, &later.of_queues),
            nic_drops: later.dropped.zip(self.dropped).map(|(after, before)| after.saturating_sub(before)),
            link_share: shares_of_links.filter(|share| share.is_finite()).reduce(f64::max),
            interface_bytes: busier(self.interface_bytes, later.interface_bytes),
            namespace_bytes: busier(self.namespace_bytes, later.namespace_bytes),
            is_busy_polling: later.is_busy_polling,
            context_switches: later.switches.saturating_sub(self.switches),
            running_before: self.running,
        }
    }
}

/// Bytes of IPv4 and IPv6 that the network namespace received and sent; `None` if not reported.
fn namespace_bytes(host: &dyn Host) -> Option<[u64; 2]> {
    let (four, six) = (host.read("proc/net/netstat").ok()?, host.read("proc/net/snmp6").unwrap_or_default());
    // The first line has the names, the second the numbers.
    let mut rows = four.lines().filter_map(|line| line.strip_prefix("IpExt: "));
    let (names, numbers) = (rows.next()?.split_whitespace(), rows.next()?.split_whitespace());
    let four: BTreeMap<&str, &str> = names.zip(numbers).collect();
    let six: BTreeMap<&str, &str> =
        six.lines().filter_map(|line| line.split_once(char::is_whitespace)).collect();
    let of = |way: &str| {
        let number = |text: &&str| text.trim().parse::<u64>().ok();
        let of_six = six.get(format!("Ip6{way}Octets").as_str()).and_then(number).unwrap_or(0);
        Some(four.get(format!("{way}Octets").as_str()).and_then(number)?.saturating_add(of_six))
    };
    Some([of("In")?, of("Out")?])
}

/// Parses /proc/net/softnet_stat, a line of hexadecimal numbers for each online CPU. Linux 5.10 and later number them.
fn softnet(text: &str, online: &[u32]) -> BTreeMap<u32, [u32; 3]> {
    let line = |(at, line): (usize, &str)| {
        let words = line.split_whitespace().map(|word| u32::from_str_radix(word, 16));
        let words: Vec<u32> = words.collect::<Result<_, _>>().ok()?;
        let cpu = words.get(12).or(online.get(at)).copied()?;
        Some((cpu, [*words.first()?, *words.get(1)?, *words.get(2)?]))
    };
    text.lines().enumerate().filter_map(line).collect()
}

/// The sum of each CPU's column over the lines of a table whose header names the CPUs. Lines with fewer columns are
/// counts of the whole host and are skipped.
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
    fn packets_drops_and_squeezes_are_counted_by_cpu_across_the_wrap_of_their_counters() {
        let host = host();
        let line = |packets: &str, drops: u32, squeezes: u32, cpu: &str| {
            format!("{packets} {drops:08x} {squeezes:08x} 0 0 0 0 0 0 0 0 0 {cpu}")
        };
        let net = "sys/class/net/eth0";
        for (path, text) in [("queues/rx-0/rps_cpus", "0"), ("statistics/rx_missed_errors", "10")] {
            host.put(&format!("{net}/{path}"), text);
        }
        host.put("proc/interrupts", "  CPU0 CPU2\n 24: 5 6 PCI eth0-rx-0\n 25: 9 9 PCI eth1-rx-0");
        host.put("proc/irq/24/smp_affinity_list", "0");
        host.put("proc/net/softnet_stat", &[line("fffffff0", 1, 2, "0"), line("5", 0, 0, "2")].join("\n"));
        let nic = crate::interface::read(&host, &"eth0".parse().unwrap()).unwrap();
        let before = Reading::of(&host, &nic);
        host.put("proc/interrupts", "  CPU0 CPU2\n 24: 5 36 PCI eth0-rx-0\n 25: 99 99 PCI eth1-rx-0");
        host.put("proc/net/softnet_stat", &[line("10", 4, 7, "0"), line("6", 0, 0, "2")].join("\n"));
        host.put(&format!("{net}/statistics/rx_missed_errors"), "17");
        let counts = before.until(&Reading::of(&host, &nic));
        assert_eq!(counts.packets, BTreeMap::from([(0, 32), (2, 1)]));
        assert_eq!((counts.backlog_drops[&0], counts.squeezes[&0], counts.nic_drops), (3, 5, Some(7)));
        assert_eq!(counts.queue_interrupts, BTreeMap::from([(0, 0), (2, 30)]));
        // Older kernels list the online CPUs without their numbers.
        host.put("proc/net/softnet_stat", "1 2 3 0 0 0 0 0 0\n4 5 6 0 0 0 0 0 0");
        let before = Reading::of(&host, &nic);
        host.put("proc/net/softnet_stat", "2 2 3 0 0 0 0 0 0\n7 5 6 0 0 0 0 0 0");
        assert_eq!(before.until(&Reading::of(&host, &nic)).packets, BTreeMap::from([(0, 1), (2, 3)]));
    }

    #[test]
    fn a_links_share_includes_overheads_and_needs_a_device() {
        let host = host();
        let net = "sys/class/net/eth0";
        let statistics = |packets: u64| {
            for (file, count) in [("rx_bytes", 1226 * packets), ("rx_packets", packets)] {
                host.put(&format!("{net}/statistics/{file}"), &count.to_string());
            }
            ["tx_bytes", "tx_packets"]
                .iter()
                .for_each(|file| host.put(&format!("{net}/statistics/{file}"), "7"));
        };
        host.put(&format!("{net}/speed"), "10000");
        let counts = |packets: u64| {
            let nic = crate::interface::read(&host, &"eth0".parse().unwrap()).unwrap();
            statistics(0);
            let before = Reading::of(&host, &nic);
            statistics(packets);
            before.until(&Reading::of(&host, &nic))
        };
        // A veth reports 10 Gb/s too, and carries more.
        assert_eq!(counts(1_000_000).link_share, None);
        host.put(&format!("{net}/device"), "-> ../../0000:03:00.0");
        let counted = counts(1_000_000);
        let seconds_of_link = counted.link_share.unwrap() * counted.seconds;
        assert!((seconds_of_link - 1.0).abs() < 1e-9, "{seconds_of_link}");
        assert!(!counted.is_busy_polling);
        host.put("proc/sys/net/core/busy_read", "50");
        assert!(counts(1).is_busy_polling);
    }

    #[test]
    fn bytes_of_interfaces_without_a_device_and_of_the_namespace_are_counted() {
        let host = host();
        let count = |interface: u64, namespace: u64| {
            host.put("sys/class/net/in0/queues/rx-0/rps_cpus", "0");
            host.put("sys/class/net/in0/statistics/rx_bytes", &interface.to_string());
            host.put("sys/class/net/in0/statistics/tx_bytes", "7");
            host.put(
                "proc/net/netstat",
                &format!("TcpExt: A\nTcpExt: 1\nIpExt: InOctets X OutOctets\nIpExt: {namespace} 4 9"),
            );
            host.put("proc/net/snmp6", &format!("Ip6InOctets \t{namespace}\nIp6OutOctets 3"));
            let nic = crate::interface::read(&host, &"in0".parse().unwrap()).unwrap();
            Reading::of(&host, &nic)
        };
        let counts = count(100, 1000).until(&count(350, 5000));
        assert_eq!((counts.interface_bytes, counts.namespace_bytes), (Some(250), Some(8000)));
        // A driver may update its counters at long intervals.
        host.put("sys/class/net/in0/device", "-> ../../0000:03:00.0");
        assert_eq!(count(1, 1).until(&count(2, 2)).interface_bytes, None);
    }

    #[test]
    fn a_host_without_proc_has_no_counts() {
        let counts = Reading::now(&FakeHost::default()).until(&Reading::now(&FakeHost::default()));
        assert!(counts.cpus.is_empty() && counts.context_switches == 0);
    }
}
