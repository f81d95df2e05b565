//! Memory whose contents change otherwise than by stores: advised away, wiped in a child, written to through its file, detached.
//! Not unmapping and moving: that is `address_space`'s.
//! Source: madvise(2), shmdt(2), mmap(2), ftruncate(2).

use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::address_space::AddressSpace;
use super::mappings::{Mapping, Mappings};
use crate::Errno;
use crate::host::attention::spare_own;
use crate::host::host_call;

/// How often memory is populated again because another thread has run code there: more than it can by chance.
const TRIES: usize = 1000;

/// Advice that the host keeps with a mapping, which it cuts for that: from MADV_NORMAL on, and from MADV_MERGEABLE on.
const KEPT_WITH_MAPPINGS: [std::ops::RangeInclusive<i32>; 2] =
    [libc::MADV_NORMAL..=libc::MADV_SEQUENTIAL, libc::MADV_MERGEABLE..=libc::MADV_KEEPONFORK];

impl AddressSpace {
    /// Gives the host advice about what is mapped of a range of whole pages.
    ///
    /// # Errors
    /// EINVAL for addresses that cannot be, ENOMEM if not all of the range is mapped (what is has been advised of), and the host's.
    pub fn advise(&self, start: u64, length: u64, advice: i32) -> Result<u64, Errno> {
        let end =
            self.page_up(length).and_then(|length| start.checked_add(length)).ok_or(Errno(libc::EINVAL))?;
        if !start.is_multiple_of(self.page_bytes()) {
            return Err(Errno(libc::EINVAL));
        }
        let range = start..end.min(self.memory().limit()).max(start);
        if self.is_kept(&range) {
            return Err(Errno(libc::ENOMEM));
        }
        let is_whole = range.end == end && self.read().covers(range.clone());
        let replaces = matches!(
            advice,
            libc::MADV_FREE | libc::MADV_REMOVE | libc::MADV_WIPEONFORK | libc::MADV_DONTFORK
        );
        if replaces && self.read().within(range.clone()).iter().any(|(_, mapping)| is_kernel_code(mapping)) {
            return Err(Errno(libc::EINVAL));
        }
        match advice {
            libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE => self.replace(range, advice)?,
            libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK => {
                self.check_room_for_cut()?;
                self.advise_children(range, advice)?;
            }
            libc::MADV_DONTFORK | libc::MADV_DOFORK => self.leave_out(range, advice == libc::MADV_DONTFORK),
            libc::MADV_POPULATE_WRITE => self.populate(range)?,
            _ => {
                if KEPT_WITH_MAPPINGS.iter().any(|kept| kept.contains(&advice)) {
                    self.check_room_for_cut()?;
                }
                let pieces = self.read().within(range);
                pieces.into_iter().try_for_each(|(piece, _)| self.advise_host(&piece, advice))?;
            }
        }
        if is_whole { Ok(0) } else { Err(Errno(libc::ENOMEM)) }
    }

    fn advise_host(&self, piece: &Range<u64>, advice: i32) -> Result<(), Errno> {
        let arguments = [self.host(piece.start) as u64, piece.end - piece.start, advice as u64, 0, 0, 0];
        // SAFETY: whole pages of a guest mapping.
        unsafe { host_call(libc::SYS_madvise, arguments) }.map(drop)
    }

    /// Contents go. Code in them is forgotten before, and read again by nobody until they are gone: the map is locked.
    fn replace(&self, range: Range<u64>, advice: i32) -> Result<(), Errno> {
        let map = self.read();
        let mut pieces = map.within(range.clone());
        pieces.retain(|(_, mapping)| !is_kernel_code(mapping));
        let has_code = pieces.iter().any(|(piece, _)| !map.views_of_code(piece).is_empty());
        drop(map);
        if !has_code {
            return pieces.into_iter().try_for_each(|(piece, _)| self.advise_host(&piece, advice));
        }
        let map = self.write();
        for (piece, mapping) in map.within(range).into_iter().filter(|(_, mapping)| !is_kernel_code(mapping))
        {
            self.notify_all(map.views_of_code(&piece));
            // Pages that the host takes at some later time could not be told of.
            let at_once = advice == libc::MADV_FREE && is_private_memory(&mapping);
            self.advise_host(&piece, if at_once { libc::MADV_DONTNEED } else { advice })?;
        }
        Ok(())
    }

    fn advise_children(&self, range: Range<u64>, advice: i32) -> Result<(), Errno> {
        let mut map = self.write();
        for (piece, mapping) in map.within(range) {
            self.advise_host(&piece, advice)?;
            map.insert(piece, Mapping { wiped_in_children: advice == libc::MADV_WIPEONFORK, ..mapping });
        }
        Ok(())
    }

    /// The host is not told: what it left out would be a hole in the child's reservation, where anything could come to lie.
    fn leave_out(&self, range: Range<u64>, is_left_out: bool) {
        let mut map = self.write();
        for (piece, mapping) in map.within(range) {
            map.insert(piece, Mapping { left_out_of_children: is_left_out, ..mapping });
        }
    }

    /// In a forked child that has its own memory: unmaps what its parent has left out.
    pub fn unmap_left_out(&self) {
        let map = self.read();
        let left_out: Vec<_> =
            map.iter().filter(|(_, mapping)| mapping.left_out_of_children).map(|(range, _)| range).collect();
        drop(map);
        for range in left_out {
            // It can fail for want of mappings only; then the child sees more than it should.
            let _ = self.unmap(range.start, range.end - range.start);
        }
    }

    /// As writing to every page, for which those that hold code must be writable.
    fn populate(&self, range: Range<u64>) -> Result<(), Errno> {
        let pieces = self.read().within(range);
        pieces.into_iter().try_for_each(|(piece, _)| {
            for _ in 0..TRIES {
                spare_own(|| self.memory().release_code(piece.clone()));
                let done = self.advise_host(&piece, libc::MADV_POPULATE_WRITE);
                if done.is_ok() || !self.memory().holds_watched_code(piece.start, piece.end - piece.start) {
                    return done;
                }
                std::thread::yield_now();
            }
            Err(Errno(libc::EINVAL))
        })
    }

    /// In a forked child: code that has been wiped is forgotten.
    pub fn forget_wiped(&self) {
        let map = self.read();
        let wiped = map.iter().filter(|(_, mapping)| mapping.wiped_in_children && mapping.protection.execute);
        let wiped: Vec<_> = wiped.map(|(range, _)| range).collect();
        drop(map);
        self.notify_all(wiped);
    }

    /// Whether code runs from a file's own memory, so that [`Self::file_changed`] must be told of what is written to files.
    pub fn runs_from_files(&self) -> bool {
        self.memory().0.run_from_files.load(Ordering::Acquire) != 0
    }

    /// What `descriptor` is open on may have been written to: code that runs from its own memory is forgotten.
    pub fn file_changed(&self, descriptor: RawFd) {
        if let Some((device, inode)) = file_of(descriptor) {
            let views = self.read().views_of_file(device, inode, |mapping| mapping.is_run_from_file());
            self.notify_all(views);
        }
    }

    /// What `descriptor` is open on may have lost a part: code that runs from it is forgotten, by private mappings too, which lose it as
    /// well.
    pub fn file_cut(&self, descriptor: RawFd) {
        if let Some((device, inode)) = file_of(descriptor) {
            self.cut(device, inode);
        }
    }

    /// As [`Self::file_cut`], for the file of this number.
    pub fn cut(&self, device: u64, inode: u64) {
        let views = self.read().views_of_file(device, inode, |mapping| mapping.protection.execute);
        self.notify_all(views);
    }

    /// What is mapped of the System V segment that was attached at `address`: more than one piece once a part of it has been
    /// protected otherwise or unmapped.
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

/// Device and inode of what is open.
fn file_of(descriptor: RawFd) -> Option<(u64, u64)> {
    // SAFETY: plain data.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is there to be filled.
    let found = unsafe { libc::fstat(descriptor, &raw mut status) } == 0;
    found.then_some((status.st_dev, status.st_ino))
}

/// Whether it is the kernel's code for programs, which the kernel would show again, and nobody here.
fn is_kernel_code(mapping: &Mapping) -> bool {
    mapping.origin.name == "[vdso]"
}

fn is_private_memory(mapping: &Mapping) -> bool {
    !mapping.shared && !mapping.origin.is_file
}
