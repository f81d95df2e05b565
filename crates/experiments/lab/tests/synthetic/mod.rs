//! A workload for tests that computes a formula.
#![allow(dead_code)]

use longma_lab::*;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Computes a formula, fails on request, and counts its runs.
pub struct Synthetic {
    pub runs: &'static AtomicUsize,
    pub parameters: Vec<Parameter>,
}

impl Synthetic {
    pub fn new(runs: &'static AtomicUsize) -> Self {
        let parameter = |name, kind, default| Parameter { name, kind, default, description: "" };
        let parameters = vec![
            parameter("n", Kind::Integer, Some(1.into())),
            parameter("size", Kind::Size, Some("4 KiB".into())),
            parameter("mode", Kind::Word(&["plain", "fast"]), Some("plain".into())),
            parameter("notes", Kind::Named, Some(Setting::Named(Default::default()))),
            parameter("fails_at", Kind::Integer, Some((-1).into())),
            parameter("panics_at", Kind::Integer, Some((-1).into())),
            parameter("let_down_at", Kind::Integer, Some((-1).into())),
            parameter("takes_ms", Kind::Integer, Some(0.into())),
        ];
        Self { runs, parameters }
    }
}

fn number(point: &Point, name: &str) -> f64 {
    point.parameter(name).and_then(Setting::number).unwrap_or(0.0)
}

impl Workload for Synthetic {
    fn name(&self) -> &str {
        "synthetic"
    }
    fn description(&self) -> &str {
        "a formula"
    }
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }
    fn run(&self, point: &Point, _: &Stop) -> Result<Metrics, Failure> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        let (n, size) = (number(point, "n"), number(point, "size"));
        if n == number(point, "fails_at") {
            return Err(Failure::failed("told to fail"));
        }
        assert!(n != number(point, "panics_at"), "told to panic");
        if n == number(point, "let_down_at") {
            return Err(Failure::host("told that the disk is full"));
        }
        std::thread::sleep(Duration::from_millis(number(point, "takes_ms") as u64));
        let speed = if point.text("mode") == "fast" { 3.0 } else { 1.0 };
        let mut metrics = Metrics::default();
        metrics.result("rate", speed * n / (1.0 + n / 8.0) * 1000.0);
        metrics.result("latency", (size / 1024.0).sqrt() + n / 3.0);
        Ok(metrics)
    }
}

/// A registry with the synthetic workload, and its run counter.
pub fn registry() -> (Registry, &'static AtomicUsize) {
    let runs = Box::leak(Box::new(AtomicUsize::new(0)));
    let mut registry = Registry::default();
    registry.add(Synthetic::new(runs));
    (registry, runs)
}

/// Parses an experiment, which must be valid.
pub fn experiment(text: &str, registry: &Registry) -> Experiment {
    let checked = Experiment::check(Path::new("test.toml"), Path::new(""), text, registry);
    checked.experiment.unwrap_or_else(|| panic!("{}", checked.report.render(100, false)))
}
