//! The code cache: memory for translated code, with separate executable and writable mappings (W^X). Source: mmap(2),
//! mremap(2) (an old size of zero maps shared memory again), PR_SET_MDWE in prctl(2).

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering},
};

use super::assembler::Assembled;

/// The default size of a cache. A relative jump can reach every byte of it.
pub(crate) const CACHE_BYTES: usize = 256 << 20;

/// The alignment of code, so that no two code blocks share a cache line of the host.
pub(super) const LINE_BYTES: usize = 64;

/// A forked child gets a copy of at most this much code: translating again is cheaper than copying code that may never
/// run.
const MAX_FORK_COPY_BYTES: usize = 8 << 20;

/// If there are more changes than this since the last fork, the next fork copies all code.
const MAX_CHANGES: usize = 4096;

/// Memory for host code. No page is ever writable and executable at once or becomes executable later, as
/// PR_SET_MDWE requires. Both mappings show the same memory and keep their addresses.
pub(crate) struct CodeCache {
    /// The address of the executable mapping.
    start: NonNull<u8>,
    /// The address of the writable mapping.
    writable: NonNull<u8>,
    bytes: usize,
    /// The high-water mark: the offset after the last byte ever used.
    used: usize,
    free: FreeList,
    fork_snapshot: ForkSnapshot,
    /// The memory is still shared with the parent process.
    belongs_to_parent: bool,
}

/// A copy of the code at the last fork, updated incrementally for the next one.
#[derive(Default)]
struct ForkSnapshot {
    bytes: Vec<u8>,
    /// The ranges changed since the last fork: reused blocks and redirected jumps.
    changed: Vec<Range<usize>>,
}

// SAFETY: this value owns the memory and writes it only through `&mut self` or with single aligned atomic stores.
unsafe impl Send for CodeCache {}

impl CodeCache {
    /// Reserves `bytes` bytes of address space twice. The host allocates memory on use.
    pub fn reserve(bytes: usize) -> io::Result<Self> {
        let start = map(ptr::null_mut(), bytes)?;
        match map_alias(start, ptr::null_mut(), bytes) {
            Ok(writable) => Ok(Self {
                start,
                writable,
                bytes,
                used: 0,
                free: FreeList::default(),
                fork_snapshot: ForkSnapshot::default(),
                belongs_to_parent: false,
            }),
            Err(error) => {
                // SAFETY: the mapping was made above.
                unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
                Err(error)
            }
        }
    }

    /// The host address range of the cache.
    pub fn range(&self) -> Range<u64> {
        let start = self.start.as_ptr() as u64;
        start..start + self.bytes as u64
    }

    /// The size of the largest free block.
    pub fn free_bytes(&self) -> usize {
        (self.bytes - self.used).max(self.free.largest())
    }

    /// Writes code into the cache and returns its address range.
    ///
    /// # Panics
    /// If there is not enough space.
    pub fn insert(&mut self, code: &Assembled) -> Range<u64> {
        let length = code.bytes().len().next_multiple_of(LINE_BYTES);
        let offset = self.free.allocate(length).unwrap_or_else(|| {
            assert!(length <= self.bytes - self.used, "callers check free_bytes() first");
            self.used += length;
            self.used - length
        });
        let address = self.start.as_ptr() as u64 + offset as u64;
        let code = code.at(address);
        self.fork_snapshot.record_change(offset..offset + length);
        // SAFETY: the destination is inside the mapping, and no thread runs code there.
        unsafe { ptr::copy_nonoverlapping(code.as_ptr(), self.writable.as_ptr().add(offset), code.len()) };
        address..address + length as u64
    }

    /// All bytes below the high-water mark.
    pub fn written(&self) -> &[u8] {
        // SAFETY: the range is inside the mapping, which is written only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.used) }
    }

    /// Appends code at the high-water mark. Returns false if there is not enough space.
    pub fn extend(&mut self, code: &[u8]) -> bool {
        if code.len() > self.bytes - self.used || !code.len().is_multiple_of(LINE_BYTES) {
            return false;
        }
        // SAFETY: the destination is inside the mapping, and no thread runs code there.
        unsafe {
            ptr::copy_nonoverlapping(code.as_ptr(), self.writable.as_ptr().add(self.used), code.len());
        }
        self.used += code.len();
        true
    }

    /// Overwrites code at `offset` that no thread runs yet.
    ///
    /// # Panics
    /// If the range is not below the high-water mark.
    pub fn overwrite(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.used, "the code to patch is in the cache");
        self.fork_snapshot.record_change(offset..offset + bytes.len());
        // SAFETY: the range is inside the mapping, as asserted above.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.writable.as_ptr().add(offset), bytes.len()) };
    }

    /// Frees code that [`CodeCache::insert`] returned and that no thread can run any more.
    pub fn remove(&mut self, code: Range<u64>) {
        let start = self.start.as_ptr() as u64;
        self.free.free((code.start - start) as usize, (code.end - code.start) as usize);
    }

    /// Patches the jump or call whose 32-bit displacement is at `displacement` to go to `target`. Threads may be
    /// executing it, see [`cross_modification`](super::cross_modification).
    pub fn redirect(&mut self, displacement: u64, target: u64) {
        debug_assert!(self.range().contains(&displacement) && (1..=4).contains(&(displacement % 8)));
        let distance = target.wrapping_sub(displacement + 4) as u32;
        let (quadword, shift) = (displacement & !7, displacement % 8 * 8);
        let offset = (quadword - self.start.as_ptr() as u64) as usize;
        self.fork_snapshot.record_change(offset..offset + 8);
        // SAFETY: the quadword is inside the mapping, and only this value writes to it.
        let word = unsafe { AtomicU64::from_ptr(self.writable.as_ptr().add(offset).cast()) };
        let other_bits = word.load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
        word.store(other_bits | u64::from(distance) << shift, Ordering::Release);
    }

    /// Saves the code for a child just before a fork. The child shares the memory with the parent, which continues to
    /// write to it.
    pub fn save_for_child(&mut self) {
        if self.belongs_to_parent {
            return;
        }
        if self.used > MAX_FORK_COPY_BYTES {
            self.fork_snapshot = ForkSnapshot::default();
            return;
        }
        // SAFETY: the range is inside the mapping, which is written only through this value.
        let code = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.used) };
        self.fork_snapshot.update(code);
    }

    /// Runs in a forked child. The memory still belongs to the parent and must not be executed or written before
    /// [`CodeCache::take_private_copy`]. Returns false if the code exceeded the copy limit; the cache is then empty.
    pub fn adopt_in_child(&mut self) -> bool {
        self.belongs_to_parent = true;
        if self.used > MAX_FORK_COPY_BYTES {
            self.clear();
        }
        !self.is_empty()
    }

    /// Whether this is a forked child before [`CodeCache::take_private_copy`].
    pub fn belongs_to_parent(&self) -> bool {
        self.belongs_to_parent
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Removes all code. No thread may run it any more.
    pub fn clear(&mut self) {
        (self.used, self.free, self.fork_snapshot) = (0, FreeList::default(), ForkSnapshot::default());
    }

    /// Runs in a forked child: replaces the shared memory with private copies of the code at the same addresses.
    ///
    /// # Errors
    /// The host has no memory, or the process has reached its mapping limit (vm.max_map_count). The call can be
    /// repeated.
    pub fn take_private_copy(&mut self) -> io::Result<()> {
        if !self.belongs_to_parent {
            return Ok(());
        }
        map(self.start.as_ptr(), self.bytes)?;
        map_alias(self.start, self.writable.as_ptr(), self.bytes)?;
        self.belongs_to_parent = false;
        let code = &self.fork_snapshot.bytes;
        // SAFETY: the memory mapped above is as large as the cache that was copied.
        unsafe { ptr::copy_nonoverlapping(code.as_ptr(), self.writable.as_ptr(), code.len()) };
        Ok(())
    }
}

impl ForkSnapshot {
    /// Records a change to the code at `range`.
    fn record_change(&mut self, range: Range<usize>) {
        if self.bytes.is_empty() || range.start >= self.bytes.len() {
            return;
        }
        if self.changed.len() == MAX_CHANGES {
            *self = Self::default();
            return;
        }
        self.changed.push(range);
    }

    /// Updates the copy from `code`.
    fn update(&mut self, code: &[u8]) {
        let have = self.bytes.len().min(code.len());
        for range in self.changed.drain(..) {
            let range = range.start..range.end.min(have);
            self.bytes[range.clone()].copy_from_slice(&code[range]);
        }
        self.bytes.extend_from_slice(&code[have..]);
    }
}

/// Maps new shared executable memory at any address, or replaces the mapping at `address`.
fn map(address: *mut u8, bytes: usize) -> io::Result<NonNull<u8>> {
    let fixed = if address.is_null() { 0 } else { libc::MAP_FIXED };
    // SAFETY: at a kernel-chosen address it affects no existing mapping; `address` is owned by a cache.
    let start = unsafe {
        libc::mmap(
            address.cast(),
            bytes,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed,
            -1,
            0,
        )
    };
    check_mmap(start)
}

/// Maps the memory at `start` again as writable memory, at any address or in place of the mapping at `address`. This
/// needs no file descriptor, which a guest could replace concurrently.
fn map_alias(start: NonNull<u8>, address: *mut u8, bytes: usize) -> io::Result<NonNull<u8>> {
    let fixed = if address.is_null() { 0 } else { libc::MREMAP_FIXED };
    // SAFETY: the mapping is shared, so a size of zero leaves it in place; `address` is owned by a cache.
    unsafe {
        let alias = libc::mremap(start.as_ptr().cast(), 0, bytes, libc::MREMAP_MAYMOVE | fixed, address);
        let alias = check_mmap(alias)?;
        if libc::mprotect(alias.as_ptr().cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            let error = io::Error::last_os_error();
            libc::munmap(alias.as_ptr().cast(), bytes);
            return Err(error);
        }
        Ok(alias)
    }
}

fn check_mmap(address: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(address.cast()).expect("mmap never returns null"))
}

impl Drop for CodeCache {
    fn drop(&mut self) {
        // SAFETY: this value owns the mappings, and its owner no longer runs the code.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.bytes);
            libc::munmap(self.writable.as_ptr().cast(), self.bytes);
        }
    }
}

/// Free blocks below the high-water mark. Adjacent blocks are merged.
#[derive(Default)]
struct FreeList {
    /// Start offset to length.
    by_start: BTreeMap<usize, usize>,
    /// `(length, start)`.
    by_length: BTreeSet<(usize, usize)>,
}

impl FreeList {
    fn largest(&self) -> usize {
        self.by_length.last().map_or(0, |(length, _)| *length)
    }

    /// Allocates `length` bytes from the smallest block that is large enough.
    fn allocate(&mut self, length: usize) -> Option<usize> {
        let &(block_length, start) = self.by_length.range((length, 0)..).next()?;
        self.remove(start, block_length);
        if block_length > length {
            self.add(start + length, block_length - length);
        }
        Some(start)
    }

    fn free(&mut self, mut start: usize, mut length: usize) {
        if let Some((&previous, &previous_length)) = self.by_start.range(..start).next_back()
            && previous + previous_length == start
        {
            self.remove(previous, previous_length);
            (start, length) = (previous, previous_length + length);
        }
        if let Some(&next_length) = self.by_start.get(&(start + length)) {
            self.remove(start + length, next_length);
            length += next_length;
        }
        self.add(start, length);
    }

    fn add(&mut self, start: usize, length: usize) {
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn remove(&mut self, start: usize, length: usize) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn allocated_blocks_do_not_overlap_and_freed_blocks_merge(
            steps in prop::collection::vec((any::<bool>(), 1usize..40, any::<prop::sample::Index>()), 1..200),
        ) {
            const ALL: usize = 1000;
            let mut free = FreeList::default();
            free.free(0, ALL);
            let mut allocated: Vec<(usize, usize)> = Vec::new();
            for (allocate, length, index) in steps {
                if allocate {
                    if let Some(start) = free.allocate(length) {
                        prop_assert!(start + length <= ALL);
                        prop_assert!(allocated.iter().all(|(s, l)| start + length <= *s || s + l <= start));
                        allocated.push((start, length));
                    } else {
                        prop_assert!(free.largest() < length);
                    }
                } else if !allocated.is_empty() {
                    let (start, length) = allocated.swap_remove(index.index(allocated.len()));
                    free.free(start, length);
                }
            }
            allocated.into_iter().for_each(|(start, length)| free.free(start, length));
            prop_assert_eq!(free.largest(), ALL);
        }
    }

    #[test]
    fn written_code_runs_and_no_page_is_writable_and_executable() {
        let mut cache = CodeCache::reserve(1 << 20).expect("memory");
        let mut code = crate::jit::assembler::Assembler::new();
        code.op2(iced_x86::Code::Mov_r32_imm32, iced_x86::Register::EAX, 7);
        code.op0(iced_x86::Code::Retnq);
        let range = cache.insert(&code.finish());
        // SAFETY: a function without arguments was written there.
        let run = || unsafe { std::mem::transmute::<u64, extern "sysv64" fn() -> u32>(range.start)() };
        assert_eq!(run(), 7);
        let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
        assert!(!maps.lines().any(|line| line.contains("rwx")), "{maps}");
        cache.save_for_child();
        assert!(cache.adopt_in_child());
        cache.take_private_copy().expect("memory");
        assert_eq!(run(), 7);
    }

    proptest! {
        /// Inserts, removes and redirects code blocks filled with a constant byte, between forks.
        #[test]
        fn a_child_has_the_code_as_of_its_fork(
            steps in prop::collection::vec((0u8..4, 1usize..6, any::<prop::sample::Index>()), 1..60),
        ) {
            let mut cache = CodeCache::reserve(1 << 20).expect("memory");
            let mut blocks: Vec<Range<u64>> = Vec::new();
            for (action, lines, index) in steps {
                match action {
                    0 => {
                        let mut code = crate::jit::assembler::Assembler::new();
                        (0..lines * LINE_BYTES / 2).for_each(|_| code.op0(iced_x86::Code::Retnq));
                        blocks.push(cache.insert(&code.finish()));
                    }
                    1 if !blocks.is_empty() => cache.remove(blocks.swap_remove(index.index(blocks.len()))),
                    2 if !blocks.is_empty() => {
                        cache.redirect(blocks[index.index(blocks.len())].start + 1, 77 * lines as u64);
                    }
                    _ => {
                        cache.save_for_child();
                        // SAFETY: the range is inside the mapping, and no thread writes concurrently.
                        let code = unsafe { std::slice::from_raw_parts(cache.start.as_ptr(), cache.used) };
                        prop_assert!(cache.fork_snapshot.bytes == code);
                    }
                }
            }
        }
    }
}
