//! The host memory that translated code lives in: readable and executable where it runs, writable at another address.
//! Not what the code is, nor when nobody runs it any more.
//! Source: mmap(2), mremap(2) (an old size of zero maps shared memory once more), PR_SET_MDWE in prctl(2).

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::Range,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering},
};

use super::assembler::Assembled;

/// The size of a cache unless somebody wants another; every relative jump reaches every byte of it.
pub(crate) const CACHE_BYTES: usize = 256 << 20;

/// Code begins at multiples of this: no two pieces share a line of the host's cache.
pub(super) const LINE_BYTES: usize = 64;

/// A child gets a copy of no more than this: to translate anew is cheaper than to copy what it may never run.
const WORTH_COPYING_BYTES: usize = 8 << 20;

/// With more changes than this since the last fork, the next one copies all code anew.
const MOST_CHANGED: usize = 4096;

/// Memory for host code. No page of it is writable and executable at once, nor ever becomes executable, so that hosts which refuse
/// that (PR_SET_MDWE) take it. The two mappings show the same memory, and stay at their addresses.
pub(crate) struct CodeCache {
    /// Where the code runs.
    start: NonNull<u8>,
    /// Where it is written.
    writable: NonNull<u8>,
    bytes: usize,
    /// Nothing behind this has been used.
    used: usize,
    free: FreePieces,
    copy: Copy,
    /// The memory is that of the process that this one was forked from.
    is_parents: bool,
}

/// The code as it was just before the last fork; the same bytes serve the next one.
#[derive(Default)]
struct Copy {
    bytes: Vec<u8>,
    /// Where the code has changed since, if a copy is kept: pieces written over others, and jumps redirected.
    changed: Vec<Range<usize>>,
}

// SAFETY: the memory is owned by this value and only written through `&mut self` or by single aligned atomic stores.
unsafe impl Send for CodeCache {}

impl CodeCache {
    /// Reserves `bytes` of address space, twice; the host backs it with memory as it is used.
    pub fn reserve(bytes: usize) -> io::Result<Self> {
        let start = map(ptr::null_mut(), bytes)?;
        match map_again(start, ptr::null_mut(), bytes) {
            Ok(writable) => Ok(Self {
                start,
                writable,
                bytes,
                used: 0,
                free: FreePieces::default(),
                copy: Copy::default(),
                is_parents: false,
            }),
            Err(error) => {
                // SAFETY: the mapping just made.
                unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
                Err(error)
            }
        }
    }

    /// The host addresses of the whole cache.
    pub fn range(&self) -> Range<u64> {
        let start = self.start.as_ptr() as u64;
        start..start + self.bytes as u64
    }

    /// The largest piece that is left.
    pub fn room(&self) -> usize {
        (self.bytes - self.used).max(self.free.largest())
    }

    /// Puts code in and gives its address.
    ///
    /// # Panics
    /// Without room for it.
    pub fn insert(&mut self, code: &Assembled) -> Range<u64> {
        let length = code.bytes().len().next_multiple_of(LINE_BYTES);
        let offset = self.free.take(length).unwrap_or_else(|| {
            assert!(length <= self.bytes - self.used, "callers look at room() first");
            self.used += length;
            self.used - length
        });
        let address = self.start.as_ptr() as u64 + offset as u64;
        let code = code.at(address);
        self.copy.note(offset..offset + length);
        // SAFETY: the destination lies inside the mapping, where no code is that anybody runs.
        unsafe { ptr::copy_nonoverlapping(code.as_ptr(), self.writable.as_ptr().add(offset), code.len()) };
        address..address + length as u64
    }

    /// All that has ever been written.
    pub fn written(&self) -> &[u8] {
        // SAFETY: the range is inside the mapping, which is only written through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.used) }
    }

    /// Puts code behind all that has been written; false if there is no room for it.
    pub fn extend(&mut self, code: &[u8]) -> bool {
        if code.len() > self.bytes - self.used || !code.len().is_multiple_of(LINE_BYTES) {
            return false;
        }
        // SAFETY: the destination lies inside the mapping, where no code is that anybody runs.
        unsafe {
            ptr::copy_nonoverlapping(code.as_ptr(), self.writable.as_ptr().add(self.used), code.len());
        }
        self.used += code.len();
        true
    }

    /// Changes what has just been written at `place`, and nobody runs yet.
    ///
    /// # Panics
    /// Outside of what has been written.
    pub fn overwrite(&mut self, place: usize, bytes: &[u8]) {
        assert!(place + bytes.len() <= self.used, "whoever has written code knows where it is");
        self.copy.note(place..place + bytes.len());
        // SAFETY: inside the mapping, by the assertion.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.writable.as_ptr().add(place), bytes.len()) };
    }

    /// Takes back what [`CodeCache::insert`] gave, which nobody may run any more.
    pub fn remove(&mut self, code: Range<u64>) {
        let start = self.start.as_ptr() as u64;
        self.free.put((code.start - start) as usize, (code.end - code.start) as usize);
    }

    /// Redirects the jump or call whose 32-bit displacement stands at `displacement` to `target`; threads may be running it, see
    /// [`cross_modification`](super::cross_modification).
    pub fn redirect(&mut self, displacement: u64, target: u64) {
        debug_assert!(self.range().contains(&displacement) && (1..=4).contains(&(displacement % 8)));
        let distance = target.wrapping_sub(displacement + 4) as u32;
        let (quadword, shift) = (displacement & !7, displacement % 8 * 8);
        let offset = (quadword - self.start.as_ptr() as u64) as usize;
        self.copy.note(offset..offset + 8);
        // SAFETY: the quadword is inside the mapping, and only this value writes there.
        let whole = unsafe { AtomicU64::from_ptr(self.writable.as_ptr().add(offset).cast()) };
        let others = whole.load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
        whole.store(others | u64::from(distance) << shift, Ordering::Release);
    }

    /// Just before a fork: keeps what the child may need. The memory itself will be the parent's, which goes on writing to it.
    pub fn keep_for_child(&mut self) {
        if self.is_parents {
            return;
        }
        if self.used > WORTH_COPYING_BYTES {
            self.copy = Copy::default();
            return;
        }
        // SAFETY: the range is inside the mapping, which is only written through this value.
        let code = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.used) };
        self.copy.follow(code);
    }

    /// In a forked child. The memory is its parent's still, and must not be run or written to before [`CodeCache::part`]. False if
    /// there was so much code that nothing is left of it.
    pub fn become_forked(&mut self) -> bool {
        self.is_parents = true;
        if self.used > WORTH_COPYING_BYTES {
            self.clear();
        }
        !self.is_empty()
    }

    /// True in a forked child before [`CodeCache::part`].
    pub fn is_parents(&self) -> bool {
        self.is_parents
    }

    /// True if there is no code.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Forgets all the code, which nobody may run any more.
    pub fn clear(&mut self) {
        (self.used, self.free, self.copy) = (0, FreePieces::default(), Copy::default());
    }

    /// In a forked child: parts with the parent's memory. The code is at the same addresses afterwards.
    ///
    /// # Errors
    /// The host gives no memory, or the process has as many mappings as it may (vm.max_map_count). It can be tried again.
    pub fn part(&mut self) -> io::Result<()> {
        if !self.is_parents {
            return Ok(());
        }
        map(self.start.as_ptr(), self.bytes)?;
        map_again(self.start, self.writable.as_ptr(), self.bytes)?;
        self.is_parents = false;
        let code = &self.copy.bytes;
        // SAFETY: the memory just mapped is as large as what was copied out of it.
        unsafe { ptr::copy_nonoverlapping(code.as_ptr(), self.writable.as_ptr(), code.len()) };
        Ok(())
    }
}

impl Copy {
    /// The code at `range` is about to change.
    fn note(&mut self, range: Range<usize>) {
        if self.bytes.is_empty() || range.start >= self.bytes.len() {
            return;
        }
        if self.changed.len() == MOST_CHANGED {
            *self = Self::default();
            return;
        }
        self.changed.push(range);
    }

    /// Becomes a copy of `code` again.
    fn follow(&mut self, code: &[u8]) {
        let have = self.bytes.len().min(code.len());
        for range in self.changed.drain(..) {
            let range = range.start..range.end.min(have);
            self.bytes[range.clone()].copy_from_slice(&code[range]);
        }
        self.bytes.extend_from_slice(&code[have..]);
    }
}

/// Maps fresh shared memory that code can run in: anywhere, or in place of what is at `place`.
fn map(place: *mut u8, bytes: usize) -> io::Result<NonNull<u8>> {
    let fixed = if place.is_null() { 0 } else { libc::MAP_FIXED };
    // SAFETY: at an address of the kernel's choice it touches nothing that exists; a place is a cache's own.
    let start = unsafe {
        libc::mmap(
            place.cast(),
            bytes,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed,
            -1,
            0,
        )
    };
    given(start)
}

/// Maps the memory at `start` once more, writable: anywhere, or in place of what is at `place`. No descriptor is needed, which a guest
/// could exchange for another in between.
fn map_again(start: NonNull<u8>, place: *mut u8, bytes: usize) -> io::Result<NonNull<u8>> {
    let fixed = if place.is_null() { 0 } else { libc::MREMAP_FIXED };
    // SAFETY: the mapping is shared, so that a size of zero leaves it as it is; a place is a cache's own.
    unsafe {
        let again = libc::mremap(start.as_ptr().cast(), 0, bytes, libc::MREMAP_MAYMOVE | fixed, place);
        let again = given(again)?;
        if libc::mprotect(again.as_ptr().cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            let error = io::Error::last_os_error();
            libc::munmap(again.as_ptr().cast(), bytes);
            return Err(error);
        }
        Ok(again)
    }
}

fn given(address: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(address.cast()).expect("mmap gives no null page"))
}

impl Drop for CodeCache {
    fn drop(&mut self) {
        // SAFETY: the mappings are this value's own, and whoever drops it no longer runs its code.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.bytes);
            libc::munmap(self.writable.as_ptr().cast(), self.bytes);
        }
    }
}

/// Pieces that were used and are not any more. Neighbours are one piece.
#[derive(Default)]
struct FreePieces {
    /// Start -> length.
    by_start: BTreeMap<usize, usize>,
    /// `(length, start)`.
    by_length: BTreeSet<(usize, usize)>,
}

impl FreePieces {
    fn largest(&self) -> usize {
        self.by_length.last().map_or(0, |(length, _)| *length)
    }

    /// Takes `length` bytes out of the smallest piece that has them.
    fn take(&mut self, length: usize) -> Option<usize> {
        let &(found, start) = self.by_length.range((length, 0)..).next()?;
        self.forget(start, found);
        if found > length {
            self.add(start + length, found - length);
        }
        Some(start)
    }

    fn put(&mut self, mut start: usize, mut length: usize) {
        if let Some((&before, &its)) = self.by_start.range(..start).next_back()
            && before + its == start
        {
            self.forget(before, its);
            (start, length) = (before, its + length);
        }
        if let Some(&behind) = self.by_start.get(&(start + length)) {
            self.forget(start + length, behind);
            length += behind;
        }
        self.add(start, length);
    }

    fn add(&mut self, start: usize, length: usize) {
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn forget(&mut self, start: usize, length: usize) {
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
        fn pieces_taken_do_not_overlap_and_all_come_together_again(
            steps in prop::collection::vec((any::<bool>(), 1usize..40, any::<prop::sample::Index>()), 1..200),
        ) {
            const ALL: usize = 1000;
            let mut free = FreePieces::default();
            free.put(0, ALL);
            let mut taken: Vec<(usize, usize)> = Vec::new();
            for (take, length, which) in steps {
                if take {
                    if let Some(start) = free.take(length) {
                        prop_assert!(start + length <= ALL);
                        prop_assert!(taken.iter().all(|(s, l)| start + length <= *s || s + l <= start));
                        taken.push((start, length));
                    } else {
                        prop_assert!(free.largest() < length);
                    }
                } else if !taken.is_empty() {
                    let (start, length) = taken.swap_remove(which.index(taken.len()));
                    free.put(start, length);
                }
            }
            taken.into_iter().for_each(|(start, length)| free.put(start, length));
            prop_assert_eq!(free.largest(), ALL);
        }
    }

    #[test]
    fn what_is_written_runs_and_no_page_is_writable_and_executable() {
        let mut cache = CodeCache::reserve(1 << 20).expect("memory");
        let mut code = crate::jit::assembler::Assembler::new();
        code.op2(iced_x86::Code::Mov_r32_imm32, iced_x86::Register::EAX, 7);
        code.op0(iced_x86::Code::Retnq);
        let place = cache.insert(&code.finish());
        // SAFETY: a function without arguments was written there.
        let run = || unsafe { std::mem::transmute::<u64, extern "sysv64" fn() -> u32>(place.start)() };
        assert_eq!(run(), 7);
        let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
        assert!(!maps.lines().any(|line| line.contains("rwx")), "{maps}");
        cache.keep_for_child();
        assert!(cache.become_forked());
        cache.part().expect("memory");
        assert_eq!(run(), 7);
    }

    proptest! {
        /// Code of a byte each that pieces are filled with, put in, taken away and redirected between forks.
        #[test]
        fn a_child_has_the_code_of_the_moment_of_its_fork(
            steps in prop::collection::vec((0u8..4, 1usize..6, any::<prop::sample::Index>()), 1..60),
        ) {
            let mut cache = CodeCache::reserve(1 << 20).expect("memory");
            let mut pieces: Vec<Range<u64>> = Vec::new();
            for (what, lines, which) in steps {
                match what {
                    0 => {
                        let mut code = crate::jit::assembler::Assembler::new();
                        (0..lines * LINE_BYTES / 2).for_each(|_| code.op0(iced_x86::Code::Retnq));
                        pieces.push(cache.insert(&code.finish()));
                    }
                    1 if !pieces.is_empty() => cache.remove(pieces.swap_remove(which.index(pieces.len()))),
                    2 if !pieces.is_empty() => {
                        cache.redirect(pieces[which.index(pieces.len())].start + 1, 77 * lines as u64);
                    }
                    _ => {
                        cache.keep_for_child();
                        // SAFETY: the range is inside the mapping, and nobody writes meanwhile.
                        let code = unsafe { std::slice::from_raw_parts(cache.start.as_ptr(), cache.used) };
                        prop_assert!(cache.copy.bytes == code);
                    }
                }
            }
        }
    }
}
