//! LoongArch64 programs of a few instructions, generated on demand, and the command that runs them.
//! Source: LoongArch Reference Manual, volume 1, chapter 2; ELF-64 Object File Format 1.5.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Address of the code.
pub const CODE: u64 = 0x1_2000_0000 + 0x1000;
// Numbers of registers.
pub const ZERO: u32 = 0;
pub const RA: u32 = 1;
pub const SP: u32 = 3;
pub const A0: u32 = 4;
pub const A1: u32 = 5;
pub const A2: u32 = 6;
pub const A3: u32 = 7;
pub const A7: u32 = 11;
// Instructions without operands.
pub const SYSCALL: u32 = 0x002b_0000;
pub const RETURN: u32 = 0x4c00_0020;
pub const BRANCH_TO_SELF: u32 = 0x5000_0000;

/// `addi.d d, j, immediate`
pub const fn add(d: u32, j: u32, immediate: i32) -> u32 {
    0x02c0_0000 | (immediate as u32 & 0xfff) << 10 | j << 5 | d
}

/// `ld.d d, j, offset`
pub const fn load(d: u32, j: u32, offset: i32) -> u32 {
    0x28c0_0000 | (offset as u32 & 0xfff) << 10 | j << 5 | d
}

/// `st.d d, j, offset`
pub const fn store(d: u32, j: u32, offset: i32) -> u32 {
    0x29c0_0000 | (offset as u32 & 0xfff) << 10 | j << 5 | d
}

/// `bl`, with the offset as a number of instructions.
pub const fn call(by: i32) -> u32 {
    0x5400_0000 | (by as u32 & 0xffff) << 10 | (by as u32 >> 16 & 0x3ff)
}

/// `bnez j`, with the offset as a number of instructions.
pub const fn bnez(j: u32, by: i32) -> u32 {
    0x4400_0000 | (by as u32 & 0xffff) << 10 | j << 5 | (by as u32 >> 16 & 0x1f)
}

/// Calls exit_group with the status in a0.
pub const EXIT: [u32; 2] = [add(A7, ZERO, 94), SYSCALL];

/// Calls a function that counts down from 100, and exits with 7. Executes 206 instructions.
pub const SPINNER: [u32; 8] = [
    add(A0, ZERO, 100),
    call(4),
    add(A0, ZERO, 7),
    EXIT[0],
    EXIT[1],
    // spin:
    add(A0, A0, -1),
    bnez(A0, -1),
    RETURN,
];
/// Address of the function.
pub const SPIN: u64 = CODE + 5 * 4;

/// Reads up to 64 bytes from standard input and writes them to standard output; exits with the result of write.
pub const ECHO: [u32; 12] = [
    add(SP, SP, -64),
    add(A0, ZERO, 0),
    add(A1, SP, 0),
    add(A2, ZERO, 64),
    add(A7, ZERO, 63),
    SYSCALL,
    add(A2, A0, 0),
    add(A0, ZERO, 1),
    add(A7, ZERO, 64),
    SYSCALL,
    EXIT[0],
    EXIT[1],
];

/// Reads from standard input and exits with the result of read.
pub const READER: [u32; 8] = [
    add(SP, SP, -64),
    add(A0, ZERO, 0),
    add(A1, SP, 0),
    add(A2, ZERO, 64),
    add(A7, ZERO, 63),
    SYSCALL,
    EXIT[0],
    EXIT[1],
];

/// Opens its first argument for reading and exits with the result of openat.
pub const OPENER: [u32; 8] = [
    add(A0, ZERO, -100),
    load(A1, SP, 16),
    add(A2, ZERO, 0),
    add(A3, ZERO, 0),
    add(A7, ZERO, 56),
    SYSCALL,
    EXIT[0],
    EXIT[1],
];

/// A program that writes `bytes` bytes of the string whose pointer is at `offset` from the stack pointer, and exits.
pub fn string_writer(offset: i32, bytes: i32) -> Vec<u32> {
    let mut code = vec![add(A0, ZERO, 1), load(A1, SP, offset), add(A2, ZERO, bytes), add(A7, ZERO, 64)];
    code.extend([SYSCALL, EXIT[0], EXIT[1]]);
    code
}

/// An executable with this code at [`CODE`] and these functions, `(name, address, bytes)`.
pub fn executable(code: &[u32], functions: &[(&str, u64, u64)]) -> Vec<u8> {
    let base = 0x1_2000_0000u64;
    let mut names = vec![0];
    let mut symbols = vec![0; 24];
    for (name, address, bytes) in functions {
        symbols.extend((names.len() as u32).to_le_bytes());
        // STB_GLOBAL, STT_FUNC; section 1.
        symbols.extend([0x12, 0, 1, 0]);
        symbols.extend(address.to_le_bytes());
        symbols.extend(bytes.to_le_bytes());
        names.extend(name.bytes().chain([0]));
    }
    let code: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
    let (code_end, page) = (0x1000 + code.len() as u64, 0x4000u64);
    let symbols_at = code_end.next_multiple_of(8);
    let names_at = symbols_at + symbols.len() as u64;
    let sections_at = (names_at + names.len() as u64).next_multiple_of(8);

    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    file.extend([2, 0, 2, 1, 1, 0, 0, 0]);
    [CODE, 64, sections_at].iter().for_each(|field| file.extend(field.to_le_bytes()));
    file.extend(0x43u32.to_le_bytes());
    [64u16, 56, 1, 64, 4, 3].iter().for_each(|field| file.extend(field.to_le_bytes()));
    // PT_LOAD, readable and executable: the headers and the code.
    file.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    [0, base, base, code_end, code_end, page].iter().for_each(|field| file.extend(field.to_le_bytes()));
    file.resize(0x1000, 0);
    file.extend(&code);
    file.resize(symbols_at as usize, 0);
    file.extend(&symbols);
    file.extend(&names);
    file.resize(sections_at as usize, 0);
    let mut section =
        |kind: u32, flags: u64, address_offset_size: [u64; 3], link: u32, info: u32, entry: u64| {
            file.extend(0u32.to_le_bytes());
            file.extend(kind.to_le_bytes());
            file.extend(flags.to_le_bytes());
            address_offset_size.iter().for_each(|field| file.extend(field.to_le_bytes()));
            file.extend(link.to_le_bytes());
            file.extend(info.to_le_bytes());
            file.extend(8u64.to_le_bytes());
            file.extend(entry.to_le_bytes());
        };
    section(0, 0, [0; 3], 0, 0, 0);
    // PROGBITS, allocated and executable; SYMTAB; STRTAB.
    section(1, 6, [CODE, 0x1000, code.len() as u64], 0, 0, 0);
    section(2, 0, [0, symbols_at, symbols.len() as u64], 3, 1, 24);
    section(3, 0, [0, names_at, names.len() as u64], 0, 0, 0);
    file
}

/// Writes a program into `folder`.
pub fn place(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

/// The path of a prebuilt guest.
pub fn guest(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/prebuilt/loongarch64").join(name)
}

/// `longma run` with empty standard input.
pub fn longma_run() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longma"));
    command.arg("run").stdin(Stdio::null());
    command
}

/// Runs the command to its end, with a time limit, and returns its output.
pub fn finish(command: &mut Command) -> Output {
    output(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Waits for a running command, with a time limit, and returns its output.
pub fn output(mut child: Child) -> Output {
    let drain = |pipe: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                pipe.read_to_end(&mut bytes).unwrap();
            }
            bytes
        })
    };
    let stdout = drain(child.stdout.take().map(|pipe| Box::new(pipe) as _));
    let stderr = drain(child.stderr.take().map(|pipe| Box::new(pipe) as _));
    // Campaigns on a busy machine set a longer limit.
    let limit_s = std::env::var("LONGMA_LIMIT_SECONDS")
        .map_or(30, |seconds| seconds.parse().expect("LONGMA_LIMIT_SECONDS is a number"));
    let start = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if start.elapsed() > Duration::from_secs(limit_s) => {
                let _ = child.kill();
                panic!("the command did not end within {limit_s} s");
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    Output { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// Output as text, with invalid UTF-8 replaced.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
