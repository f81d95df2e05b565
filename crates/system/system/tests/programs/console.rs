//! Tests typed input: an interrupt takes its path from the serial port through both interrupt controllers to the core.

use longma_loongarch::Op;
use longma_system::{Stop, map};

use crate::assembler::*;
use crate::{lines, machine};

/// The vector of the serial port's PCH-PIC input.
const VECTOR: u64 = 9;
/// Hardware line 1 is bit 3 of ESTAT.IS.
const LINE: u64 = 1;
const LINE_BIT: u64 = 1 << (2 + LINE);

const UART_ENABLE: i32 = 1;
const MASK: u64 = map::PCH_PIC + 0x20;
const VECTORS: u64 = map::PCH_PIC + 0x200;
const LINES: u64 = 0x14c0;
const ENABLE: u64 = 0x1600;
const STATUS: u64 = 0x1800;

fn prepare(code: &mut Code) {
    code.set(T2, VECTORS + u64::from(map::UART_INPUT)).set(T1, VECTOR).rri(Op::StB, T1, T2, 0);
    code.set(T2, MASK).set(T1, !(1 << map::UART_INPUT)).rri(Op::StD, T1, T2, 0);
    code.set(T2, LINES).set(T1, 1 << LINE).rri(Op::IocsrwrB, T1, T2, 0);
    code.set(T2, ENABLE).set(T1, 1 << VECTOR).rri(Op::IocsrwrD, T1, T2, 0);
    code.set(T2, map::UART).set(T1, 1).rri(Op::StB, T1, T2, UART_ENABLE);
    code.write(csr::ECFG, LINE_BIT).write(csr::CRMD, 8 | 4);
}

/// Records the interrupt lines, the vectors and the byte, and acknowledges the interrupt.
fn handler() -> Code {
    let mut code = Code::at(HANDLER);
    code.record_csr(csr::ESTAT);
    code.set(H1, STATUS).rri(Op::IocsrrdD, H0, H1, 0).record(H0).rri(Op::IocsrwrD, H0, H1, 0);
    code.set(H1, map::UART).rri(Op::LdBu, H0, H1, 0).record(H0).plain(Op::Ertn);
    code
}

#[test]
fn a_typed_byte_interrupts_a_waiting_core() {
    let body = |code: &mut Code| {
        prepare(code);
        code.rri(Op::Idle, 0, 0, 0).write(csr::CRMD, 8).record_csr(csr::ESTAT);
    };
    let mut machine = machine(&program(body, vec![handler()]));
    assert_eq!(machine.run(10_000), Stop::Idle);
    assert_eq!(machine.take_console_output(), b"");
    assert_eq!(machine.type_on_console(b"A"), 1);
    assert_eq!(machine.run(10_000), Stop::PowerOff);
    let printed = String::from_utf8(machine.take_console_output()).unwrap();
    assert_eq!(printed, lines(&[LINE_BIT, 1 << VECTOR, b'A'.into(), 0]));
}

#[test]
fn a_program_ends_with_the_status_that_it_has_written() {
    let body = |code: &mut Code| {
        code.set(T2, map::POWER + 1).rri(Op::AddiD, T1, ZERO, 0x2a).rri(Op::StB, T1, T2, 0);
        code.rri(Op::LdBu, A0, T2, 0).record(A0);
    };
    let mut machine = machine(&program(body, vec![]));
    assert_eq!(machine.exit_status(), 0);
    assert_eq!(machine.run(100_000), Stop::PowerOff);
    assert_eq!(machine.exit_status(), 0x2a);
    assert_eq!(String::from_utf8(machine.take_console_output()).unwrap(), lines(&[0x2a]));
}
