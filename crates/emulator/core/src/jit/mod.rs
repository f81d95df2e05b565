//! The translator: regions of guest code become host code that all threads of a process share.
//! Not the decision what is hot (see `core.rs`), nor the emission of instructions (see `emit/`).
//! Source: the techniques are those of dynamic binary translators since FX!32 and QEMU.

mod allocation;
mod assembler;
mod call_out;
mod code_cache;
mod cross_modification;
mod emit;
pub(crate) mod kept;
mod links;
pub(crate) mod listing;
pub(crate) mod recovery;
pub(crate) mod region;
mod regions;
mod registers;
mod side_entry;
mod sketch;
mod succession;
mod trampolines;

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use longma_guest::host::locks::{Mutex, MutexGuard, RwLock};
use longma_guest::host::shake::shake;
use rustc_hash::FxHashMap;

pub(crate) use self::{code_cache::CACHE_BYTES, succession::Succession};
use self::{
    code_cache::CodeCache,
    cross_modification::serialise_all,
    emit::{Emitted, Surroundings},
    links::{Link, Links},
    region::{Profile, Region},
    regions::{Regions, Retained},
    sketch::Sketch,
    trampolines::{BASE_BIAS, Trampolines},
};
use crate::{
    counting::Counting,
    cpu::{Cpu, ExitReason, LeftBlock},
    readers::Readers,
    register_accesses::RegisterAccesses,
    traced_blocks::TracedBlocks,
};

/// In the place of a host address: the block is inside of a region, and an entry is made when somebody comes there.
const NO_ENTRY_YET: u64 = 0;

/// Room that the largest region may need; a cache with less is full.
pub(crate) const REGION_ROOM_BYTES: usize = 4 << 20;

/// Blocks that a forked child interprets before it gets a copy of the code: about as long as the copy takes. As many more before it asks
/// again if the host refuses the memory.
const INTERPRETED_FIRST: u32 = 4000;

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
    /// The cores that may run the code.
    pub readers: Arc<Readers>,
}

/// What the fault handler needs to know of a region.
pub(crate) struct Placed {
    /// The region's host code.
    pub code: Range<u64>,
    /// Where the code that spills and leaves stands.
    pub spill: u64,
    /// `(position, guest address)` of every instruction.
    pub positions: Vec<(u32, u64)>,
    /// Where the code of counted blocks begins.
    pub counted_blocks: Vec<(u32, LeftBlock)>,
}

/// Translated code of one process.
pub(crate) struct Translator {
    work: Mutex<Work>,
    /// Host code by guest address, for jumps from the canonical mapping; or [`NO_ENTRY_YET`]. What is not here has no code: cold code is
    /// asked for very often.
    entries: RwLock<FxHashMap<u64, u64>>,
    /// The addresses that have ever been among them.
    sketch: Sketch,
    /// Regions by where their code ends; only the fault handler reads it besides the translator.
    placed: RwLock<BTreeMap<u64, Placed>>,
    cache_range: Range<u64>,
    trampolines: Trampolines,
    /// In a forked child: how many blocks it has yet to interpret before its code is worth a copy. Most children end or execute
    /// another program before.
    to_interpret: AtomicU32,
    origin: Origin,
}

/// What translation changes, under one lock.
struct Work {
    cache: CodeCache,
    links: Links,
    regions: Regions,
    /// Regions that are no more, each with the number of changes that all cores must have seen before its memory is used again.
    retired: VecDeque<(u64, Retained)>,
}

impl Translator {
    /// A translator with nothing translated.
    ///
    /// # Errors
    /// The host gives no executable memory.
    pub fn new(origin: &Origin) -> io::Result<Self> {
        let mut cache = CodeCache::reserve(origin.cache_bytes)?;
        let trampolines = Trampolines::write(&mut |code| cache.insert(code).start);
        serialise_all();
        Ok(Self {
            cache_range: cache.range(),
            work: Mutex::new(Work {
                cache,
                links: Links::default(),
                regions: Regions::default(),
                retired: VecDeque::new(),
            }),
            entries: RwLock::default(),
            sketch: Sketch::default(),
            placed: RwLock::default(),
            trampolines,
            to_interpret: AtomicU32::new(0),
            origin: origin.clone(),
        })
    }

    /// True if there is no room for another region.
    pub fn is_full(&self) -> bool {
        let mut work = self.lock();
        self.reclaim(&mut work);
        !work.cache.is_parents() && work.cache.room() < REGION_ROOM_BYTES
    }

    /// Where a return goes on that the return stack does not have.
    pub fn return_miss(&self) -> u64 {
        self.trampolines.return_miss
    }

    /// The host code for guest address `pc`, if there is any.
    pub fn find(&self, pc: u64) -> Option<u64> {
        if !self.sketch.may_have(pc) {
            return None;
        }
        let found = self.entries.read().expect("no panic while held").get(&pc).copied();
        match found? {
            NO_ENTRY_YET => self.make_side_entry(pc),
            host => Some(host),
        }
    }

    /// As [`Translator::find`], of entries that have been made.
    fn entry(&self, pc: u64) -> Option<u64> {
        let entries = self.entries.read().expect("no panic while held");
        entries.get(&pc).copied().filter(|host| *host != NO_ENTRY_YET)
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

    /// Translates the region at `pc` from what `profile` saw; gives its host code. `None` if there is nothing to translate, or if
    /// `is_current` says that the profile may be of code that has changed since: it is asked under the lock that forgetting takes, so
    /// that a change is either known to it or finds the region.
    pub fn translate(
        &self,
        pc: u64,
        profile: &impl Profile,
        is_current: impl FnOnce() -> bool,
    ) -> Option<u64> {
        shake();
        let mut work = self.lock();
        if !is_current() || work.cache.is_parents() {
            return None;
        }
        if let Some(host) = self.entry(pc) {
            return Some(host);
        }
        let region = Region::form(pc, profile);
        if region.blocks.binary_search_by_key(&pc, |b| b.start).is_err() {
            return None;
        }
        self.reclaim(&mut work);
        if work.cache.room() < REGION_ROOM_BYTES {
            return None;
        }
        Some(self.place(&mut work, &region))
    }

    /// The lock that everything is changed under. A forked child gets memory of its own if the host gives it; otherwise the cache
    /// [is still its parent's](CodeCache::is_parents), and is not to be written to.
    fn lock(&self) -> MutexGuard<'_, Work> {
        let mut work = self.work.lock().expect("no panic while held");
        if work.cache.part().is_ok() && work.cache.is_empty() {
            // The same code at the same addresses: they were the first.
            Trampolines::write(&mut |code| work.cache.insert(code).start);
            serialise_all();
        }
        let left = if work.cache.is_parents() { INTERPRETED_FIRST } else { 0 };
        self.to_interpret.store(left, Ordering::Relaxed);
        work
    }

    /// Whether the code is not to be run or added to yet. A caller who finds so interprets a block.
    pub fn waits(&self) -> bool {
        match self.to_interpret.load(Ordering::Relaxed) {
            0 => false,
            1 => self.lock().cache.is_parents(),
            left => {
                self.to_interpret.store(left - 1, Ordering::Relaxed);
                true
            }
        }
    }

    fn place(&self, work: &mut Work, region: &Region) -> u64 {
        let emitted = emit::emit(
            region,
            Surroundings {
                trampolines: self.trampolines,
                based: self.origin.based,
                counting: self.origin.counting.as_deref(),
                tracing: self.origin.tracing.as_deref(),
                registers: &self.origin.registers,
            },
        );
        let Emitted {
            code,
            entry,
            spill,
            positions,
            counted_blocks,
            blocks,
            links,
            allocation,
            call_outs,
            ..
        } = emitted;
        let code = work.cache.insert(&code);
        let start = code.start;
        let host = start + entry as u64;
        let placed = Placed { code: code.clone(), spill: start + spill as u64, positions, counted_blocks };
        self.placed.write().expect("no panic while held").insert(code.end, placed);
        self.origin.translated_blocks.fetch_add(region.blocks.len() as u64, Ordering::Relaxed);
        let positions: FxHashMap<u64, usize> = blocks.into_iter().collect();
        let blocks = region.blocks.iter().filter_map(|block| {
            let guest = block.start..block.start + 4 * block.instructions.len() as u64;
            Some((guest, start + *positions.get(&block.start)? as u64))
        });
        let Work { cache, links: all_links, .. } = &mut *work;
        let links = links.into_iter().map(|link| {
            let (displacement, unlinked) = (start + link.displacement as u64, start + link.unlinked as u64);
            if let Some(host) = self.entry(link.target) {
                cache.redirect(displacement, host);
            }
            all_links.add(Link { displacement, target: link.target, unlinked })
        });
        let retained = Retained {
            allocation,
            blocks: blocks.collect(),
            entries: vec![region.entry],
            links: links.collect(),
            pieces: vec![code],
            call_outs,
        };
        let mut entries = self.entries.write().expect("no panic while held");
        for (guest, _) in &retained.blocks {
            self.sketch.add(guest.start);
            entries.entry(guest.start).or_insert(NO_ENTRY_YET);
        }
        drop(entries);
        work.regions.add(retained);
        self.publish(work, region.entry, host);
        host
    }

    /// Makes `host`, which has just been written, the code of `pc`, for jumps that wait for it too.
    fn publish(&self, work: &mut Work, pc: u64, host: u64) {
        serialise_all();
        self.sketch.add(pc);
        self.entries.write().expect("no panic while held").insert(pc, host);
        work.links.to(pc).for_each(|link| work.cache.redirect(link.displacement, host));
    }

    /// An entry from the canonical mapping to a block inside a region.
    fn make_side_entry(&self, pc: u64) -> Option<u64> {
        let mut work = self.lock();
        if let Some(host) = self.entry(pc) {
            return Some(host);
        }
        let Work { cache, regions, .. } = &mut *work;
        let (block, region) = regions.block(pc)?;
        if cache.is_parents() || cache.room() < REGION_ROOM_BYTES {
            return None;
        }
        let code = cache.insert(&side_entry::write(&region.allocation, block));
        let host = code.start;
        region.entries.push(pc);
        region.pieces.push(code);
        self.publish(&mut work, pc, host);
        Some(host)
    }

    /// Forgets what was translated from guest addresses in `range`, and gives the guest addresses that had code, in ascending order, and
    /// the regions. Threads leave the old code at their next safe point; it stays where it is until the regions, handed to
    /// [`Translator::retire`], have been left by all.
    pub fn invalidate(&self, range: &Range<u64>) -> (Vec<u64>, Vec<Retained>) {
        let mut work = self.lock();
        if work.cache.is_parents() {
            // The jumps to it cannot be redirected: all of it goes, which nobody has run yet.
            return (self.forget_all(&mut work), Vec::new());
        }
        let old = work.regions.remove(range);
        if old.is_empty() {
            return (Vec::new(), old);
        }
        for link in old.iter().flat_map(|region| &region.links) {
            work.links.remove(*link);
        }
        let mut gone: Vec<u64> = old.iter().flat_map(|region| region.entries.iter().copied()).collect();
        gone.sort_unstable();
        let mut entries = self.entries.write().expect("no panic while held");
        let Work { cache, links, regions, .. } = &mut *work;
        for pc in old.iter().flat_map(|region| &region.blocks).map(|(guest, _)| guest.start) {
            if entries.get(&pc) == Some(&NO_ENTRY_YET) && regions.block(pc).is_none() {
                entries.remove(&pc);
            }
        }
        for pc in &gone {
            // Another region may have the block too.
            match regions.block(*pc) {
                Some(_) => entries.insert(*pc, NO_ENTRY_YET),
                None => entries.remove(pc),
            };
            links.to(*pc).for_each(|link| cache.redirect(link.displacement, link.unlinked));
        }
        serialise_all();
        drop(entries);
        drop(work);
        shake();
        (gone, old)
    }

    /// Lets the memory of forgotten regions be used again when every core has seen `changes` changes.
    pub fn retire(&self, old: Vec<Retained>, changes: u64) {
        if !old.is_empty() {
            self.lock().retired.extend(old.into_iter().map(|region| (changes, region)));
        }
    }

    /// Takes back the memory of the regions that nobody can be in.
    fn reclaim(&self, work: &mut Work) {
        if work.retired.is_empty() {
            return;
        }
        let seen = self.origin.readers.all_have_seen();
        let mut placed = self.placed.write().expect("no panic while held");
        while work.retired.front().is_some_and(|(changes, _)| *changes <= seen) {
            let Some((_, region)) = work.retired.pop_front() else { break };
            placed.remove(&region.pieces[0].end);
            region.pieces.into_iter().for_each(|piece| work.cache.remove(piece));
        }
    }

    /// In a forked child: the code becomes its own, as soon as it is used. Gives the guest addresses that have none any more.
    fn become_forked(&self) -> Vec<u64> {
        let mut work = self.work.lock().expect("no panic while held");
        if work.cache.become_forked() {
            self.to_interpret.store(INTERPRETED_FIRST, Ordering::Relaxed);
            return Vec::new();
        }
        self.to_interpret.store(1, Ordering::Relaxed);
        self.forget_all(&mut work)
    }

    /// In a forked child that has run none of it: forgets all the code, and gives the guest addresses that had some.
    fn forget_all(&self, work: &mut Work) -> Vec<u64> {
        work.cache.clear();
        (work.links, work.regions, work.retired) = Default::default();
        self.placed.write().expect("no panic while held").clear();
        let mut gone: Vec<u64> =
            self.entries.write().expect("no panic while held").drain().map(|(pc, _)| pc).collect();
        gone.sort_unstable();
        gone
    }

    /// Before a fork, while no other thread holds a lock: keeps what the child will need.
    pub fn prepare_fork(&self) {
        self.work.lock().expect("no panic while held").cache.keep_for_child();
    }
}
