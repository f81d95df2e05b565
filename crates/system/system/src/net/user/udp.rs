//! The guest's UDP datagrams. Each flow, from a port of the guest to an address, has a socket of the host, which receives
//! the answers of that address only.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use rustix::event::{PollFd, PollFlags};

use super::Routes;

/// The maximum number of flows. A new one replaces the oldest.
const MAX_FLOWS: usize = 128;
/// The maximum number of datagrams of a flow that are received at once.
const BURST: usize = 32;

#[derive(Debug)]
struct Flow {
    port: u16,
    /// The destination as the guest knows it.
    to: SocketAddrV4,
    socket: UdpSocket,
}

/// The flows, the oldest first.
#[derive(Debug, Default)]
pub struct Flows(VecDeque<Flow>);

impl Flows {
    /// Sends a datagram of the guest's `port`. It is lost if the guest may not reach the destination.
    pub fn send(&mut self, port: u16, to: SocketAddrV4, payload: &[u8], routes: &Routes) {
        let found = self.0.iter().position(|flow| (flow.port, flow.to) == (port, to));
        let flow = match found.and_then(|index| self.0.remove(index)) {
            Some(flow) => flow,
            None => {
                let opened = routes.outside(to).and_then(|outside| open(outside).ok());
                let Some(socket) = opened else { return };
                Flow { port, to, socket }
            }
        };
        // A full buffer or an unreachable address loses the datagram.
        let _ = flow.socket.send(payload);
        if self.0.len() >= MAX_FLOWS {
            self.0.pop_front();
        }
        self.0.push_back(flow);
    }

    /// Receives datagrams: the guest's port, the source and the contents.
    pub fn receive(&mut self, mut take: impl FnMut(u16, SocketAddrV4, &[u8])) {
        let mut buffer = vec![0; 1 << 16];
        for flow in &self.0 {
            for _ in 0..BURST {
                match flow.socket.recv(&mut buffer) {
                    Ok(bytes) => take(flow.port, flow.to, &buffer[..bytes]),
                    Err(_) => break,
                }
            }
        }
    }

    /// The events to wait for.
    pub fn wanted(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.0.iter().map(|flow| PollFd::new(&flow.socket, PollFlags::IN))
    }
}

fn open(outside: SocketAddrV4) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_nonblocking(true)?;
    socket.connect(outside)?;
    Ok(socket)
}
