//! The interpreter's cache of decoded blocks and their execution counts, and the execution of a block.

use std::ops::Range;

use longma_loongarch::{Trap, semantics};
use longma_trace::BlockNumber;
use rustc_hash::FxHashMap;

use crate::{
    block::{Block, End},
    cpu::Cpu,
    guest::Guest,
    jit::region::Profile,
    magic::Magic,
    recorder::Recorder,
    stop::{Stop, is_executed},
};

/// The number of executions after which a block is translated. Below it, interpreting costs less than translating.
pub(crate) const HOT_THRESHOLD: u32 = 30;

/// Size of the guest memory ranges that index the blocks.
const INDEX_RANGE_BYTES: u64 = 1024;

/// Decoded blocks and their execution counts.
#[derive(Default)]
pub(crate) struct BlockProfile {
    pub blocks: FxHashMap<u64, Box<ProfiledBlock>>,
    /// The blocks in each memory range, by range number. A block that spans two ranges is in both.
    index_ranges: FxHashMap<u64, Vec<u64>>,
}

/// The ranges that overlap a range of guest addresses.
fn index_ranges_of(range: &Range<u64>) -> Range<u64> {
    range.start / INDEX_RANGE_BYTES..range.end.div_ceil(INDEX_RANGE_BYTES)
}

/// A decoded block and its execution count.
pub(crate) struct ProfiledBlock {
    pub block: Block,
    pub semantics: Vec<semantics::Semantics<Guest>>,
    pub runs: u32,
    /// Its counter, if blocks are counted.
    pub counter: Option<u32>,
    /// Its number in traces, if blocks are traced.
    pub number: Option<BlockNumber>,
    /// The last instruction reads the clock, and the clock is simulated.
    pub reads_clock: bool,
    /// The last instruction is magic, and magic instructions are enabled.
    pub is_magic: bool,
}

impl BlockProfile {
    /// Adds a block.
    pub fn insert(&mut self, profiled: Box<ProfiledBlock>) {
        let block = &profiled.block;
        for range_number in index_ranges_of(&block.range()) {
            let blocks = self.index_ranges.entry(range_number).or_default();
            if !blocks.contains(&block.start) {
                blocks.push(block.start);
            }
        }
        self.blocks.insert(block.start, profiled);
    }

    /// Removes all blocks.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Removes the blocks that overlap `range`.
    pub fn forget(&mut self, range: &Range<u64>) {
        let overlapping = index_ranges_of(range);
        let index_ranges: Vec<u64> = if overlapping.end - overlapping.start > self.index_ranges.len() as u64 {
            self.index_ranges
                .keys()
                .copied()
                .filter(|range_number| overlapping.contains(range_number))
                .collect()
        } else {
            overlapping.collect()
        };
        for range_number in index_ranges {
            let Some(mut starts) = self.index_ranges.remove(&range_number) else { continue };
            starts.retain(|start| match self.blocks.get(start) {
                Some(profiled) if profiled.block.overlaps(range) => {
                    self.blocks.remove(start);
                    false
                }
                Some(_) => true,
                // The block was removed with its other range.
                None => false,
            });
            if !starts.is_empty() {
                self.index_ranges.insert(range_number, starts);
            }
        }
    }

    /// Resets the counts of hot blocks to just below the threshold, so that they are translated again.
    pub fn reset_hot_counts(&mut self) {
        for profiled in self.blocks.values_mut() {
            profiled.runs = profiled.runs.min(HOT_THRESHOLD - 1);
        }
    }
}

impl Profile for BlockProfile {
    fn block(&self, pc: u64) -> Option<(&Block, u32)> {
        self.blocks.get(&pc).map(|profiled| (&profiled.block, profiled.runs))
    }
}

impl ProfiledBlock {
    /// Executes the instructions of the block. Before an instruction that reads the clock, the core stops unless no
    /// instruction has been executed since the clock was set (`clock_is_fresh`). A request for attention takes effect
    /// after the current instruction, which may have changed the following code.
    pub fn interpret(&self, cpu: &mut Cpu, clock_is_fresh: bool) -> Result<(), Stop> {
        let instructions = &self.block.instructions;
        for (index, (instruction, semantics)) in instructions.iter().zip(&self.semantics).enumerate() {
            cpu.state.pc = self.block.pc(index);
            let is_last = index + 1 == instructions.len();
            if is_last && self.reads_clock && (index > 0 || !clock_is_fresh) {
                return Err(Stop::Quantum);
            }
            semantics(&mut cpu.state, instruction, &cpu.guest)?;
            if !is_last && cpu.attention.is_requested() {
                cpu.state.pc = self.block.pc(index + 1);
                return Err(Stop::Attention);
            }
        }
        self.end(cpu)
    }

    /// Completes the block after its last instruction.
    fn end(&self, cpu: &mut Cpu) -> Result<(), Stop> {
        let instructions = &self.block.instructions;
        let last = instructions.last();
        if !last.is_some_and(|last| last.op.is_control_flow()) {
            cpu.state.pc = self.block.pc(instructions.len());
        }
        if self.block.end == End::Invalid {
            return Err(Trap::IllegalInstruction.into());
        }
        let magic = last.filter(|_| self.is_magic).and_then(|last| Magic::of(last, &cpu.state));
        magic.map_or(Ok(()), |magic| Err(Stop::Magic(magic)))
    }

    /// Like `interpret`, but writes a trace record.
    pub fn record(&self, cpu: &mut Cpu, recorder: &mut Recorder) -> Result<(), Stop> {
        let instructions = &self.block.instructions;
        let number = self.number.expect("blocks of traced code have numbers");
        for (index, (instruction, semantics)) in instructions.iter().zip(&self.semantics).enumerate() {
            cpu.state.pc = self.block.pc(index);
            let is_last = index + 1 == instructions.len();
            if is_last && self.reads_clock && (index > 0 || !recorder.is_empty(cpu)) {
                recorder.complete(cpu, number, &instructions[..index]);
                return Err(Stop::Quantum);
            }
            recorder.record_address(cpu, instruction, &instructions[..index]);
            let result = semantics(&mut cpu.state, instruction, &cpu.guest).map_err(Stop::from);
            if result.is_err() {
                let executed = index + usize::from(is_executed(&result));
                recorder.complete(cpu, number, &instructions[..executed]);
                return result;
            }
        }
        recorder.complete(cpu, number, instructions);
        self.end(cpu)
    }
}
