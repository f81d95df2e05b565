//! Parts of the address space that an engine keeps for itself: the guest can read them, and can neither write nor map there.
//! Not what the engine puts there.
//! Source: mprotect(2).

use std::ops::Range;

use longma_loongarch::{Access, Fault, FaultCause};

use super::address_space::AddressSpace;
use super::{HOST_PAGE_BYTES, access};

impl AddressSpace {
    /// From now on the guest's calls leave `range` as it is; what it shows is mapped by the caller before, readable and not writable.
    pub fn keep(&mut self, range: Range<u64>) {
        self.kept.push(range);
    }

    pub(super) fn is_kept(&self, range: &Range<u64>) -> bool {
        self.kept.iter().any(|kept| range.start < kept.end && kept.start < range.end)
    }

    /// Writes words to what is kept, at addresses that ascend. Threads that read them meanwhile see the old or the new ones. Whoever
    /// replaces code sees to it himself that what is known of it is forgotten.
    ///
    /// # Errors
    /// An address is not in what is kept, or the host gives no memory; the words before it are written.
    pub fn write_kept(&self, words: &[(u64, u32)]) -> Result<(), Fault> {
        let page = |address: u64| address & !(HOST_PAGE_BYTES - 1);
        // Nobody maps or protects anything meanwhile.
        let _map = self.write();
        let mut rest = words;
        while let Some(&(first, _)) = rest.first() {
            let start = page(first);
            let mut end = start + HOST_PAGE_BYTES;
            let follows = |(address, _): &&(u64, u32)| {
                if page(*address) == end {
                    end += HOST_PAGE_BYTES;
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
        if !self.kept.iter().any(|kept| kept.start <= pages.start && pages.end <= kept.end) {
            return Err(fault(FaultCause::Forbidden));
        }
        let protect = |bits| {
            // SAFETY: whole pages of what is kept, which is mapped, anonymous and private; the map is locked.
            unsafe { libc::mprotect(self.host(pages.start), (pages.end - pages.start) as usize, bits) }
        };
        if protect(libc::PROT_READ | libc::PROT_WRITE) != 0 {
            return Err(fault(FaultCause::BeyondFile));
        }
        let written = words.iter().all(|&(address, word)| {
            // SAFETY: four bytes inside the pages.
            address.is_multiple_of(4)
                && unsafe { access::store::<4>(self.host(address).cast(), word.into()) }.is_ok()
        });
        // Should the host refuse, the guest could write to its own code: no harm to anybody else.
        protect(libc::PROT_READ);
        if written { Ok(()) } else { Err(fault(FaultCause::BeyondFile)) }
    }
}
