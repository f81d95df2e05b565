//! `longma zoned`: maps on zoned devices.
//! Not the maps or devices: those are `longma-zoned`.

mod bench;
mod content;
mod device;
mod format;
mod inspect;
mod soak;
mod text;

pub(crate) use device::size;

use clap::{Subcommand, ValueEnum};
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Outcome = Result<ExitCode, Box<dyn Error>>;

/// After Ctrl-C, as the shells use it.
const INTERRUPTED: u8 = 130;

/// `longma zoned ...`
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: ZonedCommand,
}

#[derive(Subcommand)]
enum ZonedCommand {
    /// Make an empty map on a device: a new file that emulates one, or a zoned block device.
    Format(format::Arguments),
    /// Show what a device is made of, its zones, and the map on it.
    Info(inspect::InfoArguments),
    /// Look at every block of a map and report all that is wrong.
    Check(inspect::CheckArguments),
    /// Make a damaged map whole again; what cannot be read is lost and named.
    Repair(inspect::CheckArguments),
    /// Measure a map under a YCSB workload.
    Bench(bench::Arguments),
    /// Run a mixed load on a nearly full map for long, with every value and the whole map checked.
    Soak(soak::Arguments),
    /// Print the value of a key.
    Get(content::GetArguments),
    /// Give a key a value.
    Put(content::PutArguments),
    /// Take a key away.
    Delete(content::DeleteArguments),
    /// Print keys and values in order.
    Scan(content::ScanArguments),
    /// Load many keys and values from a file.
    Load(content::LoadArguments),
}

/// How results are printed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// For programs.
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
        ZonedCommand::Load(arguments) => content::load(&arguments),
    }
}

/// Becomes true at Ctrl-C, so that the work ends between two batches and the map is closed.
fn interruption() -> Arc<AtomicBool> {
    let asked = Arc::new(AtomicBool::new(false));
    let heard = asked.clone();
    // Without a handler Ctrl-C ends the command at once, and nothing that was acknowledged is lost either.
    let _ = ctrlc::set_handler(move || heard.store(true, Ordering::Relaxed));
    asked
}

/// A bar on standard error for `length` steps of `unit`, hidden if nobody looks.
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
