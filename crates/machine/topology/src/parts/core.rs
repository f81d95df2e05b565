//! Cores: widths, queues, units, predictors, TLBs, and what a data-moving core has beside them.
//! Not an instruction's latency one by one: only classes; an instruction set's table knows the rest.
//! Source: terms after Hennessy and Patterson; in-core store, IDMA and CAM after the Godson-3 data-path paper (2012).

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
        /// Any other.
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
        /// Taken if it goes back.
        Static = "static",
        /// A two-bit counter a branch.
        Bimodal = "bimodal",
        /// Counters by the branch's own history.
        TwoLevel = "two-level",
        /// Counters by address and global history.
        Gshare = "gshare",
        /// A local and a global predictor, and one that chooses between them.
        Tournament = "tournament",
        /// Weights of the global history's bits.
        Perceptron = "perceptron",
        /// Tagged tables of geometrically longer histories.
        Tage = "tage",
    }
}

choice! {
    /// What a front end does between a branch that it takes for another and the moment that shows it.
    pub enum WrongPath = "a way to go on the wrong path" {
        /// It waits: nothing comes into the caches.
        NotFetched = "not-fetched",
        /// It fetches instruction lines straight on from where the branch does not go, within the branch's page.
        Fetched = "fetched",
    }
}

choice! {
    /// When a load may pass older stores whose addresses are not known yet.
    pub enum LoadOrder = "a way to order loads behind stores" {
        /// When none of them will turn out to be to its address: no core knows that.
        Ideal = "ideal",
        /// Never.
        Conservative = "conservative",
        /// Always.
        Blind = "blind",
        /// When its counter says that it has lately been right to.
        Counters = "counters",
        /// When none of them is one that it, or a load like it, has collided with.
        StoreSets = "store-sets",
    }
}

choice! {
    /// A table of what was measured of single instructions.
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
        /// Hardware threads.
        threads: u32 = 1,
        /// Private caches, by name.
        caches: Vec<Name>,
        /// Whether instructions may execute out of program order.
        out_of_order: bool = true,
        /// Instructions fetched a cycle.
        fetch_width: Option<u32>,
        /// Instructions decoded and renamed a cycle.
        decode_width: Option<u32>,
        /// Operations issued to units a cycle.
        issue_width: Option<u32>,
        /// Instructions retired a cycle.
        retire_width: Option<u32>,
        /// Reorder buffer.
        rob_entries: Option<u32>,
        /// Integer scheduler.
        int_queue_entries: Option<u32>,
        /// Floating-point scheduler.
        fp_queue_entries: Option<u32>,
        /// Memory scheduler, or the joint load/store queue of cores that have one.
        memory_queue_entries: Option<u32>,
        /// Loads in flight.
        load_queue_entries: Option<u32>,
        /// Stores in flight.
        store_queue_entries: Option<u32>,
        /// Physical integer registers.
        int_registers: Option<u32>,
        /// Physical floating-point or vector registers.
        fp_registers: Option<u32>,
        /// Width of a vector register.
        vector_width: Option<Width>,
        /// Smallest page.
        page_size: Option<Size>,
        /// Branch prediction.
        branch: Option<Branch>,
        /// Loads that pass older stores.
        memory_order: Option<MemoryOrder>,
        /// Groups of like execution units.
        units: Vec<Unit>,
        /// Latency and rate of operation classes.
        operations: Map<Timing>,
        /// Measured table of single instructions' timing that refines the classes.
        instruction_timing: Option<InstructionTiming>,
        /// Translation look-aside buffers.
        tlbs: Vec<Tlb>,
        /// What brings a translation that no TLB has.
        tlb_refill: TlbRefill = TlbRefill::Walker,
        /// Page walks in hardware that a core has under way at most.
        page_walkers: u32 = 1,
        /// Scratchpad in the core.
        store: Option<InCoreStore>,
        /// Copy engine in the core.
        idma: Option<Idma>,
        /// Associative table in the core.
        cam: Option<Cam>,
        /// Where the numbers come from.
        source: Cited,
        /// Where single keys come from, if elsewhere.
        source_of: Map<Cited>,
    }
}

part! {
    /// Branch prediction of a core.
    pub struct Branch = "branch prediction" {
        /// Kind of direction predictor.
        predictor: Predictor,
        /// From fetching the wrong instruction to fetching the right one.
        mispredict: Option<Latency>,
        /// Branch target buffer.
        btb_entries: Option<u32>,
        /// Return address stack.
        ras_entries: Option<u32>,
        /// Entries of the direction tables.
        table_entries: Option<u32>,
        /// Branches of global history.
        history_bits: Option<u32>,
        /// What is fetched behind a mispredicted branch until it is resolved.
        wrong_path: WrongPath = WrongPath::NotFetched,
        /// Where the numbers come from.
        source: Cited,
    }
}

part! {
    /// How loads of a core that executes out of order pass older stores. A load that should not have is fetched again with all that follows.
    pub struct MemoryOrder = "memory order" {
        /// When a load may pass older stores whose addresses are not known yet.
        loads: LoadOrder,
        /// Entries of the predictor's table, for `counters` and `store-sets`: 1 to 1048576, 1024 if left out.
        table_entries: Option<u32>,
        /// Where the numbers come from.
        source: Cited,
    }
}

part! {
    /// A group of like execution units.
    pub struct Unit = "unit" {
        /// Its name.
        name: String,
        /// How many there are.
        count: u32 = 1,
        /// What they execute.
        operations: Vec<Operation>,
        /// Width of their data path.
        width: Option<Width>,
    }
}

part! {
    /// Timing of a class of operations.
    pub struct Timing = "operation" {
        /// From issue to a dependent operation's issue.
        latency: Cycles,
        /// Cycles between two operations on one unit.
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
    /// What brings a translation that no TLB has.
    pub enum TlbRefill = "a way to refill TLBs" {
        /// Hardware that walks the page table while the core goes on.
        Walker = "walker",
        /// An exception: when all that is older has retired, the kernel's handler runs, and from the access on everything is fetched
        /// again.
        Exception = "exception",
    }
}

part! {
    /// A translation look-aside buffer.
    pub struct Tlb = "tlb" {
        /// 1 is looked up first.
        level: u32 = 1,
        /// What it translates.
        kind: TlbKind,
        /// Entries.
        entries: u32,
        /// Ways of associativity; left out for a fully associative TLB.
        ways: Option<u32>,
        /// Pages one entry maps (2 where an entry holds an even and an odd page).
        pages_per_entry: u32 = 1,
        /// Page sizes it holds; left out for any.
        page_sizes: Vec<Size>,
        /// Added to a load that hits here and not before.
        latency: Option<Latency>,
        /// Added to a lone load that misses here, when no further level hits: the walk, or the exception with its handler and what it takes
        /// to come to the load again.
        miss: Option<Latency>,
        /// Where the numbers come from.
        source: Cited,
    }
}

part! {
    /// In-core store: a scratchpad of vector registers that software manages.
    pub struct InCoreStore = "in-core store" {
        /// Registers.
        registers: u32,
        /// Width of a register.
        width: Width,
        /// From issue to use by the vector unit.
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
        /// Width of one beat each way; one beat a cycle.
        beat: Width,
        /// Tags the core and the engine share, a channel.
        tags: u32,
        /// Bytes one tag stands for, at most.
        tag_granule: Size,
        /// Outstanding line requests.
        outstanding: u32,
        /// Writing one configuration register.
        register_write: Latency,
        /// Reading a tag or status register.
        register_read: Latency,
        /// From the start bit to the first request.
        start: Latency,
        /// From a tag's becoming ready to the handler's first instruction.
        interrupt: Option<Latency>,
        /// Where the numbers come from.
        source: Cited,
        /// Where single keys come from, if elsewhere.
        source_of: Map<Cited>,
    }
}

part! {
    /// CAM: an associative table that instructions write and search.
    pub struct Cam = "cam" {
        /// Entries.
        entries: u32,
        /// Width of a key.
        key: Width,
        /// Width of a value.
        value: Width,
        /// Width of the address-space tag.
        tag: Width,
        /// A search.
        search: Latency,
        /// Writing an entry.
        write: Latency,
        /// Where the numbers come from.
        source: Cited,
        /// Where single keys come from, if elsewhere.
        source_of: Map<Cited>,
    }
}
