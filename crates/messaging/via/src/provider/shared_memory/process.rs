//! The process at the other end of a socket: who it is, whether it lives, and a memory file of its own if we may have it.
//! Not trusted: its number is never used to reach it, since numbers are used again; only the descriptor of the process is.
//! Source: unix(7) SO_PEERCRED and SO_PEERPIDFD (Linux 6.5), pidfd_open(2), pidfd_getfd(2), proc(5) auxv, getauxval(3).
//!
//! Nothing here touches a page of the process: one behind userfaultfd(2) or FUSE would hold up whoever does for as long as the peer likes,
//! and a pipe (vmsplice(2)) would be no better, since a peer can sleep on such a page with the pipe's lock held.

use super::closing::Foreign;
use super::ledger::Account;
use crate::address::Credentials;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// From Linux 6.5 on; not in every header yet.
const SO_PEERPIDFD: i32 = 77;

/// The process behind a socket, as it was when it connected (or, of a server, when it began to listen).
pub(super) struct Process {
    /// Its number then. For looking it up in /proc only, and what is found there counts only if `file` lives after.
    id: libc::pid_t,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Readable when it has ended. `None` before Linux 6.5, where nothing says that a number still means the process that
    /// connected; its end is then seen by the socket's, and its memory is not asked for.
    pub(super) file: Option<OwnedFd>,
}

/// The user and the like of whoever is behind a socket.
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

/// The user behind a socket.
pub(super) fn user_behind(socket: &impl AsRawFd) -> u32 {
    credentials_of(socket.as_raw_fd()).uid
}

impl Process {
    /// Whoever is behind that socket. Without credentials (which Unix sockets always have) it is nobody. An error: there is no descriptor
    /// left for the process, without which its end might go unnoticed.
    pub(super) fn behind(socket: &impl AsRawFd) -> io::Result<Process> {
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
        // SAFETY: just opened, and nobody else has it.
        let file = (got == 0 && file >= 0).then(|| unsafe { OwnedFd::from_raw_fd(file) });
        Ok(Process { id: credentials.pid, uid: credentials.uid, gid: credentials.gid, file })
    }

    /// Tells it from others for as long as they live. Whoever has its number later only shares its turns.
    pub(super) fn key(&self) -> (u32, libc::pid_t) {
        (self.uid, self.id)
    }

    /// Whether it is known to have ended.
    pub(super) fn has_ended(&self) -> bool {
        let Some(file) = &self.file else { return false };
        let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, of ours; does not wait.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    /// A copy of the process's descriptor `number`, if the kernel lets us read the process (as for ptrace(2)), and if what the process
    /// runs now still has the rights with which it connected: a peer must not have us open what a privileged program holds
    /// that it has become by execve(2).
    pub(super) fn take_file(&self, number: u32, account: &Arc<Account>) -> Option<Foreign> {
        let process = self.file.as_ref()?;
        // SAFETY: numbers only.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) } as RawFd;
        if fd < 0 {
            return None;
        }
        // SAFETY: just opened, and nobody else has it.
        let file = Foreign::new(unsafe { OwnedFd::from_raw_fd(fd) }, Some(account));
        // Looked at after: a program that was executed before the descriptor was taken shows now.
        self.runs_with_its_own_rights().then_some(file)
    }

    /// Whether the program that it runs was begun by the user that connected, and without more rights than that user has. A change
    /// of program is seen by what the kernel told the program at its start; no setuid, setgid or capability is in `AT_SECURE`.
    fn runs_with_its_own_rights(&self) -> bool {
        if self.id <= 0 {
            return false;
        }
        let Ok(told) = std::fs::read(format!("/proc/{}/auxv", self.id)) else { return false };
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or(0);
        let value = |kind: u64| {
            told.chunks_exact(16).find(|pair| word(&pair[..8]) == kind).map(|pair| word(&pair[8..]))
        };
        value(libc::AT_SECURE) == Some(0)
            && value(libc::AT_EUID) == Some(u64::from(self.uid))
            && value(libc::AT_EGID) == Some(u64::from(self.gid))
            // It is still this process that has the number.
            && !self.has_ended()
    }

    /// What the program is told.
    pub(super) fn credentials(&self) -> Credentials {
        let process = self.file.as_ref().and_then(|file| file.try_clone().ok());
        Credentials { uid: self.uid, gid: self.gid, process }
    }
}
