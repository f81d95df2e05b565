//! Addresses of VIs, and whose process a VI belongs to.
//! Not what a host's part of an address means: that is the provider's.
//! Source: VIA, VI address format.

use std::fmt;
use std::os::fd::OwnedFd;

/// Where a VI is, or waits: a host in the provider's own form, and a discriminator that programs agree on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Address {
    /// The host: empty for this one (shared memory), `address:port` (UDP), interface and hardware address (AF_XDP).
    pub host: Vec<u8>,
    /// Which of the host's VIs: any bytes up to the NIC's longest.
    pub discriminator: Vec<u8>,
}

impl Address {
    /// A VI of this host.
    pub fn local(discriminator: impl AsRef<[u8]>) -> Address {
        Address { host: Vec::new(), discriminator: discriminator.as_ref().to_vec() }
    }

    /// A VI of the host that the provider calls `host`.
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

/// Whose process is at the other end, as the system says and the peer cannot change: of a client at the time when it connected, of a server at
/// the time when it began to listen.
#[derive(Debug)]
pub struct Credentials {
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
    /// The process itself (pidfd_open(2)), which no later process can take the place of. `None` where the system does not give one
    /// (before Linux 6.5), or where the process is gone already.
    pub process: Option<OwnedFd>,
}
