//! Where a host thread waits until another one says that it may go on.
//! Not a lock, and not who goes next: that is a scheduler's.
//! Source: futex(2).

use std::sync::atomic::{AtomicU32, Ordering};

use super::attention::{Attention, with_attention};
use super::calls::interruptible_on_host;
use super::{masks, reception};
use crate::Errno;
use crate::host::host_call;

const FUTEX_WAIT_PRIVATE: u64 = 128;
const FUTEX_WAKE_PRIVATE: u64 = 129;

/// A place for one host thread. Messages are bits; those that nobody has taken yet are kept.
#[derive(Debug, Default)]
pub struct Seat(AtomicU32);

impl Seat {
    /// Leaves the message `bits` (not 0) and wakes who waits here.
    pub fn post(&self, bits: u32) {
        if self.0.fetch_or(bits, Ordering::Release) == 0 {
            // SAFETY: the word lives as long as `self`; the call touches nothing else.
            let _ = unsafe { host_call(libc::SYS_futex, [self.address(), FUTEX_WAKE_PRIVATE, 1, 0, 0, 0]) };
        }
    }

    /// Waits for messages and takes them.
    pub fn wait(&self) -> u32 {
        loop {
            let taken = self.0.swap(0, Ordering::Acquire);
            if taken != 0 {
                return taken;
            }
            // SAFETY: as above.
            let _ = unsafe { host_call(libc::SYS_futex, [self.address(), FUTEX_WAIT_PRIVATE, 0, 0, 0, 0]) };
        }
    }

    /// Waits for messages and takes them, or gives `None` because this host thread's [`Attention`] is requested.
    pub fn wait_attentively(&self) -> Option<u32> {
        loop {
            let taken = self.0.swap(0, Ordering::Acquire);
            if taken != 0 {
                return Some(taken);
            }
            // SAFETY: as above.
            let waited = unsafe {
                interruptible_on_host(libc::SYS_futex, [self.address(), FUTEX_WAIT_PRIVATE, 0, 0, 0, 0])
            };
            if waited == Err(Errno::RESTART) {
                return None;
            }
        }
    }

    fn address(&self) -> u64 {
        &raw const self.0 as u64
    }
}

/// The signals that have reached this host thread and wait for delivery, as a set. Those that others have sent before this call
/// are among them, unless they are blocked.
pub fn arrived_signals() -> u64 {
    // Leaving the kernel is when signals reach their handlers.
    masks::current();
    reception::arrived_here()
}

/// Takes back a request for this host thread's attention; true if there was one.
pub fn withdraw_attention() -> bool {
    with_attention(|attention| {
        let requested = attention.is_requested();
        attention.clear();
        requested
    })
}

/// True if something asks for this host thread's attention.
pub fn is_attention_requested() -> bool {
    with_attention(Attention::is_requested)
}

/// Asks for this host thread's own attention.
pub fn request_own_attention() {
    with_attention(Attention::request);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn messages_posted_before_the_wait_are_kept_and_added_up() {
        let seat = Seat::default();
        seat.post(1);
        seat.post(4);
        assert_eq!(seat.wait(), 5);
    }

    #[test]
    fn a_waiting_thread_goes_on_when_it_gets_a_message() {
        let (here, there) = (Arc::new(Seat::default()), Arc::new(Seat::default()));
        let (h, t) = (here.clone(), there.clone());
        let other = std::thread::spawn(move || {
            for round in 1..1000 {
                assert_eq!(t.wait(), round);
                h.post(round);
            }
        });
        for round in 1..1000 {
            there.post(round);
            assert_eq!(here.wait(), round);
        }
        other.join().unwrap();
    }
}
