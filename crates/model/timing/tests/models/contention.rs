//! Cores that store to one line of the 3A5000's memory, in turns like those of a run. `longma-runner` runs the guest
//! `contention` for real threads.

use longma_loongarch::{Instruction, Op};
use longma_memory::{Detail, MemoryPort, MemorySystem, placement::SpaceId};
use longma_sim::{Clock, Cycle};
use longma_timing::{
    ModelKind::{self, InOrder, OutOfOrder},
    TimingModel,
};
use longma_topology::Machine;
use proptest::prelude::*;

use crate::program::*;

const LINE: u64 = 0x10_0000;
/// Entries of the store queue in the machine file.
const STORES: u64 = 48;
/// Loop iterations in a turn of a core without contention: 1024 words of trace, two per iteration.
const LONG_TURN: u64 = 512;
/// Cycles of a turn of a contending core.
const CLOSE_TURN: u64 = 16;

/// The memory system of the machine and the clock of its cores.
fn system() -> (MemorySystem, Clock) {
    let machine = Machine::open("loongson-3a5000").unwrap();
    let hz = machine.parts().cores.values().next().unwrap().clock.hz();
    (MemorySystem::new(&machine, 0, Detail::Timing, 1).unwrap(), Clock::new(hz).unwrap())
}

/// Cycles between the arrival of a line at one core and at the next, which requested it in the meantime.
fn line_transfer() -> u64 {
    let (mut system, _) = system();
    let mut ready = |core: usize, now: u64| {
        let mut port = system.port(core);
        port.set_space(SpaceId(0));
        port.store(LINE, 8, 0x1000, Cycle(now)).ready.0
    };
    (0..2).for_each(|core| _ = ready(core, 10_000 * core as u64));
    let first = ready(0, 20_000);
    ready(1, 20_001) - first
}

/// A core that stores in a loop.
struct Storing {
    model: TimingModel,
    address: u64,
    began: u64,
    left: u64,
}

/// Threads that store, each on its own core, with the start of each relative to the first, cycles.
struct Stores<'a> {
    kind: ModelKind,
    /// The storing instruction.
    how: Instruction,
    begin: &'a [u64],
    /// Distance of their words, bytes.
    apart: u64,
    /// Number of stores per thread.
    stores: u64,
}

impl Stores<'_> {
    /// Cycles of the slowest thread.
    fn longest(&self) -> u64 {
        let (mut system, clock) = system();
        let mut code = Program::default();
        let loop_branch = Instruction { imm: -8, ..op(Op::Bne, 4, 6, 0) };
        let around = code.block(&[self.how, op(Op::AddiD, 4, 4, 0), loop_branch]);
        let run = |address: u64| {
            let mut one = Program::default();
            one.blocks.clone_from(&code.blocks);
            one.run(around, &[address]);
            one
        };
        let core = |(number, begin): (usize, &u64)| {
            let mut model = model(self.kind, &[]);
            let mut port = system.port(number);
            port.set_space(SpaceId(0));
            // Warm up code, translations and branch predictor.
            (0..200).for_each(|_| _ = run(LINE + 64 * (1 + number as u64)).cycles(&mut model, &mut port));
            let began = 10_000 + begin;
            model.pass_to(Cycle(began));
            Storing { model, address: LINE + self.apart * number as u64, began, left: self.stores }
        };
        let mut cores: Vec<_> = self.begin.iter().enumerate().map(core).collect();
        let earliest = |cores: &[Storing]| {
            let left = cores.iter().enumerate().filter(|(_, core)| core.left > 0);
            left.min_by_key(|(_, core)| core.model.now().0).map(|(number, _)| number)
        };
        while let Some(number) = earliest(&cores) {
            let core = &mut cores[number];
            let begins = core.model.now().0;
            let contends = system.begin_turn(number, clock.start_of(begins).unwrap());
            let mut runs = 0;
            while core.left > 0 {
                let mut port = system.port(number);
                port.set_space(SpaceId(0));
                run(core.address).cycles(&mut core.model, &mut port);
                core.left -= 1;
                runs += 1;
                let now = core.model.now().0;
                let is_turn_over = system.took_line(number) || now >= begins + CLOSE_TURN;
                if contends && is_turn_over || runs == LONG_TURN {
                    break;
                }
            }
            system.end_turn(number, clock.start_of(core.model.now().0).unwrap());
        }
        cores.iter().map(|core| core.model.now().0 - core.began).max().unwrap()
    }
}

/// Expected cycles for `stores` more stores by each of `threads` threads: they get the line in rotation, and each
/// arrival completes the contents of a store queue.
fn expected_cycles(threads: usize, stores: u64) -> f64 {
    (threads as u64 * line_transfer() * stores) as f64 / STORES as f64
}

fn store() -> Instruction {
    op(Op::StD, 4, 5, 0)
}

fn threads() -> impl Strategy<Value = (ModelKind, Vec<u64>, u64)> {
    let kind = prop_oneof![Just(OutOfOrder), Just(InOrder)];
    (kind, prop::collection::vec(0u64..300, 2..=4), prop_oneof![Just(0u64), Just(8), Just(16)])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn each_atomic_addition_to_a_contended_line_is_a_line_transfer(
        (kind, begin, apart) in threads(), additions in 2000u64..4000, barrier in any::<bool>(),
    ) {
        let instruction = op(if barrier { Op::AmaddDbD } else { Op::AmaddD }, 7, 5, 6);
        let takes = |stores| Stores { kind, how: instruction, begin: &begin, apart, stores }.longest() as f64;
        let more = takes(2 * additions) - takes(additions);
        let expected = (begin.len() as u64 * line_transfer() * additions) as f64;
        prop_assert!((more / expected - 1.0).abs() < 0.05, "{more} cycles, {expected} expected from line transfers");
    }

    #[test]
    fn the_cost_of_a_store_to_a_contended_line_follows_from_line_transfers((kind, begin, apart) in threads(), stores in 2000u64..4000) {
        let takes = |stores| Stores { kind, how: store(), begin: &begin, apart, stores }.longest() as f64;
        let (some, twice) = (takes(stores), takes(2 * stores));
        let (more, expected) = (twice - some, expected_cycles(begin.len(), stores));
        prop_assert!((more / expected - 1.0).abs() < 0.05, "{more} cycles, {expected} expected from line transfers");
    }

    #[test]
    fn the_cost_of_a_contended_store_depends_neither_on_the_number_of_stores_nor_on_a_few_cycles(
        (kind, mut begin, apart) in threads(), stores in 1000u64..4000, (core, later) in (0usize..4, 1u64..20),
    ) {
        let takes = |begin: &[u64], stores| Stores { kind, how: store(), begin, apart, stores }.longest();
        let some = takes(&begin, stores);
        // A few more stores take at most one more round of transfers.
        let round = begin.len() as u64 * (line_transfer() + 4);
        for more in 1..4 {
            let neighbour = takes(&begin, stores + more);
            prop_assert!(neighbour.abs_diff(some) <= round, "{some} cycles, {neighbour} with {more} more stores");
        }
        let core = core % begin.len();
        begin[core] += later;
        let other = takes(&begin, stores);
        prop_assert!((other as f64 / some as f64 - 1.0).abs() < 0.05, "{some} cycles, {other} if one thread begins {later} later");
    }
}
