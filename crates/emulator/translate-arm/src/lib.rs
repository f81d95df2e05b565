//! Translates AArch64 programs: the A64 instructions of Armv8.2 that a Cortex-A76 implements, little-endian, on Linux.
//! Source: Arm Architecture Reference Manual (Arm DDI 0487); Linux arch/arm64/kernel/entry.S (system call registers).

mod code;
pub mod debug;
pub mod instruction;
mod interpreter;
mod numbers;
mod print;
pub mod refused;
pub mod registers;
mod service;
pub mod system;

use std::ops::Range;

use longma_loongarch::{Instruction as Word, Op as La, State};

pub use code::PendingState;
use code::unit;
use instruction::Instruction;
use longma_translate::debug::{Description, Register, Value};
use longma_translate::front_end::{
    self, CallResult, DataMemory, FrontEnd, InterpretableBlock, Interpreted, ServiceResult, SyscallAction,
    UserMemory,
};
use longma_translate::optimizations::Options;
use registers::{LINK, SCRATCH, SLOT_BYTES, SLOTS, TABLE, TARGET, THREAD_POINTER};
pub use service::{frame, serve};
use system::ResultConversion;

/// The start of an instruction's code, with its pending state.
type Position = front_end::Position<PendingState>;
/// A translated unit.
type Unit = front_end::Unit<Instruction, PendingState>;

/// Results from this value up to -1 are error numbers.
const LAST_ERROR: u64 = -4095i64 as u64;
/// x8: the system call number.
const NUMBER: u8 = 8;

/// The AArch64 front end.
#[derive(Debug)]
pub struct Aarch64;

impl FrontEnd for Aarch64 {
    type Service = Instruction;
    type Pending = PendingState;
    type ResultConversion = ResultConversion;
    type RegisterKind = debug::RegisterKind;
    type DecodedInstruction = interpreter::DecodedInstruction;

    const NAME: &'static str = "AArch64";
    const ENTRY_SHIFT: u32 = 0;
    const ALIGNMENT: u64 = 4;
    const THREAD_POINTER: u8 = 0;
    const TABLE: u8 = TABLE;
    const INTERPRETS: bool = true;
    const SLOTS: u8 = SLOTS;
    const SLOT_BYTES: u64 = SLOT_BYTES;
    const IGNORED_ADDRESS_BITS: u64 = registers::IGNORED_ADDRESS_BITS;
    const SYSCALL_BYTES: u64 = 4;
    const CALL_BUFFER_BYTES: u64 = system::CALL_BUFFER_BYTES;

    fn prepare_process() {
        let _ = (system::name(0), instruction::decode(0));
    }

    fn translate(
        start: u64,
        extra_entries: &[u64],
        fetch: &dyn Fn(u64) -> Option<u32>,
        known: &dyn Fn(u64) -> bool,
        options: &Options,
    ) -> Unit {
        unit::translate(start, extra_entries, fetch, known, options)
    }

    fn translate_one(start: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> Unit {
        unit::translate(start, &[], &front_end::within(start, 4, fetch), &|_| true, &Options::default())
    }

    fn decode_block(
        pc: u64,
        fetch: &dyn Fn(u64) -> Option<u32>,
    ) -> InterpretableBlock<interpreter::DecodedInstruction> {
        interpreter::decode_block(pc, fetch)
    }

    fn interpret<M: DataMemory>(
        steps: &[interpreter::DecodedInstruction],
        state: &mut State,
        memory: &M,
    ) -> Interpreted {
        interpreter::interpret(steps, state, memory)
    }

    fn describe(pc: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> (String, String) {
        let Some(word) = fetch(pc) else { return ("none".into(), "(none)".into()) };
        if let Some(instruction) = instruction::decode(word) {
            return (instruction.mnemonic().into(), instruction.text(pc).to_string());
        }
        match refused::refused(word) {
            Some((name, feature)) => (name.into(), format!("{name} ({feature})")),
            None => ("none".into(), "(unallocated)".into()),
        }
    }

    fn begin(state: &mut State, pc: u64) {
        state.set_r(TARGET, pc);
        state.set_r(SCRATCH, (-4 * i64::from(TARGET)) as u64);
    }

    fn settle(pending: PendingState, state: &mut State, memory: &dyn UserMemory) {
        pending.settle(state, memory);
    }

    fn serve(instruction: Instruction, state: &mut State, memory: &dyn UserMemory) -> ServiceResult {
        serve(instruction, state, memory)
    }

    /// Finds the register that contains the target. For a call, the return address identifies it. For other jumps, the
    /// program counter minus r1 is four times its number, or 0 for [`LINK`].
    fn missed_target(state: &State, call: &dyn Fn(u64) -> Option<u8>) -> u64 {
        let link = state.r(SCRATCH);
        let register = call(link).or_else(|| {
            let distance = state.pc.wrapping_sub(link);
            let register = (distance / 4) as u8;
            let is_one = distance.is_multiple_of(4) && distance < 4 * 32;
            is_one.then_some(if register == 0 { LINK } else { register })
        });
        // Otherwise the target is not a multiple of four, and the load returned halves of two adjacent entries.
        register.map_or(state.pc, |register| state.r(register))
    }

    fn lookup_target(state: &State, word: &Word) -> Option<u64> {
        let looks_up = word.op == La::LdxWu && word.d == SCRATCH && word.k == TABLE;
        looks_up.then(|| state.r(word.j))
    }

    fn call(state: &mut State, buffer: u64, memory: &dyn UserMemory) -> SyscallAction<ResultConversion> {
        let x = |number| registers::read(state, number, memory);
        let arguments = std::array::from_fn(|number| x(number as u8));
        system::prepare(x(NUMBER), arguments, buffer, memory)
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
        if let registers::Location::Register(register) = registers::place(0) {
            state.set_r(register, result.map_or_else(u64::wrapping_neg, |(value, _)| value));
        }
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

    fn read_register(
        register: Register<debug::RegisterKind>,
        state: &State,
        memory: &dyn UserMemory,
    ) -> Value {
        debug::read(register, state, memory)
    }

    fn write_register(
        register: Register<debug::RegisterKind>,
        value: &Value,
        state: &mut State,
        memory: &dyn UserMemory,
    ) -> bool {
        debug::write(register, value, state, memory)
    }
}
