//! `longma explain`: how much each mechanism of an experiment contributes to its metrics. `longma-lab` plans the runs
//! and computes the contributions.
//! Source: Shapley values, see `longma_lab::Game`.

use super::progress::Bar;
use super::{Format, Outcome, VERSION, Which, find, print, status};
use longma_command_line::output::print_json;
use longma_lab::{
    Context, Contribution, Experiment, Explanation, Game, Options, Outcome as Campaigned, Registry,
    Selection, Stop, number,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

/// `longma explain ...`
#[derive(clap::Args)]
#[command(after_help = status::HELP)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// Explain the contribution of this mechanism, or of this swept parameter with two values; may be repeated
    /// [default: all mechanisms in the file].
    #[arg(long, value_name = "NAME")]
    mechanism: Vec<String>,
    /// Explain only where a swept parameter has this value; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    at: Vec<(String, String)>,
    /// Number of points to run at the same time [default: one per processor].
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    jobs: Option<u16>,
    /// Run previously failed points again.
    #[arg(long)]
    retry_failed: bool,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

pub(super) fn assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.into(), value.into()))
}

/// Runs `longma explain`.
pub fn run(arguments: &Arguments) -> Outcome {
    let registry = super::registry()?;
    let selection = Selection {
        mechanisms: arguments.mechanism.clone(),
        at: arguments.at.iter().cloned().collect::<BTreeMap<_, _>>(),
    };
    let stop = Arc::new(Stop::default());
    let stop_on_signal = stop.clone();
    // If no handler can be set, Ctrl-C ends the command at once. Stored results are kept either way.
    let _ = ctrlc::set_handler(move || stop_on_signal.request());
    let (mut text, mut objects, mut gaps, mut host) = (String::new(), Vec::new(), false, false);
    for experiment in find::open(&arguments.which, &registry)? {
        let explanation =
            Explanation::plan(&experiment, arguments.which.quick, &selection, &registry, VERSION)?;
        let outcome = campaign(arguments, &experiment, &explanation, &registry, &stop)?;
        if stop.is_requested() {
            let left = outcome.left;
            eprintln!("longma: stopped; {left} runs are left, and the same command continues");
            return Ok(ExitCode::from(status::INTERRUPTED));
        }
        print::report_faults(&outcome);
        print::report_store_problems(&outcome.results);
        host |= !outcome.faults.is_empty();
        let _ = writeln!(text, "{}", experiment.parts().title);
        for context in &explanation.contexts {
            let (shown, object) = explained(&explanation, context, &outcome, &mut gaps);
            text.push_str(&shown);
            objects.push(object);
        }
    }
    let printed =
        if arguments.format == Format::Json { print_json(&json!(objects)) } else { print::show(&text) };
    printed.map(|_| status::ended(host, false, gaps))
}

fn campaign(
    arguments: &Arguments,
    experiment: &Experiment,
    explanation: &Explanation<'_>,
    registry: &Registry,
    stop: &Stop,
) -> Result<Campaigned, Box<dyn std::error::Error>> {
    let defaults = Options::default();
    let jobs = arguments.jobs.map_or(defaults.jobs, usize::from);
    let options = Options { jobs, retry_failed: arguments.retry_failed, ..defaults };
    let bar = Bar::new(experiment, (0, 1));
    let outcome = explanation.campaign.run(&arguments.which.store(), registry, &options, &bar, stop);
    bar.clear();
    Ok(outcome?)
}

/// Explains every metric at one setting of the other parameters, as text and as JSON. Sets `gaps` if a metric cannot be
/// explained.
fn explained(
    explanation: &Explanation<'_>,
    context: &Context,
    outcome: &Campaigned,
    gaps: &mut bool,
) -> (String, Value) {
    let (mut text, mut metrics) = (String::new(), serde_json::Map::new());
    let metric_of: BTreeMap<_, _> = explanation.campaign.experiment.metrics().into_iter().collect();
    for name in explanation.metrics() {
        let (title, unit) = (metric_of[name].title(name), &metric_of[name].unit);
        let at: String = context.settings.iter().map(|(name, value)| format!("{name} {value}, ")).collect();
        match explanation.game(context, name, &outcome.results) {
            Ok(game) => {
                let (none, all) = (number(game.none()), number(game.all()));
                let _ = writeln!(text, "{at}{title}: {none} {unit} with none, {all} {unit} with all");
                text.push_str(&rows(explanation, &game, unit));
                metrics.insert(name.into(), game_json(explanation, &game, unit));
            }
            Err(gap) => {
                *gaps = true;
                let _ = writeln!(text, "{at}{title}: cannot be explained: {gap}");
                metrics.insert(name.into(), json!({ "error": gap.to_string() }));
            }
        }
        text.push('\n');
    }
    let settings: serde_json::Map<_, _> =
        context.settings.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let experiment = &explanation.campaign.experiment.parts().name;
    (text, json!({ "experiment": experiment, "at": settings, "metrics": metrics }))
}

fn rows(explanation: &Explanation<'_>, game: &Game, unit: &str) -> String {
    let difference = game.all() - game.none();
    let share = |value: f64| {
        if difference == 0.0 { "-".into() } else { format!("{:.1} %", value / difference * 100.0) }
    };
    let alone = format!("ALONE ({unit})");
    let mut rows = vec![print::row(["MECHANISM", &alone, "ALL BUT IT", "SHAPLEY", "SHARE"])];
    let signed = |value: f64| format!("{}{}", if value > 0.0 { "+" } else { "" }, number(value));
    let contributions = game.contributions();
    for (switch, Contribution { alone, last, shapley }) in explanation.switches.iter().zip(&contributions) {
        let cells = [&switch.title, &signed(*alone), &signed(-last), &signed(*shapley), &share(*shapley)];
        rows.push(print::row(cells.map(String::as_str)));
    }
    let sum: f64 = contributions.iter().map(|c| c.shapley).sum();
    rows.push(print::row(["all", &signed(difference), "", &signed(sum), &share(sum)]));
    print::table(rows, 4)
}

fn game_json(explanation: &Explanation<'_>, game: &Game, unit: &str) -> Value {
    let switches = || explanation.switches.iter();
    let mechanisms: serde_json::Map<_, _> = switches()
        .zip(game.contributions())
        .map(|(switch, contribution)| (switch.name.clone(), json!(contribution)))
        .collect();
    let runs: Vec<_> = (0..1usize << game.members())
        .map(|subset| {
            let on = switches().enumerate().filter(|(index, _)| subset >> index & 1 == 1);
            json!({ "on": on.map(|(_, switch)| &switch.name).collect::<Vec<_>>(), "value": game.value(subset) })
        })
        .collect();
    json!({ "unit": unit, "none": game.none(), "all": game.all(), "mechanisms": mechanisms, "runs": runs })
}
