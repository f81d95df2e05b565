//! The page of a modelled sweep: the matrix of throughputs, a heat map for each cost, and the classes with 95 % intervals.

use super::intervals::{Mean, figure, paragraph, table, with_half};
use super::{Matrix, Quantity, lay_out};
use crate::affinity::modelled::{description, limits, mean_of, of_class, present, significant_differences};
use longma_affinity::pairs::Class;
use longma_lab::Section;
use longma_text::{display_path, sanitize};
use longma_workloads::pairs::{COSTS, Measurement, Nic, STAGES, Sweep, over_seeds};
use std::error::Error;
use std::path::Path;

/// Writes the page of `runs`, which `file` holds if there is one.
///
/// # Errors
/// Fails if no pair has a result.
pub fn page(
    sweep: &Sweep<'_>,
    nic: &Nic,
    runs: &[Measurement],
    file: Option<&Path>,
) -> Result<String, Box<dyn Error>> {
    let measured = over_seeds(runs);
    let mut quantities = vec![Quantity::new("throughput", "Gb/s")];
    quantities.extend(COSTS.iter().map(|(name, unit, ..)| Quantity::new(name, unit)));
    quantities.extend(["flow's core busy", "application's core busy"].map(|name| Quantity::new(name, "%")));
    let values = |one: &Measurement| {
        let busy = one.busy.each_ref().map(|(part, _)| part * 100.0);
        std::iter::once(one.gbps).chain(one.costs).chain(busy).map(Some).collect()
    };
    let mtu = sweep.mtu(nic)?;
    let about = description(sweep, nic, mtu, measured.len(), None).join(". ") + ".";
    let matrix = Matrix {
        title: "Modelled throughput by the cores of flow and application",
        about,
        quantities,
        pairs: measured.iter().map(|one| (one.pair, values(one))).collect(),
        command: match file {
            Some(file) => format!("longma affinity report {} --html FILE", display_path(file)),
            None => format!("longma affinity sweep --model {} ... --html FILE", sanitize(sweep.machine)),
        },
    };
    lay_out(&matrix, &sections(sweep, nic, mtu, &measured))
}

fn sections(sweep: &Sweep<'_>, nic: &Nic, mtu: u64, measured: &[Measurement]) -> Vec<Section> {
    let section = |id: &str, title: &str, body| Section { id: id.into(), title: title.into(), body };
    let limited = limits(sweep, nic, mtu, measured);
    let limited: Vec<Vec<String>> =
        limited.into_iter().map(|(class, words)| vec![class.word().into(), words]).collect();
    vec![
        section("classes", "Classes of pairs", classes(measured)),
        section("stages", "Cycles by stage", stages(measured)),
        section("limits", "Bottleneck of each class", table(2, &["class", "limit"], &limited)),
    ]
}

fn classes(measured: &[Measurement]) -> String {
    let present = present(measured);
    let means = |value: &dyn Fn(&Measurement) -> f64| -> Vec<Mean> {
        let mean = |class: &Class| {
            let interval = mean_of(&of_class(measured, *class), value)?;
            Some(Mean { label: class.word().into(), group: 0, interval })
        };
        present.iter().filter_map(mean).collect()
    };
    let mut body = paragraph(
        "Means over the pairs of a class with 95 % intervals. Pairs with bit-identical results count once.",
    );
    body += "<div class=\"charts\">\n";
    body += &figure("Throughput by class", "Gb/s", &[], &means(&|one| one.gbps));
    body += &figure("Cycles by class", "M/Gbit", &[], &means(&|one| one.stages.iter().sum()));
    body += "</div>\n";
    body += &paragraph(&significant_differences(measured));
    let row = |name: &str, unit: &str, value: &dyn Fn(&Measurement) -> f64| -> Vec<String> {
        let of = |class: &Class| {
            mean_of(&of_class(measured, *class), value).map_or("–".into(), |interval| with_half(&interval))
        };
        [name.into(), unit.into()].into_iter().chain(present.iter().map(of)).collect()
    };
    let mut rows = vec![row("throughput", "Gb/s", &|one| one.gbps)];
    for (number, (name, unit, ..)) in COSTS.iter().enumerate() {
        rows.push(row(name, unit, &|one| one.costs[number]));
    }
    rows.push(row("flow's core busy", "%", &|one| one.busy[0].0 * 100.0));
    rows.push(row("application's core busy", "%", &|one| one.busy[1].0 * 100.0));
    let head: Vec<&str> = ["", "unit"].into_iter().chain(present.iter().map(|class| class.word())).collect();
    body + &table(2, &head, &rows)
}

fn stages(measured: &[Measurement]) -> String {
    let present = present(measured);
    let row = |(index, name): (usize, &&str)| -> Vec<String> {
        let of = |class: &Class| {
            let interval = mean_of(&of_class(measured, *class), |one| one.stages[index]);
            interval.map_or("–".into(), |interval| with_half(&interval))
        };
        std::iter::once(name.to_string()).chain(present.iter().map(of)).collect()
    };
    let head: Vec<&str> = std::iter::once("stage").chain(present.iter().map(|class| class.word())).collect();
    let rows: Vec<Vec<String>> = STAGES.iter().enumerate().map(row).collect();
    paragraph("Millions of cycles for each Gbit: means over the pairs of a class with 95 % intervals.")
        + &table(1, &head, &rows)
}
