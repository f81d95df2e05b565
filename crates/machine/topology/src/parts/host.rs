//! Hosts: sockets, links between them, buses, devices; switches and cables between hosts; and those costs of the
//! operating system that the hardware model cannot derive.
//!
//! Source: distances after ACPI SLIT (ACPI 6.5, 5.2.17); the rest after the data sheets cited in `machines/`.

use crate::parts::Protocol;
use crate::read::{Cited, Map, Matrix, Name, choice, part};
use crate::units::{Bandwidth, BitRate, Cycles, Latency, Size, Time, TransferRate, Width};

/// Cost of a system call if the host's file gives none. An estimate: UnixBench's system call test makes five calls per
/// loop, and 1.28 to 1.93 million loops per second were published for a 3A6000 at 2.5 GHz under Linux 6.6
/// (deepin-community/kernel, pull requests 682 and 2014). That is 260 to 390 cycles per call. The value is near the
/// upper end, because the modelled cores are older.
pub const SYSTEM_CALL: Latency = Latency::Cycles(Cycles::new(400));

part! {
    /// A host, or several identical ones.
    pub struct Host = "host" {
        /// Its name; with `count` above 1, NAME0, NAME1 and so on.
        name: String,
        /// Number of identical hosts.
        count: u32 = 1,
        /// Chips by name, one per socket (`chip0`, `chip1` ...).
        chips: Vec<Name>,
        /// Links between chips or NUMA nodes.
        links: Vec<Link>,
        /// Distances between NUMA nodes.
        distances: Option<Distances>,
        /// I/O buses and bridges.
        buses: Vec<Bus>,
        /// Installed devices.
        devices: Vec<Placed>,
        /// Costs of the operating system.
        os: Option<Os>,
        /// Measured core-to-core transfer of a cache line.
        core_to_core: Option<CoreToCore>,
        /// Measured memory bandwidths, by number of threads.
        bandwidths: Vec<MeasuredBandwidth>,
        /// Where the numbers come from.
        source: Cited,
    }
}

part! {
    /// A link between two chips or NUMA nodes of a host.
    pub struct Link = "link" {
        /// Its name.
        name: String,
        /// Its two ends: `chipN` or `nodeN`.
        between: Vec<Name>,
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
    }
}

part! {
    /// Distances between the NUMA nodes of a host, in the order of the nodes.
    pub struct Distances = "distances" {
        /// Load-to-use latency on an idle machine: row = core's node, column = memory's node.
        latency: Option<Matrix<Time>>,
        /// Relative distances; 10 = local (ACPI SLIT).
        slit: Option<Matrix<u32>>,
        /// Read bandwidth of a node's cores, with the same rows and columns.
        bandwidth: Option<Matrix<BitRate>>,
        /// False if `latency` may differ between the two directions.
        symmetric: bool = true,
        /// Where the numbers come from.
        source: Cited,
        /// Sources of single keys, if they differ.
        source_of: Map<Cited>,
    }
}

part! {
    /// An I/O bus or bridge.
    pub struct Bus = "bus" {
        /// Its name.
        name: String,
        /// Its attachment: a chip (`chip0`), a chip's port (`chip0.ht0`), or another bus.
        on: Name,
        /// Its protocol.
        protocol: Protocol,
        /// Data wires (in each direction if separate).
        width: Option<Width>,
        /// Transfers per second on a wire.
        rate: Option<TransferRate>,
        /// Peak bandwidth (in each direction if separate); by default width x rate.
        bandwidth: Option<Bandwidth>,
        /// Sustained bandwidth of device writes to memory.
        sustained_write: Option<Bandwidth>,
        /// Sustained bandwidth of device reads from memory.
        sustained_read: Option<Bandwidth>,
        /// One-way latency of bus and bridge without contention.
        latency: Option<Latency>,
        /// Time of a device register read by a core.
        register_read: Option<Latency>,
        /// Time of a posted device register write by a core.
        register_write: Option<Latency>,
        /// Where the numbers come from.
        source: Cited,
        /// Sources of single keys, if they differ.
        source_of: Map<Cited>,
    }
}

part! {
    /// An installed device.
    pub struct Placed = "placed device" {
        /// Its name, such as "eth0".
        name: String,
        /// Its type, by name.
        device: Name,
        /// Its attachment: a bus, a chip (`chip0`) or a chip's port (`chip0.mac0`).
        on: Name,
    }
}

part! {
    /// The operating system and its CPU times, by default 0.
    pub struct Os = "os" {
        /// Name and version.
        kernel: Option<String>,
        /// Page size.
        page_size: Option<Size>,
        /// From a device's signal to the handler's first instruction.
        interrupt: Option<Latency>,
        /// From the handler to its deferred work, and back to the interrupted thread.
        softirq: Option<Latency>,
        /// A switch between threads, or from idle to a thread.
        context_switch: Option<Latency>,
        /// Making a thread runnable, on the waking core.
        wake_up: Option<Latency>,
        /// Notifying another core of a thread to run, on that core, with its interrupt.
        wake_up_interrupt: Option<Latency>,
        /// First access to a page, besides zeroing it line by line; without it, both are free.
        page_fault: Option<Latency>,
        /// A timer interrupt on a busy core; without it, the timer is off.
        tick: Option<Latency>,
        /// Time between timer interrupts; needs `tick`.
        tick_interval: Option<Time>,
        /// The shortest system call, from its instruction to the next; by default 400 cycles.
        system_call: Option<Latency>,
        /// Where the numbers come from.
        source: Cited,
        /// Sources of single keys, if they differ.
        source_of: Map<Cited>,
    }
}

part! {
    /// Measured time to transfer a written cache line from one core to another.
    pub struct CoreToCore = "core to core" {
        /// The hardware threads of rows and columns, by the operating system's numbers.
        cpus: Vec<u32>,
        /// One-way time; the diagonal is 0.
        latency: Matrix<Time>,
        /// Where the numbers come from.
        source: Cited,
    }
}

part! {
    /// Measured memory bandwidth of a host, counting bytes as STREAM does.
    pub struct MeasuredBandwidth = "measured bandwidth" {
        /// Number of threads, each on a separate core if there are enough.
        threads: u32,
        /// Reading.
        read: BitRate,
        /// Copying: bytes read plus bytes written.
        copy: BitRate,
        /// STREAM triad: two arrays read, one written.
        triad: BitRate,
        /// Where the numbers come from.
        source: Cited,
    }
}

choice! {
    /// The network that a switch belongs to.
    pub enum Network = "a network" {
        /// Ethernet.
        Ethernet = "ethernet",
        /// Myrinet.
        Myrinet = "myrinet",
    }
}

part! {
    /// A network switch.
    pub struct Switch = "switch" {
        /// Its name.
        name: String,
        /// Its full name.
        title: Option<String>,
        /// The network that it switches.
        network: Network,
        /// Number of ports.
        ports: u32,
        /// Rate of a port in each direction.
        rate: BitRate,
        /// Time from the first bit in to the first bit out.
        latency: Option<Time>,
        /// Whether it forwards a packet before its end arrives.
        cut_through: bool = false,
        /// Where the numbers come from.
        source: Cited,
        /// Sources of single keys, if they differ.
        source_of: Map<Cited>,
    }
}

part! {
    /// A cable between a device and a switch, or between two devices.
    pub struct Cable = "cable" {
        /// Its two ends: `HOST.DEVICE` or a switch.
        between: Vec<Name>,
        /// One-way latency.
        latency: Option<Time>,
        /// Where the numbers come from.
        source: Cited,
    }
}
