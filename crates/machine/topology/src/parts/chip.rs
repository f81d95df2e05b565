//! Chips (packages): NUMA nodes of clusters of cores, with crossbars and ports.
//! Not an instance: a host lists which chips it has.
//! Source: terms after the Loongson 3A5000 manual (crossbars, windows) and the Linux NUMA documentation (nodes).

use crate::read::{Cited, Map, Name, choice, part};
use crate::units::{Bandwidth, Frequency, Latency, Size, TransferRate, Width};

part! {
    /// A type of chip.
    pub struct Chip = "chip" {
        /// Its full name.
        title: Option<String>,
        /// Clock of what is not a core.
        uncore_clock: Option<Frequency>,
        /// Caches all nodes share, by name.
        caches: Vec<Name>,
        /// NUMA nodes.
        nodes: Vec<ChipNode>,
        /// Crossbars and rings.
        crossbars: Vec<Crossbar>,
        /// Ways out of the chip, and devices' places on it.
        ports: Vec<Port>,
        /// Address windows (CAM) of a crossbar's master port.
        address_windows: Option<AddressWindows>,
        /// Where the numbers come from.
        source: Cited,
        /// Where single keys come from, if elsewhere.
        source_of: Map<Cited>,
    }
}

part! {
    /// A NUMA node of a chip: cores and the memory nearest to them.
    pub struct ChipNode = "chip node" {
        /// Like nodes.
        count: u32 = 1,
        /// Caches all its cores share, by name.
        caches: Vec<Name>,
        /// Its cores.
        clusters: Vec<Cluster>,
        /// Its memory controllers.
        memory: Vec<MemoryUse>,
    }
}

part! {
    /// A group of like cores that share something (AMD: CCX; Arm: cluster).
    pub struct Cluster = "cluster" {
        /// Like clusters.
        count: u32 = 1,
        /// Type of the cores, by name.
        core: Name,
        /// Cores of a cluster.
        cores: u32,
        /// Caches its cores share, by name.
        caches: Vec<Name>,
        /// The system's numbers of its hardware threads, such as "0-3,8" (discovered hosts only).
        cpus: Option<String>,
    }
}

part! {
    /// Memory controllers of a NUMA node.
    pub struct MemoryUse = "node memory" {
        /// Type, by name.
        memory: Name,
        /// Like controllers.
        count: u32 = 1,
        /// Memory behind all of them together.
        capacity: Option<Size>,
    }
}

choice! {
    /// How parts of a chip are joined.
    pub enum CrossbarKind = "a kind of crossbar" {
        /// Every master to every slave at once.
        Crossbar = "crossbar",
        /// Stops on a ring.
        Ring = "ring",
        /// One transfer at a time.
        Bus = "bus",
        /// Switched packets.
        Fabric = "fabric",
    }
}

part! {
    /// A crossbar, ring or fabric in a chip.
    pub struct Crossbar = "crossbar" {
        /// Its name.
        name: String,
        /// How parts are joined.
        kind: CrossbarKind = CrossbarKind::Crossbar,
        /// What requests: "cores", caches, ports, other crossbars.
        masters: Vec<Name>,
        /// What answers: caches, "memory", ports, other crossbars.
        slaves: Vec<Name>,
        /// Master ports; counted out if left out.
        master_ports: Option<u32>,
        /// Slave ports; counted out if left out.
        slave_ports: Option<u32>,
        /// Its clock; the core clock if left out.
        clock: Option<Frequency>,
        /// Width of a port's channel.
        width: Option<Width>,
        /// Whether read and write channels are separate.
        separate_read_write: bool = true,
        /// One way through, without contention.
        latency: Option<Latency>,
        /// Where the numbers come from.
        source: Cited,
        /// Where single keys come from, if elsewhere.
        source_of: Map<Cited>,
    }
}

choice! {
    /// What a port, link or bus speaks.
    pub enum Protocol = "a protocol" {
        /// HyperTransport.
        HyperTransport = "hypertransport",
        /// Intel QuickPath.
        Qpi = "qpi",
        /// Intel Ultra Path.
        Upi = "upi",
        /// AMD Infinity Fabric on a package or between sockets.
        InfinityFabric = "infinity-fabric",
        /// PCI Express.
        Pcie = "pcie",
        /// PCI.
        Pci = "pci",
        /// AMBA AXI.
        Axi = "axi",
        /// A front-side bus.
        FrontSideBus = "front-side-bus",
        /// Any other.
        Other = "other",
    }
}

part! {
    /// A way out of a chip, or a place for a device on it.
    pub struct Port = "port" {
        /// Its name.
        name: String,
        /// Like ports.
        count: u32 = 1,
        /// What it speaks.
        protocol: Protocol,
        /// Data wires each way.
        width: Option<Width>,
        /// Transfers a second on a wire.
        rate: Option<TransferRate>,
        /// Each way; width x rate if left out.
        bandwidth: Option<Bandwidth>,
        /// One way, without contention.
        latency: Option<Latency>,
        /// Where the numbers come from.
        source: Cited,
        /// Where single keys come from, if elsewhere.
        source_of: Map<Cited>,
    }
}

part! {
    /// Address windows: which slave an address goes to.
    pub struct AddressWindows = "address windows" {
        /// Bits of a physical address.
        address: Width,
        /// Lowest bit of the physical address that says the chip.
        chip_bit: Option<u32>,
        /// Lowest address bit that selects the cache bank.
        bank_bit: Option<u32>,
        /// Where the numbers come from.
        source: Cited,
    }
}
