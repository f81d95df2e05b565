//! Generates random programs, and memory in which to run them.

use longma_core::Watch;
use longma_guest::{AddressSpace, GuestMemory, Protection, host::faults};
use longma_loongarch::{
    Class, Extension, Instruction, Op, Operand, RegisterKind, State, encode, semantics::is_user_instruction,
};
use proptest::prelude::*;

pub const CODE: u64 = 0x1_0000_0000;
pub const DATA: u64 = 0x1_0010_0000;
pub const DATA_BYTES: u64 = 0x1_0000;
/// Enough rounds for each block to become hot and run translated for most of the time.
pub const ROUNDS: u64 = 200;

/// r28 counts the rounds, r29 points into the data, r30 and r31 hold small offsets. Random instructions do not change
/// them.
pub const COUNTER: u8 = 28;
pub const POINTER: u8 = 29;
const INDEX: u8 = 30;

pub struct Unwatched;

impl Watch for Unwatched {
    fn watch(&self, _address: u64) {}
}

pub struct Bench {
    space: AddressSpace,
}

impl Bench {
    /// Maps memory for one program at a time.
    pub fn new() -> Self {
        faults::install();
        faults::prepare_thread();
        let space = AddressSpace::new(GuestMemory::reserve().expect("address space"));
        space.map_zeros(CODE, 0x1_0000, Protection::from_bits(7)).expect("code");
        space.map_zeros(DATA, DATA_BYTES, Protection::from_bits(3)).expect("data");
        Self { space }
    }

    /// Writes a program and its data to memory.
    pub fn load(&self, program: &[u32], data: &[u8]) -> GuestMemory {
        let memory = self.space.memory();
        let bytes: Vec<u8> = program.iter().flat_map(|word| word.to_le_bytes()).collect();
        memory.write(CODE, &bytes).expect("the code is mapped");
        memory.write(DATA, data).expect("the data is mapped");
        memory.clone()
    }

    /// The current data.
    pub fn data(&self) -> Vec<u8> {
        let mut data = vec![0; DATA_BYTES as usize];
        self.space.memory().read(DATA, &mut data).expect("the data is mapped");
        data
    }
}

/// Encodes a program.
pub fn encoded(program: &[Instruction]) -> Vec<u32> {
    program.iter().map(|i| encode(i).unwrap_or_else(|error| panic!("{error}"))).collect()
}

/// Whether random programs may contain the instruction: it computes, or accesses memory through the pointer.
fn is_usable(op: Op) -> bool {
    let row = op.row();
    let excluded = matches!(
        op,
        Op::Movgr2fcsr
            | Op::Movfcsr2gr
            | Op::X86settm
            | Op::X86clrtm
            | Op::Ibar
            | Op::Cpucfg
            | Op::AsrtleD
            | Op::AsrtgtD
    );
    is_user_instruction(op)
        && !excluded
        && !matches!(row.class, Class::System | Class::Branch | Class::Jump | Class::Prefetch)
        && !matches!(row.extension, Extension::Bound | Extension::Lbt)
        && !row.mnemonic.contains("gt.")
        && !row.mnemonic.contains("le.") | !row.mnemonic.contains("ld") & !row.mnemonic.contains("st")
}

pub fn usable(extensions: &[Extension]) -> Vec<Op> {
    Op::all().filter(|op| is_usable(*op) && extensions.contains(&op.row().extension)).collect()
}

/// Random operands for `op`, restricted so that memory accesses stay in the data.
pub fn instruction(op: Op) -> BoxedStrategy<Instruction> {
    let row = op.row();
    let accesses_memory = matches!(row.class, Class::Load | Class::Store | Class::Atomic);
    (any::<[u8; 4]>(), any::<[i32; 2]>())
        .prop_map(move |(registers, immediates)| {
            let mut i = Instruction::new(op);
            let mut used = 0;
            for operand in row.operands {
                match operand {
                    Operand::Register(kind, position) => {
                        let random = registers[usize::from(*position) / 5 % 4];
                        let number = match kind {
                            RegisterKind::General => random % 28,
                            RegisterKind::Condition => random % 8,
                            RegisterKind::Scratch | RegisterKind::FloatControl => 0,
                            _ => random % 32,
                        };
                        match position {
                            0 => i.d = number,
                            5 => i.j = number,
                            10 => i.k = number,
                            _ => i.a = number,
                        }
                    }
                    Operand::Immediate(immediate) => {
                        let mask = (1i64 << immediate.width()) - 1;
                        let field = i64::from(immediates[used]) & mask;
                        let value = if immediate.signed { field - (mask + 1) / 2 } else { field };
                        let scaled = (value << immediate.scale) as i32 + i32::from(immediate.plus);
                        *(if used == 0 { &mut i.imm } else { &mut i.imm2 }) = scaled;
                        used += 1;
                    }
                }
            }
            if accesses_memory {
                use_data_pointer(&mut i, row.operands.len(), row.class);
            }
            if matches!(op, Op::BstrpickD | Op::BstrpickW | Op::BstrinsD | Op::BstrinsW) && i.imm < i.imm2 {
                std::mem::swap(&mut i.imm, &mut i.imm2);
            }
            i
        })
        .boxed()
}

/// Makes an access use the pointer, aligned where required.
fn use_data_pointer(i: &mut Instruction, operands: usize, class: Class) {
    i.j = POINTER;
    let third = i.op.row().operands.get(2);
    if class == Class::Atomic {
        i.imm &= !15;
    } else if operands == 3 && matches!(third, Some(Operand::Register(RegisterKind::General, 10))) {
        i.k = INDEX;
    }
}

/// A random initial state: general registers include edge cases; vector registers hold numbers and bit patterns.
pub fn starting_state() -> impl Strategy<Value = State> {
    let word = prop_oneof![
        any::<u64>(),
        any::<i8>().prop_map(|v| v as i64 as u64),
        prop::sample::select(vec![
            0,
            1,
            u64::MAX,
            1 << 63,
            i64::MAX as u64,
            0x8000_0000,
            0x7fff_ffff,
            0xffff_ffff
        ]),
    ];
    let double = prop_oneof![
        (-1.0e6..1.0e6f64).prop_map(f64::to_bits),
        any::<u64>(),
        any::<[f32; 2]>().prop_map(|[a, b]| u64::from(a.to_bits()) << 32 | u64::from(b.to_bits())),
        prop::sample::select(vec![
            0,
            1 << 63,
            0x7ff0 << 48,
            0x7ff8 << 48,
            0x7ff0_0000_0000_0001,
            1,
            0x3ff0 << 48
        ]),
    ];
    (prop::collection::vec(word, 28), prop::collection::vec(double, 128)).prop_map(|(general, lanes)| {
        let mut state = State { pc: CODE, ..State::default() };
        state.x[1..28].copy_from_slice(&general[1..]);
        state.x[usize::from(COUNTER)] = ROUNDS;
        state.x[usize::from(POINTER)] = DATA + DATA_BYTES / 2;
        state.x[usize::from(INDEX)] = 40;
        for (register, lanes) in state.v.iter_mut().zip(lanes.chunks(4)) {
            register.0.copy_from_slice(lanes);
        }
        state
    })
}

/// A part of a random program.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Straight-line code.
    Straight(Vec<Instruction>),
    /// A conditional branch over the instructions.
    Over(Instruction, Vec<Instruction>),
    /// A floating-point comparison, and a branch on its result over the instructions.
    OverCompared(Instruction, Op, Vec<Instruction>),
    /// A loop around the instructions with a few iterations.
    Repeat(u8, Vec<Instruction>),
    /// A direct call of a function that consists of the instructions.
    Call(Vec<Instruction>),
    /// An indirect call of a function that consists of the instructions.
    CallByAddress(Vec<Instruction>),
    /// `syscall` with a code.
    Syscall(i32),
}

/// Counts the iterations of inner loops.
const INNER_COUNTER: u8 = 31;

/// A loop around `pieces` that ends in `syscall 0`, followed by the functions that they call.
pub fn assemble(pieces: &[Piece]) -> Vec<u32> {
    let mut program = Vec::new();
    let mut functions: Vec<(usize, &[Instruction])> = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Straight(body) => program.extend(body),
            Piece::Over(branch, body) => {
                program.push(Instruction { imm: 4 * (body.len() as i32 + 1), ..*branch });
                program.extend(body);
            }
            Piece::OverCompared(compare, branch, body) => {
                program.push(*compare);
                let imm = 4 * (body.len() as i32 + 1);
                program.push(Instruction { j: compare.d, imm, ..Instruction::new(*branch) });
                program.extend(body);
            }
            Piece::Repeat(times, body) => {
                program.push(add(INNER_COUNTER, 0, i32::from(*times)));
                program.extend(body);
                program.push(add(INNER_COUNTER, INNER_COUNTER, -1));
                let offset = -4 * (body.len() as i32 + 1);
                program.push(Instruction { j: INNER_COUNTER, imm: offset, ..Instruction::new(Op::Bnez) });
            }
            Piece::Call(body) => {
                functions.push((program.len(), body));
                program.push(Instruction::new(Op::Bl));
            }
            Piece::CallByAddress(body) => {
                functions.push((program.len(), body));
                program.push(Instruction { d: 1, ..Instruction::new(Op::Pcaddi) });
                program.push(Instruction { d: 1, j: 1, ..Instruction::new(Op::Jirl) });
            }
            Piece::Syscall(code) => program.push(Instruction { imm: *code, ..Instruction::new(Op::Syscall) }),
        }
    }
    program.push(add(COUNTER, COUNTER, -1));
    let offset = -4 * program.len() as i32;
    program.push(Instruction { j: COUNTER, imm: offset, ..Instruction::new(Op::Bnez) });
    program.push(Instruction::new(Op::Syscall));
    for (call, body) in functions {
        let distance = (program.len() - call) as i32;
        // The immediate of `pcaddi` is in words.
        program[call].imm = if program[call].op == Op::Bl { 4 * distance } else { distance };
        program.extend(body.iter().map(|i| avoid_link_register(*i)));
        program.push(Instruction { j: 1, ..Instruction::new(Op::Jirl) });
    }
    encoded(&program)
}

fn add(d: u8, j: u8, imm: i32) -> Instruction {
    Instruction { d, j, imm, ..Instruction::new(Op::AddiD) }
}

/// Keeps the link register, so that functions return to their callers.
fn avoid_link_register(mut i: Instruction) -> Instruction {
    if i.d == 1 && i.op.row().operands.first() == Some(&Operand::Register(RegisterKind::General, 0)) {
        i.d = 27;
    }
    i
}

/// Random parts with instructions from `ops`.
pub fn pieces(ops: Vec<Op>) -> impl Strategy<Value = Vec<Piece>> {
    let is_compare = |op: &Op| op.mnemonic().starts_with("fcmp.");
    let comparisons: Vec<Op> = ops.iter().copied().filter(is_compare).collect();
    let body = move |end| {
        prop::collection::vec(prop::sample::select(ops.clone()).prop_flat_map(instruction), 1..end)
    };
    let compared = if comparisons.is_empty() {
        body(6).prop_map(Piece::Straight).boxed()
    } else {
        let comparison = prop::sample::select(comparisons).prop_flat_map(instruction);
        let branch = prop::sample::select(vec![Op::Bceqz, Op::Bcnez]);
        let compared = (comparison, branch, body(6));
        compared.prop_map(|(compare, branch, body)| Piece::OverCompared(compare, branch, body)).boxed()
    };
    let branches = vec![Op::Beq, Op::Bne, Op::Blt, Op::Bge, Op::Bltu, Op::Bgeu, Op::Beqz, Op::Bnez];
    let branch = (prop::sample::select(branches), 0..28u8, 0..28u8).prop_map(|(op, d, j)| {
        let d = if matches!(op, Op::Beqz | Op::Bnez) { 0 } else { d };
        Instruction { d, j, ..Instruction::new(op) }
    });
    let piece = prop_oneof![
        3 => body(12).prop_map(Piece::Straight),
        3 => (branch, body(6)).prop_map(|(branch, body)| Piece::Over(branch, body)),
        2 => compared,
        1 => (1..5u8, body(6)).prop_map(|(times, body)| Piece::Repeat(times, body)),
        2 => body(6).prop_map(Piece::Call),
        1 => body(6).prop_map(Piece::CallByAddress),
        1 => (1..3i32).prop_map(Piece::Syscall),
    ];
    prop::collection::vec(piece, 1..7)
}

/// Pseudorandom bytes determined by `seed`.
pub fn random_bytes(seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..DATA_BYTES).map(|_| next()).collect()
}
