//! The run loop of one guest thread: cold blocks are interpreted and counted, hot ones translated and run.
//! Not what happens at a trap: that is the caller's.

use std::{
    cell::Cell,
    io,
    sync::{Arc, atomic::Ordering},
};

use longma_guest::{GuestMemory, Window, host::shake::shake};
use longma_loongarch::{
    Access, Class, Environment, Fault, FaultCause, Instruction, Op, State, Trap, decode, semantics,
};
use longma_trace::{BlockNumber, Blocks, Trace, TracedBlock, address_of, has_address};

use crate::{
    block::{Block, reads_clock},
    cold_breaks::ColdBreaks,
    counting::{Counters, Left},
    cpu::{Cpu, ExitReason, LeftBlock},
    guest::{ConfigurationWords, Guest, SimulatedClock},
    jit::{Translator, recovery::Registration},
    magic::Magic,
    profile::{BlockProfile, HOT, ProfiledBlock},
    readers::Reader,
    recorder::Recorder,
    return_stack::ReturnStack,
    shared_code::SharedCode,
    stop::{Stop, is_executed},
};

/// One guest thread's core.
pub struct Core {
    // Dropped in this order: the registration points at the rest.
    registration: Option<Registration>,
    cpu: Box<Cpu>,
    return_stack: ReturnStack,
    code: SharedCode,
    /// The translator whose code this core runs, and its generation.
    translator: Option<(Arc<Translator>, u64)>,
    profile: BlockProfile,
    cold_breaks: ColdBreaks,
    counters: Option<Arc<Counters>>,
    recorder: Option<Recorder>,
    /// Where translated code wants GS to begin; 0 if it does not use GS.
    segment_base: u64,
    /// How many changes of code this core has taken note of.
    seen_changes: u64,
    /// The same for those who want to use the memory of old code again.
    reader: Reader,
    /// Nothing was executed since the last [`Core::run`] began.
    clock_is_fresh: bool,
    /// What this core does not use while it is traced, or while it is not.
    parked: Option<Box<Parked>>,
    /// Instructions executed without a trace that the caller has been told of.
    told_untraced: u64,
}

/// What a core has of code that it does not run at present: traced code, or code that is not.
struct Parked {
    code: SharedCode,
    profile: BlockProfile,
    counters: Option<Arc<Counters>>,
    recorder: Option<Recorder>,
    seen_changes: u64,
    reader: Reader,
}

impl Parked {
    fn new(code: SharedCode) -> io::Result<Box<Self>> {
        Ok(Box::new(Self {
            profile: BlockProfile::default(),
            counters: code.counting.as_ref().map(|c| c.add_thread()).transpose()?,
            recorder: None,
            seen_changes: code.changes.count(),
            reader: code.readers.add(),
            code,
        }))
    }
}

impl Core {
    /// A core that starts with `state`. It may run on any host thread that `longma_guest::host::faults` has prepared, and a host
    /// thread may run several cores in turn.
    ///
    /// # Errors
    /// The host has no memory to give.
    pub fn new(
        state: State,
        memory: GuestMemory,
        words: ConfigurationWords,
        code: SharedCode,
    ) -> io::Result<Self> {
        let return_stack = ReturnStack::allocate()?;
        let segment_base = memory.base() as u64;
        let mut cpu = Cpu::new(state, Guest::new(memory, words));
        let counters = code.counting.as_ref().map(|c| c.add_thread()).transpose()?;
        cpu.counters = counters.as_ref().map_or(0, |c| c.address());
        cpu.return_stack = return_stack.top();
        cpu.return_stack_top = return_stack.top();
        let recorder = code.tracing.clone().map(|blocks| Recorder::new(blocks, &mut cpu));
        let parked = code.untraced.as_deref().cloned().map(Parked::new).transpose()?;
        Ok(Self {
            registration: None,
            cpu,
            return_stack,
            seen_changes: code.changes.count(),
            reader: code.readers.add(),
            code,
            translator: None,
            profile: BlockProfile::default(),
            cold_breaks: ColdBreaks::default(),
            counters,
            recorder,
            segment_base,
            clock_is_fresh: true,
            parked,
            told_untraced: 0,
        })
    }

    /// The registers and the attention flag.
    pub fn cpu(&mut self) -> &mut Cpu {
        &mut self.cpu
    }

    /// What the core did since its trace was last cleared; empty if blocks are not traced.
    pub fn trace(&self) -> &Trace {
        static NOTHING: Trace = Trace::new();
        self.recorder.as_ref().map_or(&NOTHING, Recorder::trace)
    }

    /// The block of a number in this core's trace; it never changes.
    ///
    /// # Panics
    /// With a number that is in no such trace.
    pub fn traced_block(&self, number: BlockNumber) -> TracedBlock {
        self.code.traced_block(number)
    }

    /// Forgets the trace.
    pub fn clear_trace(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.clear(&mut self.cpu);
        }
    }

    /// Lets the core run without a trace, or with one again; at first it has one. Without a trace there are no quanta: the core runs
    /// until it traps, is asked to stop, comes to a magic instruction, or reads the clock. Does nothing unless the code is
    /// [`pausable`](crate::Execution::pausable). Clear the trace before.
    pub fn set_tracing(&mut self, on: bool) {
        if self.recorder.is_some() == on {
            return;
        }
        let Some(parked) = &mut self.parked else { return };
        std::mem::swap(&mut parked.code, &mut self.code);
        std::mem::swap(&mut parked.profile, &mut self.profile);
        std::mem::swap(&mut parked.counters, &mut self.counters);
        std::mem::swap(&mut parked.recorder, &mut self.recorder);
        std::mem::swap(&mut parked.seen_changes, &mut self.seen_changes);
        std::mem::swap(&mut parked.reader, &mut self.reader);
        self.registration = None;
        self.translator = None;
        self.cpu.forget_returns();
        self.cpu.forget_jumps();
        self.cpu.counters = self.counters.as_ref().map_or(0, |counters| counters.address());
        if let Some(recorder) = &mut self.recorder {
            recorder.clear(&mut self.cpu);
        }
    }

    /// True if what the core does is traced.
    pub fn is_traced(&self) -> bool {
        self.recorder.is_some()
    }

    /// Instructions executed without a trace since this was last asked.
    pub fn take_untraced_instructions(&mut self) -> u64 {
        let untraced = match (&self.recorder, &self.parked) {
            (None, _) => Some((&self.code, &self.counters)),
            (Some(_), parked) => parked.as_deref().map(|parked| (&parked.code, &parked.counters)),
        };
        let Some((Some(counting), Some(counters))) = untraced.map(|(c, n)| (&c.counting, n)) else {
            return 0;
        };
        let all = counting.instructions(counters);
        all - std::mem::replace(&mut self.told_untraced, all)
    }

    /// Makes the core stop ([`Stop::Quantum`]) at the first block that begins when the trace has `words` words or more: one a block
    /// that ran and one a memory access, some 0.4 to 0.7 an instruction. Words are counted and not instructions because the place of
    /// the next record is at hand anyway. At least 1 and at most 65536; at first 4096. Means nothing if blocks are not traced.
    pub fn set_quantum(&mut self, words: usize) {
        if let Some(recorder) = &mut self.recorder {
            recorder.set_quantum(&mut self.cpu, words);
        }
    }

    /// Lets `rdtime` read simulated time instead of the host's. A traced core that comes to such an instruction with a trace that is
    /// not empty stops first ([`Stop::Quantum`]), so that the clock can be set to where the trace has led.
    pub fn set_clock(&mut self, clock: SimulatedClock) {
        self.cpu.guest.set_clock(clock);
    }

    /// True if the next instruction reads the clock, which then has to be set.
    pub fn reads_clock_next(&self) -> bool {
        let word = self.cpu.guest.fetch(self.cpu.state.pc).ok();
        word.and_then(decode).is_some_and(|instruction| reads_clock(instruction.op))
    }

    /// The instruction at the program counter has trapped because it accesses a register of a device: if it does so often, it will
    /// trap without a fault of the host from now on. Code of other cores that is not translated anew only costs more.
    pub fn note_register_access(&mut self) {
        let pc = self.cpu.state.pc;
        if self.code.registers.note(pc) && self.translator.is_some() {
            self.code.invalidate(&(pc..pc + 4));
            self.cpu.attention.request();
        }
    }

    /// The fault of the instruction at the program counter, if it is known to access registers and does so now.
    fn register_fault(&self) -> Option<Fault> {
        if !self.code.registers.is_known(self.cpu.state.pc) {
            return None;
        }
        let word = self.cpu.guest.fetch(self.cpu.state.pc).ok()?;
        let instruction = decode(word).filter(|instruction| has_address(instruction.op))?;
        let address = address_of(&instruction, &self.cpu.state.x);
        let (Window::Registers(_), ..) = self.cpu.guest.memory().window_at(address)? else { return None };
        let access = if instruction.op.row().class == Class::Load { Access::Read } else { Access::Write };
        Some(Fault { address, access, cause: FaultCause::BeyondFile })
    }

    /// Runs until something needs the caller.
    pub fn run(&mut self) -> Stop {
        set_segment_base(self.segment_base);
        if let Some(registration) = &self.registration {
            registration.activate();
        }
        self.clock_is_fresh = true;
        self.reader.enter(self.seen_changes);
        // Whoever looked at the attention flag outside may have taken back what asked for this.
        self.refresh();
        let stop = self.run_to_stop();
        self.reader.leave();
        Registration::deactivate();
        self.refresh_trace();
        stop
    }

    fn run_to_stop(&mut self) -> Stop {
        loop {
            if let Some(stop) = self.stop_between_blocks() {
                return stop;
            }
            self.follow_translator();
            let pc = self.cpu.state.pc;
            let done = match self.host_code() {
                Some(host) => self.run_translated(host),
                None => self.interpret_block(),
            };
            self.clock_is_fresh &= pc == self.cpu.state.pc && done.is_ok();
            if let Err(stop) = done {
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
        let done = if self.recorder.is_some() { self.record_one() } else { self.interpret_one() };
        self.refresh_trace();
        done.err()
    }

    fn stop_between_blocks(&mut self) -> Option<Stop> {
        if self.cpu.attention.is_requested() {
            self.refresh();
            return Some(Stop::Attention);
        }
        (self.recorder.is_some() && Recorder::is_full(&self.cpu)).then_some(Stop::Quantum)
    }

    fn refresh_trace(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.refresh(&self.cpu);
        }
    }

    /// Drops host addresses and decoded blocks of code that has changed.
    fn refresh(&mut self) {
        if self.code.changes.count() == self.seen_changes {
            return;
        }
        let (changes, seen) = self.code.changes.since(self.seen_changes);
        self.seen_changes = seen;
        self.cpu.forget_returns();
        match changes {
            Some(changes) => {
                for change in changes {
                    change.gone.iter().for_each(|pc| self.cpu.forget_jump(*pc));
                    self.profile.forget(&change.range);
                }
            }
            None => {
                self.cpu.forget_jumps();
                self.profile.clear();
            }
        }
        self.reader.advance(seen);
    }

    /// Goes over to the newest translator of the process.
    fn follow_translator(&mut self) {
        let Some(translators) = &self.code.translators else { return };
        if self.translator.as_ref().is_some_and(|(_, mine)| *mine == translators.generation()) {
            return;
        }
        let (newest, generation) = translators.newest();
        self.cpu.forget_returns();
        self.cpu.forget_jumps();
        self.profile.cool();
        // SAFETY: the box keeps `cpu` in place, and the registration is dropped before it; the new one is active before the old one
        // is dropped.
        let registration =
            unsafe { Registration::new(&raw mut *self.cpu, newest.clone(), self.return_stack.guard()) };
        registration.activate();
        self.return_stack.set_bottom(newest.return_miss());
        self.registration = Some(registration);
        self.translator = Some((newest, generation));
    }

    fn host_code(&mut self) -> Option<u64> {
        let (translator, _) = self.translator.as_ref()?;
        if self.cpu.must_interpret() || translator.waits() {
            return None;
        }
        let pc = self.cpu.state.pc;
        if self.cpu.return_stack != self.return_stack.top() {
            // SAFETY: the pointer lies in the return stack, at an entry of two words.
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
        let done = match reason {
            ExitReason::Unlinked | ExitReason::Indirect | ExitReason::Attention => return Ok(()),
            ExitReason::Interpret => match (self.register_fault(), self.recorder.is_some()) {
                (Some(fault), _) => Err(Trap::from(fault).into()),
                (None, true) => return self.record_inside_block(),
                (None, false) => {
                    self.clock_is_fresh &= pc == self.cpu.state.pc;
                    let (left, at) = (std::mem::take(&mut self.cpu.left), self.cpu.state.pc);
                    let done = self.interpret_one();
                    self.count_left(left, at, &done);
                    return done;
                }
            },
            ExitReason::Syscall => Err(Trap::Syscall(0).into()),
            ExitReason::Trap => Err(self.cpu.trap.take().expect("translated code set it").into()),
        };
        self.complete_open_record(is_executed(&done));
        done
    }

    /// A counted block was left for the instruction at `at`, of which `done` came: what is behind it is counted when it runs.
    fn count_left(&self, LeftBlock { start, instructions }: LeftBlock, at: u64, done: &Result<(), Stop>) {
        let executed =
            (at.wrapping_sub(start) / 4) + u64::from(*done != Err(Stop::Quantum) && is_executed(done));
        if executed < instructions
            && let Some(counters) = &self.counters
        {
            let (instructions, executed) = (instructions as u32, executed as u32);
            counters.count_left(Left { start, instructions, executed });
        }
    }

    fn interpret_one(&mut self) -> Result<(), Stop> {
        let word = self.cpu.guest.fetch(self.cpu.state.pc).map_err(Trap::from)?;
        let instruction = decode(word).ok_or(Trap::IllegalInstruction)?;
        if self.code.interest.clock && reads_clock(instruction.op) && !self.clock_is_fresh {
            return Err(Stop::Quantum);
        }
        self.execute(&instruction)
    }

    fn execute(&mut self, instruction: &Instruction) -> Result<(), Stop> {
        let cpu = &mut *self.cpu;
        semantics::execute(&mut cpu.state, instruction, &cpu.guest)?;
        if instruction.op == Op::Ibar {
            self.code.watch.barrier();
        }
        let magic = if self.code.interest.magic { Magic::of(instruction, &cpu.state) } else { None };
        magic.map_or(Ok(()), |magic| Err(Stop::Magic(magic)))
    }

    fn interpret_block(&mut self) -> Result<(), Stop> {
        let pc = self.cpu.state.pc;
        let hot = match self.profile.blocks.get_mut(&pc) {
            Some(found) => {
                found.runs += 1;
                found.runs >= HOT && found.runs.is_power_of_two() || found.runs == HOT
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
        let found = &self.profile.blocks[&pc];
        if let (Some(counters), Some(counter)) = (&self.counters, found.counter) {
            counters.count(counter);
        }
        let counted = if found.counter.is_some() { found.block.instructions.len() as u64 } else { 0 };
        let is_barrier = found.block.instructions.last().is_some_and(|last| last.op == Op::Ibar);
        let done = match &mut self.recorder {
            Some(recorder) => found.record(&mut self.cpu, recorder),
            None => found.interpret(&mut self.cpu, self.clock_is_fresh),
        };
        if is_barrier && is_executed(&done) {
            self.code.watch.barrier();
        }
        let left = match done {
            Err(Stop::Trap(_) | Stop::Quantum) => Some(done),
            // The program counter is at the first instruction that has not been executed, as for a quantum's end.
            Err(Stop::Attention) => Some(Err(Stop::Quantum)),
            _ => None,
        };
        if let Some(left) = left {
            self.count_left(LeftBlock { start: pc, instructions: counted }, self.cpu.state.pc, &left);
        }
        if done == Err(Stop::Attention) {
            self.refresh();
        }
        done
    }

    /// Whether there is a `break` at `pc` that is not worth a block. Where blocks are counted or traced, each is.
    fn is_cold_break(&mut self, pc: u64) -> bool {
        if self.counters.is_some() || self.recorder.is_some() {
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
        let interest = self.code.interest;
        let block = Block::decode(pc, &self.cpu.guest, interest, |page| {
            self.code.watch.watch(page);
            shake();
        })?;
        let semantics = block.instructions.iter().map(|i| semantics::semantics_of(i.op)).collect();
        let counter = self.code.counting.as_ref().and_then(|c| c.add_block(pc, block.instructions.len()));
        let number = self.recorder.as_ref().map(|recorder| recorder.number(pc, &block.instructions));
        let last = block.instructions.last();
        let reads_clock = interest.clock && last.is_some_and(|last| reads_clock(last.op));
        let is_magic = interest.magic && last.is_some_and(Magic::is);
        let found = ProfiledBlock { block, semantics, runs: 1, counter, number, reads_clock, is_magic };
        self.profile.insert(Box::new(found));
        self.code.counts.blocks.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// True if the code at `pc` can now be run translated.
    fn translate(&mut self, pc: u64) -> bool {
        let (Some((translator, _)), Some(all)) = (&self.translator, &self.code.translators) else {
            return false;
        };
        if translator.waits() {
            return false;
        }
        if translator.is_full() {
            // The run loop goes over to the empty one, where the block is soon hot again.
            all.replace(translator);
            return false;
        }
        let changes = &self.code.changes;
        let done =
            translator.translate(pc, &self.profile, || changes.none_since(self.seen_changes)).is_some();
        self.code.counts.regions.fetch_add(u64::from(done), Ordering::Relaxed);
        done
    }
}

impl Core {
    /// Executes the instruction at the program counter, at which translated code left a block in its middle, and completes the
    /// block's record with it.
    fn record_inside_block(&mut self) -> Result<(), Stop> {
        let recorder = self.recorder.as_mut().expect("the caller looked");
        let (number, block) = recorder.open_block(&self.cpu);
        let index = (self.cpu.state.pc.wrapping_sub(block.start) / 4) as usize;
        let (before, instruction) = (&block.instructions[..index], block.instructions[index]);
        if reads_clock(instruction.op) && (index > 0 || !recorder.is_empty(&self.cpu)) {
            recorder.complete(&mut self.cpu, number, before);
            return Err(Stop::Quantum);
        }
        recorder.note_address(&self.cpu, &instruction, before);
        let done = self.execute(&instruction);
        self.complete_open_record_of(number, &block, index + usize::from(is_executed(&done)));
        done
    }

    /// Completes the record of the block that translated code left at the program counter.
    fn complete_open_record(&mut self, is_executed: bool) {
        let Some(recorder) = &mut self.recorder else { return };
        let (number, block) = recorder.open_block(&self.cpu);
        let index = (self.cpu.state.pc.wrapping_sub(block.start) / 4) as usize;
        self.complete_open_record_of(number, &block, index + usize::from(is_executed));
    }

    fn complete_open_record_of(&mut self, number: BlockNumber, block: &TracedBlock, executed: usize) {
        let recorder = self.recorder.as_mut().expect("there is a record");
        recorder.complete(&mut self.cpu, number, &block.instructions[..executed]);
    }

    /// As `interpret_one`, and leaves a record of a block of one instruction.
    fn record_one(&mut self) -> Result<(), Stop> {
        let pc = self.cpu.state.pc;
        let word = self.cpu.guest.fetch(pc).map_err(Trap::from)?;
        let instruction = decode(word).ok_or(Trap::IllegalInstruction)?;
        let recorder = self.recorder.as_mut().expect("the caller looked");
        if reads_clock(instruction.op) && !recorder.is_empty(&self.cpu) {
            return Err(Stop::Quantum);
        }
        let number = recorder.number(pc, &[instruction]);
        recorder.note_address(&self.cpu, &instruction, &[]);
        let done = self.execute(&instruction);
        let recorder = self.recorder.as_mut().expect("the caller looked");
        recorder.complete(&mut self.cpu, number, &[instruction][..usize::from(is_executed(&done))]);
        done
    }
}

thread_local! {
    /// Where this host thread's GS segment begins.
    static SEGMENT_BASE: Cell<u64> = const { Cell::new(0) };
}

/// Lets translated code reach guest memory through GS, which nothing else in the process uses.
fn set_segment_base(base: u64) {
    if base == 0 || SEGMENT_BASE.get() == base {
        return;
    }
    const ARCH_SET_GS: i32 = 0x1001;
    // SAFETY: the x86-64 psABI gives GS to no one in user space; translated code is its only user here.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, base) };
    SEGMENT_BASE.set(base);
}
impl Blocks for Core {
    fn block(&self, number: BlockNumber) -> TracedBlock {
        self.traced_block(number)
    }
}
