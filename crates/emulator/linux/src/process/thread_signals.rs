//! The signal state of one thread: its mask, its alternate stack, what has arrived.
//! Not the actions, which a process shares: those are in `dispositions`.
//! Source: sigprocmask(2), sigaltstack(2); Linux kernel/signal.c (do_sigaltstack).

use std::sync::Arc;

use longma_guest::Errno;
use longma_guest::host::masks::{self, FAULTS, HELD, SignalSet};
use longma_guest::host::reception::{self, Reception};
use longma_guest::words::{bytes_of, words_of};

use super::dispositions::UNBLOCKABLE;

const SS_ONSTACK: u32 = 1;
const SS_DISABLE: u32 = 2;
const SS_AUTODISARM: u32 = 1 << 31;
/// LoongArch's, from its asm/signal.h.
const MINSIGSTKSZ: u64 = 4096;

/// A `stack_t`: where handlers with SA_ONSTACK run.
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

    /// True if `stack_pointer` is on it.
    fn holds(&self, stack_pointer: u64) -> bool {
        self.flags & SS_AUTODISARM == 0
            && stack_pointer > self.address
            && stack_pointer - self.address <= self.size
    }

    fn exists(&self) -> bool {
        self.size != 0
    }

    /// As sigaltstack(2) reports it to a thread with this stack pointer.
    pub(crate) fn seen_from(self, stack_pointer: u64) -> Self {
        let state = match () {
            () if !self.exists() => SS_DISABLE,
            () if self.holds(stack_pointer) => SS_ONSTACK,
            () => 0,
        };
        Self { flags: self.flags & SS_AUTODISARM | state, ..self }
    }

    /// Replaces it as sigaltstack(2) does.
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

    /// Where the frame of a handler with SA_ONSTACK goes; `None` if it would run over the end of the stack it is already on.
    pub(crate) fn top_for(&self, stack_pointer: u64, on_stack: bool, least_bytes: u64) -> Option<u64> {
        if self.exists() && self.holds(stack_pointer) {
            // Nested. A frame that does not fit must not spill over what lies below.
            return self.holds(stack_pointer.checked_sub(least_bytes)?).then_some(stack_pointer);
        }
        if on_stack && self.exists() { self.address.checked_add(self.size) } else { Some(stack_pointer) }
    }

    /// What is left of it once a handler was entered.
    pub(crate) fn entered(self) -> Self {
        if self.flags & SS_AUTODISARM != 0 { Self::default() } else { self }
    }
}

/// The signals that have reached a thread, as others may see them.
#[derive(Clone, Debug)]
pub struct Arrivals(Arc<Reception>);

impl Arrivals {
    /// Those that are not delivered yet, blocked ones included: bit 0 is signal 1.
    pub fn undelivered(&self) -> u64 {
        self.0.arrived()
    }
}

/// The signal state of one thread.
#[derive(Debug)]
pub(crate) struct ThreadSignals {
    /// What the guest has blocked.
    pub mask: SignalSet,
    /// The mask that a call such as sigsuspend(2) put in its place until the next delivery.
    pub suspended: Option<SignalSet>,
    pub stack: AlternateStack,
    /// Host handlers know its address.
    reception: Arc<Reception>,
}

impl ThreadSignals {
    /// With nothing pending and no alternate stack.
    pub(crate) fn new(mask: SignalSet) -> Self {
        Self {
            mask: mask & !UNBLOCKABLE,
            suspended: None,
            stack: AlternateStack::default(),
            reception: Arc::default(),
        }
    }

    /// Has signals that arrive on this host thread come here.
    pub(crate) fn attach(&self) {
        // All: the program before may have left signals that the guest has blocked and the host must not.
        let former = masks::replace_all(!0);
        // SAFETY: the reception stays where it is, and `drop` takes it back before it goes.
        unsafe { reception::register(&raw const *self.reception) };
        masks::replace(former);
    }

    /// Keeps further signals in the host's kernel until [`Self::release`]. Gives false if there are signals to be delivered
    /// first.
    pub(crate) fn hold(&self) -> bool {
        masks::replace(HELD);
        self.deliverable() == 0
    }

    /// Lets the signals in that the guest has not blocked. Those that have arrived and are yet to be delivered stay out: there is one
    /// place for each, and a second one that is queued waits in the host's kernel.
    pub(crate) fn release(&self) {
        masks::replace(self.mask | self.reception.arrived());
    }

    /// Before execve, which keeps the mask and what is pending: both become the host's, those included that it never blocks otherwise. No
    /// signal may be deliverable. [`Self::release`] undoes it.
    pub(crate) fn leave_to_the_host(&self) {
        masks::replace_all(self.mask);
        while let Some((signal, mut info)) = self.take_among(self.mask) {
            reception::send_back(signal, &mut info);
        }
    }

    /// Gives back what has arrived and this thread, which ends, has blocked: unless it was sent to this very thread, it is for the others.
    pub(crate) fn hand_on(&self) {
        while let Some((signal, info)) = self.take_among(HELD) {
            reception::hand_on(signal, &info);
        }
    }

    /// The signals that have arrived and are not blocked.
    pub(crate) fn deliverable(&self) -> SignalSet {
        self.reception.arrived() & !self.suspended.unwrap_or(self.mask)
    }

    /// What has arrived here, for another thread to look at.
    pub(crate) fn arrivals(&self) -> Arrivals {
        Arrivals(self.reception.clone())
    }

    /// The signals that have arrived here.
    pub(crate) fn arrived(&self) -> SignalSet {
        self.reception.arrived()
    }

    /// Takes the next signal to deliver.
    pub(crate) fn take_next(&self) -> Option<(i32, reception::SignalInfo)> {
        self.take_among(self.first())
    }

    /// The next signal to deliver.
    pub(crate) fn next(&self) -> Option<i32> {
        let first = self.first();
        (first != 0).then(|| first.trailing_zeros() as i32 + 1)
    }

    /// Those to deliver first, the lowest number before others: the ones that instructions cause.
    fn first(&self) -> SignalSet {
        let deliverable = self.deliverable();
        if deliverable & FAULTS != 0 { deliverable & FAULTS } else { deliverable }
    }

    /// Takes the lowest-numbered signal of `set` that has arrived.
    pub(crate) fn take_among(&self, set: SignalSet) -> Option<(i32, reception::SignalInfo)> {
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
            // This host thread has no guest thread any more; signals are to go to others.
            masks::replace(HELD);
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
    fn a_self_disarming_stack_is_gone_once_a_handler_runs() {
        let stack = AlternateStack { flags: SS_AUTODISARM, ..STACK };
        assert_eq!(stack.entered(), AlternateStack::default());
        assert_eq!(STACK.entered(), STACK);
    }
}
