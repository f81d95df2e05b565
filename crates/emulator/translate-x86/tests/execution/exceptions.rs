//! The exception flags of MXCSR that SSE and AVX instructions set, compared with the host's processor in all rounding
//! directions. The denormal flag, which LoongArch lacks, is left out.

use iced_x86::{Code, Decoder, Encoder, Instruction, Mnemonic};

use crate::host::Buffer;
use crate::instructions::{instruction, is_apart, is_compared, is_floating};
use crate::machine::{DATA_BYTES, MIDDLE, SOURCE, translated};
use crate::random::Random;

/// Invalid, divide by zero, overflow, underflow and inexact.
const FLAGS: u32 = 0x3d;
/// The offset of MXCSR from RDI.
const CONTROL: u8 = 100;

/// Whether the flags of an instruction differ from the processor's by design: ROUNDPD and similar instructions record
/// inexact results even with bit 3 set, and dot products and conversions of half precision record nothing.
fn differs(i: &Instruction) -> bool {
    use Mnemonic::*;
    let name = format!("{:?}", i.mnemonic());
    let rounds = name.contains("ound") && i.immediate8() & 8 != 0;
    // Comparisons that always hold, and fused operations of infinity, zero and a NaN.
    let others = name.starts_with("Vfm") || name.starts_with("Vfnm");
    let predicate = name.contains("cmp") && i.immediate8() & 15 == 15;
    rounds
        || others
        || predicate
        || name.contains("Dpp")
        || name.contains("dpp")
        || matches!(i.mnemonic(), Vcvtph2ps | Vcvtps2ph)
}

/// A number of any class.
fn number(random: &mut Random) -> f64 {
    let special = [0.0, 1.0, f64::INFINITY, f64::NAN, f64::MIN_POSITIVE, f64::MAX, 5e-324, 3e9, -0.5, 1e19];
    match random.below(4) {
        0 => f64::from_bits(random.next()),
        1 => f64::from_bits(0x7ff0_0000_0000_0001),
        _ => special[random.below(10) as usize],
    }
}

fn vector(random: &mut Random, is_double: bool) -> u128 {
    let lanes = if is_double { 2 } else { 4 };
    (0..lanes).fold(0, |all, _| {
        let value = number(random);
        let bits = if is_double { value.to_bits() } else { (value as f32).to_bits().into() };
        all << (128 / lanes) | u128::from(bits)
    })
}

#[test]
fn exceptions_of_vector_instructions_are_the_processors() {
    let (buffer, mut random) = (Buffer::new(), Random(0x9e37_79b9_7f4a_7c15));
    let mut wrong = Vec::new();
    for code in Code::values().filter(|code| is_compared(*code)) {
        for _ in 0..20 {
            let Some(i) = instruction(code, &mut random, 0) else { break };
            let mut encoder = Encoder::new(64);
            if encoder.encode(&i, SOURCE).is_err() {
                continue;
            }
            let bytes = encoder.take_buffer();
            let i = Decoder::with_ip(64, &bytes, SOURCE, 0).decode();
            if i.code() != code
                || !is_floating(&i)
                || is_apart(&i)
                || differs(&i)
                || i.is_string_instruction()
                || i.is_vsib()
            {
                continue;
            }
            let is_double = format!("{:?}", i.mnemonic()).contains('d');
            let mut buffer_of_data = vec![0u8; DATA_BYTES + 32];
            let skip = buffer_of_data.as_ptr().align_offset(32);
            let data = &mut buffer_of_data[skip..skip + DATA_BYTES];
            let middle = MIDDLE as usize;
            for at in [0, 16] {
                data[middle + at..][..16].copy_from_slice(&vector(&mut random, is_double).to_le_bytes());
            }
            let control = 0x1f80 | random.below(4) << 13;
            data[middle + usize::from(CONTROL)..][..4].copy_from_slice(&(control as u32).to_le_bytes());
            let mut before = random.registers(is_double);
            before.vectors = std::array::from_fn(|_| vector(&mut random, is_double));
            before.uppers = std::array::from_fn(|n| if before.wide != 0 { before.vectors[n ^ 1] } else { 0 });
            before.general[4] = 0;
            before.general[7] = data.as_ptr() as u64 + MIDDLE;
            // ldmxcsr [rdi+CONTROL], the instruction, stmxcsr [rdi+CONTROL], ldmxcsr [rdi+CONTROL+4]
            data[middle + usize::from(CONTROL) + 4..][..4].copy_from_slice(&0x1f80u32.to_le_bytes());
            let program = [
                &[0x0f, 0xae, 0x57, CONTROL][..],
                &bytes,
                &[0x0f, 0xae, 0x5f, CONTROL, 0x0f, 0xae, 0x57, CONTROL + 4],
            ]
            .concat();
            let (mut native, mut ours, mut our_data) = (before, before, data.to_vec());
            let at = data.as_ptr() as u64;
            let outcome = translated(&program, &mut ours, at, &mut our_data, None);
            buffer.run(&program, &mut native);
            let flags = |data: &[u8]| {
                let bytes: [u8; 4] = std::array::from_fn(|n| data[middle + usize::from(CONTROL) + n]);
                u32::from_le_bytes(bytes) & FLAGS
            };
            if outcome.is_err() || flags(&our_data) != flags(data) {
                let (ours, natives) = (flags(&our_data), flags(data));
                wrong.push(format!("{i}: {outcome:?} {ours:x}, not {natives:x}, control {control:x}"));
            }
        }
    }
    let mut names: Vec<&str> = wrong.iter().map(|text| text.split(' ').next().unwrap_or_default()).collect();
    names.sort_unstable();
    names.dedup();
    let shown = wrong[..wrong.len().min(20)].join("\n");
    assert!(wrong.is_empty(), "{} wrong, in {names:?}:\n{shown}", wrong.len());
}
