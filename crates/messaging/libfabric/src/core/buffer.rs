//! The program's memory in operations and memory regions.
//!
//! Other threads of the program may access it at the same time, so it is copied by calls and never borrowed.

use longma_via::{Error, MemoryAttributes, MemoryRegion, Nic};

/// The largest number of segments of an operation (`iov_limit`).
pub(crate) const MAX_SEGMENTS: usize = 4;

#[derive(Clone, Copy)]
struct Segment {
    start: *mut u8,
    length: usize,
}

/// Up to [`MAX_SEGMENTS`] ranges of the program's memory.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    segments: [Segment; MAX_SEGMENTS],
    count: usize,
}

// SAFETY: the contract of `Buffer::push` holds in all threads, and the memory is only accessed by raw copies.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// No memory.
    pub(crate) const EMPTY: Self =
        Self { segments: [Segment { start: std::ptr::null_mut(), length: 0 }; MAX_SEGMENTS], count: 0 };

    /// A buffer of one segment.
    ///
    /// # Safety
    /// As for [`Buffer::push`].
    #[cfg(test)]
    pub(crate) unsafe fn new(start: *mut u8, length: usize) -> Self {
        let mut buffer = Self::EMPTY;
        // SAFETY: guaranteed by the caller.
        unsafe { buffer.push(start, length) };
        buffer
    }

    /// Adds a segment; false if there are too many.
    ///
    /// # Safety
    /// The memory must be mapped until the operation that has this buffer is reported as completed, or the memory
    /// region is closed: readable, and writable if the operation or region permits writing. Segments of length 0 may
    /// have any address.
    pub(crate) unsafe fn push(&mut self, start: *mut u8, length: usize) -> bool {
        if length == 0 {
            return true;
        }
        let Some(segment) = self.segments.get_mut(self.count) else { return false };
        *segment = Segment { start, length };
        self.count += 1;
        true
    }

    /// The total length, bytes.
    pub(crate) fn len(&self) -> usize {
        self.segments[..self.count].iter().map(|segment| segment.length).sum()
    }

    /// The address of the first byte; 0 without memory.
    pub(crate) fn address(&self) -> usize {
        self.segments[0].start.addr()
    }

    /// The bytes from `offset` on, at most `length`.
    pub(crate) fn part(&self, offset: usize, length: usize) -> Self {
        let mut part = Self::EMPTY;
        let (mut skip, mut left) = (offset, length);
        for segment in &self.segments[..self.count] {
            if skip >= segment.length {
                skip -= segment.length;
                continue;
            }
            let taken = left.min(segment.length - skip);
            // SAFETY: a range inside a segment of this buffer.
            unsafe { part.push(segment.start.wrapping_add(skip), taken) };
            (skip, left) = (0, left - taken);
        }
        part
    }

    /// Copies the first bytes of the buffer to `into`, which must not be longer than the buffer.
    pub(crate) fn read(&self, mut into: &mut [u8]) {
        for segment in &self.segments[..self.count] {
            let taken = segment.length.min(into.len());
            let (now, later) = into.split_at_mut(taken);
            // SAFETY: the segment is mapped and readable (contract of `push`), and `now` is borrowed exclusively.
            unsafe { std::ptr::copy(segment.start.cast_const(), now.as_mut_ptr(), taken) };
            into = later;
        }
        debug_assert!(into.is_empty());
    }

    /// Copies bytes to the start of the buffer, as many as fit. Returns their number.
    pub(crate) fn write(&self, mut from: &[u8]) -> usize {
        let mut written = 0;
        for segment in &self.segments[..self.count] {
            let taken = segment.length.min(from.len());
            let (now, later) = from.split_at(taken);
            // SAFETY: the segment is mapped, and writable since the operation writes (contract of `push`).
            unsafe { std::ptr::copy(now.as_ptr(), segment.start, taken) };
            (from, written) = (later, written + taken);
        }
        written
    }

    /// Registers the memory with a NIC, one region for each segment.
    ///
    /// # Errors
    /// If a limit of the NIC is reached.
    pub(crate) fn register(
        &self,
        nic: &Nic,
        attributes: MemoryAttributes,
    ) -> Result<Vec<MemoryRegion>, Error> {
        let register = |segment: &Segment| {
            // SAFETY: the memory is mapped until the operation is completed (contract of `push`), and the endpoint drops
            // its registrations before it reports the completion. Memory that is only read is registered without
            // the right to write, and named only as the source of a transfer.
            unsafe { nic.register(segment.start, segment.length, attributes) }
        };
        self.segments[..self.count].iter().map(register).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_are_what_slices_of_the_joined_bytes_are(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..=MAX_SEGMENTS),
            offset in 0usize..40,
            length in 0usize..40,
        ) {
            let mut pieces = pieces;
            let joined = pieces.concat();
            let mut buffer = Buffer::EMPTY;
            for piece in &mut pieces {
                // SAFETY: the vectors outlive the buffer.
                let is_pushed = unsafe { buffer.push(piece.as_mut_ptr(), piece.len()) };
                prop_assert!(is_pushed);
            }
            let end = (offset + length).min(joined.len());
            let expected = joined.get(offset..end).unwrap_or(&[]);
            let part = buffer.part(offset, length);
            let mut bytes = vec![0; part.len()];
            part.read(&mut bytes);
            prop_assert_eq!(&bytes[..], expected);
            prop_assert_eq!(part.write(&[7; 64]), expected.len());
            part.read(&mut bytes);
            prop_assert!(bytes.iter().all(|&byte| byte == 7));
        }
    }
}
