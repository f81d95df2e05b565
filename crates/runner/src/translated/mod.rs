//! Programs for other architectures on cores that execute LoongArch code: what is translated of a process, and where that lies.
//! Not the translation (`longma-translate`), nor the run loop and the system calls (`run.rs`, `calls.rs`).

mod cache;
mod calls;
mod keeping;
pub mod listing;
mod places;
mod room;
mod run;
mod steered;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use longma_core::{Core, Executed};
use longma_guest::elf::Architecture;
use longma_guest::host::locks::{Mutex, MutexGuard};
use longma_guest::{AddressSpace, Errno, HOST_PAGE_BYTES, MapRequest, Placement, Protection};
use longma_linux::{Outcome, Process, Thread};
use longma_loongarch::{Access, Fault, FaultCause, State};
use longma_translate::debug::Value;
use longma_translate::engine::{Engine, Layout};
use longma_translate::front_end::{FrontEnd, Memory, Structures};
use longma_translate::parts::Parts;
use longma_translate_arm::Aarch64;
use longma_translate_mips::Mips64;
use longma_translate_x86::X86_64;

use crate::cores::Cores;
use cache::CacheFile;
use listing::ListedUnit;
use places::Places;
use steered::Steered;
pub(crate) use steered::{Next, Steers};

/// The translation of one process, of whichever architecture its program is.
pub(crate) trait Translation: Send + Sync {
    /// Gives the first thread, which is at its first source instruction, registers to begin with.
    fn begin(&self, state: &mut State);

    /// Lets a thread go on until it stops.
    fn run(&self, cores: &Cores, core: &mut Core, thread: &mut Thread) -> Outcome;

    /// The same under a debugger, until that lets go of it.
    fn steer(
        &self,
        cores: &Cores,
        core: &mut Core,
        thread: &mut Thread,
        follower: &mut dyn Steers,
    ) -> Outcome;

    /// A debugger will see every register as the source has it wherever a thread stops; or none looks any more.
    fn watch(&self, cores: &Cores, is_watched: bool);

    /// Has threads that come to one of these source addresses stop there, before they go on.
    fn stop_at(&self, cores: &Cores, stops: &BTreeSet<u64>);

    /// What a debugger is told of the registers: a target description.
    fn describe_registers(&self) -> String;

    /// What is in the register of a number, and its size; the state is of a thread that is between two instructions.
    fn read_register(&self, cores: &Cores, state: &State, number: usize) -> Option<(Value, usize)>;

    /// Sets it; false if it cannot have the value or has another size.
    fn write_register(&self, cores: &Cores, state: &mut State, number: usize, bytes: &[u8]) -> bool;

    /// Source code may have changed or gone. Whoever tells holds the map's lock, so that it is forgotten later: before any thread that
    /// has stopped goes on.
    fn note_change(&self, range: Range<u64>);

    /// Gives a thread that the calling one has just made what it begins with: `state` is as the process has left it, at a source address
    /// and with the registers of LoongArch's call. False if it cannot begin there.
    fn give_birth(&self, cores: &Cores, state: &mut State) -> bool;

    /// A thread that was given what it begins with does not begin.
    fn bury(&self);

    /// In a forked child, where only the calling thread exists.
    fn become_forked(&self);

    /// Takes up what earlier runs of the program have kept. No thread runs.
    fn take_up_kept(&self, cores: &Cores);

    /// Keeps what has been translated for later runs. The program is over: other threads of it do not go on.
    fn keep(&self, cores: &Cores);

    /// The source address of what stands at `address` of translated code; other addresses are their own.
    fn source_address(&self, address: u64) -> u64;

    /// What the program's architecture is called.
    fn name(&self) -> &'static str;

    /// The instructions of the program itself that these blocks of its translation have executed.
    fn source_instructions(&self, executed: &[Executed]) -> u64;

    /// Every unit that these blocks have executed, those that executed most first.
    fn listing(&self, cores: &Cores, executed: &[Executed]) -> Vec<ListedUnit>;
}

/// The room for translated code.
#[derive(Clone)]
pub(crate) struct Room {
    /// So much of what there is, if not all.
    pub bytes: Option<u64>,
    /// When it is full, it is used again; in simulated time it is not.
    pub is_used_again: bool,
    /// Where translations are kept between runs, if they are.
    pub cache: Option<PathBuf>,
    /// What the program sees as `/`, if not the host's.
    pub root: Option<PathBuf>,
}

/// What a process needs whose program is for another architecture, which is translated with these parts; `None` for LoongArch's own.
pub(crate) fn translation_of(process: &Process, parts: Parts, room: Room) -> Option<Arc<dyn Translation>> {
    match process.architecture() {
        Architecture::LoongArch64 => None,
        Architecture::Mips64 => Some(Arc::new(Translated::<Mips64>::of(process, parts, room)?)),
        Architecture::X86_64 => Some(Arc::new(Translated::<X86_64>::of(process, parts, room)?)),
        Architecture::Aarch64 => Some(Arc::new(Translated::<Aarch64>::of(process, parts, room)?)),
    }
}

/// What is translated of one process.
///
/// The lock is never held during a system call: the map's lock comes after it, and calls that change the map tell of it while they
/// hold that, see [`Translation::note_change`].
struct Translated<F: FrontEnd> {
    engine: Mutex<Engine<F>>,
    /// Source code that may have changed since it was last forgotten.
    changed: Mutex<Vec<Range<u64>>>,
    has_changed: AtomicBool,
    /// How often changes have been told of.
    noted: AtomicU64,
    /// Held while it is forgotten.
    forgetting: Mutex<()>,
    /// What the program does not have.
    layout: Layout,
    /// Where the first thread's slots are; 0 if there are none.
    first_slots: u64,
    /// A debugger looks.
    is_watched: AtomicBool,
    /// How often code has been forgotten to make room.
    turns: AtomicU64,
    places: Places,
    /// Where the second area of translated code begins; the last address if there is one.
    second_area: u64,
    /// Where translations are kept.
    cache: Option<CacheFile>,
    is_forked: AtomicBool,
    /// The program is over: no thread goes on any more.
    is_over: AtomicBool,
}

/// Code that is to be forgotten must be: what is old would go on.
fn must(forgotten: Result<(), Fault>) {
    if forgotten.is_err() {
        longma_guest::host::die_by(libc::SIGKILL);
    }
}

/// Memory of the program's that so many bytes of the engine's own are in; nothing is there yet.
fn memory_for(space: &AddressSpace, bytes: u64) -> Result<u64, Errno> {
    let writable = Protection { read: true, write: true, execute: false };
    space.map(&MapRequest::anonymous(Placement::Hint(0), bytes, writable))
}

impl<F: FrontEnd> Translation for Translated<F> {
    fn begin(&self, state: &mut State) {
        F::begin(state, state.pc);
        state.set_r(F::TABLE, self.layout.table);
        state.set_r(F::SLOTS, self.first_slots);
        state.pc = 0;
    }

    fn run(&self, cores: &Cores, core: &mut Core, thread: &mut Thread) -> Outcome {
        let outcome = self.go(&mut Steered::free(cores, thread), core);
        if outcome != Outcome::Continue {
            self.places.set(None);
        }
        outcome
    }

    fn steer(
        &self,
        cores: &Cores,
        core: &mut Core,
        thread: &mut Thread,
        follower: &mut dyn Steers,
    ) -> Outcome {
        let outcome = self.go_steered(cores, core, thread, follower);
        if outcome != Outcome::Continue {
            self.places.set(None);
        }
        outcome
    }

    fn watch(&self, cores: &Cores, is_watched: bool) {
        if self.is_watched.swap(is_watched, Ordering::AcqRel) != is_watched {
            let forgotten = self.engine().watch(is_watched, &self.view(cores));
            must(forgotten);
        }
    }

    fn stop_at(&self, cores: &Cores, stops: &BTreeSet<u64>) {
        let forgotten = self.engine().stop_at(stops, &self.view(cores));
        must(forgotten);
    }

    fn describe_registers(&self) -> String {
        F::registers().xml()
    }

    fn read_register(&self, cores: &Cores, state: &State, number: usize) -> Option<(Value, usize)> {
        let register = F::registers().register(number)?;
        Some((F::read_register(register, state, &self.view(cores)), register.bytes))
    }

    fn write_register(&self, cores: &Cores, state: &mut State, number: usize, bytes: &[u8]) -> bool {
        let Some(register) = F::registers().register(number) else { return false };
        let mut value = Value::default();
        if bytes.len() != register.bytes {
            return false;
        }
        value[..bytes.len()].copy_from_slice(bytes);
        F::write_register(register, &value, state, &self.view(cores))
    }

    fn note_change(&self, range: Range<u64>) {
        if range.start < self.layout.limit && !self.layout.code.contains(&range.start) {
            self.changed.lock().unwrap_or_else(PoisonError::into_inner).push(range);
            self.has_changed.store(true, Ordering::Release);
            self.noted.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn give_birth(&self, cores: &Cores, state: &mut State) -> bool {
        self.bear(cores, state)
    }

    fn bury(&self) {
        self.places.bury();
    }

    fn become_forked(&self) {
        self.places.become_forked();
        self.is_forked.store(true, Ordering::Release);
    }

    fn take_up_kept(&self, cores: &Cores) {
        self.take_up_kept(cores);
    }

    fn keep(&self, cores: &Cores) {
        self.keep(cores);
    }

    fn source_address(&self, address: u64) -> u64 {
        self.engine().position(address).map_or(address, |position| position.pc)
    }

    fn name(&self) -> &'static str {
        F::NAME
    }

    fn source_instructions(&self, executed: &[Executed]) -> u64 {
        let engine = self.engine();
        executed.iter().map(|run| run.runs * engine.source_instructions(run.start, run.instructions)).sum()
    }

    fn listing(&self, cores: &Cores, executed: &[Executed]) -> Vec<ListedUnit> {
        self.list(cores, executed)
    }
}

/// So often does a thread come to code by way of the engine before it is translated with all that it reaches. Few programs start sooner with
/// more, and with less, what their loops reach has not been executed yet when they are translated.
const HOT: u32 = 16;

impl<F: FrontEnd> Translated<F> {
    fn of(process: &Process, parts: Parts, room: Room) -> Option<Self> {
        let areas = process.areas()?;
        F::prepare_process();
        let all = areas.code.end - areas.code.start;
        let bytes = room.bytes.map_or(all, |bytes| bytes.min(all));
        let layout = Layout {
            code: areas.code.start..areas.code.start + bytes,
            table: areas.table.start,
            limit: (areas.table.end - areas.table.start) >> F::ENTRY_SHIFT,
        };
        let first_slots = match F::SLOT_BYTES {
            0 => 0,
            bytes => memory_for(process.address_space(), bytes).ok()?,
        };
        let mut engine = Engine::new(layout.clone(), parts);
        let folder = room.cache.filter(|_| room.is_used_again);
        let text = format!("{layout:?} {first_slots:#x}");
        let cache = folder.and_then(|folder| {
            keeping::file_of::<F>(
                process,
                [&folder, room.root.as_deref().unwrap_or(Path::new("/"))],
                parts,
                &text,
            )
        });
        if cache.is_some() {
            engine.note_origins();
        }
        // The models count no time for translation: there, code is from the beginning what it becomes.
        if process.simulation().is_none() {
            engine.wait_until_hot(HOT);
            if room.is_used_again {
                engine.use_room_again();
            }
        }
        Some(Self {
            second_area: engine.second_area().unwrap_or(u64::MAX),
            engine: Mutex::new(engine),
            changed: Mutex::default(),
            has_changed: AtomicBool::new(false),
            noted: AtomicU64::new(0),
            forgetting: Mutex::default(),
            layout,
            first_slots,
            is_watched: AtomicBool::new(false),
            turns: AtomicU64::new(0),
            places: Places::new(),
            cache,
            is_forked: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        })
    }

    fn engine(&self) -> MutexGuard<'_, Engine<F>> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn view<'a>(&'a self, cores: &'a Cores) -> View<'a> {
        View { cores, code: &self.layout.code, ready: Cell::new(None) }
    }

    /// Forgets what has been noted.
    fn forget_noted(&self, cores: &Cores) {
        while self.has_changed.load(Ordering::Acquire) {
            // Whoever comes meanwhile waits: the old code must not run again.
            let _forgetting = self.forgetting.lock().unwrap_or_else(PoisonError::into_inner);
            let changed = std::mem::take(&mut *self.changed.lock().unwrap_or_else(PoisonError::into_inner));
            for range in changed {
                self.forget(cores, range);
            }
            let noted = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
            if noted.is_empty() {
                self.has_changed.store(false, Ordering::Release);
            }
        }
    }

    /// Forgets the code of source addresses.
    fn forget(&self, cores: &Cores, range: Range<u64>) {
        let mut engine = self.engine();
        if engine.has_read(range.clone()) {
            let forgotten = engine.forget(range, &self.view(cores));
            drop(engine);
            must(forgotten);
        }
    }
}

/// A process's memory, as translation and system calls see it.
struct View<'a> {
    cores: &'a Cores,
    /// Where translated code lies, which is none of the program's.
    code: &'a Range<u64>,
    /// The page of the host's that code was fetched from last. Changes are told of, and wait for the engine, which whoever fetches has.
    ready: Cell<Option<u64>>,
}

impl Memory for View<'_> {
    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        if self.code.contains(&address) {
            return Err(Fault { address, access: Access::Execute, cause: FaultCause::Unmapped });
        }
        let process = self.cores.process();
        let page = address / HOST_PAGE_BYTES;
        if self.ready.replace(Some(page)) != Some(page) {
            if process.architecture() == Architecture::X86_64 {
                // Stores take effect on code without a word: the first one is noticed.
                process.address_space().protect_code(address);
            } else {
                process.address_space().wait_for_changes();
            }
        }
        process.memory().fetch(address)
    }

    fn fetch_all(&self, address: u64, words: &mut [u32]) -> Result<(), Fault> {
        let mut rest = words;
        let mut at = address;
        while !rest.is_empty() {
            // The first of each page sees to it that changes are noticed.
            let on_page = ((HOST_PAGE_BYTES - at % HOST_PAGE_BYTES) / 4).clamp(1, rest.len() as u64);
            let (here, behind) = rest.split_at_mut(on_page as usize);
            here[0] = self.fetch(at)?;
            self.cores.process().memory().fetch_all(at + 4, &mut here[1..])?;
            (rest, at) = (behind, at + 4 * on_page);
        }
        Ok(())
    }

    fn place(&self, address: u64, words: &[u32]) -> Result<(), Fault> {
        self.cores.process().address_space().write_own_code(address, words)
    }

    fn placed(&self, address: u64) -> Option<u32> {
        let is_placed = self.code.contains(&address);
        is_placed.then(|| self.cores.process().memory().fetch(address).ok()).flatten()
    }

    fn enter(&self, words: &[(u64, u32)]) -> Result<(), Fault> {
        self.cores.process().address_space().write_engine_range(words)
    }

    fn forget(&self, code: Range<u64>) -> Result<(), Fault> {
        self.cores.code().invalidate(&code);
        self.cores.request_all();
        Ok(())
    }
}

impl Structures for View<'_> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.cores.process().memory().read(address, bytes).is_ok()
    }

    fn write(&self, address: u64, bytes: &[u8]) -> bool {
        self.cores.process().memory().write(address, bytes).is_ok()
    }

    fn writable(&self, address: u64, bytes: u64) -> u64 {
        self.cores.process().memory().writable(address, bytes)
    }

    fn clock_ns(&self) -> u64 {
        match self.cores.process().simulation() {
            Some(simulation) => simulation.counter_ps() / 1000,
            None => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                now.map_or(0, |passed| passed.as_nanos() as u64)
            }
        }
    }
}
