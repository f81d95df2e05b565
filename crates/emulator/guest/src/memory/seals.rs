//! Mappings whose permissions and address cannot be changed. Source: Linux Documentation/userspace-api/mseal.rst,
//! mseal(2).

use std::ops::Range;

use super::address_space::AddressSpace;
use super::mappings::{Mapping, Mappings, Marks};
use crate::Errno;

impl Mappings {
    /// Checks that a range has no sealed mapping.
    ///
    /// # Errors
    /// EPERM.
    pub(super) fn check_seals(&self, range: &Range<u64>) -> Result<(), Errno> {
        self.check(range, |mapping| mapping.marks.is_sealed)
    }

    /// Checks that the contents of a range may be discarded: a seal forbids it for private memory that the guest
    /// cannot write to.
    ///
    /// # Errors
    /// EPERM.
    pub(super) fn check_seals_of_contents(&self, range: &Range<u64>) -> Result<(), Errno> {
        self.check(range, |mapping| mapping.marks.is_sealed && !mapping.shared && !mapping.protection.write)
    }

    fn check(&self, range: &Range<u64>, forbids: impl Fn(&Mapping) -> bool) -> Result<(), Errno> {
        let is_forbidden = self.overlapping(range.clone()).any(|(_, mapping)| forbids(mapping));
        if is_forbidden { Err(Errno(libc::EPERM)) } else { Ok(()) }
    }
}

impl AddressSpace {
    /// Seals all mappings of a range (mseal).
    ///
    /// # Errors
    /// EINVAL for an invalid range; ENOMEM if a page is not mapped. No page is sealed then.
    pub fn seal(&self, start: u64, length: u64) -> Result<(), Errno> {
        if length == 0 && self.page_down(start) == start {
            return Ok(());
        }
        self.host_range(start, length)?;
        let end =
            self.page_up(length).and_then(|length| start.checked_add(length)).ok_or(Errno(libc::EINVAL))?;
        let mut map = self.write();
        if map.would_split(&(start..end)) {
            self.check_mapping_budget(&map)?;
        }
        for (piece, mapping) in map.within(start..end) {
            let marks = Marks { is_sealed: true, ..mapping.marks };
            map.insert(piece, Mapping { marks, ..mapping });
        }
        Ok(())
    }

    /// Makes a range of a restored process guards and seals it, according to `marks`.
    ///
    /// # Errors
    /// As for [`Self::set_guards`] and [`Self::seal`].
    pub fn restore_marks(&self, start: u64, length: u64, marks: Marks) -> Result<(), Errno> {
        if marks.is_guard {
            self.set_guards(start, length, true)?;
        }
        if marks.is_sealed { self.seal(start, length) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use crate::{AddressSpace, Errno, GuestMemory, MapRequest, PAGE_BYTES, Placement, Protection};

    const START: u64 = 1 << 20;
    const READ: Protection = Protection { read: true, write: false, execute: false };
    const EPERM: Errno = Errno(libc::EPERM);

    #[test]
    fn sealed_memory_keeps_its_place_and_permissions() {
        let space = AddressSpace::new(GuestMemory::reserve().unwrap());
        let write = Protection { write: true, ..READ };
        space.map_zeros(START, 4 * PAGE_BYTES, write).unwrap();
        let page = START + PAGE_BYTES;
        assert_eq!(space.seal(page + 8, PAGE_BYTES), Err(Errno(libc::EINVAL)));
        assert_eq!(space.seal(page, 8 * PAGE_BYTES), Err(Errno(libc::ENOMEM)));
        assert_eq!(space.seal(START + 100 * PAGE_BYTES, 0), Ok(()));
        space.seal(page, PAGE_BYTES).unwrap();
        assert_eq!(space.unmap(START, 2 * PAGE_BYTES), Err(EPERM));
        assert_eq!(space.protect(START, 4 * PAGE_BYTES, READ), Err(EPERM));
        assert_eq!(space.remap(page, PAGE_BYTES, 2 * PAGE_BYTES, libc::MREMAP_MAYMOVE, 0), Err(EPERM));
        let over = MapRequest::anonymous(Placement::Fixed(START), 2 * PAGE_BYTES, READ);
        assert_eq!(space.map(&over), Err(EPERM));
        // The contents of the sealed page may be changed as long as it is writable, and neighbouring pages are not
        // restricted.
        space.memory().store(page, 7u64).unwrap();
        space.advise(page, PAGE_BYTES, libc::MADV_DONTNEED).unwrap();
        space.unmap(START + 2 * PAGE_BYTES, PAGE_BYTES).unwrap();
        space.protect(START, PAGE_BYTES, READ).unwrap();
        space.seal(START, PAGE_BYTES).unwrap();
        assert_eq!(space.advise(START, PAGE_BYTES, libc::MADV_DONTNEED), Err(EPERM));
    }
}
