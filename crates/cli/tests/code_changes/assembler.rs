//! A small LoongArch64 assembler for the tests: instructions, labels, system calls.
//! Source: LoongArch Reference Manual, volume 1, chapter 2 and appendix B; Linux include/uapi/asm-generic/unistd.h.
#![allow(dead_code, reason = "a vocabulary")]

pub const ZERO: u32 = 0;
pub const RA: u32 = 1;
pub const SP: u32 = 3;
pub const A0: u32 = 4;
pub const A1: u32 = 5;
pub const A2: u32 = 6;
pub const A3: u32 = 7;
pub const A4: u32 = 8;
pub const A5: u32 = 9;
pub const A7: u32 = 11;
pub const T0: u32 = 12;
pub const T1: u32 = 13;
pub const T2: u32 = 14;
pub const T3: u32 = 15;
/// Registers that called code preserves.
pub const S0: u32 = 23;
pub const S1: u32 = 24;
pub const S2: u32 = 25;
pub const S3: u32 = 26;
pub const S4: u32 = 27;
pub const S5: u32 = 28;
pub const S6: u32 = 29;

pub const RETURN: u32 = 0x4c00_0020;
pub const SYSCALL: u32 = 0x002b_0000;
pub const DATA_BARRIER: u32 = 0x3872_0000;
pub const INSTRUCTION_BARRIER: u32 = 0x3872_8000;

pub mod call {
    pub const FTRUNCATE: i64 = 46;
    pub const OPENAT: i64 = 56;
    pub const CLOSE: i64 = 57;
    pub const PIPE2: i64 = 59;
    pub const READ: i64 = 63;
    pub const WRITE: i64 = 64;
    pub const READV: i64 = 65;
    pub const PREAD: i64 = 67;
    pub const PWRITE: i64 = 68;
    pub const EXIT: i64 = 93;
    pub const EXIT_GROUP: i64 = 94;
    pub const SCHED_YIELD: i64 = 124;
    pub const TGKILL: i64 = 131;
    pub const SIGACTION: i64 = 134;
    pub const GETPID: i64 = 172;
    pub const GETTID: i64 = 178;
    pub const MUNMAP: i64 = 215;
    pub const CLONE: i64 = 220;
    pub const MMAP: i64 = 222;
    pub const MPROTECT: i64 = 226;
    pub const WAIT4: i64 = 260;
    pub const MEMFD_CREATE: i64 = 279;
}

/// `addi.d d, j, value`
pub const fn addi(d: u32, j: u32, value: i32) -> u32 {
    0x02c0_0000 | (value as u32 & 0xfff) << 10 | j << 5 | d
}

/// `addi.w d, j, value`
pub const fn addi_w(d: u32, j: u32, value: i32) -> u32 {
    0x0280_0000 | (value as u32 & 0xfff) << 10 | j << 5 | d
}

/// `ori d, j, value`
pub const fn ori(d: u32, j: u32, value: u32) -> u32 {
    0x0380_0000 | (value & 0xfff) << 10 | j << 5 | d
}

/// `andi d, j, value`
pub const fn andi(d: u32, j: u32, value: u32) -> u32 {
    0x0340_0000 | (value & 0xfff) << 10 | j << 5 | d
}

/// `slli.d d, j, by`
pub const fn shift_left(d: u32, j: u32, by: u32) -> u32 {
    0x0041_0000 | by << 10 | j << 5 | d
}

/// `sltui d, j, value`
pub const fn is_below(d: u32, j: u32, value: i32) -> u32 {
    0x0240_0000 | (value as u32 & 0xfff) << 10 | j << 5 | d
}

/// `add.d d, j, k`
pub const fn add(d: u32, j: u32, k: u32) -> u32 {
    0x0010_8000 | k << 10 | j << 5 | d
}

/// `or d, j, k`
pub const fn or(d: u32, j: u32, k: u32) -> u32 {
    0x0015_0000 | k << 10 | j << 5 | d
}

/// `mul.d d, j, k`
pub const fn multiply(d: u32, j: u32, k: u32) -> u32 {
    0x001d_8000 | k << 10 | j << 5 | d
}

/// `or d, j, $zero`
pub const fn copy(d: u32, j: u32) -> u32 {
    or(d, j, ZERO)
}

/// `ld.d d, j, offset`
pub const fn load(d: u32, j: u32, offset: i32) -> u32 {
    0x28c0_0000 | (offset as u32 & 0xfff) << 10 | j << 5 | d
}

/// `ld.w d, j, offset`
pub const fn load_w(d: u32, j: u32, offset: i32) -> u32 {
    0x2880_0000 | (offset as u32 & 0xfff) << 10 | j << 5 | d
}

/// `st.d d, j, offset`
pub const fn store(d: u32, j: u32, offset: i32) -> u32 {
    0x29c0_0000 | (offset as u32 & 0xfff) << 10 | j << 5 | d
}

/// `st.w d, j, offset`
pub const fn store_w(d: u32, j: u32, offset: i32) -> u32 {
    0x2980_0000 | (offset as u32 & 0xfff) << 10 | j << 5 | d
}

/// `amswap_db.w d, k, j`
pub const fn swap_w(d: u32, k: u32, j: u32) -> u32 {
    0x3869_0000 | k << 10 | j << 5 | d
}

/// `amadd_db.d d, k, j`
pub const fn fetch_add(d: u32, k: u32, j: u32) -> u32 {
    0x386a_8000 | k << 10 | j << 5 | d
}

/// `jirl d, j, 0`
pub const fn jump_register(d: u32, j: u32) -> u32 {
    0x4c00_0000 | j << 5 | d
}

/// `bl`, with the offset as a number of instructions.
pub const fn call_by(by: i32) -> u32 {
    0x5400_0000 | (by as u32 & 0xffff) << 10 | (by as u32 >> 16 & 0x3ff)
}

/// `b`, with the offset as a number of instructions.
pub const fn jump_by(by: i32) -> u32 {
    0x5000_0000 | (by as u32 & 0xffff) << 10 | (by as u32 >> 16 & 0x3ff)
}

/// A position in the code.
#[derive(Clone, Copy)]
pub struct Label(usize);

/// An instruction whose target is not known yet.
enum Fixup {
    /// A 16-bit branch offset, in instructions.
    Near(usize, Label),
    /// A 26-bit branch offset.
    Far(usize, Label),
    /// The 20-bit offset of `pcaddi`.
    Address(usize, Label),
}

/// Code under construction.
#[derive(Default)]
pub struct Code {
    instructions: Vec<u32>,
    labels: Vec<Option<usize>>,
    fixups: Vec<Fixup>,
}

impl Code {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn push(&mut self, word: u32) {
        self.instructions.push(word);
    }

    pub fn extend(&mut self, instructions: &[u32]) {
        self.instructions.extend(instructions);
    }

    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    pub fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.instructions.len());
    }

    pub fn here(&mut self) -> Label {
        let label = self.label();
        self.place(label);
        label
    }

    fn near(&mut self, word: u32, to: Label) {
        self.fixups.push(Fixup::Near(self.instructions.len(), to));
        self.instructions.push(word);
    }

    fn far(&mut self, word: u32, to: Label) {
        self.fixups.push(Fixup::Far(self.instructions.len(), to));
        self.instructions.push(word);
    }

    pub fn if_equal(&mut self, j: u32, d: u32, to: Label) {
        self.near(0x5800_0000 | j << 5 | d, to);
    }

    pub fn if_not_equal(&mut self, j: u32, d: u32, to: Label) {
        self.near(0x5c00_0000 | j << 5 | d, to);
    }

    /// Branches if `j` is below `d`, both unsigned.
    pub fn if_below(&mut self, j: u32, d: u32, to: Label) {
        self.near(0x6800_0000 | j << 5 | d, to);
    }

    pub fn jump(&mut self, to: Label) {
        self.far(0x5000_0000, to);
    }

    pub fn call(&mut self, to: Label) {
        self.far(0x5400_0000, to);
    }

    /// Loads the address of a label into a register.
    pub fn set_address(&mut self, d: u32, of: Label) {
        self.fixups.push(Fixup::Address(self.instructions.len(), of));
        self.instructions.push(0x1800_0000 | d);
    }

    /// Loads a constant into a register.
    pub fn set(&mut self, d: u32, value: i64) {
        if (-2048..2048).contains(&value) {
            return self.push(addi(d, ZERO, value as i32));
        }
        self.push(0x1400_0000 | ((value as u64 >> 12 & 0xf_ffff) as u32 * 32) | d);
        self.push(ori(d, d, value as u32));
        if i64::from(value as i32) != value {
            self.push(0x1600_0000 | ((value as u64 >> 32 & 0xf_ffff) as u32 * 32) | d);
            self.push(0x0300_0000 | ((value as u64 >> 52) as u32 * 1024) | d << 5 | d);
        }
    }

    /// Makes a system call with constant arguments.
    pub fn system_call(&mut self, number: i64, arguments: &[i64]) {
        for (register, value) in (A0..).zip(arguments) {
            self.set(register, *value);
        }
        self.make_call(number);
    }

    /// Makes a system call whose arguments are already in registers.
    pub fn make_call(&mut self, number: i64) {
        self.set(A7, number);
        self.push(SYSCALL);
    }

    /// Ends the process with a status.
    pub fn exit_group(&mut self, status: i64) {
        self.system_call(call::EXIT_GROUP, &[status]);
    }

    /// The barriers that the architecture requires between writing code and running it.
    pub fn barriers(&mut self) {
        self.push(DATA_BARRIER);
        self.push(INSTRUCTION_BARRIER);
    }

    /// Maps anonymous memory at a fixed address.
    pub fn map(&mut self, address: i64, bytes: i64, protection: i64) {
        const PRIVATE_FIXED_ANONYMOUS: i64 = 0x32;
        self.system_call(call::MMAP, &[address, bytes, protection, PRIVATE_FIXED_ANONYMOUS, -1, 0]);
    }

    /// Starts a thread at `entry` with its stack's top at `stack`.
    pub fn spawn(&mut self, entry: Label, stack: i64) {
        const THREAD: i64 = 0x5_0f00;
        self.system_call(call::CLONE, &[THREAD, stack, 0, 0, 0]);
        let parent = self.label();
        self.if_not_equal(A0, ZERO, parent);
        self.jump(entry);
        self.place(parent);
    }

    /// The finished code.
    pub fn finish(mut self) -> Vec<u32> {
        let target = |label: &Label| self.labels[label.0].expect("every label is placed") as i64;
        for fixup in &self.fixups {
            match fixup {
                Fixup::Near(at, to) => {
                    let by = i16::try_from(target(to) - *at as i64).expect("the branch reaches");
                    self.instructions[*at] |= u32::from(by as u16) << 10;
                }
                Fixup::Far(at, to) => {
                    let by = (target(to) - *at as i64) as i32;
                    self.instructions[*at] |= call_by(by) & 0x03ff_ffff;
                }
                Fixup::Address(at, of) => {
                    let by = (target(of) - *at as i64) as u32;
                    self.instructions[*at] |= (by & 0xf_ffff) << 5;
                }
            }
        }
        self.instructions
    }
}
