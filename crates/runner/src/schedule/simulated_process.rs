//! The run loop of a guest thread in simulated time, and the interface to the timing model.

use longma_locks::IgnorePoison;
use std::collections::BTreeMap;
use std::sync::Arc;

use longma_core::{Core, SimulatedClock, Stop};
use longma_guest::host::locks::{Mutex, MutexGuard};
use longma_linux::image::{Arrivals, KernelState};
use longma_linux::simulated::{SimulationConfig, ThreadNumber};
use longma_linux::{DeviceFile, Outcome, Process, ProcessConfig, SystemCall, Thread, TransferredMemory};
use longma_loongarch::{State, Trap};
use longma_sim::Time;

use super::scheduler::{DeviceClock, Scheduler};
use crate::kernel_model::Kernel;

/// A thread's core and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadSlot {
    /// The modelled core.
    pub core: usize,
    /// The thread.
    pub thread: ThreadNumber,
    /// The core's local time: at least the last result of [`TimingBackend::run`] for this core, and more if the core
    /// was idle.
    pub start: Time,
    /// Whether this thread makes a system call before any other thread, timer or deadline can act.
    pub alone: bool,
}

/// The kernel model that the scheduler and the timing model share.
#[derive(Clone, Debug)]
pub struct KernelWork(pub(crate) Arc<Kernel>);

/// A timing model: executes guest threads and determines how long that takes. All threads share it, but only the thread
/// that has the turn calls it.
pub trait TimingBackend: Send + Sync {
    /// Runs `guest` for a quantum or until it stops. Returns the reason and the core's new time, which is later than
    /// `slot.start` if anything was executed. `rdtime` reads `slot.start` during the run.
    fn run(&self, slot: ThreadSlot, guest: &mut Core) -> (Stop, Time);

    /// Accounts for the entry to a system call. Returns the time at which the kernel performs it.
    fn enter_kernel(&self, slot: ThreadSlot) -> Time {
        slot.start
    }

    /// The devices that act independently of threads, if any.
    fn devices(&self) -> Option<Arc<dyn DeviceClock>> {
        None
    }

    /// The device files that the program can open.
    fn device_files(&self) -> Arc<[DeviceFile]> {
        Arc::default()
    }

    /// The kernel model, if kernel work occupies cores.
    fn kernel(&self) -> Option<KernelWork> {
        None
    }

    /// Accounts for data that the kernel copied for the thread. Returns the time at which the program continues.
    fn leave_kernel(&self, slot: ThreadSlot, copied: &[TransferredMemory]) -> Time {
        let _ = copied;
        slot.start
    }
}

/// A thread's state at the end of its last turn or at its last system call.
#[derive(Clone, Debug)]
pub(crate) struct ThreadSnapshot {
    /// The registers; at a system call, those before the call.
    pub state: State,
    /// The kernel's state of the thread.
    pub kernel: KernelState,
    /// Pending signals, including those that arrive later.
    pub arrivals: Arrivals,
}

/// An operation that requires all threads of the process to be stopped.
pub trait StopTheWorld: Send + Sync {
    /// Whether the operation is requested. Called after each turn, so it must be fast.
    fn is_requested(&self) -> bool;

    /// Performs the operation while all threads are stopped and have a snapshot. Returns the outcome if the process is
    /// to end.
    fn serve(&self, simulated: &SimulatedProcess, process: &Process) -> Option<Outcome>;
}

/// The configuration of simulated time.
pub struct SimulatedProcessConfig {
    /// The scheduler of the guest threads.
    pub scheduler: Arc<Scheduler>,
    /// The timing model.
    pub timing_backend: Box<dyn TimingBackend>,
    /// An operation that stops all threads, such as a checkpoint.
    pub stop_the_world: Option<Arc<dyn StopTheWorld>>,
    /// The seed of the program's random numbers.
    pub seed: u64,
    /// The memory size that the program observes, in bytes.
    pub memory_bytes: u64,
}

/// A process in simulated time: its scheduler, its timing model and the snapshots of its threads.
pub struct SimulatedProcess {
    /// The scheduler of the guest threads.
    pub(crate) scheduler: Arc<Scheduler>,
    timing_backend: Box<dyn TimingBackend>,
    clock: SimulatedClock,
    stop_the_world: Option<Arc<dyn StopTheWorld>>,
    snapshots: Mutex<BTreeMap<ThreadNumber, ThreadSnapshot>>,
    seed: u64,
    memory_bytes: u64,
}

impl SimulatedProcess {
    /// Connects the scheduler with the timing model. Threads save their state after each turn only if there is a [`StopTheWorld`].
    pub fn new(config: SimulatedProcessConfig) -> Self {
        let SimulatedProcessConfig { scheduler, timing_backend, stop_the_world, seed, memory_bytes } = config;
        if let Some(devices) = timing_backend.devices() {
            scheduler.set_devices(devices);
        }
        if let Some(KernelWork(kernel)) = timing_backend.kernel() {
            scheduler.set_kernel(kernel);
        }
        Self {
            scheduler,
            timing_backend,
            clock: SimulatedClock::default(),
            stop_the_world,
            snapshots: Mutex::default(),
            seed,
            memory_bytes,
        }
    }

    /// Forgets the states of all threads, because the process has called execve(2).
    pub(crate) fn forget_threads(&self) {
        self.snapshots().clear();
    }

    /// Sets the scheduler, the devices and the seed in a process's configuration.
    pub(crate) fn enter_into(&self, process: &mut ProcessConfig) {
        process.devices = self.timing_backend.device_files();
        process.simulation = Some(SimulationConfig {
            scheduler: self.scheduler.clone(),
            seed: self.seed,
            memory_bytes: self.memory_bytes,
        });
    }

    /// The saved states of threads; empty if there is no [`StopTheWorld`].
    pub(crate) fn snapshots(&self) -> MutexGuard<'_, BTreeMap<ThreadNumber, ThreadSnapshot>> {
        self.snapshots.lock().ignore_poison()
    }

    fn snapshot(&self, core: &mut Core, thread: &Thread) {
        if self.stop_the_world.is_some() {
            let (state, kernel) = (core.cpu().state.clone(), thread.kernel_state());
            let snapshot = ThreadSnapshot { state, kernel, arrivals: thread.arrivals() };
            self.snapshots().insert(thread.number(), snapshot);
        }
    }

    fn slot(&self, thread: &Thread) -> ThreadSlot {
        let turn = self.scheduler.turn(thread.number());
        let is_alone = self.scheduler.is_alone(thread.number());
        ThreadSlot { core: turn.core, thread: thread.number(), start: turn.at, alone: is_alone }
    }

    /// Executes the thread until it stops.
    pub(crate) fn run(&self, core: &mut Core, thread: &Thread) -> Stop {
        let slot = self.slot(thread);
        if let Some(simulation) = thread.process().simulation() {
            self.clock.set_ps(simulation.counter_ps());
        }
        let (stop, time) = self.timing_backend.run(slot, core);
        self.scheduler.advance(thread.number(), time);
        stop
    }

    /// The simulated time of a thread.
    pub(crate) fn now(&self, thread: &Thread) -> Time {
        self.slot(thread).start
    }

    /// Accounts for an entry to the kernel.
    pub(crate) fn enter_kernel(&self, thread: &Thread) {
        let time = self.timing_backend.enter_kernel(self.slot(thread));
        self.scheduler.advance(thread.number(), time);
    }

    /// Performs the system call that the thread is about to make.
    pub(crate) fn system_call(&self, core: &mut Core, thread: &mut Thread) -> Outcome {
        let number = thread.number();
        self.enter_kernel(thread);
        let call = SystemCall::of(&core.cpu().state);
        let outcome = thread.syscall(&mut core.cpu().state);
        if outcome == Outcome::Continue && thread.process().simulation().is_some() {
            let copied = call.copied(thread, &core.cpu().state);
            if !copied.is_empty() {
                let time = self.timing_backend.leave_kernel(self.slot(thread), &copied);
                self.scheduler.advance(number, time);
            }
        }
        outcome
    }

    /// Executes a LoongArch thread until it stops, and handles the reason.
    pub(crate) fn turn(&self, core: &mut Core, thread: &mut Thread) -> Outcome {
        match self.run(core, thread) {
            Stop::Quantum | Stop::Magic(_) => Outcome::Continue,
            Stop::Trap(Trap::Syscall(_)) => {
                self.snapshot(core, thread);
                self.system_call(core, thread)
            }
            Stop::Trap(trap) => thread.raise(&mut core.cpu().state, trap),
            Stop::Attention => {
                core.cpu().attention.clear();
                thread.deliver_pending(&mut core.cpu().state)
            }
        }
    }
}

/// Runs `thread` on the calling host thread, whenever it is scheduled, until it exits or leaves simulated time in a
/// forked child. `turn` is [`SimulatedProcess::turn`] or its counterpart for translated programs.
pub(crate) fn run_thread(
    simulated: &SimulatedProcess,
    core: &mut Core,
    thread: &mut Thread,
    turn: impl Fn(&mut Core, &mut Thread) -> Outcome,
) -> Outcome {
    let number = thread.number();
    let scheduler = &simulated.scheduler;
    core.set_clock(simulated.clock.clone());
    simulated.snapshot(core, thread);
    scheduler.wait_for_first_turn(number);
    loop {
        let outcome = turn(core, thread);
        if thread.process().simulation().is_none() {
            return outcome;
        }
        match outcome {
            Outcome::Continue => {
                simulated.snapshot(core, thread);
                if let Some(stop_the_world) =
                    simulated.stop_the_world.as_ref().filter(|request| request.is_requested())
                {
                    scheduler.drain(number);
                    if let Some(ending) = stop_the_world.serve(simulated, thread.process()) {
                        return ending;
                    }
                }
                scheduler.pass(number);
            }
            Outcome::ExitThread(_) => {
                simulated.snapshots().remove(&number);
                scheduler.leave(number);
                return outcome;
            }
            Outcome::ExitProcess(_) | Outcome::KilledBy(_) | Outcome::Execute => return outcome,
        }
    }
}
