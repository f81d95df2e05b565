//! Handles synchronous host signals caused by guest memory accesses and translated code. Signals sent by a process go
//! to `reception`. Source: sigaction(2), sigaltstack(2).

use std::cell::RefCell;
use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::stacks::Stack;
use super::{masks, reception};

/// Examines a fault of this process. Returns true after changing `context` so that execution can resume. It runs in a
/// signal handler on an alternate stack and must not allocate, lock or panic.
pub type Recovery = fn(signal: i32, info: &libc::siginfo_t, context: &mut libc::ucontext_t) -> bool;

const RECOVERIES: usize = 8;
static RECOVERY: [AtomicUsize; RECOVERIES] = [const { AtomicUsize::new(0) }; RECOVERIES];

/// Installs the process-wide handlers of SIGSEGV, SIGBUS, SIGFPE, SIGTRAP and SIGILL. Further calls do nothing.
pub fn install() {
    static INSTALLED: Once = Once::new();
    super::schedule_fuzz::install();
    INSTALLED.call_once(|| {
        release_library_signals();
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGTRAP, libc::SIGILL] {
            masks::set_disposition(signal, masks::HostDisposition::Call(on_fault), 0);
        }
    });
}

/// Releases the two signals that the C library claims when it creates its first thread. Guests may use them, and this
/// process does not use the library features that need them (thread cancellation, setuid in a multithreaded process).
fn release_library_signals() {
    if std::thread::Builder::new().spawn(|| {}).is_ok_and(|thread| thread.join().is_ok()) {
        for signal in [32, 33] {
            masks::set_disposition(signal, masks::HostDisposition::Default, 0);
        }
    }
}

/// Registers `recovery`, which runs for each fault after the recoveries registered earlier. Registering a function
/// twice has no effect.
///
/// # Panics
/// If more than eight functions are registered.
pub fn add_recovery(recovery: Recovery) {
    let address = recovery as usize;
    for slot in &RECOVERY {
        match slot.compare_exchange(0, address, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(present) if present == address => return,
            Err(_) => {}
        }
    }
    panic!("more than {RECOVERIES} fault recoveries");
}

unsafe extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno belongs to this thread.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes valid pointers to a SA_SIGINFO handler, and no other code uses them.
    let (info, context) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    if info.si_code <= 0 {
        // Sent by a process, not caused by an instruction.
        reception::receive(signal, info, context);
    } else if !recover(signal, info, context) {
        // A bug in this process: the instruction runs again, and the default action terminates the process.
        masks::set_disposition(signal, masks::HostDisposition::Default, 0);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

fn recover(signal: i32, info: &libc::siginfo_t, context: &mut libc::ucontext_t) -> bool {
    RECOVERY.iter().map(|slot| slot.load(Ordering::Acquire)).take_while(|&address| address != 0).any(
        |address| {
            // SAFETY: only `add_recovery` stores here, and it stores functions of this type.
            let recovery = unsafe { std::mem::transmute::<usize, Recovery>(address) };
            recovery(signal, info, context)
        },
    )
}

/// Gives this host thread an alternate signal stack, which is freed with the thread. Further calls do nothing.
pub fn prepare_thread() {
    if STACK.with_borrow(Option::is_none)
        && let Ok(stack) = SignalStack::allocate()
    {
        stack.install();
    }
}

/// Blocks guest signals on this host thread. Used for threads that run no guest code, which would have to forward the
/// signals.
pub fn shield_thread() {
    masks::replace(masks::BLOCKABLE);
}

thread_local! {
    static STACK: RefCell<Option<Installed>> = const { RefCell::new(None) };
}

/// Memory for the alternate signal stack of one host thread.
#[derive(Debug)]
pub struct SignalStack(Stack);

impl SignalStack {
    /// The kernel's frame with AVX-512 state is under 4 KiB, and recoveries use little stack.
    const BYTES: usize = 64 << 10;

    /// Allocates a signal stack. Another thread may install it.
    ///
    /// # Errors
    /// The host has no memory.
    pub fn allocate() -> io::Result<Self> {
        Stack::allocate(Self::BYTES).map(Self)
    }

    /// Makes this the alternate signal stack of the calling host thread until the thread ends.
    pub fn install(self) {
        let usable = self.0.usable();
        let stack =
            libc::stack_t { ss_sp: usable.start as *mut libc::c_void, ss_flags: 0, ss_size: usable.len() };
        // SAFETY: this value owns the memory, and it lives until `drop` disables the stack.
        unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) };
        STACK.with_borrow_mut(|installed| *installed = Some(Installed(self)));
    }
}

/// The signal stack of this host thread.
struct Installed(#[expect(dead_code, reason = "dropping it would remove the signal stack")] SignalStack);

impl Drop for Installed {
    fn drop(&mut self) {
        // From here on, a signal handler would have no alternate stack.
        masks::replace(masks::BLOCKABLE);
        let disabled = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        // SAFETY: the thread is ending; after this call the memory is not a signal stack.
        unsafe { libc::sigaltstack(&disabled, std::ptr::null_mut()) };
    }
}
