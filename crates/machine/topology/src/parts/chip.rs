//! Chips (packages): NUMA nodes with clusters of cores, crossbars and ports. These are types; a host lists the chips it
//! has.
//!
//! Source: terms after the Loongson 3A5000 manual (crossbars, windows) and the Linux NUMA documentation (nodes).

use crate::read::{Cited, Map, Name, choice, part};
use crate::units::{Bandwidth, Frequency, Latency, Size, TransferRate, Width};

part! {
    /// A type of chip.
    pub struct Chip = "chip" {
        /// Its full name.
        title: Option<String>,
        /// Clock of the parts outside the cores.
        uncore_clock: Option<Frequency>,
        /// Caches shared by all nodes, by name.
        caches: Vec<Name>,
        /// NUMA nodes.
        nodes: Vec<ChipNode>,
        /// Crossbars and rings.
        crossbars: Vec<Crossbar>,
        /// Off-chip ports, and ports for devices on the chip.
        ports: Vec<Port>,
        /// Address windows (CAM) of a crossbar's master port.
        address_windows: Option<AddressWindows>,
        /// Where the numbers come from.
        source: Cited,
        /// Sources of single keys, if they differ.
        source_of: Map<Cited>,
    }
}

part! {
    /// A NUMA node of a chip: cores and the memory nearest to them.
    pub struct ChipNode = "chip node" {
        /// Number of identical nodes.
        count: u32 = 1,
        /// Caches shared by all its cores, by name.
        caches: Vec<Name>,
        /// Its cores.
        clusters: Vec<Cluster>,
        /// Its memory controllers.
        memory: Vec<MemoryUse>,
    }
}

part! {
    /// A group of identical cores that share caches (AMD: CCX; Arm: cluster).
    pub struct Cluster = "cluster" {
        /// Number of identical clusters.
        count: u32 = 1,
        /// Type of the cores, by name.
        core: Name,
        /// Cores of one cluster.
        cores: u32,
        /// Caches shared by its cores, by name.
        caches: Vec<Name>,
        /// The operating system's numbers of its hardware threads, such as "0-3,8"; in discovered hosts.
        cpus: Option<String>,
    }
}

part! {
    /// Memory controllers of a NUMA node.
    pub struct MemoryUse = "node memory" {
        /// Type, by name.
        memory: Name,
        /// Number of identical controllers.
        count: u32 = 1,
        /// Their total memory capacity.
        capacity: Option<Size>,
    }
}

choice! {
    /// How the parts of a chip are connected.
    pub enum CrossbarKind = "a kind of crossbar" {
        /// Every master has a path to every slave at the same time.
        Crossbar = "crossbar",
        /// A ring of stops.
        Ring = "ring",
        /// One transfer at a time.
        Bus = "bus",
        /// A packet-switched network.
        Fabric = "fabric",
    }
}

part! {
    /// A crossbar, ring or fabric in a chip.
    pub struct Crossbar = "crossbar" {
        /// Its name.
        name: String,
        /// How the parts are connected.
        kind: CrossbarKind = CrossbarKind::Crossbar,
        /// Senders of requests: "cores", caches, ports, other crossbars.
        masters: Vec<Name>,
        /// Responders: caches, "memory", ports, other crossbars.
        slaves: Vec<Name>,
        /// Number of master ports; by default the number of masters.
        master_ports: Option<u32>,
        /// Number of slave ports; by default the number of slaves.
        slave_ports: Option<u32>,
        /// Its clock; by default the core clock.
        clock: Option<Frequency>,
        /// Width of a port's channel.
        width: Option<Width>,
        /// Whether read and write channels are separate.
        separate_read_write: bool = true,
        /// One-way latency without contention.
        latency: Option<Latency>,
        /// Where the numbers come from.
        source: Cited,
        /// Sources of single keys, if they differ.
        source_of: Map<Cited>,
    }
}

choice! {
    /// The protocol of a port, link or bus.
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
        /// Any other protocol.
        Other = "other",
    }
}

part! {
    /// An off-chip port, or a port for a device on the chip.
    pub struct Port = "port" {
        /// Its name.
        name: String,
        /// Number of identical ports.
        count: u32 = 1,
        /// Its protocol.
        protocol: Protocol,
        /// Data wires in each direction.
        width: Option<Width>,
        /// Transfers per second on a wire.
        rate: Option<TransferRate>,
        /// Bandwidth in each direction; by default width x rate.
        bandwidth: Option<Bandwidth>,
        /// One-way latency without contention.
        latency: Option<Latency>,
        /// Where the numbers come from.
        source: Cited,
        /// Sources of single keys, if they differ.
        source_of: Map<Cited>,
    }
}

part! {
    /// Address windows: the slave that an address is routed to.
    pub struct AddressWindows = "address windows" {
        /// Width of a physical address.
        address: Width,
        /// Lowest bit of the physical address that selects the chip.
        chip_bit: Option<u32>,
        /// Lowest bit of the address that selects the cache bank.
        bank_bit: Option<u32>,
        /// Where the numbers come from.
        source: Cited,
    }
}
