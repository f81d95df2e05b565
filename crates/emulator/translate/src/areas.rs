//! Allocation of translation units in one or two code areas, and lookup of units by host address.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::positions::Positions;
use crate::provenance::Origin;

/// A unit at its final address.
pub(crate) struct PlacedUnit<P> {
    pub start: u64,
    pub words: u64,
    pub positions: Positions<P>,
    /// The words that complete a source instruction, sorted.
    pub counted: Vec<u32>,
    /// The source words of the unit, if recorded.
    pub origin: Option<Origin>,
}

struct Area<P> {
    range: Range<u64>,
    /// The address of the next unit.
    next: u64,
    /// Sorted by address.
    units: Vec<PlacedUnit<P>>,
}

/// The code areas of an engine.
pub(crate) struct Areas<P> {
    areas: Vec<Area<P>>,
    current: usize,
    /// Imported units by address. They are all in the first area.
    imported: BTreeMap<u64, PlacedUnit<P>>,
}

impl<P> Areas<P> {
    /// Creates a single area.
    pub fn one(range: Range<u64>) -> Self {
        Self {
            areas: vec![Area { next: range.start, range, units: Vec::new() }],
            current: 0,
            imported: BTreeMap::new(),
        }
    }

    /// Creates one area in each half of `range`.
    pub fn two(range: Range<u64>) -> Self {
        let middle = (range.start + (range.end - range.start) / 2) & !3;
        let halves = [range.start..middle, middle..range.end];
        let areas = halves.map(|range| Area { next: range.start, range, units: Vec::new() });
        Self { areas: areas.into(), current: 0, imported: BTreeMap::new() }
    }

    /// The address range of all areas.
    pub fn range(&self) -> Range<u64> {
        let (first, last) = (&self.areas[0], &self.areas[self.areas.len() - 1]);
        first.range.start..last.range.end
    }

    /// The start of the second area, if there are two.
    pub fn second(&self) -> Option<u64> {
        self.areas.get(1).map(|area| area.range.start)
    }

    fn of(&self, address: u64) -> Option<usize> {
        self.areas.iter().position(|area| area.range.contains(&address))
    }

    /// The index of the area that is not in use, if there are two.
    pub fn other(&self) -> Option<usize> {
        (self.areas.len() > 1).then_some(1 - self.current)
    }

    /// The address range of the area in use.
    pub fn current(&self) -> Range<u64> {
        self.areas[self.current].range.clone()
    }

    /// Whether the area in use is empty.
    pub fn is_empty(&self) -> bool {
        let Area { range, next, .. } = &self.areas[self.current];
        *next == range.start
    }

    /// The address for a unit of `words` words, if it fits.
    pub fn address_for(&self, words: u64) -> Option<u64> {
        let Area { range, next, .. } = &self.areas[self.current];
        (next + 4 * words <= range.end).then_some(*next)
    }

    /// Adds the unit that was placed at the address from [`Self::address_for`].
    pub fn add(&mut self, unit: PlacedUnit<P>) {
        let area = &mut self.areas[self.current];
        area.next = unit.start + 4 * unit.words;
        area.units.push(unit);
    }

    /// The unit that contains `address`.
    pub fn unit_at(&self, address: u64) -> Option<&PlacedUnit<P>> {
        let units = &self.areas[self.of(address)?].units;
        let unit = match units.partition_point(|unit| unit.start <= address).checked_sub(1) {
            Some(number) => &units[number],
            None => self.imported.range(..=address).next_back()?.1,
        };
        (address < unit.start + 4 * unit.words).then_some(unit)
    }

    /// Whether the first area is in use and the second one was never used.
    pub fn is_first(&self) -> bool {
        self.current == 0 && self.areas[1..].iter().all(|area| area.units.is_empty())
    }

    /// The units of the area in use, sorted by address, without imported ones.
    pub fn current_units(&self) -> &[PlacedUnit<P>] {
        &self.areas[self.current].units
    }

    /// Reserves the space below `address` for imported units.
    pub fn reserve_below(&mut self, address: u64) {
        self.areas[self.current].next = address;
    }

    /// Adds an imported unit.
    pub fn add_imported(&mut self, unit: PlacedUnit<P>) {
        self.imported.insert(unit.start, unit);
    }

    /// All units.
    pub fn units(&self) -> impl Iterator<Item = &PlacedUnit<P>> {
        self.imported.values().chain(self.areas.iter().flat_map(|area| &area.units))
    }

    /// Empties the other area, switches to it and returns its address range.
    pub fn switch(&mut self) -> Range<u64> {
        self.current = self.other().unwrap_or(self.current);
        if self.current == 0 {
            self.imported.clear();
        }
        let area = &mut self.areas[self.current];
        area.units.clear();
        area.next = area.range.start;
        area.range.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(start: u64, words: u64) -> PlacedUnit<()> {
        PlacedUnit { start, words, positions: Positions::of(Vec::new()), counted: Vec::new(), origin: None }
    }

    #[test]
    fn an_area_is_empty_after_a_switch_to_it() {
        let mut areas = Areas::two(0x1000..0x1040);
        assert_eq!((areas.range(), areas.second()), (0x1000..0x1040, Some(0x1020)));
        assert_eq!([0xfff, 0x1000, 0x1020, 0x1040].map(|at| areas.of(at)), [None, Some(0), Some(1), None]);
        assert_eq!((areas.address_for(8), areas.address_for(9)), (Some(0x1000), None));
        areas.add(unit(0x1000, 6));
        assert_eq!(
            (areas.address_for(2), areas.address_for(3), areas.other()),
            (Some(0x1018), None, Some(1))
        );
        assert!(areas.unit_at(0x1014).is_some() && areas.unit_at(0x1018).is_none());
        assert_eq!((areas.switch(), areas.is_empty(), areas.other()), (0x1020..0x1040, true, Some(0)));
        areas.add(unit(0x1020, 8));
        // The old area stays readable until it is reused.
        assert!(areas.unit_at(0x1000).is_some() && areas.unit_at(0x103c).is_some() && !areas.is_empty());
        assert_eq!((areas.switch(), areas.units().count()), (0x1000..0x1020, 1));
        assert!(areas.unit_at(0x1000).is_none() && areas.address_for(8) == Some(0x1000));
    }

    #[test]
    fn a_single_area_cannot_switch() {
        let areas = Areas::<()>::one(0x1000..0x1040);
        assert_eq!((areas.other(), areas.second()), (None, None));
        assert_eq!((areas.address_for(16), areas.address_for(17)), (Some(0x1000), None));
    }
}
