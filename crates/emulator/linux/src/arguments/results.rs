//! Buffers for system call results: guest memory, or temporary memory that is copied to the guest afterwards. Source,
//! for the data that a call has consumed when its write to user memory fails: Linux fs/pipe.c, fs/eventfd.c,
//! net/core/datagram.c, net/unix/af_unix.c, ipc/msg.c, ipc/mqueue.c, kernel/exit.c.
//!
//! Pages from which code has been read are write-protected, so the host kernel fails to write to them (EFAULT). Some
//! calls have consumed data by then: a datagram, an event counter, a child's status. For these, the kernel writes to
//! temporary memory. (Linux loses such data too if the guest's memory is not writable.) Other calls, such as reads from
//! pipes and streams, leave unwritten data in place. For these, the kernel writes to guest memory directly, and the
//! call is repeated if a code page prevented the write.

use std::cell::Cell;

use longma_guest::Errno;
use longma_guest::GuestMemory;

use super::{MAX_VECTORS, OnWriteFault, Vectors, in_range};

/// Structures up to this size in bytes always use temporary memory, because their page may become executable during the
/// call.
const SMALL_BYTES: u64 = 256;
/// Structures above this size in bytes are written directly. No consumable data is this large.
const MAX_BUFFER_BYTES: u64 = 1 << 20;
/// Maximum size of a message in bytes: HARD_MSGSIZEMAX of mq_overview(7). For larger buffers the kernel writes
/// directly.
const MAX_MESSAGE_BYTES: u64 = 16 << 20;
/// Maximum size in bytes of the message buffer that a thread keeps for reuse.
const MAX_REUSED_BUFFER_BYTES: usize = 1 << 17;
/// Maximum number of repetitions of a call because of code pages. Another thread cannot interfere this often by chance.
const MAX_RETRIES: usize = 1000;
/// The number of directly written ranges that are recorded individually.
const RANGES: usize = 4;

thread_local! {
    /// A message buffer for reuse, so that the next message needs no allocation and clearing.
    static REUSED_BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Makes a host call that writes to guest memory. `call` requests a host address for each result, and makes the call
/// with them. It runs again if the kernel could not write because of a code page, in which case the call had no effect.
///
/// # Errors
/// Those of `call`; EFAULT if a result cannot be copied to the guest.
pub(crate) fn with_results(
    memory: &GuestMemory,
    mut call: impl FnMut(&mut Results<'_>) -> Result<u64, Errno>,
) -> Result<u64, Errno> {
    for _ in 0..MAX_RETRIES {
        let mut results = Results { memory, buffers: Vec::new(), direct: [(0, 0); RANGES], direct_count: 0 };
        let returned = call(&mut results);
        if returned == Err(Errno(libc::EFAULT)) && results.is_blocked_by_code_page() {
            std::thread::yield_now();
            continue;
        }
        return results.copy_to_guest(returned);
    }
    Err(Errno(libc::EFAULT))
}

/// The buffers that the kernel writes during one call.
pub(crate) struct Results<'m> {
    memory: &'m GuestMemory,
    buffers: Vec<TemporaryBuffer>,
    /// Address and length of directly written ranges. The last entry covers all ranges that exceed the array.
    direct: [(u64, u64); RANGES],
    direct_count: usize,
}

/// Temporary memory for one result.
struct TemporaryBuffer {
    /// The guest address of the result.
    address: u64,
    /// The buffer, which may be larger than the result.
    storage: Vec<u8>,
    length: usize,
    extent: Extent,
}

/// Which part of a buffer is the result.
enum Extent {
    /// The bytes that differ from the former contents.
    Changed(Vec<u8>),
    /// All bytes.
    Whole,
    /// The number of bytes that the call returns, plus `head` bytes that the call does not count, minus `before` bytes
    /// in earlier buffers.
    Counted { head: u64, before: u64 },
}

impl TemporaryBuffer {
    /// Allocates a buffer for a message.
    fn for_message(address: u64, bytes: u64, extent: Extent) -> Self {
        let length = bytes as usize;
        let mut storage = REUSED_BUFFER.take();
        if storage.len() < length {
            storage = vec![0; length];
        }
        Self { address, storage, length, extent }
    }

    fn bytes(&self) -> &[u8] {
        &self.storage[..self.length]
    }

    fn overlaps(&self, address: u64, bytes: u64) -> bool {
        self.address < address.saturating_add(bytes) && address < self.address + self.length as u64
    }
}

impl Drop for TemporaryBuffer {
    fn drop(&mut self) {
        if matches!(self.extent, Extent::Counted { .. }) && self.storage.len() <= MAX_REUSED_BUFFER_BYTES {
            REUSED_BUFFER.set(std::mem::take(&mut self.storage));
        }
    }
}

impl<'m> Results<'m> {
    /// The guest's memory.
    pub fn memory(&self) -> &'m GuestMemory {
        self.memory
    }

    /// The host address of a buffer for a structure of `bytes` bytes at guest address `address`; null stays null.
    ///
    /// # Errors
    /// The structure is outside the guest's address range. The kernel checks whether it is mapped.
    pub fn structure(&mut self, address: u64, bytes: u64) -> Result<u64, Errno> {
        let may_be_watched = || {
            bytes <= MAX_BUFFER_BYTES && self.memory.may_be_watched(address..address.saturating_add(bytes))
        };
        let is_copied = bytes <= SMALL_BYTES || may_be_watched();
        self.structure_if(is_copied, address, bytes)
    }

    /// Like [`Self::structure`], for consumable data of any size, such as the control data of a message.
    ///
    /// # Errors
    /// As for [`Self::structure`].
    pub fn consumable_structure(&mut self, address: u64, bytes: u64) -> Result<u64, Errno> {
        self.structure_if(bytes <= MAX_MESSAGE_BYTES, address, bytes)
    }

    /// If the guest cannot write to the memory, uses it directly so that the kernel refuses it.
    fn structure_if(&mut self, is_copied: bool, address: u64, bytes: u64) -> Result<u64, Errno> {
        if address == 0 {
            return Ok(0);
        }
        let (_, in_range) = in_range(self.memory, address, bytes)?;
        let mut storage = Vec::new();
        if is_copied && in_range > 0 && self.memory.can_write(address, in_range) {
            storage = vec![0; in_range as usize];
        }
        if storage.is_empty() || self.memory.read(address, &mut storage).is_err() {
            return self.in_place(address, bytes);
        }
        // If two structures overlap, as the sets of select(2) may, the kernel writes the later one over the first.
        let is_second = self.buffers.iter().any(|buffer| buffer.overlaps(address, bytes));
        let extent = if is_second { Extent::Whole } else { Extent::Changed(storage.clone()) };
        Ok(self.push_buffer(TemporaryBuffer { address, length: storage.len(), storage, extent }))
    }

    /// The host address of a buffer of `bytes` bytes that the call fills from the start with as many bytes as it
    /// returns; null stays null.
    ///
    /// # Errors
    /// As for [`Self::structure`].
    pub fn buffer(&mut self, on_write_fault: OnWriteFault, address: u64, bytes: u64) -> Result<u64, Errno> {
        self.counted(on_write_fault, address, bytes, 0, 0)
    }

    /// Like [`Self::buffer`], for a message with a header of `head` bytes that the return value does not include.
    ///
    /// # Errors
    /// As for [`Self::structure`].
    pub fn message_after(&mut self, head: u64, address: u64, bytes: u64) -> Result<u64, Errno> {
        self.counted(OnWriteFault::Lost, address, bytes, head, 0)
    }

    fn counted(
        &mut self,
        on_write_fault: OnWriteFault,
        address: u64,
        bytes: u64,
        head: u64,
        before: u64,
    ) -> Result<u64, Errno> {
        if address == 0 {
            return Ok(0);
        }
        let (_, in_range) = in_range(self.memory, address, bytes)?;
        if on_write_fault == OnWriteFault::Remains || in_range == 0 || in_range > MAX_MESSAGE_BYTES {
            return self.in_place(address, bytes);
        }
        Ok(self.push_buffer(TemporaryBuffer::for_message(
            address,
            in_range,
            Extent::Counted { head, before },
        )))
    }

    fn push_buffer(&mut self, mut buffer: TemporaryBuffer) -> u64 {
        let pointer = buffer.storage.as_mut_ptr() as u64;
        self.buffers.push(buffer);
        pointer
    }

    /// Buffers for the guest's iovec array, which the call fills in order.
    ///
    /// # Errors
    /// The array cannot be read or is too long, or a buffer is outside the guest's address range.
    pub fn vectors(
        &mut self,
        on_write_fault: OnWriteFault,
        address: u64,
        count: u64,
    ) -> Result<Vectors, Errno> {
        let mut earlier_bytes = 0u64;
        Vectors::of(self.memory, address, count, |base, bytes| {
            let host_address = self.counted(on_write_fault, base, bytes, 0, earlier_bytes);
            earlier_bytes = earlier_bytes.saturating_add(bytes);
            host_address
        })
    }

    /// The host address of `bytes` bytes at `address` that the kernel reads and changes in place (a futex).
    ///
    /// # Errors
    /// As for [`Self::structure`].
    pub fn in_place(&mut self, address: u64, bytes: u64) -> Result<u64, Errno> {
        let (at, bytes) = in_range(self.memory, address, bytes)?;
        self.record_direct(at, bytes);
        Ok(self.memory.pointer_for_writing(at, bytes)? as u64)
    }

    fn record_direct(&mut self, address: u64, bytes: u64) {
        if self.direct_count < RANGES {
            self.direct[self.direct_count] = (address, bytes);
            self.direct_count += 1;
            return;
        }
        let (last, length) = self.direct[RANGES - 1];
        let (start, end) = (last.min(address), (last + length).max(address + bytes));
        self.direct[RANGES - 1] = (start, end - start);
    }

    /// Whether a code page prevents the kernel from writing memory that the guest may write.
    fn is_blocked_by_code_page(&self) -> bool {
        self.direct[..self.direct_count].iter().any(|&(at, bytes)| self.memory.holds_watched_code(at, bytes))
    }

    fn copy_to_guest(self, returned: Result<u64, Errno>) -> Result<u64, Errno> {
        for buffer in &self.buffers {
            match &buffer.extent {
                Extent::Counted { head, before } => {
                    let all = returned.map_or(0, |counted| counted.saturating_add(*head));
                    let bytes = all.saturating_sub(*before).min(buffer.length as u64);
                    self.memory.write(buffer.address, &buffer.bytes()[..bytes as usize])?;
                }
                // A failed call may still report a reason or its progress.
                Extent::Changed(former) => {
                    write_changes(self.memory, buffer.address, former, buffer.bytes())?
                }
                Extent::Whole => self.memory.write(buffer.address, buffer.bytes())?,
            }
        }
        returned
    }
}

/// Writes the runs of `bytes` that differ from `previous`. The guest may have changed the other bytes concurrently.
fn write_changes(memory: &GuestMemory, address: u64, previous: &[u8], bytes: &[u8]) -> Result<(), Errno> {
    let differs = |at: usize| previous[at] != bytes[at];
    let mut at = 0;
    while let Some(start) = (at..bytes.len()).find(|&at| differs(at)) {
        let end = (start..bytes.len()).find(|&at| !differs(at)).unwrap_or(bytes.len());
        memory.write(address + start as u64, &bytes[start..end])?;
        at = end;
    }
    Ok(())
}

const _: () = assert!(MAX_VECTORS as usize > RANGES);

#[cfg(test)]
mod tests {
    use super::*;
    use longma_guest::{AddressSpace, PAGE_BYTES, Protection};

    const START: u64 = 1 << 20;
    const EVERYTHING: Protection = Protection { read: true, write: true, execute: true };

    /// Two executable pages.
    fn space() -> AddressSpace {
        let space = AddressSpace::new(GuestMemory::reserve().unwrap());
        space.map_zeros(START, 2 * PAGE_BYTES, EVERYTHING).unwrap();
        space
    }

    fn fill(pointer: u64, bytes: &[u8]) {
        // SAFETY: the tests pass a pointer that they have just received, to at least this many bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer as *mut u8, bytes.len()) };
    }

    #[test]
    fn code_read_during_a_call_does_not_prevent_its_result() {
        let space = space();
        let memory = space.memory();
        for bytes in [8, 4000, 2 * PAGE_BYTES] {
            let returned = with_results(memory, |results| {
                let buffer = results.buffer(OnWriteFault::Lost, START, bytes)?;
                assert!(space.protect_code(START));
                fill(buffer, b"message");
                Ok(7)
            });
            assert_eq!(returned, Ok(7));
            assert_eq!(memory.read_array(START).unwrap(), *b"message\0");
            memory.fill(START, 16, 0).unwrap();
        }
    }

    #[test]
    fn a_repeatable_call_runs_again_after_a_code_page_refused_a_result() {
        let space = space();
        let memory = space.memory();
        let mut tries = 0;
        let returned = with_results(memory, |results| {
            let buffer = results.buffer(OnWriteFault::Remains, START, 8)?;
            assert_eq!(buffer, memory.base() as u64 + START);
            tries += 1;
            if tries < 3 {
                assert!(space.protect_code(START));
                return Err(Errno(libc::EFAULT));
            }
            fill(buffer, b"stream");
            Ok(6)
        });
        assert_eq!((returned, tries), (Ok(6), 3));
        assert_eq!(memory.read_array(START).unwrap(), *b"stream\0\0");
        let result = with_results(memory, |results| {
            results.buffer(OnWriteFault::Remains, START, 8)?;
            tries += 1;
            Err(Errno(libc::EFAULT))
        });
        assert_eq!((result, tries), (Err(Errno(libc::EFAULT)), 4));
    }

    #[test]
    fn only_the_returned_number_of_bytes_is_written_vector_by_vector() {
        let space = space();
        let memory = space.memory();
        memory.write(START, b"................").unwrap();
        let table = START + 256;
        for (at, word) in (0..).zip([START, 4, START + 8, 8]) {
            memory.store::<u64>(table + 8 * at, word).unwrap();
        }
        let returned = with_results(memory, |results| {
            let vectors = results.vectors(OnWriteFault::Lost, table, 2)?;
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
    fn concurrent_guest_writes_to_unchanged_fields_survive_a_call() {
        let space = space();
        let memory = space.memory();
        memory.write(START, b"0123456789").unwrap();
        let returned = with_results(memory, |results| {
            let buffer = results.structure(START, 10)?;
            memory.write(START, b"abcdefghij").unwrap();
            fill(buffer + 4, b"XY");
            Err(Errno(libc::EINTR))
        });
        assert_eq!(returned, Err(Errno(libc::EINTR)));
        assert_eq!(&memory.read_array::<10>(START).unwrap(), b"abcdXYghij");
    }

    #[test]
    fn the_kernel_refuses_results_in_unwritable_memory() {
        let space = space();
        let memory = space.memory();
        let read_only = Protection { write: false, ..EVERYTHING };
        space.protect(START + PAGE_BYTES, PAGE_BYTES, read_only).unwrap();
        let mut buffers = Vec::new();
        let returned = with_results(memory, |results| {
            buffers = vec![
                results.structure(0, 8)?,
                results.structure(START + PAGE_BYTES, 8)?,
                results.buffer(OnWriteFault::Remains, START + PAGE_BYTES - 4, 8)?,
            ];
            assert!(results.buffer(OnWriteFault::Remains, memory.limit() - 1, 2).is_err());
            Err(Errno(libc::EFAULT))
        });
        let host = |address: u64| memory.base() as u64 + address;
        assert_eq!(returned, Err(Errno(libc::EFAULT)));
        assert_eq!(buffers, [0, host(START + PAGE_BYTES), host(START + PAGE_BYTES - 4)]);
    }
}
