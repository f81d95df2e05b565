//! The letters of the control socket: connection set-up, regions shown and hidden, a nudge. Seldom sent; data never goes this way.
//! Not trusted: a letter that does not parse ends the connection.
//! Source: SCM_RIGHTS and SOCK_SEQPACKET as in unix(7).

use super::closing::Foreign;
use super::ledger::Account;
use crate::address::Address;
use crate::attributes::{Reliability, ViAttributes};
use crate::protection::ProtectionTag;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Changes with every change of a letter or of a half.
const VERSION: u32 = 5;
const MOST_BYTES: usize = 1024;
/// The most bytes of a reason. Longer ones are cut.
const MOST_REASON_BYTES: usize = 300;

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
    /// The sender's own number of this letter: a region may be shown again, as another file.
    pub(super) serial: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::provider) enum Letter {
    /// The connecting side begins; its half of what both will share travels along.
    Hello {
        local: Address,
        attributes: ViAttributes,
        barrier: bool,
    },
    /// A `Hello` of another version of the letters, of which no more is understood.
    Stranger {
        version: u32,
    },
    /// The accepting side agrees; its half travels along.
    Accept {
        attributes: ViAttributes,
        barrier: bool,
    },
    /// Or does not, and why; without a reason it is the program that did not want. `again`: it may be otherwise soon.
    Reject {
        reason: String,
        again: bool,
    },
    Show(Showing),
    /// A region that is not enabled for RDMA, for single copies from it: the sender's descriptor of that number is its file, which
    /// the receiver gets from the kernel if it has the right.
    Lend {
        showing: Showing,
        file: u32,
    },
    /// All regions that there were at connection time have been shown.
    Shown,
    /// A region is no longer to be used.
    Hide {
        handle: u32,
    },
    /// A region that was shown or lent is mapped, as that letter said: messages may lie in it.
    Mapped {
        handle: u32,
        serial: u32,
    },
    /// Or it is not, and why; it is reached by messages.
    Declined {
        handle: u32,
        reason: String,
    },
    /// There is a message that has to be placed although nobody may be polling, or news for a side that is parked.
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

    fn reason(&mut self, reason: &str) -> &mut Writer {
        let end = (0..=MOST_REASON_BYTES.min(reason.len())).rev().find(|end| reason.is_char_boundary(*end));
        self.bytes(&reason.as_bytes()[..end.unwrap_or(0)])
    }

    fn showing(&mut self, showing: &Showing) -> &mut Writer {
        self.number(u64::from(showing.handle)).number(showing.address).number(showing.length);
        self.number(u64::from(showing.write)).number(u64::from(showing.read));
        self.number(u64::from(showing.slot)).number(u64::from(showing.serial))
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

    fn reason(&mut self) -> Option<String> {
        let bytes = self.bytes().filter(|bytes| bytes.len() <= MOST_REASON_BYTES)?;
        // It will be printed, and is not to move the cursor of whoever reads it.
        let shown = |character: char| if character.is_control() { '?' } else { character };
        Some(std::str::from_utf8(bytes).ok()?.chars().map(shown).collect())
    }

    fn showing(&mut self) -> Option<Showing> {
        Some(Showing {
            handle: self.small()?,
            address: self.number()?,
            length: self.number()?,
            write: self.flag()?,
            read: self.flag()?,
            slot: self.small()?,
            serial: self.small()?,
        })
    }
}

impl Letter {
    pub(in crate::provider) fn write(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        match self {
            Letter::Hello { local, attributes, barrier } => {
                writer.number(1).number(u64::from(VERSION)).bytes(&local.host).bytes(&local.discriminator);
                writer.attributes(attributes).number(u64::from(*barrier))
            }
            Letter::Stranger { version } => writer.number(1).number(u64::from(*version)),
            Letter::Accept { attributes, barrier } => {
                writer.number(2).attributes(attributes).number(u64::from(*barrier))
            }
            Letter::Reject { reason, again } => writer.number(3).reason(reason).number(u64::from(*again)),
            Letter::Show(showing) => writer.number(4).showing(showing),
            Letter::Shown => writer.number(5),
            Letter::Hide { handle } => writer.number(6).number(u64::from(*handle)),
            Letter::Nudge => writer.number(7),
            Letter::Lend { showing, file } => writer.number(8).showing(showing).number(u64::from(*file)),
            Letter::Mapped { handle, serial } => {
                writer.number(9).number(u64::from(*handle)).number(u64::from(*serial))
            }
            Letter::Declined { handle, reason } => {
                writer.number(10).number(u64::from(*handle)).reason(reason)
            }
        };
        writer.0
    }

    /// The letter in `bytes`, if it is one.
    pub(in crate::provider) fn parse(bytes: &[u8]) -> Option<Letter> {
        let mut reader = Reader(bytes);
        let letter = match reader.number()? {
            1 => {
                let version = reader.small()?;
                if version != VERSION {
                    return Some(Letter::Stranger { version });
                }
                let local = reader.address()?;
                Letter::Hello { local, attributes: reader.attributes()?, barrier: reader.flag()? }
            }
            2 => Letter::Accept { attributes: reader.attributes()?, barrier: reader.flag()? },
            3 => Letter::Reject { reason: reader.reason()?, again: reader.flag()? },
            4 => Letter::Show(reader.showing()?),
            5 => Letter::Shown,
            6 => Letter::Hide { handle: reader.small()? },
            7 => Letter::Nudge,
            8 => Letter::Lend { showing: reader.showing()?, file: reader.small()? },
            9 => Letter::Mapped { handle: reader.small()?, serial: reader.small()? },
            10 => Letter::Declined { handle: reader.small()?, reason: reader.reason()? },
            _ => return None,
        };
        reader.0.is_empty().then_some(letter)
    }
}

/// What is said to whoever speaks another version of the letters.
pub(super) fn not_understood(version: u32) -> String {
    format!(
        "it speaks version {version} of the letters, and this side version {VERSION}: both need the same version of longma-via"
    )
}

/// Room for as many descriptors as the kernel lets a message have (253), aligned as `cmsghdr`. What had no room the kernel would close in
/// our thread, however long that takes.
#[repr(C, align(8))]
struct ControlRoom([u8; 1040]);

const MOST_FILES: usize = 253;

/// Sends a letter, with a file if there is one. Never blocks: a full socket is `WouldBlock`.
pub(super) fn send(socket: RawFd, letter: &Letter, file: Option<RawFd>) -> io::Result<()> {
    send_with(socket, &letter.write(), file.as_slice())
}

/// Sends bytes, with so many files (253 at most).
pub(super) fn send_with(socket: RawFd, bytes: &[u8], files: &[RawFd]) -> io::Result<()> {
    assert!(files.len() <= MOST_FILES);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut room = ControlRoom([0; 1040]);
    // SAFETY: `msghdr` is plain old data, for which zeroes are a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    if !files.is_empty() {
        let length = size_of_val(files) as u32;
        header.msg_control = room.0.as_mut_ptr().cast();
        // SAFETY: arithmetic only.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(length) } as _;
        // SAFETY: the control room is aligned, zeroed and not shorter than what the most descriptors need.
        unsafe {
            let control = libc::CMSG_FIRSTHDR(&raw const header);
            (*control).cmsg_level = libc::SOL_SOCKET;
            (*control).cmsg_type = libc::SCM_RIGHTS;
            (*control).cmsg_len = libc::CMSG_LEN(length) as _;
            let places = libc::CMSG_DATA(control).cast::<RawFd>();
            for (index, file) in files.iter().enumerate() {
                places.add(index).write_unaligned(*file);
            }
        }
    }
    // SAFETY: the header points to parts that live until the call returns.
    let sent = unsafe { libc::sendmsg(socket, &raw const header, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What recvmsg(2) says.
struct Taken {
    bytes: [u8; MOST_BYTES],
    length: usize,
    flags: i32,
    /// Where the control room ends that the kernel filled.
    header: libc::msghdr,
}

impl Taken {
    fn letter(&self) -> Option<Letter> {
        self.bytes.get(..self.length).filter(|_| self.flags & libc::MSG_TRUNC == 0).and_then(Letter::parse)
    }
}

/// recvmsg(2), with as many bytes of the control room as said. Never blocks. The header of what is returned points into `room`, and to
/// nothing else that may be used.
fn take(socket: RawFd, flags: i32, room: &mut ControlRoom, room_bytes: usize) -> io::Result<Taken> {
    let mut bytes = [0u8; MOST_BYTES];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: `msghdr` is plain old data, for which zeroes are a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    if room_bytes > 0 {
        header.msg_control = room.0.as_mut_ptr().cast();
        header.msg_controllen = room_bytes.min(room.0.len()) as _;
    }
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header points to room of the lengths said.
    let received = unsafe { libc::recvmsg(socket, &raw mut header, flags) };
    let length = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    (header.msg_iov, header.msg_iovlen) = (std::ptr::null_mut(), 0);
    Ok(Taken { bytes, length, flags: header.msg_flags, header })
}

/// Receives a letter and the file that came with it, which is on the peer's account. Never blocks. `UnexpectedEof`: the peer is gone;
/// `InvalidData`: not a letter, or one with files that it should not have; those then stay where they are, in the socket, since
/// a descriptor that cannot be closed soon (`closing.rs`) is best never taken.
pub(super) fn receive(
    socket: &impl AsRawFd,
    account: Option<&Arc<Account>>,
) -> io::Result<(Letter, Option<Foreign>)> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let mut room = ControlRoom([0; 1040]);
    let seen = take(socket.as_raw_fd(), libc::MSG_PEEK, &mut room, 0)?;
    // Without room for them files show by this alone.
    let brings_files = seen.flags & libc::MSG_CTRUNC != 0;
    if let Some(stranger @ Letter::Stranger { .. }) = seen.letter() {
        // Whatever it brings stays where it is, as does the letter.
        return Ok((stranger, None));
    }
    let takes_file =
        || matches!(seen.letter(), Some(Letter::Hello { .. } | Letter::Accept { .. } | Letter::Show(_)));
    if brings_files && !(takes_file() && account.is_none_or(|account| account.may_bring_files())) {
        return Err(invalid());
    }
    let mut files = Vec::new();
    if brings_files {
        // Looked at with room for one descriptor, while the letter stays in the socket: what has no room, or finds no free place in this
        // process's table, the kernel then lets go of without closing it for good, which could take as long as the peer likes.
        // SAFETY: arithmetic only.
        let one = unsafe { libc::CMSG_LEN(size_of::<RawFd>() as u32) } as usize;
        let seen = take(socket.as_raw_fd(), libc::MSG_PEEK, &mut room, one)?;
        files = received_files(&seen.header, account);
        if seen.flags & libc::MSG_CTRUNC != 0 || files.len() != 1 {
            return Err(invalid());
        }
    }
    // Ours is another reference, so that the kernel's is not the last.
    let taken = take(socket.as_raw_fd(), 0, &mut room, 0)?;
    if taken.length == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if !brings_files && taken.flags & libc::MSG_CTRUNC != 0 {
        // The look had no memory to show the files with: better no letter than one that seems to bring none.
        return Err(invalid());
    }
    let letter = taken.letter().filter(|_| files.len() <= 1).ok_or_else(invalid)?;
    Ok((letter, files.into_iter().next()))
}

/// What is in a socket that is shut down.
pub(super) enum Unread {
    Nothing,
    /// Something that closing the socket would close, however long that takes.
    Files,
}

/// Takes letters that bring nothing out of a socket that is shut down, `most` at the most, until there is one with files, or none.
pub(super) fn take_unread(socket: RawFd, most: usize) -> Unread {
    // With the sender's credentials a letter without bytes is another thing than the end.
    let yes = 1i32;
    let length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: reads four bytes.
    let asked = unsafe {
        libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_PASSCRED, (&raw const yes).cast(), length)
    };
    if asked < 0 {
        return Unread::Files;
    }
    // SAFETY: arithmetic only. Room for these, and none for files.
    let room_bytes = unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) } as usize;
    let mut room = ControlRoom([0; 1040]);
    for _ in 0..most {
        match take(socket, libc::MSG_PEEK, &mut room, room_bytes) {
            Ok(seen) if seen.flags & libc::MSG_CTRUNC != 0 => return Unread::Files,
            Ok(seen) if seen.length == 0 && seen.header.msg_controllen == 0 => return Unread::Nothing,
            Ok(_) => {
                let _ = take(socket, 0, &mut room, room_bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Unread::Nothing,
            Err(error)
                if [io::ErrorKind::Interrupted, io::ErrorKind::ConnectionReset].contains(&error.kind()) => {}
            Err(_) => return Unread::Files,
        }
    }
    Unread::Files
}

fn received_files(header: &libc::msghdr, account: Option<&Arc<Account>>) -> Vec<Foreign> {
    // SAFETY: the kernel filled the control room that the header points to; the macros stay inside its length. All descriptors are
    // taken.
    unsafe {
        let control = libc::CMSG_FIRSTHDR(std::ptr::from_ref(header));
        if control.is_null()
            || (*control).cmsg_level != libc::SOL_SOCKET
            || (*control).cmsg_type != libc::SCM_RIGHTS
        {
            return Vec::new();
        }
        let bytes = ((*control).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
        let files = libc::CMSG_DATA(control).cast::<RawFd>();
        let file = |index| OwnedFd::from_raw_fd(files.add(index).read_unaligned());
        (0..bytes / size_of::<RawFd>()).map(|index| Foreign::new(file(index), account)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_that_is_cut_anywhere_or_too_long_is_not_a_letter() {
        let attributes = ViAttributes::new(ProtectionTag::default());
        let letter = Letter::Hello { local: Address::local("here"), attributes, barrier: true };
        let mut bytes = letter.write();
        assert_eq!(Letter::parse(&bytes), Some(letter));
        for length in 0..bytes.len() {
            assert_eq!(Letter::parse(&bytes[..length]), None, "cut to {length} bytes");
        }
        bytes.push(0);
        assert_eq!(Letter::parse(&bytes), None);
    }

    #[test]
    fn a_reason_moves_nobodys_cursor() {
        let letter = Letter::Declined { handle: 1, reason: "no\x1b[2J room\n".into() };
        let shown = Letter::Declined { handle: 1, reason: "no?[2J room?".into() };
        assert_eq!(Letter::parse(&letter.write()), Some(shown));
    }
}
