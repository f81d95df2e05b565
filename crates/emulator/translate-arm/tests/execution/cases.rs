//! Random A64 instructions and register contents.

use longma_translate_arm::instruction::{Instruction, Op, decode};

use super::machine::{CONTROL, MIDDLE, POINTER, STATUS, WORDS};

/// A deterministic xorshift generator.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 20) % end
    }

    fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// The base register of accesses.
const BASE: u32 = 29;

/// Whether an instruction is a jump, or its result depends on the machine.
pub fn is_excluded(i: Instruction) -> bool {
    use Op::*;
    let name = i.mnemonic();
    i.text(0).to_string().contains("0x") && matches!(i.op, B | Bl | BCond | Cbz | Cbnz | Tbz | Tbnz)
        || matches!(
            i.op,
            Br | Blr
                | Ret
                | Svc
                | Brk
                | Hint
                | Mrs
                | Msr
                | IcIvau
                | DcCvac
                | DcCvap
                | DcCvau
                | DcCivac
                | DcZva
        )
        || ["stxr", "stlxr", "stxp", "stlxp"].iter().any(|start| name.starts_with(start))
}

pub fn is_memory(i: Instruction) -> bool {
    i.text(0).to_string().contains('[')
}

/// An instance of the pattern whose result is architecturally defined, and its index register if it has one.
pub fn instruction(matched: u32, mask: u32, random: &mut Random) -> Option<(Instruction, Option<u32>)> {
    let mut word = matched | random.next() as u32 & !mask;
    let mut index = None;
    let field = |word: &mut u32, at: u32, value: u32| *word = *word & !(31 << at) | value << at;
    let first = decode(word)?;
    if is_excluded(first) {
        return None;
    }
    if is_memory(first) {
        let text = first.text(0).to_string();
        field(&mut word, 5, if random.below(8) == 0 && !text.starts_with("ldx") { 31 } else { BASE });
        if word >> 24 & 3 == 0 && word >> 21 & 1 == 1 && word >> 10 & 3 == 2 && word >> 27 & 7 == 7 {
            let register = random.of(&[5, 17, 26, 12, 21]);
            field(&mut word, 16, register);
            index = Some(register);
        }
        if !is_predictable(word, mask, &text, index.is_some()) {
            return None;
        }
    } else {
        let is_of_vectors = word >> 25 & 15 == 15;
        for at in [0, 5, 10, 16] {
            let names_pointer = word >> at & 31 == POINTER;
            if names_pointer && mask >> at & 31 == 0 && !is_of_vectors {
                field(&mut word, at, random.below(30) as u32);
            }
        }
        if is_of_vectors && (word & 31 == POINTER || word >> 5 & 31 == POINTER) && word >> 10 & 63 == 0 {
            return None;
        }
    }
    let instruction = decode(word)?;
    // Literals are read from the test program itself.
    if word >> 27 & 7 == 3 && word >> 24 & 3 == 0 {
        let word = word & !(0x7ffff << 5) | (random.below(60) as u32) << 5;
        return Some((decode(word)?, None));
    }
    if instruction.op == Op::Adr || instruction.op == Op::Adrp {
        return (word & 31 != POINTER).then_some((instruction, None));
    }
    Some((instruction, index))
}

/// Whether an access is architecturally predictable: it does not load its base, and the two registers of a pair differ.
fn is_predictable(word: u32, mask: u32, text: &str, has_index: bool) -> bool {
    let starts = |names: &[&str]| names.iter().any(|name| text.starts_with(name));
    let is_vector = word >> 26 & 1 == 1;
    let steps = text.contains("], #") || text.contains("]!");
    let number = |at: u32| word >> at & 31;
    let bad = |register: u32| register == BASE || register == POINTER || steps && register == 31;
    let has_two = starts(&["ldp", "stp"]) || text.contains("xp ");
    let same = number(0) == number(10) && starts(&["ldp", "ldx", "ldax"]);
    let other = mask >> 16 & 31 == 0 && !has_index && bad(number(16)) && word >> 27 & 7 != 5;
    !same && (is_vector || !(bad(number(0)) || has_two && bad(number(10)) || other))
}

/// A random 64-bit number, often one that is common in programs.
pub fn number(random: &mut Random) -> u64 {
    let bits = random.next();
    match random.below(10) {
        0 => random.of(&[
            0,
            1,
            2,
            u64::MAX,
            1 << 63,
            i64::MAX as u64,
            1 << 31,
            0xffff_ffff,
            0x8000_0000_8000_0000,
        ]),
        1 => bits as i32 as i64 as u64,
        2 => bits & 0xffff_ffff,
        3 => bits & 0xff,
        4 => !(bits & 0xff),
        5 => u64::from(bits as u32) | 0xffff_0000_0000_0000,
        _ => bits >> random.below(60),
    }
}

fn double(random: &mut Random) -> u64 {
    match random.below(10) {
        0 => random
            .of(&[0.0, -0.0, 1.0, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE, f64::MAX])
            .to_bits(),
        1 => random.of(&[
            0x7ff8_0000_0000_1234,
            0xfff8_0000_0000_0001,
            0x7ff0_0000_0000_0001,
            0xfff4_5678_0000_0000,
            1,
            0x8000_0000_0000_0123,
        ]),
        2 => random.next(),
        3 => ((random.below(2000) as f64 - 1000.0) / 2.0).to_bits(),
        4 => ((random.next() as i64) as f64).to_bits(),
        _ => ((random.below(2_000_000) as f64 - 1e6) / 64.0).to_bits(),
    }
}

fn single(random: &mut Random) -> u32 {
    match random.below(10) {
        0 => random
            .of(&[0.0f32, -0.0, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE, f32::MAX])
            .to_bits(),
        1 => random.of(&[0x7fc0_1234, 0xffc0_0001, 0x7f80_0001, 0xffa5_0000, 1, 0x8000_0123]),
        2 => random.next() as u32,
        3 => ((random.below(2000) as f32 - 1000.0) / 2.0).to_bits(),
        4 => ((random.next() as i32) as f32).to_bits(),
        _ => ((random.below(200_000) as f32 - 1e5) / 16.0).to_bits(),
    }
}

fn half(random: &mut Random) -> u16 {
    match random.below(6) {
        0 => random.of(&[0, 0x8000, 0x3c00, 0x7c00, 0xfc00, 0x0400, 0x7bff]),
        1 => random.of(&[0x7e12, 0xfe01, 0x7c01, 0xfd00, 1, 0x8123]),
        2 | 3 => random.next() as u16,
        _ => (random.of(&[0x3000, 0x4000, 0x4800, 0xc800])) | random.below(0x800) as u16,
    }
}

/// Random registers. Vectors hold doubles, singles or halves.
pub fn state(random: &mut Random) -> [u64; WORDS] {
    let mut state = [0; WORDS];
    for (at, value) in state.iter_mut().enumerate() {
        *value = match at {
            29 | 30 => MIDDLE,
            31 => random.below(16) << 28,
            CONTROL | STATUS => 0,
            ..29 => number(random),
            _ if random.below(4) == 0 => (0..4).fold(0, |all, _| all << 16 | u64::from(half(random))),
            _ if random.below(2) == 0 => double(random),
            _ => u64::from(single(random)) | u64::from(single(random)) << 32,
        };
    }
    state
}

/// Makes an index register small, with random bits where the extension ignores them.
pub fn limit_index(state: &mut [u64; WORDS], register: u32, word: u32, random: &mut Random) {
    let value = random.below(0x200) as i64 - 0x100;
    state[register as usize] = match word >> 13 & 7 {
        2 => value.unsigned_abs() | random.next() << 32,
        6 => u64::from(value as u32) | random.next() << 32,
        _ => value as u64,
    };
}
