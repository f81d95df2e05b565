//! Disassembles A64 instructions using the operands of the instruction table. Of the aliases, only those in the table
//! are used. Source: Arm Architecture Reference Manual (Arm DDI 0487), section C1.2 (structure of the assembler
//! language).

use std::fmt;

use super::code::vector::shifts::amounts;
use super::instruction::{
    Instruction, Op, Operand, float_immediate, half_immediate, lane_of, modified_immediate,
};

const CONDITIONS: [&str; 16] =
    ["eq", "ne", "hs", "lo", "mi", "pl", "vs", "vc", "hi", "ls", "ge", "lt", "gt", "le", "al", "nv"];
const EXTENSIONS: [&str; 8] = ["uxtb", "uxth", "uxtw", "uxtx", "sxtb", "sxth", "sxtw", "sxtx"];
const SIZES: [&str; 4] = ["b", "h", "s", "d"];
const SHIFTS: [&str; 4] = ["lsl", "lsr", "asr", "ror"];

struct Text {
    instruction: Instruction,
    pc: u64,
}

impl Instruction {
    /// The instruction as text; `pc` is its address and determines branch targets.
    pub fn text(self, pc: u64) -> impl fmt::Display {
        Text { instruction: self, pc }
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let i = self.instruction;
        match i.op {
            Op::BCond => write!(f, "b.{}", CONDITIONS[usize::from(i.condition())])?,
            Op::DcZva | Op::DcCvac | Op::DcCvap | Op::DcCvau | Op::DcCivac | Op::IcIvau => {
                f.write_str(match i.op {
                    Op::DcZva => "dc zva,",
                    Op::DcCvac => "dc cvac,",
                    Op::DcCvap => "dc cvap,",
                    Op::DcCvau => "dc cvau,",
                    Op::DcCivac => "dc civac,",
                    _ => "ic ivau,",
                })?
            }
            _ => f.write_str(i.mnemonic())?,
        }
        for (index, operand) in i.row().operands.iter().enumerate() {
            if matches!(operand, Operand::Other("shift" | "extend")) && !self.shows(operand) {
                continue;
            }
            f.write_str(if index == 0 { " " } else { ", " })?;
            match *operand {
                Operand::Register { kind, at, .. } => f.write_str(&self.register(kind, at))?,
                Operand::Address(kind) => f.write_str(&self.address(kind))?,
                Operand::Other(name) => f.write_str(&self.other(name))?,
            }
        }
        Ok(())
    }
}

fn general(number: u32, is_wide: bool, is_stack: bool) -> String {
    match (number, is_stack, is_wide) {
        (31, true, true) => "sp".into(),
        (31, true, false) => "wsp".into(),
        (31, false, true) => "xzr".into(),
        (31, false, false) => "wzr".into(),
        (_, _, true) => format!("x{number}"),
        _ => format!("w{number}"),
    }
}

impl Text {
    fn shows(&self, operand: &Operand) -> bool {
        let i = self.instruction;
        match operand {
            Operand::Other("shift") => i.bits(10, 6) != 0,
            _ => i.bits(10, 3) != 0 || i.bits(13, 2) != 3,
        }
    }

    fn register(&self, kind: u8, at: u8) -> String {
        let i = self.instruction;
        let number = i.bits(at.into(), 5);
        match kind {
            b'w' => general(number, false, false),
            b'x' => general(number, true, false),
            b'r' => general(number, i.is_wide(), false),
            b'p' => general(number, i.is_wide(), true),
            b'e' => general(number, i.bits(13, 2) == 3, false),
            b'F' => format!("{}{number}", if i.is_double() { 'd' } else { 's' }),
            b'Z' => format!("{}{number}", SIZES[i.size()]),
            b'I' => format!("{}{number}", SIZES[amounts(i).0]),
            b'E' => format!("v{}", lane_of(i).0),
            b'V' => format!("v{number}{}", if i.bits(30, 1) != 0 { ".16b" } else { ".8b" }),
            _ => format!("{}{number}", char::from(kind.to_ascii_lowercase())),
        }
    }

    fn address(&self, kind: u8) -> String {
        let i = self.instruction;
        let base = general(i.bits(5, 5), true, true);
        let offset_text =
            |offset: i64| if offset == 0 { format!("[{base}]") } else { format!("[{base}, #{offset}]") };
        let vector = i.bits(26, 1) != 0;
        let scale = if vector && i.bits(23, 1) != 0 { 4 } else { i.bits(30, 2) };
        let pair = i.signed(15, 7) << if vector { 2 + i.bits(30, 2) } else { 2 + i.bits(31, 1) };
        match kind {
            b'o' => offset_text(i64::from(i.bits(10, 12)) << scale),
            b'u' => offset_text(i.signed(12, 9)),
            b't' => format!("[{base}], #{}", i.signed(12, 9)),
            b'p' => format!("[{base}, #{}]!", i.signed(12, 9)),
            b'h' => offset_text(pair),
            b'i' => format!("[{base}], #{pair}"),
            b'j' => format!("[{base}, #{pair}]!"),
            b's' if i.rm() == 31 => format!("[{base}], #"),
            b's' => format!("[{base}], x{}", i.rm()),
            b'l' => format!("{:#x}", i.target(self.pc).unwrap_or_default()),
            b'r' => {
                let index = general(i.bits(16, 5), i.bits(13, 2) == 3, false);
                let amount = if i.bits(12, 1) != 0 { format!(" #{scale}") } else { String::new() };
                match (i.bits(13, 3), amount.is_empty()) {
                    (3, true) => format!("[{base}, {index}]"),
                    (3, false) => format!("[{base}, {index}, lsl{amount}]"),
                    (option, _) => format!("[{base}, {index}, {}{amount}]", EXTENSIONS[option as usize]),
                }
            }
            _ => format!("[{base}]"),
        }
    }

    fn other(&self, name: &str) -> String {
        let i = self.instruction;
        match name {
            "page" | "to26" | "to19" | "to14" => format!("{:#x}", i.target(self.pc).unwrap_or_default()),
            "arith" => format!("#{:#x}", i.arithmetic_immediate()),
            "mask" => format!("#{:#x}", i.mask()),
            "wide" => match i.bits(21, 2) {
                0 => format!("#{:#x}", i.bits(5, 16)),
                part => format!("#{:#x}, lsl #{}", i.bits(5, 16), 16 * part),
            },
            "field" => format!("#{}, #{}", i.bits(16, 6), i.bits(10, 6)),
            "lsb" => format!("#{}", i.bits(10, 6)),
            "bit" => format!("#{}", i.bits(19, 5) | i.bits(31, 1) << 5),
            "imm16" => format!("#{:#x}", i.bits(5, 16)),
            "hint" => format!("#{}", i.bits(5, 7)),
            "crm" => format!("#{}", i.bits(8, 4)),
            "sysreg" => {
                let register = i.system_register();
                format!(
                    "s3_{}_c{}_c{}_{}",
                    register >> 11 & 7,
                    register >> 7 & 15,
                    register >> 3 & 15,
                    register & 7
                )
            }
            "shift" => format!("{} #{}", SHIFTS[i.bits(22, 2) as usize], i.bits(10, 6)),
            "extend" => match i.bits(10, 3) {
                0 => EXTENSIONS[i.bits(13, 3) as usize].into(),
                amount => format!("{} #{amount}", EXTENSIONS[i.bits(13, 3) as usize]),
            },
            "nzcv" => format!("#{}", i.bits(0, 4)),
            "imm5" => format!("#{}", i.bits(16, 5)),
            "cond" => CONDITIONS[usize::from(i.condition())].into(),
            "prefetch" => format!("#{}", i.bits(0, 5)),
            "half" => "h".into(),
            "anysize" => SIZES[i.size()].into(),
            "lanes" | "short" | "floats" | "across" | "bytes" | "halves" | "float32" => {
                let lane = if name == "floats" { 2 + i.bits(22, 1) } else { i.bits(22, 2) };
                SIZES[lane as usize].into()
            }
            "elements" | "floate" | "floate1" => format!("[{}]", lane_of(i).1),
            "element" => format!("#{}", i.bits(16, 5)),
            "index" => format!("#{}", i.bits(11, 4)),
            "amount" | "amount1" | "amount3" | "amount64" | "fixed" | "fixed1" => {
                format!("#{}", i.bits(16, 7))
            }
            "modified0" | "modified1" | "modified2" => {
                format!("#{:#x}", modified_immediate(i).unwrap_or_default())
            }
            "list1" | "list2" | "list3" | "list4" => format!("{{v{}, x {}}}", i.rd(), &name[4..]),
            "zero" => "#0.0".into(),
            "float" if i.op == Op::FmovImmH => format!("#{:#x}", half_immediate(i.bits(13, 8))),
            "float" => {
                let bits = float_immediate(i.bits(13, 8), i.is_double());
                if i.is_double() {
                    format!("#{}", f64::from_bits(bits))
                } else {
                    format!("#{}", f32::from_bits(bits as u32))
                }
            }
            "fbits" => format!("#{}", 64 - i.bits(10, 6)),
            other => other.into(),
        }
    }
}
