//! The positions of a unit that has its place, kept small: most code of a program is only cold, and few of its positions say what registers
//! are yet to be.
//! Not where the unit lies.

use crate::front_end::Position;

/// The number of what registers are yet to be; none.
const NOTHING: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Kept {
    pc: u64,
    offset: u32,
    /// The word, or [`NOTHING`].
    counted: u32,
    /// The number in `pending`, or [`NOTHING`].
    pending: u32,
    is_boundary: bool,
    begins: bool,
}

/// The positions of a unit, in the order of their words.
pub(crate) struct Positions<P> {
    kept: Box<[Kept]>,
    pending: Box<[P]>,
}

impl<P: Copy> Positions<P> {
    /// Of positions in any order; those of one word stay in theirs.
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
        Self { kept, pending: pending.into() }
    }

    /// How many are at the word or before.
    pub fn up_to(&self, offset: u32) -> usize {
        self.kept.partition_point(|kept| kept.offset <= offset)
    }

    /// That of a number, if there is one.
    pub fn get(&self, number: usize) -> Option<Position<P>> {
        let kept = self.kept.get(number)?;
        Some(Position {
            offset: kept.offset,
            pc: kept.pc,
            is_boundary: kept.is_boundary,
            counted: Some(kept.counted).filter(|counted| *counted != NOTHING),
            begins: kept.begins,
            pending: self.pending.get(kept.pending as usize).copied(),
        })
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = Position<P>> {
        (0..self.kept.len()).filter_map(|number| self.get(number))
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
