//! The symbols that a Linux kernel contains for its own messages (CONFIG_KALLSYMS), so that a profile needs no other
//! file. Source: Linux, scripts/kallsyms.c (compression by tokens, order of the tables, offsets from their own
//! position) and kernel/kallsyms.c.

use longma_system::Memory;
use longma_system::boot::Image;
use serde::{Deserialize, Serialize};

use crate::symbols::{CodeRange, KernelSymbols, SymbolsError};

/// Tokens of the compression.
const TOKENS: usize = 256;
/// There is a marker for each 256 names.
const NAMES_PER_MARKER: usize = 256;
/// The alignment of the tables.
const ALIGNMENT: usize = 4;
/// The maximum length of a token in bytes.
const MAX_TOKEN_BYTES: u16 = 64;
/// The maximum number of markers, enough for a million names.
const MAX_MARKERS: usize = 4096;
/// The maximum size of 256 names in bytes.
const NAMES_BYTES: usize = 256 * 512;
/// The alignment at which a kernel relocates itself. Source: Linux, arch/loongarch/kernel/relocate.c.
const MOVE_ALIGNMENT: usize = 0x1_0000;
/// The virtual address of physical address 0 in the kernel's window of cached memory. Source: Linux,
/// arch/loongarch/include/asm/addrspace.h.
const WINDOW: u64 = 0x9000_0000_0000_0000;

/// The symbols of a kernel image, and a signature to find the address to which the kernel has relocated itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSymbols {
    /// The physical address at which the image is loaded.
    start: u64,
    /// Offsets from `start` and names.
    functions: Vec<(u64, String)>,
    /// A position-independent part of the image, and its offset.
    signature: (usize, Vec<u8>),
}

impl ImageSymbols {
    /// The symbols inside a kernel image; `None` if it has none or their format is unknown.
    pub fn of(image: &Image) -> Option<Self> {
        image.parts.iter().find_map(|(start, bytes)| Self::of_part(*start, bytes))
    }

    fn of_part(start: u64, bytes: &[u8]) -> Option<Self> {
        let tables = Tables::find(bytes)?;
        let functions = tables.functions()?;
        let signature = bytes.get(tables.index..tables.index + 2 * TOKENS)?.to_vec();
        Some(Self { start, functions, signature: (tables.index, signature) })
    }

    /// The symbols at the addresses at which the kernel runs in `memory`. A kernel that has relocated itself has left a
    /// copy at the address where it was loaded.
    ///
    /// # Errors
    /// The image has no functions.
    pub fn in_memory(&self, memory: &Memory) -> Result<KernelSymbols, SymbolsError> {
        let start = self.moved(memory).unwrap_or(self.start);
        let places = self.functions.iter().map(|(offset, name)| CodeRange {
            start: WINDOW.wrapping_add(start).wrapping_add(*offset),
            function: name.clone(),
            object: "kernel".into(),
        });
        KernelSymbols::of(places.collect())
    }

    /// The address to which the kernel has relocated itself; `None` if it runs where it was loaded.
    fn moved(&self, memory: &Memory) -> Option<u64> {
        let (offset, signature) = &self.signature;
        let is_here = |start: &u64| {
            let mut bytes = vec![0; signature.len()];
            memory.read(start.saturating_add(*offset as u64), &mut bytes).is_ok() && bytes == *signature
        };
        let misaligned = self.start % MOVE_ALIGNMENT as u64;
        let starts = memory.ranges().iter().flat_map(|(start, length)| {
            (*start..start + length).step_by(MOVE_ALIGNMENT).map(move |at| at + misaligned)
        });
        starts.filter(|start| *start != self.start).find(is_here)
    }
}

/// The offsets of the tables in a kernel image.
struct Tables<'a> {
    bytes: &'a [u8],
    /// The offset of the number of names.
    names: usize,
    count: usize,
    /// The text of the tokens.
    tokens: usize,
    /// The offset of each token.
    index: usize,
}

impl<'a> Tables<'a> {
    fn find(bytes: &'a [u8]) -> Option<Self> {
        let mut at = 0;
        while at + 2 * TOKENS <= bytes.len() {
            if is_index(bytes, at)
                && let Some(tokens) = tokens_before(bytes, at)
                && let Some((names, count)) = names_before(bytes, tokens)
            {
                return Some(Self { bytes, names, count, tokens, index: at });
            }
            at += ALIGNMENT;
        }
        None
    }

    /// Offsets from the start of the image, and names, of all symbols of code.
    fn functions(&self) -> Option<Vec<(u64, String)>> {
        let (mut at, mut functions, mut last) = (self.names, Vec::new(), 0);
        for number in 0..self.count {
            let (name, next) = self.name(at)?;
            at = next;
            let entry = self.index + 2 * TOKENS + 4 * number;
            let start = (entry as u64).wrapping_add(word(self.bytes, entry)? as i32 as u64);
            if start < last {
                // Symbols are sorted by address, so this is not a symbol table.
                return None;
            }
            if start > self.bytes.len() as u64 {
                // Symbols beyond the image, such as the end of BSS.
                break;
            }
            last = start;
            let is_code = name.starts_with(['T', 't', 'W', 'w']);
            if is_code && name.len() > 1 && !name[1..].starts_with(".L") {
                functions.push((start, name[1..].to_string()));
            }
        }
        Some(functions).filter(|functions| !functions.is_empty())
    }

    /// The type and name at an offset, and the offset of the next one.
    fn name(&self, at: usize) -> Option<(String, usize)> {
        let (length, start) = length_at(self.bytes, at)?;
        let mut name = Vec::new();
        for token in self.bytes.get(start..start + length)? {
            let offset = self.tokens + usize::from(half(self.bytes, self.index + 2 * usize::from(*token))?);
            name.extend(self.bytes.get(offset..)?.iter().take_while(|byte| **byte != 0));
        }
        Some((String::from_utf8(name).ok()?, start + length))
    }
}

/// The length of the name at an offset, and the offset of its first token.
fn length_at(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let first = usize::from(*bytes.get(at)?);
    match first & 0x80 {
        0 => Some((first, at + 1)),
        _ => Some((first & 0x7f | usize::from(*bytes.get(at + 1)?) << 7, at + 2)),
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Whether a token index may begin here: its offsets start at 0 and increase by the length of a token.
fn is_index(bytes: &[u8], at: usize) -> bool {
    let offset = |number: usize| half(bytes, at + 2 * number).unwrap_or(0);
    offset(0) == 0
        && (1..TOKENS).all(|number| {
            let step = offset(number).wrapping_sub(offset(number - 1));
            (2..=MAX_TOKEN_BYTES).contains(&step)
        })
}

/// The text of the tokens whose offsets are at `index`.
fn tokens_before(bytes: &[u8], index: usize) -> Option<usize> {
    let offset = |number: usize| half(bytes, index + 2 * number).map_or(0, usize::from);
    let highest = index.checked_sub(offset(TOKENS - 1) + 2)? / ALIGNMENT * ALIGNMENT;
    let lowest = highest.saturating_sub(usize::from(MAX_TOKEN_BYTES) + ALIGNMENT);
    (lowest..=highest)
        .rev()
        .step_by(ALIGNMENT)
        .find(|start| (1..TOKENS).all(|number| bytes.get(start + offset(number) - 1) == Some(&0)))
}

/// The offset of the first name and the number of names. The markers of the names end at `tokens`.
fn names_before(bytes: &[u8], tokens: usize) -> Option<(usize, usize)> {
    let (mut markers, mut first) = (1, tokens.checked_sub(4)?);
    let last = word(bytes, first)? as usize;
    while word(bytes, first)? != 0 {
        let before = first.checked_sub(4)?;
        if markers >= MAX_MARKERS || word(bytes, before)? >= word(bytes, first)? {
            return None;
        }
        (markers, first) = (markers + 1, before);
    }
    let second = word(bytes, first + 4)? as usize;
    let highest = first.checked_sub(last + 1)? / ALIGNMENT * ALIGNMENT;
    let counts = (markers - 1) * NAMES_PER_MARKER + 1..=markers * NAMES_PER_MARKER;
    let lowest = highest.saturating_sub(NAMES_BYTES).max(ALIGNMENT);
    (lowest..=highest).rev().step_by(ALIGNMENT).find_map(|start| {
        let count = [4, 8].into_iter().find_map(|behind| {
            let count = word(bytes, start.checked_sub(behind)?)? as usize;
            counts.contains(&count).then_some(count)
        })?;
        let mut at = start;
        for _ in 0..NAMES_PER_MARKER.min(count) {
            let (length, next) = length_at(bytes, at)?;
            at = next + length;
        }
        let is_end = match markers {
            // All names have been read: the markers follow.
            1 => at <= first && first - at < 2 * ALIGNMENT,
            _ => at == start + second,
        };
        is_end.then_some((start, count))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An image with these functions at multiples of 16, in the form that the kernel's build makes: each byte is a
    /// token, except that token 1 is `T`.
    fn image(names: &[String]) -> Vec<u8> {
        let mut bytes = vec![0; 16 * names.len()];
        bytes.extend((names.len() as u32).to_le_bytes());
        let (first, mut markers) = (bytes.len(), Vec::new());
        for (number, name) in names.iter().enumerate() {
            if number % NAMES_PER_MARKER == 0 {
                markers.extend(((bytes.len() - first) as u32).to_le_bytes());
            }
            bytes.push(name.len() as u8 + 1);
            bytes.push(1);
            bytes.extend(name.bytes());
        }
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(markers);
        let (tokens, mut offsets) = (bytes.len(), Vec::new());
        for token in 0..=255u8 {
            offsets.extend(((bytes.len() - tokens) as u16).to_le_bytes());
            bytes.extend([if token == 1 { b'T' } else { token.max(1) }, 0]);
        }
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(offsets);
        for number in 0..names.len() {
            let offset = (16 * number) as i32 - bytes.len() as i32;
            bytes.extend(offset.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn functions_are_found_in_an_image() {
        for count in [1, 256, 257, 1000] {
            let names: Vec<_> = (0..count).map(|number| format!("function_{number}")).collect();
            let symbols = ImageSymbols::of_part(0x20_0000, &image(&names)).unwrap();
            let expected = names.iter().enumerate().map(|(number, name)| (16 * number as u64, name.clone()));
            assert_eq!(symbols.functions, expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_image_without_symbols_has_none() {
        assert!(ImageSymbols::of_part(0, &vec![0; 1 << 16]).is_none());
        assert!(ImageSymbols::of_part(0, &[]).is_none());
    }

    proptest! {
        #[test]
        fn damaged_images_do_not_panic(changes in prop::collection::vec((0usize..12_000, any::<u8>()), 1..20)) {
            let names: Vec<_> = (0..300).map(|number| format!("f{number}")).collect();
            let mut bytes = image(&names);
            for (at, value) in changes {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            let _ = ImageSymbols::of_part(0, &bytes);
        }
    }
}
