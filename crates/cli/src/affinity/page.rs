//! Writes the HTML page of a sweep: the matrix of throughputs and a heat map per cost, drawn by `longma-lab`. The pages of
//! varied and of modelled sweeps have further sections.

mod intervals;
pub mod modelled;
mod varied;

use super::report::{percent, setting};
use longma_affinity::analysis::{Analysis, fastest};
use longma_affinity::pairs::Pair;
use longma_affinity::sweep::Results;
use longma_affinity::vary::{Variant, words};
use longma_lab::{
    Campaign, Chapter, Column, Experiment, Failure, Kind, Metrics, Names, Parameter, Point, Registry, Row,
    Section, Setting, Stop, Table, Workload, page_with,
};
use longma_text::display_path;
use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;

const NAME: &str = "affinity-sweep";

/// Presents a finished sweep to `longma-lab` as a workload. It is never run.
struct Swept([Parameter; 2]);

impl Workload for Swept {
    fn name(&self) -> &str {
        NAME
    }
    fn description(&self) -> &str {
        "pairs of CPUs"
    }
    fn parameters(&self) -> &[Parameter] {
        &self.0
    }
    fn run(&self, _: &Point, _: &Stop) -> Result<Metrics, Failure> {
        Err(Failure::failed("it was measured by `longma affinity sweep`"))
    }
}

/// A plotted quantity.
struct Quantity {
    key: String,
    name: String,
    unit: String,
}

impl Quantity {
    fn new(name: &str, unit: &str) -> Self {
        // A key has lower-case letters, digits and underscores.
        let letter =
            |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '_' };
        Self { key: name.chars().map(letter).collect(), name: name.into(), unit: unit.into() }
    }
}

/// The pairs of a sweep with their values; the first value is the throughput.
struct Matrix<'a> {
    title: &'a str,
    /// Describes the sweep.
    about: String,
    quantities: Vec<Quantity>,
    pairs: Vec<(Pair, Vec<Option<f64>>)>,
    /// The command that writes the page.
    command: String,
}

/// Writes the page of a sweep of a real host.
///
/// # Errors
/// Fails if there is no result to draw.
pub fn page(all: &Results, file: &Path) -> Result<String, Box<dyn Error>> {
    let variants = all.variants();
    let results = &fastest(all);
    let analysis = Analysis::of(results);
    if analysis.pairs.is_empty() {
        return Err(format!("{} has no result to draw", display_path(file)).into());
    }
    let counted = analysis.counted_costs();
    let mut quantities = vec![Quantity::new("throughput", "Gb/s")];
    quantities.extend(counted.iter().map(|(name, unit, _)| Quantity::new(name, unit)));
    let pairs = analysis.pairs.iter().map(|pair| {
        let costs = counted.iter().map(|(.., value)| value(&pair.costs));
        (pair.pair, std::iter::once(Some(pair.median_weighed_gbps())).chain(costs).collect())
    });
    let matrix = Matrix {
        title: "Throughput by the cores of flow and application",
        about: about(results, variants.len(), &analysis),
        quantities,
        pairs: pairs.collect(),
        command: format!("longma affinity report {} --html FILE", display_path(file)),
    };
    let analyses: Vec<(Variant, Analysis)> = match variants.len() {
        1 => Vec::new(),
        _ => variants.into_iter().map(|variant| (variant.clone(), Analysis::of(&all.of(&variant)))).collect(),
    };
    let sections = if analyses.is_empty() { Vec::new() } else { varied::sections(all, &analyses) };
    lay_out(&matrix, &sections)
}

/// Draws a matrix, followed by sections.
fn lay_out(matrix: &Matrix<'_>, sections: &[Section]) -> Result<String, Box<dyn Error>> {
    let parameter = |name| Parameter { name, kind: Kind::Integer, default: None, description: "a CPU" };
    let mut registry = Registry::default();
    registry.add(Swept(["flow", "application"].map(parameter)));
    let checked = Experiment::check(Path::new("sweep.toml"), Path::new(""), &experiment(matrix), &registry);
    let experiment = checked.experiment.ok_or_else(|| checked.report.render(100, false))?;
    let campaign = Campaign::plan(&experiment, false, &registry, crate::experiment::VERSION)?;
    let table = table(&campaign, matrix);
    let command = matrix.command.clone();
    let chapter = Chapter { campaign, table, command };
    Ok(page_with("core affinity", &chapter, sections, crate::experiment::VERSION))
}

/// Describes the sweep and its classes.
fn about(results: &Results, variants: usize, analysis: &Analysis) -> String {
    let mut about = setting(&results.header).join(". ") + ".";
    if let Some(sample) = results.samples.first().filter(|_| variants > 1) {
        let _ =
            write!(about, " The variant with the fastest pair, of {variants}: {}.", words(&sample.variant));
    }
    for class in &analysis.classes {
        let half = class.gbps.half.map_or(String::new(), |half| format!(" ± {half:.2}"));
        let limit = &class.bottleneck;
        let _ = write!(
            about,
            " Class `{}` ({}): {:.2}{half} Gb/s, {} lost; limited by {}: {}.",
            class.class.word(),
            class.class.meaning(),
            class.gbps.mean,
            percent(class.loss),
            limit.limit.words(),
            limit.evidence
        );
    }
    about.extend(analysis.remarks.iter().map(|remark| format!(" Note: {remark}.")));
    about
}

/// Describes the matrix as an experiment file.
fn experiment(matrix: &Matrix<'_>) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let list = |of: fn(&Pair) -> u32| {
        matrix.pairs.iter().map(|(pair, _)| of(pair).to_string()).collect::<Vec<_>>().join(", ")
    };
    let mut text = format!(
        "format = 1\nname = \"{NAME}\"\ntitle = {}\ndescription = {}\nworkload = \"{NAME}\"\n\n\
         [[zip]]\nflow = [{}]\napplication = [{}]\n\n",
        quoted(matrix.title),
        quoted(&matrix.about),
        list(|pair| pair.flow),
        list(|pair| pair.application)
    );
    for Quantity { key, name, unit } in &matrix.quantities {
        let _ = write!(text, "[metrics.{key}]\nunit = {}\ntitle = {}\n\n", quoted(unit), quoted(name));
    }
    for (index, Quantity { key, name, unit }) in matrix.quantities.iter().enumerate() {
        let (kind, title) = match (index, unit.as_str()) {
            (0, _) => ("circles", "Throughput".into()),
            // The load of a core is not divided by throughput.
            (_, "%") => ("heat", format!("Load: {name}")),
            _ => ("heat", format!("Cost: {name}")),
        };
        let _ = write!(
            text,
            "[[plots]]\ntitle = {}\nkind = \"{kind}\"\nx = \"application\"\nby = \"flow\"\nmetrics = [\"{key}\"]\n\n",
            quoted(&title)
        );
    }
    text
}

fn table(campaign: &Campaign<'_>, matrix: &Matrix<'_>) -> Table {
    let column = |quantity: &Quantity| Column {
        name: quantity.key.clone(),
        title: quantity.name.clone(),
        unit: quantity.unit.clone(),
        better: None,
        depends_on_host: false,
    };
    let parameters: Vec<String> = campaign
        .points
        .first()
        .map(|point| point.varied.iter().map(|(name, _)| name.clone()).collect())
        .unwrap_or_default();
    let number = |point: &Point, name: &str| point.parameter(name).and_then(Setting::number);
    let row = |point: &Point| {
        let (flow, application) = (number(point, "flow")?, number(point, "application")?);
        let is_pair =
            |pair: &Pair| f64::from(pair.flow) == flow && f64::from(pair.application) == application;
        let (_, values) = matrix.pairs.iter().find(|(pair, _)| is_pair(pair))?;
        Some(Row {
            key: point.key.clone(),
            machine: None,
            settings: point.varied.iter().map(|(_, value)| value.clone()).collect(),
            values: values.clone(),
            intervals: Vec::new(),
            replicates: 1,
            failure: None,
            shortened: false,
        })
    };
    Table {
        parameters,
        metrics: matrix.quantities.iter().map(column).collect(),
        rows: campaign.points.iter().filter_map(row).collect(),
        missing: 0,
        failed: 0,
        unknown: Vec::new(),
        left_out: Vec::new(),
        names: Names::of(campaign.experiment),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::matrix::tests::{made_up, pairs};

    #[test]
    fn the_page_has_a_circle_and_a_cell_per_cost_for_every_pair() {
        let page = page(&made_up(&pairs(12)), Path::new("x.jsonl")).unwrap();
        assert_eq!(page.matches("<figure class=\"chart circles\"").count(), 1);
        assert_eq!(page.matches("<circle class=\"mark disc").count(), 144);
        // The test results have four costs: core time, softirq time, context switches and retransmits.
        assert_eq!(page.matches("class=\"mark cell\"").count(), 4 * 144);
        assert!(page.contains("shared-cache") && page.contains("limited by"));
    }
}
