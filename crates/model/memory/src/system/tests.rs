//! Random programs on small caches of every machine: the invariants hold, and every access gets the newest data from
//! its actual location.
//!
//! Source: a flat memory with a version number per line, as in gem5's Ruby random tester.

use super::*;
use crate::cache::{Flags, Line};
use crate::interconnect::Endpoint;
use crate::port::{MemoryPort, Source};
use longma_sim::{Cycle, Time};
use longma_topology::{BUILTIN, Machine};
use proptest::prelude::*;
use std::collections::BTreeMap;

const SPACE: SpaceId = SpaceId(0);

/// The text of a built-in machine with all cache sizes divided by 64, so that evictions are frequent.
fn small(name: &str) -> String {
    let (_, text) = Machine::text(name).unwrap();
    let mut in_cache = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.starts_with('[') {
            in_cache = line.starts_with("[caches.");
        }
        let size = line.strip_prefix("size = \"").filter(|_| in_cache).and_then(|rest| rest.split_once('"'));
        match size.map(|(size, _)| size.parse::<longma_topology::units::Size>().unwrap()) {
            Some(size) => lines.push(format!("size = \"{} B\"", size.bytes() / 64)),
            None => lines.push(line.into()),
        }
    }
    lines.join("\n")
}

fn machine(text: &str) -> Machine {
    Machine::parse("small.toml", text).unwrap_or_else(|report| panic!("{report}"))
}

/// An operation of a random program.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Load,
    Store,
    Fetch,
    Prefetch,
    DeviceWrite(Allocate, u64),
    DeviceRead,
}

fn operation() -> impl Strategy<Value = (Operation, usize, u64)> {
    let allocate = prop_oneof![
        Just(Allocate::No),
        Just(Allocate::LockedOnly),
        (0u32..3).prop_map(|ways| Allocate::Shared { ways })
    ];
    let kind = prop_oneof![
        6 => Just(Operation::Load),
        6 => Just(Operation::Store),
        2 => Just(Operation::Fetch),
        1 => Just(Operation::Prefetch),
        1 => (allocate, 1u64..=64).prop_map(|(allocate, bytes)| Operation::DeviceWrite(allocate, bytes)),
        1 => Just(Operation::DeviceRead),
    ];
    // A few lines that all cores access, many that fill the caches, and some that map to one set.
    let line = prop_oneof![3 => 0u64..12, 2 => 0u64..3000, 1 => (0u64..64).prop_map(|n| n * 256)];
    (kind, any::<usize>(), line)
}

/// A reference memory of version numbers.
struct Flat {
    system: MemorySystem,
    /// Stores to each line so far.
    newest: BTreeMap<Line, u64>,
    /// The version of each line in memory.
    memory: BTreeMap<Line, u64>,
    now: u64,
}

/// Where the newest version of a line is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Newest {
    Core(usize),
    Shared(usize),
    Memory,
}

impl Flat {
    fn new(machine: &Machine, detail: Detail, seed: u64) -> Self {
        let system = MemorySystem::new(machine, 0, detail, seed).unwrap();
        Self { system, newest: BTreeMap::new(), memory: BTreeMap::new(), now: 0 }
    }

    fn line_of(&mut self, virtual_line: u64, core: usize) -> Line {
        let address = virtual_line << self.system.line_bits;
        let bytes = self.system.path.spaces.page_bytes();
        let node = self.system.cores[core].node;
        let page = self.system.path.spaces.translate(SPACE, address / bytes, node);
        Line((page.0 * bytes + address % bytes) >> self.system.line_bits)
    }

    fn where_is(&self, line: Line) -> Newest {
        let dirty =
            |tags: &crate::cache::Tags| tags.find(line).is_some_and(|s| tags.flags(s).has(Flags::DIRTY));
        for (core, private) in self.system.cores.iter().enumerate() {
            if dirty(&private.data.tags) || private.second.as_ref().is_some_and(|l2| dirty(&l2.tags)) {
                return Newest::Core(core);
            }
        }
        let shared = |d: &Domain| d.shared.as_ref().is_some_and(|s| dirty(&s.tags));
        self.system.domains.iter().position(shared).map_or(Newest::Memory, Newest::Shared)
    }

    /// Performs one operation and checks that the data came from the location of the newest version.
    fn run(&mut self, step: Operation, core: usize, virtual_line: u64) {
        let core = core % self.system.cores();
        let line = self.line_of(virtual_line, core);
        let (before, transfers) = (self.where_is(line), self.system.messages.transfers);
        let version = self.newest.get(&line).copied().unwrap_or(0);
        let in_memory = self.memory.get(&line).copied().unwrap_or(0);
        assert!(
            before != Newest::Memory || in_memory == version,
            "{line:?}: no cache or memory has version {version}"
        );
        let (address, physical) = (virtual_line << self.system.line_bits, line.0 << self.system.line_bits);
        let at = Time::from_ps(self.now * 1000);
        let port = Endpoint::Cache(self.system.domains[0].shared.as_ref().map_or(0, |s| s.instance));
        let port = if self.system.domains[0].shared.is_some() { port } else { Endpoint::Core(0) };
        let mut access = None;
        match step {
            Operation::Load => access = Some(self.system.port(core).load(address, 8, 0x40, Cycle(self.now))),
            Operation::Store => {
                access = Some(self.system.port(core).store(address, 8, 0x44, Cycle(self.now)))
            }
            Operation::Fetch => access = Some(self.system.port(core).fetch(address, Cycle(self.now))),
            Operation::Prefetch => self.system.port(core).prefetch(address, 0x48, Cycle(self.now)),
            Operation::DeviceWrite(allocate, bytes) => {
                let bytes = bytes.min(self.system.line_bytes());
                assert!(self.system.device_write(port, physical, bytes, allocate, at) >= at);
            }
            Operation::DeviceRead => assert!(self.system.device_read(port, physical, 8, at) >= at),
        }
        // A store that completes together with older ones, before the line moves to another core, does not create the
        // newest version.
        let with_others = matches!(step, Operation::Store) && self.gives_away(core, line);
        if let Some(answer) = access {
            assert!(answer.ready.0 >= self.now);
            match with_others {
                true => assert_eq!(answer.source, Source::Level1),
                false => self.supplied(core, line, before, answer.source, transfers),
            }
        }
        let stored = matches!(step, Operation::Store | Operation::DeviceWrite(..)) && !with_others;
        if stored {
            self.newest.insert(line, version + 1);
        }
        for (written, is_new) in std::mem::take(&mut self.system.messages.written) {
            let newest = self.newest.get(&written).copied().unwrap_or(0);
            // A cache's copy was written back before this step's store.
            let wrote_line = stored && written == line && !is_new;
            self.memory.insert(written, if wrote_line { version } else { newest });
        }
        if stored {
            let other_cores =
                (0..self.system.cores()).filter(|c| *c != core || !matches!(step, Operation::Store));
            let stale = other_cores.into_iter().find(|c| self.system.cores[*c].has(line));
            assert_eq!(stale, None, "a core kept line {line:?} after {step:?} by core {core}");
        }
        self.now += 7;
    }

    /// Returns whether a line that `core` may not write is still in flight to it and promised to another core.
    fn gives_away(&self, core: usize, line: Line) -> bool {
        let private = &self.system.cores[core];
        let writes = private
            .data
            .tags
            .find(line)
            .is_some_and(|slot| private.data.tags.flags(slot).has(Flags::WRITABLE));
        !writes && private.promised.arrival(line, self.now).is_some()
    }

    fn supplied(&self, core: usize, line: Line, newest: Newest, source: Source, transfers: u64) {
        let own_domain = self.system.cores[core].domain;
        let moved = self.system.messages.transfers > transfers;
        let good = match newest {
            Newest::Core(holder) if holder == core => {
                matches!(source, Source::Level1 | Source::Level2) || !moved
            }
            Newest::Core(_) => moved && matches!(source, Source::Peer | Source::Remote),
            Newest::Shared(domain) if domain == own_domain => {
                !matches!(source, Source::LocalMemory | Source::Remote)
            }
            Newest::Shared(_) => moved && matches!(source, Source::Peer | Source::Remote),
            Newest::Memory => true,
        };
        assert!(good, "core {core} got {line:?} from {source:?}, but the newest was in {newest:?}");
    }
}

fn run_all(
    machine: &Machine,
    detail: Detail,
    steps: &[(Operation, usize, u64)],
) -> Result<(), TestCaseError> {
    let mut flat = Flat::new(machine, detail, 3);
    for (n, (step, core, line)) in steps.iter().enumerate() {
        flat.run(*step, *core, *line);
        if n % 128 == 127 {
            prop_assert_eq!(flat.system.check(), Ok(()), "{} after step {}", machine.name, n);
        }
    }
    prop_assert_eq!(flat.system.check(), Ok(()), "{}", machine.name);
    Ok(())
}

/// Number of random programs; the environment variable allows longer runs.
fn cases() -> u32 {
    std::env::var("LONGMA_COHERENCE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn every_access_finds_the_last_store_on_every_machine(steps in prop::collection::vec(operation(), 1500)) {
        for builtin in BUILTIN {
            run_all(&machine(&small(builtin.name)), Detail::Counts, &steps)?;
        }
    }

    #[test]
    fn the_rules_also_hold_with_timing(steps in prop::collection::vec(operation(), 600)) {
        for name in ["loongson-3a5000", "hygon-8node", "piii-myrinet"] {
            run_all(&machine(&small(name)), Detail::Timing, &steps)?;
        }
    }

    #[test]
    fn the_rules_also_hold_for_other_inclusions_and_write_through(steps in prop::collection::vec(operation(), 1500)) {
        let text = small("sandybridge-2x6");
        let l3 = "inclusion = \"inclusive\"\ncoherence";
        assert!(text.contains(l3));
        for inclusion in ["non-inclusive", "exclusive"] {
            let text = text.replace(l3, &format!("inclusion = \"{inclusion}\"\ncoherence"));
            run_all(&machine(&text), Detail::Counts, &steps)?;
        }
        for name in ["sandybridge-2x6", "loongson-3a5000", "hygon-8node"] {
            let text = small(name);
            let of = |cache: &str| format!("[caches.{cache}]\n");
            let through = |cache: &str| format!("[caches.{cache}]\nwrite = \"through\"\n");
            let first = text.replace(&of("l1d"), &through("l1d"));
            let second = text.replace(&of("l2"), &through("l2"));
            let both = first.replace(&of("l2"), &through("l2"));
            for text in [first, second, both] {
                run_all(&machine(&text), Detail::Counts, &steps)?;
            }
        }
    }
}
