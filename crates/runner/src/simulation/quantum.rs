//! Simulates a thread's turn on a core: a quantum of instructions, a system call, or a copy by the kernel.

use longma_core::{Core, Stop};
use longma_guest::Window;
use longma_linux::TransferredMemory;
use longma_loongarch::{Fault, FaultCause, Trap};
use longma_memory::{MemoryPort, placement::SpaceId};
use longma_sim::Time;

use super::{Phase, SamplingError, TimingSimulation};
use crate::schedule::ThreadSlot;

/// Trace words in a quantum of a single-threaded program.
const LONG_QUANTUM_WORDS: usize = 4096;
/// Trace words in a quantum of a multi-threaded program: a few thousand instructions, about a microsecond if accesses
/// hit. ZSim's bound phase is 10,000 cycles.
const SHORT_QUANTUM_WORDS: usize = 1024;
/// A quantum of a multi-threaded program is executed in parts. It ends after a part if it has lasted long enough or has
/// begun to contend with another core. These are the sizes of the first part, the largest and the smallest, in trace
/// words.
const FIRST_PART_WORDS: usize = 64;
const MAX_PART_WORDS: usize = 256;
const MIN_PART_WORDS: usize = 8;

/// The minimum trace words in a quantum that is shortened because a device acts soon: about a hundred instructions.
const MIN_QUANTUM_WORDS: usize = 64;

/// The length of a turn in cycles while cores contend for lines: a tenth of a transfer between two cores of a chip. A
/// core that polls a line detects a change at most this much too late.
const CLOSE_TURN_CYCLES: u64 = 16;

/// Cycles between two cache lines that the kernel copies: eight loads and eight stores of eight bytes on a core with
/// two memory units. An estimate; copies with wider registers are faster.
const COPIED_LINE_CYCLES: u64 = 8;

impl TimingSimulation {
    /// Executes `guest` for a quantum and accounts for it in the models.
    pub(super) fn run_quantum(&mut self, slot: ThreadSlot, guest: &mut Core) -> (Stop, Time) {
        self.threads = self.threads.max(slot.thread.0 as usize + 1);
        if self.threads > 1 {
            self.refuse_sampling(SamplingError::Threads);
        }
        let words = if self.threads > 1 { SHORT_QUANTUM_WORDS } else { LONG_QUANTUM_WORDS };
        // Without a trace there are no quanta, which is only allowed if no other thread or event is waiting.
        let warms = !self.warming.is_off() || self.cores[slot.core].warmer.is_some();
        if self.sampler.is_some() {
            self.prepare_sampled(guest, slot.alone);
        } else {
            guest.set_tracing(self.phase == Phase::Counted || !slot.alone || warms);
        }
        let words = self.words_to_limit(self.words_to_event(words, slot));
        guest.set_quantum(words);
        self.devices.see(guest.cpu().guest().memory(), &mut self.memory);
        self.arrive(slot);
        self.forget_touched();
        let contends = self.memory.begin_turn(slot.core, slot.start) && self.phase == Phase::Counted;
        let mut stop = if contends {
            self.run_until_transfer(slot.core, guest)
        } else if self.threads > 1 && self.phase == Phase::Counted && self.is_timed() {
            self.run_in_parts(slot, guest, words)
        } else {
            let stop = guest.run();
            self.account(slot.core, guest);
            stop
        };
        self.fault_pages(slot.core, guest);
        self.tick(slot.core);
        if let Stop::Trap(Trap::Memory(fault)) = stop
            && fault.cause == FaultCause::BeyondFile
        {
            guest.clear_trace();
            stop = self.access_registers(slot, guest, fault);
        }
        let mut time = self.time(slot.core, slot.start);
        if let Stop::Magic(magic) = stop {
            time = self.magic(slot, magic, time, guest);
        }
        guest.clear_trace();
        self.memory.end_turn(slot.core, time);
        self.end = self.end.max(time);
        self.check_limits(time);
        self.check_plugins(slot.core);
        if let Some(timeline) = &mut self.config.timeline {
            self.devices.take_activity(time).iter().for_each(|slice| timeline.device(slice));
            timeline.link_frames(slot, &self.devices.take_reported_frames(slot.start));
            timeline.ran(slot, time);
            timeline.sample(time, &self.cores, &mut self.memory);
        }
        (stop, time)
    }

    /// Executes `guest` block by block until it takes a line from another core, or for a few cycles, so that another
    /// core that wants the line gets it in time.
    fn run_until_transfer(&mut self, number: usize, guest: &mut Core) -> Stop {
        let end = self.now(number) + CLOSE_TURN_CYCLES;
        loop {
            guest.set_quantum(1);
            let stop = guest.run();
            self.account(number, guest);
            if stop != Stop::Quantum || self.memory.took_line(number) || self.now(number) >= end {
                return stop;
            }
            guest.clear_trace();
        }
    }

    /// Executes `guest` for up to `words` trace words in parts. After each part, checks whether a core that shares data
    /// with others has run for too long.
    fn run_in_parts(
        &mut self,
        ThreadSlot { core: number, start, .. }: ThreadSlot,
        guest: &mut Core,
        words: usize,
    ) -> Stop {
        let (mut left, mut limit) = (words, FIRST_PART_WORDS);
        loop {
            let begin = self.now(number);
            let part = self.words_until(number, self.time_left(number, start)).min(limit);
            guest.set_quantum(part.max(MIN_PART_WORDS).min(left));
            let stop = guest.run();
            self.account(number, guest);
            self.fault_pages(number, guest);
            let ran = guest.trace().words();
            let core = &mut self.cores[number];
            core.last_part = (ran as u64, core.model.now().0 - begin.0);
            left = left.saturating_sub(ran);
            let is_over = self.time_left(number, start) == Some(0) || self.memory.began_to_contend(number);
            // End the turn before a clock read, because the clock shows the start of the turn.
            if stop != Stop::Quantum || left == 0 || is_over || guest.reads_clock_next() {
                return stop;
            }
            limit = (2 * limit).min(MAX_PART_WORDS);
            guest.clear_trace();
        }
    }

    /// The remaining cycles of the turn that core `number` began at `start`; `None` if the core does not share data
    /// with others.
    fn time_left(&self, number: usize, start: Time) -> Option<u64> {
        let end = start.checked_add(self.memory.max_turn(number)?)?;
        Some(self.cores[number].cycle_at(end).0.saturating_sub(self.now(number).0))
    }

    /// The trace words that core `number` executes in `cycles` cycles, extrapolated from the last part of a turn.
    fn words_until(&self, number: usize, cycles: Option<u64>) -> usize {
        let (words, took) = self.cores[number].last_part;
        let words = cycles.and_then(|cycles| cycles.checked_mul(words)?.checked_div(took));
        words.map_or(usize::MAX, |words| words as usize)
    }

    /// Limits a quantum so that it ends near the devices' next event.
    fn words_to_event(&self, words: usize, slot: ThreadSlot) -> usize {
        let Some(next) = self.devices.next_event() else { return words };
        let left = next.checked_since(slot.start).unwrap_or_default();
        // A trace word represents about two instructions, which take one to two cycles.
        let cycles = self.memory.cycles_of(slot.core, left);
        usize::try_from(cycles).unwrap_or(usize::MAX).clamp(MIN_QUANTUM_WORDS.min(words), words)
    }

    /// Handles the program's memory fault `fault`. If the address is a device register, performs the access and
    /// accounts for its time.
    fn access_registers(&mut self, slot: ThreadSlot, guest: &mut Core, fault: Fault) -> Stop {
        let trapped = Stop::Trap(Trap::Memory(fault));
        if !matches!(guest.cpu().guest().memory().window_at(fault.address), Some((Window::Registers(_), ..)))
        {
            return trapped;
        }
        guest.record_register_access();
        self.refuse_sampling(SamplingError::Devices);
        let at = self.time(slot.core, slot.start);
        let took = match self.devices.execute(&mut self.memory, guest.cpu(), slot.core, at) {
            Ok(took) => took,
            Err(trap) => return Stop::Trap(trap),
        };
        let core = &mut self.cores[slot.core];
        let cycles = self.memory.cycles_of(slot.core, took).max(1);
        match self.phase {
            Phase::Counted => core.model.access_device_until(core.model.now() + cycles),
            Phase::Passed => core.passed = core.passed + cycles,
        }
        Stop::Quantum
    }

    /// Advances a core that may have been idle to the start of a turn.
    fn arrive(&mut self, slot: ThreadSlot) {
        self.do_kernel_work(slot.start);
        self.skip_ticks(slot.core, slot.start);
        let core = &mut self.cores[slot.core];
        let start = core.cycle_at(slot.start);
        match self.phase {
            Phase::Counted => core.model.advance_to(start),
            Phase::Passed => core.passed = core.passed.max(start),
        }
    }

    /// Accounts for the entry to and exit from the kernel.
    pub(super) fn run_system_call(&mut self, slot: ThreadSlot) -> Time {
        self.arrive(slot);
        let core = &mut self.cores[slot.core];
        if self.phase == Phase::Counted {
            core.model.system_until(core.model.now() + core.system_call_cycles);
        }
        let time = self.time(slot.core, slot.start);
        // System calls that poll for events must see those up to now.
        self.devices.advance(time, &mut self.memory);
        time
    }

    /// Accounts for copies by the kernel. The program's side goes through the memory model; the kernel's own buffers
    /// are assumed to be in the cache.
    pub(super) fn copy_in_kernel(&mut self, slot: ThreadSlot, copied: &[TransferredMemory]) -> Time {
        self.arrive(slot);
        if self.phase == Phase::Counted {
            let core = &mut self.cores[slot.core];
            let line_bytes = self.memory.line_bytes();
            let mut port = self.memory.port(slot.core);
            port.set_space(SpaceId(0));
            let (mut at, mut end) = (core.model.now(), core.model.now());
            for part in copied {
                let last = part.address.saturating_add(part.bytes - 1);
                let mut address = part.address;
                loop {
                    let line_end = address | (line_bytes - 1);
                    let bytes = (line_end.min(last) - address + 1) as u32;
                    let answer = match part.written {
                        true => port.store(address, bytes, 0, at),
                        false => port.load(address, bytes, 0, at),
                    };
                    at = at + COPIED_LINE_CYCLES;
                    end = end.max(at).max(answer.ready);
                    if line_end >= last {
                        break;
                    }
                    address = line_end + 1;
                }
            }
            core.model.system_until(end);
        }
        self.time(slot.core, slot.start)
    }
}
