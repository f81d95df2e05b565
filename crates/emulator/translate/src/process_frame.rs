//! Access to the LoongArch signal frame that the process builds for a handler. A front end builds the source's frame
//! from it, and copies the handler's changes back into it. Source: Linux
//! arch/loongarch/include/uapi/asm/{sigcontext,ucontext}.h, arch/loongarch/kernel/signal.c.

use crate::front_end::UserMemory;

// Offsets in bytes: `siginfo`, then `ucontext` with its stack, mask, program counter, registers and flags.
const INFO_BYTES: usize = 128;
const STACK: usize = 144;
const MASK: usize = 168;
const PC: usize = 304;
const REGISTERS: usize = 312;
const FLAGS: usize = 568;
const BYTES: usize = 576;

/// `SC_ADDRERR_WR`.
const WROTE: u64 = 1 << 31;

/// The architecture-independent part of the frame. Extended context records after it are left alone.
#[derive(Clone, Debug)]
pub struct ProcessFrame {
    address: u64,
    bytes: [u8; BYTES],
}

impl ProcessFrame {
    /// Reads the frame at `address`; `None` if it is not readable.
    pub fn read(address: u64, memory: &dyn UserMemory) -> Option<Self> {
        let mut bytes = [0; BYTES];
        memory.read(address, &mut bytes).then_some(Self { address, bytes })
    }

    /// Writes the frame back. Returns false if it is not writable.
    pub fn write(&self, memory: &dyn UserMemory) -> bool {
        memory.write(self.address, &self.bytes)
    }

    /// The address of the frame.
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

    /// Whether the fault was caused by a store.
    pub fn is_write(&self) -> bool {
        word(&self.bytes, FLAGS) & WROTE != 0
    }

    /// The alternate stack: `ss_sp`, `ss_flags` and `ss_size`.
    pub fn stack(&self) -> [u64; 3] {
        std::array::from_fn(|number| word(&self.bytes, STACK + 8 * number))
    }

    /// The signal mask that is restored after the handler.
    pub fn mask(&self) -> u64 {
        word(&self.bytes, MASK)
    }

    /// Sets the signal mask that is restored after the handler.
    pub fn set_mask(&mut self, mask: u64) {
        put_word(&mut self.bytes, MASK, mask);
    }

    /// The source address at which the program resumes.
    pub fn pc(&self) -> u64 {
        word(&self.bytes, PC)
    }

    /// Sets the source address at which the program resumes.
    pub fn set_pc(&mut self, pc: u64) {
        put_word(&mut self.bytes, PC, pc);
    }

    /// LoongArch register `number`, 0 to 31.
    pub fn register(&self, number: u8) -> u64 {
        word(&self.bytes, REGISTERS + 8 * usize::from(number))
    }

    /// Sets LoongArch register `number`, 0 to 31.
    pub fn set_register(&mut self, number: u8, value: u64) {
        put_word(&mut self.bytes, REGISTERS + 8 * usize::from(number), value);
    }
}

/// The 64-bit word at byte `at` of a frame.
pub fn word(frame: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| frame[at + byte]))
}

/// Writes a 64-bit word at byte `at` of a frame.
pub fn put_word(frame: &mut [u8], at: usize, value: u64) {
    frame[at..at + 8].copy_from_slice(&value.to_le_bytes());
}
