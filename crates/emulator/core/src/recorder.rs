//! The trace of one core: tracks the position of the next record and completes the record of a block that ends early.
//! Translated code writes records itself (`jit/emit/tracing.rs`).

use std::sync::Arc;

use longma_loongarch::Instruction;
use longma_trace::{BlockNumber, Trace, TracedBlock, address_of, count_addresses, encode_head, has_address};

use crate::{block::MAX_INSTRUCTIONS, cpu::Cpu, traced_blocks::TracedBlocks};

/// The default quantum: 32 KiB of trace, which stays in the host's caches until it is read.
const DEFAULT_QUANTUM_WORDS: usize = 4096;

/// The maximum quantum in words.
const MAX_QUANTUM_WORDS: usize = 1 << 16;

/// The size of the largest record in words: its header and one address for each instruction.
const MAX_RECORD_WORDS: usize = 1 + MAX_INSTRUCTIONS;

/// A core's trace. The pointers into it are in the [`Cpu`].
pub(crate) struct Recorder {
    trace: Trace,
    blocks: Arc<TracedBlocks>,
    quantum_words: usize,
}

impl Recorder {
    /// Creates an empty trace and points `cpu` at it.
    pub fn new(blocks: Arc<TracedBlocks>, cpu: &mut Cpu) -> Self {
        // A block that starts one word before the end of the quantum still has space for its record.
        let trace = Trace::with_capacity(MAX_QUANTUM_WORDS + MAX_RECORD_WORDS);
        let mut recorder = Self { trace, blocks, quantum_words: DEFAULT_QUANTUM_WORDS };
        recorder.clear(cpu);
        recorder
    }

    /// Sets the length of a quantum; see [`Core::set_quantum`](crate::Core::set_quantum).
    pub fn set_quantum(&mut self, cpu: &mut Cpu, words: usize) {
        self.quantum_words = words.clamp(1, MAX_QUANTUM_WORDS);
        cpu.trace_limit = self.trace.address() + 8 * self.quantum_words as u64;
    }

    /// Removes all records.
    pub fn clear(&mut self, cpu: &mut Cpu) {
        cpu.trace_next = self.trace.address();
        self.trace.set_used(0);
        self.set_quantum(cpu, self.quantum_words);
    }

    /// Sets the length of the trace to the records that `cpu` has completed.
    pub fn refresh(&mut self, cpu: &Cpu) {
        let used = self.next(cpu);
        self.trace.set_used(used);
    }

    /// The records completed at the last [`Recorder::refresh`].
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Whether the quantum has ended.
    pub fn is_full(cpu: &Cpu) -> bool {
        cpu.trace_next >= cpu.trace_limit
    }

    /// Whether no record is complete.
    pub fn is_empty(&mut self, cpu: &Cpu) -> bool {
        self.next(cpu) == 0
    }

    /// The index of the word where the next record of `cpu` starts.
    fn next(&mut self, cpu: &Cpu) -> usize {
        (cpu.trace_next - self.trace.address()) as usize / 8
    }

    /// The block whose record translated code has started and not completed. The first word of the record is the block
    /// number.
    pub fn open_block(&mut self, cpu: &Cpu) -> (BlockNumber, TracedBlock) {
        let next = self.next(cpu);
        let number = BlockNumber(*self.trace.word(next) as u32);
        let block = self.blocks.get(number).expect("translated code writes numbers of traced blocks");
        (number, block)
    }

    /// The number of the block of `instructions` at `start`; see [`TracedBlocks::intern`].
    pub fn number(&self, start: u64, instructions: &[Instruction]) -> BlockNumber {
        self.blocks.intern(start, instructions)
    }

    /// Records the address that `instruction` is about to access, if any. `preceding` holds the preceding instructions
    /// of the block.
    pub fn record_address(&mut self, cpu: &Cpu, instruction: &Instruction, preceding: &[Instruction]) {
        if has_address(instruction.op) {
            let at = self.next(cpu) + 1 + usize::from(count_addresses(preceding));
            *self.trace.word(at) = address_of(instruction, &cpu.state.x);
        }
    }

    /// Completes the record of block `number`. `executed` holds its executed instructions, whose addresses are
    /// recorded. If it is empty, no record is written.
    pub fn complete(&mut self, cpu: &mut Cpu, number: BlockNumber, executed: &[Instruction]) {
        if executed.is_empty() {
            return;
        }
        let addresses = count_addresses(executed);
        let next = self.next(cpu);
        *self.trace.word(next) = encode_head(number, executed.len() as u16, addresses);
        cpu.trace_next += 8 * (1 + u64::from(addresses));
    }
}
