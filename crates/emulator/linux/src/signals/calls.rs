//! System calls on signals. signalfd is in `events`. Source: sigaction(2), sigprocmask(2), sigsuspend(2),
//! sigtimedwait(2), sigaltstack(2), kill(2), pidfd_send_signal(2).

use std::os::fd::RawFd;

use longma_guest::Errno;
use longma_guest::host::attention::{Attention, with_attention};
use longma_guest::host::host_call;
use longma_guest::host::masks::{FAULTS, SignalSet, set_of};
use longma_guest::host::pinned_file::PinnedFile;
use longma_guest::host::reception::{self, SignalInfo};
use longma_guest::host_address;
use longma_loongarch::State;

use crate::arguments::{Arguments, EINVAL, Returned, buffer};
use crate::process::dispositions::{Action, SIGNALS, UNBLOCKABLE};
use crate::process::{AlternateStack, Completion, host_id};
use crate::signals::frame;
use crate::simulated::waits::{BlockingCondition, interruptible};
use crate::{Outcome, Thread, open_files};

const SET_BYTES: u64 = 8;

fn check_set_size(size: u64) -> Result<(), Errno> {
    if size == SET_BYTES { Ok(()) } else { Err(EINVAL) }
}

impl Thread {
    /// Holds signals while their state changes. If signals have already arrived, the call restarts after their
    /// delivery.
    pub(crate) fn hold_signals(&self) -> Result<(), Errno> {
        if self.signals.hold() {
            return Ok(());
        }
        with_attention(Attention::request);
        Err(Errno::RESTART_ALWAYS)
    }

    /// Releases the signals.
    fn release_signals(&self) {
        self.signals.release();
        if self.signals.deliverable() != 0 {
            with_attention(Attention::request);
        }
    }

    /// Makes a call that waits with another signal mask; `None` means the thread's own mask. `call` gets the mask for
    /// the host.
    pub(crate) fn with_mask(
        &mut self,
        mask: Option<SignalSet>,
        call: impl FnOnce(&mut Self, Option<SignalSet>) -> Returned,
    ) -> Returned {
        let Some(mask) = mask.map(|mask| mask & !UNBLOCKABLE) else { return call(self, None) };
        self.signals.suspended = Some(mask);
        if self.signals.deliverable() != 0 {
            with_attention(Attention::request);
            return Err(Errno(libc::EINTR));
        }
        let returned = call(self, Some(mask & !FAULTS));
        if returned == Err(Errno(libc::EINTR)) {
            // A process that is stopped and continued also gets EINTR, without a signal. The temporary mask must be
            // removed in that case too.
            with_attention(Attention::request);
        } else {
            self.signals.suspended = None;
        }
        returned
    }

    /// Reads the signal set at `address`; `None` for a null pointer.
    pub(crate) fn read_mask(&self, address: u64, size: u64) -> Result<Option<SignalSet>, Errno> {
        if address == 0 {
            return Ok(None);
        }
        check_set_size(size)?;
        Ok(Some(SignalSet::from_le_bytes(self.process.memory().read_array(address)?)))
    }
}

pub(crate) fn rt_sigaction(thread: &mut Thread, [signal, new, old, size, ..]: Arguments) -> Returned {
    check_set_size(size)?;
    let signal =
        i32::try_from(signal as u32).ok().filter(|signal| (1..=SIGNALS).contains(signal)).ok_or(EINVAL)?;
    let memory = thread.process.memory();
    let Some(action) = memory.read_optional(new)?.map(Action::from_bytes) else {
        memory.write_optional(old, &thread.process.dispositions.get(signal).to_bytes())?;
        return Ok(0);
    };
    if set_of(signal) & UNBLOCKABLE != 0 {
        return Err(EINVAL);
    }
    thread.hold_signals()?;
    let previous = thread.process.dispositions.set(signal, action);
    thread.release_signals();
    thread.process.memory().write_optional(old, &previous.to_bytes())?;
    Ok(0)
}

pub(crate) fn rt_sigprocmask(thread: &mut Thread, [how, new, old, size, ..]: Arguments) -> Returned {
    check_set_size(size)?;
    let previous = thread.signals.mask;
    if let Some(set) = thread.read_mask(new, size)? {
        let mask = match how as i32 {
            libc::SIG_BLOCK => previous | set,
            libc::SIG_UNBLOCK => previous & !set,
            libc::SIG_SETMASK => set,
            _ => return Err(EINVAL),
        } & !UNBLOCKABLE;
        if mask != previous {
            thread.hold_signals()?;
            thread.signals.mask = mask;
            thread.release_signals();
        }
    }
    thread.process.memory().write_optional(old, &previous.to_le_bytes())?;
    Ok(0)
}

pub(crate) fn rt_sigpending(thread: &mut Thread, [set, size, ..]: Arguments) -> Returned {
    if size > SET_BYTES {
        return Err(EINVAL);
    }
    let mut pending: SignalSet = 0;
    // SAFETY: the pointer is valid for 8 bytes.
    unsafe { host_call(libc::SYS_rt_sigpending, [&raw mut pending as u64, SET_BYTES, 0, 0, 0, 0]) }?;
    pending |= thread.signals.arrived();
    pending &= thread.signals.mask;
    thread.process.memory().write(set, &pending.to_le_bytes()[..size as usize])?;
    Ok(0)
}

/// Reads the information of a signal to send. A thread may send itself a signal with the code of a fault. The host's
/// handlers would treat it as a fault, so its code is encoded.
fn info_to_send(thread: &Thread, signal: u64, info: u64) -> Result<SignalInfo, Errno> {
    let mut info: SignalInfo = thread.process.memory().read_array(info)?;
    if (1..=SIGNALS).contains(&(signal as i32)) && set_of(signal as i32) & FAULTS != 0 {
        reception::encode_sent_code(&mut info)?;
    }
    Ok(info)
}

/// Sends thread `id` a signal with the guest's `info`. Codes that are reserved for the kernel can be sent only to the
/// calling thread itself.
fn with_info(
    thread: &Thread,
    id: u64,
    signal: u64,
    info: u64,
    call: impl FnOnce(u64) -> Returned,
) -> Returned {
    if id as i32 == host_id() {
        let info = info_to_send(thread, signal, info)?;
        return call(info.as_ptr() as u64);
    }
    call(buffer(thread.process.memory(), info, size_of::<SignalInfo>() as u64)?)
}

/// Whether a pidfd refers to the process whose main thread is the calling thread.
fn is_own_process(descriptor: &PinnedFile) -> bool {
    let facts = open_files::facts(descriptor.number()).unwrap_or_default();
    open_files::fact(&facts, "Pid").and_then(|process| process.parse().ok()) == Some(host_id())
}

pub(crate) fn rt_sigqueueinfo(thread: &mut Thread, [process, signal, info, ..]: Arguments) -> Returned {
    with_info(thread, process, signal, info, |info| {
        // SAFETY: the structure is live or in the reservation.
        unsafe { host_call(libc::SYS_rt_sigqueueinfo, [process, signal, info, 0, 0, 0]) }
    })
}

pub(crate) fn rt_tgsigqueueinfo(
    thread: &mut Thread,
    [process, target, signal, info, ..]: Arguments,
) -> Returned {
    with_info(thread, target, signal, info, |info| {
        // SAFETY: the structure is live or in the reservation.
        unsafe { host_call(libc::SYS_rt_tgsigqueueinfo, [process, target, signal, info, 0, 0]) }
    })
}

pub(crate) fn pidfd_send_signal(
    thread: &mut Thread,
    [descriptor, signal, info, flags, ..]: Arguments,
) -> Returned {
    if info == 0 {
        // SAFETY: the call takes no pointers.
        return unsafe { host_call(libc::SYS_pidfd_send_signal, [descriptor, signal, 0, flags, 0, 0]) };
    }
    // An error for a closed descriptor is reported after the flags are checked.
    let target = PinnedFile::of(descriptor as RawFd).ok();
    let info: Option<SignalInfo> = Some(match &target {
        Some(target) if is_own_process(target) => info_to_send(thread, signal, info)?,
        _ => thread.process.memory().read_array(info)?,
    });
    let target = target.as_ref().map_or(-1, PinnedFile::number);
    // SAFETY: the pointer is null or to a live structure.
    unsafe {
        let arguments = [target as u64, signal, host_address(&info), flags, 0, 0];
        host_call(libc::SYS_pidfd_send_signal, arguments)
    }
}

pub(crate) fn rt_sigsuspend(thread: &mut Thread, [set, size, ..]: Arguments) -> Returned {
    check_set_size(size)?;
    let mask = thread.read_mask(set, size)?.ok_or(Errno(libc::EFAULT))?;
    thread.with_mask(Some(mask), |_, mask| {
        let mask = mask.unwrap_or(0);
        let arguments = [&raw const mask as u64, SET_BYTES, 0, 0, 0, 0];
        // SAFETY: the pointer is valid for 8 bytes.
        unsafe { interruptible(libc::SYS_rt_sigsuspend, BlockingCondition::Signals, arguments) }
    })
}

pub(crate) fn rt_sigtimedwait(thread: &mut Thread, arguments: Arguments) -> Returned {
    let [set, info, timeout, size, ..] = arguments;
    check_set_size(size)?;
    let memory = thread.process.memory();
    let set = SignalSet::from_le_bytes(memory.read_array(set)?) & !UNBLOCKABLE;
    let timeout = memory.read_optional::<16>(timeout)?;
    if let Some((signal, arrived)) = thread.signals.take_from_set(set) {
        memory.write_optional(info, &thread.translate_sender(arrived))?;
        return Ok(signal as u64);
    }
    let mut info_bytes = [0u8; 128];
    let arguments =
        [&raw const set as u64, info_bytes.as_mut_ptr() as u64, host_address(&timeout), SET_BYTES, 0, 0];
    // SAFETY: the pointers are valid: 8 bytes, a siginfo_t, a timespec or null.
    let signal = unsafe { interruptible(libc::SYS_rt_sigtimedwait, BlockingCondition::Signals, arguments) }?;
    memory.write_optional(info, &thread.translate_sender(info_bytes))?;
    Ok(signal)
}

pub(crate) fn sigaltstack(
    thread: &mut Thread,
    state: &mut State,
    [new, old, ..]: Arguments,
) -> Result<Completion, Errno> {
    let memory = thread.process.memory();
    let previous = thread.signals.stack.reported_at(state.r(3));
    if let Some(stack) = memory.read_optional(new)?.map(AlternateStack::from_bytes) {
        thread.signals.stack.replace(stack, state.r(3))?;
    }
    memory.write_optional(old, &previous.to_bytes())?;
    Ok(Completion::Value(0))
}

/// Returns from a handler: restores the thread's state from the frame at its stack pointer.
pub(crate) fn rt_sigreturn(
    thread: &mut Thread,
    state: &mut State,
    _: Arguments,
) -> Result<Completion, Errno> {
    let memory = thread.process.memory();
    let read = |address, bytes: &mut [u8]| memory.read(address, bytes).map_err(Errno::from);
    let Ok(restored) = frame::restore(state, state.r(3), Errno(libc::EFAULT), read) else {
        return Ok(Completion::RegistersSet(thread.raise_frame_fault(state, 0)));
    };
    // Signals that arrived under the handler's mask and are now blocked stay here until they are unblocked.
    let signals = &mut thread.signals;
    signals.mask = restored.mask & !UNBLOCKABLE;
    *state = restored.state;
    // As in the kernel, an invalid stack is not an error here.
    let _ = signals.stack.replace(restored.stack, state.r(3));
    thread.release_signals();
    Ok(Completion::RegistersSet(Outcome::Continue))
}

/// The guest never sees the kernel's own restarts, so there is nothing to resume.
pub(crate) fn restart_syscall(_: &mut Thread, _: Arguments) -> Returned {
    Err(Errno(libc::EINTR))
}
