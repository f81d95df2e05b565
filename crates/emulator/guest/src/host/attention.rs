//! A flag that asks a guest thread to stop at its next safe point.
//! Not a queue: what there is to do, the thread finds out itself.
//! The boundary is our own.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use super::shake::shake;

/// Nonzero asks the guest thread that owns it to look, at its next safe point, at what has arrived for it.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Attention(AtomicU32);

impl Attention {
    /// A flag that asks for nothing.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Asks. Async-signal-safe.
    pub fn request(&self) {
        self.0.store(1, Ordering::SeqCst);
    }

    /// Takes the request back; what was asked for must be looked at afterwards.
    pub fn clear(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    /// True if something asks.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

thread_local! {
    static OWN: Attention = const { Attention::new() };
    static REGISTERED: Cell<*const Attention> = const { Cell::new(std::ptr::null()) };
    static SPARED: Cell<bool> = const { Cell::new(false) };
}

/// Calls `act`, which may change code, on a thread that is about to make a system call: that thread will look at the changes when it runs
/// the guest again, and must not be told to give the call up for them. It would change the code again when it made the call
/// again, and so on while others run the code in between.
pub fn spare_own<R>(act: impl FnOnce() -> R) -> R {
    let before = SPARED.replace(true);
    let done = act();
    SPARED.set(before);
    done
}

/// True if `flag` is this host thread's and need not be raised for what the thread does.
pub fn is_spared(flag: *const Attention) -> bool {
    SPARED.get() && REGISTERED.get() == flag
}

/// Makes `flag` the one that signals arriving on this host thread raise. A request already made is carried over. Without it, or
/// after a null pointer, the host thread has a flag of its own, see [`with_attention`].
///
/// # Safety
/// `flag` is null or stays valid until this host thread ends or has registered another.
pub unsafe fn register_attention(flag: *const Attention) {
    let former = REGISTERED.get();
    // In this order: a signal that arrives in between raises either the former flag, which is looked at afterwards, or the new one.
    REGISTERED.set(flag);
    shake();
    let withdraw = |former: &Attention| former.0.swap(0, Ordering::SeqCst) != 0;
    let requested = if former.is_null() {
        OWN.with(withdraw)
    } else {
        // SAFETY: it was registered, and is valid until this call is over.
        withdraw(unsafe { &*former })
    };
    if requested {
        with_attention(Attention::request);
    }
}

/// Calls `look` with this host thread's flag.
pub fn with_attention<R>(look: impl FnOnce(&Attention) -> R) -> R {
    let registered = REGISTERED.get();
    if registered.is_null() {
        OWN.with(look)
    } else {
        // SAFETY: `register_attention` demands that the flag is valid while it is registered.
        look(unsafe { &*registered })
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
    fn a_signal_that_comes_while_a_flag_is_registered_raises_it() {
        const SIGNALS: u32 = 20_000;
        const PATIENCE: Duration = Duration::from_secs(20);
        static DONE: AtomicBool = AtomicBool::new(false);
        // SAFETY: the handler does what is async-signal-safe.
        unsafe { libc::signal(libc::SIGURG, on_signal as *const () as libc::sighandler_t) };
        // SAFETY: it has no arguments.
        let target = unsafe { libc::pthread_self() };
        let sender = std::thread::spawn(move || {
            while !DONE.load(Ordering::Relaxed) {
                // SAFETY: the thread waits for this one.
                unsafe { libc::pthread_kill(target, libc::SIGURG) };
            }
        });
        let flags = [Attention::new(), Attention::new()];
        let (mut lost, mut round, begun) = (0, 0usize, Instant::now());
        while HANDLED.load(Ordering::Relaxed) < SIGNALS
            && (!round.is_multiple_of(1024) || begun.elapsed() < PATIENCE)
        {
            round += 1;
            let before = HANDLED.load(Ordering::Relaxed);
            // SAFETY: the flags outlive the loop, and the last one is taken back below.
            unsafe { register_attention(&raw const flags[round % 2]) };
            let came = HANDLED.load(Ordering::Relaxed) != before;
            lost += usize::from(came && !with_attention(Attention::is_requested));
            with_attention(Attention::clear);
        }
        DONE.store(true, Ordering::Relaxed);
        sender.join().unwrap();
        // SAFETY: null is always valid.
        unsafe { register_attention(std::ptr::null()) };
        assert_eq!(lost, 0);
    }
}
