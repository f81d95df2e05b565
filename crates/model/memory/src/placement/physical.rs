//! Maps physical addresses to nodes, controllers and controller-local addresses.
//!
//! Source: Loongson 3A5000 manual (48 bits, the chip in bits 47 to 44). On other machines each node has its own address
//! range.

use super::Divider;
use crate::build_error::{BuildError, host_of};
use longma_topology::{HostInstance, Machine};

/// Granularity of the interleaving over the controllers of a node, bytes. An estimate: equal to the channel interleave,
/// so that a stream uses all controllers of its node. Firmware of Loongson and AMD boards interleaves at 256 bytes to 4
/// KiB.
const CONTROLLER_INTERLEAVE_BYTES: u64 = 256;

/// Address bits of a node if the machine file does not state the chip bits: 2^40 bytes are more than any node's memory.
const NODE_BITS: u32 = 40;

/// Maximum number of address bits of a node.
const MAX_NODE_BITS: u32 = 47;

/// The mapping of physical addresses to nodes and controllers.
#[derive(Clone, Debug)]
pub struct PhysicalMap {
    /// Lowest address bit that selects the node.
    node_shift: u32,
    /// The node for each value of the upper bits.
    nodes: Vec<usize>,
    /// The value of the upper bits for each node.
    slots: Vec<u64>,
    interleave: Divider,
    controllers: Vec<NodeControllers>,
}

/// The controllers of a node.
#[derive(Clone, Copy, Debug)]
struct NodeControllers {
    first: usize,
    count: Divider,
}

impl PhysicalMap {
    /// Creates the address map of host number `host` of `machine`.
    ///
    /// # Errors
    /// If there is no such host, or if none of its nodes has memory.
    pub fn new(machine: &Machine, host: usize) -> Result<Self, BuildError> {
        let host = host_of(machine, host)?;
        let mut first = 0;
        let mut controllers = Vec::new();
        for node in &host.nodes {
            let count = node.memories.iter().filter(|m| machine.memories.contains_key(*m)).count();
            controllers.push(NodeControllers { first, count: Divider::by(count as u64) });
            first += count;
        }
        if first == 0 {
            return Err(BuildError::NoMemory { host: host.name.clone() });
        }
        let (node_shift, slots) = windows(machine, host).unwrap_or_else(|| separate_ranges(host));
        let mut nodes = vec![0; slots.iter().max().map_or(0, |s| *s as usize + 1)];
        slots.iter().enumerate().for_each(|(node, slot)| nodes[*slot as usize] = node);
        let interleave = Divider::by(CONTROLLER_INTERLEAVE_BYTES);
        Ok(Self { node_shift, nodes, slots, interleave, controllers })
    }

    /// The NUMA node of a physical address.
    ///
    /// # Panics
    /// If the address is outside every node's range.
    #[inline]
    pub fn node_of(&self, physical: u64) -> usize {
        self.nodes[(physical >> self.node_shift) as usize]
    }

    /// The controller of a physical address, numbered over the host, and the local address at the controller. A node's
    /// memory is interleaved over its controllers.
    ///
    /// # Panics
    /// If the address is outside every node's range.
    #[inline]
    pub fn controller_of(&self, physical: u64) -> (usize, u64) {
        let NodeControllers { first, count } = self.controllers[self.node_of(physical)];
        let (piece, offset) = self.interleave.split(physical & (self.node_bytes() - 1));
        let (piece, controller) = count.split(piece);
        (first + controller as usize, piece * CONTROLLER_INTERLEAVE_BYTES + offset)
    }

    /// The first physical address of a node.
    pub fn base_of(&self, node: usize) -> u64 {
        self.slots[node] << self.node_shift
    }

    /// Size of a node's address range; its memory may be smaller.
    pub const fn node_bytes(&self) -> u64 {
        1 << self.node_shift
    }
}

/// The number of address bits within a node, and the value of the upper bits for each node, from the chips' address
/// windows. `None` if the machine file does not state them, or if the nodes do not fit.
fn windows(machine: &Machine, host: &HostInstance) -> Option<(u32, Vec<u64>)> {
    let mut chip_bit = None;
    for name in &host.chips {
        let windows = machine.chips.get(name)?.address_windows.as_ref()?;
        let bit = windows.chip_bit?;
        let chips = 1u64.checked_shl(u32::try_from(windows.address.bits()).ok()?.checked_sub(bit)?)?;
        if *chip_bit.get_or_insert(bit) != bit || host.chips.len() as u64 > chips {
            return None;
        }
    }
    let of_chip = |chip| host.nodes.iter().filter(move |n| n.chip == chip);
    let nodes = (0..host.chips.len()).map(|c| of_chip(c).count()).max()?.next_power_of_two();
    let shift = chip_bit?.checked_sub(nodes.trailing_zeros())?;
    let fits = host.nodes.iter().all(|n| n.memory_bytes.unwrap_or(0) <= 1 << shift.min(MAX_NODE_BITS));
    if shift > MAX_NODE_BITS || !fits {
        return None;
    }
    let mut slots = Vec::new();
    for chip in 0..host.chips.len() {
        slots.extend((0..of_chip(chip).count()).map(|node| (chip * nodes + node) as u64));
    }
    Some((shift, slots))
}

/// Like [`windows`], for machine files without address windows: each node has its own range.
fn separate_ranges(host: &HostInstance) -> (u32, Vec<u64>) {
    let largest_bytes = host.nodes.iter().filter_map(|n| n.memory_bytes).max().unwrap_or(0);
    let bits = u64::BITS - largest_bytes.saturating_sub(1).leading_zeros();
    (bits.clamp(NODE_BITS, MAX_NODE_BITS), (0..host.nodes.len() as u64).collect())
}
