//! A recorded host: a tar file with everything that `check`, `advise` and a dry run of `tune` read, so that they can
//! run on another machine.
//!
//! The file holds the texts that were read from /proc and /sys, and `recording.json` with everything else. It holds no
//! hardware or network addresses, no names, numbers or command lines of programs, and no RSS keys: see
//! [`LEFT_OUT`]. Its last member, `recording.end`, holds the number of texts: without it, or with fewer texts, the
//! recording is incomplete.

mod archive;
mod recorder;
mod redaction;
mod replay;

pub use archive::RecordingError;
pub use recorder::record;
pub use replay::dry_run;

use crate::host::Host;
use crate::identity::Identity;
use crate::preflight::{self, Finding};
use crate::setting::Interface;
use crate::watch::Observation;
use longma_cpu_set::CpuSet;
use longma_linux_network::ethtool::DriverProperty;
use longma_linux_network::rss_table::RssTable;
use longma_linux_network::sockets::{DatagramSocket, Socket};
use longma_topology::CpuLocation;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// The description, for users, of the data that a recording leaves out.
pub const LEFT_OUT: &str = "left out: hardware addresses, the boot's ID and time, keys of RSS, command lines, other processes; \
    replaced: network addresses of flows, names and numbers of their programs; kept: names of interfaces, ports of flows";

/// Format version.
const FORMAT: u32 = 1;

/// A recorded host. It cannot be changed.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// Texts by path.
    files: BTreeMap<String, String>,
    facts: Facts,
}

/// Replaces `..` in the paths of a recording, because archives refuse paths with `..`.
const PARENT: &str = "parent-directory";

/// The path under which a recording holds `path`. The parent of a linked directory is that of the link's target, so
/// `..` does not cancel the name before it: `device/../numa_node` becomes `device/parent-directory/numa_node`.
fn archived(path: &str) -> String {
    let parts = path.split('/').map(|part| if part == ".." { PARENT } else { part });
    parts.collect::<Vec<_>>().join("/")
}

/// Everything except the texts of files.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Facts {
    affinity_recording: u32,
    /// Last parts of the targets of links.
    links: BTreeMap<String, String>,
    /// Entries of directories, besides the recorded files.
    names: BTreeMap<String, BTreeSet<String>>,
    /// Properties of drivers by interface.
    drivers: Vec<(Interface, DriverProperty, u64)>,
    /// Ranges of the MTU by interface.
    packet_sizes: BTreeMap<Interface, (u64, u64)>,
    /// Interfaces whose driver has an RSS table.
    has_rss_table: BTreeSet<Interface>,
    places: Vec<CpuLocation>,
    /// Flows, threads and queues over an interval.
    observation: Observation,
}

impl Recording {
    /// The recorded flows, threads and queues.
    pub fn observation(&self) -> Observation {
        Observation { places: self.facts.places.clone(), ..self.facts.observation.clone() }
    }

    /// Checks the host like [`preflight::check`], with the load that was observed when it was recorded.
    pub fn check(&self, interface: Option<&Interface>) -> Vec<Finding> {
        let mut findings = preflight::check(self, interface, None);
        let cpus = &self.facts.observation.cpus;
        if !cpus.is_empty() {
            findings.extend(preflight::load_of(cpus));
        }
        findings
    }
}

impl Host for Recording {
    fn read(&self, path: &str) -> io::Result<String> {
        self.files.get(&archived(path)).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn write(&self, _path: &str, _text: &str) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn may_write(&self, _path: &str) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn names(&self, path: &str) -> Vec<String> {
        let path = &archived(path);
        let below = format!("{path}/");
        let files = self.files.range(below.clone()..).map(|(file, _)| file);
        let files = files.map_while(|file| file.strip_prefix(&below)?.split('/').next());
        let listed = self.facts.names.get(path).into_iter().flatten().map(String::as_str);
        let names: BTreeSet<&str> = files.chain(listed).collect();
        names.into_iter().map(String::from).collect()
    }

    fn link(&self, path: &str) -> Option<String> {
        self.facts.links.get(&archived(path)).cloned()
    }

    fn driver(&self, interface: &str, fact: DriverProperty) -> io::Result<u64> {
        let found = self.facts.drivers.iter().find(|(of, is, _)| of.name() == interface && *is == fact);
        found.map(|(_, _, value)| *value).ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    fn set_driver(&self, _interface: &str, _fact: DriverProperty, _value: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    /// Returns an empty table if the recorded driver has an RSS table.
    fn rss_table(&self, interface: &str) -> io::Result<RssTable> {
        let has = self.facts.has_rss_table.iter().any(|of| of.name() == interface);
        let empty =
            RssTable { key: Vec::new(), table: Vec::new(), ports: [false; 2], datagram_ports: [None; 2] };
        has.then_some(empty).ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    fn packet_sizes(&self, interface: &str) -> io::Result<RangeInclusive<u64>> {
        let found = self.facts.packet_sizes.iter().find(|(of, _)| of.name() == interface);
        found.map(|(_, (least, most))| *least..=*most).ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    fn sockets(&self) -> io::Result<Vec<Socket>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn datagram_sockets(&self) -> io::Result<Vec<DatagramSocket>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn addresses(&self, _interface: &str) -> Vec<IpAddr> {
        Vec::new()
    }

    fn thread_cpus(&self, _thread: u32) -> io::Result<CpuSet> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn bind_thread(&self, _thread: u32, _cpus: &CpuSet) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn places(&self) -> Vec<CpuLocation> {
        self.facts.places.clone()
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn index_of(&self, _interface: &str) -> io::Result<u32> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn name_of(&self, _index: u32) -> io::Result<String> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn foreign_sysfs(&self) -> Option<String> {
        None
    }

    fn hold(&self, _path: &str) -> io::Result<Option<File>> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
