//! Devices of the modelled machine, as a program sees them: files in /dev/longma that are mapped and wait for interrupts.
//! Not the devices: whoever runs the process answers accesses to registers, which trap, and makes files ready.
//! Source: UIO, in whose manner they are (Linux Documentation/driver-api/uio-howto.rst): a file a device, read(2) for interrupts.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use longma_guest::Errno;
use longma_guest::host::held::Held;
use longma_guest::host::{descriptors, event_count};
use longma_guest::{Backing, Origin, PAGE_BYTES, Window};

use crate::open_files::{self, is_same};

/// Where device files are.
const DIRECTORY: &[u8] = b"/dev/longma/";

pub(crate) const CHILD_OPENS: &str = "longma: a forked child opens a file of /dev/longma and gets EBUSY: devices belong to the process that was started; use them there";
pub(crate) const CHILD_ACCESSES: &str = "longma: a forked child accesses a device's registers, which its parent mapped, and gets SIGBUS: devices belong to the process that was started; use them there";

/// A device of the machine as a file.
#[derive(Debug)]
pub struct DeviceFile {
    name: String,
    window: Window,
    bytes: u64,
    file: OwnedFd,
    /// The core that its interrupts go to; none if nobody has said.
    interrupts: AtomicUsize,
}

/// ioctl(2) on a device's file: the calling thread handles the device's interrupts, on the core that it is on. `_IO('L', 1)`.
pub(crate) const HANDLE_INTERRUPTS: u32 = 0x4c01;

/// ioctl(2) on a device's file: the device's interrupts go to the core that the calling thread is on, and wake whoever waits for them as
/// anything does. `_IO('L', 2)`.
pub(crate) const INTERRUPT_HERE: u32 = 0x4c02;

/// ioctl(2) on any device's file: the calling thread stands for work that the kernel puts off; it goes first on its core, and calling it is
/// no context switch. No interrupts go to it. `_IO('L', 3)`.
pub(crate) const GO_FIRST: u32 = 0x4c03;

/// No core.
const NO_CORE: usize = usize::MAX;

impl DeviceFile {
    /// The file of device `number`, which has `bytes` of registers: an eventfd, ready to be read when somebody adds to it.
    ///
    /// # Errors
    /// The host has no descriptor to give.
    pub fn registers(name: &str, number: u16, bytes: u64) -> io::Result<Self> {
        // SAFETY: no pointers; a new descriptor disturbs nobody.
        let file = descriptors::owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })?;
        let file = descriptors::keep(file)?;
        Ok(Self::of(name, Window::Registers(number), bytes, file))
    }

    /// The file of device `number`, which is `bytes` of memory, all zeros at first.
    ///
    /// # Errors
    /// The host has no descriptor or no memory to give.
    pub fn memory(name: &str, number: u16, bytes: u64) -> io::Result<Self> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is terminated; a new descriptor disturbs nobody.
        let file = descriptors::owned(unsafe { libc::memfd_create(c"longma-device".as_ptr(), flags) })?;
        let file = descriptors::keep(file)?;
        // A store has the size that it has: guests have descriptors of the file.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: no pointers.
        unsafe {
            descriptors::done(libc::ftruncate(file.as_raw_fd(), bytes as i64))?;
            descriptors::done(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals))?;
        }
        Ok(Self::of(name, Window::Memory(number), bytes, file))
    }

    fn of(name: &str, window: Window, bytes: u64, file: OwnedFd) -> Self {
        Self { name: name.into(), window, bytes, file, interrupts: AtomicUsize::new(NO_CORE) }
    }

    /// The core that the program wants its interrupts to go to.
    pub fn interrupted_core(&self) -> Option<usize> {
        Some(self.interrupts.load(Ordering::Relaxed)).filter(|core| *core != NO_CORE)
    }

    /// From now on its interrupts go to `core`.
    pub(crate) fn interrupt(&self, core: usize) {
        self.interrupts.store(core, Ordering::Relaxed);
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
        event_count::add(&self.file, events);
    }

    /// Whether it is ready to be read.
    pub fn is_ready(&self) -> bool {
        open_files::is_ready(self.file.as_raw_fd(), libc::POLLIN)
    }

    /// Makes it unready. Nobody may read it meanwhile.
    pub fn clear_events(&self) {
        if self.is_ready() {
            event_count::clear(&self.file);
        }
    }

    /// The one of `files` that a path names.
    pub(crate) fn find<'a>(files: &'a [Self], path: &[u8]) -> Option<&'a Self> {
        let name = path.strip_prefix(DIRECTORY)?;
        files.iter().find(|file| file.name.as_bytes() == name)
    }

    /// The one of `files` that is open as `descriptor`.
    pub(crate) fn behind(files: &[Self], descriptor: RawFd) -> Option<&Self> {
        files.iter().find(|file| is_same(file.file.as_raw_fd(), descriptor))
    }

    /// A new descriptor of it.
    pub(crate) fn open(&self, flags: i32) -> Result<OwnedFd, Errno> {
        if flags & libc::O_DIRECTORY != 0 {
            return Err(Errno(libc::ENOTDIR));
        }
        if flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL {
            return Err(Errno(libc::EEXIST));
        }
        let command = if flags & libc::O_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
        // SAFETY: no pointers; a new descriptor disturbs nobody.
        let made = descriptors::owned(unsafe { libc::fcntl(self.file.as_raw_fd(), command, 0) })?;
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

    /// What a mapping of `file` has behind it, if that is one of `files`.
    pub(crate) fn backing(
        files: &[Self],
        file: &Held,
        shared: bool,
        offset: u64,
        length: u64,
    ) -> Result<Option<Backing>, Errno> {
        let descriptor = file.number();
        let Some(found) = Self::behind(files, descriptor) else { return Ok(None) };
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What a guest may do with a device file that it has opened.
    fn call(descriptor: &OwnedFd, act: impl Fn(RawFd) -> isize) -> io::Result<()> {
        if act(descriptor.as_raw_fd()) < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    #[test]
    fn an_interrupt_comes_through_though_the_guest_has_filled_the_count() {
        let file = DeviceFile::registers("test", 0, 4096).unwrap();
        // The guest's descriptor is of the same open file.
        let guest = descriptors::duplicate(file.descriptor()).unwrap();
        let most = u64::MAX - 1;
        // SAFETY: eight live bytes; nothing is counted yet.
        call(&guest, |guest| unsafe { libc::write(guest, (&raw const most).cast(), 8) }).unwrap();
        file.add_events(1);
        assert!(file.is_ready());
        file.clear_events();
        assert!(!file.is_ready());
        file.clear_events();
    }

    #[test]
    fn a_store_keeps_its_size() {
        let file = DeviceFile::memory("test", 0, 8192).unwrap();
        let guest = descriptors::duplicate(file.descriptor()).unwrap();
        for bytes in [0, 4096, 1 << 30] {
            // SAFETY: no pointers.
            let done = call(&guest, |guest| unsafe { libc::ftruncate(guest, bytes) as isize });
            assert_eq!(done.unwrap_err().raw_os_error(), Some(libc::EPERM), "{bytes}");
        }
        // SAFETY: no pointers.
        let grown = call(&guest, |guest| unsafe { libc::fallocate(guest, 0, 8192, 4096) as isize });
        assert_eq!(grown.unwrap_err().raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn a_device_file_is_out_of_the_guests_reach() {
        let registers = DeviceFile::registers("test", 0, 4096).unwrap();
        let memory = DeviceFile::memory("test", 0, 4096).unwrap();
        assert!(
            registers.descriptor() >= descriptors::first() && memory.descriptor() >= descriptors::first()
        );
    }
}
