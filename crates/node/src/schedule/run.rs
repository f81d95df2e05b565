//! The run loop of a guest thread in simulated time.
//! Not the functional one, which is in `crate::run`.
//! Source: our own.

use std::sync::{Arc, Mutex, PoisonError};

use longma_core::{Core, SimulatedClock, Stop};
use longma_linux::simulated::ThreadNumber;
use longma_linux::{Outcome, Thread};
use longma_loongarch::Trap;
use longma_sim::Time;

use super::scheduler::Scheduler;

/// Where and when a thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The modelled core.
    pub core: usize,
    /// The thread.
    pub thread: ThreadNumber,
    /// What time it is on that core: no less than what [`Clockwork::run`] last gave for the core, and more if it stood idle.
    pub start: Time,
}

/// Runs guest threads and says how long that takes on the modelled machine.
pub trait Clockwork: Send {
    /// Runs `guest` for a quantum, or until it stops; gives why it stopped and the time the core has reached: more than
    /// `place.start` if anything was executed. `rdtime` shows `place.start` meanwhile.
    fn run(&mut self, place: Place, guest: &mut Core) -> (Stop, Time);
}

/// A process in simulated time.
pub struct Simulated {
    /// Decides who runs; the same one is in the process's configuration.
    pub scheduler: Arc<Scheduler>,
    /// Says how long it takes.
    pub clockwork: Mutex<Box<dyn Clockwork>>,
    clock: SimulatedClock,
}

impl Simulated {
    /// Both together.
    pub fn new(scheduler: Arc<Scheduler>, clockwork: Box<dyn Clockwork>) -> Self {
        Self { scheduler, clockwork: Mutex::new(clockwork), clock: SimulatedClock::default() }
    }
}

/// Runs `thread` on this host thread, when it is its turn, until it is over or, having forked, is no longer in simulated time.
pub(crate) fn run_thread(simulated: &Simulated, core: &mut Core, thread: &mut Thread) -> Outcome {
    let number = thread.number();
    let scheduler = &simulated.scheduler;
    core.set_clock(simulated.clock.clone());
    scheduler.take_seat(number);
    loop {
        let turn = scheduler.turn(number);
        let place = Place { core: turn.core, thread: number, start: turn.at };
        if let Some(simulation) = thread.process().simulation() {
            simulated.clock.set_ps(simulation.counter_ps());
        }
        let (stop, time) = {
            let mut clockwork = simulated.clockwork.lock().unwrap_or_else(PoisonError::into_inner);
            clockwork.run(place, core)
        };
        scheduler.advance(number, time);
        let outcome = match stop {
            Stop::Quantum | Stop::Magic(_) => Outcome::Continue,
            Stop::Trap(Trap::Syscall(_)) => thread.syscall(&mut core.cpu().state),
            Stop::Trap(trap) => thread.raise(&mut core.cpu().state, trap),
            Stop::Attention => {
                core.cpu().attention.clear();
                thread.deliver_pending(&mut core.cpu().state)
            }
        };
        if thread.process().simulation().is_none() {
            return outcome;
        }
        match outcome {
            Outcome::Continue => scheduler.pass(number),
            Outcome::ExitThread(_) => {
                scheduler.leave(number);
                return outcome;
            }
            Outcome::ExitProcess(_) | Outcome::KilledBy(_) => return outcome,
        }
    }
}
