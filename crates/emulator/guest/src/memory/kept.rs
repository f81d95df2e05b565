//! Parts of the address space that an engine keeps for itself: the guest can read them, and can neither write nor map there.
//! Not what the engine puts there.
//! Source: mprotect(2), pkeys(7).

use std::ops::Range;

use longma_loongarch::{Access, Fault, FaultCause};

use super::address_space::AddressSpace;
use super::write_key::WriteKey;
use super::{HOST_PAGE_BYTES, access};

/// A part of the address space that is kept.
#[derive(Debug)]
pub(super) struct Kept {
    range: Range<u64>,
    /// What its pages are protected with; `None` if each write takes their protection away for a moment.
    key: Option<WriteKey>,
}

/// Pages that are no farther apart are written to in one go: a call of the host's costs more than a few pages between.
const NEAR_BYTES: u64 = 64 << 10;

impl AddressSpace {
    /// From now on the guest's calls leave `range` as it is; what it shows is mapped by the caller before, private, anonymous, readable
    /// and not writable.
    pub fn keep(&mut self, range: Range<u64>) {
        let bytes = (range.end - range.start) as usize;
        // SAFETY: whole pages of what the caller has mapped, which has no content yet that could be written to.
        let key = WriteKey::of_process().filter(|key| unsafe { key.protect(self.host(range.start), bytes) });
        self.kept.push(Kept { range, key });
    }

    pub(super) fn is_kept(&self, range: &Range<u64>) -> bool {
        self.kept.iter().any(|Kept { range: kept, .. }| range.start < kept.end && kept.start < range.end)
    }

    /// Writes words to what is kept, at addresses that ascend. Threads that read them meanwhile see the old or the new ones. Whoever
    /// replaces code sees to it himself that what is known of it is forgotten.
    ///
    /// # Errors
    /// An address is not in what is kept, or the host gives no memory; the words before it are written.
    pub fn write_kept(&self, words: &[(u64, u32)]) -> Result<(), Fault> {
        if words.is_empty() {
            return Ok(());
        }
        let page = |address: u64| address & !(HOST_PAGE_BYTES - 1);
        // Nobody maps or protects anything meanwhile.
        let _map = self.write();
        let mut rest = words;
        while let Some(&(first, _)) = rest.first() {
            let start = page(first);
            let mut end = start + HOST_PAGE_BYTES;
            let follows = |(address, _): &&(u64, u32)| {
                if (end..end + NEAR_BYTES).contains(&page(*address)) {
                    end = page(*address) + HOST_PAGE_BYTES;
                }
                (start..end).contains(address)
            };
            let count = rest.iter().take_while(follows).count();
            let (run, behind) = rest.split_at(count);
            rest = behind;
            self.write_run(start..end, run)?;
        }
        Ok(())
    }

    /// Writes words that lie in whole pages of the host.
    fn write_run(&self, pages: Range<u64>, words: &[(u64, u32)]) -> Result<(), Fault> {
        let fault = |cause| Fault { address: pages.start, access: Access::Write, cause };
        let whole = |kept: &&Kept| kept.range.start <= pages.start && pages.end <= kept.range.end;
        let kept = self.kept.iter().find(whole).ok_or(fault(FaultCause::Forbidden))?;
        let (host, bytes) = (self.host(pages.start), (pages.end - pages.start) as usize);
        let write = || {
            words.iter().all(|&(address, word)| {
                // SAFETY: four bytes inside the pages.
                address.is_multiple_of(4)
                    && unsafe { access::store::<4>(self.host(address).cast(), word.into()) }.is_ok()
            })
        };
        if let Some(key) = kept.key {
            // Where a call's late results were put, the pages may have lost the key.
            // SAFETY: whole pages of what is kept.
            if key.permit(write) || (unsafe { key.protect(host, bytes) } && key.permit(write)) {
                return Ok(());
            }
        }
        let protect = |bits| {
            // SAFETY: whole pages of what is kept, which is mapped, anonymous and private; the map is locked.
            unsafe { libc::mprotect(host, bytes, bits) }
        };
        if protect(libc::PROT_READ | libc::PROT_WRITE) != 0 {
            return Err(fault(FaultCause::BeyondFile));
        }
        let written = write();
        // Should the host refuse, the guest could write to its own code: no harm to anybody else.
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
        space.keep(START..START + PAGE_BYTES);
        space.kept[0].key = None;
        let start = space.host(START);
        // SAFETY: the page is the space's, and nobody else's. Key 0 is that of all memory; without keys there is nothing to take.
        let protected = unsafe {
            libc::syscall(libc::SYS_pkey_mprotect, start, PAGE_BYTES, libc::PROT_READ, 0);
            libc::mprotect(start, PAGE_BYTES as usize, libc::PROT_READ)
        };
        assert_eq!(protected, 0);
        space.write_kept(&[(START, 1), (START + 4092, 2), (START + 4096, 3)]).unwrap();
        let read = [START, START + 4092, START + 4096].map(|address| space.memory().load::<u32>(address));
        assert_eq!(read, [Ok(1), Ok(2), Ok(3)]);
        assert!(space.memory().store::<u32>(START, 4).is_err());
        assert!(space.write_kept(&[(START + PAGE_BYTES, 1)]).is_err(), "what is not kept");
        assert!(space.write_kept(&[(START + 2, 1)]).is_err(), "no address of a word");
    }
}
