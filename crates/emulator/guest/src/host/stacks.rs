//! Allocates stacks with a guard page below each. Stacks are cut from large mappings, because the number of mappings of
//! a process is limited. Source: mmap(2), madvise(2) (MADV_GUARD_INSTALL, since Linux 6.13), proc_sys_vm(5)
//! (max_map_count).

use longma_locks::IgnorePoison;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use super::locks::Mutex;

const PAGE_BYTES: usize = 4096;
/// The approximate size of one mapping.
const CHUNK_BYTES: usize = 32 << 20;
/// Makes a page inaccessible without splitting the mapping.
const MADV_GUARD_INSTALL: i32 = 102;

/// The stacks of one size.
#[derive(Default)]
struct Pool {
    /// Freed stacks, whose guard pages are still installed.
    free: Vec<usize>,
    /// The unused rest of the latest mapping.
    fresh: Range<usize>,
}

/// Pools by stack size in bytes, without the guard page.
static POOLS: Mutex<BTreeMap<usize, Pool>> = Mutex::new(BTreeMap::new());

/// A zeroed stack with a guard page below it.
#[derive(Debug)]
pub struct Stack {
    /// The address of the guard page.
    start: usize,
    bytes: usize,
}

impl Stack {
    /// Allocates a stack of at least `bytes` bytes.
    ///
    /// # Errors
    /// The host has no memory.
    pub fn allocate(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        let mut pools = POOLS.lock().ignore_poison();
        let pool = pools.entry(bytes).or_default();
        if let Some(start) = pool.free.pop() {
            return Ok(Self { start, bytes });
        }
        let mapped_bytes = bytes + PAGE_BYTES;
        if pool.fresh.len() < mapped_bytes {
            pool.fresh = map(mapped_bytes * (CHUNK_BYTES / mapped_bytes).max(1))?;
        }
        let start = pool.fresh.start;
        guard(start)?;
        pool.fresh.start += mapped_bytes;
        Ok(Self { start, bytes })
    }

    /// The address range of the guard page.
    pub fn guard(&self) -> Range<usize> {
        self.start..self.start + PAGE_BYTES
    }

    /// The address range above the guard page.
    pub fn usable(&self) -> Range<usize> {
        self.guard().end..self.guard().end + self.bytes
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        let usable = self.usable();
        // SAFETY: this value owns the memory. The next owner reads zeros.
        unsafe { libc::madvise(usable.start as *mut libc::c_void, usable.len(), libc::MADV_DONTNEED) };
        let mut pools = POOLS.lock().ignore_poison();
        pools.entry(self.bytes).or_default().free.push(self.start);
    }
}

fn map(bytes: usize) -> io::Result<Range<usize>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping made above. Huge pages would waste memory, because most of each stack is never touched.
    unsafe { libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE) };
    Ok(start.addr()..start.addr() + bytes)
}

/// Makes a page inaccessible by a page table entry, or by mprotect if the host does not support that.
fn guard(page: usize) -> io::Result<()> {
    let page = page as *mut libc::c_void;
    // SAFETY: the page is part of our mapping and not in use yet.
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
        // SAFETY: the array has room for both descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        // SAFETY: the source is one valid byte; the kernel checks the destination address.
        let read = unsafe {
            assert_eq!(libc::write(ends[1], b"x".as_ptr().cast(), 1), 1);
            libc::read(ends[0], address as *mut libc::c_void, 1)
        };
        for end in ends {
            // SAFETY: the descriptors belong to this function.
            unsafe { libc::close(end) };
        }
        read == 1
    }

    #[test]
    fn a_stack_is_writable_and_its_guard_page_is_not() {
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
    fn a_reused_stack_is_zeroed() {
        const BYTES: usize = 12 << 10;
        let first = Stack::allocate(BYTES).expect("memory");
        let address = first.usable().start;
        // SAFETY: the memory belongs to the stack.
        unsafe { (address as *mut u64).write(7) };
        drop(first);
        let reused = Stack::allocate(BYTES).expect("memory");
        assert_eq!(reused.usable().start, address, "it is used again");
        // SAFETY: as above.
        assert_eq!(unsafe { (address as *const u64).read() }, 0);
    }
}
