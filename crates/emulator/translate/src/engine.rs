//! The translation engine of one process: places translation units, links and unlinks them, and maps host addresses
//! back to source addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use longma_loongarch::Op as La;
use longma_loongarch::{Access, Fault, FaultCause, Instruction, encode};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::areas::{Areas, PlacedUnit};
use crate::cached_units::CachedUnits;
use crate::cold_blocks::ColdBlocks;
use crate::front_end::{EXIT, Exit, FrontEnd, Memory, Position, Unit};
use crate::hotness::{Hotness, PAGE};
use crate::optimizations::{HASH_BYTES, HASH_ENTRIES, HASH_SHIFT, Optimization, Optimizations, Options};
use crate::positions::Positions;
use crate::provenance::{Origin, SourceReader, SourceWords};

/// The address ranges that translated code uses. The program must not map anything there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The code area. It must end below 4 GiB because entries of the lookup table have 32 bits.
    pub code: Range<u64>,
    /// The start of the lookup table. The entry of source address `a` is at `table + (a << ENTRY_SHIFT)`; see
    /// [`FrontEnd::ENTRY_SHIFT`].
    pub table: u64,
    /// The end of the source address space (exclusive).
    pub limit: u64,
}

/// Why the engine cannot supply code for a source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeError {
    /// The source code cannot be fetched.
    Fault(Fault),
    /// The code area is full.
    Full,
    /// A breakpoint is set at the address.
    Breakpoint,
}

impl From<Fault> for CodeError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// All translations of one process.
pub struct Engine<F: FrontEnd> {
    pub(crate) layout: Layout,
    pub(crate) options: Options,
    /// The source address that owns each used slot of the hash table, by slot number.
    hashed: FxHashMap<u64, u64>,
    /// Hot code by source address. Jumps, calls and returns may enter it.
    pub(crate) entries: FxHashMap<u64, u64>,
    pub(crate) exits: FxHashMap<u64, Exit<F::Service>>,
    /// The source register that an indirect call reads its target from, by the call's host return address.
    pub(crate) calls: FxHashMap<u64, u8>,
    pub(crate) areas: Areas<F::Pending>,
    /// The entry points of the units that read code from a page, by page number.
    pub(crate) readers: FxHashMap<u64, Vec<u64>>,
    /// Internal block heads by page number: (source address, host address). Only jumps of the same unit lead to a head.
    pub(crate) heads: FxHashMap<u64, Vec<(u64, u64)>>,
    /// For a source address, the number of units that contain an internal block for it.
    copies: FxHashMap<u64, u32>,
    /// Cold blocks by source address. Only the engine enters them, so that it can count visits.
    pub(crate) cold: FxHashMap<u64, u64>,
    /// Cold blocks that are interpreted, by source address; `None` if all code is translated.
    pub(crate) interpreted: Option<ColdBlocks<F::DecodedInstruction>>,
    pub(crate) hotness: Hotness,
    /// How often a function was retranslated from its start because more of it became hot.
    retranslated: FxHashMap<u64, u32>,
    /// Debug mode: each unit is a single instruction, so that all registers are architectural between units.
    pub(crate) is_debugged: bool,
    /// Source addresses with breakpoints.
    pub(crate) breakpoints: BTreeSet<u64>,
    /// The code that continues past a breakpoint, by source address. No jump or table entry leads to it.
    past_breakpoints: FxHashMap<u64, u64>,
    /// The host addresses of return stubs, by return address; see [`Unit::return_stubs`].
    return_stubs: FxHashMap<u64, u64>,
    /// Whether units record the source words that they were translated from.
    pub(crate) records_origins: bool,
    /// Units imported from another process that are not validated yet.
    pub(crate) cached: Option<CachedUnits>,
}

/// Upper bound of an instruction's length in bytes, for all architectures.
const MAX_INSTRUCTION_BYTES: u64 = 16;

/// The maximum number of units that contain a copy of the same block. After that, the block becomes a separate unit.
const MAX_COPIES: u32 = 4;

/// How often a function may be retranslated from its start. Code that becomes hot later becomes a separate unit.
const MAX_RETRANSLATIONS: u32 = 16;

/// Reads a word of the program's code, or of kernel code that the program may execute.
///
/// # Errors
/// The address is not executable.
pub(crate) fn fetch<F: FrontEnd>(pc: u64, memory: &dyn Memory) -> Result<u32, Fault> {
    F::kernel_code(pc).map_or_else(|| memory.fetch(pc), Ok)
}

impl<F: FrontEnd> Engine<F> {
    /// Creates an engine without translations. All units are translated with `optimizations`.
    pub fn new(layout: Layout, optimizations: Optimizations) -> Self {
        // The hash table, if used, occupies the end of the code area.
        let hash = layout.code.end.saturating_sub(HASH_BYTES) & !(HASH_BYTES - 1);
        let options = Options {
            optimizations,
            hash,
            is_cold: false,
            exact_floats: false,
            keeps_flags_across_calls: false,
        };
        let end = if optimizations.has(Optimization::Table) { layout.code.end } else { hash };
        Self {
            areas: Areas::one(layout.code.start..end),
            hashed: FxHashMap::default(),
            layout,
            options,
            entries: FxHashMap::default(),
            exits: FxHashMap::default(),
            calls: FxHashMap::default(),
            readers: FxHashMap::default(),
            heads: FxHashMap::default(),
            copies: FxHashMap::default(),
            cold: FxHashMap::default(),
            interpreted: None,
            hotness: Hotness::new(1),
            retranslated: FxHashMap::default(),
            is_debugged: false,
            breakpoints: BTreeSet::new(),
            past_breakpoints: FxHashMap::default(),
            return_stubs: FxHashMap::default(),
            records_origins: false,
            cached: None,
        }
    }

    /// Enables two-stage translation: the engine translates an address block by block until it was entered `visits`
    /// times, then together with all executed code that it reaches. Jumps within a unit are not counted. Most code of a
    /// program runs only a few times and never reaches most of its branches' targets, so this avoids wasted
    /// translation.
    pub fn set_hot_threshold(&mut self, visits: u32) {
        self.hotness = Hotness::new(visits);
    }

    /// Splits the code area in two, so that [`Self::switch_area`] can reuse space when one half is full. Call it before
    /// anything is translated.
    pub fn split_areas(&mut self) {
        self.areas = Areas::two(self.areas.range());
    }

    /// The start of the second area, if there are two.
    pub fn second_area(&self) -> Option<u64> {
        self.areas.second()
    }

    /// The area that [`Self::switch_area`] would switch to. `None` if there is only one area or the current one is
    /// empty.
    pub fn free_area(&self) -> Option<usize> {
        self.areas.other().filter(|_| !self.areas.is_empty())
    }

    /// Discards all translations and switches to [`Self::free_area`], which must be empty. Threads drain from the old
    /// area at their next jump; until then the engine still answers queries about addresses in it.
    ///
    /// # Errors
    /// The host cannot provide memory.
    pub fn switch_area(&mut self, memory: &dyn Memory) -> Result<(), Fault> {
        self.cached = None;
        let old = self.areas.current();
        let heads = self.heads.drain().flat_map(|(_, heads)| heads);
        let indirect: BTreeSet<u64> = self.entries.keys().copied().collect();
        let entries = [&mut self.entries, &mut self.cold, &mut self.past_breakpoints];
        let entries = entries.into_iter().flat_map(|entries| entries.drain());
        let mut exits: FxHashMap<u64, Exit<F::Service>> =
            entries.map(|(pc, code)| (code, Exit::To(pc))).collect();
        exits.extend(heads.map(|(pc, code)| (code, Exit::Leave(pc))));
        // Only the old area has code to unlink. The `BTreeSet` gives the ascending order that `Memory` requires.
        exits.retain(|code, _| old.contains(code));
        let codes: BTreeSet<u64> = exits.keys().copied().collect();
        codes.into_iter().try_for_each(|code| memory.place(code, &[exit_word()]))?;
        memory.enter(&indirect.into_iter().map(|pc| (self.entry_of(pc), 0)).collect::<Vec<_>>())?;
        // Invalidate the hash slots: the stored address now belongs to another slot, so that no lookup matches.
        // `hashed` still reserves the slot for its source address.
        let unhashed = |(number, pc): (&u64, &u64)| {
            (self.options.hash + (number << HASH_SHIFT), (pc ^ F::ALIGNMENT) as u32)
        };
        let unhashed: BTreeSet<(u64, u32)> = self.hashed.iter().map(unhashed).collect();
        memory.enter(&unhashed.into_iter().collect::<Vec<_>>())?;
        memory.forget(old)?;
        self.exits.extend(exits);
        self.readers.clear();
        self.interpreted.iter_mut().for_each(ColdBlocks::clear);
        self.return_stubs.clear();
        self.copies.clear();
        self.retranslated.clear();
        self.hotness.reset();
        let new = self.areas.switch();
        self.exits.retain(|code, _| !new.contains(code));
        // `link` is the address after the call's word, possibly the end of the area.
        self.calls.retain(|link, _| !new.contains(&(link - 4)));
        memory.forget(new)
    }

    /// The address ranges that translated code uses.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether `address` is in the code area.
    pub fn is_code(&self, address: u64) -> bool {
        self.layout.code.contains(&address)
    }

    /// The host code of a source address, translated if necessary.
    ///
    /// # Errors
    /// The address is not executable, the area is full, or a breakpoint is set there.
    pub fn code_of(&mut self, pc: u64, memory: &dyn Memory) -> Result<u64, CodeError> {
        if self.breakpoints.contains(&pc) {
            Err(CodeError::Breakpoint)
        } else {
            self.code_past_breakpoint(pc, memory)
        }
    }

    /// Like [`Self::code_of`], but ignores a breakpoint at `pc`.
    ///
    /// # Errors
    /// The address is not executable, or the area is full.
    pub fn code_past_breakpoint(&mut self, pc: u64, memory: &dyn Memory) -> Result<u64, CodeError> {
        let is_stop = self.breakpoints.contains(&pc);
        if let Some(existing) = self.hot_code(pc, is_stop, memory)? {
            return Ok(existing);
        }
        let is_hot = self.count_visit(pc);
        self.translate_after_visit(pc, is_hot, is_stop, memory)
    }

    /// The hot code of `pc`, or its code past a breakpoint there.
    pub(crate) fn hot_code(
        &mut self,
        pc: u64,
        is_stop: bool,
        memory: &dyn Memory,
    ) -> Result<Option<u64>, CodeError> {
        let existing = if is_stop { self.past_breakpoints.get(&pc) } else { self.entries.get(&pc) };
        if existing.is_some() || self.cached.is_none() || is_stop {
            return Ok(existing.copied());
        }
        self.activate(pc, memory)?;
        Ok(self.entries.get(&pc).copied())
    }

    /// Counts a visit to `pc`, and returns whether it is hot.
    pub(crate) fn count_visit(&mut self, pc: u64) -> bool {
        let is_translated = |function| self.retranslated.contains_key(&function);
        self.is_debugged || !self.options.has(Optimization::Units) || self.hotness.visit(pc, is_translated)
    }

    /// Whether `pc` is hot after this number of visits.
    pub(crate) fn is_hot_after(&self, visits: u32, pc: u64) -> bool {
        self.hotness.is_hot_after(visits, pc, |function| self.retranslated.contains_key(&function))
    }

    /// The cold code of `pc`, translated if necessary; if `is_hot`, a new translation as hot code.
    pub(crate) fn translate_after_visit(
        &mut self,
        pc: u64,
        is_hot: bool,
        is_stop: bool,
        memory: &dyn Memory,
    ) -> Result<u64, CodeError> {
        if !is_hot && let Some(&cold) = self.cold.get(&pc) {
            return Ok(cold);
        }
        let is_aligned = pc.is_multiple_of(F::ALIGNMENT);
        if pc >= self.layout.limit && F::kernel_code(pc & !3).is_some() && !is_stop {
            return self.code_of_one(pc, memory);
        }
        if !is_aligned || pc >= self.layout.limit && F::kernel_code(pc & !3).is_none() {
            let cause = if is_aligned { FaultCause::Unmapped } else { FaultCause::Misaligned };
            return Err(Fault { address: pc, access: Access::Execute, cause }.into());
        }
        if is_hot && !self.is_debugged {
            self.place_function_of(pc, memory)?;
            if let Some(&existing) = self.entries.get(&pc).filter(|_| !is_stop) {
                return Ok(existing);
            }
        }
        let (unit, is_hot, sources) = loop {
            fetch::<F>(pc & !3, memory).map_err(|fault| Fault { address: pc, ..fault })?;
            // Within a page, executability does not change. Only an instruction near the page's end can reach another
            // page.
            let is_near_end = pc % PAGE + MAX_INSTRUCTION_BYTES > PAGE;
            if is_near_end && let Some(missing) = F::missing_address(pc, &|pc| memory.fetch(pc).ok()) {
                memory.fetch(missing)?;
            }
            let (unit, is_hot, sources) = self.translate(pc, is_hot, memory);
            if unit.reads_flags_after_call && self.keep_flags_across_calls(memory)? {
                continue;
            }
            if unit.entries.iter().any(|(entry, _)| *entry == pc) {
                break (unit, is_hot, sources);
            }
            // Another thread unmapped the code between the check and the translation. Check again; the second attempt
            // may fault.
        };
        self.place(unit, is_hot, sources, memory)?;
        let placed = match (is_stop, is_hot) {
            (true, _) => &self.past_breakpoints,
            (false, true) => &self.entries,
            (false, false) => &self.cold,
        };
        Ok(placed[&pc])
    }

    /// Code for the single instruction at `pc`, before and after which all registers are architectural. Jumps to `pc` do
    /// not lead to it.
    ///
    /// # Errors
    /// As for [`Self::code_past_breakpoint`].
    pub fn code_of_one(&mut self, pc: u64, memory: &dyn Memory) -> Result<u64, CodeError> {
        if let Some(&existing) = self.past_breakpoints.get(&pc) {
            return Ok(existing);
        }
        let (was_debugged, is_new) =
            (std::mem::replace(&mut self.is_debugged, true), self.breakpoints.insert(pc));
        let code = self.code_past_breakpoint(pc, memory);
        self.is_debugged = was_debugged;
        if is_new {
            self.breakpoints.remove(&pc);
        }
        code
    }

    /// Translates the code at `pc`. The flag in the result is true for a hot unit.
    fn translate(
        &mut self,
        pc: u64,
        is_hot: bool,
        memory: &dyn Memory,
    ) -> (Unit<F::Service, F::Pending>, bool, Option<SourceWords>) {
        if self.is_debugged {
            return (F::translate_one(pc, &|pc| fetch::<F>(pc, memory).ok()), true, None);
        }
        if !is_hot {
            let reader = SourceReader::new(memory, self.records_origins);
            let fetch = |pc| reader.fetch(pc);
            let block = F::translate(pc, &[], &fetch, &|_| false, &self.options.cold());
            self.hotness.note(&block);
            return (block, false, reader.sources());
        }
        // A loop may be running through `pc`, so make it an entry point of the unit.
        let extra_entries: &[u64] = if self.hotness.is_two_stage() { &[pc] } else { &[] };
        let (unit, sources) = self.unit_from(pc, extra_entries, &(pc..pc), memory);
        (unit, true, sources)
    }

    /// Translates the executed code that is reachable from `pc`, with `extra_entries` as additional entry points. Code
    /// inside `function` is included even if it is translated already.
    fn unit_from(
        &self,
        pc: u64,
        extra_entries: &[u64],
        function: &Range<u64>,
        memory: &dyn Memory,
    ) -> (Unit<F::Service, F::Pending>, Option<SourceWords>) {
        let is_cached = |pc| self.cached.as_ref().is_some_and(|cached| cached.has_hot(pc));
        let is_known = |pc| {
            let has_code = self.entries.contains_key(&pc) || is_cached(pc) || self.has_too_many_copies(pc);
            has_code && !function.contains(&pc) || !self.hotness.has_executed(pc)
        };
        let reader = SourceReader::new(memory, self.records_origins);
        let unit = F::translate(pc, extra_entries, &|pc| reader.fetch(pc), &is_known, &self.options);
        (unit, reader.sources())
    }

    fn has_too_many_copies(&self, pc: u64) -> bool {
        self.copies.get(&pc).is_some_and(|copies| *copies >= MAX_COPIES)
    }

    /// Retranslates the function that contains `pc` from its start, with all code executed since the last time, so that
    /// whole loops are visible to the front end.
    fn place_function_of(&mut self, pc: u64, memory: &dyn Memory) -> Result<(), CodeError> {
        let function = self.hotness.function_of(pc);
        let is_again = |function: &Range<u64>| {
            let retranslated = self.retranslated.get(&function.start).copied().unwrap_or_default();
            function.start != pc
                && retranslated < MAX_RETRANSLATIONS
                && !self.has_too_many_copies(function.start)
        };
        let Some(function) = function.filter(is_again) else { return Ok(()) };
        *self.retranslated.entry(function.start).or_default() += 1;
        let extra_entries: Vec<u64> = self.warm_blocks(&function).chain([pc]).collect();
        let (unit, sources) = self.unit_from(function.start, &extra_entries, &function, memory);
        // The start of a function is a guess, so the unit may not contain `pc`.
        let is_discarded = unit.reads_flags_after_call && self.keep_flags_across_calls(memory)?;
        if !is_discarded && unit.entries.iter().any(|(entry, _)| *entry == pc) {
            self.place(unit, true, sources, memory)?;
        }
        Ok(())
    }

    /// Records that an indirect jump, an indirect call or a return led to `pc`.
    pub fn note_indirect(&mut self, pc: u64) {
        self.hotness.note_indirect(pc);
    }

    /// The address of the lookup-table entry of `pc`.
    pub(crate) fn entry_of(&self, pc: u64) -> u64 {
        self.layout.table + (pc << F::ENTRY_SHIFT)
    }

    fn place(
        &mut self,
        mut unit: Unit<F::Service, F::Pending>,
        is_hot: bool,
        sources: Option<SourceWords>,
        memory: &dyn Memory,
    ) -> Result<(), CodeError> {
        let start = self.areas.address_for(unit.words.len() as u64).ok_or(CodeError::Full)?;
        let address = |offset: u32| start + 4 * u64::from(offset);
        for (offset, exit) in &unit.exits {
            if let Exit::To(pc) = exit
                && let Some(target) = self.entries.get(pc)
                && let Some(word) = jump(address(*offset), *target)
            {
                unit.words[*offset as usize] = word;
            } else {
                self.exits.insert(address(*offset), *exit);
            }
        }
        memory.place(start, &unit.words)?;
        // From here on, the space is used, even if a later write fails.
        let positions = std::mem::take(&mut unit.positions);
        let mut counted: Vec<u32> = positions.iter().filter_map(|position| position.counted).collect();
        counted.sort_unstable();
        let positions = Positions::of(positions);
        let origin = sources.map(|sources| Origin::of(&unit, sources));
        self.areas.add(PlacedUnit { start, words: unit.words.len() as u64, positions, counted, origin });
        self.calls.extend(unit.calls.iter().map(|(offset, register)| (address(*offset) + 4, *register)));
        let entries = unit.entries.iter().map(|(pc, offset)| (*pc, address(*offset)));
        let (unpublished, mut published): (Vec<_>, Vec<_>) =
            entries.partition(|(pc, _)| self.breakpoints.contains(pc));
        if !is_hot {
            for (pc, code) in published.drain(..) {
                if let Some(old) = self.cold.insert(pc, code) {
                    self.redirect(pc, old, code, memory)?;
                }
            }
        }
        if is_hot && !self.is_debugged {
            self.note_return_stubs(&unit, start);
        } else {
            unit.return_stubs.clear();
        }
        // This publishes the entries to indirect jumps. A `BTreeMap` gives the ascending order that `Memory::enter`
        // requires.
        let old = unit.return_stubs.iter().filter(|(pc, _)| self.entries.contains_key(pc));
        let table: BTreeMap<u64, u32> = published
            .iter()
            .map(|(pc, code)| (*pc, *code))
            .chain(old.map(|(pc, offset)| (*pc, address(*offset))))
            .map(|(pc, code)| (self.entry_of(pc), self.return_stubs.get(&pc).copied().unwrap_or(code) as u32))
            .collect();
        memory.enter(&table.into_iter().collect::<Vec<_>>())?;
        if !self.options.has(Optimization::Table) {
            for (pc, code) in &published {
                self.hash(*pc, *code, memory)?;
            }
        }
        for (pc, code) in published {
            let old_codes = [self.cold.remove(&pc), self.entries.insert(pc, code)];
            for old in old_codes.into_iter().flatten() {
                self.redirect(pc, old, code, memory)?;
            }
        }
        self.past_breakpoints.extend(unpublished);
        let heads = unit.heads.iter().map(|(pc, offset)| (*pc, address(*offset)));
        let heads: Vec<(u64, u64)> = heads.collect();
        let read = unit.sources.iter().flat_map(|(first, bytes)| first / PAGE..=(first + bytes - 1) / PAGE);
        let mut pages: Vec<u64> = unit.inspected_pages.iter().map(|at| at / PAGE).chain(read).collect();
        pages.sort_unstable();
        pages.dedup();
        for page in pages {
            self.readers.entry(page).or_default().extend(unit.entries.iter().map(|(pc, _)| *pc));
            if !heads.is_empty() {
                self.heads.entry(page).or_default().extend(&heads);
            }
        }
        self.count_copies(&heads);
        Ok(())
    }

    /// Records the return stubs of a unit at `start`. Returns lead to a stub instead of directly to the code of the
    /// return address, because the processor predicts that a return continues after the call. If several units have
    /// calls with the same return address, the newest unit is used: it is the one that is executed most often.
    fn note_return_stubs(&mut self, unit: &Unit<F::Service, F::Pending>, start: u64) {
        for pc in &unit.return_addresses {
            self.return_stubs.remove(pc);
        }
        let stubs = unit.return_stubs.iter().map(|(pc, offset)| (*pc, start + 4 * u64::from(*offset)));
        self.return_stubs.extend(stubs);
    }

    /// Counts the copies of internal blocks in a unit that was just placed.
    pub(crate) fn count_copies(&mut self, heads: &[(u64, u64)]) {
        for pc in heads.iter().map(|(pc, _)| *pc).collect::<FxHashSet<u64>>() {
            *self.copies.entry(pc).or_default() += 1;
        }
    }

    /// Enters the code of `pc` into the hash table unless another source address owns the slot. A slot never changes
    /// its owner: a thread may have compared the address but not loaded the code yet.
    fn hash(&mut self, pc: u64, code: u64, memory: &dyn Memory) -> Result<(), Fault> {
        let number = pc / F::ALIGNMENT % HASH_ENTRIES;
        let entry = self.options.hash + (number << HASH_SHIFT);
        if *self.hashed.entry(number).or_insert(pc) == pc {
            // Write the code before the address, and the high half of the address (which rarely differs between
            // entries) before the low half.
            memory.enter(&[(entry + 8, code as u32), (entry + 12, (code >> 32) as u32)])?;
            memory.enter(&[(entry + 4, (pc >> 32) as u32)])?;
            memory.enter(&[(entry, pc as u32)])?;
        }
        Ok(())
    }

    /// The exit at host address `address`, if there is one.
    pub fn exit_at(&self, address: u64) -> Option<Exit<F::Service>> {
        self.exits.get(&address).copied()
    }

    /// The source register that the indirect call with return address `link` jumped through.
    pub fn call_before(&self, link: u64) -> Option<u8> {
        self.calls.get(&link).copied()
    }

    /// The source position of the host word at `address`.
    pub fn position(&self, address: u64) -> Option<Position<F::Pending>> {
        let unit = self.areas.unit_at(address)?;
        let offset = ((address - unit.start) / 4) as u32;
        let count = unit.positions.up_to(offset);
        let last = unit.positions.get(count.checked_sub(1)?)?;
        // Several instructions share a word if all but the last emit no code. Report the first: none of them has
        // executed.
        let at_word = (0..count).rev().map_while(|number| unit.positions.get(number));
        let mut first = last;
        for position in at_word.take_while(|position| position.offset == last.offset) {
            first = position;
            if first.begins {
                break;
            }
        }
        let is_boundary = first.is_boundary && first.offset == offset;
        Some(Position { is_boundary, ..if is_boundary { first } else { last } })
    }

    /// Like [`Self::position`], but for an instruction that faulted: the last of those that begin at the word.
    pub fn position_of_fault(&self, address: u64) -> Option<Position<F::Pending>> {
        let unit = self.areas.unit_at(address)?;
        let offset = ((address - unit.start) / 4) as u32;
        unit.positions.get(unit.positions.up_to(offset).checked_sub(1)?)
    }

    /// All units: start address, number of words, positions.
    pub fn units(&self) -> impl Iterator<Item = (u64, u64, Vec<Position<F::Pending>>)> {
        self.areas.units().map(|unit| (unit.start, unit.words, unit.positions.iter().collect()))
    }

    /// The number of source instructions that complete in `count` words from `address` on.
    pub fn source_instructions(&self, address: u64, count: u32) -> u64 {
        let Some(unit) = self.areas.unit_at(address) else { return 0 };
        let first = ((address - unit.start) / 4) as u32;
        let completed_before = |word| unit.counted.partition_point(|counted| *counted < word);
        (completed_before(first + count) - completed_before(first)) as u64
    }

    /// Invalidates the code of source addresses that may have changed. Threads inside the unit leave it at the end of
    /// their block.
    ///
    /// # Errors
    /// The host cannot provide memory.
    pub fn forget(&mut self, range: Range<u64>, memory: &dyn Memory) -> Result<(), Fault> {
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        self.hotness.forget_pages(&pages);
        let pages: Vec<u64> = if pages.end.saturating_sub(pages.start) > self.readers.len() as u64 {
            self.readers.keys().copied().filter(|page| pages.contains(page)).collect()
        } else {
            pages.collect()
        };
        let forgotten: Vec<u64> =
            pages.iter().flat_map(|page| self.readers.remove(page).unwrap_or_default()).collect();
        let heads: Vec<_> =
            pages.iter().flat_map(|page| self.heads.remove(page).unwrap_or_default()).collect();
        for pc in forgotten {
            self.past_breakpoints.remove(&pc);
            self.unlink(pc, memory)?;
        }
        for (pc, code) in heads {
            self.unlink_head(pc, code, memory)?;
            self.copies.remove(&pc);
        }
        Ok(())
    }

    /// Unlinks `pc`. Later jumps to it exit to the engine.
    fn unlink(&mut self, pc: u64, memory: &dyn Memory) -> Result<(), Fault> {
        self.hotness.forget(pc);
        self.retranslated.remove(&pc);
        self.interpreted.iter_mut().for_each(|blocks| blocks.forget(pc));
        if let Some(code) = self.cold.remove(&pc) {
            self.patch_exit(code, pc, memory)?;
        }
        if let Some(code) = self.entries.remove(&pc) {
            memory.enter(&[(self.entry_of(pc), 0)])?;
            self.patch_exit(code, pc, memory)?;
        }
        Ok(())
    }

    /// Switches debug mode. In debug mode each unit is one instruction, so that a debugger sees architectural registers
    /// wherever a thread stops. Invalidates all translations and removes all breakpoints.
    ///
    /// # Errors
    /// The host cannot provide memory.
    pub fn set_debug_mode(&mut self, is_debugged: bool, memory: &dyn Memory) -> Result<(), Fault> {
        self.is_debugged = is_debugged;
        (self.cached, self.records_origins) = (None, false);
        self.breakpoints.clear();
        self.forget(0..self.layout.limit, memory)
    }

    /// Replaces the set of breakpoints. Translation of such an address fails with [`CodeError::Breakpoint`]. Requires
    /// debug mode, because other units execute through addresses in their middle.
    ///
    /// # Errors
    /// The host cannot provide memory.
    pub fn set_breakpoints(&mut self, breakpoints: &BTreeSet<u64>, memory: &dyn Memory) -> Result<(), Fault> {
        let new: Vec<u64> = breakpoints.difference(&self.breakpoints).copied().collect();
        for pc in new {
            self.unlink(pc, memory)?;
            let heads = self.heads.get(&(pc / PAGE)).into_iter().flatten();
            let heads: Vec<u64> = heads.filter(|(head, _)| *head == pc).map(|(_, code)| *code).collect();
            for code in heads {
                self.unlink_head(pc, code, memory)?;
            }
        }
        self.breakpoints.clone_from(breakpoints);
        Ok(())
    }

    /// Whether any unit read code from the pages of `range`.
    pub fn has_read(&self, range: Range<u64>) -> bool {
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        // As in `forget`: look up a few pages, but scan the map for many.
        match pages.end.saturating_sub(pages.start) > self.readers.len() as u64 {
            true => self.readers.keys().any(|page| pages.contains(page)),
            false => pages.clone().any(|page| self.readers.contains_key(&page)),
        }
    }
}

/// The `break` word that exits to the engine.
pub(crate) fn exit_word() -> u32 {
    encode(&Instruction { imm: EXIT, ..Instruction::new(La::Break) }).unwrap_or_default()
}

/// A `b` instruction from `from` to `to`, if the target is in range.
pub(crate) fn jump(from: u64, to: u64) -> Option<u32> {
    let imm = i32::try_from(to.wrapping_sub(from) as i64).ok()?;
    encode(&Instruction { imm, ..Instruction::new(La::B) }).ok()
}
