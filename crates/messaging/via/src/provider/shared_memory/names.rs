//! The names that servers are found by: abstract sockets, or sockets in a directory that nobody but its owner can write to.
//! Not what is said over them.
//! Source: unix(7): abstract sockets vanish with their process, so that nothing is left behind by one that is killed, but have neither
//! owner nor mode; those in a directory have both.

use super::settings::{Allow, Directory, Settings};
use crate::address::Address;
use crate::error::Error;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

/// Requests that the kernel keeps for us to take in.
const BACKLOG: i32 = 4096;

pub(super) fn socket() -> Result<OwnedFd, Error> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: numbers only.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if fd < 0 {
        return Err(Error::last_system("making a socket"));
    }
    // SAFETY: just opened, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Where a name is: what the kernel calls it, and what must stay open for that.
pub(super) struct Place {
    address: libc::sockaddr_un,
    length: libc::socklen_t,
    /// The directory, the name in it, and the mode that its socket gets.
    file: Option<(OwnedFd, CString, u32)>,
}

fn in_hex(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| b"0123456789abcdef"[digit as usize])
}

impl Place {
    /// Where a server of that discriminator is, for itself.
    pub(super) fn own(settings: &Settings, discriminator: &[u8]) -> Result<Place, Error> {
        Place::of(settings, &Allow::Only { users: Vec::new(), groups: Vec::new() }, discriminator)
    }

    /// Where a server of that discriminator is, for somebody who asks.
    pub(super) fn others(settings: &Settings, discriminator: &[u8]) -> Result<Place, Error> {
        // Everyone's servers does not mean everyone's directories.
        let owners = match &settings.servers {
            Allow::Everyone => Allow::users(&[]),
            servers => servers.clone(),
        };
        Place::of(settings, &owners, discriminator)
    }

    fn of(settings: &Settings, owners: &Allow, discriminator: &[u8]) -> Result<Place, Error> {
        let Some(directory) = &settings.directory else {
            let name = b"\0longma-via/".iter().copied().chain(in_hex(discriminator)).collect::<Vec<_>>();
            return Place::at(&name, None);
        };
        let opened = open_directory(directory, owners)?;
        let name: Vec<u8> = in_hex(discriminator).collect();
        // By the descriptor: a long path would not fit, and a directory put there since it was looked at is another.
        let path = format!("/proc/self/fd/{}/", opened.as_raw_fd());
        let whole: Vec<u8> = path.bytes().chain(name.iter().copied()).collect();
        let name = CString::new(name).map_err(|_| Error::InvalidParameter("a name with a zero".into()))?;
        Place::at(&whole, Some((opened, name, directory.mode)))
    }

    fn at(name: &[u8], file: Option<(OwnedFd, CString, u32)>) -> Result<Place, Error> {
        // SAFETY: plain old data, for which zeroes are a value.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        if name.len() >= address.sun_path.len() {
            return Err(Error::InvalidParameter("the discriminator is too long for a socket's name".into()));
        }
        for (place, byte) in address.sun_path.iter_mut().zip(name) {
            *place = *byte as libc::c_char;
        }
        // A path's end is a zero; an abstract name has no end but its length.
        let end = usize::from(file.is_some());
        let length = (size_of::<libc::sa_family_t>() + name.len() + end) as libc::socklen_t;
        Ok(Place { address, length, file })
    }

    pub(super) fn connect(&self, socket: RawFd) -> io::Result<()> {
        // SAFETY: the structure is filled and `length` is not more than its size.
        let outcome = unsafe { libc::connect(socket, (&raw const self.address).cast(), self.length) };
        if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn bind(&self, socket: RawFd) -> io::Result<()> {
        // SAFETY: as above.
        let outcome = unsafe { libc::bind(socket, (&raw const self.address).cast(), self.length) };
        if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Makes a socket that listens here.
    pub(super) fn listen(&self, discriminator: &[u8]) -> Result<OwnedFd, Error> {
        let socket = socket()?;
        // Nobody else looks whether a name is left over while we do.
        let _alone = self.file.as_ref().map(|(directory, ..)| lock(directory)).transpose()?;
        let bound = match self.bind(socket.as_raw_fd()) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && self.is_left_over() => {
                self.remove();
                self.bind(socket.as_raw_fd())
            }
            bound => bound,
        };
        bound.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => Error::InvalidParameter(match self.is_a_socket() {
                false if self.file.is_some() => format!(
                    "the name of {} in the directory of names is taken by a file that is no socket; move it away",
                    Address::local(discriminator)
                ),
                _ => format!(
                    "another process, or another NIC, already waits at {}",
                    Address::local(discriminator)
                ),
            }),
            _ => Error::system("making a name", error),
        })?;
        if let Some((directory, name, mode)) = &self.file {
            // SAFETY: a descriptor of ours and a text that ends. Nobody can connect before `listen`.
            if unsafe { libc::fchmodat(directory.as_raw_fd(), name.as_ptr(), *mode, 0) } < 0 {
                return Err(Error::last_system("setting the mode of a name"));
            }
        }
        // SAFETY: numbers only.
        if unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) } < 0 {
            return Err(Error::last_system("listening"));
        }
        Ok(socket)
    }

    /// Whether the name in the directory is a socket, of a process that has ended. Any other file is somebody's own.
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

    /// Takes the name out of the directory.
    pub(super) fn remove(&self) {
        if let Some((directory, name, _)) = &self.file {
            // SAFETY: a descriptor of ours and a text that ends.
            unsafe { libc::unlinkat(directory.as_raw_fd(), name.as_ptr(), 0) };
        }
    }
}

/// Opens the directory, if nobody can put a name there but root, this process's user or one of `owners`.
fn open_directory(directory: &Directory, owners: &Allow) -> Result<OwnedFd, Error> {
    let shown = directory.path.display();
    let bad = |why: String| Error::InvalidParameter(format!("names cannot live in {shown}: {why}"));
    let path = CString::new(directory.path.as_os_str().as_bytes()).map_err(|_| bad("a zero in it".into()))?;
    // SAFETY: a text that ends; makes a new descriptor.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(bad(io::Error::last_os_error().to_string()));
    }
    // SAFETY: just opened, and nobody else has it.
    let opened = unsafe { OwnedFd::from_raw_fd(fd) };
    let stat = status(&opened, c"").map_err(|error| bad(error.to_string()))?;
    // SAFETY: asks for a number.
    let own = unsafe { libc::geteuid() };
    if stat.st_uid != 0 && stat.st_uid != own && !owners.permits(stat.st_uid, u32::MAX) {
        return Err(bad(format!("it belongs to user {}, who could take any name there", stat.st_uid)));
    }
    if stat.st_mode & 0o022 != 0 {
        let mode = stat.st_mode & 0o7777;
        return Err(bad(format!(
            "its mode {mode:o} lets others than its owner take names there; chmod go-w"
        )));
    }
    Ok(opened)
}

/// Alone with the names of a directory, until it is dropped.
struct Alone<'a> {
    directory: &'a OwnedFd,
    _file: OwnedFd,
}

/// The file that is locked: the directory itself could be by anybody who can read it. No name in hexadecimal digits is called so.
const LOCK: &CStr = c".longma-via-lock";

fn lock(directory: &OwnedFd) -> Result<Alone<'_>, Error> {
    let flags = libc::O_RDONLY | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    loop {
        // SAFETY: a constant text; makes a new descriptor.
        let fd = unsafe { libc::openat(directory.as_raw_fd(), LOCK.as_ptr(), flags, 0o600) };
        if fd < 0 {
            return Err(Error::last_system("opening the lock of the directory of names"));
        }
        // SAFETY: just opened, and nobody else has it.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: numbers only. Only root and this user can open it, and their processes have a moment's work with it.
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
                return Ok(Alone { directory, _file: file });
            }
            // Whoever had it before has taken it away, and a new one may be there.
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::system("locking the directory of names", error)),
        }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        // SAFETY: a descriptor of ours and a text that ends.
        unsafe { libc::unlinkat(self.directory.as_raw_fd(), LOCK.as_ptr(), 0) };
    }
}

/// What `name` in that directory is, or, without a name, what the descriptor itself is.
fn status(directory: &OwnedFd, name: &CStr) -> io::Result<libc::stat> {
    // SAFETY: `stat` is plain old data, for which zeroes are a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;
    // SAFETY: writes to the structure given.
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
    fn a_name_that_a_dead_process_left_is_taken_over_and_a_living_ones_is_not() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let place = || Place::own(&settings(folder.path()), b"name").unwrap();
        let first = place().listen(b"name").unwrap();
        let made = std::fs::metadata(folder.path().join("6e616d65")).unwrap();
        assert_eq!(made.permissions().mode() & 0o7777, 0o640);
        assert!(place().listen(b"name").unwrap_err().to_string().contains("already waits"));
        // As if killed: the socket is gone, and its name is left.
        drop(first);
        assert!(folder.path().join("6e616d65").exists());
        place().listen(b"name").unwrap();
    }

    #[test]
    fn who_locks_the_directory_holds_up_nobody_who_makes_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let held = std::fs::File::open(folder.path()).unwrap();
        held.lock().unwrap();
        let settings = settings(folder.path());
        let (done, made) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(Place::own(&settings, b"name").unwrap().listen(b"name")));
        let waits = std::time::Duration::from_secs(20);
        made.recv_timeout(waits).expect("it waits for whoever has locked the directory").unwrap();
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["6e616d65"]);
    }

    #[test]
    fn a_signal_does_not_end_the_wait_for_the_lock() {
        extern "C" fn nothing(_signal: i32) {}
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path());
        // SAFETY: plain old data; the handler does nothing, and calls are not begun again after it.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
        }
        let opened = Place::own(&settings, b"name").unwrap().file.unwrap().0;
        let held = lock(&opened).unwrap();
        let (told, waiter) = std::sync::mpsc::channel();
        let waits = std::thread::spawn(move || {
            // SAFETY: asks for a number.
            told.send(unsafe { libc::pthread_self() }).unwrap();
            Place::own(&settings, b"name").unwrap().listen(b"name").map(|_| ())
        });
        let waiter = waiter.recv().unwrap();
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            // SAFETY: the thread waits for the lock, which is held until after this.
            unsafe { libc::pthread_kill(waiter, libc::SIGUSR2) };
        }
        let ended_early = waits.is_finished();
        drop(held);
        assert!(!ended_early);
        waits.join().unwrap().unwrap();
    }

    #[test]
    fn servers_that_begin_at_once_have_the_name_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(folder.path());
        for _ in 0..20 {
            // A child that another test is making may have the socket of the round before, for a moment.
            let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
            let made: Vec<_> = loop {
                let made: Vec<_> = std::thread::scope(|scope| {
                    let listen = || Place::own(&settings, b"name").unwrap().listen(b"name").ok();
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
    fn a_file_that_is_no_socket_keeps_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("6e616d65");
        let listen = || Place::own(&settings(folder.path()), b"name").unwrap().listen(b"name").unwrap_err();
        std::fs::write(&taken, "of somebody's own").unwrap();
        let error = listen().to_string();
        assert!(error.contains("no socket"), "{error}");
        assert_eq!(std::fs::read_to_string(&taken).unwrap(), "of somebody's own");
        std::fs::rename(&taken, folder.path().join("else")).unwrap();
        for to in ["else", "nowhere"] {
            std::os::unix::fs::symlink(to, &taken).unwrap();
            let error = listen().to_string();
            assert!(error.contains("no socket"), "{error}");
            assert_eq!(std::fs::read_link(&taken).unwrap().to_str(), Some(to));
            std::fs::remove_file(&taken).unwrap();
        }
        std::fs::create_dir(&taken).unwrap();
        assert!(listen().to_string().contains("no socket"));
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        for mode in [0o775, 0o757, 0o1777] {
            std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(mode)).unwrap();
            let error = Place::others(&settings(folder.path()), b"name").err().unwrap().to_string();
            assert!(error.contains(&format!("{mode:o}")), "{error}");
        }
        assert!(Place::own(&settings(&folder.path().join("missing")), b"name").is_err());
    }
}
