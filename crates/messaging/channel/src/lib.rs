//! Messages, requests and byte streams between processes, with flow control, over the Virtual Interface Architecture.
//!
//! `longma-via` gives a program registered memory, descriptors and completions. This crate adds common layers on top:
//! buffers, credits so that a slow receiver slows its sender down, messages of any length, request and response, and
//! streams that implement [`std::io::Read`] and [`std::io::Write`]. Calls block, with a time limit, or are futures for
//! any executor.
//!
//! The peer need not be trusted: whatever it sends, this side uses bounded memory and returns an error.

mod assembly;
mod connection;
mod error;
mod flow;
mod listener;
mod options;
mod slots;
mod stream;
mod transport;
#[doc(hidden)]
pub mod wire;

pub use assembly::{Incoming, Kind};
pub use connection::{Connection, Statistics};
pub use error::Error;
pub use listener::{AsyncListener, Listener};
pub use options::Options;
pub use stream::Stream;
pub use transport::Transport;

/// The state machine of the receiving side, for fuzzing.
#[doc(hidden)]
pub mod state {
    pub use crate::assembly::Assembly;
    pub use crate::flow::{Flow, Frame};
}

/// Compiles and runs the examples in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
