//! Checks that traces describe exactly the instructions that were executed, translated or interpreted.

#[path = "tracing/paused.rs"]
mod paused;
mod programs;

use std::sync::Arc;

use longma_core::{ConfigurationWords, Core, Execution, Magic, SharedCode, SimulatedClock, Stop};
use longma_guest::GuestMemory;
use longma_loongarch::{Extension, Instruction, Op, State, Trap, encode};
use longma_trace::has_address;
use proptest::{prelude::*, test_runner::Config};

use programs::*;

/// The address of an executed instruction and the address that it accessed.
type Step = (u64, Option<u64>);

/// The execution and the final state of a program.
#[derive(Debug, PartialEq)]
struct Run {
    steps: Vec<Step>,
    general: [u64; 32],
    data: Vec<u8>,
}

/// The number of traps after which a program is stopped. Before that, its handler skips the instruction.
const MAX_TRAPS: u32 = 2000;

/// An action at each system call of a program.
type StateAtSyscall<'a> = &'a mut dyn FnMut(u32, &mut Core, &SharedCode);

fn core_of(memory: &GuestMemory, execution: Execution, state: State) -> (Core, SharedCode) {
    let code = SharedCode::new(memory, execution, Arc::new(Unwatched)).expect("executable memory");
    let core = Core::new(state, memory.clone(), ConfigurationWords::default(), code.clone()).expect("a core");
    (core, code)
}

const TRACED: Execution = Execution {
    translate: true,
    counting: false,
    tracing: true,
    magic: false,
    metered: false,
    pausable: false,
    origin: longma_core::Origin::LoongArch,
};

/// Appends the steps in the core's trace, and clears it.
fn drain(core: &mut Core, code: &SharedCode, steps: &mut Vec<Step>) {
    for record in core.trace().records() {
        let block = code.traced_block(record.block);
        let mut addresses = record.addresses.iter();
        let executed = usize::from(record.executed);
        assert!((1..=block.instructions.len()).contains(&executed), "{executed} of {block:?}");
        for (index, instruction) in block.instructions[..executed].iter().enumerate() {
            let address = has_address(instruction.op).then(|| *addresses.next().expect("an address each"));
            steps.push((block.start + 4 * index as u64, address));
        }
        assert_eq!(addresses.next(), None, "an address too many in {block:?}");
    }
    core.clear_trace();
}

/// Runs until `syscall 0` or until the limit of traps, and returns the traced steps.
fn run_traced(core: &mut Core, code: &SharedCode, at_syscall: StateAtSyscall) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut traps = 0;
    loop {
        let stop = core.run();
        drain(core, code, &mut steps);
        match stop {
            Stop::Trap(Trap::Syscall(0)) => return steps,
            Stop::Trap(Trap::Syscall(number)) => {
                core.cpu().state.pc += 4;
                at_syscall(number, core, code);
            }
            Stop::Trap(_) if traps == MAX_TRAPS => return steps,
            Stop::Trap(_) => {
                traps += 1;
                core.cpu().state.pc += 4;
            }
            Stop::Attention => core.cpu().attention.clear(),
            Stop::Quantum => {}
            Stop::Magic(magic) => panic!("unexpected {magic:?}"),
        }
    }
}

fn traced(bench: &Bench, program: &[u32], state: &State, data: &[u8], translate: bool) -> Run {
    let memory = bench.load(program, data);
    let (mut core, code) = core_of(&memory, Execution { translate, ..TRACED }, state.clone());
    core.set_quantum(700);
    let steps = run_traced(&mut core, &code, &mut rewrite_periodically(&memory));
    if translate && steps.len() > 100 * program.len() {
        assert!(
            code.counts().regions.load(std::sync::atomic::Ordering::Relaxed) > 0,
            "nothing was translated"
        );
    }
    Run { steps, general: core.cpu().state.x, data: bench.data() }
}

/// The number of executed instructions according to block counts.
fn counted(bench: &Bench, program: &[u32], state: &State, data: &[u8], translate: bool) -> u64 {
    let memory = bench.load(program, data);
    let execution = Execution { translate, counting: true, ..Execution::default() };
    let (mut core, code) = core_of(&memory, execution, state.clone());
    let steps = run_traced(&mut core, &code, &mut rewrite_periodically(&memory));
    assert!(steps.is_empty(), "nothing is traced");
    code.executed().iter().map(|block| block.runs * u64::from(block.instructions)).sum()
}

/// Changes the program's first instruction at every 64th system call.
fn rewrite_periodically(memory: &GuestMemory) -> impl FnMut(u32, &mut Core, &SharedCode) {
    let mut calls = 0;
    move |_, core, code| {
        calls += 1;
        if calls % 64 == 0 {
            let op = if calls % 128 == 0 { Op::LdW } else { Op::AddiD };
            let other = Instruction { d: 5, j: POINTER, imm: 16, ..Instruction::new(op) };
            memory.write(CODE, &encode(&other).expect("in range").to_le_bytes()).expect("code");
            code.invalidate(&(CODE..CODE + 4));
            core.cpu().attention.request();
        }
    }
}

fn compare(bench: &Bench, program: &[u32], state: &State, data: &[u8]) {
    let expected = stepped(bench, program, state, data);
    for translate in [false, true] {
        let actual = traced(bench, program, state, data, translate);
        let difference = expected.steps.iter().zip(&actual.steps).position(|(e, a)| e != a);
        if let Some(at) = difference {
            let from = at.saturating_sub(4);
            let text: Vec<String> = program
                .iter()
                .map(|word| longma_loongarch::decode(*word).expect("encoded").to_string())
                .collect();
            panic!(
                "translated: {translate}, step {at}: {:x?}, not {:x?}, in {text:#?}",
                &actual.steps[from..(at + 4).min(actual.steps.len())],
                &expected.steps[from..(at + 4).min(expected.steps.len())]
            );
        }
        assert_eq!(expected.steps.len(), actual.steps.len(), "translated: {translate}");
        assert!(expected == actual, "translated: {translate}: another end");
        // Not checked if the pointer moved: accesses then trap in instructions passed to the interpreter, and blocks
        // with such instructions are counted as a whole.
        if expected.general[usize::from(POINTER)] == state.x[usize::from(POINTER)] {
            let counts = counted(bench, program, state, data, translate);
            assert_eq!(counts, expected.steps.len() as u64, "translated: {translate}: what blocks count");
        }
    }
}

/// The execution of a program, one instruction at a time and without a trace.
fn stepped(bench: &Bench, program: &[u32], state: &State, data: &[u8]) -> Run {
    let memory = bench.load(program, data);
    let (mut core, code) =
        core_of(&memory, Execution { translate: false, ..Execution::default() }, state.clone());
    let mut rewrite = rewrite_periodically(&memory);
    let mut steps = Vec::new();
    let mut traps = 0;
    loop {
        let step = next_step(&memory, &core.cpu().state);
        match core.step() {
            None => steps.push(step),
            Some(Stop::Trap(Trap::Syscall(number))) => {
                steps.push(step);
                if number == 0 {
                    break;
                }
                core.cpu().state.pc += 4;
                rewrite(number, &mut core, &code);
            }
            Some(Stop::Trap(_)) if traps == MAX_TRAPS => break,
            Some(Stop::Trap(_)) => {
                traps += 1;
                core.cpu().state.pc += 4;
            }
            Some(Stop::Attention) => core.cpu().attention.clear(),
            Some(stop) => panic!("{stop:?}"),
        }
    }
    Run { steps, general: core.cpu().state.x, data: bench.data() }
}

/// The instruction at the program counter and the address that it would access. These programs use only the simple
/// addressing forms.
fn next_step(memory: &GuestMemory, state: &State) -> Step {
    let word = memory.fetch(state.pc).expect("the code is mapped");
    let i = longma_loongarch::decode(word).expect("an instruction");
    let is_indexed = i.op.row().operands.len() == 3
        && i.op.row().operands[2]
            == longma_loongarch::Operand::Register(longma_loongarch::RegisterKind::General, 10);
    let offset = if is_indexed { state.x[usize::from(i.k)] } else { i.imm as i64 as u64 };
    (state.pc, has_address(i.op).then(|| state.x[usize::from(i.j)].wrapping_add(offset)))
}

/// `LONGMA_DIFFERENTIAL_TIMES` multiplies the number of cases for longer runs.
fn times() -> u32 {
    std::env::var("LONGMA_DIFFERENTIAL_TIMES").ok().and_then(|t| t.parse().ok()).unwrap_or(1)
}

fn check(extensions: &[Extension], programs: u32, change: fn(&mut State, &mut Vec<Piece>)) {
    check_programs(usable(extensions), programs, change);
}

fn check_programs(ops: Vec<Op>, programs: u32, change: fn(&mut State, &mut Vec<Piece>)) {
    let bench = Bench::new();
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(
        Config { cases: programs, failure_persistence: None, ..Config::default() },
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let inputs = (pieces(ops), starting_state(), any::<u64>());
    runner
        .run(&inputs, |(mut pieces, mut state, seed)| {
            // The instruction that is replaced at system calls.
            pieces.insert(0, Piece::Straight(vec![Instruction::new(Op::AddiD)]));
            change(&mut state, &mut pieces);
            compare(&bench, &assemble(&pieces), &state, &random_bytes(seed));
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn integer_programs_leave_the_same_trace_translated_and_interpreted() {
    check(&[Extension::Base, Extension::Mul, Extension::Bit], 40 * times(), |_, _| {});
}

#[test]
fn atomic_programs_leave_the_same_trace_translated_and_interpreted() {
    check(&[Extension::Base, Extension::Atomic], 20 * times(), |_, _| {});
}

#[test]
fn vector_programs_leave_the_same_trace_translated_and_interpreted() {
    // The widths are not mixed, because 128-bit instructions leave the rest of a register undefined.
    check(&[Extension::Base, Extension::Lsx], 15 * times(), |_, _| {});
    check(&[Extension::Base, Extension::Lasx], 15 * times(), |_, _| {});
}

/// Some of the numbers make the host fault, so that translated code passes instructions to the interpreter.
#[test]
fn floating_point_programs_leave_the_same_trace_translated_and_interpreted() {
    let mut ops = usable(&[Extension::Base, Extension::Fp]);
    // Only instructions that define all bits of a 64-bit result.
    let is_double = |name: &str| name.ends_with(".d") && !name.contains(".s.") && !name.contains(".w.");
    ops.retain(|op| op.row().extension != Extension::Fp || is_double(op.mnemonic()));
    check_programs(ops, 30 * times(), |_, _| {});
}

/// The pointer moves in each round and leaves the data in the middle of the run. Accesses then fault in translated
/// code, and a handler skips them.
#[test]
fn programs_that_fault_leave_the_same_trace_translated_and_interpreted() {
    check(&[Extension::Base, Extension::Atomic], 30 * times(), |_, pieces| {
        let step = Instruction { d: POINTER, j: POINTER, imm: 512, ..Instruction::new(Op::AddiD) };
        pieces.push(Piece::Straight(vec![step]));
    });
}

fn loop_state() -> State {
    let mut state = State { pc: CODE, ..State::default() };
    state.x[usize::from(COUNTER)] = ROUNDS;
    state.x[usize::from(POINTER)] = DATA;
    state
}

fn instruction_of(op: Op, d: u8, j: u8, imm: i32) -> Instruction {
    Instruction { d, j, imm, ..Instruction::new(op) }
}

#[test]
fn the_trace_contains_the_addresses_of_prefetches_and_bounded_accesses() {
    let bench = Bench::new();
    let body = vec![
        Instruction { j: POINTER, imm2: 64, ..Instruction::new(Op::Preld) },
        Instruction { j: POINTER, k: 6, ..Instruction::new(Op::Preldx) },
        Instruction { d: 5, j: POINTER, k: 7, ..Instruction::new(Op::LdleD) },
        Instruction { d: 5, j: POINTER, k: 6, ..Instruction::new(Op::StgtD) },
        Instruction { d: 5, j: POINTER, imm: -16, ..Instruction::new(Op::LlW) },
    ];
    let memory = bench.load(&assemble(&[Piece::Straight(body)]), &random_bytes(1));
    let at = DATA + 4096;
    for translate in [false, true] {
        let mut state = loop_state();
        state.x[usize::from(POINTER)] = at;
        // For the prefetch: eight bytes back. The upper bits specify how much to fetch.
        state.x[6] = 0x1_fff8;
        state.x[7] = u64::MAX >> 1;
        let (mut core, code) = core_of(&memory, Execution { translate, ..TRACED }, state);
        let steps = run_traced(&mut core, &code, &mut |_, _, _| {});
        let addresses: Vec<u64> = steps.iter().filter_map(|(_, address)| *address).collect();
        let expected = [at + 64, at - 8, at, at, at - 16].repeat(ROUNDS as usize);
        assert_eq!(addresses, expected, "translated: {translate}");
    }
}

#[test]
fn a_quantum_ends_at_the_first_block_after_its_length() {
    let bench = Bench::new();
    let load = instruction_of(Op::LdD, 5, POINTER, 8);
    let memory = bench.load(&assemble(&[Piece::Repeat(9, vec![load; 5])]), &random_bytes(1));
    for translate in [false, true] {
        let (mut core, _) = core_of(&memory, Execution { translate, ..TRACED }, loop_state());
        let mut quanta = 0;
        for words in [1, 40, 100].into_iter().cycle() {
            core.set_quantum(words);
            let stop = core.run();
            let lengths: Vec<usize> = core.trace().records().map(|r| 1 + r.addresses.len()).collect();
            let (last, full) = lengths.split_last().expect("something ran");
            let length: usize = full.iter().sum();
            assert!(length < words, "{length} words were enough");
            core.clear_trace();
            if stop == Stop::Trap(Trap::Syscall(0)) {
                break;
            }
            assert_eq!(stop, Stop::Quantum);
            assert!(length + last >= words, "{} words were too few", length + last);
            quanta += 1;
        }
        assert!(quanta > 100, "{quanta} quanta");
    }
}

/// The translated code of the two runs is at different host addresses.
#[test]
fn the_same_program_leaves_the_same_records_and_quanta_each_time() {
    let bench = Bench::new();
    let store = instruction_of(Op::StD, 5, POINTER, 8);
    let pieces = [
        Piece::Call(vec![store]),
        Piece::Repeat(5, vec![store]),
        Piece::CallByAddress(vec![store, store]),
        Piece::Syscall(1),
    ];
    let memory = bench.load(&assemble(&pieces), &random_bytes(1));
    let mut first_run = Vec::new();
    let mut run = || {
        let (mut core, code) = core_of(&memory, TRACED, loop_state());
        core.set_quantum(15);
        let mut records = Vec::new();
        loop {
            let stop = core.run();
            records.push((
                stop,
                core.trace().records().map(|r| (r.block, r.executed, r.addresses.to_vec())).collect(),
            ));
            core.clear_trace();
            match stop {
                Stop::Quantum => {}
                Stop::Trap(Trap::Syscall(1)) => core.cpu().state.pc += 4,
                _ => break,
            }
        }
        first_run.push((core, code));
        records
    };
    let first: Vec<(Stop, Vec<_>)> = run();
    assert!(first.len() > 2 * ROUNDS as usize, "{} stops", first.len());
    assert!(first == run());
}

#[test]
fn a_full_trace_stops_the_core_until_it_is_cleared() {
    let bench = Bench::new();
    let memory =
        bench.load(&assemble(&[Piece::Straight(vec![instruction_of(Op::AddiD, 5, 5, 1)])]), &random_bytes(1));
    let (mut core, _) = core_of(&memory, TRACED, loop_state());
    core.set_quantum(10);
    assert_eq!(core.run(), Stop::Quantum);
    let (state, records) = (core.cpu().state.clone(), core.trace().records().count());
    assert_eq!(core.run(), Stop::Quantum);
    assert_eq!(core.step(), Some(Stop::Quantum));
    assert_eq!((core.cpu().state.clone(), core.trace().records().count()), (state, records));
    core.clear_trace();
    assert!(core.trace().is_empty());
    assert_eq!(core.step(), None);
    assert_eq!(core.trace().records().count(), 1);
}

#[test]
fn a_core_stops_after_a_magic_instruction_if_enabled() {
    let bench = Bench::new();
    let magic = |n| instruction_of(Op::Andi, 0, 0, n);
    let body =
        vec![magic(0x4c1), instruction_of(Op::AddiD, 4, 4, 1), magic(0x4c4), magic(0x4c3), magic(0x4c2)];
    let memory = bench.load(&assemble(&[Piece::Straight(body)]), &random_bytes(1));
    let markers = |translate: bool, tracing: bool, magic: bool| {
        let execution = Execution { translate, tracing, magic, ..Execution::default() };
        let (mut core, code) = core_of(&memory, execution, loop_state());
        let (mut markers, mut steps) = (Vec::new(), Vec::new());
        loop {
            let stop = core.run();
            drain(&mut core, &code, &mut steps);
            match stop {
                Stop::Magic(magic) => markers.push((magic, core.cpu().state.pc)),
                Stop::Quantum => {}
                stop => {
                    assert_eq!(stop, Stop::Trap(Trap::Syscall(0)));
                    assert_eq!(steps.len(), if tracing { 7 * ROUNDS as usize + 1 } else { 0 });
                    return markers;
                }
            }
        }
    };
    let expected: Vec<(Magic, u64)> = (1..=ROUNDS)
        .flat_map(|round| {
            [
                (Magic::RegionBegin, CODE + 4),
                (Magic::Event(round), CODE + 12),
                (Magic::Checkpoint, CODE + 16),
                (Magic::RegionEnd, CODE + 20),
            ]
        })
        .collect();
    for translate in [false, true] {
        for tracing in [false, true] {
            assert_eq!(markers(translate, tracing, true), expected);
            assert_eq!(markers(translate, tracing, false), []);
        }
    }
}

/// The clock advances by ten nanoseconds, one tick, for each traced step.
#[test]
fn a_clock_read_includes_all_earlier_instructions() {
    let bench = Bench::new();
    let read = instruction_of(Op::RdtimeD, 5, 0, 0);
    let store = instruction_of(Op::StD, 5, POINTER, 0);
    let advance = instruction_of(Op::AddiD, POINTER, POINTER, 8);
    let other = instruction_of(Op::AddiD, 6, 6, 1);
    let memory =
        bench.load(&assemble(&[Piece::Straight(vec![other, read, store, advance, other])]), &random_bytes(1));
    for translate in [false, true] {
        let (mut core, code) = core_of(&memory, Execution { translate, ..TRACED }, loop_state());
        let clock = SimulatedClock::default();
        core.set_clock(clock.clone());
        let mut steps = Vec::new();
        while core.run() == Stop::Quantum {
            drain(&mut core, &code, &mut steps);
            clock.set_ps(10_000 * steps.len() as u64);
        }
        let data = bench.data();
        let mut times =
            data.chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
        for round in 0..ROUNDS {
            assert_eq!(times.next(), Some(7 * round + 1), "round {round}, translated: {translate}");
        }
    }
}

/// A round that computes, calls a function that stores, makes a system call, and stores in a loop.
fn calls_and_a_loop() -> Vec<u32> {
    let store = instruction_of(Op::StD, 5, POINTER, 8);
    let other = instruction_of(Op::AddiD, 5, 5, 3);
    let pieces = [
        Piece::Straight(vec![other; 2]),
        Piece::CallByAddress(vec![store, other]),
        Piece::Syscall(1),
        Piece::Repeat(3, vec![other, store]),
    ];
    assemble(&pieces)
}

/// A core continues in new traced code from the state that another core of the process left.
#[test]
fn a_core_continues_in_new_traced_code() {
    let bench = Bench::new();
    let program = calls_and_a_loop();
    let expected = stepped(&bench, &program, &loop_state(), &random_bytes(1));
    let memory = bench.load(&program, &random_bytes(1));
    let functional = Execution { tracing: false, ..TRACED };
    let (mut old, old_code) = core_of(&memory, functional, loop_state());
    let mut rewrite = rewrite_periodically(&memory);
    let mut calls = 0;
    // Run half of the rounds, with one change of code.
    while calls < ROUNDS / 2 {
        match old.run() {
            Stop::Attention => old.cpu().attention.clear(),
            stop => {
                assert_eq!(stop, Stop::Trap(Trap::Syscall(1)));
                old.cpu().state.pc += 4;
                calls += 1;
                rewrite(1, &mut old, &old_code);
            }
        }
    }
    let (mut new, new_code) = core_of(&memory, TRACED, old.cpu().state.clone());
    drop((old, old_code));
    let steps = run_traced(&mut new, &new_code, &mut rewrite);
    assert!(expected.steps.len() > steps.len() && steps.len() > expected.steps.len() / 3);
    assert!(expected.steps.ends_with(&steps), "the trace is not that of the rest");
    assert_eq!(new.cpu().state.x, expected.general);
    assert_eq!(bench.data(), expected.data);
}

/// Faults in translated code are attributed to the running core, regardless of the order in which cores were created or
/// dropped.
#[test]
fn cores_take_turns_on_one_host_thread_and_move_to_another() {
    let bench = Bench::new();
    let store = instruction_of(Op::StD, 5, 6, 0);
    let memory = bench.load(&assemble(&[Piece::Straight(vec![store]), Piece::Syscall(1)]), &random_bytes(1));
    let run_to_fault = |core: &mut Core, code: &SharedCode| {
        let mut steps = Vec::new();
        loop {
            let stop = core.run();
            drain(core, code, &mut steps);
            match stop {
                Stop::Trap(Trap::Syscall(1)) => core.cpu().state.pc += 4,
                Stop::Trap(Trap::Memory(fault)) => return fault.address,
                stop => assert_eq!(stop, Stop::Quantum),
            }
            // The code is hot by now, and the next store faults.
            let rounds = ROUNDS - core.cpu().state.x[usize::from(COUNTER)];
            core.cpu().state.x[6] = if rounds < 150 { DATA } else { 64 };
        }
    };
    let mut state = loop_state();
    state.x[6] = DATA;
    let (mut first, first_code) = core_of(&memory, TRACED, state.clone());
    let (mut second, second_code) = core_of(&memory, Execution { tracing: false, ..TRACED }, state.clone());
    let third = core_of(&memory, TRACED, state);
    assert_eq!(run_to_fault(&mut first, &first_code), 64);
    drop(third);
    assert_eq!(run_to_fault(&mut second, &second_code), 64);
    drop(second);
    first.cpu().state.x[usize::from(COUNTER)] = ROUNDS;
    first.cpu().state.x[6] = DATA;
    let moved = std::thread::spawn(move || {
        longma_guest::host::faults::prepare_thread();
        first.cpu().state.pc = CODE;
        let stop = first.run();
        first.clear_trace();
        stop
    });
    assert_eq!(moved.join().expect("no panic"), Stop::Trap(Trap::Syscall(1)));
}

/// The program's code is repeatedly invalidated, so that its translations fill a small cache several times.
#[test]
fn a_full_code_cache_is_replaced_and_the_program_continues() {
    const CACHE_BYTES: usize = 8 << 20;
    const TIMES: usize = 1500;
    let bench = Bench::new();
    let store = instruction_of(Op::StD, 5, POINTER, 8);
    let other = instruction_of(Op::AddiD, 5, 5, 3);
    let memory = bench.load(&assemble(&[Piece::Straight([store, other].repeat(120))]), &random_bytes(1));
    let code =
        SharedCode::with_cache(&memory, TRACED, Arc::new(Unwatched), CACHE_BYTES).expect("executable memory");
    let words = ConfigurationWords::default();
    let mut core = Core::new(loop_state(), memory.clone(), words, code.clone()).expect("a core");
    let run = |core: &mut Core| {
        core.cpu().state = loop_state();
        let steps = run_traced(core, &code, &mut |_, _, _| {});
        (steps.len(), core.cpu().state.x)
    };
    let first = run(&mut core);
    let mut translated = code.translated_blocks();
    let each = translated;
    for time in 0..TIMES {
        code.invalidate(&(CODE..CODE + 4));
        core.cpu().attention.request();
        assert!(run(&mut core) == first, "time {time} ended differently");
        assert!(code.translated_blocks() >= translated + each, "nothing was translated at time {time}");
        translated = code.translated_blocks();
    }
}
