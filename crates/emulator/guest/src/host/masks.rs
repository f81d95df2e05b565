//! The signal mask and the dispositions of the host, 64 signals wide, the C library's private ones included.
//! Not the guest's: a kernel's signals are mirrored here.
//! Source: rt_sigprocmask(2), rt_sigaction(2); Linux arch/x86/include/uapi/asm/signal.h.

use std::arch::global_asm;

use crate::host::host_call;

/// A set of signals; signal `n` is bit `n - 1`.
pub type SignalSet = u64;

/// The set of one signal.
pub const fn set_of(signal: i32) -> SignalSet {
    1 << (signal - 1)
}

/// Signals that the host must be able to raise at any time, because guest accesses to memory cause them. They are never blocked
/// on the host; the guest's wish is kept beside.
pub const FAULTS: SignalSet = set_of(libc::SIGSEGV)
    | set_of(libc::SIGBUS)
    | set_of(libc::SIGFPE)
    | set_of(libc::SIGILL)
    | set_of(libc::SIGTRAP);

/// What is blocked while a thread looks at its signals.
pub const HELD: SignalSet = !FAULTS;

const SET_BYTES: u64 = 8;

/// Replaces this host thread's mask by `mask` (without [`FAULTS`]) and gives the former one.
pub fn replace(mask: SignalSet) -> SignalSet {
    replace_all(mask & !FAULTS)
}

/// As [`replace`], [`FAULTS`] included: until the next [`replace`], no memory of the guest's may be touched.
pub fn replace_all(new: SignalSet) -> SignalSet {
    let mut old = 0u64;
    // SAFETY: both pointers are valid for 8 bytes. It cannot fail.
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
    // SAFETY: the pointer is valid for 8 bytes. It cannot fail.
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

// The C library keeps its own to itself, and refuses actions for the two signals it uses.
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

// SAFETY: the label of the assembly above; only the kernel ever goes there.
unsafe extern "C" {
    fn longma_signal_return();
}

/// What the host does with a signal.
#[derive(Clone, Copy, Debug)]
pub enum HostDisposition {
    /// SIG_DFL.
    Default,
    /// SIG_IGN.
    Ignore,
    /// Calls the function.
    Call(unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void)),
}

/// Sets what the host does with `signal`; `flags` are added to those every handler has (of use: SA_NOCLDSTOP, SA_NOCLDWAIT).
pub fn dispose(signal: i32, disposition: HostDisposition, flags: u64) {
    let mut action = HostAction {
        flags,
        restorer: longma_signal_return as *const () as u64,
        mask: HELD,
        ..HostAction::default()
    };
    action.flags |= SA_RESTORER;
    match disposition {
        HostDisposition::Default => action.function = libc::SIG_DFL as u64,
        HostDisposition::Ignore => action.function = libc::SIG_IGN as u64,
        HostDisposition::Call(function) => {
            action.function = function as *const () as u64;
            // SA_RESTART: so that a call that could be restarted is seen before its `syscall` again, see `calls`.
            action.flags |= (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART) as u64;
        }
    }
    // SAFETY: the action is valid, and its function, if any, is async-signal-safe. It fails for SIGKILL and SIGSTOP only, whose
    // disposition is then what it always is.
    let _ = unsafe {
        host_call(libc::SYS_rt_sigaction, [signal as u64, &raw const action as u64, 0, SET_BYTES, 0, 0])
    };
}

/// True if the host ignores `signal`.
pub fn is_ignored(signal: i32) -> bool {
    let mut action = HostAction::default();
    // SAFETY: the pointer is valid for the whole structure.
    let read = unsafe {
        host_call(libc::SYS_rt_sigaction, [signal as u64, 0, &raw mut action as u64, SET_BYTES, 0, 0])
    };
    read.is_ok() && action.function == libc::SIG_IGN as u64
}

/// Whether SIGPIPE was ignored when this program was started. Rust's runtime ignores it before `main`, and a guest must inherit
/// what the starter wanted.
pub fn pipe_was_ignored() -> bool {
    PIPE_IGNORED.load(std::sync::atomic::Ordering::Relaxed)
}

static PIPE_IGNORED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

extern "C" fn remember_pipe() {
    PIPE_IGNORED.store(is_ignored(libc::SIGPIPE), std::sync::atomic::Ordering::Relaxed);
}

#[used]
// SAFETY: the section holds pointers to functions without arguments that run before `main`; this one needs no runtime.
#[unsafe(link_section = ".init_array")]
static REMEMBER_PIPE: extern "C" fn() = remember_pipe;
