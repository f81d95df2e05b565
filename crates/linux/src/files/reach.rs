//! What a confined guest may do with files of the host that it can name or was handed: those outside its root are for looking at.
//! Not how paths are resolved: see `place`.
//! Source: path_resolution(7); proc_pid_fd(5) (opening a descriptor's link opens its file anew); statfs(2) (f_type).

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;

use longma_guest::Errno;
use longma_guest::host::held::Held;

use super::root::{OpenHow, c_path, open_at_once, open_how};
use super::{ProcFile, Root};
use crate::Process;

/// A host file that a guest may open under its own name though its root lacks it. It holds nothing of the host's users.
#[derive(Debug)]
struct Shared {
    name: &'static str,
    /// Whether it may be opened for writing, which changes nothing but the terminal.
    written: bool,
}

const fn device(name: &'static str) -> Shared {
    Shared { name, written: true }
}

const fn fact(name: &'static str) -> Shared {
    Shared { name, written: false }
}

const SHARED: [Shared; 18] = [
    device("/dev/null"),
    device("/dev/zero"),
    device("/dev/full"),
    device("/dev/random"),
    device("/dev/urandom"),
    device("/dev/tty"),
    fact("/proc/filesystems"),
    fact("/proc/loadavg"),
    fact("/proc/meminfo"),
    fact("/proc/stat"),
    fact("/proc/uptime"),
    fact("/proc/sys/kernel/random/uuid"),
    fact("/proc/sys/net/core/somaxconn"),
    fact("/proc/sys/vm/overcommit_memory"),
    fact("/sys/devices/system/cpu/online"),
    fact("/sys/devices/system/cpu/possible"),
    fact("/sys/kernel/mm/transparent_hugepage/enabled"),
    fact("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"),
];

pub(super) const RESOLVE_NO_XDEV: u64 = 0x01;

/// File systems whose files are the kernel's switches: f_type of proc, sysfs, cgroup, cgroup2, debugfs, tracefs, securityfs, bpf,
/// configfs, efivarfs, selinuxfs, smackfs, binfmt_misc, pstore.
const SWITCHES: [i64; 14] = [
    PROC,
    0x6265_6572,
    0x27_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0xcafe_4a11,
    0x6265_6570,
    0xde5e_81e4,
    0xf97c_ff8c,
    0x4341_5d53,
    0x4249_4e4d,
    0x6165_676c,
];
const PROC: i64 = 0x9fa0;

/// The kind of the file system that an open file is on.
fn file_system(file: &impl AsFd) -> Option<i64> {
    // SAFETY: plain data.
    let mut status: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is there to be filled.
    (unsafe { libc::fstatfs(file.as_fd().as_raw_fd(), &raw mut status) } == 0).then_some(status.f_type)
}

/// Whether an open file is one of /proc, wherever that is mounted.
pub(super) fn is_in_proc(file: &impl AsFd) -> bool {
    file_system(file) == Some(PROC)
}

/// Whether an open file is one of the kernel's switches.
pub(super) fn is_switch(file: &impl AsFd) -> bool {
    file_system(file).is_some_and(|kind| SWITCHES.contains(&kind))
}

/// What the kernel calls an open file.
pub(super) fn kernels_name(file: &impl AsFd) -> Result<Vec<u8>, Errno> {
    name_at(file.as_fd().as_raw_fd())
}

/// What the kernel calls the file that a guest's descriptor stands for now, and perhaps no longer: only to be told, or looked up anew.
pub(super) fn name_at(descriptor: RawFd) -> Result<Vec<u8>, Errno> {
    let link = std::fs::read_link(format!("/proc/self/fd/{descriptor}")).map_err(|_| Errno(libc::EBADF))?;
    Ok(link.into_os_string().into_vec())
}

fn shared(path: &[u8]) -> Option<&'static Shared> {
    SHARED.iter().find(|shared| shared.name.as_bytes() == path)
}

/// Whether a confined guest may look at the host file of this name.
pub(super) fn is_shared(path: &[u8]) -> bool {
    shared(path).is_some()
}

/// The descriptor that a path names by its link.
pub(super) fn descriptor_named(path: &[u8]) -> Option<RawFd> {
    let of_standard = match path {
        b"/dev/stdin" => Some(0),
        b"/dev/stdout" => Some(1),
        b"/dev/stderr" => Some(2),
        _ => None,
    };
    let number = [&b"/proc/self/fd/"[..], b"/dev/fd/", b"/proc/thread-self/fd/"]
        .iter()
        .find_map(|prefix| path.strip_prefix(*prefix))
        .filter(|rest| rest.iter().all(u8::is_ascii_digit) && (rest.len() == 1 || !rest.starts_with(b"0")));
    of_standard.or_else(|| std::str::from_utf8(number?).ok()?.parse().ok())
}

/// Whether a path names the folder of the guest's descriptors.
pub(super) fn is_descriptor_folder(path: &[u8]) -> bool {
    matches!(path, b"/proc/self/fd" | b"/dev/fd")
}

impl Root {
    /// Whether an open file is the guest's own: it is inside the root and no switch of the kernel's, or it has no name at all (pipes,
    /// sockets, memory).
    fn owns(&self, file: &Held) -> Result<bool, Errno> {
        if is_switch(file) {
            return Ok(false);
        }
        let name = kernels_name(file)?;
        Ok(!name.starts_with(b"/") || is_memory(file, &name) || self.guest_name(&name).is_some())
    }

    /// Refuses a change to a file that is not the guest's own, whose mode, owner, times, attributes or names are the host's.
    pub(super) fn check_change(&self, file: &Held) -> Result<(), Errno> {
        if !self.is_confined() || self.owns(file)? { Ok(()) } else { Err(Errno(libc::EPERM)) }
    }
}

/// Whether an open file is a memfd, which the kernel gives a name like a path.
fn is_memory(file: &Held, name: &[u8]) -> bool {
    // SAFETY: no pointers. Only files in memory have seals.
    name.starts_with(b"/memfd:") && unsafe { libc::fcntl(file.number(), libc::F_GET_SEALS) } >= 0
}

/// An open file whose mode, owner, times and attributes the guest may change.
#[derive(Debug)]
pub(crate) struct Changeable {
    number: RawFd,
    _held: Option<Held>,
}

impl Changeable {
    /// The file that the guest's descriptor stands for, if it may be changed. Of a guest that is not confined nothing is asked.
    pub fn of(process: &Process, descriptor: u64) -> Result<Self, Errno> {
        let descriptor = descriptor as RawFd;
        if !process.root.is_confined() {
            return Ok(Self { number: descriptor, _held: None });
        }
        let held = Held::of(descriptor)?;
        process.root.check_change(&held)?;
        Ok(Self { number: held.number(), _held: Some(held) })
    }

    /// Its descriptor, as an argument of a host call.
    pub fn descriptor(&self) -> u64 {
        self.number as u64
    }
}

fn access_of(flags: i32) -> (bool, bool) {
    let mode = flags & libc::O_ACCMODE;
    if flags & libc::O_PATH != 0 {
        return (false, false);
    }
    (mode != libc::O_WRONLY, mode != libc::O_RDONLY || flags & libc::O_TRUNC != 0)
}

/// Opens a host file that is shared with confined guests.
pub(super) fn open_shared(path: &[u8], how: OpenHow) -> Option<Result<OwnedFd, Errno>> {
    let shared = shared(path)?;
    let (_, writes) = access_of(how.flags as i32);
    if writes && !shared.written {
        return Some(Err(Errno(libc::EACCES)));
    }
    if how.flags as i32 & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL {
        return Some(Err(Errno(libc::EEXIST)));
    }
    // Were it missing on the host, it would be made there.
    let how = OpenHow { flags: how.flags & !(libc::O_CREAT as u64), mode: 0, ..how };
    Some(c_path(path).and_then(|path| open_how(libc::AT_FDCWD, &path, &how)))
}

/// Opens the file of a confined guest's descriptor anew. A file that is not its own may not be opened for more than it was.
pub(super) fn reopen(process: &Process, descriptor: RawFd, how: OpenHow) -> Result<OwnedFd, Errno> {
    let held = Held::of(descriptor).map_err(not_there)?;
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(held.number(), libc::F_GETFL) };
    let (has, wants) = (access_of(flags & !libc::O_TRUNC), access_of(how.flags as i32));
    let gains = (wants.0 && !has.0, wants.1 && !has.1);
    if gains != (false, false) && !process.root.owns(&held)? {
        let name = kernels_name(&held)?;
        if !shared(&name).is_some_and(|shared| shared.written || !wants.1) {
            return Err(Errno(libc::EACCES));
        }
    }
    let how = OpenHow { flags: how.flags & !(libc::O_CREAT as u64), mode: 0, ..how };
    open_how(libc::AT_FDCWD, &held.link(), &how)
}

/// What a path says whose descriptor is not open.
pub(super) fn not_there(error: Errno) -> Errno {
    if error == Errno(libc::EBADF) { Errno(libc::ENOENT) } else { error }
}

/// Where a path is resolved that stays inside a confined guest's root.
#[derive(Debug)]
pub(super) struct Inside<'a> {
    /// A directory of ours.
    pub directory: RawFd,
    pub path: &'a CString,
    /// What keeps it inside.
    pub resolve: u64,
    /// Whether the directory is one of the kernel's switches itself.
    pub begins_at_switch: bool,
}

impl Inside<'_> {
    /// Has the kernel resolve it, whatever is there.
    pub fn resolve(&self, how: OpenHow) -> Result<OwnedFd, Errno> {
        open_how(self.directory, self.path, &OpenHow { resolve: how.resolve | self.resolve, ..how })
    }

    /// Only names what is there, with these flags beside O_PATH.
    pub fn hold(&self, flags: i32) -> Result<Held, Errno> {
        let flags = (libc::O_PATH | libc::O_CLOEXEC | flags) as u64;
        Held::new(|| {
            open_at_once(self.directory, self.path, &OpenHow { flags, mode: 0, resolve: self.resolve })
        })
    }

    /// Opens it. What the kernel keeps there (a /proc that somebody has mounted in the root) may be looked at, not written, and shows no
    /// process's memory.
    pub fn open(&self, how: OpenHow) -> Result<OwnedFd, Errno> {
        if self.begins_at_switch {
            return self.open_across(how);
        }
        // The root itself is no such file system, and most paths stay on its.
        match self.resolve(OpenHow { resolve: how.resolve | RESOLVE_NO_XDEV, ..how }) {
            Err(Errno(libc::EXDEV)) => self.open_across(how),
            opened => opened,
        }
    }

    /// The same for a path that leads over a mount point: what is there is found out before it is opened.
    fn open_across(&self, how: OpenHow) -> Result<OwnedFd, Errno> {
        let flags = how.flags as i32;
        let found = match self.hold(flags & (libc::O_NOFOLLOW | libc::O_DIRECTORY)) {
            Err(Errno(libc::ENOENT)) if flags & libc::O_CREAT != 0 => {
                // Nothing is there, so that what is opened is what is made.
                return self.resolve(OpenHow { flags: how.flags | libc::O_EXCL as u64, ..how });
            }
            found => found?,
        };
        let (reads, writes) = access_of(flags);
        if is_switch(&found) && (writes || reads && ProcFile::shows_memory(&found)) {
            return Err(Errno(libc::EACCES));
        }
        if flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL {
            return Err(Errno(libc::EEXIST));
        }
        let mode = if flags & libc::O_TMPFILE == libc::O_TMPFILE { how.mode } else { 0 };
        // A link that is not to be followed cannot be opened this way either, but with another error.
        if flags & (libc::O_NOFOLLOW | libc::O_PATH) == libc::O_NOFOLLOW && is_link(&found) {
            return Err(Errno(libc::ELOOP));
        }
        let again = how.flags & !((libc::O_CREAT | libc::O_NOFOLLOW) as u64);
        open_how(libc::AT_FDCWD, &found.link(), &OpenHow { flags: again, mode, resolve: 0 })
    }
}

fn is_link(file: &Held) -> bool {
    // SAFETY: plain data.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is there to be filled.
    let known = unsafe { libc::fstat(file.number(), &raw mut status) } == 0;
    known && status.st_mode & libc::S_IFMT == libc::S_IFLNK
}

/// The bytes of a path's last part.
pub(super) fn last_part(path: &[u8]) -> &[u8] {
    path.split(|&byte| byte == b'/').rfind(|part| !part.is_empty()).unwrap_or_default()
}

/// A descriptor as a system call returns it.
pub(super) fn given(opened: Result<OwnedFd, Errno>) -> Result<u64, Errno> {
    opened.map(|opened| opened.into_raw_fd() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_named_by_their_links_alone() {
        for (path, descriptor) in [("/proc/self/fd/3", 3), ("/dev/fd/0", 0), ("/dev/stdout", 1)] {
            assert_eq!(descriptor_named(path.as_bytes()), Some(descriptor), "{path}");
        }
        for path in [
            "/proc/self/fd/",
            "/proc/self/fd/3/..",
            "/proc/self/fd/03",
            "/proc/self/fd/99999999999",
            "/dev/fd",
        ] {
            assert_eq!(descriptor_named(path.as_bytes()), None, "{path}");
        }
    }

    #[test]
    fn the_last_part_of_a_path_is_found_behind_slashes() {
        assert_eq!(last_part(b"/a//exe//"), b"exe");
        assert_eq!(last_part(b"exe"), b"exe");
        assert_eq!(last_part(b"//"), b"");
    }

    #[test]
    fn the_kernels_switches_are_known_by_their_file_system() {
        let open = |path: &str| std::fs::File::open(path).unwrap();
        assert!(is_in_proc(&open("/proc/uptime")) && is_switch(&open("/sys/devices")));
        assert!(!is_switch(&open("/dev/null")) && !is_switch(&open("/")));
    }
}
