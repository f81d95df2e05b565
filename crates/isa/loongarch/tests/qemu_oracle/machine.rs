//! Runs all cases in a guest program under QEMU and compares the resulting registers and memory. Source: System V ABI
//! (ELF header, program header); Linux for LoongArch (system calls 64 `write` and 93 `exit`).

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use longma_loongarch::{Fcsr, Instruction, Op, State, decode, encode, semantics::execute};

use crate::array::Array;

/// The general registers available to a case: r4 to r15.
pub const GENERAL: std::ops::Range<u8> = 4..16;
/// The floating-point registers available to a case: f0 to f7.
pub const FLOAT: std::ops::Range<u8> = 0..8;
/// The size of the memory available to a case.
pub const SCRATCH_BYTES: usize = 64;

const IMAGE_BASE: u64 = 0x1000_0000;
const HEADER_BYTES: u64 = 64 + 56;
const RECORD_BYTES: u64 = 256;
const FLOAT_OFFSET: u64 = 96;
const FCC_OFFSET: u64 = 160;
const FCSR_OFFSET: u64 = 168;
const STUB_OFFSET: u64 = 176;
const SCRATCH_OFFSET: u64 = 192;

/// The initial or final state of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registers {
    /// r4 to r15.
    pub general: [u64; 12],
    /// f0 to f7.
    pub float: [u64; 8],
    pub fcc: [u8; 8],
    pub fcsr: u32,
    pub scratch: [u8; SCRATCH_BYTES],
}

impl Default for Registers {
    fn default() -> Self {
        Self { general: [0; 12], float: [0; 8], fcc: [0; 8], fcsr: 0, scratch: [0; SCRATCH_BYTES] }
    }
}

/// A few instructions, and the state from which to run them.
pub struct Case {
    pub stub: Vec<Instruction>,
    pub start: Registers,
    /// The general registers, by number, to which the address of the scratch memory is added.
    pub pointers: Vec<u8>,
}

/// Many cases, in one program.
#[derive(Default)]
pub struct Batch {
    cases: Vec<Case>,
}

/// A case whose final states differ.
pub struct Difference<'a> {
    pub case: &'a Case,
    pub ours: Registers,
    pub theirs: Registers,
}

impl Batch {
    pub fn push(&mut self, case: Case) {
        self.cases.push(case);
    }

    pub fn len(&self) -> usize {
        self.cases.len()
    }

    /// The instructions of all cases.
    pub fn ops(&self) -> impl Iterator<Item = Op> {
        self.cases.iter().flat_map(|case| case.stub.iter().map(|instruction| instruction.op))
    }

    /// Runs all cases on both machines. Returns those whose final states differ according to `same`.
    pub fn differences(
        &self,
        name: &str,
        same: impl Fn(&Case, &Registers, &Registers) -> bool,
    ) -> Vec<Difference<'_>> {
        let program = Program::new(&self.cases);
        let output = run(name, &program.image());
        assert_eq!(output.len() as u64, RECORD_BYTES * self.cases.len() as u64, "{name}: QEMU wrote less");
        let mut differences = Vec::new();
        for (index, case) in self.cases.iter().enumerate() {
            let theirs = Registers::from_record(&output[index * RECORD_BYTES as usize..]);
            let ours = program.interpret(index);
            if !same(case, &ours, &theirs) {
                differences.push(Difference { case, ours, theirs });
            }
        }
        differences
    }
}

impl Registers {
    fn to_record(&self, stub: u64) -> Vec<u8> {
        let mut record = Vec::with_capacity(RECORD_BYTES as usize);
        for value in self.general.iter().chain(&self.float) {
            record.extend(value.to_le_bytes());
        }
        record.extend(self.fcc);
        record.extend(u64::from(self.fcsr).to_le_bytes());
        record.extend(stub.to_le_bytes());
        record.resize(SCRATCH_OFFSET as usize, 0);
        record.extend(self.scratch);
        record
    }

    fn from_record(record: &[u8]) -> Self {
        let word = |offset: usize| u64::from_le_bytes(record[offset..offset + 8].try_into().unwrap());
        Self {
            general: std::array::from_fn(|n| word(8 * n)),
            float: std::array::from_fn(|n| word(FLOAT_OFFSET as usize + 8 * n)),
            fcc: record[FCC_OFFSET as usize..][..8].try_into().unwrap(),
            fcsr: word(FCSR_OFFSET as usize) as u32,
            scratch: record[SCRATCH_OFFSET as usize..][..SCRATCH_BYTES].try_into().unwrap(),
        }
    }
}

/// The code and its addresses.
struct Program<'a> {
    cases: &'a [Case],
    code: Vec<u32>,
    stubs: Vec<u64>,
    records: u64,
    return_address: u64,
}

impl<'a> Program<'a> {
    fn new(cases: &'a [Case]) -> Self {
        let code_base = IMAGE_BASE + HEADER_BYTES;
        let mut code = Vec::new();
        // The length of the driver does not depend on the addresses in it.
        let (driver, return_index) = driver(0x7fff_0000, 0x7fff_0000);
        code.resize(driver.len(), 0);
        let mut stubs: Vec<u64> = Vec::new();
        for (index, case) in cases.iter().enumerate() {
            // Consecutive cases with equal instructions share the code.
            if index > 0 && cases[index - 1].stub == case.stub {
                stubs.push(stubs[index - 1]);
                continue;
            }
            stubs.push(code_base + 4 * code.len() as u64);
            code.extend(case.stub.iter().map(|i| encode(i).expect("a case is encodable")));
            code.push(word(Op::Jirl, 0, 1, 0, 0));
        }
        let records = (code_base + 4 * code.len() as u64).next_multiple_of(64);
        let end = records + RECORD_BYTES * cases.len() as u64;
        let (driver, _) = self::driver(records, end);
        code[..driver.len()].copy_from_slice(&driver);
        Self { cases, code, stubs, records, return_address: code_base + 4 * return_index as u64 }
    }

    fn scratch(&self, index: usize) -> u64 {
        self.records + RECORD_BYTES * index as u64 + SCRATCH_OFFSET
    }

    fn start(&self, index: usize) -> Registers {
        let case = &self.cases[index];
        let mut start = case.start.clone();
        for pointer in &case.pointers {
            let register = &mut start.general[usize::from(pointer - GENERAL.start)];
            *register = register.wrapping_add(self.scratch(index));
        }
        start
    }

    fn image(&self) -> Vec<u8> {
        let mut image = elf_header();
        image.extend(self.code.iter().flat_map(|word| word.to_le_bytes()));
        image.resize((self.records - IMAGE_BASE) as usize, 0);
        for (index, stub) in self.stubs.iter().enumerate() {
            image.extend(self.start(index).to_record(*stub));
        }
        let file_size = image.len() as u64;
        image[64 + 32..][..8].copy_from_slice(&file_size.to_le_bytes());
        image[64 + 40..][..8].copy_from_slice(&file_size.to_le_bytes());
        image
    }

    /// The final state of a case according to the semantics here.
    fn interpret(&self, index: usize) -> Registers {
        let start = self.start(index);
        let memory =
            Array::new(self.scratch(index), start.scratch.to_vec(), IMAGE_BASE + HEADER_BYTES, &self.code);
        let mut state =
            State { pc: self.stubs[index], fcc: start.fcc, fcsr: Fcsr(start.fcsr), ..State::default() };
        state.x[usize::from(GENERAL.start)..usize::from(GENERAL.end)].copy_from_slice(&start.general);
        state.set_r(1, self.return_address);
        for n in FLOAT {
            state.set_f(n, start.float[usize::from(n)]);
        }
        let mut steps = 0;
        while state.pc != self.return_address {
            let word =
                longma_loongarch::Environment::fetch(&memory, state.pc).expect("a case stays in its stub");
            let instruction = decode(word).expect("a case decodes");
            execute(&mut state, &instruction, &memory)
                .unwrap_or_else(|trap| panic!("{instruction:?}: {trap}, from {start:?}"));
            steps += 1;
            assert!(steps < 100, "a case ends");
        }
        Registers {
            general: std::array::from_fn(|n| state.x[n + usize::from(GENERAL.start)]),
            float: std::array::from_fn(|n| state.f(n as u8)),
            fcc: state.fcc,
            fcsr: state.fcsr.0,
            scratch: memory.data.take().try_into().unwrap(),
        }
    }
}

fn word(op: Op, d: u8, j: u8, k: u8, imm: i32) -> u32 {
    encode(&Instruction { d, j, k, imm, ..Instruction::new(op) }).expect("the driver is encodable")
}

/// The loop that loads the registers of each record, calls its code and stores the registers, followed by the output.
/// Also returns the index of the word to which the code returns.
fn driver(records: u64, end: u64) -> (Vec<u32>, usize) {
    const RECORD: u8 = 23;
    const END: u8 = 24;
    const T0: u8 = 16;
    const T1: u8 = 17;
    let mut code = Vec::new();
    let mut emit = |op, d, j, k, imm| {
        code.push(word(op, d, j, k, imm));
        code.len()
    };
    let sign = |value: u64, bits: u32| ((value as i64) << (64 - bits) >> (64 - bits)) as i32;
    for (register, value) in [(RECORD, records), (END, end)] {
        emit(Op::Lu12iW, register, 0, 0, sign(value >> 12, 20));
        emit(Op::Ori, register, register, 0, (value & 0xfff) as i32);
    }
    let top = emit(Op::Or, T0, 0, 0, 0);
    for n in FLOAT {
        emit(Op::FldD, n, RECORD, 0, (FLOAT_OFFSET + 8 * u64::from(n)) as i32);
    }
    for n in 0..8 {
        emit(Op::LdBu, T0, RECORD, 0, FCC_OFFSET as i32 + n);
        emit(Op::Movgr2cf, n as u8, T0, 0, 0);
    }
    emit(Op::LdD, T0, RECORD, 0, FCSR_OFFSET as i32);
    emit(Op::Movgr2fcsr, 0, T0, 0, 0);
    for n in GENERAL {
        emit(Op::LdD, n, RECORD, 0, 8 * i32::from(n - GENERAL.start));
    }
    emit(Op::LdD, T1, RECORD, 0, STUB_OFFSET as i32);
    let return_index = emit(Op::Jirl, 1, T1, 0, 0);
    for n in GENERAL {
        emit(Op::StD, n, RECORD, 0, 8 * i32::from(n - GENERAL.start));
    }
    emit(Op::Movfcsr2gr, T0, 0, 0, 0);
    emit(Op::StD, T0, RECORD, 0, FCSR_OFFSET as i32);
    for n in FLOAT {
        emit(Op::FstD, n, RECORD, 0, (FLOAT_OFFSET + 8 * u64::from(n)) as i32);
    }
    for n in 0..8 {
        emit(Op::Movcf2gr, T0, n as u8, 0, 0);
        emit(Op::StB, T0, RECORD, 0, FCC_OFFSET as i32 + n);
    }
    emit(Op::AddiD, RECORD, RECORD, 0, RECORD_BYTES as i32);
    let pc = emit(Op::Or, T0, 0, 0, 0);
    emit(Op::Bne, END, RECORD, 0, 4 * (top as i32 - 1 - pc as i32));

    // write(1, records, end - records) until everything is written, then exit(0).
    emit(Op::Lu12iW, RECORD, 0, 0, sign(records >> 12, 20));
    emit(Op::Ori, RECORD, RECORD, 0, (records & 0xfff) as i32);
    let retry = emit(Op::Ori, 4, 0, 0, 1);
    emit(Op::Or, 5, RECORD, 0, 0);
    emit(Op::SubD, 6, END, RECORD, 0);
    emit(Op::Ori, 11, 0, 0, 64);
    emit(Op::Syscall, 0, 0, 0, 0);
    let pc = emit(Op::AddD, RECORD, RECORD, 4, 0);
    emit(Op::Bne, END, RECORD, 0, 4 * (retry as i32 - 1 - pc as i32));
    emit(Op::Or, 4, 0, 0, 0);
    emit(Op::Ori, 11, 0, 0, 93);
    emit(Op::Syscall, 0, 0, 0, 0);
    (code, return_index)
}

/// The headers of a static executable with one segment. The sizes are filled in later.
fn elf_header() -> Vec<u8> {
    let mut header = Vec::new();
    header.extend([0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    header.extend(2u16.to_le_bytes()); // ET_EXEC
    header.extend(258u16.to_le_bytes()); // EM_LOONGARCH
    header.extend(1u32.to_le_bytes());
    header.extend((IMAGE_BASE + HEADER_BYTES).to_le_bytes()); // entry
    header.extend(64u64.to_le_bytes()); // program headers
    header.extend(0u64.to_le_bytes()); // section headers
    header.extend(0x43u32.to_le_bytes()); // double-float ABI, object ABI 1
    header.extend([64u16, 56, 1, 64, 0, 0].iter().flat_map(|field| field.to_le_bytes()));
    header.extend(1u32.to_le_bytes()); // PT_LOAD
    header.extend(7u32.to_le_bytes()); // read, write, execute
    header.extend([0, IMAGE_BASE, IMAGE_BASE, 0, 0, 0x1_0000].iter().flat_map(|field| field.to_le_bytes()));
    header
}

/// Runs a program under QEMU and returns its output.
pub fn run(name: &str, image: &[u8]) -> Vec<u8> {
    use std::os::unix::fs::PermissionsExt;
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (program, output) = (folder.join(format!("{name}.elf")), folder.join(format!("{name}.out")));
    fs::write(&program, image).expect("the target folder is writable");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut child = Command::new("qemu-loongarch64")
        .arg(&program)
        .stdin(Stdio::null())
        .stdout(fs::File::create(&output).unwrap())
        .spawn()
        .expect("qemu-loongarch64 is installed (package qemu-user): it is this test's oracle");
    let deadline = Instant::now() + Duration::from_secs(120);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{name}: QEMU ran for two minutes");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{name}: QEMU ended with {status}");
    let bytes = fs::read(&output).unwrap();
    let _ = fs::remove_file(&program);
    let _ = fs::remove_file(&output);
    bytes
}
