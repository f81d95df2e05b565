//! The run loop of one guest thread: it interprets and counts cold blocks, and translates and runs hot ones. The caller
//! handles traps.

use std::{
    cell::Cell,
    io,
    sync::{Arc, atomic::Ordering},
};

use longma_guest::{GuestMemory, Window, host::schedule_fuzz::perturb};
use longma_loongarch::{
    Access, Class, Environment, Fault, FaultCause, Instruction, Op, State, Trap, decode, semantics,
};
use longma_trace::{BlockNumber, Blocks, Trace, TracedBlock, address_of, has_address};

use crate::{
    block::{Block, MAX_INSTRUCTIONS, reads_clock},
    cold_breaks::ColdBreaks,
    counting::{Counters, PartialExecution},
    cpu::{Cpu, ExitReason, InterruptedBlock, UNLIMITED_BUDGET},
    guest::{ConfigurationWords, Guest, SimulatedClock},
    jit::{Translator, recovery::Registration},
    magic::Magic,
    profile::{BlockProfile, HOT_THRESHOLD, ProfiledBlock},
    readers::Reader,
    recorder::Recorder,
    return_stack::ReturnStack,
    shared_code::SharedCode,
    stop::{Stop, is_executed},
};

/// The core of one guest thread.
pub struct Core {
    // Fields are dropped in order: the registration has pointers to the other fields.
    registration: Option<Registration>,
    cpu: Box<Cpu>,
    return_stack: ReturnStack,
    /// The translator whose code this core runs, and its generation.
    translator: Option<(Arc<Translator>, u64)>,
    /// The state for the current tracing mode.
    mode: ModeState,
    /// The state for the inactive tracing mode, if the mode can change.
    other_mode: Option<Box<ModeState>>,
    cold_breaks: ColdBreaks,
    /// The GS base that translated code needs; 0 if it does not use GS.
    segment_base: u64,
    /// No instruction has been executed since [`Core::run`] began.
    clock_is_fresh: bool,
    /// The budget when the caller last took the number of untraced instructions.
    reported_budget: u64,
}

/// Caches and counters of a core for one tracing mode: traced or untraced.
struct ModeState {
    code: SharedCode,
    profile: BlockProfile,
    counters: Option<Arc<Counters>>,
    /// Writes the trace; `None` in the untraced mode.
    recorder: Option<Recorder>,
    /// The number of code changes that this core has processed.
    seen_changes: u64,
    /// Publishes `seen_changes`, so that the memory of old code can be reused.
    reader: Reader,
}

impl ModeState {
    fn new(code: SharedCode) -> io::Result<Self> {
        Ok(Self {
            profile: BlockProfile::default(),
            counters: code.counting.as_ref().map(|c| c.add_thread()).transpose()?,
            recorder: None,
            seen_changes: code.changes.count(),
            reader: code.readers.add(),
            code,
        })
    }

    /// The address of the thread's counters for translated code; 0 if nothing is counted.
    fn counters_address(&self) -> u64 {
        self.counters.as_ref().map_or(0, |counters| counters.address())
    }
}

impl Core {
    /// Creates a core that starts with `state`. It may run on any host thread that `longma_guest::host::faults` has
    /// prepared, and a host thread may run several cores in turn.
    ///
    /// # Errors
    /// The host is out of memory.
    pub fn new(
        state: State,
        memory: GuestMemory,
        words: ConfigurationWords,
        code: SharedCode,
    ) -> io::Result<Self> {
        let return_stack = ReturnStack::allocate()?;
        let segment_base = memory.base() as u64;
        let mut guest = Guest::new(memory, words);
        guest.permit_private(code.origin.is_translated());
        let mut cpu = Cpu::new(state, guest);
        cpu.return_stack = return_stack.top();
        cpu.return_stack_top = return_stack.top();
        let other_mode = code.untraced.as_deref().cloned().map(ModeState::new).transpose()?;
        let mut mode = ModeState::new(code)?;
        cpu.counters = mode.counters_address();
        mode.recorder = mode.code.tracing.clone().map(|blocks| Recorder::new(blocks, &mut cpu));
        Ok(Self {
            registration: None,
            cpu,
            return_stack,
            translator: None,
            mode,
            other_mode: other_mode.map(Box::new),
            cold_breaks: ColdBreaks::default(),
            segment_base,
            clock_is_fresh: true,
            reported_budget: UNLIMITED_BUDGET,
        })
    }

    /// The registers and the attention flag.
    pub fn cpu(&mut self) -> &mut Cpu {
        &mut self.cpu
    }

    /// The trace since it was last cleared; empty if blocks are not traced.
    pub fn trace(&self) -> &Trace {
        static NOTHING: Trace = Trace::new();
        self.mode.recorder.as_ref().map_or(&NOTHING, Recorder::trace)
    }

    /// The block with this number in the core's trace. A number always refers to the same block.
    ///
    /// # Panics
    /// If no trace of this core contains the number.
    pub fn traced_block(&self, number: BlockNumber) -> TracedBlock {
        self.mode.code.traced_block(number)
    }

    /// Clears the trace.
    pub fn clear_trace(&mut self) {
        if let Some(recorder) = &mut self.mode.recorder {
            recorder.clear(&mut self.cpu);
        }
    }

    /// Enables or disables tracing, which is initially enabled. Without tracing there are no quanta: the core runs
    /// until it traps, its attention flag is set, it executes a magic instruction, or it reads the clock. Has no effect
    /// unless the code is [`pausable`](crate::Execution::pausable). Clear the trace first.
    pub fn set_tracing(&mut self, on: bool) {
        if self.mode.recorder.is_some() == on {
            return;
        }
        let Some(other_mode) = &mut self.other_mode else { return };
        std::mem::swap(&mut **other_mode, &mut self.mode);
        self.registration = None;
        self.translator = None;
        self.cpu.clear_return_stack();
        self.cpu.clear_jump_cache();
        self.cpu.counters = self.mode.counters_address();
        if let Some(recorder) = &mut self.mode.recorder {
            recorder.clear(&mut self.cpu);
        }
    }

    /// Whether the core writes a trace.
    pub fn is_traced(&self) -> bool {
        self.mode.recorder.is_some()
    }

    /// The number of instructions executed without a trace since the last call. Removes the budget.
    pub fn take_untraced_instructions(&mut self) -> u64 {
        let executed = self.reported_budget - self.cpu.budget;
        self.set_budget(UNLIMITED_BUDGET);
        executed
    }

    /// Limits the instructions that the core executes without a trace until they are next
    /// [taken](Self::take_untraced_instructions): it stops ([`Stop::Quantum`]) before a block that would exceed the
    /// limit, or when fewer than [`Self::MAX_BLOCK`] are left. Take the executed instructions first.
    pub fn set_budget(&mut self, instructions: u64) {
        self.cpu.budget = instructions;
        self.reported_budget = instructions;
    }

    /// The largest number of instructions in a block.
    pub const MAX_BLOCK: u64 = MAX_INSTRUCTIONS as u64;

    /// Sets the trace length at which the core stops ([`Stop::Quantum`]) before the next block, in words. A block needs
    /// one word and each memory access another, about 0.4 to 0.7 words for each instruction. Words are cheaper to count
    /// than instructions, because translated code already has the address of the next record in a register. The range
    /// is 1 to 65536, the default 4096. Has no effect if blocks are not traced.
    pub fn set_quantum(&mut self, words: usize) {
        if let Some(recorder) = &mut self.mode.recorder {
            recorder.set_quantum(&mut self.cpu, words);
        }
    }

    /// Makes `rdtime` read simulated time instead of the host's. Before such an instruction, a traced core with a
    /// nonempty trace stops ([`Stop::Quantum`]), so that the caller can advance the clock by the traced instructions.
    pub fn set_clock(&mut self, clock: SimulatedClock) {
        self.cpu.guest.set_clock(clock);
    }

    /// Whether the next instruction reads the clock, which must then be set.
    pub fn reads_clock_next(&self) -> bool {
        let word = self.cpu.guest.fetch(self.cpu.state.pc).ok();
        word.and_then(decode).is_some_and(|instruction| reads_clock(instruction.op))
    }

    /// Records that the instruction at the program counter trapped because it accesses a device register. After several
    /// such accesses, it traps without a host fault. Regions that still contain its old translation stay correct, but
    /// each access costs a host fault.
    pub fn record_register_access(&mut self) {
        let pc = self.cpu.state.pc;
        if self.mode.code.registers.note(pc) && self.translator.is_some() {
            self.mode.code.invalidate(&(pc..pc + 4));
            self.cpu.attention.request();
        }
    }

    /// The fault of the instruction at the program counter, if it is a known device register access and accesses a
    /// register now.
    fn register_fault(&self) -> Option<Fault> {
        if !self.mode.code.registers.is_known(self.cpu.state.pc) {
            return None;
        }
        let word = self.cpu.guest.fetch(self.cpu.state.pc).ok()?;
        let instruction = decode(word).filter(|instruction| has_address(instruction.op))?;
        let address = address_of(&instruction, &self.cpu.state.x);
        let (Window::Registers(_), ..) = self.cpu.guest.memory().window_at(address)? else { return None };
        let access = if instruction.op.row().class == Class::Load { Access::Read } else { Access::Write };
        Some(Fault { address, access, cause: FaultCause::BeyondFile })
    }

    /// Runs until the caller must act.
    pub fn run(&mut self) -> Stop {
        set_segment_base(self.segment_base);
        if let Some(registration) = &self.registration {
            registration.activate();
        }
        self.clock_is_fresh = true;
        self.mode.reader.enter(self.mode.seen_changes);
        // Process code changes even if the attention flag is clear: the caller may have cleared it.
        self.refresh();
        let stop = self.run_to_stop();
        self.mode.reader.leave();
        Registration::deactivate();
        self.refresh_trace();
        stop
    }

    fn run_to_stop(&mut self) -> Stop {
        loop {
            if let Some(stop) = self.stop_between_blocks() {
                return stop;
            }
            self.switch_to_newest_translator();
            let pc = self.cpu.state.pc;
            let result = match self.host_code() {
                Some(host) => self.run_translated(host),
                None => self.interpret_block(),
            };
            self.clock_is_fresh &= pc == self.cpu.state.pc && result.is_ok();
            if let Err(stop) = result {
                return stop;
            }
        }
    }

    /// Executes one instruction.
    pub fn step(&mut self) -> Option<Stop> {
        self.refresh();
        if let Some(stop) = self.stop_between_blocks() {
            return Some(stop);
        }
        let result = if self.mode.recorder.is_some() { self.record_one() } else { self.interpret_one() };
        self.refresh_trace();
        result.err()
    }

    /// Executes an instruction in place of the one at the program counter.
    pub fn step_as(&mut self, instruction: &Instruction) -> Option<Stop> {
        self.refresh();
        if let Some(stop) = self.stop_between_blocks() {
            return Some(stop);
        }
        let is_recorded = self.mode.recorder.is_some();
        let result = if is_recorded { self.record(instruction) } else { self.interpret(instruction) };
        self.refresh_trace();
        result.err()
    }

    fn stop_between_blocks(&mut self) -> Option<Stop> {
        if self.cpu.attention.is_requested() {
            self.refresh();
            return Some(Stop::Attention);
        }
        let is_full = match &self.mode.recorder {
            Some(_) => Recorder::is_full(&self.cpu),
            None => self.mode.code.metered && self.cpu.budget < Self::MAX_BLOCK,
        };
        is_full.then_some(Stop::Quantum)
    }

    fn refresh_trace(&mut self) {
        if let Some(recorder) = &mut self.mode.recorder {
            recorder.refresh(&self.cpu);
        }
    }

    /// Drops host addresses and decoded blocks of changed code.
    fn refresh(&mut self) {
        if self.mode.code.changes.count() == self.mode.seen_changes {
            return;
        }
        let (changes, seen) = self.mode.code.changes.since(self.mode.seen_changes);
        self.mode.seen_changes = seen;
        self.cpu.clear_return_stack();
        match changes {
            Some(changes) => {
                for change in changes {
                    change.removed.iter().for_each(|pc| self.cpu.evict_jump(*pc));
                    self.mode.profile.forget(&change.range);
                }
            }
            None => {
                self.cpu.clear_jump_cache();
                self.mode.profile.clear();
            }
        }
        self.mode.reader.advance(seen);
    }

    /// Switches to the newest translator of the process.
    fn switch_to_newest_translator(&mut self) {
        let Some(translators) = &self.mode.code.translators else { return };
        if self.translator.as_ref().is_some_and(|(_, mine)| *mine == translators.generation()) {
            return;
        }
        let (newest, generation) = translators.current();
        self.cpu.clear_return_stack();
        self.cpu.clear_jump_cache();
        self.mode.profile.reset_hot_counts();
        // SAFETY: the box keeps `cpu` in place, and the registration is dropped before it. The new registration is
        // active before the old one is dropped.
        let registration =
            unsafe { Registration::new(&raw mut *self.cpu, newest.clone(), self.return_stack.guard()) };
        registration.activate();
        self.return_stack.set_bottom(newest.return_miss());
        self.registration = Some(registration);
        self.translator = Some((newest, generation));
    }

    fn host_code(&mut self) -> Option<u64> {
        let (translator, _) = self.translator.as_ref()?;
        if self.cpu.must_interpret() || translator.must_interpret() {
            return None;
        }
        let pc = self.cpu.state.pc;
        if self.cpu.return_stack != self.return_stack.top() {
            // SAFETY: the pointer is in the return stack, at an entry of two words.
            let [host, guest] = unsafe { *(self.cpu.return_stack as *const [u64; 2]) };
            if guest == pc {
                self.cpu.return_stack += 8;
                return Some(host);
            }
        }
        let slot = Cpu::jump_slot(pc);
        let cached = self.cpu.jump_cache[slot];
        if cached.guest == pc {
            return Some(cached.host);
        }
        if self.cold_breaks.has(pc) {
            return None;
        }
        let host = translator.find(pc)?;
        self.cpu.jump_cache[slot] = crate::cpu::JumpCacheEntry { guest: pc, host };
        Some(host)
    }

    fn run_translated(&mut self, host: u64) -> Result<(), Stop> {
        let (translator, _) = self.translator.as_ref().expect("host code has a translator");
        self.cpu.load_rounding();
        let pc = self.cpu.state.pc;
        let reason = translator.run(&mut self.cpu, host);
        self.cpu.collect_exceptions();
        let result = match reason {
            ExitReason::Unlinked | ExitReason::Indirect | ExitReason::Attention => return Ok(()),
            ExitReason::Interpret => match (self.register_fault(), self.mode.recorder.is_some()) {
                (Some(fault), _) => Err(Trap::from(fault).into()),
                (None, true) => return self.record_inside_block(),
                (None, false) => {
                    self.clock_is_fresh &= pc == self.cpu.state.pc;
                    let (left, at) = (std::mem::take(&mut self.cpu.interrupted_block), self.cpu.state.pc);
                    let result = self.interpret_one();
                    self.count_partial(left, at, &result);
                    return result;
                }
            },
            ExitReason::Syscall => Err(Trap::Syscall(0).into()),
            ExitReason::Trap => Err(self.cpu.trap.take().expect("translated code set it").into()),
        };
        self.complete_open_record(is_executed(&result));
        result
    }

    /// Corrects the count of a block that was left at the instruction at `at` with result `result`. The instructions
    /// from there on are counted when they run.
    fn count_partial(
        &mut self,
        InterruptedBlock { start, instructions }: InterruptedBlock,
        at: u64,
        result: &Result<(), Stop>,
    ) {
        let executed =
            (at.wrapping_sub(start) / 4) + u64::from(*result != Err(Stop::Quantum) && is_executed(result));
        if executed >= instructions {
            return;
        }
        if self.mode.code.metered {
            self.cpu.budget += instructions - executed;
        }
        if let Some(counters) = &self.mode.counters {
            let (instructions, executed) = (instructions as u32, executed as u32);
            counters.count_partial(PartialExecution { start, instructions, executed });
        }
    }

    fn interpret_one(&mut self) -> Result<(), Stop> {
        let word = self.cpu.guest.fetch(self.cpu.state.pc).map_err(Trap::from)?;
        self.interpret(&decode(word).ok_or(Trap::IllegalInstruction)?)
    }

    fn interpret(&mut self, instruction: &Instruction) -> Result<(), Stop> {
        if self.mode.code.block_ends.clock && reads_clock(instruction.op) && !self.clock_is_fresh {
            return Err(Stop::Quantum);
        }
        self.execute(instruction)
    }

    fn execute(&mut self, instruction: &Instruction) -> Result<(), Stop> {
        let cpu = &mut *self.cpu;
        semantics::execute(&mut cpu.state, instruction, &cpu.guest)?;
        if instruction.op == Op::Ibar {
            self.mode.code.watch.barrier();
        }
        let magic = if self.mode.code.block_ends.magic { Magic::of(instruction, &cpu.state) } else { None };
        magic.map_or(Ok(()), |magic| Err(Stop::Magic(magic)))
    }

    fn interpret_block(&mut self) -> Result<(), Stop> {
        let pc = self.cpu.state.pc;
        let hot = match self.mode.profile.blocks.get_mut(&pc) {
            Some(block) => {
                block.runs += 1;
                block.runs >= HOT_THRESHOLD && block.runs.is_power_of_two() || block.runs == HOT_THRESHOLD
            }
            None => {
                if self.is_cold_break(pc) {
                    return self.interpret_one();
                }
                self.decode_block(pc).map_err(Trap::from)?;
                false
            }
        };
        if hot && !self.cpu.must_interpret() && self.translate(pc) {
            return Ok(());
        }
        let block = &self.mode.profile.blocks[&pc];
        if let (Some(counters), Some(counter)) = (&self.mode.counters, block.counter) {
            counters.count(counter);
        }
        let metered = self.mode.code.metered;
        let counted =
            if block.counter.is_some() || metered { block.block.instructions.len() as u64 } else { 0 };
        if metered {
            self.cpu.budget -= counted;
        }
        let is_barrier = block.block.instructions.last().is_some_and(|last| last.op == Op::Ibar);
        let result = match &mut self.mode.recorder {
            Some(recorder) => block.record(&mut self.cpu, recorder),
            None => block.interpret(&mut self.cpu, self.clock_is_fresh),
        };
        if is_barrier && is_executed(&result) {
            self.mode.code.watch.barrier();
        }
        let left = match result {
            Err(Stop::Trap(_) | Stop::Quantum) => Some(result),
            // The program counter is at the first instruction not executed, as at the end of a quantum.
            Err(Stop::Attention) => Some(Err(Stop::Quantum)),
            _ => None,
        };
        if let Some(left) = left {
            self.count_partial(
                InterruptedBlock { start: pc, instructions: counted },
                self.cpu.state.pc,
                &left,
            );
        }
        if result == Err(Stop::Attention) {
            self.refresh();
        }
        result
    }

    /// Whether there is a cold `break` at `pc`, which is not worth a block. In counting and tracing modes, each `break`
    /// forms its own block.
    fn is_cold_break(&mut self, pc: u64) -> bool {
        if self.mode.counters.is_some() || self.mode.code.metered || self.mode.recorder.is_some() {
            return false;
        }
        let word = self.cpu.guest.fetch(pc).ok();
        let is_break = word.and_then(decode).is_some_and(|instruction| instruction.op == Op::Break);
        if !is_break {
            self.cold_breaks.forget(pc);
        }
        is_break && self.cold_breaks.visit(pc)
    }

    fn decode_block(&mut self, pc: u64) -> Result<(), Fault> {
        let block_ends = self.mode.code.block_ends;
        let block = Block::decode(pc, &self.cpu.guest, block_ends, |page| {
            self.mode.code.watch.watch(page);
            perturb();
        })?;
        let semantics = block.instructions.iter().map(|i| semantics::semantics_of(i.op)).collect();
        let counter =
            self.mode.code.counting.as_ref().and_then(|c| c.add_block(pc, block.instructions.len()));
        let number = self.mode.recorder.as_ref().map(|recorder| recorder.number(pc, &block.instructions));
        let last = block.instructions.last();
        let reads_clock = block_ends.clock && last.is_some_and(|last| reads_clock(last.op));
        let is_magic = block_ends.magic && last.is_some_and(Magic::is);
        let profiled = ProfiledBlock { block, semantics, runs: 1, counter, number, reads_clock, is_magic };
        self.mode.profile.insert(Box::new(profiled));
        self.mode.code.counts.blocks.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Translates the code at `pc`. Returns whether it can run now.
    fn translate(&mut self, pc: u64) -> bool {
        let (Some((translator, _)), Some(all)) = (&self.translator, &self.mode.code.translators) else {
            return false;
        };
        if translator.must_interpret() {
            return false;
        }
        if translator.is_full() {
            // The run loop switches to the empty cache, where the block soon becomes hot again.
            all.replace(translator);
            return false;
        }
        let changes = &self.mode.code.changes;
        let host_code = translator
            .translate(pc, &self.mode.profile, || changes.is_unchanged_since(self.mode.seen_changes))
            .is_some();
        self.mode.code.counts.regions.fetch_add(u64::from(host_code), Ordering::Relaxed);
        host_code
    }
}

impl Core {
    /// Executes the instruction at which translated code left a block before its end, and completes the record of the
    /// block up to it.
    fn record_inside_block(&mut self) -> Result<(), Stop> {
        let recorder = self.mode.recorder.as_mut().expect("the caller has checked that there is a recorder");
        let (number, block) = recorder.open_block(&self.cpu);
        let index = (self.cpu.state.pc.wrapping_sub(block.start) / 4) as usize;
        let (preceding, instruction) = (&block.instructions[..index], block.instructions[index]);
        if reads_clock(instruction.op) && (index > 0 || !recorder.is_empty(&self.cpu)) {
            recorder.complete(&mut self.cpu, number, preceding);
            return Err(Stop::Quantum);
        }
        recorder.record_address(&self.cpu, &instruction, preceding);
        let result = self.execute(&instruction);
        self.complete_open_record_of(number, &block, index + usize::from(is_executed(&result)));
        result
    }

    /// Completes the record of the block that translated code left at the program counter.
    fn complete_open_record(&mut self, is_executed: bool) {
        let Some(recorder) = &mut self.mode.recorder else { return };
        let (number, block) = recorder.open_block(&self.cpu);
        let index = (self.cpu.state.pc.wrapping_sub(block.start) / 4) as usize;
        self.complete_open_record_of(number, &block, index + usize::from(is_executed));
    }

    fn complete_open_record_of(&mut self, number: BlockNumber, block: &TracedBlock, executed: usize) {
        let recorder = self.mode.recorder.as_mut().expect("there is a record");
        recorder.complete(&mut self.cpu, number, &block.instructions[..executed]);
    }

    /// Like `interpret_one`, but records a block of one instruction.
    fn record_one(&mut self) -> Result<(), Stop> {
        let word = self.cpu.guest.fetch(self.cpu.state.pc).map_err(Trap::from)?;
        self.record(&decode(word).ok_or(Trap::IllegalInstruction)?)
    }

    fn record(&mut self, instruction: &Instruction) -> Result<(), Stop> {
        let pc = self.cpu.state.pc;
        let recorder = self.mode.recorder.as_mut().expect("the caller has checked that there is a recorder");
        if reads_clock(instruction.op) && !recorder.is_empty(&self.cpu) {
            return Err(Stop::Quantum);
        }
        let number = recorder.number(pc, &[*instruction]);
        recorder.record_address(&self.cpu, instruction, &[]);
        let result = self.execute(instruction);
        let recorder = self.mode.recorder.as_mut().expect("the caller has checked that there is a recorder");
        recorder.complete(&mut self.cpu, number, &[*instruction][..usize::from(is_executed(&result))]);
        result
    }
}

thread_local! {
    /// The GS base of this host thread.
    static SEGMENT_BASE: Cell<u64> = const { Cell::new(0) };
}

/// Sets the GS base, through which translated code accesses guest memory.
fn set_segment_base(base: u64) {
    if base == 0 || SEGMENT_BASE.get() == base {
        return;
    }
    const ARCH_SET_GS: i32 = 0x1001;
    // SAFETY: the x86-64 psABI reserves GS for no purpose in user space; only translated code uses it here.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, base) };
    SEGMENT_BASE.set(base);
}
impl Blocks for Core {
    fn block(&self, number: BlockNumber) -> TracedBlock {
        self.traced_block(number)
    }
}
