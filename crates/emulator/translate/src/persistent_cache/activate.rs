//! Import of translation units and their activation at first use.

use super::{ExportSize, ExportedUnits};
use crate::areas::PlacedUnit;
use crate::cached_units::{CachedUnit, CachedUnits, EntryState, ImportedUnit, Index};
use crate::engine::{Engine, exit_word};
use crate::front_end::{Exit, FrontEnd, Memory};
use crate::hotness::PAGE;
use crate::positions::Positions;
use crate::provenance::Origin;
use longma_loongarch::Fault;

/// Activating a unit also activates the units of the surrounding block of this size (a power of two).
const NEAR_BYTES: u64 = 4096;

impl<F: FrontEnd> Engine<F> {
    /// The size of the translations that [`Self::export`] would export.
    pub fn export_size(&self) -> ExportSize {
        let units = self.areas.current_units().iter();
        let new = units.filter(|unit| self.is_in_use(unit)).map(|unit| unit.words).sum();
        let Some(cached) = &self.cached else { return ExportSize { all: new, new, stale: 0 } };
        ExportSize { all: new + cached.words.len() as u64 / 4, new, stale: cached.stale }
    }

    /// Whether any entry point of the unit is current: its source has not changed, and there is no newer code.
    fn is_in_use(&self, unit: &PlacedUnit<F::Pending>) -> bool {
        let entries = unit.origin.iter().flat_map(|origin| &origin.entries);
        let is_newest = |(pc, offset): &(u64, u32)| {
            let newest = self.entries.get(pc).or_else(|| self.cold.get(pc));
            newest == Some(&(unit.start + 4 * u64::from(*offset)))
        };
        entries.into_iter().any(is_newest)
    }

    /// Imports the [exported](Self::export) translations of an engine of the same architecture with the same options
    /// and layout. Call it before anything is translated. A unit becomes reachable only after its source words have
    /// been validated. Returns false and imports nothing if `exported` does not fit.
    pub fn import(&mut self, exported: ExportedUnits) -> bool {
        let Ok(Index { start, units, entries, hotness }) = postcard::from_bytes(&exported.index) else {
            return false;
        };
        let (mut address, mut metadata) = (start, 0u32);
        let mut imported = Vec::with_capacity(units.len());
        for (words, bytes) in units {
            let (Some(next_free), Some(end)) =
                (address.checked_add(4 * u64::from(words)), metadata.checked_add(bytes))
            else {
                return false;
            };
            imported.push(ImportedUnit {
                start: address,
                words,
                metadata: (metadata, end),
                is_pending: true,
            });
            (address, metadata) = (next_free, end);
        }
        let area = self.areas.current();
        let is_sound = |(pc, number, _): &(u64, u32, bool)| {
            *pc < self.layout().limit && (*number as usize) < imported.len()
        };
        let fits = self.areas.is_first()
            && self.areas.is_empty()
            && start == area.start
            && address <= area.end
            && address - start == exported.words.len() as u64
            && metadata as usize == exported.units.len()
            && entries.is_sorted()
            && entries.iter().all(is_sound);
        if !fits || imported.is_empty() {
            return false;
        }
        self.areas.reserve_below(address);
        self.hotness.import(hotness);
        self.entries.reserve(entries.len());
        self.cold.reserve(entries.len());
        self.cached = Some(CachedUnits {
            units: imported,
            metadata: exported.units,
            words: exported.words,
            positions: exported.positions,
            entries,
            stale: 0,
        });
        true
    }

    /// Whether all references in a unit's metadata are in range.
    fn is_sound(&self, unit: &CachedUnit<F::Service>, words: u32, cached: &CachedUnits) -> bool {
        let is_word = |offset: &u32| *offset < words;
        let is_source = |pc: &u64| *pc < self.layout().limit && pc.is_multiple_of(F::ALIGNMENT);
        unit.entries.iter().all(|(pc, offset, _)| is_word(offset) && is_source(pc))
            && unit.heads.iter().all(|(pc, offset)| is_word(offset) && is_source(pc))
            && unit.exits.iter().all(|(offset, _)| is_word(offset))
            && unit.calls.iter().all(|(offset, _)| is_word(offset))
            && unit.links.iter().all(|link| (*link as usize) < cached.units.len())
            && unit.positions.start <= unit.positions.end
            && unit.positions.end <= cached.positions.steps.len()
            && unit.code.iter().all(|(first, bytes)| {
                first.checked_add(*bytes).is_some_and(|end| end <= self.layout().limit + PAGE)
            })
            && unit.sources.as_ref().is_none_or(|sources| sources.is_below(self.layout().limit))
    }

    /// Validates the cached units near `pc`. Activates the valid ones and their targets, and rejects stale ones. Code
    /// near `pc` is likely to run soon.
    ///
    /// # Errors
    /// The host cannot provide memory.
    pub(crate) fn activate(&mut self, pc: u64, memory: &dyn Memory) -> Result<(), Fault> {
        let Some(mut cached) = self.cached.take_if(|cached| cached.at(pc..pc + 1).next().is_some()) else {
            return Ok(());
        };
        let block = pc & !(NEAR_BYTES - 1);
        let pending = cached.at(block..block + NEAR_BYTES).map(|(_, number, _)| *number).collect();
        let result = self.activate_all(pending, &mut cached, memory);
        self.cached = Some(cached);
        result
    }

    fn activate_all(
        &mut self,
        mut pending: Vec<u32>,
        cached: &mut CachedUnits,
        memory: &dyn Memory,
    ) -> Result<(), Fault> {
        let mut active = Vec::new();
        while let Some(number) = pending.pop() {
            let unit = &mut cached.units[number as usize];
            if !std::mem::replace(&mut unit.is_pending, false) {
                continue;
            }
            let unit = *unit;
            let metadata =
                cached.metadata(&unit).filter(|metadata| self.is_sound(metadata, unit.words, cached));
            // A checksum protects the whole file, so this does not happen to a file that this build wrote.
            let Some(metadata) = metadata else { continue };
            if metadata.sources.as_ref().is_some_and(|sources| sources.match_memory(memory)) {
                pending.extend(&metadata.links);
                memory.place(unit.start, &cached.words_of(&unit))?;
                active.push((unit, metadata));
            } else {
                cached.stale += u64::from(unit.words);
                self.reject(&unit, metadata, cached, memory)?;
            }
        }
        // Publish units only after all units that they jump to are in place.
        let mut table = Vec::new();
        for (unit, metadata) in active {
            self.publish(&unit, metadata, &mut table, cached, memory)?;
        }
        table.sort_unstable();
        memory.enter(&table)
    }

    /// Replaces the entry points of a stale unit with exits to the engine, because other units may jump to them.
    fn reject(
        &mut self,
        unit: &ImportedUnit,
        metadata: CachedUnit<F::Service>,
        cached: &CachedUnits,
        memory: &dyn Memory,
    ) -> Result<(), Fault> {
        for (pc, offset, _) in &metadata.entries {
            let code = unit.start + 4 * u64::from(*offset);
            memory.place(code, &[exit_word()])?;
            self.exits.insert(code, Exit::To(*pc));
        }
        self.place_imported(unit, CachedUnit { sources: None, heads: Vec::new(), ..metadata }, cached);
        // Threads may have cached decodings of these words.
        memory.forget(unit.start..unit.start + 4 * u64::from(unit.words))
    }

    /// Makes a unit reachable, except through the lookup table. Its words must be in place. Appends its lookup-table
    /// entries to `table`.
    fn publish(
        &mut self,
        unit: &ImportedUnit,
        mut metadata: CachedUnit<F::Service>,
        table: &mut Vec<(u64, u32)>,
        cached: &CachedUnits,
        memory: &dyn Memory,
    ) -> Result<(), Fault> {
        let address = |offset: u32| unit.start + 4 * u64::from(offset);
        let exits = std::mem::take(&mut metadata.exits);
        self.exits.extend(exits.into_iter().map(|(offset, exit)| (address(offset), exit)));
        self.calls.extend(metadata.calls.iter().map(|(offset, register)| (address(*offset) + 4, *register)));
        for (pc, offset, state) in &metadata.entries {
            let (pc, code) = (*pc, address(*offset));
            match (state, self.entries.get(&pc).copied(), self.cold.get(&pc).copied()) {
                (EntryState::Superseded, ..) => {}
                // The process already translated this address. Redirect the imported code to that translation.
                (_, Some(newer), _) | (EntryState::Cold, None, Some(newer)) => {
                    self.redirect(pc, code, newer, memory)?;
                }
                (EntryState::Cold, None, None) => drop(self.cold.insert(pc, code)),
                (EntryState::Hot, None, older) => {
                    self.entries.insert(pc, code);
                    table.push((self.entry_of(pc), code as u32));
                    if let Some(older) = older {
                        self.cold.remove(&pc);
                        self.redirect(pc, older, code, memory)?;
                    }
                }
            }
        }
        let codes: Vec<(u64, u64)> =
            metadata.heads.iter().map(|(pc, offset)| (*pc, address(*offset))).collect();
        for page in metadata.sources.iter().flat_map(|sources| sources.pages(PAGE)) {
            self.readers.entry(page).or_default().extend(metadata.entries.iter().map(|(pc, ..)| *pc));
            if !codes.is_empty() {
                self.heads.entry(page).or_default().extend(&codes);
            }
        }
        self.count_copies(&codes);
        self.hotness.mark_executed(&metadata.code);
        self.place_imported(unit, metadata, cached);
        Ok(())
    }

    /// Registers an activated or rejected unit in the first area.
    fn place_imported(
        &mut self,
        unit: &ImportedUnit,
        metadata: CachedUnit<F::Service>,
        cached: &CachedUnits,
    ) {
        let CachedUnit { sources, code, entries, heads, positions, .. } = metadata;
        let entries = entries.iter().map(|(pc, offset, _)| (*pc, *offset)).collect();
        self.areas.add_imported(PlacedUnit {
            start: unit.start,
            words: unit.words.into(),
            positions: Positions::encoded(cached.positions.clone(), positions),
            counted: Vec::new(),
            origin: Some(Origin { sources, code: code.into(), entries, heads: heads.into() }),
        });
    }
}
