//! A buffer of host code under construction, with labels and fixups. `iced-x86` encodes the instructions, except for
//! relative jumps and calls, whose targets are not known yet. Source: Intel 64 and IA-32 Architectures Software
//! Developer's Manual, volume 2.

use iced_x86::{Code, Encoder, Instruction, MemoryOperand, OpKind, Register};

/// A position in the code, which may not be known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(u32);

/// A condition of a jump, set or conditional move, with its number in the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(dead_code)]
pub enum Condition {
    Overflow = 0,
    Below = 2,
    AboveOrEqual = 3,
    Equal = 4,
    NotEqual = 5,
    BelowOrEqual = 6,
    Above = 7,
    Parity = 10,
    NoParity = 11,
    Less = 12,
    GreaterOrEqual = 13,
    LessOrEqual = 14,
    Greater = 15,
}

impl Condition {
    /// The negated condition.
    pub fn inverted(self) -> Self {
        use Condition::*;
        match self {
            Overflow => unreachable!("no inverse of overflow is used"),
            Below => AboveOrEqual,
            AboveOrEqual => Below,
            Equal => NotEqual,
            NotEqual => Equal,
            BelowOrEqual => Above,
            Above => BelowOrEqual,
            Parity => NoParity,
            NoParity => Parity,
            Less => GreaterOrEqual,
            GreaterOrEqual => Less,
            LessOrEqual => Greater,
            Greater => LessOrEqual,
        }
    }
}

/// An operand of a host instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// A register.
    Reg(Register),
    /// Memory.
    Mem(MemoryOperand),
    /// An immediate; the opcode determines its width.
    Imm(i64),
}

impl From<Register> for Arg {
    fn from(register: Register) -> Self {
        Self::Reg(register)
    }
}

impl From<MemoryOperand> for Arg {
    fn from(memory: MemoryOperand) -> Self {
        Self::Mem(memory)
    }
}

impl From<i32> for Arg {
    fn from(value: i32) -> Self {
        Self::Imm(i64::from(value))
    }
}

impl From<i64> for Arg {
    fn from(value: i64) -> Self {
        Self::Imm(value)
    }
}

/// Finished code, which can be placed at any multiple of 64.
pub struct Assembled {
    bytes: Vec<u8>,
    /// The end offsets of instructions whose last 32 bits are a displacement, and their absolute targets.
    external_targets: Vec<(usize, u64)>,
}

impl Assembled {
    /// The code, in which jumps to other code are not filled in yet.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The code for placement at host address `start`.
    pub fn at(&self, start: u64) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for (end, target) in &self.external_targets {
            let distance = target.wrapping_sub(start + *end as u64) as i64;
            let distance = i32::try_from(distance).expect("the code cache is smaller than 2 GiB");
            bytes[end - 4..*end].copy_from_slice(&distance.to_le_bytes());
        }
        bytes
    }
}

/// Host code under construction.
pub struct Assembler {
    encoder: Encoder,
    length: usize,
    labels: Vec<Option<usize>>,
    /// The end offsets of instructions whose last 32 bits are a displacement, and their target labels.
    fixups: Vec<(usize, Label)>,
    external_targets: Vec<(usize, u64)>,
}

impl Assembler {
    /// Creates an empty buffer.
    pub fn new() -> Self {
        Self {
            encoder: Encoder::new(64),
            length: 0,
            labels: Vec::new(),
            fixups: Vec::new(),
            external_targets: Vec::new(),
        }
    }

    /// The current length in bytes.
    pub fn position(&self) -> usize {
        self.length
    }

    /// Creates a label without a position.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() as u32 - 1)
    }

    /// Sets the position of `label` to the current end.
    pub fn place(&mut self, label: Label) {
        self.labels[label.0 as usize] = Some(self.length);
    }

    /// The offset of `label`, if it is placed.
    pub fn position_of(&self, label: Label) -> Option<usize> {
        self.labels[label.0 as usize]
    }

    /// Appends one instruction.
    pub fn op(&mut self, code: Code, arguments: &[Arg]) {
        self.append(code, arguments, false);
    }

    /// Appends `op` with a memory and a register operand and a lock prefix.
    pub fn locked(&mut self, code: Code, memory: MemoryOperand, register: Register) {
        // An exchange is always locked, but accepts the prefix.
        self.append(code, &[memory.into(), register.into()], true);
    }

    fn append(&mut self, code: Code, arguments: &[Arg], lock: bool) {
        let mut instruction = match arguments.last() {
            Some(Arg::Imm(value)) => with_immediate(code, &arguments[..arguments.len() - 1], *value),
            _ => with_registers_and_memory(code, arguments),
        };
        instruction.set_has_lock_prefix(lock);
        match self.encoder.encode(&instruction, self.length as u64) {
            Ok(bytes) => self.length += bytes,
            Err(error) => unreachable!("{code:?} {arguments:?}: {error}"),
        }
    }

    /// Appends `op` without operands.
    pub fn op0(&mut self, code: Code) {
        self.op(code, &[]);
    }

    /// Appends `op` with one operand.
    pub fn op1(&mut self, code: Code, a: impl Into<Arg>) {
        self.op(code, &[a.into()]);
    }

    /// Appends `op` with two operands.
    pub fn op2(&mut self, code: Code, a: impl Into<Arg>, b: impl Into<Arg>) {
        self.op(code, &[a.into(), b.into()]);
    }

    /// Appends `op` with three operands.
    pub fn op3(&mut self, code: Code, a: impl Into<Arg>, b: impl Into<Arg>, c: impl Into<Arg>) {
        self.op(code, &[a.into(), b.into(), c.into()]);
    }

    /// Appends `op` with four operands.
    pub fn op4(
        &mut self,
        code: Code,
        a: impl Into<Arg>,
        b: impl Into<Arg>,
        c: impl Into<Arg>,
        d: impl Into<Arg>,
    ) {
        self.op(code, &[a.into(), b.into(), c.into(), d.into()]);
    }

    fn byte(&mut self, value: u8) {
        self.encoder.write_u8(value);
        self.length += 1;
    }

    fn displacement(&mut self) {
        (0..4).for_each(|_| self.byte(0));
    }

    fn displacement_to(&mut self, target: u64) {
        self.displacement();
        self.external_targets.push((self.length, target));
    }

    fn displacement_to_label(&mut self, label: Label) {
        self.displacement();
        self.fixups.push((self.length, label));
    }

    /// Appends a jump to `label`.
    pub fn jump(&mut self, label: Label) {
        self.byte(0xe9);
        self.displacement_to_label(label);
    }

    /// Appends a conditional jump to `label`.
    pub fn jump_if(&mut self, condition: Condition, label: Label) {
        self.byte(0x0f);
        self.byte(0x80 | condition as u8);
        self.displacement_to_label(label);
    }

    /// Appends a call to `label`.
    pub fn call(&mut self, label: Label) {
        self.byte(0xe8);
        self.displacement_to_label(label);
    }

    /// Appends a jump to a host address in the code cache.
    pub fn jump_to(&mut self, target: u64) {
        self.byte(0xe9);
        self.displacement_to(target);
    }

    /// Appends a call to a host address in the code cache.
    pub fn call_to(&mut self, target: u64) {
        self.byte(0xe8);
        self.displacement_to(target);
    }

    /// Appends a jump or call inside one aligned quadword, so that another thread can patch its displacement with one
    /// store while it runs (see `cross_modification.rs`). Its initial target is `label`. Returns the position of the
    /// displacement.
    pub fn patchable(&mut self, call: bool, label: Label) -> usize {
        const BYTES: usize = 5;
        let at = self.length % 8;
        let nothing = if at + BYTES > 8 { 8 - at } else { 0 };
        NOPS[nothing].iter().for_each(|byte| self.byte(*byte));
        self.byte(if call { 0xe8 } else { 0xe9 });
        self.displacement_to_label(label);
        self.length - 4
    }

    /// Sets a byte register to 1 if `condition` holds, else to 0.
    pub fn set_if(&mut self, condition: Condition, operand: impl Into<Arg>) {
        use Condition::*;
        let code = match condition {
            Overflow => Code::Seto_rm8,
            Below => Code::Setb_rm8,
            AboveOrEqual => Code::Setae_rm8,
            Equal => Code::Sete_rm8,
            NotEqual => Code::Setne_rm8,
            BelowOrEqual => Code::Setbe_rm8,
            Above => Code::Seta_rm8,
            Parity => Code::Setp_rm8,
            NoParity => Code::Setnp_rm8,
            Less => Code::Setl_rm8,
            GreaterOrEqual => Code::Setge_rm8,
            LessOrEqual => Code::Setle_rm8,
            Greater => Code::Setg_rm8,
        };
        self.op1(code, operand);
    }

    /// Resolves all labels and returns the code.
    pub fn finish(mut self) -> Assembled {
        let mut bytes = self.encoder.take_buffer();
        for (end, label) in self.fixups {
            let target = self.labels[label.0 as usize].expect("every label is placed");
            let distance = target as i64 - end as i64;
            bytes[end - 4..end].copy_from_slice(&(distance as i32).to_le_bytes());
        }
        Assembled { bytes, external_targets: self.external_targets }
    }
}

/// No-op instructions of 0 to 4 bytes (SDM volume 2, NOP, table 4-12).
const NOPS: [&[u8]; 5] = [&[], &[0x90], &[0x66, 0x90], &[0x0f, 0x1f, 0x00], &[0x0f, 0x1f, 0x40, 0x00]];

fn with_registers_and_memory(code: Code, arguments: &[Arg]) -> Instruction {
    let mut instruction = Instruction::default();
    instruction.set_code(code);
    for (index, argument) in arguments.iter().enumerate() {
        let index = index as u32;
        match *argument {
            Arg::Reg(register) => {
                instruction.set_op_kind(index, OpKind::Register);
                instruction.set_op_register(index, register);
            }
            Arg::Mem(memory) => {
                instruction.set_op_kind(index, OpKind::Memory);
                instruction.set_memory_base(memory.base);
                instruction.set_memory_index(memory.index);
                instruction.set_memory_index_scale(memory.scale);
                instruction.set_memory_displ_size(memory.displ_size);
                instruction.set_memory_displacement64(memory.displacement as u64);
                instruction.set_segment_prefix(memory.segment_prefix);
            }
            Arg::Imm(_) => unreachable!("{code:?}: an immediate is the last operand"),
        }
    }
    instruction
}

/// An instruction whose last operand is an immediate with the width that `code` requires.
fn with_immediate(code: Code, operands: &[Arg], value: i64) -> Instruction {
    use Arg::{Mem, Reg};
    let narrow = value as i32;
    let result = match *operands {
        [] => Instruction::with1(code, narrow),
        [Reg(a)] if code == Code::Mov_r64_imm64 => Instruction::with2(code, a, value),
        [Reg(a)] => Instruction::with2(code, a, narrow),
        [Mem(a)] => Instruction::with2(code, a, narrow),
        [Reg(a), Reg(b)] => Instruction::with3(code, a, b, narrow),
        [Reg(a), Mem(b)] => Instruction::with3(code, a, b, narrow),
        [Reg(a), Reg(b), Reg(c)] => Instruction::with4(code, a, b, c, narrow),
        [Reg(a), Reg(b), Mem(c)] => Instruction::with4(code, a, b, c, narrow),
        _ => unreachable!("{code:?} {operands:?}: no such form is used"),
    };
    result.unwrap_or_else(|error| unreachable!("{code:?} {operands:?} {value}: {error}"))
}
