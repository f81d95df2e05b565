//! Kernel sockets: 8 bytes back and forth, both sides polling a non-blocking socket.

use crate::processes::{Cores, measure, time_ns};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

fn exchange(socket: &mut (impl Read + Write), rounds: u64, first: bool) {
    let mut bytes = [0u8; 8];
    let mut turn = first;
    for _ in 0..2 * rounds {
        if turn {
            socket.write_all(&bytes).expect("a write");
        } else {
            let mut have = 0;
            while have < bytes.len() {
                match socket.read(&mut bytes[have..]) {
                    Ok(count) => have += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        turn = !turn;
    }
}

/// One-way latency over a Unix stream socket, ns.
pub fn unix_ns(cores: Cores, rounds: u64) -> Option<f64> {
    let (mut one, mut two) = UnixStream::pair().ok()?;
    for socket in [&one, &two] {
        socket.set_nonblocking(true).ok()?;
    }
    let server = || exchange(&mut two, rounds, false);
    let client = || time_ns(|| exchange(&mut one, rounds, true)) / rounds as f64 / 2.0;
    measure(cores, server, client)
}

/// One-way latency over TCP on the loopback interface, ns.
pub fn tcp_ns(cores: Cores, rounds: u64) -> Option<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").ok()?;
    let address = listener.local_addr().ok()?;
    let ready = |socket: &TcpStream| {
        socket.set_nodelay(true).expect("an option");
        socket.set_nonblocking(true).expect("an option");
    };
    let server = || {
        let mut socket = listener.accept().expect("a client").0;
        ready(&socket);
        exchange(&mut socket, rounds, false);
    };
    let client = || {
        let mut socket = TcpStream::connect(address).expect("a server");
        ready(&socket);
        time_ns(|| exchange(&mut socket, rounds, true)) / rounds as f64 / 2.0
    };
    measure(cores, server, client)
}
