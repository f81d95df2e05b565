//! A core: CSRs, TLB, timer and memory accesses around the ISA crate's semantics.

mod access;
mod cache;
pub mod code;
mod debugged;
mod entry;
mod execute;
pub mod observed;
mod privileged;
mod saved;
mod timer;
mod translated;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use longma_loongarch::{Access, Fault, FaultCause, State};

use crate::csr::{Registers, row, table as csr};
use crate::exception::{Exception, line};
use crate::memory::{Memory, PAGE_BYTES};
use crate::platform::{Platform, PowerRequest};
use crate::tlb::Tlb;
use crate::translation::{self, translate};
use cache::{GENERATIONS, PageCache};
use code::{CodeCache, CodePage, check};
use debugged::Debug;
pub use debugged::{Accesses, Breakpoint, Event, Order, Watchpoint};
pub use entry::Record;
pub use execute::Pause;
pub(crate) use saved::SavedCore;
use timer::Timer;
pub use translated::Translation;

/// Cycles of the core's clock in one tick of the stable counter: 1 GHz and 100 MHz.
pub const CYCLES_PER_TICK: u64 = 10;
/// Frequency of the stable counter and the timer.
pub const COUNTER_HZ: u32 = 100_000_000;
pub const NS_PER_CYCLE: u64 = 1_000_000_000 / (COUNTER_HZ as u64 * CYCLES_PER_TICK);

/// The state that the cores share. Cores take turns on one host thread.
pub struct Bus {
    /// Physical memory.
    pub memory: Memory,
    /// Devices and interrupt controllers.
    pub platform: RefCell<Platform>,
    code: RefCell<CodeCache>,
    /// Counts new and removed pages of decoded code. A core that reads a new number must detect stores to the new
    /// pages, and must not use host code of removed ones.
    made: Cell<u64>,
    /// Code translated to host code; `None` if all code is interpreted.
    pub translation: Option<Translation>,
    power: Cell<Option<PowerRequest>>,
    /// The mark that software has written, until the caller of the machine takes it.
    mark: Cell<Option<u8>>,
    /// Whether marks stop the machine.
    pub heeds_marks: Cell<bool>,
    /// The debugger's breakpoints and orders.
    pub debug: Debug,
}

impl Bus {
    /// Creates the shared state of `cores` cores from memory, devices and translated code.
    pub fn new(memory: Memory, platform: Platform, translation: Option<Translation>, cores: usize) -> Self {
        Self {
            memory,
            platform: RefCell::new(platform),
            code: RefCell::default(),
            made: Cell::new(0),
            translation,
            power: Cell::new(None),
            mark: Cell::new(None),
            heeds_marks: Cell::new(false),
            debug: Debug::new(cores),
        }
    }

    /// Removes all decoded code. Then call [`Core::forget_code`] of all cores.
    pub fn remove_code(&self) {
        self.code.borrow_mut().clear();
        self.made.set(self.made.get() + 1);
    }
}

/// The state of a core except for the registers that a user program has.
pub struct Core {
    /// The number of the core, counted from 0.
    number: usize,
    bus: Rc<Bus>,
    registers: Registers,
    tlb: RefCell<Tlb>,
    timer: Timer,
    fetches: RefCell<Vec<Option<Fetch>>>,
    readable: PageCache,
    writable: PageCache,
    /// The generation of valid cached translations. Entries of an older generation are invalid.
    generation: Cell<u64>,
    /// The generation of valid entries in `readable` and `writable`, from 1 to [`GENERATIONS`].
    entry_generation: Cell<u64>,
    /// The value of `Bus::made` for which cached translations are valid.
    known: Cell<u64>,
    /// The current translation mode; see [`translation::mode`].
    mode: Cell<usize>,
    /// All ones if misaligned accesses trap, else 0.
    alignment: Cell<u64>,
    /// Cycles since reset. An instruction takes one cycle; IDLE skips to the next event.
    clock: Cell<u64>,
    /// The cycle until which instructions execute. At 0, the core checks for interrupts and mode changes before the
    /// next instruction.
    until: Cell<u64>,
    idle: Cell<bool>,
    /// Whether the clock and the program counter are exact for the instruction that executes. Inside a block they are
    /// not; there, the core refuses accesses to devices and stores to code, and repeats these instructions alone.
    is_alone: Cell<bool>,
    /// Whether the core has not started: it waits for a message with the start address.
    is_parked: Cell<bool>,
    /// The exception or interrupt that was entered last.
    last_exception: Cell<Option<Exception>>,
}

/// A virtual page with decoded instructions.
struct Fetch {
    page: u64,
    mode: usize,
    generation: u64,
    code: Rc<CodePage>,
}

/// Entries of the cache of fetched pages.
const FETCHES: usize = 512;

impl Core {
    /// Creates a core in its reset state. All cores except core 0 wait to be started.
    pub fn new(number: usize, bus: Rc<Bus>) -> Self {
        let registers = Registers::new();
        registers.set(csr::CPUID, number as u64);
        Self {
            number,
            bus,
            registers,
            tlb: RefCell::new(Tlb::new()),
            timer: Timer::default(),
            fetches: RefCell::new((0..FETCHES).map(|_| None).collect()),
            readable: PageCache::new(),
            writable: PageCache::new(),
            generation: Cell::new(1),
            entry_generation: Cell::new(1),
            known: Cell::new(0),
            mode: Cell::new(0),
            alignment: Cell::new(0),
            clock: Cell::new(0),
            until: Cell::new(0),
            idle: Cell::new(false),
            is_alone: Cell::new(false),
            is_parked: Cell::new(number != 0),
            last_exception: Cell::new(None),
        }
    }

    /// The value of a CSR as software reads it, but without the side effects of reading; `None` if the CSR does not
    /// exist.
    pub fn csr(&self, number: u16) -> Option<u64> {
        Some(self.registers.read(row(number)?))
    }

    /// Cycles since reset.
    pub fn clock(&self) -> u64 {
        self.clock.get()
    }

    /// Whether the core waits for an interrupt.
    pub fn is_idle(&self) -> bool {
        self.idle.get()
    }

    /// Begins a turn at the cycle `now`. The core observes the effects of other cores' turns. If it waits, its clock
    /// moves to `now`.
    pub(crate) fn begin_turn(&self, state: &mut State, now: u64) {
        if self.is_parked.get() {
            self.clock.set(now);
            let Some(start) = self.bus.platform.borrow_mut().take_start(self.number) else { return };
            self.is_parked.set(false);
            state.pc = start;
        }
        if self.idle.get() {
            self.clock.set(now.max(self.clock.get()));
        }
        if self.known.replace(self.bus.made.get()) != self.bus.made.get() {
            self.forget_translations();
        }
        self.update_lines();
    }

    /// Moves the clock to `cycle`, unless it is later.
    pub(crate) fn pass_to(&self, cycle: u64) {
        self.clock.set(self.clock.get().max(cycle));
    }

    /// Whether the core waits, and only its timer, another core or a device can end the wait.
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_parked.get() || self.idle.get() && self.pending_interrupt().is_none()
    }

    /// Whether the core has not started.
    pub(crate) fn is_parked(&self) -> bool {
        self.is_parked.get()
    }

    /// Whether the core must check for interrupts and mode changes, or its turn is over.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.clock.get() >= self.until.get()
    }

    /// Advances the clock by `cycles` cycles.
    #[inline]
    pub(crate) fn advance_clock(&self, cycles: u64) {
        self.clock.set(self.clock.get().wrapping_add(cycles));
    }

    /// Whether MISC forbids the current privilege level to read the stable counter.
    pub(crate) fn forbids_counter(&self) -> bool {
        let level = self.registers.field(csr::CRMD, 0..=1);
        self.registers.get(csr::MISC) >> (4 + level) & 1 == 1
    }

    /// Sets the core to execute instructions until `cycle` or the next event of the timer.
    pub(crate) fn grant(&self, cycle: u64) {
        let event = self.next_event().unwrap_or(u64::MAX);
        self.until.set(cycle.min(event));
    }

    /// The cycle of the next timer event.
    pub(crate) fn next_event(&self) -> Option<u64> {
        Some(self.timer.deadline()?.saturating_mul(CYCLES_PER_TICK))
    }

    /// Asserts the timer's interrupt line if the timer has expired.
    pub(crate) fn update_timer(&self) {
        if self.timer.take_expiry(self.ticks()) {
            self.set_status(self.registers.get(csr::ESTAT) | 1 << line::TIMER);
        }
    }

    /// The pending interrupt of the highest priority that ECFG enables, whatever the value of CRMD.IE.
    pub(crate) fn pending_interrupt(&self) -> Option<u32> {
        let pending = self.registers.get(csr::ESTAT) & self.registers.get(csr::ECFG) & line::ALL;
        pending.checked_ilog2()
    }

    /// Whether CRMD.IE enables interrupts.
    pub(crate) fn interrupts_enabled(&self) -> bool {
        self.registers.field(csr::CRMD, 2..=2) == 1
    }

    /// Starts or ends waiting for an interrupt.
    pub(crate) fn set_idle(&self, idle: bool) {
        self.idle.set(idle);
    }

    /// Takes the pending request to the power controller.
    pub(crate) fn take_power_request(&self) -> Option<PowerRequest> {
        self.bus.power.take()
    }

    /// Takes the mark that software has written.
    pub(crate) fn take_mark(&self) -> Option<u8> {
        self.bus.mark.take()
    }

    /// The units that EUEN enables, encoded as in `code::check`.
    #[inline]
    pub(crate) fn units(&self) -> u8 {
        self.registers.get(csr::EUEN) as u8 & check::UNITS
    }

    /// Ticks of the stable counter, without compensation.
    fn ticks(&self) -> u64 {
        self.clock.get() / CYCLES_PER_TICK
    }

    fn elapsed_ns(&self) -> u64 {
        self.clock.get().saturating_mul(NS_PER_CYCLE)
    }

    /// Makes the core check for interrupts, mode changes and reasons to stop before the next instruction.
    fn attend(&self) {
        self.until.set(0);
    }

    fn set_status(&self, status: u64) {
        if self.registers.get(csr::ESTAT) != status {
            self.registers.set(csr::ESTAT, status);
            self.attend();
        }
    }

    /// Copies the devices' interrupt lines to ESTAT, and takes a request to the power controller.
    fn update_lines(&self) {
        let mut platform = self.bus.platform.borrow_mut();
        const DEVICES: u64 = line::ALL & !line::SOFTWARE & !(1 << line::TIMER);
        self.set_status(self.registers.get(csr::ESTAT) & !DEVICES | platform.lines(self.number) & DEVICES);
        if let Some(request) = platform.take_power_request() {
            self.bus.power.set(Some(request));
            self.attend();
        }
        if let Some(mark) = platform.take_mark().filter(|_| self.bus.heeds_marks.get()) {
            self.bus.mark.set(Some(mark));
            self.attend();
        }
    }

    /// Invalidates all cached translations.
    fn forget_translations(&self) {
        self.begin_generation();
        self.attend();
    }

    /// Invalidates all cached translations, without the effects that a change of the mapping has on execution.
    fn begin_generation(&self) {
        self.generation.set(self.generation.get() + 1);
        let entry_generation = self.entry_generation.get();
        self.entry_generation.set(entry_generation % GENERATIONS + 1);
        if entry_generation == GENERATIONS {
            self.readable.clear();
            self.writable.clear();
        }
    }

    /// Notifies all cores that pages of decoded code are new or removed: this core at once, others in their next turn.
    fn announce_code(&self) {
        self.bus.made.set(self.bus.made.get() + 1);
        self.known.set(self.bus.made.get());
        self.begin_generation();
    }

    /// Processes the removal of all decoded code.
    pub(crate) fn forget_code(&self) {
        self.known.set(self.bus.made.get());
        self.begin_generation();
    }

    /// Updates the cached mode after a change of CRMD or MISC.
    fn update_mode(&self) {
        let mode = translation::mode(&self.registers);
        let level = self.registers.field(csr::CRMD, 0..=1);
        let checks_alignment = self.registers.get(csr::MISC) >> (12 + level) & 1 == 1;
        let alignment = if checks_alignment { u64::MAX } else { 0 };
        let old = (self.mode.replace(mode), self.alignment.replace(alignment));
        // Kernels enable and disable interrupts often, while an interrupt is rarely pending.
        if old != (mode, alignment) || self.interrupts_enabled() && self.pending_interrupt().is_some() {
            self.attend();
        }
    }

    /// Translates an address.
    fn translate(&self, address: u64, access: Access) -> Result<u64, Exception> {
        translate(&self.registers, &self.tlb.borrow(), address, access)
    }

    /// The exception of a refused access. The state has not changed since, so that the translation fails again with the
    /// same exception.
    fn exception_of(&self, fault: Fault) -> Exception {
        match fault.cause {
            FaultCause::Misaligned => Exception::Misaligned,
            _ => match self.translate(fault.address, fault.access) {
                Err(exception) => exception,
                // No memory or device is at the physical address.
                Ok(_) => Exception::AddressError(fault.access),
            },
        }
    }

    /// The decoded page of the program counter.
    pub(crate) fn code_page(&self, pc: u64) -> Result<Rc<CodePage>, Exception> {
        if !pc.is_multiple_of(4) {
            return Err(Exception::AddressError(Access::Execute));
        }
        let (page, mode, generation) = (pc / PAGE_BYTES, self.mode.get(), self.generation.get());
        let slot = page as usize % FETCHES;
        if let Some(fetch) = &self.fetches.borrow()[slot]
            && (fetch.page, fetch.mode, fetch.generation) == (page, mode, generation)
            && fetch.code.is_valid()
        {
            return Ok(Rc::clone(&fetch.code));
        }
        let physical = self.translate(pc, Access::Execute)? & !(PAGE_BYTES - 1);
        if self.bus.memory.page(physical).is_none() {
            return Err(Exception::AddressError(Access::Execute));
        }
        let (code, is_new) = self.bus.code.borrow_mut().page(physical);
        if is_new {
            // Stores to the page must be detected.
            self.announce_code();
        }
        let generation = self.generation.get();
        self.fetches.borrow_mut()[slot] = Some(Fetch { page, mode, generation, code: Rc::clone(&code) });
        Ok(code)
    }

    /// The word at a physical address of a decoded page.
    fn word(&self, address: u64) -> u32 {
        let mut bytes = [0; 4];
        // The page was memory when it was decoded, and the memory ranges never change.
        let _ = self.bus.memory.read(address, &mut bytes);
        u32::from_le_bytes(bytes)
    }
}
