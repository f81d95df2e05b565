//! A per-thread flag that asks a guest thread to stop at its next safe point. The thread then checks for pending work
//! itself.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use super::schedule_fuzz::perturb;

/// A flag. When it is set, the guest thread that owns it checks for pending work at its next safe point.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Attention(AtomicU32);

impl Attention {
    /// A cleared flag.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Sets the flag. Async-signal-safe.
    pub fn request(&self) {
        self.0.store(1, Ordering::SeqCst);
    }

    /// Clears the flag. The caller must check for pending work afterwards.
    pub fn clear(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    /// Clears the flag and returns whether it was set. A request is either returned or still set afterwards.
    pub fn take(&self) -> bool {
        self.0.swap(0, Ordering::SeqCst) != 0
    }

    /// Whether the flag is set.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

thread_local! {
    static OWN: Attention = const { Attention::new() };
    static REGISTERED: Cell<*const Attention> = const { Cell::new(std::ptr::null()) };
    static SUPPRESSED: Cell<bool> = const { Cell::new(false) };
}

/// Calls `act`, which may invalidate code, on a thread that is about to make a system call. During `act`, invalidation
/// does not set the flag of this thread: the thread sees the changes before it runs guest code again. Setting the flag
/// would interrupt the call, the restarted call would invalidate the code again, and the thread could livelock while
/// other threads execute that code.
pub fn suppress_own_attention<R>(act: impl FnOnce() -> R) -> R {
    let was_suppressed = SUPPRESSED.replace(true);
    let result = act();
    SUPPRESSED.set(was_suppressed);
    result
}

/// Whether `flag` belongs to this host thread and the thread is inside [`suppress_own_attention`].
pub fn is_own_attention_suppressed(flag: *const Attention) -> bool {
    SUPPRESSED.get() && REGISTERED.get() == flag
}

/// Registers `flag` as the flag that signals on this host thread set. A request that is already pending moves to the
/// new flag. With a null pointer, and before the first registration, the host thread uses a built-in flag, see
/// [`with_attention`].
///
/// # Safety
/// `flag` is null or stays valid until this host thread ends or registers another flag.
pub unsafe fn register_attention(flag: *const Attention) {
    let previous = REGISTERED.get();
    // The order matters: a signal in between sets either the former flag, which is read below, or the new one.
    REGISTERED.set(flag);
    perturb();
    let take = |previous: &Attention| previous.0.swap(0, Ordering::SeqCst) != 0;
    let requested = if previous.is_null() {
        OWN.with(take)
    } else {
        // SAFETY: the former flag was registered and stays valid until this call returns.
        take(unsafe { &*previous })
    };
    if requested {
        with_attention(Attention::request);
    }
}

/// Calls `f` with the flag of this host thread.
pub fn with_attention<R>(f: impl FnOnce(&Attention) -> R) -> R {
    let registered = REGISTERED.get();
    if registered.is_null() {
        OWN.with(f)
    } else {
        // SAFETY: `register_attention` requires that the flag is valid while it is registered.
        f(unsafe { &*registered })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use super::*;

    static HANDLED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn on_signal(_: i32) {
        HANDLED.fetch_add(1, Ordering::Relaxed);
        with_attention(Attention::request);
    }

    #[test]
    fn a_signal_that_arrives_during_registration_sets_the_flag() {
        const SIGNALS: u32 = 20_000;
        const TIMEOUT: Duration = Duration::from_secs(20);
        static DONE: AtomicBool = AtomicBool::new(false);
        // SAFETY: the handler is async-signal-safe.
        unsafe { libc::signal(libc::SIGURG, on_signal as *const () as libc::sighandler_t) };
        // SAFETY: the function takes no arguments.
        let target = unsafe { libc::pthread_self() };
        let sender = std::thread::spawn(move || {
            while !DONE.load(Ordering::Relaxed) {
                // SAFETY: the target thread joins this one, so it is alive.
                unsafe { libc::pthread_kill(target, libc::SIGURG) };
            }
        });
        let flags = [Attention::new(), Attention::new()];
        let (mut lost, mut round, started) = (0, 0usize, Instant::now());
        while HANDLED.load(Ordering::Relaxed) < SIGNALS
            && (!round.is_multiple_of(1024) || started.elapsed() < TIMEOUT)
        {
            round += 1;
            let handled_before = HANDLED.load(Ordering::Relaxed);
            // SAFETY: the flags outlive the loop, and the last registration is undone below.
            unsafe { register_attention(&raw const flags[round % 2]) };
            let was_handled = HANDLED.load(Ordering::Relaxed) != handled_before;
            lost += usize::from(was_handled && !with_attention(Attention::is_requested));
            with_attention(Attention::clear);
        }
        DONE.store(true, Ordering::Relaxed);
        sender.join().unwrap();
        // SAFETY: null is always valid.
        unsafe { register_attention(std::ptr::null()) };
        assert_eq!(lost, 0);
    }
}
