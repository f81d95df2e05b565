//! Changes to memory contents other than stores: madvise, wiping in a forked child, writes to a mapped file, and
//! detaching a segment. Source: madvise(2), shmdt(2), mmap(2), ftruncate(2).

use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::address_space::AddressSpace;
use super::mappings::{Mapping, Mappings};
use crate::Errno;
use crate::host::attention::suppress_own_attention;
use crate::host::host_call;

/// Maximum number of attempts to populate memory while other threads execute code there.
const MAX_RETRIES: usize = 1000;

/// Advice that the host records per mapping, and for which it may split mappings: MADV_NORMAL to MADV_SEQUENTIAL and
/// MADV_MERGEABLE to MADV_KEEPONFORK.
const RECORDED_PER_MAPPING: [std::ops::RangeInclusive<i32>; 2] =
    [libc::MADV_NORMAL..=libc::MADV_SEQUENTIAL, libc::MADV_MERGEABLE..=libc::MADV_KEEPONFORK];

/// Advice that discards contents, for this process or for its children.
const DISCARDING: [i32; 5] =
    [libc::MADV_DONTNEED, libc::MADV_FREE, libc::MADV_REMOVE, libc::MADV_DONTFORK, libc::MADV_WIPEONFORK];

impl AddressSpace {
    /// Applies madvise to the mapped parts of a range of whole pages.
    ///
    /// # Errors
    /// EINVAL for an invalid range, ENOMEM if a part is not mapped (the mapped parts have been advised), or the error
    /// of the host.
    pub fn advise(&self, start: u64, length: u64, advice: i32) -> Result<u64, Errno> {
        let end =
            self.page_up(length).and_then(|length| start.checked_add(length)).ok_or(Errno(libc::EINVAL))?;
        if !start.is_multiple_of(self.page_bytes()) {
            return Err(Errno(libc::EINVAL));
        }
        let range = start..end.min(self.memory().limit()).max(start);
        if self.overlaps_engine_range(&range) {
            return Err(Errno(libc::ENOMEM));
        }
        let is_fully_mapped = range.end == end && self.read().covers(range.clone());
        let is_rejected_for_vdso = matches!(
            advice,
            libc::MADV_FREE | libc::MADV_REMOVE | libc::MADV_WIPEONFORK | libc::MADV_DONTFORK
        );
        if is_rejected_for_vdso
            && self.read().within(range.clone()).iter().any(|(_, mapping)| is_vdso(mapping))
        {
            return Err(Errno(libc::EINVAL));
        }
        if DISCARDING.contains(&advice) {
            self.read().check_seals_of_contents(&range)?;
        }
        match advice {
            libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE => self.discard(range, advice)?,
            libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK => {
                self.check_mapping_budget_for_split()?;
                self.advise_children(range, advice)?;
            }
            libc::MADV_DONTFORK | libc::MADV_DOFORK => {
                self.set_dont_fork(range, advice == libc::MADV_DONTFORK)
            }
            libc::MADV_POPULATE_WRITE => self.populate(range)?,
            _ => {
                if RECORDED_PER_MAPPING.iter().any(|recorded| recorded.contains(&advice)) {
                    self.check_mapping_budget_for_split()?;
                }
                let pieces = self.read().within(range);
                pieces.into_iter().try_for_each(|(piece, _)| self.advise_host(&piece, advice))?;
            }
        }
        if is_fully_mapped { Ok(0) } else { Err(Errno(libc::ENOMEM)) }
    }

    fn advise_host(&self, piece: &Range<u64>, advice: i32) -> Result<(), Errno> {
        let arguments = [self.host(piece.start) as u64, piece.end - piece.start, advice as u64, 0, 0, 0];
        // SAFETY: whole pages of a guest mapping.
        unsafe { host_call(libc::SYS_madvise, arguments) }.map(drop)
    }

    /// Applies advice that discards contents. Invalidates code in the affected pages first. The map's write lock keeps
    /// other threads from translating this code again before its contents are discarded.
    fn discard(&self, range: Range<u64>, advice: i32) -> Result<(), Errno> {
        let map = self.read();
        let mut pieces = map.within(range.clone());
        pieces.retain(|(_, mapping)| !is_vdso(mapping));
        let has_code = pieces.iter().any(|(piece, _)| !map.views_of_code(piece).is_empty());
        drop(map);
        if !has_code {
            return pieces.into_iter().try_for_each(|(piece, _)| self.advise_host(&piece, advice));
        }
        let map = self.write();
        for (piece, mapping) in map.within(range).into_iter().filter(|(_, mapping)| !is_vdso(mapping)) {
            self.notify_all(map.views_of_code(&piece));
            // With MADV_FREE, the host discards pages at an unknown later time, at which code cannot be invalidated, so
            // discard them now.
            let discards_now = advice == libc::MADV_FREE && is_private_memory(&mapping);
            self.advise_host(&piece, if discards_now { libc::MADV_DONTNEED } else { advice })?;
        }
        Ok(())
    }

    fn advise_children(&self, range: Range<u64>, advice: i32) -> Result<(), Errno> {
        let mut map = self.write();
        for (piece, mapping) in map.within(range) {
            self.advise_host(&piece, advice)?;
            map.insert(piece, Mapping { wipe_on_fork: advice == libc::MADV_WIPEONFORK, ..mapping });
        }
        Ok(())
    }

    /// Records MADV_DONTFORK and MADV_DOFORK without forwarding them: the host would leave a hole in the child's
    /// reservation, where other host mappings could be placed.
    fn set_dont_fork(&self, range: Range<u64>, is_left_out: bool) {
        let mut map = self.write();
        for (piece, mapping) in map.within(range) {
            map.insert(piece, Mapping { dont_fork: is_left_out, ..mapping });
        }
    }

    /// Runs in a forked child that has its own memory: unmaps the ranges that the parent marked with MADV_DONTFORK.
    pub fn unmap_dont_fork(&self) {
        let map = self.read();
        let left_out: Vec<_> =
            map.iter().filter(|(_, mapping)| mapping.dont_fork).map(|(range, _)| range).collect();
        drop(map);
        for range in left_out {
            // This fails only if the host has no more mappings; the child then keeps memory that it should not see.
            let _ = self.unmap(range.start, range.end - range.start);
        }
    }

    /// Populates pages as a write to each page would. Makes pages with translated code writable first.
    fn populate(&self, range: Range<u64>) -> Result<(), Errno> {
        let pieces = self.read().within(range);
        pieces.into_iter().try_for_each(|(piece, _)| {
            for _ in 0..MAX_RETRIES {
                suppress_own_attention(|| self.memory().release_code(piece.clone()));
                let result = self.advise_host(&piece, libc::MADV_POPULATE_WRITE);
                if result.is_ok() || !self.memory().holds_watched_code(piece.start, piece.end - piece.start) {
                    return result;
                }
                std::thread::yield_now();
            }
            Err(Errno(libc::EINVAL))
        })
    }

    /// Runs in a forked child: invalidates code in memory that the fork wiped.
    pub fn invalidate_wiped_code(&self) {
        let map = self.read();
        let wiped = map.iter().filter(|(_, mapping)| mapping.wipe_on_fork && mapping.protection.execute);
        let wiped: Vec<_> = wiped.map(|(range, _)| range).collect();
        drop(map);
        self.notify_all(wiped);
    }

    /// Whether code is executed from a file's own pages, so that the caller must report file writes with
    /// [`Self::file_changed`].
    pub fn executes_file_pages(&self) -> bool {
        self.memory().0.file_code_mappings.load(Ordering::Acquire) != 0
    }

    /// Reports a possible write to the file of `descriptor`: invalidates code that is executed from its own pages.
    pub fn file_changed(&self, descriptor: RawFd) {
        if let Some((device, inode)) = file_of(descriptor) {
            let views = self.read().views_of_file(device, inode, |mapping| mapping.executes_file_pages());
            self.notify_all(views);
        }
    }

    /// Reports a possible truncation of the file of `descriptor`: invalidates code that is executed from it, in private
    /// mappings too, because they lose the same pages.
    pub fn file_truncated(&self, descriptor: RawFd) {
        if let Some((device, inode)) = file_of(descriptor) {
            self.inode_truncated(device, inode);
        }
    }

    /// Like [`Self::file_truncated`], for a file given by device and inode number.
    pub fn inode_truncated(&self, device: u64, inode: u64) {
        let views = self.read().views_of_file(device, inode, |mapping| mapping.protection.execute);
        self.notify_all(views);
    }

    /// The mapped parts of the System V segment attached at `address`. There are several after a part has been
    /// protected or unmapped.
    pub fn attached_at(&self, address: u64) -> Vec<Range<u64>> {
        let map = self.read();
        let of_segment = |(range, mapping): &(Range<u64>, &Mapping)| {
            mapping.is_segment() && range.start.checked_sub(mapping.offset) == Some(address)
        };
        let mut pieces = Mappings::overlapping(&map, address..self.memory().limit()).filter(of_segment);
        let Some((first, segment)) = pieces.next() else { return Vec::new() };
        let same = |(_, mapping): &(Range<u64>, &Mapping)| Arc::ptr_eq(&mapping.origin, &segment.origin);
        std::iter::once(first).chain(pieces.filter(same).map(|(range, _)| range)).collect()
    }
}

/// The device and inode number of an open file.
fn file_of(descriptor: RawFd) -> Option<(u64, u64)> {
    // SAFETY: `libc::stat` is plain data.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `status` is valid for writes.
    let succeeded = unsafe { libc::fstat(descriptor, &raw mut status) } == 0;
    succeeded.then_some((status.st_dev, status.st_ino))
}

/// Whether the mapping is the vDSO. The kernel would provide its contents again after discarding them, but the emulator
/// does not.
fn is_vdso(mapping: &Mapping) -> bool {
    mapping.origin.name == "[vdso]"
}

fn is_private_memory(mapping: &Mapping) -> bool {
    !mapping.shared && !mapping.origin.is_file
}
