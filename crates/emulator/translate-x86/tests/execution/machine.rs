//! Translates instructions and interprets the translation.

use iced_x86::Mnemonic;
use longma_loongarch::{Environment, State, Trap, decode as decode_word, semantics};
use longma_translate::engine::{Engine, Layout};
use longma_translate::front_end::{Exit, FrontEnd, Interpreted, ServiceResult};
use longma_translate::interpretation::Continuation;
use longma_translate::optimizations::Optimizations;
use longma_translate_conformance::memory::{InterpreterView, TestMemory};
use longma_translate_x86::X86_64;
use longma_translate_x86::registers::{GENERAL, TABLE, UPPERS, flags_of, set_flags_of, set_upper, upper};

use crate::host::Registers;
use crate::random::Random;

pub const SOURCE: u64 = 0x1_0000;
const CODE: u64 = 0x1000_0000;
const CODE_BYTES: u64 = 1 << 20;
const TABLE_AT: u64 = 0x2000_0000;
const SOURCE_BYTES: usize = 1024;
/// The page of the stack. The stack pointer starts in its middle.
const STACK: u64 = 0x3000_0000;
pub const STACK_TOP: u64 = STACK + 2048;
pub const DATA_BYTES: usize = 256;
/// The offset of the memory operand in the data, in bytes.
pub const MIDDLE: u64 = 96;

/// Translates and executes instructions, and returns the number of LoongArch instructions executed. With
/// `interruptions`, random interruptions occur where a signal can arrive, and execution resumes from the state that a
/// signal handler would see.
pub fn translated(
    instructions: &[u8],
    registers: &mut Registers,
    data_at: u64,
    data: &mut Vec<u8>,
    interruptions: Option<&mut Random>,
) -> Result<u64, String> {
    translated_with(Optimizations::default(), instructions, registers, data_at, data, interruptions)
}

/// Like [`translated`], but interprets what the interpreter supports until it is hot.
pub fn interpreted(
    instructions: &[u8],
    registers: &mut Registers,
    data_at: u64,
    data: &mut Vec<u8>,
    interruptions: Option<&mut Random>,
) -> Result<u64, String> {
    let optimizations = Optimizations::default();
    execute(optimizations, Some(HOT), instructions, registers, data_at, data, interruptions)
}

/// Like [`translated`], with this set of optimizations.
pub fn translated_with(
    optimizations: Optimizations,
    instructions: &[u8],
    registers: &mut Registers,
    data_at: u64,
    data: &mut Vec<u8>,
    interruptions: Option<&mut Random>,
) -> Result<u64, String> {
    execute(optimizations, None, instructions, registers, data_at, data, interruptions)
}

/// The visits after which [`interpreted`] code is translated. Loops of some tests exceed it.
const HOT: u32 = 3;

/// Interprets blocks from `pc` on, and returns the translated code that follows.
fn enter(
    engine: &mut Engine<X86_64>,
    mut pc: u64,
    state: &mut State,
    memory: &TestMemory,
) -> Result<u64, String> {
    loop {
        let block = match engine.continue_at(pc, memory).map_err(|refusal| format!("{refusal:?}"))? {
            Continuation::Code(code) => return Ok(code),
            Continuation::Block(block) => block,
        };
        pc = match X86_64::interpret(&block.steps, state, &InterpreterView(memory)) {
            Interpreted::Next(next) | Interpreted::Indirect(next) => next,
            Interpreted::Refused(at) => {
                return engine.code_of_refused(at, memory).map_err(|refusal| format!("{refusal:?}"));
            }
        };
    }
}

/// Copies the architectural registers of `state`.
fn observe(state: &State, registers: &mut Registers) {
    for (number, value) in registers.general.iter_mut().enumerate() {
        *value = state.r(GENERAL[number]);
    }
    registers.flags = flags_of(state);
    for (number, value) in registers.vectors.iter_mut().enumerate() {
        *value = u128::from(state.v[16 + number].0[0]) | u128::from(state.v[16 + number].0[1]) << 64;
    }
    for (number, value) in registers.uppers.iter_mut().enumerate() {
        let [low, high] = upper(state, number);
        *value = u128::from(low) | u128::from(high) << 64;
    }
}

fn execute(
    optimizations: Optimizations,
    hot: Option<u32>,
    instructions: &[u8],
    registers: &mut Registers,
    data_at: u64,
    data: &mut Vec<u8>,
    mut interruptions: Option<&mut Random>,
) -> Result<u64, String> {
    // An invalid instruction follows the code.
    let mut source = vec![0; SOURCE_BYTES];
    source[..instructions.len()].copy_from_slice(instructions);
    source[instructions.len()..][..2].copy_from_slice(&[0x0f, 0x0b]);
    let memory = TestMemory::new([
        (SOURCE, source),
        (CODE, vec![0; CODE_BYTES as usize]),
        (TABLE_AT + 4 * SOURCE, vec![0; 4096]),
        (data_at, std::mem::take(data)),
        (STACK, vec![0; 4096]),
    ]);
    let layout =
        Layout { code: CODE..CODE + CODE_BYTES, table: TABLE_AT, limit: SOURCE + SOURCE_BYTES as u64 };
    let mut engine = Engine::<X86_64>::new(layout, optimizations);
    if let Some(hot) = hot {
        engine.set_hot_threshold(hot);
        engine.interpret_cold_code();
    }
    let mut state = State::default();
    X86_64::begin(&mut state, SOURCE);
    state.set_r(TABLE, TABLE_AT);
    for (number, value) in registers.general.iter().enumerate() {
        state.set_r(GENERAL[number], *value);
    }
    set_flags_of(&mut state, registers.flags);
    for (number, value) in registers.vectors.iter().enumerate() {
        // The bits above the register's value are arbitrary.
        state.v[16 + number].0 = [*value as u64, (value >> 64) as u64, 0x5a5a, !0];
    }
    for (number, value) in registers.uppers.iter().enumerate() {
        set_upper(&mut state, number, [*value as u64, (value >> 64) as u64]);
    }
    state.pc = enter(&mut engine, SOURCE, &mut state, &memory)?;
    let mut executed = 0;
    loop {
        if interruptions.as_mut().is_some_and(|random| random.below(6) == 0)
            && let Some(position) = engine.position(state.pc).filter(|position| position.is_boundary)
        {
            if let Some(pending) = position.pending {
                X86_64::settle(pending, &mut state, &memory);
            }
            state.set_r(1, 0);
            state.pc = enter(&mut engine, position.pc, &mut state, &memory)?;
        }
        let word = Environment::fetch(&memory, state.pc).map_err(|fault| format!("{fault}"))?;
        let instruction = decode_word(word).ok_or(format!("{word:#010x} is not an instruction"))?;
        executed += 1;
        if executed > 10_000 {
            return Err("it does not end".into());
        }
        let Err(trap) = semantics::execute(&mut state, &instruction, &memory) else { continue };
        match (trap, engine.exit_at(state.pc)) {
            (Trap::Break(_), Some(Exit::Service(found))) if found.mnemonic() == Mnemonic::Ud2 => break,
            (Trap::Break(_), Some(Exit::To(pc))) => {
                state.pc = enter(&mut engine, pc, &mut state, &memory)?;
            }
            (Trap::Break(_), Some(Exit::Service(found))) => match X86_64::serve(found, &mut state, &memory) {
                ServiceResult::Done => state.pc += 4,
                ServiceResult::ExactFloats { next_pc: next } => {
                    state.pc += 4;
                    if engine.use_exact_floats(&memory).map_err(|fault| format!("{fault}"))? {
                        let next = next.expect("the instruction's length varies");
                        state.pc = enter(&mut engine, next, &mut state, &memory)?;
                    }
                }
                other => {
                    observe(&state, registers);
                    return Err(format!("{other:?}"));
                }
            },
            (trap, exit) => {
                let position = engine.position_of_fault(state.pc).ok_or("no position")?;
                let fetch = |address| Environment::load(&memory, address).ok();
                let Some((service, next)) = X86_64::permitted(&trap, position.pc, &fetch) else {
                    if let Some(pending) = position.pending {
                        X86_64::settle(pending, &mut state, &memory);
                    }
                    observe(&state, registers);
                    return Err(format!("{trap:?} at {exit:?}"));
                };
                if let Some(pending) = position.pending {
                    X86_64::settle(pending, &mut state, &memory);
                }
                match X86_64::serve(service, &mut state, &memory) {
                    ServiceResult::Done => {
                        state.pc = enter(&mut engine, next, &mut state, &memory)?;
                    }
                    other => return Err(format!("{other:?}")),
                }
            }
        }
    }
    observe(&state, registers);
    if registers.uppers.iter().any(|value| *value != 0) && state.fcc[usize::from(UPPERS)] == 0 {
        return Err("upper halves that are not tracked".into());
    }
    data.clone_from(&memory.bytes(3));
    Ok(executed - 1)
}
