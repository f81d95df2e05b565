//! Observes the flows of a host over an interval: connections and UDP sockets with their rates, the threads that use
//! them, queues and their CPUs, and the load. `tune` decides on changes.
//!
//! Source: sock_diag(7), proc(5); Linux Documentation/core-api/irq/irq-affinity.rst (effective_affinity,
//! affinity_hint), networking/scaling.rst.

use crate::counters::{CpuShares, Reading};
use crate::host::Host;
use crate::interface::{self, Nic};
use crate::numa::NodeDistances;
use crate::owners::{SocketOwner, SocketOwners};
use crate::preflight::isolated;
use crate::setting::{Interface, Setting};
use crate::threads;
use longma_cpu_set::CpuSet;
use longma_linux_network::rss_table::RssTable;
use longma_linux_network::sockets::{self, Socket};
use longma_topology::CpuLocation;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

mod arrivals;
mod datagrams;
mod queues;

use arrivals::RefutedTables;

/// Number of flows whose threads are looked up: those with the highest rates.
pub const MAX_FLOWS: usize = 64;
/// Rate in bytes per second below which a flow is ignored.
const BUSY: f64 = 125_000.0;
/// Maximum number of threads per process whose system call is read.
const MAX_THREADS: usize = 256;
/// Fraction of a process's CPU time above which a thread is considered its only busy thread.
const NEARLY_ALL: f64 = 0.9;
/// Ticks per second in /proc (USER_HZ), the same on all architectures.
const TICKS: f64 = 100.0;

/// Result of an observation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Observation {
    /// Topology of the online CPUs.
    #[serde(skip)]
    pub places: Vec<CpuLocation>,
    /// CPUs that are isolated from the scheduler.
    #[serde(default)]
    pub isolated: CpuSet,
    /// Length of the interval in seconds.
    pub seconds: f64,
    /// How each CPU spent its time.
    pub cpus: BTreeMap<u32, CpuShares>,
    /// Queues of the interfaces.
    pub queues: Vec<Queue>,
    /// Distances from the nodes of the interfaces to others.
    #[serde(default)]
    pub distances: BTreeMap<u32, NodeDistances>,
    /// The busiest flows, highest rate first.
    pub flows: Vec<Flow>,
    /// Threads of the flows.
    pub threads: Vec<Thread>,
    /// Number of established connections of the interfaces.
    pub connections: usize,
    /// Descriptions of data that could not be observed, with advice.
    pub missing: Vec<String>,
}

/// A queue of an interface: its interrupt, or its packets if they are steered in software.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Its interface.
    pub interface: Interface,
    /// NUMA node of the interface; `None` if unknown.
    pub node: Option<u32>,
    /// The setting that steers it.
    pub setting: Setting,
    /// Display name.
    pub name: String,
    /// Number of the receive queue; `None` if the interrupt's name does not contain it.
    pub number: Option<u32>,
    /// CPU that processes it; `None` if that depends on where packets arrive.
    pub cpu: Option<u32>,
    /// Interrupts per second; `None` if it has no interrupt.
    pub interrupts: Option<f64>,
    /// Load in CPUs.
    pub load: f64,
    /// Why it must not be steered, if another program or the kernel controls it.
    pub taken: Option<String>,
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// TCP, whose bytes the kernel counts.
    #[default]
    Tcp,
    /// UDP, and QUIC over it. The rates are estimates.
    Udp,
}

/// A busy connection, or a UDP socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// Local address.
    pub local: SocketAddr,
    /// Remote address; unspecified for a UDP socket that is not connected.
    pub remote: SocketAddr,
    /// Its protocol.
    #[serde(default)]
    pub protocol: Protocol,
    /// Watched interface that it arrives on.
    pub interface: Interface,
    /// Physical interfaces that it may arrive on, each with the receive queue by the driver's RSS hash, if known.
    pub arrives: Vec<(Interface, Option<u32>)>,
    /// Received bytes per second; `None` if the kernel does not report them.
    pub received: Option<f64>,
    /// Sent bytes per second; `None` if the kernel does not report them.
    pub sent: Option<f64>,
    /// Datagrams per second that were dropped because the socket's buffer was full; `None` if unknown, and for TCP.
    #[serde(default)]
    pub drops: Option<f64>,
    /// Index of its thread; `None` if it was not found.
    pub thread: Option<usize>,
}

/// A thread that uses flows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Thread {
    /// Process ID.
    pub process: u32,
    /// Thread ID.
    pub thread: u32,
    /// Start time in ticks since boot.
    pub started: u64,
    /// Name.
    pub name: String,
    /// Names of all threads of its process and of the program's file.
    pub names: BTreeSet<String>,
    /// CPU that it last ran on.
    pub cpu: u32,
    /// Load in CPUs.
    pub load: f64,
    /// Its CPU affinity.
    pub bound: CpuSet,
    /// CPUs allowed by its cpuset.
    pub open: CpuSet,
}

impl Flow {
    /// Bytes per second in both directions.
    pub fn bytes(&self) -> f64 {
        self.known_bytes().unwrap_or(0.0)
    }

    /// Like [`bytes`](Self::bytes); `None` if the kernel reports neither direction.
    pub fn known_bytes(&self) -> Option<f64> {
        (self.received.is_some() || self.sent.is_some())
            .then(|| self.received.unwrap_or(0.0) + self.sent.unwrap_or(0.0))
    }
}

impl Thread {
    /// The setting of its affinity.
    pub fn setting(&self) -> Setting {
        Setting::Thread { process: self.process, thread: self.thread, started: self.started }
    }
}

/// Makes repeated observations and keeps the counters that rates are computed from.
pub struct Watch {
    interfaces: Vec<Interface>,
    owners: SocketOwners,
    last: Option<PreviousReading>,
    ticks: HashMap<(u32, u32, u64), u64>,
    refuted_tables: RefutedTables,
}

struct PreviousReading {
    at: Instant,
    reading: Reading,
    bytes: HashMap<(SocketAddr, SocketAddr), (Option<u64>, Option<u64>)>,
    interrupts: BTreeMap<u32, BTreeMap<u32, u64>>,
    datagrams: datagrams::Counters,
}

impl Watch {
    /// Creates a watch for these interfaces.
    pub fn new(interfaces: Vec<Interface>) -> Self {
        let refuted_tables = RefutedTables::default();
        Self {
            interfaces,
            owners: SocketOwners::default(),
            last: None,
            ticks: HashMap::new(),
            refuted_tables,
        }
    }

    /// Observes the interval since the last call. The first observation has no rates.
    pub fn observe(&mut self, host: &dyn Host) -> Observation {
        let mut missing = Vec::new();
        let nics: Vec<Nic> = self.interfaces.iter().filter_map(|name| interface::read(host, name)).collect();
        for name in self.interfaces.iter().filter(|name| nics.iter().all(|nic| nic.name != **name)) {
            missing.push(format!("there is no interface {name}: its flows are unknown until it appears"));
        }
        let (at, reading) = (Instant::now(), Reading::now(host));
        let by_address = by_address(host, &nics, &mut missing);
        let connections = connections(host, &by_address, &mut missing);
        let datagrams = datagrams::of(host, &nics, &by_address);
        let bytes = |(socket, _): &(Socket, Interface)| {
            ((socket.local, socket.remote), (socket.received, socket.sent))
        };
        let now = PreviousReading {
            at,
            reading,
            bytes: connections.iter().map(bytes).collect(),
            interrupts: queues::interrupts(&host.read("proc/interrupts").unwrap_or_default()),
            datagrams: datagrams.counters,
        };
        let counts = self.last.as_ref().map(|last| last.reading.until(&now.reading)).unwrap_or_default();
        let places = host.places();
        let mut observation = Observation {
            seconds: counts.seconds,
            cpus: counts.cpus,
            connections: connections.len(),
            ..Default::default()
        };
        let before = self.last.as_ref().map(|last| &last.interrupts);
        let mut physical: Vec<&Nic> = Vec::new();
        for nic in nics.iter().flat_map(Nic::physical) {
            if physical.iter().all(|known| known.name != nic.name) {
                physical.push(nic);
            }
        }
        let distances = |nic: &&Nic| Some((nic.node?, nic.distances.clone()));
        observation.distances = physical.iter().filter_map(distances).collect();
        observation.queues =
            queues::of(host, &physical, before.zip(Some(&now.interrupts)), &observation, &mut missing);
        let online: CpuSet = places.iter().map(|place| place.cpu).collect();
        let rss_tables: HashMap<&Interface, RssTable> = physical
            .iter()
            .filter(|nic| nic.rx_queues.len() > 1)
            .filter_map(|nic| Some((&nic.name, host.rss_table(nic.name.name()).ok()?)))
            .collect();
        let mut busy = self.busy(&connections, at);
        let counted = (self.last.as_ref().map_or(&now.datagrams, |last| &last.datagrams), &now.datagrams);
        let udp_rates = datagrams::rates(counted, self.tcp_rates(&connections, at), observation.seconds);
        if udp_rates.iter().sum::<f64>() >= BUSY || datagrams::have_dropped(counted) {
            busy.extend(datagrams.flows);
        }
        for (_, flow) in &mut busy {
            let nic = nics.iter().find(|nic| nic.name == flow.interface);
            let arrival = |nic: &Nic| {
                let rss_table = rss_tables.get(&nic.name);
                let queue = rss_table.and_then(|rss_table| match flow.protocol {
                    Protocol::Tcp => rss_table.queue_of(flow.local, flow.remote),
                    // The sender of datagrams to an unconnected socket is not known.
                    Protocol::Udp if flow.remote.port() == 0 => None,
                    Protocol::Udp => rss_table.queue_of_datagrams(flow.local, flow.remote),
                });
                (nic.name.clone(), queue)
            };
            flow.arrives = nic.iter().flat_map(|nic| nic.physical()).map(arrival).collect();
        }
        self.threads(host, &busy, &online, &mut observation, &mut missing);
        let inodes: Vec<u32> = busy.iter().map(|(socket, _)| socket.inode).collect();
        let counted = (self.last.as_ref().map_or(&now.datagrams, |last| &last.datagrams), &now.datagrams);
        datagrams::divide(&mut observation, &inodes, counted, (udp_rates, BUSY));
        self.refuted_tables.apply(&rss_tables, &mut observation, &mut missing);
        let mut queues = std::mem::take(&mut observation.queues);
        queues::share_load(&mut queues, &observation);
        observation.queues = queues;
        (observation.places, observation.missing) = (places, missing);
        observation.isolated = isolated(host);
        self.last = Some(now);
        observation
    }

    /// The busiest connections with their rates; empty at the first observation.
    fn busy(&self, connections: &[(Socket, Interface)], at: Instant) -> Vec<(Socket, Flow)> {
        let Some(last) = &self.last else { return Vec::new() };
        let seconds = at.duration_since(last.at).as_secs_f64().max(1e-3);
        let rate = |(socket, interface): &(Socket, Interface)| {
            // A new connection has transferred all its bytes in this interval.
            let (received, sent) =
                last.bytes.get(&(socket.local, socket.remote)).copied().unwrap_or((Some(0), Some(0)));
            let grown = |before: Option<u64>, after: Option<u64>| {
                Some(after?.saturating_sub(before?) as f64 / seconds)
            };
            let flow = Flow {
                local: socket.local,
                remote: socket.remote,
                interface: interface.clone(),
                protocol: Protocol::Tcp,
                arrives: Vec::new(),
                received: grown(received, socket.received),
                sent: grown(sent, socket.sent),
                drops: None,
                thread: None,
            };
            // If the kernel reports no bytes, treat every flow as busy.
            let is_busy = flow.bytes() >= BUSY || (socket.received.is_none() && socket.sent.is_none());
            is_busy.then(|| (socket.clone(), flow))
        };
        let mut busy: Vec<(Socket, Flow)> = connections.iter().filter_map(rate).collect();
        busy.sort_by(|(_, one), (_, other)| {
            other.bytes().total_cmp(&one.bytes()).then(one.local.cmp(&other.local))
        });
        busy.truncate(MAX_FLOWS);
        busy
    }

    /// Received and sent bytes per second of all connections; `None` if the kernel does not report them.
    fn tcp_rates(&self, connections: &[(Socket, Interface)], at: Instant) -> Option<[f64; 2]> {
        let last = self.last.as_ref()?;
        let seconds = at.duration_since(last.at).as_secs_f64().max(1e-3);
        let mut bytes = [0u64; 2];
        for (socket, _) in connections {
            let before =
                last.bytes.get(&(socket.local, socket.remote)).copied().unwrap_or((Some(0), Some(0)));
            bytes[0] = bytes[0].saturating_add(socket.received?.saturating_sub(before.0?));
            bytes[1] = bytes[1].saturating_add(socket.sent?.saturating_sub(before.1?));
        }
        Some(bytes.map(|bytes| bytes as f64 / seconds))
    }

    /// Finds the thread of each flow.
    fn threads(
        &mut self,
        host: &dyn Host,
        busy: &[(Socket, Flow)],
        online: &CpuSet,
        observation: &mut Observation,
        missing: &mut Vec<String>,
    ) {
        let inodes: Vec<u32> = busy.iter().map(|(socket, _)| socket.inode).collect();
        let owners = self.owners.of(host, &inodes);
        let mut teams: BTreeMap<u32, ProcessThreads> = BTreeMap::new();
        let (mut unowned, mut unread) = (0, 0);
        for (socket, flow) in busy {
            let mut flow = flow.clone();
            match owners.get(&socket.inode) {
                // The kernel itself has UDP sockets, for tunnels.
                None => unowned += usize::from(flow.protocol == Protocol::Tcp),
                Some(owner) => {
                    let team =
                        teams.entry(owner.process).or_insert_with(|| ProcessThreads::of(host, owner.process));
                    match team.reader(host, *owner, &self.ticks) {
                        Some(thread) => flow.thread = self.thread(host, (team, thread), online, observation),
                        None => unread += usize::from(flow.protocol == Protocol::Tcp),
                    }
                }
            }
            observation.flows.push(flow);
        }
        let stats = teams.iter().flat_map(|(process, team)| {
            team.stats.iter().map(move |(thread, stat)| (*process, *thread, stat))
        });
        self.ticks =
            stats.map(|(process, thread, stat)| ((process, thread, stat.started), stat.ticks)).collect();
        if unowned > 0 {
            let why = if rustix::process::geteuid().is_root() {
                "they belong to another container or to the kernel"
            } else {
                "they belong to other users: run it as root"
            };
            missing.push(format!(
                "the processes of {unowned} busy flows were not found ({why}): their \
                queues are watched, but the processes are not moved"
            ));
        }
        if unread > 0 {
            missing.push(format!(
                "for {unread} busy flows, the thread that reads the flow is unknown: the \
                threads of these processes are left alone"
            ));
        }
    }

    /// Index of a thread in the observation. Adds it if necessary.
    fn thread(
        &self,
        host: &dyn Host,
        (team, thread): (&ProcessThreads, u32),
        online: &CpuSet,
        observation: &mut Observation,
    ) -> Option<usize> {
        let process = team.process;
        if let Some(index) = observation.threads.iter().position(|of| of.thread == thread) {
            return Some(index);
        }
        let stat = threads::stat(host, process, thread)?;
        let before = self.ticks.get(&(process, thread, stat.started));
        let ticks = before.map_or(0, |before| stat.ticks.saturating_sub(*before));
        observation.threads.push(Thread {
            process,
            thread,
            started: stat.started,
            name: stat.name,
            names: team.names(host),
            cpu: stat.cpu,
            load: if observation.seconds > 0.0 {
                (ticks as f64 / TICKS / observation.seconds).min(1.0)
            } else {
                0.0
            },
            bound: host.thread_cpus(thread).ok()?,
            open: threads::open_to(host, process, online),
        });
        Some(observation.threads.len() - 1)
    }
}

/// Threads of a process with busy flows.
struct ProcessThreads {
    process: u32,
    stats: Vec<(u32, threads::Stat)>,
    waiting: Option<HashMap<u32, u32>>,
}

impl ProcessThreads {
    fn of(host: &dyn Host, process: u32) -> Self {
        let all = threads::of_process(host, process).into_iter().take(MAX_THREADS);
        let stats = all.filter_map(|thread| Some((thread, threads::stat(host, process, thread)?)));
        Self { process, stats: stats.collect(), waiting: None }
    }

    /// Names of its threads and its program.
    fn names(&self, host: &dyn Host) -> BTreeSet<String> {
        let program = host.link(&format!("proc/{}/exe", self.process));
        // The kernel appends this if the program's file was replaced.
        let program = program.map(|path| path.trim_end_matches(" (deleted)").to_string());
        let file = program.and_then(|path| path.rsplit('/').next().map(String::from));
        self.stats.iter().map(|(_, stat)| stat.name.clone()).chain(file).collect()
    }

    /// The thread that uses a flow: the only one, the one blocked on its descriptor, or the only busy one.
    fn reader(
        &mut self,
        host: &dyn Host,
        owner: SocketOwner,
        before: &HashMap<(u32, u32, u64), u64>,
    ) -> Option<u32> {
        if let [(only, _)] = self.stats[..] {
            return Some(only);
        }
        let stats = &self.stats;
        let waiting = self.waiting.get_or_insert_with(|| {
            let waits = |(thread, _): &(u32, threads::Stat)| {
                Some((threads::waits_for(host, owner.process, *thread)?, *thread))
            };
            stats.iter().filter_map(waits).collect()
        });
        if let Some(thread) = waiting.get(&owner.descriptor) {
            return Some(*thread);
        }
        let grown = |(thread, stat): &(u32, threads::Stat)| {
            let before = before.get(&(owner.process, *thread, stat.started))?;
            Some((stat.ticks.saturating_sub(*before), *thread))
        };
        let grown: Vec<(u64, u32)> = stats.iter().filter_map(grown).collect();
        let all: u64 = grown.iter().map(|(ticks, _)| ticks).sum();
        let (growth, thread) = grown.into_iter().max()?;
        (growth > 0 && growth as f64 >= NEARLY_ALL * all as f64).then_some(thread)
    }
}

/// Maps each address of these interfaces to its interface.
fn by_address(host: &dyn Host, nics: &[Nic], missing: &mut Vec<String>) -> HashMap<IpAddr, Interface> {
    let mut by_address = HashMap::new();
    for nic in nics {
        let addresses = host.addresses(nic.name.name());
        if addresses.is_empty() {
            missing.push(format!("{} has no address: its flows cannot be identified", nic.name));
        }
        by_address.extend(addresses.into_iter().map(|address| (address, nic.name.clone())));
    }
    by_address
}

/// Connections whose local address belongs to one of the interfaces.
fn connections(
    host: &dyn Host,
    by_address: &HashMap<IpAddr, Interface>,
    missing: &mut Vec<String>,
) -> Vec<(Socket, Interface)> {
    let all = host.sockets().unwrap_or_else(|error| {
        let advice = "load inet_diag and tcp_diag (modprobe); flows are known from /proc/net/tcp, and \
            every one counts the same";
        missing.push(format!("the kernel does not report the bytes of flows ({error}): {advice}"));
        sockets::from_proc(|path| host.read(path))
    });
    let of_interface = |socket: Socket| Some((by_address.get(&socket.local.ip())?.clone(), socket));
    all.into_iter().filter_map(of_interface).map(|(interface, socket)| (socket, interface)).collect()
}

#[cfg(test)]
pub(crate) mod tests;
