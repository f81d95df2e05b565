//! Compact storage of a unit's positions. Most code of a program is cold, and few positions have pending registers.

use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::front_end::Position;

/// Marks an absent value.
const NOTHING: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Kept {
    pc: u64,
    offset: u32,
    /// The word index, or [`NOTHING`].
    counted: u32,
    /// The index in `pending`, or [`NOTHING`].
    pending: u32,
    is_boundary: bool,
    begins: bool,
}

struct All<P> {
    kept: Box<[Kept]>,
    pending: Box<[P]>,
}

/// The serialized form of a position: bits of [`bit`], then the differences of `offset` and `pc` from the previous
/// position. The bits say which fields follow.
type Step = (u8, u32, i64);

mod bit {
    pub const BOUNDARY: u8 = 1;
    pub const BEGINS: u8 = 2;
    /// `counted` equals `offset`.
    pub const COUNTED: u8 = 4;
    /// The distance of `counted` from `offset` follows.
    pub const COUNTED_ELSEWHERE: u8 = 8;
    /// Pending registers are the same as for the previous position.
    pub const SAME_PENDING: u8 = 16;
    /// The offset in `Written::pending` follows.
    pub const PENDING: u8 = 32;
}

/// The serialized positions of many units.
#[derive(Clone, Default)]
pub struct Written {
    /// The positions, unit by unit.
    pub steps: Bytes,
    /// The pending registers, deduplicated.
    pub pending: Bytes,
}

/// Serializes positions.
#[derive(Default)]
pub(crate) struct Writer {
    steps: Vec<u8>,
    pending: Vec<u8>,
    places: FxHashMap<Vec<u8>, u32>,
}

impl Writer {
    /// Appends the positions of a unit and returns their byte range.
    pub fn write<P>(&mut self, positions: &Positions<P>) -> Option<Range<usize>>
    where
        P: Copy + Serialize + DeserializeOwned,
    {
        let start = self.steps.len();
        let mut steps = std::mem::take(&mut self.steps);
        let (mut last, mut last_pending) = ((0, 0), None);
        for position in positions.iter() {
            let pending = position.pending.map(|pending| self.place_of(&pending)).transpose().ok()?;
            let counted = position.counted.map(|counted| counted.wrapping_sub(position.offset) as i32);
            let bits = [
                (position.is_boundary, bit::BOUNDARY),
                (position.begins, bit::BEGINS),
                (counted == Some(0), bit::COUNTED),
                (counted.is_some_and(|distance| distance != 0), bit::COUNTED_ELSEWHERE),
                (pending.is_some() && pending == last_pending, bit::SAME_PENDING),
                (pending.is_some() && pending != last_pending, bit::PENDING),
            ];
            let bits = bits.iter().filter(|(is_set, _)| *is_set).fold(0, |bits, (_, bit)| bits | bit);
            let step: Step = (bits, position.offset - last.0, position.pc.wrapping_sub(last.1) as i64);
            steps = postcard::to_extend(&step, steps).ok()?;
            if bits & bit::COUNTED_ELSEWHERE != 0 {
                steps = postcard::to_extend(&counted.unwrap_or_default(), steps).ok()?;
            }
            if bits & bit::PENDING != 0 {
                steps = postcard::to_extend(&pending.unwrap_or_default(), steps).ok()?;
            }
            (last, last_pending) = ((position.offset, position.pc), pending);
        }
        self.steps = steps;
        Some(start..self.steps.len())
    }

    /// Returns the serialized positions.
    pub fn finish(self) -> Written {
        Written { steps: self.steps.into(), pending: self.pending.into() }
    }

    fn place_of<P: Serialize>(&mut self, pending: &P) -> postcard::Result<u32> {
        let bytes = postcard::to_allocvec(pending)?;
        Ok(*self.places.entry(bytes).or_insert_with_key(|bytes| {
            let place = self.pending.len() as u32;
            self.pending.extend(bytes);
            place
        }))
    }
}

impl Written {
    /// Deserializes the positions in a byte range.
    fn read<P: DeserializeOwned>(&self, place: &Range<usize>) -> Option<All<P>> {
        let mut steps = self.steps.get(place.clone())?;
        let (mut kept, mut pending) = (Vec::new(), Vec::new());
        let mut last = (0u32, 0u64);
        while !steps.is_empty() {
            let (bits, offset, pc) = take::<Step>(&mut steps)?;
            last = (last.0.checked_add(offset)?, last.1.wrapping_add(pc as u64));
            let counted = match bits & (bit::COUNTED | bit::COUNTED_ELSEWHERE) {
                0 => NOTHING,
                bit::COUNTED => last.0,
                _ => last.0.wrapping_add(take::<i32>(&mut steps)? as u32),
            };
            let number = match bits & (bit::SAME_PENDING | bit::PENDING) {
                0 => NOTHING,
                bit::SAME_PENDING => u32::try_from(pending.len()).ok()?.checked_sub(1)?,
                _ => {
                    let place = take::<u32>(&mut steps)?;
                    pending.push(take(&mut self.pending.get(place as usize..)?)?);
                    pending.len() as u32 - 1
                }
            };
            kept.push(Kept {
                pc: last.1,
                offset: last.0,
                counted,
                pending: number,
                is_boundary: bits & bit::BOUNDARY != 0,
                begins: bits & bit::BEGINS != 0,
            });
        }
        Some(All { kept: kept.into(), pending: pending.into() })
    }
}

/// Deserializes a value from the front of `bytes`.
fn take<T: DeserializeOwned>(bytes: &mut &[u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
    *bytes = rest;
    Some(value)
}

/// The positions of a unit, sorted by word. Imported positions are deserialized at first use.
pub(crate) struct Positions<P> {
    all: OnceCell<All<P>>,
    /// The serialized form, for imported units.
    written: Option<(Arc<Written>, Range<usize>)>,
}

impl<P: Copy + Serialize + DeserializeOwned> Positions<P> {
    /// Sorts positions by word. The order of positions at the same word is kept.
    pub fn of(mut positions: Vec<Position<P>>) -> Self {
        if !positions.is_sorted_by_key(|position| position.offset) {
            positions.sort_by_key(|position| position.offset);
        }
        let mut pending = Vec::new();
        let kept = positions.iter().map(|position| Kept {
            pc: position.pc,
            offset: position.offset,
            counted: position.counted.unwrap_or(NOTHING),
            pending: position.pending.map_or(NOTHING, |registers| {
                pending.push(registers);
                pending.len() as u32 - 1
            }),
            is_boundary: position.is_boundary,
            begins: position.begins,
        });
        let kept = kept.collect();
        Self { all: OnceCell::from(All { kept, pending: pending.into() }), written: None }
    }

    /// Refers to positions that a [`Writer`] serialized.
    pub fn written(written: Arc<Written>, place: Range<usize>) -> Self {
        Self { all: OnceCell::new(), written: Some((written, place)) }
    }

    fn all(&self) -> &All<P> {
        self.all.get_or_init(|| {
            let read = self.written.as_ref().and_then(|(written, place)| written.read(place));
            // Deserialization succeeds for everything that this build wrote, and the cache's checksum excludes other
            // data.
            read.unwrap_or(All { kept: Box::default(), pending: Box::default() })
        })
    }

    /// The number of positions at or before a word.
    pub fn up_to(&self, offset: u32) -> usize {
        self.all().kept.partition_point(|kept| kept.offset <= offset)
    }

    /// The position with index `number`.
    pub fn get(&self, number: usize) -> Option<Position<P>> {
        let all = self.all();
        let kept = all.kept.get(number)?;
        Some(Position {
            offset: kept.offset,
            pc: kept.pc,
            is_boundary: kept.is_boundary,
            counted: Some(kept.counted).filter(|counted| *counted != NOTHING),
            begins: kept.begins,
            pending: all.pending.get(kept.pending as usize).copied(),
        })
    }

    /// All positions.
    pub fn iter(&self) -> impl Iterator<Item = Position<P>> {
        (0..self.all().kept.len()).filter_map(|number| self.get(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_what_was_given_in_the_order_of_words() {
        let position = |offset, pc, counted, pending| Position {
            offset,
            pc,
            is_boundary: pc % 8 == 0,
            counted,
            begins: pc % 3 == 0,
            pending,
        };
        let given = [
            position(4, 0x18, Some(4), Some('a')),
            position(0, 0x10, Some(2), None),
            position(4, 0x14, None, None),
            position(9, 0x1c, None, Some('b')),
        ];
        let positions = Positions::of(given.to_vec());
        assert_eq!(positions.iter().collect::<Vec<_>>(), [given[1], given[0], given[2], given[3]]);
        assert_eq!([0, 3, 4, 8, 9].map(|offset| positions.up_to(offset)), [1, 1, 3, 3, 4]);
        assert_eq!((positions.get(3), positions.get(4)), (Some(given[3]), None));
    }
}
