//! Decoded instructions by physical page. A store to a page drops its instructions, so that decoded code always matches
//! memory, whichever virtual address the store used.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use longma_core::system::InnerBlock;
use longma_loongarch::semantics::{Semantics, privileged};
use longma_loongarch::{
    Class, Extension, Instruction, Location, Op, Operand, RegisterKind, Row, Trap, decode,
};
use longma_trace::{AddressForm, has_address};
use rustc_hash::FxHashMap;

use super::Core;
use crate::memory::PAGE_BYTES;

/// The maximum number of decoded instructions that the cache keeps. A jump into the middle of a block decodes its
/// instructions once more.
const KEPT: usize = 4 << 20;
/// The weight of a page's block table in the limit [`KEPT`], expressed in instructions.
const PAGE: usize = 1024;
/// The maximum number of instructions of a block.
pub const BLOCK: usize = 64;
/// Instructions in a page.
const STEPS: usize = PAGE_BYTES as usize / 4;

/// Checks to make before an instruction executes. The low four bits are those of EUEN that the instruction needs.
pub mod check {
    /// The instruction must execute alone, with an exact clock and program counter.
    pub const ALONE: u8 = 1 << 7;
    /// The instruction reads and writes memory at the address in rj, so a forbidden write must be detected before the
    /// read.
    pub const MODIFIES: u8 = 1 << 6;
    /// MISC may forbid the instruction to read the counter.
    pub const COUNTER: u8 = 1 << 5;
    /// The instruction is a vector instruction, which may be misaligned independent of MISC.
    pub const VECTOR: u8 = 1 << 4;
    /// EUEN.FPE.
    pub const FLOAT: u8 = 1;
    /// EUEN.SXE.
    pub const VECTOR128: u8 = 2;
    /// EUEN.ASXE.
    pub const VECTOR256: u8 = 4;
    /// EUEN.BTE.
    pub const TRANSLATION: u8 = 8;
    /// All bits of EUEN.
    pub const UNITS: u8 = 0xf;
}

/// A decoded instruction.
#[derive(Clone, Copy)]
pub struct DecodedInstruction {
    /// Its semantics.
    pub run: Semantics<Core>,
    /// Its operands.
    pub instruction: Instruction,
    /// The checks to make before it executes; see [`check`].
    pub checks: u8,
    /// Whether its semantics set the program counter. If not, the caller advances it.
    pub sets_program_counter: bool,
    /// How it forms the address of its memory access; `None` if it makes none.
    pub access: Option<AddressForm>,
}

impl DecodedInstruction {
    /// Decodes a word. An invalid word traps when it executes.
    pub fn new(word: u32) -> Self {
        let Some(instruction) = decode(word) else {
            let instruction = Instruction::new(Op::Break);
            let run: Semantics<Core> = |_, _, _| Err(Trap::IllegalInstruction);
            return Self {
                run,
                instruction,
                checks: check::ALONE,
                sets_program_counter: false,
                access: None,
            };
        };
        Self::of(instruction)
    }

    /// Adds the semantics and checks of an instruction.
    pub fn of(instruction: Instruction) -> Self {
        let sets_program_counter = privileged::sets_program_counter(instruction.op);
        let run = privileged::semantics_of(instruction.op);
        let access = has_address(instruction.op).then(|| AddressForm::of(&instruction));
        Self { run, instruction, checks: checks_of(instruction.op), sets_program_counter, access }
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
        // Bound-checking loads and stores of floating-point registers.
        _ if has(RegisterKind::Float) => check::FLOAT,
        _ => 0,
    };
    let counter = match op {
        Op::RdtimelW | Op::RdtimehW | Op::RdtimeD => check::COUNTER,
        _ => 0,
    };
    let modifies = if modifies_memory(row) { check::MODIFIES } else { 0 };
    // These instructions always trap.
    let must = matches!(op, Op::Syscall | Op::Break | Op::Dbcl);
    let is_alone = must || counter | modifies != 0 || row.extension == Extension::Privileged;
    unit | counter | modifies | if is_alone { check::ALONE } else { 0 }
}

/// Whether the result of `op` depends on the program counter.
fn reads_program_counter(op: Op) -> bool {
    op.is_control_flow() || matches!(op, Op::Pcaddi | Op::Pcalau12i | Op::Pcaddu12i | Op::Pcaddu18i)
}

/// Consecutive instructions of a page. Only the last one may read or set the program counter. An instruction that must
/// execute alone forms a separate block.
pub struct Block {
    /// The instructions; at least one.
    pub steps: Box<[DecodedInstruction]>,
    /// The union of the instructions' checks.
    pub checks: u8,
    /// Whether the last instruction sets the program counter.
    pub sets_program_counter: bool,
    /// The number of times that the block was entered.
    pub runs: Cell<u32>,
    /// Where the block was last observed, and its number there; see [`super::observed::Observed`].
    pub observed: Cell<(u64, u32)>,
}

impl Block {
    /// Decodes the block at the beginning of `words`, which is not empty.
    fn new(words: impl Iterator<Item = u32>) -> Self {
        let mut block = Self {
            steps: Box::default(),
            checks: 0,
            sets_program_counter: false,
            runs: Cell::new(0),
            observed: Cell::new((u64::MAX, 0)),
        };
        let mut steps = Vec::new();
        for step in words.map(DecodedInstruction::new) {
            if step.checks & check::ALONE != 0 && !steps.is_empty() {
                break;
            }
            block.checks |= step.checks;
            block.sets_program_counter = step.sets_program_counter;
            steps.push(step);
            let is_end = step.checks & check::ALONE != 0 || reads_program_counter(step.instruction.op);
            if is_end || steps.len() == BLOCK {
                break;
            }
        }
        block.steps = steps.into();
        block
    }
}

fn modifies_memory(row: &Row) -> bool {
    let memory = |locations: &[Location]| locations.iter().any(|it| matches!(it, Location::Memory(_)));
    let is_conditional = row.writes.contains(&Location::Reservation);
    row.class == Class::Atomic && memory(row.reads) && memory(row.writes) && !is_conditional
}

/// The decoded instructions of one physical page.
pub struct CodePage {
    /// The physical address.
    pub address: u64,
    valid: Cell<bool>,
    /// The blocks, by the index of their first instruction. Most cells stay empty, so they are small.
    blocks: Box<[OnceCell<Box<Block>>]>,
    /// The number of decoded instructions of all pages.
    kept: Rc<Cell<usize>>,
    hosts: RefCell<Hosts>,
}

/// Host code by virtual address. A page may be mapped at several addresses.
#[derive(Default)]
struct Hosts {
    /// The epoch of the host addresses; see [`super::Translation`].
    epoch: u64,
    addresses: FxHashMap<u64, Host>,
}

/// Host code for a virtual address.
#[derive(Clone)]
pub enum Host {
    /// It cannot be translated.
    Nothing,
    /// Its address.
    At(u64),
    /// The block is inside a region that has no entry at it yet.
    Inside(InnerBlock),
}

impl CodePage {
    /// Whether a block that begins at the instruction `index` of the page has been decoded.
    pub fn has_block(&self, index: usize) -> bool {
        self.blocks[index % STEPS].get().is_some()
    }

    /// The host code for a program counter, if [`CodePage::set_host`] has been called for it in this epoch.
    pub fn host(&self, pc: u64, epoch: u64) -> Option<Host> {
        let hosts = self.hosts.borrow();
        if hosts.epoch == epoch { hosts.addresses.get(&pc).cloned() } else { None }
    }

    /// Keeps the host code for a program counter. A block inside a region does not replace other host code.
    pub fn set_host(&self, pc: u64, epoch: u64, host: Host) {
        let mut hosts = self.hosts.borrow_mut();
        if hosts.epoch != epoch {
            *hosts = Hosts { epoch, ..Hosts::default() };
        }
        match host {
            Host::Inside(_) => drop(hosts.addresses.entry(pc).or_insert(host)),
            _ => drop(hosts.addresses.insert(pc, host)),
        }
    }

    /// Whether the page is still in the cache. A store to it, or a full cache, removes it.
    pub fn is_valid(&self) -> bool {
        self.valid.get()
    }

    /// The block that begins at the instruction `index` of the page. It is decoded on first use. `word` reads the word
    /// at a physical address.
    #[inline]
    pub fn block(&self, index: usize, word: impl Fn(u64) -> u32) -> &Block {
        let cell = &self.blocks[index % STEPS];
        match cell.get() {
            Some(block) => block,
            None => self.decode(cell, index % STEPS, &word),
        }
    }

    #[cold]
    fn decode<'a>(
        &self,
        cell: &'a OnceCell<Box<Block>>,
        index: usize,
        word: &dyn Fn(u64) -> u32,
    ) -> &'a Block {
        let block = Block::new((index..STEPS).map(|index| word(self.address + 4 * index as u64)));
        self.kept.set(self.kept.get() + block.steps.len());
        cell.get_or_init(|| Box::new(block))
    }
}

/// All decoded pages, by physical address.
#[derive(Default)]
pub struct CodeCache {
    pages: FxHashMap<u64, Rc<CodePage>>,
    kept: Rc<Cell<usize>>,
}

impl CodeCache {
    /// The page at a physical address, and whether it has just been added.
    pub fn page(&mut self, address: u64) -> (Rc<CodePage>, bool) {
        if let Some(page) = self.pages.get(&address) {
            return (Rc::clone(page), false);
        }
        if self.kept.get() + PAGE * self.pages.len() >= KEPT {
            self.clear();
        }
        let blocks = std::iter::repeat_with(OnceCell::new).take(STEPS).collect();
        let kept = Rc::clone(&self.kept);
        let page =
            Rc::new(CodePage { address, valid: Cell::new(true), blocks, kept, hosts: RefCell::default() });
        self.pages.insert(address, Rc::clone(&page));
        (page, true)
    }

    /// Drops the instructions of all pages.
    pub fn clear(&mut self) {
        self.pages.values().for_each(|page| page.valid.set(false));
        self.pages.clear();
        self.kept.set(0);
    }

    /// Whether the cache contains a page.
    pub fn contains(&self, address: u64) -> bool {
        self.pages.contains_key(&address)
    }

    /// Drops the instructions of a page that is being written. Returns whether there were any.
    pub fn invalidate(&mut self, address: u64) -> bool {
        match self.pages.remove(&address) {
            Some(page) => {
                page.valid.set(false);
                true
            }
            None => false,
        }
    }

    /// Drops the instructions of all pages in a range, which must not be empty. Returns whether there were any.
    pub fn invalidate_range(&mut self, start: u64, end: u64) -> bool {
        let (first, last) = (start / PAGE_BYTES, (end - 1) / PAGE_BYTES);
        let before = self.pages.len();
        // The driver chooses the length of the range, so iterate over the cached pages if they are fewer.
        if last - first > before as u64 {
            let all: Vec<u64> = self.pages.keys().copied().collect();
            for page in all.into_iter().filter(|page| (first..=last).contains(&(page / PAGE_BYTES))) {
                self.invalidate(page);
            }
        } else {
            for page in first..=last {
                self.invalidate(page * PAGE_BYTES);
            }
        }
        self.pages.len() < before
    }
}
