//! Compares sequences with branches and loops with the host's processor, with and without interruptions.

use iced_x86::{Code, Encoder, Instruction, Mnemonic, OpKind, Register};
use longma_translate::optimizations::Optimizations;
use longma_translate_conformance::memory::choices;

use crate::flags::flag_bits;
use crate::host::{Buffer, Registers};
use crate::instructions::{
    has_mmx, instruction, is_compared, is_floating, is_not_comparable, same_but_for_nans, undefined,
};
use crate::machine::{DATA_BYTES, MIDDLE, SOURCE, STACK_TOP, interpreted, translated, translated_with};
use crate::random::Random;

/// The codes of instructions in sequences.
fn sequence_codes() -> Vec<Code> {
    Code::values().filter(|code| is_compared(*code)).collect()
}

/// Whether an instruction is common in compiled code. Half of each sequence consists of such instructions.
fn is_common(code: Code) -> bool {
    use Mnemonic::*;
    matches!(
        code.mnemonic(),
        Mov | Movzx
            | Movsx
            | Movsxd
            | Lea
            | Add
            | Sub
            | And
            | Or
            | Xor
            | Cmp
            | Test
            | Inc
            | Dec
            | Neg
            | Not
            | Shl
            | Shr
            | Sar
            | Imul
            | Sete
            | Setl
            | Seta
            | Cmove
            | Cmovl
            | Cmovb
            | Cmovs
            | Cdqe
            | Movsd
            | Movss
            | Movaps
            | Movq
            | Movd
            | Addsd
            | Mulsd
            | Addss
            | Xorps
            | Pxor
            | Andpd
            | Cvtsi2sd
            | Cvtss2sd
            | Ucomisd
            | Vmovaps
            | Vmovdqu
            | Vmovsd
            | Vmovss
            | Vmovq
            | Vpaddd
            | Vpxor
            | Vpcmpeqb
            | Vextracti128
            | Vinserti128
            | Vpbroadcastb
            | Vpmovmskb
            | Vptest
            | Vpermq
            | Vzeroupper
            | Vzeroall
            | Shlx
            | Bzhi
            | Andn
            | Tzcnt
    )
}

/// Whether an instruction is allowed in a sequence: it does not touch RDI, R15 and the stack, and its result does not
/// depend on undefined flags.
fn is_allowed_in_sequence(i: &Instruction) -> bool {
    use Mnemonic::*;
    let is_shift = matches!(i.mnemonic(), Shl | Sal | Shr | Sar | Rol | Ror | Rcl | Rcr | Shld | Shrd);
    let last = i.op_count().saturating_sub(1);
    let by_register = i.op_count() > 1 && i.op_kind(last) == OpKind::Register;
    let bits = matches!(i.mnemonic(), Bt | Bts | Btr | Btc) && i.op0_kind() == OpKind::Memory && by_register;
    if i.is_vsib()
        || is_not_comparable(i)
        || has_mmx(i)
        || is_shift && (by_register || i.op_count() == 3)
        || bits
        || i.is_string_instruction()
    {
        return false;
    }
    // Floating-point results may round differently or have other NaN payloads; only single instructions are compared.
    let is_float = is_floating(i)
        && !matches!(
            i.mnemonic(),
            Movss | Movsd | Movaps | Movups | Movapd | Movupd | Andps | Andpd | Xorps | Xorpd | Orps | Orpd
        )
        && !matches!(i.mnemonic(), Ucomisd | Ucomiss | Comisd | Comiss | Cvtsi2sd | Cvtsi2ss);
    if is_float || matches!(i.mnemonic(), Div | Idiv | Cmpxchg | Cmpxchg16b) {
        return false;
    }
    let mut factory = iced_x86::InstructionInfoFactory::new();
    factory.info(i).used_registers().iter().all(|used| {
        let full = used.register().full_register();
        let reads = matches!(used.access(), iced_x86::OpAccess::Read | iced_x86::OpAccess::CondRead);
        full != Register::RSP && full != Register::R15 && (full != Register::RDI || reads)
    })
}

/// A sequence: its bytes, its text, and the flags that are undefined after it.
struct Sequence {
    bytes: Vec<u8>,
    text: String,
    open: u64,
}

fn sequence(codes: &[Code], common: &[Code], random: &mut Random) -> Sequence {
    let loops = random.below(3) == 0;
    let mut instructions: Vec<Instruction> = Vec::new();
    // Index of the branch and of its target.
    let mut branches: Vec<(usize, usize)> = Vec::new();
    let mut open: u64 = if loops { 0x8d5 } else { 0 };
    let mut depth = 0;
    let target = 2 + random.below(12) as usize;
    let before = Registers { general: [0; 16], flags: 0, wide: 0, vectors: [0; 16], uppers: [0; 16] };
    // For forward branches, the target's index and the flags that are undefined if the branch is taken.
    let mut joins: Vec<(usize, u64)> = Vec::new();
    while instructions.len() < target || joins.iter().any(|(at, _)| *at > instructions.len()) {
        let joining: Vec<u64> =
            joins.iter().filter(|(at, _)| *at == instructions.len()).map(|(_, open)| *open).collect();
        joining.iter().for_each(|other| open |= other);
        let is_skipped = joins.iter().any(|(at, _)| *at > instructions.len());
        let general =
            [Register::RAX, Register::RCX, Register::RDX, Register::RBX, Register::RBP, Register::R8];
        let any = general[random.below(6) as usize];
        match random.below(14) {
            0 if !is_skipped && depth < 3 => {
                instructions.push(Instruction::with1(Code::Push_r64, any).unwrap());
                depth += 1;
                continue;
            }
            1 if !is_skipped && depth > 0 => {
                instructions.push(Instruction::with1(Code::Pop_r64, any).unwrap());
                depth -= 1;
                continue;
            }
            2 if depth > 0 => {
                let stack_operand = iced_x86::MemoryOperand::with_base(Register::RSP);
                let (code, register) = if random.below(2) == 0 {
                    (Code::Mov_r64_rm64, any)
                } else {
                    (Code::Mov_r32_rm32, Register::EAX + any.number() as u32)
                };
                instructions.push(Instruction::with2(code, register, stack_operand).unwrap());
                continue;
            }
            3 | 4 if !is_skipped => {
                let conditions = [
                    (Code::Je_rel32_64, 0x40),
                    (Code::Jne_rel32_64, 0x40),
                    (Code::Jb_rel32_64, 1),
                    (Code::Jae_rel32_64, 1),
                    (Code::Ja_rel32_64, 0x41),
                    (Code::Jbe_rel32_64, 0x41),
                    (Code::Js_rel32_64, 0x80),
                    (Code::Jl_rel32_64, 0x880),
                    (Code::Jge_rel32_64, 0x880),
                    (Code::Jg_rel32_64, 0x8c0),
                    (Code::Jle_rel32_64, 0x8c0),
                    (Code::Jp_rel32_64, 4),
                    (Code::Jo_rel32_64, 0x800),
                ];
                let (code, reads) = conditions[random.below(13) as usize];
                if open & reads != 0 {
                    continue;
                }
                let distance = 1 + random.below(3) as usize;
                branches.push((instructions.len(), instructions.len() + 1 + distance));
                joins.push((instructions.len() + 1 + distance, open));
                instructions.push(Instruction::with_branch(code, SOURCE).unwrap());
                continue;
            }
            _ => {}
        }
        let from = if random.below(3) > 0 { common } else { codes };
        let code = from[random.below(from.len() as u64) as usize];
        let at = 32 * random.below(2);
        let Some(mut i) = instruction(code, random, at) else {
            continue;
        };
        let mut encoder = Encoder::new(64);
        if i.mnemonic() == Mnemonic::Lea {
            i.set_memory_base(general[random.below(6) as usize]);
            if random.below(2) == 0 {
                i.set_memory_index(general[random.below(6) as usize]);
                i.set_memory_index_scale(1 << random.below(4));
            }
            i.set_memory_displacement64(random.below(64).wrapping_sub(32));
            i.set_memory_displ_size(4);
        }
        if encoder.encode(&i, SOURCE).is_err() {
            continue;
        }
        let bytes = encoder.take_buffer();
        let i = iced_x86::Decoder::with_ip(64, &bytes, SOURCE, 0).decode();
        if i.is_invalid()
            || i.code() != code
            || !is_allowed_in_sequence(&i)
            || flag_bits(i.rflags_read()) & open != 0
        {
            continue;
        }
        open = open & !flag_bits(i.rflags_modified()) | undefined(&i, &before);
        instructions.push(i);
    }
    for (at, other) in joins {
        if at == instructions.len() {
            open |= other;
        }
    }
    while depth > 0 {
        instructions.push(Instruction::with1(Code::Pop_r64, Register::RSI).unwrap());
        depth -= 1;
    }
    if loops {
        instructions.push(Instruction::with1(Code::Dec_rm32, Register::R15D).unwrap());
        branches.push((instructions.len(), 0));
        instructions.push(Instruction::with_branch(Code::Jne_rel32_64, SOURCE).unwrap());
        open &= 1;
    }
    // The first pass determines the addresses of instructions.
    let mut addresses = vec![SOURCE; instructions.len() + 1];
    let mut bytes = Vec::new();
    for _ in 0..2 {
        bytes.clear();
        for (index, i) in instructions.iter_mut().enumerate() {
            if let Some((_, to)) = branches.iter().find(|(at, _)| *at == index) {
                i.set_near_branch64(addresses[*to]);
            }
            let mut encoder = Encoder::new(64);
            addresses[index] = SOURCE + bytes.len() as u64;
            encoder.encode(i, addresses[index]).unwrap();
            bytes.extend(encoder.take_buffer());
        }
        addresses[instructions.len()] = SOURCE + bytes.len() as u64;
    }
    let text = instructions
        .iter()
        .zip(&addresses)
        .map(|(i, at)| format!("{at:x} {i}"))
        .collect::<Vec<_>>()
        .join("; ");
    Sequence { bytes, text, open }
}

#[test]
fn sequences_match_the_processor_also_with_interruptions() {
    compare(cases(), 1, &[Optimizations::default()], translated_with);
}

#[test]
fn sequences_match_the_processor_when_cold_code_is_interpreted() {
    compare(cases(), 3, &[Optimizations::default()], |_, bytes, registers, data_at, data, interruptions| {
        interpreted(bytes, registers, data_at, data, interruptions)
    });
}

#[test]
fn sequences_match_the_processor_with_any_optimizations() {
    let choices = choices();
    compare(cases() / 10 * choices.len(), 2, &choices, translated_with);
}

fn cases() -> usize {
    std::env::var("LONGMA_X86_SEQUENCES").ok().and_then(|n| n.parse().ok()).unwrap_or(4000)
}

/// Executes code with optimizations on registers and memory; see [`translated_with`].
type Execute =
    fn(Optimizations, &[u8], &mut Registers, u64, &mut Vec<u8>, Option<&mut Random>) -> Result<u64, String>;

/// Compares `cases` sequences, cycling through `choices`. Half of the sequences are interrupted.
fn compare(cases: usize, start: u64, choices: &[Optimizations], execute: Execute) {
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u64);
    let mut random = Random(0x6c62_272e_07bb_0142 ^ seed << 32 | start);
    let buffer = Buffer::new();
    let codes = sequence_codes();
    let common: Vec<Code> = codes.iter().copied().filter(|code| is_common(*code)).collect();
    let mut data = vec![0u8; DATA_BYTES + 32];
    let skip = data.as_ptr().align_offset(32);
    let mut wrong = Vec::new();
    let (mut instructions, mut counted) = (0, 0);
    for case in 0..cases {
        let Sequence { bytes, text, open } = sequence(&codes, &common, &mut random);
        if std::env::var_os("LONGMA_X86_SHOWN").is_some() {
            eprintln!("{case}: {text}");
        }
        let mut before = random.registers(true);
        data[skip..skip + DATA_BYTES].iter_mut().for_each(|byte| *byte = random.next() as u8);
        let data_at = data[skip..].as_ptr() as u64;
        before.general[4] = STACK_TOP;
        before.general[7] = data_at + MIDDLE;
        before.general[15] = 1 + random.below(3);
        let (mut native, mut ours) = (before, before);
        let mut our_data = data[skip..skip + DATA_BYTES].to_vec();
        let optimizations = choices[case / 2 % choices.len()];
        let interruptions = (case % 2 == 1).then_some(&mut random);
        let outcome = execute(optimizations, &bytes, &mut ours, data_at, &mut our_data, interruptions);
        buffer.run(&bytes, &mut native);
        instructions += text.matches(';').count() + 1;
        let executed = match outcome {
            Err(why) => {
                wrong.push(format!("with '{optimizations}', {text}: {why}"));
                continue;
            }
            Ok(executed) => executed,
        };
        counted += executed;
        let mut different = Vec::new();
        if ours.general[4] != STACK_TOP {
            different.push(format!("rsp {:x}", ours.general[4].wrapping_sub(STACK_TOP)));
        }
        native.general[4] = STACK_TOP;
        for n in (0..16).filter(|n| native.general[*n] != ours.general[*n] && *n != 4) {
            different.push(format!("r{n} {:x}, not {:x}", ours.general[n], native.general[n]));
        }
        let flags = (native.flags ^ ours.flags) & 0x8d5 & !open;
        if flags != 0 {
            different.push(format!("flags {:x}, not {:x}", ours.flags & 0x8d5, native.flags & 0x8d5));
        }
        let same = |a: u128, b: u128| a == b || same_but_for_nans(a, b);
        for n in (0..16).filter(|n| !same(native.vectors[*n], ours.vectors[*n])) {
            different.push(format!("xmm{n} {:x}, not {:x}", ours.vectors[n], native.vectors[n]));
        }
        for n in (0..16).filter(|n| !same(native.uppers[*n], ours.uppers[*n])) {
            different.push(format!("ymm{n} above {:x}, not {:x}", ours.uppers[n], native.uppers[n]));
        }
        if our_data != data[skip..skip + DATA_BYTES] {
            different.push("memory".into());
        }
        if !different.is_empty() {
            wrong.push(format!(
                "case {case} with '{optimizations}': {text}\n   {}\n   {before:x?}",
                different.join(", ")
            ));
        }
    }
    println!("{cases} sequences of {instructions} instructions, {counted} LoongArch instructions executed");
    wrong.sort_by_key(|text| text.len());
    let excerpt: Vec<&str> = wrong.iter().map(|text| &text[..text.len().min(1500)]).take(8).collect();
    assert!(wrong.is_empty(), "{} differences\n{}", wrong.len(), excerpt.join("\n"));
}

/// Shifts by a register with count zero or one after a comparison. All flags are compared.
#[test]
fn a_shift_by_zero_preserves_flags_in_any_representation() {
    const CODE: [u8; 12] = [
        0x39, 0xd8, // cmp eax, ebx
        0xd3, 0xe2, // shl edx, cl
        0x0f, 0x9c, 0xc0, // setl al
        0x48, 0xd3, 0xeb, // shr rbx, cl
        0xd2, 0xc8, // ror al, cl
    ];
    let buffer = Buffer::new();
    let mut random = Random(11);
    for (case, optimizations) in choices().into_iter().cycle().take(400).enumerate() {
        let mut before = random.registers(false);
        // The shift count. Other counts leave flags undefined.
        before.general[1] = (case / 40 % 2) as u64;
        before.general[4] = STACK_TOP;
        let (mut native, mut ours) = (before, before);
        let mut data = vec![0u8; DATA_BYTES];
        let data_at = data.as_ptr() as u64;
        translated_with(optimizations, &CODE, &mut ours, data_at, &mut data, None).unwrap();
        buffer.run(&CODE, &mut native);
        // A shift by one leaves AF undefined.
        let defined = if before.general[1] == 0 { 0x8d5 } else { 0x8c5 };
        let observed = |registers: &Registers| (registers.flags & defined, registers.general[..4].to_vec());
        assert_eq!(observed(&ours), observed(&native), "with '{optimizations}': {before:x?}");
    }
}

/// Two branches back to code that reads the lower half of a register. Where one of them is not taken, the code reads
/// the whole register.
#[test]
fn an_upper_half_is_preserved_when_the_branch_is_not_taken() {
    const CODE: [u8; 29] = [
        0xeb, 0x07, // jmp 9
        0x48, 0x63, 0xc6, // 2: movsxd rax, esi
        0x31, 0xf6, // xor esi, esi
        0xeb, 0x14, // jmp 1d
        0x8b, 0x37, // 9: mov esi, [rdi]
        0x83, 0x7f, 0x08, 0x00, // cmp dword ptr [rdi+8], 0
        0x74, 0xf1, // je 2
        0x48, 0x8b, 0x37, // mov rsi, [rdi]
        0x83, 0x7f, 0x0c, 0x00, // cmp dword ptr [rdi+12], 0
        0x74, 0xe8, // je 2
        0x48, 0x89, 0xf0, // mov rax, rsi
    ];
    let buffer = Buffer::new();
    for taken in 0..4 {
        let mut data = vec![0u8; DATA_BYTES];
        let at = MIDDLE as usize;
        data[at..at + 8].copy_from_slice(&0x1234_5678_90ab_cdefu64.to_le_bytes());
        data[at + 8] = taken & 1;
        data[at + 12] = taken >> 1;
        let data_at = data.as_ptr() as u64;
        let mut before =
            Registers { general: [0; 16], flags: 0x202, wide: 0, vectors: [0; 16], uppers: [0; 16] };
        before.general[4] = STACK_TOP;
        before.general[7] = data_at + MIDDLE;
        let (mut native, mut ours) = (before, before);
        let mut our_data = data.clone();
        translated(&CODE, &mut ours, data_at, &mut our_data, None).unwrap();
        buffer.run(&CODE, &mut native);
        native.general[4] = STACK_TOP;
        assert_eq!(ours.general, native.general, "{taken}");
    }
}

/// An index plus a constant that does not fit an immediate, written to the index register itself. The base is known to
/// be zero.
#[test]
fn lea_into_the_index_register_works_with_a_zero_base() {
    let sum = |displacement: u32| {
        // xor edx, edx; lea rcx, [rdx+rcx+displacement]
        [&[0x31, 0xd2, 0x48, 0x8d, 0x8c, 0x0a][..], &displacement.to_le_bytes()].concat()
    };
    let buffer = Buffer::new();
    for displacement in [8, 0x3598, 0x3000, 0x7fff_f800, 0x8000_0000] {
        let mut before =
            Registers { general: [0; 16], flags: 0x202, wide: 0, vectors: [0; 16], uppers: [0; 16] };
        before.general[1] = 0x1_2345_6789;
        before.general[4] = STACK_TOP;
        let (mut native, mut ours) = (before, before);
        let mut data = vec![0u8; DATA_BYTES];
        let data_at = data.as_ptr() as u64;
        translated(&sum(displacement), &mut ours, data_at, &mut data, None).unwrap();
        buffer.run(&sum(displacement), &mut native);
        native.general[4] = STACK_TOP;
        assert_eq!(ours.general, native.general, "{displacement:#x}");
    }
}

/// A branch back to code that reads the lower half of a register, on a comparison of the whole register.
#[test]
fn a_comparison_reads_the_whole_register_if_the_branch_target_needs_the_lower_half() {
    const CODE: [u8; 48] = [
        0x8b, 0x47, 0x08, // mov eax, [rdi+8]
        0x83, 0xe8, 0x01, // sub eax, 1
        0x74, 0x05, // je d
        0x83, 0xc8, 0xff, // 8: or eax, -1
        0xeb, 0x23, // jmp 30
        0x48, 0x8b, 0x17, // d: mov rdx, [rdi]
        0x48, 0xb8, 2, 0, 0, 0, 0, 0, 0, 1, // movabs rax, 0x100000000000002
        0x48, 0x21, 0xc2, // and rdx, rax
        0x48, 0x39, 0xc2, // cmp rdx, rax
        0x75, 0xe6, // jne 8
        0x8b, 0x47, 0x0c, // mov eax, [rdi+12]
        0x83, 0x7f, 0x0c, 0x05, // cmp dword ptr [rdi+12], 5
        0x74, 0xdd, // je 8
        0xb8, 0xe9, 0x04, 0x00, 0x00, // mov eax, 0x4e9
    ];
    let buffer = Buffer::new();
    for (bits, expected) in [(2u64, 1u32), (0x0100_0000_0000_0002, 1), (0x0100_0000_0000_0000, 1), (2, 7)] {
        let mut data = vec![0u8; DATA_BYTES];
        let at = MIDDLE as usize;
        data[at..at + 8].copy_from_slice(&bits.to_le_bytes());
        data[at + 8..at + 12].copy_from_slice(&expected.to_le_bytes());
        let data_at = data.as_ptr() as u64;
        let mut before =
            Registers { general: [0; 16], flags: 0x202, wide: 0, vectors: [0; 16], uppers: [0; 16] };
        before.general[4] = STACK_TOP;
        before.general[7] = data_at + MIDDLE;
        let (mut native, mut ours) = (before, before);
        let mut our_data = data.clone();
        translated(&CODE, &mut ours, data_at, &mut our_data, None).unwrap();
        buffer.run(&CODE, &mut native);
        native.general[4] = STACK_TOP;
        assert_eq!(ours.general, native.general, "{bits:#x} {expected}");
    }
}
