//! Memory for stacks, with an inaccessible page below each: cut from large mappings, for a process may have few mappings but many
//! threads.
//! Not the guest's stacks: those are the guest's own mappings.
//! Source: mmap(2), madvise(2) (MADV_GUARD_INSTALL, since Linux 6.13), proc_sys_vm(5) (max_map_count).

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::PoisonError;

use super::locks::Mutex;

const PAGE_BYTES: usize = 4096;
/// The size of one mapping, about.
const CHUNK_BYTES: usize = 32 << 20;
/// An inaccessible page that is not a mapping of its own.
const MADV_GUARD_INSTALL: i32 = 102;

/// Memory of one size.
#[derive(Default)]
struct Pool {
    /// Memory that was in use, its guard still below it.
    free: Vec<usize>,
    /// What of the newest mapping was never in use.
    fresh: Range<usize>,
}

/// By the number of bytes above the guard.
static POOLS: Mutex<BTreeMap<usize, Pool>> = Mutex::new(BTreeMap::new());

/// Zeros to push to, with an inaccessible page below.
#[derive(Debug)]
pub struct Stack {
    /// Where the guard begins.
    start: usize,
    bytes: usize,
}

impl Stack {
    /// At least `bytes` bytes.
    ///
    /// # Errors
    /// The host has no memory to give.
    pub fn allocate(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pools.entry(bytes).or_default();
        if let Some(start) = pool.free.pop() {
            return Ok(Self { start, bytes });
        }
        let whole = bytes + PAGE_BYTES;
        if pool.fresh.len() < whole {
            pool.fresh = map(whole * (CHUNK_BYTES / whole).max(1))?;
        }
        let start = pool.fresh.start;
        guard(start)?;
        pool.fresh.start += whole;
        Ok(Self { start, bytes })
    }

    /// The inaccessible page.
    pub fn guard(&self) -> Range<usize> {
        self.start..self.start + PAGE_BYTES
    }

    /// What is above it.
    pub fn usable(&self) -> Range<usize> {
        self.guard().end..self.guard().end + self.bytes
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let usable = self.usable();
        // SAFETY: the memory is this value's own; the next owner finds zeros.
        unsafe { libc::madvise(usable.start as *mut libc::c_void, usable.len(), libc::MADV_DONTNEED) };
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        pools.entry(self.bytes).or_default().free.push(self.start);
    }
}

fn map(bytes: usize) -> io::Result<Range<usize>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping just made. Only advice: most of each stack is never touched.
    unsafe { libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE) };
    Ok(start.addr()..start.addr() + bytes)
}

/// Makes a page inaccessible: by a mark in the page table, or where the host knows none, by a mapping.
fn guard(page: usize) -> io::Result<()> {
    let page = page as *mut libc::c_void;
    // SAFETY: the page is part of a mapping of ours, and nobody has it yet.
    let guarded = unsafe {
        libc::madvise(page, PAGE_BYTES, MADV_GUARD_INSTALL) == 0
            || libc::mprotect(page, PAGE_BYTES, libc::PROT_NONE) == 0
    };
    if guarded { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_writable(address: usize) -> bool {
        let mut ends = [0; 2];
        // SAFETY: the array takes both descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        // SAFETY: one byte is there to be sent; the kernel checks the address it is received at.
        let read = unsafe {
            assert_eq!(libc::write(ends[1], b"x".as_ptr().cast(), 1), 1);
            libc::read(ends[0], address as *mut libc::c_void, 1)
        };
        for end in ends {
            // SAFETY: they are this function's own.
            unsafe { libc::close(end) };
        }
        read == 1
    }

    #[test]
    fn a_stack_is_writable_to_its_ends_and_not_below() {
        for _ in 0..3 {
            let stacks: Vec<Stack> = (0..5).map(|_| Stack::allocate(40_000).expect("memory")).collect();
            for stack in &stacks {
                let usable = stack.usable();
                assert!(usable.len() >= 40_000);
                assert!(is_writable(usable.start) && is_writable(usable.end - 1));
                assert!(!is_writable(stack.guard().start) && !is_writable(usable.start - 1));
            }
        }
    }

    #[test]
    fn memory_comes_back_as_zeros() {
        const BYTES: usize = 12 << 10;
        let first = Stack::allocate(BYTES).expect("memory");
        let place = first.usable().start;
        // SAFETY: the memory is the stack's.
        unsafe { (place as *mut u64).write(7) };
        drop(first);
        let again = Stack::allocate(BYTES).expect("memory");
        assert_eq!(again.usable().start, place, "it is used again");
        // SAFETY: as above.
        assert_eq!(unsafe { (place as *const u64).read() }, 0);
    }
}
