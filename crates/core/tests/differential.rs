//! Translated code against the reference interpreter: random programs end with the same registers and memory.
//! Not a test of the reference semantics, which have oracles of their own.
//! Source: our own; the comparison leaves out what the manual leaves undefined.

use std::sync::Arc;

use longma_core::{ConfigurationWords, Core, Execution, SharedCode, Stop, Watch};
use longma_linux::{AddressSpace, GuestMemory, Protection, host::faults};
use longma_loongarch::{
    Class, Extension, Instruction, Op, Operand, RegisterKind, State, Trap, encode,
    semantics::is_user_instruction,
};
use proptest::{prelude::*, test_runner::Config};

const CODE: u64 = 0x1_0000_0000;
const DATA: u64 = 0x1_0010_0000;
const DATA_BYTES: u64 = 0x1_0000;
/// Often enough that every block becomes hot and runs translated for long.
const ROUNDS: u64 = 200;

/// r28 counts the rounds, r29 points into the data, r30 and r31 hold small offsets: random instructions leave them alone.
const COUNTER: u8 = 28;
const POINTER: u8 = 29;
const INDEX: u8 = 30;

struct Unwatched;

impl Watch for Unwatched {
    fn watch(&self, _address: u64) {}
}

/// What a program left behind.
#[derive(Debug, PartialEq)]
struct End {
    stop: Stop,
    state: State,
    data: Vec<u8>,
}

struct Bench {
    space: AddressSpace,
}

impl Bench {
    fn new() -> Self {
        faults::install();
        faults::prepare_thread();
        let space = AddressSpace::new(GuestMemory::reserve().expect("address space"));
        space.map_zeros(CODE, 0x1_0000, Protection::from_bits(7)).expect("code");
        space.map_zeros(DATA, DATA_BYTES, Protection::from_bits(3)).expect("data");
        Self { space }
    }

    fn run(&self, program: &[u32], state: &State, data: &[u8], translate: bool) -> (End, u64) {
        let memory = self.space.memory();
        let bytes: Vec<u8> = program.iter().flat_map(|word| word.to_le_bytes()).collect();
        memory.write(CODE, &bytes).expect("the code is mapped");
        memory.write(DATA, data).expect("the data is mapped");
        let execution = Execution { translate, counting: false };
        let code = SharedCode::new(memory, execution, Arc::new(Unwatched)).expect("executable memory");
        let mut core = Core::new(state.clone(), memory.clone(), ConfigurationWords::default(), code.clone())
            .expect("a core");
        let stop = core.run();
        let mut left = vec![0; DATA_BYTES as usize];
        memory.read(DATA, &mut left).expect("the data is mapped");
        let regions = code.counts().regions.load(std::sync::atomic::Ordering::Relaxed);
        (End { stop, state: core.cpu().state.clone(), data: left }, regions)
    }
}

/// A loop around `body` that ends in a system call.
fn looped(body: &[Instruction]) -> Vec<u32> {
    let mut program = body.to_vec();
    program.push(Instruction { d: COUNTER, j: COUNTER, imm: -1, ..Instruction::new(Op::AddiD) });
    let back = -4 * program.len() as i32;
    program.push(Instruction { j: COUNTER, imm: back, ..Instruction::new(Op::Bnez) });
    program.push(Instruction::new(Op::Syscall));
    program.iter().map(|i| encode(i).unwrap_or_else(|error| panic!("{error}"))).collect()
}

/// An instruction that random programs may have: it computes, or accesses memory through the pointer.
fn is_usable(op: Op) -> bool {
    let row = op.row();
    let excluded = matches!(
        op,
        Op::Movgr2fcsr
            | Op::Movfcsr2gr
            | Op::X86settm
            | Op::X86clrtm
            | Op::Ibar
            | Op::Cpucfg
            | Op::AsrtleD
            | Op::AsrtgtD
    );
    is_user_instruction(op)
        && !excluded
        && !matches!(row.class, Class::System | Class::Branch | Class::Jump | Class::Prefetch)
        && !matches!(row.extension, Extension::Bound | Extension::Lbt)
        && !row.mnemonic.contains("gt.")
        && !row.mnemonic.contains("le.") | !row.mnemonic.contains("ld") & !row.mnemonic.contains("st")
}

fn usable(extensions: &[Extension]) -> Vec<Op> {
    Op::all().filter(|op| is_usable(*op) && extensions.contains(&op.row().extension)).collect()
}

/// The format of a scalar floating-point instruction's result and of its sources: `s` and `w` are 32 bits wide, and the manual
/// leaves the other half of a register undefined after such a result.
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

/// Random operands for `op`, kept such that memory accesses stay in the data.
fn instruction(op: Op) -> BoxedStrategy<Instruction> {
    let row = op.row();
    let accesses_memory = matches!(row.class, Class::Load | Class::Store | Class::Atomic);
    (any::<[u8; 4]>(), any::<[i32; 2]>())
        .prop_map(move |(registers, immediates)| {
            let mut i = Instruction::new(op);
            let mut seen = 0;
            for operand in row.operands {
                match operand {
                    Operand::Register(kind, position) => {
                        let random = registers[usize::from(*position) / 5 % 4];
                        let number = match kind {
                            RegisterKind::General => random % 28,
                            RegisterKind::Condition => random % 8,
                            RegisterKind::Scratch | RegisterKind::FloatControl => 0,
                            _ => random % 32,
                        };
                        match position {
                            0 => i.d = number,
                            5 => i.j = number,
                            10 => i.k = number,
                            _ => i.a = number,
                        }
                    }
                    Operand::Immediate(immediate) => {
                        let mask = (1i64 << immediate.width()) - 1;
                        let field = i64::from(immediates[seen]) & mask;
                        let value = if immediate.signed { field - (mask + 1) / 2 } else { field };
                        let scaled = (value << immediate.scale) as i32 + i32::from(immediate.plus);
                        *(if seen == 0 { &mut i.imm } else { &mut i.imm2 }) = scaled;
                        seen += 1;
                    }
                }
            }
            if accesses_memory {
                aim_at_data(&mut i, row.operands.len(), row.class);
            }
            if matches!(op, Op::BstrpickD | Op::BstrpickW | Op::BstrinsD | Op::BstrinsW) && i.imm < i.imm2 {
                std::mem::swap(&mut i.imm, &mut i.imm2);
            }
            i
        })
        .boxed()
}

/// Makes an access go through the pointer, aligned where that matters.
fn aim_at_data(i: &mut Instruction, operands: usize, class: Class) {
    i.j = POINTER;
    let third = i.op.row().operands.get(2);
    if class == Class::Atomic {
        i.imm &= !15;
    } else if operands == 3 && matches!(third, Some(Operand::Register(RegisterKind::General, 10))) {
        i.k = INDEX;
    }
}

/// A starting state: general registers random, some of them edge cases; vector registers numbers and bit patterns.
fn starting_state() -> impl Strategy<Value = State> {
    let word = prop_oneof![
        any::<u64>(),
        any::<i8>().prop_map(|v| v as i64 as u64),
        prop::sample::select(vec![
            0,
            1,
            u64::MAX,
            1 << 63,
            i64::MAX as u64,
            0x8000_0000,
            0x7fff_ffff,
            0xffff_ffff
        ]),
    ];
    let double = prop_oneof![
        (-1.0e6..1.0e6f64).prop_map(f64::to_bits),
        any::<u64>(),
        any::<[f32; 2]>().prop_map(|[a, b]| u64::from(a.to_bits()) << 32 | u64::from(b.to_bits())),
        prop::sample::select(vec![
            0,
            1 << 63,
            0x7ff0 << 48,
            0x7ff8 << 48,
            0x7ff0_0000_0000_0001,
            1,
            0x3ff0 << 48
        ]),
    ];
    (prop::collection::vec(word, 28), prop::collection::vec(double, 128)).prop_map(|(general, lanes)| {
        let mut state = State { pc: CODE, ..State::default() };
        state.x[1..28].copy_from_slice(&general[1..]);
        state.x[usize::from(COUNTER)] = ROUNDS;
        state.x[usize::from(POINTER)] = DATA + DATA_BYTES / 2;
        state.x[usize::from(INDEX)] = 40;
        for (register, lanes) in state.v.iter_mut().zip(lanes.chunks(4)) {
            register.0.copy_from_slice(lanes);
        }
        state
    })
}

/// Which bits of the vector registers a program of these instructions defines.
fn defined_bits(body: &[Instruction]) -> [u64; 4] {
    let has = |extension| body.iter().any(|i| i.op.row().extension == extension);
    if has(Extension::Lasx) {
        [u64::MAX; 4]
    } else if has(Extension::Lsx) {
        [u64::MAX, u64::MAX, 0, 0]
    } else if body.iter().any(|i| writes_half(i.op)) {
        [0xffff_ffff, 0, 0, 0]
    } else {
        [u64::MAX, 0, 0, 0]
    }
}

fn compare(bench: &Bench, body: &[Instruction], state: &State, data: &[u8]) {
    let program = looped(body);
    let (mut expected, _) = bench.run(&program, state, data, false);
    let (mut actual, regions) = bench.run(&program, state, data, true);
    let mask = defined_bits(body);
    for end in [&mut expected, &mut actual] {
        for register in &mut end.state.v {
            for (lane, mask) in register.0.iter_mut().zip(mask) {
                *lane &= mask;
            }
        }
        // Translated code leaves the causes of the last instruction alone (see the book's chapter on execution).
        end.state.fcsr.0 &= !0x1f00_0000;
        end.state.reservation = Default::default();
    }
    let text: Vec<String> = body.iter().map(ToString::to_string).collect();
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

/// Bytes that depend on `seed` alone.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..DATA_BYTES).map(|_| next()).collect()
}

/// Random programs over the instructions of `extensions`, and each instruction by itself.
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
            compare(&bench, &body, &state, &noise(seed));
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
                // In a loop it would read the half it leaves undefined.
                if writes_half(op) && !reads_half(op) && one.d == one.j {
                    return Ok(());
                }
                compare(&bench, &[one], &state, &[0x5a; DATA_BYTES as usize]);
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{op:?}: {error}"));
    }
}

/// `LONGMA_DIFFERENTIAL_TIMES` multiplies the work, for a longer campaign.
fn times() -> u32 {
    std::env::var("LONGMA_DIFFERENTIAL_TIMES").ok().and_then(|t| t.parse().ok()).unwrap_or(1)
}

fn single_cases() -> u32 {
    3 * times()
}

/// A loop that uses the link register so much that it lives in a host register, and calls functions that store it.
#[test]
fn a_called_function_sees_the_link_register_of_its_call() {
    let bench = Bench::new();
    let mut body = vec![Instruction { d: 5, j: 5, k: 1, ..Instruction::new(Op::Xor) }; 60];
    // Behind the two calls stand the three instructions of the loop's end, then two functions of two instructions each.
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
    let data = noise(1);
    let (expected, _) = bench.run(&program, &state, &data, false);
    let (actual, regions) = bench.run(&program, &state, &data, true);
    assert!(regions > 0);
    assert_eq!(expected.state.x, actual.state.x);
    assert_eq!(expected.data[..8], (CODE + 4 * 61).to_le_bytes(), "the first function was called");
    assert_eq!(expected.data[8..16], (CODE + 4 * 62).to_le_bytes(), "the second function was called");
    assert!(expected.data == actual.data, "a function stored another link register");
}

#[test]
fn integer_programs_end_alike_translated_and_interpreted() {
    check(&[Extension::Base, Extension::Mul, Extension::Bit], 60 * times());
}

#[test]
fn atomic_programs_end_alike_translated_and_interpreted() {
    check(&[Extension::Base, Extension::Atomic], 30 * times());
}

#[test]
fn floating_point_programs_end_alike_translated_and_interpreted() {
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
fn lsx_programs_end_alike_translated_and_interpreted() {
    check(&[Extension::Lsx], 60 * times());
}

#[test]
fn lasx_programs_end_alike_translated_and_interpreted() {
    check(&[Extension::Lasx], 60 * times());
}
