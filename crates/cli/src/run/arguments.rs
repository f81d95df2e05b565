//! The arguments of `longma run` as given. `plan` validates them.

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use clap::ValueEnum;
use longma_runner::{
    StoredLimit,
    descriptors::Limit,
    optimizations::Optimizations,
    simulation::{SamplingPlan, WARMED_INSTRUCTIONS, Warm},
    timing::ModelKind,
    x86_features::Features,
};

use longma_command_line::Format;
use longma_lab::{MachineEdit, with_space};
use longma_sim::Duration;
use longma_topology::units::{Time, UnitError};

use super::{descriptors, failure::Failure, listing};

/// Arguments of `longma run`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print the run's cost on standard error: instructions, translated code, time.
    ///
    /// For level `functional`.
    #[arg(long)]
    pub(super) stats: bool,

    /// Print the functions that executed most instructions, on standard error.
    #[arg(long)]
    pub(super) profile: bool,

    /// Write the instruction counts of all functions to a file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub(super) profile_out: Option<PathBuf>,

    /// Write call stacks to a file: one line for each, an SVG flame graph (.svg), or a profile for pprof (.pb.gz).
    ///
    /// They are sampled after every 100,003 instructions of a thread, or 100,003 ns of simulated time.
    #[arg(long, value_name = "FILE")]
    pub(super) stacks_out: Option<PathBuf>,

    /// The instructions, or nanoseconds of simulated time, between two samples of --stacks-out; at least 1000.
    ///
    /// Instructions are counted by block of code, so smaller intervals would yield a wrong number of samples.
    #[arg(long, value_name = "NUMBER", requires = "stacks_out", default_value_t = 100_003, value_parser = clap::value_parser!(u64).range(1000..))]
    pub(super) stacks_every: u64,

    /// Output format of --stats and --profile.
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,

    /// Print the metrics and units of a run with these options, as JSON, without running the program.
    #[arg(long)]
    pub(super) measures: bool,

    /// Wait for a debugger on this port of 127.0.0.1, before the first instruction. Port 0 picks a free port.
    #[arg(long, value_name = "PORT")]
    pub(super) gdb: Option<u16>,

    /// Print every system call, on standard error.
    #[arg(long)]
    pub(super) strace: bool,

    /// Print every system call to this file.
    #[arg(long, value_name = "FILE")]
    pub(super) strace_out: Option<PathBuf>,

    /// Machine name (see `longma machine list`) or machine file.
    ///
    /// The machine determines the core's features and the number of cores. Without it, the program sees LA464 cores, as
    /// many as the host has processors.
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) machine: Option<String>,

    /// Give a key of the machine another value, such as caches.l2.size=512KiB. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(super) set: Vec<MachineEdit>,

    /// Level of detail.
    #[arg(long, value_enum, default_value_t)]
    pub(super) level: Level,

    /// Timing model of the cores, for level `timing` [default: as in the machine file].
    #[arg(long, value_enum)]
    pub(super) core: Option<CoreModel>,

    /// Count only the region of interest, which the program marks with guests/include/longma.h.
    #[arg(long)]
    pub(super) roi: bool,

    /// Warm up the models with the last N million instructions before the region of interest.
    ///
    /// These instructions are not counted. 0 starts with cold caches and is fastest. `all` sends everything before the
    /// region through the caches as it runs, for programs that use devices.
    #[arg(long, value_name = "MILLIONS|all", requires = "roi", default_value_t = WarmUp::default())]
    pub(super) warm: WarmUp,

    /// Time a sample of the program, and estimate the rest with a confidence interval.
    ///
    /// For level `timing` and programs with one thread. PLAN is a comma-separated list of every=N, unit=N, detail=N and
    /// warm=N|all, numbers of instructions: every `every` instructions, `unit` are measured, after `detail` that are
    /// timed but not measured and `warm` that update only caches, TLBs and predictors. The defaults are
    /// every=200k,unit=10k,detail=4k,warm=all.
    #[arg(
        long,
        value_name = "PLAN",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        conflicts_with_all = ["roi", "trace", "checkpoint", "restore"]
    )]
    pub(super) sample: Option<SamplingPlan>,

    /// End the run after this many counted instructions.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) max_instructions: Option<u64>,

    /// End the run after this much counted simulated time, for example 10ms.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(super) max_time: Option<Duration>,

    /// Write the statistics so far after every N counted instructions, one JSON object a line.
    ///
    /// The file is that of --stats-out with the extension `jsonl`.
    #[arg(long, value_name = "N", requires = "stats_out", conflicts_with = "sample",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) stats_every: Option<u64>,

    /// Write all statistics to this file, as JSON, and the machine with all defaults to a file next to it.
    #[arg(long, value_name = "FILE")]
    pub(super) stats_out: Option<PathBuf>,

    /// Write a page about the run to this file, as HTML: the machine with the use of its parts, where the cycles went, the
    /// hottest code, misses, bandwidth.
    ///
    /// The page loads nothing and needs no script. Counting individual instructions slows the run down but does not
    /// change its results.
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,

    /// In the page of --report, also show the changes from this result, a file of --stats-out.
    #[arg(long, value_name = "FILE", requires = "report")]
    pub(super) report_against: Option<PathBuf>,

    /// Print the assembly of the three hottest functions, or of FUNCTION, with the cost of each instruction: cycles,
    /// misses, mispredictions, causes of stalls.
    ///
    /// With --format json, the printed result has them as `annotation`.
    #[arg(
        long,
        value_name = "FUNCTION",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        conflicts_with = "sample"
    )]
    pub(super) annotate: Option<String>,

    /// Write a trace for Perfetto (ui.perfetto.dev): threads on cores, markers, IPC, bandwidth.
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,

    /// Write the counted instructions to this file as a ChampSim trace, compressed if its extension is `zst`.
    ///
    /// For programs with one thread. For a translated program, the trace contains the LoongArch instructions of the
    /// translation.
    #[arg(long, value_name = "FILE", conflicts_with = "sample")]
    pub(super) champsim: Option<PathBuf>,

    /// Save the process to this file when its region of interest begins or when it requests it, and continue.
    #[arg(long, value_name = "FILE")]
    pub(super) checkpoint: Option<PathBuf>,

    /// Continue a process saved with --checkpoint, on the same or another machine, instead of starting a program.
    #[arg(long, value_name = "FILE", conflicts_with = "program")]
    pub(super) restore: Option<PathBuf>,

    /// Do not print the summary of a simulated run.
    #[arg(long)]
    pub(super) quiet: bool,

    /// Memory policy: first-touch (the default), bind:NODES, interleave:NODES or preferred:NODE.
    #[arg(long, value_name = "POLICY")]
    pub(super) numa: Option<String>,

    /// Cores that the program may use, for example 0,2-3.
    #[arg(long, value_name = "CORES")]
    pub(super) cpu: Option<String>,

    /// Attach a peer to an Ethernet device: DEVICE,loop or DEVICE,tcp,KEY=VALUE,... May be repeated.
    ///
    /// The book's chapter on devices lists the keys.
    #[arg(long, value_name = "DEVICE,WHAT")]
    pub(super) wire: Vec<String>,

    /// Seed of all random choices of a simulated run.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,

    /// The directory that the program sees as `/`.
    #[arg(long, value_name = "DIR")]
    pub(super) root: Option<PathBuf>,

    /// Confine the emulator as well, so that a vulnerability in it does not expose the host.
    ///
    /// The host's files become read-only and, except DIR, mostly unreadable. Signals to processes outside are blocked,
    /// and the emulator's own system calls are filtered. The network stays available. Fails if the kernel lacks a
    /// needed feature (Linux 6.12 has all). With --root alone, the program can name only files in DIR, but the emulator
    /// keeps its user's permissions.
    #[arg(long, requires = "root")]
    pub(super) sandbox: bool,

    /// The process is already in the sandbox: a sandboxed program executed another program.
    #[arg(long, hide = true, requires = "sandbox")]
    pub(super) sandboxed: bool,

    /// Directory to search for the dynamic linker and libraries that are missing at their own paths.
    #[arg(short = 'L', long, value_name = "DIR", env = "LONGMA_LIBRARY_ROOT")]
    pub(super) library_root: Option<PathBuf>,

    /// Set a variable in the program's environment, which is otherwise inherited. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    pub(super) env: Vec<(OsString, OsString)>,

    /// Remove a variable from the program's environment. May be repeated.
    #[arg(long, value_name = "NAME")]
    pub(super) unset_env: Vec<OsString>,

    /// Set the program's argv[0] [default: its path].
    #[arg(long, value_name = "NAME")]
    pub(super) argv0: Option<OsString>,

    /// Show the program fixed names and random bytes, independent of the host and user.
    ///
    /// This covers the names of the program, its directories, the user and the system, and the random bytes that the
    /// program receives at its start. Simulated runs always do this.
    #[arg(long)]
    pub(super) fixed_names: bool,

    /// Start the program's stack this many bytes lower; a multiple of 16.
    ///
    /// Measurements depend on the addresses of data. Use this option to vary them.
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = parse_stack_offset)]
    pub(super) stack_offset: u64,

    /// CPU features that `cpuid` reports to x86-64 programs: `sse2`, `sse4` or `avx2`; each includes those before it.
    ///
    /// Without this option, `avx2` on a machine whose cores have LASX, and otherwise `sse4`, which is x86-64-v2.
    #[arg(long, value_name = "FEATURES", value_parser = Features::named)]
    pub(super) x86_features: Option<Features>,

    /// Optimizations to use when translating programs of other architectures: comma-separated names.
    ///
    /// Use it to measure the effect of each. `no-` before a name excludes it (`no-fusion,lbt`); `none` as the first
    /// name excludes all except the names that follow it. The book's chapter on translation describes the
    /// optimizations.
    #[arg(long, value_name = "PARTS", default_value_t, hide_default_value = true)]
    pub translation: Optimizations,

    /// Size of the translated-code area, in MiB. When it is full, it is reused.
    #[arg(long, value_name = "MIB", default_value_t = MAX_CODE_AREA_MIB, value_parser = clap::value_parser!(u64).range(2..=MAX_CODE_AREA_MIB))]
    pub(super) translation_room: u64,

    /// Keep translations of programs of other architectures in this directory, so that later runs start sooner.
    /// [default: none]
    ///
    /// `none` keeps no translations. Experimental: a program may malfunction if it loads other libraries than in an
    /// earlier run.
    #[arg(long, value_name = "DIR", env = "LONGMA_TRANSLATION_CACHE")]
    pub(super) translation_cache: Option<OsString>,

    /// Interpret all instructions with their reference semantics. Slow.
    #[arg(long)]
    pub(super) interpret: bool,

    /// Descriptor of a file that holds the environment.
    #[arg(long, hide = true)]
    pub(super) environment_from: Option<i32>,

    /// The program's limit of open files.
    #[arg(long, hide = true, value_parser = descriptors::parse_limit)]
    pub(super) open_files: Option<Limit>,

    /// A limit set by the previous program that the host does not enforce.
    #[arg(long, hide = true, value_name = "RESOURCE:SOFT:HARD", value_parser = descriptors::parse_kept_limit)]
    pub(super) kept_limit: Vec<StoredLimit>,

    /// The process that prints the reports: the process of the first program.
    #[arg(long, hide = true)]
    pub(super) reporting_process: Option<u32>,

    /// Descriptor of a file with the costs of the programs that executed this one.
    #[arg(long, hide = true, value_name = "DESCRIPTOR")]
    pub(super) earlier_programs: Option<i32>,

    /// The program that `--fixed-names` refers to: the first one started.
    #[arg(long, hide = true, value_name = "PROGRAM", requires = "named_in")]
    pub(super) named_after: Option<PathBuf>,

    /// The working directory in which it was started.
    #[arg(long, hide = true, value_name = "DIRECTORY", requires = "named_after")]
    pub(super) named_in: Option<PathBuf>,

    /// The listing that `longma translate` requests.
    #[arg(skip)]
    pub listing: Option<listing::Options>,

    /// The program and its arguments; `--` may precede it. `guests:NAME` is a shipped program (see `longma guest list`).
    #[arg(
        required_unless_present = "restore",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_names = ["PROGRAM", "ARGS"]
    )]
    pub(super) program: Vec<OsString>,
}

impl Arguments {
    /// The program as the user named it; `None` if another program executed it or a checkpoint contains it.
    pub fn named_program(&mut self) -> Option<&mut OsString> {
        let is_first = !self.is_restart();
        self.program.first_mut().filter(|_| is_first)
    }

    /// Whether cores and caches are modelled.
    pub(super) fn simulates(&self) -> bool {
        self.level != Level::Functional
    }

    /// Whether another guest program started this one by execve.
    pub(super) fn is_restart(&self) -> bool {
        self.reporting_process.is_some()
    }

    /// The directory of persistent translations, if given. Sandboxed programs keep none, and a debugger needs different
    /// code.
    pub(super) fn translation_directory(&self) -> Option<PathBuf> {
        let is_usable = !self.sandbox && !self.interpret && self.gdb.is_none();
        // An empty environment variable counts as unset.
        let given = self.translation_cache.as_deref().filter(|given| !given.is_empty() && *given != "none");
        // Absolute, because the program may change its working directory.
        given.filter(|_| is_usable).and_then(|folder| std::path::absolute(folder).ok())
    }

    /// Whether the program sees the directory of `--root` as `/`.
    pub fn has_root(&self) -> bool {
        self.root.is_some()
    }
}

/// The value of `--warm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarmUp(pub(super) Warm);

impl Default for WarmUp {
    fn default() -> Self {
        Self(Warm::Last(WARMED_INSTRUCTIONS))
    }
}

impl fmt::Display for WarmUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Warm::All => f.write_str("all"),
            Warm::Last(instructions) => write!(f, "{}", instructions / 1_000_000),
        }
    }
}

impl FromStr for WarmUp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self(Warm::All));
        }
        let millions: u64 = text
            .parse()
            .map_err(|_| "give millions of instructions as a whole number, or `all`".to_string())?;
        Ok(Self(Warm::Last(millions.saturating_mul(1_000_000))))
    }
}

/// Timing model of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CoreModel {
    /// Instructions issue in program order.
    InOrder,
    /// Instructions issue when their operands are ready.
    OutOfOrder,
}

impl CoreModel {
    pub fn kind(self) -> ModelKind {
        match self {
            Self::InOrder => ModelKind::InOrder,
            Self::OutOfOrder => ModelKind::OutOfOrder,
        }
    }
}

/// Level of detail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Level {
    /// Programs run without models, as fast as possible.
    #[default]
    Functional,
    /// Caches, TLBs and coherence traffic are counted; each instruction takes one cycle.
    Cache,
    /// Cycles of the cores, caches and memory.
    Timing,
}

/// A larger offset would leave too little of the 8 MiB stack.
const MAX_STACK_OFFSET: u64 = 1 << 20;

/// Maximum size of the translated-code area, in MiB.
pub(super) const MAX_CODE_AREA_MIB: u64 = 120;

fn parse_stack_offset(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(bytes) if bytes % 16 == 0 && bytes <= MAX_STACK_OFFSET => Ok(bytes),
        _ => Err(format!("give a multiple of 16 up to {MAX_STACK_OFFSET}")),
    }
}

/// Parses a time such as `10ms` or `10 ms`.
fn parse_time(text: &str) -> Result<Duration, String> {
    let time: Time = with_space(text).parse().map_err(|error: UnitError| error.to_string())?;
    if time.ps() == 0 { Err("give more than 0".into()) } else { Ok(Duration::from_ps(time.ps())) }
}

fn parse_variable(text: &str) -> Result<(OsString, OsString), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write it as NAME=VALUE".into()),
    }
}

/// The absolute path of the directory that `option` names.
///
/// # Errors
/// The directory does not exist.
pub(super) fn absolute(path: &Path, option: &str) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|error| {
        let message = format!("cannot use {} as {option}: {error}", path.display());
        Failure::own(&message, "give a directory that exists")
    })
}
