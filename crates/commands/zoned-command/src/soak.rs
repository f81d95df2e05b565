//! `longma zoned soak`: runs a mixed load on a nearly full map, with `longma_zoned_lab::soak`.

use super::device::{Layout, LayoutOption, LoadOptions, NewDevice};
use super::{Format, INTERRUPTED, Outcome, interruption};
use longma_command_line::output::{print, print_json};
use longma_zoned::Store;
use longma_zoned_lab::soak::{SoakOptions, SoakReport, Window, soak};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Arguments of `longma zoned soak`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    new: NewDevice,
    #[command(flatten)]
    load: LoadOptions,
    #[command(flatten)]
    layout: LayoutOption,
    /// Fraction of the device to fill before the load starts; at most 95 % of the space usable by a map.
    #[arg(long, value_name = "PART", default_value_t = 0.9)]
    fill: f64,
    /// Duration of the load.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: u64,
    /// Length of the windows over which throughput is measured.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    window_seconds: u64,
    /// Check the whole map after every N windows.
    #[arg(long, value_name = "N", default_value_t = 1)]
    check_every: usize,
    /// Number of changes per write batch [default: 1000; 1 with --rate].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    batch: Option<u64>,
    /// Start this many operations per second, evenly spaced [default: as many as possible].
    ///
    /// An operation starts on time even if earlier ones are not done, and its latency counts from that time.
    #[arg(long, value_name = "OPERATIONS", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    rate: Option<u64>,
    /// Judge throughput by processor time instead of wall time, for machines with other load.
    #[arg(long)]
    processor_time: bool,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Runs the load. Fails if a check failed or the slowest window had less than half of the mean throughput.
pub fn run(arguments: &Arguments) -> Outcome {
    if arguments.layout.layout == Layout::Runs {
        return Err("`longma zoned soak` works with the layout tree only, since it fills the device and checks the whole map by \
                    what it knows of trees: measure sorted runs with `longma zoned bench --layout runs`"
            .into());
    }
    if !(0.0..1.0).contains(&arguments.fill) {
        return Err(format!(
            "--fill {}: give a fraction of the device, at least 0 and below 1",
            arguments.fill
        )
        .into());
    }
    // With a device in memory, leaves may occupy memory twice: on the device and in the cache.
    arguments.new.fits_into_memory(arguments.fill, 2 * arguments.load.cache_bytes())?;
    let map = Store::open(arguments.new.format(Layout::Tree)?, arguments.load.options())?;
    let options = SoakOptions {
        fill: arguments.fill,
        duration: Duration::from_secs(arguments.seconds),
        windows: 1,
        window_operations: 1,
        window: Duration::from_secs(arguments.window_seconds),
        check_every: arguments.check_every,
        batch: arguments.batch.unwrap_or(if arguments.rate.is_some() { 1 } else { 1000 }),
        rate: arguments.rate.map(|rate| rate as f64),
        value_bytes: arguments.load.value_bytes as usize,
        seed: arguments.load.seed,
    };
    let stop = interruption();
    let table = arguments.format == Format::Table;
    if table {
        print(&format!("{HEAD}\n"))?;
    }
    let mut number = 0;
    let report = soak(&map, options, &|| stop.load(Ordering::Relaxed), &mut |window| {
        number += 1;
        if table {
            // Print each window at once; a closed pipe is reported by the last print.
            let _ = print(&row(number, window));
        }
    })?;
    match arguments.format {
        Format::Json => print_json(&serde_json::to_value(&report)?)?,
        Format::Table => print(&verdict(&report, arguments.processor_time))?,
    };
    map.close()?;
    Ok(match (stop.load(Ordering::Relaxed), is_good(&report, arguments.processor_time)) {
        (true, _) => ExitCode::from(INTERRUPTED),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::FAILURE,
    })
}

const HEAD: &str = "WINDOW  OPERATIONS/S  PER PROCESSOR SECOND  BLOCKS WRITTEN/OPERATION  LONGEST BATCH  LONGEST PUT  IN USE  EMPTY ZONES  RESETS  NODES CHECKED";

fn row(number: u32, window: &Window) -> String {
    let checked = window.checked_nodes.map_or("-".into(), |nodes| nodes.to_string());
    let processor = window.operations_per_processor_second.map_or("-".into(), |rate| format!("{rate:.0}"));
    let longest_put = window.longest_put.map_or("-".into(), |seconds| format!("{:.1} ms", seconds * 1e3));
    format!(
        "{number:6}  {:12.0}  {processor:>20}  {:24.3}  {:10.1} ms  {longest_put:>11}  {:4.1} %  {:11}  {:6}  {checked:>13}\n",
        window.operations_per_second,
        window.blocks_written as f64 / window.operations.max(1) as f64,
        window.longest_batch * 1e3,
        window.fill * 100.0,
        window.empty_zones,
        window.zones_reset,
    )
}

fn is_good(report: &SoakReport, processor_time: bool) -> bool {
    let (lowest, mean) = match (processor_time, report.processor_lowest, report.processor_mean) {
        (true, Some(lowest), Some(mean)) => (lowest, mean),
        _ => (report.lowest, report.mean),
    };
    report.problems.is_empty() && lowest >= mean / 2.0
}

fn verdict(report: &SoakReport, processor_time: bool) -> String {
    let SoakReport { records, fill, windows, mean, lowest, zones_reset, checks, problems, .. } = report;
    let mut text = format!(
        "\n{records} records, {:.1} % of the device in use at first and {:.1} % at the end; {} windows, {checks} checks\n\
         {mean:.0} operations per second, the slowest window {lowest:.0} ({:.0} % of the mean); {zones_reset} zones reset\n",
        fill[0] * 100.0,
        fill[1] * 100.0,
        windows.len(),
        lowest / mean * 100.0,
    );
    if let (Some(mean), Some(lowest)) = (report.processor_mean, report.processor_lowest) {
        let percent = lowest / mean * 100.0;
        text += &format!(
            "{mean:.0} operations per second of processor time, the slowest window {lowest:.0} ({percent:.0} % of the mean)\n"
        );
    }
    text += &format!("the longest batch took {:.1} ms\n", report.longest_batch * 1e3);
    if let Some(seconds) = report.longest_put {
        text += &format!("the longest put took {:.1} ms from its scheduled start\n", seconds * 1e3);
    }
    for problem in problems {
        text += &format!("problem: {problem}\n");
    }
    text + if is_good(report, processor_time) { "passed\n" } else { "FAILED\n" }
}
