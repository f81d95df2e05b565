//! Register interface of a core's CAM table: software writes entries and searches them by key and address space.
//!
//! Source: Su et al., 2012: masked keys, address-space tags, entries written and searched by software. The register
//! layout is not from the paper.

use crate::Bus;
use crate::device::{Answer, Device};
use crate::registers::{Block, Field, RegisterMap, Slot, registers};
use longma_sim::{Duration, Time};
use longma_topology::parts::Cam as CamPart;
use longma_topology::units::{Frequency, Latency};
use serde::{Deserialize, Serialize};

const WRITE: Field =
    Field::bit("WRITE", 0, "writes `KEY`, `MASK`, `VALUE` and `SPACE` into entry `INDEX`; reads as 0");
const CLEAR: Field = Field::bit("CLEAR", 1, "clears entry `INDEX`; reads as 0");
const READ: Field =
    Field::bit("READ", 2, "reads entry `INDEX` into the registers; `HIT` is set if it was valid");
const HIT: Field = Field::bit("HIT", 63, "the last search or read found an entry");
const REFUSED: Field =
    Field::bit("REFUSED", 62, "the last command had an index or a field outside the table's range");
const FOUND: Field = Field::new("INDEX", 0, 32, "index of the entry found; the lowest if several match");
const ENTRIES: Field = Field::new("ENTRIES", 0, 32, "number of entries");
const KEY_BITS: Field = Field::new("KEY_BITS", 32, 8, "width of a key");
const VALUE_BITS: Field = Field::new("VALUE_BITS", 40, 8, "width of a value");
const SPACE_BITS: Field = Field::new("SPACE_BITS", 48, 8, "width of an address-space tag");

registers! {
    /// Registers of the table.
    pub(crate) enum CamRegister, CAM {
        /// Capabilities of the table.
        Identity = "IDENTITY" @ 0x00, 8 bytes, ReadOnly, 0, [ENTRIES, KEY_BITS, VALUE_BITS, SPACE_BITS];
        /// Address space of the entries to write and to search.
        Space = "SPACE" @ 0x08, 8 bytes, ReadWrite, 0, [];
        /// The key to search for. Writing it starts the search; `RESULT` and `VALUE` then hold the result.
        Search = "SEARCH" @ 0x10, 8 bytes, WriteOnly, 0, [];
        /// Result of the last search or read.
        Result = "RESULT" @ 0x18, 8 bytes, ReadOnly, 0, [FOUND, REFUSED, HIT];
        /// Value of an entry; 0 after a search without a match.
        Value = "VALUE" @ 0x20, 8 bytes, ReadWrite, 0, [];
        /// Key of an entry.
        Key = "KEY" @ 0x28, 8 bytes, ReadWrite, 0, [];
        /// Key bits of an entry that are compared.
        Mask = "MASK" @ 0x30, 8 bytes, ReadWrite, 0, [];
        /// Index of the entry for `COMMAND`.
        Index = "INDEX" @ 0x38, 8 bytes, ReadWrite, 0, [];
        /// Operation on the entry.
        Command = "COMMAND" @ 0x40, 8 bytes, WriteOnly, 0, [WRITE, CLEAR, READ];
    }
}

/// The register map of a CAM.
pub static MAP: RegisterMap = RegisterMap {
    name: "CAM",
    title: "CAM table",
    bytes: 0x1000,
    blocks: &[Block { prefix: "", title: "The table", base: 0, stride: 0x1000, count: 1, registers: CAM }],
};

/// Static configuration of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CamSpec {
    /// Number of entries, 1 to 65536.
    pub entries: u32,
    /// Width of keys and masks, at most 64 bits.
    pub key_bits: u32,
    /// Width of values, at most 64 bits.
    pub value_bits: u32,
    /// Width of address-space tags, at most 64 bits.
    pub space_bits: u32,
    /// Duration of a search or any other read.
    pub search: Duration,
    /// Duration of writing an entry or any other register.
    pub write: Duration,
}

impl CamSpec {
    /// The configuration of `part` in a core with `clock`. Widths are limited to those of the registers.
    pub fn from_part(part: &CamPart, clock: Frequency) -> Self {
        let bits = |width: longma_topology::units::Width| width.bits().clamp(1, 64) as u32;
        let ps = |latency: Latency| Duration::from_ps(latency.ps(clock));
        Self {
            entries: part.entries.clamp(1, 1 << 16),
            key_bits: bits(part.key),
            value_bits: bits(part.value),
            space_bits: bits(part.tag),
            search: ps(part.search),
            write: ps(part.write),
        }
    }
}

/// One entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    key: u64,
    mask: u64,
    value: u64,
    space: u64,
}

/// The mutable state of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CamState {
    entries: Vec<Option<Entry>>,
    /// The registers that hold an entry's fields.
    described: Entry,
    index: u64,
    result: u64,
}

/// A core's CAM table.
#[derive(Clone, Debug)]
pub struct Cam {
    spec: CamSpec,
    state: CamState,
}

impl Cam {
    /// Creates an empty table.
    pub fn new(spec: CamSpec) -> Self {
        let entries = vec![None; spec.entries.clamp(1, 1 << 16) as usize];
        Self { spec, state: CamState { entries, described: Entry::default(), index: 0, result: 0 } }
    }

    /// The state, for a checkpoint.
    pub const fn state(&self) -> &CamState {
        &self.state
    }

    /// Restores a table from a checkpoint; `None` if the checkpoint has another number of entries.
    pub fn restore(spec: CamSpec, state: CamState) -> Option<Self> {
        let fresh = Self::new(spec);
        (state.entries.len() == fresh.state.entries.len()).then_some(Self { spec, state })
    }

    fn value(&self, register: CamRegister) -> u64 {
        let (spec, state) = (&self.spec, &self.state);
        match register {
            CamRegister::Identity => {
                ENTRIES.with(state.entries.len() as u64)
                    | KEY_BITS.with(spec.key_bits.into())
                    | VALUE_BITS.with(spec.value_bits.into())
                    | SPACE_BITS.with(spec.space_bits.into())
            }
            CamRegister::Space => state.described.space,
            CamRegister::Result => state.result,
            CamRegister::Value => state.described.value,
            CamRegister::Key => state.described.key,
            CamRegister::Mask => state.described.mask,
            CamRegister::Index => state.index,
            CamRegister::Search | CamRegister::Command => 0,
        }
    }

    fn set(&mut self, register: CamRegister, value: u64) {
        let state = &mut self.state;
        match register {
            CamRegister::Space => state.described.space = value,
            CamRegister::Value => state.described.value = value,
            CamRegister::Key => state.described.key = value,
            CamRegister::Mask => state.described.mask = value,
            CamRegister::Index => state.index = value,
            CamRegister::Search => self.search(value),
            CamRegister::Command => self.command(value),
            CamRegister::Identity | CamRegister::Result => {}
        }
    }

    fn search(&mut self, key: u64) {
        let state = &mut self.state;
        let space = state.described.space;
        let hit = |entry: &Entry| entry.space == space && (entry.key ^ key) & entry.mask == 0;
        let matching = state.entries.iter().position(|entry| entry.as_ref().is_some_and(hit));
        let entry = matching.and_then(|index| state.entries[index]);
        state.described.value = entry.map_or(0, |entry| entry.value);
        state.result = matching.map_or(0, |index| FOUND.with(index as u64) | HIT.mask());
    }

    fn command(&mut self, command: u64) {
        let Self { spec, state } = self;
        let fits = |value: u64, bits: u32| bits >= 64 || value >> bits == 0;
        let is = &state.described;
        let narrow = fits(is.key, spec.key_bits)
            && fits(is.mask, spec.key_bits)
            && fits(is.value, spec.value_bits)
            && fits(is.space, spec.space_bits);
        let entry = usize::try_from(state.index).ok().and_then(|index| state.entries.get_mut(index));
        let Some(entry) = entry.filter(|_| narrow || !WRITE.is_set(command)) else {
            state.result = REFUSED.mask();
            return;
        };
        state.result = FOUND.with(state.index) | HIT.with(entry.is_some().into());
        if READ.is_set(command) {
            state.described = entry.unwrap_or_default();
        }
        if CLEAR.is_set(command) {
            *entry = None;
        }
        if WRITE.is_set(command) {
            *entry = Some(state.described);
        }
    }

    fn find(offset: u64, width: u32) -> Option<(Slot, CamRegister)> {
        MAP.find(offset, width).map(|slot| (slot, CamRegister::ALL[slot.register]))
    }
}

impl Device for Cam {
    fn registers(&self) -> &'static RegisterMap {
        &MAP
    }

    fn read(&mut self, offset: u64, width: u32, _: Time, _: &mut dyn Bus) -> Answer {
        let value = Self::find(offset, width).map_or(0, |(slot, register)| slot.part(self.value(register)));
        Answer { value, takes: self.spec.search }
    }

    fn write(&mut self, offset: u64, width: u32, value: u64, _: Time, _: &mut dyn Bus) -> Duration {
        let Some((slot, register)) = Self::find(offset, width) else { return self.spec.write };
        if let Some(value) = slot.merge(self.value(register), value) {
            self.set(register, value);
        }
        match register {
            CamRegister::Search => self.spec.search,
            _ => self.spec.write,
        }
    }

    fn next_event(&self) -> Option<Time> {
        None
    }

    fn advance(&mut self, _: Time, _: &mut dyn Bus) {}

    fn interrupts(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlainBus;
    use proptest::prelude::*;

    fn spec() -> CamSpec {
        let takes = Duration::from_ps(2500);
        CamSpec { entries: 8, key_bits: 64, value_bits: 64, space_bits: 8, search: takes, write: takes }
    }

    struct Bench(Cam, PlainBus);

    impl Bench {
        fn set(&mut self, register: CamRegister, value: u64) {
            let offset = CAM[register as usize].offset.into();
            self.0.write(offset, 8, value, Time::ZERO, &mut self.1);
        }

        fn get(&mut self, register: CamRegister) -> u64 {
            self.0.read(CAM[register as usize].offset.into(), 8, Time::ZERO, &mut self.1).value
        }

        fn write_entry(&mut self, index: u64, entry: Entry) {
            self.set(CamRegister::Space, entry.space);
            self.set(CamRegister::Key, entry.key);
            self.set(CamRegister::Mask, entry.mask);
            self.set(CamRegister::Value, entry.value);
            self.set(CamRegister::Index, index);
            self.set(CamRegister::Command, WRITE.mask());
        }
    }

    proptest! {
        #[test]
        fn a_search_matches_a_linear_search(
            entries in proptest::collection::vec((0u64..10, 0u64..16, 0u64..16, any::<u64>(), 0u64..3), 0..20),
            keys in proptest::collection::vec((0u64..16, 0u64..3), 1..20),
        ) {
            let mut bench = Bench(Cam::new(spec()), PlainBus::new());
            let mut list = [None; 8];
            for (index, key, mask, value, space) in entries {
                let entry = Entry { key, mask, value, space };
                bench.write_entry(index, entry);
                let is_refused = REFUSED.is_set(bench.get(CamRegister::Result));
                prop_assert_eq!(is_refused, index >= 8);
                if let Some(slot) = list.get_mut(index as usize) {
                    *slot = Some(entry);
                }
            }
            for (key, space) in keys {
                bench.set(CamRegister::Space, space);
                bench.set(CamRegister::Search, key);
                let hit = |e: &Option<Entry>| e.is_some_and(|e| e.space == space && (e.key ^ key) & e.mask == 0);
                let expected = list.iter().position(hit);
                let result = bench.get(CamRegister::Result);
                prop_assert_eq!(HIT.is_set(result).then(|| FOUND.of(result) as usize), expected);
                let value = expected.and_then(|index| list[index]).map_or(0, |e| e.value);
                prop_assert_eq!(bench.get(CamRegister::Value), value);
            }
            let text = serde_json::to_string(bench.0.state()).unwrap();
            let restored = Cam::restore(spec(), serde_json::from_str(&text).unwrap()).unwrap();
            prop_assert_eq!(restored.state(), bench.0.state());
        }

        #[test]
        fn no_access_panics(accesses in proptest::collection::vec((0u64..0x60, 0u32..10, any::<u64>()), 0..100)) {
            let mut bench = Bench(Cam::new(spec()), PlainBus::new());
            for (offset, width, value) in accesses {
                bench.0.write(offset, width, value, Time::ZERO, &mut bench.1);
                bench.0.read(offset, width, Time::ZERO, &mut bench.1);
            }
        }
    }

    #[test]
    fn a_field_too_wide_for_the_table_is_rejected() {
        let mut bench = Bench(Cam::new(spec()), PlainBus::new());
        bench.write_entry(0, Entry { key: 1, mask: 1, value: 1, space: 0x100 });
        assert!(REFUSED.is_set(bench.get(CamRegister::Result)));
        assert_eq!(bench.0.state().entries[0], None);
    }
}
