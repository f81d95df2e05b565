//! The signal state of one thread: its mask, its alternate stack and its arrived signals. Source: sigprocmask(2),
//! sigaltstack(2); Linux kernel/signal.c (do_sigaltstack).

use std::sync::Arc;

use longma_guest::Errno;
use longma_guest::host::masks::{self, BLOCKABLE, FAULTS, SignalSet};
use longma_guest::host::reception::{self, Reception};
use longma_guest::words::{bytes_of, words_of};

use super::dispositions::UNBLOCKABLE;

const SS_ONSTACK: u32 = 1;
const SS_DISABLE: u32 = 2;
const SS_AUTODISARM: u32 = 1 << 31;
/// The value of LoongArch's asm/signal.h.
const MINSIGSTKSZ: u64 = 4096;

/// A `stack_t`: the stack for handlers with SA_ONSTACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AlternateStack {
    pub address: u64,
    pub flags: u32,
    pub size: u64,
}

impl Default for AlternateStack {
    fn default() -> Self {
        Self { address: 0, flags: SS_DISABLE, size: 0 }
    }
}

impl AlternateStack {
    pub(crate) const BYTES: usize = 24;

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        bytes_of(&[self.address, self.flags.into(), self.size])
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let [address, flags, size] = words_of(&bytes);
        Self { address, flags: flags as u32, size }
    }

    /// Whether `stack_pointer` is on this stack.
    fn holds(&self, stack_pointer: u64) -> bool {
        self.flags & SS_AUTODISARM == 0
            && stack_pointer > self.address
            && stack_pointer - self.address <= self.size
    }

    fn exists(&self) -> bool {
        self.size != 0
    }

    /// The stack as sigaltstack(2) reports it to a thread with this stack pointer.
    pub(crate) fn reported_at(self, stack_pointer: u64) -> Self {
        let state = match () {
            () if !self.exists() => SS_DISABLE,
            () if self.holds(stack_pointer) => SS_ONSTACK,
            () => 0,
        };
        Self { flags: self.flags & SS_AUTODISARM | state, ..self }
    }

    /// Replaces the stack as sigaltstack(2) does.
    ///
    /// # Errors
    /// EPERM while the thread runs on it, EINVAL for unknown flags, ENOMEM if it is too small.
    pub(crate) fn replace(&mut self, new: Self, stack_pointer: u64) -> Result<(), Errno> {
        if self.exists() && self.holds(stack_pointer) {
            return Err(Errno(libc::EPERM));
        }
        match new.flags & !SS_AUTODISARM {
            SS_DISABLE => *self = Self { flags: new.flags, ..Self::default() },
            0 | SS_ONSTACK if new.size < MINSIGSTKSZ => return Err(Errno(libc::ENOMEM)),
            0 | SS_ONSTACK => *self = new,
            _ => return Err(Errno(libc::EINVAL)),
        }
        Ok(())
    }

    /// The stack pointer for the frame of a handler; `None` if the frame would overflow the alternate stack that the
    /// thread is already using.
    pub(crate) fn top_for(&self, stack_pointer: u64, on_stack: bool, least_bytes: u64) -> Option<u64> {
        if self.exists() && self.holds(stack_pointer) {
            // A nested handler. A frame that does not fit must not overwrite memory below the stack.
            return self.holds(stack_pointer.checked_sub(least_bytes)?).then_some(stack_pointer);
        }
        if on_stack && self.exists() { self.address.checked_add(self.size) } else { Some(stack_pointer) }
    }

    /// The stack after a handler was entered.
    pub(crate) fn entered(self) -> Self {
        if self.flags & SS_AUTODISARM != 0 { Self::default() } else { self }
    }
}

/// The signals that have arrived for a thread, readable by other threads.
#[derive(Clone, Debug)]
pub struct Arrivals(Arc<Reception>);

impl Arrivals {
    /// The arrived signals, including blocked ones. Bit 0 is signal 1.
    pub fn undelivered(&self) -> u64 {
        self.0.arrived()
    }
}

/// The signal state of one thread.
#[derive(Debug)]
pub(crate) struct ThreadSignals {
    /// The signals that the guest has blocked.
    pub mask: SignalSet,
    /// The temporary mask of a call such as sigsuspend(2), until the next delivery.
    pub suspended: Option<SignalSet>,
    pub stack: AlternateStack,
    /// Host signal handlers have its address.
    reception: Arc<Reception>,
}

impl ThreadSignals {
    /// Creates a state without pending signals or an alternate stack.
    pub(crate) fn new(mask: SignalSet) -> Self {
        Self {
            mask: mask & !UNBLOCKABLE,
            suspended: None,
            stack: AlternateStack::default(),
            reception: Arc::default(),
        }
    }

    /// Registers this state for signals that arrive on the calling host thread.
    pub(crate) fn attach(&self) {
        // Block all signals: the previous program may have left signals pending that the guest has blocked and the host
        // never blocks.
        let previous = masks::replace_all(!0);
        // SAFETY: the reception keeps its address, and `drop` unregisters it.
        unsafe { reception::register(&raw const *self.reception) };
        masks::replace(previous);
    }

    /// Keeps further signals pending in the host kernel until [`Self::release`]. Returns false if signals must be
    /// delivered first.
    pub(crate) fn hold(&self) -> bool {
        masks::replace(BLOCKABLE);
        self.deliverable() == 0
    }

    /// Unblocks the signals that the guest has not blocked. Arrived signals stay blocked: there is one slot for each,
    /// and a second queued signal remains in the host kernel.
    pub(crate) fn release(&self) {
        masks::replace(self.mask | self.reception.arrived());
    }

    /// Called before execve, which preserves the mask and pending signals. Transfers both to the host, including
    /// signals that the host otherwise never blocks. No signal may be deliverable. [`Self::release`] undoes this.
    pub(crate) fn transfer_to_host(&self) {
        masks::replace_all(self.mask);
        while let Some((signal, mut info)) = self.take_from_set(self.mask) {
            reception::requeue(signal, &mut info);
        }
    }

    /// Forwards arrived signals that this ending thread has blocked to other threads, except those directed at this
    /// thread.
    pub(crate) fn forward(&self) {
        while let Some((signal, info)) = self.take_from_set(BLOCKABLE) {
            reception::forward(signal, &info);
        }
    }

    /// The arrived signals that are not blocked.
    pub(crate) fn deliverable(&self) -> SignalSet {
        self.reception.arrived() & !self.suspended.unwrap_or(self.mask)
    }

    /// The arrived signals, for other threads.
    pub(crate) fn arrivals(&self) -> Arrivals {
        Arrivals(self.reception.clone())
    }

    /// The arrived signals.
    pub(crate) fn arrived(&self) -> SignalSet {
        self.reception.arrived()
    }

    /// Takes the next signal to deliver.
    pub(crate) fn take_next(&self) -> Option<(i32, reception::SignalInfo)> {
        self.take_from_set(self.first())
    }

    /// The next signal to deliver.
    pub(crate) fn next(&self) -> Option<i32> {
        let first = self.first();
        (first != 0).then(|| first.trailing_zeros() as i32 + 1)
    }

    /// The signals to deliver first: those caused by instructions, if there are any.
    fn first(&self) -> SignalSet {
        let deliverable = self.deliverable();
        if deliverable & FAULTS != 0 { deliverable & FAULTS } else { deliverable }
    }

    /// Takes the arrived signal of `set` with the lowest number.
    pub(crate) fn take_from_set(&self, set: SignalSet) -> Option<(i32, reception::SignalInfo)> {
        let set = set & self.reception.arrived();
        if set == 0 {
            return None;
        }
        let signal = set.trailing_zeros() as i32 + 1;
        self.reception.take(signal).map(|info| (signal, info))
    }
}

impl Drop for ThreadSignals {
    fn drop(&mut self) {
        if std::ptr::eq(reception::registered(), &raw const *self.reception) {
            // This host thread no longer runs a guest thread. Other threads get the signals.
            masks::replace(BLOCKABLE);
            // SAFETY: null is always valid.
            unsafe { reception::register(std::ptr::null()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACK: AlternateStack = AlternateStack { address: 0x1_0000, flags: 0, size: 0x4000 };

    #[test]
    fn an_alternate_stack_cannot_be_changed_while_it_is_in_use() {
        let mut stack = STACK;
        assert_eq!(stack.replace(AlternateStack::default(), 0x1_2000), Err(Errno(libc::EPERM)));
        assert_eq!(stack.replace(AlternateStack::default(), 0x9_0000), Ok(()));
        assert_eq!(stack, AlternateStack::default());
    }

    #[test]
    fn a_small_alternate_stack_is_refused() {
        let mut stack = AlternateStack::default();
        assert_eq!(stack.replace(AlternateStack { size: 4095, ..STACK }, 0), Err(Errno(libc::ENOMEM)));
        assert_eq!(stack.replace(AlternateStack { flags: 4, ..STACK }, 0), Err(Errno(libc::EINVAL)));
    }

    #[test]
    fn a_nested_handler_stays_below_the_first_one_and_must_fit() {
        assert_eq!(STACK.top_for(0x9_0000, true, 600), Some(0x1_4000));
        assert_eq!(STACK.top_for(0x9_0000, false, 600), Some(0x9_0000));
        assert_eq!(STACK.top_for(0x1_2000, true, 600), Some(0x1_2000));
        assert_eq!(STACK.top_for(0x1_0100, true, 600), None);
    }

    #[test]
    fn a_self_disarming_stack_is_disabled_when_a_handler_runs() {
        let stack = AlternateStack { flags: SS_AUTODISARM, ..STACK };
        assert_eq!(stack.entered(), AlternateStack::default());
        assert_eq!(STACK.entered(), STACK);
    }
}
