//! `longma run`: runs a Linux program for LoongArch64, x86-64, AArch64 or MIPS64, optionally on a modelled machine. The
//! program is a path; PATH is not searched.
//! Source: exit statuses 125, 126 and 127 as used by timeout(1) and shells.

mod descriptors;
mod failure;
pub mod listing;
mod machine;
mod measures;
mod placement;
mod report;
mod restart;
mod sandbox;
mod simulated;
mod summary;
mod wires;

use std::{
    ffi::OsString,
    fs::OpenOptions,
    io::IsTerminal,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Instant,
};

use clap::ValueEnum;
use longma_runner::optimizations::Optimizations;
use longma_runner::x86_features::Features;
use longma_runner::{
    Debugger, Execution, KeptLimit, Node, NodeConfig, ProcessConfig, Sink, descriptors::Limit,
    devices::has_devices,
};
use longma_topology::Machine;
use longma_workloads::program::HOST_FAULT_STATUS;

use failure::Failure;
pub use failure::{NOT_FOUND, OWN_FAILURE};
use listing::Options;
pub use report::grouped;

/// Arguments of `longma run`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print the run's cost on standard error: instructions, translated code, time.
    ///
    /// For level `functional`.
    #[arg(long)]
    stats: bool,

    /// Print the functions that executed most instructions, on standard error.
    #[arg(long)]
    profile: bool,

    /// Write the instruction counts of all functions to a file, as JSON.
    #[arg(long, value_name = "FILE")]
    profile_out: Option<PathBuf>,

    /// Output format of --stats and --profile.
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    /// Print what the run would measure, with units, as JSON, and run nothing.
    #[arg(long)]
    measures: bool,

    /// Wait for a debugger on this port of 127.0.0.1, before the first instruction. Port 0 picks a free port.
    #[arg(long, value_name = "PORT")]
    gdb: Option<u16>,

    /// Print every system call, on standard error.
    #[arg(long)]
    strace: bool,

    /// Print every system call to this file.
    #[arg(long, value_name = "FILE")]
    strace_out: Option<PathBuf>,

    /// Machine name (see `longma machine list`) or machine file.
    ///
    /// The machine determines the core's features and the number of cores. Without it, the program sees LA464 cores, as
    /// many as the host has processors.
    #[arg(long, value_name = "NAME|FILE")]
    machine: Option<String>,

    /// How much is modelled.
    #[arg(long, value_enum, default_value_t)]
    level: Level,

    /// Timing model of the cores, for level `timing` [default: as in the machine file].
    #[arg(long, value_enum)]
    core: Option<simulated::CoreModel>,

    /// Count only the region of interest, which the program marks with guests/include/longma.h.
    #[arg(long)]
    roi: bool,

    /// Warm up the models with the last N million instructions before the region of interest.
    ///
    /// These instructions are not counted. 0 starts with cold caches and is fastest. `all` sends everything before the
    /// region through the caches as it runs, for programs that use devices.
    #[arg(long, value_name = "MILLIONS|all", requires = "roi", default_value_t = simulated::WarmUp::default())]
    warm: simulated::WarmUp,

    /// Write all statistics to this file, as JSON, and the machine with all defaults to a file next to it.
    #[arg(long, value_name = "FILE")]
    stats_out: Option<PathBuf>,

    /// Write a trace for Perfetto (ui.perfetto.dev): threads on cores, marks, IPC, bandwidth.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Save the process to this file when its region of interest begins or when it requests it, and continue.
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,

    /// Continue a process saved with --checkpoint, on the same or another machine, instead of starting a program.
    #[arg(long, value_name = "FILE", conflicts_with = "program")]
    restore: Option<PathBuf>,

    /// Do not print the summary of a simulated run.
    #[arg(long)]
    quiet: bool,

    /// Memory policy: first-touch (the default), bind:NODES, interleave:NODES or preferred:NODE.
    #[arg(long, value_name = "POLICY")]
    numa: Option<String>,

    /// Cores that the program may use, for example 0,2-3.
    #[arg(long, value_name = "CORES")]
    cpu: Option<String>,

    /// Attach a peer to an Ethernet device: DEVICE,loop or DEVICE,tcp,KEY=VALUE,... May be repeated.
    ///
    /// The book's chapter on devices lists the keys.
    #[arg(long, value_name = "DEVICE,WHAT")]
    wire: Vec<String>,

    /// Seed of all random choices of a simulated run.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// The directory that the program sees as `/`.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// Confine the emulator as well, so that a vulnerability in it does not expose the host.
    ///
    /// The host's files become read-only and, except DIR, mostly unreadable. Signals to processes outside are blocked,
    /// and the emulator's own system calls are filtered. The network stays available. Fails if the kernel lacks a
    /// needed feature (Linux 6.12 has all). With --root alone, the program can name only files in DIR, but the emulator
    /// keeps its user's permissions.
    #[arg(long, requires = "root")]
    sandbox: bool,

    /// The process is already in the sandbox: a sandboxed program executed another program.
    #[arg(long, hide = true, requires = "sandbox")]
    sandboxed: bool,

    /// Directory to search for the dynamic linker and libraries that are missing at their own paths.
    #[arg(short = 'L', long, value_name = "DIR", env = "LONGMA_LIBRARY_ROOT")]
    library_root: Option<PathBuf>,

    /// Set a variable in the program's environment, which is otherwise inherited. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<(OsString, OsString)>,

    /// Remove a variable from the program's environment. May be repeated.
    #[arg(long, value_name = "NAME")]
    unset_env: Vec<OsString>,

    /// Set the program's argv[0] [default: its path].
    #[arg(long, value_name = "NAME")]
    argv0: Option<OsString>,

    /// Show the program fixed names and random bytes, independent of the host and user.
    ///
    /// The names are those of the program, its directories, the user and the system; the random bytes are those it gets
    /// at its start. Simulated runs always do this.
    #[arg(long)]
    fixed_names: bool,

    /// Start the program's stack this many bytes lower; a multiple of 16.
    ///
    /// Measurements depend on the addresses of data. Use this option to vary them.
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = parse_stack_offset)]
    stack_offset: u64,

    /// CPU features that `cpuid` reports to x86-64 programs: `sse2`, or `avx2` for all supported features.
    #[arg(long, value_name = "FEATURES", value_parser = Features::named, default_value = Features::default().name())]
    x86_features: Features,

    /// Optimizations to use when translating programs of other architectures: comma-separated names.
    ///
    /// Use it to measure the effect of each. `no-` before a name excludes it (`no-fusion,lbt`); `none` as the first
    /// name excludes all that are not named after it. The book's chapter on translation describes the optimizations.
    #[arg(long, value_name = "PARTS", default_value_t, hide_default_value = true)]
    pub translation: Optimizations,

    /// Size of the translated-code area, in MiB. When it is full, it is reused.
    #[arg(long, value_name = "MIB", default_value_t = MAX_CODE_AREA_MIB, value_parser = clap::value_parser!(u64).range(2..=MAX_CODE_AREA_MIB))]
    translation_room: u64,

    /// Keep translations of programs of other architectures in this directory, so that later runs start sooner.
    /// [default: none]
    ///
    /// `none` keeps no translations. Experimental: a program may malfunction if it loads other libraries than in an
    /// earlier run.
    #[arg(long, value_name = "DIR", env = "LONGMA_TRANSLATION_CACHE")]
    translation_cache: Option<OsString>,

    /// Interpret all instructions with their reference semantics. Slow.
    #[arg(long)]
    interpret: bool,

    /// Descriptor of a file that holds the environment.
    #[arg(long, hide = true)]
    environment_from: Option<i32>,

    /// The program's limit of open files.
    #[arg(long, hide = true, value_parser = descriptors::parse_limit)]
    open_files: Option<Limit>,

    /// A limit set by the previous program that the host does not enforce.
    #[arg(long, hide = true, value_name = "RESOURCE:SOFT:HARD", value_parser = descriptors::parse_kept_limit)]
    kept_limit: Vec<KeptLimit>,

    /// The process that prints the reports: the one that the first program was started in.
    #[arg(long, hide = true)]
    reporting_process: Option<u32>,

    /// The listing that `longma translate` requests.
    #[arg(skip)]
    pub listing: Option<Options>,

    /// The program and its arguments; `--` may precede it. `guests:NAME` is a shipped program (see `longma guest list`).
    #[arg(
        required_unless_present = "restore",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_names = ["PROGRAM", "ARGS"]
    )]
    program: Vec<OsString>,
}

impl Arguments {
    /// The program as the user named it; `None` if another program executed it or a checkpoint contains it.
    pub fn named_program(&mut self) -> Option<&mut OsString> {
        let is_first = self.reporting_process.is_none();
        self.program.first_mut().filter(|_| is_first)
    }

    /// Whether the program sees the directory of `--root` as `/`.
    pub fn has_root(&self) -> bool {
        self.root.is_some()
    }
}

/// Output format of reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table or text.
    #[default]
    Table,
    /// One JSON object on one line.
    Json,
}

/// How much is modelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Level {
    /// Only results, no time.
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
const MAX_CODE_AREA_MIB: u64 = 120;

fn parse_stack_offset(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(bytes) if bytes % 16 == 0 && bytes <= MAX_STACK_OFFSET => Ok(bytes),
        _ => Err(format!("give a multiple of 16 up to {MAX_STACK_OFFSET}")),
    }
}

fn parse_variable(text: &str) -> Result<(OsString, OsString), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write it as NAME=VALUE".into()),
    }
}

/// Runs the program and exits with its status; returns only if it cannot be started.
pub fn run(arguments: Arguments) -> ExitCode {
    match start(arguments) {
        Ok(never) => match never {},
        Err(failure) => show(failure),
    }
}

/// Reports a program that was refused before [`run`], as `run` does.
pub fn refused(message: &str, advice: &str, status: u8) -> ExitCode {
    show(Failure::with_status(message, advice, status))
}

fn show(failure: Failure) -> ExitCode {
    let status = failure.status;
    let wraps = std::io::stderr().is_terminal();
    // Fails only if a hook is already set, which is not the case.
    let _ = miette::set_hook(Box::new(move |_| {
        Box::new(miette::MietteHandlerOpts::new().wrap_lines(wraps).build())
    }));
    eprintln!("{:?}", miette::Report::new(failure));
    ExitCode::from(status)
}

enum Never {}

fn start(mut arguments: Arguments) -> Result<Never, Failure> {
    let is_constant = arguments.level != Level::Functional || arguments.fixed_names;
    descriptors::set_apart(arguments.open_files, is_constant)?;
    sandbox::check(&arguments)?;
    longma_runner::x86_features::announce(arguments.x86_features);
    let checkpoint = simulated::restored(&mut arguments)?;
    let (given, is_option) = program_arguments(&arguments);
    if is_option {
        return Err(no_option(&arguments.program[0]));
    }
    let simulates = arguments.level != Level::Functional;
    let name = arguments.machine.as_deref().or(simulates.then_some(machine::DEFAULT));
    let modelled = name.map(machine::read).transpose()?;
    let attends = !simulates && modelled.as_ref().is_some_and(|machine| attends_devices(&arguments, machine));
    if !simulates {
        refuse_simulation_options(&arguments, attends)?;
    }
    let machine =
        modelled.as_ref().map(|modelled| machine::seen_of(modelled, simulates || attends)).transpose()?;
    let started = Instant::now();
    let reports = report::Reports::wanted(&arguments, arguments.program[0].clone().into(), started);
    let says_more = simulates || attends || arguments.strace || arguments.gdb.is_some() || reports.any();
    let messages = descriptors::messages(says_more)?;
    let say: Sink = {
        let messages = messages.clone();
        Arc::new(move |line| messages.line(line))
    };
    let is_modelled = simulates || attends;
    let mut process = process_config(&arguments, given, is_modelled, &say)?;
    process.capabilities = machine.as_ref().map(|machine| machine.capabilities);
    let execution = Execution {
        translate: !arguments.interpret,
        counting: reports.any(),
        tracing: is_modelled,
        magic: simulates,
        pausable: arguments.roi || attends,
    };
    let (simulated, outcome) = match modelled {
        Some(modelled) if simulates => {
            let (simulated, outcome) = simulated::prepare(&arguments, modelled, checkpoint.as_ref(), &say)?;
            (Some(simulated), Some(outcome))
        }
        Some(modelled) if attends => (Some(simulated::attend_devices(&arguments, modelled, &say)?), None),
        _ => (None, None),
    };
    let debugger = arguments.gdb.map(|port| listen(port, &messages)).transpose()?;
    if let Some(machine) = machine.as_ref().filter(|_| simulated.is_none()) {
        machine::restrict_cores(machine);
    }
    let words = machine.map(|machine| machine.words).unwrap_or_default();
    let translated_bytes = Some(arguments.translation_room << 20);
    let optimizations = arguments.translation;
    let translation_cache = translation_cache(&arguments);
    let config = NodeConfig {
        process,
        words,
        execution,
        optimizations,
        translated_bytes,
        translation_cache,
        simulated,
    };
    let confined = arguments.root.is_some();
    sandbox::enter(&arguments)?;
    let node = match &checkpoint {
        Some(checkpoint) => Node::restore(config, checkpoint),
        None => Node::load(config),
    };
    let mut node = node.map_err(|error| Failure::of_loading(error, confined))?;
    if arguments.measures {
        return measures::print(outcome.as_ref());
    }
    if let Some(debugger) = debugger {
        node.debug(debugger).map_err(|error| Failure::host("serve a debugger", &error))?;
    }
    descriptors::close_those_that_were_closed();
    longma_runner::descriptors::apply_guest_limit();
    node.run(move |ending, report| match &outcome {
        Some(outcome) => {
            if outcome.finish(ending, report, &messages).is_err() {
                // Do not exit with the program's status: the run would appear to have its results.
                std::process::exit(HOST_FAULT_STATUS.into());
            }
        }
        None => reports.print(ending, report, &messages),
    })
}

/// The directory of persistent translations, if given. Sandboxed programs keep none, and a debugger needs different
/// code.
fn translation_cache(arguments: &Arguments) -> Option<PathBuf> {
    let is_usable = !arguments.sandbox && !arguments.interpret && arguments.gdb.is_none();
    // An empty environment variable counts as unset.
    let given = arguments.translation_cache.as_deref().filter(|given| !given.is_empty() && *given != "none");
    // Absolute, because the program may change its working directory.
    given.filter(|_| is_usable).and_then(|folder| std::path::absolute(folder).ok())
}

/// The configuration of the process that runs the program with the arguments `given`; `is_modelled` if a machine or its
/// devices are modelled.
fn process_config(
    arguments: &Arguments,
    given: Vec<OsString>,
    is_modelled: bool,
    say: &Sink,
) -> Result<ProcessConfig, Failure> {
    Ok(ProcessConfig {
        program: arguments.program[0].clone().into(),
        arguments: given,
        environment: environment(arguments)?,
        limits: arguments.kept_limit.clone(),
        root: arguments.root.clone(),
        library_root: restart::directory(arguments.library_root.as_deref(), "--library-root")?,
        tracer: tracer(arguments, say)?,
        diagnostics: Some(say.clone()),
        reexec: restart::command(arguments)?,
        fixed_identity: is_modelled || arguments.fixed_names,
        // A program executed by another program inherits its umask.
        umask: (is_modelled && arguments.open_files.is_none()).then_some(simulated::UMASK),
        stack_offset: arguments.stack_offset,
        ..ProcessConfig::default()
    })
}

/// Whether a program at level `functional` can use the machine's devices. The first process can, also after execve.
/// Under a debugger no process can, because simulated time would not stop with the program.
fn attends_devices(arguments: &Arguments, machine: &Machine) -> bool {
    let is_first = arguments.reporting_process.is_none_or(|first| first == std::process::id());
    is_first && arguments.gdb.is_none() && has_devices(machine, 0)
}

/// Rejects options that have no effect at level `functional`.
fn refuse_simulation_options(arguments: &Arguments, attends_devices: bool) -> Result<(), Failure> {
    // A program started by execve receives the options of its predecessor.
    let is_restart = arguments.reporting_process.is_some();
    let refused = [
        ("--core", arguments.core.is_some()),
        ("--roi", arguments.roi),
        ("--stats-out", arguments.stats_out.is_some()),
        ("--trace", arguments.trace.is_some()),
        ("--checkpoint", arguments.checkpoint.is_some()),
        ("--cpu", arguments.cpu.is_some()),
        ("--wire", !arguments.wire.is_empty() && !attends_devices && !is_restart),
        ("--numa", arguments.numa.is_some()),
    ];
    match refused.iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(Failure::own(
            &format!("{option} is for simulated runs"),
            "add --level cache or --level timing",
        )),
        None => Ok(()),
    }
}

/// The program's argv, and whether its first word looks like an option.
fn program_arguments(arguments: &Arguments) -> (Vec<OsString>, bool) {
    let mut given = arguments.program.clone();
    let raw = crate::binfmt::command_line();
    let before = raw.len().checked_sub(given.len() + 1).and_then(|index| raw.get(index));
    let after_separator = before.is_some_and(|before| before == "--");
    let is_option = !after_separator && given[0].as_encoded_bytes().starts_with(b"-");
    // In `PROGRAM -- ARGS`, drop the `--`. If a `--` precedes the program, a second one belongs to the program.
    if !after_separator && given.get(1).is_some_and(|second| second == "--") {
        given.remove(1);
    }
    if let Some(name) = &arguments.argv0 {
        given[0].clone_from(name);
    }
    (given, is_option)
}

fn no_option(name: &OsString) -> Failure {
    Failure::own(
        &format!("there is no option {}", name.display()),
        "`longma run --help` lists the options; put -- before a program whose name begins with a hyphen",
    )
}

/// The program's environment as `NAME=VALUE` strings.
fn environment(arguments: &Arguments) -> Result<Vec<OsString>, Failure> {
    if let Some(descriptor) = arguments.environment_from {
        return restart::environment(descriptor);
    }
    let changed = |name: &OsString| {
        arguments.unset_env.contains(name) || arguments.env.iter().any(|(set, _)| set == name)
    };
    let kept = std::env::vars_os().filter(|(name, _)| !changed(name));
    // If a variable is set several times, the last one counts.
    let set = arguments
        .env
        .iter()
        .enumerate()
        .filter(|(index, (name, _))| !arguments.env[index + 1..].iter().any(|(later, _)| later == name));
    Ok(kept
        .chain(set.map(|(_, variable)| variable.clone()))
        .map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            name
        })
        .collect())
}

/// The output for system calls.
fn tracer(arguments: &Arguments, say: &Sink) -> Result<Option<Sink>, Failure> {
    let Some(path) = &arguments.strace_out else { return Ok(arguments.strace.then(|| say.clone())) };
    let is_restart = arguments.reporting_process.is_some();
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|file| if is_restart { Ok(file) } else { file.set_len(0).map(|()| file) })
        .and_then(descriptors::Messages::to)
        .map_err(|error| Failure::host(&format!("write to {}", path.display()), &error))?;
    Ok(Some(Arc::new(move |line| file.line(line))))
}

fn listen(port: u16, messages: &descriptors::Messages) -> Result<Debugger, Failure> {
    let debugger = Debugger::listen(port).map_err(|error| {
        Failure::own(
            &format!("cannot listen on port {port} of 127.0.0.1: {error}"),
            "give another port, or 0 for any that is free",
        )
    })?;
    let address = debugger.address().map_err(|error| Failure::host("get the debugger's port", &error))?;
    messages.line(&format!("longma: waiting for a debugger: target remote {address}"));
    Ok(debugger)
}

fn absolute(path: &Path, option: &str) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|error| {
        let message = format!("cannot use {} as {option}: {error}", path.display());
        Failure::own(&message, "give a directory that exists")
    })
}
