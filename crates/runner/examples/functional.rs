//! Runs a program functionally, for experiments and tests. Use `longma run` for everything else.
//!
//! ```text
//! functional [--x86-features NAME] [--translation OPTIMIZATIONS] [--interpret] [--trace] [--counts FILE]
//!     PROGRAM [ARGUMENT]...
//! ```
//!
//! `--counts` writes the translated code of a program that is not for LoongArch, with execution counts.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use longma_runner::{
    ConfigurationWords, Execution, Node, NodeConfig, ProcessConfig, Report, descriptors,
    optimizations::Optimizations, profile, x86_features,
};

fn main() -> ExitCode {
    let mut given = std::env::args_os().skip(1).peekable();
    let report = |line: &str| drop(writeln!(std::io::stderr(), "functional: {line}"));
    if given.next_if(|option| option == "--x86-features").is_some() {
        match x86_features::Features::named(&given.next().unwrap_or_default().to_string_lossy()) {
            Ok(features) => x86_features::announce(features),
            Err(error) => {
                report(&error);
                return ExitCode::from(125);
            }
        }
    }
    let mut optimizations = Optimizations::default();
    if given.next_if(|option| option == "--translation").is_some() {
        match given.next().unwrap_or_default().to_string_lossy().parse() {
            Ok(named) => optimizations = named,
            Err(error) => {
                report(&error.to_string());
                return ExitCode::from(125);
            }
        }
    }
    let interprets = given.next_if(|option| option == "--interpret").is_some();
    let traces = given.next_if(|option| option == "--trace").is_some();
    let counts = given.next_if(|option| option == "--counts").and_then(|_| given.next());
    let arguments: Vec<OsString> = given.collect();
    let Some(program) = arguments.first().map(PathBuf::from) else { return ExitCode::from(125) };
    if descriptors::begin(None, false).is_err() {
        return ExitCode::from(125);
    }
    let environment = std::env::vars_os().map(|(mut name, value)| {
        name.push("=");
        name.push(value);
        name
    });
    let process = ProcessConfig {
        program,
        arguments,
        environment: environment.collect(),
        tracer: traces.then(|| Arc::new(report) as _),
        diagnostics: Some(Arc::new(report)),
        ..ProcessConfig::default()
    };
    let config = NodeConfig {
        process,
        words: ConfigurationWords::default(),
        execution: Execution { translate: !interprets, counting: counts.is_some(), ..Execution::default() },
        optimizations,
        translated_bytes: None,
        translation_cache: std::env::var_os("LONGMA_TRANSLATION_CACHE").map(Into::into),
        stack_period: None,
        simulated: None,
    };
    match Node::load(config) {
        Ok(node) => {
            descriptors::apply_guest_limit();
            let process = std::process::id();
            node.run(move |_, report| {
                if let Some(counts) = counts.as_ref().filter(|_| process == std::process::id()) {
                    let _ = write_counts(counts.as_ref(), report);
                }
            })
        }
        Err(error) => {
            report(&error.to_string());
            ExitCode::from(126)
        }
    }
}

fn write_counts(path: &Path, report: &Report) -> std::io::Result<()> {
    let executed = report.code().executed();
    let mut writer = std::io::BufWriter::new(std::fs::File::create(path)?);
    let source = report.source(&executed).map_or(0, |(_, source)| source);
    writeln!(writer, "{} {source}", profile::instructions(&executed))?;
    for unit in report.listing(&executed) {
        writeln!(writer, "unit {}", unit.executed)?;
        for line in &unit.lines {
            writeln!(
                writer,
                "{} {:x} {} | {} | {}",
                line.runs,
                line.pc,
                line.executed(),
                line.kind,
                line.text
            )?;
            for word in &line.words {
                writeln!(writer, "    {} {}", word.runs, word.text)?;
            }
        }
    }
    Ok(())
}
