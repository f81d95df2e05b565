//! Mappings that grow downwards when memory below them is accessed. Source: mmap(2) (MAP_GROWSDOWN), Linux mm/vma.c.

use super::guest_memory::GuestMemory;

/// The maximum length of a mapping that has grown, in bytes: Linux's default stack limit.
const MAX_BYTES: u64 = 8 << 20;

impl GuestMemory {
    /// Extends the mapping above the unmapped `address` down to its page. Returns false if that mapping does not grow,
    /// or not so far.
    pub(super) fn grow_down(&self, address: u64) -> bool {
        let start = address & !(self.page_bytes() - 1);
        // Most faults are not below such a mapping: they need not wait for other readers.
        if !self.grows_at(start) {
            return false;
        }
        let mut map = self.0.map.write().expect("the map's lock is never poisoned: nothing panics under it");
        let Some((above, mapping)) = map.next_from(start).map(|(range, mapping)| (range, mapping.clone()))
        else {
            return false;
        };
        if above.start <= start || !mapping.marks.grows_down || above.end - start > MAX_BYTES {
            // Another thread may have extended it.
            return above.start <= start && above.end > start;
        }
        // SAFETY: an unmapped part of the reservation, and the map is locked.
        let mapped = unsafe {
            libc::mmap(
                self.0.base.wrapping_add(start as usize).cast(),
                (above.start - start) as usize,
                mapping.host_bits(),
                libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if mapped != libc::MAP_FAILED {
            if mapping.protection.execute {
                let pages = start / super::HOST_PAGE_BYTES..above.start / super::HOST_PAGE_BYTES;
                self.0.executable.insert_range(pages);
            }
            map.insert(start..above.start, mapping);
        }
        mapped != libc::MAP_FAILED
    }

    fn grows_at(&self, start: u64) -> bool {
        let map = self.0.map.read().expect("the map's lock is never poisoned: nothing panics under it");
        map.next_from(start).is_some_and(|(range, mapping)| range.start > start && mapping.marks.grows_down)
    }
}

#[cfg(test)]
mod tests {
    use crate::{AddressSpace, GuestMemory, MapRequest, PAGE_BYTES, Placement, Protection};

    const START: u64 = 1 << 26;
    const WRITE: Protection = Protection { read: true, write: true, execute: false };

    #[test]
    fn an_access_below_extends_the_mapping() {
        let space = AddressSpace::new(GuestMemory::reserve().unwrap());
        let request = MapRequest::anonymous(Placement::Fixed(START), PAGE_BYTES, WRITE);
        space.map(&MapRequest { grows_down: true, ..request }).unwrap();
        space.memory().store(START - 8, 7u64).unwrap();
        assert_eq!(space.memory().load::<u64>(START - 4 * PAGE_BYTES), Ok(0));
        let (range, _) = space.mapping(START).unwrap();
        assert_eq!(range, START - 4 * PAGE_BYTES..START + PAGE_BYTES);
        assert_eq!(space.memory().load::<u64>(START - 8), Ok(7));
    }

    #[test]
    fn growth_ends_at_the_limit_and_at_other_mappings() {
        let space = AddressSpace::new(GuestMemory::reserve().unwrap());
        let request = MapRequest::anonymous(Placement::Fixed(START), PAGE_BYTES, WRITE);
        space.map(&MapRequest { grows_down: true, ..request }).unwrap();
        assert!(space.memory().load::<u64>(START - (8 << 20)).is_err());
        assert!(space.memory().load::<u64>(START + PAGE_BYTES).is_err());
        space.map_zeros(START - 2 * PAGE_BYTES, PAGE_BYTES, WRITE).unwrap();
        assert!(space.memory().load::<u64>(START - 3 * PAGE_BYTES).is_err());
        assert_eq!(space.memory().load::<u64>(START - PAGE_BYTES), Ok(0));
    }
}
