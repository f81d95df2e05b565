//! Allocates the memory that is measured: page-aligned, on huge pages and on a given NUMA node if the system allows.
//!
//! Source: mmap(2), madvise(2), set_mempolicy(2).

use crate::MeasureError;
use std::ptr::NonNull;

const HUGE_PAGE: usize = 2 << 20;

/// A private mapping of zeroed words.
pub struct Area {
    start: NonNull<usize>,
    bytes: usize,
    huge: bool,
}

// SAFETY: this value owns the private mapping and gives access to its words only through a mutable borrow.
unsafe impl Send for Area {}

impl Area {
    /// At least `bytes` bytes, with every page touched.
    pub fn new(bytes: usize) -> Result<Self, MeasureError> {
        let bytes = bytes.next_multiple_of(HUGE_PAGE);
        let explicit = map(bytes, libc::MAP_HUGETLB);
        let (start, huge) = match explicit {
            Ok(start) => (start, true),
            Err(_) => (map(bytes, 0).map_err(|error| MeasureError::Memory { bytes, error })?, false),
        };
        let mut area = Self { start, bytes, huge };
        if !huge {
            // SAFETY: start and bytes are those of the mapping just made.
            let advised = unsafe { libc::madvise(area.start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
            area.huge = advised == 0 && transparent_huge_pages();
        }
        area.words(bytes).iter_mut().step_by(512).for_each(|w| *w = 0);
        Ok(area)
    }

    /// At least `bytes` bytes on pages of the smallest size, with every page touched.
    pub fn small(bytes: usize) -> Result<Self, MeasureError> {
        let bytes = bytes.next_multiple_of(HUGE_PAGE);
        let start = map(bytes, 0).map_err(|error| MeasureError::Memory { bytes, error })?;
        let mut area = Self { start, bytes, huge: false };
        // SAFETY: start and bytes are those of the mapping just made. A kernel without huge pages returns an error,
        // which does not matter.
        unsafe { libc::madvise(area.start.as_ptr().cast(), bytes, libc::MADV_NOHUGEPAGE) };
        area.words(bytes).iter_mut().step_by(512).for_each(|w| *w = 0);
        Ok(area)
    }

    /// Like `new`, with its pages on `node` if the system allows. Changes the memory policy of the calling thread,
    /// which should therefore end soon.
    pub fn on_node(bytes: usize, node: u32) -> Result<Self, MeasureError> {
        const MPOL_PREFERRED: libc::c_int = 1;
        let mask: [libc::c_ulong; 16] =
            std::array::from_fn(|i| if i == node as usize / 64 { 1 << (node % 64) } else { 0 });
        // SAFETY: mask outlives the call and has the number of bits that is passed. On an error the default policy
        // stays.
        unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_PREFERRED, mask.as_ptr(), mask.len() * 64) };
        Self::new(bytes)
    }

    /// The first `bytes` bytes as words.
    pub fn words(&mut self, bytes: usize) -> &mut [usize] {
        let count = bytes.min(self.bytes) / size_of::<usize>();
        // SAFETY: the mapping is at least that long, zeroed by the kernel, page-aligned, and borrowed mutably
        // through self.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), count) }
    }

    /// Whether it is backed by huge pages.
    pub fn huge(&self) -> bool {
        self.huge
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and no borrow of it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

fn map(bytes: usize, flags: libc::c_int) -> std::io::Result<NonNull<usize>> {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new private anonymous mapping does not affect existing memory.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    NonNull::new(start.cast()).ok_or_else(std::io::Error::last_os_error)
}

fn transparent_huge_pages() -> bool {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    setting.is_ok_and(|s| s.contains("[always]") || s.contains("[madvise]"))
}

/// Memory that the system can provide without swapping, in bytes.
pub fn available() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<usize>().ok()?.checked_mul(1024)
}
