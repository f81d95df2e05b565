//! The LoongArch64 registers with GDB's numbers, names and sizes. Source: GDB manual, appendix G.5.6 (LoongArch
//! features); gdb/features/loongarch in its sources for the order.

use longma_loongarch::State;
use longma_translate::debug::{self, Description, Row, Value, of_word, value, words};

/// A kind of LoongArch64 register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// r0.
    Zero,
    /// The general registers from this one on.
    General(u8),
    /// The first argument of the last system call.
    OriginalA0,
    /// The program counter.
    Pc,
    /// The address of the last fault.
    BadAddress,
    /// The floating-point registers.
    Float,
    /// The floating-point condition flags.
    Condition,
    /// FCSR.
    FloatControl,
    /// The vector registers of 128 bits.
    Lsx,
    /// The vector registers of 256 bits.
    Lasx,
    /// The scratch registers of the binary-translation extension.
    Scratch,
    /// The x86 flags of the binary-translation extension.
    X86Flags,
    /// The x87 stack pointer of the binary-translation extension.
    X87Top,
}

static ROWS: [Row<Kind>; 14] = [
    Row::new("loongarch.base", Kind::Zero, 1, 64, "r0", "uint64", "general"),
    Row::new("loongarch.base", Kind::General(1), 1, 64, "r1", "code_ptr", "general"),
    Row::new(
        "loongarch.base",
        Kind::General(2),
        30,
        64,
        "r2 r3 r4 r5 r6 r7 r8 r9 r10 r11 r12 r13 r14 r15 r16 r17 r18 r19 r20 r21 r22 r23 r24 r25 r26 r27 r28 r29 r30 r31",
        "uint64",
        "general",
    ),
    Row::new("loongarch.base", Kind::OriginalA0, 1, 64, "orig_a0", "uint64", "general"),
    Row::new("loongarch.base", Kind::Pc, 1, 64, "pc", "code_ptr", "general"),
    Row::new("loongarch.base", Kind::BadAddress, 1, 64, "badv", "code_ptr", "general"),
    Row::new("loongarch.fpu", Kind::Float, 32, 64, "f#", "fputype", "float"),
    Row::new("loongarch.fpu", Kind::Condition, 8, 8, "fcc#", "uint8", "float"),
    Row::new("loongarch.fpu", Kind::FloatControl, 1, 32, "fcsr", "uint32", "float"),
    Row::new("loongarch.lsx", Kind::Lsx, 32, 128, "vr#", "lsxv", "vector"),
    Row::new("loongarch.lasx", Kind::Lasx, 32, 256, "xr#", "lasxv", "vector"),
    Row::new("loongarch.lbt", Kind::Scratch, 4, 64, "scr#", "uint64", "general"),
    Row::new("loongarch.lbt", Kind::X86Flags, 1, 32, "eflags", "uint32", "general"),
    Row::new("loongarch.lbt", Kind::X87Top, 1, 32, "ftop", "uint32", "general"),
];

fn types(feature: &str) -> String {
    match feature {
        "loongarch.fpu" => "<union id=\"fputype\"><field name=\"f\" type=\"ieee_single\"/>\
                            <field name=\"d\" type=\"ieee_double\"/></union>"
            .into(),
        "loongarch.lsx" => debug::vector("lsxv", 128, false),
        "loongarch.lasx" => debug::vector("lasxv", 256, false),
        _ => String::new(),
    }
}

/// The registers of a LoongArch64 program.
pub fn description() -> Description<Kind> {
    Description { architecture: "loongarch64", rows: &ROWS, types }
}

/// Reads a register of a LoongArch64 program.
pub fn read(register: debug::Register<Kind>, state: &State) -> Value {
    let index = register.index;
    of_word(match register.kind {
        Kind::General(first) => state.x[usize::from(first) + index],
        Kind::Pc => state.pc,
        // `orig_a0` and `badv` are not stored after a system call or a fault.
        Kind::Zero | Kind::OriginalA0 | Kind::BadAddress => 0,
        Kind::Float => state.v[index].0[0],
        Kind::Condition => state.fcc[index].into(),
        Kind::FloatControl => state.fcsr.0.into(),
        Kind::Lsx => {
            let [low, high, ..] = state.v[index].0;
            return value([low, high, 0, 0]);
        }
        Kind::Lasx => return value(state.v[index].0),
        Kind::Scratch => state.lbt.scratch[index],
        Kind::X86Flags => state.lbt.eflags.into(),
        Kind::X87Top => state.lbt.top.into(),
    })
}

/// Writes a register of a LoongArch64 program.
pub fn write(register: debug::Register<Kind>, value: &Value, state: &mut State) {
    let index = register.index;
    let words = words(value);
    let low = words[0];
    match register.kind {
        Kind::General(first) => state.set_r(first + index as u8, low),
        Kind::Pc => state.pc = low,
        Kind::Zero | Kind::OriginalA0 | Kind::BadAddress => {}
        Kind::Float => state.v[index].0[0] = low,
        Kind::Condition => state.fcc[index] = low as u8 & 1,
        Kind::FloatControl => state.fcsr.0 = low as u32,
        Kind::Lsx => state.v[index].0[..2].copy_from_slice(&words[..2]),
        Kind::Lasx => state.v[index].0 = words,
        Kind::Scratch => state.lbt.scratch[index] = low,
        Kind::X86Flags => state.lbt.eflags = low as u32,
        Kind::X87Top => state.lbt.top = low as u8 & 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn register_numbers_match_gdb() {
        let at = |number| description().register(number).unwrap();
        assert_eq!((at(3).kind, at(3).index), (Kind::General(2), 1));
        assert_eq!(at(33).kind, Kind::Pc);
        assert_eq!((at(35).kind, at(35).index), (Kind::Float, 0));
        assert_eq!((at(67).kind, at(75).kind), (Kind::Condition, Kind::FloatControl));
        assert_eq!((at(76).kind, at(108).kind), (Kind::Lsx, Kind::Lasx));
        assert!(description().register(146).is_none() && at(145).kind == Kind::X87Top);
    }

    #[test]
    fn a_written_register_reads_back_and_r0_stays_zero() {
        for register in description().registers() {
            let mut state = State::default();
            write(register, &of_word(1), &mut state);
            let constant = matches!(register.kind, Kind::Zero | Kind::OriginalA0 | Kind::BadAddress);
            assert_eq!(read(register, &state)[0], u8::from(!constant), "{register:?}");
        }
    }
}
