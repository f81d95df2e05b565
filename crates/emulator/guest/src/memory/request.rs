//! What a mapping is asked for with.
//! Not the map, nor how it is made: that is `address_space`'s.
//! Source: mmap(2).

use std::sync::Arc;

use super::mappings::{Origin, Protection};

/// Where a mapping goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// There if it is free, otherwise anywhere; 0 says nothing.
    Hint(u64),
    /// There, in place of what is there.
    Fixed(u64),
    /// There, and only if it is free.
    FixedNoReplace(u64),
}

/// What a mapping shows.
#[derive(Clone, Debug)]
pub enum Backing {
    /// Fresh zeros.
    Anonymous(Arc<Origin>),
    /// What a saved process had there: its contents are put in afterwards.
    Saved {
        /// Where the contents once came from.
        origin: Arc<Origin>,
        /// What of it the mapping begins with, in bytes.
        offset: u64,
    },
    /// A System V segment, by its number.
    Segment {
        /// The number.
        id: u64,
        /// SHM_RDONLY.
        read_only: bool,
        /// What the map says that it is.
        origin: Arc<Origin>,
    },
    /// Registers of a device.
    Registers(Arc<Origin>),
    /// A host file descriptor's file.
    File {
        /// The host's descriptor.
        descriptor: i32,
        /// What of the file the mapping begins with, in bytes.
        offset: u64,
        /// The file's size in bytes.
        size: u64,
        /// Which file it is.
        origin: Arc<Origin>,
    },
}

/// A mapping to be made.
#[derive(Clone, Debug)]
pub struct MapRequest {
    /// Where it goes.
    pub placement: Placement,
    /// Bytes.
    pub length: u64,
    /// What the guest may do there.
    pub protection: Protection,
    /// MAP_SHARED.
    pub shared: bool,
    /// What it shows.
    pub backing: Backing,
    /// Further host MAP_ flags (MAP_NORESERVE, MAP_POPULATE, MAP_LOCKED, MAP_SYNC).
    pub flags: i32,
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
    /// Private anonymous memory.
    pub fn anonymous(placement: Placement, length: u64, protection: Protection) -> Self {
        let backing = Backing::Anonymous(Arc::default());
        Self { placement, length, protection, shared: false, backing, flags: 0 }
    }
}
