//! Errors of the server. Errors of commands are replies to the client.

use std::net::SocketAddr;
use std::path::PathBuf;

/// An error of the server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be used.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the host.
        source: std::io::Error,
    },
    /// Other machines could reach the map without a password.
    #[error("{address} is reachable from other machines: set a password, or listen on 127.0.0.1")]
    NoPassword {
        /// The address.
        address: SocketAddr,
    },
    /// Passwords and data would be sent unencrypted.
    #[error(
        "{address} is reachable from other machines, and passwords and data would be sent unencrypted: give a certificate, or permit plain connections"
    )]
    NotEncrypted {
        /// The address.
        address: SocketAddr,
    },
    /// A limit is too low for serving clients.
    #[error("the limit {what} is {given}: it must be at least {least}")]
    Limit {
        /// The field of [`crate::Limits`].
        what: &'static str,
        /// The limit given.
        given: usize,
        /// The least limit.
        least: usize,
    },
    /// A file cannot be used.
    #[error("{}: {what}", longma_text::display_path(.path))]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        what: String,
    },
    /// The TLS library refuses the settings.
    #[error("TLS cannot be set up: {what}")]
    Tls {
        /// The reason.
        what: String,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The thread that changes the map has failed.
    #[error(
        "the thread that changes the map has failed, so the server has ended: this is a bug, please report it"
    )]
    Committer,
    /// The map reports an error when it is closed.
    #[error(transparent)]
    Map(#[from] longma_zoned::Error),
}
