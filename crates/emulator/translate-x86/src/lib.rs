//! The translation front end for x86-64 up to AVX2, in user mode under Linux. Source: Intel 64 and IA-32 Architectures
//! Software Developer's Manual; System V ABI, AMD64 supplement, appendix A.2 (system calls).

mod code;
pub mod debug;
pub mod features;
mod interpretation;
pub mod registers;
mod service;
pub mod system;

use std::ops::Range;

use iced_x86::{FastFormatter, Instruction};
use longma_loongarch::{Access, Fault, FaultCause, Instruction as Word, Op as La, State, Trap};

pub use code::RegisterStates;
use code::{reading, unit};

use longma_translate::debug::{Description, Register, Value};
use longma_translate::front_end::{
    self, CallResult, DataMemory, FrontEnd, InterpretableBlock, Interpreted, ServiceResult, SyscallAction,
    UserMemory,
};
use longma_translate::optimizations::Options;
use registers::{
    GENERAL, JUMP, NOT_ZERO, PARITY, RAX, SCRATCH, SSE_CONTROL, STACK_POINTER, TABLE, TARGET, THREAD_POINTER,
    X87_WORDS,
};
pub use service::frame;
use system::ResultConversion;

/// The start of the code of one instruction.
type Position = front_end::Position<RegisterStates>;
/// A translation unit.
type Unit = front_end::Unit<Instruction, RegisterStates>;

/// Errors are the values from -4095 to -1.
const LAST_ERROR: u64 = -4095i64 as u64;

/// The x86-64 front end.
#[derive(Debug)]
pub struct X86_64;

impl FrontEnd for X86_64 {
    type Service = Instruction;
    type Pending = RegisterStates;
    type ResultConversion = ResultConversion;
    type RegisterKind = debug::RegisterKind;
    type DecodedInstruction = longma_interpret_x86::DecodedInstruction;

    const NAME: &'static str = "x86-64";
    const ENTRY_SHIFT: u32 = 2;
    const ALIGNMENT: u64 = 1;
    const TABLE: u8 = TABLE;
    const INTERPRETS: bool = true;
    const IS_COHERENT: bool = true;
    const THREAD_POINTER: u8 = THREAD_POINTER;
    const SYSCALL_BYTES: u64 = 2;
    const CALL_BUFFER_BYTES: u64 = system::CALL_BUFFER_BYTES;

    fn prepare_process() {
        let _ = system::name(0);
    }

    fn missing_address(pc: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> Option<u64> {
        reading::missing_address(pc, fetch)
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
        unit::translate_one(start, fetch)
    }

    fn decode_block(
        pc: u64,
        fetch: &dyn Fn(u64) -> Option<u32>,
    ) -> InterpretableBlock<longma_interpret_x86::DecodedInstruction> {
        interpretation::decode_block(pc, fetch)
    }

    fn interpret<M: DataMemory>(
        steps: &[longma_interpret_x86::DecodedInstruction],
        state: &mut State,
        memory: &M,
    ) -> Interpreted {
        interpretation::interpret(steps, state, memory)
    }

    fn describe(pc: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> (String, String) {
        let Some(instruction) = reading::decode_at(pc, fetch).filter(|found| !found.is_invalid()) else {
            return ("none".into(), "(none)".into());
        };
        let mut text = String::new();
        FastFormatter::new().format(&instruction, &mut text);
        let kind = match instruction.code().op_code().instruction_string().split_once(' ') {
            Some((_, operands)) => format!("{} {}", text.split(' ').next().unwrap_or_default(), operands),
            None => text.clone(),
        };
        (kind, text)
    }

    fn begin(state: &mut State, pc: u64) {
        state.set_r(TARGET, pc);
        state.set_r(NOT_ZERO, 1);
        state.set_r(PARITY, 1);
        state.lbt.scratch[usize::from(X87_WORDS)] = service::INITIAL_WORDS;
        state.lbt.scratch[usize::from(SSE_CONTROL)] = 0;
        state.fcsr.0 = service::INITIAL_FCSR;
    }

    fn settle(known: RegisterStates, state: &mut State, _: &dyn UserMemory) {
        known.settle(state);
    }

    fn serve(instruction: Instruction, state: &mut State, memory: &dyn UserMemory) -> ServiceResult {
        service::serve(&instruction, state, memory)
    }

    fn permitted(trap: &Trap, pc: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> Option<(Instruction, u64)> {
        let Trap::Memory(Fault { cause: FaultCause::Misaligned, access, .. }) = trap else { return None };
        let instruction = reading::decode_at(pc, fetch).filter(service::is_atomic)?;
        (*access != Access::Execute).then(|| (instruction, instruction.next_ip()))
    }

    fn kernel_code(pc: u64) -> Option<u32> {
        system::vsyscall_code(pc)
    }

    fn is_single_stepping(state: &State) -> bool {
        service::kept_flags(state) & service::TF != 0
    }

    fn missed_target(state: &State, _: &dyn Fn(u64) -> Option<u8>) -> u64 {
        state.r(TARGET)
    }

    fn lookup_target(state: &State, word: &Word) -> Option<u64> {
        let looks_up = word.op == La::LdWu && word.d == word.j && matches!(word.d, SCRATCH | JUMP);
        looks_up.then(|| state.r(TARGET))
    }

    fn refuse_jump(
        target: u64,
        pc: u64,
        state: &mut State,
        fetch: &dyn Fn(u64) -> Option<u32>,
    ) -> Option<Trap> {
        if longma_interpret_x86::is_canonical(target) {
            return None;
        }
        service::undo_jump(&reading::decode_at(pc, fetch)?, state);
        Some(service::protection())
    }

    /// An address that is not aligned as the instruction requires is a general-protection fault. Division errors and
    /// privileged instructions already raise the right trap.
    fn trap(trap: Trap) -> Trap {
        match trap {
            Trap::Memory(Fault {
                cause: FaultCause::Misaligned,
                access: Access::Read | Access::Write,
                ..
            }) => service::protection(),
            _ => trap,
        }
    }

    fn call(state: &mut State, buffer: u64, memory: &dyn UserMemory) -> SyscallAction<ResultConversion> {
        if system::is_interrupt(state.pc, memory) {
            return system::prepare_32_bit(state, buffer, memory);
        }
        // RDI, RSI, RDX, R10, R8, R9.
        let arguments = [7, 6, 2, 10, 8, 9].map(|number: usize| state.r(GENERAL[number]));
        system::prepare(state.r(RAX), arguments, state, buffer, memory)
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
        state.set_r(RAX, result.map_or_else(u64::wrapping_neg, |(value, _)| value));
    }

    fn set_thread_pointer(state: &mut State, value: u64) {
        state.set_r(THREAD_POINTER, value);
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

const _: () = assert!(STACK_POINTER == front_end::STACK_POINTER && SCRATCH == front_end::SCRATCH);
