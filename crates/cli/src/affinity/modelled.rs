//! `longma affinity sweep --model`: runs and reports a sweep of a modelled host in simulated time.
//! `longma_workloads::pairs` makes the runs.
//! Source: Hanford et al. 2014 for the published results.

use super::check::wrapped;
use super::terminal::{self, print, print_json};
use super::{Format, INTERRUPTED, Outcome, matrix, page, report, width};
use crate::experiment::VERSION;
use crate::experiment::columns::rows as fitted;
use longma_affinity::analysis::{Costs, Interval, PairResult, differ};
use longma_affinity::pairs::{Class, Pair, classify, of_machine};
use longma_text::{display_path, sanitize};
use longma_topology::{CpuLocation, Machine};
use longma_workloads::pairs::results_file::{self, ResultsFile};
use longma_workloads::pairs::{
    COSTS, Measurement, Nic, STAGES, Sweep, busier, idle, limit, measure, missing_resource, nic, over_seeds,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The machine file of the host in the paper.
const PUBLISHED: &str = "sandybridge-2x6";

/// Runs the sweep, writes the runs and the page to the files of `output` and `html` if given, and prints the report.
pub fn run(
    sweep: &Sweep,
    (output, html): (Option<&Path>, Option<&Path>),
    format: Format,
    stop: &AtomicBool,
) -> Outcome {
    let machine = Machine::open(sweep.machine).map_err(|error| sanitize(&error.to_string()))?;
    let places = of_machine(&machine);
    let nic = nic(&machine)?;
    sweep.mtu(&nic).map_err(|why| format!("{}: {why}", sanitize(sweep.machine)))?;
    let pairs = match &sweep.pairs[..] {
        [] => longma_affinity::pairs::all_pairs(&places.iter().map(|place| place.cpu).collect::<Vec<_>>()),
        // Remove duplicate pairs.
        chosen => chosen.iter().copied().collect::<BTreeSet<_>>().into_iter().collect(),
    };
    check_pairs(&machine.name, &places, &pairs)?;
    // Check the settings before the results file is created.
    missing_resource(&sweep.settings, &places, &nic).map_or(Ok(()), Err)?;
    for words in idle(&sweep.settings, &pairs, &places) {
        terminal::warn(&format!("note: {words}"));
    }
    let began = Instant::now();
    let kept = output.map(|path| ResultsFile::open(path, sweep, &nic, &places, VERSION)).transpose()?;
    if let Some((kept, path)) = kept.as_ref().zip(output) {
        terminal::warn_truncated(path, kept.is_cut);
    }
    let runs: BTreeSet<(Pair, u64)> = sweep.runs(&pairs).into_iter().collect();
    let known = kept.iter().flat_map(|kept| &kept.known).filter(|one| runs.contains(&(one.pair, one.seed)));
    let mut measured: BTreeMap<(Pair, u64), Measurement> =
        known.map(|one| ((one.pair, one.seed), one.clone())).collect();
    let mut todo = sweep.runs(&pairs);
    todo.retain(|run| !measured.contains_key(run));
    let (bar, finished) = (io::stderr().is_terminal(), AtomicUsize::new(measured.len()));
    let keep = |one: &Measurement| {
        kept.as_ref().map_or(Ok(()), |kept| kept.add(one))?;
        let finished = finished.fetch_add(1, Ordering::Relaxed) + 1;
        if bar {
            terminal::progress(&format!("{finished} of {} runs", runs.len()));
        }
        Ok(())
    };
    let fresh = measure(sweep, &nic, &places, &todo, stop, &keep);
    if bar {
        terminal::progress("");
    }
    let results_so_far = |count: usize| match output {
        Some(path) => {
            format!(
                "{count} of {} runs are in {}: the same command continues with the missing runs",
                runs.len(),
                display_path(path)
            )
        }
        None => format!(
            "{count} of {} runs were made; with --output FILE, they are saved and the command can be continued",
            runs.len()
        ),
    };
    let fresh =
        fresh.map_err(|why| format!("{why}; {}", results_so_far(finished.load(Ordering::Relaxed))))?;
    measured.extend(fresh.into_iter().map(|one| ((one.pair, one.seed), one)));
    let measured: Vec<Measurement> = measured.into_values().collect();
    let is_whole = measured.len() == runs.len();
    if !measured.is_empty() {
        if let Some(path) = html {
            report::write_page(path, output, &page::modelled::page(sweep, &nic, &measured, output)?)?;
        }
        match format {
            Format::Json => print_json(&as_json(&measured)),
            Format::Table => print(&text(sweep, &nic, &places, &measured, (Some(began.elapsed()), width()))?),
        }?;
    }
    if !is_whole {
        terminal::warn(&format!("stopped; {}", results_so_far(measured.len())));
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the runs in `file`, and writes their page to `html`. Returns `None` if it is not the file of a modelled sweep.
pub fn report(
    file: &Path,
    html: Option<&Path>,
    format: Format,
) -> Result<Option<ExitCode>, Box<dyn std::error::Error>> {
    let Some(results_file::Contents { header, known, is_cut, places, nic }) =
        results_file::read(file, VERSION)?
    else {
        return Ok(None);
    };
    terminal::warn_truncated(file, is_cut);
    let sweep = header.sweep(&known)?;
    let mut known = known;
    known.sort_by_key(|one| (one.pair, one.seed));
    if known.is_empty() {
        let command = header.command(file);
        return Err(format!("{} has no runs yet: make them with `{command}`", display_path(file)).into());
    }
    if let Some(path) = html {
        report::write_page(path, Some(file), &page::modelled::page(&sweep, &nic, &known, Some(file))?)?;
    }
    match format {
        Format::Json => print_json(&as_json(&known)),
        Format::Table => print(&text(&sweep, &nic, &places, &known, (None, width()))?),
    }?;
    Ok(Some(ExitCode::SUCCESS))
}

/// Checks that all pairs exist, before anything is simulated.
fn check_pairs(machine: &str, places: &[CpuLocation], pairs: &[Pair]) -> Result<(), String> {
    let Some(missing) = pairs.iter().find(|pair| classify(places, **pair).is_none()) else { return Ok(()) };
    let is_there = |cpu: u32| places.iter().any(|place| place.cpu == cpu);
    let cpu = if is_there(missing.flow) { missing.application } else { missing.flow };
    let last = places.iter().map(|place| place.cpu).max().unwrap_or(0);
    Err(format!("{machine} has no CPU {cpu}: give --cpus or --pair with CPUs from 0 to {last}"))
}

pub fn of_class(measured: &[Measurement], class: Class) -> Vec<&Measurement> {
    measured.iter().filter(|one| one.class == class).collect()
}

/// Measurements with distinct results. Pairs with bit-identical results count as one measurement, because they carry no
/// information about the spread.
fn distinct<'a>(measured: &[&'a Measurement]) -> Vec<&'a Measurement> {
    let mut seen = BTreeSet::new();
    let bits = |one: &Measurement| -> Vec<u64> {
        let numbers = [one.gbps].into_iter().chain(one.costs).chain(one.stages);
        numbers.map(f64::to_bits).collect()
    };
    measured.iter().copied().filter(|one| seen.insert(bits(one))).collect()
}

pub fn mean_of(measured: &[&Measurement], value: impl Fn(&Measurement) -> f64) -> Option<Interval> {
    Interval::of(&distinct(measured).into_iter().map(value).collect::<Vec<_>>())
}

fn as_json(measured: &[Measurement]) -> Value {
    let pair = |one: &Measurement| {
        let costs: serde_json::Map<_, _> = COSTS
            .iter()
            .zip(one.costs)
            .map(|((name, unit, ..), value)| (format!("{name}, {unit}"), json!(value)))
            .collect();
        let stages: serde_json::Map<_, _> =
            STAGES.iter().zip(one.stages).map(|(name, value)| (name.to_string(), json!(value))).collect();
        let busy = one.busy.each_ref().map(|(part, cause)| json!({ "busy": part, "most": cause }));
        json!({
            "pair": one.pair, "seed": one.seed, "class": one.class, "gbps": one.gbps, "costs": costs, "cycles by stage, M/Gbit": stages,
            "flow_core": busy[0], "application_core": busy[1],
        })
    };
    let pairs: Vec<Value> = measured.iter().map(pair).collect();
    // No wall-clock times: the same sweep prints the same bytes.
    json!({ "pairs": pairs, "told_apart": significant_differences(&over_seeds(measured)) })
}

/// The report, wrapped to `width` columns; `took` is the wall time of the sweep.
fn text(
    sweep: &Sweep,
    nic: &Nic,
    places: &[CpuLocation],
    runs: &[Measurement],
    (took, width): (Option<Duration>, usize),
) -> Result<String, String> {
    let measured = &over_seeds(runs)[..];
    let (best, mtu) = (measured.iter().map(|one| one.gbps).fold(0.0, f64::max), sweep.mtu(nic)?);
    let heading = description(sweep, nic, mtu, measured.len(), took);
    let mut text: String = heading.iter().map(|words| wrapped("", words, width)).collect();
    text += &format!("\nThroughput by pair; best {best:.2} Gb/s\n");
    text += &matrix::text(&throughputs(measured), width);
    text += "\nClasses: means over their pairs with 95 % intervals\n";
    text += &classes(measured, width);
    if sweep.seeds > 1 {
        let words = format!("Over {} seeds: means of all pairs with 95 % intervals over seeds", sweep.seeds);
        text += &format!("\n{}{}", wrapped("", &words, width), seeds(runs, width));
    }
    text += &wrapped("", &significant_differences(measured), width);
    let all: Vec<&Measurement> = measured.iter().collect();
    let same = all.len() - distinct(&all).len();
    if same > 0 {
        let words = format!(
            "{same} of {} pairs have bit-identical results to another pair and count once.",
            all.len()
        );
        text += &wrapped("", &words, width);
    }
    text += "\nCycles by stage, M/Gbit: means over the pairs of a class\n";
    text += &stages(measured, width);
    text += "\nClasses by the sockets of flow, application and NIC: means, 95 % intervals\n";
    text += &sides(nic, places, measured, width);
    text += "\nBottlenecks, by the cores' CPI stacks\n";
    for (class, words) in limits(sweep, nic, mtu, measured) {
        text += &wrapped(&format!("{:14}", class.word()), &words, width);
    }
    if sweep.machine != PUBLISHED {
        return Ok(text);
    }
    let published = "Published for this host (Hanford et al. 2014), not fitted: one core for both costs most, different sockets come next, and \
        different cores of one socket are best, near line rate.";
    Ok(format!("{text}\n{}", wrapped("", published, width)))
}

/// Describes the sweep in a few lines. `took` is the wall time.
pub fn description(sweep: &Sweep, nic: &Nic, mtu: u64, pairs: usize, took: Option<Duration>) -> Vec<String> {
    let share = match sweep.frame_cycles {
        0 => String::new(),
        _ => format!(", {} % of them in the softirq", sweep.softirq_share),
    };
    let mut words = vec![
        format!(
            "{}, modelled: one flow of {:.0} Gb/s through {}, MTU {mtu}",
            sweep.machine, nic.gbps, nic.name
        ),
        format!(
            "{} cycles a frame besides the receiver's own{share}; {pairs} pair{} of {} MB{}",
            sweep.frame_cycles,
            if pairs == 1 { "" } else { "s" },
            sweep.bytes / 1_000_000,
            took.map_or(String::new(), |took| format!(" in {:.0} s", took.as_secs_f64()))
        ),
    ];
    if !sweep.settings.is_empty() {
        let with = sweep.settings.iter().map(|setting| format!("{}={}", setting.name, setting.value));
        words.push(format!("with {}", with.collect::<Vec<_>>().join(", ")));
    }
    words
}

fn throughputs(measured: &[Measurement]) -> Vec<PairResult> {
    let result = |one: &Measurement| PairResult {
        pair: one.pair,
        class: one.class,
        gbps: vec![one.gbps],
        median_gbps: one.gbps,
        loss: 0.0,
        weighed_gbps: vec![one.gbps],
        bottleneck: Default::default(),
        costs: Costs::default(),
        core_ms: Vec::new(),
    };
    measured.iter().map(result).collect()
}

/// A measured quantity of a pair.
type Quantity = fn(&Measurement) -> f64;

/// Relative error of a modelled mean: with packets of 9000 bytes, the throughput and cycles of a class vary by this
/// fraction depending on how much of the extra work is charged to the softirq. Source: the table of conventions in
/// docs/src/results/affinity.md.
const MODEL_ERROR: f64 = 0.25;

/// Whether the means of two samples differ by more than the model's error.
fn exceeds_the_error(one: &[f64], other: &[f64]) -> bool {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let (one, other) = (mean(one), mean(other));
    (one - other).abs() > MODEL_ERROR * one.abs().max(other.abs())
}

/// Lists the classes whose throughput or cycles differ significantly (Welch's t-test, 95 %) and by more than the model's
/// error.
pub fn significant_differences(measured: &[Measurement]) -> String {
    let values = |class: Class, value: Quantity| -> Vec<f64> {
        distinct(&of_class(measured, class)).into_iter().map(value).collect()
    };
    let (mut apart, mut not) = (Vec::new(), Vec::new());
    for (index, one) in Class::ALL.into_iter().enumerate() {
        for other in &Class::ALL[index + 1..] {
            let quantities: [(&str, Quantity); 2] =
                [("throughput", |one| one.gbps), ("cycles", |one| one.stages.iter().sum())];
            for (name, value) in quantities {
                let words = format!("{name} of {one} and {other}");
                let (of_one, of_other) = (values(one, value), values(*other, value));
                match differ(&of_one, &of_other) {
                    Some(true) if exceeds_the_error(&of_one, &of_other) => apart.push(words),
                    Some(_) => not.push(words),
                    None => {}
                }
            }
        }
    }
    let list = |words: &[String]| if words.is_empty() { "none".into() } else { words.join("; ") };
    format!(
        "Significant differences at 95 % and beyond the model's error of {:.0} %: {}. No such difference: {}.",
        MODEL_ERROR * 100.0,
        list(&apart),
        list(&not)
    )
}

fn stages(measured: &[Measurement], width: usize) -> String {
    let present = present(measured);
    let headings = [("", "")].into_iter().chain(present.iter().map(|class| (class.word(), "")));
    let row = |(index, name): (usize, &&str)| {
        let mean = |class: &Class| {
            mean_of(&of_class(measured, *class), |one| one.stages[index])
                .map_or("-".into(), |interval| format!("{:.2}", interval.mean))
        };
        [name.to_string()].into_iter().chain(present.iter().map(mean)).collect::<Vec<_>>()
    };
    let rows: Vec<Vec<String>> = STAGES.iter().enumerate().map(row).collect();
    fitted(&headings.collect::<Vec<_>>(), 1, &rows, width)
}

/// The classes, split by whether each CPU is on the NIC's socket.
fn sides(nic: &Nic, places: &[CpuLocation], measured: &[Measurement], width: usize) -> String {
    let Some(socket) = nic.socket else { return "the machine file does not say where the NIC is\n".into() };
    let is_near = |cpu: u32| places.iter().any(|place| place.cpu == cpu && place.socket == socket);
    let side = |near: bool| if near { "the NIC's" } else { "another" };
    let headings = [
        ("class", ""),
        ("flow's socket", ""),
        ("application's", ""),
        ("pairs", ""),
        ("Gb/s", ""),
        ("M cycles/Gbit", ""),
        ("M instructions/Gbit", ""),
        ("LLC misses, k/Gbit", ""),
    ];
    let mut rows = Vec::new();
    for class in present(measured) {
        for (flow, application) in [(true, true), (false, false), (true, false), (false, true)] {
            let is_on_sides = |one: &&Measurement| {
                one.class == class
                    && (is_near(one.pair.flow), is_near(one.pair.application)) == (flow, application)
            };
            let of: Vec<&Measurement> = measured.iter().filter(is_on_sides).collect();
            let mean =
                |value: &dyn Fn(&Measurement) -> f64| mean_of(&of, value).map_or("-".into(), with_half);
            if !of.is_empty() {
                rows.push(vec![
                    class.word().into(),
                    side(flow).into(),
                    side(application).into(),
                    of.len().to_string(),
                    mean(&|one| one.gbps),
                    mean(&|one| one.stages.iter().sum()),
                    mean(&|one| one.costs[0]),
                    mean(&|one| one.costs[4]),
                ]);
            }
        }
    }
    fitted(&headings, 3, &rows, width)
}

pub fn present(measured: &[Measurement]) -> Vec<Class> {
    Class::ALL.into_iter().filter(|class| !of_class(measured, *class).is_empty()).collect()
}

fn with_half(interval: Interval) -> String {
    // Thousands need no decimals.
    let decimals = if interval.mean.abs() < 1000.0 { 2 } else { 0 };
    match interval.half {
        Some(half) => format!("{:.decimals$} ± {half:.decimals$}", interval.mean),
        None => format!("{:.decimals$}", interval.mean),
    }
}

fn classes(measured: &[Measurement], width: usize) -> String {
    let present = present(measured);
    let row = |name: &str, unit: &str, value: &dyn Fn(&Measurement) -> f64| {
        let of = |class: &Class| mean_of(&of_class(measured, *class), value).map_or("-".into(), with_half);
        [name.to_string(), unit.into()].into_iter().chain(present.iter().map(of)).collect::<Vec<_>>()
    };
    let headings = [("", ""), ("", "")].into_iter().chain(present.iter().map(|class| (class.word(), "")));
    let mut rows = vec![row("throughput", "Gb/s", &|one| one.gbps)];
    for (number, (name, unit, ..)) in COSTS.iter().enumerate() {
        rows.push(row(name, unit, &|one| one.costs[number]));
    }
    rows.push(row("flow's core busy", "%", &|one| one.busy[0].0 * 100.0));
    rows.push(row("application's core", "%", &|one| one.busy[1].0 * 100.0));
    fitted(&headings.collect::<Vec<_>>(), 2, &rows, width)
}

/// Means of each class over seeds, with the largest difference between the seeds of one pair.
fn seeds(runs: &[Measurement], width: usize) -> String {
    let each: BTreeSet<u64> = runs.iter().map(|one| one.seed).collect();
    let headings =
        [("class", ""), ("Gb/s", ""), ("M cycles/Gbit", ""), ("largest range of a pair, Gb/s", "")];
    let mut rows = Vec::new();
    for class in present(runs) {
        let of = of_class(runs, class);
        let over = |value: Quantity| {
            let of_seed = |seed: &u64| {
                let one: Vec<&Measurement> = of.iter().copied().filter(|one| one.seed == *seed).collect();
                mean_of(&one, value).map(|interval| interval.mean)
            };
            let means: Vec<f64> = each.iter().filter_map(of_seed).collect();
            Interval::of(&means).map_or("-".into(), with_half)
        };
        let differences = of.chunk_by(|one, other| one.pair == other.pair).map(|pair| {
            let rates = pair.iter().map(|one| one.gbps);
            rates.clone().fold(f64::MIN, f64::max) - rates.fold(f64::MAX, f64::min)
        });
        rows.push(vec![
            class.word().into(),
            over(|one| one.gbps),
            over(|one| one.stages.iter().sum()),
            format!("{:.2}", differences.fold(0.0, f64::max)),
        ]);
    }
    fitted(&headings, 1, &rows, width)
}

/// The bottleneck of each class, and the main component of the busier core's CPI stack.
pub fn limits(sweep: &Sweep<'_>, nic: &Nic, mtu: u64, measured: &[Measurement]) -> Vec<(Class, String)> {
    let polls = sweep.settings.iter().any(|setting| setting.name == "busy_us" && setting.value > 0);
    let most_frequent = |all: &mut dyn Iterator<Item = String>| {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        all.for_each(|one| *counts.entry(one).or_default() += 1);
        counts.into_iter().max_by_key(|(_, times)| *times).unwrap_or_default()
    };
    let mut all = Vec::new();
    for class in Class::ALL {
        let of = of_class(measured, class);
        let Some(gbps) = mean_of(&of, |one| one.gbps) else { continue };
        let (what, times) =
            most_frequent(&mut of.iter().map(|one| limit(one, nic.goodput(mtu), polls).to_string()));
        let what = match times {
            all if all == of.len() => what,
            some if some * 2 > of.len() => format!("{what} in {some} of {} runs", of.len()),
            _ => "not known: its runs differ".into(),
        };
        let (core, _) = most_frequent(&mut of.iter().map(|one| busier(one).0.to_string()));
        let (core, whose) = if core == "0" { (0, "the flow's core") } else { (1, "the application's core") };
        let busy = mean_of(&of, |one| one.busy[core].0).map_or(0.0, |interval| interval.mean);
        let (cause, _) = most_frequent(&mut of.iter().map(|one| one.busy[core].1.clone()));
        let words = format!(
            "{what}; mean {:.1} Gb/s; {whose} is busy {:.0} % of the time, mostly with `{cause}`",
            gbps.mean,
            busy * 100.0
        );
        all.push((class, words));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_affinity::pairs::Pair;

    fn run(flow: u32, seed: u64, gbps: f64) -> Measurement {
        Measurement {
            pair: Pair { flow, application: flow },
            seed,
            class: Class::SameCpu,
            gbps,
            costs: [0.0; COSTS.len()],
            stages: [1.0; STAGES.len()],
            busy: [(0.0, String::new()), (0.0, String::new())],
        }
    }

    /// The widest possible report: all five classes, four-digit numbers, every kind of line.
    #[test]
    fn the_whole_report_fits_into_eighty_columns() {
        let machine = Machine::open(PUBLISHED).unwrap();
        let (places, nic) = (of_machine(&machine), nic(&machine).unwrap());
        let settings =
            ["gro=1", "rfs=1", "send_queues=16", "xps=1", "busy_us=1000000", "delay_ns=1000000000"];
        let sweep = Sweep {
            longma: Path::new("/proc/self/exe"),
            machine: PUBLISHED,
            pairs: vec![],
            frame_cycles: 100_000,
            softirq_share: 100,
            bytes: 900_000_000,
            seed: 1,
            seeds: 2,
            mtu: None,
            settings: settings.iter().map(|setting| setting.parse().unwrap()).collect(),
        };
        let mut runs = Vec::new();
        for (flow, application, seed) in
            (0..12).flat_map(|flow| (0..12).flat_map(move |app| [(flow, app, 1), (flow, app, 2)]))
        {
            let of = f64::from(flow * 12 + application) + seed as f64;
            runs.push(Measurement {
                pair: Pair { flow, application },
                class: Class::ALL[(flow + application) as usize % 5],
                costs: [4429.0 + of; COSTS.len()],
                stages: [123.0 + of; STAGES.len()],
                busy: [(0.9, "system".into()), (0.5, "memory of another socket".into())],
                ..run(flow, seed, 30.0 + of)
            });
        }
        for width in [80, 100] {
            let text = text(&sweep, &nic, &places, &runs, (Some(Duration::from_secs(1000)), width)).unwrap();
            let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > width).collect();
            assert!(long.is_empty(), "{long:#?}");
            for class in Class::ALL {
                assert!(text.contains(class.word()), "{text}");
            }
        }
    }

    #[test]
    fn identical_results_count_as_one_measurement() {
        let (one, other) = (run(0, 1, 10.0), run(1, 1, 12.0));
        let of = |runs: &[&Measurement]| mean_of(runs, |one| one.gbps).unwrap();
        let copies: Vec<Measurement> = (2..50).map(|flow| run(flow, 1, 10.0)).collect();
        let all: Vec<&Measurement> = copies.iter().chain([&one, &other]).collect();
        assert_eq!(of(&all), of(&[&one, &other]));
        assert_eq!(of(&all[..48]).half, None, "nothing is random: there is no interval");
        // Any number of identical copies must not make classes differ significantly.
        let elsewhere =
            copies.iter().map(|run| Measurement { class: Class::SharedCache, gbps: 10.5, ..run.clone() });
        let summary = significant_differences(&copies.iter().cloned().chain(elsewhere).collect::<Vec<_>>());
        assert!(summary.ends_with(" none. No such difference: none."), "{summary}");
    }

    /// A small difference may be an effect of where the model charges work.
    #[test]
    fn differences_within_the_models_error_are_not_told_apart() {
        let class = |class, gbps: f64| {
            (0..6).map(move |flow| Measurement { class, ..run(flow, 1, gbps + f64::from(flow) * 0.01) })
        };
        let summary = |gbps| {
            let all = class(Class::SharedCache, 39.0).chain(class(Class::OtherSocket, gbps));
            significant_differences(&all.collect::<Vec<_>>())
        };
        let words = "throughput of shared-cache and other-socket";
        let (near, far) = (summary(31.0), summary(20.0));
        assert!(near.split_once("No such").unwrap().1.contains(words), "{near}");
        assert!(far.split_once("No such").unwrap().0.contains(words), "{far}");
    }

    #[test]
    fn missing_cpus_are_named() {
        let places = of_machine(&Machine::open(PUBLISHED).unwrap());
        let pairs = [Pair { flow: 0, application: 11 }, Pair { flow: 3, application: 12 }];
        assert_eq!(check_pairs("it", &places, &pairs[..1]), Ok(()));
        let refused = check_pairs("it", &places, &pairs).unwrap_err();
        assert_eq!(refused, "it has no CPU 12: give --cpus or --pair with CPUs from 0 to 11");
    }

    #[test]
    fn intervals_over_seeds_use_the_means_of_a_class() {
        // Pairs differ widely, seeds little: the seeds' means are 20.5 and 19.5.
        let runs = [run(0, 1, 10.0), run(0, 2, 9.0), run(1, 1, 31.0), run(1, 2, 30.0)];
        let text = seeds(&runs, 80);
        let line = text.lines().find(|line| line.starts_with("same-cpu")).unwrap();
        // Student's t for one degree of freedom is 12.7, times 0.5.
        assert!(line.contains("20.00 ± 6.35") && line.trim_end().ends_with("1.00"), "{text}");
    }
}
