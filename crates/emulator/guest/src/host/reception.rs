//! Where host signal handlers put the signals that the guest wants to handle.
//! Not their delivery: the thread does that at its next safe point, which looks when its attention is asked for.
//! Source: signal-safety(7); Linux kernel/signal.c (a blocked signal stays with the kernel).

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicU64, Ordering};

use super::attention::{Attention, with_attention};
use super::calls;
use super::masks::{FAULTS, HELD, SignalSet, set_of};
use crate::Errno;
use crate::host::host_call;

/// The bytes of a `siginfo_t`, the same on LoongArch and on the host.
pub type SignalInfo = [u8; 128];

/// The signals that have reached one host thread and are not delivered yet.
///
/// There is one place a signal: after the first, the host's mask keeps further ones in the kernel, except the synchronous ones,
/// of which Linux too keeps one.
pub struct Reception {
    arrived: AtomicU64,
    info: UnsafeCell<[SignalInfo; 64]>,
}

// SAFETY: `info` is only touched by the host thread that the reception is registered on and by its signal handlers; `arrived`
// orders the two (a place is written while its bit is clear and read while it is set).
unsafe impl Sync for Reception {}
// SAFETY: as above; it holds plain bytes.
unsafe impl Send for Reception {}

impl Default for Reception {
    fn default() -> Self {
        Self { arrived: AtomicU64::new(0), info: UnsafeCell::new([[0; 128]; 64]) }
    }
}

impl Reception {
    /// The signals here.
    pub fn arrived(&self) -> SignalSet {
        self.arrived.load(Ordering::SeqCst)
    }

    /// Takes `signal` out, if it is here.
    pub fn take(&self, signal: i32) -> Option<SignalInfo> {
        if self.arrived() & set_of(signal) == 0 {
            return None;
        }
        // SAFETY: the bit is set, so no handler writes this place, and this is the thread it is registered on.
        let mut info = unsafe { (*self.info.get())[signal as usize - 1] };
        reveal(&mut info);
        self.arrived.fetch_and(!set_of(signal), Ordering::SeqCst);
        Some(info)
    }

    fn put(&self, signal: i32, info: &libc::siginfo_t) {
        if self.arrived() & set_of(signal) != 0 {
            return;
        }
        // SAFETY: the bit is clear, so the thread does not read this place, and its handlers do not nest for one signal;
        // a siginfo_t has 128 bytes.
        unsafe {
            (*self.info.get())[signal as usize - 1] = *std::ptr::from_ref(info).cast::<SignalInfo>();
        }
        self.arrived.fetch_or(set_of(signal), Ordering::SeqCst);
    }
}

/// Where `si_code` is in a `siginfo_t`.
const CODE: std::ops::Range<usize> = 8..12;
/// Codes that claim that an instruction or the kernel caused a signal are below this.
const MOST_CLAIMED: i32 = 0x1_0000;
/// What is taken from such a code, which leads to where the kernel has none.
const DISGUISE: i32 = 0x4c4d_0000;

fn code_of(info: &SignalInfo) -> i32 {
    crate::words::i32_at(info, CODE.start)
}

/// Makes of a signal that claims to come from an instruction one that the host's handlers take as sent.
///
/// # Errors
/// EPERM for a code that nothing has.
pub fn disguise(info: &mut SignalInfo) -> Result<(), Errno> {
    match code_of(info) {
        ..=0 => Ok(()),
        code @ 1..MOST_CLAIMED => {
            info[CODE].copy_from_slice(&(code - DISGUISE).to_le_bytes());
            Ok(())
        }
        _ => Err(Errno(libc::EPERM)),
    }
}

/// The opposite of [`disguise`]; nothing for other signals.
fn reveal(info: &mut SignalInfo) {
    let code = code_of(info).wrapping_add(DISGUISE);
    if (1..MOST_CLAIMED).contains(&code) {
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

/// Makes `reception` the place for signals that arrive on this host thread; null: nobody wants them here.
///
/// # Safety
/// It is null or stays valid until this host thread registers another or ends.
pub unsafe fn register(reception: *const Reception) {
    REGISTERED.set(reception);
}

/// The reception registered on this host thread, for comparison only.
pub fn registered() -> *const Reception {
    REGISTERED.get()
}

/// The signals that have arrived on this host thread; none if no reception is registered.
pub fn arrived_here() -> SignalSet {
    let reception = REGISTERED.get();
    if reception.is_null() {
        return 0;
    }
    // SAFETY: `register` demands that it is valid while it is registered.
    unsafe { &*reception }.arrived()
}

/// The handler of signals that the guest handles.
///
/// # Safety
/// The kernel calls it, as a SA_SIGINFO handler.
pub unsafe extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno is this thread's own.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes valid pointers to a SA_SIGINFO handler; nobody else has them.
    let (info, context) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    receive(signal, info, context);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Notes a signal, blocks all others from when the handler returns until the thread has looked, and makes it look.
pub fn receive(signal: i32, info: &libc::siginfo_t, context: &mut libc::ucontext_t) {
    // SAFETY: the kernel's mask is the first 8 bytes of the field.
    unsafe { (&raw mut context.uc_sigmask).cast::<SignalSet>().write(HELD) };
    let reception = REGISTERED.get();
    if reception.is_null() {
        // SAFETY: a siginfo_t has 128 bytes.
        return hand_on(signal, unsafe { &*std::ptr::from_ref(info).cast::<SignalInfo>() });
    }
    // SAFETY: `register` demands that it is valid while it is registered.
    unsafe { &*reception }.put(signal, info);
    with_attention(Attention::request);
    let pc = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    if let Some(interrupted) = calls::interrupted_at(*pc as u64) {
        *pc = interrupted as i64;
    }
}

/// Sends this host thread, which has it blocked, a signal again that has arrived: so the kernel has it, and keeps it over execve.
pub fn send_back(signal: i32, info: &mut SignalInfo) {
    if set_of(signal) & FAULTS != 0 {
        // An emulator that is started anew would take it for a fault of its own.
        let _ = disguise(info);
    }
    // SAFETY: no pointers. It cannot fail.
    let thread = unsafe { host_call(libc::SYS_gettid, [0; 6]) }.unwrap_or(0);
    let queued = [u64::from(std::process::id()), thread, signal as u64, info.as_ptr() as u64, 0, 0];
    // SAFETY: the pointer is valid. To itself a thread may send what it likes; without room for what comes along, the number must do.
    if unsafe { host_call(libc::SYS_rt_tgsigqueueinfo, queued) }.is_err() {
        // SAFETY: no pointers.
        let _ = unsafe { host_call(libc::SYS_tgkill, [queued[0], thread, signal as u64, 0, 0, 0]) };
    }
}

/// This host thread runs no guest thread, or not for long: another one of the process is to have the signal, unless it was for this one
/// alone. The thread must take none from now on.
pub fn hand_on(signal: i32, info: &SignalInfo) {
    if set_of(signal) & HELD == 0 || code_of(info) == libc::SI_TKILL {
        // One that cannot be blocked here would come back for ever.
        return;
    }
    let process = u64::from(std::process::id());
    let queued = [process, signal as u64, info.as_ptr() as u64, 0, 0, 0];
    // SAFETY: the pointer is valid. To its own process a thread may send what it likes, but for what only the kernel says, which is the
    // first thread's alone to send.
    if unsafe { host_call(libc::SYS_rt_sigqueueinfo, queued) } == Err(Errno(libc::EPERM)) {
        // SAFETY: no pointers.
        let _ = unsafe { host_call(libc::SYS_kill, [process, signal as u64, 0, 0, 0, 0]) };
    }
}
