//! LoongArch64's registers as gdb numbers, names and sizes them.
//! Not their meaning.
//! Source: GDB manual, appendix G.5.6 (LoongArch features); gdb/features/loongarch in its sources for the order.

use std::fmt::Write;
use std::num::NonZeroUsize;

use gdbstub::arch;
use longma_guest::host::locks::Lazy;
use longma_loongarch::State;

/// The architecture as gdbstub wants it.
#[derive(Debug)]
pub(super) enum LoongArch64 {}

impl arch::Arch for LoongArch64 {
    type Usize = u64;
    type Registers = Registers;
    type BreakpointKind = usize;
    type RegId = Register;

    fn target_description_xml() -> Option<&'static str> {
        static XML: Lazy<String> = Lazy::new(target_xml);
        Some(&XML)
    }
}

/// Consecutive registers of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    General,
    OriginalA0,
    Pc,
    BadAddress,
    Float,
    Condition,
    FloatControl,
    Lsx,
    Lasx,
    Scratch,
    X86Flags,
    X87Top,
}

/// One kind's row: feature, kind, how many, bits, name before the number, gdb's type and group.
struct Row(&'static str, Kind, u16, u16, &'static str, &'static str, &'static str);

const ROWS: [Row; 12] = [
    Row("base", Kind::General, 32, 64, "r", "uint64", "general"),
    Row("base", Kind::OriginalA0, 1, 64, "orig_a0", "uint64", "general"),
    Row("base", Kind::Pc, 1, 64, "pc", "code_ptr", "general"),
    Row("base", Kind::BadAddress, 1, 64, "badv", "code_ptr", "general"),
    Row("fpu", Kind::Float, 32, 64, "f", "fputype", "float"),
    Row("fpu", Kind::Condition, 8, 8, "fcc", "uint8", "float"),
    Row("fpu", Kind::FloatControl, 1, 32, "fcsr", "uint32", "float"),
    Row("lsx", Kind::Lsx, 32, 128, "vr", "lsxv", "vector"),
    Row("lasx", Kind::Lasx, 32, 256, "xr", "lasxv", "vector"),
    Row("lbt", Kind::Scratch, 4, 64, "scr", "uint64", "general"),
    Row("lbt", Kind::X86Flags, 1, 32, "eflags", "uint32", "general"),
    Row("lbt", Kind::X87Top, 1, 32, "ftop", "uint32", "general"),
];

fn target_xml() -> String {
    let mut xml = String::from(
        "<?xml version=\"1.0\"?><!DOCTYPE target SYSTEM \"gdb-target.dtd\"><target version=\"1.0\">\
         <architecture>loongarch64</architecture><osabi>GNU/Linux</osabi>",
    );
    let vector = |id: &str, bits: u16| {
        let lanes =
            [("f", "ieee_single", 32), ("d", "ieee_double", 64), ("b", "int8", 8), ("h", "int16", 16)]
                .into_iter()
                .chain([("w", "int32", 32), ("l", "int64", 64)])
                .map(|(name, kind, size)| (name, kind, bits / size));
        let lanes: Vec<_> = lanes.collect();
        let vectors: String = lanes
            .iter()
            .map(|(name, kind, count)| {
                format!("<vector id=\"{id}{name}\" type=\"{kind}\" count=\"{count}\"/>")
            })
            .collect();
        let fields: String = lanes
            .iter()
            .map(|(name, kind, count)| format!("<field name=\"v{count}_{kind}\" type=\"{id}{name}\"/>"))
            .collect();
        format!("{vectors}<union id=\"{id}\">{fields}</union>")
    };
    let mut feature = "";
    for Row(of, _, count, bits, name, kind, group) in &ROWS {
        if *of != feature {
            xml += if feature.is_empty() { "" } else { "</feature>" };
            write!(xml, "<feature name=\"org.gnu.gdb.loongarch.{of}\">").expect("a string takes everything");
            xml += &match *of {
                "fpu" => "<union id=\"fputype\"><field name=\"f\" type=\"ieee_single\"/>\
                          <field name=\"d\" type=\"ieee_double\"/></union>"
                    .into(),
                "lsx" => vector("lsxv", 128),
                "lasx" => vector("lasxv", 256),
                _ => String::new(),
            };
            feature = of;
        }
        for number in 0..*count {
            let number = if *count == 1 { String::new() } else { number.to_string() };
            let kind = if name == &"r" && matches!(number.as_str(), "1") { "code_ptr" } else { kind };
            write!(
                xml,
                "<reg name=\"{name}{number}\" bitsize=\"{bits}\" type=\"{kind}\" group=\"{group}\"/>"
            )
            .expect("a string takes everything");
        }
    }
    xml + "</feature></target>"
}

/// One register, by gdb's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Register {
    kind: Kind,
    /// Among its kind.
    index: u16,
    bytes: usize,
}

impl Register {
    /// All of them, in gdb's order.
    fn all() -> impl Iterator<Item = Self> {
        ROWS.iter().flat_map(|Row(_, kind, count, bits, ..)| {
            (0..*count).map(move |index| Self { kind: *kind, index, bytes: usize::from(bits / 8) })
        })
    }

    /// Its size in bytes, and its value, little-endian, in the first of these.
    pub fn read(self, state: &State) -> ([u8; 32], usize) {
        let index = usize::from(self.index);
        let wide = |value: u64| [value, 0, 0, 0];
        let words = match self.kind {
            Kind::General => wide(state.x[index]),
            Kind::Pc => wide(state.pc),
            // Of a system call that is over, and of a fault that was told otherwise: neither is kept.
            Kind::OriginalA0 | Kind::BadAddress => wide(0),
            Kind::Float => wide(state.v[index].0[0]),
            Kind::Condition => wide(state.fcc[index].into()),
            Kind::FloatControl => wide(state.fcsr.0.into()),
            Kind::Lsx | Kind::Lasx => state.v[index].0,
            Kind::Scratch => wide(state.lbt.scratch[index]),
            Kind::X86Flags => wide(state.lbt.eflags.into()),
            Kind::X87Top => wide(state.lbt.top.into()),
        };
        (std::array::from_fn(|byte| words[byte / 8].to_le_bytes()[byte % 8]), self.bytes)
    }

    /// Sets it; false if `bytes` is not of its size.
    pub fn write(self, state: &mut State, bytes: &[u8]) -> bool {
        if bytes.len() != self.bytes {
            return false;
        }
        let mut padded = [0; 32];
        padded[..bytes.len()].copy_from_slice(bytes);
        let words: [u64; 4] = std::array::from_fn(|word| {
            u64::from_le_bytes(std::array::from_fn(|byte| padded[8 * word + byte]))
        });
        let index = usize::from(self.index);
        let low = words[0];
        match self.kind {
            Kind::General => state.set_r(self.index as u8, low),
            Kind::Pc => state.pc = low,
            Kind::OriginalA0 | Kind::BadAddress => {}
            Kind::Float => state.v[index].0[0] = low,
            Kind::Condition => state.fcc[index] = low as u8 & 1,
            Kind::FloatControl => state.fcsr.0 = low as u32,
            Kind::Lsx => state.v[index].0[..2].copy_from_slice(&words[..2]),
            Kind::Lasx => state.v[index].0 = words,
            Kind::Scratch => state.lbt.scratch[index] = low,
            Kind::X86Flags => state.lbt.eflags = low as u32,
            Kind::X87Top => state.lbt.top = low as u8 & 7,
        }
        true
    }
}

impl arch::RegId for Register {
    fn from_raw_id(id: usize) -> Option<(Self, Option<NonZeroUsize>)> {
        let register = Self::all().nth(id)?;
        Some((register, NonZeroUsize::new(register.bytes)))
    }
}

/// All registers of a thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Registers(pub State);

impl arch::Registers for Registers {
    type ProgramCounter = u64;

    fn pc(&self) -> u64 {
        self.0.pc
    }

    fn gdb_serialize(&self, mut write_byte: impl FnMut(Option<u8>)) {
        for register in Register::all() {
            let (value, bytes) = register.read(&self.0);
            value[..bytes].iter().for_each(|&byte| write_byte(Some(byte)));
        }
    }

    fn gdb_deserialize(&mut self, mut bytes: &[u8]) -> Result<(), ()> {
        for register in Register::all() {
            let (own, rest) = bytes.split_at_checked(register.bytes).ok_or(())?;
            // f, vr and xr are one register: the widest comes last and would undo the others if they differ.
            let (before, size) = register.read(&self.0);
            if before[..size] != *own {
                register.write(&mut self.0, own);
            }
            bytes = rest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdbstub::arch::{RegId, Registers as _};

    #[test]
    fn registers_have_the_numbers_that_gdb_gives_them() {
        let at = |id| Register::from_raw_id(id).unwrap().0;
        assert_eq!((at(3).kind, at(3).index), (Kind::General, 3));
        assert_eq!(at(33).kind, Kind::Pc);
        assert_eq!((at(35).kind, at(35).index), (Kind::Float, 0));
        assert_eq!((at(67).kind, at(75).kind), (Kind::Condition, Kind::FloatControl));
        assert_eq!((at(76).kind, at(108).kind), (Kind::Lsx, Kind::Lasx));
        assert!(Register::from_raw_id(146).is_none() && at(145).kind == Kind::X87Top);
    }

    #[test]
    fn what_is_written_to_a_register_is_read_back_and_r0_stays_zero() {
        for (id, register) in Register::all().enumerate() {
            let mut state = State::default();
            let (_, bytes) = register.read(&state);
            assert!(register.write(&mut state, &[1, 0, 0, 0, 0, 0, 0, 0].repeat(4)[..bytes]), "{id}");
            let constant = id == 0 || matches!(register.kind, Kind::OriginalA0 | Kind::BadAddress);
            assert_eq!(register.read(&state).0[0], u8::from(!constant), "register {id}");
            assert!(!register.write(&mut state, &[0; 3]));
        }
    }

    #[test]
    fn all_registers_survive_the_way_to_gdb_and_back() {
        let mut state = State { pc: 0x1_2000_4000, ..State::default() };
        state.set_r(4, u64::MAX);
        state.v[7].0 = [1, 2, 3, 4];
        state.fcc[3] = 1;
        let mut bytes = Vec::new();
        Registers(state.clone()).gdb_serialize(|byte| bytes.extend(byte));
        let mut back = Registers::default();
        back.gdb_deserialize(&bytes).unwrap();
        assert_eq!(back.0.pc, state.pc);
        assert_eq!((back.0.x, back.0.v, back.0.fcc), (state.x, state.v, state.fcc));
        assert!(back.gdb_deserialize(&bytes[1..]).is_err());
    }
}
