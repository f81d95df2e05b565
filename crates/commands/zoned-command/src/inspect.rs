//! `longma zoned info`, `check` and `repair`.

use super::device::{Device, DeviceOptions, Layout};
use super::map::{layout_of, only_tree};
use super::{Format, Outcome};
use longma_command_line::output::{print, print_json, table};
use longma_zoned::device::{Condition, Geometry, StatesRepair, Zone};
use longma_zoned::store::RepairReport;
use longma_zoned::{Options, Store, ZonedDevice};
use longma_zoned_runs as runs;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

/// Arguments of `longma zoned info`.
#[derive(clap::Args)]
pub struct InfoArguments {
    #[command(flatten)]
    device: DeviceOptions,
    /// List all zones.
    #[arg(long)]
    zones: bool,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Arguments of `longma zoned check` and `repair`.
#[derive(clap::Args)]
pub struct CheckArguments {
    #[command(flatten)]
    device: DeviceOptions,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Describes a device.
pub fn info(arguments: &InfoArguments) -> Outcome {
    describe(&arguments.device.open_to_read()?, arguments.zones, arguments.format)
}

/// Prints a device's geometry, its zones (counted by condition, or each), and its map.
pub fn describe(device: &Device, every_zone: bool, format: Format) -> Outcome {
    let (geometry, zones, map) = (device.geometry(), device.zones()?, MapInfo::read(device)?);
    if format == Format::Json {
        let listed = every_zone.then_some(&zones);
        let map = match &map {
            MapInfo::Tree(info) => json!(info),
            MapInfo::Runs(info) => json!({ "layout": "runs", "info": info }),
            MapInfo::None(error) => json!({ "error": error }),
        };
        return print_json(&json!({
            "device": device.name(), "geometry": geometry, "conditions": conditions(&zones),
            "map": map, "zones": listed,
        }));
    }
    let mut rows = vec![vec!["device".into(), device.name()]];
    let mut row = |name: &str, value: String| rows.push(vec![name.into(), value]);
    row("sequential zones", format!("{} of {}", geometry.sequential_zones, zone_size(&geometry)));
    row("conventional zones", format!("{} of {}", geometry.conventional_zones, bytes(zone_bytes(&geometry))));
    row("block", bytes(geometry.block_bytes.into()));
    let limit = |number: u32| if number == 0 { "unlimited".into() } else { number.to_string() };
    row("max open zones", limit(geometry.max_open_zones));
    row("max active zones", limit(geometry.max_active_zones));
    for (condition, count) in conditions(&zones) {
        row(&format!("zones {condition}"), count.to_string());
    }
    match map {
        MapInfo::Runs(info) => {
            row("map", format!("{:016x}", info.id));
            row("layout", "runs (experimental)".into());
            let (runs, tables) = (info.runs, info.tables);
            row("records", format!("{} in {runs} runs of {tables} tables, and the log's", info.records));
        }
        MapInfo::Tree(info) => {
            row("map", format!("{:016x}", info.id));
            row("keys", format!("{} at checkpoint {}", info.keys, info.generation));
            row("node", bytes(info.node_bytes.into()));
        }
        MapInfo::None(error) => row("map", error),
    }
    let mut text = table(&rows);
    if every_zone {
        let _ = write!(text, "\n{}", zone_table(&zones));
    }
    print(&text)
}

/// What a device holds.
enum MapInfo {
    Tree(longma_zoned::store::Info),
    Runs(runs::Info),
    /// No map, and why it is none.
    None(String),
}

impl MapInfo {
    fn read(device: &Device) -> Result<Self, Box<dyn std::error::Error>> {
        let tree = Store::info(device);
        Ok(match (layout_of(device)?, tree) {
            (Layout::Runs, _) => {
                runs::Store::info(device).map_or_else(|error| Self::None(error.to_string()), Self::Runs)
            }
            (Layout::Tree, Ok(info)) => Self::Tree(info),
            (Layout::Tree, Err(error)) => Self::None(error.to_string()),
        })
    }
}

fn conditions(zones: &[Zone]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for zone in zones.iter().filter(|zone| zone.condition != Condition::Conventional) {
        *counts.entry(zone.condition.name()).or_default() += 1;
    }
    counts
}

fn zone_table(zones: &[Zone]) -> String {
    let mut rows = vec![["ZONE", "CONDITION", "WRITTEN", "CAPACITY", "RESETS"].map(String::from).to_vec()];
    for zone in zones {
        let resets = zone.resets.map_or_else(|| "-".into(), |resets| resets.to_string());
        let written = if zone.condition == Condition::Conventional {
            "-".into()
        } else {
            zone.write_pointer.to_string()
        };
        let cells = [
            zone.number.0.to_string(),
            zone.condition.name().into(),
            written,
            zone.capacity_blocks.to_string(),
            resets,
        ];
        rows.push(cells.to_vec());
    }
    table(&rows)
}

fn zone_bytes(geometry: &Geometry) -> u64 {
    geometry.zone_blocks * u64::from(geometry.block_bytes)
}

fn zone_size(geometry: &Geometry) -> String {
    let (all, capacity) =
        (zone_bytes(geometry), geometry.zone_capacity_blocks * u64::from(geometry.block_bytes));
    if all == capacity { bytes(all) } else { format!("{}, {} of it usable", bytes(all), bytes(capacity)) }
}

/// Formats a number of bytes in the largest unit that divides it.
pub fn bytes(number: u64) -> String {
    let units = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|unit| number >= unit.0 && number.is_multiple_of(unit.0)) {
        Some((size, name)) => format!("{} {name}", number / size),
        None => format!("{number} bytes"),
    }
}

/// Checks a map; exits with status 1 if it has problems.
pub fn check(arguments: &CheckArguments) -> Outcome {
    let device = arguments.device.open_to_read()?;
    let name = device.name();
    if layout_of(&device)? == Layout::Runs {
        return check_runs(device, arguments.format);
    }
    let report = Store::check(device)?;
    let sound = report.problems.is_empty();
    if arguments.format == Format::Json {
        print_json(&json!({ "device": name, "sound": sound, "report": report }))?;
    } else {
        let mut text = format!(
            "{name}: {} keys in {} leaves with {} logs, {} inner nodes, {} large values; {} batches in the journal\n",
            report.keys,
            report.leaves,
            report.logs,
            report.inner_nodes,
            report.extents,
            report.journal_batches
        );
        for problem in &report.problems {
            let place = problem.block.map_or_else(String::new, |block| format!("block {block}: "));
            let _ = writeln!(text, "{place}{}", problem.what);
        }
        let _ = writeln!(
            text,
            "{}",
            if sound { "sound".into() } else { format!("{} problems", report.problems.len()) }
        );
        print(&text)?;
    }
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks a map of sorted runs.
fn check_runs(device: Device, format: Format) -> Outcome {
    let name = device.name();
    let map = runs::Store::open_read_only(device, runs::Options::default())?;
    let report = map.check()?;
    let sound = report.problems.is_empty();
    if format == Format::Json {
        print_json(&json!({ "device": name, "sound": sound, "report": report }))?;
    } else {
        let mut text = format!(
            "{name}: {} records in {} blocks of {} tables, and the log\n",
            report.records, report.blocks, report.tables
        );
        for (_, problem) in &report.problems {
            let _ = writeln!(text, "{problem}");
        }
        let _ = writeln!(
            text,
            "{}",
            if sound { "sound".into() } else { format!("{} problems", report.problems.len()) }
        );
        print(&text)?;
    }
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Repairs a map; exits with status 1 if data was lost.
pub fn repair(arguments: &CheckArguments) -> Outcome {
    let (device, states) = arguments.device.open_to_repair()?;
    only_tree(&device, "repair")?;
    let name = device.name();
    let report = Store::repair(device, Options::default())?;
    let losses = report.lost.len() + report.lost_changes.len() + report.lost_values.len();
    let is_intact = !states.table_lost
        && losses == 0
        && report.lost_batches.is_empty()
        && !report.superblock_lost
        && !report.superblock_old;
    if arguments.format == Format::Json {
        print_json(
            &json!({ "device": name, "nothing_lost": is_intact, "states": states, "report": report }),
        )?;
    } else {
        print(&repair_text(&name, &states, &report, is_intact))?;
    }
    Ok(if is_intact { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn repair_text(name: &str, states: &StatesRepair, report: &RepairReport, is_intact: bool) -> String {
    let mut text = format!("{name}: {} keys\n", report.keys);
    if states.table_lost {
        let zones: Vec<_> = states.guessed.iter().map(|zone| zone.0.to_string()).collect();
        let zones = if zones.is_empty() { "none".into() } else { zones.join(", ") };
        let _ = writeln!(
            text,
            "the table of zone states was damaged and has been reconstructed; zones whose write pointer was guessed \
             from what is in them: {zones}. What was written last may be lost"
        );
    }
    let key = |bytes: &[u8]| bytes.escape_ascii().to_string();
    for (ranges, what) in [(&report.lost, "keys lost"), (&report.lost_changes, "newest changes lost")] {
        for range in ranges {
            let end = range.to.as_ref().map_or_else(|| "the end".into(), |to| format!("`{}`", key(to)));
            let _ = writeln!(text, "{what}: from `{}` to {end}", key(&range.from));
        }
    }
    for lost in &report.lost_batches {
        let _ = writeln!(text, "lost with the journal's block {}: {lost} ({})", lost.block, lost.what);
    }
    for lost in &report.lost_values {
        let _ = writeln!(text, "value lost: `{}`", key(lost));
    }
    if report.older_copies > 0 {
        let _ = writeln!(
            text,
            "{} records were restored from older copies and may be out of date",
            report.older_copies
        );
    }
    for (happened, what) in [
        (
            report.superblock_lost,
            "no superblock was intact: all records are from copies of unknown age, and the journal is lost",
        ),
        (
            report.superblock_old,
            "the newest superblock was lost and an older one used: records loaded since then are lost",
        ),
        (report.table_lost, "the table of used space was rebuilt"),
    ] {
        if happened {
            let _ = writeln!(text, "{what}");
        }
    }
    let _ = writeln!(text, "{}", if is_intact { "nothing was lost" } else { "repaired, with losses" });
    text
}
