//! Export of an engine's translations.

use std::sync::Arc;

use longma_loongarch::{Op as La, decode};

use super::ExportedUnits;
use crate::areas::PlacedUnit;
use crate::cached_units::{CachedUnit, EntryState, Index};
use crate::engine::Engine;
use crate::front_end::{Exit, FrontEnd, Memory};
use crate::positions::{PositionEncoder, Positions};

/// Exits and calls, grouped by unit.
struct ByUnit<S> {
    /// Start address and number of words of each unit.
    unit_ranges: Vec<(u64, u64)>,
    exits: Vec<Vec<(u32, Exit<S>)>>,
    calls: Vec<Vec<(u32, u8)>>,
}

impl<S> ByUnit<S> {
    /// The index of the unit that contains `address`, and the word index within it.
    fn find(&self, address: u64) -> Option<(usize, u32)> {
        let number = self.unit_ranges.partition_point(|(start, _)| *start <= address).checked_sub(1)?;
        let (start, words) = self.unit_ranges[number];
        (address < start + 4 * words).then_some((number, ((address - start) / 4) as u32))
    }

    /// The other units that a unit jumps to.
    fn links(&self, number: usize, words: &[u32]) -> Vec<u32> {
        let target = |(at, word): (u64, &u32)| self.find(jump_target(at, *word)?);
        let targets = (self.unit_ranges[number].0..).step_by(4).zip(words).filter_map(target);
        let mut links: Vec<u32> = targets.filter(|(to, _)| *to != number).map(|(to, _)| to as u32).collect();
        links.sort_unstable();
        links.dedup();
        links
    }
}

/// The export so far.
struct Export<S> {
    by_unit: ByUnit<S>,
    index: Index,
    units: Vec<u8>,
    words: Vec<u8>,
    positions: PositionEncoder,
}

impl<S: serde::Serialize> Export<S> {
    fn add(&mut self, number: usize, words: &[u32], unit: &CachedUnit<S>) -> Option<()> {
        let current_entries = unit.entries.iter().filter(|(.., state)| *state != EntryState::Superseded);
        let entry = |(pc, _, state): &(u64, u32, EntryState)| (*pc, number as u32, *state == EntryState::Hot);
        self.index.entries.extend(current_entries.map(entry));
        let begin = self.units.len();
        self.units = postcard::to_extend(unit, std::mem::take(&mut self.units)).ok()?;
        self.index.units.push((words.len() as u32, (self.units.len() - begin) as u32));
        self.words.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        Some(())
    }
}

impl<F: FrontEnd> Engine<F> {
    /// Makes units record the source words that they were translated from, which [`Self::export`] requires. Call it
    /// before anything is translated.
    pub fn record_origins(&mut self) {
        self.records_origins = true;
    }

    /// Exports all translations. `None` if origins were not recorded, if an area was reused, or in debug mode.
    pub fn export(&self, memory: &dyn Memory) -> Option<ExportedUnits> {
        if !self.records_origins || self.is_debugged || !self.areas.is_first() {
            return None;
        }
        let by_unit = self.by_unit();
        let index = Index {
            start: by_unit.unit_ranges.first()?.0,
            units: Vec::with_capacity(by_unit.unit_ranges.len()),
            entries: Vec::new(),
            hotness: self.hotness.export(),
        };
        let (units, words) = (Vec::new(), Vec::new());
        let mut output = Export { by_unit, index, units, words, positions: PositionEncoder::default() };
        for number in 0..output.by_unit.unit_ranges.len() {
            self.export_unit(number, &mut output, memory)?;
        }
        output.index.entries.sort_unstable();
        Some(ExportedUnits {
            index: postcard::to_allocvec(&output.index).ok()?.into(),
            units: output.units.into(),
            words: output.words.into(),
            positions: Arc::new(output.positions.finish()),
        })
    }

    fn by_unit(&self) -> ByUnit<F::Service> {
        let imported = self.cached.as_ref().map_or(&[][..], |cached| &cached.units);
        let mut unit_ranges: Vec<(u64, u64)> =
            imported.iter().map(|unit| (unit.start, unit.words.into())).collect();
        unit_ranges.extend(self.areas.current_units().iter().map(|unit| (unit.start, unit.words)));
        let (exits, calls) = (vec![Vec::new(); unit_ranges.len()], vec![Vec::new(); unit_ranges.len()]);
        let mut by_unit = ByUnit { unit_ranges, exits, calls };
        for (address, exit) in &self.exits {
            if let Some((number, offset)) = by_unit.find(*address) {
                by_unit.exits[number].push((offset, *exit));
            }
        }
        for (link, register) in &self.calls {
            if let Some((number, offset)) = by_unit.find(link - 4) {
                by_unit.calls[number].push((offset, *register));
            }
        }
        by_unit
    }

    fn export_unit(&self, number: usize, output: &mut Export<F::Service>, memory: &dyn Memory) -> Option<()> {
        let imported = self.cached.as_ref().and_then(|cached| Some((cached, cached.units.get(number)?)));
        if let Some((cached, unit)) = imported.filter(|(_, unit)| unit.is_pending) {
            let exported: CachedUnit<F::Service> = cached.metadata(unit)?;
            let positions = Positions::<F::Pending>::encoded(cached.positions.clone(), exported.positions);
            let exported = CachedUnit { positions: output.positions.write(&positions)?, ..exported };
            return output.add(number, &cached.words_of(unit), &exported);
        }
        let (start, count) = output.by_unit.unit_ranges[number];
        let unit = self.areas.unit_at(start)?;
        let words: Vec<u32> = (0..count).map(|n| memory.placed(start + 4 * n)).collect::<Option<_>>()?;
        let mut exits = std::mem::take(&mut output.by_unit.exits[number]);
        let mut calls = std::mem::take(&mut output.by_unit.calls[number]);
        exits.sort_unstable_by_key(|(offset, _)| *offset);
        calls.sort_unstable();
        let exported = CachedUnit {
            exits,
            calls,
            links: output.by_unit.links(number, &words),
            positions: output.positions.write(&unit.positions)?,
            ..self.origin_of(unit)
        };
        output.add(number, &words, &exported)
    }

    /// The exported metadata of a unit that derive from its provenance.
    fn origin_of(&self, unit: &PlacedUnit<F::Pending>) -> CachedUnit<F::Service> {
        let origin = unit.origin.as_ref();
        let state = |pc: &u64, code: u64| match (self.entries.get(pc), self.cold.get(pc)) {
            (Some(newest), _) if *newest == code => EntryState::Hot,
            (_, Some(newest)) if *newest == code => EntryState::Cold,
            _ => EntryState::Superseded,
        };
        let entry =
            |(pc, offset): &(u64, u32)| (*pc, *offset, state(pc, unit.start + 4 * u64::from(*offset)));
        CachedUnit {
            sources: origin.and_then(|origin| origin.sources.clone()),
            code: origin.map_or_else(Vec::new, |origin| origin.code.to_vec()),
            entries: origin.map_or_else(Vec::new, |origin| origin.entries.iter().map(entry).collect()),
            heads: origin.map_or_else(Vec::new, |origin| origin.heads.to_vec()),
            exits: Vec::new(),
            calls: Vec::new(),
            links: Vec::new(),
            positions: 0..0,
        }
    }
}

/// The target of a direct jump.
fn jump_target(address: u64, word: u32) -> Option<u64> {
    // Check the opcode of `b` and `bl` first, because few words are jumps.
    if !matches!(word >> 26, 0x14 | 0x15) {
        return None;
    }
    let instruction = decode(word).filter(|instruction| matches!(instruction.op, La::B | La::Bl))?;
    Some(address.wrapping_add(instruction.imm as i64 as u64))
}
