//! Turns a trace into an execution trace, in a second pass.

use std::{collections::HashMap, mem};

use longma_loongarch::Instruction as Decoded;
use longma_trace::{BlockNumber, Blocks, Record, Trace, TracedBlock};

use crate::{code::Code, file::ReadError, instruction::Instruction};

/// Maximum number of LoongArch instructions of a block.
const MAX_BLOCK: usize = 64;
/// Addresses of programs have this many bits; higher bits are dropped.
const ADDRESS_BITS: u32 = 46;

/// Makes the execution trace, part by part.
pub struct Replay<I> {
    code: Code,
    from: I,
    blocks: Vec<TracedBlock>,
    numbers: HashMap<(u64, usize), BlockNumber>,
    /// The block in progress: its start, its instructions, its accesses.
    start: u64,
    instructions: Vec<Decoded>,
    addresses: Vec<u64>,
    /// The number of instructions read from the trace.
    read: u64,
}

impl<I: Iterator<Item = Result<Instruction, ReadError>>> Replay<I> {
    /// Replays the trace `from`, whose code is `code`.
    pub fn new(code: Code, from: I) -> Self {
        Self {
            code,
            from,
            blocks: Vec::new(),
            numbers: HashMap::new(),
            start: 0,
            instructions: Vec::new(),
            addresses: Vec::new(),
            read: 0,
        }
    }

    /// The number of instructions that have been converted.
    pub fn instructions(&self) -> u64 {
        self.read
    }

    /// Replaces `trace` by the next part of at least `words` words, unless the trace ends before. Returns false at its
    /// end.
    ///
    /// # Errors
    /// The trace cannot be read.
    pub fn fill(&mut self, trace: &mut Trace, words: usize) -> Result<bool, ReadError> {
        *trace = Trace::default();
        while trace.words() < words {
            let Some(instruction) = self.from.next() else {
                self.end_block(trace);
                break;
            };
            self.add(&instruction?, trace);
        }
        Ok(!trace.is_empty())
    }

    fn add(&mut self, instruction: &Instruction, trace: &mut Trace) {
        // An address that the first pass did not see: the file has changed.
        let Some(site) = self.code.site(instruction.ip) else { return };
        let site = site.clone();
        self.read += 1;
        let next = self.start.wrapping_add(4 * self.instructions.len() as u64);
        if site.address != next || self.instructions.len() + site.length() > MAX_BLOCK {
            self.end_block(trace);
            self.start = site.address;
        }
        self.code.instructions_of(&site, &mut self.instructions);
        self.add_addresses(&instruction.loads, site.loads);
        self.add_addresses(&instruction.stores, site.stores);
        if site.branch.is_some() {
            self.end_block(trace);
        }
    }

    /// Adds `count` addresses. An execution with fewer accesses than others repeats its last access.
    fn add_addresses(&mut self, addresses: &[u64], count: u8) {
        let used: Vec<u64> = addresses.iter().copied().filter(|address| *address != 0).collect();
        for nth in 0..usize::from(count) {
            let address = used.get(nth).or(used.last()).copied().unwrap_or(8);
            // An access has eight bytes and must not extend beyond the end of the address space.
            self.addresses.push((address & ((1 << ADDRESS_BITS) - 1)).min((1 << ADDRESS_BITS) - 8));
        }
    }

    fn end_block(&mut self, trace: &mut Trace) {
        let length = self.instructions.len();
        if length == 0 {
            return;
        }
        let (start, instructions) = (self.start, mem::take(&mut self.instructions));
        let blocks = &mut self.blocks;
        // The instruction at an address does not change, so that start and length determine a block.
        let number = *self.numbers.entry((start, length)).or_insert_with(|| {
            blocks.push(TracedBlock { start, instructions: instructions.into() });
            BlockNumber(blocks.len() as u32 - 1)
        });
        trace.push(&Record { block: number, executed: length as u16, addresses: &self.addresses });
        self.addresses.clear();
        self.start = start + 4 * length as u64;
    }
}

impl<I> Blocks for Replay<I> {
    fn block(&self, number: BlockNumber) -> TracedBlock {
        self.blocks[number.0 as usize].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{encode::Writer, file::Reader, instruction::tests::any_instruction};
    use longma_loongarch::Op;
    use proptest::prelude::*;

    fn replayed(
        instructions: &[Instruction],
    ) -> (Replay<impl Iterator<Item = Result<Instruction, ReadError>>>, Trace) {
        let bytes: Vec<u8> = instructions.iter().flat_map(Instruction::to_bytes).collect();
        let code = Code::of(Reader::new(&bytes[..])).unwrap();
        let mut replay = Replay::new(code, Reader::new(std::io::Cursor::new(bytes)));
        let mut trace = Trace::default();
        replay.fill(&mut trace, usize::MAX).unwrap();
        (replay, trace)
    }

    /// A loop of a load, an add, and a conditional branch, which runs `times` times, then a return.
    fn written(times: u64) -> (Vec<TracedBlock>, Trace) {
        let op = |op, d, j, k, imm| Decoded { d, j, k, imm, ..Decoded::new(op) };
        let body = [op(Op::LdD, 4, 5, 0, 0), op(Op::AddD, 6, 6, 4, 0), op(Op::Bne, 7, 6, 0, -8)];
        let end = [op(Op::StD, 6, 3, 0, 0), op(Op::Jirl, 0, 1, 0, 0)];
        let blocks = vec![
            TracedBlock { start: 0x4000, instructions: body.into() },
            TracedBlock { start: 0x400c, instructions: end.into() },
        ];
        let mut trace = Trace::default();
        for nth in 0..times {
            trace.push(&Record { block: BlockNumber(0), executed: 3, addresses: &[0x10_0000 + 8 * nth] });
        }
        trace.push(&Record { block: BlockNumber(1), executed: 2, addresses: &[0x20_0000] });
        (blocks, trace)
    }

    #[test]
    fn a_written_trace_is_replayed_with_its_instructions_accesses_and_branches() {
        let (blocks, trace) = written(5);
        let mut writer = Writer::new(Vec::new());
        writer.append(&trace, &blocks).unwrap();
        assert_eq!(writer.instructions(), 17);
        let bytes = writer.finish().unwrap();
        let instructions: Vec<_> = Reader::new(&bytes[..]).map(Result::unwrap).collect();
        let taken: Vec<_> = instructions.iter().filter(|it| it.is_branch).map(|it| it.is_taken).collect();
        assert_eq!(taken, [true, true, true, true, false, false], "the last one has no successor");
        let (replay, again) = replayed(&instructions);
        let shapes =
            |trace: &Trace, blocks: &dyn Fn(BlockNumber) -> TracedBlock| -> Vec<(Vec<Op>, Vec<u64>)> {
                let records = trace.records();
                records
                    .map(|record| {
                        let block = blocks(record.block);
                        (block.instructions.iter().map(|it| it.op).collect(), record.addresses.to_vec())
                    })
                    .collect()
            };
        let mut expected = shapes(&trace, &|number| blocks.block(number));
        // A trace does not contain the comparison of a branch.
        expected
            .iter_mut()
            .flat_map(|(ops, _)| ops)
            .filter(|op| **op == Op::Bne)
            .for_each(|op| *op = Op::Beq);
        assert_eq!(shapes(&again, &|number| replay.block(number)), expected);
        let body = replay.block(BlockNumber(0));
        assert_eq!(body.instructions[2].imm, -8, "the branch leads to the beginning of its block");
        let end = replay.block(BlockNumber(1));
        assert_eq!(end.start, body.start + 12, "execution continues after a branch that is not taken");
        assert_eq!((end.instructions[1].d, end.instructions[1].j), (0, 1), "a return is one");
    }

    proptest! {
        #[test]
        fn every_trace_is_replayed_whole(instructions in prop::collection::vec(any_instruction(), 1..200)) {
            let (replay, trace) = replayed(&instructions);
            prop_assert_eq!(replay.instructions(), instructions.len() as u64);
            for record in trace.records() {
                let block = replay.block(record.block);
                prop_assert_eq!(block.instructions.len(), usize::from(record.executed));
                prop_assert_eq!(longma_trace::count_addresses(&block.instructions), record.addresses.len() as u16);
                prop_assert!(record.addresses.iter().all(|address| *address < 1 << ADDRESS_BITS));
                prop_assert!(block.instructions.len() <= MAX_BLOCK);
            }
        }
    }
}
