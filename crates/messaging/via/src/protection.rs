//! Protection tags, memory handles, and what a peer may do to a region: how memory is named and who may touch it.
//! Not the memory (see `memory.rs`), nor the check (see `engine::memory_table`).
//! Source: VIA, memory registration and memory protection.

/// Ties VIs to memory: a descriptor may touch only memory whose tag is its VI's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ProtectionTag(pub(crate) u32);

impl ProtectionTag {
    /// The tag's number; 0 is no tag.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The tag of that number, as a program gets it back from a place that holds numbers only. It is checked where it is used.
    pub const fn from_number(number: u32) -> ProtectionTag {
        ProtectionTag(number)
    }
}

/// Names a registration in descriptors of both sides. 0 is never a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MemoryHandle(pub u32);

/// Who may use a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryAttributes {
    /// The tag that VIs need.
    pub tag: ProtectionTag,
    /// Peers may store into it by RDMA write.
    pub rdma_write: bool,
    /// Peers may load from it by RDMA read.
    pub rdma_read: bool,
}

impl MemoryAttributes {
    /// For local use only.
    pub fn local(tag: ProtectionTag) -> MemoryAttributes {
        MemoryAttributes { tag, rdma_write: false, rdma_read: false }
    }

    /// Open to peers, for writing and reading.
    pub fn remote(tag: ProtectionTag) -> MemoryAttributes {
        MemoryAttributes { tag, rdma_write: true, rdma_read: true }
    }
}
