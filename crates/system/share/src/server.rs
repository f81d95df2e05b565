//! The server, which executes a request and returns the reply.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::attributes::{self, valid};
use crate::fids::{Fids, Opened};
use crate::folder::{Descriptors, Handle};
use crate::request::{Change, ERROR, Message, Request};
use crate::wire::{HEADER, Reply};

/// The maximum size of a message in bytes.
pub const MAX_MESSAGE_BYTES: usize = 256 << 10;
/// The minimum message size that a guest can negotiate; every reply without data fits into it.
const MIN_MESSAGE_BYTES: u32 = 4096;
/// The maximum number of fids.
const MAX_FIDS: usize = 4096;
/// The number that means no fid (P9_NOFID).
const NO_FID: u32 = u32::MAX;
/// The flag of an unlink of a folder (P9_DOTL_AT_REMOVEDIR).
const REMOVE_FOLDER: u32 = 0x200;

/// Flags of open. Source: Linux, include/net/9p/9p.h (P9_DOTL).
mod flag {
    pub const ACCESS: u32 = 3;
    pub const EXCLUSIVE: u32 = 0o200;
    pub const TRUNCATE: u32 = 0o1000;
    pub const APPEND: u32 = 0o2000;
}

/// The guest's access to the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only.
    Read,
    /// Read and change.
    Write,
}

/// The folder cannot be shared.
#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    /// The host refused to open it.
    #[error("cannot share the folder: {0}")]
    Folder(std::io::Error),
    /// The host has no `/proc`.
    #[error("cannot share a folder without /proc/self/fd: {0}; mount /proc")]
    Descriptors(std::io::Error),
}

/// A shared folder and the state of its one guest.
#[derive(Debug)]
pub struct Share {
    root: Handle,
    descriptors: Descriptors,
    access: Access,
    fids: Fids,
    /// The maximum message size in bytes; 0 until the guest has negotiated a version.
    message_bytes: u32,
}

impl Share {
    /// Shares the folder at `path`. The guest can have as many fids as a quarter of the process's limit on open files,
    /// but at most 4096.
    ///
    /// # Errors
    /// There is no such folder, the host refuses, or the host has no openat2 (Linux 5.6) or no `/proc`.
    pub fn open(path: &Path, access: Access) -> Result<Self, ShareError> {
        let root = Handle::root(path).map_err(|error| ShareError::Folder(error.into()))?;
        let descriptors = Descriptors::new().map_err(|error| ShareError::Descriptors(error.into()))?;
        let open_files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let fids = Fids::new(usize::try_from(open_files / 4).unwrap_or(MAX_FIDS).clamp(16, MAX_FIDS));
        Ok(Self { root, descriptors, access, fids, message_bytes: 0 })
    }

    /// Whether the guest has fids, as it does while the folder is mounted.
    pub fn is_in_use(&self) -> bool {
        !self.fids.is_empty()
    }

    /// Serves a request. The reply has up to `room` bytes; a longer one becomes an error. `None` if the request's
    /// header is malformed or an error does not fit; the guest then receives no reply.
    pub fn serve(&mut self, request: &[u8], room: usize) -> Option<Vec<u8>> {
        let message = Message::new(request).filter(|_| request.len() <= MAX_MESSAGE_BYTES)?;
        let room = match self.message_bytes {
            0 => room,
            limit => room.min(limit as usize),
        };
        let mut reply = Reply::default();
        let outcome = Request::parse(&message).and_then(|request| self.answer(request, room, &mut reply));
        let outcome = match outcome {
            Ok(()) if HEADER + reply.len() > room => Err(Errno::MSGSIZE),
            outcome => outcome,
        };
        let answer = match outcome {
            Ok(()) => reply.message(message.kind + 1, message.tag),
            Err(error) => {
                let mut reply = Reply::default();
                reply.put((error.raw_os_error() as u32).to_le_bytes());
                reply.message(ERROR, message.tag)
            }
        };
        (answer.len() <= room).then_some(answer)
    }

    /// Ends all fids, as after a reset of the device.
    pub fn reset(&mut self) {
        self.fids.clear();
        self.message_bytes = 0;
    }

    /// Checks that the guest may change the folder.
    fn may_write(&self) -> Result<(), Errno> {
        if self.access == Access::Write { Ok(()) } else { Err(Errno::ROFS) }
    }

    fn answer(&mut self, request: Request<'_>, room: usize, reply: &mut Reply) -> Result<(), Errno> {
        if self.message_bytes == 0 && !matches!(request, Request::Version { .. }) {
            return Err(Errno::PROTO);
        }
        match request {
            Request::Version { msize, version } => self.version(msize, version, reply),
            Request::Attach { fid, afid, aname } => self.attach(fid, afid, aname, reply),
            Request::Flush | Request::Lock { .. } | Request::GetLock { .. } => self.lock(&request, reply),
            Request::Walk { fid, newfid, names } => self.walk(fid, newfid, &names, reply),
            Request::Open { fid, flags } => self.open_file(fid, flags, reply),
            Request::Create { fid, name, flags, mode } => self.create(fid, name, flags, mode, reply),
            Request::Read { fid, offset, count } => self.read(fid, offset, count, room, reply),
            Request::Write { fid, offset, data } => self.write(fid, offset, data, reply),
            Request::Clunk { fid } => self.fids.remove(fid),
            Request::Remove { fid } => self.fids.remove(fid).and(Err(Errno::OPNOTSUPP)),
            Request::Attributes { fid } => {
                attributes::put_status(reply, &self.fids.handle(fid)?.status()?);
                Ok(())
            }
            Request::SetAttributes { fid, change } => self.set_attributes(fid, &change),
            Request::List { fid, offset, count } => self.list(fid, offset, count, room, reply),
            Request::Synchronize { fid } => self.synchronize(fid),
            Request::FileSystem { fid } => {
                attributes::put_file_system(reply, &self.fids.handle(fid)?.file_system()?);
                Ok(())
            }
            Request::ReadLink { fid } => {
                reply.text(self.fids.handle(fid)?.target()?.as_bytes());
                Ok(())
            }
            Request::CreateFolder { .. } | Request::Rename { .. } | Request::Unlink { .. } => {
                self.change_names(&request, reply)
            }
            Request::Link { folder, fid, name } => {
                self.may_write()?;
                self.fids.handle(folder)?.link(name, self.fids.handle(fid)?, &self.descriptors)
            }
            // Links and special files are not created, because programs of the host could follow a link out of the
            // folder.
            Request::Special => self.may_write().and(Err(Errno::PERM)),
        }
    }

    fn version(&mut self, msize: u32, version: &[u8], reply: &mut Reply) -> Result<(), Errno> {
        if msize < MIN_MESSAGE_BYTES {
            return Err(Errno::INVAL);
        }
        self.reset();
        let bytes = msize.min(MAX_MESSAGE_BYTES as u32);
        let is_known = version == b"9P2000.L";
        self.message_bytes = if is_known { bytes } else { 0 };
        reply.put(bytes.to_le_bytes()).text(if is_known { version } else { b"unknown" });
        Ok(())
    }

    fn attach(&mut self, fid: u32, afid: u32, aname: &[u8], reply: &mut Reply) -> Result<(), Errno> {
        if afid != NO_FID || fid == NO_FID {
            return Err(Errno::INVAL);
        }
        if !matches!(aname, b"" | b"/") {
            return Err(Errno::NOENT);
        }
        let status = self.root.status()?;
        self.fids.add(fid, self.root.clone(), None)?;
        attributes::put_identity(reply, FileType::Directory, status.st_ino);
        Ok(())
    }

    /// Grants all locks: the guest's kernel resolves conflicts between its processes. Programs of the host do not see
    /// these locks.
    fn lock(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        match *request {
            Request::Lock { fid } => {
                self.fids.get(fid)?;
                reply.put([0]);
            }
            Request::GetLock { fid, start, length, process, client } => {
                self.fids.get(fid)?;
                const UNLOCKED: u8 = 2;
                let reply = reply.put([UNLOCKED]).put(start.to_le_bytes()).put(length.to_le_bytes());
                reply.put(process.to_le_bytes()).text(client);
            }
            _ => {}
        }
        Ok(())
    }

    fn walk(&mut self, fid: u32, newfid: u32, names: &[&[u8]], reply: &mut Reply) -> Result<(), Errno> {
        if newfid == NO_FID {
            return Err(Errno::INVAL);
        }
        let mut handle = self.fids.handle(fid)?.clone();
        let mut identities = Reply::default();
        for (number, name) in names.iter().enumerate() {
            let next = handle.walk(name).and_then(|next| Ok((next.status()?, next)));
            match next {
                Ok((status, next)) => {
                    let kind = FileType::from_raw_mode(status.st_mode);
                    attributes::put_identity(&mut identities, kind, status.st_ino);
                    handle = next;
                }
                Err(error) if number == 0 => return Err(error),
                Err(_) => {
                    // The walk was incomplete: the reply contains the components found, and no fid is created.
                    reply.put((number as u16).to_le_bytes()).put(identities.bytes());
                    return Ok(());
                }
            }
        }
        self.fids.add(newfid, handle, Some(fid).filter(|_| newfid == fid))?;
        reply.put((names.len() as u16).to_le_bytes()).put(identities.bytes());
        Ok(())
    }

    /// The host's flags for those of the guest. Flags without a meaning for a regular file or folder are ignored.
    fn host_flags(&self, flags: u32) -> Result<OFlags, Errno> {
        let mut host = match flags & flag::ACCESS {
            0 => OFlags::RDONLY,
            1 => OFlags::WRONLY,
            2 => OFlags::RDWR,
            _ => return Err(Errno::INVAL),
        };
        if flags & flag::TRUNCATE != 0 {
            host |= OFlags::TRUNC;
        }
        if flags & flag::APPEND != 0 {
            host |= OFlags::APPEND;
        }
        if host != OFlags::RDONLY {
            self.may_write()?;
        }
        Ok(host)
    }

    fn open_file(&mut self, number: u32, flags: u32, reply: &mut Reply) -> Result<(), Errno> {
        let flags = self.host_flags(flags)?;
        let fid = self.fids.get_mut(number)?;
        if fid.opened.is_some() {
            return Err(Errno::BADF);
        }
        let status = fid.handle.status()?;
        let kind = FileType::from_raw_mode(status.st_mode);
        let file = fid.handle.open(flags, &self.descriptors)?;
        fid.opened = Some(match kind {
            FileType::Directory => Opened::Folder(file, Default::default()),
            _ => Opened::File(file),
        });
        attributes::put_identity(reply, kind, status.st_ino);
        // 0: the guest chooses the size of transfers.
        reply.put(0u32.to_le_bytes());
        Ok(())
    }

    fn create(
        &mut self,
        number: u32,
        name: &[u8],
        flags: u32,
        mode: u32,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        self.may_write()?;
        let host = self.host_flags(flags)?;
        let fid = self.fids.get_mut(number)?;
        if fid.opened.is_some() {
            return Err(Errno::BADF);
        }
        let (handle, file) = match fid.handle.create(name, host, mode) {
            Err(Errno::EXIST) if flags & flag::EXCLUSIVE == 0 => {
                let handle = fid.handle.walk(name)?;
                if handle.kind()? == FileType::Directory {
                    return Err(Errno::ISDIR);
                }
                let file = handle.open(host, &self.descriptors)?;
                (handle, file)
            }
            created => created?,
        };
        let inode = handle.status()?.st_ino;
        (fid.handle, fid.opened) = (handle, Some(Opened::File(file)));
        attributes::put_identity(reply, FileType::RegularFile, inode);
        reply.put(0u32.to_le_bytes());
        Ok(())
    }

    fn read(&self, fid: u32, offset: u64, count: u32, room: usize, reply: &mut Reply) -> Result<(), Errno> {
        let file = self.fids.file(fid)?;
        let space = room.checked_sub(HEADER + 4).ok_or(Errno::MSGSIZE)?;
        let mut data = vec![0; space.min(count as usize)];
        i64::try_from(offset).map_err(|_| Errno::INVAL)?;
        let done = read_at(file, &mut data, offset)?;
        reply.put((done as u32).to_le_bytes()).put(&data[..done]);
        Ok(())
    }

    fn write(&self, fid: u32, offset: u64, data: &[u8], reply: &mut Reply) -> Result<(), Errno> {
        self.may_write()?;
        i64::try_from(offset).map_err(|_| Errno::FBIG)?;
        let done = self.fids.file(fid)?.write_at(data, offset).map_err(|error| errno(&error))?;
        reply.put((done as u32).to_le_bytes());
        Ok(())
    }

    fn set_attributes(&self, fid: u32, change: &Change) -> Result<(), Errno> {
        self.may_write()?;
        let handle = self.fids.handle(fid)?;
        let times = attributes::times(change)?;
        if change.valid & (valid::USER | valid::GROUP) != 0 {
            let (user, group) = attributes::owner(&handle.status()?);
            let changes_user = change.valid & valid::USER != 0 && change.user != user;
            if changes_user || change.valid & valid::GROUP != 0 && change.group != group {
                return Err(Errno::PERM);
            }
        }
        if change.valid & valid::MODE != 0 {
            handle.set_permissions(change.mode, &self.descriptors)?;
        }
        if change.valid & valid::LENGTH != 0 {
            handle.set_length(change.length, &self.descriptors)?;
        }
        times.map_or(Ok(()), |times| handle.set_times(&times))
    }

    fn list(
        &mut self,
        fid: u32,
        offset: u64,
        count: u32,
        room: usize,
        reply: &mut Reply,
    ) -> Result<(), Errno> {
        let space = room.checked_sub(HEADER + 4).ok_or(Errno::MSGSIZE)?.min(count as usize);
        let listing = self.fids.listing(fid, offset == 0)?;
        let first = usize::try_from(offset).unwrap_or(usize::MAX).min(listing.entries.len());
        let mut entries = Reply::default();
        for (number, entry) in listing.entries.iter().enumerate().skip(first) {
            const FIXED: usize = 13 + 8 + 1 + 2;
            if entries.len() + FIXED + entry.name.len() > space {
                break;
            }
            let kind = FileType::from_raw_mode(u32::from(entry.kind) << 12);
            attributes::put_identity(&mut entries, kind, entry.inode);
            entries.put((number as u64 + 1).to_le_bytes()).put([entry.kind]).text(&entry.name);
        }
        reply.put((entries.len() as u32).to_le_bytes()).put(entries.bytes());
        Ok(())
    }

    fn synchronize(&self, fid: u32) -> Result<(), Errno> {
        match &self.fids.get(fid)?.opened {
            Some(Opened::File(file) | Opened::Folder(file, _)) => {
                file.sync_all().map_err(|error| errno(&error))
            }
            None => Err(Errno::BADF),
        }
    }

    /// Requests that change the names in a folder.
    fn change_names(&self, request: &Request<'_>, reply: &mut Reply) -> Result<(), Errno> {
        self.may_write()?;
        match *request {
            Request::CreateFolder { fid, name, mode } => {
                let made = self.fids.handle(fid)?.create_folder(name, mode)?.status()?;
                attributes::put_identity(reply, FileType::Directory, made.st_ino);
                Ok(())
            }
            Request::Rename { fid, name, newfid, new_name } => {
                self.fids.handle(fid)?.rename(name, self.fids.handle(newfid)?, new_name)
            }
            Request::Unlink { fid, name, flags } => {
                self.fids.handle(fid)?.remove(name, flags & REMOVE_FOLDER != 0)
            }
            _ => Err(Errno::OPNOTSUPP),
        }
    }
}

/// Reads up to the end of `data` or of the file.
fn read_at(file: &File, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < data.len() {
        match file.read_at(&mut data[done..], offset.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if done == 0 => return Err(errno(&error)),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// The host's error number.
fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
