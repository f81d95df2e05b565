//! x87 instructions, which the engine executes: results, condition codes and exception flags for all rounding
//! directions and precisions.

use crate::host::Buffer;
use crate::machine::{DATA_BYTES, translated};
use crate::random::Random;

/// C0, C1, C2 and C3 of the status word.
const CONDITIONS: u64 = 0x4700;

/// Name and bytes of an instruction, and the bits of the status word that it defines.
const INSTRUCTIONS: &[(&str, &[u8], u64)] = &[
    ("fcmovb st0, st1", &[0xda, 0xc1], 0),
    ("fcmove st0, st1", &[0xda, 0xc9], 0),
    ("fcmovbe st0, st1", &[0xda, 0xd1], 0),
    ("fcmovu st0, st1", &[0xda, 0xd9], 0),
    ("fcmovnb st0, st1", &[0xdb, 0xc1], 0),
    ("fcmovne st0, st1", &[0xdb, 0xc9], 0),
    ("fcmovnbe st0, st1", &[0xdb, 0xd1], 0),
    ("fcmovnu st0, st1", &[0xdb, 0xd9], 0),
    ("fistp word [rdi+80]", &[0xdf, 0x5f, 0x50], 0),
    ("fistp dword [rdi+80]", &[0xdb, 0x5f, 0x50], 0),
    ("fistp qword [rdi+80]", &[0xdf, 0x7f, 0x50], 0),
    ("fist word [rdi+80]", &[0xdf, 0x57, 0x50], 0),
    ("fist dword [rdi+80]", &[0xdb, 0x57, 0x50], 0),
    ("fisttp word [rdi+80]", &[0xdf, 0x4f, 0x50], 0),
    ("fisttp dword [rdi+80]", &[0xdb, 0x4f, 0x50], 0),
    ("fisttp qword [rdi+80]", &[0xdd, 0x4f, 0x50], 0),
    ("fstp dword [rdi+80]", &[0xd9, 0x5f, 0x50], 0),
    ("fst qword [rdi+80]", &[0xdd, 0x57, 0x50], 0),
    ("fild dword [rdi]", &[0xdb, 0x07], 0),
    ("fxch st1", &[0xd9, 0xc9], 0),
    ("fld st1", &[0xd9, 0xc1], 0),
    ("fldpi", &[0xd9, 0xeb], 0),
    ("fprem", &[0xd9, 0xf8], CONDITIONS),
    ("fprem1", &[0xd9, 0xf5], CONDITIONS),
    ("fsqrt", &[0xd9, 0xfa], 0),
    ("frndint", &[0xd9, 0xfc], 0),
    ("fchs", &[0xd9, 0xe0], 0),
    ("fabs", &[0xd9, 0xe1], 0),
    ("fadd st0, st1", &[0xd8, 0xc1], 0),
    ("fmul st0, st1", &[0xd8, 0xc9], 0),
    ("fsubr st0, st1", &[0xd8, 0xe9], 0),
    ("fdivp st1, st0", &[0xde, 0xf9], 0),
    ("fcom st1", &[0xd8, 0xd1], 0x4500),
    ("fucom st1", &[0xdd, 0xe1], 0x4500),
    ("ftst", &[0xd9, 0xe4], 0x4500),
    ("fxam", &[0xd9, 0xe5], CONDITIONS),
    ("fscale", &[0xd9, 0xfd], 0),
    ("fxtract", &[0xd9, 0xf4], 0),
    ("fld1", &[0xd9, 0xe8], 0),
    ("fldl2t", &[0xd9, 0xe9], 0),
    ("fldl2e", &[0xd9, 0xea], 0),
    ("fldlg2", &[0xd9, 0xec], 0),
    ("fldln2", &[0xd9, 0xed], 0),
    ("fst dword [rdi+80]", &[0xd9, 0x57, 0x50], 0),
    ("fbstp [rdi+80]", &[0xdf, 0x77, 0x50], 0),
    ("fbstp [rdi+80]; fbld [rdi+80]", &[0xdf, 0x77, 0x50, 0xdf, 0x67, 0x50], 0),
    ("fadd dword [rdi]", &[0xd8, 0x07], 0),
    ("fmul qword [rdi]", &[0xdc, 0x0f], 0),
    ("fidiv dword [rdi]", &[0xda, 0x37], 0),
    ("fldz; fdivp", &[0xd9, 0xee, 0xde, 0xf9], 0),
    ("eight pushes", &[0xd9, 0xe8, 0xd9, 0xe8, 0xd9, 0xe8, 0xd9, 0xe8, 0xd9, 0xe8, 0xd9, 0xe8], 0),
    ("four pops", &[0xdd, 0xd8, 0xdd, 0xd8, 0xdd, 0xd8, 0xdd, 0xd8], 0),
    ("fsin", &[0xd9, 0xfe], 0x400),
    ("fcos", &[0xd9, 0xff], 0x400),
    ("fptan", &[0xd9, 0xf2], 0x400),
    ("fpatan", &[0xd9, 0xf3], 0),
    ("fyl2x", &[0xd9, 0xf1], 0),
    ("fcomi st0, st1", &[0xdb, 0xf1], 0),
];

/// Executes the instruction after `cmp ecx, edx` on a stack of three values, then stores the top of the stack.
fn program(instruction: &[u8]) -> Vec<u8> {
    let mut code = vec![0x39, 0xd1];
    // fninit; fldcw [rdi+24]; fld qword [rdi], [rdi+8] and [rdi+16]
    code.extend([0xdb, 0xe3, 0xd9, 0x6f, 0x18, 0xdd, 0x07, 0xdd, 0x47, 0x08, 0xdd, 0x47, 0x10]);
    code.extend(instruction);
    // fnstsw ax; fstp tbyte [rdi+32]; fstp tbyte [rdi+48]; fninit
    code.extend([0xdf, 0xe0, 0xdb, 0x7f, 0x20, 0xdb, 0x7f, 0x30, 0xdb, 0xe3]);
    code
}

/// Exception flags, stack fault and C1.
const EXCEPTIONS: u64 = 0x27f;

/// Random numbers of all classes.
fn number(random: &mut Random) -> f64 {
    let sign = if random.below(2) == 0 { 1.0 } else { -1.0 };
    match random.below(6) {
        4 => f64::from_bits(random.next()),
        5 => {
            let special =
                [0, 1, 0x7ff0_0000_0000_0000, 0x7ff0_0000_0000_0001, 0x7ff8_0000_0000_0001, 0xf_ffff];
            sign * f64::from_bits(special[random.below(6) as usize])
        }
        0 => sign * random.below(1 << 40) as f64,
        1 => sign * (random.below(1000) as f64 / 8.0),
        2 => sign * (random.below(1 << 52) as f64 / 65536.0),
        _ => sign * [1.0, 0.5, 2.5, 32767.5, 2_147_483_647.5, 3e9, 1e-3][random.below(7) as usize],
    }
}

#[test]
fn x87_instructions_match_the_processor() {
    let (buffer, mut random) = (Buffer::new(), Random(0x9e37_79b9_7f4a_7c15));
    let mut wrong = Vec::new();
    for (name, instruction, conditions) in INSTRUCTIONS {
        let code = program(instruction);
        for _ in 0..200 {
            let mut before = random.registers(false);
            if random.below(3) == 0 {
                before.general[2] = before.general[1];
            }
            let numbers = [number(&mut random), number(&mut random), number(&mut random)];
            let mut data = vec![0u8; DATA_BYTES];
            for (at, value) in numbers.iter().enumerate() {
                data[8 * at..][..8].copy_from_slice(&value.to_le_bytes());
            }
            // All rounding directions and precisions, except the reserved one.
            let control = 0x7f | [0, 2, 3][random.below(3) as usize] << 8 | random.below(4) << 10;
            data[24..26].copy_from_slice(&(control as u16).to_le_bytes());
            let data_at = data.as_ptr() as u64;
            before.general[4] = 0;
            before.general[7] = data_at;
            let (mut native, mut ours) = (before, before);
            let mut our_data = data.clone();
            let outcome = translated(&code, &mut ours, data_at, &mut our_data, None);
            buffer.run(&code, &mut native);
            let status =
                |registers: &crate::host::Registers| registers.general[0] & (conditions | EXCEPTIONS);
            let flags = |registers: &crate::host::Registers| registers.flags & 0x45;
            // The processor's transcendental functions are not always rounded correctly.
            let is_near = matches!(*name, "fsin" | "fcos" | "fptan" | "fpatan" | "fyl2x");
            let result = if *name == "fptan" { 48 } else { 32 };
            // Numbers of ten bytes without their sign, as integers in the order of their values: the number just below
            // a power of two has the lower exponent.
            let order = |data: &[u8]| {
                let bytes: [u8; 10] = std::array::from_fn(|at| data[result + at]);
                let mantissa = u64::from_le_bytes(std::array::from_fn(|at| bytes[at])) & (u64::MAX >> 1);
                i128::from(u16::from_le_bytes([bytes[8], bytes[9]])) << 63 | i128::from(mantissa)
            };
            if is_near && order(&our_data).abs_diff(order(&data)) <= 2 {
                our_data[result..result + 10].copy_from_slice(&data[result..result + 10]);
                ours.general[0] = ours.general[0] & !0x200 | native.general[0] & 0x200;
            }
            if outcome.is_err()
                || our_data != data
                || status(&native) != status(&ours)
                || flags(&native) != flags(&ours)
            {
                let (of_ours, of_natives) = (&our_data[32..96], &data[32..96]);
                let states = (status(&ours), status(&native));
                wrong.push(format!(
                    "{name} of {numbers:?}, control {control:x}: {outcome:?} {of_ours:x?}, not {of_natives:x?}; status {states:x?}"
                ));
            }
        }
    }
    let mut names: Vec<&str> =
        wrong.iter().map(|text| text.split(" of ").next().unwrap_or_default()).collect();
    let count_of = |name: &str| wrong.iter().filter(|text| text.split(" of ").next() == Some(name)).count();
    let counts: Vec<_> =
        INSTRUCTIONS.iter().map(|(name, ..)| (*name, count_of(name))).filter(|(_, n)| *n > 0).collect();
    println!("{counts:?}");
    names.dedup();
    let excerpt = wrong[..wrong.len().min(8)].join("\n");
    assert!(wrong.is_empty(), "{} wrong, in {names:?}, such as {excerpt}", wrong.len());
}
