//! The interface to the engine that executes instructions. The `runner` crate has an engine with the translator, tests
//! one with the interpreter.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

use longma_loongarch::State;

use super::Thread;
use longma_guest::elf::Architecture;

/// Executes guest threads.
pub trait Engine: Send + Sync {
    /// Starts a host thread that runs `thread` from `state`, and returns its host id (gettid(2)). The new thread calls
    /// [`Thread::begin`] first. In simulated time this method returns after that call; otherwise it need not wait.
    ///
    /// # Errors
    /// The host cannot create a thread.
    fn spawn(&self, thread: Thread, state: State) -> io::Result<i32>;

    /// Code in this range of guest addresses may have changed or been unmapped.
    fn invalidate(&self, range: Range<u64>);

    /// Called before the host replaces this emulator. Returns the contents of the file that `--earlier-programs` passes
    /// to the emulator of the next program. If the host refuses, the program continues.
    fn before_execve(&self, next: &NextProgram) -> Option<Vec<u8>> {
        let _ = next;
        None
    }

    /// Called before a fork, while no other thread holds a lock (`host::locks`). Saves the state that the child needs.
    fn before_fork(&self) {}

    /// Called in the child after a fork. Only the calling thread exists, and all locks (`host::locks`) are free.
    fn after_fork_child(&self) {}
}

/// The program that a process is about to execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextProgram {
    /// An emulator runs it: in simulated time this emulator, otherwise a new one that the host starts.
    OfEmulator(PathBuf),
    /// The host runs it, without an emulator.
    OfHost(PathBuf),
}

/// The next action of the run loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// Continue at `state.pc`.
    Continue,
    /// End this thread with this status.
    ExitThread(i32),
    /// End the process with this status.
    ExitProcess(i32),
    /// Terminate the process with this signal.
    KilledBy(i32),
    /// Run the program that [`Thread::take_executed`] returns. Only in simulated time; otherwise the host replaces the
    /// emulator.
    Execute,
}

/// The address ranges for the translation of a program for another architecture. The program does not use them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Areas {
    /// Translated code, below 4 GiB.
    pub code: Range<u64>,
    /// The lookup table, which has one entry for each address of the program. The program's addresses are below it.
    pub table: Range<u64>,
    /// The architecture of the program.
    pub architecture: Architecture,
}
