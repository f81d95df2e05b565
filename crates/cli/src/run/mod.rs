//! `longma run`: a LoongArch64 Linux program, its input and output passed through.
//! Not a shell: the program is a path, not looked up in PATH.
//! Source: exit statuses 125, 126 and 127 as timeout(1) and the shells use them.

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
use longma_runner::parts::Parts;
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
    /// Print what the run cost the host, on standard error: instructions, translated code, time. For level `functional`.
    #[arg(long)]
    stats: bool,

    /// Print the functions that executed most instructions, on standard error.
    #[arg(long)]
    profile: bool,

    /// Write what every function executed to a file, as JSON.
    #[arg(long, value_name = "FILE")]
    profile_out: Option<PathBuf>,

    /// How --stats and --profile print.
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    /// Print what such a run would measure, each with its unit, as JSON, and run nothing.
    #[arg(long)]
    measures: bool,

    /// Wait for a debugger on this port of 127.0.0.1 (0: any free one) and stop before the first instruction.
    #[arg(long, value_name = "PORT")]
    gdb: Option<u16>,

    /// Print every system call, on standard error.
    #[arg(long)]
    strace: bool,

    /// Print every system call to a file instead.
    #[arg(long, value_name = "FILE")]
    strace_out: Option<PathBuf>,

    /// The machine: a name (see `longma machine list`) or a machine file. It gives the core's features and the number of cores.
    /// Without it: LA464 cores, as many as the host has processors.
    #[arg(long, value_name = "NAME|FILE")]
    machine: Option<String>,

    /// How much is modelled.
    #[arg(long, value_enum, default_value_t)]
    level: Level,

    /// How cores are timed; without it, as the machine file says. For level `timing`.
    #[arg(long, value_enum)]
    core: Option<simulated::CoreModel>,

    /// Count only the program's region of interest, which it marks with guests/include/longma.h.
    #[arg(long)]
    roi: bool,

    /// Run the last so many million instructions before the region of interest through the models without counting them, so that it
    /// does not begin with cold caches. 0: fast, and cold. `all`: everything before it goes through the caches while it runs, for
    /// programs with devices.
    #[arg(long, value_name = "MILLIONS|all", requires = "roi", default_value_t = simulated::Warmed::default())]
    warm: simulated::Warmed,

    /// Write all that was counted to a file, as JSON, and the machine with every default beside it.
    #[arg(long, value_name = "FILE")]
    stats_out: Option<PathBuf>,

    /// Write a trace for Perfetto (ui.perfetto.dev): threads on cores, marks, IPC, bandwidth.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Save the process to a file where its region of interest begins, or where it asks for it, and go on.
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,

    /// Go on with a process that --checkpoint saved, on this or another machine, instead of starting a program.
    #[arg(long, value_name = "FILE", conflicts_with = "program")]
    restore: Option<PathBuf>,

    /// Do not print the summary of a simulated run.
    #[arg(long)]
    quiet: bool,

    /// Where pages go: first-touch (if nothing is said), bind:NODES, interleave:NODES or preferred:NODE.
    #[arg(long, value_name = "POLICY")]
    numa: Option<String>,

    /// The cores that the program may use, as 0,2-3.
    #[arg(long, value_name = "CORES")]
    cpu: Option<String>,

    /// What is at the other end of an Ethernet device's wire: DEVICE,loop or DEVICE,tcp,KEY=VALUE,... May be repeated; the book's
    /// chapter on devices has the keys.
    #[arg(long, value_name = "DEVICE,WHAT")]
    wire: Vec<String>,

    /// The seed of all that is random in a simulated run.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// The directory that the program sees as `/`.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// Give up what the program and this command do not need before the program begins, so that a hole in this command is not a hole in
    /// the host: the host's files are read-only and but for DIR mostly unreadable, processes outside get no signals, the host's own
    /// system calls are filtered. Refused where the kernel lacks a part (Linux 6.12 has all). The network stays. Without it, DIR is
    /// all that the program can name, but this command keeps its user's power.
    #[arg(long, requires = "root")]
    sandbox: bool,

    /// It is in the sandbox already: a program of the sandbox has executed another.
    #[arg(long, hide = true, requires = "sandbox")]
    sandboxed: bool,

    /// Where to look for the dynamic linker and the libraries of a program if they are not at their own paths.
    #[arg(short = 'L', long, value_name = "DIR", env = "LONGMA_LIBRARY_ROOT")]
    library_root: Option<PathBuf>,

    /// Set a variable in the program's environment, which is otherwise this command's. May be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<(OsString, OsString)>,

    /// Take a variable out of the program's environment. May be repeated.
    #[arg(long, value_name = "NAME")]
    unset_env: Vec<OsString>,

    /// The program's own name, if it is to be another than its path.
    #[arg(long, value_name = "NAME")]
    argv0: Option<OsString>,

    /// Show the program the same names of itself, its folders, its user and its system, and give it the same random bytes at its
    /// start, wherever and by whomever it is run. Simulated runs always do.
    #[arg(long)]
    fixed_names: bool,

    /// Begin the program's stack so many bytes lower, a multiple of 16: what is measured depends on where things lie.
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = parse_stack_offset)]
    stack_offset: u64,

    /// What `cpuid` announces to a program for x86-64: `sse2`, or all there is, up to AVX2, as `avx2`.
    #[arg(long, value_name = "FEATURES", value_parser = Features::named, default_value = Features::default().name())]
    x86_features: Features,

    /// Which parts translation has of programs for other architectures, to measure what each is worth: names with commas between them,
    /// `no-` before what is left out (`no-fusion,lbt`), or first `none` for none but those that follow. The book's chapter on translation
    /// says what they are.
    #[arg(long, value_name = "PARTS", default_value_t, hide_default_value = true)]
    pub translation: Parts,

    /// The room for the code that a program for another architecture becomes, in MiB, from 2 to 120. When it is full, it is used again.
    #[arg(long, value_name = "MIB", default_value_t = MOST_ROOM_MIB, value_parser = clap::value_parser!(u64).range(2..=MOST_ROOM_MIB))]
    translation_room: u64,

    /// Keep translations of programs for other architectures in this folder between runs, so that they start sooner; `none` keeps
    /// nothing. Experimental: a program can go wrong when it loads other libraries than it did in an earlier run. [default: none]
    #[arg(long, value_name = "DIR", env = "LONGMA_TRANSLATION_CACHE")]
    translation_cache: Option<OsString>,

    /// Interpret everything: slower, and every instruction by its reference semantics.
    #[arg(long)]
    interpret: bool,

    /// The descriptor of a file that holds the environment.
    #[arg(long, hide = true)]
    environment_from: Option<i32>,

    /// The program's limit of open files.
    #[arg(long, hide = true, value_parser = descriptors::parse_limit)]
    open_files: Option<Limit>,

    /// A limit that the program before has set and the host does not enforce.
    #[arg(long, hide = true, value_name = "RESOURCE:SOFT:HARD", value_parser = descriptors::parse_kept_limit)]
    kept_limit: Vec<KeptLimit>,

    /// The process that a running program was started in; it alone prints reports.
    #[arg(long, hide = true)]
    reporting_process: Option<u32>,

    /// What `longma translate` prints.
    #[arg(skip)]
    pub listing: Option<Options>,

    /// The program, then its arguments; `--` may stand between. guests:NAME is a program that comes with longma (`longma guest list`).
    #[arg(
        required_unless_present = "restore",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_names = ["PROGRAM", "ARGS"]
    )]
    program: Vec<OsString>,
}

impl Arguments {
    /// The program as the user names it; `None` if another program has executed it, or a checkpoint holds it.
    pub fn named_program(&mut self) -> Option<&mut OsString> {
        let is_first = self.reporting_process.is_none();
        self.program.first_mut().filter(|_| is_first)
    }

    /// Whether the program sees a directory of its own as `/`.
    pub fn has_root(&self) -> bool {
        self.root.is_some()
    }
}

/// How reports are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs: one object on one line.
    Json,
}

/// How much is modelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Level {
    /// What the program computes; no time.
    #[default]
    Functional,
    /// Caches, TLBs and coherence counted; an instruction takes a cycle.
    Cache,
    /// Cycles.
    Timing,
}

/// More would leave a program too little of the 8 MiB.
const MOST_STACK_OFFSET: u64 = 1 << 20;

/// The room that there is for translated code.
const MOST_ROOM_MIB: u64 = 120;

fn parse_stack_offset(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(bytes) if bytes % 16 == 0 && bytes <= MOST_STACK_OFFSET => Ok(bytes),
        _ => Err(format!("give a multiple of 16 up to {MOST_STACK_OFFSET}")),
    }
}

fn parse_variable(text: &str) -> Result<(OsString, OsString), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("write it as NAME=VALUE".into()),
    }
}

/// Runs the program and ends as it ends; returns only if it could not be started.
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
    // It fails only if somebody has set one before, and nobody has.
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
    let parts = arguments.translation;
    let translation_cache = translation_cache(&arguments);
    let config =
        NodeConfig { process, words, execution, parts, translated_bytes, translation_cache, simulated };
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
    longma_runner::descriptors::hand_over();
    node.run(move |ending, report| match &outcome {
        Some(outcome) => {
            if outcome.finish(ending, report, &messages).is_err() {
                // The program's status would pass for a run whose results are there.
                std::process::exit(HOST_FAULT_STATUS.into());
            }
        }
        None => reports.print(ending, report, &messages),
    })
}

/// The folder for persistent translations, if the user named one. A sandboxed program keeps none, and a debugger needs other code.
fn translation_cache(arguments: &Arguments) -> Option<PathBuf> {
    let is_usable = !arguments.sandbox && !arguments.interpret && arguments.gdb.is_none();
    // An empty environment variable counts as unset.
    let given = arguments.translation_cache.as_deref().filter(|given| !given.is_empty() && *given != "none");
    // Absolute, because the program may change its working directory.
    given.filter(|_| is_usable).and_then(|folder| std::path::absolute(folder).ok())
}

/// The process that runs the program with the arguments `given`; `is_modelled` if a machine or its devices are modelled.
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
        constant_surroundings: is_modelled || arguments.fixed_names,
        // One that another program has executed goes on with that one's.
        umask: (is_modelled && arguments.open_files.is_none()).then_some(simulated::UMASK),
        stack_offset: arguments.stack_offset,
        ..ProcessConfig::default()
    })
}

/// Whether a program at level `functional` has the machine's devices: the first process has, and what it executes in its own place.
/// Under a debugger nobody has, for time would not stand still while it looks.
fn attends_devices(arguments: &Arguments, machine: &Machine) -> bool {
    let is_first = arguments.reporting_process.is_none_or(|first| first == std::process::id());
    is_first && arguments.gdb.is_none() && has_devices(machine, 0)
}

/// Options of simulated runs mean nothing at level `functional`; an option that does nothing would mislead.
fn refuse_simulation_options(arguments: &Arguments, attends_devices: bool) -> Result<(), Failure> {
    // A child that executes a program has been given its parent's options.
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

/// The program's own name and what follows, and whether the name was meant as an option.
fn program_arguments(arguments: &Arguments) -> (Vec<OsString>, bool) {
    let mut given = arguments.program.clone();
    let raw = crate::binfmt::command_line();
    let before = raw.len().checked_sub(given.len() + 1).and_then(|index| raw.get(index));
    let after_separator = before.is_some_and(|before| before == "--");
    let is_option = !after_separator && given[0].as_encoded_bytes().starts_with(b"-");
    // `PROGRAM -- ARGS`, unless a `--` stood before the program already: then this one is the program's.
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

/// `NAME=VALUE` of every variable of the program.
fn environment(arguments: &Arguments) -> Result<Vec<OsString>, Failure> {
    if let Some(descriptor) = arguments.environment_from {
        return restart::environment(descriptor);
    }
    let changed = |name: &OsString| {
        arguments.unset_env.contains(name) || arguments.env.iter().any(|(set, _)| set == name)
    };
    let kept = std::env::vars_os().filter(|(name, _)| !changed(name));
    // The last of several counts.
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

/// Where system calls are printed to.
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
    let address = debugger.address().map_err(|error| Failure::host("learn the debugger's port", &error))?;
    messages.line(&format!("longma: waiting for a debugger: target remote {address}"));
    Ok(debugger)
}

fn absolute(path: &Path, option: &str) -> Result<PathBuf, Failure> {
    path.canonicalize().map_err(|error| {
        let message = format!("cannot use {} as {option}: {error}", path.display());
        Failure::own(&message, "give a directory that exists")
    })
}
