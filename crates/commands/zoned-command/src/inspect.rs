//! `longma zoned info`, `check` and `repair`.

use super::device::{Device, DeviceOptions, Layout};
use super::map::layout_of;
use super::{Format, Outcome};
use longma_command_line::output::{print, print_json, table};
use longma_zoned::device::{Condition, Geometry, StatesRepair, Zone};
use longma_zoned::store::{CheckReport, Problem, RepairReport};
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

/// The content of a device.
enum MapInfo {
    Tree(longma_zoned::store::Info),
    Runs(runs::Info),
    /// No map, with the reason.
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
    let checked = match layout_of(&device)? {
        Layout::Tree => Checked::of_tree(&Store::check(device)?),
        Layout::Runs => Checked::of_runs(&runs::Store::check_device(device, runs::Options::default())?),
    };
    checked.print(&name, arguments.format)
}

/// The result of a check of either layout.
struct Checked {
    /// The decoded structures.
    summary: String,
    problems: Vec<String>,
    report: serde_json::Value,
}

impl Checked {
    fn of_tree(report: &CheckReport) -> Self {
        let CheckReport { keys, leaves, logs, inner_nodes, extents, journal_batches, problems, .. } = report;
        let line = |problem: &Problem| match problem.block {
            Some(block) => format!("block {block}: {}", problem.what),
            None => problem.what.clone(),
        };
        Self {
            summary: format!(
                "{keys} keys in {leaves} leaves with {logs} logs, {inner_nodes} inner nodes, {extents} large values; {journal_batches} batches in the journal"
            ),
            problems: problems.iter().map(line).collect(),
            report: json!(report),
        }
    }

    fn of_runs(report: &runs::CheckReport) -> Self {
        let runs::CheckReport { records, blocks, tables, problems } = report;
        Self {
            summary: format!("{records} records in {blocks} blocks of {tables} tables, and the log"),
            problems: problems.iter().map(|(_, what)| what.clone()).collect(),
            report: json!(report),
        }
    }

    fn print(&self, name: &str, format: Format) -> Outcome {
        let is_sound = self.problems.is_empty();
        if format == Format::Json {
            print_json(&json!({ "device": name, "sound": is_sound, "report": self.report }))?;
        } else {
            let mut lines = vec![format!("{name}: {}", self.summary)];
            lines.extend(self.problems.iter().cloned());
            lines.push(if is_sound { "sound".into() } else { format!("{} problems", self.problems.len()) });
            print(&(lines.join("\n") + "\n"))?;
        }
        Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Repairs a map; exits with status 1 if data was lost, or may be.
pub fn repair(arguments: &CheckArguments) -> Outcome {
    let (device, states) = arguments.device.open_to_repair()?;
    let name = device.name();
    let repaired = match layout_of(&device)? {
        Layout::Tree => Repaired::of_tree(&name, &states, &Store::repair(device, Options::default())?),
        Layout::Runs => {
            Repaired::of_runs(&name, &states, &runs::Store::repair(device, runs::Options::default())?)
        }
    };
    let Repaired { has_losses, text, report } = repaired;
    let is_intact = !has_losses && !states.table_lost;
    if arguments.format == Format::Json {
        print_json(
            &json!({ "device": name, "nothing_lost": is_intact, "states": states, "report": report }),
        )?;
    } else {
        let result = match (has_losses, is_intact) {
            (true, _) => "repaired, with losses\n",
            (false, true) => "nothing was lost\n",
            (false, false) => "repaired; no loss was found\n",
        };
        print(&(text + result))?;
    }
    Ok(if is_intact { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The result of a repair of either layout.
struct Repaired {
    has_losses: bool,
    text: String,
    report: serde_json::Value,
}

impl Repaired {
    fn of_tree(name: &str, states: &StatesRepair, report: &RepairReport) -> Self {
        let losses = report.lost.len() + report.lost_changes.len() + report.lost_values.len();
        let has_losses =
            losses > 0 || !report.lost_batches.is_empty() || report.superblock_lost || report.superblock_old;
        Self { has_losses, text: repair_text(name, states, report), report: json!(report) }
    }

    fn of_runs(name: &str, states: &StatesRepair, report: &runs::RepairReport) -> Self {
        let runs::RepairReport { batches, lost_batches, damaged } = report;
        let has_losses = !lost_batches.is_empty() || !damaged.is_empty();
        let mut text =
            format!("{name}: {batches} batches of the log are in tables now\n{}", states_text(states));
        for lost in lost_batches {
            let _ = writeln!(text, "lost with the log's block {}: {lost} ({})", lost.block, lost.what);
        }
        for (_, what) in damaged {
            let _ = writeln!(text, "not repaired: {what}");
        }
        Self { has_losses, text, report: json!(report) }
    }
}

/// Describes how the table of zone states was reconstructed, if it was.
fn states_text(states: &StatesRepair) -> String {
    if !states.table_lost {
        return String::new();
    }
    let zones: Vec<_> = states.guessed.iter().map(|zone| zone.0.to_string()).collect();
    let zones = if zones.is_empty() { "none".into() } else { zones.join(", ") };
    format!(
        "the table of zone states was damaged and has been reconstructed; zones whose write pointer was guessed \
         from what is in them: {zones}. What was written last may be lost\n"
    )
}

fn repair_text(name: &str, states: &StatesRepair, report: &RepairReport) -> String {
    let mut text = format!("{name}: {} keys\n{}", report.keys, states_text(states));
    let key = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let lost = match report.older_copies {
        0 => "keys lost",
        _ => "keys lost, except those restored from older copies",
    };
    for (ranges, what) in [(&report.lost, lost), (&report.lost_changes, "newest changes lost")] {
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
    text
}
