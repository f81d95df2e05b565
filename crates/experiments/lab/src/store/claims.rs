//! Claims: a lock per point, so that concurrent campaigns on one store share the work. The kernel ends the claims of a
//! process that dies.
//!
//! Source: fcntl(2), open file description locks: the kernel releases them when the last descriptor is closed, and
//! network file systems propagate them between hosts.

use super::Store;
use crate::key::{Key, digest};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

/// The file whose byte ranges are locked. It stays empty.
const CLAIMS: &str = "claims";
/// The byte that represents the whole store. Lower bytes represent points.
const WHOLE: i64 = i64::MAX - 1;

/// Claims on the points of a store.
pub(crate) struct Claims {
    file: Option<File>,
    /// Why claims are unavailable.
    pub(crate) unavailable: Option<io::Error>,
}

/// Result of a claim.
pub(crate) enum ClaimResult<'a> {
    /// The point may be run here while this is held.
    Claimed(Claim<'a>),
    /// Another campaign is running the point.
    Taken,
}

/// A claim, released when dropped.
pub(crate) struct Claim<'a> {
    file: Option<&'a File>,
    at: i64,
}

impl Claims {
    /// Opens the claims of `store`. If locking is unavailable, every claim succeeds.
    pub(crate) fn open(store: &Store) -> Self {
        let opened = fs::create_dir_all(store.folder()).and_then(|()| {
            let path = store.folder().join(CLAIMS);
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
            // Fails if the file system does not support locks.
            lock(&file, libc::F_OFD_SETLK, libc::F_UNLCK, WHOLE).map(|()| file)
        });
        match opened {
            Ok(file) => Self { file: Some(file), unavailable: None },
            Err(error) => Self { file: None, unavailable: Some(error) },
        }
    }

    /// Claims the point of `key` unless it is claimed.
    pub(crate) fn claim(&self, key: &Key) -> ClaimResult<'_> {
        let at = byte(key);
        let Some(file) = &self.file else { return ClaimResult::Claimed(Claim { file: None, at }) };
        match lock(file, libc::F_OFD_SETLK, libc::F_WRLCK, at) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                ClaimResult::Taken
            }
            // If locking fails later, the worst case is that a point is run twice.
            Err(_) => ClaimResult::Claimed(Claim { file: None, at }),
            Ok(()) => ClaimResult::Claimed(Claim { file: Some(file), at }),
        }
    }

    /// Claims the whole store, waiting if necessary.
    pub(super) fn claim_store(&self) -> Claim<'_> {
        let held = self.file.as_ref().filter(|file| {
            loop {
                match lock(file, libc::F_OFD_SETLKW, libc::F_WRLCK, WHOLE) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    done => break done.is_ok(),
                }
            }
        });
        Claim { file: held, at: WHOLE }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.file {
            // If this fails, closing the file releases the lock.
            let _ = lock(file, libc::F_OFD_SETLK, libc::F_UNLCK, self.at);
        }
    }
}

/// The byte that represents a point, from 60 bits of its key's digest. In the unlikely case that two points share a
/// byte, campaigns run them one after the other.
fn byte(key: &Key) -> i64 {
    i64::from_str_radix(&digest(key.as_str().as_bytes())[..15], 16).unwrap_or(0)
}

fn lock(file: &File, command: libc::c_int, kind: libc::c_int, at: i64) -> io::Result<()> {
    // SAFETY: all zeroes is a valid flock.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    range.l_start = at;
    range.l_len = 1;
    // SAFETY: the descriptor is open, and the call only reads the range.
    let status = unsafe { libc::fcntl(file.as_raw_fd(), command, &range) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_claimed_once_and_free_again_when_its_claim_ends() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("results"));
        let (one, other) = (Claims::open(&store), Claims::open(&store));
        let (a, b) = (Key::from("a"), Key::from("b"));
        let ClaimResult::Claimed(held) = one.claim(&a) else { panic!("it is unclaimed") };
        assert!(matches!(other.claim(&a), ClaimResult::Taken));
        assert!(matches!(other.claim(&b), ClaimResult::Claimed(_)));
        drop(held);
        assert!(matches!(other.claim(&a), ClaimResult::Claimed(_)));
        let ClaimResult::Claimed(held) = one.claim(&a) else { panic!("its claim ended") };
        // When a process is killed, the kernel closes its files.
        drop(held);
        drop(one);
        assert!(matches!(other.claim(&a), ClaimResult::Claimed(_)));
    }

    #[test]
    fn without_locks_every_claim_succeeds_and_the_reason_is_known() {
        let claims = Claims::open(&Store::new("/proc/longma"));
        assert!(claims.unavailable.is_some());
        assert!(matches!(claims.claim(&Key::from("a")), ClaimResult::Claimed(_)));
    }
}
