//! Devices of the modelled machine as files in /dev/longma, which a program maps and reads to wait for interrupts. The
//! owner of the process handles register accesses, which trap, and signals interrupts. Source: modelled on UIO (Linux
//! Documentation/driver-api/uio-howto.rst): a file for each device, read(2) for interrupts.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use longma_guest::Errno;
use longma_guest::host::pinned_file::PinnedFile;
use longma_guest::host::{descriptors, event_count};
use longma_guest::{Backing, Origin, PAGE_BYTES, Window};

use crate::open_files::{self, is_same_open_file};

/// The directory of device files.
const DIRECTORY: &[u8] = b"/dev/longma/";

pub(crate) const CHILD_OPENS: &str = "longma: a forked child opened a file of /dev/longma and got EBUSY: only the initial process can use devices";
pub(crate) const CHILD_ACCESSES: &str = "longma: a forked child accessed device registers that its parent mapped and got SIGBUS: only the initial process can use devices";

/// A device of the machine as a file.
#[derive(Debug)]
pub struct DeviceFile {
    name: String,
    window: Window,
    bytes: u64,
    file: OwnedFd,
    /// The core that gets its interrupts; [`NO_CORE`] if the program has not chosen one.
    interrupts: AtomicUsize,
}

/// ioctl(2) on a device file: the calling thread handles the device's interrupts on its current core. `_IO('L', 1)`.
pub(crate) const HANDLE_INTERRUPTS: u32 = 0x4c01;

/// ioctl(2) on a device file: routes the device's interrupts to the core of the calling thread. The interrupts wake
/// waiting threads, which keep their normal priority. `_IO('L', 2)`.
pub(crate) const ROUTE_INTERRUPTS: u32 = 0x4c02;

/// ioctl(2) on any device file: the calling thread models deferred kernel work. It runs first on its core, switching to
/// it is not a context switch, and it gets no interrupts. `_IO('L', 3)`.
pub(crate) const MODEL_DEFERRED_WORK: u32 = 0x4c03;

/// Marks the absence of a core.
const NO_CORE: usize = usize::MAX;

impl DeviceFile {
    /// Creates the file of device `number` with `bytes` bytes of registers. It is an eventfd.
    ///
    /// # Errors
    /// The host has no free descriptor.
    pub fn registers(name: &str, number: u16, bytes: u64) -> io::Result<Self> {
        // SAFETY: the call takes no pointers, and a new descriptor affects no other code.
        let file = descriptors::owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })?;
        let file = descriptors::move_to_reserved(file)?;
        Ok(Self::of(name, Window::Registers(number), bytes, file))
    }

    /// Creates the file of device `number` with `bytes` bytes of zeroed memory.
    ///
    /// # Errors
    /// The host has no free descriptor or memory.
    pub fn memory(name: &str, number: u16, bytes: u64) -> io::Result<Self> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is terminated, and a new descriptor affects no other code.
        let file = descriptors::owned(unsafe { libc::memfd_create(c"longma-device".as_ptr(), flags) })?;
        let file = descriptors::move_to_reserved(file)?;
        // The size is fixed, because guests have descriptors of the file.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: the calls take no pointers.
        unsafe {
            descriptors::done(libc::ftruncate(file.as_raw_fd(), bytes as i64))?;
            descriptors::done(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals))?;
        }
        Ok(Self::of(name, Window::Memory(number), bytes, file))
    }

    fn of(name: &str, window: Window, bytes: u64, file: OwnedFd) -> Self {
        Self { name: name.into(), window, bytes, file, interrupts: AtomicUsize::new(NO_CORE) }
    }

    /// The core that gets the device's interrupts, if the program has chosen one.
    pub fn interrupt_core(&self) -> Option<usize> {
        Some(self.interrupts.load(Ordering::Relaxed)).filter(|core| *core != NO_CORE)
    }

    /// Routes the device's interrupts to `core`.
    pub(crate) fn route_interrupts(&self, core: usize) {
        self.interrupts.store(core, Ordering::Relaxed);
    }

    /// The path of the file in the guest.
    pub(crate) fn path(&self) -> String {
        format!("/dev/longma/{}", self.name)
    }

    /// The device window that a mapping of the file shows.
    pub fn window(&self) -> Window {
        self.window
    }

    /// Adds `events` to the counter that a read returns, which makes the file readable.
    pub fn add_events(&self, events: u64) {
        event_count::add(&self.file, events);
    }

    /// Whether the file is readable.
    pub fn is_ready(&self) -> bool {
        open_files::is_ready(self.file.as_raw_fd(), libc::POLLIN)
    }

    /// Resets the counter. No other thread may read the file during the call.
    pub fn clear_events(&self) {
        if self.is_ready() {
            event_count::clear(&self.file);
        }
    }

    /// The file of `files` with this path.
    pub(crate) fn find<'a>(files: &'a [Self], path: &[u8]) -> Option<&'a Self> {
        let name = path.strip_prefix(DIRECTORY)?;
        files.iter().find(|file| file.name.as_bytes() == name)
    }

    /// The file of `files` that is open as `descriptor`.
    pub(crate) fn of_descriptor(files: &[Self], descriptor: RawFd) -> Option<&Self> {
        files.iter().find(|file| is_same_open_file(file.file.as_raw_fd(), descriptor))
    }

    /// Opens a new descriptor of the file.
    pub(crate) fn open(&self, flags: i32) -> Result<OwnedFd, Errno> {
        if flags & libc::O_DIRECTORY != 0 {
            return Err(Errno(libc::ENOTDIR));
        }
        if flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL {
            return Err(Errno(libc::EEXIST));
        }
        let command = if flags & libc::O_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
        // SAFETY: the call takes no pointers, and a new descriptor affects no other code.
        let opened = descriptors::owned(unsafe { libc::fcntl(self.file.as_raw_fd(), command, 0) })?;
        if flags & libc::O_NONBLOCK != 0 {
            // SAFETY: the call takes no pointers.
            unsafe { libc::fcntl(opened.as_raw_fd(), libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK) };
        }
        Ok(opened)
    }

    /// The descriptor, for calls that only inspect the file.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// The backing of a mapping of `file`, if that is one of `files`.
    pub(crate) fn backing(
        files: &[Self],
        file: &PinnedFile,
        shared: bool,
        offset: u64,
        length: u64,
    ) -> Result<Option<Backing>, Errno> {
        let descriptor = file.number();
        let Some(device) = Self::of_descriptor(files, descriptor) else { return Ok(None) };
        if !shared {
            return Err(Errno(libc::EINVAL));
        }
        let pages = device.bytes.next_multiple_of(PAGE_BYTES);
        if offset.checked_add(length).is_none_or(|end| end > pages) {
            return Err(Errno(libc::ENXIO));
        }
        let origin = Arc::new(Origin {
            name: device.path(),
            is_file: true,
            window: Some(device.window),
            ..Origin::default()
        });
        Ok(Some(match device.window {
            Window::Registers(_) => Backing::Registers(origin),
            Window::Memory(_) => Backing::File { descriptor, offset, size: device.bytes, origin },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that a guest may make on an open device file.
    fn call(descriptor: &OwnedFd, act: impl Fn(RawFd) -> isize) -> io::Result<()> {
        if act(descriptor.as_raw_fd()) < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    #[test]
    fn an_interrupt_arrives_even_if_the_guest_has_filled_the_count() {
        let file = DeviceFile::registers("test", 0, 4096).unwrap();
        // The guest's descriptor refers to the same open file description.
        let guest = descriptors::duplicate(file.descriptor()).unwrap();
        let full = u64::MAX - 1;
        // SAFETY: `full` is 8 bytes and live, and the counter is zero.
        call(&guest, |guest| unsafe { libc::write(guest, (&raw const full).cast(), 8) }).unwrap();
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
            // SAFETY: the call takes no pointers.
            let result = call(&guest, |guest| unsafe { libc::ftruncate(guest, bytes) as isize });
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EPERM), "{bytes}");
        }
        // SAFETY: the call takes no pointers.
        let grown = call(&guest, |guest| unsafe { libc::fallocate(guest, 0, 8192, 4096) as isize });
        assert_eq!(grown.unwrap_err().raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn the_guest_cannot_access_a_device_file_directly() {
        let registers = DeviceFile::registers("test", 0, 4096).unwrap();
        let memory = DeviceFile::memory("test", 0, 4096).unwrap();
        assert!(
            registers.descriptor() >= descriptors::first() && memory.descriptor() >= descriptors::first()
        );
    }
}
