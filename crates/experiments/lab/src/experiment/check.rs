//! Checks that the parts of an experiment are consistent with each other, with the workload and with the machines. The
//! `part!` types check single values.

use super::requirement::requirements;
use super::sweep::combinations;
use super::{Axis, ExperimentFile, Explain, Figure, LogAxis, Plot, PlotKind, Published, Quick, Reading};
use crate::formula::Formula;
use crate::machines::{edit_machine, is_of_machine, machine_edits, machine_file, resolve_modules};
use crate::read::{Map, Name, Problems, suggestion};
use crate::setting::Setting;
use crate::workload::{Kind, Registry, Workload};
use longma_topology::Machine;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

/// Maximum number of points of an experiment.
const MAX_POINTS: usize = 1_000_000;

/// Reports all inconsistencies.
pub(super) fn check(file: &ExperimentFile, folder: &Path, registry: &Registry, problems: &mut Problems) {
    let marks = &file.marks;
    if marks.sound(&["format"]) && file.format != 1 {
        let help = "write `format = 1`".into();
        problems.error(marks.key("format"), format!("format {} is not known", file.format), "here", help);
    }
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if marks.sound(&["name"]) && (file.name.is_empty() || !file.name.chars().all(is_name)) {
        let help = "use lower-case letters, digits and hyphens".into();
        problems.error(marks.key("name"), format!("`{}` is not a valid name", file.name), "here", help);
    }
    if marks.sound(&["metrics"]) && file.metrics.is_empty() {
        let help = "add [metrics.NAME] with a `unit`".into();
        problems.error(marks.at(), "the experiment has no metrics".into(), "no metrics", help);
    }
    if marks.sound(&["workload"]) {
        match registry.get(&file.workload) {
            Some(workload) => check_workload_parameters(file, workload, problems),
            None => {
                let names = registry.iter().map(Workload::name);
                let help = suggestion(&file.workload, names, "workload");
                let message = format!("there is no workload `{}`", &*file.workload);
                problems.error(file.workload.span(), message, "not registered", help);
            }
        }
    }
    let machines = check_machines(file, folder, problems);
    super::sensitivity::check(file, &machines, problems);
    check_replicates(file, problems);
    check_axes(file, problems);
    check_formulas(file, problems);
    file.published.iter().for_each(|published| check_published(file, published, problems));
    file.plots.iter().for_each(|plot| check_plot(file, plot, problems));
    if let Some(explain) = &file.explain {
        check_explain(file, explain, folder, problems);
    }
    if let Some(quick) = &file.quick {
        check_quick(file, quick, problems);
    }
}

/// If `name` varies a key of the machine file, returns that key.
fn machine_path(name: &str) -> Option<&str> {
    name.strip_prefix("machine.")
}

fn check_workload_parameters(file: &ExperimentFile, workload: &dyn Workload, problems: &mut Problems) {
    let known = workload.parameters();
    let names = || known.iter().map(|p| p.name).chain(["machine.PATH"]);
    let mut check_parameter = |name: &str, values: &[Setting], name_at: Range<usize>, at: Range<usize>| {
        if machine_path(name).is_some() {
            return;
        }
        if let Some((table, _)) = name.split_once('.')
            && known.iter().any(|p| p.name == table && p.kind == Kind::Named)
        {
            let is_scalar = |value: &Setting| !matches!(value, Setting::Texts(_) | Setting::Named(_));
            if !values.iter().all(is_scalar) {
                let message = format!("`{name}`: expected a string, a number or a boolean");
                problems.error(at, message, "here", String::new());
            }
            return;
        }
        let Some(parameter) = known.iter().find(|p| p.name == name) else {
            let message = format!("the workload `{}` has no parameter `{name}`", workload.name());
            problems.error(name_at, message, "unknown parameter", suggestion(name, names(), "parameter"));
            return;
        };
        if let Some((message, help)) = values.iter().find_map(|value| parameter.kind.check(value).err()) {
            problems.error(at, format!("`{name}`: {message}"), "here", help);
        }
    };
    let at = |name: &str| file.marks.key(name);
    let quick = file.quick.iter();
    let quick_parameters =
        quick.clone().flat_map(|q| q.parameters.iter().map(|p| (p, q.marks.key("parameters"))));
    for ((name, value), at) in file.parameters.iter().map(|p| (p, at("parameters"))).chain(quick_parameters) {
        check_parameter(name, std::slice::from_ref(value), at.clone(), at);
    }
    let ranges = file.sensitivity.iter().flat_map(|variation| &variation.ranges);
    let swept = file.sweep.iter().chain(file.zip.iter().flatten()).chain(ranges);
    for (name, axis) in swept.chain(quick.flat_map(|q| q.sweep.iter().chain(q.zip.iter().flatten()))) {
        check_parameter(name, &axis.values, axis.at(), axis.span());
    }
    let given = |name: &str| {
        file.parameters.contains_key(name)
            || file.sweep.contains_key(name)
            || file.zip.iter().any(|zip| zip.contains_key(name))
    };
    for mechanism in file.explain.iter().flat_map(|e| e.mechanisms.values()) {
        for (settings, key) in [(&mechanism.off, "off"), (&mechanism.on, "on")] {
            let at = mechanism.marks().key(key);
            let of_workload = settings.iter().filter(|(name, _)| !is_of_machine(name));
            of_workload.for_each(|(name, value)| {
                check_parameter(name, std::slice::from_ref(value), at.clone(), at.clone());
            });
        }
    }
    let missing: Vec<_> = known.iter().filter(|p| p.default.is_none() && !given(p.name)).collect();
    if file.marks.sound(&["parameters", "sweep", "zip"]) {
        for parameter in missing {
            let message =
                format!("the workload `{}` needs the parameter `{}`", workload.name(), parameter.name);
            let help =
                format!("give it in [parameters] or [sweep]: {}, {}", parameter.kind, parameter.description);
            problems.error(at("parameters"), message, "missing here", help);
        }
    }
}

/// Returns the machines that can be opened.
fn check_machines(file: &ExperimentFile, folder: &Path, problems: &mut Problems) -> Vec<Machine> {
    let quick = file.quick.iter().flat_map(|q| q.machines.iter());
    let mut sound = Vec::new();
    for name in file.machines.iter().chain(quick) {
        match Machine::open(&machine_file(name, folder)) {
            Ok(machine) => sound.push(machine),
            Err(error) => {
                let help = "run `longma machine check` on the machine file for details".to_string();
                problems.error(name.span(), error.to_string(), "this machine", help);
            }
        }
    }
    check_edits(file, folder, &sound, problems);
    sound
}

/// Maximum number of modified machines to try before a run.
pub(super) const MAX_EDITS: usize = 256;

/// Reports each value for which every combination yields an invalid machine. If some combinations are valid, the
/// invalid points fail when they run.
fn check_edits(file: &ExperimentFile, folder: &Path, machines: &[Machine], problems: &mut Problems) {
    for is_quick in [false, true] {
        let quick = file.quick.as_ref().filter(|_| is_quick);
        if is_quick && quick.is_none() {
            return;
        }
        let of_quick = quick.iter().flat_map(|quick| &quick.parameters);
        let fixed: Vec<_> = file.parameters.iter().chain(of_quick).collect();
        let fixed_at = file.marks.key("parameters");
        let axes = machine_axes(file, quick);
        let named = fixed.iter().filter_map(|(name, _)| Some((machine_path(name)?, fixed_at.clone())));
        let named = named
            .chain(axes.iter().flatten().filter_map(|(name, axis)| Some((machine_path(name)?, axis.at()))));
        if let Some((path, at)) = named.clone().find(|_| file.machines.is_empty()) {
            let help = "add `machines = [\"...\"]`".into();
            problems.error(at, format!("`machine.{path}` is set, but `machines` is empty"), "here", help);
            return;
        }
        if named.clone().next().is_none() {
            continue;
        }
        // The error of each axis and index of a value. Cleared once a combination with the value is valid.
        let mut wrong: BTreeMap<(&str, usize), Option<String>> = BTreeMap::new();
        let requirements = requirements(file);
        let meets = |varied: &Vec<(String, Setting)>| {
            let setting = |name: &str| {
                let found = varied.iter().find(|(known, _)| known == name).map(|(_, value)| value);
                found.or_else(|| file.parameters.get(name)).cloned()
            };
            requirements.iter().all(|one| one.holds(&setting))
        };
        for varied in combinations(&axes).into_iter().filter(meets).take(MAX_EDITS) {
            let mut edits = machine_edits(&fixed, &varied);
            resolve_modules(&mut edits, folder);
            let error = machines.iter().find_map(|machine| edit_machine(machine, &edits).err());
            for (name, axis) in axes.iter().flatten() {
                let value = varied.iter().find(|(varied, _)| varied == name).map(|(_, value)| value);
                let Some(place) = axis.values.iter().position(|known| Some(known) == value) else { continue };
                let entry = wrong.entry((name, place)).or_insert_with(|| error.clone());
                *entry = entry.take().filter(|_| error.is_some());
            }
            if let (Some(message), true) = (&error, axes.is_empty()) {
                problems.error(fixed_at.clone(), message.clone(), "these keys", String::new());
            }
        }
        for (name, axis) in axes.iter().flatten() {
            let message = (0..axis.values.len()).find_map(|place| wrong.get(&(*name, place))?.clone());
            if let Some(message) = message {
                problems.error(axis.at(), message, "this key", String::new());
            }
        }
    }
}

/// The axes that vary keys of the machine file, without their other parameters.
pub(super) fn machine_axes<'a>(
    file: &'a ExperimentFile,
    quick: Option<&'a Quick>,
) -> Vec<Vec<(&'a str, &'a Axis)>> {
    let of_quick = |name: &str, axis: &'a Axis| quick.and_then(|quick| quick.sweep.get(name)).unwrap_or(axis);
    let swept = file.sweep.iter().map(|(name, axis)| vec![(name.as_str(), of_quick(name, axis))]);
    let zip = quick.map(|quick| &quick.zip).filter(|zip| !zip.is_empty()).unwrap_or(&file.zip);
    let zipped = zip.iter().map(|columns| columns.iter().map(|(name, axis)| (name.as_str(), axis)).collect());
    let of_machine = |columns: Vec<(&'a str, &'a Axis)>| -> Vec<_> {
        columns.into_iter().filter(|(name, _)| machine_path(name).is_some()).collect()
    };
    swept.chain(zipped).map(of_machine).filter(|columns| !columns.is_empty()).collect()
}

fn check_axes(file: &ExperimentFile, problems: &mut Problems) {
    let mut seen: BTreeMap<&str, &str> =
        file.parameters.keys().map(|name| (name.as_str(), "[parameters]")).collect();
    let swept = file.sweep.iter().map(|a| (a, "[sweep]"));
    for ((name, axis), place) in swept.chain(file.zip.iter().flatten().map(|a| (a, "[[zip]]"))) {
        if let Some(other) = seen.insert(name, place) {
            let message = format!("`{name}` is given twice");
            problems.error(axis.at(), message, "here", format!("remove it from {other} or from {place}"));
        }
    }
    let of_quick = file.quick.iter().flat_map(|quick| &quick.zip);
    for zip in file.zip.iter().chain(of_quick) {
        let lengths: Vec<_> = zip.values().map(|column| column.values.len()).collect();
        let odd = zip.iter().find(|(_, column)| column.values.len() != lengths[0]);
        if let Some((name, column)) = odd {
            let message =
                format!("`{name}` has {} values and another column has {}", column.values.len(), lengths[0]);
            let help = "columns of a [[zip]] must have the same number of values".into();
            problems.error(column.at(), message, "here", help);
        }
    }
    let lengths = file.sweep.values().map(|axis| axis.values.len());
    let zips = file.zip.iter().filter_map(|zip| zip.values().next()).map(|column| column.values.len());
    let points =
        lengths.chain(zips).chain([file.machines.len().max(1)]).try_fold(1usize, |a, b| a.checked_mul(b));
    if points.is_none_or(|points| points > MAX_POINTS) {
        let help = format!("an experiment has at most {MAX_POINTS} points");
        problems.error(file.marks.key("sweep"), "there are too many points".into(), "this sweep", help);
    }
}

/// Names of the varying parameters.
fn varying(file: &ExperimentFile) -> Vec<&str> {
    let zipped = file.zip.iter().flat_map(Map::keys);
    file.sweep.keys().chain(zipped).map(String::as_str).chain(["machine"]).collect()
}

/// Checks that replicates are swept, and that nothing distinguishes their values.
fn check_replicates(file: &ExperimentFile, problems: &mut Problems) {
    for name in &file.replicates {
        if !file.sweep.contains_key(&**name) {
            let help = suggestion(name, file.sweep.keys().map(String::as_str), "swept parameter");
            problems.error(name.span(), format!("`{}` is not in [sweep]", &**name), "here", help);
        }
        let used = |axis: &Name| **axis == **name;
        let axes = |plot: &&Plot| {
            used(&plot.x) || plot.by.as_ref().is_some_and(used) || plot.panels.as_ref().is_some_and(used)
        };
        if let Some(plot) = file.plots.iter().find(axes) {
            let help = "remove it from `replicates`, or choose another axis".into();
            let message = format!("a plot shows the mean over `{}`, which is its axis", &**name);
            problems.error(plot.marks().at(), message, "this plot", help);
        }
        if let Some(published) = file.published.iter().find(|published| published.at.contains_key(&**name)) {
            let help = "published values are compared with means over replicates".into();
            let message = format!("`{}` is one of the `replicates`", &**name);
            problems.error(published.marks().key("at"), message, "here", help);
        }
    }
}

/// Reports metrics that the file does not have.
pub(super) fn check_metric_names(
    file: &ExperimentFile,
    names: &[(&str, Range<usize>)],
    problems: &mut Problems,
) {
    for (name, at) in names.iter().filter(|(name, _)| !file.metrics.contains_key(*name)) {
        let help = suggestion(name, file.metrics.keys().map(String::as_str), "metric");
        problems.error(at.clone(), format!("there is no metric `{name}`"), "unknown metric", help);
    }
}

fn check_published(file: &ExperimentFile, published: &Published, problems: &mut Problems) {
    let marks = published.marks();
    let kinds =
        [("values", &published.values), ("at_least", &published.at_least), ("at_most", &published.at_most)];
    let named = |(key, map): (&str, &'_ Map<Figure>)| -> Vec<(String, Range<usize>)> {
        map.keys().map(|name| (name.clone(), marks.key(key))).collect()
    };
    let names: Vec<_> = kinds.into_iter().flat_map(named).collect();
    let borrowed: Vec<_> = names.iter().map(|(name, at)| (name.as_str(), at.clone())).collect();
    check_metric_names(file, &borrowed, problems);
    if names.is_empty() && marks.sound(&["values", "at_least", "at_most"]) {
        let help = "add `values`, `at_least` or `at_most`".into();
        problems.error(marks.at(), "nothing is published here".into(), "this entry", help);
    }
    let bounds =
        published.at_least.iter().filter_map(|(name, low)| Some((name, low, published.at_most.get(name)?)));
    for (name, ..) in bounds.filter(|(_, low, high)| low.0 > high.0) {
        let message = format!("the lower bound of `{name}` is above its upper bound");
        problems.error(marks.key("at_least"), message, "here", String::new());
    }
    if marks.sound(&["source"]) && !file.sources.contains_key(&*published.source) {
        let help = suggestion(&published.source, file.sources.keys().map(String::as_str), "source");
        let message = format!("there is no source `{}`", &*published.source);
        problems.error(published.source.span(), message, "unknown source", help);
    }
    if published.read == Reading::Computed && published.note.is_none() && marks.sound(&["read"]) {
        let help = "add a `note` that describes the computation".into();
        problems.error(marks.key("read"), "the method of computation is missing".into(), "here", help);
    }
    for (name, value) in &published.at {
        let at = marks.key("at");
        if !varying(file).contains(&name.as_str()) {
            let help = suggestion(name, varying(file), "swept parameter");
            problems.error(at, format!("`{name}` does not vary"), "here", help);
        } else if !has_point(file, name, value) {
            // Warn only: a user may narrow the sweep and keep all published values.
            let message = format!("no point has `{name}` = {value}");
            problems.warn(at, message, "here", "give a value of the sweep".into());
        }
    }
}

/// Returns whether any point has this value.
fn has_point(file: &ExperimentFile, name: &str, value: &Setting) -> bool {
    if name == "machine" {
        return file.machines.iter().any(|machine| value.text() == Some(machine));
    }
    let axes = file.sweep.get(name).into_iter().chain(file.zip.iter().filter_map(|zip| zip.get(name)));
    axes.flat_map(|axis| &axis.values).any(|taken| taken == value)
}

/// Checks the formulas, and that none is computed from itself.
fn check_formulas(file: &ExperimentFile, problems: &mut Problems) {
    let mut formulas: BTreeMap<&str, Formula> = BTreeMap::new();
    for (name, metric) in &file.metrics {
        let Some(text) = &metric.formula else { continue };
        let at = metric.marks.key("formula");
        if metric.of.is_some() || metric.per.is_some() || metric.scale.is_some() {
            let help = "write them into the formula".into();
            problems.error(at.clone(), "a formula has no `of`, `per` or `scale`".into(), "here", help);
        }
        match Formula::parse(text) {
            Ok(formula) => {
                check_parameters(file, &formula, &at, problems);
                formulas.insert(name, formula);
            }
            Err(message) => problems.error(at, message, "this formula", String::new()),
        }
    }
    for name in formulas.keys() {
        let (mut reached, mut next) = (BTreeSet::new(), vec![(*name).to_string()]);
        while let Some(one) = next.pop() {
            let Some(formula) = formulas.get(one.as_str()) else { continue };
            next.extend(formula.metrics().into_iter().filter(|read| reached.insert(read.clone())));
        }
        if reached.contains(*name) {
            let message = format!("`{name}` is computed from itself");
            problems.error(file.metrics[*name].marks.key("formula"), message, "this formula", String::new());
        }
    }
}

/// Checks that the parameters of a formula vary and have the values that it names.
fn check_parameters(file: &ExperimentFile, formula: &Formula, at: &Range<usize>, problems: &mut Problems) {
    formula.visit(&mut |part| {
        let (names, settings) = match part {
            Formula::At(_, settings) => {
                (settings.iter().map(|(name, _)| name).collect(), settings.as_slice())
            }
            Formula::Over(_, _, names) => (names.iter().collect::<Vec<_>>(), &[][..]),
            _ => return,
        };
        for name in names.into_iter().filter(|name| !varying(file).contains(&name.as_str())) {
            let help = suggestion(name, varying(file), "swept parameter");
            problems.error(at.clone(), format!("`{name}` does not vary"), "this formula", help);
        }
        for (name, value) in settings {
            let taken = values_of(file, name);
            if !taken.is_empty() && !taken.contains(value) {
                let help = suggestion(value, taken.iter().map(String::as_str), "value");
                let message = format!("no point has `{name}` = {value}");
                problems.error(at.clone(), message, "this formula", help);
            }
        }
    });
}

/// The values of a varying parameter in both forms, as texts.
fn values_of(file: &ExperimentFile, name: &str) -> BTreeSet<String> {
    let quick = file.quick.iter();
    if name == "machine" {
        let machines = file.machines.iter().chain(quick.flat_map(|quick| &quick.machines));
        return machines.map(|machine| machine.to_string()).collect();
    }
    let axes = file.sweep.iter().chain(file.zip.iter().flatten());
    let axes = axes.chain(quick.flat_map(|quick| quick.sweep.iter().chain(quick.zip.iter().flatten())));
    let of_name = axes.filter(|(known, _)| *known == name).flat_map(|(_, axis)| &axis.values);
    of_name.map(ToString::to_string).collect()
}

fn check_plot(file: &ExperimentFile, plot: &Plot, problems: &mut Problems) {
    let names: Vec<_> = plot.metrics.iter().map(|name| (&**name, name.span())).collect();
    check_metric_names(file, &names, problems);
    let marks = plot.marks();
    let mut vary = |name: &Name, or_metric: bool| {
        let fits = varying(file).contains(&&**name) || or_metric && &**name == "metric";
        if !fits {
            let help = suggestion(name, varying(file), "swept parameter");
            problems.error(name.span(), format!("`{}` does not vary", &**name), "here", help);
        }
    };
    if marks.sound(&["x"]) {
        vary(&plot.x, true);
    }
    plot.by.iter().for_each(|by| vary(by, true));
    plot.panels.iter().for_each(|panels| vary(panels, true));
    if plot.kind == PlotKind::Stacked && plot.is_log(LogAxis::Y) {
        let help = "use `kind = \"bar\"`".into();
        problems.error(marks.key("log"), "the parts of a logarithmic bar do not add up".into(), "here", help);
    }
    if plot.kind.is_matrix() && plot.by.is_none() && marks.sound(&["by", "kind"]) {
        let help = "add `by = \"PARAMETER\"`, the vertical axis".into();
        problems.error(marks.at(), "this plot has no vertical axis".into(), "here", help);
    }
}

fn check_explain(file: &ExperimentFile, explain: &Explain, folder: &Path, problems: &mut Problems) {
    let names: Vec<_> = explain.metrics.iter().map(|name| (&**name, name.span())).collect();
    check_metric_names(file, &names, problems);
    let at = explain.marks().key("at");
    explain.at.keys().for_each(|name| check_swept(file, name, at.clone(), problems));
    let mut set_by: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, mechanism) in &explain.mechanisms {
        let marks = mechanism.marks();
        if !mechanism.off.keys().eq(mechanism.on.keys()) || mechanism.off.is_empty() {
            let message = format!("`off` and `on` of `{name}` do not set the same parameters");
            problems.error(marks.at(), message, "this mechanism", "give both the same parameters".into());
        }
        for parameter in mechanism.off.keys() {
            if let Some(other) = set_by.insert(parameter, name) {
                let message = format!("`{parameter}` is set by `{other}` and by `{name}`");
                problems.error(marks.at(), message, "here", "let one mechanism set it".into());
            }
        }
        for (settings, key) in [(&mechanism.off, "off"), (&mechanism.on, "on")] {
            let machine = settings.get("machine").and_then(Setting::text);
            if let Some(Err(error)) = machine.map(|name| Machine::open(&machine_file(name, folder))) {
                problems.error(marks.key(key), error.to_string(), "this machine", String::new());
            }
        }
    }
}

/// Reports a parameter that does not vary.
fn check_swept(file: &ExperimentFile, name: &str, at: Range<usize>, problems: &mut Problems) {
    if !varying(file).contains(&name) {
        let help = suggestion(name, varying(file), "swept parameter");
        problems.error(at, format!("`{name}` does not vary"), "here", help);
    }
}

/// Reports a parameter that does not vary, or that does not take the value.
pub(super) fn check_place(
    file: &ExperimentFile,
    (name, value): (&String, &Setting),
    at: Range<usize>,
    problems: &mut Problems,
) {
    check_swept(file, name, at.clone(), problems);
    if varying(file).contains(&name.as_str()) && !has_point(file, name, value) {
        let message = format!("no point has `{name}` = {value}");
        problems.error(at, message, "here", "give a value of the sweep, of the same type".into());
    }
}

fn check_quick(file: &ExperimentFile, quick: &Quick, problems: &mut Problems) {
    for (name, axis) in &quick.sweep {
        if !file.sweep.contains_key(name) {
            let help = suggestion(name, file.sweep.keys().map(String::as_str), "swept parameter");
            problems.error(axis.at(), format!("`{name}` is not swept in the full experiment"), "here", help);
        }
    }
}
