//! Checks a host before a sweep for conditions that would prevent it or distort its results. Each finding comes with
//! advice. Changes nothing.
//!
//! Source: Hanford et al. 2014 check the setup before each sweep; Linux Documentation/networking/scaling.rst;
//! perf_event_open(2).

mod prerequisites;

use crate::counters::{CpuShares, Hardware, Reading};
use crate::host::Host;
use crate::interface::{self, Nic};
use crate::setting::{Interface, Setting};
use crate::steering::Steering;
use longma_cpu_set::CpuSet;
use longma_linux_network::ethtool::DriverProperty;
use serde::Serialize;
use std::collections::BTreeMap;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// No problem.
    Good,
    /// Worth knowing; does not affect the results.
    Note,
    /// Results will be disturbed or not comparable.
    Disturbs,
    /// A sweep is impossible.
    Prevents,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The subject of the check.
    pub subject: &'static str,
    /// Severity.
    pub weight: Severity,
    /// The finding.
    pub found: String,
    /// The remedy, if there is one.
    pub advice: Option<String>,
}

/// Programs that change interrupt affinity.
pub(crate) const MOVERS: [&str; 3] = ["irqbalance", "tuned", "irqd"];
/// Acceptable load by other programs, as a fraction of all CPUs.
const MAX_LOAD: f64 = 0.1;
/// Acceptable steal time, as a fraction.
const MAX_STEAL: f64 = 0.01;

struct Findings(Vec<Finding>);

impl Findings {
    fn good(&mut self, subject: &'static str, found: impl Into<String>) {
        self.0.push(Finding { subject, weight: Severity::Good, found: found.into(), advice: None });
    }

    fn bad(
        &mut self,
        subject: &'static str,
        weight: Severity,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.0.push(Finding { subject, weight, found: found.into(), advice: Some(advice.into()) });
    }
}

/// CPUs that are isolated from the scheduler (`isolcpus=`, isolated cpuset partitions).
///
/// Source: Linux Documentation/ABI/testing/sysfs-devices-system-cpu (isolated).
pub fn isolated(host: &dyn Host) -> CpuSet {
    let text = host.read("sys/devices/system/cpu/isolated");
    text.ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// Checks the host and, if given, one interface. `idle` is a pair of readings around an interval without load from this
/// program; `None` for a recorded host.
pub fn check(
    host: &dyn Host,
    interface: Option<&Interface>,
    idle: Option<(&Reading, &Reading)>,
) -> Vec<Finding> {
    let mut findings = Findings(Vec::new());
    // For a recorded host, the rights, programs and counters of this system are irrelevant.
    if idle.is_some() {
        rights(&mut findings);
    }
    namespace(host, &mut findings);
    processors(host, &mut findings);
    movers(host, &mut findings);
    governors(host, &mut findings);
    scheduler(host, &mut findings);
    if let Some((before, after)) = idle {
        load(before, after, &mut findings);
        prerequisites::check(host, &mut findings);
        counters(host, &mut findings);
    }
    if let Some(name) = interface {
        match interface::read(host, name) {
            Some(nic) => {
                look_at(host, &nic, &mut findings);
                if idle.is_some() {
                    for nic in nic.physical() {
                        prerequisites::steering(host, nic, &mut findings);
                    }
                }
            }
            None => findings.bad(
                "interface",
                Severity::Prevents,
                format!("there is no {name}"),
                format!(
                    "one of: {}",
                    interface::names(host).iter().map(|name| name.name()).collect::<Vec<_>>().join(", ")
                ),
            ),
        }
    }
    findings.0
}

/// Reads the same files of an interface as [`check`].
pub(crate) fn visit(host: &dyn Host, nic: &Nic) {
    look_at(host, nic, &mut Findings(Vec::new()));
}

/// Reports only problems.
fn namespace(host: &dyn Host, findings: &mut Findings) {
    if let Some(what) = host.foreign_sysfs() {
        findings.bad(
            "namespace",
            Severity::Prevents,
            format!("the mounted /sys belongs to another network namespace: {what}"),
            "enter the namespace with `ip netns exec NAME`, or mount its own /sys first: `mount -t sysfs \
                sysfs /sys` in a mount namespace (unshare --mount)",
        );
    }
}

fn rights(findings: &mut Findings) {
    if rustix::process::geteuid().is_root() {
        return findings.good("rights", "root: settings can be changed and restored");
    }
    let advice =
        "run it with sudo; without it, `report`, `advise` from a results file, and this check still work";
    findings.bad(
        "rights",
        Severity::Prevents,
        "not root: interrupts, RPS and namespaces cannot be changed",
        advice,
    );
}

fn processors(host: &dyn Host, findings: &mut Findings) {
    let places = host.places();
    if places.is_empty() {
        return findings.bad("CPUs", Severity::Prevents, "/sys lists no CPU", "mount sysfs on /sys");
    }
    let count = |of: fn(&longma_topology::CpuLocation) -> u32| {
        places.iter().map(of).collect::<std::collections::BTreeSet<_>>().len()
    };
    let plural = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let sockets = plural(count(|place| place.socket), "socket");
    let found = format!("{} on {sockets}", plural(places.len(), "CPU"));
    if places.len() < 3 {
        let advice = "the sender of --lab shares a CPU with the pair: the sweep shows mechanisms and a \
            ranking, but not the published classes";
        findings.bad("CPUs", Severity::Note, found, advice);
    } else {
        findings.good("CPUs", found);
    }
    if let Ok(offline) = host.read("sys/devices/system/cpu/offline")
        && offline.parse::<CpuSet>().is_ok_and(|cpus| !cpus.is_empty())
    {
        let advice = "they are excluded from all pairs; nothing else changes";
        findings.bad("offline CPUs", Severity::Note, format!("CPUs {offline} are offline"), advice);
    }
    let isolated = isolated(host);
    if !isolated.is_empty() {
        let words = format!("CPUs {isolated} are isolated from the scheduler");
        let advice = "advice from topology and `tune` leave them out; name them with --cpus to use them";
        findings.bad("isolated CPUs", Severity::Note, words, advice);
    }
    let allowed = allowed(host);
    let outside: CpuSet = places
        .iter()
        .map(|place| place.cpu)
        .filter(|cpu| allowed.as_ref().is_some_and(|set| !set.contains(*cpu)))
        .collect();
    if !outside.is_empty() {
        let advice = "applications cannot be bound there, so the sweep excludes them; to include them, \
            widen the cpuset (systemd: AllowedCPUs=)";
        findings.bad(
            "cpuset",
            Severity::Note,
            format!("CPUs {outside} are outside this process's cpuset"),
            advice,
        );
    }
    if places.iter().any(|place| place.last_cache.is_none()) {
        let advice =
            "pairs in one socket are assumed to share a cache; the measurement does not depend on it";
        findings.bad("caches", Severity::Note, "the system does not report which CPUs share a cache", advice);
    }
}

/// CPUs that this process may run on; `None` if the kernel does not report them.
pub fn allowed(host: &dyn Host) -> Option<CpuSet> {
    let status = host.read("proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")?.trim().parse().ok())
}

fn movers(host: &dyn Host, findings: &mut Findings) {
    let processes =
        host.names("proc").into_iter().filter(|name| name.bytes().all(|letter| letter.is_ascii_digit()));
    let names = processes.filter_map(|process| host.read(&format!("proc/{process}/comm")).ok());
    let found: std::collections::BTreeSet<String> =
        names.filter(|name| MOVERS.contains(&name.as_str())).collect();
    // Process 1 always exists. If it is invisible, so are other users' processes.
    if found.is_empty() && host.read("proc/1/comm").is_err() {
        let advice =
            "check as root or with /proc mounted without hidepid, or use `systemctl status irqbalance`";
        let words = "unknown: /proc does not show other users' processes";
        return findings.bad("irqbalance", Severity::Note, words, advice);
    }
    if found.is_empty() {
        return findings.good("irqbalance", "not running: interrupts stay where they are");
    }
    for name in found {
        let advice = format!("systemctl stop {name} before the sweep, and start it again afterwards");
        findings.bad(
            "irqbalance",
            Severity::Disturbs,
            format!("{name} is running and may move interrupts"),
            advice,
        );
    }
}

fn governors(host: &dyn Host, findings: &mut Findings) {
    let places = host.places();
    let all: std::collections::BTreeSet<String> =
        places.iter().filter_map(|place| Setting::Governor(place.cpu).read(host).ok()).collect();
    let found = all.iter().cloned().collect::<Vec<_>>().join(", ");
    if all.is_empty() {
        findings.good("governor", "no frequency scaling is visible");
    } else if all.len() == 1 && all.contains("performance") {
        findings.good("governor", found);
    } else {
        let advice = "echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor";
        findings.bad("governor", Severity::Disturbs, found, advice);
    }
}

fn scheduler(host: &dyn Host, findings: &mut Findings) {
    if host.read("proc/sys/kernel/sched_autogroup_enabled").is_ok_and(|value| value == "1") {
        let advice = "harmless on an idle host; with other load: sysctl kernel.sched_autogroup_enabled=0";
        findings.bad(
            "autogroup",
            Severity::Note,
            "the scheduler shares the CPUs among sessions first, then \
            among programs",
            advice,
        );
    }
    if host.read("proc/sys/net/core/rps_sock_flow_entries").is_ok_and(|value| value != "0") {
        let advice = "the sweep switches it off for the interface's queues and restores it";
        findings.bad("RFS", Severity::Note, "flows follow their applications", advice);
    }
}

fn load(before: &Reading, after: &Reading, findings: &mut Findings) {
    let counts = before.until(after);
    if counts.cpus.is_empty() {
        let advice = "mount proc on /proc: without it the sweep cannot detect other load or count costs";
        return findings.bad("other load", Severity::Disturbs, "unknown: /proc/stat is not readable", advice);
    }
    findings.0.extend(load_of(&counts.cpus));
}

/// Reports load by other programs and stolen time, from the shares of the CPUs' time.
pub(crate) fn load_of(cpus: &BTreeMap<u32, CpuShares>) -> Vec<Finding> {
    let mut findings = Findings(Vec::new());
    let count = cpus.len().max(1) as f64;
    let busy = cpus.values().map(|shares| shares.busy()).sum::<f64>() / count;
    let steal = cpus.values().map(|shares| shares.steal).sum::<f64>() / count;
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    if busy > MAX_LOAD {
        let advice = "stop it, or bind it to CPUs outside the sweep; repeats and medians help only against short bursts";
        findings.bad(
            "other load",
            Severity::Disturbs,
            format!("{} of the CPU time is used by other programs", percent(busy)),
            advice,
        );
    } else {
        findings.good("other load", format!("{} of the CPU time", percent(busy)));
    }
    if steal > MAX_STEAL {
        let advice = "other guests take CPU time: sweep later, or on dedicated hardware";
        findings.bad(
            "steal",
            Severity::Disturbs,
            format!("{} stolen by the hypervisor", percent(steal)),
            advice,
        );
    }
    findings.0
}

fn counters(host: &dyn Host, findings: &mut Findings) {
    let Some(cpu) = host.places().first().map(|place| place.cpu) else { return };
    let works = "throughput, softirq time, context switches and interrupts are measured without it";
    match Hardware::begin(cpu) {
        Ok(_) => findings.good("counters", "hardware counters work"),
        Err(error) => {
            let paranoid =
                host.read("proc/sys/kernel/perf_event_paranoid").unwrap_or_else(|_| "unknown".into());
            let (found, advice) = match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => (
                    format!("not allowed (kernel.perf_event_paranoid is {paranoid})"),
                    format!(
                        "set sysctl kernel.perf_event_paranoid=0 or grant CAP_PERFMON, and let the \
                            seccomp filter allow perf_event_open; {works}"
                    ),
                ),
                Some(libc::ENOSYS) => (
                    format!("not available: {error}"),
                    format!(
                        "a seccomp filter, or a kernel without perf events, refuses perf_event_open; {works}"
                    ),
                ),
                _ => (
                    format!("none: {error}"),
                    format!(
                        "the processor or its hypervisor has no counters (a guest needs a virtual PMU); {works}"
                    ),
                ),
            };
            findings.bad("counters", Severity::Note, found, advice);
        }
    }
}

/// How CPUs are mapped to transmit queues (XPS): by CPU, or by the flow's receive queue.
fn transmission(host: &dyn Host, nic: &Nic, findings: &mut Findings) {
    let queue = |number: &u32| {
        let cpus = Setting::Xps { interface: nic.name.clone(), queue: *number }.read(host).ok();
        let cpus = cpus.and_then(|mask| CpuSet::from_mask(&mask).ok()).unwrap_or_default();
        let path = format!("sys/class/net/{}/queues/tx-{number}/xps_rxqs", nic.name);
        let receive =
            host.read(&path).ok().and_then(|mask| CpuSet::from_mask(&mask).ok()).unwrap_or_default();
        match (cpus.is_empty(), receive.is_empty()) {
            (true, true) => None,
            (_, false) => Some(format!("tx-{number} by receive queues {receive}")),
            (false, true) => Some(format!("tx-{number} by CPUs {cpus}")),
        }
    };
    let set: Vec<String> = nic.tx_queues.iter().filter_map(queue).collect();
    if !set.is_empty() {
        findings.good("XPS", format!("transmit queues are chosen: {}", set.join(", ")));
    }
}

fn look_at(host: &dyn Host, nic: &Nic, findings: &mut Findings) {
    link(nic, findings);
    if let Some(layers) = nic.layers() {
        let words = format!("{layers}: packets are steered at the queues of the interfaces below");
        findings.good("layers", words);
    }
    // The other interfaces may carry the traffic, as in a bond.
    let is_down = |nic: &&Nic| nic.state == "down";
    for lower in nic.lower.iter().filter(is_down) {
        let advice =
            format!("its flows arrive on the other ports; ip link set {} up, or check the cable", lower.name);
        findings.bad("link", Severity::Note, format!("{} is down", lower.name), advice);
    }
    for nic in nic.physical() {
        node(host, nic, findings);
        transmission(host, nic, findings);
    }
    match Steering::of(nic) {
        Ok(steering) if !steering.is_software() => findings.good("steering", steering.to_string()),
        Ok(steering) => {
            let advice = "the sweep moves a flow's protocol processing, not its interrupts, so the costs \
                include those of RPS";
            findings.bad("steering", Severity::Note, format!("it has no interrupts; {steering}"), advice);
        }
        Err(error) => findings.bad(
            "steering",
            Severity::Prevents,
            error.to_string(),
            "choose another interface, or --lab",
        ),
    }
    let name = &nic.name;
    if nic.mtu.is_some_and(|mtu| mtu < 9000) && nic.speed_mbps.is_some_and(|speed| speed >= 10_000) {
        let advice =
            format!("ip link set {name} mtu 9000, if the whole path supports it: fewer packets per Gbit");
        findings.bad("MTU", Severity::Note, format!("{} bytes", nic.mtu.unwrap_or(0)), advice);
    } else if let Some(mtu) = nic.mtu {
        findings.good("MTU", format!("{mtu} bytes"));
    }
    for nic in nic.physical() {
        driver(host, nic, findings);
    }
}

fn link(nic: &Nic, findings: &mut Findings) {
    let name = &nic.name;
    if nic.state != "up" && nic.state != "unknown" {
        findings.bad(
            "link",
            Severity::Prevents,
            format!("{name} is {}", nic.state),
            format!("ip link set {name} up, and check the cable"),
        );
    }
}

fn node(host: &dyn Host, nic: &Nic, findings: &mut Findings) {
    let (name, places) = (&nic.name, host.places());
    match nic.node {
        Some(node) if !places.is_empty() && places.iter().all(|place| place.node != node) => findings.bad(
            "NUMA node",
            Severity::Note,
            format!("{name} is attached to node {node}, none of whose CPUs is online"),
            "flows and applications get CPUs of the closest node; to make them faster, set a CPU of its own node online, or move the card to a slot of another node",
        ),
        Some(node) => findings.good("NUMA node", format!("{name} is attached to node {node}")),
        None if places.iter().any(|place| place.node > 0) => {
            let advice = "the sweep finds it: flows are fastest on the interface's own socket";
            findings.bad(
                "NUMA node",
                Severity::Note,
                format!("the system does not report the node of {name}"),
                advice,
            );
        }
        None => {}
    }
}

fn driver(host: &dyn Host, nic: &Nic, findings: &mut Findings) {
    let name = &nic.name;
    let fact = |fact| host.driver(name.name(), fact).ok();
    for (offload, flag, what) in
        [(DriverProperty::Gro, "gro", "GRO"), (DriverProperty::RxChecksum, "rx", "receive checksums")]
    {
        if fact(offload) == Some(0) {
            let advice = format!("ethtool -K {name} {flag} on, unless the sweep studies it");
            findings.bad("offloads", Severity::Note, format!("{what} off"), advice);
        }
    }
    if let (Some(ring), Some(max_ring)) = (fact(DriverProperty::RxRing), fact(DriverProperty::MaxRxRing)) {
        if ring < max_ring {
            let advice =
                format!("ethtool -G {name} rx {max_ring}, if packets are dropped (ethtool -S {name})");
            findings.bad("ring", Severity::Note, format!("{ring} of {max_ring} receive descriptors"), advice);
        } else {
            findings.good("ring", format!("{ring} receive descriptors, the maximum"));
        }
    }
    if let Some(channels) = fact(DriverProperty::Channels).filter(|channels| *channels > 0) {
        findings.good(
            "queues",
            format!(
                "receive queues: {channels} of {}",
                fact(DriverProperty::MaxChannels).unwrap_or(channels)
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeHost;
    use longma_topology::CpuLocation;

    fn host(files: &[(&str, &str)]) -> FakeHost {
        let mut host = FakeHost::with(files);
        let place = |cpu| CpuLocation { cpu, core: vec![cpu], last_cache: None, socket: 0, node: cpu / 2 };
        host.cpus = (0..4).map(place).collect();
        host
    }

    fn of<'a>(findings: &'a [Finding], subject: &str) -> &'a Finding {
        findings
            .iter()
            .find(|finding| finding.subject == subject)
            .unwrap_or_else(|| panic!("{subject}: {findings:?}"))
    }

    #[test]
    fn disturbances_are_found_with_remedies() {
        let host = host(&[
            ("proc/77/comm", "irqbalance\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave"),
            ("sys/devices/system/cpu/offline", "6-7"),
            ("proc/self/status", "Name: x\nCpus_allowed_list:\t0-2\n"),
            ("proc/sys/net/core/rps_sock_flow_entries", "32768"),
            ("sys/class/net/eth0/mtu", "1500"),
            ("sys/class/net/eth0/speed", "40000"),
            ("sys/class/net/eth0/operstate", "down"),
            ("sys/class/net/eth0/queues/tx-0/xps_cpus", "3"),
            ("sys/class/net/eth0/queues/tx-1/xps_cpus", "0"),
            ("sys/class/net/eth0/queues/tx-1/xps_rxqs", "2"),
            ("sys/class/net/eth0/queues/tx-2/xps_cpus", "0"),
        ]);
        host.put_driver("eth0", DriverProperty::RxRing, 512);
        host.put_driver("eth0", DriverProperty::MaxRxRing, 4096);
        host.put_driver("eth0", DriverProperty::Gro, 0);
        let findings = check(&host, Some(&"eth0".parse().unwrap()), None);
        for (subject, weight, words) in [
            ("irqbalance", Severity::Disturbs, "systemctl stop irqbalance"),
            ("governor", Severity::Disturbs, "performance"),
            ("offline CPUs", Severity::Note, "excluded"),
            ("cpuset", Severity::Note, "AllowedCPUs"),
            ("caches", Severity::Note, "assumed to share"),
            ("RFS", Severity::Note, "restores it"),
            ("MTU", Severity::Note, "mtu 9000"),
            ("link", Severity::Prevents, "ip link set eth0 up"),
            ("steering", Severity::Prevents, "--lab"),
            ("ring", Severity::Note, "rx 4096"),
            ("offloads", Severity::Note, "gro on"),
            ("NUMA node", Severity::Note, "sweep finds it"),
        ] {
            let finding = of(&findings, subject);
            assert_eq!(finding.weight, weight, "{finding:?}");
            assert!(finding.advice.as_ref().is_some_and(|advice| advice.contains(words)), "{finding:?}");
        }
        assert!(of(&findings, "cpuset").found.contains("CPUs 3 "));
        let xps = "transmit queues are chosen: tx-0 by CPUs 0-1, tx-1 by receive queues 1";
        assert_eq!(of(&findings, "XPS").found, xps);
    }

    #[test]
    fn a_bond_is_checked_with_the_nics_below_it() {
        let host = host(&[
            ("sys/class/net/bond0/bonding/slaves", "eth0 eth1"),
            ("sys/class/net/bond0/operstate", "up"),
            ("sys/class/net/eth0/device/numa_node", "0"),
            ("sys/class/net/eth0/operstate", "up"),
            ("sys/class/net/eth0/queues/rx-0/rps_cpus", "0"),
            ("sys/class/net/eth1/operstate", "down"),
            ("sys/class/net/eth1/queues/rx-0/rps_cpus", "0"),
        ]);
        let findings = check(&host, Some(&"bond0".parse().unwrap()), None);
        let layers = &of(&findings, "layers").found;
        assert!(layers.contains("bond0 is a bond of eth0, eth1") && layers.contains("steered"), "{layers}");
        assert!(of(&findings, "steering").found.contains("RPS of eth1, 1 queue, below bond0"));
        assert_eq!(of(&findings, "NUMA node").found, "eth0 is attached to node 0");
        assert_eq!(
            (of(&findings, "link").weight, of(&findings, "link").found.as_str()),
            (Severity::Note, "eth1 is down")
        );
    }

    #[test]
    fn an_unknown_interface_is_refused_with_a_list_of_interfaces() {
        let host = host(&[("sys/class/net/eth0/mtu", "1500"), ("sys/class/net/lo/mtu", "65536")]);
        let findings = check(&host, Some(&"eth1".parse().unwrap()), None);
        let finding = of(&findings, "interface");
        assert_eq!((finding.weight, finding.advice.as_deref()), (Severity::Prevents, Some("one of: eth0")));
    }

    #[test]
    fn an_empty_tree_is_described_and_does_no_harm() {
        let findings = check(&FakeHost::default(), None, None);
        assert_eq!(of(&findings, "CPUs").weight, Severity::Prevents);
    }
}
