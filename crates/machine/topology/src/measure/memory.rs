//! Memory to measure with: page-aligned, on huge pages and on a NUMA node where the system allows.
//! Not an allocator.
//! Source: mmap(2), madvise(2), set_mempolicy(2).

use super::MeasureError;
use std::ptr::NonNull;

const HUGE_PAGE: usize = 2 << 20;

/// A mapping of zeroed words that belongs to us alone.
pub(super) struct Area {
    start: NonNull<usize>,
    bytes: usize,
    huge: bool,
}

// SAFETY: the mapping is private to this value, which hands out its words only through a mutable borrow.
unsafe impl Send for Area {}

impl Area {
    /// At least `bytes` bytes, each page touched.
    pub(super) fn new(bytes: usize) -> Result<Self, MeasureError> {
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

    /// At least `bytes` bytes on pages of the smallest size, each touched.
    pub(super) fn small(bytes: usize) -> Result<Self, MeasureError> {
        let bytes = bytes.next_multiple_of(HUGE_PAGE);
        let start = map(bytes, 0).map_err(|error| MeasureError::Memory { bytes, error })?;
        let mut area = Self { start, bytes, huge: false };
        // SAFETY: start and bytes are those of the mapping just made. A kernel without huge pages refuses, and need not be told.
        unsafe { libc::madvise(area.start.as_ptr().cast(), bytes, libc::MADV_NOHUGEPAGE) };
        area.words(bytes).iter_mut().step_by(512).for_each(|w| *w = 0);
        Ok(area)
    }

    /// As `new`, with its pages on `node` as far as the system allows. Call from a thread that ends soon: its policy changes.
    pub(super) fn on_node(bytes: usize, node: u32) -> Result<Self, MeasureError> {
        const MPOL_PREFERRED: libc::c_int = 1;
        let mask: [libc::c_ulong; 16] =
            std::array::from_fn(|i| if i == node as usize / 64 { 1 << (node % 64) } else { 0 });
        // SAFETY: mask outlives the call and holds the number of bits that is passed. A refusal leaves the default policy.
        unsafe { libc::syscall(libc::SYS_set_mempolicy, MPOL_PREFERRED, mask.as_ptr(), mask.len() * 64) };
        Self::new(bytes)
    }

    /// The first `bytes` bytes as words.
    pub(super) fn words(&mut self, bytes: usize) -> &mut [usize] {
        let count = bytes.min(self.bytes) / size_of::<usize>();
        // SAFETY: the mapping is that long, zeroed by the kernel, aligned to pages, and borrowed mutably through self.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), count) }
    }

    /// Whether huge pages back it.
    pub(super) fn huge(&self) -> bool {
        self.huge
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length and nobody borrows it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

fn map(bytes: usize, flags: libc::c_int) -> std::io::Result<NonNull<usize>> {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new private anonymous mapping touches no memory that exists.
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

/// Memory the system can give without swapping, in bytes.
pub(super) fn available() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<usize>().ok()?.checked_mul(1024)
}
