//! Guard regions: pages of a mapping that fault on every access, until the guard is removed or the page is unmapped. They
//! are mappings without host permissions, so that they do not depend on the host's kernel. Source: madvise(2)
//! (MADV_GUARD_INSTALL, MADV_GUARD_REMOVE), Linux mm/madvise.c.

use std::ops::Range;

use super::address_space::{AddressSpace, writable_views};
use super::mappings::{Mapping, Mappings, Marks};
use crate::Errno;

impl AddressSpace {
    /// Makes the pages of a range guards and discards their contents (MADV_GUARD_INSTALL), or removes the guards
    /// (MADV_GUARD_REMOVE), after which private memory reads as zero.
    ///
    /// # Errors
    /// EINVAL for an invalid range or a device; ENOMEM if a part is not mapped, after the mapped parts were changed;
    /// EPERM if a part is sealed.
    pub fn set_guards(&self, start: u64, length: u64, installs: bool) -> Result<(), Errno> {
        let end =
            self.page_up(length).and_then(|length| start.checked_add(length)).ok_or(Errno(libc::EINVAL))?;
        if !start.is_multiple_of(self.page_bytes()) {
            return Err(Errno(libc::EINVAL));
        }
        if start == end {
            return Ok(());
        }
        let is_whole = self.host_range(start, length).is_ok();
        let range = start..end.min(self.memory().limit()).max(start);
        if self.overlaps_engine_range(&range) {
            return Err(Errno(libc::ENOMEM));
        }
        let mut map = self.write();
        if map.overlapping(range.clone()).any(|(_, mapping)| mapping.origin.window.is_some()) {
            return Err(Errno(libc::EINVAL));
        }
        if installs {
            map.check_seals_of_contents(&range)?;
        }
        if map.would_split(&range) {
            self.check_mapping_budget(&map)?;
        }
        self.invalidate_code(&map, &range);
        let mut views = Vec::new();
        let code_guard = self.lock_code_pages();
        for (piece, mapping) in map.within(range) {
            if mapping.marks.is_guard == installs {
                continue;
            }
            let marks = Marks { is_guard: installs, ..mapping.marks };
            let changed = Mapping { marks, ..mapping };
            if installs {
                self.discard_contents(&piece);
            }
            self.protect_host(&piece, &changed)?;
            let was = map.insert(piece.clone(), changed.clone());
            self.set_executable(&piece, was, changed.protection);
            if !installs {
                // Code that is also mapped elsewhere can again be written through these pages.
                views.extend(writable_views(&map, &piece, &changed));
            }
        }
        drop(code_guard);
        self.notify_all(views);
        if is_whole { Ok(()) } else { Err(Errno(libc::ENOMEM)) }
    }

    /// Moves guards from `old` to `new`, the ranges of a mapping before and after mremap(2).
    pub(super) fn move_guards(
        &self,
        map: &mut Mappings,
        guards: Vec<(Range<u64>, Mapping)>,
        old: &Range<u64>,
        new: &Range<u64>,
    ) -> Result<(), Errno> {
        for (piece, guard) in guards {
            if map.at(piece.start).is_some_and(|(_, left)| left.marks.is_guard) {
                map.insert(piece.clone(), guard.without_guard());
            }
            map.insert(piece.start - old.start + new.start..piece.end - old.start + new.start, guard);
        }
        // Memory that the mapping has grown by has the host permissions of its last page.
        for (piece, mapping) in [map.within(old.clone()), map.within(new.clone())].concat() {
            self.protect_host(&piece, &mapping)?;
        }
        Ok(())
    }

    fn discard_contents(&self, piece: &Range<u64>) {
        // SAFETY: inside a guest mapping. A locked page keeps its contents, which no access reaches.
        unsafe {
            libc::madvise(self.host(piece.start), (piece.end - piece.start) as usize, libc::MADV_DONTNEED)
        };
    }
}

#[cfg(test)]
mod tests {
    use longma_loongarch::FaultCause;

    use crate::{AddressSpace, Errno, GuestMemory, PAGE_BYTES, Protection};

    const START: u64 = 1 << 20;
    const WRITE: Protection = Protection { read: true, write: true, execute: false };

    fn space() -> AddressSpace {
        let space = AddressSpace::new(GuestMemory::reserve().unwrap());
        space.map_zeros(START, 4 * PAGE_BYTES, WRITE).unwrap();
        (0..4).for_each(|page| space.memory().store(START + page * PAGE_BYTES, 7u64).unwrap());
        space
    }

    #[test]
    fn a_guard_faults_whatever_its_permissions_until_it_is_removed() {
        let space = space();
        let guard = START + PAGE_BYTES;
        space.set_guards(guard, PAGE_BYTES, true).unwrap();
        let faults = |space: &AddressSpace| {
            let fault = space.memory().load::<u64>(guard).unwrap_err();
            assert_eq!((fault.address, fault.cause), (guard, FaultCause::Unmapped));
            assert!(space.memory().store(guard, 1u64).is_err());
        };
        faults(&space);
        assert_eq!(space.memory().load::<u64>(START), Ok(7));
        assert_eq!(space.memory().load::<u64>(guard + PAGE_BYTES), Ok(7));
        space.protect(START, 4 * PAGE_BYTES, Protection { write: false, ..WRITE }).unwrap();
        space.protect(START, 4 * PAGE_BYTES, WRITE).unwrap();
        space.advise(guard, PAGE_BYTES, libc::MADV_DONTNEED).unwrap();
        faults(&space);
        space.set_guards(START, 4 * PAGE_BYTES, false).unwrap();
        assert_eq!(space.memory().load::<u64>(guard), Ok(0));
        assert_eq!(space.memory().load::<u64>(START), Ok(7));
    }

    #[test]
    fn guards_move_with_their_mapping() {
        let space = space();
        let guard = START + PAGE_BYTES;
        let reads = |at: u64| space.memory().load::<u64>(at).ok();
        space.set_guards(guard, PAGE_BYTES, true).unwrap();
        let moved = space.remap(START, 4 * PAGE_BYTES, 8 * PAGE_BYTES, libc::MREMAP_MAYMOVE, 0);
        assert_eq!(moved, Ok(START), "it grows in place");
        let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let new = START + 32 * PAGE_BYTES;
        assert_eq!(space.remap(START, 8 * PAGE_BYTES, 9 * PAGE_BYTES, fixed, new), Ok(new));
        let found: Vec<_> = (0..9).map(|page| reads(new + page * PAGE_BYTES)).collect();
        let [seven, zero] = [Some(7), Some(0)];
        assert_eq!(found, [seven, None, seven, seven, zero, zero, zero, zero, zero]);
        assert_eq!(reads(START), None);
        // The first and the last page are guards; the memory after the last page is accessible.
        space.set_guards(new, PAGE_BYTES, true).unwrap();
        space.set_guards(new + 8 * PAGE_BYTES, PAGE_BYTES, true).unwrap();
        let last = new + 32 * PAGE_BYTES;
        assert_eq!(space.remap(new, 9 * PAGE_BYTES, 10 * PAGE_BYTES, fixed, last), Ok(last));
        let found: Vec<_> = (0..10).map(|page| reads(last + page * PAGE_BYTES)).collect();
        assert_eq!(found, [None, None, seven, seven, zero, zero, zero, zero, None, zero]);
        space.set_guards(last, 10 * PAGE_BYTES, false).unwrap();
        space.memory().store(last, 3u64).unwrap();
        // With MREMAP_DONTUNMAP, the guards disappear from the old range.
        space.set_guards(last, PAGE_BYTES, true).unwrap();
        let keep = fixed | libc::MREMAP_DONTUNMAP;
        let bytes = 10 * PAGE_BYTES;
        assert_eq!(space.remap(last, bytes, bytes, keep, START), Ok(START));
        assert_eq!((reads(START), reads(START + 2 * PAGE_BYTES)), (None, seven));
        assert_eq!((reads(last), reads(last + 2 * PAGE_BYTES)), (zero, zero));
    }

    #[test]
    fn guards_go_with_their_mapping() {
        let space = space();
        space.set_guards(START, PAGE_BYTES, true).unwrap();
        space.map_zeros(START, PAGE_BYTES, WRITE).unwrap();
        space.memory().store(START, 1u64).unwrap();
        assert_eq!(space.set_guards(START + 1, PAGE_BYTES, true), Err(Errno(libc::EINVAL)));
        assert_eq!(space.set_guards(START, 5 * PAGE_BYTES, true), Err(Errno(libc::ENOMEM)));
        assert!(space.memory().load::<u64>(START).is_err());
    }
}
