//! Physical addresses: which node, which controller, which address there.
//! Not which page is where: see `AddressSpaces`.
//! Source: Loongson 3A5000 manual (48 bits, the chip in bits 47 to 44); elsewhere each node has addresses of its own.

use super::Split;
use crate::build_error::{BuildError, host_of};
use longma_topology::{HostInstance, Machine};

/// Bytes of neighbouring addresses at one controller before the next controller's turn. An estimate: with the channels' own, so
/// that a stream uses all controllers of its node; firmware of Loongson and AMD boards interleaves at 256 bytes to 4 KiB.
const CONTROLLER_INTERLEAVE_BYTES: u64 = 256;

/// Where no machine file says which bits of an address are the chip's, a node has 2^40 addresses: more memory than any has.
const NODE_BITS: u32 = 40;

/// Most bits of addresses of a node.
const MAX_NODE_BITS: u32 = 47;

/// Which node and controller a physical address belongs to.
#[derive(Clone, Debug)]
pub struct PhysicalMap {
    /// A node's addresses differ above this bit.
    node_shift: u32,
    /// The node of each value of the bits above.
    nodes: Vec<usize>,
    /// The value of the bits above for each node.
    slots: Vec<u64>,
    interleave: Split,
    controllers: Vec<NodeControllers>,
}

/// The controllers of a node.
#[derive(Clone, Copy, Debug)]
struct NodeControllers {
    first: usize,
    count: Split,
}

impl PhysicalMap {
    /// The addresses of host number `host` of `machine`.
    ///
    /// # Errors
    /// If there is no such host, or if none of its nodes has memory.
    pub fn new(machine: &Machine, host: usize) -> Result<Self, BuildError> {
        let host = host_of(machine, host)?;
        let mut first = 0;
        let mut controllers = Vec::new();
        for node in &host.nodes {
            let count = node.memories.iter().filter(|m| machine.memories.contains_key(*m)).count();
            controllers.push(NodeControllers { first, count: Split::by(count as u64) });
            first += count;
        }
        if first == 0 {
            return Err(BuildError::NoMemory { host: host.name.clone() });
        }
        let (node_shift, slots) = windows(machine, host).unwrap_or_else(|| own_addresses(host));
        let mut nodes = vec![0; slots.iter().max().map_or(0, |s| *s as usize + 1)];
        slots.iter().enumerate().for_each(|(node, slot)| nodes[*slot as usize] = node);
        let interleave = Split::by(CONTROLLER_INTERLEAVE_BYTES);
        Ok(Self { node_shift, nodes, slots, interleave, controllers })
    }

    /// The NUMA node of a physical address.
    ///
    /// # Panics
    /// If no node has such addresses.
    #[inline]
    pub fn node_of(&self, physical: u64) -> usize {
        self.nodes[(physical >> self.node_shift) as usize]
    }

    /// The controller of a physical address, numbered over the host, and the address there: neighbouring pieces of a node's memory
    /// are in different controllers.
    ///
    /// # Panics
    /// If no node has such addresses.
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

    /// Addresses of a node; its memory may be less.
    pub const fn node_bytes(&self) -> u64 {
        1 << self.node_shift
    }
}

/// Bits of an address that count a node's bytes, and what is above them for each node, as the chips' address windows say it.
/// `None` if the chips do not say it, or if the nodes do not fit.
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

/// As [`windows`], where no file says it: each node has addresses of its own.
fn own_addresses(host: &HostInstance) -> (u32, Vec<u64>) {
    let most = host.nodes.iter().filter_map(|n| n.memory_bytes).max().unwrap_or(0);
    let bits = u64::BITS - most.saturating_sub(1).leading_zeros();
    (bits.clamp(NODE_BITS, MAX_NODE_BITS), (0..host.nodes.len() as u64).collect())
}
