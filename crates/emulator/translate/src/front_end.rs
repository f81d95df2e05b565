//! What the engine and whoever runs translated code ask of a source architecture: one implementation a folder.
//! Not the engine, nor the run loop.

use std::fmt::Debug;
use std::ops::Range;

use longma_loongarch::{Fault, Instruction, State};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::assembler::Assembler;
use crate::debug::{Description, Register, Value};
use crate::parts::Options;

/// `break` codes that only translated code has.
pub const EXIT: i32 = 0x7001;
/// The engine executes one source instruction.
pub const SERVICE: i32 = 0x7002;
/// The source address holds no instruction.
pub const ILLEGAL: i32 = 0x7003;

/// r1 holds nothing between two source instructions; returns jump through it, so that they are known as returns.
pub const SCRATCH: u8 = 1;
/// The stack pointer is where LoongArch has its own: frames and new threads speak of it.
pub const STACK_POINTER: u8 = 3;

/// Where the code of one source instruction begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position<P> {
    /// The index of the first word.
    pub offset: u32,
    /// Where the program goes on if it is interrupted there: the instruction's address, or that of the branch whose slot it stands in.
    pub pc: u64,
    /// Before the word, every register is as it is before the instruction at `pc`.
    pub is_boundary: bool,
    /// The word with which an instruction of its own has been executed.
    pub counted: Option<u32>,
    /// A block begins here: what stands before says nothing of how it is reached.
    pub begins: bool,
    /// What registers are yet to be.
    pub pending: Option<P>,
}

/// Why translated code comes out to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit<S> {
    /// To go on at a source address that has no code yet.
    To(u64),
    /// The code from here on is forgotten: to go on at a source address, once what registers are yet to be has been written.
    Leave(u64),
    /// To have one instruction executed.
    Service(S),
    /// There is no instruction.
    Illegal,
}

/// A translated unit.
#[derive(Debug)]
pub struct Unit<S, P> {
    /// The LoongArch code, for any address.
    pub words: Vec<u32>,
    /// The source addresses that can be jumped to, and the index of the word.
    pub entries: Vec<(u64, u32)>,
    /// Source addresses that only the unit's own jumps lead to, with what they know of registers, and the index of the word.
    pub heads: Vec<(u64, u32)>,
    /// By `offset`.
    pub positions: Vec<Position<P>>,
    /// Words that come out to the engine.
    pub exits: Vec<(u32, Exit<S>)>,
    /// Calls of addresses in registers: the word, and the source register.
    pub calls: Vec<(u32, u8)>,
    /// The source code that was read: first address and bytes.
    pub sources: Vec<(u64, u64)>,
    /// Addresses on all pages whose code it depends on, be it only for what is read there.
    pub looked_at: Vec<u64>,
    /// Source addresses that its calls lead to, as far as they are known, and those behind its calls. None where every block can be jumped
    /// to anyway, so that it does not matter where a function begins.
    pub called: Vec<u64>,
    /// See `called`.
    pub behind_calls: Vec<u64>,
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
            looked_at: Vec::new(),
            called: Vec::new(),
            behind_calls: Vec::new(),
        }
    }
}

impl<S: Copy, P> Unit<S, P> {
    /// A block's code is from word `start` to before `end`. Instructions at its end that became nothing count with the last word: what
    /// stands behind can be reached without them.
    pub fn end_block(&mut self, start: usize, end: usize) {
        let end = end as u32;
        for position in self.positions.iter_mut().rev().take_while(|position| position.offset == end) {
            position.counted = position.counted.and(end.checked_sub(1)).filter(|last| *last >= start as u32);
        }
    }

    /// Adds a word that comes out to the engine.
    pub fn exit(&mut self, assembler: &mut Assembler, pc: u64, why: Exit<S>) {
        let offset = assembler.words.len() as u32;
        let is_boundary = matches!(why, Exit::To(_));
        self.positions.push(Position {
            offset,
            pc,
            is_boundary,
            counted: None,
            begins: false,
            pending: None,
        });
        self.exits.push((offset, why));
        let imm = match why {
            Exit::To(_) | Exit::Leave(_) => EXIT,
            Exit::Service(_) => SERVICE,
            Exit::Illegal => ILLEGAL,
        };
        assembler.push(Instruction { imm, ..Instruction::new(longma_loongarch::Op::Break) });
    }
}

/// The memory of a program, for the structures of its calls.
pub trait Structures {
    /// Fills `bytes` from `address` on; false if that cannot be read.
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool;

    /// Writes `bytes`; false if that cannot be done.
    fn write(&self, address: u64, bytes: &[u8]) -> bool;

    /// How many of so many bytes can be written.
    fn writable(&self, address: u64, bytes: u64) -> u64;

    /// What time it is for the program, in nanoseconds since any moment.
    fn clock_ns(&self) -> u64;
}

/// The immediates of `andi $zero, $zero, n` that tell the model something: where its region of interest begins and ends, that a checkpoint
/// is worth it, that an event has happened, whose number is in [`MARK_NUMBER`]. They are `longma-core`'s.
pub const MARKS: std::ops::RangeInclusive<i32> = 0x4c1..=EVENT_MARK;
/// See [`MARKS`].
pub const EVENT_MARK: i32 = 0x4c4;
/// See [`MARKS`].
pub const MARK_NUMBER: u8 = 4;

/// What to do for a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<A> {
    /// The process's call of this number, and what remains to be done with its result.
    Call(u64, [u64; 6], A),
    /// It fails with this error, by the others' number, or gives this.
    Done(Result<u64, u64>),
    /// Back from a handler.
    SignalReturn,
    /// The thread pointer.
    ThreadPointer(u64),
    /// So much code may have changed.
    Flush(u64, u64),
}

/// What came of an instruction that the engine has executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// It is done.
    Done,
    /// It ends in this trap.
    Trap(longma_loongarch::Trap),
    /// It ends in this trap, and is over: a handler finds the program counter at this address, which is behind it.
    TrapBehind(longma_loongarch::Trap, u64),
    /// Code at this address has changed.
    Changed(u64),
    /// Some of what it repeats is done: it begins again, once signals have been delivered.
    Again,
}

/// A system call's result: the value and a second one, or the error by the others' number.
pub type CallResult = Result<(u64, Option<u64>), u64>;

/// A source architecture.
pub trait FrontEnd: Sized + Send + Sync + 'static {
    /// An instruction that the engine executes.
    type Service: Copy + Debug + Send + Sync + PartialEq + Serialize + DeserializeOwned;
    /// What registers are yet to be.
    type Pending: Copy + Debug + Send + Sync + Serialize + DeserializeOwned;
    /// What remains to be done with a call's result.
    type After: Copy + Debug;
    /// What a register is that a debugger is told of.
    type Seen: Copy + 'static;

    /// What its programs are called.
    const NAME: &'static str;
    /// An address's entry in the table of targets is at the table's start and the address shifted left by this.
    const ENTRY_SHIFT: u32;
    /// Instructions stand at multiples of this.
    const ALIGNMENT: u64;
    /// The register that holds the table's start.
    const TABLE: u8;
    /// The register that holds where the thread's slots are: memory for what has no register; 0 if there are none.
    const SLOTS: u8 = 0;
    /// The size of a thread's slots.
    const SLOT_BYTES: u64 = 0;
    /// Bits of addresses that loads, stores and jumps ignore, so that programs may keep something else there.
    const IGNORED_ADDRESS_BITS: u64 = 0;
    /// A thread's stores to code take effect on its next instruction, without a word.
    const IS_COHERENT: bool = false;
    /// The general register with the thread pointer, or 0 if that is elsewhere.
    const THREAD_POINTER: u8;
    /// The length of the instruction that makes a system call.
    const SYSCALL_BYTES: u64;
    /// The size of the room that [`Self::call`] needs.
    const ROOM_BYTES: u64;

    /// Makes now what a forked child must not find half made.
    fn prepare_process();

    /// The first word that the instruction at `pc` needs and that is not there.
    fn missing(_pc: u64, _fetch: &dyn Fn(u64) -> Option<u32>) -> Option<u64> {
        None
    }

    /// Translates what `start` reaches, and lets others come to `door` as well, if that is an instruction of it: a loop may be under way there
    /// that is to be seen as one. `fetch` reads aligned words of the source's code; `known` says what is not to be translated with it. What
    /// the code does is the same with all options.
    fn translate(
        start: u64,
        door: Option<u64>,
        fetch: &dyn Fn(u64) -> Option<u32>,
        known: &dyn Fn(u64) -> bool,
        options: &Options,
    ) -> Unit<Self::Service, Self::Pending>;

    /// Translates the one instruction at `start`, with its delay slot if it has one: between any two such units every register is as the
    /// source has it, those that nobody reads too.
    fn translate_one(start: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> Unit<Self::Service, Self::Pending>;

    /// What kind of instruction stands at `pc`, and the instruction, as an assembler writes it.
    fn describe(pc: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> (String, String);

    /// Gives the first thread, whose stack pointer is set, registers to begin with at `pc`: it is to seem to have come from a jump to an
    /// address without code.
    fn begin(state: &mut State, pc: u64);

    /// Writes what registers are yet to be, those in memory too.
    fn settle(pending: Self::Pending, state: &mut State, memory: &dyn Structures);

    /// Executes an instruction; the program counter is the caller's.
    fn serve(service: Self::Service, state: &mut State, memory: &dyn Structures) -> Served;

    /// The source address that a jump has led to whose entry is empty; `call` says which register the call behind an address used.
    fn missed(state: &State, call: &dyn Fn(u64) -> Option<u8>) -> u64;

    /// The source address that a jump was to lead to, if `word` at the program counter looks an entry up.
    fn looked_up(state: &State, word: &Instruction) -> Option<u64>;

    /// What a trap of translated code is for the program.
    fn trap(trap: longma_loongarch::Trap) -> longma_loongarch::Trap {
        trap
    }

    /// What the system call that the registers ask for is. At `room` it may put structures until the call is over.
    fn call(state: &mut State, room: u64, memory: &dyn Structures) -> Step<Self::After>;

    /// What a call gives to the program, once it has been made.
    ///
    /// # Errors
    /// The error, by the others' number.
    fn finish(after: Self::After, result: u64, memory: &dyn Structures) -> CallResult;

    /// The code that may have changed with a call.
    fn changed(after: Self::After, result: u64) -> Option<Range<u64>>;

    /// Writes a call's result.
    fn put_result(state: &mut State, result: CallResult);

    /// Sets the thread pointer.
    fn set_thread_pointer(state: &mut State, value: u64);

    /// The thread is at the first instruction of a handler, with the process's frame at its stack pointer: lays the source's frame below it.
    /// `back` is the code that handlers return to. False if the stack cannot take it.
    fn enter(state: &mut State, back: u64, memory: &dyn Structures) -> bool;

    /// The handler has returned: what it has made of the frame goes into the process's own, and the stack pointer to that. Gives where the
    /// source's frame was; `None` if it cannot be read.
    fn leave(state: &mut State, memory: &dyn Structures) -> Option<u64>;

    /// What the process's own frame does not bring back of the handler's changes.
    fn after_leaving(state: &mut State, frame: u64, memory: &dyn Structures);

    /// The registers that a debugger is told of.
    fn registers() -> Description<Self::Seen>;

    /// What is in one of a thread that is between two instructions, its program counter at a source address.
    fn read_register(register: Register<Self::Seen>, state: &State, memory: &dyn Structures) -> Value;

    /// Sets it; false if it cannot have the value.
    fn write_register(
        register: Register<Self::Seen>,
        value: &Value,
        state: &mut State,
        memory: &dyn Structures,
    ) -> bool;
}

/// The code of `bytes` bytes from `start` on, and nothing else.
pub fn within(start: u64, bytes: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> impl Fn(u64) -> Option<u32> {
    move |pc| (pc.wrapping_sub(start) < bytes).then(|| fetch(pc)).flatten()
}

/// The memory of a process, as far as translation touches it.
pub trait Memory {
    /// Reads a word of the source's code.
    ///
    /// # Errors
    /// There is nothing that can be executed.
    fn fetch(&self, address: u64) -> Result<u32, Fault>;

    /// Reads words of the source's code that follow each other.
    ///
    /// # Errors
    /// As for [`Self::fetch`], of any of them.
    fn fetch_all(&self, address: u64, words: &mut [u32]) -> Result<(), Fault> {
        for (at, word) in (address..).step_by(4).zip(words) {
            *word = self.fetch(at)?;
        }
        Ok(())
    }

    /// Writes words to the area of code from an address on, where the program itself cannot.
    ///
    /// # Errors
    /// The host gives no memory.
    fn place(&self, address: u64, words: &[u32]) -> Result<(), Fault>;

    /// The word of translated code at an address, if whoever has the memory can tell.
    fn placed(&self, _address: u64) -> Option<u32> {
        None
    }

    /// Writes words that translated code loads, to the table of targets or the hash table, where the program itself cannot. Addresses ascend.
    ///
    /// # Errors
    /// As for [`Self::place`].
    fn enter(&self, words: &[(u64, u32)]) -> Result<(), Fault> {
        words.iter().try_for_each(|(address, word)| self.place(*address, &[*word]))
    }

    /// As [`Self::place`], of one word of code that may have been executed: what is known of it is forgotten.
    ///
    /// # Errors
    /// As for [`Self::place`].
    fn replace(&self, address: u64, word: u32) -> Result<(), Fault> {
        self.place(address, &[word])?;
        self.forget(address..address + 4)
    }

    /// Forgets what is known of words of code that may have been executed and have been placed anew.
    ///
    /// # Errors
    /// As for [`Self::place`].
    fn forget(&self, code: Range<u64>) -> Result<(), Fault>;
}
