//! Threads that always miss, with few miss registers. While one waits, another's access is in flight, so the total
//! never exceeds that of serial execution. The tests of the memory crate check the number of outstanding misses.

use longma_loongarch::{Instruction, Op};
use longma_memory::{Detail, MemoryPort, MemorySystem, placement::SpaceId};
use longma_sim::{Clock, Cycle};
use longma_timing::{ModelKind::OutOfOrder, TimingModel};
use longma_topology::Machine;
use longma_trace::Trace;
use proptest::prelude::*;

use crate::program::*;

const BASE: u64 = 0x100_0000;
const LINE: u64 = 64;
/// Loop iterations in a turn of a core without contention: about 1024 words of trace.
const LONG_TURN: usize = 128;
/// Cycles of a turn of a contending core.
const CLOSE_TURN: u64 = 16;

fn cases() -> ProptestConfig {
    let asked = std::env::var("LONGMA_CORE_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig::with_cases(asked.unwrap_or(24))
}

/// The 3A5000 with `registers` miss registers in the cache `level` of each core, and the clock of its cores.
fn system(level: &str, registers: u64) -> (MemorySystem, Clock) {
    let (_, mut text) = Machine::text("loongson-3a5000").unwrap();
    let position = text.find(level).unwrap();
    let position = position + text[position..].find("mshrs = 16").unwrap();
    text.replace_range(position..position + "mshrs = 16".len(), &format!("mshrs = {registers}"));
    let machine = Machine::parse("test.toml", &text).unwrap_or_else(|report| panic!("{report}"));
    let hz = machine.parts().cores.values().next().unwrap().clock.hz();
    (MemorySystem::new(&machine, 0, Detail::Timing, 1).unwrap(), Clock::new(hz).unwrap())
}

/// A loop body of random loads, stores and atomic operations.
fn body() -> impl Strategy<Value = Vec<Instruction>> {
    let access = prop_oneof![Just(Op::LdD), Just(Op::StD), Just(Op::AmaddD), Just(Op::AmaddDbD)];
    prop::collection::vec(access, 2..5).prop_map(|ops| {
        ops.into_iter()
            .map(|operation| {
                if operation == Op::LdD || operation == Op::StD {
                    op(operation, 12, 5, 0)
                } else {
                    op(operation, 12, 5, 6)
                }
            })
            .collect()
    })
}

struct Thread {
    model: TimingModel,
    /// Addresses of the accesses in each iteration.
    rounds: Vec<Vec<u64>>,
    done: usize,
}

/// Cycles until all threads are done, each on its own core.
fn takes(
    (system, clock): &mut (MemorySystem, Clock),
    body: &[Instruction],
    rounds: Vec<Vec<Vec<u64>>>,
) -> u64 {
    let mut code = Program::default();
    let loop_branch = Instruction { imm: -4 * (body.len() as i32 + 1), ..op(Op::Bne, 4, 6, 0) };
    let around = code.block(&[body, &[op(Op::AddiD, 4, 4, 0), loop_branch]].concat());
    let mut threads: Vec<_> =
        rounds.into_iter().map(|rounds| Thread { model: model(OutOfOrder, &[]), rounds, done: 0 }).collect();
    let earliest = |threads: &[Thread]| {
        let left = threads.iter().enumerate().filter(|(_, thread)| thread.done < thread.rounds.len());
        left.min_by_key(|(_, thread)| thread.model.now().0).map(|(number, _)| number)
    };
    while let Some(number) = earliest(&threads) {
        let thread = &mut threads[number];
        let begins = thread.model.now().0;
        let contends = system.begin_turn(number, clock.start_of(begins).unwrap());
        for nth in 1..=LONG_TURN {
            let Some(addresses) = thread.rounds.get(thread.done) else { break };
            code.trace = Trace::default();
            code.run(around, addresses);
            let mut port = system.port(number);
            port.set_space(SpaceId(0));
            code.cycles(&mut thread.model, &mut port);
            thread.done += 1;
            let is_turn_over = system.took_line(number) || thread.model.now().0 >= begins + CLOSE_TURN;
            if contends && is_turn_over || nth == LONG_TURN {
                break;
            }
        }
        system.end_turn(number, clock.start_of(thread.model.now().0).unwrap());
    }
    threads.iter().map(|thread| thread.model.now().0).max().unwrap()
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn threads_that_miss_take_no_longer_than_serial_misses(
        level in prop_oneof![Just("[caches.l1d]"), Just("[caches.l2]")],
        registers in 1u64..9,
        body in body(),
        threads in 2usize..5,
        shared in 8u64..200,
        seed in any::<u64>(),
    ) {
        let mut random = seed | 1;
        let mut line = || {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            BASE + (random >> 33) % shared * LINE
        };
        let accesses = body.len();
        let rounds: Vec<Vec<Vec<u64>>> =
            (0..threads).map(|_| (0..400).map(|_| (0..accesses).map(|_| line()).collect()).collect()).collect();
        let total = (threads * 400 * accesses) as u64;
        // Time of a load of a line from memory, including its translation.
        let mut fresh = system(level, registers);
        let mut port = fresh.0.port(0);
        port.set_space(SpaceId(0));
        let unloaded = port.load(BASE, 8, 0x1000, Cycle(1000)).ready.0 - 1000;
        let cycles = takes(&mut system(level, registers), &body, rounds);
        prop_assert!(cycles <= total * unloaded, "{cycles} cycles for {total} accesses of at most {unloaded} each");
    }
}
