//! A flag that asks a guest thread to stop at its next safe point.
//! Not a queue: what there is to do, the thread finds out itself.
//! Source: none; the boundary is our own.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

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
/// `flag` is null or stays valid until this host thread ends or registers another.
pub unsafe fn register_attention(flag: *const Attention) {
    let requested = with_attention(|former| {
        let requested = former.is_requested();
        former.clear();
        requested
    });
    REGISTERED.set(flag);
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
