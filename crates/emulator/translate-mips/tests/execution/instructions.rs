//! Programs of random MIPS64 instructions: the translation, interpreted as LoongArch code, against `qemu-mips64el`.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use longma_loongarch::{Environment, State, Trap, decode as decode_word, semantics};
use longma_translate::engine::{Engine, Layout};
use longma_translate::front_end::{Exit, ServiceResult};
use longma_translate::optimizations::Optimizations;
use longma_translate_conformance::memory::TestMemory;
use longma_translate_mips::instruction::{Instruction, Op, decode, patterns};
use longma_translate_mips::registers::TABLE;
use longma_translate_mips::{Mips64, serve};

const BASE: u64 = 0x1_0000;
const CODE: u64 = 0x1000_0000;
const CODE_BYTES: u64 = 16 << 20;
const TABLE_AT: u64 = 0x2000_0000;
/// The memory that loads and stores access.
const DATA_AT: u64 = 0x1f_0000;
const DATA_BYTES: u64 = 0x100;
const STATE_AT: u64 = 0x20_0000;
const RESULTS_AT: u64 = 0x30_0000;
/// The size of one case's registers: 32 general, lo, hi, 32 floating-point.
const CASE_BYTES: usize = 66 * 8;

/// A deterministic xorshift generator.
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
}

/// One instruction and the registers before it.
struct Case {
    word: u32,
    state: [u64; 66],
}

/// Registers that the test program itself or the kernel uses.
fn is_taken(register: u8) -> bool {
    matches!(register, 0 | 24 | 26 | 27)
}

fn is_excluded(i: Instruction) -> bool {
    use Op::*;
    let traps = matches!(
        i.op,
        Add | Addi
            | Sub
            | Dadd
            | Daddi
            | Dsub
            | Syscall
            | Break
            | Teq
            | Tne
            | Tge
            | Tgeu
            | Tlt
            | Tltu
            | Teqi
            | Tnei
            | Tgei
            | Tgeiu
            | Tlti
            | Tltiu
    );
    // Fused operations round once instead of twice, reciprocals have an implementation-defined precision, and the
    // engine handles the control register.
    let incomparable = ["madd.", "msub.", "nmadd.", "nmsub.", "recip.", "rsqrt.", "sqrt.", "abs.", "neg."];
    i.has_delay_slot()
        || traps
        || matches!(
            i.op,
            Ll | Lld | Sc | Scd | Rdhwr | Synci | Cfc1 | Ctc1 | Prefx | Lwxc1 | Ldxc1 | Luxc1 | Swxc1
        )
        || matches!(i.op, Sdxc1 | Suxc1)
        || incomparable.iter().any(|name| i.mnemonic().starts_with(name))
}

fn is_memory(i: Instruction) -> bool {
    i.text(0).to_string().ends_with(')')
}

/// An instance of the instruction pattern, with operands whose result is architecturally defined.
fn instruction(matched: u32, mask: u32, random: &mut Random) -> Option<Instruction> {
    let mut word = matched | random.next() as u32 & !mask;
    let narrow = |random: &mut Random| 16 + random.below(8) as u32;
    let is_float = matches!(matched >> 26, 0x11 | 0x13);
    if is_memory(decode(word)?) {
        word = word & !(31 << 21 | 0xffff) | 4 << 21 | (8 + random.below(0xd0) as u32);
    } else if !is_float {
        for at in [21, 16].into_iter().filter(|at| mask >> at & 31 == 0) {
            word = word & !(31 << at) | narrow(random) << at;
        }
    } else if matched >> 21 & 31 >= 16 {
        // Doubles are in even registers, singles in odd ones, words and longs in the last four.
        let (first, step, count) = match matched >> 21 & 31 {
            16 => (1, 2, 14),
            17 => (0, 2, 14),
            _ => (28, 1, 4),
        };
        for at in [11, 16].into_iter().filter(|at| mask >> at & 31 == 0) {
            word = word & !(31 << at) | (first + step * random.below(count) as u32) << at;
        }
    }
    let decoded = decode(word)?;
    let general = [decoded.rs(), decoded.rt(), decoded.rd()];
    let fields = [21, 16, 11].map(|at| mask >> at & 31 == 0);
    let clash =
        !is_float && general.iter().zip(fields).any(|(register, is_field)| is_field && is_taken(*register));
    let moves = is_float && matched >> 21 & 31 < 8 && is_taken(decoded.rt());
    let zero = word.trailing_zeros() == 32;
    (!is_excluded(decoded) && !clash && !moves && !zero).then_some(decoded)
}

fn state(random: &mut Random) -> [u64; 66] {
    let mut state = [0; 66];
    for (number, value) in state.iter_mut().enumerate() {
        let bits = random.next() >> random.below(60);
        *value = match number {
            4 => DATA_AT,
            16..24 => bits as i32 as i64 as u64 | 1,
            0..34 => bits,
            62..66 => (random.below(2_000_000) as i64 - 1_000_000) as u64,
            _ if number % 2 == 0 => ((random.below(2_000_000) as f64 - 1e6) / 64.0).to_bits(),
            _ => u64::from(((random.below(20_000) as f32 - 1e4) / 8.0).to_bits()),
        };
    }
    state
}

/// The test program: each case loads its registers, executes its instruction and stores the result.
fn program(cases: &[Case]) -> Vec<u32> {
    let mut words = Vec::new();
    let immediate = |op: u32, rs: u32, rt: u32, imm: u32| op << 26 | rs << 21 | rt << 16 | imm & 0xffff;
    let point = |words: &mut Vec<u32>, address: u64| {
        words.push(immediate(0xf, 0, 24, (address >> 16) as u32));
        words.push(immediate(0xd, 24, 24, address as u32));
    };
    let registers = || (1..32u32).filter(|number| !is_taken(*number as u8));
    for (index, case) in cases.iter().enumerate() {
        let offset = (index * CASE_BYTES) as u64;
        point(&mut words, STATE_AT + offset);
        for (at, move_to) in [(32, 0x11), (33, 0x13)] {
            words.push(immediate(0x37, 24, 25, at * 8));
            words.push(25 << 21 | move_to);
        }
        words.extend((0..32).map(|number| immediate(0x35, 24, number, (34 + number) * 8)));
        words.extend(registers().map(|number| immediate(0x37, 24, number, number * 8)));
        words.push(case.word);
        point(&mut words, RESULTS_AT + offset);
        words.extend(registers().map(|number| immediate(0x3f, 24, number, number * 8)));
        words.extend((0..32).map(|number| immediate(0x3d, 24, number, (34 + number) * 8)));
        for (at, move_from) in [(32, 0x10), (33, 0x12)] {
            words.push(25 << 11 | move_from);
            words.push(immediate(0x3f, 24, 25, at * 8));
        }
    }
    let bytes = cases.len() * CASE_BYTES;
    // write(1, results, bytes), write(1, data, bytes), exit_group(0)
    for (address, length) in [(RESULTS_AT, bytes as u64), (DATA_AT, DATA_BYTES)] {
        words.push(immediate(9, 0, 4, 1));
        words.push(immediate(0xf, 0, 5, (address >> 16) as u32));
        words.push(immediate(0xf, 0, 6, (length >> 16) as u32));
        words.push(immediate(0xd, 6, 6, length as u32));
        words.push(immediate(9, 0, 2, 5001));
        words.push(0xc);
    }
    words.extend([immediate(9, 0, 4, 0), immediate(9, 0, 2, 5205), 0xc]);
    words
}

/// The initial memory from [`BASE`] on.
fn image(cases: &[Case]) -> Vec<u8> {
    let mut image: Vec<u8> = program(cases).into_iter().flat_map(u32::to_le_bytes).collect();
    assert!(image.len() as u64 + BASE < DATA_AT);
    image.resize((DATA_AT - BASE) as usize, 0);
    image.extend((0..DATA_BYTES).map(|byte| byte as u8 ^ 0xa5));
    image.resize((STATE_AT - BASE) as usize, 0);
    image.extend(cases.iter().flat_map(|case| case.state).flat_map(u64::to_le_bytes));
    image
}

fn elf(image: &[u8]) -> Vec<u8> {
    const HEADERS: u64 = 0x1000;
    let mut file = Vec::new();
    file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    file.extend(2u16.to_le_bytes());
    file.extend(8u16.to_le_bytes());
    file.extend(1u32.to_le_bytes());
    [BASE, 64, 0].iter().for_each(|word| file.extend(word.to_le_bytes()));
    file.extend(0x8000_0000u32.to_le_bytes());
    [64u16, 56, 1, 64, 0, 0].iter().for_each(|half| file.extend(half.to_le_bytes()));
    [1u32, 7].iter().for_each(|word| file.extend(word.to_le_bytes()));
    let words = [HEADERS, BASE, BASE, image.len() as u64, 0x50_0000, 0x1000];
    words.iter().for_each(|word| file.extend(word.to_le_bytes()));
    file.resize(HEADERS as usize, 0);
    file.extend(image);
    file
}

/// The program's output under QEMU.
fn reference(image: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("the folder for temporary files can be written");
    let path = folder.path().join("program");
    std::fs::write(&path, elf(image)).expect("the folder is ours");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("the file is ours");
    let output = Command::new("qemu-mips64el").arg(&path).output();
    let output = output.expect("qemu-mips64el is installed (Debian: qemu-user)");
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// The program's output when translated and interpreted, and the number of LoongArch instructions executed.
fn translated(image: &[u8], choice: Optimizations) -> (Vec<u8>, u64) {
    let mut low = vec![0; 0x50_0000];
    low[BASE as usize..][..image.len()].copy_from_slice(image);
    let memory =
        TestMemory::new([(0, low), (CODE, vec![0; CODE_BYTES as usize]), (TABLE_AT, vec![0; 0x50_0000])]);
    let layout = Layout { code: CODE..CODE + CODE_BYTES, table: TABLE_AT, limit: 0x50_0000 };
    let mut engine = Engine::<Mips64>::new(layout, choice);
    let mut state = State::default();
    state.set_r(TABLE, TABLE_AT);
    state.pc = engine.code_of(BASE, &memory).expect("there is code");
    let (mut written, mut executed) = (Vec::new(), 0);
    loop {
        let word = Environment::fetch(&memory, state.pc).expect("code is mapped");
        let instruction = decode_word(word).unwrap_or_else(|| panic!("{word:#010x} at {:#x}", state.pc));
        executed += 1;
        let Err(trap) = semantics::execute(&mut state, &instruction, &memory) else { continue };
        match (trap, engine.exit_at(state.pc)) {
            (Trap::Break(_), Some(Exit::To(pc))) => {
                state.pc = engine.follow(state.pc, pc, &memory).expect("there is code");
            }
            (Trap::Break(_), Some(Exit::Service(instruction))) => {
                assert_eq!(serve(instruction, &mut state), ServiceResult::Done);
                state.pc += 4;
            }
            (Trap::Syscall(_), _) if state.r(2) == 5205 => return (written, executed),
            (Trap::Syscall(_), _) => {
                let (from, bytes) = (state.r(5) as usize, state.r(6) as usize);
                written.extend_from_slice(&memory.bytes(0)[from..from + bytes]);
                state.pc += 4;
            }
            (trap, exit) => panic!("{trap:?} at {:#x}: {exit:?}, {:?}", state.pc, engine.position(state.pc)),
        }
    }
}

/// A mask of the bits of register `index` that the manual defines after `i`.
fn defined(i: Instruction, index: usize) -> u64 {
    let is_float = index >= 34;
    let single = |at: u8| is_float && index - 34 == usize::from(at);
    let (narrow, last) = (i.mnemonic().contains(".w") || i.mnemonic().ends_with(".s"), i.sa());
    match i.op {
        Op::Mul if index == 32 || index == 33 => 0,
        Op::Mtc1 | Op::Lwc1 if single(i.rd()) || single(i.rt()) => 0xffff_ffff,
        Op::CvtSD | Op::CvtSL | Op::CvtSW if single(last) => 0xffff_ffff,
        _ if narrow && single(last) && !i.mnemonic().contains(".l") => 0xffff_ffff,
        _ => u64::MAX,
    }
}

#[test]
fn every_instruction_matches_qemu_on_random_registers() {
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut cases = Vec::new();
    for (matched, mask) in patterns() {
        for _ in 0..6 {
            let Some(generated) = (0..40).find_map(|_| instruction(matched, mask, &mut random)) else {
                continue;
            };
            cases.push(Case { word: generated.word, state: state(&mut random) });
        }
    }
    assert!(cases.len() > 900, "{}", cases.len());
    let mut wrong = Vec::new();
    for cases in cases.chunks(400) {
        let image = image(cases);
        let (expected, (generated, _)) = (reference(&image), translated(&image, Optimizations::default()));
        assert_eq!(expected.len(), generated.len());
        assert_eq!(generated, translated(&image, Optimizations::NONE).0, "without optimizations");
        let results = expected.chunks(8).zip(generated.chunks(8)).enumerate();
        for (at, (expected, generated)) in results {
            let (case, index) = (at / 66, at % 66);
            let Some(case) = cases.get(case) else {
                assert_eq!(expected, generated, "memory, word {at}");
                continue;
            };
            let i = decode(case.word).expect("it was one");
            let bits =
                |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight")) & defined(i, index);
            if bits(expected) != bits(generated) {
                let [s, t] = [i.rs(), i.rt()].map(|register| case.state[usize::from(register)]);
                wrong.push(format!(
                    "{}: register {index} is {:#x}, not {:#x}; rs {s:#x}, rt {t:#x}",
                    i.text(0),
                    bits(generated),
                    bits(expected)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differences\n{}", wrong.len(), wrong[..wrong.len().min(60)].join("\n"));
}

#[test]
fn hi_and_lo_are_preserved_across_a_call() {
    let immediate =
        |op: u32, rs: u32, rt: u32, imm: u64| op << 26 | rs << 21 | rt << 16 | imm as u32 & 0xffff;
    let (dmult, mflo, mfhi, bal, nop) = (0x1c, 0x12, 0x10, 0x11, 0);
    let call = vec![
        immediate(9, 0, 16, -3i64 as u64),
        immediate(9, 0, 17, 5),
        16 << 21 | 17 << 16 | dmult,
        // The call's target is the instruction after its delay slot, which is its return address too.
        immediate(1, 0, bal, 1),
        nop,
        18 << 11 | mflo,
        19 << 11 | mfhi,
        immediate(0xf, 0, 24, RESULTS_AT >> 16),
        immediate(0xd, 24, 24, RESULTS_AT),
        immediate(0x3f, 24, 18, 0),
        immediate(0x3f, 24, 19, 8),
    ];
    let mut image = image(&[]);
    let code: Vec<u8> = call.into_iter().chain(program(&[])).flat_map(u32::to_le_bytes).collect();
    image[..code.len()].copy_from_slice(&code);
    // Without cases, the program writes the results of the call.
    let length = 16u32;
    let at = code.len() - program(&[]).len() * 4 + 3 * 4;
    image[at..at + 4].copy_from_slice(&immediate(0xd, 6, 6, length.into()).to_le_bytes());
    let expected = reference(&image);
    assert_eq!(expected[..16], [(-15i64).to_le_bytes(), (-1i64).to_le_bytes()].concat());
    assert_eq!(translated(&image, Optimizations::default()).0, expected);
    assert_eq!(translated(&image, Optimizations::NONE).0, expected);
}
