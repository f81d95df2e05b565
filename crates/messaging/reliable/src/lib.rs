//! Reliable delivery over datagrams that are lost, doubled, reordered, damaged and late: messages arrive once, whole and in order.
//! Not a socket and not a thread: a state machine that is given packets and the time, and gives datagrams and events.
//! Source: the RFCs that the parts cite; written for the VIA providers over UDP and AF_XDP.

mod congestion;
mod connection;
mod packet;
mod receiver;
mod round_trip;
mod sender;
pub mod wire;

pub use connection::{
    Config, Connection, Event, Loss, MAX_GREETING, MIN_DATAGRAM, Opening, SendError, Statistics,
    USUAL_PACKET_BYTES, answer_stray, ask_again,
};
pub use packet::{HEADER_BYTES, Kind, MAX_HEADER_BYTES, MAX_SACK_WORDS, Packet, PacketError};
pub use receiver::Violation;

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
