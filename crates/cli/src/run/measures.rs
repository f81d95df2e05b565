//! `longma run --measures`: what such a run would measure, with units.
//! Not the figures.

use longma_sim::Value;
use serde_json::json;
use std::io::Write;

use super::{Never, failure::Failure, simulated::Outcome};

/// A measure: its name as an experiment file has it, its unit, what it says.
type Measure = (String, String, String);

/// What `--stats` prints.
const OF_FUNCTIONAL: [(&str, &str, &str); 9] = [
    ("ending.exit", "status", "the program's exit status"),
    ("instructions", "instructions", "executed by all threads"),
    ("blocks_decoded", "blocks", "of the program's code that were decoded"),
    ("blocks_translated", "blocks", "that were translated alone"),
    ("regions_translated", "regions", "of several blocks that were translated together"),
    ("host.wall_s", "s", "that the run took"),
    ("host.user_s", "s", "of processors of the host, in user mode"),
    ("host.system_s", "s", "of processors of the host, in its kernel"),
    ("host.mips", "10^6 instructions/s", "speed of the run"),
];

/// Prints what the run would measure and ends.
///
/// # Errors
/// The list cannot be made or printed.
pub fn print(simulated: Option<&Outcome>) -> Result<Never, Failure> {
    let measures = match simulated {
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
    written.map_err(|error| Failure::host("print what would be measured", &error))?;
    std::process::exit(0)
}

/// The numbers that a statistic gives: of a distribution its count, mean and ends.
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
