//! Each instruction of x86-64, on random states: executed by this host's own processor, and translated and interpreted as LoongArch code.
//! Registers, vectors, memory and the flags that the manual defines must be the same; of a NaN only that it is one.

#![cfg(target_arch = "x86_64")]

use std::cell::RefCell;

use iced_x86::{
    Code, CpuidFeature, Encoder, FlowControl, Instruction, Mnemonic, OpCodeOperandKind, OpKind, Register,
    RflagsBits,
};
use longma_loongarch::{
    Access, Environment, Fault, FaultCause, Scalar, State, Trap, decode as decode_word, semantics,
};
use longma_translate::engine::{Engine, Layout};
use longma_translate::front_end::{Exit, FrontEnd, Memory, Served, Structures};
use longma_translate::x86::X86_64;
use longma_translate::x86::registers::{GENERAL, TABLE, flags_of, set_flags_of};

/// What the processor begins and ends with.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(16))]
struct Registers {
    general: [u64; 16],
    flags: u64,
    unused: u64,
    vectors: [u128; 16],
}

std::arch::global_asm!(
    ".globl longma_test_run_natively",
    "longma_test_run_natively:",
    "push rbx; push rbp; push r12; push r13; push r14; push r15",
    "push rdi; push rsi",
    "movdqu xmm0, [rdi+144]; movdqu xmm1, [rdi+160]; movdqu xmm2, [rdi+176]; movdqu xmm3, [rdi+192]",
    "movdqu xmm4, [rdi+208]; movdqu xmm5, [rdi+224]; movdqu xmm6, [rdi+240]; movdqu xmm7, [rdi+256]",
    "movdqu xmm8, [rdi+272]; movdqu xmm9, [rdi+288]; movdqu xmm10, [rdi+304]; movdqu xmm11, [rdi+320]",
    "movdqu xmm12, [rdi+336]; movdqu xmm13, [rdi+352]; movdqu xmm14, [rdi+368]; movdqu xmm15, [rdi+384]",
    "push qword ptr [rdi+128]; popfq",
    "mov rax, [rdi]; mov rcx, [rdi+8]; mov rdx, [rdi+16]; mov rbx, [rdi+24]; mov rbp, [rdi+40]",
    "mov rsi, [rdi+48]; mov r8, [rdi+64]; mov r9, [rdi+72]; mov r10, [rdi+80]; mov r11, [rdi+88]",
    "mov r12, [rdi+96]; mov r13, [rdi+104]; mov r14, [rdi+112]; mov r15, [rdi+120]; mov rdi, [rdi+56]",
    "call qword ptr [rsp]",
    "pushfq",
    "push rdi; mov rdi, [rsp+24]",
    "mov [rdi], rax; mov [rdi+8], rcx; mov [rdi+16], rdx; mov [rdi+24], rbx; mov [rdi+40], rbp",
    "mov [rdi+48], rsi; mov [rdi+64], r8; mov [rdi+72], r9; mov [rdi+80], r10; mov [rdi+88], r11",
    "mov [rdi+96], r12; mov [rdi+104], r13; mov [rdi+112], r14; mov [rdi+120], r15",
    "pop rax; mov [rdi+56], rax; pop rax; mov [rdi+128], rax",
    "movdqu [rdi+144], xmm0; movdqu [rdi+160], xmm1; movdqu [rdi+176], xmm2; movdqu [rdi+192], xmm3",
    "movdqu [rdi+208], xmm4; movdqu [rdi+224], xmm5; movdqu [rdi+240], xmm6; movdqu [rdi+256], xmm7",
    "movdqu [rdi+272], xmm8; movdqu [rdi+288], xmm9; movdqu [rdi+304], xmm10; movdqu [rdi+320], xmm11",
    "movdqu [rdi+336], xmm12; movdqu [rdi+352], xmm13; movdqu [rdi+368], xmm14; movdqu [rdi+384], xmm15",
    "pop rsi; pop rdi",
    "cld",
    "pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx",
    "ret",
);

// SAFETY: the assembler text above defines it with this signature and keeps what the calling convention says is the caller's.
unsafe extern "C" {
    fn longma_test_run_natively(registers: *mut Registers, code: *const u8);
}

/// Memory that the host can execute.
struct Buffer(*mut u8);

impl Buffer {
    fn new() -> Self {
        // SAFETY: a new mapping of one page.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(page, libc::MAP_FAILED);
        Self(page.cast())
    }

    /// Executes one instruction, which accesses nothing but registers and the data that they point to.
    fn run(&self, instruction: &[u8], registers: &mut Registers) {
        // SAFETY: the page is ours; the instruction is followed by a return, leaves the stack alone, and accesses memory at addresses
        // that the caller has made sure of.
        unsafe {
            std::ptr::copy_nonoverlapping(instruction.as_ptr(), self.0, instruction.len());
            self.0.add(instruction.len()).write(0xc3);
            longma_test_run_natively(registers, self.0);
        }
    }
}

const SOURCE: u64 = 0x1_0000;
const CODE: u64 = 0x1000_0000;
const CODE_BYTES: u64 = 1 << 20;
const TABLE_AT: u64 = 0x2000_0000;
const SOURCE_BYTES: usize = 1024;
/// The top of the stack has room below it and a little above.
const STACK: u64 = 0x3000_0000;
const STACK_TOP: u64 = STACK + 2048;
const DATA_BYTES: usize = 256;
/// Where the memory operand may be, from the start of the data.
const MIDDLE: u64 = 96;

/// Memory in parts.
struct Parts(Vec<(u64, RefCell<Vec<u8>>)>);

impl Parts {
    fn part(&self, address: u64, bytes: usize, access: Access) -> Result<(&RefCell<Vec<u8>>, usize), Fault> {
        let fits = |start: u64, length: usize| {
            address >= start && address.saturating_add(bytes as u64) <= start + length as u64
        };
        let found = self.0.iter().find(|(start, part)| fits(*start, part.borrow().len()));
        let fault = Fault { address, access, cause: FaultCause::Unmapped };
        found.map(|(start, part)| (part, (address - start) as usize)).ok_or(fault)
    }
}

impl Environment for Parts {
    fn load<T: Scalar>(&self, address: u64) -> Result<T, Fault> {
        let (part, at) = self.part(address, size_of::<T>(), Access::Read)?;
        // SAFETY: so many bytes lie there, and every pattern of them is a number.
        Ok(unsafe { part.borrow()[at..].as_ptr().cast::<T>().read_unaligned() })
    }

    fn store<T: Scalar>(&self, address: u64, value: T) -> Result<(), Fault> {
        let (part, at) = self.part(address, size_of::<T>(), Access::Write)?;
        // SAFETY: so many bytes lie there.
        unsafe { part.borrow_mut()[at..].as_mut_ptr().cast::<T>().write_unaligned(value) };
        Ok(())
    }

    fn compare_exchange<T: Scalar>(&self, address: u64, expected: T, new: T) -> Result<T, Fault> {
        let found = self.load(address)?;
        if found == expected {
            self.store(address, new)?;
        }
        Ok(found)
    }

    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        self.load(address)
    }

    fn stable_counter(&self) -> u64 {
        0
    }

    fn cpucfg(&self, _: u32) -> u32 {
        0
    }
}

impl Memory for Parts {
    fn fetch(&self, address: u64) -> Result<u32, Fault> {
        self.load(address)
    }

    fn place(&self, words: &[(u64, u32)]) -> Result<(), Fault> {
        words.iter().try_for_each(|(address, word)| self.store(*address, *word))
    }

    fn replace(&self, address: u64, word: u32) -> Result<(), Fault> {
        self.store(address, word)
    }
}

impl Structures for Parts {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let Ok((part, at)) = self.part(address, bytes.len(), Access::Read) else { return false };
        bytes.copy_from_slice(&part.borrow()[at..at + bytes.len()]);
        true
    }

    fn write(&self, address: u64, bytes: &[u8]) -> bool {
        let Ok((part, at)) = self.part(address, bytes.len(), Access::Write) else { return false };
        part.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        true
    }

    fn writable(&self, address: u64, bytes: u64) -> u64 {
        if self.part(address, bytes as usize, Access::Write).is_ok() { bytes } else { 0 }
    }

    fn clock_ns(&self) -> u64 {
        0
    }
}

/// Executes instructions by their translation. Gives the LoongArch instructions executed. With `interruptions`, the program is now and then
/// interrupted where it can be, and goes on from what a handler of signals would see.
fn translated(
    instructions: &[u8],
    registers: &mut Registers,
    data_at: u64,
    data: &mut Vec<u8>,
    mut interruptions: Option<&mut Random>,
) -> Result<u64, String> {
    // Behind them, one that is none.
    let mut source = vec![0; SOURCE_BYTES];
    source[..instructions.len()].copy_from_slice(instructions);
    source[instructions.len()..][..2].copy_from_slice(&[0x0f, 0x0b]);
    let memory = Parts(vec![
        (SOURCE, source.into()),
        (CODE, vec![0; CODE_BYTES as usize].into()),
        (TABLE_AT + 4 * SOURCE, vec![0; 4096].into()),
        (data_at, std::mem::take(data).into()),
        (STACK, vec![0; 4096].into()),
    ]);
    let layout =
        Layout { code: CODE..CODE + CODE_BYTES, table: TABLE_AT, limit: SOURCE + SOURCE_BYTES as u64 };
    let mut engine = Engine::<X86_64>::new(layout);
    let mut state = State::default();
    X86_64::begin(&mut state, SOURCE);
    state.set_r(TABLE, TABLE_AT);
    for (number, value) in registers.general.iter().enumerate() {
        state.set_r(GENERAL[number], *value);
    }
    set_flags_of(&mut state, registers.flags);
    for (number, value) in registers.vectors.iter().enumerate() {
        state.v[16 + number].0 = [*value as u64, (value >> 64) as u64, 0, 0];
    }
    state.pc = engine.code_of(SOURCE, &memory).map_err(|refusal| format!("{refusal:?}"))?;
    let mut executed = 0;
    loop {
        if interruptions.as_mut().is_some_and(|random| random.below(6) == 0)
            && let Some(position) = engine.position(state.pc).filter(|position| position.is_boundary)
        {
            if let Some(pending) = position.pending {
                X86_64::settle(pending, &mut state);
            }
            state.set_r(1, 0);
            state.pc = engine.code_of(position.pc, &memory).map_err(|refusal| format!("{refusal:?}"))?;
        }
        let word = Environment::fetch(&memory, state.pc).map_err(|fault| format!("{fault}"))?;
        let instruction = decode_word(word).ok_or(format!("{word:#010x} is no instruction"))?;
        executed += 1;
        if executed > 10_000 {
            return Err("it does not end".into());
        }
        let Err(trap) = semantics::execute(&mut state, &instruction, &memory) else { continue };
        match (trap, engine.exit_at(state.pc)) {
            (Trap::Break(_), Some(Exit::Service(found))) if found.mnemonic() == Mnemonic::Ud2 => break,
            (Trap::Break(_), Some(Exit::To(pc))) => {
                state.pc = engine.code_of(pc, &memory).map_err(|refusal| format!("{refusal:?}"))?;
            }
            (Trap::Break(_), Some(Exit::Service(found))) => match X86_64::serve(found, &mut state, &memory) {
                Served::Done => state.pc += 4,
                other => return Err(format!("{other:?}")),
            },
            (trap, exit) => return Err(format!("{trap:?} at {exit:?}")),
        }
    }
    for (number, value) in registers.general.iter_mut().enumerate() {
        *value = state.r(GENERAL[number]);
    }
    registers.flags = flags_of(&state);
    for (number, value) in registers.vectors.iter_mut().enumerate() {
        *value = u128::from(state.v[16 + number].0[0]) | u128::from(state.v[16 + number].0[1]) << 64;
    }
    *data = memory.0.into_iter().nth(3).expect("four parts").1.into_inner();
    Ok(executed - 1)
}

/// A generator of numbers that is the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 20) % end
    }

    /// Numbers near the borders more often than chance has them.
    fn number(&mut self) -> u64 {
        let borders = [
            0,
            1,
            0x7f,
            0x80,
            0xff,
            0x7fff,
            0x8000,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_ffff,
            i64::MAX as u64,
            1 << 63,
            u64::MAX,
        ];
        match self.below(4) {
            0 => borders[self.below(borders.len() as u64) as usize],
            1 => self.next() >> self.below(64),
            _ => self.next(),
        }
    }

    fn vector(&mut self, doubles: bool) -> u128 {
        let floats =
            [0.0, -0.0, 1.0, -1.5, 2.5, 1e10, -3e9, 4e9, 1e19, -1e19, 0.1, f64::INFINITY, f64::NAN, 3.5, 0.5];
        match self.below(3) {
            0 => u128::from(self.next()) << 64 | u128::from(self.next()),
            1 => u128::from(self.number()) << 64 | u128::from(self.number()),
            _ if doubles => (0..2).fold(0, |sum, _| {
                sum << 64 | u128::from(floats[self.below(floats.len() as u64) as usize].to_bits())
            }),
            _ => (0..4).fold(0, |sum, _| {
                sum << 32 | u128::from((floats[self.below(floats.len() as u64) as usize] as f32).to_bits())
            }),
        }
    }
}

/// The parts of x86-64 whose instructions are compared.
const FEATURES: &[CpuidFeature] = &[
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
];

/// Those that cannot be compared so: what they give differs by design, or they take the stack or the kernel.
fn is_apart(i: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        i.mnemonic(),
        Cpuid
            | Rdtsc
            | Xlatb
            | Leave
            | Enter
            | Maskmovdqu
            | Rcpps
            | Rcpss
            | Rsqrtps
            | Rsqrtss
            | Ldmxcsr
            | Stmxcsr
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
            | Cmpxchg8b
    ) || is_missing(i)
        || i.is_privileged()
        || i.is_stack_instruction()
        || i.flow_control() != FlowControl::Next
        || i.has_xacquire_prefix()
}

/// Those that are not there yet, and not announced by `cpuid`.
fn is_missing(i: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        i.mnemonic(),
        Dppd | Dpps
            | Mpsadbw
            | Phminposuw
            | Pcmpestri
            | Pcmpestri64
            | Pcmpestrm
            | Pcmpestrm64
            | Pcmpistri
            | Pcmpistrm
    )
}

/// An instruction of this code with random operands; memory is `at` RDI.
fn instruction(code: Code, random: &mut Random, at: u64) -> Option<Instruction> {
    use OpCodeOperandKind::*;
    let mut i = Instruction::new();
    i.set_code(code);
    let general = |random: &mut Random| {
        // Not RSP; RDI has the address.
        [0u32, 1, 2, 3, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15][random.below(14) as usize]
    };
    let op_code = code.op_code();
    for operand in 0..op_code.op_count() {
        let kind = op_code.op_kind(operand);
        let memory = random.below(2) == 0;
        let (base, vector) = match kind {
            r8_reg | r8_opcode => (Some(Register::AL), false),
            r16_reg | r16_opcode | r16_rm => (Some(Register::AX), false),
            r32_reg | r32_opcode | r32_rm => (Some(Register::EAX), false),
            r64_reg | r64_opcode | r64_rm => (Some(Register::RAX), false),
            xmm_reg | xmm_rm => (Some(Register::XMM0), true),
            r8_or_mem if !memory => (Some(Register::AL), false),
            r16_or_mem if !memory => (Some(Register::AX), false),
            r32_or_mem if !memory => (Some(Register::EAX), false),
            r64_or_mem if !memory => (Some(Register::RAX), false),
            xmm_or_mem if !memory => (Some(Register::XMM0), true),
            _ => (Option::None, false),
        };
        if let Some(base) = base {
            let number = if vector { random.below(16) as u32 } else { general(random) };
            let register = match base {
                // SPL and its kin, and AH and its kin.
                Register::AL if number > 3 => Register::SPL + (number - 4),
                Register::AL if random.below(3) == 0 => Register::AH + number,
                _ => base + number,
            };
            i.set_op_kind(operand, OpKind::Register);
            i.set_op_register(operand, register);
            continue;
        }
        match kind {
            mem | r8_or_mem | r16_or_mem | r32_or_mem | r64_or_mem | xmm_or_mem => {
                i.set_op_kind(operand, OpKind::Memory);
                i.set_memory_base(Register::RDI);
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

/// The flags that the manual leaves open.
fn undefined(i: &Instruction, before: &Registers) -> u64 {
    use Mnemonic::*;
    let mut open = i.rflags_undefined();
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
        open = 0;
        if count != 0 && shifts {
            open |= RflagsBits::AF;
        }
        if count != 1 && count != 0 {
            open |= RflagsBits::OF;
        }
        if count >= width {
            open |= RflagsBits::CF;
        }
        if count > width && matches!(i.mnemonic(), Shld | Shrd) {
            open |= RflagsBits::CF | RflagsBits::ZF | RflagsBits::SF | RflagsBits::PF;
        }
    }
    let bits = [
        (RflagsBits::CF, 0),
        (RflagsBits::PF, 2),
        (RflagsBits::AF, 4),
        (RflagsBits::ZF, 6),
        (RflagsBits::SF, 7),
        (RflagsBits::OF, 11),
    ];
    bits.iter().filter(|(flag, _)| open & flag != 0).map(|(_, bit)| 1u64 << bit).sum()
}

/// Whether the result of an instruction is left open altogether.
fn is_open(i: &Instruction, before: &Registers) -> bool {
    // A double shift of 16 bits by more than that.
    let is_16 = i.op_count() == 3 && i.op1_kind() == OpKind::Register && i.op1_register().is_gpr16();
    if is_16 && matches!(i.mnemonic(), Mnemonic::Shld | Mnemonic::Shrd) {
        let count = if i.op2_kind() == OpKind::Register { before.general[1] as u8 } else { i.immediate8() };
        return count & 31 > 16;
    }
    false
}

fn same_but_for_nans(a: u128, b: u128) -> bool {
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

fn is_floating(i: &Instruction) -> bool {
    let name = format!("{:?}", i.mnemonic());
    let ends = ["ss", "sd", "ps", "pd"].iter().any(|end| name.ends_with(end));
    ends || name.starts_with("Cvt")
}

/// States in which a division has a quotient.
fn make_divisible(registers: &mut Registers, data: &mut [u8], at: usize) {
    registers.general[2] = 0;
    registers.general[0] &= 0x7f;
    for number in [1, 3, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15] {
        registers.general[number] |= 3;
        registers.general[number] |= 3 << 8;
    }
    data[at] |= 3;
}

#[test]
fn every_instruction_does_what_the_processor_does() {
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u64);
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ seed << 32 | 1);
    let buffer = Buffer::new();
    let mut wrong: Vec<String> = Vec::new();
    let (mut codes, mut cases, mut counted) = (0, 0, 0);
    let mut data = vec![0u8; DATA_BYTES + 16];
    let skip = data.as_ptr().align_offset(16);
    let cases_each = std::env::var("LONGMA_X86_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    for code in Code::values() {
        let op_code = code.op_code();
        let features = code.cpuid_features();
        if !op_code.mode64() || !features.iter().all(|feature| FEATURES.contains(feature)) {
            continue;
        }
        let mut seen = false;
        for _ in 0..cases_each {
            let at = 16 * random.below(2);
            let Some(mut i) = instruction(code, &mut random, at) else { break };
            let mut encoder = Encoder::new(64);
            if encoder.encode(&i, SOURCE).is_err() {
                continue;
            }
            let bytes = encoder.take_buffer();
            i = iced_x86::Decoder::with_ip(64, &bytes, SOURCE, 0).decode();
            if i.is_invalid() || i.code() != code || is_apart(&i) {
                continue;
            }
            seen = true;
            let doubles = random.below(2) == 0;
            let mut before = Registers {
                general: std::array::from_fn(|_| random.number()),
                flags: 0x202 | random.next() & 0x8d5,
                unused: 0,
                vectors: std::array::from_fn(|_| random.vector(doubles)),
            };
            data[skip..skip + DATA_BYTES].iter_mut().for_each(|byte| *byte = random.next() as u8);
            let floats = random.vector(doubles).to_le_bytes();
            let middle = skip + (MIDDLE + at) as usize;
            if random.below(2) == 0 {
                data[middle..middle + 16].copy_from_slice(&floats);
            }
            let data_at = data[skip..].as_ptr() as u64;
            before.general[4] = 0;
            before.general[7] = data_at + MIDDLE;
            if matches!(i.mnemonic(), Mnemonic::Div | Mnemonic::Idiv) {
                make_divisible(&mut before, &mut data, middle);
            }
            let bits = matches!(i.mnemonic(), Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc);
            if bits && i.op0_kind() == OpKind::Memory && i.op1_kind() == OpKind::Register {
                before.general[..4].iter_mut().for_each(|value| *value = (*value as i8 as i64) as u64);
                for number in [5, 6, 8, 9, 10, 11, 12, 13, 14, 15] {
                    before.general[number] = before.general[number] as i8 as i64 as u64;
                }
            }
            // Compared with what is there every other time.
            if matches!(i.mnemonic(), Mnemonic::Cmpxchg | Mnemonic::Cmpxchg16b) && random.below(2) == 0 {
                let there =
                    |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| data[middle + at + byte]));
                before.general[0] = there(0);
                before.general[2] = there(8);
            }
            let divides = matches!(i.mnemonic(), Mnemonic::Div | Mnemonic::Idiv);
            let by_dividend = i.op0_kind() == OpKind::Register
                && matches!(i.op0_register().full_register(), Register::RAX | Register::RDX);
            if is_open(&i, &before) || divides && by_dividend {
                continue;
            }
            if std::env::var_os("LONGMA_X86_SHOWN").is_some() {
                eprintln!("{i}");
            }
            let (mut native, mut ours) = (before, before);
            let mut our_data = data[skip..skip + DATA_BYTES].to_vec();
            let outcome = translated(&bytes, &mut ours, data_at, &mut our_data, None);
            buffer.run(&bytes, &mut native);
            cases += 1;
            match outcome {
                Err(why) => wrong.push(format!("{i}: {why}")),
                Ok(count) => {
                    counted += count;
                    native.general[4] = 0;
                    ours.general[4] = 0;
                    let open = undefined(&i, &before) | !0x8d5;
                    let difference = (native.flags ^ ours.flags) & !open;
                    if difference != 0 {
                        wrong.push(format!(
                            "{i}: flags {:#x}, not {:#x} ({before:x?})",
                            ours.flags & 0x8d5,
                            native.flags & 0x8d5
                        ));
                    }
                    if native.general != ours.general {
                        wrong.push(format!(
                            "{i}: {:x?}, not {:x?} ({before:x?})",
                            ours.general, native.general
                        ));
                    }
                    let floating = is_floating(&i);
                    let same = |a: u128, b: u128| a == b || floating && same_but_for_nans(a, b);
                    if let Some(n) = (0..16).find(|n| !same(native.vectors[*n], ours.vectors[*n])) {
                        wrong.push(format!(
                            "{i}: xmm{n} {:x}, not {:x} ({:x?})",
                            ours.vectors[n], native.vectors[n], before.vectors
                        ));
                    }
                    if our_data != data[skip..skip + DATA_BYTES] {
                        wrong.push(format!("{i}: memory differs ({before:x?})"));
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
    let shown: Vec<&str> = wrong.iter().map(|text| &text[..text.len().min(700)]).take(25).collect();
    assert!(wrong.is_empty(), "{} differences, in {names:?}\n{}", wrong.len(), shown.join("\n"));
    assert!(codes > 700, "{codes}");
}

/// The codes of instructions that sequences are made of.
fn sequence_codes() -> Vec<Code> {
    let is_used = |code: &Code| {
        let op_code = code.op_code();
        let features = code.cpuid_features();
        op_code.mode64() && features.iter().all(|feature| FEATURES.contains(feature))
    };
    Code::values().filter(is_used).collect()
}

/// Those that compilers write most: they make half of a sequence.
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
    )
}

/// Whether an instruction can stand in a sequence: it leaves RDI, R15 and the stack alone, and does the same whatever flags the manual
/// leaves open.
fn fits_in_sequence(i: &Instruction) -> bool {
    use Mnemonic::*;
    let is_shift = matches!(i.mnemonic(), Shl | Sal | Shr | Sar | Rol | Ror | Rcl | Rcr | Shld | Shrd);
    let last = i.op_count().saturating_sub(1);
    let by_register = i.op_count() > 1 && i.op_kind(last) == OpKind::Register;
    let bits = matches!(i.mnemonic(), Bt | Bts | Btr | Btc) && i.op0_kind() == OpKind::Memory && by_register;
    if is_apart(i) || is_shift && (by_register || i.op_count() == 3) || bits || i.is_string_instruction() {
        return false;
    }
    // Floating point may round or name NaNs otherwise; values are compared where that cannot be.
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

/// A sequence: its bytes, as text, and the flags that are open behind it.
struct Sequence {
    bytes: Vec<u8>,
    text: String,
    open: u64,
}

fn sequence(codes: &[Code], common: &[Code], random: &mut Random) -> Sequence {
    let loops = random.below(3) == 0;
    let mut made: Vec<Instruction> = Vec::new();
    // Branches, by the instruction they stand at, and the one they go to.
    let mut branches: Vec<(usize, usize)> = Vec::new();
    let mut open: u64 = if loops { 0x8d5 } else { 0 };
    let mut depth = 0;
    let target = 2 + random.below(12) as usize;
    let before = Registers { general: [0; 16], flags: 0, unused: 0, vectors: [0; 16] };
    // Behind a branch forwards, what is open if it is taken.
    let mut joins: Vec<(usize, u64)> = Vec::new();
    while made.len() < target || joins.iter().any(|(at, _)| *at > made.len()) {
        let here: Vec<u64> =
            joins.iter().filter(|(at, _)| *at == made.len()).map(|(_, open)| *open).collect();
        here.iter().for_each(|other| open |= other);
        let is_skipped = joins.iter().any(|(at, _)| *at > made.len());
        let general =
            [Register::RAX, Register::RCX, Register::RDX, Register::RBX, Register::RBP, Register::R8];
        let any = general[random.below(6) as usize];
        match random.below(14) {
            0 if !is_skipped && depth < 3 => {
                made.push(Instruction::with1(Code::Push_r64, any).unwrap());
                depth += 1;
                continue;
            }
            1 if !is_skipped && depth > 0 => {
                made.push(Instruction::with1(Code::Pop_r64, any).unwrap());
                depth -= 1;
                continue;
            }
            2 if depth > 0 => {
                let place = iced_x86::MemoryOperand::with_base(Register::RSP);
                let (code, register) = if random.below(2) == 0 {
                    (Code::Mov_r64_rm64, any)
                } else {
                    (Code::Mov_r32_rm32, Register::EAX + any.number() as u32)
                };
                made.push(Instruction::with2(code, register, place).unwrap());
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
                let over = 1 + random.below(3) as usize;
                branches.push((made.len(), made.len() + 1 + over));
                joins.push((made.len() + 1 + over, open));
                made.push(Instruction::with_branch(code, SOURCE).unwrap());
                continue;
            }
            _ => {}
        }
        let from = if random.below(3) > 0 { common } else { codes };
        let code = from[random.below(from.len() as u64) as usize];
        let at = 16 * random.below(2);
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
        let flag_bits = |flags: u32| {
            let mut bits = 0;
            for (flag, bit) in [
                (RflagsBits::CF, 0),
                (RflagsBits::PF, 2),
                (RflagsBits::AF, 4),
                (RflagsBits::ZF, 6),
                (RflagsBits::SF, 7),
                (RflagsBits::OF, 11),
            ] {
                if flags & flag != 0 {
                    bits |= 1u64 << bit;
                }
            }
            bits
        };
        if i.is_invalid()
            || i.code() != code
            || !fits_in_sequence(&i)
            || flag_bits(i.rflags_read()) & open != 0
        {
            continue;
        }
        open = open & !flag_bits(i.rflags_modified()) | undefined(&i, &before);
        made.push(i);
    }
    for (at, other) in joins {
        if at == made.len() {
            open |= other;
        }
    }
    while depth > 0 {
        made.push(Instruction::with1(Code::Pop_r64, Register::RSI).unwrap());
        depth -= 1;
    }
    if loops {
        made.push(Instruction::with1(Code::Dec_rm32, Register::R15D).unwrap());
        branches.push((made.len(), 0));
        made.push(Instruction::with_branch(Code::Jne_rel32_64, SOURCE).unwrap());
        open &= 1;
    }
    // Twice: where instructions stand is known then.
    let mut places = vec![SOURCE; made.len() + 1];
    let mut bytes = Vec::new();
    for _ in 0..2 {
        bytes.clear();
        for (index, i) in made.iter_mut().enumerate() {
            if let Some((_, to)) = branches.iter().find(|(at, _)| *at == index) {
                i.set_near_branch64(places[*to]);
            }
            let mut encoder = Encoder::new(64);
            places[index] = SOURCE + bytes.len() as u64;
            encoder.encode(i, places[index]).unwrap();
            bytes.extend(encoder.take_buffer());
        }
        places[made.len()] = SOURCE + bytes.len() as u64;
    }
    let text = made.iter().zip(&places).map(|(i, at)| format!("{at:x} {i}")).collect::<Vec<_>>().join("; ");
    Sequence { bytes, text, open }
}

#[test]
fn sequences_do_what_the_processor_does_also_when_they_are_interrupted() {
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u64);
    let cases = std::env::var("LONGMA_X86_SEQUENCES").ok().and_then(|n| n.parse().ok()).unwrap_or(4000);
    let mut random = Random(0x6c62_272e_07bb_0142 ^ seed << 32 | 1);
    let buffer = Buffer::new();
    let codes = sequence_codes();
    let common: Vec<Code> = codes.iter().copied().filter(|code| is_common(*code)).collect();
    let mut data = vec![0u8; DATA_BYTES + 16];
    let skip = data.as_ptr().align_offset(16);
    let mut wrong = Vec::new();
    let (mut instructions, mut counted) = (0, 0);
    for case in 0..cases {
        let Sequence { bytes, text, open } = sequence(&codes, &common, &mut random);
        if std::env::var_os("LONGMA_X86_SHOWN").is_some() {
            eprintln!("{case}: {text}");
        }
        let mut before = Registers {
            general: std::array::from_fn(|_| random.number()),
            flags: 0x202 | random.next() & 0x8d5,
            unused: 0,
            vectors: std::array::from_fn(|_| random.vector(true)),
        };
        data[skip..skip + DATA_BYTES].iter_mut().for_each(|byte| *byte = random.next() as u8);
        let data_at = data[skip..].as_ptr() as u64;
        before.general[4] = STACK_TOP;
        before.general[7] = data_at + MIDDLE;
        before.general[15] = 1 + random.below(3);
        let (mut native, mut ours) = (before, before);
        let mut our_data = data[skip..skip + DATA_BYTES].to_vec();
        let interruptions = (case % 2 == 1).then_some(&mut random);
        let outcome = translated(&bytes, &mut ours, data_at, &mut our_data, interruptions);
        buffer.run(&bytes, &mut native);
        instructions += text.matches(';').count() + 1;
        let executed = match outcome {
            Err(why) => {
                wrong.push(format!("{text}: {why}"));
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
        if our_data != data[skip..skip + DATA_BYTES] {
            different.push("memory".into());
        }
        if !different.is_empty() {
            wrong.push(format!("case {case}: {text}\n   {}\n   {before:x?}", different.join(", ")));
        }
    }
    println!("{cases} sequences of {instructions} instructions, {counted} LoongArch instructions executed");
    wrong.sort_by_key(|text| text.len());
    let shown: Vec<&str> = wrong.iter().map(|text| &text[..text.len().min(1500)]).take(8).collect();
    assert!(wrong.is_empty(), "{} differences\n{}", wrong.len(), shown.join("\n"));
}
