//! Metrics for Prometheus, in the OpenMetrics text format.

mod state_gauges;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

pub(crate) use state_gauges::StateGauges;

/// Prefix of all names.
const PREFIX: &str = "longma_placement";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: String,
    status: u16,
}

/// The counters of this service since its start.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    seconds: Histogram,
    placed: Counter,
}

impl Metrics {
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        // 16 buckets from 100 us, each twice the previous one.
        let seconds = Histogram::new(exponential_buckets(1e-4, 2.0, 16));
        let (requests, placed) = (Family::<RequestLabels, Counter>::default(), Counter::default());
        registry.register("requests", "Requests answered", requests.clone());
        registry.register("request_seconds", "Time from a request to its answer", seconds.clone());
        registry.register("placed", "Virtual machines placed", placed.clone());
        Self { registry, requests, seconds, placed }
    }

    /// Counts an answer.
    pub fn record_answer(&self, method: &axum::http::Method, status: u16, seconds: f64) {
        // Clients can invent methods, so all unknown ones share a label.
        let known = ["GET", "POST", "PUT", "DELETE"].contains(&method.as_str());
        let method = if known { method.as_str() } else { "other" }.to_string();
        self.requests.get_or_create(&RequestLabels { method, status }).inc();
        self.seconds.observe(seconds);
    }

    /// Counts a placed virtual machine.
    pub fn placed(&self) {
        self.placed.inc();
    }

    /// Encodes the counters, followed by `gauges`.
    pub fn text(&self, gauges: &StateGauges) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode_registry(&mut text, &self.registry)?;
        gauges.encode(&mut text)?;
        encode_eof(&mut text)?;
        Ok(text)
    }
}
