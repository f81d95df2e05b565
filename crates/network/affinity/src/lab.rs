//! A laboratory on one host: two network namespaces joined by a veth pair, with iperf3's server in one of them.
//! Not a real network: both ends share the host's cores and caches.
//! Source: unshare(2), network_namespaces(7), veth(4).
//!
//! Nothing of it has a name outside: each namespace belongs to a process that ends with this one, and the kernel takes the namespaces and
//! the pair away with it. So nothing is left even after SIGKILL.

use crate::child::{self, ChildError, Running, Start, how_it_ended};
use crate::cpus::CpuSet;
use crate::host::{Host, Tree};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The receiver's interface.
pub const RECEIVER: &str = "lab-receive";
/// The sender's interface.
const SENDER: &str = "lab-send";
/// The sender's address, of the block for benchmarks (RFC 2544).
pub const SERVER_ADDRESS: &str = "198.18.0.1";
const RECEIVER_ADDRESS: &str = "198.18.0.2";
/// iperf3's port.
pub const PORT: u16 = 5201;
const PREPARE_LIMIT: Duration = Duration::from_secs(10);
/// How much later than its peer this process may hear of the server's end.
const NOTICE: Duration = Duration::from_millis(200);

/// The laboratory; dropped, it is gone.
pub struct Lab {
    receiver: Namespace,
    sender: Namespace,
    server: Running,
    server_start: Start,
}

/// Why there is no laboratory.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A namespace cannot be made.
    #[error("cannot make a network namespace ({0}): this needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN")]
    Namespace(io::Error),
    /// A program is missing that keeps one.
    #[error("cannot keep a network namespace: there is no `{HOLDER}` in PATH")]
    NoHolder,
    /// A command that sets it up failed.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The server does not listen.
    #[error("iperf3's server does not listen after {} s", PREPARE_LIMIT.as_secs())]
    Silent,
    /// A process that it consists of has ended.
    #[error("{0}")]
    Ended(String),
}

/// What waits in a namespace until its input ends.
const HOLDER: &str = "cat";

/// A network namespace, with a /sys of its own, that lives as long as a process which does nothing.
struct Namespace {
    holder: Child,
}

impl Namespace {
    fn new() -> Result<Self, LabError> {
        let parent = rustix::process::getpid();
        let mut command = Command::new(HOLDER);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let prepare = move || {
            child::die_with(parent)?;
            // SAFETY: system calls with constants and texts that end in zero.
            unsafe {
                child::check(libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS))?;
                let none = std::ptr::null();
                let private = libc::MS_REC | libc::MS_PRIVATE;
                child::check(libc::mount(none, c"/".as_ptr(), none, private, none.cast()))?;
                // The namespace's own interfaces are seen through a /sys that is mounted in it.
                child::check(libc::mount(
                    c"sysfs".as_ptr(),
                    c"/sys".as_ptr(),
                    c"sysfs".as_ptr(),
                    0,
                    none.cast(),
                ))
            }
        };
        // SAFETY: between fork and exec only system calls are made, and nothing is allocated but an error, on failure.
        let holder = unsafe { command.pre_exec(prepare) }.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => LabError::NoHolder,
            _ => LabError::Namespace(error),
        })?;
        Ok(Self { holder })
    }

    fn id(&self) -> u32 {
        self.holder.id()
    }

    /// How the process that keeps the namespace ended, if it did or is about to.
    fn ended(&mut self, whose: &str) -> Option<String> {
        // An exiting process gives up its namespaces before its parent can wait for it. Others fail to enter them from then on, so that
        // moment counts as its end.
        let is_exiting = std::fs::read_link(format!("/proc/{}/ns/net", self.id())).is_err();
        let status = if is_exiting { self.holder.wait().ok()? } else { self.holder.try_wait().ok()?? };
        Some(format!(
            "the process that keeps the {whose}'s namespace (`cat`, process {}) {}",
            self.id(),
            how_it_ended(status)
        ))
    }

    fn ip(&self, words: &[&str]) -> Result<(), ChildError> {
        let words: Vec<&str> = std::iter::once("ip").chain(words.iter().copied()).collect();
        let start = Start { namespace: Some(self.id()), ..Start::new(&words, PREPARE_LIMIT) };
        start.run().map(drop)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

impl Lab {
    /// Sets it up with the sender on `cpus`, for at most `limit`.
    ///
    /// # Errors
    /// Without the rights, or without `ip` or `iperf3`.
    pub fn build(cpus: CpuSet, mtu: u32, limit: Duration) -> Result<Self, LabError> {
        let (receiver, sender) = (Namespace::new()?, Namespace::new()?);
        let (here, there) = (receiver.id().to_string(), sender.id().to_string());
        let mtu = mtu.to_string();
        let pair = ["ip", "link", "add", RECEIVER, "mtu", &mtu, "netns", &here, "type", "veth"];
        let peer = ["peer", "name", SENDER, "mtu", &mtu, "netns", &there];
        Start::new(&[&pair[..], &peer].concat(), PREPARE_LIMIT).run()?;
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

    fn wait_until_it_listens(&mut self) -> Result<(), LabError> {
        let begin = Instant::now();
        let tcp = format!("proc/{}/net/tcp", self.sender.id());
        let tcp6 = format!("{tcp}6");
        // Local address and state, as /proc/net/tcp has them: 0A is LISTEN.
        let port = format!(":{PORT:04X} ");
        let listens = |file: &str| {
            let table = Tree::live().read(file).unwrap_or_default();
            table.lines().any(|line| line.contains(&port) && line.split_whitespace().nth(3) == Some("0A"))
        };
        while begin.elapsed() < PREPARE_LIMIT {
            if let Some(words) = self.server_ended() {
                return Err(LabError::Ended(words));
            }
            if listens(&tcp) || listens(&tcp6) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(LabError::Silent)
    }

    fn server_ended(&mut self) -> Option<String> {
        let status = self.server.ended()?;
        Some(format!("the lab's server (`iperf3`, process {}) {}", self.server.id(), how_it_ended(status)))
    }

    /// Which of the processes that it cannot do without have ended, and how, in words; none if it is whole but for its server.
    pub fn gone(&mut self) -> Option<String> {
        let ended = [self.receiver.ended("receiver"), self.sender.ended("sender")];
        let ended: Vec<String> = ended.into_iter().flatten().collect();
        (!ended.is_empty()).then(|| format!("the lab is gone: {}", ended.join("; ")))
    }

    /// Starts the server again, for one that a run which failed has left busy; says how it has ended if it had.
    ///
    /// # Errors
    /// If it does not come up, or the lab is gone.
    pub fn restart_server(&mut self) -> Result<Option<String>, LabError> {
        if let Some(words) = self.gone() {
            return Err(LabError::Ended(words));
        }
        // The load hears of its end a little earlier than this process.
        let begin = Instant::now();
        let mut ended = self.server_ended();
        while ended.is_none() && begin.elapsed() < NOTICE {
            std::thread::sleep(Duration::from_millis(10));
            ended = self.server_ended();
        }
        // The old one must give its port back first.
        let placeholder = Start::new(&["true"], PREPARE_LIMIT).spawn()?;
        drop(std::mem::replace(&mut self.server, placeholder));
        self.server = self.server_start.spawn()?;
        self.wait_until_it_listens()?;
        Ok(ended.map(|words| format!("{words} and is started again")))
    }

    /// The process whose network namespace the receiver is in.
    pub fn receiver(&self) -> u32 {
        self.receiver.id()
    }

    /// The host as the receiver's namespace shows it.
    pub fn host(&self) -> Tree {
        Tree::of_child(self.receiver.id())
    }
}
