//! The emulator's own descriptors, which no guest can name, and the limit of open files that a guest sees.
//! Not the guest's descriptors: those are the host's below [`first`].
//! Source: getrlimit(2) (RLIMIT_NOFILE bounds new descriptors, not those that are open; prlimit), fcntl(2) (F_DUPFD_CLOEXEC), dup(2).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Errno;
use crate::host::host_call;
use crate::host::locks::{Lazy, Mutex, MutexGuard, RwLock};

/// Ours begin below this even if the host allows more: the kernel's table of descriptors reaches as far as the highest.
const MOST: u64 = 1 << 16;
/// A quarter of all descriptors is ours, but no more than this.
const MOST_OWN: u64 = 512;
/// What a run needs at least: messages, traces, the root, a debugger, the pipe of a fork.
const LEAST_OWN: u64 = 8;
/// How often to try again when another thread has taken the room away.
const TRIES: usize = 64;
/// No limit is set yet.
const UNSET: u64 = u64::MAX;

/// The guest's limit of open files: descriptors are below `soft`, which the guest may raise as far as `hard`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// RLIMIT_NOFILE's soft limit.
    pub soft: u64,
    /// RLIMIT_NOFILE's hard limit.
    pub hard: u64,
}

/// What a simulated program is told on every host: Linux's own defaults (include/asm-generic/resource.h). Where the host allows less,
/// descriptors still end where ours begin.
pub const CONSTANT: Limit = Limit { soft: 1024, hard: 4096 };

static SOFT: AtomicU64 = AtomicU64::new(UNSET);
static HARD: AtomicU64 = AtomicU64::new(UNSET);
/// The soft limit that the host has been given last.
static GIVEN: AtomicU64 = AtomicU64::new(UNSET);

/// Where ours begin, and where they end.
fn range() -> (u64, u64) {
    static RANGE: Lazy<(u64, u64)> = Lazy::new(|| {
        let end = host_limit().rlim_max.min(MOST);
        (end.saturating_sub((end / 4).clamp(LEAST_OWN, MOST_OWN)), end)
    });
    *RANGE
}

/// The first descriptor of ours. Those of guests are below.
pub fn first() -> RawFd {
    range().0 as RawFd
}

/// Whether a guest's argument, of which the host looks at 32 bits, names a descriptor of ours.
pub fn is_own(argument: u64) -> bool {
    argument as i32 >= first()
}

fn host_limit() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is there to be filled; the call cannot fail for this resource.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit
}

/// While the threads are counted that need room, or before there are others.
fn set_host_soft(soft: u64) {
    let limit = libc::rlimit { rlim_cur: soft.min(range().1), ..host_limit() };
    GIVEN.store(limit.rlim_cur, Ordering::Relaxed);
    // A soft limit may be anything up to the hard one.
    // SAFETY: the structure is live.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
}

/// Takes the upper descriptors of this process for the emulator: before it opens anything that it keeps. `handed` is the guest's
/// limit if it has one already, because it has executed another program; otherwise, if `is_constant`, it is [`CONSTANT`], whatever the
/// host's is. Until [`hand_over`] the guest's limit does not hold.
///
/// # Errors
/// The host allows so few descriptors that none would be left.
pub fn begin(handed: Option<Limit>, is_constant: bool) -> io::Result<()> {
    let (first, end) = range();
    if end < 4 * LEAST_OWN {
        let told =
            format!("it may have {end} open files, which are too few; raise `ulimit -n` to 64 or more");
        return Err(io::Error::other(told));
    }
    let host = Limit { soft: host_limit().rlim_cur.min(first), hard: first };
    let limit = handed.unwrap_or(if is_constant { CONSTANT } else { host });
    let most = if is_constant { u64::MAX } else { first };
    HARD.store(limit.hard.min(most), Ordering::Relaxed);
    SOFT.store(limit.soft.min(most), Ordering::Relaxed);
    set_host_soft(end);
    if handed.is_some() {
        close_with_the_next_program();
    }
    Ok(())
}

/// What the program before has left open for this one goes when it executes the next.
fn close_with_the_next_program() {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let own = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok());
    for descriptor in own.filter(|descriptor| *descriptor >= first()) {
        // SAFETY: no pointers; the descriptor is the emulator's.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// From now on new descriptors are the guest's.
pub fn hand_over() {
    let rooms = rooms();
    if *rooms == 0 {
        set_host_soft(known_limit().soft.min(range().0));
    }
}

/// The guest's limit.
pub fn limit() -> Limit {
    let _rooms = rooms();
    known_limit()
}

/// What another process has set meanwhile is the guest's limit from now on. While the threads are counted that need room.
fn notice() {
    let found = host_limit().rlim_cur;
    let given = GIVEN.load(Ordering::Relaxed);
    if given != UNSET && found != given && found <= range().0 {
        SOFT.store(found.min(HARD.load(Ordering::Relaxed)), Ordering::Relaxed);
        GIVEN.store(found, Ordering::Relaxed);
    }
}

/// Looks also at what the host has been told. While the threads are counted that need room.
fn known_limit() -> Limit {
    notice();
    let first = range().0;
    let known = |value: &AtomicU64, other: u64| match value.load(Ordering::Relaxed) {
        UNSET => other.min(first),
        known => known,
    };
    Limit { soft: known(&SOFT, host_limit().rlim_cur), hard: known(&HARD, first) }
}

/// Sets the guest's limit as setrlimit(2) does.
pub fn set_limit(new: Limit) -> Result<(), Errno> {
    check_limit(new)?;
    let rooms = rooms();
    notice();
    HARD.store(new.hard, Ordering::Relaxed);
    SOFT.store(new.soft, Ordering::Relaxed);
    drop(rooms);
    hand_over();
    Ok(())
}

/// Whether setrlimit(2) would take a limit.
fn check_limit(new: Limit) -> Result<(), Errno> {
    if new.soft > new.hard {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: geteuid has no arguments and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    let now = limit().hard;
    if new.hard > range().0.max(now) || new.hard > now && !is_root { Err(Errno(libc::EPERM)) } else { Ok(()) }
}

/// The limit of another process in which a guest runs, and what it is to be from now on if that is given: prlimit(2). Its emulator finds
/// the soft limit at the host. The hard one, which bounds the emulator's own descriptors, stays, and is taken to be ours, as a child's is.
pub fn limit_of_another(process: u64, new: Option<Limit>) -> Result<Limit, Errno> {
    let mut host = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let resource = u64::from(super::resources::NOFILE);
    // SAFETY: the structure is there to be filled.
    unsafe { host_call(libc::SYS_prlimit64, [process, resource, 0, (&raw mut host) as u64, 0, 0]) }?;
    let hard = limit().hard;
    let former = Limit { soft: host.rlim_cur.min(range().0).min(hard), hard };
    if let Some(new) = new {
        check_limit(new)?;
        host.rlim_cur = new.soft.min(range().0).min(host.rlim_max);
        // SAFETY: the structure is live.
        unsafe { host_call(libc::SYS_prlimit64, [process, resource, (&raw const host) as u64, 0, 0, 0]) }?;
    }
    Ok(former)
}

/// How many threads need room at the moment.
static ROOMS: Mutex<u32> = Mutex::new(0);

fn rooms() -> MutexGuard<'static, u32> {
    ROOMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While it lives, descriptors can be made though the guest has as many as it may.
#[derive(Debug)]
pub struct Room(());

impl Room {
    /// From now on.
    pub fn make() -> Self {
        let mut rooms = rooms();
        *rooms += 1;
        notice();
        set_host_soft(range().1);
        Self(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut rooms = rooms();
        *rooms = rooms.saturating_sub(1);
        if *rooms == 0 {
            set_host_soft(known_limit().soft.min(range().0));
        }
    }
}

/// In a forked child: the threads that needed room are the parent's.
pub fn forget_rooms() {
    *rooms() = 0;
    hand_over();
}

/// Makes descriptors, though the guest may have as many as it may.
pub fn with_room<T>(mut make: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let lacks_room = |made: &io::Result<T>| {
        let error = made.as_ref().err().and_then(io::Error::raw_os_error);
        matches!(error, Some(libc::EMFILE | libc::EINVAL))
    };
    let mut made = make();
    for _ in 0..TRIES {
        if !lacks_room(&made) {
            break;
        }
        let _room = Room::make();
        made = make();
    }
    made
}

/// The same file at a descriptor of ours, which goes when another program is executed.
///
/// # Errors
/// None of ours is left.
pub fn duplicate(descriptor: RawFd) -> io::Result<OwnedFd> {
    duplicated(descriptor, libc::F_DUPFD_CLOEXEC)
}

/// The same file at a descriptor of ours that survives execve.
pub fn duplicate_for_the_next_program(descriptor: RawFd) -> io::Result<OwnedFd> {
    duplicated(descriptor, libc::F_DUPFD)
}

fn duplicated(descriptor: RawFd, command: i32) -> io::Result<OwnedFd> {
    with_room(|| {
        // SAFETY: no pointers; a new descriptor disturbs nobody.
        owned(unsafe { libc::fcntl(descriptor, command, first()) })
    })
}

/// Moves a file out of every guest's reach, to a descriptor of ours.
///
/// # Errors
/// None of ours is left.
pub fn keep(file: OwnedFd) -> io::Result<OwnedFd> {
    if file.as_raw_fd() >= first() { Ok(file) } else { duplicate(file.as_raw_fd()) }
}

/// For reading: a descriptor of ours is in the guest's range for a moment. For writing: a guest's call may give a number to another file.
static NUMBERS: RwLock<()> = RwLock::new(());

/// While it lives, no guest's call closes a descriptor or puts another file in its place, see [`replace`], and nobody forks.
pub fn numbers_stay() -> impl Sized {
    NUMBERS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Moves what `make` makes, which must not wait for another thread of the guest, out of every guest's reach, before one of them can
/// put another file in its place.
///
/// # Errors
/// Those of `make`, or none of ours is left.
pub fn keep_new(make: impl FnOnce() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    let _stay = numbers_stay();
    Ok(keep(make()?)?)
}

/// Makes a call of the guest's that may close a descriptor, or put another file in its place.
pub fn replace<T>(call: impl FnOnce() -> T) -> T {
    let _numbers = NUMBERS.write().unwrap_or_else(PoisonError::into_inner);
    call()
}

/// What a call that makes no descriptor itself says of its success.
pub fn done(returned: i32) -> io::Result<()> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The descriptor that a call has just made, or why it has not.
pub fn owned(made: RawFd) -> io::Result<OwnedFd> {
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller has just made it, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_out_of_every_guests_reach() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let kept = keep(file.into()).unwrap();
        assert!(kept.as_raw_fd() >= first() && is_own(kept.as_raw_fd() as u64));
        assert!(limit().hard <= first() as u64);
        assert!(!is_own(first() as u64 - 1) && !is_own(libc::AT_FDCWD as u64) && !is_own(u64::MAX));
        // The host looks at the lower half of the register.
        assert!(is_own(1 << 32 | kept.as_raw_fd() as u64));
    }

    #[test]
    fn the_guests_limit_ends_where_ours_begin() {
        let own = first() as u64;
        assert_eq!(set_limit(Limit { soft: 10, hard: own + 1 }), Err(Errno(libc::EPERM)));
        assert_eq!(set_limit(Limit { soft: own, hard: own - 1 }), Err(Errno(libc::EINVAL)));
    }
}
