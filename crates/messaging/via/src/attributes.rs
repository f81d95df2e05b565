//! What NICs and VIs are like: their attributes, the reliability levels, and the states of a VI.
//! Not what memory is like (see `protection.rs`).
//! Source: VIA, reliability levels, VI states; VIPL, VipQueryNic and VipQueryVi.

use crate::protection::ProtectionTag;

/// What a NIC can do (VIPL, VIP_NIC_ATTRIBUTES). The specification's own minimum is in parentheses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicAttributes {
    /// The name it was opened by.
    pub name: String,
    /// The host part of its addresses.
    pub local_address: Vec<u8>,
    /// Longest discriminator, bytes (16).
    pub max_discriminator_bytes: usize,
    /// Registered bytes in total (8 MiB).
    pub max_register_bytes: u64,
    /// Registered regions (1024).
    pub max_register_regions: u32,
    /// Largest region, bytes (32 KiB).
    pub max_register_block_bytes: u64,
    /// VIs (1024).
    pub max_vis: u32,
    /// Descriptors in a work queue (1024).
    pub max_descriptors_per_queue: u32,
    /// Data segments in a descriptor (252).
    pub max_segments_per_descriptor: u32,
    /// Completion queues (1024).
    pub max_completion_queues: u32,
    /// Entries of a completion queue (1024).
    pub max_completion_queue_entries: u32,
    /// Largest message, bytes (32 KiB).
    pub max_transfer_bytes: u32,
    /// What travels in one piece on the medium, bytes.
    pub native_mtu_bytes: u32,
    /// Protection tags (1024).
    pub max_protection_tags: u32,
    /// The reliability levels it has.
    pub reliability: Vec<Reliability>,
    /// The reliability levels at which it has RDMA read.
    pub rdma_read: Vec<Reliability>,
}

impl Default for NicAttributes {
    fn default() -> NicAttributes {
        NicAttributes {
            name: String::new(),
            local_address: Vec::new(),
            max_discriminator_bytes: 40,
            max_register_bytes: u64::MAX,
            max_register_regions: 1 << 16,
            max_register_block_bytes: u64::MAX,
            max_vis: 1 << 16,
            max_descriptors_per_queue: 1024,
            max_segments_per_descriptor: 252,
            max_completion_queues: 1 << 16,
            max_completion_queue_entries: 1 << 20,
            max_transfer_bytes: 1 << 30,
            native_mtu_bytes: 1 << 30,
            max_protection_tags: 1 << 16,
            reliability: Reliability::ALL.to_vec(),
            rdma_read: vec![Reliability::ReliableDelivery, Reliability::ReliableReception],
        }
    }
}

/// What a VI promises about delivery (VIA, reliability levels). The values are VIPL's bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum Reliability {
    /// A message arrives at most once, or is lost; errors of the network are not reported.
    Unreliable = 1,
    /// A message arrives exactly once, in order; an error ends the connection. A send completes when it is on its way.
    ReliableDelivery = 2,
    /// As reliable delivery, and a send completes only when its data is in the peer's memory.
    ReliableReception = 4,
}

impl Reliability {
    /// All levels.
    pub const ALL: [Reliability; 3] =
        [Reliability::Unreliable, Reliability::ReliableDelivery, Reliability::ReliableReception];

    /// The level of that VIPL bit.
    pub fn from_bits(bits: u16) -> Option<Reliability> {
        Reliability::ALL.into_iter().find(|level| *level as u16 == bits)
    }
}

/// What a VI is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViAttributes {
    /// What is promised; both ends need the same.
    pub reliability: Reliability,
    /// The largest message, bytes; both ends of a connection keep to the smaller.
    pub max_transfer_bytes: u32,
    /// The tag of the memory that its descriptors use.
    pub tag: ProtectionTag,
    /// The peer may write into memory of this tag that allows it.
    pub rdma_write: bool,
    /// The peer may read from memory of this tag that allows it.
    pub rdma_read: bool,
}

impl ViAttributes {
    /// Reliable delivery, the largest transfers, both kinds of RDMA.
    pub fn new(tag: ProtectionTag) -> ViAttributes {
        ViAttributes {
            reliability: Reliability::ReliableDelivery,
            max_transfer_bytes: u32::MAX,
            tag,
            rdma_write: true,
            rdma_read: true,
        }
    }

    /// With another reliability level; unreliable has no RDMA read.
    pub fn with_reliability(self, reliability: Reliability) -> ViAttributes {
        ViAttributes {
            reliability,
            rdma_read: self.rdma_read && reliability != Reliability::Unreliable,
            ..self
        }
    }
}

/// Where a VI is in its life (VIA, VI states).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ViState {
    /// Not connected. Receives may be posted and wait; sends are flushed.
    Idle = 0,
    /// Connected to a peer's VI.
    Connected = 1,
    /// A connection was asked for and not answered yet.
    ConnectPending = 2,
    /// The connection broke; everything posted was flushed. `disconnect` leads back to idle.
    Error = 3,
}
