//! The service's data directory: its database, a lock file, and the access data for local clients.
//!
//! Source: the XDG Base Directory Specification for its default location.

use longma_placement::SqlStore;
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// How a client connects to a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// URL of the service: "http://127.0.0.1:7420".
    pub url: String,
    /// Address to connect to, if the host name in the URL is only the certificate's name and need not resolve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
    /// Access token.
    pub token: String,
    /// PEM file with the certificate to trust; `None` for the system's root certificates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
}

/// Name of the database file in a data directory.
pub const DATABASE: &str = "placement.db";

/// Maximum size of an access file in bytes.
const MAX_ACCESS_BYTES: u64 = 1 << 16;

impl Access {
    /// Path of the access file in a data directory.
    pub fn file(data_dir: &Path) -> PathBuf {
        data_dir.join("client.json")
    }

    /// Reads the access data of the service with this data directory.
    ///
    /// # Errors
    /// If the file cannot be read or parsed.
    pub fn read(data_dir: &Path) -> io::Result<Self> {
        let mut text = String::new();
        File::open(Self::file(data_dir))?.take(MAX_ACCESS_BYTES).read_to_string(&mut text)?;
        serde_json::from_str(&text).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }

    /// Writes the file atomically, readable by its owner only.
    pub(crate) fn write(&self, data_dir: &Path) -> io::Result<()> {
        if Self::read(data_dir).is_ok_and(|stored| stored == *self) {
            return Ok(());
        }
        let new = data_dir.join("client.json.new");
        // Remove the remains of a crash. `create_new` then never writes through an existing file or link.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(&new, Self::file(data_dir))?;
        File::open(data_dir)?.sync_all()
    }
}

/// Default data directory: below /var/lib for root, otherwise in the user's state directory.
pub fn default_data_dir() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return "/var/lib/longma/placement".into();
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    base.unwrap_or_else(|| "/var/tmp".into()).join("longma/placement")
}

/// A database file, locked against a second service.
#[derive(Debug)]
pub(crate) struct LockedDatabase {
    pub path: PathBuf,
    _lock: Lock,
}

/// An exclusively locked file.
#[derive(Debug)]
struct Lock(OwnedFd);

impl Lock {
    fn of(file: OwnedFd, busy_message: &'static str) -> io::Result<Self> {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(io::Error::new(io::ErrorKind::AddrInUse, busy_message)),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Unlock explicitly: a child forked by another thread may inherit the descriptor before exec and keep the lock.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// A data directory, locked against a second service.
#[derive(Debug)]
pub(crate) struct DataDir {
    pub folder: PathBuf,
    _lock: Lock,
}

impl DataDir {
    /// Creates the directory if necessary, accessible by its owner only, and locks it.
    pub fn lock(folder: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(folder.join("lock"), flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Self { folder: folder.into(), _lock: Lock::of(file, "another service uses this directory")? })
    }

    /// Creates the database file if necessary and locks it against a second service that reaches it through another
    /// directory. SQLite's own locks would admit a second process. They also end when the process closes any descriptor
    /// of the file, so this descriptor must be closed after the database.
    pub fn lock_database(&self) -> io::Result<LockedDatabase> {
        let path = self.folder.join(DATABASE);
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?;
        let lock = Lock::of(file, "another service uses this database")?;
        let names = rustix::fs::fstat(&lock.0)?.st_nlink;
        if names > 1 {
            // SQLite names the log after the database's path, so commits made under one name would be missing under
            // another.
            let why = format!(
                "it has {names} names (hard links), and SQLite keeps a separate log for each: remove all but one"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(LockedDatabase { path, _lock: lock })
    }
}

/// Puts a backup of the database into a data directory that has none. Returns the path of the database.
///
/// # Errors
/// If a service uses the directory, it has a database already, or the backup is not a placement database.
pub fn restore(data_dir: &Path, backup: &Path) -> Result<PathBuf, String> {
    let failed = |error: io::Error| format!("{}: {error}", data_dir.display());
    let data_dir = DataDir::lock(data_dir).map_err(failed)?;
    let database = data_dir.folder.join(DATABASE);
    for name in [DATABASE.to_string(), format!("{DATABASE}-wal")] {
        if data_dir.folder.join(&name).exists() {
            let why = "exists: stop the service, and move placement.db, placement.db-wal and placement.db-shm to \
                another folder";
            return Err(format!("{}: {why}", data_dir.folder.join(name).display()));
        }
    }
    // Create it under a temporary name first, so that a crash leaves no incomplete database.
    let new = data_dir.folder.join(format!("{DATABASE}.restored"));
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    SqlStore::backup(backup, &new).map_err(|error| error.to_string())?;
    fs::rename(&new, &database).and_then(|()| File::open(&data_dir.folder)?.sync_all()).map_err(failed)?;
    Ok(database)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_placement::AgentStore as _;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_lock_ends_with_its_owner_despite_duplicated_descriptors() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = DataDir::lock(folder.path()).unwrap();
        assert!(DataDir::lock(folder.path()).is_err());
        // Stands for the copy of the descriptor that a child of another thread holds between fork and exec.
        let _elsewhere = data_dir._lock.0.try_clone().unwrap();
        drop(data_dir);
        DataDir::lock(folder.path()).unwrap();
    }

    #[test]
    fn an_unchanged_access_file_is_not_rewritten() {
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

    #[test]
    fn a_backup_is_restored_into_an_empty_directory_only() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new, copy) =
            (folder.path().join("old"), folder.path().join("new"), folder.path().join("copy"));
        let data_dir = DataDir::lock(&old).unwrap();
        let store = SqlStore::open_file(&old.join(DATABASE)).unwrap();
        let identity = store.identity().unwrap();
        SqlStore::backup(&old.join(DATABASE), &copy).unwrap();
        assert!(restore(&old, &copy).unwrap_err().contains("another service"));
        drop((store, data_dir));
        assert!(restore(&old, &copy).unwrap_err().contains("exists"));
        let restored = SqlStore::open_file(&restore(&new, &copy).unwrap()).unwrap();
        assert_eq!(restored.identity().unwrap(), identity);
        assert!(restore(&folder.path().join("third"), &old.join("lock")).is_err(), "it is not a database");
        assert!(!folder.path().join("third").join(DATABASE).exists());
    }
}
