//! Metrics for Prometheus, in the OpenMetrics text format.

use longma_placement::Store;
use longma_placement::inventory::HostStatus;
use longma_placement::store::StoreError;
use prometheus_client::encoding::{EncodeLabelSet, text::encode};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    what: &'static str,
}

/// All metrics.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    seconds: Histogram,
    placed: Counter,
    vms: Family<KindLabel, Gauge>,
    hosts: Family<KindLabel, Gauge>,
    alarms: Gauge,
}

impl Metrics {
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("longma_placement");
        // 16 buckets from 100 us, each twice the previous one.
        let seconds = Histogram::new(exponential_buckets(1e-4, 2.0, 16));
        let requests = Family::<RequestLabels, Counter>::default();
        let (placed, alarms) = (Counter::default(), Gauge::default());
        let (vms, hosts) = (Family::<KindLabel, Gauge>::default(), Family::<KindLabel, Gauge>::default());
        registry.register("requests", "Requests answered", requests.clone());
        registry.register("request_seconds", "Time from a request to its answer", seconds.clone());
        registry.register("placed", "Virtual machines placed", placed.clone());
        registry.register("vms", "Virtual machines by state", vms.clone());
        registry.register("hosts", "Hosts by status", hosts.clone());
        registry.register("alarms", "Active alarms", alarms.clone());
        Self { registry, requests, seconds, placed, vms, hosts, alarms }
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

    /// Encodes all metrics, with the store's current counts.
    pub fn text(&self, store: &dyn Store) -> Result<String, StoreError> {
        let counts = store.counts()?;
        self.vms.clear();
        for (state, count) in counts.vms {
            self.vms.get_or_create(&KindLabel { what: state.name() }).set(count as i64);
        }
        self.hosts.clear();
        for (status, count) in counts.hosts {
            let what = match status {
                HostStatus::Up => "up",
                HostStatus::Draining => "draining",
                HostStatus::Down => "down",
                HostStatus::ForcedDown => "forced-down",
            };
            self.hosts.get_or_create(&KindLabel { what }).inc_by(count as i64);
        }
        self.alarms.set(counts.alarms as i64);
        let mut text = String::new();
        encode(&mut text, &self.registry).map_err(|_| StoreError::Closed)?;
        Ok(text)
    }
}
