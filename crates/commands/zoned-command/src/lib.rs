//! `longma zoned`: key-value maps on zoned devices, with `longma-zoned`.

mod bench;
mod content;
mod device;
mod format;
mod inspect;
mod map;
#[cfg(feature = "server")]
mod serve;
mod soak;
mod text;

use clap::{Subcommand, ValueEnum};
use longma_command_line::output::Outcome;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit status after Ctrl-C, as in shells.
const INTERRUPTED: u8 = 130;

/// `longma zoned ...`
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: ZonedCommand,
}

#[derive(Subcommand)]
enum ZonedCommand {
    /// Create an empty map on a new emulated device (a file) or on a zoned block device.
    Format(format::Arguments),
    /// Show a device's geometry, its zones, and the map on it.
    Info(inspect::InfoArguments),
    /// Check all blocks of a map and report all problems.
    Check(inspect::CheckArguments),
    /// Repair a damaged map. Unreadable data is lost and reported.
    Repair(inspect::CheckArguments),
    /// Measure a map under a YCSB workload.
    Bench(bench::Arguments),
    /// Run a mixed load on a nearly full map, with checks of every value and of the whole map.
    Soak(soak::Arguments),
    /// Print the value of a key.
    Get(content::GetArguments),
    /// Store a value under a key.
    Put(content::PutArguments),
    /// Delete a key.
    Delete(content::DeleteArguments),
    /// Print keys and values in order.
    Scan(content::ScanArguments),
    /// Copy the map to a new file, an independent map.
    Backup(content::BackupArguments),
    /// Load keys and values from a file. A kill loses at most the last batch; a power cut may lose all lines until the
    /// command has ended.
    ///
    /// After a kill, all batches except possibly the last are in the map. After a power cut, the map contains the first
    /// batches, without a gap. In both cases, a batch that is damaged later causes an error that names the batch, and
    /// `longma zoned repair` continues without it.
    Load(content::LoadArguments),
    /// Serve a map to clients of the Redis protocol.
    #[cfg(feature = "server")]
    Serve(Box<serve::Arguments>),
}

/// Output format.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table or text.
    Table,
    /// JSON.
    Json,
}

/// Runs `longma zoned`.
pub fn run(args: Args) -> Outcome {
    match args.command {
        ZonedCommand::Format(arguments) => format::run(&arguments),
        ZonedCommand::Info(arguments) => inspect::info(&arguments),
        ZonedCommand::Check(arguments) => inspect::check(&arguments),
        ZonedCommand::Repair(arguments) => inspect::repair(&arguments),
        ZonedCommand::Bench(arguments) => bench::run(&arguments),
        ZonedCommand::Soak(arguments) => soak::run(&arguments),
        ZonedCommand::Get(arguments) => content::get(&arguments),
        ZonedCommand::Put(arguments) => content::put(&arguments),
        ZonedCommand::Delete(arguments) => content::delete(&arguments),
        ZonedCommand::Scan(arguments) => content::scan(&arguments),
        ZonedCommand::Backup(arguments) => content::backup(&arguments),
        ZonedCommand::Load(arguments) => content::load(&arguments),
        #[cfg(feature = "server")]
        ZonedCommand::Serve(arguments) => serve::run(&arguments),
    }
}

/// A flag that becomes true at Ctrl-C, so that work stops between two batches and the map is closed.
fn interruption() -> Arc<AtomicBool> {
    let asked = Arc::new(AtomicBool::new(false));
    let heard = asked.clone();
    // If no handler can be set, Ctrl-C ends the command at once. Acknowledged writes survive that too.
    let _ = ctrlc::set_handler(move || heard.store(true, Ordering::Relaxed));
    asked
}

/// A progress bar on standard error for `length` steps of `unit`; hidden if standard error is not a terminal.
fn bar(length: u64, unit: &str) -> indicatif::ProgressBar {
    use std::io::IsTerminal;
    if !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let bar = indicatif::ProgressBar::new(length);
    let template = format!("{{bar:28}} {{human_pos}}/{{human_len}} {unit}  {{per_sec}}  {{eta}} left");
    bar.set_style(
        indicatif::ProgressStyle::with_template(&template)
            .unwrap_or_else(|_| indicatif::ProgressStyle::default_bar()),
    );
    bar
}
