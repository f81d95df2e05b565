//! Server names: abstract sockets, or sockets in a directory that only its owner can write to.
//!
//! Source: unix(7). Abstract sockets disappear with their process, so a killed process leaves nothing behind, but they
//! have neither owner nor mode. Sockets in a directory have both.

use super::settings::{Allow, Directory, Settings};
use crate::address::Address;
use crate::error::Error;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

/// The backlog of the listening socket.
const BACKLOG: i32 = 4096;

pub(super) fn socket() -> Result<OwnedFd, Error> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call takes only integers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if fd < 0 {
        return Err(Error::last_system("creating a socket"));
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A socket address, and the objects that must stay open for it.
pub(super) struct ServerAddress {
    address: libc::sockaddr_un,
    length: libc::socklen_t,
    /// The directory, the name in it, and the mode of the socket.
    file: Option<(OwnedFd, CString, u32)>,
}

fn in_hex(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| b"0123456789abcdef"[digit as usize])
}

impl ServerAddress {
    /// The address for a server in this process.
    pub(super) fn own(settings: &Settings, discriminator: &[u8]) -> Result<ServerAddress, Error> {
        ServerAddress::of(settings, &Allow::Only { users: Vec::new(), groups: Vec::new() }, discriminator)
    }

    /// The address for a client.
    pub(super) fn others(settings: &Settings, discriminator: &[u8]) -> Result<ServerAddress, Error> {
        // `Allow::Everyone` applies to servers, but not to the owners of directories.
        let owners = match &settings.servers {
            Allow::Everyone => Allow::users(&[]),
            servers => servers.clone(),
        };
        ServerAddress::of(settings, &owners, discriminator)
    }

    fn of(settings: &Settings, owners: &Allow, discriminator: &[u8]) -> Result<ServerAddress, Error> {
        let Some(directory) = &settings.directory else {
            let name = b"\0longma-via/".iter().copied().chain(in_hex(discriminator)).collect::<Vec<_>>();
            return ServerAddress::at(&name, None);
        };
        let opened = open_directory(directory, owners)?;
        let name: Vec<u8> = in_hex(discriminator).collect();
        // Refer to the directory by descriptor: a long path would not fit, and the path may refer to another directory
        // by now.
        let path = format!("/proc/self/fd/{}/", opened.as_raw_fd());
        let address: Vec<u8> = path.bytes().chain(name.iter().copied()).collect();
        let name =
            CString::new(name).map_err(|_| Error::InvalidParameter("the name contains a NUL byte".into()))?;
        ServerAddress::at(&address, Some((opened, name, directory.mode)))
    }

    fn at(name: &[u8], file: Option<(OwnedFd, CString, u32)>) -> Result<ServerAddress, Error> {
        // SAFETY: all zeros is a valid value of this structure.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        if name.len() >= address.sun_path.len() {
            return Err(Error::InvalidParameter("the discriminator is too long for a socket's name".into()));
        }
        for (place, byte) in address.sun_path.iter_mut().zip(name) {
            *place = *byte as libc::c_char;
        }
        // A path is NUL-terminated; an abstract name is delimited by its length.
        let end = usize::from(file.is_some());
        let length = (size_of::<libc::sa_family_t>() + name.len() + end) as libc::socklen_t;
        Ok(ServerAddress { address, length, file })
    }

    pub(super) fn connect(&self, socket: RawFd) -> io::Result<()> {
        // SAFETY: the structure is initialized, and `length` is at most its size.
        let outcome = unsafe { libc::connect(socket, (&raw const self.address).cast(), self.length) };
        if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn bind(&self, socket: RawFd) -> io::Result<()> {
        // SAFETY: as above.
        let outcome = unsafe { libc::bind(socket, (&raw const self.address).cast(), self.length) };
        if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Creates a listening socket.
    pub(super) fn listen(&self, discriminator: &[u8]) -> Result<OwnedFd, Error> {
        let socket = socket()?;
        // Only one process at a time may check for stale names.
        let _alone = self.file.as_ref().map(|(directory, ..)| lock(directory)).transpose()?;
        let bound = match self.bind(socket.as_raw_fd()) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && self.is_left_over() => {
                self.remove();
                self.bind(socket.as_raw_fd())
            }
            bound => bound,
        };
        bound.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => Error::AddressInUse(match self.is_a_socket() {
                false if self.file.is_some() => format!(
                    "the name of {} in the directory of names is taken by a file that is not a socket; remove it",
                    Address::local(discriminator)
                ),
                _ => format!(
                    "another process, or another NIC, is already listening at {}",
                    Address::local(discriminator)
                ),
            }),
            _ => Error::system("creating a name", error),
        })?;
        if let Some((directory, name, mode)) = &self.file {
            // SAFETY: the descriptor is ours and the string NUL-terminated. Clients cannot connect before `listen`.
            if unsafe { libc::fchmodat(directory.as_raw_fd(), name.as_ptr(), *mode, 0) } < 0 {
                return Err(Error::last_system("setting the mode of a name"));
            }
        }
        // SAFETY: the call takes only integers.
        if unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) } < 0 {
            return Err(Error::last_system("listening"));
        }
        Ok(socket)
    }

    /// Whether the name is a socket left behind by a process that has exited. Other files are not touched.
    fn is_left_over(&self) -> bool {
        let refused = |socket: OwnedFd| {
            let outcome = self.connect(socket.as_raw_fd());
            outcome.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        };
        self.is_a_socket() && socket().is_ok_and(refused)
    }

    fn is_a_socket(&self) -> bool {
        let file = self.file.as_ref().and_then(|(directory, name, _)| status(directory, name).ok());
        file.is_some_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFSOCK)
    }

    /// Removes the name from the directory.
    pub(super) fn remove(&self) {
        if let Some((directory, name, _)) = &self.file {
            // SAFETY: the descriptor is ours and the string NUL-terminated.
            unsafe { libc::unlinkat(directory.as_raw_fd(), name.as_ptr(), 0) };
        }
    }
}

/// Opens the directory. Only root, this process's user or one of `owners` may be able to create names in it.
fn open_directory(directory: &Directory, owners: &Allow) -> Result<OwnedFd, Error> {
    let shown = directory.path.display();
    let bad = |why: String| Error::InvalidParameter(format!("{shown} cannot be used for names: {why}"));
    let path = CString::new(directory.path.as_os_str().as_bytes())
        .map_err(|_| bad("it contains a NUL byte".into()))?;
    // SAFETY: the string is NUL-terminated; the call only creates a descriptor.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(bad(io::Error::last_os_error().to_string()));
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    let opened = unsafe { OwnedFd::from_raw_fd(fd) };
    let stat = status(&opened, c"").map_err(|error| bad(error.to_string()))?;
    // SAFETY: takes no arguments and returns an integer.
    let own = unsafe { libc::geteuid() };
    if stat.st_uid != 0 && stat.st_uid != own && !owners.permits(stat.st_uid, u32::MAX) {
        return Err(bad(format!("it belongs to user {}, who could take any name there", stat.st_uid)));
    }
    if stat.st_mode & 0o022 != 0 {
        let mode = stat.st_mode & 0o7777;
        return Err(bad(format!(
            "its mode {mode:o} lets users other than its owner take names there; use chmod go-w"
        )));
    }
    Ok(opened)
}

/// Holds the lock of a directory until dropped.
struct DirectoryLock<'a> {
    directory: &'a OwnedFd,
    _file: OwnedFd,
}

/// The lock file. The directory itself is not used, because any process that can read it could lock it. The name cannot
/// collide with the hexadecimal names of sockets.
const LOCK: &CStr = c".longma-via-lock";

fn lock(directory: &OwnedFd) -> Result<DirectoryLock<'_>, Error> {
    let flags = libc::O_RDONLY | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    loop {
        // SAFETY: the string is a constant; the call only creates a descriptor.
        let fd = unsafe { libc::openat(directory.as_raw_fd(), LOCK.as_ptr(), flags, 0o600) };
        if fd < 0 {
            return Err(Error::last_system("opening the lock of the directory of names"));
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the call takes only integers. Only root and this user can open the file, and they hold the lock
        // briefly.
        while unsafe { libc::flock(fd, libc::LOCK_EX) } < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(Error::system("locking the directory of names", error));
            }
        }
        let ours =
            status(&file, c"").map_err(|error| Error::system("locking the directory of names", error))?;
        match status(directory, LOCK) {
            Ok(named) if (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino) => {
                return Ok(DirectoryLock { directory, _file: file });
            }
            // The previous holder has removed the file, and there may be a new one.
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::system("locking the directory of names", error)),
        }
    }
}

impl Drop for DirectoryLock<'_> {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and the string NUL-terminated.
        unsafe { libc::unlinkat(self.directory.as_raw_fd(), LOCK.as_ptr(), 0) };
    }
}

/// The status of `name` in the directory, or of the descriptor itself if the name is empty.
fn status(directory: &OwnedFd, name: &CStr) -> io::Result<libc::stat> {
    // SAFETY: all zeros is a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;
    // SAFETY: writes to the given structure.
    let found = unsafe { libc::fstatat(directory.as_raw_fd(), name.as_ptr(), &raw mut stat, flags) } == 0;
    if found { Ok(stat) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn settings(path: &std::path::Path) -> Settings {
        let directory = Directory { path: path.to_path_buf(), mode: 0o640 };
        Settings { directory: Some(directory), ..Settings::default() }
    }

    #[test]
    fn the_name_of_an_exited_process_is_taken_over_and_that_of_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let place = || ServerAddress::own(&settings(folder.path()), b"name").unwrap();
        let first = place().listen(b"name").unwrap();
        let made = std::fs::metadata(folder.path().join("6e616d65")).unwrap();
        assert_eq!(made.permissions().mode() & 0o7777, 0o640);
        assert!(place().listen(b"name").unwrap_err().to_string().contains("is already listening"));
        // Simulate a killed process: the socket is closed, but its name remains.
        drop(first);
        assert!(folder.path().join("6e616d65").exists());
        place().listen(b"name").unwrap();
    }

    #[test]
    fn a_locked_directory_does_not_block_server_registration() {
        let folder = tempfile::tempdir().unwrap();
        let held = std::fs::File::open(folder.path()).unwrap();
        held.lock().unwrap();
        let settings = settings(folder.path());
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            sender.send(ServerAddress::own(&settings, b"name").unwrap().listen(b"name"))
        });
        let waits = std::time::Duration::from_secs(20);
        receiver.recv_timeout(waits).expect("it waits for the holder of the directory's lock").unwrap();
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["6e616d65"]);
    }

    #[test]
    fn a_signal_does_not_end_the_wait_for_the_lock() {
        extern "C" fn nothing(_signal: i32) {}
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path());
        // SAFETY: all zeros is a valid `sigaction`. The handler does nothing, and interrupted calls are not restarted.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
        }
        let opened = ServerAddress::own(&settings, b"name").unwrap().file.unwrap().0;
        let held = lock(&opened).unwrap();
        let (sender, waiter) = std::sync::mpsc::channel();
        let waits = std::thread::spawn(move || {
            // SAFETY: takes no arguments and returns an integer.
            sender.send(unsafe { libc::pthread_self() }).unwrap();
            ServerAddress::own(&settings, b"name").unwrap().listen(b"name").map(|_| ())
        });
        let waiter = waiter.recv().unwrap();
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            // SAFETY: the thread exists: it waits for the lock, which is held until later.
            unsafe { libc::pthread_kill(waiter, libc::SIGUSR2) };
        }
        let ended_early = waits.is_finished();
        drop(held);
        assert!(!ended_early);
        waits.join().unwrap().unwrap();
    }

    #[test]
    fn only_one_of_several_concurrent_servers_owns_the_name() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path());
        for _ in 0..20 {
            // A child process started by another test may briefly hold the socket of the previous round.
            let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
            let made: Vec<_> = loop {
                let made: Vec<_> = std::thread::scope(|scope| {
                    let listen = || ServerAddress::own(&settings, b"name").unwrap().listen(b"name").ok();
                    let threads: Vec<_> = (0..8).map(|_| scope.spawn(listen)).collect();
                    threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
                });
                if !made.is_empty() || std::time::Instant::now() >= end {
                    break made;
                }
            };
            assert_eq!(made.len(), 1);
        }
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("6e616d65");
        let listen =
            || ServerAddress::own(&settings(folder.path()), b"name").unwrap().listen(b"name").unwrap_err();
        std::fs::write(&taken, "another program's file").unwrap();
        let error = listen().to_string();
        assert!(error.contains("not a socket"), "{error}");
        assert_eq!(std::fs::read_to_string(&taken).unwrap(), "another program's file");
        std::fs::rename(&taken, folder.path().join("else")).unwrap();
        for to in ["else", "nowhere"] {
            std::os::unix::fs::symlink(to, &taken).unwrap();
            let error = listen().to_string();
            assert!(error.contains("not a socket"), "{error}");
            assert_eq!(std::fs::read_link(&taken).unwrap().to_str(), Some(to));
            std::fs::remove_file(&taken).unwrap();
        }
        std::fs::create_dir(&taken).unwrap();
        assert!(listen().to_string().contains("not a socket"));
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        for mode in [0o775, 0o757, 0o1777] {
            std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(mode)).unwrap();
            let error = ServerAddress::others(&settings(folder.path()), b"name").err().unwrap().to_string();
            assert!(error.contains(&format!("{mode:o}")), "{error}");
        }
        assert!(ServerAddress::own(&settings(&folder.path().join("missing")), b"name").is_err());
    }
}
