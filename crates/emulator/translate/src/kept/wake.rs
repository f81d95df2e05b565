//! Import of translation units and their activation at first use.

use super::{Amount, Kept};
use crate::areas::Placed;
use crate::asleep::{Asleep, Index, KeptUnit, Standing, Taken};
use crate::engine::{Engine, leave};
use crate::front_end::{Exit, FrontEnd, Memory};
use crate::heat::PAGE;
use crate::positions::Positions;
use crate::reading::Origin;
use longma_loongarch::Fault;

/// Activating a unit also activates the units of the surrounding block of this size (a power of two).
const NEAR_BYTES: u64 = 4096;

impl<F: FrontEnd> Engine<F> {
    /// The size of what [`Self::keep`] would export.
    pub fn amount(&self) -> Amount {
        let units = self.areas.current_units().iter();
        let new = units.filter(|unit| self.is_in_use(unit)).map(|unit| unit.words).sum();
        let Some(asleep) = &self.asleep else { return Amount { all: new, new, useless: 0 } };
        Amount { all: new + asleep.words.len() as u64 / 4, new, useless: asleep.useless }
    }

    /// Whether any entry point of the unit is current: its source has not changed, and there is no newer code.
    fn is_in_use(&self, unit: &Placed<F::Pending>) -> bool {
        let entries = unit.origin.iter().flat_map(|origin| &origin.entries);
        let is_newest = |(pc, offset): &(u64, u32)| {
            let newest = self.entries.get(pc).or_else(|| self.cold.get(pc));
            newest == Some(&(unit.start + 4 * u64::from(*offset)))
        };
        entries.into_iter().any(is_newest)
    }

    /// Imports the [exported](Self::keep) translations of an engine of the same architecture with the same options and
    /// layout. Call it before anything is translated. A unit becomes reachable only after its source words have been
    /// validated. Returns false and imports nothing if `kept` does not fit.
    pub fn take_up(&mut self, kept: Kept) -> bool {
        let Ok(Index { start, units, entries, heat }) = postcard::from_bytes(&kept.index) else {
            return false;
        };
        let (mut place, mut known) = (start, 0u32);
        let mut taken = Vec::with_capacity(units.len());
        for (words, bytes) in units {
            let (Some(behind), Some(end)) =
                (place.checked_add(4 * u64::from(words)), known.checked_add(bytes))
            else {
                return false;
            };
            taken.push(Taken { start: place, words, known: (known, end), is_asleep: true });
            (place, known) = (behind, end);
        }
        let area = self.areas.current();
        let is_sound = |(pc, number, _): &(u64, u32, bool)| {
            *pc < self.layout().limit && (*number as usize) < taken.len()
        };
        let fits = self.areas.is_first()
            && self.areas.is_fresh()
            && start == area.start
            && place <= area.end
            && place - start == kept.words.len() as u64
            && known as usize == kept.units.len()
            && entries.is_sorted()
            && entries.iter().all(is_sound);
        if !fits || taken.is_empty() {
            return false;
        }
        self.areas.begin_behind(place);
        self.heat.take_up(heat);
        self.entries.reserve(entries.len());
        self.cold.reserve(entries.len());
        self.asleep = Some(Asleep {
            units: taken,
            known: kept.units,
            words: kept.words,
            positions: kept.positions,
            entries,
            useless: 0,
        });
        true
    }

    /// Whether all references in a unit's metadata are in range.
    fn is_sound(&self, unit: &KeptUnit<F::Service>, words: u32, asleep: &Asleep) -> bool {
        let is_word = |offset: &u32| *offset < words;
        let is_source = |pc: &u64| *pc < self.layout().limit && pc.is_multiple_of(F::ALIGNMENT);
        unit.entries.iter().all(|(pc, offset, _)| is_word(offset) && is_source(pc))
            && unit.heads.iter().all(|(pc, offset)| is_word(offset) && is_source(pc))
            && unit.exits.iter().all(|(offset, _)| is_word(offset))
            && unit.calls.iter().all(|(offset, _)| is_word(offset))
            && unit.links.iter().all(|link| (*link as usize) < asleep.units.len())
            && unit.positions.start <= unit.positions.end
            && unit.positions.end <= asleep.positions.steps.len()
            && unit.code.iter().all(|(first, bytes)| {
                first.checked_add(*bytes).is_some_and(|end| end <= self.layout().limit + PAGE)
            })
            && unit.sources.as_ref().is_none_or(|sources| sources.are_below(self.layout().limit))
    }

    /// Validates the cached units near `pc`. Activates the valid ones and their targets, and rejects stale ones. Code
    /// near `pc` is likely to run soon.
    ///
    /// # Errors
    /// The host cannot provide memory.
    pub(crate) fn wake(&mut self, pc: u64, memory: &dyn Memory) -> Result<(), Fault> {
        let Some(mut asleep) = self.asleep.take_if(|asleep| asleep.at(pc..pc + 1).next().is_some()) else {
            return Ok(());
        };
        let near = pc & !(NEAR_BYTES - 1);
        let ahead = asleep.at(near..near + NEAR_BYTES).map(|(_, number, _)| *number).collect();
        let done = self.wake_all(ahead, &mut asleep, memory);
        self.asleep = Some(asleep);
        done
    }

    fn wake_all(
        &mut self,
        mut ahead: Vec<u32>,
        asleep: &mut Asleep,
        memory: &dyn Memory,
    ) -> Result<(), Fault> {
        let mut awake = Vec::new();
        while let Some(number) = ahead.pop() {
            let unit = &mut asleep.units[number as usize];
            if !std::mem::replace(&mut unit.is_asleep, false) {
                continue;
            }
            let unit = *unit;
            let known = asleep.known(&unit).filter(|known| self.is_sound(known, unit.words, asleep));
            // A checksum protects the whole file, so this does not happen to a file that this build wrote.
            let Some(known) = known else { continue };
            if known.sources.as_ref().is_some_and(|sources| sources.are_in(memory)) {
                ahead.extend(&known.links);
                memory.place(unit.start, &asleep.words_of(&unit))?;
                awake.push((unit, known));
            } else {
                asleep.useless += u64::from(unit.words);
                self.bar(&unit, known, asleep, memory)?;
            }
        }
        // Publish the units only now that all units that they jump to are in place.
        let mut table = Vec::new();
        for (unit, known) in awake {
            self.list(&unit, known, &mut table, asleep, memory)?;
        }
        table.sort_unstable();
        memory.enter(&table)
    }

    /// Replaces the entry points of a stale unit with exits to the engine, because other units may jump to them.
    fn bar(
        &mut self,
        unit: &Taken,
        known: KeptUnit<F::Service>,
        asleep: &Asleep,
        memory: &dyn Memory,
    ) -> Result<(), Fault> {
        for (pc, offset, _) in &known.entries {
            let code = unit.start + 4 * u64::from(*offset);
            memory.place(code, &[leave()])?;
            self.exits.insert(code, Exit::To(*pc));
        }
        self.place_taken(unit, KeptUnit { sources: None, heads: Vec::new(), ..known }, asleep);
        // Threads may have cached decodings of these words.
        memory.forget(unit.start..unit.start + 4 * u64::from(unit.words))
    }

    /// Makes a unit reachable whose words are in place, except through the lookup table: appends its table entries to
    /// `table`.
    fn list(
        &mut self,
        unit: &Taken,
        mut known: KeptUnit<F::Service>,
        table: &mut Vec<(u64, u32)>,
        asleep: &Asleep,
        memory: &dyn Memory,
    ) -> Result<(), Fault> {
        let address = |offset: u32| unit.start + 4 * u64::from(offset);
        let exits = std::mem::take(&mut known.exits);
        self.exits.extend(exits.into_iter().map(|(offset, exit)| (address(offset), exit)));
        self.calls.extend(known.calls.iter().map(|(offset, register)| (address(*offset) + 4, *register)));
        for (pc, offset, standing) in &known.entries {
            let (pc, code) = (*pc, address(*offset));
            match (standing, self.entries.get(&pc).copied(), self.cold.get(&pc).copied()) {
                (Standing::Past, ..) => {}
                // The process already translated this address. Redirect the imported code to that translation.
                (_, Some(newer), _) | (Standing::Cold, None, Some(newer)) => {
                    self.lead_on(pc, code, newer, memory)?;
                }
                (Standing::Cold, None, None) => drop(self.cold.insert(pc, code)),
                (Standing::Hot, None, older) => {
                    self.entries.insert(pc, code);
                    table.push((self.entry_of(pc), code as u32));
                    if let Some(older) = older {
                        self.cold.remove(&pc);
                        self.lead_on(pc, older, code, memory)?;
                    }
                }
            }
        }
        let codes: Vec<(u64, u64)> = known.heads.iter().map(|(pc, offset)| (*pc, address(*offset))).collect();
        for page in known.sources.iter().flat_map(|sources| sources.pages(PAGE)) {
            self.readers.entry(page).or_default().extend(known.entries.iter().map(|(pc, ..)| *pc));
            if !codes.is_empty() {
                self.heads.entry(page).or_default().extend(&codes);
            }
        }
        self.note_copies(&codes);
        self.heat.note_code(&known.code);
        self.place_taken(unit, known, asleep);
        Ok(())
    }

    /// Registers an activated or rejected unit in the first area.
    fn place_taken(&mut self, unit: &Taken, known: KeptUnit<F::Service>, asleep: &Asleep) {
        let KeptUnit { sources, code, entries, heads, positions, .. } = known;
        let entries = entries.iter().map(|(pc, offset, _)| (*pc, *offset)).collect();
        self.areas.add_taken(Placed {
            start: unit.start,
            words: unit.words.into(),
            positions: Positions::written(asleep.positions.clone(), positions),
            counted: Vec::new(),
            origin: Some(Origin { sources, code: code.into(), entries, heads: heads.into() }),
        });
    }
}
