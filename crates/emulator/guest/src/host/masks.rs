//! The host's signal masks and dispositions for all 64 signals, including those that the C library reserves. Source:
//! rt_sigprocmask(2), rt_sigaction(2); Linux arch/x86/include/uapi/asm/signal.h.

use std::arch::global_asm;

use crate::host::host_call;

/// A set of signals; signal `n` is bit `n - 1`.
pub type SignalSet = u64;

/// The set that contains only `signal`.
pub const fn set_of(signal: i32) -> SignalSet {
    1 << (signal - 1)
}

/// Signals that guest memory accesses raise on the host. The host never blocks them; the guest's own mask is stored
/// separately.
pub const FAULTS: SignalSet = set_of(libc::SIGSEGV)
    | set_of(libc::SIGBUS)
    | set_of(libc::SIGFPE)
    | set_of(libc::SIGILL)
    | set_of(libc::SIGTRAP);

/// The signals blocked while a thread examines its pending signals.
pub const BLOCKABLE: SignalSet = !FAULTS;

const SET_BYTES: u64 = 8;

/// Replaces this host thread's mask with `mask` (without [`FAULTS`]) and returns the former mask.
pub fn replace(mask: SignalSet) -> SignalSet {
    replace_all(mask & !FAULTS)
}

/// Like [`replace`], but may also block [`FAULTS`]. Guest memory must not be accessed until the next [`replace`].
pub fn replace_all(new: SignalSet) -> SignalSet {
    let mut old = 0u64;
    // SAFETY: both pointers are valid for 8 bytes. The call cannot fail.
    let _ = unsafe {
        host_call(
            libc::SYS_rt_sigprocmask,
            [libc::SIG_SETMASK as u64, &raw const new as u64, &raw mut old as u64, SET_BYTES, 0, 0],
        )
    };
    old
}

/// This host thread's mask.
pub fn current() -> SignalSet {
    let mut old = 0u64;
    // SAFETY: the pointer is valid for 8 bytes. The call cannot fail.
    let _ = unsafe {
        host_call(
            libc::SYS_rt_sigprocmask,
            [libc::SIG_SETMASK as u64, 0, &raw mut old as u64, SET_BYTES, 0, 0],
        )
    };
    old
}

/// The host kernel's `struct sigaction`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct HostAction {
    function: u64,
    flags: u64,
    restorer: u64,
    mask: SignalSet,
}

const SA_RESTORER: u64 = 0x0400_0000;

// The C library does not expose its own restorer, and its sigaction refuses the two signals that it reserves.
global_asm!(
    ".pushsection .text.longma_signal_return,\"ax\",@progbits",
    ".globl longma_signal_return",
    ".type longma_signal_return,@function",
    "longma_signal_return:",
    "mov rax, 15",
    "syscall",
    ".size longma_signal_return, . - longma_signal_return",
    ".popsection",
);

// SAFETY: the label is in the assembly above; only the kernel jumps to it.
unsafe extern "C" {
    fn longma_signal_return();
}

/// The host's disposition of a signal.
#[derive(Clone, Copy, Debug)]
pub enum HostDisposition {
    /// SIG_DFL.
    Default,
    /// SIG_IGN.
    Ignore,
    /// Calls this handler.
    Call(unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void)),
}

/// Sets the host's disposition of `signal`. `flags` are added to the flags that all handlers have (useful:
/// SA_NOCLDSTOP, SA_NOCLDWAIT).
pub fn set_disposition(signal: i32, disposition: HostDisposition, flags: u64) {
    let mut action = HostAction {
        flags,
        restorer: longma_signal_return as *const () as u64,
        mask: BLOCKABLE,
        ..HostAction::default()
    };
    action.flags |= SA_RESTORER;
    match disposition {
        HostDisposition::Default => action.function = libc::SIG_DFL as u64,
        HostDisposition::Ignore => action.function = libc::SIG_IGN as u64,
        HostDisposition::Call(function) => {
            action.function = function as *const () as u64;
            // With SA_RESTART, the kernel sets the program counter back to `syscall`, which `calls` detects.
            action.flags |= (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART) as u64;
        }
    }
    // SAFETY: the action is valid, and its handler, if any, is async-signal-safe. The call fails only for SIGKILL and
    // SIGSTOP, whose disposition cannot change.
    let _ = unsafe {
        host_call(libc::SYS_rt_sigaction, [signal as u64, &raw const action as u64, 0, SET_BYTES, 0, 0])
    };
}

/// Whether the host ignores `signal`.
pub fn is_ignored(signal: i32) -> bool {
    let mut action = HostAction::default();
    // SAFETY: the pointer is valid for the whole structure.
    let read = unsafe {
        host_call(libc::SYS_rt_sigaction, [signal as u64, 0, &raw mut action as u64, SET_BYTES, 0, 0])
    };
    read.is_ok() && action.function == libc::SIG_IGN as u64
}

/// Whether SIGPIPE was ignored when this process started. Rust's runtime ignores it before `main`, but the guest must
/// inherit the original disposition.
pub fn sigpipe_was_ignored() -> bool {
    PIPE_IGNORED.load(std::sync::atomic::Ordering::Relaxed)
}

static PIPE_IGNORED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

extern "C" fn record_sigpipe_disposition() {
    PIPE_IGNORED.store(is_ignored(libc::SIGPIPE), std::sync::atomic::Ordering::Relaxed);
}

#[used]
// SAFETY: the section contains pointers to functions without arguments that run before `main`; this one needs no
// runtime.
#[unsafe(link_section = ".init_array")]
static REMEMBER_PIPE: extern "C" fn() = record_sigpipe_disposition;
