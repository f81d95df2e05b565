//! What must hold between caches and directories at any time.
//! Not the checking itself, which needs the whole system: see `system::invariants`.
//! Source: the single-writer, multiple-reader invariant, Nagarajan et al., A Primer on Memory Consistency and Cache Coherence,
//! 2nd edition, section 2.4.

/// A broken invariant. Lines are given by their physical address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A core may write a line that another core has too.
    #[error("line {line:#x}: core {writer} may write it while core {other} has it")]
    TwoHolders {
        /// The line.
        line: u64,
        /// The core that may write it.
        writer: usize,
        /// The other core.
        other: usize,
    },
    /// A line is dirty where it may not be written.
    #[error("line {line:#x}: {cache} has it dirty without the right to write it")]
    DirtyAndShared {
        /// The line.
        line: u64,
        /// The cache.
        cache: String,
    },
    /// A line is missing below, where inclusion wants it, or present where exclusion forbids it.
    #[error("line {line:#x}: {above} has it, and {below} {has} it")]
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
    /// A directory does not know who has a line.
    #[error("line {line:#x}: the directory of {directory} says {says:#b}, but the holders are {holders:#b}")]
    Directory {
        /// The line.
        line: u64,
        /// Whose directory.
        directory: String,
        /// Holders as it has them, one bit each.
        says: u64,
        /// Holders as they are.
        holders: u64,
    },
    /// A directory does not know who may write a line.
    #[error("line {line:#x}: {holder} may write it, but the directory of {directory} does not say so")]
    Owner {
        /// The line.
        line: u64,
        /// Who may write it.
        holder: String,
        /// Whose directory.
        directory: String,
    },
    /// The filter in front of a first-level cache claims a line that is not there.
    #[error("core {core}: the filter claims a line that its first-level cache does not have")]
    Filter {
        /// The core.
        core: usize,
    },
    /// A set has more locked lines than it may.
    #[error("line {line:#x}: its set in {cache} has {locked} locked ways")]
    Locked {
        /// A line of the set.
        line: u64,
        /// The cache.
        cache: String,
        /// Locked ways.
        locked: u32,
    },
}
