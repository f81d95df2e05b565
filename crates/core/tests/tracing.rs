//! Traces: what they say was executed is what was executed, translated or interpreted.
//! Not what it cost.
//! Source: our own.

mod programs;

use std::sync::Arc;

use longma_core::{ConfigurationWords, Core, Execution, SharedCode, Stop, has_address};
use longma_linux::GuestMemory;
use longma_loongarch::{Extension, Instruction, Op, State, Trap, encode};
use proptest::{prelude::*, test_runner::Config};

use programs::*;

/// An executed instruction and where it accessed memory.
type Step = (u64, Option<u64>);

/// What a program did and left behind.
#[derive(Debug, PartialEq)]
struct Run {
    steps: Vec<Step>,
    general: [u64; 32],
    data: Vec<u8>,
}

/// Traps that a program survives before it is stopped: its handler skips the instruction.
const MOST_TRAPS: u32 = 2000;

/// What the surroundings of a program do at its system calls, besides letting it go on behind them.
type AtSyscall<'a> = &'a mut dyn FnMut(u32, &mut Core, &SharedCode);

fn core_of(memory: &GuestMemory, execution: Execution, state: State) -> (Core, SharedCode) {
    let code = SharedCode::new(memory, execution, Arc::new(Unwatched)).expect("executable memory");
    let core = Core::new(state, memory.clone(), ConfigurationWords::default(), code.clone()).expect("a core");
    (core, code)
}

const TRACED: Execution = Execution { translate: true, counting: false, tracing: true, magic: false };

/// Appends what the core's trace says, and clears it.
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

/// Runs until `syscall 0` or the last of many traps, and gives every step that the traces say was made.
fn run_traced(core: &mut Core, code: &SharedCode, at_syscall: AtSyscall) -> Vec<Step> {
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
            Stop::Trap(_) if traps == MOST_TRAPS => return steps,
            Stop::Trap(_) => {
                traps += 1;
                core.cpu().state.pc += 4;
            }
            Stop::Attention => core.cpu().attention.clear(),
            Stop::Quantum => {}
            Stop::Magic(magic) => panic!("nobody asked for {magic:?}"),
        }
    }
}

fn traced(bench: &Bench, program: &[u32], state: &State, data: &[u8], translate: bool) -> Run {
    let memory = bench.load(program, data);
    let (mut core, code) = core_of(&memory, Execution { translate, ..TRACED }, state.clone());
    core.set_quantum(700);
    let steps = run_traced(&mut core, &code, &mut rewrite_now_and_then(&memory));
    if translate && steps.len() > 100 * program.len() {
        assert!(
            code.counts().regions.load(std::sync::atomic::Ordering::Relaxed) > 0,
            "nothing was translated"
        );
    }
    Run { steps, general: core.cpu().state.x, data: bench.data() }
}

/// At every 64th system call the program's first instruction becomes another.
fn rewrite_now_and_then(memory: &GuestMemory) -> impl FnMut(u32, &mut Core, &SharedCode) {
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
    }
}

/// What a program does, one instruction at a time, without a trace.
fn stepped(bench: &Bench, program: &[u32], state: &State, data: &[u8]) -> Run {
    let memory = bench.load(program, data);
    let (mut core, code) =
        core_of(&memory, Execution { translate: false, ..Execution::default() }, state.clone());
    let mut rewrite = rewrite_now_and_then(&memory);
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
            Some(Stop::Trap(_)) if traps == MOST_TRAPS => break,
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

/// The instruction at the program counter and where it would access memory. The programs here use the simple forms.
fn next_step(memory: &GuestMemory, state: &State) -> Step {
    let word = memory.fetch(state.pc).expect("the code is mapped");
    let i = longma_loongarch::decode(word).expect("an instruction");
    let is_indexed = i.op.row().operands.len() == 3
        && i.op.row().operands[2]
            == longma_loongarch::Operand::Register(longma_loongarch::RegisterKind::General, 10);
    let offset = if is_indexed { state.x[usize::from(i.k)] } else { i.imm as i64 as u64 };
    (state.pc, has_address(i.op).then(|| state.x[usize::from(i.j)].wrapping_add(offset)))
}

/// `LONGMA_DIFFERENTIAL_TIMES` multiplies the work, for a longer campaign.
fn times() -> u32 {
    std::env::var("LONGMA_DIFFERENTIAL_TIMES").ok().and_then(|t| t.parse().ok()).unwrap_or(1)
}

fn check(extensions: &[Extension], programs: u32, change: fn(&mut State, &mut Vec<Piece>)) {
    let bench = Bench::new();
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(
        Config { cases: programs, failure_persistence: None, ..Config::default() },
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let inputs = (pieces(usable(extensions)), starting_state(), any::<u64>());
    runner
        .run(&inputs, |(mut pieces, mut state, seed)| {
            // What is rewritten at system calls.
            pieces.insert(0, Piece::Straight(vec![Instruction::new(Op::AddiD)]));
            change(&mut state, &mut pieces);
            compare(&bench, &assemble(&pieces), &state, &noise(seed));
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
    // Not mixed: 128-bit instructions leave the rest of a register undefined.
    check(&[Extension::Base, Extension::Lsx], 15 * times(), |_, _| {});
    check(&[Extension::Base, Extension::Lasx], 15 * times(), |_, _| {});
}

/// The pointer moves on each round, and in the middle of the run it leaves the data: accesses fault in translated code, and a
/// handler skips them.
#[test]
fn programs_that_fault_leave_the_same_trace_translated_and_interpreted() {
    check(&[Extension::Base, Extension::Atomic], 30 * times(), |_, pieces| {
        let step = Instruction { d: POINTER, j: POINTER, imm: 512, ..Instruction::new(Op::AddiD) };
        pieces.push(Piece::Straight(vec![step]));
    });
}
