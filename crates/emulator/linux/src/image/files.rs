//! Open files as plain data: regular files, directories, simple devices, pipes within the process, eventfd, epoll.
//! Sockets, terminals other than the standard ones, timerfd, signalfd and inotify are not supported. Source:
//! proc_pid_fd(5), proc_pid_fdinfo(5), kcmp(2), tee(2), pipe(7).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::CString;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use longma_guest::Errno;
use longma_guest::host::descriptors;
use serde::{Deserialize, Serialize};

use super::ImageError;
use crate::DeviceFile;
use crate::open_files::{self, fact, is_same_open_file, status_of};

const KCMP_EPOLL_TFD: u64 = 7;
/// Source: Linux include/uapi/asm-generic/fcntl.h.
const F_GETOWN_EX: i32 = 16;
/// Devices that exist on all hosts.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// The kind of an open file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// An inherited standard descriptor (0, 1 or 2). The restoring process provides another one.
    Standard(i32),
    /// An inherited pipe. The restoring process may provide one with the same descriptor.
    Outside,
    /// A file or directory, by its path on the host, and the file offset.
    Path(Vec<u8>, u64),
    /// An end of a pipe: the pipe's number, and whether it is the write end.
    Pipe(u64, bool),
    /// A duplicate of this lower descriptor.
    Duplicate(i32),
    /// An eventfd: its counter, and whether it is a semaphore.
    Event(u64, bool),
    /// An epoll set: descriptors, events and data.
    Epoll(Vec<(i32, u32, u64)>),
}

/// An open file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileImage {
    /// The descriptor.
    pub descriptor: i32,
    /// The kind of file.
    pub kind: FileKind,
    /// The flags with which it was opened, with changes since (O_APPEND, O_NONBLOCK).
    pub flags: i32,
    /// FD_CLOEXEC.
    pub close_on_exec: bool,
    /// The contents of a pipe, stored with one of its ends.
    pub contents: Vec<u8>,
    /// The capacity of a pipe in bytes; 0 for other files.
    pub room: i32,
}

fn control(descriptor: RawFd, command: i32, value: i32) -> Result<i32, ImageError> {
    // SAFETY: these commands take no pointers.
    let returned = unsafe { libc::fcntl(descriptor, command, value) };
    if returned < 0 { Err(last("inspect an open file")) } else { Ok(returned) }
}

fn last(action: &str) -> ImageError {
    ImageError::host(action, std::io::Error::last_os_error())
}

/// Captures all open files of the guest. `emulator_descriptors` holds the emulator's descriptors, `standard` the
/// identities of the initial standard files. Device files look like eventfds but are refused.
pub(super) fn capture(
    emulator_descriptors: &[RawFd],
    standard: &[Option<(u64, u64)>; 3],
    devices: &[DeviceFile],
    inherited: &[(u64, u64)],
) -> Result<Vec<FileImage>, ImageError> {
    let mut images: Vec<FileImage> = Vec::new();
    let open = open_files::all().map_err(|error| ImageError::host("list open files", error))?;
    let of_guest =
        |descriptor: &RawFd| *descriptor < descriptors::first() && !emulator_descriptors.contains(descriptor);
    for descriptor in open.into_iter().filter(of_guest) {
        if let Some(device) = DeviceFile::of_descriptor(devices, descriptor) {
            return Err(ImageError::Device {
                name: device.path(),
                use_of: format!("open as descriptor {descriptor}"),
            });
        }
        let flags = control(descriptor, libc::F_GETFL, 0)?;
        let close_on_exec = control(descriptor, libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0;
        let twin = images.iter().find(|image| {
            !matches!(image.kind, FileKind::Duplicate(_)) && is_same_open_file(image.descriptor, descriptor)
        });
        let kind = match twin {
            Some(twin) => FileKind::Duplicate(twin.descriptor),
            None => kind_of(descriptor, standard, inherited)?,
        };
        check_capturable(descriptor, &kind, flags)?;
        let mut image = FileImage { descriptor, kind, flags, close_on_exec, contents: Vec::new(), room: 0 };
        if let FileKind::Pipe(_, is_write) = image.kind {
            image.room = control(descriptor, libc::F_GETPIPE_SZ, 0)?;
            image.contents = if is_write { Vec::new() } else { pipe_contents(descriptor)? };
        }
        images.push(image);
    }
    Ok(images)
}

/// Refuses file state that an image does not contain.
fn check_capturable(descriptor: RawFd, kind: &FileKind, flags: i32) -> Result<(), ImageError> {
    let unsupported = |what: &str| Err(ImageError::File { descriptor, what: what.into() });
    let facts =
        open_files::facts(descriptor).map_err(|error| ImageError::host("inspect an open file", error))?;
    if facts.lines().any(|line| line.starts_with("lock:")) {
        return unsupported("a locked or leased file");
    }
    // Inherited files were set up by another process.
    if matches!(kind, FileKind::Standard(_) | FileKind::Outside) {
        return Ok(());
    }
    let mut owner = [0i32; 2];
    // SAFETY: F_GETOWN_EX writes a type and an id.
    let result = unsafe { libc::fcntl(descriptor, F_GETOWN_EX, owner.as_mut_ptr()) };
    if flags & libc::O_ASYNC != 0 || result == 0 && owner[1] != 0 {
        return unsupported("a file that sends signals");
    }
    if matches!(kind, FileKind::Pipe(..)) && flags & libc::O_DIRECT != 0 {
        return unsupported("a packet-mode pipe");
    }
    if let FileKind::Epoll(entries) = kind {
        let mut watched_files: Vec<_> = entries.iter().map(|entry| entry.0).collect();
        watched_files.sort_unstable();
        let has_duplicate = watched_files.windows(2).any(|pair| pair[0] == pair[1]);
        if has_duplicate || watched_files.iter().any(|file| !watches(descriptor, *file)) {
            return unsupported("an epoll set that watches a file whose descriptor is closed");
        }
    }
    Ok(())
}

/// Whether the file that an epoll set watches as `file` is still open under that descriptor.
fn watches(set: RawFd, file: RawFd) -> bool {
    // `struct kcmp_epoll_slot`: the set, the descriptor, and an index among entries for that descriptor.
    let slot = [set as u32, file as u32, 0];
    // SAFETY: the structure is live; the call compares two files of this process.
    unsafe {
        let own_id = libc::getpid();
        libc::syscall(libc::SYS_kcmp, own_id, own_id, KCMP_EPOLL_TFD, file as u64, slot.as_ptr()) == 0
    }
}

fn kind_of(
    descriptor: RawFd,
    standard: &[Option<(u64, u64)>; 3],
    inherited: &[(u64, u64)],
) -> Result<FileKind, ImageError> {
    let status = status_of(descriptor).ok_or_else(|| last("inspect an open file"))?;
    let identity = Some((status.st_dev, status.st_ino));
    let path = fs::read_link(format!("/proc/self/fd/{descriptor}"))
        .map_err(|error| ImageError::host("inspect an open file", error))?;
    // The guest may have opened the file of a standard descriptor again, with a separate offset and mode.
    let is_the_guests = descriptor > 2 && can_reopen(&status, &path);
    if let Some(number) =
        standard.iter().position(|standard_file| *standard_file == identity && !is_the_guests)
    {
        let number = if (0..3).contains(&descriptor) && standard[descriptor as usize] == identity {
            descriptor
        } else {
            number as i32
        };
        return Ok(FileKind::Standard(number));
    }
    let kernel_name = path.to_string_lossy().into_owned();
    let unsupported = |what: String| ImageError::File { descriptor, what };
    match status.st_mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFDIR => {
            if !can_reopen(&status, &path) {
                return Err(unsupported(format!("a file without a name ({kernel_name})")));
            }
            // SAFETY: the call takes no pointers.
            let offset = unsafe { libc::lseek(descriptor, 0, libc::SEEK_CUR) };
            Ok(FileKind::Path(path.into_os_string().into_vec(), offset.max(0) as u64))
        }
        libc::S_IFCHR if DEVICES.contains(&kernel_name.as_str()) => {
            Ok(FileKind::Path(path.into_os_string().into_vec(), 0))
        }
        libc::S_IFIFO if identity.is_some_and(|pipe| inherited.contains(&pipe)) => Ok(FileKind::Outside),
        libc::S_IFIFO if kernel_name.starts_with("pipe:") => {
            let mode = control(descriptor, libc::F_GETFL, 0)? & libc::O_ACCMODE;
            Ok(FileKind::Pipe(status.st_ino, mode == libc::O_WRONLY))
        }
        libc::S_IFIFO => Err(unsupported(format!("a named pipe ({kernel_name})"))),
        libc::S_IFSOCK => Err(unsupported("a socket".into())),
        libc::S_IFCHR => Err(unsupported(format!("a device ({kernel_name})"))),
        _ => anonymous(descriptor, &kernel_name).ok_or_else(|| unsupported(kernel_name)),
    }
}

/// Whether `path` refers to the open regular file, directory or simple device.
fn can_reopen(status: &libc::stat, path: &Path) -> bool {
    match status.st_mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFDIR => {
            let named = fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()));
            status.st_nlink > 0 && named.ok() == Some((status.st_dev, status.st_ino))
        }
        libc::S_IFCHR => path.to_str().is_some_and(|path| DEVICES.contains(&path)),
        _ => false,
    }
}

/// The kind of a file that is in no file system, from the kernel's description.
fn anonymous(descriptor: RawFd, kernel_name: &str) -> Option<FileKind> {
    let facts = open_files::facts(descriptor).ok()?;
    match kernel_name {
        "anon_inode:[eventfd]" => {
            let count = u64::from_str_radix(fact(&facts, "eventfd-count")?, 16).ok()?;
            let semaphore = fact(&facts, "eventfd-semaphore").is_some_and(|text| text != "0");
            Some(FileKind::Event(count, semaphore))
        }
        "anon_inode:[eventpoll]" => {
            let lines = facts.lines().filter(|line| line.starts_with("tfd:"));
            lines.map(epoll_entry).collect::<Option<_>>().map(FileKind::Epoll)
        }
        _ => None,
    }
}

/// Parses `tfd: 5 events: 19 data: 5 ...`. The last two numbers are hexadecimal.
fn epoll_entry(line: &str) -> Option<(i32, u32, u64)> {
    let mut words = line.split_whitespace();
    let mut value_after = |name: &str| (words.next()? == name).then(|| words.next()).flatten();
    let descriptor = value_after("tfd:")?.parse().ok()?;
    let events = u32::from_str_radix(value_after("events:")?, 16).ok()?;
    Some((descriptor, events, u64::from_str_radix(value_after("data:")?, 16).ok()?))
}

/// The contents of a pipe, without removing them.
fn pipe_contents(descriptor: RawFd) -> Result<Vec<u8>, ImageError> {
    let mut waiting = 0i32;
    // SAFETY: FIONREAD writes one integer.
    if unsafe { libc::ioctl(descriptor, libc::FIONREAD, &raw mut waiting) } != 0 {
        return Err(last("read the contents of a pipe"));
    }
    let mut contents = vec![0; waiting.max(0) as usize];
    if contents.is_empty() {
        return Ok(contents);
    }
    let (copy, into) = new_pipe()?;
    let capacity = control(descriptor, libc::F_GETPIPE_SZ, 0)?;
    control(into.as_raw_fd(), libc::F_SETPIPE_SZ, capacity)?;
    // SAFETY: the call takes no pointers; tee does not remove data.
    let copied = unsafe { libc::tee(descriptor, into.as_raw_fd(), contents.len(), libc::SPLICE_F_NONBLOCK) };
    if copied != contents.len() as isize {
        return Err(last("read the contents of a pipe"));
    }
    // SAFETY: the buffer has this many bytes, and this many are available.
    let bytes_read = unsafe { libc::read(copy.as_raw_fd(), contents.as_mut_ptr().cast(), contents.len()) };
    if bytes_read == contents.len() as isize {
        Ok(contents)
    } else {
        Err(last("read the contents of a pipe"))
    }
}

fn new_pipe() -> Result<(OwnedFd, OwnedFd), ImageError> {
    let (read, write) = std::io::pipe().map_err(|error| ImageError::host("make a pipe", error))?;
    Ok((read.into(), write.into()))
}

/// Duplicates `file` to the descriptor of `image`.
fn duplicate_to(file: RawFd, image: &FileImage) -> Result<(), ImageError> {
    let flags = if image.close_on_exec { libc::O_CLOEXEC } else { 0 };
    let result = if file == image.descriptor {
        control(file, libc::F_SETFD, if image.close_on_exec { libc::FD_CLOEXEC } else { 0 })?
    } else {
        // SAFETY: the call takes no pointers, and the descriptor belongs to the guest.
        unsafe { libc::dup3(file, image.descriptor, flags) }
    };
    if result < 0 { Err(last("reopen a file")) } else { Ok(()) }
}

/// Opens the files again. `emulator_descriptors` holds the emulator's descriptors; a guest file with one of these
/// numbers is refused.
pub(super) fn restore(images: &[FileImage], emulator_descriptors: &[RawFd]) -> Result<(), ImageError> {
    let ordered = images.windows(2).all(|pair| pair[0].descriptor < pair[1].descriptor);
    let in_range = images.iter().all(|image| (0..descriptors::first()).contains(&image.descriptor));
    if !ordered || !in_range {
        return Err(ImageError::Inconsistent("its open files are not sorted"));
    }
    if let Some(conflicting) = images.iter().find(|image| emulator_descriptors.contains(&image.descriptor)) {
        let file = "a number that the emulator uses in this process".into();
        return Err(ImageError::File { descriptor: conflicting.descriptor, what: file });
    }
    let mut restorer = Restorer { standard: standard_copies()?, pipes: BTreeMap::new() };
    for number in (0..3).filter(|number| images.iter().all(|image| image.descriptor != *number)) {
        // SAFETY: the guest had closed it.
        unsafe { libc::close(number) };
    }
    for image in images {
        restorer.open(image, images)?;
    }
    images.iter().try_for_each(restore_epoll_entries)
}

/// Copies the standard files, because restored files may take their descriptors.
fn standard_copies() -> Result<BTreeMap<i32, OwnedFd>, ImageError> {
    let open = (0..3).filter(|number| status_of(*number).is_some());
    open.map(|number| Ok((number, duplicate_to_reserved(number)?))).collect()
}

/// Duplicates a file to an emulator descriptor.
fn duplicate_to_reserved(descriptor: RawFd) -> Result<OwnedFd, ImageError> {
    descriptors::duplicate(descriptor).map_err(|error| ImageError::host("keep a file", error))
}

/// Shared state for restoring files.
struct Restorer {
    standard: BTreeMap<i32, OwnedFd>,
    /// Both ends of each pipe.
    pipes: BTreeMap<u64, (OwnedFd, OwnedFd)>,
}

impl Restorer {
    fn open(&mut self, image: &FileImage, images: &[FileImage]) -> Result<(), ImageError> {
        match &image.kind {
            FileKind::Standard(number) => {
                let file = self.standard.get(number).ok_or(ImageError::File {
                    descriptor: image.descriptor,
                    what: format!("standard descriptor {number}, which is closed here"),
                })?;
                duplicate_to(file.as_raw_fd(), image)
            }
            FileKind::Duplicate(of) => {
                if *of >= image.descriptor || images.iter().all(|other| other.descriptor != *of) {
                    return Err(ImageError::Inconsistent("a descriptor duplicates one that is not open"));
                }
                let is_outside =
                    |other: &FileImage| other.descriptor == *of && other.kind == FileKind::Outside;
                match images.iter().any(is_outside) && status_of(*of).is_none() {
                    true => Ok(()),
                    false => duplicate_to(*of, image),
                }
            }
            // The restoring process may have provided the pipe; otherwise the descriptor stays closed.
            FileKind::Outside => Ok(()),
            FileKind::Path(path, offset) => reopen_path(image, path, *offset),
            FileKind::Event(count, semaphore) => make_event(image, *count, *semaphore),
            FileKind::Epoll(_) => {
                // SAFETY: the call takes no pointers, and a new descriptor affects no other code.
                let descriptor = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
                move_to_descriptor(descriptor, image, "create an epoll set").map(drop)
            }
            FileKind::Pipe(number, is_write) => self.open_pipe(image, *number, *is_write),
        }
    }

    fn open_pipe(&mut self, image: &FileImage, number: u64, is_write: bool) -> Result<(), ImageError> {
        let (read, write) = match self.pipes.entry(number) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(none) => {
                let (read, write) = new_pipe()?;
                let reserve = |end: OwnedFd| duplicate_to_reserved(end.as_raw_fd());
                none.insert((reserve(read)?, reserve(write)?))
            }
        };
        // A smaller capacity is acceptable if the contents fit. SAFETY: the call takes no pointers.
        unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, image.room) };
        fill(write, &image.contents)?;
        let end = if is_write { write } else { read };
        control(end.as_raw_fd(), libc::F_SETFL, image.flags)?;
        duplicate_to(end.as_raw_fd(), image)
    }
}

fn make_event(image: &FileImage, count: u64, semaphore: bool) -> Result<(), ImageError> {
    let semaphore = if semaphore { libc::EFD_SEMAPHORE } else { 0 };
    let flags = image.flags & libc::O_NONBLOCK | libc::EFD_CLOEXEC | semaphore;
    // SAFETY: the call takes no pointers, and a new descriptor affects no other code.
    let descriptor = unsafe { libc::eventfd(0, flags) };
    let event = move_to_descriptor(descriptor, image, "create an eventfd")?;
    if count == u64::MAX {
        return Err(ImageError::Inconsistent("an eventfd's counter is out of range"));
    }
    // SAFETY: `count` is 8 bytes and live. A valid counter value does not block.
    unsafe { libc::write(event, (&raw const count).cast(), 8) };
    Ok(())
}

/// Adds the entries of an epoll set after all files are open.
fn restore_epoll_entries(image: &FileImage) -> Result<(), ImageError> {
    let FileKind::Epoll(entries) = &image.kind else { return Ok(()) };
    for (descriptor, events, data) in entries {
        let mut event = libc::epoll_event { events: *events, u64: *data };
        // SAFETY: the event is live.
        let result =
            unsafe { libc::epoll_ctl(image.descriptor, libc::EPOLL_CTL_ADD, *descriptor, &raw mut event) };
        if result != 0 {
            return Err(last("refill an epoll set"));
        }
    }
    Ok(())
}

/// Moves a new file to the descriptor of `image`, which it returns. `opened` is -1 if opening it failed.
fn move_to_descriptor(opened: RawFd, image: &FileImage, action: &str) -> Result<RawFd, ImageError> {
    if opened < 0 {
        return Err(last(action));
    }
    duplicate_to(opened, image)?;
    if opened != image.descriptor {
        // SAFETY: the descriptor was created for this call and has been duplicated.
        unsafe { libc::close(opened) };
    }
    Ok(image.descriptor)
}

fn reopen_path(image: &FileImage, path: &[u8], offset: u64) -> Result<(), ImageError> {
    let name = || String::from_utf8_lossy(path).into_owned();
    let text = CString::new(path).map_err(|_| ImageError::Inconsistent("a path contains a zero byte"))?;
    let mut once = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOCTTY;
    if image.flags & libc::O_TMPFILE == libc::O_TMPFILE {
        // The file was opened without a name, but has one now.
        once |= libc::O_TMPFILE;
    }
    // SAFETY: the path is terminated, and a new descriptor affects no other code.
    let opened = unsafe { libc::open(text.as_ptr(), image.flags & !once | libc::O_CLOEXEC) };
    if opened < 0 {
        return Err(last(&format!("reopen {}", name())));
    }
    // The call fails for a device, which has no offset. SAFETY: the call takes no pointers.
    unsafe { libc::lseek(opened, offset as i64, libc::SEEK_SET) };
    move_to_descriptor(opened, image, "reopen a file").map(drop)
}

fn fill(write: &OwnedFd, contents: &[u8]) -> Result<(), ImageError> {
    const MAX_PIPE_BYTES: usize = 1 << 30;
    if contents.is_empty() {
        return Ok(());
    }
    if contents.len() > MAX_PIPE_BYTES {
        return Err(ImageError::Inconsistent("a pipe holds more bytes than a pipe can"));
    }
    let mode = control(write.as_raw_fd(), libc::F_GETFL, 0)?;
    control(write.as_raw_fd(), libc::F_SETFL, mode | libc::O_NONBLOCK)?;
    // SAFETY: the buffer has this many bytes.
    let written = unsafe { libc::write(write.as_raw_fd(), contents.as_ptr().cast(), contents.len()) };
    control(write.as_raw_fd(), libc::F_SETFL, mode)?;
    if written == contents.len() as isize {
        Ok(())
    } else {
        Err(ImageError::host("refill a pipe", Errno(libc::EAGAIN)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, SeekFrom, Write};

    #[test]
    fn a_standard_descriptor_reopened_by_the_guest_keeps_its_offset() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"abcdef").unwrap();
        let mut reopened = file.reopen().unwrap();
        reopened.seek(SeekFrom::Start(3)).unwrap();
        let status = status_of(reopened.as_raw_fd()).unwrap();
        let standard = [Some((status.st_dev, status.st_ino)), None, None];
        let path = file.path().canonicalize().unwrap().into_os_string().into_vec();
        assert_eq!(kind_of(reopened.as_raw_fd(), &standard, &[]).unwrap(), FileKind::Path(path, 3));
        // A file without a name cannot be reopened, so it is restored as the inherited file.
        drop(file);
        assert_eq!(kind_of(reopened.as_raw_fd(), &standard, &[]).unwrap(), FileKind::Standard(0));
    }
}
