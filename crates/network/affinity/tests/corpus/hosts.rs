//! The hosts of the corpus, generated.

use longma_affinity::fake::{FakeHost, topology};
use longma_affinity::recording::{Recording, record};
use longma_cpu_set::CpuSet;
use longma_linux_network::ethtool::DriverProperty;
use longma_linux_network::sockets::Socket;
use longma_topology::CpuLocation;
use std::net::SocketAddr;

/// A host.
#[derive(Clone, Copy)]
pub struct Shape {
    pub name: &'static str,
    /// Sockets, last-level caches of each, cores of each, threads of each.
    pub cpus: (u32, u32, u32, u32),
    /// NUMA nodes of each socket.
    pub nodes_of_socket: u32,
    /// Nodes of the NICs.
    pub nics: &'static [u32],
    /// Receive queues of each NIC.
    pub queues: u32,
    /// Whether the number of queues can be changed.
    pub can_reduce: bool,
    /// The interface to examine, and the files that describe the interfaces above or below it.
    pub interface: &'static str,
    pub layers: &'static [(&'static str, &'static str)],
    pub offline: Option<&'static str>,
    pub isolated: Option<&'static str>,
    /// The cpuset of programs.
    pub cpuset: Option<&'static str>,
}

const PLAIN: Shape = Shape {
    name: "",
    cpus: (1, 1, 4, 1),
    nodes_of_socket: 1,
    nics: &[0],
    queues: 1,
    can_reduce: true,
    interface: "eth0",
    layers: &[],
    offline: None,
    isolated: None,
    cpuset: None,
};

const BOND: &[(&str, &str)] =
    &[("sys/class/net/bond0/bonding/slaves", "eth0 eth1"), ("sys/class/net/bond0/operstate", "up")];
const VLAN_OF_BOND: &[(&str, &str)] = &[
    ("sys/class/net/bond0/bonding/slaves", "eth0 eth1"),
    ("sys/class/net/bond0/operstate", "up"),
    ("sys/class/net/vlan7/operstate", "up"),
    ("sys/class/net/vlan7/uevent", "DEVTYPE=vlan"),
    ("sys/class/net/vlan7/lower_bond0", "-> ../bond0"),
];
const BRIDGE: &[(&str, &str)] = &[
    ("sys/class/net/br0/bridge/stp_state", "0"),
    ("sys/class/net/br0/operstate", "up"),
    ("sys/class/net/br0/brif/eth0/state", "3"),
    ("sys/class/net/br0/brif/veth7/state", "3"),
    ("sys/class/net/veth7/operstate", "up"),
];

pub fn shapes() -> Vec<Shape> {
    vec![
        Shape { name: "small", ..PLAIN },
        Shape { name: "one queue for each CPU", queues: 4, ..PLAIN },
        Shape { name: "fixed queues", queues: 16, can_reduce: false, ..PLAIN },
        Shape { name: "two sockets", cpus: (2, 1, 8, 2), nics: &[1], queues: 16, ..PLAIN },
        Shape {
            name: "two sockets, 64 fixed queues",
            cpus: (2, 1, 12, 2),
            queues: 64,
            can_reduce: false,
            ..PLAIN
        },
        Shape { name: "four sockets", cpus: (4, 1, 10, 2), nics: &[2], queues: 32, ..PLAIN },
        Shape { name: "eight sockets, 128 queues", cpus: (8, 1, 8, 2), nics: &[5], queues: 128, ..PLAIN },
        Shape { name: "eight caches", cpus: (1, 8, 8, 2), queues: 63, ..PLAIN },
        Shape {
            name: "eight caches, fixed queues",
            cpus: (1, 8, 4, 2),
            queues: 40,
            can_reduce: false,
            ..PLAIN
        },
        Shape {
            name: "eight caches, four nodes",
            cpus: (2, 8, 4, 2),
            nodes_of_socket: 4,
            nics: &[6],
            queues: 32,
            ..PLAIN
        },
        Shape { name: "a cache for each core", cpus: (1, 8, 1, 1), queues: 8, ..PLAIN },
        Shape {
            name: "sub-NUMA clustering",
            cpus: (2, 1, 16, 2),
            nodes_of_socket: 2,
            nics: &[3],
            queues: 16,
            ..PLAIN
        },
        Shape {
            name: "bond on two nodes",
            cpus: (2, 1, 8, 1),
            nics: &[0, 1],
            queues: 16,
            interface: "bond0",
            layers: BOND,
            ..PLAIN
        },
        Shape {
            name: "bond on one node",
            cpus: (2, 2, 4, 2),
            nics: &[1, 1],
            queues: 8,
            interface: "bond0",
            layers: BOND,
            ..PLAIN
        },
        Shape {
            name: "VLAN of a bond",
            cpus: (2, 4, 4, 1),
            nics: &[0, 1],
            queues: 8,
            interface: "vlan7",
            layers: VLAN_OF_BOND,
            ..PLAIN
        },
        Shape {
            name: "bridge of containers",
            cpus: (2, 1, 8, 1),
            nics: &[1],
            queues: 8,
            interface: "br0",
            layers: BRIDGE,
            ..PLAIN
        },
        Shape { name: "container", cpus: (2, 1, 8, 1), nics: &[1], queues: 8, cpuset: Some("8-11"), ..PLAIN },
        Shape {
            name: "container on the other node",
            cpus: (2, 1, 8, 1),
            nics: &[1],
            queues: 8,
            cpuset: Some("2-3"),
            ..PLAIN
        },
        Shape {
            name: "offline CPUs",
            cpus: (2, 1, 8, 1),
            nics: &[1],
            queues: 8,
            offline: Some("9-10"),
            ..PLAIN
        },
        Shape {
            name: "isolated CPUs",
            cpus: (2, 1, 8, 1),
            nics: &[1],
            queues: 8,
            isolated: Some("8-11"),
            ..PLAIN
        },
    ]
}

impl Shape {
    fn places(&self) -> Vec<CpuLocation> {
        let (sockets, caches, cores, threads) = self.cpus;
        let mut places = topology(sockets, caches, cores, threads);
        let (of_socket, all) = (caches * cores, sockets * caches * cores);
        for place in &mut places {
            let core = place.cpu % all % of_socket;
            place.node = place.socket * self.nodes_of_socket + core * self.nodes_of_socket / of_socket;
        }
        let offline: CpuSet = self.offline.map(|cpus| cpus.parse().unwrap()).unwrap_or_default();
        places.retain(|place| !offline.contains(place.cpu));
        for place in &mut places {
            place.core.retain(|cpu| !offline.contains(*cpu));
            if let Some(cache) = &mut place.last_cache {
                cache.retain(|cpu| !offline.contains(*cpu));
            }
        }
        places
    }

    fn host(&self) -> FakeHost {
        let mut host = FakeHost::with(self.layers);
        host.cpus = self.places();
        let last = host.cpus.iter().map(|place| place.cpu).max().unwrap();
        host.put("proc/1/comm", "systemd");
        host.put("proc/irq/default_smp_affinity", &all(last).mask());
        for (file, cpus) in [("offline", self.offline), ("isolated", self.isolated)] {
            host.put(&format!("sys/devices/system/cpu/{file}"), cpus.unwrap_or(""));
        }
        if let Some(cpus) = self.cpuset {
            host.put("proc/self/status", &format!("Cpus_allowed_list:\t{cpus}"));
        }
        for (number, node) in self.nics.iter().enumerate() {
            let base = format!("sys/class/net/eth{number}");
            for (file, text) in [("mtu", "9000"), ("operstate", "up"), ("speed", "100000")] {
                host.put(&format!("{base}/{file}"), text);
            }
            host.put(&format!("{base}/device"), &format!("-> ../../../0000:0{number}:00.0"));
            host.put(&format!("{base}/device/driver"), "-> ../bus/pci/drivers/ice");
            host.put(&format!("{base}/device/numa_node"), &node.to_string());
            for queue in 0..self.queues {
                host.put(&format!("{base}/queues/rx-{queue}/rps_cpus"), "0");
                let irq = self.irq(number, queue);
                host.put(&format!("proc/irq/{irq}/smp_affinity_list"), &all(last).to_string());
            }
            let name = format!("eth{number}");
            if self.can_reduce {
                host.put_driver(&name, DriverProperty::MaxChannels, self.queues.into());
                host.put_driver(&name, DriverProperty::CombinedChannels, self.queues.into());
            }
        }
        host
    }

    fn irq(&self, nic: usize, queue: u32) -> u32 {
        100 + nic as u32 * self.queues + queue
    }

    /// /proc/interrupts, in which each queue has raised `count` interrupts on the first CPU.
    fn interrupts(&self, host: &FakeHost, count: u64) -> String {
        let heads: Vec<String> = host.cpus.iter().map(|place| format!("CPU{}", place.cpu)).collect();
        let mut text = format!("  {}", heads.join(" "));
        for nic in 0..self.nics.len() {
            for queue in 0..self.queues {
                let zeros = " 0".repeat(host.cpus.len() - 1);
                text +=
                    &format!("\n {}: {count}{zeros} PCI-MSIX eth{nic}-TxRx-{queue}", self.irq(nic, queue));
            }
        }
        text
    }
}

fn all(last: u32) -> CpuSet {
    (0..=last).collect()
}

fn socket(bytes: u64) -> Socket {
    let end = |host: &str, port| SocketAddr::new(host.parse().unwrap(), port);
    Socket {
        local: end("192.0.2.7", 5201),
        remote: end("192.0.2.9", 40000),
        inode: 100,
        received: Some(bytes),
        sent: Some(0),
    }
}

/// A line of /proc/PID/task/TID/stat of a thread that runs on the first CPU.
fn stat(ticks: u64, cpu: u32) -> String {
    let mut fields = vec!["0".to_string(); 49];
    (fields[14 - 4], fields[22 - 4], fields[39 - 4]) = (ticks.to_string(), "900".into(), cpu.to_string());
    format!("7 (reader) S {}", fields.join(" "))
}

/// Records a host on which a program receives one busy flow, and reads the recording.
pub fn recorded(shape: &Shape) -> Recording {
    let mut host = shape.host();
    host.addresses = vec!["192.0.2.7".parse().unwrap()];
    let last = host.cpus.iter().map(|place| place.cpu).max().unwrap();
    let open: CpuSet = shape.cpuset.map_or_else(|| all(last), |cpus| cpus.parse().unwrap());
    let first = open.iter().next().unwrap();
    host.put("proc/7/fd/3", "-> socket:[100]");
    host.put("proc/7/task/7/stat", &stat(10, first));
    host.put("proc/7/task/7/status", &format!("Cpus_allowed_list:\t{open}"));
    host.put_thread(7, open);
    host.put_sockets(vec![socket(1000)]);
    host.put("proc/interrupts", &shape.interrupts(&host, 5));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("host.tar");
    let mut run = || {
        host.put_sockets(vec![socket(1 << 40)]);
        host.put("proc/7/task/7/stat", &stat(60, first));
        host.put("proc/interrupts", &shape.interrupts(&host, 9000));
    };
    record(&host, &mut run, &path).unwrap();
    Recording::open(&path).unwrap()
}
