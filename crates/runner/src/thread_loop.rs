//! The functional run loop of a guest thread, and the state that the threads of a process share. `schedule` has the
//! loop for simulated time, `translated` the one for translated programs.

use std::sync::{Arc, OnceLock};

use longma_core::{Core, Stop};
use longma_guest::host::attention::register_attention;
use longma_linux::{Outcome, Thread};
use longma_loongarch::{Fault, FaultCause, Trap};

use crate::{
    cores::Cores,
    ending::Ending,
    gdb::{Follower, Session},
    report::Report,
    schedule::{self, SimulatedProcess},
    translated::{ThreadDebugger, Translation},
};

/// Called once, when the process ends.
type Finish = dyn Fn(Ending, &Report) + Send + Sync;

/// The state that the threads of a process share.
pub(crate) struct Shared {
    /// The process and its cores.
    pub cores: Arc<Cores>,
    translated: Option<Arc<dyn Translation>>,
    finish: OnceLock<Box<Finish>>,
    session: OnceLock<Arc<Session>>,
}

impl Shared {
    /// Creates the state without a debugging session or a callback for the end.
    pub fn new(cores: Arc<Cores>, translated: Option<Arc<dyn Translation>>) -> Self {
        Self { cores, translated, finish: OnceLock::new(), session: OnceLock::new() }
    }

    /// The translation, if the program is not for LoongArch.
    pub fn translated(&self) -> Option<&Arc<dyn Translation>> {
        self.translated.as_ref()
    }

    /// Sets the callback for the end of the process. Only the first call has an effect.
    pub fn set_end_callback(&self, finish: Box<Finish>) {
        let _ = self.finish.set(finish);
    }

    /// The debugging session, if there is or was one.
    pub fn session(&self) -> Option<&Arc<Session>> {
        self.session.get()
    }

    /// Attaches a debugger. Returns the process's session, which is the first one attached.
    #[expect(
        clippy::disallowed_methods,
        reason = "the value already exists, so no fork can happen in between"
    )]
    pub fn begin_session(&self, session: Arc<Session>) -> Arc<Session> {
        // A process has a single session, because each thread follows only one.
        self.session.get_or_init(|| session).clone()
    }
}

/// Runs a guest thread on the calling host thread until the thread or the process ends.
pub(crate) fn run_thread(shared: &Arc<Shared>, mut thread: Thread, mut core: Core) {
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
    if follower.is_some() || shared.translated.is_some() {
        thread.leave_signals_pending();
    }
    loop {
        let outcome = match (&mut follower, simulated) {
            // A forked child runs without simulated time.
            (None, Some(_)) => {
                simulated.take().map_or(Outcome::Continue, |s| run_in_time(shared, s, &mut core, &mut thread))
            }
            (None, None) => match &shared.translated {
                None => run_to_stop(&mut core, &mut thread),
                Some(translated) => translated.run(&shared.cores, &mut core, &mut thread),
            },
            (Some(follower), _) => match &shared.translated {
                None => run_under_debugger(&mut core, &mut thread, follower),
                Some(translated) => translated.run_debugged(&shared.cores, &mut core, &mut thread, follower),
            },
        };
        match outcome {
            Outcome::Continue => {}
            // The end of the last thread is reported as `ExitProcess`.
            Outcome::ExitThread(_) => break,
            Outcome::ExitProcess(status) => end(shared, Ending::Exit(status)),
            Outcome::KilledBy(signal) => end(shared, Ending::Signal(signal)),
        }
    }
    drop(follower);
    drop(inserted);
    // SAFETY: a null pointer is always valid.
    unsafe { register_attention(std::ptr::null()) };
}

fn run_in_time(
    shared: &Shared,
    simulated: &SimulatedProcess,
    core: &mut Core,
    thread: &mut Thread,
) -> Outcome {
    schedule::run_thread(simulated, core, thread, |core, thread| match shared.translated() {
        None => simulated.turn(core, thread),
        Some(translated) => translated.run(&shared.cores, core, thread),
    })
}

fn run_to_stop(core: &mut Core, thread: &mut Thread) -> Outcome {
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
    if let Some(finish) = shared.finish.get() {
        finish(ending, &Report { cores: &shared.cores, translated: shared.translated().map(AsRef::as_ref) });
    }
    if let (Ending::Exit(_), Some(translated)) = (ending, shared.translated()) {
        translated.export_cache(&shared.cores);
    }
    if let Some(session) = shared.session() {
        session.end(ending);
    }
    ending.carry_out()
}
