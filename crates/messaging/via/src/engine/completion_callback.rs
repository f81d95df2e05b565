//! Support for completion callbacks, and the call counters by which the registry's thread detects inactive programs.
//!
//! Source: VIA, completing descriptors: the NIC stores the status into the descriptor even if the program makes no
//! calls.

use super::endpoint::{Endpoint, Inner};
use super::queues::{CompletionCallback, Queues};
use crate::descriptor::Segment;
use crate::provider::WakeSource;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Endpoint {
    /// Registers the completion callback.
    pub(crate) fn on_completion(self: &Arc<Self>, callback: CompletionCallback) {
        let mut inner = self.lock();
        inner.queues.send.begin_reporting();
        inner.queues.receive.begin_reporting();
        inner.queues.callback = Some(callback);
        inner.queues.is_special = true;
        drop(inner);
        self.attended.store(true, Ordering::Relaxed);
        self.nic.vi_registry.attend(self);
    }

    /// Counts a call by the program. The registry's thread then leaves the VI to the program for a while, and its
    /// completion queues poll it again.
    #[inline]
    pub(super) fn note_call(&self, inner: &mut Inner) {
        if inner.queues.is_special {
            // The counter is not exact: two threads that increment it concurrently may add only one. Readers check only
            // whether it has changed.
            self.calls.store(self.calls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            if inner.queues.parked {
                self.called_while_parked(inner);
            }
        }
    }

    /// The approximate number of calls by the program.
    pub(super) fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Whether a thread of the program waits for this VI.
    pub(super) fn is_waited_for(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }

    /// Whether a segment is in registered memory.
    pub(crate) fn is_registered(&self, segment: &Segment) -> bool {
        let mut inner = self.lock();
        let Queues { cache, nic, .. } = &mut inner.queues;
        cache.is_registered(&nic.memory, segment)
    }

    /// Announces that the registry's thread is about to sleep and adds the sources to sleep on. Returns `false` if there is
    /// nothing to sleep on: the VI is not connected, or its time advances only while it is polled (a modelled NIC).
    pub(super) fn arm_for_registry(&self, wake_sources: &mut Vec<WakeSource>) -> bool {
        let before = wake_sources.len();
        self.arm_for_others(wake_sources);
        let sleeps = wake_sources.len() > before && !matches!(wake_sources.last(), Some(WakeSource::None));
        if !sleeps {
            wake_sources.truncate(before);
            self.disarm_for_others();
        }
        sleeps
    }
}
