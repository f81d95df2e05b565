//! The statistics of devices.

use std::collections::BTreeMap;

use longma_devices::{
    Device,
    ethernet::tcp::{SenderCounters, TcpSender},
};
use longma_sim::{Statistics, StatisticsError};

use super::Devices;
use super::line::Line;
use super::part::{Model, Part};

/// One statistic.
struct Count {
    name: String,
    value: u64,
    unit: &'static str,
    about: &'static str,
}

/// The name under which the sums over all MACs are reported.
const ALL_PORTS: &str = "ports";

/// A statistic of a type of device: name, accessor, unit and description.
type KnownCounter<T> = (&'static str, fn(&T) -> u64, &'static str, &'static str);

const LINE_STATISTICS: [KnownCounter<Line>; 2] = [
    ("interrupts", |line| line.assertions, "interrupts", "assertions of the interrupt lines"),
    ("deliveries", |line| line.deliveries, "interrupts", "that made a device file readable"),
];

const SENDER_STATISTICS: [KnownCounter<SenderCounters>; 9] = [
    ("segments", |tcp| tcp.sent, "segments", "sent by the remote end"),
    ("retransmitted", |tcp| tcp.retransmitted, "segments", "retransmitted by the remote end"),
    (
        "fast_retransmits",
        |tcp| tcp.fast_retransmits,
        "times",
        "duplicate acknowledgements triggered a retransmission",
    ),
    ("timeouts", |tcp| tcp.timeouts, "times", "the retransmission timer expired"),
    ("probes", |tcp| tcp.probes, "segments", "sent to probe a closed window"),
    ("acknowledgements", |tcp| tcp.acknowledgements, "segments", "that acknowledged new data"),
    ("duplicates", |tcp| tcp.duplicates, "segments", "that acknowledged no new data"),
    ("damaged", |tcp| tcp.damaged, "frames", "received from the program damaged or malformed"),
    ("impossible", |tcp| tcp.impossible, "segments", "that acknowledged data never sent"),
];

/// The counts of a device model, prefixed with `name`.
fn counts_of_device(name: &str, device: &dyn Device) -> impl Iterator<Item = Count> {
    let counts = device.counts().into_iter();
    counts.map(move |longma_devices::Count { name: what, value, unit, about }| Count {
        name: format!("{name}.{what}"),
        value,
        unit,
        about,
    })
}

impl Part {
    fn counts(&self, into: &mut Vec<Count>) {
        let device = self.model.device();
        if device.interrupts() {
            into.extend(LINE_STATISTICS.map(|(what, value, unit, about)| Count {
                name: format!("{}.{what}", self.name),
                value: self.lines.iter().map(value).sum(),
                unit,
                about,
            }));
        }
        into.extend(counts_of_device(&self.name, device));
    }
}

impl Devices {
    fn counts(&self) -> Vec<Count> {
        let mut counts = Vec::new();
        self.parts.iter().for_each(|part| part.counts(&mut counts));
        for wire in &self.wires {
            let senders = wire.senders();
            if senders.is_empty() {
                continue;
            }
            let name = format!("{}.sender", self.parts[wire.part()].name);
            counts.push(Count {
                name: format!("{name}.acknowledged_bytes"),
                value: senders.iter().map(TcpSender::acknowledged).sum(),
                unit: "bytes",
                about: "acknowledged by the program, all streams",
            });
            if let Some(paused) = wire.paused() {
                counts.push(Count {
                    name: format!("{name}.paused"),
                    value: paused.ps() / 1000,
                    unit: "ns",
                    about: "during which flow control paused the remote end",
                });
            }
            counts.extend(SENDER_STATISTICS.map(|(what, value, unit, about)| Count {
                name: format!("{name}.{what}"),
                value: senders.iter().map(|sender| value(sender.counters())).sum(),
                unit,
                about,
            }));
        }
        counts.extend(self.port_sums());
        counts
    }

    /// The sums over all MACs, which are independent of the names and number of ports.
    fn port_sums(&self) -> Vec<Count> {
        let of_port = |part: &Part| match &part.model {
            Model::Mac(mac) => counts_of_device(ALL_PORTS, &**mac).collect(),
            Model::Other(_) => Vec::new(),
        };
        let ports = self.parts.iter().map(of_port).filter(|port: &Vec<Count>| !port.is_empty());
        let add = |mut sum: Vec<Count>, port: Vec<Count>| {
            sum.iter_mut().zip(port).for_each(|(sum, count)| sum.value += count.value);
            sum
        };
        ports.reduce(add).unwrap_or_default()
    }

    /// Starts counting from zero.
    pub fn clear_counts(&mut self) {
        self.before = self.counts().iter().map(|count| count.value).collect();
        self.accesses = 0;
    }

    /// Adds all statistics below `devices`. Unused devices are left out.
    ///
    /// # Errors
    /// Two devices have the same name.
    pub fn report(&self, statistics: &mut Statistics) -> Result<(), StatisticsError> {
        let counts = self.counts();
        let before = |index: usize| self.before.get(index).copied().unwrap_or(0);
        let since = |(index, count): (usize, &Count)| count.value.saturating_sub(before(index));
        let used = self.accesses > 0 || counts.iter().enumerate().any(|count| since(count) > 0);
        if !statistics.wants(used.into()) {
            return Ok(());
        }
        let about = "loads and stores of device registers";
        statistics.count("devices.register_accesses", self.accesses, "accesses", about)?;
        let device = |count: &Count| count.name.split('.').next().map(str::to_owned);
        let mut idle: BTreeMap<_, bool> = BTreeMap::new();
        for (index, count) in counts.iter().enumerate() {
            *idle.entry(device(count)).or_insert(true) &= since((index, count)) == 0;
        }
        for (index, count) in counts.iter().enumerate() {
            if !statistics.wants((!idle[&device(count)]).into()) {
                continue;
            }
            let name = format!("devices.{}", statistic_name(&count.name));
            statistics.count(&name, since((index, count)), count.unit, count.about)?;
        }
        Ok(())
    }
}

/// Converts a device name to a statistic name, which consists of lower-case letters, digits, hyphens and underscores.
fn statistic_name(name: &str) -> String {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
    name.to_ascii_lowercase().chars().map(|c| if fits(c) { c } else { '_' }).collect()
}
