//! The run loop of a guest thread in simulated time.
//! Not the functional one, which is in `crate::run`.

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

/// Where and when a thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The modelled core.
    pub core: usize,
    /// The thread.
    pub thread: ThreadNumber,
    /// What time it is on that core: no less than what [`Clockwork::run`] last gave for the core, and more if it stood idle.
    pub start: Time,
    /// No other thread and no timer or deadline can do anything until this thread makes a system call.
    pub alone: bool,
}

/// The kernel's own work, shared by who makes it and who does it.
#[derive(Clone, Debug)]
pub struct KernelWork(pub(crate) Arc<Kernel>);

/// Runs guest threads and says how long that takes on the modelled machine.
pub trait Clockwork: Send {
    /// Runs `guest` for a quantum, or until it stops; gives why it stopped and the time the core has reached: more than
    /// `place.start` if anything was executed. `rdtime` shows `place.start` meanwhile.
    fn run(&mut self, place: Place, guest: &mut Core) -> (Stop, Time);

    /// The thread makes a system call. Gives the time at which the kernel does what it asks for.
    fn enter_kernel(&mut self, place: Place) -> Time {
        place.start
    }

    /// The devices that act by themselves, if there are any.
    fn devices(&self) -> Option<Arc<dyn DeviceClock>> {
        None
    }

    /// The files by which the program sees the machine's devices.
    fn device_files(&self) -> Arc<[DeviceFile]> {
        Arc::default()
    }

    /// What the kernel does of itself, if that is work of cores.
    fn kernel(&self) -> Option<KernelWork> {
        None
    }

    /// The kernel has copied for the thread. Gives the time at which the program goes on.
    fn leave_kernel(&mut self, place: Place, copied: &[Copied]) -> Time {
        let _ = copied;
        place.start
    }
}

/// What a thread was when it last gave its turn away or made a call.
#[derive(Clone, Debug)]
pub(crate) struct Deposit {
    /// Its registers; at a call, those before it.
    pub state: State,
    /// What the kernel knows of it.
    pub kernel: KernelState,
    /// Signals on their way to it, those included that come later.
    pub arrivals: Arrivals,
}

/// What somebody may want done while no thread of the process runs.
pub trait Interlude: Send + Sync {
    /// True if something is wanted. Asked at the end of each turn: it must be quick.
    fn is_wanted(&self) -> bool;

    /// Does it; all threads stand still, each with a deposit. Gives how the process ends, if it does.
    fn serve(&self, simulated: &Simulated, process: &Process) -> Option<Outcome>;
}

/// What a process needs to run in simulated time.
pub struct SimulatedConfig {
    /// Decides who runs.
    pub scheduler: Arc<Scheduler>,
    /// Says how long it takes.
    pub clockwork: Box<dyn Clockwork>,
    /// What may want all threads to stand still, such as a checkpoint.
    pub interlude: Option<Arc<dyn Interlude>>,
    /// Where the program's random bytes come from.
    pub seed: u64,
    /// The memory that the program is told of, bytes.
    pub memory_bytes: u64,
}

/// A process in simulated time.
pub struct Simulated {
    /// Decides who runs.
    pub(crate) scheduler: Arc<Scheduler>,
    clockwork: Mutex<Box<dyn Clockwork>>,
    clock: SimulatedClock,
    interlude: Option<Arc<dyn Interlude>>,
    deposits: Mutex<BTreeMap<ThreadNumber, Deposit>>,
    seed: u64,
    memory_bytes: u64,
}

impl Simulated {
    /// All of it together. For an interlude, threads leave deposits.
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

    /// What the process is told of it.
    pub(crate) fn enter_into(&self, process: &mut ProcessConfig) {
        process.devices = self.clockwork().device_files();
        process.simulation = Some(SimulationConfig {
            scheduler: self.scheduler.clone(),
            seed: self.seed,
            memory_bytes: self.memory_bytes,
        });
    }

    /// What threads that do not run were when they last did, if there may be an interlude.
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

    /// Lets the thread go on until it stops.
    pub(crate) fn run(&self, core: &mut Core, thread: &Thread) -> Stop {
        let place = self.place(thread);
        if let Some(simulation) = thread.process().simulation() {
            self.clock.set_ps(simulation.counter_ps());
        }
        let (stop, time) = self.clockwork().run(place, core);
        self.scheduler.advance(thread.number(), time);
        stop
    }

    /// The thread goes into the kernel and comes back, whatever that does for it.
    pub(crate) fn enter_kernel(&self, thread: &Thread) {
        let time = self.clockwork().enter_kernel(self.place(thread));
        self.scheduler.advance(thread.number(), time);
    }

    /// The kernel answers the call that the thread is about to make.
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

    /// Lets a thread whose program is for LoongArch go on until it stops, and does what that asks for.
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

/// Runs `thread` on this host thread, when it is its turn, until it is over or, having forked, is no longer in simulated time. `turn` is
/// [`Simulated::turn`] or what stands for that.
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
