//! System calls: the table, the dispatcher, and the calls on memory, the system, clocks and System V IPC. Source: Linux
//! include/uapi/asm-generic/unistd.h; man-pages section 2; LoongArch syscall convention (a7, a0-a5, a0).

mod copies;
mod ipc;
mod memory;
mod names;
mod system;
mod table;
mod time;
mod trace;

pub use copies::{SystemCall, TransferredMemory};
use longma_locks::IgnorePoison;

use longma_guest::Errno;
use longma_guest::host::attention::{Attention, with_attention};
use longma_guest::host::descriptors;
use longma_loongarch::{State, Trap};

use crate::arguments::{self, Kind};
use crate::process::{Completion, Interrupted};
use crate::simulated::calls::{Caller, Simulated};
use crate::simulated::identity::Ids;
use crate::simulated::waits::BlockingCondition;
use crate::simulated::{self, Simulation};
use crate::{Outcome, Thread};

/// a0, the first argument and the result.
const A0: u8 = 4;
/// a7, the number.
const A7: u8 = 11;

/// The implementation of a call.
#[derive(Clone, Copy)]
pub(crate) enum Action {
    /// Forwards it to the host's call of this number, which does not block.
    Host(i64),
    /// Forwards it to the host's call of this number, which may block until the condition holds.
    Waits(i64, BlockingCondition),
    /// A function that returns a0.
    Call(fn(&mut Thread, [u64; 6]) -> Result<u64, Errno>),
    /// A function that may set the registers itself. `pc` is already after the instruction.
    Control(fn(&mut Thread, &mut State, [u64; 6]) -> Result<Completion, Errno>),
    /// ENOSYS without a diagnostic, because programs work without the call.
    Absent,
    /// EPERM, because the call needs privileges.
    Denied,
}

/// The file that a call changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// The file of the descriptor in this argument.
    Open(u8),
    /// The file of the descriptor in this argument, which the call may truncate.
    DescriptorTruncated(u8),
    /// The file of the returned descriptor, if the flags in this argument truncate it (O_TRUNC).
    OpenedWithFlags(u8),
    /// Like `OpenedWithFlags`, with the flags in the first word of the structure at this argument.
    OpenedWithHow(u8),
}

/// One system call.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub number: u16,
    pub name: &'static str,
    pub action: Action,
    pub arguments: &'static [Kind],
    /// Bit n is set if argument n is a descriptor.
    pub descriptors: u8,
    /// The process and thread ids among the arguments.
    pub ids: Ids,
    /// The implementation in simulated time, if it differs.
    pub simulated: Option<Simulated>,
    /// The file whose contents the call may change.
    pub changes: Option<Changed>,
    /// The resulting kernel state that a checkpoint does not contain.
    pub uncaptured: Option<&'static str>,
}

impl Row {
    /// Whether one of the descriptor arguments belongs to the emulator.
    fn uses_emulator_descriptor(&self, arguments: &[u64; 6]) -> bool {
        let mut left = self.descriptors;
        while left != 0 {
            if descriptors::is_reserved(arguments[left.trailing_zeros() as usize]) {
                return true;
            }
            left &= left - 1;
        }
        false
    }
}

/// The offset that is added to the numbers of 32-bit system calls that x86-64 programs make and that are not
/// implemented.
const CALLS_OF_32_BITS: u64 = 1 << 32;

impl Thread {
    /// Handles a synchronous trap at `state.pc`: builds a signal frame, or returns the fatal signal, as in Linux.
    /// [`Trap::Syscall`] is passed to [`Thread::syscall`].
    pub fn raise(&mut self, state: &mut State, trap: Trap) -> Outcome {
        self.raise_signal(state, trap).unwrap_or_else(|| self.syscall(state))
    }

    /// Performs the system call at `state.pc` and advances the program counter.
    pub fn syscall(&mut self, state: &mut State) -> Outcome {
        state.pc = state.pc.wrapping_add(4);
        let number = state.r(A7);
        let arguments: [u64; 6] = std::array::from_fn(|index| state.r(A0 + index as u8));
        let Some(row) = table::row(number) else {
            self.report_missing_call(number);
            state.set_r(A0, Errno(libc::ENOSYS).returned());
            return Outcome::Continue;
        };
        let tracer = self.process.config.tracer.clone();
        let formatted = tracer.as_ref().map(|_| trace::before(self, row, &arguments));
        let completion = match self.process.simulation().cloned() {
            _ if row.uses_emulator_descriptor(&arguments) => Err(Errno(libc::EBADF)),
            None => self.perform(row, state, &self.process.translate_child_ids(&row.ids, arguments)),
            Some(simulation) => self.perform_simulated(&simulation, row, state, &arguments),
        };
        if let (Some(sink), Some(formatted)) = (&tracer, formatted) {
            sink(&trace::line(self, row, &arguments, formatted, &completion));
        }
        match completion {
            Ok(Completion::Value(value)) => state.set_r(A0, value),
            Ok(Completion::RegistersSet(outcome)) => return outcome,
            Err(error @ (Errno::RESTART | Errno::RESTART_ALWAYS)) => {
                self.interrupted = Some(Interrupted {
                    a0: arguments[0],
                    always: error == Errno::RESTART_ALWAYS,
                    registers: None,
                });
                state.set_r(A0, Errno(libc::EINTR).returned());
                if self.leaves_signals {
                    with_attention(Attention::request);
                    return Outcome::Continue;
                }
                // A signal has arrived, since the call was interrupted.
                return self.deliver_pending(state);
            }
            Err(error) => state.set_r(A0, error.returned()),
        }
        Outcome::Continue
    }

    fn perform(&mut self, row: &Row, state: &mut State, arguments: &[u64; 6]) -> Result<Completion, Errno> {
        let forward = |thread: &Self, host, waits| {
            arguments::forward(&thread.process, host, waits, row.arguments, arguments).map(Completion::Value)
        };
        let result = match row.action {
            Action::Host(host) => forward(self, host, None),
            Action::Waits(host, waits_for) => forward(self, host, Some(waits_for)),
            Action::Call(function) => function(self, *arguments).map(Completion::Value),
            Action::Control(function) => function(self, state, *arguments),
            Action::Absent => Err(Errno(libc::ENOSYS)),
            Action::Denied => Err(Errno(libc::EPERM)),
        };
        if let Some(waits_for) = row.uncaptured
            && result.is_ok()
        {
            self.process.record_uncaptured(waits_for);
        }
        if let Some(file) = row.changes {
            self.invalidate_changed_code(file, arguments, &result);
        }
        result
    }

    /// Invalidates code that is executed from a file after a call that may have changed it.
    fn invalidate_changed_code(
        &self,
        file: Changed,
        arguments: &[u64; 6],
        result: &Result<Completion, Errno>,
    ) {
        let space = &self.process.space;
        match (file, result) {
            (Changed::Open(argument), _) if space.executes_file_pages() => {
                space.file_changed(arguments[usize::from(argument)] as i32);
            }
            (Changed::DescriptorTruncated(argument), _) => {
                space.file_truncated(arguments[usize::from(argument)] as i32)
            }
            (Changed::OpenedWithFlags(flags), Ok(Completion::Value(descriptor))) => {
                self.invalidate_truncated_code(*descriptor, arguments[usize::from(flags)]);
            }
            (Changed::OpenedWithHow(how), Ok(Completion::Value(descriptor))) => {
                let flags = self.process.memory().load(arguments[usize::from(how)]);
                self.invalidate_truncated_code(*descriptor, flags.unwrap_or(u64::MAX));
            }
            _ => {}
        }
    }

    fn invalidate_truncated_code(&self, descriptor: u64, flags: u64) {
        if flags & libc::O_TRUNC as u64 != 0 {
            self.process.space.file_truncated(descriptor as i32);
        }
    }

    fn perform_simulated(
        &mut self,
        simulation: &Simulation,
        row: &Row,
        state: &mut State,
        arguments: &[u64; 6],
    ) -> Result<Completion, Errno> {
        let resumes = self.resumes_until.take();
        if let Some(deadline) = resumes {
            simulation.resume_wait(self.number, deadline);
        }
        let caller = Caller {
            simulation,
            number: self.number,
            space: &self.process.space,
            report_once: &|text| self.process.report_once(text),
        };
        let answered = simulated::calls::replace_call(&caller, row.simulated, *arguments);
        let completion = match answered {
            Some(returned) => returned.map(Completion::Value),
            None => {
                let arguments = simulation.identities.translate(&row.ids, *arguments);
                self.perform(row, state, &arguments)
            }
        };
        if resumes.is_some() {
            simulation.clear_resumed_wait(self.number);
        }
        if simulation.is_enabled() {
            simulated::calls::notify_other_threads(simulation, self.number, row.simulated);
        }
        completion
    }

    /// Reports a system call that is not implemented. Each number is reported once.
    fn report_missing_call(&self, number: u64) {
        let Some(sink) = &self.process.config.diagnostics else { return };
        let mut reported_calls = self.process.reported_calls.lock().ignore_poison();
        // The bound keeps a hostile guest from exhausting memory.
        if reported_calls.len() < 1024 && reported_calls.insert(number) {
            match number.checked_sub(CALLS_OF_32_BITS) {
                Some(number) => sink(&format!(
                    "the 32-bit system call {number} (int $0x80) is not implemented; it returns ENOSYS"
                )),
                None => sink(&format!("system call {number} is not implemented; it returns ENOSYS")),
            }
        }
    }
}
