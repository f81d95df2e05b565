//! The letters of the control socket: connection set-up, regions shown and hidden, a nudge. Seldom sent; data never goes this way.
//! Not trusted: a letter that does not parse ends the connection.
//! Source: our own; SCM_RIGHTS and SOCK_SEQPACKET as in unix(7).

use crate::connection::Address;
use crate::memory::ProtectionTag;
use crate::vi::{Reliability, ViAttributes};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Changes with every change of a letter or of the segment.
const VERSION: u32 = 1;
const MOST_BYTES: usize = 1024;

/// Where the peer can find a word of ours, to learn whether it can read our memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::provider) struct Probe {
    pub(super) address: u64,
    pub(super) cookie: u64,
}

/// A region of the sender that the receiver may map; the memory file travels along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::provider) struct Showing {
    pub(super) handle: u32,
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) write: bool,
    pub(super) read: bool,
    /// Its place in the sender's `exports`.
    pub(super) slot: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::provider) enum Letter {
    /// The connecting side begins; the segment travels along.
    Hello {
        local: Address,
        attributes: ViAttributes,
        barrier: bool,
        probe: Probe,
    },
    /// The accepting side agrees.
    Accept {
        attributes: ViAttributes,
        barrier: bool,
        probe: Probe,
    },
    /// Or does not.
    Reject,
    Show(Showing),
    /// All regions that there were at connection time have been shown.
    Shown,
    /// A region is no longer to be used.
    Hide {
        handle: u32,
    },
    /// There is a message that has to be placed although nobody may be polling.
    Nudge,
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, value: u64) -> &mut Writer {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Writer {
        self.number(bytes.len() as u64).0.extend(bytes);
        self
    }

    fn attributes(&mut self, attributes: &ViAttributes) -> &mut Writer {
        self.number(attributes.reliability as u64).number(u64::from(attributes.max_transfer_bytes));
        self.number(u64::from(attributes.rdma_write)).number(u64::from(attributes.rdma_read))
    }

    fn probe(&mut self, probe: &Probe) -> &mut Writer {
        self.number(probe.address).number(probe.cookie)
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    fn small(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    fn flag(&mut self) -> Option<bool> {
        match self.number()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn address(&mut self) -> Option<Address> {
        Some(Address { host: self.bytes()?.to_vec(), discriminator: self.bytes()?.to_vec() })
    }

    fn attributes(&mut self) -> Option<ViAttributes> {
        Some(ViAttributes {
            reliability: Reliability::from_bits(self.number()?.try_into().ok()?)?,
            max_transfer_bytes: self.small()?,
            tag: ProtectionTag::default(),
            rdma_write: self.flag()?,
            rdma_read: self.flag()?,
        })
    }

    fn probe(&mut self) -> Option<Probe> {
        Some(Probe { address: self.number()?, cookie: self.number()? })
    }
}

impl Letter {
    pub(in crate::provider) fn write(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        match self {
            Letter::Hello { local, attributes, barrier, probe } => {
                writer.number(1).number(u64::from(VERSION)).bytes(&local.host).bytes(&local.discriminator);
                writer.attributes(attributes).number(u64::from(*barrier)).probe(probe)
            }
            Letter::Accept { attributes, barrier, probe } => {
                writer.number(2).attributes(attributes).number(u64::from(*barrier)).probe(probe)
            }
            Letter::Reject => writer.number(3),
            Letter::Show(showing) => {
                writer
                    .number(4)
                    .number(u64::from(showing.handle))
                    .number(showing.address)
                    .number(showing.length);
                writer
                    .number(u64::from(showing.write))
                    .number(u64::from(showing.read))
                    .number(u64::from(showing.slot))
            }
            Letter::Shown => writer.number(5),
            Letter::Hide { handle } => writer.number(6).number(u64::from(*handle)),
            Letter::Nudge => writer.number(7),
        };
        writer.0
    }

    /// The letter in `bytes`, if it is one.
    pub(in crate::provider) fn parse(bytes: &[u8]) -> Option<Letter> {
        let mut reader = Reader(bytes);
        let letter = match reader.number()? {
            1 => {
                if reader.small()? != VERSION {
                    return None;
                }
                let local = reader.address()?;
                let attributes = reader.attributes()?;
                Letter::Hello { local, attributes, barrier: reader.flag()?, probe: reader.probe()? }
            }
            2 => {
                let attributes = reader.attributes()?;
                Letter::Accept { attributes, barrier: reader.flag()?, probe: reader.probe()? }
            }
            3 => Letter::Reject,
            4 => Letter::Show(Showing {
                handle: reader.small()?,
                address: reader.number()?,
                length: reader.number()?,
                write: reader.flag()?,
                read: reader.flag()?,
                slot: reader.small()?,
            }),
            5 => Letter::Shown,
            6 => Letter::Hide { handle: reader.small()? },
            7 => Letter::Nudge,
            _ => return None,
        };
        reader.0.is_empty().then_some(letter)
    }
}

/// Room for one file descriptor in a control message, aligned as `cmsghdr`.
#[repr(C, align(8))]
struct ControlRoom([u8; 64]);

/// Sends a letter, with a file if there is one. Never blocks: a full socket is `WouldBlock`.
pub(super) fn send(socket: RawFd, letter: &Letter, file: Option<RawFd>) -> io::Result<()> {
    let bytes = letter.write();
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut room = ControlRoom([0; 64]);
    // SAFETY: `msghdr` is plain old data, for which zeroes are a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    if let Some(file) = file {
        header.msg_control = room.0.as_mut_ptr().cast();
        // SAFETY: arithmetic only.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as usize;
        // SAFETY: the control room is aligned, zeroed and longer than what one descriptor needs.
        unsafe {
            let control = libc::CMSG_FIRSTHDR(&raw const header);
            (*control).cmsg_level = libc::SOL_SOCKET;
            (*control).cmsg_type = libc::SCM_RIGHTS;
            (*control).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
            libc::CMSG_DATA(control).cast::<RawFd>().write_unaligned(file);
        }
    }
    // SAFETY: the header points to parts that live until the call returns.
    let sent = unsafe { libc::sendmsg(socket, &raw const header, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives a letter and the file that came with it. Never blocks. `UnexpectedEof`: the peer is gone; `InvalidData`: not a letter.
pub(super) fn receive(socket: &impl AsRawFd) -> io::Result<(Letter, Option<OwnedFd>)> {
    let mut bytes = [0u8; MOST_BYTES];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut room = ControlRoom([0; 64]);
    // SAFETY: `msghdr` is plain old data, for which zeroes are a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    header.msg_control = room.0.as_mut_ptr().cast();
    // Room for one descriptor: the kernel closes any more by itself.
    // SAFETY: arithmetic only.
    header.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as usize;
    // SAFETY: the header points to room of the lengths said.
    let received = unsafe {
        libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC)
    };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    let file = received_file(&header);
    if received == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let letter = bytes
        .get(..received as usize)
        .filter(|_| header.msg_flags & libc::MSG_TRUNC == 0)
        .and_then(Letter::parse);
    letter.map(|letter| (letter, file)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn received_file(header: &libc::msghdr) -> Option<OwnedFd> {
    // SAFETY: the kernel filled the control room that the header points to; the macros stay inside its length. Two descriptors
    // of four bytes can fit into the padded room for one, so both are taken and the second is closed.
    unsafe {
        let control = libc::CMSG_FIRSTHDR(std::ptr::from_ref(header));
        if control.is_null()
            || (*control).cmsg_level != libc::SOL_SOCKET
            || (*control).cmsg_type != libc::SCM_RIGHTS
        {
            return None;
        }
        let bytes = ((*control).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
        let files = libc::CMSG_DATA(control).cast::<RawFd>();
        let mut first = None;
        for index in 0..bytes / size_of::<RawFd>() {
            let file = OwnedFd::from_raw_fd(files.add(index).read_unaligned());
            first.get_or_insert(file);
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_that_is_cut_anywhere_or_too_long_is_not_a_letter() {
        let probe = Probe { address: 7, cookie: 9 };
        let attributes = ViAttributes::new(ProtectionTag::default());
        let letter = Letter::Hello { local: Address::local("here"), attributes, barrier: true, probe };
        let mut bytes = letter.write();
        assert_eq!(Letter::parse(&bytes), Some(letter));
        for length in 0..bytes.len() {
            assert_eq!(Letter::parse(&bytes[..length]), None, "cut to {length} bytes");
        }
        bytes.push(0);
        assert_eq!(Letter::parse(&bytes), None);
    }
}
