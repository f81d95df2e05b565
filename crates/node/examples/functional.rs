//! Runs a program at level functional, without the command line's conveniences: for trying things out.
//! Not the product: that is `longma run`.
//! Source: our own.
//!
//! `functional [--interpret] [--trace] PROGRAM [ARGUMENT]...`

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use longma_node::{ConfigurationWords, Execution, Node, NodeConfig, ProcessConfig, descriptors};

fn main() -> ExitCode {
    let mut given = std::env::args_os().skip(1).peekable();
    let say = |line: &str| drop(writeln!(std::io::stderr(), "functional: {line}"));
    let interprets = given.next_if(|option| option == "--interpret").is_some();
    let traces = given.next_if(|option| option == "--trace").is_some();
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
        tracer: traces.then(|| Arc::new(say) as _),
        diagnostics: Some(Arc::new(say)),
        ..ProcessConfig::default()
    };
    let config = NodeConfig {
        process,
        words: ConfigurationWords::default(),
        execution: Execution { translate: !interprets, ..Execution::default() },
        simulated: None,
    };
    match Node::load(config) {
        Ok(node) => {
            descriptors::hand_over();
            node.run(|_, _| ())
        }
        Err(error) => {
            say(&error.to_string());
            ExitCode::from(126)
        }
    }
}
