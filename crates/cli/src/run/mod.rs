//! `longma run`: runs a Linux program for LoongArch64, x86-64, AArch64 or MIPS64, optionally on a modelled machine. The
//! program is a path; PATH is not searched.
//!
//! The arguments as given are validated ([`Plan`]), then the process is set up and run.
//! Source: exit statuses 125, 126 and 127 as used by timeout(1) and shells.

pub mod arguments;
mod descriptors;
mod failure;
pub mod listing;
pub mod machine;
mod measures;
pub mod outputs;
mod placement;
mod plan;
mod report;
mod restart;
mod results;
mod sandbox;
mod simulated;
mod stacks;
mod wires;

use std::{fs::OpenOptions, io::IsTerminal, process::ExitCode, sync::Arc};

use longma_locks::IgnorePoison;
use longma_runner::{Callbacks, Debugger, Node, NodeConfig, Sink};

use arguments::Level;
pub use arguments::{Arguments, CoreModel};
use failure::Failure;
pub use failure::{NOT_FOUND, OWN_FAILURE};
use plan::{Mode, Plan, SystemCallTrace};
pub use simulated::write_result;

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

fn start(arguments: Arguments) -> Result<Never, Failure> {
    let is_constant = arguments.level != Level::Functional || arguments.fixed_names;
    // Separate the emulator's descriptors from the program's before any file is opened.
    descriptors::separate(arguments.open_files, is_constant)?;
    perform(Plan::of(arguments)?)
}

/// Sets the process up and runs it to its end.
fn perform(plan: Plan) -> Result<Never, Failure> {
    longma_runner::x86_features::announce(plan.x86_features);
    let messages = descriptors::messages(plan.has_messages())?;
    let say: Sink = {
        let messages = messages.clone();
        Arc::new(move |line| messages.line(line))
    };
    let Plan { mut process, checkpoint, reports, translation, .. } = plan;
    let confined = process.root.is_some();
    process.tracer = tracer(plan.trace, &say)?;
    process.diagnostics = Some(say.clone());
    let (simulated, outcome, models) = match plan.mode {
        Mode::Functional => (None, None, None),
        Mode::Devices(devices) => {
            let (simulated, models) = devices.prepare(&say)?;
            (Some(simulated), None, Some(models))
        }
        Mode::Simulated(run) => {
            let (simulated, outcome) = run.prepare(&process, checkpoint.as_ref(), &say)?;
            let models = outcome.simulation();
            (Some(simulated), Some(outcome), Some(models))
        }
    };
    let debugger = plan.debugger_port.map(|port| listen(port, &messages)).transpose()?;
    if let Some(machine) = plan.machine.as_ref().filter(|_| simulated.is_none()) {
        machine::restrict_cores(machine);
    }
    let config = NodeConfig {
        process,
        words: plan.machine.map(|machine| machine.words).unwrap_or_default(),
        execution: plan.execution,
        optimizations: translation.optimizations,
        translated_bytes: Some(translation.bytes),
        translation_cache: translation.cache,
        stack_period: plan.stacks.as_ref().map(|stacks| stacks.period),
        simulated,
    };
    if let Some(sandbox) = plan.sandbox {
        sandbox.enter()?;
    }
    let node = match &checkpoint {
        Some(checkpoint) => Node::restore(config, checkpoint),
        None => Node::load(config),
    };
    let mut node = node.map_err(|error| Failure::of_loading(error, confined))?;
    if plan.measures {
        return measures::print(outcome);
    }
    if let Some(debugger) = debugger {
        node.debug(debugger).map_err(|error| Failure::host("serve a debugger", &error))?;
    }
    descriptors::close_initially_closed();
    longma_runner::descriptors::apply_guest_limit();
    let is_simulated = outcome.is_some() || models.is_some();
    let reports = Arc::new(reports);
    let own = std::process::id();
    let (executing, to_user) = (reports.clone(), messages.clone());
    node.run_with(Callbacks {
        finish: Box::new(move |ending, report| {
            let finished = match &outcome {
                Some(outcome) => outcome.finish(ending, report, &messages),
                None => reports.print(ending, report, &messages),
            };
            let finished = finished.and_then(|()| match &plan.stacks {
                Some(stacks) => stacks.write(report, is_simulated, &messages),
                None => Ok(()),
            });
            if let Err(failed) = finished {
                // Do not exit with the program's status: the run would appear to have its results.
                std::process::exit(failed.0.into());
            }
        }),
        executes: Box::new(move |report, next| {
            // Forked children run without the models.
            if let Some(models) = models.as_ref().filter(|_| std::process::id() == own) {
                models.lock().ignore_poison().begin_program(report);
            }
            executing.execute(report, next, &to_user)
        }),
    })
}

/// The output for system calls.
fn tracer(trace: SystemCallTrace, say: &Sink) -> Result<Option<Sink>, Failure> {
    let Some(path) = trace.file else { return Ok(trace.among_messages.then(|| say.clone())) };
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|file| {
            // Truncation fails for devices and pipes.
            let is_emptied = !trace.appends && file.metadata()?.is_file();
            if is_emptied { file.set_len(0).map(|()| file) } else { Ok(file) }
        })
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
