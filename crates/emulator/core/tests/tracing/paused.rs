//! Cores without a trace while tracing is paused: their counts, and the budget that stops them.

use super::*;

const PAUSABLE: Execution = Execution { pausable: true, ..TRACED };

/// Tracing is disabled and enabled at every third system call, while the program's code changes from time to time.
#[test]
fn a_core_behaves_the_same_while_its_trace_is_paused() {
    let bench = Bench::new();
    let program = calls_and_a_loop();
    let expected = stepped(&bench, &program, &loop_state(), &random_bytes(1));
    for translate in [false, true] {
        let memory = bench.load(&program, &random_bytes(1));
        let (mut core, code) = core_of(&memory, Execution { translate, ..PAUSABLE }, loop_state());
        let mut rewrite = rewrite_periodically(&memory);
        let (mut calls, mut traced, mut untraced) = (0, 0, 0);
        loop {
            let stop = core.run();
            let mut steps = Vec::new();
            drain(&mut core, &code, &mut steps);
            assert!(core.is_traced() || steps.is_empty());
            traced += steps.len() as u64;
            match stop {
                Stop::Trap(Trap::Syscall(0)) => break,
                Stop::Attention => core.cpu().attention.clear(),
                Stop::Quantum => {}
                stop => {
                    assert_eq!(stop, Stop::Trap(Trap::Syscall(1)));
                    core.cpu().state.pc += 4;
                    calls += 1;
                    rewrite(1, &mut core, &code);
                    untraced += core.take_untraced_instructions();
                    core.set_tracing(calls % 6 < 3);
                }
            }
        }
        untraced += core.take_untraced_instructions();
        assert_eq!(core.cpu().state.x, expected.general, "translated: {translate}");
        assert_eq!(bench.data(), expected.data, "translated: {translate}");
        assert_eq!(traced + untraced, expected.steps.len() as u64, "translated: {translate}");
        assert!(traced.abs_diff(untraced) < untraced / 4, "{traced} traced, {untraced} not");
    }
}

/// Runs without a trace until `syscall 0`. Whenever the budget is used up, the core gets another one. Returns the
/// number of executed instructions and the number of used budgets.
fn run_with_budget(
    core: &mut Core,
    code: &SharedCode,
    budget: u64,
    at_syscall: StateAtSyscall,
) -> (u64, u64) {
    core.set_tracing(false);
    let (mut executed, mut stops, mut left) = (0, 0, budget);
    loop {
        core.set_budget(left);
        let stop = core.run();
        let untraced = core.take_untraced_instructions();
        assert!(untraced <= left, "{untraced} of {left}");
        executed += untraced;
        left -= untraced;
        match stop {
            Stop::Trap(Trap::Syscall(0)) => return (executed, stops),
            Stop::Trap(Trap::Syscall(number)) => {
                core.cpu().state.pc += 4;
                at_syscall(number, core, code);
            }
            Stop::Quantum => {
                assert!(left < Core::MAX_BLOCK, "{left} of {budget} left");
                stops += 1;
                left = budget;
            }
            Stop::Attention => core.cpu().attention.clear(),
            stop => panic!("unexpected {stop:?}"),
        }
    }
}

/// A budget ends each run at a block, and the core never executes more than the budget. The program's code changes from
/// time to time.
#[test]
fn a_core_with_a_budget_stops_before_it_is_exceeded_and_loses_no_instruction() {
    let bench = Bench::new();
    let program = calls_and_a_loop();
    let expected = stepped(&bench, &program, &loop_state(), &random_bytes(1));
    for translate in [false, true] {
        for budget in [Core::MAX_BLOCK, 100, 1000, 100_000] {
            let memory = bench.load(&program, &random_bytes(1));
            let (mut core, code) = core_of(&memory, Execution { translate, ..PAUSABLE }, loop_state());
            let mut rewrite = rewrite_periodically(&memory);
            let (executed, stops) = run_with_budget(&mut core, &code, budget, &mut rewrite);
            let case = format!("budget {budget}, translated: {translate}, {stops} stops");
            assert_eq!(core.cpu().state.x, expected.general, "{case}");
            assert_eq!(bench.data(), expected.data, "{case}");
            assert_eq!(executed, expected.steps.len() as u64, "{case}");
            assert!(stops > 0 || budget > executed / 4, "{case}");
        }
    }
}

/// A profile of a program with devices counts blocks, whether the core writes a trace or not.
#[test]
fn blocks_without_a_trace_are_counted_and_take_their_instructions_from_the_budget() {
    let bench = Bench::new();
    let program = calls_and_a_loop();
    let expected = stepped(&bench, &program, &loop_state(), &random_bytes(1)).steps.len() as u64;
    for translate in [false, true] {
        for budget in [100, u64::MAX] {
            let memory = bench.load(&program, &random_bytes(1));
            let execution = Execution { translate, counting: true, ..PAUSABLE };
            let (mut core, code) = core_of(&memory, execution, loop_state());
            let mut rewrite = rewrite_periodically(&memory);
            let (executed, _) = run_with_budget(&mut core, &code, budget, &mut rewrite);
            let counted: u64 = code.executed().iter().map(|b| b.runs * u64::from(b.instructions)).sum();
            let case = format!("budget {budget}, translated: {translate}");
            assert_eq!((counted, executed), (expected, expected), "{case}");
        }
    }
}

/// As above, the clock advances by ten nanoseconds for each step before each run.
#[test]
fn a_clock_read_with_a_paused_trace_includes_all_earlier_instructions() {
    let bench = Bench::new();
    let read = instruction_of(Op::RdtimeD, 5, 0, 0);
    let store = instruction_of(Op::StD, 5, POINTER, 0);
    let advance = instruction_of(Op::AddiD, POINTER, POINTER, 8);
    let other = instruction_of(Op::AddiD, 6, 6, 1);
    let memory =
        bench.load(&assemble(&[Piece::Straight(vec![other, read, store, advance, other])]), &random_bytes(1));
    for translate in [false, true] {
        let (mut core, _) = core_of(&memory, Execution { translate, ..PAUSABLE }, loop_state());
        core.set_tracing(false);
        let clock = SimulatedClock::default();
        core.set_clock(clock.clone());
        let (mut steps, mut stops) = (0, 0);
        while core.run() == Stop::Quantum {
            steps += core.take_untraced_instructions();
            clock.set_ps(10_000 * steps);
            stops += 1;
        }
        assert_eq!(stops, ROUNDS, "one stop a reading");
        let data = bench.data();
        let mut times =
            data.chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")));
        let first = times.next().expect("there is a first");
        for round in 1..ROUNDS {
            let time = times.next().expect("there are as many");
            // A block that stops at a clock reading is counted as a whole, and the instruction that reads the clock is
            // counted once more.
            let expected = first + 8 * round;
            assert!(
                (expected - round..=expected + 1).contains(&time),
                "round {round}: {time}, about {expected}"
            );
        }
    }
}
