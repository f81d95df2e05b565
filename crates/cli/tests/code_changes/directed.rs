//! Tests one way of changing code at a time.

use std::process::Output;

use super::assembler::*;
use super::programs::{executable, finish, guest, longma_run, place, text};

/// All execution modes.
const MODES: [&[&str]; 4] = [&[], &["--interpret"], &["--level", "cache"], &["--level", "timing"]];

/// Addresses of the changing code, the data and the stack.
const SLOT: i64 = 0x3_0000_0000;
const DATA: i64 = 0x2_0000_0000;
const STACK: i64 = 0x2_0010_0000;
const PAGE: i64 = 0x4000;
const READ_WRITE: i64 = 3;
const READ_EXECUTE: i64 = 5;
const ALL: i64 = 7;
const SHARED_FIXED: i64 = 0x11;

fn run(code: Code, extra: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let program = place(folder.path(), "program", &executable(&code.finish(), &[]));
    finish(longma_run().args(extra).env("LONGMA_SHAKE", "1").arg(program))
}

fn exits_with(code: impl Fn() -> Code, status: i32) {
    for extra in MODES {
        let output = run(code(), extra);
        assert_eq!(
            output.status.code(),
            Some(status),
            "{extra:?}: {:?} {}",
            output.status,
            text(&output.stderr)
        );
    }
}

/// `addi.w $a0, $zero, number; jr $ra`
const fn returns(number: i32) -> [u32; 2] {
    [addi_w(A0, ZERO, number), RETURN]
}

fn as_number(words: [u32; 2]) -> i64 {
    (u64::from(words[1]) << 32 | u64::from(words[0])) as i64
}

/// Calls the function at `address` often enough to be translated; ends the program with status `wrong` if it does not
/// return `number`.
fn call_often(code: &mut Code, address: i64, number: i64, wrong: i64) {
    code.set(S0, 100);
    code.set(S1, address);
    code.set(S2, number);
    let again = code.here();
    code.push(jump_register(RA, S1));
    let right = code.label();
    code.if_equal(A0, S2, right);
    code.exit_group(wrong);
    code.place(right);
    code.push(addi(S0, S0, -1));
    code.if_not_equal(S0, ZERO, again);
}

/// Maps the slot and the data, and writes a function that returns 1 to the slot.
fn with_initial_function() -> Code {
    let mut code = Code::new();
    code.map(DATA, PAGE, READ_WRITE);
    code.map(SLOT, PAGE, ALL);
    code.set(T0, SLOT);
    code.set(T1, as_number(returns(1)));
    code.push(store(T1, T0, 0));
    code.barriers();
    call_often(&mut code, SLOT, 1, 1);
    code
}

/// Stores functions that return 2 and 3 at `DATA`, and the ends of a pipe at `DATA + 64`.
fn with_pipe(code: &mut Code) {
    code.set(T0, DATA);
    for (offset, number) in [(0, 2), (8, 3)] {
        code.set(T1, as_number(returns(number)));
        code.push(store(T1, T0, offset));
    }
    code.system_call(call::PIPE2, &[DATA + 64, 0]);
    code.set(T0, DATA);
    code.push(load_w(A0, T0, 68));
    code.set(A1, DATA);
    code.set(A2, 16);
    code.make_call(call::WRITE);
}

#[test]
fn code_that_is_read_from_a_pipe_into_place_runs() {
    exits_with(
        || {
            let mut code = with_initial_function();
            with_pipe(&mut code);
            for number in [2, 3] {
                code.set(T0, DATA);
                code.push(load_w(A0, T0, 64));
                code.set(A1, SLOT);
                code.set(A2, 8);
                code.make_call(call::READ);
                code.barriers();
                call_often(&mut code, SLOT, number, number);
            }
            code.exit_group(7);
            code
        },
        7,
    );
}

#[test]
fn code_that_is_scattered_into_place_runs() {
    exits_with(
        || {
            let mut code = with_initial_function();
            with_pipe(&mut code);
            for number in [2, 3] {
                // Two buffers of four bytes each.
                code.set(T0, DATA);
                code.set(T1, SLOT);
                code.set(T2, 4);
                code.push(store(T1, T0, 128));
                code.push(store(T2, T0, 136));
                code.push(addi(T1, T1, 4));
                code.push(store(T1, T0, 144));
                code.push(store(T2, T0, 152));
                code.push(load_w(A0, T0, 64));
                code.set(A1, DATA + 128);
                code.set(A2, 2);
                code.make_call(call::READV);
                code.barriers();
                call_often(&mut code, SLOT, number, number);
            }
            code.exit_group(7);
            code
        },
        7,
    );
}

/// Creates a memory file of two pages, with its descriptor in S3.
fn with_file(code: &mut Code) {
    code.set(T0, DATA);
    code.set(T1, i64::from(b'c'));
    code.push(store(T1, T0, 0));
    code.system_call(call::MEMFD_CREATE, &[DATA, 0]);
    code.push(copy(S3, A0));
    code.set(A1, 2 * PAGE);
    code.make_call(call::FTRUNCATE);
}

/// Maps page `index` of the file at `address`.
fn map_file(code: &mut Code, address: i64, index: i64, protection: i64, flags: i64) {
    code.push(copy(A4, S3));
    for (register, value) in [(A0, address), (A1, PAGE), (A2, protection), (A3, flags), (A5, index * PAGE)] {
        code.set(register, value);
    }
    code.make_call(call::MMAP);
}

const SECOND: i64 = 0x3_0100_0000;

/// Writes code at `SECOND` and calls it at `SLOT`; both map the same page of a file.
fn rewrite_through_second_mapping(code: &mut Code) {
    for number in [1, 2, 3, 4] {
        code.set(T0, SECOND);
        code.set(T1, as_number(returns(number)));
        code.push(store(T1, T0, 0));
        code.barriers();
        call_often(code, SLOT, number.into(), number.into());
    }
    code.exit_group(7);
}

#[test]
fn code_that_is_written_through_a_second_mapping_of_its_file_runs() {
    exits_with(
        || {
            let mut code = with_initial_function();
            with_file(&mut code);
            map_file(&mut code, SECOND, 1, READ_WRITE, SHARED_FIXED);
            map_file(&mut code, SLOT, 1, READ_EXECUTE, SHARED_FIXED);
            rewrite_through_second_mapping(&mut code);
            code
        },
        7,
    );
}

#[test]
fn a_second_mapping_may_be_made_after_the_code_has_run() {
    exits_with(
        || {
            let mut code = with_initial_function();
            with_file(&mut code);
            map_file(&mut code, SLOT, 1, ALL, SHARED_FIXED);
            code.set(T0, SLOT);
            code.set(T1, as_number(returns(1)));
            code.push(store(T1, T0, 0));
            code.barriers();
            call_often(&mut code, SLOT, 1, 1);
            map_file(&mut code, SECOND, 1, READ_WRITE, SHARED_FIXED);
            rewrite_through_second_mapping(&mut code);
            code
        },
        7,
    );
}

#[test]
fn a_private_mapping_shows_what_is_written_to_its_file() {
    const PRIVATE_FIXED: i64 = 0x12;
    exits_with(
        || {
            let mut code = with_initial_function();
            with_file(&mut code);
            map_file(&mut code, SECOND, 1, READ_WRITE, SHARED_FIXED);
            map_file(&mut code, SLOT, 1, READ_EXECUTE, PRIVATE_FIXED);
            rewrite_through_second_mapping(&mut code);
            code
        },
        7,
    );
}

/// Maps a device of the machine at `address`.
fn map_device(code: &mut Code, name: &str, address: i64) {
    const HERE: i64 = -100;
    const READ_WRITE_FLAG: i64 = 2;
    code.set(T0, DATA);
    for (index, bytes) in format!("/dev/longma/{name}\0\0\0\0\0\0\0\0").as_bytes().chunks_exact(8).enumerate()
    {
        code.set(T1, i64::from_le_bytes(bytes.try_into().unwrap()));
        code.push(store(T1, T0, 1024 + 8 * index as i32));
    }
    code.system_call(call::OPENAT, &[HERE, DATA + 1024, READ_WRITE_FLAG, 0]);
    code.push(copy(S3, A0));
    map_file(code, address, 0, READ_WRITE, SHARED_FIXED);
}

/// Lets the copy engine's write channel copy a function that returns `number` from the in-core store to `to`.
fn copy_with_engine(code: &mut Code, number: i32, to: i64) {
    const WRITER: i32 = 3 * 0x100;
    const STATUS: i32 = 0x40;
    const BUSY_OR_RUNNING: u32 = 3;
    code.set(T0, STORE);
    code.set(T1, as_number(returns(number)));
    code.push(store(T1, T0, 0));
    code.push(DATA_BARRIER);
    code.set(T0, ENGINE);
    // Source, destination, length, tags; then start, with all tags given to the engine.
    for (register, value) in [(0, STORE), (8, to), (0x10, 8), (0x30, 0), (0x38, 9)] {
        code.set(T1, value);
        code.push(store(T1, T0, WRITER + register));
    }
    let again = code.here();
    code.push(load(T1, T0, WRITER + STATUS));
    code.push(andi(T1, T1, BUSY_OR_RUNNING));
    code.if_not_equal(T1, ZERO, again);
    code.barriers();
}

const ENGINE: i64 = 0x3_0200_0000;
const STORE: i64 = 0x3_0201_0000;

#[test]
fn code_that_an_engine_moves_into_place_runs() {
    for second in [false, true] {
        for level in ["functional", "cache", "timing"] {
            let mut code = with_initial_function();
            if second {
                with_file(&mut code);
                map_file(&mut code, SECOND, 1, READ_WRITE, SHARED_FIXED);
                map_file(&mut code, SLOT, 1, READ_EXECUTE, SHARED_FIXED);
            }
            map_device(&mut code, "idma0", ENGINE);
            map_device(&mut code, "store0", STORE);
            for number in 1..=40 {
                copy_with_engine(&mut code, number, if second { SECOND } else { SLOT });
                call_often(&mut code, SLOT, number.into(), number.into());
            }
            code.exit_group(77);
            let output = run(code, &["--machine", "godson3", "--level", level]);
            assert_eq!(
                output.status.code(),
                Some(77),
                "{level} {second}: {:?} {}",
                output.status,
                text(&output.stderr)
            );
        }
    }
}

/// A second thread calls the slot in a loop while the first rewrites it `rounds` times and calls it each time.
fn rewrite_while_called(rounds: i64) -> Code {
    let mut code = with_initial_function();
    code.map(STACK - PAGE, PAGE, READ_WRITE);
    let caller = code.label();
    code.spawn(caller, STACK);
    code.set(S3, rounds);
    code.set(S4, as_number(returns(0)));
    code.set(S5, SLOT);
    let again = code.here();
    // Numbers from 1 to 1024.
    code.push(andi(S6, S3, 1023));
    code.push(addi(S6, S6, 1));
    code.push(shift_left(T1, S6, 10));
    code.push(or(T1, T1, S4));
    code.push(store_w(T1, S5, 0));
    code.barriers();
    // From 1 to 64 calls: sometimes enough for translation.
    code.push(andi(S0, S3, 63));
    code.push(addi(S0, S0, 1));
    let call = code.here();
    code.push(jump_register(RA, S5));
    let right = code.label();
    code.if_equal(A0, S6, right);
    code.exit_group(2);
    code.place(right);
    code.push(addi(S0, S0, -1));
    code.if_not_equal(S0, ZERO, call);
    code.push(addi(S3, S3, -1));
    code.if_not_equal(S3, ZERO, again);
    code.exit_group(7);

    code.place(caller);
    code.set(S0, SLOT);
    code.set(S1, 1025);
    let forever = code.here();
    code.push(jump_register(RA, S0));
    let sane = code.label();
    code.if_below(A0, S1, sane);
    code.exit_group(3);
    code.place(sane);
    code.jump(forever);
    code
}

#[test]
fn rewritten_code_never_runs_in_its_old_form() {
    for extra in [&[][..], &["--interpret"]] {
        let output = run(rewrite_while_called(100), extra);
        assert_eq!(output.status.code(), Some(7), "{extra:?}: {:?} {}", output.status, text(&output.stderr));
    }
}

#[test]
fn a_jump_to_an_invalid_instruction_raises_a_signal() {
    use std::os::unix::process::ExitStatusExt;
    for target in [0, 1, 2, 3, 4, 5, 8, 0x3ffd, -1, -2, -4, (1 << 46) - 4, 1 << 46, 1 << 47] {
        for is_return in [false, true] {
            let program = || {
                let through = if is_return { RA } else { T0 };
                let mut code = with_initial_function();
                code.set(S0, target);
                code.set(S1, 200);
                let again = code.here();
                // The jump itself is hot before its target changes.
                code.set(T1, DATA);
                code.push(store(S0, T1, 8));
                code.set_address(T0, again);
                code.push(store(T0, T1, 0));
                code.push(addi(S1, S1, -1));
                code.push(is_below(T2, S1, 1));
                code.push(shift_left(T2, T2, 3));
                code.push(add(T1, T1, T2));
                code.push(load(through, T1, 0));
                code.push(jump_register(ZERO, through));
                code
            };
            let expected = run(program(), &["--interpret"]).status.signal();
            assert!(expected.is_some(), "{target:#x}");
            let status = run(program(), &[]).status;
            assert_eq!(status.signal(), expected, "{target:#x} {is_return}: {status:?}");
        }
    }
}

#[test]
fn translation_works_if_the_host_forbids_making_memory_executable() {
    use std::os::unix::process::CommandExt;
    const SET_MDWE: i32 = 65;
    const REFUSE_EXEC_GAIN: u64 = 1;
    let folder = tempfile::tempdir().unwrap();
    let program = place(folder.path(), "program", &executable(&rewrite_while_called(2000).finish(), &[]));
    let mut command = longma_run();
    // SAFETY: prctl is async-signal-safe. Linux before 6.3 rejects the option and forbids nothing.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0);
            Ok(())
        })
    };
    let output = finish(command.arg("--stats").arg(program));
    assert_eq!(output.status.code(), Some(7), "{:?} {}", output.status, text(&output.stderr));
}

#[test]
fn forked_children_run_while_their_parent_translates() {
    let output = finish(longma_run().arg(guest("unix_process")).arg("300"));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
}
