//! The cost of each firmware step on the NIC's processor and of each library step on the host's processor, as counted
//! instructions. The firmware's code is unpublished; each row counts the instructions that its loop or function needs.
//!
//! Source: LANai timing after LLVM's Lanai target (one instruction per cycle, load results available after two cycles,
//! branches with one delay slot); registers after Myricom, "LANai 4.X" (1996): a DMA is started by writing address,
//! address and count.

/// The instructions of a step on the NIC's processor, as compiled from C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirmwareStep {
    /// The name in the table.
    pub name: &'static str,
    /// The operations counted.
    pub what: &'static str,
    /// Arithmetic, moves and compares.
    pub alu: u32,
    /// Loads from SRAM or from the NIC's registers.
    pub loads: u32,
    /// Stores.
    pub stores: u32,
    /// Branches taken, calls and returns.
    pub branches: u32,
}

/// A load takes two cycles if the next instruction needs its result, as is common in code that follows pointers.
const LOAD_CYCLES: u32 = 2;

/// A branch and its delay slot, which the compiler rarely fills.
const BRANCH_CYCLES: u32 = 2;

impl FirmwareStep {
    const fn new(name: &'static str, what: &'static str, [alu, loads, stores, branches]: [u32; 4]) -> Self {
        Self { name, what, alu, loads, stores, branches }
    }

    /// The cost in cycles of the NIC's processor.
    pub const fn cycles(&self) -> u32 {
        self.alu + LOAD_CYCLES * self.loads + self.stores + BRANCH_CYCLES * self.branches
    }
}

macro_rules! steps {
    ($($(#[doc = $doc:literal])* $ident:ident = $name:literal, $what:literal, $mix:expr;)*) => {
        $($(#[doc = $doc])* pub const $ident: FirmwareStep = FirmwareStep::new($name, $what, $mix);)*

        /// All steps in the order of the table.
        pub const ALL: &[FirmwareStep] = &[$($ident),*];
    };
}

steps! {
    /// BVIA.
    POLL_DOORBELL = "poll doorbell", "load the doorbell, test it, next queue", [2, 1, 0, 1];
    /// Both firmwares.
    LOOP = "main loop", "load the interrupt status, test the receive bit, back to the top", [2, 1, 0, 2];
    /// BVIA.
    TAKE_DOORBELL = "take doorbell", "read both words, clear them, find the VI's record", [4, 4, 2, 1];
    /// BVIA.
    LOOK_UP = "look up translation", "page number, TLB index, compare the tag, load the frame, add the offset", [6, 3, 0, 2];
    /// BVIA.
    MISS = "translation missed", "address of the entry in the host's table, request 32 bytes of it", [6, 3, 2, 2];
    /// BVIA.
    FILL = "fill translation", "store tag and frame of the fetched entry", [4, 2, 2, 1];
    /// Both firmwares.
    START_HOST_DMA = "start host DMA", "host address, SRAM address, direction, count to their registers", [3, 2, 4, 2];
    /// Both firmwares.
    FINISH_HOST_DMA = "finish host DMA", "load the interrupt status, test, clear the bit", [2, 1, 1, 1];
    /// BVIA.
    PARSE_DESCRIPTOR = "parse descriptor", "eight words of control segment; operation, count, length, VI state, MTU", [16, 14, 4, 6];
    /// BVIA.
    PARSE_SEGMENT = "parse segment", "address, handle, length; protection tag against the VI's", [8, 5, 2, 3];
    /// Both firmwares.
    NEXT_PIECE = "next piece", "bytes to the page's end or the segment's, advance both addresses", [8, 2, 2, 2];
    /// Both firmwares.
    BUILD_HEADER = "build header", "route of the peer, eight words of header", [8, 3, 8, 2];
    /// Both firmwares.
    START_SEND = "start send DMA", "first and last address to their registers", [3, 2, 3, 2];
    /// Both firmwares.
    FINISH_SEND = "finish send DMA", "load the interrupt status, test, clear the bit", [2, 1, 1, 1];
    /// Both firmwares.
    BUILD_COMPLETION = "build completion", "status and length words, their host address", [5, 4, 4, 2];
    /// Both firmwares.
    FINISH = "finish", "free the buffer, advance the queue, count", [6, 4, 4, 2];
    /// Both firmwares.
    ACCEPT_PACKET = "accept packet", "clear the receive bit, length from the receive pointer", [4, 4, 2, 2];
    /// Both firmwares.
    ARM_RECEIVE = "arm receive", "the other buffer's address and limit to the registers", [4, 2, 3, 1];
    /// Both firmwares.
    PARSE_HEADER = "parse header", "kind, VI number within bounds, its state and peer, length", [12, 9, 2, 5];
    /// BVIA.
    FIND_RECEIVE = "find receive descriptor", "head of the VI's receive queue, its address", [5, 4, 2, 2];
    /// Both firmwares: RDMA.
    CHECK_RDMA = "check RDMA", "region by handle, tag, bounds, permission", [10, 7, 0, 4];
    /// MyVIA.
    POLL_SMALL_RING = "poll small ring", "load head and tail, compare, next queue", [3, 2, 0, 1];
    /// MyVIA.
    TAKE_PHYSICAL = "take physical descriptor", "six words, operation and length, advance the head", [10, 6, 4, 3];
    /// MyVIA.
    PHYSICAL_SEGMENT = "physical segment", "address and length of one more piece", [4, 3, 0, 1];
    /// MyVIA.
    LOW_WATER = "low-water check", "load the flag, compare the remaining entries with the mark", [3, 2, 0, 1];
    /// MyVIA.
    INTERRUPT = "interrupt", "store the ring number, set the bit", [2, 1, 2, 1];
    /// MyVIA.
    CREATE_MACHINE = "create state machine", "take a free record, set state and buffer, link it", [6, 4, 5, 2];
    /// MyVIA.
    VISIT = "visit state machine", "load record and state, jump through the table, return, next", [4, 4, 0, 3];
    /// MyVIA.
    TRY_LOCK = "try lock", "load the lock, test, store the owner", [2, 1, 1, 1];
    /// MyVIA.
    UNLOCK = "unlock", "store no owner", [1, 0, 2, 0];
    /// MyVIA.
    CHANGE_STATE = "change state", "store the next state", [1, 0, 2, 0];
    /// MyVIA.
    RETIRE = "retire state machine", "unlink the record, free it", [5, 3, 4, 2];
}

/// The cost of library operations, in cycles of the host's processor. A Pentium III executes about one instruction per
/// cycle in such code (three-wide decoding, branches and dependent loads). The counts are those of this library in its
/// simplest form.
pub mod host {
    /// Fills in a descriptor's control segment and links it.
    pub const BUILD_DESCRIPTOR: u64 = 50;
    /// Fills in a data segment.
    pub const BUILD_SEGMENT: u64 = 15;
    /// MyVIA: finds the region in a table mapped by the kernel, checks bounds and tag, and translates the address.
    pub const TRANSLATE: u64 = 40;
    /// Polls a status word that has not changed: a load that hits the cache, a test and a branch.
    pub const POLL: u64 = 20;
    /// Takes a complete descriptor off its queue.
    pub const COLLECT: u64 = 60;
    /// MyVIA: puts a physical descriptor into the big ring.
    pub const PUT_BIG: u64 = 40;
    /// MyVIA's interrupt handler per descriptor moved, without programmed I/O.
    pub const REFILL: u64 = 40;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_in_the_book_is_the_one_in_the_code() {
        let book = include_str!("../../../../docs/src/design/myrinet.md");
        for step in ALL {
            let FirmwareStep { name, what, alu, loads, stores, branches } = step;
            let row =
                format!("| {name} | {what} | {alu} | {loads} | {stores} | {branches} | {} |", step.cycles());
            assert!(book.contains(&row), "docs/src/design/myrinet.md lacks\n{row}");
        }
    }
}
