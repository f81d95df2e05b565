//! Invariants between caches and directories. `system::invariants` checks them.
//!
//! Source: the single-writer, multiple-reader invariant, Nagarajan et al., A Primer on Memory Consistency and Cache
//! Coherence, 2nd edition, section 2.4.

/// A violated coherence invariant. Lines are given as physical addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A core has write permission for a line that another core also holds.
    #[error("line {line:#x}: core {writer} has write permission while core {other} holds a copy")]
    TwoHolders {
        /// The line.
        line: u64,
        /// The core with write permission.
        writer: usize,
        /// The other core.
        other: usize,
    },
    /// A cache holds a dirty line without write permission.
    #[error("line {line:#x}: {cache} holds it dirty without write permission")]
    DirtyAndShared {
        /// The line.
        line: u64,
        /// The cache.
        cache: String,
    },
    /// A line is absent from a lower level that must include it, or present in one that must exclude it.
    #[error("line {line:#x}: {above} holds it, and {below} {has} it")]
    Inclusion {
        /// The line.
        line: u64,
        /// The cache above.
        above: String,
        /// The cache below.
        below: String,
        /// "lacks" or "has".
        has: &'static str,
    },
    /// The holders in a directory differ from the actual holders.
    #[error(
        "line {line:#x}: the directory of {directory} lists holders {says:#b}, but the actual holders are {holders:#b}"
    )]
    Directory {
        /// The line.
        line: u64,
        /// The directory.
        directory: String,
        /// Holders in the directory, one bit each.
        says: u64,
        /// Actual holders, one bit each.
        holders: u64,
    },
    /// A directory does not name the holder that has write permission for a line.
    #[error(
        "line {line:#x}: {holder} has write permission, but the directory of {directory} does not list it as the owner"
    )]
    Owner {
        /// The line.
        line: u64,
        /// The holder with write permission.
        holder: String,
        /// The directory.
        directory: String,
    },
    /// The filter in front of a first-level cache has an entry for a line that the cache does not hold.
    #[error("core {core}: the filter has an entry for a line that the first-level cache does not hold")]
    Filter {
        /// The core.
        core: usize,
    },
    /// A set has more locked lines than allowed.
    #[error("line {line:#x}: its set in {cache} has {locked} locked ways")]
    Locked {
        /// A line of the set.
        line: u64,
        /// The cache.
        cache: String,
        /// Locked ways.
        locked: u32,
    },
    /// The counters of a prefetcher do not add up.
    #[error("{cache}: {fetched} lines were prefetched, but {accounted} were used or removed or are present")]
    Prefetches {
        /// The cache.
        cache: String,
        /// Lines prefetched, and those present when counting began.
        fetched: u64,
        /// Lines used, removed before any use, or present and not used.
        accounted: u64,
    },
}
