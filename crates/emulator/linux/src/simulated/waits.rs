//! Blocking host calls in simulated time: they are made without blocking, and repeated after an event. poll and similar
//! calls are in `polling`. Source: fcntl(2) (O_NONBLOCK), pipe(7), socket(7), signal(7) (calls that never restart),
//! wait(2).

use std::os::fd::RawFd;

use longma_guest::Errno;
use longma_guest::host::calls::interruptible_on_host;
use longma_guest::host::host_call;
use longma_guest::words::words_of;
use longma_sim::{Duration, Time};

use super::{Arguments, AwaitedFile, Context, Returned, Simulation, Sleep, Wakeup, polling};
use crate::open_files::{self, is_ready, status_of};

const AGAIN: Errno = Errno(libc::EAGAIN);
const READ: i16 = libc::POLLIN;
const WRITE: i16 = libc::POLLOUT;

/// The condition for which a host call may block. A row of the table of system calls, or the function of a row,
/// specifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockingCondition {
    /// A device, such as a disk, which is outside the model and takes no simulated time.
    Device,
    /// The descriptor in the first argument.
    Descriptor {
        /// Reading or writing.
        events: i16,
        /// The index of the argument with MSG_ flags, if there is one.
        flags: Option<usize>,
    },
    /// A connection.
    Connection,
    /// A child. The index of the argument with the options.
    Child(usize),
    /// A lock of flock or fcntl.
    Lock,
    /// The other end of a FIFO, opened by another process, in openat and openat2.
    FifoPeer,
    /// Files, or a timeout; see `polling`.
    Files,
    /// Signals: rt_sigsuspend and rt_sigtimedwait.
    Signals,
    /// A System V queue. The index of the argument with IPC_NOWAIT.
    Queue(usize),
    /// A condition that cannot be checked without blocking.
    Unknown,
}

impl BlockingCondition {
    /// The descriptor is readable.
    pub(crate) const INPUT: Self = Self::Descriptor { events: READ, flags: None };
    /// The descriptor is writable.
    pub(crate) const OUTPUT: Self = Self::Descriptor { events: WRITE, flags: None };

    /// Like [`BlockingCondition::INPUT`], unless the MSG_ flags in this argument say not to block.
    pub(crate) const fn message(flags: usize) -> Self {
        Self::Descriptor { events: READ, flags: Some(flags) }
    }

    /// Like [`BlockingCondition::OUTPUT`], with MSG_ flags.
    pub(crate) const fn output_message(flags: usize) -> Self {
        Self::Descriptor { events: WRITE, flags: Some(flags) }
    }
}

/// Makes host call `number`, which may block for `waits`, unless this thread's attention is requested before it begins,
/// see [`interruptible_on_host`]. In simulated time, other threads run while the call would block.
///
/// # Errors
/// As for [`interruptible_on_host`].
///
/// # Safety
/// As for [`interruptible_on_host`]. In addition, `waits` must match the call and its arguments.
pub(crate) unsafe fn interruptible(number: i64, waits: BlockingCondition, arguments: Arguments) -> Returned {
    match super::current() {
        // SAFETY: the caller upholds the contract.
        Some(context) => unsafe { wait(&context, number, waits, arguments) },
        // SAFETY: the caller upholds the contract.
        None => unsafe { interruptible_on_host(number, arguments) },
    }
}

/// Makes a host call that may block; other threads run while it would.
///
/// # Safety
/// As for [`interruptible_on_host`].
unsafe fn wait(context: &Context, number: i64, waits: BlockingCondition, arguments: Arguments) -> Returned {
    // SAFETY: the caller upholds the contract: the arguments are those of the call.
    unsafe {
        match waits {
            BlockingCondition::Device => interruptible_on_host(number, arguments),
            BlockingCondition::Descriptor { events, flags } => {
                transfer(context, number, arguments, events, flags)
            }
            BlockingCondition::Connection => connect(context, arguments),
            BlockingCondition::Child(options) => wait_for_child(context, number, arguments, options),
            BlockingCondition::Lock => take_lock(context, number, arguments),
            BlockingCondition::FifoPeer => open(context, number, arguments),
            BlockingCondition::Files => polling::wait(context, number, arguments),
            BlockingCondition::Signals => polling::wait_for_signal(context, number, arguments),
            BlockingCondition::Queue(flags) => {
                let mut nonblocking = arguments;
                nonblocking[flags] |= libc::IPC_NOWAIT as u64;
                let result = host_call(number, nonblocking);
                let may_block = arguments[flags] as i32 & libc::IPC_NOWAIT == 0;
                match result {
                    Err(Errno(libc::EAGAIN | libc::ENOMSG)) if may_block => {
                        run_blocking(context, number, arguments)
                    }
                    _ => result,
                }
            }
            BlockingCondition::Unknown => run_blocking(context, number, arguments),
        }
    }
}

/// Makes a blocking call on the host while other threads run.
///
/// # Safety
/// As for [`interruptible_on_host`].
unsafe fn run_blocking(context: &Context, number: i64, arguments: Arguments) -> Returned {
    let mut returned = Err(Errno::RESTART);
    let mut call = || {
        // SAFETY: the caller upholds the contract.
        returned = unsafe { interruptible_on_host(number, arguments) };
    };
    context.simulation.scheduler.run_blocking(context.thread, &mut call);
    returned
}

/// How an open file behaves with respect to blocking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockingBehaviour {
    /// Never blocks: a file, a directory, or an invalid descriptor.
    Immediate,
    /// Other processes have it open, so its mode must not change.
    Inherited,
    /// The process has created it.
    Own,
}

/// Device and inode of the open files that may block.
pub(super) fn blocking_files() -> Vec<(u64, u64)> {
    open_files::all()
        .unwrap_or_default()
        .into_iter()
        .filter_map(status_of)
        .filter(|status| matches!(status.st_mode & libc::S_IFMT, libc::S_IFIFO | libc::S_IFSOCK))
        .map(|status| (status.st_dev, status.st_ino))
        .collect()
}

fn blocking_behaviour(simulation: &Simulation, descriptor: RawFd) -> BlockingBehaviour {
    let Some(status) = status_of(descriptor) else { return BlockingBehaviour::Immediate };
    match status.st_mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFDIR | libc::S_IFBLK | libc::S_IFLNK => BlockingBehaviour::Immediate,
        // A terminal may have other users.
        libc::S_IFCHR => BlockingBehaviour::Inherited,
        libc::S_IFIFO | libc::S_IFSOCK if simulation.inherited.contains(&(status.st_dev, status.st_ino)) => {
            BlockingBehaviour::Inherited
        }
        _ => BlockingBehaviour::Own,
    }
}

/// Whether another process or the network may make a file ready.
pub(super) fn reaches_outside(simulation: &Simulation, descriptor: RawFd) -> bool {
    let Some(status) = status_of(descriptor) else { return false };
    let shared = simulation.has_forked.load(std::sync::atomic::Ordering::Relaxed);
    match status.st_mode & libc::S_IFMT {
        libc::S_IFCHR => true,
        libc::S_IFIFO => shared || blocking_behaviour(simulation, descriptor) == BlockingBehaviour::Inherited,
        libc::S_IFSOCK => {
            shared
                || blocking_behaviour(simulation, descriptor) == BlockingBehaviour::Inherited
                || is_network(descriptor)
        }
        // Eventfd, epoll and others. The kernel lists the files in an epoll set.
        0 => awaited_by_epoll(descriptor)
            .into_iter()
            .any(|inner| inner != descriptor && reaches_outside(simulation, inner)),
        _ => false,
    }
}

/// Whether a socket is reachable from outside: it is not one of a pair of unnamed sockets.
fn is_network(descriptor: RawFd) -> bool {
    let mut address = [0u8; 128];
    let mut bytes = address.len() as libc::socklen_t;
    // SAFETY: the buffer has this many bytes.
    let named = unsafe { libc::getsockname(descriptor, address.as_mut_ptr().cast(), &raw mut bytes) };
    let family = u16::from_ne_bytes([address[0], address[1]]);
    let is_unnamed = i32::from(family) == libc::AF_UNIX && bytes as usize <= size_of::<libc::sa_family_t>();
    named != 0 || !is_unnamed
}

/// The descriptors in an epoll set.
fn awaited_by_epoll(descriptor: RawFd) -> Vec<RawFd> {
    let facts = open_files::facts(descriptor).unwrap_or_default();
    facts
        .lines()
        .filter_map(|line| line.strip_prefix("tfd:")?.split_whitespace().next()?.parse().ok())
        .collect()
}

/// Reads or writes.
///
/// # Safety
/// As for [`interruptible_on_host`].
unsafe fn transfer(
    context: &Context,
    number: i64,
    mut arguments: Arguments,
    events: i16,
    flags: Option<usize>,
) -> Returned {
    let descriptor = arguments[0] as RawFd;
    // SAFETY: the caller upholds the contract.
    let on_host = |arguments: Arguments| unsafe { interruptible_on_host(number, arguments) };
    let nonblocking = flags.is_some_and(|index| arguments[index] as i32 & libc::MSG_DONTWAIT != 0);
    let blocking_behaviour = blocking_behaviour(&context.simulation, descriptor);
    // Output that leaves the model: waiting for the reader takes no simulated time.
    let leaves_model = blocking_behaviour == BlockingBehaviour::Inherited && events == WRITE;
    if nonblocking || blocking_behaviour == BlockingBehaviour::Immediate || leaves_model {
        return on_host(arguments);
    }
    let mut output = Output::default();
    let mut limit = None;
    loop {
        // SAFETY: F_GETFL takes no pointers.
        let mode = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
        if mode < 0 || mode & libc::O_NONBLOCK != 0 {
            return on_host(arguments);
        }
        let returned = if blocking_behaviour == BlockingBehaviour::Inherited {
            if is_ready(descriptor, events) { return on_host(arguments) } else { Err(AGAIN) }
        } else {
            // No other thread runs, so none sees the temporary mode. SAFETY: the call takes no pointers.
            unsafe { libc::fcntl(descriptor, libc::F_SETFL, mode | libc::O_NONBLOCK) };
            // SAFETY: the caller upholds the contract.
            let returned = unsafe { host_call(number, arguments) };
            // SAFETY: as above.
            unsafe { libc::fcntl(descriptor, libc::F_SETFL, mode) };
            returned
        };
        match returned {
            Ok(transferred) => match output.advance(number, &mut arguments, transferred) {
                Some(total) => return Ok(total),
                None => {
                    context.simulation.scheduler.files_changed();
                    continue;
                }
            },
            Err(AGAIN) => {}
            Err(error) => return output.progress_or(error),
        }
        let deadline = *limit.get_or_insert_with(|| deadline_of(&context.simulation, descriptor, events));
        let files = vec![AwaitedFile { descriptor, events }];
        let has_side_effects = output.done > 0;
        let sleep = Sleep { deadline, files, has_side_effects, reason: "a file", ..Sleep::default() };
        match context.simulation.scheduler.sleep(context.thread, sleep) {
            Wakeup::Woken => {}
            Wakeup::TimedOut => return output.progress_or(AGAIN),
            // A call with a time limit does not restart, because the limit would start again.
            Wakeup::Signalled if deadline.is_some() => return output.progress_or(Errno(libc::EINTR)),
            Wakeup::Signalled | Wakeup::NotBegun => return output.progress_or(Errno::RESTART),
        }
    }
}

/// The progress of a blocking write, which continues until everything is written.
#[derive(Default)]
struct Output {
    done: u64,
    /// The remaining buffers of writev.
    vectors: Vec<libc::iovec>,
}

impl Output {
    /// Records that `transferred` more bytes are written. Returns `None` if there are more, after updating the
    /// arguments; otherwise the total.
    fn advance(&mut self, number: i64, arguments: &mut Arguments, transferred: u64) -> Option<u64> {
        self.done += transferred;
        let more = match number {
            libc::SYS_write | libc::SYS_sendto => {
                arguments[1] += transferred;
                arguments[2] -= transferred;
                arguments[2] > 0
            }
            libc::SYS_writev => self.advance_vectors(arguments, transferred),
            _ => false,
        };
        // A call on a datagram, or on a file that accepts no more bytes, is complete. The result is the number
        // transferred.
        if more && transferred > 0 { None } else { Some(self.done) }
    }

    fn advance_vectors(&mut self, arguments: &mut Arguments, mut transferred: u64) -> bool {
        if self.vectors.is_empty() {
            // SAFETY: the call has just read this array.
            let vectors = unsafe {
                std::slice::from_raw_parts(arguments[1] as *const libc::iovec, arguments[2] as usize)
            };
            self.vectors = vectors.to_vec();
        }
        self.vectors.retain_mut(|vector| {
            let step = transferred.min(vector.iov_len as u64);
            transferred -= step;
            vector.iov_base = vector.iov_base.wrapping_byte_add(step as usize);
            vector.iov_len -= step as usize;
            vector.iov_len > 0
        });
        arguments[1] = self.vectors.as_ptr() as u64;
        arguments[2] = self.vectors.len() as u64;
        !self.vectors.is_empty()
    }

    /// The result of a call that cannot continue: its progress, or the error.
    fn progress_or(&self, error: Errno) -> Returned {
        if self.done > 0 { Ok(self.done) } else { Err(error) }
    }
}

/// The deadline that a socket's timeout sets, if it has one.
fn deadline_of(simulation: &Simulation, descriptor: RawFd, events: i16) -> Option<Time> {
    let limit = if events == READ { libc::SO_RCVTIMEO } else { libc::SO_SNDTIMEO };
    simulation.scheduler.now().checked_add(timeout_of(descriptor, limit)?)
}

/// A socket's timeout, if it has one.
fn timeout_of(descriptor: RawFd, option: i32) -> Option<Duration> {
    let limit = open_files::socket_option::<16>(descriptor, option).ok()?;
    let [seconds, us] = words_of(&limit);
    let us = seconds.checked_mul(1_000_000)?.checked_add(us).filter(|us| *us > 0)?;
    Duration::from_ns(us.checked_mul(1000)?)
}

/// Connects a socket.
///
/// # Safety
/// As for [`interruptible_on_host`].
unsafe fn connect(context: &Context, arguments: Arguments) -> Returned {
    let descriptor = arguments[0] as RawFd;
    // SAFETY: the call takes no pointers.
    let mode = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    if mode < 0 || mode & libc::O_NONBLOCK != 0 {
        // SAFETY: the caller upholds the contract.
        return unsafe { interruptible_on_host(libc::SYS_connect, arguments) };
    }
    // SAFETY: the call takes no pointers, and no other thread runs during it.
    unsafe { libc::fcntl(descriptor, libc::F_SETFL, mode | libc::O_NONBLOCK) };
    // SAFETY: the caller upholds the contract.
    let returned = unsafe { host_call(libc::SYS_connect, arguments) };
    // SAFETY: as above.
    unsafe { libc::fcntl(descriptor, libc::F_SETFL, mode) };
    match returned {
        // A listener with a full queue does not signal when it accepts connections again. SAFETY: the caller upholds
        // the contract.
        Err(AGAIN) => unsafe { run_blocking(context, libc::SYS_connect, arguments) },
        Err(Errno(libc::EINPROGRESS)) => {
            let files = vec![AwaitedFile { descriptor, events: WRITE }];
            let sleep = Sleep { files, has_side_effects: true, reason: "a connection", ..Sleep::default() };
            match context.simulation.scheduler.sleep(context.thread, sleep) {
                Wakeup::Signalled | Wakeup::NotBegun => Err(Errno(libc::EINTR)),
                Wakeup::Woken | Wakeup::TimedOut => {
                    let error = open_files::socket_option(descriptor, libc::SO_ERROR);
                    Errno::check(-i64::from(error.map_or(0, i32::from_ne_bytes)))
                }
            }
        }
        returned => returned,
    }
}

/// Waits for a child, which runs on the host outside simulated time.
///
/// # Safety
/// As for [`interruptible_on_host`].
unsafe fn wait_for_child(context: &Context, number: i64, arguments: Arguments, options: usize) -> Returned {
    if arguments[options] as i32 & libc::WNOHANG == 0 && !is_child_ready(number, &arguments) {
        // SAFETY: the caller upholds the contract.
        let returned = unsafe { run_blocking(context, number, arguments) };
        let would_block = [Errno::RESTART, Errno::RESTART_ALWAYS, Errno(libc::EINTR)];
        if !matches!(returned, Err(error) if would_block.contains(&error))
            || !is_child_ready(number, &arguments)
        {
            return returned;
        }
    }
    // As in Linux, a change of the child is reported even if a signal is pending, since SIGCHLD accompanies it.
    let mut nonblocking = arguments;
    nonblocking[options] |= libc::WNOHANG as u64;
    // SAFETY: the caller upholds the contract.
    unsafe { host_call(number, nonblocking) }
}

/// Whether a wait would return at once, possibly with an error.
fn is_child_ready(number: i64, arguments: &Arguments) -> bool {
    let (kind, id, options) = if number == libc::SYS_waitid {
        (arguments[0] as libc::idtype_t, arguments[1] as libc::id_t, arguments[3] as i32)
    } else {
        let options = arguments[2] as i32 | libc::WEXITED;
        match arguments[0] as i32 {
            -1 => (libc::P_ALL, 0, options),
            0 => (libc::P_PGID, 0, options),
            group @ ..-1 => (libc::P_PGID, group.unsigned_abs(), options),
            process => (libc::P_PID, process as u32, options),
        }
    };
    // SAFETY: `libc::siginfo_t` is plain data.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is live; WNOWAIT does not reap the child.
    let result = unsafe { libc::waitid(kind, id, &raw mut info, options | libc::WNOHANG | libc::WNOWAIT) };
    // SAFETY: the field is plain data, and zero if no child is ready.
    result != 0 || unsafe { info.si_pid() } != 0
}

/// Takes a lock with flock or fcntl.
///
/// # Safety
/// As for [`interruptible_on_host`].
unsafe fn take_lock(context: &Context, number: i64, arguments: Arguments) -> Returned {
    let mut nonblocking = arguments;
    let waits = match (number, arguments[1] as i32) {
        (libc::SYS_flock, operation) if operation & libc::LOCK_NB == 0 => {
            nonblocking[1] |= libc::LOCK_NB as u64;
            true
        }
        (libc::SYS_fcntl, command @ (libc::F_SETLKW | libc::F_OFD_SETLKW)) => {
            nonblocking[1] = command as u64 - 1;
            true
        }
        _ => false,
    };
    // SAFETY: the caller upholds the contract; the other commands have the same argument type.
    match unsafe { interruptible_on_host(number, nonblocking) } {
        // SAFETY: the caller upholds the contract.
        Err(Errno(libc::EAGAIN | libc::EACCES)) if waits => unsafe {
            run_blocking(context, number, arguments)
        },
        returned => returned,
    }
}

/// Opens a file, which may be a FIFO that waits for its other end.
///
/// # Safety
/// As for [`interruptible_on_host`].
unsafe fn open(context: &Context, number: i64, arguments: Arguments) -> Returned {
    const PATH: u64 = (libc::O_PATH | libc::O_CLOEXEC) as u64;
    // SAFETY: the caller upholds the contract; `how` is a live structure whose first word holds the flags.
    unsafe {
        let (flags, path_flags) = if number == libc::SYS_openat {
            let follow_flag = arguments[2] & libc::O_NOFOLLOW as u64;
            (arguments[2], host_call(number, [arguments[0], arguments[1], PATH | follow_flag, 0, 0, 0]))
        } else {
            let mut how = *(arguments[2] as *const [u64; 3]);
            let flags = how[0];
            (how[0], how[1]) = (PATH | flags & libc::O_NOFOLLOW as u64, 0);
            let path_arguments = [arguments[0], arguments[1], how.as_ptr() as u64, arguments[3], 0, 0];
            (flags, host_call(number, path_arguments))
        };
        let mut is_fifo = false;
        if let Ok(descriptor) = path_flags {
            let kind = status_of(descriptor as RawFd).map_or(0, |status| status.st_mode & libc::S_IFMT);
            is_fifo = kind == libc::S_IFIFO;
            libc::close(descriptor as RawFd);
        }
        if is_fifo && flags as i32 & (libc::O_NONBLOCK | libc::O_PATH) == 0 {
            return run_blocking(context, number, arguments);
        }
        interruptible_on_host(number, arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_of_several_buffers_continues_where_it_stopped() {
        let (first, second) = ([1u8; 10], [2u8; 10]);
        let vectors = [&first, &second]
            .map(|bytes| libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() });
        let mut arguments = [0, vectors.as_ptr() as u64, 2, 0, 0, 0];
        let mut output = Output::default();
        assert_eq!(output.advance(libc::SYS_writev, &mut arguments, 12), None);
        assert_eq!((arguments[2], output.vectors[0].iov_len), (1, 8));
        assert_eq!(output.vectors[0].iov_base as u64, second.as_ptr() as u64 + 2);
        assert_eq!(output.advance(libc::SYS_writev, &mut arguments, 8), Some(20));
        assert_eq!(output.progress_or(AGAIN), Ok(20));
    }

    #[test]
    fn no_other_process_can_reach_an_unnamed_socket_pair() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        use std::os::fd::AsRawFd;
        assert!(!is_network(one.as_raw_fd()));
        assert!(is_network(listener.as_raw_fd()));
    }
}
