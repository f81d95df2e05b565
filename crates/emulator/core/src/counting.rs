//! Exact execution counts of blocks, kept by each thread and summed on request. Counting adds one instruction to each
//! block of translated code.

use longma_locks::IgnorePoison;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use longma_guest::host::locks::Mutex;
use rustc_hash::FxHashMap;

/// The maximum number of counters, for decoded blocks and blocks of regions together.
const MAX_BLOCKS: usize = 4 << 20;

/// A block and its execution count. A block that was left early counts as a shorter block with the executed
/// instructions. Exception: if an instruction that translated code passes to the interpreter traps, all instructions of
/// the block are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Executed {
    /// The guest address of its first instruction.
    pub start: u64,
    /// Its number of instructions.
    pub instructions: u32,
    /// The number of executions.
    pub runs: u64,
}

/// The counted blocks of a process.
#[derive(Default)]
pub(crate) struct Counting {
    blocks: Mutex<Vec<(u64, u32)>>,
    threads: Mutex<Vec<Arc<Counters>>>,
}

impl Counting {
    /// Allocates a counter for the block at `start`. Returns its number, or `None` if there are too many.
    pub fn add_block(&self, start: u64, instructions: usize) -> Option<u32> {
        let mut blocks = self.blocks.lock().ignore_poison();
        let number = blocks.len();
        (number < MAX_BLOCKS).then(|| {
            blocks.push((start, instructions as u32));
            number as u32
        })
    }

    /// Allocates the counters of a new thread.
    ///
    /// # Errors
    /// The host is out of memory.
    pub fn add_thread(&self) -> io::Result<Arc<Counters>> {
        let counters = Arc::new(Counters::reserve()?);
        self.threads.lock().ignore_poison().push(counters.clone());
        Ok(counters)
    }

    /// All executed blocks, by address. Blocks with equal address and length are merged.
    pub fn executed(&self) -> Vec<Executed> {
        let blocks = self.blocks.lock().ignore_poison();
        let mut sums: FxHashMap<(u64, u32), u64> = FxHashMap::default();
        for thread in self.threads.lock().ignore_poison().iter() {
            for (number, block) in blocks.iter().enumerate() {
                let runs = thread.get(number as u32);
                if runs > 0 {
                    *sums.entry(*block).or_default() += runs;
                }
            }
        }
        for thread in self.threads.lock().ignore_poison().iter() {
            for (left, times) in thread.left.lock().ignore_poison().iter() {
                // A running thread may have been summed before it left the block.
                let sum = sums.entry((left.start, left.instructions)).or_default();
                *sum = sum.saturating_sub(*times);
                *sums.entry((left.start, left.executed)).or_default() += times;
            }
        }
        sums.retain(|(_, instructions), runs| *instructions > 0 && *runs > 0);
        let mut executed: Vec<Executed> = sums
            .into_iter()
            .map(|((start, instructions), runs)| Executed { start, instructions, runs })
            .collect();
        executed.sort_by_key(|e| (e.start, e.instructions));
        executed
    }
}

/// An execution of a block that ended before the end of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PartialExecution {
    /// The guest address of its first instruction.
    pub start: u64,
    /// The number of instructions in the block. The block's counter counts all of them.
    pub instructions: u32,
    /// The number of executed instructions.
    pub executed: u32,
}

/// The counters of one thread. Address space is reserved for all counters; the host allocates memory for those in use.
pub(crate) struct Counters {
    start: *mut AtomicU64,
    /// The number of executions that ended early, by block.
    left: Mutex<FxHashMap<PartialExecution, u64>>,
}

// SAFETY: this value owns the memory, and all accesses are atomic or by the one thread that counts.
unsafe impl Send for Counters {}
// SAFETY: as above.
unsafe impl Sync for Counters {}

impl Counters {
    const BYTES: usize = MAX_BLOCKS * size_of::<AtomicU64>();

    fn reserve() -> io::Result<Self> {
        // SAFETY: an anonymous mapping at an address that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                Self::BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), left: Mutex::default() })
    }

    /// The host address of counter 0. Each counter has 8 bytes.
    pub fn address(&self) -> u64 {
        self.start as u64
    }

    fn slot(&self, number: u32) -> &AtomicU64 {
        assert!((number as usize) < MAX_BLOCKS);
        // SAFETY: the counter is in the mapping, which lives as long as `self`.
        unsafe { &*self.start.add(number as usize) }
    }

    fn get(&self, number: u32) -> u64 {
        self.slot(number).load(Ordering::Relaxed)
    }

    /// Records that a counted execution ended before the end of the block.
    pub fn count_partial(&self, left: PartialExecution) {
        *self.left.lock().ignore_poison().entry(left).or_default() += 1;
    }

    /// Counts one execution. Only the thread that owns the counters calls this.
    pub fn count(&self, number: u32) {
        let slot = self.slot(number);
        slot.store(slot.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping.
        unsafe { libc::munmap(self.start.cast(), Self::BYTES) };
    }
}
