//! `longma run --measures`: lists the metrics of a run, with units.

use longma_sim::Value;
use serde_json::json;
use std::io::Write;

use super::{Never, failure::Failure, simulated::Outcome};

/// A measure: its name as in experiment files, its unit and its description.
type Measure = (String, String, String);

/// The measures of `--stats`.
const OF_FUNCTIONAL: [(&str, &str, &str); 9] = [
    ("ending.exit", "status", "the program's exit status"),
    ("instructions", "instructions", "executed by all threads"),
    ("blocks_decoded", "blocks", "decoded basic blocks of the program's code"),
    ("blocks_translated", "blocks", "basic blocks translated one by one"),
    ("regions_translated", "regions", "groups of blocks translated together"),
    ("host.wall_s", "s", "wall time of the run"),
    ("host.user_s", "s", "CPU time of the host, in user mode"),
    ("host.system_s", "s", "CPU time of the host, in its kernel"),
    ("host.mips", "10^6 instructions/s", "speed of the run"),
];

/// Prints the measures and exits.
///
/// # Errors
/// Fails if the list cannot be computed or printed.
pub fn print(simulated: Option<Outcome>) -> Result<Never, Failure> {
    let measures = match &simulated {
        Some(outcome) => outcome
            .measurable()?
            .iter()
            .flat_map(|(name, statistic)| {
                of_statistic(name, &statistic.value, &statistic.unit, &statistic.description)
            })
            .collect(),
        None => OF_FUNCTIONAL.map(|(name, unit, about)| (name.into(), unit.into(), about.into())).to_vec(),
    };
    let object = |(name, unit, description): &Measure| json!({ "name": name, "unit": unit, "description": description });
    let list = json!({ "measures": measures.iter().map(object).collect::<Vec<_>>() });
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{list}").and_then(|()| out.flush());
    written.map_err(|error| Failure::host("print the measures", &error))?;
    // The program is not run: dropping the outcome removes the files created for its results.
    drop(simulated);
    std::process::exit(0)
}

/// The numbers that a statistic provides; for a histogram its count, mean, minimum and maximum.
fn of_statistic(name: &str, value: &Value, unit: &str, description: &str) -> Vec<Measure> {
    let one = |name: String, unit: &str| (name, unit.to_string(), description.to_string());
    match value {
        Value::Histogram(_) => {
            let ends = ["mean", "min", "max"].map(|what| one(format!("{name}.{what}"), unit));
            std::iter::once(one(format!("{name}.count"), "values")).chain(ends).collect()
        }
        _ => vec![one(name.into(), unit)],
    }
}
