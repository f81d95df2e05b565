//! Writes the HTML page of a sweep: the matrix of throughputs and a heat map per cost, drawn by `longma-lab`.

use super::report::{percent, setting};
use longma_affinity::analysis::{Analysis, PairResult, fastest};
use longma_affinity::sweep::Results;
use longma_affinity::vary::words;
use longma_lab::{
    Campaign, Chapter, Column, Experiment, Failure, Kind, Metrics, Names, Parameter, Point, Registry, Row,
    Setting, Stop, Table, Workload, page as lay_out,
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
        "pairs of CPUs on a real host"
    }
    fn parameters(&self) -> &[Parameter] {
        &self.0
    }
    fn run(&self, _: &Point, _: &Stop) -> Result<Metrics, Failure> {
        Err(Failure::failed("it was measured by `longma affinity sweep`"))
    }
}

/// A plotted quantity: key, name, unit, and its value for a pair.
type Drawn = (String, &'static str, &'static str, Box<dyn Fn(&PairResult) -> Option<f64>>);

/// Writes the page.
///
/// # Errors
/// Fails if there is no result to draw.
pub fn page(results: &Results, file: &Path) -> Result<String, Box<dyn Error>> {
    let variants = results.variants().len();
    let results = &fastest(results);
    let analysis = Analysis::of(results);
    if analysis.pairs.is_empty() {
        return Err(format!("{} has no result to draw", display_path(file)).into());
    }
    let mut drawn: Vec<Drawn> =
        vec![("throughput".into(), "throughput", "Gb/s", Box::new(|pair| Some(pair.median_weighed_gbps())))];
    for (name, unit, value) in analysis.counted_costs() {
        drawn.push((name.replace([' ', '-'], "_"), name, unit, Box::new(move |pair| value(&pair.costs))));
    }
    let parameter = |name| Parameter { name, kind: Kind::Integer, default: None, description: "a CPU" };
    let mut registry = Registry::default();
    registry.add(Swept(["flow", "application"].map(parameter)));
    let text = experiment(results, variants, &analysis, &drawn);
    let checked = Experiment::check(Path::new("sweep.toml"), Path::new(""), &text, &registry);
    let experiment = checked.experiment.ok_or_else(|| checked.report.render(100, false))?;
    let campaign = Campaign::plan(&experiment, false, &registry, crate::experiment::VERSION)?;
    let table = table(&campaign, &analysis, &drawn);
    let command = format!("longma affinity report {} --html FILE", display_path(file));
    Ok(lay_out(&[Chapter { campaign, table, command }], crate::experiment::VERSION))
}

/// Describes the sweep as an experiment file.
fn experiment(results: &Results, variants: usize, analysis: &Analysis, drawn: &[Drawn]) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
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
    let list = |of: fn(&PairResult) -> u32| {
        analysis.pairs.iter().map(|pair| of(pair).to_string()).collect::<Vec<_>>().join(", ")
    };
    let mut text = format!(
        "format = 1\nname = \"{NAME}\"\ntitle = \"Throughput by the cores of flow and application\"\ndescription = {}\nworkload = \"{NAME}\"\n\n\
         [[zip]]\nflow = [{}]\napplication = [{}]\n\n",
        quoted(&about),
        list(|pair| pair.pair.flow),
        list(|pair| pair.pair.application)
    );
    for (key, name, unit, _) in drawn {
        let _ = write!(text, "[metrics.{key}]\nunit = {}\ntitle = {}\n\n", quoted(unit), quoted(name));
    }
    for (index, (key, name, _, _)) in drawn.iter().enumerate() {
        let (kind, title) =
            if index == 0 { ("circles", "Throughput".into()) } else { ("heat", format!("Cost: {name}")) };
        let _ = write!(
            text,
            "[[plots]]\ntitle = {}\nkind = \"{kind}\"\nx = \"application\"\nby = \"flow\"\nmetrics = [\"{key}\"]\n\n",
            quoted(&title)
        );
    }
    text
}

fn table(campaign: &Campaign<'_>, analysis: &Analysis, drawn: &[Drawn]) -> Table {
    let column = |(key, name, unit, _): &Drawn| Column {
        name: key.clone(),
        title: (*name).into(),
        unit: (*unit).into(),
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
        let result = analysis.pairs.iter().find(|result| {
            f64::from(result.pair.flow) == flow && f64::from(result.pair.application) == application
        })?;
        Some(Row {
            key: point.key.clone(),
            machine: None,
            settings: point.varied.iter().map(|(_, value)| value.clone()).collect(),
            values: drawn.iter().map(|(_, _, _, value)| value(result)).collect(),
            failure: None,
            shortened: false,
        })
    };
    Table {
        parameters,
        metrics: drawn.iter().map(column).collect(),
        rows: campaign.points.iter().filter_map(row).collect(),
        missing: 0,
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
