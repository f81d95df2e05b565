//! Records a host: runs all its readers on a wrapper that records each query and its result.

use super::{FORMAT, Facts, Recording, archived, redaction};
use crate::advice::DriverCapabilities;
use crate::counters::Reading;
use crate::host::Host;
use crate::identity::Identity;
use crate::interface;
use crate::preflight;
use crate::setting::Interface;
use crate::watch::Watch;
use longma_cpu_set::CpuSet;
use longma_linux_network::ethtool::DriverProperty;
use longma_linux_network::rss_table::RssTable;
use longma_linux_network::sockets::{DatagramSocket, Socket};
use longma_locks::IgnorePoison;
use longma_topology::CpuLocation;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{File, Permissions};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Mutex;

/// Files that no code reads, included for people who study the recording.
const FOR_PEOPLE: [&str; 2] = ["proc/sys/kernel/osrelease", "proc/cpuinfo"];

/// Permissions of the file, before the umask.
const FILE_MODE: u32 = 0o666;

/// Writes a recording of `host` to the tar file `path`. `pause` waits for the interval over which rates are observed.
/// The file gets its name when it is complete.
///
/// # Errors
/// `AlreadyExists` if there is such a file; the error of the operating system if it cannot be written.
pub fn record(host: &dyn Host, pause: &mut dyn FnMut(), path: &Path) -> io::Result<()> {
    if path.symlink_metadata().is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A folder that cannot be written is reported before the wait.
    drop(UnnamedFile::create(folder)?);
    let recording = of(host, pause);
    let file = UnnamedFile::create(folder)?;
    recording.pack(file.file())?;
    file.file().sync_all()?;
    file.name(path)
}

/// A file that has no name until it is complete, so that a killed process leaves nothing behind.
enum UnnamedFile {
    /// Without any name (open(2), `O_TMPFILE`).
    Unnamed(File),
    /// With a temporary name, on file systems without such files. It stays if the process is killed.
    Temporary(tempfile::NamedTempFile),
}

impl UnnamedFile {
    fn create(folder: &Path) -> io::Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        match rustix::fs::open(folder, flags, Mode::from_raw_mode(FILE_MODE)) {
            Ok(file) => Ok(Self::Unnamed(file.into())),
            // Kernels and file systems without O_TMPFILE fail as if a directory were opened for writing.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let mut builder = tempfile::Builder::new();
                builder.prefix(".affinity-").suffix(".part").permissions(Permissions::from_mode(FILE_MODE));
                Ok(Self::Temporary(builder.tempfile_in(folder)?))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn file(&self) -> &File {
        match self {
            Self::Unnamed(file) => file,
            Self::Temporary(file) => file.as_file(),
        }
    }

    /// Gives the file its name, which must not exist yet.
    fn name(self, path: &Path) -> io::Result<()> {
        match self {
            Self::Unnamed(file) => {
                let own = format!("/proc/self/fd/{}", file.as_raw_fd());
                Ok(rustix::fs::linkat(CWD, own, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
            }
            Self::Temporary(file) => file.persist_noclobber(path).map(drop).map_err(|error| error.error),
        }
    }
}

/// Makes a recording.
pub(super) fn of(host: &dyn Host, pause: &mut dyn FnMut()) -> Recording {
    let recorder = Recorder { host, seen: Mutex::default() };
    let names = interface::names(&recorder);
    preflight::check(&recorder, None, None);
    for name in &names {
        if let Some(nic) = interface::read(&recorder, name) {
            preflight::visit(&recorder, &nic);
            Reading::of(&recorder, &nic);
            for nic in nic.physical() {
                DriverCapabilities::of(&recorder, nic);
                // A failed query is recorded by leaving it out.
                let _ = recorder.packet_sizes(nic.name.name());
            }
        }
    }
    FOR_PEOPLE.iter().for_each(|path| drop(recorder.read(path)));
    // The watch does not read through the recorder: only its result is recorded.
    let mut watch = Watch::new(names);
    watch.observe(host);
    pause();
    let observation = redaction::anonymised(watch.observe(host));
    let mut recording = recorder.seen.into_inner().ignore_poison();
    let facts = &mut recording.facts;
    (facts.affinity_recording, facts.places, facts.observation) = (FORMAT, host.places(), observation);
    recording
}

/// Forwards all queries and records the results.
struct Recorder<'a> {
    host: &'a dyn Host,
    seen: Mutex<Recording>,
}

impl Recorder<'_> {
    fn note(&self, note: impl FnOnce(&mut Recording)) {
        note(&mut self.seen.lock().ignore_poison());
    }

    fn facts(&self, interface: &str, note: impl FnOnce(&mut Facts, Interface)) {
        if let Ok(interface) = interface.parse() {
            self.note(|seen| note(&mut seen.facts, interface));
        }
    }
}

impl Host for Recorder<'_> {
    fn read(&self, path: &str) -> io::Result<String> {
        let found = self.host.read(path)?;
        if let Some(text) = redaction::text(path, &found) {
            self.note(|seen| drop(seen.files.insert(archived(path), text)));
        }
        Ok(found)
    }

    fn names(&self, path: &str) -> Vec<String> {
        let found = self.host.names(path);
        if redaction::is_kept(path) && !found.is_empty() {
            let kept = found.iter().filter(|name| redaction::is_kept(&format!("{path}/{name}"))).cloned();
            self.note(|seen| seen.facts.names.entry(archived(path)).or_default().extend(kept));
        }
        found
    }

    fn link(&self, path: &str) -> Option<String> {
        let found = self.host.link(path)?;
        if redaction::is_kept(path) {
            let last = found.rsplit('/').next().unwrap_or_default();
            self.note(|seen| drop(seen.facts.links.insert(archived(path), last.into())));
        }
        Some(found)
    }

    fn driver(&self, interface: &str, fact: DriverProperty) -> io::Result<u64> {
        let value = self.host.driver(interface, fact)?;
        self.facts(interface, |facts, name| facts.drivers.push((name, fact, value)));
        Ok(value)
    }

    fn link_driver(&self, interface: &str) -> Option<String> {
        self.host.link_driver(interface)
    }

    fn rss_table(&self, interface: &str) -> io::Result<RssTable> {
        let table = self.host.rss_table(interface)?;
        self.facts(interface, |facts, name| facts.has_rss_table.extend([name]));
        Ok(table)
    }

    fn packet_sizes(&self, interface: &str) -> io::Result<RangeInclusive<u64>> {
        let sizes = self.host.packet_sizes(interface)?;
        let range = (*sizes.start(), *sizes.end());
        self.facts(interface, |facts, name| facts.packet_sizes.extend([(name, range)]));
        Ok(sizes)
    }

    fn write(&self, path: &str, _text: &str) -> io::Result<()> {
        self.may_write(path)
    }

    fn may_write(&self, _path: &str) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn set_driver(&self, _interface: &str, _fact: DriverProperty, _value: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sockets(&self) -> io::Result<Vec<Socket>> {
        self.host.sockets()
    }

    fn datagram_sockets(&self) -> io::Result<Vec<DatagramSocket>> {
        self.host.datagram_sockets()
    }

    fn addresses(&self, interface: &str) -> Vec<IpAddr> {
        self.host.addresses(interface)
    }

    fn thread_cpus(&self, thread: u32) -> io::Result<CpuSet> {
        self.host.thread_cpus(thread)
    }

    fn bind_thread(&self, _thread: u32, _cpus: &CpuSet) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn places(&self) -> Vec<CpuLocation> {
        self.host.places()
    }

    fn identity(&self) -> Identity {
        self.host.identity()
    }

    fn index_of(&self, interface: &str) -> io::Result<u32> {
        self.host.index_of(interface)
    }

    fn name_of(&self, index: u32) -> io::Result<String> {
        self.host.name_of(index)
    }

    fn foreign_sysfs(&self) -> Option<String> {
        self.host.foreign_sysfs()
    }

    fn hold(&self, _path: &str) -> io::Result<Option<File>> {
        Ok(None)
    }
}
