//! Hosts: sockets, links between them, buses, devices; and the switches and cables between hosts.
//! Not software: only the few costs of the operating system that a hardware model cannot know.
//! Source: distances after ACPI SLIT (ACPI 6.5, 5.2.17); the rest after the data sheets cited in `machines/`.

use crate::parts::Protocol;
use crate::read::{Cited, Map, Matrix, Name, choice, part};
use crate::units::{Bandwidth, BitRate, Cycles, Latency, Size, Time, TransferRate, Width};

/// A system call of a host whose file does not say. An estimate: UnixBench's system call overhead makes five calls a loop, and
/// 1.28 to 1.93 million loops a second were published for a 3A6000 at 2.5 GHz under Linux 6.6 (deepin-community/kernel, pull
/// requests 682 and 2014), which is 260 to 390 cycles a call; the upper end, because the cores modelled are older.
pub const SYSTEM_CALL: Latency = Latency::Cycles(Cycles::new(400));

part! {
    /// A host, or several like ones.
    pub struct Host = "host" {
        /// Its name; with `count` above 1 the hosts are NAME0, NAME1 and so on.
        name: String,
        /// Like hosts.
        count: u32 = 1,
        /// Chips by name, one a socket, in the order of the sockets (`chip0`, `chip1` ...).
        chips: Vec<Name>,
        /// Links between chips or NUMA nodes.
        links: Vec<Link>,
        /// Distances between NUMA nodes.
        distances: Option<Distances>,
        /// I/O buses and bridges.
        buses: Vec<Bus>,
        /// Devices in place.
        devices: Vec<Placed>,
        /// Costs of the operating system.
        os: Option<Os>,
        /// Core-to-core hand-over of a cache line.
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
    }
}

part! {
    /// Distances between the NUMA nodes of a host, in the order of the nodes.
    pub struct Distances = "distances" {
        /// Load to use from memory on an idle machine: row = core's node, column = memory's node.
        latency: Option<Matrix<Time>>,
        /// Relative distances; 10 = local (ACPI SLIT).
        slit: Option<Matrix<u32>>,
        /// Read bandwidth of all cores of a node: row = cores' node, column = memory's node.
        bandwidth: Option<Matrix<BitRate>>,
        /// False if `latency` need not be the same both ways.
        symmetric: bool = true,
        /// Where the numbers come from.
        source: Cited,
        /// Where single keys come from, if elsewhere.
        source_of: Map<Cited>,
    }
}

part! {
    /// An I/O bus or bridge.
    pub struct Bus = "bus" {
        /// Its name.
        name: String,
        /// What it hangs on: a chip (`chip0`), a chip's port (`chip0.ht0`), or another bus.
        on: Name,
        /// What it speaks.
        protocol: Protocol,
        /// Data wires (each way where they are separate).
        width: Option<Width>,
        /// Transfers a second on a wire.
        rate: Option<TransferRate>,
        /// Peak (each way where they are separate); width x rate if left out.
        bandwidth: Option<Bandwidth>,
        /// What device writes to memory sustain.
        sustained_write: Option<Bandwidth>,
        /// What device reads from memory sustain.
        sustained_read: Option<Bandwidth>,
        /// One way through bus and bridge, without contention.
        latency: Option<Latency>,
        /// A core's read of a device register across it.
        register_read: Option<Latency>,
        /// A core's posted write to a device register across it.
        register_write: Option<Latency>,
        /// Where the numbers come from.
        source: Cited,
        /// Where single keys come from, if elsewhere.
        source_of: Map<Cited>,
    }
}

part! {
    /// A device in its place.
    pub struct Placed = "placed device" {
        /// Its name, such as "eth0".
        name: String,
        /// Its type, by name.
        device: Name,
        /// What it hangs on: a bus, a chip (`chip0`) or a chip's port (`chip0.mac0`).
        on: Name,
    }
}

part! {
    /// Costs of the operating system.
    pub struct Os = "os" {
        /// Name and version.
        kernel: Option<String>,
        /// Page size.
        page_size: Option<Size>,
        /// From a device's signal to the handler's first instruction: work of the core that takes the interrupt; none if left out.
        interrupt: Option<Latency>,
        /// From the handler to the deferred work that it asks for, and back from that to what ran before; none if left out.
        softirq: Option<Latency>,
        /// Switch from one thread to another, or from an idle core to a thread: work of the core; none if left out.
        context_switch: Option<Latency>,
        /// Making a thread runnable: work of the core that wakes it; none if left out.
        wake_up: Option<Latency>,
        /// Telling another core that it has a thread to run: work of that core, its interrupt included; none if left out.
        wake_up_interrupt: Option<Latency>,
        /// A page's first access without zeroing the page, which the model does line by line; free, zeroing included, if left out.
        page_fault: Option<Latency>,
        /// The timer's interrupt on a core that is not idle; none if left out.
        tick: Option<Latency>,
        /// From one of these interrupts to the next; needs `tick`.
        tick_interval: Option<Time>,
        /// From a system call's instruction to the next one when the kernel has nothing to do but find that out; 400 cycles if left out.
        system_call: Option<Latency>,
        /// Where the numbers come from.
        source: Cited,
        /// Where single keys come from, if elsewhere.
        source_of: Map<Cited>,
    }
}

part! {
    /// Measured time for a written cache line to pass from one core to another.
    pub struct CoreToCore = "core to core" {
        /// The system's number of each row's and column's hardware thread.
        cpus: Vec<u32>,
        /// One way; the diagonal is 0.
        latency: Matrix<Time>,
        /// Where the numbers come from.
        source: Cited,
    }
}

part! {
    /// Memory bandwidth of a host as measured, counting bytes as STREAM does.
    pub struct MeasuredBandwidth = "measured bandwidth" {
        /// Threads, each on a core of its own as far as there are.
        threads: u32,
        /// Reading.
        read: BitRate,
        /// Copying: bytes read and bytes written.
        copy: BitRate,
        /// STREAM triad: two arrays read, one written.
        triad: BitRate,
        /// Where the numbers come from.
        source: Cited,
    }
}

choice! {
    /// What a switch switches.
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
        /// What it switches.
        network: Network,
        /// Ports.
        ports: u32,
        /// Rate of a port, each way.
        rate: BitRate,
        /// From the first bit in to the first bit out.
        latency: Option<Time>,
        /// Whether it forwards before the packet's end has come.
        cut_through: bool = false,
        /// Where the numbers come from.
        source: Cited,
        /// Where single keys come from, if elsewhere.
        source_of: Map<Cited>,
    }
}

part! {
    /// A cable between a device and a switch, or between two devices.
    pub struct Cable = "cable" {
        /// Its two ends: `HOST.DEVICE` or a switch.
        between: Vec<Name>,
        /// One way.
        latency: Option<Time>,
        /// Where the numbers come from.
        source: Cited,
    }
}
