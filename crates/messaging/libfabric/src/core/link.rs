//! A VI with its memory, before and after it is connected.

use super::address::{Kind, Name};
use super::slots::Slots;
use longma_via::{CompletionQueue, Error, Nic, ProtectionTag, Vi, ViAttributes};
use std::time::{Duration, Instant};

/// The time limit for the answer to a connection request.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// The time for which a connection to a peer that does not listen yet is retried.
const START_TIME: Duration = Duration::from_secs(2);

/// A protection tag that one connection uses. With a common tag, each peer could read memory that is offered to other
/// peers.
pub(crate) struct Tag {
    nic: Nic,
    tag: ProtectionTag,
}

impl Tag {
    pub(crate) fn get(&self) -> ProtectionTag {
        self.tag
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        // The VI and the memory that use the tag have already been dropped.
        let _ = self.nic.destroy_protection_tag(self.tag);
    }
}

/// A VI, its slots and its tag. The fields are dropped in this order.
pub(crate) struct Link {
    pub(crate) vi: Vi,
    pub(crate) slots: Slots,
    pub(crate) tag: Tag,
}

impl Link {
    /// Creates an unconnected VI and posts all receives. `queue` is notified of completed receives.
    ///
    /// # Errors
    /// If a limit of the NIC is reached or the system has no memory.
    pub(crate) fn open(nic: &Nic, queue: &CompletionQueue) -> Result<Self, Error> {
        let tag = Tag { nic: nic.clone(), tag: nic.create_protection_tag()? };
        let attributes = ViAttributes { rdma_write: false, ..ViAttributes::new(tag.get()) };
        let vi = nic.create_vi(attributes, None, Some(queue))?;
        let mut slots = Slots::new(nic, tag.get())?;
        slots.post_all(&vi)?;
        Ok(Self { vi, slots, tag })
    }

    /// Connects to an endpoint. If `may_start` is set and the endpoint does not listen yet, tries again for two
    /// seconds.
    ///
    /// # Errors
    /// Those of [`Vi::connect`].
    pub(crate) fn connect(&self, kind: Kind, own: Name, peer: Name, may_start: bool) -> Result<(), Error> {
        let begin = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            match self.vi.connect(&own.via_address(kind), &peer.via_address(kind), Some(CONNECT_TIME)) {
                Err(Error::NoMatch(_)) if may_start && begin.elapsed() < START_TIME => {
                    std::thread::sleep(pause);
                    pause = (2 * pause).min(Duration::from_millis(20));
                }
                outcome => return outcome.map(|_| ()),
            }
        }
    }
}
