//! Handlers of the host's synchronous signals: those that accesses to guest memory and translated code cause.
//! Not the guest's handlers; a signal that another process sent goes to `reception`.
//! Source: sigaction(2), sigaltstack(2).

use std::cell::RefCell;
use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::stacks::Stack;
use super::{masks, reception};

/// Looks at a fault of this program. Gives true if it has changed `context` so that the program can resume. Runs in a signal
/// handler on an alternate stack: it must not allocate, lock or panic.
pub type Recovery = fn(signal: i32, info: &libc::siginfo_t, context: &mut libc::ucontext_t) -> bool;

const RECOVERIES: usize = 8;
static RECOVERY: [AtomicUsize; RECOVERIES] = [const { AtomicUsize::new(0) }; RECOVERIES];

/// Installs the process-wide handlers of SIGSEGV, SIGBUS, SIGFPE, SIGTRAP and SIGILL; does nothing the second time.
pub fn install() {
    static INSTALLED: Once = Once::new();
    super::shake::install();
    INSTALLED.call_once(|| {
        release_library_signals();
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGTRAP, libc::SIGILL] {
            masks::dispose(signal, masks::HostDisposition::Call(on_fault), 0);
        }
    });
}

/// Takes back the two signals that the host's C library claims when it makes its first thread: guests have uses of their own for
/// them, and this program does none of what the library wants them for (thread cancellation, setuid from many threads).
fn release_library_signals() {
    if std::thread::Builder::new().spawn(|| {}).is_ok_and(|thread| thread.join().is_ok()) {
        for signal in [32, 33] {
            masks::dispose(signal, masks::HostDisposition::Default, 0);
        }
    }
}

/// Has `recovery` asked about every fault, after those that were added earlier. The same function is added once.
///
/// # Panics
/// When more than eight are added, which is a mistake of the program.
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
    // SAFETY: errno is this thread's own.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes valid pointers to a SA_SIGINFO handler; nobody else has them.
    let (info, context) = unsafe { (&*info, &mut *context.cast::<libc::ucontext_t>()) };
    if info.si_code <= 0 {
        // Sent by somebody, not caused by an instruction.
        reception::receive(signal, info, context);
    } else if !recover(signal, info, context) {
        // A mistake of this program: the instruction runs again and the program dies as it would have without us.
        masks::dispose(signal, masks::HostDisposition::Default, 0);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

fn recover(signal: i32, info: &libc::siginfo_t, context: &mut libc::ucontext_t) -> bool {
    RECOVERY.iter().map(|slot| slot.load(Ordering::Acquire)).take_while(|&address| address != 0).any(
        |address| {
            // SAFETY: only `add_recovery` stores here, and it stores such functions.
            let recovery = unsafe { std::mem::transmute::<usize, Recovery>(address) };
            recovery(signal, info, context)
        },
    )
}

/// Gives this host thread an alternate stack for signal handlers; does nothing the second time. It goes with the thread.
pub fn prepare_thread() {
    if STACK.with_borrow(Option::is_none)
        && let Ok(stack) = SignalStack::allocate()
    {
        stack.install();
    }
}

/// Keeps the guest's signals away from this host thread. For threads that run no guest code: otherwise they would have to hand
/// on what was meant for one that does.
pub fn shield_thread() {
    masks::replace(masks::HELD);
}

thread_local! {
    static STACK: RefCell<Option<Installed>> = const { RefCell::new(None) };
}

/// Memory for the signal handlers of one host thread.
#[derive(Debug)]
pub struct SignalStack(Stack);

impl SignalStack {
    /// The kernel's frame with AVX-512 state is under 4 KiB; recoveries are small.
    const BYTES: usize = 64 << 10;

    /// Memory for a thread, which may be another than this one.
    ///
    /// # Errors
    /// The host has no memory to give.
    pub fn allocate() -> io::Result<Self> {
        Stack::allocate(Self::BYTES).map(Self)
    }

    /// From now on, signal handlers of this host thread run there; until it ends.
    pub fn install(self) {
        let usable = self.0.usable();
        let stack =
            libc::stack_t { ss_sp: usable.start as *mut libc::c_void, ss_flags: 0, ss_size: usable.len() };
        // SAFETY: the memory is this value's own, and it is kept until `drop` disables the stack.
        unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) };
        STACK.with_borrow_mut(|installed| *installed = Some(Installed(self)));
    }
}

/// The signal stack that this host thread has.
struct Installed(#[expect(dead_code, reason = "it is kept, not read")] SignalStack);

impl Drop for Installed {
    fn drop(&mut self) {
        // A signal that arrived from here on would have no stack.
        masks::replace(masks::HELD);
        let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        // SAFETY: the thread is ending; the memory is no longer anybody's stack.
        unsafe { libc::sigaltstack(&none, std::ptr::null_mut()) };
    }
}
