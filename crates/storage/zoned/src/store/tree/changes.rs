//! The changes made to a leaf since its last copy on the device. The leaf can be rebuilt from that copy and these
//! changes, so a dirty leaf need not stay in memory.
//!
//! Source: keeping changes apart from the page is from Levandoski, Lomet and Sengupta, "The Bw-Tree", ICDE 2013.

use crate::device::ZonedDevice;
use crate::error::Result;
use crate::node::{Page, Value};
use crate::store::io::{Io, Resident, damaged};
use crate::store::journal::batch::{Batch, Change};
use crate::store::tree::leaf::{LeafAddresses, LeafBody, LeafSlot, merged};
use std::sync::Arc;

/// The overhead of the allocator for a list of changes, bytes.
const ALLOCATION_BYTES: usize = 32;

/// The part of a leaf that its changes apply to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangedPart {
    /// The leaf page itself. The leaf has no log, or its log has been merged.
    Leaf,
    /// The log page. The device copy of the leaf page is current.
    Log,
}

impl ChangedPart {
    /// The number of pages that such a leaf takes in memory.
    pub const fn pages(self) -> usize {
        match self {
            Self::Leaf => 1,
            Self::Log => 2,
        }
    }
}

/// The state that the changes apply to.
#[derive(Clone)]
pub(crate) enum Base {
    /// A leaf page and its log on the device. The blocks stay valid until the checkpoint that begins next has
    /// completed.
    LeafAddresses(LeafAddresses),
    /// A leaf that the running checkpoint has not written yet.
    Leaf(Arc<LeafSlot>),
}

/// The ordered changes of one leaf.
#[derive(Clone)]
pub(crate) struct Changes {
    base: Base,
    pub place: ChangedPart,
    /// The generation of the last checkpoint that had begun when the first change was made.
    generation: u64,
    made: Batch,
    /// Accounts for the memory of the changes.
    resident: Resident,
}

impl Changes {
    /// Creates an empty list of changes.
    pub fn new<D: ZonedDevice>(io: &Io<D>, base: Base, place: ChangedPart, generation: u64) -> Self {
        let mut changes = Self { base, place, generation, made: Batch::new(), resident: io.resident(0) };
        changes.resident.change(changes.bytes());
        changes
    }

    /// The memory that the changes take, bytes.
    pub fn bytes(&self) -> usize {
        ALLOCATION_BYTES + size_of::<Self>() + self.made.bytes().len()
    }

    /// Whether no checkpoint has begun since the first change. A later checkpoint releases the base when it completes.
    pub const fn began_in(&self, generation: u64) -> bool {
        self.generation == generation
    }

    /// Appends a change.
    pub fn push(&mut self, key: &[u8], value: Value<'_>) {
        self.made.reserve_exact(Change { key, value });
        self.made.change(Change { key, value });
        self.resident.change(self.bytes());
    }

    /// Rebuilds the leaf: reads its base and applies the changes.
    pub fn leaf<D: ZonedDevice>(&self, io: &Io<D>) -> Result<LeafBody> {
        let mut body = match &self.base {
            Base::LeafAddresses(homes) => LeafBody::read(io, *homes)?.0,
            Base::Leaf(slot) => Arc::unwrap_or_clone(slot.load_uncached(io)?),
        };
        if self.place == ChangedPart::Leaf
            && let Some(log) = body.log.take()
        {
            body.leaf = merged(&body.leaf, &log, false)?;
            body.resident.change(body.leaf.size());
        }
        for Change { key, value } in self.made.changes() {
            let fits = match self.place {
                ChangedPart::Leaf => change(&mut body.leaf, key, value),
                ChangedPart::Log => body.change_in_log(key, value),
            };
            if !fits {
                let home = match &self.base {
                    Base::LeafAddresses(homes) => homes.leaf,
                    Base::Leaf(slot) => slot.home(),
                };
                return Err(damaged(home, "its changes no longer fit into it".into()));
            }
        }
        io.count_rebuilt(self.place);
        Ok(body)
    }
}

/// Applies a change to a page. Returns false if it does not fit.
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
