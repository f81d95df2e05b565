//! Metrics: the contents of `/metrics`, and that the Grafana dashboard uses no other metrics.

use crate::service::*;
use longma_placement::host::NodeLoad;
use longma_placement::store::{Vm, VmState};
use longma_placement_service::wire::AgentReport;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Names and labels of the exported series; values by series.
struct Exported {
    labels: BTreeMap<String, BTreeSet<String>>,
    values: BTreeMap<String, f64>,
}

impl Exported {
    /// Parses the OpenMetrics text format, as far as the service uses it.
    fn parse(text: &str) -> Self {
        let mut all = Self { labels: BTreeMap::new(), values: BTreeMap::new() };
        assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1, "{text}");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(all.values.insert(series.into(), value.parse().unwrap()).is_none(), "twice: {series}");
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let labels = labels
                .trim_end_matches('}')
                .split(',')
                .filter_map(|l| Some(l.split_once('=')?.0.to_string()));
            all.labels.entry(name.into()).or_default().extend(labels);
        }
        all
    }

    fn of(service: &Service, query: &str) -> Self {
        Self::parse(&service.admin.get_text(&format!("/metrics{query}")).unwrap())
    }

    fn value(&self, series: &str) -> f64 {
        *self.values.get(series).unwrap_or_else(|| panic!("{series} in {:?}", self.values.keys()))
    }
}

/// A service with a host and a second one, a virtual machine, an alarm and one request of each kind of answer.
fn busy_service() -> Service {
    let service = service();
    let vm = json!({ "name": "a", "vcpus": 2, "memory_mib": 1024, "cpu": "exclusive" });
    let vm: Vm = service.admin.post("/v1/vms", None, &vm).unwrap();
    until("it runs", || {
        service.admin.get::<Vm>(&format!("/v1/vms/{}", vm.id)).unwrap().state == VmState::Running
    });
    let agent = service.client("g", "agent", Some("h2"));
    let describe = longma_placement_service::wire::AgentChange::Describe(host("h2"));
    agent.post::<Value>("/v1/agents/h2/changes", None, &describe).unwrap();
    let load = vec![NodeLoad { cpu: 0.5, memory: 0.25 }; 8];
    let report = AgentReport { problems: vec!["no disk".into()], load, ..AgentReport::default() };
    agent.post::<Value>("/v1/agents/h2/report", None, &report).unwrap();
    service
}

#[test]
fn hosts_nodes_and_alarms_have_gauges() {
    let service = busy_service();
    let exported = Exported::of(&service, "");
    let value = |series: &str| exported.value(&format!("longma_placement_{series}"));
    assert_eq!(value(r#"vms{what="running"}"#), 1.0);
    assert_eq!(value(r#"hosts{what="up"}"#), 2.0);
    assert_eq!((value(r#"host_vms{host="h1"}"#), value(r#"host_vms{host="h2"}"#)), (1.0, 0.0));
    assert_eq!((value(r#"host_up{host="h2"}"#), value(r#"host_problems{host="h2"}"#)), (1.0, 1.0));
    assert_eq!(value(r#"host_alarms{host="h2",kind="agent-problem"}"#), 1.0);
    assert_eq!((value(r#"alarms{kind="agent-problem"}"#), value(r#"alarms{kind="cpu"}"#)), (1.0, 0.0));
    let dedicated: f64 =
        (0..8).map(|n| value(&format!(r#"node_exclusive_cpus{{host="h1",node="{n}"}}"#))).sum();
    assert_eq!(dedicated, 2.0);
    let pools = exported.values.iter().filter(|(series, _)| series.contains("node_reserved_memory_bytes"));
    assert_eq!(pools.map(|(_, bytes)| bytes).sum::<f64>(), f64::from(1 << 30));
    assert_eq!(value(r#"node_cpu_load_ratio{host="h2",node="7"}"#), 0.5);
    assert_eq!(value(r#"node_memory_load_ratio{host="h2",node="7"}"#), 0.25);
    // Only sums, for fleets that are too large for a series of each node.
    let sums = Exported::of(&service, "?hosts=false");
    assert!(sums.labels.contains_key("longma_placement_hosts"));
    assert!(sums.values.keys().all(|series| !series.contains("host=")), "{:?}", sums.values.keys());
    assert_eq!(service.admin_status("GET", "/metrics?hosts=1", ""), 400);
    // A host that is removed has no series.
    service.admin.delete::<()>("/v1/hosts/h2").unwrap_err();
    let again = Exported::of(&service, "");
    assert_eq!(again.value(r#"longma_placement_hosts{what="up"}"#), 2.0, "a second scrape counts anew");
}

/// Names of metrics and of labels in a PromQL expression: `(metrics, labels)`. All metrics have the service's prefix, so
/// every other word is a function, a keyword or a label.
fn names_in(expression: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    const WORDS: [&str; 11] =
        ["sum", "max", "min", "rate", "histogram_quantile", "vector", "or", "by", "label_values", "m", "e"];
    let (mut metrics, mut labels) = (BTreeSet::new(), BTreeSet::new());
    // Text in quotes is a value.
    for outside in expression.split('"').step_by(2) {
        let words = outside.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for word in words.filter(|w| w.starts_with(|c: char| c.is_ascii_alphabetic()) && !WORDS.contains(w)) {
            let names = if word.starts_with("longma_") { &mut metrics } else { &mut labels };
            names.insert(word.to_string());
        }
    }
    (metrics, labels)
}

#[test]
fn the_dashboard_asks_for_exported_metrics_and_labels() {
    let service = busy_service();
    let exported = Exported::of(&service, "");
    let dashboard: Value = serde_json::from_str(longma_placement_service::GRAFANA_DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut expressions: Vec<String> = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap())
        .map(|target| target["expr"].as_str().unwrap().replace("[$__rate_interval]", ""))
        .collect();
    expressions.push(dashboard["templating"]["list"][1]["definition"].as_str().unwrap().into());
    let mut used = BTreeSet::new();
    for expression in &expressions {
        let (metrics, labels) = names_in(expression);
        assert!(!metrics.is_empty(), "{expression}");
        for open_and_close in ["()", "{}"] {
            let count = |at: usize| expression.matches(&open_and_close[at..=at]).count();
            assert_eq!(count(0), count(1), "{expression}");
        }
        let mut known = BTreeSet::new();
        for metric in &metrics {
            known.extend(
                exported
                    .labels
                    .get(metric)
                    .unwrap_or_else(|| panic!("{metric} in {expression}"))
                    .iter()
                    .cloned(),
            );
        }
        assert!(labels.is_subset(&known), "{expression}: {labels:?}, {known:?}");
        used.extend(metrics);
    }
    // The dashboard shows each exported metric.
    let sums = ["_bucket", "_sum", "_count", "_total"];
    let shown = |metric: &String| used.contains(metric) || sums.iter().any(|sum| metric.ends_with(sum));
    assert!(exported.labels.keys().all(shown), "{used:?}");
}

/// The fields that Grafana requires to import a dashboard. Source: Grafana's manual, "Dashboard JSON model".
#[test]
fn the_dashboard_has_what_grafana_requires() {
    let dashboard: Value = serde_json::from_str(longma_placement_service::GRAFANA_DASHBOARD).unwrap();
    assert!(dashboard["schemaVersion"].as_u64().is_some_and(|version| version >= 30));
    assert!(dashboard["title"].is_string() && dashboard["uid"].as_str().is_some_and(|uid| uid.len() <= 40));
    assert!(dashboard["time"]["from"].is_string() && dashboard["annotations"]["list"].is_array());
    assert!(dashboard.get("id").is_none_or(Value::is_null), "an id would replace another dashboard");
    let variables: Vec<_> =
        dashboard["templating"]["list"].as_array().unwrap().iter().map(|v| &v["name"]).collect();
    assert_eq!(variables, ["datasource", "host"]);
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}");
        assert!(["stat", "timeseries", "table"].contains(&panel["type"].as_str().unwrap()), "{title}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24 && at("h") > 0, "{title}: the grid has 24 columns");
        for cell in
            (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y)))
        {
            assert!(taken.insert(cell), "{title} covers another panel");
        }
        let targets = panel["targets"].as_array().unwrap();
        let names: BTreeSet<_> = targets.iter().map(|target| target["refId"].as_str().unwrap()).collect();
        assert_eq!(names.len(), targets.len(), "{title}");
        assert!(targets.iter().all(|target| target["datasource"]["type"] == "prometheus"), "{title}");
    }
}
