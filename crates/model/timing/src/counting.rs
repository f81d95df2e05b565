//! The counting model: feeds instruction fetches and memory accesses to the memory model in program order, without
//! timing. Time advances by one cycle per instruction, so that quanta end.

use longma_memory::{MemoryPort, Source};
use longma_sim::Cycle;
use longma_topology::parts;
use longma_trace::{Blocks, Trace};

use crate::{
    announce, front_end::FetchOptions, instruction_counts::InstructionLog, model_error::ModelError,
    operations::Kind, parameters::Parameters, program::Program,
};

/// The counting model of a core.
#[derive(Debug)]
pub(crate) struct Counting {
    parameters: Parameters,
    pub program: Program,
    line_bytes: u64,
    last_line: u64,
    /// Cycles: one per instruction, plus skipped idle cycles.
    pub cycle: u64,
    pub instructions: u64,
    /// Idle cycles. Accesses that miss in the first-level caches are in the counts of the blocks.
    pub idle: u64,
    /// The counts of single instructions, if they are requested.
    pub log: Option<InstructionLog>,
}

impl Counting {
    /// Creates a model with all counts zero.
    ///
    /// # Errors
    /// If the machine file's parameters are invalid.
    pub fn new(core: &parts::Core, options: FetchOptions) -> Result<Self, ModelError> {
        if !options.line_bytes.is_power_of_two() || options.line_bytes < 4 {
            return Err(ModelError::LineBytes(options.line_bytes));
        }
        Ok(Self {
            parameters: Parameters::resolve(core)?,
            program: Program::default(),
            line_bytes: options.line_bytes,
            last_line: u64::MAX,
            cycle: 0,
            instructions: 0,
            idle: 0,
            log: None,
        })
    }

    /// Processes the records of the trace.
    pub fn drain(&mut self, trace: &Trace, blocks: &impl Blocks, port: &mut impl MemoryPort) {
        let mut announcer = announce::announcer(trace, port.wants_announcements());
        for record in trace.records() {
            announcer.before(&record, port);
            let entry = self.program.enter(&record, blocks, &self.parameters);
            let block = &entry.block;
            let executed = record.executed.min(block.operations.len() as u16);
            let start = block.start;
            let mut log = self.log.as_mut().map(|log| log.block(record.block, block.operations.len()));
            if let Some(log) = &mut log {
                log[..usize::from(executed)].iter_mut().for_each(|counts| counts.runs += 1);
            }
            let end = start.wrapping_add(4 * u64::from(executed));
            let mut line = start & !(self.line_bytes - 1);
            while line < end {
                if line != self.last_line {
                    self.last_line = line;
                    let answer = port.fetch(line.max(start), Cycle(self.cycle));
                    entry.counts.fetch_misses += u32::from(answer.source != Source::Level1);
                    if let Some(log) = log.as_mut().filter(|_| answer.source != Source::Level1) {
                        let first = (line.max(start).wrapping_sub(start) / 4) as usize;
                        log[first].fetch_misses = log[first].fetch_misses.saturating_add(1);
                    }
                }
                line = line.wrapping_add(self.line_bytes);
            }
            for (access, &address) in block.accesses.iter().zip(record.addresses) {
                let address = access.unit.begin(address);
                let at = Cycle(self.cycle + u64::from(access.instruction));
                let pc = start.wrapping_add(4 * u64::from(access.instruction));
                let source = match access.kind {
                    Kind::Load => port.load(address, access.bytes.into(), pc, at).source,
                    Kind::Prefetch => {
                        port.prefetch(address, pc, at);
                        continue;
                    }
                    _ => port.store(address, access.bytes.into(), pc, at).source,
                };
                if source != Source::Level1 {
                    entry.counts.misses[source as usize] += 1;
                    if let Some(log) = &mut log {
                        let misses = &mut log[usize::from(access.instruction)].misses[source as usize];
                        *misses = misses.saturating_add(1);
                    }
                }
            }
            self.cycle += u64::from(executed);
            self.instructions += u64::from(executed);
        }
    }

    /// Skips idle time to `cycle`.
    pub fn advance_to(&mut self, cycle: u64) {
        self.idle += cycle.saturating_sub(self.cycle);
        self.cycle = self.cycle.max(cycle);
    }
}
