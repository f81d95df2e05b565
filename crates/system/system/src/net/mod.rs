//! Networks that a virtual NIC is connected to: a user-mode network, which needs no privileges, or a tap device of the
//! host. Received frames depend on the outside, so runs with a network are not repeatable.

mod tap;
mod user;

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::time::Duration;

pub use user::{Forward, UserOptions};

/// Bytes of the largest Ethernet frame, without its checksum.
pub const MAX_FRAME_BYTES: usize = 1514;
/// The maximum number of frames that wait in each direction. More are dropped, as on a real network.
const MAX_WAITING: usize = 512;

/// A network is not usable.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The text does not describe a network.
    #[error(
        "{0:?}: give none, user, user,forward=tcp:ADDRESS:PORT-:PORT, user,loopback, user,isolated, tap or tap=NAME"
    )]
    Text(String),
    /// The port of a forward is not available.
    #[error("forward {0}: {1}")]
    Forward(String, io::Error),
    /// The tap device is not available.
    #[error("tap device: {0}; `ip tuntap add dev NAME mode tap user USER` makes one that USER may open")]
    Tap(io::Error),
}

/// Ethernet frames on their way between a NIC and a network.
#[derive(Debug, Default)]
pub struct Frames {
    to_network: VecDeque<Vec<u8>>,
    to_guest: VecDeque<Vec<u8>>,
}

impl Frames {
    /// Sends a frame of the guest.
    pub fn send(&mut self, frame: Vec<u8>) {
        if self.to_network.len() < MAX_WAITING {
            self.to_network.push_back(frame);
        }
    }

    /// The length of the next frame for the guest.
    pub fn next_bytes(&self) -> Option<usize> {
        self.to_guest.front().map(Vec::len)
    }

    /// Takes the next frame for the guest.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        self.to_guest.pop_front()
    }

    fn has_room(&self) -> bool {
        self.to_guest.len() < MAX_WAITING
    }

    fn deliver(&mut self, frame: Vec<u8>) {
        if self.has_room() {
            self.to_guest.push_back(frame);
        }
    }
}

/// The carrier of frames.
trait Carrier: Debug {
    /// Exchanges frames at the guest's time `now_ns`. If none arrives, waits up to `wait` of the host's time.
    fn exchange(&mut self, frames: &mut Frames, now_ns: u64, wait: Duration);
}

/// Loses all frames.
#[derive(Debug)]
struct Unplugged;

impl Carrier for Unplugged {
    fn exchange(&mut self, frames: &mut Frames, _: u64, _: Duration) {
        frames.to_network.clear();
    }
}

/// A network.
#[derive(Debug)]
pub struct Network(Box<dyn Carrier>);

impl Network {
    /// Connects to the network that a text describes: `none`, `user` with options, or `tap`.
    ///
    /// # Errors
    /// The text describes no network, or the host refuses it.
    pub fn open(text: &str) -> Result<Option<Self>, NetworkError> {
        let invalid = || NetworkError::Text(text.into());
        let mut parts = text.split(',');
        match parts.next().unwrap_or_default() {
            "none" if text == "none" => Ok(None),
            "user" => {
                let mut options = UserOptions::default();
                for part in parts {
                    match part.strip_prefix("forward=") {
                        Some(forward) => options.forwards.push(Forward::parse(forward).ok_or_else(invalid)?),
                        None if part == "loopback" => options.loopback = true,
                        None if part == "isolated" => options.isolated = true,
                        None => return Err(invalid()),
                    }
                }
                Self::user(&options).map(Some)
            }
            _ if text == "tap" => Self::tap(None).map(Some),
            _ => match text.strip_prefix("tap=") {
                Some(name) if !name.is_empty() && !name.contains(',') => Self::tap(Some(name)).map(Some),
                _ => Err(invalid()),
            },
        }
    }

    /// Creates a user-mode network.
    ///
    /// # Errors
    /// A port to forward is not available.
    pub fn user(options: &UserOptions) -> Result<Self, NetworkError> {
        Ok(Self(Box::new(user::UserNetwork::new(options)?)))
    }

    /// Opens a tap device of the host; without a name, a new one.
    ///
    /// # Errors
    /// The host has no such device or refuses it.
    pub fn tap(name: Option<&str>) -> Result<Self, NetworkError> {
        Ok(Self(Box::new(tap::Tap::open(name).map_err(NetworkError::Tap)?)))
    }

    /// Creates a network without other hosts: sent frames are lost, and none arrive.
    pub fn empty() -> Self {
        Self(Box::new(Unplugged))
    }

    /// Creates a network that returns each frame.
    #[cfg(test)]
    pub fn echo() -> Self {
        Self(Box::new(tests::Echo))
    }

    /// Exchanges frames at the guest's time `now_ns`. If none arrives for the guest, waits up to `wait` of the host's time.
    pub fn exchange(&mut self, frames: &mut Frames, now_ns: u64, wait: Duration) {
        self.0.exchange(frames, now_ns, wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    pub struct Echo;

    impl Carrier for Echo {
        fn exchange(&mut self, frames: &mut Frames, _: u64, _: Duration) {
            for frame in std::mem::take(&mut frames.to_network) {
                frames.deliver(frame);
            }
        }
    }

    #[test]
    fn only_known_networks_and_options_are_accepted() {
        assert!(Network::open("none").expect("it is known").is_none());
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let forward = format!("user,loopback,forward=tcp:{}-:22", free.expect("a port is free"));
        assert!(Network::open(&forward).expect("it is known").is_some());
        let ports = ["user,forward=tcp:127.0.0.1:0-:22", "user,forward=tcp:127.0.0.1:2222-:0"];
        let others = ["", "none,loopback", "user,", "user,forward=udp:1-2", "tap=", "tap=a,b", "bridge"];
        for text in others.into_iter().chain(ports) {
            let error = Network::open(text).expect_err("it is unknown");
            assert!(error.to_string().contains("give none, user"), "{text}: {error}");
        }
    }
}
