//! Reliable delivery over datagrams that are lost, duplicated, reordered, damaged or delayed: messages arrive once,
//! complete and in order. It is a state machine without sockets and threads: it takes packets and the time, and returns
//! datagrams and events.
//!
//! Sources: the RFCs named in the modules.

mod congestion;
mod connection;
mod packet;
mod receiver;
mod round_trip;
mod sender;
pub mod wire;

pub use connection::{
    Config, Connection, Event, Loss, MAX_OPENING_BYTES, MIN_DATAGRAM, Opening, SendError, Statistics,
    USUAL_PACKET_BYTES, answer_stray, request_cookie,
};
pub use packet::{HEADER_BYTES, Kind, MAX_HEADER_BYTES, MAX_SACK_WORDS, Packet, PacketError};
pub use receiver::Violation;

/// Compiles and runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
