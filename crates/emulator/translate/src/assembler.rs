//! Emits LoongArch instructions and resolves forward jumps. Source: LoongArch Reference Manual, volume 1.

use longma_loongarch::{Instruction, Op, encode};
use rustc_hash::FxHashMap;

use crate::optimizations::{HASH_ENTRIES, HASH_SHIFT, Options};

/// A position in the unit, which may not be set yet.
pub type Label = usize;

/// The target of a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JumpTarget {
    /// The code of a source address.
    Source(u64),
    /// A label in the unit.
    Label(Label),
}

/// The code of a unit under construction.
#[derive(Debug, Default)]
pub struct Assembler {
    /// The words emitted so far.
    pub words: Vec<u32>,
    /// Dry run: count words without encoding them.
    pub is_blank: bool,
    jumps: Vec<(usize, Instruction, JumpTarget)>,
    labels: Vec<Option<usize>>,
}

impl Assembler {
    /// Emits an instruction. Its operands must be in range.
    pub fn push(&mut self, instruction: Instruction) {
        if self.is_blank {
            self.words.push(0);
            return;
        }
        let word = encode(&instruction).unwrap_or_else(|error| unreachable!("{instruction:?}: {error}"));
        self.words.push(word);
    }

    /// Emits `op d, j, k`.
    pub fn three(&mut self, op: Op, d: u8, j: u8, k: u8) {
        self.push(Instruction { d, j, k, ..Instruction::new(op) });
    }

    /// Emits `op d, j`.
    pub fn two(&mut self, op: Op, d: u8, j: u8) {
        self.three(op, d, j, 0);
    }

    /// Emits `op d, j, imm`.
    pub fn immediate(&mut self, op: Op, d: u8, j: u8, imm: i32) {
        self.push(Instruction { d, j, imm, ..Instruction::new(op) });
    }

    /// Emits `op d, j, high, low`.
    pub fn field(&mut self, op: Op, d: u8, j: u8, high: u8, low: u8) {
        self.push(Instruction { d, j, imm: high.into(), imm2: low.into(), ..Instruction::new(op) });
    }

    /// Copies register `j` to `d`.
    pub fn copy(&mut self, d: u8, j: u8) {
        if d != j {
            self.three(Op::Or, d, j, 0);
        }
    }

    /// Loads a constant.
    pub fn constant(&mut self, d: u8, value: i64) {
        let upper = (value >> 12) as i32;
        if i64::from(value as i32) != value {
            self.constant(d, i64::from(value as i32));
            self.immediate(Op::Lu32iD, d, 0, ((value >> 32) as i32) << 12 >> 12);
            if value << 12 >> 12 != value {
                self.immediate(Op::Lu52iD, d, d, (value >> 52) as i32);
            }
        } else if (-2048..2048).contains(&value) {
            self.immediate(Op::AddiD, d, 0, value as i32);
        } else if value & 0xfff == 0 {
            self.immediate(Op::Lu12iW, d, 0, upper);
        } else {
            self.immediate(Op::Lu12iW, d, 0, upper);
            self.immediate(Op::Ori, d, d, (value & 0xfff) as i32);
        }
    }

    /// Emits a branch or jump. [`Self::finish`] fills in its offset.
    pub fn jump(&mut self, instruction: Instruction, jump_target: JumpTarget) {
        self.jumps.push((self.words.len(), instruction, jump_target));
        self.words.push(0);
    }

    /// Emits `b jump_target`.
    pub fn go(&mut self, jump_target: JumpTarget) {
        self.jump(Instruction::new(Op::B), jump_target);
    }

    /// Emits a `nop` if the block that starts at `begin` is empty, so that each block has a distinct first word to
    /// patch when its source changes.
    pub fn pad_empty_block(&mut self, begin: usize) {
        if self.words.len() == begin && !self.is_blank {
            self.immediate(Op::Andi, 0, 0, 0);
        }
    }

    /// Looks up the source address in register `pc` in the hash table. Loads the address of its code into `d`, or jumps
    /// to `miss`. `alignment` is the alignment of source instructions; `spare` is a scratch register.
    pub fn look_up_hashed(
        &mut self,
        options: &Options,
        alignment: u64,
        [d, pc, spare]: [u8; 3],
        miss: Label,
    ) {
        let (low, bits) = (alignment.trailing_zeros() as u8, HASH_ENTRIES.trailing_zeros() as u8);
        self.field(Op::BstrpickD, d, pc, low + bits - 1, low);
        self.constant(spare, options.hash as i64);
        self.push(Instruction { d, j: d, k: spare, imm: HASH_SHIFT as i32, ..Instruction::new(Op::AlslD) });
        self.immediate(Op::LdD, spare, d, 0);
        self.jump(Instruction { j: spare, d: pc, ..Instruction::new(Op::Bne) }, JumpTarget::Label(miss));
        self.immediate(Op::LdD, d, d, 8);
    }

    /// Creates a label.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        self.labels.len() - 1
    }

    /// Places a label at the current position.
    pub fn place(&mut self, label: Label) {
        self.labels[label] = Some(self.words.len());
    }

    /// The targets of jumps that are outside the unit, without duplicates.
    pub fn outside(&self, entries: &FxHashMap<u64, usize>) -> Vec<u64> {
        let mut outside: Vec<u64> = self
            .jumps
            .iter()
            .filter_map(|(_, _, jump_target)| match jump_target {
                JumpTarget::Source(pc) if !entries.contains_key(pc) => Some(*pc),
                _ => None,
            })
            .collect();
        outside.sort_unstable();
        outside.dedup();
        outside
    }

    /// Fills in the offsets of all jumps and returns the words. `entries` must contain every source address that is
    /// jumped to.
    pub fn finish(mut self, entries: &FxHashMap<u64, usize>) -> Vec<u32> {
        for (at, mut instruction, jump_target) in self.jumps {
            let to = match jump_target {
                JumpTarget::Source(pc) => entries[&pc],
                JumpTarget::Label(label) => self.labels[label].expect("every label is placed"),
            };
            instruction.imm = (to as i32 - at as i32) * 4;
            self.words[at] =
                encode(&instruction).unwrap_or_else(|error| unreachable!("{instruction:?}: {error}"));
        }
        self.words
    }
}
