//! Executes instructions for models that time them. All code is interpreted. A core's execution is collected in a
//! trace, which a [`Timing`] takes at the end of each quantum, before an access to the clock, and before a change of
//! the privilege level. Between these points the core's clock does not advance; at each of them it moves to the model's
//! time.
//!
//! Addresses in the trace are physical, and the virtual addresses of code can be converted by [`CodePages`].

mod code;

use longma_core::system::Frame;
use longma_loongarch::{Class, Instruction, Op, State};
use longma_trace::{AddressForm, BlockNumber, Record, Trace};

pub use code::{CodePages, ObservedCode};

use super::code::{Block, CodePage, DecodedInstruction, check};
use super::{Core, Pause};
use crate::csr::table as csr;
use crate::exception::Exception;
use crate::memory::PAGE_BYTES;
use crate::translation::look_up;

/// Trace words in a quantum: about 700 instructions. An interrupt of the timer is at most this late.
const QUANTUM_WORDS: usize = 1024;
/// The maximum number of pages of data whose translations are stored.
const DATA_PAGES: usize = 256;

/// The address in the trace of instructions that could access memory but did not.
const NOWHERE: u64 = 0;

/// A core's execution since the last report, at one privilege level.
pub struct Executed<'a> {
    /// The number of the core.
    pub core: usize,
    /// Whether the privilege level is 3, that of user programs.
    pub is_user: bool,
    /// The instructions. Addresses of data are physical; LDDIR and LDPTE are loads of their table entries.
    pub trace: &'a Trace,
    /// The blocks of the trace.
    pub code: &'a ObservedCode,
    /// The physical addresses of the code of the trace.
    pub pages: &'a CodePages,
}

/// An event of a core, apart from the instructions that it executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreEvent {
    /// The core takes an exception or an interrupt.
    Exception(Exception),
    /// The core accesses registers of a device, by one instruction that is not in the trace. The device is busy until this
    /// cycle of the machine.
    DeviceAccess {
        /// Whether the instruction waits for the device's answer.
        is_load: bool,
        /// When the device is ready.
        until: u64,
    },
    /// The core waits until this cycle of the machine.
    Waited(u64),
}

/// A model of the cores' timing. Times are cycles of the machine, which are nanoseconds of modelled time.
pub trait Timing {
    /// Accounts for executed instructions. Returns the time at which the core has executed them.
    fn execute(&mut self, executed: &Executed<'_>) -> u64;

    /// Accounts for an event of `core`, at the privilege level 3 if `is_user`, after all instructions reported so far.
    /// Returns the time at which it is over. Each exception takes some time, so that time passes even if one exception
    /// follows another.
    fn happen(&mut self, core: usize, is_user: bool, event: CoreEvent) -> u64;
}

/// The traces of all cores.
pub(crate) struct Observation {
    code: ObservedCode,
    cores: Vec<Observed>,
}

impl Observation {
    pub fn new(cores: usize) -> Self {
        Self { code: ObservedCode::default(), cores: (0..cores).map(|_| Observed::new()).collect() }
    }

    pub fn code(&self) -> &ObservedCode {
        &self.code
    }
}

/// The trace of a core since its last report.
struct Observed {
    trace: Trace,
    is_user: bool,
    pages: CodePages,
    data_pages: Box<[DataPage; DATA_PAGES]>,
}

/// The translation of a page of data.
#[derive(Clone, Copy)]
struct DataPage {
    number: u64,
    /// The generation and the mode of the core's translations.
    stamp: u64,
    physical: u64,
}

impl Observed {
    fn new() -> Self {
        let none = DataPage { number: u64::MAX, stamp: 0, physical: 0 };
        Self {
            trace: Trace::new(),
            is_user: false,
            pages: CodePages::default(),
            data_pages: Box::new([none; DATA_PAGES]),
        }
    }
}

/// One core's part of an observation.
struct Observer<'a, T> {
    core: usize,
    code: &'a mut ObservedCode,
    own: &'a mut Observed,
    timing: &'a mut T,
}

impl<T: Timing> Observer<'_, T> {
    /// Reports the trace. Returns the time that the core has reached.
    fn report(&mut self) -> Option<u64> {
        if self.own.trace.is_empty() {
            return None;
        }
        let Observed { trace, is_user, pages, .. } = &*self.own;
        let executed = Executed { core: self.core, is_user: *is_user, trace, code: self.code, pages };
        let time = self.timing.execute(&executed);
        self.own.trace.set_used(0);
        Some(time)
    }

    fn push(&mut self, number: u32, executed: usize, addresses: &[u64]) {
        if executed > 0 {
            let block = BlockNumber(number);
            self.own.trace.push(&Record { block, executed: executed as u16, addresses });
        }
    }
}

impl Core {
    /// Like [`Core::run`], with the time that passes determined by `timing`.
    pub(crate) fn run_observed<T: Timing>(
        &self,
        frame: &mut Frame,
        end: u64,
        observation: &mut Observation,
        timing: &mut T,
    ) -> Pause {
        let Observation { code, cores } = observation;
        let mut observer = Observer { core: self.number, code, own: &mut cores[self.number], timing };
        self.happen(&mut observer, CoreEvent::Waited(self.clock()));
        loop {
            if let Some(request) = self.take_power_request() {
                return Pause::Power(request);
            }
            if let Some(mark) = self.take_mark() {
                return Pause::Mark(mark);
            }
            if self.is_parked() {
                return Pause::Idle;
            }
            if self.clock() >= end {
                return Pause::End;
            }
            self.update_timer();
            let pending = self.pending_interrupt();
            if self.is_idle() {
                match (pending, self.next_event()) {
                    (Some(_), _) => self.set_idle(false),
                    (None, Some(event)) => {
                        let until = event.min(end).max(self.clock() + 1);
                        self.happen(&mut observer, CoreEvent::Waited(until));
                        self.pass_to(until);
                        continue;
                    }
                    (None, None) => return Pause::Idle,
                }
            }
            if let Some(line) = pending.filter(|_| self.interrupts_enabled()) {
                let exception = Exception::Interrupt(line);
                self.enter(&mut frame.state, exception, super::Record::default());
                self.happen(&mut observer, CoreEvent::Exception(exception));
                continue;
            }
            self.grant(end);
            self.execute_observed(&mut frame.state, &mut observer);
        }
    }

    /// Reports an event, and moves the clock to its end.
    fn happen<T: Timing>(&self, observer: &mut Observer<'_, T>, event: CoreEvent) {
        self.catch_up(observer);
        let is_user = self.is_user();
        self.pass_to(observer.timing.happen(self.number, is_user, event));
    }

    /// Reports the trace to the models, and advances the clock by the time that they return.
    fn catch_up<T: Timing>(&self, observer: &mut Observer<'_, T>) {
        if let Some(time) = observer.report() {
            self.pass_to(time);
        }
        observer.own.is_user = self.is_user();
    }

    fn is_user(&self) -> bool {
        self.registers.field(csr::CRMD, 0..=1) == 3
    }

    /// Executes instructions until the core must check for interrupts or its turn is over.
    fn execute_observed<T: Timing>(&self, state: &mut State, observer: &mut Observer<'_, T>) {
        while !self.is_due() {
            if observer.own.trace.words() >= QUANTUM_WORDS {
                self.catch_up(observer);
                continue;
            }
            match self.code_page(state.pc) {
                Ok(page) => self.observe_page(state, &page, observer),
                Err(exception) => {
                    self.catch_up(observer);
                    let record = super::Record { address: state.pc, word: None };
                    self.enter(state, exception, record);
                    self.happen(observer, CoreEvent::Exception(exception));
                }
            }
        }
        self.catch_up(observer);
    }

    /// Executes instructions of one page until control leaves it, the quantum is over, or the core must check its state.
    fn observe_page<T: Timing>(&self, state: &mut State, page: &CodePage, observer: &mut Observer<'_, T>) {
        let start = state.pc & !(PAGE_BYTES - 1);
        if !observer.own.pages.agrees(start, page.address) {
            // The trace may refer to the page previously mapped here.
            self.catch_up(observer);
            observer.own.pages.set(start, page.address);
        }
        while !self.is_due() && observer.own.trace.words() < QUANTUM_WORDS {
            let offset = state.pc.wrapping_sub(start);
            if offset & !(PAGE_BYTES - 4) != 0 {
                return;
            }
            let block = page.block((offset / 4) as usize, |address| self.word(address));
            let alone = match self.can_run(block) {
                true => self.observe_block(state, block, observer),
                false => Some((0, &block.steps[0])),
            };
            if let Some((index, step)) = alone {
                if index > 0 || step.checks & check::ALONE == 0 {
                    // The instruction traps, accesses a device or writes code.
                    self.catch_up(observer);
                    if self.is_due() {
                        return;
                    }
                }
                if !self.observe_step(state, page, step, observer) {
                    return;
                }
            }
        }
    }

    /// Executes a block, or the part before an instruction that must be executed alone. Returns the index of that
    /// instruction, which has had no effect yet.
    fn observe_block<'a, T: Timing>(
        &self,
        state: &mut State,
        block: &'a Block,
        observer: &mut Observer<'_, T>,
    ) -> Option<(usize, &'a DecodedInstruction)> {
        let first = state.pc;
        let number = observer.code.number(block, first, self.is_user());
        let (mut addresses, mut accesses) = ([0; super::code::BLOCK], 0);
        // Only the last instruction may read the program counter.
        state.pc = first.wrapping_add(4 * (block.steps.len() as u64 - 1));
        for (index, step) in block.steps.iter().enumerate() {
            let address = step.access.map(|form| address_of(form, step, state));
            if (step.run)(state, &step.instruction, self).is_err() {
                state.pc = first.wrapping_add(4 * index as u64);
                observer.push(number, index, &addresses[..accesses]);
                return Some((index, step));
            }
            if let Some(address) = address {
                addresses[accesses] = self.physical(address, observer.own);
                accesses += 1;
            }
        }
        if !block.sets_program_counter {
            state.pc = first.wrapping_add(4 * block.steps.len() as u64);
        }
        observer.push(number, block.steps.len(), &addresses[..accesses]);
        None
    }

    /// Executes one instruction with all checks and effects. Returns whether execution may continue in the page.
    fn observe_step<T: Timing>(
        &self,
        state: &mut State,
        page: &CodePage,
        step: &DecodedInstruction,
        observer: &mut Observer<'_, T>,
    ) -> bool {
        if depends_on_time(step) {
            self.catch_up(observer);
            if self.is_due() {
                return false;
            }
        }
        let i = &step.instruction;
        let (before, pc, was_user) = (self.clock(), state.pc, self.is_user());
        let address = step.access.map(|form| address_of(form, step, state));
        let walked = self.walk_of(i, state);
        let block = page.block((pc % PAGE_BYTES / 4) as usize, |address| self.word(address));
        let number = observer.code.number(block, pc, was_user);
        let is_done = self.execute_step(state, page.address, step);
        // The model determines the time of the instruction, so undo the cycle that it took here. Keep the time that a
        // device worked.
        let worked = self.clock().wrapping_sub(before + 1);
        self.clock.set(before);
        if let Some(address) = address
            && is_done
            && self.reaches_device(address)
        {
            let is_load = i.op.row().class != Class::Store;
            self.happen(observer, CoreEvent::DeviceAccess { is_load, until: before.saturating_add(worked) });
        } else if is_done || matches!(i.op, Op::Syscall | Op::Break) {
            let physical = address.map(|address| self.physical(address, observer.own));
            observer.push(number, 1, physical.or(walked).as_slice());
        }
        if !is_done {
            let exception = self.last_exception.get().unwrap_or(Exception::IllegalInstruction);
            self.happen(observer, CoreEvent::Exception(exception));
        } else if self.is_user() != was_user {
            self.catch_up(observer);
        }
        is_done
    }

    /// The physical address that LDDIR or LDPTE reads; `None` for other instructions.
    fn walk_of(&self, i: &Instruction, state: &State) -> Option<u64> {
        let level = match i.op {
            Op::Lddir => i.imm as u32,
            Op::Ldpte => 0,
            _ => return None,
        };
        let address =
            self.walked_address(state.r(i.j), level).filter(|at| self.bus.memory.page(*at).is_some());
        Some(address.unwrap_or(NOWHERE))
    }

    /// Whether the address of an access that has succeeded is that of a device.
    fn reaches_device(&self, address: u64) -> bool {
        let physical = look_up(&self.registers, &self.tlb.borrow(), address);
        physical.is_some_and(|physical| self.bus.memory.page(physical).is_none())
    }

    /// The physical address of an access to memory.
    #[inline]
    fn physical(&self, address: u64, own: &mut Observed) -> u64 {
        let (number, stamp) = (address / PAGE_BYTES, self.stamp());
        let page = &mut own.data_pages[number as usize % DATA_PAGES];
        if (page.number, page.stamp) != (number, stamp) {
            let found = look_up(&self.registers, &self.tlb.borrow(), address);
            let found = found.filter(|physical| self.bus.memory.page(*physical).is_some());
            // Prefetches of addresses without translation have no effect.
            let Some(physical) = found else { return NOWHERE };
            *page = DataPage { number, stamp, physical: physical & !(PAGE_BYTES - 1) };
        }
        page.physical | address & (PAGE_BYTES - 1)
    }
}

/// The address that an instruction accesses, from the registers before its execution.
#[inline]
fn address_of(form: AddressForm, step: &DecodedInstruction, state: &State) -> u64 {
    let base = state.x[usize::from(step.instruction.j)];
    let index = state.x[usize::from(step.instruction.k)];
    base.wrapping_add(match form {
        AddressForm::Displaced(bytes) => bytes as i64 as u64,
        AddressForm::Indexed => index,
        AddressForm::Described => index as i16 as u64,
    })
}

/// Whether the result of an instruction depends on the clock.
fn depends_on_time(step: &DecodedInstruction) -> bool {
    let number = step.instruction.imm;
    let is_timer = number == i32::from(csr::TVAL) || number == i32::from(csr::TCFG);
    step.checks & check::COUNTER != 0 || step.instruction.op == Op::Csrxchg && is_timer
}
