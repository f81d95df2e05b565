//! What a host does with its flows over a moment: connections and their rates, whose threads they are, queues and their CPUs, load.
//! Not what should be otherwise: that is `tune`.
//! Source: sock_diag(7), proc(5); Linux Documentation/core-api/irq/irq-affinity.rst (effective_affinity, affinity_hint), networking/scaling.rst.

use crate::counters::{CpuShares, Reading};
use crate::cpus::CpuSet;
use crate::host::Host;
use crate::interface::{self, Nic};
use crate::owners::{Owner, Owners};
use crate::setting::{Interface, Setting};
use crate::sockets::{self, Socket};
use crate::spread::Spread;
use crate::threads;
use longma_topology::CpuLocation;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Instant;

mod queues;

/// Flows whose threads are looked for: those with most bytes.
pub const MOST_FLOWS: usize = 64;
/// A flow with less than this is none that cores matter for, bytes a second.
const BUSY: f64 = 125_000.0;
/// Threads of a process that are asked what they wait for.
const MOST_THREADS: usize = 256;
/// The part of a process's time that its only busy thread takes.
const NEARLY_ALL: f64 = 0.9;
/// Ticks a second of the times in /proc, on every architecture that Linux has today (USER_HZ).
const TICKS: f64 = 100.0;

/// What was seen.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Observation {
    /// The CPUs that are online.
    #[serde(skip)]
    pub places: Vec<CpuLocation>,
    /// Length of the moment, seconds.
    pub seconds: f64,
    /// How each CPU spent it.
    pub cpus: BTreeMap<u32, CpuShares>,
    /// The queues of the interfaces.
    pub queues: Vec<Queue>,
    /// The busiest flows, most bytes first.
    pub flows: Vec<Flow>,
    /// Their threads.
    pub threads: Vec<Thread>,
    /// All established connections of the interfaces.
    pub connections: usize,
    /// What could not be seen, and what to do about it.
    pub missing: Vec<String>,
}

/// A queue of an interface: its interrupt, or its packets where they are handed on in software.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Queue {
    /// Its interface.
    pub interface: Interface,
    /// The NUMA node of that; none if unknown.
    pub node: Option<u32>,
    /// What steers it.
    pub setting: Setting,
    /// What people call it.
    pub name: String,
    /// Its number among the interface's receive queues; none if its interrupt's name does not say.
    pub number: Option<u32>,
    /// The CPU that does its work; none if that is wherever packets arrive.
    pub cpu: Option<u32>,
    /// Interrupts a second; none where it has none.
    pub interrupts: Option<f64>,
    /// Parts of a CPU that its work takes.
    pub load: f64,
    /// Why somebody else has a say in where it goes; none if nobody has.
    pub taken: Option<String>,
}

/// A busy connection.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flow {
    /// Its address here.
    pub local: SocketAddr,
    /// Its address there.
    pub remote: SocketAddr,
    /// The interface that it comes by.
    pub interface: Interface,
    /// The receive queue that it comes by, as the driver hashes it; none where that is not known.
    pub queue: Option<u32>,
    /// Bytes a second that arrive; none where the kernel does not tell.
    pub received: Option<f64>,
    /// Bytes a second that leave; none where the kernel does not tell.
    pub sent: Option<f64>,
    /// The index of its thread; none if that was not found.
    pub thread: Option<usize>,
}

/// A thread with flows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Thread {
    /// Its process.
    pub process: u32,
    /// Its number.
    pub thread: u32,
    /// When it began, in ticks since the boot.
    pub started: u64,
    /// Its name.
    pub name: String,
    /// The names of all threads of its process, and its program's file.
    pub names: BTreeSet<String>,
    /// The CPU that it last ran on.
    pub cpu: u32,
    /// Parts of a CPU that it takes.
    pub load: f64,
    /// The CPUs that it may run on.
    pub bound: CpuSet,
    /// The CPUs that its cpuset opens to it.
    pub open: CpuSet,
}

impl Flow {
    /// Bytes a second in both directions.
    pub fn bytes(&self) -> f64 {
        self.received.unwrap_or(0.0) + self.sent.unwrap_or(0.0)
    }
}

impl Thread {
    /// What binds it.
    pub fn setting(&self) -> Setting {
        Setting::Thread { process: self.process, thread: self.thread, started: self.started }
    }
}

/// Looks again and again, and remembers what rates are made of.
pub struct Watch {
    interfaces: Vec<Interface>,
    owners: Owners,
    last: Option<Last>,
    ticks: HashMap<(u32, u32, u64), u64>,
}

struct Last {
    at: Instant,
    reading: Reading,
    bytes: HashMap<(SocketAddr, SocketAddr), (Option<u64>, Option<u64>)>,
    interrupts: BTreeMap<u32, BTreeMap<u32, u64>>,
}

impl Watch {
    /// Watches these interfaces.
    pub fn new(interfaces: Vec<Interface>) -> Self {
        Self { interfaces, owners: Owners::default(), last: None, ticks: HashMap::new() }
    }

    /// What happened since the last look: the first one has no rates.
    pub fn look(&mut self, host: &dyn Host) -> Observation {
        let mut missing = Vec::new();
        let nics: Vec<Nic> = self.interfaces.iter().filter_map(|name| interface::read(host, name)).collect();
        for name in self.interfaces.iter().filter(|name| nics.iter().all(|nic| nic.name != **name)) {
            missing.push(format!("there is no interface {name}: its flows are not seen until it appears"));
        }
        let (at, reading) = (Instant::now(), Reading::now(host));
        let connections = connections(host, &nics, &mut missing);
        let bytes = |(socket, _): &(Socket, Interface)| {
            ((socket.local, socket.remote), (socket.received, socket.sent))
        };
        let now = Last {
            at,
            reading,
            bytes: connections.iter().map(bytes).collect(),
            interrupts: queues::interrupts(&host.read("proc/interrupts").unwrap_or_default()),
        };
        let counts = self.last.as_ref().map(|last| last.reading.until(&now.reading)).unwrap_or_default();
        let places = host.places();
        let mut seen = Observation {
            seconds: counts.seconds,
            cpus: counts.cpus,
            connections: connections.len(),
            ..Default::default()
        };
        let before = self.last.as_ref().map(|last| &last.interrupts);
        seen.queues = queues::of(host, &nics, before.zip(Some(&now.interrupts)), &seen, &mut missing);
        let online: CpuSet = places.iter().map(|place| place.cpu).collect();
        let spreads: HashMap<&Interface, Spread> = nics
            .iter()
            .filter(|nic| nic.rx_queues.len() > 1)
            .filter_map(|nic| Some((&nic.name, host.spread(nic.name.name()).ok()?)))
            .collect();
        let mut busy = self.busy(&connections, at);
        for (_, flow) in &mut busy {
            let spread = spreads.get(&flow.interface);
            flow.queue = spread.and_then(|spread| spread.queue_of(flow.local, flow.remote));
        }
        self.threads(host, &busy, &online, &mut seen, &mut missing);
        (seen.places, seen.missing) = (places, missing);
        self.last = Some(now);
        seen
    }

    /// The busiest connections with their rates; none at the first look.
    fn busy(&self, connections: &[(Socket, Interface)], at: Instant) -> Vec<(Socket, Flow)> {
        let Some(last) = &self.last else { return Vec::new() };
        let seconds = at.duration_since(last.at).as_secs_f64().max(1e-3);
        let rate = |(socket, interface): &(Socket, Interface)| {
            // One that was not there before has carried all of its bytes since.
            let (received, sent) =
                last.bytes.get(&(socket.local, socket.remote)).copied().unwrap_or((Some(0), Some(0)));
            let grown = |before: Option<u64>, after: Option<u64>| {
                Some(after?.saturating_sub(before?) as f64 / seconds)
            };
            let flow = Flow {
                local: socket.local,
                remote: socket.remote,
                interface: interface.clone(),
                queue: None,
                received: grown(received, socket.received),
                sent: grown(sent, socket.sent),
                thread: None,
            };
            // Where the kernel does not tell, every flow may be a busy one.
            let is_busy = flow.bytes() >= BUSY || (socket.received.is_none() && socket.sent.is_none());
            is_busy.then(|| (socket.clone(), flow))
        };
        let mut busy: Vec<(Socket, Flow)> = connections.iter().filter_map(rate).collect();
        busy.sort_by(|(_, one), (_, other)| {
            other.bytes().total_cmp(&one.bytes()).then(one.local.cmp(&other.local))
        });
        busy.truncate(MOST_FLOWS);
        busy
    }

    /// Finds the thread of each flow.
    fn threads(
        &mut self,
        host: &dyn Host,
        busy: &[(Socket, Flow)],
        online: &CpuSet,
        seen: &mut Observation,
        missing: &mut Vec<String>,
    ) {
        let inodes: Vec<u32> = busy.iter().map(|(socket, _)| socket.inode).collect();
        let owners = self.owners.of(host, &inodes);
        let mut teams: BTreeMap<u32, Team> = BTreeMap::new();
        let (mut unowned, mut unread) = (0, 0);
        for (socket, flow) in busy {
            let mut flow = flow.clone();
            match owners.get(&socket.inode) {
                None => unowned += 1,
                Some(owner) => {
                    let team = teams.entry(owner.process).or_insert_with(|| Team::of(host, owner.process));
                    match team.reader(host, *owner, &self.ticks) {
                        Some(thread) => flow.thread = self.thread(host, (team, thread), online, seen),
                        None => unread += 1,
                    }
                }
            }
            seen.flows.push(flow);
        }
        let stats = teams.iter().flat_map(|(process, team)| {
            team.stats.iter().map(move |(thread, stat)| (*process, *thread, stat))
        });
        self.ticks =
            stats.map(|(process, thread, stat)| ((process, thread, stat.started), stat.ticks)).collect();
        if unowned > 0 {
            let why = if rustix::process::geteuid().is_root() {
                "another container's or the kernel's"
            } else {
                "other users': run it as root"
            };
            missing.push(format!("the processes of {unowned} busy flows are not found ({why}): their queues are watched, they are not moved"));
        }
        if unread > 0 {
            missing.push(format!("which of its process's threads has a flow is not known of {unread} busy flows: these threads are left alone"));
        }
    }

    /// The index of a thread among those that were seen.
    fn thread(
        &self,
        host: &dyn Host,
        (team, thread): (&Team, u32),
        online: &CpuSet,
        seen: &mut Observation,
    ) -> Option<usize> {
        let process = team.process;
        if let Some(index) = seen.threads.iter().position(|of| of.thread == thread) {
            return Some(index);
        }
        let stat = threads::stat(host, process, thread)?;
        let before = self.ticks.get(&(process, thread, stat.started));
        let ticks = before.map_or(0, |before| stat.ticks.saturating_sub(*before));
        seen.threads.push(Thread {
            process,
            thread,
            started: stat.started,
            name: stat.name,
            names: team.names(host),
            cpu: stat.cpu,
            load: if seen.seconds > 0.0 { (ticks as f64 / TICKS / seen.seconds).min(1.0) } else { 0.0 },
            bound: host.thread_cpus(thread).ok()?,
            open: threads::open_to(host, process, online),
        });
        Some(seen.threads.len() - 1)
    }
}

/// The threads of a process that has busy flows.
struct Team {
    process: u32,
    stats: Vec<(u32, threads::Stat)>,
    waiting: Option<HashMap<u32, u32>>,
}

impl Team {
    fn of(host: &dyn Host, process: u32) -> Self {
        let all = threads::of_process(host, process).into_iter().take(MOST_THREADS);
        let stats = all.filter_map(|thread| Some((thread, threads::stat(host, process, thread)?)));
        Self { process, stats: stats.collect(), waiting: None }
    }

    /// What its threads and its program are called.
    fn names(&self, host: &dyn Host) -> BTreeSet<String> {
        let program = host.link(&format!("proc/{}/exe", self.process));
        // A program whose file was replaced has this behind its name.
        let program = program.map(|path| path.trim_end_matches(" (deleted)").to_string());
        let file = program.and_then(|path| path.rsplit('/').next().map(String::from));
        self.stats.iter().map(|(_, stat)| stat.name.clone()).chain(file).collect()
    }

    /// The thread that has a flow: the only one, the one that waits for it, or the only busy one.
    fn reader(
        &mut self,
        host: &dyn Host,
        owner: Owner,
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
        let (most, thread) = grown.into_iter().max()?;
        (most > 0 && most as f64 >= NEARLY_ALL * all as f64).then_some(thread)
    }
}

/// The connections whose address here is one of an interface's.
fn connections(host: &dyn Host, nics: &[Nic], missing: &mut Vec<String>) -> Vec<(Socket, Interface)> {
    let all = host.sockets().unwrap_or_else(|error| {
        let advice = "load inet_diag and tcp_diag (modprobe); flows are known from /proc/net/tcp, and every one counts the same";
        missing.push(format!("the kernel does not tell how many bytes flows carry ({error}): {advice}"));
        sockets::from_proc(|path| host.read(path))
    });
    let mut by_address = HashMap::new();
    for nic in nics {
        let addresses = host.addresses(nic.name.name());
        if addresses.is_empty() {
            missing.push(format!("{} has no address: no flow is known to come by it", nic.name));
        }
        by_address.extend(addresses.into_iter().map(|address| (address, nic.name.clone())));
    }
    let of_interface = |socket: Socket| Some((by_address.get(&socket.local.ip())?.clone(), socket));
    all.into_iter().filter_map(of_interface).map(|(interface, socket)| (socket, interface)).collect()
}

#[cfg(test)]
pub(crate) mod tests;
