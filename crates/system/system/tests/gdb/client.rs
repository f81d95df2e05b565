//! The debugger's side of gdb's remote protocol.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A connection to a machine.
pub struct Client {
    stream: TcpStream,
    place: String,
}

impl Client {
    pub fn connect(place: &str) -> Self {
        let stream = TcpStream::connect(place).expect("the machine listens");
        stream.set_nodelay(true).expect("it is a TCP connection");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("it is a time");
        let mut client = Self { stream, place: place.into() };
        client.ask("qSupported:swbreak+;hwbreak+;vContSupported+");
        client
    }

    pub fn another(&self) -> Self {
        Self::connect(&self.place)
    }

    /// Sends a packet.
    pub fn send(&mut self, packet: &str) {
        let sum = packet.bytes().fold(0u8, u8::wrapping_add);
        write!(self.stream, "${packet}#{sum:02x}").expect("the machine receives");
    }

    fn byte(&mut self) -> u8 {
        let mut byte = [0];
        self.stream.read_exact(&mut byte).expect("the machine answers");
        byte[0]
    }

    /// Receives the next packet and expands its run-length encoding.
    fn receive(&mut self) -> String {
        while self.byte() != b'$' {}
        let mut packet = Vec::new();
        loop {
            match self.byte() {
                b'#' => break,
                b'*' => {
                    let count = self.byte() - 29;
                    let last = *packet.last().expect("a run follows a byte");
                    packet.extend(std::iter::repeat_n(last, count.into()));
                }
                byte => packet.push(byte),
            }
        }
        // The checksum.
        self.byte();
        self.byte();
        self.stream.write_all(b"+").expect("the machine receives");
        String::from_utf8_lossy(&packet).into_owned()
    }

    /// Sends a packet and returns the reply. A machine that is killed does not reply.
    pub fn ask(&mut self, packet: &str) -> String {
        self.send(packet);
        if packet == "k" { String::new() } else { self.receive() }
    }

    /// Sends a packet and returns the reply, which is text in hexadecimal digits.
    pub fn text(&mut self, packet: &str) -> String {
        let digits = self.ask(packet);
        let bytes = digits.as_bytes().chunks(2).map(|pair| {
            let pair = std::str::from_utf8(pair).expect("they are digits");
            u8::from_str_radix(pair, 16).expect("they are digits")
        });
        String::from_utf8(bytes.collect()).expect("it is text")
    }

    /// Reads a register of up to 64 bits of the first core.
    pub fn register(&mut self, number: u32) -> u64 {
        let digits = self.ask(&format!("p{number:x}"));
        u64::from_str_radix(&digits, 16).expect("it is a number").swap_bytes()
    }

    /// Sets a 64-bit register.
    pub fn set_register(&mut self, number: u32, value: u64) {
        assert_eq!(self.ask(&format!("P{number:x}={:016x}", value.swap_bytes())), "OK");
    }

    /// Sends the interrupt byte and returns the reply.
    pub fn interrupt(&mut self) -> String {
        self.stream.write_all(&[3]).expect("the machine receives");
        self.receive()
    }
}
