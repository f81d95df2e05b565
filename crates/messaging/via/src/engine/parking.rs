//! Parking: VIs that have been quiet for a long time are not polled; their provider reports when something arrives.
//!
//! Invariant: a connected VI is polled by its completion queues, or parked, or both. Both states change only under the
//! VI's lock.

use super::endpoint::{Endpoint, Inner};
use std::sync::atomic::Ordering;

impl Endpoint {
    /// Makes the VI's completion queues poll it.
    pub(super) fn poll_by_queues(&self, inner: &Inner) {
        self.empty_polls.store(0, Ordering::Relaxed);
        inner.queues.rings().for_each(|ring| ring.start_polling(self.number, &self.itself));
    }

    /// Parks the VI. Returns `false` if it must be polled.
    pub(super) fn park(&self) -> bool {
        let mut inner = self.lock();
        if !inner.queues.parked && inner.link.is_some() {
            if !inner.link.as_mut().is_some_and(|link| link.park()) {
                self.empty_polls.store(0, Ordering::Relaxed);
                return false;
            }
            self.set_parked(&mut inner, true);
            // Process messages that arrived before the peer could see that the VI is parked.
            self.progress(&mut inner);
        }
        if inner.queues.notifications.any && inner.link.is_some() {
            return false;
        }
        inner.queues.rings().for_each(|ring| ring.stop_polling(self.number));
        true
    }

    /// Called when the program uses a parked VI, which is therefore likely to have traffic soon.
    #[cold]
    pub(super) fn called_while_parked(&self, inner: &mut Inner) {
        self.poll_by_queues(inner);
        // Without a completion queue, this call is the only poll. A queue decides itself when to poll next.
        if inner.queues.rings().next().is_none() {
            self.unpark(inner);
        }
    }

    /// Polls once on behalf of a completion queue.
    pub(super) fn poll_for_queue(&self) {
        let mut inner = self.lock();
        // A waiter on one of the queues relies on the provider's report, so the VI stays parked.
        if inner.queues.parked && !inner.queues.rings().any(|ring| ring.is_awaited()) {
            self.unpark(&mut inner);
        }
        self.progress(&mut inner);
    }

    fn unpark(&self, inner: &mut Inner) {
        if let Some(link) = &mut inner.link {
            link.unpark();
        }
        self.set_parked(inner, false);
        self.poll_by_queues(inner);
    }

    /// Ends parking because the link is gone.
    pub(super) fn stop_parking(&self, inner: &mut Inner) {
        self.set_parked(inner, false);
        inner.queues.rings().for_each(|ring| ring.stop_polling(self.number));
    }

    /// Whether the VI is parked.
    pub(super) fn is_parked(&self) -> bool {
        self.is_parked.load(Ordering::Relaxed)
    }

    fn set_parked(&self, inner: &mut Inner, parked: bool) {
        let queues = &mut inner.queues;
        queues.parked = parked;
        queues.is_special = parked || queues.callback.is_some() || queues.malformed > 0;
        self.is_parked.store(parked, Ordering::Relaxed);
    }
}
