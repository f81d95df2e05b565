//! The run loop of a guest thread in simulated time, and the interface to the timing model.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use longma_core::{Core, SimulatedClock, Stop};
use longma_guest::host::locks::{Mutex, MutexGuard};
use longma_linux::image::{Arrivals, KernelState};
use longma_linux::simulated::{SimulationConfig, ThreadNumber};
use longma_linux::{Copied, DeviceFile, Outcome, Process, ProcessConfig, SystemCall, Thread};
use longma_loongarch::{State, Trap};
use longma_sim::Time;

use super::scheduler::{DeviceClock, Scheduler};
use crate::kernel::Kernel;

/// A thread's core and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The modelled core.
    pub core: usize,
    /// The thread.
    pub thread: ThreadNumber,
    /// The core's local time: at least the last result of [`Clockwork::run`] for this core, and more if the core was
    /// idle.
    pub start: Time,
    /// Whether no other thread, timer or deadline can act before this thread makes a system call.
    pub alone: bool,
}

/// The kernel model that the scheduler and the timing model share.
#[derive(Clone, Debug)]
pub struct KernelWork(pub(crate) Arc<Kernel>);

/// A timing model: executes guest threads and determines how long that takes.
pub trait Clockwork: Send {
    /// Runs `guest` for a quantum or until it stops. Returns the reason and the core's new time, which is later than
    /// `place.start` if anything was executed. `rdtime` reads `place.start` during the run.
    fn run(&mut self, place: Place, guest: &mut Core) -> (Stop, Time);

    /// Accounts for the entry to a system call. Returns the time at which the kernel performs it.
    fn enter_kernel(&mut self, place: Place) -> Time {
        place.start
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
    fn leave_kernel(&mut self, place: Place, copied: &[Copied]) -> Time {
        let _ = copied;
        place.start
    }
}

/// A thread's state at the end of its last turn or at its last system call.
#[derive(Clone, Debug)]
pub(crate) struct Deposit {
    /// The registers; at a system call, those before the call.
    pub state: State,
    /// The kernel's state of the thread.
    pub kernel: KernelState,
    /// Pending signals, including those that arrive later.
    pub arrivals: Arrivals,
}

/// An operation that requires all threads of the process to be stopped.
pub trait Interlude: Send + Sync {
    /// Whether the operation is requested. Called after each turn, so it must be fast.
    fn is_wanted(&self) -> bool;

    /// Performs the operation while all threads are stopped and have a deposit. Returns the outcome if the process is
    /// to end.
    fn serve(&self, simulated: &Simulated, process: &Process) -> Option<Outcome>;
}

/// The configuration of simulated time.
pub struct SimulatedConfig {
    /// The scheduler of the guest threads.
    pub scheduler: Arc<Scheduler>,
    /// The timing model.
    pub clockwork: Box<dyn Clockwork>,
    /// An operation that stops all threads, such as a checkpoint.
    pub interlude: Option<Arc<dyn Interlude>>,
    /// The seed of the program's random numbers.
    pub seed: u64,
    /// The memory size that the program observes, in bytes.
    pub memory_bytes: u64,
}

/// The simulated time of a process.
pub struct Simulated {
    /// The scheduler of the guest threads.
    pub(crate) scheduler: Arc<Scheduler>,
    clockwork: Mutex<Box<dyn Clockwork>>,
    clock: SimulatedClock,
    interlude: Option<Arc<dyn Interlude>>,
    deposits: Mutex<BTreeMap<ThreadNumber, Deposit>>,
    seed: u64,
    memory_bytes: u64,
}

impl Simulated {
    /// Connects the parts. Threads save their state after each turn only if there is an interlude.
    pub fn new(config: SimulatedConfig) -> Self {
        let SimulatedConfig { scheduler, clockwork, interlude, seed, memory_bytes } = config;
        if let Some(devices) = clockwork.devices() {
            scheduler.attend_to(devices);
        }
        if let Some(KernelWork(kernel)) = clockwork.kernel() {
            scheduler.work_for(kernel);
        }
        Self {
            scheduler,
            clockwork: Mutex::new(clockwork),
            clock: SimulatedClock::default(),
            interlude,
            deposits: Mutex::default(),
            seed,
            memory_bytes,
        }
    }

    /// Sets the scheduler, the devices and the seed in a process's configuration.
    pub(crate) fn enter_into(&self, process: &mut ProcessConfig) {
        process.devices = self.clockwork().device_files();
        process.simulation = Some(SimulationConfig {
            scheduler: self.scheduler.clone(),
            seed: self.seed,
            memory_bytes: self.memory_bytes,
        });
    }

    /// The saved states of threads; empty if there is no interlude.
    pub(crate) fn deposits(&self) -> MutexGuard<'_, BTreeMap<ThreadNumber, Deposit>> {
        self.deposits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deposit(&self, core: &mut Core, thread: &Thread) {
        if self.interlude.is_some() {
            let (state, kernel) = (core.cpu().state.clone(), thread.kernel_state());
            let deposit = Deposit { state, kernel, arrivals: thread.arrivals() };
            self.deposits().insert(thread.number(), deposit);
        }
    }

    fn clockwork(&self) -> MutexGuard<'_, Box<dyn Clockwork>> {
        self.clockwork.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, thread: &Thread) -> Place {
        let turn = self.scheduler.turn(thread.number());
        let alone = self.scheduler.is_alone(thread.number());
        Place { core: turn.core, thread: thread.number(), start: turn.at, alone }
    }

    /// Executes the thread until it stops.
    pub(crate) fn run(&self, core: &mut Core, thread: &Thread) -> Stop {
        let place = self.place(thread);
        if let Some(simulation) = thread.process().simulation() {
            self.clock.set_ps(simulation.counter_ps());
        }
        let (stop, time) = self.clockwork().run(place, core);
        self.scheduler.advance(thread.number(), time);
        stop
    }

    /// Accounts for an entry to the kernel.
    pub(crate) fn enter_kernel(&self, thread: &Thread) {
        let time = self.clockwork().enter_kernel(self.place(thread));
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
                let time = self.clockwork().leave_kernel(self.place(thread), &copied);
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
                self.deposit(core, thread);
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
/// forked child. `turn` is [`Simulated::turn`] or its counterpart for translated programs.
pub(crate) fn run_thread(
    simulated: &Simulated,
    core: &mut Core,
    thread: &mut Thread,
    turn: impl Fn(&mut Core, &mut Thread) -> Outcome,
) -> Outcome {
    let number = thread.number();
    let scheduler = &simulated.scheduler;
    core.set_clock(simulated.clock.clone());
    simulated.deposit(core, thread);
    scheduler.take_seat(number);
    loop {
        let outcome = turn(core, thread);
        if thread.process().simulation().is_none() {
            return outcome;
        }
        match outcome {
            Outcome::Continue => {
                simulated.deposit(core, thread);
                if let Some(interlude) = simulated.interlude.as_ref().filter(|it| it.is_wanted()) {
                    scheduler.drain(number);
                    if let Some(ending) = interlude.serve(simulated, thread.process()) {
                        return ending;
                    }
                }
                scheduler.pass(number);
            }
            Outcome::ExitThread(_) => {
                simulated.deposits().remove(&number);
                scheduler.leave(number);
                return outcome;
            }
            Outcome::ExitProcess(_) | Outcome::KilledBy(_) => return outcome,
        }
    }
}
