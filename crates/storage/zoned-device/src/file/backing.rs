//! The file that holds an emulated device, with file locking and error messages.
//!
//! Source: open(2), inode(7), pread(2), pwrite(2), fdatasync(2), fallocate(2), flock(2).

use crate::{DeviceError, Operation};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A locked file.
pub struct Backing {
    store: Store,
    path: PathBuf,
    /// The process that opened the file. A forked child shares the lock, but does not see its parent's later writes.
    process: u32,
}

/// The storage behind a [`Backing`].
enum Store {
    File(File),
    /// For tests: a device that records the images that a power cut would leave.
    #[cfg(any(test, feature = "faulty-files"))]
    Faulty(std::sync::Arc<crate::FaultyDevice>),
}

impl Backing {
    /// Opens and locks a file, exclusively for writing or shared for reading. Anything but a regular file is rejected
    /// without opening it: opening a named pipe would block until its other end is opened, and opening a device may
    /// have side effects.
    pub fn open(path: &Path, options: &OpenOptions, is_read_only: bool) -> Result<Self, DeviceError> {
        let failed = |source| DeviceError::Host {
            name: path.display().to_string(),
            operation: Operation::Examine,
            source,
        };
        let not_usable =
            |what: &str| DeviceError::NotUsable { name: path.display().to_string(), what: what.into() };
        let must_be_regular = |data: &Metadata| match kind(data) {
            None => Ok(()),
            Some(kind) => Err(not_usable(&format!(
                "is {kind}, not a regular file: give a file created by `longma zoned format`, or a zoned block device"
            ))),
        };
        if let Ok(existing) = std::fs::metadata(path) {
            must_be_regular(&existing)?;
        }
        // The path may have been replaced after the check. `O_NONBLOCK` keeps the open from blocking and has no effect
        // on regular files.
        let file = options.clone().custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
        must_be_regular(&file.metadata().map_err(failed)?)?;
        let lock = if is_read_only {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        match flock(&file, lock) {
            Ok(()) => Ok(Self { store: Store::File(file), path: path.into(), process: std::process::id() }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(not_usable("is in use by another process")),
            Err(errno) => Err(failed(errno.into())),
        }
    }

    #[cfg(any(test, feature = "faulty-files"))]
    pub fn faulty(device: std::sync::Arc<crate::FaultyDevice>) -> Self {
        Self { store: Store::Faulty(device), path: "faulty".into(), process: std::process::id() }
    }

    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Fails in a forked child of the process that opened the file.
    pub fn check_process(&self) -> Result<(), DeviceError> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(self.not_usable(format!(
            "was opened by process {} before a fork, and only that process can write to it: open it after the fork",
            self.process
        )))
    }

    pub fn host(&self, operation: Operation, source: io::Error) -> DeviceError {
        let source = match (source.kind(), operation) {
            (io::ErrorKind::StorageFull, Operation::Write | Operation::Flush | Operation::Reset) => {
                let what = format!("{source}: free space in the file system, then open the device again");
                io::Error::new(io::ErrorKind::StorageFull, what)
            }
            _ => source,
        };
        DeviceError::Host { name: self.name(), operation, source }
    }

    pub fn not_usable(&self, what: String) -> DeviceError {
        DeviceError::NotUsable { name: self.name(), what }
    }

    /// The length of the file, bytes.
    pub fn length(&self) -> Result<u64, DeviceError> {
        match &self.store {
            Store::File(file) => {
                file.metadata().map(|data| data.len()).map_err(|e| self.host(Operation::Examine, e))
            }
            #[cfg(any(test, feature = "faulty-files"))]
            Store::Faulty(device) => Ok(faulty::bytes(device)),
        }
    }

    pub fn resize(&self, bytes: u64) -> Result<(), DeviceError> {
        match &self.store {
            Store::File(file) => file.set_len(bytes).map_err(|e| self.host(Operation::Write, e)),
            #[cfg(any(test, feature = "faulty-files"))]
            Store::Faulty(device) => {
                assert!(bytes <= faulty::bytes(device));
                Ok(())
            }
        }
    }

    /// The file, unless a test has replaced it.
    const fn file(&self) -> Option<&File> {
        match &self.store {
            Store::File(file) => Some(file),
            #[cfg(any(test, feature = "faulty-files"))]
            Store::Faulty(_) => None,
        }
    }

    /// Allocates space for a part of the file. Returns false if the file system does not support it.
    pub fn allocate(&self, part: std::ops::Range<u64>) -> Result<bool, DeviceError> {
        let Some(file) = self.file() else { return Ok(true) };
        let bytes = part.end - part.start;
        // Check the free space first: an in-memory file system would fill up completely before the call fails.
        let free = rustix::fs::fstatvfs(file).map(|info| info.f_bavail.saturating_mul(info.f_frsize));
        let taken = file.metadata().map_or(0, |data| data.blocks() * 512);
        let full = |free: u64| {
            let what = format!(
                "{bytes} bytes are needed and the file system has {free} left: choose fewer or smaller zones, or a sparse file"
            );
            self.host(Operation::Allocate, io::Error::new(io::ErrorKind::StorageFull, what))
        };
        if let Ok(free) = free
            && bytes > free.saturating_add(taken)
        {
            return Err(full(free));
        }
        match fallocate(file, FallocateFlags::KEEP_SIZE, part.start, bytes) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(false),
            Err(rustix::io::Errno::NOSPC) => Err(full(free.unwrap_or_default())),
            Err(errno) => Err(self.host(Operation::Allocate, errno.into())),
        }
    }

    pub fn read(&self, at: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        match &self.store {
            Store::File(file) => file.read_exact_at(buffer, at).map_err(|e| self.host(Operation::Read, e)),
            #[cfg(any(test, feature = "faulty-files"))]
            Store::Faulty(device) => faulty::read(device, at, buffer),
        }
    }

    /// Reads a part that need not consist of whole sectors.
    pub fn read_unaligned(&self, part: std::ops::Range<u64>) -> Result<Vec<u8>, DeviceError> {
        match &self.store {
            Store::File(_) => self.read_part(part.start, part.end - part.start),
            #[cfg(any(test, feature = "faulty-files"))]
            Store::Faulty(device) => {
                let whole = faulty::whole_blocks(device, &part);
                let bytes = self.read_part(whole.start, whole.end - whole.start)?;
                Ok(bytes[(part.start - whole.start) as usize..(part.end - whole.start) as usize].to_vec())
            }
        }
    }

    /// Reads a part that may be large. Failure to allocate memory is reported as an error.
    pub fn read_part(&self, at: u64, bytes: u64) -> Result<Vec<u8>, DeviceError> {
        let no_memory = || {
            let what = format!("cannot allocate {bytes} bytes to read from byte {at} on");
            self.host(Operation::Read, io::Error::new(io::ErrorKind::OutOfMemory, what))
        };
        let bytes = usize::try_from(bytes).map_err(|_| no_memory())?;
        let mut part = Vec::new();
        part.try_reserve_exact(bytes).map_err(|_| no_memory())?;
        part.resize(bytes, 0);
        self.read(at, &mut part)?;
        Ok(part)
    }

    /// Whether a part of the file is known to be a hole.
    pub fn is_hole(&self, part: std::ops::Range<u64>) -> bool {
        match &self.store {
            Store::File(file) => match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(part.start)) {
                Ok(data) => data >= part.end,
                // There is no data after this offset.
                Err(rustix::io::Errno::NXIO) => true,
                Err(_) => false,
            },
            #[cfg(any(test, feature = "faulty-files"))]
            Store::Faulty(_) => false,
        }
    }

    pub fn write(&self, at: u64, data: &[u8]) -> Result<(), DeviceError> {
        match &self.store {
            Store::File(file) => file.write_all_at(data, at).map_err(|e| self.host(Operation::Write, e)),
            #[cfg(any(test, feature = "faulty-files"))]
            Store::Faulty(device) => faulty::write(device, at, data),
        }
    }

    /// Writes data that need not consist of whole sectors.
    pub fn write_unaligned(&self, at: u64, data: &[u8]) -> Result<(), DeviceError> {
        match &self.store {
            Store::File(_) => self.write(at, data),
            #[cfg(any(test, feature = "faulty-files"))]
            Store::Faulty(device) => {
                let whole = faulty::whole_blocks(device, &(at..at + data.len() as u64));
                let mut bytes = self.read_part(whole.start, whole.end - whole.start)?;
                bytes[(at - whole.start) as usize..][..data.len()].copy_from_slice(data);
                self.write(whole.start, &bytes)
            }
        }
    }

    /// Makes all written data durable.
    pub fn sync(&self) -> Result<(), DeviceError> {
        match &self.store {
            Store::File(file) => file.sync_data().map_err(|e| self.host(Operation::Flush, e)),
            #[cfg(any(test, feature = "faulty-files"))]
            Store::Faulty(device) => crate::ZonedDevice::flush(device),
        }
    }

    /// Makes the directory entry of a new file durable.
    pub fn sync_directory(&self) -> Result<(), DeviceError> {
        let folder = self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|e| self.host(Operation::Flush, e))
    }

    /// Discards a part of the file, if the file system supports it, and returns whether it reads as zeros now. Otherwise
    /// its contents are undefined. With `keep_space` it stays allocated.
    pub fn discard(&self, part: std::ops::Range<u64>, keep_space: bool) -> Result<bool, DeviceError> {
        let how = if keep_space { FallocateFlags::ZERO_RANGE } else { FallocateFlags::PUNCH_HOLE };
        let (at, bytes) = (part.start, part.end - part.start);
        let given = match &self.store {
            _ if bytes == 0 => Ok(()),
            Store::File(file) => fallocate(file, how | FallocateFlags::KEEP_SIZE, at, bytes),
            #[cfg(any(test, feature = "faulty-files"))]
            Store::Faulty(_) => return self.write_unaligned(at, &vec![0; bytes as usize]).map(|()| true),
        };
        match given {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSPC) => Ok(false),
            Err(errno) => Err(self.host(Operation::Reset, errno.into())),
        }
    }

    /// A random number from the operating system.
    pub fn identity(&self) -> Result<u128, DeviceError> {
        let mut bytes = [0; 16];
        let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        filled.map_err(|errno| self.host(Operation::Examine, errno.into()))?;
        Ok(u128::from_le_bytes(bytes))
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // Unlock explicitly: a child process of another thread, between fork and exec, shares the open file and would
        // keep the lock. A forked child must not unlock the file of its parent.
        if self.process != std::process::id() {
            return;
        }
        match &self.store {
            Store::File(file) => drop(flock(file, FlockOperation::Unlock)),
            #[cfg(any(test, feature = "faulty-files"))]
            Store::Faulty(_) => {}
        }
    }
}

/// Describes the file type, or returns `None` for a regular file; see inode(7).
fn kind(data: &Metadata) -> Option<&'static str> {
    let kind = data.file_type();
    match () {
        () if kind.is_file() => None,
        () if kind.is_dir() => Some("a folder"),
        () if kind.is_fifo() => Some("a named pipe"),
        () if kind.is_socket() => Some("a socket"),
        () if kind.is_block_device() => Some("a block device"),
        () => Some("a character device"),
    }
}

#[cfg(any(test, feature = "faulty-files"))]
mod faulty {
    //! Treats a device with a single conventional zone as a file.

    use crate::{Block, DeviceError, FaultyDevice, ZonedDevice};

    pub fn bytes(device: &FaultyDevice) -> u64 {
        device.geometry().blocks() * block_bytes(device)
    }

    pub fn read(device: &FaultyDevice, at: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        assert!(at.is_multiple_of(block_bytes(device)));
        if buffer.is_empty() { Ok(()) } else { device.read(Block(at / block_bytes(device)), buffer) }
    }

    pub fn write(device: &FaultyDevice, at: u64, data: &[u8]) -> Result<(), DeviceError> {
        assert!(at.is_multiple_of(block_bytes(device)));
        device.write(Block(at / block_bytes(device)), data)
    }

    /// The smallest range of whole blocks that contains a range of bytes.
    pub fn whole_blocks(device: &FaultyDevice, part: &std::ops::Range<u64>) -> std::ops::Range<u64> {
        let block_bytes = block_bytes(device);
        part.start / block_bytes * block_bytes..part.end.next_multiple_of(block_bytes)
    }

    fn block_bytes(device: &FaultyDevice) -> u64 {
        u64::from(device.geometry().block_bytes)
    }
}
