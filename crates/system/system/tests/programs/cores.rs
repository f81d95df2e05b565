//! Tests several cores: a message starts them, they interrupt each other, and they share memory.

use longma_loongarch::Op;
use longma_system::Stop;

use crate::assembler::*;
use crate::{lines, machine_with};

/// The address of the code of all cores but core 0.
const OTHERS: u64 = DATA + 0x8_0000;
const COUNTERS: u64 = DATA;

const IPI_STATUS: u64 = 0x1000;
const IPI_ENABLE: u64 = 0x1004;
const IPI_CLEAR: u64 = 0x100c;
const IPI_SEND: u64 = 0x1040;
const MAIL_SEND: u64 = 0x1048;
/// The sender waits until the message has arrived.
const BLOCKING: u64 = 1 << 31;

fn send_ipi(code: &mut Code, core: u64, vector: u64) {
    code.set(T2, IPI_SEND).set(T1, BLOCKING | core << 16 | vector).rri(Op::IocsrwrW, T1, T2, 0);
}

/// Starts a core as Linux does.
fn start(code: &mut Code, core: u64, address: u64) {
    code.set(T2, MAIL_SEND).set(T1, address << 32 | BLOCKING | core << 16).rri(Op::IocsrwrD, T1, T2, 0);
    send_ipi(code, core, 0);
}

/// Waits forever.
fn sleep(code: &mut Code) {
    code.rri(Op::Idle, 0, 0, 0).rri(Op::B, 0, 0, -4);
}

fn run(cores: usize, program: &Program) -> String {
    let mut machine = machine_with(cores, program);
    let stop = machine.run(5_000_000);
    let printed = String::from_utf8_lossy(&machine.take_console_output()).into_owned();
    assert_eq!(stop, Stop::PowerOff, "at {:#x} after: {printed}", machine.state().pc);
    printed
}

#[test]
fn a_core_starts_by_mail_and_answers_by_an_interrupt() {
    for core in [1, 5, 15] {
        let body = |code: &mut Code| {
            code.set(T2, IPI_ENABLE).set(T1, 0xffff_ffff).rri(Op::IocsrwrW, T1, T2, 0);
            code.write(csr::ECFG, 1 << 12);
            start(code, core, OTHERS);
            code.rri(Op::Idle, 0, 0, 0);
            code.set(T2, IPI_STATUS).rri(Op::IocsrrdW, A0, T2, 0).record(A0).record_csr(csr::ESTAT);
            code.set(T2, IPI_CLEAR).rri(Op::IocsrwrW, A0, T2, 0).record_csr(csr::ESTAT);
            code.set(T2, COUNTERS).rri(Op::LdD, A0, T2, 0).record(A0);
        };
        let mut other = Code::at(OTHERS);
        other.read(A0, csr::CPUID).set(T2, COUNTERS).rri(Op::StD, A0, T2, 0);
        send_ipi(&mut other, 0, 3);
        sleep(&mut other);
        assert_eq!(run(16, &program(body, vec![other])), lines(&[1 << 3, 1 << 12, 0, core]));
    }
}

#[test]
fn cores_count_together_by_reservations_and_by_atomic_additions() {
    const CORES: u64 = 4;
    const ROUNDS: i32 = 900;
    // Increments two counters, and then the count of cores that have finished.
    let count = |code: &mut Code| {
        code.set(T2, COUNTERS).set(A1, COUNTERS + 64).rri(Op::AddiD, T1, ZERO, ROUNDS).rri(
            Op::AddiD,
            A2,
            ZERO,
            1,
        );
        code.rri(Op::LlD, A0, T2, 0).rri(Op::AddiD, A0, A0, 1).rri(Op::ScD, A0, T2, 0);
        code.rri(Op::Beqz, 0, A0, -12).rrr(Op::AmaddD, A0, A1, A2);
        code.rri(Op::AddiD, T1, T1, -1).rri(Op::Bnez, 0, T1, -24);
        code.set(A1, COUNTERS + 128).rrr(Op::AmaddD, A0, A1, A2);
    };
    let body = |code: &mut Code| {
        for core in 1..CORES {
            start(code, core, OTHERS);
        }
        count(code);
        code.set(A2, CORES).rri(Op::LdD, A0, A1, 0).rri(Op::Bne, A2, A0, -4);
        for counter in [COUNTERS, COUNTERS + 64] {
            code.set(T2, counter).rri(Op::LdD, A0, T2, 0).record(A0);
        }
    };
    let mut other = Code::at(OTHERS);
    count(&mut other);
    sleep(&mut other);
    let program = program(body, vec![other]);
    let total = CORES * ROUNDS as u64;
    assert_eq!(run(CORES as usize, &program), lines(&[total, total]));
}

#[test]
fn a_core_sees_code_that_another_has_changed() {
    let body = |code: &mut Code| {
        start(code, 1, OTHERS);
        // Core 1 sets the first counter after it has called the function once.
        code.set(T2, COUNTERS).rri(Op::LdD, A0, T2, 0).rri(Op::Beqz, 0, A0, -4).record(A0);
        code.set(T2, OTHERS + 0x1000).set(T1, 0x02c0_0804).rri(Op::StW, T1, T2, 0);
        code.set(T2, COUNTERS).set(T1, 0).rri(Op::StD, T1, T2, 0);
        code.rri(Op::LdD, A0, T2, 8).rri(Op::Beqz, 0, A0, -4).record(A0);
    };
    let mut other = Code::at(OTHERS);
    other.set(T2, COUNTERS).set(T1, OTHERS + 0x1000);
    other.rri(Op::Jirl, RA, T1, 0).rri(Op::StD, A0, T2, 0);
    other.rri(Op::LdD, A0, T2, 0).rri(Op::Bnez, 0, A0, -4);
    other.rri(Op::Jirl, RA, T1, 0).rri(Op::StD, A0, T2, 8);
    sleep(&mut other);
    let mut function = Code::at(OTHERS + 0x1000);
    function.rri(Op::AddiD, A0, ZERO, 1).rri(Op::Jirl, ZERO, RA, 0);
    assert_eq!(run(2, &program(body, vec![other, function])), lines(&[1, 2]));
}

#[test]
fn cores_that_wait_for_nothing_stop_and_a_timer_of_any_wakes_its_own() {
    let body = |code: &mut Code| {
        start(code, 1, OTHERS);
        sleep(code);
    };
    let mut other = Code::at(OTHERS);
    // A countdown of 10 ms, through which the other cores sleep.
    other.write(csr::ECFG, 1 << 11).write(csr::TCFG, 1_000_000 | 1).rri(Op::Idle, 0, 0, 0);
    other.set(T2, COUNTERS).rri(Op::StD, T2, T2, 0).write(csr::TICLR, 1);
    sleep(&mut other);
    let mut machine = machine_with(3, &program(body, vec![other]));
    assert_eq!(machine.run(u64::MAX), Stop::Idle);
    assert_eq!(machine.memory().read_doubleword(COUNTERS), Some(COUNTERS));
    assert!((10_000_000..10_010_000).contains(&machine.cycles()), "{}", machine.cycles());
}

#[test]
fn a_machine_has_from_1_to_16_cores() {
    for cores in [0, 17, usize::MAX] {
        let configuration = longma_system::Configuration { cores, ..Default::default() };
        let error = longma_system::Machine::new(&configuration).err().map(|error| error.to_string());
        assert_eq!(error, Some(format!("{cores} cores: a machine has from 1 to 16")));
    }
}
