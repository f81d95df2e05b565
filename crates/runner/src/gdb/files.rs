//! GDB Host I/O: the debugger reads files by the guest's paths. Source: GDB manual, appendix E.10 (Host I/O packets).

use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt},
    },
    path::Path,
};

use gdbstub::target::ext::host_io::{
    FsKind, HostIo, HostIoClose, HostIoCloseOps, HostIoErrno, HostIoError, HostIoFstat, HostIoFstatOps,
    HostIoOpen, HostIoOpenFlags, HostIoOpenMode, HostIoOpenOps, HostIoPread, HostIoPreadOps, HostIoResult,
    HostIoSetfs, HostIoSetfsOps, HostIoStat,
};

use longma_guest::host::descriptors;

use super::target::Target;

/// The maximum number of open files; more than a debugger needs.
const MAX_OPEN_FILES: usize = 64;

/// The debugger's open files by descriptor number.
#[derive(Debug, Default)]
pub(super) struct OpenFiles(BTreeMap<u32, File>);

impl Target {
    fn file(&self, number: u32) -> HostIoResult<&File, Self> {
        self.files.0.get(&number).ok_or(HostIoError::Errno(HostIoErrno::EBADF))
    }
}

impl HostIo for Target {
    fn support_open(&mut self) -> Option<HostIoOpenOps<'_, Self>> {
        Some(self)
    }

    fn support_close(&mut self) -> Option<HostIoCloseOps<'_, Self>> {
        Some(self)
    }

    fn support_pread(&mut self) -> Option<HostIoPreadOps<'_, Self>> {
        Some(self)
    }

    fn support_fstat(&mut self) -> Option<HostIoFstatOps<'_, Self>> {
        Some(self)
    }

    fn support_setfs(&mut self) -> Option<HostIoSetfsOps<'_, Self>> {
        Some(self)
    }
}

impl HostIoOpen for Target {
    fn open(&mut self, name: &[u8], flags: HostIoOpenFlags, _: HostIoOpenMode) -> HostIoResult<u32, Self> {
        let write_flags = HostIoOpenFlags::O_WRONLY | HostIoOpenFlags::O_RDWR | HostIoOpenFlags::O_CREAT;
        if flags.intersects(write_flags) {
            return Err(HostIoError::Errno(HostIoErrno::EROFS));
        }
        if self.files.0.len() == MAX_OPEN_FILES {
            return Err(HostIoError::Errno(HostIoErrno::EMFILE));
        }
        let file = self.cores.process().open_guest_path(Path::new(std::ffi::OsStr::from_bytes(name)))?;
        let file = File::from(descriptors::move_to_reserved(file.into())?);
        let free = (0..)
            .find(|number| !self.files.0.contains_key(number))
            .expect("fewer than MAX_OPEN_FILES are open");
        self.files.0.insert(free, file);
        Ok(free)
    }
}

impl HostIoClose for Target {
    fn close(&mut self, number: u32) -> HostIoResult<(), Self> {
        self.files.0.remove(&number).map(drop).ok_or(HostIoError::Errno(HostIoErrno::EBADF))
    }
}

impl HostIoPread for Target {
    fn pread(
        &mut self,
        number: u32,
        count: usize,
        offset: u64,
        buffer: &mut [u8],
    ) -> HostIoResult<usize, Self> {
        let length = count.min(buffer.len());
        Ok(self.file(number)?.read_at(&mut buffer[..length], offset)?)
    }
}

impl HostIoFstat for Target {
    fn fstat(&mut self, number: u32) -> HostIoResult<HostIoStat, Self> {
        let metadata = self.file(number)?.metadata()?;
        Ok(HostIoStat {
            st_dev: metadata.dev() as u32,
            st_ino: metadata.ino() as u32,
            st_mode: HostIoOpenMode::from_bits_truncate(metadata.mode()),
            st_nlink: metadata.nlink() as u32,
            st_uid: metadata.uid(),
            st_gid: metadata.gid(),
            st_rdev: metadata.rdev() as u32,
            st_size: metadata.size(),
            st_blksize: metadata.blksize(),
            st_blocks: metadata.blocks(),
            st_atime: metadata.atime() as u32,
            st_mtime: metadata.mtime() as u32,
            st_ctime: metadata.ctime() as u32,
        })
    }
}

impl HostIoSetfs for Target {
    fn setfs(&mut self, _: FsKind) -> HostIoResult<(), Self> {
        // There is a single process and thus a single view of the file system.
        Ok(())
    }
}
