//! `longma affinity sweep`: measures pairs of CPUs, and puts everything back.
//! Not the measurement: that is `longma-affinity`.

use super::ways::{self, Limited, Way};
use super::{
    Format, INTERRUPTED, JournalOption, Outcome, chosen, cpus, interface, interruption, modelled, pair,
    report, restore, said,
};
use longma_affinity::counters::Reading;
use longma_affinity::cpus::CpuSet;
use longma_affinity::host::{Host, Tree};
use longma_affinity::interface as interfaces;
use longma_affinity::journal::JournalError;
use longma_affinity::lab::{self, Lab};
use longma_affinity::load::{Iperf, Load};
use longma_affinity::places::{Pair, all_pairs, classify, pairs_of};
use longma_affinity::preflight::{Weight, allowed, check};
use longma_affinity::setting::{Interface, Setting};
use longma_affinity::steering::Steering;
use longma_affinity::sweep::{self, Header, Plan, ResultFile, Results, Sample, Setup, SweepError};
use longma_affinity::vary::{self, Variant, Variation, variants};
use longma_topology::{harmless, shown};
use longma_workloads::pairs::{Offload, Sweep};
use std::error::Error;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    model: Model,
    /// The file of results; a sweep that was stopped goes on where it was [default: affinity.jsonl, and none with --model].
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    journal: JournalOption,
    /// How to print.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// A model in place of this host.
#[derive(clap::Args)]
struct Model {
    /// Sweep this modelled machine, in simulated time, in place of this host; nothing is written but the report and what --output names.
    #[arg(long, value_name = "MACHINE", conflicts_with_all = ["lab", "interface", "connect", "command"])]
    model: Option<String>,
    /// Cycles of each frame besides the modelled receiver's own: for what a kernel does and it does not. They are simulated one by one, for
    /// some 3000 frames a pair: 100000 take as long as everything else [default: 0].
    #[arg(long, value_name = "CYCLES", value_parser = clap::value_parser!(u32).range(..=i64::from(modelled::MOST_FRAME_CYCLES)))]
    frame_cycles: Option<u32>,
    /// Measure every modelled pair with so many seeds of what is random, --seed and those that follow it [default: 1].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100))]
    seeds: Option<u32>,
    /// What the modelled NIC and kernel do besides, as `rfs=1`; may be repeated: gro, lro, rps, rfs, send_queues, xps, busy_us, threaded,
    /// napi, ring, delay_ns, frames, budget, near, before.
    #[arg(long = "with", value_name = "NAME=VALUE")]
    with: Vec<Offload>,
    /// 10^6 bytes over which the rate of each pair is measured, behind 19 that warm the caches and settle; at most 2 more, to end as it began [default: 8].
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(modelled::MEGABYTES))]
    megabytes: Option<u64>,
}

/// The network and the load.
#[derive(clap::Args)]
pub struct What {
    /// Make two network namespaces on this host with an iperf3 server in one, and take them down afterwards.
    #[arg(long, conflicts_with_all = ["interface", "connect"])]
    pub lab: bool,
    /// The interface that the flows come in by.
    #[arg(long, value_name = "NAME", value_parser = interface)]
    pub interface: Option<Interface>,
    /// The host where `iperf3 --server` runs.
    #[arg(long, value_name = "HOST[:PORT]")]
    pub connect: Option<String>,
    /// UDP and not TCP.
    #[arg(long)]
    udp: bool,
    /// Flows at once [default: 1].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=128))]
    flows: Option<u32>,
    /// The sender copies its data; otherwise it sends from the page cache.
    #[arg(long)]
    copy: bool,
    /// This host sends; otherwise it receives.
    #[arg(long)]
    forward: bool,
    /// Steer packets in software (RPS) even if the NIC has interrupts.
    #[arg(long)]
    pub software: bool,
    /// With --lab: the sender's CPU [default: the last; of three or more CPUs it is kept out of the pairs].
    #[arg(long, value_name = "CPU")]
    sender: Option<u32>,
    /// With --lab or --model: bytes of a packet [default: 9000, or the modelled NIC's].
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1280..=65535))]
    mtu: Option<u32>,
    /// A load instead of iperf3: a command that prints a rate such as `12.5 Gbit/s`; {seconds} stands for a run's length.
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["lab", "connect"])]
    command: Vec<String>,
}

/// The runs.
#[derive(clap::Args)]
struct Which {
    /// A pair to measure; may be repeated [default: all pairs].
    #[arg(long = "pair", value_name = "FLOW,APPLICATION", value_parser = pair)]
    pairs: Vec<Pair>,
    /// Only pairs of these CPUs.
    #[arg(long, value_name = "LIST", value_parser = cpus, conflicts_with = "pairs")]
    cpus: Option<CpuSet>,
    /// Measure every pair with each of these values of a setting of the interface, as `gro=1,0`: gro, lro, tso, gso, rx-ring, rx-usecs,
    /// mtu, threaded, busy-poll, rfs, xps (a mask). May be repeated: all combinations are measured.
    #[arg(long = "vary", value_name = "NAME=VALUE,...")]
    variations: Vec<Variation>,
    /// How often each pair is measured [default: 3].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: Option<u32>,
    /// Seconds of a run [default: 2].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,
    /// Decides the order of the runs.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

/// A network to measure in, set up.
pub struct Ground {
    lab: Option<Lab>,
    host: Tree,
    /// What all runs have in common.
    pub header: Header,
    /// The CPUs that flows are steered to: a cpuset does not bind those.
    pub flows: Vec<u32>,
    /// The CPUs that applications are bound to.
    pub applications: Vec<u32>,
    /// The CPUs that a program may be bound to; none if the kernel does not say.
    allowed: Option<CpuSet>,
}

pub fn run(arguments: &Arguments) -> Outcome {
    arguments.fit()?;
    let stop = interruption()?;
    let which = &arguments.which;
    if let Some(machine) = &arguments.model.model {
        let pairs = match &which.cpus {
            Some(only) => all_pairs(&only.iter().collect::<Vec<_>>()),
            None => which.pairs.clone(),
        };
        let Model { frame_cycles, megabytes, seeds, ref with, .. } = arguments.model;
        for (index, offload) in with.iter().enumerate() {
            if with[..index].iter().any(|other| other.name == offload.name) {
                return Err(format!("--with {} is given twice", offload.name).into());
            }
        }
        let sweep = Sweep {
            // This very file, though another one takes its name meanwhile.
            longma: Path::new("/proc/self/exe"),
            machine,
            pairs,
            frame_cycles: frame_cycles.unwrap_or(0),
            bytes: megabytes.unwrap_or(8) * 1_000_000,
            seed: which.seed,
            seeds: seeds.unwrap_or(1),
            mtu: arguments.what.mtu.map(u64::from),
            settings: with.clone(),
        };
        return modelled::run(&sweep, arguments.output.as_deref(), arguments.format, &stop);
    }
    let variants = which.variants(arguments.what.lab)?;
    let (repeats, seconds) = (which.repeats.unwrap_or(3), which.seconds.unwrap_or(2));
    let rounds = u64::from(repeats) * which.pairs.len().max(4096) as u64 * variants.len() as u64;
    let mut ground = Ground::set_up(&arguments.what, seconds, rounds)?;
    if let Some(beyond) = vary::beyond(&ground.host, &ground.header.nic, &variants) {
        return Err(format!("--vary {beyond}").into());
    }
    let pairs = which.pairs(&ground)?;
    for words in vary::idle(&which.variations, &ground.header.nic, &ground.header.load, &pairs) {
        said::note(&format!("note: --vary {words}"));
    }
    let plan = Plan { pairs, variants, repeats, seed: which.seed };
    // What a killed sweep left changed is said before what it makes differ from the file's other runs.
    drop(arguments.journal.begin(&ground.host)?);
    let output = arguments.output.as_deref().unwrap_or(Path::new("affinity.jsonl"));
    let mut results = ResultFile::open(output, &ground.header)?;
    said::cut(output, results.is_cut);
    let outcome = measure(&plan, &mut ground, &arguments.journal, &mut results, &stop)
        .map_err(|error| kept(&error.to_string(), &results, output))?;
    drop((results, ground));
    report::print(&Results::read(output)?, arguments.format)?;
    if outcome.stopped {
        said::note("stopped; the same command goes on with the runs that are missing");
        return Ok(ExitCode::from(INTERRUPTED));
    }
    if outcome.failed > 0 {
        said::note(&format!("{} runs failed; the same command makes them again", outcome.failed));
    }
    Ok(if outcome.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// An error with what of the sweep is there in spite of it.
fn kept(error: &str, results: &ResultFile, file: &Path) -> String {
    let good = results.known.iter().filter(|sample| sample.rate.is_some()).count();
    let plural = if good == 1 { "run with a result is" } else { "runs with a result are" };
    format!(
        "{error}; {good} {plural} in {}: the same command goes on with those that are missing",
        shown(file)
    )
}

/// Makes the runs, and puts the settings back whatever happens.
pub fn measure(
    plan: &Plan,
    ground: &mut Ground,
    journal: &JournalOption,
    results: &mut ResultFile,
    stop: &AtomicBool,
) -> Result<sweep::Outcome, Box<dyn Error>> {
    let Ground { lab, host, header, .. } = ground;
    let mut journal = journal.begin(host)?;
    let namespace = lab.as_ref().map(Lab::receiver);
    let mut after_failure = || match lab.as_mut().map(Lab::restart_server)? {
        Ok(ended) => ended,
        Err(error) => Some(error.to_string()),
    };
    let mut setup = Setup { host, header, namespace, after_failure: &mut after_failure, stop };
    let bar = std::io::stderr().is_terminal();
    let mut said: Option<Variant> = None;
    let mut tell = |sample: &Sample, done: usize, all: usize| {
        if bar {
            let rate = sample.rate.map_or("failed".into(), |rate| format!("{:.2} Gb/s", rate.gbps));
            said::progress(&format!(
                "{done} of {all}: flow on {}, application on {}: {rate}",
                sample.pair.flow, sample.pair.application
            ));
        }
        if let Some(failure) = &sample.failure
            // A combination that is refused is said once, not for each of its runs.
            && (!sample.refused || said.replace(sample.variant.clone()).is_none_or(|last| last != sample.variant))
        {
            if bar {
                said::progress("");
            }
            said::note(&format!("pair {}: {failure}", sample.pair));
        }
    };
    let outcome = sweep::run(plan, &mut setup, &mut journal, results, &mut tell);
    if bar {
        said::progress("");
    }
    let restored = journal.restore();
    // Without its namespaces every later step fails too: name the cause, not the step that met it first.
    let gone = ground.lab.as_mut().and_then(Lab::gone);
    let restored = match (restored, &gone) {
        (Err(error), Some(gone)) => return Err(format!("{gone}; the same command builds it again ({error})").into()),
        (restored, _) => restored?,
    };
    if !restored.is_whole() {
        said::lines(&restore::text(&restored));
    }
    match outcome {
        Ok(_) if !restored.is_whole() => Err(NOT_BACK.into()),
        Ok(outcome) => Ok(outcome),
        Err(error) => Err(in_words(&error, gone, &ground.header, restored.is_whole()).into()),
    }
}

/// What is said where a setting could not be put back.
const NOT_BACK: &str = "not all settings are as before: see above";

/// Why a sweep ended early, and whether the host is as it was.
fn in_words(error: &SweepError, gone: Option<String>, header: &Header, is_whole: bool) -> String {
    let why = match (error, gone) {
        (_, Some(gone)) => format!("{gone}; the same command builds it again ({error})"),
        (SweepError::Journal(JournalError::Refused { setting: Setting::Irq(irq), error, .. }), _)
            if matches!(error.raw_os_error(), Some(libc::EROFS | libc::EACCES)) =>
        {
            format!("interrupt {irq} cannot be moved from here ({error}): steer in software with --software")
        }
        (SweepError::Journal(JournalError::Refused { setting: Setting::Irq(irq), error, .. }), _) => format!(
            "interrupt {irq} refuses to be moved ({error}): its driver manages it; steer in software with --software"
        ),
        (SweepError::Load { .. }, _) if header.sender.is_none() => match &header.load {
            Load::Iperf(iperf) => {
                format!(
                    "{error}; look whether `iperf3 --server --port {}` runs on {}",
                    iperf.port, iperf.server
                )
            }
            Load::Command(words) => {
                format!("{error}; look what `{}` says by itself", harmless(&words.join(" ")))
            }
        },
        _ => error.to_string(),
    };
    format!("{why}; {}", if is_whole { "all settings are as before" } else { NOT_BACK })
}

impl Which {
    /// Every combination of what is varied.
    fn variants(&self, is_lab: bool) -> Result<Vec<Variant>, String> {
        for (index, variation) in self.variations.iter().enumerate() {
            let knob = variation.knob;
            if self.variations[..index].iter().any(|other| other.knob == knob) {
                return Err(format!("--vary {knob} is given twice: give all its values at once"));
            }
            // What a killed sweep leaves in the laboratory is gone with it; this would not be.
            if is_lab && knob.is_of_host() {
                return Err(format!(
                    "{knob} is the whole host's and not the laboratory's: vary it with --interface"
                ));
            }
        }
        Ok(variants(&self.variations))
    }

    /// The pairs that are asked for, each once.
    fn pairs(&self, ground: &Ground) -> Result<Vec<Pair>, String> {
        let mut pairs = match (&self.pairs[..], &self.cpus) {
            ([], None) => pairs_of(&ground.flows, &ground.applications),
            ([], Some(only)) => all_pairs(&only.iter().collect::<Vec<_>>()),
            (chosen, _) => chosen.to_vec(),
        };
        pairs.sort_unstable();
        pairs.dedup();
        for pair in &pairs {
            if classify(&ground.header.places, *pair).is_none() {
                return Err(format!("the pair {pair} names a CPU that is not there or not online"));
            }
            if ground.allowed.as_ref().is_some_and(|set| !set.contains(pair.application)) {
                let cpu = pair.application;
                return Err(format!(
                    "nothing can be bound to CPU {cpu}: it is outside this process's cpuset"
                ));
            }
        }
        Ok(pairs)
    }
}

impl Ground {
    /// Looks whether a sweep can be made, and sets up what it needs for `runs` runs of `seconds`.
    pub fn set_up(what: &What, seconds: u32, runs: u64) -> Result<Self, Box<dyn Error>> {
        let live = Tree::live();
        let name = match what.lab {
            true => lab::RECEIVER.parse()?,
            false => chosen(&live, what.interface.as_ref())?,
        };
        complain(&live, (!what.lab).then_some(&name))?;
        let places = live.places();
        let allowed = allowed(&live);
        let usable = |cpu: u32| allowed.as_ref().is_none_or(|set| set.contains(cpu));
        let mut flows: Vec<u32> = places.iter().map(|place| place.cpu).collect();
        let mut applications: Vec<u32> = flows.iter().copied().filter(|cpu| usable(*cpu)).collect();
        if let Some(sender) = what.sender.filter(|sender| !applications.contains(sender)) {
            let open: CpuSet = applications.into_iter().collect();
            return Err(format!(
                "--sender {sender}: no such CPU is online and open to this process: there are {open}"
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
        let lab =
            sender.map(|cpu| Lab::build(CpuSet::one(cpu), what.mtu.unwrap_or(9000), limit)).transpose()?;
        let host = lab.as_ref().map_or_else(Tree::live, Lab::host);
        let nic = interfaces::read(&host, &name).ok_or_else(|| format!("there is no interface {name}"))?;
        if let Some(asked) = what.mtu.filter(|asked| Some(u64::from(*asked)) != nic.mtu) {
            return Err(
                format!("--mtu {asked}: {name} has {} bytes in spite of it", nic.mtu.unwrap_or(0)).into()
            );
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
    /// Refuses options of another way to sweep than the one that is asked for.
    fn fit(&self) -> Result<(), String> {
        let way = match self.model.model {
            Some(_) => Way::Model,
            None => self.what.way().unwrap_or(Way::Connect),
        };
        let real = &[Way::Lab, Way::Connect, Way::Command];
        let model = &[Way::Model];
        let Model { model: _, frame_cycles, seeds, with, megabytes } = &self.model;
        let Which { pairs: _, cpus: _, variations, repeats, seconds, seed: _ } = &self.which;
        let more = [
            ("--frame-cycles", frame_cycles.is_some(), &model[..]),
            ("--seeds", seeds.is_some(), model),
            ("--with", !with.is_empty(), model),
            ("--megabytes", megabytes.is_some(), model),
            ("--vary", !variations.is_empty(), real),
            ("--repeats", repeats.is_some(), real),
            ("--seconds", seconds.is_some(), real),
            ("--journal", self.journal.is_given(), real),
        ];
        ways::fit(way, &[&self.what.options()[..], &more].concat())
    }
}

impl What {
    /// What is measured; none if nothing says so.
    pub fn way(&self) -> Option<Way> {
        match (self.lab, self.connect.is_some(), self.has_command()) {
            (true, ..) => Some(Way::Lab),
            (_, true, _) => Some(Way::Connect),
            (.., true) => Some(Way::Command),
            _ => None,
        }
    }

    /// Its options, whether each is given, and the ways that it belongs to. Those that name a way are refused beside each other before.
    pub fn options(&self) -> [Limited; 7] {
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
        let (lab, iperf) = (&[Way::Lab], &[Way::Lab, Way::Connect]);
        [
            ("--udp", *udp, iperf),
            ("--flows", flows.is_some(), iperf),
            ("--copy", *copy, iperf),
            ("--forward", *forward, iperf),
            ("--software", *software, &[Way::Lab, Way::Connect, Way::Command, Way::Topology]),
            ("--sender", sender.is_some(), lab),
            ("--mtu", mtu.is_some(), &[Way::Lab, Way::Model]),
        ]
    }

    /// Whether a load other than iperf3 is given.
    pub fn has_command(&self) -> bool {
        !self.command.is_empty()
    }

    fn load(&self) -> Result<Load, String> {
        if !self.command.is_empty() {
            return Ok(Load::Command(self.command.clone()));
        }
        let (server, port) = match (&self.connect, self.lab) {
            (_, true) => (lab::SERVER_ADDRESS.into(), lab::PORT),
            (Some(place), _) => address(place)?,
            _ => return Err(
                "say where `iperf3 --server` runs with --connect HOST, or --lab, or give a load: -- COMMAND"
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

/// HOST, HOST:PORT or [ADDRESS]:PORT.
fn address(place: &str) -> Result<(String, u16), String> {
    let wrong = || format!("`{}` is no HOST or HOST:PORT", harmless(place));
    let plain = |host: &str| host.trim_start_matches('[').trim_end_matches(']').to_string();
    if place.is_empty() || place.starts_with('-') {
        return Err(wrong());
    }
    match place.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            Ok((plain(host), port.parse().map_err(|_| wrong())?))
        }
        _ => Ok((plain(place), lab::PORT)),
    }
}

/// The processor's name, as /proc/cpuinfo has it.
pub fn processor(host: &dyn Host) -> String {
    let info = host.read("proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|line| line.to_ascii_lowercase().starts_with("model name"));
    line.and_then(|line| line.split(':').nth(1)).map_or("unknown".into(), |name| name.trim().into())
}

/// Tells what would disturb, and refuses what cannot be.
fn complain(host: &Tree, name: Option<&Interface>) -> Result<(), Box<dyn Error>> {
    let before = Reading::now(host);
    std::thread::sleep(Duration::from_millis(300));
    for finding in check(host, name, Some((&before, &Reading::now(host)))) {
        let advice = finding.advice.unwrap_or_default();
        match finding.weight {
            Weight::Prevents => {
                return Err(format!("{}: {}; {advice}", finding.subject, finding.found).into());
            }
            Weight::Disturbs => said::note(&format!("{}: {}; {advice}", finding.subject, finding.found)),
            Weight::Good | Weight::Note => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_have_a_port_and_six_has_brackets() {
        assert_eq!(address("10.0.0.1"), Ok(("10.0.0.1".into(), 5201)));
        assert_eq!(address("far:99"), Ok(("far".into(), 99)));
        assert_eq!(address("[fe80::1]:99"), Ok(("fe80::1".into(), 99)));
        assert_eq!(address("fe80::1"), Ok(("fe80::1".into(), 5201)));
        assert!(address("far:x").is_err() && address("").is_err() && address("-x").is_err());
    }
}
