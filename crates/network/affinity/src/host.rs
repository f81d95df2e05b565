//! A host: its files under /proc and /sys, its CPUs, its drivers. The one boundary between this crate and the machine it runs on.
//! Not what is read there (`interface`, `places`, `counters`), nor what may be changed (`setting`).

use crate::cpus::CpuSet;
use crate::ethtool::{self, DriverFact};
use crate::identity::{self, Identity};
use crate::links::{self, Links};
use crate::packet_size;
use crate::sockets::{self, Socket};
use crate::spread::{self, Spread};
use longma_topology::{CpuLocation, Sysfs};
use rustix::fs::FlockOperation;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Longest file of /proc that is read, bytes; /proc/interrupts of the largest hosts has some MiB.
const MAX_BYTES: u64 = 64 << 20;

/// A host whose settings can be read and written. Paths are below the root: `proc/stat`.
pub trait Host: Sync {
    /// The text of a file, without white space at its ends.
    ///
    /// # Errors
    /// What the system said.
    fn read(&self, path: &str) -> io::Result<String>;

    /// Writes a file in one call, as settings of the kernel want it.
    ///
    /// # Errors
    /// What the system said: EIO and EPERM where the kernel keeps a setting to itself.
    fn write(&self, path: &str, text: &str) -> io::Result<()>;

    /// Whether a file can be opened for writing; nothing is written.
    ///
    /// # Errors
    /// What the system said: EACCES without the right, EROFS where it is mounted so.
    fn may_write(&self, path: &str) -> io::Result<()>;

    /// The names in a folder, sorted; none if there is no such folder.
    fn names(&self, path: &str) -> Vec<String>;

    /// Where a link points to, if it is one.
    fn link(&self, path: &str) -> Option<String>;

    /// What a driver says of an interface.
    ///
    /// # Errors
    /// What the system said.
    fn driver(&self, interface: &str, fact: DriverFact) -> io::Result<u64>;

    /// Tells a driver.
    ///
    /// # Errors
    /// What the system said.
    fn set_driver(&self, interface: &str, fact: DriverFact, value: u64) -> io::Result<()>;

    /// How the driver of an interface spreads connections over its queues.
    ///
    /// # Errors
    /// What the system said, or `Unsupported` where that is not known to follow from their addresses and ports.
    fn spread(&self, interface: &str) -> io::Result<Spread>;

    /// The bytes of a packet that an interface can be set to.
    ///
    /// # Errors
    /// What the system said; `Unsupported` where it does not tell.
    fn packet_sizes(&self, interface: &str) -> io::Result<RangeInclusive<u64>>;

    /// The established TCP connections of the network namespace, with the bytes they have carried.
    ///
    /// # Errors
    /// What the system said: ENOENT from a kernel without sock_diag.
    fn sockets(&self) -> io::Result<Vec<Socket>>;

    /// The addresses of an interface.
    fn addresses(&self, interface: &str) -> Vec<IpAddr>;

    /// The CPUs that a thread may run on.
    ///
    /// # Errors
    /// What the system said: `NotFound` for a thread that has ended.
    fn thread_cpus(&self, thread: u32) -> io::Result<CpuSet>;

    /// Lets a thread run on these CPUs only.
    ///
    /// # Errors
    /// What the system said: EPERM for a thread of somebody else, EINVAL where its cpuset has none of them.
    fn bind_thread(&self, thread: u32, cpus: &CpuSet) -> io::Result<()>;

    /// Where every online CPU is.
    fn places(&self) -> Vec<CpuLocation>;

    /// What tells this run of this host from others, and its network namespace: a change made elsewhere is not undone here.
    fn identity(&self) -> Identity;

    /// The number of an interface in the kernel's own word: it stays when the interface is renamed.
    ///
    /// # Errors
    /// What the system said: `NotFound` if there is none of the name, `Unsupported` where there is no kernel to ask.
    fn index_of(&self, interface: &str) -> io::Result<u32>;

    /// The name that the interface with a number has now.
    ///
    /// # Errors
    /// As [`Host::index_of`].
    fn name_of(&self, index: u32) -> io::Result<String>;

    /// What the mounted /sys shows of another network namespace than the one that changes are made in, in words; none if it is the same.
    fn strange_sys(&self) -> Option<String>;

    /// Keeps a file or folder from every other process that asks for the same; none where nothing can be kept so.
    ///
    /// # Errors
    /// `WouldBlock` if another process has it.
    fn hold(&self, path: &str) -> io::Result<Option<fs::File>>;

    /// Whether it ends with the process that changes it, as a laboratory's namespaces do: then nothing is left to put back.
    fn ends_with_writer(&self) -> bool {
        false
    }
}

/// The files below a folder: of this host, of another network namespace of it, or a recorded tree.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
    has_drivers: bool,
    ends_with_writer: bool,
    /// A process whose network namespace its drivers are in; this process's if none.
    namespace: Option<u32>,
}

/// The interfaces that /sys shows.
fn shown(host: &dyn Host) -> Links {
    let link = |name: String| {
        let file = |file: &str| host.read(&format!("sys/class/net/{name}/{file}")).ok();
        let index = file("ifindex")?.parse().ok()?;
        let address = file("address");
        Some((name, (index, address)))
    };
    host.names("sys/class/net").into_iter().filter_map(link).collect()
}

impl Tree {
    /// The host that this program runs on.
    pub fn live() -> Self {
        Self { root: "/".into(), has_drivers: true, ends_with_writer: false, namespace: None }
    }

    /// A tree recorded on another host: it has no drivers.
    pub fn recorded(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), has_drivers: false, ends_with_writer: false, namespace: None }
    }

    /// This host as `process` sees it, which ends with this process.
    pub fn of_child(process: u32) -> Self {
        let root = format!("/proc/{process}/root").into();
        Self { root, has_drivers: false, ends_with_writer: true, namespace: Some(process) }
    }

    /// Whether there is a kernel behind it.
    fn is_live(&self) -> bool {
        self.has_drivers || self.namespace.is_some()
    }

    fn with_drivers<T>(&self, ask: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.has_drivers { ask() } else { Err(io::ErrorKind::Unsupported.into()) }
    }
}

impl Tree {
    /// Asks a driver in the namespace that the tree shows.
    fn in_namespace<T: Send>(&self, ask: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let Some(process) = self.namespace else { return self.with_drivers(ask) };
        let entered = || {
            let namespace = fs::File::open(format!("/proc/{process}/ns/net"))?;
            let kind = rustix::thread::LinkNameSpaceType::Network;
            rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind))?;
            ask()
        };
        // A thread of its own: this one stays where it is.
        std::thread::scope(|scope| scope.spawn(entered).join())
            .unwrap_or_else(|_| Err(io::Error::other("the thread that asks the driver has failed")))
    }
}

impl Host for Tree {
    fn read(&self, path: &str) -> io::Result<String> {
        use io::Read;
        let mut bytes = Vec::new();
        fs::File::open(self.root.join(path))?.take(MAX_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().into())
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        use io::Write;
        // Not made: a setting that is not there is an error. The newline lets an empty list through.
        let mut file = fs::OpenOptions::new().write(true).truncate(true).open(self.root.join(path))?;
        file.write_all(format!("{text}\n").as_bytes())
    }

    fn may_write(&self, path: &str) -> io::Result<()> {
        fs::OpenOptions::new().write(true).open(self.root.join(path)).map(drop)
    }

    fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    fn link(&self, path: &str) -> Option<String> {
        Some(fs::read_link(self.root.join(path)).ok()?.to_string_lossy().into_owned())
    }

    fn driver(&self, interface: &str, fact: DriverFact) -> io::Result<u64> {
        self.in_namespace(|| ethtool::get(interface, fact))
    }

    fn set_driver(&self, interface: &str, fact: DriverFact, value: u64) -> io::Result<()> {
        self.in_namespace(|| ethtool::set(interface, fact, value))
    }

    fn spread(&self, interface: &str) -> io::Result<Spread> {
        self.in_namespace(|| spread::get(interface))
    }

    fn packet_sizes(&self, interface: &str) -> io::Result<RangeInclusive<u64>> {
        self.in_namespace(|| packet_size::range(interface))
    }

    fn sockets(&self) -> io::Result<Vec<Socket>> {
        self.with_drivers(sockets::dump)
    }

    fn addresses(&self, interface: &str) -> Vec<IpAddr> {
        if self.has_drivers { sockets::addresses(interface) } else { Vec::new() }
    }

    fn thread_cpus(&self, thread: u32) -> io::Result<CpuSet> {
        self.with_drivers(|| {
            let set = rustix::thread::sched_getaffinity(pid(thread)?).map_err(of_thread)?;
            Ok((0..rustix::thread::CpuSet::MAX_CPU)
                .filter(|cpu| set.is_set(*cpu))
                .map(|cpu| cpu as u32)
                .collect())
        })
    }

    fn bind_thread(&self, thread: u32, cpus: &CpuSet) -> io::Result<()> {
        self.with_drivers(|| {
            let mut set = rustix::thread::CpuSet::new();
            for cpu in cpus.iter() {
                let cpu = cpu as usize;
                // The library's set ends here; a CPU that it does not know is refused and not left out.
                if cpu >= rustix::thread::CpuSet::MAX_CPU {
                    return Err(io::ErrorKind::InvalidInput.into());
                }
                set.set(cpu);
            }
            rustix::thread::sched_setaffinity(pid(thread)?, &set).map_err(of_thread)
        })
    }

    fn places(&self) -> Vec<CpuLocation> {
        let tree = if self.has_drivers { Sysfs::live() } else { Sysfs::recorded(&self.root) };
        tree.cpu_locations()
    }

    fn identity(&self) -> Identity {
        let boot = self.read("proc/sys/kernel/random/boot_id").unwrap_or_else(|_| "unknown-boot".into());
        let namespace = match self.namespace {
            Some(process) => format!("/proc/{process}/ns/net").into(),
            None => self.root.join("proc/self/ns/net"),
        };
        let inode = fs::metadata(namespace).map_or(0, |of| of.ino());
        Identity { boot, inode, cookie: self.in_namespace(identity::cookie).ok() }
    }

    fn index_of(&self, interface: &str) -> io::Result<u32> {
        self.in_namespace(|| links::index_of(interface))
    }

    fn name_of(&self, index: u32) -> io::Result<String> {
        self.in_namespace(|| links::name_of(index))
    }

    fn strange_sys(&self) -> Option<String> {
        self.in_namespace(|| Ok(links::difference(&|| shown(self)))).ok()?
    }

    fn hold(&self, path: &str) -> io::Result<Option<fs::File>> {
        if !self.is_live() {
            return Ok(None);
        }
        let file = fs::File::open(self.root.join(path))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(io::ErrorKind::WouldBlock.into()),
            Err(_) => Ok(None),
        }
    }

    fn ends_with_writer(&self) -> bool {
        self.ends_with_writer
    }
}

fn pid(thread: u32) -> io::Result<Option<rustix::process::Pid>> {
    // None would mean the calling thread.
    let pid = i32::try_from(thread).ok().and_then(rustix::process::Pid::from_raw);
    pid.map(Some).ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn of_thread(error: rustix::io::Errno) -> io::Error {
    if error == rustix::io::Errno::SRCH { io::ErrorKind::NotFound.into() } else { error.into() }
}
