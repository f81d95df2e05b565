//! The process at the other end of a socket: its credentials, whether it still runs, and access to its descriptors. A
//! process is never identified by its PID, which can be reused, but only by its pidfd.
//!
//! Source: unix(7) SO_PEERCRED and SO_PEERPIDFD (Linux 6.5), pidfd_open(2), pidfd_getfd(2), proc(5) auxv, getauxval(3).
//!
//! This module does not access pages of the process. A page behind userfaultfd(2) or FUSE could block the caller as
//! long as the peer likes. A pipe (vmsplice(2)) would not help, because the peer can fault on such a page while holding
//! the pipe's lock.

use super::deferred_close::PeerFile;
use super::quota::Account;
use crate::address::Credentials;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Available from Linux 6.5 on, and not in all headers yet.
const SO_PEERPIDFD: i32 = 77;

/// The process at the other end of a socket when it connected (or, for a server, started to listen).
pub(super) struct Process {
    /// Its PID at that time. It is used only to find /proc entries, and their contents are valid only if `file` shows
    /// afterwards that the process is still alive.
    id: libc::pid_t,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// The pidfd, readable when the process has exited. `None` before Linux 6.5, where a PID cannot be verified. The
    /// exit is then detected by the end of the socket, and lent regions are not borrowed.
    pub(super) file: Option<OwnedFd>,
}

/// The credentials of the process at the other end of a socket.
fn credentials_of(socket: RawFd) -> libc::ucred {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: writes at most `length` bytes to the structure.
    unsafe {
        let place = (&raw mut credentials).cast();
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut length)
    };
    credentials
}

/// The user at the other end of a socket.
pub(super) fn peer_uid(socket: &impl AsRawFd) -> u32 {
    credentials_of(socket.as_raw_fd()).uid
}

impl Process {
    /// The process at the other end of a socket. Unix sockets always have credentials; for any other socket, the user
    /// would be `u32::MAX`.
    ///
    /// # Errors
    /// If there is no free descriptor for the pidfd, without which the exit of the process might go unnoticed.
    pub(super) fn at_other_end(socket: &impl AsRawFd) -> io::Result<Process> {
        let socket = socket.as_raw_fd();
        let credentials = credentials_of(socket);
        let mut file: RawFd = -1;
        let mut length = size_of::<RawFd>() as libc::socklen_t;
        // SAFETY: writes at most four bytes to `file`.
        let got = unsafe {
            libc::getsockopt(socket, libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut file).cast(), &raw mut length)
        };
        let why = io::Error::last_os_error();
        if got < 0 && matches!(why.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) {
            return Err(why);
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        let file = (got == 0 && file >= 0).then(|| unsafe { OwnedFd::from_raw_fd(file) });
        Ok(Process { id: credentials.pid, uid: credentials.uid, gid: credentials.gid, file })
    }

    /// Identifies the process for scheduling. If a later process has the same PID, the two share their turns.
    pub(super) fn key(&self) -> (u32, libc::pid_t) {
        (self.uid, self.id)
    }

    /// Whether the process is known to have exited.
    pub(super) fn has_ended(&self) -> bool {
        let Some(file) = &self.file else { return false };
        let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: a single local structure; does not wait.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    /// Duplicates descriptor `number` of the process, if the kernel permits it (as for ptrace(2)) and the program that
    /// the process executes now has no other rights than when it connected. Otherwise a peer could execute a privileged
    /// program and have us map that program's files.
    pub(super) fn take_file(&self, number: u32, account: &Arc<Account>) -> Option<PeerFile> {
        let process = self.file.as_ref()?;
        // SAFETY: the call takes only integers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) } as RawFd;
        if fd < 0 {
            return None;
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        let file = PeerFile::new(unsafe { OwnedFd::from_raw_fd(fd) }, Some(account));
        // Checked afterwards, so that a program executed before the duplication is detected.
        self.runs_with_its_own_rights().then_some(file)
    }

    /// Whether the process executes a program with the rights of the user that connected. The auxiliary vector
    /// describes the user at the start of the current program, and `AT_SECURE` is set for setuid, setgid and
    /// capabilities.
    fn runs_with_its_own_rights(&self) -> bool {
        if self.id <= 0 {
            return false;
        }
        let Ok(vector) = std::fs::read(format!("/proc/{}/auxv", self.id)) else { return false };
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or(0);
        let value = |kind: u64| {
            vector.chunks_exact(16).find(|pair| word(&pair[..8]) == kind).map(|pair| word(&pair[8..]))
        };
        value(libc::AT_SECURE) == Some(0)
            && value(libc::AT_EUID) == Some(u64::from(self.uid))
            && value(libc::AT_EGID) == Some(u64::from(self.gid))
            // If it has not ended, the PID still belonged to it when the file was read.
            && !self.has_ended()
    }

    /// The credentials to report to the program.
    pub(super) fn credentials(&self) -> Credentials {
        let process = self.file.as_ref().and_then(|file| file.try_clone().ok());
        Credentials { uid: self.uid, gid: self.gid, process }
    }
}
