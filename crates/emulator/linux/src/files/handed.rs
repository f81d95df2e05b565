//! Bytes as an open file that somebody reads: the guest, or the emulator when it is started anew.
//! Not a file of the guest's, whose size its limit (RLIMIT_FSIZE) bounds: what Linux tells of a process, and what execve hands over,
//! has no such bound.
//! Source: getrlimit(2), memfd_create(2), pipe(7).

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd};

use longma_guest::Errno;
use longma_guest::host::descriptors;
use longma_guest::host::held::Held;

use crate::root::{OpenHow, open_how};

/// A file with the bytes in it: one in memory, or if the limit forbids that, a pipe, in which nobody can seek.
#[derive(Debug)]
pub(crate) struct Handed {
    file: Held,
    /// Of a pipe: as long as it is open, opening the other end once more does not wait.
    _written: Option<Held>,
}

impl Handed {
    /// # Errors
    /// The host gives no descriptor, or no memory; a pipe that it allows is too small for bytes that the limit forbids a file.
    pub fn of(name: &CStr, bytes: &[u8]) -> Result<Self, Errno> {
        if bytes.len() as u64 > most_bytes() {
            return Self::pipe(bytes);
        }
        let file = Held::new(|| {
            // SAFETY: the name is terminated; a new descriptor disturbs nobody.
            Ok(descriptors::owned(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })?)
        })?;
        file.write(bytes)?;
        Ok(Self { file, _written: None })
    }

    fn pipe(bytes: &[u8]) -> Result<Self, Errno> {
        let mut written = None;
        let file = Held::new(|| {
            let mut ends = [0; 2];
            // SAFETY: room for two; new descriptors disturb nobody. Nobody reads yet: writing must not wait.
            descriptors::done(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) })?;
            // SAFETY: the host has just made them, for us.
            let [read, write] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
            written = Some(Held::within(write)?);
            Ok(read)
        })?;
        let written = written.ok_or(Errno(libc::EMFILE))?;
        let room = i32::try_from(bytes.len()).map_err(|_| Errno(libc::ENOMEM))?;
        // SAFETY: no pointers. If the host does not allow it, not all of it is written below.
        unsafe { libc::fcntl(written.number(), libc::F_SETPIPE_SZ, room) };
        // SAFETY: it is open for longer than this, which does not close it.
        let mut end = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(written.number()) });
        match end.write_all(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Errno(libc::ENOMEM)),
            done => Ok(done?),
        }?;
        Ok(Self { file, _written: Some(written) })
    }

    /// Opens it for the guest, with these O_ flags.
    ///
    /// # Errors
    /// As open(2).
    pub fn open(&self, flags: i32) -> Result<OwnedFd, Errno> {
        open_how(libc::AT_FDCWD, &self.file.link(), &OpenHow { flags: flags as u64, mode: 0, resolve: 0 })
    }

    /// A descriptor of ours that survives execve.
    ///
    /// # Errors
    /// None of ours is left.
    pub fn for_the_next_program(&self) -> io::Result<OwnedFd> {
        descriptors::duplicate_for_the_next_program(self.file.number())
    }
}

/// RLIMIT_FSIZE, beyond which a write ends in a signal.
fn most_bytes() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is there to be filled; the call cannot fail for this resource.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn bytes_in_a_pipe_are_read_to_their_end() {
        let bytes: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
        let mut read = Vec::new();
        let handed = Handed::pipe(&bytes).unwrap();
        let mut opened = File::from(handed.open(libc::O_CLOEXEC).unwrap());
        drop(handed);
        opened.read_to_end(&mut read).unwrap();
        assert!(read == bytes);
        assert_eq!(Handed::pipe(&vec![0; 1 << 31]).unwrap_err(), Errno(libc::ENOMEM));
    }
}
