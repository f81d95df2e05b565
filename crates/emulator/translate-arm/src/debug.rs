//! AArch64 registers for gdb: numbers, names, sizes, and access to them in a thread's state. Source: GDB manual,
//! appendix G.5.1 (AArch64 features); gdb/features/aarch64-{core,fpu}.xml in the GDB sources for the order.

use longma_loongarch::State;
use longma_translate::debug::{self, Description, Register, Row, Value, of_word, value, words};
use longma_translate::front_end::UserMemory;

use crate::registers::{self, STACK_POINTER, THREAD_POINTER};
use crate::service::{control, set_control, set_status, status};

/// A kind of register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterKind {
    /// X0 to X30.
    General,
    /// SP.
    Stack,
    /// PC.
    Pc,
    /// NZCV, in the layout of the program status register.
    Flags,
    /// V0 to V31.
    Vector,
    /// FPSR.
    FloatStatus,
    /// FPCR.
    FloatControl,
    /// TPIDR_EL0.
    ThreadPointer,
}

static ROWS: [Row<RegisterKind>; 8] = [
    Row::new("aarch64.core", RegisterKind::General, 31, 64, "x#", "int64", "general"),
    Row::new("aarch64.core", RegisterKind::Stack, 1, 64, "sp", "data_ptr", "general"),
    Row::new("aarch64.core", RegisterKind::Pc, 1, 64, "pc", "code_ptr", "general"),
    Row::new("aarch64.core", RegisterKind::Flags, 1, 32, "cpsr", "cpsr_flags", "general"),
    Row::new("aarch64.fpu", RegisterKind::Vector, 32, 128, "v#", "aarch64v", "vector"),
    Row::new("aarch64.fpu", RegisterKind::FloatStatus, 1, 32, "fpsr", "int", "float"),
    Row::new("aarch64.fpu", RegisterKind::FloatControl, 1, 32, "fpcr", "int", "float"),
    Row::new("aarch64.tls", RegisterKind::ThreadPointer, 1, 64, "tpidr", "data_ptr", "system"),
];

const FLAGS: [(&str, u8); 4] = [("V", 28), ("C", 29), ("Z", 30), ("N", 31)];
const FLAG_BITS: u64 = 0xf << 28;

/// Vector lane types in gdb: the field's letter, the number of lanes, and the floating-point, unsigned and signed
/// element types.
const LANES: [(&str, u8, [&str; 3]); 5] = [
    ("d", 2, ["ieee_double", "uint64", "int64"]),
    ("s", 4, ["ieee_single", "uint32", "int32"]),
    ("h", 8, ["ieee_half", "uint16", "int16"]),
    ("b", 16, ["", "uint8", "int8"]),
    ("q", 1, ["", "uint128", "int128"]),
];

/// The gdb type of a vector register: a union of all lane sizes and element types.
fn vector() -> String {
    let (mut parts, mut lanes) = (String::new(), String::new());
    for (letter, count, types) in LANES {
        let mut fields = String::new();
        for (name, type_name) in
            ["f", "u", "s"].into_iter().zip(types).filter(|(_, type_name)| !type_name.is_empty())
        {
            parts += &format!("<vector id=\"v{letter}{name}\" type=\"{type_name}\" count=\"{count}\"/>");
            fields += &format!("<field name=\"{name}\" type=\"v{letter}{name}\"/>");
        }
        parts += &format!("<union id=\"vn{letter}\">{fields}</union>");
        lanes += &format!("<field name=\"{letter}\" type=\"vn{letter}\"/>");
    }
    format!("{parts}<union id=\"aarch64v\">{lanes}</union>")
}

fn types(feature: &str) -> String {
    match feature {
        "aarch64.core" => debug::flags("cpsr_flags", 4, &FLAGS),
        "aarch64.fpu" => vector(),
        _ => String::new(),
    }
}

/// The register description of an AArch64 program.
pub fn description() -> Description<RegisterKind> {
    Description { architecture: "aarch64", rows: &ROWS, types }
}

/// Reads a register of a thread that is stopped between two instructions.
pub fn read(register: Register<RegisterKind>, state: &State, memory: &dyn UserMemory) -> Value {
    of_word(match register.kind {
        RegisterKind::General => registers::read(state, register.index as u8, memory),
        RegisterKind::Stack => state.r(STACK_POINTER),
        RegisterKind::Pc => state.pc,
        RegisterKind::Flags => registers::flags(state),
        RegisterKind::Vector => {
            let [low, high, ..] = state.v[register.index].0;
            return value([low, high, 0, 0]);
        }
        RegisterKind::FloatStatus => status(state, memory).into(),
        RegisterKind::FloatControl => control(state, memory).into(),
        RegisterKind::ThreadPointer => state.lbt.scratch[usize::from(THREAD_POINTER)],
    })
}

/// Writes a register of a thread that is stopped between two instructions. Returns false if the register cannot hold
/// the value.
pub fn write(
    register: Register<RegisterKind>,
    value: &Value,
    state: &mut State,
    memory: &dyn UserMemory,
) -> bool {
    let [low, high, ..] = words(value);
    match register.kind {
        RegisterKind::General => registers::write(state, register.index as u8, low, memory),
        RegisterKind::Stack => state.set_r(STACK_POINTER, low),
        RegisterKind::Pc => state.pc = low,
        RegisterKind::Flags => {
            registers::set_flags(state, low);
            return low & !FLAG_BITS == 0;
        }
        RegisterKind::Vector => state.v[register.index].0[..2].copy_from_slice(&[low, high]),
        RegisterKind::FloatStatus => {
            set_status(state, low as u32, memory);
            return u64::from(status(state, memory)) == low;
        }
        RegisterKind::FloatControl => {
            set_control(state, low as u32, memory);
            return u64::from(control(state, memory)) == low;
        }
        RegisterKind::ThreadPointer => state.lbt.scratch[usize::from(THREAD_POINTER)] = low,
    }
    true
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::registers::{SLOT_BYTES, SLOTS};

    /// Memory that contains only the register slots.
    struct Slots(RefCell<[u8; SLOT_BYTES as usize]>);

    impl UserMemory for Slots {
        fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
            bytes.copy_from_slice(&self.0.borrow()[address as usize - 0x1000..][..bytes.len()]);
            true
        }

        fn write(&self, address: u64, bytes: &[u8]) -> bool {
            self.0.borrow_mut()[address as usize - 0x1000..][..bytes.len()].copy_from_slice(bytes);
            true
        }

        fn writable(&self, _: u64, bytes: u64) -> u64 {
            bytes
        }

        fn clock_ns(&self) -> u64 {
            0
        }
    }

    #[test]
    fn a_written_register_reads_back_and_others_are_unchanged() {
        let all: Vec<_> = description().registers().collect();
        let numbers = [31, 32, 33, 34, 66, 67, 68].map(|number| all[number].kind);
        let (stack, pc) = (RegisterKind::Stack, RegisterKind::Pc);
        let rest = [
            RegisterKind::Flags,
            RegisterKind::Vector,
            RegisterKind::FloatStatus,
            RegisterKind::FloatControl,
            RegisterKind::ThreadPointer,
        ];
        assert_eq!(numbers.to_vec(), [&[stack, pc][..], &rest].concat());
        for register in &all {
            let memory = Slots(RefCell::new([0; SLOT_BYTES as usize]));
            let mut state = State::default();
            state.set_r(SLOTS, 0x1000);
            let old_values: Vec<Value> = all.iter().map(|other| read(*other, &state, &memory)).collect();
            let value = match register.kind {
                RegisterKind::Flags => of_word(0x6000_0000),
                RegisterKind::FloatControl => of_word(3 << 22),
                RegisterKind::FloatStatus => of_word(1),
                _ => of_word(0x1234_5678_9abc_def0),
            };
            assert!(write(*register, &value, &mut state, &memory), "{register:?}");
            assert_eq!(read(*register, &state, &memory), value, "{register:?}");
            for (other, old_values) in all.iter().zip(old_values).filter(|(other, _)| *other != register) {
                assert_eq!(read(*other, &state, &memory), old_values, "{other:?} by {register:?}");
            }
        }
        let flags = all[33];
        assert!(!write(flags, &of_word(1), &mut State::default(), &Slots(RefCell::new([0; _]))), "a mode");
    }
}
