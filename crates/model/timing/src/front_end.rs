//! The front end: when the instructions of a block can be dispatched, given fetch, branch prediction and misprediction
//! penalties. `wrong_path.rs` models fetches on the wrong path.
//!
//! Source: Sanchez and Kozyrakis, ZSim (ISCA 2013, section 3.1), for fetch that runs ahead by cycle counts.

use std::ops::AddAssign;

use longma_memory::{MemoryPort, Source, translation::Side};
use longma_sim::Cycle;
use longma_topology::parts;
use longma_trace::{BlockNumber, Blocks, Record, Trace};

use crate::{
    announce,
    branch::{Direction, IndirectTargets, ResolvedBranch, ReturnStack, TargetBuffer},
    instruction_counts::Reached,
    model_error::ModelError,
    operations::{Branch, BranchKind, DecodedBlock, MicroOperation},
    parameters::{self, Parameters},
    pipeline::{PipelineLog, Stages},
    program::{BlockCounts, Entry, Program},
    stack::{Cause, CpiStack},
    timeline::Timeline,
    wrong_path::WrongPath,
};

/// Penalty of a taken direct branch that is not in the target buffer and is found by the decoder, cycles. Estimate:
/// fetch and decode take two to four stages on cores that publish them.
const TARGET_MISS_CYCLES: u64 = 3;
/// Cycles by which fetch can be ahead of dispatch: the depth of the queue between them. Estimate: eight cycles of
/// decoded instructions, as in queues of 28 to 32 entries behind four-wide decoders (Fog, 2023).
const FETCH_AHEAD_CYCLES: u64 = 8;

/// Cycles from the issue of an access to its exception, if no older instruction is pending: translation is the first
/// step of an access.
pub(crate) const TRAP_CYCLES: u64 = 1;

/// Parameters of instruction fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchOptions {
    /// Load-to-use latency of the first-level instruction cache, cycles. It is included in the `ready` time of a fetch,
    /// although the pipeline hides it.
    pub hit_cycles: u64,
    /// Length of an instruction line, bytes; a power of two, at least 4.
    pub line_bytes: u64,
}

impl Default for FetchOptions {
    /// The defaults of a machine file.
    fn default() -> Self {
        Self { hit_cycles: parts::LEVEL1_CYCLES, line_bytes: parts::LINE_BYTES }
    }
}

/// Branches by kind and prediction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BranchCounts {
    /// Conditional branches, including those whose direction is unknown because a trap followed.
    pub conditional: u64,
    /// Conditional branches with a mispredicted direction.
    pub conditional_mispredicted: u64,
    /// Jumps and calls through a register.
    pub indirect: u64,
    /// Indirect branches with a mispredicted target.
    pub indirect_mispredicted: u64,
    /// Returns.
    pub returns: u64,
    /// Returns with a mispredicted target.
    pub returns_mispredicted: u64,
    /// Taken direct branches that were not in the target buffer.
    pub target_misses: u64,
}

impl BranchCounts {
    /// All counts, to scale or to add them.
    pub fn counts_mut(&mut self) -> [&mut u64; 7] {
        let Self {
            conditional,
            conditional_mispredicted,
            indirect,
            indirect_mispredicted,
            returns,
            returns_mispredicted,
            target_misses,
        } = self;
        [
            conditional,
            conditional_mispredicted,
            indirect,
            indirect_mispredicted,
            returns,
            returns_mispredicted,
            target_misses,
        ]
    }
}

impl AddAssign for BranchCounts {
    fn add_assign(&mut self, mut other: Self) {
        self.counts_mut().into_iter().zip(other.counts_mut()).for_each(|(sum, more)| *sum += *more);
    }
}

/// A branch whose outcome becomes known with the next block.
#[derive(Clone, Copy, Debug)]
struct Pending {
    branch: Branch,
    block: BlockNumber,
    /// The cycle in which it is resolved.
    resolved: u64,
}

/// The result of beginning a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockEntry {
    /// Nothing to record.
    Normal,
    /// The branch at the end of this block was mispredicted.
    Mispredicted(BlockNumber),
}

/// The part of a core behind the front end. It executes the operations of a record one after another.
pub(crate) trait BackEnd {
    /// The front end that feeds it.
    fn front(&mut self) -> &mut FrontEnd;

    /// The blocks executed so far.
    fn program(&mut self) -> &mut Program;

    /// The core's parameters.
    fn parameters(&self) -> &Parameters;

    /// The cycles of the last dispatch and of the last retirement.
    fn progress(&self) -> [u64; 2];

    /// The cycle in which all executed instructions have left the pipeline.
    fn emptied(&self) -> u64;

    /// Number of slots of the last stage since time zero.
    fn position(&self) -> u64;

    /// The slots lost so far, by cause.
    fn lost(&self) -> &CpiStack;

    /// Delays dispatch until the front end delivers the next instruction.
    fn wait_for_fetch(&mut self);

    /// Runs one record.
    #[inline]
    fn run(&mut self, entry: &mut Entry, record: &Record<'_>, port: &mut impl MemoryPort) -> BlockEntry
    where
        Self: Sized,
    {
        let entered = begin(self, &entry.block, port);
        execute(self, entry, record, port);
        entered
    }

    /// Executes one operation at `at` and returns the cycle in which its result is available.
    fn step(
        &mut self,
        operation: &MicroOperation,
        at: AccessSite,
        counts: &mut BlockCounts,
        port: &mut impl MemoryPort,
    ) -> u64;

    /// The cycles in which the last operation was dispatched, issued and retired. `resolved` is the cycle of its
    /// result.
    fn stages(&self, resolved: u64) -> [u64; 3];

    /// The log of the first instructions' stages.
    fn log(&mut self) -> &mut PipelineLog;
}

/// An instruction's address and the address it accesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessSite {
    /// Address of the instruction.
    pub pc: u64,
    /// Address it accesses; 0 if none.
    pub address: u64,
}

/// Runs the records of `trace` through a front end and back end.
pub(crate) fn drain(
    back_end: &mut impl BackEnd,
    trace: &Trace,
    blocks: &impl Blocks,
    port: &mut impl MemoryPort,
) {
    // The program is moved out so that one of its blocks and the pipeline can be borrowed at the same time.
    let mut program = std::mem::take(back_end.program());
    let mut announcer = announce::announcer(trace, port.wants_announcements());
    for record in trace.records() {
        announcer.before(&record, port);
        let entry = program.enter(&record, blocks, back_end.parameters());
        if let BlockEntry::Mispredicted(number) = back_end.run(entry, &record, port) {
            program.note_mispredict(number);
        }
    }
    *back_end.program() = program;
}

/// Begins `block`: resolves the branch before it.
#[inline]
pub(crate) fn begin(
    back_end: &mut impl BackEnd,
    block: &DecodedBlock,
    port: &mut impl MemoryPort,
) -> BlockEntry {
    let [dispatch, retired] = back_end.progress();
    back_end.front().begin(block.start, dispatch, retired, port)
}

/// Executes one record whose block has begun: fetches its instruction lines and executes the operations of each.
#[inline]
pub(crate) fn execute(
    back_end: &mut impl BackEnd,
    entry: &mut Entry,
    record: &Record<'_>,
    port: &mut impl MemoryPort,
) {
    if back_end.log().observes() {
        execute_observed(back_end, entry, record, port);
    } else {
        execute_record::<false>(back_end, entry, record, port);
    }
}

#[cold]
#[inline(never)]
fn execute_observed(
    back_end: &mut impl BackEnd,
    entry: &mut Entry,
    record: &Record<'_>,
    port: &mut impl MemoryPort,
) {
    execute_record::<true>(back_end, entry, record, port);
}

#[inline(always)]
fn execute_record<const IS_OBSERVED: bool>(
    back_end: &mut impl BackEnd,
    Entry { block, counts, .. }: &mut Entry,
    record: &Record<'_>,
    port: &mut impl MemoryPort,
) {
    let slots_before = back_end.position();
    let mut reached = IS_OBSERVED.then(|| Reached::now(slots_before, back_end.lost(), counts));
    let executed = usize::from(record.executed).min(block.operations.len());
    let mut addresses = record.addresses.iter();
    let (mut index, mut pc, mut resolved) = (0, block.start, 0);
    while index < executed {
        let emptied = back_end.emptied();
        let (line, source) = back_end.front().fetch(pc, emptied, port);
        counts.fetch_misses += u32::from(source.is_some_and(|s| s != Source::Level1));
        let end = executed.min(index + line.min(back_end.front().fetch_group()) as usize);
        back_end.wait_for_fetch();
        for (number, operation) in block.operations[index..end].iter().enumerate() {
            let address = if operation.bytes > 0 { addresses.next().copied().unwrap_or(0) } else { 0 };
            let address = operation.unit.begin(address);
            resolved = back_end.step(operation, AccessSite { pc, address }, counts, port);
            if let Some(reached) = &mut reached {
                observe(back_end, (record.block, block), index + number, (reached, counts), resolved);
            }
            pc = pc.wrapping_add(4);
        }
        // After a refetch, fetch continues from the refetched instruction.
        let refetch_index = back_end
            .front()
            .refetched_from
            .take()
            .map_or(index, |from| ((from.wrapping_sub(block.start)) / 4) as usize);
        back_end.front().advance((end - refetch_index) as u64);
        index = end;
    }
    back_end.front().end(record.block, block, executed, resolved);
    counts.slots += back_end.position() - slots_before;
}

/// Records instruction `index` of a block, which has just executed. `reached` holds the counts before the instruction,
/// and the block's counts after it.
#[cold]
fn observe(
    back_end: &mut impl BackEnd,
    (number, block): (BlockNumber, &DecodedBlock),
    index: usize,
    (reached, counts): (&mut Reached, &BlockCounts),
    resolved: u64,
) {
    if back_end.log().is_open() {
        log(back_end, block, index, resolved);
    }
    let now = Reached::now(back_end.position(), back_end.lost(), counts);
    let before = std::mem::replace(reached, now);
    if let Some(log) = &mut back_end.log().counts {
        now.add_since(&before, &mut log.block(number, block.operations.len())[index]);
    }
}

fn log(back_end: &mut impl BackEnd, block: &DecodedBlock, number: usize, resolved: u64) {
    let [dispatch, issue, retire] = back_end.stages(resolved);
    let fetch = back_end.front().cycle();
    back_end.log().push(Stages {
        address: block.start.wrapping_add(4 * number as u64),
        instruction: block.instructions[number],
        fetch,
        dispatch,
        issue,
        complete: resolved,
        retire,
    });
}

/// The state of fetch at the start of a block, relative to a cycle of the last stage. Together with the latencies of
/// the instruction lines, it determines when the block's instructions are fetched.
///
/// Packed into one word because it is compared for each block: cycles that fetch is ahead in bits 15:0, instructions
/// fetched in the current cycle in 22:16, the cause of waiting in 27:23, and in bit 28 whether the block begins in the
/// line fetched last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct FetchState(u32);

impl FetchState {
    const IN_LINE: u32 = 1 << 28;

    /// Returns whether the block begins in the line fetched last.
    pub fn is_in_line(self) -> bool {
        self.0 & Self::IN_LINE != 0
    }
}

/// The front end of one core.
#[derive(Debug)]
pub(crate) struct FrontEnd {
    /// The current fetch cycle, and the number of instructions fetched in it.
    cycle: u64,
    fetched: u64,
    /// Instructions fetched per cycle.
    width: u64,
    /// Whether fewer instructions are fetched than dispatched per cycle. Instructions fetched in different cycles are
    /// then dispatched in different cycles.
    is_narrow: bool,
    /// Cycles from fetch to dispatch.
    depth: u64,
    options: FetchOptions,
    last_line: u64,
    /// Address of the next block if no branch is taken.
    next: u64,
    pending: Option<Pending>,
    /// Instructions from this address on were fetched twice.
    refetched_from: Option<u64>,
    /// Why the next dispatch waits, if it waits for fetch.
    pub cause: Cause,
    pub counts: BranchCounts,
    pub direction: Direction,
    targets: TargetBuffer,
    returns: ReturnStack,
    pub indirect: IndirectTargets,
    /// `None` if the core fetches nothing on the wrong path.
    wrong_path: Option<WrongPath>,
}

impl FrontEnd {
    /// Creates a front end with untrained predictors. `issue_cycles` is the time from dispatch to the issue of a ready
    /// branch.
    ///
    /// # Errors
    /// If the machine file names an unknown predictor, or if the options are invalid.
    pub fn new(
        core: &parts::Core,
        parameters: &Parameters,
        options: FetchOptions,
        issue_cycles: u64,
    ) -> Result<Self, ModelError> {
        if !options.line_bytes.is_power_of_two() || options.line_bytes < 4 {
            return Err(ModelError::LineBytes(options.line_bytes));
        }
        let branch_cycles = u64::from(parameters.class(parts::Operation::Branch).latency_cycles);
        Ok(Self {
            cycle: 0,
            fetched: 0,
            width: parameters.fetch_width,
            is_narrow: parameters.fetch_width < parameters.dispatch_width,
            // A ready branch resolves this long after its fetch, so that refetching takes the published penalty in
            // total.
            depth: parameters.mispredict_cycles.saturating_sub(issue_cycles + branch_cycles),
            options,
            last_line: u64::MAX,
            next: 0,
            pending: None,
            refetched_from: None,
            cause: Cause::FrontEnd,
            counts: BranchCounts::default(),
            direction: parameters::direction(core)?,
            targets: TargetBuffer::new(parameters.btb_entries),
            returns: ReturnStack::new(parameters.ras_entries),
            indirect: parameters::indirect(core)?,
            wrong_path: WrongPath::of(
                core,
                parameters,
                (options.hit_cycles, options.line_bytes),
                FETCH_AHEAD_CYCLES,
            ),
        })
    }

    /// Begins a block at `start`: resolves the branch before it. `dispatch` is the cycle of the last dispatch,
    /// `retired` that of the last retirement.
    #[inline]
    pub fn begin(
        &mut self,
        start: u64,
        dispatch: u64,
        retired: u64,
        port: &mut impl MemoryPort,
    ) -> BlockEntry {
        self.cause = Cause::FrontEnd;
        let fetch_cycle = dispatch.saturating_sub(self.depth + FETCH_AHEAD_CYCLES);
        if fetch_cycle > self.cycle {
            (self.cycle, self.fetched) = (fetch_cycle, 0);
        }
        let Some(pending) = self.pending.take() else {
            if start != self.next {
                // A signal, a thread switch or a trap: the pipeline was empty.
                self.redirect(retired, Cause::Synchronization);
            }
            return BlockEntry::Normal;
        };
        let branch = pending.branch;
        let taken = start != self.next;
        // One combined condition for the rare case, because the host cannot predict whether the guest's branch is
        // taken.
        if taken & (branch.target != 0) & (branch.target != start) {
            // A signal, a thread switch or a trap of the next instruction hides the branch's direction.
            self.counts.conditional += u64::from(branch.kind == BranchKind::Conditional);
            self.redirect(retired, Cause::Synchronization);
            return BlockEntry::Normal;
        }
        let right = self.resolve(&branch, taken, start);
        if !right {
            self.fetch_wrong_path(&branch, taken, pending.resolved, port);
            self.redirect(pending.resolved, Cause::Mispredict);
            return BlockEntry::Mispredicted(pending.block);
        }
        BlockEntry::Normal
    }

    /// Returns whether fetch continued on the right path. Charges small penalties.
    #[inline]
    fn resolve(&mut self, branch: &Branch, taken: bool, target: u64) -> bool {
        let (address, fall_through) = (branch.address, branch.address.wrapping_add(4));
        let right = match branch.kind {
            BranchKind::None => true,
            BranchKind::Conditional => {
                self.counts.conditional += 1;
                let predicted =
                    self.direction.resolve(ResolvedBranch { address, target: branch.target, taken });
                self.counts.conditional_mispredicted += u64::from(predicted != taken);
                self.indirect.note_conditional(address, taken);
                predicted == taken
            }
            BranchKind::Direct => true,
            BranchKind::Call => {
                self.returns.push(fall_through);
                true
            }
            BranchKind::Indirect | BranchKind::IndirectCall => {
                if branch.kind == BranchKind::IndirectCall {
                    self.returns.push(fall_through);
                }
                self.counts.indirect += 1;
                let right = self.indirect.resolve(address, target);
                self.counts.indirect_mispredicted += u64::from(!right);
                right
            }
            BranchKind::Return => {
                self.counts.returns += 1;
                let right = self.returns.pop(target);
                self.counts.returns_mispredicted += u64::from(!right);
                right
            }
        };
        // A taken branch ends the group of instructions fetched together.
        let ends = taken & right;
        self.cycle += u64::from(ends);
        self.fetched = if ends { 0 } else { self.fetched };
        if taken & (branch.target != 0) & !self.targets.knows(address, target)
            && !self.targets.resolve(address, target)
        {
            self.counts.target_misses += 1;
            if right {
                self.next_cycle(TARGET_MISS_CYCLES);
            }
        }
        right
    }

    /// Fetches on the wrong path of a conditional branch that is resolved at `resolved`. The predicted target of other
    /// branches is not known.
    #[inline]
    fn fetch_wrong_path(&mut self, branch: &Branch, taken: bool, resolved: u64, port: &mut impl MemoryPort) {
        let Some(wrong_path) = &mut self.wrong_path else { return };
        if branch.kind == BranchKind::Conditional {
            // A taken branch ends the fetch group.
            let start = if taken { branch.address.wrapping_add(4) } else { branch.target };
            let from = self.cycle + u64::from(!taken);
            let last = wrong_path.fetch((branch.address, start), (from, resolved), port);
            self.last_line = last.unwrap_or(self.last_line);
        }
    }

    /// Lines fetched on wrong paths; `None` if the core fetches none.
    pub fn wrong_path_lines(&self) -> Option<u64> {
        self.wrong_path.as_ref().map(|path| path.lines)
    }

    /// Resets the counts.
    pub fn clear_counts(&mut self) {
        self.counts = BranchCounts::default();
        self.wrong_path.iter_mut().for_each(|path| path.lines = 0);
    }

    fn next_cycle(&mut self, cycles: u64) {
        self.cycle += cycles;
        self.fetched = 0;
    }

    /// Restarts fetch at `cycle` for `cause`.
    pub fn redirect(&mut self, cycle: u64, cause: Cause) {
        self.cycle = self.cycle.max(cycle);
        self.fetched = 0;
        self.cause = cause;
    }

    /// Models an exception of the instruction at `pc`, which is `stages` cycles past dispatch. The exception empties
    /// the pipeline in cycle `taken`. It costs a lone instruction `cycles`, or the time to reach the same stage again
    /// if that is longer.
    #[cold]
    pub fn trap(&mut self, pc: u64, taken: u64, stages: u64, cycles: u32) {
        let refetch = self.depth + stages + TRAP_CYCLES;
        self.redirect(taken + u64::from(cycles).saturating_sub(refetch), Cause::Translation);
        self.refetched_from = Some(pc);
    }

    /// Squashes the instruction at `pc` and all younger ones in cycle `at`, and fetches them again.
    #[cold]
    pub fn fetch_again(&mut self, pc: u64, at: u64) {
        self.redirect(at, Cause::MemoryOrder);
        self.refetched_from = Some(pc);
    }

    /// Delays fetch and the last stage until `cycle`, for `cause`.
    pub fn advance_to(&mut self, last_stage: &mut Timeline, cycle: u64, cause: Cause) {
        if cycle > last_stage.now() {
            last_stage.wait(cycle, cause);
            self.redirect(cycle, Cause::Synchronization);
        }
    }

    /// Like [`advance_to`](Self::advance_to), but the time in between is not counted.
    pub fn pass_to(&mut self, last_stage: &mut Timeline, cycle: u64) {
        if cycle > last_stage.now() {
            last_stage.pass(cycle);
            self.redirect(cycle, Cause::Synchronization);
        }
    }

    /// Fetches the line of `address` unless it was the last one fetched. Returns the number of instructions from
    /// `address` to the end of the line, and the line's source if it was fetched. Older instructions have left the
    /// pipeline at `emptied`.
    #[inline]
    pub fn fetch(&mut self, address: u64, emptied: u64, port: &mut impl MemoryPort) -> (u64, Option<Source>) {
        let line = self.line_of(address);
        // At least one, so that an address that is not a multiple of four does not stall the model.
        let instructions = (line.wrapping_add(self.options.line_bytes).wrapping_sub(address) / 4).max(1);
        if line == self.last_line {
            return (instructions, None);
        }
        self.last_line = line;
        let refill_cycles = port.refill(Side::Instruction, address, 4);
        if refill_cycles > 0 {
            // The exception passes through the pipeline in place of the instruction that could not be fetched.
            let taken = (self.dispatchable() + TRAP_CYCLES).max(emptied);
            self.trap(address, taken, 0, refill_cycles);
            self.refetched_from = None;
        }
        let answer = port.fetch(address, Cycle(self.cycle));
        let delay = answer.ready.0.saturating_sub(self.cycle + self.options.hit_cycles);
        if delay > 0 {
            self.next_cycle(delay);
            let translation = u64::from(answer.translation_cycles) * 2 > delay;
            self.cause = if translation { Cause::Translation } else { Cause::Fetch };
        }
        (instructions, Some(answer.source))
    }

    /// Number of instructions that can be processed together: all if dispatch is no faster than fetch, otherwise the
    /// rest of the current fetch cycle.
    #[inline]
    fn fetch_group(&self) -> u64 {
        if self.is_narrow { self.width - self.fetched } else { u64::MAX }
    }

    /// The state of fetch for a block at `start`, relative to `cycle`; `None` if the difference is too large to be
    /// packed.
    #[inline]
    pub fn fetching(&self, start: u64, cycle: u64) -> Option<FetchState> {
        let ahead = i16::try_from(self.cycle.wrapping_sub(cycle) as i64).ok()?;
        let in_line = if self.line_of(start) == self.last_line { FetchState::IN_LINE } else { 0 };
        let fetched = (self.fetched as u32) << 16 | (self.cause as u32) << 23;
        Some(FetchState(u32::from(ahead as u16) | fetched | in_line))
    }

    /// Sets the state of fetch: it has reached `cycle`, in which it fetched `fetched` instructions, the last of them at
    /// `address`.
    #[inline]
    pub fn arrive(&mut self, cycle: u64, fetched: u64, address: u64) {
        (self.cycle, self.fetched, self.last_line) = (cycle, fetched, self.line_of(address));
    }

    /// The instruction line of `address`.
    #[inline]
    pub fn line_of(&self, address: u64) -> u64 {
        address & !(self.options.line_bytes - 1)
    }

    /// Load-to-use latency of the first-level instruction cache, cycles.
    pub fn hit_cycles(&self) -> u64 {
        self.options.hit_cycles
    }

    /// The cycle in which the pending branch is resolved; 0 if there is none.
    pub fn resolved(&self) -> u64 {
        self.pending.map_or(0, |pending| pending.resolved)
    }

    /// Length of an instruction line, bytes.
    pub fn line_bytes(&self) -> u64 {
        self.options.line_bytes
    }

    /// Instructions fetched in the current fetch cycle.
    pub fn fetched(&self) -> u64 {
        self.fetched
    }

    /// The current fetch cycle.
    pub fn cycle(&self) -> u64 {
        self.cycle
    }

    /// The first cycle in which an instruction fetched now can be dispatched.
    #[inline]
    pub fn dispatchable(&self) -> u64 {
        self.cycle + self.depth
    }

    /// Records that `instructions` were fetched.
    #[inline]
    pub fn advance(&mut self, instructions: u64) {
        self.fetched += instructions;
        while self.fetched >= self.width {
            self.fetched -= self.width;
            self.cycle += 1;
        }
    }

    /// Trains the predictors with the branch before the block at `start`. No time passes, and no statistics are
    /// counted.
    pub fn learn_branch(&mut self, start: u64) {
        let Some(Pending { branch, .. }) = self.pending.take() else { return };
        let taken = start != self.next;
        if taken && branch.target != 0 && branch.target != start {
            return;
        }
        let (cycle, fetched, counts) = (self.cycle, self.fetched, self.counts);
        self.resolve(&branch, taken, start);
        (self.cycle, self.fetched, self.counts) = (cycle, fetched, counts);
    }

    /// Notes a fetch of the line of `address`. Returns whether it differs from the line fetched last.
    pub fn enters_line(&mut self, address: u64) -> bool {
        let line = self.line_of(address);
        std::mem::replace(&mut self.last_line, line) != line
    }

    /// Ends a block after `executed` instructions. The last one completed at `resolved`.
    #[inline]
    pub fn end(&mut self, number: BlockNumber, block: &DecodedBlock, executed: usize, resolved: u64) {
        let is_complete = executed == block.operations.len();
        self.next = block.start.wrapping_add(4 * executed as u64);
        if is_complete && block.branch.kind != BranchKind::None {
            self.pending = Some(Pending { branch: block.branch, block: number, resolved });
        }
    }
}
