//! `longma affinity advise`: recommends a pair of CPUs, with the commands that apply it. `longma_affinity::advice`
//! chooses the pair.

use super::check::wrapped;
use super::option_scope::{self, Method};
use super::record::TreeOption;
use super::sweep::{LoadOptions, Testbed, measure, processor};
use super::terminal::{self, print, print_json};
use super::{INTERRUPTED, JournalOption, Outcome, chosen, interruption, report, width};
use clap::ValueEnum;
use longma_affinity::advice::{
    Candidate, Commands, ConfigurationFile, DriverCapabilities, Evaluation, Group, Package, QueuePlacement,
    Race, candidates, commands, evaluate,
};
use longma_affinity::analysis::{Analysis, fastest};
use longma_affinity::host::{Host, Tree};
use longma_affinity::interface::{self, Nic};
use longma_affinity::netns_testbed;
use longma_affinity::pairs::{Pair, all_pairs, pairs_of};
use longma_affinity::preflight::{allowed, isolated};
use longma_affinity::setting::Interface;
use longma_affinity::steering::Steering;
use longma_affinity::sweep::{Header, Plan, ResultFile, Results};
use longma_affinity::vary::{Variant, variants, words as in_words};
use longma_cpu_set::CpuSet;
use longma_text::display_path;
use longma_topology::CpuLocation;
use serde_json::json;
use std::error::Error;
use std::fmt::Write as _;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    what: LoadOptions,
    /// Take the measurement from this results file instead of measuring.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["lab", "connect", "interface", "command"])]
    results: Option<PathBuf>,
    /// Measure at most this many pairs twice in the second round [default: 12].
    ///
    /// The first round measures two pairs of each kind once. The second round takes the best of them and more pairs of
    /// the same kinds. With JSON output, this is also the number of pairs listed in the topology ranking.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=64))]
    candidates: Option<u32>,
    /// Measure the best four pairs this many times in total [default: 5].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: Option<u32>,
    /// Length of a run [default: 1].
    #[arg(long, value_name = "SECONDS", value_parser = |text: &str| super::seconds(text, 600))]
    seconds: Option<u32>,
    #[command(flatten)]
    tree: TreeOption,
    #[command(flatten)]
    journal: JournalOption,
    /// Output format. `tuned`, `systemd` and `ansible` print files for these programs.
    #[arg(long, value_enum, default_value = "table")]
    format: AdviceFormat,
    /// Write the files of the format directly into this folder, which must exist, instead of printing them.
    #[arg(long, value_name = "FOLDER")]
    to: Option<PathBuf>,
}

/// Output format of advice.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AdviceFormat {
    /// Text with commands.
    Table,
    /// JSON.
    Json,
    /// A profile of tuned.
    Tuned,
    /// A systemd service.
    Systemd,
    /// Ansible tasks that install the service.
    Ansible,
}

impl AdviceFormat {
    fn package(self) -> Option<Package> {
        match self {
            Self::Table | Self::Json => None,
            Self::Tuned => Some(Package::Tuned),
            Self::Systemd => Some(Package::Systemd),
            Self::Ansible => Some(Package::Ansible),
        }
    }
}

impl Arguments {
    fn candidates(&self) -> usize {
        self.candidates.unwrap_or(12) as usize
    }

    /// Rejects options that do not apply to the requested kind of advice.
    fn check_options(&self) -> Result<(), String> {
        let method = match &self.results {
            Some(_) => Method::Results,
            None => self.what.method().unwrap_or(Method::Topology),
        };
        let measured = &[Method::Lab, Method::Connect, Method::Command];
        // With JSON output, --candidates also limits the topology ranking, so it always applies.
        let is_list = self.format == AdviceFormat::Json;
        if self.to.is_some() && self.format.package().is_none() {
            return Err("--to needs --format tuned, systemd or ansible".into());
        }
        let more = [
            ("--candidates", self.candidates.is_some() && !is_list, &measured[..]),
            ("--repeats", self.repeats.is_some(), measured),
            ("--seconds", self.seconds.is_some(), measured),
            ("--journal", self.journal.is_given(), measured),
            ("--tree", self.tree.is_given(), &[Method::Topology]),
        ];
        option_scope::check(method, &[&self.what.options()[..], &more].concat())
    }
}

/// The recommendation and its basis.
struct Advice {
    /// Whether it was measured in the --lab network namespaces.
    is_from_lab: bool,
    /// A description of the measured machine, if it is not this one.
    other_machine: Option<String>,
    places: Vec<CpuLocation>,
    /// CPUs of applications; `None` if all.
    allowed: Option<CpuSet>,
    nic: Nic,
    steering: Steering,
    ranking: Vec<Candidate>,
    measured: Option<Evaluation>,
    /// The interface settings of the measurement, if settings were varied.
    variant: Variant,
}

impl Advice {
    /// The CPUs of the queues, given a pair.
    fn placement(&self, host: &dyn Host, pair: Pair) -> QueuePlacement {
        // The driver of another machine cannot be queried.
        let abilities = |nic: &Nic| match self.other_machine {
            None => DriverCapabilities::of(host, nic),
            Some(_) => DriverCapabilities::default(),
        };
        let nics: Vec<_> = self.nic.physical().into_iter().map(|nic| (nic, abilities(nic))).collect();
        QueuePlacement::of(&self.places, &nics, pair, self.allowed.as_ref(), self.steering.is_software())
    }
}

pub fn run(arguments: &Arguments) -> Outcome {
    arguments.check_options()?;
    let (recording, live) = (arguments.tree.open()?, Tree::live());
    let host: &dyn Host = recording.as_ref().map_or(&live as &dyn Host, |recording| recording);
    let Some(advice) = advice(arguments, host)? else { return Ok(ExitCode::from(INTERRUPTED)) };
    let first = advice.ranking.first().map(|candidate| candidate.pair);
    let pair = advice
        .measured
        .as_ref()
        .map(|measured| measured.choice.pair)
        .or(first)
        .ok_or("there is no CPU to choose")?;
    let placement = advice.placement(host, pair);
    let commands = commands(&advice.nic.physical(), &placement);
    if let Some(package) = arguments.format.package() {
        return packaged(&package.files(&advice.nic.physical(), &placement), arguments.to.as_deref());
    }
    if arguments.format == AdviceFormat::Json {
        return print_json(&json!({
            "pair": pair, "variant": advice.variant, "measured": advice.measured, "queues": placement, "commands": commands,
            "elsewhere": advice.other_machine,
            "topology": advice.ranking.iter().take(arguments.candidates()).collect::<Vec<_>>(),
        }));
    }
    print(&text(&advice, &placement, &commands))
}

/// Prints the files, each after a line with its path, or writes them to a folder.
fn packaged(files: &[ConfigurationFile], folder: Option<&Path>) -> Outcome {
    let Some(folder) = folder else {
        let file = |file: &ConfigurationFile| format!("# ==> {} <==\n{}\n", file.path, file.text);
        return print(&files.iter().map(file).collect::<String>());
    };
    for file in files {
        let name = Path::new(&file.path).file_name().unwrap_or_default();
        let path = folder.join(name);
        let mode = if file.is_program { 0o755 } else { 0o644 };
        let failed = |error| format!("cannot write {}: {error}", display_path(&path));
        longma_lab::write_atomically(&path, file.text.as_bytes()).map_err(failed)?;
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(failed)?;
        print(&format!("{} is written; it belongs to {}\n", display_path(&path), file.path))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn advice(arguments: &Arguments, host: &dyn Host) -> Result<Option<Advice>, Box<dyn Error>> {
    if let Some(path) = &arguments.results {
        let results = Results::read(path)?;
        terminal::warn_truncated(path, results.is_cut);
        return match results.nothing() {
            Some(nothing) => Err(format!(
                "{}: {nothing}; fix the cause and repeat the sweep's command, which runs the missing pairs. For advice from topology alone, without \
                 a measurement: `longma affinity advise --interface {}`",
                display_path(path),
                if is_from_lab(&results.header) { "NAME" } else { results.header.nic.name.name() }
            )
            .into()),
            None => Ok(Some(advice_from_results(&results)?)),
        };
    }
    if arguments.what.method().is_none() {
        return advice_from_topology(arguments, host).map(Some);
    }
    let stop = interruption()?;
    let (max_candidates, repeats) = (arguments.candidates(), arguments.repeats.unwrap_or(5));
    // 64 runs suffice for the first round, because there are at most ten kinds of pairs: five classes, each near the
    // NIC or far from it.
    let runs = 64 + max_candidates as u64 * u64::from(repeats).max(2);
    let mut testbed = Testbed::set_up(&arguments.what, arguments.seconds.unwrap_or(1), runs)?;
    let ranking = candidates(
        &testbed.header.places,
        &testbed.header.nic,
        &pairs_of(&testbed.flows, &testbed.applications),
    );
    let folder = temporary_folder()?;
    let file = folder.join("advise.jsonl");
    let mut results = ResultFile::open(&file, &testbed.header)?;
    let mut race = Race::new(&ranking, max_candidates, repeats);
    let raced = run_race(&mut race, arguments, &mut testbed, &mut results, &file, &stop);
    // Ignore errors: the directory is in the system's temporary directory.
    let _ = std::fs::remove_dir_all(&folder);
    let Some(results) = raced? else { return Ok(None) };
    if let Some(nothing) = results.nothing() {
        return Err(format!(
            "nothing was measured: {nothing}; for advice from topology alone, leave out --lab and --connect"
        )
        .into());
    }
    Ok(Some(Advice { ranking, ..advice_from_results(&results)? }))
}

/// Runs all rounds. Returns `None` if interrupted.
fn run_race(
    race: &mut Race<'_>,
    arguments: &Arguments,
    testbed: &mut Testbed,
    results: &mut ResultFile,
    file: &Path,
    stop: &AtomicBool,
) -> Result<Option<Results>, Box<dyn Error>> {
    let mut so_far = Results { header: testbed.header.clone(), samples: Vec::new(), is_cut: false };
    while let Some(round) = race.next(&Analysis::of(&so_far)) {
        let variants = variants(&[]);
        let plan = Plan { pairs: round.pairs, variants, repeats: round.repeats, seed: 1 };
        let outcome = measure(&plan, testbed, &arguments.journal, results, stop)?;
        so_far = Results::read(file)?;
        if outcome.stopped {
            return Ok(None);
        }
    }
    Ok(Some(so_far))
}

fn is_from_lab(header: &Header) -> bool {
    header.nic.name.name() == netns_testbed::RECEIVER
}

/// Creates a temporary directory.
fn temporary_folder() -> std::io::Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("longma-advise-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    Ok(folder)
}

/// The interface that the commands change, if it is not the measured one: the interface that --lab measured no longer
/// exists.
fn target_interface(header: &Header) -> Option<(Nic, Steering)> {
    let host = Tree::live();
    let name = is_from_lab(header).then(|| chosen(&host, None).ok())??;
    let nic = interface::read(&host, &name)?;
    let steering = Steering::of(&nic).ok()?;
    Some((nic, steering))
}

/// A short description of the measured machine, if its CPUs are not those of this host.
fn other_machine(header: &Header) -> Option<String> {
    let host = Tree::live();
    let is_this_host = header.places == host.places() && header.processor == processor(&host);
    (!is_this_host).then(|| format!("{}, {} CPUs", header.processor, header.places.len()))
}

fn advice_from_results(results: &Results) -> Result<Advice, String> {
    // If settings were varied, take the variant with the fastest pair.
    let results = &fastest(results);
    let header = &results.header;
    let cpus: Vec<u32> = header.places.iter().map(|place| place.cpu).collect();
    let ranking = candidates(&header.places, &header.nic, &all_pairs(&cpus));
    let analysis = Analysis::of(results);
    if analysis.pairs.is_empty() {
        return Err(format!("no run can be evaluated: {}", analysis.remarks.join("; ")));
    }
    let (nic, steering) =
        target_interface(header).unwrap_or_else(|| (header.nic.clone(), header.steering.clone()));
    Ok(Advice {
        is_from_lab: is_from_lab(header),
        other_machine: other_machine(header),
        places: header.places.clone(),
        allowed: None,
        nic,
        steering,
        measured: evaluate(&analysis, &ranking),
        variant: results.samples.first().map(|sample| sample.variant.clone()).unwrap_or_default(),
        ranking,
    })
}

fn advice_from_topology(arguments: &Arguments, host: &dyn Host) -> Result<Advice, Box<dyn Error>> {
    let name = chosen(host, arguments.what.interface.as_ref())?;
    let nic = interface::read(host, &name).ok_or_else(|| format!("there is no interface {name}"))?;
    let (mut places, allowed, isolated) = (host.places(), allowed(host), isolated(host));
    if places.iter().any(|place| !isolated.contains(place.cpu)) {
        places.retain(|place| !isolated.contains(place.cpu));
    }
    let usable = |cpu: &u32| allowed.as_ref().is_none_or(|set| set.contains(*cpu));
    let flows: Vec<u32> = places.iter().map(|place| place.cpu).collect();
    let applications: Vec<u32> = flows.iter().copied().filter(usable).collect();
    let steering = if arguments.what.software { Steering::software(&nic)? } else { Steering::of(&nic)? };
    Ok(Advice {
        is_from_lab: false,
        other_machine: None,
        ranking: candidates(&places, &nic, &pairs_of(&flows, &applications)),
        places,
        allowed,
        nic,
        steering,
        measured: None,
        variant: Variant::new(),
    })
}

/// The number of queues and their CPUs; empty for a single queue.
fn queues(placement: &QueuePlacement) -> String {
    let (used, all) = placement.counts();
    if all < 2 {
        return String::new();
    }
    let of = if used < all { format!("{used} of the {all} queues") } else { format!("the {all} queues") };
    if placement.groups.len() > 1 {
        let group = |group: &Group| {
            let names: Vec<&str> = group.interfaces.iter().map(Interface::name).collect();
            let (names, node) = (names.join(", "), group.node);
            format!("{names} on CPUs {} with {} (node {node})", group.flows, group.applications)
        };
        let groups: Vec<String> = placement.groups.iter().map(group).collect();
        return format!(
            "With more flows: {of}; applications share a cache and a node with their flows' queues: {}. ",
            groups.join("; ")
        );
    }
    format!(
        "With more flows: {of} on CPUs {}, applications on CPUs {}. ",
        placement.flows(),
        placement.applications
    )
}

fn text(advice: &Advice, placement: &QueuePlacement, commands: &Commands) -> String {
    let name = &advice.nic.name;
    let (mut words, mut next) = (String::new(), String::new());
    if let Some(measured) = &advice.measured {
        let (best, choice) = (&measured.best, &measured.choice);
        let _ = write!(
            words,
            "Measured{}: flow on CPU {}, application on CPU {}: {:.2} Gb/s, {} lost ({}).",
            if advice.is_from_lab { " in the lab" } else { "" },
            choice.pair.flow,
            choice.pair.application,
            choice.median_gbps,
            report::percent(choice.loss),
            choice.class.meaning()
        );
        if choice.pair != best.pair {
            let _ = write!(
                words,
                " {} reached {:.2} Gb/s, {} lost, which is not a significant difference at 95 %, and topology favours {}.",
                best.pair,
                best.median_gbps,
                report::percent(best.loss),
                choice.pair
            );
        }
        let ties: Vec<String> = measured.not_told_apart.iter().map(|pair| format!("({pair})")).collect();
        if !ties.is_empty() {
            let _ = write!(
                next,
                "No significant difference at 95 % from the fastest pair, ({}): {}. ",
                best.pair,
                ties.join(" ")
            );
        }
        if !advice.variant.is_empty() {
            let _ = write!(
                next,
                "Measured with {}, the fastest of the varied settings. ",
                in_words(&advice.variant)
            );
        }
        if advice.is_from_lab {
            let _ = write!(next, "The lab is removed; the commands are for {name}, which was not measured.");
        }
        if let Some(machine) = &advice.other_machine {
            let _ = write!(
                next,
                " Measured on another machine ({machine}): the CPU numbers below are those of that machine."
            );
        }
    } else if let Some(first) = advice.ranking.first() {
        let near = match first.is_near {
            Some(true) if advice.nic.nodes().len() > 1 => {
                "the flow's CPU is on the NUMA node of one of its NICs"
            }
            Some(true) => "the flow's CPU is on the NIC's NUMA node",
            Some(false) => "no CPU of the NIC's NUMA node can be used",
            None => "the NUMA node of the NIC is unknown",
        };
        let (pair, class) = (first.pair, first.class.meaning());
        let _ = write!(
            words,
            "From topology, not measured, for {name}: flow on CPU {}, application on CPU {}: {class}; {near}.",
            pair.flow, pair.application
        );
        next.push_str("To measure, add --connect HOST or --lab.");
    }
    let next = queues(placement) + &next;
    let mut text = wrapped("", &words, width());
    if !next.is_empty() {
        text.push_str(&wrapped("", &next, width()));
    }
    if let Some(layers) = advice.nic.layers() {
        text.push_str(&wrapped(
            "",
            &format!("{layers}: the commands set the queues of the interfaces below."),
            width(),
        ));
    }
    let _ = write!(text, "\nTo apply it now, as root:\n{}", indented_lines(&commands.now));
    let _ = write!(
        text,
        "\nFor the application's service, `systemctl edit SERVICE`:\n{}",
        indented(&commands.systemd)
    );
    let _ = write!(
        text,
        "\nWhenever the device appears, /etc/udev/rules.d/90-longma-affinity.rules:\n{}",
        indented(&commands.udev)
    );
    let _ = write!(text, "\nwith the script {}:\n{}", commands.script_path, indented(&commands.script));
    if !commands.keep.is_empty() {
        let _ =
            write!(text, "\nTo keep other programs from changing it:\n{}", indented_lines(&commands.keep));
    }
    text
}

fn indented_lines(lines: &[String]) -> String {
    lines.iter().map(|line| format!("  {line}\n")).collect()
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}
