//! A program under a debugger; the test plays the debugger.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use tempfile::{TempDir, tempdir};

use crate::programs::*;

/// A program under a debugger.
pub struct DebugSession {
    pub child: Child,
    pub stream: TcpStream,
    _folder: TempDir,
}

impl DebugSession {
    /// Starts a program of these instructions, stopped before the first.
    pub fn start(code: &[u32]) -> Self {
        let folder = tempdir().unwrap();
        let path = place(folder.path(), "program", &executable(code, &[]));
        Self::start_file(&path, folder)
    }

    /// Starts a program of these bytes, with this machine number and these flags in its ELF header.
    pub fn start_foreign(code: &[u8], machine: u16, flags: u32) -> Self {
        let mut words = code.to_vec();
        words.resize(code.len().next_multiple_of(4), 0);
        let words: Vec<u32> =
            words.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        let mut file = executable(&words, &[]);
        file[18..20].copy_from_slice(&machine.to_le_bytes());
        file[48..52].copy_from_slice(&flags.to_le_bytes());
        let folder = tempdir().unwrap();
        let path = place(folder.path(), "program", &file);
        Self::start_file(&path, folder)
    }

    /// Starts the program in a file.
    pub fn start_file(path: &Path, folder: TempDir) -> Self {
        let mut command = longma_run();
        command.args(["--gdb", "0"]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        let stream = TcpStream::connect(&address).unwrap_or_else(|error| panic!("{line}: {error}"));
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut program = Self { child, stream, _folder: folder };
        assert!(is_stop(&program.request("?"), TRAP));
        assert_eq!(program.request(&format!("Hg{:x}", program.child.id())), "OK");
        program
    }

    /// Resumes the first thread with this action and lets the others run.
    pub fn resume(&mut self, action: &str) -> String {
        self.request(&format!("vCont;{action}:{:x};c", self.child.id()))
    }

    /// Sends a packet.
    pub fn send(&mut self, packet: &str) {
        let sum = packet.bytes().fold(0u8, u8::wrapping_add);
        write!(self.stream, "${packet}#{sum:02x}").unwrap();
    }

    fn byte(&mut self) -> u8 {
        let mut byte = [0];
        self.stream.read_exact(&mut byte).unwrap();
        byte[0]
    }

    /// Receives the next packet and expands its run-length encoding.
    pub fn receive(&mut self) -> String {
        while self.byte() != b'$' {}
        let mut packet = Vec::new();
        loop {
            match self.byte() {
                b'#' => break,
                b'*' => {
                    let count = self.byte() - 29;
                    let last = *packet.last().unwrap();
                    packet.extend(std::iter::repeat_n(last, count.into()));
                }
                byte => packet.push(byte),
            }
        }
        // The checksum.
        self.byte();
        self.byte();
        self.stream.write_all(b"+").unwrap();
        String::from_utf8_lossy(&packet).into_owned()
    }

    /// Sends a packet and returns the reply.
    pub fn request(&mut self, packet: &str) -> String {
        self.send(packet);
        self.receive()
    }

    /// Reads a register of up to 64 bits.
    pub fn register(&mut self, number: u32) -> u64 {
        let digits = self.request(&format!("p{number:x}"));
        let digits = format!("{digits:0<16}");
        u64::from_str_radix(&digits, 16).unwrap_or_else(|_| panic!("{digits}")).swap_bytes()
    }

    /// Sets a 64-bit register.
    pub fn set_register(&mut self, number: u32, value: u64) {
        assert_eq!(self.request(&format!("P{number:x}={:016x}", value.swap_bytes())), "OK");
    }

    /// Sends the interrupt byte and returns the reply.
    pub fn interrupt(&mut self) -> String {
        self.stream.write_all(&[3]).unwrap();
        self.receive()
    }

    /// Waits for the program and returns its status.
    pub fn end(self) -> std::process::ExitStatus {
        output(self.child).status
    }
}

/// Whether a reply reports a stop by this signal, in gdb's numbering.
pub fn is_stop(reply: &str, signal: u8) -> bool {
    reply.starts_with(&format!("T{signal:02x}")) || reply.starts_with(&format!("S{signal:02x}"))
}

/// SIGTRAP in gdb's numbering.
pub const TRAP: u8 = 5;
