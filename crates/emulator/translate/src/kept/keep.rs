//! Export of an engine's translations.

use std::sync::Arc;

use longma_loongarch::{Op as La, decode};

use super::Kept;
use crate::areas::Placed;
use crate::asleep::{Index, KeptUnit, Standing};
use crate::engine::Engine;
use crate::front_end::{Exit, FrontEnd, Memory};
use crate::positions::{Positions, Writer};

/// Exits and calls, grouped by unit.
struct ByUnit<S> {
    /// Start address and number of words of each unit.
    places: Vec<(u64, u64)>,
    exits: Vec<Vec<(u32, Exit<S>)>>,
    calls: Vec<Vec<(u32, u8)>>,
}

impl<S> ByUnit<S> {
    /// The index of the unit that contains `address`, and the word index within it.
    fn find(&self, address: u64) -> Option<(usize, u32)> {
        let number = self.places.partition_point(|(start, _)| *start <= address).checked_sub(1)?;
        let (start, words) = self.places[number];
        (address < start + 4 * words).then_some((number, ((address - start) / 4) as u32))
    }

    /// The other units that a unit jumps to.
    fn links(&self, number: usize, words: &[u32]) -> Vec<u32> {
        let target = |(at, word): (u64, &u32)| self.find(jump_target(at, *word)?);
        let found = (self.places[number].0..).step_by(4).zip(words).filter_map(target);
        let mut links: Vec<u32> = found.filter(|(to, _)| *to != number).map(|(to, _)| to as u32).collect();
        links.sort_unstable();
        links.dedup();
        links
    }
}

/// The export so far.
struct Writing<S> {
    by_unit: ByUnit<S>,
    index: Index,
    units: Vec<u8>,
    words: Vec<u8>,
    positions: Writer,
}

impl<S: serde::Serialize> Writing<S> {
    fn add(&mut self, number: usize, words: &[u32], unit: &KeptUnit<S>) -> Option<()> {
        let listed = unit.entries.iter().filter(|(.., standing)| *standing != Standing::Past);
        let entry =
            |(pc, _, standing): &(u64, u32, Standing)| (*pc, number as u32, *standing == Standing::Hot);
        self.index.entries.extend(listed.map(entry));
        let begin = self.units.len();
        self.units = postcard::to_extend(unit, std::mem::take(&mut self.units)).ok()?;
        self.index.units.push((words.len() as u32, (self.units.len() - begin) as u32));
        self.words.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        Some(())
    }
}

impl<F: FrontEnd> Engine<F> {
    /// Makes units record the source words that they were translated from, which [`Self::keep`] requires. Call it
    /// before anything is translated.
    pub fn note_origins(&mut self) {
        self.notes_origins = true;
    }

    /// Exports all translations. `None` if origins were not recorded, if an area was reused, or in debug mode.
    pub fn keep(&self, memory: &dyn Memory) -> Option<Kept> {
        if !self.notes_origins || self.is_watched || !self.areas.is_first() {
            return None;
        }
        let by_unit = self.by_unit();
        let index = Index {
            start: by_unit.places.first()?.0,
            units: Vec::with_capacity(by_unit.places.len()),
            entries: Vec::new(),
            heat: self.heat.known(),
        };
        let (units, words) = (Vec::new(), Vec::new());
        let mut writing = Writing { by_unit, index, units, words, positions: Writer::default() };
        for number in 0..writing.by_unit.places.len() {
            self.keep_unit(number, &mut writing, memory)?;
        }
        writing.index.entries.sort_unstable();
        Some(Kept {
            index: postcard::to_allocvec(&writing.index).ok()?.into(),
            units: writing.units.into(),
            words: writing.words.into(),
            positions: Arc::new(writing.positions.finish()),
        })
    }

    fn by_unit(&self) -> ByUnit<F::Service> {
        let taken = self.asleep.as_ref().map_or(&[][..], |asleep| &asleep.units);
        let mut places: Vec<(u64, u64)> = taken.iter().map(|unit| (unit.start, unit.words.into())).collect();
        places.extend(self.areas.current_units().iter().map(|unit| (unit.start, unit.words)));
        let (exits, calls) = (vec![Vec::new(); places.len()], vec![Vec::new(); places.len()]);
        let mut by_unit = ByUnit { places, exits, calls };
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

    fn keep_unit(&self, number: usize, writing: &mut Writing<F::Service>, memory: &dyn Memory) -> Option<()> {
        let taken = self.asleep.as_ref().and_then(|asleep| Some((asleep, asleep.units.get(number)?)));
        if let Some((asleep, unit)) = taken.filter(|(_, unit)| unit.is_asleep) {
            let kept: KeptUnit<F::Service> = asleep.known(unit)?;
            let positions = Positions::<F::Pending>::written(asleep.positions.clone(), kept.positions);
            let kept = KeptUnit { positions: writing.positions.write(&positions)?, ..kept };
            return writing.add(number, &asleep.words_of(unit), &kept);
        }
        let (start, count) = writing.by_unit.places[number];
        let unit = self.areas.unit_at(start)?;
        let words: Vec<u32> = (0..count).map(|n| memory.placed(start + 4 * n)).collect::<Option<_>>()?;
        let mut exits = std::mem::take(&mut writing.by_unit.exits[number]);
        let mut calls = std::mem::take(&mut writing.by_unit.calls[number]);
        exits.sort_unstable_by_key(|(offset, _)| *offset);
        calls.sort_unstable();
        let kept = KeptUnit {
            exits,
            calls,
            links: writing.by_unit.links(number, &words),
            positions: writing.positions.write(&unit.positions)?,
            ..self.origin_of(unit)
        };
        writing.add(number, &words, &kept)
    }

    /// The part of a unit's metadata that comes from its origin.
    fn origin_of(&self, unit: &Placed<F::Pending>) -> KeptUnit<F::Service> {
        let origin = unit.origin.as_ref();
        let standing = |pc: &u64, code: u64| match (self.entries.get(pc), self.cold.get(pc)) {
            (Some(newest), _) if *newest == code => Standing::Hot,
            (_, Some(newest)) if *newest == code => Standing::Cold,
            _ => Standing::Past,
        };
        let entry =
            |(pc, offset): &(u64, u32)| (*pc, *offset, standing(pc, unit.start + 4 * u64::from(*offset)));
        KeptUnit {
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
