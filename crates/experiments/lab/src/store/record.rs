//! A record: the result of one run of a point, stored as one line with a CRC-32 (ISO-HDLC) checksum.

use crate::failure::Failure;
use crate::key::Key;
use crate::point::Point;
use crate::setting::Setting;
use crate::workload::Metrics;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The result of one run of a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Key of the point.
    pub key: Key,
    /// Name of the workload.
    pub workload: String,
    /// Name of the machine, if any.
    pub machine: Option<String>,
    /// All parameters except those that only locate an input.
    pub parameters: BTreeMap<String, Setting>,
    /// Metrics that depend only on the point.
    pub metrics: BTreeMap<String, f64>,
    /// Low and high ends of the 95 % intervals of those metrics that a sampled run estimates.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub intervals: BTreeMap<String, [f64; 2]>,
    /// Why there are no metrics.
    pub failure: Option<Failure>,
    /// Metrics that depend on the host's speed, including `seconds`, the duration of the run.
    pub host: BTreeMap<String, f64>,
}

impl Record {
    /// Creates the record of a run of `point` that took `seconds`.
    pub fn new(point: &Point, outcome: Result<Metrics, Failure>, seconds: f64) -> Self {
        let (metrics, failure) = match outcome {
            Ok(metrics) => (metrics, None),
            Err(failure) => (Metrics::default(), Some(failure)),
        };
        let mut host = metrics.host;
        host.insert("seconds".into(), seconds);
        Self {
            key: point.key.clone(),
            workload: point.workload.to_string(),
            machine: point.machine.as_ref().map(|m| m.name.clone()),
            parameters: point.result_parameters(),
            metrics: metrics.results,
            intervals: metrics.intervals,
            failure,
            host,
        }
    }

    /// The host-independent part of the record as text. Two runs of one point must agree on it.
    pub(crate) fn result_text(&self) -> String {
        let failure = self.failure.as_ref().map(|f| &f.message);
        match self.intervals.is_empty() {
            true => serde_json::json!([self.metrics, failure]).to_string(),
            false => serde_json::json!([self.metrics, failure, self.intervals]).to_string(),
        }
    }

    /// Formats the record as one line, starting with its checksum.
    pub(crate) fn to_line(&self) -> String {
        // Cannot fail: a record has string keys and finite numbers.
        let json = serde_json::to_string(self).expect("a record is plain data");
        format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
    }

    /// Parses a line without its newline. The error describes the fault.
    pub(crate) fn from_line(line: &[u8]) -> Result<Self, &'static str> {
        serde_json::from_slice(checked(line)?).map_err(|_| "it was written by another version of longma")
    }
}

/// The JSON of a line without its newline, if its checksum matches.
pub(super) fn checked(line: &[u8]) -> Result<&[u8], &'static str> {
    let (sum, json) = line.split_at_checked(9).ok_or("it is cut off")?;
    // Compare as text: upper-case digits mean that the line was modified.
    match sum == format!("{:08x} ", crc32fast::hash(json)).as_bytes() {
        true => Ok(json),
        false => Err("its checksum does not match"),
    }
}
