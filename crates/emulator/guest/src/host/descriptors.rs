//! Reserves the upper file descriptors of the process for the emulator, and emulates the RLIMIT_NOFILE limit of the
//! guest. Guest descriptors are host descriptors below [`first`]. Source: getrlimit(2) (RLIMIT_NOFILE limits new
//! descriptors, not open ones; prlimit), fcntl(2) (F_DUPFD_CLOEXEC), dup(2).

use longma_locks::IgnorePoison;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Errno;
use crate::host::host_call;
use crate::host::locks::{Lazy, Mutex, MutexGuard, RwLock};

/// Upper bound for all descriptors, even if the host allows more: the size of the kernel's descriptor table depends on
/// the highest one.
const MAX_DESCRIPTORS: u64 = 1 << 16;
/// Maximum number of emulator descriptors. The emulator gets a quarter of all descriptors, but not more than this.
const MAX_RESERVED: u64 = 512;
/// Minimum number of emulator descriptors: messages, traces, the root, a debugger, the pipe of a fork.
const MIN_RESERVED: u64 = 8;
/// How often to retry when another thread lowers the limit concurrently.
const MAX_RETRIES: usize = 64;
/// Marks a limit that is not set yet.
const UNSET: u64 = u64::MAX;

/// The guest's RLIMIT_NOFILE. Descriptors are below `soft`, which the guest may raise up to `hard`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The soft limit.
    pub soft: u64,
    /// The hard limit.
    pub hard: u64,
}

/// The limit of a simulated program, equal on all hosts: the Linux defaults (include/asm-generic/resource.h). If the
/// host allows fewer descriptors, guest descriptors still end at [`first`].
pub const CONSTANT: Limit = Limit { soft: 1024, hard: 4096 };

static SOFT: AtomicU64 = AtomicU64::new(UNSET);
static HARD: AtomicU64 = AtomicU64::new(UNSET);
/// The soft limit last set on the host.
static LAST_SET: AtomicU64 = AtomicU64::new(UNSET);

/// The first emulator descriptor, and the end of all descriptors.
fn range() -> (u64, u64) {
    static RANGE: Lazy<(u64, u64)> = Lazy::new(|| {
        let end = host_limit().rlim_max.min(MAX_DESCRIPTORS);
        (end.saturating_sub((end / 4).clamp(MIN_RESERVED, MAX_RESERVED)), end)
    });
    *RANGE
}

/// The first descriptor of the emulator. All guest descriptors are below it.
pub fn first() -> RawFd {
    range().0 as RawFd
}

/// Whether a system call argument names an emulator descriptor. The host reads only the low 32 bits.
pub fn is_reserved(argument: u64) -> bool {
    argument as i32 >= first()
}

fn host_limit() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writes. The call cannot fail for this resource.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit
}

/// Sets the host's soft limit. The caller holds the lock of [`RAISED`], or the process has only one thread.
fn set_host_soft(soft: u64) {
    let limit = libc::rlimit { rlim_cur: soft.min(range().1), ..host_limit() };
    LAST_SET.store(limit.rlim_cur, Ordering::Relaxed);
    // A soft limit may have any value up to the hard limit. SAFETY: `limit` is valid for reads.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
}

/// Reserves the upper descriptors of this process for the emulator. Call it before the emulator opens long-lived
/// descriptors. `inherited` is the guest's limit that survived an execve. Without it, the limit is [`CONSTANT`] if
/// `is_constant` is true, and the host's otherwise. The guest's limit takes effect with [`apply_guest_limit`].
///
/// # Errors
/// The host allows too few descriptors.
pub fn begin(inherited: Option<Limit>, is_constant: bool) -> io::Result<()> {
    let (first, end) = range();
    if end < 4 * MIN_RESERVED {
        let problem = format!("the limit of {end} open files is too low; raise `ulimit -n` to 64 or more");
        return Err(io::Error::other(problem));
    }
    let host = Limit { soft: host_limit().rlim_cur.min(first), hard: first };
    let limit = inherited.unwrap_or(if is_constant { CONSTANT } else { host });
    let cap = if is_constant { u64::MAX } else { first };
    HARD.store(limit.hard.min(cap), Ordering::Relaxed);
    SOFT.store(limit.soft.min(cap), Ordering::Relaxed);
    set_host_soft(end);
    if inherited.is_some() {
        set_close_on_exec();
    }
    Ok(())
}

/// Sets close-on-exec on all emulator descriptors that the previous program passed to this one.
fn set_close_on_exec() {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let descriptors = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok());
    for descriptor in descriptors.filter(|descriptor| *descriptor >= first()) {
        // SAFETY: the call takes no pointers, and the descriptor belongs to the emulator.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// Puts the guest's limit into effect: new descriptors get guest numbers.
pub fn apply_guest_limit() {
    let raised = raised();
    if *raised == 0 {
        set_host_soft(current_limit().soft.min(range().0));
    }
}

/// The guest's limit.
pub fn limit() -> Limit {
    let _raised = raised();
    current_limit()
}

/// Adopts a soft limit that another process set with prlimit. The caller holds the lock of [`RAISED`].
fn adopt_host_limit() {
    let host_soft = host_limit().rlim_cur;
    let last_set = LAST_SET.load(Ordering::Relaxed);
    if last_set != UNSET && host_soft != last_set && host_soft <= range().0 {
        SOFT.store(host_soft.min(HARD.load(Ordering::Relaxed)), Ordering::Relaxed);
        LAST_SET.store(host_soft, Ordering::Relaxed);
    }
}

/// The guest's limit, including changes made by other processes. The caller holds the lock of [`RAISED`].
fn current_limit() -> Limit {
    adopt_host_limit();
    let first = range().0;
    let set_or = |value: &AtomicU64, other: u64| match value.load(Ordering::Relaxed) {
        UNSET => other.min(first),
        set_or => set_or,
    };
    Limit { soft: set_or(&SOFT, host_limit().rlim_cur), hard: set_or(&HARD, first) }
}

/// Sets the guest's limit as setrlimit(2) does.
///
/// # Errors
/// As setrlimit(2): EINVAL or EPERM.
pub fn set_limit(new: Limit) -> Result<(), Errno> {
    check_limit(new)?;
    let raised = raised();
    adopt_host_limit();
    HARD.store(new.hard, Ordering::Relaxed);
    SOFT.store(new.soft, Ordering::Relaxed);
    drop(raised);
    apply_guest_limit();
    Ok(())
}

/// Checks whether setrlimit(2) accepts a limit.
fn check_limit(new: Limit) -> Result<(), Errno> {
    if new.soft > new.hard {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: the call takes no arguments and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    let now = limit().hard;
    if new.hard > range().0.max(now) || new.hard > now && !is_root { Err(Errno(libc::EPERM)) } else { Ok(()) }
}

/// Reads the limit of another process that runs a guest and, if `new` is given, sets it: prlimit(2). That process
/// adopts the soft limit from the host. The hard limit, which protects the emulator's descriptors, does not change; it
/// is assumed to equal this process's hard limit.
///
/// # Errors
/// Those of prlimit(2).
pub fn limit_of_process(process: u64, new: Option<Limit>) -> Result<Limit, Errno> {
    let mut host = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let resource = u64::from(super::resources::NOFILE);
    // SAFETY: `host` is valid for writes.
    unsafe { host_call(libc::SYS_prlimit64, [process, resource, 0, (&raw mut host) as u64, 0, 0]) }?;
    let hard = limit().hard;
    let previous = Limit { soft: host.rlim_cur.min(range().0).min(hard), hard };
    if let Some(new) = new {
        check_limit(new)?;
        host.rlim_cur = new.soft.min(range().0).min(host.rlim_max);
        // SAFETY: `host` is valid for reads.
        unsafe { host_call(libc::SYS_prlimit64, [process, resource, (&raw const host) as u64, 0, 0, 0]) }?;
    }
    Ok(previous)
}

/// The number of threads that currently need emulator descriptors. While it is not zero, the host's soft limit is
/// raised.
static RAISED: Mutex<u32> = Mutex::new(0);

fn raised() -> MutexGuard<'static, u32> {
    RAISED.lock().ignore_poison()
}

/// While a value exists, descriptors can be created even if the guest has reached its limit.
#[derive(Debug)]
pub struct RaisedLimit(());

impl RaisedLimit {
    /// Raises the host's limit.
    pub fn raise() -> Self {
        let mut raised = raised();
        *raised += 1;
        adopt_host_limit();
        set_host_soft(range().1);
        Self(())
    }
}

impl Drop for RaisedLimit {
    fn drop(&mut self) {
        let mut raised = raised();
        *raised = raised.saturating_sub(1);
        if *raised == 0 {
            set_host_soft(current_limit().soft.min(range().0));
        }
    }
}

/// Resets the count in a forked child, where the other threads of the parent do not exist.
pub fn reset_raised_limit() {
    *raised() = 0;
    apply_guest_limit();
}

/// Calls `make`, and calls it again with a raised limit if it fails because the guest has reached its limit.
///
/// # Errors
/// Those of `make`.
pub fn with_raised_limit<T>(mut make: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let is_limit_reached = |result: &io::Result<T>| {
        let error = result.as_ref().err().and_then(io::Error::raw_os_error);
        matches!(error, Some(libc::EMFILE | libc::EINVAL))
    };
    let mut result = make();
    for _ in 0..MAX_RETRIES {
        if !is_limit_reached(&result) {
            break;
        }
        let _raised = RaisedLimit::raise();
        result = make();
    }
    result
}

/// Duplicates a descriptor to an emulator descriptor with close-on-exec.
///
/// # Errors
/// No emulator descriptor is free.
pub fn duplicate(descriptor: RawFd) -> io::Result<OwnedFd> {
    duplicated(descriptor, libc::F_DUPFD_CLOEXEC)
}

/// Duplicates a descriptor to an emulator descriptor that survives execve.
///
/// # Errors
/// No emulator descriptor is free.
pub fn duplicate_across_exec(descriptor: RawFd) -> io::Result<OwnedFd> {
    duplicated(descriptor, libc::F_DUPFD)
}

fn duplicated(descriptor: RawFd, command: i32) -> io::Result<OwnedFd> {
    with_raised_limit(|| {
        // SAFETY: the call takes no pointers, and a new descriptor affects no other code.
        owned(unsafe { libc::fcntl(descriptor, command, first()) })
    })
}

/// Moves a file to an emulator descriptor, which the guest cannot name.
///
/// # Errors
/// No emulator descriptor is free.
pub fn move_to_reserved(file: OwnedFd) -> io::Result<OwnedFd> {
    if file.as_raw_fd() >= first() { Ok(file) } else { duplicate(file.as_raw_fd()) }
}

/// Held for reading while an emulator file temporarily has a guest descriptor. Held for writing while a guest call may
/// reassign a descriptor.
static REASSIGNMENT: RwLock<()> = RwLock::new(());

/// While the returned guard exists, no guest call closes or reassigns a descriptor (see [`with_reassignment`]), and no
/// thread forks.
pub fn block_reassignment() -> impl Sized {
    REASSIGNMENT.read().ignore_poison()
}

/// Calls `make` and moves the new file to an emulator descriptor before a guest thread can reassign its number. `make`
/// must not wait for another guest thread.
///
/// # Errors
/// Those of `make`, or no emulator descriptor is free.
pub fn open_reserved(make: impl FnOnce() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    let _no_reassignment = block_reassignment();
    Ok(move_to_reserved(make()?)?)
}

/// Runs a guest call that may close or reassign a descriptor.
pub fn with_reassignment<T>(call: impl FnOnce() -> T) -> T {
    let _exclusive = REASSIGNMENT.write().ignore_poison();
    call()
}

/// Converts the return value of a call that creates no descriptor into a result.
pub fn done(returned: i32) -> io::Result<()> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes ownership of a descriptor that a call returned, or reads errno if the call failed.
pub fn owned(returned: RawFd) -> io::Result<OwnedFd> {
    if returned < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller has just created the descriptor, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(returned) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_descriptor_is_outside_every_guest_limit() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let reserved = move_to_reserved(file.into()).unwrap();
        assert!(reserved.as_raw_fd() >= first() && is_reserved(reserved.as_raw_fd() as u64));
        assert!(limit().hard <= first() as u64);
        assert!(
            !is_reserved(first() as u64 - 1) && !is_reserved(libc::AT_FDCWD as u64) && !is_reserved(u64::MAX)
        );
        // The host reads only the low half of the register.
        assert!(is_reserved(1 << 32 | reserved.as_raw_fd() as u64));
    }

    #[test]
    fn the_guest_limit_ends_at_the_first_reserved_descriptor() {
        let reserved = first() as u64;
        assert_eq!(set_limit(Limit { soft: 10, hard: reserved + 1 }), Err(Errno(libc::EPERM)));
        assert_eq!(set_limit(Limit { soft: reserved, hard: reserved - 1 }), Err(Errno(libc::EINVAL)));
    }
}
