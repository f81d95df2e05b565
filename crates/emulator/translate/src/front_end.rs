//! The interface between the engine and the front end of a source architecture, and the memory that both work on.

use std::fmt::Debug;
use std::ops::Range;

use longma_loongarch::{Access, Fault, FaultCause, Instruction, State};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::assembler::Assembler;
use crate::debug::{Description, Register, Value};
use crate::optimizations::Options;

/// Codes of the `break` instructions in translated code. [`EXIT`] continues at a source address.
pub const EXIT: i32 = 0x7001;
/// Asks the engine to execute one source instruction.
pub const SERVICE: i32 = 0x7002;
/// The source address holds no valid instruction.
pub const ILLEGAL: i32 = 0x7003;

/// The code of the trap after an instruction of a thread that single-steps; see [`FrontEnd::is_single_stepping`].
pub const STEPPED: u32 = 2;

/// A register that is free between two source instructions: r1. Return instructions jump through it, so that the
/// processor predicts them as returns.
pub const SCRATCH: u8 = 1;
/// The register of the source's stack pointer. It is LoongArch's stack pointer, because signal frames and new threads
/// use that.
pub const STACK_POINTER: u8 = 3;

/// The start of the code of one source instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position<P> {
    /// The index of the first word in the unit.
    pub offset: u32,
    /// Where the program resumes after an interruption here: the instruction, or the branch if the instruction is in
    /// its delay slot.
    pub pc: u64,
    /// All registers are architectural before this word, apart from `pending`.
    pub is_boundary: bool,
    /// The word whose execution completes the instruction, if it counts as a separate instruction.
    pub counted: Option<u32>,
    /// Whether a block begins here. Control flow may reach it without executing the positions before it.
    pub begins: bool,
    /// Register values that still have to be written.
    pub pending: Option<P>,
}

/// Why translated code exits to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit<S> {
    /// To continue at a source address that has no code yet.
    To(u64),
    /// To continue at a source address after writing the pending registers, because the code from here on is invalid.
    Leave(u64),
    /// To have one source instruction executed.
    Service(S),
    /// Because there is no valid instruction.
    Illegal,
}

/// A translation unit.
#[derive(Debug)]
pub struct Unit<S, P> {
    /// The LoongArch code. It is position-independent.
    pub words: Vec<u32>,
    /// Entry points: source address and word index.
    pub entries: Vec<(u64, u32)>,
    /// Internal block heads: source address and word index. Only the unit's own jumps lead to them, because their code
    /// relies on known register values.
    pub heads: Vec<(u64, u32)>,
    /// Sorted by `offset`.
    pub positions: Vec<Position<P>>,
    /// Words that exit to the engine.
    pub exits: Vec<(u32, Exit<S>)>,
    /// Indirect calls: word index and source register.
    pub calls: Vec<(u32, u8)>,
    /// The translated source code: start address and length in bytes.
    pub sources: Vec<(u64, u64)>,
    /// At least one address on each page that the translation depends on, including pages that were only inspected.
    pub inspected_pages: Vec<u64>,
    /// Known targets of the unit's calls. Left empty where every block is an entry point, because function boundaries
    /// do not matter there.
    pub called: Vec<u64>,
    /// Return addresses of the unit's calls. Left empty like `called`.
    pub return_addresses: Vec<u64>,
    /// Return stubs: return address and word index. If the code of the return address does not follow the call, the
    /// word after the call is a stub that jumps there.
    pub return_stubs: Vec<(u64, u32)>,
    /// Whether a function that the unit calls seems to return a result in flags.
    pub reads_flags_after_call: bool,
}

impl<S, P> Default for Unit<S, P> {
    fn default() -> Self {
        Self {
            words: Vec::new(),
            entries: Vec::new(),
            heads: Vec::new(),
            positions: Vec::new(),
            exits: Vec::new(),
            calls: Vec::new(),
            sources: Vec::new(),
            inspected_pages: Vec::new(),
            called: Vec::new(),
            return_addresses: Vec::new(),
            return_stubs: Vec::new(),
            reads_flags_after_call: false,
        }
    }
}

impl<S: Copy, P> Unit<S, P> {
    /// Ends the block in words `start..end`. Trailing instructions that emitted no code are counted with the block's
    /// last word, because jumps can reach the code after the block without executing them.
    pub fn end_block(&mut self, start: usize, end: usize) {
        let end = end as u32;
        for position in self.positions.iter_mut().rev().take_while(|position| position.offset == end) {
            position.counted = position.counted.and(end.checked_sub(1)).filter(|last| *last >= start as u32);
        }
    }

    /// Emits the word after a call whose return address has no code in the unit.
    pub fn exit_after_call(&mut self, assembler: &mut Assembler, return_address: u64) {
        self.return_stubs.push((return_address, assembler.words.len() as u32));
        self.exit(assembler, return_address, Exit::To(return_address));
    }

    /// Emits a word that exits to the engine.
    pub fn exit(&mut self, assembler: &mut Assembler, pc: u64, reason: Exit<S>) {
        let offset = assembler.words.len() as u32;
        let is_boundary = matches!(reason, Exit::To(_));
        self.positions.push(Position {
            offset,
            pc,
            is_boundary,
            counted: None,
            begins: false,
            pending: None,
        });
        self.exits.push((offset, reason));
        let imm = match reason {
            Exit::To(_) | Exit::Leave(_) => EXIT,
            Exit::Service(_) => SERVICE,
            Exit::Illegal => ILLEGAL,
        };
        assembler.push(Instruction { imm, ..Instruction::new(longma_loongarch::Op::Break) });
    }
}

/// Access to guest memory for the structures of system calls and signal frames.
pub trait UserMemory {
    /// Fills `bytes` from `address` on. Returns false if the range is not readable.
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool;

    /// Writes `bytes`. Returns false if the range is not writable.
    fn write(&self, address: u64, bytes: &[u8]) -> bool;

    /// The number of writable bytes from `address` on, at most `bytes`.
    fn writable(&self, address: u64, bytes: u64) -> u64;

    /// The guest's clock in nanoseconds since an arbitrary start.
    fn clock_ns(&self) -> u64;

    /// A random number: from the seed in simulated time, otherwise from the host.
    fn random(&self) -> u64 {
        0
    }

    /// Atomically replaces the `bytes` bytes (at most 16) at `address` by `new` if they are `expected`, and returns
    /// their old value. The address need not be aligned. This implementation is for memory that no other thread
    /// accesses.
    ///
    /// # Errors
    /// The bytes are not writable.
    fn compare_exchange(&self, address: u64, bytes: usize, expected: u128, new: u128) -> Result<u128, Fault> {
        let mut current = [0; 16];
        let is_accessible =
            self.read(address, &mut current[..bytes]) && self.writable(address, bytes as u64) == bytes as u64;
        let old = u128::from_le_bytes(current);
        let is_done = is_accessible && (old != expected || self.write(address, &new.to_le_bytes()[..bytes]));
        let fault = Fault { address, access: Access::Write, cause: FaultCause::Unmapped };
        is_done.then_some(old).ok_or(fault)
    }
}

/// Guest memory as [`FrontEnd::interpret`] accesses it. An access that fails has no effect.
pub trait DataMemory {
    /// Loads 1, 2, 4 or 8 bytes, zero-extended.
    fn load(&self, address: u64, bytes: u8) -> Option<u64>;

    /// Stores the low 1, 2, 4 or 8 bytes. Returns false if they are not writable.
    fn store(&self, address: u64, bytes: u8, value: u64) -> bool;

    /// Loads 16 bytes.
    fn load_wide(&self, address: u64) -> Option<[u64; 2]>;

    /// Stores 16 bytes. Returns false if they are not writable.
    fn store_wide(&self, address: u64, value: [u64; 2]) -> bool;

    /// Whether a store may have changed code that is not forgotten yet.
    fn code_has_changed(&self) -> bool;
}

/// A block that [`FrontEnd::interpret`] executes.
#[derive(Debug)]
pub struct InterpretableBlock<S> {
    /// The instructions; none if the first one must be translated.
    pub steps: Vec<S>,
    /// Their length in bytes.
    pub bytes: u64,
    /// The target of the call at the end of the block, if known.
    pub called: Option<u64>,
    /// The return address of that call.
    pub return_address: Option<u64>,
    /// As in [`Unit`].
    pub reads_flags_after_call: bool,
}

impl<S> Default for InterpretableBlock<S> {
    fn default() -> Self {
        Self {
            steps: Vec::new(),
            bytes: 0,
            called: None,
            return_address: None,
            reads_flags_after_call: false,
        }
    }
}

/// Where execution continues after an interpreted block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpreted {
    /// At a source address.
    Next(u64),
    /// At the target of an indirect jump or a return.
    Indirect(u64),
    /// With the translation of the instruction at this address, which the interpreter cannot execute.
    Refused(u64),
}

/// The immediates of `andi $zero, $zero, n` that act as markers: start and end of the region of interest, checkpoint,
/// and event. [`MARK_NUMBER`] holds the event's number. `longma-core` defines them.
pub const MARKS: std::ops::RangeInclusive<i32> = 0x4c1..=EVENT_MARK;
/// The event marker; see [`MARKS`].
pub const EVENT_MARK: i32 = 0x4c4;
/// The register with the event's number; see [`MARKS`].
pub const MARK_NUMBER: u8 = 4;

/// The action that a system call requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyscallAction<A> {
    /// Make the Linux system call with this LoongArch number and these arguments, then pass the result to
    /// [`FrontEnd::finish`].
    Call(u64, [u64; 6], A),
    /// The call is complete: its value, or the error in the source's numbering.
    Done(Result<u64, u64>),
    /// Return from a signal handler.
    SignalReturn,
    /// Set the thread pointer.
    ThreadPointer(u64),
    /// Code may have changed: start address and length in bytes.
    Flush(u64, u64),
}

/// The result of an instruction that the engine executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceResult {
    /// The instruction is complete.
    Done,
    /// The instruction raises this trap.
    Trap(longma_loongarch::Trap),
    /// The instruction is complete and raises this trap. The signal handler sees this address, which follows the
    /// instruction, as program counter.
    TrapAfter(longma_loongarch::Trap, u64),
    /// The instruction is complete, and code at this address may have changed.
    Changed(u64),
    /// The instruction is complete and has switched on a floating-point mode that LoongArch does not have. Execution
    /// must continue in code that is translated with [`crate::optimizations::Options::exact_floats`].
    ExactFloats {
        /// The source address of the next instruction; `None` if all instructions have the same length.
        next_pc: Option<u64>,
    },
    /// A repeating instruction is partially complete. Execute it again after delivering signals.
    Again,
    /// The instruction is complete, and the thread single-steps. The value is the address of the next instruction.
    Step(u64),
}

/// The result of a system call: one or two values, or the error in the source's numbering.
pub type CallResult = Result<(u64, Option<u64>), u64>;

/// The front end of a source architecture.
pub trait FrontEnd: Sized + Send + Sync + 'static {
    /// An instruction that the engine executes.
    type Service: Copy + Debug + Send + Sync + PartialEq + Serialize + DeserializeOwned;
    /// Register values that translated code has not written yet.
    type Pending: Copy + Debug + PartialEq + Send + Sync + Serialize + DeserializeOwned;
    /// The action for the result of a system call.
    type ResultConversion: Copy + Debug;
    /// A kind of register that a debugger can access.
    type RegisterKind: Copy + 'static;
    /// An instruction in the form that [`Self::interpret`] executes.
    type DecodedInstruction: Send + Sync + 'static;

    /// The name of the architecture.
    const NAME: &'static str;
    /// The lookup-table entry of address `a` is at `table + (a << ENTRY_SHIFT)`.
    const ENTRY_SHIFT: u32;
    /// The alignment of instructions in bytes.
    const ALIGNMENT: u64;
    /// The host register that holds the start of the lookup table.
    const TABLE: u8;
    /// The host register that points to the thread's spill slots, memory for state that has no register; 0 if unused.
    const SLOTS: u8 = 0;
    /// The size of a thread's spill slots in bytes.
    const SLOT_BYTES: u64 = 0;
    /// Address bits that loads, stores and jumps ignore, so that programs can store tags there.
    const IGNORED_ADDRESS_BITS: u64 = 0;
    /// Whether a thread's stores to code take effect at its next instruction without an explicit barrier.
    const IS_COHERENT: bool = false;
    /// Whether the front end can interpret blocks; see [`Self::interpret`].
    const INTERPRETS: bool = false;
    /// The general register that holds the thread pointer; 0 if it is elsewhere.
    const THREAD_POINTER: u8;
    /// The length in bytes of the system-call instruction.
    const SYSCALL_BYTES: u64;
    /// The size in bytes of the buffer that [`Self::call`] needs.
    const CALL_BUFFER_BYTES: u64;

    /// Initializes global state that must be complete before the process forks.
    fn prepare_process();

    /// The address of the first word that the instruction at `pc` needs but `fetch` cannot read.
    fn missing_address(_pc: u64, _fetch: &dyn Fn(u64) -> Option<u32>) -> Option<u64> {
        None
    }

    /// Translates the code that is reachable from `start`. Those of `extra_entries` that are instructions of the unit
    /// become additional entry points: a running loop may continue there. `fetch` reads aligned words of source code.
    /// `known` excludes addresses from the unit. `options` never change the effect of the code.
    fn translate(
        start: u64,
        extra_entries: &[u64],
        fetch: &dyn Fn(u64) -> Option<u32>,
        known: &dyn Fn(u64) -> bool,
        options: &Options,
    ) -> Unit<Self::Service, Self::Pending>;

    /// Translates the single instruction at `start`, including its delay slot. All registers are architectural before
    /// and after the unit, even those that are dead.
    fn translate_one(start: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> Unit<Self::Service, Self::Pending>;

    /// Decodes the block at `pc` for [`Self::interpret`]: it ends at the first jump, or before an instruction that must
    /// be translated.
    fn decode_block(
        _pc: u64,
        _fetch: &dyn Fn(u64) -> Option<u32>,
    ) -> InterpretableBlock<Self::DecodedInstruction> {
        InterpretableBlock::default()
    }

    /// Executes a block whose registers are all architectural, before and after it.
    fn interpret<M: DataMemory>(
        steps: &[Self::DecodedInstruction],
        _state: &mut State,
        _memory: &M,
    ) -> Interpreted {
        unreachable!("{} blocks of {}", steps.len(), Self::NAME)
    }

    /// The instruction at `pc`: its kind, and its assembly text.
    fn describe(pc: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> (String, String);

    /// Sets up the registers of the first thread, as if a jump to `pc` had missed in the lookup table. The stack
    /// pointer is already set.
    fn begin(state: &mut State, pc: u64);

    /// Writes pending register values, including state in spill slots.
    fn settle(pending: Self::Pending, state: &mut State, memory: &dyn UserMemory);

    /// Executes one instruction. The caller advances the program counter.
    fn serve(service: Self::Service, state: &mut State, memory: &dyn UserMemory) -> ServiceResult;

    /// The instruction at source address `pc` and the address after it, if LoongArch raised `trap` for an access that
    /// the source permits. The engine then executes the instruction. `fetch` reads words of source code.
    fn permitted(
        _trap: &longma_loongarch::Trap,
        _pc: u64,
        _fetch: &dyn Fn(u64) -> Option<u32>,
    ) -> Option<(Self::Service, u64)> {
        None
    }

    /// The aligned word at `pc` of code that Linux maps outside the program's address space and programs may execute.
    fn kernel_code(_pc: u64) -> Option<u32> {
        None
    }

    /// Whether the thread is to raise a trap after each instruction.
    fn is_single_stepping(_state: &State) -> bool {
        false
    }

    /// The source address of an indirect jump that missed in the lookup table. `call` maps a host return address to the
    /// source register of the call.
    fn missed_target(state: &State, call: &dyn Fn(u64) -> Option<u8>) -> u64;

    /// The target of the indirect jump whose table lookup is `word`, if `word` is one.
    fn lookup_target(state: &State, word: &Instruction) -> Option<u64>;

    /// If the indirect jump at source address `pc` raises an exception instead of jumping to `target`, undoes what it
    /// has done so far and returns the exception. `fetch` reads words of source code.
    fn refuse_jump(
        _target: u64,
        _pc: u64,
        _state: &mut State,
        _fetch: &dyn Fn(u64) -> Option<u32>,
    ) -> Option<longma_loongarch::Trap> {
        None
    }

    /// Converts a trap of translated code to the trap that the source architecture raises.
    fn trap(trap: longma_loongarch::Trap) -> longma_loongarch::Trap {
        trap
    }

    /// Decodes the system call in the registers. It may use [`Self::CALL_BUFFER_BYTES`] at `buffer` for structures
    /// until the call completes.
    fn call(state: &mut State, buffer: u64, memory: &dyn UserMemory)
    -> SyscallAction<Self::ResultConversion>;

    /// Converts the result of a system call for the program.
    ///
    /// # Errors
    /// The error in the source's numbering.
    fn finish(after: Self::ResultConversion, result: u64, memory: &dyn UserMemory) -> CallResult;

    /// The code that a system call may have changed.
    fn changed(after: Self::ResultConversion, result: u64) -> Option<Range<u64>>;

    /// Writes a call's result to the registers.
    fn put_result(state: &mut State, result: CallResult);

    /// Sets the thread pointer.
    fn set_thread_pointer(state: &mut State, value: u64);

    /// Builds the source's signal frame below the LoongArch frame at the stack pointer. The thread is at the first
    /// instruction of its handler, which returns to `back`. Returns false if the stack is not writable.
    fn enter(state: &mut State, back: u64, memory: &dyn UserMemory) -> bool;

    /// Handles the return from a signal handler: copies the handler's changes from the source's frame to the LoongArch
    /// frame, and points the stack pointer to the latter. Returns the address of the source's frame, or `None` if it is
    /// not readable.
    fn leave(state: &mut State, memory: &dyn UserMemory) -> Option<u64>;

    /// Restores the state that the LoongArch frame has no fields for.
    fn after_leaving(state: &mut State, frame: u64, memory: &dyn UserMemory);

    /// The registers that a debugger can access.
    fn registers() -> Description<Self::RegisterKind>;

    /// Reads a register of a thread that is stopped between two instructions, with a source address as program counter.
    fn read_register(register: Register<Self::RegisterKind>, state: &State, memory: &dyn UserMemory)
    -> Value;

    /// Writes a register. Returns false if it cannot hold the value.
    fn write_register(
        register: Register<Self::RegisterKind>,
        value: &Value,
        state: &mut State,
        memory: &dyn UserMemory,
    ) -> bool;
}

/// Limits `fetch` to `bytes` bytes from `start` on.
pub fn within(start: u64, bytes: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> impl Fn(u64) -> Option<u32> {
    move |pc| (pc.wrapping_sub(start) < bytes).then(|| fetch(pc)).flatten()
}

/// The memory of a process, as the engine uses it.
pub trait Memory {
    /// Reads a word of source code.
    ///
    /// # Errors
    /// The address is not executable.
    fn fetch(&self, address: u64) -> Result<u32, Fault>;

    /// Reads consecutive words of source code.
    ///
    /// # Errors
    /// As for [`Self::fetch`], for any of the words.
    fn fetch_all(&self, address: u64, words: &mut [u32]) -> Result<(), Fault> {
        for (at, word) in (address..).step_by(4).zip(words) {
            *word = self.fetch(at)?;
        }
        Ok(())
    }

    /// Writes words to the code area, which the program cannot write to.
    ///
    /// # Errors
    /// The host cannot provide memory.
    fn place(&self, address: u64, words: &[u32]) -> Result<(), Fault>;

    /// Reads a word of translated code, if the implementation supports it.
    fn placed(&self, _address: u64) -> Option<u32> {
        None
    }

    /// Writes words to the lookup table or the hash table, which the program cannot write to. Addresses ascend.
    ///
    /// # Errors
    /// As for [`Self::place`].
    fn enter(&self, words: &[(u64, u32)]) -> Result<(), Fault> {
        words.iter().try_for_each(|(address, word)| self.place(*address, &[*word]))
    }

    /// Replaces a word that may have been executed, and drops cached decodings of it.
    ///
    /// # Errors
    /// As for [`Self::place`].
    fn replace(&self, address: u64, word: u32) -> Result<(), Fault> {
        self.place(address, &[word])?;
        self.forget(address..address + 4)
    }

    /// Drops cached decodings of words that were overwritten.
    ///
    /// # Errors
    /// As for [`Self::place`].
    fn forget(&self, code: Range<u64>) -> Result<(), Fault>;
}
