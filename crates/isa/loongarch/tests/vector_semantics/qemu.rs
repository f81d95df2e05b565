//! QEMU as an oracle: a static LoongArch program executes all cases and prints the results. Without a QEMU that
//! supports vectors, only `formula.rs` is used. Source of the program format: System V gABI (ELF-64); LoongArch
//! Reference Manual, volume 1 (encodings, by the encoder here).

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use longma_loongarch::{Instruction, Op, encode};

use crate::case::{GENERAL, Inputs, MEMORY_BYTES, MEMORY_MIDDLE, Outputs, VECTOR, is_memory};

/// The size of one case in the program's data: inputs followed by outputs.
const RECORD: usize = 4 * 32 + 3 * 8 + 8 + 8 + MEMORY_BYTES + 32 + 8 + 8 + 8;
const AT_GENERAL: usize = 4 * 32;
const AT_FLAG: usize = AT_GENERAL + 3 * 8;
const AT_FCSR: usize = AT_FLAG + 8;
const AT_MEMORY: usize = AT_FCSR + 8;
const AT_LEFT: usize = AT_MEMORY + MEMORY_BYTES;

/// The load address of the program.
const BASE: u64 = 0x40_0000;
/// The size of the ELF header and one program header.
const HEADERS: usize = 64 + 56;
/// Registers of the driver: the address of the case, the number of remaining cases, a scratch register.
const RECORD_ADDRESS: u8 = 4;
const COUNT: u8 = 12;
const SCRATCH: u8 = 8;

/// Finds a QEMU that supports vector instructions, version 8.2 or newer: `LONGMA_QEMU_VECTOR`, or one in the path.
pub fn find() -> Option<PathBuf> {
    let candidates = [std::env::var_os("LONGMA_QEMU_VECTOR"), Some("qemu-loongarch64".into())];
    candidates.into_iter().flatten().map(PathBuf::from).find(|path| {
        let output = Command::new("timeout").arg("10").arg(path).arg("--version").output();
        let text =
            output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let version = text.split_once("version ").map_or("", |(_, rest)| rest);
        let mut numbers = version.split(['.', ' ']).map_while(|part| part.parse::<u32>().ok());
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (8, 2)
    })
}

/// The outputs of all cases according to QEMU.
pub fn run(qemu: &Path, cases: &[(Instruction, Vec<Inputs>)]) -> Vec<Vec<Outputs>> {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let program = folder.path().join("cases");
    std::fs::write(&program, elf(cases)).expect("the temporary folder can be written");
    make_executable(&program);
    let output = Command::new("timeout")
        .args(["120"])
        .arg(qemu)
        .args(["-cpu", "max"])
        .arg(&program)
        .stderr(Stdio::inherit())
        .output()
        .expect("timeout(1) can be started");
    let total: usize = cases.iter().map(|(_, given)| given.len()).sum();
    assert!(output.status.success(), "{}: {}", qemu.display(), output.status);
    assert_eq!(output.stdout.len(), total * RECORD, "the program prints every case");
    let mut records = output.stdout.chunks_exact(RECORD);
    cases.iter().map(|(_, given)| records.by_ref().take(given.len()).map(left).collect()).collect()
}

fn make_executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("the program is ours");
}

fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    std::array::from_fn(|i| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("eight bytes")))
}

fn left(record: &[u8]) -> Outputs {
    let result = &record[AT_LEFT..];
    let [general, flag, fcsr] = words(&result[32..]);
    Outputs {
        vector: words(result),
        general,
        flag: flag as u8,
        fcsr: fcsr as u32,
        memory: record[AT_MEMORY..AT_LEFT].try_into().expect("the memory's size"),
    }
}

fn record(inputs: &Inputs) -> Vec<u8> {
    let mut bytes: Vec<u8> = inputs.vectors.concat().into_iter().flat_map(u64::to_le_bytes).collect();
    for word in inputs.general.into_iter().chain([inputs.flag.into(), inputs.fcsr.into()]) {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(inputs.memory);
    bytes.resize(RECORD, 0);
    bytes
}

/// Encodes an instruction.
fn word(op: Op, d: u8, j: u8, imm: i32) -> u32 {
    encode(&Instruction { d, j, imm, ..Instruction::new(op) }).expect("the program's own instructions fit")
}

/// Loads a 31-bit number into a register.
fn load_number(register: u8, number: u64) -> [u32; 2] {
    let high = (number >> 12) as i32;
    let low = (number & 0xfff) as i32;
    [word(Op::Lu12iW, register, 0, high), word(Op::Ori, register, register, low)]
}

/// The loop over the cases of one instruction.
fn code_of(instruction: &Instruction, count: usize) -> Vec<u32> {
    let record = |op, register, at: usize| word(op, register, RECORD_ADDRESS, at as i32);
    let mut body = Vec::new();
    for (i, register) in VECTOR.into_iter().enumerate() {
        body.push(record(Op::Xvld, register, 32 * i));
    }
    for (i, register) in GENERAL.into_iter().enumerate() {
        body.push(record(Op::LdD, register, AT_GENERAL + 8 * i));
    }
    if is_memory(instruction.op) {
        body.push(record(Op::AddiD, GENERAL[1], AT_MEMORY + MEMORY_MIDDLE as usize));
    }
    body.push(record(Op::LdD, SCRATCH, AT_FLAG));
    body.push(word(Op::Movgr2cf, 0, SCRATCH, 0));
    body.push(record(Op::LdD, SCRATCH, AT_FCSR));
    body.push(word(Op::Movgr2fcsr, 0, SCRATCH, 0));
    body.push(encode(instruction).expect("the case's operands fit"));
    body.push(record(Op::Xvst, VECTOR[0], AT_LEFT));
    body.push(record(Op::StD, GENERAL[0], AT_LEFT + 32));
    body.push(word(Op::Movcf2gr, SCRATCH, 0, 0));
    body.push(record(Op::StD, SCRATCH, AT_LEFT + 40));
    body.push(word(Op::Movfcsr2gr, SCRATCH, 0, 0));
    body.push(record(Op::StD, SCRATCH, AT_LEFT + 48));
    body.push(word(Op::AddiD, RECORD_ADDRESS, RECORD_ADDRESS, RECORD as i32));
    body.push(word(Op::AddiD, COUNT, COUNT, -1));
    let backward = -4 * body.len() as i32;
    body.push(word(Op::Bnez, 0, COUNT, backward));
    [load_number(COUNT, count as u64).to_vec(), body].concat()
}

/// The program: the loops of all instructions, then the output of the data and an exit.
fn elf(cases: &[(Instruction, Vec<Inputs>)]) -> Vec<u8> {
    let loops: Vec<u32> =
        cases.iter().flat_map(|(instruction, given)| code_of(instruction, given.len())).collect();
    let data: Vec<u8> = cases.iter().flat_map(|(_, given)| given).flat_map(record).collect();
    // The length of the code does not depend on the numbers in it.
    let length = 4 * (2 + loops.len() + finish(0, 0).len());
    let start = (BASE as usize + HEADERS + length).next_multiple_of(64);
    let mut code = load_number(RECORD_ADDRESS, start as u64).to_vec();
    code.extend(loops);
    code.extend(finish(start as u64, data.len() as u64));
    let mut file = headers(start - BASE as usize + data.len());
    file.extend(code.into_iter().flat_map(u32::to_le_bytes));
    file.resize(start - BASE as usize, 0);
    file.extend(data);
    file
}

/// Writes the data to standard output until all is written, then calls `exit_group(0)`.
fn finish(start: u64, length: u64) -> Vec<u32> {
    const A0: u8 = 4;
    const A1: u8 = 5;
    const A2: u8 = 6;
    const A7: u8 = 11;
    const AT: u8 = 13;
    const REST: u8 = 14;
    let three = |op, d, j, k| encode(&Instruction { d, j, k, ..Instruction::new(op) }).expect("fits");
    let mut code = [load_number(AT, start), load_number(REST, length)].concat();
    let turn = [
        word(Op::Ori, A0, 0, 1),
        word(Op::Ori, A1, AT, 0),
        word(Op::Ori, A2, REST, 0),
        word(Op::Ori, A7, 0, 64),
        word(Op::Syscall, 0, 0, 0),
        three(Op::AddD, AT, AT, A0),
        three(Op::SubD, REST, REST, A0),
    ];
    code.extend(turn);
    code.push(word(Op::Bnez, 0, REST, -4 * turn.len() as i32));
    code.extend([word(Op::Ori, A0, 0, 0), word(Op::Ori, A7, 0, 94), word(Op::Syscall, 0, 0, 0)]);
    code
}

/// The ELF header and program header of one readable, writable and executable segment of `size` bytes.
fn headers(size: usize) -> Vec<u8> {
    let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let (executable, loongarch, hard_float) = (2u16, 258u16, 3u32 | 1 << 6);
    bytes.extend(executable.to_le_bytes());
    bytes.extend(loongarch.to_le_bytes());
    bytes.extend(1u32.to_le_bytes());
    for word in [BASE + HEADERS as u64, 64, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(hard_float.to_le_bytes());
    for half in [64u16, 56, 1, 64, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    let (load, read_write_execute) = (1u32, 7u32);
    bytes.extend(load.to_le_bytes());
    bytes.extend(read_write_execute.to_le_bytes());
    for word in [0, BASE, BASE, size as u64, size as u64, 0x1_0000] {
        bytes.extend(word.to_le_bytes());
    }
    assert_eq!(bytes.len(), HEADERS);
    bytes
}
