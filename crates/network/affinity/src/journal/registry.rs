//! The registry of journals: a folder of the host with a file for each journal in use, which holds its path. A run with
//! another journal finds the settings that a killed run left changed.

use super::{Change, file};
use crate::host::Host;
use rustix::fs::{FlockOperation, OFlags};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Maximum length of a path in bytes (PATH_MAX).
const MAX_PATH_BYTES: u64 = 4096;

/// Adds a journal. Ignores errors, such as a folder that this user may not write.
pub fn add(folder: &Path, journal: &Path) {
    if let Ok(path) = std::path::absolute(journal) {
        let _ = std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(entry(folder, &path), path.as_os_str().as_bytes()));
    }
}

/// Removes a journal that has nothing to restore.
pub fn remove(folder: &Path, journal: &Path) {
    if let Ok(path) = std::path::absolute(journal) {
        let _ = std::fs::remove_file(entry(folder, &path));
    }
}

fn entry(folder: &Path, journal: &Path) -> PathBuf {
    folder.join(format!("{:08x}", crc32fast::hash(journal.as_os_str().as_bytes())))
}

/// The devices that killed runs with other journals than `own` left changed on this host, each with the journal.
pub fn left_changed(folder: &Path, own: &Path, host: &dyn Host) -> BTreeMap<String, PathBuf> {
    let own = std::path::absolute(own).unwrap_or_else(|_| own.into());
    let mut left = BTreeMap::new();
    for file in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(journal) = path_in(&file.path()) else { continue };
        if journal == own {
            continue;
        }
        match changes(&journal, host) {
            Ok(changes) => {
                let devices = changes.iter().filter_map(|change| change.now(host).ok()?.keeper());
                left.extend(devices.map(|device| (device, journal.clone())));
            }
            // A journal that a user has removed has nothing to restore.
            Err(error) if error.kind() == io::ErrorKind::NotFound => remove(folder, &journal),
            Err(_) => {}
        }
    }
    left
}

fn path_in(entry: &Path) -> io::Result<PathBuf> {
    let file = crate::files::regular(OpenOptions::new().read(true), OFlags::NOFOLLOW, entry)?;
    let mut bytes = Vec::new();
    file.take(MAX_PATH_BYTES).read_to_end(&mut bytes)?;
    Ok(std::ffi::OsString::from_vec(bytes).into())
}

/// The changes in a journal that no process holds and that apply to this host.
fn changes(journal: &Path, host: &dyn Host) -> io::Result<Vec<Change>> {
    let mut file = crate::files::regular(OpenOptions::new().read(true), OFlags::NOFOLLOW, journal)?;
    // This fails if a process still holds the journal. Its devices are then locked too, and the error about that lock
    // names the process.
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)?;
    let contents = file::read(journal, &mut file).map_err(|error| io::Error::other(error.to_string()))?;
    let Some(header) = contents.header.filter(|header| !header.ends_with_writer) else {
        return Ok(Vec::new());
    };
    let here = host.identity();
    let applies = |change: &Change| match change.setting.interface() {
        Some(_) => header.host.is_same(&here),
        None => header.host.is_same_boot(&here),
    };
    Ok(contents.changes.into_iter().filter(applies).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeHost;
    use crate::journal::{Journal, JournalError};
    use crate::setting::{Interface, Setting};

    fn host(folder: &Path) -> FakeHost {
        let mut host =
            FakeHost::with(&[("sys/class/net/eth0/mtu", "1500"), ("sys/class/net/eth1/mtu", "1500")]);
        host.journals = Some(folder.join("journals"));
        host
    }

    fn mtu(name: &str) -> Setting {
        Setting::Mtu(name.parse().unwrap())
    }

    #[test]
    fn what_a_killed_run_left_changed_is_found_with_any_other_journal() {
        let folder = tempfile::tempdir().unwrap();
        let host = host(folder.path());
        let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
        let mut killed = Journal::begin(&first, &host).unwrap();
        killed.set(&mtu("eth0"), "9000").unwrap();
        // A process that dies loses its lock, and nothing is restored.
        let text = std::fs::read(&first).unwrap();
        std::mem::forget(killed);
        std::fs::remove_file(&first).unwrap();
        std::fs::write(&first, text).unwrap();
        std::fs::set_permissions(&first, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();

        let mut journal = Journal::begin(&second, &host).unwrap();
        let eth0: Interface = "eth0".parse().unwrap();
        for error in [journal.set(&mtu("eth0"), "1400").unwrap_err(), journal.claim(&eth0).unwrap_err()] {
            assert!(matches!(error, JournalError::LeftChanged { .. }), "{error}");
            let words = format!("longma affinity restore --journal {}", first.display());
            assert!(error.to_string().contains(&words), "{error}");
        }
        assert_eq!(host.read("sys/class/net/eth0/mtu").unwrap(), "9000");
        journal.set(&mtu("eth1"), "1400").unwrap();

        assert!(Journal::recover(&first, &host, false).unwrap().unwrap().is_whole());
        journal.set(&mtu("eth0"), "1400").unwrap();
        drop(journal);
        assert_eq!(host.read("sys/class/net/eth0/mtu").unwrap(), "1500");
        let names = || std::fs::read_dir(folder.path().join("journals")).unwrap().count();
        assert_eq!(names(), 0, "nothing is left to restore");
    }

    #[test]
    fn a_removed_journal_and_foreign_files_are_no_obstacle() {
        let folder = tempfile::tempdir().unwrap();
        let mut host = host(folder.path());
        let registry = folder.path().join("journals");
        add(&registry, &folder.path().join("gone"));
        std::fs::write(registry.join("foreign"), "/dev/zero").unwrap();
        std::fs::write(registry.join("other"), [0xff; 5000]).unwrap();
        std::os::unix::fs::symlink("/dev/zero", registry.join("link")).unwrap();
        let own = folder.path().join("own");
        Journal::begin(&own, &host).unwrap().set(&mtu("eth0"), "1400").unwrap();
        assert!(!entry(&registry, &folder.path().join("gone")).exists());
        host.journals = Some("/dev/null/none".into());
        Journal::begin(&own, &host).unwrap().set(&mtu("eth0"), "1400").unwrap();
    }
}
