//! A record: what one run of a point gave, and the line it is stored as.
//! Not the files: those are `segment`.
//! Source: CRC-32 (ISO-HDLC) guards each line.

use crate::failure::Failure;
use crate::key::Key;
use crate::point::Point;
use crate::setting::Setting;
use crate::workload::Metrics;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What one run of a point gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The point's key.
    pub key: Key,
    /// The workload that ran.
    pub workload: String,
    /// The machine's name, if it ran on one.
    pub machine: Option<String>,
    /// Every parameter but those that only say where something is.
    pub parameters: BTreeMap<String, Setting>,
    /// What the point alone decides.
    pub metrics: BTreeMap<String, f64>,
    /// Why there are no metrics.
    pub failure: Option<Failure>,
    /// What the host's speed decides, and `seconds`, the time that the run took.
    pub host: BTreeMap<String, f64>,
}

impl Record {
    /// The record of a run of `point` that took `seconds`.
    pub fn new(point: &Point, outcome: Result<Metrics, Failure>, seconds: f64) -> Self {
        let (metrics, failure) = match outcome {
            Ok(metrics) => (metrics, None),
            Err(failure) => (Metrics::default(), Some(failure)),
        };
        let mut host = metrics.host;
        host.insert("seconds".into(), seconds);
        Self {
            key: point.key.clone(),
            workload: point.workload.clone(),
            machine: point.machine.as_ref().map(|m| m.name.clone()),
            parameters: point.told(),
            metrics: metrics.results,
            failure,
            host,
        }
    }

    /// What the point alone decides of the record, as text: two runs of one point must agree on it.
    pub(crate) fn result_text(&self) -> String {
        let failure = self.failure.as_ref().map(|f| &f.message);
        serde_json::json!([self.metrics, failure]).to_string()
    }

    /// The record as one line, checksum first.
    pub(crate) fn to_line(&self) -> String {
        // A record is plain data with string keys and finite numbers; serializing it cannot fail.
        let json = serde_json::to_string(self).expect("a record is plain data");
        format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
    }

    /// The record of a line without its end; the error says what is wrong with the line.
    pub(crate) fn from_line(line: &[u8]) -> Result<Self, &'static str> {
        let (sum, json) = line.split_at_checked(9).ok_or("it is cut off")?;
        // As it was written, digit by digit: a capital one has been changed.
        if sum != format!("{:08x} ", crc32fast::hash(json)).as_bytes() {
            return Err("its checksum does not fit");
        }
        serde_json::from_slice(json).map_err(|_| "it was written by another version of longma")
    }
}
