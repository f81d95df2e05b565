//! Tests many threads: as many as the host's limits allow a native program; then clone(2) fails as it does natively.
//! Source: clone(2), getrlimit(2) (RLIMIT_NPROC), getrusage(2).

mod programs;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use programs::*;
use tempfile::tempdir;

/// A register that system calls preserve.
const S0: u32 = 23;
/// A user ID that is not in use.
const USER: u32 = 54_321;
/// Maximum number of threads of the user.
const MAX_THREADS: u64 = 400;
/// Offset of `ru_nvcsw` in `struct rusage`.
const WAITS: usize = 128;

/// `lu12i.w d, immediate`
const fn upper(d: u32, immediate: u32) -> u32 {
    0x1400_0000 | (immediate & 0xf_ffff) << 5 | d
}

/// `ori d, j, immediate`
const fn or(d: u32, j: u32, immediate: u32) -> u32 {
    0x0380_0000 | immediate << 10 | j << 5 | d
}

/// `blt j, d`, with the offset as a number of instructions.
const fn if_less(j: u32, d: u32, by: i32) -> u32 {
    0x6000_0000 | (by as u32 & 0xffff) << 10 | j << 5 | d
}

/// `b`, with the offset as a number of instructions.
const fn jump(by: i32) -> u32 {
    0x5000_0000 | (by as u32 & 0xffff) << 10 | (by as u32 >> 16 & 0x3ff)
}

/// Creates blocked threads until that fails or 2000 exist. Writes their number, the result of the last call, and the
/// main thread's resource usage.
const MAKER: [u32; 31] = [
    add(S0, ZERO, 0),
    add(SP, SP, -512),
    // more: CLONE_VM, FS, FILES, SIGHAND, THREAD, SYSVSEM
    upper(A0, 0x50),
    or(A0, A0, 0xf00),
    add(A1, SP, 0),
    add(A2, ZERO, 0),
    add(A3, ZERO, 0),
    add(A7, ZERO, 220),
    SYSCALL,
    bnez(A0, 5),
    // In a new thread: ppoll without descriptors or timeout.
    add(A1, ZERO, 0),
    add(A7, ZERO, 73),
    SYSCALL,
    jump(-3),
    if_less(A0, ZERO, 4),
    add(S0, S0, 1),
    add(A1, ZERO, 2000),
    if_less(S0, A1, -15),
    store(S0, SP, 0),
    store(A0, SP, 8),
    add(A0, ZERO, 1),
    add(A1, SP, 16),
    add(A7, ZERO, 165),
    SYSCALL,
    add(A0, ZERO, 1),
    add(A1, SP, 0),
    add(A2, ZERO, 160),
    add(A7, ZERO, 64),
    SYSCALL,
    EXIT[0],
    EXIT[1],
];

struct Made {
    threads: u64,
    last: i64,
    waits: u64,
}

fn made(command: &mut Command) -> Made {
    let output = finish(command);
    assert_eq!(output.status.code(), Some(160), "{:?} {}", output.status, text(&output.stderr));
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| output.stdout[at + i]));
    Made { threads: word(0), last: word(8) as i64, waits: word(16 + WAITS) }
}

fn own_user() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() }
}

fn is_root() -> bool {
    own_user() == 0
}

/// Number of threads of this user.
fn threads_of_user() -> u64 {
    use std::os::unix::fs::MetadataExt;
    let of = |process: std::fs::DirEntry| {
        let own = process.metadata().is_ok_and(|status| status.uid() == own_user());
        if own {
            std::fs::read_dir(process.path().join("task")).map_or(0, |tasks| tasks.count() as u64)
        } else {
            0
        }
    };
    std::fs::read_dir("/proc").unwrap().flatten().map(of).sum()
}

/// Runs the command as a user that may create [`MAX_THREADS`] more threads. Root has no such limit, so another user is
/// used.
fn limited(command: &mut Command) -> &mut Command {
    let max_threads = if is_root() { MAX_THREADS } else { threads_of_user() + MAX_THREADS };
    let limit = libc::rlimit { rlim_cur: max_threads, rlim_max: max_threads };
    if is_root() {
        command.uid(USER);
    }
    // SAFETY: setrlimit is async-signal-safe.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    }
}

/// Copies the command to a path where every user can execute it.
fn copied(folder: &Path) -> Command {
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).unwrap();
    let longma = folder.join("longma");
    std::fs::copy(env!("CARGO_BIN_EXE_longma"), &longma).unwrap();
    let mut command = Command::new(longma);
    command.arg("run").current_dir(folder).stdin(std::process::Stdio::null());
    command
}

#[test]
fn a_program_has_as_many_threads_as_the_limit_allows_and_then_clone_fails() {
    for options in [&[][..], &["--interpret"], &["--level", "cache"], &["--level", "timing"]] {
        let folder = tempdir().unwrap();
        let maker = place(folder.path(), "maker", &executable(&MAKER, &[]));
        let made = made(limited(copied(folder.path()).args(options).arg(&maker)));
        assert_eq!(made.last, i64::from(-libc::EAGAIN), "{options:?}");
        assert!(
            (MAX_THREADS * 9 / 10..MAX_THREADS).contains(&made.threads),
            "{options:?}: {} threads",
            made.threads
        );
    }
}

/// On a busy host, each wait would cost a scheduling round.
#[test]
fn clone_does_not_wait_for_the_new_thread() {
    let folder = tempdir().unwrap();
    let maker = place(folder.path(), "maker", &executable(&MAKER, &[]));
    let made = made(longma_run().arg(&maker));
    assert_eq!(made.threads, 2000);
    assert!(made.waits < made.threads / 2, "{} waits", made.waits);
}
