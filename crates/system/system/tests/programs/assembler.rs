//! Builds programs that run in privileged mode. A program records values; its last part prints them on the serial port
//! and switches the machine off. The same program therefore runs on this machine and on QEMU, and its output can be
//! compared.

use longma_loongarch::{Instruction, Op, encode};
use longma_system::map;

/// The address at which programs start. QEMU puts its boot information below it.
pub const CODE: u64 = 0x0100_0000;
/// The address of the recorded values.
pub const RESULTS: u64 = 0x0110_0000;
/// The address of the handler of general exceptions.
pub const HANDLER: u64 = 0x0120_0000;
/// The address of the handler of TLB refills.
pub const REFILL: u64 = 0x0121_0000;
/// The address of the data of programs.
pub const DATA: u64 = 0x0130_0000;

pub const ZERO: u8 = 0;
pub const RA: u8 = 1;
pub const A0: u8 = 4;
pub const A1: u8 = 5;
pub const A2: u8 = 6;
pub const T0: u8 = 12;
pub const T1: u8 = 13;
pub const T2: u8 = 14;
/// Scratch registers of handlers. Programs do not use them.
pub const H0: u8 = 18;
pub const H1: u8 = 19;
/// The register that points to the next record.
const NEXT: u8 = 23;

/// A sequence of instructions at a fixed address.
pub struct Code {
    pub base: u64,
    pub words: Vec<u32>,
}

impl Code {
    pub fn at(base: u64) -> Self {
        Self { base, words: Vec::new() }
    }

    /// The address of the next instruction.
    pub fn here(&self) -> u64 {
        self.base + 4 * self.words.len() as u64
    }

    pub fn word(&mut self, word: u32) -> &mut Self {
        self.words.push(word);
        self
    }

    fn put(&mut self, instruction: Instruction) -> &mut Self {
        self.word(encode(&instruction).expect("operands fit"))
    }

    pub fn plain(&mut self, op: Op) -> &mut Self {
        self.put(Instruction::new(op))
    }

    /// Appends an instruction with three register operands.
    pub fn rrr(&mut self, op: Op, d: u8, j: u8, k: u8) -> &mut Self {
        self.put(Instruction { d, j, k, ..Instruction::new(op) })
    }

    /// Appends an instruction with two register operands and an immediate.
    pub fn rri(&mut self, op: Op, d: u8, j: u8, imm: i32) -> &mut Self {
        self.put(Instruction { d, j, imm, ..Instruction::new(op) })
    }

    pub fn invtlb(&mut self, operation: i32, j: u8, k: u8) -> &mut Self {
        self.put(Instruction { j, k, imm: operation, ..Instruction::new(Op::Invtlb) })
    }

    /// Sets `d` to a constant, in four instructions.
    pub fn set(&mut self, d: u8, value: u64) -> &mut Self {
        self.rri(Op::Lu12iW, d, 0, (value as u32 as i32) >> 12);
        self.rri(Op::Ori, d, d, (value & 0xfff) as i32);
        self.rri(Op::Lu32iD, d, 0, ((value << 12) as i64 >> 44) as i32);
        self.rri(Op::Lu52iD, d, d, (value as i64 >> 52) as i32)
    }

    /// Reads a CSR to `d`.
    pub fn read(&mut self, d: u8, csr: u16) -> &mut Self {
        self.rri(Op::Csrxchg, d, 0, csr.into())
    }

    /// Exchanges `d` and a CSR.
    pub fn swap(&mut self, d: u8, csr: u16) -> &mut Self {
        self.rri(Op::Csrxchg, d, 1, csr.into())
    }

    /// Sets a CSR to a constant. Clobbers [`T0`].
    pub fn write(&mut self, csr: u16, value: u64) -> &mut Self {
        self.set(T0, value).swap(T0, csr)
    }

    /// Records a register.
    pub fn record(&mut self, register: u8) -> &mut Self {
        self.rri(Op::StD, register, NEXT, 0).rri(Op::AddiD, NEXT, NEXT, 8)
    }

    /// Records a CSR. Clobbers [`H0`].
    pub fn record_csr(&mut self, csr: u16) -> &mut Self {
        self.read(H0, csr).record(H0)
    }

    /// Jumps to an address in the mode of PRMD: its privilege level, with interrupts enabled if PIE is set. Clobbers
    /// [`T0`].
    pub fn enter(&mut self, address: u64, mode: u64) -> &mut Self {
        self.write(csr::ERA, address).write(csr::PRMD, mode).plain(Op::Ertn)
    }
}

pub use longma_system::csr::table as csr;

/// A program: code at several addresses, of which the first starts at [`CODE`].
pub struct Program(pub Vec<Code>);

/// Builds a program whose main part consists of a preamble, the code of `body`, and the printing of the records.
pub fn program(body: impl FnOnce(&mut Code), handlers: Vec<Code>) -> Program {
    let mut code = Code::at(CODE);
    code.set(NEXT, RESULTS).write(csr::EENTRY, HANDLER).write(csr::TLBRENTRY, REFILL);
    code.write(csr::ECFG, 0).write(csr::EUEN, 0);
    body(&mut code);
    finish(&mut code);
    Program(std::iter::once(code).chain(handlers).collect())
}

/// A handler that records the exception's code and address, and continues after the instruction at privilege level 0.
pub fn skipping_handler() -> Code {
    let mut code = Code::at(HANDLER);
    record_exception(&mut code);
    code.read(H0, csr::ERA).rri(Op::AddiD, H0, H0, 4).swap(H0, csr::ERA);
    code.set(H0, 0).swap(H0, csr::PRMD).plain(Op::Ertn);
    code
}

/// Records the exception code (EsubCode and Ecode) and ERA.
pub fn record_exception(code: &mut Code) {
    let code_bits = Instruction { d: H0, j: H0, imm: 30, imm2: 16, ..Instruction::new(Op::BstrpickD) };
    code.read(H0, csr::ESTAT).put(code_bits).record(H0).record_csr(csr::ERA);
}

/// Prints each record as 16 hexadecimal digits and a line feed, and switches the machine off.
fn finish(code: &mut Code) {
    const ADDRESS: u8 = 24;
    const SHIFT: u8 = 25;
    const UART: u8 = 26;
    const DIGIT: u8 = 27;
    const VALUE: u8 = 28;
    const LIMIT: u8 = 29;
    // Return to direct translation from any mode.
    code.set(T0, 8).swap(T0, csr::CRMD);
    code.set(ADDRESS, RESULTS).set(UART, map::UART).rri(Op::AddiD, LIMIT, ZERO, 10);
    let next = code.here();
    code.rri(Op::Beq, NEXT, ADDRESS, 4 * 15);
    code.rri(Op::LdD, VALUE, ADDRESS, 0).rri(Op::AddiD, ADDRESS, ADDRESS, 8).rri(Op::AddiD, SHIFT, ZERO, 60);
    let digit = code.here();
    code.rrr(Op::SrlD, DIGIT, VALUE, SHIFT).rri(Op::Andi, DIGIT, DIGIT, 15);
    code.rri(Op::Blt, LIMIT, DIGIT, 4 * 2);
    code.rri(Op::AddiD, DIGIT, DIGIT, i32::from(b'a' - b'0' - 10));
    code.rri(Op::AddiD, DIGIT, DIGIT, i32::from(b'0'));
    code.rri(Op::StB, DIGIT, UART, 0).rri(Op::AddiD, SHIFT, SHIFT, -4);
    let back = digit as i64 - code.here() as i64;
    code.rri(Op::Bge, ZERO, SHIFT, back as i32);
    code.rri(Op::AddiD, DIGIT, ZERO, 10).rri(Op::StB, DIGIT, UART, 0);
    let back = next as i64 - code.here() as i64;
    code.rri(Op::B, 0, 0, back as i32);
    code.set(T0, map::POWER).set(T1, longma_system::POWER_OFF).rri(Op::StB, T1, T0, 0);
    code.rri(Op::B, 0, 0, 0);
}
