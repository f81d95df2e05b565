//! Formats host code as text, with labels and names instead of addresses and without padding.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{
    Decoder, DecoderOptions, Formatter, FormatterOperandOptions, FormatterOptionsProvider,
    Instruction as Host, IntelFormatter, MemorySizeOptions, Mnemonic, NumberFormattingOptions, OpKind,
    Register, SymbolResolver, SymbolResult,
};
use longma_core::{HostCode, field_name};

/// Decoded host code.
pub struct Text {
    /// In address order, including padding.
    pub code: Vec<Host>,
    /// `(host address, guest address)` of each piece, as [`HostCode::positions`] has them.
    pub pieces: Vec<(u64, u64)>,
    pub names: BTreeMap<u64, String>,
}

impl Text {
    pub fn of(host: &HostCode) -> Self {
        let decoder = Decoder::with_ip(64, &host.bytes, host.start, DecoderOptions::NONE);
        let code: Vec<Host> = decoder.into_iter().collect();
        assert!(code.iter().all(|i| !i.is_invalid()), "what is emitted is code");
        let pieces = host.positions.iter().map(|(position, pc)| (host.start + u64::from(*position), *pc));
        Self { code, pieces: pieces.collect(), names: host.names.clone() }
    }

    /// The instructions in a range of host addresses, without padding.
    pub fn range(&self, start: u64, end: u64) -> Vec<Host> {
        let inside = self.code.iter().filter(|i| (start..end).contains(&i.ip()) && !is_padding(i));
        inside.copied().collect()
    }

    /// The end of the blocks.
    pub fn end_of_blocks(&self) -> u64 {
        self.pieces.last().map_or(0, |piece| piece.0)
    }

    /// The code from `start` to the first unconditional jump.
    pub fn straight(&self, start: u64) -> Vec<Host> {
        let from = self.code.partition_point(|i| i.ip() < start);
        let length = self.code[from..].iter().position(|i| i.mnemonic() == Mnemonic::Jmp).unwrap_or(0);
        self.code[from..=from + length].iter().filter(|i| !is_padding(i)).copied().collect()
    }

    /// The address with this name.
    pub fn named(&self, name: &str) -> u64 {
        self.names.iter().find(|(_, named)| *named == name).map_or(0, |(address, _)| *address)
    }

    /// Assigns numbered labels to jump targets of `code` that have no name.
    pub fn add_labels(&mut self, code: &[Host]) {
        let targets: BTreeSet<u64> =
            code.iter().filter_map(target).filter(|to| !self.names.contains_key(to)).collect();
        for (number, target) in (1..).zip(targets) {
            self.names.insert(target, format!(".{number}"));
        }
    }

    /// Formats `code`, with labels before the instructions that they name.
    pub fn lines(&self, code: &[Host]) -> String {
        let mut formatter = formatter(Names(self.names.clone()));
        let mut text = String::new();
        for instruction in code {
            if let Some(name) = self.names.get(&instruction.ip()) {
                text += &format!("  {name}:\n");
            }
            let mut line = String::new();
            formatter.format(instruction, &mut line);
            text += &format!("    {line}\n");
        }
        text
    }
}

/// Whether the instruction pads a patchable call or jump to one quadword.
fn is_padding(instruction: &Host) -> bool {
    instruction.mnemonic() == Mnemonic::Nop
}

/// The target of a direct jump or call.
pub fn target(instruction: &Host) -> Option<u64> {
    (instruction.op0_kind() == OpKind::NearBranch64).then(|| instruction.near_branch_target())
}

fn formatter(names: Names) -> IntelFormatter {
    let mut formatter = IntelFormatter::with_options(Some(Box::new(names)), Some(Box::new(Signs)));
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_small_hex_numbers_in_decimal(true);
    options.set_branch_leading_zeros(false);
    options.set_space_after_operand_separator(true);
    options.set_show_branch_size(false);
    options.set_memory_size_options(MemorySizeOptions::Minimal);
    formatter
}

/// Shows immediates as signed if the processor sign-extends them; others are bit patterns.
struct Signs;

impl FormatterOptionsProvider for Signs {
    fn operand_options(
        &mut self,
        instruction: &Host,
        _operand: u32,
        instruction_operand: Option<u32>,
        _options: &mut FormatterOperandOptions,
        number_options: &mut NumberFormattingOptions<'_>,
    ) {
        let kind = instruction_operand.map(|operand| instruction.op_kind(operand));
        let is_extended =
            matches!(kind, Some(OpKind::Immediate8to32 | OpKind::Immediate8to64 | OpKind::Immediate32to64));
        number_options.signed_number |= is_extended;
    }
}

struct Names(BTreeMap<u64, String>);

impl SymbolResolver for Names {
    fn symbol(
        &mut self,
        instruction: &Host,
        _operand: u32,
        instruction_operand: Option<u32>,
        address: u64,
        _address_size: u32,
    ) -> Option<SymbolResult<'_>> {
        let name = match instruction.op_kind(instruction_operand?) {
            OpKind::NearBranch64 | OpKind::Immediate64 => self.0.get(&address)?.clone(),
            OpKind::Memory if instruction.memory_base() == Register::RBP => {
                field_name(address as i64).unwrap_or_else(|| panic!("{address:#x} from rbp has no name"))
            }
            _ => return None,
        };
        Some(SymbolResult::with_string(address, name))
    }
}
