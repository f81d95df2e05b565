//! Emulates vfork. In Linux, the child runs in its parent's memory until it executes another program or ends. Here it
//! runs in a copy of that memory, and its writes are sent to the parent before the parent continues. The parent does
//! not see changes of mappings, or the writes of a child that a signal killed. Source: vfork(2), clone(2) (CLONE_VM,
//! CLONE_VFORK); Linux kernel/fork.c (wait_for_vfork_done: only a fatal signal ends the wait).

use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use longma_guest::Errno;
use longma_guest::host::masks::{self, BLOCKABLE};
use longma_guest::host::pinned_file::PinnedFile;
use longma_guest::{GuestMemory, Written};

use super::{Process, Thread};

/// The size of a number in a message.
const WORD: usize = size_of::<u64>();

/// The parent's end of a stream. The parent waits until the child closes the other end.
#[derive(Debug)]
pub(crate) struct VforkParent {
    read: PinnedFile,
    vfork_child: PinnedFile,
}

/// The child's end. Of several messages, only the last complete one counts.
#[derive(Debug)]
pub(crate) struct VforkChild {
    sent: OwnedFd,
    /// Whether the child shares the parent's memory.
    shares_memory: bool,
}

impl VforkParent {
    pub(crate) fn new() -> Result<Self, Errno> {
        let mut other = None;
        let read = PinnedFile::new(|| {
            let (read, sent) = UnixStream::pair()?;
            other = Some(PinnedFile::within(sent.into())?);
            Ok(read.into())
        })?;
        let vfork_child = other.ok_or(Errno(libc::EMFILE))?;
        Ok(Self { read, vfork_child })
    }

    /// Converts this to the child's end.
    pub(crate) fn into_child(self, memory: &GuestMemory, shares_memory: bool) -> VforkChild {
        if shares_memory {
            memory.track_writes();
        }
        VforkChild { sent: self.vfork_child.into_owned(), shares_memory }
    }

    /// Waits in the parent.
    pub(crate) fn wait(self, thread: &Thread) {
        drop(self.vfork_child);
        let fatal = thread.process.dispositions.fatal() & !thread.signals.mask;
        masks::replace(BLOCKABLE & !fatal);
        let mut messages = Vec::new();
        // On an error, use the data received before it.
        let _ = UnixStream::from(self.read.into_owned()).read_to_end(&mut messages);
        masks::replace(BLOCKABLE);
        for Written { address, bytes } in last(&messages) {
            // Another thread may have unmapped memory that the child could write.
            let _ = thread.process.memory().write(address, &bytes);
        }
    }
}

impl VforkChild {
    fn send(&self, process: &Process) {
        if !self.shares_memory {
            return;
        }
        let mut message = vec![0; WORD];
        for Written { address, bytes } in process.memory().written() {
            message.extend(address.to_le_bytes());
            message.extend((bytes.len() as u64).to_le_bytes());
            message.extend(bytes);
        }
        let length = (message.len() - WORD) as u64;
        message[..WORD].copy_from_slice(&length.to_le_bytes());
        let mut rest = &message[..];
        while !rest.is_empty() {
            // MSG_NOSIGNAL: the parent may have been killed.
            let flags = libc::MSG_NOSIGNAL;
            // SAFETY: the buffer has this many bytes.
            let result =
                unsafe { libc::send(self.sent.as_raw_fd(), rest.as_ptr().cast(), rest.len(), flags) };
            match usize::try_from(result) {
                Ok(result) => rest = &rest[result..],
                Err(_) if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

/// The pieces of the last complete message.
fn last(messages: &[u8]) -> Vec<Written> {
    let (mut rest, mut last) = (messages, &[][..]);
    while let Some((message, remaining)) = piece(rest) {
        (last, rest) = (message, remaining);
    }
    let mut written = Vec::new();
    while let Some((address, remaining)) = last.split_first_chunk::<WORD>() {
        let Some((bytes, remaining)) = piece(remaining) else { break };
        written.push(Written { address: u64::from_le_bytes(*address), bytes: bytes.to_vec() });
        last = remaining;
    }
    written
}

/// Splits off a piece that is preceded by its length.
fn piece(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<WORD>()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

impl Thread {
    /// Sends the writes to the waiting parent, if there is one. Call it before execve, even if that may fail, and
    /// before the process ends.
    pub(crate) fn send_writes_to_parent(&self) {
        if let Some(vfork_child) = &self.vfork_child {
            vfork_child.send(&self.process);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(pieces: &[(u64, &[u8])]) -> Vec<u8> {
        let pieces = pieces.iter().map(|(address, bytes)| {
            [&address.to_le_bytes()[..], &(bytes.len() as u64).to_le_bytes(), bytes].concat()
        });
        let pieces: Vec<u8> = pieces.flatten().collect();
        [&(pieces.len() as u64).to_le_bytes()[..], &pieces].concat()
    }

    #[test]
    fn the_last_complete_message_counts() {
        let (first, second) = (message(&[(16, b"x")]), message(&[(32, b"yz"), (64, b"")]));
        let expected = |pieces: &[(u64, &[u8])]| {
            pieces
                .iter()
                .map(|(address, bytes)| Written { address: *address, bytes: bytes.to_vec() })
                .collect::<Vec<_>>()
        };
        assert_eq!(last(&[&first[..], &second].concat()), expected(&[(32, b"yz"), (64, b"")]));
        let cut = [&first[..], &second[..second.len() - 1]].concat();
        assert_eq!(last(&cut), expected(&[(16, b"x")]));
        assert_eq!((last(&[]), last(&message(&[]))), (Vec::new(), Vec::new()));
        assert_eq!(last(&[255; 24]), Vec::new());
    }
}
