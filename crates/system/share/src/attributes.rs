//! Converts file attributes from the host to the guest. Host users have no counterparts in the guest: it sees files of
//! the user who runs the machine as owned by root, and all other files as owned by an unprivileged user (65534).

use rustix::fs::{FileType, Stat, StatVfs, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use crate::request::Change;
use crate::wire::Reply;

/// Bits of [`Change::valid`]. Source: Linux, include/net/9p/9p.h (P9_ATTR).
pub mod valid {
    pub const MODE: u32 = 1;
    pub const USER: u32 = 2;
    pub const GROUP: u32 = 4;
    pub const LENGTH: u32 = 8;
    pub const ACCESSED: u32 = 0x10;
    pub const MODIFIED: u32 = 0x20;
    pub const ACCESSED_IS_GIVEN: u32 = 0x80;
    pub const MODIFIED_IS_GIVEN: u32 = 0x100;
}

/// The fields of a status that are valid: all but the time of creation, the generation and the version.
const BASIC: u64 = 0x7ff;
/// The guest's user and group for files of others.
const NOBODY: u32 = 65534;
/// The type of the file system. Source: Linux, include/uapi/linux/magic.h (V9FS_MAGIC).
const FILE_SYSTEM: u32 = 0x0102_1997;
/// Bits of the mode that the guest sees: the kind and permissions.
const MODE: u32 = 0o170_777;

/// Appends the identity of a file: kind, version and inode number.
pub fn put_identity(reply: &mut Reply, kind: FileType, inode: u64) {
    let bits = match kind {
        FileType::Directory => 0x80u8,
        FileType::Symlink => 0x02,
        _ => 0,
    };
    reply.put([bits]).put(0u32.to_le_bytes()).put(inode.to_le_bytes());
}

/// The guest's user and group of a file.
pub fn owner(status: &Stat) -> (u32, u32) {
    let user = if status.st_uid == geteuid().as_raw() { 0 } else { NOBODY };
    (user, if status.st_gid == getegid().as_raw() { 0 } else { NOBODY })
}

/// Appends the status of a file.
pub fn put_status(reply: &mut Reply, status: &Stat) {
    reply.put(BASIC.to_le_bytes());
    put_identity(reply, FileType::from_raw_mode(status.st_mode), status.st_ino);
    let (user, group) = owner(status);
    for field in [status.st_mode & MODE, user, group] {
        reply.put(field.to_le_bytes());
    }
    // Device numbers of the host have no meaning in the guest.
    let device = 0;
    let sizes =
        [status.st_nlink, device, status.st_size as u64, status.st_blksize as u64, status.st_blocks as u64];
    let times = [
        (status.st_atime as u64, status.st_atime_nsec),
        (status.st_mtime as u64, status.st_mtime_nsec),
        (status.st_ctime as u64, status.st_ctime_nsec),
        (0, 0),
    ];
    let times = times.into_iter().flat_map(|(seconds, nanoseconds)| [seconds, nanoseconds]);
    // The generation and the version follow.
    for field in sizes.into_iter().chain(times).chain([0, 0]) {
        reply.put(field.to_le_bytes());
    }
}

/// Appends the status of a file system.
pub fn put_file_system(reply: &mut Reply, status: &StatVfs) {
    let block = u32::try_from(status.f_bsize).unwrap_or(4096);
    reply.put(FILE_SYSTEM.to_le_bytes()).put(block.to_le_bytes());
    // The block count is in fragments.
    let scale =
        |count: u64| (u128::from(count) * u128::from(status.f_frsize) / u128::from(block.max(1))) as u64;
    let blocks = [scale(status.f_blocks), scale(status.f_bfree), scale(status.f_bavail)];
    for field in blocks.into_iter().chain([status.f_files, status.f_ffree, 0]) {
        reply.put(field.to_le_bytes());
    }
    reply.put(255u32.to_le_bytes());
}

/// The times to set; `None` if there are none.
///
/// # Errors
/// EINVAL: a time does not exist.
pub fn times(change: &Change) -> Result<Option<Timestamps>, Errno> {
    if change.valid & (valid::ACCESSED | valid::MODIFIED) == 0 {
        return Ok(None);
    }
    let time = |set: u32, is_given: u32, (seconds, nanoseconds): (u64, u64)| {
        let special = |tv_nsec| Ok(Timespec { tv_sec: 0, tv_nsec });
        if change.valid & set == 0 {
            return special(UTIME_OMIT);
        }
        if change.valid & is_given == 0 {
            return special(UTIME_NOW);
        }
        let tv_nsec = i64::try_from(nanoseconds).ok().filter(|it| *it < 1_000_000_000).ok_or(Errno::INVAL)?;
        Ok(Timespec { tv_sec: seconds as i64, tv_nsec })
    };
    Ok(Some(Timestamps {
        last_access: time(valid::ACCESSED, valid::ACCESSED_IS_GIVEN, change.accessed)?,
        last_modification: time(valid::MODIFIED, valid::MODIFIED_IS_GIVEN, change.modified)?,
    }))
}
