//! The registers of a core: those of a program, with GDB's numbers, and the CSRs after them under the manual's names.

use std::fmt::Write;
use std::sync::OnceLock;

use longma_core::system::Frame;
use longma_gdb::loongarch::{self, Kind};
use longma_translate::debug::{Value, of_word, words};

use crate::core::Core;
use crate::csr::table::{self as csr, ROWS};

/// The number of the registers that precede the CSRs.
fn program_registers() -> usize {
    loongarch::description().registers().count()
}

/// The target description.
pub fn description() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let mut text = loongarch::description().xml();
        text.truncate(text.rfind("</target>").unwrap_or(text.len()));
        text.push_str("<feature name=\"org.longma.loongarch.csr\">");
        for (number, row) in (program_registers()..).zip(ROWS) {
            let name = row.name;
            let _ = write!(
                text,
                "<reg name=\"{name}\" bitsize=\"64\" regnum=\"{number}\" type=\"uint64\" group=\"system\"/>"
            );
        }
        text + "</feature></target>"
    })
}

/// The value and size of a register; `None` if it does not exist.
pub fn read(frame: &Frame, core: &Core, number: usize) -> Option<(Value, usize)> {
    let state = &frame.state;
    match loongarch::description().register(number) {
        Some(register) if register.kind == Kind::BadAddress => {
            Some((of_word(core.csr_value(state, csr::BADV)), register.bytes))
        }
        Some(register) => Some((loongarch::read(register, state), register.bytes)),
        None => {
            let row = ROWS.get(number - program_registers())?;
            Some((of_word(core.csr_value(state, row.number)), 8))
        }
    }
}

/// Sets a register. Returns false if it does not exist or cannot hold the value.
pub fn write(frame: &mut Frame, core: &Core, number: usize, bytes: &[u8]) -> bool {
    let mut value = Value::default();
    let Some(content) = value.get_mut(..bytes.len()) else { return false };
    content.copy_from_slice(bytes);
    match loongarch::description().register(number) {
        Some(register) if register.bytes == bytes.len() => {
            loongarch::write(register, &value, &mut frame.state);
            true
        }
        Some(_) => false,
        None => {
            let row = ROWS.get(number - program_registers()).filter(|_| bytes.len() == 8);
            row.inspect(|row| core.set_csr(&mut frame.state, row.number, words(&value)[0])).is_some()
        }
    }
}
