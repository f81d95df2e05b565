//! Programs for MIPS64 on cores that execute LoongArch code: what is translated of a process, and where that lies.
//! Not the translation (`longma-translate`), nor the run loop and the system calls (`run.rs`, `calls.rs`).
//! Source: our own.

mod calls;
mod run;

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use longma_guest::host::locks::{Mutex, MutexGuard};
use longma_linux::Process;
use longma_loongarch::{Access, Fault, FaultCause, State};
use longma_translate::engine::{Engine, Layout, Memory, Refusal};
use longma_translate::mips::instruction;
use longma_translate::mips::registers::{SCRATCH, TABLE};
use longma_translate::mips::system::{self, Structures};

use crate::run::Shared;

/// Says why a translated process cannot be had so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslatedError {
    /// In simulated time.
    #[error(
        "a program for MIPS64 is translated, which the levels cache and timing do not follow; run it at level functional"
    )]
    Simulated,
    /// Under a debugger.
    #[error(
        "a debugger cannot steer a program for MIPS64, whose translation it would see; run it without --gdb"
    )]
    Debugged,
}

/// What is translated of one process.
///
/// The lock is never held during a system call: the map's lock comes after it, and calls that change the map tell of it while they
/// hold that, see [`Translated::note_change`].
pub(crate) struct Translated {
    engine: Mutex<Engine>,
    /// Source code that may have changed since it was last forgotten.
    changed: Mutex<Vec<Range<u64>>>,
    has_changed: AtomicBool,
    /// What the program does not have.
    layout: Layout,
}

impl Translated {
    /// What a process needs whose program is for another architecture; `None` for LoongArch's own.
    pub fn of(process: &Process) -> Option<Self> {
        let areas = process.areas()?;
        // Made now: a forked child must not find them half made.
        let _ = (system::name(0), instruction::decode(0));
        let layout = Layout {
            code: areas.code.clone(),
            table: areas.table.start,
            limit: areas.table.end - areas.table.start,
        };
        Some(Self {
            engine: Mutex::new(Engine::new(layout.clone())),
            changed: Mutex::default(),
            has_changed: AtomicBool::new(false),
            layout,
        })
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the first thread, which is at its first source instruction, registers to begin with: it seems to have come from a call of
    /// an address without code.
    pub fn begin(&self, state: &mut State) {
        let register = 25;
        state.set_r(register, state.pc);
        state.set_r(SCRATCH, (-4 * i64::from(register)) as u64);
        state.set_r(TABLE, self.layout.table);
        state.pc = 0;
    }

    /// Source code may have changed or gone. Whoever tells holds the map's lock, so that it is forgotten later: before any thread that
    /// has stopped goes on.
    pub fn note_change(&self, range: Range<u64>) {
        if range.start < self.layout.limit && !self.layout.code.contains(&range.start) {
            self.changed.lock().unwrap_or_else(PoisonError::into_inner).push(range);
            self.has_changed.store(true, Ordering::Release);
        }
    }

    /// Forgets what has been noted.
    fn forget_noted(&self, shared: &Shared) {
        if self.has_changed.swap(false, Ordering::AcqRel) {
            let changed = std::mem::take(&mut *self.changed.lock().unwrap_or_else(PoisonError::into_inner));
            for range in changed {
                self.forget(shared, range);
            }
        }
    }

    /// Forgets the code of source addresses.
    fn forget(&self, shared: &Shared, range: Range<u64>) {
        let mut engine = self.engine();
        if engine.has_read(range.clone()) && engine.forget(range, &View(shared)).is_err() {
            drop(engine);
            // Old code would go on.
            longma_guest::host::die_by(libc::SIGKILL);
        }
    }

    /// The code of a source address.
    fn code_of(&self, shared: &Shared, pc: u64) -> Result<u64, Refusal> {
        self.forget_noted(shared);
        self.engine().code_of(pc, &View(shared))
    }
}

/// A process's memory, as translation and system calls see it.
struct View<'a>(&'a Shared);

impl Memory for View<'_> {
    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        if self.0.translated().is_some_and(|translated| translated.layout.code.contains(&address)) {
            return Err(Fault { address, access: Access::Execute, cause: FaultCause::Unmapped });
        }
        self.0.process().memory().fetch(address)
    }

    fn place(&self, words: &[(u64, u32)]) -> Result<(), Fault> {
        self.0.process().address_space().write_kept(words)
    }

    fn replace(&self, address: u64, word: u32) -> Result<(), Fault> {
        self.place(&[(address, word)])?;
        self.0.code.invalidate(&(address..address + 4));
        self.0.cores.request_all();
        Ok(())
    }
}

impl Structures for View<'_> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.0.process().memory().read(address, bytes).is_ok()
    }

    fn write(&self, address: u64, bytes: &[u8]) -> bool {
        self.0.process().memory().write(address, bytes).is_ok()
    }
}
