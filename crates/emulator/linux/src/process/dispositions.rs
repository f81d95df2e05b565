//! The signal actions of a process and the default actions. Source: signal(7); Linux include/uapi/asm-generic/signal.h
//! (LoongArch's `struct sigaction` has no restorer).

use longma_locks::IgnorePoison;
use std::sync::atomic::{AtomicU64, Ordering};

use longma_guest::host::locks::{Mutex, MutexGuard};
use longma_guest::host::masks::{self, FAULTS, HostDisposition, SignalSet, set_of};
use longma_guest::host::reception;
use longma_guest::words::{bytes_of, words_of};

/// The highest signal number.
pub(crate) const SIGNALS: i32 = 64;
pub(crate) const SIG_DFL: u64 = 0;
pub(crate) const SIG_IGN: u64 = 1;
pub(crate) const SA_NOCLDSTOP: u64 = 1;
pub(crate) const SA_NOCLDWAIT: u64 = 2;
pub(crate) const SA_ONSTACK: u64 = 0x0800_0000;
pub(crate) const SA_RESTART: u64 = 0x1000_0000;
pub(crate) const SA_NODEFER: u64 = 0x4000_0000;
pub(crate) const SA_RESETHAND: u64 = 0x8000_0000;
const SA_SIGINFO: u64 = 4;
const SA_EXPOSE_TAGBITS: u64 = 0x800;
/// The flags that the kernel supports. It clears others, so that a program can query them.
const SA_KNOWN: u64 = SA_NOCLDSTOP
    | SA_NOCLDWAIT
    | SA_SIGINFO
    | SA_EXPOSE_TAGBITS
    | SA_ONSTACK
    | SA_RESTART
    | SA_NODEFER
    | SA_RESETHAND;
/// Signals that cannot be caught, blocked or ignored.
pub(crate) const UNBLOCKABLE: SignalSet = set_of(libc::SIGKILL) | set_of(libc::SIGSTOP);

/// LoongArch's `struct sigaction` in the kernel's layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Action {
    /// A guest address, [`SIG_DFL`] or [`SIG_IGN`].
    pub handler: u64,
    pub flags: u64,
    pub mask: SignalSet,
}

impl Action {
    pub(crate) const BYTES: usize = 24;

    pub(crate) fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let [handler, flags, mask] = words_of(&bytes);
        Self { handler, flags: flags & SA_KNOWN, mask: mask & !UNBLOCKABLE }
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        bytes_of(&self.words())
    }

    pub(crate) fn words(self) -> [u64; 3] {
        [self.handler, self.flags, self.mask]
    }

    pub(crate) fn is_handler(&self) -> bool {
        !matches!(self.handler, SIG_DFL | SIG_IGN)
    }
}

/// The default action of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Default {
    Terminate,
    Ignore,
    Stop,
}

/// The default action of `signal`.
pub(crate) fn default_of(signal: i32) -> Default {
    match signal {
        libc::SIGCHLD | libc::SIGCONT | libc::SIGURG | libc::SIGWINCH => Default::Ignore,
        libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => Default::Stop,
        _ => Default::Terminate,
    }
}

/// The actions that all threads of a process share, mirrored to the host. The host performs actions without a handler
/// itself, so that other processes (a shell, a debugger, a parent) see the behaviour of a native process.
#[derive(Debug)]
pub(crate) struct Dispositions(Mutex<[Action; SIGNALS as usize]>);

impl Dispositions {
    /// The host's actions at the start: each signal is ignored or has its default action.
    pub(crate) fn inherited() -> Self {
        let mut actions = [Action::default(); SIGNALS as usize];
        for signal in 1..=SIGNALS {
            let ignored = match signal {
                libc::SIGPIPE => masks::sigpipe_was_ignored(),
                _ => set_of(signal) & FAULTS == 0 && masks::is_ignored(signal),
            };
            if ignored {
                actions[signal as usize - 1].handler = SIG_IGN;
            }
        }
        if !masks::sigpipe_was_ignored() {
            masks::set_disposition(libc::SIGPIPE, HostDisposition::Default, 0);
        }
        Self(Mutex::new(actions))
    }

    /// Sets the actions of a program that `previous` executes: ignored signals stay ignored, others have their default
    /// action.
    pub(crate) fn succeed(&self, previous: &Self) {
        let ignored = previous.lock().map(|action| action.handler == SIG_IGN);
        let mut actions = self.lock();
        for ((signal, action), ignored) in (1..).zip(actions.iter_mut()).zip(ignored) {
            *action = Action { handler: if ignored { SIG_IGN } else { SIG_DFL }, ..Action::default() };
            mirror(signal, action);
        }
    }

    /// Sets which fatal signals are delivered to a thread first, where a debugger or a simulation sees them. The others
    /// terminate the process at once.
    pub(crate) fn intercept(&self, signals: SignalSet) {
        let actions = self.lock();
        let previous = INTERCEPTED.swap(signals, Ordering::Relaxed);
        for (signal, action) in (1..).zip(actions.iter()) {
            let is_new = set_of(signal) & signals != 0 && ends_process(signal, action.handler);
            if is_new || set_of(signal) & previous & !signals != 0 {
                mirror(signal, action);
            }
        }
    }

    /// Locks the actions, for example across a fork.
    pub(crate) fn lock(&self) -> MutexGuard<'_, [Action; SIGNALS as usize]> {
        self.0.lock().ignore_poison()
    }

    /// The action on `signal`.
    pub(crate) fn get(&self, signal: i32) -> Action {
        self.lock()[signal as usize - 1]
    }

    /// The signals that terminate the process immediately.
    pub(crate) fn fatal(&self) -> SignalSet {
        let actions = self.lock();
        let fatal =
            (1..).zip(actions.iter()).filter(|(signal, action)| ends_process(*signal, action.handler));
        fatal.fold(0, |set, (signal, _)| set | set_of(signal))
    }

    /// Sets the action of `signal` and returns the former one.
    pub(crate) fn set(&self, signal: i32, action: Action) -> Action {
        let mut actions = self.lock();
        let previous = std::mem::replace(&mut actions[signal as usize - 1], action);
        mirror(signal, &action);
        previous
    }

    /// Resets signals with a handler to their default actions.
    pub(crate) fn reset_handlers(&self) {
        let mut actions = self.lock();
        for (signal, action) in (1..).zip(actions.iter_mut()).filter(|(_, action)| action.is_handler()) {
            *action = Action::default();
            mirror(signal, action);
        }
    }

    /// The action for a signal being delivered. Applies SA_RESETHAND.
    pub(crate) fn get_for_delivery(&self, signal: i32) -> Action {
        let mut actions = self.lock();
        let action = actions[signal as usize - 1];
        if action.is_handler() && action.flags & SA_RESETHAND != 0 {
            actions[signal as usize - 1].handler = SIG_DFL;
            mirror(signal, &actions[signal as usize - 1]);
        }
        action
    }
}

/// The fatal signals that are delivered to a thread before they end the process.
static INTERCEPTED: AtomicU64 = AtomicU64::new(0);

fn ends_process(signal: i32, handler: u64) -> bool {
    handler == SIG_DFL && default_of(signal) == Default::Terminate
}

fn mirror(signal: i32, action: &Action) {
    if set_of(signal) & FAULTS != 0 {
        // Guest memory accesses need the host's handlers of these signals.
        return;
    }
    let disposition = match action.handler {
        SIG_DFL
            if INTERCEPTED.load(Ordering::Relaxed) & set_of(signal) != 0 && ends_process(signal, SIG_DFL) =>
        {
            HostDisposition::Call(reception::on_signal)
        }
        SIG_DFL => HostDisposition::Default,
        SIG_IGN => HostDisposition::Ignore,
        _ => HostDisposition::Call(reception::on_signal),
    };
    masks::set_disposition(signal, disposition, action.flags & (SA_NOCLDSTOP | SA_NOCLDWAIT));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_round_trips_through_guest_memory() {
        let action = Action { handler: 0x1234_5678_9abc, flags: SA_RESTART | SA_ONSTACK, mask: 0x55 };
        assert_eq!(Action::from_bytes(action.to_bytes()), action);
    }

    #[test]
    fn an_action_cannot_block_kill_and_stop_nor_have_unknown_flags() {
        let action = Action { handler: 1 << 20, flags: u64::MAX, mask: u64::MAX };
        let parsed = Action::from_bytes(action.to_bytes());
        assert_eq!(parsed.mask & UNBLOCKABLE, 0);
        assert_eq!(parsed.flags, SA_KNOWN);
    }
}
