//! The length of turns. A core sees other cores' stores only at the start of its turns, so cores that share data need
//! short ones.

use longma_core::{ConfigurationWords, Execution, SharedCode};
use longma_guest::{AddressSpace, GuestMemory, Protection, host::faults};
use longma_linux::simulated::ThreadNumber;
use longma_loongarch::{State, encode};
use longma_memory::MemoryPort;
use proptest::prelude::*;

use super::*;

const CODE: u64 = 0x1_0000_0000;
const DATA: u64 = 0x1_1000_0000;
const DATA_BYTES: u64 = 64 << 20;
/// A line outside the program's memory.
const LINE: u64 = 0x20_0000;

struct Unwatched;

impl longma_core::Watch for Unwatched {
    fn watch(&self, _: u64) {}
}

/// An address space that contains a program.
fn memory(program: &[Instruction]) -> AddressSpace {
    faults::install();
    faults::prepare_thread();
    let space = AddressSpace::new(GuestMemory::reserve().unwrap());
    space.map_zeros(CODE, 0x1_0000, Protection::from_bits(7)).unwrap();
    space.map_zeros(DATA, DATA_BYTES, Protection::from_bits(3)).unwrap();
    let words: Vec<u8> =
        program.iter().flat_map(|instruction| encode(instruction).unwrap().to_le_bytes()).collect();
    space.memory().write(CODE, &words).unwrap();
    space
}

/// A core at the start of the program in `space`, with these registers.
fn guest(space: &AddressSpace, registers: &[(usize, u64)]) -> Core {
    let mut state = State { pc: CODE, ..State::default() };
    registers.iter().for_each(|&(number, value)| state.x[number] = value);
    let execution = Execution { tracing: true, ..Execution::default() };
    let code = SharedCode::new(space.memory(), execution, Arc::new(Unwatched)).unwrap();
    Core::new(state, space.memory().clone(), ConfigurationWords::default(), code).unwrap()
}

fn op(op: Op, d: u8, j: u8, k: u8) -> Instruction {
    Instruction { d, j, k, ..Instruction::new(op) }
}

/// A pointer chase, each load from another page: starts at `DATA`, advances by register 6 and wraps around.
fn chase() -> Vec<Instruction> {
    vec![
        op(Op::LdxD, 5, 8, 4),
        op(Op::AddD, 4, 4, 5),
        op(Op::AddD, 4, 4, 6),
        op(Op::And, 4, 4, 7),
        Instruction { imm: -16, ..Instruction::new(Op::B) },
    ]
}

fn chasing(space: &AddressSpace) -> Core {
    guest(space, &[(6, 0x1_1040), (7, DATA_BYTES - 64), (8, DATA)])
}

/// Simulates a turn of `core` from `start` on, and returns its end.
fn turn(simulation: &mut TimingSimulation, core: usize, guest: &mut Core, start: Time) -> Time {
    // Pretend that there are two threads.
    simulation.threads = 2;
    let slot = ThreadSlot { core, thread: ThreadNumber(core as u32), start, alone: false };
    let (stop, end) = simulation.run_quantum(slot, guest);
    assert_eq!(stop, Stop::Quantum);
    end
}

/// Two cores write the same line at `at`, one after the other.
fn meet(simulation: &mut TimingSimulation, at: Time) {
    for core in [1, 0] {
        let cycle = simulation.cores[core].cycle_at(at);
        let mut port = simulation.memory.port(core);
        port.set_space(SpaceId(0));
        port.store(LINE, 8, 0x1000, cycle);
    }
}

const US: u64 = 1_000_000;

fn cases() -> ProptestConfig {
    ProptestConfig::with_cases(6)
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn the_delay_between_contending_cores_is_a_fraction_of_the_time_since_they_met(
        in_order in any::<bool>(), apart_us in 0u64..800,
    ) {
        let space = memory(&chase());
        let mut core = chasing(&space);
        let mut simulation = simulation(if in_order { ModelKind::InOrder } else { ModelKind::OutOfOrder });
        // The first turn measures how many trace words a core executes in a cycle.
        let first_turn = turn(&mut simulation, 0, &mut core, Time::ZERO);
        meet(&mut simulation, first_turn);
        let mut now = Time::from_ps(first_turn.ps() + apart_us * US);
        for _ in 0..3 {
            let end = turn(&mut simulation, 0, &mut core, now);
            let (lasted, apart) = (end.ps() - now.ps(), now.ps() - first_turn.ps());
            // The turn ends with a block that waits for memory, and a part may have more misses than the previous one.
            prop_assert!(lasted < (apart / 16).max(US / 2) + 2 * US, "{lasted} ps, {apart} ps after they met");
            now = end;
        }
    }
}

#[test]
fn a_core_without_contention_runs_full_turns() {
    let space = memory(&chase());
    let mut core = chasing(&space);
    let mut simulation = simulation(ModelKind::OutOfOrder);
    let end = turn(&mut simulation, 0, &mut core, Time::ZERO);
    assert!(end.ps() > 30 * US, "512 misses take {} ps", end.ps());
}

#[test]
fn additions_to_a_shared_word_are_transfers_after_a_microsecond() {
    let add = vec![op(Op::AmaddD, 12, 5, 6), Instruction { imm: -4, ..Instruction::new(Op::B) }];
    for kind in [ModelKind::InOrder, ModelKind::OutOfOrder] {
        let space = memory(&add);
        let registers = [(5, DATA), (6, 1)];
        let mut guests = [guest(&space, &registers), guest(&space, &registers)];
        let mut simulation = simulation(kind);
        meet(&mut simulation, Time::ZERO);
        let mut now = [Time::from_ps(US); 2];
        let started_ps = now[0].ps();
        while now.iter().min().unwrap().ps() < started_ps + 20 * US {
            let core = usize::from(now[1] < now[0]);
            now[core] = turn(&mut simulation, core, &mut guests[core], now[core]);
        }
        let mut sum = [0; 8];
        space.memory().read(DATA, &mut sum).unwrap();
        let sum = u64::from_le_bytes(sum);
        // Transfers take 16.8 ns. Before the first one, each core completes at most one addition a nanosecond.
        let limit = (now.iter().max().unwrap().ps() - started_ps) / 16_000 + 2 * 200;
        assert!(sum <= limit, "{kind:?}: {sum} additions, {limit} at most");
        println!("{kind:?}: {sum} additions");
    }
}
