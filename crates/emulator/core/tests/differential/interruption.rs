//! Requests for attention stop translated code in a bounded time.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use longma_core::{ConfigurationWords, Core, Execution, SharedCode, Stop};
use longma_guest::host::attention::Attention;
use longma_loongarch::{Instruction, Op, State};

use crate::programs::*;

/// The general register with the target of the indirect jump.
const TARGET: u8 = 5;
/// How often each loop runs before the last one, so that it is translated.
const RUNS: u64 = 100;

/// `TARGET` = the address of instruction `number`. The code is at 4 GiB.
fn point_to(number: i32) -> [Instruction; 2] {
    [
        Instruction { d: TARGET, j: 0, imm: 4 * number, ..Instruction::new(Op::AddiD) },
        Instruction { d: TARGET, imm: 1, ..Instruction::new(Op::Lu32iD) },
    ]
}

fn branch(from: i32, to: i32) -> Instruction {
    Instruction { imm: 4 * (to - from), ..Instruction::new(Op::B) }
}

/// Counts down, and branches while the counter is not zero.
fn count(at: i32, counter: u8, to: i32) -> [Instruction; 2] {
    [
        Instruction { d: counter, j: counter, imm: -1, ..Instruction::new(Op::AddiD) },
        Instruction { j: counter, imm: 4 * (to - at - 1), ..Instruction::new(Op::Bnez) },
    ]
}

/// A loop over an indirect jump and a block of another region. Both regions are entered in their middle.
fn loop_over_two_regions() -> Vec<u32> {
    let mut program = Vec::new();
    program.extend(point_to(5));
    program.push(branch(2, 3));
    // The first region: its entry and the indirect jump.
    program.push(branch(3, 4));
    program.push(Instruction { j: TARGET, ..Instruction::new(Op::Jirl) });
    program.extend(count(5, COUNTER, 3));
    program.extend(point_to(12));
    program.push(branch(9, 10));
    // The second region: its entry and a jump to the indirect jump.
    program.push(branch(10, 11));
    program.push(branch(11, 4));
    program.extend(count(12, COUNTER + 1, 10));
    // The loop over the ends of both regions.
    program.extend(point_to(11));
    program.push(branch(16, 11));
    encoded(&program)
}

/// The address of a core's flag.
struct Flag(*const Attention);

// SAFETY: the flag is atomic.
unsafe impl Send for Flag {}

impl Flag {
    fn request(&self) {
        // SAFETY: the core lives until the test ends, or for ever if it does not stop.
        unsafe { &*self.0 }.request();
    }
}

#[test]
fn a_loop_over_regions_that_are_entered_in_their_middle_stops() {
    for translate in [false, true] {
        let bench = Bench::new();
        let memory = bench.load(&loop_over_two_regions(), &[]);
        let execution = Execution { translate, ..Execution::default() };
        let code = SharedCode::new(&memory, execution, Arc::new(Unwatched)).expect("executable memory");
        let mut state = State { pc: CODE, ..State::default() };
        state.x[usize::from(COUNTER)] = RUNS;
        state.x[usize::from(COUNTER) + 1] = RUNS;
        let (flags, flag) = channel();
        let (stops, stop) = channel();
        std::thread::spawn(move || {
            longma_guest::host::faults::prepare_thread();
            let mut core = Core::new(state, memory, ConfigurationWords::default(), code).expect("a core");
            let _ = flags.send(Flag(&raw const core.cpu().attention));
            let _ = stops.send(core.run());
        });
        let flag = flag.recv().expect("the core exists");
        std::thread::sleep(Duration::from_millis(200));
        flag.request();
        let stop = stop.recv_timeout(Duration::from_secs(20));
        assert_eq!(stop, Ok(Stop::Attention), "translated: {translate}");
    }
}
