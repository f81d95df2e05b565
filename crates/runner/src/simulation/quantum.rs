//! What a thread does between getting its core and giving it back: a quantum of instructions, a system call, what the kernel copies.
//! Not whose turn it is (see `crate::schedule`), nor the kernel's own work (see `kernel.rs`).

use longma_core::{Core, Stop};
use longma_guest::Window;
use longma_linux::Copied;
use longma_loongarch::{Fault, FaultCause, Trap};
use longma_memory::{MemoryPort, placement::SpaceId};
use longma_sim::Time;

use super::{Phase, Simulation};
use crate::schedule::Place;

/// Words of trace in a quantum while the program has one thread.
const LONG_QUANTUM_WORDS: usize = 4096;
/// Words of trace in a quantum while it has several: some thousand instructions, about a microsecond where accesses hit. ZSim's bound
/// phase is 10,000 cycles.
const SHORT_QUANTUM_WORDS: usize = 1024;
/// Words in the parts of such a quantum: it ends behind the first of them at whose end it has lasted long enough, or contends. The first
/// one, and the most and the least of any.
const FIRST_PART_WORDS: usize = 64;
const MOST_PART_WORDS: usize = 256;
const LEAST_PART_WORDS: usize = 8;

/// Words of trace in a quantum at whose end a device acts: some hundred instructions.
const SHORTEST_QUANTUM_WORDS: usize = 64;

/// Cycles of a turn while cores contend for lines: a tenth of what a hand-over takes from core to core of one chip, so that one who
/// polls a line notices a change of it that much too late at most.
const CLOSE_TURN_CYCLES: u64 = 16;

/// Cycles between two lines that the kernel copies: eight loads and eight stores of eight bytes on a core with two memory units. An
/// estimate; copies with wider registers are faster.
const COPIED_LINE_CYCLES: u64 = 8;

impl Simulation {
    /// Runs `guest` for a quantum, and its models after it.
    pub(super) fn run_quantum(&mut self, place: Place, guest: &mut Core) -> (Stop, Time) {
        self.threads = self.threads.max(place.thread.0 as usize + 1);
        let words = if self.threads > 1 { SHORT_QUANTUM_WORDS } else { LONG_QUANTUM_WORDS };
        // Without quanta, only a thread that nobody waits for may run.
        let warms = !self.warming.is_off() || self.cores[place.core].warmer.is_some();
        guest.set_tracing(self.phase == Phase::Counted || !place.alone || warms);
        let words = self.words_to_event(words, place);
        guest.set_quantum(words);
        self.devices.see(guest.cpu().guest().memory(), &mut self.memory);
        self.arrive(place);
        self.forget_touched();
        let contends = self.memory.begin_turn(place.core, place.start) && self.phase == Phase::Counted;
        let mut stop = if contends {
            self.run_closely(place.core, guest)
        } else if self.threads > 1 && self.phase == Phase::Counted && self.is_timed() {
            self.run_in_parts(place, guest, words)
        } else {
            let stop = guest.run();
            self.account(place.core, guest);
            stop
        };
        self.fault_pages(place.core, guest);
        self.tick(place.core);
        if let Stop::Trap(Trap::Memory(fault)) = stop
            && fault.cause == FaultCause::BeyondFile
        {
            guest.clear_trace();
            stop = self.access_registers(place, guest, fault);
        }
        let mut time = self.time(place.core, place.start);
        if let Stop::Magic(magic) = stop {
            time = self.magic(place, magic, time, guest);
        }
        guest.clear_trace();
        self.memory.end_turn(place.core, time);
        self.end = self.end.max(time);
        if let Some(timeline) = &mut self.config.timeline {
            self.devices.take_notes(time).iter().for_each(|note| timeline.device(note));
            timeline.told(place, &self.devices.take_told(place.start));
            timeline.ran(place, time);
            timeline.sample(time, &self.cores, &mut self.memory);
        }
        (stop, time)
    }

    /// Runs `guest` block by block until it takes a line from another core, or for a few cycles, so that another core that wants the
    /// line gets it when it would.
    fn run_closely(&mut self, number: usize, guest: &mut Core) -> Stop {
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

    /// Runs `guest` for up to `words` words of trace, and no longer than a core may that has to do with others: it looks how far it has come
    /// after each part of them.
    fn run_in_parts(
        &mut self,
        Place { core: number, start, .. }: Place,
        guest: &mut Core,
        words: usize,
    ) -> Stop {
        let (mut left, mut most) = (words, FIRST_PART_WORDS);
        loop {
            let begin = self.now(number);
            let part = self.words_until(number, self.time_left(number, start)).min(most);
            guest.set_quantum(part.max(LEAST_PART_WORDS).min(left));
            let stop = guest.run();
            self.account(number, guest);
            self.fault_pages(number, guest);
            let ran = guest.trace().words();
            let core = &mut self.cores[number];
            core.last_part = (ran as u64, core.model.now().0 - begin.0);
            left = left.saturating_sub(ran);
            let is_over = self.time_left(number, start) == Some(0) || self.memory.began_to_contend(number);
            // The clock that it reads would be that of the turn's beginning.
            if stop != Stop::Quantum || left == 0 || is_over || guest.reads_clock_next() {
                return stop;
            }
            most = (2 * most).min(MOST_PART_WORDS);
            guest.clear_trace();
        }
    }

    /// How many cycles are left of the turn of core `number` that began at `start`; `None` if it has nothing to do with other cores.
    fn time_left(&self, number: usize, start: Time) -> Option<u64> {
        let end = start.checked_add(self.memory.max_turn(number)?)?;
        Some(self.cores[number].cycle_at(end).0.saturating_sub(self.now(number).0))
    }

    /// As many words of trace as core `number` gets through in `cycles`, if it goes on as in the last part of a turn.
    fn words_until(&self, number: usize, cycles: Option<u64>) -> usize {
        let (words, took) = self.cores[number].last_part;
        let words = cycles.and_then(|cycles| cycles.checked_mul(words)?.checked_div(took));
        words.map_or(usize::MAX, |words| words as usize)
    }

    /// As many words of trace as a quantum may have that is to end near the devices' next event.
    fn words_to_event(&self, words: usize, place: Place) -> usize {
        let Some(next) = self.devices.next_event() else { return words };
        let left = next.checked_since(place.start).unwrap_or_default();
        // A word of trace stands for about two instructions, and those for one to two cycles.
        let cycles = self.memory.cycles_of(place.core, left);
        usize::try_from(cycles).unwrap_or(usize::MAX).clamp(SHORTEST_QUANTUM_WORDS.min(words), words)
    }

    /// The program has trapped at `fault`: if that is a device's register, the access is made, and takes as long as it takes.
    fn access_registers(&mut self, place: Place, guest: &mut Core, fault: Fault) -> Stop {
        let trapped = Stop::Trap(Trap::Memory(fault));
        if !matches!(guest.cpu().guest().memory().window_at(fault.address), Some((Window::Registers(_), ..)))
        {
            return trapped;
        }
        guest.note_register_access();
        let at = self.time(place.core, place.start);
        let took = match self.devices.execute(&mut self.memory, guest.cpu(), place.core, at) {
            Ok(took) => took,
            Err(trap) => return Stop::Trap(trap),
        };
        let core = &mut self.cores[place.core];
        let cycles = self.memory.cycles_of(place.core, took).max(1);
        match self.phase {
            Phase::Counted => core.model.access_device_until(core.model.now() + cycles),
            Phase::Passed => core.passed = core.passed + cycles,
        }
        Stop::Quantum
    }

    /// A thread gets a core, which may have been idle until then.
    fn arrive(&mut self, place: Place) {
        self.do_kernel_work(place.start);
        self.skip_ticks(place.core, place.start);
        let core = &mut self.cores[place.core];
        let start = core.cycle_at(place.start);
        match self.phase {
            Phase::Counted => core.model.advance_to(start),
            Phase::Passed => core.passed = core.passed.max(start),
        }
    }

    /// The way into the kernel and back, and what the kernel does itself.
    pub(super) fn run_system_call(&mut self, place: Place) -> Time {
        self.arrive(place);
        let core = &mut self.cores[place.core];
        if self.phase == Phase::Counted {
            core.model.system_until(core.model.now() + core.system_call_cycles);
        }
        let time = self.time(place.core, place.start);
        // A call that asks for events sees those up to now.
        self.devices.advance(time, &mut self.memory);
        time
    }

    /// The program's side of what the kernel copies goes through the memory; the kernel's own side is taken for near at hand.
    pub(super) fn copy_in_kernel(&mut self, place: Place, copied: &[Copied]) -> Time {
        self.arrive(place);
        if self.phase == Phase::Counted {
            let core = &mut self.cores[place.core];
            let line_bytes = self.memory.line_bytes();
            let mut port = self.memory.port(place.core);
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
        self.time(place.core, place.start)
    }
}
