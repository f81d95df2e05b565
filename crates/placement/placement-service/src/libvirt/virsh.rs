//! Runs virsh in the C locale, as one child process per call, with a time limit.
//!
//! Source: virsh(1).

use longma_placement::hypervisor::{HypervisorError, ShutdownDeadline};
use rustix::process::{Pid, Signal};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Time limit of ordinary calls.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a child's output in bytes.
const MAX_OUTPUT_BYTES: u64 = 16 << 20;

/// How to call virsh.
#[derive(Clone, Debug)]
pub(super) struct Virsh {
    uri: String,
    shutdown_deadline: ShutdownDeadline,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// virsh is not installed or did not finish in time.
    Unavailable(String),
    /// The error that virsh printed.
    Message(String),
}

impl Fault {
    pub fn text(&self) -> String {
        match self {
            Self::Unavailable(text) | Self::Message(text) => text.clone(),
        }
    }

    fn mentions(&self, texts: &[&str]) -> bool {
        matches!(self, Self::Message(text) if texts.iter().any(|w| text.contains(w)))
    }

    pub fn is_no_domain(&self) -> bool {
        self.mentions(&["failed to get domain", "Domain not found", "no domain with matching"])
    }

    pub fn is_no_job(&self) -> bool {
        self.mentions(&["no job is active"])
    }

    pub fn is_running(&self) -> bool {
        self.mentions(&["already active", "already running"])
    }

    pub fn is_not_running(&self) -> bool {
        self.mentions(&["domain is not running"])
    }

    /// Converts to the trait's error: `Unreachable` if libvirt is unreachable, otherwise `Refused`.
    pub fn error(self, what: &str) -> HypervisorError {
        let unreachable = [
            "failed to connect",
            "Cannot recv data",
            "client socket is closed",
            "Failed to connect",
            "End of file while reading",
        ];
        if self.mentions(&unreachable) || matches!(self, Self::Unavailable(_)) {
            return HypervisorError::Unreachable(self.text());
        }
        HypervisorError::Refused { what: what.into(), why: self.text() }
    }
}

impl Virsh {
    pub fn new(uri: &str) -> Self {
        Self { uri: uri.into(), shutdown_deadline: ShutdownDeadline::default() }
    }

    /// Returns a copy that connects to the libvirtd at `uri`.
    pub fn at(&self, uri: &str) -> Self {
        Self { uri: uri.into(), ..self.clone() }
    }

    /// Children that run past this deadline are killed, and none are started after it.
    pub fn set_shutdown_deadline(&mut self, shutdown_deadline: &ShutdownDeadline) {
        self.shutdown_deadline = shutdown_deadline.clone();
    }

    /// Runs virsh and returns its output.
    pub fn run(&self, arguments: &[&str]) -> Result<String, Fault> {
        self.run_for(arguments, None, CALL_TIMEOUT)
    }

    /// Like [`Virsh::run`], with standard input and a time limit.
    pub fn run_for(
        &self,
        arguments: &[&str],
        input: Option<&str>,
        timeout: Duration,
    ) -> Result<String, Fault> {
        let mut command = Command::new("virsh");
        command.args(["--quiet", "--connect", &self.uri]).args(arguments);
        command.env("LC_ALL", "C").stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
        // The child has its own process group, so that it can be killed together with its children.
        command.process_group(0);
        end_with_this_thread(&mut command);
        let failed = |why: String| Fault::Unavailable(format!("virsh: {why}"));
        if self.shutdown_deadline.has_passed() {
            return Err(failed(format!("{} was not run because the service is stopping", arguments[0])));
        }
        let mut child = command.spawn().map_err(|e| failed(e.to_string()))?;
        let writer = child.stdin.take().zip(input.map(str::to_string)).map(|(mut to, text)| {
            // Fails if the child does not read its input; the child then reports an error itself.
            std::thread::spawn(move || to.write_all(text.as_bytes()))
        });
        let readers = (read(child.stdout.take()), read(child.stderr.take()));
        let ended = wait(&mut child, timeout, &self.shutdown_deadline);
        let (Ok(out), Ok(stderr)) = (readers.0.join(), readers.1.join()) else {
            return Err(failed("its output cannot be read".into()));
        };
        drop(writer.map(std::thread::JoinHandle::join));
        match ended.map_err(|e| failed(e.to_string()))? {
            None if self.shutdown_deadline.has_passed() => {
                Err(failed(format!("{} did not finish in time", arguments[0])))
            }
            None => Err(failed(format!("{} did not finish within {} s", arguments[0], timeout.as_secs()))),
            Some(status) if status.success() => {
                String::from_utf8(out).map_err(|_| failed("its output is not text".into()))
            }
            Some(status) => {
                let stderr = String::from_utf8_lossy(&stderr);
                let lines: Vec<&str> = stderr
                    .lines()
                    .map(|l| l.trim_start_matches("error: ").trim())
                    .filter(|l| !l.is_empty())
                    .collect();
                Err(if lines.is_empty() {
                    failed(status.to_string())
                } else {
                    Fault::Message(lines.join(": "))
                })
            }
        }
    }
}

/// Requests that the kernel kill the child when this thread ends, even if SIGKILL ends the agent. Otherwise, the calls
/// of the previous agent could interfere with those of a restarted one.
fn end_with_this_thread(command: &mut Command) {
    let set = || Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: the closure makes one system call (prctl) and allocates nothing, so that it may run between fork and exec.
    unsafe { command.pre_exec(set) };
}

fn read(from: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(from) = from {
            // On an error, use the output read so far.
            let _ = from.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Waits for a child. Returns `None` if it was killed at the time limit.
pub(super) fn wait(
    child: &mut Child,
    timeout: Duration,
    shutdown_deadline: &ShutdownDeadline,
) -> std::io::Result<Option<ExitStatus>> {
    let until = Instant::now() + timeout;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > until || shutdown_deadline.has_passed() {
            // Its children may still hold the output pipe open.
            let _ = rustix::process::kill_process_group(Pid::from_child(child), Signal::KILL);
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_hangs_is_killed() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let began = Instant::now();
        assert_eq!(wait(&mut child, Duration::from_millis(50), &ShutdownDeadline::default()).unwrap(), None);
        assert!(began.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn shutdown_kills_children_with_their_descendants_and_prevents_new_ones() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 100; true"]).process_group(0).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = read(child.stdout.take());
        let (began, shutdown_deadline) = (Instant::now(), ShutdownDeadline::default());
        shutdown_deadline.begin(Duration::from_millis(50));
        assert_eq!(wait(&mut child, CALL_TIMEOUT, &shutdown_deadline).unwrap(), None);
        assert_eq!(output.join().unwrap(), b"");
        assert!(began.elapsed() < Duration::from_secs(20));
        let mut virsh = Virsh::new("test:///default");
        virsh.set_shutdown_deadline(&shutdown_deadline);
        let message = virsh.run(&["version"]).unwrap_err();
        assert!(message.text().contains("was not run"), "{message:?}");
    }

    #[test]
    fn errors_of_virsh_are_classified() {
        let fault = |text: &str| Fault::Message(text.into());
        assert!(fault("failed to get domain 'x'").is_no_domain());
        assert!(matches!(
            fault("failed to connect to the hypervisor").error("list"),
            HypervisorError::Unreachable(_)
        ));
        assert!(matches!(fault("internal error: no").error("list"), HypervisorError::Refused { .. }));
        assert!(fault("Requested operation is not valid: domain is not running").is_not_running());
    }
}
