//! Where the kernel puts what a call gives: into the guest's memory, or into memory of our own that is copied there afterwards.
//! Not what a call gives: that is in the table of calls.
//! Source: our own; what the kernel has done when it finds that it cannot write: Linux fs/eventfd.c, net/core/datagram.c, kernel/exit.c.
//!
//! A page that code has been read from is write-protected, and the host refuses it to the kernel as well (EFAULT). By then many calls
//! have taken what there is only once: a datagram, an event's count, a child's status. So wherever code may be read from while a call
//! lasts, the kernel is not given the guest's memory. Large buffers elsewhere are: copying them would take time.

use longma_guest::Errno;
use longma_guest::GuestMemory;

use super::arguments::{MOST_VECTORS, Vectors, in_range};

/// Results up to this size, bytes, are always copied: their memory may become executable while the call waits.
const SMALL_BYTES: u64 = 256;
/// Larger buffers, bytes, are never copied: nothing that there is only once is so large.
const LARGEST_BYTES: u64 = 1 << 20;
/// How often what meets code is done again: more than another thread can have read code from there by chance.
const TRIES: usize = 1000;
/// Ranges of guest memory that are remembered one by one.
const RANGES: usize = 4;

/// Makes a host call that writes to the guest's memory. `call` asks for every place that the kernel writes to, and makes the call with
/// them; it is called again if the kernel could not write because of code, which then has had no effect.
///
/// # Errors
/// What `call` gives; EFAULT if what the call gave cannot be written.
pub(crate) fn with_results(
    memory: &GuestMemory,
    mut call: impl FnMut(&mut Results<'_>) -> Result<u64, Errno>,
) -> Result<u64, Errno> {
    for _ in 0..TRIES {
        let mut results = Results { memory, own: Vec::new(), direct: [(0, 0); RANGES], directs: 0 };
        let returned = call(&mut results);
        if returned == Err(Errno(libc::EFAULT)) && results.meet_code() {
            std::thread::yield_now();
            continue;
        }
        return results.deliver(returned);
    }
    Err(Errno(libc::EFAULT))
}

/// The places that the kernel writes to during one call.
pub(crate) struct Results<'m> {
    memory: &'m GuestMemory,
    own: Vec<Own>,
    /// Address and length of what the kernel writes to itself. The last one covers all that there was no more room for.
    direct: [(u64, u64); RANGES],
    directs: usize,
}

/// Memory of our own for one result.
struct Own {
    /// Where the guest wants it.
    address: u64,
    bytes: Vec<u8>,
    extent: Extent,
}

/// How much of a result there is.
enum Extent {
    /// What differs from this, which was there before.
    Changed(Vec<u8>),
    /// All of it.
    Whole,
    /// What the call says in its number of bytes, with so many that it does not count, without so many that lie in buffers before.
    Counted { head: u64, before: u64 },
}

impl Own {
    fn overlaps(&self, address: u64, bytes: u64) -> bool {
        self.address < address.saturating_add(bytes) && address < self.address + self.bytes.len() as u64
    }
}

impl Results<'_> {
    /// The host address of a structure of `bytes` bytes at guest address `address`; null stays null.
    ///
    /// # Errors
    /// It reaches beyond the guest's addresses. Whether it is mapped, the kernel says.
    pub fn structure(&mut self, address: u64, bytes: u64) -> Result<u64, Errno> {
        // Of two structures at one place, as sets of select(2) may be, the kernel writes the later one over the first.
        let is_second = self.own.iter().any(|own| own.overlaps(address, bytes));
        self.place(address, bytes, |memory| {
            let mut former = vec![0; bytes as usize];
            memory.read(address, &mut former).ok()?;
            Some((former.clone(), if is_second { Extent::Whole } else { Extent::Changed(former) }))
        })
    }

    /// The host address of a buffer of `bytes` bytes that the call fills from its beginning with as many bytes as it returns.
    ///
    /// # Errors
    /// As for [`Self::structure`].
    pub fn buffer(&mut self, address: u64, bytes: u64) -> Result<u64, Errno> {
        self.buffer_after(0, address, bytes)
    }

    /// As [`Self::buffer`], where the number that the call returns is without the first `head` bytes.
    ///
    /// # Errors
    /// As for [`Self::structure`].
    pub fn buffer_after(&mut self, head: u64, address: u64, bytes: u64) -> Result<u64, Errno> {
        self.counted(address, bytes, Extent::Counted { head, before: 0 })
    }

    fn counted(&mut self, address: u64, bytes: u64, extent: Extent) -> Result<u64, Errno> {
        self.place(address, bytes, |_| Some((vec![0; bytes as usize], extent)))
    }

    /// The buffers of a guest's iovec array, which the call fills one after the other.
    ///
    /// # Errors
    /// The array cannot be read or is too long, or a buffer reaches beyond the guest's addresses.
    pub fn vectors(&mut self, address: u64, count: u64) -> Result<Vectors, Errno> {
        let mut before = 0u64;
        Vectors::of(self.memory, address, count, |base, bytes| {
            let place = self.counted(base, bytes, Extent::Counted { head: 0, before });
            before = before.saturating_add(bytes);
            place
        })
    }

    /// The host address of `bytes` bytes at `address` that the kernel reads and changes as they are (a futex).
    ///
    /// # Errors
    /// As for [`Self::structure`].
    pub fn in_place(&mut self, address: u64, bytes: u64) -> Result<u64, Errno> {
        let (at, bytes) = in_range(self.memory, address, bytes)?;
        self.note(at, bytes);
        Ok(self.memory.pointer_for_writing(at, bytes)? as u64)
    }

    fn place(
        &mut self,
        address: u64,
        bytes: u64,
        make: impl FnOnce(&GuestMemory) -> Option<(Vec<u8>, Extent)>,
    ) -> Result<u64, Errno> {
        if address == 0 {
            return Ok(0);
        }
        let (_, in_range) = in_range(self.memory, address, bytes)?;
        if self.is_copied(address, in_range)
            && let Some((mut bytes, extent)) = make(self.memory)
        {
            let pointer = bytes.as_mut_ptr() as u64;
            self.own.push(Own { address, bytes, extent });
            return Ok(pointer);
        }
        self.in_place(address, bytes)
    }

    /// What the guest cannot write to is the kernel's to refuse.
    fn is_copied(&self, address: u64, bytes: u64) -> bool {
        let may_be_watched =
            || bytes <= LARGEST_BYTES && self.memory.may_be_watched(address..address + bytes);
        bytes > 0 && (bytes <= SMALL_BYTES || may_be_watched()) && self.memory.can_write(address, bytes)
    }

    fn note(&mut self, address: u64, bytes: u64) {
        if self.directs < RANGES {
            self.direct[self.directs] = (address, bytes);
            self.directs += 1;
            return;
        }
        let (last, length) = self.direct[RANGES - 1];
        let (start, end) = (last.min(address), (last + length).max(address + bytes));
        self.direct[RANGES - 1] = (start, end - start);
    }

    /// Whether the host refuses the kernel something that the guest may write to.
    fn meet_code(&self) -> bool {
        self.direct[..self.directs].iter().any(|&(at, bytes)| self.memory.holds_watched_code(at, bytes))
    }

    fn deliver(self, returned: Result<u64, Errno>) -> Result<u64, Errno> {
        for own in &self.own {
            match &own.extent {
                Extent::Counted { head, before } => {
                    let all = returned.map_or(0, |counted| counted.saturating_add(*head));
                    let bytes = all.saturating_sub(*before).min(own.bytes.len() as u64);
                    self.memory.write(own.address, &own.bytes[..bytes as usize])?;
                }
                // Calls that fail may say why, or how far they came.
                Extent::Changed(former) => write_changes(self.memory, own.address, former, &own.bytes)?,
                Extent::Whole => self.memory.write(own.address, &own.bytes)?,
            }
        }
        returned
    }
}

/// Writes the stretches of `bytes` that are not as in `former`: the guest may have changed the others meanwhile.
fn write_changes(memory: &GuestMemory, address: u64, former: &[u8], bytes: &[u8]) -> Result<(), Errno> {
    let differs = |at: usize| former[at] != bytes[at];
    let mut at = 0;
    while let Some(start) = (at..bytes.len()).find(|&at| differs(at)) {
        let end = (start..bytes.len()).find(|&at| !differs(at)).unwrap_or(bytes.len());
        memory.write(address + start as u64, &bytes[start..end])?;
        at = end;
    }
    Ok(())
}

const _: () = assert!(MOST_VECTORS as usize > RANGES);

#[cfg(test)]
mod tests {
    use super::*;
    use longma_guest::{AddressSpace, PAGE_BYTES, Protection};

    const START: u64 = 1 << 20;
    const EVERYTHING: Protection = Protection { read: true, write: true, execute: true };

    /// Two pages that code may be read from.
    fn space() -> AddressSpace {
        let space = AddressSpace::new(GuestMemory::reserve().unwrap());
        space.map_zeros(START, 2 * PAGE_BYTES, EVERYTHING).unwrap();
        space
    }

    fn fill(pointer: u64, bytes: &[u8]) {
        // SAFETY: the tests give a place that they have just been given, of at least so many bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer as *mut u8, bytes.len()) };
    }

    #[test]
    fn code_read_while_the_kernel_works_does_not_keep_a_result_from_the_guest() {
        let space = space();
        let memory = space.memory();
        for bytes in [8, 4000, 2 * PAGE_BYTES] {
            let returned = with_results(memory, |results| {
                let place = results.buffer(START, bytes)?;
                assert!(space.protect_code(START));
                fill(place, b"message");
                Ok(7)
            });
            assert_eq!(returned, Ok(7));
            assert_eq!(memory.read_array(START).unwrap(), *b"message\0");
            memory.fill(START, 16, 0).unwrap();
        }
    }

    #[test]
    fn only_as_many_bytes_are_written_as_the_call_says_and_one_vector_after_the_other() {
        let space = space();
        let memory = space.memory();
        memory.write(START, b"................").unwrap();
        let table = START + 256;
        for (at, word) in (0..).zip([START, 4, START + 8, 8]) {
            memory.store::<u64>(table + 8 * at, word).unwrap();
        }
        let returned = with_results(memory, |results| {
            let vectors = results.vectors(table, 2)?;
            // SAFETY: the array has two entries.
            let [first, second] = unsafe { *(vectors.address() as *const [libc::iovec; 2]) };
            fill(first.iov_base as u64, b"abcd");
            fill(second.iov_base as u64, b"efXXXXXX");
            Ok(6)
        });
        assert_eq!(returned, Ok(6));
        assert_eq!(&memory.read_array::<16>(START).unwrap(), b"abcd....ef......");
    }

    #[test]
    fn what_a_call_leaves_alone_in_a_structure_is_as_the_guest_has_made_it_meanwhile() {
        let space = space();
        let memory = space.memory();
        memory.write(START, b"0123456789").unwrap();
        let returned = with_results(memory, |results| {
            let place = results.structure(START, 10)?;
            memory.write(START, b"abcdefghij").unwrap();
            fill(place + 4, b"XY");
            Err(Errno(libc::EINTR))
        });
        assert_eq!(returned, Err(Errno(libc::EINTR)));
        assert_eq!(&memory.read_array::<10>(START).unwrap(), b"abcdXYghij");
    }

    #[test]
    fn what_the_guest_cannot_write_to_is_the_kernels_to_refuse() {
        let space = space();
        let memory = space.memory();
        let read_only = Protection { write: false, ..EVERYTHING };
        space.protect(START + PAGE_BYTES, PAGE_BYTES, read_only).unwrap();
        let mut places = Vec::new();
        let returned = with_results(memory, |results| {
            places = vec![
                results.structure(0, 8)?,
                results.structure(START + PAGE_BYTES, 8)?,
                results.buffer(START + PAGE_BYTES - 4, 8)?,
            ];
            assert!(results.buffer(memory.limit() - 1, 2).is_err());
            Err(Errno(libc::EFAULT))
        });
        let host = |address: u64| memory.base() as u64 + address;
        assert_eq!(returned, Err(Errno(libc::EFAULT)));
        assert_eq!(places, [0, host(START + PAGE_BYTES), host(START + PAGE_BYTES - 4)]);
    }
}
