//! A simulated host for tests: in-memory files, refused writes, and changes by a competing program. For a recorded
//! host, use a [`crate::host::Tree`] below another root.

use crate::host::Host;
use crate::identity::Identity;
use crate::schedule::Schedule;
use longma_cpu_set::CpuSet;
use longma_linux_network::ethtool::DriverProperty;
use longma_linux_network::features::Feature;
use longma_linux_network::napi::{NapiInstance, NapiValues};
use longma_linux_network::queue_coalescing::WORDS;
use longma_linux_network::rss_table::RssTable;
use longma_linux_network::sockets::{DatagramSocket, Socket};
use longma_topology::CpuLocation;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Mutex;

/// A host in memory.
#[derive(Default)]
pub struct FakeHost {
    files: Mutex<BTreeMap<String, String>>,
    drivers: Mutex<BTreeMap<(String, DriverProperty), u64>>,
    threads: Mutex<BTreeMap<u32, CpuSet>>,
    features: Mutex<Vec<Feature>>,
    /// `None` if the kernel does not list them.
    napi: Mutex<Option<Vec<NapiInstance>>>,
    queue_coalescing: Mutex<BTreeMap<u32, [u32; WORDS]>>,
    sockets: Mutex<Option<Vec<Socket>>>,
    writes: Mutex<Vec<(String, String)>>,
    /// Driver of all its interfaces without a device; `None` if it is not known.
    pub link_driver: Option<String>,
    /// RSS configuration of all its interfaces; `None` if drivers do not report one.
    pub rss_table: Option<RssTable>,
    /// UDP sockets.
    pub datagram_sockets: Vec<DatagramSocket>,
    /// Addresses of all its interfaces.
    pub addresses: Vec<IpAddr>,
    /// MTU range of all its interfaces; `None` if the kernel does not report one.
    pub packet_sizes: Option<RangeInclusive<u64>>,
    /// Topology of its CPUs.
    pub cpus: Vec<CpuLocation>,
    /// Paths that cannot be written: writes fail with EIO, as for managed interrupts.
    pub refused: BTreeSet<String>,
    /// Pairs of (file, text) that exclude each other: neither text can be written while the other file holds its text.
    pub excluded: Vec<((String, String), (String, String))>,
    /// Pairs of (file, text) with a dependency: the first text can be written only while the second file holds its
    /// text.
    pub wants: Vec<((String, String), (String, String))>,
    /// Properties of drivers that are rounded up to a multiple of a number when they are set.
    pub rounded: BTreeMap<DriverProperty, u64>,
    /// How its /sys differs from the network namespace of the process, if it does.
    pub foreign_sysfs: Option<String>,
    /// Files and directories that another process has locked.
    pub kept: BTreeSet<String>,
    /// Where journals are registered.
    pub journals: Option<std::path::PathBuf>,
    /// Identity of the host.
    pub identity: Identity,
    /// Whether its state disappears with the process that changes it.
    pub ends_with_writer: bool,
}

impl FakeHost {
    /// Creates a host with these files.
    pub fn with(files: &[(&str, &str)]) -> Self {
        let host = Self::default();
        files.iter().for_each(|(path, text)| host.put(path, text));
        host
    }

    /// Changes a file, like another program.
    ///
    /// # Panics
    /// If another thread panicked during a change.
    pub fn put(&self, path: &str, text: &str) {
        self.files.lock().unwrap().insert(path.into(), text.into());
    }

    /// Removes a file, like a device that disappears.
    ///
    /// # Panics
    /// As for [`FakeHost::put`].
    pub fn remove(&self, path: &str) {
        self.files.lock().unwrap().remove(path);
    }

    /// Renames an interface like the kernel: its files, including its index, move to the new name.
    ///
    /// # Panics
    /// As for [`FakeHost::put`].
    pub fn rename(&self, interface: &str, name: &str) {
        let mut files = self.files.lock().unwrap();
        let (was, now) = (format!("sys/class/net/{interface}/"), format!("sys/class/net/{name}/"));
        let moved = |path: String| path.strip_prefix(&was).map(|rest| format!("{now}{rest}")).unwrap_or(path);
        *files = std::mem::take(&mut *files).into_iter().map(|(path, text)| (moved(path), text)).collect();
    }

    /// Sets a driver property.
    ///
    /// # Panics
    /// As for [`FakeHost::put`].
    pub fn put_driver(&self, interface: &str, fact: DriverProperty, value: u64) {
        self.drivers.lock().unwrap().insert((interface.into(), fact), value);
    }

    /// Sets the affinity of a thread, like another program.
    ///
    /// # Panics
    /// As for [`FakeHost::put`].
    pub fn put_thread(&self, thread: u32, cpus: CpuSet) {
        self.threads.lock().unwrap().insert(thread, cpus);
    }

    /// Sets the features of all its interfaces.
    ///
    /// # Panics
    /// As for [`FakeHost::put`].
    pub fn put_features(&self, features: Vec<Feature>) {
        *self.features.lock().unwrap() = features;
    }

    /// Sets the NAPI instances of all its interfaces. Without any, the kernel does not list them.
    ///
    /// # Panics
    /// As for [`FakeHost::put`].
    pub fn put_napi(&self, instances: Vec<NapiInstance>) {
        *self.napi.lock().unwrap() = Some(instances);
    }

    /// Sets the coalescing of the queues of all its interfaces. Without any, the driver has one value for all queues.
    ///
    /// # Panics
    /// As for [`FakeHost::put`].
    pub fn put_queue_coalescing(&self, queues: BTreeMap<u32, [u32; WORDS]>) {
        *self.queue_coalescing.lock().unwrap() = queues;
    }

    /// Sets the connections. Before the first call, the simulated kernel has no sock_diag.
    ///
    /// # Panics
    /// As for [`FakeHost::put`].
    pub fn put_sockets(&self, sockets: Vec<Socket>) {
        *self.sockets.lock().unwrap() = Some(sockets);
    }

    /// All writes through [`Host::write`] in order as (file, text), including refused ones.
    ///
    /// # Panics
    /// As for [`FakeHost::put`].
    pub fn writes(&self) -> Vec<(String, String)> {
        self.writes.lock().unwrap().clone()
    }

    /// All files with their contents.
    ///
    /// # Panics
    /// As for [`FakeHost::put`].
    pub fn all(&self) -> BTreeMap<String, String> {
        self.files.lock().unwrap().clone()
    }
}

impl Host for FakeHost {
    fn may_write(&self, path: &str) -> io::Result<()> {
        if self.refused.contains(path) {
            Err(io::Error::from_raw_os_error(libc::EROFS))
        } else {
            self.read(path).map(drop)
        }
    }

    fn read(&self, path: &str) -> io::Result<String> {
        let files = self.files.lock().unwrap();
        files.get(path).map(|text| text.trim().into()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        self.writes.lock().unwrap().push((path.into(), text.into()));
        if self.refused.contains(path) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let mut files = self.files.lock().unwrap();
        let holds =
            |(file, value): &(String, String)| files.get(file).is_some_and(|found| found.trim() == value);
        let writes = |(file, value): &(String, String)| file == path && text.trim() == value;
        if self.excluded.iter().any(|(one, other)| writes(one) && holds(other) || writes(other) && holds(one))
        {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        if self.wants.iter().any(|(one, other)| writes(one) && !holds(other)) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        match files.get_mut(path) {
            Some(file) => *file = text.into(),
            None => return Err(io::ErrorKind::NotFound.into()),
        }
        Ok(())
    }

    fn names(&self, path: &str) -> Vec<String> {
        let files = self.files.lock().unwrap();
        let below = files.keys().filter_map(|file| file.strip_prefix(path)?.strip_prefix('/'));
        let names: BTreeSet<_> = below.filter_map(|rest| rest.split('/').next()).map(String::from).collect();
        names.into_iter().collect()
    }

    fn link(&self, path: &str) -> Option<String> {
        let files = self.files.lock().unwrap();
        files.get(path).and_then(|text| text.strip_prefix("-> ")).map(String::from)
    }

    fn driver(&self, interface: &str, fact: DriverProperty) -> io::Result<u64> {
        let drivers = self.drivers.lock().unwrap();
        drivers.get(&(interface.into(), fact)).copied().ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    fn set_driver(&self, interface: &str, fact: DriverProperty, value: u64) -> io::Result<()> {
        self.put_driver(
            interface,
            fact,
            value.next_multiple_of(self.rounded.get(&fact).copied().unwrap_or(1)),
        );
        Ok(())
    }

    fn features(&self, _interface: &str) -> io::Result<Vec<Feature>> {
        Ok(self.features.lock().unwrap().clone())
    }

    fn request_features(&self, _interface: &str, features: &[(&str, bool)]) -> io::Result<()> {
        for feature in self.features.lock().unwrap().iter_mut() {
            if let Some((_, is_on)) = features.iter().find(|(name, _)| *name == feature.name) {
                (feature.is_requested, feature.is_active) = (*is_on, *is_on);
            }
        }
        Ok(())
    }

    fn napi(&self, _interface: &str) -> io::Result<Vec<NapiInstance>> {
        self.napi.lock().unwrap().clone().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn set_napi(&self, _interface: &str, id: u32, values: &NapiValues) -> io::Result<()> {
        let mut instances = self.napi.lock().unwrap();
        let instance = instances.iter_mut().flatten().find(|instance| instance.id == id);
        let now = &mut instance.ok_or(io::ErrorKind::NotFound)?.values;
        *now = NapiValues {
            defer_hard_irqs: values.defer_hard_irqs.or(now.defer_hard_irqs),
            gro_flush_timeout: values.gro_flush_timeout.or(now.gro_flush_timeout),
            irq_suspend_timeout: values.irq_suspend_timeout.or(now.irq_suspend_timeout),
            threaded: values.threaded.or(now.threaded),
        };
        Ok(())
    }

    fn queue_coalescing(&self, _interface: &str, queues: &[u32]) -> io::Result<Vec<[u32; WORDS]>> {
        let all = self.queue_coalescing.lock().unwrap();
        let of = |queue: &u32| all.get(queue).copied().ok_or_else(|| io::ErrorKind::Unsupported.into());
        queues.iter().map(of).collect()
    }

    fn set_queue_coalescing(&self, _interface: &str, queues: &[(u32, [u32; WORDS])]) -> io::Result<()> {
        self.queue_coalescing.lock().unwrap().extend(queues.iter().copied());
        Ok(())
    }

    /// Sets the scheduling in the thread's stat file.
    fn set_schedule(&self, thread: u32, schedule: &Schedule) -> io::Result<()> {
        let path = format!("proc/{thread}/stat");
        let text = self.read(&path)?;
        let mut fields: Vec<String> = text.split(' ').map(String::from).collect();
        fields[18] = schedule.nice.to_string();
        fields[39] = schedule.priority.to_string();
        fields[40] = schedule.policy.to_string();
        self.put(&path, &fields.join(" "));
        Ok(())
    }

    fn link_driver(&self, _interface: &str) -> Option<String> {
        self.link_driver.clone()
    }

    fn rss_table(&self, _interface: &str) -> io::Result<RssTable> {
        self.rss_table.clone().ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    fn packet_sizes(&self, _interface: &str) -> io::Result<RangeInclusive<u64>> {
        self.packet_sizes.clone().ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    fn sockets(&self) -> io::Result<Vec<Socket>> {
        self.sockets.lock().unwrap().clone().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn datagram_sockets(&self) -> io::Result<Vec<DatagramSocket>> {
        Ok(self.datagram_sockets.clone())
    }

    fn addresses(&self, _interface: &str) -> Vec<IpAddr> {
        self.addresses.clone()
    }

    fn thread_cpus(&self, thread: u32) -> io::Result<CpuSet> {
        self.threads.lock().unwrap().get(&thread).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn bind_thread(&self, thread: u32, cpus: &CpuSet) -> io::Result<()> {
        if self.refused.contains(&format!("thread {thread}")) {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        let mut threads = self.threads.lock().unwrap();
        *threads.get_mut(&thread).ok_or(io::ErrorKind::NotFound)? = cpus.clone();
        Ok(())
    }

    fn places(&self) -> Vec<CpuLocation> {
        self.cpus.clone()
    }

    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn index_of(&self, interface: &str) -> io::Result<u32> {
        // Without ifindex files, the host behaves like a recorded tree with no kernel to ask.
        let text = self.read(&format!("sys/class/net/{interface}/ifindex"));
        text.ok().and_then(|text| text.parse().ok()).ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    fn name_of(&self, index: u32) -> io::Result<String> {
        let is_it = |name: &String| self.index_of(name).is_ok_and(|of| of == index);
        self.names("sys/class/net").into_iter().find(is_it).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn foreign_sysfs(&self) -> Option<String> {
        self.foreign_sysfs.clone()
    }

    fn hold(&self, path: &str) -> io::Result<Option<std::fs::File>> {
        if self.kept.contains(path) { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(None) }
    }

    fn journals(&self) -> Option<std::path::PathBuf> {
        self.journals.clone()
    }

    fn ends_with_writer(&self) -> bool {
        self.ends_with_writer
    }
}

/// A topology with the given number of sockets, last-level caches per socket, cores per cache and threads per core.
/// CPUs are numbered as on most Linux servers: the first threads of all cores come first.
pub fn topology(sockets: u32, caches: u32, cores: u32, threads: u32) -> Vec<CpuLocation> {
    let all = sockets * caches * cores;
    let of_core = |core: u32| (0..threads).map(move |thread| core + thread * all);
    let mut places: Vec<CpuLocation> = (0..all)
        .flat_map(|core| {
            let first = core / cores * cores;
            let mut shared: Vec<u32> = (first..first + cores).flat_map(of_core).collect();
            shared.sort_unstable();
            let socket = core / (cores * caches);
            of_core(core).map(move |cpu| CpuLocation {
                cpu,
                core: of_core(core).collect(),
                last_cache: Some(shared.clone()),
                socket,
                node: socket,
            })
        })
        .collect();
    places.sort_by_key(|place| place.cpu);
    places
}
