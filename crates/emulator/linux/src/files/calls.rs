//! System calls on files by name. Calls on descriptors are forwarded to the host. Source: open(2), openat2(2), the *at
//! calls of man-pages section 2, xattr(7).

use std::ffi::OsStr;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use longma_guest::Errno;
use longma_guest::host::descriptors;
use longma_guest::host::host_call;

use super::access_policy::{self, Changeable, into_guest_descriptor};
use super::resolved_path::{absolute, library_path};
use super::{Follow, ProcFile, ResolvedPath, guest_path};
use crate::arguments::{Arguments, OnWriteFault, Returned, buffer, with_results};
use crate::devices::CHILD_OPENS;
use crate::root::{OpenHow, PathInRoot, c_path, is_in_control_fs, name_at, open_how};
use crate::simulated::waits::{BlockingCondition, interruptible};
use crate::{DeviceFile, Process, Thread};

const AT_FDCWD: u64 = libc::AT_FDCWD as u64;
const O_PATH: u64 = libc::O_PATH as u64;
const O_CREAT: u64 = libc::O_CREAT as u64;
/// The flags that openat(2) defines. It ignores other bits, whereas openat2(2) refuses them.
const KNOWN_OPEN_FLAGS: u64 = 0o37_777_703;
/// The flags that openat2(2) permits with O_PATH; openat(2) ignores the others.
const KNOWN_PATH_FLAGS: u64 = O_PATH | (libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC) as u64;
/// __O_TMPFILE without O_DIRECTORY.
const O_TMPFILE: u64 = 0o20_000_000;

pub(crate) fn openat(thread: &mut Thread, [directory, path, flags, mode, ..]: Arguments) -> Returned {
    let path = guest_path(&thread.process, path)?;
    let mut flags = u64::from(flags as u32) & KNOWN_OPEN_FLAGS;
    if flags & O_PATH != 0 {
        flags &= KNOWN_PATH_FLAGS;
    }
    let creates = flags & (O_CREAT | O_TMPFILE) != 0;
    let mode = if creates { mode & 0o7777 } else { 0 };
    open(&thread.process, directory, &path, OpenHow { flags, mode, resolve: 0 })
}

pub(crate) fn openat2(thread: &mut Thread, [directory, path, how, size, ..]: Arguments) -> Returned {
    const HOW_BYTES: u64 = size_of::<OpenHow>() as u64;
    let memory = thread.process.memory();
    if size < HOW_BYTES {
        return Err(Errno(libc::EINVAL));
    }
    if size > HOW_BYTES {
        // A later version of the structure is valid if the unknown fields are zero.
        let mut rest = vec![0; (size - HOW_BYTES).min(4096) as usize];
        memory.read(how.wrapping_add(HOW_BYTES), &mut rest)?;
        if size > 4096 || rest.iter().any(|&byte| byte != 0) {
            return Err(Errno(libc::E2BIG));
        }
    }
    let how = OpenHow {
        flags: memory.load(how)?,
        mode: memory.load(how.wrapping_add(8))?,
        resolve: memory.load(how.wrapping_add(16))?,
    };
    let path = guest_path(&thread.process, path)?;
    if how.resolve != 0 && thread.process.root.is_confined() {
        // The guest's own restrictions are relative to its directory, not to its root. Supporting both would need a
        // manual path walk.
        let resolve = if how.resolve & 0x18 == 0 { how.resolve | 0x08 } else { how.resolve };
        let process = &thread.process;
        let base = process.root.open_pinned(&absolute(process, directory as RawFd, b".")?, 0)?;
        let (directory, path) = (base.number(), &c_path(&path)?);
        let inside = PathInRoot { directory, path, resolve, base_is_in_control_fs: is_in_control_fs(&base) };
        return into_guest_descriptor(inside.open(how));
    }
    open(&thread.process, directory, &path, how)
}

fn open(process: &Process, directory: u64, path: &[u8], how: OpenHow) -> Returned {
    if let Some(file) = ProcFile::find(process, directory as RawFd, path) {
        return into_guest_descriptor(file.open(process, how.flags as i32));
    }
    if let Some(file) = DeviceFile::find(&process.config.devices, path) {
        return into_guest_descriptor(open_device(process, file, how.flags as i32));
    }
    if process.root.is_confined() && !path.is_empty() {
        if let Some(descriptor) = access_policy::descriptor_named(path) {
            return into_guest_descriptor(access_policy::reopen(process, descriptor, how));
        }
        if let Some(opened) = access_policy::open_shared(path, how) {
            return into_guest_descriptor(opened);
        }
        if !access_policy::is_descriptor_folder(path) {
            let path = absolute(process, directory as RawFd, path)?;
            let opened = match process.root.open(&path, how) {
                Err(Errno(libc::ENOENT))
                    if how.flags & O_CREAT != 0 && process.root.create_shm_folder_for(&path) =>
                {
                    process.root.open(&path, how)
                }
                opened => opened,
            };
            return into_guest_descriptor(opened);
        }
    }
    let reads = how.flags as i32 & libc::O_ACCMODE == libc::O_RDONLY && how.flags & O_CREAT == 0;
    let path =
        if reads && !process.root.is_confined() { library_path(process, path)? } else { c_path(path)? };
    let opened = if how.resolve != 0 {
        open_how(directory as RawFd, &path, &how)?
    } else {
        let arguments = [directory, path.as_ptr() as u64, how.flags, how.mode, 0, 0];
        // Opening a FIFO or a terminal may block. SAFETY: the path is live.
        let opened = unsafe { interruptible(libc::SYS_openat, BlockingCondition::FifoPeer, arguments) }?;
        // SAFETY: the host has just created the descriptor for this call.
        unsafe { OwnedFd::from_raw_fd(opened as RawFd) }
    };
    // A /proc file about this process must show the guest, regardless of the path used.
    match ProcFile::of_open_file(process, &opened) {
        Some(file) => {
            drop(opened);
            into_guest_descriptor(file.open(process, how.flags as i32))
        }
        None => Ok(opened.into_raw_fd() as u64),
    }
}

/// Opens a device file. A forked child is refused, because devices access the memory of the process that was started
/// with them. The uacce and idxd drivers, which also take virtual addresses, likewise bind a file to one address space.
fn open_device(process: &Process, file: &DeviceFile, flags: i32) -> Result<OwnedFd, Errno> {
    if process.simulation().is_none() {
        process.report_once(CHILD_OPENS);
        return Err(Errno(libc::EBUSY));
    }
    file.open(flags)
}

pub(crate) fn pidfd_getfd(thread: &mut Thread, [process, descriptor, flags, ..]: Arguments) -> Returned {
    if descriptors::is_reserved(descriptor) {
        // The descriptor number belongs to the emulator in another guest process too.
        return Err(Errno(libc::EBADF));
    }
    if thread.process.root.is_confined() {
        // Files of another process may be outside the root.
        return Err(Errno(libc::EPERM));
    }
    // SAFETY: a new descriptor affects no other code.
    unsafe { host_call(libc::SYS_pidfd_getfd, [process, descriptor, flags, 0, 0, 0]) }
}

pub(crate) fn readlinkat(thread: &mut Thread, [directory, path, result, size, ..]: Arguments) -> Returned {
    let process = &thread.process;
    if (size as i32) <= 0 {
        return Err(Errno(libc::EINVAL));
    }
    let text = guest_path(process, path)?;
    let guest_target = match ProcFile::find(process, directory as RawFd, &text) {
        Some(ProcFile::Executable) => Some(process.guest_executable().into_os_string().into_vec()),
        _ if matches!(&text[..], b"/proc/self/cwd" | b"/proc/thread-self/cwd")
            && process.fixed_identity.is_some() =>
        {
            Some(working_directory(process)?)
        }
        _ if process.root.is_confined() => confined_link(process, &text)?,
        _ => constant_target(process, directory as i32, &text)?,
    };
    if let Some(target) = guest_target {
        let truncated = &target[..target.len().min(size as usize)];
        process.memory().write(result, truncated)?;
        return Ok(truncated.len() as u64);
    }
    let resolved = ResolvedPath::of(process, directory as i32, &text, Follow::No)?;
    with_results(process.memory(), |results| {
        let result = results.buffer(OnWriteFault::Remains, result, size)?;
        // SAFETY: the path is live, and the buffer is in the reservation or `results`.
        unsafe {
            host_call(libc::SYS_readlinkat, [resolved.directory(), resolved.path(), result, size, 0, 0])
        }
    })
}

/// The target of a symbolic link as a guest with constant names sees it; `None` without such names.
fn constant_target(process: &Process, directory: RawFd, path: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
    let Some(names) = &process.fixed_identity else { return Ok(None) };
    let link = ResolvedPath::of(process, directory, path, Follow::No)?;
    let mut target = vec![0u8; libc::PATH_MAX as usize];
    let arguments = [link.directory(), link.path(), target.as_mut_ptr() as u64, target.len() as u64, 0, 0];
    // SAFETY: the path and the buffer are live.
    let length = unsafe { host_call(libc::SYS_readlinkat, arguments) }?;
    target.truncate(length as usize);
    let is_absolute = target.starts_with(b"/");
    Ok(Some(if is_absolute {
        names.of_file(Path::new(OsStr::from_bytes(&target))).into_os_string().into_vec()
    } else {
        target
    }))
}

/// The target of a /proc link as a confined guest sees it.
fn confined_link(process: &Process, path: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
    Ok(match path {
        b"/proc/self/cwd" => Some(process.root.working_directory()?),
        b"/proc/self/root" => Some(b"/".to_vec()),
        _ => match access_policy::descriptor_named(path) {
            None => None,
            Some(descriptor) if descriptors::is_reserved(descriptor as u64) => {
                return Err(Errno(libc::ENOENT));
            }
            Some(descriptor) => {
                let link = name_at(descriptor).map_err(|_| Errno(libc::ENOENT))?;
                let outside = link.starts_with(b"/") && !link.starts_with(b"/dev/");
                let inside = process.root.guest_name(&link);
                Some(if outside { inside.unwrap_or_else(|| b"(outside)".to_vec()) } else { link })
            }
        },
    })
}

/// Makes a host call whose first two arguments are the directory and the path of `resolved`.
fn call_at(number: i64, resolved: &ResolvedPath, rest: [u64; 4]) -> Returned {
    let [c, d, e, f] = rest;
    // SAFETY: the path is live; callers pass numbers or checked pointers.
    unsafe { host_call(number, [resolved.directory(), resolved.path(), c, d, e, f]) }
}

pub(crate) fn unlinkat(thread: &mut Thread, [directory, path, flags, ..]: Arguments) -> Returned {
    call_at(libc::SYS_unlinkat, &ResolvedPath::find_name(thread, directory, path)?, [flags, 0, 0, 0])
}

pub(crate) fn mkdirat(thread: &mut Thread, [directory, path, mode, ..]: Arguments) -> Returned {
    call_at(libc::SYS_mkdirat, &ResolvedPath::find_name(thread, directory, path)?, [mode, 0, 0, 0])
}

pub(crate) fn mknodat(thread: &mut Thread, [directory, path, mode, device, ..]: Arguments) -> Returned {
    let kind = mode as u32 & libc::S_IFMT;
    if (kind == libc::S_IFBLK || kind == libc::S_IFCHR) && thread.process.root.is_confined() {
        // A device node would give access beyond the root.
        return Err(Errno(libc::EPERM));
    }
    call_at(libc::SYS_mknodat, &ResolvedPath::find_name(thread, directory, path)?, [mode, device, 0, 0])
}

pub(crate) fn symlinkat(thread: &mut Thread, [target, directory, path, ..]: Arguments) -> Returned {
    let target = c_path(&guest_path(&thread.process, target)?)?;
    let resolved = ResolvedPath::find_name(thread, directory, path)?;
    // SAFETY: both strings are live.
    unsafe {
        host_call(
            libc::SYS_symlinkat,
            [target.as_ptr() as u64, resolved.directory(), resolved.path(), 0, 0, 0],
        )
    }
}

pub(crate) fn linkat(
    thread: &mut Thread,
    [from_directory, from, to_directory, to, flags, _]: Arguments,
) -> Returned {
    let follow = if flags & libc::AT_SYMLINK_FOLLOW as u64 != 0 { Follow::Yes } else { Follow::No };
    // A hard link inside the root would make a host file the guest's own.
    let from = ResolvedPath::find_to_change(thread, from_directory, from, follow)?;
    let to = ResolvedPath::find_name(thread, to_directory, to)?;
    // SAFETY: both paths are live.
    unsafe {
        let arguments = [from.directory(), from.path(), to.directory(), to.path(), flags, 0];
        host_call(libc::SYS_linkat, arguments)
    }
}

pub(crate) fn renameat2(
    thread: &mut Thread,
    [from_directory, from, to_directory, to, flags, _]: Arguments,
) -> Returned {
    let from = ResolvedPath::find_name(thread, from_directory, from)?;
    let to = ResolvedPath::find_name(thread, to_directory, to)?;
    // SAFETY: both paths are live.
    unsafe {
        let arguments = [from.directory(), from.path(), to.directory(), to.path(), flags, 0];
        host_call(libc::SYS_renameat2, arguments)
    }
}

pub(crate) fn faccessat(thread: &mut Thread, [directory, path, mode, ..]: Arguments) -> Returned {
    call_at(libc::SYS_faccessat, &ResolvedPath::find(thread, directory, path, Follow::Yes)?, [mode, 0, 0, 0])
}

pub(crate) fn faccessat2(thread: &mut Thread, [directory, path, mode, flags, ..]: Arguments) -> Returned {
    call_at(
        libc::SYS_faccessat2,
        &ResolvedPath::find(thread, directory, path, Follow::by_flags(flags))?,
        [mode, flags, 0, 0],
    )
}

pub(crate) fn fchmodat(thread: &mut Thread, [directory, path, mode, ..]: Arguments) -> Returned {
    call_at(
        libc::SYS_fchmodat,
        &ResolvedPath::find_to_change(thread, directory, path, Follow::Yes)?,
        [mode, 0, 0, 0],
    )
}

pub(crate) fn fchmodat2(thread: &mut Thread, [directory, path, mode, flags, ..]: Arguments) -> Returned {
    call_at(
        libc::SYS_fchmodat2,
        &ResolvedPath::find_to_change(thread, directory, path, Follow::by_flags(flags))?,
        [mode, flags, 0, 0],
    )
}

pub(crate) fn fchownat(thread: &mut Thread, [directory, path, user, group, flags, _]: Arguments) -> Returned {
    call_at(
        libc::SYS_fchownat,
        &ResolvedPath::find_to_change(thread, directory, path, Follow::by_flags(flags))?,
        [user, group, flags, 0],
    )
}

pub(crate) fn utimensat(thread: &mut Thread, [directory, path, times, flags, ..]: Arguments) -> Returned {
    let times = buffer(thread.process.memory(), times, 32)?;
    if path == 0 {
        // Only a null path refers to the descriptor itself.
        if directory as RawFd == libc::AT_FDCWD {
            return Err(Errno(libc::EFAULT));
        }
        let file = Changeable::of(&thread.process, directory)?;
        // SAFETY: the times are in the reservation.
        return unsafe { host_call(libc::SYS_utimensat, [file.descriptor(), 0, times, flags, 0, 0]) };
    }
    call_at(
        libc::SYS_utimensat,
        &ResolvedPath::find_to_change(thread, directory, path, Follow::by_flags(flags))?,
        [times, flags, 0, 0],
    )
}

/// Makes a host call that reads the file at a path. `rest` are the arguments after the path.
fn read_path(thread: &Thread, number: i64, path: u64, follow: Follow, rest: [u64; 4]) -> Returned {
    on_joined_path(number, ResolvedPath::find(thread, AT_FDCWD, path, follow)?, rest)
}

/// Makes a host call that changes the file at a path. `rest` are the arguments after the path.
fn change(thread: &Thread, number: i64, path: u64, follow: Follow, rest: [u64; 4]) -> Returned {
    on_joined_path(number, ResolvedPath::find_to_change(thread, AT_FDCWD, path, follow)?, rest)
}

fn on_joined_path(number: i64, resolved: ResolvedPath, rest: [u64; 4]) -> Returned {
    let resolved = resolved.joined()?;
    let [b, c, d, e] = rest;
    // SAFETY: the path is live; callers pass numbers or checked pointers.
    unsafe { host_call(number, [resolved.path(), b, c, d, e, 0]) }
}

pub(crate) fn truncate(thread: &mut Thread, [path, length, ..]: Arguments) -> Returned {
    let result = change(thread, libc::SYS_truncate, path, Follow::Yes, [length, 0, 0, 0])?;
    // SAFETY: `libc::stat` is plain data.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    let stat_arguments = [&raw mut status as u64, 0, 0, 0];
    if read_path(thread, libc::SYS_stat, path, Follow::Yes, stat_arguments).is_ok() {
        thread.process.space.inode_truncated(status.st_dev, status.st_ino);
    }
    Ok(result)
}

pub(crate) fn chdir(thread: &mut Thread, [path, ..]: Arguments) -> Returned {
    read_path(thread, libc::SYS_chdir, path, Follow::Yes, [0; 4])
}

/// The guest's name of its working directory.
fn working_directory(process: &Process) -> Result<Vec<u8>, Errno> {
    let path = process.root.working_directory()?;
    Ok(match &process.fixed_identity {
        Some(names) => {
            names.of_working_directory(Path::new(OsStr::from_bytes(&path))).into_os_string().into_vec()
        }
        None => path,
    })
}

pub(crate) fn getcwd(thread: &mut Thread, [result, size, ..]: Arguments) -> Returned {
    let memory = thread.process.memory();
    let process = &thread.process;
    if !process.root.is_confined() && process.fixed_identity.is_none() {
        return with_results(memory, |results| {
            let result = results.buffer(OnWriteFault::Remains, result, size)?;
            // SAFETY: the buffer is in the reservation or `results`.
            unsafe { host_call(libc::SYS_getcwd, [result, size, 0, 0, 0, 0]) }
        });
    }
    let mut path = working_directory(process)?;
    path.push(0);
    if (size as usize) < path.len() {
        return Err(Errno(libc::ERANGE));
    }
    memory.write(result, &path)?;
    Ok(path.len() as u64)
}

pub(crate) fn inotify_add_watch(thread: &mut Thread, [descriptor, path, mask, ..]: Arguments) -> Returned {
    let follow = if mask as u32 & libc::IN_DONT_FOLLOW != 0 { Follow::No } else { Follow::Yes };
    let resolved = ResolvedPath::find(thread, AT_FDCWD, path, follow)?.joined()?;
    // SAFETY: the path is live.
    unsafe { host_call(libc::SYS_inotify_add_watch, [descriptor, resolved.path(), mask, 0, 0, 0]) }
}

pub(crate) fn set_attribute(thread: &Thread, number: i64, follow: Follow, arguments: Arguments) -> Returned {
    let [path, name, value, size, flags, _] = arguments;
    let memory = thread.process.memory();
    let (name, value) = (buffer(memory, name, 1)?, buffer(memory, value, size)?);
    change(thread, number, path, follow, [name, value, size, flags])
}

pub(crate) fn get_attribute(thread: &Thread, number: i64, follow: Follow, arguments: Arguments) -> Returned {
    let [path, name, value, size, ..] = arguments;
    let memory = thread.process.memory();
    let name = buffer(memory, name, 1)?;
    with_results(memory, |results| {
        let value = results.buffer(OnWriteFault::Remains, value, size)?;
        read_path(thread, number, path, follow, [name, value, size, 0])
    })
}

pub(crate) fn list_attributes(
    thread: &Thread,
    number: i64,
    follow: Follow,
    arguments: Arguments,
) -> Returned {
    let [path, list, size, ..] = arguments;
    with_results(thread.process.memory(), |results| {
        let list = results.buffer(OnWriteFault::Remains, list, size)?;
        read_path(thread, number, path, follow, [list, size, 0, 0])
    })
}

pub(crate) fn remove_attribute(
    thread: &Thread,
    number: i64,
    follow: Follow,
    arguments: Arguments,
) -> Returned {
    let [path, name, ..] = arguments;
    let name = buffer(thread.process.memory(), name, 1)?;
    change(thread, number, path, follow, [name, 0, 0, 0])
}

/// Makes a host call that changes the file of a descriptor; refuses O_PATH descriptors. `rest` are the arguments after
/// the descriptor.
fn change_open(thread: &Thread, number: i64, descriptor: u64, rest: [u64; 4]) -> Returned {
    let file = Changeable::of(&thread.process, descriptor)?;
    let [b, c, d, e] = rest;
    // SAFETY: callers pass numbers or checked pointers.
    unsafe { host_call(number, [file.descriptor(), b, c, d, e, 0]) }
}

pub(crate) fn fchmod(thread: &mut Thread, [descriptor, mode, ..]: Arguments) -> Returned {
    change_open(thread, libc::SYS_fchmod, descriptor, [mode, 0, 0, 0])
}

pub(crate) fn fchown(thread: &mut Thread, [descriptor, user, group, ..]: Arguments) -> Returned {
    change_open(thread, libc::SYS_fchown, descriptor, [user, group, 0, 0])
}

pub(crate) fn fsetxattr(thread: &mut Thread, arguments: Arguments) -> Returned {
    let [descriptor, name, value, size, flags, _] = arguments;
    let memory = thread.process.memory();
    let (name, value) = (buffer(memory, name, 1)?, buffer(memory, value, size)?);
    change_open(thread, libc::SYS_fsetxattr, descriptor, [name, value, size, flags])
}

pub(crate) fn fremovexattr(thread: &mut Thread, [descriptor, name, ..]: Arguments) -> Returned {
    let name = buffer(thread.process.memory(), name, 1)?;
    change_open(thread, libc::SYS_fremovexattr, descriptor, [name, 0, 0, 0])
}
