//! Decodes basic blocks, the unit that the interpreter executes and from which regions are formed. Source: LoongArch
//! Reference Manual, volume 1, section 2.2.5 (branches, which end blocks).

use std::ops::Range;

use longma_guest::HOST_PAGE_BYTES;
use longma_loongarch::{Class, Environment, Extension, Fault, Instruction, Op, decode};

use crate::magic::Magic;

/// The maximum number of instructions in a block. Longer straight-line code continues in the next block.
pub(crate) const MAX_INSTRUCTIONS: usize = 64;

/// How a block ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Execution falls through to the next block.
    Next(u64),
    /// A conditional branch.
    Branch {
        /// The target.
        taken: u64,
        /// The fall-through address.
        next: u64,
    },
    /// A direct jump.
    Jump(u64),
    /// A direct call.
    Call {
        /// The function.
        target: u64,
        /// The return address.
        next: u64,
    },
    /// An indirect call.
    IndirectCall {
        /// The return address.
        next: u64,
    },
    /// A return: an indirect jump through r1 that writes no link register.
    Return,
    /// Any other indirect jump.
    Indirect,
    /// The run loop executes the last instruction, because it always traps, changes state that translated code depends
    /// on, or is one of [`BlockEnds`].
    Leave {
        /// The address after it.
        next: u64,
    },
    /// The first word is not a valid instruction. The block is empty.
    Invalid,
}

/// Instructions that end a block only in certain modes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockEnds {
    /// Magic instructions.
    pub magic: bool,
    /// Instructions that read the clock, so that simulated time can catch up first.
    pub clock: bool,
}

impl BlockEnds {
    fn ends_at(self, instruction: &Instruction) -> bool {
        self.magic && Magic::is(instruction) || self.clock && reads_clock(instruction.op)
    }
}

/// Whether an instruction reads the stable counter.
pub(crate) fn reads_clock(op: Op) -> bool {
    matches!(op, Op::RdtimelW | Op::RdtimehW | Op::RdtimeD)
}

/// A basic block.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// The guest address of the first instruction.
    pub start: u64,
    /// The instructions, including the one that ends the block.
    pub instructions: Vec<Instruction>,
    /// How it ends.
    pub end: End,
}

impl Block {
    /// Decodes the block at `start`. Calls `watch` with an address in each host page before reading from the page.
    ///
    /// # Errors
    /// The first instruction cannot be fetched.
    pub fn decode<E: Environment>(
        start: u64,
        guest: &E,
        ends: BlockEnds,
        watch: impl Fn(u64),
    ) -> Result<Self, Fault> {
        // Decode into a buffer first, so that the final vector has no spare capacity: there are very many blocks.
        let mut buffer = [Instruction::new(Op::Break); MAX_INSTRUCTIONS];
        let (mut count, mut pc) = (0, start);
        let end = loop {
            if count == 0 || pc.is_multiple_of(HOST_PAGE_BYTES) {
                watch(pc);
            }
            let word = match guest.fetch(pc) {
                Ok(word) => word,
                Err(fault) if count == 0 => return Err(fault),
                Err(_) => break End::Next(pc),
            };
            let Some(instruction) = decode(word) else {
                break if count == 0 { End::Invalid } else { End::Next(pc) };
            };
            buffer[count] = instruction;
            count += 1;
            if let Some(end) = end_of(&instruction, pc, buffer[..count - 1].last()) {
                break end;
            }
            pc += 4;
            if ends.ends_at(&instruction) {
                break End::Leave { next: pc };
            }
            if count == MAX_INSTRUCTIONS {
                break End::Next(pc);
            }
        };
        Ok(Self { start, instructions: buffer[..count].to_vec(), end })
    }

    /// The guest addresses from which the block was decoded.
    pub fn range(&self) -> Range<u64> {
        // An invalid word belongs to the block too.
        self.start..self.pc(self.instructions.len().max(1))
    }

    /// Whether the block was decoded from addresses in `range`.
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        let range_of_block = self.range();
        range_of_block.start < range.end && range.start < range_of_block.end
    }

    /// The guest address of instruction `index`.
    pub fn pc(&self, index: usize) -> u64 {
        self.start + 4 * index as u64
    }
}

/// How `instruction` at `pc` ends a block; `None` if it does not. `previous` is the preceding instruction: after a
/// `pcaddu18i`, the target of a `jirl` is known.
fn end_of(instruction: &Instruction, pc: u64, previous: Option<&Instruction>) -> Option<End> {
    let next = pc.wrapping_add(4);
    let relative = |offset: i32| pc.wrapping_add(offset as i64 as u64);
    Some(match instruction.op {
        Op::Beq | Op::Bne | Op::Blt | Op::Bge | Op::Bltu | Op::Bgeu => {
            End::Branch { taken: relative(instruction.imm), next }
        }
        Op::Beqz | Op::Bnez | Op::Bceqz | Op::Bcnez => End::Branch { taken: relative(instruction.imm), next },
        Op::B => End::Jump(relative(instruction.imm)),
        Op::Bl => End::Call { target: relative(instruction.imm), next },
        Op::Jirl => {
            let jirl_target =
                previous.filter(|b| b.op == Op::Pcaddu18i && b.d == instruction.j && b.d != 0).map(|b| {
                    let upper = (pc - 4).wrapping_add((i64::from(b.imm) << 18) as u64);
                    upper.wrapping_add(instruction.imm as i64 as u64)
                });
            match (instruction.d, jirl_target) {
                (0, Some(target)) => End::Jump(target),
                (1, Some(target)) => End::Call { target, next },
                (1, None) => End::IndirectCall { next },
                (0, None) if instruction.j == 1 && instruction.imm == 0 => End::Return,
                (0, None) => End::Indirect,
                _ => End::Leave { next },
            }
        }
        op => match (op.row().class, op.row().extension) {
            (Class::Jump | Class::Branch, _) => End::Leave { next },
            (_, Extension::Privileged | Extension::Lvz) => End::Leave { next },
            _ if matches!(
                op,
                Op::Syscall | Op::Break | Op::Dbcl | Op::Ibar | Op::Movgr2fcsr | Op::X86settm | Op::X86clrtm
            ) =>
            {
                End::Leave { next }
            }
            _ => return None,
        },
    })
}
