//! The folder of a user's topics: a socket and a lock file for each.
//!
//! Source: flock(2), unix(7), the XDG Base Directory Specification.

use crate::error::{Error, system};
use crate::socket;
use crate::wire::Hello;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a new publisher waits for the lock of a publisher that no longer listens. The kernel closes the files of a
/// killed process one after another, so subscribers can detect its end before its lock is released.
const HANDOVER: Duration = Duration::from_secs(2);
/// The longest name of a topic, bytes.
const MAX_NAME: usize = 60;
/// The longest path of a Unix socket, bytes.
const MAX_SOCKET_PATH: usize = 107;

/// A folder that belongs to this user, and to which no other user has rights.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    path: PathBuf,
}

/// The right to be a topic's publisher. The name becomes free when it is dropped, and when the process ends.
#[derive(Debug)]
pub(crate) struct Ownership {
    _lock: OwnedFd,
    socket: PathBuf,
    lock_file: PathBuf,
    creator_pid: u32,
}

impl Folder {
    /// Opens the folder, the default one if no path is given, and creates it if it does not exist.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, Error> {
        let path = path.map_or_else(default_path, Path::to_path_buf);
        let wrong = |reason: String| Error::Folder { path: path.clone(), reason };
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => {
                return Err(wrong(format!("it cannot be created: {}", std::io::Error::from(errno))));
            }
        }
        let stat =
            rustix::fs::lstat(&path).map_err(|errno| wrong(std::io::Error::from(errno).to_string()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Err(wrong("it is not a folder".into()));
        }
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(wrong(format!("it belongs to user {}", stat.st_uid)));
        }
        if stat.st_mode & 0o077 != 0 {
            return Err(wrong(format!(
                "other users have rights to it (mode {:o}); chmod 700 takes them away",
                stat.st_mode & 0o777
            )));
        }
        Ok(Self { path })
    }

    /// The socket of a topic.
    pub(crate) fn socket(&self, topic: &str) -> Result<PathBuf, Error> {
        check_name(topic)?;
        let path = self.path.join(format!("{topic}.socket"));
        if path.as_os_str().len() > MAX_SOCKET_PATH {
            let reason =
                format!("the path of a socket in it exceeds {MAX_SOCKET_PATH} bytes; use a shorter one");
            return Err(Error::Folder { path: self.path.clone(), reason });
        }
        Ok(path)
    }

    /// Acquires the name of a topic. Takes over the name of a killed publisher.
    pub(crate) fn take(&self, topic: &str) -> Result<Ownership, Error> {
        let socket = self.socket(topic)?;
        let lock_file = self.path.join(format!("{topic}.lock"));
        let deadline = Instant::now() + HANDOVER;
        // Retry if the previous owner removes the file between the two calls, or is still ending.
        while Instant::now() < deadline {
            let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let lock = rustix::fs::open(&lock_file, flags, Mode::RUSR | Mode::WUSR)
                .map_err(system("opening a topic's lock file"))?;
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    if is_served(&socket, deadline) {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                Err(errno) => return Err(system("locking a topic's lock file")(errno)),
            }
            let open_file = rustix::fs::fstat(&lock).map_err(system("reading a topic's lock file"))?;
            let linked_file = rustix::fs::statat(rustix::fs::CWD, &lock_file, AtFlags::SYMLINK_NOFOLLOW);
            if linked_file.is_ok_and(|linked_file| same_file(&open_file, &linked_file)) {
                // A publisher that was killed may have left its socket.
                let _ = rustix::fs::unlink(&socket);
                return Ok(Ownership { _lock: lock, socket, lock_file, creator_pid: std::process::id() });
            }
        }
        Err(Error::Taken(topic.into()))
    }

    /// The names of the topics. Their publishers may have ended.
    pub(crate) fn topics(&self) -> Result<Vec<String>, Error> {
        let unreadable =
            |error: std::io::Error| Error::Folder { path: self.path.clone(), reason: error.to_string() };
        let mut names = Vec::new();
        for file in std::fs::read_dir(&self.path).map_err(unreadable)? {
            let name = file.map_err(unreadable)?.file_name();
            let Some(topic) = name.to_str().and_then(|name| name.strip_suffix(".socket")) else { continue };
            if check_name(topic).is_ok() {
                names.push(topic.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }
}

impl Ownership {
    /// The path at which the publisher listens.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Ownership {
    fn drop(&mut self) {
        // A forked child has a copy, but the topic remains its parent's.
        if std::process::id() == self.creator_pid {
            let _ = rustix::fs::unlink(&self.socket);
            let _ = rustix::fs::unlink(&self.lock_file);
        }
    }
}

/// Whether a publisher answers at a topic's socket. A process that is ending may still accept a connection, but resets it.
fn is_served(path: &Path, deadline: Instant) -> bool {
    let connection = match socket::connect(path, deadline) {
        Ok(Some(connection)) => connection,
        Ok(None) => return false,
        // The socket belongs to another user, or its process is too busy to accept.
        Err(_) => return true,
    };
    let answer = socket::send(&connection, &Hello::Query.encode(), &[])
        .and_then(|()| socket::receive_answer(&connection, deadline));
    matches!(answer, Ok(_) | Err(Error::TimedOut))
}

fn same_file(one: &Stat, two: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino)
}

/// Checks that a name consists of letters, digits, `.`, `_` and `-`, and begins with a letter or a digit.
fn check_name(name: &str) -> Result<(), Error> {
    let wrong = |reason| Err(Error::Name { name: name.escape_debug().take(100).collect(), reason });
    if name.is_empty() || name.len() > MAX_NAME {
        return wrong("it must have 1 to 60 bytes");
    }
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
        return wrong("only the letters a to z and A to Z, digits, `.`, `_` and `-` are possible");
    }
    if !name.as_bytes()[0].is_ascii_alphanumeric() {
        return wrong("it must begin with a letter or a digit");
    }
    Ok(())
}

fn default_path() -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let run = session.unwrap_or_else(|| PathBuf::from(format!("/run/user/{user}")));
    if run.is_dir() { run.join("longma-topics") } else { PathBuf::from(format!("/tmp/longma-topics-{user}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn folder() -> (tempfile::TempDir, Folder) {
        let temporary = tempfile::tempdir().unwrap();
        std::fs::set_permissions(temporary.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let folder = Folder::open(Some(temporary.path())).unwrap();
        (temporary, folder)
    }

    #[test]
    fn names_that_could_leave_the_folder_or_confuse_a_terminal_are_refused() {
        let (_temporary, folder) = folder();
        for name in
            ["", "..", ".hidden", "a/b", "/etc/passwd", "a b", "a\n", "\u{1b}[2J", "ä", "-x", &"x".repeat(61)]
        {
            assert!(matches!(folder.socket(name), Err(Error::Name { .. })), "{name:?}");
        }
        for name in ["a", "robot.position", "A-1_b", &"x".repeat(60)] {
            assert!(folder.socket(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_folder_to_which_others_have_rights_is_refused() {
        let temporary = tempfile::tempdir().unwrap();
        std::fs::set_permissions(temporary.path(), std::fs::Permissions::from_mode(0o750)).unwrap();
        let error = Folder::open(Some(temporary.path())).unwrap_err().to_string();
        assert!(error.contains("mode 750") && error.contains("chmod 700"), "{error}");
        let link = temporary.path().join("link");
        std::os::unix::fs::symlink("/tmp", &link).unwrap();
        assert!(Folder::open(Some(&link)).unwrap_err().to_string().contains("not a folder"));
    }

    #[test]
    fn a_new_folder_has_rights_for_its_user_alone() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("topics");
        Folder::open(Some(&path)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    }

    /// Acts like a process that is ending: it accepts and resets connections, and releases the lock only at the end.
    #[test]
    fn a_name_is_free_once_a_publisher_that_resets_connections_has_ended() {
        let (_temporary, folder) = folder();
        let owner = folder.take("name").unwrap();
        let listener = std::os::unix::net::UnixListener::bind(owner.socket()).unwrap();
        let ends = std::thread::spawn(move || {
            drop(listener.accept().unwrap());
            drop(listener);
            std::thread::sleep(Duration::from_millis(50));
            drop(owner);
        });
        folder.take("name").unwrap();
        ends.join().unwrap();
    }

    #[test]
    fn a_name_is_free_once_a_publisher_that_does_not_listen_has_ended() {
        let (_temporary, folder) = folder();
        let owner = folder.take("name").unwrap();
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(owner);
        });
        folder.take("name").unwrap();
        ends.join().unwrap();
    }

    #[test]
    fn a_name_belongs_to_one_owner_at_a_time_and_leaves_no_file() {
        let (temporary, folder) = folder();
        let owner = folder.take("name").unwrap();
        assert!(matches!(folder.take("name"), Err(Error::Taken(_))));
        drop(owner);
        assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
        folder.take("name").unwrap();
    }
}
