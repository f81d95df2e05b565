//! The functional run loop of a guest thread. `schedule` has the loop for simulated time, `translated` the one for translated programs.

use std::sync::Arc;

use longma_core::{Core, Stop};
use longma_guest::host::attention::register_attention;
use longma_linux::{Outcome, Thread};
use longma_loongarch::{Fault, FaultCause, State, Trap};

use crate::{
    ending::Ending,
    gdb::Follower,
    program,
    schedule::{self, SimulatedProcess},
    shared::Shared,
    translated::ThreadDebugger,
    unwind::Registers,
};

/// Runs a guest thread, including the programs that it executes, on the calling host thread until the thread or the
/// process ends.
pub(crate) fn run_thread(mut shared: Arc<Shared>, mut thread: Thread, mut core: Core) {
    while run_program(&shared, &mut thread, &mut core) {
        match program::replace(&shared, thread, core) {
            Ok(next) => (shared, thread, core) = next,
            Err(error) => {
                shared.cores.process().report(&format!("the program cannot be executed: {error}"));
                end(&shared, Ending::Signal(libc::SIGKILL));
            }
        }
    }
}

/// Runs a guest thread. Returns whether it has executed another program; otherwise it has ended.
fn run_program(shared: &Arc<Shared>, thread: &mut Thread, core: &mut Core) -> bool {
    // SAFETY: the core, which contains the flag, does not move or drop before the registration is removed below.
    let inserted = unsafe {
        let flag = &raw const core.cpu().attention;
        register_attention(flag);
        shared.cores.list(flag)
    };
    let mut simulated = shared.cores.in_time();
    let mut follower = shared
        .session()
        .and_then(|session| Follower::of(session, &shared.cores, thread.tid(), &core.cpu().state));
    if follower.is_some() || shared.translated().is_some() {
        thread.leave_signals_pending();
    }
    let executes = loop {
        let outcome = match (&mut follower, simulated) {
            // A forked child runs without simulated time.
            (None, Some(_)) => {
                simulated.take().map_or(Outcome::Continue, |s| run_in_time(shared, s, core, thread))
            }
            (None, None) => match shared.translated() {
                None => run_to_stop(shared, core, thread),
                Some(translated) => translated.run(&shared.cores, core, thread),
            },
            (Some(follower), _) => match shared.translated() {
                None => run_under_debugger(core, thread, follower),
                Some(translated) => translated.run_debugged(&shared.cores, core, thread, follower),
            },
        };
        match outcome {
            Outcome::Continue => {}
            // The end of the last thread is reported as `ExitProcess`.
            Outcome::ExitThread(_) => break false,
            Outcome::Execute => break true,
            Outcome::ExitProcess(status) => end(shared, Ending::Exit(status)),
            Outcome::KilledBy(signal) => end(shared, Ending::Signal(signal)),
        }
    };
    drop(follower);
    drop(inserted);
    // SAFETY: a null pointer is always valid.
    unsafe { register_attention(std::ptr::null()) };
    executes
}

fn run_in_time(
    shared: &Shared,
    simulated: &SimulatedProcess,
    core: &mut Core,
    thread: &mut Thread,
) -> Outcome {
    schedule::run_thread(simulated, core, thread, |core, thread| {
        let outcome = match shared.translated() {
            None => simulated.turn(core, thread),
            Some(translated) => translated.run(&shared.cores, core, thread),
        };
        if let (Some(stacks), Outcome::Continue) = (shared.cores.stacks(), outcome) {
            let now_ns = simulated.now(thread).ps() / 1000;
            let registers = || registers(shared, &core.cpu().state);
            stacks.add_at(shared.cores.process(), thread, now_ns, registers);
        }
        outcome
    })
}

/// The registers of a thread of the program's architecture, between two of its instructions.
fn registers(shared: &Shared, state: &State) -> Option<Registers> {
    match shared.translated() {
        None => Some(Registers::of(state)),
        Some(translated) => translated.registers(&shared.cores, state),
    }
}

fn run_to_stop(shared: &Shared, core: &mut Core, thread: &mut Thread) -> Outcome {
    match core.run() {
        Stop::Trap(Trap::Syscall(_)) => thread.syscall(&mut core.cpu().state),
        Stop::Trap(trap) => {
            if let Trap::Memory(Fault { address, cause: FaultCause::BeyondFile, .. }) = trap {
                thread.process().report_orphaned_access(address);
            }
            thread.raise(&mut core.cpu().state, trap)
        }
        Stop::Attention => {
            core.cpu().attention.clear();
            thread.deliver_pending(&mut core.cpu().state)
        }
        Stop::Quantum | Stop::Magic(_) => {
            core.clear_trace();
            shared.cores.sample(core, thread, |state| Some(Registers::of(state)));
            Outcome::Continue
        }
    }
}

fn run_under_debugger(core: &mut Core, thread: &mut Thread, follower: &mut Follower) -> Outcome {
    match follower.run(core) {
        Stop::Trap(trap) => follower.raise(thread, &mut core.cpu().state, trap),
        Stop::Attention => {
            core.cpu().attention.clear();
            follower.deliver(thread, &mut core.cpu().state)
        }
        Stop::Quantum | Stop::Magic(_) => {
            core.clear_trace();
            Outcome::Continue
        }
    }
}

/// Ends the host process in the same way as the guest.
pub(crate) fn end(shared: &Shared, ending: Ending) -> ! {
    shared.finish(ending);
    if let (Ending::Exit(_), Some(translated)) = (ending, shared.translated()) {
        translated.export_cache(&shared.cores);
    }
    if let Some(session) = shared.session() {
        session.end(ending);
    }
    ending.carry_out()
}
