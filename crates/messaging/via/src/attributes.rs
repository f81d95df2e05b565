//! Attributes of NICs and VIs, reliability levels, and VI states.
//!
//! Source: VIA, reliability levels, VI states; VIPL, VipQueryNic and VipQueryVi.

use crate::protection::ProtectionTag;

/// The capabilities of a NIC (VIPL, VIP_NIC_ATTRIBUTES). The minimum required by the specification is in parentheses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicAttributes {
    /// The name of the NIC.
    pub name: String,
    /// The host part of the NIC's addresses.
    pub local_address: Vec<u8>,
    /// The maximum discriminator length, bytes (16).
    pub max_discriminator_bytes: usize,
    /// The maximum total size of registered memory, bytes (8 MiB).
    pub max_register_bytes: u64,
    /// The maximum number of registered regions (1024).
    pub max_register_regions: u32,
    /// The maximum size of a region, bytes (32 KiB).
    pub max_register_block_bytes: u64,
    /// The maximum number of VIs (1024).
    pub max_vis: u32,
    /// The maximum number of descriptors in a work queue (1024).
    pub max_descriptors_per_queue: u32,
    /// The maximum number of data segments in a descriptor (252).
    pub max_segments_per_descriptor: u32,
    /// The maximum number of completion queues (1024).
    pub max_completion_queues: u32,
    /// The maximum number of entries of a completion queue (1024).
    pub max_completion_queue_entries: u32,
    /// The maximum message size, bytes (32 KiB).
    pub max_transfer_bytes: u32,
    /// The maximum transmission unit of the medium, bytes.
    pub native_mtu_bytes: u32,
    /// The maximum number of protection tags (1024).
    pub max_protection_tags: u32,
    /// The supported reliability levels.
    pub reliability: Vec<Reliability>,
    /// The reliability levels that support RDMA read.
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

/// The delivery guarantee of a VI (VIA, reliability levels). The values are VIPL's bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u16)]
pub enum Reliability {
    /// A message arrives at most once, or is lost. Network errors are not reported.
    Unreliable = 1,
    /// A message arrives exactly once and in order. An error breaks the connection. A send completes when its data is
    /// on its way.
    ReliableDelivery = 2,
    /// Like reliable delivery, but a send completes only when its data is in the peer's memory.
    ReliableReception = 4,
}

impl Reliability {
    /// All levels.
    pub const ALL: [Reliability; 3] =
        [Reliability::Unreliable, Reliability::ReliableDelivery, Reliability::ReliableReception];

    /// Returns the level with the given VIPL bit.
    pub fn from_bits(bits: u16) -> Option<Reliability> {
        Reliability::ALL.into_iter().find(|level| *level as u16 == bits)
    }
}

/// The attributes of a VI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViAttributes {
    /// The reliability level. Both ends of a connection must have the same.
    pub reliability: Reliability,
    /// The maximum message size, bytes. A connection uses the smaller value of its two ends.
    pub max_transfer_bytes: u32,
    /// The protection tag of the memory that descriptors may use.
    pub tag: ProtectionTag,
    /// Whether the peer may write to memory that has this tag and permits it.
    pub rdma_write: bool,
    /// Whether the peer may read from memory that has this tag and permits it.
    pub rdma_read: bool,
}

impl ViAttributes {
    /// Default attributes: reliable delivery, unlimited message size, RDMA write and read enabled.
    pub fn new(tag: ProtectionTag) -> ViAttributes {
        ViAttributes {
            reliability: Reliability::ReliableDelivery,
            max_transfer_bytes: u32::MAX,
            tag,
            rdma_write: true,
            rdma_read: true,
        }
    }

    /// Changes the reliability level. Unreliable delivery disables RDMA read.
    pub fn with_reliability(self, reliability: Reliability) -> ViAttributes {
        ViAttributes {
            reliability,
            rdma_read: self.rdma_read && reliability != Reliability::Unreliable,
            ..self
        }
    }
}

/// The state of a VI (VIA, VI states).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ViState {
    /// Not connected. Posted receives stay queued; posted sends are flushed.
    Idle = 0,
    /// Connected to a peer's VI.
    Connected = 1,
    /// A connection has been requested and not answered yet.
    ConnectPending = 2,
    /// The connection broke, and all posted descriptors were flushed. `disconnect` returns the VI to idle.
    Error = 3,
}
