//! `longma affinity show`: shows the CPUs with their load and the interface's queues and interrupts, once or
//! continuously.

mod live;

use super::check::{listed, wrapped};
use super::terminal::{print, print_json};
use super::{Format, Outcome, chosen, interface, width};
use longma_affinity::counters::{CpuShares, Reading};
use longma_affinity::host::{Host, Tree};
use longma_affinity::interface::{self as interfaces, Nic};
use longma_affinity::setting::{Interface, Setting};
use serde_json::json;
use std::io::IsTerminal;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Arguments {
    /// The interface [default: the only one that is up and has a device].
    #[arg(long, value_name = "NAME", value_parser = interface)]
    interface: Option<Interface>,
    /// Print once and exit, as when the output is not a terminal.
    ///
    /// Otherwise, the display is refreshed until q or Ctrl-C is pressed.
    #[arg(long)]
    once: bool,
    /// Length of an observation.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = |text: &str| super::seconds(text, 3600))]
    seconds: u32,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let host = Tree::live();
    let name = chosen(&host, arguments.interface.as_ref())?;
    let nic = interfaces::read(&host, &name).ok_or_else(|| format!("there is no interface {name}"))?;
    if !arguments.once && arguments.format == Format::Table && std::io::stdout().is_terminal() {
        return live::run(&host, &nic, Duration::from_secs(arguments.seconds.into()));
    }
    let bytes = || {
        let count = |way: &str| {
            host.read(&format!("sys/class/net/{name}/statistics/{way}_bytes")).ok()?.parse::<u64>().ok()
        };
        (count("rx"), count("tx"))
    };
    let (before, sent) = (Reading::now(&host), bytes());
    std::thread::sleep(Duration::from_secs(arguments.seconds.into()));
    let counts = before.until(&Reading::now(&host));
    let now = bytes();
    let rate = |before: Option<u64>, after: Option<u64>| {
        Some(after?.saturating_sub(before?) as f64 * 8.0 / counts.seconds / 1e9)
    };
    let (rx, tx) = (rate(sent.0, now.0), rate(sent.1, now.1));
    let queues: Vec<(u32, String)> =
        nic.rx_queues.iter().filter_map(|queue| Some((*queue, rps(&host, &nic, *queue)?))).collect();
    let physical = nic.physical();
    if arguments.format == Format::Json {
        let queues: Vec<_> =
            queues.iter().map(|(queue, cpus)| json!({ "queue": queue, "rps_cpus": cpus })).collect();
        return print_json(
            &json!({ "nic": nic, "rx_gbps": rx, "tx_gbps": tx, "queues": queues, "counts": counts, "places": host.places() }),
        );
    }
    let head = ["CPU", "SOCKET", "NODE", "SHARES CACHE WITH", "BUSY", "SOFTIRQ", "NET_RX/s", "TAKES FROM"]
        .map(String::from)
        .to_vec();
    let row = |place: longma_topology::CpuLocation| {
        let shares = counts.cpus.get(&place.cpu);
        // Print `?`, not 0, for values that the kernel does not report.
        let percent =
            |share: Option<f64>| share.map_or("  ? %".into(), |share| format!("{:>3.0} %", share * 100.0));
        let received = counts.receptions.get(&place.cpu).map(|count| *count as f64 / counts.seconds);
        let mut takes: Vec<String> = physical
            .iter()
            .flat_map(|nic| &nic.irqs)
            .filter(|irq| irq.cpus.as_ref().is_some_and(|cpus| cpus.contains(place.cpu)))
            .map(|irq| format!("irq {}", irq.number))
            .collect();
        let steered =
            |cpus: &str| cpus.parse::<longma_cpu_set::CpuSet>().is_ok_and(|set| set.contains(place.cpu));
        takes.extend(
            queues.iter().filter(|(_, cpus)| steered(cpus)).map(|(queue, _)| format!("rps rx-{queue}")),
        );
        let shared: longma_cpu_set::CpuSet = place.last_cache.iter().flatten().copied().collect();
        vec![
            place.cpu.to_string(),
            place.socket.to_string(),
            place.node.to_string(),
            if shared.is_empty() { "?".into() } else { shared.to_string() },
            percent(shares.map(CpuShares::busy)),
            percent(shares.map(|shares| shares.softirq)),
            received.map_or("       ?".into(), |received| format!("{received:>8.0}")),
            if takes.is_empty() { "-".into() } else { takes.join(", ") },
        ]
    };
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(host.places().into_iter().map(row)).collect();
    let gbps = |rate: Option<f64>| rate.map_or("?".into(), |rate| format!("{rate:.3}"));
    let node = nic.node.map_or("unknown".into(), |node| node.to_string());
    let driver = nic.driver.as_deref().unwrap_or("virtual");
    let queues = format!("queues: {} receive, {} transmit", nic.rx_queues.len(), nic.tx_queues.len());
    let words =
        format!("{name} ({driver}), NUMA node {node}, {queues}; {} Gb/s in, {} Gb/s out", gbps(rx), gbps(tx));
    let layers = nic.layers().map_or(String::new(), |layers| wrapped("", &layers, width()));
    print(&format!("{}{layers}\n{}", wrapped("", &words, width()), listed(&rows, width())))
}

/// The CPUs that RPS distributes a queue's packets to, as a list.
fn rps(host: &Tree, nic: &Nic, queue: u32) -> Option<String> {
    let mask = Setting::Rps { interface: nic.name.clone(), queue }.read(host).ok()?;
    Some(longma_cpu_set::CpuSet::from_mask(&mask).ok()?.to_string())
}
