//! What the devices have counted, by name.
//! Not printed here.
//! Source: our own.

use std::collections::BTreeMap;

use longma_sim::{Statistics, StatisticsError};

use super::Devices;
use super::part::{Model, Part};

/// One count.
struct Count {
    name: String,
    value: u64,
    unit: &'static str,
    about: &'static str,
}

impl Part {
    fn counts(&self, into: &mut Vec<Count>) {
        let mut count = |name: &str, value, unit, about| {
            into.push(Count { name: format!("{}.{name}", self.name), value, unit, about });
        };
        if !matches!(self.model, Model::Cam(_) | Model::Lock(_)) {
            count("interrupts", self.line.assertions, "interrupts", "assertions of the interrupt line");
            count("deliveries", self.line.deliveries, "interrupts", "that made its file ready");
        }
        match &self.model {
            Model::Idma(idma) => {
                let [read, written] = idma.bytes();
                count("bytes_read", read, "bytes", "that read channels have read");
                count("bytes_written", written, "bytes", "that write channels have written");
            }
            Model::Mac(mac) => {
                let counters = mac.counters();
                count("rx_good", counters.rx_good, "frames", "handed over whole and good");
                count("rx_bytes", counters.rx_bytes, "bytes", "of good frames received");
                count("rx_crc", counters.rx_crc, "frames", "with a wrong check sequence");
                count("rx_short", counters.rx_short, "frames", "below 64 bytes");
                count("rx_long", counters.rx_long, "frames", "that were too long");
                count("rx_filtered", counters.rx_filtered, "frames", "to others");
                count("rx_missed", counters.rx_missed, "frames", "that found the receive FIFO full");
                count("rx_starved", counters.rx_starved, "times", "the receive ring had no descriptor");
                count("rx_bad_descriptor", counters.rx_bad_descriptor, "frames", "dropped for a descriptor");
                count("tx_good", counters.tx_good, "frames", "sent");
                count("tx_bytes", counters.tx_bytes, "bytes", "of frames sent");
                count("tx_bad", counters.tx_bad, "frames", "not sent because they made no sense");
            }
            Model::Cam(_) | Model::Lock(_) => {}
        }
    }
}

impl Devices {
    fn counts(&self) -> Vec<Count> {
        let mut counts = Vec::new();
        self.parts.iter().for_each(|part| part.counts(&mut counts));
        for wire in &self.wires {
            let Some((sender, acknowledged)) = wire.sender() else { continue };
            let name = &self.parts[wire.part()].name;
            let mut count = |what: &str, value, unit, about| {
                counts.push(Count { name: format!("{name}.sender.{what}"), value, unit, about });
            };
            count(
                "acknowledged_bytes",
                acknowledged,
                "bytes",
                "of the stream that the program has acknowledged",
            );
            count("segments", sender.sent, "segments", "that the other end has sent");
            count("retransmitted", sender.retransmitted, "segments", "with data that it sent again");
            count(
                "fast_retransmits",
                sender.fast_retransmits,
                "times",
                "it resent for duplicate acknowledgements",
            );
            count("timeouts", sender.timeouts, "times", "no acknowledgement came in time");
            count("probes", sender.probes, "segments", "that probed a closed window");
            count("acknowledgements", sender.acknowledgements, "segments", "that acknowledged new data");
            count("duplicates", sender.duplicates, "segments", "that acknowledged nothing new");
            count("damaged", sender.damaged, "frames", "from the program that were damaged or malformed");
            count("impossible", sender.impossible, "segments", "that acknowledged what was never sent");
        }
        counts
    }

    /// Counting begins here.
    pub fn clear_counts(&mut self) {
        self.before = self.counts().iter().map(|count| count.value).collect();
        self.accesses = 0;
    }

    /// Adds everything that was counted, below `devices`. What nobody has used is left out.
    ///
    /// # Errors
    /// Two devices have one name.
    pub fn report(&self, statistics: &mut Statistics) -> Result<(), StatisticsError> {
        let counts = self.counts();
        let before = |index: usize| self.before.get(index).copied().unwrap_or(0);
        let since = |(index, count): (usize, &Count)| count.value.saturating_sub(before(index));
        let used = self.accesses > 0 || counts.iter().enumerate().any(|count| since(count) > 0);
        if !used {
            return Ok(());
        }
        let about = "loads and stores of device registers";
        statistics.count("devices.register_accesses", self.accesses, "accesses", about)?;
        let device = |count: &Count| count.name.split('.').next().map(str::to_owned);
        let mut idle: BTreeMap<_, bool> = BTreeMap::new();
        for (index, count) in counts.iter().enumerate() {
            *idle.entry(device(count)).or_insert(true) &= since((index, count)) == 0;
        }
        for (index, count) in counts.iter().enumerate().filter(|(_, count)| !idle[&device(count)]) {
            let name = format!("devices.{}", statistic_name(&count.name));
            statistics.count(&name, since((index, count)), count.unit, count.about)?;
        }
        Ok(())
    }
}

/// Names of devices are free; those of statistics are small letters, digits, hyphens and underscores.
fn statistic_name(name: &str) -> String {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
    name.to_ascii_lowercase().chars().map(|c| if fits(c) { c } else { '_' }).collect()
}
