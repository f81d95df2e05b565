//! Probes parts of the processor and of the kernel, in the way that longma uses them and without changing the host.

use crate::programs;
use crate::reason::reason;
use longma_affinity::counters::Hardware;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A description of the probed part, or of the fault.
type Found = Result<String, String>;

/// Time limit for running the smallest program, even on a host with much other load.
const RUN_LIMIT: Duration = Duration::from_secs(60);

/// Runs the shipped guest `hello` from memory, so that no file is needed.
pub fn run() -> Found {
    let failed = |error: io::Error| format!("cannot be tried: {}", reason(&error));
    let program = longma_shipped::guest("hello").map_err(|error| error.to_string())?;
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let memory = rustix::fs::memfd_create("hello", flags).map_err(|error| failed(error.into()))?;
    let mut file = std::fs::File::from(memory);
    file.write_all(longma_shipped::contents(program)).map_err(failed)?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut command = Command::new("/proc/self/exe");
    command.args(["run", "--fixed-names", "--translation-cache", "none", "--", &path]);
    let ended = programs::output(&mut command, RUN_LIMIT).map_err(failed)?;
    if ended.succeeded && !ended.output.is_empty() {
        Ok("runs a LoongArch64 program".into())
    } else {
        let errors = ended.errors.split_whitespace().collect::<Vec<_>>().join(" ");
        Err(format!("the program does not run: {errors}"))
    }
}

/// The processor features that translated code uses.
pub fn features() -> Found {
    let features = [
        ("AVX2", is_x86_feature_detected!("avx2")),
        ("FMA", is_x86_feature_detected!("fma")),
        ("BMI1", is_x86_feature_detected!("bmi1")),
        ("BMI2", is_x86_feature_detected!("bmi2")),
        ("LZCNT", is_x86_feature_detected!("lzcnt")),
        ("SSE4.2", is_x86_feature_detected!("sse4.2")),
        ("PCLMULQDQ", is_x86_feature_detected!("pclmulqdq")),
    ];
    let names = |wanted| {
        let names = features.iter().filter(|(_, has)| *has == wanted).map(|(name, _)| *name);
        names.collect::<Vec<_>>().join(", ")
    };
    if features.iter().all(|(_, has)| *has) { Ok(names(true)) } else { Err(format!("no {}", names(false))) }
}

/// Allocates a protection key and frees it.
pub fn protection_keys() -> Found {
    // SAFETY: the calls have no pointers.
    let key = unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, 0) };
    if key < 0 {
        return Err(refusal());
    }
    // SAFETY: as above; the key was just allocated and protects nothing.
    unsafe { libc::syscall(libc::SYS_pkey_free, key) };
    Ok("pkey_alloc works".into())
}

pub fn membarrier() -> Found {
    let call = |command: libc::c_int| {
        // SAFETY: the call has no pointers.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    };
    let register = libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE;
    if call(register) && call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE) {
        Ok("private expedited, with synchronized cores".into())
    } else {
        Err(refusal())
    }
}

pub fn openat2() -> Found {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match rustix::fs::openat2(CWD, ".", flags, Mode::empty(), ResolveFlags::IN_ROOT) {
        Ok(_) => Ok("resolves paths inside a folder".into()),
        Err(error) => Err(reason(&error.into())),
    }
}

pub fn landlock() -> Found {
    /// The first version that restricts signals.
    const NEEDED: i64 = 6;
    const VERSION_FLAG: u32 = 1;
    // SAFETY: with this flag the kernel requires a null pointer and a size of 0, and returns a number.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0, VERSION_FLAG)
    };
    match version {
        ..0 => Err(refusal()),
        0..NEEDED => Err(format!("version {version}; --sandbox needs version {NEEDED}")),
        _ => Ok(format!("version {version}")),
    }
}

/// Creates the namespaces of a sandbox in a child, which then exits.
pub fn user_namespaces() -> Found {
    let mut command = Command::new("/proc/self/exe");
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: between fork and exec only unshare is called, which neither allocates nor locks.
    unsafe {
        command.pre_exec(|| {
            let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWIPC;
            if libc::unshare(flags) == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        });
    }
    match command.status() {
        Ok(_) => Ok("user, mount and IPC namespaces can be created".into()),
        Err(error) => Err(reason(&error)),
    }
}

/// Starts counting on CPU 0, as a sweep does.
pub fn counters() -> Found {
    match Hardware::begin(0) {
        Ok(counters) => {
            let counts = counters.end();
            let all = [counts.instructions, counts.cycles, counts.cache_references, counts.cache_misses];
            let working = all.iter().flatten().count();
            Ok(format!("counting on CPU 0; {working} of the {} general counters work", all.len()))
        }
        Err(error) => Err(match error.raw_os_error() {
            Some(libc::ENOENT) => "the processor or its hypervisor provides no counters".into(),
            _ => reason(&error),
        }),
    }
}

/// Maps a huge page from the reserved pool, or else checks whether transparent huge pages are enabled.
pub fn huge_pages() -> Found {
    const BYTES: usize = 2 << 20;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
    // SAFETY: a new mapping at an address chosen by the kernel.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, libc::PROT_READ, flags, -1, 0) };
    if page != libc::MAP_FAILED {
        // SAFETY: it was just mapped, and no reference to it exists.
        unsafe { libc::munmap(page, BYTES) };
        return Ok("reserved by the administrator".into());
    }
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let chosen = setting.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(chosen, _)| chosen);
    match chosen {
        Some(chosen @ ("always" | "madvise")) => Ok(format!("transparent huge pages: {chosen}")),
        Some(chosen) => Err(format!("none reserved; transparent huge pages: {chosen}")),
        None => Err("none reserved, and the kernel has no transparent huge pages".into()),
    }
}

/// Opens an AF_XDP socket, but does not bind it, because that needs an interface.
pub fn af_xdp() -> Found {
    // SAFETY: the call has no pointers.
    let socket = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(match io::Error::last_os_error().raw_os_error() {
            Some(libc::EAFNOSUPPORT) => "the kernel does not support it".into(),
            _ => refusal(),
        });
    }
    // SAFETY: it was just opened.
    drop(unsafe { OwnedFd::from_raw_fd(socket) });
    Ok("sockets can be opened".into())
}

pub fn io_uring() -> Found {
    /// The size of the kernel's `struct io_uring_params`.
    const PARAMETERS_BYTES: usize = 120;
    let mut parameters = [0u64; PARAMETERS_BYTES / 8];
    // SAFETY: the kernel reads and writes a structure of the array's size and alignment.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 2, parameters.as_mut_ptr()) };
    let Ok(ring) = i32::try_from(ring) else { return Err(refusal()) };
    if ring < 0 {
        return Err(refusal());
    }
    // SAFETY: it was just opened.
    drop(unsafe { OwnedFd::from_raw_fd(ring) });
    Ok("rings can be created".into())
}

/// Why the last system call failed.
fn refusal() -> String {
    reason(&io::Error::last_os_error())
}
