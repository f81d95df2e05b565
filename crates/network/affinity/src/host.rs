//! The interface between this crate and the machine: files below /proc and /sys, CPUs, drivers, sockets and threads.
//! All reads and writes go through the trait `Host`.

use crate::identity::{self, Identity};
use crate::schedule::Schedule;
use longma_cpu_set::CpuSet;
use longma_linux_network::ethtool::DriverProperty;
use longma_linux_network::features::{self, Feature};
use longma_linux_network::links::{self, Links};
use longma_linux_network::napi::{self, NapiInstance, NapiValues};
use longma_linux_network::packet_size;
use longma_linux_network::property;
use longma_linux_network::queue_coalescing::{self, WORDS};
use longma_linux_network::rss_table::{self, RssTable};
use longma_linux_network::sockets::{self, DatagramSocket, Socket};
use longma_topology::{CpuLocation, HostRoot, Sysfs, UnreadableFile};
use rustix::fs::FlockOperation;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Where the journals of this host are registered.
const JOURNALS: &str = "/run/longma/journals";

/// A host whose settings can be read and written. Paths are relative to the root: `proc/stat`.
pub trait Host: Sync {
    /// Reads a file and trims white space.
    ///
    /// # Errors
    /// The error of the operating system.
    fn read(&self, path: &str) -> io::Result<String>;

    /// Writes a file with a single call, as kernel settings require.
    ///
    /// # Errors
    /// The error of the operating system: EIO or EPERM if the kernel does not allow a change.
    fn write(&self, path: &str, text: &str) -> io::Result<()>;

    /// Checks that a file can be opened for writing, without writing.
    ///
    /// # Errors
    /// The error of the operating system: EACCES without permission, EROFS on a read-only mount.
    fn may_write(&self, path: &str) -> io::Result<()>;

    /// Names of the entries of a directory, sorted; empty if it does not exist.
    fn names(&self, path: &str) -> Vec<String>;

    /// Target of a symbolic link.
    fn link(&self, path: &str) -> Option<String>;

    /// Reads a property of a driver.
    ///
    /// # Errors
    /// The error of the operating system.
    fn driver(&self, interface: &str, fact: DriverProperty) -> io::Result<u64>;

    /// Sets a property of a driver.
    ///
    /// # Errors
    /// The error of the operating system.
    fn set_driver(&self, interface: &str, fact: DriverProperty, value: u64) -> io::Result<()>;

    /// Features of an interface.
    ///
    /// # Errors
    /// The error of the operating system, or `Unsupported` if there is no kernel to ask.
    fn features(&self, _interface: &str) -> io::Result<Vec<Feature>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Requests features of an interface to be on or off.
    ///
    /// # Errors
    /// As for [`Host::features`].
    fn request_features(&self, _interface: &str, _features: &[(&str, bool)]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// NAPI instances of an interface.
    ///
    /// # Errors
    /// As for [`Host::features`]; `NotFound` if the kernel does not list them.
    fn napi(&self, _interface: &str) -> io::Result<Vec<NapiInstance>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Changes the given values of a NAPI instance of an interface.
    ///
    /// # Errors
    /// As for [`Host::napi`].
    fn set_napi(&self, _interface: &str, _id: u32, _values: &NapiValues) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Interrupt coalescing of single queues of an interface, which are sorted.
    ///
    /// # Errors
    /// As for [`Host::features`].
    fn queue_coalescing(&self, _interface: &str, _queues: &[u32]) -> io::Result<Vec<[u32; WORDS]>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sets the coalescing of single queues.
    ///
    /// # Errors
    /// As for [`Host::features`].
    fn set_queue_coalescing(&self, _interface: &str, _queues: &[(u32, [u32; WORDS])]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sets how a thread is scheduled.
    ///
    /// # Errors
    /// The error of the operating system.
    fn set_schedule(&self, _thread: u32, _schedule: &Schedule) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Name of the driver of an interface, also of one without a device, such as `macvlan`; `None` if it is not known.
    fn link_driver(&self, _interface: &str) -> Option<String> {
        None
    }

    /// RSS configuration of an interface's driver.
    ///
    /// # Errors
    /// The error of the operating system, or `Unsupported` if the queue does not depend on addresses and ports alone.
    fn rss_table(&self, interface: &str) -> io::Result<RssTable>;

    /// MTU range of an interface.
    ///
    /// # Errors
    /// The error of the operating system; `Unsupported` if it does not report a range.
    fn packet_sizes(&self, interface: &str) -> io::Result<RangeInclusive<u64>>;

    /// Established TCP connections of the network namespace, with the bytes transferred.
    ///
    /// # Errors
    /// The error of the operating system: ENOENT if the kernel has no sock_diag.
    fn sockets(&self) -> io::Result<Vec<Socket>>;

    /// UDP sockets of the network namespace. The kernel does not count their bytes.
    ///
    /// # Errors
    /// The error of the operating system: ENOENT if the kernel has no sock_diag of UDP.
    fn datagram_sockets(&self) -> io::Result<Vec<DatagramSocket>>;

    /// Addresses of an interface.
    fn addresses(&self, interface: &str) -> Vec<IpAddr>;

    /// CPU affinity of a thread.
    ///
    /// # Errors
    /// The error of the operating system: `NotFound` for a thread that has ended.
    fn thread_cpus(&self, thread: u32) -> io::Result<CpuSet>;

    /// Sets the CPU affinity of a thread.
    ///
    /// # Errors
    /// The error of the operating system: EPERM for another user's thread, EINVAL if its cpuset contains none of the
    /// CPUs.
    fn bind_thread(&self, thread: u32, cpus: &CpuSet) -> io::Result<()>;

    /// Topology of all online CPUs.
    fn places(&self) -> Vec<CpuLocation>;

    /// Identity of this boot and network namespace. A change is undone only on the host where it was made.
    fn identity(&self) -> Identity;

    /// The kernel's index of an interface. It stays the same when the interface is renamed.
    ///
    /// # Errors
    /// The error of the operating system: `NotFound` for an unknown name, `Unsupported` if there is no kernel to ask.
    fn index_of(&self, interface: &str) -> io::Result<u32>;

    /// Current name of the interface with an index.
    ///
    /// # Errors
    /// As for [`Host::index_of`].
    fn name_of(&self, index: u32) -> io::Result<String>;

    /// Describes how the mounted /sys differs from the network namespace that changes are made in; `None` if they
    /// match. A difference means that /sys belongs to another namespace.
    fn foreign_sysfs(&self) -> Option<String>;

    /// Locks a file or directory against other processes that use this function; `None` if it cannot be locked.
    ///
    /// # Errors
    /// `WouldBlock` if another process holds the lock.
    fn hold(&self, path: &str) -> io::Result<Option<fs::File>>;

    /// The folder in which journals in use are registered; `None` if there is none.
    fn journals(&self) -> Option<PathBuf> {
        None
    }

    /// Whether the settings disappear with the process that changes them, like the namespaces of the testbed. In that
    /// case, nothing needs to be restored.
    fn ends_with_writer(&self) -> bool {
        false
    }
}

/// The files below a directory: of this host, of another network namespace, or a recorded tree.
#[derive(Clone, Debug)]
pub struct Tree {
    root: HostRoot,
    has_drivers: bool,
    ends_with_writer: bool,
    /// A process whose network namespace the drivers are in; `None` for this process's namespace.
    namespace: Option<u32>,
}

/// Interfaces listed in /sys.
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
        Self { root: HostRoot::live("/"), has_drivers: true, ends_with_writer: false, namespace: None }
    }

    /// A tree recorded on another host. It has no drivers.
    pub fn recorded(root: impl Into<PathBuf>) -> Self {
        Self { root: HostRoot::recorded(root), has_drivers: false, ends_with_writer: false, namespace: None }
    }

    /// This host as seen by the child `process`. Its settings disappear with this process.
    pub fn of_child(process: u32) -> Self {
        let root = HostRoot::live(format!("/proc/{process}/root"));
        Self { root, has_drivers: false, ends_with_writer: true, namespace: Some(process) }
    }

    /// The first file of a recorded tree that was refused: a device, a pipe, or a file that is too long.
    pub fn unreadable(&self) -> Option<&UnreadableFile> {
        self.root.unreadable()
    }

    /// Returns whether a kernel can be asked.
    fn is_live(&self) -> bool {
        self.has_drivers || self.namespace.is_some()
    }

    fn with_drivers<T>(&self, ask: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.has_drivers { ask() } else { Err(io::ErrorKind::Unsupported.into()) }
    }
}

impl Tree {
    /// Runs `ask` in the network namespace to which the tree belongs.
    fn in_namespace<T: Send>(&self, ask: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let Some(process) = self.namespace else { return self.with_drivers(ask) };
        let entered = || {
            let namespace = fs::File::open(format!("/proc/{process}/ns/net"))?;
            let kind = rustix::thread::LinkNameSpaceType::Network;
            rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind))?;
            ask()
        };
        // On a separate thread, so that the calling thread stays in its namespace.
        std::thread::scope(|scope| scope.spawn(entered).join())
            .unwrap_or_else(|_| Err(io::Error::other("the thread that queries the driver panicked")))
    }
}

impl Host for Tree {
    fn read(&self, path: &str) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&self.root.read(path)?).trim().into())
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        use io::Write;
        // Do not create the file: a missing setting is an error. The newline makes the write nonempty even for an empty
        // list.
        let mut file = fs::OpenOptions::new().write(true).truncate(true).open(self.root.path().join(path))?;
        file.write_all(format!("{text}\n").as_bytes())
    }

    fn may_write(&self, path: &str) -> io::Result<()> {
        fs::OpenOptions::new().write(true).open(self.root.path().join(path)).map(drop)
    }

    fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.path().join(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    fn link(&self, path: &str) -> Option<String> {
        Some(fs::read_link(self.root.path().join(path)).ok()?.to_string_lossy().into_owned())
    }

    fn driver(&self, interface: &str, fact: DriverProperty) -> io::Result<u64> {
        self.in_namespace(|| property::get(interface, fact))
    }

    fn set_driver(&self, interface: &str, fact: DriverProperty, value: u64) -> io::Result<()> {
        self.in_namespace(|| property::set(interface, fact, value))
    }

    fn features(&self, interface: &str) -> io::Result<Vec<Feature>> {
        self.in_namespace(|| features::get(interface))
    }

    fn request_features(&self, interface: &str, features: &[(&str, bool)]) -> io::Result<()> {
        self.in_namespace(|| features::request(interface, features))
    }

    fn napi(&self, interface: &str) -> io::Result<Vec<NapiInstance>> {
        self.in_namespace(|| napi::get(interface))
    }

    fn set_napi(&self, _interface: &str, id: u32, values: &NapiValues) -> io::Result<()> {
        self.in_namespace(|| napi::set(id, values))
    }

    fn queue_coalescing(&self, interface: &str, queues: &[u32]) -> io::Result<Vec<[u32; WORDS]>> {
        self.in_namespace(|| queue_coalescing::get(interface, queues))
    }

    fn set_queue_coalescing(&self, interface: &str, queues: &[(u32, [u32; WORDS])]) -> io::Result<()> {
        self.in_namespace(|| queue_coalescing::set(interface, queues))
    }

    fn set_schedule(&self, thread: u32, schedule: &Schedule) -> io::Result<()> {
        self.with_drivers(|| set_schedule(pid(thread)?, schedule))
    }

    fn link_driver(&self, interface: &str) -> Option<String> {
        self.in_namespace(|| links::driver_of(interface)).ok()
    }

    fn rss_table(&self, interface: &str) -> io::Result<RssTable> {
        self.in_namespace(|| rss_table::get(interface))
    }

    fn packet_sizes(&self, interface: &str) -> io::Result<RangeInclusive<u64>> {
        self.in_namespace(|| packet_size::range(interface))
    }

    fn sockets(&self) -> io::Result<Vec<Socket>> {
        self.with_drivers(sockets::dump)
    }

    fn datagram_sockets(&self) -> io::Result<Vec<DatagramSocket>> {
        self.with_drivers(sockets::dump_datagrams)
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
                // The library's set cannot hold this CPU. Reject it instead of ignoring it.
                if cpu >= rustix::thread::CpuSet::MAX_CPU {
                    return Err(io::ErrorKind::InvalidInput.into());
                }
                set.set(cpu);
            }
            rustix::thread::sched_setaffinity(pid(thread)?, &set).map_err(of_thread)
        })
    }

    fn places(&self) -> Vec<CpuLocation> {
        Sysfs::of(&self.root).cpu_locations()
    }

    fn identity(&self) -> Identity {
        let boot = self.read("proc/sys/kernel/random/boot_id").unwrap_or_else(|_| "unknown-boot".into());
        let namespace = match self.namespace {
            Some(process) => format!("/proc/{process}/ns/net").into(),
            None => self.root.path().join("proc/self/ns/net"),
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

    fn foreign_sysfs(&self) -> Option<String> {
        self.in_namespace(|| Ok(links::difference(&|| shown(self)))).ok()?
    }

    fn hold(&self, path: &str) -> io::Result<Option<fs::File>> {
        if !self.is_live() {
            return Ok(None);
        }
        let file = fs::File::open(self.root.path().join(path))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(io::ErrorKind::WouldBlock.into()),
            Err(_) => Ok(None),
        }
    }

    fn journals(&self) -> Option<PathBuf> {
        self.has_drivers.then(|| JOURNALS.into())
    }

    fn ends_with_writer(&self) -> bool {
        self.ends_with_writer
    }
}

fn pid(thread: u32) -> io::Result<Option<rustix::process::Pid>> {
    // The kernel would interpret 0 as the calling thread.
    let pid = i32::try_from(thread).ok().and_then(rustix::process::Pid::from_raw);
    pid.map(Some).ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn of_thread(error: rustix::io::Errno) -> io::Error {
    if error == rustix::io::Errno::SRCH { io::ErrorKind::NotFound.into() } else { error.into() }
}

fn set_schedule(thread: Option<rustix::process::Pid>, schedule: &Schedule) -> io::Result<()> {
    let (number, priority) = (rustix::process::Pid::as_raw(thread), schedule.priority as libc::c_int);
    let (call, policy) = (libc::SYS_sched_setscheduler, schedule.policy as libc::c_int);
    // SAFETY: the kernel's parameters are the priority alone. musl's function always fails.
    if unsafe { libc::syscall(call, number, policy, &raw const priority) } < 0 {
        return Err(of_thread(
            rustix::io::Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(rustix::io::Errno::INVAL),
        ));
    }
    rustix::process::setpriority_process(thread, schedule.nice).map_err(of_thread)
}
