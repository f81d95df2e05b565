//! Where translated units lie, how jumps find them, and what is known of each of their words.
//! Not what instructions become, and not system calls: those are the front end's.

use std::collections::BTreeSet;
use std::ops::Range;

use longma_loongarch::Op as La;
use longma_loongarch::{Access, Fault, FaultCause, Instruction, encode};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::areas::{Areas, Placed};
use crate::asleep::Asleep;
use crate::front_end::{EXIT, Exit, FrontEnd, Memory, Position, Unit};
use crate::heat::{Heat, PAGE};
use crate::parts::{HASH_BYTES, HASH_ENTRIES, HASH_SHIFT, Options, Part, Parts};
use crate::positions::Positions;
use crate::reading::{Origin, Reading, Sources};

/// The addresses that translated code takes. The program has nothing there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Translated code, below 4 GiB: an entry of the table has 32 bits.
    pub code: Range<u64>,
    /// The entry of source address A is at this plus A, shifted as the front end says.
    pub table: u64,
    /// The end of the source's addresses.
    pub limit: u64,
}

/// Why no code can be had for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The source's code cannot be read.
    Fault(Fault),
    /// The area is full.
    Full,
    /// Whoever comes to the address is to stop there first.
    Stop,
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// What is translated of one process.
pub struct Engine<F: FrontEnd> {
    layout: Layout,
    options: Options,
    /// The source addresses that have entries of the hash table, by the entries' numbers.
    hashed: FxHashMap<u64, u64>,
    /// Source addresses that can be jumped to.
    pub(crate) entries: FxHashMap<u64, u64>,
    pub(crate) exits: FxHashMap<u64, Exit<F::Service>>,
    /// Calls of addresses in registers, by the address behind them.
    pub(crate) calls: FxHashMap<u64, u8>,
    pub(crate) areas: Areas<F::Pending>,
    /// Source addresses whose code has been read, by pages: the entries of the units that read them.
    pub(crate) readers: FxHashMap<u64, Vec<u64>>,
    /// The same of what only jumps of the units themselves lead to: the source's address and the code's.
    pub(crate) heads: FxHashMap<u64, Vec<(u64, u64)>>,
    /// How often such a source address has been translated.
    copies: FxHashMap<u64, u32>,
    /// The code of source addresses that have been come to a few times: nothing but the engine leads there.
    pub(crate) cold: FxHashMap<u64, u64>,
    pub(crate) heat: Heat,
    /// How often functions have been translated from their beginning because of what else had become hot in them.
    made: FxHashMap<u64, u32>,
    /// Each unit is one instruction: between any two of them every register is as the source has it.
    pub(crate) is_watched: bool,
    /// Source addresses that have no code for who comes to them.
    stops: BTreeSet<u64>,
    /// The code that they have for who goes on from there all the same.
    past_stops: FxHashMap<u64, u64>,
    /// It is noted what translations are made of.
    pub(crate) notes_origins: bool,
    /// What has been taken up from another process.
    pub(crate) asleep: Option<Asleep>,
}

/// No instruction of any architecture has more bytes than this.
const LONGEST_INSTRUCTION: u64 = 16;

/// Code that several units reach is translated so often; then it becomes a unit of its own.
const MOST_COPIES: u32 = 4;

/// A function of which ever more becomes hot is translated so often from its beginning; what comes then becomes units of its own.
const MOST_MADE: u32 = 16;

impl<F: FrontEnd> Engine<F> {
    /// Nothing translated yet, and what is, will be with these parts.
    pub fn new(layout: Layout, parts: Parts) -> Self {
        // The hash table, if there is one, is behind the code.
        let hash = layout.code.end.saturating_sub(HASH_BYTES) & !(HASH_BYTES - 1);
        let options = Options { parts, hash, is_cold: false };
        let end = if parts.has(Part::Table) { layout.code.end } else { hash };
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
            heat: Heat::new(1),
            made: FxHashMap::default(),
            is_watched: false,
            stops: BTreeSet::new(),
            past_stops: FxHashMap::default(),
            notes_origins: false,
            asleep: None,
        }
    }

    /// From now on a source address is translated with what it reaches, as far as that has been executed, only when somebody has come to it
    /// so often from anywhere but a unit's own jumps; before, up to its first branch. Most code of a program is executed a few times, and
    /// most of what that could reach never.
    pub fn wait_until_hot(&mut self, visits: u32) {
        self.heat = Heat::new(visits);
    }

    /// From now on translated code has two areas, and when the one in use is full it can go on in the other: see [`Self::turn`]. Nothing has
    /// been translated yet.
    pub fn use_room_again(&mut self) {
        self.areas = Areas::two(self.areas.range());
    }

    /// Where the second area begins, if there are two.
    pub fn second_area(&self) -> Option<u64> {
        self.areas.second()
    }

    /// The area in which code could be placed anew, if there is one: there are two, and something is in the one in use.
    pub fn other_area(&self) -> Option<usize> {
        self.areas.other().filter(|_| !self.areas.is_fresh())
    }

    /// Forgets all code, and goes on in [`Self::other_area`]. No thread is there, or has been told to go there: what is there goes. Who is
    /// in the area that has been in use comes out of it sooner or later; until then it is told what is there as before.
    ///
    /// # Errors
    /// The host gives no memory.
    pub fn turn(&mut self, memory: &dyn Memory) -> Result<(), Fault> {
        self.asleep = None;
        let old = self.areas.current();
        let heads = self.heads.drain().flat_map(|(_, heads)| heads);
        let indirect: BTreeSet<u64> = self.entries.keys().copied().collect();
        let entries = [&mut self.entries, &mut self.cold, &mut self.past_stops];
        let entries = entries.into_iter().flat_map(|entries| entries.drain());
        let mut exits: FxHashMap<u64, Exit<F::Service>> =
            entries.map(|(pc, code)| (code, Exit::To(pc))).collect();
        exits.extend(heads.map(|(pc, code)| (code, Exit::Leave(pc))));
        // No jump leads to what has been there before its turn; closed in the order that memory wants.
        exits.retain(|code, _| old.contains(code));
        let codes: BTreeSet<u64> = exits.keys().copied().collect();
        codes.into_iter().try_for_each(|code| memory.place(code, &[leave()]))?;
        memory.enter(&indirect.into_iter().map(|pc| (self.entry_of(pc), 0)).collect::<Vec<_>>())?;
        // Nobody looks for these addresses where they are now; each entry stays that of its own.
        let unhashed = |(number, pc): (&u64, &u64)| {
            (self.options.hash + (number << HASH_SHIFT), (pc ^ F::ALIGNMENT) as u32)
        };
        let unhashed: BTreeSet<(u64, u32)> = self.hashed.iter().map(unhashed).collect();
        memory.enter(&unhashed.into_iter().collect::<Vec<_>>())?;
        memory.forget(old)?;
        self.exits.extend(exits);
        self.readers.clear();
        self.copies.clear();
        self.made.clear();
        self.heat.begin_again();
        let new = self.areas.turn();
        self.exits.retain(|code, _| !new.contains(code));
        // Where a call's link points is behind the call's word, and may be behind the area.
        self.calls.retain(|link, _| !new.contains(&(link - 4)));
        memory.forget(new)
    }

    /// The addresses that translated code takes.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// True for addresses of translated code.
    pub fn is_code(&self, address: u64) -> bool {
        self.layout.code.contains(&address)
    }

    /// The code of a source address, translated now if it has not been.
    ///
    /// # Errors
    /// There is nothing to be executed, no room, or a stop is there.
    pub fn code_of(&mut self, pc: u64, memory: &dyn Memory) -> Result<u64, Refusal> {
        if self.stops.contains(&pc) { Err(Refusal::Stop) } else { self.code_past_stop(pc, memory) }
    }

    /// As [`Self::code_of`], whether a stop is there or not.
    ///
    /// # Errors
    /// There is nothing to be executed, or no room.
    pub fn code_past_stop(&mut self, pc: u64, memory: &dyn Memory) -> Result<u64, Refusal> {
        let is_stop = self.stops.contains(&pc);
        let found = if is_stop { self.past_stops.get(&pc) } else { self.entries.get(&pc) };
        if let Some(&found) = found {
            return Ok(found);
        }
        if self.asleep.is_some() {
            self.wake(pc, memory)?;
            if let Some(&found) = self.entries.get(&pc) {
                return Ok(found);
            }
        }
        let is_made = |function| self.made.contains_key(&function);
        let is_hot = self.is_watched || !self.options.has(Part::Units) || self.heat.visit(pc, is_made);
        if !is_hot && let Some(&cold) = self.cold.get(&pc) {
            return Ok(cold);
        }
        let is_aligned = pc.is_multiple_of(F::ALIGNMENT);
        if !is_aligned || pc >= self.layout.limit {
            let cause = if is_aligned { FaultCause::Unmapped } else { FaultCause::Misaligned };
            return Err(Fault { address: pc, access: Access::Execute, cause }.into());
        }
        if is_hot && !self.is_watched {
            self.place_function_of(pc, memory)?;
            if let Some(&found) = self.entries.get(&pc).filter(|_| !is_stop) {
                return Ok(found);
            }
        }
        let (unit, is_hot, sources) = loop {
            memory.fetch(pc & !3).map_err(|fault| Fault { address: pc, ..fault })?;
            // On the same page, what can be executed there can be here.
            let is_near_end = pc % PAGE + LONGEST_INSTRUCTION > PAGE;
            if is_near_end && let Some(missing) = F::missing(pc, &|pc| memory.fetch(pc).ok()) {
                memory.fetch(missing)?;
            }
            let (unit, is_hot, sources) = self.translate(pc, is_hot, memory);
            if unit.entries.iter().any(|(entry, _)| *entry == pc) {
                break (unit, is_hot, sources);
            }
            // Another thread has taken the code away since it was looked for: it is looked for again, and maybe that is a fault.
        };
        self.place(unit, is_hot, sources, memory)?;
        let placed = match (is_stop, is_hot) {
            (true, _) => &self.past_stops,
            (false, true) => &self.entries,
            (false, false) => &self.cold,
        };
        Ok(placed[&pc])
    }

    /// Translates what is at `pc`, and says whether it is as good as it gets.
    fn translate(
        &mut self,
        pc: u64,
        is_hot: bool,
        memory: &dyn Memory,
    ) -> (Unit<F::Service, F::Pending>, bool, Option<Sources>) {
        if self.is_watched {
            return (F::translate_one(pc, &|pc| memory.fetch(pc).ok()), true, None);
        }
        if !is_hot {
            let reading = Reading::new(memory, self.notes_origins);
            let fetch = |pc| reading.fetch(pc);
            let block = F::translate(pc, None, &fetch, &|_| false, &self.options.cold());
            self.heat.note(&block);
            return (block, false, reading.sources());
        }
        // A loop may be under way there.
        let door = self.heat.waits().then_some(pc);
        let (unit, sources) = self.unit_from(pc, door, &(pc..pc), memory);
        (unit, true, sources)
    }

    /// Translates what `pc` reaches and is worth it, with `door`; once more, what is in `function`.
    fn unit_from(
        &self,
        pc: u64,
        door: Option<u64>,
        function: &Range<u64>,
        memory: &dyn Memory,
    ) -> (Unit<F::Service, F::Pending>, Option<Sources>) {
        let is_asleep = |pc| self.asleep.as_ref().is_some_and(|asleep| asleep.has_hot(pc));
        let is_known = |pc| {
            let has_code = self.entries.contains_key(&pc) || is_asleep(pc) || self.is_copied_enough(pc);
            has_code && !function.contains(&pc) || !self.heat.has_executed(pc)
        };
        let reading = Reading::new(memory, self.notes_origins);
        let unit = F::translate(pc, door, &|pc| reading.fetch(pc), &is_known, &self.options);
        (unit, reading.sources())
    }

    fn is_copied_enough(&self, pc: u64) -> bool {
        self.copies.get(&pc).is_some_and(|copies| *copies >= MOST_COPIES)
    }

    /// Translates the function that `pc` is in from its beginning, so that its loops are seen whole, with all that has been executed of it
    /// since it was the last time.
    fn place_function_of(&mut self, pc: u64, memory: &dyn Memory) -> Result<(), Refusal> {
        let function = self.heat.function_of(pc);
        let is_again = |function: &Range<u64>| {
            let made = self.made.get(&function.start).copied().unwrap_or_default();
            function.start != pc && made < MOST_MADE && !self.is_copied_enough(function.start)
        };
        let Some(function) = function.filter(is_again) else { return Ok(()) };
        *self.made.entry(function.start).or_default() += 1;
        let (unit, sources) = self.unit_from(function.start, Some(pc), &function, memory);
        // Where a function begins is a guess.
        if unit.entries.iter().any(|(entry, _)| *entry == pc) {
            self.place(unit, true, sources, memory)?;
        }
        Ok(())
    }

    /// Somebody has come to `pc` by an indirect jump or call, or a return.
    pub fn note_indirect(&mut self, pc: u64) {
        self.heat.note_indirect(pc);
    }

    /// Where the table of targets has the entry of `pc`.
    pub(crate) fn entry_of(&self, pc: u64) -> u64 {
        self.layout.table + (pc << F::ENTRY_SHIFT)
    }

    fn place(
        &mut self,
        mut unit: Unit<F::Service, F::Pending>,
        is_hot: bool,
        sources: Option<Sources>,
        memory: &dyn Memory,
    ) -> Result<(), Refusal> {
        let start = self.areas.room(unit.words.len() as u64).ok_or(Refusal::Full)?;
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
        // From here on the room is taken, whatever the host refuses.
        let positions = std::mem::take(&mut unit.positions);
        let mut counted: Vec<u32> = positions.iter().filter_map(|position| position.counted).collect();
        counted.sort_unstable();
        let positions = Positions::of(positions);
        let origin = sources.map(|sources| Origin::of(&unit, sources));
        self.areas.add(Placed { start, words: unit.words.len() as u64, positions, counted, origin });
        self.calls.extend(unit.calls.iter().map(|(offset, register)| (address(*offset) + 4, *register)));
        let entries = unit.entries.iter().map(|(pc, offset)| (*pc, address(*offset)));
        let (kept, mut listed): (Vec<_>, Vec<_>) = entries.partition(|(pc, _)| self.stops.contains(pc));
        if !is_hot {
            for (pc, code) in listed.drain(..) {
                if let Some(old) = self.cold.insert(pc, code) {
                    self.lead_on(pc, old, code, memory)?;
                }
            }
        }
        // Indirect jumps find the entries from here on; they ascend by source address.
        let table = listed.iter().map(|(pc, code)| (self.entry_of(*pc), *code as u32));
        memory.enter(&table.collect::<Vec<_>>())?;
        if !self.options.has(Part::Table) {
            for (pc, code) in &listed {
                self.hash(*pc, *code, memory)?;
            }
        }
        for (pc, code) in listed {
            let olds = [self.cold.remove(&pc), self.entries.insert(pc, code)];
            for old in olds.into_iter().flatten() {
                self.lead_on(pc, old, code, memory)?;
            }
        }
        self.past_stops.extend(kept);
        let heads = unit.heads.iter().map(|(pc, offset)| (*pc, address(*offset)));
        let heads: Vec<(u64, u64)> = heads.collect();
        let read = unit.sources.iter().flat_map(|(first, bytes)| first / PAGE..=(first + bytes - 1) / PAGE);
        let mut pages: Vec<u64> = unit.looked_at.iter().map(|at| at / PAGE).chain(read).collect();
        pages.sort_unstable();
        pages.dedup();
        for page in pages {
            self.readers.entry(page).or_default().extend(unit.entries.iter().map(|(pc, _)| *pc));
            if !heads.is_empty() {
                self.heads.entry(page).or_default().extend(&heads);
            }
        }
        self.note_copies(&heads);
        Ok(())
    }

    /// What only a unit's own jumps lead to has been placed once more.
    pub(crate) fn note_copies(&mut self, heads: &[(u64, u64)]) {
        for pc in heads.iter().map(|(pc, _)| *pc).collect::<FxHashSet<u64>>() {
            *self.copies.entry(pc).or_default() += 1;
        }
    }

    /// Who comes to the old code of `pc` goes on at the new one: only the newest is closed when the source changes.
    pub(crate) fn lead_on(&mut self, pc: u64, old: u64, new: u64, memory: &dyn Memory) -> Result<(), Fault> {
        match jump(old, new) {
            Some(word) => {
                memory.replace(old, word)?;
                self.exits.remove(&old);
                Ok(())
            }
            None => self.come_out_at(old, pc, memory),
        }
    }

    /// Puts the code of `pc` into the hash table, unless another source address is there. An entry is never another address's later on: a
    /// thread may have compared the one and be about to load the other.
    fn hash(&mut self, pc: u64, code: u64, memory: &dyn Memory) -> Result<(), Fault> {
        let number = pc / F::ALIGNMENT % HASH_ENTRIES;
        let entry = self.options.hash + (number << HASH_SHIFT);
        if *self.hashed.entry(number).or_insert(pc) == pc {
            // The address last, and of that the half that most have in common first.
            memory.enter(&[(entry + 8, code as u32), (entry + 12, (code >> 32) as u32)])?;
            memory.enter(&[(entry + 4, (pc >> 32) as u32)])?;
            memory.enter(&[(entry, pc as u32)])?;
        }
        Ok(())
    }

    /// The word at `address` comes out to the engine for this.
    pub fn exit_at(&self, address: u64) -> Option<Exit<F::Service>> {
        self.exits.get(&address).copied()
    }

    /// Goes on from an exit to `pc`, and lets the exit do so by itself from now on.
    ///
    /// # Errors
    /// As for [`Self::code_of`].
    pub fn follow(&mut self, exit: u64, pc: u64, memory: &dyn Memory) -> Result<u64, Refusal> {
        let code = self.code_of(pc, memory)?;
        // Code that is cold yet is come to by way of the engine, which counts. The exit may be the beginning of code that leads on to newer
        // code by now.
        let is_hot = self.entries.contains_key(&pc) || self.is_watched;
        if let Some(word) = jump(exit, code).filter(|_| is_hot && self.exits.contains_key(&exit)) {
            memory.replace(exit, word)?;
            self.exits.remove(&exit);
        }
        Ok(code)
    }

    /// The source register that the call behind which `link` stands jumps to.
    pub fn call_before(&self, link: u64) -> Option<u8> {
        self.calls.get(&link).copied()
    }

    /// What stands at `address` of translated code.
    pub fn position(&self, address: u64) -> Option<Position<F::Pending>> {
        let unit = self.areas.unit_at(address)?;
        let offset = ((address - unit.start) / 4) as u32;
        let behind = unit.positions.up_to(offset);
        let found = unit.positions.get(behind.checked_sub(1)?)?;
        // Of instructions that became nothing, the first: nothing has been done there.
        let here = (0..behind).rev().map_while(|number| unit.positions.get(number));
        let mut first = found;
        for position in here.take_while(|position| position.offset == found.offset) {
            first = position;
            if first.begins {
                break;
            }
        }
        let is_boundary = first.is_boundary && first.offset == offset;
        Some(Position { is_boundary, ..if is_boundary { first } else { found } })
    }

    /// As [`Self::position`], where an instruction has failed: the last of those that begin there.
    pub fn position_of_fault(&self, address: u64) -> Option<Position<F::Pending>> {
        let unit = self.areas.unit_at(address)?;
        let offset = ((address - unit.start) / 4) as u32;
        let found = unit.positions.get(unit.positions.up_to(offset).checked_sub(1)?)?;
        if found.is_boundary { Some(found) } else { self.position(address) }
    }

    /// The units: where each begins, its words, and what is known of them.
    pub fn units(&self) -> impl Iterator<Item = (u64, u64, Vec<Position<F::Pending>>)> {
        self.areas.units().map(|unit| (unit.start, unit.words, unit.positions.iter().collect()))
    }

    /// The source instructions that `count` words from `address` on execute.
    pub fn source_instructions(&self, address: u64, count: u32) -> u64 {
        let Some(unit) = self.areas.unit_at(address) else { return 0 };
        let first = ((address - unit.start) / 4) as u32;
        let before = |word| unit.counted.partition_point(|counted| *counted < word);
        (before(first + count) - before(first)) as u64
    }

    /// Forgets the code of source addresses that may have changed. Threads in its middle go on to the end of their block.
    ///
    /// # Errors
    /// The host gives no memory.
    pub fn forget(&mut self, range: Range<u64>, memory: &dyn Memory) -> Result<(), Fault> {
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        self.heat.forget_pages(&pages);
        let pages: Vec<u64> = if pages.end.saturating_sub(pages.start) > self.readers.len() as u64 {
            self.readers.keys().copied().filter(|page| pages.contains(page)).collect()
        } else {
            pages.collect()
        };
        let gone: Vec<u64> =
            pages.iter().flat_map(|page| self.readers.remove(page).unwrap_or_default()).collect();
        let heads: Vec<_> =
            pages.iter().flat_map(|page| self.heads.remove(page).unwrap_or_default()).collect();
        for pc in gone {
            self.past_stops.remove(&pc);
            self.close(pc, memory)?;
        }
        for (pc, code) in heads {
            self.close_head(pc, code, memory)?;
            self.copies.remove(&pc);
        }
        Ok(())
    }

    /// Nobody comes to the code of a source address any more: who would, comes out to the engine.
    fn close(&mut self, pc: u64, memory: &dyn Memory) -> Result<(), Fault> {
        self.heat.forget(pc);
        self.made.remove(&pc);
        if let Some(code) = self.cold.remove(&pc) {
            self.come_out_at(code, pc, memory)?;
        }
        if let Some(code) = self.entries.remove(&pc) {
            memory.enter(&[(self.entry_of(pc), 0)])?;
            self.come_out_at(code, pc, memory)?;
        }
        Ok(())
    }

    /// Who comes to the code of `pc` comes out to the engine.
    fn come_out_at(&mut self, code: u64, pc: u64, memory: &dyn Memory) -> Result<(), Fault> {
        memory.replace(code, leave())?;
        self.exits.insert(code, Exit::To(pc));
        Ok(())
    }

    fn close_head(&mut self, pc: u64, code: u64, memory: &dyn Memory) -> Result<(), Fault> {
        memory.replace(code, leave())?;
        self.exits.insert(code, Exit::Leave(pc));
        Ok(())
    }

    /// From now on each unit is one instruction, so that a debugger sees every register as the source has it wherever a thread stops; or
    /// no longer, and then there are no stops either. What has been translated is forgotten.
    ///
    /// # Errors
    /// The host gives no memory.
    pub fn watch(&mut self, is_watched: bool, memory: &dyn Memory) -> Result<(), Fault> {
        self.is_watched = is_watched;
        (self.asleep, self.notes_origins) = (None, false);
        self.stops.clear();
        self.forget(0..self.layout.limit, memory)
    }

    /// Whoever comes to one of these source addresses stops there ([`Refusal::Stop`]); at others, no longer. Only while the engine is
    /// watched: other units go on across the instructions in their middle.
    ///
    /// # Errors
    /// The host gives no memory.
    pub fn stop_at(&mut self, stops: &BTreeSet<u64>, memory: &dyn Memory) -> Result<(), Fault> {
        let new: Vec<u64> = stops.difference(&self.stops).copied().collect();
        for pc in new {
            self.close(pc, memory)?;
            let heads = self.heads.get(&(pc / PAGE)).into_iter().flatten();
            let heads: Vec<u64> = heads.filter(|(head, _)| *head == pc).map(|(_, code)| *code).collect();
            for code in heads {
                self.close_head(pc, code, memory)?;
            }
        }
        self.stops.clone_from(stops);
        Ok(())
    }

    /// True if code has been read from somewhere in `range`.
    pub fn has_read(&self, range: Range<u64>) -> bool {
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        // As for `forget`: few pages are looked up, many looked for.
        match pages.end.saturating_sub(pages.start) > self.readers.len() as u64 {
            true => self.readers.keys().any(|page| pages.contains(page)),
            false => pages.clone().any(|page| self.readers.contains_key(&page)),
        }
    }
}

/// The word that comes out to the engine.
pub(crate) fn leave() -> u32 {
    encode(&Instruction { imm: EXIT, ..Instruction::new(La::Break) }).unwrap_or_default()
}

/// `b` from one address to another, if it reaches.
fn jump(from: u64, to: u64) -> Option<u32> {
    let imm = i32::try_from(to.wrapping_sub(from) as i64).ok()?;
    encode(&Instruction { imm, ..Instruction::new(La::B) }).ok()
}
