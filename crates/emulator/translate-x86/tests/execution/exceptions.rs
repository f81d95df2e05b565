//! The results of SSE and AVX instructions and the exception flags that they set, compared with the host's processor in
//! all rounding directions, with subnormal operands and results flushed to zero and not.

use iced_x86::{Code, Decoder, Encoder, Instruction};

use crate::host::Buffer;
use crate::instructions::{
    has_other_nans, instruction, is_compared, is_floating, is_not_comparable, same_but_for_nans,
};
use crate::machine::{DATA_BYTES, MIDDLE, SOURCE, translated};
use crate::random::Random;

/// All exception flags.
const FLAGS: u32 = 0x3f;
/// Subnormal operands count as zeros; tiny results become zeros.
const DAZ: u64 = 1 << 6;
const FTZ: u64 = 1 << 15;
/// The offset of MXCSR from RDI.
const CONTROL: u8 = 100;

/// Whether the flags of an instruction differ from the processor's by design: for fused instructions that add some
/// elements and subtract others, the translation computes both for all elements.
fn differs(i: &Instruction) -> bool {
    let name = format!("{:?}", i.mnemonic());
    name.starts_with("Vfmaddsub") || name.starts_with("Vfmsubadd")
}

/// Whether the result of an instruction is approximate.
fn has_other_results(i: &Instruction) -> bool {
    let name = format!("{:?}", i.mnemonic());
    ["rcp", "Rcp", "rsqrt", "Rsqrt"].iter().any(|part| name.contains(part))
}

/// The number in an environment variable.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A number of any class.
fn number(random: &mut Random) -> f64 {
    // The last ones are subnormal in single precision or nearly so.
    let special = [
        0.0,
        1.0,
        f64::INFINITY,
        f64::NAN,
        f64::MIN_POSITIVE,
        f64::MAX,
        5e-324,
        3e9,
        -0.5,
        1e19,
        1e-39,
        1.2e-38,
    ];
    match random.below(4) {
        0 => f64::from_bits(random.next()),
        1 => f64::from_bits(0x7ff0_0000_0000_0001),
        _ => special[random.below(12) as usize],
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
fn results_and_exceptions_of_vector_instructions_are_the_processors() {
    let (buffer, mut random) =
        (Buffer::new(), Random(0x9e37_79b9_7f4a_7c15 ^ setting("PROPTEST_RNG_SEED", 0)));
    let mut wrong = Vec::new();
    for code in Code::values().filter(|code| is_compared(*code)) {
        for _ in 0..setting("LONGMA_X86_CASES", 20) {
            let Some(i) = instruction(code, &mut random, 0) else { break };
            let mut encoder = Encoder::new(64);
            if encoder.encode(&i, SOURCE).is_err() {
                continue;
            }
            let bytes = encoder.take_buffer();
            let i = Decoder::with_ip(64, &bytes, SOURCE, 0).decode();
            if i.code() != code
                || !is_floating(&i)
                || is_not_comparable(&i)
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
            let flushes = [0, DAZ, FTZ, DAZ | FTZ][random.below(4) as usize];
            let control = 0x1f80 | random.below(4) << 13 | flushes;
            data[middle + usize::from(CONTROL)..][..4].copy_from_slice(&(control as u32).to_le_bytes());
            let mut initial = random.registers(is_double);
            initial.vectors = std::array::from_fn(|_| vector(&mut random, is_double));
            initial.uppers =
                std::array::from_fn(|n| if initial.wide != 0 { initial.vectors[n ^ 1] } else { 0 });
            initial.general[4] = 0;
            initial.general[7] = data.as_ptr() as u64 + MIDDLE;
            // ldmxcsr [rdi+CONTROL], the instruction, stmxcsr [rdi+CONTROL], ldmxcsr [rdi+CONTROL+4]
            data[middle + usize::from(CONTROL) + 4..][..4].copy_from_slice(&0x1f80u32.to_le_bytes());
            let program = [
                &[0x0f, 0xae, 0x57, CONTROL][..],
                &bytes,
                &[0x0f, 0xae, 0x5f, CONTROL, 0x0f, 0xae, 0x57, CONTROL + 4],
            ]
            .concat();
            let (mut native, mut emulated, mut our_data) = (initial, initial, data.to_vec());
            let at = data.as_ptr() as u64;
            let outcome = translated(&program, &mut emulated, at, &mut our_data, None);
            buffer.run(&program, &mut native);
            let flags = |data: &[u8]| {
                let bytes: [u8; 4] = std::array::from_fn(|n| data[middle + usize::from(CONTROL) + n]);
                u32::from_le_bytes(bytes) & FLAGS
            };
            if outcome.is_err() || flags(&our_data) != flags(data) {
                let (ours, natives) = (flags(&our_data), flags(data));
                wrong.push(format!("{i}: {outcome:?} {ours:x}, not {natives:x}, control {control:x}"));
            }
            let same = |a: u128, b: u128| a == b || has_other_nans(&i) && same_but_for_nans(a, b);
            let is_same = (0..16).all(|n| {
                same(native.vectors[n], emulated.vectors[n]) && same(native.uppers[n], emulated.uppers[n])
            });
            if !has_other_results(&i) && (!is_same || native.general[..4] != emulated.general[..4]) {
                wrong.push(format!(
                    "{i}: {:x?}, not {:x?}, control {control:x}",
                    emulated.vectors, native.vectors
                ));
            }
        }
    }
    let mut names: Vec<&str> = wrong.iter().map(|text| text.split(' ').next().unwrap_or_default()).collect();
    names.sort_unstable();
    names.dedup();
    let excerpt = wrong[..wrong.len().min(20)].join("\n");
    assert!(wrong.is_empty(), "{} wrong, in {names:?}:\n{excerpt}", wrong.len());
}
