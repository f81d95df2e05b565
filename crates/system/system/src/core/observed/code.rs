//! The blocks that have been observed, and where their pages are in physical memory.

use longma_loongarch::{Instruction, Op};
use longma_trace::{BlockNumber, Blocks, TracedBlock};
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::hash::BuildHasher;
use std::sync::Arc;

use super::super::code::{BLOCK, Block};
use crate::memory::PAGE_BYTES;

/// The maximum number of blocks. Blocks beyond it, as of software that generates code continuously, are reported as
/// one.
const MAX_BLOCKS: usize = 1 << 20;
/// The maximum number of pages of code whose translations are stored.
const MAX_PAGES: usize = 1 << 16;
/// The number of the block that represents all further ones.
const OTHER: u32 = 0;

/// The blocks that have been observed. A block's identity is its virtual address, its instructions and whether a user
/// program has executed it, so that programs that share code at the same address share its blocks.
pub struct ObservedCode {
    blocks: Vec<ObservedBlock>,
    numbers: FxHashMap<(u64, u64), u32>,
}

struct ObservedBlock {
    start: u64,
    is_user: bool,
    instructions: Arc<[Instruction]>,
}

impl Default for ObservedCode {
    fn default() -> Self {
        let nops = [Instruction::new(Op::Andi); BLOCK];
        let other = ObservedBlock { start: 0, is_user: false, instructions: nops.into() };
        Self { blocks: vec![other], numbers: FxHashMap::default() }
    }
}

impl ObservedCode {
    /// Whether a block was executed at privilege level 3.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn is_user(&self, number: BlockNumber) -> bool {
        self.blocks[number.0 as usize].is_user
    }

    /// The virtual address of the first instruction of a block; 0 for the block that represents all further ones.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn start(&self, number: BlockNumber) -> u64 {
        self.blocks[number.0 as usize].start
    }

    /// The number of a block at the virtual address `start`.
    #[inline]
    pub(super) fn number(&mut self, block: &Block, start: u64, is_user: bool) -> u32 {
        // Instructions are at multiples of 4.
        let key = start | u64::from(is_user);
        match block.observed.get() {
            (known, number) if known == key => number,
            _ => self.register(block, key),
        }
    }

    #[cold]
    fn register(&mut self, block: &Block, key: u64) -> u32 {
        let instructions: Arc<[_]> = block.steps.iter().map(|step| traced(step.instruction)).collect();
        let hash = FxBuildHasher.hash_one(&*instructions);
        let known = self.numbers.get(&(key, hash)).copied();
        let number = match known.filter(|number| self.blocks[*number as usize].instructions == instructions) {
            Some(number) => number,
            None if self.blocks.len() >= MAX_BLOCKS => OTHER,
            None => {
                let number = self.blocks.len() as u32;
                self.blocks.push(ObservedBlock { start: key & !1, is_user: key & 1 == 1, instructions });
                self.numbers.insert((key, hash), number);
                number
            }
        };
        block.observed.set((key, number));
        number
    }
}

impl Blocks for ObservedCode {
    fn block(&self, number: BlockNumber) -> TracedBlock {
        let block = &self.blocks[number.0 as usize];
        TracedBlock { start: block.start, instructions: block.instructions.clone() }
    }
}

/// An instruction as models see it. LDDIR and LDPTE load a table entry.
fn traced(instruction: Instruction) -> Instruction {
    let Instruction { d, j, .. } = instruction;
    match instruction.op {
        Op::Lddir => Instruction { d, j, ..Instruction::new(Op::LdD) },
        // LDPTE writes the entry to a CSR, so the load has no destination register.
        Op::Ldpte => Instruction { j, ..Instruction::new(Op::LdD) },
        _ => instruction,
    }
}

/// The physical pages of a core's code, by virtual page, since the address space last changed.
#[derive(Default)]
pub struct CodePages(FxHashMap<u64, u64>);

impl CodePages {
    /// The physical address of the code at a virtual address. `None` if the core has executed no code on its page since
    /// the address space last changed.
    #[inline]
    pub fn physical(&self, address: u64) -> Option<u64> {
        let page = self.0.get(&(address & !(PAGE_BYTES - 1)))?;
        Some(page | address & (PAGE_BYTES - 1))
    }

    /// Whether the virtual page at `start` is known to be at the physical address `physical`.
    #[inline]
    pub(super) fn agrees(&self, start: u64, physical: u64) -> bool {
        self.0.get(&start) == Some(&physical)
    }

    pub(super) fn set(&mut self, start: u64, physical: u64) {
        if self.0.len() >= MAX_PAGES {
            self.0.clear();
        }
        self.0.insert(start, physical);
    }
}
