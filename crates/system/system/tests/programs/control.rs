//! Programs about privilege, exceptions, interrupts, the timer and CSRs.

use longma_loongarch::{Extension, Op};

use crate::assembler::*;

/// The address of user code.
const USER: u64 = DATA + 0x8_0000;
/// PRMD that selects privilege level 3.
const LEVEL_3: u64 = 3;

/// Records the exception, BADI and PRMD, and continues at [`RA`] at privilege level 0.
fn returning_handler() -> Code {
    let mut code = Code::at(HANDLER);
    record_exception(&mut code);
    code.record_csr(csr::BADI).record_csr(csr::PRMD).swap(RA, csr::ERA);
    code.set(H0, 0).swap(H0, csr::PRMD).plain(Op::Ertn);
    code
}

/// Runs one instruction at privilege level 3, and continues after it.
fn run_at_level_3(code: &mut Code, word: u32) {
    code.set(T2, USER).set(T1, word.into()).rri(Op::StW, T1, T2, 0).rri(Op::Ibar, 0, 0, 0);
    // `set` takes four instructions, `swap` and ERTN one each.
    let resume = code.here() + 4 * (4 + 4 + 1 + 4 + 1 + 1);
    code.set(RA, resume).enter(USER, LEVEL_3);
    assert_eq!(code.here(), resume);
}

pub fn level_3_gets_an_exception_for_what_it_may_not_do() -> (Program, Vec<u64>) {
    // Instruction word and exception code.
    let cases: [(u32, u64); 9] = [
        (0x002b_0007, 0xb),  // syscall 7
        (0x002a_0005, 0xc),  // break 5
        (0x7fff_ffff, 0xd),  // not an instruction
        (0x0400_000c, 0xe),  // csrrd $t0, 0
        (0x0648_3800, 0xe),  // ertn
        (0x0648_8000, 0xe),  // idle 0
        (0x0100_8420, 0xf),  // fadd.s $fa0, $fa1, $fa1
        (0x700a_0420, 0x10), // vadd.b $vr0, $vr1, $vr1
        (0x740a_0420, 0x11), // xvadd.b $xr0, $xr1, $xr1
    ];
    let body = |code: &mut Code| {
        for (word, _) in cases {
            run_at_level_3(code, word);
        }
    };
    let expected =
        cases.iter().flat_map(|(word, number)| [*number, USER, u64::from(*word), LEVEL_3]).collect();
    (program(body, vec![returning_handler()]), expected)
}

pub fn level_3_may_not_execute_any_privileged_instruction() -> (Program, Vec<u64>) {
    let words: Vec<u32> = Op::all()
        .map(Op::row)
        .filter(|row| row.extension == Extension::Privileged)
        .map(|row| row.matched)
        .collect();
    let body = |code: &mut Code| words.iter().for_each(|word| run_at_level_3(code, *word));
    let expected = words.iter().flat_map(|word| [0xe, USER, u64::from(*word), LEVEL_3]).collect();
    (program(body, vec![returning_handler()]), expected)
}

pub fn a_misaligned_or_absent_address_is_recorded() -> (Program, Vec<u64>) {
    let mut expected = Vec::new();
    let body = |code: &mut Code| {
        code.set(T1, 0x1122_3344_5566_7788).set(T2, DATA).rri(Op::StD, T1, T2, 0);
        // Ordinary accesses may be misaligned.
        code.set(T2, DATA + 1).rri(Op::LdW, A0, T2, 0).record(A0);
        expected.push(0x4455_6677);
        // Atomic accesses may not.
        for op in [Op::LlW, Op::ScW] {
            expected.extend([9, code.here(), DATA + 1]);
            code.rri(op, A0, T2, 0).record_csr(csr::BADV);
        }
        expected.extend([9, code.here(), DATA + 1]);
        code.rrr(Op::AmaddD, A0, T2, A1).record_csr(csr::BADV);
        // No device answers between the real-time clock and the serial port.
        code.set(T2, 0x1a00_0000);
        expected.extend([8 | 1 << 6, code.here(), 0x1a00_0000]);
        code.rri(Op::LdD, A0, T2, 0).record_csr(csr::BADV);
    };
    let program = program(body, vec![skipping_handler()]);
    (program, expected)
}

pub fn a_jump_to_a_misaligned_address_is_an_address_error() -> (Program, Vec<u64>) {
    let body = |code: &mut Code| {
        code.set(T2, USER + 2).rri(Op::Jirl, RA, T2, 0);
    };
    let mut handler = Code::at(HANDLER);
    record_exception(&mut handler);
    handler.record_csr(csr::BADV).swap(RA, csr::ERA).plain(Op::Ertn);
    (program(body, vec![handler]), vec![8, USER + 2, USER + 2])
}

pub fn a_reservation_does_not_survive_a_return_unless_it_is_kept() -> (Program, Vec<u64>) {
    let mut expected = Vec::new();
    let body = |code: &mut Code| {
        code.set(T2, DATA);
        for keep in [0, 4] {
            code.write(csr::LLBCTL, keep).set(A0, 1);
            code.rri(Op::LlD, A1, T2, 0);
            expected.extend([0xb, code.here()]);
            code.rri(Op::Syscall, 0, 0, 0).rri(Op::ScD, A0, T2, 0).record(A0);
            expected.push(keep / 4);
        }
        // KLO applies once, and WCLLB clears the reservation.
        code.record_csr(csr::LLBCTL);
        code.rri(Op::LlD, A1, T2, 0).record_csr(csr::LLBCTL).write(csr::LLBCTL, 2).record_csr(csr::LLBCTL);
        expected.extend([0, 1, 0]);
    };
    let program = program(body, vec![skipping_handler()]);
    (program, expected)
}

/// An interrupt handler that records ESTAT, runs `acknowledge`, and returns.
fn interrupt_handler(base: u64, acknowledge: impl FnOnce(&mut Code)) -> Code {
    let mut code = Code::at(base);
    code.record_csr(csr::ESTAT);
    acknowledge(&mut code);
    code.plain(Op::Ertn);
    code
}

pub fn the_timer_interrupts_and_wakes_at_its_vector() -> (Program, Vec<u64>) {
    let body = |code: &mut Code| {
        // Vectors are 2^3 instructions apart; line 11 has vector 64 + 11.
        code.write(csr::ECFG, 3 << 16 | 1 << 11).write(csr::TICLR, 1);
        code.write(csr::TCFG, 1000 << 2 | 1).write(csr::CRMD, 8 | 4);
        code.rri(Op::Idle, 0, 0, 0).write(csr::CRMD, 8);
        code.record_csr(csr::ESTAT);
        // A periodic timer raises an interrupt again.
        code.write(csr::TCFG, 1000 << 2 | 3).write(csr::CRMD, 8 | 4);
        code.rri(Op::Idle, 0, 0, 0).rri(Op::Idle, 0, 0, 0).write(csr::CRMD, 8).write(csr::TCFG, 0);
    };
    let base = HANDLER + (64 + 11) * (4 << 3);
    let handler = interrupt_handler(base, |code| {
        // The vector has room for eight instructions, three of which record ESTAT.
        code.set(H1, HANDLER + 0x8000).rri(Op::Jirl, 0, H1, 0);
    });
    let mut rest = Code::at(HANDLER + 0x8000);
    rest.set(H1, 1).swap(H1, csr::TICLR).plain(Op::Ertn);
    (program(body, vec![handler, rest]), vec![1 << 11, 0, 1 << 11, 1 << 11])
}

pub fn a_core_interrupts_itself() -> (Program, Vec<u64>) {
    const CONTROL: u64 = 0x1004;
    const CLEAR: u64 = 0x100c;
    const SEND: u64 = 0x1040;
    let body = |code: &mut Code| {
        code.write(csr::ECFG, 1 << 12).set(T2, CONTROL).set(T1, u64::MAX).rri(Op::IocsrwrW, T1, T2, 0);
        code.write(csr::CRMD, 8 | 4);
        code.set(T2, SEND).set(T1, 3).rri(Op::IocsrwrW, T1, T2, 0);
        // QEMU checks for interrupts after branches.
        for _ in 0..4 {
            code.rri(Op::B, 0, 0, 4);
        }
        code.write(csr::CRMD, 8);
        code.set(T2, 0x1000).rri(Op::IocsrrdW, A0, T2, 0).record(A0);
    };
    let handler = interrupt_handler(HANDLER, |code| {
        code.set(H1, 0x1000).rri(Op::IocsrrdW, H0, H1, 0).record(H0);
        code.set(H1, CLEAR).rri(Op::IocsrwrW, H0, H1, 0);
    });
    (program(body, vec![handler]), vec![1 << 12, 1 << 3, 0])
}

pub fn a_software_interrupt_waits_for_its_enable_bits() -> (Program, Vec<u64>) {
    let body = |code: &mut Code| {
        code.write(csr::ECFG, 0).write(csr::CRMD, 8 | 4).write(csr::ESTAT, 3);
        code.set(A0, 100).record(A0);
        code.write(csr::ECFG, 2);
        code.set(A0, 101).record(A0).write(csr::CRMD, 8).write(csr::ESTAT, 0);
    };
    let handler = interrupt_handler(HANDLER, |code| {
        code.set(H1, 1).swap(H1, csr::ESTAT);
    });
    (program(body, vec![handler]), vec![100, 3, 101])
}

pub fn registers_keep_the_bits_that_they_have() -> (Program, Vec<u64>) {
    let cases = [
        (csr::PRMD, 7, 7),
        (csr::EUEN, u64::MAX, 0xf),
        (csr::ECFG, 0x7_1fff, 0x7_1fff),
        (csr::ERA, 0x1234_5678_9abc_def0, 0x1234_5678_9abc_def0),
        (csr::BADV, u64::MAX, u64::MAX),
        (csr::EENTRY, HANDLER | 0xfff, HANDLER),
        (csr::ASID, 0x3ff, 0xa_03ff),
        (csr::SAVE7, 0xdead_beef_0bad_cafe, 0xdead_beef_0bad_cafe),
        (csr::TLBRENTRY, REFILL | 0xfff, REFILL),
        (csr::TLBEHI, u64::MAX, !0x1fff),
        (csr::TLBELO0, u64::MAX, 0xe000_ffff_ffff_f07f),
        (csr::PGDL, u64::MAX, !0xfff),
        (csr::DMW3, u64::MAX, 0xf000_0000_0000_003f),
        (csr::PRCFG1, u64::MAX, 0x72f8),
        (0x3fff, u64::MAX, 0),
    ];
    let body = |code: &mut Code| {
        for (number, value, _) in cases {
            code.write(number, value).record_csr(number);
        }
        // CSRXCHG changes only the bits in its mask, and returns the old value.
        code.write(csr::SAVE0, 0xffff).set(A0, 0x1234).set(A1, 0xff).rri(
            Op::Csrxchg,
            A0,
            A1,
            csr::SAVE0.into(),
        );
        code.record(A0).record_csr(csr::SAVE0);
    };
    let mut expected: Vec<u64> = cases.iter().map(|case| case.2).collect();
    expected.extend([0xffff, 0xff34]);
    (program(body, vec![]), expected)
}

pub fn code_that_changes_is_executed_as_it_is() -> (Program, Vec<u64>) {
    let body = |code: &mut Code| {
        // `ori $a0, $zero, 1; jirl $zero, $ra, 0`, and then the same with 2.
        for value in [1, 2] {
            code.set(T2, USER).set(T1, 0x4c00_0020_0380_0004 | value << 10).rri(Op::StD, T1, T2, 0);
            code.rri(Op::Ibar, 0, 0, 0).rri(Op::Jirl, RA, T2, 0).record(A0);
        }
    };
    (program(body, vec![]), vec![1, 2])
}

pub fn a_store_to_the_next_instruction_takes_effect() -> (Program, Vec<u64>) {
    let body = |code: &mut Code| {
        // `ori $a0, $zero, 1` is replaced by `ori $a0, $zero, 2`.
        let target = code.here() + 4 * (4 + 4 + 1 + 1);
        code.set(T2, target).set(T1, 0x0380_0804).rri(Op::StW, T1, T2, 0).rri(Op::Ibar, 0, 0, 0);
        code.rri(Op::Ori, A0, 0, 1).record(A0);
    };
    (program(body, vec![]), vec![2])
}
