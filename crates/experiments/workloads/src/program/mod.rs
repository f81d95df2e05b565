//! The workload `program`: runs a guest program with `longma run`. Its metrics are the run's statistics and numbers
//! that the program prints. The command runs as a child process, because a guest program ends the process it runs in.
//!
//! docs/src/reference/run.md describes `longma run` and its statistics.

mod checkpoint;
mod inputs;
mod parameters;
mod rehearsal;
mod root;
mod unused_keys;

use checkpoint::Checkpoints;
use inputs::{input_files, name, program, program_path, working_folder};
use longma_lab::{
    Failure, FailureKind, InputFile, Metrics, Parameter, Point, Rehearsal, Setting, Stop, Workload, digest,
};
use longma_locks::IgnorePoison;
use regex::Regex;
use root::{copied_root, root, root_files};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;

/// Exit status of `longma run` if the host lacks a resource.
pub const HOST_FAULT_STATUS: u8 = 124;
/// Message that accompanies the status, because a program may exit with any status.
pub const HOST_FAULT_MESSAGE: &str = "this host is at fault, not the program";

/// Signals sent by the kernel on memory shortage, by resource limits, or by other processes.
const EXTERNAL_SIGNALS: [Signal; 6] =
    [Signal::KILL, Signal::TERM, Signal::INT, Signal::HUP, Signal::XCPU, Signal::XFSZ];
/// Message of the command before it aborts on memory shortage.
const OUT_OF_MEMORY: &str = "memory allocation of ";
/// Exit statuses with messages, of the command or its loader, that indicate a resource shortage of the host.
const SHORTAGES: [(i32, &str); 3] = [
    (HOST_FAULT_STATUS as i32, HOST_FAULT_MESSAGE),
    (101, "failed to spawn thread"),
    (127, "error while loading shared libraries"),
];

/// How often a running program is checked for a stop request.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of bytes stored of a program's output.
const MAX_OUTPUT_BYTES: u64 = 16 << 20;
/// Statistics that depend on the host's speed.
const HOST_STATISTICS: [&str; 4] = ["wall_s", "user_s", "system_s", "mips"];

/// The workload that runs guest programs with the `longma` command.
pub struct Program {
    longma: PathBuf,
    parameters: Vec<Parameter>,
    digests: Mutex<BTreeMap<PathBuf, (SystemTime, u64, String)>>,
    /// Digests of the built-in guests by name.
    guests: Mutex<BTreeMap<String, String>>,
    checkpoints: Checkpoints,
}

/// How a run starts.
#[derive(Clone, Copy)]
enum Start<'a> {
    /// At the program's beginning.
    Program,
    /// The run is set up but not started.
    SetupOnly,
    /// At the program's beginning, to save a checkpoint to this file.
    Saving(&'a Path),
    /// From the checkpoint in this file.
    Restored(&'a Path),
}

impl Program {
    /// Creates the workload. `longma` is the path of the command.
    pub fn new(longma: impl Into<PathBuf>) -> Self {
        Self {
            longma: longma.into(),
            parameters: parameters::all(),
            digests: Mutex::default(),
            guests: Mutex::default(),
            checkpoints: Checkpoints::default(),
        }
    }

    /// Converts another workload's point into one for this workload. All parameters have their defaults, except those
    /// in `forwarded`.
    pub(crate) fn point_of(&self, point: &Point, forwarded: &[&str]) -> Point {
        let mut inner = point.clone();
        let defaults = self.parameters.iter();
        inner.parameters =
            defaults.filter_map(|p| p.default.clone().map(|value| (p.name.to_string(), value))).collect();
        for name in forwarded {
            if let Some(value) = point.parameter(name) {
                inner.parameters.insert((*name).into(), value.clone());
            }
        }
        inner
    }

    /// The command that runs `point` in its root folder or a copy.
    fn command(&self, point: &Point, files: &Files, root: Option<&Path>, start: Start<'_>) -> Command {
        let mut command = Command::new(&self.longma);
        command.arg("run").args(matches!(start, Start::SetupOnly).then_some("--measures"));
        if point.machine.is_some() {
            command.arg("--machine").arg(files.machine.path());
        }
        match point.text("level") {
            "functional" => command.args(["--fixed-names", "--stats", "--format", "json"]),
            level => command.args(["--level", level, "--quiet", "--stats-out"]).arg(files.statistics.path()),
        };
        if point.text("level") != "functional" {
            Self::simulation(point, &mut command);
        }
        // Results must not depend on the caller's environment.
        command.env_clear();
        match start {
            // The checkpoint has the program with its arguments, environment and stack.
            Start::Restored(path) => {
                command.arg("--restore").arg(path);
                return command;
            }
            Start::Saving(path) => drop(command.arg("--checkpoint").arg(path)),
            Start::Program | Start::SetupOnly => {}
        }
        if let Some(offset) = point.parameter("stack_offset").filter(|o| **o != Setting::Integer(0)) {
            command.arg("--stack-offset").arg(offset.to_string());
        }
        if !point.text("translation").is_empty() {
            command.arg("--translation").arg(point.text("translation"));
        }
        if let Some(Setting::Named(variables)) = point.parameter("environment") {
            // Pass variables to the program and not to the emulator, because they may affect the host's dynamic linker.
            command.args(variables.iter().map(|(name, value)| format!("--env={name}={value}")));
        }
        if let Some(root) = root {
            command.arg("--root").arg(std::path::absolute(root).unwrap_or_else(|_| root.into()));
        }
        // The run may have another current folder.
        let file = program(point);
        let file = std::path::absolute(&file).unwrap_or(file);
        command.arg("--").arg(file).args(point.text("program").split_whitespace().skip(1));
        if !point.text("argument").is_empty() {
            command.arg(point.text("argument"));
        }
        if let Some(Setting::Texts(arguments)) = point.parameter("arguments") {
            command.args(arguments);
        }
        command
    }
}

impl Program {
    /// Adds options of simulated runs.
    fn simulation(point: &Point, command: &mut Command) {
        if point.parameter("roi") == Some(&Setting::Flag(true)) {
            command.arg("--roi");
        }
        for name in ["warm", "core", "numa", "cpu", "seed"] {
            let value = point.parameter(name).map(ToString::to_string).unwrap_or_default();
            if !value.is_empty() {
                command.arg(format!("--{name}")).arg(value);
            }
        }
        if let Some(Setting::Integer(limit)) =
            point.parameter("max_instructions").filter(|n| **n != Setting::Integer(0))
        {
            command.arg(format!("--max-instructions={limit}"));
        }
        if !point.text("max_time").is_empty() {
            command.arg(format!("--max-time={}", point.text("max_time")));
        }
        if !point.text("sample").is_empty() {
            command.arg(format!("--sample={}", point.text("sample")));
        }
        if let Some(Setting::Named(wire)) = point.parameter("wire")
            && !wire.is_empty()
        {
            command.args(wire_arguments(wire).iter().flat_map(|first_lines| ["--wire", first_lines]));
        }
    }
}

/// The senders in the syntax of `longma run --wire`, one per device.
fn wire_arguments(wire: &BTreeMap<String, String>) -> Vec<String> {
    let devices = wire.get("device").map_or("eth0", String::as_str);
    let keys = wire.iter().filter(|(key, _)| *key != "device").map(|(key, value)| format!(",{key}={value}"));
    let keys: String = keys.collect();
    devices.split_whitespace().map(|device| format!("{device},tcp{keys}")).collect()
}

impl Workload for Program {
    fn name(&self) -> &str {
        "program"
    }

    fn description(&self) -> &str {
        "a Linux program for LoongArch64, x86-64, AArch64 or MIPS64, run by `longma run`"
    }

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn location_parameters(&self) -> &'static [&'static str] {
        &["folder", "root"]
    }

    fn inputs(&self, point: &Point) -> Result<BTreeMap<String, String>, Failure> {
        if point.text("program").trim().is_empty() {
            return Err(Failure::refused("`program` is empty"));
        }
        if let Some(root) = root(point) {
            input_files(point)?;
            return self.root_inputs(point, &root);
        }
        let digest = self.program_digest(point)?;
        let mut inputs = BTreeMap::from([("program".into(), digest)]);
        inputs.extend(self.checkpoint_input(point).map(|machine| ("checkpoint".into(), machine)));
        for (name, path) in input_files(point)? {
            let digest = self.digest(&path).map_err(|error| {
                Failure::refused(format!("cannot read the input file {}: {error}", path.display()))
            })?;
            inputs.insert(format!("files/{name}"), digest);
        }
        Ok(inputs)
    }

    fn files(&self, point: &Point) -> Result<Vec<InputFile>, Failure> {
        if let Some(root) = root(point) {
            return root_files(point, &root);
        }
        let (path, name) = (program_path(point)?, name(point));
        let is_built_in = name.starts_with(longma_shipped::PREFIX);
        let in_folder = || Path::new(point.text("folder")).join(&name).display().to_string();
        let name = if is_built_in { name.clone() } else { in_folder() };
        let further = input_files(point)?.into_iter().map(|(name, path)| {
            let name = Path::new(point.text("folder")).join(name).display().to_string();
            InputFile { name, path, is_built_in: false }
        });
        Ok([InputFile { name, path, is_built_in }].into_iter().chain(further).collect())
    }

    fn setup(&self, point: &Point) -> String {
        Self::setup_of(point)
    }

    fn rehearse(&self, point: &Point) -> Result<Rehearsal, Failure> {
        self.rehearsal_of(point)
    }

    fn run(&self, point: &Point, stop: &Stop) -> Result<Metrics, Failure> {
        let patterns = patterns(point)?;
        let checkpoint = self.checkpoint(point, stop)?;
        let restored = checkpoint.as_ref().map(|checkpoint| checkpoint.path());
        let start = restored.as_deref().map_or(Start::Program, Start::Restored);
        let mut files = Files::new(point)?;
        let root = copied_root(point)?;
        let root = root.as_ref().map(TempDir::path);
        let mut command = self.command(point, &files, root, start);
        let folder = working_folder(point)?;
        if let Some(folder) = &folder {
            command.current_dir(folder.path());
        }
        let ended = run_child(&mut command, point.time_limit, stop)?;
        let wanted = match point.parameter("status") {
            Some(Setting::Integer(status)) => *status,
            _ => 0,
        };
        if ended.status.code().map(i64::from) != Some(wanted) {
            let kind = if is_host_failure(&ended) { FailureKind::Host } else { FailureKind::Failed };
            return Err(Failure { kind, message: describe_failure(&ended, &program(point)) });
        }
        let mut metrics = Metrics::default();
        let statistics = match point.text("level") {
            "functional" => last_object(&ended.errors).unwrap_or_default(),
            _ => files.read_statistics(&ended)?,
        };
        // A simulated run writes its statistics next to its manifest.
        let counted = statistics.get("statistics").unwrap_or(&statistics);
        flatten(counted, String::new(), &mut metrics);
        if point.parameter("roi") == Some(&Setting::Flag(true))
            && metrics.results.get("run.instructions") == Some(&0.0)
        {
            return Err(Failure::failed(
                "the program executed no region of interest; mark one as guests/include/longma.h describes, or remove `roi`",
            ));
        }
        let before = checkpoint.as_ref().map_or("", |checkpoint| &checkpoint.output);
        for (name, pattern) in patterns {
            let find = |text| pattern.captures(text).and_then(|c| c.get(1)?.as_str().parse().ok());
            let value: Option<f64> = [&*ended.output, before, &*ended.errors].into_iter().find_map(find);
            let value = value.ok_or_else(|| {
                let message = format!("the program printed no number that matches `{pattern}` for `{name}`");
                Failure::failed(message)
            })?;
            match name.strip_prefix("host.") {
                Some(name) => drop(metrics.host.insert(name.into(), value)),
                None => metrics.result(&name, value),
            }
        }
        Ok(metrics)
    }
}

impl Program {
    /// Digest of the program. The digest of a built-in guest is cached, so that the guest is extracted once and not for
    /// each of many points.
    fn program_digest(&self, point: &Point) -> Result<String, Failure> {
        let name = name(point);
        if let Some(digest) = self.guests.lock().ignore_poison().get(&name) {
            return Ok(digest.clone());
        }
        let path = program_path(point)?;
        let digest = self.digest(&path).map_err(|error| {
            Failure::refused(format!("cannot read the program {}: {error}", path.display()))
        })?;
        if name.starts_with(longma_shipped::PREFIX) {
            self.guests.lock().ignore_poison().insert(name, digest.clone());
        }
        Ok(digest)
    }

    /// Digest of a file, cached until the file changes.
    fn digest(&self, path: &Path) -> io::Result<String> {
        let about = std::fs::metadata(path)?;
        if !about.is_file() {
            // Reading a pipe or a device might not end.
            return Err(io::Error::other("it is not a regular file"));
        }
        let state = (about.modified()?, about.len());
        let mut digests = self.digests.lock().ignore_poison();
        if let Some((modified, length, digest)) = digests.get(path)
            && (*modified, *length) == state
        {
            return Ok(digest.clone());
        }
        let digest = digest(&std::fs::read(path)?);
        digests.insert(path.into(), (state.0, state.1, digest.clone()));
        Ok(digest)
    }
}

fn patterns(point: &Point) -> Result<Vec<(String, Regex)>, Failure> {
    let Some(Setting::Named(prints)) = point.parameter("prints") else { return Ok(Vec::new()) };
    let compile = |(name, pattern): (&String, &String)| match Regex::new(pattern) {
        Ok(regex) if regex.captures_len() > 1 => Ok((name.clone(), regex)),
        Ok(_) => Err(Failure::refused(format!(
            "the expression `{pattern}` for `{name}` has no group in parentheses"
        ))),
        Err(error) => Err(Failure::refused(format!("the expression for `{name}` is malformed: {error}"))),
    };
    prints.iter().map(compile).collect()
}

/// Files of one run. They are unnamed and in memory, so that none remain.
struct Files {
    machine: MemFile,
    statistics: MemFile,
}

/// An in-memory file that a child opens through this process.
struct MemFile(File);

impl MemFile {
    fn new() -> io::Result<Self> {
        Ok(Self(File::from(memfd_create("longma", MemfdFlags::CLOEXEC)?)))
    }

    /// Path that a child can open while this process lives.
    fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }
}

impl Files {
    fn new(point: &Point) -> Result<Self, Failure> {
        let made = || {
            let mut files = Self { machine: MemFile::new()?, statistics: MemFile::new()? };
            let text = point.machine.as_ref().map_or("", |machine| &*machine.text);
            files.machine.0.write_all(text.as_bytes()).map(|()| files)
        };
        made().map_err(|error| Failure::host(format!("cannot create the files of the run: {error}")))
    }

    fn read_statistics(&mut self, ended: &Ended) -> Result<Value, Failure> {
        let (file, mut text) = (&mut self.statistics.0, Vec::new());
        let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut text));
        let value = read
            .map_err(|error| error.to_string())
            .and_then(|_| serde_json::from_slice(&text).map_err(|error| error.to_string()));
        // Incomplete statistics mean that the host failed. The command then prints the reason.
        value.map_err(|error| {
            let message = first_lines(&ended.errors);
            Failure::host(format!(
                "cannot read the run's statistics: {error}{}{message}",
                if message.is_empty() { "" } else { ": " }
            ))
        })
    }
}

/// Exit status and output of a child.
struct Ended {
    status: ExitStatus,
    output: String,
    errors: String,
}

fn run_child(command: &mut Command, limit: Option<Duration>, stop: &Stop) -> Result<Ended, Failure> {
    // In its own process group, so that Ctrl-C reaches only the campaign, which then kills its children.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    // SAFETY: between fork and exec the closure only calls prctl, which is async-signal-safe; nothing is allocated or
    // locked.
    unsafe {
        // Kill the child if the campaign is killed.
        command.pre_exec(|| set_parent_process_death_signal(Some(Signal::KILL)).map_err(Into::into));
    }
    let mut child = command.spawn().map_err(|error| {
        Failure::host(format!("cannot start {}: {error}", command.get_program().to_string_lossy()))
    })?;
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        let output = scope.spawn(move || read_limited(output));
        let errors = scope.spawn(move || read_limited(errors));
        let status = wait(&mut child, limit, stop);
        // The readers end when the child closes its ends of the pipes.
        let (output, errors) = (output.join().unwrap_or_default(), errors.join().unwrap_or_default());
        status.map(|status| Ended { status, output, errors })
    })
}

/// Reads everything from `pipe` and keeps it up to a limit. The rest is discarded, so that the writer does not block.
fn read_limited(pipe: Option<impl Read>) -> String {
    let Some(mut pipe) = pipe else { return String::new() };
    let mut kept = Vec::new();
    // On an error, use the bytes read so far.
    let _ = pipe.by_ref().take(MAX_OUTPUT_BYTES).read_to_end(&mut kept);
    let _ = std::io::copy(&mut pipe, &mut std::io::sink());
    String::from_utf8_lossy(&kept).into_owned()
}

fn wait(child: &mut Child, limit: Option<Duration>, stop: &Stop) -> Result<ExitStatus, Failure> {
    let failed = |error: io::Error| Failure::host(format!("cannot wait for the run: {error}"));
    let start = Instant::now();
    let pid = Pid::from_child(child);
    let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(status);
        }
        let late = limit.filter(|limit| start.elapsed() >= *limit);
        if late.is_some() || stop.is_requested() {
            // Kill the whole group, because the program may have children.
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
            child.wait().map_err(failed)?;
            return Err(late.map_or_else(Failure::stopped, Failure::late));
        }
        let left =
            limit.map_or(POLL_INTERVAL, |limit| limit.saturating_sub(start.elapsed()).min(POLL_INTERVAL));
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        // The loop also handles an interrupted wait.
        let _ = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout));
    }
}

/// Describes a run's end and its output. Omits the program's directory, so that the message does not depend on it.
fn describe_failure(ended: &Ended, program: &Path) -> String {
    let how = match (ended.status.code(), ended.status.signal()) {
        (Some(code), _) => format!("the run ended with exit status {code}"),
        (None, Some(signal)) => format!("the run was killed by signal {signal}"),
        _ => "the run ended".into(),
    };
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let message = first_lines(&ended.errors).replace(&*program.to_string_lossy(), &name);
    if message.is_empty() { how } else { format!("{how}: {message}") }
}

/// The first lines of the output.
fn first_lines(errors: &str) -> String {
    let lines: Vec<_> =
        errors.lines().map(str::trim).filter(|line| !line.starts_with('{') && !line.is_empty()).collect();
    lines[..lines.len().min(4)].join(" ")
}

/// Returns whether the host caused the failure.
fn is_host_failure(ended: &Ended) -> bool {
    match (ended.status.code(), ended.status.signal()) {
        (Some(code), _) => SHORTAGES
            .iter()
            .any(|(status, first_lines)| code == *status && ended.errors.contains(first_lines)),
        (None, Some(signal)) => {
            let is_abort = signal == Signal::ABORT.as_raw();
            EXTERNAL_SIGNALS.iter().any(|outside| outside.as_raw() == signal)
                || is_abort && ended.errors.contains(OUT_OF_MEMORY)
        }
        _ => false,
    }
}

/// The last line that is a JSON object, as printed by `--stats --format json`.
fn last_object(errors: &str) -> Option<Value> {
    errors.lines().rev().filter(|line| line.starts_with('{')).find_map(|line| serde_json::from_str(line).ok())
}

/// Collects all numbers in `value` by their paths. A statistic `{ value, unit, description }` uses its own path. Groups
/// called `host` and a few known names are host-dependent.
fn flatten(value: &Value, path: String, metrics: &mut Metrics) {
    match value {
        Value::Number(number) => {
            let name = path.rsplit('.').next().unwrap_or_default();
            let of_host = path.strip_prefix("host.").or(HOST_STATISTICS.contains(&name).then_some(&*path));
            let (map, name) = match of_host {
                Some(name) => (&mut metrics.host, name),
                None => (&mut metrics.results, &*path),
            };
            number.as_f64().map(|number| map.insert(name.into(), number));
        }
        Value::Object(object) if object.contains_key("unit") && object.contains_key("value") => {
            let interval =
                object.get("interval").and_then(|ends| Some([ends[0].as_f64()?, ends[1].as_f64()?]));
            if let Some(interval) = interval.filter(|_| object["value"].is_number()) {
                metrics.intervals.insert(path.clone(), interval);
            }
            flatten(&object["value"], path, metrics);
        }
        Value::Object(object) => {
            for (name, value) in object {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(value, path, metrics);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_metrics_by_path_and_those_of_the_host_are_separate() {
        let text = r#"{"instructions": 12, "core0": {"ipc": {"value": 1.5, "unit": "i/c", "description": ""}}, "wall_s": 0.5,
            "host": {"peak_bytes": 7}, "core0.late": null, "name": "x"}"#;
        let mut metrics = Metrics::default();
        flatten(&serde_json::from_str(text).unwrap(), String::new(), &mut metrics);
        assert!(metrics.intervals.is_empty());
        let results: Vec<_> = metrics.results.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        assert_eq!(results, [("core0.ipc", 1.5), ("instructions", 12.0)]);
        let host: Vec<_> = metrics.host.keys().map(String::as_str).collect();
        assert_eq!(host, ["peak_bytes", "wall_s"]);
    }

    #[test]
    fn the_environment_reaches_the_program_and_not_the_emulator() {
        let variables =
            [("LD_PRELOAD", "/tmp/x.so"), ("A", "b=c")].map(|(name, value)| (name.into(), value.into()));
        let point = Point {
            key: longma_lab::Key::from("environment"),
            workload: "program".into(),
            machine: None,
            parameters: [("environment".into(), Setting::Named(BTreeMap::from(variables)))]
                .into_iter()
                .collect(),
            refused: None,
            location_parameters: &[],
            varied: longma_lab::Varied::default(),
            folder: Path::new("/").into(),
            time_limit: None,
        };
        let files = Files::new(&point).unwrap();
        let command = Program::new("longma").command(&point, &files, None, Start::Program);
        assert_eq!(command.get_envs().count(), 0);
        let given: Vec<_> = command.get_args().collect();
        assert!(given.contains(&"--env=LD_PRELOAD=/tmp/x.so".as_ref()), "{given:?}");
        assert!(given.contains(&"--env=A=b=c".as_ref()), "{given:?}");
    }

    #[test]
    fn a_wire_table_becomes_arguments_of_the_command() {
        let wire = [("message", "64"), ("bytes", "100000"), ("device", "eth1")];
        let wire = wire.map(|(key, value)| (key.to_string(), value.to_string()));
        let mut wire = BTreeMap::from(wire);
        assert_eq!(wire_arguments(&wire), ["eth1,tcp,bytes=100000,message=64"]);
        wire.insert("device".into(), "eth0 eth1".into());
        let both = ["eth0,tcp,bytes=100000,message=64", "eth1,tcp,bytes=100000,message=64"];
        assert_eq!(wire_arguments(&wire), both);
    }

    #[test]
    fn a_child_that_takes_too_long_is_ended_with_its_children() {
        let start = Instant::now();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 60 & wait"]);
        let failure =
            run_child(&mut command, Some(Duration::from_millis(100)), &Stop::default()).err().unwrap();
        assert!(failure.message.contains("time_limit of 0.1 s"), "{failure}");
        assert_eq!(failure.kind, FailureKind::Host);
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn host_failures_are_distinguished_from_program_failures() {
        let is_host_failure = |script: &str| {
            let ended = run_child(Command::new("/bin/sh").args(["-c", script]), None, &Stop::default());
            super::is_host_failure(&ended.unwrap())
        };
        for script in ["kill -9 $$", "kill -TERM $$", "kill -XCPU $$"] {
            assert!(is_host_failure(script), "{script}");
        }
        for script in ["exit 1", "exit 124", "exit 127", "kill -SEGV $$", "kill -ABRT $$", "exit 137"] {
            assert!(!is_host_failure(script), "{script}");
        }
        assert!(is_host_failure("echo 'memory allocation of 8 bytes failed' >&2; kill -ABRT $$"));
        for (status, first_lines) in SHORTAGES {
            assert!(
                is_host_failure(&format!("echo 'x: {first_lines}: y' >&2; exit {status}")),
                "{first_lines}"
            );
        }
    }

    #[test]
    fn the_files_of_a_run_have_no_names_and_a_child_writes_to_them() {
        let file = MemFile::new().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo '{}' > $0"]).arg(file.path());
        let ended = run_child(&mut command, None, &Stop::default()).unwrap();
        assert!(ended.status.success(), "{}", ended.errors);
        let mut files = Files { machine: MemFile::new().unwrap(), statistics: file };
        assert_eq!(files.read_statistics(&ended).unwrap(), serde_json::json!({}));
        files.machine.0.write_all(b"{").unwrap();
        files.statistics = files.machine;
        files.machine = MemFile::new().unwrap();
        let cut = files.read_statistics(&Ended { errors: "longma: cannot write the result".into(), ..ended });
        let failure = cut.unwrap_err();
        assert_eq!(failure.kind, FailureKind::Host);
        assert!(failure.message.contains("longma: cannot write the result"), "{failure}");
    }

    #[test]
    fn a_stopped_child_is_not_a_failure() {
        let stop = Stop::default();
        stop.request();
        let failure = run_child(Command::new("/bin/sleep").arg("60"), None, &stop).err().unwrap();
        assert_eq!(failure.kind, FailureKind::Stopped);
    }
}
