//! A file of the guest's, or one that was looked up for it, at a descriptor of ours: what is found out about it holds for what is done
//! with it.
//! Not a guest's descriptor, whose number another thread of the guest can give to another file between the two.
//! Source: fcntl(2) (F_DUPFD_CLOEXEC: a second descriptor of the same open file), proc_pid_fd(5).

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::PoisonError;

use super::descriptors;
use super::locks::{Mutex, MutexGuard};
use crate::Errno;

/// The descriptors of all there are.
static HELD: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<RawFd>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An open file that no thread of the guest can exchange for another one.
#[derive(Debug)]
pub struct Held(ManuallyDrop<OwnedFd>);

impl Held {
    /// The file that the guest's descriptor stands for now.
    ///
    /// # Errors
    /// EBADF if it stands for none; EMFILE if none of our descriptors is left.
    pub fn of(descriptor: RawFd) -> Result<Self, Errno> {
        if descriptors::is_own(descriptor as u64) {
            return Err(Errno(libc::EBADF));
        }
        Self::noted(|| Ok(descriptors::duplicate(descriptor)?))
    }

    /// The file that `make` opens or makes, which must not wait for another thread of the guest. It may be asked again: the guest may have all
    /// the descriptors that it may.
    ///
    /// # Errors
    /// Those of `make`; EMFILE if none of our descriptors is left.
    pub fn new(mut make: impl FnMut() -> Result<OwnedFd, Errno>) -> Result<Self, Errno> {
        let mut made = || make().map_err(|error| std::io::Error::from_raw_os_error(error.0));
        Self::noted(|| Ok(descriptors::keep(descriptors::with_room(&mut made)?)?))
    }

    /// As [`Held::new`], for another file that the same `make` makes.
    pub fn within(made: OwnedFd) -> Result<Self, Errno> {
        let made = descriptors::keep(made)?;
        all().push(made.as_raw_fd());
        Ok(Self(ManuallyDrop::new(made)))
    }

    fn noted(make: impl FnOnce() -> Result<OwnedFd, Errno>) -> Result<Self, Errno> {
        let _stay = descriptors::numbers_stay();
        let made = make()?;
        all().push(made.as_raw_fd());
        Ok(Self(ManuallyDrop::new(made)))
    }

    /// The descriptor, for longer than a moment.
    pub fn into_owned(self) -> OwnedFd {
        let mut held = ManuallyDrop::new(self);
        all().retain(|number| *number != held.number());
        // SAFETY: `held` is not looked at again, nor dropped.
        unsafe { ManuallyDrop::take(&mut held.0) }
    }

    /// Its number, for calls of the host.
    pub fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Writes at its beginning.
    ///
    /// # Errors
    /// As write(2).
    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        // SAFETY: it is open for longer than this, which does not close it.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(self.number()) });
        file.write_all_at(bytes, 0)
    }

    /// A path that leads to it.
    pub fn link(&self) -> CString {
        CString::new(format!("/proc/self/fd/{}", self.number())).expect("it has no zero byte")
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A child that is forked in between would have it, and not know.
        let _stay = descriptors::numbers_stay();
        all().retain(|held| *held != self.number());
        // SAFETY: nobody uses it after this.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// In a forked child: closes what its parent's threads are busy with, which would otherwise stay open, and locked, for as long as the
/// child lives.
pub fn close_parents() {
    for held in all().drain(..) {
        // SAFETY: no pointers. Whoever owned it is a thread of the parent's.
        unsafe { libc::close(held) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_file_stays_though_its_number_is_another_files() {
        let (first, second) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        first.set_len(7).unwrap();
        let held = Held::of(first.as_raw_fd()).unwrap();
        // SAFETY: both are open and this test's own.
        assert!(unsafe { libc::dup2(second.as_raw_fd(), first.as_raw_fd()) } >= 0);
        let link = held.link().into_string().unwrap();
        assert_eq!(std::fs::metadata(&link).unwrap().len(), 7);
        assert!(descriptors::is_own(held.number() as u64));
        assert_eq!(Held::of(held.number()).unwrap_err(), Errno(libc::EBADF));
    }
}
