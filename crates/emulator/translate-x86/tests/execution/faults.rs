//! The state that the handler of a fault sees: no register has changed, and the flags that the program reads later are
//! there.

use iced_x86::{Code, Encoder, Instruction, OpKind};

use crate::flags::flag_bits;
use crate::instructions::{instruction, is_compared, is_not_comparable};
use crate::machine::{DATA_BYTES, SOURCE, STACK_TOP, interpreted, translated};
use crate::random::Random;

/// An address where nothing is mapped.
const NOWHERE: u64 = 0x7000_0000;

/// The bits of RFLAGS that an instruction leaves alone.
fn kept(i: &Instruction) -> u64 {
    flag_bits(!i.rflags_modified())
}

#[test]
fn a_faulting_access_changes_no_register_and_preserves_the_flags_that_are_read_later() {
    let mut random = Random(0x55);
    let (mut wrong, mut cases) = (Vec::new(), 0);
    for code in Code::values().filter(|code| is_compared(*code)) {
        for _ in 0..6 {
            let Some(mut i) = instruction(code, &mut random, 0) else { break };
            let mut encoder = Encoder::new(64);
            if i.is_vsib() || encoder.encode(&i, SOURCE).is_err() {
                continue;
            }
            let bytes = encoder.take_buffer();
            i = iced_x86::Decoder::with_ip(64, &bytes, SOURCE, 0).decode();
            let accesses = (0..i.op_count()).any(|operand| i.op_kind(operand) == OpKind::Memory);
            if i.code() != code || !accesses || is_not_comparable(&i) {
                continue;
            }
            // cmp rbx, rcx; the instruction; lahf; seto al
            let bytes = [&[0x48, 0x39, 0xcb], &bytes[..], &[0x9f, 0x0f, 0x90, 0xc0]].concat();
            let mut before = random.registers(false);
            (before.general[4], before.general[7]) = (STACK_TOP, NOWHERE);
            let (b, c) = (before.general[3], before.general[1]);
            let (difference, is_borrowed) = b.overflowing_sub(c);
            let flags = u64::from(is_borrowed)
                | u64::from((difference as u8).count_ones().is_multiple_of(2)) << 2
                | (b ^ c ^ difference) & 1 << 4
                | u64::from(difference == 0) << 6
                | difference >> 63 << 7
                | (((b ^ c) & (b ^ difference)) >> 63) << 11;
            for execute in [translated, interpreted] {
                let mut ours = before;
                let mut data = vec![0u8; DATA_BYTES];
                let data_at = data.as_ptr() as u64;
                let outcome = execute(&bytes, &mut ours, data_at, &mut data, None);
                // Some instructions access no memory: LEA, prefetches, masked moves.
                let Err(why) = outcome else { continue };
                cases += 1;
                let is_same = (ours.general, ours.vectors) == (before.general, before.vectors);
                if !why.contains("Memory") || !is_same || (ours.flags ^ flags) & kept(&i) != 0 {
                    wrong.push(format!(
                        "{i}: {why}, flags {:#x}, not {flags:#x}, registers {:x?}, not {:x?}, same vectors: {}",
                        ours.flags & 0x8d5,
                        ours.general,
                        before.general,
                        ours.vectors == before.vectors
                    ));
                }
            }
        }
    }
    println!("{cases} cases");
    assert!(cases > 3000, "{cases}");
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong[..wrong.len().min(30)].join("\n"));
}
