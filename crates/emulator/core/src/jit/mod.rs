//! The translator, which compiles regions of guest code to host code shared by all threads of a process. Source: the
//! techniques of dynamic binary translators since FX!32 and QEMU.

mod address_filter;
pub(crate) mod allocation;
mod assembler;
mod code_cache;
mod cross_modification;
pub(crate) mod emit;
pub(crate) mod exported_code;
mod interpreter_call;
mod links;
pub(crate) mod listing;
pub(crate) mod recovery;
pub(crate) mod region;
mod regions;
mod registers;
pub(crate) mod side_entry;
mod trampolines;
mod translator_generations;

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
use longma_guest::host::schedule_fuzz::perturb;
use rustc_hash::FxHashMap;

use self::{
    address_filter::AddressFilter,
    cross_modification::serialise_all,
    emit::{EmitContext, Emitted},
    links::{Link, Links},
    region::{Profile, Region},
    regions::{Regions, Retained},
    side_entry::AttentionExit,
};
pub(crate) use self::{
    code_cache::{CACHE_BYTES, CodeCache},
    emit::origin::OriginSupport,
    trampolines::{BASE_BIAS, Trampolines},
    translator_generations::TranslatorGenerations,
};
use crate::{
    counting::Counting,
    cpu::{Cpu, ExitReason, InterruptedBlock},
    readers::Readers,
    register_accesses::RegisterAccesses,
    traced_blocks::TracedBlocks,
};

/// Used instead of a host address for a block inside a region that has no entry point yet. The entry point is made on
/// first use.
const NO_ENTRY_YET: u64 = 0;

/// Upper bound for the size of a region. A cache with less space is full.
pub(crate) const MAX_REGION_BYTES: usize = 4 << 20;

/// The number of blocks that a forked child interprets before it copies the code, which takes about as long as the
/// copy. If the host has no memory for the copy, the child interprets this many again before it retries.
const INTERPRETED_BEFORE_COPY: u32 = 4000;

/// The configuration shared by the translators of a process.
#[derive(Clone)]
pub(crate) struct TranslatorConfig {
    /// Guest address 0 differs from host address 0.
    pub based: bool,
    /// The size of a code cache.
    pub cache_bytes: usize,
    /// The block counters, if blocks are counted.
    pub counting: Option<Arc<Counting>>,
    /// Each block subtracts its length from the core's instruction budget.
    pub metered: bool,
    /// The traced blocks, if blocks are traced.
    pub tracing: Option<Arc<TracedBlocks>>,
    /// The number of blocks in all regions translated so far.
    pub translated_blocks: Arc<AtomicU64>,
    /// Instructions that access device registers.
    pub registers: Arc<RegisterAccesses>,
    /// The cores that may run the code.
    pub readers: Arc<Readers>,
    /// Support for the architecture that the program was compiled for.
    pub origin: OriginSupport,
}

/// The data about a region that the fault handler needs.
pub(crate) struct PlacedRegion {
    /// The region's host code.
    pub code: Range<u64>,
    /// The host address of the code that spills registers and exits.
    pub spill: u64,
    /// `(position, guest address)` of each instruction.
    pub positions: Vec<(u32, u64)>,
    /// The positions of counted blocks.
    pub counted_blocks: Vec<(u32, InterruptedBlock)>,
}

/// The translated code of one process.
pub(crate) struct Translator {
    state: Mutex<TranslationState>,
    /// Host entry points by guest address, for jumps that use the canonical mapping; or [`NO_ENTRY_YET`]. Untranslated
    /// code has no entry, because lookups of cold code are frequent.
    entries: RwLock<FxHashMap<u64, u64>>,
    /// All addresses ever added to `entries`.
    address_filter: AddressFilter,
    /// Regions by the end address of their code. Only the translator and the fault handler read it.
    placed: RwLock<BTreeMap<u64, PlacedRegion>>,
    cache_range: Range<u64>,
    trampolines: Trampolines,
    /// In a forked child: the number of blocks to interpret before copying the code. Most children exit or call execve
    /// earlier.
    to_interpret: AtomicU32,
    config: TranslatorConfig,
}

/// The state that translation changes, under one lock.
struct TranslationState {
    cache: CodeCache,
    links: Links,
    regions: Regions,
    /// Removed regions, each with the number of changes that all cores must have processed before its memory can be
    /// reused.
    retired: VecDeque<(u64, Retained)>,
}

impl Translator {
    /// Creates a translator without translations.
    ///
    /// # Errors
    /// The host cannot provide executable memory.
    pub fn new(config: &TranslatorConfig) -> io::Result<Self> {
        let mut cache = CodeCache::reserve(config.cache_bytes)?;
        let trampolines = Trampolines::write(&mut |code| cache.insert(code).start);
        serialise_all();
        Ok(Self {
            cache_range: cache.range(),
            state: Mutex::new(TranslationState {
                cache,
                links: Links::default(),
                regions: Regions::default(),
                retired: VecDeque::new(),
            }),
            entries: RwLock::default(),
            address_filter: AddressFilter::default(),
            placed: RwLock::default(),
            trampolines,
            to_interpret: AtomicU32::new(0),
            config: config.clone(),
        })
    }

    /// Whether there is no space for another region.
    pub fn is_full(&self) -> bool {
        let mut state = self.lock();
        self.reclaim(&mut state);
        !state.cache.belongs_to_parent() && state.cache.free_bytes() < MAX_REGION_BYTES
    }

    /// The host address for returns that the return stack does not predict.
    pub fn return_miss(&self) -> u64 {
        self.trampolines.return_miss
    }

    /// The host code for guest address `pc`, if it is translated.
    pub fn find(&self, pc: u64) -> Option<u64> {
        if !self.address_filter.may_contain(pc) {
            return None;
        }
        let entry = self.entries.read().expect("no panic while held").get(&pc).copied();
        match entry? {
            NO_ENTRY_YET => self.make_side_entry(pc),
            host => Some(host),
        }
    }

    /// Like [`Translator::find`], but creates no entry points.
    fn entry(&self, pc: u64) -> Option<u64> {
        let entries = self.entries.read().expect("no panic while held");
        entries.get(&pc).copied().filter(|host| *host != NO_ENTRY_YET)
    }

    /// Runs translated code from `host` until it exits.
    pub fn run(&self, cpu: &mut Cpu, host: u64) -> ExitReason {
        type Enter = unsafe extern "sysv64" fn(*mut u8, u64) -> u32;
        // SAFETY: `enter` was written with exactly this signature, preserves callee-saved registers, and accesses only
        // fields of `cpu` through the base register.
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

    /// Translates the region at `pc` from the blocks in `profile` and returns its host code. Returns `None` if there is
    /// nothing to translate, or if `is_current` reports that the code may have changed since the profile was taken.
    /// `is_current` is called under the lock that invalidation takes: either it sees a change, or the invalidation
    /// finds the new region.
    pub fn translate(
        &self,
        pc: u64,
        profile: &impl Profile,
        is_current: impl FnOnce() -> bool,
    ) -> Option<u64> {
        perturb();
        let mut state = self.lock();
        if !is_current() || state.cache.belongs_to_parent() {
            return None;
        }
        if let Some(host) = self.entry(pc) {
            return Some(host);
        }
        let region = Region::form(pc, profile, |block| state.regions.copies(block));
        if region.blocks.binary_search_by_key(&pc, |b| b.start).is_err() {
            return None;
        }
        self.reclaim(&mut state);
        if state.cache.free_bytes() < MAX_REGION_BYTES {
            return None;
        }
        Some(self.place(&mut state, &region))
    }

    /// Takes the main lock. A forked child gets private memory here if the host has enough; otherwise the cache [still
    /// belongs to the parent](CodeCache::belongs_to_parent) and must not be written.
    fn lock(&self) -> MutexGuard<'_, TranslationState> {
        let mut state = self.state.lock().expect("no panic while held");
        if state.cache.take_private_copy().is_ok() && state.cache.is_empty() {
            // The trampolines get the same addresses again, because they are written first.
            Trampolines::write(&mut |code| state.cache.insert(code).start);
            serialise_all();
        }
        let left = if state.cache.belongs_to_parent() { INTERPRETED_BEFORE_COPY } else { 0 };
        self.to_interpret.store(left, Ordering::Relaxed);
        state
    }

    /// Whether the code must not be run or extended yet. The caller then interprets a block.
    pub fn must_interpret(&self) -> bool {
        match self.to_interpret.load(Ordering::Relaxed) {
            0 => false,
            1 => self.lock().cache.belongs_to_parent(),
            left => {
                self.to_interpret.store(left - 1, Ordering::Relaxed);
                true
            }
        }
    }

    fn place(&self, state: &mut TranslationState, region: &Region) -> u64 {
        let emitted = emit::emit(
            region,
            EmitContext {
                trampolines: self.trampolines,
                based: self.config.based,
                counting: self.config.counting.as_deref(),
                metered: self.config.metered,
                tracing: self.config.tracing.as_deref(),
                registers: &self.config.registers,
                system: None,
                origin: self.config.origin,
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
            interpreter_calls,
            ..
        } = emitted;
        let code = state.cache.insert(&code);
        let start = code.start;
        let host = start + entry as u64;
        let placed =
            PlacedRegion { code: code.clone(), spill: start + spill as u64, positions, counted_blocks };
        self.placed.write().expect("no panic while held").insert(code.end, placed);
        self.config.translated_blocks.fetch_add(region.blocks.len() as u64, Ordering::Relaxed);
        let positions: FxHashMap<u64, usize> = blocks.into_iter().collect();
        let blocks = region.blocks.iter().filter_map(|block| {
            let guest = block.start..block.start + 4 * block.instructions.len() as u64;
            Some((guest, start + *positions.get(&block.start)? as u64))
        });
        let TranslationState { cache, links: all_links, .. } = &mut *state;
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
            interpreter_calls,
        };
        let mut entries = self.entries.write().expect("no panic while held");
        for (guest, _) in &retained.blocks {
            self.address_filter.add(guest.start);
            entries.entry(guest.start).or_insert(NO_ENTRY_YET);
        }
        drop(entries);
        state.regions.add(retained);
        self.publish(state, region.entry, host);
        host
    }

    /// Makes `host`, which has just been written, the code of `pc`, and links pending jumps to it.
    fn publish(&self, state: &mut TranslationState, pc: u64, host: u64) {
        serialise_all();
        self.address_filter.add(pc);
        self.entries.write().expect("no panic while held").insert(pc, host);
        state.links.to(pc).for_each(|link| state.cache.redirect(link.displacement, host));
    }

    /// Creates an entry point from the canonical mapping to a block inside a region.
    fn make_side_entry(&self, pc: u64) -> Option<u64> {
        let mut state = self.lock();
        if let Some(host) = self.entry(pc) {
            return Some(host);
        }
        let TranslationState { cache, regions, .. } = &mut *state;
        let (block, region) = regions.block(pc)?;
        if cache.belongs_to_parent() || cache.free_bytes() < MAX_REGION_BYTES {
            return None;
        }
        let exit = AttentionExit { pc, leave_canonical: self.trampolines.leave_canonical };
        let code = cache.insert(&side_entry::write(&region.allocation, block, Some(exit)));
        let host = code.start;
        region.entries.push(pc);
        region.pieces.push(code);
        self.publish(&mut state, pc, host);
        Some(host)
    }

    /// Removes translations of guest addresses in `range`. Returns the guest addresses that had entry points,
    /// ascending, and the removed regions. Threads leave the old code at their next safe point. The code stays in place
    /// until all threads have left the regions, which the caller passes to [`Translator::retire`].
    pub fn invalidate(&self, range: &Range<u64>) -> (Vec<u64>, Vec<Retained>) {
        let mut state = self.lock();
        if state.cache.belongs_to_parent() {
            // Jumps in the parent's memory cannot be patched. Remove all code, which this process has not run yet.
            return (self.remove_all(&mut state), Vec::new());
        }
        let old = state.regions.remove(range);
        if old.is_empty() {
            return (Vec::new(), old);
        }
        for link in old.iter().flat_map(|region| &region.links) {
            state.links.remove(*link);
        }
        let mut invalidated: Vec<u64> =
            old.iter().flat_map(|region| region.entries.iter().copied()).collect();
        invalidated.sort_unstable();
        let mut entries = self.entries.write().expect("no panic while held");
        let TranslationState { cache, links, regions, .. } = &mut *state;
        for pc in old.iter().flat_map(|region| &region.blocks).map(|(guest, _)| guest.start) {
            if entries.get(&pc) == Some(&NO_ENTRY_YET) && regions.block(pc).is_none() {
                entries.remove(&pc);
            }
        }
        for pc in &invalidated {
            // Another region may contain the block too.
            match regions.block(*pc) {
                Some(_) => entries.insert(*pc, NO_ENTRY_YET),
                None => entries.remove(pc),
            };
            links.to(*pc).for_each(|link| cache.redirect(link.displacement, link.unlinked));
        }
        serialise_all();
        drop(entries);
        drop(state);
        perturb();
        (invalidated, old)
    }

    /// Allows reuse of the memory of removed regions once all cores have processed `changes` changes.
    pub fn retire(&self, old: Vec<Retained>, changes: u64) {
        if !old.is_empty() {
            self.lock().retired.extend(old.into_iter().map(|region| (changes, region)));
        }
    }

    /// Frees the memory of removed regions that no core can be executing.
    fn reclaim(&self, state: &mut TranslationState) {
        if state.retired.is_empty() {
            return;
        }
        let processed = self.config.readers.processed_by_all();
        let mut placed = self.placed.write().expect("no panic while held");
        while state.retired.front().is_some_and(|(changes, _)| *changes <= processed) {
            let Some((_, region)) = state.retired.pop_front() else { break };
            placed.remove(&region.pieces[0].end);
            region.pieces.into_iter().for_each(|piece| state.cache.remove(piece));
        }
    }

    /// Runs in a forked child: the code is copied on first use. Returns the guest addresses that lost their
    /// translations.
    fn adopt_in_child(&self) -> Vec<u64> {
        let mut state = self.state.lock().expect("no panic while held");
        if state.cache.adopt_in_child() {
            self.to_interpret.store(INTERPRETED_BEFORE_COPY, Ordering::Relaxed);
            return Vec::new();
        }
        self.to_interpret.store(1, Ordering::Relaxed);
        self.remove_all(&mut state)
    }

    /// Removes all code in a forked child that has not run any of it. Returns the guest addresses that had entry
    /// points.
    fn remove_all(&self, state: &mut TranslationState) -> Vec<u64> {
        state.cache.clear();
        (state.links, state.regions, state.retired) = Default::default();
        self.placed.write().expect("no panic while held").clear();
        let mut invalidated: Vec<u64> =
            self.entries.write().expect("no panic while held").drain().map(|(pc, _)| pc).collect();
        invalidated.sort_unstable();
        invalidated
    }

    /// Saves the code that a forked child needs. Call it before the fork, while no other thread holds a lock.
    pub fn prepare_fork(&self) {
        self.state.lock().expect("no panic while held").cache.save_for_child();
    }
}
