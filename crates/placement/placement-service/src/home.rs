//! The folder in which a service keeps what must outlive it: its database, the lock on it, and how its own user reaches it.
//! Not the database's content.
//! Source: the XDG Base Directory Specification for the folder's place.

use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// How a client reaches a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// Its address: "http://127.0.0.1:7420".
    pub url: String,
    /// Where that is, if the name in it is only the one that its certificate has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// The token that is shown to it.
    pub token: String,
    /// A file with the certificate (PEM) to trust; none for those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
}

/// Longest file that is read as one of these.
const LONGEST: u64 = 1 << 16;

impl Access {
    /// The file of these in a service's folder.
    pub fn file(home: &Path) -> PathBuf {
        home.join("client.json")
    }

    /// What the service with this folder says of itself.
    ///
    /// # Errors
    /// If the file cannot be read or is something else.
    pub fn read(home: &Path) -> io::Result<Self> {
        let mut text = String::new();
        File::open(Self::file(home))?.take(LONGEST).read_to_string(&mut text)?;
        serde_json::from_str(&text).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }

    /// Writes it for the user alone, whole or not at all.
    pub(crate) fn write(&self, home: &Path) -> io::Result<()> {
        if Self::read(home).is_ok_and(|there| there == *self) {
            return Ok(());
        }
        let new = home.join("client.json.new");
        // Left over from a crash; with `create_new` nobody's file or link is written through.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(&new, Self::file(home))?;
        File::open(home)?.sync_all()
    }
}

/// Where a service keeps its folder if nobody says: /var/lib for root, else the user's own.
pub fn default_home() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return "/var/lib/longma/placement".into();
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    base.unwrap_or_else(|| "/var/tmp".into()).join("longma/placement")
}

/// A database's file, held against a second service.
#[derive(Debug)]
pub(crate) struct Held {
    pub path: PathBuf,
    _lock: Lock,
}

/// A file that nobody else holds.
#[derive(Debug)]
struct Lock(OwnedFd);

impl Lock {
    fn of(file: OwnedFd, taken: &'static str) -> io::Result<Self> {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(io::Error::new(io::ErrorKind::AddrInUse, taken)),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Said aloud: a child of another thread between fork and exec holds the file too, and would hold the lock.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// A service's folder, held against a second service.
#[derive(Debug)]
pub(crate) struct Home {
    pub folder: PathBuf,
    _lock: Lock,
}

impl Home {
    /// Makes the folder if there is none, for the user alone, and holds it.
    pub fn hold(folder: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(folder.join("lock"), flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Self { folder: folder.into(), _lock: Lock::of(file, "another service runs with this folder")? })
    }

    /// The database's file, made if there is none, and held against a second service that reaches it through another folder. SQLite's own
    /// locks let a second one in. They end when the process closes any descriptor of the file: this one is closed after the database.
    pub fn hold_database(&self) -> io::Result<Held> {
        let path = self.folder.join("placement.db");
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?;
        let lock = Lock::of(file, "another service runs with this database")?;
        let names = rustix::fs::fstat(&lock.0)?.st_nlink;
        if names > 1 {
            // Its log lies beside it under the same name, so that what was answered under one is not seen under another.
            let why = format!(
                "it has {names} names (hard links), and SQLite keeps a log for each: remove all but one"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(Held { path, _lock: lock })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_lock_ends_with_its_owner_whoever_else_has_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::hold(folder.path()).unwrap();
        assert!(Home::hold(folder.path()).is_err());
        // As a child of another thread between fork and exec has it.
        let _elsewhere = home._lock.0.try_clone().unwrap();
        drop(home);
        Home::hold(folder.path()).unwrap();
    }

    #[test]
    fn what_is_written_down_already_needs_no_room() {
        let folder = tempfile::tempdir().unwrap();
        let number = || fs::metadata(Access::file(folder.path())).unwrap().ino();
        let url = "http://127.0.0.1:7420".to_string();
        let access = Access { url, address: None, token: "longma-1".into(), certificate: None };
        access.write(folder.path()).unwrap();
        let (first, _held) = (number(), File::open(Access::file(folder.path())).unwrap());
        access.write(folder.path()).unwrap();
        assert_eq!(number(), first, "it was written anew");
        let other = Access { token: "longma-2".into(), ..access };
        other.write(folder.path()).unwrap();
        assert_ne!(number(), first);
        assert_eq!(Access::read(folder.path()).unwrap(), other);
    }
}
