//! Prints a register map as Markdown for the book and as a C header. Tests keep both up to date.

use super::{Block, Field, Register, RegisterMap};
use std::fmt::Write;

/// The width of registers whose rows do not state a width, bytes.
const COMMON_WIDTH: u32 = 8;

impl RegisterMap {
    /// The tables for the book: one per block, and one per register with fields.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "A window of {:#x} bytes. Registers have {COMMON_WIDTH} bytes and are 0 after reset, unless stated otherwise.\n\n",
            self.bytes
        );
        for block in self.blocks {
            block_markdown(&mut text, block);
        }
        text
    }

    /// The C definitions: an offset per register, a shift and a mask per field. Names begin with the device's name.
    pub fn c_header(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "#define {}_BYTES {:#x}", self.name, self.bytes);
        for block in self.blocks {
            let prefix = joined(self.name, block.prefix);
            let _ = writeln!(text, "\n/* {} */", block.title);
            if block.count > 1 {
                let _ = writeln!(
                    text,
                    "#define {prefix}(n) ({:#x} + {:#x} * (n)) /* n < {} */",
                    block.base, block.stride, block.count
                );
            }
            for register in block.registers {
                let at = if block.count > 1 { register.offset } else { block.base + register.offset };
                let _ = writeln!(text, "#define {prefix}_{} {at:#x}", register.name);
                for field in register.fields {
                    field_definition(&mut text, &format!("{prefix}_{}", register.name), field);
                }
            }
        }
        text
    }
}

fn field_definition(text: &mut String, register: &str, field: &Field) {
    if field.bits == 1 {
        let _ = writeln!(text, "#define {register}_{} (1ull << {})", field.name, field.low);
    } else {
        let name = field.name;
        let _ = writeln!(text, "#define {register}_{name}_SHIFT {}", field.low);
        let _ = writeln!(text, "#define {register}_{name}_MASK {:#x}ull", field.mask());
    }
}

fn joined(device: &str, block: &str) -> String {
    if block.is_empty() { device.into() } else { format!("{device}_{block}") }
}

fn block_markdown(text: &mut String, block: &Block) {
    let _ = write!(text, "### {}\n\n", block.title);
    if block.count > 1 {
        let _ = write!(
            text,
            "{} copies from {:#x} on, {:#x} bytes apart; offsets are relative to the start of a copy.\n\n",
            block.count, block.base, block.stride
        );
    }
    if let [first, ..] = block.registers
        && block.registers.iter().all(|register| register.about.trim().starts_with("Same as"))
    {
        let names: Vec<String> =
            block.registers.iter().map(|register| format!("`{}`", register.name)).collect();
        let _ = write!(
            text,
            "From offset {:#x} on, each contains the registers with the same names as above, in this order: {}.\n\n",
            first.offset,
            names.join(", ")
        );
        return;
    }
    text.push_str("| offset | register | access | description |\n| --- | --- | --- | --- |\n");
    for register in block.registers {
        let at = if block.count > 1 { register.offset } else { block.base + register.offset };
        let Register { name, width, access, reset, about, .. } = register;
        let _ = write!(text, "| {at:#x} | `{name}` | {} | {}", access.short(), about.trim());
        if *width != COMMON_WIDTH {
            let _ = write!(text, " {width} bytes.");
        }
        if *reset != 0 {
            let _ = write!(text, " Reset value: {reset:#x}.");
        }
        text.push_str(" |\n");
    }
    text.push('\n');
    let with_fields: Vec<&Register> = block.registers.iter().filter(|r| !r.fields.is_empty()).collect();
    for alike in with_fields.chunk_by(|a, b| rows(a) == rows(b)) {
        let names: Vec<String> = alike.iter().map(|register| format!("`{}`", register.name)).collect();
        let _ =
            write!(text, "{}\n\n| bits | field | description |\n| --- | --- | --- |\n", names.join(" and "));
        text.extend(alike.first().map(|register| rows(register)));
        text.push('\n');
    }
}

/// The rows of a register's table of fields.
fn rows(register: &Register) -> String {
    let mut text = String::new();
    for Field { name, low, bits, about } in register.fields {
        let high = low + bits - 1;
        let range = if *bits == 1 { low.to_string() } else { format!("{high}:{low}") };
        let _ = writeln!(text, "| {range} | `{name}` | {about} |");
    }
    text
}
