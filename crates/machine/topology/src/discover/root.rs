//! The files of a host below a root, live or recorded. A recorded tree is untrusted: instead of a file it may contain a
//! link to a device, a pipe that never ends, or a file that does not fit into memory.

use rustix::fs::OFlags;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Maximum size of a file of procfs. /proc/cpuinfo and /proc/interrupts of the largest hosts have several MiB.
const MAX_PROC_BYTES: u64 = 64 << 20;
/// Maximum size of another file. Most files of sysfs have at most a page; lists and masks of CPUs may be longer.
const MAX_BYTES: u64 = 1 << 20;

/// A file of a recorded tree that is not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct UnreadableFile {
    /// Its path.
    pub path: PathBuf,
    /// The reason.
    pub why: String,
}

/// The directory that holds `proc` and `sys` of a host.
#[derive(Clone, Debug)]
pub struct HostRoot {
    path: PathBuf,
    is_recorded: bool,
    unreadable: Arc<OnceLock<UnreadableFile>>,
}

impl HostRoot {
    /// The root of a running system: `/`, or the root directory of a process.
    pub fn live(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), is_recorded: false, unreadable: Arc::default() }
    }

    /// A tree recorded on another host.
    pub fn recorded(path: impl Into<PathBuf>) -> Self {
        Self { is_recorded: true, ..Self::live(path) }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The first file of a recorded tree that was refused, in this value or a copy.
    pub fn unreadable(&self) -> Option<&UnreadableFile> {
        self.unreadable.get()
    }

    /// Reads a file, whose path is relative to the root.
    ///
    /// # Errors
    /// The error of the operating system; also for a device, a pipe or a socket, and for a file that is too long.
    pub fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let most = if path.starts_with("proc/") { MAX_PROC_BYTES } else { MAX_BYTES };
        let path = self.path.join(path);
        let kind = std::fs::metadata(&path)?.file_type();
        if kind.is_char_device() || kind.is_block_device() || kind.is_fifo() || kind.is_socket() {
            return Err(self.refused(path, "not a file, but a device, a pipe or a socket".into()));
        }
        let mut bytes = Vec::new();
        let mut options = File::options();
        // Some files of the live /proc, to which a link of the tree may lead, wait for events (/proc/kmsg).
        if self.is_recorded {
            options.custom_flags(OFlags::NONBLOCK.bits() as i32);
        }
        options.read(true).open(&path)?.take(most + 1).read_to_end(&mut bytes)?;
        match bytes.len() as u64 > most {
            true => Err(self.refused(path, format!("longer than {} MiB", most >> 20))),
            false => Ok(bytes),
        }
    }

    fn refused(&self, path: PathBuf, why: String) -> io::Error {
        let file = UnreadableFile { path, why };
        let error = io::Error::new(io::ErrorKind::InvalidData, file.to_string());
        // Containers hide files of the live system behind device files.
        if self.is_recorded {
            let _ = self.unreadable.set(file);
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn devices_pipes_and_long_files_are_refused_and_the_first_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let sys = folder.path().join("sys");
        std::fs::create_dir(&sys).unwrap();
        symlink("/dev/zero", sys.join("zero")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, sys.join("pipe"), rustix::fs::Mode::RUSR).unwrap();
        File::create(sys.join("long")).unwrap().set_len(MAX_BYTES + 1).unwrap();
        File::create(sys.join("fits")).unwrap().set_len(MAX_BYTES).unwrap();
        for (name, why) in
            [("zero", "a device, a pipe"), ("pipe", "a device, a pipe"), ("long", "longer than 1 MiB")]
        {
            let root = HostRoot::recorded(folder.path());
            let copy = root.clone();
            let error = root.read(&format!("sys/{name}")).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(&format!("sys/{name}")), "{error}");
            assert_eq!(copy.unreadable().unwrap().path, sys.join(name));
        }
        let root = HostRoot::recorded(folder.path());
        assert_eq!(root.read("sys/fits").unwrap().len() as u64, MAX_BYTES);
        assert!(root.read("sys/missing").is_err() && root.read("sys").is_err());
        assert_eq!(root.unreadable(), None, "missing files and directories are common");
        // A process without privileges cannot open the file. For others, a read would wait for events.
        symlink("/proc/kmsg", sys.join("events")).unwrap();
        let (done, wait) = std::sync::mpsc::channel();
        let events = HostRoot::recorded(folder.path());
        std::thread::spawn(move || done.send(events.read("sys/events").map(drop)));
        let read = wait.recv_timeout(std::time::Duration::from_secs(60));
        assert!(read.is_ok(), "the read waits for events");
        let live = HostRoot::live(folder.path());
        assert!(live.read("sys/zero").is_err() && live.unreadable().is_none());
    }
}
