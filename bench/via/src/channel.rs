//! Measures `longma-channel`, with its default options, and a Unix socket for the same transfers: messages that are answered, and a stream in pieces
//! of 64 KiB. Both sides sleep while they wait, as programs do.

use crate::processes::{Cores, fresh_name, measure, time_ns};
use longma_channel::{Connection, Listener};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

const PIECE: usize = 64 << 10;

fn connect(name: &str) -> Connection {
    loop {
        match Connection::connect(name) {
            Ok(connection) => return connection,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    }
}

fn accept(name: &str) -> Connection {
    Listener::bind(name).expect("a name").accept().expect("a client")
}

/// Time from a request of 64 bytes to its response, ns.
pub fn call_ns(cores: Cores, rounds: u64) -> Option<f64> {
    let name = fresh_name("call");
    let server = || {
        let mut connection = accept(&name);
        while let Ok(Some(request)) = connection.receive() {
            connection.respond(&request, &request.bytes).expect("a client");
        }
    };
    let client = || {
        let mut connection = connect(&name);
        let mut call = || assert_eq!(connection.call(&[1; 64]).expect("a response").len(), 64);
        (0..1000).for_each(|_| call());
        time_ns(|| (0..rounds).for_each(|_| call())) / rounds as f64
    };
    measure(cores, server, client)
}

/// The same with a blocking Unix stream socket, ns.
pub fn unix_call_ns(cores: Cores, rounds: u64) -> Option<f64> {
    let (mut one, mut two) = UnixStream::pair().ok()?;
    let server = || {
        let mut bytes = [0; 64];
        while two.read_exact(&mut bytes).is_ok() {
            two.write_all(&bytes).expect("a client");
        }
    };
    let client = || {
        let mut bytes = [1; 64];
        let mut call = || {
            one.write_all(&bytes).expect("a server");
            one.read_exact(&mut bytes).expect("a response");
        };
        (0..1000).for_each(|_| call());
        time_ns(|| (0..rounds).for_each(|_| call())) / rounds as f64
    };
    measure(cores, server, client)
}

/// Writes `bytes` bytes and waits for one byte in return; GB/s.
fn stream_gb_per_s(stream: &mut (impl Read + Write), bytes: u64) -> f64 {
    let piece = vec![1; PIECE];
    let ns = time_ns(|| {
        (0..bytes / PIECE as u64).for_each(|_| stream.write_all(&piece).expect("a receiver"));
        stream.read_exact(&mut [0]).expect("a receiver");
    });
    bytes as f64 / ns
}

fn receive_stream(stream: &mut (impl Read + Write), bytes: u64) {
    let mut piece = vec![0; PIECE];
    (0..bytes / PIECE as u64).for_each(|_| stream.read_exact(&mut piece).expect("a sender"));
    stream.write_all(&[1]).expect("a sender");
}

/// Bandwidth of a stream, GB/s.
pub fn channel_gb_per_s(cores: Cores, bytes: u64) -> Option<f64> {
    let name = fresh_name("stream");
    let server = || receive_stream(&mut accept(&name).into_stream(), bytes);
    measure(cores, server, || stream_gb_per_s(&mut connect(&name).into_stream(), bytes))
}

/// Bandwidth of a Unix stream socket, GB/s.
pub fn unix_gb_per_s(cores: Cores, bytes: u64) -> Option<f64> {
    let (mut one, mut two) = UnixStream::pair().ok()?;
    measure(cores, || receive_stream(&mut two, bytes), || stream_gb_per_s(&mut one, bytes))
}
