//! A testbed on one host: two network namespaces connected by a veth pair, with an iperf3 server in one of them. Both
//! ends share the host's cores and caches.
//!
//! The namespaces have no names. Each one belongs to a helper process that ends with this process, and the kernel then
//! removes the namespaces and the pair. This happens even after SIGKILL.
//!
//! Source: unshare(2), network_namespaces(7), veth(4).

use crate::child::{self, ChildError, Running, Start, how_it_ended};
use crate::host::{Host, Tree};
use longma_cpu_set::CpuSet;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Name of the receiver's interface.
pub const RECEIVER: &str = "lab-receive";
/// Name of the sender's interface.
const SENDER: &str = "lab-send";
/// Address of the sender, from the block for benchmarks (RFC 2544).
pub const SERVER_ADDRESS: &str = "198.18.0.1";
const RECEIVER_ADDRESS: &str = "198.18.0.2";
/// Port of the iperf3 server.
pub const PORT: u16 = 5201;
const STARTUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time after which this process detects that the server has ended, counted from when the load detects it.
const EXIT_NOTICE_DELAY: Duration = Duration::from_millis(200);

/// The testbed. It is removed when dropped.
pub struct NetnsTestbed {
    receiver: Namespace,
    sender: Namespace,
    server: Running,
    server_start: Start,
}

/// Why the testbed cannot be set up or used.
#[derive(Debug, thiserror::Error)]
pub enum NetnsTestbedError {
    /// A namespace cannot be created.
    #[error("cannot create a network namespace ({0}): this needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN")]
    Namespace(io::Error),
    /// The helper program is missing.
    #[error("cannot keep a network namespace open: there is no `{HOLDER_PROGRAM}` in PATH")]
    NoHolder,
    /// A setup command failed.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The server does not listen.
    #[error("iperf3's server is not listening after {} s", STARTUP_TIMEOUT.as_secs())]
    Silent,
    /// A helper process or the server has ended.
    #[error("{0}")]
    Ended(String),
}

/// A program that waits for the end of its input, to keep a namespace alive.
const HOLDER_PROGRAM: &str = "cat";

/// A network namespace with its own /sys. It exists as long as its idle helper process.
struct Namespace {
    holder: Child,
}

impl Namespace {
    fn new() -> Result<Self, NetnsTestbedError> {
        let parent = rustix::process::getpid();
        let mut command = Command::new(HOLDER_PROGRAM);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let prepare = move || {
            child::die_with(parent)?;
            // SAFETY: system calls with constants and zero-terminated strings.
            unsafe {
                child::check(libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS))?;
                let none = std::ptr::null();
                let private = libc::MS_REC | libc::MS_PRIVATE;
                child::check(libc::mount(none, c"/".as_ptr(), none, private, none.cast()))?;
                // A sysfs mounted in the namespace shows its interfaces.
                child::check(libc::mount(
                    c"sysfs".as_ptr(),
                    c"/sys".as_ptr(),
                    c"sysfs".as_ptr(),
                    0,
                    none.cast(),
                ))
            }
        };
        // SAFETY: between fork and exec the closure only makes system calls. It allocates nothing, except an error on
        // failure.
        let holder = unsafe { command.pre_exec(prepare) }.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => NetnsTestbedError::NoHolder,
            _ => NetnsTestbedError::Namespace(error),
        })?;
        Ok(Self { holder })
    }

    fn id(&self) -> u32 {
        self.holder.id()
    }

    /// Describes how the process that keeps the namespace open has ended, or waits for its end if it is exiting; `None` if
    /// it runs.
    fn ended(&mut self, whose: &str) -> Option<String> {
        // An exiting process gives up its namespaces before its parent can wait for it. From then on, other processes
        // cannot enter them, so treat the process as ended.
        let is_exiting = std::fs::read_link(format!("/proc/{}/ns/net", self.id())).is_err();
        let status = if is_exiting { self.holder.wait().ok()? } else { self.holder.try_wait().ok()?? };
        Some(format!(
            "the process that keeps the {whose}'s namespace open (`cat`, process {}) {}",
            self.id(),
            how_it_ended(status)
        ))
    }

    fn ip(&self, words: &[&str]) -> Result<(), ChildError> {
        let words: Vec<&str> = std::iter::once("ip").chain(words.iter().copied()).collect();
        let start = Start { namespace: Some(self.id()), ..Start::new(&words, STARTUP_TIMEOUT) };
        start.run().map(drop)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

impl NetnsTestbed {
    /// Sets up the testbed with the sender on `cpus`. The server runs for at most `limit`.
    ///
    /// # Errors
    /// If permissions are missing, or `ip` or `iperf3` is not installed.
    pub fn build(cpus: CpuSet, mtu: u32, limit: Duration) -> Result<Self, NetnsTestbedError> {
        let (receiver, sender) = (Namespace::new()?, Namespace::new()?);
        let (receiver_id, sender_id) = (receiver.id().to_string(), sender.id().to_string());
        let mtu = mtu.to_string();
        let pair = ["ip", "link", "add", RECEIVER, "mtu", &mtu, "netns", &receiver_id, "type", "veth"];
        let peer = ["peer", "name", SENDER, "mtu", &mtu, "netns", &sender_id];
        Start::new(&[&pair[..], &peer].concat(), STARTUP_TIMEOUT).run()?;
        for (namespace, name, address) in
            [(&receiver, RECEIVER, RECEIVER_ADDRESS), (&sender, SENDER, SERVER_ADDRESS)]
        {
            namespace.ip(&["addr", "add", &format!("{address}/30"), "dev", name])?;
            namespace.ip(&["link", "set", name, "up"])?;
            namespace.ip(&["link", "set", "lo", "up"])?;
        }
        let port = PORT.to_string();
        let words = ["iperf3", "--server", "--port", &port];
        let server_start =
            Start { cpus: Some(cpus), namespace: Some(sender.id()), ..Start::new(&words, limit) };
        let server = server_start.spawn()?;
        let mut lab = Self { receiver, sender, server, server_start };
        lab.wait_until_it_listens()?;
        Ok(lab)
    }

    fn wait_until_it_listens(&mut self) -> Result<(), NetnsTestbedError> {
        let begin = Instant::now();
        let tcp = format!("proc/{}/net/tcp", self.sender.id());
        let tcp6 = format!("{tcp}6");
        // Local address and state in /proc/net/tcp: 0A is LISTEN.
        let port = format!(":{PORT:04X} ");
        let listens = |file: &str| {
            let table = Tree::live().read(file).unwrap_or_default();
            table.lines().any(|line| line.contains(&port) && line.split_whitespace().nth(3) == Some("0A"))
        };
        while begin.elapsed() < STARTUP_TIMEOUT {
            if let Some(words) = self.server_ended() {
                return Err(NetnsTestbedError::Ended(words));
            }
            if listens(&tcp) || listens(&tcp6) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(NetnsTestbedError::Silent)
    }

    fn server_ended(&mut self) -> Option<String> {
        let status = self.server.ended()?;
        Some(format!("the lab's server (`iperf3`, process {}) {}", self.server.id(), how_it_ended(status)))
    }

    /// Describes which helper processes have ended; `None` if both run. The server is not checked.
    pub fn gone(&mut self) -> Option<String> {
        let ended = [self.receiver.ended("receiver"), self.sender.ended("sender")];
        let ended: Vec<String> = ended.into_iter().flatten().collect();
        (!ended.is_empty()).then(|| format!("the testbed is gone: {}", ended.join("; ")))
    }

    /// Restarts the server, which a failed run may have left busy. If the server had ended, returns how.
    ///
    /// # Errors
    /// If the server does not start, or a helper process has ended.
    pub fn restart_server(&mut self) -> Result<Option<String>, NetnsTestbedError> {
        if let Some(words) = self.gone() {
            return Err(NetnsTestbedError::Ended(words));
        }
        // The load detects the server's end slightly earlier than this process.
        let begin = Instant::now();
        let mut ended = self.server_ended();
        while ended.is_none() && begin.elapsed() < EXIT_NOTICE_DELAY {
            std::thread::sleep(Duration::from_millis(10));
            ended = self.server_ended();
        }
        // The old server must release its port first.
        let placeholder = Start::new(&["true"], STARTUP_TIMEOUT).spawn()?;
        drop(std::mem::replace(&mut self.server, placeholder));
        self.server = self.server_start.spawn()?;
        self.wait_until_it_listens()?;
        Ok(ended.map(|words| format!("{words} and was restarted")))
    }

    /// Process ID of the receiver namespace's helper.
    pub fn receiver(&self) -> u32 {
        self.receiver.id()
    }

    /// The host as seen from the receiver's namespace.
    pub fn host(&self) -> Tree {
        Tree::of_child(self.receiver.id())
    }
}
