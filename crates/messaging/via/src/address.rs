//! Addresses of VIs, and the credentials of peer processes.
//!
//! Source: VIA, VI address format.

use std::fmt;
use std::os::fd::OwnedFd;

/// The address of a VI: a host, in a form defined by the provider, and a discriminator chosen by the programs.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Address {
    /// The host. Empty for the local host (shared memory), `address:port` (UDP), or a hardware address (AF_XDP).
    pub host: Vec<u8>,
    /// Selects a VI on the host. Any bytes up to the NIC's maximum length.
    pub discriminator: Vec<u8>,
}

impl Address {
    /// An address on the local host.
    pub fn local(discriminator: impl AsRef<[u8]>) -> Address {
        Address { host: Vec::new(), discriminator: discriminator.as_ref().to_vec() }
    }

    /// An address on the given host.
    pub fn new(host: impl AsRef<[u8]>, discriminator: impl AsRef<[u8]>) -> Address {
        Address { host: host.as_ref().to_vec(), discriminator: discriminator.as_ref().to_vec() }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.host.is_empty() {
            write!(f, "{}/", String::from_utf8_lossy(&self.host).escape_debug())?;
        }
        write!(f, "{}", String::from_utf8_lossy(&self.discriminator).escape_debug())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The credentials of a peer process, as reported by the kernel. They are the credentials of a client when it
/// connected, and of a server when it started to listen.
#[derive(Debug)]
pub struct Credentials {
    /// The effective user ID.
    pub uid: u32,
    /// The effective group ID.
    pub gid: u32,
    /// A pidfd of the process (pidfd_open(2)), which is not affected by PID reuse. `None` if the kernel does not
    /// provide one (before Linux 6.5) or if the process has exited.
    pub process: Option<OwnedFd>,
}
