//! The rings that an AF_XDP socket shares with the kernel, and the frame memory. Values written by the kernel are
//! bounds-checked before they are used as addresses.
//!
//! Source: Linux, Documentation/networking/af_xdp.rst; include/uapi/linux/if_xdp.h.

use crate::error::Error;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Memory mapped from the socket, or anonymous memory.
pub struct Mapping {
    base: *mut u8,
    length: usize,
}

// SAFETY: a mapping belongs to the process, and `Mapping` has a single owner.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `length` bytes of `fd` at `offset`, or anonymous memory if there is no `fd`.
    pub fn new(fd: Option<RawFd>, offset: u64, length: usize) -> Result<Self, Error> {
        let flags = match fd {
            Some(_) => libc::MAP_SHARED | libc::MAP_POPULATE,
            None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
        };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: creates a mapping at an address chosen by the kernel; no existing memory is affected.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                flags,
                fd.unwrap_or(-1),
                offset as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Error::last_system("mapping an AF_XDP ring"));
        }
        Ok(Self { base: base.cast(), length })
    }

    /// The address of the first byte.
    pub fn address(&self) -> u64 {
        self.base as u64
    }

    /// The length, bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Copies `bytes` to `offset`. Returns `false` if they do not fit.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> bool {
        let fits = offset.checked_add(bytes.len()).is_some_and(|end| end <= self.length);
        if fits {
            // SAFETY: the range is inside the mapping, as just checked; `bytes` is not part of it.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(offset), bytes.len()) };
        }
        fits
    }

    /// Appends `length` bytes at `offset` to `into`. Returns `false` if the range is not inside the mapping.
    pub fn read(&self, offset: usize, length: usize, into: &mut Vec<u8>) -> bool {
        let fits = offset.checked_add(length).is_some_and(|end| end <= self.length);
        if fits {
            into.reserve(length);
            // SAFETY: the range is inside the mapping, as just checked; the vector has the capacity and is not part of
            // the mapping.
            unsafe {
                let end = into.as_mut_ptr().add(into.len());
                std::ptr::copy_nonoverlapping(self.base.add(offset).cast_const(), end, length);
                into.set_len(into.len() + length);
            }
        }
        fits
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned by `self` and not referenced elsewhere.
        unsafe { libc::munmap(self.base.cast(), self.length) };
    }
}

/// A ring of kernel structures `T`. This side either only produces or only consumes.
pub struct Ring<T> {
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    count: u32,
    /// The position of this side. The other side's position is read each time.
    own: u32,
    kind: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// Maps the ring of `count` entries (a power of two) at the kernel's `offset`.
    pub fn map(fd: RawFd, offset: u64, places: &libc::xdp_ring_offset, count: u32) -> Result<Self, Error> {
        let entries = places.desc as usize;
        let length = entries + count as usize * size_of::<T>();
        let mapping = Mapping::new(Some(fd), offset, length)?;
        let (producer, consumer) = (places.producer as usize, places.consumer as usize);
        let flags = places.flags as usize;
        let last = length - size_of::<u32>();
        if producer > last || consumer > last || flags > last {
            return Err(Error::Resource("the kernel's description of an AF_XDP ring is inconsistent".into()));
        }
        Ok(Self {
            mapping,
            producer,
            consumer,
            flags,
            entries,
            count,
            own: 0,
            kind: std::marker::PhantomData,
        })
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: inside the mapping (checked in `map`), aligned by the kernel's layout, and shared with the kernel as
        // an atomic word.
        unsafe { AtomicU32::from_ptr(self.mapping.base.add(at).cast()) }
    }

    fn entry(&self, position: u32) -> *mut T {
        let index = (position & (self.count - 1)) as usize;
        // SAFETY: the index is less than the number of entries in the mapping.
        unsafe { self.mapping.base.add(self.entries).cast::<T>().add(index) }
    }

    /// Passes an entry to the kernel. Returns `false` if the ring is full.
    pub fn produce(&mut self, value: T) -> bool {
        let consumed = self.word(self.consumer).load(Ordering::Acquire);
        if self.own.wrapping_sub(consumed) >= self.count {
            return false;
        }
        // SAFETY: the kernel has consumed this entry, so this side may write it.
        unsafe { self.entry(self.own).write(value) };
        self.own = self.own.wrapping_add(1);
        self.word(self.producer).store(self.own, Ordering::Release);
        true
    }

    /// Takes an entry from the kernel.
    pub fn consume(&mut self) -> Option<T> {
        let produced = self.word(self.producer).load(Ordering::Acquire);
        if produced == self.own {
            return None;
        }
        // SAFETY: the kernel has produced this entry and does not change it until it is consumed.
        let value = unsafe { self.entry(self.own).read() };
        self.own = self.own.wrapping_add(1);
        self.word(self.consumer).store(self.own, Ordering::Release);
        Some(value)
    }

    /// Whether the kernel needs a system call to continue with this ring.
    pub fn needs_wakeup(&self) -> bool {
        self.word(self.flags).load(Ordering::Acquire) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}
