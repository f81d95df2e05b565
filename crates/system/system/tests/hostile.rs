//! Tests hostile software: random words run in privileged mode with random registers. The machine must return after the
//! given cycles without a panic, and the interpreter and translated code must have the same result.

use std::io::{Cursor, Seek};

use longma_loongarch::{Extension, Op, encode};
use longma_system::checkpoint::Checkpoint;
use longma_system::csr::table;
use longma_system::{Configuration, Machine, Stop, map};
use proptest::prelude::*;

const CODE: u64 = 0x20_0000;
const CYCLES: u64 = 20_000;
const INSTRUCTIONS: usize = 64;
/// Cycles of the run that is compared with single steps.
const STEPS: u64 = 1_000;

/// Addresses of memory, of devices, and of neither.
const ADDRESSES: [u64; 16] = [
    CODE,
    0x8000,
    map::UART,
    map::PCH_PIC,
    map::RTC,
    map::POWER - 4,
    map::MESSAGES,
    map::PCI_CONFIG + (1 << 11),
    map::PCI_MEMORY,
    map::PCI_MEMORY + 0x3000,
    map::LOW_MEMORY_BYTES - 4,
    map::HIGH_MEMORY,
    0x9000_0000_0020_0000,
    0xffff_8000_0000_0ffc,
    0x1000,
    u64::MAX - 3,
];

/// A random word, or a privileged instruction or memory access with random operands.
fn word() -> impl Strategy<Value = u32> {
    let privileged: Vec<Op> =
        Op::all().filter(|op| matches!(op.row().extension, Extension::Privileged | Extension::Lvz)).collect();
    let memory: Vec<Op> = Op::all().filter(|op| !op.row().reads.is_empty()).collect();
    let with_operands = |ops: Vec<Op>| {
        (prop::sample::select(ops), any::<u32>())
            .prop_map(|(op, bits)| op.row().matched | bits & !op.row().mask)
    };
    let csr = (prop::sample::select(table::ROWS), any::<u16>()).prop_map(|(row, registers)| {
        Op::Csrxchg.row().matched | u32::from(row.number) << 10 | u32::from(registers) & 0x3ff
    });
    prop_oneof![1 => any::<u32>(), 3 => with_operands(privileged), 3 => csr, 4 => with_operands(memory)]
}

fn register() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (prop::sample::select(&ADDRESSES[..]), 0u64..64)
            .prop_map(|(start, offset)| start.wrapping_add(offset)),
        // Numbers of CSRs and addresses in IOCSR space.
        0u64..0x2000,
    ]
}

fn machine(cores: usize, translation: bool, words: &[u32], registers: &[u64]) -> Machine {
    let configuration =
        Configuration { cores, translation, memory_bytes: 64 << 20, ..Configuration::default() };
    let mut machine = Machine::new(&configuration).expect("the host has memory");
    machine.attach_entropy(1).expect("the bus has room");
    let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    // Exception handlers run the same code: EENTRY and TLBRENTRY are 0 after reset.
    for address in [0, 0x1000, CODE] {
        machine.memory().write(address, &code).expect("it is in memory");
    }
    let state = machine.state_mut();
    state.pc = CODE;
    for (number, value) in registers.iter().enumerate() {
        state.set_r(number as u8 + 1, *value);
    }
    machine
}

fn run(
    cores: usize,
    translation: bool,
    words: &[u32],
    registers: &[u64],
) -> (Vec<Stop>, u64, Vec<u64>, Vec<u8>) {
    let mut machine = machine(cores, translation, words, registers);
    let mut stops = Vec::new();
    for _ in 0..4 {
        let before = machine.cycles();
        stops.push(machine.run(CYCLES));
        assert!(machine.cycles() - before <= CYCLES + 1);
        machine.type_on_console(b"input\n");
    }
    let output = machine.take_console_output();
    let state = machine.state();
    assert_eq!(state.r(0), 0);
    (stops, machine.cycles(), state.x.to_vec(), output)
}

/// All that is saved of a machine.
fn contents(machine: &Machine) -> Vec<u8> {
    let mut file = Vec::new();
    machine.save("".into(), &mut file).expect("it can be saved");
    file
}

proptest! {
    #[test]
    fn single_steps_lead_to_the_same_state_as_a_long_run(
        words in prop::collection::vec(word(), INSTRUCTIONS),
        registers in prop::collection::vec(register(), 31),
    ) {
        let mut whole = machine(1, true, &words, &registers);
        let mut stepped = machine(1, false, &words, &registers);
        whole.run(STEPS);
        for _ in 0..STEPS {
            if let Stop::PowerOff | Stop::Reset = stepped.run(1) {
                break;
            }
        }
        prop_assert_eq!(whole.cycles(), stepped.cycles());
        prop_assert_eq!(whole.state(), stepped.state());
        prop_assert_eq!(whole.take_console_output(), stepped.take_console_output());
        for row in table::ROWS {
            prop_assert_eq!(whole.csr(row.number), stepped.csr(row.number), "{}", row.name);
        }
    }

    #[test]
    fn a_restored_machine_does_the_same_as_one_that_goes_on(
        words in prop::collection::vec(word(), INSTRUCTIONS),
        registers in prop::collection::vec(register(), 31),
        cores in prop::sample::select(&[1, 6][..]),
        translation in any::<bool>(),
        first in 0..CYCLES,
    ) {
        let mut original = machine(cores, translation, &words, &registers);
        original.run(first);
        original.type_on_console(b"in");
        let mut file = Cursor::new(Vec::new());
        original.save("notes".into(), &mut file).expect("it can be saved");
        file.rewind().expect("it is in memory");
        let checkpoint = Checkpoint::read(file).expect("it is a checkpoint");
        prop_assert_eq!(checkpoint.notes(), "notes");
        let mut restored = Machine::new(&checkpoint.configuration()).expect("the host has memory");
        restored.attach_entropy(2).expect("the bus has room");
        checkpoint.restore(&mut restored).expect("it is the same machine");
        for _ in 0..2 {
            prop_assert_eq!(restored.run(CYCLES), original.run(CYCLES));
            prop_assert_eq!(restored.cycles(), original.cycles());
            prop_assert_eq!(restored.take_console_output(), original.take_console_output());
            prop_assert_eq!(restored.type_on_console(b"put\n"), original.type_on_console(b"put\n"));
        }
        prop_assert_eq!(contents(&restored), contents(&original));
    }

    #[test]
    fn any_software_leaves_the_host_alone_and_does_the_same_if_it_is_translated(
        words in prop::collection::vec(word(), INSTRUCTIONS),
        registers in prop::collection::vec(register(), 31),
        cores in prop::sample::select(&[1, 6][..]),
    ) {
        prop_assert_eq!(run(cores, true, &words, &registers), run(cores, false, &words, &registers));
    }
}

#[test]
fn a_machine_whose_handlers_are_not_memory_keeps_its_time() {
    // No device responds at the reset address, and there is no valid instruction at EENTRY, which is 0.
    let mut machine = Machine::new(&Configuration::default()).expect("the host has memory");
    machine.memory().write(0, &u32::MAX.to_le_bytes()).expect("it is in memory");
    assert_eq!(machine.run(CYCLES), Stop::Limit);
    assert_eq!(machine.cycles(), CYCLES);
}

#[test]
fn a_core_that_waits_for_nothing_stops_at_once() {
    let mut machine = Machine::new(&Configuration::default()).expect("the host has memory");
    let idle = encode(&longma_loongarch::Instruction::new(Op::Idle)).expect("it has no operands");
    machine.memory().write(CODE, &idle.to_le_bytes()).expect("it is in memory");
    machine.state_mut().pc = CODE;
    assert_eq!(machine.run(u64::MAX), Stop::Idle);
    assert_eq!(machine.cycles(), 1);
}
