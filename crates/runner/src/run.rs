//! The run loop of a guest thread on its host thread, and what the threads of a process share.
//! Not the loop in simulated time (see `schedule`), nor that of a translated program (see `translated`).

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
    schedule::{self, Simulated},
    translated::{Steers, Translation},
};

/// Told once how the process ended.
type Finish = dyn Fn(Ending, &Report) + Send + Sync;

/// What the threads of a process share.
pub(crate) struct Shared {
    /// The process and what executes it.
    pub cores: Arc<Cores>,
    translated: Option<Arc<dyn Translation>>,
    finish: OnceLock<Box<Finish>>,
    session: OnceLock<Arc<Session>>,
}

impl Shared {
    /// For a process that nobody debugs yet, and of whose end nobody is told.
    pub fn new(cores: Arc<Cores>, translated: Option<Arc<dyn Translation>>) -> Self {
        Self { cores, translated, finish: OnceLock::new(), session: OnceLock::new() }
    }

    /// What is translated, if the program is for another architecture.
    pub fn translated(&self) -> Option<&Arc<dyn Translation>> {
        self.translated.as_ref()
    }

    /// Has `finish` be told how the process ended; only the first call counts.
    pub fn tell_at_end(&self, finish: Box<Finish>) {
        let _ = self.finish.set(finish);
    }

    /// The debugging session, if there ever was one.
    pub fn session(&self) -> Option<&Arc<Session>> {
        self.session.get()
    }

    /// A debugger has the process from now on. Gives the session that counts.
    #[expect(clippy::disallowed_methods, reason = "it is made already: no fork can come in between")]
    pub fn begin_session(&self, session: Arc<Session>) -> Arc<Session> {
        // There is one debugger: a second session would find the process's threads taken.
        self.session.get_or_init(|| session).clone()
    }
}

/// Runs one guest thread on this host thread until it or the process ends.
pub(crate) fn run_thread(shared: &Arc<Shared>, mut thread: Thread, mut core: Core) {
    // SAFETY: the core, and its flag in it, stay where they are until the registration is taken back below.
    let listed = unsafe {
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
            // After a fork the child goes on without simulated time.
            (None, Some(_)) => {
                simulated.take().map_or(Outcome::Continue, |s| run_in_time(shared, s, &mut core, &mut thread))
            }
            (None, None) => match &shared.translated {
                None => run_to_stop(&mut core, &mut thread),
                Some(translated) => translated.run(&shared.cores, &mut core, &mut thread),
            },
            (Some(follower), _) => match &shared.translated {
                None => run_under_debugger(&mut core, &mut thread, follower),
                Some(translated) => translated.steer(&shared.cores, &mut core, &mut thread, follower),
            },
        };
        match outcome {
            Outcome::Continue => {}
            // The last thread's end is an `ExitProcess`.
            Outcome::ExitThread(_) => break,
            Outcome::ExitProcess(status) => end(shared, Ending::Exit(status)),
            Outcome::KilledBy(signal) => end(shared, Ending::Signal(signal)),
        }
    }
    drop(follower);
    drop(listed);
    // SAFETY: null is always valid.
    unsafe { register_attention(std::ptr::null()) };
}

fn run_in_time(shared: &Shared, simulated: &Simulated, core: &mut Core, thread: &mut Thread) -> Outcome {
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
                thread.process().note_orphaned_access(address);
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

/// Ends the program as the guest ended.
pub(crate) fn end(shared: &Shared, ending: Ending) -> ! {
    if let Some(finish) = shared.finish.get() {
        finish(ending, &Report { cores: &shared.cores, translated: shared.translated().map(AsRef::as_ref) });
    }
    if let (Ending::Exit(_), Some(translated)) = (ending, shared.translated()) {
        translated.keep(&shared.cores);
    }
    if let Some(session) = shared.session() {
        session.end(ending);
    }
    ending.carry_out()
}
