//! Completions that are told as soon as there are any, and what the thread that looks after such VIs has to know of them.
//! Not the thread, which is in `roster.rs`; nor the telling itself, which `queues.rs` does under the VI's lock.
//! Source: VIA, completing descriptors: the NIC stores the status into the descriptor, whatever the program does meanwhile.

use super::endpoint::{Endpoint, Inner};
use super::queues::{Queues, Tell};
use crate::descriptor::Segment;
use crate::provider::Bell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Endpoint {
    /// From now on `tell` hears of each completion as soon as there is one.
    pub(crate) fn tell_completions(self: &Arc<Self>, tell: Tell) {
        let mut inner = self.inner.lock();
        inner.queues.send.begin_telling();
        inner.queues.receive.begin_telling();
        inner.queues.tell = Some(tell);
        inner.queues.is_special = true;
        drop(inner);
        self.attended.store(true, Ordering::Relaxed);
        self.nic.roster.attend(self);
    }

    /// The program called: the roster's thread can leave the VI to it for a while, and its completion queues look at it again.
    #[inline]
    pub(super) fn note_call(&self, inner: &mut Inner) {
        if inner.queues.is_special {
            // Two threads may count one call between them: what matters is that the count changes.
            self.calls.store(self.calls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            if inner.queues.parked {
                self.called_while_parked(inner);
            }
        }
    }

    /// How often the program called, about.
    pub(super) fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Whether a thread of the program waits for this VI.
    pub(super) fn is_waited_for(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }

    /// Whether a segment lies in registered memory.
    pub(crate) fn is_registered(&self, segment: &Segment) -> bool {
        let mut inner = self.inner.lock();
        let Queues { cache, nic, .. } = &mut inner.queues;
        cache.is_registered(&nic.memory, segment)
    }

    /// Announces that the roster's thread is about to sleep, and adds what it sleeps on. `false`: it has nothing to sleep on, since
    /// the VI is not connected, or its time passes only while its program looks (a modelled NIC).
    pub(super) fn arm_for_roster(&self, bells: &mut Vec<Bell>) -> bool {
        let before = bells.len();
        self.arm_for_others(bells);
        let sleeps = bells.len() > before && !matches!(bells.last(), Some(Bell::None));
        if !sleeps {
            bells.truncate(before);
            self.disarm_for_others();
        }
        sleeps
    }
}
