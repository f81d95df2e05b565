//! Files from a guest's point of view: its root, the /proc files about itself, structures and errors. Source:
//! openat2(2), proc(5), stat(2).

mod guest;

use guest::{Guest, error};
use std::os::unix::fs::symlink;

const READ: i32 = libc::O_RDONLY;
const HERE: u64 = libc::AT_FDCWD as u64;
const OPENAT: u64 = 56;
const STATX: u64 = 291;
const MMAP: u64 = 222;
const UNLINKAT: u64 = 35;
const READLINKAT: u64 = 78;
const CACHESTAT: u64 = 451;

/// A directory outside the guest's root, with a secret in it.
fn outside() -> tempfile::TempDir {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "secret").unwrap();
    outside
}

#[test]
fn a_confined_guest_sees_its_root_as_the_whole_file_system() {
    let mut guest = Guest::confined();
    std::fs::create_dir(guest.directory.path().join("etc")).unwrap();
    std::fs::write(guest.directory.path().join("etc/motd"), "inside").unwrap();
    for path in ["/etc/motd", "etc/motd", "/../../etc/motd", "/etc/../etc/./motd"] {
        let file = guest.open(path, READ);
        assert!(file >= 0, "{path}: {file}");
        assert_eq!(guest.read(file), b"inside", "{path}");
    }
}

#[test]
fn no_link_leads_a_confined_guest_out_of_its_root() {
    let outside = outside();
    let mut guest = Guest::confined();
    let root = guest.directory.path().to_owned();
    symlink(outside.path(), root.join("directory")).unwrap();
    symlink(outside.path().join("secret"), root.join("file")).unwrap();
    symlink("../../../../../../../../etc/passwd", root.join("up")).unwrap();
    let secret = outside.path().join("secret");
    let up = format!("/../../../../..{}", secret.display());
    let result = guest.map(0x4000, 3);
    for path in ["/directory/secret", "/file", "/up", "file", secret.to_str().unwrap(), &up] {
        assert_eq!(guest.open(path, READ), error(libc::ENOENT), "{path}");
        let path = guest.path(path);
        assert_eq!(guest.call(STATX, &[HERE, path, 0, 0x7ff, result]), error(libc::ENOENT));
        let write = (libc::O_WRONLY | libc::O_CREAT) as u64;
        let created = guest.call(OPENAT, &[HERE, path, write, 0o600]);
        assert!(created >= 0 || created == error(libc::ENOENT), "{created}");
        guest.call(UNLINKAT, &[HERE, path, 0]);
    }
    assert_eq!(std::fs::read_to_string(secret).unwrap(), "secret");
    assert!(std::path::Path::new("/etc/passwd").exists());
}

#[test]
fn a_trailing_slash_does_not_follow_a_link_out_of_the_root() {
    let outside = outside();
    let mut guest = Guest::confined();
    symlink(outside.path(), guest.directory.path().join("link")).unwrap();
    let result = guest.map(0x4000, 3);
    let path = guest.path("/link/");
    let status = guest.call(STATX, &[HERE, path, libc::AT_SYMLINK_NOFOLLOW as u64, 0x7ff, result]);
    if status == 0 {
        let mode = u16::from_le_bytes(guest.bytes(result + 28, 2).try_into().unwrap());
        assert_eq!(
            u32::from(mode) & libc::S_IFMT,
            libc::S_IFLNK,
            "the result describes the link, not its target outside"
        );
    }
    let path = guest.path("/link/secret");
    assert_eq!(guest.call(UNLINKAT, &[HERE, path, 0]), error(libc::ENOENT));
}

#[test]
fn a_directory_descriptor_does_not_lead_out_of_the_root() {
    let outside = outside();
    let mut guest = Guest::confined();
    std::fs::create_dir(guest.directory.path().join("a")).unwrap();
    let directory = guest.open("/a", READ | libc::O_DIRECTORY);
    assert!(directory >= 0);
    let path = guest.path(format!("../../../../../..{}/secret", outside.path().display()));
    assert_eq!(guest.call(OPENAT, &[directory as u64, path, 0, 0]), error(libc::ENOENT));
    let proc = guest.open("/proc/self/fd", READ | libc::O_DIRECTORY);
    let path = guest.path("../root/etc/passwd");
    assert!(guest.call(OPENAT, &[proc as u64, path, 0, 0]) < 0);
}

#[test]
fn a_confined_guest_has_the_standard_devices() {
    let mut guest = Guest::confined();
    assert!(guest.open("/dev/null", libc::O_RDWR) >= 0);
    assert!(guest.open("/dev/urandom", READ) >= 0);
    assert_eq!(guest.open("/dev/mem", READ), error(libc::ENOENT));
    assert_eq!(guest.open("/proc/1/environ", READ), error(libc::ENOENT));
}

#[test]
fn the_guests_own_maps_are_shown_and_not_the_emulators() {
    let mut guest = Guest::new();
    let file = guest.open("/proc/self/maps", READ);
    let text = String::from_utf8(guest.read(file)).unwrap();
    let program = guest.directory.path().join("program").canonicalize().unwrap();
    assert!(text.contains("[stack]") && text.contains("[vdso]"), "{text}");
    let line = text.lines().find(|line| line.ends_with(program.to_str().unwrap())).unwrap();
    assert!(line.starts_with("00200000-00204000 r-xp 00000000 "), "{line}");
    assert!(!text.contains("libc.so"), "{text}");
}

#[test]
fn the_guests_memory_usage_is_shown_and_not_the_emulators() {
    let mut guest = Guest::new();
    // Neighbours with other permissions keep the mappings apart.
    let _neighbour = guest.map(0x4000, 1);
    let (written, untouched) = (guest.map(0x8000, 3), guest.map(0x8000, 1));
    guest.process.memory().write(written, &[1; 0x8000]).unwrap();
    for folder in ["/proc/self", "/proc/thread-self", "//proc/self/task/.."] {
        let file = guest.open(format!("{folder}/smaps"), READ);
        let text = String::from_utf8(guest.read(file)).unwrap();
        assert!(text.contains("[stack]") && !text.contains("libc.so"), "{folder}: {text}");
        let field = |address: u64, name: &str| -> u64 {
            let is_there = |line: &&str| line.starts_with(&format!("{address:08x}-"));
            let lines = text.lines().skip_while(|line| !is_there(line));
            let line = lines.skip(1).find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        assert_eq!((field(written, "Size:"), field(written, "KernelPageSize:")), (32, 16), "{text}");
        assert_eq!((field(written, "Rss:"), field(written, "Private_Dirty:")), (32, 32), "{text}");
        assert_eq!(field(untouched, "Rss:"), 0, "{text}");
        assert!(text.lines().any(|line| line.starts_with("VmFlags: rd wr mr")), "{text}");
    }
    let file = guest.open("/proc/self/smaps_rollup", READ);
    let text = String::from_utf8(guest.read(file)).unwrap();
    assert!(text.lines().next().unwrap().ends_with("[rollup]") && text.contains("Private_Dirty:"), "{text}");
}

#[test]
fn the_executable_link_names_the_guests_program() {
    let mut guest = Guest::confined();
    let (path, result) = (guest.path("/proc/self/exe"), guest.map(0x4000, 3));
    assert_eq!(guest.call(READLINKAT, &[HERE, path, result, 100]), 8);
    assert_eq!(guest.bytes(result, 8), b"/program");
    let file = guest.open("/proc/self/exe", READ);
    assert_eq!(guest.read(file), guest::smallest());
}

#[test]
fn the_emulators_memory_cannot_be_opened() {
    let mut guest = Guest::new();
    let memory_file = format!("/proc/{}/mem", std::process::id());
    for path in ["/proc/self/mem", "/proc/thread-self/mem", memory_file.as_str()] {
        assert_eq!(guest.open(path, libc::O_RDWR), error(libc::EACCES), "{path}");
    }
}

#[test]
fn the_auxiliary_vector_matches_a_loongarch_kernel() {
    let mut guest = Guest::new();
    let file = guest.open("/proc/self/auxv", READ);
    let bytes = guest.read(file);
    let words: Vec<u64> = bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    let entry = |key: u64| words.chunks(2).find(|pair| pair[0] == key).map(|pair| pair[1]);
    assert_eq!(entry(libc::AT_PAGESZ), Some(16384));
    assert_eq!(entry(libc::AT_ENTRY), Some(0x20_0100));
    assert_eq!(entry(libc::AT_PHDR), Some(0x20_0040));
    let platform = entry(libc::AT_PLATFORM).unwrap();
    assert_eq!(guest.bytes(platform, 10), b"loongarch\0");
    let vdso = entry(libc::AT_SYSINFO_EHDR).unwrap();
    assert_eq!(guest.bytes(vdso, 4), b"\x7fELF");
}

#[test]
fn every_bad_pointer_is_efault() {
    let mut guest = Guest::new();
    for address in [1, 0x8000, u64::MAX, u64::MAX - 4095, 1 << 63, 1 << 47, guest.process.memory().limit()] {
        assert_eq!(guest.call(OPENAT, &[HERE, address, 0, 0]), error(libc::EFAULT), "{address:#x}");
        // read, pread64, readv, fstat, getcwd, uname, pipe2, clock_gettime
        let file = guest.open("/dev/zero", READ) as u64;
        assert_eq!(guest.call(63, &[file, address, 100]), error(libc::EFAULT), "{address:#x}");
        assert_eq!(guest.call(65, &[file, address, 1]), error(libc::EFAULT), "{address:#x}");
        assert_eq!(guest.call(80, &[file, address]), error(libc::EFAULT), "{address:#x}");
        assert_eq!(guest.call(160, &[address]), error(libc::EFAULT), "{address:#x}");
        assert_eq!(guest.call(59, &[address, 0]), error(libc::EFAULT), "{address:#x}");
        assert_eq!(guest.call(113, &[0, address]), error(libc::EFAULT), "{address:#x}");
        assert_eq!(guest.call(57, &[file]), 0);
    }
}

#[test]
fn a_length_beyond_the_address_space_is_not_passed_to_the_host() {
    let mut guest = Guest::new();
    let file = guest.open("/dev/zero", READ) as u64;
    let near_the_end = guest.process.memory().limit() - 0x8000;
    assert_eq!(guest.call(63, &[file, near_the_end, u64::MAX >> 1]), error(libc::EFAULT));
    let vectors: Vec<u8> = [near_the_end, 1 << 40].into_iter().flat_map(u64::to_le_bytes).collect();
    let vectors = guest.put(&vectors);
    assert_eq!(guest.call(65, &[file, vectors, 1]), error(libc::EFAULT));
    assert_eq!(guest.call(65, &[file, vectors, 1025]), error(libc::EINVAL));
}

#[test]
fn an_unknown_call_is_enosys_and_reported_once() {
    use std::sync::Arc;

    use longma_guest::host::locks::Mutex;
    let messages = Arc::new(Mutex::new(Vec::new()));
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    std::fs::write(&program, guest::smallest()).unwrap();
    let sink = messages.clone();
    let config = longma_linux::ProcessConfig {
        program,
        diagnostics: Some(Arc::new(move |line: &str| sink.lock().unwrap().push(line.to_owned()))),
        ..Default::default()
    };
    let (_, mut thread, mut state) = longma_linux::Process::load(config).unwrap();
    for number in [4000, 4000, u64::MAX, 425] {
        state.set_r(11, number);
        assert_eq!(thread.syscall(&mut state), longma_linux::Outcome::Continue);
        assert_eq!(state.r(4) as i64, error(libc::ENOSYS));
    }
    let messages = messages.lock().unwrap();
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert!(messages[0].contains("4000"), "{messages:?}");
}

#[test]
fn openat2_resolve_flags_apply_inside_a_root() {
    let mut guest = Guest::confined();
    let root = guest.directory.path().to_owned();
    std::fs::create_dir(root.join("a")).unwrap();
    std::fs::write(root.join("a/file"), "inside").unwrap();
    symlink("file", root.join("a/link")).unwrap();
    let directory = guest.open("/a", READ | libc::O_DIRECTORY) as u64;
    let mut open = |path: &str, resolve: u64| {
        let how: Vec<u8> = [0, 0, resolve].into_iter().flat_map(u64::to_le_bytes).collect();
        let (path, how) = (guest.path(path), guest.put(&how));
        guest.call(437, &[directory, path, how, 24])
    };
    const NO_SYMLINKS: u64 = 4;
    const BENEATH: u64 = 8;
    assert!(open("file", BENEATH) >= 0);
    assert!(open("link", BENEATH) >= 0);
    assert_eq!(open("link", NO_SYMLINKS), error(libc::ELOOP));
    assert_eq!(open("../a/file", BENEATH), error(libc::EXDEV));
    assert_eq!(open("../../../../etc/passwd", NO_SYMLINKS), error(libc::EXDEV));
    assert!(open("../a/file", 0) >= 0);
}

#[test]
fn a_device_cannot_be_made_inside_a_root() {
    let mut guest = Guest::confined();
    let path = guest.path("/disk");
    let (mode, device) = (u64::from(libc::S_IFBLK | 0o600), libc::makedev(8, 0));
    assert_eq!(guest.call(33, &[HERE, path, mode, device]), error(libc::EPERM));
    assert_eq!(guest.call(33, &[HERE, path, u64::from(libc::S_IFIFO | 0o600), 0]), 0);
}

#[test]
fn arguments_that_may_contain_pointers_are_not_passed_to_the_host() {
    let mut guest = Guest::new();
    let file = guest.open("/dev/null", libc::O_RDWR) as u64;
    let buffer = guest.map(0x4000, 3);
    const FIEMAP: u64 = 0xc020_660b;
    const USB_SUBMIT: u64 = 0x8038_550a;
    for request in [FIEMAP, USB_SUBMIT, 0xdead_beef, 0] {
        assert_eq!(guest.call(29, &[file, request, buffer]), error(libc::ENOTTY), "{request:#x}");
    }
    assert_eq!(guest.call(29, &[9999, FIEMAP, buffer]), error(libc::EBADF));
    assert_eq!(guest.call(25, &[file, 4711, buffer]), error(libc::EINVAL));
}

#[test]
fn a_traced_call_is_one_line_with_names() {
    use std::sync::Arc;

    use longma_guest::host::locks::Mutex;
    let lines = Arc::new(Mutex::new(Vec::new()));
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    std::fs::write(&program, guest::smallest()).unwrap();
    let sink = lines.clone();
    let config = longma_linux::ProcessConfig {
        program,
        tracer: Some(Arc::new(move |line: &str| sink.lock().unwrap().push(line.to_owned()))),
        ..Default::default()
    };
    let (_, mut thread, mut state) = longma_linux::Process::load(config).unwrap();
    let mut call = |number: u64, arguments: [u64; 4]| {
        state.set_r(11, number);
        arguments.iter().zip(4..).for_each(|(value, register)| state.set_r(register, *value));
        assert_eq!(thread.syscall(&mut state), longma_linux::Outcome::Continue);
    };
    // The ELF magic is the only text in the smallest program.
    call(OPENAT, [HERE, 0x20_0001, (libc::O_WRONLY | libc::O_CLOEXEC) as u64, 0]);
    call(MMAP, [0, 0, 3, 0x22]);
    let lines = lines.lock().unwrap();
    let rest = |line: &str| line.split_once("] ").unwrap().1.to_owned();
    let opened = rest(&lines[0]);
    assert!(
        opened.starts_with(r#"openat(AT_FDCWD, "ELF\x02\x01\x01", O_WRONLY|O_CLOEXEC, 0o0) = -1 ENOENT (No such file or directory)"#),
        "{opened}"
    );
    let mapped = rest(&lines[1]);
    assert!(
        mapped
            .starts_with("mmap(NULL, 0, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, 0, 0) = -1 EINVAL (Invalid argument)"),
        "{mapped}"
    );
}

#[test]
fn the_host_reports_its_attributes_of_a_file_in_memory() {
    let mut guest = Guest::new();
    std::fs::write(guest.directory.path().join("file"), [1; 3 * 4096]).unwrap();
    let file = guest.open(guest.directory.path().join("file"), READ) as u64;
    let (range, counts) = (guest.put(&[0; 16]), guest.map(0x4000, 3));
    let result = guest.call(CACHESTAT, &[file, range, counts, 0]);
    if result == error(libc::ENOSYS) {
        eprintln!("skipped: this host's kernel is older than 6.5");
        return;
    }
    assert_eq!(result, 0);
    assert_eq!(guest.bytes(counts, 8), 3u64.to_le_bytes(), "pages, which have just been written");
    assert_eq!(guest.call(CACHESTAT, &[file, 1, counts, 0]), error(libc::EFAULT));
    assert_eq!(guest.call(CACHESTAT, &[file, range, 1, 0]), error(libc::EFAULT));
    assert_eq!(guest.call(CACHESTAT, &[file, range, counts, 1]), error(libc::EINVAL));
}
