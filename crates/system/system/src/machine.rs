//! A machine with up to 16 cores. It runs them in turns, deterministically, for a given number of cycles.

use std::rc::Rc;
use std::time::Duration;

use longma_core::system::Frame;
use longma_loongarch::State;
use serde::{Deserialize, Serialize};

use crate::core::observed::{Observation, ObservedCode, Timing};
use crate::core::{Bus, Core, NS_PER_CYCLE, Pause, Translation};
use crate::memory::{Memory, MemoryError};
use crate::net::Network;
use crate::platform::{Disk, MAX_DEVICES, Platform, PowerRequest, SharedFolder, Transport};

/// The program counter after reset. Source: LoongArch Reference Manual, volume 1, section 6.3 (reset).
const RESET_ADDRESS: u64 = 0x1c00_0000;

/// The maximum number of cores of a machine.
pub const MAX_CORES: usize = 16;

/// Cycles of a turn if the machine has several cores. A core observes the effects of the other cores in its next turn.
pub(crate) const TURN: u64 = 2_000;

/// Cycles of a turn while models time the cores; fewer, so that cores receive each other's interrupts sooner.
const OBSERVED_TURN: u64 = 1_000;

/// The configuration of a machine.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The number of cores, 1 to [`MAX_CORES`].
    pub cores: usize,
    /// The size of memory in bytes.
    pub memory_bytes: u64,
    /// The start date of the machine, in seconds since 1970.
    pub start_s: u64,
    /// Whether hot code is translated to host code. Execution is the same, but faster. Has no effect on hosts whose
    /// processors lack required features.
    pub translation: bool,
}

impl Default for Configuration {
    /// One core and 1 GiB of memory, started on 2024-01-01, with translation.
    fn default() -> Self {
        Self { cores: 1, memory_bytes: 1 << 30, start_s: 1_704_067_200, translation: true }
    }
}

/// The machine cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// The number of cores is not supported.
    #[error("{0} cores: a machine has from 1 to {MAX_CORES}")]
    Cores(usize),
    /// The memory cannot be allocated.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The memory for translated code cannot be allocated.
    #[error("memory for translated code: {0}")]
    Translation(std::io::Error),
}

/// The PCI bus has no free slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a machine has up to {MAX_DEVICES} PCI devices")]
pub struct BusFull;

/// Why the machine stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The given cycles have passed.
    Limit,
    /// All cores wait for an interrupt that only the caller can cause, by typing on the console.
    Idle,
    /// Software switched the machine off.
    PowerOff,
    /// Software requested a reset. The machine keeps its state; create a new machine to reset it.
    Reset,
    /// A core has reached a breakpoint or watchpoint, or has completed a step. Only a [`Debugger`](crate::Debugger)
    /// sees this.
    Debugger,
    /// Software wrote this value to [`map::MARK`](crate::map::MARK), and [`Machine::stop_at_marks`] was called.
    Mark(u8),
}

/// The maximum number of cycles by which a core lags behind while the debugger holds it. It catches up when it is
/// released, so that short holds, such as steps of other cores, do not change a run.
pub(crate) const MAX_LAG: u64 = 1_000_000;

/// The cores run until the same cycle, one after the other.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Turn {
    pub end: u64,
    /// The core that runs next.
    pub core: usize,
    /// Whether that core has run a part of its turn.
    pub is_interrupted: bool,
    /// Whether all cores with lower numbers are waiting.
    pub are_idle: bool,
}

/// A machine. Core 0 starts. Its software starts the others by writing an address to their mailbox 0 and sending an
/// inter-processor interrupt, as with firmware.
pub struct Machine {
    pub(crate) cores: Vec<(Box<Frame>, Core)>,
    pub(crate) bus: Rc<Bus>,
    /// The cycle at which the next turn begins.
    pub(crate) now: u64,
    /// The turn that the debugger or a mark has interrupted.
    pub(crate) turn: Option<Turn>,
    /// The traces of the cores, if models observe them.
    observation: Option<Box<Observation>>,
    /// Whether the last run was observed.
    is_observed: bool,
}

impl Machine {
    /// Creates a machine in its reset state.
    ///
    /// # Errors
    /// The number of cores is not usable, or the memory cannot be allocated.
    pub fn new(configuration: &Configuration) -> Result<Self, ConfigurationError> {
        let count = configuration.cores;
        if !(1..=MAX_CORES).contains(&count) {
            return Err(ConfigurationError::Cores(count));
        }
        let memory = Memory::new(configuration.memory_bytes)?;
        let translation = match configuration.translation {
            true => Translation::new().map_err(ConfigurationError::Translation)?,
            false => None,
        };
        let bus = Rc::new(Bus::new(memory, Platform::new(count, configuration.start_s), translation, count));
        let state = State { pc: RESET_ADDRESS, ..State::default() };
        let cores = (0..count)
            .map(|number| (Frame::new(state.clone()), Core::new(number, Rc::clone(&bus))))
            .collect();
        Ok(Self { cores, bus, now: 0, turn: None, observation: None, is_observed: false })
    }

    /// Attaches a disk to the PCI bus. Call it before the machine runs. Disks get slots in the order of their
    /// attachment.
    ///
    /// # Errors
    /// The bus has no free slot.
    pub fn attach_disk(&mut self, disk: Disk) -> Result<(), BusFull> {
        self.attach(Transport::disk(disk))
    }

    /// Attaches an entropy device to the PCI bus. Call it before the machine runs. Its numbers depend only on `seed`.
    ///
    /// # Errors
    /// The bus has no free slot.
    pub fn attach_entropy(&mut self, seed: u64) -> Result<(), BusFull> {
        self.attach(Transport::entropy(seed))
    }

    /// Attaches a folder of the host to the PCI bus. Call it before the machine runs. Runs then depend on the folder.
    ///
    /// # Errors
    /// The bus has no free slot.
    pub fn attach_share(&mut self, folder: SharedFolder) -> Result<(), BusFull> {
        self.attach(Transport::share(folder))
    }

    /// Attaches a NIC to the PCI bus. Call it before the machine runs. The caller exchanges frames by
    /// [`Machine::exchange_frames`].
    ///
    /// # Errors
    /// The bus has no free slot.
    pub fn attach_network(&mut self, network: Network) -> Result<(), BusFull> {
        self.attach(Transport::network(network))
    }

    /// Exchanges frames between the NIC and its network. If none arrives for the guest, waits up to `wait` of the host's
    /// time for one.
    pub fn exchange_frames(&mut self, wait: Duration) {
        let now_ns = self.now.saturating_mul(NS_PER_CYCLE);
        let mut effects = self.bus.platform.borrow_mut().exchange(now_ns, wait, self.bus.memory.guest());
        // The NIC works concurrently with the cores.
        effects.cycles = 0;
        self.cores[0].1.take_effects(&effects);
    }

    fn attach(&mut self, device: Transport) -> Result<(), BusFull> {
        if self.bus.platform.borrow_mut().attach(device) { Ok(()) } else { Err(BusFull) }
    }

    /// The number of cores.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// The registers of core 0.
    pub fn state(&self) -> &State {
        &self.cores[0].0.state
    }

    /// The registers of core 0, to be set before the machine runs.
    pub fn state_mut(&mut self) -> &mut State {
        &mut self.cores[0].0.state
    }

    /// The memory. Do not write to it once the machine has run, since decoded instructions would become stale.
    pub fn memory(&self) -> &Memory {
        &self.bus.memory
    }

    /// The value of a CSR of core 0, without the side effects of reading it; `None` if the CSR does not exist.
    pub fn csr(&self, number: u16) -> Option<u64> {
        self.cores[0].1.csr(number)
    }

    /// Cycles since reset. A core spends one cycle on each instruction and exception; waits and the work of devices
    /// take cycles, too.
    pub fn cycles(&self) -> u64 {
        self.now
    }

    /// The status that software has written to [`map::POWER`](crate::map::POWER) + 1; 0 by default.
    pub fn exit_status(&self) -> u8 {
        self.bus.platform.borrow().exit_status()
    }

    /// The number of regions of code that have been translated to host code.
    pub fn translated_regions(&self) -> u64 {
        self.bus.translation.as_ref().map_or(0, Translation::regions)
    }

    /// Takes the bytes that the serial port has sent. A byte takes at least one cycle, so that the cycles run so far
    /// limit their number.
    pub fn take_console_output(&mut self) -> Vec<u8> {
        self.bus.platform.borrow_mut().take_console_output()
    }

    /// Sends bytes to the serial port. Returns how many fit in its buffer.
    pub fn type_on_console(&mut self, bytes: &[u8]) -> usize {
        self.bus.platform.borrow_mut().type_on_console(bytes)
    }

    /// Runs for `cycles` cycles, or until the machine stops. The host's work is proportional to the cycles.
    ///
    /// Cores take turns on the caller's thread, so that a run is deterministic. A turn that the debugger has
    /// interrupted ends first, even if it is longer.
    pub fn run(&mut self, cycles: u64) -> Stop {
        let length = if self.cores.len() == 1 { u64::MAX } else { TURN };
        self.is_observed = false;
        self.run_turns(cycles, length, |core, frame, end| core.run(frame, end))
    }

    /// Like [`Machine::run`], but interprets all code and reports it to `timing`, which determines how much time passes.
    /// One cycle of the machine is then a nanosecond of modelled time. Debuggers are not served.
    pub fn run_observed(&mut self, cycles: u64, timing: &mut impl Timing) -> Stop {
        let count = self.cores.len();
        let length = if count == 1 { u64::MAX } else { OBSERVED_TURN };
        if !std::mem::replace(&mut self.is_observed, true) {
            // A store to decoded code ends a quantum. Code decoded by an unobserved run must not affect times.
            self.remove_code();
        }
        let mut observation = self.observation.take().unwrap_or_else(|| Box::new(Observation::new(count)));
        let stop = self.run_turns(cycles, length, |core, frame, end| {
            core.run_observed(frame, end, &mut observation, timing)
        });
        self.observation = Some(observation);
        stop
    }

    /// The code that [`Machine::run_observed`] has reported; `None` before its first call.
    pub fn observed_code(&self) -> Option<&ObservedCode> {
        self.observation.as_ref().map(|observation| observation.code())
    }

    /// Makes the machine stop when software writes to [`map::MARK`](crate::map::MARK).
    pub fn stop_at_marks(&mut self) {
        self.bus.heeds_marks.set(true);
    }

    /// The cycle that a core has reached.
    ///
    /// # Panics
    /// If there is no such core.
    pub fn core_cycles(&self, core: usize) -> u64 {
        self.cores[core].1.clock()
    }

    /// Removes all decoded code.
    pub(crate) fn remove_code(&self) {
        self.bus.remove_code();
        self.cores.iter().for_each(|(_, core)| core.forget_code());
    }

    /// Runs turns of up to `length` cycles. `execute` runs one core until the end of its turn.
    fn run_turns(
        &mut self,
        cycles: u64,
        length: u64,
        mut execute: impl FnMut(&Core, &mut Frame, u64) -> Pause,
    ) -> Stop {
        let end = self.now.saturating_add(cycles);
        loop {
            let mut turn = self.turn.take().unwrap_or(Turn {
                end: self.now.saturating_add(length).min(end),
                core: 0,
                is_interrupted: false,
                are_idle: true,
            });
            match self.run_turn(&mut turn, &mut execute) {
                Some(stop @ (Stop::Debugger | Stop::Mark(_))) => {
                    self.turn = Some(turn);
                    return stop;
                }
                Some(stop) => return stop,
                None => {}
            }
            if turn.are_idle && !self.has_message() {
                self.now = self.cores.iter().map(|(_, core)| core.clock()).fold(self.now, u64::max);
                return Stop::Idle;
            }
            self.now = self.next_turn(turn.end).min(end.max(turn.end));
            if self.now >= end {
                self.now = self.cores.iter().map(|(_, core)| core.clock()).fold(self.now, u64::max);
                return Stop::Limit;
            }
        }
    }

    /// Runs each core until the end of the turn, beginning with the core at which the debugger interrupted it.
    fn run_turn(
        &mut self,
        turn: &mut Turn,
        execute: &mut impl FnMut(&Core, &mut Frame, u64) -> Pause,
    ) -> Option<Stop> {
        for number in turn.core..self.cores.len() {
            let (frame, core) = &mut self.cores[number];
            if !std::mem::take(&mut turn.is_interrupted) {
                core.begin_turn(&mut frame.state, self.now);
            }
            if self.bus.debug.holds(number) {
                core.pass_to(turn.end.saturating_sub(MAX_LAG));
                turn.are_idle = false;
                continue;
            }
            match execute(core, frame, turn.end) {
                Pause::Power(request) => {
                    self.now = core.clock();
                    return Some(match request {
                        PowerRequest::Off => Stop::PowerOff,
                        PowerRequest::Reset => Stop::Reset,
                    });
                }
                Pause::Debugger => {
                    (turn.core, turn.is_interrupted) = (number, true);
                    return Some(Stop::Debugger);
                }
                Pause::Mark(mark) => {
                    (turn.core, turn.is_interrupted) = (number, true);
                    return Some(Stop::Mark(mark));
                }
                Pause::End => turn.are_idle = false,
                Pause::Idle => {}
            }
        }
        None
    }

    /// Whether a waiting core finds an interrupt or a message in its next turn.
    fn has_message(&mut self) -> bool {
        self.cores.iter_mut().any(|(frame, core)| {
            core.begin_turn(&mut frame.state, self.now);
            !core.is_waiting()
        })
    }

    /// The beginning of the next turn: the end of this one, or the next timer event if all cores wait.
    fn next_turn(&mut self, turn_end: u64) -> u64 {
        let is_waiting = self.cores.len() > 1
            && self.cores.iter().all(|(_, core)| core.is_waiting())
            && !self.has_message();
        let events = self.cores.iter().filter_map(|(_, core)| core.next_event());
        events.min().filter(|_| is_waiting).map_or(turn_end, |event| event.max(turn_end))
    }
}
