//! Signal delivery: from an arrived signal or a trap to the first instruction of a handler, or to the termination of
//! the process. Source: Linux arch/loongarch/kernel/{signal,traps}.c, kernel/signal.c (force_sig, get_signal).

use longma_guest::host::attention::{Attention, with_attention};
use longma_guest::host::masks::set_of;
use longma_guest::host::reception::SignalInfo;
use longma_guest::words::i32_at;
use longma_loongarch::{Access, Fault, FaultCause, Fcsr, Reservation, State, Trap};

use crate::fixed_identity::USER;
use crate::process::dispositions::{
    Action, Default, SA_NODEFER, SA_ONSTACK, SA_RESTART, SIG_DFL, SIG_IGN, UNBLOCKABLE, default_of,
};
use crate::signals::frame::{self, FRAME_BYTES, SC_ADDRERR_RD, SC_ADDRERR_WR, Saved};
use crate::{Outcome, Thread};
use longma_guest::elf::Architecture;

// include/uapi/asm-generic/siginfo.h
const SI_KERNEL: i32 = 0x80;
const SEGV_MAPERR: i32 = 1;
const SEGV_ACCERR: i32 = 2;
const SEGV_BNDERR: i32 = 3;
const BUS_ADRALN: i32 = 1;
const BUS_ADRERR: i32 = 2;
const FPE_INTDIV: i32 = 1;
const FPE_INTOVF: i32 = 2;
const FPE_FLTDIV: i32 = 3;
const FPE_FLTOVF: i32 = 4;
const FPE_FLTUND: i32 = 5;
const FPE_FLTRES: i32 = 6;
const FPE_FLTINV: i32 = 7;
const FPE_FLTUNK: i32 = 14;
const TRAP_BRKPT: i32 = 1;
const TRAP_TRACE: i32 = 2;
/// The `break` codes that arch/loongarch/include/uapi/asm/break.h defines.
const BRK_OVERFLOW: u32 = 6;
const BRK_DIVZERO: u32 = 7;
/// Added by `longma-translate-mips` to the code of a conditional MIPS trap, to distinguish it from `break`.
const MIPS_TRAP: u32 = 1 << 10;
/// The code of x86's INT1.
const BRK_DEBUG: u32 = 1;
/// The code after an instruction of a thread that single-steps (x86's trap flag).
const BRK_STEPPED: u32 = 2;
/// The number of address bits. Addresses are sign-extended from the highest: on LoongArch, and on x86-64 with
/// four-level page tables.
const ADDRESS_BITS: u32 = 48;
/// The code for an undefined instruction on AArch64.
const ILL_ILLOPC: i32 = 1;
/// The code for an invalid opcode exception on x86.
const ILL_ILLOPN: i32 = 2;

/// A signal caused by an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cause {
    signal: i32,
    code: i32,
    address: u64,
    /// The bounds of SEGV_BNDERR.
    bounds: (u64, u64),
    /// SC_ADDRERR_*.
    flags: u32,
}

impl Cause {
    const fn at(signal: i32, code: i32, address: u64) -> Self {
        Self { signal, code, address, bounds: (0, 0), flags: 0 }
    }

    /// Encodes the siginfo_t.
    fn info(&self) -> SignalInfo {
        let mut info = [0; 128];
        info[0..4].copy_from_slice(&self.signal.to_le_bytes());
        info[8..12].copy_from_slice(&self.code.to_le_bytes());
        info[16..24].copy_from_slice(&self.address.to_le_bytes());
        if self.signal == libc::SIGSEGV && self.code == SEGV_BNDERR {
            info[32..40].copy_from_slice(&self.bounds.0.to_le_bytes());
            info[40..48].copy_from_slice(&self.bounds.1.to_le_bytes());
        }
        info
    }

    fn of_memory(fault: Fault) -> Self {
        let Fault { address, access, cause } = fault;
        let canonical = is_canonical(address);
        let (signal, code) = match cause {
            FaultCause::Misaligned if access == Access::Execute => (libc::SIGBUS, BUS_ADRERR),
            FaultCause::Misaligned => (libc::SIGBUS, BUS_ADRALN),
            FaultCause::BeyondFile => (libc::SIGBUS, BUS_ADRERR),
            // An address error (ADEF, ADEM), which the hardware raises without a page table walk.
            FaultCause::Unmapped if !canonical => (libc::SIGBUS, BUS_ADRERR),
            FaultCause::Unmapped => (libc::SIGSEGV, SEGV_MAPERR),
            FaultCause::Forbidden => (libc::SIGSEGV, SEGV_ACCERR),
        };
        let flags = match access {
            Access::Read => SC_ADDRERR_RD,
            Access::Write => SC_ADDRERR_WR,
            Access::Execute => 0,
        };
        Self { flags, ..Self::at(signal, code, address) }
    }

    /// A failed bound check of the instruction `word`.
    fn of_bound(state: &State, word: u32) -> Self {
        let value = state.r((word >> 5 & 31) as u8);
        let bound = state.r((word >> 10 & 31) as u8);
        // asrtle.d and the loads and stores named *le check an upper bound, asrtgt.d and *gt a lower one.
        let is_upper = longma_loongarch::decode(word)
            .is_some_and(|instruction| instruction.op.row().mnemonic.contains("le."));
        let bounds = if is_upper { (0, bound) } else { (bound, u64::MAX) };
        Self { bounds, ..Self::at(libc::SIGSEGV, SEGV_BNDERR, value) }
    }

    fn of_floating_point(fcsr: Fcsr, pc: u64) -> Self {
        // Causes: V 28, Z 27, O 26, U 25, I 24.
        let code = match fcsr.0 >> 24 & 31 {
            0 => FPE_FLTUNK,
            causes => [FPE_FLTINV, FPE_FLTDIV, FPE_FLTOVF, FPE_FLTUND, FPE_FLTRES]
                [causes.leading_zeros() as usize - 27],
        };
        Self::at(libc::SIGFPE, code, pc)
    }
}

fn is_canonical(address: u64) -> bool {
    let unused = 64 - ADDRESS_BITS;
    ((address << unused) as i64 >> unused) as u64 == address
}

impl Thread {
    /// Delivers the signal of a synchronous trap at `state.pc`; `None` for a system call.
    pub(crate) fn raise_signal(&mut self, state: &mut State, trap: Trap) -> Option<Outcome> {
        let cause = self.cause_of(state, trap)?;
        if trap == Trap::FloatingPoint {
            state.fcsr.0 &= !(31 << 24);
        }
        let outcome = self.force(state, cause.signal, cause.info(), cause.flags);
        if outcome == Outcome::Continue {
            self.signals.release();
        }
        Some(outcome)
    }

    /// The signal of a trap; `None` for a system call.
    fn cause_of(&self, state: &State, trap: Trap) -> Option<Cause> {
        let pc = state.pc;
        Some(match trap {
            Trap::Syscall(_) => return None,
            Trap::Break(BRK_DIVZERO) => Cause::at(libc::SIGFPE, FPE_INTDIV, pc),
            Trap::Break(BRK_OVERFLOW) => Cause::at(libc::SIGFPE, FPE_INTOVF, pc),
            Trap::Break(BRK_STEPPED) if self.process.architecture() == Architecture::X86_64 => {
                Cause::at(libc::SIGTRAP, TRAP_TRACE, pc)
            }
            // INT3, for which x86 reports no address.
            Trap::Break(code) if self.process.architecture() == Architecture::X86_64 && code != BRK_DEBUG => {
                Cause::at(libc::SIGTRAP, SI_KERNEL, 0)
            }
            // `teq` and similar instructions, for which MIPS reports no address.
            Trap::Break(code)
                if self.process.architecture() == Architecture::Mips64 && code & MIPS_TRAP != 0 =>
            {
                Cause::at(libc::SIGTRAP, SI_KERNEL, 0)
            }
            Trap::Break(_) => Cause::at(libc::SIGTRAP, TRAP_BRKPT, pc),
            Trap::IllegalInstruction if self.process.architecture() == Architecture::X86_64 => {
                Cause::at(libc::SIGILL, ILL_ILLOPN, pc)
            }
            Trap::IllegalInstruction if self.process.architecture() == Architecture::Aarch64 => {
                Cause::at(libc::SIGILL, ILL_ILLOPC, pc)
            }
            Trap::IllegalInstruction | Trap::PrivilegedInstruction => Cause::at(libc::SIGILL, SI_KERNEL, 0),
            // A general-protection exception, for which x86 reports no address.
            Trap::Memory(fault)
                if self.process.architecture() == Architecture::X86_64 && !is_canonical(fault.address) =>
            {
                Cause::at(libc::SIGSEGV, SI_KERNEL, 0)
            }
            Trap::Memory(fault) => Cause::of_memory(fault),
            Trap::BoundCheck => Cause::of_bound(state, self.process.memory().load(pc).unwrap_or(0)),
            Trap::FloatingPoint => Cause::of_floating_point(state.fcsr, pc),
        })
    }

    /// Delivers the signals that have arrived since the last safe point. Called before the next instruction when this
    /// thread's [`Attention`] flag is set.
    pub fn deliver_pending(&mut self, state: &mut State) -> Outcome {
        // Clear the flag first: signals that arrive from here on set it again.
        with_attention(Attention::clear);
        while let Some((signal, info)) = self.signals.take_next() {
            let action = self.process.dispositions.get_for_delivery(signal);
            match (action.handler, default_of(signal)) {
                (SIG_IGN, _) | (SIG_DFL, Default::Ignore) => {}
                (SIG_DFL, Default::Terminate) => return self.killed_by(signal),
                (SIG_DFL, Default::Stop) => stop(),
                _ => {
                    self.complete_interrupted_call(state, action.flags & SA_RESTART != 0);
                    if !self.enter(state, signal, info, &action, 0) {
                        let outcome = self.raise_frame_fault(state, signal);
                        if outcome != Outcome::Continue {
                            return outcome;
                        }
                    }
                }
            }
        }
        self.complete_interrupted_call(state, true);
        if self.signals.suspended.take().is_some() && self.signals.deliverable() != 0 {
            // Signals that only the temporary mask blocked become deliverable.
            with_attention(Attention::request);
        }
        self.signals.release();
        Outcome::Continue
    }

    /// The signal that [`Thread::deliver_pending`] would deliver first, for a debugger.
    pub fn next_signal(&self) -> Option<i32> {
        self.signals.next()
    }

    /// Discards an arrived signal, for a debugger.
    pub fn discard_signal(&mut self, signal: i32) {
        let _ = self.signals.take_from_set(set_of(signal));
    }

    /// Makes system calls leave an interrupting signal for the next [`Thread::deliver_pending`], which they request, so
    /// that a debugger can examine it first.
    pub fn leave_signals_pending(&mut self) {
        self.leaves_signals = true;
    }

    /// The signal that Linux would send for a trap, for a debugger; `None` for a system call.
    pub fn signal_of(&self, state: &State, trap: Trap) -> Option<i32> {
        Some(self.cause_of(state, trap)?.signal)
    }

    /// Completes a call that a signal interrupted before it had any effect: it restarts or returns EINTR.
    fn complete_interrupted_call(&mut self, state: &mut State, may_restart: bool) {
        if let Some(interrupted) = self.interrupted.take()
            && (may_restart || interrupted.always)
        {
            state.pc = state.pc.wrapping_sub(self.process.architecture().syscall_bytes());
            state.set_r(4, interrupted.a0);
            if let Some(registers) = interrupted.registers {
                state.x = registers;
            }
        }
    }

    fn killed_by(&self, signal: i32) -> Outcome {
        self.send_writes_to_parent();
        Outcome::KilledBy(signal)
    }

    /// Delivers a signal that cannot wait: enters a handler or terminates the process.
    fn force(&mut self, state: &mut State, signal: i32, info: SignalInfo, flags: u32) -> Outcome {
        let action = self.process.dispositions.get_for_delivery(signal);
        if !action.is_handler() || self.signals.mask & set_of(signal) != 0 {
            return self.killed_by(signal);
        }
        if self.enter(state, signal, info, &action, flags) {
            Outcome::Continue
        } else {
            self.raise_frame_fault(state, signal)
        }
    }

    /// Raises SIGSEGV because the frame for `signal` could not be written or read.
    pub(crate) fn raise_frame_fault(&mut self, state: &mut State, signal: i32) -> Outcome {
        if signal == libc::SIGSEGV {
            return self.killed_by(signal);
        }
        let cause = Cause::at(libc::SIGSEGV, SI_KERNEL, 0);
        self.force(state, libc::SIGSEGV, cause.info(), 0)
    }

    /// The information of a signal with the sender's id as the guest knows it.
    pub(crate) fn translate_sender(&self, mut info: SignalInfo) -> SignalInfo {
        if let Some(simulation) = self.process.simulation()
            && matches!(i32_at(&info, 8), libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL)
        {
            let sender = simulation.identities.to_guest(i32_at(&info, 16));
            info[16..20].copy_from_slice(&sender.to_le_bytes());
            if self.process.fixed_identity.is_some() {
                info[20..24].copy_from_slice(&(USER as u32).to_le_bytes());
            }
        }
        info
    }

    /// Writes the frame and enters the handler. Returns false, without any change, if the stack has no space.
    fn enter(
        &mut self,
        state: &mut State,
        signal: i32,
        info: SignalInfo,
        action: &Action,
        flags: u32,
    ) -> bool {
        let info = self.translate_sender(info);
        let signals = &mut self.signals;
        let saved = Saved { info, mask: signals.mask, stack: signals.stack, flags };
        let on_stack = action.flags & SA_ONSTACK != 0;
        let red_zone = self.process.architecture().red_zone_bytes();
        let Some(frame) = signals
            .stack
            .top_for(state.r(3).wrapping_sub(red_zone), on_stack, FRAME_BYTES as u64)
            .and_then(|top| frame::build(state, &saved, top))
        else {
            return false;
        };
        if self.process.memory().write(frame.address, &frame.bytes).is_err() {
            return false;
        }
        let itself = if action.flags & SA_NODEFER == 0 { set_of(signal) } else { 0 };
        signals.mask =
            (signals.suspended.take().unwrap_or(signals.mask) | action.mask | itself) & !UNBLOCKABLE;
        signals.stack = signals.stack.entered();
        state.pc = action.handler;
        state.set_r(1, self.process.signal_return_address());
        state.set_r(3, frame.address);
        state.set_r(4, signal as u64);
        state.set_r(5, frame.info_address());
        state.set_r(6, frame.context_address());
        state.reservation = Reservation::default();
        true
    }
}

/// Stops the process, as the default action of a stop signal does, until another process continues it.
fn stop() {
    // SAFETY: the call takes no pointers.
    unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(address: u64, access: Access, cause: FaultCause) -> (i32, i32) {
        let cause = Cause::of_memory(Fault { address, access, cause });
        (cause.signal, cause.code)
    }

    #[test]
    fn memory_faults_become_the_signals_of_a_loongarch_kernel() {
        use FaultCause::*;
        assert_eq!(memory(0, Access::Read, Unmapped), (libc::SIGSEGV, SEGV_MAPERR));
        assert_eq!(memory(0x4000, Access::Write, Forbidden), (libc::SIGSEGV, SEGV_ACCERR));
        assert_eq!(memory(0x4002, Access::Write, Misaligned), (libc::SIGBUS, BUS_ADRALN));
        assert_eq!(memory(0x4002, Access::Execute, Misaligned), (libc::SIGBUS, BUS_ADRERR));
        assert_eq!(memory(0x4000, Access::Read, BeyondFile), (libc::SIGBUS, BUS_ADRERR));
        assert_eq!(memory(0x1234_0000_0000_0000, Access::Read, Unmapped), (libc::SIGBUS, BUS_ADRERR));
        assert_eq!(memory(0xffff_ffff_ffff_f000, Access::Read, Unmapped), (libc::SIGSEGV, SEGV_MAPERR));
    }

    #[test]
    fn the_most_important_floating_point_cause_names_the_signal() {
        let code = |causes: u32| Cause::of_floating_point(Fcsr(causes << 24), 0x100).code;
        assert_eq!(code(0b10000), FPE_FLTINV);
        assert_eq!(code(0b01000), FPE_FLTDIV);
        assert_eq!(code(0b00101), FPE_FLTOVF);
        assert_eq!(code(0b00011), FPE_FLTUND);
        assert_eq!(code(0b00001), FPE_FLTRES);
        assert_eq!(code(0), FPE_FLTUNK);
    }

    #[test]
    fn a_bound_check_reports_the_violated_bound() {
        let mut state = State::default();
        state.set_r(4, 100);
        state.set_r(5, 50);
        let word = |matched: u32| matched | 4 << 5 | 5 << 10;
        let above = Cause::of_bound(&state, word(0x0001_0000));
        assert_eq!((above.address, above.bounds), (100, (0, 50)));
        let below = Cause::of_bound(&state, word(0x0001_8000));
        assert_eq!((below.address, below.bounds), (100, (50, u64::MAX)));
    }
}
