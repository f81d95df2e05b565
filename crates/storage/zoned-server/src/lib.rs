//! Serves a map of `longma-zoned` to clients of the Redis protocol (RESP2 and RESP3).
//!
//! Each client has a thread. It reads from the map directly; one thread commits the changes of all clients together,
//! and acknowledges them when they are durable. No client can make the server use more memory than [`Limits`] permit.
//!
//! Source: Redis documentation, "Redis serialization protocol specification" and the pages of the commands.

/// The command table and the parser of commands.
mod command;
/// Group commit of all clients' changes.
mod commit;
/// The loop that serves one client.
mod connection;
/// Positions of unfinished scans.
mod cursors;
mod error;
/// Commands on a version of the map.
mod execute;
mod limits;
/// Encoded replies.
mod output;
/// Patterns of SCAN.
mod pattern;
/// The connected clients.
mod peers;
/// The incremental reader of requests.
mod request;
/// Password and certificate.
mod security;
mod server;
/// A client's session: authentication, watched keys, queued commands.
mod session;
/// The state that all clients share.
mod shared;
/// Connections, plain or encrypted.
mod stream;
/// Watched keys.
mod watch;

/// The reader of requests, exposed for fuzzing. Not part of the public interface.
#[doc(hidden)]
pub mod testing {
    pub use crate::request::{RequestError, RequestReader, Words};
}

pub use error::ServerError;
pub use limits::Limits;
pub use rustls::ServerConfig;
pub use security::{Password, tls_config};
pub use server::{Server, Settings};

/// Compiles and runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
