//! Stores signals for which the guest has a handler until the guest thread reaches its next safe point. Arrival sets
//! the thread's attention flag. Source: signal-safety(7); Linux kernel/signal.c (a blocked signal stays pending in the
//! kernel).

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicU64, Ordering};

use super::attention::{Attention, with_attention};
use super::calls;
use super::masks::{BLOCKABLE, FAULTS, SignalSet, set_of};
use crate::Errno;
use crate::host::host_call;

/// The bytes of a `siginfo_t`, whose layout is the same on LoongArch and on the host.
pub type SignalInfo = [u8; 128];

/// The signals that have arrived on one host thread and await delivery.
///
/// There is one slot for each signal. After the first arrival, the host mask keeps further signals pending in the
/// kernel. The synchronous signals cannot be blocked; Linux too queues only one of each.
pub struct Reception {
    arrived: AtomicU64,
    info: UnsafeCell<[SignalInfo; 64]>,
}

// SAFETY: only the host thread on which the reception is registered and its signal handlers access `info`. `arrived`
// orders the two: a slot is written while its bit is clear and read while it is set.
unsafe impl Sync for Reception {}
// SAFETY: as above; it contains plain bytes.
unsafe impl Send for Reception {}

impl Default for Reception {
    fn default() -> Self {
        Self { arrived: AtomicU64::new(0), info: UnsafeCell::new([[0; 128]; 64]) }
    }
}

impl Reception {
    /// The set of signals that have arrived.
    pub fn arrived(&self) -> SignalSet {
        self.arrived.load(Ordering::SeqCst)
    }

    /// Removes and returns `signal`, if it has arrived.
    pub fn take(&self, signal: i32) -> Option<SignalInfo> {
        if self.arrived() & set_of(signal) == 0 {
            return None;
        }
        // SAFETY: the bit is set, so no handler writes this slot, and the caller is the thread on which it is
        // registered.
        let mut info = unsafe { (*self.info.get())[signal as usize - 1] };
        decode_sent_code(&mut info);
        self.arrived.fetch_and(!set_of(signal), Ordering::SeqCst);
        Some(info)
    }

    fn put(&self, signal: i32, info: &libc::siginfo_t) {
        if self.arrived() & set_of(signal) != 0 {
            return;
        }
        // SAFETY: the bit is clear, so the thread does not read this slot, and handlers of one signal do not nest; a
        // siginfo_t has 128 bytes.
        unsafe {
            (*self.info.get())[signal as usize - 1] = *std::ptr::from_ref(info).cast::<SignalInfo>();
        }
        self.arrived.fetch_or(set_of(signal), Ordering::SeqCst);
    }
}

/// The position of `si_code` in a `siginfo_t`.
const CODE: std::ops::Range<usize> = 8..12;
/// Positive codes below this claim that an instruction or the kernel raised the signal.
const MAX_FAULT_CODE: i32 = 0x1_0000;
/// Subtracted from such a code; the result is a negative value that the kernel does not use.
const SENT_CODE_OFFSET: i32 = 0x4c4d_0000;

fn code_of(info: &SignalInfo) -> i32 {
    crate::words::i32_at(info, CODE.start)
}

/// Rewrites the positive code of a signal that the guest sends, so that the host's handlers treat it as sent rather
/// than as a fault.
///
/// # Errors
/// EPERM for a code above the range of fault codes.
pub fn encode_sent_code(info: &mut SignalInfo) -> Result<(), Errno> {
    match code_of(info) {
        ..=0 => Ok(()),
        code @ 1..MAX_FAULT_CODE => {
            info[CODE].copy_from_slice(&(code - SENT_CODE_OFFSET).to_le_bytes());
            Ok(())
        }
        _ => Err(Errno(libc::EPERM)),
    }
}

/// Undoes [`encode_sent_code`]. Other signals are unchanged.
fn decode_sent_code(info: &mut SignalInfo) {
    let code = code_of(info).wrapping_add(SENT_CODE_OFFSET);
    if (1..MAX_FAULT_CODE).contains(&code) {
        info[CODE].copy_from_slice(&code.to_le_bytes());
    }
}

impl std::fmt::Debug for Reception {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reception({:#x})", self.arrived())
    }
}

thread_local! {
    static REGISTERED: Cell<*const Reception> = const { Cell::new(std::ptr::null()) };
}

/// Registers the reception for signals that arrive on this host thread. With a null pointer, arriving signals are
/// forwarded to other threads.
///
/// # Safety
/// The pointer is null or stays valid until this host thread ends or registers another reception.
pub unsafe fn register(reception: *const Reception) {
    REGISTERED.set(reception);
}

/// The reception registered on this host thread, for comparison only.
pub fn registered() -> *const Reception {
    REGISTERED.get()
}

/// The signals that have arrived on this host thread; empty if no reception is registered.
pub fn arrived_here() -> SignalSet {
    let reception = REGISTERED.get();
    if reception.is_null() {
        return 0;
    }
    // SAFETY: `register` requires that the reception is valid while it is registered.
    unsafe { &*reception }.arrived()
}

/// The host handler of signals for which the guest has a handler.
///
/// # Safety
/// Only the kernel may call it, as a SA_SIGINFO handler.
pub unsafe extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno belongs to this thread.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes valid pointers to a SA_SIGINFO handler, and no other code uses them.
    let (info, context) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    receive(signal, info, context);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Records a signal, sets the thread's attention flag, and blocks all further signals after the handler returns, until
/// the thread has examined its signals.
pub fn receive(signal: i32, info: &libc::siginfo_t, context: &mut libc::ucontext_t) {
    // SAFETY: the kernel's mask is the first 8 bytes of the field.
    unsafe { (&raw mut context.uc_sigmask).cast::<SignalSet>().write(BLOCKABLE) };
    let reception = REGISTERED.get();
    if reception.is_null() {
        // SAFETY: a siginfo_t has 128 bytes.
        return forward(signal, unsafe { &*std::ptr::from_ref(info).cast::<SignalInfo>() });
    }
    // SAFETY: `register` requires that the reception is valid while it is registered.
    unsafe { &*reception }.put(signal, info);
    with_attention(Attention::request);
    let pc = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    if let Some(interrupted) = calls::interrupted_at(*pc as u64) {
        *pc = interrupted as i64;
    }
}

/// Returns an arrived signal to the kernel, as a signal to this host thread, which has it blocked. The kernel keeps it
/// across execve.
pub fn requeue(signal: i32, info: &mut SignalInfo) {
    if set_of(signal) & FAULTS != 0 {
        // Otherwise the emulator that starts after execve would mistake the signal for a fault of its own.
        let _ = encode_sent_code(info);
    }
    // SAFETY: the call takes no pointers. It cannot fail.
    let thread = unsafe { host_call(libc::SYS_gettid, [0; 6]) }.unwrap_or(0);
    let queued = [u64::from(std::process::id()), thread, signal as u64, info.as_ptr() as u64, 0, 0];
    // SAFETY: the pointer is valid. A thread may send itself any code. If the queue is full, the signal is sent without
    // its information.
    if unsafe { host_call(libc::SYS_rt_tgsigqueueinfo, queued) }.is_err() {
        // SAFETY: the call takes no pointers.
        let _ = unsafe { host_call(libc::SYS_tgkill, [queued[0], thread, signal as u64, 0, 0, 0]) };
    }
}

/// Sends a signal to the process again, because this host thread runs no guest thread or is about to stop running one.
/// A signal directed at this thread alone is dropped. The thread must have its signals blocked from now on.
pub fn forward(signal: i32, info: &SignalInfo) {
    if set_of(signal) & BLOCKABLE == 0 || code_of(info) == libc::SI_TKILL {
        // A signal that cannot be blocked here would return to this thread endlessly.
        return;
    }
    let process = u64::from(std::process::id());
    let queued = [process, signal as u64, info.as_ptr() as u64, 0, 0, 0];
    // SAFETY: the pointer is valid. A thread may send any code to its own process, except that only the main thread may
    // send codes that are reserved for the kernel.
    if unsafe { host_call(libc::SYS_rt_sigqueueinfo, queued) } == Err(Errno(libc::EPERM)) {
        // SAFETY: the call takes no pointers.
        let _ = unsafe { host_call(libc::SYS_kill, [process, signal as u64, 0, 0, 0, 0]) };
    }
}
