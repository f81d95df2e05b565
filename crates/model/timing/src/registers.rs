//! The registers that an instruction reads and writes, numbered across all register files.
//!
//! Source: LoongArch Reference Manual, volume 1; for the binary-translation extension as described in
//! longma-loongarch's README.

use longma_loongarch::{Instruction, Location, Op, Operand, RegisterKind};

/// Size of an array indexed by register number: a power of two, so that [`slot`] stays in bounds. Number 0 is r0,
/// which is always ready.
pub(crate) const SLOTS: usize = 128;
const VECTOR: u8 = 32;
const CONDITION: u8 = 64;
const SCRATCH: u8 = 72;
const CONTROL: u8 = 76;
/// EFLAGS or NZCV of the binary-translation extension.
const FLAGS: u8 = 77;
/// The x87 top of stack and the mode that enables renaming by it.
const STACK: u8 = 78;
/// Destination of writes to r0 and of instructions without a destination; never read.
pub(crate) const SINK: u8 = 79;

/// The array index of a register.
#[inline]
pub(crate) fn slot(register: u8) -> usize {
    usize::from(register) & (SLOTS - 1)
}

/// The registers of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registers {
    /// Sources; 0 for an unused entry. No instruction reads more than three.
    pub sources: [u8; 3],
    /// Destination; [`SINK`] if there is none.
    pub destination: u8,
}

/// Returns whether it is a floating-point, vector or condition register.
pub(crate) fn is_float(register: u8) -> bool {
    (VECTOR..SCRATCH).contains(&register)
}

/// The registers of `instruction` according to the instruction table. Floating-point rounding modes and flags are
/// tracked only between moves of the control register and not through arithmetic, because cores rename them or drain
/// the pipeline. The second result of `rdtime`, the counter's ID, is not tracked either.
pub(crate) fn registers_of(instruction: &Instruction) -> Registers {
    let row = instruction.op.row();
    let registers =
        |list: &'static [Location]| list.iter().filter_map(|location| register(*location, instruction));
    let mut sources = [0; 3];
    for (source, register) in sources.iter_mut().zip(registers(row.reads)) {
        *source = register;
    }
    Registers { sources, destination: registers(row.writes).next().unwrap_or(SINK) }
}

/// The register number of an operand of `instruction` at `location`; `None` if it is not tracked, or r0.
fn register(location: Location, instruction: &Instruction) -> Option<u8> {
    let register = match location {
        Location::Operand(kind, position) => number(kind, instruction.register_at(position)),
        Location::Register(kind, register) => number(kind, register),
        Location::FloatControl if moves_control(instruction.op) => CONTROL,
        Location::Flags => FLAGS,
        Location::Top | Location::StackMode => STACK,
        Location::FloatControl | Location::Reservation | Location::Memory(_) => 0,
    };
    (register != 0).then_some(register)
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

/// Returns whether an operand of `op` is a floating-point control register.
fn moves_control(op: Op) -> bool {
    op.row()
        .operands
        .iter()
        .any(|operand| matches!(operand, Operand::Register(RegisterKind::FloatControl, _)))
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
    fn a_write_to_r0_has_no_dependents() {
        // andi r0, r0, 0: the canonical no-op.
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
    fn three_sources_and_one_destination_are_enough() {
        for op in Op::all() {
            // Distinct numbers for all operands.
            let instruction = Instruction { d: 4, j: 5, k: 6, a: 7, ..Instruction::new(op) };
            let count = |list: &[Location]| {
                list.iter().filter_map(|location| register(*location, &instruction)).count()
            };
            assert!(count(op.row().reads) <= 3, "{}", op.mnemonic());
            let counters = if op.mnemonic().starts_with("rdtime") { 2 } else { 1 };
            assert!(count(op.row().writes) <= counters, "{}", op.mnemonic());
        }
    }

    #[test]
    fn a_shuffle_by_an_immediate_does_not_read_its_destination_and_a_tag_does() {
        let shuffle = registers_of(&Instruction { d: 1, j: 2, ..Instruction::new(Op::Vshuf4iB) });
        assert_eq!(shuffle, Registers { sources: [34, 0, 0], destination: 33 });
        let tag = registers_of(&Instruction { d: 4, ..Instruction::new(Op::X86settag) });
        assert_eq!(tag, Registers { sources: [4, 0, 0], destination: 4 });
    }

    #[test]
    fn flags_make_one_instruction_wait_for_another() {
        let add = registers_of(&Instruction { j: 4, k: 5, ..Instruction::new(Op::X86addD) });
        assert_eq!(add, Registers { sources: [4, 5, 0], destination: FLAGS });
        let adc = registers_of(&Instruction { d: 6, j: 4, k: 5, ..Instruction::new(Op::AdcD) });
        assert_eq!(adc, Registers { sources: [4, 5, FLAGS], destination: 6 });
    }
}
