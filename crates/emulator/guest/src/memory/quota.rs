//! How much the guest may map by the limits that it has set itself.
//! Not what the host gives (see `room`), nor the stack's limit, which says how far the stack grows.
//! Source: getrlimit(2), RLIMIT_AS and RLIMIT_DATA; Linux mm/vma.c (may_expand_vm): data is what is private and can be written to.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::AddressSpace;
use super::mappings::{Mapping, Mappings};
use crate::Errno;

/// In bytes; `u64::MAX` for no limit.
#[derive(Debug)]
pub(super) struct Quota {
    all: AtomicU64,
    data: AtomicU64,
}

impl Default for Quota {
    fn default() -> Self {
        Self { all: AtomicU64::new(u64::MAX), data: AtomicU64::new(u64::MAX) }
    }
}

/// What a process is charged for: in all, and as data.
#[derive(Clone, Copy, Debug, Default)]
struct Charge {
    all: u64,
    data: u64,
}

fn is_data(mapping: &Mapping) -> bool {
    !mapping.shared && mapping.protection.write
}

impl AddressSpace {
    /// Sets how many bytes the guest may map in all, and how many of private writable memory; `u64::MAX` for as many as it likes.
    pub fn set_quota(&self, all: u64, data: u64) {
        self.quota.all.store(all, Ordering::Relaxed);
        self.quota.data.store(data, Ordering::Relaxed);
    }

    /// Refuses the guest what its limits do not leave it: `added` is to be in place of what is in `range`.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn check_quota(
        &self,
        map: &Mappings,
        range: Range<u64>,
        added: u64,
        is_data: bool,
    ) -> Result<(), Errno> {
        let most = Charge {
            all: self.quota.all.load(Ordering::Relaxed),
            data: self.quota.data.load(Ordering::Relaxed),
        };
        if most.all == u64::MAX && most.data == u64::MAX {
            return Ok(());
        }
        // Counted only for who has set a limit: hardly a program does.
        let now = self.charge(map.iter());
        let gone = self.charge(map.within(range).iter().map(|(range, mapping)| (range.clone(), mapping)));
        let fits = |now: u64, gone: u64, most: u64| (now - gone).saturating_add(added) <= most;
        let is_left = fits(now.all, gone.all, most.all) && (!is_data || fits(now.data, gone.data, most.data));
        if is_left { Ok(()) } else { Err(Errno(libc::ENOMEM)) }
    }

    /// The stack has all of its room from the beginning, which the kernel counts as it is used; what is kept is the emulator's.
    fn charge<'a>(&self, pieces: impl Iterator<Item = (Range<u64>, &'a Mapping)>) -> Charge {
        let charged =
            pieces.filter(|(range, mapping)| mapping.origin.name != "[stack]" && !self.is_kept(range));
        charged.fold(Charge::default(), |sum, (range, mapping)| {
            let bytes = range.end - range.start;
            Charge { all: sum.all + bytes, data: sum.data + if is_data(mapping) { bytes } else { 0 } }
        })
    }
}
