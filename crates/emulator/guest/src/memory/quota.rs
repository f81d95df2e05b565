//! Enforces the guest's limits RLIMIT_AS and RLIMIT_DATA. Data is private writable memory. The stack limit is separate.
//! Source: getrlimit(2), RLIMIT_AS and RLIMIT_DATA; Linux mm/vma.c (may_expand_vm).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::AddressSpace;
use super::mappings::{Mapping, Mappings};
use crate::Errno;

/// The limits in bytes; `u64::MAX` means unlimited.
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

/// Bytes that count against the limits: the total and the data.
#[derive(Clone, Copy, Debug, Default)]
struct Charge {
    all: u64,
    data: u64,
}

fn is_data(mapping: &Mapping) -> bool {
    !mapping.shared && mapping.protection.write
}

impl AddressSpace {
    /// Sets the limits for all mapped bytes and for private writable bytes; `u64::MAX` means unlimited.
    pub fn set_quota(&self, all: u64, data: u64) {
        self.quota.all.store(all, Ordering::Relaxed);
        self.quota.data.store(data, Ordering::Relaxed);
    }

    /// Checks that `added` bytes, which replace the mappings in `range`, stay within the limits.
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
        let limits = Charge {
            all: self.quota.all.load(Ordering::Relaxed),
            data: self.quota.data.load(Ordering::Relaxed),
        };
        if limits.all == u64::MAX && limits.data == u64::MAX {
            return Ok(());
        }
        // Sums are computed only if a limit is set, which is rare.
        let now = self.charge(map.iter());
        let replaced = self.charge(map.within(range).iter().map(|(range, mapping)| (range.clone(), mapping)));
        let fits = |now: u64, replaced: u64, limit: u64| (now - replaced).saturating_add(added) <= limit;
        let is_within = fits(now.all, replaced.all, limits.all)
            && (!is_data || fits(now.data, replaced.data, limits.data));
        if is_within { Ok(()) } else { Err(Errno(libc::ENOMEM)) }
    }

    /// The bytes of `pieces` that count against the limits. The stack is excluded: it is mapped completely from the
    /// start, while the kernel counts it as it grows. Ranges of the translator are excluded, too.
    fn charge<'a>(&self, pieces: impl Iterator<Item = (Range<u64>, &'a Mapping)>) -> Charge {
        let charged = pieces.filter(|(range, mapping)| {
            mapping.origin.name != "[stack]" && !self.overlaps_engine_range(range)
        });
        charged.fold(Charge::default(), |sum, (range, mapping)| {
            let bytes = range.end - range.start;
            Charge { all: sum.all + bytes, data: sum.data + if is_data(mapping) { bytes } else { 0 } }
        })
    }
}
