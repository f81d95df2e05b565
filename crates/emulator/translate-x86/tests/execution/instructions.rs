//! Compares single instructions with the host's processor.

use iced_x86::{
    Code, CpuidFeature, Encoder, FlowControl, Instruction, Mnemonic, OpCodeOperandKind, OpKind, Register,
    RflagsBits,
};

use crate::flags::flag_bits;
use crate::host::{Buffer, Registers, has_avx2};
use crate::machine::{DATA_BYTES, MIDDLE, SOURCE, interpreted, translated};
use crate::random::Random;

/// The instruction-set extensions to compare.
pub const FEATURES: &[CpuidFeature] = &[
    CpuidFeature::INTEL8086,
    CpuidFeature::INTEL186,
    CpuidFeature::INTEL386,
    CpuidFeature::INTEL486,
    CpuidFeature::X64,
    CpuidFeature::CMOV,
    CpuidFeature::SSE,
    CpuidFeature::SSE2,
    CpuidFeature::SSE3,
    CpuidFeature::SSSE3,
    CpuidFeature::SSE4_1,
    CpuidFeature::SSE4_2,
    CpuidFeature::POPCNT,
    CpuidFeature::CMPXCHG16B,
    CpuidFeature::CX8,
    CpuidFeature::AVX,
    CpuidFeature::AVX2,
    CpuidFeature::FMA,
    CpuidFeature::F16C,
    CpuidFeature::BMI1,
    CpuidFeature::BMI2,
    CpuidFeature::LZCNT,
    CpuidFeature::MOVBE,
    CpuidFeature::MMX,
    CpuidFeature::CLFSH,
    CpuidFeature::CLFLUSHOPT,
    CpuidFeature::CLWB,
    CpuidFeature::FSGSBASE,
    CpuidFeature::RDRAND,
    CpuidFeature::RDSEED,
    CpuidFeature::AES,
    CpuidFeature::PCLMULQDQ,
    CpuidFeature::SHA,
    CpuidFeature::ADX,
];

/// Whether an instruction with this code can be compared on this host.
pub fn is_compared(code: Code) -> bool {
    use CpuidFeature::*;
    let is_supported = |feature: &CpuidFeature| match feature {
        AVX | AVX2 | FMA | F16C | BMI1 | BMI2 | LZCNT | MOVBE => has_avx2(),
        CLFLUSHOPT | CLWB | FSGSBASE | RDRAND | RDSEED => false,
        AES => is_x86_feature_detected!("aes"),
        PCLMULQDQ => is_x86_feature_detected!("pclmulqdq"),
        SHA => is_x86_feature_detected!("sha"),
        ADX => is_x86_feature_detected!("adx"),
        _ => true,
    };
    let features = code.cpuid_features();
    code.op_code().mode64()
        && features.iter().all(|feature| FEATURES.contains(feature) && is_supported(feature))
}

/// Whether an instruction cannot be compared: its result differs by design, or it uses the stack or the kernel.
pub fn is_not_comparable(i: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        i.mnemonic(),
        Cpuid
            | Rdtsc
            | Xlatb
            | Leave
            | Enter
            | Rcpps
            | Rcpss
            | Rsqrtps
            | Rsqrtss
            | Ldmxcsr
            | Stmxcsr
            | Vldmxcsr
            | Vstmxcsr
            | Vrcpps
            | Vrcpss
            | Vrsqrtps
            | Vrsqrtss
            | Int3
            | Ud0
            | Ud1
            | Ud2
            | Pause
            | Std
            | Fxsave
            | Fxrstor
            | Bswap
            | Wait
            | Into
            | Lss
            | Lar
            | Lsl
            | Sgdt
            | Sidt
            | Sldt
            | Smsw
            | Str
            | Verr
            | Verw
            | Lfs
            | Lgs
            | Monitor
            | Mwait
            | Reservednop
            | Clflush
    ) || i.is_privileged()
        || i.is_stack_instruction()
        || i.flow_control() != FlowControl::Next
        || i.has_xacquire_prefix()
}

/// An instruction with this code and random operands. RDI points to memory operands; `at` is their offset.
pub fn instruction(code: Code, random: &mut Random, at: u64) -> Option<Instruction> {
    use OpCodeOperandKind::*;
    let mut i = Instruction::new();
    i.set_code(code);
    let general = |random: &mut Random| {
        // RSP is excluded; RDI holds the address.
        [0u32, 1, 2, 3, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15][random.below(14) as usize]
    };
    let op_code = code.op_code();
    for operand in 0..op_code.op_count() {
        let kind = op_code.op_kind(operand);
        let memory = random.below(2) == 0;
        let (base, vector) = match kind {
            r8_reg | r8_opcode => (Some(Register::AL), false),
            r16_reg | r16_opcode | r16_rm => (Some(Register::AX), false),
            r32_reg | r32_opcode | r32_rm | r32_vvvv => (Some(Register::EAX), false),
            r64_reg | r64_opcode | r64_rm | r64_vvvv => (Some(Register::RAX), false),
            xmm_reg | xmm_rm | xmm_vvvv | xmm_is4 => (Some(Register::XMM0), true),
            ymm_reg | ymm_rm | ymm_vvvv | ymm_is4 => (Some(Register::YMM0), true),
            mm_reg | mm_rm => (Some(Register::MM0), true),
            mm_or_mem if !memory => (Some(Register::MM0), true),
            r8_or_mem if !memory => (Some(Register::AL), false),
            r16_or_mem if !memory => (Some(Register::AX), false),
            r32_or_mem if !memory => (Some(Register::EAX), false),
            r64_or_mem if !memory => (Some(Register::RAX), false),
            xmm_or_mem if !memory => (Some(Register::XMM0), true),
            ymm_or_mem if !memory => (Some(Register::YMM0), true),
            _ => (Option::None, false),
        };
        if let Some(base) = base {
            let count = if base == Register::MM0 { 8 } else { 16 };
            let number = if vector { random.below(count) as u32 } else { general(random) };
            let register = match base {
                // SPL, BPL, SIL and DIL; AH, CH, DH and BH.
                Register::AL if number > 3 => Register::SPL + (number - 4),
                Register::AL if random.below(3) == 0 => Register::AH + number,
                _ => base + number,
            };
            i.set_op_kind(operand, OpKind::Register);
            i.set_op_register(operand, register);
            continue;
        }
        match kind {
            mem | r8_or_mem | r16_or_mem | r32_or_mem | r64_or_mem | xmm_or_mem | ymm_or_mem | mm_or_mem => {
                i.set_op_kind(operand, OpKind::Memory);
                i.set_memory_base(Register::RDI);
                i.set_memory_displ_size(8);
                i.set_memory_displacement64(at);
            }
            seg_rDI => i.set_op_kind(operand, OpKind::MemorySegRDI),
            mem_vsib32x | mem_vsib32y | mem_vsib64x | mem_vsib64y => {
                let is_wide = matches!(kind, mem_vsib32y | mem_vsib64y);
                let base = if is_wide { Register::YMM0 } else { Register::XMM0 };
                i.set_op_kind(operand, OpKind::Memory);
                i.set_memory_base(Register::RDI);
                i.set_memory_index(base + random.below(16) as u32);
                i.set_memory_index_scale(1 << random.below(4));
                i.set_memory_displ_size(8);
                i.set_memory_displacement64(at);
            }
            imm8 | imm8_const_1 => {
                i.set_op_kind(operand, OpKind::Immediate8);
                i.set_immediate8(if kind == imm8 { random.next() as u8 } else { 1 });
            }
            imm8sex16 => {
                i.set_op_kind(operand, OpKind::Immediate8to16);
                i.set_immediate8to16(random.next() as i8 as i16);
            }
            imm8sex32 => {
                i.set_op_kind(operand, OpKind::Immediate8to32);
                i.set_immediate8to32(random.next() as i8 as i32);
            }
            imm8sex64 => {
                i.set_op_kind(operand, OpKind::Immediate8to64);
                i.set_immediate8to64(random.next() as i8 as i64);
            }
            imm16 => {
                i.set_op_kind(operand, OpKind::Immediate16);
                i.set_immediate16(random.number() as u16);
            }
            imm32 => {
                i.set_op_kind(operand, OpKind::Immediate32);
                i.set_immediate32(random.number() as u32);
            }
            imm32sex64 => {
                i.set_op_kind(operand, OpKind::Immediate32to64);
                i.set_immediate32to64(random.number() as i32 as i64);
            }
            imm64 => {
                i.set_op_kind(operand, OpKind::Immediate64);
                i.set_immediate64(random.number());
            }
            al | cl | ax | eax | rax | dx => {
                let register = match kind {
                    al => Register::AL,
                    cl => Register::CL,
                    ax => Register::AX,
                    eax => Register::EAX,
                    rax => Register::RAX,
                    _ => Register::DX,
                };
                i.set_op_kind(operand, OpKind::Register);
                i.set_op_register(operand, register);
            }
            _ => return Option::None,
        }
    }
    let locks = op_code.can_use_lock_prefix() && i.op0_kind() == OpKind::Memory && random.below(2) == 0;
    i.set_has_lock_prefix(locks);
    Some(i)
}

/// Whether an instruction is atomic at any address, and accesses nothing but its operand.
fn is_atomic(code: Code) -> bool {
    use Mnemonic::*;
    code.op_code().can_use_lock_prefix() && !matches!(code.mnemonic(), Cmpxchg16b | Bts | Btr | Btc)
}

/// Whether an instruction accesses MMX registers.
pub fn has_mmx(i: &Instruction) -> bool {
    let is_mmx = |n: u32| i.op_kind(n) == OpKind::Register && i.op_register(n).is_mm();
    (0..i.op_count()).any(is_mmx) || matches!(i.mnemonic(), Mnemonic::Cvtpi2ps | Mnemonic::Cvtpi2pd)
}

/// An instruction between loads and stores of all MMX registers, which leaves x87 empty.
fn with_mmx(instruction: &[u8]) -> Vec<u8> {
    // movq mm, [rdi+64+8n]; movq [rdi+64+8n], mm
    let moves = |op: u8| (0..8).flat_map(move |n: u8| [0x0f, op, 0x47 | n << 3, 64 + 8 * n]);
    moves(0x6f).chain(instruction.iter().copied()).chain(moves(0x7f)).chain([0x0f, 0x77]).collect()
}

/// The flags that the manual leaves undefined.
pub fn undefined(i: &Instruction, before: &Registers) -> u64 {
    use Mnemonic::*;
    let mut undefined_flags = i.rflags_undefined();
    if matches!(i.mnemonic(), Shl | Sal | Shr | Sar | Rol | Ror | Rcl | Rcr | Shld | Shrd) {
        let last = i.op_count() - 1;
        let width =
            if i.op0_kind() == OpKind::Register { i.op0_register().size() } else { i.memory_size().size() }
                as u32
                * 8;
        let count =
            if i.op_kind(last) == OpKind::Register { before.general[1] as u8 } else { i.immediate8() };
        let count = u32::from(count) & if width == 64 { 63 } else { 31 };
        let shifts = matches!(i.mnemonic(), Shl | Sal | Shr | Sar | Shld | Shrd);
        undefined_flags = 0;
        if count != 0 && shifts {
            undefined_flags |= RflagsBits::AF;
        }
        if count != 1 && count != 0 {
            undefined_flags |= RflagsBits::OF;
        }
        if count >= width {
            undefined_flags |= RflagsBits::CF;
        }
        if count > width && matches!(i.mnemonic(), Shld | Shrd) {
            undefined_flags |= RflagsBits::CF | RflagsBits::ZF | RflagsBits::SF | RflagsBits::PF;
        }
    }
    flag_bits(undefined_flags)
}

/// Whether the manual leaves the result of an instruction undefined.
fn is_open(i: &Instruction, before: &Registers) -> bool {
    // A 16-bit double shift by more than 16.
    let is_16 = i.op_count() == 3 && i.op1_kind() == OpKind::Register && i.op1_register().is_gpr16();
    if is_16 && matches!(i.mnemonic(), Mnemonic::Shld | Mnemonic::Shrd) {
        let count = if i.op2_kind() == OpKind::Register { before.general[1] as u8 } else { i.immediate8() };
        return count & 31 > 16;
    }
    false
}

pub fn same_but_for_nans(a: u128, b: u128) -> bool {
    let doubles = (0..2).all(|lane| {
        let (a, b) = ((a >> (64 * lane)) as u64, (b >> (64 * lane)) as u64);
        a == b || f64::from_bits(a).is_nan() && f64::from_bits(b).is_nan()
    });
    let singles = (0..4).all(|lane| {
        let (a, b) = ((a >> (32 * lane)) as u32, (b >> (32 * lane)) as u32);
        a == b || f32::from_bits(a).is_nan() && f32::from_bits(b).is_nan()
    });
    doubles || singles
}

pub fn is_floating(i: &Instruction) -> bool {
    let name = format!("{:?}", i.mnemonic());
    let ends = ["ss", "sd", "ps", "pd"].iter().any(|end| name.ends_with(end));
    ends || name.starts_with("Cvt")
}

/// Whether the choice among several NaN operands differs from the processor's.
pub fn has_other_nans(i: &Instruction) -> bool {
    let name = format!("{:?}", i.mnemonic());
    ["Vfmaddsub", "Vfmsubadd", "Vfnm", "Dpp", "Vdpp"].iter().any(|start| name.starts_with(start))
}

/// Changes the state so that a division does not overflow.
fn make_divisible(registers: &mut Registers, data: &mut [u8], at: usize) {
    registers.general[2] = 0;
    registers.general[0] &= 0x7f;
    for number in [1, 3, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15] {
        registers.general[number] |= 3;
        registers.general[number] |= 3 << 8;
    }
    data[at] |= 3;
}

/// Changes the index registers of a gather so that all addresses are inside the data.
fn make_gatherable(i: &Instruction, registers: &mut Registers) {
    let n = i.memory_index().number();
    let name = format!("{:?}", i.mnemonic());
    let bits = if name.contains("gatherd") { 32 } else { 64 };
    let shorten = |value: u128| {
        (0..128 / bits).fold(0, |sum, at| {
            let lane = (value >> (bits * at)) as i8 as i128 >> 5;
            sum | (lane as u128 & (u128::MAX >> (128 - bits))) << (bits * at)
        })
    };
    registers.vectors[n] = shorten(registers.vectors[n]);
    registers.uppers[n] = shorten(registers.uppers[n]);
}

/// Whether registers of a gather coincide, which raises #UD.
fn is_no_gather(i: &Instruction) -> bool {
    let registers = [i.op0_register(), i.op2_register(), i.memory_index()].map(Register::number);
    registers[0] == registers[1] || registers[1] == registers[2] || registers[0] == registers[2]
}

#[test]
fn every_instruction_matches_the_processor() {
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u64);
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ seed << 32 | 1);
    let buffer = Buffer::new();
    let mut wrong: Vec<String> = Vec::new();
    let (mut codes, mut cases, mut counted) = (0, 0, 0);
    // Within a cache line, because some hosts delay unaligned atomic accesses across lines by a second each.
    let mut data = vec![0u8; DATA_BYTES + 64];
    let skip = data.as_ptr().align_offset(64);
    let cases_each = std::env::var("LONGMA_X86_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    for code in Code::values() {
        if !is_compared(code) {
            continue;
        }
        let mut seen = false;
        for _ in 0..cases_each {
            let at = 32 * random.below(2) + if is_atomic(code) { random.below(20) } else { 0 };
            let Some(mut i) = instruction(code, &mut random, at) else { break };
            let mut encoder = Encoder::new(64);
            if encoder.encode(&i, SOURCE).is_err() {
                continue;
            }
            let bytes = encoder.take_buffer();
            i = iced_x86::Decoder::with_ip(64, &bytes, SOURCE, 0).decode();
            if i.is_invalid() || i.code() != code || is_not_comparable(&i) {
                continue;
            }
            seen = true;
            let doubles = random.below(2) == 0;
            let mut initial = random.registers(doubles);
            data[skip..skip + DATA_BYTES].iter_mut().for_each(|byte| *byte = random.next() as u8);
            let floats = random.vector(doubles).to_le_bytes();
            let middle = skip + (MIDDLE + at) as usize;
            if random.below(2) == 0 {
                data[middle..middle + 16].copy_from_slice(&floats);
                let floats = random.vector(doubles).to_le_bytes();
                data[middle + 16..middle + 32].copy_from_slice(&floats);
            }
            let data_at = data[skip..].as_ptr() as u64;
            initial.general[4] = 0;
            initial.general[7] = data_at + MIDDLE;
            if matches!(i.mnemonic(), Mnemonic::Div | Mnemonic::Idiv) {
                make_divisible(&mut initial, &mut data, middle);
            }
            let bits = matches!(i.mnemonic(), Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc);
            if bits && i.op0_kind() == OpKind::Memory && i.op1_kind() == OpKind::Register {
                initial.general[..4].iter_mut().for_each(|value| *value = (*value as i8 as i64) as u64);
                for number in [5, 6, 8, 9, 10, 11, 12, 13, 14, 15] {
                    initial.general[number] = initial.general[number] as i8 as i64 as u64;
                }
            }
            if i.is_vsib() {
                if is_no_gather(&i) {
                    continue;
                }
                make_gatherable(&i, &mut initial);
            }
            // Let the comparison succeed every other time.
            if matches!(i.mnemonic(), Mnemonic::Cmpxchg | Mnemonic::Cmpxchg8b | Mnemonic::Cmpxchg16b)
                && random.below(2) == 0
            {
                let current =
                    |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| data[middle + at + byte]));
                initial.general[0] = current(0);
                initial.general[2] = current(if i.mnemonic() == Mnemonic::Cmpxchg8b { 4 } else { 8 });
            }
            let divides = matches!(i.mnemonic(), Mnemonic::Div | Mnemonic::Idiv);
            let by_dividend = i.op0_kind() == OpKind::Register
                && matches!(i.op0_register().full_register(), Register::RAX | Register::RDX);
            if is_open(&i, &initial) || divides && by_dividend {
                continue;
            }
            if std::env::var_os("LONGMA_X86_SHOWN").is_some() {
                eprintln!("{i}");
            }
            let bytes = if has_mmx(&i) { with_mmx(&bytes) } else { bytes };
            let mut native = initial;
            let outcomes = [translated, interpreted].map(|execute| {
                let (mut ours, mut our_data) = (initial, data[skip..skip + DATA_BYTES].to_vec());
                let outcome = execute(&bytes, &mut ours, data_at, &mut our_data, None);
                (outcome, ours, our_data)
            });
            buffer.run(&bytes, &mut native);
            native.general[4] = 0;
            cases += 1;
            for (outcome, mut ours, our_data) in outcomes {
                match outcome {
                    Err(why) => wrong.push(format!("{i}: {why}")),
                    Ok(count) => {
                        counted += count;
                        ours.general[4] = 0;
                        let undefined_flags = undefined(&i, &initial) | !0x8d5;
                        let difference = (native.flags ^ ours.flags) & !undefined_flags;
                        if difference != 0 {
                            wrong.push(format!(
                                "{i}: flags {:#x}, not {:#x} ({initial:x?})",
                                ours.flags & 0x8d5,
                                native.flags & 0x8d5
                            ));
                        }
                        if native.general != ours.general {
                            wrong.push(format!(
                                "{i}: {:x?}, not {:x?} ({initial:x?})",
                                ours.general, native.general
                            ));
                        }
                        let floating = has_other_nans(&i);
                        let same = |a: u128, b: u128| a == b || floating && same_but_for_nans(a, b);
                        if let Some(n) = (0..16).find(|n| !same(native.vectors[*n], ours.vectors[*n])) {
                            wrong.push(format!(
                                "{i}: xmm{n} {:x}, not {:x} ({:x?})",
                                ours.vectors[n], native.vectors[n], initial.vectors
                            ));
                        }
                        if let Some(n) = (0..16).find(|n| !same(native.uppers[*n], ours.uppers[*n])) {
                            wrong.push(format!(
                                "{i}: ymm{n} above {:x}, not {:x} ({:x?})",
                                ours.uppers[n], native.uppers[n], initial.uppers
                            ));
                        }
                        if our_data != data[skip..skip + DATA_BYTES] {
                            wrong.push(format!("{i}: memory differs ({initial:x?})"));
                        }
                    }
                }
            }
        }
        codes += u64::from(seen);
    }
    println!("{codes} instructions, {cases} cases, {counted} LoongArch instructions");
    let mut names: Vec<&str> =
        wrong.iter().map(|text| text.split([' ', ':']).next().unwrap_or_default()).collect();
    names.sort_unstable();
    names.dedup();
    let excerpt: Vec<&str> = wrong.iter().map(|text| &text[..text.len().min(700)]).take(25).collect();
    assert!(wrong.is_empty(), "{} differences, in {names:?}\n{}", wrong.len(), excerpt.join("\n"));
    assert!(codes > 700, "{codes}");
}

/// AVX-512 encodings decode to the names of AVX instructions, and to registers beyond the sixteenth.
#[test]
fn instructions_that_cpuid_does_not_report_are_illegal() {
    let absent: [(&str, &[u8]); 8] = [
        ("vaddps zmm1, zmm2, zmm3", &[0x62, 0xf1, 0x6c, 0x48, 0x58, 0xcb]),
        ("vfmadd213sd xmm17, xmm2, xmm3", &[0x62, 0xe2, 0xed, 0x08, 0xa9, 0xcb]),
        ("vcvtph2ps zmm17, ymm1", &[0x62, 0xe2, 0x7d, 0x48, 0x13, 0xc9]),
        ("vpaddd xmm1{k1}, xmm2, xmm3", &[0x62, 0xf1, 0x6d, 0x09, 0xfe, 0xcb]),
        ("vmovdqu32 ymm16, [rdi]", &[0x62, 0xe1, 0x7e, 0x28, 0x6f, 0x07]),
        ("rdpid rax", &[0xf3, 0x0f, 0xc7, 0xf8]),
        ("vaesenc ymm1, ymm2, ymm3", &[0xc4, 0xe2, 0x6d, 0xdc, 0xcb]),
        ("vpclmulqdq ymm1, ymm2, ymm3, 0", &[0xc4, 0xe3, 0x6d, 0x44, 0xcb, 0x00]),
    ];
    for (text, bytes) in absent {
        let mut data = vec![0u8; DATA_BYTES];
        let data_at = data.as_ptr() as u64;
        let mut registers = Random(0x9e37_79b9_7f4a_7c15).registers(false);
        registers.general[7] = data_at + MIDDLE;
        let before = registers;
        let outcome = translated(bytes, &mut registers, data_at, &mut data, None);
        assert!(outcome.as_ref().is_err_and(|why| why.contains("IllegalInstruction")), "{text}: {outcome:?}");
        assert_eq!(registers, before, "{text}");
    }
}

/// Arbitrary bytes are translated and execution ends.
#[test]
fn random_bytes_do_not_panic() {
    let cases = std::env::var("LONGMA_X86_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(12) * 500;
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let heads: [&[u8]; 6] = [&[], &[0xc5], &[0xc4, 0xe2], &[0xc4, 0xe3], &[0x62], &[0x66, 0x0f]];
    for _ in 0..cases {
        let head = heads[random.below(6) as usize];
        let mut bytes = head.to_vec();
        bytes.extend((0..16).map(|_| random.next() as u8));
        let mut data = vec![0u8; DATA_BYTES];
        let data_at = data.as_ptr() as u64;
        let mut registers = random.registers(false);
        registers.general[7] = data_at + MIDDLE;
        // Any result is acceptable, as long as there is no panic.
        let _ = translated(&bytes, &mut registers, data_at, &mut data, None);
    }
}

/// The bases of FS and GS, which the processor cannot change in this test without losing its own.
#[test]
fn segment_bases_can_be_written_read_and_used() {
    const CODE: [u8; 36] = [
        0xf3, 0x48, 0x0f, 0xae, 0xd7, // wrfsbase rdi
        0xf3, 0x48, 0x0f, 0xae, 0xc0, // rdfsbase rax
        0xf3, 0x48, 0x0f, 0xae, 0xdf, // wrgsbase rdi
        0xf3, 0x0f, 0xae, 0xc9, // rdgsbase ecx
        0x64, 0x48, 0x8b, 0x14, 0x25, 0, 0, 0, 0, // mov rdx, fs:[0]
        0x65, 0x8a, 0x1c, 0x25, 1, 0, 0, 0, // mov bl, gs:[1]
    ];
    let mut data: Vec<u8> = (0..DATA_BYTES).map(|at| at as u8).collect();
    let data_at = data.as_ptr() as u64;
    let mut registers = Random(0x9e37_79b9_7f4a_7c15).registers(false);
    registers.general[7] = data_at + MIDDLE;
    translated(&CODE, &mut registers, data_at, &mut data, None).unwrap();
    let expected = u64::from_le_bytes(std::array::from_fn(|at| MIDDLE as u8 + at as u8));
    let [rax, rcx, rdx, rbx, ..] = registers.general;
    assert_eq!((rax, rcx, rdx), (data_at + MIDDLE, (data_at + MIDDLE) & 0xffff_ffff, expected));
    assert_eq!(rbx & 0xff, MIDDLE + 1);

    registers.general[7] = 1 << 47;
    let outcome = translated(&CODE[..5], &mut registers, data_at, &mut data, None);
    assert!(outcome.unwrap_err().contains("Memory"), "a base that is not canonical");
}

/// RDRAND and RDSEED set CF and clear the other flags.
#[test]
fn random_numbers_are_always_available() {
    for code in [&[0x48, 0x0f, 0xc7, 0xf0][..], &[0x0f, 0xc7, 0xf9]] {
        let mut data = vec![0u8; DATA_BYTES];
        let data_at = data.as_ptr() as u64;
        let mut registers = Random(0x9e37_79b9_7f4a_7c15).registers(false);
        registers.flags = 0xad7;
        translated(code, &mut registers, data_at, &mut data, None).unwrap();
        assert_eq!(registers.flags & 0x8d5, 1);
    }
}
