//! Tests of the observation of flows, interrupts and threads with simulated kernel files.

use super::*;
use crate::fake::FakeHost;
use longma_linux_network::sockets::DatagramSocket;

fn place(cpu: u32) -> CpuLocation {
    CpuLocation {
        cpu,
        core: vec![cpu],
        last_cache: Some((cpu / 2 * 2..cpu / 2 * 2 + 2).collect()),
        socket: cpu / 2,
        node: cpu / 2,
    }
}

/// A /proc stat line of a thread that last ran on `cpu`.
pub(crate) fn stat(name: &str, ticks: u64, cpu: u32) -> String {
    let mut fields: Vec<String> = (4..=52).map(|_| "0".into()).collect();
    (fields[14 - 4], fields[22 - 4], fields[39 - 4]) = (ticks.to_string(), "900".into(), cpu.to_string());
    format!("7 ({name}) S {}", fields.join(" "))
}

pub(crate) fn socket(port: u16, inode: u32, received: Option<u64>) -> Socket {
    let end = |port| SocketAddr::new("192.0.2.7".parse().unwrap(), port);
    let remote = SocketAddr::new("192.0.2.9".parse().unwrap(), port);
    Socket { local: end(5201), remote, inode, received, sent: received.map(|_| 0) }
}

/// Two sockets with two CPUs each; a NIC with one queue on the first socket, its interrupt on CPU 0; process 7 with one
/// thread on CPU 0.
pub(crate) fn host() -> FakeHost {
    let mut host = FakeHost::with(&[
        ("sys/class/net/eth0/queues/rx-0/rps_cpus", "0"),
        ("sys/class/net/eth0/device/numa_node", "0"),
        ("sys/class/net/eth0/operstate", "up"),
        ("proc/irq/default_smp_affinity", "f"),
        ("proc/irq/50/smp_affinity_list", "0-3"),
        ("proc/irq/50/effective_affinity_list", "0"),
        ("proc/interrupts", "  CPU0 CPU1 CPU2 CPU3\n 50: 100 0 0 0 PCI eth0-TxRx-0"),
        ("proc/7/fd/3", "-> socket:[100]"),
        ("proc/7/task/7/stat", &stat("reader", 10, 0)),
    ]);
    host.put_thread(7, "0-3".parse().unwrap());
    host.put_sockets(vec![socket(1, 100, Some(1000))]);
    host.addresses = vec!["192.0.2.7".parse().unwrap()];
    host.cpus = (0..4).map(place).collect();
    host
}

pub(crate) fn watch() -> Watch {
    Watch::new(vec!["eth0".parse().unwrap()])
}

#[test]
fn a_busy_flow_is_seen_with_its_queue_and_its_thread_and_an_idle_one_is_not() {
    let host = host();
    let mut watch = watch();
    assert!(watch.observe(&host).flows.is_empty());
    host.put_sockets(vec![socket(1, 100, Some(1 << 40)), socket(2, 101, Some(0)), socket(3, 0, None)]);
    host.put("proc/interrupts", "  CPU0 CPU1 CPU2 CPU3\n 50: 100 0 900 0 PCI eth0-TxRx-0");
    let observation = watch.observe(&host);
    assert_eq!((observation.connections, observation.flows.len(), observation.threads.len()), (3, 2, 1));
    assert_eq!(
        (
            observation.threads[0].name.as_str(),
            observation.threads[0].cpu,
            observation.threads[0].open.to_string()
        ),
        ("reader", 0, "0-3".into())
    );
    assert_eq!((observation.flows[0].thread, observation.flows[0].remote.port()), (Some(0), 1));
    assert_eq!((observation.queues[0].cpu, &observation.queues[0].taken), (Some(2), &None));
    // The flow with unknown bytes may be busy, and no process has it open.
    assert_eq!((observation.flows[1].thread, observation.flows[1].remote.port()), (None, 3));
    assert!(
        observation
            .missing
            .iter()
            .any(|words| words.contains("the processes of 1 busy flows were not found")),
        "{:?}",
        observation.missing
    );
}

/// Another device keeps a CPU in softirqs. None of this time is attributed to a queue on that CPU without interrupts
/// and flows. A queue with flows gets a share even without interrupts, because a busy queue is polled with its
/// interrupt off.
#[test]
fn the_softirq_time_of_a_cpu_is_that_of_queues_with_packets() {
    let mut host = host();
    host.put("sys/class/net/eth0/queues/rx-1/rps_cpus", "0");
    for (irq, cpu) in [(50, "0"), (51, "2")] {
        host.put(&format!("proc/irq/{irq}/smp_affinity_list"), cpu);
        host.put(&format!("proc/irq/{irq}/affinity_hint"), if cpu == "0" { "1" } else { "4" });
    }
    let table = |queue: u32| RssTable {
        key: vec![0; 40],
        table: vec![queue; 4],
        ports: [true; 2],
        datagram_ports: [Some(true); 2],
    };
    let stat =
        |ticks: u64| format!("cpu0 0 0 0 {ticks} 0 0 0 0\ncpu2 0 0 0 0 0 0 {ticks} 0\nprocs_running 1\n");
    for (queue, load) in [(0, 0.0), (1, 1.0)] {
        host.rss_table = Some(table(queue));
        host.put("proc/stat", &stat(100));
        host.put(
            "proc/interrupts",
            "  CPU0 CPU1 CPU2 CPU3\n 50: 9 0 0 0 PCI eth0-TxRx-0\n 51: 0 0 5 0 PCI eth0-TxRx-1",
        );
        let mut watch = watch();
        watch.observe(&host);
        host.put_sockets(vec![socket(1, 100, Some(5_000_000))]);
        host.put("proc/stat", &stat(200));
        let grown = if queue == 0 { 900 } else { 9 };
        host.put(
            "proc/interrupts",
            &format!(
                "  CPU0 CPU1 CPU2 CPU3\n 50: {grown} 0 0 0 PCI eth0-TxRx-0\n 51: 0 0 5 0 PCI eth0-TxRx-1"
            ),
        );
        let observation = watch.observe(&host);
        assert_eq!(observation.flows[0].arrives[0].1, Some(queue));
        assert_eq!(observation.queues[1].load, load, "{:?}", observation.queues);
        host.put_sockets(vec![socket(1, 100, Some(1000))]);
    }
}

/// As measured with virtio_net, whose table names another queue than the one whose interrupts fire.
#[test]
fn an_rss_table_that_interrupts_refute_is_not_used_until_it_changes() {
    let mut host = host();
    host.put("sys/class/net/eth0/queues/rx-1/rps_cpus", "0");
    host.put("proc/irq/51/smp_affinity_list", "2");
    let table = |queue: u32| RssTable {
        key: vec![0; 40],
        table: vec![queue; 4],
        ports: [true; 2],
        datagram_ports: [Some(true); 2],
    };
    host.rss_table = Some(table(0));
    let mut watch = watch();
    let (mut bytes, mut counts) = (0, [0, 0]);
    let mut look = |host: &FakeHost, more: [u64; 2]| {
        bytes += 5_000_000;
        counts = [counts[0] + more[0], counts[1] + more[1]];
        host.put_sockets(vec![socket(1, 100, Some(bytes))]);
        let [first, second] = counts;
        host.put(
            "proc/interrupts",
            &format!("  CPU0 CPU1 CPU2 CPU3\n 50: {first} 0 0 0 PCI eth0-TxRx-0\n 51: 0 0 {second} 0 PCI eth0-TxRx-1"),
        );
        let observation = watch.observe(host);
        let is_reported = observation.missing.iter().any(|words| words.contains("RSS table of eth0"));
        (observation.flows.first().map(|flow| flow.arrives[0].1), is_reported)
    };
    assert_eq!(look(&host, [0, 0]), (None, false));
    assert_eq!(look(&host, [500, 0]), (Some(Some(0)), false));
    assert_eq!(look(&host, [0, 500]), (Some(None), true));
    // Other flows arrive by the queue.
    assert_eq!(look(&host, [500, 500]), (Some(None), true));
    host.rss_table = Some(table(1));
    assert_eq!(look(&host, [0, 500]), (Some(Some(1)), false));
}

#[test]
fn of_several_threads_the_one_that_waits_owns_the_flow() {
    let host = host();
    host.put("proc/7/task/8/stat", &stat("reader", 10, 3));
    host.put("proc/7/task/9/stat", &stat("reader", 10, 2));
    for thread in [8, 9] {
        host.put_thread(thread, "0-3".parse().unwrap());
    }
    let read = if cfg!(target_arch = "x86_64") { 0 } else { 63 };
    let mut watch = watch();
    let look = |watch: &mut Watch, bytes: u64| {
        host.put_sockets(vec![socket(1, 100, Some(bytes))]);
        watch.observe(&host)
    };
    look(&mut watch, 0);
    let observation = look(&mut watch, 1 << 40);
    assert!(
        observation.threads.is_empty()
            && observation.missing.iter().any(|words| words.contains("left alone")),
        "{:?}",
        observation.missing
    );
    host.put("proc/7/task/8/syscall", &format!("{read} 0x3 0x0"));
    assert_eq!(look(&mut watch, 2 << 40).threads[0].thread, 8);
    // No thread is blocked on the descriptor, but only one is busy.
    host.remove("proc/7/task/8/syscall");
    host.put("proc/7/task/9/stat", &stat("reader", 90, 2));
    assert_eq!(look(&mut watch, 3 << 40).threads[0].thread, 9);
}

#[test]
fn missing_kernel_data_is_reported_and_the_rest_works() {
    let host = FakeHost::default();
    let observation = watch().observe(&host);
    assert!(
        observation.missing.iter().any(|words| words.contains("no interface eth0")),
        "{:?}",
        observation.missing
    );
    // No sock_diag, no interrupts, no address.
    let mut host = self::host();
    host.remove("proc/irq/50/smp_affinity_list");
    host.put("proc/net/tcp", " sl\n 0: 070200C0:1451 090200C0:0001 01 0:0 0:0 0 0 0 100");
    let without = FakeHost::with(&[]);
    for (path, text) in host.all() {
        without.put(&path, &text);
    }
    without.put_thread(7, "0-3".parse().unwrap());
    let mut without = without;
    without.cpus = host.cpus.clone();
    without.addresses = std::mem::take(&mut host.addresses);
    let mut watch = watch();
    watch.observe(&without);
    let observation = watch.observe(&without);
    let missing = observation.missing.join("\n");
    assert!(missing.contains("inet_diag") && missing.contains("steered in software"), "{missing}");
    if cfg!(target_endian = "little") {
        assert_eq!(
            (observation.flows.len(), observation.flows[0].thread, observation.flows[0].received),
            (1, Some(0), None)
        );
    }
    assert!(matches!(observation.queues[0].setting, Setting::Rps { .. }));
    without.addresses.clear();
    assert!(watch.observe(&without).missing.iter().any(|words| words.contains("has no address")));
}

#[test]
fn a_manually_bound_interrupt_is_distinguished_from_a_driver_default() {
    let host = host();
    let taken = || watch().observe(&host).queues[0].taken.clone();
    assert_eq!(taken(), None);
    host.put("proc/irq/50/smp_affinity_list", "1");
    assert!(taken().unwrap().contains("CPUs 1"));
    host.put("proc/irq/50/affinity_hint", "2");
    assert_eq!(taken(), None);
}

#[test]
fn a_bonds_flows_are_those_of_the_queues_below_it() {
    let host = host();
    host.put("sys/class/net/bond0/bonding/slaves", "eth0");
    host.put("sys/class/net/bond0/queues/rx-0/rps_cpus", "0");
    let eth0: Interface = "eth0".parse().unwrap();
    let mut watch = Watch::new(vec!["bond0".parse().unwrap(), eth0.clone()]);
    watch.observe(&host);
    host.put_sockets(vec![socket(1, 100, Some(1 << 40))]);
    let observation = watch.observe(&host);
    assert_eq!(observation.queues.iter().map(|queue| &queue.interface).collect::<Vec<_>>(), [&eth0]);
    assert_eq!(observation.queues[0].setting, Setting::Irq(50));
    assert_eq!(observation.flows[0].arrives, [(eth0, None)]);
    // Below a macvlan in a container, no queue is visible.
    host.put("sys/class/net/mv0/uevent", "DEVTYPE=macvlan");
    host.put("sys/class/net/mv0/queues/rx-0/rps_cpus", "0");
    let observation = Watch::new(vec!["mv0".parse().unwrap()]).observe(&host);
    assert!(observation.queues.is_empty(), "{:?}", observation.queues);
    assert!(
        observation.missing.iter().any(|words| words.contains("mv0 is a macvlan")),
        "{:?}",
        observation.missing
    );
}

/// A QUIC server on all addresses, a connected UDP socket of an idle process, and the kernel's own.
#[test]
fn a_udp_socket_is_a_flow_with_an_estimated_rate() {
    let mut host = host();
    let udp = |local: &str, remote: Option<&str>, inode, dropped| DatagramSocket {
        local: local.parse().unwrap(),
        remote: remote.map(|remote| remote.parse().unwrap()),
        inode,
        dropped: Some(dropped),
    };
    let sockets = |dropped| {
        vec![
            udp("0.0.0.0:443", None, 200, dropped),
            udp("192.0.2.7:9000", Some("192.0.2.9:53"), 201, 5),
            udp("0.0.0.0:51820", None, 0, 0),
            udp("203.0.113.1:443", None, 202, 0),
        ]
    };
    host.put("proc/8/fd/3", "-> socket:[200]");
    host.put("proc/9/fd/3", "-> socket:[201]");
    host.put("proc/10/fd/3", "-> socket:[202]");
    let counts = |host: &FakeHost, bytes: u64, ticks: u64| {
        host.put("sys/class/net/eth0/statistics/rx_bytes", &bytes.to_string());
        host.put("sys/class/net/eth0/statistics/tx_bytes", "0");
        host.put("proc/net/snmp", &format!("Udp: InDatagrams OutDatagrams\nUdp: {} 0", bytes / 1000));
        host.put("proc/8/task/8/stat", &stat("quic", ticks, 2));
        host.put("proc/9/task/9/stat", &stat("named", 10, 1));
    };
    for thread in [8, 9] {
        host.put_thread(thread, "0-3".parse().unwrap());
    }
    host.datagram_sockets = sockets(0);
    let mut watch = watch();
    counts(&host, 0, 0);
    assert!(watch.observe(&host).flows.is_empty());
    // The first busy interval has no processor times to divide by, because idle sockets' owners are not looked up.
    counts(&host, 1 << 40, 1 << 20);
    assert!(watch.observe(&host).flows.is_empty());
    counts(&host, 2 << 40, 2 << 20);
    let observation = watch.observe(&host);
    let found: Vec<_> =
        observation.flows.iter().map(|flow| (flow.local.port(), flow.protocol, flow.thread)).collect();
    assert_eq!(found, [(443, Protocol::Udp, Some(0))]);
    assert_eq!(observation.threads.iter().map(|thread| &*thread.name).collect::<Vec<_>>(), ["quic"]);
    assert!(observation.flows[0].received > Some(1e9) && observation.flows[0].drops == Some(0.0));
    assert_eq!(observation.flows[0].arrives[0].1, None, "its senders are not known");
    assert_eq!(observation.missing, Vec::<String>::new());
    // A socket that drops datagrams is busy, whatever the interface counts.
    host.datagram_sockets = sockets(99);
    assert!(watch.observe(&host).flows[0].drops > Some(0.0));
    assert!(watch.observe(&host).flows.is_empty());
}
