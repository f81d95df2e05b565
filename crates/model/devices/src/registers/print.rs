//! A register map as the book's Markdown and as a C header.
//! Not the chapter or the header themselves: tests keep those in step with what is printed here.

use super::{Block, Field, Register, RegisterMap};
use std::fmt::Write;

impl RegisterMap {
    /// The book's tables: one a block, and one a register that has fields.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        for block in self.blocks {
            block_markdown(&mut text, block);
        }
        text
    }

    /// Definitions for C: an offset a register, a shift and a mask a field. Names begin with the device's.
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
            "{} times, from {:#x} on, {:#x} bytes apart; offsets are from a copy's start.\n\n",
            block.count, block.base, block.stride
        );
    }
    text.push_str("| offset | bytes | register | access | reset | what it is |\n| --- | --- | --- | --- | --- | --- |\n");
    for register in block.registers {
        let at = if block.count > 1 { register.offset } else { block.base + register.offset };
        let Register { name, width, access, reset, about, .. } = register;
        let _ = writeln!(
            text,
            "| {at:#x} | {width} | `{name}` | {} | {reset:#x} | {} |",
            access.short(),
            about.trim()
        );
    }
    text.push('\n');
    for register in block.registers.iter().filter(|r| !r.fields.is_empty()) {
        let _ = write!(text, "`{}`\n\n| bits | field | what it is |\n| --- | --- | --- |\n", register.name);
        for Field { name, low, bits, about } in register.fields {
            let high = low + bits - 1;
            let range = if *bits == 1 { low.to_string() } else { format!("{high}:{low}") };
            let _ = writeln!(text, "| {range} | `{name}` | {about} |");
        }
        text.push('\n');
    }
}
