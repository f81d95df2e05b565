//! Caches: their shape, their timing and who may lock or inject lines.
//! Not coherence protocols: the cache only names its kind.
//! Source: terms after Hennessy and Patterson; lock and DCA after the Loongson 3A5000 manual and the Godson-3 paper.

use crate::read::{Cited, Map, Name, choice, part};
use crate::units::{Bandwidth, Latency, Size};

/// Load to use of a first-level cache, cycles, where a machine file says nothing: what most cores of today have (Intel 64 and IA-32
/// Optimization Reference Manual, table 2-4).
pub const LEVEL1_CYCLES: u64 = 4;

/// Bytes of a line where nothing says it: what most cores of today have (the same manual, the same table).
pub const LINE_BYTES: u64 = 64;

choice! {
    /// What a cache holds.
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
    /// Which line of a set is given up.
    pub enum Replacement = "a replacement policy" {
        /// The least recently used.
        Lru = "lru",
        /// Nearly the least recently used, by a tree of bits.
        TreePlru = "tree-plru",
        /// Not the last used, by one bit a line.
        BitPlru = "bit-plru",
        /// Not recently used, by one bit a line.
        Nru = "nru",
        /// Any.
        Random = "random",
        /// The oldest.
        Fifo = "fifo",
        /// Re-reference interval prediction.
        Rrip = "rrip",
        /// The maker does not say.
        Unknown = "unknown",
    }
}

choice! {
    /// What a cache holds of what the caches above it hold.
    pub enum Inclusion = "an inclusion policy" {
        /// Everything.
        Inclusive = "inclusive",
        /// Nothing.
        Exclusive = "exclusive",
        /// Only what they gave up.
        Victim = "victim",
        /// Anything.
        NonInclusive = "non-inclusive",
    }
}

choice! {
    /// When a write goes on to the next level.
    pub enum WritePolicy = "a write policy" {
        /// When the line is given up.
        Back = "back",
        /// At once.
        Through = "through",
    }
}

choice! {
    /// How copies in several caches are kept the same.
    pub enum Coherence = "a kind of coherence" {
        /// They are not, or there is only one.
        None = "none",
        /// A directory beside the lines of this cache.
        Directory = "directory",
        /// All caches watch one bus.
        Snoop = "snoop",
    }
}

choice! {
    /// How an address selects the set.
    pub enum CacheIndex = "a kind of index" {
        /// Some of its bits, so a bank has a power-of-two number of sets.
        Bits = "bits",
        /// A hash, so any number of sets will do.
        Hashed = "hashed",
    }
}

part! {
    /// A type of cache. Where it is listed (core, cluster, node or chip) says who shares it.
    pub struct Cache = "cache" {
        /// 1 is nearest the core.
        level: u32,
        /// What it holds.
        kind: CacheKind,
        /// Capacity of all banks together.
        size: Size,
        /// Ways of associativity; left out for a fully associative cache.
        ways: Option<u32>,
        /// Length of a line.
        line: Size,
        /// Banks (slices) that work at the same time.
        banks: u32 = 1,
        /// How an address selects the set.
        index: CacheIndex = CacheIndex::Bits,
        /// From a load's issue to its use when it hits here, without contention.
        latency: Option<Latency>,
        /// Towards the core, a bank.
        bandwidth: Option<Bandwidth>,
        /// Where a miss goes: a cache, or "memory".
        next: Name,
        /// Which line is given up.
        replacement: Replacement = Replacement::Unknown,
        /// What it holds of the levels above.
        inclusion: Inclusion = Inclusion::NonInclusive,
        /// When a write goes on.
        write: WritePolicy = WritePolicy::Back,
        /// How copies are kept the same.
        coherence: Coherence = Coherence::None,
        /// Outstanding misses (miss status holding registers), a bank.
        mshrs: Option<u32>,
        /// Lines that may be fastened in the cache.
        lock: Option<CacheLock>,
        /// Device writes that go into the cache.
        dca: Option<Dca>,
        /// What brings lines before they are asked for.
        prefetcher: Option<Prefetcher>,
        /// Where the numbers come from.
        source: Cited,
        /// Where single keys come from, if elsewhere.
        source_of: Map<Cited>,
    }
}

choice! {
    /// How a prefetcher finds out what will be asked for.
    pub enum PrefetcherKind = "a kind of prefetcher" {
        /// The other line of a missed one's aligned pair.
        AdjacentLine = "adjacent-line",
        /// The lines after a missed one.
        NextLine = "next-line",
        /// Lines ahead of misses on neighbouring lines.
        Stream = "stream",
        /// Lines ahead of an instruction that advances by equal steps.
        Stride = "stride",
    }
}

part! {
    /// A hardware prefetcher of a cache. It fills the cache it belongs to.
    pub struct Prefetcher = "prefetcher" {
        /// How it finds out what will be asked for.
        kind: PrefetcherKind,
        /// Lines brought at a time.
        degree: u32 = 1,
        /// How far it runs ahead, in lines (stride: in strides).
        distance: u32 = 1,
        /// Streams, or instructions, followed at a time.
        streams: u32 = 16,
        /// Whether it goes on beyond the end of a page, if the next page of the program lies next to it in memory too.
        crosses_pages: bool = false,
        /// Where the numbers come from.
        source: Cited,
    }
}

part! {
    /// Cache lock: lines inside a window of addresses are not given up.
    pub struct CacheLock = "cache lock" {
        /// Address windows (address, mask, valid).
        windows: u32,
        /// Ways of each set that stay unlocked.
        min_unlocked_ways: u32 = 1,
        /// Where the numbers come from.
        source: Cited,
    }
}

part! {
    /// Direct cache access: device writes go into the cache instead of memory.
    pub struct Dca = "direct cache access" {
        /// Ways of each set that device writes may fill.
        ways: u32,
        /// Whether it is on when the machine starts.
        enabled: bool = true,
        /// Whether it happens only for locked lines.
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

    /// Lines it holds.
    pub fn lines(&self) -> u64 {
        self.size.bytes() / self.line.bytes().max(1)
    }

    /// Sets of all banks together.
    pub fn sets(&self) -> u64 {
        self.lines() / self.ways().max(1)
    }

    /// Its short name as lstopo writes it: L1d, L1i, L2, L3.
    pub fn short_name(&self) -> String {
        let suffix = match self.kind {
            CacheKind::Unified => "",
            CacheKind::Data => "d",
            CacheKind::Instruction => "i",
        };
        format!("L{}{suffix}", self.level)
    }
}
