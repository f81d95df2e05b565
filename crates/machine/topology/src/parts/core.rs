//! Cores: widths, queues, execution units, predictors, TLBs, and the in-core store, IDMA engine and CAM of a data-path
//! core. Timing is by class of operations; the tables of `longma-timing` refine it for single instructions.
//!
//! Source: terms after Hennessy and Patterson; in-core store, IDMA and CAM after the Godson-3 data-path paper (2012).

use crate::module::Module;
use crate::read::{Cited, Map, Name, choice, part};
use crate::units::{Cycles, Frequency, Latency, Size, Width};

choice! {
    /// The instruction set a core executes.
    pub enum Isa = "an instruction set" {
        /// LoongArch, 64 bit.
        LoongArch64 = "loongarch64",
        /// MIPS, 64 bit (LoongISA included).
        Mips64 = "mips64",
        /// x86, 64 bit.
        X86_64 = "x86-64",
        /// x86, 32 bit.
        X86 = "x86",
        /// Arm, 64 bit.
        Aarch64 = "aarch64",
        /// RISC-V, 64 bit.
        Riscv64 = "riscv64",
        /// Any other instruction set.
        Other = "other",
    }
}

choice! {
    /// A class of operations that share units and timing.
    pub enum Operation = "a class of operations" {
        /// Add, logic, shift, compare.
        Integer = "integer",
        /// Integer multiply.
        IntegerMultiply = "integer-multiply",
        /// Integer divide.
        IntegerDivide = "integer-divide",
        /// Branches and jumps.
        Branch = "branch",
        /// Address generation and load.
        Load = "load",
        /// Address generation and store.
        Store = "store",
        /// Floating-point add, subtract.
        FloatAdd = "float-add",
        /// Floating-point multiply.
        FloatMultiply = "float-multiply",
        /// Fused multiply-add.
        FloatFma = "float-fma",
        /// Floating-point divide.
        FloatDivide = "float-divide",
        /// Conversions and moves between register files.
        FloatConvert = "float-convert",
        /// Vector integer.
        VectorInteger = "vector-integer",
        /// Vector floating point.
        VectorFloat = "vector-float",
    }
}

choice! {
    /// How the direction of a branch is predicted.
    pub enum Predictor = "a branch predictor" {
        /// Backward branches are predicted taken.
        Static = "static",
        /// A two-bit counter per branch.
        Bimodal = "bimodal",
        /// Counters indexed by the branch's own history.
        TwoLevel = "two-level",
        /// Counters indexed by address and global history.
        Gshare = "gshare",
        /// A local and a global predictor, and a third one that chooses between them.
        Tournament = "tournament",
        /// A weight for each bit of the global history.
        Perceptron = "perceptron",
        /// Tagged tables indexed with geometrically increasing history lengths.
        Tage = "tage",
        /// As the WebAssembly module `predictor_module` predicts.
        Plugin = "plugin",
    }
}

choice! {
    /// How the target of an indirect branch is predicted.
    pub enum IndirectPredictor = "a predictor of indirect targets" {
        /// The branch's last target.
        LastTarget = "last-target",
        /// A tagged table indexed by the branch and the path of recent indirect targets.
        TargetCache = "target-cache",
        /// Tagged tables indexed with geometrically increasing lengths of the history of targets and conditional branches.
        Ittage = "ittage",
        /// As the WebAssembly module `indirect_module` predicts.
        Plugin = "plugin",
    }
}

/// Maximum number of indirect targets of a predictor.
pub const MAX_INDIRECT_ENTRIES: u32 = 1 << 20;

/// Lengths of the history of a predictor of indirect targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLengths {
    /// Minimum length.
    pub min: u32,
    /// Maximum length.
    pub max: u32,
    /// Length if the machine file states none.
    pub default: u32,
}

impl IndirectPredictor {
    /// The lengths of its history: in indirect branches for [`TargetCache`](Self::TargetCache), in bits for
    /// [`Ittage`](Self::Ittage); `None` if it uses no history, or if a plug-in interprets the length. The defaults are
    /// estimates: four targets are between the short paths that suit small tables and the six targets that suit unlimited
    /// ones (Driesen and Hölzle, ISCA 1998); 128 bits are the longest history of the TAGE predictor.
    pub fn history(self) -> Option<HistoryLengths> {
        match self {
            Self::LastTarget | Self::Plugin => None,
            Self::TargetCache => Some(HistoryLengths { min: 1, max: 16, default: 4 }),
            Self::Ittage => Some(HistoryLengths { min: 10, max: 256, default: 128 }),
        }
    }
}

choice! {
    /// What the front end fetches after a mispredicted branch until it is resolved.
    pub enum WrongPath = "a wrong-path policy" {
        /// Nothing: the wrong path does not affect the caches.
        NotFetched = "not-fetched",
        /// The instruction lines of the wrong path in sequential order, up to the end of the branch's page.
        Fetched = "fetched",
    }
}

choice! {
    /// When a load may pass older stores with unknown addresses.
    pub enum LoadOrder = "a load ordering policy" {
        /// If none of them has the same address, which no real core can know in advance.
        Ideal = "ideal",
        /// Never.
        Conservative = "conservative",
        /// Always.
        Blind = "blind",
        /// If its counter predicts no conflict.
        Counters = "counters",
        /// If none of them is in its store set: the stores that this load, or a load with the same table entry,
        /// conflicted with earlier.
        StoreSets = "store-sets",
    }
}

choice! {
    /// A table of measured timings of single instructions.
    pub enum InstructionTiming = "a table of instruction timing" {
        /// The LA464 core, as measured on a Loongson 3C5000.
        La464 = "la464",
    }
}

part! {
    /// A type of core.
    pub struct Core = "core" {
        /// Its full name.
        title: Option<String>,
        /// The instruction set.
        isa: Isa,
        /// Extensions of the instruction set.
        extensions: Vec<String>,
        /// Clock.
        clock: Frequency,
        /// Number of hardware threads.
        threads: u32 = 1,
        /// Private caches, by name.
        caches: Vec<Name>,
        /// Whether instructions may execute out of program order.
        out_of_order: bool = true,
        /// Instructions fetched per cycle.
        fetch_width: Option<u32>,
        /// Instructions decoded and renamed per cycle.
        decode_width: Option<u32>,
        /// Operations issued to units per cycle.
        issue_width: Option<u32>,
        /// Instructions retired per cycle.
        retire_width: Option<u32>,
        /// Entries of the reorder buffer.
        rob_entries: Option<u32>,
        /// Entries of the integer scheduler; by default the reorder buffer is the limit.
        int_queue_entries: Option<u32>,
        /// Entries of the floating-point scheduler; by default the integer scheduler serves both.
        fp_queue_entries: Option<u32>,
        /// Entries of the memory scheduler, or of a joint load/store queue.
        memory_queue_entries: Option<u32>,
        /// Entries of the load queue.
        load_queue_entries: Option<u32>,
        /// Entries of the store queue.
        store_queue_entries: Option<u32>,
        /// Physical integer registers.
        int_registers: Option<u32>,
        /// Physical floating-point or vector registers.
        fp_registers: Option<u32>,
        /// Width of a vector register.
        vector_width: Option<Width>,
        /// Size of the smallest page.
        page_size: Option<Size>,
        /// Branch prediction.
        branch: Option<Branch>,
        /// How loads pass older stores.
        memory_order: Option<MemoryOrder>,
        /// Groups of identical execution units.
        units: Vec<Unit>,
        /// Latency and throughput of each class of operations.
        operations: Map<Timing>,
        /// A table of measured timings of single instructions, used before the classes.
        instruction_timing: Option<InstructionTiming>,
        /// Translation lookaside buffers.
        tlbs: Vec<Tlb>,
        /// How a translation is loaded after a miss in all TLBs.
        tlb_refill: TlbRefill = TlbRefill::Walker,
        /// Maximum number of concurrent hardware page walks.
        page_walkers: u32 = 1,
        /// Scratchpad in the core.
        store: Option<InCoreStore>,
        /// Copy engine in the core.
        idma: Option<Idma>,
        /// Associative table in the core.
        cam: Option<Cam>,
        /// Where the numbers come from.
        source: Cited,
        /// Sources of single keys, if they differ.
        source_of: Map<Cited>,
    }
}

part! {
    /// Branch prediction of a core.
    pub struct Branch = "branch prediction" {
        /// Kind of direction predictor.
        predictor: Predictor,
        /// The [plug-in](plug-ins.md) of the predictor "plugin".
        predictor_module: Option<Module>,
        /// Time from fetching the first wrong instruction to fetching the correct one.
        mispredict: Option<Latency>,
        /// Entries of the branch target buffer.
        btb_entries: Option<u32>,
        /// Entries of the return address stack.
        ras_entries: Option<u32>,
        /// Entries of the direction tables.
        table_entries: Option<u32>,
        /// Branches in the global history.
        history_bits: Option<u32>,
        /// Predictor of the targets of indirect jumps and calls.
        indirect: IndirectPredictor = IndirectPredictor::TargetCache,
        /// The [plug-in](plug-ins.md) of the predictor "plugin" of indirect targets.
        indirect_module: Option<Module>,
        /// Targets that it holds: 1 to 1048576; by default 512.
        indirect_entries: Option<u32>,
        /// Length of its history: for `target-cache` 1 to 16 indirect branches (4); for `ittage` 10 to 256 bits (128),
        /// one per conditional and ten per indirect branch.
        indirect_history: Option<u32>,
        /// Fetch after a mispredicted branch until it is resolved.
        wrong_path: WrongPath = WrongPath::NotFetched,
        /// Where the numbers come from.
        source: Cited,
    }
}

part! {
    /// How loads of an out-of-order core pass older stores. A load that passed a conflicting store is fetched again,
    /// with all following instructions.
    pub struct MemoryOrder = "memory order" {
        /// When a load may pass older stores whose addresses are not known yet.
        loads: LoadOrder,
        /// Entries of the table of `counters` and `store-sets`, 1 to 1048576; by default 1024.
        table_entries: Option<u32>,
        /// Where the numbers come from.
        source: Cited,
    }
}

part! {
    /// A group of identical execution units.
    pub struct Unit = "unit" {
        /// Its name.
        name: String,
        /// Number of units.
        count: u32 = 1,
        /// The classes of operations that they execute.
        operations: Vec<Operation>,
        /// Width of their data path.
        width: Option<Width>,
    }
}

part! {
    /// Timing of a class of operations.
    pub struct Timing = "operation" {
        /// Cycles from issue to the issue of a dependent operation.
        latency: Cycles,
        /// Cycles between operations issued to one unit.
        interval: Cycles = Cycles::new(1),
        /// Where the numbers come from.
        source: Cited,
    }
}

choice! {
    /// What a TLB translates.
    pub enum TlbKind = "a kind of TLB" {
        /// Instruction and data addresses.
        Joint = "joint",
        /// Data addresses.
        Data = "data",
        /// Instruction addresses.
        Instruction = "instruction",
    }
}

choice! {
    /// How a translation is loaded after a miss in all TLBs.
    pub enum TlbRefill = "a TLB refill method" {
        /// A hardware walker reads the page table while the core continues.
        Walker = "walker",
        /// An exception: once all older instructions have retired, the kernel's handler runs, and fetch resumes at the
        /// access.
        Exception = "exception",
    }
}

part! {
    /// A translation lookaside buffer.
    pub struct Tlb = "tlb" {
        /// Level; 1 is looked up first.
        level: u32 = 1,
        /// What it translates.
        kind: TlbKind,
        /// Number of entries.
        entries: u32,
        /// Ways of associativity; omit for a fully associative TLB.
        ways: Option<u32>,
        /// Pages mapped by an entry (2 if an entry maps an even and an odd page).
        pages_per_entry: u32 = 1,
        /// Page sizes supported; by default all.
        page_sizes: Vec<Size>,
        /// Added to a load that hits here after misses in the levels before.
        latency: Option<Latency>,
        /// Added to a single load that misses in all levels: the page walk, or the exception and its handler until the
        /// load issues again.
        miss: Option<Latency>,
        /// Where the numbers come from.
        source: Cited,
    }
}

part! {
    /// In-core store: a scratchpad of vector registers that software manages.
    pub struct InCoreStore = "in-core store" {
        /// Number of registers.
        registers: u32,
        /// Width of a register.
        width: Width,
        /// Time from issue to use by the vector unit.
        latency: Latency,
        /// Where the numbers come from.
        source: Cited,
    }
}

impl InCoreStore {
    /// Capacity.
    pub fn size(&self) -> Size {
        Size::new(u64::from(self.registers) * self.width.bits() / 8)
    }
}

part! {
    /// IDMA: the copy engine in a core.
    pub struct Idma = "idma" {
        /// Channels that read memory.
        read_channels: u32,
        /// Channels that write memory.
        write_channels: u32,
        /// Width of a beat in each direction; one beat takes a cycle.
        beat: Width,
        /// Tags that a channel shares with the core.
        tags: u32,
        /// Maximum number of bytes that a tag covers.
        tag_granule: Size,
        /// Maximum number of outstanding line requests.
        outstanding: u32,
        /// Time to write a configuration register.
        register_write: Latency,
        /// Time to read a tag or status register.
        register_read: Latency,
        /// Time from setting the start bit to the first request.
        start: Latency,
        /// Time from a tag becoming ready to the first instruction of the handler.
        interrupt: Option<Latency>,
        /// Where the numbers come from.
        source: Cited,
        /// Sources of single keys, if they differ.
        source_of: Map<Cited>,
    }
}

part! {
    /// CAM: an associative table that the core writes and searches with instructions.
    pub struct Cam = "cam" {
        /// Number of entries.
        entries: u32,
        /// Width of a key.
        key: Width,
        /// Width of a value.
        value: Width,
        /// Width of the address-space tag.
        tag: Width,
        /// Time of a search.
        search: Latency,
        /// Time to write an entry.
        write: Latency,
        /// Where the numbers come from.
        source: Cited,
        /// Sources of single keys, if they differ.
        source_of: Map<Cited>,
    }
}
