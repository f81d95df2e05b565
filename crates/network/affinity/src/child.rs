//! Runs a child process bound to CPUs and in a network namespace. The child and its descendants are killed at a time
//! limit and when this process ends, except those that leave the process group (setsid). `load` parses the output.
//!
//! Source: prctl(2) (PR_SET_PDEATHSIG), setns(2), sched_setaffinity(2), setpgid(2), kill(2).

use longma_cpu_set::CpuSet;
use longma_text::sanitize;
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Maximum output of a child in bytes. It is held in memory.
const MAX_OUTPUT_BYTES: u64 = 16 << 20;
/// Shell script of the process group leader: waits until its parent ends and then kills the group, including itself.
/// While it lives, the kernel cannot reuse the group ID.
const GUARD_SCRIPT: &str = "read line; kill -KILL 0";
/// Polling interval for a child's state.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The configuration of a child to start.
#[derive(Clone, Debug)]
pub struct Start {
    /// Program and arguments.
    pub words: Vec<String>,
    /// CPUs to run on; `None` for all that this process may use.
    pub cpus: Option<CpuSet>,
    /// A process whose network namespace the child joins; `None` for this process's namespace.
    pub namespace: Option<u32>,
    /// Time limit.
    pub limit: Duration,
    /// Whether the child inherits this process's environment. Otherwise its environment is empty.
    pub has_environment: bool,
}

/// A running child. It is killed with its descendants when dropped.
pub struct Running {
    child: Child,
    #[allow(dead_code, reason = "dropping it kills the child and its descendants")]
    guard: Guard,
    name: String,
    begin: Instant,
    limit: Duration,
    out: File,
    err: File,
    has_ended: bool,
}

/// Result of a child.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

/// Why a child failed.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// It could not be started.
    #[error("cannot start `{}`: {error}{}", sanitize(name), advice(name, error))]
    Start {
        /// The program.
        name: String,
        /// Error of the operating system.
        error: io::Error,
    },
    /// It exceeded its time limit.
    #[error("`{}` was killed after {:.1} s", sanitize(name), limit.as_secs_f64())]
    TooLong {
        /// The program.
        name: String,
        /// The time limit.
        limit: Duration,
    },
    /// It printed more than the output limit.
    #[error("`{}` was killed because it printed more than {} MiB: let it print its rate and little else", sanitize(name), MAX_OUTPUT_BYTES >> 20)]
    TooMuch {
        /// The program.
        name: String,
    },
    /// The user requested a stop.
    #[error("`{}` was stopped", sanitize(name))]
    Stopped {
        /// The program.
        name: String,
    },
    /// It was killed by a signal from another process or the kernel.
    #[error("`{}` (process {process}) {how}", sanitize(name))]
    Killed {
        /// The program.
        name: String,
        /// Process ID.
        process: u32,
        /// Description of the signal.
        how: String,
    },
    /// It exited with an error.
    #[error("`{}` failed ({status}): {}", sanitize(name), sanitize(last_line))]
    Failed {
        /// The program.
        name: String,
        /// Exit status.
        status: ExitStatus,
        /// Last line of its output.
        last_line: String,
    },
}

/// Describes an exit status: `was killed by SIGKILL`, `ended with status 3`.
pub fn how_it_ended(status: ExitStatus) -> String {
    let name = |number: i32| {
        nix::sys::signal::Signal::try_from(number)
            .map_or_else(|_| format!("signal {number}"), |signal| signal.as_str().into())
    };
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by {}", name(signal)),
        // Shells encode the death of a child by signal N as status 128 + N.
        (_, Some(code @ 129..=192)) => {
            format!("ended with status {code}, as if killed by {}", name(code - 128))
        }
        (_, code) => format!("ended with status {}", code.unwrap_or_default()),
    }
}

fn advice(name: &str, error: &io::Error) -> String {
    let package = match name {
        "iperf3" => "iperf3",
        "ip" => "iproute2",
        _ => return String::new(),
    };
    match error.kind() {
        io::ErrorKind::NotFound => format!("; install the package {package}"),
        _ => String::new(),
    }
}

impl Start {
    /// Creates a description of a program with a time limit.
    pub fn new(words: &[&str], limit: Duration) -> Self {
        Self {
            words: words.iter().map(|word| word.to_string()).collect(),
            cpus: None,
            namespace: None,
            limit,
            has_environment: true,
        }
    }

    /// Starts the child.
    ///
    /// # Errors
    /// If the program cannot be started, the CPUs are not available to this process, or the namespace is gone.
    pub fn spawn(&self) -> Result<Running, ChildError> {
        let name = self.words.first().cloned().unwrap_or_default();
        self.try_spawn(&name).map_err(|error| ChildError::Start { name, error })
    }

    fn try_spawn(&self, name: &str) -> io::Result<Running> {
        let memory = || rustix::fs::memfd_create("longma-child", MemfdFlags::CLOEXEC).map(File::from);
        let (out, err) = (memory()?, memory()?);
        let namespace = match self.namespace {
            Some(process) => Some(namespace_of(process)?),
            None => None,
        };
        let set = self.cpus.as_ref().map(cpu_set);
        let parent = rustix::process::getpid();
        let guard = Guard::new()?;
        let mut command = Command::new(name);
        command.args(&self.words[1..]).stdin(Stdio::null()).process_group(guard.group());
        if !self.has_environment {
            command.env_clear();
        }
        command.stdout(out.try_clone()?).stderr(err.try_clone()?);
        let prepare = move || {
            die_with(parent)?;
            if let Some(namespace) = &namespace {
                // SAFETY: setns(2) only uses the descriptor, which the closure keeps open.
                check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })?;
            }
            if let Some(set) = &set {
                // SAFETY: the pointer and the size describe the complete set.
                check(unsafe {
                    libc::sched_setaffinity(0, std::mem::size_of_val(&set[..]), set.as_ptr().cast())
                })?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec the closure only makes system calls. It allocates nothing, except an error on
        // failure.
        let child = unsafe { command.pre_exec(prepare) }.spawn()?;
        let begin = Instant::now();
        Ok(Running { child, guard, name: name.into(), begin, limit: self.limit, out, err, has_ended: false })
    }

    /// Starts the child and waits for a successful exit.
    ///
    /// # Errors
    /// If it cannot be started, fails, or exceeds the limit.
    pub fn run(&self) -> Result<Ended, ChildError> {
        self.spawn()?.success(&AtomicBool::new(false))
    }
}

/// Opens the network namespace of a process. The error names the namespace, so that it is not taken for a missing
/// program.
fn namespace_of(process: u32) -> io::Result<File> {
    let path = format!("/proc/{process}/ns/net");
    File::open(&path)
        .map_err(|error| io::Error::other(format!("cannot open its network namespace {path}: {error}")))
}

/// Kills a process group when this process ends or the guard is dropped.
struct Guard(Child);

impl Guard {
    fn new() -> io::Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", GUARD_SCRIPT]).process_group(0);
        // The kernel closes the other end of the pipe when this process ends for any reason.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Self)
    }

    fn group(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(group) = rustix::process::Pid::from_raw(self.group()) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// Makes the calling process (a child between fork and exec) receive SIGKILL when its parent ends.
///
/// # Errors
/// If the parent has already ended.
pub(crate) fn die_with(parent: rustix::process::Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    match rustix::process::getppid() {
        Some(now) if now == parent => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// Converts the return value of a system call to a result.
pub(crate) fn check(status: libc::c_int) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn cpu_set(cpus: &CpuSet) -> Vec<u64> {
    let mut words = vec![0u64; longma_cpu_set::MAX_CPU as usize / 64];
    cpus.iter().for_each(|cpu| words[cpu as usize / 64] |= 1 << (cpu % 64));
    words
}

impl Running {
    /// Process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `moment` after the start. Returns whether the child still runs; returns false early if it ends or
    /// `stop` is set.
    pub fn runs_until(&mut self, moment: Duration, stop: &AtomicBool) -> bool {
        while self.begin.elapsed() < moment.min(self.limit) {
            if self.is_over() || self.exceeds_output_limit() || stop.load(Ordering::Relaxed) {
                return false;
            }
            std::thread::sleep(POLL_INTERVAL.min(moment.saturating_sub(self.begin.elapsed())));
        }
        !self.is_over()
    }

    /// Exit status, if the child has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.is_over() { self.child.wait().ok() } else { None }
    }

    fn is_over(&mut self) -> bool {
        self.has_ended = self.has_ended || !matches!(self.child.try_wait(), Ok(None));
        self.has_ended
    }

    /// Time since the start.
    pub fn age(&self) -> Duration {
        self.begin.elapsed()
    }

    fn exceeds_output_limit(&self) -> bool {
        let length = |file: &File| file.metadata().map_or(0, |facts| facts.len());
        length(&self.out).max(length(&self.err)) > MAX_OUTPUT_BYTES
    }

    /// Waits for the child to end and returns its output and status, successful or not.
    ///
    /// # Errors
    /// If it exceeds a limit or `stop` is set, in which case it is killed; or if another process kills it.
    pub fn end(mut self, stop: &AtomicBool) -> Result<Ended, ChildError> {
        while !self.is_over() {
            let name = self.name.clone();
            if stop.load(Ordering::Relaxed) {
                return Err(ChildError::Stopped { name });
            }
            if self.exceeds_output_limit() {
                return Err(ChildError::TooMuch { name });
            }
            if self.begin.elapsed() > self.limit {
                return Err(ChildError::TooLong { name, limit: self.limit });
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        if self.exceeds_output_limit() {
            return Err(ChildError::TooMuch { name: self.name.clone() });
        }
        let status =
            self.child.wait().map_err(|error| ChildError::Start { name: self.name.clone(), error })?;
        if status.signal().is_some() {
            let (name, how) = (self.name.clone(), how_it_ended(status));
            return Err(ChildError::Killed { name, process: self.child.id(), how });
        }
        Ok(Ended { status, out: text(&mut self.out), err: text(&mut self.err) })
    }

    /// Waits for a successful exit.
    ///
    /// # Errors
    /// As for [`Running::end`], or if the exit status is an error.
    pub fn success(self, stop: &AtomicBool) -> Result<Ended, ChildError> {
        let name = self.name.clone();
        let ended = self.end(stop)?;
        if ended.status.success() {
            return Ok(ended);
        }
        let last_line = if ended.err.trim().is_empty() { &ended.out } else { &ended.err };
        let last_line = last_line.trim().lines().last().unwrap_or("it printed nothing").into();
        Err(ChildError::Failed { name, status: ended.status, last_line })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The guard kills the remaining descendants.
        if !self.has_ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    // If reading fails, the caller reports the missing output.
    let _ = file.rewind().and_then(|()| file.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
