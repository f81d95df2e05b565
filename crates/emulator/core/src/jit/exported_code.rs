//! Exports and imports translated code between processes of the same executable. Host code refers to addresses outside
//! its cache only for interpreter calls, which are listed and relocated. The caller ensures that the guest code is the
//! same.

use std::ops::Range;

use longma_loongarch::{decode, encode};
use serde::{Deserialize, Serialize};

use super::{
    PlacedRegion, TranslationState, Translator,
    allocation::Allocation,
    code_cache::LINE_BYTES,
    cross_modification::serialise_all,
    interpreter_call::{InterpreterCall, InterpreterCalls, PlacedInterpreterCall},
    links::Link,
    regions::Retained,
};

/// The exported regions of a translator. Positions are offsets in the code cache.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ExportedRegions {
    /// The offsets of the trampolines, which each process writes itself.
    shared: Vec<u32>,
    /// The size of the used part of the cache in bytes.
    used: u32,
    regions: Vec<ExportedRegion>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ExportedRegion {
    allocation: Allocation,
    pieces: Vec<Range<u32>>,
    spill: u32,
    /// For each instruction, the host code bytes and the guest address distance since the previous one. Both are small.
    positions: Vec<(u32, i64)>,
    /// Guest address, bytes of guest code, host offset.
    blocks: Vec<(u64, u32, u32)>,
    /// Guest address and host offset.
    entries: Vec<(u64, u32)>,
    /// Offset of the displacement, target guest address, offset of the target while it is not linked.
    links: Vec<(u32, u64, u32)>,
    /// Offset of the instruction's address in the code, and the instruction.
    interpreter_calls: Vec<(u32, u32)>,
}

impl ExportedRegion {
    fn of(
        retained: &Retained,
        placed: &PlacedRegion,
        translator: &Translator,
        state: &TranslationState,
    ) -> Option<Self> {
        let offset = |host: u64| u32::try_from(host.checked_sub(translator.cache_range.start)?).ok();
        let range = |piece: &Range<u64>| Some(offset(piece.start)?..offset(piece.end)?);
        let code = offset(placed.code.start)?;
        let entries = translator.entries.read().ok()?;
        let entry = |pc: &u64| Some((*pc, offset(*entries.get(pc)?)?));
        let link = |number: &usize| {
            let link = state.links.get(*number)?;
            Some((offset(link.displacement)?, link.target, offset(link.unlinked)?))
        };
        let block = |(guest, host): &(Range<u64>, u64)| {
            Some((guest.start, (guest.end - guest.start) as u32, offset(*host)?))
        };
        let interpreter_call = |placed: &PlacedInterpreterCall| {
            Some((code + placed.site as u32, encode(&placed.interpreter_call.instruction).ok()?))
        };
        Some(Self {
            allocation: retained.allocation.clone(),
            pieces: retained.pieces.iter().map(range).collect::<Option<_>>()?,
            spill: offset(placed.spill)?,
            positions: distances(&placed.positions),
            blocks: retained.blocks.iter().map(block).collect::<Option<_>>()?,
            entries: retained.entries.iter().map(entry).collect::<Option<_>>()?,
            links: retained.links.iter().map(link).collect::<Option<_>>()?,
            interpreter_calls: retained
                .interpreter_calls
                .iter()
                .map(interpreter_call)
                .collect::<Option<_>>()?,
        })
    }

    /// Whether all its offsets are inside its own pieces, and all pieces are after the trampolines.
    fn is_sound(&self, space: &Range<u32>) -> bool {
        let Some(code) = self.pieces.first() else { return false };
        let is_own = |offset: u32, bytes: u32| {
            let is_in = |piece: &Range<u32>| piece.contains(&offset) && piece.end - offset >= bytes;
            self.pieces.iter().any(is_in)
        };
        let is_line = |offset: &u32| offset.is_multiple_of(LINE_BYTES as u32);
        let is_piece = |piece: &Range<u32>| {
            piece.start < piece.end
                && space.start <= piece.start
                && piece.end <= space.end
                && is_line(&piece.start)
                && is_line(&piece.end)
        };
        self.pieces.iter().all(is_piece)
            && code.contains(&self.spill)
            && self.allocation.is_sound()
            && self.blocks.iter().all(|(_, bytes, host)| *bytes > 0 && is_own(*host, 1))
            && self.entries.iter().all(|(_, host)| is_own(*host, 1))
            && self.links.iter().all(|(displacement, _, unlinked)| {
                is_own(*displacement, 4) && (1..=4).contains(&(displacement % 8)) && is_own(*unlinked, 1)
            })
            && self.interpreter_calls.iter().all(|(site, word)| is_own(*site, 8) && decode(*word).is_some())
    }
}

/// Encodes each position as the difference from the previous one.
fn distances(positions: &[(u32, u64)]) -> Vec<(u32, i64)> {
    let mut last = (0, 0);
    let distance = |&(place, pc): &(u32, u64)| {
        let distance = (place.wrapping_sub(last.0), pc.wrapping_sub(last.1) as i64);
        last = (place, pc);
        distance
    };
    positions.iter().map(distance).collect()
}

fn positions(distances: &[(u32, i64)]) -> Vec<(u32, u64)> {
    let mut last = (0u32, 0u64);
    let position = |&(bytes, code): &(u32, i64)| {
        last = (last.0.wrapping_add(bytes), last.1.wrapping_add(code as u64));
        last
    };
    distances.iter().map(position).collect()
}

impl Translator {
    fn trampoline_offsets(&self) -> Vec<u32> {
        let at = &self.trampolines;
        let all =
            [at.enter, at.leave_canonical, at.leave, at.leave_indirect, at.return_miss, at.interpreter_call];
        all.map(|host| (host - self.cache_range.start) as u32).into()
    }

    /// Exports all translations and their host code. Returns `None` if the code still belongs to the parent, or is
    /// counted or traced.
    pub fn export(&self) -> Option<(ExportedRegions, Vec<u8>)> {
        if self.config.counting.is_some() || self.config.tracing.is_some() {
            return None;
        }
        let state = self.state.lock().expect("no panic while held");
        if state.cache.belongs_to_parent() {
            return None;
        }
        let placed = self.placed.read().expect("no panic while held");
        let region = |retained: &Retained| {
            let placed = placed.get(&retained.pieces.first()?.end)?;
            ExportedRegion::of(retained, placed, self, &state)
        };
        let regions = state.regions.all().map(region).collect::<Option<_>>()?;
        let code = state.cache.written().to_vec();
        Some((ExportedRegions { shared: self.trampoline_offsets(), used: code.len() as u32, regions }, code))
    }

    /// Imports code that another process exported, before anything has been translated. Returns false, and imports
    /// nothing, if it does not fit.
    pub fn import(&self, exported: &ExportedRegions, code: &[u8]) -> bool {
        let mut state = self.lock();
        let own_bytes = state.cache.written().len();
        let space = own_bytes as u32..exported.used;
        let fits = !state.cache.belongs_to_parent()
            && self.config.counting.is_none()
            && self.config.tracing.is_none()
            && state.regions.all().next().is_none()
            && exported.shared == self.trampoline_offsets()
            && code.len() == exported.used as usize
            && own_bytes <= code.len()
            && exported.regions.iter().all(|region| region.is_sound(&space));
        if !fits || !state.cache.extend(&code[own_bytes..]) {
            return false;
        }
        exported.regions.iter().for_each(|region| self.import_region(&mut state, region));
        serialise_all();
        let mut entries = self.entries.write().expect("no panic while held");
        entries.reserve(exported.regions.iter().map(|region| region.blocks.len()).sum());
        for region in &exported.regions {
            for (pc, ..) in &region.blocks {
                self.address_filter.add(*pc);
                entries.entry(*pc).or_insert(super::NO_ENTRY_YET);
            }
            entries.extend(region.entries.iter().map(|(pc, place)| (*pc, self.host(*place))));
        }
        true
    }

    fn host(&self, offset: u32) -> u64 {
        self.cache_range.start + u64::from(offset)
    }

    fn import_region(&self, state: &mut TranslationState, exported: &ExportedRegion) {
        let pieces: Vec<Range<u64>> =
            exported.pieces.iter().map(|piece| self.host(piece.start)..self.host(piece.end)).collect();
        let code = pieces[0].clone();
        let mut interpreter_calls = InterpreterCalls::new();
        for (site, word) in &exported.interpreter_calls {
            let Some(interpreter_call) = decode(*word).map(InterpreterCall::new) else { continue };
            let address = std::ptr::from_ref(&*interpreter_call) as u64;
            state.cache.overwrite(*site as usize, &address.to_le_bytes());
            interpreter_calls.push(PlacedInterpreterCall {
                interpreter_call,
                site: (self.host(*site) - code.start) as usize,
            });
        }
        let placed = PlacedRegion {
            code: code.clone(),
            spill: self.host(exported.spill),
            positions: positions(&exported.positions),
            counted_blocks: Vec::new(),
        };
        self.placed.write().expect("no panic while held").insert(code.end, placed);
        let links = exported.links.iter().map(|(displacement, target, unlinked)| {
            state.links.add(Link {
                displacement: self.host(*displacement),
                target: *target,
                unlinked: self.host(*unlinked),
            })
        });
        let links = links.collect();
        let block = |(pc, bytes, place): &(u64, u32, u32)| (*pc..pc + u64::from(*bytes), self.host(*place));
        state.regions.add(Retained {
            allocation: exported.allocation.clone(),
            blocks: exported.blocks.iter().map(block).collect(),
            entries: exported.entries.iter().map(|(pc, _)| *pc).collect(),
            pieces,
            links,
            interpreter_calls,
        });
    }
}
