//! The frame that the process lays for a signal handler, which is LoongArch's: what a source architecture's own frame, below it, is made
//! of, and what goes back into it when the handler returns.
//! Not the delivery, and not the frames of source architectures.
//! Source: Linux arch/loongarch/include/uapi/asm/{sigcontext,ucontext}.h, arch/loongarch/kernel/signal.c.

use crate::front_end::Structures;

// siginfo, then ucontext with its stack, mask, program counter, registers and flags.
const INFO_BYTES: usize = 128;
const STACK: usize = 144;
const MASK: usize = 168;
const PC: usize = 304;
const REGISTERS: usize = 312;
const FLAGS: usize = 568;
const BYTES: usize = 576;

/// SC_ADDRERR_WR.
const WROTE: u64 = 1 << 31;

/// The frame's part that a source architecture has as well; the records behind it stay where they are.
#[derive(Clone, Debug)]
pub struct ProcessFrame {
    address: u64,
    bytes: [u8; BYTES],
}

impl ProcessFrame {
    /// The frame at `address`; `None` if it cannot be read.
    pub fn read(address: u64, memory: &dyn Structures) -> Option<Self> {
        let mut bytes = [0; BYTES];
        memory.read(address, &mut bytes).then_some(Self { address, bytes })
    }

    /// Writes it back to where it was read; false if that cannot be written.
    pub fn write(&self, memory: &dyn Structures) -> bool {
        memory.write(self.address, &self.bytes)
    }

    /// Where it lies.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The `siginfo_t`.
    pub fn info(&self) -> [u8; INFO_BYTES] {
        std::array::from_fn(|byte| self.bytes[byte])
    }

    /// `si_code`.
    pub fn code(&self) -> u32 {
        word(&self.bytes, 8) as u32
    }

    /// `si_addr`.
    pub fn fault_address(&self) -> u64 {
        word(&self.bytes, 16)
    }

    /// Whether a store has faulted.
    pub fn is_write(&self) -> bool {
        word(&self.bytes, FLAGS) & WROTE != 0
    }

    /// The alternate stack: `ss_sp`, `ss_flags` and `ss_size`.
    pub fn stack(&self) -> [u64; 3] {
        std::array::from_fn(|number| word(&self.bytes, STACK + 8 * number))
    }

    /// The mask of signals that comes back.
    pub fn mask(&self) -> u64 {
        word(&self.bytes, MASK)
    }

    /// Blocks other signals once the handler has returned.
    pub fn set_mask(&mut self, mask: u64) {
        put_word(&mut self.bytes, MASK, mask);
    }

    /// Where the program goes on, a source address.
    pub fn pc(&self) -> u64 {
        word(&self.bytes, PC)
    }

    /// Lets the program go on elsewhere.
    pub fn set_pc(&mut self, pc: u64) {
        put_word(&mut self.bytes, PC, pc);
    }

    /// Register `number` of LoongArch, 0 to 31.
    pub fn register(&self, number: u8) -> u64 {
        word(&self.bytes, REGISTERS + 8 * usize::from(number))
    }

    /// Gives register `number` another value to come back with.
    pub fn set_register(&mut self, number: u8, value: u64) {
        put_word(&mut self.bytes, REGISTERS + 8 * usize::from(number), value);
    }
}

/// The 64 bits at byte `at` of a frame.
pub fn word(frame: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| frame[at + byte]))
}

/// Puts 64 bits at byte `at` of a frame.
pub fn put_word(frame: &mut [u8], at: usize, value: u64) {
    frame[at..at + 8].copy_from_slice(&value.to_le_bytes());
}
