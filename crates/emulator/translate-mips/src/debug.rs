//! MIPS64 registers for gdb: numbers, names, sizes, and access to them in a thread's state. Source: GDB manual,
//! appendix G.5.8 (MIPS features); gdb/features/mips64-{cpu,cp0,fpu}.xml in the GDB sources for the numbers.

use longma_loongarch::State;
use longma_translate::debug::{Description, Register, Row, Value, of_word, words};

use super::registers::{HIGH, LOW, general};
use super::service::{IMPLEMENTATION, control, set_control};

/// A kind of register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterKind {
    /// The general-purpose registers.
    General,
    /// Privileged registers (Status, BadVAddr, Cause). User programs cannot read them; they read as zero.
    Kernels,
    /// LO.
    Low,
    /// HI.
    High,
    /// The program counter.
    Pc,
    /// The floating-point registers.
    Float,
    /// FCSR.
    FloatControl,
    /// FIR.
    Implementation,
}

static ROWS: [Row<RegisterKind>; 9] = [
    Row::new("mips.cpu", RegisterKind::General, 32, 64, "r#", "int64", "general"),
    Row::new("mips.cp0", RegisterKind::Kernels, 1, 64, "status", "int64", "general"),
    Row::new("mips.cpu", RegisterKind::Low, 1, 64, "lo", "int64", "general"),
    Row::new("mips.cpu", RegisterKind::High, 1, 64, "hi", "int64", "general"),
    Row::new("mips.cp0", RegisterKind::Kernels, 2, 64, "badvaddr cause", "int64", "general"),
    Row::new("mips.cpu", RegisterKind::Pc, 1, 64, "pc", "code_ptr", "general"),
    Row::new("mips.fpu", RegisterKind::Float, 32, 64, "f#", "ieee_double", "float"),
    Row::new("mips.fpu", RegisterKind::FloatControl, 1, 64, "fcsr", "int64", "float"),
    Row::new("mips.fpu", RegisterKind::Implementation, 1, 64, "fir", "int64", "float"),
];

/// The register description of a MIPS64 program.
pub fn description() -> Description<RegisterKind> {
    Description { architecture: "mips", rows: &ROWS, types: |_| String::new() }
}

/// Reads a register of a thread that is stopped between two instructions.
pub fn read(register: Register<RegisterKind>, state: &State) -> Value {
    of_word(match register.kind {
        RegisterKind::General => state.r(general(register.index as u8)),
        RegisterKind::Kernels => 0,
        RegisterKind::Low => state.lbt.scratch[usize::from(LOW)],
        RegisterKind::High => state.lbt.scratch[usize::from(HIGH)],
        RegisterKind::Pc => state.pc,
        RegisterKind::Float => state.v[register.index].0[0],
        RegisterKind::FloatControl => control(state).into(),
        RegisterKind::Implementation => IMPLEMENTATION.into(),
    })
}

/// Writes a register of a thread that is stopped between two instructions. Returns false if the register cannot hold
/// the value.
pub fn write(register: Register<RegisterKind>, value: &Value, state: &mut State) -> bool {
    let [low, ..] = words(value);
    match register.kind {
        RegisterKind::General => state.set_r(general(register.index as u8), low),
        RegisterKind::Low => state.lbt.scratch[usize::from(LOW)] = low,
        RegisterKind::High => state.lbt.scratch[usize::from(HIGH)] = low,
        RegisterKind::Pc => state.pc = low,
        RegisterKind::Float => state.v[register.index].0[0] = low,
        RegisterKind::FloatControl => set_control(state, low as u32),
        RegisterKind::Kernels | RegisterKind::Implementation => {}
    }
    read(register, state) == of_word(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_register_reads_back_and_others_are_unchanged() {
        let all: Vec<_> = description().registers().collect();
        let numbers = [32, 33, 34, 35, 37, 38, 70, 71].map(|number| all[number].kind);
        let first = [
            RegisterKind::Kernels,
            RegisterKind::Low,
            RegisterKind::High,
            RegisterKind::Kernels,
            RegisterKind::Pc,
        ];
        let rest = [RegisterKind::Float, RegisterKind::FloatControl, RegisterKind::Implementation];
        assert_eq!(numbers.to_vec(), [&first[..], &rest].concat());
        for (number, register) in all.iter().enumerate() {
            let mut state = State::default();
            let old_values: Vec<Value> = all.iter().map(|other| read(*other, &state)).collect();
            let value =
                if register.kind == RegisterKind::FloatControl { 0x0080_0003 } else { 0x1234_5678_9abc_def0 };
            let fits = write(*register, &of_word(value), &mut state);
            // r0 is zero, and r26 and r27 are reserved for the kernel.
            let constant = matches!(register.kind, RegisterKind::Kernels | RegisterKind::Implementation)
                || matches!(number, 0 | 26 | 27);
            assert_eq!(fits, !constant, "{register:?}");
            assert_eq!(read(*register, &state) == of_word(value), !constant, "{register:?}");
            for (other, old_values) in all.iter().zip(old_values).filter(|(other, _)| *other != register) {
                assert_eq!(read(*other, &state), old_values, "{other:?} by {register:?}");
            }
        }
    }
}
