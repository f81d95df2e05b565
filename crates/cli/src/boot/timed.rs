//! The levels `cache` and `timing` of `longma boot`: runs the requested part of the boot through the models and prints
//! the summary.

use clap::ValueEnum;
use longma_command_line::Format;
use longma_lab::open_machine;
use longma_runner::simulation;
use longma_runner::timing::Cause;
use longma_sim::{ManifestProgram, Region};
use longma_system::{Machine, Stop};
use longma_system_timing::kallsyms::ImageSymbols;
use longma_system_timing::symbols::KernelSymbols;
use longma_system_timing::{ModelsError, Privilege, SystemModels, SystemResult};
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::saved::Software;
use super::usage;
use crate::run::arguments::CoreModel;
use crate::run::machine;
use longma_run_results::{grouped, summary};

/// Values that the guest writes to the mark register.
const BEGIN: u8 = 1;
const END: u8 = 2;
const WARM: u8 = 3;

/// Whether models begin to run at this mark.
pub fn begins(mark: u8) -> bool {
    [BEGIN, WARM].contains(&mark)
}

/// Cycles of the machine between polls of the console while the models run: half a millisecond of the machine's time,
/// for which the host needs a fraction of a second.
const SLICE_CYCLES: u64 = 500_000;

/// The maximum size of a symbol file in bytes: a vmlinux with debug information has several hundred MiB.
const MAX_SYMBOL_BYTES: u64 = 2 << 30;

#[derive(clap::Args)]
pub struct Options {
    /// Level of detail.
    #[arg(long, value_enum, default_value_t)]
    level: Level,
    /// The modelled machine, a name or a file (default: loongson-3a5000). For levels cache and timing.
    #[arg(long, value_name = "MACHINE")]
    machine: Option<String>,
    /// The model of the cores, instead of the machine's. For level timing.
    #[arg(long, value_enum, value_name = "MODEL")]
    core: Option<CoreModel>,
    /// Model only the region of interest, from the guest's mark 1 to its mark 2. Mark 3, before it, starts warming the
    /// models. All else runs at full speed.
    #[arg(long)]
    roi: bool,
    /// The kernel's symbols: vmlinux, System.map, or a copy of the guest's /proc/kallsyms.
    #[arg(long, value_name = "FILE")]
    symbols: Option<PathBuf>,
    /// Write all statistics and the profile to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    stats_out: Option<PathBuf>,
    /// The form of the summary on standard error.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Seeds random replacement in the modelled caches.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Level {
    /// No models: the kernel and its programs run as fast as possible.
    #[default]
    Functional,
    /// Caches and coherence traffic are counted; each instruction takes one cycle.
    Cache,
    /// Cycles of the cores, caches and memory.
    Timing,
}

/// The current use of the models.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Instructions bypass the models.
    Unmodelled,
    /// Instructions before the region warm the models and are not counted.
    Warming,
    /// Instructions run through the models and are counted.
    Counted,
}

/// The source of the names of the kernel's functions.
enum Symbols {
    /// A file.
    File(KernelSymbols),
    /// The kernel's own table, if there is one.
    Image(Option<ImageSymbols>),
}

/// The modelled part of a run.
pub struct Timed {
    models: SystemModels,
    phase: Phase,
    has_region: bool,
    symbols: Symbols,
    program: ManifestProgram,
    stats_out: Option<PathBuf>,
    format: Format,
}

impl Options {
    /// The file of `--symbols`.
    pub fn symbols(&self) -> Option<&PathBuf> {
        self.symbols.as_ref()
    }

    /// The file of `--stats-out`.
    pub fn stats_out(&self) -> Option<&PathBuf> {
        self.stats_out.as_ref()
    }

    /// Builds the models; `None` at level `functional`. The other levels need `software`. Must be called before `machine`
    /// runs.
    ///
    /// # Errors
    /// An option is for another level, a file cannot be read, or the machine cannot be modelled.
    pub fn build(
        &self,
        booted: &mut Machine,
        software: Option<&Software>,
    ) -> Result<Option<Timed>, Box<dyn Error>> {
        let level = match self.level {
            Level::Functional => {
                self.refuse_options_of_models()?;
                return Ok(None);
            }
            Level::Cache if self.core.is_some() => {
                return Err(usage("--core is for level timing: level cache times no core"));
            }
            Level::Cache => simulation::Level::Cache,
            Level::Timing => simulation::Level::Timing(self.core.map(CoreModel::kind)),
        };
        let software = software.ok_or("the models need a description of the software")?;
        let symbols = match &self.symbols {
            Some(path) => Symbols::File(symbols(path)?),
            None => Symbols::Image(software.symbols.clone()),
        };
        let description = open_machine(self.machine.as_deref().unwrap_or(machine::DEFAULT), &[])?;
        let models = SystemModels::new(Arc::new(description), level, booted.cores(), self.seed);
        let models = models.map_err(|error| match error {
            ModelsError::Cores { .. } => usage(error),
            _ => error.into(),
        })?;
        if let Some(path) = &self.stats_out {
            // Open the file now: a failure after the run would lose its results.
            let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
            opened.map_err(|error| format!("{}: {error}", path.display()))?;
        }
        let mut timed = Timed {
            models,
            phase: Phase::Unmodelled,
            has_region: self.roi,
            symbols,
            program: software.program.clone(),
            stats_out: self.stats_out.clone(),
            format: self.format,
        };
        match self.roi {
            true => booted.stop_at_marks(),
            false => timed.model(booted, Phase::Counted),
        }
        Ok(Some(timed))
    }

    fn refuse_options_of_models(&self) -> Result<(), Box<dyn Error>> {
        let given = [
            ("--machine", self.machine.is_some()),
            ("--core", self.core.is_some()),
            ("--roi", self.roi),
            ("--symbols", self.symbols.is_some()),
            ("--stats-out", self.stats_out.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => Err(usage(format!("{option} is for levels cache and timing: add --level"))),
            None => Ok(()),
        }
    }

    /// Whether the level is `functional`.
    pub fn is_functional(&self) -> bool {
        self.level == Level::Functional
    }

    /// Whether the names of functions are those in the kernel image.
    pub fn uses_image_symbols(&self) -> bool {
        !self.is_functional() && self.symbols.is_none()
    }
}

fn symbols(path: &Path) -> Result<KernelSymbols, String> {
    let bytes = super::read(path, MAX_SYMBOL_BYTES)?;
    KernelSymbols::parse(&bytes).map_err(|error| format!("{}: {error}", path.display()))
}

impl Timed {
    /// Runs the machine for up to `cycles` cycles.
    pub fn run(&mut self, machine: &mut Machine, cycles: u64) -> Stop {
        let stop = match self.phase {
            Phase::Unmodelled => machine.run(cycles),
            Phase::Warming | Phase::Counted => {
                machine.run_observed(cycles.min(SLICE_CYCLES), &mut self.models)
            }
        };
        let Stop::Mark(mark) = stop else { return stop };
        self.take_mark(machine, mark);
        Stop::Limit
    }

    /// Handles a mark of the guest: begins or ends the region of interest, or its warm-up. Ignored without `--roi`.
    pub fn take_mark(&mut self, machine: &Machine, mark: u8) {
        match mark {
            _ if !self.has_region => {}
            BEGIN => self.model(machine, Phase::Counted),
            WARM if self.phase == Phase::Unmodelled => self.model(machine, Phase::Warming),
            END if self.phase != Phase::Unmodelled => {
                self.models.end(machine);
                self.phase = Phase::Unmodelled;
            }
            _ => {}
        }
    }

    fn model(&mut self, machine: &Machine, phase: Phase) {
        if self.phase == Phase::Unmodelled {
            self.models.join(machine);
        }
        self.phase = phase;
        if phase == Phase::Counted {
            self.models.begin(machine);
        }
    }

    /// Prints the summary and writes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self, machine: &Machine) -> Result<(), Box<dyn Error>> {
        self.models.end(machine);
        if self.models.regions() == 0 {
            eprintln!(
                "longma: the guest marked no region of interest, so nothing was counted; `devmem 0x100e001f 8 1` begins one, or leave --roi out"
            );
        }
        let region = if self.has_region { Region::OfInterest } else { Region::Whole };
        let symbols = match self.symbols {
            Symbols::File(symbols) => symbols,
            Symbols::Image(symbols) => {
                symbols.map(|found| found.in_memory(machine.memory())).transpose()?.unwrap_or_default()
            }
        };
        let result = SystemResult::new(&self.models, machine, self.program, region, &symbols)?;
        match self.format {
            Format::Table => eprintln!("{}", text(&result)),
            Format::Json => eprintln!("{}", result.to_json()),
        }
        if let Some(path) = &self.stats_out {
            let written = std::fs::write(path, format!("{}\n", result.to_json()));
            written.map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(())
    }
}

/// The summary of a program's run, with the shares of user programs and kernel.
fn text(result: &SystemResult) -> String {
    let mut text = summary::text(&result.run);
    let mut line = |line: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{line}");
    };
    line(String::new());
    let is_timed = result.run.summary.stack.is_some();
    line(format!(
        "{:<8}{:>16}{:>8} {:>16}{:>7} {:>12}{:>12}{:>12}  memory-bound",
        "", "instructions", "", "cycles", "IPC", "fetches", "data", "mispredicts"
    ));
    let all = result.run.summary.instructions.max(1) as f64;
    for privilege in Privilege::ALL {
        let share = &result.shares[privilege as usize];
        let cycles = share.busy_cycles();
        let waits =
            [Cause::Fetch, Cause::Level2, Cause::Level3, Cause::Peer, Cause::LocalMemory, Cause::Remote];
        let waited: f64 = waits.iter().map(|cause| share.stack[*cause as usize]).sum();
        let (ipc, bound) = match is_timed {
            true => (
                format!("{:.2}", share.instructions as f64 / cycles.max(1.0)),
                format!("{:.1} %", 100.0 * waited / cycles.max(1.0)),
            ),
            false => (String::new(), String::new()),
        };
        line(format!(
            "{:<8}{:>16}{:>6.1} % {:>16}{ipc:>7} {:>12}{:>12}{:>12}  {bound}",
            privilege.name(),
            grouped(share.instructions),
            100.0 * share.instructions as f64 / all,
            grouped(cycles.round() as u64),
            grouped(share.fetch_misses),
            grouped(share.misses[1..].iter().sum()),
            grouped(share.mispredicted()),
        ));
    }
    let exceptions = result
        .exceptions
        .iter()
        .map(|(name, count)| format!("{} {}", grouped(*count), name.replace('_', " ")));
    let exceptions: Vec<_> = exceptions.collect();
    if !exceptions.is_empty() {
        line(format!("\nexceptions    {}", exceptions.join(", ")));
    }
    text.truncate(text.trim_end().len());
    text
}
