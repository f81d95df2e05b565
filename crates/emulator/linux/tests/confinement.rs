//! A confined guest cannot change the host's files, by any name or descriptor. These attempts would be harmless if they
//! succeeded. Source: proc_pid_fd(5), path_resolution(7); capabilities(7), for a guest that is root.

mod guest;

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use guest::{Guest, error};

const READ: i32 = libc::O_RDONLY;
const WRITE: i32 = libc::O_WRONLY;
const HERE: u64 = libc::AT_FDCWD as u64;
const EMPTY_PATH: u64 = libc::AT_EMPTY_PATH as u64;

const SETXATTR: u64 = 5;
const FSETXATTR: u64 = 7;
const IOCTL: u64 = 29;
const MKDIRAT: u64 = 34;
const UNLINKAT: u64 = 35;
const LINKAT: u64 = 37;
const TRUNCATE: u64 = 45;
const FCHMOD: u64 = 52;
const FCHMODAT: u64 = 53;
const FCHOWNAT: u64 = 54;
const FCHOWN: u64 = 55;
const OPENAT: u64 = 56;
const UTIMENSAT: u64 = 88;
const MEMFD_CREATE: u64 = 279;
const OPENAT2: u64 = 437;
const FCHMODAT2: u64 = 452;

/// Bits of openat2's `resolve`.
const NO_MAGICLINKS: u64 = 0x02;
const BENEATH: u64 = 0x08;
const IN_ROOT: u64 = 0x10;
/// Keeps the user or group unchanged.
const SAME: u64 = u32::MAX as u64;

/// Times that change nothing.
fn no_times(guest: &mut Guest) -> u64 {
    let omit = [0i64, libc::UTIME_OMIT, 0, libc::UTIME_OMIT];
    guest.put(&omit.map(i64::to_le_bytes).concat())
}

/// A file outside the root that the guest inherits, open for reading.
fn inherited() -> (tempfile::TempDir, OwnedFd) {
    let outside = tempfile::tempdir().unwrap();
    let path = outside.path().join("file");
    std::fs::write(&path, "the host's").unwrap();
    let file = std::fs::File::open(path).unwrap();
    (outside, file.into())
}

#[test]
fn a_shared_kernel_file_cannot_be_reopened_for_writing() {
    let mut guest = Guest::confined();
    let fact = guest.open("/proc/sys/vm/overcommit_memory", READ);
    assert!(fact >= 0, "{fact}");
    for link in ["/proc/self/fd/", "/dev/fd/", "/proc/thread-self/fd/"] {
        let link = format!("{link}{fact}");
        assert!(guest.open(&link, READ) >= 0, "{link}");
        for flags in [WRITE, libc::O_RDWR, READ | libc::O_TRUNC] {
            assert_eq!(guest.open(&link, flags), error(libc::EACCES), "{link} {flags:#x}");
        }
    }
    assert_eq!(guest.open("/proc/sys/vm/overcommit_memory", WRITE), error(libc::EACCES));
}

#[test]
fn a_file_inherited_for_reading_cannot_be_written() {
    let (outside, file) = inherited();
    let mut guest = Guest::confined();
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let reopened = guest.open(&link, READ);
    assert_eq!(guest.read(reopened), b"the host's");
    assert_eq!(guest.open(&link, WRITE), error(libc::EACCES));
    let path = guest.path(&link);
    assert_eq!(guest.call(TRUNCATE, &[path, 0]), error(libc::EPERM));
    assert_eq!(guest.call(FCHMODAT, &[HERE, path, 0o644]), error(libc::EPERM));
    // A hard link inside the root would make it the guest's.
    let (empty, name) = (guest.path(""), guest.path("/taken"));
    let descriptor = file.as_raw_fd() as u64;
    assert_eq!(guest.call(LINKAT, &[descriptor, empty, HERE, name, EMPTY_PATH]), error(libc::EPERM));
    let follow = libc::AT_SYMLINK_FOLLOW as u64;
    assert_eq!(guest.call(LINKAT, &[HERE, path, HERE, name, follow]), error(libc::EPERM));
    assert_eq!(std::fs::metadata(outside.path().join("file")).unwrap().nlink(), 1);
}

#[test]
fn the_hosts_devices_keep_their_modes_owners_times_and_attributes() {
    let mode = u64::from(std::fs::metadata("/dev/null").unwrap().mode() & 0o7777);
    let mut guest = Guest::confined();
    let (path, empty, times) = (guest.path("/dev/null"), guest.path(""), no_times(&mut guest));
    let (name, value) = (guest.path("user.longma"), guest.put(b"x"));
    let file = guest.open("/dev/null", libc::O_RDWR) as u64;
    let link = guest.path(format!("/proc/self/fd/{file}"));
    let flags = guest.put(&[0; 8]);
    const SET_FLAGS: u64 = 0x4008_6602;
    let attempts: [(u64, &[u64]); 15] = [
        (FCHMODAT, &[HERE, path, mode]),
        (FCHMODAT, &[HERE, link, mode]),
        (FCHMOD, &[file, mode]),
        (FCHMODAT2, &[HERE, path, mode, 0]),
        (FCHMODAT2, &[file, empty, mode, EMPTY_PATH]),
        (FCHOWNAT, &[HERE, path, SAME, SAME, 0]),
        (FCHOWNAT, &[file, empty, SAME, SAME, EMPTY_PATH]),
        (FCHOWN, &[file, SAME, SAME]),
        (UTIMENSAT, &[HERE, path, times, 0]),
        (UTIMENSAT, &[HERE, link, times, 0]),
        (UTIMENSAT, &[file, 0, times, 0]),
        (TRUNCATE, &[path, 0]),
        (SETXATTR, &[path, name, value, 1, 0]),
        (FSETXATTR, &[file, name, value, 1, 0]),
        (IOCTL, &[file, SET_FLAGS, flags]),
    ];
    for (call, arguments) in attempts {
        assert_eq!(guest.call(call, arguments), error(libc::EPERM), "call {call} {arguments:x?}");
    }
}

#[test]
fn names_of_shared_host_files_are_created_and_removed_inside_the_root() {
    let mut guest = Guest::confined();
    let devices = guest.directory.path().join("dev");
    std::fs::create_dir(&devices).unwrap();
    let (null, other) = (guest.path("/dev/null"), guest.path("/dev/other"));
    assert_eq!(guest.call(MKDIRAT, &[HERE, null, 0o755]), 0);
    assert!(devices.join("null").is_dir());
    assert_eq!(guest.call(UNLINKAT, &[HERE, null, libc::AT_REMOVEDIR as u64]), 0);
    assert!(!devices.join("null").exists());
    // A name inside the root for the host's device would allow changing it.
    assert_eq!(guest.call(LINKAT, &[HERE, null, HERE, other, 0]), error(libc::EPERM));
    let file = guest.open("/dev/null", libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC);
    assert!(file >= 0, "shells redirect to it like this: {file}");
}

#[test]
fn an_empty_path_is_enoent_without_at_empty_path() {
    const FACCESSAT2: u64 = 439;
    const CHDIR: u64 = 49;
    let mut guest = Guest::confined();
    let empty = guest.path("");
    let folder = guest.open("/", READ) as u64;
    for directory in [HERE, folder] {
        assert_eq!(guest.call(FACCESSAT2, &[directory, empty, 0, 0]), error(libc::ENOENT));
        assert_eq!(guest.call(FACCESSAT2, &[directory, empty, 0, EMPTY_PATH]), 0);
    }
    assert_eq!(guest.call(CHDIR, &[empty]), error(libc::ENOENT));
    assert_eq!(guest.call(TRUNCATE, &[empty, 0]), error(libc::ENOENT));
}

#[test]
fn a_guest_may_change_its_own_files() {
    let mut guest = Guest::confined();
    let root = guest.directory.path().to_owned();
    let file = guest.open("/own", libc::O_RDWR | libc::O_CREAT) as u64;
    let link = format!("/proc/self/fd/{file}");
    assert_eq!(guest.call(FCHMOD, &[file, 0o640]), 0);
    assert_eq!(root.join("own").metadata().unwrap().mode() & 0o777, 0o640);
    let times = no_times(&mut guest);
    assert_eq!(guest.call(UTIMENSAT, &[file, 0, times, 0]), 0);
    assert_eq!(guest.call(FCHOWN, &[file, SAME, SAME]), 0);
    let path = guest.path("/own");
    let reader = guest.call(OPENAT, &[HERE, path, READ as u64, 0]);
    assert!(guest.open(format!("/proc/self/fd/{reader}"), WRITE) >= 0);
    // Also for a deleted file.
    std::fs::remove_file(root.join("own")).unwrap();
    assert_eq!(guest.call(FCHMOD, &[file, 0o600]), 0);
    assert!(guest.open(&link, libc::O_RDWR) >= 0);
    let name = guest.path("memory");
    let memory = guest.call(MEMFD_CREATE, &[name, 0]) as u64;
    assert_eq!(guest.call(FCHMOD, &[memory, 0o600]), 0);
    assert!(guest.open(format!("/proc/self/fd/{memory}"), libc::O_RDWR) >= 0);
}

#[test]
fn a_proc_mounted_in_the_root_exposes_no_memory_and_no_controls() {
    let mut guest = Guest::confined();
    let mount_point = guest.directory.path().join("proc");
    std::fs::create_dir(&mount_point).unwrap();
    let Some(_mounted) = Mounted::proc(&mount_point) else {
        eprintln!("skipped: this takes root");
        return;
    };
    assert!(guest.open("/proc/version", READ) >= 0);
    let init = "/proc/1/mem";
    for path in [init, "//proc/self/mem", "/proc/./self/../1/mem", "/proc/1/task/1/mem"] {
        assert_eq!(guest.open(path, READ), error(libc::EACCES), "{path}");
    }
    for path in ["/proc/sys/vm/swappiness", "//proc/sys/vm/overcommit_memory"] {
        assert!(guest.open(path, READ) >= 0, "{path}");
        assert_eq!(guest.open(path, WRITE), error(libc::EACCES), "{path}");
        assert_eq!(guest.open(path, WRITE | libc::O_CREAT), error(libc::EACCES), "{path}");
    }
    assert!(guest.open("/proc/1/root/etc/passwd", READ) < 0, "a magic link leads nowhere");
    // The root directory of the mounted file system does not belong to the guest either.
    let (path, mode) = (guest.path("/proc"), 0o555);
    assert_eq!(
        guest.call(FCHMODAT2, &[HERE, path, mode, libc::AT_SYMLINK_NOFOLLOW as u64]),
        error(libc::EPERM)
    );
    // Paths relative to a directory of the mounted file system cross no mount point, with any `resolve` flags of the
    // guest.
    let proc = guest.open("/proc", READ) as u64;
    for resolve in [BENEATH, IN_ROOT, BENEATH | NO_MAGICLINKS] {
        let mut open = |path: &str, flags: i32| {
            let how: Vec<u8> =
                [flags as u64, 0, resolve].iter().flat_map(|word| word.to_le_bytes()).collect();
            let (path, how) = (guest.path(path), guest.put(&how));
            guest.call(OPENAT2, &[proc, path, how, 24])
        };
        assert!(open("version", READ) >= 0, "{resolve}");
        assert_eq!(open("sys/vm/swappiness", WRITE), error(libc::EACCES), "{resolve}");
        assert_eq!(open("1/mem", libc::O_RDWR), error(libc::EACCES), "{resolve}");
        assert_eq!(open("1/mem", READ), error(libc::EACCES), "{resolve}");
    }
}

/// A mount, which is removed on drop.
struct Mounted(std::ffi::CString);

impl Mounted {
    fn proc(mount_point: &std::path::Path) -> Option<Self> {
        use std::os::unix::ffi::OsStrExt;
        let mount_point = std::ffi::CString::new(mount_point.as_os_str().as_bytes()).unwrap();
        let kind = c"proc".as_ptr();
        // SAFETY: all strings are terminated.
        let result = unsafe { libc::mount(kind, mount_point.as_ptr(), kind, 0, std::ptr::null()) };
        (result == 0).then_some(Self(mount_point))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // SAFETY: the path is terminated.
        unsafe { libc::umount2(self.0.as_ptr(), libc::MNT_DETACH) };
    }
}

#[test]
fn a_kernel_directory_cannot_be_the_root() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    std::fs::write(&program, guest::smallest()).unwrap();
    let config = longma_linux::ProcessConfig { program, root: Some("/proc".into()), ..Default::default() };
    let Err(error) = longma_linux::Process::load(config) else { panic!("it was accepted") };
    assert!(error.to_string().contains("a control file system"), "{error}");
}

#[test]
fn shared_memory_has_its_folder_inside_the_root() {
    let mut guest = Guest::confined();
    assert_eq!(guest.open("/dev/shm/memory", libc::O_RDWR), error(libc::ENOENT));
    assert!(guest.open("/dev/shm/memory", libc::O_RDWR | libc::O_CREAT) >= 0);
    assert!(guest.open("/dev/shm/memory", libc::O_RDWR) >= 0);
    assert!(guest.open("/dev/shm", libc::O_RDONLY | libc::O_DIRECTORY) >= 0);
    // Other folders are not made.
    assert_eq!(guest.open("/dev/other/memory", libc::O_RDWR | libc::O_CREAT), error(libc::ENOENT));
}
