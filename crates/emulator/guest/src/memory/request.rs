//! The parameters of a new mapping. Source: mmap(2).

use std::sync::Arc;

use super::mappings::{Origin, Protection};

/// The requested address of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// This address if it is free, otherwise any; 0 means no preference.
    Hint(u64),
    /// This address, replacing existing mappings.
    Fixed(u64),
    /// This address, only if it is free.
    FixedNoReplace(u64),
}

/// The contents of a mapping.
#[derive(Clone, Debug)]
pub enum Backing {
    /// Zeroed memory.
    Anonymous(Arc<Origin>),
    /// Memory of a restored process; the caller writes its contents afterwards.
    Saved {
        /// The original file or purpose.
        origin: Arc<Origin>,
        /// The file offset of the first byte, in bytes.
        offset: u64,
    },
    /// A System V segment.
    Segment {
        /// The segment id.
        id: u64,
        /// SHM_RDONLY.
        read_only: bool,
        /// The name and number shown in /proc/self/maps.
        origin: Arc<Origin>,
    },
    /// The registers of a device.
    Registers(Arc<Origin>),
    /// A file on the host.
    File {
        /// The host descriptor.
        descriptor: i32,
        /// The file offset of the first byte, in bytes.
        offset: u64,
        /// The file's size in bytes.
        size: u64,
        /// The identity of the file.
        origin: Arc<Origin>,
    },
}

/// A request for a new mapping.
#[derive(Clone, Debug)]
pub struct MapRequest {
    /// The address.
    pub placement: Placement,
    /// The length in bytes.
    pub length: u64,
    /// The guest's permissions.
    pub protection: Protection,
    /// MAP_SHARED.
    pub shared: bool,
    /// The contents.
    pub backing: Backing,
    /// Additional host MAP_ flags (MAP_NORESERVE, MAP_POPULATE, MAP_LOCKED, MAP_SYNC).
    pub flags: i32,
    /// MAP_GROWSDOWN.
    pub grows_down: bool,
}

impl Backing {
    pub(super) fn origin(&self) -> &Arc<Origin> {
        match self {
            Self::Anonymous(origin) | Self::Registers(origin) => origin,
            Self::Saved { origin, .. } | Self::Segment { origin, .. } | Self::File { origin, .. } => origin,
        }
    }
}

impl MapRequest {
    /// A request for private anonymous memory.
    pub fn anonymous(placement: Placement, length: u64, protection: Protection) -> Self {
        let backing = Backing::Anonymous(Arc::default());
        Self { placement, length, protection, shared: false, backing, flags: 0, grows_down: false }
    }
}
