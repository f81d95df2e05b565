//! Changes the output of a system call in guest memory after the kernel has written it. This works even if another
//! thread has protected or unmapped a part in the meantime: to the guest, the final output was written before that.
//! Source: epoll_wait(2); mprotect(2).

use std::ops::Range;

use longma_loongarch::Access;

use super::address_space::AddressSpace;
use super::mappings::Mapping;
use super::{HOST_PAGE_BYTES, access};

impl AddressSpace {
    /// Copies memory that the kernel has just written to `bytes`. Parts that are no longer mapped leave `bytes`
    /// unchanged.
    pub fn read_after_syscall(&self, address: u64, bytes: &mut [u8]) {
        if self.memory().read(address, bytes).is_err() {
            self.access_after_syscall(address, bytes, Access::Read);
        }
    }

    /// Copies `bytes` to memory that the kernel has just written. Parts that are no longer mapped are skipped.
    pub fn write_after_syscall(&self, address: u64, bytes: &mut [u8]) {
        if self.memory().write(address, bytes).is_err() {
            self.access_after_syscall(address, bytes, Access::Write);
        }
    }

    fn access_after_syscall(&self, address: u64, bytes: &mut [u8], access: Access) {
        let Some(end) = address.checked_add(bytes.len() as u64) else { return };
        // While this lock is held, no thread maps or protects memory or reads code for translation.
        let map = self.write();
        for (piece, mapping) in map.within(address..end) {
            if mapping.origin.window.is_some() {
                continue;
            }
            if access == Access::Write {
                self.notify_all(map.views_of_code(&piece));
            }
            let part = &mut bytes[(piece.start - address) as usize..(piece.end - address) as usize];
            let mut copy_piece = || {
                let host = self.host(piece.start).cast::<u8>();
                // SAFETY: `part` is ordinary memory as long as the piece, and the piece is inside the reservation.
                let _ = unsafe {
                    match access {
                        Access::Write => access::copy(host, part.as_ptr(), part.len()),
                        _ => access::copy(part.as_mut_ptr(), host, part.len()),
                    }
                };
            };
            if access == Access::Read && mapping.protection.readable() {
                // Keep the protection, so that writes of other threads to code are still detected during the copy.
                copy_piece();
            } else {
                self.open(&piece, &mapping, copy_piece);
            }
        }
    }

    /// Calls `act` while the pages of `piece`, a part of `mapping`, are readable and writable. The caller holds the
    /// map's write lock.
    fn open(&self, piece: &Range<u64>, mapping: &Mapping, act: impl FnOnce()) {
        let start = piece.start & !(HOST_PAGE_BYTES - 1);
        let end = piece.end.next_multiple_of(HOST_PAGE_BYTES);
        let protect = |range: Range<u64>, bits| {
            // SAFETY: whole host pages of a guest mapping, whose protection is restored below. If the host refuses the
            // change, as for a file opened read-only, `act` writes nothing.
            unsafe { libc::mprotect(self.host(range.start), (range.end - range.start) as usize, bits) };
        };
        protect(start..end, libc::PROT_READ | libc::PROT_WRITE);
        act();
        let _code_guard = self.memory().0.code_lock.lock();
        protect(start..end, mapping.host_bits());
        for page in start / HOST_PAGE_BYTES..end / HOST_PAGE_BYTES {
            if self.memory().0.code.contains(page) {
                protect(page * HOST_PAGE_BYTES..(page + 1) * HOST_PAGE_BYTES, libc::PROT_READ);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::host::faults;
    use crate::{AddressSpace, GuestMemory, PAGE_BYTES, Protection};

    const START: u64 = 1 << 20;

    #[test]
    fn output_is_completed_on_a_protected_page_and_the_protection_stays() {
        faults::install();
        faults::prepare_thread();
        let space = AddressSpace::new(GuestMemory::reserve().unwrap());
        let protection = |write| Protection { read: write, write, execute: false };
        space.map_zeros(START, 2 * PAGE_BYTES, protection(true)).unwrap();
        let at = START + PAGE_BYTES - 2;
        space.memory().write(at, b"abcd").unwrap();
        space.protect(START, PAGE_BYTES, protection(false)).unwrap();
        let mut bytes = [0; 4];
        space.read_after_syscall(at, &mut bytes);
        assert_eq!(&bytes, b"abcd");
        space.write_after_syscall(at, &mut b"efgh".clone());
        assert!(space.memory().load::<u8>(at).is_err());
        space.protect(START, PAGE_BYTES, Protection { read: true, ..protection(false) }).unwrap();
        assert_eq!(space.memory().read_array(at).unwrap(), *b"efgh");
        assert!(space.memory().store(at, 0u8).is_err());
        space.unmap(START + PAGE_BYTES, PAGE_BYTES).unwrap();
        space.write_after_syscall(at, &mut b"ijkl".clone());
        assert_eq!(space.memory().read_array(at).unwrap(), *b"ij");
    }
}
