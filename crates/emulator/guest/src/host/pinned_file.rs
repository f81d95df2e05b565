//! An emulator descriptor for a guest file, so that a check and a later use refer to the same file. A guest descriptor
//! gives no such guarantee: another guest thread can reassign its number between the two. Source: fcntl(2)
//! (F_DUPFD_CLOEXEC: a second descriptor of the same open file description), proc_pid_fd(5).

use longma_locks::IgnorePoison;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use super::descriptors;
use super::locks::{Mutex, MutexGuard};
use crate::Errno;

/// The descriptors of all live values.
static PINNED: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<RawFd>> {
    PINNED.lock().ignore_poison()
}

/// An open file that no guest thread can replace.
#[derive(Debug)]
pub struct PinnedFile(ManuallyDrop<OwnedFd>);

impl PinnedFile {
    /// Duplicates the guest's descriptor.
    ///
    /// # Errors
    /// EBADF if it is not open; EMFILE if no emulator descriptor is free.
    pub fn of(descriptor: RawFd) -> Result<Self, Errno> {
        if descriptors::is_reserved(descriptor as u64) {
            return Err(Errno(libc::EBADF));
        }
        Self::register(|| Ok(descriptors::duplicate(descriptor)?))
    }

    /// Takes the file that `make` opens. `make` must not wait for another guest thread. It may be called again if the
    /// guest has reached its descriptor limit.
    ///
    /// # Errors
    /// Those of `make`; EMFILE if no emulator descriptor is free.
    pub fn new(mut make: impl FnMut() -> Result<OwnedFd, Errno>) -> Result<Self, Errno> {
        let mut make_file = || make().map_err(|error| std::io::Error::from_raw_os_error(error.0));
        Self::register(|| Ok(descriptors::move_to_reserved(descriptors::with_raised_limit(&mut make_file)?)?))
    }

    /// Takes another file that the same `make` function of [`PinnedFile::new`] opened.
    ///
    /// # Errors
    /// EMFILE if no emulator descriptor is free.
    pub fn within(file: OwnedFd) -> Result<Self, Errno> {
        let file = descriptors::move_to_reserved(file)?;
        all().push(file.as_raw_fd());
        Ok(Self(ManuallyDrop::new(file)))
    }

    fn register(make: impl FnOnce() -> Result<OwnedFd, Errno>) -> Result<Self, Errno> {
        let _no_reassignment = descriptors::block_reassignment();
        let file = make()?;
        all().push(file.as_raw_fd());
        Ok(Self(ManuallyDrop::new(file)))
    }

    /// Releases the descriptor to the caller, who may store it.
    pub fn into_owned(self) -> OwnedFd {
        let mut this = ManuallyDrop::new(self);
        all().retain(|number| *number != this.number());
        // SAFETY: `this` is neither used again nor dropped.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }

    /// The descriptor number, for host calls.
    pub fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Writes `bytes` at offset 0.
    ///
    /// # Errors
    /// As write(2).
    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        // SAFETY: the descriptor outlives `file`, and `ManuallyDrop` prevents closing it.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(self.number()) });
        file.write_all_at(bytes, 0)
    }

    /// A path in /proc that refers to the file.
    pub fn link(&self) -> CString {
        CString::new(format!("/proc/self/fd/{}", self.number())).expect("it has no zero byte")
    }
}

impl AsFd for PinnedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for PinnedFile {
    fn drop(&mut self) {
        // A child forked between the two steps would inherit the descriptor without knowing it.
        let _no_reassignment = descriptors::block_reassignment();
        all().retain(|descriptor| *descriptor != self.number());
        // SAFETY: the field is not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// Runs in a forked child: closes the files that threads of the parent hold. Otherwise they would stay open, and
/// locked, while the child lives.
pub fn close_parents() {
    for descriptor in all().drain(..) {
        // SAFETY: the call takes no pointers, and the owner is a thread of the parent.
        unsafe { libc::close(descriptor) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_file_stays_the_same_when_its_descriptor_is_reused() {
        let (first, second) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        first.set_len(7).unwrap();
        let pinned = PinnedFile::of(first.as_raw_fd()).unwrap();
        // SAFETY: both descriptors are open and belong to this test.
        assert!(unsafe { libc::dup2(second.as_raw_fd(), first.as_raw_fd()) } >= 0);
        let link = pinned.link().into_string().unwrap();
        assert_eq!(std::fs::metadata(&link).unwrap().len(), 7);
        assert!(descriptors::is_reserved(pinned.number() as u64));
        assert_eq!(PinnedFile::of(pinned.number()).unwrap_err(), Errno(libc::EBADF));
    }
}
