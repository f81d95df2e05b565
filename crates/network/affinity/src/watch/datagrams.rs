//! Flows of UDP, and of QUIC over it. The kernel does not count the bytes of a UDP socket, so a flow's rate is an
//! estimate: the traffic of the interfaces other than TCP, divided among the threads that own UDP sockets by their
//! processor time. It decides only whether a thread is worth moving, and how much a flow weighs.
//!
//! Source: sock_diag(7) (sockets, owners, drops), Linux Documentation/ABI/testing/sysfs-class-net-statistics,
//! net/ipv4/proc.c (/proc/net/snmp and snmp6).

use super::{Flow, Observation, Protocol};
use crate::host::Host;
use crate::interface::Nic;
use crate::setting::Interface;
use longma_linux_network::sockets::Socket;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Number of UDP sockets whose threads are looked up.
const MAX_SOCKETS: usize = 256;
/// Bytes of the largest datagram, also after several were merged (GRO).
const MAX_DATAGRAM: f64 = 65_535.0;
/// Fraction of TCP's data that its headers and acknowledgements add at most, with packets of 1500 bytes.
const TCP_HEADERS: f64 = 0.1;

/// Counters at one time.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Counters {
    /// Received and sent bytes of the watched interfaces.
    bytes: BTreeMap<Interface, [u64; 2]>,
    /// Received and sent datagrams of the network namespace.
    datagrams: [u64; 2],
    /// Dropped datagrams by socket.
    dropped: HashMap<u32, u32>,
}

/// UDP sockets that may receive by the interfaces, with the counters that their rates are estimated from.
pub(super) struct Datagrams {
    pub flows: Vec<(Socket, Flow)>,
    pub counters: Counters,
}

/// Reads the UDP sockets of the interfaces. `by_address` has the interface of each local address.
pub(super) fn of(host: &dyn Host, nics: &[Nic], by_address: &HashMap<IpAddr, Interface>) -> Datagrams {
    let sockets = host.datagram_sockets().unwrap_or_default();
    let mut flows = Vec::new();
    let mut dropped = HashMap::new();
    for socket in &sockets {
        // A socket that receives on all interfaces is assigned to the first one.
        let interface = match socket.local.ip().is_unspecified() {
            true => nics.first().map(|nic| &nic.name),
            false => by_address.get(&socket.local.ip()),
        };
        let Some(interface) = interface.filter(|_| flows.len() < MAX_SOCKETS && socket.inode > 0) else {
            continue;
        };
        let unconnected = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        let (local, remote) = (socket.local, socket.remote.unwrap_or(unconnected));
        dropped.extend(socket.dropped.map(|dropped| (socket.inode, dropped)));
        let (received, sent, thread, arrives) = Default::default();
        let protocol = Protocol::Udp;
        let flow = Flow {
            local,
            remote,
            interface: interface.clone(),
            protocol,
            arrives,
            received,
            sent,
            drops: None,
            thread,
        };
        flows.push((Socket { local, remote, inode: socket.inode, received: None, sent: None }, flow));
    }
    Datagrams { flows, counters: Counters { bytes: bytes(host, nics), datagrams: datagrams(host), dropped } }
}

fn bytes(host: &dyn Host, nics: &[Nic]) -> BTreeMap<Interface, [u64; 2]> {
    let of = |nic: &Nic| {
        let count =
            |file| host.read(&format!("sys/class/net/{}/statistics/{file}", nic.name)).ok()?.parse().ok();
        Some((nic.name.clone(), [count("rx_bytes")?, count("tx_bytes")?]))
    };
    nics.iter().filter_map(of).collect()
}

/// Received and sent datagrams over IPv4 and IPv6.
fn datagrams(host: &dyn Host) -> [u64; 2] {
    let (four, six) =
        (host.read("proc/net/snmp").unwrap_or_default(), host.read("proc/net/snmp6").unwrap_or_default());
    // The first line has the names, the second the numbers.
    let mut rows = four.lines().filter_map(|line| line.strip_prefix("Udp: ")).map(str::split_whitespace);
    let counts: HashMap<&str, u64> = match (rows.next(), rows.next()) {
        (Some(names), Some(numbers)) => {
            names.zip(numbers).filter_map(|(name, number)| Some((name, number.parse().ok()?))).collect()
        }
        _ => HashMap::new(),
    };
    let of_six = |name: &str| -> u64 {
        let mut lines = six.lines().filter_map(|line| line.strip_prefix(name));
        lines.next().and_then(|number| number.trim().parse().ok()).unwrap_or(0)
    };
    ["InDatagrams", "OutDatagrams"]
        .map(|name| counts.get(name).copied().unwrap_or(0).saturating_add(of_six(&format!("Udp6{name} "))))
}

/// Received and sent bytes per second of all protocols but TCP, limited to the rate of the largest possible datagrams.
/// `tcp` is the rate of TCP. Without it, the result is 0.
pub(super) fn rates((before, now): (&Counters, &Counters), tcp: Option<[f64; 2]>, seconds: f64) -> [f64; 2] {
    let Some(tcp) = tcp.filter(|_| seconds > 0.0) else { return [0.0; 2] };
    let grown = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
    [0, 1].map(|way| {
        let all = now.bytes.iter().filter_map(|(name, now)| Some((before.bytes.get(name)?[way], now[way])));
        let all: f64 = all.map(|(before, now)| grown(before, now)).sum();
        let rest = (all - tcp[way] - TCP_HEADERS * (tcp[0] + tcp[1])).max(0.0);
        rest.min(grown(before.datagrams[way], now.datagrams[way]) * MAX_DATAGRAM)
    })
}

/// Returns whether a socket has dropped datagrams.
pub(super) fn have_dropped((before, now): (&Counters, &Counters)) -> bool {
    now.dropped.iter().any(|(inode, now)| before.dropped.get(inode).is_some_and(|before| before != now))
}

/// Divides `rates` among the UDP flows of `observation`, and drops the flows below `least` bytes per second, unless their
/// socket drops datagrams. `inodes` are the sockets of all flows.
pub(super) fn divide(
    observation: &mut Observation,
    inodes: &[u32],
    (before, now): (&Counters, &Counters),
    (rates, least): ([f64; 2], f64),
) {
    let owned = |flow: &&Flow| flow.protocol == Protocol::Udp;
    let mut of_thread: BTreeMap<usize, f64> = BTreeMap::new();
    observation.flows.iter().filter(owned).filter_map(|flow| flow.thread).for_each(|thread| {
        *of_thread.entry(thread).or_default() += 1.0;
    });
    let all: f64 = of_thread.keys().map(|thread| observation.threads[*thread].load).sum();
    let mut flows = std::mem::take(&mut observation.flows);
    for (flow, inode) in flows.iter_mut().zip(inodes) {
        let Some(thread) = flow.thread.filter(|_| flow.protocol == Protocol::Udp) else { continue };
        let share = if all > 0.0 { observation.threads[thread].load / all / of_thread[&thread] } else { 0.0 };
        (flow.received, flow.sent) = (Some(rates[0] * share), Some(rates[1] * share));
        let drops = before.dropped.get(inode).zip(now.dropped.get(inode));
        let seconds = observation.seconds.max(1e-3);
        flow.drops = drops.map(|(before, now)| f64::from(now.wrapping_sub(*before)) / seconds);
    }
    // A socket without an owner has no known rate.
    flows.retain(|flow| {
        let is_busy = flow.bytes() >= least || flow.drops > Some(0.0);
        flow.protocol == Protocol::Tcp || flow.thread.is_some() && is_busy
    });
    observation.flows = flows;
    forget_threads_without_flows(observation);
}

/// Removes threads whose last flow was dropped.
fn forget_threads_without_flows(observation: &mut Observation) {
    let mut places = Vec::new();
    let mut kept = 0;
    for thread in 0..observation.threads.len() {
        let is_used = observation.flows.iter().any(|flow| flow.thread == Some(thread));
        places.push(is_used.then_some(kept));
        kept += usize::from(is_used);
    }
    let mut at = 0;
    observation.threads.retain(|_| {
        at += 1;
        places[at - 1].is_some()
    });
    for flow in &mut observation.flows {
        flow.thread = flow.thread.and_then(|thread| places[thread]);
    }
}

#[cfg(test)]
mod tests;
