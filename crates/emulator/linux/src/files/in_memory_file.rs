//! Bytes as an open file for the guest or for the next emulator process. RLIMIT_FSIZE, which limits the guest's files,
//! must not apply to /proc contents or to data passed across execve. Source: getrlimit(2), memfd_create(2), pipe(7).

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd};

use longma_guest::Errno;
use longma_guest::host::descriptors;
use longma_guest::host::pinned_file::PinnedFile;

use crate::root::{OpenHow, open_how};

/// A file with given contents: a memfd, or a pipe without seeking if RLIMIT_FSIZE forbids a memfd of this size.
#[derive(Debug)]
pub(crate) struct InMemoryFile {
    file: PinnedFile,
    /// The write end of a pipe. While it is open, opening the pipe again does not block.
    _write_end: Option<PinnedFile>,
}

impl InMemoryFile {
    /// Creates the file.
    ///
    /// # Errors
    /// The host has no free descriptor or memory, or the contents exceed both RLIMIT_FSIZE and the maximum pipe size.
    pub fn of(name: &CStr, bytes: &[u8]) -> Result<Self, Errno> {
        if bytes.len() as u64 > max_bytes() {
            return Self::pipe(bytes);
        }
        let file = PinnedFile::new(|| {
            // SAFETY: the name is terminated, and a new descriptor affects no other code.
            Ok(descriptors::owned(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })?)
        })?;
        file.write(bytes)?;
        Ok(Self { file, _write_end: None })
    }

    fn pipe(bytes: &[u8]) -> Result<Self, Errno> {
        let mut written = None;
        let file = PinnedFile::new(|| {
            let mut ends = [0; 2];
            // The pipe has no reader yet, so writing must not block. SAFETY: the array has room for two descriptors,
            // and new descriptors affect no other code.
            descriptors::done(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) })?;
            // SAFETY: the host has just created the descriptors for this call.
            let [read, write] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
            written = Some(PinnedFile::within(write)?);
            Ok(read)
        })?;
        let written = written.ok_or(Errno(libc::EMFILE))?;
        let capacity = i32::try_from(bytes.len()).map_err(|_| Errno(libc::ENOMEM))?;
        // If the host refuses the size, the write below is incomplete. SAFETY: the call takes no pointers.
        unsafe { libc::fcntl(written.number(), libc::F_SETPIPE_SZ, capacity) };
        // SAFETY: the descriptor outlives `end`, and `ManuallyDrop` prevents closing it.
        let mut end = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(written.number()) });
        match end.write_all(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Errno(libc::ENOMEM)),
            done => Ok(done?),
        }?;
        Ok(Self { file, _write_end: Some(written) })
    }

    /// Opens the file for the guest with these O_ flags.
    ///
    /// # Errors
    /// As open(2).
    pub fn open(&self, flags: i32) -> Result<OwnedFd, Errno> {
        open_how(libc::AT_FDCWD, &self.file.link(), &OpenHow { flags: flags as u64, mode: 0, resolve: 0 })
    }

    /// Duplicates the file to an emulator descriptor that survives execve.
    ///
    /// # Errors
    /// No emulator descriptor is free.
    pub fn duplicate_across_exec(&self) -> io::Result<OwnedFd> {
        descriptors::duplicate_across_exec(self.file.number())
    }
}

/// The soft limit of RLIMIT_FSIZE. A write beyond it raises SIGXFSZ.
fn max_bytes() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writes. The call cannot fail for this resource.
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
        let in_memory_file = InMemoryFile::pipe(&bytes).unwrap();
        let mut opened = File::from(in_memory_file.open(libc::O_CLOEXEC).unwrap());
        drop(in_memory_file);
        opened.read_to_end(&mut read).unwrap();
        assert!(read == bytes);
        assert_eq!(InMemoryFile::pipe(&vec![0; 1 << 31]).unwrap_err(), Errno(libc::ENOMEM));
    }
}
