//! Builds the devices that a machine file describes.

use std::collections::BTreeMap;
use std::io;
use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize},
};

use longma_devices::{
    bus::Attachment,
    cache_lock::{self, CacheLock, CacheLockSpec},
    cam::{self, Cam, CamSpec},
    ethernet::mac::{self, Mac, MacSpec},
    idma::{self, Idma, IdmaError, IdmaSpec},
};
use longma_linux::DeviceFile;
use longma_memory::{MemorySystem, interconnect::Endpoint};
use longma_sim::Duration;
use longma_topology::{
    HostInstance, Machine,
    parts::{Bus as BusPart, Ethernet, Host, Placed},
};

use crate::kernel_model::{Kernel, duration};

use super::bus::DeviceLocation;
use super::line::Line;
use super::part::{Model, Part};
use super::wire::{PROPAGATION, Wire, WireEnd};
use super::{Devices, NEVER, Published, Store};

/// The default width of a port, in bytes per cycle.
const PORT_BYTES: u32 = 16;

/// Why devices cannot be modelled.
#[derive(Debug, thiserror::Error)]
pub enum DevicesError {
    /// A copy engine has an invalid description.
    #[error(transparent)]
    Idma(#[from] IdmaError),
    /// The host cannot provide a descriptor.
    #[error("cannot create a descriptor for a device file: {0}; raise `ulimit -n`")]
    Host(#[from] io::Error),
    /// A wire is attached to a device that is not a MAC.
    #[error("no Ethernet device `{name}`: {available}")]
    NoMac {
        /// The requested name.
        name: String,
        /// The available MACs.
        available: String,
    },
    /// A device is attached to something that is not modelled.
    #[error("device `{name}` is attached to `{on}`, which is not a port of a chip in the memory model")]
    NoPort {
        /// The device.
        name: String,
        /// The chip or port that it is attached to.
        on: String,
    },
}

/// Whether host number `host` of `machine` has devices with functional effects: copy engines, in-core stores, CAM
/// tables or MACs. Cache line locks only affect timing.
pub fn has_devices(machine: &Machine, host: usize) -> bool {
    let Some(instance) = machine.layout().hosts.get(host) else { return false };
    let in_a_core = instance.cores.iter().any(|core| {
        let core = &machine.cores[&core.core];
        core.store.is_some() || core.idma.is_some() || core.cam.is_some()
    });
    let is_mac = |placed: &Placed| {
        let device = machine.devices.get(&*placed.device).and_then(|device| device.ethernet.as_ref());
        device.is_some_and(|ethernet| ethernet.rate.is_some())
    };
    in_a_core || machine.hosts[instance.of].devices.iter().any(is_mac)
}

/// The devices built so far.
struct Builder<'a> {
    machine: &'a Machine,
    instance: &'a HostInstance,
    host: &'a Host,
    memory: &'a mut MemorySystem,
    files: Vec<DeviceFile>,
    parts: Vec<Part>,
    stores: Vec<Store>,
    wires: Vec<Wire>,
}

impl Devices {
    /// Builds the devices of host number `host` of `machine`, which must exist. `wires` are the remote ends of wires by
    /// the name of the MAC. Interrupts are posted to `kernel` as work.
    ///
    /// # Errors
    /// The machine file describes something that is not modelled, or the host has no descriptors left.
    pub fn new(
        machine: &Machine,
        host: usize,
        memory: &mut MemorySystem,
        wires: &BTreeMap<String, WireEnd>,
        kernel: Arc<Kernel>,
    ) -> Result<Self, DevicesError> {
        let instance = &machine.layout().hosts[host];
        let host = &machine.hosts[instance.of];
        let mut builder = Builder {
            machine,
            instance,
            host,
            memory,
            files: Vec::new(),
            parts: Vec::new(),
            stores: Vec::new(),
            wires: Vec::new(),
        };
        (0..instance.cores.len()).try_for_each(|core| builder.core(core))?;
        builder.locks()?;
        let mut unused: Vec<&String> = wires.keys().collect();
        for placed in &host.devices {
            unused.retain(|name| **name != placed.name);
            builder.placed(placed, wires.get(&placed.name))?;
        }
        if let Some(name) = unused.first() {
            return Err(builder.no_mac(name));
        }
        let Builder { files, parts, stores, wires, .. } = builder;
        let mut devices = Self {
            files: files.into(),
            next: vec![NEVER; parts.len() + wires.len()],
            before: Vec::new(),
            parts,
            stores,
            wires,
            guest: None,
            ranges: Vec::new(),
            seen_windows: 0,
            published: Arc::new(Published {
                next: AtomicU64::new(NEVER),
                ready: AtomicU64::new(NEVER),
                interrupted: AtomicUsize::new(0),
            }),
            kernel,
            accesses: 0,
            activity: None,
        };
        (0..devices.parts.len()).for_each(|part| devices.settle(part));
        devices.publish();
        Ok(devices)
    }
}

impl<'a> Builder<'a> {
    /// Adds a part with `bytes` bytes of registers. Each interrupt line gets a file; the first one has the part's name.
    fn add(&mut self, bytes: u32, mut part: Part) -> io::Result<()> {
        let number = self.parts.len() as u16;
        for line in 0..part.lines.len() {
            let name = if line == 0 { part.name.clone() } else { format!("{}.{line}", part.name) };
            part.files.push(self.files.len());
            self.files.push(DeviceFile::registers(&name, number, bytes.into())?);
        }
        self.parts.push(part);
        Ok(())
    }

    /// The one-way latency from each core to `endpoint`.
    fn latencies_to(&mut self, endpoint: Endpoint) -> Vec<Duration> {
        let cores = self.instance.cores.len();
        let delay = |core| match endpoint == Endpoint::Core(core) {
            true => Duration::ZERO,
            false => Duration::from_ps(self.memory.idle_ps(Endpoint::Core(core), endpoint, 0)),
        };
        (0..cores).map(delay).collect()
    }

    /// For each NUMA node on another chip than `chip`, its shared cache.
    fn caches_on_other_chips(&self, chip: usize) -> Arc<[Option<Endpoint>]> {
        let far = |node: &longma_topology::NodeInstance| {
            let core = *node.cores.first().filter(|_| node.chip != chip)?;
            let shared = |cache: &&usize| self.instance.caches[**cache].cores.len() > 1;
            self.instance.cores[core].caches.iter().rev().find(shared).map(|cache| Endpoint::Cache(*cache))
        };
        self.instance.nodes.iter().map(far).collect()
    }

    fn core(&mut self, number: usize) -> Result<(), DevicesError> {
        let instance = &self.instance.cores[number];
        let core = &self.machine.cores[&instance.core];
        let location = DeviceLocation {
            place: Endpoint::Core(number),
            node: instance.node,
            ways: Some(u32::MAX),
            core: number,
            far: self.caches_on_other_chips(instance.chip),
        };
        if let Some(store) = &core.store {
            let window = self.stores.len() as u16;
            let bytes = store.size().bytes();
            self.files.push(DeviceFile::memory(&format!("store{number}"), window, bytes)?);
            let latency = Duration::from_ps(store.latency.ps(core.clock));
            self.stores.push(Store { core: number, latency, bytes });
        }
        let delays = self.latencies_to(location.place);
        if let Some(part) = &core.idma {
            let model = Model::other(Idma::new(IdmaSpec::from_part(part, core.clock)?)?);
            let line = Line::new(duration(part.interrupt, core.clock));
            let (name, location, delays) = (format!("idma{number}"), location.clone(), delays.clone());
            let lines = vec![line];
            let part =
                Part { name, model, location, attachment: None, lines, files: Vec::new(), way: delays };
            self.add(idma::MAP.bytes, part)?;
        }
        if let Some(part) = &core.cam {
            let model = Model::other(Cam::new(CamSpec::from_part(part, core.clock)));
            let name = format!("cam{number}");
            let line = Line::default();
            let lines = vec![line];
            let part =
                Part { name, model, location, attachment: None, lines, files: Vec::new(), way: delays };
            self.add(cam::MAP.bytes, part)?;
        }
        Ok(())
    }

    /// Adds the line locks of shared caches.
    fn locks(&mut self) -> Result<(), DevicesError> {
        let mut number = 0;
        for (cache_number, instance) in self.instance.caches.iter().enumerate() {
            let Some(lock) = &self.machine.caches[&instance.cache].lock else { continue };
            let Some(&core) = instance.cores.first() else { continue };
            let endpoint = Endpoint::Cache(cache_number);
            let spec = CacheLockSpec {
                windows: lock.windows,
                min_unlocked_ways: lock.min_unlocked_ways,
                // The interconnect latency is added separately.
                register_read: Duration::ZERO,
                register_write: Duration::ZERO,
            };
            let node = self.instance.cores[core].node;
            let location = DeviceLocation { place: endpoint, node, ways: None, core, far: Arc::default() };
            let (name, way) = (format!("lock{number}"), self.latencies_to(endpoint));
            let (model, line) = (Model::other(CacheLock::new(spec)), Line::default());
            let lines = vec![line];
            let part = Part { name, model, location, attachment: None, lines, files: Vec::new(), way };
            self.add(cache_lock::MAP.bytes, part)?;
            number += 1;
        }
        Ok(())
    }

    fn no_mac(&self, name: &str) -> DevicesError {
        let is_mac = |placed: &&Placed| {
            self.machine.devices.get(&*placed.device).is_some_and(|device| device.ethernet.is_some())
        };
        let names: Vec<&str> = self.host.devices.iter().filter(is_mac).map(|d| d.name.as_str()).collect();
        let available = match names[..] {
            [] => "the machine has none".into(),
            _ => format!("the machine has {}", names.join(", ")),
        };
        DevicesError::NoMac { name: name.into(), available }
    }

    fn placed(&mut self, placed: &'a Placed, wire: Option<&WireEnd>) -> Result<(), DevicesError> {
        let device = self.machine.devices.get(&*placed.device);
        match (device.and_then(|device| device.ethernet.as_ref()), wire) {
            (Some(ethernet), wire) => self.mac(placed, ethernet, wire),
            (None, Some(_)) => Err(self.no_mac(&placed.name)),
            (None, None) => Ok(()),
        }
    }

    /// The buses between a device and the chip, nearest to the device first, and the port of the chip that the last one
    /// is attached to.
    fn attached(&self, placed: &'a Placed) -> Result<(Vec<&'a BusPart>, Endpoint), DevicesError> {
        let host: &'a Host = self.host;
        let mut on: &str = &placed.on;
        let mut buses: Vec<&'a BusPart> = Vec::new();
        while let Some(bus) = host.buses.iter().find(|bus| bus.name == on) {
            buses.push(bus);
            on = &bus.on;
        }
        let no_port = || DevicesError::NoPort { name: placed.name.clone(), on: on.into() };
        let port = self.memory.interconnect().port(on).or_else(|| self.chips_own_port(on));
        Ok((buses, port.ok_or_else(no_port)?))
    }

    /// The location of a device that is attached to a chip without a port: next to the chip's first shared cache.
    fn chips_own_port(&self, on: &str) -> Option<Endpoint> {
        let chip: usize = on.strip_prefix("chip")?.parse().ok()?;
        let core = self.instance.cores.iter().position(|core| core.chip == chip)?;
        self.instance.cores[core].caches.last().map(|cache| Endpoint::Cache(*cache))
    }

    fn mac(
        &mut self,
        placed: &'a Placed,
        ethernet: &'a Ethernet,
        wire: Option<&WireEnd>,
    ) -> Result<(), DevicesError> {
        // A port without a rate is down or virtual.
        if ethernet.rate.is_none() && wire.is_none() {
            return Ok(());
        }
        let (buses, endpoint) = match self.attached(placed) {
            Ok(attached) => attached,
            Err(_) if wire.is_none() => return Ok(()),
            Err(error) => return Err(error),
        };
        let chip = match endpoint {
            Endpoint::Port { chip, .. } => chip,
            _ => 0,
        };
        let core = self.instance.cores.iter().position(|core| core.chip == chip).unwrap_or(0);
        let instance = &self.instance.cores[core];
        let clock = self.machine.cores[&instance.core].clock;
        let chip_clock =
            self.machine.chips.get(&self.instance.chips[chip]).and_then(|chip| chip.uncore_clock);
        let attachment = if buses.is_empty() {
            Attachment::direct()
        } else {
            Attachment::behind(&buses, chip_clock.unwrap_or(clock))
        };
        let spec = MacSpec::from_part(ethernet, PORT_BYTES, chip_clock.unwrap_or(clock), &attachment);
        let dca = instance
            .caches
            .iter()
            .find_map(|cache| self.machine.caches[&self.instance.caches[*cache].cache].dca.as_ref());
        let dca = dca.filter(|dca| ethernet.dca && dca.enabled && !dca.locked_lines_only);
        let ways = dca.map(|dca| dca.ways);
        let location =
            DeviceLocation { place: endpoint, node: instance.node, ways, core, far: Arc::default() };
        let latency = duration(self.host.os.as_ref().and_then(|os| os.interrupt), clock);
        let propagation = self.propagation(&placed.name);
        let model = Model::Mac(Box::new(Mac::new(spec, propagation)));
        let (name, way) = (placed.name.clone(), self.latencies_to(endpoint));
        let number = self.parts.len();
        let attachment = (!buses.is_empty()).then(|| (attachment, Default::default()));
        let lines = (0..spec.queues).map(|_| Line::new(latency)).collect();
        self.add(mac::MAP.bytes, Part { name, model, location, attachment, lines, files: Vec::new(), way })?;
        if let Some(end) = wire {
            self.wires.push(Wire::new(number, end, &spec, ethernet.mtu_bytes(), propagation));
        }
        Ok(())
    }

    /// The one-way latency of a device's cable.
    fn propagation(&self, device: &str) -> Duration {
        let name = format!("{}.{device}", self.instance.name);
        let is_its = |cable: &&longma_topology::parts::Cable| cable.between.iter().any(|end| **end == *name);
        let stated = self.machine.cables.iter().find(is_its).and_then(|cable| cable.latency);
        stated.map_or(PROPAGATION, |latency| Duration::from_ps(latency.ps()))
    }
}
