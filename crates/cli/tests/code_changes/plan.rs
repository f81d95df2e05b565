//! Generates random self-modifying programs together with their predicted output. The output does not depend on the
//! schedule of threads.

use super::assembler::*;
use longma_random::SplitMix64;

/// Numbers from a seed.
pub struct Random(SplitMix64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// A kind of memory that holds code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Area {
    /// Private, writable and executable at once.
    Open,
    /// A page of a file, mapped writable at one address and executable at another.
    Twice,
    /// Alternately writable and executable.
    Flipped,
    /// Shared anonymous memory.
    Shared,
}

const AREAS: [Area; 4] = [Area::Open, Area::Twice, Area::Flipped, Area::Shared];
/// Functions per area.
const SLOTS: usize = 4;
const SLOT_BYTES: i64 = 256;
const PAGE: i64 = 0x4000;
const DATA: i64 = 0x2_0000_0000;
const WRITABLE_TWIN: i64 = 0x3_1000_0000;
const STACKS: i64 = 0x2_0100_0000;

// Offsets in the data.
const PIPE: i32 = 0x100;
const FILE: i32 = 0x108;
const WORD: i32 = 0x110;
const VECTOR: i32 = 0x120;
const STATUS: i32 = 0x140;
const HANDLED: i32 = 0x150;
const ACTION: i32 = 0x180;
const MAILBOXES: i32 = 0x400;
const MAILBOX_BYTES: i32 = 64;

impl Area {
    fn address(self) -> i64 {
        0x3_0000_0000 + 0x10_0000 * self as i64
    }
}

/// A function that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    area: Area,
    number: usize,
}

impl Slot {
    fn random(random: &mut Random, areas: &[Area]) -> Self {
        Self { area: random.choose(areas), number: random.below(SLOTS as u64) as usize }
    }

    fn index(self) -> usize {
        self.area as usize * SLOTS + self.number
    }

    fn address(self) -> i64 {
        self.area.address() + SLOT_BYTES * self.number as i64
    }
}

/// The result that a function computes from the number in one of its instructions.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Returns the number.
    Constant,
    /// Adds up the number this many times, in a loop.
    Loop(u64),
    /// Adds the number to the result of another function.
    Calls(Slot),
}

impl Shape {
    /// The function with the number 0, and the index of the word that contains the number.
    fn code(self) -> (Vec<u32>, i64) {
        match self {
            Self::Constant => (vec![addi_w(A0, ZERO, 0), RETURN], 0),
            Self::Loop(times) => {
                let mut code = Code::new();
                code.push(addi(A0, ZERO, 0));
                code.set(T0, times as i64);
                let again = code.here();
                code.push(addi_w(A0, A0, 0));
                code.push(addi(T0, T0, -1));
                code.if_not_equal(T0, ZERO, again);
                code.push(RETURN);
                (code.finish(), 2)
            }
            Self::Calls(other) => {
                let mut code = Code::new();
                code.push(addi(SP, SP, -16));
                code.push(store(RA, SP, 0));
                code.set(T0, other.address());
                code.push(jump_register(RA, T0));
                code.push(load(RA, SP, 0));
                code.push(addi(SP, SP, 16));
                let instructions = code.finish();
                let at = instructions.len() as i64;
                (instructions.into_iter().chain([addi_w(A0, A0, 0), RETURN]).collect(), at)
            }
        }
    }
}

/// How a new word is written.
#[derive(Clone, Copy, Debug)]
enum WriteMethod {
    Store,
    Swap,
    Read,
    Scattered,
    PositionedRead,
}

/// A number that depends on the round.
#[derive(Clone, Copy, Debug)]
struct Number {
    base: u64,
    step: u64,
}

impl Number {
    fn random(random: &mut Random) -> Self {
        Self { base: random.below(1024), step: random.below(512) }
    }

    fn in_round(self, round: u64) -> u64 {
        (self.base + self.step * round) % 1024
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Change(Slot, Number, WriteMethod),
    Call(Slot, u64),
    /// A worker calls the function, after the synchronization that the architecture requires.
    CallByWorker(usize, Slot, u64),
    /// A child process changes its own copy and reports the result.
    Fork(Slot, Number),
    /// A signal handler changes the function.
    Signal(Slot, Number),
}

/// A random program.
#[derive(Debug)]
pub struct Plan {
    shapes: Vec<Shape>,
    steps: Vec<Step>,
    rounds: u64,
    workers: usize,
    /// The function that idle workers call in a loop.
    called_by_idle_workers: Option<Slot>,
}

impl Plan {
    pub fn random(seed: u64) -> Self {
        let mut random = Random(SplitMix64::new(seed));
        let shape = |random: &mut Random| match random.below(3) {
            0 => Shape::Constant,
            1 => Shape::Loop(1 + random.below(20)),
            // Only functions of the first area are called by other functions, and they call none.
            _ => Shape::Calls(Slot::random(random, &AREAS[..1])),
        };
        let shapes = (0..AREAS.len() * SLOTS)
            .map(|index| match shape(&mut random) {
                Shape::Calls(_) if index < SLOTS => Shape::Constant,
                shape => shape,
            })
            .collect();
        let workers = random.below(4) as usize;
        let steps = (0..8 + random.below(24)).map(|_| Self::step(&mut random, workers)).collect();
        // A function in alternately executable memory cannot be called at arbitrary times.
        let called_by_idle_workers = (random.below(4) > 0)
            .then(|| Slot::random(&mut random, &[Area::Open, Area::Twice, Area::Shared]));
        Self { shapes, steps, rounds: 1 + random.below(40), workers, called_by_idle_workers }
    }

    fn step(random: &mut Random, workers: usize) -> Step {
        let slot = Slot::random(random, &AREAS);
        let times = random.choose(&[1, 1, 2, 5, 29, 30, 31, 32, 64, 200]);
        match random.below(16) {
            0..6 => {
                let methods = [
                    WriteMethod::Store,
                    WriteMethod::Swap,
                    WriteMethod::Read,
                    WriteMethod::Scattered,
                    WriteMethod::PositionedRead,
                ];
                Step::Change(slot, Number::random(random), random.choose(&methods))
            }
            6..11 => Step::Call(slot, times),
            11..14 if workers > 0 => Step::CallByWorker(random.below(workers as u64) as usize, slot, times),
            14 => Step::Fork(Slot::random(random, &[Area::Open]), Number::random(random)),
            15 => Step::Signal(Slot::random(random, &[Area::Open, Area::Shared]), Number::random(random)),
            _ => Step::Call(slot, times),
        }
    }

    /// Whether emulators that detect code changes only by virtual address run the program correctly.
    pub fn is_plain(&self) -> bool {
        let twice = |slot: &Slot| slot.area == Area::Twice;
        !self.steps.iter().any(|step| matches!(step, Step::Change(slot, ..) if twice(slot)))
    }

    /// The number that the program prints, as eight bytes.
    pub fn predicted_output(&self) -> u64 {
        let mut numbers = vec![0; self.shapes.len()];
        let mut sum = 0u64;
        let mut add = |value: u64| sum = sum.wrapping_mul(31).wrapping_add(value);
        for round in (1..=self.rounds).rev() {
            for step in &self.steps {
                match *step {
                    Step::Change(slot, number, _) | Step::Signal(slot, number) => {
                        numbers[slot.index()] = number.in_round(round);
                    }
                    Step::Call(slot, times) => (0..times).for_each(|_| add(self.value(slot, &numbers))),
                    Step::CallByWorker(_, slot, times) => add(times * self.value(slot, &numbers)),
                    Step::Fork(slot, number) => {
                        let mut own = numbers.clone();
                        own[slot.index()] = number.in_round(round);
                        add(((50 * self.value(slot, &own)) & 0x7f) << 8);
                    }
                }
            }
        }
        sum
    }

    fn value(&self, slot: Slot, numbers: &[u64]) -> u64 {
        let number = numbers[slot.index()];
        match self.shapes[slot.index()] {
            Shape::Constant => number,
            Shape::Loop(times) => times * number,
            Shape::Calls(other) => self.value(other, numbers) + number,
        }
    }

    /// The program's code. S0 to S2 are scratch registers of a step, S3 points to the data, S4 is 31, S5 the round, S6
    /// the sum.
    pub fn code(&self) -> Vec<u32> {
        let mut code = Code::new();
        let (worker, handler) = (code.label(), code.label());
        self.set_up(&mut code, handler);
        for number in 0..self.workers as i64 {
            code.map(STACKS + number * PAGE, PAGE, 3);
            // S0 passes the mailbox to the worker.
            code.set(S0, DATA + i64::from(MAILBOXES) + number * i64::from(MAILBOX_BYTES));
            code.spawn(worker, STACKS + (number + 1) * PAGE);
        }
        code.set(S4, 31);
        code.set(S5, self.rounds as i64);
        code.set(S6, 0);
        let (again, end) = (code.here(), code.label());
        for step in &self.steps {
            self.emit(&mut code, *step);
        }
        code.push(addi(S5, S5, -1));
        code.if_equal(S5, ZERO, end);
        code.jump(again);
        code.place(end);
        code.push(store(S6, S3, WORD));
        code.system_call(call::WRITE, &[1, DATA + i64::from(WORD), 8]);
        code.exit_group(0);
        self.emit_worker(&mut code, worker);
        code.place(handler);
        code.set(T0, DATA);
        code.push(load_w(T1, T0, HANDLED + 8));
        code.push(load(T0, T0, HANDLED));
        code.push(store_w(T1, T0, 0));
        code.barriers();
        code.push(RETURN);
        code.finish()
    }

    fn set_up(&self, code: &mut Code, handler: Label) {
        const SHARED_ANONYMOUS: i64 = 0x31;
        const SHARED: i64 = 0x11;
        const USER_SIGNAL: i64 = 10;
        code.map(DATA, PAGE, 3);
        code.set(S3, DATA);
        code.system_call(call::PIPE2, &[DATA + i64::from(PIPE), 0]);
        code.system_call(call::MEMFD_CREATE, &[DATA, 0]);
        code.push(store_w(A0, S3, FILE));
        code.set(A1, 2 * PAGE);
        code.make_call(call::FTRUNCATE);
        code.map(Area::Open.address(), PAGE, 7);
        code.map(Area::Flipped.address(), PAGE, 3);
        code.system_call(call::MMAP, &[Area::Shared.address(), PAGE, 7, SHARED_ANONYMOUS, -1, 0]);
        for (address, protection) in [(Area::Twice.address(), 5), (WRITABLE_TWIN, 3)] {
            code.push(load_w(A4, S3, FILE));
            let others = [(A0, address), (A1, PAGE), (A2, protection), (A3, SHARED), (A5, 0)];
            others.into_iter().for_each(|(register, value)| code.set(register, value));
            code.make_call(call::MMAP);
        }
        for (index, shape) in self.shapes.iter().enumerate() {
            let slot = Slot { area: AREAS[index / SLOTS], number: index % SLOTS };
            let base = if slot.area == Area::Twice { WRITABLE_TWIN } else { slot.area.address() };
            code.set(T0, base + SLOT_BYTES * slot.number as i64);
            for (word, at) in shape.code().0.into_iter().zip(0..) {
                code.set(T1, i64::from(word as i32));
                code.push(store_w(T1, T0, 4 * at));
            }
        }
        code.system_call(call::MPROTECT, &[Area::Flipped.address(), PAGE, 5]);
        code.barriers();
        code.set_address(T0, handler);
        code.push(store(T0, S3, ACTION));
        code.system_call(call::SIGACTION, &[USER_SIGNAL, DATA + i64::from(ACTION), 0, 8]);
    }

    fn emit(&self, code: &mut Code, step: Step) {
        match step {
            Step::Change(slot, number, method) => {
                self.new_word(code, slot, number);
                Self::emit_write(code, slot.area, method, self.word_address(slot));
                code.barriers();
            }
            Step::Call(slot, times) => {
                let times = times as i64;
                code.set(S0, times);
                code.set(S1, slot.address());
                let again = code.here();
                code.push(jump_register(RA, S1));
                add_to_sum(code);
                code.push(addi(S0, S0, -1));
                code.if_not_equal(S0, ZERO, again);
            }
            Step::CallByWorker(worker, slot, times) => {
                emit_call_by_worker(code, worker as i32, slot.address(), times as i64)
            }
            Step::Fork(slot, number) => {
                const CHILD_SIGNAL: i64 = 17;
                code.system_call(call::CLONE, &[CHILD_SIGNAL, 0, 0, 0, 0]);
                let parent = code.label();
                code.if_not_equal(A0, ZERO, parent);
                self.new_word(code, slot, number);
                Self::emit_write(code, slot.area, WriteMethod::Store, self.word_address(slot));
                code.barriers();
                emit_calls(code, slot.address(), 50);
                code.push(andi(A0, S2, 0x7f));
                code.make_call(call::EXIT_GROUP);
                code.place(parent);
                for (register, value) in [(A1, DATA + i64::from(STATUS)), (A2, 0), (A3, 0)] {
                    code.set(register, value);
                }
                code.make_call(call::WAIT4);
                code.push(load_w(A0, S3, STATUS));
                add_to_sum(code);
            }
            Step::Signal(slot, number) => {
                const USER_SIGNAL: i64 = 10;
                self.new_word(code, slot, number);
                code.push(store_w(T1, S3, HANDLED + 8));
                code.set(T0, self.word_address(slot));
                code.push(store(T0, S3, HANDLED));
                code.make_call(call::GETPID);
                code.push(copy(S0, A0));
                code.make_call(call::GETTID);
                code.push(copy(A1, A0));
                code.push(copy(A0, S0));
                code.set(A2, USER_SIGNAL);
                code.make_call(call::TGKILL);
                code.push(INSTRUCTION_BARRIER);
            }
        }
    }

    /// The address at which a slot's changing word is executed.
    fn word_address(&self, slot: Slot) -> i64 {
        slot.address() + 4 * self.shapes[slot.index()].code().1
    }

    /// Loads the instruction with the number into T1.
    fn new_word(&self, code: &mut Code, slot: Slot, number: Number) {
        let (instructions, at) = self.shapes[slot.index()].code();
        code.set(T1, number.step as i64);
        code.push(multiply(T1, T1, S5));
        code.push(addi(T1, T1, number.base as i32));
        code.push(andi(T1, T1, 1023));
        code.push(shift_left(T1, T1, 10));
        code.set(T2, instructions[at as usize].into());
        code.push(or(T1, T1, T2));
    }

    /// Writes the word in T1 to the address where it is executed.
    fn emit_write(code: &mut Code, area: Area, method: WriteMethod, address: i64) {
        let written = if area == Area::Twice { address - area.address() + WRITABLE_TWIN } else { address };
        let flip = |code: &mut Code, protection| {
            if area == Area::Flipped {
                code.system_call(call::MPROTECT, &[area.address(), PAGE, protection]);
            }
        };
        code.push(store_w(T1, S3, WORD));
        flip(code, 3);
        code.push(load_w(T1, S3, WORD));
        code.set(T0, written);
        let word = DATA + i64::from(WORD);
        let descriptor = |code: &mut Code, at: i32| code.push(load_w(A0, S3, at));
        let others = |code: &mut Code, values: &[(u32, i64)]| {
            values.iter().for_each(|(register, value)| code.set(*register, *value));
        };
        match method {
            WriteMethod::Store => code.push(store_w(T1, T0, 0)),
            WriteMethod::Swap => code.push(swap_w(T2, T1, T0)),
            WriteMethod::Read => {
                descriptor(code, PIPE + 4);
                others(code, &[(A1, word), (A2, 4)]);
                code.make_call(call::WRITE);
                descriptor(code, PIPE);
                others(code, &[(A1, written), (A2, 4)]);
                code.make_call(call::READ);
            }
            WriteMethod::Scattered => {
                descriptor(code, PIPE + 4);
                others(code, &[(A1, word), (A2, 4)]);
                code.make_call(call::WRITE);
                // One byte, then three.
                for (at, length, offset) in [(0, 1, 0), (16, 3, 1)] {
                    code.set(T0, written + offset);
                    code.push(store(T0, S3, VECTOR + at));
                    code.set(T0, length);
                    code.push(store(T0, S3, VECTOR + at + 8));
                }
                descriptor(code, PIPE);
                others(code, &[(A1, DATA + i64::from(VECTOR)), (A2, 2)]);
                code.make_call(call::READV);
            }
            WriteMethod::PositionedRead => {
                // Through the file's second page, which is not mapped.
                descriptor(code, FILE);
                others(code, &[(A1, word), (A2, 4), (A3, PAGE + 64)]);
                code.make_call(call::PWRITE);
                descriptor(code, FILE);
                others(code, &[(A1, written), (A2, 4), (A3, PAGE + 64)]);
                code.make_call(call::PREAD);
            }
        }
        flip(code, 5);
    }

    /// The code of a worker whose mailbox is at S0: it answers requests and calls the function `called_by_idle_workers` between them.
    fn emit_worker(&self, code: &mut Code, worker: Label) {
        const MAX_ROUNDS: i64 = 1 << 16;
        code.place(worker);
        code.set(S5, 0);
        code.set(S6, MAX_ROUNDS);
        let wait = code.here();
        let asked = code.label();
        code.push(load(T0, S0, 0));
        code.if_not_equal(T0, S5, asked);
        if let Some(slot) = self.called_by_idle_workers {
            code.set(S1, slot.address());
            code.push(jump_register(RA, S1));
            let is_valid = code.label();
            code.if_below(A0, S6, is_valid);
            code.exit_group(99);
            code.place(is_valid);
        }
        code.make_call(call::SCHED_YIELD);
        code.jump(wait);
        code.place(asked);
        code.push(copy(S5, T0));
        code.barriers();
        code.push(load(S1, S0, 8));
        code.push(load(S4, S0, 16));
        code.set(S2, 0);
        let again = code.here();
        code.push(jump_register(RA, S1));
        code.push(add(S2, S2, A0));
        code.push(addi(S4, S4, -1));
        code.if_not_equal(S4, ZERO, again);
        code.push(store(S2, S0, 24));
        code.push(DATA_BARRIER);
        code.push(store(S5, S0, 32));
        code.jump(wait);
    }
}

/// Computes S6 = 31 * S6 + A0.
fn add_to_sum(code: &mut Code) {
    code.push(multiply(S6, S6, S4));
    code.push(add(S6, S6, A0));
}

/// Calls a function several times and leaves the sum of the results in S2.
fn emit_calls(code: &mut Code, address: i64, times: i64) {
    code.set(S0, times);
    code.set(S1, address);
    code.set(S2, 0);
    let again = code.here();
    code.push(jump_register(RA, S1));
    code.push(add(S2, S2, A0));
    code.push(addi(S0, S0, -1));
    code.if_not_equal(S0, ZERO, again);
}

fn emit_call_by_worker(code: &mut Code, worker: i32, address: i64, times: i64) {
    let mailbox = MAILBOXES + worker * MAILBOX_BYTES;
    code.set(T0, address);
    code.push(store(T0, S3, mailbox + 8));
    code.set(T0, times);
    code.push(store(T0, S3, mailbox + 16));
    code.push(DATA_BARRIER);
    code.push(load(S0, S3, mailbox));
    code.push(addi(S0, S0, 1));
    code.push(store(S0, S3, mailbox));
    let (wait, end) = (code.here(), code.label());
    code.push(load(T0, S3, mailbox + 32));
    code.if_equal(T0, S0, end);
    code.make_call(call::SCHED_YIELD);
    code.jump(wait);
    code.place(end);
    code.push(DATA_BARRIER);
    code.push(load(A0, S3, mailbox + 24));
    add_to_sum(code);
}
