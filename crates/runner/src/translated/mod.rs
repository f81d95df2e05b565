//! Execution of programs for other architectures: the translation of a process and its memory. `longma-translate`
//! translates, `translated_loop.rs` has the run loop, and `calls.rs` handles system calls.

mod area_switch;
mod area_usage;
mod cache;
mod cache_transfer;
mod calls;
mod debugged;
mod interpretation;
pub mod listing;
mod translated_loop;

use longma_locks::IgnorePoison;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

use longma_core::{Core, Executed};
use longma_guest::elf::Architecture;
use longma_guest::host::locks::{Mutex, MutexGuard};
use longma_guest::{AddressSpace, Errno, HOST_PAGE_BYTES, MapRequest, Placement, Protection};
use longma_linux::{Outcome, Process, Thread};
use longma_loongarch::{Access, Fault, FaultCause, State};
use longma_translate::cold_blocks::Generation;
use longma_translate::debug::Value;
use longma_translate::engine::{Engine, Layout};
use longma_translate::front_end::{FrontEnd, Memory, UserMemory};
use longma_translate::optimizations::Optimizations;
use longma_translate_arm::Aarch64;
use longma_translate_mips::Mips64;
use longma_translate_x86::X86_64;

use crate::cores::Cores;
use crate::unwind::Registers;
use area_usage::AreaUsage;
use cache::CacheFile;
pub(crate) use debugged::{DebugAction, ThreadDebugger};
use listing::ListedUnit;

/// The translation of a process, independent of its architecture.
pub(crate) trait Translation: Send + Sync {
    /// Sets up the registers of the first thread, whose program counter is its first source instruction.
    fn begin(&self, state: &mut State);

    /// Runs a thread until it stops.
    fn run(&self, cores: &Cores, core: &mut Core, thread: &mut Thread) -> Outcome;

    /// Runs a thread under a debugger until the debugger detaches.
    fn run_debugged(
        &self,
        cores: &Cores,
        core: &mut Core,
        thread: &mut Thread,
        follower: &mut dyn ThreadDebugger,
    ) -> Outcome;

    /// Enables or disables debug mode, in which all registers are architectural wherever a thread stops.
    fn set_debug_mode(&self, cores: &Cores, is_debugged: bool);

    /// Sets the breakpoints. Threads stop before they execute these source addresses.
    fn set_breakpoints(&self, cores: &Cores, breakpoints: &BTreeSet<u64>);

    /// The GDB target description of the registers.
    fn describe_registers(&self) -> String;

    /// The general registers of a thread that has stopped in translated code; `None` if it is elsewhere.
    fn registers(&self, cores: &Cores, state: &State) -> Option<Registers>;

    /// The value and size of a register. The thread must be between two instructions.
    fn read_register(&self, cores: &Cores, state: &State, number: usize) -> Option<(Value, usize)>;

    /// Sets a register. Returns false if it cannot hold the value or has another size.
    fn write_register(&self, cores: &Cores, state: &mut State, number: usize, bytes: &[u8]) -> bool;

    /// Records that source code may have changed or been unmapped. The caller holds the lock of the memory map, so the
    /// code is invalidated later, before any stopped thread continues.
    fn note_change(&self, range: Range<u64>);

    /// Sets the initial state of a thread that the calling thread is creating. The process has set `state` to the
    /// source address and the registers of a LoongArch call. Returns false if the thread cannot start.
    fn prepare_spawn(&self, cores: &Cores, state: &mut State) -> bool;

    /// Reports that a thread for which [`Self::prepare_spawn`] succeeded does not start.
    fn end_spawn(&self);

    /// Must be called in a forked child, in which only the calling thread exists.
    fn adopt_in_child(&self);

    /// Imports the translations of earlier runs. No thread may be running.
    fn import_cache(&self, cores: &Cores);

    /// Exports the translations for later runs. The program has ended; its other threads do not continue.
    fn export_cache(&self, cores: &Cores);

    /// The source address for a host address of translated code. Other addresses are returned unchanged.
    fn source_address(&self, address: u64) -> u64;

    /// The name of the program's architecture.
    fn name(&self) -> &'static str;

    /// The number of source instructions that these blocks executed.
    fn source_instructions(&self, executed: &[Executed]) -> u64;

    /// All units that these blocks executed, in descending order of executed instructions.
    fn listing(&self, cores: &Cores, executed: &[Executed]) -> Vec<ListedUnit>;
}

/// The area for translated code, and the cache.
#[derive(Clone)]
pub(crate) struct CodeAreaConfig {
    /// The size limit in bytes; `None` for all available space.
    pub bytes: Option<u64>,
    /// Whether the area is reused when it is full. Never in simulated time.
    pub is_reused: bool,
    /// Whether cold code may be interpreted.
    pub may_interpret: bool,
    /// The directory of the translation cache, if enabled.
    pub cache: Option<PathBuf>,
    /// The directory that the program sees as `/`, if it is not the host's.
    pub root: Option<PathBuf>,
}

/// Creates the translation of a process; `None` if its program is for LoongArch.
pub(crate) fn translation_of(
    process: &Process,
    optimizations: Optimizations,
    code_area: CodeAreaConfig,
) -> Option<Arc<dyn Translation>> {
    match process.architecture() {
        Architecture::LoongArch64 => None,
        Architecture::Mips64 => Some(Arc::new(Translated::<Mips64>::of(process, optimizations, code_area)?)),
        Architecture::X86_64 => Some(Arc::new(Translated::<X86_64>::of(process, optimizations, code_area)?)),
        Architecture::Aarch64 => {
            Some(Arc::new(Translated::<Aarch64>::of(process, optimizations, code_area)?))
        }
    }
}

/// The translation of a process.
///
/// The engine's lock is never held during a system call. The memory map's lock is acquired after it, and system calls
/// that change the map call [`Translation::note_change`] while they hold the map's lock.
struct Translated<F: FrontEnd> {
    engine: Mutex<Engine<F>>,
    /// Source ranges that may have changed and are not invalidated yet.
    changed: Mutex<Vec<Range<u64>>>,
    has_changed: AtomicBool,
    /// The number of reported changes.
    noted: AtomicU64,
    /// Held while ranges are invalidated.
    forgetting: Mutex<()>,
    /// The address ranges that the program cannot use.
    layout: Layout,
    /// The spill slots of the first thread; 0 if there are none.
    first_slots: u64,
    /// Whether a debugger is attached.
    is_debugged: AtomicBool,
    /// The number of area switches.
    area_switches: AtomicU64,
    area_usage: AreaUsage,
    /// The start of the second area; `u64::MAX` if there is only one.
    second_area: u64,
    /// The cache file, if the cache is enabled.
    cache: Option<CacheFile>,
    /// Whether cold code is interpreted.
    interprets: bool,
    /// The generation of the interpreted blocks.
    generation: Generation,
    /// The visits after which code is hot.
    hot: u32,
    is_forked: AtomicBool,
    /// Whether the program has ended. No thread continues.
    is_over: AtomicBool,
}

/// Kills the process if an invalidation failed, because it would otherwise run stale code.
fn expect_invalidated(forgotten: Result<(), Fault>) {
    if forgotten.is_err() {
        longma_guest::host::terminate_by_signal(libc::SIGKILL);
    }
}

/// Allocates memory of the guest for the engine's own data.
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
        let outcome = self.run_freely(cores, core, thread);
        if outcome != Outcome::Continue {
            self.area_usage.set(None);
        }
        outcome
    }

    fn run_debugged(
        &self,
        cores: &Cores,
        core: &mut Core,
        thread: &mut Thread,
        follower: &mut dyn ThreadDebugger,
    ) -> Outcome {
        let outcome = self.run_under_debugger(cores, core, thread, follower);
        if outcome != Outcome::Continue {
            self.area_usage.set(None);
        }
        outcome
    }

    fn set_debug_mode(&self, cores: &Cores, is_debugged: bool) {
        if self.is_debugged.swap(is_debugged, Ordering::AcqRel) != is_debugged {
            let forgotten = self.engine().set_debug_mode(is_debugged, &self.view(cores));
            expect_invalidated(forgotten);
        }
    }

    fn set_breakpoints(&self, cores: &Cores, breakpoints: &BTreeSet<u64>) {
        let forgotten = self.engine().set_breakpoints(breakpoints, &self.view(cores));
        expect_invalidated(forgotten);
    }

    fn describe_registers(&self) -> String {
        F::registers().xml()
    }

    fn registers(&self, cores: &Cores, state: &State) -> Option<Registers> {
        let mut state = state.clone();
        let position = self.engine().position(state.pc)?;
        if let Some(pending) = position.pending {
            F::settle(pending, &mut state, &self.view(cores));
        }
        let value = |number: usize| {
            // GDB numbers the registers like DWARF, except the first ones of x86-64.
            let number = if cores.process().architecture() == Architecture::X86_64 {
                [0, 3, 2, 1].get(number).copied().unwrap_or(number)
            } else {
                number
            };
            let (value, _) = self.read_register(cores, &state, number).unwrap_or_default();
            u64::from_le_bytes(std::array::from_fn(|byte| value[byte]))
        };
        Some(Registers { values: std::array::from_fn(value), pc: position.pc })
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
            self.changed.lock().ignore_poison().push(range);
            self.has_changed.store(true, Ordering::Release);
            self.noted.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn prepare_spawn(&self, cores: &Cores, state: &mut State) -> bool {
        self.begin_spawn(cores, state)
    }

    fn end_spawn(&self) {
        self.area_usage.end_spawn();
    }

    fn adopt_in_child(&self) {
        self.area_usage.adopt_in_child();
        self.is_forked.store(true, Ordering::Release);
    }

    fn import_cache(&self, cores: &Cores) {
        self.import_cache(cores);
    }

    fn export_cache(&self, cores: &Cores) {
        self.export_cache(cores);
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

/// The number of visits through the engine after which code is translated as a whole unit. Few programs start faster
/// with a higher threshold. With a lower number, the code that a loop reaches has often not been executed yet when the
/// loop is translated.
const HOT: u32 = 16;

/// Like [`HOT`], for code that is interpreted until then. An interpreted visit costs much less than one to a translated
/// block, which leaves through the engine.
const HOT_INTERPRETED: u32 = 256;

impl<F: FrontEnd> Translated<F> {
    fn of(process: &Process, optimizations: Optimizations, code_area: CodeAreaConfig) -> Option<Self> {
        let areas = process.areas()?;
        F::prepare_process();
        let all = areas.code.end - areas.code.start;
        let bytes = code_area.bytes.map_or(all, |bytes| bytes.min(all));
        let layout = Layout {
            code: areas.code.start..areas.code.start + bytes,
            table: areas.table.start,
            limit: (areas.table.end - areas.table.start) >> F::ENTRY_SHIFT,
        };
        let first_slots = match F::SLOT_BYTES {
            0 => 0,
            bytes => memory_for(process.address_space(), bytes).ok()?,
        };
        let mut engine = Engine::new(layout.clone(), optimizations);
        let folder = code_area.cache.filter(|_| code_area.is_reused);
        let text = format!("{layout:?} {first_slots:#x}");
        let cache = folder.and_then(|folder| {
            cache_transfer::file_of::<F>(
                process,
                [&folder, code_area.root.as_deref().unwrap_or(Path::new("/"))],
                optimizations,
                &text,
            )
        });
        if cache.is_some() {
            engine.record_origins();
        }
        // Simulated time does not include translation, so all code is translated as whole units there.
        let is_functional = process.simulation().is_none();
        let interprets = F::INTERPRETS && is_functional && code_area.may_interpret && cache.is_none();
        let hot = if interprets { HOT_INTERPRETED } else { HOT };
        if is_functional {
            engine.set_hot_threshold(hot);
            if code_area.is_reused {
                engine.split_areas();
            }
        }
        let generation = if interprets { engine.interpret_cold_code() } else { Generation::default() };
        Some(Self {
            second_area: engine.second_area().unwrap_or(u64::MAX),
            engine: Mutex::new(engine),
            changed: Mutex::default(),
            has_changed: AtomicBool::new(false),
            noted: AtomicU64::new(0),
            forgetting: Mutex::default(),
            layout,
            first_slots,
            is_debugged: AtomicBool::new(false),
            area_switches: AtomicU64::new(0),
            area_usage: AreaUsage::new(),
            cache,
            interprets,
            generation,
            hot,
            is_forked: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        })
    }

    fn engine(&self) -> MutexGuard<'_, Engine<F>> {
        self.engine.lock().ignore_poison()
    }

    fn view<'a>(&'a self, cores: &'a Cores) -> View<'a> {
        View { cores, code: &self.layout.code, ready: Cell::new(None) }
    }

    /// Invalidates the recorded ranges.
    fn forget_noted(&self, cores: &Cores) {
        while self.has_changed.load(Ordering::Acquire) {
            // Other threads wait here, because they must not execute stale code.
            let _forgetting = self.forgetting.lock().ignore_poison();
            let changed = std::mem::take(&mut *self.changed.lock().ignore_poison());
            for range in changed {
                self.forget(cores, range);
            }
            let changed_ranges = self.changed.lock().ignore_poison();
            if changed_ranges.is_empty() {
                self.has_changed.store(false, Ordering::Release);
            }
        }
    }

    /// Invalidates the code of source addresses.
    fn forget(&self, cores: &Cores, range: Range<u64>) {
        let mut engine = self.engine();
        if engine.has_read(range.clone()) {
            let forgotten = engine.forget(range, &self.view(cores));
            drop(engine);
            expect_invalidated(forgotten);
        }
    }
}

/// The memory of a process, for translation and system calls.
struct View<'a> {
    cores: &'a Cores,
    /// The code area, which the program cannot access.
    code: &'a Range<u64>,
    /// The host page of the last fetch. Changes to it are reported, but invalidated only after the current holder of
    /// the engine's lock has released it.
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
                // Stores to code need no barrier on x86, so write-protect the page to detect the first one.
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
            // The first fetch from each page enables change detection.
            let on_page = ((HOST_PAGE_BYTES - at % HOST_PAGE_BYTES) / 4).clamp(1, rest.len() as u64);
            let (on_this_page, remaining) = rest.split_at_mut(on_page as usize);
            on_this_page[0] = self.fetch(at)?;
            self.cores.process().memory().fetch_all(at + 4, &mut on_this_page[1..])?;
            (rest, at) = (remaining, at + 4 * on_page);
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
        self.cores.request_attention();
        Ok(())
    }
}

impl UserMemory for View<'_> {
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

    fn random(&self) -> u64 {
        self.cores.process().random()
    }

    fn compare_exchange(&self, address: u64, bytes: usize, expected: u128, new: u128) -> Result<u128, Fault> {
        self.cores.process().memory().compare_exchange_unaligned(address, bytes, expected, new)
    }
}
