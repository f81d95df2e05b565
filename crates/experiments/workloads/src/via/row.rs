//! Evaluates a measurement: percentiles of pings, rates of streams.
//!
//! Percentiles use the nearest rank.

use super::exchange::{Measure, MeasurementRequest};
use serde_json::{Value, json};

/// Result of one measurement.
pub struct Row {
    /// The request.
    pub request: MeasurementRequest,
    /// Sorted times in picoseconds: of each ping, or of the whole stream.
    times: Vec<u64>,
}

impl Row {
    /// Creates the result of a measurement with these times.
    pub fn new(request: MeasurementRequest, mut times: Vec<u64>) -> Self {
        times.sort_unstable();
        Self { request, times }
    }

    fn percentile(&self, percent: f64) -> f64 {
        let rank = (percent / 100.0 * self.times.len() as f64).ceil() as usize;
        let index = rank.clamp(1, self.times.len().max(1)) - 1;
        self.times.get(index).map_or(f64::NAN, |ps| *ps as f64 / 1e6)
    }

    /// Mean one-way time in us.
    pub fn mean_us(&self) -> f64 {
        self.times.iter().map(|ps| *ps as f64).sum::<f64>() / 1e6 / self.times.len() as f64
    }

    /// Duration of the stream in seconds.
    pub fn seconds(&self) -> f64 {
        self.times.first().map_or(f64::NAN, |ps| *ps as f64 / 1e12)
    }

    /// Messages per second.
    pub fn rate(&self) -> f64 {
        f64::from(self.request.messages) / self.seconds()
    }

    /// 10^6 bytes per second.
    pub fn megabytes(&self) -> f64 {
        self.rate() * f64::from(self.request.bytes) / 1e6
    }

    /// The values with their names, which include the unit.
    pub fn cells(&self) -> Vec<(&'static str, f64)> {
        match self.request.measure {
            Measure::Ping => {
                let [min, max] = [self.percentile(0.0), self.percentile(100.0)];
                vec![
                    ("min_us", min),
                    ("median_us", self.percentile(50.0)),
                    ("mean_us", self.mean_us()),
                    ("p99_us", self.percentile(99.0)),
                    ("p99.9_us", self.percentile(99.9)),
                    ("max_us", max),
                ]
            }
            _ => vec![
                ("seconds", self.seconds()),
                ("messages_per_second", self.rate()),
                ("megabytes_per_second", self.megabytes()),
            ],
        }
    }

    /// Formats the result as JSON.
    pub fn json(&self) -> Value {
        let mut value = json!({ "bytes": self.request.bytes, "messages": self.request.messages });
        for (name, number) in self.cells() {
            value[name] = json!(number);
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_nearest_ranks_and_rates_follow_from_the_time() {
        let request =
            MeasurementRequest { measure: Measure::Ping, bytes: 8, messages: 1000, warm_up: 0, window: 1 };
        let row = Row::new(request, (1..=1000u64).rev().map(|n| n * 1_000_000).collect());
        let value = row.json();
        assert_eq!((value["min_us"].as_f64(), value["max_us"].as_f64()), (Some(1.0), Some(1000.0)));
        assert_eq!((value["median_us"].as_f64(), value["p99_us"].as_f64()), (Some(500.0), Some(990.0)));
        let request = MeasurementRequest {
            measure: Measure::Bandwidth,
            bytes: 1000,
            messages: 2000,
            warm_up: 0,
            window: 1,
        };
        let row = Row::new(request, vec![1_000_000_000_000]);
        assert_eq!((row.rate(), row.megabytes()), (2000.0, 2.0));
    }
}
