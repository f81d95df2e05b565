//! Sockets, forwarded to the host's network. Source: socket(7), unix(7), cmsg(3).

mod address;
pub(crate) mod calls;
mod messages;
mod options;
