//! Decodes an instruction word. Decoding is strict: a word that matches no row of the table yields `None`.

use std::sync::LazyLock;

use crate::{
    instruction::{Instruction, Op},
    table::{Operand, low_bits},
};

/// The index has one bucket for each value of bits 31 to 20. Operands are in bits 25 to 0, and few opcodes have bits
/// below 20, so a bucket holds few rows.
const BUCKET_SHIFT: u32 = 20;

struct Index {
    /// `starts[b]..starts[b + 1]` are the candidates for words whose bits 31..20 are `b`.
    starts: Vec<u32>,
    candidates: Vec<(u32, u32, Op)>,
}

static INDEX: LazyLock<Index> = LazyLock::new(|| {
    let mut buckets = vec![Vec::new(); 1 << (32 - BUCKET_SHIFT)];
    for op in Op::all() {
        let row = op.row();
        // Add the row to every bucket that its fixed bits permit, one for each subset of the bits that are not fixed.
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

/// Decodes `word`; `None` if it is not an instruction.
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
    fn every_word_decodes_to_at_most_one_instruction() {
        let rows: Vec<_> = Op::all().map(Op::row).collect();
        for (i, a) in rows.iter().enumerate() {
            for b in &rows[i + 1..] {
                let common_mask = a.mask & b.mask;
                assert_ne!(
                    a.matched & common_mask,
                    b.matched & common_mask,
                    "{} and {} overlap",
                    a.mnemonic,
                    b.mnemonic
                );
            }
        }
    }
}
