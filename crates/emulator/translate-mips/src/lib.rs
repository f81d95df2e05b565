//! Translates MIPS64 programs: release 2, n64 ABI, little-endian, on Linux. Source: MIPS64 Architecture for
//! Programmers, volumes I-A, II-A; Linux arch/mips/kernel/scall64-n64.S (system call registers).

mod access;
pub mod code;
pub mod debug;
mod deferred;
mod deferred_expressions;
mod deferred_values;
mod float;
pub mod frame;
pub mod instruction;
mod jumps;
mod lower;
pub mod numbers;
mod plain;
mod products;
pub mod registers;
mod service;
pub mod system;
pub mod unit;
mod uses;
mod width;

use std::ops::Range;

use longma_loongarch::{Instruction as Word, Op as La, State};

use code::{Pending, Unit};
use instruction::Instruction;
use longma_translate::debug::{Description, Register, Value};
use longma_translate::front_end::{self, CallResult, FrontEnd, ServiceResult, SyscallAction, UserMemory};
use longma_translate::optimizations::Options;
use lower::SPARE_SOURCE;
use registers::{SCRATCH, SPARE, TABLE, THREAD_POINTER, general};
pub use service::serve;
use system::ResultConversion;

/// Registers of system call arguments.
const ARGUMENTS: [u8; 6] = [4, 5, 6, 7, 8, 9];
/// v0: the system call number, and the result.
const RESULT: u8 = general(2);
/// v1: the second result of pipe(2).
const SECOND: u8 = general(3);
/// a3: nonzero if the system call failed.
const FAILED: u8 = general(7);
/// Results from this value up to -1 are error numbers.
const LAST_ERROR: u64 = -4095i64 as u64;

/// The MIPS64 front end.
#[derive(Debug)]
pub struct Mips64;

fn source_register(state: &State, number: u8) -> u64 {
    if number == SPARE_SOURCE { state.lbt.scratch[usize::from(SPARE)] } else { state.r(general(number)) }
}

impl FrontEnd for Mips64 {
    type Service = Instruction;
    type Pending = Pending;
    type ResultConversion = ResultConversion;
    type RegisterKind = debug::RegisterKind;
    type DecodedInstruction = std::convert::Infallible;

    const NAME: &'static str = "MIPS64";
    const ENTRY_SHIFT: u32 = 0;
    const ALIGNMENT: u64 = 4;
    const THREAD_POINTER: u8 = 0;
    const TABLE: u8 = TABLE;
    const SYSCALL_BYTES: u64 = 4;
    const CALL_BUFFER_BYTES: u64 = system::CALL_BUFFER_BYTES;

    fn prepare_process() {
        let _ = (system::name(0), instruction::decode(0));
    }

    fn translate(
        start: u64,
        // Every block is an entry point already.
        _extra_entries: &[u64],
        fetch: &dyn Fn(u64) -> Option<u32>,
        known: &dyn Fn(u64) -> bool,
        options: &Options,
    ) -> Unit {
        unit::translate(start, fetch, known, options)
    }

    fn translate_one(start: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> Unit {
        // The second instruction is the delay slot. Only jumps read it.
        unit::translate(start, &front_end::within(start, 8, fetch), &|_| true, &Options::default())
    }

    fn describe(pc: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> (String, String) {
        match fetch(pc).and_then(instruction::decode) {
            Some(instruction) => (instruction.mnemonic().into(), instruction.text(pc).to_string()),
            None => ("none".into(), "(none)".into()),
        }
    }

    fn begin(state: &mut State, pc: u64) {
        let register = 25;
        state.set_r(register, pc);
        state.set_r(SCRATCH, (-4 * i64::from(register)) as u64);
    }

    fn settle(pending: Pending, state: &mut State, _: &dyn UserMemory) {
        pending.settle(state);
    }

    fn serve(instruction: Instruction, state: &mut State, _: &dyn UserMemory) -> ServiceResult {
        serve(instruction, state)
    }

    /// Finds the register that contains the target. For a call, the return address identifies it. For other jumps, the
    /// program counter minus r1 is four times its number, or 0 for register 31.
    fn missed_target(state: &State, call: &dyn Fn(u64) -> Option<u8>) -> u64 {
        let link = state.r(SCRATCH);
        let register = call(link).or_else(|| {
            let distance = state.pc.wrapping_sub(link);
            let register = (distance / 4) as u8;
            (distance.is_multiple_of(4) && distance < 4 * 32).then_some(if register == 0 {
                31
            } else {
                register
            })
        });
        match register {
            Some(register) => source_register(state, register),
            // The target is not a multiple of four, and the load returned halves of two adjacent entries.
            None => state.pc,
        }
    }

    fn lookup_target(state: &State, word: &Word) -> Option<u64> {
        let looks_up = word.op == La::LdxWu && word.d == SCRATCH && word.k == TABLE;
        looks_up
            .then(|| if word.j == SCRATCH { state.lbt.scratch[usize::from(SPARE)] } else { state.r(word.j) })
    }

    fn call(state: &mut State, buffer: u64, memory: &dyn UserMemory) -> SyscallAction<ResultConversion> {
        let arguments = ARGUMENTS.map(|register| state.r(register));
        system::prepare(state.r(RESULT), arguments, buffer, memory)
    }

    fn finish(conversion: ResultConversion, result: u64, memory: &dyn UserMemory) -> CallResult {
        system::finish(conversion, result, memory)
    }

    fn changed(conversion: ResultConversion, result: u64) -> Option<Range<u64>> {
        let (start, bytes) = match conversion {
            ResultConversion::Mapped(start, bytes) => (start, bytes),
            ResultConversion::Placed(bytes) if result < LAST_ERROR => (result, bytes),
            _ => return None,
        };
        Some(start..start.saturating_add(bytes))
    }

    fn put_result(state: &mut State, result: CallResult) {
        let (value, failed) = match result {
            Ok((value, second)) => {
                if let Some(second) = second {
                    state.set_r(SECOND, second);
                }
                (value, 0)
            }
            Err(error) => (numbers::error(error), 1),
        };
        state.set_r(RESULT, value);
        state.set_r(FAILED, failed);
    }

    fn set_thread_pointer(state: &mut State, value: u64) {
        state.lbt.scratch[usize::from(THREAD_POINTER)] = value;
    }

    fn enter(state: &mut State, return_address: u64, memory: &dyn UserMemory) -> bool {
        frame::enter(state, return_address, memory)
    }

    fn leave(state: &mut State, memory: &dyn UserMemory) -> Option<u64> {
        frame::leave(state, memory)
    }

    fn after_leaving(state: &mut State, frame: u64, memory: &dyn UserMemory) {
        frame::after(state, frame, memory);
    }

    fn registers() -> Description<debug::RegisterKind> {
        debug::description()
    }

    fn read_register(register: Register<debug::RegisterKind>, state: &State, _: &dyn UserMemory) -> Value {
        debug::read(register, state)
    }

    fn write_register(
        register: Register<debug::RegisterKind>,
        value: &Value,
        state: &mut State,
        _: &dyn UserMemory,
    ) -> bool {
        debug::write(register, value, state)
    }
}
