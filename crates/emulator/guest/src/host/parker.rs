//! Parks a host thread until another thread posts a message to it, and reads and sets the attention flag of the calling
//! thread. Source: futex(2).

use std::sync::atomic::{AtomicU32, Ordering};

use super::attention::{Attention, with_attention};
use super::calls::interruptible_on_host;
use super::{masks, reception};
use crate::Errno;
use crate::host::host_call;

const FUTEX_WAIT_PRIVATE: u64 = 128;
const FUTEX_WAKE_PRIVATE: u64 = 129;

/// A mailbox with a wait operation for one host thread. Messages are bits, which accumulate until the thread takes
/// them.
#[derive(Debug, Default)]
pub struct Parker(AtomicU32);

impl Parker {
    /// Adds the message bits `bits`, which must not be 0, and wakes the waiting thread.
    pub fn post(&self, bits: u32) {
        if self.0.fetch_or(bits, Ordering::Release) == 0 {
            // SAFETY: the word is valid as long as `self`, and the call accesses no other memory.
            let _ = unsafe { host_call(libc::SYS_futex, [self.address(), FUTEX_WAKE_PRIVATE, 1, 0, 0, 0]) };
        }
    }

    /// Waits until there are messages and takes them.
    pub fn wait(&self) -> u32 {
        loop {
            let messages = self.0.swap(0, Ordering::Acquire);
            if messages != 0 {
                return messages;
            }
            // SAFETY: as above.
            let _ = unsafe { host_call(libc::SYS_futex, [self.address(), FUTEX_WAIT_PRIVATE, 0, 0, 0, 0]) };
        }
    }

    /// Waits until there are messages and takes them. Returns `None` if the [`Attention`] flag of this host thread is
    /// set.
    pub fn wait_interruptible(&self) -> Option<u32> {
        loop {
            let messages = self.0.swap(0, Ordering::Acquire);
            if messages != 0 {
                return Some(messages);
            }
            // SAFETY: as above.
            let result = unsafe {
                interruptible_on_host(libc::SYS_futex, [self.address(), FUTEX_WAIT_PRIVATE, 0, 0, 0, 0])
            };
            if result == Err(Errno::RESTART) {
                return None;
            }
        }
    }

    fn address(&self) -> u64 {
        &raw const self.0 as u64
    }
}

/// The signals that have arrived on this host thread and await delivery. The set includes unblocked signals that other
/// threads sent before this call.
pub fn arrived_signals() -> u64 {
    // The kernel delivers pending signals to their handlers when a system call returns.
    masks::current();
    reception::arrived_here()
}

/// Clears the attention flag of this host thread. Returns whether it was set.
pub fn take_attention() -> bool {
    with_attention(|attention| {
        let requested = attention.is_requested();
        attention.clear();
        requested
    })
}

/// Whether the attention flag of this host thread is set.
pub fn is_attention_requested() -> bool {
    with_attention(Attention::is_requested)
}

/// Sets the attention flag of this host thread.
pub fn request_own_attention() {
    with_attention(Attention::request);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn messages_posted_before_the_wait_accumulate() {
        let parker = Parker::default();
        parker.post(1);
        parker.post(4);
        assert_eq!(parker.wait(), 5);
    }

    #[test]
    fn a_message_wakes_a_waiting_thread() {
        let (own, peer) = (Arc::new(Parker::default()), Arc::new(Parker::default()));
        let (to_main, to_other) = (own.clone(), peer.clone());
        let other = std::thread::spawn(move || {
            for round in 1..1000 {
                assert_eq!(to_other.wait(), round);
                to_main.post(round);
            }
        });
        for round in 1..1000 {
            peer.post(round);
            assert_eq!(own.wait(), round);
        }
        other.join().unwrap();
    }
}
