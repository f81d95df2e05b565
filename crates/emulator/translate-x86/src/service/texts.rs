//! The string comparisons of SSE4.2. Source: Intel SDM, volume 1, section 12.10 (SSE4.2 string and text processing);
//! volume 2, section 4.1.

use iced_x86::Mnemonic;

use super::{AF, CF, Done, Machine, OF, PF, SF, ZF};
use crate::code::old;
use crate::registers::*;

/// An operand string: its elements and its length.
struct Text {
    elements: Vec<i64>,
    length: usize,
}

impl Text {
    fn of(bytes: &[u8], order: u8, length: Option<u64>) -> Self {
        let size = if order & 1 != 0 { 2 } else { 1 };
        let elements: Vec<i64> = bytes[..16]
            .chunks(size)
            .map(|chunk| match (chunk, order & 2 != 0) {
                ([byte], true) => (*byte as i8).into(),
                ([byte], false) => (*byte).into(),
                ([low, high], true) => i16::from_le_bytes([*low, *high]).into(),
                ([low, high], false) => u16::from_le_bytes([*low, *high]).into(),
                _ => 0,
            })
            .collect();
        let ends = || elements.iter().position(|element| *element == 0).unwrap_or(elements.len());
        let length = length.map_or_else(ends, |length| length.min(elements.len() as u64) as usize);
        Self { elements, length }
    }

    fn get(&self, at: usize) -> Option<i64> {
        self.elements[..self.length].get(at).copied()
    }
}

/// A mask of the elements of `text` that match `set`, with the aggregation in bits 2 and 3 of the immediate.
fn matches(set: &Text, text: &Text, order: u8) -> u32 {
    let count = text.elements.len();
    let matches_at = |at: usize| match order >> 2 & 3 {
        0 => text.get(at).is_some_and(|element| (0..set.length).any(|n| set.get(n) == Some(element))),
        1 => text.get(at).is_some_and(|element| {
            let in_range = |n: usize| match (set.get(n), set.get(n + 1)) {
                (Some(low), Some(high)) => low <= element && element <= high,
                _ => false,
            };
            (0..count).step_by(2).any(in_range)
        }),
        2 => set.get(at) == text.get(at),
        _ => (0..count - at).all(|n| set.get(n).is_none_or(|wanted| text.get(at + n) == Some(wanted))),
    };
    (0..count).filter(|at| matches_at(*at)).fold(0, |mask, at| mask | 1 << at)
}

impl Machine<'_> {
    /// The explicit length in a register of 32 or 64 bits.
    fn explicit_length(&self, register: u8, is_wide: bool) -> u64 {
        let value = self.state.r(register);
        if is_wide { (value as i64).unsigned_abs() } else { (value as i32).unsigned_abs().into() }
    }

    /// PCMPESTRI, PCMPESTRM, PCMPISTRI and PCMPISTRM.
    pub(super) fn compare_strings(&mut self) -> Done {
        use Mnemonic::*;
        let i = self.instruction;
        let order = i.immediate8();
        let is_explicit = matches!(old(&i), Pcmpestri | Pcmpestri64 | Pcmpestrm | Pcmpestrm64);
        let is_wide = matches!(old(&i), Pcmpestri64 | Pcmpestrm64);
        let length = |register| is_explicit.then(|| self.explicit_length(register, is_wide));
        let set = Text::of(&self.vector_in(0)?, order, length(RAX));
        let text = Text::of(&self.vector_in(1)?, order, length(RDX));
        let count = text.elements.len();
        let mut match_mask = matches(&set, &text, order);
        match_mask ^= match order >> 4 & 3 {
            1 => (1 << count) - 1,
            3 => (1 << text.length) - 1,
            _ => 0,
        };
        if matches!(old(&i), Pcmpestrm | Pcmpestrm64 | Pcmpistrm) {
            self.put_mask(match_mask, count, order & 0x40 != 0);
        } else {
            let at = match (match_mask, order & 0x40 != 0) {
                (0, _) => count as u32,
                (_, false) => match_mask.trailing_zeros(),
                (_, true) => 31 - match_mask.leading_zeros(),
            };
            self.state.set_r(RCX, at.into());
        }
        for (flag, value) in [
            (CF, match_mask != 0),
            (ZF, text.length < count),
            (SF, set.length < count),
            (OF, match_mask & 1 != 0),
            (AF, false),
            (PF, false),
        ] {
            self.set_flag(flag, value);
        }
        Ok(())
    }

    /// Writes a bit mask or an element mask to XMM0.
    fn put_mask(&mut self, matches: u32, count: usize, of_elements: bool) {
        let mut mask = [0; 32];
        if of_elements {
            let size = 16 / count;
            for at in (0..count).filter(|at| matches >> at & 1 != 0) {
                mask[at * size..][..size].fill(0xff);
            }
        } else {
            mask[..4].copy_from_slice(&matches.to_le_bytes());
        }
        self.vector_out(iced_x86::Register::XMM0, &mask);
    }
}
