//! VIs that nobody polls, because nothing has come for them in a long time: their providers say when something does.
//! Not sleep: a thread that sleeps, sleeps on VIs; a parked one costs nobody anything.
//! The rule: a connected VI is in the lists of those that its completion queues look at, or parked, or both; what changes
//! that is done under its lock.

use super::endpoint::{Endpoint, Inner};
use std::sync::atomic::Ordering;

impl Endpoint {
    /// Has the VI's completion queues look at it.
    pub(super) fn have_polled(&self, inner: &Inner) {
        self.quiet_looks.store(0, Ordering::Relaxed);
        inner.queues.rings().for_each(|ring| ring.heat(self.number, &self.itself));
    }

    /// Leaves the VI to its provider until something comes. `false`: it has to be polled.
    pub(super) fn park(&self) -> bool {
        let mut inner = self.inner.lock();
        if !inner.queues.parked && inner.link.is_some() {
            if !inner.link.as_mut().is_some_and(|link| link.park()) {
                self.quiet_looks.store(0, Ordering::Relaxed);
                return false;
            }
            self.set_parked(&mut inner, true);
            // What came before the peer could know of it.
            self.progress(&mut inner);
        }
        if inner.queues.news.any && inner.link.is_some() {
            self.unlock(inner);
            return false;
        }
        inner.queues.rings().for_each(|ring| ring.cool(self.number));
        self.unlock(inner);
        true
    }

    /// The program calls for a parked VI, which is therefore likely to have something soon.
    #[cold]
    pub(super) fn called_while_parked(&self, inner: &mut Inner) {
        self.have_polled(inner);
        // Where there is no completion queue, this call is what polls. A queue decides itself when it looks next.
        if inner.queues.rings().next().is_none() {
            self.unpark(inner);
        }
    }

    /// Polls once for a completion queue.
    pub(super) fn look_for_queue(&self) {
        let mut inner = self.inner.lock();
        // Whoever waits for one of its queues counts on being told.
        if inner.queues.parked && !inner.queues.rings().any(|ring| ring.is_awaited()) {
            self.unpark(&mut inner);
        }
        self.progress(&mut inner);
        self.unlock(inner);
    }

    fn unpark(&self, inner: &mut Inner) {
        if let Some(link) = &mut inner.link {
            link.unpark();
        }
        self.set_parked(inner, false);
        self.have_polled(inner);
    }

    /// The link is gone, and with it what it had said.
    pub(super) fn end_parking(&self, inner: &mut Inner) {
        self.set_parked(inner, false);
        inner.queues.rings().for_each(|ring| ring.cool(self.number));
    }

    /// Whether its provider looks after it.
    pub(super) fn is_parked(&self) -> bool {
        self.is_parked.load(Ordering::Relaxed)
    }

    fn set_parked(&self, inner: &mut Inner, parked: bool) {
        let queues = &mut inner.queues;
        queues.parked = parked;
        queues.is_special = parked || queues.tell.is_some() || queues.malformed > 0;
        self.is_parked.store(parked, Ordering::Relaxed);
    }
}
