//! Progress bar of a campaign: the time left, and the best and the worst point so far. Hidden if standard error is not
//! a terminal.

use indicatif::{ProgressBar, ProgressStyle};
use longma_lab::{Better, Experiment, Failure, Metric, Observer, Point, Record, number};
use longma_locks::IgnorePoison;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::Duration;

/// A progress bar on standard error.
pub struct Bar {
    bar: ProgressBar,
    metric: Option<(String, Metric)>,
    seen: Mutex<Seen>,
}

/// Counts of failures, and the points with the smallest and the largest value.
#[derive(Default)]
struct Seen {
    failed: usize,
    faults: usize,
    lowest: Option<(f64, String)>,
    highest: Option<(f64, String)>,
}

impl Bar {
    /// Creates a bar for `experiment`, hidden if standard error is not a terminal. It follows the experiment's first
    /// metric.
    pub fn new(experiment: &Experiment) -> Self {
        let bar = if std::io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template(
            "{prefix:.bold} {bar:28.cyan/dim} {pos}/{len}  {elapsed} gone, {eta} left  {wide_msg}",
        )
        .unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        bar.set_prefix(experiment.parts().name.clone());
        let metric = experiment.metrics().first().map(|(name, metric)| (name.to_string(), (*metric).clone()));
        Self { bar, metric, seen: Mutex::default() }
    }

    /// Removes the bar from the terminal.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Bar {
    fn begin(&self, to_run: usize, _reused: usize) {
        self.bar.set_length(to_run as u64);
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    fn point(&self, point: &Point, record: &Record) {
        let mut seen = self.seen.lock().ignore_poison();
        seen.failed += usize::from(record.failure.is_some());
        let value = self.metric.as_ref().and_then(|(name, metric)| metric.value(name, record));
        if let Some(value) = value {
            if seen.lowest.as_ref().is_none_or(|(least, _)| value < *least) {
                seen.lowest = Some((value, point.label()));
            }
            if seen.highest.as_ref().is_none_or(|(highest, _)| value > *highest) {
                seen.highest = Some((value, point.label()));
            }
        }
        self.bar.set_message(seen.words(self.metric.as_ref()));
        self.bar.inc(1);
    }

    fn fault(&self, _: &Point, _: &Failure) {
        let mut seen = self.seen.lock().ignore_poison();
        seen.faults += 1;
        self.bar.set_message(seen.words(self.metric.as_ref()));
        self.bar.inc(1);
    }

    fn elsewhere(&self, _: &Point) {
        self.bar.inc(1);
    }

    fn waiting(&self, points: usize) {
        self.bar.suspend(|| {
            eprintln!(
                "longma: {points} points are being run by another command on this store; waiting for them"
            )
        });
    }
}

impl Seen {
    fn words(&self, metric: Option<&(String, Metric)>) -> String {
        let mut words = Vec::new();
        if self.failed > 0 {
            words.push(format!("{} failed", self.failed));
        }
        if self.faults > 0 {
            words.push(format!("{} let down by the host", self.faults));
        }
        if let (Some((_, metric)), Some(lowest), Some(highest)) = (metric, &self.lowest, &self.highest) {
            let (first, second, names) = match metric.better {
                Some(Better::Less) => (lowest, highest, ["best", "worst"]),
                Some(Better::More) => (highest, lowest, ["best", "worst"]),
                None => (lowest, highest, ["least", "most"]),
            };
            for (name, (value, point)) in names.iter().zip([first, second]) {
                words.push(format!("{name} {} {} ({point})", number(*value), metric.unit));
            }
        }
        words.join("  ")
    }
}
