//! The block of memory that translated code works on: the guest's registers, and what the code and the run loop tell each other.
//! Not the guest's memory.
//! Source: our own layout; translated code addresses fields by `offset_of!`, the general registers with one-byte displacements.

use longma_guest::{GuestMemory, host::attention::Attention};
use longma_loongarch::{Fcsr, State, Trap};

use crate::guest::Guest;

/// Entries of the table of indirect-jump targets. A power of two.
pub(crate) const JUMP_CACHE_ENTRIES: usize = 4096;

/// Bytes of the stack of return addresses that translated code keeps, besides its guard page.
pub(crate) const RETURN_STACK_BYTES: usize = 256 << 10;

/// Where an indirect jump to a guest address continues in host code.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct JumpCacheEntry {
    pub guest: u64,
    pub host: u64,
}

impl JumpCacheEntry {
    /// What matches no jump when it stands at `slot`: an address that belongs at another one. A guest may jump to any number at all.
    const fn empty(slot: usize) -> Self {
        Self { guest: if slot == 0 { 4 } else { 0 }, host: 0 }
    }
}

static EMPTY_JUMP_CACHE: [JumpCacheEntry; JUMP_CACHE_ENTRIES] = {
    let mut entries = [JumpCacheEntry::empty(1); JUMP_CACHE_ENTRIES];
    entries[0] = JumpCacheEntry::empty(0);
    entries
};

/// Why translated code came back to the run loop. `state.pc` is where the guest continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum ExitReason {
    /// A direct jump whose target had no translation.
    Unlinked = 0,
    /// An indirect jump or return whose target was not at hand.
    Indirect = 1,
    /// The attention flag was seen, or a quantum's end.
    Attention = 2,
    /// The instruction at the program counter is the interpreter's.
    Interpret = 3,
    /// The instruction at the program counter trapped; `Cpu::trap` says how.
    Trap = 4,
    /// The instruction at the program counter is `syscall 0`.
    Syscall = 5,
}

/// Everything translated code reaches through its base register.
#[repr(C, align(64))]
pub struct Cpu {
    /// The guest's registers.
    pub state: State,
    /// Nonzero when this thread must stop at the next safe point.
    pub attention: Attention,
    /// The first guest address that is out of range.
    pub(crate) limit: u64,
    /// The guest's MXCSR while translated code runs; its flags are moved to FCSR at every exit.
    pub(crate) guest_mxcsr: u32,
    /// The host's MXCSR.
    pub(crate) host_mxcsr: u32,
    /// The host's stack pointer while translated code runs.
    pub(crate) host_stack: u64,
    /// The pointer into the return stack while translated code does not run.
    pub(crate) return_stack: u64,
    /// Where `return_stack` starts when it is empty.
    pub(crate) return_stack_top: u64,
    /// What 64-bit and 32-bit floating-point sign manipulation needs in memory, each lane repeated.
    pub(crate) sign_masks: SignMasks,
    /// What vector instructions need in memory.
    pub(crate) vector_constants: VectorConstants,
    /// For CRC-32: the polynomial's inverse and the polynomial, in the CRC's bit order.
    pub(crate) crc_constants: [u64; 2],
    pub(crate) jump_cache: [JumpCacheEntry; JUMP_CACHE_ENTRIES],
    /// The host address of this thread's block counters, if blocks are counted.
    pub(crate) counters: u64,
    /// The counted block that translated code left for [`ExitReason::Interpret`].
    pub(crate) left: LeftBlock,
    /// The host address where the next record of the trace begins, if blocks are traced.
    pub(crate) trace_next: u64,
    /// A block that would begin its record here or behind does not run: the quantum is over.
    pub(crate) trace_limit: u64,
    /// What an instruction that translated code hands to the interpreter said.
    pub(crate) trap: Option<Trap>,
    /// What instructions see besides registers.
    pub(crate) guest: Guest,
}

/// A counted block that translated code left in its middle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct LeftBlock {
    /// The guest address of its first instruction.
    pub start: u64,
    /// Its instructions; 0 if there is no such block.
    pub instructions: u64,
}

/// Constants for absolute value, negation and sign copy.
#[repr(C, align(16))]
pub(crate) struct SignMasks {
    pub double: [u64; 2],
    pub single: [u32; 4],
    pub one_double: [f64; 2],
    pub one_single: [f32; 4],
}

/// Shift counts modulo the width of elements.
#[repr(C, align(32))]
pub(crate) struct VectorConstants {
    pub word_count: [u32; 8],
    pub doubleword_count: [u64; 4],
}

impl Cpu {
    /// What instructions see besides registers.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// A core of a thread that sees `memory`.
    pub(crate) fn new(state: State, guest: Guest) -> Box<Self> {
        let memory: &GuestMemory = guest.memory();
        let limit = memory.limit();
        let mut cpu = Box::new(Self {
            state,
            attention: Attention::default(),
            limit,
            guest_mxcsr: 0,
            host_mxcsr: HOST_MXCSR,
            host_stack: 0,
            return_stack: 0,
            return_stack_top: 0,
            sign_masks: SignMasks {
                double: [1 << 63; 2],
                single: [1 << 31; 4],
                one_double: [1.0; 2],
                one_single: [1.0; 4],
            },
            vector_constants: VectorConstants { word_count: [31; 8], doubleword_count: [63; 4] },
            crc_constants: [0x1_f701_1641, 0x1_db71_0641],
            jump_cache: EMPTY_JUMP_CACHE,
            counters: 0,
            left: LeftBlock::default(),
            trace_next: 0,
            trace_limit: 0,
            trap: None,
            guest,
        });
        cpu.load_rounding();
        cpu
    }

    /// Forgets every return address.
    pub(crate) fn forget_returns(&mut self) {
        self.return_stack = self.return_stack_top;
    }

    /// Forgets every indirect-jump target.
    pub(crate) fn forget_jumps(&mut self) {
        self.jump_cache = EMPTY_JUMP_CACHE;
    }

    /// Where the host code of guest address `pc` stands in the table of indirect-jump targets, if it stands there: as the translated
    /// code finds it, see `find_host_code`.
    pub(crate) fn jump_slot(pc: u64) -> usize {
        (pc >> 2) as usize % JUMP_CACHE_ENTRIES
    }

    /// Forgets the host code of one indirect-jump target.
    pub(crate) fn forget_jump(&mut self, pc: u64) {
        let slot = Self::jump_slot(pc);
        if self.jump_cache[slot].guest == pc {
            self.jump_cache[slot] = JumpCacheEntry::empty(slot);
        }
    }

    /// Puts FCSR's rounding mode into the MXCSR that translated code will run with.
    pub(crate) fn load_rounding(&mut self) {
        // FCSR: 0 nearest, 1 zero, 2 up, 3 down. MXCSR: 0 nearest, 1 down, 2 up, 3 zero.
        let rounding = [0u32, 3, 2, 1][(self.state.fcsr.0 >> 8 & 3) as usize];
        self.guest_mxcsr = GUEST_MXCSR | rounding << 13;
    }

    /// Moves the exceptions that translated code raised into FCSR's flags.
    pub(crate) fn collect_exceptions(&mut self) {
        let raised = self.guest_mxcsr & 0x3d;
        if raised != 0 {
            self.guest_mxcsr &= !0x3f;
            self.state.fcsr = with_flags(self.state.fcsr, raised);
        }
    }

    /// True while only the interpreter is exact: the guest wants traps for floating-point exceptions, or has its floating-point
    /// registers renamed (x87 stack mode).
    pub(crate) fn must_interpret(&self) -> bool {
        self.state.fcsr.0 & 0x1f != 0 || self.state.lbt.stack_mode
    }
}

/// Every exception masked, flush-to-zero off: what Rust expects.
const HOST_MXCSR: u32 = 0x1f80;

/// Every exception masked but invalid operation: the results that differ between the host and LoongArch are those of invalid
/// operations, and the fault handler hands these instructions to the interpreter.
const GUEST_MXCSR: u32 = 0x1f80 & !0x80;

/// FCSR with the flags of MXCSR's sticky bits `raised` added.
fn with_flags(fcsr: Fcsr, raised: u32) -> Fcsr {
    // MXCSR: IE 0, DE 1, ZE 2, OE 3, UE 4, PE 5. FCSR flags: I(nexact) 16, U 17, O 18, Z 19, V 20.
    let mut flags = 0;
    for (from, to) in [(0, 20), (2, 19), (3, 18), (4, 17), (5, 16)] {
        flags |= (raised >> from & 1) << to;
    }
    Fcsr(fcsr.0 | flags)
}
