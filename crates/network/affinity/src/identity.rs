//! Identifies a boot of a host and a network namespace in it, so that a change is never undone in another one.
//!
//! Source: socket(7) and Linux net/core/net_namespace.c (SO_NETNS_COOKIE, 5.14); random(4) (boot_id); namespaces(7)
//! (inode numbers).

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::str::FromStr;

/// A boot and a network namespace. Written as `BOOT net:INODE`, followed by ` cookie:NUMBER` if the kernel provides
/// one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Identity {
    /// The kernel's boot ID.
    pub boot: String,
    /// Inode number of the network namespace. The kernel may reuse it after the namespace is gone.
    pub inode: u64,
    /// Cookie of the network namespace, unique within a boot; `None` before Linux 5.14.
    pub cookie: Option<u64>,
}

/// A text that is not a valid identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` does not name a boot and a network namespace")]
pub struct IdentityError(String);

impl Identity {
    /// Returns whether both belong to the same boot.
    pub fn is_same_boot(&self, other: &Self) -> bool {
        self.boot == other.boot
    }

    /// Returns whether both are the same network namespace of the same boot. Without cookies the comparison uses inode
    /// numbers, which may be reused.
    pub fn is_same(&self, other: &Self) -> bool {
        self.is_same_boot(other)
            && match (self.cookie, other.cookie) {
                (Some(one), Some(other)) => one == other,
                _ => self.inode == other.inode,
            }
    }

    /// Returns whether the identity is unambiguous, that is, has a cookie.
    pub fn is_certain(&self) -> bool {
        self.cookie.is_some()
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} net:{}", self.boot, self.inode)?;
        self.cookie.map_or(Ok(()), |cookie| write!(f, " cookie:{cookie}"))
    }
}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        let wrong = || IdentityError(text.into());
        let (boot, rest) = text.split_once(" net:").ok_or_else(wrong)?;
        let (inode, cookie) = match rest.split_once(" cookie:") {
            Some((inode, cookie)) => (inode, Some(cookie.parse().map_err(|_| wrong())?)),
            None => (rest, None),
        };
        Ok(Self { boot: boot.into(), inode: inode.parse().map_err(|_| wrong())?, cookie })
    }
}

impl TryFrom<String> for Identity {
    type Error = IdentityError;
    fn try_from(text: String) -> Result<Self, IdentityError> {
        text.parse()
    }
}

impl From<Identity> for String {
    fn from(identity: Identity) -> String {
        identity.to_string()
    }
}

/// Cookie of the calling thread's network namespace.
///
/// # Errors
/// The kernel's error: ENOPROTOOPT before Linux 5.14.
pub(crate) fn cookie() -> io::Result<u64> {
    let socket: OwnedFd =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::DGRAM, None)?;
    let mut cookie = 0u64;
    let mut bytes = std::mem::size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: the value and its length outlive the call, and the length is the size of the value.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut bytes,
        )
    };
    crate::child::check(status)?;
    if bytes as usize == std::mem::size_of_val(&cookie) {
        Ok(cookie)
    } else {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests;
