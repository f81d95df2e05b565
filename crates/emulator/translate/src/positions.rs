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
const ABSENT: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct PackedPosition {
    pc: u64,
    offset: u32,
    /// The word index, or [`ABSENT`].
    counted: u32,
    /// The index in `pending`, or [`ABSENT`].
    pending: u32,
    is_boundary: bool,
    begins: bool,
}

struct PackedPositions<P> {
    positions: Box<[PackedPosition]>,
    pending: Box<[P]>,
}

/// The serialized form of a position: bits of [`bit`], then the differences of `offset` and `pc` from the previous
/// position. The bits determine which fields follow.
type EncodedPosition = (u8, u32, i64);

mod bit {
    pub const BOUNDARY: u8 = 1;
    pub const BEGINS: u8 = 2;
    /// `counted` equals `offset`.
    pub const COUNTED: u8 = 4;
    /// The distance of `counted` from `offset` follows.
    pub const COUNTED_ELSEWHERE: u8 = 8;
    /// Pending registers are the same as for the previous position.
    pub const SAME_PENDING: u8 = 16;
    /// The offset in `EncodedPositions::pending` follows.
    pub const PENDING: u8 = 32;
}

/// The serialized positions of many units.
#[derive(Clone, Default)]
pub struct EncodedPositions {
    /// The positions, unit by unit.
    pub steps: Bytes,
    /// The pending registers, deduplicated.
    pub pending: Bytes,
}

/// Serializes positions.
#[derive(Default)]
pub(crate) struct PositionEncoder {
    steps: Vec<u8>,
    pending: Vec<u8>,
    places: FxHashMap<Vec<u8>, u32>,
}

impl PositionEncoder {
    /// Appends the positions of a unit and returns their byte range.
    pub fn write<P>(&mut self, positions: &Positions<P>) -> Option<Range<usize>>
    where
        P: Copy + PartialEq + Serialize + DeserializeOwned,
    {
        let start = self.steps.len();
        let mut steps = std::mem::take(&mut self.steps);
        let (mut last, mut last_pending) = ((0, 0), None);
        for position in positions.iter() {
            let pending = position.pending.map(|pending| self.offset_of(&pending)).transpose().ok()?;
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
            let step: EncodedPosition =
                (bits, position.offset - last.0, position.pc.wrapping_sub(last.1) as i64);
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
    pub fn finish(self) -> EncodedPositions {
        EncodedPositions { steps: self.steps.into(), pending: self.pending.into() }
    }

    fn offset_of<P: Serialize>(&mut self, pending: &P) -> postcard::Result<u32> {
        let bytes = postcard::to_allocvec(pending)?;
        Ok(*self.places.entry(bytes).or_insert_with_key(|bytes| {
            let offset = self.pending.len() as u32;
            self.pending.extend(bytes);
            offset
        }))
    }
}

impl EncodedPositions {
    /// Deserializes the positions in a byte range.
    fn read<P: DeserializeOwned>(&self, range: &Range<usize>) -> Option<PackedPositions<P>> {
        let mut steps = self.steps.get(range.clone())?;
        let (mut positions, mut pending) = (Vec::new(), Vec::new());
        let mut last = (0u32, 0u64);
        while !steps.is_empty() {
            let (bits, offset, pc) = take::<EncodedPosition>(&mut steps)?;
            last = (last.0.checked_add(offset)?, last.1.wrapping_add(pc as u64));
            let counted = match bits & (bit::COUNTED | bit::COUNTED_ELSEWHERE) {
                0 => ABSENT,
                bit::COUNTED => last.0,
                _ => last.0.wrapping_add(take::<i32>(&mut steps)? as u32),
            };
            let number = match bits & (bit::SAME_PENDING | bit::PENDING) {
                0 => ABSENT,
                bit::SAME_PENDING => u32::try_from(pending.len()).ok()?.checked_sub(1)?,
                _ => {
                    let range = take::<u32>(&mut steps)?;
                    pending.push(take(&mut self.pending.get(range as usize..)?)?);
                    pending.len() as u32 - 1
                }
            };
            positions.push(PackedPosition {
                pc: last.1,
                offset: last.0,
                counted,
                pending: number,
                is_boundary: bits & bit::BOUNDARY != 0,
                begins: bits & bit::BEGINS != 0,
            });
        }
        Some(PackedPositions { positions: positions.into(), pending: pending.into() })
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
    all: OnceCell<PackedPositions<P>>,
    /// The serialized form, for imported units.
    encoded: Option<(Arc<EncodedPositions>, Range<usize>)>,
}

impl<P: Copy + PartialEq + Serialize + DeserializeOwned> Positions<P> {
    /// Sorts positions by word. The order of positions at the same word is kept.
    pub fn of(mut positions: Vec<Position<P>>) -> Self {
        if !positions.is_sorted_by_key(|position| position.offset) {
            positions.sort_by_key(|position| position.offset);
        }
        let mut pending = Vec::new();
        let positions = positions.iter().map(|position| PackedPosition {
            pc: position.pc,
            offset: position.offset,
            counted: position.counted.unwrap_or(ABSENT),
            pending: position.pending.map_or(ABSENT, |registers| {
                if pending.last() != Some(&registers) {
                    pending.push(registers);
                }
                pending.len() as u32 - 1
            }),
            is_boundary: position.is_boundary,
            begins: position.begins,
        });
        let positions = positions.collect();
        Self { all: OnceCell::from(PackedPositions { positions, pending: pending.into() }), encoded: None }
    }

    /// Refers to positions that a [`PositionEncoder`] serialized.
    pub fn encoded(encoded: Arc<EncodedPositions>, range: Range<usize>) -> Self {
        Self { all: OnceCell::new(), encoded: Some((encoded, range)) }
    }

    fn all(&self) -> &PackedPositions<P> {
        self.all.get_or_init(|| {
            let read = self.encoded.as_ref().and_then(|(encoded, place)| encoded.read(place));
            // Deserialization succeeds for all data written by this build, and the cache's checksum rejects other data.
            read.unwrap_or(PackedPositions { positions: Box::default(), pending: Box::default() })
        })
    }

    /// The number of positions at or before a word.
    pub fn up_to(&self, offset: u32) -> usize {
        self.all().positions.partition_point(|positions| positions.offset <= offset)
    }

    /// The position with index `number`.
    pub fn get(&self, number: usize) -> Option<Position<P>> {
        let all = self.all();
        let positions = all.positions.get(number)?;
        Some(Position {
            offset: positions.offset,
            pc: positions.pc,
            is_boundary: positions.is_boundary,
            counted: Some(positions.counted).filter(|counted| *counted != ABSENT),
            begins: positions.begins,
            pending: all.pending.get(positions.pending as usize).copied(),
        })
    }

    /// All positions.
    pub fn iter(&self) -> impl Iterator<Item = Position<P>> {
        (0..self.all().positions.len()).filter_map(|number| self.get(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_returned_in_word_order() {
        let position = |offset, pc, counted, pending| Position {
            offset,
            pc,
            is_boundary: pc % 8 == 0,
            counted,
            begins: pc % 3 == 0,
            pending,
        };
        let unsorted = [
            position(4, 0x18, Some(4), Some('a')),
            position(0, 0x10, Some(2), None),
            position(4, 0x14, None, None),
            position(9, 0x1c, None, Some('b')),
            position(10, 0x20, None, Some('b')),
        ];
        let positions = Positions::of(unsorted.to_vec());
        assert_eq!(
            positions.iter().collect::<Vec<_>>(),
            [unsorted[1], unsorted[0], unsorted[2], unsorted[3], unsorted[4]]
        );
        assert_eq!([0, 3, 4, 8, 9].map(|offset| positions.up_to(offset)), [1, 1, 3, 3, 4]);
        assert_eq!((positions.get(3), positions.get(5)), (Some(unsorted[3]), None));
        assert_eq!(positions.all().pending.len(), 2, "equal states in succession are stored once");
    }
}
