//! Limits the guest's mappings so that the emulator does not exhaust vm.max_map_count. The guest gets ENOMEM while
//! about 2,000 mappings are still left for the emulator. The count is an estimate. Source: mmap(2) (ENOMEM: the
//! process's maximum number of mappings), proc_sys_vm(5) (max_map_count), proc_pid_maps(5).

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::AddressSpace;
use super::mappings::Mappings;
use crate::Errno;
use crate::host::locks::Lazy;

/// Mappings reserved for the emulator: its allocator, its translated code, its thread stacks.
const RESERVED: usize = 2048;

/// Estimate of the mappings that the emulator has already (libraries, heaps, stacks), used until the exact number has
/// been counted.
const ASSUMED_USED: usize = 2048;

/// The maximum number of mappings that one call adds: both of its ends may split a mapping, and the tail of a file's
/// last page becomes a separate mapping.
const MAX_ADDED: usize = 4;

/// The maximum number of mappings that a write-protected code page adds.
const SPLITS_PER_PAGE: usize = 2;

/// An estimate of the host's mappings. Most changes hold the map's lock; concurrent changes without it only make the
/// estimate less accurate.
#[derive(Debug, Default)]
pub(super) struct MappingBudget {
    /// Splits caused by madvise and mlock, which the map does not show.
    splits: AtomicUsize,
    /// The number of mappings that the guest may create before they are counted again.
    left: AtomicUsize,
}

impl MappingBudget {
    /// Whether the guest may create or split a mapping. `watched` is the number of write-protected code pages.
    pub fn allows_split(&self, map: &Mappings, watched: usize) -> bool {
        let Some(max) = *MAX_MAP_COUNT else { return true };
        let estimate = map.pieces() + SPLITS_PER_PAGE * watched + self.splits.load(Ordering::Relaxed);
        if estimate + ASSUMED_USED + RESERVED < max || self.take() {
            return true;
        }
        let Some(now) = count() else { return true };
        self.left.store(max.saturating_sub(RESERVED + now), Ordering::Relaxed);
        self.take()
    }

    fn take(&self) -> bool {
        let less = |left: usize| left.checked_sub(MAX_ADDED);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Records that the host may have split a mapping at two addresses.
    pub fn record_split(&self) {
        self.splits.fetch_add(2, Ordering::Relaxed);
    }
}

/// The host's limit, if it is readable.
static MAX_MAP_COUNT: Lazy<Option<usize>> =
    Lazy::new(|| std::fs::read_to_string("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok());

/// Counts the mappings of the process, one for each line of /proc/self/maps. It allocates nothing, because the process
/// may be out of mappings.
fn count() -> Option<usize> {
    let mut maps = std::fs::File::open("/proc/self/maps").ok()?;
    let (mut lines, mut buffer) = (0, [0; 4096]);
    loop {
        match maps.read(&mut buffer).ok()? {
            0 => return Some(lines),
            read => lines += buffer[..read].iter().filter(|byte| **byte == b'\n').count(),
        }
    }
}

impl AddressSpace {
    /// Checks that the guest may create or split a mapping.
    ///
    /// # Errors
    /// ENOMEM if only the emulator's reserve is left.
    pub(super) fn check_mapping_budget(&self, map: &Mappings) -> Result<(), Errno> {
        let allows_split = self.mapping_budget.allows_split(map, self.memory().0.code.count());
        if allows_split { Ok(()) } else { Err(Errno(libc::ENOMEM)) }
    }

    /// Checks whether the budget allows advice or a lock that the host stores for a part of a mapping.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn check_mapping_budget_for_split(&self) -> Result<(), Errno> {
        self.mapping_budget.record_split();
        self.check_mapping_budget(&self.read())
    }
}
