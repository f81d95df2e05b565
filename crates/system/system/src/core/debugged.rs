//! Breakpoints, watchpoints and single steps. Breakpoints do not change memory. Code of pages with breakpoints, and
//! code that is stepped through, is interpreted one instruction at a time; all other code runs as without a debugger.
//! Pages with watchpoints are excluded from the caches of translations, so that each access to them is checked. A run
//! therefore takes the same cycles with breakpoints and watchpoints as without.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;

use longma_core::system::Frame;
use longma_loongarch::semantics::privileged::Privileged as _;
use longma_loongarch::{Access, State};

use super::{Core, Record};
use crate::csr::table as csr;
use crate::memory::PAGE_BYTES;
use crate::translation;

/// A core's order from the debugger for the next run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Runs.
    Continue,
    /// Executes one instruction without taking interrupts, and continues while the program counter is in the range.
    Step(Range<u64>),
}

/// Why the machine stopped for the debugger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The next instruction of a core has a breakpoint.
    Breakpoint {
        /// The core.
        core: usize,
        /// Whether the breakpoint was set as a hardware breakpoint.
        is_hardware: bool,
    },
    /// The last instruction of a core accessed a watched address.
    Watchpoint {
        /// The core.
        core: usize,
        /// The first address of the watchpoint.
        address: u64,
        /// The accesses that the watchpoint waits for.
        accesses: Accesses,
    },
    /// A core has completed a step.
    Step {
        /// The core.
        core: usize,
    },
}

/// An instruction that stops the machine before it executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Breakpoint {
    /// The virtual address, in all address spaces.
    pub address: u64,
    /// Whether it was set as a hardware breakpoint.
    pub is_hardware: bool,
}

/// The accesses that a watchpoint waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accesses {
    /// Stores.
    Writes,
    /// Loads.
    Reads,
    /// Loads and stores.
    All,
}

impl Accesses {
    fn include(self, access: Access) -> bool {
        match self {
            Self::Writes => access == Access::Write,
            Self::Reads => access == Access::Read,
            Self::All => true,
        }
    }
}

/// A range of virtual addresses whose accesses stop the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watchpoint {
    /// The addresses.
    pub range: Range<u64>,
    /// The accesses.
    pub accesses: Accesses,
}

/// The debugger's state of a core.
#[derive(Debug, Default)]
struct Debugged {
    order: RefCell<Option<Order>>,
    is_stepping: Cell<bool>,
    /// The breakpoint at which the core has stopped, and which does not stop it again before it executes.
    passed: Cell<Option<u64>>,
}

/// The requests of the debugger, and the event that has stopped the machine.
#[derive(Debug)]
pub struct Debug {
    /// Whether any breakpoint or step is set, so that cores must check for them.
    is_stopping: Cell<bool>,
    /// Whether any watchpoint is set.
    is_watching: Cell<bool>,
    /// Whether cores without an order do not run.
    is_locked: Cell<bool>,
    breakpoints: RefCell<BTreeSet<Breakpoint>>,
    /// The virtual pages whose code is not translated: the pages of the breakpoints, and of some earlier ones.
    pages: RefCell<BTreeSet<u64>>,
    watchpoints: RefCell<Vec<Watchpoint>>,
    cores: Box<[Debugged]>,
    event: Cell<Option<Event>>,
}

impl Debug {
    /// A machine with `cores` cores and no breakpoints.
    pub fn new(cores: usize) -> Self {
        Self {
            is_stopping: Cell::new(false),
            is_watching: Cell::new(false),
            is_locked: Cell::new(false),
            breakpoints: RefCell::default(),
            pages: RefCell::default(),
            watchpoints: RefCell::default(),
            cores: std::iter::repeat_with(Debugged::default).take(cores).collect(),
            event: Cell::new(None),
        }
    }

    /// Adds or removes a breakpoint.
    pub fn set_breakpoint(&self, breakpoint: Breakpoint, is_set: bool) {
        let mut breakpoints = self.breakpoints.borrow_mut();
        if is_set {
            breakpoints.insert(breakpoint)
        } else {
            breakpoints.remove(&breakpoint)
        };
    }

    /// Adds a watchpoint. The cores must forget their translations.
    pub fn add_watchpoint(&self, watchpoint: Watchpoint) {
        self.watchpoints.borrow_mut().push(watchpoint);
        self.is_watching.set(true);
    }

    /// Removes a watchpoint, if it is set.
    pub fn remove_watchpoint(&self, watchpoint: &Watchpoint) {
        let mut points = self.watchpoints.borrow_mut();
        if let Some(index) = points.iter().position(|point| point == watchpoint) {
            points.swap_remove(index);
        }
        self.is_watching.set(!points.is_empty());
    }

    /// Removes the orders of all cores, which then run.
    pub fn clear_orders(&self) {
        self.is_locked.set(false);
        for core in &self.cores {
            core.is_stepping.set(false);
            *core.order.borrow_mut() = None;
        }
        self.update();
    }

    /// Sets a core's order. A step from `pc` executes the instruction there, even if it has a breakpoint.
    pub fn set_order(&self, core: usize, order: Order, pc: u64) {
        let debugged = &self.cores[core];
        debugged.is_stepping.set(matches!(order, Order::Step(_)));
        if debugged.is_stepping.get() {
            debugged.passed.set(Some(pc));
        }
        *debugged.order.borrow_mut() = Some(order);
        self.update();
    }

    /// Holds the cores that have no order. If no core has an order, all run: a machine whose cores are all held would
    /// never stop.
    pub fn lock(&self) {
        self.is_locked.set(self.cores.iter().any(|core| core.order.borrow().is_some()));
    }

    /// Removes all breakpoints, watchpoints and orders.
    pub fn clear(&self) {
        self.breakpoints.borrow_mut().clear();
        self.pages.borrow_mut().clear();
        self.watchpoints.borrow_mut().clear();
        self.is_watching.set(false);
        self.event.set(None);
        self.cores.iter().for_each(|core| core.passed.set(None));
        self.clear_orders();
    }

    /// Begins to interpret the pages of the breakpoints. Returns whether some of them may have been translated.
    pub fn begin(&self) -> bool {
        let breakpoints = self.breakpoints.borrow();
        let pages: BTreeSet<u64> = breakpoints.iter().map(|point| point.address / PAGE_BYTES).collect();
        let has_new = !pages.is_subset(&self.pages.borrow());
        if has_new {
            *self.pages.borrow_mut() = pages;
        }
        self.update();
        has_new
    }

    fn update(&self) {
        let is_stepping = self.cores.iter().any(|core| core.is_stepping.get());
        self.is_stopping.set(is_stepping || !self.pages.borrow().is_empty());
    }

    /// Whether the debugger holds a core.
    pub fn holds(&self, core: usize) -> bool {
        self.is_locked.get() && self.cores[core].order.borrow().is_none()
    }

    /// Takes the event that has stopped the machine.
    pub fn take_event(&self) -> Option<Event> {
        self.event.take()
    }

    /// Whether an event has stopped the machine.
    #[inline]
    pub fn has_event(&self) -> bool {
        self.event.get().is_some()
    }

    /// Whether a page may contain code that stops the machine.
    #[inline]
    fn stops_in(&self, core: usize, pc: u64) -> bool {
        self.is_stopping.get() && self.stops_in_page(core, pc / PAGE_BYTES)
    }

    #[cold]
    fn stops_in_page(&self, core: usize, page: u64) -> bool {
        self.cores[core].is_stepping.get() || self.pages.borrow().contains(&page)
    }

    /// Whether a core executes a step, during which it takes no interrupts.
    #[inline]
    pub fn is_stepping(&self, core: usize) -> bool {
        self.is_stopping.get() && self.cores[core].is_stepping.get()
    }

    /// Forgets that a core has stopped at a breakpoint, because it enters a handler before it executes the instruction.
    pub fn leave_breakpoint(&self, core: usize) {
        self.cores[core].passed.set(None);
    }

    /// Whether a breakpoint stops a core before the instruction at `pc`.
    fn stops_before(&self, core: usize, pc: u64) -> bool {
        if self.cores[core].passed.take() == Some(pc) {
            return false;
        }
        let at = |is_hardware| Breakpoint { address: pc, is_hardware };
        let breakpoints = self.breakpoints.borrow();
        let is_hardware = !breakpoints.contains(&at(false));
        if is_hardware && !breakpoints.contains(&at(true)) {
            return false;
        }
        self.cores[core].passed.set(Some(pc));
        self.event.set(Some(Event::Breakpoint { core, is_hardware }));
        true
    }

    /// Records an executed instruction, after which the program counter is `pc`. Returns whether a step is complete.
    fn completes_step(&self, core: usize, pc: u64) -> bool {
        let order = self.cores[core].order.borrow();
        let is_complete = matches!(&*order, Some(Order::Step(range)) if !range.contains(&pc));
        if is_complete && !self.has_event() {
            self.event.set(Some(Event::Step { core }));
        }
        is_complete
    }

    /// Whether the page of an address has a watchpoint.
    #[inline]
    pub fn watches_page(&self, address: u64) -> bool {
        self.is_watching.get() && self.finds(address & !(PAGE_BYTES - 1), PAGE_BYTES, |_| true).is_some()
    }

    /// Records an access to a page with a watchpoint. Returns whether it stops the machine.
    pub fn note_access(&self, core: usize, address: u64, bytes: usize, access: Access) -> bool {
        let found = self.finds(address, bytes as u64, |point| point.accesses.include(access));
        if let Some(Watchpoint { range, accesses }) = &found
            && !self.has_event()
        {
            self.event.set(Some(Event::Watchpoint { core, address: range.start, accesses: *accesses }));
        }
        found.is_some()
    }

    #[cold]
    fn finds(&self, address: u64, bytes: u64, fits: impl Fn(&Watchpoint) -> bool) -> Option<Watchpoint> {
        let last = address.saturating_add(bytes - 1);
        let overlaps = |range: &Range<u64>| range.start <= last && address < range.end;
        let points = self.watchpoints.borrow();
        points.iter().find(|point| overlaps(&point.range) && fits(point)).cloned()
    }
}

impl Core {
    /// Whether code at `pc` is executed one instruction at a time for the debugger.
    #[inline]
    pub(super) fn is_debugged(&self, pc: u64) -> bool {
        self.bus.debug.stops_in(self.number, pc)
    }

    /// Executes one instruction, unless it has a breakpoint.
    pub(super) fn execute_debugged(&self, frame: &mut Frame) {
        let (debug, state) = (&self.bus.debug, &mut frame.state);
        let pc = state.pc;
        if debug.stops_before(self.number, pc) {
            self.attend();
            return;
        }
        match self.code_page(pc) {
            Ok(page) => {
                let block = page.block((pc % PAGE_BYTES / 4) as usize, |address| self.word(address));
                let step = block.steps[0];
                self.execute_step(state, page.address, &step);
            }
            Err(exception) => {
                self.advance_clock(1);
                self.enter(state, exception, Record { address: pc, word: None });
            }
        }
        if debug.completes_step(self.number, state.pc) {
            self.attend();
        }
    }

    /// Records an access, by the current instruction, to a page with a watchpoint.
    pub(super) fn note_access(&self, address: u64, bytes: usize, access: Access) {
        if self.bus.debug.note_access(self.number, address, bytes, access) {
            self.attend();
        }
    }

    /// The physical address of a virtual address, regardless of access rights: by the translation mode, the windows and
    /// the TLB, or else by the page tables. `None` if it is not mapped.
    pub(crate) fn look_up(&self, address: u64) -> Option<u64> {
        let found = translation::look_up(&self.registers, &self.tlb.borrow(), address);
        found.or_else(|| self.walk(address))
    }

    /// Invalidates cached translations after the debugger has changed memory or watchpoints.
    pub(crate) fn refresh(&self) {
        self.known.set(self.bus.made.get());
        self.begin_generation();
    }

    /// Invalidates decoded and translated code in a range of physical addresses.
    pub(crate) fn invalidate_code(&self, start: u64, bytes: u64) {
        if self.bus.code.borrow_mut().invalidate_range(start, start + bytes) {
            self.announce_code();
        }
    }

    /// The value of a CSR as software reads it.
    pub(crate) fn csr_value(&self, state: &State, number: u16) -> u64 {
        self.read_csr(state, number)
    }

    /// Writes a CSR as software does.
    pub(crate) fn set_csr(&self, state: &mut State, number: u16, value: u64) {
        self.exchange_csr(state, number, value, u64::MAX);
    }

    /// The core's activity, for the debugger's list of threads.
    pub(crate) fn activity(&self, state: &State) -> String {
        if self.is_parked() {
            return "not started".into();
        }
        let level = self.registers.field(csr::CRMD, 0..=1);
        let waits = if self.is_idle() { ", waits for an interrupt" } else { "" };
        format!("level {level}, at {:#x}{waits}", state.pc)
    }
}
