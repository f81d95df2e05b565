//! The plan of a run: the validated arguments of `longma run`. Making a plan reads files but writes none.

use std::{ffi::OsString, path::PathBuf, time::Instant};

use longma_runner::{
    Execution, ObservedMachine, ProcessConfig, checkpoint::Checkpoint, devices::has_devices,
    optimizations::Optimizations, x86_features::Features,
};
use longma_topology::Machine;

use super::stacks::Stacks;
use super::{
    arguments::{Arguments, absolute},
    failure::Failure,
    machine, outputs, report, restart, sandbox, simulated,
};

/// A run whose arguments are valid.
pub struct Plan {
    /// The program's process, without the outputs for messages and system calls.
    pub process: ProcessConfig,
    pub execution: Execution,
    pub x86_features: Features,
    pub translation: TranslationPlan,
    /// The part of the machine that the program sees; `None` for the default.
    pub machine: Option<ObservedMachine>,
    pub mode: Mode,
    /// The checkpoint to continue from.
    pub checkpoint: Option<Checkpoint>,
    pub reports: report::Reports,
    pub trace: SystemCallTrace,
    /// The samples of call stacks.
    pub stacks: Option<Stacks>,
    /// The port on which to wait for a debugger.
    pub debugger_port: Option<u16>,
    pub sandbox: Option<sandbox::Sandbox>,
    /// Print the metrics of the run, without running the program.
    pub measures: bool,
}

/// Settings of the translation of programs of other architectures.
pub struct TranslationPlan {
    pub optimizations: Optimizations,
    /// Size of the area for translated code.
    pub bytes: u64,
    /// The directory of persistent translations.
    pub cache: Option<PathBuf>,
}

/// The modelled part of the machine.
pub enum Mode {
    /// No part.
    Functional,
    /// The devices of the machine, which need simulated time.
    Devices(simulated::DeviceRun),
    /// Cores, caches, memory and devices.
    Simulated(Box<simulated::SimulatedRun>),
}

/// The destination of printed system calls.
pub struct SystemCallTrace {
    /// Among the command's messages, if there is no file.
    pub among_messages: bool,
    pub file: Option<PathBuf>,
    /// Append to the file: a program executed this one.
    pub appends: bool,
}

impl Plan {
    /// Validates the arguments.
    ///
    /// # Errors
    /// An option has an invalid value or does not fit the others, or a file that it names cannot be read.
    pub fn of(mut arguments: Arguments) -> Result<Self, Failure> {
        outputs::refuse_shared(&arguments)?;
        let sandbox = sandbox::requested(&arguments)?;
        let checkpoint = simulated::restored(&mut arguments)?;
        let argv = program_arguments(&arguments)?;
        let simulates = arguments.simulates();
        let name = arguments.machine.as_deref().or(simulates.then_some(machine::DEFAULT));
        if name.is_none() && !arguments.set.is_empty() {
            return Err(Failure::own("--set needs a machine to change", "add --machine or --level timing"));
        }
        let modelled = name.map(|name| machine::read(name, &arguments.set)).transpose()?;
        let attends =
            !simulates && modelled.as_ref().is_some_and(|machine| can_use_devices(&arguments, machine));
        if !simulates {
            refuse_simulation_options(&arguments, attends)?;
        }
        let is_modelled = simulates || attends;
        let machine =
            modelled.as_ref().map(|modelled| machine::observed_machine(modelled, is_modelled)).transpose()?;
        let reports = report::Reports::wanted(&arguments, Instant::now(), attends)?;
        let mut process = process_config(&arguments, argv, is_modelled)?;
        process.capabilities = machine.as_ref().map(|machine| machine.capabilities);
        let x86_features = arguments
            .x86_features
            .unwrap_or_else(|| Features::of_cores(machine.as_ref().is_none_or(ObservedMachine::has_lasx)));
        process.x86_flags = x86_features.flags();
        let mode = match modelled {
            Some(modelled) if simulates => {
                Mode::Simulated(Box::new(simulated::SimulatedRun::of(&arguments, modelled)?))
            }
            Some(modelled) if attends => Mode::Devices(simulated::DeviceRun::of(&arguments, modelled)?),
            _ => Mode::Functional,
        };
        let execution = Execution {
            translate: !arguments.interpret,
            counting: reports.any(),
            tracing: is_modelled,
            magic: simulates,
            pausable: arguments.roi || arguments.sample.is_some() || attends,
            ..Execution::default()
        };
        let stacks = Stacks::wanted(&arguments);
        let translation = TranslationPlan {
            optimizations: arguments.translation,
            bytes: arguments.translation_room << 20,
            cache: arguments.translation_directory(),
        };
        let trace = SystemCallTrace {
            among_messages: arguments.strace,
            appends: arguments.is_restart(),
            file: arguments.strace_out,
        };
        Ok(Self {
            process,
            execution,
            x86_features,
            translation,
            machine,
            mode,
            checkpoint,
            reports,
            trace,
            stacks,
            debugger_port: arguments.gdb,
            sandbox,
            measures: arguments.measures,
        })
    }

    /// Whether the command may print messages while the program runs.
    pub fn has_messages(&self) -> bool {
        !matches!(self.mode, Mode::Functional)
            || self.trace.among_messages
            || self.debugger_port.is_some()
            || self.reports.any()
    }
}

/// The process that runs the program with the arguments `argv`; `is_modelled` if a machine or its devices are modelled.
fn process_config(
    arguments: &Arguments,
    argv: Vec<OsString>,
    is_modelled: bool,
) -> Result<ProcessConfig, Failure> {
    let library_root = arguments.library_root.as_deref();
    Ok(ProcessConfig {
        program: arguments.program[0].clone().into(),
        arguments: argv,
        environment: environment(arguments)?,
        limits: arguments.kept_limit.clone(),
        root: arguments.root.clone(),
        library_root: library_root.map(|path| absolute(path, "--library-root")).transpose()?,
        reexec: restart::command(arguments)?,
        fixed_identity: is_modelled || arguments.fixed_names,
        named_after: arguments.named_after.clone().zip(arguments.named_in.clone()),
        // A program executed by another program inherits its umask.
        umask: (is_modelled && arguments.open_files.is_none()).then_some(simulated::UMASK),
        stack_offset: arguments.stack_offset,
        ..ProcessConfig::default()
    })
}

/// Whether a program at level `functional` can use the machine's devices. The first process can, also after execve.
/// Under a debugger no process can, because simulated time would not stop with the program.
fn can_use_devices(arguments: &Arguments, machine: &Machine) -> bool {
    let is_first = arguments.reporting_process.is_none_or(|first| first == std::process::id());
    is_first && arguments.gdb.is_none() && has_devices(machine, 0)
}

/// Rejects options that have no effect at level `functional`.
fn refuse_simulation_options(arguments: &Arguments, can_use_devices: bool) -> Result<(), Failure> {
    let refused = [
        ("--core", arguments.core.is_some()),
        ("--roi", arguments.roi),
        ("--sample", arguments.sample.is_some()),
        ("--max-instructions", arguments.max_instructions.is_some()),
        ("--max-time", arguments.max_time.is_some()),
        ("--stats-out", arguments.stats_out.is_some()),
        ("--report", arguments.report.is_some()),
        ("--annotate", arguments.annotate.is_some()),
        ("--trace", arguments.trace.is_some()),
        ("--champsim", arguments.champsim.is_some()),
        ("--checkpoint", arguments.checkpoint.is_some()),
        ("--cpu", arguments.cpu.is_some()),
        ("--wire", !arguments.wire.is_empty() && !can_use_devices && !arguments.is_restart()),
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

/// The program's argv.
///
/// # Errors
/// The program's name looks like an option.
fn program_arguments(arguments: &Arguments) -> Result<Vec<OsString>, Failure> {
    let mut given = arguments.program.clone();
    let raw = crate::binfmt::command_line();
    let before = raw.len().checked_sub(given.len() + 1).and_then(|index| raw.get(index));
    let after_separator = before.is_some_and(|before| before == "--");
    if !after_separator && given[0].as_encoded_bytes().starts_with(b"-") {
        return Err(no_option(&given[0]));
    }
    // In `PROGRAM -- ARGS`, drop the `--`. If a `--` precedes the program, a second one belongs to the program.
    if !after_separator && given.get(1).is_some_and(|second| second == "--") {
        given.remove(1);
    }
    if let Some(name) = &arguments.argv0 {
        given[0].clone_from(name);
    }
    Ok(given)
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
