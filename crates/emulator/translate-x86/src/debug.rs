//! The x86-64 registers with GDB's numbers, names and sizes, and access to their values in a thread. Source: GDB
//! manual, appendix G.5.7 (i386 features); gdb/features/i386 in its sources for the order; Intel SDM, volume 1, section
//! 8.1.7 (tag word), volume 2 (FXSAVE).

use longma_loongarch::State;
use longma_translate::debug::{Description, Register, Row, Value, flags, of_word, value, vector, words};

use crate::features::has_avx;
use crate::registers::*;
use crate::service::frame::{FLOAT_BYTES, restore_x87, save_floats};
use crate::service::{control, keep_flags, kept_flags, set_control};

/// A kind of register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterKind {
    /// A general register; the field is the first one's number in GDB's order.
    General(u8),
    /// RIP.
    Pc,
    /// RFLAGS.
    Flags,
    /// A segment selector.
    Segment,
    /// An x87 stack register.
    X87,
    /// An x87 control, status or tag word, or a word of the last instruction's state.
    X87Word,
    /// The lower half of a YMM register.
    Xmm,
    /// MXCSR.
    Control,
    /// RAX before a system call.
    Original,
    /// The FS base, then the GS base.
    Base,
    /// The upper half of a YMM register.
    Upper,
}

static ROWS: [Row<RegisterKind>; 13] = [
    Row::new("i386.core", RegisterKind::General(0), 6, 64, "rax rbx rcx rdx rsi rdi", "int64", "general"),
    Row::new("i386.core", RegisterKind::General(6), 2, 64, "rbp rsp", "data_ptr", "general"),
    Row::new(
        "i386.core",
        RegisterKind::General(8),
        8,
        64,
        "r8 r9 r10 r11 r12 r13 r14 r15",
        "int64",
        "general",
    ),
    Row::new("i386.core", RegisterKind::Pc, 1, 64, "rip", "code_ptr", "general"),
    Row::new("i386.core", RegisterKind::Flags, 1, 32, "eflags", "i386_eflags", "general"),
    Row::new("i386.core", RegisterKind::Segment, 6, 32, "cs ss ds es fs gs", "int32", "general"),
    Row::new("i386.core", RegisterKind::X87, 8, 80, "st#", "i387_ext", "float"),
    Row::new(
        "i386.core",
        RegisterKind::X87Word,
        8,
        32,
        "fctrl fstat ftag fiseg fioff foseg fooff fop",
        "int",
        "float",
    ),
    Row::new("i386.sse", RegisterKind::Xmm, 16, 128, "xmm#", "vec128", "vector"),
    Row::new("i386.sse", RegisterKind::Control, 1, 32, "mxcsr", "i386_mxcsr", "vector"),
    Row::new("i386.linux", RegisterKind::Original, 1, 64, "orig_rax", "int", "system"),
    Row::new("i386.segments", RegisterKind::Base, 2, 64, "fs_base gs_base", "int", "general"),
    Row::new("i386.avx", RegisterKind::Upper, 16, 128, "ymm#h", "uint128", "vector"),
];

const FLAGS: [(&str, u8); 17] = [
    ("CF", 0),
    ("", 1),
    ("PF", 2),
    ("AF", 4),
    ("ZF", 6),
    ("SF", 7),
    ("TF", 8),
    ("IF", 9),
    ("DF", 10),
    ("OF", 11),
    ("NT", 14),
    ("RF", 16),
    ("VM", 17),
    ("AC", 18),
    ("VIF", 19),
    ("VIP", 20),
    ("ID", 21),
];
const CONTROL: [(&str, u8); 14] = [
    ("IE", 0),
    ("DE", 1),
    ("ZE", 2),
    ("OE", 3),
    ("UE", 4),
    ("PE", 5),
    ("DAZ", 6),
    ("IM", 7),
    ("DM", 8),
    ("ZM", 9),
    ("OM", 10),
    ("UM", 11),
    ("PM", 12),
    ("FZ", 15),
];

fn types(feature: &str) -> String {
    match feature {
        "i386.core" => flags("i386_eflags", 4, &FLAGS),
        "i386.sse" => vector("vec128", 128, true) + &flags("i386_mxcsr", 4, &CONTROL),
        _ => String::new(),
    }
}

/// The registers of a program. Upper halves of YMM registers exist only if AVX is announced.
pub fn description() -> Description<RegisterKind> {
    let rows = if has_avx() { &ROWS[..] } else { &ROWS[..ROWS.len() - 1] };
    Description { architecture: "i386:x86-64", rows, types }
}

/// The encoding numbers of RAX, RBX, RCX, RDX, RSI, RDI, RBP and RSP, which is GDB's order.
const ORDER: [usize; 8] = [0, 3, 1, 2, 6, 7, 5, 4];

fn general(first: u8, index: usize) -> u8 {
    let number = usize::from(first) + index;
    GENERAL[ORDER.get(number).copied().unwrap_or(number)]
}

/// The selectors in user mode: CS, SS, and those of the other segments.
const SELECTORS: [u64; 6] = [0x33, 0x2b, 0, 0, 0, 0];
/// The kernel's value outside a system call.
const NO_CALL: u64 = u64::MAX;
/// The offset of ST(0) in the FXSAVE area.
const STACK_AT: usize = 32;

/// Reads a register of a thread that is between two instructions.
pub fn read(register: Register<RegisterKind>, state: &State) -> Value {
    let Register { kind, index, .. } = register;
    match kind {
        RegisterKind::General(first) => of_word(state.r(general(first, index))),
        RegisterKind::Pc => of_word(state.pc),
        RegisterKind::Flags => of_word(flags_of(state) | kept_flags(state)),
        RegisterKind::Segment => of_word(SELECTORS[index]),
        RegisterKind::X87 => {
            let area = save_floats(state);
            let mut value = Value::default();
            value[..10].copy_from_slice(&area[STACK_AT + 16 * index..][..10]);
            value
        }
        RegisterKind::X87Word => of_word(x87_word(&save_floats(state), index).into()),
        RegisterKind::Xmm => {
            let [low, high, ..] = state.v[16 + index].0;
            value([low, high, 0, 0])
        }
        RegisterKind::Control => of_word(control(state).into()),
        RegisterKind::Original => of_word(NO_CALL),
        RegisterKind::Base if index == 0 => of_word(state.r(THREAD_POINTER)),
        RegisterKind::Base => of_word(state.lbt.scratch[usize::from(GS_BASE)]),
        RegisterKind::Upper => {
            let [low, high] = upper(state, index);
            value([low, high, 0, 0])
        }
    }
}

/// Writes a register of a thread that is between two instructions. Returns false if it cannot hold the value.
pub fn write(register: Register<RegisterKind>, value: &Value, state: &mut State) -> bool {
    let Register { kind, index, .. } = register;
    let [low, high, ..] = words(value);
    match kind {
        RegisterKind::General(first) => state.set_r(general(first, index), low),
        RegisterKind::Pc => state.pc = low,
        RegisterKind::Flags => {
            set_flags_of(state, low);
            keep_flags(state, low);
        }
        RegisterKind::Segment => return low == SELECTORS[index],
        RegisterKind::X87 => {
            let mut area = save_floats(state);
            area[STACK_AT + 16 * index..][..10].copy_from_slice(&value[..10]);
            restore_x87(state, &area);
        }
        RegisterKind::X87Word if index > 2 => return low == 0,
        RegisterKind::X87Word => {
            let mut area = save_floats(state);
            set_x87_word(&mut area, index, low as u16);
            restore_x87(state, &area);
        }
        RegisterKind::Xmm => state.v[16 + index].0[..2].copy_from_slice(&[low, high]),
        RegisterKind::Control => set_control(state, low as u32),
        // `orig_rax` is not used.
        RegisterKind::Original => {}
        RegisterKind::Base if index == 0 => state.set_r(THREAD_POINTER, low),
        RegisterKind::Base => state.lbt.scratch[usize::from(GS_BASE)] = low,
        RegisterKind::Upper => set_upper(state, index, [low, high]),
    }
    true
}

fn half(area: &[u8; FLOAT_BYTES], at: usize) -> u16 {
    u16::from_le_bytes([area[at], area[at + 1]])
}

/// The x87 control, status and tag words. The last instruction's state is not recorded and reads as zero.
fn x87_word(area: &[u8; FLOAT_BYTES], index: usize) -> u16 {
    match index {
        0 | 1 => half(area, 2 * index),
        2 => (0..8).fold(0, |tags, number| tags | tag(area, number) << (2 * number)),
        _ => 0,
    }
}

/// The tag of the physical register `number`: 0 valid, 1 zero, 2 special, 3 empty.
fn tag(area: &[u8; FLOAT_BYTES], number: u16) -> u16 {
    if area[4] >> number & 1 == 0 {
        return 3;
    }
    let top = half(area, 2) >> 11 & 7;
    let at = STACK_AT + 16 * usize::from(number.wrapping_sub(top) & 7);
    let mantissa = u64::from_le_bytes(std::array::from_fn(|byte| area[at + byte]));
    let is_normal = mantissa >> 63 != 0;
    match half(area, at + 8) & 0x7fff {
        0 if mantissa == 0 => 1,
        1..0x7fff if is_normal => 0,
        _ => 2,
    }
}

/// Sets the control, status or tag word. Of a tag, only whether the register is empty is stored.
fn set_x87_word(area: &mut [u8; FLOAT_BYTES], index: usize, word: u16) {
    if index < 2 {
        area[2 * index..][..2].copy_from_slice(&word.to_le_bytes());
    } else {
        area[4] = (0..8).fold(0, |full, number| full | u8::from(word >> (2 * number) & 3 != 3) << number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Register<RegisterKind>> {
        Description { architecture: "", rows: &ROWS, types }.registers().collect()
    }

    fn fresh() -> State {
        let mut state = State::default();
        <crate::X86_64 as longma_translate::front_end::FrontEnd>::begin(&mut state, 0);
        state
    }

    #[test]
    fn register_numbers_match_gdb() {
        let names: Vec<(usize, RegisterKind, usize)> =
            all().into_iter().enumerate().map(|(n, register)| (n, register.kind, register.bytes)).collect();
        for (number, kind, bytes) in [
            (7, RegisterKind::General(6), 8),
            (16, RegisterKind::Pc, 8),
            (17, RegisterKind::Flags, 4),
            (18, RegisterKind::Segment, 4),
            (24, RegisterKind::X87, 10),
            (32, RegisterKind::X87Word, 4),
            (40, RegisterKind::Xmm, 16),
            (56, RegisterKind::Control, 4),
            (57, RegisterKind::Original, 8),
            (59, RegisterKind::Base, 8),
            (75, RegisterKind::Upper, 16),
        ] {
            assert_eq!(names[number], (number, kind, bytes));
        }
        assert_eq!(names.len(), 76);
        // RBX, RSP and R15 have the encoding numbers 3, 4 and 15.
        let numbers = [(0, 1), (6, 1), (8, 7)].map(|(first, index)| general(first, index));
        assert_eq!(numbers, [GENERAL[3], STACK_POINTER, GENERAL[15]]);
    }

    #[test]
    fn a_written_register_reads_back_and_others_are_unchanged() {
        let is_tag =
            |register: &Register<RegisterKind>| register.kind == RegisterKind::X87Word && register.index == 2;
        for register in all().into_iter().filter(|register| !is_tag(register)) {
            let mut state = fresh();
            let old_values: Vec<Value> = all().iter().map(|other| read(*other, &state)).collect();
            let mut value = read(register, &state);
            value[0] ^= 1;
            value[register.bytes - 1] ^= if register.bytes > 4 { 0x10 } else { 0 };
            let fits = write(register, &value, &mut state);
            let constant = matches!(register.kind, RegisterKind::Segment | RegisterKind::Original)
                || register.kind == RegisterKind::X87Word && register.index > 1;
            assert_eq!(read(register, &state) == value, !constant, "{register:?}");
            assert_eq!(fits, !constant || register.kind == RegisterKind::Original, "{register:?}");
            for (other, old_values) in
                all().into_iter().zip(old_values).filter(|(other, _)| *other != register)
            {
                assert_eq!(read(other, &state), old_values, "{other:?} by {register:?}");
            }
        }
    }

    #[test]
    fn tags_distinguish_empty_zero_valid_and_special_registers() {
        let mut state = fresh();
        let words = |state: &State| x87_word(&save_floats(state), 2);
        assert_eq!(words(&state), 0xffff);
        let mut area = save_floats(&state);
        // The top of the stack is register 6: 1.0, then 0.0. Register 0 is infinite and register 1 denormal.
        area[2..4].copy_from_slice(&(6u16 << 11).to_le_bytes());
        area[4] = 0b1100_0011;
        for (at, exponent, mantissa) in
            [(0, 0x3fffu16, 1u64 << 63), (1, 0, 0), (2, 0x7fff, 1 << 63), (3, 0, 5)]
        {
            area[32 + 16 * at..][..8].copy_from_slice(&mantissa.to_le_bytes());
            area[40 + 16 * at..][..2].copy_from_slice(&exponent.to_le_bytes());
        }
        restore_x87(&mut state, &area);
        assert_eq!(words(&state), 0b01_00_11_11_11_11_10_10);
        let tags = Register { kind: RegisterKind::X87Word, index: 2, bytes: 4 };
        assert!(write(tags, &of_word(0b00_00_11_11_11_11_11_00), &mut state));
        assert_eq!(words(&state), 0b01_00_11_11_11_11_11_10, "the contents determine the tag");
    }
}
