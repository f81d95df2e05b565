//! Runs random code in privileged mode on a machine. It must return after the cycles it was given, without a panic.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use longma_system::net::{Network, UserOptions};
use longma_system::{Configuration, Machine, map};

const CODE: u64 = 0x20_0000;
const CYCLES: u64 = 5_000;
/// The first bytes of the input choose the registers, the others are code.
const REGISTERS: usize = 31;

/// Addresses of memory and devices; a register is one of these plus a small offset.
const ADDRESSES: [u64; 12] = [
    CODE,
    0x1000,
    map::UART,
    map::PCH_PIC,
    map::RTC,
    map::POWER,
    map::MESSAGES,
    map::PCI_CONFIG + (1 << 11),
    map::PCI_CONFIG + (2 << 11),
    map::PCI_MEMORY,
    map::LOW_MEMORY_BYTES - 4,
    0xffff_8000_0000_0000,
];

fuzz_target!(|data: &[u8]| {
    let (registers, code) = data.split_at(data.len().min(2 * REGISTERS));
    let configuration = Configuration { memory_bytes: 64 << 20, ..Configuration::default() };
    let mut machine = Machine::new(&configuration).expect("the host has memory");
    machine.attach_entropy(1).expect("the bus has room");
    let options = UserOptions { isolated: true, ..UserOptions::default() };
    let network = Network::user(&options).expect("it opens no port");
    machine.attach_network(network).expect("the bus has room");
    let code = &code[..code.len().min(4096)];
    // Exceptions enter the same code: EENTRY and TLBRENTRY are 0 after reset.
    for address in [0, CODE] {
        machine.memory().write(address, code).expect("it is in memory");
    }
    let state = machine.state_mut();
    state.pc = CODE;
    for (number, choice) in registers.chunks_exact(2).enumerate() {
        let start = ADDRESSES[usize::from(choice[0]) % ADDRESSES.len()];
        state.set_r(number as u8 + 1, start + u64::from(choice[1]));
    }
    machine.run(CYCLES);
    machine.type_on_console(b"input");
    machine.exchange_frames(Duration::ZERO);
    machine.run(CYCLES);
    assert_eq!(machine.state().r(0), 0);
    assert!(machine.cycles() <= 2 * CYCLES + 2);
});
