//! `longma experiment sensitivity`: how much the estimates of a machine matter to the results. `longma-lab` plans the
//! runs and draws the charts.

use super::progress::Bar;
use super::{Format, Outcome, VERSION, Which, figures, find, print, status};
use longma_command_line::output::print_json;
use longma_lab::{
    Combination, Effect, Effects, Experiment, Metric, Names, Options, Registry, Sensitivity, Stop,
    Variations, number, tornado,
};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// `longma experiment sensitivity ...`
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// Examine this metric; may be repeated [default: those of the file's [sensitivity], or all].
    #[arg(long, value_name = "NAME")]
    metric: Vec<String>,
    /// Examine only points at which a swept parameter has this value; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = super::explain::assignment)]
    at: Vec<(String, String)>,
    /// Vary only estimates whose name matches this pattern, such as `machine.cores.*`; may be repeated.
    #[arg(long, value_name = "PATTERN")]
    estimate: Vec<String>,
    /// Factor for the low value of an estimate without a range [default: 0.5].
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    low: Option<f64>,
    /// Factor for the high value of an estimate without a range [default: 2].
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    high: Option<f64>,
    /// Number of points to run at the same time [default: one per processor].
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    jobs: Option<u16>,
    /// Run previously failed points again.
    #[arg(long)]
    retry_failed: bool,
    /// Write each chart and the table to this folder.
    #[arg(long, value_name = "FOLDER")]
    figures: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor: &f64| factor.is_finite() && *factor > 0.0);
    factor.ok_or_else(|| "give a number above 0, such as 0.75".into())
}

/// Runs `longma experiment sensitivity`.
pub fn run(arguments: &Arguments, registry: &Registry) -> Outcome {
    let variations = Variations {
        metrics: arguments.metric.clone(),
        at: arguments.at.iter().cloned().collect(),
        estimates: arguments.estimate.clone(),
        factors: [arguments.low, arguments.high],
    };
    let stop = Arc::new(Stop::default());
    let stop_on_signal = stop.clone();
    // If no handler can be set, Ctrl-C ends the command at once. Stored results are kept either way.
    let _ = ctrlc::set_handler(move || stop_on_signal.request());
    let (mut shown, mut host, mut failed) = (Shown::default(), false, false);
    for experiment in find::open(&arguments.which, registry)? {
        let sensitivity =
            Sensitivity::plan(&experiment, arguments.which.quick, &variations, registry, VERSION)?;
        let defaults = Options::default();
        let jobs = arguments.jobs.map_or(defaults.jobs, usize::from);
        let options = Options { jobs, retry_failed: arguments.retry_failed, ..defaults };
        let bar = Bar::new(&experiment, (0, 1));
        let outcome = sensitivity.campaign.run(&arguments.which.store(), registry, &options, &bar, &stop);
        bar.clear();
        let outcome = outcome?;
        if stop.is_requested() {
            let left = outcome.left;
            eprintln!("longma: stopped; {left} runs are left, and the same command continues");
            return Ok(ExitCode::from(status::INTERRUPTED));
        }
        print::report_faults(&outcome);
        print::report_store_problems(&outcome.results);
        host |= !outcome.faults.is_empty();
        failed |=
            sensitivity.failed(&outcome.results) > 0 || outcome.results.contradict(&sensitivity.campaign);
        shown.add(&experiment, &sensitivity, &outcome.results);
    }
    if let Some(folder) = &arguments.figures {
        shown.write(folder)?;
    }
    match arguments.format {
        Format::Table => print::show(&shown.text)?,
        Format::Json => print_json(&json!(shown.objects))?,
    };
    Ok(status::ended(host, false, failed || shown.gaps))
}

/// The results in all forms.
#[derive(Default)]
struct Shown {
    text: String,
    objects: Vec<Value>,
    /// Charts by name.
    charts: Vec<(String, String)>,
    /// The experiments' tables, by name.
    tables: Vec<(String, Vec<Vec<String>>)>,
    /// Whether a metric has no value at an unchanged point.
    gaps: bool,
}

impl Shown {
    fn add(&mut self, experiment: &Experiment, sensitivity: &Sensitivity<'_>, results: &longma_lab::Results) {
        let parts = experiment.parts();
        let _ = writeln!(self.text, "{}", longma_text::sanitize(&parts.title));
        let headings = ["at", "metric", "unit", "unchanged", "parameter", "value", "source"];
        let ends = ["low_value", "low", "high_value", "high", "span", "error"];
        let mut rows = vec![headings.iter().chain(&ends).map(|text| text.to_string()).collect::<Vec<_>>()];
        let metrics = experiment.metrics();
        for (index, combination) in sensitivity.combinations.iter().enumerate() {
            for name in sensitivity.metrics() {
                let Some((_, metric)) = metrics.iter().find(|(known, _)| *known == name) else { continue };
                let number = if sensitivity.combinations.len() > 1 {
                    format!("-{}", index + 1)
                } else {
                    String::new()
                };
                let chart = format!("{}-sensitivity-{name}{number}.svg", parts.name);
                match sensitivity.effects(combination, name, results) {
                    Ok(effects) => {
                        self.add_metric((name, *metric), combination, effects, chart, &mut rows, experiment)
                    }
                    Err(why) => {
                        self.gaps = true;
                        let at = at(combination, &Names::of(experiment));
                        let _ = writeln!(self.text, "{at}{name}: no value: {why}\n");
                        self.objects.push(json!({ "experiment": parts.name, "metric": name, "error": why }));
                    }
                }
            }
        }
        self.tables.push((format!("{}-sensitivity.csv", parts.name), rows));
    }

    fn add_metric(
        &mut self,
        (name, metric): (&str, &Metric),
        combination: &Combination,
        effects: Effects,
        chart: String,
        rows: &mut Vec<Vec<String>>,
        experiment: &Experiment,
    ) {
        let parts = experiment.parts();
        let (unit, at, base) = (&metric.unit, at(combination, &Names::of(experiment)), effects.base);
        let _ = writeln!(self.text, "{at}{}: {} {unit} unchanged", metric.title(name), number(base));
        self.text.push_str(&table(&effects));
        self.text.push('\n');
        let title = format!("{}: sensitivity to estimates", parts.title);
        let shown =
            if at.is_empty() { metric.title(name).into() } else { format!("{at}{}", metric.title(name)) };
        self.charts.push((chart, tornado(&title, &shown, unit, &effects)));
        rows.extend(effects.effects.iter().map(|effect| {
            let mut row =
                vec![at.trim_end_matches(", ").to_string(), name.into(), unit.clone(), base.to_string()];
            row.extend([effect.parameter.clone(), text_of(&effect.value), text_of(&effect.source)]);
            for end in 0..2 {
                let end = effect.ends.get(end);
                let value = end.and_then(|(_, value)| value.as_ref().ok());
                row.extend([text_of(&end.map(|(setting, _)| setting)), text_of(&value)]);
            }
            let error = effect.ends.iter().find_map(|(_, value)| value.as_ref().err());
            row.extend([effect.span(base).to_string(), text_of(&error)]);
            row
        }));
        let settings: serde_json::Map<_, _> =
            combination.settings.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let end = |(setting, value): &(longma_lab::Setting, Result<f64, String>)| json!({ "parameter": setting, "value": value.as_ref().ok(), "error": value.as_ref().err() });
        let effect = |effect: &Effect| {
            json!({ "parameter": effect.parameter, "value": effect.value, "source": effect.source,
                "ends": effect.ends.iter().map(end).collect::<Vec<_>>(), "span": effect.span(base) })
        };
        self.objects.push(
            json!({ "experiment": parts.name, "at": settings, "metric": name, "unit": unit, "unchanged": base,
                "effects": effects.effects.iter().map(effect).collect::<Vec<_>>() }),
        );
    }

    /// Writes the charts and the tables to a folder.
    fn write(&self, folder: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
        let charts = self.charts.iter().map(|(name, svg)| (name.clone(), svg.clone()));
        let mut files = figures::charts(charts)?;
        files.extend(
            self.tables.iter().map(|(name, rows)| (name.clone(), longma_lab::csv(rows).into_bytes())),
        );
        figures::write(folder, files)
    }
}

fn text_of(value: &Option<impl ToString>) -> String {
    value.as_ref().map_or(String::new(), ToString::to_string)
}

/// The settings of the other parameters, as named in tables, followed by a comma.
fn at(combination: &Combination, names: &Names) -> String {
    let label = names.label(combination.settings.iter().map(|(name, value)| (name, value)));
    if label.is_empty() { label } else { label + ", " }
}

/// The effects as a table. Parameters without an effect follow in one line.
fn table(effects: &Effects) -> String {
    /// Maximum number of parameters without an effect that are named.
    const NAMED: usize = 8;
    let base = effects.base;
    let mut rows = vec![print::row(["PARAMETER", "VALUE", "LOW", "HIGH", "AT LOW", "AT HIGH", "SPAN"])];
    let (moving, still): (Vec<_>, Vec<_>) =
        effects.effects.iter().partition(|effect| effect.span(base) > 0.0);
    let percent = |value: f64| match base {
        0.0 => number(value),
        base => format!("{:+.2} %", (value / base - 1.0) * 100.0),
    };
    for effect in moving {
        let end = |end: usize| match effect.ends.get(end) {
            Some((setting, Ok(value))) => [setting.to_string(), percent(*value)],
            Some((setting, Err(_))) => [setting.to_string(), "failed".into()],
            None => ["-".into(), "-".into()],
        };
        let ([low, at_low], [high, at_high]) = (end(0), end(1));
        let span = number(effect.span(base));
        let value = text_of(&effect.value);
        rows.push(print::row([&effect.parameter, &value, &low, &high, &at_low, &at_high, &span]));
    }
    let mut text = if rows.len() > 1 { print::table(rows, 3) } else { String::new() };
    let (failed, none): (Vec<&Effect>, Vec<&Effect>) =
        still.into_iter().partition(|effect| effect.ends.iter().any(|(_, value)| value.is_err()));
    // Points often fail for the same reason.
    let why = effects
        .effects
        .iter()
        .flat_map(|effect| &effect.ends)
        .find_map(|(end, value)| Some((end, value.as_ref().err()?)));
    let why = why.map(|(end, why)| format!("failed at {end}: {}\n", longma_text::sanitize(why)));
    for (what, effects) in [("no effect", none), ("could not be varied", failed)] {
        let names: Vec<_> = effects.iter().take(NAMED).map(|effect| effect.parameter.as_str()).collect();
        let more = effects.len() - names.len();
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        if !names.is_empty() {
            let _ = writeln!(text, "{what}: {}{more}", names.join(", "));
        }
    }
    text + &why.unwrap_or_default()
}
