//! Devices of the modelled machine, as a program sees them: files in /dev/longma that are mapped and wait for interrupts.
//! Not the devices: whoever runs the process answers accesses to registers, which trap, and makes files ready.
//! Source: our own, in the manner of UIO (Linux Documentation/driver-api/uio-howto.rst): a file a device, read(2) for interrupts.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::memory::{Backing, Origin, PAGE_BYTES, Window};
use crate::{Errno, Process};

/// Where device files are.
const DIRECTORY: &[u8] = b"/dev/longma/";

/// Guests close low descriptors by number without asking what they are.
const FIRST_DESCRIPTOR: i32 = 900;

const CHILD_OPENS: &str = "longma: a forked child opens a file of /dev/longma and gets EBUSY: devices belong to the process that was started; use them there";
pub(crate) const CHILD_ACCESSES: &str = "longma: a forked child accesses a device's registers, which its parent mapped, and gets SIGBUS: devices belong to the process that was started; use them there";

/// A device of the machine as a file.
#[derive(Debug)]
pub struct DeviceFile {
    name: String,
    window: Window,
    bytes: u64,
    file: OwnedFd,
}

fn owned(descriptor: i32) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller has just made it, and nobody else knows it.
    let made = unsafe { OwnedFd::from_raw_fd(descriptor) };
    // SAFETY: no pointers; a new descriptor disturbs nobody.
    let moved = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR) };
    if moved < 0 {
        return Ok(made);
    }
    // SAFETY: it is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(moved) })
}

impl DeviceFile {
    /// The file of device `number`, which has `bytes` of registers: an eventfd, ready to be read when somebody adds to it.
    ///
    /// # Errors
    /// The host has no descriptor to give.
    pub fn registers(name: &str, number: u16, bytes: u64) -> io::Result<Self> {
        // SAFETY: no pointers; a new descriptor disturbs nobody.
        let file = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })?;
        Ok(Self { name: name.into(), window: Window::Registers(number), bytes, file })
    }

    /// The file of device `number`, which is `bytes` of memory, all zeros at first.
    ///
    /// # Errors
    /// The host has no descriptor or no memory to give.
    pub fn memory(name: &str, number: u16, bytes: u64) -> io::Result<Self> {
        // SAFETY: the name is terminated; a new descriptor disturbs nobody.
        let file = owned(unsafe { libc::memfd_create(c"longma-device".as_ptr(), libc::MFD_CLOEXEC) })?;
        // SAFETY: no pointers.
        if unsafe { libc::ftruncate(file.as_raw_fd(), bytes as i64) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { name: name.into(), window: Window::Memory(number), bytes, file })
    }

    /// Where the program finds it.
    pub(crate) fn path(&self) -> String {
        format!("/dev/longma/{}", self.name)
    }

    /// What a mapping of it shows.
    pub fn window(&self) -> Window {
        self.window
    }

    /// Makes it ready to be read; `events` are added to what a read gives.
    pub fn add_events(&self, events: u64) {
        // SAFETY: eight live bytes. It would wait only for a sum of 2^64 - 1.
        unsafe { libc::write(self.file.as_raw_fd(), (&raw const events).cast(), 8) };
    }

    /// Whether it is ready to be read.
    pub fn is_ready(&self) -> bool {
        let mut file = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live structure.
        unsafe { libc::poll(&raw mut file, 1, 0) > 0 }
    }

    /// Makes it unready. Nobody may read it meanwhile.
    pub fn clear_events(&self) {
        let mut events = 0u64;
        if self.is_ready() {
            // SAFETY: eight live bytes; it does not wait, for it is ready.
            unsafe { libc::read(self.file.as_raw_fd(), (&raw mut events).cast(), 8) };
        }
    }

    /// The file of `process` that a path names.
    pub(crate) fn find<'a>(process: &'a Process, path: &[u8]) -> Option<&'a Self> {
        let name = path.strip_prefix(DIRECTORY)?;
        process.config.devices.iter().find(|file| file.name.as_bytes() == name)
    }

    /// A new descriptor of it. Devices work on the memory of the process that was started with them, so that a forked child is
    /// refused: uacce's and idxd's, which take a process's own addresses too, belong to one address space as well.
    pub(crate) fn open(&self, process: &Process, flags: i32) -> Result<OwnedFd, Errno> {
        if process.simulation().is_none() {
            process.say_once(CHILD_OPENS);
            return Err(Errno(libc::EBUSY));
        }
        if flags & libc::O_DIRECTORY != 0 {
            return Err(Errno(libc::ENOTDIR));
        }
        if flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL {
            return Err(Errno(libc::EEXIST));
        }
        let command = if flags & libc::O_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
        // SAFETY: no pointers; a new descriptor disturbs nobody.
        let made = unsafe { libc::fcntl(self.file.as_raw_fd(), command, 0) };
        if made < 0 {
            return Err(io::Error::last_os_error().into());
        }
        // SAFETY: it is new and nobody else's.
        let made = unsafe { OwnedFd::from_raw_fd(made) };
        if flags & libc::O_NONBLOCK != 0 {
            // SAFETY: no pointers.
            unsafe { libc::fcntl(made.as_raw_fd(), libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK) };
        }
        Ok(made)
    }

    /// Its descriptor, for calls that only look at it.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// What a mapping of `descriptor` has behind it, if that is one of the process's device files.
    pub(crate) fn backing(
        process: &Process,
        descriptor: RawFd,
        shared: bool,
        offset: u64,
        length: u64,
    ) -> Result<Option<Backing>, Errno> {
        let same = |file: &&Self| is_same_file(file.file.as_raw_fd(), descriptor);
        let Some(found) = process.config.devices.iter().find(same) else { return Ok(None) };
        if !shared {
            return Err(Errno(libc::EINVAL));
        }
        let pages = found.bytes.next_multiple_of(PAGE_BYTES);
        if offset.checked_add(length).is_none_or(|end| end > pages) {
            return Err(Errno(libc::ENXIO));
        }
        let origin = Arc::new(Origin {
            name: found.path(),
            is_file: true,
            window: Some(found.window),
            ..Origin::default()
        });
        Ok(Some(match found.window {
            Window::Registers(_) => Backing::Registers(origin),
            Window::Memory(_) => Backing::File { descriptor, offset, size: found.bytes, origin },
        }))
    }
}

/// True if both descriptors are of one open file.
fn is_same_file(one: RawFd, other: RawFd) -> bool {
    const KCMP_FILE: i32 = 0;
    // SAFETY: no pointers; it compares two descriptors of this process.
    unsafe {
        let own = libc::getpid();
        libc::syscall(libc::SYS_kcmp, own, own, KCMP_FILE, one as u64, other as u64) == 0
    }
}
