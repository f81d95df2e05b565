//! Which registers an instruction reads and writes, numbered across all register files.
//! Not what it does with them.
//! Source: LoongArch Reference Manual, volume 1; for the binary-translation extension as longma-loongarch's README says.

use longma_loongarch::{Class, Instruction, Op, Operand, RegisterKind};

/// Places for registers of all files: a power of two, so that [`place`] keeps every number inside. 0 is r0, which is always ready.
pub(super) const PLACES: usize = 128;
const VECTOR: u8 = 32;
const CONDITION: u8 = 64;
const SCRATCH: u8 = 72;
const CONTROL: u8 = 76;
/// EFLAGS or NZCV of the binary-translation extension.
const FLAGS: u8 = 77;
/// Where writes to r0 and of no register go; nothing reads it.
pub(super) const SINK: u8 = 79;

/// The place of a register.
#[inline]
pub(super) fn place(register: u8) -> usize {
    usize::from(register) & (PLACES - 1)
}

/// Registers of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registers {
    /// What it reads, 0 where there is none. No instruction reads more than three.
    pub sources: [u8; 3],
    /// What it writes; [`SINK`] if nothing.
    pub destination: u8,
}

/// True for a floating-point, vector or condition register.
pub(super) fn is_float(register: u8) -> bool {
    (VECTOR..SCRATCH).contains(&register)
}

/// The registers of `instruction`.
pub(super) fn registers_of(instruction: &Instruction) -> Registers {
    let op = instruction.op;
    let row = op.row();
    let mut sources = [0; 3];
    let mut read = 0;
    let mut note = |register: u8| {
        if register != 0 && read < sources.len() {
            sources[read] = register;
            read += 1;
        }
    };
    let mut destination = if op == Op::Bl { 1 } else { SINK };
    for (index, operand) in row.operands.iter().enumerate() {
        let Operand::Register(kind, position) = operand else { continue };
        let register = number(*kind, instruction.register_at(*position));
        let written = index == 0 && *position == 0 && writes_first(op);
        if written && register != 0 {
            destination = register;
        }
        if !written || reads_destination(op) {
            note(register);
        }
    }
    let (reads_flags, writes_flags) = flags(op);
    if reads_flags {
        note(FLAGS);
    }
    if writes_flags && destination == SINK {
        destination = FLAGS;
    }
    Registers { sources, destination }
}

fn number(kind: RegisterKind, register: u8) -> u8 {
    match kind {
        RegisterKind::General => register & 31,
        RegisterKind::Float | RegisterKind::Vector128 | RegisterKind::Vector256 => VECTOR + (register & 31),
        RegisterKind::Condition => CONDITION + (register & 7),
        RegisterKind::Scratch => SCRATCH + (register & 3),
        RegisterKind::FloatControl => CONTROL,
    }
}

/// True if the first operand, a register at bit 0, is written.
fn writes_first(op: Op) -> bool {
    !matches!(op.row().class, Class::Store | Class::Branch | Class::Prefetch | Class::Barrier)
        && !matches!(op, Op::X86mtflag | Op::Armmtflag)
}

/// Instructions that keep part of the register they write, by name without a vector prefix and without the element's type.
const KEEP_PART: &[&str] = &[
    "madd",
    "msub",
    "maddwev",
    "maddwod",
    "insgr2vr",
    "insve0",
    "extrins",
    "frstp",
    "frstpi",
    "bitseli",
    "shuf4i",
    "bstrins",
    "movgr2frh",
    "lu32i",
    "ldl",
    "ldr",
    "csrxchg",
    "armmove",
    "srlni",
    "srlrni",
    "srani",
    "srarni",
    "ssrlni",
    "ssrlrni",
    "ssrani",
    "ssrarni",
    "sc",
    "screl",
];

fn reads_destination(op: Op) -> bool {
    let row = op.row();
    let base = row.mnemonic.split('.').next().unwrap_or(row.mnemonic);
    let vector = matches!(
        row.operands.first(),
        Some(Operand::Register(RegisterKind::Vector128 | RegisterKind::Vector256, _))
    );
    let base = if vector { base.trim_start_matches("xv").trim_start_matches('v') } else { base };
    match base {
        "permi" => row.mnemonic != "xvpermi.d",
        "shuf" => row.operands.len() == 3,
        "sc" => op != Op::ScQ || row.operands.len() == 3,
        _ => KEEP_PART.contains(&base) || base.starts_with("amcas"),
    }
}

/// Whether an instruction reads and writes the flags of the binary-translation extension.
fn flags(op: Op) -> (bool, bool) {
    let row = op.row();
    if !matches!(row.class, Class::Lbt | Class::LbtMul) {
        return (false, false);
    }
    let name = row.mnemonic;
    let reads = ["adc", "sbc", "rcr", "rcl", "inc", "dec", "mfflag", "setx86", "setarm", "armmov", "armrrx"]
        .iter()
        .any(|part| name.contains(part));
    let moves = ["top", "tm", "tag", "mfflag"].iter().any(|part| name.contains(part));
    let writes =
        (name.starts_with("x86") || name.starts_with("arm")) && !moves && !name.starts_with("armmove");
    (reads, writes || name.ends_with("mtflag"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_loongarch::decode;

    fn of(word: u32) -> Registers {
        registers_of(&decode(word).expect("an instruction"))
    }

    #[test]
    fn an_add_reads_two_and_writes_one() {
        let add = Instruction { d: 4, j: 5, k: 6, ..Instruction::new(Op::AddD) };
        assert_eq!(registers_of(&add), Registers { sources: [5, 6, 0], destination: 4 });
    }

    #[test]
    fn a_write_to_r0_is_waited_for_by_nobody() {
        // andi r0, r0, 0: the canonical no-operation.
        assert_eq!(of(0x0340_0000), Registers { sources: [0; 3], destination: SINK });
    }

    #[test]
    fn stores_and_branches_read_their_first_operand() {
        let store = Instruction { d: 4, j: 5, ..Instruction::new(Op::StD) };
        assert_eq!(registers_of(&store), Registers { sources: [4, 5, 0], destination: SINK });
        let branch = Instruction { d: 4, j: 5, imm: 8, ..Instruction::new(Op::Beq) };
        assert_eq!(registers_of(&branch).destination, SINK);
        assert_eq!(registers_of(&Instruction::new(Op::Bl)).destination, 1);
    }

    #[test]
    fn instructions_that_keep_a_part_of_their_destination_read_it() {
        let accumulate = Instruction { d: 1, j: 2, k: 3, ..Instruction::new(Op::VmaddW) };
        assert_eq!(registers_of(&accumulate), Registers { sources: [33, 34, 35], destination: 33 });
        let fused = Instruction { d: 1, j: 2, k: 3, a: 4, ..Instruction::new(Op::VfmaddD) };
        assert_eq!(registers_of(&fused), Registers { sources: [34, 35, 36], destination: 33 });
        for op in [
            Op::BstrinsD,
            Op::Lu32iD,
            Op::XvpermiQ,
            Op::VpermiW,
            Op::VshufW,
            Op::VsrlniBH,
            Op::AmcasW,
            Op::ScW,
        ] {
            let instruction = Instruction { d: 7, ..Instruction::new(op) };
            let registers = registers_of(&instruction);
            assert!(registers.sources.contains(&registers.destination), "{}", op.mnemonic());
        }
        for op in
            [Op::VshufB, Op::XvpermiD, Op::VfmaddS, Op::FmaddD, Op::LdD, Op::LlW, Op::VsrlnBH, Op::VaddW]
        {
            let instruction = Instruction { d: 7, ..Instruction::new(op) };
            let registers = registers_of(&instruction);
            assert!(!registers.sources.contains(&registers.destination), "{}", op.mnemonic());
        }
    }

    #[test]
    fn flags_make_one_instruction_wait_for_another() {
        let add = registers_of(&Instruction { j: 4, k: 5, ..Instruction::new(Op::X86addD) });
        assert_eq!(add, Registers { sources: [4, 5, 0], destination: FLAGS });
        let adc = registers_of(&Instruction { d: 6, j: 4, k: 5, ..Instruction::new(Op::AdcD) });
        assert_eq!(adc, Registers { sources: [4, 5, FLAGS], destination: 6 });
    }
}
