//! Runs a program on QEMU's machine `virt`, as a kernel in an ELF file.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::assembler::{CODE, Program};

/// The time limit of a program, which runs for milliseconds.
const LIMIT: Duration = Duration::from_secs(3);

/// The output of a program on QEMU.
pub fn run(program: &Program) -> String {
    let qemu = std::env::var("LONGMA_QEMU_SYSTEM").unwrap_or_else(|_| "qemu-system-loongarch64".into());
    let mut kernel = tempfile::NamedTempFile::new().expect("the host has a temporary folder");
    kernel.write_all(&elf(program)).expect("the file is writable");
    let mut child = Command::new(&qemu)
        .args([
            "-M", "virt", "-cpu", "la464", "-m", "1G", "-display", "none", "-serial", "stdio", "-monitor",
            "none",
        ])
        .arg("-kernel")
        .arg(kernel.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{qemu}: {error}"));
    let start = Instant::now();
    while child.try_wait().expect("the child exists").is_none() {
        if start.elapsed() > LIMIT {
            child.kill().expect("the child is this process's");
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().expect("the child exists");
    String::from_utf8_lossy(&output.stdout).replace('\r', "")
}

/// Builds an executable with one loadable segment for each part of the program. Source: ELF-64 object file format.
fn elf(program: &Program) -> Vec<u8> {
    const HEADER: u64 = 64;
    const SEGMENT: u64 = 56;
    let count = program.0.len() as u64;
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    // An executable for machine 258 (LoongArch); the program headers follow the file header.
    file.extend([2, 0, 2, 1, 1, 0, 0, 0]);
    file.extend([CODE, HEADER, 0].iter().flat_map(|field| field.to_le_bytes()));
    // Flags, and the sizes of the file header and the program headers.
    file.extend([3, 0, 0, 0, HEADER as u8, 0, SEGMENT as u8, 0, count as u8, 0, 0, 0, 0, 0, 0, 0]);
    let mut offset = HEADER + SEGMENT * count;
    for part in &program.0 {
        let bytes = 4 * part.words.len() as u64;
        file.extend([1u32, 7].iter().flat_map(|field| field.to_le_bytes()));
        let fields = [offset, part.base, part.base, bytes, bytes, 4];
        file.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
        offset += bytes;
    }
    file.extend(program.0.iter().flat_map(|part| &part.words).flat_map(|word| word.to_le_bytes()));
    file
}
