//! `longma machine`: lists, shows, checks, discovers and measures machines, with `longma-topology`.

use clap::{Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use longma_command_line::output::{Outcome, columns, has_colour, print, print_json, table};
use longma_lab::{EditError, MachineEdit, open_machine};
use longma_runner::simulation::refusals;
use longma_topology::{
    BUILTIN, Checked, Detail, Machine, MeasurementResults, OpenError, Sysfs, Thoroughness, check,
    differences, discover, draw_svg, draw_text, measure,
};
use serde_json::{Value, json};
use std::error::Error;
use std::fmt::Write as _;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// `longma machine ...`
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: MachineCommand,
}

#[derive(Subcommand)]
enum MachineCommand {
    /// List the built-in machines.
    List {
        /// Output format.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// Draw a machine.
    Show {
        /// Name of a machine (see `longma machine list`) or path of a machine file.
        machine: String,
        /// Give a key of the machine another value, such as caches.l2.size=512KiB. May be repeated.
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<MachineEdit>,
        /// Write the drawing to this file as SVG instead of printing it.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        /// Draw every part, however tall the drawing becomes.
        #[arg(long)]
        every: bool,
        /// Width of the drawing in columns [default: the terminal's].
        #[arg(long, value_parser = clap::value_parser!(u16).range(40..=1000))]
        width: Option<u16>,
        /// List the sources of the numbers.
        #[arg(long)]
        sources: bool,
        /// Print the machine file with its comments, to start your own from.
        #[arg(long, conflicts_with_all = ["svg", "every", "width", "sources", "format", "set"])]
        toml: bool,
        /// Output format: a drawing, or all parameters and the layout as JSON.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// List the keys in which two machines differ.
    Diff {
        /// Name or path of a machine.
        first: String,
        /// Name or path of another machine.
        second: String,
        /// Output format.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// Check machine files and report all problems.
    Check {
        /// Machine files or names of built-in machines; `-` reads standard input.
        #[arg(required = true)]
        files: Vec<String>,
        /// Output format.
        #[arg(long, value_enum, default_value = "table")]
        format: Format,
    },
    /// Describe this host as a machine file.
    Discover {
        /// Write the machine file here instead of to standard output.
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Read `sys` and `proc` below this directory, as recorded on another host.
        #[arg(long, value_name = "FOLDER")]
        root: Option<PathBuf>,
        /// Output format: a machine file, a drawing, or JSON.
        #[arg(long, value_enum, default_value = "toml")]
        format: FileFormat,
    },
    /// Measure this host: latencies and bandwidths of caches and memory, and latencies between cores.
    Measure {
        /// Take about 20 seconds instead of minutes.
        #[arg(long)]
        quick: bool,
        /// Also write the machine file with the measured numbers here.
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Output format: the measured numbers as a table or JSON, or the machine file.
        #[arg(long, value_enum, default_value = "table")]
        format: FileFormat,
    },
}

/// Output format.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table or text.
    Table,
    /// JSON.
    Json,
}

/// Output format of a machine file's content.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FileFormat {
    /// The machine file.
    Toml,
    /// A drawing, or a table of measured numbers.
    Table,
    /// JSON.
    Json,
}

/// Runs `longma machine`.
pub fn run(args: Args) -> Outcome {
    match args.command {
        MachineCommand::List { format } => list(format),
        MachineCommand::Show { machine, toml: true, .. } => print_file(&machine),
        MachineCommand::Show { machine, set, svg, every, width, sources, format, toml: false } => {
            let detail = if every { Detail::Every } else { Detail::Fitting };
            show(&open(&machine, &set)?, svg.as_deref(), detail, width.map(usize::from), sources, format)
        }
        MachineCommand::Diff { first, second, format } => diff([&first, &second], format),
        MachineCommand::Check { files, format } => check_files(&files, format),
        MachineCommand::Discover { output, root, format } => describe(output.as_deref(), root, format),
        MachineCommand::Measure { quick, output, format } => {
            let thoroughness = if quick { Thoroughness::Quick } else { Thoroughness::Thorough };
            measure_host(thoroughness, output.as_deref(), format)
        }
    }
}

/// Writes a file atomically. The error names the file.
fn write_file(path: &Path, text: &str) -> Result<(), Box<dyn Error>> {
    longma_lab::write_atomically(path, text.as_bytes())
        .map_err(|error| format!("cannot write {}: {error}", path.display()).into())
}

fn list(format: Format) -> Outcome {
    let machines = BUILTIN.iter().map(|b| Machine::open(b.name)).collect::<Result<Vec<_>, _>>()?;
    let cores = |m: &Machine| m.layout().hosts.iter().map(|h| h.cores.len()).sum::<usize>();
    let nodes = |m: &Machine| m.layout().hosts.iter().map(|h| h.nodes.len()).sum::<usize>();
    if format == Format::Json {
        let entry = |m: &Machine| json!({ "name": m.name, "title": m.title, "hosts": m.layout().hosts.len(), "nodes": nodes(m), "cores": cores(m) });
        return print_json(&machines.iter().map(entry).collect());
    }
    let mut rows = vec![["NAME", "HOSTS", "NODES", "CORES", "WHAT IT IS"].map(String::from).to_vec()];
    rows.extend(machines.iter().map(|m| {
        let hosts = m.layout().hosts.len().to_string();
        vec![m.name.clone(), hosts, nodes(m).to_string(), cores(m).to_string(), m.title.clone()]
    }));
    print(&table(&rows))
}

/// The keys in which two machines differ.
fn diff(names: [&String; 2], format: Format) -> Outcome {
    let [first, second] = [open(names[0], &[])?, open(names[1], &[])?];
    let differences = differences(&first, &second);
    if format == Format::Json {
        return print_json(&json!(differences));
    }
    let mut rows = vec![vec!["KEY".into(), names[0].clone(), names[1].clone()]];
    let shown = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    rows.extend(differences.into_iter().map(|d| vec![d.key, shown(d.first), shown(d.second)]));
    print(&if rows.len() > 1 { table(&rows) } else { "the machines do not differ\n".into() })
}

/// Opens a machine with other values for some keys. The error shows all problems of the file.
fn open(name: &str, edits: &[MachineEdit]) -> Result<Machine, Box<dyn Error>> {
    open_machine(name, edits).map_err(|error| match error {
        EditError::Open(OpenError::Invalid(report)) => {
            format!("{report}\n\n{}", report.render(columns(), false)).into()
        }
        other => other.into(),
    })
}

fn show(
    machine: &Machine,
    svg: Option<&Path>,
    detail: Detail,
    width: Option<usize>,
    sources: bool,
    format: Format,
) -> Outcome {
    if let Some(path) = svg {
        write_file(path, &draw_svg(machine, width.unwrap_or(140), detail))?;
        return Ok(ExitCode::SUCCESS);
    }
    if format == Format::Json {
        return print_json(&json!({ "machine": machine.parts(), "layout": machine.layout() }));
    }
    let mut text = draw_text(machine, width.unwrap_or_else(columns), detail, has_colour());
    if sources {
        let mut rows = vec![["SOURCE", "KIND", "TITLE"].map(String::from).to_vec()];
        rows.extend(
            machine.sources.iter().map(|(name, s)| vec![name.clone(), s.kind.word().into(), s.title.clone()]),
        );
        let _ = write!(text, "\n{}", table(&rows));
    }
    print(&text)
}

/// Prints the text of a machine file, including its comments.
fn print_file(name: &str) -> Outcome {
    let (_, text) = Machine::text(name)?;
    print(&text)
}

/// Checks a machine file, and whether a simulated run supports the machine: a run accepts every machine that passes.
fn check_whole(file: &str, content: &str) -> Checked {
    let mut checked = check(file, content);
    if let Some(machine) = checked.machine.take().map(Arc::new) {
        let refusals = refusals(&machine);
        refusals.iter().for_each(|refusal| checked.report.add_error(refusal.to_string(), &refusal.table()));
        checked.machine = Arc::into_inner(machine).filter(|_| refusals.is_empty());
    }
    checked
}

fn check_files(files: &[String], format: Format) -> Outcome {
    let (mut text, mut entries, mut failed) = (String::new(), Vec::new(), false);
    for name in files {
        let (file, content) = match name.as_str() {
            "-" => ("<standard input>".into(), read_stdin()?),
            _ => Machine::text(name)?,
        };
        let checked = check_whole(&file, &content);
        failed |= checked.machine.is_none();
        entries.extend(checked.report.located().iter().map(|p| json!(p)));
        text.push_str(&checked.report.render(columns(), has_colour()));
        let _ = match &checked.machine {
            Some(machine) => {
                let cores: usize = machine.layout().hosts.iter().map(|h| h.cores.len()).sum();
                let (hosts, sources) = (machine.layout().hosts.len(), machine.sources.len());
                writeln!(text, "{}; hosts {hosts}, cores {cores}, sources {sources}", checked.report)
            }
            None => writeln!(text, "{}", checked.report),
        };
    }
    let printed = if format == Format::Json { print_json(&Value::Array(entries)) } else { print(&text) };
    printed.map(|code| if failed { ExitCode::FAILURE } else { code })
}

fn read_stdin() -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    // One byte more than the largest machine file, so that a larger one is rejected without reading all of it.
    std::io::stdin()
        .lock()
        .take((4 << 20) + 1)
        .read_to_string(&mut text)
        .map_err(|e| format!("cannot read standard input: {e}"))?;
    Ok(text)
}

fn describe(output: Option<&Path>, root: Option<PathBuf>, format: FileFormat) -> Outcome {
    let sysfs = root.map_or_else(Sysfs::live, Sysfs::recorded);
    let file = discover(&sysfs)?;
    emit(&file.to_toml(), "This host, described by `longma machine discover`.", output, format, None)
}

/// Writes a machine file and prints it in the requested format. `table` holds the text and JSON to print instead of the
/// drawing and the layout.
fn emit(
    toml: &str,
    headline: &str,
    output: Option<&Path>,
    format: FileFormat,
    table: Option<(&str, &Value)>,
) -> Outcome {
    let text = format!("# {headline}\n{toml}");
    if let Some(path) = output {
        write_file(path, &text)?;
    }
    match (format, table) {
        // The machine file is already in `output`, so print nothing.
        (FileFormat::Toml, _) if output.is_some() => Ok(ExitCode::SUCCESS),
        (FileFormat::Toml, _) => print(&text),
        (FileFormat::Table, Some((table, _))) => print(table),
        (FileFormat::Json, Some((_, json))) => print_json(json),
        (FileFormat::Table, None) => {
            let machine = Machine::parse("this host", &text)?;
            print(&draw_text(&machine, columns(), Detail::Fitting, has_colour()))
        }
        (FileFormat::Json, None) => {
            let machine = Machine::parse("this host", &text)?;
            print_json(&json!({ "machine": machine.parts(), "layout": machine.layout() }))
        }
    }
}

fn measure_host(thoroughness: Thoroughness, output: Option<&Path>, format: FileFormat) -> Outcome {
    let mut file = discover(&Sysfs::live())?;
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(1000) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    let measured = measure(&file, thoroughness, &mut |what, share| {
        bar.set_position((share * 1000.0) as u64);
        bar.set_message(what.to_string());
    });
    bar.finish_and_clear();
    let measured = measured?;
    measured.write_into(&mut file);
    let toml = file.to_toml();
    // The written file must pass `check`.
    let Checked { machine, report } = check_whole("measured host", &toml);
    machine.ok_or_else(|| format!("{report}\n\n{}", report.render(columns(), false)))?;
    let headline = "This host, described and measured by `longma machine measure`.";
    emit(&toml, headline, output, format, Some((&measured_table(&measured), &json!(measured))))
}

fn measured_table(measured: &MeasurementResults) -> String {
    let ns = |ps: u64| format!("{:.2} ns", ps as f64 / 1000.0);
    let gb = |bytes: u64| format!("{:.2} GB/s", bytes as f64 / 1e9);
    let mut rows = vec![["WHAT", "MEASURED", "HOW"].map(String::from).to_vec()];
    let ghz = measured.clock_hz as f64 / 1e9;
    rows.push(["clock".into(), format!("{ghz:.3} GHz"), "dependent one-cycle operations".into()].to_vec());
    rows.push(vec![
        "misprediction".into(),
        ns(measured.mispredict_ps),
        "branch on random bits, its load included".into(),
    ]);
    for cache in &measured.caches {
        rows.push(vec![
            format!("{} latency", cache.cache),
            ns(cache.latency_ps),
            format!("chase through {} KiB", cache.bytes >> 10),
        ]);
    }
    for (from, row) in measured.memory_ps.iter().enumerate() {
        for (to, ps) in row.iter().enumerate() {
            let what = if row.len() > 1 {
                format!("memory latency {from} to {to}")
            } else {
                "memory latency".into()
            };
            let pages = if measured.huge_pages { "huge pages" } else { "small pages" };
            rows.push(vec![
                what,
                ns(*ps),
                format!("chase through {} MiB, {pages}", measured.memory_bytes >> 20),
            ]);
        }
    }
    if let Some(walk) = &measured.walk {
        let how = format!(
            "chase through {} MiB: {} on small pages, {} on huge ones",
            walk.bytes >> 20,
            ns(walk.small_ps),
            ns(walk.huge_ps)
        );
        rows.push(vec!["page walk".into(), ns(walk.walk_ps), how]);
    }
    for b in &measured.bandwidths {
        let threads = if b.threads == 1 { "1 thread".to_string() } else { format!("{} threads", b.threads) };
        for (what, value) in [("read", b.read), ("copy", b.copy), ("triad", b.triad)] {
            rows.push(vec![format!("{what} bandwidth"), gb(value), threads.clone()]);
        }
    }
    for (i, one) in measured.cpus.iter().enumerate() {
        for (j, other) in measured.cpus.iter().enumerate().skip(i + 1) {
            rows.push(vec![
                format!("CPU {one} to {other}"),
                ns(measured.core_to_core_ps[i][j]),
                "a cache line, one way".into(),
            ]);
        }
    }
    let mut text = table(&rows);
    for note in &measured.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}
