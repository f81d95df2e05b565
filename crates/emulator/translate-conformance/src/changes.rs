//! Self-modifying programs: several threads execute code that changes while the engine retranslates it. A thread may
//! enter any host address that it was given earlier, but must never execute stale code.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;

use longma_loongarch::{Environment, State, decode, semantics};
use longma_translate::debug::{of_word, words};
use longma_translate::engine::{CodeError, Engine, Layout};
use longma_translate::front_end::{Exit, FrontEnd, ServiceResult};
use longma_translate::optimizations::{Optimization, Optimizations};

use crate::memory::TestMemory;

/// The address of the first function.
pub const BASE: u64 = 0x1_0000;
const FUNCTIONS: u64 = 4;
/// The distance between functions: each is on a separate page. The last function returns to an additional page.
pub const PAGE: u64 = 4096;
const END: u64 = BASE + FUNCTIONS * PAGE;
const LIMIT: u64 = END + PAGE;
const STACKS: u64 = 0x100_0000;
/// The end of the code area.
const CODE_END: u64 = 0x1000_0000;
/// The size of both code areas together, small enough that they fill up often.
const CODE_BYTES: u64 = 0xc00;
/// The size of code areas that never fill up.
const MUCH_CODE_BYTES: u64 = 0x4_0000;
/// The size of the hash table after the code areas, if used.
const HASH_BYTES: u64 = longma_translate::optimizations::HASH_BYTES;
const TABLE: u64 = 0x2000_0000;
const SLOTS: u64 = 0x4000_0000;
const THREADS: u64 = 3;
const PROGRAMS: u64 = 60;
/// The number of context switches in each program.
const TURNS: u64 = 400;

/// One or two source instructions, by their effect on a sum, a counter and the program counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ProgramStep {
    /// Saves the return address.
    Begin,
    /// Adds a number below 1001 to the sum.
    Add(u32),
    /// Does nothing, and is as long as an addition.
    Nothing,
    /// Sets the counter to a number.
    Count(u32),
    /// Branches to a step unless this bit of the sum is set.
    Unless(u32, usize),
    /// Decrements the counter and branches to a step unless the counter is 0.
    Down(usize),
    /// Calls the function with this number.
    Call(u64),
    /// Restores the return address and returns.
    Return,
}

/// A linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % end
    }

    /// A random step that may replace an addition.
    fn addition(&mut self) -> ProgramStep {
        if self.below(3) == 0 { ProgramStep::Nothing } else { ProgramStep::Add(1 + self.below(1000) as u32) }
    }
}

fn function(number: u64, random: &mut Random) -> Vec<ProgramStep> {
    let last = number + 1 == FUNCTIONS;
    let called = number + 1 + if last { 0 } else { random.below(FUNCTIONS - number - 1) };
    vec![
        ProgramStep::Begin,
        random.addition(),
        ProgramStep::Count(1 + random.below(6) as u32),
        random.addition(),
        ProgramStep::Add(1 + random.below(1000) as u32),
        ProgramStep::Unless(random.below(6) as u32, 7),
        ProgramStep::Add(1 + random.below(1000) as u32),
        random.addition(),
        ProgramStep::Down(3),
        if last { random.addition() } else { ProgramStep::Call(called) },
        random.addition(),
        ProgramStep::Return,
    ]
}

/// The encoding of steps on an architecture, and GDB's numbers of the registers.
pub trait StepEncoding {
    /// The architecture's front end.
    type FrontEnd: FrontEnd;
    /// The register of the sum.
    const SUM: usize;
    /// The register of the counter.
    const COUNT: usize;
    /// The stack pointer, and the link register if there is one.
    const STACK: (usize, Option<usize>);
    /// Encodes a step at `at`. `to` maps each step to the address of another step of the same function.
    fn encode(step: ProgramStep, at: u64, to: &dyn Fn(usize) -> u64) -> Vec<u8>;
}

/// The program's functions and the address of each step.
struct Program {
    functions: Vec<Vec<ProgramStep>>,
    at: Vec<Vec<u64>>,
    steps: BTreeMap<u64, (usize, usize)>,
}

impl Program {
    fn new<E: StepEncoding>(random: &mut Random) -> Self {
        let functions: Vec<_> = (0..FUNCTIONS).map(|number| function(number, random)).collect();
        let mut at = Vec::new();
        for (number, steps) in (0..).zip(&functions) {
            let mut next = BASE + number * PAGE;
            at.push(Vec::new());
            for step in steps {
                at[number as usize].push(next);
                next += E::encode(*step, next, &|_| next).len() as u64;
            }
        }
        let addresses = (0..)
            .zip(&at)
            .flat_map(|(function, steps)| (0..).zip(steps).map(move |(index, at)| (*at, (function, index))));
        let steps = addresses.collect();
        Self { functions, at, steps }
    }

    fn write<E: StepEncoding>(&self, function: usize, memory: &TestMemory) {
        let at = &self.at[function];
        for (step, place) in self.functions[function].iter().zip(at) {
            for (address, byte) in (*place..).zip(E::encode(*step, *place, &|step| at[step])) {
                memory.store(address, byte).unwrap();
            }
        }
    }

    /// Changes one or two steps, possibly to the same values, and returns the number of their function.
    fn change(&mut self, random: &mut Random) -> usize {
        let function = random.below(FUNCTIONS) as usize;
        let steps = &mut self.functions[function];
        for _ in 0..=random.below(2) {
            let index = random.below(steps.len() as u64) as usize;
            steps[index] = match steps[index] {
                ProgramStep::Add(_) | ProgramStep::Nothing => random.addition(),
                ProgramStep::Count(_) => ProgramStep::Count(1 + random.below(6) as u32),
                ProgramStep::Unless(_, over) => ProgramStep::Unless(random.below(6) as u32, over),
                step => step,
            };
        }
        function
    }
}

/// A thread on a reference model of the source's processor.
#[derive(Clone, Debug, PartialEq)]
struct Model {
    pc: u64,
    sum: u64,
    count: u32,
    calls: Vec<u64>,
}

impl Model {
    fn step(&mut self, program: &Program) {
        let (function, index) = program.steps[&self.pc];
        let at = &program.at[function];
        let next = at.get(index + 1).copied();
        let mut to = next;
        match program.functions[function][index] {
            ProgramStep::Begin | ProgramStep::Nothing => {}
            ProgramStep::Add(value) => self.sum += u64::from(value),
            ProgramStep::Count(value) => self.count = value,
            ProgramStep::Unless(bit, over) => {
                to = if self.sum >> bit & 1 == 0 { Some(at[over]) } else { next }
            }
            ProgramStep::Down(again) => {
                self.count -= 1;
                to = if self.count == 0 { next } else { Some(at[again]) };
            }
            ProgramStep::Call(called) => {
                self.calls.extend(next);
                to = Some(BASE + called * PAGE);
            }
            ProgramStep::Return => to = self.calls.pop(),
        }
        self.pc = to.unwrap_or(END);
    }
}

/// A translated thread and its reference model.
struct Thread {
    state: State,
    model: Model,
}

struct World<E: StepEncoding> {
    program: Program,
    engine: Engine<E::FrontEnd>,
    memory: TestMemory,
    /// Host addresses that threads may still enter, by source address.
    entries: HashMap<u64, Vec<u64>>,
    /// The number of area switches.
    turns: u32,
}

fn begin<E: StepEncoding>(number: u64, memory: &TestMemory, random: &mut Random) -> Thread {
    let mut state = State::default();
    let model = Model { pc: BASE + random.below(FUNCTIONS) * PAGE, sum: 0, count: 0, calls: Vec::new() };
    E::FrontEnd::begin(&mut state, model.pc);
    state.set_r(E::FrontEnd::TABLE, TABLE);
    state.set_r(E::FrontEnd::SLOTS, SLOTS + number * E::FrontEnd::SLOT_BYTES);
    let mut set = |register: usize, value: u64| {
        let register = E::FrontEnd::registers().register(register).unwrap();
        assert!(E::FrontEnd::write_register(register, &of_word(value), &mut state, memory));
    };
    let stack = STACKS + (number + 1) * PAGE - 64;
    set(E::STACK.0, stack);
    match E::STACK.1 {
        Some(link) => set(link, END),
        None => memory.store(stack, END).unwrap(),
    }
    set(E::SUM, model.sum);
    Thread { state, model }
}

impl<E: StepEncoding> World<E> {
    fn new(hot: u32, choice: Optimizations, random: &mut Random) -> Self {
        Self::of(Program::new::<E>(random), hot, choice, CODE_BYTES)
    }

    fn of(program: Program, hot: u32, choice: Optimizations, code_bytes: u64) -> Self {
        let hash = if choice.has(Optimization::Table) { 0 } else { HASH_BYTES };
        let code = CODE_END - code_bytes;
        let layout = Layout { code: code..CODE_END + hash, table: TABLE, limit: LIMIT };
        let mut engine = Engine::new(layout, choice);
        engine.set_hot_threshold(hot);
        engine.split_areas();
        let memory = TestMemory::new([
            (BASE, vec![0; (LIMIT - BASE) as usize]),
            (STACKS, vec![0; (THREADS * PAGE) as usize]),
            (code, vec![0; (code_bytes + HASH_BYTES) as usize]),
            (
                TABLE + (BASE << E::FrontEnd::ENTRY_SHIFT),
                vec![0; ((LIMIT - BASE) << E::FrontEnd::ENTRY_SHIFT) as usize],
            ),
            (SLOTS, vec![0; (THREADS * E::FrontEnd::SLOT_BYTES) as usize]),
        ]);
        (0..FUNCTIONS as usize).for_each(|function| program.write::<E>(function, &memory));
        Self { program, engine, memory, entries: HashMap::new(), turns: 0 }
    }

    /// Another process that imports this one's translations. Its program may differ in a few steps.
    fn again(self, hot: u32, random: &mut Random) -> Self {
        let exported = self.engine.export(&self.memory);
        let mut program = self.program;
        for _ in 0..random.below(3) {
            program.change(random);
        }
        let mut next = Self::of(program, hot, Optimizations::default(), MUCH_CODE_BYTES);
        next.engine.record_origins();
        if let Some(exported) = exported {
            assert!(next.engine.import(exported));
        }
        next
    }

    /// Looks up the code of `pc`, for a thread that left at `exit` if given. If the area is full, threads receive no
    /// more addresses in the other area, and the engine switches to it.
    fn code(&mut self, pc: u64, exit: Option<u64>) -> u64 {
        let target = match exit {
            Some(exit) => self.engine.follow(exit, pc, &self.memory),
            None => self.engine.code_of(pc, &self.memory),
        };
        let code = match target {
            Err(CodeError::Full) => {
                let (second, other) = (self.engine.second_area(), self.engine.free_area().unwrap());
                let is_other = |code: &u64| usize::from(Some(*code) >= second) == other;
                self.entries.values_mut().for_each(|codes| codes.retain(|code| !is_other(code)));
                self.engine.switch_area(&self.memory).unwrap();
                self.turns += 1;
                return self.code(pc, None);
            }
            target => target.unwrap(),
        };
        let codes = self.entries.entry(pc).or_default();
        if !codes.contains(&code) {
            codes.push(code);
        }
        code
    }

    fn change(&mut self, random: &mut Random) {
        let function = self.program.change(random);
        self.program.write::<E>(function, &self.memory);
        let page = BASE + function as u64 * PAGE;
        self.engine.forget(page..page + PAGE, &self.memory).unwrap();
    }

    /// Runs a thread to its next exit, and returns whether the program has ended. The thread's state must match a state
    /// that its model passes through.
    fn run(&mut self, thread: &mut Thread, random: &mut Random) -> bool {
        if self.entries.get(&thread.model.pc).is_none_or(Vec::is_empty) {
            self.code(thread.model.pc, None);
        }
        // Enter one of the addresses that were valid at some point.
        let codes = &self.entries[&thread.model.pc];
        thread.state.pc = codes[random.below(codes.len() as u64) as usize];
        let (pc, exit) = loop {
            let state = &mut thread.state;
            if !self.engine.is_code(state.pc) {
                break (E::FrontEnd::missed_target(state, &|link| self.engine.call_before(link)), None);
            }
            let word = Environment::fetch(&self.memory, state.pc).unwrap();
            let instruction = decode(word).unwrap();
            if semantics::execute(state, &instruction, &self.memory).is_ok() {
                continue;
            }
            match self.engine.exit_at(state.pc) {
                Some(Exit::To(pc)) => break (pc, Some(state.pc)),
                Some(Exit::Leave(pc)) => {
                    let pending = self.engine.position(state.pc).and_then(|position| position.pending);
                    if let Some(pending) = pending {
                        E::FrontEnd::settle(pending, state, &self.memory);
                    }
                    break (pc, None);
                }
                Some(Exit::Service(service)) => {
                    assert_eq!(E::FrontEnd::serve(service, state, &self.memory), ServiceResult::Done);
                    state.pc += 4;
                }
                exit => panic!("{exit:?} at {:#x}", state.pc),
            }
        };
        self.agree(thread, pc);
        if pc == END {
            return true;
        }
        if exit.is_none() {
            self.engine.note_indirect(pc);
        }
        self.code(pc, exit);
        false
    }

    /// Advances the thread's model until it matches the thread.
    fn agree(&self, thread: &mut Thread, pc: u64) {
        let read = |number: usize| {
            let register = E::FrontEnd::registers().register(number).unwrap();
            words(&E::FrontEnd::read_register(register, &thread.state, &self.memory))[0]
        };
        let (sum, count) = (read(E::SUM), read(E::COUNT) as u32);
        let begin = thread.model.clone();
        loop {
            let model = &mut thread.model;
            if (model.pc, model.sum, model.count) == (pc, sum, count) {
                return;
            }
            assert_ne!(model.pc, END, "at {pc:#x} with {sum} and {count}: not reachable from {begin:?}");
            model.step(&self.program);
        }
    }
}

/// Threads execute programs that change, in code areas that fill up.
///
/// # Panics
/// A thread executes stale code.
pub fn stale_code_is_never_executed<E: StepEncoding>()
where
    <E::FrontEnd as FrontEnd>::Service: Debug,
{
    let mut turns = 0;
    for seed in 0..PROGRAMS {
        let mut random = Random(seed);
        let hot = [1, 2, 3, 5][seed as usize % 4];
        let choice = Optimizations::default();
        let choice = if seed % 3 == 0 {
            choice.with(Optimization::Table, !choice.has(Optimization::Table))
        } else {
            choice
        };
        let mut world = World::<E>::new(hot, choice, &mut random);
        let start = |number, world: &World<E>, random: &mut Random| begin::<E>(number, &world.memory, random);
        let mut threads: Vec<_> = (0..THREADS).map(|number| start(number, &world, &mut random)).collect();
        for _ in 0..TURNS {
            let number = random.below(THREADS);
            let thread = &mut threads[number as usize];
            if world.run(thread, &mut random) {
                *thread = start(number, &world, &mut random);
            }
            if random.below(8) == 0 {
                world.change(&mut random);
            }
        }
        turns += world.turns;
    }
    assert!(turns > 3 * PROGRAMS as u32, "{turns}");
}

/// A sequence of processes, each of which imports the translations of the previous ones.
///
/// # Panics
/// A thread executes imported code whose source has changed.
pub fn imported_units_run_while_their_source_is_unchanged<E: StepEncoding>()
where
    <E::FrontEnd as FrontEnd>::Service: Debug,
{
    const PROCESSES: u64 = 12;
    let (mut executed, mut stale) = (0, 0);
    for seed in 0..PROGRAMS {
        let mut random = Random(seed);
        let hot = [2, 3, 5][seed as usize % 3];
        let program = Program::new::<E>(&mut random);
        let mut world = World::<E>::of(program, hot, Optimizations::default(), MUCH_CODE_BYTES);
        world.engine.record_origins();
        for _ in 0..PROCESSES {
            let kept_to = CODE_END - MUCH_CODE_BYTES + 4 * world.engine.export_size().all;
            let start =
                |number, world: &World<E>, random: &mut Random| begin::<E>(number, &world.memory, random);
            let mut threads: Vec<_> = (0..THREADS).map(|number| start(number, &world, &mut random)).collect();
            for _ in 0..TURNS / PROCESSES * 2 {
                let number = random.below(THREADS);
                let thread = &mut threads[number as usize];
                if world.run(thread, &mut random) {
                    *thread = start(number, &world, &mut random);
                }
                executed += usize::from(world.entries.values().flatten().any(|code| *code < kept_to));
                if random.below(16) == 0 {
                    world.change(&mut random);
                }
            }
            stale += world.engine.export_size().stale;
            assert_eq!(world.turns, 0);
            world = world.again(hot, &mut random);
        }
    }
    // Most context switches reach imported code, and some imported units are stale.
    assert!(executed > (PROGRAMS * TURNS) as usize && stale > 1000, "{executed} {stale}");
}
