//! Ranges of the address space that belong to the translator. The guest can read them but cannot write to them or
//! change their mappings. Source: mprotect(2), pkeys(7).

use std::ops::Range;

use longma_loongarch::{Access, Fault, FaultCause};

use super::address_space::AddressSpace;
use super::write_key::WriteKey;
use super::{HOST_PAGE_BYTES, access};

/// A range that belongs to the translator.
#[derive(Debug)]
pub(super) struct EngineRange {
    range: Range<u64>,
    /// The protection key of its pages. With `None`, each write temporarily makes the pages writable.
    key: Option<WriteKey>,
}

/// Writes to pages at most this far apart share one protection change, because a system call costs more than a few
/// unneeded pages.
const MAX_MERGED_GAP_BYTES: u64 = 64 << 10;

impl AddressSpace {
    /// Reserves `range` for the translator: guest calls do not change it. The caller has mapped it as private anonymous
    /// memory that is readable and not writable.
    pub fn reserve_for_engine(&mut self, range: Range<u64>) {
        let bytes = (range.end - range.start) as usize;
        // SAFETY: whole pages that the caller has mapped, and no code relies on their contents yet.
        let key = WriteKey::of_process().filter(|key| unsafe { key.protect(self.host(range.start), bytes) });
        self.engine_ranges.push(EngineRange { range, key });
    }

    pub(super) fn overlaps_engine_range(&self, range: &Range<u64>) -> bool {
        self.engine_ranges.iter().any(|EngineRange { range: reserved, .. }| {
            range.start < reserved.end && reserved.start < range.end
        })
    }

    /// Writes words at ascending addresses in reserved ranges. Concurrent readers see the old or the new value of each
    /// word. A caller that replaces code must invalidate its translations.
    ///
    /// # Errors
    /// An address is not in a reserved range, or the host has no memory. The words before the failing one have been
    /// written.
    pub fn write_engine_range(&self, words: &[(u64, u32)]) -> Result<(), Fault> {
        if words.is_empty() {
            return Ok(());
        }
        let page = |address: u64| address & !(HOST_PAGE_BYTES - 1);
        // The lock keeps other threads from mapping or protecting memory.
        let _map = self.write();
        let mut rest = words;
        while let Some(&(first, _)) = rest.first() {
            let start = page(first);
            let mut end = start + HOST_PAGE_BYTES;
            let follows = |(address, _): &&(u64, u32)| {
                if (end..end + MAX_MERGED_GAP_BYTES).contains(&page(*address)) {
                    end = page(*address) + HOST_PAGE_BYTES;
                }
                (start..end).contains(address)
            };
            let count = rest.iter().take_while(follows).count();
            let (run, later) = rest.split_at(count);
            rest = later;
            self.write_run(start..end, run)?;
        }
        Ok(())
    }

    /// Writes words that are inside `pages`, which are whole host pages.
    fn write_run(&self, pages: Range<u64>, words: &[(u64, u32)]) -> Result<(), Fault> {
        let fault = |cause| Fault { address: pages.start, access: Access::Write, cause };
        let contains_all =
            |reserved: &&EngineRange| reserved.range.start <= pages.start && pages.end <= reserved.range.end;
        let reserved = self.engine_ranges.iter().find(contains_all).ok_or(fault(FaultCause::Forbidden))?;
        let (host, bytes) = (self.host(pages.start), (pages.end - pages.start) as usize);
        let write = || {
            words.iter().all(|&(address, word)| {
                // SAFETY: four bytes inside the pages.
                address.is_multiple_of(4)
                    && unsafe { access::store::<4>(self.host(address).cast(), word.into()) }.is_ok()
            })
        };
        if let Some(key) = reserved.key {
            // The pages lose the key when `open` in `post_syscall_copy` restores their protection with mprotect.
            // SAFETY: whole pages of a reserved range.
            if key.permit(write) || (unsafe { key.protect(host, bytes) } && key.permit(write)) {
                return Ok(());
            }
        }
        let protect = |bits| {
            // SAFETY: whole pages of a reserved range, which is mapped, anonymous and private; the map is locked.
            unsafe { libc::mprotect(host, bytes, bits) }
        };
        if protect(libc::PROT_READ | libc::PROT_WRITE) != 0 {
            return Err(fault(FaultCause::BeyondFile));
        }
        let written = write();
        // If this fails, the guest can write to its own code, which affects no other process.
        protect(libc::PROT_READ);
        if written { Ok(()) } else { Err(fault(FaultCause::BeyondFile)) }
    }
}

#[cfg(test)]
mod tests {
    use crate::{AddressSpace, GuestMemory, MapRequest, PAGE_BYTES, Placement, Protection};

    const START: u64 = 1 << 20;

    #[test]
    fn without_a_key_pages_are_written_and_protected_again() {
        let mut space = AddressSpace::new(GuestMemory::reserve().unwrap());
        let readable = Protection { read: true, write: false, execute: true };
        space.map(&MapRequest::anonymous(Placement::FixedNoReplace(START), PAGE_BYTES, readable)).unwrap();
        space.reserve_for_engine(START..START + PAGE_BYTES);
        space.engine_ranges[0].key = None;
        let start = space.host(START);
        // SAFETY: the page belongs to this space. Key 0 is the default key; without protection keys, the first call
        // fails harmlessly.
        let protected = unsafe {
            libc::syscall(libc::SYS_pkey_mprotect, start, PAGE_BYTES, libc::PROT_READ, 0);
            libc::mprotect(start, PAGE_BYTES as usize, libc::PROT_READ)
        };
        assert_eq!(protected, 0);
        space.write_engine_range(&[(START, 1), (START + 4092, 2), (START + 4096, 3)]).unwrap();
        let read = [START, START + 4092, START + 4096].map(|address| space.memory().load::<u32>(address));
        assert_eq!(read, [Ok(1), Ok(2), Ok(3)]);
        assert!(space.memory().store::<u32>(START, 4).is_err());
        assert!(space.write_engine_range(&[(START + PAGE_BYTES, 1)]).is_err(), "outside the reserved range");
        assert!(space.write_engine_range(&[(START + 2, 1)]).is_err(), "an address that is not word-aligned");
    }
}
