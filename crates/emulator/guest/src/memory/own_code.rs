//! Code that only the translator writes and the guest only fetches. It is stored outside guest memory, so a write needs
//! no change of page protection. Source: mmap(2).

use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use longma_loongarch::{Access, Fault, FaultCause};

use super::address_space::AddressSpace;

/// The code words for a range of guest addresses. Writing a word is a plain store.
#[derive(Debug)]
pub(super) struct OwnCode {
    range: Range<u64>,
    words: *const AtomicU32,
}

// SAFETY: the words are atomic, and the mapping lives as long as the value.
unsafe impl Send for OwnCode {}
// SAFETY: as above.
unsafe impl Sync for OwnCode {}

impl OwnCode {
    fn map(range: Range<u64>) -> io::Result<Self> {
        // SAFETY: a new anonymous mapping at an address that the host chooses. A forked child gets its own copy.
        let words = unsafe {
            libc::mmap(
                ptr::null_mut(),
                (range.end - range.start) as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if words == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { range, words: words.cast_const().cast() })
    }

    /// The word at `address`, if the address is in the range and a multiple of four.
    pub fn word(&self, address: u64) -> Option<&AtomicU32> {
        let is_ours = address.is_multiple_of(4) && self.range.contains(&address);
        // SAFETY: in bounds, aligned, zero-initialized by the host, and alive as long as `self`.
        is_ours.then(|| unsafe { &*self.words.add(((address - self.range.start) / 4) as usize) })
    }
}

impl Drop for OwnCode {
    fn drop(&mut self) {
        // SAFETY: the value owns the mapping, and no reference to a word is left.
        unsafe { libc::munmap(self.words.cast_mut().cast(), (self.range.end - self.range.start) as usize) };
    }
}

impl AddressSpace {
    /// Makes instruction fetches from `range`, which starts at a page, read the words written with
    /// [`Self::write_own_code`], or 0 where none was written. Loads from `range` still read guest memory. There can be
    /// only one such range.
    ///
    /// # Errors
    /// The host has no memory, or a range is already set.
    pub fn own_code(&self, range: Range<u64>) -> io::Result<()> {
        let code = OwnCode::map(range)?;
        self.memory().0.own_code.set(code).map_err(|_| io::ErrorKind::AlreadyExists.into())
    }

    /// Whether instruction fetches from `address` read the translator's code.
    pub(super) fn is_own_code(&self, address: u64) -> bool {
        self.memory().0.own_code.get().is_some_and(|code| code.range.contains(&address))
    }

    /// Writes consecutive words of the translator's code. Concurrent fetches see the old or the new value of each word.
    /// A caller that replaces code must invalidate its translations.
    ///
    /// # Errors
    /// An address is misaligned or out of range. The words before the failing one have been written.
    pub fn write_own_code(&self, start: u64, words: &[u32]) -> Result<(), Fault> {
        let code = self.memory().0.own_code.get();
        for (address, &word) in (start..).step_by(4).zip(words) {
            let fault = Fault { address, access: Access::Write, cause: FaultCause::Forbidden };
            code.and_then(|code| code.word(address)).ok_or(fault)?.store(word, Ordering::Release);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{AddressSpace, GuestMemory, MapRequest, PAGE_BYTES, Placement, Protection};

    const START: u64 = 1 << 20;

    #[test]
    fn own_code_can_be_fetched_but_not_loaded_or_stored() {
        let space = AddressSpace::new(GuestMemory::reserve().unwrap());
        let readable = Protection { read: true, write: false, execute: true };
        space
            .map(&MapRequest::anonymous(Placement::FixedNoReplace(START), 2 * PAGE_BYTES, readable))
            .unwrap();
        space.own_code(START..START + PAGE_BYTES).unwrap();
        let last = START + PAGE_BYTES - 4;
        space.write_own_code(START, &[7]).and_then(|()| space.write_own_code(last, &[8])).unwrap();
        let memory = space.memory();
        assert_eq!(
            [START, START + 4, last, last + 4].map(|at| memory.fetch(at)),
            [Ok(7), Ok(0), Ok(8), Ok(0)]
        );
        assert_eq!(memory.load::<u32>(START), Ok(0));
        assert!(memory.store::<u32>(START, 9).is_err() && memory.fetch(START + 2).is_err());
        assert!(space.write_own_code(last, &[8, 9]).is_err(), "past its end");
        assert!(space.write_own_code(START + 2, &[9]).is_err(), "an address that is not word-aligned");
        assert!(space.own_code(START..START + PAGE_BYTES).is_err(), "there is one range");
    }
}
