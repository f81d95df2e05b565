//! Decoded instructions by physical page. A store to a page drops its instructions, so that code is always what memory
//! holds, whatever address wrote it.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use longma_loongarch::semantics::{Semantics, privileged};
use longma_loongarch::{
    Class, Extension, Instruction, Location, Op, Operand, RegisterKind, Row, Trap, decode,
};
use rustc_hash::FxHashMap;

use super::Core;
use crate::memory::PAGE_BYTES;

/// Pages of decoded instructions that are kept; each needs 32 KiB.
const PAGES: usize = 4096;
/// Instructions of a page.
pub const STEPS: usize = PAGE_BYTES as usize / 4;

/// What to do before an instruction executes. The low four bits are those of EUEN that it needs.
pub mod check {
    /// It reads and writes memory at the address in rj, so that the write must be permitted before the read.
    pub const MODIFIES: u8 = 1 << 6;
    /// MISC may forbid it to read the counter.
    pub const COUNTER: u8 = 1 << 5;
    /// It is a vector instruction, which may be misaligned whatever MISC says.
    pub const VECTOR: u8 = 1 << 4;
    /// EUEN.FPE.
    pub const FLOAT: u8 = 1;
    /// EUEN.SXE.
    pub const VECTOR128: u8 = 2;
    /// EUEN.ASXE.
    pub const VECTOR256: u8 = 4;
    /// EUEN.BTE.
    pub const TRANSLATION: u8 = 8;
    /// The bits of EUEN.
    pub const UNITS: u8 = 0xf;
}

/// A decoded instruction.
#[derive(Clone, Copy)]
pub struct Step {
    /// Its semantics.
    pub run: Semantics<Core>,
    /// Its operands.
    pub instruction: Instruction,
    /// What to do before it executes; see [`check`].
    pub checks: u8,
    /// The bytes that the caller adds to the program counter afterwards: 4, or 0 if the semantics set it.
    pub advance: u8,
}

impl Step {
    /// Decodes a word. One that is no instruction traps when it executes.
    pub fn new(word: u32) -> Self {
        let Some(instruction) = decode(word) else {
            let instruction = Instruction::new(Op::Break);
            return Self { run: |_, _, _| Err(Trap::IllegalInstruction), instruction, checks: 0, advance: 0 };
        };
        let advance = if privileged::sets_program_counter(instruction.op) { 0 } else { 4 };
        let run = privileged::semantics_of(instruction.op);
        Self { run, instruction, checks: checks_of(instruction.op), advance }
    }
}

fn checks_of(op: Op) -> u8 {
    let row = op.row();
    let has = |kind| row.operands.iter().any(|it| matches!(it, Operand::Register(k, _) if *k == kind));
    let unit = match row.extension {
        Extension::Lasx => check::VECTOR256 | check::VECTOR,
        Extension::Lsx => check::VECTOR128 | check::VECTOR,
        Extension::Lbt => check::TRANSLATION,
        Extension::Fp => check::FLOAT,
        // The bound-checking loads and stores of floating point.
        _ if has(RegisterKind::Float) => check::FLOAT,
        _ => 0,
    };
    let counter = match op {
        Op::RdtimelW | Op::RdtimehW | Op::RdtimeD => check::COUNTER,
        _ => 0,
    };
    unit | counter | if modifies_memory(row) { check::MODIFIES } else { 0 }
}

fn modifies_memory(row: &Row) -> bool {
    let memory = |locations: &[Location]| locations.iter().any(|it| matches!(it, Location::Memory(_)));
    let is_conditional = row.writes.contains(&Location::Reservation);
    row.class == Class::Atomic && memory(row.reads) && memory(row.writes) && !is_conditional
}

/// The instructions of one physical page.
pub struct CodePage {
    /// The physical address.
    pub address: u64,
    valid: Cell<bool>,
    steps: Box<[OnceCell<Step>]>,
}

impl CodePage {
    /// Whether memory has not changed since the page was decoded.
    pub fn is_valid(&self) -> bool {
        self.valid.get()
    }

    /// The instruction at an address of the page; `word` reads its word.
    #[inline]
    pub fn step(&self, address: u64, word: impl FnOnce() -> u32) -> &Step {
        self.steps[(address / 4) as usize % STEPS].get_or_init(|| Step::new(word()))
    }
}

/// All decoded pages, by physical address.
#[derive(Default)]
pub struct CodeCache(FxHashMap<u64, Rc<CodePage>>);

impl CodeCache {
    /// The page at a physical address, and whether it is new. Its instructions decode when they are first executed.
    pub fn page(&mut self, address: u64) -> (Rc<CodePage>, bool) {
        if let Some(page) = self.0.get(&address) {
            return (Rc::clone(page), false);
        }
        if self.0.len() >= PAGES {
            self.0.values().for_each(|page| page.valid.set(false));
            self.0.clear();
        }
        let steps = std::iter::repeat_with(OnceCell::new).take(STEPS).collect();
        let page = Rc::new(CodePage { address, valid: Cell::new(true), steps });
        self.0.insert(address, Rc::clone(&page));
        (page, true)
    }

    /// Drops the instructions of a page that is written. Returns whether there were any.
    pub fn invalidate(&mut self, address: u64) -> bool {
        match self.0.remove(&address) {
            Some(page) => {
                page.valid.set(false);
                true
            }
            None => false,
        }
    }
}
