//! The memory block that translated code addresses through its base register: the guest's registers and the state
//! shared with the run loop. Code addresses fields by `offset_of!`, and general registers with one-byte displacements.

use longma_guest::{GuestMemory, host::attention::Attention};
use longma_loongarch::{Fcsr, State, Trap};

use crate::guest::Guest;

/// Entries in the jump cache. A power of two.
pub(crate) const JUMP_CACHE_ENTRIES: usize = 4096;

/// Size of the return stack of translated code, without its guard page.
pub(crate) const RETURN_STACK_BYTES: usize = 256 << 10;

/// The budget of a core that may execute any number of instructions.
pub(crate) const UNLIMITED_BUDGET: u64 = u64::MAX;

/// Maps a guest address to host code for indirect jumps.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct JumpCacheEntry {
    pub guest: u64,
    pub host: u64,
}

impl JumpCacheEntry {
    /// An entry for `slot` that matches no jump, because its address maps to another slot. No single address could mark
    /// an empty entry, since a guest may jump to any address.
    const fn empty(slot: usize) -> Self {
        Self { guest: if slot == 0 { 4 } else { 0 }, host: 0 }
    }
}

static EMPTY_JUMP_CACHE: [JumpCacheEntry; JUMP_CACHE_ENTRIES] = {
    let mut entries = [JumpCacheEntry::empty(1); JUMP_CACHE_ENTRIES];
    entries[0] = JumpCacheEntry::empty(0);
    entries
};

/// Why translated code returned to the run loop. `state.pc` is where the guest continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum ExitReason {
    /// A direct jump to a target without a translation.
    Unlinked = 0,
    /// An indirect jump or return whose target is not in the jump cache.
    Indirect = 1,
    /// The attention flag is set, or the quantum has ended.
    Attention = 2,
    /// The interpreter must execute the instruction at the program counter.
    Interpret = 3,
    /// The instruction at the program counter trapped; see `Cpu::trap`.
    Trap = 4,
    /// The instruction at the program counter is `syscall 0`.
    Syscall = 5,
}

/// All the state that translated code accesses through its base register.
#[repr(C, align(64))]
pub struct Cpu {
    /// The guest's registers.
    pub state: State,
    /// Set when this thread must stop at the next safe point.
    pub attention: Attention,
    /// The end of the guest address space.
    pub(crate) limit: u64,
    /// The guest's MXCSR while translated code runs. Its exception flags move to FCSR at each exit.
    pub(crate) guest_mxcsr: u32,
    /// The host's MXCSR.
    pub(crate) host_mxcsr: u32,
    /// The host stack pointer while translated code runs.
    pub(crate) host_stack: u64,
    /// The return stack pointer while translated code does not run.
    pub(crate) return_stack: u64,
    /// The pointer of an empty return stack.
    pub(crate) return_stack_top: u64,
    /// Constants for 64-bit and 32-bit floating-point sign operations, repeated in each lane.
    pub(crate) sign_masks: SignMasks,
    /// Masks for vector shifts.
    pub(crate) shift_count_masks: ShiftCountMasks,
    /// Constants of the Barrett reduction for CRC-32: µ and the polynomial, bit-reflected.
    pub(crate) crc_constants: [u64; 2],
    /// The jump cache: host code for targets of indirect jumps.
    pub(crate) jump_cache: [JumpCacheEntry; JUMP_CACHE_ENTRIES],
    /// The host address of this thread's block counters, if blocks are counted.
    pub(crate) counters: u64,
    /// The counted block that translated code left with [`ExitReason::Interpret`].
    pub(crate) interrupted_block: InterruptedBlock,
    /// The instructions that the core may still execute, if it is metered. Each block subtracts its length before it
    /// begins.
    pub(crate) budget: u64,
    /// The host address of the next trace record, if blocks are traced.
    pub(crate) trace_next: u64,
    /// The end of the trace buffer for this quantum: a block does not start if its record would begin at or after this
    /// address.
    pub(crate) trace_limit: u64,
    /// The trap of an instruction that translated code passed to the interpreter.
    pub(crate) trap: Option<Trap>,
    /// The environment of instructions: memory, clock and configuration words.
    pub(crate) guest: Guest,
}

/// A counted block that translated code left before its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct InterruptedBlock {
    /// The guest address of its first instruction.
    pub start: u64,
    /// Its number of instructions; 0 if there is no such block.
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

/// Masks that reduce shift counts modulo the element width.
#[repr(C, align(32))]
pub(crate) struct ShiftCountMasks {
    pub word: [u32; 8],
    pub doubleword: [u64; 4],
}

impl Cpu {
    /// The environment of instructions.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// Creates the state of a core that accesses `guest`.
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
            shift_count_masks: ShiftCountMasks { word: [31; 8], doubleword: [63; 4] },
            crc_constants: [0x1_f701_1641, 0x1_db71_0641],
            jump_cache: EMPTY_JUMP_CACHE,
            counters: 0,
            interrupted_block: InterruptedBlock::default(),
            budget: UNLIMITED_BUDGET,
            trace_next: 0,
            trace_limit: 0,
            trap: None,
            guest,
        });
        cpu.load_rounding();
        cpu
    }

    /// Empties the return stack.
    pub(crate) fn clear_return_stack(&mut self) {
        self.return_stack = self.return_stack_top;
    }

    /// Clears the jump cache.
    pub(crate) fn clear_jump_cache(&mut self) {
        self.jump_cache = EMPTY_JUMP_CACHE;
    }

    /// The slot of guest address `pc` in the jump cache. `find_host_code` emits the same computation.
    pub(crate) fn jump_slot(pc: u64) -> usize {
        (pc >> 2) as usize % JUMP_CACHE_ENTRIES
    }

    /// Evicts one target from the jump cache.
    pub(crate) fn evict_jump(&mut self, pc: u64) {
        let slot = Self::jump_slot(pc);
        if self.jump_cache[slot].guest == pc {
            self.jump_cache[slot] = JumpCacheEntry::empty(slot);
        }
    }

    /// Copies FCSR's rounding mode and private rules into the guest's MXCSR. Under SSE's rules, the host's results of
    /// invalid operations are correct.
    pub(crate) fn load_rounding(&mut self) {
        // FCSR: 0 nearest, 1 zero, 2 up, 3 down. MXCSR: 0 nearest, 1 down, 2 up, 3 zero.
        let rounding = [0u32, 3, 2, 1][(self.state.fcsr.0 >> 8 & 3) as usize];
        let rule = |rule: u32, bit: u32| u32::from(self.state.fcsr.0 & rule != 0) << bit;
        let flushes = rule(Fcsr::FLUSH_OPERANDS, 6) | rule(Fcsr::FLUSH_RESULTS, 15);
        let invalid_traps = self.state.fcsr.0 & (Fcsr::SSE_RULES | INVALID_ENABLE) != Fcsr::SSE_RULES;
        let invalid_mask = if invalid_traps { 0 } else { INVALID_MASK };
        self.guest_mxcsr = GUEST_MXCSR | rounding << 13 | flushes | invalid_mask;
    }

    /// Moves exceptions raised by translated code from MXCSR to FCSR's flags.
    pub(crate) fn collect_exceptions(&mut self) {
        // Subnormal operands are recorded only by SSE's rules.
        let recorded = if self.state.fcsr.0 & Fcsr::SSE_RULES != 0 { 0x3f } else { 0x3d };
        let raised = self.guest_mxcsr & recorded;
        if raised != 0 {
            self.guest_mxcsr &= !0x3f;
            self.state.fcsr = with_flags(self.state.fcsr, raised);
        }
    }

    /// Whether all code must be interpreted, because the guest has enabled floating-point traps, or has renamed its
    /// floating-point registers (x87 stack mode). The trap of invalid operations is an exception: translated code
    /// passes these operations to the interpreter anyway.
    pub(crate) fn must_interpret(&self) -> bool {
        self.state.fcsr.0 & 0xf != 0 || self.state.lbt.stack_mode
    }
}

/// All exceptions masked and flush-to-zero off, as Rust requires.
const HOST_MXCSR: u32 = 0x1f80;

/// The mask of invalid operations in MXCSR.
const INVALID_MASK: u32 = 0x80;
/// The bit of FCSR that enables the trap of invalid operations.
const INVALID_ENABLE: u32 = 1 << 4;
/// All exceptions masked except invalid operation. Only the results of invalid operations differ between the host and
/// LoongArch, and the fault handler passes these instructions to the interpreter.
const GUEST_MXCSR: u32 = 0x1f80 & !INVALID_MASK;

/// FCSR with the flags for MXCSR's sticky bits `raised` set.
fn with_flags(fcsr: Fcsr, raised: u32) -> Fcsr {
    // MXCSR: IE 0, DE 1, ZE 2, OE 3, UE 4, PE 5. FCSR flags: I(nexact) 16, U 17, O 18, Z 19, V 20; private: D 21.
    let mut flags = 0;
    for (from, to) in [(0, 20), (1, 21), (2, 19), (3, 18), (4, 17), (5, 16)] {
        flags |= (raised >> from & 1) << to;
    }
    Fcsr(fcsr.0 | flags)
}
