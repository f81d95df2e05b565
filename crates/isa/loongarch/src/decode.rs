//! From a word to an [`Instruction`], strictly: a word that the table does not have is `None`.
//! Not a disassembler (see `print.rs`).
//! Source: the table; the search structure is this file's own.

use std::sync::LazyLock;

use crate::{
    instruction::{Instruction, Op},
    table::{Operand, low_bits},
};

/// Rows are found by the word's highest bits; no instruction has an operand above bit 25, and few below bit 20 decide.
const BUCKET_SHIFT: u32 = 20;

struct Index {
    /// `starts[b]..starts[b + 1]` are the candidates of the words whose bits 31..20 are `b`.
    starts: Vec<u32>,
    candidates: Vec<(u32, u32, Op)>,
}

static INDEX: LazyLock<Index> = LazyLock::new(|| {
    let mut buckets = vec![Vec::new(); 1 << (32 - BUCKET_SHIFT)];
    for op in Op::all() {
        let row = op.row();
        // Every bucket whose number agrees with the row where the row decides: all subsets of the bits it leaves open.
        let open = !row.mask >> BUCKET_SHIFT;
        let mut subset = open;
        loop {
            buckets[(row.matched >> BUCKET_SHIFT | subset) as usize].push((row.mask, row.matched, op));
            if subset == 0 {
                break;
            }
            subset = (subset - 1) & open;
        }
    }
    let (mut starts, mut candidates) = (vec![0], Vec::new());
    for bucket in buckets {
        candidates.extend(bucket);
        starts.push(candidates.len() as u32);
    }
    Index { starts, candidates }
});

/// The instruction that `word` is, or `None` if the table has none.
pub fn decode(word: u32) -> Option<Instruction> {
    let index = &*INDEX;
    let bucket = (word >> BUCKET_SHIFT) as usize;
    let candidates = &index.candidates[index.starts[bucket] as usize..index.starts[bucket + 1] as usize];
    let op = candidates.iter().find(|(mask, matched, _)| word & mask == *matched)?.2;
    let mut instruction = Instruction::new(op);
    let mut immediates = 0;
    for operand in op.row().operands {
        match operand {
            Operand::Register(kind, position) => {
                let number = word >> position & low_bits(kind.field_width());
                instruction.set_register_at(*position, number as u8);
            }
            Operand::Immediate(immediate) => {
                let value = immediate.extract(word);
                *(if immediates == 0 { &mut instruction.imm } else { &mut instruction.imm2 }) = value;
                immediates += 1;
            }
        }
    }
    Some(instruction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_is_two_instructions() {
        let rows: Vec<_> = Op::all().map(Op::row).collect();
        for (i, a) in rows.iter().enumerate() {
            for b in &rows[i + 1..] {
                let both = a.mask & b.mask;
                assert_ne!(a.matched & both, b.matched & both, "{} and {} overlap", a.mnemonic, b.mnemonic);
            }
        }
    }
}
