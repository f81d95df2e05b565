//! What has changed in a leaf since the device got its copy: with both the leaf can be had again, so it need not stay in memory.
//! Not the paper's logs: those are nodes on the device. Not which leaves are dropped: see `cache`.
//! Source: keeping changes apart from the page is Levandoski, Lomet and Sengupta's ("The Bw-Tree", ICDE 2013).

use super::batch::{Batch, Change};
use super::io::{Io, Resident, damaged};
use super::leaf::{Homes, LeafBody, LeafSlot, merged};
use crate::device::ZonedDevice;
use crate::error::Result;
use crate::node::{Page, Value};
use std::sync::Arc;

/// Where a changed leaf has its changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the leaf itself, which has no log (any more).
    Leaf,
    /// In its log; its copy is up to date.
    Log,
}

impl Place {
    /// How many pages such a leaf has in memory.
    pub const fn pages(self) -> usize {
        match self {
            Self::Leaf => 1,
            Self::Log => 2,
        }
    }
}

/// What the changes are changes of.
#[derive(Clone)]
pub(super) enum Base {
    /// A copy and its log on the device. They stay there until the next checkpoint that begins has ended.
    Homes(Homes),
    /// A leaf that the running checkpoint has yet to write.
    Leaf(Arc<LeafSlot>),
}

/// The changes of one leaf, in order.
#[derive(Clone)]
pub(super) struct Changes {
    base: Base,
    pub place: Place,
    /// The newest checkpoint that had begun at the first change.
    generation: u64,
    made: Batch,
    /// Counts its bytes.
    resident: Resident,
}

impl Changes {
    /// None yet.
    pub fn new<D: ZonedDevice>(io: &Io<D>, base: Base, place: Place, generation: u64) -> Self {
        let mut changes = Self { base, place, generation, made: Batch::new(), resident: io.resident(0) };
        changes.resident.change(changes.bytes());
        changes
    }

    /// How much memory they take.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.made.bytes().len()
    }

    /// Whether `generation` is still the newest checkpoint that has begun: one that began since gives up the base when it ends.
    pub const fn began_in(&self, generation: u64) -> bool {
        self.generation == generation
    }

    /// One more.
    pub fn push(&mut self, key: &[u8], value: Value<'_>) {
        self.made.change(Change { key, value });
        self.resident.change(self.bytes());
    }

    /// The leaf: its copy is read, and they are made again.
    pub fn leaf<D: ZonedDevice>(&self, io: &Io<D>) -> Result<LeafBody> {
        let mut body = match &self.base {
            Base::Homes(homes) => LeafBody::read(io, *homes)?.0,
            Base::Leaf(slot) => Arc::unwrap_or_clone(slot.share_unkept(io)?),
        };
        if self.place == Place::Leaf
            && let Some(log) = body.log.take()
        {
            body.leaf = merged(&body.leaf, &log, false)?;
            body.resident.change(body.leaf.size());
        }
        for Change { key, value } in self.made.changes() {
            let fits = match self.place {
                Place::Leaf => change(&mut body.leaf, key, value),
                Place::Log => body.change_in_log(key, value),
            };
            if !fits {
                let home = match &self.base {
                    Base::Homes(homes) => homes.leaf,
                    Base::Leaf(slot) => slot.home(),
                };
                return Err(damaged(home, "it has less room than when it was written".into()));
            }
        }
        io.count_remade(self.place);
        Ok(body)
    }
}

/// Makes a change in a page; false if it does not fit.
fn change(page: &mut Page, key: &[u8], value: Value<'_>) -> bool {
    match (page.find(key), value) {
        (Ok(at), Value::Deleted) => {
            page.remove(at);
            true
        }
        (Ok(at), value) => page.set(at, value),
        (Err(_), Value::Deleted) => true,
        (Err(at), value) => page.insert(at, key, value),
    }
}
