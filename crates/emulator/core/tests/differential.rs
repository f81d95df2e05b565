//! Compares translated code with the reference interpreter: random programs must end with the same registers and
//! memory. Values that the manual leaves undefined are not compared.

#[path = "differential/interruption.rs"]
mod interruption;
mod programs;

use std::sync::Arc;

use longma_core::{ConfigurationWords, Core, Execution, Origin, SharedCode, Stop};
use longma_loongarch::{Class, Extension, Fcsr, Instruction, Op, State, Trap, decode, encode};
use proptest::{prelude::*, test_runner::Config};

use programs::*;

/// The final state of a program.
#[derive(Debug, PartialEq)]
struct End {
    stop: Stop,
    state: State,
    data: Vec<u8>,
}

fn run(bench: &Bench, program: &[u32], state: &State, data: &[u8], translate: bool) -> (End, u64) {
    let memory = bench.load(program, data);
    let has_sse_rules = state.fcsr.0 & Fcsr::SSE_RULES != 0;
    let origin = if has_sse_rules { Origin::X86 } else { Origin::Other };
    let execution = Execution { translate, origin, ..Execution::default() };
    let code = SharedCode::new(&memory, execution, Arc::new(Unwatched)).expect("executable memory");
    let mut core = Core::new(state.clone(), memory.clone(), ConfigurationWords::default(), code.clone())
        .expect("a core");
    let stop = core.run();
    let regions = code.counts().regions.load(std::sync::atomic::Ordering::Relaxed);
    (End { stop, state: core.cpu().state.clone(), data: bench.data() }, regions)
}

/// Puts `body` into a loop that ends in a system call.
fn looped(body: &[Instruction]) -> Vec<u32> {
    let mut program = body.to_vec();
    program.push(Instruction { d: COUNTER, j: COUNTER, imm: -1, ..Instruction::new(Op::AddiD) });
    let offset = -4 * program.len() as i32;
    program.push(Instruction { j: COUNTER, imm: offset, ..Instruction::new(Op::Bnez) });
    program.push(Instruction::new(Op::Syscall));
    encoded(&program)
}

/// The formats of a scalar floating-point instruction's result and sources. `s` and `w` are 32 bits wide, and the
/// manual leaves the other half of a register undefined after such a result.
fn formats(op: Op) -> Option<(char, char)> {
    let name = op.mnemonic();
    let mut parts =
        name.split('.').skip(1).filter_map(|part| part.chars().next().filter(|_| part.len() == 1));
    let is_float = op.row().extension == Extension::Fp && !name.starts_with("fcmp");
    let result = parts.next().filter(|_| is_float)?;
    Some((result, parts.next().unwrap_or(result)))
}

fn writes_half(op: Op) -> bool {
    let moves_half = matches!(op, Op::Movgr2frW | Op::Movgr2frhW | Op::Movcf2fr);
    moves_half || formats(op).is_some_and(|(result, _)| matches!(result, 's' | 'w'))
}

fn reads_half(op: Op) -> bool {
    matches!(op, Op::Movfr2grS | Op::Movfr2cf)
        || formats(op).is_some_and(|(_, source)| matches!(source, 's' | 'w'))
}

/// The bits of the vector registers that a program of these instructions defines.
fn defined_bits(body: &[Instruction]) -> [u64; 4] {
    let has = |extension| body.iter().any(|i| i.op.row().extension == extension);
    let is_wide = |i: &Instruction| i.op.mnemonic().starts_with('x');
    if has(Extension::Lasx) || has(Extension::Private) && body.iter().any(is_wide) {
        [u64::MAX; 4]
    } else if has(Extension::Lsx) || has(Extension::Private) {
        [u64::MAX, u64::MAX, 0, 0]
    } else if body.iter().any(|i| writes_half(i.op)) {
        [0xffff_ffff, 0, 0, 0]
    } else {
        [u64::MAX, 0, 0, 0]
    }
}

fn compare(bench: &Bench, body: &[Instruction], state: &State, data: &[u8]) {
    compare_programs(bench, &looped(body), defined_bits(body), state, data);
}

fn compare_programs(bench: &Bench, program: &[u32], mask: [u64; 4], state: &State, data: &[u8]) {
    let (mut expected, _) = run(bench, program, state, data, false);
    let (mut actual, regions) = run(bench, program, state, data, true);
    for end in [&mut expected, &mut actual] {
        for register in &mut end.state.v {
            for (lane, mask) in register.0.iter_mut().zip(mask) {
                *lane &= mask;
            }
        }
        // Translated code does not update the cause bits (see the book's chapter on execution).
        end.state.fcsr.0 &= !0x1f00_0000;
        end.state.reservation = Default::default();
    }
    let text: Vec<String> = program.iter().map(|word| decode(*word).expect("encoded").to_string()).collect();
    assert_eq!(expected.stop, actual.stop, "{text:#?}");
    if expected.stop == Stop::Trap(Trap::Syscall(0)) {
        assert!(regions > 0, "nothing was translated: {text:#?}");
    }
    for n in 0..32 {
        assert_eq!(expected.state.x[n], actual.state.x[n], "r{n} after {text:#?}");
        assert_eq!(expected.state.v[n], actual.state.v[n], "v{n} after {text:#?}");
    }
    assert_eq!(expected.state, actual.state, "{text:#?}");
    assert!(expected.data == actual.data, "memory differs after {text:#?}");
}

/// Tests random programs of the instructions of `extensions`, and each instruction separately.
fn check(extensions: &[Extension], programs: u32) {
    check_programs(&usable(extensions), programs);
    check_each(&usable(extensions));
}

fn check_programs(ops: &[Op], programs: u32) {
    let bench = Bench::new();
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(
        Config { cases: programs, failure_persistence: None, ..Config::default() },
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let programs =
        prop::collection::vec(prop::sample::select(ops.to_vec()).prop_flat_map(instruction), 1..24);
    let inputs = (programs, starting_state(), any::<u64>());
    runner
        .run(&inputs, |(body, state, seed)| {
            compare(&bench, &body, &state, &random_bytes(seed));
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

fn check_each(ops: &[Op]) {
    let bench = Bench::new();
    for &op in ops {
        let mut runner = proptest::test_runner::TestRunner::new_with_rng(
            Config { cases: single_cases(), failure_persistence: None, ..Config::default() },
            proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
        );
        let inputs = (instruction(op), starting_state());
        runner
            .run(&inputs, |(one, state)| {
                // In the loop, the instruction would read the half that it leaves undefined.
                if writes_half(op) && !reads_half(op) && one.d == one.j {
                    return Ok(());
                }
                compare(&bench, &[one], &state, &[0x5a; DATA_BYTES as usize]);
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{op:?}: {error}"));
    }
}

/// `LONGMA_DIFFERENTIAL_TIMES` multiplies the number of cases for longer runs.
fn times() -> u32 {
    std::env::var("LONGMA_DIFFERENTIAL_TIMES").ok().and_then(|t| t.parse().ok()).unwrap_or(1)
}

fn single_cases() -> u32 {
    3 * times()
}

/// The link register is used so often in a loop that it is in a host register, and the called functions store it.
#[test]
fn a_called_function_sees_the_link_register_of_its_call() {
    let bench = Bench::new();
    let mut body = vec![Instruction { d: 5, j: 5, k: 1, ..Instruction::new(Op::Xor) }; 60];
    // After the two calls come the three instructions that end the loop, then two functions of two instructions each.
    body.push(Instruction { imm: 4 * 5, ..Instruction::new(Op::Bl) });
    body.push(Instruction { imm: 4 * 6, ..Instruction::new(Op::Bl) });
    let mut program = looped(&body);
    for offset in [0, 8] {
        let function = [
            Instruction { d: 1, j: POINTER, imm: offset, ..Instruction::new(Op::StD) },
            Instruction { d: 0, j: 1, imm: 0, ..Instruction::new(Op::Jirl) },
        ];
        program.extend(function.iter().map(|i| encode(i).expect("in range")));
    }
    let mut state = State { pc: CODE, ..State::default() };
    state.x[usize::from(COUNTER)] = ROUNDS;
    state.x[usize::from(POINTER)] = DATA;
    let data = random_bytes(1);
    let (expected, _) = run(&bench, &program, &state, &data, false);
    let (actual, regions) = run(&bench, &program, &state, &data, true);
    assert!(regions > 0);
    assert_eq!(expected.state.x, actual.state.x);
    assert_eq!(expected.data[..8], (CODE + 4 * 61).to_le_bytes(), "the first function was called");
    assert_eq!(expected.data[8..16], (CODE + 4 * 62).to_le_bytes(), "the second function was called");
    assert!(expected.data == actual.data, "a function stored another link register");
}

#[test]
fn translated_and_interpreted_integer_programs_agree() {
    check(&[Extension::Base, Extension::Mul, Extension::Bit], 60 * times());
}

#[test]
fn translated_and_interpreted_programs_with_calls_and_inner_branches_agree() {
    let bench = Bench::new();
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(
        Config { cases: 60 * times(), failure_persistence: None, ..Config::default() },
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let ops = usable(&[Extension::Base, Extension::Mul, Extension::Bit, Extension::Lasx]);
    let inputs = (pieces(ops), starting_state(), any::<u64>());
    runner
        .run(&inputs, |(mut pieces, state, seed)| {
            pieces.retain(|piece| !matches!(piece, Piece::Syscall(_)));
            compare_programs(&bench, &assemble(&pieces), [u64::MAX; 4], &state, &random_bytes(seed));
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn translated_and_interpreted_atomic_programs_agree() {
    check(&[Extension::Base, Extension::Atomic], 30 * times());
}

#[test]
fn translated_and_interpreted_floating_point_programs_agree() {
    let all = usable(&[Extension::Base, Extension::Fp]);
    check_each(&all);
    let doubles: Vec<Op> = all.iter().copied().filter(|op| !writes_half(*op)).collect();
    check_programs(&doubles, 60 * times());
    let is_single = |op: &Op| {
        let wide = matches!(op, Op::Movgr2frD | Op::Movfr2grD | Op::Movfrh2grS | Op::Movgr2frhW);
        !wide
            && (op.row().extension != Extension::Fp || reads_half(*op) || formats(*op).is_none())
            && !formats(*op).is_some_and(|(result, _)| matches!(result, 'd' | 'l'))
            && !op.mnemonic().ends_with(".d")
    };
    let singles: Vec<Op> = all.iter().copied().filter(is_single).collect();
    check_programs(&singles, 60 * times());
}

#[test]
fn translated_and_interpreted_lsx_programs_agree() {
    check(&[Extension::Lsx], 60 * times());
}

#[test]
fn translated_and_interpreted_lasx_programs_agree() {
    check(&[Extension::Lasx], 60 * times());
}

#[test]
fn translated_and_interpreted_private_instructions_agree() {
    let ops = usable(&[Extension::Private]);
    check_each(&ops);
    let is_narrow = |op: &Op| !op.mnemonic().starts_with('x');
    let narrow: Vec<Op> = usable(&[Extension::Lsx]).into_iter().chain(ops).filter(is_narrow).collect();
    check_programs(&narrow, 60 * times());
}

/// The instructions whose results depend on x86-64's rules, with each combination of these.
#[test]
fn translated_and_interpreted_floating_point_agrees_by_the_rules_of_x86() {
    let bench = Bench::new();
    let is_excluded = |op: &Op| {
        let name = op.mnemonic().trim_start_matches(['x', 'v']);
        // Translated x86-64 programs contain none of these.
        let starts = ["fmax", "fmin", "fscaleb", "flogb", "fclass", "fnm", "frecip", "frsqrt"];
        !name.starts_with('f') || starts.iter().any(|start| name.starts_with(start)) || name.contains(".h")
    };
    let mut ops = usable(&[Extension::Fp, Extension::Lsx, Extension::Lasx]);
    ops.retain(|op| !is_excluded(op) && op.row().class != Class::Load && op.row().class != Class::Store);
    ops.extend([Op::VfrintSExact, Op::VfrintDExact, Op::XvfrintSExact, Op::XvfrintDExact]);
    assert!(ops.len() > 150, "{}", ops.len());
    for op in ops {
        let mut runner = proptest::test_runner::TestRunner::new_with_rng(
            Config { cases: 4 * single_cases(), failure_persistence: None, ..Config::default() },
            proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
        );
        runner
            .run(&(instruction(op), subnormal_state(), 0u32..16), |(one, mut state, rules)| {
                let rounding = (rules & 3) << 8;
                state.fcsr = Fcsr(Fcsr::SSE_RULES | rounding | (rules >> 2) << 30);
                if !(writes_half(op) && !reads_half(op) && one.d == one.j) {
                    compare(&bench, &[one], &state, &[0x5a; DATA_BYTES as usize]);
                }
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{op:?}: {error}"));
    }
}

/// A state whose vectors hold subnormal and tiny numbers in both precisions, and others.
fn subnormal_state() -> impl Strategy<Value = State> {
    let tiny = any::<u64>().prop_map(|bits| bits & 0x801f_ffff_807f_ffff);
    let small = any::<u64>().prop_map(|bits| bits & 0x801f_ffff_80ff_ffff | 0x1ff0_0000_2000_0000);
    let usual = prop::sample::select(vec![
        0x3ff0_0000_3f80_0000,
        0x0010_0000_0080_0000,
        0x7ff8_0000_7fc0_0001,
        0x36a0_0000_0000_0001,
        0x7ff0_0000_7f80_0000,
    ]);
    let lane = prop_oneof![2 => tiny, 1 => small, 2 => usual];
    (starting_state(), prop::collection::vec(lane, 128)).prop_map(|(mut state, lanes)| {
        for (register, lanes) in state.v.iter_mut().zip(lanes.chunks(4)) {
            register.0.copy_from_slice(lanes);
        }
        state
    })
}

#[test]
fn programs_of_loongarch_have_no_private_instructions() {
    let bench = Bench::new();
    for op in usable(&[Extension::Private]) {
        for translate in [false, true] {
            // Reached only in the last round, when the loop is hot.
            let last = Instruction { d: 4, j: COUNTER, imm: -1, ..Instruction::new(Op::AddiD) };
            let skip = Instruction { j: 4, imm: 8, ..Instruction::new(Op::Bnez) };
            let program = looped(&[last, skip, Instruction { d: 4, j: 5, k: 6, ..Instruction::new(op) }]);
            let memory = bench.load(&program, &[0; DATA_BYTES as usize]);
            let execution = Execution { translate, ..Execution::default() };
            let code = SharedCode::new(&memory, execution, Arc::new(Unwatched)).expect("executable memory");
            let mut state = State { pc: CODE, ..State::default() };
            state.x[usize::from(COUNTER)] = ROUNDS;
            let mut core = Core::new(state, memory, ConfigurationWords::default(), code).expect("a core");
            assert_eq!(core.run(), Stop::Trap(Trap::IllegalInstruction), "{op:?}");
            assert_eq!(core.cpu().state.pc, CODE + 8, "{op:?}");
        }
    }
}
