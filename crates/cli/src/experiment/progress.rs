//! Progress of a campaign on standard error. On a terminal, a bar shows the time left and the best and the worst point
//! so far. Otherwise, a line is printed every few seconds and, if there are several experiments, at the start and the
//! end of each.

use indicatif::{ProgressBar, ProgressStyle};
use longma_lab::{Better, Experiment, Failure, Metric, Observer, Point, Record, number};
use longma_locks::IgnorePoison;
use longma_text::sanitize_lines;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The interval of lines about finished points.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The progress of a campaign on standard error.
pub struct Bar {
    bar: ProgressBar,
    /// State of the line output that replaces the bar.
    lines: Option<Mutex<Lines>>,
    metric: Option<(String, Metric)>,
    counts: Mutex<Counts>,
}

/// Progress in lines.
struct Lines {
    /// The name of the experiment, with its number if there are several.
    name: String,
    /// Whether to print lines at the start and the end.
    is_one_of_several: bool,
    to_run: usize,
    done: usize,
    last: Instant,
}

impl Lines {
    fn new(name: &str, (index, count): (usize, usize)) -> Self {
        let is_one_of_several = count > 1;
        let name = if is_one_of_several { format!("[{}/{count}] {name}", index + 1) } else { name.into() };
        Self { name, is_one_of_several, to_run: 0, done: 0, last: Instant::now() }
    }

    /// The line at the start.
    fn begin(&mut self, to_run: usize, reused: usize) -> Option<String> {
        self.to_run = to_run;
        let reused = if reused > 0 { format!(", {reused} reused") } else { String::new() };
        self.is_one_of_several.then(|| format!("{}: {to_run} points to run{reused}", self.name))
    }

    /// The line after a point, at most one in `LINE_INTERVAL`.
    fn advance(&mut self, now: Instant, details: &str) -> Option<String> {
        self.done += 1;
        let is_due = now.saturating_duration_since(self.last) >= LINE_INTERVAL && self.done < self.to_run;
        is_due.then(|| {
            self.last = now;
            let details = if details.is_empty() { String::new() } else { format!("  {details}") };
            format!("{}: {} of {} points{details}", self.name, self.done, self.to_run)
        })
    }

    /// The line at the end.
    fn end(&self) -> Option<String> {
        let is_printed = self.is_one_of_several && self.done > 0;
        is_printed.then(|| format!("{}: {} of {} points done", self.name, self.done, self.to_run))
    }
}

/// Counts of failures, and the points with the smallest and the largest value.
#[derive(Default)]
struct Counts {
    failed: usize,
    faults: usize,
    lowest: Option<(f64, String)>,
    highest: Option<(f64, String)>,
}

impl Bar {
    /// Creates the progress of `experiment`, which has the index `position.0` of `position.1` experiments. The bar shows
    /// the points with the smallest and the largest value of the experiment's first metric.
    pub fn new(experiment: &Experiment, position: (usize, usize)) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let bar = if is_terminal { ProgressBar::new(0) } else { ProgressBar::hidden() };
        let lines = (!is_terminal).then(|| Mutex::new(Lines::new(&experiment.parts().name, position)));
        let style = ProgressStyle::with_template(
            "{prefix:.bold} {bar:28.cyan/dim} {pos}/{len}  {elapsed} elapsed, {eta} left  {wide_msg}",
        )
        .unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        bar.set_prefix(experiment.parts().name.clone());
        let metric = experiment.metrics().first().map(|(name, metric)| (name.to_string(), (*metric).clone()));
        Self { bar, lines, metric, counts: Mutex::default() }
    }

    /// Removes the bar from the terminal, or prints the last line.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
        self.line(|lines| lines.end());
    }

    /// Prints a line, if lines replace the bar and there is one.
    fn line(&self, next: impl FnOnce(&mut Lines) -> Option<String>) {
        let Some(lines) = &self.lines else { return };
        if let Some(line) = next(&mut lines.lock().ignore_poison()) {
            eprintln!("{}", sanitize_lines(&line));
        }
    }

    /// Counts a point, and shows `details` about the points so far.
    fn advance(&self, details: String) {
        self.line(|lines| lines.advance(Instant::now(), &details));
        self.bar.set_message(sanitize_lines(&details));
        self.bar.inc(1);
    }
}

impl Observer for Bar {
    fn begin(&self, to_run: usize, reused: usize) {
        self.line(|lines| lines.begin(to_run, reused));
        self.bar.set_length(to_run as u64);
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    fn point(&self, point: &Point, record: &Record) {
        let mut counts = self.counts.lock().ignore_poison();
        counts.failed += usize::from(record.failure.is_some());
        let value = self.metric.as_ref().and_then(|(name, metric)| metric.value(name, record));
        if let Some(value) = value {
            if counts.lowest.as_ref().is_none_or(|(least, _)| value < *least) {
                counts.lowest = Some((value, point.label()));
            }
            if counts.highest.as_ref().is_none_or(|(highest, _)| value > *highest) {
                counts.highest = Some((value, point.label()));
            }
        }
        self.advance(counts.details(self.metric.as_ref()));
    }

    fn fault(&self, _: &Point, _: &Failure) {
        let mut counts = self.counts.lock().ignore_poison();
        counts.faults += 1;
        self.advance(counts.details(self.metric.as_ref()));
    }

    fn run_elsewhere(&self, _: &Point) {
        self.line(|lines| lines.advance(Instant::now(), ""));
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

impl Counts {
    fn details(&self, metric: Option<&(String, Metric)>) -> String {
        let mut details = Vec::new();
        if self.failed > 0 {
            details.push(format!("{} failed", self.failed));
        }
        if self.faults > 0 {
            details.push(format!("{} failed because of the host", self.faults));
        }
        if let (Some((_, metric)), Some(lowest), Some(highest)) = (metric, &self.lowest, &self.highest) {
            let (first, second, names) = match metric.better {
                Some(Better::Less) => (lowest, highest, ["best", "worst"]),
                Some(Better::More) => (highest, lowest, ["best", "worst"]),
                None => (lowest, highest, ["least", "most"]),
            };
            for (name, (value, point)) in names.iter().zip([first, second]) {
                details.push(format!("{name} {} {} ({point})", number(*value), metric.unit));
            }
        }
        details.join("  ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_report_the_start_and_end_of_each_experiment_and_few_points() {
        let mut lines = Lines::new("tcp-receive", (1, 3));
        assert_eq!(lines.begin(3, 2).unwrap(), "[2/3] tcp-receive: 3 points to run, 2 reused");
        let start = lines.last;
        assert_eq!(lines.advance(start, "1 failed"), None);
        let line = lines.advance(start + LINE_INTERVAL, "1 failed").unwrap();
        assert_eq!(line, "[2/3] tcp-receive: 2 of 3 points  1 failed");
        assert_eq!(lines.advance(start + 3 * LINE_INTERVAL, ""), None, "the end has a line of its own");
        assert_eq!(lines.end().unwrap(), "[2/3] tcp-receive: 3 of 3 points done");
        let mut alone = Lines::new("tcp-receive", (0, 1));
        assert_eq!((alone.begin(3, 0), alone.end()), (None, None));
    }
}
