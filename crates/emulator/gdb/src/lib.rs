//! Code shared by the GDB servers: the LoongArch64 registers, and the architecture types that gdbstub requires. gdbstub
//! implements the protocol. Source: GDB manual, appendix E (remote protocol).

pub mod loongarch;

use std::num::NonZeroUsize;
use std::ops::Range;

use gdbstub::arch;

/// The maximum length of a watchpoint in bytes; larger than most variables, and small enough to compare after each
/// instruction.
pub const MAX_WATCHED_BYTES: u64 = 4096;

/// The gdbstub architecture for all programs. The target description names the real one, and registers are plain bytes.
#[derive(Debug)]
pub enum AnyArchitecture {}

impl arch::Arch for AnyArchitecture {
    type Usize = u64;
    type Registers = Registers;
    type BreakpointKind = usize;
    type RegId = Number;
}

/// GDB's number of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number(pub usize);

impl arch::RegId for Number {
    fn from_raw_id(id: usize) -> Option<(Self, Option<NonZeroUsize>)> {
        Some((Self(id), None))
    }
}

/// All registers of a thread, concatenated in GDB's order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Registers {
    /// The program counter.
    pub pc: u64,
    /// The contents of the registers.
    pub bytes: Vec<u8>,
}

impl arch::Registers for Registers {
    type ProgramCounter = u64;

    fn pc(&self) -> u64 {
        self.pc
    }

    fn gdb_serialize(&self, mut write_byte: impl FnMut(Option<u8>)) {
        self.bytes.iter().for_each(|&byte| write_byte(Some(byte)));
    }

    fn gdb_deserialize(&mut self, bytes: &[u8]) -> Result<(), ()> {
        self.bytes = bytes.to_vec();
        Ok(())
    }
}

/// Copies the part of `whole` that a request for `length` bytes at `offset` returns. Returns its length.
pub fn part_of(whole: &[u8], offset: u64, length: usize, buffer: &mut [u8]) -> usize {
    let rest = usize::try_from(offset).ok().and_then(|offset| whole.get(offset..)).unwrap_or_default();
    let count = rest.len().min(length).min(buffer.len());
    buffer[..count].copy_from_slice(&rest[..count]);
    count
}

/// The range of a watchpoint; `None` if it is empty, too long, or ends beyond the last address.
pub fn watched(address: u64, length: u64) -> Option<Range<u64>> {
    let end = address.checked_add(length)?;
    (1..=MAX_WATCHED_BYTES).contains(&length).then_some(address..end)
}
