//! Comparisons of strings, whose results depend on where the strings end, compared with the host's processor.

use crate::host::Buffer;
use crate::machine::{DATA_BYTES, MIDDLE, STACK_TOP, interpreted, translated};
use crate::random::Random;

/// Bytes of a small alphabet, often with zeros behind them.
fn text(random: &mut Random) -> u128 {
    let length = [0, 1, 2, 3, 7, 8, 9, 15, 16, 16][random.below(10) as usize];
    let letters = 1 + random.below(4);
    (0..length).fold(0, |all, _| all << 8 | u128::from(b'a' + random.below(letters) as u8))
        | u128::from(random.below(4) == 0) << 120
}

#[test]
fn comparisons_of_strings_match_the_processor() {
    let buffer = Buffer::new();
    let mut random = Random(0x54);
    // pcmpistri xmm1, xmm2, imm8 and pcmpistri xmm1, [rdi], imm8; also with one register twice.
    let encodings: [&[u8]; 3] =
        [&[0x66, 0x0f, 0x3a, 0x63, 0xca], &[0x66, 0x0f, 0x3a, 0x63, 0x0f], &[0x66, 0x0f, 0x3a, 0x63, 0xc9]];
    for control in 0..0x80 {
        for case in 0..30 {
            // The instruction, and then: setb al; cmovs edx, esi. Some flags are read, others only at the end.
            let code = [encodings[case % 3], &[control], &[0x0f, 0x92, 0xc0, 0x0f, 0x48, 0xd6][..]].concat();
            let mut before = random.registers(false);
            (before.vectors[1], before.vectors[2]) = (text(&mut random), text(&mut random));
            let mut data = vec![0u8; DATA_BYTES];
            data[MIDDLE as usize..][..16].copy_from_slice(&text(&mut random).to_le_bytes());
            let data_at = data.as_ptr() as u64;
            (before.general[4], before.general[7]) = (STACK_TOP, data_at + MIDDLE);
            let mut native = before;
            let outcomes = [translated, interpreted].map(|execute| {
                let (mut ours, mut our_data) = (before, data.clone());
                execute(&code, &mut ours, data_at, &mut our_data, None).unwrap();
                ours
            });
            buffer.run(&code, &mut native);
            native.general[4] = STACK_TOP;
            for ours in outcomes {
                assert_eq!(ours.general, native.general, "control {control:#x}: {:x?}", &before.vectors[..3]);
                assert_eq!(
                    ours.flags & 0x8d5,
                    native.flags & 0x8d5,
                    "control {control:#x}: {:x?}",
                    &before.vectors[..3]
                );
            }
        }
    }
}
