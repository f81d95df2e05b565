//! Serves a folder of the host to an untrusted operating system by the protocol 9P2000.L. The guest reaches only files
//! below the folder: path components are looked up one at a time, `..` and symbolic links are not followed on the host,
//! and devices, FIFOs and sockets are neither opened nor created. Messages, fids, descriptors and memory are limited.
//! Source: Plan 9 manual, section 5; Linux, include/net/9p/9p.h; diod, protocol.md (9P2000.L).

mod attributes;
mod fids;
mod folder;
mod listing;
mod request;
mod server;
mod wire;

pub use server::{Access, MAX_MESSAGE_BYTES, Share, ShareError};
