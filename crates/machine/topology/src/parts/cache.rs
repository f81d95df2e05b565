//! Caches: geometry, timing, replacement, prefetchers, cache lock and DCA. A cache names its kind of coherence;
//! `longma-memory` implements the protocols.
//!
//! Source: terms after Hennessy and Patterson; lock and DCA after the Loongson 3A5000 manual and the Godson-3 paper.

use crate::module::Module;
use crate::read::{Cited, Map, Name, choice, part};
use crate::units::{Bandwidth, Latency, Size};

/// Load-to-use latency of a first-level cache in cycles, if the machine file gives none: that of most current cores
/// (Intel 64 and IA-32 Optimization Reference Manual, table 2-4).
pub const LEVEL1_CYCLES: u64 = 4;

/// Bytes of a line if nothing specifies it: the line size of most current cores (same manual and table).
pub const LINE_BYTES: u64 = 64;

choice! {
    /// The contents of a cache: instructions, data or both.
    pub enum CacheKind = "a kind of cache" {
        /// Instructions and data.
        Unified = "unified",
        /// Data only.
        Data = "data",
        /// Instructions only.
        Instruction = "instruction",
    }
}

choice! {
    /// Which line of a set is evicted.
    pub enum Replacement = "a replacement policy" {
        /// The least recently used.
        Lru = "lru",
        /// Approximately the least recently used, by a tree of bits.
        TreePlru = "tree-plru",
        /// Approximately the least recently used, by one bit per line.
        BitPlru = "bit-plru",
        /// Not recently used, by one bit per line.
        Nru = "nru",
        /// A random line.
        Random = "random",
        /// The oldest line.
        Fifo = "fifo",
        /// Re-reference interval prediction.
        Rrip = "rrip",
        /// The line that the WebAssembly module `replacement_module` chooses.
        Plugin = "plugin",
        /// Not published by the vendor.
        Unknown = "unknown",
    }
}

choice! {
    /// Whether a cache contains the lines of the caches above it.
    pub enum Inclusion = "an inclusion policy" {
        /// It contains all their lines.
        Inclusive = "inclusive",
        /// It contains none of their lines.
        Exclusive = "exclusive",
        /// It contains only lines that they evicted.
        Victim = "victim",
        /// It may contain any of their lines.
        NonInclusive = "non-inclusive",
    }
}

choice! {
    /// When a write is passed to the next level.
    pub enum WritePolicy = "a write policy" {
        /// When the line is evicted.
        Back = "back",
        /// Immediately.
        Through = "through",
    }
}

choice! {
    /// The coherence protocol between copies in several caches.
    pub enum Coherence = "a kind of coherence" {
        /// No mechanism, or only one cache.
        None = "none",
        /// A directory stored with the lines of this cache.
        Directory = "directory",
        /// All caches snoop one bus.
        Snoop = "snoop",
    }
}

choice! {
    /// How an address selects the set.
    pub enum CacheIndex = "a kind of index" {
        /// Bits of the address, so that a bank has a power-of-two number of sets.
        Bits = "bits",
        /// A hash of the address, which allows any number of sets.
        Hashed = "hashed",
    }
}

part! {
    /// A type of cache. The place where it is listed (core, cluster, node or chip) determines which cores share it.
    pub struct Cache = "cache" {
        /// Level; 1 is nearest the core.
        level: u32,
        /// What it holds.
        kind: CacheKind,
        /// Capacity of all banks together.
        size: Size,
        /// Ways of associativity; omit for a fully associative cache.
        ways: Option<u32>,
        /// Line size.
        line: Size,
        /// Banks (slices) that work in parallel; in a private cache, only with `bandwidth`.
        banks: u32 = 1,
        /// How an address selects the set.
        index: CacheIndex = CacheIndex::Bits,
        /// Load-to-use latency of a hit, without contention.
        latency: Option<Latency>,
        /// Bandwidth of a bank towards the core; by default half a line per cycle in a shared cache, unlimited in a
        /// private one. A first level has the bandwidth of the core's memory units.
        bandwidth: Option<Bandwidth>,
        /// The next level: a cache, or "memory".
        next: Name,
        /// Which line is evicted.
        replacement: Replacement = Replacement::Unknown,
        /// The [plug-in](plug-ins.md) that chooses it, for the replacement "plugin".
        replacement_module: Option<Module>,
        /// Relation to the lines of the levels above.
        inclusion: Inclusion = Inclusion::NonInclusive,
        /// Write policy; shared caches write back.
        write: WritePolicy = WritePolicy::Back,
        /// The coherence of copies.
        coherence: Coherence = Coherence::None,
        /// Outstanding misses (miss status holding registers) of a bank.
        mshrs: Option<u32>,
        /// Lock windows: lines that are not evicted.
        lock: Option<CacheLock>,
        /// Writes of devices into the cache.
        dca: Option<Dca>,
        /// Hardware prefetcher.
        prefetcher: Option<Prefetcher>,
        /// Where the numbers come from.
        source: Cited,
        /// Sources of single keys, if they differ.
        source_of: Map<Cited>,
    }
}

choice! {
    /// How a prefetcher predicts accesses.
    pub enum PrefetcherKind = "a kind of prefetcher" {
        /// The other line of the missed line's aligned pair.
        AdjacentLine = "adjacent-line",
        /// The lines that follow a missed line.
        NextLine = "next-line",
        /// Lines ahead of misses on consecutive lines.
        Stream = "stream",
        /// Lines ahead of an instruction whose addresses advance by a constant stride.
        Stride = "stride",
        /// The lines that the WebAssembly module `module` chooses.
        Plugin = "plugin",
    }
}

part! {
    /// A hardware prefetcher, which fills the cache it belongs to.
    pub struct Prefetcher = "prefetcher" {
        /// How it predicts accesses.
        kind: PrefetcherKind,
        /// The [plug-in](plug-ins.md) that predicts them, for the kind "plugin".
        module: Option<Module>,
        /// Lines prefetched at a time.
        degree: u32 = 1,
        /// Prefetch distance, in lines (stride: in strides).
        distance: u32 = 1,
        /// Streams, or instructions, tracked at a time.
        streams: u32 = 16,
        /// Whether it crosses page boundaries if the next virtual page is the next physical page.
        crosses_pages: bool = false,
        /// Where the numbers come from.
        source: Cited,
    }
}

part! {
    /// Cache lock: lines inside an address window are not evicted.
    pub struct CacheLock = "cache lock" {
        /// Address windows, each with an address, a mask and a valid bit.
        windows: u32,
        /// Ways of each set that always stay unlocked.
        min_unlocked_ways: u32 = 1,
        /// Where the numbers come from.
        source: Cited,
    }
}

part! {
    /// Direct cache access: devices write into the cache instead of memory.
    pub struct Dca = "direct cache access" {
        /// Ways of each set that device writes may allocate.
        ways: u32,
        /// Whether it is enabled when the machine starts.
        enabled: bool = true,
        /// Whether it applies only to locked lines.
        locked_lines_only: bool = false,
        /// Where the numbers come from.
        source: Cited,
    }
}

impl Cache {
    /// Ways of a set; a fully associative cache has one set of all its lines.
    pub fn ways(&self) -> u64 {
        self.ways.map_or_else(|| self.lines(), u64::from)
    }

    /// The number of lines.
    pub fn lines(&self) -> u64 {
        self.size.bytes() / self.line.bytes().max(1)
    }

    /// The number of sets of all banks together.
    pub fn sets(&self) -> u64 {
        self.lines() / self.ways().max(1)
    }

    /// Its short name as in lstopo: L1d, L1i, L2, L3.
    pub fn short_name(&self) -> String {
        let suffix = match self.kind {
            CacheKind::Unified => "",
            CacheKind::Data => "d",
            CacheKind::Instruction => "i",
        };
        format!("L{}{suffix}", self.level)
    }
}
