//! The host code of single instructions in the middle of a block, with no known register values.

use std::collections::BTreeMap;

use iced_x86::{Code, Instruction as Host, Mnemonic, OpKind};
use longma_core::{HostCode, Instrumentation};
use longma_loongarch::{Class, Extension, Instruction, Op, Operand, RegisterKind, encode};

use crate::text::{Text, target};

const PC: u64 = 0x1000;

const HEAD: &str = "\
# The host code of one instruction at 0x1000, with the number of its host instructions; update as described in tests/emitted/main.rs.
# rbx sp, rsi a0, rdi a1, r8 a2, r9 a3, r10 a4, r11 a5, r12 t0, r13 t1, r14 s0, r15 s1; xmm3 and up: the vector registers by number.
# At rbp: the guest's other registers. `run_loop`, `interpreted` and `unlinked` are out-of-line code, see sequences/.
# `interpreter call`: the interpreter executes it. `run loop`: the region exits to it.
";

/// The text for each instruction set extension.
pub fn texts() -> BTreeMap<String, String> {
    let mut parts: BTreeMap<String, Part> = BTreeMap::new();
    for op in Op::all() {
        let part = parts.entry(format!("{:?}", op.row().extension).to_lowercase()).or_default();
        let instruction = typical_operands(op);
        part.add(op.mnemonic(), shown(&instruction));
        let variant = in_memory(&instruction);
        if variant != instruction
            && let Shown::Code(code) = shown(&variant)
        {
            part.text += &code;
        }
    }
    parts.into_iter().map(|(name, part)| (name, part.finish())).collect()
}

/// Instructions with special operands.
pub fn forms() -> String {
    let mut part = Part::default();
    special().iter().for_each(|instruction| part.add(&instruction.to_string(), shown(instruction)));
    part.finish()
}

/// The text of one file.
#[derive(Default)]
struct Part {
    text: String,
    /// The numbers of instructions with host code, executed by the interpreter, and passed to the run loop.
    counts: [u32; 3],
}

impl Part {
    fn add(&mut self, name: &str, shown: Shown) {
        let (index, text) = match shown {
            Shown::Code(code) => (0, code),
            Shown::InterpreterCall => (1, format!("{name}: interpreter call\n")),
            Shown::RunLoop => (2, format!("{name}: run loop\n")),
        };
        self.counts[index] += 1;
        self.text += &text;
    }

    fn finish(self) -> String {
        let [code, interpreter_calls, run_loop] = self.counts;
        format!(
            "{HEAD}# {code} have host code, {interpreter_calls} are interpreter calls, {run_loop} are left to the run loop.\n\n{}",
            self.text
        )
    }
}

/// How an instruction is translated.
enum Shown {
    Code(String),
    InterpreterCall,
    RunLoop,
}

fn shown(instruction: &Instruction) -> Shown {
    let word = |i: &Instruction| encode(i).unwrap_or_else(|error| panic!("{i}: {error}"));
    // The next block uses none of the instruction's registers, and so does the target of a branch.
    let end = word(&Instruction { j: 1, ..Instruction::new(Op::Jirl) });
    let words = [word(instruction), end, end, end];
    let host = HostCode::of(PC, &words, Instrumentation::default()).expect("an instruction");
    let mut text = Text::of(&host);
    let ends = matches!(instruction.op.row().class, Class::Branch | Class::Jump);
    let next_piece = text.pieces.iter().find(|(_, pc)| *pc == PC + 4 && !ends).copied();
    let next_piece = next_piece.or(text.pieces.iter().find(|(_, pc)| *pc == PC + 4 || *pc == 0).copied());
    let end = next_piece.expect("the blocks end").0;
    let start = text.pieces.iter().rfind(|(_, pc)| *pc == PC).expect("it has been emitted").0;
    let code = text.range(start, end);
    name_targets(&mut text, &code);
    if code.iter().any(|i| target(i) == Some(text.named("interpret_one"))) {
        return Shown::InterpreterCall;
    }
    if let [only] = code[..]
        && target(&only).is_some_and(|to| text.names.get(&to).is_some_and(|name| name == "run_loop"))
    {
        return Shown::RunLoop;
    }
    text.add_labels(&code);
    Shown::Code(format!("{instruction}: {}\n{}", code.len(), text.lines(&code)))
}

/// Names the out-of-line targets of `code` by their function.
fn name_targets(text: &mut Text, code: &[Host]) {
    for to in code.iter().filter_map(target) {
        if text.names.contains_key(&to) {
            continue;
        }
        if let Some((_, pc)) = text.pieces.iter().find(|(at, _)| *at == to && to < text.end_of_blocks()) {
            let name = format!("to_{pc:x}");
            text.names.insert(to, name);
        } else if to >= text.end_of_blocks() {
            let name = kind(text, &text.straight(to));
            text.names.insert(to, name);
        }
    }
}

/// The function of out-of-line code.
fn kind(text: &Text, code: &[Host]) -> String {
    let goes = |name: &str| code.iter().any(|i| target(i) == Some(text.named(name)));
    let reason = code.iter().find(|i| i.code() == Code::Mov_r32_imm32).map(|i| i.immediate32());
    if goes("interpret_one") {
        return "interpreted".into();
    }
    if let Some(outside) = ["return_miss", "leave_indirect"].into_iter().find(|name| goes(name)) {
        return outside.into();
    }
    match reason {
        Some(0) => "unlinked".into(),
        Some(2) => "attention".into(),
        Some(3) => "run_loop".into(),
        Some(5) => "syscall".into(),
        _ if code.iter().all(|i| i.mnemonic() == Mnemonic::Jmp && i.op0_kind() == OpKind::NearBranch64) => {
            "leave_to_other_region".into()
        }
        _ => "out_of_line".into(),
    }
}

/// Typical operands: different registers, all of them in host registers except the base register.
fn typical_operands(op: Op) -> Instruction {
    let mut instruction = Instruction { d: 4, j: 5, k: 6, a: 7, ..Instruction::new(op) };
    let mut immediates = op.row().operands.iter().filter_map(|operand| match operand {
        Operand::Immediate(immediate) => Some(immediate),
        Operand::Register(..) => None,
    });
    let mut chosen = |candidates: [i32; 4]| {
        let immediate = immediates.next()?;
        candidates.into_iter().chain([1 << 14, 1]).find(|value| immediate.insert(*value).is_some())
    };
    instruction.imm = chosen([24, 8, 3, 1]).unwrap_or(0);
    instruction.imm2 = chosen([8, 4, 2, 1]).unwrap_or(0);
    for operand in op.row().operands {
        if let Operand::Register(kind @ (RegisterKind::Condition | RegisterKind::Scratch), position) = operand
        {
            let number = if *kind == RegisterKind::Condition { 1 } else { 2 };
            set_register(&mut instruction, *position, number);
        }
    }
    instruction
}

/// The same instruction with general registers that are in memory, for instructions that compute on them.
fn in_memory(instruction: &Instruction) -> Instruction {
    let row = instruction.op.row();
    let mut moved = *instruction;
    if matches!(row.extension, Extension::Base | Extension::Mul | Extension::Bit | Extension::Atomic) {
        for operand in row.operands {
            if let Operand::Register(RegisterKind::General, position) = operand {
                // s2 and later registers, which are in memory unless they are used often.
                set_register(&mut moved, *position, instruction.register_at(*position) + 21);
            }
        }
    }
    moved
}

fn set_register(instruction: &mut Instruction, position: u8, number: u8) {
    match position {
        0 => instruction.d = number,
        5 => instruction.j = number,
        10 => instruction.k = number,
        _ => instruction.a = number,
    }
}

fn three(op: Op, d: u8, j: u8, k: u8) -> Instruction {
    Instruction { d, j, k, ..Instruction::new(op) }
}

fn two(op: Op, d: u8, j: u8, imm: i32) -> Instruction {
    Instruction { d, j, imm, ..Instruction::new(op) }
}

fn field(op: Op, d: u8, j: u8, high: i32, low: i32) -> Instruction {
    Instruction { d, j, imm: high, imm2: low, ..Instruction::new(op) }
}

/// Operands for which the translator emits special code.
fn special() -> Vec<Instruction> {
    use Op::*;
    let mut all = Vec::new();
    // Arithmetic and logic: the destination is also a source, a source is zero, or the result is discarded.
    for op in [AddD, AddW, SubD, SubW, And, Or, Xor, Nor, Orn, Andn, MulD, MulW, Maskeqz, Masknez, Slt, Sltu]
    {
        for (d, j, k) in [(4, 4, 5), (4, 5, 4), (4, 4, 4), (4, 5, 0), (4, 0, 5), (0, 4, 5)] {
            all.push(three(op, d, j, k));
        }
    }
    for op in [AddiD, AddiW, Andi, Ori, Xori, Slti, Sltui] {
        let cases = [(4, 4, 1), (4, 5, 0), (4, 5, 1000), (4, 0, 5), (0, 4, 5)];
        all.extend(cases.map(|(d, j, imm)| two(op, d, j, imm)));
    }
    for op in [AlslD, AlslW, AlslWu] {
        let cases = [(4, 5, 6, 1), (4, 5, 6, 4), (4, 0, 6, 2), (4, 5, 0, 2)];
        all.extend(cases.map(|(d, j, k, imm)| Instruction { imm, ..three(op, d, j, k) }));
    }
    for op in [DivD, DivW, DivDu, DivWu, ModD, ModW, ModDu, ModWu] {
        all.extend([three(op, 4, 4, 5), three(op, 4, 5, 0)]);
    }
    // Bit fields: whole parts of a register, the ends, one bit, or none.
    for (high, low) in [(7, 0), (15, 0), (31, 0), (20, 0), (31, 8), (20, 8), (63, 0), (63, 32), (40, 8)] {
        all.push(field(BstrpickD, 4, 5, high, low));
        all.push(field(BstrinsD, 4, 5, high, low));
    }
    for (high, low) in [(7, 0), (31, 0), (31, 8), (20, 8)] {
        all.push(field(BstrpickW, 4, 5, high, low));
        all.push(field(BstrinsW, 4, 5, high, low));
    }
    all.extend([field(BstrinsD, 4, 0, 20, 8), field(BstrpickD, 4, 5, 8, 20), field(BstrpickD, 0, 5, 20, 8)]);
    for op in [SlliD, SrliD, SraiD, SlliW, SrliW, SraiW, RotriD, RotriW] {
        all.extend([two(op, 4, 4, 3), two(op, 4, 5, 0), two(op, 4, 0, 3)]);
    }
    all.extend([SllD, SrlW, RotrD].map(|op| three(op, 4, 4, 4)));
    // Memory: no displacement, the base is overwritten, the result is discarded, or zero is stored.
    for op in [LdD, LdBu, FldD, Vld] {
        all.extend([two(op, 4, 5, 0), two(op, 4, 4, 8)]);
    }
    all.extend([two(LdW, 0, 5, 8), two(StD, 0, 5, 8), two(StD, 5, 5, 8), three(LdxD, 4, 5, 5)]);
    all.extend([0, 0x14, 0x15, 0x700].map(|imm| two(Dbar, 0, 0, imm)));
    for op in [LlD, ScW, AmaddW, AmswapD, AmorDbD] {
        all.extend([three(op, 0, 5, 6), three(op, 4, 5, 4), three(op, 4, 4, 6)]);
    }
    // Vectors: constants, and elements used as scalars.
    all.extend([0, 5, -1024, 0x400 + 7].map(|imm| two(Vldi, 4, 0, imm)));
    all.extend([0, 1].map(|imm| two(VextrinsD, 4, 5, imm)));
    all.extend([0, 1].map(|imm| two(VreplveiD, 4, 5, imm)));
    all.extend((0..16).map(|imm| two(Vshuf4iD, 4, 5, imm)));
    all.extend([1, 3, 9, 12].map(|imm| two(Vshuf4iD, 4, 4, imm)));
    all.extend([three(VaddD, 4, 4, 5), three(VbitselV, 4, 5, 6), three(VxorV, 4, 4, 4)]);
    all
}
