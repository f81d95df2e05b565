//! `longma affinity sweep`: measures the throughput of pairs of CPUs and restores all settings. The measurement itself
//! is in `longma-affinity`.

use super::option_scope::{self, Method, ScopedOption};
use super::{
    Format, INTERRUPTED, JournalOption, Outcome, chosen, cpus, interface, interruption, modelled, page, pair,
    report, restore, terminal,
};
use longma_affinity::counters::Reading;
use longma_affinity::host::{Host, Tree};
use longma_affinity::interface as interfaces;
use longma_affinity::journal::JournalError;
use longma_affinity::load::{Iperf, Load};
use longma_affinity::netns_testbed::{self, NetnsTestbed};
use longma_affinity::pairs::{Pair, all_pairs, classify, pairs_of};
use longma_affinity::preflight::{Severity, allowed, check};
use longma_affinity::setting::{Interface, Setting};
use longma_affinity::steering::Steering;
use longma_affinity::sweep::{self, Header, Plan, ResultFile, Results, Sample, Setup, SweepError};
use longma_affinity::vary::{self, SweepParameter, Variant, Variation, variants};
use longma_cpu_set::CpuSet;
use longma_text::{display_path, sanitize};
use longma_workloads::pairs::{self, ReceiverSetting, Sweep};
use std::error::Error;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The results file of a sweep of a real host, unless another is named.
const DEFAULT_OUTPUT: &str = "affinity.jsonl";

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    what: LoadOptions,
    #[command(flatten)]
    which: RunOptions,
    #[command(flatten)]
    model: ModelOptions,
    /// Write results to this file. If it holds an interrupted sweep, continue that sweep [default: affinity.jsonl; none
    /// with --model].
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also write an HTML page with the matrix, a heat map per cost, and effects and classes with their intervals.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    journal: JournalOption,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Options for sweeping a modelled machine.
#[derive(clap::Args)]
struct ModelOptions {
    /// Sweep this modelled machine, in simulated time, instead of this host.
    ///
    /// Writes no files except the one given with --output.
    #[arg(long, value_name = "MACHINE", conflicts_with_all = ["lab", "interface", "connect", "command"])]
    model: Option<String>,
    /// Extra cycles per frame for kernel work that the model leaves out [default: 0].
    ///
    /// The softirq spends its share of these cycles once per frame. The socket's owner spends the rest once per packet
    /// in the socket. GRO and LRO merge several frames into one packet. These cycles are simulated one by one, for
    /// about 3000 frames per pair; 100000 cycles double the run time.
    #[arg(long, value_name = "CYCLES", value_parser = clap::value_parser!(u32).range(..=i64::from(pairs::MAX_FRAME_CYCLES)))]
    frame_cycles: Option<u32>,
    /// Percent of the extra cycles that the softirq spends on the flow's core [default: 56].
    ///
    /// The default follows published profiles of Linux; the socket's owner spends the rest.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(..=100))]
    softirq_share: Option<u32>,
    /// Measure each modelled pair with this many random seeds, starting at --seed [default: 1].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100))]
    seeds: Option<u32>,
    /// Set an option of the modelled NIC or kernel, for example rfs=1. May be repeated.
    ///
    /// Names: gro, lro, rps, rfs, send_queues, xps, busy_us, threaded, napi, ring, delay_ns, frames, budget, near,
    /// before.
    #[arg(long = "with", value_name = "NAME=VALUE")]
    with: Vec<ReceiverSetting>,
    /// Measure the rate of each pair over this many megabytes (10^6 bytes) [default: 8].
    ///
    /// 19 MB before them warm up caches and buffers. The measurement may be up to 2 MB longer, so that it ends with the
    /// same amount of buffered data as it began with.
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(pairs::MEGABYTES))]
    megabytes: Option<u64>,
}

/// The network and the load.
#[derive(clap::Args)]
pub struct LoadOptions {
    /// Create two network namespaces on this host with an iperf3 server in one, and remove them afterwards.
    #[arg(long, conflicts_with_all = ["interface", "connect"])]
    pub lab: bool,
    /// The interface that receives the flows.
    #[arg(long, value_name = "NAME", value_parser = interface)]
    pub interface: Option<Interface>,
    /// Host on which `iperf3 --server` runs.
    #[arg(long, value_name = "HOST[:PORT]")]
    pub connect: Option<String>,
    /// Send UDP instead of TCP.
    #[arg(long)]
    udp: bool,
    /// Number of concurrent flows [default: 1].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=128))]
    flows: Option<u32>,
    /// Copy the sender's data instead of sending from the page cache (zero-copy).
    #[arg(long)]
    copy: bool,
    /// Send from this host instead of receiving.
    #[arg(long)]
    forward: bool,
    /// Steer packets in software (RPS), even if the NIC has interrupts to steer.
    #[arg(long)]
    pub software: bool,
    /// CPU of the sender, with --lab [default: the last CPU; excluded from the pairs if there are three or more CPUs].
    #[arg(long, value_name = "CPU")]
    sender: Option<u32>,
    /// MTU in bytes, with --lab or --model [default: 9000 with --lab, else the modelled NIC's].
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1280..=65535))]
    mtu: Option<u32>,
    /// Run this command as the load instead of iperf3. It must print a rate such as `12.5 Gbit/s`; {seconds} is
    /// replaced with the length of a run.
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["lab", "connect"])]
    command: Vec<String>,
}

/// The runs to make.
#[derive(clap::Args)]
struct RunOptions {
    /// Measure this pair of CPUs; may be repeated [default: all pairs].
    #[arg(long = "pair", value_name = "FLOW,APPLICATION", value_parser = pair)]
    pairs: Vec<Pair>,
    /// Measure only pairs of these CPUs.
    #[arg(long, value_name = "LIST", value_parser = cpus, conflicts_with = "pairs")]
    cpus: Option<CpuSet>,
    /// Measure each pair with each of these values of an interface setting, for example gro=1,0. May be repeated.
    ///
    /// With several settings, all combinations are measured. Settings: gro, lro, tso, gso, rx-ring, rx-usecs,
    /// adaptive-rx, mtu, threaded, napi-defer-hard-irqs, gro-flush-timeout, irq-suspend-timeout, gro-max-size,
    /// gso-max-size, gro-ipv4-max-size, gso-ipv4-max-size, busy-poll, rfs, arfs, xps (a mask), zero-copy. Settings of a
    /// load command: zero-copy, msg-zerocopy, zero-copy-receive; the value replaces the setting's name in braces, such
    /// as {msg-zerocopy}, in the command.
    #[arg(long = "vary", value_name = "NAME=VALUE,...")]
    variations: Vec<Variation>,
    /// Measure each pair this many times [default: 3].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: Option<u32>,
    /// Length of a run [default: 2].
    #[arg(long, value_name = "SECONDS", value_parser = |text: &str| super::seconds(text, 3600))]
    seconds: Option<u32>,
    /// Seed of the random order of the runs.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

/// The prepared network and host for a sweep.
pub struct Testbed {
    lab: Option<NetnsTestbed>,
    host: Tree,
    /// The properties common to all runs.
    pub header: Header,
    /// CPUs that flows are steered to. The process's cpuset does not restrict them.
    pub flows: Vec<u32>,
    /// CPUs that applications may be bound to.
    pub applications: Vec<u32>,
    /// The CPUs in the process's cpuset; `None` if the kernel does not report them.
    allowed: Option<CpuSet>,
}

pub fn run(arguments: &Arguments) -> Outcome {
    arguments.check_options()?;
    let html = arguments.html.as_deref();
    let results_path = arguments.output.as_deref();
    if let Some(path) = html {
        report::check_page(path, results_path.or(Some(Path::new(DEFAULT_OUTPUT))))?;
    }
    let stop = interruption()?;
    let which = &arguments.which;
    if let Some(machine) = &arguments.model.model {
        let pairs = match &which.cpus {
            Some(only) => all_pairs(&only.iter().collect::<Vec<_>>()),
            None => which.pairs.clone(),
        };
        let ModelOptions { frame_cycles, softirq_share, megabytes, seeds, ref with, .. } = arguments.model;
        for (index, setting) in with.iter().enumerate() {
            if with[..index].iter().any(|other| other.name == setting.name) {
                return Err(format!("--with {} is given twice", setting.name).into());
            }
        }
        let sweep = Sweep {
            // The running executable, even if its path names another file by now.
            longma: Path::new("/proc/self/exe"),
            machine,
            pairs,
            frame_cycles: frame_cycles.unwrap_or(0),
            softirq_share: softirq_share.unwrap_or(pairs::SOFTIRQ_SHARE),
            bytes: megabytes.unwrap_or(8) * 1_000_000,
            seed: which.seed,
            seeds: seeds.unwrap_or(1),
            mtu: arguments.what.mtu.map(u64::from),
            settings: with.clone(),
        };
        return modelled::run(&sweep, (results_path, html), arguments.format, &stop);
    }
    let variants = which.variants(&arguments.what)?;
    let (repeats, seconds) = (which.repeats.unwrap_or(3), which.seconds.unwrap_or(2));
    let rounds = u64::from(repeats) * which.pairs.len().max(4096) as u64 * variants.len() as u64;
    let mut testbed = Testbed::set_up(&arguments.what, seconds, rounds)?;
    if let Some(beyond) = vary::beyond(&testbed.host, &testbed.header.nic, &variants) {
        return Err(format!("--vary {beyond}").into());
    }
    let pairs = which.pairs(&testbed)?;
    let header = &testbed.header;
    for words in vary::idle(&testbed.host, &which.variations, &header.nic, &header.load, &pairs) {
        terminal::warn(&format!("note: --vary {words}"));
    }
    let plan = Plan { pairs, variants, repeats, seed: which.seed };
    // Settings left changed by a killed run are reported before the results file is created or compared.
    let mut journal = arguments.journal.begin(&testbed.host)?;
    let nic = &testbed.header.nic;
    std::iter::once(nic).chain(nic.physical()).try_for_each(|nic| journal.claim(&nic.name))?;
    drop(journal);
    let output = results_path.unwrap_or(Path::new(DEFAULT_OUTPUT));
    let mut results = ResultFile::open(output, &testbed.header)?;
    terminal::warn_truncated(output, results.is_cut);
    let outcome = measure(&plan, &mut testbed, &arguments.journal, &mut results, &stop)
        .map_err(|error| with_progress(&error.to_string(), &results, output))?;
    drop((results, testbed));
    let results = Results::read(output)?;
    // A sweep whose runs are all excluded has failed, too.
    let code = report::print(&results, arguments.format)?;
    if let Some(path) = html.filter(|_| results.nothing().is_none()) {
        report::write_page(path, Some(output), &page::page(&results, output)?)?;
    }
    if outcome.stopped {
        terminal::warn("stopped; the same command continues with the missing runs");
        return Ok(ExitCode::from(INTERRUPTED));
    }
    if outcome.failed > 0 {
        terminal::warn(&match outcome.failed {
            1 => "1 run failed; the same command makes it again".into(),
            failed => format!("{failed} runs failed; the same command makes them again"),
        });
    }
    Ok(if outcome.failed > 0 { ExitCode::FAILURE } else { code })
}

/// Adds to an error how many runs are already in the results file.
fn with_progress(error: &str, results: &ResultFile, file: &Path) -> String {
    let good = results.known.iter().filter(|sample| sample.rate.is_some()).count();
    let plural = if good == 1 { "run with a result is" } else { "runs with a result are" };
    format!(
        "{error}; {good} {plural} in {}: the same command continues with the missing runs",
        display_path(file)
    )
}

/// Makes the runs and restores all settings, also after errors.
pub fn measure(
    plan: &Plan,
    testbed: &mut Testbed,
    journal: &JournalOption,
    results: &mut ResultFile,
    stop: &AtomicBool,
) -> Result<sweep::Outcome, Box<dyn Error>> {
    let Testbed { lab, host, header, .. } = testbed;
    let mut journal = journal.begin(host)?;
    let namespace = lab.as_ref().map(NetnsTestbed::receiver);
    let mut after_failure = || match lab.as_mut().map(NetnsTestbed::restart_server)? {
        Ok(ended) => ended,
        Err(error) => Some(error.to_string()),
    };
    let mut setup = Setup { host, header, namespace, after_failure: &mut after_failure, stop };
    let bar = std::io::stderr().is_terminal();
    let mut reported: Option<Variant> = None;
    let mut tell = |sample: &Sample, completed: usize, all: usize| {
        if bar {
            let rate = sample.rate.map_or("failed".into(), |rate| format!("{:.2} Gb/s", rate.gbps));
            terminal::progress(&format!(
                "{completed} of {all}: flow on {}, application on {}: {rate}",
                sample.pair.flow, sample.pair.application
            ));
        }
        if let Some(failure) = &sample.failure
            // Report a rejected combination of settings once, not for each of its runs.
            && (!sample.refused || reported.replace(sample.variant.clone()).is_none_or(|last| last != sample.variant))
        {
            if bar {
                terminal::progress("");
            }
            terminal::warn(&format!("pair {}: {failure}", sample.pair));
        }
    };
    let outcome = sweep::run(plan, &mut setup, &mut journal, results, &mut tell);
    if bar {
        terminal::progress("");
    }
    let restored = journal.restore();
    // Without its namespaces every later step fails too, so report this cause instead of the first failed step.
    let removal = testbed.lab.as_mut().and_then(NetnsTestbed::gone);
    let restored = match (restored, &removal) {
        (Err(error), Some(removal)) => {
            return Err(format!("{removal}; repeat the command to create it again ({error})").into());
        }
        (restored, _) => restored?,
    };
    if !restored.is_whole() {
        terminal::print_stderr(&restore::text(&restored));
    }
    match outcome {
        Ok(_) if !restored.is_whole() => Err(NOT_RESTORED.into()),
        Ok(outcome) => Ok(outcome),
        Err(error) => Err(describe_failure(&error, removal, &testbed.header, restored.is_whole()).into()),
    }
}

/// Message if a setting could not be restored.
const NOT_RESTORED: &str = "not all settings are restored: see above";

/// Describes why a sweep ended early and whether all settings are restored.
fn describe_failure(error: &SweepError, removal: Option<String>, header: &Header, is_whole: bool) -> String {
    let why = match (error, removal) {
        (_, Some(removal)) => format!("{removal}; repeat the command to create it again ({error})"),
        (SweepError::Journal(JournalError::Refused { setting: Setting::Irq(irq), error, .. }), _)
            if matches!(error.raw_os_error(), Some(libc::EROFS | libc::EACCES)) =>
        {
            format!("interrupt {irq} cannot be moved from here ({error}): steer in software with --software")
        }
        (SweepError::Journal(JournalError::Refused { setting: Setting::Irq(irq), error, .. }), _) => format!(
            "interrupt {irq} cannot be moved ({error}): its driver manages it; steer in software with --software"
        ),
        (SweepError::Load { .. }, _) if header.sender.is_none() => match &header.load {
            Load::Iperf(iperf) => {
                format!(
                    "{error}; check that `iperf3 --server --port {}` runs on {}",
                    iperf.port, iperf.server
                )
            }
            Load::Command(words) => {
                format!("{error}; check the output of `{}`", sanitize(&words.join(" ")))
            }
        },
        _ => error.to_string(),
    };
    format!("{why}; {}", if is_whole { "all settings are restored" } else { NOT_RESTORED })
}

impl RunOptions {
    /// All combinations of the varied settings.
    fn variants(&self, what: &LoadOptions) -> Result<Vec<Variant>, String> {
        let is_varied = |parameter| self.variations.iter().any(|variation| variation.parameter == parameter);
        if is_varied(SweepParameter::Rfs) && is_varied(SweepParameter::Arfs) {
            return Err("--vary rfs and arfs set the same flow tables: vary one of them".into());
        }
        if is_varied(SweepParameter::ZeroCopy) && what.copy {
            return Err("--vary zero-copy sets the same option as --copy: leave --copy out".into());
        }
        for parameter in SweepParameter::ALL.into_iter().filter(|of| of.is_of_load() && is_varied(*of)) {
            what.takes(parameter)?;
        }
        for (index, variation) in self.variations.iter().enumerate() {
            let parameter = variation.parameter;
            if self.variations[..index].iter().any(|other| other.parameter == parameter) {
                return Err(format!("--vary {parameter} is given twice: give all its values at once"));
            }
            // A killed sweep's namespaces disappear together with their settings; a setting of the whole host would
            // stay changed.
            if what.lab && parameter.is_of_host() {
                return Err(format!(
                    "{parameter} is a setting of the whole host, not of --lab: vary it with --interface"
                ));
            }
        }
        Ok(variants(&self.variations))
    }

    /// The requested pairs, without duplicates.
    fn pairs(&self, testbed: &Testbed) -> Result<Vec<Pair>, String> {
        let mut pairs = match (&self.pairs[..], &self.cpus) {
            ([], None) => pairs_of(&testbed.flows, &testbed.applications),
            ([], Some(only)) => all_pairs(&only.iter().collect::<Vec<_>>()),
            (chosen, _) => chosen.to_vec(),
        };
        pairs.sort_unstable();
        pairs.dedup();
        for pair in &pairs {
            if classify(&testbed.header.places, *pair).is_none() {
                return Err(format!("the pair {pair} names a CPU that does not exist or is offline"));
            }
            if testbed.allowed.as_ref().is_some_and(|set| !set.contains(pair.application)) {
                let cpu = pair.application;
                return Err(format!(
                    "nothing can be bound to CPU {cpu}: it is outside this process's cpuset"
                ));
            }
        }
        Ok(pairs)
    }
}

impl Testbed {
    /// Checks that a sweep is possible and sets up the network for `runs` runs of `seconds`.
    pub fn set_up(what: &LoadOptions, seconds: u32, runs: u64) -> Result<Self, Box<dyn Error>> {
        let live = Tree::live();
        let name = match what.lab {
            true => netns_testbed::RECEIVER.parse()?,
            false => chosen(&live, what.interface.as_ref())?,
        };
        check_host(&live, (!what.lab).then_some(&name))?;
        let places = live.places();
        let allowed = allowed(&live);
        let usable = |cpu: u32| allowed.as_ref().is_none_or(|set| set.contains(cpu));
        let mut flows: Vec<u32> = places.iter().map(|place| place.cpu).collect();
        let mut applications: Vec<u32> = flows.iter().copied().filter(|cpu| usable(*cpu)).collect();
        if let Some(sender) = what.sender.filter(|sender| !applications.contains(sender)) {
            let open: CpuSet = applications.into_iter().collect();
            return Err(format!(
                "--sender {sender}: the CPU is not online or not available to this process; available are {open}"
            )
            .into());
        }
        let sender = what.lab.then(|| what.sender.or(applications.last().copied()).unwrap_or(0));
        for cpus in [&mut flows, &mut applications] {
            if cpus.len() > 2 {
                cpus.retain(|cpu| Some(*cpu) != sender);
            }
        }
        let limit = Duration::from_secs(runs.saturating_mul(u64::from(seconds) + 15).clamp(600, 30 * 86_400));
        let lab = sender
            .map(|cpu| NetnsTestbed::build(CpuSet::one(cpu), what.mtu.unwrap_or(9000), limit))
            .transpose()?;
        let host = lab.as_ref().map_or_else(Tree::live, NetnsTestbed::host);
        let nic = interfaces::read(&host, &name).ok_or_else(|| format!("there is no interface {name}"))?;
        if let Some(asked) = what.mtu.filter(|asked| Some(u64::from(*asked)) != nic.mtu) {
            return Err(format!("--mtu {asked}: {name} still has {} bytes", nic.mtu.unwrap_or(0)).into());
        }
        let steering = if what.software { Steering::software(&nic)? } else { Steering::of(&nic)? };
        let header = Header {
            affinity_sweep: Header::FORMAT,
            kernel: live.read("proc/sys/kernel/osrelease").unwrap_or_default(),
            processor: processor(&live),
            places,
            nic,
            steering,
            load: what.load()?,
            seconds,
            sender: sender.map(CpuSet::one),
        };
        Ok(Self { lab, host, header, flows, applications, allowed })
    }
}

impl Arguments {
    /// Rejects options that do not apply to the requested kind of sweep.
    fn check_options(&self) -> Result<(), String> {
        let method = match self.model.model {
            Some(_) => Method::Model,
            None => self.what.method().unwrap_or(Method::Connect),
        };
        let real = &[Method::Lab, Method::Connect, Method::Command];
        let model = &[Method::Model];
        let ModelOptions { model: _, frame_cycles, softirq_share, seeds, with, megabytes } = &self.model;
        let RunOptions { pairs: _, cpus: _, variations, repeats, seconds, seed: _ } = &self.which;
        let more = [
            ("--frame-cycles", frame_cycles.is_some(), &model[..]),
            ("--softirq-share", softirq_share.is_some(), model),
            ("--seeds", seeds.is_some(), model),
            ("--with", !with.is_empty(), model),
            ("--megabytes", megabytes.is_some(), model),
            ("--vary", !variations.is_empty(), real),
            ("--repeats", repeats.is_some(), real),
            ("--seconds", seconds.is_some(), real),
            ("--journal", self.journal.is_given(), real),
        ];
        option_scope::check(method, &[&self.what.options()[..], &more].concat())?;
        if softirq_share.is_some() && frame_cycles.is_none() {
            return Err(
                "--softirq-share divides the cycles of --frame-cycles: add it, such as --frame-cycles 3000"
                    .into(),
            );
        }
        Ok(())
    }
}

impl LoadOptions {
    /// The kind of measurement that the options select; `None` if they select none.
    pub fn method(&self) -> Option<Method> {
        match (self.lab, self.connect.is_some(), self.has_command()) {
            (true, ..) => Some(Method::Lab),
            (_, true, _) => Some(Method::Connect),
            (.., true) => Some(Method::Command),
            _ => None,
        }
    }

    /// The options that apply to some kinds of measurement only, and whether each is given. clap already rejects
    /// conflicting options that select a kind.
    pub fn options(&self) -> [ScopedOption; 7] {
        let Self {
            lab: _,
            interface: _,
            connect: _,
            udp,
            flows,
            copy,
            forward,
            software,
            sender,
            mtu,
            command: _,
        } = self;
        let (lab, iperf) = (&[Method::Lab], &[Method::Lab, Method::Connect]);
        [
            ("--udp", *udp, iperf),
            ("--flows", flows.is_some(), iperf),
            ("--copy", *copy, iperf),
            ("--forward", *forward, iperf),
            ("--software", *software, &[Method::Lab, Method::Connect, Method::Command, Method::Topology]),
            ("--sender", sender.is_some(), lab),
            ("--mtu", mtu.is_some(), &[Method::Lab, Method::Model]),
        ]
    }

    /// Whether a load command is given.
    pub fn has_command(&self) -> bool {
        !self.command.is_empty()
    }

    /// Checks that the load has an option that is varied.
    fn takes(&self, parameter: SweepParameter) -> Result<(), String> {
        let placeholder = parameter.placeholder();
        if self.command.iter().any(|word| word.contains(&placeholder)) {
            return Ok(());
        }
        match (self.has_command(), parameter) {
            (true, _) => Err(format!(
                "--vary {parameter}: the load command has no {placeholder}, which the value replaces"
            )),
            (_, SweepParameter::ZeroCopy) => Ok(()),
            (_, SweepParameter::MsgZerocopy) => Err(format!(
                "--vary {parameter}: iperf3 has no such option; give a load that has it, such as \
                 `-- longma affinity transfer HOST --seconds {{seconds}} --zero-copy {placeholder}`"
            )),
            _ => Err(format!(
                "--vary {parameter}: iperf3 has no such option; give a load that has it, with {placeholder} for the value"
            )),
        }
    }

    fn load(&self) -> Result<Load, String> {
        if !self.command.is_empty() {
            return Ok(Load::Command(self.command.clone()));
        }
        let (server, port) = match (&self.connect, self.lab) {
            (_, true) => (netns_testbed::SERVER_ADDRESS.into(), netns_testbed::PORT),
            (Some(place), _) => address(place)?,
            _ => return Err(
                "give --connect HOST to name the host where `iperf3 --server` runs, or --lab, or a load command after `--`"
                    .into(),
            ),
        };
        let (zero_copy, reverse) = (!self.copy && !self.udp, !self.forward);
        Ok(Load::Iperf(Iperf {
            server,
            port,
            zero_copy,
            reverse,
            udp: self.udp,
            flows: self.flows.unwrap_or(1),
        }))
    }
}

/// Parses HOST, HOST:PORT or [ADDRESS]:PORT.
fn address(place: &str) -> Result<(String, u16), String> {
    let wrong = || format!("`{}` is not HOST or HOST:PORT", sanitize(place));
    let plain = |host: &str| host.trim_start_matches('[').trim_end_matches(']').to_string();
    if place.is_empty() || place.starts_with('-') {
        return Err(wrong());
    }
    match place.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            Ok((plain(host), port.parse().map_err(|_| wrong())?))
        }
        _ => Ok((plain(place), netns_testbed::PORT)),
    }
}

/// The processor's name from /proc/cpuinfo.
pub fn processor(host: &dyn Host) -> String {
    let info = host.read("proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|line| line.to_ascii_lowercase().starts_with("model name"));
    line.and_then(|line| line.split(':').nth(1)).map_or("unknown".into(), |name| name.trim().into())
}

/// Reports conditions that would disturb the measurement; fails on conditions that prevent it.
fn check_host(host: &Tree, name: Option<&Interface>) -> Result<(), Box<dyn Error>> {
    let before = Reading::now(host);
    std::thread::sleep(Duration::from_millis(300));
    for finding in check(host, name, Some((&before, &Reading::now(host)))) {
        let advice = finding.advice.unwrap_or_default();
        match finding.weight {
            Severity::Prevents => {
                return Err(format!("{}: {}; {advice}", finding.subject, finding.found).into());
            }
            Severity::Disturbs => {
                terminal::warn(&format!("{}: {}; {advice}", finding.subject, finding.found))
            }
            Severity::Good | Severity::Note => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_address_may_have_a_port_and_ipv6_needs_brackets() {
        assert_eq!(address("10.0.0.1"), Ok(("10.0.0.1".into(), 5201)));
        assert_eq!(address("far:99"), Ok(("far".into(), 99)));
        assert_eq!(address("[fe80::1]:99"), Ok(("fe80::1".into(), 99)));
        assert_eq!(address("fe80::1"), Ok(("fe80::1".into(), 5201)));
        assert!(address("far:x").is_err() && address("").is_err() && address("-x").is_err());
    }
}
