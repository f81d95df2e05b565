//! The load run at a pair of CPUs: iperf3, or any command that prints a rate. `child` runs it.
//!
//! Source: iperf3's JSON output in version 3.12 (`end.sum_received`, `end.sum`, `end.sum_sent`).

use longma_text::sanitize;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// An iperf3 client. The server must already be running.
    Iperf(Iperf),
    /// A command whose output contains a rate, such as "23.5 Gbit/s" or a bare number of Gb/s. The last one counts.
    Command(Vec<String>),
}

/// Options of iperf3.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Iperf {
    /// Address of the server.
    pub server: String,
    /// Port of the server.
    pub port: u16,
    /// Whether the sender sends from the page cache without copying (`-Z`).
    pub zero_copy: bool,
    /// Whether the server sends, so that the client on this host receives (`-R`).
    pub reverse: bool,
    /// Whether to use UDP at unlimited rate instead of TCP.
    pub udp: bool,
    /// Number of parallel flows (`-P`).
    pub flows: u32,
}

/// Upper bound of plausible rates in Gb/s, a thousand times the fastest links.
pub const MAX_GBPS: f64 = 1e6;
/// One bit per second in Gb/s. Lower rates are treated as no traffic.
pub const MIN_GBPS: f64 = 1e-9;
/// Upper bound of the CPUs used by the remote end.
pub const MAX_CPUS: f64 = longma_cpu_set::MAX_CPU as f64;

/// Result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Rate of received data in 10^9 bits per second, from [`MIN_GBPS`] to [`MAX_GBPS`].
    pub gbps: f64,
    /// Retransmitted TCP segments, if the sender reports them.
    pub retransmits: Option<u64>,
    /// Fraction of lost datagrams, 0 to 1.
    pub lost: Option<f64>,
    /// CPUs used by the remote end, 0 to [`MAX_CPUS`].
    pub remote_cpu: Option<f64>,
}

/// Why the output of a load contains no rate.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// iperf3 reported an error.
    #[error("iperf3: {}", sanitize(.0))]
    Iperf(String),
    /// The output contains no rate.
    #[error("the load printed no rate: {}", sanitize(.0))]
    NoRate(String),
    /// The rate is zero, or below one bit per second.
    #[error("the load received nothing: its rate is 0 or below one bit per second")]
    Nothing,
    /// The load ended before the counters were read.
    #[error(
        "the load ended after {ran:.1} s of {wanted} s, before the measurement was complete: it must last \
            as long as a run; use `{{seconds}}` in its command for that time"
    )]
    Short {
        /// Its duration in seconds.
        ran: f64,
        /// The duration of a run in seconds.
        wanted: f64,
    },
}

impl LoadError {
    /// Returns whether iperf3's server is only busy with another client.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Iperf(words) if words.contains("server is busy"))
    }
}

impl Load {
    /// Program and arguments for a run of `seconds`.
    pub fn words(&self, seconds: u32) -> Vec<String> {
        match self {
            Self::Command(words) => {
                words.iter().map(|word| word.replace("{seconds}", &seconds.to_string())).collect()
            }
            Self::Iperf(iperf) => {
                let mut words: Vec<String> =
                    ["iperf3", "--json", "--client", &iperf.server, "--port"].map(String::from).into();
                words.extend([iperf.port.to_string(), "--time".into(), seconds.to_string()]);
                words.extend(["--parallel".into(), iperf.flows.to_string()]);
                let flags =
                    [(iperf.zero_copy, "--zerocopy"), (iperf.reverse, "--reverse"), (iperf.udp, "--udp")];
                words.extend(flags.iter().filter(|(wanted, _)| *wanted).map(|(_, flag)| flag.to_string()));
                if iperf.udp {
                    words.extend(["--bitrate".into(), "0".into()]);
                }
                words
            }
        }
    }

    /// Parses the rate from the load's output.
    ///
    /// # Errors
    /// If there is none, or the load reports a failure.
    pub fn rate(&self, printed: &str) -> Result<Rate, LoadError> {
        let rate = match self {
            Self::Iperf(iperf) => iperf_rate(printed, iperf.udp),
            Self::Command(_) => command_rate(printed),
        }?;
        if rate.gbps >= MIN_GBPS { Ok(rate) } else { Err(LoadError::Nothing) }
    }
}

fn shortened(text: &str) -> String {
    let end: String = text.trim().chars().rev().take(160).collect();
    end.chars().rev().collect()
}

fn iperf_rate(printed: &str, udp: bool) -> Result<Rate, LoadError> {
    let report: Value = serde_json::from_str(printed).map_err(|_| LoadError::NoRate(shortened(printed)))?;
    if let Some(error) = report["error"].as_str() {
        return Err(LoadError::Iperf(error.into()));
    }
    let end = &report["end"];
    let lost = end["sum"]["lost_percent"].as_f64().map(|percent| percent / 100.0);
    let received = end["sum_received"]["bits_per_second"].as_f64();
    let bits = match (udp, received) {
        // For UDP, some versions report only the sent rate and the loss.
        (true, None | Some(0.0)) => {
            end["sum"]["bits_per_second"].as_f64().map(|all| all * (1.0 - lost.unwrap_or(0.0)))
        }
        _ => received,
    };
    let gbps = bits.map(|bits| bits / 1e9).filter(is_rate);
    let remote = end["cpu_utilization_percent"]["remote_total"].as_f64().map(|percent| percent / 100.0);
    Ok(Rate {
        gbps: gbps.ok_or_else(|| LoadError::NoRate(shortened(printed)))?,
        retransmits: end["sum_sent"]["retransmits"].as_u64(),
        lost: lost.filter(|lost| udp && (0.0..=1.0).contains(lost)),
        remote_cpu: remote.filter(|cpus| (0.0..=MAX_CPUS).contains(cpus)),
    })
}

/// Returns whether a rate is plausible. The parser of result files rejects others.
fn is_rate(gbps: &f64) -> bool {
    (0.0..=MAX_GBPS).contains(gbps)
}

fn command_rate(printed: &str) -> Result<Rate, LoadError> {
    let found = printed.lines().rev().find_map(line_rate);
    let gbps = found.ok_or_else(|| LoadError::NoRate(shortened(printed)))?;
    Ok(Rate { gbps, ..Rate::default() })
}

/// The last rate on a line in Gb/s. A bare number is in Gb/s.
fn line_rate(line: &str) -> Option<f64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    if let [only] = words[..]
        && let Ok(number) = only.parse::<f64>()
    {
        return Some(number).filter(is_rate);
    }
    let numbered = words.windows(2).rev();
    let rate = |pair: &[&str]| Some(pair[0].parse::<f64>().ok()? * unit(pair[1])?);
    numbered.filter_map(rate).find(is_rate)
}

/// Factor that converts a unit such as "Mbit/s", "GB/s", "Gbits/sec" or "Gbps" to Gb/s.
fn unit(word: &str) -> Option<f64> {
    let word = word.trim_end_matches([',', ';', '.', ')']);
    let scales = [("Ki", 1024.0 / 1e9), ("Mi", 1_048_576.0 / 1e9), ("Gi", 1_073_741_824.0 / 1e9)];
    let plain = [("K", 1e-6), ("k", 1e-6), ("M", 1e-3), ("G", 1.0), ("T", 1e3), ("", 1e-9)];
    let all = scales.into_iter().chain(plain);
    for (prefix, scale) in all {
        let Some(rest) = word.strip_prefix(prefix) else { continue };
        match rest {
            "bit/s" | "bits/s" | "bit/sec" | "bits/sec" | "b/s" | "bps" => return Some(scale),
            "B/s" | "Bytes/s" | "bytes/s" | "Bytes/sec" | "B/sec" => return Some(scale * 8.0),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests;
