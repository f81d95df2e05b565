//! Control messages, sent over a Unix socket: connection setup, exporting and revoking regions, and wakeups. They are
//! infrequent and carry no data. A message that cannot be parsed ends the connection.
//!
//! Source: SCM_RIGHTS and SOCK_SEQPACKET in unix(7).

use super::deferred_close::PeerFile;
use super::quota::Account;
use crate::address::Address;
use crate::attributes::{Reliability, ViAttributes};
use crate::protection::ProtectionTag;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// The protocol version. It must change with every change of the control messages or of the layout of a half.
const VERSION: u32 = 5;
const MAX_MESSAGE_BYTES: usize = 1024;
/// The maximum length of a reason, bytes. Longer ones are truncated.
const MAX_REASON_BYTES: usize = 300;

/// A region of the sender that the receiver may map. The memory file is attached to the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::provider) struct RegionExport {
    pub(super) handle: u32,
    pub(super) address: u64,
    pub(super) length: u64,
    pub(super) write: bool,
    pub(super) read: bool,
    /// The slot in the sender's `exports`.
    pub(super) slot: u32,
    /// The sender's sequence number of this message. A region may be exported again with another file.
    pub(super) serial: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::provider) enum ControlMessage {
    /// The first message of the connecting side, with its half attached.
    Hello {
        local: Address,
        attributes: ViAttributes,
        barrier: bool,
    },
    /// A `Hello` of another protocol version. The rest of it is not parsed.
    VersionMismatch {
        version: u32,
    },
    /// The accepting side agrees; its half is attached.
    Accept {
        attributes: ViAttributes,
        barrier: bool,
    },
    /// The accepting side refuses. An empty reason means that the program rejected the request. `again`: a later
    /// attempt may succeed.
    Reject {
        reason: String,
        again: bool,
    },
    Export(RegionExport),
    /// A region that is not enabled for RDMA is lent for single copies. `file` is the number of the sender's
    /// descriptor, which the receiver duplicates if the kernel permits it.
    Lend {
        export: RegionExport,
        file: u32,
    },
    /// All regions that existed at connection time have been exported.
    ExportsDone,
    /// A region is revoked.
    Revoke {
        handle: u32,
    },
    /// The region exported or lent with this serial number is mapped, so messages may refer to it.
    Mapped {
        handle: u32,
        serial: u32,
    },
    /// The region is not mapped, for this reason. It is accessed by messages.
    Declined {
        handle: u32,
        reason: String,
    },
    /// There is data to be stored although the program may not be polling, or there is an event for a parked side.
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
        let end = (0..=MAX_REASON_BYTES.min(reason.len())).rev().find(|end| reason.is_char_boundary(*end));
        self.bytes(&reason.as_bytes()[..end.unwrap_or(0)])
    }

    fn export(&mut self, export: &RegionExport) -> &mut Writer {
        self.number(u64::from(export.handle)).number(export.address).number(export.length);
        self.number(u64::from(export.write)).number(u64::from(export.read));
        self.number(u64::from(export.slot)).number(u64::from(export.serial))
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
        let bytes = self.bytes().filter(|bytes| bytes.len() <= MAX_REASON_BYTES)?;
        // The reason will be printed, so it must not contain terminal control characters.
        let shown = |character: char| if character.is_control() { '?' } else { character };
        Some(std::str::from_utf8(bytes).ok()?.chars().map(shown).collect())
    }

    fn export(&mut self) -> Option<RegionExport> {
        Some(RegionExport {
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

impl ControlMessage {
    pub(in crate::provider) fn write(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        match self {
            ControlMessage::Hello { local, attributes, barrier } => {
                writer.number(1).number(u64::from(VERSION)).bytes(&local.host).bytes(&local.discriminator);
                writer.attributes(attributes).number(u64::from(*barrier))
            }
            ControlMessage::VersionMismatch { version } => writer.number(1).number(u64::from(*version)),
            ControlMessage::Accept { attributes, barrier } => {
                writer.number(2).attributes(attributes).number(u64::from(*barrier))
            }
            ControlMessage::Reject { reason, again } => {
                writer.number(3).reason(reason).number(u64::from(*again))
            }
            ControlMessage::Export(export) => writer.number(4).export(export),
            ControlMessage::ExportsDone => writer.number(5),
            ControlMessage::Revoke { handle } => writer.number(6).number(u64::from(*handle)),
            ControlMessage::Nudge => writer.number(7),
            ControlMessage::Lend { export, file } => writer.number(8).export(export).number(u64::from(*file)),
            ControlMessage::Mapped { handle, serial } => {
                writer.number(9).number(u64::from(*handle)).number(u64::from(*serial))
            }
            ControlMessage::Declined { handle, reason } => {
                writer.number(10).number(u64::from(*handle)).reason(reason)
            }
        };
        writer.0
    }

    /// Parses a message.
    pub(in crate::provider) fn parse(bytes: &[u8]) -> Option<ControlMessage> {
        let mut reader = Reader(bytes);
        let message = match reader.number()? {
            1 => {
                let version = reader.small()?;
                if version != VERSION {
                    return Some(ControlMessage::VersionMismatch { version });
                }
                let local = reader.address()?;
                ControlMessage::Hello { local, attributes: reader.attributes()?, barrier: reader.flag()? }
            }
            2 => ControlMessage::Accept { attributes: reader.attributes()?, barrier: reader.flag()? },
            3 => ControlMessage::Reject { reason: reader.reason()?, again: reader.flag()? },
            4 => ControlMessage::Export(reader.export()?),
            5 => ControlMessage::ExportsDone,
            6 => ControlMessage::Revoke { handle: reader.small()? },
            7 => ControlMessage::Nudge,
            8 => ControlMessage::Lend { export: reader.export()?, file: reader.small()? },
            9 => ControlMessage::Mapped { handle: reader.small()?, serial: reader.small()? },
            10 => ControlMessage::Declined { handle: reader.small()?, reason: reader.reason()? },
            _ => return None,
        };
        reader.0.is_empty().then_some(message)
    }
}

/// The reason sent to a peer with another protocol version.
pub(super) fn not_understood(version: u32) -> String {
    format!(
        "it uses protocol version {version}, and this side version {VERSION}: both sides need the same version of longma-via"
    )
}

/// A control buffer for the maximum number of descriptors in a message (253), aligned like `cmsghdr`. Descriptors that
/// do not fit would be closed by the kernel in our thread, which could take arbitrarily long.
#[repr(C, align(8))]
struct ControlBuffer([u8; 1040]);

const MAX_FILES: usize = 253;

/// Sends a message with an optional file. Never blocks: `WouldBlock` means that the socket is full.
pub(super) fn send(socket: RawFd, message: &ControlMessage, file: Option<RawFd>) -> io::Result<()> {
    send_with(socket, &message.write(), file.as_slice())
}

/// Sends bytes with the given files (253 at most).
pub(super) fn send_with(socket: RawFd, bytes: &[u8], files: &[RawFd]) -> io::Result<()> {
    assert!(files.len() <= MAX_FILES);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut buffer = ControlBuffer([0; 1040]);
    // SAFETY: all zeros is a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    if !files.is_empty() {
        let length = size_of_val(files) as u32;
        header.msg_control = buffer.0.as_mut_ptr().cast();
        // SAFETY: only arithmetic.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(length) } as _;
        // SAFETY: the control buffer is aligned, zeroed, and large enough for the maximum number of descriptors.
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
    // SAFETY: the header refers to buffers that live until the call returns.
    let sent = unsafe { libc::sendmsg(socket, &raw const header, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The result of recvmsg(2).
struct RawMessage {
    bytes: [u8; MAX_MESSAGE_BYTES],
    length: usize,
    flags: i32,
    /// Describes the part of the control buffer that the kernel filled.
    header: libc::msghdr,
}

impl RawMessage {
    fn message(&self) -> Option<ControlMessage> {
        self.bytes
            .get(..self.length)
            .filter(|_| self.flags & libc::MSG_TRUNC == 0)
            .and_then(ControlMessage::parse)
    }
}

/// Calls recvmsg(2) with the first `room_bytes` bytes of the control buffer. Never blocks. The returned header points
/// only into `buffer`.
fn take(socket: RawFd, flags: i32, buffer: &mut ControlBuffer, room_bytes: usize) -> io::Result<RawMessage> {
    let mut bytes = [0u8; MAX_MESSAGE_BYTES];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    if room_bytes > 0 {
        header.msg_control = buffer.0.as_mut_ptr().cast();
        header.msg_controllen = room_bytes.min(buffer.0.len()) as _;
    }
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header refers to buffers of the given lengths.
    let received = unsafe { libc::recvmsg(socket, &raw mut header, flags) };
    let length = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    (header.msg_iov, header.msg_iovlen) = (std::ptr::null_mut(), 0);
    Ok(RawMessage { bytes, length, flags: header.msg_flags, header })
}

/// Receives a message and the file attached to it, which is charged to the peer's account. Never blocks.
///
/// # Errors
/// `UnexpectedEof` if the peer has closed the socket. `InvalidData` if the message is invalid or has files that it must
/// not have. Such files are left in the socket, because a descriptor that cannot be closed quickly (`deferred_close.rs`) is
/// best never received.
pub(super) fn receive(
    socket: &impl AsRawFd,
    account: Option<&Arc<Account>>,
) -> io::Result<(ControlMessage, Option<PeerFile>)> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let mut buffer = ControlBuffer([0; 1040]);
    let seen = take(socket.as_raw_fd(), libc::MSG_PEEK, &mut buffer, 0)?;
    // With an empty control buffer, MSG_CTRUNC shows that files are attached.
    let has_files = seen.flags & libc::MSG_CTRUNC != 0;
    if let Some(mismatch @ ControlMessage::VersionMismatch { .. }) = seen.message() {
        // Leave the message and its files in the socket.
        return Ok((mismatch, None));
    }
    let takes_file = || {
        matches!(
            seen.message(),
            Some(ControlMessage::Hello { .. } | ControlMessage::Accept { .. } | ControlMessage::Export(_))
        )
    };
    if has_files && !(takes_file() && account.is_none_or(|account| account.accepts_files())) {
        return Err(invalid());
    }
    let mut files = Vec::new();
    if has_files {
        // Peek with space for a single descriptor, while the message stays in the socket. Descriptors that do not fit,
        // or for which the descriptor table has no free entry, keep their reference in the socket, so releasing the
        // others closes nothing. SAFETY: only arithmetic.
        let one = unsafe { libc::CMSG_LEN(size_of::<RawFd>() as u32) } as usize;
        let seen = take(socket.as_raw_fd(), libc::MSG_PEEK, &mut buffer, one)?;
        files = received_files(&seen.header, account);
        if seen.flags & libc::MSG_CTRUNC != 0 || files.len() != 1 {
            return Err(invalid());
        }
    }
    // We hold a second reference, so removing the message does not close the file.
    let taken = take(socket.as_raw_fd(), 0, &mut buffer, 0)?;
    if taken.length == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if !has_files && taken.flags & libc::MSG_CTRUNC != 0 {
        // When peeking, the kernel had no memory to report the files. Reject the message rather than treat it as one
        // without files.
        return Err(invalid());
    }
    let message = taken.message().filter(|_| files.len() <= 1).ok_or_else(invalid)?;
    Ok((message, files.into_iter().next()))
}

/// The unread messages in a socket that has been shut down.
pub(super) enum Unread {
    Nothing,
    /// There are messages with files, which would be closed with the socket, however long that takes.
    Files,
}

/// Removes up to `limit` messages without files from a socket that has been shut down. Stops at a message with files.
pub(super) fn take_unread(socket: RawFd, limit: usize) -> Unread {
    // With SO_PASSCRED, an empty message can be distinguished from the end of the stream.
    let yes = 1i32;
    let length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: reads four bytes.
    let asked = unsafe {
        libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_PASSCRED, (&raw const yes).cast(), length)
    };
    if asked < 0 {
        return Unread::Files;
    }
    // Space for the credentials, but not for files. SAFETY: only arithmetic.
    let room_bytes = unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) } as usize;
    let mut buffer = ControlBuffer([0; 1040]);
    for _ in 0..limit {
        match take(socket, libc::MSG_PEEK, &mut buffer, room_bytes) {
            Ok(seen) if seen.flags & libc::MSG_CTRUNC != 0 => return Unread::Files,
            Ok(seen) if seen.length == 0 && seen.header.msg_controllen == 0 => return Unread::Nothing,
            Ok(_) => {
                let _ = take(socket, 0, &mut buffer, room_bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Unread::Nothing,
            Err(error)
                if [io::ErrorKind::Interrupted, io::ErrorKind::ConnectionReset].contains(&error.kind()) => {}
            Err(_) => return Unread::Files,
        }
    }
    Unread::Files
}

fn received_files(header: &libc::msghdr, account: Option<&Arc<Account>>) -> Vec<PeerFile> {
    // SAFETY: the kernel filled the control buffer that the header points to, and the macros stay inside its length.
    // Each descriptor gets exactly one owner.
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
        (0..bytes / size_of::<RawFd>()).map(|index| PeerFile::new(file(index), account)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_and_overlong_messages_are_rejected() {
        let attributes = ViAttributes::new(ProtectionTag::default());
        let message = ControlMessage::Hello { local: Address::local("here"), attributes, barrier: true };
        let mut bytes = message.write();
        assert_eq!(ControlMessage::parse(&bytes), Some(message));
        for length in 0..bytes.len() {
            assert_eq!(ControlMessage::parse(&bytes[..length]), None, "cut to {length} bytes");
        }
        bytes.push(0);
        assert_eq!(ControlMessage::parse(&bytes), None);
    }

    #[test]
    fn control_characters_are_removed_from_reasons() {
        let message = ControlMessage::Declined { handle: 1, reason: "no\x1b[2J room\n".into() };
        let shown = ControlMessage::Declined { handle: 1, reason: "no?[2J room?".into() };
        assert_eq!(ControlMessage::parse(&message.write()), Some(shown));
    }
}
