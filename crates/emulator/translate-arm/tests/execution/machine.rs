//! A program that loads states, executes instructions and stores the results, run under QEMU and translated.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use longma_loongarch::{Environment, State, Trap, decode as decode_word, semantics};
use longma_translate::engine::{Engine, Layout};
use longma_translate::front_end::{Exit, FrontEnd, Interpreted, ServiceResult};
use longma_translate::interpretation::Continuation;
use longma_translate::optimizations::Optimizations;
use longma_translate_arm::registers::{Location, SLOT_BYTES, SLOTS, TABLE, place};
use longma_translate_arm::{Aarch64, serve};
use longma_translate_conformance::memory::{InterpreterView, TestMemory};

const BASE: u64 = 0x1_0000;
const CODE: u64 = 0x1000_0000;
const CODE_BYTES: u64 = 64 << 20;
const TABLE_AT: u64 = 0x2000_0000;
/// The memory that loads and stores access.
pub const DATA_AT: u64 = 0x1c_0000;
const DATA_BYTES: u64 = 0x2_0000;
/// The initial value of the base register and of the stack pointer.
pub const MIDDLE: u64 = DATA_AT + 0x4000;
const STATE_AT: u64 = 0x20_0000;
const RESULTS_AT: u64 = 0x30_0000;
const SLOTS_AT: u64 = 0x48_0000;
const LIMIT: u64 = 0x50_0000;
/// x0 to x29, the stack pointer, NZCV, the vectors, FPCR and FPSR.
pub const WORDS: usize = 32 + 64 + 2;
/// The word of FPCR.
pub const CONTROL: usize = 96;
/// The word of FPSR.
pub const STATUS: usize = 97;
const CASE_BYTES: usize = WORDS * 8;
/// The register that points to the saved state. Cases must not use it.
pub const POINTER: u32 = 30;
/// The maximum number of cases in one program.
pub const MAX_CASES: usize = 400;

/// Instructions and the state before them.
#[derive(Clone, Debug)]
pub struct Case {
    pub words: Vec<u32>,
    pub state: [u64; WORDS],
}

fn wide(words: &mut Vec<u32>, register: u32, value: u64) {
    words.push(0xd280_0000 | (value as u32 & 0xffff) << 5 | register);
    words.push(0xf2a0_0000 | ((value >> 16) as u32) << 5 | register);
}

/// ldr or str of x`register` at a word of the state.
fn general(loads: bool, register: u32, word: u32) -> u32 {
    (if loads { 0xf940_0000 } else { 0xf900_0000 }) | word << 10 | POINTER << 5 | register
}

fn vector(loads: bool, register: u32, word: u32) -> u32 {
    (if loads { 0x3dc0_0000 } else { 0x3d80_0000 }) | (word / 2) << 10 | POINTER << 5 | register
}

/// The program's words, and the addresses of the cases' own instructions. Each case loads its registers, executes its
/// instructions and stores the result.
fn program(cases: &[Case]) -> (Vec<u32>, Vec<u64>) {
    let (mut words, mut case_addresses) = (Vec::new(), Vec::new());
    for (index, case) in cases.iter().enumerate() {
        let offset = (index * CASE_BYTES) as u64;
        wide(&mut words, POINTER, STATE_AT + offset);
        // msr nzcv, x0; mov sp, x0
        words.extend([general(true, 0, 31), 0xd51b_4200, general(true, 0, 30), 0x9100_001f]);
        // msr fpcr, x0; msr fpsr, x0
        words.extend([general(true, 0, CONTROL as u32), 0xd51b_4400]);
        // b .+4: what precedes must be translated; what follows, the interpreter can execute.
        words.extend([general(true, 0, STATUS as u32), 0xd51b_4420, 0x1400_0001]);
        words.extend((0..32).map(|number| vector(true, number, 32 + 2 * number)));
        words.extend((0..30).map(|number| general(true, number, number)));
        case_addresses.extend((words.len()..=words.len() + case.words.len()).map(|at| BASE + 4 * at as u64));
        words.extend(&case.words);
        wide(&mut words, POINTER, RESULTS_AT + offset);
        words.extend((0..30).map(|number| general(false, number, number)));
        words.extend((0..32).map(|number| vector(false, number, 32 + 2 * number)));
        // mrs x0, nzcv; mov x0, sp; mrs x0, fpcr; mrs x0, fpsr
        words.extend([0xd53b_4200, general(false, 0, 31), 0x9100_03e0, general(false, 0, 30)]);
        words.extend([0xd53b_4400, general(false, 0, CONTROL as u32)]);
        words.extend([0xd53b_4420, general(false, 0, STATUS as u32)]);
    }
    // write(1, results, bytes), write(1, data, bytes), exit_group(0)
    for (address, length) in [(RESULTS_AT, (cases.len() * CASE_BYTES) as u64), (DATA_AT, DATA_BYTES)] {
        wide(&mut words, 0, 1);
        wide(&mut words, 1, address);
        wide(&mut words, 2, length);
        wide(&mut words, 8, 64);
        words.push(0xd400_0001);
    }
    wide(&mut words, 0, 0);
    wide(&mut words, 8, 94);
    words.push(0xd400_0001);
    (words, case_addresses)
}

/// The initial memory from [`BASE`] on, and the addresses of the cases' own instructions.
fn image(cases: &[Case]) -> (Vec<u8>, Vec<u64>) {
    let (words, case_addresses) = program(cases);
    let mut image: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    assert!(image.len() as u64 + BASE < DATA_AT && cases.len() <= MAX_CASES);
    image.resize((DATA_AT - BASE) as usize, 0);
    image.extend((0..DATA_BYTES).map(|byte| ((byte * 37) >> 3) as u8 ^ byte as u8));
    image.resize((STATE_AT - BASE) as usize, 0);
    image.extend(cases.iter().flat_map(|case| case.state).flat_map(u64::to_le_bytes));
    (image, case_addresses)
}

fn elf(image: &[u8]) -> Vec<u8> {
    const HEADERS: u64 = 0x1000;
    let mut file = Vec::new();
    file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    file.extend(2u16.to_le_bytes());
    file.extend(183u16.to_le_bytes());
    file.extend(1u32.to_le_bytes());
    [BASE, 64, 0].iter().for_each(|word| file.extend(word.to_le_bytes()));
    file.extend(0u32.to_le_bytes());
    [64u16, 56, 1, 64, 0, 0].iter().for_each(|half| file.extend(half.to_le_bytes()));
    [1u32, 7].iter().for_each(|word| file.extend(word.to_le_bytes()));
    let words = [HEADERS, BASE, BASE, image.len() as u64, LIMIT, 0x1000];
    words.iter().for_each(|word| file.extend(word.to_le_bytes()));
    file.resize(HEADERS as usize, 0);
    file.extend(image);
    file
}

/// The emulator to compare with.
pub fn qemu() -> String {
    std::env::var("LONGMA_QEMU_AARCH64").unwrap_or_else(|_| "qemu-aarch64".into())
}

/// Whether QEMU is older than version 8. It aborts on some words that are not allocated, and sign-extends the results
/// of conversions from half precision to fixed-point numbers.
pub fn is_old_qemu() -> bool {
    let stdout = Command::new(qemu()).arg("--version").output().expect("it is installed").stdout;
    let stdout = String::from_utf8_lossy(&stdout);
    let version = stdout.split("version ").nth(1).and_then(|rest| rest.split('.').next());
    version.and_then(|major| major.parse::<u32>().ok()).is_none_or(|major| major < 8)
}

/// Whether `qemu-aarch64` is installed; prints a message if not.
pub fn can_compare() -> bool {
    let is_installed = Command::new(qemu()).arg("--version").output().is_ok_and(|done| done.status.success());
    if !is_installed {
        eprintln!("skipped: qemu-aarch64 is not installed (Debian: qemu-user)");
    }
    is_installed
}

/// The program's output under QEMU.
fn reference(image: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let path = folder.path().join("program");
    std::fs::write(&path, elf(image)).expect("the folder is ours");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("the file is ours");
    let output = Command::new(qemu()).args(["-cpu", "neoverse-n1"]).arg(&path).output();
    let output = output.expect("qemu-aarch64 is installed (Debian: qemu-user)");
    assert!(output.status.success(), "{:?}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The visits after which interpreted code is translated.
const HOT: u32 = 1 << 20;

/// Interprets blocks from `pc` on, which an exit in translated code led to if given. Returns the translated code that
/// follows.
fn enter(
    engine: &mut Engine<Aarch64>,
    mut exit: Option<u64>,
    mut pc: u64,
    state: &mut State,
    memory: &TestMemory,
) -> u64 {
    loop {
        let continuation = match exit.take() {
            Some(exit) => engine.follow_exit(exit, pc, memory),
            None => engine.continue_at(pc, memory),
        };
        let block = match continuation.expect("there is code") {
            Continuation::Code(code) => return code,
            Continuation::Block(block) => block,
        };
        pc = match Aarch64::interpret(&block.steps, state, &InterpreterView(memory)) {
            Interpreted::Next(next) | Interpreted::Indirect(next) => next,
            Interpreted::Refused(at) => return engine.code_of_refused(at, memory).expect("there is code"),
        };
    }
}

/// The program's output when translated and interpreted. At every `interval`-th interruptible position in
/// `case_addresses`, all pending registers are written and execution reenters at that source address. If `interprets` is
/// set, the interpreter executes what it supports instead of a translation.
fn translated(
    image: &[u8],
    case_addresses: &[u64],
    interval: Option<u64>,
    optimizations: Optimizations,
    interprets: bool,
) -> Vec<u8> {
    let mut low = vec![0; LIMIT as usize];
    low[BASE as usize..][..image.len()].copy_from_slice(image);
    let memory = TestMemory::new([
        (0, low),
        (CODE, vec![0; CODE_BYTES as usize]),
        (TABLE_AT, vec![0; LIMIT as usize]),
    ]);
    const { assert!(SLOTS_AT + SLOT_BYTES < LIMIT) };
    let layout = Layout { code: CODE..CODE + CODE_BYTES, table: TABLE_AT, limit: LIMIT };
    let mut engine = Engine::<Aarch64>::new(layout, optimizations);
    if interprets {
        engine.set_hot_threshold(HOT);
        engine.interpret_cold_code();
    }
    let mut state = State::default();
    state.set_r(TABLE, TABLE_AT);
    state.set_r(SLOTS, SLOTS_AT);
    state.pc = enter(&mut engine, None, BASE, &mut state, &memory);
    let x = |state: &State, number| match place(number) {
        Location::Register(register) => state.r(register),
        _ => unreachable!("arguments are in registers"),
    };
    let (mut written, mut resume_points) = (Vec::new(), 0u64);
    loop {
        if let Some(interval) = interval
            && let Some(position) = engine.position(state.pc).filter(|position| position.is_boundary)
            && case_addresses.binary_search(&position.pc).is_ok()
        {
            resume_points += 1;
            if resume_points.is_multiple_of(interval) {
                if let Some(pending) = position.pending {
                    Aarch64::settle(pending, &mut state, &memory);
                }
                state.set_r(1, 0);
                state.pc = enter(&mut engine, None, position.pc, &mut state, &memory);
            }
        }
        let word = Environment::fetch(&memory, state.pc).expect("code is mapped");
        let instruction = decode_word(word).unwrap_or_else(|| panic!("{word:#010x} at {:#x}", state.pc));
        let Err(trap) = semantics::execute(&mut state, &instruction, &memory) else { continue };
        match (trap, engine.exit_at(state.pc)) {
            (Trap::Break(_), Some(Exit::To(pc))) => {
                state.pc = enter(&mut engine, Some(state.pc), pc, &mut state, &memory);
            }
            (Trap::Break(_), Some(Exit::Service(instruction))) => {
                match serve(instruction, &mut state, &memory) {
                    ServiceResult::ExactFloats { .. }
                        if engine.use_exact_floats(&memory).expect("there is memory") =>
                    {
                        let position = engine.position(state.pc).expect("it is translated code");
                        state.set_r(1, 0);
                        state.pc = enter(&mut engine, None, position.pc + 4, &mut state, &memory);
                    }
                    result => {
                        assert!(
                            matches!(result, ServiceResult::Done | ServiceResult::ExactFloats { .. }),
                            "{result:?}"
                        );
                        state.pc += 4;
                    }
                }
            }
            (Trap::Syscall(_), _) if x(&state, 8) == 94 => return written,
            (Trap::Syscall(_), _) => {
                let (from, bytes) = (x(&state, 1) as usize, x(&state, 2) as usize);
                written.extend_from_slice(&memory.bytes(0)[from..from + bytes]);
                state.pc += 4;
            }
            (trap, exit) => {
                let position = engine.position(state.pc).map(|position| position.pc);
                panic!("{trap:?} at {:#x}: {exit:?}, {position:#x?}", state.pc)
            }
        }
    }
}

/// The differences between QEMU's results and the translation's. `text` describes a case.
pub fn differences(cases: &[Case], interval: Option<u64>, text: &dyn Fn(&Case) -> String) -> Vec<String> {
    differences_with(Optimizations::default(), cases, interval, text)
}

/// The differences of single instructions, including FPSR.
pub fn differences_and_status(cases: &[Case], text: &dyn Fn(&Case) -> String) -> Vec<String> {
    compare(Optimizations::default(), (cases, None), true, text)
}

/// Like [`differences`], with this set of optimizations.
pub fn differences_with(
    optimizations: Optimizations,
    cases: &[Case],
    interval: Option<u64>,
    text: &dyn Fn(&Case) -> String,
) -> Vec<String> {
    compare(optimizations, (cases, interval), false, text)
}

fn compare(
    optimizations: Optimizations,
    (cases, interval): (&[Case], Option<u64>),
    compares_status: bool,
    text: &dyn Fn(&Case) -> String,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for cases in cases.chunks(MAX_CASES) {
        let (image, case_addresses) = image(cases);
        let expected = reference(&image);
        let interprets =
            if optimizations == Optimizations::default() { &[false, true][..] } else { &[false] };
        let actual = interprets
            .iter()
            .map(|interprets| translated(&image, &case_addresses, interval, optimizations, *interprets));
        for actual in actual {
            assert_eq!(expected.len(), actual.len());
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight"));
            for (at, (expected, actual)) in expected.chunks(8).zip(actual.chunks(8)).enumerate() {
                // Sequences ignore FPSR, because lane operations may raise more flags in translated code.
                if expected == actual || at % WORDS == STATUS && !compares_status && at / WORDS < cases.len()
                {
                    continue;
                }
                let name = match at % WORDS {
                    CONTROL => "fpcr".into(),
                    STATUS => "fpsr".into(),
                    30 => "sp".into(),
                    31 => "nzcv".into(),
                    number @ ..30 => format!("x{number}"),
                    number => format!("v{}.d[{}]", (number - 32) / 2, number % 2),
                };
                let (expected, actual) = (word(expected), word(actual));
                wrong.push(match cases.get(at / WORDS) {
                    Some(case) => format!("{}: {name} is {actual:#x}, not {expected:#x}", text(case)),
                    None => {
                        format!("memory, word {}: {actual:#x}, not {expected:#x}", at - cases.len() * WORDS)
                    }
                });
            }
        }
    }
    wrong
}
