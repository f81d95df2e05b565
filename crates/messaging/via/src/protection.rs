//! Protection tags, memory handles and memory attributes.
//!
//! Source: VIA, memory registration and memory protection.

/// Associates VIs with memory: a descriptor may use only memory that has the tag of its VI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ProtectionTag(pub(crate) u32);

impl ProtectionTag {
    /// The number of the tag; 0 means no tag.
    pub fn number(self) -> u32 {
        self.0
    }

    /// Creates a tag from its number, as returned by [`ProtectionTag::number`]. It is validated when it is used.
    pub const fn from_number(number: u32) -> ProtectionTag {
        ProtectionTag(number)
    }
}

/// Identifies a memory region in descriptors on both sides. 0 is never a valid handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MemoryHandle(pub u32);

/// Access rights of a memory region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryAttributes {
    /// The tag that a VI must have.
    pub tag: ProtectionTag,
    /// Whether peers may write to the region by RDMA.
    pub rdma_write: bool,
    /// Whether peers may read from the region by RDMA.
    pub rdma_read: bool,
}

impl MemoryAttributes {
    /// No access for peers.
    pub fn local(tag: ProtectionTag) -> MemoryAttributes {
        MemoryAttributes { tag, rdma_write: false, rdma_read: false }
    }

    /// Read and write access for peers.
    pub fn remote(tag: ProtectionTag) -> MemoryAttributes {
        MemoryAttributes { tag, rdma_write: true, rdma_read: true }
    }
}
