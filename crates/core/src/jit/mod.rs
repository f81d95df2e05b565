//! The translator: regions of guest code become host code that all threads of a process share.
//! Not the decision what is hot (see `core.rs`), nor the emission of instructions (see `emit/`).
//! Source: our own; the techniques are those of dynamic binary translators since FX!32 and QEMU.

mod allocation;
mod assembler;
mod call_out;
mod code_cache;
mod emit;
pub(crate) mod recovery;
pub(crate) mod region;
mod registers;
mod side_entry;
mod succession;
mod trampolines;

use std::{
    io,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use rustc_hash::FxHashMap;

use self::{
    allocation::Allocation,
    call_out::CallOuts,
    code_cache::CodeCache,
    emit::Surroundings,
    region::{Profile, Region},
    trampolines::{BASE_BIAS, Trampolines},
};
pub(crate) use self::{code_cache::CACHE_BYTES, succession::Succession};
use crate::{
    counting::Counting,
    cpu::{Cpu, ExitReason},
    register_accesses::RegisterAccesses,
    traced_blocks::TracedBlocks,
};

/// Room that the largest region may need; a cache with less is full.
pub(crate) const REGION_ROOM_BYTES: usize = 4 << 20;

/// What the translators of a process have in common.
#[derive(Clone)]
pub(crate) struct Origin {
    /// Guest address 0 is not host address 0.
    pub based: bool,
    /// The size of a code cache.
    pub cache_bytes: usize,
    /// Blocks are counted.
    pub counting: Option<Arc<Counting>>,
    /// Blocks are traced.
    pub tracing: Option<Arc<TracedBlocks>>,
    /// Blocks in all regions ever translated.
    pub translated_blocks: Arc<AtomicU64>,
    /// Instructions that access registers of devices.
    pub registers: Arc<RegisterAccesses>,
}

/// What the fault handler needs to know of a region.
pub(crate) struct Placed {
    /// The region's host code.
    pub code: Range<u64>,
    /// Where the code that spills and leaves stands.
    pub spill: u64,
    /// `(position, guest address)` of every instruction.
    pub positions: Vec<(u32, u64)>,
}

/// Translated code of one process.
pub(crate) struct Translator {
    work: Mutex<Work>,
    /// Host code by guest address, for jumps from the canonical mapping.
    entries: RwLock<FxHashMap<u64, u64>>,
    /// Regions by ascending address; only the fault handler reads it besides the translator.
    placed: RwLock<Vec<Placed>>,
    cache_range: Range<u64>,
    trampolines: Trampolines,
    origin: Origin,
}

/// What translation changes, under one lock.
struct Work {
    cache: CodeCache,
    links: Vec<Link>,
    /// Jumps whose target has no code yet, by target.
    waiting: FxHashMap<u64, Vec<u32>>,
    /// Blocks inside regions: `(host address, region)`.
    inner_blocks: FxHashMap<u64, (u64, usize)>,
    regions: Vec<Retained>,
}

/// A patchable jump.
struct Link {
    displacement: u64,
    target: u64,
    /// Where it goes while its target has no code.
    unlinked: u64,
}

/// What must live as long as a region's code.
struct Retained {
    allocation: Allocation,
    guest: Range<u64>,
    code: Range<u64>,
    first_link: usize,
    links: usize,
    /// The code holds their addresses.
    _call_outs: CallOuts,
}

impl Translator {
    /// A translator with nothing translated.
    ///
    /// # Errors
    /// The host gives no executable memory.
    pub fn new(origin: &Origin) -> io::Result<Self> {
        let mut cache = CodeCache::reserve(origin.cache_bytes)?;
        let trampolines = Trampolines::write(&mut cache);
        Ok(Self {
            cache_range: cache.range(),
            work: Mutex::new(Work {
                cache,
                links: Vec::new(),
                waiting: FxHashMap::default(),
                inner_blocks: FxHashMap::default(),
                regions: Vec::new(),
            }),
            entries: RwLock::default(),
            placed: RwLock::default(),
            trampolines,
            origin: origin.clone(),
        })
    }

    /// True if there is no room for another region.
    pub fn is_full(&self) -> bool {
        self.lock().cache.room() < REGION_ROOM_BYTES
    }

    /// The host code for guest address `pc`, if there is any.
    pub fn find(&self, pc: u64) -> Option<u64> {
        if let Some(&host) = self.entries.read().expect("no panic while held").get(&pc) {
            return Some(host);
        }
        self.make_side_entry(pc)
    }

    /// Runs translated code from `host` until it comes back.
    pub fn run(&self, cpu: &mut Cpu, host: u64) -> ExitReason {
        type Enter = unsafe extern "sysv64" fn(*mut u8, u64) -> u32;
        // SAFETY: `enter` was written with exactly this signature, keeps what the ABI wants kept, and the base register it is
        // given reaches only fields of `cpu`.
        let reason = unsafe {
            let enter = std::mem::transmute::<u64, Enter>(self.trampolines.enter);
            let base = std::ptr::from_mut(cpu).cast::<u8>().add(BASE_BIAS as usize);
            enter(base, host)
        };
        match reason {
            0 => ExitReason::Unlinked,
            1 => ExitReason::Indirect,
            2 => ExitReason::Attention,
            4 => ExitReason::Trap,
            5 => ExitReason::Syscall,
            _ => ExitReason::Interpret,
        }
    }

    /// Translates the region at `pc` from what `profile` saw; gives its host code. `None` if there is nothing to translate.
    pub fn translate(&self, pc: u64, profile: &impl Profile) -> Option<u64> {
        let mut work = self.lock();
        if let Some(&host) = self.entries.read().expect("no panic while held").get(&pc) {
            return Some(host);
        }
        let region = Region::form(pc, profile);
        if region.blocks.binary_search_by_key(&pc, |b| b.start).is_err() {
            return None;
        }
        if work.cache.room() < REGION_ROOM_BYTES {
            return None;
        }
        Some(self.place(&mut work, &region))
    }

    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().expect("no panic while held")
    }

    fn place(&self, work: &mut Work, region: &Region) -> u64 {
        let start = work.cache.next_address();
        let first_link = work.links.len();
        let emitted = emit::emit(
            region,
            Surroundings {
                start,
                first_link: first_link as u32,
                trampolines: self.trampolines,
                based: self.origin.based,
                counting: self.origin.counting.as_deref(),
                tracing: self.origin.tracing.as_deref(),
                registers: &self.origin.registers,
            },
        );
        let address = work.cache.append(&emitted.code);
        debug_assert_eq!(address, start);
        let code = start..start + emitted.code.len() as u64;
        let host = start + emitted.entry as u64;
        self.placed.write().expect("no panic while held").push(Placed {
            code: code.clone(),
            spill: start + emitted.spill as u64,
            positions: emitted.positions,
        });
        let number = work.regions.len();
        self.origin.translated_blocks.fetch_add(region.blocks.len() as u64, Ordering::Relaxed);
        for (pc, position) in emitted.blocks {
            work.inner_blocks.insert(pc, (start + position as u64, number));
        }
        let last = region.blocks.last().expect("a region has a block");
        let guest = region.blocks[0].start..last.start + 4 * last.instructions.len() as u64;
        work.regions.push(Retained {
            allocation: emitted.allocation,
            guest,
            code,
            first_link,
            links: emitted.links.len(),
            _call_outs: emitted.call_outs,
        });
        for link in emitted.links {
            let displacement = start + link.displacement as u64;
            self.add_link(work, displacement, link.target, start + link.unlinked as u64);
        }
        self.publish(work, region.entry, host);
        host
    }

    fn add_link(&self, work: &mut Work, displacement: u64, target: u64, unlinked: u64) {
        let number = work.links.len() as u32;
        work.links.push(Link { displacement, target, unlinked });
        match self.entries.read().expect("no panic while held").get(&target) {
            Some(&host) => work.cache.redirect(displacement, host),
            None => work.waiting.entry(target).or_default().push(number),
        }
    }

    /// Makes `host` the code of `pc`, for jumps that wait for it too.
    fn publish(&self, work: &mut Work, pc: u64, host: u64) {
        self.entries.write().expect("no panic while held").insert(pc, host);
        for number in work.waiting.remove(&pc).unwrap_or_default() {
            work.cache.redirect(work.links[number as usize].displacement, host);
        }
    }

    /// An entry from the canonical mapping to a block inside a region.
    fn make_side_entry(&self, pc: u64) -> Option<u64> {
        let mut work = self.lock();
        let &(block, region) = work.inner_blocks.get(&pc)?;
        if work.cache.room() < REGION_ROOM_BYTES {
            return None;
        }
        let start = work.cache.next_address();
        let code = side_entry::write(start, &work.regions[region].allocation, block);
        let host = work.cache.append(&code);
        self.publish(&mut work, pc, host);
        Some(host)
    }

    /// Forgets what was translated from guest addresses in `range`, and gives the guest addresses that had code. Threads leave the
    /// old code at their next safe point; it stays where it is.
    pub fn invalidate(&self, range: &Range<u64>) -> Vec<u64> {
        let mut work = self.lock();
        let overlaps = |guest: &Range<u64>| guest.start < range.end && range.start < guest.end;
        let stale: Vec<usize> = (0..work.regions.len())
            .filter(|&n| overlaps(&work.regions[n].guest) && !work.regions[n].code.is_empty())
            .collect();
        if stale.is_empty() {
            return Vec::new();
        }
        let mut entries = self.entries.write().expect("no panic while held");
        let inner = &work.inner_blocks;
        let mut gone: Vec<u64> = entries
            .keys()
            .copied()
            .filter(|pc| range.contains(pc) || inner.get(pc).is_some_and(|(_, n)| stale.contains(n)))
            .collect();
        gone.sort_unstable();
        for pc in &gone {
            entries.remove(pc);
        }
        drop(entries);
        work.inner_blocks.retain(|_, (_, number)| !stale.contains(number));
        let work = &mut *work;
        for number in 0..work.links.len() {
            let link = &work.links[number];
            if gone.binary_search(&link.target).is_ok() {
                work.cache.redirect(link.displacement, link.unlinked);
                work.waiting.entry(link.target).or_default().push(number as u32);
            }
        }
        for number in stale {
            let region = &mut work.regions[number];
            for link in region.first_link..region.first_link + region.links {
                if let Some(list) = work.waiting.get_mut(&work.links[link].target) {
                    list.retain(|n| *n != link as u32);
                }
            }
            region.code = 0..0;
        }
        gone
    }

    /// Holds the locks that must not be half taken in a forked child.
    pub fn quiesce(&self) -> impl Sized + '_ {
        let work = self.lock();
        let entries = self.entries.write().expect("no panic while held");
        let placed = self.placed.write().expect("no panic while held");
        (work, entries, placed)
    }
}
