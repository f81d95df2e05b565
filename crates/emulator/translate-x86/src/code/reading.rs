//! Decodes instructions from words of code. Source: Intel SDM, volume 2, as encoded in iced-x86.

use std::cell::Cell;

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic};

use super::unit::PAGE;

/// The maximum length of an instruction in bytes.
pub(super) const MAX_INSTRUCTION_BYTES: usize = 15;

/// The number of cached words. Consecutive instructions share words.
const WORDS_KEPT: usize = 8;

/// Fetches words of code through a small cache.
pub(super) struct Words<'a> {
    fetch: &'a dyn Fn(u64) -> Option<u32>,
    words: [Cell<(u64, Option<u32>)>; WORDS_KEPT],
}

impl<'a> Words<'a> {
    pub fn new(fetch: &'a dyn Fn(u64) -> Option<u32>) -> Self {
        // An address that no word has.
        Self { fetch, words: [const { Cell::new((u64::MAX, None)) }; WORDS_KEPT] }
    }

    /// The word at an aligned address; `None` if it is not executable.
    pub fn word(&self, address: u64) -> Option<u32> {
        let slot = &self.words[(address / 4) as usize % WORDS_KEPT];
        if slot.get().0 != address {
            slot.set((address, (self.fetch)(address)));
        }
        slot.get().1
    }
}

/// Decodes the instruction at `pc`; `None` if its bytes are not executable.
pub(crate) fn decode_at(pc: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> Option<Instruction> {
    let mut bytes = [0; MAX_INSTRUCTION_BYTES.next_multiple_of(4) + 4];
    let mut count = 0;
    while count < MAX_INSTRUCTION_BYTES + 4 {
        let Some(word) = fetch((pc & !3).wrapping_add(count as u64)) else { break };
        bytes[count..count + 4].copy_from_slice(&word.to_le_bytes());
        count += 4;
    }
    let skipped = (pc & 3) as usize;
    let bytes = bytes[..count].get(skipped..)?;
    let bytes = &bytes[..bytes.len().min(MAX_INSTRUCTION_BYTES)];
    if bytes.is_empty() {
        return None;
    }
    let mut decoder = Decoder::with_ip(64, bytes, pc, DecoderOptions::NONE);
    let mut instruction = decoder.decode();
    if let Some(code) = shift_left(instruction.code()) {
        instruction.set_code(code);
    }
    // An instruction that extends into a non-executable page faults when it is reached.
    let is_cut =
        decoder.last_error() == iced_x86::DecoderError::NoMoreBytes && bytes.len() < MAX_INSTRUCTION_BYTES;
    if is_cut {
        return None;
    }
    if may_be_reserved(&instruction) {
        let reserved = Decoder::with_ip(64, bytes, pc, DecoderOptions::FORCE_RESERVED_NOP).decode();
        return Some(if reserved.mnemonic() == Mnemonic::Reservednop { reserved } else { instruction });
    }
    Some(instruction)
}

/// Whether an instruction may have one of the opcodes that processors without certain extensions execute as NOP, without
/// an access to their operand.
fn may_be_reserved(i: &Instruction) -> bool {
    use Mnemonic::*;
    i.is_invalid()
        || matches!(
            i.mnemonic(),
            Bndcl
                | Bndcn
                | Bndcu
                | Bndldx
                | Bndmk
                | Bndmov
                | Bndstx
                | Cldemote
                | Prefetch
                | Prefetchit0
                | Prefetchit1
                | Prefetchwt1
        )
}

/// The address of the first word that the instruction at `pc` needs but `fetch` cannot read.
pub(crate) fn missing_address(pc: u64, fetch: &dyn Fn(u64) -> Option<u32>) -> Option<u64> {
    if decode_at(pc, fetch).is_some() {
        return None;
    }
    let words = (0..=MAX_INSTRUCTION_BYTES as u64).step_by(4).map(|bytes| (pc & !3).wrapping_add(bytes));
    words.into_iter().find(|word| fetch(*word).is_none())
}

/// Adds the page of an address to a short list.
pub(super) fn note_page(pages: &mut Vec<u64>, address: u64) {
    let page = address / PAGE;
    if pages.last() != Some(&page) && !pages.contains(&page) {
        pages.push(page);
    }
}

/// SHL for SAL, which is another encoding of the same operation.
fn shift_left(code: Code) -> Option<Code> {
    use Code::*;
    Some(match code {
        Sal_rm8_imm8 => Shl_rm8_imm8,
        Sal_rm16_imm8 => Shl_rm16_imm8,
        Sal_rm32_imm8 => Shl_rm32_imm8,
        Sal_rm64_imm8 => Shl_rm64_imm8,
        Sal_rm8_1 => Shl_rm8_1,
        Sal_rm16_1 => Shl_rm16_1,
        Sal_rm32_1 => Shl_rm32_1,
        Sal_rm64_1 => Shl_rm64_1,
        Sal_rm8_CL => Shl_rm8_CL,
        Sal_rm16_CL => Shl_rm16_CL,
        Sal_rm32_CL => Shl_rm32_CL,
        Sal_rm64_CL => Shl_rm64_CL,
        _ => return None,
    })
}
