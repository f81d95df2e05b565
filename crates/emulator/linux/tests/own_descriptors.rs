//! The guest cannot access the emulator's descriptors or /proc files by any name. Source: close_range(2), dup(2),
//! unix(7) (SCM_RIGHTS), pidfd_getfd(2), proc(5).

mod guest;

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;

use guest::{Guest, error};
use longma_guest::host::descriptors;

const READ: i32 = libc::O_RDONLY;
const HERE: u64 = libc::AT_FDCWD as u64;

const EPOLL_CREATE: u64 = 20;
const EPOLL_CTL: u64 = 21;
const DUP: u64 = 23;
const DUP3: u64 = 24;
const FCNTL: u64 = 25;
const OPENAT: u64 = 56;
const CLOSE: u64 = 57;
const WRITE: u64 = 64;
const READLINKAT: u64 = 78;
const FSTAT: u64 = 80;
const SOCKETPAIR: u64 = 199;
const SENDMSG: u64 = 211;
const MMAP: u64 = 222;
const PRLIMIT: u64 = 261;
const PIDFD_OPEN: u64 = 434;
const CLOSE_RANGE: u64 = 436;
const PIDFD_GETFD: u64 = 438;

/// A file of the emulator.
fn emulator_file() -> OwnedFd {
    descriptors::move_to_reserved(tempfile::tempfile().unwrap().into()).unwrap()
}

fn is_open(file: &OwnedFd) -> bool {
    // SAFETY: the call takes no pointers.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) >= 0 }
}

#[test]
fn no_call_accepts_an_emulator_descriptor() {
    let file = emulator_file();
    let reserved = file.as_raw_fd() as u64;
    let mut guest = Guest::new();
    let buffer = guest.map(0x4000, 3);
    let guest_descriptor = guest.open("/dev/null", libc::O_RDWR) as u64;
    let epoll = guest.call(EPOLL_CREATE, &[0]) as u64;
    let attempts: [(u64, &[u64]); 10] = [
        (CLOSE, &[reserved]),
        // The kernel reads only the low half.
        (CLOSE, &[1 << 32 | reserved]),
        (DUP, &[reserved]),
        (DUP3, &[guest_descriptor, reserved, 0]),
        (DUP3, &[reserved, guest_descriptor, 0]),
        (FCNTL, &[reserved, libc::F_DUPFD as u64, 0]),
        (WRITE, &[reserved, buffer, 8]),
        (FSTAT, &[reserved, buffer]),
        (EPOLL_CTL, &[epoll, 1, reserved, buffer]),
        (MMAP, &[0, 0x4000, 3, 1, reserved, 0]),
    ];
    for (call, arguments) in attempts {
        assert_eq!(guest.call(call, arguments), error(libc::EBADF), "call {call} {arguments:x?}");
    }
    let all = guest.call(CLOSE_RANGE, &[descriptors::first() as u64 - 1, u32::MAX.into(), 0]);
    assert_eq!(
        (all, guest.call(CLOSE_RANGE, &[reserved, reserved, 0])),
        (0, 0),
        "emulator descriptors look closed"
    );
    assert_eq!(guest.call(CLOSE_RANGE, &[reserved, reserved, 64]), error(libc::EINVAL));
    assert_eq!(guest.call(CLOSE_RANGE, &[reserved, 3, 0]), error(libc::EINVAL));
    assert!(is_open(&file));
}

#[test]
fn an_emulator_descriptor_cannot_be_sent_or_duplicated() {
    let file = emulator_file();
    let reserved = file.as_raw_fd();
    let mut guest = Guest::new();
    let pair = guest.map(0x4000, 3);
    assert_eq!(guest.call(SOCKETPAIR, &[1, libc::SOCK_STREAM as u64, 0, pair]), 0);
    let socket = u32::from_le_bytes(guest.bytes(pair, 4).try_into().unwrap());
    let mut send = |descriptors: &[i32]| {
        let length = 16 + 4 * descriptors.len() as u64;
        let mut control = [length.to_le_bytes().to_vec(), vec![1, 0, 0, 0, 1, 0, 0, 0]].concat();
        descriptors.iter().for_each(|number| control.extend(number.to_le_bytes()));
        control.resize(control.len().next_multiple_of(8), 0);
        let (data, at) = (guest.put(b"x"), guest.put(&control));
        let vector = guest.put(&[data.to_le_bytes(), 1u64.to_le_bytes()].concat());
        let header = [0, 0, vector, 1, at, control.len() as u64, 0].map(u64::to_le_bytes).concat();
        let header = guest.put(&header);
        guest.call(SENDMSG, &[socket.into(), header, 0])
    };
    assert_eq!(send(&[0]), 1, "the guest may send its own descriptors");
    assert_eq!(send(&[reserved]), error(libc::EBADF));
    assert_eq!(send(&[0, reserved]), error(libc::EBADF));
    let process = guest.call(PIDFD_OPEN, &[std::process::id().into(), 0]) as u64;
    assert_eq!(guest.call(PIDFD_GETFD, &[process, reserved as u64, 0]), error(libc::EBADF));
}

#[test]
fn the_proc_link_of_an_emulator_descriptor_does_not_resolve() {
    let file = emulator_file();
    let reserved = file.as_raw_fd();
    let thread = format!("/proc/self/task/{}/fd/{reserved}", gettid());
    let links = [
        format!("/proc/self/fd/{reserved}"),
        format!("//proc/self/fd/{reserved}"),
        format!("/proc/../proc/self/fd/{reserved}"),
        format!("/dev/fd/{reserved}"),
        format!("/proc/{}/fd/{reserved}", std::process::id()),
        thread,
    ];
    for mut guest in [Guest::new(), Guest::confined()] {
        let result = guest.map(0x4000, 3);
        for link in &links {
            for flags in [READ, libc::O_RDWR, libc::O_PATH] {
                assert_eq!(guest.open(link, flags), error(libc::ENOENT), "{link}");
            }
            let path = guest.path(link);
            assert_eq!(guest.call(READLINKAT, &[HERE, path, result, 100]), error(libc::ENOENT), "{link}");
        }
        let folder = guest.open("/proc/self/fd", READ | libc::O_DIRECTORY) as u64;
        let path = guest.path(reserved.to_string());
        assert!(guest.call(OPENAT, &[folder, path, READ as u64, 0]) < 0);
    }
}

#[test]
fn the_emulators_memory_is_refused_under_every_name() {
    let mut guest = Guest::new();
    let link = guest.directory.path().join("link");
    symlink("/proc/self", &link).unwrap();
    let process = guest.open("/proc/self", READ | libc::O_DIRECTORY) as u64;
    let names = [
        "//proc/self/mem".to_owned(),
        "/proc/../proc/self/mem".to_owned(),
        "/proc/self/task/../mem".to_owned(),
        format!("/proc/{}/mem", gettid()),
        format!("/proc/self/task/{}/../../task/{}/mem", gettid(), gettid()),
        format!("{}/mem", link.display()),
        format!("{}/pagemap", link.display()),
        "//proc/self/map_files".to_owned(),
    ];
    for name in names {
        assert_eq!(guest.open(&name, READ), error(libc::EACCES), "{name}");
    }
    for name in ["mem", "pagemap", "task/../mem", "./mem"] {
        let path = guest.path(name);
        assert_eq!(
            guest.call(OPENAT, &[process, path, libc::O_RDWR as u64, 0]),
            error(libc::EACCES),
            "{name}"
        );
        assert_eq!(
            guest.call(OPENAT, &[process, path, libc::O_PATH as u64, 0]),
            error(libc::EACCES),
            "{name}"
        );
    }
}

#[test]
fn the_guests_own_maps_and_program_are_shown_under_every_name() {
    let mut guest = Guest::new();
    let link = guest.directory.path().join("link");
    symlink("/proc/self", &link).unwrap();
    let result = guest.map(0x4000, 3);
    let program = guest.directory.path().join("program").canonicalize().unwrap();
    for folder in ["//proc/self", "/proc/../proc/self", "/proc/self/task/..", link.to_str().unwrap()] {
        let maps = guest.open(format!("{folder}/maps"), READ);
        let text = String::from_utf8(guest.read(maps)).unwrap();
        assert!(text.contains("[stack]") && !text.contains("libc.so"), "{folder}: {text}");
        let path = guest.path(format!("{folder}/exe"));
        let length = guest.call(READLINKAT, &[HERE, path, result, 1000]);
        assert_eq!(guest.bytes(result, length as usize), program.to_str().unwrap().as_bytes(), "{folder}");
        let file = guest.open(format!("{folder}/exe"), READ);
        assert_eq!(guest.read(file), guest::smallest(), "{folder}");
    }
}

#[test]
fn the_limit_of_open_files_ends_at_the_first_emulator_descriptor() {
    let mut guest = Guest::new();
    let first_reserved = descriptors::first() as u64;
    let result = guest.map(0x4000, 3);
    assert_eq!(guest.call(PRLIMIT, &[0, libc::RLIMIT_NOFILE.into(), 0, result]), 0);
    let word =
        |at: usize| u64::from_le_bytes(guest.bytes(result, 16)[8 * at..8 * at + 8].try_into().unwrap());
    assert!(word(0) <= first_reserved && word(1) == first_reserved, "{} {}", word(0), word(1));
    let too_many = guest.put(&[first_reserved.to_le_bytes(), (first_reserved + 1).to_le_bytes()].concat());
    // The limit of a thread is that of its process.
    for process in [0, gettid() as u64] {
        assert_eq!(
            guest.call(PRLIMIT, &[process, libc::RLIMIT_NOFILE.into(), too_many, 0]),
            error(libc::EPERM)
        );
    }
}

#[test]
fn a_limit_set_for_another_guest_does_not_limit_its_emulator() {
    // SAFETY: the child makes one call that is permitted in the child of a multithreaded process.
    let child = match unsafe { libc::fork() } {
        0 => loop {
            // SAFETY: the call takes no arguments.
            unsafe { libc::pause() };
        },
        child => child,
    };
    let host = |resource| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is valid for writes.
        unsafe { libc::prlimit(child, resource, std::ptr::null(), &raw mut limit) };
        (limit.rlim_cur, limit.rlim_max)
    };
    let host_before = [libc::RLIMIT_NOFILE, libc::RLIMIT_AS].map(host);
    let mut guest = Guest::new();
    let small_limit = guest.put(&[20u64.to_le_bytes(), 20u64.to_le_bytes()].concat());
    let mut set = |resource: u32| guest.call(PRLIMIT, &[child as u64, resource.into(), small_limit, 0]);
    let results = [libc::RLIMIT_NOFILE, libc::RLIMIT_AS, libc::RLIMIT_DATA].map(&mut set);
    let host_after = [libc::RLIMIT_NOFILE, libc::RLIMIT_AS].map(host);
    // SAFETY: the child belongs to this test and has not been reaped.
    unsafe { (libc::kill(child, libc::SIGKILL), libc::waitpid(child, std::ptr::null_mut(), 0)) };
    assert_eq!(results, [0, error(libc::EPERM), error(libc::EPERM)]);
    assert_eq!(host_after, [(20, host_before[0].1), host_before[1]]);
}

fn gettid() -> i32 {
    // SAFETY: the call takes no arguments and cannot fail.
    unsafe { libc::gettid() }
}

#[test]
fn file_ranges_cannot_be_cloned_from_an_emulator_file() {
    const IOCTL: u64 = 29;
    const FICLONE: u64 = 0x4004_9409;
    const FICLONERANGE: u64 = 0x4020_940d;
    let file = emulator_file();
    let reserved = file.as_raw_fd() as u64;
    let mut guest = Guest::new();
    let path = guest.directory.path().join("copy");
    let copy = guest.open(path, libc::O_RDWR | libc::O_CREAT) as u64;
    assert_eq!(guest.call(IOCTL, &[copy, FICLONE, reserved]), error(libc::EBADF));
    let range = guest.put(&[reserved, 0, 0, 0].map(u64::to_le_bytes).concat());
    assert_eq!(guest.call(IOCTL, &[copy, FICLONERANGE, range]), error(libc::EBADF));
}
