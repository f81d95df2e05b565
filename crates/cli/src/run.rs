//! `longma run`: a LoongArch64 Linux program, its input and output passed through.
//! Not a shell: the program is a path, not looked up in PATH.
//! Source: our own.

use std::{
    error::Error,
    ffi::OsString,
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use longma_node::{ConfigurationWords, Ending, Execution, Node, NodeConfig, ProcessConfig, SharedCode};

/// Arguments of `longma run`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print what the run cost, on standard error.
    #[arg(long)]
    stats: bool,

    /// Print every system call, on standard error.
    #[arg(long)]
    strace: bool,

    /// The directory that the program sees as `/`.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// Where to look for the interpreter and the libraries of a dynamic program if they are not at their own paths.
    #[arg(short = 'L', long, value_name = "DIR")]
    library_root: Option<PathBuf>,

    /// Interpret everything: slower, and every instruction by its reference semantics.
    #[arg(long)]
    interpret: bool,

    /// The program's own name, if it is to be another than its path.
    #[arg(long, value_name = "NAME")]
    argv0: Option<OsString>,

    /// The program, then its arguments; `--` may stand between.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM [ARGS]"
    )]
    program: Vec<OsString>,
}

/// Runs the program and ends as it ends.
pub fn run(arguments: Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let mut program = arguments.program.into_iter();
    let path = PathBuf::from(program.next().expect("clap demands the program"));
    let mut rest: Vec<OsString> = program.collect();
    if rest.first().is_some_and(|first| first == "--") {
        rest.remove(0);
    }
    let name = arguments.argv0.unwrap_or_else(|| path.clone().into_os_string());
    let print: longma_node::Sink = Arc::new(|line| eprintln!("{line}"));
    let process = ProcessConfig {
        program: path,
        arguments: std::iter::once(name).chain(rest).collect(),
        environment: std::env::vars_os()
            .map(|(mut key, value)| {
                key.push("=");
                key.push(value);
                key
            })
            .collect(),
        root: arguments.root,
        library_root: arguments.library_root,
        tracer: arguments.strace.then(|| print.clone()),
        diagnostics: Some(print),
        ..ProcessConfig::default()
    };
    let config = NodeConfig {
        process,
        words: ConfigurationWords::default(),
        execution: Execution { translate: !arguments.interpret, counting: arguments.stats },
    };
    let started = Instant::now();
    let node = Node::load(config)?;
    let stats = arguments.stats;
    node.run(move |ending, code| {
        if stats {
            print_stats(ending, code, started);
        }
    })
}

fn print_stats(ending: Ending, code: &SharedCode, started: Instant) {
    let counts = code.counts();
    let instructions: u64 = code.executed().iter().map(|e| e.runs * u64::from(e.instructions)).sum();
    let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    eprintln!("ending              {ending:?}");
    eprintln!("wall time           {:.3} s", started.elapsed().as_secs_f64());
    eprintln!("instructions        {instructions}");
    eprintln!("blocks decoded      {}", read(&counts.blocks));
    eprintln!("regions translated  {}", read(&counts.regions));
    eprintln!("interpreted alone   {}", read(&counts.interpreted));
    eprintln!("entries             {}", read(&counts.entries));
}
