//! `longma affinity tune`: a daemon that keeps flows and their applications on nearby CPUs. `longma_affinity::tune`
//! makes the decisions.

use super::record::TreeOption;
use super::terminal::{self, print, print_json_line};
use super::why::line;
use super::{
    Format, JournalOption, Outcome, StateOption, chosen, cpus, interface, interruption, own_sys, restore,
};
use longma_affinity::host::{Host, Tree};
use longma_affinity::interface as interfaces;
use longma_affinity::journal::{Journal, Restored};
use longma_affinity::recording::{Recording, dry_run};
use longma_affinity::setting::Interface;
use longma_affinity::tune::log::{Decision, DecisionKind, Log};
use longma_affinity::tune::metrics::{Exporter, Metrics};
use longma_affinity::tune::{CONFIRM_INTERVAL, Exclusions, Tuner, pause, service};
use longma_affinity::watch::{Observation, Watch};
use longma_cpu_set::CpuSet;
use longma_text::display_path;
use std::error::Error;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Arguments {
    /// Watch flows of this interface; may be repeated [default: the only interface that is up and has a device].
    #[arg(long = "interface", value_name = "NAME", value_parser = interface)]
    interfaces: Vec<Interface>,
    /// Print decisions without carrying them out.
    #[arg(long)]
    dry_run: bool,
    /// Use only these CPUs.
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    cpus: Option<CpuSet>,
    /// Leave this interrupt alone; may be repeated.
    #[arg(long = "exclude-irq", value_name = "NUMBER")]
    irqs: Vec<u32>,
    /// Leave this process alone; may be repeated.
    ///
    /// Give its process ID, the name of one of its threads, or the name of its program.
    #[arg(long = "exclude-process", value_name = "NUMBER|NAME")]
    processes: Vec<String>,
    /// Leave flows with this local or remote port alone; may be repeated.
    #[arg(long = "exclude-port", value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    ports: Vec<u16>,
    /// Leave flows alone whose thread receives and sends less than this many megabits (10^6 bits) per second in total.
    #[arg(long, value_name = "MBIT", default_value_t = 100.0, value_parser = rate)]
    min_rate: f64,
    /// Write a systemd unit to this folder. The unit runs `tune` with these options, and `restore` after any exit.
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, require_equals = true,
        default_missing_value = service::FOLDER, conflicts_with_all = ["dry_run", "seconds", "tree"])]
    install: Option<PathBuf>,
    /// Exit after this many seconds [default: at Ctrl-C or SIGTERM].
    #[arg(long = "for", value_name = "SECONDS", value_parser = |text: &str| super::seconds(text, 31_536_000))]
    seconds: Option<u32>,
    /// Serve metrics for Prometheus at http://ADDRESS/metrics [default address: 127.0.0.1:9871].
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, require_equals = true,
        default_missing_value = "127.0.0.1:9871", value_parser = socket_address, conflicts_with = "tree")]
    metrics_listen: Option<SocketAddr>,
    /// Write metrics for Prometheus's textfile collector to this file after each observation.
    #[arg(long, value_name = "FILE", conflicts_with = "tree")]
    metrics_file: Option<PathBuf>,
    #[command(flatten)]
    tree: TreeOption,
    #[command(flatten)]
    state: StateOption,
    #[command(flatten)]
    journal: JournalOption,
    /// Output format; `json` prints one line per decision.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

impl Arguments {
    fn exclusions(&self) -> Exclusions {
        Exclusions {
            cpus: self.cpus.clone(),
            irqs: self.irqs.iter().copied().collect(),
            processes: self.processes.iter().cloned().collect(),
            ports: self.ports.iter().copied().collect(),
            min_bytes: self.min_rate * 1e6 / 8.0,
        }
    }
}

/// A rate in megabits per second.
fn rate(text: &str) -> Result<f64, String> {
    let rate: Option<f64> = text.parse().ok();
    rate.filter(|rate| (0.0..=1e7).contains(rate)).ok_or("give a number of Mb/s from 0 to 10000000".into())
}

fn socket_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "give an address and a port, such as 127.0.0.1:9871 or [::1]:9871".into())
}

/// Interval at which a sleep checks for a request to stop.
const NAP: Duration = Duration::from_millis(50);

pub fn run(arguments: &Arguments) -> Outcome {
    if let Some(recording) = arguments.tree.open()? {
        return replay(arguments, &recording);
    }
    let stop = interruption()?;
    let host = Tree::live();
    let interfaces = watched(&host, &arguments.interfaces)?;
    let online: CpuSet = host.places().iter().map(|place| place.cpu).collect();
    if let Some(cpu) = arguments.cpus.iter().flat_map(CpuSet::iter).find(|cpu| !online.contains(*cpu)) {
        return Err(format!(
            "--cpus names CPU {cpu}, which does not exist or is offline; online are {online}"
        )
        .into());
    }
    if let Some(irq) = arguments.irqs.iter().find(|irq| host.names(&format!("proc/irq/{irq}")).is_empty()) {
        return Err(format!("--exclude-irq {irq}: there is no such interrupt in /proc/irq").into());
    }
    if !arguments.dry_run && !rustix::process::geteuid().is_root() {
        return Err("not root: cannot move interrupts and other users' threads; run with sudo, or add --dry-run to see the decisions for your own programs".into());
    }
    if let Some(folder) = &arguments.install {
        return install(arguments, folder);
    }
    let mut journal = match arguments.dry_run {
        true => None,
        false => Some(arguments.journal.begin(&host)?),
    };
    if let Some(journal) = &mut journal {
        let nics = interfaces.iter().filter_map(|name| interfaces::read(&host, name));
        for nic in nics.collect::<Vec<_>>().iter().flat_map(|nic| nic.physical()) {
            journal.claim(&nic.name)?;
        }
    }
    let log = arguments.state.open()?;
    if let Some(path) = &arguments.metrics_file {
        let written = Metrics::default().write(path);
        written.map_err(|error| format!("--metrics-file {}: {error}", display_path(path)))?;
    }
    let exporter = arguments.metrics_listen.map(listen).transpose()?;
    let mut session = Session {
        arguments,
        log,
        begin: Instant::now(),
        looks: 0,
        max_connections: 0,
        metrics: Metrics::default(),
        exporter,
    };
    let watching = session.watch(&host, interfaces, journal.as_mut(), &stop);
    let restored = journal.map(Journal::restore).transpose()?;
    let words = format!("{}; {}", back(restored.as_ref()), session.used());
    session.report(&Decision::new(DecisionKind::Ended, "longma", words))?;
    watching?;
    Ok(if restored.is_none_or(|restored| restored.is_whole()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Serves metrics on `address`.
fn listen(address: SocketAddr) -> Result<Exporter, String> {
    let exporter = Exporter::listen(address)
        .map_err(|error| format!("--metrics-listen {address}: {error}; choose another address"))?;
    terminal::warn(&format!("metrics: http://{}/metrics", exporter.address()));
    Ok(exporter)
}

/// Installs the unit after validating the options on this host.
fn install(arguments: &Arguments, folder: &Path) -> Outcome {
    let words = std::env::args_os().skip_while(|word| word != "tune").skip(1);
    let words = words.map(|word| word.to_string_lossy().into_owned());
    let journal = std::path::absolute(arguments.journal.path())?;
    let mut options = service::options(words);
    // systemd does not pass the environment of this command on.
    let is_named = options.iter().any(|word| word == "--state" || word.starts_with("--state="));
    if let Some(state) = arguments.state.named().filter(|_| !is_named) {
        options.extend(["--state".into(), std::path::absolute(state)?.to_string_lossy().into_owned()]);
    }
    let path = service::install(folder, &std::env::current_exe()?, &options, &journal)?;
    let unit = service::NAME;
    print(&format!(
        "{} is written. To start it now and at each boot: systemctl daemon-reload && systemctl enable --now {unit}\n",
        display_path(&path)
    ))
}

/// Prints the decisions on a recorded host.
fn replay(arguments: &Arguments, recording: &Recording) -> Outcome {
    if !arguments.dry_run {
        return Err("a recorded host cannot be changed: add --dry-run".into());
    }
    if !arguments.interfaces.is_empty() {
        watched(recording, &arguments.interfaces)?;
    }
    let decisions = dry_run(recording, &arguments.interfaces, arguments.exclusions())?;
    for decision in &decisions {
        show(arguments.format, decision)?;
    }
    if decisions.is_empty() && arguments.format == Format::Table {
        print("No flow would be moved.\n")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(format: Format, decision: &Decision) -> Outcome {
    match format {
        Format::Json => print_json_line(&serde_json::to_value(decision)?),
        Format::Table => print(&line(decision, super::width())),
    }
}

/// Describes what was restored, as the first part of a sentence.
fn back(restored: Option<&Restored>) -> String {
    match restored.filter(|restored| !restored.settings.is_empty()) {
        None => "nothing was changed".into(),
        Some(restored) => restore::text(restored).trim().trim_end_matches('.').replace('\n', "; "),
    }
}

/// The named interfaces, or the only candidate.
fn watched(host: &dyn Host, named: &[Interface]) -> Result<Vec<Interface>, String> {
    own_sys(host)?;
    if let Some(missing) = named.iter().find(|name| interfaces::read(host, name).is_none()) {
        let names: Vec<String> = interfaces::names(host).into_iter().map(String::from).collect();
        return Err(format!("there is no interface {missing}; there are: {}", names.join(", ")));
    }
    if named.is_empty() {
        return Ok(vec![chosen(host, None)?]);
    }
    // The flows of an interface that is named twice count once.
    let mut once = Vec::new();
    for name in named {
        if !once.contains(name) {
            once.push(name.clone());
        }
    }
    Ok(once)
}

struct Session<'a> {
    arguments: &'a Arguments,
    log: Log,
    begin: Instant,
    looks: u64,
    /// The largest number of connections in one observation.
    max_connections: usize,
    metrics: Metrics,
    exporter: Option<Exporter>,
}

impl Session<'_> {
    fn watch(
        &mut self,
        host: &dyn Host,
        interfaces: Vec<Interface>,
        mut journal: Option<&mut Journal<'_>>,
        stop: &AtomicBool,
    ) -> Result<(), Box<dyn Error>> {
        let names: Vec<&str> = interfaces.iter().map(Interface::name).collect();
        let mode = if self.arguments.dry_run { ", dry run" } else { "" };
        let words = format!("watching {}{mode}{}", names.join(", "), self.left_alone());
        self.report(&Decision::new(DecisionKind::Begun, "longma", words))?;
        let (mut watch, mut tuner) = (Watch::new(interfaces), Tuner::new(self.arguments.exclusions()));
        let limit =
            self.arguments.seconds.map_or(Duration::MAX, |seconds| Duration::from_secs(seconds.into()));
        // The first observation has no rates, so it permits no decision.
        self.max_connections = watch.observe(host).connections;
        let mut next = CONFIRM_INTERVAL;
        while self.nap(next.min(limit.saturating_sub(self.begin.elapsed())), stop)
            && self.begin.elapsed() < limit
        {
            let before = cpu_seconds();
            let observation = watch.observe(host);
            (self.looks, self.max_connections) =
                (self.looks + 1, self.max_connections.max(observation.connections));
            for decision in tuner.step(&observation, journal.as_deref_mut(), self.begin.elapsed())? {
                self.report(&decision)?;
            }
            self.export(&observation);
            let cost = Duration::from_secs_f64((cpu_seconds() - before).max(0.0));
            next = if tuner.is_waiting() { CONFIRM_INTERVAL } else { pause(cost) };
        }
        Ok(())
    }

    /// Publishes the metrics of an observation. A file that cannot be written does not end the daemon.
    fn export(&mut self, observation: &Observation) {
        self.metrics.observe(observation, cpu_seconds());
        if let Some(exporter) = &self.exporter {
            exporter.show(&self.metrics);
        }
        if let Some(path) = &self.arguments.metrics_file
            && let Err(error) = self.metrics.write(path)
        {
            terminal::warn(&format!("--metrics-file {}: {error}", display_path(path)));
        }
    }

    /// Sleeps; returns false if asked to stop.
    fn nap(&self, pause: Duration, stop: &AtomicBool) -> bool {
        let until = Instant::now() + pause;
        while !stop.load(Ordering::Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(NAP));
        }
        false
    }

    /// Describes the excluded objects.
    fn left_alone(&self) -> String {
        let Arguments { cpus, irqs, processes, ports, min_rate, .. } = self.arguments;
        let mut words: Vec<String> = Vec::new();
        words.extend(cpus.iter().map(|cpus| format!("all CPUs except {cpus}")));
        words.extend(irqs.iter().map(|irq| format!("interrupt {irq}")));
        words.extend(processes.iter().map(|process| format!("process {process}")));
        words.extend(ports.iter().map(|port| format!("port {port}")));
        words.push(format!("flows below {min_rate} Mb/s"));
        format!("; left alone: {}", words.join(", "))
    }

    /// Prints a decision and writes it to the log. A failed write to the log, for example on a full disk, does not end
    /// the daemon.
    fn report(&mut self, decision: &Decision) -> Result<(), Box<dyn Error>> {
        self.metrics.count(decision);
        if let Err(error) = self.log.add(decision) {
            let path = self.arguments.state.path();
            terminal::warn(&format!("the log of decisions {}: {error}", display_path(&path)));
        }
        show(self.arguments.format, decision).map(drop)
    }

    /// The daemon's own CPU time.
    fn used(&self) -> String {
        let seconds = self.begin.elapsed().as_secs_f64();
        let cpu = cpu_seconds();
        format!(
            "{} observations in {seconds:.1} s of up to {} flows took {cpu:.3} s of CPU time, {:.2} % of a core",
            self.looks,
            self.max_connections,
            cpu / seconds.max(1e-3) * 100.0
        )
    }
}

/// CPU time of this process in seconds (getrusage).
fn cpu_seconds() -> f64 {
    let time = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF);
    let seconds = |of: nix::sys::time::TimeVal| of.tv_sec() as f64 + of.tv_usec() as f64 / 1e6;
    time.map_or(0.0, |usage| seconds(usage.user_time()) + seconds(usage.system_time()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_affinity::journal::RestoreOutcome;
    use longma_affinity::setting::Setting;

    #[test]
    fn restored_settings_start_the_final_message() {
        assert_eq!(back(None), "nothing was changed");
        assert_eq!(back(Some(&Restored::default())), "nothing was changed");
        let foreign = RestoreOutcome::Foreign { found: "1".into() };
        let settings = vec![(Setting::Irq(7), RestoreOutcome::Restored), (Setting::Irq(8), foreign)];
        assert_eq!(
            back(Some(&Restored { settings, may_be_another: false })),
            "/proc/irq/8/smp_affinity_list: another program changed it to `1`: left unchanged; 1 setting is restored"
        );
    }
}
