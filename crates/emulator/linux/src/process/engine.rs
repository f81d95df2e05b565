//! What this crate needs from whoever executes instructions, and what it tells them.
//! Not an implementation: `node` has the one with the JIT, tests have one with the reference interpreter.

use std::io;
use std::ops::Range;

use longma_loongarch::State;

use super::Thread;
use longma_guest::elf::Architecture;

/// Executes guest threads.
pub trait Engine: Send + Sync {
    /// Starts a host thread that runs `thread` from `state`, and gives the host's id of it (gettid(2)). On the new host thread
    /// [`Thread::begin`] is called first; in simulated time this returns once that has happened, otherwise it need not wait.
    ///
    /// # Errors
    /// The host has no thread to give.
    fn spawn(&self, thread: Thread, state: State) -> io::Result<i32>;

    /// Code in this range of guest addresses may have changed or gone.
    fn invalidate(&self, range: Range<u64>);

    /// The process is about to fork, and no other thread holds a lock (`host::locks`) until that is done: keep what the child needs.
    fn before_fork(&self) {}

    /// The process has forked; this is the child, where only the calling thread exists. Its locks (`host::locks`) are free.
    fn after_fork_child(&self) {}
}

/// What the run loop does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// Go on from `state.pc`.
    Continue,
    /// This thread is over, with this status.
    ExitThread(i32),
    /// The process is over, with this status.
    ExitProcess(i32),
    /// The process dies of this signal.
    KilledBy(i32),
}

/// Where an engine keeps what it makes of a program for another architecture: addresses of the program's own address space that the
/// program does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Areas {
    /// Code, below 4 GiB.
    pub code: Range<u64>,
    /// As many entries as the program has addresses; it has those below.
    pub table: Range<u64>,
    /// Whose instructions the program consists of.
    pub architecture: Architecture,
}
